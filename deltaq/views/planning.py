"""The SQL of a view as rules. sqlglot, which only the modules `planning...` know, reads it and
names its columns; what has no rule is refused with a reason, and such a view is made in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from deltaq.tools.duckdb_tables import quoted
from deltaq.views.parse_trees import SqlReader
from deltaq.views.planning_names import refuse_names
from deltaq.views.planning_parts import (
    BY_NAMES,
    DIALECT,
    TAKEN,
    column_names,
    conjuncts,
    is_nested,
    is_within_query,
    join_kind,
    name_apart,
    name_of,
    order_by,
    outer_and_inner,
    refuse,
    refuse_comma,
    refuse_using,
    replaced,
    text_of,
    unread,
)
from deltaq.views.planning_sums import (
    aggregate_calls,
    are_exact,
    exact_sums,
    has_aggregate,
    in_one_order,
    is_of_values,
    refuse_having,
)
from deltaq.views.planning_time import TIME, is_time, reads_time, time_of, with_time
from deltaq.views.rules import EqualSides, NoRule, Relation, RulePlan, Zset, union
from deltaq.views.tick_clock import CLOCK, CLOCK_TIME


def read_sql(sql: str, reader: SqlReader) -> exp.Expr:
    """The tree of a view's SQL, where sqlglot reads it as DuckDB does. Raises NoRule."""
    try:
        tree = parse_one(sql, dialect=DIALECT)
        reader.check_written(sql, text_of(tree))
    except SqlglotError as error:
        raise unread(error) from None
    for select in tree.find_all(exp.Select):
        refuse_using(select)
        refuse_having(select)
    for item in tree.find_all(exp.PropertyEQ):
        # A name in a struct is a part of the value: without this its case is lost.
        item.this.meta["case_sensitive"] = True
    return tree


def plan_of(
    name: str,
    sql: str,
    columns: Mapping[str, str],
    relations: Mapping[str, Relation],
    reader: SqlReader,
) -> tuple[RulePlan, Zset]:
    """The rules of a view and its rows, in the `columns` that DuckDB says it has. `relations` are
    by name, in lower case. Raises NoRule.
    """
    tree = read_sql(sql, reader)
    schema: dict[str, object] = {table: dict(of.types) for table, of in relations.items()}
    refuse_names(tree, schema)
    try:
        tree = qualify(tree, schema=schema, dialect=DIALECT)
    except SqlglotError as error:
        raise unread(error) from None
    reader.check_qualified(sql, text_of(tree))
    name_apart(tree, [*columns])
    time = None
    if (clock := relations.get(CLOCK)) is not None:
        tree = with_time(tree, relations)
        time = clock.rows.mapped([(TIME, quoted(CLOCK_TIME))])
    planner = _Planner(RulePlan(name), reader.types, time)
    found = planner.query(tree, {table: of.rows for table, of in relations.items()})
    if len(found.columns) != len(columns):
        raise NoRule("sqlglot reads other columns than DuckDB")
    pairs = zip(columns.items(), found.columns, strict=True)
    rows = found.mapped([(out, f"cast({quoted(own)} as {kind})") for (out, kind), own in pairs])
    return planner.plan, rows


