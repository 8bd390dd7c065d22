"""Whether the joins of a view compare row keys with values of their type: a cast makes different
values equal, such as the texts '1' and '01' as numbers, so several rows may match one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from deltaq.errors import InvalidConfig
from deltaq.tools.duckdb_tables import (
    Connection,
    connected,
    described,
    naming,
    parsed,
    tables_read,
)
from deltaq.views.one_result import why_not
from deltaq.views.program import EXTRA, View, ViewProgram, functions_of
from deltaq.views.query import Node, lowered, nodes
from deltaq.views.rows_apart import KeyComparison, queries_of_with

_INTEGERS = frozenset(
    {
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    }
)
"""Types that DuckDB compares as integers, without loss."""


def check_compared(connection: Connection, program: ViewProgram, view: View) -> None:
    """Raise InvalidConfig, naming the view, if its order is total only as far as different values
    of a row key stay different where a join compares them. The tables that it reads are there.
    """
    if not view.compares_keys:
        return
    query = parsed(connection, view.sql)
    with connected(EXTRA, threads=1) as other:
        functions = functions_of(other)
    types = _ComparedTypes(connection, query)
    for reason in why_not(query, functions, program.row_keys, types.are_alike):
        hints = "".join(f"; {hint}" for hint in types.hints)
        raise InvalidConfig(f"view {view.name!r} {reason}{hints}", key=view.name)


@dataclass(eq=False)
class _ComparedTypes:
    """The types of what joins of a query compare, as DuckDB binds them. `hints` are about those
    that differ.
    """

    connection: Connection
    query: Node
    hints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        read = lowered(table for schema, table in tables_read(self.query) if not schema)
        queries = queries_of_with(self.query, read)
        self._unclear = {name for name, found in queries.items() if found is None}
        self._with = [
            entry
            for node in nodes(self.query)
            if "cte_map" in node
            for entry in node["cte_map"]["map"]
            if str(entry["key"]).lower() not in self._unclear
        ]

    def are_alike(self, comparison: KeyComparison) -> bool:
        """Whether DuckDB compares without a cast, or with one of integers."""
        key = self._type(comparison.column, comparison.side)
        other = self._type(comparison.expression, comparison.other)
        if key is not None and (key == other or {key, other} <= _INTEGERS):
            return True
        name = comparison.column["column_names"][-1]
        hint = (
            f"a join compares {name!r} of type {key or 'unknown'} with {other or 'unknown'}, by "
            f"which different values may be equal: compare it with a value of its type, such as "
            f"CAST(x AS {key or 'BIGINT'})"
        )
        if hint not in self.hints:
            self.hints.append(hint)
        return False

    def _type(self, expression: Node, table: Node) -> str | None:
        """The type of an expression over what stands in FROM; None where DuckDB finds it only with
        the rest of the query, and where a name is that of two things.
        """
        if self._unclear & {str(of.get("table_name", "")).lower() for of in nodes(table)}:
            return None
        asked = parsed(self.connection, "select 1 as x")
        (statement,) = asked["statements"]
        select = statement["node"]
        select["select_list"] = [{**expression, "alias": "x"}]
        select["from_table"] = table
        select["cte_map"] = {"map": self._with}
        try:
            with naming("", ""):
                row = self.connection.execute(
                    "select json_deserialize_sql(?::json)", [json.dumps(asked)]
                ).fetchone()
                (sql,) = row or ("",)
                return described(self.connection, sql)["x"]
        except InvalidConfig:
            return None
