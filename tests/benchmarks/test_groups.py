"""Groups are measured as a whole, and what is reckoned from the measurements is right."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from time import monotonic_ns
from typing import Any

import pytest

from benchmarks.distribution import distribution
from benchmarks.groups.changes import CHANGES, Changes, Happened, Member, close, first_after
from benchmarks.groups.commits import Commits, LogSize, kept_entries, measure_log
from benchmarks.groups.cost import GroupCost
from benchmarks.groups.measuring import measure_groups
from benchmarks.groups.members import is_even, wait_until
from benchmarks.groups.outcome import Groups
from benchmarks.groups.patterns import Pattern
from benchmarks.groups.plan import QUICK_GROUPS
from benchmarks.groups.requests import LABELS, GroupStore, by_label, label_of
from benchmarks.modelled.model import S3_STANDARD
from benchmarks.suite import Place
from deltaq.names import group_folder, member_key, topic_folder, topic_log
from deltaq.store import MemoryStore, ObjectExists

TINY = replace(
    QUICK_GROUPS,
    rounds=1,
    strategies=("range",),
    sizes=((1, 2),),
    idle_s=1.0,
    warmup_s=2.0,
    busy_s=1.0,
    committers=(2,),
    commit_s=0.3,
    topics=5,
    logged_s=600,
)


def cost(members: int, *, busy: bool = False, **requests: int) -> GroupCost:
    counted = dict.fromkeys(LABELS, 0) | {
        name.replace("_", " "): number for name, number in requests.items()
    }
    return GroupCost(
        members, busy, 30.0, 1.0, counted, {"PUT": 30, "GET": 60, "LIST": 0, "DELETE": 0}, 0
    )


def changes(client: str, ms: float, name: str = CHANGES[0]) -> Changes:
    took = distribution([int(ms * 1e6)])
    return Changes(client, "range", name, took, took)


def found(**parts: Any) -> Groups:
    empty = Groups(QUICK_GROUPS, True, (), (), (), (), LogSize(3600, 720, 726, 0.6), (), 0.25)
    return replace(empty, **parts)


# --- requests ---


@pytest.mark.parametrize(
    ("operation", "key", "outcome", "label"),
    [
        ("put", member_key("g", "m"), "ok", "heartbeat put"),
        ("get", member_key("g", "m"), "missing", "heartbeat get"),
        (
            "get",
            group_folder("g") + "_delta_log/00000000000000000007.json",
            "missing",
            "group log get",
        ),
        (
            "create",
            group_folder("g") + "_delta_log/00000000000000000007.json",
            "ok",
            "group log create",
        ),
        (
            "create",
            group_folder("g") + "_delta_log/00000000000000000007.json",
            "exists",
            "group log create refused",
        ),
        ("get", topic_log("t") + "00000000000000000007.json", "ok", "topic log get"),
        ("get", topic_folder("t") + "x.parquet", "range", "data get"),
        ("delete", member_key("g", "m"), "ok", "other"),
        ("list", topic_log("t"), "ok", "other"),
        ("get", "_deltaq/clock", "ok", "other"),
    ],
)
def test_each_request_is_counted_for_the_object_that_it_is_for(operation, key, outcome, label):
    assert label_of(operation, key, outcome) == label


def test_a_store_counts_by_label_and_by_price(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    store = GroupStore(MemoryStore("test"), S3_STANDARD, 1)
    before, entry = store.counted(), group_folder("g") + "_delta_log/00000000000000000000.json"
    store.put(member_key("g", "m"), b"1")
    store.create(entry, b"{}")
    with pytest.raises(ObjectExists):
        store.create(entry, b"{}")
    store.get(entry)
    counted = by_label(before, store.counted())
    assert {label: number for label, number in counted.items() if number} == {
        "heartbeat put": 1,
        "group log create": 1,
        "group log create refused": 1,
        "group log get": 1,
    }
    assert store.requests() == {"PUT": 3, "GET": 1}


def test_requests_are_those_of_one_member_in_a_minute():
    of_five = cost(5, heartbeat_put=50, group_log_get=100, group_log_create=10, topic_log_get=1000)
    assert (of_five.per_minute("heartbeat put"), of_five.group_per_minute) == (20.0, 64.0)
    assert of_five.commits_per_s == pytest.approx(10 / 30 / 5)
    # A PUT a second costs 0.432 $ a day, a GET 0.03456 $.
    assert of_five.dollars(S3_STANDARD) == pytest.approx((0.432 + 2 * 0.03456) / 5)


def test_growth_is_relative_to_the_smallest_group_of_several():
    idle = [cost(1, heartbeat_put=1), cost(3, heartbeat_put=30), cost(10, heartbeat_put=200)]
    busy = [cost(3, busy=True, group_log_get=30), cost(10, busy=True, group_log_get=300)]
    outcome = found(costs=(*idle, *busy))
    assert [outcome.growth(one) for one in (*idle, *busy)] == [None, None, 2.0, None, 3.0]
    assert [(target.found, target.met) for target in outcome.targets()] == [
        ("2.00 times", False),
        ("3.00 times", False),
    ]


# --- changes ---


def test_the_first_event_of_a_change_is_found_by_time_and_partition():
    events = [
        Happened("assigned", 1, (0, 1)),
        Happened("record", 2, (0,)),
        Happened("assigned", 5, ()),
        Happened("assigned", 6, (1,)),
        Happened("record", 7, (1,)),
    ]
    assert first_after(events, "assigned", 2) == 5
    assert first_after(events, "assigned", 2, frozenset({1})) == 6
    assert first_after(events, "record", 2, frozenset({1})) == 7
    with pytest.raises(LookupError):
        first_after(events, "assigned", 7)


class PromptMember(Member):
    """Has done what it is told before `tell` returns."""

    def __init__(self) -> None:
        self.events = []

    def tell(self, command: object) -> None:
        assert command == "close"
        self.events.append(Happened("closing", monotonic_ns()))

    def await_event(
        self, kind: str, after_ns: int, partitions: frozenset[int] = frozenset()
    ) -> int:
        return first_after(self.events, kind, after_ns, partitions)


def test_a_member_that_closes_before_the_benchmark_waits_for_it_is_noticed():
    member = PromptMember()
    close(member)  # LookupError: a real member would be waited for until the timeout


def test_changes_are_compared_with_those_of_kafka_and_judged_on_local_disk():
    slow = changes("deltaq", 400.0), changes("Kafka", 800.0), changes("deltaq", 900.0, CHANGES[1])
    outcome = found(changes=slow)
    assert [outcome.ratio(one) for one in slow] == [0.5, 1.0, None]
    assert [(target.found, target.met) for target in outcome.targets()] == [
        ("400.00 ms", False),
        ("900.00 ms", True),
    ]
    assert list(replace(outcome, judged=False).targets()) == []


@pytest.mark.parametrize(
    ("owned", "even"),
    [([4, 3, 3], True), ([5, 3, 2], False), ([4, 3], False), ([10, 0], False), ([10], True)],
)
def test_a_group_has_started_once_its_partitions_are_shared_evenly(owned, even):
    assert is_even(owned, 10) is even


def test_a_wait_ends_with_an_error():
    with pytest.raises(TimeoutError, match="nothing came"):
        wait_until(lambda: False, "nothing came", timeout_s=0.0)


# --- commits and the log ---


def test_the_slowest_member_is_compared_with_the_median_one():
    took = distribution([10**6])
    outcome = Commits("local disk", 2.0, (1, 10, 20), took)
    assert (outcome.members, outcome.per_member, outcome.fairness) == (3, 5.0, 0.1)
    (target,) = found(commits=(outcome, Commits("local disk", 2.0, (7,), took))).targets()
    assert (target.found, target.met) == ("0.10", False)


def test_a_log_keeps_a_day_and_no_more_than_its_limit():
    assert (kept_entries(17_280), kept_entries(10**7)) == (17_280, 100_000)
    entries, mb = LogSize(3600, 1_000, 1_010, 2.0).after_a_day(1)
    assert (entries, round(mb, 2)) == (17_280, 34.56)
    entries, mb = LogSize(3600, 1_000, 1_010, 2.0).after_a_day(50)
    assert (entries, round(mb)) == (100_000, 200)


def test_the_entries_of_a_short_time_are_all_kept():
    log = measure_log(600)
    assert log.entries == 120
    assert log.objects > log.entries, "there are checkpoints"


# --- all of it ---


@pytest.mark.long
def test_a_small_plan_measures_every_part(tmp_path):
    lines: list[str] = []
    (outcome,) = measure_groups(TINY, Place(str(tmp_path), "", lines.append))
    assert json.loads(json.dumps(asdict(outcome)))
    assert outcome.is_clean
    assert outcome.judged
    assert [one.name for one in outcome.changes] == list(CHANGES)
    assert all(0 < one.assigned.p50 <= one.record.p50 for one in outcome.changes)
    assert [(one.members, one.busy) for one in outcome.costs] == [
        (1, False),
        (1, True),
        (2, False),
        (2, True),
    ]
    assert all(
        one.requests["heartbeat put"] >= 0 and one.requests["group log get"] > 0
        for one in outcome.costs
    )
    assert [one.members for one in outcome.commits] == [2, 2]
    assert all(one.counts[0] > 0 for one in outcome.commits)
    assert [(one.place, one.topics) for one in outcome.patterns] == [
        ("memory", 5),
        ("local disk", 5),
    ]
    assert [one.seconds > one.session_s / 2 for one in outcome.takeovers] == [True]
    assert all(len(row) == len(table.head) for table in outcome.tables() for row in table.rows)
    assert [len(table.rows) for table in outcome.tables()] == [3, 1, 4, 2, 3, 2]
    assert [series.name for chart in outcome.charts() for series in chart.series] == [
        "idle",
        "busy",
    ]


def test_a_pattern_has_three_seconds():
    (slow,) = found(patterns=(Pattern("memory", "range", 1_000, 3.5),)).targets()
    assert not slow.met
