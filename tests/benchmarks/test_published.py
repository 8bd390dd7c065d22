"""The published benchmark is replicated with the figures that were published, and what goes wrong
in it is noticed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.__main__ import SUITES, main
from benchmarks.delta_rs import Appender, create_queue, storage_options
from benchmarks.finding import Outcome
from benchmarks.floor import Floor
from benchmarks.history import Verdict
from benchmarks.load import Load
from benchmarks.payload import MESSAGE_BYTES
from benchmarks.published import measuring, pipeline
from benchmarks.published.measuring import Published, _kept_up_s, measure_published
from benchmarks.published.pipeline import collect, source, transfer_tables
from benchmarks.published.rows import (
    Arrivals,
    Int64s,
    Marks,
    Spike,
    TimedRows,
    by_window,
    judge_rows,
    marks,
    spikes,
)
from benchmarks.published.trials import (
    DELTA_RS,
    DELTA_RS_KEPT,
    FULL_PUBLISHED,
    MESSAGES,
    MODES_MS,
    PUBLISHED,
    TABLES,
    PublishedPlan,
    Trial,
    TrialResult,
    range_plan,
)
from benchmarks.suite import Place, Suite
from deltaq import Producer, Topic
from deltaq.store import open_store
from tests.children import NEED_NUMPY

MS = 1_000_000


@pytest.fixture(autouse=True)
def numpy_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of the benchmark make their rows with numpy."""
    for name, value in NEED_NUMPY.items():
        monkeypatch.setenv(name, value)


def _numbers(*values: int) -> Int64s:
    return np.array(values, np.int64)


FLOOR = Floor(1_000, 3, 1.0, 0.5, 0.25, 0.25)


def _result(
    trial: Trial, *windows: Marks, kept_up_s: float = 0.0, verdict: Verdict | None = None
) -> TrialResult:
    clean = Verdict(trial.load.total, trial.load.total, 0, 0, 0, 0)
    whole = windows[0]
    figures = (trial.load.rate, kept_up_s, 10, 20_000, 3_000, 1.0, 1.0, FLOOR, 0.01)
    return TrialResult(trial, verdict or clean, windows, whole, whole, whole, *figures)


# --- the arithmetic
# --------------------------------------------------------------------------------------------------


def test_the_published_figures_are_those_that_were_published():
    """In seconds, as in the article."""
    figures = [
        (one.rate, one.mode_ms, *(mark / 1000 for mark in astuple(one.marks))) for one in PUBLISHED
    ]
    assert {figure.mode_ms for figure in PUBLISHED} == set(MODES_MS)
    assert sorted(figures) == [
        (10_000, 100, 0.26, 0.35, 0.36, 0.53, 0.67),
        (10_000, 1000, 0.94, 0.94, 0.94, 0.95, 1.94),
        (30_000, 100, 0.28, 0.31, 0.32, 0.38, 0.64),
        (70_000, 100, 1.24, 16.06, 24.82, 35.66, 41.32),
        (70_000, 1000, 1.45, 1.72, 1.84, 1.89, 2.05),
        (150_000, 1000, 1.68, 1.94, 2.04, 2.18, 3.09),
        (250_000, 1000, 1.98, 2.27, 2.41, 3.36, 4.58),
    ]


def test_the_full_plan_has_every_rate_that_was_asked_for_and_delta_rs_at_two_of_them():
    rates = {rate for one in FULL_PUBLISHED.trials if one.is_ours for rate in [one.load.rate]}
    assert sorted(rates) == [10_000, 30_000, 70_000, 150_000, 250_000, 500_000, 1_000_000]
    theirs = {(one.load.rate, one.way) for one in FULL_PUBLISHED.trials if not one.is_ours}
    assert theirs == {(rate, way) for rate in (10_000, 70_000) for way in (DELTA_RS, DELTA_RS_KEPT)}


