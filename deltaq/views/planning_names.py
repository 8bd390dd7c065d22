"""Names in the SQL of a view that sqlglot binds otherwise than DuckDB: refused before that.

sqlglot puts the expression of an alias in the place of the alias. It drops the brackets of some,
and shifts an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from deltaq.views.planning_parts import DIALECT, unread
from deltaq.views.rules import NoRule

_CALLS = (
    exp.Abs,
    exp.AggFunc,
    exp.Anonymous,
    exp.Case,
    exp.Cast,
    exp.Coalesce,
    exp.Column,
    exp.Length,
    exp.Lower,
    exp.Round,
    exp.TimestampTrunc,
    exp.Upper,
    exp.Window,
)
"""Expressions that are the same wherever they stand, also without brackets."""


def refuse_names(tree: exp.Expr, schema: Mapping[str, object]) -> None:
    """Raise NoRule if an expression of a query reads the alias of another one that needs brackets
    in its place; or if the variable of a lambda has the name of a table or column. `schema` has the
    columns of the tables, by their names in lower case.
    """
    _refuse_variables(tree, schema)
    try:
        bound = qualify(
            tree.copy(),
            schema=dict(schema),
            dialect=DIALECT,
            expand_alias_refs=False,
            validate_qualify_columns=False,
        )
    except SqlglotError as error:
        raise unread(error) from None
    for select in bound.find_all(exp.Select):
        _refuse_aliases(select)


def _refuse_aliases(select: exp.Select) -> None:
    named = (item for item in select.expressions if isinstance(item, exp.Alias))
    aliases = {item.alias.lower(): item.this for item in named}
    clauses = (select.args.get(name) for name in ("where", "group", "having", "qualify"))
    for part in (*select.expressions, *(clause for clause in clauses if clause is not None)):
        for column in part.find_all(exp.Column):
            own = aliases.get(column.name.lower())
            if own is None or column.table or _is_bound_alike(own, column):
                continue
            reason = f"it reads {column.name!r}, the name of an expression beside it"
            raise NoRule(f"{reason}: write the expression itself, or have it in a query in FROM")


def _is_bound_alike(own: exp.Expr, column: exp.Column) -> bool:
    """Whether an expression may stand in the place of its alias."""
    if isinstance(column.parent, exp.Group):
        return not isinstance(own, exp.Literal)
    return isinstance(own, _CALLS) and not isinstance(column.parent, exp.Bracket)


def _refuse_variables(tree: exp.Expr, schema: Mapping[str, object]) -> None:
    names = {*_names(tree, schema)}
    for variable in _variables(tree):
        if variable.lower() in names:
            reason = f"the variable {variable!r} of a lambda has the name of a table or column"
            raise NoRule(f"{reason}: give it another name")


def _variables(tree: exp.Expr) -> Iterator[str]:
    for node in tree.find_all(exp.Lambda, exp.Comprehension):
        found = node.expressions if isinstance(node, exp.Lambda) else [node.args["expression"]]
        yield from (variable.name for variable in found)


def _names(tree: exp.Expr, schema: Mapping[str, object]) -> Iterator[str]:
    """The names of tables, of their columns, and of expressions."""
    for table in tree.find_all(exp.Table):
        yield from (table.name.lower(), table.alias_or_name.lower())
        columns = schema.get(table.name.lower(), {})
        if isinstance(columns, dict):
            yield from map(str.lower, columns)
    yield from (alias.alias.lower() for alias in tree.find_all(exp.Alias, exp.TableAlias))
