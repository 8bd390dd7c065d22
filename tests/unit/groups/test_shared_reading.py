"""Clients of one group's log in a process share what they have read, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest

from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.errors import Corrupt
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.names import entry_version
from deltaq.store import LocalStore, MemoryStore
from deltaq.testing import ManualClock

FOREVER = float("inf")


class ReadStore(MemoryStore):
    """Counts the reads of each log entry that exists, by version."""

    def __init__(self) -> None:
        super().__init__("test")
        self.read: Counter[int] = Counter()
        self.on_get: Callable[[], None] = lambda: None

    def get(self, key: str, size_max: int | None = None) -> bytes:
        found = super().get(key, size_max)
        version = entry_version(key)
        if version is not None:
            self.read[version] += 1
            self.on_get()
        return found


def offset(number: int) -> CommittedOffset:
    return CommittedOffset("t", "id", 0, number)


def committed(log: GroupLog) -> int | None:
    (found,) = log.committed([("t", "id", 0)])
    return None if found is None else found.offset


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def store() -> ReadStore:
    return ReadStore()


def write(store: MemoryStore, *numbers: int) -> None:
    """Commit offsets by another process."""
    log = GroupLog(store, "g")
    for number in numbers:
        log.commit(None, [offset(number)], FOREVER)


def test_an_entry_is_read_once_by_all_clients_of_a_process(store, clock):
    first = GroupLog(store, "g", clock)
    second, third = first.sibling(), first.sibling()
    write(store, 1)
    assert committed(first) == 1
    for number in range(2, 12):
        write(store, number)
        store.read.clear()
        for log in (second, first, third) if number % 2 else (third, second, first):
            assert committed(log) == number
        assert store.read == {number - 1: 1}, "the log begins with version 0"


def test_a_client_need_not_read_what_another_one_has_written(store, clock):
    first = GroupLog(store, "g", clock)
    second = first.sibling()
    first.commit(None, [offset(1)], FOREVER)
    assert committed(second) == 1
    store.read.clear()
    first.commit(None, [offset(2)], FOREVER)
    second.commit(None, [offset(3)], FOREVER)
    assert (committed(first), committed(second)) == (3, 3)
    assert not store.read


def test_what_one_client_writes_later_does_not_change_what_another_one_took_over(store, clock):
    first = GroupLog(store, "g", clock)
    second = first.sibling()
    first.commit(None, [offset(1)], FOREVER)
    before = second.state()
    taken = dict(before.txns)
    first.commit(None, [offset(2)], FOREVER)
    assert before.txns == taken
    assert committed(second) == 2


def test_a_client_that_begins_long_after_the_last_read_loads_the_log(store, clock):
    first = GroupLog(store, "g", clock)
    first.commit(None, [offset(1)], FOREVER)
    store.read.clear()
    clock.advance(HEAD_PROOF_S + 1)
    assert committed(first.sibling()) == 1
    assert store.read, "nothing was read"


def test_an_interrupted_client_goes_on_from_an_intact_position(store, clock):
    first = GroupLog(store, "g", clock)
    second = first.sibling()
    write(store, 1)
    assert committed(first) == committed(second) == 1
    write(store, 2)

    def interrupt() -> None:
        raise KeyboardInterrupt

    store.on_get = interrupt
    with pytest.raises(KeyboardInterrupt):
        committed(first)
    store.on_get = lambda: None
    assert (committed(second), committed(first)) == (2, 2)


def test_a_log_that_took_the_place_of_another_one_is_not_mistaken_for_it(tmp_path: Path):
    clock = ManualClock(auto_advance=True)
    first = GroupLog(LocalStore(str(tmp_path)), "g", clock)
    second = first.sibling()
    for number in range(1, 6):
        first.commit(None, [offset(number)], FOREVER)
    assert committed(second) == 5
    rmtree(tmp_path / "groups")
    GroupLog(LocalStore(str(tmp_path)), "g", clock).commit(None, [offset(70)], FOREVER)
    with pytest.raises(Corrupt):
        first.commit(None, [offset(6)], FOREVER)
    assert committed(first) == 70
    with pytest.raises(Corrupt):
        second.commit(None, [offset(6)], FOREVER)
    assert (committed(second), committed(first)) == (70, 70)
