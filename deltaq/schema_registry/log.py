"""The registry's log. A registration is one entry: its id, its version and what it was compared
with are decided at once, by the commit loop of `deltaq/delta/log.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.actions import Action, CommitInfo, Metadata
from deltaq.delta.log import Abandoned, DeltaLog, Draft
from deltaq.delta.table_state import PROTOCOL, TableState
from deltaq.schema_registry.changes import Change
from deltaq.schema_registry.state import Registry, RegistryHead, registry_of
from deltaq.store import Store
from deltaq.topics.log import ENGINE

T = TypeVar("T")
Plan = Callable[[Registry], Change[T]]

_log = logging.getLogger("deltaq.schema_registry")

_CHECKPOINT_INTERVAL = 100

# A Delta table must have a column, though the registry never has a row.
_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "subject", "type": "string", "nullable": True, "metadata": {}}],
    }
)


_is_io_refused: ContextVar[bool] = ContextVar("is_io_refused", default=False)


class NeedsStore(Exception):
    """The registry has to be read or changed, inside `without_io`."""


@contextmanager
def without_io() -> Iterator[None]:
    """Refuse reads and changes of registries in this context, by NeedsStore: what was read before
    is enough, or the call has to be made where it may block.
    """
    token = _is_io_refused.set(True)
    try:
        yield
    finally:
        _is_io_refused.reset(token)


def _check_io() -> None:
    if _is_io_refused.get():
        raise NeedsStore


class RegistryLog:
    """A client of the registry's log. Thread-safe: every method runs under one lock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._clock = clock
        self._folder = names.SCHEMAS_FOLDER
        self._log = DeltaLog(store, self._folder, clock)
        self._lock = clock.lock()
        self._seen: tuple[int, Registry] = (-1, Registry())

    def read(self) -> Registry:
        """The newest registry. Raises Corrupt, Incompatible, Unavailable."""
        _check_io()
        with self._lock:
            self._log.catch_up()
            return self._registry(self._log.state)

    def last_read(self) -> Registry:
        """The registry as last read. Does no I/O and takes no lock."""
        return self._seen[1]

    def change(self, operation: str, plan: Plan[T], timeout_s: float) -> T:
        """Commit what `plan` returns for the newest registry, within `timeout_s` seconds; nothing
        if it has no actions.

        `plan` runs again after each lost race, so what it decided always holds for the entry before
        its own. Raises what `plan` raises, and OutcomeUnknown, Unavailable, Corrupt, Incompatible.
        """
        _check_io()
        deadline = self._clock.monotonic() + timeout_s
        txn_id = self._clock.unique_id()
        results: list[T] = []

        def write(state: TableState) -> Draft | Abandoned[None]:
            change = plan(self._registry(state))
            results[:] = [change.result]
            if not change.actions:
                return Abandoned(None)
            now = self._clock.time_ms()
            info = CommitInfo(txn_id, now, operation, "", ENGINE, is_blind_append=False)
            return Draft(info, [*_table(state, now, change), *change.actions])

        with self._lock:
            self._log.catch_up()
            committed = self._log.commit(write, deadline)
            if committed is not None:
                self._checkpoint(committed.entry.version)
        return results[0]

    def _registry(self, state: TableState) -> Registry:
        version, registry = self._seen
        if version != state.version:
            registry = registry_of(state, self._folder)
            self._seen = state.version, registry
        return registry

    def _checkpoint(self, version: int) -> None:
        """Write a checkpoint from time to time, so that a registry of many schemas is loaded with
        few requests.
        """
        if version % _CHECKPOINT_INTERVAL or not version or self._log.state.version != version:
            return
        from deltaq.maintenance.checkpoint import CheckpointFailed, write_checkpoint  # noqa: PLC0415 - seldom needed

        try:
            write_checkpoint(self._log.store, self._folder + names.LOG_FOLDER, self._log.state)
        except Exception as error:  # noqa: BLE001 - the registration succeeded, and the log can be read without it
            reason = error if isinstance(error, CheckpointFailed) else type(error).__name__
            _log.warning("no checkpoint of the schema registry at version %d: %s", version, reason)


def _table(state: TableState, now_ms: int, change: Change[T]) -> list[Action]:
    """The protocol, metadata and head of a log's first entry; none for a log that exists."""
    if state.version >= 0:
        return []
    head = RegistryHead().action()
    has_head = any(action.domain == head.domain for action in change.actions)
    first: list[Action] = [PROTOCOL, Metadata("schemas", _SCHEMA, {}, now_ms, name="schemas")]
    return first if has_head else [*first, head]
