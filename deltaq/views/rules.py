"""Rules: how the rows of a query change with what it reads, as statements of DuckDB.

Rows that change are a *Z-set*: each has a weight in `_w`, how many such rows come, or go if it is
negative. Maps, filters and unions are linear: they work on changes as on rows, so they are text in
the next statement. Joins, aggregates and what is made anew by group need what was there before: it
is in tables of state, of which a rule uses only the rows whose keys are in the changes (DBSP,
Budiu et al., VLDB 2023, sections 4 and 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from deltaq.tools.duckdb_tables import quoted

SCHEMA = "rule"
"""The schema of DuckDB with the tables of rules."""


@dataclass(frozen=True, slots=True)
class Zset:
    """Rows with weights, as two queries with `columns` and `_w`: `delta` are the changes of a tick,
    and `batch` all rows that were there before it. `reads` are the tables of changes that `delta`
    reads: without any row in them it has none.
    """

    columns: tuple[str, ...]
    delta: str
    batch: str
    reads: frozenset[str]

    def mapped(self, outputs: Sequence[tuple[str, str]], where: Iterable[str] = ()) -> Zset:
        """Other columns, each an expression over the present ones, of the rows for which all of
        `where` hold.
        """
        head = "".join(f"{sql} as {quoted(name)}, " for name, sql in outputs)
        tail = " and ".join(f"({condition})" for condition in where)
        tail = f" where {tail}" if tail else ""
        columns = tuple(name for name, _ in outputs)
        return self._linear(columns, lambda rows: f"select {head}_w from ({rows}){tail}")

    def weighed(self, weight: str, columns: Sequence[str]) -> Zset:
        """Some of the columns, with other weights: an expression over all columns and `_w`."""
        head = _listed(columns)
        return self._linear(columns, lambda rows: f"select {head}{weight} as _w from ({rows})")

    def _linear(self, columns: Sequence[str], query: Callable[[str], str]) -> Zset:
        return Zset(tuple(columns), query(self.delta), query(self.batch), self.reads)


@dataclass(frozen=True, slots=True)
class Relation:
    """A topic or view that SQL names: its columns with their types, and its rows."""

    types: Mapping[str, str]
    rows: Zset


@dataclass(frozen=True, slots=True)
class EqualSides:
    """Expressions over the rows of the left and of the right side that are equal in each pair.
    `is_hashed`: values that are equal have one hash, once they are cast to one of the types.
    """

    left: str
    right: str
    is_hashed: bool


class NoRule(Exception):
    """What has no rule, for people."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The rows of a table of state that a branch needs: those with the keys that are `asked` for,
    by queries, each with the expressions of the key over its rows.
    """

    state: str
    asked: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """A query of a statement, which has rows only if one of the tables of `reads` has changes.
    `sql` gets what stands in FROM for each of the lookups.
    """

    sql: Callable[..., str]
    reads: frozenset[str]
    lookups: tuple[Lookup, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """Fills the table `name` in a tick, by all branches together. `rule` and `note` are for
    people.
    """

    name: str
    rule: str
    branches: tuple[Branch, ...]
    note: str


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table of state: made by `build`, and grown by `change` at the end of a tick in which one of
    `reads` has changes. `merged` is what some of its rows are in fewer, worth it where one of them
    is `superfluous`. Rules find rows by `key`, expressions; without one they need all.
    """

    name: str
    build: str
    change: str
    reads: frozenset[str]
    merged: Callable[[str], str]
    superfluous: str
    key: tuple[str, ...]


