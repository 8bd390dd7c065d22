"""A flow finds for each message the requests that it waited for, among those of all others."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from benchmarks import flow as flow_suite
from benchmarks.flow import (
    STAGES,
    ConsumerRequests,
    FlowPlan,
    ProducerRequests,
    Transfer,
    measure_flows,
)
from benchmarks.latency import Consumed
from benchmarks.load import Load
from benchmarks.suite import Place
from tests.doubles.late_double import send_and_once_more

LOAD = Load(rate=1000, linger_ms=5.0, seconds=0.004, warmup_s=0.001)
COMMITS = [("0.json", [("a", 2)]), ("1.json", [("b", 1), ("c", 2)])]
SENT = ProducerRequests(
    {"a": (10, 20), "b": (11, 22), "c": (12, 25)},
    {"0.json": (30, 40), "1.json": (50, 60)},
    1.0,
    0.0,
)


def consumed(*sequences: int) -> Consumed:
    return Consumed(
        array("q", sequences),
        array("q", sequences),
        array("q", [100 + sequence for sequence in sequences]),
        0,
        0.0,
    )


def test_each_message_is_traced_through_its_own_file_and_entry() -> None:
    read = ConsumerRequests(
        consumed(0, 1, 2, 3, 4),
        {"0.json": (41, 42), "1.json": (58, 62)},
        dict.fromkeys("abc", (70, 80)),
    )
    stages, whole = Transfer(LOAD, "t", SENT, read, COMMITS).stages()
    assert stages == [
        # Message 1, the second of file a; 0 was before the clock began to count.
        [9, 10, 10, 10, 1, 1, 28, 10, 21],
        [9, 11, 28, 10, -2, 4, 8, 10, 22],  # 2: file b, read before its writer had its answer
        [9, 13, 25, 10, -2, 4, 8, 10, 23],
        [8, 13, 25, 10, -2, 4, 8, 10, 24],
    ]
    assert whole == [100] * 4 == [sum(stage) for stage in stages]


@pytest.mark.parametrize("lacking", ["puts", "creates", "entries", "files"])
def test_a_message_one_of_whose_requests_is_not_known_is_left_out(lacking: str) -> None:
    spans = {
        "puts": dict(SENT.puts),
        "creates": dict(SENT.creates),
        "entries": {"0.json": (41, 42), "1.json": (58, 62)},
        "files": dict.fromkeys("abc", (70, 80)),
    }
    del spans[lacking]["1.json" if lacking in {"creates", "entries"} else "c"]
    sent = ProducerRequests(spans["puts"], spans["creates"], 1.0, 0.0)
    read = ConsumerRequests(consumed(0, 1, 2, 3, 4), spans["entries"], spans["files"])
    _, whole = Transfer(LOAD, "t", sent, read, COMMITS).stages()
    assert len(whole) == (1 if lacking in {"creates", "entries"} else 2)


@pytest.mark.usefixtures("threads_for_processes")
def test_a_short_flow_through_two_processes_is_whole(tmp_path: Path) -> None:
    lines: list[str] = []
    (flows,) = measure_flows(
        FlowPlan((Load(2000, 5.0, 0.4, 0.2),)), Place(str(tmp_path), "", lines.append)
    )
    (flow,) = flows.flows
    assert flows.is_clean
    assert flow.whole.count == 800
    assert len(flow.stages) == len(STAGES)
    assert 1 <= flow.commits <= 1200  # on a busy machine one commit takes all
    assert flow.cpu_s[0] > 0 < flow.cpu_s[1]
    assert [len(table.rows) for table in flows.tables()] == [len(STAGES) + 1, 1]


@pytest.mark.usefixtures("threads_for_processes")
def test_a_double_that_is_written_when_the_reader_of_a_flow_has_stopped_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_suite, "send_to_reader", send_and_once_more)
    (flows,) = measure_flows(
        FlowPlan((Load(500, 5.0, 0.2, 0.1),)), Place(str(tmp_path), "", lambda _: None)
    )
    assert not flows.is_clean
    assert str(flows.flows[0].verdict) == "1 foreign"
