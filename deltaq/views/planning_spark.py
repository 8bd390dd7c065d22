"""The SQL of views for Spark: its text, and what Spark would answer in another way than DuckDB.

A view is for Spark only if all parts of its SQL are known here to give the same rows in both, with
`SPARK_SETTINGS`. What is not known is refused with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import traverse_scope

from deltaq.views.incremental import NOW
from deltaq.views.planning_names import refuse_names
from deltaq.views.planning_parts import unread
from deltaq.views.rules import NoRule

SPARK_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # Overflow and casts that do not fit are errors, as in DuckDB.
        "spark.sql.ansi.enabled": "true",
        # Products of decimals have all of their digits, or are errors.
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "false",
        # In text, a backslash is written twice.
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.ansi.doubleQuotedIdentifiers": "false",
        # Days and times before 1900 are written as they are.
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    }
)
"""Settings of Spark under which SQL that is not refused has the rows that it has in DuckDB."""

_DUCKDB, _SPARK = "duckdb", "spark"

_TYPES = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INTEGER": "int",
    "BIGINT": "bigint",
    "HUGEINT": "decimal(38,0)",
    "FLOAT": "float",
    "DOUBLE": "double",
    "VARCHAR": "string",
    "BLOB": "binary",
    "DATE": "date",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
}

_T = exp.DataType.Type

_FAMILIES: Mapping[object, str] = {
    _T.TINYINT: "small integer",
    _T.SMALLINT: "small integer",
    _T.INT: "integer",
    _T.BIGINT: "integer",
    _T.INT128: "integer",
    _T.DECIMAL: "decimal",
    _T.FLOAT: "float",
    _T.DOUBLE: "float",
    _T.TEXT: "text",
    _T.VARCHAR: "text",
    _T.VARBINARY: "bytes",
    _T.BOOLEAN: "boolean",
    _T.DATE: "date",
    _T.TIMESTAMPTZ: "time",
    _T.NULL: "null",
}

_EXACT = frozenset({"small integer", "integer", "decimal"})

_CASTS = frozenset(
    {
        ("small integer", "decimal"),
        ("small integer", "float"),
        ("integer", "float"),
        ("small integer", "integer"),
        ("small integer", "text"),
        ("integer", "small integer"),
        ("integer", "decimal"),
        ("integer", "text"),
        ("boolean", "text"),
        ("boolean", "integer"),
    }
)
"""Casts to another family that have one result. Others round, format or parse in ways of their own:
DuckDB rounds 2.5 to 3, Spark to 2.
"""

_FLOAT_DIGITS = 15
"""A decimal with so many digits is one float, and the other way round."""

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_DECIMAL_TYPE = re.compile(r"DECIMAL\(\d+,\d+\)")
_DECIMAL = re.compile(r"\d+\.\d*|\.\d+")

WEIGHT_COLUMN: Final = "_w"
"""The column with the weight of a row."""


def spark_type(kind: str) -> str | None:
    """The type in Spark for a type of DuckDB; None if there is none with the same values."""
    return kind.lower() if _DECIMAL_TYPE.fullmatch(kind) else _TYPES.get(kind)


def table_of(text: str) -> str:
    """The name of a temporary view of Spark for a table, as DuckDB's SQL names it."""
    table = parse_one(f"from {text}", dialect=_DUCKDB).args["from_"].this
    return _table_name(table.db, table.name)


def _table_name(schema: str, name: str) -> str:
    """The same in parts: temporary views have no schema."""
    plain = re.sub(r"[^a-z0-9]", lambda found: f"_{ord(found[0]):x}_", name.lower())
    return f"{schema}_{plain}"


# --- Spark's SQL ---


def spark_sql(sql: str) -> str:
    """A statement of rules, as Spark takes it."""
    return _written(parse_one(sql, dialect=_DUCKDB))