@dataclass(eq=False)
class RulePlan:
    """The statements and tables of state of one query, in their order. `prefix` is in all of their
    names.
    """

    prefix: str
    statements: list[Statement] = field(default_factory=list)
    states: list[StateTable] = field(default_factory=list)

    def join(
        self, left: Zset, right: Zset, keys: Sequence[EqualSides], condition: str, note: str
    ) -> Zset:
        """The pairs for which a condition holds; no column is on both sides. `keys` are equal
        wherever it holds.

        d(L x R) = dL x (R + dR) + L x dR.
        """
        lefts, rights = _hashed(keys)
        columns = left.columns + right.columns

        def pairs(of_left: str, of_right: str) -> str:
            return (
                f"select {_listed(columns)}_l._w * _r._w as _w "
                f"from ({of_left}) as _l join ({of_right}) as _r on {condition}"
            )

        branches = (
            Branch(
                lambda old: pairs(left.delta, f"from {old} union all ({right.delta})"),
                left.reads,
                (Lookup(self.state(right, rights), ((left.delta, lefts),)),),
            ),
            Branch(
                lambda old: pairs(f"from {old}", right.delta),
                right.reads,
                (Lookup(self.state(left, lefts), ((right.delta, rights),)),),
            ),
        )
        name = self._statement("join", branches, note)
        return _of_table(name, columns, pairs(left.batch, right.batch))

    def at_time(self, source: Zset, time: Zset, condition: Callable[[str], str], note: str) -> Zset:
        """The rows for which a condition holds over them and `time`, which has one row. The
        condition is that with the time from the table that it gets.

        New rows are held against the new time. Old ones change where the condition holds at one of
        both times only.
        """
        head, columns = _listed(source.columns), time.columns
        all_rows, one_row = Lookup(self.state(source), ()), Lookup(self.state(time), ())
        held, holds = (f"coalesce({condition(table)}, false)::int" for table in ("_old", "_new"))

        def new(of_time: str) -> str:
            rows = _merged(columns, f"from {of_time} union all ({time.delta})")
            return f"_new as materialized ({rows})"

        def chosen(rows: str, times: str) -> str:
            return (
                f"select {head}_s._w as _w from ({rows}) as _s, {times} where {condition('_new')}"
            )

        def changed(of_source: str, of_time: str) -> str:
            old = f"_old as materialized ({_merged(columns, f'from {of_time}')})"
            return (
                f"with {old}, {new(of_time)} select {head}_s._w * ({holds} - {held}) as _w "
                f"from {of_source} as _s, _new left join _old on true where {holds} <> {held}"
            )

        branches = (
            Branch(
                lambda of_time: f"with {new(of_time)} {chosen(source.delta, '_new')}",
                source.reads,
                (one_row,),
            ),
            Branch(changed, time.reads, (all_rows, one_row)),
        )
        name = self._statement("at the time of the tick", branches, note)
        return _of_table(name, source.columns, chosen(source.batch, f"({time.batch}) as _new"))

    def anti(
        self, left: Zset, right: Zset, keys: Sequence[EqualSides], condition: str, note: str
    ) -> Zset:
        """The rows on the left without a partner. `keys`, of which there is one, are equal wherever
        the condition holds.

        A new row on the left is linear. An old one can change only where the right has changes with
        its key: it goes as it was, and comes as it is.
        """
        names = [f"_k{number}" for number in range(len(keys))]
        left_keys = _keys(left.delta, [key.left for key in keys], names)
        right_keys = _keys(right.delta, [key.right for key in keys], names)
        of_left_is_key = _equal([key.left for key in keys], names)
        of_right_is_key = _equal([key.right for key in keys], names)
        head = _listed(left.columns)

        def alone(rows: str, others: str, weight: str = "_w") -> str:
            partner = f"select 1 from {others} where {condition}"
            return f"select {head}{weight} as _w from {rows} where not exists ({partner})"

        def changes(of_left: str, of_right: str) -> str:
            touched = (
                f"from {of_right} semi join ({left_keys} union all {right_keys}) "
                f"on {of_right_is_key}"
            )
            return (
                f"with _before as materialized ({_merged(right.columns, touched)}), "
                "_after as materialized ("
                + _merged(right.columns, f"from _before union all ({right.delta})")
                + f"), _old as materialized (from {of_left} semi join ({right_keys}) "
                f"on {of_left_is_key}) "
                f"{alone(f'({left.delta})', '_after')} "
                f"union all {alone('_old', '_after')} union all {alone('_old', '_before', '-_w')}"
            )

        there = f"({_merged(right.columns, right.batch)})"
        lefts, rights = _hashed(keys)
        branch = Branch(
            changes,
            left.reads | right.reads,
            (
                Lookup(self.state(left, lefts), ((right.delta, rights),)),
                Lookup(self.state(right, rights), ((left.delta, lefts), (right.delta, rights))),
            ),
        )
        name = self._statement("anti join", (branch,), note)
        return _of_table(name, left.columns, alone(f"({left.batch})", there))

    def aggregate(
        self, source: Zset, keys: Sequence[str], sums: Mapping[str, str], note: str
    ) -> Zset:
        """Groups with `_n`, their number of rows, and exact sums of expressions that are never
        null. Without keys there is one row, also for no rows.
        """
        names = ["_n", *sums]
        head, group = _listed(keys), _grouped(keys)

        def sums_in(rows: str) -> str:
            sums_of = "".join(f", coalesce(sum(({x}) * _w), 0) as {n}" for n, x in sums.items())
            count = "coalesce(sum(_w), 0)::bigint as _n"
            return f"select {head}{count}{sums_of} from ({rows}){group}"

        again = "coalesce(sum(_n), 0)::bigint as _n"
        again += "".join(f", coalesce(sum({name}), 0) as {name}" for name in sums)
        state = self._name("state")
        matched = f" as _t semi join _p on {_same(keys, '_t', '_p')}" if keys else ""
        values = [
            *(f"coalesce(_o.{name}, 0) as _old{name}" for name in names),
            *(f"coalesce(_o.{name}, 0) + _p.{name} as _new{name}" for name in names),
        ]

        def groups(of_state: str) -> str:
            return (
                f"with _p as materialized ({sums_in(source.delta)}), "
                f"_o as materialized (select {head}{again} from {of_state}{matched}{group}) "
                f"select {_listed(keys, '_p.')}{', '.join(values)} "
                f"from _p left join _o on {_same(keys, '_p', '_o')}"
            )

        own = tuple(map(quoted, keys))
        branch = Branch(groups, source.reads, (Lookup(state, ((source.delta, own),)),))
        changes = self._statement("aggregate", (branch,), note)
        grown = ", ".join(f"_new{name} - _old{name} as {name}" for name in names)
        # A part of the state may have no row left of a group, and yet a sum.
        is_left = " or ".join(f"sum({name}) <> 0" for name in names)
        self.states.append(
            StateTable(
                state,
                build=sums_in(source.batch),
                change=f"select {head}{grown} from {changes}",
                reads=frozenset([changes]),
                merged=lambda rows: (
                    f"select {head}{again} from ({rows}){group}"
                    + (f" having {is_left}" if keys else "")
                ),
                superfluous="true",
                key=own,
            )
        )

        def rows(which: str, weight: int) -> str:
            of = "".join(f"{which}{name} as {name}, " for name in names)
            there = f" where {which}_n <> 0" if keys else ""
            return f"select {head}{of}{weight} as _w from {changes}{there}"

        columns, there = (*keys, *names), " where _n <> 0" if keys else ""
        return Zset(
            columns,
            delta=f"{rows('_old', -1)} union all {rows('_new', 1)}",
            batch=f"select {_listed(columns)}1 as _w from ({sums_in(source.batch)}){there}",
            reads=frozenset([changes]),
        )

    def anew(
        self,
        source: Zset,
        keys: Sequence[str],
        columns: Sequence[str],
        query: Callable[[str], str],
        note: str,
    ) -> Zset:
        """The result of a query over the rows of each group with the same keys, made anew for the
        groups that have changes; without keys, over all rows. `query` gets the rows, as a table in
        FROM.
        """
        if not keys:
            rule = "all rows anew"
            return self.all_anew([source], columns, lambda rows: query(rows[0]), rule, note)
        own, head = source.columns, _listed(columns)
        key = tuple(map(quoted, keys))

        def result(merged_rows: str, weight: int) -> str:
            each = f"(select {_listed(own)[:-2]} from {merged_rows} as _z, range(_z._w))"
            return f"select {head}{weight} as _w from ({query(each)})"

        def changes(of_state: str) -> str:
            touched = f"from {of_state} as _t semi join _k on {_same(keys, '_t', '_k')}"
            return (
                f"with _d as materialized ({_merged(own, source.delta)}), "
                f"_k as materialized (select distinct {_listed(keys)[:-2]} from _d), "
                f"_before as materialized ({_merged(own, touched)}), "
                f"_after as materialized ({_merged(own, 'from _before union all (from _d)')}) "
                f"{result('_after', 1)} union all {result('_before', -1)}"
            )

        lookup = Lookup(self.state(source, key), ((source.delta, key),))
        branch = Branch(changes, source.reads, (lookup,))
        name = self._statement("groups anew", (branch,), note)
        return _of_table(name, columns, result(f"({_merged(own, source.batch)})", 1))

    def all_anew(
        self,
        sources: Sequence[Zset],
        columns: Sequence[str],
        query: Callable[[Sequence[str]], str],
        rule: str,
        note: str,
    ) -> Zset:
        """The result of a query over all rows of its `sources`, made anew when one of them has
        changes. `query` gets a name in FROM for the rows of each.
        """

        def result(of_sources: Sequence[str], prefix: str) -> tuple[str, str]:
            """Tables with each row as often as it is there, and the query over them."""
            names = [f"{prefix}{number}" for number in range(len(sources))]
            tables = ", ".join(
                f"{name} as (select {_listed(of.columns)[:-2]} from {rows} as _z, range(_z._w))"
                for name, of, rows in zip(names, sources, of_sources, strict=True)
            )
            return tables, f"select {_listed(columns)}1 as _w from ({query(names)})"

        def changes(*of_states: str) -> str:
            before = [f"_b{number}" for number in range(len(sources))]
            after = [f"_a{number}" for number in range(len(sources))]
            merged = []
            for of, state, b, a in zip(sources, of_states, before, after, strict=True):
                grown = f"from {b} union all ({of.delta})"
                merged.append(f"{b} as materialized ({_merged(of.columns, f'from {state}')})")
                merged.append(f"{a} as materialized ({_merged(of.columns, grown)})")
            old_tables, old = result(before, "_old")
            new_tables, new = result(after, "_new")
            both = f"{new} union all select {_listed(columns)}-_w as _w from ({old})"
            return f"with {', '.join([*merged, old_tables, new_tables])} {_merged(columns, both)}"

        reads = frozenset[str]().union(*(of.reads for of in sources))
        lookups = tuple(Lookup(self.state(of), ()) for of in sources)
        name = self._statement(rule, (Branch(changes, reads, lookups),), note)
        tables, found = result([f"({_merged(of.columns, of.batch)})" for of in sources], "_all")
        return _of_table(name, columns, f"with {tables} {found}")

    def described(self) -> tuple[tuple[str, str], ...]:
        """The rules, each with what it is about, for people."""
        return tuple((statement.rule, statement.note) for statement in self.statements)

    def state(self, of: Zset, key: tuple[str, ...] = ()) -> str:
        """The name of a table of state with all rows, found by these expressions."""
        for known in self.states:
            if (known.build, known.change, known.key) == (of.batch, of.delta, key):
                return known.name
        name = self._name("state")
        merged = partial(_merged, of.columns)
        self.states.append(StateTable(name, of.batch, of.delta, of.reads, merged, "_w < 0", key))
        return name

    def _statement(self, rule: str, branches: tuple[Branch, ...], note: str) -> str:
        name = self._name("change")
        self.statements.append(Statement(name, rule, branches, note))
        return name

    def _name(self, kind: str) -> str:
        number = len(self.statements) + len(self.states)
        return f"{SCHEMA}.{kind}_{self.prefix}_{number}"


