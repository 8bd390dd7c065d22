"""Aggregates in the SQL of a view. Exact sums change by what changes, others are made anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from deltaq.views.planning_parts import text_of
from deltaq.views.rules import NoRule

_SIGNED = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})

_INTEGERS = (
    _SIGNED
    | {"HUGEINT", "BOOLEAN"}
    | {f"U{kind}" for kind in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")}
)
"""Types whose sums are exact in a HUGEINT."""

_SCALE_MAX = 18
"""Digits after the point up to which a fraction and its units have room in a decimal together."""

_ROUNDED = (
    *(exp.Sum, exp.Avg, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop),
    *(exp.Corr, exp.CovarPop, exp.CovarSamp, exp.Skewness, exp.Kurtosis, exp.RegrR2),
    *(exp.RegrSlope, exp.RegrIntercept, exp.RegrAvgx, exp.RegrAvgy),
    *(exp.RegrSxx, exp.RegrSxy, exp.RegrSyy),
)
"""Aggregates that round as they go, so that the order of the rows decides the last digits: sums of
floats, and moments of all numbers.
"""

_ROUNDED_NAMES = frozenset(
    {
        *("entropy", "favg", "fsum", "geomean", "geometric_mean", "kahan_sum", "kurtosis_pop"),
        *("mean", "product", "sem", "sumkahan", "wavg", "weighted_avg"),
    }
)
"""Those that sqlglot takes for any function."""

_OF_VALUES = (exp.Min, exp.Max)
"""Aggregates for which it does not matter how often a value is there."""


def has_aggregate(items: Iterable[exp.Expr]) -> bool:
    """Whether one of these expressions has an aggregate."""
    return any(next(aggregate_calls(item), None) is not None for item in items)


def aggregate_calls(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The outermost aggregates of an expression, with their FILTER and ORDER BY, outside of
    windows and nested queries.
    """
    if isinstance(tree, (exp.Window, exp.Query)):
        return
    if isinstance(tree, (exp.Filter, exp.WithinGroup, exp.AggFunc)):
        yield tree
        return
    for child in tree.iter_expressions():
        yield from aggregate_calls(child)


def is_of_values(call: exp.Expr) -> bool:
    """Whether it does not matter to an aggregate how often a value is there. `max(x, 2)`, with the
    number of values, has one as often as it is there.
    """
    is_one_value = isinstance(call, _OF_VALUES) and _has_only(call, "this")
    return is_one_value or isinstance(call.this, exp.Distinct)


def refuse_having(select: exp.Select) -> None:
    """Raise NoRule for GROUP BY ALL with a column in HAVING that the result does not have as it is:
    DuckDB groups by it, too.
    """
    group, having = select.args.get("group"), select.args.get("having")
    if group is None or having is None or not group.args.get("all"):
        return
    known = {
        item.alias_or_name.lower()
        for item in select.expressions
        if has_aggregate([item]) or _is_column_of_its_name(item)
    }
    inside = {id(of) for call in aggregate_calls(having) for of in call.find_all(exp.Column)}
    for column in having.find_all(exp.Column):
        if id(column) not in inside and column.name.lower() not in known:
            raise NoRule(f"GROUP BY ALL with {column.name!r} in HAVING, by which DuckDB groups")


def _is_column_of_its_name(item: exp.Expr) -> bool:
    column = item.unalias()
    is_column = isinstance(column, exp.Column)
    return is_column and column.name.lower() == item.alias_or_name.lower()


def _has_only(call: exp.Expr, *parts: str) -> bool:
    """Whether a call has no other part than these, such as a second argument."""
    return {name for name, part in call.args.items() if part}.issubset(parts)


@dataclass(frozen=True, slots=True)
class ExactSums:
    """Exact sums: expressions over rows by name, and what each call is of them."""

    columns: dict[str, str]
    results: dict[str, str]


