"""The store contract: the operations on objects that deltaq needs, and every outcome that each may
have.

A store holds objects under keys (`topics/orders/_delta_log/00000000000000000007.json`); by
convention they are immutable. Safety rests on `create` alone: of all processes that create one key,
at most one succeeds.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """A failed operation, named by `operation` and `key`. The text never contains a secret."""

    def __init__(self, operation: str, key: str, reason: str) -> None:
        super().__init__(f"{operation} of {key!r}: {reason}")
        self.operation = operation
        self.key = key
        self.reason = reason


class ObjectMissing(StoreError):
    """`get`: the object does not exist. `create`: the one named by `after` does not, and nothing
    was created.
    """


class ObjectTooLarge(StoreError):
    """`get`: the object has more bytes than the caller takes. None of them was read."""

    def __init__(self, key: str, size: int, size_max: int) -> None:
        super().__init__("get", key, f"it has {size} bytes, more than {size_max}")


class ObjectExists(StoreError):
    """`create`: the store refused because the key is, or may be, taken.

    This does not prove that another writer's object exists. A retry inside the network may have met
    our own write, and some stores answer so to two concurrent writes of which neither succeeds.
    Read the key to find out.
    """


class StoreUnavailable(StoreError):
    """The store gave no usable answer. A read can be repeated; a write **may have happened, or may
    still happen**.
    """


class StoreRefused(StoreError):
    """The store refused and changed nothing: no permission, no such bucket, disk full, key not
    allowed. A retry fails too until the cause is removed.
    """


class StoreFull(StoreRefused):
    """The disk is full, or its quota is used up. Free space, or enlarge it."""


class CreateUnsupported(StoreRefused):
    """`create`: the store cannot refuse a taken key, so it cannot hold deltaq's data. Use another
    store.
    """


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An object in a listing: key relative to the store's root, size in bytes, time of last change
    in epoch ms.
    """

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class PollInterval:
    """How often to poll this store for a new object: seconds between two polls while busy and while
    idle. A reader counts as busy for `steady_s` seconds after it found an object.
    """

    busy_s: float
    idle_s: float
    steady_s: float = 0.0


class Watch(Protocol):
    """Wakes a reader that waits for new objects. It may miss changes, so the reader also polls
    after `timeout_s`.
    """

    def add(self, prefix: str) -> None:
        """Also watch the objects directly in the folder `prefix` (ending in `/`). It need not exist
        yet.

        A change after `add` ends the next `wait`, even if it happens before that `wait` begins.
        """

    def wait(self, timeout_s: float) -> bool:
        """Block until a watched folder may have changed or `wake` was called; False after
        `timeout_s` seconds.
        """

    def wake(self) -> None:
        """End the current `wait`, or else the next one. Callable from any thread."""

    def close(self) -> None:
        """Release the watch's resources. Idempotent."""


class Store(Protocol):
    """Objects under one root. Thread-safe.

    Keys are relative, `/`-separated, of printable ASCII without backslash, without empty, `.` or
    `..` parts (`deltaq/store/keys.py` has the whole grammar). Any other key is StoreRefused before
    the storage is accessed.
    """

    @property
    def url(self) -> str:
        """The root as a URL without credentials, e.g. `file:///data/events`, `memory://test`,
        `s3://bucket/prefix`.
        """

    @property
    def poll_interval(self) -> PollInterval:
        """How often a waiting reader should poll for a new object."""

    @property
    def is_remote(self) -> bool:
        """Whether each operation is a network request, so that parallel operations are worth their
        threads.
        """

    @property
    def case_sensitive(self) -> bool:
        """Whether keys that differ only in case are different objects. False on case-folding file
        systems.
        """

    def get(self, key: str, size_max: int | None = None) -> bytes:
        """The whole object, if it has at most `size_max` bytes. ObjectMissing, ObjectTooLarge,
        StoreUnavailable, StoreRefused.
        """

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        """As `get`, for a small object that another client may be writing at this moment.

        Some servers delay such a read for much longer than the write takes; it is given up early
        and repeated.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes `[start, start+length)`, fewer at the object's end. ObjectMissing,
        StoreUnavailable, StoreRefused.
        """

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Create or replace the object, atomically and durably. StoreUnavailable (outcome unknown),
        StoreRefused.
        """

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        """Create the object only if the key is free, atomically and durably. One attempt; the store
        does not retry.

        `after` is the key of an object in the same folder that the new object follows. A store that
        can check this without a request creates nothing if that object is gone (ObjectMissing), so
        that a removed folder does not reappear. ObjectExists, ObjectMissing, StoreUnavailable
        (outcome unknown), StoreRefused.
        """

    def link(self, key: str, to: str) -> None:
        """Make the object `key` readable as `to` as well, atomically, unless `to` is taken.

        Not durable before a `sync` of the folder of `to`. Only stores that are not remote can.
        ObjectMissing (no `key`), ObjectExists, StoreUnavailable (outcome unknown), StoreRefused.
        """

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        """All objects under `prefix` with key > `start_after`, in key order. StoreUnavailable,
        StoreRefused.
        """

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        """A partial listing of a folder (empty, or ending in `/`) in one request; any object may be
        missing from it.

        For optimisations that stay correct when an object is missed. StoreUnavailable,
        StoreRefused.
        """

    def list_folders(self, prefix: str) -> builtins.list[str]:
        """Sorted names of the folders directly under `prefix` (empty, or ending in `/`) with an
        object somewhere below.

        StoreUnavailable, StoreRefused.
        """

    def delete(self, key: str) -> None:
        """Remove the object; no error if it does not exist. StoreUnavailable, StoreRefused."""

    def sync(self, folder: str) -> None:
        """Make the objects that are visible directly in `folder` (ending in `/`) durable, whichever
        process wrote them.

        On a file system an object becomes visible before it is durable. A reader that acts durably
        on such an object syncs the folder first. ObjectMissing (no such folder), StoreUnavailable,
        StoreRefused.
        """

    def remove_unfinished(self) -> Iterator[int]:
        """Remove unfinished files of interrupted writes that are a day old by the store's own
        clock, while iterated.

        Yields the number of files removed from each folder; nothing on stores where an interrupted
        write leaves nothing. StoreUnavailable, StoreRefused.
        """

    def watch(self) -> Watch:
        """A new watch without folders."""