def test_marks_are_the_smallest_values_that_enough_values_do_not_exceed():
    assert marks(_numbers(*(number * MS for number in range(100, 0, -1)))) == Marks(
        50, 75, 85, 95, 99
    )
    assert marks(_numbers(4 * MS, 1 * MS, 3 * MS, 2 * MS)) == Marks(2, 3, 4, 4, 4)
    with pytest.raises(ValueError, match="nothing was measured"):
        marks(_numbers())


def test_windows_are_of_messages_that_were_due_in_the_same_time_after_the_warm_up():
    # Two a second: messages 0 and 1 warm up, 2 to 5 are due in the first two seconds that count, 6
    # to 9 in the next.
    load = Load(rate=2, linger_ms=5.0, seconds=4.0, warmup_s=1.0)
    sequences = _numbers(2, 3, 6, 5, 4, 7, 9, 8)
    latency_ns = _numbers(*(ms * MS for ms in (4, 1, 50, 3, 2, 10, 20, 30)))
    assert by_window(load, sequences, latency_ns, 2.0) == (
        Marks(2, 3, 4, 4, 4),
        Marks(20, 30, 50, 50, 50),
    )
    assert len(by_window(load, sequences, latency_ns, 1.0)) == 4


def test_the_middle_is_of_each_mark_the_median_of_the_windows():
    trial = Trial(Load(10_000, 5.0, 3.0, 0.0))
    windows = (Marks(1, 5, 6, 7, 90), Marks(3, 4, 7, 9, 10), Marks(2, 6, 8, 8, 20))
    result = _result(trial, *windows)
    assert result.middle == Marks(2, 5, 7, 8, 20)
    assert result.worst_p99 == 90
    assert _result(trial, *windows[:2]).middle == Marks(3, 5, 7, 9, 90), "of two the worse"


@pytest.mark.parametrize(
    ("p99s", "achieved_rate", "kept_up_s"),
    [
        ((10, 20, 30), 1000, 6.0),
        ((10, 2_000, 30), 991, 6.0),
        ((10, 2_001, 30), 1000, 2.0),
        ((3_000, 20, 30), 1000, 0.0),
        ((10, 20, 30), 980, 0.0),
        ((10, 20, 30, 40), 1000, 6.0),
    ],
)
def test_a_rate_is_kept_up_until_a_window_is_late_and_never_if_less_was_sent(
    p99s, achieved_rate, kept_up_s
):
    load = Load(1000, 5.0, seconds=6.0, warmup_s=0.0)
    windows = [Marks(1, 1, 1, 1, p99) for p99 in p99s]
    assert _kept_up_s(load, windows, 2.0, achieved_rate) == kept_up_s


def test_the_rates_of_a_range_are_streamed_for_as_long_as_the_article_did():
    plan = range_plan(10_000, 250_000, 120_000, 300)
    assert [(one.load.rate, one.load.warmup_s, one.load.seconds) for one in plan.trials] == [
        (10_000, 30.0, 270.0),
        (130_000, 30.0, 270.0),
        (250_000, 30.0, 270.0),
    ]
    (short,) = range_plan(50_000, 50_000, 1, 20).trials
    assert (short.load.warmup_s, short.load.seconds, short.way) == (2.0, 18.0, MESSAGES)


def test_a_spike_lasts_from_its_first_to_its_last_high_window_and_names_the_highest():
    windows = [Marks(1, 1, 1, 1, p99) for p99 in (10, 31, 90, 10, 10, 30, 10, 10, 40)]
    assert spikes(windows, 5.0) == (
        Spike(5.0, 15.0, 90, is_recovered=True),
        Spike(40.0, 45.0, 40, is_recovered=False),
    )
    assert spikes(windows[3:8], 5.0) == ()


# --- the rows
# --------------------------------------------------------------------------------------------------


def _read(rows: TimedRows, *columns: pa.Array | pa.ChunkedArray) -> Arrivals:
    return rows.read([(1_000 + number, column) for number, column in enumerate(columns)])


