"""Groups of views as pages show them: how far each is, the rows of a view, and the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.console.messages import Shown
from deltaq.errors import InvalidConfig, KafkaException, Unavailable
from deltaq.store import Store
from deltaq.tools.duckdb_tables import topic_of
from deltaq.units import as_size, as_text
from deltaq.views.checking import mismatches_at
from deltaq.views.delta_tables import DeltaSource
from deltaq.views.listing import groups, lags
from deltaq.views.modes import mode_text
from deltaq.views.program import ViewProgram, key_text, view_topic
from deltaq.views.reading import ViewCut
from deltaq.views.ticks import Tick, last_tick

ROWS_MAX = 100
"""Rows of a view on one page."""

DIFFERENCES_MAX = 10
"""Rows that a view lacks, or has too much, on one page."""

STORED_BYTES_MAX = 128 * 1024 * 1024
"""Stored bytes of the topics that a page of views reads into memory."""

CELL_CHARS = 200
"""What is shown of a value in a row."""


@dataclass(frozen=True, slots=True)
class InputState:
    """How far a group is in an input: by partition the offset at which its cut ends, and how many
    records are behind it; None if the topic is gone.
    """

    topic: str
    ends: tuple[int, ...]
    lag: int | None


@dataclass(frozen=True, slots=True)
class ViewGroupState:
    """A group of views: its last tick, None before the first, and its inputs."""

    name: str
    tick: Tick | None
    inputs: Sequence[InputState]

    @property
    def lag(self) -> int | None:
        """Records in all inputs; None if it is not known."""
        return total([of.lag for of in self.inputs])


@dataclass(frozen=True, slots=True)
class ViewGroupSurvey:
    """The groups of views of a root. `errors` are those that cannot be read, by name."""

    groups: Sequence[ViewGroupState]
    errors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ShownRows:
    """Rows on a page, of `count` in all."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Shown]]
    count: int


@dataclass(frozen=True, slots=True)
class ShownMismatch:
    """A view that differs from its SQL: the rows that it lacks, and those that it has too much."""

    view: str
    missing: ShownRows
    wrong: ShownRows


@dataclass(frozen=True, slots=True)
class ShownView:
    """A view of a group: its topic, what tells its rows apart, the topics and views that it reads,
    and how the last tick has evaluated it.
    """

    name: str
    topic: str
    key: str
    reads: Sequence[str]
    mode: str
    sql: str


def total(counts: Sequence[int | None]) -> int | None:
    """The sum; None if one of them is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def survey(store: Store, clock: Clock) -> ViewGroupSurvey:
    """All groups of views. Raises Unavailable."""
    found, errors = [], {}
    for name in groups(store):
        try:
            found.append(state_of(store, clock, name, last_tick(store, name, clock)))
        except Unavailable:
            raise
        except KafkaException as error:
            errors[name] = error.error.str()
    return ViewGroupSurvey(found, errors)


def state_of(store: Store, clock: Clock, name: str, tick: Tick | None) -> ViewGroupState:
    """How far a group is with this tick. Raises Corrupt, Incompatible, Unavailable."""
    if tick is None:
        return ViewGroupState(name, None, ())
    inputs = [
        InputState(lag.topic, tick.inputs[lag.topic].ends, lag.records)
        for lag in lags(store, clock, tick)
    ]
    return ViewGroupState(name, tick, inputs)


def views_of(program: ViewProgram, tick: Tick) -> list[ShownView]:
    """The views of the program of a tick, each after those that it reads."""
    topics = {name: topic_of(name, tick.inputs) or name for name in program.inputs}
    return [
        ShownView(
            view.name,
            view_topic(program.group, view.name),
            key_text(view.key),
            [topics.get(name, name) for name in view.reads],
            mode_text(by_rules=view.name in tick.ruled),
            view.sql,
        )
        for view in program.views
    ]


def rows_of(cut: ViewCut, name: str, stored: int) -> ShownRows:
    """The first rows of a view, whose topic has so many bytes. Raises InvalidConfig for a view that
    the tick does not have, and for one that is too large, and what reading raises.
    """
    rows = cut[name]
    _check_size(f"view {name!r}", stored, "deltaq views read")
    return _shown(rows.to_arrow(), ROWS_MAX)


def tables_stored(cut: ViewCut) -> int:
    """The stored bytes of the Delta tables that a cut covers. Raises as `DeltaSource.at`."""
    return sum(
        DeltaSource(name, of.delta).at(of.ends[0] - 1).stored_bytes
        for name, of in cut.published.inputs.items()
        if of.delta
    )


def proof(cut: ViewCut, stored: int) -> list[ShownMismatch]:
    """The views that differ from their SQL at a cut; none if all are equal. The topics of the
    inputs and views have so many bytes. Raises InvalidConfig if they are too large, and what
    reading raises.
    """
    _check_size("the inputs and views", stored, "deltaq views check")
    return [
        ShownMismatch(
            of.view, _shown(of.missing, DIFFERENCES_MAX), _shown(of.wrong, DIFFERENCES_MAX)
        )
        for of in mismatches_at(cut)
    ]


def _check_size(what: str, stored: int, command: str) -> None:
    if stored > STORED_BYTES_MAX:
        limit = as_size(STORED_BYTES_MAX)
        reason = f"{what}: {as_size(stored)} are stored, and a page reads {limit} at most"
        raise InvalidConfig(f"{reason}: use {command}", key="view")


def _shown(rows: pa.Table, count: int) -> ShownRows:
    found = rows.slice(0, count).to_pylist()
    return ShownRows(
        rows.column_names,
        [[_cell(value) for value in row.values()] for row in found],
        rows.num_rows,
    )


def _cell(value: object) -> Shown:
    if value is None:
        return Shown("", "null")
    text = as_text(value)
    return Shown(text[:CELL_CHARS], "text", len(text.encode()), len(text) <= CELL_CHARS)
