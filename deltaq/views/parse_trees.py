"""Whether two texts are the same SQL to DuckDB, from its parse trees. Pure.

sqlglot reads and writes some SQL in another way than DuckDB, such as `~`, or drops an argument that
it does not know. Rules on such a reading are right while there are no rows that tell it from the
view's own, so that no comparison of rows finds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltaq.errors import InvalidConfig
from deltaq.views.query import Node, nodes
from deltaq.views.rules import NoRule

_NOT_COMPARED = frozenset({"query_location", "is_operator"})
"""Parts of a tree that change nothing: where it stands in the text, and how a call is written."""

_NAMES = frozenset({"column_names", "table_name", "function_name", "schema", "schema_name"})
"""What DuckDB compares without regard to case."""

_SAME_FUNCTIONS: Mapping[str, str] = {
    "array_append": "list_append",
    "array_prepend": "list_prepend",
    "datediff": "date_diff",
    "datepart": "date_part",
    "datesub": "date_sub",
    "datetrunc": "date_trunc",
    "json_extract_path": "json_extract",
    "json_extract_path_text": "->>",
    "json_extract_string": "->>",
    "list_has_any": "&&",
    "substr": "substring",
}
"""Names of one function, of which DuckDB's catalogue has only some."""

_OF_DATE_PARTS = frozenset({"date_diff", "date_part", "date_sub", "date_trunc"})
"""Functions of the name of a part of a date, in any case."""

_DEFAULT_ORDER = {"ASCENDING": "ORDER_DEFAULT", "NULLS LAST": "ORDER_DEFAULT"}

_WHOLE = re.compile(r"-?\d{1,9}")
_SPAN = re.compile(r"(-?\d{1,9}) (second|minute|hour|day|week|month|year)s?")
_KEY = r"[^.*\[\]\"'\\/$#]+"
_JSON_KEY = re.compile(rf"{_KEY}|\$\.{_KEY}|\$\.\"{_KEY}\"")


@dataclass(frozen=True, slots=True)
class SqlReader:
    """What DuckDB reads in SQL: `types` are the columns of a query with their types, and `parsed`
    is its parse tree, or raises InvalidConfig. `aliases` are functions by the names that they have
    besides.
    """

    types: Callable[[str], Mapping[str, str]]
    parsed: Callable[[str], Node]
    aliases: Mapping[str, str]

    def check_written(self, sql: str, written: str) -> None:
        """Raise NoRule unless a text is the same SQL as the view's."""
        found = difference(self.parsed(sql), self._of_sqlglot(written), self.aliases)
        if found is not None:
            own, other = found
            how = "in another way" if own == other else f"as {other}"
            raise NoRule(f"sqlglot writes {own} {how}")

    def check_qualified(self, sql: str, written: str) -> None:
        """Raise NoRule if a text has a function or constant that the SQL of the view has not."""
        foreign = foreign_part(self.parsed(sql), self._of_sqlglot(written), self.aliases)
        if foreign is not None:
            raise NoRule(f"sqlglot reads {foreign}, which is not in the SQL")

    def _of_sqlglot(self, written: str) -> Node:
        try:
            return self.parsed(written)
        except InvalidConfig:
            raise NoRule("sqlglot writes it in a way that DuckDB does not read") from None


def difference(own: object, other: object, aliases: Mapping[str, str]) -> tuple[str, str] | None:
    """The first part in which parsed queries differ, for people; None if they are the same.
    `aliases` are DuckDB's functions by the names that they have besides.
    """
    found = _differing(_normal(own, aliases), _normal(other, aliases))
    return None if found is None else (_shown(found[0]), _shown(found[1]))


def foreign_part(own: object, other: object, aliases: Mapping[str, str]) -> str | None:
    """A function or constant of a parsed query that another one does not have, for people. Neither
    the order of parts nor how often they are there is compared.
    """
    known = {repr(part) for part in _parts(_normal(own, aliases))}
    for part in _parts(_normal(other, aliases)):
        if repr(part) not in known:
            return str(part[0])
    return None


def _parts(tree: object) -> Iterator[tuple[object, object]]:
    for node in nodes(tree):
        if node.get("class") in ("FUNCTION", "WINDOW"):
            # The alias of an argument is the name of a field of a struct.
            fields = [child["alias"] for child in node["children"]]
            yield f"{node['function_name']}({', '.join(fields)})", "function"
        elif node.get("class") == "CONSTANT" and not _is_true(node):
            yield repr(node["value"].get("value")), node["value"]["type"]