def spark_query(sql: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """The SQL of a view in full, as Spark takes it. `columns` are those of tables, with types."""
    tree = _qualified(sql, columns)
    for scope in traverse_scope(tree):
        for table in scope.sources.values():
            if isinstance(table, exp.Table):
                name = f"{table.db}.{table.name}" if table.db else table.name
                table.set("db", exp.to_identifier(NOW))
                table.set("this", exp.to_identifier(name, quoted=True))
    return _written(tree)


def _written(tree: exp.Expr) -> str:
    return tree.transform(_as_of_spark).sql(dialect=_SPARK)


def _as_of_spark(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Table) and node.db:
        name = exp.to_identifier(_table_name(node.db, node.name))
        return exp.Table(this=name, alias=node.args.get("alias"))
    if isinstance(node, exp.Table) and isinstance(node.this, exp.GenerateSeries):
        return _copies(node.this.args["end"].sql(dialect=_SPARK))
    if isinstance(node, exp.CTE):
        node.set("materialized", None)
    elif isinstance(node, exp.DataType) and node.this == _T.INT128:
        return exp.DataType.build("decimal(38,0)")
    elif isinstance(node, exp.Avg):
        # That of Spark rounds averages of decimals.
        value = node.this.transform(_as_of_spark)
        count = exp.Nullif(this=exp.Count(this=value.copy()), expression=exp.Literal.number(0))
        total = exp.cast(exp.Sum(this=value), "double")
        return exp.paren(exp.Div(this=total, expression=count))
    elif isinstance(node, exp.IntDiv):
        # That of Spark has 64 bits, and loses the others without an error.
        whole = exp.cast(node.this.transform(_as_of_spark), "decimal(38,0)")
        by = exp.paren(node.expression.transform(_as_of_spark))
        multiple = exp.paren(
            exp.Sub(this=whole, expression=exp.Mod(this=whole.copy(), expression=by))
        )
        return exp.cast(exp.Div(this=multiple, expression=by.copy()), "decimal(38,0)")
    elif isinstance(node, exp.Div):
        # Whole numbers of more than 64 bits are decimals in Spark.
        node.set("this", exp.cast(node.this, "double"))
    return node


def _copies(weight: str) -> exp.Expr:
    """`range(weight)` in FROM: as many rows."""
    numbers = f"explode(if({weight} > 0, sequence(1, {weight}), array()))"
    (join,) = parse_one(f"select 1 from a, lateral {numbers}", dialect=_SPARK).args["joins"]
    found: exp.Expr = join.this
    return found


# --- what is refused ---


def check_for_spark(
    sql: str,
    columns: Mapping[str, Mapping[str, str]],
    result: Mapping[str, str],
    functions: Collection[str] = (),
    *,
    has_exact_sums: bool = True,
) -> None:
    """Check that the SQL of a view has the same rows in Spark. `columns` are those of tables, and
    `result` those of the view, with their types in DuckDB. `functions` are those of the user.
    `has_exact_sums`: rules make averages from exact sums. Raises NoRule.
    """
    for name, kind in result.items():
        if spark_type(kind) is None or name.lower() == WEIGHT_COLUMN:
            raise NoRule(f"column {name!r} is {kind}, which Spark does not have, or not the same")
    tree = _qualified(sql, columns)
    called = {call.name.lower() for call in tree.find_all(exp.Anonymous)}
    for name in functions:
        if name.lower() in called:
            raise NoRule(f"the Python function {name!r}")
    schema: dict[str, object] = {table: dict(of) for table, of in columns.items()}
    typed = annotate_types(tree.transform(_exact_literal), schema=schema, dialect=_DUCKDB)
    for node in typed.walk():
        parts = {*_PARTS, *_OWN_PARTS.get(type(node), ())}
        is_known = type(node) in _ALLOWED or type(node) in _CHECKS
        if not is_known or any(part and name not in parts for name, part in node.args.items()):
            raise NoRule(f"{_shown(node)}, which Spark may evaluate in another way")
        if (check := _CHECKS.get(type(node))) is not None:
            check(node)
        if isinstance(node, exp.Avg) and not has_exact_sums and _family(_summed(node)) == "decimal":
            raise NoRule(
                f"{_shown(node)} is exact only by rules, and only beside sums, counts and averages"
            )


def _qualified(sql: str, columns: Mapping[str, Mapping[str, str]]) -> exp.Expr:
    schema: dict[str, object] = {table: dict(of) for table, of in columns.items()}
    try:
        tree = parse_one(sql, dialect=_DUCKDB)
        refuse_names(tree, schema)
        return qualify(tree, schema=schema, dialect=_DUCKDB)
    except SqlglotError as error:
        raise unread(error) from None


def _exact_literal(node: exp.Expr) -> exp.Expr:
    """A literal with a point is a decimal in both; sqlglot takes it for a float."""
    if isinstance(node, exp.Literal) and node.is_number and _DECIMAL.fullmatch(node.name):
        return exp.cast(node.copy(), "decimal(38,18)")
    return node


def _shown(node: exp.Expr) -> str:
    return node.sql(dialect=_DUCKDB)


def _family(node: exp.Expr) -> str:
    """The kind of the values of an expression."""
    if isinstance(node, exp.Null):  # sqlglot gives it a type in some places only
        return "null"
    found = None if node.type is None else _FAMILIES.get(node.type.this)
    if found is None:
        raise NoRule(f"{_shown(node)} has a type that Spark does not have, or not the same")
    return found


def _check_alike(values: Iterable[exp.Expr]) -> None:
    """Refuse values of several types that meet: each engine converts them in ways of its own."""
    found = {_family(value): value for value in values if not _is_short_number(value)}
    found.pop("null", None)
    if len({"exact" if family in _EXACT else family for family in found}) > 1:
        shown = " and ".join(f"{_shown(value)} ({family})" for family, value in found.items())
        raise NoRule(f"{shown} are compared or mixed: cast one of them")


def _is_short_number(value: exp.Expr) -> bool:
    """Whether a value is a number that floats and decimals have alike."""
    literal = value.this if isinstance(value, exp.Cast) else value
    is_number = isinstance(literal, exp.Literal) and literal.is_number
    return is_number and len(literal.name) <= _FLOAT_DIGITS and "e" not in literal.name.lower()


def _operands(node: exp.Expr) -> list[exp.Expr]:
    values = [node.args.get(name) for name in ("this", "expression", "low", "high")]
    return [value for value in values if isinstance(value, exp.Expr)] + node.expressions


def _check_operands(node: exp.Expr) -> None:
    _check_alike(_operands(node))


def _check_in(node: exp.Expr) -> None:
    query = node.args.get("query")
    _check_alike([node.this, *(node.expressions if query is None else query.this.selects)])


def _check_case(node: exp.Expr) -> None:
    branches, default = node.args["ifs"], node.args.get("default")
    if node.this is not None:
        _check_alike([node.this, *(branch.this for branch in branches)])
    results = [branch.args["true"] for branch in branches]
    _check_alike(results if default is None else [*results, default])


def _check_arithmetic(node: exp.Expr) -> None:
    for operand in _operands(node):
        family = _family(operand)
        if family == "small integer":
            raise NoRule(f"{_shown(node)} may overflow in DuckDB only: cast it to INTEGER before")
        if family not in ("integer", "decimal", "float", "null"):
            raise NoRule(f"{_shown(node)}, which Spark may evaluate in another way")
    _check_operands(node)


def _check_division(node: exp.Expr) -> None:
    """By 0, DuckDB gives null or infinity, and Spark an error."""
    by = node.expression
    is_never_zero = (
        by.is_int and int(by.name) != 0
        if isinstance(by, exp.Literal)
        else (isinstance(by, exp.Nullif) and by.expression.name == "0")
    )
    if not is_never_zero:
        raise NoRule(f"{_shown(node)} may divide by zero: divide by nullif({_shown(by)}, 0)")
    if {_family(node.this), _family(by)} != {"integer"}:
        raise NoRule(f"{_shown(node)}: Spark divides only whole numbers in the same way")


def _check_text(node: exp.Expr) -> None:
    for operand in _operands(node):
        if _family(operand) not in ("text", "null"):
            raise NoRule(f"{_shown(node)}: Spark does the same for text only")


def _check_like(node: exp.Expr) -> None:
    _check_text(node)
    if not node.expression.is_string or "\\" in node.expression.name:
        raise NoRule(f"{_shown(node)}: Spark does the same for a constant without backslashes only")


def _check_cast(node: exp.Expr) -> None:
    value, kind = node.this, node.args["to"]
    if isinstance(value, exp.Literal):
        is_day = value.is_string and kind.this == _T.DATE and _DAY.fullmatch(value.name)
        if is_day or (value.is_number and kind.this == _T.DECIMAL):
            return
    given, wanted = _family(value), _FAMILIES.get(kind.this)
    is_known = given in (wanted, "null") or (given, wanted) in _CASTS
    if not is_known or (wanted == "float" and kind.this != _T.DOUBLE):
        raise NoRule(f"{_shown(node)}, which Spark may convert in another way")


def _summed(node: exp.Expr) -> exp.Expr:
    """What a sum or an average is over."""
    found: exp.Expr = node.this
    return found.expressions[0] if isinstance(found, exp.Distinct) else found


def _check_sum(node: exp.Expr) -> None:
    value = _summed(node)
    if _family(value) not in _EXACT:
        raise NoRule(f"{_shown(node)} depends on the order of its rows: cast to DECIMAL before")
    if isinstance(node, exp.Avg) and isinstance(node.parent, (exp.Window, exp.Filter)):
        raise NoRule(f"{_shown(node.parent)}: divide the sum by the count")


def _check_value(node: exp.Expr) -> None:
    _family(node.this)


def _check_window(node: exp.Expr) -> None:
    spec = node.args.get("spec")
    if isinstance(node.this, exp.Filter):
        raise NoRule("FILTER in a window function")
    if spec is not None and spec.args.get("kind", "").upper() != "ROWS":
        raise NoRule("a window over a range of values")


def _check_join(node: exp.Expr) -> None:
    how = f"{node.args.get('method') or ''} {node.args.get('kind') or ''}".strip().upper()
    if how not in ("", "INNER", "OUTER", "CROSS", "ANTI", "SEMI"):
        raise NoRule(f"{how} JOIN")


def _check_set_operation(node: exp.Expr) -> None:
    for pair in zip(node.this.selects, node.expression.selects, strict=False):
        _check_alike(pair)


def _check_number(node: exp.Expr) -> None:
    if not node.expression.is_int:
        raise NoRule(f"{_shown(node)}: Spark takes a constant number of rows only")


def _check_column(node: exp.Expr) -> None:
    _family(node)


def _each(
    check: Callable[[exp.Expr], None], *kinds: type[exp.Expr]
) -> dict[type[exp.Expr], Callable[[exp.Expr], None]]:
    return dict.fromkeys(kinds, check)


_CHECKS: Mapping[type[exp.Expr], Callable[[exp.Expr], None]] = {
    **_each(_check_operands, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between),
    **_each(_check_operands, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Coalesce, exp.Nullif),
    **_each(_check_operands, exp.Greatest, exp.Least),
    **_each(_check_arithmetic, exp.Add, exp.Sub, exp.Mul, exp.Neg),
    **_each(_check_division, exp.Div, exp.IntDiv, exp.Mod),
    **_each(_check_text, exp.DPipe, exp.Length),
    **_each(_check_value, exp.Min, exp.Max, exp.Lag, exp.Lead),
    **_each(_check_sum, exp.Sum, exp.Avg),
    **_each(_check_set_operation, exp.Union, exp.Except, exp.Intersect),
    **_each(_check_number, exp.Limit, exp.Offset),
    exp.In: _check_in,
    exp.Case: _check_case,
    exp.Like: _check_like,
    exp.Cast: _check_cast,
    exp.Window: _check_window,
    exp.Join: _check_join,
    exp.Column: _check_column,
}
"""What is known to be the same in Spark if it passes a check."""

_ALLOWED: frozenset[type[exp.Expr]] = frozenset(
    {
        *(exp.Select, exp.From, exp.Table, exp.TableAlias, exp.Where, exp.Group, exp.Having),
        *(
            exp.Distinct,
            exp.With,
            exp.Subquery,
            exp.CTE,
            exp.Order,
            exp.Ordered,
            exp.Qualify,
            exp.Exists,
        ),
        *(exp.Identifier, exp.Alias, exp.Paren, exp.Literal, exp.Boolean, exp.Null, exp.Star),
        *(exp.DataType, exp.DataTypeParam, exp.And, exp.Or, exp.Not, exp.Is, exp.If, exp.Filter),
        *(exp.Count, exp.LogicalAnd, exp.LogicalOr, exp.RowNumber, exp.Rank, exp.DenseRank),
        exp.WindowSpec,
    }
)
"""What is known to be the same in Spark."""

_PARTS = frozenset({"this", "expression", "expressions", "alias"})
"""What all parts of SQL may have."""

_QUERY = ("with_", "distinct", "order", "limit", "offset")
_SELECT = (*_QUERY, "from_", "joins", "where", "group", "having", "qualify")

_OWN_PARTS: Mapping[type[exp.Expr], tuple[str, ...]] = {
    exp.Select: _SELECT,
    exp.Union: _QUERY,
    exp.Except: _QUERY,
    exp.Intersect: _QUERY,
    exp.CTE: ("materialized",),
    exp.Join: ("method", "side", "kind", "on"),
    exp.Group: ("all",),
    exp.Ordered: ("desc", "nulls_first"),
    exp.Window: ("partition_by", "order", "spec", "over"),
    exp.WindowSpec: ("kind", "start", "start_side", "end", "end_side"),
    exp.Lag: ("offset",),
    exp.Lead: ("offset",),
    exp.Column: ("table",),
    exp.Identifier: ("quoted",),
    exp.Literal: ("is_string",),
    exp.Case: ("ifs", "default"),
    exp.If: ("true",),
    exp.Between: ("low", "high"),
    exp.In: ("query",),
    exp.Cast: ("to",),
    exp.Count: ("big_int",),
    exp.DPipe: ("safe",),
    exp.Div: ("typed", "safe"),
    exp.Greatest: ("ignore_nulls",),
    exp.Least: ("ignore_nulls",),
}
"""What some may have besides. `max(x, 2)` has another part, which changes what it means."""