def union(left: Zset, right: Zset) -> Zset:
    """The rows of both; the columns have the names of those on the left."""
    pairs = zip(left.columns, right.columns, strict=True)
    other = right.mapped([(name, quoted(column)) for name, column in pairs])
    head = f"select {_listed(left.columns)}_w from"
    return Zset(
        left.columns,
        f"{head} ({left.delta}) union all {head} ({other.delta})",
        f"{head} ({left.batch}) union all {head} ({other.batch})",
        left.reads | right.reads,
    )


def _of_table(name: str, columns: Sequence[str], batch: str) -> Zset:
    """What a statement has put into its table."""
    delta = f"select {_listed(columns)}_w from {name}"
    return Zset(tuple(columns), delta, batch, frozenset([name]))


def _hashed(keys: Iterable[EqualSides]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The expressions of both sides by which rows are found."""
    found = [key for key in keys if key.is_hashed]
    return tuple(key.left for key in found), tuple(key.right for key in found)


def _listed(columns: Iterable[str], prefix: str = "") -> str:
    return "".join(f"{prefix}{quoted(column)}, " for column in columns)


def _grouped(columns: Sequence[str]) -> str:
    return f" group by {', '.join(map(quoted, columns))}" if columns else ""


def _same(keys: Sequence[str], one: str, other: str) -> str:
    """That keys are equal, where null equals null, as in groups."""
    pairs = (f"{one}.{quoted(key)} is not distinct from {other}.{quoted(key)}" for key in keys)
    return " and ".join(pairs) or "true"


def _equal(expressions: Iterable[str], names: Iterable[str]) -> str:
    """That expressions are equal to columns, where null equals nothing, as in joins."""
    return " and ".join(f"({sql}) = {name}" for sql, name in zip(expressions, names, strict=True))


def _keys(query: str, expressions: Iterable[str], names: Iterable[str]) -> str:
    named = (f"{sql} as {name}" for sql, name in zip(expressions, names, strict=True))
    return f"select distinct {', '.join(named)} from ({query})"


def _merged(columns: Sequence[str], query: str) -> str:
    """The rows of a query with one row for each distinct one, and none with weight 0."""
    group, head = _grouped(columns), _listed(columns)
    return f"select {head}sum(_w)::bigint as _w from ({query}){group} having sum(_w) <> 0"
