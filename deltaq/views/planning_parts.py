"""Parts of the SQL of a view, as sqlglot reads it, and which of them have no rule. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from deltaq.views.planning_time import TIME
from deltaq.views.rules import NoRule

DIALECT = "duckdb"

TAKEN = frozenset({"_w", "_n", "_l", "_r", "_nl", "_nr", "_h", TIME})
"""Columns that rules add."""


def is_within_query(node: exp.Expr, top: exp.Expr) -> bool:
    """Whether a node lies in a query that is a part of `top`."""
    found: exp.Expr | None = node
    while found is not None and found is not top:
        if isinstance(found, exp.Query):
            return True
        found = found.parent
    return isinstance(top, exp.Query)


def text_of(tree: exp.Expr) -> str:
    """An expression as text."""
    return tree.sql(dialect=DIALECT)


def unread(error: SqlglotError) -> NoRule:
    """What sqlglot does not read."""
    return NoRule(f"sqlglot does not read it: {str(error).splitlines()[0]}")


def name_of(tree: exp.Expr) -> str:
    """What a part of SQL is called."""
    return tree.key.upper()


def refuse(tree: exp.Select) -> None:
    """Raise NoRule for parts of a SELECT that have none."""
    for name in ("laterals", "sample", "pivots", "windows", "connect", "into", "match"):
        if tree.args.get(name):
            raise NoRule(name.upper())
    distinct = tree.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise NoRule("DISTINCT ON")
    for item in tree.expressions:
        if item.alias_or_name.lower() in TAKEN:
            raise NoRule(f"a column named {item.alias_or_name!r}")
    names = [name.lower() for name in tree.named_selects]
    for name in names:
        if names.count(name) > 1:
            raise NoRule(f"two columns named {name!r}")
    if tree.args.get("from_") is None:
        raise NoRule("a SELECT without FROM")
    group = tree.args.get("group")
    if group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
        raise NoRule("GROUPING SETS")
    outside = [*tree.expressions, tree.args.get("having"), tree.args.get("qualify"), group]
    if any(is_nested(part) for part in outside if part is not None):
        raise NoRule("a query in an expression")


def name_apart(tree: exp.Expr, columns: Sequence[str]) -> None:
    """Give the columns of a SELECT the names that DuckDB gives them, where some have one name. An
    ORDER BY, which may be by such a name, is left as it is.
    """
    if not isinstance(tree, exp.Select) or tree.args.get("order"):
        return
    names = {name.lower() for name in tree.named_selects}
    if len(names) < len(columns) == len(tree.selects):
        pairs = zip(columns, tree.selects, strict=True)
        tree.set("expressions", [exp.alias_(of.unalias(), name, quoted=True) for name, of in pairs])


def order_by(tree: exp.Expr, whole: exp.Expr) -> str:
    """The ORDER BY of a query over the columns of `whole`, which is the query without it and gets
    those that it lacks; "" without one.
    """
    order = tree.args.get("order")
    if order is None:
        return ""
    items: list[str] = []
    for item in order.expressions:
        by = item.this
        if not (isinstance(by, exp.Literal) or (isinstance(by, exp.Column) and not by.table)):
            name = f"_o{len(items)}"
            if not isinstance(whole, exp.Select) or whole.args.get("distinct"):
                raise NoRule("LIMIT over an order that is none of its columns")
            if name in whole.named_selects:
                raise NoRule(f"a column named {name!r}")
            whole.select(exp.alias_(by.copy(), name, quoted=True), copy=False)
            by = exp.column(exp.to_identifier(name, quoted=True))
        copy = item.copy()
        copy.set("this", by.copy())
        items.append(text_of(copy))
    return "order by " + ", ".join(items)


def conjuncts(tree: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that AND joins; none for None."""
    if tree is None:
        return []
    tree = tree.unnest() if isinstance(tree, exp.Paren) else tree
    return [*conjuncts(tree.left), *conjuncts(tree.right)] if isinstance(tree, exp.And) else [tree]


def is_nested(tree: exp.Expr) -> bool:
    """Whether there is a query in an expression."""
    return tree.find(exp.Query) is not None


def column_names(tree: exp.Expr) -> set[str]:
    """The columns that an expression reads."""
    return {column.name for column in tree.find_all(exp.Column)}


def join_kind(join: exp.Join) -> str:
    """INNER, LEFT, RIGHT, FULL or ANTI. Raises NoRule for another one."""
    if join.args.get("using") or join.method:
        raise NoRule(f"{join.method or 'USING'} JOIN")
    side, kind = (join.side or "").upper(), (join.kind or "").upper()
    if kind in ("", "INNER", "OUTER", "CROSS"):
        return side or "INNER"
    if kind == "ANTI":
        return kind
    raise NoRule(f"{kind} JOIN")


def refuse_comma(joins: Sequence[exp.Join], kinds: Sequence[str]) -> None:
    """Raise NoRule where a comma, which binds less than JOIN, stands before an outer join that adds
    rows on the right: joins are taken from left to right.
    """
    commas = [number for number, join in enumerate(joins) if not (join.kind or join.args.get("on"))]
    if commas and {"RIGHT", "FULL"} & {*kinds[commas[0] :]}:
        raise NoRule("a comma in FROM before a RIGHT or FULL JOIN")


BY_NAMES = "by_names"
"""What marks a join that was by USING or NATURAL before sqlglot wrote its condition."""


def refuse_using(select: exp.Select) -> None:
    """Mark joins by USING and NATURAL. Raise NoRule where sqlglot takes another column on their
    left than DuckDB: behind an outer join that adds rows on the right, which has the column in
    several tables; and behind a comma, which binds less.
    """
    before = ""
    for join in select.args.get("joins") or []:
        by_name = bool(join.args.get("using")) or join.method == "NATURAL"
        join.meta[BY_NAMES] = by_name
        if by_name and before:
            raise NoRule(f"{join.method or 'USING'} after {before}")
        if by_name and join.side in ("RIGHT", "FULL"):
            before = f"a {join.side} JOIN by names"
        elif not (join.kind or join.side or by_name or join.args.get("on")):
            before = "a comma in FROM"


def outer_and_inner(item: exp.Expr, inside: set[str]) -> tuple[exp.Expr, exp.Expr]:
    """The sides of an equality between the outer query and one that is nested in it."""
    if isinstance(item, exp.EQ) and not is_nested(item):
        sides = [
            (side, {c.table for c in side.find_all(exp.Column)}) for side in item.unnest_operands()
        ]
        for (a, of_a), (b, of_b) in (sides, sides[::-1]):
            if of_a and of_b and of_b <= inside and not of_a & inside:
                return a, b
    raise NoRule("EXISTS that is tied to the outer query by more than equalities")


def replaced(tree: exp.Expr, known: Mapping[str, str]) -> exp.Expr:
    """An expression with what is known in the place of its parts."""

    def change(node: exp.Expr) -> exp.Expr:
        found = known.get(text_of(node))
        return node if found is None else parse_one(found, dialect=DIALECT)

    return tree.transform(change)
