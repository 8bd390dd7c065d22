"""The time of a tick in the SQL of a view. Each way to write it becomes one column, which rules
treat in a way of their own: a condition over it needs no join that has all rows anew in each tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlglot import exp

from deltaq.views.rules import NoRule, Relation
from deltaq.views.tick_clock import CLOCK

TIME = "_now"
"""The column with the time, which belongs to no table."""

_NAME = "current_timestamp"


def with_time(tree: exp.Expr, relations: Mapping[str, Relation]) -> exp.Expr:
    """A query, whose columns have the names of their tables, with `TIME` in the place of `now()`,
    of `current_timestamp`, and of the column of the clock where that is joined to all rows. Raises
    NoRule.
    """
    if tree.find(exp.CurrentTimestamp) is not None and _has_column_named(tree, relations):
        raise NoRule(f"a column named {_NAME}")
    tree = tree.transform(lambda node: _time() if _is_call(node) else node)
    if not any(cte.alias.lower() == CLOCK for cte in tree.find_all(exp.CTE)):
        for select in [*tree.find_all(exp.Select)]:
            _without_clock(select)
    return tree


def is_time(column: exp.Column) -> bool:
    """Whether a column is the time."""
    return column.name == TIME and not column.table


def reads_time(items: Iterable[exp.Expr]) -> bool:
    """Whether one of these expressions reads the time."""
    return any(is_time(column) for item in items for column in item.find_all(exp.Column))


def time_of(item: exp.Expr, table: str) -> exp.Expr:
    """An expression with the time from a table."""
    return item.transform(
        lambda node: _time(table) if isinstance(node, exp.Column) and is_time(node) else node
    )


def _time(table: str | None = None) -> exp.Column:
    return exp.column(exp.to_identifier(TIME, quoted=True), table=table)


def _is_call(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() == "now" and not node.expressions
    return isinstance(node, exp.CurrentTimestamp)


def _has_column_named(tree: exp.Expr, relations: Mapping[str, Relation]) -> bool:
    """Whether there is a column that DuckDB takes where sqlglot takes a function."""
    names = {name for of in relations.values() for name in of.types}
    names |= {identifier.name for identifier in tree.find_all(exp.Identifier)}
    return _NAME in {name.lower() for name in names}


def _without_clock(select: exp.Select) -> None:
    """Remove the clock from the tables of a query, if each row is joined with it."""
    from_, joins = select.args.get("from_"), select.args.get("joins") or []
    if from_ is None or not joins:
        return
    items = [from_.this, *(join.this for join in joins)]
    clocks = [item for item in items if isinstance(item, exp.Table) and item.name.lower() == CLOCK]
    if len(clocks) != 1:
        return
    (clock,) = clocks
    alias = clock.alias_or_name
    # A query within this one may have a table of that name.
    named = select.find_all(exp.Table, exp.Subquery, exp.Unnest, exp.Lateral)
    is_hidden = any(table.alias_or_name == alias for table in named if table is not clock)
    if is_hidden or not _is_joined_to_all(clock, from_.this, joins, alias):
        return
    at = items.index(clock)
    join = joins.pop(max(at - 1, 0))
    if at == 0:
        from_.set("this", join.this)
    if (on := join.args.get("on")) is not None:
        select.where(on, copy=False)
    for column in [*select.find_all(exp.Column)]:
        if column.table == alias:
            column.replace(_time())


def _is_joined_to_all(
    clock: exp.Expr, first: exp.Expr, joins: Iterable[exp.Join], alias: str
) -> bool:
    """Whether no outer join leaves the clock out, or depends on it."""
    for join in joins:
        is_outer = bool(join.side or join.method) or (join.kind or "") not in ("", "INNER", "CROSS")
        is_left = join.side == "LEFT" and join.this is not clock and first is not clock
        on = join.args.get("on")
        columns = [] if on is None else on.find_all(exp.Column)
        if is_outer and (not is_left or any(column.table == alias for column in columns)):
            return False
    return True
