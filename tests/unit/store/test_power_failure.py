"""A power failure takes back what was seen and not synced yet: nothing that was vouched for may
rest on it.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltaq import (
    Consumer,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.delta.actions import CommitInfo, Txn
from deltaq.delta.log import DeltaLog, Draft
from deltaq.delta.resolve import resolve_commit
from deltaq.delta.table_state import PROTOCOL, TableState
from deltaq.store import LocalStore, MemoryStore, ObjectMissing
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule, messages_of
from deltaq.topics.log import AlreadyCommitted, TopicLog

LOG = "topics/t/_delta_log/"
FOREVER = float("inf")


class Disk:
    """A file system that keeps a new name over a power failure only once its folder was synced."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._top = top
        self._unsynced: dict[Path, list[Path]] = {}
        self.is_stuck = False
        """Whether syncs of logs do nothing, as if each writer were stopped just before."""
        self.error: int | None = None
        """What syncs of folders fail with."""
        for name, double in (("link", self._naming(os.link)), ("rename", self._naming(os.rename))):
            monkeypatch.setattr(os, name, double)
        monkeypatch.setattr(os, "fsync", self._syncing(os.fsync))

    def lose_power(self) -> None:
        for path in (path for paths in self._unsynced.values() for path in paths):
            path.unlink(missing_ok=True)
        self._unsynced.clear()

    def _naming(self, name_it: Callable[..., None]) -> Callable[..., None]:
        def named(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            name_it(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            folder = self._folder(dst_dir_fd)
            self._unsynced.setdefault(folder, []).append(folder / new)

        return named

    def _syncing(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                if self.error is not None:
                    raise OSError(self.error, os.strerror(self.error))
                folder = self._folder(descriptor)
                if self.is_stuck and folder.name == "_delta_log":
                    return
                self._unsynced.pop(folder, None)
            sync(descriptor)

        return synced

    def _folder(self, descriptor: int) -> Path:
        opened = os.fstat(descriptor)
        return next(
            path
            for path in [self._top, *self._top.rglob("*")]
            if os.path.samestat(path.stat(), opened)
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Topic("t", bootstrap_servers=str(tmp_path / "root")).create()
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    yield Disk(root.parent, monkeypatch)
    monkeypatch.undo()


def produce(root: Path, value: str) -> None:
    with Producer({"bootstrap.servers": str(root), "linger.ms": 0}) as producer:
        producer.produce("t", value)


def reader(root: Path) -> Consumer:
    conf = {"bootstrap.servers": str(root), "group.id": "g", "auto.offset.reset": "earliest"}
    return Consumer({**conf, "enable.auto.commit": False, "maintenance.enable": False})


@pytest.mark.fault("P16")
def test_the_double_loses_unsynced_data_and_keeps_synced_data(root: Path, disk: Disk):
    produce(root, "synced")
    disk.is_stuck = True
    produce(root, "seen")
    assert len(messages_of(str(root), "t")) == 2
    disk.lose_power()
    assert [message.value() for message in messages_of(str(root), "t")] == [b"synced"]


@pytest.mark.fault("P16")
def test_a_group_skips_no_record_after_a_power_failure(root: Path, disk: Disk):
    disk.is_stuck = True
    produce(root, "seen before it is synced")
    disk.is_stuck = False
    with reader(root) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        (message,) = consumer.consume(1, timeout=30)
        consumer.commit(message, asynchronous=False)
    disk.lose_power()
    produce(root, "later")
    with reader(root) as consumer:
        (committed,) = consumer.committed([TopicPartition("t", 0)])
    assert committed.offset == 1
    assert [message.value() for message in messages_of(str(root), "t")] == [
        b"seen before it is synced",
        b"later",
    ]


@pytest.mark.fault("P16")
def test_offsets_are_not_committed_if_their_records_cannot_be_synced(root: Path, disk: Disk):
    with reader(root) as consumer:
        consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        entries = sorted((root / "groups/g/_delta_log").iterdir())
        disk.error = errno.EIO
        with pytest.raises(KafkaException) as caught:
            consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        assert caught.value.args[0].code() == KafkaError._TRANSPORT
        assert sorted((root / "groups/g/_delta_log").iterdir()) == entries
        disk.error = None


@pytest.mark.fault("P16")
def test_an_entry_after_an_unsynced_one_makes_both_durable(root: Path, disk: Disk):
    disk.is_stuck = True
    produce(root, "another writer's")
    disk.is_stuck = False
    produce(root, "acknowledged")
    disk.lose_power()
    assert [message.value() for message in messages_of(str(root), "t")] == [
        b"another writer's",
        b"acknowledged",
    ]


# --- the log
# --------------------------------------------------------------------------------------------------


def opened(store: LocalStore | FaultyStore) -> DeltaLog[None]:
    log = DeltaLog(store, "topics/n/", ManualClock(auto_advance=True))
    log.load()
    return log


def draft(value: int) -> Callable[[TableState], Draft]:
    token = uuid.uuid4().hex

    def write(state: TableState) -> Draft:
        return Draft(
            CommitInfo(token, 0, "TEST"),
            [*([PROTOCOL] if state.version < 0 else []), Txn("app", value)],
        )

    return write


@pytest.mark.fault("S1", "D1")
def test_an_existing_commit_that_cannot_be_synced_is_not_acknowledged(root: Path, disk: Disk):
    log = opened(LocalStore(str(root)))
    log.commit(draft(0), log.clock.monotonic() + 60)
    disk.error = errno.EIO
    with pytest.raises(OutcomeUnknown) as caught:
        log.commit(draft(1), log.clock.monotonic() + 5)
    resolver = opened(LocalStore(str(root)))
    with pytest.raises(OutcomeUnknown):
        resolve_commit(resolver, caught.value.token, draft(2), resolver.clock.monotonic() + 5)
    disk.error = None
    found = resolve_commit(resolver, caught.value.token, draft(2), resolver.clock.monotonic() + 5)
    assert found is not None
    disk.lose_power()
    assert opened(LocalStore(str(root))).state.version == found.version


@pytest.mark.fault("P5", "P6")
def test_a_commit_whose_answer_is_lost_is_synced_before_it_is_acknowledged(root: Path, disk: Disk):
    log = opened(
        FaultyStore(LocalStore(str(root)), Rule("create", "*n/_delta_log/*", Fault.error_after()))
    )
    create = log.store.create

    def stopped_before_the_sync(key: str, data: bytes | memoryview, after: str = "") -> None:
        disk.is_stuck = True
        try:
            create(key, data, after)
        finally:
            disk.is_stuck = False

    log.store.create = stopped_before_the_sync  # type: ignore[method-assign]
    log.commit(draft(0), log.clock.monotonic() + 60)
    disk.lose_power()
    assert opened(LocalStore(str(root))).state.version == 0


@pytest.mark.fault("P16")
def test_an_existing_transaction_is_synced_before_it_is_reported(root: Path, disk: Disk):
    first, second = (TopicLog(LocalStore(str(root)), "t") for _ in range(2))
    first.load()
    disk.is_stuck = True
    first.append(list, first.live_head.topic_id, FOREVER, Txn("query", 1))
    disk.is_stuck = False
    second.load()
    assert (
        second.append(list, first.live_head.topic_id, FOREVER, Txn("query", 1))
        == AlreadyCommitted()
    )
    disk.lose_power()
    second.load()
    assert second.version == 1


def test_a_missing_folder_cannot_be_synced_and_a_store_without_folders_does_nothing(root: Path):
    with pytest.raises(ObjectMissing):
        LocalStore(str(root)).sync("topics/missing/")
    LocalStore(str(root)).sync(LOG)
    MemoryStore("test").sync("topics/missing/")
