"""Checkpoints of a group of views: the state of its rules at a tick, as objects beside the ticks.

A new runner takes the last one, adds what lies between its tick and the last one, and goes on. Runs
never change, so a checkpoint uploads only those that are new. One object names all others, and is
replaced when they are there; what it does not name is removed.

A checkpoint saves time only: without one that can be used, a runner makes the state anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.store_errors import raising_unavailable
from deltaq.serde.json_text import compact_json, strict_json
from deltaq.store import ObjectMissing, ObjectTooLarge, Store
from deltaq.views.incremental import SavedView, StoredView
from deltaq.views.modes import FullCost
from deltaq.views.program import ticks_topic
from deltaq.views.runs import SortedRun
from deltaq.views.state import StoredRows
from deltaq.views.ticks import Tick, last_tick, tick_at

_log = logging.getLogger("deltaq.views")

CHECKPOINT_S = 60.0
"""Seconds between two checkpoints."""

_FORMAT = 1

_ARROW = ".arrow"

_LIST_BYTES_MAX = 16 * 1024 * 1024
"""A larger object names no checkpoint. A table of state takes some 100 bytes in it, and each of its
runs 40.
"""


class RowsMissing(Exception):
    """An object of a checkpoint is not there any more, or is damaged."""


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """The state of rules after `tick`, by view; and what a full evaluation costs."""

    tick: int
    views: Mapping[str, StoredView]
    cost: FullCost = field(default_factory=FullCost)

    @property
    def runs(self) -> frozenset[str]:
        """The objects of its runs."""
        tables = (of for view in self.views.values() for of in view.tables.values())
        return frozenset(name for of in tables for name in of.runs)

    @property
    def objects(self) -> frozenset[str]:
        """All of its objects."""
        tables = (of for view in self.views.values() for of in view.tables.values())
        return self.runs | {of.recent for of in tables}

    def value(self) -> bytes:
        """The object that names all others, JSON."""
        views = {
            name: {
                "rules": view.rules,
                "tables": {
                    table: {"runs": of.runs, "recent": of.recent}
                    for table, of in view.tables.items()
                },
            }
            for name, view in self.views.items()
        }
        cost = {"seconds": self.cost.seconds, "rows": self.cost.rows}
        said = {"format": _FORMAT, "tick": self.tick, "views": views, "full": cost}
        return compact_json(said).encode()


def checkpoint_of(value: bytes) -> StateCheckpoint:
    """The checkpoint of such an object. Raises ValueError, KeyError, TypeError, AttributeError."""
    body: Any = strict_json(value.decode())
    if body["format"] != _FORMAT:
        raise ValueError(f"format {body['format']!r:.40} is not {_FORMAT}")
    views = {
        str(name): StoredView(
            str(view["rules"]),
            {
                str(table): StoredRows(tuple(map(str, of["runs"])), str(of["recent"]))
                for table, of in view["tables"].items()
            },
        )
        for name, view in body["views"].items()
    }
    return StateCheckpoint(int(body["tick"]), views, _cost_of(body.get("full", {})))


def _cost_of(said: Mapping[str, Any]) -> FullCost:
    """What an earlier version has not written is not known."""
    seconds = {
        str(name): (float(took), int(rows))
        for name, (took, rows) in said.get("seconds", {}).items()
    }
    return FullCost(seconds, {str(name): int(rows) for name, rows in said.get("rows", {}).items()})


@dataclass(eq=False)
class CheckpointList:
    """The object of a group that names all others of its last checkpoint, for one runner, in a
    folder below the topic of the ticks. Not thread-safe.
    """

    _store: Store
    _clock: Clock
    _group: str
    inner: str = ""

    def __post_init__(self) -> None:
        state = names.view_state_folder(names.topic_folder(ticks_topic(self._group)))
        self.folder = f"{state}{self.inner}"
        self._key = f"{self.folder}checkpoint.json"

    def put(self, checkpoint: StateCheckpoint) -> None:
        """Name these objects, which are all there. Raises Unavailable."""
        with raising_unavailable():
            self._store.put(self._key, checkpoint.value())

    def remove_others(self, checkpoint: StateCheckpoint, is_kept: Callable[[str], bool]) -> None:
        """Remove objects that the checkpoint does not name: those in the folder that are not to be
        kept. A runner that another one has replaced removes nothing: they may be those of the
        other. Raises Corrupt, Incompatible, Unavailable.
        """
        last = last_tick(self._store, self._group, self._clock)
        if last is None or last.number != checkpoint.tick:
            return
        with raising_unavailable():
            for entry in self._store.list(self.folder):
                if entry.key != self._key and not is_kept(entry.key.removeprefix(self.folder)):
                    self._store.delete(entry.key)

    def last(self, tick: Tick) -> tuple[Tick, StateCheckpoint] | None:
        """The last checkpoint, and the tick that it is of, if a runner can go on from it to `tick`.
        Raises Corrupt, Incompatible, Unavailable.
        """
        with raising_unavailable():
            try:
                found = checkpoint_of(self._store.get(self._key, _LIST_BYTES_MAX))
            except ObjectMissing:
                return None
            except (ObjectTooLarge, ValueError, KeyError, TypeError, AttributeError) as error:
                _log.warning("the checkpoint of %r is not used: %s", self._group, error)
                return None
        if found.tick > tick.number:
            return None
        at = tick_at(self._store, self._group, self._clock, found.tick)
        return None if at is None or at.program != tick.program else (at, found)


class Checkpoints:
    """The checkpoints of a group whose views are in DuckDB, for one runner. Not thread-safe."""

    def __init__(self, store: Store, clock: Clock, group: str) -> None:
        self._store = store
        self._clock = clock
        self._list = CheckpointList(store, clock, group)
        self._runs: frozenset[str] = frozenset()  # those that are stored
        self._tick = 0
        self._written_at = clock.monotonic()

    # --- writing ---

    def is_due(self) -> bool:
        """Whether it is time for one."""
        return self._clock.monotonic() - self._written_at >= CHECKPOINT_S

    def save(self, tick: Tick, views: Mapping[str, SavedView], cost: FullCost) -> None:
        """Write the state after a tick. Raises Unavailable."""
        self._written_at = self._clock.monotonic()
        if not views or tick.number == self._tick:
            return
        with raising_unavailable():
            stored = {name: self._stored(view) for name, view in views.items()}
        checkpoint = StateCheckpoint(tick.number, stored, cost)
        self._list.put(checkpoint)
        self._tick, self._runs = tick.number, checkpoint.runs
        kept = {f"{name}{_ARROW}" for name in checkpoint.objects}
        self._list.remove_others(checkpoint, lambda name: name in kept or "/" in name)

    def _stored(self, view: SavedView) -> StoredView:
        tables = {
            name: StoredRows(
                tuple(map(self._stored_run, of.runs)),
                self._put(self._clock.unique_id(), of.recent.to_batches()),
            )
            for name, of in view.tables.items()
        }
        return StoredView(view.rules, tables)

    def _stored_run(self, run: SortedRun) -> str:
        """The object of a run, which may be there from an earlier checkpoint."""
        return run.name if run.name in self._runs else self._put(run.name, run.batches())

    def _put(self, name: str, batches: Iterable[pa.RecordBatch]) -> str:
        """Write rows as an object; its name, "" without any."""
        sink, writer = pa.BufferOutputStream(), None
        for batch in batches:
            if writer is None:
                options = pa.ipc.IpcWriteOptions(compression="zstd")
                writer = pa.ipc.new_stream(sink, batch.schema, options=options)
            writer.write_batch(batch)
        if writer is None:
            return ""
        writer.close()
        self._store.put(self._key(name), memoryview(sink.getvalue()))
        return name

    # --- reading ---

    def last(self, tick: Tick) -> tuple[Tick, StateCheckpoint] | None:
        """See `CheckpointList.last`."""
        found = self._list.last(tick)
        if found is not None:
            _, checkpoint = found
            self._tick, self._runs = checkpoint.tick, checkpoint.runs
        return found

    def rows(self, name: str) -> pa.Table | None:
        """The rows of an object; None for "". Raises RowsMissing, Unavailable."""
        if not name:
            return None
        with raising_unavailable():
            try:
                return pa.ipc.open_stream(self._store.get(self._key(name))).read_all()
            except (ObjectMissing, pa.ArrowInvalid) as error:
                raise RowsMissing(str(error)) from error

    def _key(self, name: str) -> str:
        return f"{self._list.folder}{name}{_ARROW}"
