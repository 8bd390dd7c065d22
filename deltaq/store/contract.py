"""What deltaq needs from storage: a few operations on objects, each with every outcome named.

A store holds immutable-by-convention objects under keys (`topics/orders/_delta_log/00000000000000000007.json`).
Only `create` is relied on for safety: of all processes that create one key, at most one succeeds.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "CreateUnsupported",
    "ObjectEntry",
    "ObjectExists",
    "ObjectMissing",
    "PollInterval",
    "Store",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Watch",
]


class StoreError(Exception):
    """An operation did not succeed. `operation` and `key` say which; no message ever carries a secret."""

    def __init__(self, operation: str, key: str, reason: str) -> None:
        super().__init__(f"{operation} of {key!r}: {reason}")
        self.operation = operation
        self.key = key
        self.reason = reason


class ObjectMissing(StoreError):
    """`get`: there is no such object (now).

    `create`: the object that the new one was to follow is gone, and nothing was created.
    """


class ObjectExists(StoreError):
    """`create`: the store refused because the key is, or may be, taken.

    Not a proof that somebody else's object is there: a retry inside the network may have met our own write, and some
    stores answer so for two writes in flight of which neither succeeds. Read the key to find out.
    """


class StoreUnavailable(StoreError):
    """No usable answer. A read may be repeated; a write **may or may not have happened, or may still happen**."""


class StoreRefused(StoreError):
    """A definite no: nothing was changed, and repeating will not help until somebody acts.

    Credentials or permission missing, no such bucket, disk full, object too large, key not allowed.
    """


class CreateUnsupported(StoreRefused):
    """`create`: this store has no way of refusing a taken key, so it cannot hold deltaq's data. Use another store."""


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object of a listing: its key relative to the store's root, size in bytes, time of last change in epoch ms."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class PollInterval:
    """How to poll this store for a new object: seconds between two looks, when busy and when idle; and for how long
    after something was found one still counts as busy."""

    busy_s: float
    idle_s: float
    steady_s: float = 0.0


class Watch(Protocol):
    """Wakes a reader that waits for new objects. A hint only: correctness rests on looking again after `timeout_s`."""

    def add(self, prefix: str) -> None:
        """Watch for objects directly in the folder `prefix` (ending in `/`) too. It need not exist yet.

        What changes after `add` ends the next `wait`, also when it changes before that `wait` begins.
        """

    def wait(self, timeout_s: float) -> bool:
        """Block until something may have changed in a watched folder or `wake` was called; False if time is over."""

    def wake(self) -> None:
        """End a present or the next `wait`; callable from any thread."""

    def close(self) -> None:
        """Release what the watch holds. Idempotent."""


class Store(Protocol):
    """Objects under one root. Thread-safe.

    Keys are relative, `/`-separated, of printable ASCII without backslash, without empty, `.` or `..` parts
    (`deltaq/store/keys.py` has the whole grammar). Any other key is StoreRefused, before anything is touched.
    """

    @property
    def url(self) -> str:
        """The root as a URL without credentials, e.g. `file:///data/events`, `memory://test`, `s3://bucket/prefix`."""

    @property
    def pace(self) -> PollInterval:
        """How often a waiting reader should look for a new object."""

    @property
    def is_remote(self) -> bool:
        """Whether each operation waits for a network, so that several at once are worth their threads."""

    @property
    def case_sensitive(self) -> bool:
        """Whether keys that differ only in case are different objects. False on case-folding file systems."""

    def get(self, key: str) -> bytes:
        """The whole object. ObjectMissing, StoreUnavailable, StoreRefused."""

    def peek(self, key: str) -> bytes:
        """As `get`, of a small object that somebody may be writing at this moment.

        Some servers let a reader of such a key sleep for much longer than the write takes: who peeks asks again.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes `[start, start+length)`; fewer, or none, if the object ends before.

        ObjectMissing, StoreUnavailable, StoreRefused.
        """

    def put(self, key: str, data: bytes | memoryview, between: Callable[[], None] | None = None) -> None:
        """Create or replace the object, atomically and durably. StoreUnavailable (outcome unknown), StoreRefused.

        A store that writes a large object piece by piece calls `between` after each one, for a writer who is in no
        hurry and lets others go first. What that raises, which may be no OSError, passes; the object is as it was.
        """

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        """Create the object only if the key is free, atomically and durably; one attempt, never retried inside.

        `after` is the key of an object in the same folder that the new one follows. Where that costs no request, a
        store creates nothing if it is gone (ObjectMissing), so that a removed folder does not come back with one object
        in it. Other stores ignore it.

        ObjectExists, ObjectMissing, StoreUnavailable (outcome unknown), StoreRefused.
        """

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        """All objects whose key starts with `prefix` (recursively), in key order, with key > `start_after`.

        A missing folder is an empty listing. StoreUnavailable, StoreRefused.
        """

    def glance(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        """Some of what `list` has of a folder (empty, or ending in `/`), in one request; anything may be missing.

        For whoever gains by what it sees, and loses nothing by what it does not. StoreUnavailable, StoreRefused.
        """

    def list_folders(self, prefix: str) -> builtins.list[str]:
        """Names (last part only, sorted) of the folders directly under `prefix` (empty, or ending in `/`).

        Only folders with an object somewhere below count. StoreUnavailable, StoreRefused.
        """

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is fine. StoreUnavailable, StoreRefused."""

    def sync(self, folder: str) -> None:
        """Make durable what is to be seen directly in `folder` (ending in `/`), whichever process wrote it.

        On a file system an object is seen before the write that made it returns, and a power failure may take it back
        until then. A reader that does something durable because of such an object syncs its folder first. Nothing where
        objects are durable before they are seen. ObjectMissing (no such folder), StoreUnavailable, StoreRefused.
        """

    def remove_unfinished(self, between: Callable[[], object] = lambda: None) -> int:
        """Remove the unfinished files that interrupted writes have left under the root; how many.

        A file counts as left behind once it is a day old by the store's own clock. Maintenance calls this, as no
        listing shows such files. 0 where an interrupted write leaves nothing. `between` is called now and then, and
        what it raises passes. StoreUnavailable, StoreRefused.
        """

    def watch(self) -> Watch:
        """A new watch with no folders yet."""