def test_rows_are_read_as_they_were_made_in_whatever_pieces_they_come():
    rows = TimedRows(seed=1)
    column = rows.make(np.arange(7), np.arange(7) * 10)
    assert {len(value) for value in column.to_pylist()} == {MESSAGE_BYTES}
    chunked = pa.chunked_array([column[2:3], column[3:3], column[3:5]])
    arrivals = _read(rows, column[:2], chunked, column[5:].cast(pa.large_binary()))
    assert arrivals.sequences.tolist() == list(range(7))
    assert arrivals.sent_ns.tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert arrivals.received_ns.tolist() == [1000, 1000, 1001, 1001, 1001, 1002, 1002]
    assert arrivals.foreign == 0
    assert _read(rows).sequences.tolist() == []


def test_rows_that_were_never_made_are_counted_apart():
    rows = TimedRows(seed=1)
    good, bad, last = rows.make(np.arange(3), np.arange(3)).to_pylist()
    flipped = bytes([*bad[:-1], bad[-1] ^ 1])
    renumbered = bad[:8] + last[8:16] + bad[16:]
    for strange in (flipped, renumbered, bad[:-1], bad + b"x", b"", None):
        arrivals = _read(rows, pa.array([good, strange, last], pa.binary()))
        assert (arrivals.sequences.tolist(), arrivals.foreign) == ([0, 2], 1)
    assert _read(TimedRows(seed=2), pa.array([good, bad, last])).foreign == 3