def _differing(own: Any, other: Any) -> tuple[Any, Any] | None:
    """The innermost parts that differ, each a node, where there is one."""
    if isinstance(own, dict) and isinstance(other, dict) and own.keys() == other.keys():
        pairs = [(own[name], other[name]) for name in own]
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        pairs = [*zip(own, other, strict=True)]
    else:
        return None if own == other else (own, other)
    for one, two in pairs:
        found = _differing(one, two)
        if found is not None:
            is_named = all("class" in side for side in found if isinstance(side, dict))
            are_nodes = isinstance(found[0], dict) and isinstance(found[1], dict)
            return found if (are_nodes and is_named) or isinstance(own, list) else (own, other)
    return None


def _shown(node: Any) -> str:
    if not isinstance(node, dict):
        return "another number of parts"
    if node.get("class") == "CONSTANT":
        return repr(node["value"].get("value"))
    if node.get("class") == "COLUMN_REF":
        return ".".join(node["column_names"])
    return str(node.get("function_name") or node.get("type") or "another part")


# --- one form of what is the same ---


def _normal(node: Any, aliases: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_normal(inner, aliases) for inner in node]
    if not isinstance(node, dict):
        return node
    found = {
        name: _lower(inner) if name in _NAMES else _normal(inner, aliases)
        for name, inner in node.items()
        if name not in _NOT_COMPARED
    }
    if found.get("class") in ("FUNCTION", "WINDOW"):
        return _call(found, aliases)
    return _FORMS.get(found.get("class"), _part)(found)


def _lower(names: Any) -> Any:
    return [name.lower() for name in names] if isinstance(names, list) else names.lower()


def _call(call: Node, aliases: Mapping[str, str]) -> Node:
    name = call["function_name"]
    name = aliases.get(name, name)
    call["function_name"] = name = _SAME_FUNCTIONS.get(name, name)
    call["schema"] = "" if call["schema"] == "main" else call["schema"]
    values = call["children"]
    if name in _OF_DATE_PARTS and values and _text(values[0]) is not None:
        values[0]["value"]["value"] = values[0]["value"]["value"].lower()
    elif name in ("bool_and", "bool_or") and len(values) == 1 and _is_cast(values[0], "BOOLEAN"):
        values[0] = values[0]["child"]
    elif name in ("range", "generate_series") and len(values) == 1:
        values.insert(0, _number(0))
    elif name == "string_agg" and len(values) == 1:
        values.append(_of_text(","))
    elif name == "date_add" and len(values) == 2:
        call["function_name"] = "+"
    elif name == "->>" and len(values) == 2:
        values[1] = _path(values[1])
    elif name == "json_extract" and len(values) == 2:
        path, alias = _path(values[1]), call["alias"]
        return {"class": "LAMBDA", "type": "LAMBDA", "alias": alias, "lhs": values[0], "expr": path}
    elif name == "list_sort" and len(values) == 3:
        return _ordered_list(call, *values)
    elif name in ("quantile_cont", "quantile_disc") and len(values) == 1:
        # `percentile_cont(0.5) WITHIN GROUP (ORDER BY x)` is `quantile_cont(x, 0.5 ORDER BY x)`.
        orders = call["order_bys"]["orders"]
        if len(orders) == 1 and orders[0]["type"] == "ORDER_DEFAULT":
            values.insert(0, orders[0]["expression"])
    return call


def _ordered_list(call: Node, values: Node, kind: Node, nulls: Node) -> Node:
    """`list(x ORDER BY x)`, which DuckDB parses as `list_sort(list(x), ...)`."""
    of_list = values.get("function_name") == "list" and len(values["children"]) == 1
    if not of_list or _text(kind) is None or _text(nulls) is None:
        return call
    order = {
        "type": _DEFAULT_ORDER.get(_text(kind) or "", _text(kind)),
        "null_order": _DEFAULT_ORDER.get(_text(nulls) or "", _text(nulls)),
        "expression": values["children"][0],
    }
    orders = values["order_bys"] | {"orders": [order]}
    return values | {"order_bys": orders, "alias": call["alias"]}


def _part(part: Node) -> Node:
    """A part of SQL that is no expression."""
    if part.get("type") == "UNBOUND_TYPE_INFO":  # a type that is no word of the grammar
        part["name"] = part["name"].lower()
    elif "null_order" in part:
        for name in ("type", "null_order"):
            part[name] = _DEFAULT_ORDER.get(part[name], part[name])
    elif part.get("join_type") == "INNER" and _is_true(part["condition"]):
        # `a, unnest(a.x)` is `a JOIN unnest(a.x) ON true`.
        part |= {"condition": None, "ref_type": "CROSS"}
    return part


