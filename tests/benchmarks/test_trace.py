"""A trace of one message at a time accounts for all of its way, and for nothing that belongs to
others.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import flow as flow_suite
from benchmarks.floor import Floor
from benchmarks.flow import STAGES, ConsumerRequests, ProducerRequests, Transfer
from benchmarks.latency import Consumed
from benchmarks.load import Load
from benchmarks.suite import Place
from benchmarks.trace import TracePlan, measure_trace, traced
from tests.doubles.late_double import send_and_once_more

MS = 1_000_000
PLAN = TracePlan(messages=3, warmup=1, floor_rounds=1)
FLOOR = Floor(1000, 1, 0.4, 0.3, 0.1, 0.2)


def spans(*moments: tuple[int, int]) -> dict[str, tuple[int, int]]:
    return {str(key): (start * MS, end * MS) for key, (start, end) in enumerate(moments)}


def times(*moments: int) -> array[int]:
    return array("q", [at * MS for at in moments])


SENT = ProducerRequests(
    spans((1, 2), (101, 103), (201, 203)),
    spans((3, 4), (104, 107), (204, 207)),
    acknowledged=times(50, 109, 215),
)
READ = ConsumerRequests(
    Consumed(array("q", [0, 1, 2]), times(0, 100, 200), times(60, 115, 225), 0, 0.0),
    spans((5, 6), (106, 108), (208, 209)),
    spans((7, 8), (109, 111), (210, 212)),
)


COMMITS = [(str(number), [(str(number), 1)]) for number in range(3)]
FOUND = Transfer(Load(3, 0.0, 2 / 3, 1 / 3), "t", SENT, READ, COMMITS)


def test_the_stages_of_a_message_add_up_to_its_way() -> None:
    trace = traced(PLAN, FOUND, FLOOR, True)
    assert [stage.max for stage in trace.stages] == [1, 2, 1, 3, 1, 2, 1, 2, 13]
    assert [stage.p50 for stage in trace.stages] == [1, 2, 1, 3, -1, 1, 1, 2, 4], (
        "a consumer may be woken before an answer"
    )
    assert (trace.whole.p50, trace.whole.max) == (15, 25)
    assert (trace.acknowledged.p50, trace.acknowledged.max) == (9, 15)
    assert trace.is_clean


def test_a_trace_is_judged_by_the_bare_store_and_on_a_disk_by_the_clock() -> None:
    on_disk = list(traced(PLAN, FOUND, FLOOR, True).targets())
    remote = list(traced(PLAN, FOUND, FLOOR, False).targets())
    assert [(target.found, target.met) for target in on_disk] == [
        ("15.00 ms", False),
        ("15.00", False),
    ]
    assert [target.found for target in remote] == ["15.00"]
    quick = traced(PLAN, FOUND, Floor(1000, 1, 10.0, 0.0, 0.0, 0.0), False)
    assert next(iter(quick.targets())).met


@pytest.mark.parametrize("change", ["an entry that was not read", "a message that did not come"])
def test_a_message_without_all_of_its_requests_is_no_trace(change: str) -> None:
    read = READ
    if change == "an entry that was not read":
        read = replace(read, entries={"0": read.entries["0"], "1": read.entries["1"]})
    else:
        consumed = replace(read.consumed, sequences=array("q", [0, 2, 2]))
        read = replace(read, consumed=consumed)
    with pytest.raises(RuntimeError, match="requests"):
        traced(PLAN, replace(FOUND, read=read), FLOOR, True)


@pytest.mark.usefixtures("threads_for_processes")
def test_a_short_trace_of_two_processes_is_whole(tmp_path: Path) -> None:
    lines: list[str] = []
    (trace,) = measure_trace(TracePlan(12, 2, 2), Place(str(tmp_path), "", lines.append))
    assert trace.is_clean
    assert len(trace.stages) == len(STAGES)
    assert all(stage.count == 10 for stage in trace.stages)
    named = {row[0] for table in trace.tables() for row in table.rows}
    assert named >= set(STAGES)
    assert lines


@pytest.mark.usefixtures("threads_for_processes")
def test_a_double_that_is_written_when_the_reader_has_stopped_is_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_suite, "send_to_reader", send_and_once_more)
    with pytest.raises(RuntimeError, match="messages 1 foreign"):
        list(measure_trace(TracePlan(5, 1, 1), Place(str(tmp_path), "", lambda _: None)))
