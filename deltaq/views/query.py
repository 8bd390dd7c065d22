"""What the SQL of a view says, from the query as DuckDB parses it: the columns that tell its rows
apart, and why it has no single right result, if it has none. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Node: TypeAlias = "dict[str, Any]"

_PLACE = frozenset({"_partition", "_offset"})
"""The columns that tell the records of a topic apart."""

_TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})
"""Functions in FROM that read nothing from outside."""

_OF_THE_MOMENT = frozenset({"current_date", "current_time", "localtime", "localtimestamp"})
"""Names without a bracket that DuckDB takes for functions."""

_NOW, _TIMESTAMP = "now", "current_timestamp"
"""What is the time of the tick: a function, and a name without a bracket."""

_TELL_TIME = _OF_THE_MOMENT | {
    *("age", "get_current_time", "get_current_timestamp", "today", "transaction_timestamp")
}
"""Functions that have the time of the tick as an alternative."""

_FLAT = frozenset({"unlist", "unnest"})
"""Functions that make a row of each value of a list."""

_IN_ANY_ORDER = frozenset(
    {"any_value", "approx_quantile", "arbitrary", "first", "last", "reservoir_quantile"}
)
"""Aggregates whose result depends on the order of the rows, which a table does not have."""

_OF_TIES = frozenset(
    {
        *("arg_max", "arg_max_null", "arg_max_nulls_last", "max_by"),
        *("arg_min", "arg_min_null", "arg_min_nulls_last", "min_by"),
        *("approx_top_k", "mode"),
    }
)
"""Aggregates that choose one of several values that are equal in their order."""

_IN_GIVEN_ORDER = frozenset({"array_agg", "group_concat", "list", "listagg", "string_agg"})
"""Aggregates whose result depends on the order that their ORDER BY gives."""

_RANKS = frozenset({"WINDOW_RANK", "WINDOW_RANK_DENSE", "WINDOW_PERCENT_RANK", "WINDOW_CUME_DIST"})
"""Window functions that treat equal rows alike."""

_REMEDY = (
    "add columns to its ORDER BY until no two rows are equal, such as _partition and _offset of a "
    "topic, or the key of a view"
)


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of DuckDB, by its catalogue: `aggregates`, and those that are `unstable`, whose
    result depends on more than their arguments.
    """

    aggregates: frozenset[str]
    unstable: frozenset[str]


# --- the key of a row ---


def row_key(query: Node, functions: Functions) -> tuple[str, ...] | None:
    """The columns of the result that tell its rows apart: those of GROUP BY or DISTINCT, and no
    column for a query that returns one row. None if the query does not tell.
    """
    (statement,) = query["statements"]
    select = statement["node"]
    if select["type"] != "SELECT_NODE":
        return None
    columns = select["select_list"]
    is_flat = any(map(_makes_rows, columns))
    is_by_all = select["aggregate_handling"] == "FORCE_AGGREGATES"
    if (is_by_all or select["group_expressions"]) and not is_flat:
        return _group_key(select, functions, is_by_all=is_by_all)
    distinct = [found for found in select["modifiers"] if found["type"] == "DISTINCT_MODIFIER"]
    if distinct:
        return None if distinct[0].get("distinct_on_targets") else _whole(map(_name, columns))
    is_one_row = not is_flat and all(_has_aggregate(column, functions) for column in columns)
    return () if is_one_row and select["qualify"] is None else None


def _group_key(select: Node, functions: Functions, *, is_by_all: bool) -> tuple[str, ...] | None:
    columns = select["select_list"]
    names = [_name(column) for column in columns]
    if is_by_all:
        pairs = zip(names, columns, strict=True)
        return _whole(name for name, column in pairs if not _has_aggregate(column, functions))
    if len(select["group_sets"]) > 1:
        return None
    groups = select["group_expressions"]
    grouped = {name for name in map(_reference, groups) if name is not None}
    return _whole(_column_of(group, columns, names, grouped) for group in groups)


def _makes_rows(column: Node) -> bool:
    """Whether a column makes several rows of each."""
    return any(
        node.get("class") == "FUNCTION" and node["function_name"] in _FLAT
        for node in _nodes(column)
    )


def _whole(names: Iterable[str | None]) -> tuple[str, ...] | None:
    given = tuple(names)
    known = tuple(name for name in given if name is not None)
    return known if len(known) == len(given) else None


