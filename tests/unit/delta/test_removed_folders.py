"""A folder that is removed or replaced under live clients: nothing is acknowledged into an
unreadable log.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaq import (
    Consumer,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Producer,
    TopicPartition,
    names,
)
from deltaq.delta.actions import CommitInfo, Txn
from deltaq.delta.log import DeltaLog, Draft
from deltaq.delta.resolve import resolve_commit
from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.delta.table_state import PROTOCOL, TableState
from deltaq.errors import Corrupt
from deltaq.store import LocalStore, MemoryStore, Store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule, messages_of

FOLDER = "topics/t/"
LOG = FOLDER + "_delta_log"


def nothing(_: TableState) -> Draft:
    return Draft(CommitInfo(uuid.uuid4().hex, 0, "FENCE"), [])


def commit(log: DeltaLog[None], value: int) -> int:
    token = uuid.uuid4().hex

    def write(state: TableState) -> Draft:
        return Draft(
            CommitInfo(token, 0, "TEST"),
            [*([PROTOCOL] if state.version < 0 else []), Txn("app", value)],
        )

    return log.commit(write, log.clock.monotonic() + 60).entry.version


def opened(store: Store, entries: int = 0) -> DeltaLog[None]:
    """A log that has been loaded, with so many entries more."""
    log = DeltaLog(store, FOLDER, ManualClock(auto_advance=True))
    log.load()
    for value in range(entries):
        commit(log, value)
    return log


def made_anew(entries: int) -> Callable[[Path], None]:
    """Another client makes a new log where the old one was."""

    def replace(root: Path) -> None:
        shutil.rmtree(root / FOLDER)
        opened(LocalStore(str(root)), entries)

    return replace


def restored(root: Path) -> None:
    """An older copy of the log takes the place of this one."""
    for version in (2, 3):
        (root / LOG / f"{version:020d}.json").unlink()


REMOVALS: dict[str, Callable[[Path], object]] = {
    "the topic": lambda root: shutil.rmtree(root / FOLDER),
    "the log": lambda root: shutil.rmtree(root / LOG),
    "the root": lambda root: shutil.rmtree(root),
    "the newest entry": lambda root: (root / LOG / f"{3:020d}.json").unlink(),
    "the topic, moved away": lambda root: (root / FOLDER).rename(root / "trash"),
    "the topic, made anew and shorter": made_anew(2),
    "the topic, made anew and as long": made_anew(4),
    "the topic, made anew and longer": made_anew(9),
    "the newest entries, by an older copy": restored,
}


def entries(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*.json"))
    }


@pytest.mark.fault("B5", "W5")
@pytest.mark.parametrize("removed", REMOVALS)
def test_a_commit_into_a_log_that_was_removed_or_replaced_fails_and_writes_nothing(
    tmp_path: Path, removed: str
):
    store = LocalStore(str(tmp_path / "root"))
    log = opened(store, 4)
    REMOVALS[removed](tmp_path / "root")
    before = entries(tmp_path)
    with pytest.raises(
        Corrupt, match=r"removed or replaced while .* AdminClient\.delete_topics or Topic\.delete"
    ):
        commit(log, 4)
    assert entries(tmp_path) == before
    assert commit(log, 5) == commit(opened(store), 6) - 1, "it begins anew with what is there"


@pytest.mark.fault("B5", "W5")
@pytest.mark.parametrize("removed", REMOVALS)
def test_a_removal_before_the_first_write_to_an_opened_log_is_noticed(tmp_path: Path, removed: str):
    store = LocalStore(str(tmp_path))
    opened(store, 4)
    log = opened(LocalStore(str(tmp_path)))
    REMOVALS[removed](tmp_path)
    with pytest.raises(Corrupt, match="removed or replaced"):
        commit(log, 4)


@pytest.mark.fault("B5", "W5")
def test_a_removal_that_spares_the_entries_created_meanwhile_is_noticed(tmp_path: Path):
    """As `rm -rf` does, which lists the folder before it removes the first file."""
    log = opened(LocalStore(str(tmp_path)), 4)
    listed = list((tmp_path / LOG).iterdir())
    commit(log, 4)
    for path in listed:
        path.unlink()
    before = entries(tmp_path)
    with pytest.raises(Corrupt, match="removed or replaced"):
        commit(log, 5)
    assert entries(tmp_path) == before


@pytest.mark.fault("B5")
def test_log_clean_up_below_a_writers_position_is_not_taken_for_a_removal(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    log = opened(store, 4)
    for start in (2, 4):
        store.put(names.log_start_marker(FOLDER, start), b"")
        for version in range(start):
            (tmp_path / LOG / f"{version:020d}.json").unlink(missing_ok=True)
        assert commit(log, start) == log.state.version


@pytest.mark.fault("P5", "B5")
@pytest.mark.parametrize(
    "removed", [kind for kind in REMOVALS if kind != "the topic, made anew and longer"]
)
def test_a_commit_whose_log_is_removed_before_its_answer_is_unknown_and_then_resolved(
    tmp_path: Path, removed: str
):
    class Removing(LocalStore):
        def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
            super().create(key, data, after)
            if key.endswith("4.json"):
                shutil.copytree(tmp_path / "root", tmp_path / "copy")
                REMOVALS[removed](tmp_path / "root")

    log = opened(Removing(str(tmp_path / "root")), 4)
    with pytest.raises(OutcomeUnknown, match="removed or replaced") as caught:
        commit(log, 4)
    resolver = opened(LocalStore(str(tmp_path / "copy")))
    found = resolve_commit(resolver, caught.value.token, nothing, float("inf"))
    assert found is not None, "it stands in a copy that was made in time"
    late = DeltaLog(LocalStore(str(tmp_path / "root")), FOLDER, resolver.clock)
    if "entr" in removed:
        with pytest.raises(OutcomeUnknown, match="missing"):
            # A log with a gap says nothing.
            resolve_commit(late, caught.value.token, nothing, float("inf"))
    else:
        assert resolve_commit(late, caught.value.token, nothing, float("inf")) is None


def test_an_unknown_outcome_in_a_log_that_became_shorter_is_resolved_as_not_done(tmp_path: Path):
    store = FaultyStore(LocalStore(str(tmp_path)))
    log = opened(store, 9)
    store.add(Rule("create", "*_delta_log/*", Fault.error_before(), times=None))
    with pytest.raises(OutcomeUnknown) as caught:
        commit(log, 9)
    store.clear()
    made_anew(3)(tmp_path)
    assert resolve_commit(opened(store), caught.value.token, nothing, float("inf")) is None
    assert len(entries(tmp_path)) == 3


@pytest.mark.fault("P5", "B5")
def test_an_entry_whose_folder_is_removed_while_it_is_synced_is_not_put_into_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = LocalStore(str(tmp_path))
    log = opened(store, 4)
    write = store._stage

    def stage(folder, data, piece_bytes, publish):
        def removing(staged: str) -> None:
            shutil.rmtree(tmp_path / FOLDER)
            publish(staged)

        return write(folder, data, piece_bytes, removing)

    monkeypatch.setattr(store, "_stage", stage)
    with pytest.raises(Corrupt, match="removed or replaced"):
        commit(log, 4)
    assert not entries(tmp_path)


class Remote(FaultyStore):
    """A store of which each operation is a request."""

    @property
    def is_remote(self) -> bool:
        return True

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        super().create(key, data)


@pytest.mark.fault("B5")
def test_on_a_remote_store_a_removal_is_noticed_once_the_last_check_is_old():
    store = Remote(MemoryStore("test"))
    log = opened(store, 4)
    for key in [entry.key for entry in store.inner.list("")]:
        store.inner.delete(key)
    log.clock.advance(HEAD_PROOF_S + 1)  # type: ignore[attr-defined]
    with pytest.raises(Corrupt, match="removed or replaced"):
        commit(log, 4)
    assert not list(store.inner.list(LOG))


@pytest.mark.fault("B5")
def test_on_a_remote_store_a_removal_before_the_first_check_is_noticed_by_it():
    """Not only by a writer that rests: the entries of one that goes on vouch for each other."""
    store = Remote(MemoryStore("test"))
    opened(store, 4)
    log = opened(store)
    for key in [entry.key for entry in store.inner.list("")]:
        store.inner.delete(key)
    with pytest.raises(Corrupt, match="removed or replaced"):  # noqa: PT012 - by one of these commits
        for value in range(5):
            commit(log, value)
            log.clock.advance(HEAD_PROOF_S / 3)  # type: ignore[attr-defined]
    assert len(list(store.inner.list(LOG))) <= 4


def test_on_a_remote_store_the_previous_entry_is_checked_every_thirty_seconds():
    store = Remote(MemoryStore("test"))
    log = opened(store, 4)
    looks = store.operations["get_range"]
    for value in range(12):
        log.clock.advance(10)  # type: ignore[attr-defined]
        commit(log, value)
    # Each of three checks reads the entry before, and an old entry too.
    assert store.operations["get_range"] - looks == 6


# --- clients
# --------------------------------------------------------------------------------------------------


CLIENT_REMOVALS = {"the topic": "topics/t", "the log": "topics/t/_delta_log", "the root": ""}


@pytest.mark.fault("B5", "W5")
@pytest.mark.parametrize("removed", CLIENT_REMOVALS)
def test_a_producer_whose_topic_is_removed_acknowledges_nothing_until_there_is_a_new_one(
    tmp_path: Path, removed: str
):
    reports: list[tuple[KafkaError | None, bytes]] = []
    root = tmp_path / "root"
    with Producer(
        {"bootstrap.servers": str(root), "linger.ms": 0},
        on_delivery=lambda error, message: reports.append((error, message.value())),
    ) as producer:
        for value in (b"first", b"second"):
            producer.produce("t", value)
            producer.flush()
        shutil.rmtree(root / CLIENT_REMOVALS[removed])
        producer.produce("t", b"lost")
        producer.flush()
        assert [error is None for error, _ in reports] == [True, True, False]
        assert "removed or replaced" in reports[2][0].str()  # type: ignore[union-attr]
        while reports[-1][0] is not None:  # the topic is made anew, as one that was never there
            producer.produce("t", b"after")
            producer.flush()
    assert [message.value() for message in messages_of(str(root), "t")] == [b"after"]


@pytest.mark.fault("B5")
def test_a_consumer_whose_group_is_removed_commits_nothing(tmp_path: Path):
    conf = {"bootstrap.servers": str(tmp_path), "group.id": "g"}
    offset = [TopicPartition("t", 0, 1)]
    with Producer({"bootstrap.servers": str(tmp_path)}) as producer:
        producer.produce("t", b"value")
    with Consumer(conf) as consumer:
        consumer.commit(offsets=offset, asynchronous=False)
        shutil.rmtree(tmp_path / "groups" / "g")
        with pytest.raises(KafkaException, match="removed or replaced"):
            consumer.commit(offsets=offset, asynchronous=False)
        assert not (tmp_path / "groups" / "g" / "_delta_log").exists()
        consumer.commit(offsets=offset, asynchronous=False)
        with Consumer(conf) as other:
            assert other.committed([TopicPartition("t", 0)])[0].offset == 1