@pytest.mark.parametrize("way", [TABLES, DELTA_RS_KEPT])
@pytest.mark.parametrize(
    ("sequences", "said"),
    [
        ((0, 1, 2, 3, 4, 5), "complete"),
        ((0, 1, 3, 4, 5), "1 lost"),
        ((0, 1, 2, 3, 4), "1 lost"),
        ((0, 1, 2, 2, 3, 4, 5), "1 doubled"),
        ((0, 1, 2, 4, 3, 5), "1 disordered"),
        ((0, 1, 2, 2, 4, 5), "1 lost, 1 doubled"),
    ],
)
def test_a_row_that_is_lost_doubled_or_disordered_in_a_table_is_noticed(
    way, sequences, said, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(pipeline, "QUIET_S", 0.1)
    root, rows = str(tmp_path), TimedRows(seed=1)
    trial = Trial(Load(6, 5.0, 1.0, 0.0), way, 5.0)
    columns = [rows.make(part, part) for part in np.split(np.array(sequences), [1, 3])]
    if trial.is_ours:
        Topic("queue", conf={"bootstrap.servers": root}).create()
    else:
        create_queue(f"{root}/queue")
    with source(root, "queue", trial) as take:
        if trial.is_ours:
            with Producer({"bootstrap.servers": root}) as producer:
                for column in columns:
                    producer.produce_arrow("queue", pa.table({"value": column}))
        else:
            appender = Appender(f"{root}/queue", keep=True)
            for column in columns:
                appender.append(column)
        verdict = judge_rows(6, rows.read(collect(take, 6)))
    assert str(verdict) == said


# --- both processes
# --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads_for_processes")
@pytest.mark.parametrize(
    "trial",
    [
        Trial(Load(1_000, 5.0, 0.4, 0.1)),
        Trial(Load(100_000, 5.0, 0.4, 0.1), TABLES, 5.0),
        Trial(Load(1_000, 0.0, 0.4, 0.1), DELTA_RS, 50.0),
        Trial(Load(1_000, 0.0, 0.4, 0.1), DELTA_RS_KEPT, 50.0),
    ],
    ids=lambda trial: trial.name,
)
def test_a_small_run_goes_from_process_to_process_and_leaves_nothing_behind(trial, tmp_path):
    lines: list[str] = []
    finding: Outcome = measure_published(
        str(tmp_path), PublishedPlan((trial,), window_s=0.2), lines.append
    )
    assert isinstance(finding, Published)
    assert finding.is_clean
    (result,) = finding.results
    assert result.verdict == Verdict(trial.load.total, trial.load.total, 0, 0, 0, 0)
    assert len(result.windows) == 2
    assert 0 < result.whole.p50 <= result.worst_p99
    assert result.from_due.p99 >= result.whole.p50
    assert astuple(result.middle_from_due) >= astuple(result.middle)
    assert result.floor.total_ms > 0
    assert result.commits > 0
    assert result.data_bytes > trial.load.total * MESSAGE_BYTES
    assert result.log_bytes > 0
    assert not [
        entry.key for entry in open_store(str(tmp_path)).list("") if entry.key.endswith(".parquet")
    ]
    assert "complete" in lines[-1]
    assert json.loads(json.dumps(asdict(finding)))["results"][0]["verdict"]["lost"] == 0


@pytest.mark.usefixtures("threads_for_processes")
def test_a_double_written_after_the_reader_stopped_is_counted(tmp_path, monkeypatch):
    def and_once_more(root: str, name: str, *arguments: Any) -> Any:
        outcome = transfer_tables(root, name, *arguments)
        with Producer({"bootstrap.servers": root}) as producer:
            producer.produce(name, b"again")
        return outcome

    monkeypatch.setattr("benchmarks.published.measuring.transfer_tables", and_once_more)
    plan = PublishedPlan((Trial(Load(1_000, 5.0, 0.2, 0.1), TABLES, 5.0),), window_s=0.2)
    found = measure_published(str(tmp_path), plan, lambda _: None)
    assert found.failures == ()
    assert [result.verdict for result in found.results] == [Verdict(300, 301, 0, 0, 0, 1)]


@pytest.mark.usefixtures("threads_for_processes")
def test_a_load_that_fails_is_reported_and_the_figures_of_the_others_are_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(measuring, "create_queue", lambda uri: None)
    fails = Trial(Load(1_000, 0.0, 0.4, 0.1), DELTA_RS, 50.0)
    first, last = (Trial(Load(rate, 5.0, 0.2, 0.1)) for rate in (1_000, 2_000))
    plan = PublishedPlan((first, fails, last), 0.2)
    found = measure_published(str(tmp_path), plan, lambda text: None)
    assert [result.trial for result in found.results] == [first, last], found.failures
    ((load, reason),) = found.failures
    assert (load, "TableNotFoundError" in reason, found.is_clean) == (str(fails), True, False)
    assert next(found.tables()).rows == found.failures


# --- what it says
# --------------------------------------------------------------------------------------------------

OURS = Marks(10.0, 11.0, 12.0, 13.0, 14.0)
THEIRS = Marks(55.0, 80.0, 90.0, 95.0, 140.0)


def _finding(*results: TrialResult, on_s3: bool = True) -> Published:
    return Published(PublishedPlan(tuple(one.trial for one in results), 5.0), on_s3, results)


def test_the_report_has_ours_the_published_and_the_plain_one_side_by_side():
    ours = _result(Trial(Load(70_000, 20.0, 10.0, 1.0)), OURS, OURS, kept_up_s=10.0)
    ours = replace(ours, from_due=Marks(11.0, 12.0, 13.0, 14.0, 21.0))
    theirs = _result(Trial(Load(70_000, 0.0, 10.0, 1.0), DELTA_RS, 100.0), THEIRS, kept_up_s=5.0)
    finding = _finding(ours, theirs)
    windows, whole, ratios, conditions = finding.tables()
    for table in (windows, whole, ratios, conditions):
        assert {len(row) for row in table.rows} == {len(table.head)}
    first = dict(zip(windows.head, windows.rows[0], strict=True))
    assert (first["load"], first["p50"], first["worst p99"]) == (
        "70,000/s, linger 20 ms",
        "10.0",
        "14.0",
    )
    published = first["published, 1000 ms"], first["published, 100 ms"], first["best/p50"]
    assert (published, first["kept up"]) == (("1,450.0", "1,240.0", "124"), "yes")
    assert windows.rows[1][windows.head.index("kept up")] == "5 s"
    assert (first["p99"], first["due p99, whole run"]) == ("14.0", "21.0"), (
        "not of windows, unlike all others"
    )
    assert [row[0] for row in whole.rows][2:] == [
        "70,000/s, published, 1000 ms",
        "70,000/s, published, 100 ms",
    ]
    assert (first["floor"], first["p50/floor"]) == ("2.00", "5.0")
    ((_, name, *figures),) = ratios.rows
    assert (name, figures) == (
        f"{DELTA_RS}, each 100 ms",
        ["10.0", "55.0", "5.5", "14.0", "140.0", "10.0"],
    )
    assert finding.others_cores == (0.01, 0.01)


def test_delta_rs_is_compared_by_what_both_took_from_when_a_message_was_due():
    ours = replace(
        _result(Trial(Load(70_000, 20.0, 10.0, 1.0)), OURS), middle_from_due=Marks(11, 0, 0, 0, 20)
    )
    theirs = _result(Trial(Load(70_000, 0.0, 10.0, 1.0), DELTA_RS, 100.0), THEIRS)
    _, _, ratios, _ = _finding(ours, theirs).tables()
    assert ratios.rows[0][2:] == ("11.0", "55.0", "5.0", "20.0", "140.0", "7.0")


def test_spikes_are_listed_and_one_at_the_end_of_the_run_is_missed():
    calm, high = OURS, replace(OURS, p99=200.0)
    finding = _finding(_result(Trial(Load(50_000, 20.0, 25.0, 1.0)), calm, high, calm, calm, high))
    _, _, table, _ = finding.tables()
    assert [row[1:] for row in table.rows] == [
        ("5", "10", "200.0", "yes"),
        ("20", "25", "200.0", "no"),
    ]
    assert _aims(finding)["spikes recovered, 50,000/s, linger 20 ms"] == ("all", "1 of 2", False)


def test_the_rates_of_a_range_are_measured_and_in_the_file(tmp_path, monkeypatch):
    def measure(plan: PublishedPlan, place: Place) -> list[Published]:
        return [_finding(*(_result(trial, OURS) for trial in plan.trials))]

    monkeypatch.setitem(SUITES, "published", Suite(FULL_PUBLISHED, FULL_PUBLISHED, measure))
    rates = "--range-start 10000 --range-end 30000 --range-step 10000 --seconds-to-stream 60"
    assert main(["--only", "published", *rates.split(), "--results", str(tmp_path)]) == 0
    (figures,) = tmp_path.glob("*.json")
    results = json.loads(figures.read_text())["published"][0]["results"]
    assert [result["trial"]["load"]["rate"] for result in results] == [10_000, 20_000, 30_000]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--range-start", "10000"], "--only published"),
        (["--only", "published", "--quick", "--range-start", "10000"], "without --quick"),
        (["--only", "published", "--range-start", "0"], "'0' is not a positive whole number"),
        (["--only", "published", "--range-end", "10000"], "needs --range-start"),
        (
            ["--only", "published", "--range-start", "20000", "--range-end", "10000"],
            "10000 is below",
        ),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_by_name(given, said, capsys):
    with pytest.raises(SystemExit):
        main(given)
    assert said in capsys.readouterr().err


def test_a_run_with_a_lost_message_is_not_clean():
    result = _result(Trial(Load(70_000, 20.0, 10.0, 1.0)), OURS)
    lossy = replace(result, verdict=Verdict(2, 1, 1, 0, 0, 0))
    assert _finding(result).is_clean
    assert not _finding(result, lossy).is_clean


def _aims(finding: Published) -> dict[str, tuple[str, str, bool]]:
    return {target.name: (target.aim, target.found, target.met) for target in finding.targets()}


def test_on_an_object_store_latency_is_judged_by_milliseconds_and_by_what_was_published():
    slow = Marks(30.0, 31.0, 32.0, 33.0, 61.0)
    plain = _result(Trial(Load(70_000, 0.0, 10.0, 1.0), DELTA_RS, 100.0), THEIRS)
    loads = [(70_000, 20.0, OURS), (250_000, 20.0, slow), (10_000, 5.0, OURS), (30_000, 5.0, OURS)]
    ours = [
        _result(Trial(Load(rate, linger_ms, 10.0, 1.0)), found) for rate, linger_ms, found in loads
    ]
    assert _aims(_finding(*ours, plain)) == {
        "p50, 70,000/s, linger 20 ms": ("<= 22 ms", "10.00 ms", True),
        "p99, 70,000/s, linger 20 ms": ("<= 60 ms", "14.00 ms", True),
        "best published p50/p50, 70,000/s, linger 20 ms": (">= 40", "124.00", True),
        "p50, 250,000/s, linger 20 ms": ("<= 22 ms", "30.00 ms", False),
        "p99, 250,000/s, linger 20 ms": ("<= 60 ms", "61.00 ms", False),
        "best published p50/p50, 250,000/s, linger 20 ms": (">= 40", "66.00", True),
        "p50, 10,000/s, linger 5 ms": ("<= 12 ms", "10.00 ms", True),
    }


def test_on_a_local_disk_the_tail_is_judged_and_a_million_a_second_for_a_minute():
    ours = _result(Trial(Load(150_000, 5.0, 10.0, 1.0)), OURS)
    million = _result(Trial(Load(1_000_000, 5.0, 60.0, 5.0), TABLES, 50.0), OURS, kept_up_s=55.0)
    assert _aims(_finding(ours, million, on_s3=False)) == {
        "p99, 150,000/s, linger 5 ms": ("<= 20 ms", "14.00 ms", True),
        "kept up, 1,000,000/s, tables each 50 ms, linger 5 ms": (">= 60 s", "55.00 s", False),
        "p95, 1,000,000/s, tables each 50 ms, linger 5 ms": ("<= 200 ms", "13.00 ms", True),
    }


# --- delta-rs
# --------------------------------------------------------------------------------------------------


def test_delta_rs_finds_its_store_by_the_usual_variables():
    keys = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    safe = {**keys, "AWS_CONDITIONAL_PUT": "etag"}
    assert storage_options("s3://bucket/root", keys) == safe
    assert storage_options("/tmp/root", keys) == {}
    local = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}
    assert storage_options("s3://b", {**keys, **local}) == {
        **safe,
        **local,
        "AWS_ALLOW_HTTP": "true",
    }
    far = {"AWS_ENDPOINT_URL": "http://storage.example.com"}
    assert storage_options("s3://b", {**keys, "AWS_ENDPOINT_URL_S3": far["AWS_ENDPOINT_URL"]}) == {
        **safe,
        **far,
    }
    assert (
        storage_options("s3://b", {**keys, **far, "AWS_ALLOW_HTTP": "1"})["AWS_ALLOW_HTTP"] == "1"
    )


@pytest.mark.long
@pytest.mark.s3_server
@pytest.mark.parametrize("way", [MESSAGES, TABLES, DELTA_RS, DELTA_RS_KEPT])
def test_each_way_runs_on_an_object_store_too(way, s3_server_root):
    trial = Trial(Load(500, 5.0, 0.8, 0.2), way, 50.0)
    finding = measure_published(s3_server_root, PublishedPlan((trial,), 0.4), lambda text: None)
    assert finding.is_clean, [str(result.verdict) for result in finding.results]
    assert finding.on_s3


def test_the_files_of_a_plain_table_are_read_in_the_order_of_their_commits(tmp_path):
    uri, rows = str(Path(tmp_path, "queue")), TimedRows(seed=1)
    create_queue(uri)
    trial = Trial(Load(102, 0.0, 1.0, 0.0), DELTA_RS_KEPT, 5.0)
    with source(str(tmp_path), "queue", trial) as take:
        appender = Appender(uri, keep=True)
        for number in range(102):
            appender.append(rows.make(_numbers(number), _numbers(number)))
        # More commits than there are between two checkpoints.
        found = [row for column in take() for row in column.to_pylist()]
        assert list(take()) == []
    assert found == rows.make(np.arange(102), np.arange(102)).to_pylist()
