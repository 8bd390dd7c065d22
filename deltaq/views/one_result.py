"""Why the SQL of a view has no single right result over the same rows, from the query as DuckDB
parses it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

from deltaq.tools.duckdb_tables import tables_read
from deltaq.views.query import (
    NOW,
    Functions,
    Node,
    bare,
    is_grouped,
    lowered,
    makes_rows,
    name_of,
    named,
    nodes,
    placed,
    reference,
    select_key,
)

_PLACE = frozenset({"_partition", "_offset"})
"""The columns that tell the records of a topic apart."""

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

Names = frozenset[str]
"""Names of columns, in lower case."""


def why_not(
    query: Node, functions: Functions, keys: Mapping[str, tuple[str, ...] | None]
) -> Iterator[str]:
    """Why a query may have several results over the same rows, in words that follow its name.
    `keys` are the row keys of the views, by their name in lower case; None for one without.
    """
    read = lowered(table for schema, table in tables_read(query) if not schema)
    apart = _Apart(functions, keys, _queries_of_with(query, read))
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
            yield from _of_limit(node, _outputs(node), [], "")
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


# --- what tells rows apart ---


@dataclass(frozen=True, slots=True)
class _Apart:
    """Finds the columns that tell the rows of a table or query apart: each of the sets does. `keys`
    are those of views, and `subqueries` those of WITH; None for a name that something else has too.
    """

    functions: Functions
    keys: Mapping[str, tuple[str, ...] | None]
    subqueries: Mapping[str, Node | None]

    def of_table(self, table: Node) -> list[Names]:
        """Those of what stands in FROM; those of its first table for a join."""
        if table.get("column_name_alias"):
            return []
        if table["type"] == "SUBQUERY":
            return self.of_query(table["subquery"]["node"])
        if table["type"] == "JOIN":
            is_kept = table["join_type"] in ("INNER", "LEFT") and self.finds_one(table)
            return self.of_table(table["left"]) if is_kept else []
        return self._of_name(table) if table["type"] == "BASE_TABLE" else []

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

    def of_query(self, query: Node) -> list[Names]:
        """Those of the result of a query, by the names of its columns."""
        if query["type"] != "SELECT_NODE":
            return []
        key = select_key(query, self.functions)
        found = [] if key is None else [lowered(key)]
        return found + [names for names in self.of_rows(query) if _passes(query, names)]

    def of_rows(self, select: Node) -> list[Names]:
        """Those of the rows of a query, by the names of what it reads, if it neither groups nor
        multiplies them.
        """
        if is_grouped(select) or any(
            makes_rows(of, self.functions) for of in select["select_list"]
        ):
            return []
        return self.of_table(select["from_table"])

    def of_groups(self, select: Node) -> list[Names]:
        """Those of the rows over which windows are: of groups, if a query has any."""
        if not is_grouped(select):
            return self.of_table(select["from_table"])
        names = placed(select["select_list"])
        groups = [named(group, names) for group in select["group_expressions"]]
        return _all_of(groups) if len(select["group_sets"]) == 1 else []

    def finds_one(self, join: Node) -> bool:
        """Whether a join has at most one row on its right side for each on the left: its condition
        compares what tells them apart with values of other tables.
        """
        right = _name_of_table(join["right"])
        compared = set(map(str.lower, join["using_columns"]))
        for part in _conjuncts(join["condition"]):
            is_equality = part["type"] == "COMPARE_EQUAL"
            if part["class"] == "COMPARISON" and (is_equality or join["ref_type"] == "ASOF"):
                sides = part["left"], part["right"]
                for side, other in (sides, sides[::-1]):
                    if _is_of_others(other, right):
                        compared.update(_own_name(side, right, is_qualified=True))
        return any(names <= compared for names in self.of_table(join["right"]))


def _queries_of_with(query: Node, read: Names) -> dict[str, Node | None]:
    """The queries that have names within a query, by them in lower case; None where two have it, or
    a table that the query reads.
    """
    found: dict[str, Node | None] = {}
    for node in nodes(query):
        for entry in node["cte_map"]["map"] if "cte_map" in node else ():
            name = str(entry["key"]).lower()
            is_one = name not in found and name not in read
            found[name] = entry["value"]["query"]["node"] if is_one else None
    return found


def _conjuncts(condition: Node | None) -> Iterator[Node]:
    if condition is not None and condition["type"] == "CONJUNCTION_AND":
        yield from chain.from_iterable(map(_conjuncts, condition["children"]))
    elif condition is not None:
        yield condition


def _name_of_table(table: Node) -> str:
    """The name by which columns of a table are known; that of the first one for a join."""
    while table["type"] == "JOIN":
        table = table["left"]
    return str(table.get("alias") or table.get("table_name", "")).lower()


def _own_name(node: Node, table: str, *, is_qualified: bool = False) -> Iterator[str]:
    """The name of a column, in lower case, if an expression is one of this table: one that names
    no table may be, unless `is_qualified`.
    """
    if node["class"] == "COLUMN_REF":
        *qualifiers, name = map(str.lower, node["column_names"])
        if qualifiers[-1:] == [table] or not (qualifiers or is_qualified):
            yield name


def _is_of_others(node: Node, table: str) -> bool:
    """Whether all columns of an expression are of other tables than this one, by their names."""
    names = [found["column_names"] for found in nodes(node) if found.get("class") == "COLUMN_REF"]
    return all(len(name) > 1 and name[-2].lower() != table for name in names)


def _passes(select: Node, names: Names) -> bool:
    """Whether columns of what a query reads are in its result by the same names."""
    table, columns = _name_of_table(select["from_table"]), select["select_list"]
    kept = {name for column in columns if not _renamed(column) for name in _own_name(column, table)}
    has_all = any(_is_whole(column, table) for column in columns)
    return not names & _given(select) and (has_all or names <= kept)


def _renamed(column: Node) -> bool:
    return bool(column["alias"]) and column["alias"] != reference(column)


def _given(select: Node) -> set[str]:
    """The names that a query gives to expressions: ORDER BY takes them for these."""
    return {str(column["alias"]).lower() for column in select["select_list"] if _renamed(column)}


def _is_whole(column: Node, table: str) -> bool:
    """Whether a column of a result is all columns of a table."""
    changes = ("exclude_list", "qualified_exclude_list", "replace_list", "rename_list", "expr")
    return (
        column["class"] == "STAR"
        and not any(column.get(change) for change in changes)
        and column["relation_name"].lower() in ("", table)
    )


# --- what is refused ---


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


def _of_join(join: Node, apart: _Apart) -> Iterator[str]:
    if join["ref_type"] == "POSITIONAL":
        yield "has a POSITIONAL JOIN, which depends on the order of the rows; join by columns"
    elif join["ref_type"] == "ASOF" and not apart.finds_one(join):
        yield (
            "has an ASOF JOIN, which chooses one of several rows where they are equal; join a view "
            "on its right side, and compare all columns of its row key, each column with the name "
            "of its table"
        )


def _of_function(node: Node, select: Node | None, apart: _Apart) -> Iterator[str]:
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


def _is_total_in(select: Node, orders: Sequence[Node], apart: _Apart) -> bool:
    """Whether an order tells the rows apart that a query reads."""
    table = select["from_table"]
    return _is_total(_names(orders, _name_of_table(table)), apart.of_table(table))


def _of_select(select: Node, apart: _Apart) -> Iterator[str]:
    table = _name_of_table(select["from_table"])
    modifiers = _modifiers(select)
    unique = [names for names in apart.of_rows(select) if not names & _given(select)]
    if (key := select_key(select, apart.functions)) is not None:
        unique.append(lowered(key))
    yield from _of_limit(select, _outputs(select), unique, table)
    for modifier in select["modifiers"]:
        if modifier["type"] == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets"):
            names = _names(_orders(modifiers.get("ORDER_MODIFIER")), table)
            if not _is_total(names, [*unique, *_all_of(_outputs(select))]):
                yield f"has a DISTINCT ON whose rows depend on their order; {_REMEDY}"
    # Those of subqueries are checked with these.
    for node in nodes([select["select_list"], select["qualify"], select["modifiers"]]):
        if node.get("class") == "WINDOW" and node["type"] not in _RANKS and _minds_ties(node):
            ordered = _orders({"orders": node["orders"]}) + list(node["partitions"])
            if not _is_total(_names(ordered, table), apart.of_groups(select)):
                name = node["function_name"] or node["type"].removeprefix("WINDOW_").lower()
                yield f"calls {name}() over an order in which rows may be equal; {_REMEDY}"


def _modifiers(query: Node) -> dict[str, Node]:
    return {modifier["type"]: modifier for modifier in query["modifiers"]}


def _outputs(query: Node) -> list[str | None]:
    """The names of the columns of a query; those of its first one for a set operation."""
    while query["type"] == "SET_OPERATION_NODE":
        query = query["left"]
    return [name_of(column) for column in query.get("select_list", ())] or [None]


def _of_limit(
    query: Node, outputs: Sequence[str | None], unique: Sequence[Names], table: str
) -> Iterator[str]:
    modifiers = _modifiers(query)
    if "LIMIT_MODIFIER" in modifiers or "LIMIT_PERCENT_MODIFIER" in modifiers:
        orders = _orders(modifiers.get("ORDER_MODIFIER"))
        renamed = _given(query) if query["type"] == "SELECT_NODE" else set()
        # A name of a column that is given to another one is the other one, unless it has its table.
        orders = [order for order in orders if not _is_hidden(order, renamed)]
        names = {name for order in orders for name in _ordered_by(order, outputs, table)}
        is_all = any(order["class"] == "STAR" for order in orders)
        if not (is_all or _is_total(names, [*unique, *_all_of(outputs)])):
            yield f"has a LIMIT whose rows depend on their order; {_REMEDY}, or ORDER BY ALL"


def _is_hidden(order: Node, renamed: Collection[str]) -> bool:
    """Whether an order is by a column of a table whose name another column of the result has."""
    names = order["column_names"] if order["class"] == "COLUMN_REF" else []
    return len(names) > 1 and names[-1].lower() in renamed


def _minds_ties(window: Node) -> bool:
    """Whether a window function may treat rows differently that are equal in its order."""
    is_of_order = window["function_name"] in _IN_ANY_ORDER | _IN_GIVEN_ORDER | _OF_TIES
    is_aggregate = window["type"] == "WINDOW_AGGREGATE" and not is_of_order
    frame = f"{window['start']} {window['end']}"
    return not is_aggregate or "ROWS" in frame or "GROUPS" in frame


def _orders(modifier: Node | None) -> list[Node]:
    return [] if modifier is None else [order["expression"] for order in modifier.get("orders", [])]


def _names(orders: Iterable[Node], table: str) -> set[str]:
    """The columns of a table by which rows are ordered."""
    return {name for order in orders for name in _own_name(order, table)}


def _ordered_by(order: Node, outputs: Sequence[str | None], table: str) -> Iterator[str]:
    """The column that an expression of the ORDER BY of a query is."""
    if order["class"] != "CONSTANT":
        yield from _own_name(order, table)
    elif (
        name := named(order, list(takewhile(lambda name: name is not None, outputs)))
    ) is not None:
        yield name.lower()


def _all_of(outputs: Sequence[str | None]) -> list[Names]:
    """The columns of a result, which tell its rows apart all together; unknown for `*`, and where
    two have one name.
    """
    names = lowered(name for name in outputs if name is not None)
    return [names] if len(names) == len(outputs) else []


def _is_total(names: Collection[str], unique: Iterable[Names]) -> bool:
    return any(columns <= set(names) for columns in unique)
