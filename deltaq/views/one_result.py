"""Why the SQL of a view has no single right result over the same rows, from the query as DuckDB
parses it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from deltaq.tools.duckdb_tables import tables_read
from deltaq.views.query import NOW, Functions, Node, bare, lowered, named, nodes
from deltaq.views.rows_apart import (
    Alike,
    Column,
    Reference,
    RowsApart,
    is_renamed,
    is_total,
    output_columns,
    queries_of_with,
    references,
)

_TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})
"""Functions in FROM that read nothing from outside."""

_OF_THE_MOMENT = frozenset({"current_date", "current_time", "localtime", "localtimestamp"})
"""Names without a bracket that DuckDB takes for functions."""

_OF_THE_SESSION = frozenset(
    {
        *("current_localtime", "current_localtimestamp", "current_query", "current_setting"),
        *("getvariable", "vector_type"),
    }
)
"""Functions whose result depends on more than their arguments, though DuckDB's catalogue has them
for stable ones.
"""

_TELL_TIME = _OF_THE_MOMENT | {
    *("current_localtime", "current_localtimestamp"),
    *("age", "get_current_time", "get_current_timestamp", "today", "transaction_timestamp"),
}
"""Functions that have the time of the tick as an alternative."""

_IN_ANY_ORDER = frozenset(
    {"any_value", "approx_quantile", "arbitrary", "first", "last", "reservoir_quantile"}
)
"""Aggregates whose result depends on the order of the rows, which a table does not have."""

_OF_TIES = frozenset(
    {
        *("arg_max", "arg_max_null", "arg_max_nulls_last", "argmax", "max_by"),
        *("arg_min", "arg_min_null", "arg_min_nulls_last", "argmin", "min_by"),
        *("approx_top_k", "mode"),
    }
)
"""Aggregates that choose one of several values that are equal in their order."""

_IN_GIVEN_ORDER = frozenset({"array_agg", "group_concat", "list", "listagg", "string_agg"})
"""Aggregates whose result depends on the order that their ORDER BY gives."""

_SORTS = frozenset({"array_reverse_sort", "array_sort", "list_reverse_sort", "list_sort"})
"""Functions that sort a list by its values."""

_WITHOUT_ORDER = frozenset({"json_group_array", "json_group_object", "json_group_structure"})
"""Such aggregates that take no ORDER BY."""

_RANKS = frozenset({"WINDOW_RANK", "WINDOW_RANK_DENSE", "WINDOW_PERCENT_RANK", "WINDOW_CUME_DIST"})
"""Window functions that treat equal rows alike."""

_REMEDY = (
    "add columns to its ORDER BY until no two rows are equal, such as _partition and _offset of a "
    "topic, or the key of a view"
)


def why_not(
    query: Node,
    functions: Functions,
    keys: Mapping[str, tuple[str, ...] | None],
    are_alike: Alike,
) -> Iterator[str]:
    """Why a query may have several results over the same rows, in words that follow its name.
    `keys` are the row keys of the views, by their name in lower case; None for a view or table
    without. `are_alike` is asked about the comparisons of joins on which the answer depends.
    """
    read = lowered(table for schema, table in tables_read(query) if not schema)
    apart = RowsApart(functions, keys, queries_of_with(query, read), are_alike)
    sorted_lists = set(map(id, _sorted_lists(query)))
    for node, select in _within(query, None):
        kind = node.get("class")
        if node.get("type") == "TABLE_FUNCTION":
            yield from _of_table_function(node["function"])
        elif node.get("type") == "SHOW_REF":
            yield "reads what SHOW, DESCRIBE or SUMMARIZE tell, which are neither topics nor views"
        elif node.get("type") == "JOIN":
            yield from _of_join(node, apart)
        elif kind == "COLLATE":
            yield "uses COLLATE, by which different texts are equal; write lower(x)"
        elif kind == "FUNCTION" and id(node) not in sorted_lists:
            yield from _of_function(node, select, apart)
        elif kind == "COLUMN_REF" and _of_the_moment(node["column_names"]):
            yield _unstable(node["column_names"][0], node["column_names"][0].lower())
        if node.get("type") == "SELECT_NODE":
            yield from _of_select(node, apart)
        elif node.get("type") == "SET_OPERATION_NODE":
            yield from _of_limit(node, apart)
        if node.get("sample"):
            yield "takes a sample of rows"


def _within(node: object, select: Node | None) -> Iterator[tuple[Node, Node | None]]:
    """All nodes below one, and itself, each with the innermost SELECT that it is in."""
    if isinstance(node, list):
        for inner in node:
            yield from _within(inner, select)
    elif isinstance(node, dict):
        yield node, select
        if node.get("type") == "SELECT_NODE":
            select = node
        for inner in node.values():
            yield from _within(inner, select)


def _sorted_lists(query: Node) -> Iterator[Node]:
    """The aggregates whose lists are sorted, as DuckDB parses list(x ORDER BY x)."""
    for node in nodes(query):
        if node.get("class") == "FUNCTION" and node["function_name"] in _SORTS:
            (inner, *_) = node["children"] or [{}]
            if inner.get("class") == "FUNCTION" and inner["function_name"] in _IN_GIVEN_ORDER:
                yield inner


def _of_the_moment(names: Sequence[str]) -> bool:
    return len(names) == 1 and names[0].lower() in _OF_THE_MOMENT


def _unstable(shown: str, name: str) -> str:
    remedy = "; the time of the tick is now()" if name in _TELL_TIME else ""
    return f"calls {shown}, which changes from moment to moment{remedy}"


def _of_table_function(function: Node) -> Iterator[str]:
    name = str(function["function_name"])
    if name not in _TABLE_FUNCTIONS:
        yield f"reads {name}(), which is neither a topic nor a view"


def _of_join(join: Node, apart: RowsApart) -> Iterator[str]:
    if join["ref_type"] == "POSITIONAL":
        yield "has a POSITIONAL JOIN, which depends on the order of the rows; join by columns"
    elif join["ref_type"] == "ASOF" and not apart.finds_one(join, "right"):
        yield (
            "has an ASOF JOIN, which chooses one of several rows where they are equal; join a view "
            "on its right side, and compare all columns of its row key, each column with the name "
            "of its table"
        )


def _of_function(node: Node, select: Node | None, apart: RowsApart) -> Iterator[str]:
    name, arguments = str(node["function_name"]), node["children"]
    is_unstable = name in apart.functions.unstable | _OF_THE_SESSION and name != NOW
    if is_unstable or (name == "age" and len(arguments) == 1):
        yield _unstable(f"{name}()", name)
    elif name in _IN_ANY_ORDER:
        yield f"calls {name}(), whose result depends on the order of the rows; use min or max"
    elif name in _WITHOUT_ORDER:
        yield (
            f"calls {name}(), whose result depends on the order of the rows; write "
            "to_json(list(x ORDER BY x))"
        )
    elif name in _OF_TIES:
        yield (
            f"calls {name}(), which chooses one of several rows where they are equal; for the x of "
            "the greatest t write max({'t': t, 'x': x}).x"
        )
    elif name in _IN_GIVEN_ORDER and arguments:
        orders = _orders(node["order_bys"])
        of_itself = bare(arguments[0]) in [bare(order) for order in orders]
        if not (of_itself or (select is not None and _is_total_in(select, orders, apart))):
            yield (
                f"calls {name}(), whose result depends on the order of the rows; order it by the "
                f"value itself: {name}(x ORDER BY x)"
            )


def _is_total_in(select: Node, orders: Sequence[Node], apart: RowsApart) -> bool:
    """Whether an order tells the rows apart that a query reads."""
    return is_total(apart.of_table(select["from_table"]), {*references(orders)})


def _of_select(select: Node, apart: RowsApart) -> Iterator[str]:
    yield from _of_limit(select, apart)
    orders = _orders(_modifiers(select).get("ORDER_MODIFIER"))
    for modifier in select["modifiers"]:
        is_on = modifier["type"] == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets")
        if is_on and not _is_total_of(select, orders, apart):
            yield f"has a DISTINCT ON whose rows depend on their order; {_REMEDY}"
    # Those of subqueries are checked with these.
    for node in nodes([select["select_list"], select["qualify"], select["modifiers"]]):
        if node.get("class") == "WINDOW" and node["type"] not in _RANKS and _minds_ties(node):
            ordered = _orders({"orders": node["orders"]}) + list(node["partitions"])
            if not is_total(apart.of_groups(select), {*references(ordered)}):
                name = node["function_name"] or node["type"].removeprefix("WINDOW_").lower()
                yield f"calls {name}() over an order in which rows may be equal; {_REMEDY}"


def _modifiers(query: Node) -> dict[str, Node]:
    return {modifier["type"]: modifier for modifier in query["modifiers"]}


def _of_limit(query: Node, apart: RowsApart) -> Iterator[str]:
    modifiers = _modifiers(query)
    if any(map(_chooses, modifiers.values())):
        orders = _orders(modifiers.get("ORDER_MODIFIER"))
        is_all = any(order["class"] == "STAR" for order in orders)
        if not (is_all or _is_total_of(query, orders, apart)):
            yield f"has a LIMIT whose rows depend on their order; {_REMEDY}, or ORDER BY ALL"


def _chooses(modifier: Node) -> bool:
    """Whether a modifier is a LIMIT or OFFSET that takes some of several rows."""
    if modifier["type"] not in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
        return False
    limit, offset = map(_constant, (modifier["limit"], modifier["offset"]))
    return limit != 0 and not (limit is None and offset in (None, 0))


def _constant(expression: Node | None) -> object:
    """The value of a constant, None for no expression or NULL; other expressions as they are."""
    if expression is None or expression["class"] != "CONSTANT":
        return expression
    return None if expression["value"]["is_null"] else expression["value"].get("value")


def _is_total_of(query: Node, orders: Sequence[Node], apart: RowsApart) -> bool:
    """Whether the ORDER BY of a query tells the rows of its result apart."""
    columns = query["select_list"] if query["type"] == "SELECT_NODE" else []
    # A name that is given to a column of the result is not that of a column that is read; within
    # an expression DuckDB takes it for the latter first.
    given = {str(column["alias"]).lower() for column in columns if is_renamed(column)}
    direct = {*references(order for order in orders if order["class"] != "FUNCTION")}
    direct.update(_placed(query, orders))
    within = {*references(order for order in orders if order["class"] == "FUNCTION")}
    clear = {(table, name) for table, name in within if table is not None or name not in given}
    read = {(table, name) for table, name in direct if table is not None or name not in given}
    is_of_rows = bool(columns) and is_total(apart.of_rows(query), read | clear)
    return is_of_rows or is_total(apart.of_outputs(query), direct | clear)


def _placed(query: Node, orders: Iterable[Node]) -> Iterator[Reference]:
    """The columns by whose places the rows of a result are ordered."""
    names = [*takewhile(lambda column: column is not None, output_columns(query))]
    for order in orders:
        name = named(order, [*map(_bare_name, names)]) if order["class"] == "CONSTANT" else None
        if name is not None:
            yield None, name


def _bare_name(column: Column | None) -> str | None:
    return next((name for table, name in column or () if table is None), None)


def _minds_ties(window: Node) -> bool:
    """Whether a window function may treat rows differently that are equal in its order."""
    is_of_order = window["function_name"] in _IN_ANY_ORDER | _IN_GIVEN_ORDER | _OF_TIES
    is_aggregate = window["type"] == "WINDOW_AGGREGATE" and not is_of_order
    frame = f"{window['start']} {window['end']}"
    return not is_aggregate or "ROWS" in frame or "GROUPS" in frame


def _orders(modifier: Node | None) -> list[Node]:
    return [] if modifier is None else [order["expression"] for order in modifier.get("orders", [])]