@dataclass(eq=False)
class _Planner:
    """Adds rules to `plan`. `columns` are the names of the columns that queries use, which have
    names of their own in rules. `time` is that of the tick, as one row.
    """

    plan: RulePlan
    types: Callable[[str], Mapping[str, str]]
    time: Zset | None
    columns: list[str] = field(default_factory=list)

    # --- queries ---

    def query(self, tree: exp.Expr, tables: Mapping[str, Zset]) -> Zset:
        with_ = tree.args.get("with_")
        if with_ is not None:
            if with_.args.get("recursive"):
                raise NoRule("WITH RECURSIVE")
            for cte in with_.expressions:
                tables = {**tables, cte.alias.lower(): self._block(cte.this, tables)}
        if tree.args.get("limit") or tree.args.get("offset"):
            return self._limited(tree, tables)
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, tables)
        if isinstance(tree, exp.SetOperation):
            return self._set_operation(tree, tables)
        if isinstance(tree, exp.Select):
            return self._select(tree, tables)
        raise NoRule(name_of(tree))

    def _block(self, tree: exp.Expr, tables: Mapping[str, Zset]) -> Zset:
        """A query within another one, evaluated in full where it has no rule."""
        statements, states = len(self.plan.statements), len(self.plan.states)
        try:
            return self.query(tree, tables)
        except NoRule as refused:
            del self.plan.statements[statements:], self.plan.states[states:]
            return self._in_full(tree, tables, str(refused))

    def _in_full(self, tree: exp.Expr, tables: Mapping[str, Zset], reason: str) -> Zset:
        """A query that depends on nothing outside of it but tables. Raises NoRule."""
        own = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        read = sorted({table.name.lower() for table in tree.find_all(exp.Table)} - own)
        inside = {item.alias_or_name for item in tree.find_all(exp.Table, exp.Subquery, exp.CTE)}
        inside |= {alias.name for alias in tree.find_all(exp.TableAlias)}
        is_tied = any(column.table not in inside for column in tree.find_all(exp.Column))
        is_known = bool(read) and tables.keys() >= {*read} and not tables.keys() & own
        if not isinstance(tree, exp.Query) or is_tied or not is_known or reads_time([tree]):
            raise NoRule(reason)
        columns = tree.named_selects
        if TAKEN & {*columns} or len({*columns}) < len(columns):
            raise NoRule(reason)

        def query(names: Sequence[str]) -> str:
            named = dict(zip(read, names, strict=True))

            def change(node: exp.Expr) -> exp.Expr:
                if not isinstance(node, exp.Table) or node.name.lower() not in named:
                    return node
                return exp.alias_(
                    exp.table_(named[node.name.lower()]), node.alias_or_name, table=True
                )

            return text_of(in_one_order(tree).transform(change))

        sources = [tables[name] for name in read]
        return self.plan.all_anew(sources, columns, query, "in full", reason)

    def _limited(self, tree: exp.Expr, tables: Mapping[str, Zset]) -> Zset:
        """The first rows of a query."""
        whole = tree.copy()
        for part in ("with_", "order", "limit", "offset"):
            whole.set(part, None)
        if not isinstance(whole, exp.Query):
            raise NoRule(name_of(whole))
        columns, order = whole.named_selects, order_by(tree, whole)
        rows = self.query(whole, tables)
        parts = [tree.args[part] for part in ("limit", "offset") if tree.args.get(part)]
        if not all(isinstance(part.expression, exp.Literal) for part in parts):
            raise NoRule("LIMIT of this form")
        limit = " ".join(map(text_of, parts))
        head = ", ".join(map(quoted, columns))
        return self.plan.anew(
            rows, [], columns, lambda given: f"select {head} from {given} {order} {limit}", limit
        )

    def _set_operation(self, tree: exp.SetOperation, tables: Mapping[str, Zset]) -> Zset:
        if tree.args.get("by_name"):
            raise NoRule("BY NAME")
        left, right = self._block(tree.left, tables), self._block(tree.right, tables)
        is_distinct, columns = bool(tree.args.get("distinct")), left.columns
        if isinstance(tree, exp.Union):
            both = union(left, right)
            return self._distinct(both) if is_distinct else both
        own = [(name, quoted(name)) for name in columns]
        marked = union(
            left.mapped([*own, ("_l", "1"), ("_r", "0")]),
            right.mapped([*((n, quoted(n)) for n in right.columns), ("_l", "0"), ("_r", "1")]),
        )
        sides = {"_nl": "_l", "_nr": "_r"}
        counted = self.plan.aggregate(marked, columns, sides, "rows of both sides")
        if isinstance(tree, exp.Intersect):
            weight = "(_nl > 0 and _nr > 0)::int" if is_distinct else "least(_nl, _nr)"
        else:
            weight = "(_nl > 0 and _nr = 0)::int" if is_distinct else "greatest(_nl - _nr, 0)"
        return counted.weighed(f"_w * {weight}", columns)

    def _distinct(self, rows: Zset) -> Zset:
        counted = self.plan.aggregate(rows, rows.columns, {}, "distinct rows")
        return counted.weighed("_w", rows.columns)

    def _select(self, tree: exp.Select, tables: Mapping[str, Zset]) -> Zset:
        refuse(tree)
        scope = _Scope(self.columns)
        rows, pending = self._from(tree, tables, scope)
        rows = self._filtered(rows, pending, tables, scope)
        outputs = [(item.alias_or_name, scope.flat(item.unalias())) for item in tree.expressions]
        having, group = _this(tree, "having", scope), tree.args.get("group")
        everything = [item for _, item in outputs] + ([having] if having is not None else [])
        windows = [found for item in everything for found in item.find_all(exp.Window)]
        if group is not None or (has_aggregate(everything) and not windows):
            if windows:
                raise NoRule("a window function over an aggregate")
            groups = _groups(tree, outputs, scope)
            rows = self._with_time(
                rows, [*groups, *(c for item in everything for c in aggregate_calls(item))]
            )
            rows, change = self._grouped(rows, groups, everything)
            outputs = [(name, change(item)) for name, item in outputs]
            rows = self._where(rows, [] if having is None else conjuncts(change(having)))
            rows = self._with_time(rows, [item for _, item in outputs])
            found = rows.mapped([(name, text_of(item)) for name, item in outputs])
        elif windows or tree.args.get("qualify"):
            qualified = _this(tree, "qualify", scope)
            rows = self._with_time(rows, [*everything, *([qualified] if qualified else [])])
            found = self._windows(rows, outputs, windows, qualified)
        else:
            rows = self._with_time(rows, everything)
            found = rows.mapped([(name, text_of(item)) for name, item in outputs])
        return self._distinct(found) if tree.args.get("distinct") else found

    # --- FROM and WHERE ---

    def _from(
        self, tree: exp.Select, tables: Mapping[str, Zset], scope: _Scope
    ) -> tuple[Zset, list[exp.Expr]]:
        """The joined tables, and the conditions of WHERE that are still to be applied."""
        joins = tree.args.get("joins") or []
        _collect(tree, joins, scope)
        rows = self._side(tree.args["from_"].this, tables, scope)
        where = tree.args.get("where")
        pending = [scope.flat(item) for item in conjuncts(where and where.this)]
        kinds = [join_kind(join) for join in joins]
        refuse_comma(joins, kinds)
        for number, (join, kind) in enumerate(zip(joins, kinds, strict=True)):
            conditions = [scope.flat(item) for item in conjuncts(join.args.get("on"))]
            if kind == "INNER" and isinstance(join.this, exp.Unnest):
                rows = self._where(self._unnested(rows, join.this, scope), conditions)
                continue
            right = self._side(join.this, tables, scope)
            # FROM a, b WHERE a.x = b.x, if no later join brings rows that WHERE has to see.
            if kind == "INNER" and not {"RIGHT", "FULL"} & {*kinds[number:]}:
                known = {*rows.columns, *right.columns}
                pending += [item for item in conditions if reads_time([item])]
                conditions = [item for item in conditions if not reads_time([item])]
                now = [
                    item for item in pending if not is_nested(item) and column_names(item) <= known
                ]
                pending = [item for item in pending if item not in now]
                conditions += now
            elif reads_time(conditions):
                raise NoRule("the time of the tick in the condition of an outer join")
            if join.meta.get(BY_NAMES):
                self._check_same_types(rows, right, conditions)
            rows = self._joined(rows, right, kind, conditions)
        return rows, pending

    def _check_same_types(self, left: Zset, right: Zset, conditions: Sequence[exp.Expr]) -> None:
        """Refuse USING of values that change where sqlglot takes the first that is not null: DuckDB
        takes that of the left side, in its type, unless the join is RIGHT or FULL.
        """
        sides = _equal_sides(conditions, left, right)
        if not all(key.is_hashed for key in self._keys(left, right, sides)):
            raise NoRule("USING or NATURAL with columns of several types")

    def _side(self, item: exp.Expr, tables: Mapping[str, Zset], scope: _Scope) -> Zset:
        """What stands in FROM, with the columns that the query uses."""
        if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
            found = tables.get(item.name.lower())
            if found is None or item.args.get("sample") or item.args.get("pivots"):
                raise NoRule(f"FROM {item.sql(dialect=DIALECT)}")
        elif isinstance(item, exp.Subquery) and not item.args.get("pivots"):
            found = self._block(item.this, tables)
        else:
            raise NoRule(f"FROM {name_of(item)}")
        by_name = {column.lower(): column for column in found.columns}
        used = scope.of(item.alias_or_name)
        if not used.keys() <= by_name.keys():
            raise NoRule("a column that sqlglot does not know")
        return found.mapped([(flat, quoted(by_name[name])) for name, flat in used.items()])

    def _unnested(self, rows: Zset, item: exp.Unnest, scope: _Scope) -> Zset:
        """Each row with each value of a list in it."""
        alias = item.args.get("alias")
        if alias is None or len(alias.columns) != 1 or item.args.get("offset"):
            raise NoRule("UNNEST of this form")
        values = scope.flat(item.expressions[0])
        rows = self._with_time(rows, [values])
        name = scope.use(exp.column(alias.columns[0], table=alias.this))
        own = [(column, quoted(column)) for column in rows.columns]
        return rows.mapped([*own, (name, f"unnest({text_of(values)})")])

    def _joined(self, left: Zset, right: Zset, kind: str, conditions: Sequence[exp.Expr]) -> Zset:
        if kind == "RIGHT":
            return self._joined(right, left, "LEFT", conditions)
        condition = " and ".join(f"({text_of(item)})" for item in conditions) or "true"
        note = " and ".join(self._shown(text_of(item)) for item in conditions) or "all pairs"
        keys = self._keys(left, right, _equal_sides(conditions, left, right))
        if kind == "INNER":
            return self.plan.join(left, right, keys, condition, note)
        if not keys:
            raise NoRule(f"{kind} JOIN without an equality of both sides")
        if kind == "ANTI":
            return self.plan.anti(left, right, keys, condition, note)
        found = self.plan.join(left, right, keys, condition, note)
        alone = self.plan.anti(left, right, keys, condition, note)
        found = union(found, _widened(alone, found.columns))
        if kind == "FULL":
            swapped = [EqualSides(key.right, key.left, key.is_hashed) for key in keys]
            alone = self.plan.anti(right, left, swapped, condition, note)
            found = union(found, _widened(alone, found.columns))
        return found

    def _filtered(
        self,
        rows: Zset,
        conditions: Sequence[exp.Expr],
        tables: Mapping[str, Zset],
        scope: _Scope,
    ) -> Zset:
        rows = self._where(rows, [item for item in conditions if not is_nested(item)])
        for item in conditions:
            if is_nested(item):
                rows = self._semi_joined(rows, item, tables, scope)
        return rows

    def _where(self, rows: Zset, conditions: Sequence[exp.Expr]) -> Zset:
        """The rows for which all of the conditions hold."""
        has_time = TIME in rows.columns
        timed = [item for item in conditions if not has_time and reads_time([item])]
        plain = [text_of(item) for item in conditions if item not in timed]
        if plain:
            rows = rows.mapped([(name, quoted(name)) for name in rows.columns], plain)
        if not timed or self.time is None:
            return rows
        note = " and ".join(self._shown(text_of(item)) for item in timed)

        def condition(table: str) -> str:
            return " and ".join(f"({text_of(time_of(item, table))})" for item in timed)

        return self.plan.at_time(rows, self.time, condition, note)

    def _with_time(self, rows: Zset, items: Sequence[exp.Expr]) -> Zset:
        """The rows with the time of the tick, if one of the expressions reads it."""
        if self.time is None or TIME in rows.columns or not reads_time(items):
            return rows
        return self.plan.join(rows, self.time, [], "true", "the time of the tick")

    def _semi_joined(
        self, rows: Zset, condition: exp.Expr, tables: Mapping[str, Zset], scope: _Scope
    ) -> Zset:
        """EXISTS, NOT EXISTS and IN: a join with the distinct keys of the inner query."""
        is_not = isinstance(condition, exp.Not)
        inner = condition.this if is_not else condition
        if isinstance(inner, exp.In) and inner.args.get("query") and not is_not:
            if is_nested(inner.this):
                raise NoRule("a query in an expression")
            found = self._block(inner.args["query"].unnest(), tables)
            pairs = self._compared(rows, scope.flat(inner.this), found)
        elif isinstance(inner, exp.Exists):
            found, pairs = self._correlated(inner.this, tables, scope)
        else:
            raise NoRule("a query in an expression")
        names = [f"_x{len(self.plan.statements)}_{n}" for n in range(len(pairs))]
        keys = found.mapped(
            [(new, quoted(old)) for new, (_, old) in zip(names, pairs, strict=True)],
            [f"{quoted(old)} is not null" for _, old in pairs],
        )
        distinct = self._distinct(keys)
        matched = [(sql, new) for new, (sql, _) in zip(names, pairs, strict=True)]
        on = " and ".join(f"({sql}) = {new}" for sql, new in matched)
        note = ", ".join(self._shown(sql) for sql, _ in pairs)
        sides = self._keys(rows, distinct, matched)
        if is_not:
            return self.plan.anti(rows, distinct, sides, on, note)
        own = [(name, quoted(name)) for name in rows.columns]
        return self.plan.join(rows, distinct, sides, on, note).mapped(own)

    def _compared(self, rows: Zset, sides: exp.Expr, found: Zset) -> list[tuple[str, str]]:
        """What IN compares with each column of a query."""
        each = sides.expressions if isinstance(sides, exp.Tuple) else [sides]
        if len(each) != len(found.columns):
            raise NoRule("IN of other columns than its query has")
        pairs = list(zip(map(text_of, each), found.columns, strict=True))
        if len(pairs) > 1:
            # DuckDB casts the row as a whole, each part to a type that need not be that in which
            # it compares the part alone.
            for a, b in pairs:
                kinds = {self._type(rows, a), self._type(found, quoted(b))}
                if len(kinds) > 1 and not are_exact(kinds):
                    raise NoRule(f"IN of a row with values of {' and '.join(sorted(kinds))}")
        return pairs

    def _correlated(
        self, tree: exp.Expr, tables: Mapping[str, Zset], scope: _Scope
    ) -> tuple[Zset, list[tuple[str, str]]]:
        """The inner query of an EXISTS, with a column for each key, and what outside equals it."""
        special = ("group", "having", "with_", "qualify", "limit", "offset")
        if not isinstance(tree, exp.Select) or any(tree.args.get(name) for name in special):
            raise NoRule("EXISTS of this form")
        from_, joins = tree.args.get("from_"), tree.args.get("joins") or []
        if has_aggregate(tree.expressions) or from_ is None:
            raise NoRule("EXISTS of this form")
        inside = {item.alias_or_name for item in [from_.this, *(join.this for join in joins)]}
        own, pairs = [], []
        where = tree.args.get("where")
        for item in conjuncts(where and where.this):
            outer = {c.table for c in item.find_all(exp.Column) if not is_time(c)} - inside
            if not outer:
                own.append(item)
            else:
                pairs.append(outer_and_inner(item, inside))
        if not pairs:
            raise NoRule("EXISTS that is not tied to the outer query")
        copy = tree.copy()
        copy.set("expressions", [exp.alias_(b.copy(), f"k{n}") for n, (_, b) in enumerate(pairs)])
        copy.set("where", exp.Where(this=exp.and_(*own)) if own else None)
        copy.set("distinct", None)
        found = self.query(copy, tables)
        return found, [(text_of(scope.flat(a)), f"k{n}") for n, (a, _) in enumerate(pairs)]

    # --- GROUP BY and windows ---

    def _grouped(
        self, rows: Zset, groups: Sequence[exp.Expr], items: Sequence[exp.Expr]
    ) -> tuple[Zset, Callable[[exp.Expr], exp.Expr]]:
        """The groups, and how an expression over rows becomes one over groups."""
        keys = {text_of(item): f"_g{number}" for number, item in enumerate(groups)}
        calls = {text_of(call): call for item in items for call in aggregate_calls(item)}
        named = [(name, sql) for sql, name in keys.items()]
        sums = exact_sums(calls, partial(self._type, rows))
        if sums is not None:
            source = rows.mapped([*named, *((name, sql) for name, sql in sums.columns.items())])
            own = {name: quoted(name) for name in sums.columns}
            note = ", ".join(map(self._shown, keys)) or "all rows"
            found = self.plan.aggregate(source, list(keys.values()), own, note)
            results = sums.results
        else:
            used = {name for call in calls.values() for name in column_names(call)}
            source = rows.mapped([*named, *((n, quoted(n)) for n in rows.columns if n in used)])
            results = {sql: f"_r{number}" for number, sql in enumerate(calls)}
            found = self._aggregated_anew(source, keys, calls, results)
        known = {**{sql: quoted(name) for sql, name in keys.items()}, **results}
        return found, partial(replaced, known=known)

    def _aggregated_anew(
        self,
        source: Zset,
        keys: Mapping[str, str],
        calls: Mapping[str, exp.Expr],
        results: Mapping[str, str],
    ) -> Zset:
        names = list(keys.values())
        if all(is_of_values(call) for call in calls.values()):
            source = self._distinct(source)
        type_of = partial(self._type, source)
        texts = (
            f"{text_of(in_one_order(call, type_of))} as {results[sql]}"
            for sql, call in calls.items()
        )
        head = ", ".join([*names, *texts])
        note = ", ".join(map(self._shown, calls))
        group = f" group by {', '.join(names)}" if names else ""
        return self.plan.anew(
            source,
            names,
            [*names, *results.values()],
            lambda rows: f"select {head} from {rows}{group}",
            note,
        )

    def _shown(self, sql: str) -> str:
        """An expression with the names that its columns have in queries."""
        named = re.sub(r'"_c(\d+)"', lambda found: self.columns[int(found[1])], sql)
        return named.replace(quoted(TIME), "now()")

    def _keys(self, left: Zset, right: Zset, pairs: Iterable[tuple[str, str]]) -> list[EqualSides]:
        """Expressions that a join compares, and whether rows can be found by their hashes."""
        found = []
        for a, b in pairs:
            kinds = {self._type(left, a), self._type(right, b)}
            found.append(EqualSides(a, b, is_hashed=len(kinds) == 1 or are_exact(kinds)))
        return found

    def _type(self, rows: Zset, sql: str) -> str:
        return self.types(f"select {sql} as x from ({rows.batch})")["x"]

    def _windows(
        self,
        rows: Zset,
        outputs: Sequence[tuple[str, exp.Expr]],
        windows: Sequence[exp.Window],
        qualify_: exp.Expr | None,
    ) -> Zset:
        found = [*windows, *(qualify_.find_all(exp.Window) if qualify_ is not None else ())]
        parts = [
            {text_of(item): item for item in window.args.get("partition_by") or []}
            for window in found
        ]
        shared = reduce(lambda a, b: {k: v for k, v in a.items() if k in b}, parts)
        own = [(name, quoted(name)) for name in rows.columns]
        keys = [f"_p{number}" for number in range(len(shared))]
        source = rows.mapped([*own, *zip(keys, shared, strict=True)])
        type_of = partial(self._type, rows)
        head = ", ".join(
            f"{text_of(in_one_order(item, type_of))} as {quoted(name)}" for name, item in outputs
        )
        tail = "" if qualify_ is None else f" qualify {text_of(in_one_order(qualify_, type_of))}"
        return self.plan.anew(
            source,
            keys,
            [name for name, _ in outputs],
            lambda given: f"select {head} from {given}{tail}",
            "windows by " + (", ".join(map(self._shown, shared)) or "all rows"),
        )


