"""What a consumer says of its own health: correct at each point of its life, without I/O, from any
thread.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from deltaq import OFFSET_END, Consumer, ConsumerHealth, KafkaError, Producer
from deltaq.consumer import MembershipState, Ownership, PartitionHealth, ReadState
from deltaq.groups.log import GroupLog
from deltaq.groups.rebalance import joined, strategies
from deltaq.groups.state import Member, MemberIdentity
from deltaq.store import MemoryStore, Store, open_store
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.consuming import fill, topic, tp
from tests.doubles.groups import partition_counts
from tests.doubles.reading import drain, eventually, next_message


def consumer(root: str, store: Store | None = None, group: str = "g", **conf: Any) -> Consumer:
    base = {
        "bootstrap.servers": root,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    times = {"heartbeat.interval.ms": 20, "session.timeout.ms": 6000}
    return Consumer(base | times, store=store, **conf)


def partitions(reader: Consumer) -> list[tuple[Any, ...]]:
    """(partition, ownership, state, position, committed, end, lag) of each partition."""
    return [
        (
            one.partition,
            one.ownership,
            one.state,
            one.position,
            one.committed,
            one.end_offset,
            one.lag,
        )
        for one in reader.health().partitions
    ]


def states(reader: Consumer) -> list[ReadState]:
    return [one.state for one in reader.health().partitions]


def is_stable(*readers: Consumer) -> bool:
    """Poll, and return whether all are members of one generation and have their partitions."""
    for reader in readers:
        reader.poll(0)
    found = [reader.health() for reader in readers]
    same = len({health.generation for health in found}) == 1
    return same and all(health.membership is MembershipState.STABLE for health in found)


def until(reader: Consumer, *wanted: ReadState) -> None:
    eventually(lambda: states(reader) == list(wanted), f"{wanted}")


# --- without a group ---


def test_a_consumer_that_does_nothing_says_so(memory_root):
    with consumer(memory_root) as reader:
        assert reader.health() == ConsumerHealth(
            "g",
            MembershipState.NONE,
            None,
            None,
            "",
            "nothing is subscribed or assigned",
            (),
            None,
            None,
            None,
            None,
            None,
        )


def test_a_closed_consumer_still_answers(memory_root):
    reader = consumer(memory_root)
    reader.close()
    health = reader.health()
    assert health.membership is MembershipState.CLOSED
    assert health.why_idle == "the consumer is closed"


def test_positions_and_lag_follow_what_calls_return(memory_root):
    topic(memory_root, partitions=2)
    fill(memory_root, 5)
    with consumer(memory_root) as reader:
        reader.assign([tp(0), tp(1)])
        until(reader, ReadState.READY, ReadState.END_REACHED)
        manual = Ownership.MANUAL
        assert partitions(reader) == [
            (0, manual, ReadState.READY, 0, None, 5, 5),
            (1, manual, ReadState.END_REACHED, 0, None, 0, 0),
        ]
        assert reader.health().lag == 5
        assert reader.health().why_idle == ""
        drain(reader, 3)
        assert partitions(reader)[0] == (0, manual, ReadState.READY, 3, None, 5, 2)
        reader.commit(asynchronous=False)
        assert partitions(reader)[0] == (0, manual, ReadState.READY, 3, 3, 5, 2)
        drain(reader, 2)
        assert partitions(reader)[0] == (0, manual, ReadState.END_REACHED, 5, 3, 5, 0)
        assert reader.health().why_idle == "end reached: 2 of 2 partitions"
        fill(memory_root, 1, start=5)
        until(reader, ReadState.READY, ReadState.END_REACHED)
        assert partitions(reader)[0] == (0, manual, ReadState.READY, 5, 3, 6, 1)


def test_a_position_is_known_before_the_first_record_is_returned(memory_root):
    topic(memory_root)
    fill(memory_root, 5)
    with consumer(memory_root) as reader:
        reader.assign([tp(0, 3)])
        until(reader, ReadState.READY)
        assert partitions(reader) == [(0, Ownership.MANUAL, ReadState.READY, 3, None, 5, 2)]
        reader.seek(tp(0, OFFSET_END))
        until(reader, ReadState.END_REACHED)
        assert partitions(reader) == [(0, Ownership.MANUAL, ReadState.END_REACHED, 5, None, 5, 0)]
        reader.seek(tp(0, 1))
        until(reader, ReadState.READY)
        assert next_message(reader).offset() == 1
        reader.seek(tp(0, 4))
        until(reader, ReadState.READY)
        assert partitions(reader) == [(0, Ownership.MANUAL, ReadState.READY, 4, None, 5, 1)]


def test_the_position_in_accepted_records_is_that_of_the_next_message(memory_root):
    topic(memory_root)
    fill(memory_root, 5)
    with consumer(memory_root) as reader:
        reader.assign([tp()])
        assert [message.offset() for message in reader.consume(2, 10)] == [0, 1]
        assert partitions(reader) == [(0, Ownership.MANUAL, ReadState.READY, 2, None, 5, 3)]


def test_a_committed_offset_is_known_to_the_consumer_that_resumes_there(memory_root):
    topic(memory_root)
    fill(memory_root, 5)
    with consumer(memory_root) as reader:
        reader.assign([tp()])
        reader.commit(offsets=[tp(0, 4)], asynchronous=False)
    with consumer(memory_root) as reader:
        reader.assign([tp()])
        until(reader, ReadState.READY)
        assert partitions(reader) == [(0, Ownership.MANUAL, ReadState.READY, 4, 4, 5, 1)]


def test_a_paused_partition_is_paused_until_it_is_resumed(memory_root):
    topic(memory_root)
    fill(memory_root, 5)
    with consumer(memory_root) as reader:
        reader.assign([tp()])
        drain(reader, 1)
        reader.pause([tp()])
        assert partitions(reader) == [(0, Ownership.MANUAL, ReadState.PAUSED, 1, None, 5, 4)]
        assert reader.health().why_idle == "paused: 1 of 1 partitions"
        reader.resume([tp()])
        until(reader, ReadState.READY)


def test_topics_and_partitions_that_do_not_exist_are_missing(memory_root):
    topic(memory_root)
    with consumer(memory_root) as reader:
        reader.assign([tp(0), tp(7), tp(0, name="nope")])
        until(reader, ReadState.MISSING, ReadState.END_REACHED, ReadState.MISSING)
        why = (
            "topic 'nope': does not exist; end reached: 1 of 3 partitions; missing: 2 of 3 "
            "partitions"
        )
        assert reader.health().why_idle == why


def test_a_partition_that_stopped_at_an_error_says_so(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    with consumer(memory_root, auto_offset_reset="error") as reader:
        reader.assign([tp()])
        assert next_message(reader).error().code() == KafkaError._AUTO_OFFSET_RESET
        assert states(reader) == [ReadState.STOPPED]
        reader.seek(tp(0, 0))
        until(reader, ReadState.READY)


def test_an_outage_is_seen_and_its_end_too(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    store = FaultyStore(open_store(memory_root))
    with consumer(memory_root, store) as reader:
        reader.assign([tp()])
        drain(reader, 1)
        store.add(Rule("*", "topics/*", Fault.error_before("no route to host"), times=None))
        until(reader, ReadState.UNAVAILABLE)
        assert "no route to host" in reader.health().why_idle
        store.clear()
        until(reader, ReadState.END_REACHED)
        assert reader.health().why_idle == "end reached: 1 of 1 partitions"


# --- in a group ---


def test_a_member_knows_its_group(memory_root):
    topic(memory_root, partitions=2)
    fill(memory_root, 2)
    with consumer(memory_root) as reader:
        reader.subscribe(["t"])
        eventually(lambda: reader.health().partitions, "the join")
        before = reader.health()
        assert before.membership is MembershipState.REBALANCING
        assert before.why_idle == "waits for poll: 2 of 2 partitions"
        assert before.since_poll_s is None
        drain(reader, 2)
        health = reader.health()
        assert health.membership is MembershipState.STABLE
        assert (health.member_id, health.generation, health.problem) == (reader.memberid(), 1, "")
        assert [one.ownership for one in health.partitions] == [Ownership.OWNED, Ownership.OWNED]
        for field in fields(health):
            if field.name.startswith("since_"):
                assert 0 <= getattr(health, field.name) < 60


def test_a_consumer_that_waits_for_its_group_is_joining(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    store = FaultyStore(open_store(memory_root))
    with consumer(memory_root, store) as reader:
        store.add(Rule("*", "groups/*", Fault.slow()))
        reader.subscribe(["t"])
        eventually(lambda: store.blocked, "a request that hangs")
        health = reader.health()
        assert (health.membership, health.member_id) == (MembershipState.JOINING, None)
        assert health.why_idle == "the consumer is joining its group"
        store.clear()
        store.release()
        drain(reader, 1)


def test_partitions_between_two_members_are_awaited_and_released(memory_root):
    topic(memory_root, partitions=2)
    fill(memory_root, 1)
    with consumer(memory_root) as first, consumer(memory_root) as second:
        first.subscribe(["t"])
        drain(first, 1)
        second.subscribe(["t"])

        def has_joined() -> bool:
            second.poll(0)
            return second.health().membership is MembershipState.REBALANCING

        eventually(has_joined, "the second member")
        (awaited,) = second.health().partitions
        assert (awaited.ownership, awaited.state) == (Ownership.AWAITED, ReadState.AWAITED)
        assert second.health().why_idle == "waits for its owner: 1 of 1 partitions"
        eventually(
            lambda: first.health().membership is MembershipState.REBALANCING, "the new generation"
        )
        assert {one.ownership for one in first.health().partitions} == {
            Ownership.OWNED,
            Ownership.RELEASING,
        }
        eventually(lambda: is_stable(first, second), "the hand-over")
        assert [len(reader.health().partitions) for reader in (first, second)] == [1, 1]


def test_a_member_without_partitions_says_that_others_have_them(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    with consumer(memory_root) as first, consumer(memory_root) as second:
        first.subscribe(["t"])
        drain(first, 1)
        second.subscribe(["t"])
        eventually(lambda: is_stable(first, second), "the assignment")
        idle = next(reader for reader in (first, second) if not reader.health().partitions)
        assert (
            idle.health().why_idle
            == "no partition is assigned to this member: others have them all"
        )


def test_a_subscription_without_topics_says_what_is_missing(memory_root):
    topic(memory_root)
    with consumer(memory_root) as reader:
        reader.subscribe(["nope"])
        eventually(lambda: why_idle(reader) == "topic 'nope': does not exist", "the missing topic")
        reader.subscribe(["^nope"])
        eventually(lambda: why_idle(reader) == "no topic matches the subscription", "no match")


def why_idle(reader: Consumer) -> str:
    """Why a poll has returned no record."""
    reader.poll(0)
    return reader.health().why_idle


def test_a_member_that_is_refused_says_why(memory_root):
    topic(memory_root)
    log = GroupLog(open_store(memory_root), "g")
    other = Member(("t",), "other", "host", 45_000, protocols=(("mine", ""),))
    mine = strategies([named_mine])
    log.change(
        "JOIN",
        MemberIdentity("a", -1),
        lambda head: joined(head, "a", other, partition_counts(t=1), (), mine),
        1e9,
    )
    with consumer(memory_root) as reader:
        reader.subscribe(["t"])
        eventually(lambda: reader.poll(0) and reader.health().problem, "the refusal")
        health = reader.health()
        assert health.membership is MembershipState.NOT_A_MEMBER
        assert "INCONSISTENT_GROUP_PROTOCOL" in health.problem
        assert health.problem in health.why_idle


def named_mine(partitions: Any, members: Any) -> dict[str, list[tuple[str, int]]]:
    """An assignor that no other member has."""
    return {
        members[0].member_id: [
            (name, number) for name, count in partitions.items() for number in range(count)
        ]
    }


named_mine.__name__ = "mine"


def test_a_member_that_did_not_poll_in_time_says_so(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    with consumer(memory_root, session_timeout_ms=2000, max_poll_interval_ms=2000) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        eventually(
            lambda: reader.health().membership is MembershipState.NOT_A_MEMBER,
            "the end of the session",
        )
        health = reader.health()
        assert "max.poll.interval.ms" in health.problem
        assert [one.ownership for one in health.partitions] == [Ownership.LOST]
        assert health.since_poll_s is not None
        assert health.since_poll_s >= 1.9


def test_failing_heartbeats_are_a_problem_before_the_session_ends(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    store = FaultyStore(open_store(memory_root))
    with consumer(memory_root, store) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        store.add(
            Rule("put", "groups/g/_members/*", Fault.error_before("no route to host"), times=None)
        )
        eventually(lambda: "no route to host" in reader.health().problem, "the problem")
        assert reader.health().membership is MembershipState.STABLE
        store.clear()
        eventually(lambda: not reader.health().problem, "the end of the outage")


def test_the_next_poll_begins_to_read_what_was_assigned(memory_root):
    topic(memory_root, partitions=2)
    sticky = partial(consumer, memory_root, partition_assignment_strategy="cooperative-sticky")
    with sticky() as first, sticky() as second:
        first.subscribe(["t"])
        second.subscribe(["t"])
        eventually(lambda: is_stable(first, second), "the assignment")
        second.close()
        eventually(lambda: len(first.health().partitions) == 2, "the return of the partition")
        assert first.health().membership is MembershipState.REBALANCING
        found = {(one.ownership, one.state) for one in first.health().partitions}
        assert found == {
            (Ownership.OWNED, ReadState.END_REACHED),
            (Ownership.OWNED, ReadState.UNPOLLED),
        }
        eventually(lambda: is_stable(first), "the next poll")
        until(first, ReadState.END_REACHED, ReadState.END_REACHED)


def test_a_member_that_begins_elsewhere_knows_what_its_group_has_committed(memory_root):
    topic(memory_root)
    fill(memory_root, 5)
    with consumer(memory_root) as reader:
        reader.assign([tp()])
        reader.commit(offsets=[tp(0, 4)], asynchronous=False)
    with consumer(memory_root) as reader:
        reader.subscribe(["t"], on_assign=lambda consumer, _: consumer.assign([tp(0, 1)]))
        assert next_message(reader).offset() == 1
        assert partitions(reader) == [(0, Ownership.OWNED, ReadState.READY, 2, 4, 5, 3)]


# --- what it costs ---


class Refusing(MemoryStore):
    """Raises AssertionError for each operation of one thread."""

    thread: int | None = None

    def __getattribute__(self, name: str) -> Any:
        if name in (
            "get",
            "put",
            "create",
            "list",
            "list_folders",
            "get_range",
            "watch",
            "sync",
            "delete",
        ):
            assert threading.get_ident() != object.__getattribute__(self, "thread"), (
                f"health() calls {name}"
            )
        return super().__getattribute__(name)


def test_health_does_no_io(memory_root):
    store = Refusing("refusing")
    topic_conf = {"bootstrap.servers": store.url}
    with Producer(topic_conf, store=store) as producer:
        for number in range(20):
            producer.produce("t", b"%d" % number)
    with consumer(store.url, store) as reader:
        reader.subscribe(["t"])
        drain(reader, 5)
        store.thread = threading.get_ident()
        health = reader.health()
        store.thread = None
        assert health.lag == 15


def test_health_answers_while_the_store_hangs_and_another_thread_polls(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    store = FaultyStore(open_store(memory_root))
    with consumer(memory_root, store) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        poller = threading.Thread(target=partial(reader.poll, 20))
        store.add(Rule("*", "*", Fault.slow()))
        poller.start()
        eventually(lambda: store.blocked, "a request that hangs")
        assert reader.health().member_id is not None
        store.clear()
        store.release()
        fill(memory_root, 1, start=1)
        poller.join()


def test_health_is_consistent_while_records_pass(memory_root):
    topic(memory_root, partitions=2)
    fill(memory_root, 2000)
    with consumer(memory_root) as reader:
        reader.assign([tp(0), tp(1)])
        eventually(lambda: reader.health().lag == 2000, "the end of the log")
        seen: list[PartitionHealth] = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.append(reader.health().partitions[0])

        watcher = threading.Thread(target=watch)
        watcher.start()
        drain(reader, 2000)
        done.set()
        watcher.join()
        positions = [one.position for one in seen]
        assert None not in positions
        assert positions == sorted(positions, key=lambda position: position or 0)
        assert all(one.position + one.lag == 2000 for one in seen)  # type: ignore[operator]


def test_health_can_be_written_as_json(memory_root):
    topic(memory_root)
    fill(memory_root, 1)
    with consumer(memory_root) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        found = json.loads(json.dumps(asdict(reader.health())))
        assert found.keys() == {field.name for field in fields(ConsumerHealth)}
        assert found["membership"] == "stable"
        assert found["partitions"][0]["state"] == "end reached"
