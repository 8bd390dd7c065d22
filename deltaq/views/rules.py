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


class NoRule(Exception):
    """What has no rule, for people."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A query of a statement, which has rows only if one of the tables of `reads` has changes."""

    sql: str
    reads: frozenset[str]


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
    `reads` has changes. `merged` is the same state in fewer rows, worth it where one of them is
    `superfluous`.
    """

    name: str
    build: str
    change: str
    reads: frozenset[str]
    merged: str
    superfluous: str


@dataclass(eq=False)
class RulePlan:
    """The statements and tables of state of one query, in their order. `prefix` is in all of their
    names.
    """

    prefix: str
    statements: list[Statement] = field(default_factory=list)
    states: list[StateTable] = field(default_factory=list)

    def join(self, left: Zset, right: Zset, condition: str, note: str) -> Zset:
        """The pairs for which a condition holds; no column is on both sides.

        d(L x R) = dL x (R + dR) + L x dR.
        """
        of_left, of_right = self.state(left), self.state(right)
        columns = left.columns + right.columns

        def pairs(of_left: str, of_right: str) -> str:
            return (
                f"select {_listed(columns)}_l._w * _r._w as _w "
                f"from ({of_left}) as _l join ({of_right}) as _r on {condition}"
            )

        branches = (
            Branch(pairs(left.delta, f"from {of_right} union all ({right.delta})"), left.reads),
            Branch(pairs(f"from {of_left}", right.delta), right.reads),
        )
        name = self._statement("join", branches, note)
        return _of_table(name, columns, pairs(left.batch, right.batch))

    def anti(
        self, left: Zset, right: Zset, keys: Sequence[tuple[str, str]], condition: str, note: str
    ) -> Zset:
        """The rows on the left without a partner. `keys` are pairs of expressions, one for each
        side, that are equal wherever the condition holds.

        A new row on the left is linear. An old one can change only where the right has changes with
        its key: it goes as it was, and comes as it is.
        """
        of_left, of_right = self.state(left), self.state(right)
        names = [f"_k{number}" for number in range(len(keys))]
        lefts, rights = [a for a, _ in keys], [b for _, b in keys]
        right_keys = _keys(right.delta, rights, names)
        touched = (
            f"from {of_right} semi join ({_keys(left.delta, lefts, names)} union all {right_keys}) "
            f"on {_equal(rights, names)}"
        )
        head = _listed(left.columns)

        def alone(rows: str, others: str, weight: str = "_w") -> str:
            partner = f"select 1 from {others} where {condition}"
            return f"select {head}{weight} as _w from {rows} where not exists ({partner})"

        sql = (
            f"with _before as materialized ({_merged(right.columns, touched)}), "
            "_after as materialized ("
            + _merged(right.columns, f"from _before union all ({right.delta})")
            + f"), _old as materialized (from {of_left} semi join ({right_keys}) "
            f"on {_equal(lefts, names)}) "
            + alone(f"({left.delta})", "_after")
            + f" union all {alone('_old', '_after')} union all {alone('_old', '_before', '-_w')}"
        )
        there = f"({_merged(right.columns, right.batch)})"
        branch = Branch(sql, left.reads | right.reads)
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

        def partial(rows: str) -> str:
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
        sql = (
            f"with _p as materialized ({partial(source.delta)}), "
            f"_o as materialized (select {head}{again} from {state}{matched}{group}) "
            f"select {_listed(keys, '_p.')}{', '.join(values)} "
            f"from _p left join _o on {_same(keys, '_p', '_o')}"
        )
        branch = Branch(sql, source.reads)
        changes = self._statement("aggregate", (branch,), note)
        grown = ", ".join(f"_new{name} - _old{name} as {name}" for name in names)
        self.states.append(
            StateTable(
                state,
                build=partial(source.batch),
                change=f"select {head}{grown} from {changes}",
                reads=frozenset([changes]),
                merged=f"select {head}{again} from {state}{group}"
                + (" having sum(_n) <> 0" if keys else ""),
                superfluous="true",
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
            batch=f"select {_listed(columns)}1 as _w from ({partial(source.batch)}){there}",
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
        groups that have changes. `query` gets the rows, as a table in FROM.
        """
        state, own = self.state(source), source.columns
        touched = f"from {state} as _t semi join _k on {_same(keys, '_t', '_k')}"
        head = _listed(columns)

        def result(merged_rows: str, weight: int) -> str:
            each = f"(select {_listed(own)[:-2]} from {merged_rows} as _z, range(_z._w))"
            return f"select {head}{weight} as _w from ({query(each)})"

        sql = (
            f"with _d as materialized ({_merged(own, source.delta)}), "
            f"_k as materialized (select distinct {_listed(keys)[:-2]} from _d), "
            f"_before as materialized ({_merged(own, touched)}), "
            f"_after as materialized ({_merged(own, 'from _before union all (from _d)')}) "
            f"{result('_after', 1)} union all {result('_before', -1)}"
        )
        branch = Branch(sql, source.reads)
        name = self._statement("groups anew", (branch,), note)
        return _of_table(name, columns, result(f"({_merged(own, source.batch)})", 1))

    def described(self) -> tuple[tuple[str, str], ...]:
        """The rules, each with what it is about, for people."""
        return tuple((statement.rule, statement.note) for statement in self.statements)

    def state(self, of: Zset) -> str:
        """The name of a table of state with all rows."""
        name = self._name("state")
        merged = _merged(of.columns, f"from {name}")
        self.states.append(StateTable(name, of.batch, of.delta, of.reads, merged, "_w < 0"))
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