def _name(column: Node) -> str | None:
    """The name of a column of the result; None if it is that of an expression, or of many."""
    if column["alias"]:
        return str(column["alias"])
    return _reference(column)


def _reference(node: Node) -> str | None:
    """The name of the column to which an expression refers; None for another expression."""
    return str(node["column_names"][-1]) if node["class"] == "COLUMN_REF" else None


def _column_of(
    group: Node, columns: Sequence[Node], names: Sequence[str | None], grouped: Collection[str]
) -> str | None:
    """The column of the result that has the value of an expression of GROUP BY. `grouped` are the
    columns that GROUP BY names.

    A name may be that of a column of the result, or of one that the query reads, which DuckDB
    takes first. It is that of the result where its expression reads anything that is not grouped.
    """
    if group["class"] == "CONSTANT":
        place = group["value"].get("value")
        return names[place - 1] if isinstance(place, int) and 0 < place <= len(names) else None
    wanted, name_of_group = _bare(group), _reference(group)
    for column, name in zip(columns, names, strict=True):
        if _bare(column) == wanted:
            return name
    for column, name in zip(columns, names, strict=True):
        if column["alias"] and column["alias"] == name_of_group:
            return name if _references(column) - set(grouped) else None
    return None


def _references(node: Node) -> set[str]:
    """The names of the columns that an expression reads."""
    return {name for found in _nodes(node) if "class" in found and (name := _reference(found))}


def _bare(node: object) -> object:
    """An expression without its name and its place in the text."""
    if isinstance(node, dict):
        return {
            name: _bare(inner)
            for name, inner in node.items()
            if name not in ("alias", "query_location")
        }
    return [_bare(inner) for inner in node] if isinstance(node, list) else node


def _has_aggregate(node: Node, functions: Functions) -> bool:
    return any(
        found["class"] == "FUNCTION" and found["function_name"] in functions.aggregates
        for found in _nodes(node)
        if "class" in found
    )


def _nodes(node: object) -> Iterator[Node]:
    """All nodes below one, and itself."""
    if isinstance(node, list):
        for inner in node:
            yield from _nodes(inner)
    elif isinstance(node, dict):
        yield node
        for inner in node.values():
            yield from _nodes(inner)


# --- the time of the tick ---


def calls_now(query: Node) -> bool:
    """Whether a query calls what is the time of the tick."""
    return any(
        (node.get("class") == "FUNCTION" and node["function_name"] == _NOW)
        or (node.get("class") == "COLUMN_REF" and _is_timestamp(node["column_names"]))
        for node in _nodes(query)
    )


def _is_timestamp(names: Sequence[str]) -> bool:
    return len(names) == 1 and names[0].lower() == _TIMESTAMP


# --- what has no single right result ---


