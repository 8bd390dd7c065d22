"""Many clients of one topic are measured as a whole, and lost or doubled messages are noticed."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import pytest

from benchmarks import contention, producers
from benchmarks.barrier import run_together, wait_for_all
from benchmarks.contention import (
    Contention,
    ContentionPlan,
    Readers,
    judge_spread,
    keys_of,
    measure_contention,
)
from benchmarks.distribution import distribution
from benchmarks.history import Verdict, judge, summed
from benchmarks.load import Load, send_steadily
from benchmarks.payload import MESSAGE_BYTES, ProducerPayloads
from benchmarks.producers import (
    ProducerLoad,
    ProducerShares,
    Share,
    judge_values,
    measure_fairness,
    summarise,
)
from deltaq import Producer
from deltaq.partitioner import assign_partitions

LOAD = Load(rate=500, linger_ms=5.0, seconds=0.6, warmup_s=0.2)
PLAN = ContentionPlan((ProducerLoad(1, 0.3, rate=100),), LOAD, (2,), LOAD, (3,), burst=600)
CLEAN = judge(1, array("q", [0]))


def result(count, p99_ms, *, rate=100, creates=10, without_group_commit=False):
    waited = distribution([int(p99_ms * 1e6)])
    in_time = tuple(range(10, 10 + count))
    load = ProducerLoad(count, 10.0, rate, without_group_commit=without_group_commit)
    return ProducerShares(load, CLEAN, in_time, 10, creates, creates - 10, 10, 20, waited, 0.25)


def found(*results, judged=True, readers=()):
    return Contention(PLAN, judged, results, readers, ())


@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
def test_there_is_a_key_for_each_partition_in_their_order(partitions):
    keys = keys_of(partitions)
    assert assign_partitions("consistent_random", keys, partitions, 0) == list(range(partitions))


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ([0, 1, 2, 3, 4, 5], "complete"),
        ([1, 0, 3, 5, 2, 4], "complete"),  # 0, 2, 4 are of one partition and 1, 3, 5 of the other
        ([0, 4, 2, 1, 3, 5], "1 disordered"),
        ([0, 1, 2, 3, 5], "1 lost"),
        ([0, 1, 2, 3, 4, 5, 1], "1 doubled"),
        ([0, 1, 2, 3, 4, 5, 6], "1 foreign"),
        ([0, 1, 2, 3, 4, 5, -1], "1 foreign"),
    ],
)
def test_only_messages_of_one_partition_have_an_order(arrivals, said):
    verdict = judge_spread(6, array("q", arrivals), 2)
    assert str(verdict) == said
    assert verdict.received == len(arrivals)


def test_what_was_never_sent_is_counted_whatever_the_partition():
    verdict = judge_spread(2, array("q", [0, 1]), 2, foreign=3)
    assert (str(verdict), verdict.received, verdict.sent) == ("3 foreign", 5, 2)


def test_verdicts_of_several_readers_are_added_up():
    parts = [Verdict(5, 4, 1, 0, 0, 0), Verdict(5, 7, 0, 1, 0, 1)]
    assert summed(parts) == Verdict(10, 11, 1, 1, 0, 1)
    assert summed([]).is_clean


def test_every_message_of_a_steady_load_is_sent_once_and_none_before_it_is_due():
    sent: list[int] = []
    polls: list[int] = []
    load = Load(rate=1_000, linger_ms=5.0, seconds=0.05, warmup_s=0.0)
    start_ns, end_ns = send_steadily(load, sent.append, lambda: polls.append(len(sent)))
    assert sent == list(range(50))
    assert end_ns - start_ns >= load.due_ns(49)
    assert polls[-1] == 50


@pytest.mark.long
def test_a_small_plan_loses_nothing_and_every_part_of_it_is_shown(tmp_path):
    lines: list[str] = []
    outcome = measure_contention(str(tmp_path), PLAN, lines.append)
    assert outcome.is_clean, lines
    assert json.loads(json.dumps(asdict(outcome)))
    assert not outcome.judged
    (readers,), (spread,) = outcome.readers, outcome.spreads
    assert (readers.verdict.sent, readers.verdict.received, readers.latency.count) == (
        800,
        800,
        600,
    )
    assert 0 < readers.latency.p50 <= readers.latency.p99 <= readers.slowest_p99_ms
    assert (spread.verdict.sent, spread.latency.count) == (400 + contention.BURST_WARMUP + 600, 300)
    assert spread.burst_rate > 0
    assert [len(table.rows) for table in outcome.tables()] == [1, 1, 1]
    assert all(len(row) == len(table.head) for table in outcome.tables() for row in table.rows)
    assert list(outcome.targets()) == []


def test_the_error_of_a_failed_process_ends_the_wait_of_the_others_and_is_raised():
    tasks: list[Callable[[], object]] = [wait_for_all, partial(int, "no number")]
    with pytest.raises(ValueError, match="invalid literal"):
        run_together(tasks)


def test_sixteen_producers_are_judged_by_their_attempts_and_against_one():
    alone, many = result(1, 20.0), result(16, 50.0, creates=16)
    outcome = found(alone, many)
    assert (many.puts_per_commit, outcome.p99_ratio(many), outcome.p99_ratio(alone)) == (
        1.6,
        2.5,
        1.0,
    )
    assert [(target.found, target.met) for target in outcome.targets()] == [
        ("0.40", False),
        ("1.60", False),
        ("2.50", True),
    ]
    (share,) = found(alone, many, judged=False).targets()
    assert share.name.startswith("slowest/fastest"), "the other targets are for object stores"


def test_producers_are_compared_with_one_producer_at_the_same_rate():
    greedy = result(16, 900.0, rate=0)
    assert found(result(1, 20.0), greedy).p99_ratio(greedy) is None
    assert found(result(1, 20.0), result(1, 300.0, rate=0), greedy).p99_ratio(greedy) == 3.0


def test_producers_without_group_commit_are_shown_and_have_no_targets():
    alone, together, apart = (
        result(1, 20.0),
        result(16, 50.0),
        result(16, 80.0, creates=30, without_group_commit=True),
    )
    outcome = found(alone, together, apart)
    (table,) = outcome.tables()
    assert [row[0] for row in table.rows[1:]] == [
        "16 producers, 100/s each",
        "16 producers, 100/s each, without group commit",
    ]
    assert outcome.p99_ratio(apart) == 4.0, "a single producer has no peers to commit for"
    assert [target.name for target in outcome.targets()] == [
        "slowest/fastest, 16 producers, 100/s each",
        "PUTs/commit, 16 producers, 100/s each",
        "p99 to one producer's, 16 producers, 100/s each",
    ]


@pytest.mark.parametrize(("without_group_commit", "asked"), [(False, "auto"), (True, "false")])
def test_group_commit_is_off_only_where_the_load_says_so(
    tmp_path, monkeypatch, without_group_commit, asked
):
    confs: list[dict[str, object]] = []

    class Recording(Producer):
        def __init__(self, conf, **more):
            confs.append(conf)
            super().__init__(conf, **more)

    monkeypatch.setattr(producers, "Producer", Recording)
    monkeypatch.setattr(producers, "wait_for_all", lambda: None)
    monkeypatch.setattr(producers, "run_together", lambda tasks: [task() for task in tasks])
    measure_fairness(
        str(tmp_path), ProducerLoad(1, 0.1, rate=100, without_group_commit=without_group_commit)
    )
    assert [conf["deltaq.group.commit"] for conf in confs] == [asked]


def test_a_message_missing_at_one_of_many_consumers_makes_a_finding_unclean():
    waited = distribution([10**6])
    readers = Readers(20, LOAD, CLEAN, waited, 1.0, 500.0, 1.0, 1.0, None)
    assert found(result(1, 20.0), readers=(readers,)).is_clean
    lacking = replace(readers, verdict=summed([CLEAN] * 19 + [judge(1, array("q"))]))
    outcome = found(result(1, 20.0), readers=(lacking,))
    assert not outcome.is_clean
    assert outcome.others_cores == (0.25,)
    assert "1 lost" in [row[-1] for table in outcome.tables() for row in table.rows]


# --- producers
# --------------------------------------------------------------------------------------------------


def test_the_shares_of_several_producers_are_added_up():
    requests = {
        "entry create ok": 3,
        "entry create exists": 2,
        "data put ok": 4,
        "entry get missing": 5,
    }
    shares = [
        Share(
            sent=4,
            acknowledged=4,
            in_time=in_time,
            requests=requests,
            waited_ns=array("q", [10**6] * 3),
        )
        for in_time in (3, 1, 2)
    ]
    found = summarise(ProducerLoad(3, 1.0), shares, 9, judge(3, array("q", [0, 1, 2])), None)
    assert (found.in_time, found.fairness) == ((1, 2, 3), 1 / 3)
    assert (found.creates, found.lost_races, found.data_puts, found.entry_gets) == (15, 6, 12, 15)
    assert found.puts_per_commit == 15 / 9


def test_missing_doubled_and_foreign_messages_of_several_producers_are_noticed():
    def value(producer, sequence):
        return ProducerPayloads(producer).make(sequence)

    sent = [value(1, 0), value(0, 0), value(0, 1), value(1, 1)]
    assert judge_values([2, 2], sent).is_clean
    assert str(judge_values([2, 2], sent[:-1])) == "1 lost"
    assert str(judge_values([2, 2], [*sent, sent[0]])) == "1 doubled"
    assert str(judge_values([2, 2], [*sent, value(2, 0)])) == "1 foreign"
    assert str(judge_values([2, 2], [*sent, value(0, 0)[:-1]])) == "1 foreign"
    renumbered = value(1, 0)[:16] + value(0, 0)[16:]
    for strange in (bytes([*sent[0][:-1], sent[0][-1] ^ 1]), renumbered, value(-1, 0), b""):
        assert str(judge_values([2, 2], [*sent, strange])) == "1 foreign"
    assert str(judge_values([2, 2], [sent[0], sent[2], sent[1], sent[3]])) == "1 disordered"


def test_surplus_callbacks_of_one_producer_do_not_hide_missing_ones_of_another():
    shares = [
        Share(
            sent=10,
            acknowledged=acknowledged,
            in_time=5,
            requests={},
            waited_ns=array("q", [10**6]),
        )
        for acknowledged in (9, 11, 10)
    ]
    found = summarise(ProducerLoad(3, 1.0), shares, 1, judge(3, array("q", [0, 1, 2])), None)
    assert str(found.verdict) == "2 unacknowledged"


@pytest.mark.parametrize("times", [0, 1, 2], ids=["never", "once", "twice"])
def test_a_result_is_clean_only_if_each_callback_is_made_once(times, tmp_path, monkeypatch):
    class Careless(Producer):
        def __init__(self, conf, *, on_delivery, **keywords):
            def deliver(error, message):
                made[0] += 1
                for _ in range(1 if made[0] % 10 else times):
                    on_delivery(error, message)

            made = [0]
            super().__init__(conf, on_delivery=deliver, **keywords)

    monkeypatch.setattr(producers, "Producer", Careless)
    monkeypatch.setattr(producers, "wait_for_all", lambda: None)
    monkeypatch.setattr(producers, "run_together", lambda tasks: [task() for task in tasks])
    found = measure_fairness(str(tmp_path), ProducerLoad(1, 0.3, rate=200))
    assert found.verdict.unacknowledged == (0 if times == 1 else found.verdict.sent // 10)
    assert found.verdict.is_clean == (times == 1)


def test_messages_of_several_producers_cannot_be_compressed():
    values = [
        ProducerPayloads(producer).make(sequence) for producer in range(4) for sequence in range(50)
    ]
    assert {len(value) for value in values} == {MESSAGE_BYTES}
    # The numbers of producer and message are 16 of 100 bytes; the rest does not become smaller.
    assert len(zlib.compress(b"".join(values), 9)) > 0.84 * len(values) * MESSAGE_BYTES


@pytest.mark.fault("P11")
@pytest.mark.parametrize("rate", [0, 500])
def test_several_producers_write_everything_once_and_every_request_is_counted(
    rate, tmp_path, request
):
    if rate:  # processes take seconds of processor time to start
        request.getfixturevalue("threads_for_processes")
    load = ProducerLoad(3, 1.0, rate, window=50)
    found = measure_fairness(str(tmp_path), load)
    assert found.verdict.is_clean, found.verdict
    assert found.verdict.sent >= sum(found.in_time)
    assert found.acknowledged.count == found.verdict.sent - load.producers, (
        "all but those of the warm-up"
    )
    assert found.creates == found.commits + found.lost_races
    assert found.data_puts >= found.commits > 0
