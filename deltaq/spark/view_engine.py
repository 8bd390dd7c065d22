"""Views in Spark: the rules that DuckDB would follow, over frames of changes and of state; or the
SQL of a view over all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deltaq.errors import InvalidConfig
from deltaq.spark.view_plans import SparkPlans, plans_for_spark, rows_of
from deltaq.spark.view_state import StateFolder, StatePart, StateParts, typed
from deltaq.tools.duckdb_tables import quoted
from deltaq.views.catalog import ViewCatalog
from deltaq.views.engine import ViewChanges, is_there, of_same_key, same_key
from deltaq.views.incremental import RECORD_KEY, RuledView, StoredView, change, now
from deltaq.views.planning_spark import spark_sql, spark_type, table_of
from deltaq.views.program import View, ViewProgram
from deltaq.views.state import StoredRows

_THERE = "_there"
"""Whether a record of a keyed input is no tombstone."""

_STATE = "spark"
"""The name in checkpoints of all tables together."""


@dataclass(eq=False)
class _SparkInput:
    """An input: what has changed in it since the last tick, and all rows before, where these are
    needed.
    """

    is_keyed: bool
    is_kept: bool
    changes: StateParts
    rows: StateParts


@dataclass(eq=False)
class SparkViewEngine:
    """The views of a program in a session of Spark of their own. See `TickEngine`. Not thread-safe.
    `keeps_inputs`: records will be removed from inputs.
    """

    session: SparkSession
    program: ViewProgram
    catalog: ViewCatalog
    folder: StateFolder
    keeps_inputs: bool
    _inputs: dict[str, _SparkInput] = field(default_factory=dict)
    _plans: SparkPlans | None = None
    _state: dict[str, StateParts] = field(default_factory=dict)
    _live: set[str] = field(default_factory=set)
    _texts: dict[str, str] = field(default_factory=dict)

    # --- inputs ---

    def create_input(
        self, name: str, columns: pa.Schema, *, is_keyed: bool, is_replaced: bool = False
    ) -> None:
        """See `ViewEngine`."""
        self.catalog.create_input(name, columns, is_keyed=is_keyed, is_replaced=is_replaced)
        types = rows_of(self.catalog.types[name])
        self._inputs[name] = _SparkInput(
            is_keyed,
            is_keyed or is_replaced or self.keeps_inputs,
            StateParts(self.folder, types),
            StateParts(self.folder, types),
        )

    def add_rows(self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """See `ViewEngine`. Raises InvalidConfig for a view that Spark cannot evaluate."""
        self._planned()  # before rows are read
        found = self._inputs[name]
        if not found.is_keyed:
            select = f"{self._own(name)}, 1::bigint as _w"
            found.changes.add_arrow(self.catalog.selected(columns, batches, select))
            return
        added = StateParts(self.folder, {**found.rows.types, _THERE: "boolean"})
        select = f"{self._own(name)}, 1::bigint as _w, ({is_there(columns)}) as {_THERE}"
        added.add_arrow(self.catalog.selected(columns, batches, select))
        if added.parts:
            self._register("input.added", added.frame())
            newest = (
                f"select {_listed(self.catalog.types[name])}_w from (select *, row_number() over "
                f"(partition by {RECORD_KEY} order by _offset desc) as _n from input.added) "
                f"where _n = 1 and {_THERE}"
            )
            keys = f"(select distinct {RECORD_KEY} from input.added)"
            self._note(name, newest, f"semi join {keys} using ({RECORD_KEY})")

    def replace_rows(
        self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> None:
        """See `ViewEngine`."""
        added = StateParts(self.folder, self._inputs[name].rows.types)
        select = f"{self._own(name)}, 1::bigint as _w"
        added.add_arrow(self.catalog.selected(columns, batches, select))
        self._register("input.added", added.frame())
        self._note(name, "from input.added", "")

    def remove_before(self, name: str, starts: Sequence[int]) -> None:
        """See `ViewEngine`."""
        for partition, start in enumerate(starts):
            where = f"where _partition = {partition} and _offset < {start}"
            self._note(name, "from input.present limit 0", where)

    def _note(self, name: str, come: str, gone: str) -> None:
        """Note rows that come to a kept input, and those of its present rows that go; `gone` is
        what stands behind FROM.
        """
        found = self._inputs[name]
        self._register("input.present", found.rows.frame().unionAll(found.changes.frame()))
        own = _listed(self.catalog.types[name])
        found.changes.add(
            self._sql(
                f"select {own}sum(_w) as _w from (({come}) union all "
                f"(select {own}-_w as _w from input.present {gone})) "
                f"group by {own[:-2]} having sum(_w) <> 0"
            )
        )

    def _own(self, name: str) -> str:
        """The columns of an input in DuckDB; those whose type Spark does not have as null."""
        types = self.catalog.types[name]
        return ", ".join(
            f"cast({quoted(own)} as {kind}) as {quoted(own)}"
            if spark_type(kind)
            else f"null::varchar as {quoted(own)}"
            for own, kind in types.items()
        )

    def set_time(self, time_ms: int) -> None:
        """The views do not read the time."""

    # --- views ---

    def evaluate(self) -> None:
        """See `ViewEngine`. Raises InvalidConfig for a view that Spark cannot evaluate."""
        plans = self._planned()
        self._live.clear()
        for name, found in self._inputs.items():
            self._change(name, found.changes.frame(), is_live=bool(found.changes.parts))
            self._show(plans, name)
        for view in self.program.views:
            with _naming(view):
                ruled = plans.ruled.get(view.name)
                if ruled is not None:
                    self._evaluate_by_rules(plans, view, ruled)
                else:
                    self._evaluate_in_full(plans, view)
                self._show(plans, view.name)

    def _evaluate_by_rules(self, plans: SparkPlans, view: View, ruled: RuledView) -> None:
        for statement in ruled.plan.statements:
            branches = [of for of in statement.branches if of.reads & self._live]
            queries = (f"({of.sql(*(at.state for at in of.lookups))})" for of in branches)
            if branches:
                rows = self._sql(" union all ".join(queries))
                self._hold(statement.name, rows, plans.types[statement.name])
            else:
                self._register(statement.name, self._empty(plans.types[statement.name]))
        delta, is_live = ruled.rows.delta, bool(ruled.rows.reads & self._live)
        self._change(view.name, self._sql(delta), is_live=is_live)

    def _evaluate_in_full(self, plans: SparkPlans, view: View) -> None:
        types = rows_of(self.catalog.types[view.name])
        if not any(change(name) in self._live for name in view.reads):
            self._change(view.name, self._empty(types), is_live=False)
            return
        # DuckDB has names of its own for columns without one.
        rows = self.session.sql(plans.in_full[view.name]).toDF(*self.catalog.types[view.name])
        self._register("full.rows", typed(rows.selectExpr("*", "1 as _w"), types))
        own = _listed(self.catalog.types[view.name])
        both = f"from full.rows union all select {own}-_w as _w from {plans.all_rows[view.name]}"
        merged = f"select {own}sum(_w) as _w from ({both}) group by {own[:-2]} having sum(_w) <> 0"
        self._hold(change(view.name), self._sql(merged), types)

    def columns(self, view: str) -> pa.Schema:
        """See `ViewEngine`."""
        return self.catalog.columns(view)

    def restore(self, view: str, rows: pa.Table) -> None:
        """See `ViewEngine`."""
        self.catalog.restore(view, rows)

    def changes(self, view: View) -> ViewChanges:
        """See `ViewEngine`."""
        own = _listed(self.catalog.types[view.name])
        with _naming(view):
            if change(view.name) in self._live:
                self._check_key(view)
                merged = f"select {own}sum(_w) as _w from {change(view.name)} group by {own[:-2]}"
                rows = self._sql(f"{merged} having sum(_w) <> 0")
            else:
                rows = self._empty(rows_of(self.catalog.types[view.name]))
            return self.catalog.changes_of(view, rows.toArrow())

    def _check_key(self, view: View) -> None:
        query = of_same_key(view, self._planned().ruled.get(view.name))
        if view.key is not None and query is not None:
            for values in self._sql(query).collect():
                raise same_key(view, values)

    def by_rules(self) -> dict[str, bool]:
        """See `ViewEngine`."""
        ruled = self._planned().ruled
        return {view.name: view.name in ruled for view in self.program.views}

    def state_rows(self) -> dict[str, int]:
        """See `ViewEngine`."""
        ruled = self._planned().ruled
        return {
            view.name: sum(len(self._state[of.name]) for of in ruled[view.name].plan.states)
            if view.name in ruled
            else 0
            for view in self.program.views
        }

    # --- state ---

    def accept(self) -> None:
        """See `ViewEngine`."""
        plans = self._planned()
        for found in self._inputs.values():
            if found.is_kept:
                found.rows.parts += found.changes.parts
        inputs = {plans.all_rows[name] for name, of in self._inputs.items() if of.is_kept}
        for name, table in plans.tables.items():
            if table.reads & self._live:
                if name not in inputs:
                    self._state[name].add(self._sql(table.change))
                self._merge(name)
                self._register(name, self._state[name].frame())
        for found in self._inputs.values():
            found.changes.parts.clear()
        self._live.clear()
        self.catalog.published()

    def _merge(self, name: str) -> None:
        """Merge parts of a table, if there are enough of one size."""
        state = self._state[name]
        parts = state.due()
        if parts:
            self._register("part.due", state.frame(parts))
            merged = self._planned().tables[name].merged("from part.due")
            state.replace(parts, self._sql(merged))

    def saved(self) -> dict[str, StoredView]:
        """The names of what the tables of state have."""
        tables = {
            name: StoredRows(tuple(part.text for part in state.parts), "")
            for name, state in self._state.items()
        }
        return {_STATE: StoredView(self._planned().digest, tables)}

    def resume(self, stored: Mapping[str, StoredView]) -> bool:
        """Go on from such a state, in an engine whose inputs have no rows. False if it is not of
        the same rules. Raises RowsMissing.
        """
        plans, found = self._planned(), stored.get(_STATE)
        if found is None or found.rules != plans.digest:
            return False
        for name, state in self._state.items():
            state.parts.clear()
            parts = [*map(StatePart.of_text, found.tables[name].runs)]
            self._register(name, state.restore(parts))
        return True

    def _planned(self) -> SparkPlans:
        """The plans of the views; made once, with the state over empty inputs."""
        if self._plans is None:
            self.catalog.plan()
            kept = [name for name, found in self._inputs.items() if found.is_kept]
            self._plans = plans = plans_for_spark(self.catalog, self.program, kept)
            self._state = {
                name: StateParts(self.folder, plans.types[name]) for name in plans.tables
            }
            for name, found in self._inputs.items():
                if name in plans.all_rows:
                    found.is_kept = True
                    self._state[plans.all_rows[name]] = found.rows
            for name, rows in self._first_rows(plans):
                self._state[name].add_arrow([rows])
            for name, state in self._state.items():
                self._register(name, state.frame())
        return self._plans

    def _first_rows(self, plans: SparkPlans) -> Iterator[tuple[str, pa.Table]]:
        """What tables of state have over empty inputs."""
        for view in plans.ruled.values():
            for of in view.plan.states:
                yield of.name, self.catalog.first_state(of.name)
        for name in plans.in_full:
            rows = self.catalog.first_rows(name)
            weights = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
            yield plans.all_rows[name], rows.append_column("_w", weights)

    # --- frames ---

    def _sql(self, sql: str) -> DataFrame:
        """A query of DuckDB over tables that are registered."""
        text = self._texts.get(sql)
        if text is None:
            self._texts[sql] = text = spark_sql(sql)
        return self.session.sql(text)

    def _register(self, table: str, rows: DataFrame) -> None:
        """Take rows for a table, as DuckDB names it."""
        rows.createOrReplaceTempView(table_of(table))

    def _empty(self, types: Mapping[str, str]) -> DataFrame:
        return StateParts(self.folder, types).frame()

    def _hold(self, table: str, rows: DataFrame, types: Mapping[str, str]) -> None:
        """Evaluate rows once, and take them for a table. They are written, too: what reads a cached
        frame would still plan all that it was made from, and each use of it anew.
        """
        held = StateParts(self.folder, types)
        held.add(rows)
        if held.parts:
            self._live.add(table)
        self._register(table, held.frame())

    def _change(self, name: str, rows: DataFrame, *, is_live: bool) -> None:
        """Take rows for the changes of an input or view."""
        self._register(change(name), rows)
        if is_live:
            self._live.add(change(name))

    def _show(self, plans: SparkPlans, name: str) -> None:
        """Make the table with all rows of an input or view, if these are needed."""
        if name in plans.all_rows:
            own = _listed(self.catalog.types[name])[:-2]
            both = f"from {plans.all_rows[name]} union all (from {change(name)})"
            merged = f"select {own}, sum(_w) as _w from ({both}) group by {own}"
            copies = f"select {own} from ({merged} having sum(_w) <> 0) as _z, range(_z._w)"
            self._register(now(name), self._sql(copies))


def _listed(columns: Iterable[str]) -> str:
    return "".join(f"{quoted(column)}, " for column in columns)


@contextmanager
def _naming(view: View) -> Iterator[None]:
    """What Spark raises becomes InvalidConfig that names the view."""
    try:
        yield
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        raise InvalidConfig(f"view {view.name!r}: Spark: {reason}", key=view.name) from error