def why_not(
    query: Node, functions: Functions, keys: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    """Why a query may have several results over the same rows, in words that follow its name.
    `keys` are the row keys of the views, by their name in lower case.
    """
    for node in _nodes(query):
        kind = node.get("class")
        if node.get("type") == "TABLE_FUNCTION":
            yield from _of_table_function(node["function"])
        elif kind == "FUNCTION":
            yield from _of_function(node, functions)
        elif kind == "COLUMN_REF" and _of_the_moment(node["column_names"]):
            yield _unstable(node["column_names"][0], node["column_names"][0].lower())
        if node.get("type") == "SELECT_NODE":
            yield from _of_select(node, keys)
        elif node.get("type") == "SET_OPERATION_NODE":
            yield from _of_limit(node, _outputs(node), [])
        if node.get("sample"):
            yield "takes a sample of rows"


def _of_the_moment(names: Sequence[str]) -> bool:
    return len(names) == 1 and names[0].lower() in _OF_THE_MOMENT


def _unstable(shown: str, name: str) -> str:
    remedy = "; the time of the tick is now()" if name in _TELL_TIME else ""
    return f"calls {shown}, which changes from moment to moment{remedy}"


def _of_table_function(function: Node) -> Iterator[str]:
    name = str(function["function_name"])
    if name not in _TABLE_FUNCTIONS:
        yield f"reads {name}(), which is neither a topic nor a view"


def _of_function(node: Node, functions: Functions) -> Iterator[str]:
    name, arguments = str(node["function_name"]), node["children"]
    orders = _orders(node["order_bys"])
    if (name in functions.unstable and name != _NOW) or (name == "age" and len(arguments) == 1):
        yield _unstable(f"{name}()", name)
    elif name in _IN_ANY_ORDER:
        yield f"calls {name}(), whose result depends on the order of the rows; use min or max"
    elif name in _OF_TIES:
        yield (
            f"calls {name}(), which chooses one of several rows where they are equal; for the x of "
            "the greatest t write max({'t': t, 'x': x}).x"
        )
    elif name in _IN_GIVEN_ORDER and arguments:
        of_itself = _bare(arguments[0]) in [_bare(order) for order in orders]
        if not of_itself and not set(map(_reference, orders)) >= _PLACE:
            yield (
                f"calls {name}(), whose result depends on the order of the rows; order it by the "
                f"value itself: {name}(x ORDER BY x)"
            )


def _of_select(select: Node, keys: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    outputs = [_name(column) for column in select["select_list"]]
    unique = [_PLACE, *_keys_of(select, keys)]
    modifiers = _modifiers(select)
    yield from _of_limit(select, outputs, unique)
    for modifier in select["modifiers"]:
        if modifier["type"] == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets"):
            names = {_reference(o) for o in _orders(modifiers.get("ORDER_MODIFIER"))}
            if not _is_total(names, unique):
                yield f"has a DISTINCT ON whose rows depend on their order; {_REMEDY}"
    # Those of subqueries are checked with these.
    for node in _nodes([select["select_list"], select["qualify"]]):
        if node.get("class") == "WINDOW" and node["type"] not in _RANKS and _minds_ties(node):
            ordered = _orders({"orders": node["orders"]}) + list(node["partitions"])
            if not _is_total(set(map(_reference, ordered)), unique):
                name = node["function_name"] or node["type"].removeprefix("WINDOW_").lower()
                yield f"calls {name}() over an order in which rows may be equal; {_REMEDY}"


def _modifiers(query: Node) -> dict[str, Node]:
    return {modifier["type"]: modifier for modifier in query["modifiers"]}


def _outputs(query: Node) -> list[str | None]:
    """The names of the columns of a query; those of its first one for a set operation."""
    while query["type"] == "SET_OPERATION_NODE":
        query = query["left"]
    return [_name(column) for column in query.get("select_list", ())] or [None]


def _of_limit(
    query: Node, outputs: Sequence[str | None], unique: Sequence[Collection[str | None]]
) -> Iterator[str]:
    modifiers = _modifiers(query)
    if "LIMIT_MODIFIER" in modifiers or "LIMIT_PERCENT_MODIFIER" in modifiers:
        orders = _orders(modifiers.get("ORDER_MODIFIER"))
        names = {_ordered_by(order, outputs) for order in orders}
        is_all = any(order["class"] == "STAR" for order in orders)
        if not (is_all or _is_total(names, [*unique, _columns(outputs)])):
            yield f"has a LIMIT whose rows depend on their order; {_REMEDY}, or ORDER BY ALL"


def _minds_ties(window: Node) -> bool:
    """Whether a window function may treat rows differently that are equal in its order."""
    is_of_order = window["function_name"] in _IN_ANY_ORDER | _IN_GIVEN_ORDER | _OF_TIES
    is_aggregate = window["type"] == "WINDOW_AGGREGATE" and not is_of_order
    frame = f"{window['start']} {window['end']}"
    return not is_aggregate or "ROWS" in frame or "GROUPS" in frame


def _orders(modifier: Node | None) -> list[Node]:
    return [] if modifier is None else [order["expression"] for order in modifier.get("orders", [])]


def _ordered_by(order: Node, outputs: Sequence[str | None]) -> str | None:
    if order["class"] == "CONSTANT":
        place = order["value"].get("value")
        return outputs[place - 1] if isinstance(place, int) and 0 < place <= len(outputs) else None
    return _reference(order)


def _columns(outputs: Sequence[str | None]) -> frozenset[str | None]:
    """The columns of a result that tell its rows apart, all together: unknown for `*`."""
    return frozenset({""}) if None in outputs else frozenset(outputs)


def _is_total(names: Collection[str | None], unique: Sequence[Collection[str | None]]) -> bool:
    return any(set(names) >= set(columns) for columns in unique)


def _keys_of(select: Node, keys: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The row key of the view that a query reads, if it reads no other table."""
    table = select["from_table"]
    if table["type"] != "BASE_TABLE":
        return []
    key = keys.get(str(table["table_name"]).lower())
    return [] if key is None else [key]
