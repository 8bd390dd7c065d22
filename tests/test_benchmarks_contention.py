"""A crowd on one topic is measured whole, and what goes wrong in it is noticed."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import pytest

from benchmarks import fairness
from benchmarks.contention import clients, measure_contention
from benchmarks.contention.measuring import judge_spread, keys_of
from benchmarks.contention.outcome import Contention, Readers
from benchmarks.contention.plan import ContentionPlan
from benchmarks.distribution import distribution
from benchmarks.fairness import Crowd, Fairness
from benchmarks.history import Verdict, judge, summed
from benchmarks.load import Load, send_steadily
from benchmarks.rendezvous import meet, run_together
from deltaq import Producer
from deltaq.partitioner import assign_partitions

LOAD = Load(rate=500, linger_ms=5.0, seconds=0.6, warmup_s=0.2)
PLAN = ContentionPlan((Crowd(1, 0.3, rate=100),), LOAD, (2,), LOAD, (3,), burst=600)
CLEAN = judge(1, array("q", [0]))


def crowd(producers, p99_ms, *, rate=100, creates=10, each_for_itself=False):
    waited = distribution([int(p99_ms * 1e6)])
    in_time = tuple(range(10, 10 + producers))
    about = Crowd(producers, 10.0, rate, each_for_itself=each_for_itself)
    return Fairness(about, CLEAN, in_time, 10, creates, creates - 10, 10, 20, waited, 0.25)


def found(*crowds, judged=True, readers=()):
    return Contention(PLAN, judged, crowds, readers, ())


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


def test_a_small_crowd_loses_nothing_and_every_part_of_the_plan_is_shown(tmp_path):
    told: list[str] = []
    outcome = measure_contention(str(tmp_path), PLAN, told.append)
    assert outcome.is_clean, told
    assert json.loads(json.dumps(asdict(outcome)))
    assert not outcome.judged
    (readers,), (spread,) = outcome.readers, outcome.spreads
    assert (readers.verdict.sent, readers.verdict.received, readers.latency.count) == (800, 800, 600)
    assert 0 < readers.latency.p50 <= readers.latency.p99 <= readers.slowest_p99_ms
    assert (spread.verdict.sent, spread.latency.count) == (400 + clients.BURST_WARMUP + 600, 300)
    assert spread.burst_rate > 0
    assert [len(table.rows) for table in outcome.tables()] == [1, 1, 1]
    assert all(len(row) == len(table.head) for table in outcome.tables() for row in table.rows)
    assert [series.points[0][0] for chart in outcome.charts() for series in chart.series] == [1, 1, 1, 3, 3, 3]
    assert list(outcome.targets()) == []


def test_a_process_that_fails_ends_the_wait_of_the_others_and_is_what_is_told():
    tasks: list[Callable[[], object]] = [meet, partial(int, "no number")]
    with pytest.raises(ValueError, match="invalid literal"):
        run_together(tasks)


def test_sixteen_producers_are_judged_by_their_attempts_and_against_one():
    alone, many = crowd(1, 20.0), crowd(16, 50.0, creates=16)
    outcome = found(alone, many)
    assert (many.puts_per_commit, outcome.p99_ratio(many), outcome.p99_ratio(alone)) == (1.6, 2.5, 1.0)
    assert [(target.found, target.met) for target in outcome.targets()] == [("1.60", False), ("2.50", True)]
    assert list(found(alone, many, judged=False).targets()) == [], "there are aims for object stores only"


def test_a_crowd_is_compared_with_one_producer_of_its_own_kind():
    greedy = crowd(16, 900.0, rate=0)
    assert found(crowd(1, 20.0), greedy).p99_ratio(greedy) is None
    assert found(crowd(1, 20.0), crowd(1, 300.0, rate=0), greedy).p99_ratio(greedy) == 3.0
    charts = list(found(crowd(1, 20.0), crowd(4, 30.0), greedy).charts())
    assert [series.name for series in charts[0].series] == ["100/s each", "1,000 on their way each"]
    assert charts[0].series[0].points == ((1.0, 20.0), (4.0, 30.0))
    assert charts[0].log_x


def test_producers_that_commit_each_for_itself_are_shown_next_to_the_others_and_not_judged():
    alone, together, apart = crowd(1, 20.0), crowd(16, 50.0), crowd(16, 80.0, creates=30, each_for_itself=True)
    outcome = found(alone, together, apart)
    (table,) = outcome.tables()
    assert [row[0] for row in table.rows[1:]] == [
        "16 producers, 100/s each",
        "16 producers, 100/s each, each for itself",
    ]
    assert outcome.p99_ratio(apart) == 4.0, "one producer has nobody to commit for"
    assert [target.name for target in outcome.targets()] == [
        "PUTs/commit, 16 producers, 100/s each",
        "p99 to one producer's, 16 producers, 100/s each",
    ]
    charts = list(outcome.charts())
    assert [series.name for series in charts[0].series] == ["100/s each", "100/s each, each for itself"]


@pytest.mark.parametrize(("each_for_itself", "asked"), [(False, "auto"), (True, "false")])
def test_a_crowd_commits_each_for_itself_only_where_it_is_asked_to(tmp_path, monkeypatch, each_for_itself, asked):
    confs: list[dict[str, object]] = []

    class Told(Producer):
        def __init__(self, conf, **more):
            confs.append(conf)
            super().__init__(conf, **more)

    monkeypatch.setattr(fairness, "Producer", Told)
    monkeypatch.setattr(fairness, "meet", lambda: None)
    monkeypatch.setattr(fairness, "run_together", lambda tasks: [task() for task in tasks])
    fairness.measure_fairness(str(tmp_path), Crowd(1, 0.1, rate=100, each_for_itself=each_for_itself))
    assert [conf["deltaq.group.commit"] for conf in confs] == [asked]


def test_a_message_that_one_of_many_consumers_lacks_makes_a_finding_unclean():
    waited = distribution([10**6])
    readers = Readers(20, LOAD, CLEAN, waited, 1.0, 500.0, 1.0, 1.0, None)
    assert found(crowd(1, 20.0), readers=(readers,)).is_clean
    lacking = replace(readers, verdict=summed([CLEAN] * 19 + [judge(1, array("q"))]))
    outcome = found(crowd(1, 20.0), readers=(lacking,))
    assert not outcome.is_clean
    assert outcome.others_cores == (0.25,)
    assert "1 lost" in [row[-1] for table in outcome.tables() for row in table.rows]
