"""Entries that were moved into the log archive: they are read as before, and their slots are not
free.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from deltaq.delta.actions import CommitInfo, Txn
from deltaq.delta.log import Committed, DeltaLog, Draft
from deltaq.delta.resolve import resolve_commit
from deltaq.delta.table_state import PROTOCOL, TableState
from deltaq.names import log_archive_folder, log_entry
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule

FOLDER = "topics/t/"
ENTRY = "*_delta_log/*"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


def opened(store: MemoryStore | FaultyStore, clock: ManualClock) -> DeltaLog[None]:
    log = DeltaLog(store, FOLDER, clock)
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


def commit(log: DeltaLog[None], value: int) -> Committed:
    return log.commit(draft(value), log.clock.monotonic() + 60.0)


def archive(store: MemoryStore, *versions: int) -> None:
    for version in versions:
        key = log_entry(f"{FOLDER}_delta_log/", version)
        store.link(key, log_entry(log_archive_folder(FOLDER), version))
        store.delete(key)


def read_all(log: DeltaLog[None]) -> list[int]:
    """The values of the entries after the position of `log`."""
    found = []
    while (entry := log.read_next()) is not None:
        found += [action.version for action in entry.actions if isinstance(action, Txn)]
    return found


class Suspending(MemoryStore):
    """Runs `meanwhile` once between the check of `after` and the creation: the writer was suspended
    there.
    """

    def __init__(self) -> None:
        super().__init__("test")
        self.meanwhile: Callable[[], None] | None = None
        self.follows = False
        """Whether `meanwhile` runs after the creation instead, before the writer gets its
        answer.
        """

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        run, self.meanwhile = self.meanwhile, None
        if run is None:
            super().create(key, data, after)
            return
        self.get(after)
        if not self.follows:
            run()
        super().create(key, data)
        if self.follows:
            run()


def test_a_reader_that_is_behind_reads_on_in_the_archive(clock: ManualClock) -> None:
    store = MemoryStore("test")
    writer, behind = opened(store, clock), opened(store, clock)
    commit(writer, 0)
    assert read_all(behind) == [0]
    for value in range(1, 10):
        commit(writer, value)
    archive(store, *range(8))
    lists = FaultyStore(store)
    assert read_all(behind) == [*range(1, 10)]
    assert opened(lists, clock).state.version == 9, "without a checkpoint, all entries are needed"


def test_an_entry_is_read_in_the_moment_in_which_it_is_moved(clock: ManualClock) -> None:
    store = MemoryStore("test")
    writer = opened(store, clock)
    for value in range(3):
        commit(writer, value)
    moved_after_the_first_look = FaultyStore(store)
    look = moved_after_the_first_look.get_impatient

    def get_impatient(key: str, size_max: int | None = None) -> bytes:
        try:
            return look(key, size_max)
        finally:
            if "_delta_log" in key:
                archive(store, int(key[-25:-5]))

    moved_after_the_first_look.get_impatient = get_impatient  # type: ignore[method-assign]
    assert opened(moved_after_the_first_look, clock).state.version == 2


def test_a_writer_that_slept_does_not_take_the_slot_of_an_archived_entry(
    clock: ManualClock,
) -> None:
    store = Suspending()
    sleeper, others, reader = opened(store, clock), opened(store, clock), opened(store, clock)
    commit(sleeper, 0)
    commit(others, 1)
    read_all(sleeper)
    read_all(reader)

    def meanwhile() -> None:
        for value in range(2, 7):
            commit(others, value)
        archive(store, *range(5))

    store.meanwhile = meanwhile
    committed = commit(sleeper, 7)
    assert store.get(log_entry(f"{FOLDER}_delta_log/", 2)), "its create found the slot empty"
    assert (committed.entry.version, committed.lost_races) == (7, 1)
    assert read_all(reader) == [*range(2, 8)], (
        "what it left behind in the slot is no part of the log"
    )
    assert opened(store, clock).state.txns["app"].version == 7


def test_a_writer_far_behind_learns_that_its_slot_was_archived(clock: ManualClock) -> None:
    store = MemoryStore("test")
    slow, others = opened(store, clock), opened(store, clock)
    commit(slow, 0)
    for value in range(1, 7):
        commit(others, value)
    archive(store, *range(5))
    assert commit(slow, 7).entry.version == 7


def test_a_commit_whose_own_entry_is_archived_before_its_answer_stands_once(
    clock: ManualClock,
) -> None:
    store = Suspending()
    slow, others = opened(store, clock), opened(store, clock)
    commit(slow, 0)

    def meanwhile() -> None:
        for value in range(2, 7):
            commit(others, value)
        archive(store, *range(5))

    store.meanwhile, store.follows = meanwhile, True
    assert commit(slow, 1).entry.version == 1
    again = DeltaLog(store, FOLDER, clock)
    assert read_all(again) == [*range(7)]


def test_an_archived_commit_that_was_not_answered_is_resolved(clock: ManualClock) -> None:
    store = FaultyStore(MemoryStore("test"))
    assert isinstance(store.inner, MemoryStore)
    log, others = opened(store, clock), opened(store.inner, clock)
    commit(log, 0)
    token = log.token(1, (entry := commit(log, 1).entry).txn_id or "")
    for value in range(2, 5):
        commit(others, value)
    archive(store.inner, 0, 1, 2)
    assert resolve_commit(opened(store, clock), token, draft(9), float("inf")) == entry


def test_the_folder_of_a_log_with_archived_entries_is_not_taken_for_a_replaced_one(
    clock: ManualClock,
) -> None:
    store = FaultyStore(MemoryStore("test"), Rule("create", ENTRY, Fault.error_after(), nth=3))
    assert isinstance(store.inner, MemoryStore)
    log = opened(store, clock)
    for value in range(5):
        commit(log, value)
    archive(store.inner, *range(4))  # the entry from the time when this client began to write, too
    assert commit(log, 5).entry.version == 5
