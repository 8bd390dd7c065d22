"""Which columns tell the rows of a query apart, from the query as DuckDB parses it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, product
from typing import TypeAlias

from deltaq.views.query import (
    Functions,
    Node,
    all_references,
    has_aggregate,
    is_by_all,
    is_grouped,
    lowered,
    makes_rows,
    name_of,
    nodes,
    placed_column,
    reference,
    select_key,
)

Names: TypeAlias = frozenset[str]
"""Names of columns, in lower case."""

Reference: TypeAlias = "tuple[str | None, str]"
"""A column as an expression names it, in lower case: by its table, None without one, and name."""

Column: TypeAlias = frozenset[Reference]
"""A column: all references that name it where it is read."""

Key: TypeAlias = frozenset[Column]
"""Columns that tell rows apart all together."""

_PLACE = frozenset({"_partition", "_offset"})
"""The columns that tell the records of a topic apart."""

_ORDERS = frozenset(
    {
        *("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"),
        *("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"),
    }
)

_STRUCTS = frozenset({"row", "struct_pack"})
"""Functions whose values are equal where all of their arguments are."""

_KEYS_AT_ONCE = 64
"""Keys of a join that are looked at: each table doubles them."""


@dataclass(frozen=True, slots=True)
class KeyComparison:
    """A join compares a column of its side `side`, which tells rows of that apart, with an
    expression over its side `other`.
    """

    column: Node
    side: Node
    expression: Node
    other: Node


Alike: TypeAlias = Callable[[KeyComparison], bool]
"""Whether a comparison finds at most one value of its column: it compares without a cast by which
different values become equal.
"""


@dataclass(frozen=True, slots=True)
class RowsApart:
    """Finds the keys of tables and queries. `keys` are those of views, and `subqueries` the queries
    of WITH; None for a name that something else has too, and for what has no key.
    """

    functions: Functions
    keys: Mapping[str, tuple[str, ...] | None]
    subqueries: Mapping[str, Node | None]
    are_alike: Alike

    def of_table(self, table: Node) -> list[Key]:
        """Those of what stands in FROM."""
        if table.get("column_name_alias"):
            return []
        if table["type"] == "JOIN":
            return self._of_join(table)
        found: list[Names] = []
        if table["type"] == "SUBQUERY":
            found = self.of_query(table["subquery"]["node"])
        elif table["type"] == "BASE_TABLE":
            found = self._of_name(table)
        own = _name_of_table(table)
        return [frozenset(frozenset({(own, name), (None, name)}) for name in key) for key in found]

    def _of_name(self, table: Node) -> list[Names]:
        name = str(table["table_name"]).lower()
        if table.get("schema_name"):
            return [_PLACE]  # of a topic whose name has a dot
        if name in self.subqueries:
            query = self.subqueries[name]
            return [] if query is None else self.of_query(query)
        if name in self.keys:
            key = self.keys[name]
            return [] if key is None else [lowered(key)]
        return [_PLACE]

    def _of_join(self, join: Node) -> list[Key]:
        kind, left, right = join["join_type"], *map(self.of_table, (join["left"], join["right"]))
        if kind in ("SEMI", "ANTI"):
            return left
        # Both sides of a FULL JOIN may have a key of nulls, and no partner.
        if kind not in ("INNER", "LEFT", "RIGHT") or join["ref_type"] == "POSITIONAL":
            return []
        merged = None if join["ref_type"] == "NATURAL" else lowered(join["using_columns"])
        right = [_unmerged(key, merged) for key in right]
        if kind == "RIGHT":
            left = [_unmerged(key, merged) for key in left]
        found = [_both(one, other) for one, other in product(left, right)]
        if kind != "RIGHT" and self.finds_one(join, "right"):
            found += left
        # Rows of a query in FROM may differ for each row on the left, though their keys do not.
        if kind != "LEFT" and _is_of_names(join["right"]) and self.finds_one(join, "left"):
            found += right
        return _smallest(found)

    def of_query(self, query: Node) -> list[Names]:
        """Those of the result of a query, by the names of its columns."""
        if query["type"] != "SELECT_NODE":
            return []
        found = []
        key, names = select_key(query, self.functions), _names_of_outputs(query)
        if key is not None and all(names.count(name) == 1 for name in lowered(key)):
            found = [lowered(key)] if not key or None not in names else []
        for columns in self.of_rows(query):
            outputs = [_output_of(query, column) for column in columns]
            if None not in outputs:
                found.append(frozenset(name for name in outputs if name is not None))
        return found

    def of_rows(self, select: Node) -> list[Key]:
        """Those of the rows of a query, by what it reads, if it neither groups nor multiplies
        them.
        """
        if is_grouped(select) or any(
            makes_rows(of, self.functions) for of in select["select_list"]
        ):
            return []
        return self.of_table(select["from_table"])

    def of_groups(self, select: Node) -> list[Key]:
        """Those of the rows over which windows are: of groups, if a query has any."""
        if not is_grouped(select):
            return self.of_table(select["from_table"])
        columns = select["select_list"]
        if is_by_all(select):
            groups = [column for column in columns if not has_aggregate(column, self.functions)]
        elif len(select["group_sets"]) == 1:
            groups = [placed_column(of, columns) or of for of in select["group_expressions"]]
        else:
            return []
        # A name of a column of the result is that of a column that is read, if there is one.
        read = {name.lower() for group in groups for name in all_references(group)}
        return _key_of([_group_column(group, read, select["from_table"]) for group in groups])

    def of_outputs(self, query: Node) -> list[Key]:
        """Those of the rows of a result, by the names that its ORDER BY takes for its columns."""
        outputs, names = output_columns(query), _names_of_outputs(query)
        found = _key_of(outputs)
        key = select_key(query, self.functions) if query["type"] == "SELECT_NODE" else None
        if key is not None and all(names.count(name) == 1 for name in lowered(key)):
            of_key = [outputs[names.index(name)] for name in lowered(key)]
            found.append(frozenset(column for column in of_key if column is not None))
        return found

    def finds_one(self, join: Node, side: str) -> bool:
        """Whether a join has at most one row on a side for each on the other: its condition
        compares what tells them apart with values of the other side.
        """
        compared = [*_compared(join, side)]
        return any(
            all(
                any(of in column and self.are_alike(comparison) for of, comparison in compared)
                for column in key
            )
            for key in self.of_table(join[side])
        )


def queries_of_with(query: Node, read: Names) -> dict[str, Node | None]:
    """The queries that have names within a query, by them in lower case; None where two have it, or
    a table that the query reads, and where WITH names their columns anew.
    """
    found: dict[str, Node | None] = {}
    for node in nodes(query):
        for entry in node["cte_map"]["map"] if "cte_map" in node else ():
            name = str(entry["key"]).lower()
            is_one = name not in found and name not in read and not entry["value"]["aliases"]
            found[name] = entry["value"]["query"]["node"] if is_one else None
    return found


def is_total(keys: Iterable[Key], ordered: AbstractSet[Reference]) -> bool:
    """Whether an order by these columns tells rows with these keys apart."""
    return any(all(column & ordered for column in key) for key in keys)


def references(orders: Iterable[Node]) -> Iterator[Reference]:
    """The columns by which expressions order rows, also those within a struct."""
    for order in orders:
        if order["class"] == "FUNCTION" and order["function_name"] in _STRUCTS:
            yield from references(order["children"])
        elif (found := reference_of(order)) is not None:
            yield found


def reference_of(node: Node) -> Reference | None:
    """The column that an expression is; None for another expression, and for a field."""
    if node["class"] != "COLUMN_REF" or len(node["column_names"]) > 2:
        return None
    *table, name = map(str.lower, node["column_names"])
    return (table[0] if table else None), name


def output_columns(query: Node) -> list[Column | None]:
    """The columns of a result, as its ORDER BY names them; None for `*` and expressions without a
    name. Those of its first query for a set operation.
    """
    if query["type"] == "SELECT_NODE":
        table = query["from_table"]
        return [_output_column(column, table) for column in query["select_list"]]
    names = _names_of_outputs(query)
    return [None if name is None else frozenset({(None, name)}) for name in names]


def is_renamed(column: Node) -> bool:
    """Whether a column of a result has another name than what it is."""
    return bool(column["alias"]) and column["alias"] != reference(column)


# --- columns ---


def _names_of_outputs(query: Node) -> list[str | None]:
    """The names of the columns of a query, in lower case; those of its first one for a set
    operation.
    """
    while query["type"] == "SET_OPERATION_NODE":
        if query["setop_type"] == "UNION_BY_NAME":
            return [None]  # the second one may have more
        query = query["left"]
    names = [name_of(column) for column in query.get("select_list", ())] or [None]
    return [None if name is None else name.lower() for name in names]


def _output_column(column: Node, table: Node) -> Column | None:
    name = name_of(column)
    if name is None:
        return None
    qualified = {found for found in _of_column(column, table) if found[0] is not None}
    return frozenset({(None, name.lower()), *qualified})


def _of_column(column: Node, table: Node) -> set[Reference]:
    """The references to a column, which is read from a table."""
    found = reference_of(column)
    if found is None:
        return set()
    if found[0] is None and table["type"] != "JOIN":
        return {found, (_name_of_table(table), found[1])}
    return {found, (None, found[1])}


def _group_column(group: Node, read: AbstractSet[str], table: Node) -> Column | None:
    """A column by which rows are grouped, as windows name it."""
    found = _of_column(group, table)
    if is_renamed(group):
        alias = group["alias"].lower()
        if alias in read:
            return None
        found.add((None, alias))
    return frozenset(found) or None


def _key_of(columns: Sequence[Column | None]) -> list[Key]:
    """The key of all these columns; none where one is unknown, or two have one name."""
    known = [column for column in columns if column is not None]
    is_clear = len(known) == len(columns) and len(set(chain(*known))) == sum(map(len, known))
    return [frozenset(known)] if is_clear else []


def _output_of(select: Node, column: Column) -> str | None:
    """The name in the result of a column of what a query reads."""
    columns, names = select["select_list"], _names_of_outputs(select)
    stars = [found for found in columns if found["class"] == "STAR"]
    if not stars:
        found = (
            name
            for output, name in zip(columns, names, strict=True)
            if reference_of(output) in column and names.count(name) == 1
        )
        return next(found, None)
    # Beside `*`, only columns of the first table keep their names: later ones may be called `n_1`.
    first = _name_of_table(select["from_table"])
    name = next((name for table, name in column if table == first), None)
    is_hidden = any(
        of == name and reference_of(output) not in column
        for output, of in zip(columns, names, strict=True)
    )
    is_kept = _is_whole(stars[0], first) and (None, name) in column and not is_hidden
    return name if is_kept else None


def _is_whole(column: Node, table: str) -> bool:
    """Whether a column of a result is all columns of a table."""
    changes = ("exclude_list", "qualified_exclude_list", "replace_list", "rename_list", "expr")
    return (
        column["class"] == "STAR"
        and not any(column.get(change) for change in changes)
        and column["relation_name"].lower() in ("", table)
    )


# --- joins ---


def _name_of_table(table: Node) -> str:
    """The name by which columns of a table are known; that of the first one for a join."""
    while table["type"] == "JOIN":
        table = table["left"]
    return str(table.get("alias") or table.get("table_name", "")).lower()


def _tables(table: Node) -> Iterator[str]:
    """The names by which columns of what stands in FROM are known."""
    if table["type"] != "JOIN":
        yield _name_of_table(table)
        return
    yield from _tables(table["left"])
    if table["join_type"] not in ("SEMI", "ANTI"):
        yield from _tables(table["right"])


def _is_of_names(table: Node) -> bool:
    """Whether tables that have names are joined only."""
    if table["type"] == "JOIN":
        return _is_of_names(table["left"]) and _is_of_names(table["right"])
    return bool(table["type"] == "BASE_TABLE")


def _unmerged(key: Key, merged: Names | None) -> Key:
    """A key without the bare names that a join takes for those of its other side; None for any."""
    return frozenset(
        frozenset(
            (table, name)
            for table, name in column
            if table is not None or (merged is not None and name not in merged)
        )
        for column in key
    )


def _both(one: Key, other: Key) -> Key:
    """The key of the rows of a join, in which a bare name is that of one column."""
    bare, also = (
        {name for of in key for table, name in of if table is None} for key in (one, other)
    )
    twice = frozenset(bare & also)
    return _unmerged(one, twice) | _unmerged(other, twice)


def _smallest(keys: Iterable[Key]) -> list[Key]:
    """The keys that have no other one in them."""
    found: list[Key] = []
    for key in sorted(keys, key=len):
        if not any(one <= key for one in found):
            found.append(key)
    return found[:_KEYS_AT_ONCE]


def _compared(join: Node, side: str) -> Iterator[tuple[Reference, KeyComparison]]:
    """The columns of a side of a join that its condition compares with the other side."""
    own, other = join[side], join["left" if side == "right" else "right"]
    for name in join["using_columns"]:
        column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}
        yield (None, name.lower()), KeyComparison(column, own, column, other)
    here, there = {*_tables(own)}, {*_tables(other)}
    for part in _conjuncts(join["condition"]):
        # Of the rows that an order leaves, an ASOF JOIN has the first one.
        is_order = join["ref_type"] == "ASOF" and side == "right" and part["type"] in _ORDERS
        if part["class"] == "COMPARISON" and (part["type"] == "COMPARE_EQUAL" or is_order):
            sides = part["left"], part["right"]
            for column, expression in (sides, sides[::-1]):
                found = reference_of(column)
                if found is not None and found[0] in here and _is_of(expression, there):
                    yield found, KeyComparison(column, own, expression, other)


def _conjuncts(condition: Node | None) -> Iterator[Node]:
    if condition is not None and condition["type"] == "CONJUNCTION_AND":
        yield from chain.from_iterable(map(_conjuncts, condition["children"]))
    elif condition is not None:
        yield condition


def _is_of(node: Node, tables: AbstractSet[str]) -> bool:
    """Whether all columns of an expression are of these tables, by their names."""
    names = [found["column_names"] for found in nodes(node) if found.get("class") == "COLUMN_REF"]
    return all(len(name) > 1 and name[0].lower() in tables for name in names)
