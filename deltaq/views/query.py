"""What the SQL of a view says, from the query as DuckDB parses it: the columns that tell its rows
apart, and whether it reads the time. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

Node: TypeAlias = "dict[str, Any]"

NOW, _TIMESTAMP = "now", "current_timestamp"
"""What is the time of the tick: a function, and a name without a bracket."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of DuckDB, by its catalogue: `aggregates`; those that are `unstable`, whose
    result depends on more than their arguments; and those that make `rows` of a value.
    """

    aggregates: frozenset[str]
    unstable: frozenset[str]
    rows: frozenset[str]


# --- the key of a row ---


def row_key(query: Node, functions: Functions) -> tuple[str, ...] | None:
    """The columns of the result that tell its rows apart: those of GROUP BY or DISTINCT, and no
    column for a query that returns one row. None if the query does not tell.
    """
    (statement,) = query["statements"]
    select = statement["node"]
    return select_key(select, functions) if select["type"] == "SELECT_NODE" else None


def select_key(select: Node, functions: Functions) -> tuple[str, ...] | None:
    """The row key of one SELECT of a query; see `row_key`."""
    columns = select["select_list"]
    is_flat = any(makes_rows(column, functions) for column in columns)
    if is_grouped(select) and not is_flat:
        return _group_key(select, functions)
    distinct = [found for found in select["modifiers"] if found["type"] == "DISTINCT_MODIFIER"]
    if distinct:
        return None if distinct[0].get("distinct_on_targets") else _whole(map(name_of, columns))
    is_one_row = not is_flat and all(has_aggregate(column, functions) for column in columns)
    return () if is_one_row and select["qualify"] is None else None


def is_grouped(select: Node) -> bool:
    """Whether a query has GROUP BY."""
    return is_by_all(select) or bool(select["group_expressions"])


def is_by_all(select: Node) -> bool:
    """Whether a query has GROUP BY ALL."""
    return bool(select["aggregate_handling"] == "FORCE_AGGREGATES")


def _group_key(select: Node, functions: Functions) -> tuple[str, ...] | None:
    columns = select["select_list"]
    names = [name_of(column) for column in columns]
    if is_by_all(select):
        if _groups_by_having(select, functions):
            return None
        pairs = zip(names, columns, strict=True)
        return _whole(name for name, column in pairs if not has_aggregate(column, functions))
    if len(select["group_sets"]) > 1:
        return None
    groups = select["group_expressions"]
    grouped = {name for name in map(reference, groups) if name is not None}
    return _whole(_column_of(group, columns, names, grouped) for group in groups)


def _groups_by_having(select: Node, functions: Functions) -> bool:
    """Whether GROUP BY ALL may group by a column in HAVING, too: one outside of aggregates that the
    result does not have as it is.
    """
    known = {
        name
        for column in select["select_list"]
        if (name := name_of(column)) is not None
        and (has_aggregate(column, functions) or reference(column) == name)
    }
    return not lowered(_bare_references(select["having"], functions)) <= lowered(known)


def _bare_references(node: object, functions: Functions) -> Iterator[str]:
    """The names of the columns that an expression reads outside of aggregates."""
    if isinstance(node, list):
        for inner in node:
            yield from _bare_references(inner, functions)
    elif isinstance(node, dict) and node.get("function_name") not in functions.aggregates:
        name = reference(node) if "class" in node else None
        if name is not None:
            yield name
        yield from _bare_references([*node.values()], functions)


def makes_rows(column: Node, functions: Functions) -> bool:
    """Whether a column makes several rows of each."""
    return any(
        node.get("class") == "FUNCTION" and node["function_name"] in functions.rows
        for node in nodes(column)
    )


def reads_column(query: Node, column: str) -> bool:
    """Whether an expression of a query is a column of this name, in lower case."""
    return column in lowered(all_references(query))


def lowered(names: Iterable[str]) -> frozenset[str]:
    """Names as DuckDB compares them."""
    return frozenset(name.lower() for name in names)


def _whole(names: Iterable[str | None]) -> tuple[str, ...] | None:
    given = tuple(names)
    known = tuple(name for name in given if name is not None)
    # Two columns of one name have other names in the result.
    return known if len(lowered(known)) == len(given) else None


def name_of(column: Node) -> str | None:
    """The name of a column of the result; None if it is that of an expression, or of many."""
    if column["alias"]:
        return str(column["alias"])
    return reference(column)


def reference(node: Node) -> str | None:
    """The name of the column to which an expression refers; None for another expression."""
    return str(node["column_names"][-1]) if node["class"] == "COLUMN_REF" else None


def named(expression: Node, names: Sequence[str | None]) -> str | None:
    """The name of a column that stands in GROUP BY or ORDER BY by its name or, in the columns with
    these names, by its place; None for another expression.
    """
    if expression["class"] != "CONSTANT":
        return reference(expression)
    place = _place(expression)
    return names[place - 1] if 0 < place <= len(names) else None


def placed_column(expression: Node, columns: Sequence[Node]) -> Node | None:
    """The column that stands in GROUP BY by its place; None for another expression."""
    before = [*takewhile(lambda column: column["class"] != "STAR", columns)]
    place = _place(expression)
    return before[place - 1] if 0 < place <= len(before) else None


def _place(expression: Node) -> int:
    """The place that an expression of GROUP BY or ORDER BY is; 0 for another expression."""
    place = expression["value"].get("value") if expression["class"] == "CONSTANT" else None
    return place if isinstance(place, int) else 0


def placed(columns: Sequence[Node]) -> list[str | None]:
    """The names of columns whose places are known: those before the first `*`."""
    before = takewhile(lambda column: column["class"] != "STAR", columns)
    return [name_of(column) for column in before]


def _column_of(
    group: Node, columns: Sequence[Node], names: Sequence[str | None], grouped: Collection[str]
) -> str | None:
    """The column of the result that has the value of an expression of GROUP BY. `grouped` are the
    columns that GROUP BY names.

    A name may be that of a column of the result, or of one that the query reads, which DuckDB
    takes first. It is that of the result where its expression reads anything that is not grouped.
    """
    if group["class"] == "CONSTANT":
        return named(group, placed(columns))
    wanted, name_of_group = bare(group), reference(group)
    for column, name in zip(columns, names, strict=True):
        if bare(column) == wanted:
            return name
    for column, name in zip(columns, names, strict=True):
        if column["alias"] and column["alias"] == name_of_group:
            return name if all_references(column) - set(grouped) else None
    return None


def all_references(node: Node) -> set[str]:
    """The names of the columns that an expression reads."""
    return {name for found in nodes(node) if "class" in found and (name := reference(found))}


def bare(node: object) -> object:
    """An expression without its name and its place in the text."""
    if isinstance(node, dict):
        return {
            name: bare(inner)
            for name, inner in node.items()
            if name not in ("alias", "query_location")
        }
    return [bare(inner) for inner in node] if isinstance(node, list) else node


def has_aggregate(node: object, functions: Functions) -> bool:
    """Whether an expression has an aggregate of its own query."""
    if isinstance(node, list):
        return any(has_aggregate(inner, functions) for inner in node)
    if not isinstance(node, dict) or node.get("class") == "SUBQUERY":
        return False
    is_one = node.get("class") == "FUNCTION" and node["function_name"] in functions.aggregates
    return is_one or has_aggregate([*node.values()], functions)


def nodes(node: object) -> Iterator[Node]:
    """All nodes below one, and itself."""
    if isinstance(node, list):
        for inner in node:
            yield from nodes(inner)
    elif isinstance(node, dict):
        yield node
        for inner in node.values():
            yield from nodes(inner)


# --- the time of the tick ---


def calls_now(query: Node) -> bool:
    """Whether a query calls what is the time of the tick."""
    return any(
        (node.get("class") == "FUNCTION" and node["function_name"] == NOW)
        or (node.get("class") == "COLUMN_REF" and _is_timestamp(node["column_names"]))
        for node in nodes(query)
    )


def _is_timestamp(names: Sequence[str]) -> bool:
    return len(names) == 1 and names[0].lower() == _TIMESTAMP
