"""Atomicity of the memory store, forced by interleavings that the contract suite cannot produce."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from deltaq.clock import SystemClock
from deltaq.store import (
    MemoryStore,
    ObjectExists,
    forget_memory_store,
    open_store,
    serve_memory_store,
)


class InterruptingClock(SystemClock):
    """Does something else, once, when the store asks for the time in the middle of a write."""

    def __init__(self) -> None:
        self.interruption: Callable[[], object] | None = None

    def time_ms(self) -> int:
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            interruption()
        return super().time_ms()


def test_a_create_in_the_middle_of_another_one_of_the_same_key_is_refused() -> None:
    clock = InterruptingClock()
    store = MemoryStore("interrupted", clock)
    refused: list[ObjectExists] = []

    def second() -> None:
        try:
            store.create("k", b"second")
        except ObjectExists as error:
            refused.append(error)

    thread = threading.Thread(target=second)

    def interrupt() -> None:
        thread.start()
        thread.join(0.05)  # long enough to finish, were it not for the lock

    clock.interruption = interrupt
    store.create("k", b"first")
    thread.join()
    assert len(refused) == 1
    assert store.get("k") == b"first"
    assert [entry.key for entry in store.list("")] == ["k"]


def test_a_listing_is_a_snapshot_during_concurrent_writes() -> None:
    store = MemoryStore("moment")
    for key in ("a", "b", "c"):
        store.put(key, key.encode())
    entries = store.list("")
    assert next(entries).key == "a"
    store.delete("b")
    store.put("d", b"")
    assert [entry.key for entry in entries] == ["b", "c"]


def test_an_unreferenced_watch_costs_a_write_nothing() -> None:
    store = MemoryStore("watches")
    for _ in range(10):
        store.watch()
    kept = store.watch()
    assert list(store._watches) == [kept]


@pytest.mark.parametrize("name", ["a", "a-b.c_d"])
def test_its_url_names_it(name: str) -> None:
    assert MemoryStore(name).url == f"memory://{name}"


def test_a_name_can_be_given_to_another_store_until_it_is_forgotten() -> None:
    name = uuid.uuid4().hex
    before, other = open_store(f"memory://{name}"), MemoryStore("other")
    serve_memory_store(name, other)
    assert open_store(f"memory://{name}") is other
    forget_memory_store(name)
    assert open_store(f"memory://{name}") not in (before, other)
    forget_memory_store(name)