def _operator(operator: Node) -> Node:
    """An operator. `x IS NOT NULL` is `NOT x IS NULL`."""
    inner = operator["children"][0]
    if operator["type"] != "OPERATOR_NOT" or inner["type"] != "OPERATOR_IS_NULL":
        return operator
    return operator | {"type": "OPERATOR_IS_NOT_NULL", "children": inner["children"]}


def _lambda(call: Node) -> Node:
    """A lambda, or `->` of JSON, which is parsed as one."""
    return call | {"expr": _path(call["expr"])}


def _cast(cast: Node) -> Node:
    """A cast. `INTERVAL 1 DAY` and `INTERVAL '1' DAY` cast 1 to a number, and `INTERVAL '1 day'` is
    a cast of text.
    """
    text, kind = _text(cast["child"]), cast["cast_type"]["id"]
    if text is None:
        return cast
    if kind == "BOOLEAN" and text in ("t", "f"):  # the words `true` and `false`
        return _of_type(kind, text == "t") | {"alias": cast["alias"]}
    if kind == "INTERVAL" and not _SPAN.fullmatch(text):
        return cast | {"child": _of_text(text.lower())}
    if kind == "DOUBLE" and _WHOLE.fullmatch(text):
        return cast | {"child": _number(int(text))}
    span = _SPAN.fullmatch(text) if kind == "INTERVAL" else None
    return cast if span is None else _interval(int(span[1]), span[2], cast["alias"])


def _interval(number: int, unit: str, alias: str) -> Node:
    """What DuckDB parses `INTERVAL number unit` as."""
    value = _cast_to("DOUBLE", _number(number))
    if unit != "second":
        kind = "BIGINT" if unit in ("minute", "hour") else "INTEGER"
        value = _cast_to(kind, _function("trunc", value))
    return _function(f"to_{unit}s", value) | {"alias": alias}


def _function(name: str, value: Node) -> Node:
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": "",
        "function_name": name,
        "schema": "",
        "children": [value],
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "export_state": False,
        "catalog": "",
    }


def _cast_to(kind: str, value: Node) -> Node:
    of_type = {"id": kind, "type_info": None}
    return {
        "class": "CAST",
        "type": "OPERATOR_CAST",
        "alias": "",
        "child": value,
        "cast_type": of_type,
        "try_cast": False,
    }


def _number(value: int) -> Node:
    return _of_type("INTEGER", value)


def _of_text(value: str) -> Node:
    return _of_type("VARCHAR", value)


def _of_type(kind: str, value: object) -> Node:
    of_type = {"id": kind, "type_info": None}
    found = {"type": of_type, "is_null": False, "value": value}
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "value": found}


def _constant(constant: Node) -> Node:
    """A constant. `.5` and `0.5` are decimals of other widths."""
    info = constant["value"]["type"].get("type_info")
    if info and "width" in info:
        info["width"] = None
    return constant


def _path(value: Node) -> Node:
    """A path into JSON: `'a'` is `'$.a'`, and 0 is `'$[0]'`."""
    text = _text(value)
    if text is not None and _JSON_KEY.fullmatch(text):
        return _of_text("$." + text.removeprefix("$.").strip('"'))
    number = value["value"].get("value") if value["class"] == "CONSTANT" else None
    is_place = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    return _of_text(f"$[{number}]") if is_place else value


def _text(node: Node) -> str | None:
    """The text that a node is; None if it is another value."""
    is_text = node["class"] == "CONSTANT" and node["value"]["type"]["id"] == "VARCHAR"
    value = node["value"].get("value") if is_text else None
    return value if isinstance(value, str) else None


def _is_true(node: Node | None) -> bool:
    """Whether a node is the constant `true`."""
    return bool(node and node["class"] == "CONSTANT" and node["value"].get("value") is True)


def _is_cast(node: Node, kind: str) -> bool:
    return bool(node["class"] == "CAST" and node["cast_type"]["id"] == kind)


_FORMS: Mapping[object, Callable[[Node], Node]] = {
    "CAST": _cast,
    "CONSTANT": _constant,
    "LAMBDA": _lambda,
    "OPERATOR": _operator,
}
"""What makes one form of the expressions of a class, by class."""