# --- names ---


@dataclass(eq=False)
class _Scope:
    """The columns that a query uses of the tables in its FROM, each with a name of its own."""

    columns: list[str]
    names: dict[tuple[str, str], str] = field(default_factory=dict)

    def use(self, column: exp.Column) -> str:
        """The name of a column of a table."""
        if not column.table or column.args.get("db"):
            raise NoRule(f"a column of no table: {text_of(column)}")
        key = column.table, column.name.lower()
        if key not in self.names:
            self.names[key] = f"_c{len(self.columns)}"
            self.columns.append(column.name)
        return self.names[key]

    def of(self, table: str) -> dict[str, str]:
        """The columns of a table by their own names."""
        return {name: flat for (owner, name), flat in self.names.items() if owner == table}

    def flat(self, tree: exp.Expr) -> exp.Expr:
        """An expression over these names. One with a query in it stays as it is."""
        if is_nested(tree):
            return tree

        def change(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column) or not node.table:
                return node
            flat = self.names[node.table, node.name.lower()]
            return exp.column(exp.to_identifier(flat, quoted=True))

        return tree.transform(change)


def _collect(tree: exp.Select, joins: Sequence[exp.Join], scope: _Scope) -> None:
    """Note the columns that a query uses, also in queries that are nested in its conditions."""
    tables = {item.alias_or_name for item in (tree.args["from_"].this, *(j.this for j in joins))}
    parts = [*tree.expressions, *(join.args.get("on") for join in joins)]
    parts += [join.this for join in joins if isinstance(join.this, exp.Unnest)]
    parts += [tree.args.get(name) for name in ("where", "having", "group", "qualify")]
    for part in parts:
        for column in part.find_all(exp.Column) if part is not None else ():
            if column.table in tables:
                scope.use(column)
            elif not is_time(column) and not is_within_query(column, part):
                raise NoRule("a column of an outer query")