def exact_sums(calls: Mapping[str, exp.Expr], type_of: Callable[[str], str]) -> ExactSums | None:
    """The calls as exact sums; None if one of them is none."""
    found = ExactSums({}, {})
    for number, (text, call) in enumerate(calls.items()):
        condition = call.expression.this if isinstance(call, exp.Filter) else None
        bare = call.this if condition is not None else call
        value = _summed_value(bare)
        if value is None:
            return None
        if condition is not None:
            value = f"case when {text_of(condition)} then {value} end"
        count, total = f"_count{number}", f"_sum{number}"
        found.columns[count] = f"(({value}) is not null)::int"
        if isinstance(bare, exp.Count):
            found.results[text] = f"{count}::bigint"
            continue
        exact = _exact(type_of(value))
        if exact is None:
            return None
        found.columns[total] = f"coalesce(cast({value} as {exact}), 0)"
        result = _average(total, count, exact) if isinstance(bare, exp.Avg) else total
        if result is None:
            return None
        found.results[text] = f"case when {count} > 0 then {result} end"
    return found


def in_one_order(tree: exp.Expr, type_of: Callable[[str], str] | None = None) -> exp.Expr:
    """A query or expression whose aggregates take their rows in the order of the values, so that
    the same rows have the same result, to the last digit, whatever their order is. `type_of` tells
    the type of an expression, if that is known: exact sums need no order.
    """

    def change(node: exp.Expr) -> exp.Expr:
        is_rounded = isinstance(node, _ROUNDED) or (
            isinstance(node, exp.Anonymous) and node.name.lower() in _ROUNDED_NAMES
        )
        values = _arguments(node) if is_rounded else []
        if not values or isinstance(values[-1], exp.Order):
            return node
        given = [part for value in values for part in _values_of(value)]
        is_sum = isinstance(node, (exp.Sum, exp.Avg))
        if type_of and is_sum and all(_exact(type_of(text_of(value))) for value in given):
            return node
        orders = [exp.Ordered(this=value.copy()) for value in given]
        last = values[-1]
        last.replace(exp.Order(this=last.copy(), expressions=orders))
        return node

    return tree.transform(change)


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    if isinstance(call, exp.Anonymous):
        return list(call.expressions)
    return [part for part in (call.this, call.args.get("expression")) if part is not None]


def _values_of(argument: exp.Expr) -> list[exp.Expr]:
    return list(argument.expressions) if isinstance(argument, exp.Distinct) else [argument]


def _summed_value(call: exp.Expr) -> str | None:
    """What a SUM, COUNT or AVG is over; None for another aggregate."""
    if not isinstance(call, (exp.Sum, exp.Count, exp.Avg)):
        return None
    if not _has_only(call, "this", "big_int"):
        return None
    if isinstance(call.this, (exp.Distinct, exp.Order)):
        return None
    is_star = call.this is None or isinstance(call.this, exp.Star)
    return "1" if is_star else text_of(call.this)


def _exact(kind: str) -> str | None:
    """The type in which sums over a type are exact; None if there is none."""
    if kind.startswith("DECIMAL"):
        return f"DECIMAL(38,{kind[kind.index(',') + 1 : -1].strip()})"
    return "HUGEINT" if kind in _INTEGERS else None


def are_exact(kinds: Collection[str]) -> bool:
    """Whether equal numbers of these types stay equal when they are cast to one of them."""
    return _INTEGERS.issuperset(kinds) or all(
        kind in _SIGNED or kind.startswith("DECIMAL") for kind in kinds
    )


def _average(total: str, count: str, exact: str) -> str | None:
    """The average as DuckDB has it: decimals are divided as integers. None if their units have no
    room in a decimal.
    """
    scale = int(exact[exact.index(",") + 1 : -1]) if exact.startswith("DECIMAL") else 0
    if not scale:
        return f"cast(cast({total} as hugeint) as double) / {count}"
    if scale > _SCALE_MAX:
        return None
    unit, whole = 10**scale, f"cast({total} as hugeint)"
    # In two parts: the whole sum in its units may have no room in a decimal.
    rest = f"cast(({total} - cast({whole} as {exact})) * {unit} as hugeint)"
    return f"cast({whole} * {unit} + {rest} as double) / ({count} * {unit})"
