"""Views in DuckDB: the inputs at a cut as tables, the views made from them in full or kept by
rules, and what has changed in each since the last tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.tools.duckdb_tables import (
    Connection,
    casts,
    connected,
    create,
    described,
    fetched,
    filled,
    naming,
    number_of,
    parsed,
    quoted,
    registered,
    sources,
    tables_read,
)
from deltaq.views.compared_types import check_compared
from deltaq.views.functions import Failures, named_failure, register
from deltaq.views.incremental import (
    FLOATS,
    NOW,
    RECORD_KEY,
    Read,
    RuledView,
    RuledViews,
    SavedView,
    StoredView,
    now,
)
from deltaq.views.modes import FullCost, Mode, ViewMode, are_outgrown
from deltaq.views.plain_floats import plain_table
from deltaq.views.program import EXTRA, KEY, WEIGHT, View, ViewProgram
from deltaq.views.rules import NoRule
from deltaq.views.runs import RunFolder
from deltaq.views.tick_clock import CLOCK, create_clock, set_clock, shown_s
from deltaq.views.view_columns import check_columns, check_stored, has_floats, stored_types

_log = logging.getLogger("deltaq.views")

_BEFORE = "before"
"""The schema of DuckDB with what views in full had at the last tick."""

DELETED = "_deleted"
"""A column of records that are added, and of no input: which of them are tombstones. Without it,
those are whose own columns are all null.
"""


@dataclass(frozen=True, slots=True)
class ViewChanges:
    """What has changed in a view: `come` are its new rows and `gone` the old ones, in the columns
    of its topic, with floats in one form. Both have `_key` if the view has a row key, and `weight`
    if not.
    """

    come: pa.Table
    gone: pa.Table


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Where an engine keeps what does not fit into memory: `memory` as DuckDB takes it, such as
    "4GB", and a folder. None: what DuckDB and the system choose.
    """

    memory: str | None = None
    folder: Path | None = None

    def set(self, connection: Connection) -> None:
        """Have DuckDB keep them. Raises InvalidConfig."""
        if self.memory is not None:
            with naming(f"memory={self.memory!r}", "memory"):
                connection.execute("set memory_limit = $1", [self.memory])
        if self.folder is not None:
            connection.execute("set temp_directory = $1", [str(self.folder)])


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine works with: a connection, a folder for state, and what functions raise."""

    connection: Connection
    runs: RunFolder
    clock: Clock
    failures: Failures


@contextmanager
def engine_parts(
    program: ViewProgram, limits: StateLimits | None, clock: Clock
) -> Iterator[EngineParts]:
    """Those of a new engine for a program. Raises InvalidConfig without DuckDB, and for limits that
    it refuses.
    """
    limits = limits or StateLimits()
    # With one thread sums of floats have one order, and small ticks are quicker.
    with connected(EXTRA, threads=1) as connection, RunFolder(clock, limits.folder) as runs:
        limits.set(connection)
        # Times without a zone are those of UTC.
        connection.execute("set TimeZone = 'UTC'")
        connection.execute(f"create schema {NOW}; create schema {_BEFORE}; set schema = '{NOW}'")
        yield EngineParts(connection, runs, clock, register(connection, program.functions))


@contextmanager
def engine(
    program: ViewProgram,
    modes: Mapping[str, Mode] | None = None,
    *,
    keeps_inputs: bool = True,
    limits: StateLimits | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[ViewEngine]:
    """An engine for a program, with empty inputs. `modes` are those of the views, `full` without.
    `keeps_inputs`: records will be removed from inputs. Raises as `engine_parts`.
    """
    with engine_parts(program, limits, clock) as parts:
        yield ViewEngine(parts, program, modes or {}, keeps_inputs=keeps_inputs)


class ViewEngine:
    """The tables of a program. Not thread-safe.

    Inputs are added to, then `evaluate` makes the views from them, in full or by rules; `changes`
    compares with what `accept` has accepted, or `restore` was given. After an error it is of no
    more use. What DuckDB refuses is InvalidConfig. `is_outgrown`: a new engine, which begins in
    full, will be quicker.
    """

    def __init__(
        self,
        parts: EngineParts,
        program: ViewProgram,
        modes: Mapping[str, Mode],
        *,
        keeps_inputs: bool,
    ) -> None:
        self._connection = connection = parts.connection
        self._failures = parts.failures
        self._program = program
        self._clock = parts.clock
        self.modes = {view.name: ViewMode(modes.get(view.name, "full")) for view in program.views}
        self._types: dict[str, dict[str, str]] = {}
        self._stored: dict[str, dict[str, str]] = {}
        self._keyed: set[str] = set()
        self._always = set(program.inputs) if keeps_inputs else set[str]()
        self._rules = RuledViews(connection, program, self._types, self._keyed, parts.runs)
        self._spent = dict.fromkeys(self.modes, 0.0)
        self._rows: dict[str, int] = {}
        self._time_s: int | None = None
        self.is_outgrown = False
        if program.reads_clock:
            create_clock(connection, now(CLOCK))
            self._types[CLOCK] = described(connection, now(CLOCK))
            self._always.add(CLOCK)

    # --- inputs ---

    def create_input(
        self, name: str, columns: pa.Schema, *, is_keyed: bool, is_replaced: bool = False
    ) -> None:
        """An input with these columns, without rows. Of a keyed input, the newest record of each
        key in its partition counts, and none if that is a tombstone. `is_replaced`: for
        `replace_rows`.
        """
        own = pa.schema([column for column in columns if column.name != DELETED])
        create(self._connection, now(name), own, [])
        self._types[name] = described(self._connection, now(name))
        self._rows[name] = 0
        if is_keyed:
            self._keyed.add(name)
        if is_replaced:
            self._always.add(name)

    def add_rows(self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Add records to an input, behind those that it has."""
        if self._rules.is_hidden(name) and not self._rules.is_noting:
            return  # they are in the state
        if name in self._keyed:
            self._replace(name, columns, batches)
            return
        own = ", ".join(map(quoted, self._types[name]))
        for source in sources(self._connection, columns, batches):
            added = self._rules.note(name, f"select {own}, 1 from {source}")
            if not self._rules.is_hidden(name):
                insert = f"insert into {now(name)} select {own} from {source}"
                added = number_of(self._connection, insert)
            self._rows[name] += added

    def _replace(self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Put records in the place of those with the same keys in the same partitions."""
        create(self._connection, "_added", columns, batches, kind="temp table")
        own = ", ".join(map(quoted, self._types[name]))
        newest = (
            f"select {own} from (select * from temp._added qualify row_number() over (partition by "
            f"{RECORD_KEY} order by _offset desc) = 1) where {is_there(columns)}"
        )
        if self._rules.is_hidden(name):
            self._rules.replace_newest(name, "temp._added", newest)
        else:
            same = f"({RECORD_KEY}) in (select {RECORD_KEY} from temp._added)"
            touched = f"from {now(name)} where {same}"
            self._rules.note(name, f"select *, -1 {touched}")
            self._rows[name] -= number_of(self._connection, f"delete {touched}")
            self._rows[name] += number_of(self._connection, f"insert into {now(name)} {newest}")
            self._rules.note(name, f"select *, 1 {touched}")
        self._connection.execute("drop table temp._added")

    def replace_rows(
        self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> None:
        """Take these rows for all that an input has."""
        create(self._connection, "_added", columns, batches, kind="temp table")
        own = ", ".join(map(quoted, self._types[name]))
        both = f"select {own}, 1 as _w from temp._added union all select {own}, -1 from {now(name)}"
        changed = f"select {own}, sum(_w)::bigint from ({both}) group by all having sum(_w) <> 0"
        self._rules.note(name, changed)
        self._rows[name] = filled(self._connection, now(name), f"select {own} from temp._added")
        self._connection.execute("drop table temp._added")

    def remove_before(self, name: str, starts: Sequence[int]) -> None:
        """Remove the records before these offsets, by partition, from an input."""
        for partition, start in enumerate(starts):
            gone = f"from {now(name)} where _partition = {partition} and _offset < {start}"
            self._rules.note(name, f"select *, -1 {gone}")
            self._rows[name] -= number_of(self._connection, f"delete {gone}")

    def set_time(self, time_ms: int) -> None:
        """Have the clock show the time of a tick, in milliseconds since 1970."""
        time_s = shown_s(time_ms)
        if self._program.reads_clock and time_s != self._time_s:
            self._rules.note(CLOCK, f"select *, -1 from {now(CLOCK)}")
            set_clock(self._connection, now(CLOCK), time_s)
            self._rules.note(CLOCK, f"select *, 1 from {now(CLOCK)}")
            self._time_s = time_s

    # --- views ---

    def evaluate(self, *, kind: Literal["table", "view"] = "table") -> None:
        """Make all views from the inputs: as tables, or so that DuckDB makes each one anew for each
        that reads it.
        """
        for view in self._program.views:
            with self._about(view):
                if self._rules.get(view.name) is None:
                    self._evaluate_in_full(view, kind)
                else:
                    self._rules.evaluate(view.name)

    def _evaluate_in_full(self, view: View, kind: str) -> None:
        self._connection.execute(f"create or replace {kind} {now(view.name)} as {view.sql}")
        if view.name not in self._types:
            self._types[view.name] = types = described(self._connection, now(view.name))
            self._stored[view.name] = stored_types(types)
            self._check(view)
        if self._rules.is_tracked(view.name):
            own = casts(self._types[view.name])
            self._rules.replace(view.name, f"select {own}, _w from ({self._compared(view)})")

    def _check(self, view: View) -> None:
        readable = {column.lower() for read in view.reads for column in self._types[read]}
        check_columns(view, self._types[view.name], readable)
        check_stored(view.name, self._stored_columns(view.name))
        check_compared(self._connection, self._program, view)

    def columns(self, view: str) -> pa.Schema:
        """The columns of a view in its topic, without `tick` and `weight`. After `evaluate`."""
        return self._stored_columns(view)

    def _stored_columns(self, view: str) -> pa.Schema:
        own = casts(self._stored[view])
        with naming(f"view {view!r}", view):
            return self._table(f"select {own} from {now(view)} limit 0").schema

    def restore(self, view: str, rows: pa.Table) -> None:
        """Take these rows for what a view had at the last tick. After the first `evaluate`.

        A column that they lack was null: the view has it since an input has, and the tick was
        before.
        """
        there = {*rows.column_names}
        columns = ((name, quoted(name)) for name in self._stored[view])
        names = ", ".join(own if name in there else f"null as {own}" for name, own in columns)
        with registered(self._connection, rows) as source:
            self._connection.execute(
                f"create or replace table {before(view)} as "
                f"select {casts(self._stored[view])} from (select {names} from {source})"
            )

    def changes(self, view: View) -> ViewChanges:
        """What has changed in a view since the last tick. Raises InvalidValue if its key does not
        tell its rows apart.
        """
        with self._about(view):
            if view.key is not None:
                self._check_key(view)
            return self._changes_in(view, self._changed(view))

    def _changes_in(self, view: View, query: str) -> ViewChanges:
        """The changes that a query has, with weights in `_w`."""
        key = ""
        if view.key is not None:
            parts = ", ".join(self._key_part(view.name, name) for name in view.key)
            key = f", encode(json_array({parts})::varchar) as {KEY}"
        rows = plain_table(self._table(f"select *{key} from ({query})"))
        weights = rows.column("_w")
        rows = rows.drop_columns("_w")
        if view.key is None:
            rows = rows.append_column(WEIGHT, pc.abs(weights))
        return ViewChanges(rows.filter(pc.greater(weights, 0)), rows.filter(pc.less(weights, 0)))

    def _key_part(self, view: str, column: str) -> str:
        """A column of a row key, in one form for equal values: -0.0 equals 0.0."""
        kind = self._column_type(self._stored, view, column)
        return f"{quoted(column)} + 0" if kind in FLOATS else quoted(column)

    @staticmethod
    def _column_type(types: Mapping[str, Mapping[str, str]], view: str, column: str) -> str:
        (kind,) = (of for name, of in types[view].items() if name.lower() == column.lower())
        return kind

    def _changed(self, view: View) -> str:
        """The changes of a view in the types of its topic, one row for each distinct one."""
        if self._rules.get(view.name) is None and not self._rules.is_tracked(view.name):
            return self._compared(view)
        own = casts(self._stored[view.name])
        query = f"select {own}, sum(_w)::bigint as _w from {self._rules.changes(view.name)}"
        return f"{query} group by all having sum(_w) <> 0"

    def _compared(self, view: View) -> str:
        """The changes of a view in full, in the types of its topic, one row for each distinct
        one.
        """
        own = casts(self._stored[view.name])
        both = (
            f"select {own}, 1 as _w from {now(view.name)} "
            f"union all select *, -1 from {before(view.name)}"
        )
        head = "select * exclude (_w), sum(_w)::bigint as _w"
        return f"{head} from ({both}) group by all having sum(_w) <> 0"

    def differences(self, view: View) -> tuple[pa.Table, pa.Table]:
        """The rows that a view in full has now and had not, and those that it had."""
        each = f"select _z.* exclude (_w) from ({self._compared(view)}) as _z, range(abs(_z._w))"
        with self._about(view):
            return self._table(f"{each} where _w > 0"), self._table(f"{each} where _w < 0")

    def _check_key(self, view: View) -> None:
        query = of_same_key(view, self._rules.get(view.name))
        twice = None if query is None else self._table(query)
        if twice is not None and twice.num_rows:
            raise same_key(view, twice.to_pylist()[0].values())

    def rules(self, view: str) -> tuple[tuple[str, str], ...]:
        """The rules that keep a view, each with what it is about; none if it is made in full."""
        ruled = self._rules.get(view)
        return () if ruled is None else ruled.plan.described()

    def by_rules(self) -> dict[str, bool]:
        """Of each view, whether it is evaluated by rules."""
        return {name: mode.by_rules for name, mode in self.modes.items()}

    def state_rows(self) -> dict[str, int]:
        """By view the rows that its rules keep."""
        found = {name: self._rules.get(name) for name in self.modes}
        return {name: 0 if ruled is None else ruled.state_rows for name, ruled in found.items()}

    # --- checkpoints ---

    def saved(self) -> dict[str, SavedView]:
        """The state of the views that stay with their rules."""
        return self._rules.saved({name for name, mode in self.modes.items() if mode.stays_by_rules})

    def full_cost(self) -> FullCost:
        """What a full evaluation costs, as far as that is known."""
        costs = {name: mode.full_cost for name, mode in self.modes.items()}
        return FullCost(costs, {name: self._rows_of(name) for name in self._rows})

    def _rows_of(self, name: str) -> int:
        newest = self._rules.newest_rows(name)
        return self._rows[name] if newest is None else newest

    def resume(
        self,
        views: Mapping[str, StoredView],
        cost: FullCost,
        read: Read,
        fill: Callable[[], None],
    ) -> bool:
        """Go on from a state, in an engine whose inputs have no rows. `fill` adds to the
        inputs what they had when the state was saved; of those that only rules read nothing is
        kept. False if the state is of no use, and the engine is not either. Raises what `read` and
        `fill` raise.
        """
        for view in self._program.views:
            with self._about(view):
                self._evaluate_in_full(view, "table")
                self._keep(view)
            # Evaluated anew, it may differ in the last digits of floats from what was published.
            if view.name not in views and has_floats(self._types[view.name].values()):
                return False
        for view in self._program.views:
            if view.name in views and self.modes[view.name].may_resume:
                self._begin_rules(view)
                self.modes[view.name].resume(cost.seconds.get(view.name, (0.0, 0)))
        self._hide_unneeded()
        if not self._rules.restore(views, read):
            return False
        self._rows = {
            name: cost.rows.get(name, 0) if self._rules.is_hidden(name) else 0
            for name in self._rows
        }
        self._rules.is_noting = False
        fill()
        self._rules.is_noting = True
        for view in self._program.views:
            if not self.modes[view.name].by_rules:
                with self._about(view):
                    self._evaluate_in_full(view, "table")
                    self._keep(view)
        return True

    def accept(self) -> None:
        """Take what the views have now for what they had at the last tick, and choose how each of
        them is evaluated in the next.
        """
        for view in self._program.views:
            with self._about(view):
                ruled = self._rules.get(view.name)
                if ruled is None:
                    self._keep(view)
                else:
                    ruled.accept(self._rules.live)
        self._rules.accepted()
        rows = sum(map(self._rows_of, self._rows))
        for name, mode in self.modes.items():
            mode.spent(self._spent[name], rows)
            self._spent[name] = 0.0
        self.is_outgrown = are_outgrown(self.modes.values(), rows)
        self._choose()

    def _keep(self, view: View) -> None:
        self._connection.execute(
            f"create or replace table {before(view.name)} as "
            f"select {casts(self._stored[view.name])} from {now(view.name)}"
        )

    @contextmanager
    def _about(self, view: View) -> Iterator[None]:
        """The time of a view, which errors name."""
        what = f"view {view.name!r}"
        with (
            named_failure(self._failures, f"{what}: ", view.name),
            self._timed(view),
            naming(what, view.name),
        ):
            yield

    @contextmanager
    def _timed(self, view: View) -> Iterator[None]:
        begun = self._clock.monotonic()
        yield
        self._spent[view.name] += self._clock.monotonic() - begun

    def _choose(self) -> None:
        """Begin and end rules, and forget what nothing reads any more."""
        for view in self._program.views:
            mode = self.modes[view.name]
            is_due = mode.decided()
            if is_due and not mode.by_rules:
                self._begin_rules(view)
            elif mode.by_rules and not is_due:
                self._end_rules(view)
        self._hide_unneeded()

    def _hide_unneeded(self) -> None:
        needed = {
            name
            for view in self._program.views
            if not self.modes[view.name].stays_by_rules
            for name in view.reads
        }
        self._rules.keep(needed | self._always)

    def _begin_rules(self, view: View) -> None:
        mode = self.modes[view.name]
        try:
            with naming("", view.name):
                self._rules.begin(view)
        except NoRule as error:
            mode.refused = str(error)
        except InvalidConfig as error:
            mode.refused = f"its rules fail{error.error.str()}"
        if mode.refused:
            _log.info("view %r is evaluated in full: %s", view.name, mode.refused)
            return
        mode.by_rules = True
        self._connection.execute(f"drop table {before(view.name)}")

    def _end_rules(self, view: View) -> None:
        published = f"select {casts(self._stored[view.name])} from ({self._rules.rows(view.name)})"
        self._connection.execute(f"create table {before(view.name)} as {published}")
        self._rules.end(view)
        self._connection.execute(f"create table {now(view.name)} as {view.sql}")
        if self._rules.is_read(view.name):
            self._rules.track(view.name)
        self.modes[view.name].by_rules = False

    def create_view_of(self, name: str, rows: pa.Table) -> None:
        """Take these rows for a view, in place of its SQL."""
        create(self._connection, now(name), rows.schema, rows.to_batches())

    def tables_of(self, sql: str) -> set[str]:
        """The tables that a query names. Raises as `query`."""
        return {name for _, name in tables_read(parsed(self._connection, sql))}

    def query(self, sql: str) -> pa.Table:
        """The result of a query over the inputs and views. Raises InvalidConfig for a statement
        that is none.
        """
        parsed(self._connection, sql)
        with named_failure(self._failures, "", "sql"), naming("query", "sql"):
            return self._table(sql)

    def _table(self, sql: str) -> pa.Table:
        return fetched(self._connection, sql)


def is_there(columns: pa.Schema) -> str:
    """The condition that a record of a keyed input is no tombstone."""
    if DELETED in columns.names:
        return f"not {DELETED}"
    values = [column for column in columns.names if not column.startswith("_")]
    return " or ".join(f"{quoted(column)} is not null" for column in values)


def of_same_key(view: View, ruled: RuledView | None) -> str | None:
    """The query for a key that two rows of a view have; None if its rules make that impossible."""
    names = ", ".join(map(quoted, view.key or ()))
    if ruled is None:
        group = f"group by {names} having count(*) > 1" if names else "having count(*) > 1"
        rows = f"from {now(view.name)} {group}"
    elif ruled.guard is not None:
        rows = f"from ({ruled.guard.delta}) where _w > 0 and _n > 1"
    else:
        return None
    return f"select {names or 'count(*)'} {rows} limit 1"


def same_key(view: View, values: Iterable[object]) -> InvalidValue:
    """The error for a view with two rows whose key has these values."""
    shown = dict(zip(view.key or (), values, strict=False))
    reason = f"has two rows with this key, {shown}: give it another key, or none"
    return InvalidValue(f"view {view.name!r} {reason}", field=view.name)


def before(view: str) -> str:
    """The table with what a view in full had at the last tick."""
    return f"{_BEFORE}.{quoted(view)}"