# --- parts of SQL ---


def refuse_known(function: str, parameters: int, sql: str) -> None:
    """Raise NoRule for SQL with a function of the user that sqlglot takes for another one."""
    call = f"{function}({', '.join('a' * parameters)})"
    if function.lower() in sql.lower():
        tree = parse_one(call, dialect=DIALECT)
        if not isinstance(tree, exp.Anonymous):
            raise NoRule(f"a function named {function!r}, which sqlglot takes for another one")


def _this(tree: exp.Select, name: str, scope: _Scope) -> exp.Expr | None:
    found = tree.args.get(name)
    return None if found is None else scope.flat(found.this)


def _equal_sides(conditions: Iterable[exp.Expr], left: Zset, right: Zset) -> list[tuple[str, str]]:
    """The expressions of both sides that conditions hold equal."""
    found = []
    for item in conditions:
        if isinstance(item, exp.EQ):
            a, b = column_names(item.left), column_names(item.right)
            if a and b and a <= {*left.columns} and b <= {*right.columns}:
                found.append((text_of(item.left), text_of(item.right)))
            elif a and b and b <= {*left.columns} and a <= {*right.columns}:
                found.append((text_of(item.right), text_of(item.left)))
    return found


def _widened(rows: Zset, columns: Sequence[str]) -> Zset:
    """The rows with null in the columns that they do not have."""
    own = set(rows.columns)
    return rows.mapped([(name, quoted(name) if name in own else "null") for name in columns])


def _groups(
    tree: exp.Select, outputs: Sequence[tuple[str, exp.Expr]], scope: _Scope
) -> list[exp.Expr]:
    group = tree.args.get("group")
    if group is None:
        return []
    if group.args.get("all"):
        return [item for _, item in outputs if not has_aggregate([item])]
    return [scope.flat(item) for item in group.expressions]
