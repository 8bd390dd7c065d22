"""What DuckDB knows about the views of a program that another engine evaluates: their columns and
rules, what they have over empty inputs, and the form in which their rows are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.tools.duckdb_tables import casts, described, quoted, registered, sources
from deltaq.views.engine import EngineParts, ViewChanges, ViewEngine, before, engine_parts
from deltaq.views.incremental import RuledView, now
from deltaq.views.modes import Mode
from deltaq.views.parse_trees import SqlReader
from deltaq.views.program import View, ViewProgram
from deltaq.views.rules import Relation


@contextmanager
def catalog(program: ViewProgram, modes: Mapping[str, Mode], clock: Clock) -> Iterator[ViewCatalog]:
    """A catalog for a program. Raises InvalidConfig without DuckDB."""
    tried: dict[str, Mode] = {
        view.name: "full" if modes.get(view.name) == "full" else "incremental"
        for view in program.views
    }
    with engine_parts(program, None, clock) as parts:
        yield ViewCatalog(parts, program, tried)


class ViewCatalog(ViewEngine):
    """An engine whose inputs stay empty. After `plan`, what views have is `first_rows`, and what
    their rules keep `first_state`: another engine begins with these, and takes all records for
    changes.
    """

    def __init__(self, parts: EngineParts, program: ViewProgram, modes: Mapping[str, Mode]) -> None:
        super().__init__(parts, program, modes, keeps_inputs=True)
        self._columns: dict[str, pa.Schema] = {}
        self._first: dict[str, pa.Table] = {}
        self._restored: set[str] = set()

    def plan(self) -> None:
        """Make rules for the views, where there are some. Raises InvalidConfig for SQL that DuckDB
        refuses.
        """
        self.evaluate()
        for view in self._program.views:
            self._columns[view.name] = super().columns(view.name)
            self._first[view.name] = self._table(f"from {now(view.name)}")
        self.accept()

    # --- what views are ---

    def columns(self, view: str) -> pa.Schema:
        """See `ViewEngine`."""
        return self._columns[view]

    @property
    def types(self) -> Mapping[str, Mapping[str, str]]:
        """The columns of all inputs and views, with their types in DuckDB."""
        return self._types

    def types_of(self, table: str) -> dict[str, str]:
        """The columns of a table of rules."""
        return described(self._connection, table)

    @property
    def reader(self) -> SqlReader:
        """What DuckDB reads in SQL."""
        return self._rules.reader

    def relation(self, name: str) -> Relation:
        """An input or a view, as rules name it."""
        return self._rules.relation(name)

    def ruled(self, view: str) -> RuledView | None:
        """The rules of a view; None if it has none."""
        return self._rules.get(view)

    def first_rows(self, view: str) -> pa.Table:
        """What a view has over empty inputs."""
        return self._first[view]

    def first_state(self, table: str) -> pa.Table:
        """What a table of state has over empty inputs."""
        return self._table(f"from {table}")

    # --- rows of another engine ---

    def selected(
        self, columns: pa.Schema, batches: Iterable[pa.RecordBatch], select: str
    ) -> Iterator[pa.Table]:
        """Expressions over records, in parts, as DuckDB gives them to Arrow."""
        for source in sources(self._connection, columns, batches):
            yield self._table(f"select {select} from {source}")

    def restore(self, view: str, rows: pa.Table) -> None:
        """Take these rows for what a view had at the last tick, until `published`."""
        super().restore(view, rows)
        with registered(self._connection, self._first[view]) as source:
            self._connection.execute(
                f"create or replace table {before(view)} as "
                f"select *, -1 as _w from {before(view)} "
                f"union all select {casts(self._stored[view])}, 1 from {source}"
            )
        self._restored.add(view)

    def changes_of(self, view: View, rows: pa.Table) -> ViewChanges:
        """The changes of a view, in the form in which they are published. `rows` are what another
        engine has changed since the last tick, with weights in `_w`; after `restore`, what it has
        made from empty inputs.
        """
        own = ", ".join(map(quoted, self._stored[view.name]))
        others = f" union all from {before(view.name)}" if view.name in self._restored else ""
        with self._about(view), registered(self._connection, rows) as source:
            each = f"select {casts(self._stored[view.name])}, _w from {source}{others}"
            merged = f"select {own}, sum(_w)::bigint as _w from ({each}) group by all"
            return self._changes_in(view, f"{merged} having sum(_w) <> 0")

    def published(self) -> None:
        """Forget what views had before."""
        for view in self._restored:
            self._connection.execute(f"drop table {before(view)}")
        self._restored.clear()
