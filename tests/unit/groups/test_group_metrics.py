"""What the members of groups count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from deltaq import Consumer, Fenced, KafkaException, metrics
from deltaq.groups.log import GroupLog
from deltaq.groups.rebalance import joined, strategies
from deltaq.groups.state import Member, MemberIdentity
from deltaq.metrics import Event
from deltaq.store import Store, open_store
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.consuming import fill, topic, tp
from tests.doubles.groups import partition_counts
from tests.doubles.reading import drain, eventually


class Counted:
    """The amounts of all events, by the counter's name without its affixes, and by its labels."""

    def __init__(self) -> None:
        self.amounts: Counter[tuple[str, ...]] = Counter()

    def __call__(self, event: Event) -> None:
        if event.metric.name.startswith("deltaq_group_"):
            name = event.metric.name.removeprefix("deltaq_group_").removesuffix("_total")
            self.amounts[name, *event.labels.values()] += int(event.amount)


@pytest.fixture
def counted() -> Iterator[Counted]:
    found = Counted()
    with metrics.listening(found):
        yield found


# Session time-outs that end in a test are short, but longer than a busy machine keeps a thread
# waiting: the test may need its member until then.
SHORT_MS = 2000


def quick(
    root: str, store: Store | None = None, session_timeout_ms: int = 6000, **conf: Any
) -> Consumer:
    base = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
    times = {"heartbeat.interval.ms": 20, "session.timeout.ms": session_timeout_ms}
    return Consumer(base | times | {"enable.auto.commit": False}, store=store, **conf)


def join_dead(root: str, *names: str) -> GroupLog:
    """Let members join that send no heartbeats."""
    log = GroupLog(open_store(root), "g")
    dead = Member(("t",), "dead", "host", 50, protocols=(("range", ""),))
    for name in names:
        plan = partial(
            joined,
            member_id=name,
            member=dead,
            partition_counts=partition_counts(t=1),
            gone=(),
            strategies=strategies(["range"]),
        )
        log.change("JOIN", MemberIdentity(name, -1), plan, 1e9)
    return log


def test_joins_and_the_generations_that_each_member_sees_are_counted(memory_root, counted):
    topic(memory_root, partitions=2)
    fill(memory_root, 1)
    with quick(memory_root) as first:
        first.subscribe(["t"])
        drain(first, 1)
        assert counted.amounts == {("joins", "g"): 1, ("rebalances", "g"): 1}
        with quick(memory_root) as second:
            second.subscribe(["t"])
            # The first one may get its message once more, as nothing is committed.
            eventually(
                lambda: (first.poll(0), second.poll(0), len(second.assignment()))[2] == 1,
                "the hand-over",
            )
            assert counted.amounts == {("joins", "g"): 2, ("rebalances", "g"): 3}
        eventually(lambda: (first.poll(0), len(first.assignment()))[1] == 2, "the return")
        assert counted.amounts == {("joins", "g"): 2, ("rebalances", "g"): 4}
    assert counted.amounts == {("joins", "g"): 2, ("rebalances", "g"): 4}


def test_members_removed_as_dead_are_counted(memory_root, counted):
    topic(memory_root)
    fill(memory_root, 1)
    join_dead(memory_root, "a", "b")
    with quick(memory_root) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        assert counted.amounts["members_removed", "g"] == 2


def test_members_that_an_outsiders_commit_removes_are_counted(memory_root, counted):
    topic(memory_root)
    join_dead(memory_root, "a")
    with quick(memory_root) as outsider:
        outsider.assign([tp()])

        def is_committed() -> bool:
            try:
                outsider.commit(offsets=[tp(0, 0)], asynchronous=False)
            except Fenced:
                return False
            return True

        eventually(is_committed, "the commit")
    assert counted.amounts["members_removed", "g"] == 1


def test_refused_commits_are_counted_with_the_reason(memory_root, counted):
    topic(memory_root)
    fill(memory_root, 1)
    with quick(memory_root) as member, quick(memory_root) as outsider:
        member.subscribe(["t"])
        drain(member, 1)
        outsider.assign([tp()])
        for _ in range(2):
            with pytest.raises(KafkaException):
                outsider.commit(offsets=[tp(0, 1)], asynchronous=False)
        assert counted.amounts["commits_refused", "g", "UNKNOWN_MEMBER_ID"] == 2


@pytest.mark.parametrize(("times", "is_lost"), [(1, False), (None, True)])
def test_failed_heartbeats_and_the_sessions_that_they_end_are_counted(
    memory_root, counted, times, is_lost
):
    topic(memory_root)
    fill(memory_root, 1)
    store = FaultyStore(open_store(memory_root))
    with quick(
        memory_root, store=store, session_timeout_ms=SHORT_MS if is_lost else 6000
    ) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        store.add(Rule("put", "groups/g/_members/*", Fault.error_before(), times=times))
        eventually(lambda: counted.amounts["heartbeats_failed", "g"], "a failed heartbeat")
        if is_lost:
            eventually(
                lambda: counted.amounts["sessions_lost", "g", "_TIMED_OUT"] == 1,
                "the end of the session",
            )
        store.clear()
    assert [name for name in counted.amounts if name[0] == "sessions_lost"] == [
        ("sessions_lost", "g", "_TIMED_OUT")
    ] * is_lost


def test_a_member_that_did_not_poll_in_time_has_lost_its_session(memory_root, counted):
    topic(memory_root)
    fill(memory_root, 1)
    with quick(memory_root, session_timeout_ms=SHORT_MS, max_poll_interval_ms=SHORT_MS) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        eventually(
            lambda: counted.amounts["sessions_lost", "g", "_MAX_POLL_EXCEEDED"],
            "the end of the session",
        )


def test_a_member_that_others_have_removed_has_lost_its_session(memory_root, counted):
    topic(memory_root)
    fill(memory_root, 1)
    with quick(memory_root) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        log = GroupLog(open_store(memory_root), "g")
        log.forget_offsets([], 1e9, sorted(log.head().members))
        eventually(
            lambda: counted.amounts["sessions_lost", "g", "UNKNOWN_MEMBER_ID"],
            "the end of the session",
        )


def test_a_static_member_that_was_replaced_has_lost_its_session(memory_root, counted):
    topic(memory_root)
    fill(memory_root, 1)
    with (
        quick(memory_root, group_instance_id="i") as first,
        quick(memory_root, group_instance_id="i") as second,
    ):
        first.subscribe(["t"])
        drain(first, 1)
        second.subscribe(["t"])

        def is_replaced() -> object:
            second.poll(0)
            return counted.amounts["sessions_lost", "g", "FENCED_INSTANCE_ID"] == 1

        eventually(is_replaced, "the end of the session")
