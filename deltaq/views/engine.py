"""Views by full recompute in DuckDB: the inputs at a cut as tables, the views as tables made from
them, and what has changed in each since the last tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.tools.duckdb_tables import (
    Connection,
    connected,
    create,
    fetched,
    insert,
    naming,
    quoted,
    registered,
)
from deltaq.views.program import EXTRA, KEY, TICK, WEIGHT, View, ViewProgram

_NOW, _BEFORE = "now", "before"

_STORED = {
    "HUGEINT": "DECIMAL(38,0)",
    "UHUGEINT": "DECIMAL(38,0)",
    "UBIGINT": "DECIMAL(20,0)",
    "UINTEGER": "BIGINT",
    "USMALLINT": "INTEGER",
    "UTINYINT": "SMALLINT",
    "UUID": "VARCHAR",
    "JSON": "VARCHAR",
    "TIME": "VARCHAR",
    "INTERVAL": "VARCHAR",
    "BIT": "VARCHAR",
    "TIMESTAMP": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_S": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_MS": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_NS": "TIMESTAMP WITH TIME ZONE",
}
"""The type of a column in the view's topic, for types of DuckDB that a table of Delta does not
have.
"""


@dataclass(frozen=True, slots=True)
class ViewChanges:
    """What has changed in a view: `come` are its new rows and `gone` the old ones, in the columns
    of its topic. Both have `_key` if the view has a row key, and `weight` if not.
    """

    come: pa.Table
    gone: pa.Table


@contextmanager
def engine(program: ViewProgram) -> Iterator[ViewEngine]:
    """An engine for a program, with empty inputs. Raises InvalidConfig without DuckDB."""
    # With one thread sums of floats have one order, and small ticks are quicker.
    with connected(EXTRA, threads=1) as connection:
        # Times without a zone are those of UTC.
        connection.execute("set TimeZone = 'UTC'")
        connection.execute(f"create schema {_NOW}; create schema {_BEFORE}")
        connection.execute(f"set schema = '{_NOW}'")
        yield ViewEngine(connection, program)


class ViewEngine:
    """The tables of a program. Not thread-safe.

    Inputs are added to, then `evaluate` makes the views from them; `changes` compares with what
    `accept` has accepted, or `restore` was given. What DuckDB refuses is InvalidConfig.
    """

    def __init__(self, connection: Connection, program: ViewProgram) -> None:
        self._connection = connection
        self._program = program
        self._stored: dict[str, dict[str, str]] = {}

    # --- inputs ---

    def create_input(self, name: str, columns: pa.Schema) -> None:
        """An input with these columns, without rows."""
        create(self._connection, f"{_NOW}.{quoted(name)}", columns, [])

    def add_rows(
        self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch], *, is_keyed: bool
    ) -> None:
        """Add records to an input, behind those that it has. Of a keyed input, the newest record of
        each key counts, and none if that is a tombstone.
        """
        table, connection = f"{_NOW}.{quoted(name)}", self._connection
        if not is_keyed:
            insert(connection, table, columns, batches)
            return
        create(connection, "_added", columns, batches, kind="temp table")
        values = [column for column in columns.names if not column.startswith("_")]
        is_there = " or ".join(f"{quoted(column)} is not null" for column in values)
        connection.execute(f"delete from {table} where _key in (select _key from temp._added)")
        connection.execute(
            f"insert into {table} select * from (select * from temp._added qualify row_number() "
            f"over (partition by _key order by _offset desc) = 1) where {is_there}"
        )
        connection.execute("drop table temp._added")

    def remove_before(self, name: str, starts: Sequence[int]) -> None:
        """Remove the records before these offsets, by partition, from an input."""
        for partition, start in enumerate(starts):
            self._connection.execute(
                f"delete from {_NOW}.{quoted(name)} where _partition = ? and _offset < ?",
                [partition, start],
            )

    # --- views ---

    def evaluate(self, *, kind: Literal["table", "view"] = "table") -> None:
        """Make all views from the inputs: as tables, or so that DuckDB makes each one anew for each
        that reads it.
        """
        for view in self._program.views:
            with naming(f"view {view.name!r}", view.name):
                self._connection.execute(
                    f"create or replace {kind} {_NOW}.{quoted(view.name)} as {view.sql}"
                )
            if view.name not in self._stored:
                self._stored[view.name] = self._stored_types(view)
                self._check_columns(view)

    def _stored_types(self, view: View) -> dict[str, str]:
        rows = self._connection.execute(f"describe {_NOW}.{quoted(view.name)}").fetchall()
        return {
            name: "VARCHAR" if kind.startswith("ENUM") else _STORED.get(kind, kind)
            for name, kind, *_ in rows
        }

    def _check_columns(self, view: View) -> None:
        names = {name.lower() for name in self._stored[view.name]}
        for name in sorted(names & {TICK, WEIGHT}):
            reason = f"view {view.name!r} has a column {name!r}, which belongs to deltaq: rename it"
            raise InvalidConfig(reason, key=view.name)
        for name in view.key or ():
            if name.lower() not in names:
                reason = f"the key of view {view.name!r} names {name!r}, which is no column of it"
                raise InvalidConfig(reason, key=view.name)

    def columns(self, view: str) -> pa.Schema:
        """The columns of a view in its topic, without `tick` and `weight`. After `evaluate`."""
        return self._table(f"select {self._casts(view)} from {_NOW}.{quoted(view)} limit 0").schema

    def restore(self, view: str, rows: pa.Table) -> None:
        """Take these rows for what a view had at the last tick. After the first `evaluate`."""
        names = ", ".join(map(quoted, self._stored[view]))
        with registered(self._connection, rows) as source:
            self._connection.execute(
                f"create or replace table {_BEFORE}.{quoted(view)} as "
                f"select {self._casts(view)} from (select {names} from {source})"
            )

    def changes(self, view: View) -> ViewChanges:
        """What has changed in a view since the last tick. Raises InvalidValue if its key does not
        tell its rows apart.
        """
        come, gone = self._come_and_gone(view)
        if view.key is None:
            return ViewChanges(self._weighed(come), self._weighed(gone))
        self._check_key(view)
        key = f"json_array({', '.join(map(quoted, view.key))})::varchar::blob as {KEY}"
        return ViewChanges(
            self._table(f"select *, {key} from ({come})"),
            self._table(f"select *, {key} from ({gone})"),
        )

    def differences(self, view: View) -> tuple[pa.Table, pa.Table]:
        """The rows that a view has now and had not, and those that it had."""
        come, gone = self._come_and_gone(view)
        return self._table(come), self._table(gone)

    def _come_and_gone(self, view: View) -> tuple[str, str]:
        now = f"select {self._casts(view.name)} from {_NOW}.{quoted(view.name)}"
        before = f"select * from {_BEFORE}.{quoted(view.name)}"
        return f"({now}) except all ({before})", f"({before}) except all ({now})"

    def _weighed(self, rows: str) -> pa.Table:
        return self._table(f"select *, count(*) as {WEIGHT} from ({rows}) group by all")

    def _check_key(self, view: View) -> None:
        names = ", ".join(map(quoted, view.key or ()))
        table = f"{_NOW}.{quoted(view.name)}"
        group = f"group by {names} having count(*) > 1" if names else "having count(*) > 1"
        twice = self._table(f"select {names or 'count(*)'} from {table} {group} limit 1")
        if twice.num_rows:
            shown = dict(zip(view.key or (), twice.to_pylist()[0].values(), strict=False))
            raise InvalidValue(
                f"view {view.name!r} has two rows with this key, {shown}: give it another key, or "
                "none",
                field=view.name,
            )

    def accept(self) -> None:
        """Take what the views have now for what they had at the last tick."""
        for view in self._program.views:
            self._connection.execute(
                f"create or replace table {_BEFORE}.{quoted(view.name)} as "
                f"select {self._casts(view.name)} from {_NOW}.{quoted(view.name)}"
            )

    def create_view_of(self, name: str, rows: pa.Table) -> None:
        """Take these rows for a view, in place of its SQL."""
        create(self._connection, f"{_NOW}.{quoted(name)}", rows.schema, rows.to_batches())

    def query(self, sql: str) -> pa.Table:
        """The result of a query over the inputs and views."""
        return self._table(sql)

    def _casts(self, view: str) -> str:
        return ", ".join(
            f"cast({quoted(name)} as {kind}) as {quoted(name)}"
            for name, kind in self._stored[view].items()
        )

    def _table(self, sql: str) -> pa.Table:
        return fetched(self._connection, sql)
