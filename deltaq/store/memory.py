"""A store in the memory of one process: for tests, examples and simulations."""

from __future__ import annotations

import bisect
import builtins
from collections.abc import Iterator
from weakref import WeakSet

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.store.contract import (
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    PollInterval,
    Store,
)
from deltaq.store.keys import check_folder, check_key, check_prefix, check_range
from deltaq.store.watch import SignalWatch

POLL_INTERVAL = PollInterval(busy_s=0.0005, idle_s=0.1)
"""A watch of this store misses no change, so polling while idle is only a safety net."""


class MemoryStore:
    """Objects in a dictionary. All operations are atomic; the objects are lost when the process
    ends.
    """

    poll_interval = POLL_INTERVAL
    is_remote = False
    case_sensitive = True

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.url = f"memory://{name}"
        self._clock = clock
        self._lock = clock.lock()
        # Key -> content, time of change in epoch ms.
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []  # sorted; exactly the keys of `_objects`
        self._watches: WeakSet[SignalWatch] = WeakSet()

    def get(self, key: str, size_max: int | None = None) -> bytes:
        check_key("get", key)
        content = self._content("get", key)
        if size_max is not None and len(content) > size_max:
            raise ObjectTooLarge(key, len(content), size_max)
        return content

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        return self.get(key, size_max)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key("get_range", key)
        check_range(key, start, length)
        return self._content("get_range", key)[start : start + length]

    def put(self, key: str, data: bytes | memoryview) -> None:
        check_key("put", key)
        self._write(key, bytes(data), replace=True)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        check_key("create", key)
        if after:
            self._content("create", after)
        if not self._write(key, bytes(data), replace=False):
            raise ObjectExists("create", key, "the key is taken")

    def link(self, key: str, to: str) -> None:
        check_key("link", key)
        check_key("link", to)
        if not self._write(to, self._content("link", key), replace=False):
            raise ObjectExists("link", to, "the key is taken")

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        check_prefix("list", prefix)
        with self._lock:
            first = max(
                bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, start_after)
            )
            # Keys are ASCII, so prefix + 0x7F sorts after every key with the prefix.
            keys = self._keys[first : bisect.bisect_left(self._keys, prefix + "\x7f")]
            entries = [
                ObjectEntry(key, len(self._objects[key][0]), self._objects[key][1]) for key in keys
            ]
        return iter(entries)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        check_folder("list_some", prefix)
        return builtins.list(self.list(prefix, start_after))

    def list_folders(self, prefix: str) -> builtins.list[str]:
        check_folder("list_folders", prefix)
        names = (entry.key[len(prefix) :].split("/") for entry in self.list(prefix))
        return sorted({name for name, *rest in names if rest})

    def delete(self, key: str) -> None:
        check_key("delete", key)
        with self._lock:
            if key in self._objects:
                at = bisect.bisect_left(self._keys, key)
                del self._keys[at]
                del self._objects[key]

    def sync(self, folder: str) -> None:
        check_folder("sync", folder)

    def remove_unfinished(self) -> Iterator[int]:
        return iter(())

    def watch(self) -> SignalWatch:
        watch = SignalWatch(self._clock)
        with self._lock:
            self._watches.add(watch)
        return watch

    def __repr__(self) -> str:
        return f"<MemoryStore {self.url}>"

    def _content(self, operation: str, key: str) -> bytes:
        # A single dictionary lookup needs no lock.
        found = self._objects.get(key)
        if found is None:
            raise ObjectMissing(operation, key, "there is no such object")
        return found[0]

    def _write(self, key: str, content: bytes, *, replace: bool) -> bool:
        with self._lock:
            stored = content, self._clock.time_ms()
            is_new = key not in self._objects
            if not is_new and not replace:
                return False
            # A signal handler runs after a call. No call separates the two updates, so no exception
            # can split them.
            self._objects[key] = stored
            if is_new:
                bisect.insort(self._keys, key)
            watches = list(self._watches)
        # Outside the lock: each watch takes its own lock.
        for watch in watches:
            watch.changed(key)
        return True


_STORES: dict[str, Store] = {}


def memory_store(name: str, clock: Clock = SYSTEM_CLOCK) -> Store:
    """The store of that name in this process. The first call creates it with its clock."""
    store = _STORES.get(name)
    return store if store is not None else _STORES.setdefault(name, MemoryStore(name, clock))


def serve_memory_store(name: str, store: Store) -> None:
    """Make `memory://name` open `store` from now on, so that a test can inject faults."""
    _STORES[name] = store


def forget_memory_store(name: str) -> None:
    """Drop the store of that name: the next `open_store` creates an empty one. Open handles keep
    the old one.
    """
    _STORES.pop(name, None)
