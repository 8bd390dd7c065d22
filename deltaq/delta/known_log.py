"""What a process knows of one log: the newest state that any of its positions has read, as a value,
and the turn of its writers.

Several positions of a process follow one log: consumers, the sender, maintenance, a group's
members. Each works with a value that is never changed, publishes what it has read, and takes over
what is newer. So a process reads each entry once, and a position that waits for the store keeps no
other one from reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock, after_fork
from deltaq.delta.actions import Entry
from deltaq.delta.table_state import TableState
from deltaq.store import Store

V = TypeVar("V")
K = TypeVar("K", bound="KnownLog[Any]")


@dataclass(slots=True)
class LogState(Generic[V]):
    """A log at one version: its table, and the `view` that is folded from its entries. A value."""

    table: TableState
    view: V


@dataclass(slots=True)
class KnownState(Generic[V]):
    """A state with what was verified of it. `proven_at`: the latest time (`Clock.uptime`) at which
    clean-up had certainly not freed the slot after it. `is_end_open`: it may be a gap in the log
    instead of its end.
    """

    state: LogState[V]
    proven_at: float
    is_end_open: bool


class Fold(Protocol[V]):
    """Makes a typed view of a log, entry by entry."""

    def restored(self, table: TableState) -> V:
        """The view of a table without entries, or as a checkpoint describes it. Raises Corrupt."""

    def following(self, state: LogState[V], entry: Entry, path: str) -> V:
        """The view after the next entry, read from `path`. Raises Corrupt to refuse the entry."""

    def may_skip_to(self, view: V) -> bool:
        """Whether a position may take over `view` without reading the entries before it itself."""


class NoView:
    """The fold of a log of which only the table matters."""

    def restored(self, table: TableState) -> None: ...

    def following(self, state: LogState[None], entry: Entry, path: str) -> None: ...

    def may_skip_to(self, view: None) -> bool:  # noqa: ARG002 - as in `Fold`
        return True


class KnownLog(Generic[V]):
    """The newest state of a log that a position of this process has read; None before the first.

    `newest` is replaced, never changed, and is read and set without a lock. `life` counts how often
    the log was found removed or replaced. A writer that may race with another one of the process
    commits inside `with turn`. `turn` is the lock itself: a context manager written in Python would
    leave it locked if a signal handler raised between the lock and the block.
    """

    def __init__(self, clock: Clock, fold: Fold[V]) -> None:
        self.fold = fold
        self.newest: KnownState[V] | None = None
        self.turn = clock.lock()
        self.life = 0

    def was_replaced(self) -> None:
        """The folder was removed or replaced. What positions have read before does not count any
        more, and each of them loads the log that is there now.
        """
        self.life += 1
        self.newest = None


class KnownLogs:
    """Known logs by store, folder and clock, referenced weakly. Thread-safe.

    The holders of a log keep its store and clock alive, so their `id` is not reused while it
    exists.
    """

    def __init__(self) -> None:
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        """A forked child starts without: a thread of its parent may have been in its turn."""
        self._lock = SYSTEM_CLOCK.lock()
        self._logs: WeakValueDictionary[tuple[int, str, int], KnownLog[Any]] = WeakValueDictionary()

    def get(self, store: Store, folder: str, clock: Clock, new: Callable[[], K]) -> K:
        """The known log of a table in this process; `new()` if there is none. All who ask for a
        folder must make the same kind of log.
        """
        key = id(store), folder, id(clock)
        with self._lock:
            found = self._logs.get(key)
            if found is None:
                found = self._logs[key] = new()
            return cast("K", found)


KNOWN_LOGS = KnownLogs()
