"""The order in which the calls of one admin client take effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deltaq import KafkaError, KafkaException, Producer, TopicPartition
from deltaq.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupTopicPartitions,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicCollection,
)
from deltaq.admin.call_order import (
    ALL_TOPICS,
    CallOrder,
    changes,
    changes_topic,
    group,
    reads,
    reads_topic,
    topic,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.reading import eventually

FIRST = TopicPartition("t", 0)


def made(admin: AdminClient) -> None:
    admin.create_topics([NewTopic("t", 2)])["t"].result(30)


def deleting(admin: AdminClient) -> Any:
    return admin.delete_records([TopicPartition("t", 0, 3)])[FIRST]


def earliest(admin: AdminClient) -> int:
    return admin.list_offsets({FIRST: OffsetSpec.earliest()})[FIRST].result(30).offset


def retention(admin: AdminClient) -> str | None:
    resource = ConfigResource("topic", "t")
    return admin.describe_configs([resource])[resource].result(30)["retention.ms"].value


def setting(admin: AdminClient) -> Any:
    change = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", "t", incremental_configs=[change])
    return admin.incremental_alter_configs([resource])[resource]


def committing(admin: AdminClient) -> Any:
    return admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0, 2)])]
    )["g"]


def committed(admin: AdminClient) -> list[int]:
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"].result(30)
    return [tp.offset for tp in found.topic_partitions or []]


def partitions(admin: AdminClient) -> int:
    return len(admin.describe_topics(TopicCollection(["t"]))["t"].result(30).partitions)


@pytest.mark.parametrize(
    ("change", "look", "seen"),
    [
        pytest.param(deleting, earliest, 3, id="offsets after a deletion"),
        pytest.param(setting, retention, "5000", id="settings after a change"),
        pytest.param(
            lambda admin: admin.create_partitions([NewPartitions("t", 5)])["t"],
            partitions,
            5,
            id="a grown topic",
        ),
        pytest.param(
            lambda admin: admin.delete_topics(["t"])["t"],
            lambda admin: list(admin.list_topics(timeout=30).topics),
            [],
            id="topics after a deletion",
        ),
        pytest.param(committing, committed, [2], id="committed offsets after a change"),
        pytest.param(
            committing,
            lambda admin: [
                found.group_id for found in admin.list_consumer_groups().result(30).valid
            ],
            ["g"],
            id="groups after a commit",
        ),
        pytest.param(
            committing,
            lambda admin: [found.id for found in admin.list_groups(timeout=30)],
            ["g"],
            id="the older list",
        ),
        pytest.param(
            committing,
            lambda admin: admin.consumer_group_lag(["g"])["g"].result(30).partitions[0].committed,
            2,
            id="lag after a commit",
        ),
    ],
)
def test_a_call_sees_what_the_calls_before_it_changed(
    change: Callable[[AdminClient], Any], look: Callable[[AdminClient], Any], seen: Any
):
    """The change hangs in the store while the next call looks."""
    store = FaultyStore(MemoryStore("ordered"))
    with AdminClient({"bootstrap.servers": "memory://unused"}, store=store) as admin:
        made(admin)
        with Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer:
            for _ in range(5):
                producer.produce("t", b"x", partition=0)
        store.add(Rule("create", "*", Fault.slow()))
        future = change(admin)
        eventually(lambda: store.blocked)
        results: list[Any] = []
        looking = SYSTEM_CLOCK.start_thread(lambda: results.append(look(admin)), "looking")
        looking.join(0.2)
        store.release()
        looking.join(30)
        assert future.exception(30) is None
        assert results == [seen]


def test_only_calls_about_the_same_wait_for_each_other():
    order = CallOrder(SYSTEM_CLOCK)
    (change, other), (read,) = (
        order.begin([changes_topic("t"), changes_topic("u")], 0),
        order.begin([reads_topic("t")], 0),
    )
    assert change.after == other.after == frozenset()
    assert read.after == {change}
    (again,) = order.begin([reads_topic("t")], 0)
    assert again.after == {change}, "two calls that only read run beside each other"
    (later,) = order.begin([changes_topic("t")], 0)
    assert later.after == {change, read, again}
    (whole,) = order.begin([reads(ALL_TOPICS)], 0)
    assert whole.after == {change, other, later}
    (one,) = order.begin([changes(topic("v"))], 0)
    assert one.after == {whole}
    (of_group,) = order.begin([changes(group("t"), reads=[topic("u")])], 0)
    assert of_group.after == {other}
    for turn in (change, other, read, again, later, whole, one, of_group):
        turn.end()
        turn.end()
    of_group.wait()
    (last,) = order.begin([changes(ALL_TOPICS)], 0)
    assert last.after == frozenset()


def test_a_call_does_not_wait_longer_than_it_may():
    order = CallOrder(SYSTEM_CLOCK)
    order.begin([changes_topic("t")], 0)
    (late,) = order.begin([reads_topic("t")], SYSTEM_CLOCK.monotonic())
    with pytest.raises(KafkaException, match="has not ended") as caught:
        late.wait()
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT


CALLS: dict[str, Callable[[AdminClient], object]] = {
    "create_topics": lambda admin: admin.create_topics([NewTopic("t")]),
    "delete_topics": lambda admin: admin.delete_topics(["t"]),
    "describe_topics": lambda admin: admin.describe_topics(TopicCollection(["t"])),
    "describe_configs": lambda admin: admin.describe_configs([ConfigResource("topic", "t")]),
    "list_offsets": lambda admin: admin.list_offsets({FIRST: OffsetSpec.latest()}),
    "delete_records": deleting,
    "list_consumer_groups": lambda admin: admin.list_consumer_groups(),
    "list_groups": lambda admin: admin.list_groups(),
    "describe_consumer_groups": lambda admin: admin.describe_consumer_groups(["g"]),
    "list_topics": lambda admin: admin.list_topics(),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "cluster_id": lambda admin: admin.cluster_id(),
    "poll": lambda admin: admin.poll(0),
    "set_sasl_credentials": lambda admin: admin.set_sasl_credentials("user", "word"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_closed_client_refuses_its_calls(memory_root, call):
    with AdminClient({"bootstrap.servers": memory_root}) as admin:
        pass
    with pytest.raises(RuntimeError, match="AdminClient has been closed"):
        call(admin)
    with admin:  # as Kafka's client, which refuses only calls
        pass
