"""The calls of the admin client about share groups."""

from __future__ import annotations

from typing import Any

import pytest

from deltaq import (
    Consumer,
    GroupInUse,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from deltaq.admin import (
    ConsumerGroupState,
    ShareGroupDescription,
    ShareGroupListing,
    SharePartitionDescription,
)
from deltaq.admin.share_groups import unfinished
from deltaq.names import group_folder, log_entry
from deltaq.topics.log import TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.rewrites import Trimmed
from tests.doubles.sharing import LOCK_S, ShareWorld, places

EMPTY, STABLE, DEAD = (
    ConsumerGroupState.EMPTY,
    ConsumerGroupState.STABLE,
    ConsumerGroupState.DEAD,
)


@pytest.fixture
def shared() -> ShareWorld:
    return ShareWorld()


def test_only_share_groups_are_listed(shared: ShareWorld) -> None:
    shared.fill(1)
    conf = {"bootstrap.servers": "memory://shared", "group.id": "c"}
    with Consumer(conf, store=shared.store) as other:
        other.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    with shared.admin() as admin, shared.consumer() as consumer:
        assert admin.list_share_groups().result(20).valid == []
        consumer.poll(0)
        assert admin.list_share_groups().result(20).valid == [ShareGroupListing("g", STABLE)]
        consumer.poll(0)
        assert admin.list_share_groups().result(20).valid == [ShareGroupListing("g", EMPTY)]
        described = admin.describe_share_groups(["c", "none"])
        assert {name: of.result(20).state for name, of in described.items()} == {
            "c": DEAD,
            "none": DEAD,
        }


def test_a_group_that_cannot_be_read_is_named(shared: ShareWorld) -> None:
    shared.store.put(log_entry(group_folder("broken") + "_delta_log/", 0), b"x")
    with shared.admin() as admin:
        (error,) = admin.list_share_groups().result(20).errors
    assert "broken" in error.error.str()


def test_a_description_counts_what_is_left(shared: ShareWorld) -> None:
    shared.fill(10)
    with shared.admin() as admin, shared.consumer(explicit=True, max_poll_records=6) as consumer:
        messages = consumer.poll(0)
        consumer.release(messages[0])
        consumer.release(messages[1], delay=60)
        for message in messages[2:5]:
            consumer.acknowledge(message)
        consumer.commit_sync()
        about = admin.describe_share_groups(["g"])["g"].result(20)
        (part,) = about.partitions
        assert (part.start_offset, part.next_offset, part.end_offset) == (0, 6, 10)
        assert (part.acquired, part.available, part.delayed, part.lag) == (1, 2, 1, 7)
        assert (part.acknowledged, part.archived) == (3, 0)
        assert [member.records for member in about.members] == [1]
        assert about.lag == 7


def fill_at(shared: ShareWorld, *times_ms: int) -> None:
    """Write a message at each of these times."""
    producer = Producer(bootstrap_servers="memory://shared", store=shared.store, linger_ms=60_000)
    with producer:
        for time_ms in times_ms:
            producer.produce("t", b"x", partition=0, timestamp=time_ms)


def oldest_ms(shared: ShareWorld) -> int | None:
    with shared.admin() as admin:
        about = admin.describe_share_groups(["g"])["g"].result(20)
    (part,) = about.partitions
    assert part.oldest_ms == about.oldest_ms
    return part.oldest_ms


def test_the_oldest_is_the_first_record_that_is_not_finished(shared: ShareWorld) -> None:
    fill_at(shared, 5_000, 3_000, 9_000)
    found = []
    with shared.consumer(max_poll_records=1) as consumer:
        for _ in range(4):
            consumer.poll(0)
            found.append(oldest_ms(shared))
    assert found == [5_000, 3_000, 9_000, None]


def test_only_partitions_with_records_that_are_not_finished_are_looked_at(
    shared: ShareWorld,
) -> None:
    fill_at(shared, 5_000, 3_000)
    log = TopicLog(shared.store, "t")
    log.load()
    assert log.head is not None
    with shared.consumer(max_poll_records=1) as consumer:
        for expected in ({"t": [(0, 0)]}, {"t": [(0, 1)]}, {}):
            consumer.poll(0)
            assert unfinished(shared.log().read(), {"t": log.head}) == expected


def test_the_oldest_is_not_one_that_the_topic_has_removed(shared: ShareWorld) -> None:
    fill_at(shared, 5_000, 3_000, 9_000)
    with shared.consumer(max_poll_records=1) as consumer:
        consumer.poll(0)
    log = MaintenanceLog(shared.store, "t", shared.clock)
    log.load()
    # The file stays, as its last record does.
    assert log.retain(lambda head: Trimmed((2,), ()), shared.clock.monotonic() + 20) is None
    assert oldest_ms(shared) == 9_000


def test_a_damaged_file_hides_the_age_and_nothing_else(shared: ShareWorld) -> None:
    fill_at(shared, 5_000)
    with shared.consumer(explicit=True) as consumer:
        consumer.release(consumer.poll(0)[0])
    (path,) = [
        entry.key for entry in shared.store.list("topics/t/") if entry.key.endswith(".parquet")
    ]
    shared.store.delete(path)
    shared.store.put(path, b"PAR1")
    with shared.admin() as admin:
        (part,) = admin.describe_share_groups(["g"])["g"].result(20).partitions
    assert (part.available, part.lag, part.oldest_ms) == (1, 1, None)


def test_the_oldest_of_a_group_is_that_of_its_partitions() -> None:
    def part(number: int, oldest: int | None) -> SharePartitionDescription:
        return SharePartitionDescription("t", number, 0, 0, 1, 0, 0, 0, 0, 0, 1, oldest)

    group = ShareGroupDescription("g", EMPTY, [], [part(0, 7), part(1, None), part(2, 4)])
    assert group.oldest_ms == 4


def test_a_deleted_topic_is_not_described(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.admin() as admin, shared.consumer() as consumer:
        consumer.poll(0)
        admin.delete_topics(["t"])["t"].result(20)
        assert admin.describe_share_groups(["g"])["g"].result(20).partitions == []


def test_a_group_whose_records_are_held_is_not_deleted(shared: ShareWorld) -> None:
    shared.fill(1)
    with shared.admin() as admin, shared.consumer() as consumer:
        consumer.poll(0)
        refused = admin.delete_share_groups(["g"], request_timeout=1)["g"].exception(20)
        assert isinstance(refused, GroupInUse)
        assert "hold records: 'deltaq-" in refused.error.str()
        # It waits until the lock is over: no other member watches it.
        assert admin.delete_share_groups(["g"], request_timeout=60)["g"].result(20) is None
        assert shared.clock.monotonic() >= LOCK_S
        assert admin.describe_share_groups(["g"])["g"].result(20).state is DEAD


def test_a_call_knows_which_locks_an_earlier_one_of_the_client_has_seen(
    shared: ShareWorld,
) -> None:
    shared.fill(1)
    with shared.admin() as admin, shared.consumer() as consumer:
        consumer.poll(0)
        refused = admin.delete_share_groups(["g"], request_timeout=0)["g"].exception(20)
        assert "of more than 30 seconds" in str(refused)
        shared.clock.advance(LOCK_S)
        with shared.admin() as other:
            assert other.delete_share_groups(["g"], request_timeout=0)["g"].exception(20)
        assert admin.delete_share_groups(["g"], request_timeout=0)["g"].result(20) is None


def test_a_deleted_group_leaves_its_name_and_its_settings(shared: ShareWorld) -> None:
    shared.fill(2)
    with shared.consumer() as consumer:
        consumer.poll(0)
        consumer.poll(0)
    with shared.admin() as admin:
        admin.delete_share_groups(["g"])["g"].result(20)
        with pytest.raises(KafkaException) as refused:
            admin.delete_share_groups(["g"])["g"].result(20)
        assert refused.value.error == KafkaError.GROUP_ID_NOT_FOUND
    conf: dict[str, Any] = {"bootstrap.servers": "memory://shared", "group.id": "g"}
    with Consumer(conf, store=shared.store) as other:
        other.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    assert shared.log().settings() == {"share.auto.offset.reset": "earliest"}


def test_a_group_begins_anew_at_the_given_offsets(shared: ShareWorld) -> None:
    shared.fill(6)
    with shared.consumer() as consumer, shared.admin() as admin:
        consumer.poll(0)
        consumer.poll(0)
        wanted = [TopicPartition("t", 0, 4), TopicPartition("t", 1, 0), TopicPartition("u", 0, 0)]
        altered = admin.alter_share_group_offsets("g", wanted).result(20)
        assert [tp.error and tp.error.code() for tp in altered] == [
            None,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        ]
        assert places(consumer.poll(0)) == [(4, 1), (5, 1)]
        refused = admin.alter_share_group_offsets("g", wanted, request_timeout=1).exception(20)
        assert isinstance(refused, GroupInUse)


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ([], ValueError),
        ([TopicPartition("t", 0, -1)], ValueError),
        ([TopicPartition("t", -1, 0)], ValueError),
        (["t"], TypeError),
    ],
)
def test_bad_offsets_are_refused(shared: ShareWorld, offsets: Any, error: type[Exception]) -> None:
    with shared.admin() as admin, pytest.raises(error):
        admin.alter_share_group_offsets("g", offsets)
