"""Views that are kept by rules: their statements and their state in DuckDB."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import TypeAlias

import pyarrow as pa

from deltaq.serde.json_text import compact_json
from deltaq.tools.duckdb_tables import (
    Connection,
    casts,
    described,
    fetched,
    filled,
    number_of,
    parsed,
    quoted,
    registered,
)
from deltaq.views.parse_trees import SqlReader
from deltaq.views.program import EXTRA, View, ViewProgram
from deltaq.views.rules import SCHEMA, Branch, Lookup, NoRule, Relation, RulePlan, StateTable, Zset
from deltaq.views.runs import RunFolder, check_numpy
from deltaq.views.state import SavedRows, StateRows, StoredRows

NOW, CHANGE = "now", "change"
"""Schemas of DuckDB: what inputs and views have; and what has changed in them since the last tick,
with a weight in `_w`.
"""

RECORD_KEY = "_key, _partition"
"""What tells the records of a keyed input apart. As in Kafka, a key has its newest record in each
partition: offsets of two partitions have no order, and compaction leaves one record in each.
"""

FLOATS = frozenset({"DOUBLE", "FLOAT"})
"""Types whose sums depend on the order of the rows in their last digits."""

DIGITS = 12
"""Significant digits in which floats are equal: the sum of floats depends on their order."""

_DIFFERING = "_differing_"
"""What the names of tables with changes that are not published yet begin with."""


Read: TypeAlias = Callable[[str], pa.Table | None]
"""Reads the rows of an object."""


def now(name: str) -> str:
    """The table with what an input or view has."""
    return f"{NOW}.{quoted(name)}"


def change(name: str) -> str:
    """The table with what has changed in an input or view since the last tick."""
    return f"{CHANGE}.{quoted(name)}"


@dataclass(frozen=True, slots=True)
class SavedView:
    """The state of a view or keyed input: its tables by name. `rules` is the digest of what they
    hold.
    """

    rules: str
    tables: Mapping[str, SavedRows]


@dataclass(frozen=True, slots=True)
class StoredView:
    """Such a state in objects."""

    rules: str
    tables: Mapping[str, StoredRows]


@dataclass(eq=False)
class RuledView:
    """The rules of one view at work. `rows` are its rows by the rules of `plan`; `guard` are its
    keys with their number of rows in `_n`, if the SQL does not imply that each key has one.

    A tick is `evaluate`, which does not change the state, and may be repeated with more changes;
    then `accept`. `states` are its tables of state by name; `all_rows` is the one with all rows of
    the view, "" without.
    """

    connection: Connection
    folder: RunFolder
    plan: RulePlan
    rows: Zset
    guard: Zset | None
    states: dict[str, StateRows] = field(default_factory=dict)
    all_rows: str = ""
    _filled: set[str] = field(default_factory=set)

    def build(self) -> None:
        """Make the state of the rows that are there."""
        for table in self.plan.states:
            self._build(table)
        for statement in self.plan.statements:
            branches = " union all ".join(
                f"({branch.sql(*(lookup.state for lookup in branch.lookups))})"
                for branch in statement.branches
            )
            filled(self.connection, statement.name, f"from ({branches}) limit 0")

    def _build(self, table: StateTable) -> None:
        self.states[table.name] = StateRows(self.connection, table, self.folder)
        self.states[table.name].build()

    def keep_all(self, rows: Zset) -> str:
        """Make a table of state with all rows of the view; its name."""
        self.all_rows = name = self.plan.state(rows)
        if name not in self.states:
            self._build(self.plan.states[-1])
        return name

    def evaluate(self, live: set[str]) -> None:
        """Fill the tables of changes; `live` becomes those that have any."""
        for statement in self.plan.statements:
            name = statement.name
            branches = [branch for branch in statement.branches if branch.reads & live]
            if branches:
                rows = self._fill(name, branches)
                self._filled.add(name)
                _mark(live, name, rows)
            elif name in self._filled:
                self._empty(name)
                _mark(live, name, 0)

    def _fill(self, name: str, branches: Sequence[Branch]) -> int:
        with ExitStack() as open_:
            numbers = count()
            queries = []
            for branch in branches:
                found = (
                    self.states[lookup.state].found(lookup, f"_found_{next(numbers)}")
                    for lookup in branch.lookups
                )
                queries.append(f"({branch.sql(*map(open_.enter_context, found))})")
            return filled(self.connection, name, " union all ".join(queries))

    def accept(self, live: AbstractSet[str]) -> None:
        """Add the changes to the state."""
        for rows in self.states.values():
            if rows.table.reads & live:
                rows.grow()

    @property
    def state_rows(self) -> int:
        """The rows in the tables of state."""
        return sum(map(len, self.states.values()))

    def forget_changes(self) -> None:
        """Empty the tables of changes, which else the next `evaluate` does."""
        for name in [*self._filled]:
            self._empty(name)

    def _empty(self, name: str) -> None:
        filled(self.connection, name, f"from {name} limit 0")
        self._filled.remove(name)

    def drop(self) -> None:
        """Forget the state."""
        tables = (f"drop table if exists {statement.name};" for statement in self.plan.statements)
        self.connection.execute("".join(tables))
        for rows in self.states.values():
            rows.drop()


class RuledViews:
    """The views of a program that rules keep, and the tables of changes that they read.

    `types` are the columns of inputs and views, with their types in DuckDB; `keyed` are the inputs
    of which the newest record of each key counts. `live` are the tables that have changes.
    """

    def __init__(
        self,
        connection: Connection,
        program: ViewProgram,
        types: Mapping[str, Mapping[str, str]],
        keyed: AbstractSet[str],
        folder: RunFolder,
    ) -> None:
        connection.execute(f"create schema {CHANGE}; create schema {SCHEMA}")
        self._connection = connection
        self._keyed = keyed
        self._folder = folder
        self._program = program
        self._types = types
        self._views: dict[str, RuledView] = {}
        self._tracked: set[str] = set()
        self._shown: set[str] = set()
        self._hidden: set[str] = set()
        self._differing: set[str] = set()
        self._newest: dict[str, StateRows] = {}
        """The rows of keyed inputs that only rules read."""
        self.live: set[str] = set()
        self.is_noting = True
        """Whether rows that are added to inputs are changes."""

    def get(self, name: str) -> RuledView | None:
        """The rules of a view; None if it is evaluated in full."""
        return self._views.get(name)

    def is_tracked(self, name: str) -> bool:
        """Whether rules read the changes of an input, or of a view that is evaluated in full."""
        return name in self._tracked

    def is_hidden(self, name: str) -> bool:
        """Whether only the changes of an input are there, and of a keyed one the rows as state."""
        return name in self._hidden

    # --- a tick ---

    def note(self, name: str, changes: str) -> int:
        """Add changes of an input, if rules read them; their number."""
        if not (self.is_noting and name in self._tracked):
            return 0
        rows = number_of(self._connection, f"insert into {change(name)} {changes}")
        if rows:
            self.live.add(change(name))
        return rows

    def newest_rows(self, name: str) -> int | None:
        """The number of rows of a keyed input of which only the changes are there; None for another
        one.
        """
        return len(self._newest[name]) if name in self._newest else None

    def replace_newest(self, name: str, added: str, newest: str) -> None:
        """Note what records change in a keyed input of which only the changes are there. `added` is
        the table with them, `newest` a query of those that count now.
        """
        columns = ", ".join(map(quoted, self._types[name]))
        rows = self._newest[name]
        lookup = Lookup(rows.table.name, ((f"from {added}", rows.table.key),))
        with rows.found(lookup, "_found") as found:
            # Some of them may have come since the last tick that was published.
            both = f"select {columns}, _w from {found} union all from {change(name)}"
            mine = f"from ({both}) where ({RECORD_KEY}) in (select {RECORD_KEY} from {added})"
            gone = f"select {columns}, -_w from ({rows.table.merged(mine)})"
            self.note(name, f"{gone} union all select *, 1 from ({newest})")

    def replace(self, name: str, changes: str) -> None:
        """Note all changes of a view in full, if rules read them."""
        if name in self._tracked:
            rows = filled(self._connection, change(name), changes)
            _mark(self.live, change(name), rows)

    def evaluate(self, name: str) -> None:
        """Apply the rules of a view to what has changed."""
        ruled = self._views[name]
        ruled.evaluate(self.live)
        _mark(self.live, change(name), len(ruled.rows.reads & self.live))

    def accepted(self) -> None:
        """Forget the changes, which are in the state now."""
        for rows in self._newest.values():
            if rows.table.reads & self.live:
                rows.grow()
        for name in self._tracked:
            if change(name) in self.live:
                self._connection.execute(f"truncate {change(name)}")
        self.live.clear()
        for name in self._differing:
            self._connection.execute(f"drop table {_differing(name)}")
        self._differing.clear()

    # --- between ticks ---

    def begin(self, view: View) -> None:
        """Keep a view by rules from now on. Raises NoRule, and what DuckDB raises."""
        self._forget_changes()
        for name in view.reads:
            self.track(name)
        try:
            ruled = self._planned(view)
            self._prove(view, ruled)
            ruled.build()
            self._check_kept(view, ruled)
        except BaseException:
            self._untrack_unread()
            raise
        if view.name in self._tracked:
            self._untrack(view.name)
        self._connection.execute(f"create view {change(view.name)} as {ruled.rows.delta}")
        self._views[view.name] = ruled

    def _check_kept(self, view: View, ruled: RuledView) -> None:
        """Have the state and the rows of rules, or raise NoRule and forget them."""
        try:
            self._check_state(ruled)
            self._note_differing(view, ruled)
        except NoRule:
            ruled.drop()
            raise

    def _note_differing(self, view: View, ruled: RuledView) -> None:
        """Have the rows of a view those that its rules make, where floats differ in their last
        digits from what was evaluated in full and published. The next tick publishes that, too:
        else its rules would take away rows that are not there. Raises NoRule if rules of other
        views have its rows already.
        """
        name, types = view.name, self._types[view.name]
        if not FLOATS & {*types.values()}:
            return
        columns = ", ".join(map(quoted, types))
        both = (
            f"select {columns}, _w from ({ruled.rows.batch}) "
            f"union all select {columns}, -1 from {now(name)}"
        )
        differing = f"select {columns}, sum(_w)::bigint as _w from ({both}) group by all"
        if filled(self._connection, _differing(name), f"{differing} having sum(_w) <> 0"):
            if name in self._tracked:
                raise NoRule("views by rules have its floats, whose last digits rules make anew")
            self._connection.execute(f"create or replace table {now(name)} as {_rows_of(ruled)}")
            self._differing.add(name)

    def changes(self, name: str) -> str:
        """The changes of a view since the last tick that was published, for FROM."""
        if name not in self._differing:
            return change(name)
        columns = ", ".join(map(quoted, self._types[name]))
        both = f"select {columns}, _w from {change(name)} union all from {_differing(name)}"
        return f"({both})"

    def rows(self, name: str) -> str:
        """The query for all rows that the rules of a view have made. Between ticks."""
        self._forget_changes()
        return _rows_of(self._views[name])

    def end(self, view: View) -> None:
        """Forget the rules of a view, and its rows."""
        self._forget_changes()
        ruled = self._views.pop(view.name)
        self._connection.execute(f"drop view {change(view.name)}")
        self._hide(view.name)
        self._hidden.discard(view.name)
        ruled.drop()
        self._untrack_unread()

    def track(self, name: str) -> None:
        """Have the changes of an input, or of a view in full, from now on."""
        if name not in self._views and name not in self._tracked:
            self._tracked.add(name)
            empty = f"select *, 1::bigint as _w from {now(name)} limit 0"
            self._connection.execute(f"create table {change(name)} as {empty}")

    def _untrack_unread(self) -> None:
        for name in [*self._tracked]:
            if not self.is_read(name):
                self._untrack(name)

    def _untrack(self, name: str) -> None:
        self._tracked.remove(name)
        self._connection.execute(f"drop table {change(name)}")

    def is_read(self, name: str) -> bool:
        """Whether rules read it."""
        return any(name in view.reads for view in self._program.views if view.name in self._views)

    def saved(self, names: AbstractSet[str]) -> dict[str, SavedView]:
        """The state of those of these views, and of keyed inputs, that can be stored, by name."""
        return {
            name: SavedView(
                self._digest(tables),
                {table: rows.saved() for table, rows in tables.items()} | self._saved_changes(name),
            )
            for name, tables in self._tables().items()
            if (name in names or name in self._newest)
            and all(rows.is_storable for rows in tables.values())
        }

    def _saved_changes(self, name: str) -> dict[str, SavedRows]:
        if name not in self._differing:
            return {}
        return {_DIFFERING: SavedRows((), fetched(self._connection, f"from {_differing(name)}"))}

    def restore(self, stored: Mapping[str, StoredView], read: Read) -> bool:
        """Take stored states for those of all views and keyed inputs, which have no rows; False if
        one of them is not there, or not of the same rules. Raises what `read` raises.
        """
        tables = self._tables()
        if not tables.keys() <= stored.keys() or any(
            self._digest(of) != stored[name].rules for name, of in tables.items()
        ):
            return False
        for name, of in tables.items():
            for table, rows in of.items():
                rows.restore(stored[name].tables[table], read)
            if _DIFFERING in stored[name].tables:
                self._restore_changes(name, read(stored[name].tables[_DIFFERING].recent))
        return True

    def _restore_changes(self, name: str, rows: pa.Table | None) -> None:
        if rows is not None:
            own = casts(self._types[name])
            with registered(self._connection, rows) as source:
                filled(self._connection, _differing(name), f"select {own}, _w from {source}")
            self._differing.add(name)

    def _tables(self) -> dict[str, dict[str, StateRows]]:
        """All tables of state, by what they are of."""
        inputs = {name: {rows.table.name: rows} for name, rows in self._newest.items()}
        return inputs | {name: ruled.states for name, ruled in self._views.items()}

    def _digest(self, tables: Mapping[str, StateRows]) -> str:
        """What names the rules: state is of use only for those that made it."""
        said = [
            [of.name, of.build, of.change, of.merged(""), *of.key, *rows.types.items()]
            for rows in tables.values()
            for of in (rows.table,)
        ]
        version = self._connection.execute("select version()").fetchone()
        text = compact_json([version, said])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def keep(self, names: AbstractSet[str]) -> None:
        """Forget the rows of inputs and of ruled views that are not among these."""
        for name, ruled in self._views.items():
            if name not in names:
                self._hide(name)
            elif name not in self._shown:
                self._show(name, ruled)
        for name in self._tracked - names - {view.name for view in self._program.views}:
            self._hide(name)

    def _show(self, name: str, ruled: RuledView) -> None:
        """Keep all rows of a ruled view: those of its table, and what the rules change."""
        rows = self.relation(name).rows
        state = ruled.keep_all(Zset(rows.columns, rows.delta, rows.batch, ruled.rows.reads))
        columns = ", ".join(map(quoted, rows.columns))
        merged = (
            f"select {columns}, sum(_w)::bigint as _w from (from {state} union all ({rows.delta})) "
            "group by all having sum(_w) <> 0"
        )
        self._connection.execute(f"drop table {now(name)}")
        self._connection.execute(
            f"create view {now(name)} as select {columns} from ({merged}) as _z, range(_z._w)"
        )
        self._shown.add(name)

    def _hide(self, name: str) -> None:
        if name not in self._hidden:
            if name in self._keyed:
                self._newest[name] = self._newest_rows(name)
            kind = "view" if name in self._shown else "table"
            self._connection.execute(f"drop {kind} {now(name)}")
            self._shown.discard(name)
            self._hidden.add(name)

    def _newest_rows(self, name: str) -> StateRows:
        rows = self.relation(name).rows
        plan = RulePlan(f"_{len(self._newest)}")  # no view has such a name
        plan.state(rows, ("_key",))
        found = StateRows(self._connection, plan.states[0], self._folder)
        found.build()
        return found

    def _forget_changes(self) -> None:
        """Else a view that is shown would have the changes of this tick twice: they are in its
        state already.
        """
        for ruled in self._views.values():
            ruled.forget_changes()

    def _planned(self, view: View) -> RuledView:
        try:
            from deltaq.views.planning import plan_of, refuse_known  # noqa: PLC0415 - an extra

            check_numpy()  # state that has become large needs it
        except ModuleNotFoundError:
            raise NoRule(f"rules need the extra [{EXTRA}]: pip install 'deltaq[{EXTRA}]'") from None
        for signature in (function.signature for function in self._program.functions):
            refuse_known(signature.name, len(signature.parameters), view.sql)
        relations = {name.lower(): self.relation(name) for name in self._types}
        types = self._types[view.name]
        try:
            plan, rows = plan_of(view.name, view.sql, types, relations, self.reader)
        except RecursionError:
            raise NoRule("it is nested too deeply") from None
        guard = None
        if view.key is not None and not view.is_key_of_sql:
            keys = [(name, quoted(name)) for name in view.key]
            guard = plan.aggregate(rows.mapped(keys), view.key, {}, "rows of each key")
        return RuledView(self._connection, self._folder, plan, rows, guard)

    def relation(self, name: str) -> Relation:
        """An input or a view, as rules name it."""
        columns = ", ".join(map(quoted, self._types[name]))
        delta = f"select {columns}, _w from {change(name)}"
        batch = f"select {columns}, 1::bigint as _w from {now(name)}"
        rows = Zset(tuple(self._types[name]), delta, batch, frozenset([change(name)]))
        return Relation(self._types[name], rows)

    @cached_property
    def reader(self) -> SqlReader:
        """What DuckDB reads in SQL."""
        found = self._connection.execute(
            "select lower(function_name), lower(alias_of) from duckdb_functions() "
            "where alias_of is not null"
        ).fetchall()
        types, tree = partial(described, self._connection), partial(parsed, self._connection)
        return SqlReader(types, tree, dict(found))

    def _prove(self, view: View, ruled: RuledView) -> None:
        """Raise NoRule if the rules have other rows than DuckDB, of what is there now, but for the
        last digits of floats, whose sums depend on the order.
        """
        types = self._types[view.name]
        floats = [quoted(name) for name, kind in types.items() if kind in FLOATS]
        others = [quoted(name) for name, kind in types.items() if kind not in FLOATS]
        columns = "".join(f"{name}, " for name in [*others, *floats])
        both = (
            f"select {columns}_w from ({ruled.rows.batch}) "
            f"union all select {columns}-1 from {now(view.name)}"
        )
        if self._has_rows(_unequal(others, both)):
            raise NoRule("sqlglot reads it in another way than DuckDB")
        if floats and self._has_rows(unequal_floats(others, floats, both)):
            raise NoRule("its floats differ from DuckDB's in more than their last digits")

    def _has_rows(self, query: str) -> bool:
        return self._connection.execute(f"select 1 from ({query}) limit 1").fetchone() is not None

    def _check_state(self, ruled: RuledView) -> None:
        """Raise NoRule for columns that rules cannot keep: rows with equal intervals, such as 1
        month and 30 days, would be one row in state.
        """
        tables = [*ruled.states, *(statement.name for statement in ruled.plan.statements)]
        for table in tables:
            kinds = described(self._connection, table).values()
            if any("INTERVAL" in kind for kind in kinds):
                raise NoRule("an INTERVAL in its state, where 1 month equals 30 days")


def _rows_of(ruled: RuledView) -> str:
    """The query for all rows of a view, made by its rules from what they read."""
    columns = ", ".join(map(quoted, ruled.rows.columns))
    merged = f"select {columns}, sum(_w)::bigint as _w from ({ruled.rows.batch}) group by all"
    return f"select {columns} from ({merged}) as _z, range(_z._w)"


def _unequal(columns: Sequence[str], query: str) -> str:
    """The rows of a query whose weights do not add up to 0, by these columns."""
    group = f"group by {', '.join(columns)} " if columns else ""
    listed = "".join(f"{column}, " for column in columns)
    return f"select {listed}sum(_w)::bigint as _w from ({query}) {group}having sum(_w) <> 0"


def unequal_floats(others: Sequence[str], floats: Sequence[str], query: str) -> str:
    """The same, where floats are equal in as many digits as `check` compares. Of two values on the
    sides of a limit between such digits, the next digit is the same.
    """
    found = _unequal([*others, *floats], query)
    for digits in (DIGITS, DIGITS + 1):
        group = [*others, *(f"printf('%.{digits - 1}e', {name} + 0)" for name in floats)]
        listed = "".join(f"{name}, " for name in others)
        listed += "".join(f"min({name}) as {name}, " for name in floats)
        found = (
            f"select {listed}sum(_w)::bigint as _w from ({found}) as _f "
            f"group by {', '.join(group)} having sum(_w) <> 0"
        )
    return found


def _differing(name: str) -> str:
    """The table with what rules have, and what was published has not, as changes."""
    return f"{SCHEMA}.{quoted(_DIFFERING + name)}"


def _mark(live: set[str], table: str, rows: int) -> None:
    """Note whether a table has changes."""
    if rows:
        live.add(table)
    else:
        live.discard(table)
