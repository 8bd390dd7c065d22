"""The log of a share group: what an entry holds, who decides, what its maintenance leaves, and
which group a name is.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltaq import (
    Consumer,
    Fenced,
    Incompatible,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    TopicPartition,
)
from deltaq.admin import NewTopic
from deltaq.delta.actions import CommitInfo, DomainMetadata
from deltaq.delta.entries import LogEntries
from deltaq.delta.log import DeltaLog, Draft
from deltaq.errors import Corrupt
from deltaq.groups.log import GroupLog
from deltaq.maintenance.groups import GroupPass
from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.message import AcknowledgeType
from deltaq.names import group_folder
from deltaq.serde.json_text import strict_json
from deltaq.share_groups.exchange import Exchange, LogRange, PartitionId
from deltaq.share_groups.log import PARTITION_PREFIX, ShareLog
from deltaq.share_groups.state import Acknowledgement, RecordLock, SharePartition
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.groups import FOREVER, join
from tests.doubles.sharing import ShareWorld

KEY = PartitionId("t", "id", 0)
SMALL = MaintenanceSettings(
    checkpoint_interval=10, keep_entries_min=5, keep_entries_max=20, keep_checkpoint_interval=1_000
)


class Workers:
    """Clients of the log of group `g`, of other processes each: they share no store object."""

    def __init__(self) -> None:
        self.clock = ManualClock(auto_advance=True)
        self.store = MemoryStore("workers", self.clock)

    def log(self) -> ShareLog:
        return ShareLog(self.store, "g", self.clock)

    def take(self, log: ShareLog, owner: str, end: int, most: int = 100) -> Any:
        log_ranges = {KEY: LogRange(0, end, 0)}
        return log.exchange(Exchange(owner, {}, log_ranges, most), FOREVER).taken.get(KEY, [])

    def accept(self, log: ShareLog, owner: str, first: int, end: int, deliveries: int = 1) -> Any:
        accepted = Acknowledgement(first, end, deliveries, AcknowledgeType.ACCEPT)
        return log.exchange(Exchange(owner, {KEY: [accepted]}), FOREVER).applied.get(KEY)

    def state(self) -> SharePartition | None:
        return self.log().read().partition(KEY)


@pytest.fixture
def workers() -> Workers:
    return Workers()


def entry(store: MemoryStore, version: int) -> list[Any]:
    lines = store.get(f"{group_folder('g')}_delta_log/{version:020}.json").splitlines()
    return [strict_json(line.decode()) for line in lines]


def test_one_entry_makes_the_group_and_takes_the_first_records(workers: Workers) -> None:
    workers.take(workers.log(), "one", 3)
    info, *actions = entry(workers.store, 0)
    assert info["commitInfo"]["operation"] == "TAKE RECORDS"
    assert info["commitInfo"]["operationParameters"] == {"member": "one"}
    domains = {
        action["domainMetadata"]["domain"]: json.loads(action["domainMetadata"]["configuration"])
        for action in actions
        if "domainMetadata" in action
    }
    assert domains == {
        "deltaq": {"format": 3, "type": "share"},
        "deltaq.share.t/id/0": {"start": 0, "owners": ["one"], "spans": [[3, 1, 1, 0, 0]]},
    }


def test_the_log_decides_between_two_that_take(workers: Workers) -> None:
    one, two = workers.log(), workers.log()
    assert [(each.first, each.end) for each in workers.take(one, "one", 4, most=3)] == [(0, 3)]
    assert [(each.first, each.end) for each in workers.take(two, "two", 4)] == [(3, 4)]
    assert workers.accept(two, "two", 0, 4) == [range(3, 4)]


def test_nothing_is_written_that_changes_nothing(workers: Workers) -> None:
    log = workers.log()
    workers.take(log, "one", 0)
    workers.take(log, "one", 0)
    assert workers.accept(log, "one", 5, 6) == []
    assert log.read().table.version == 0


def test_a_lock_that_another_entry_has_renewed_is_watched_anew(workers: Workers) -> None:
    one, two = workers.log(), workers.log()
    workers.take(one, "one", 1)
    workers.take(two, "two", 1)
    workers.clock.advance(30)
    assert len(workers.take(two, "two", 1)) == 1
    assert workers.state() is not None
    assert [*workers.log().read().partitions()[KEY].locks()] == [RecordLock("two", 1)]
    workers.take(one, "one", 1)
    workers.clock.advance(29)
    assert workers.take(one, "one", 1) == []
    workers.clock.advance(1)
    assert len(workers.take(one, "one", 1)) == 1


def test_giving_back_frees_all_that_one_worker_holds(workers: Workers) -> None:
    one = workers.log()
    workers.take(one, "one", 4, most=2)
    workers.take(workers.log(), "two", 4)
    one.exchange(Exchange("one", gives_back=True), FOREVER)
    assert [*one.read().partitions()[KEY].locks()] == [RecordLock("two", 1)]
    assert [(each.first, each.end) for each in workers.take(one, "one", 4)] == [(0, 2)]


def test_the_first_exchange_may_be_lost(workers: Workers) -> None:
    failing = FaultyStore(workers.store, clock=workers.clock)
    log = ShareLog(failing, "g", workers.clock)
    log.read()
    failing.add(
        Rule("create", "groups/*", Fault.error_before(), times=None),
        Rule("get", "groups/*", Fault.error_before(), nth=2, times=None),
    )
    with pytest.raises(OutcomeUnknown):
        log.exchange(Exchange("one", {}, {KEY: LogRange(0, 3, 0)}, 9), workers.clock.monotonic())
    failing.clear()
    assert log.resolve(FOREVER) is None
    assert any("protocol" in action for action in entry(workers.store, 0))
    assert len(workers.take(workers.log(), "one", 3)) == 1


# --- which group a name is ---


def test_a_consumer_group_takes_a_name_no_share_group_can_have_then(workers: Workers) -> None:
    join(GroupLog(workers.store, "g", workers.clock), "a")
    with pytest.raises(KafkaException, match="is a consumer group") as refused:
        workers.take(workers.log(), "one", 1)
    assert refused.value.error == KafkaError.GROUP_ID_NOT_FOUND
    assert refused.value.error.fatal()


def test_a_share_group_takes_a_name_no_consumer_group_can_have_then(workers: Workers) -> None:
    workers.take(workers.log(), "one", 1)
    with pytest.raises(KafkaException, match="is a share group") as refused:
        join(GroupLog(workers.store, "g", workers.clock), "a")
    assert refused.value.error == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert not isinstance(refused.value, Fenced)


def test_a_deleted_consumer_group_leaves_its_name(workers: Workers) -> None:
    log = GroupLog(workers.store, "g", workers.clock)
    join(log, "a")
    log.forget_offsets(None, FOREVER, ["a"])
    assert len(workers.take(workers.log(), "one", 1)) == 1


def test_settings_alone_make_no_group(workers: Workers) -> None:
    workers.log().alter_settings(lambda _: {"share.delivery.count.limit": "7"}, FOREVER)
    assert not workers.log().read().exists
    join(GroupLog(workers.store, "g", workers.clock), "a")
    assert workers.log().settings() == {"share.delivery.count.limit": "7"}


# --- foreign and damaged logs ---


def write(workers: Workers, *domains: DomainMetadata) -> None:
    log = DeltaLog(workers.store, group_folder("g"), workers.clock)
    log.load()
    info = CommitInfo(workers.clock.unique_id(), 0, "x", "", "", is_blind_append=False)
    log.commit(lambda _: Draft(info, domains), FOREVER)


def test_a_later_format_is_refused(workers: Workers) -> None:
    workers.take(workers.log(), "one", 1)
    write(workers, DomainMetadata("deltaq", '{"format":4,"type":"share"}'))
    with pytest.raises(Incompatible, match="Upgrade deltaq"):
        workers.log().read()


@pytest.mark.parametrize("text", ["", "[]", '{"start":0}', '{"start":0,"owners":[],"spans":[[1]]}'])
def test_a_damaged_partition_is_refused(workers: Workers, text: str) -> None:
    workers.take(workers.log(), "one", 1)
    write(workers, DomainMetadata(f"{PARTITION_PREFIX}t/id/0", text))
    with pytest.raises(Corrupt, match="the state of a partition cannot be parsed"):
        workers.log().read().partitions()


@pytest.mark.parametrize("text", ["", "[]"])
def test_damaged_settings_are_refused(workers: Workers, text: str) -> None:
    workers.take(workers.log(), "one", 1)
    write(workers, DomainMetadata("deltaq.settings", text))
    with pytest.raises(Corrupt, match="the settings of the group"):
        workers.log().settings()


# --- maintenance ---


def test_a_group_with_a_long_past_costs_what_a_new_one_costs(workers: Workers) -> None:
    log, maintainer = workers.log(), GroupPass(workers.store, "g", workers.clock, SMALL, 0)
    for number in range(120):
        assert len(workers.take(log, "one", 1_000_000, 1_000)) == 1
        workers.accept(log, "one", 1_000 * number, 1_000 * number + 1_000)
        maintainer.run()
    workers.clock.advance(24 * 60 * 60)
    maintainer.run()
    assert maintainer.is_waiting()
    workers.clock.advance(SMALL.clean_up_grace_s)
    counts = maintainer.finish()
    assert counts["log objects deleted"] > 200
    entries = LogEntries(workers.store, group_folder("g"), workers.clock)
    assert len(entries.versions(-1)) <= SMALL.keep_entries_max + SMALL.checkpoint_interval
    assert workers.state() == SharePartition(120_000)
    assert len(workers.take(workers.log(), "two", 1_000_000)) == 1


def test_maintenance_plans_what_it_does_with_share_groups(workers: Workers) -> None:
    log = workers.log()
    for number in range(12):
        workers.take(log, "one", number + 1)
    maintainer = GroupPass(workers.store, "g", workers.clock, SMALL, 0)
    assert maintainer.plan()


def test_partitions_of_deleted_topics_are_forgotten() -> None:
    shared = ShareWorld()
    shared.fill(2)
    with shared.consumer() as consumer:
        consumer.poll(0)
        with shared.admin() as admin:
            admin.delete_topics(["t"])["t"].result(20)
            admin.create_topics([NewTopic("t", 1)])["t"].result(20)
        assert _cleaned(shared) == 0
        shared.fill(1)
        consumer.poll(0)
        assert _cleaned(shared) == 1
        assert len(shared.states()) == 1
        with shared.admin() as admin:
            admin.delete_topics(["t"])["t"].result(20)
        assert _cleaned(shared) == 1
        assert shared.states() == []


def test_partitions_with_dead_letters_to_be_written_are_not_forgotten() -> None:
    shared = ShareWorld()
    shared.set(errors_deadletterqueue_topic_name="dlq.t")
    shared.fill(1)
    with shared.consumer() as consumer:
        (message,) = consumer.poll(0)
        consumer.reject(message)
        consumer.commit_sync()
        with shared.admin() as admin:
            admin.delete_topics(["t"])["t"].result(20)
        assert _cleaned(shared) == 1
        assert len(shared.states()) == 1
    assert _cleaned(shared) == 1
    assert shared.states() == []


def _cleaned(shared: ShareWorld) -> int:
    """The partitions that a maintainer forgets."""
    return GroupPass(shared.store, "g", shared.clock, SMALL, 0).run()["partitions forgotten"]


def test_maintenance_of_a_root_leaves_share_groups_alone() -> None:
    shared = ShareWorld()
    shared.fill(2)
    with shared.consumer() as consumer:
        consumer.poll(0)
        before = shared.states()
        done = Maintenance(shared.store, shared.clock, offsets_retention_ms=0).round()
        assert "failures" not in done
        assert shared.states() == before


def test_lists_of_consumer_groups_have_no_share_groups() -> None:
    shared = ShareWorld()
    shared.fill(1)
    with shared.consumer() as consumer, shared.admin() as admin:
        consumer.poll(0)
        conf = {"bootstrap.servers": "memory://shared", "group.id": "c"}
        with Consumer(conf, store=shared.store) as other:
            other.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        listed = admin.list_consumer_groups().result(20)
        assert [each.group_id for each in listed.valid] == ["c"]
        assert listed.errors == []
        assert [each.id for each in admin.list_groups(timeout=20)] == ["c"]
