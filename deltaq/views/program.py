"""The program of a group of views: their SQL, in an order in which each follows those that it
reads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from graphlib import CycleError, TopologicalSorter

from deltaq.errors import InvalidConfig
from deltaq.names import check_id, check_topic
from deltaq.serde.json_text import compact_json
from deltaq.tools.duckdb_tables import ONE_TABLE, Connection, connected, parsed, tables_read
from deltaq.views.declared import DeclaredInput
from deltaq.views.functions import ViewFunction
from deltaq.views.one_result import why_not
from deltaq.views.query import Functions, calls_now, reads_column, row_key
from deltaq.views.rows_apart import KeyComparison
from deltaq.views.tick_clock import CLOCK

EXTRA = "views"
"""The extra that installs DuckDB for views."""

WEIGHT = "weight"
"""The column of a view without a row key: how many such rows come, or go if it is negative."""

TICK = "tick"
"""The column of each view with the tick that wrote the row."""

KEY = "_key"
"""The column of a topic with the key of a record. In a view, its key columns as JSON."""

_RESERVED = frozenset({"ticks", CLOCK})

_VIEW_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """A view before its SQL is read. `key`: the columns that tell its rows apart; None for those
    that the SQL names.
    """

    name: str
    sql: str
    key: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A view. `key` are the columns that tell its rows apart, none for a view with one row; None if
    it has no such columns. `is_key_of_sql`: the SQL implies that no two rows have the same key.
    `reads` are the views and topics that it reads, and the clock; `names_clock`: in FROM. `names`
    are the tables in FROM in the case that this SQL has; `reads` has one for all views.
    `names_rowid`: it reads a column of this name. `compares_keys`: its order is total only if joins
    compare keys with values of their type.
    """

    name: str
    sql: str
    key: tuple[str, ...] | None
    is_key_of_sql: bool
    reads: tuple[str, ...]
    names: tuple[str, ...]
    names_clock: bool
    names_rowid: bool
    compares_keys: bool


@dataclass(frozen=True, slots=True)
class ViewProgram:
    """The views of a group, each after those that it reads; the functions that they call, and what
    is said about their inputs.
    """

    group: str
    views: tuple[View, ...]
    functions: tuple[ViewFunction, ...] = ()
    declared: tuple[DeclaredInput, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that the views read, by name."""
        own = {CLOCK, *(view.name for view in self.views)}
        return tuple(sorted({name for view in self.views for name in view.reads} - own))

    @property
    def row_keys(self) -> dict[str, tuple[str, ...] | None]:
        """The row keys of the views, by name in lower case; None for one without, and for a Delta
        table.
        """
        return _row_keys({view.name: view.key for view in self.views}, self.declared)

    @property
    def reads_clock(self) -> bool:
        """Whether a view reads the time of the tick."""
        return any(CLOCK in view.reads for view in self.views)

    @property
    def digest(self) -> str:
        """What names this program: it changes with the SQL or the key of a view, with a function,
        and with what is declared of an input.
        """
        said: list[object] = [[view.name, view.sql, view.key] for view in self.views]
        said += [list(astuple(function.signature)) for function in self.functions]
        said += [declared.as_json() for declared in self.declared]
        return hashlib.blake2b(compact_json(said).encode(), digest_size=8).hexdigest()

    def view(self, name: str) -> View:
        """A view by name. Raises InvalidConfig."""
        for view in self.views:
            if view.name == name:
                return view
        known = ", ".join(view.name for view in self.views)
        raise InvalidConfig(
            f"the group {self.group!r} has no view {name!r}, only {known}", key=name
        )


def key_text(columns: Sequence[str] | None) -> str:
    """What tells the rows of a view apart, for people."""
    if columns is None:
        return "none: a changelog"
    return ", ".join(columns) or "one row"


def ticks_topic(group: str) -> str:
    """The topic with what each tick of a group has published."""
    return f"{group}.ticks"


def view_topic(group: str, view: str) -> str:
    """The topic of a view of a group."""
    return f"{group}.{view}"


def compiled(
    group: str,
    queries: Sequence[ViewQuery],
    calls: Sequence[ViewFunction] = (),
    declared: Sequence[DeclaredInput] = (),
) -> ViewProgram:
    """The program of these views and declared inputs; the views call these functions. Raises
    InvalidConfig, naming the view: for SQL that DuckDB refuses, SQL without one right result, views
    that read each other, and names that are taken; and naming an input that no view reads.
    """
    check_id(group, "group")
    if not queries:
        raise InvalidConfig("a group of views has no view", key=group)
    for name in _checked(group, queries):
        check_topic(view_topic(group, name))
    with connected(EXTRA, threads=1) as connection:
        functions = functions_of(connection)
        _check_functions(connection, calls)
        found = {query.name: _parsed_view(connection, query) for query in queries}
        # DuckDB takes names in any case.
        known = {name.lower(): name for name in (*found, CLOCK)}
        tables = {
            name: {known.setdefault(table.lower(), table) for table in sorted(_tables(query))}
            for name, query in found.items()
        }
        reads = {
            name: tables[name] | ({CLOCK} if calls_now(query) else set())
            for name, query in found.items()
        }
        of_sql = {name: row_key(query, functions) for name, query in found.items()}
        keys = {
            query.name: of_sql[query.name] if query.key is None else query.key for query in queries
        }
        by_lower = _row_keys(keys, declared)
        compare_keys = set()
        for name, query in found.items():
            compared = list[KeyComparison]()
            for reason in why_not(query, functions, by_lower, partial(_assumed, compared)):
                raise InvalidConfig(f"view {name!r} {reason}", key=name)
            if compared:
                compare_keys.add(name)
    sql = {query.name: query.sql for query in queries}
    order = _in_order(
        {name: [table for table in of if table in found] for name, of in reads.items()}
    )
    views = (
        View(
            name,
            sql[name],
            keys[name],
            keys[name] == of_sql[name],
            tuple(sorted(reads[name])),
            tuple(sorted(_tables(found[name]))),
            CLOCK in tables[name],
            reads_column(found[name], "rowid"),
            name in compare_keys,
        )
        for name in order
    )
    program = ViewProgram(group, tuple(views), tuple(calls), tuple(declared))
    _check_read(program)
    return program


def _row_keys(
    keys: Mapping[str, tuple[str, ...] | None], declared: Sequence[DeclaredInput]
) -> dict[str, tuple[str, ...] | None]:
    # Rows of a Delta table have no place.
    found = dict.fromkeys((of.name.lower() for of in declared if of.delta), None)
    return found | {name.lower(): key for name, key in keys.items()}


def _assumed(compared: list[KeyComparison], comparison: KeyComparison) -> bool:
    """Take a comparison for one without a cast, and note it: types are not known yet."""
    compared.append(comparison)
    return True


def _check_read(program: ViewProgram) -> None:
    read = {name.lower() for name in program.inputs}
    by_lower: dict[str, str] = {}
    for declared in program.declared:
        other = by_lower.setdefault(declared.name.lower(), declared.name)
        if other != declared.name:
            reason = f"the declared inputs {other!r} and {declared.name!r} {ONE_TABLE}: remove one"
            raise InvalidConfig(reason, key=declared.name)
        if declared.name.lower() not in read:
            reason = f"input {declared.name!r} is declared, and no view of {program.group!r} reads"
            raise InvalidConfig(f"{reason} it: correct its name, or remove it", key=declared.name)


def _tables(query: object) -> set[str]:
    return {f"{schema}.{name}" if schema else name for schema, name in tables_read(query)}


def is_view_name(name: str) -> bool:
    """Whether a view may have this name."""
    return _VIEW_NAME.fullmatch(name) is not None and name.lower() not in _RESERVED


def _checked(group: str, queries: Sequence[ViewQuery]) -> Iterator[str]:
    """The names of the views. Raises InvalidConfig for one that cannot be used."""
    taken: set[str] = set()
    for query in queries:
        name = query.name
        if not is_view_name(name):
            reason = "use letters, digits and '_', a letter first, and not 'ticks' or 'clock'"
            raise InvalidConfig(f"a view cannot be named {name!r}: {reason}", key=name)
        if name.lower() in taken:
            raise InvalidConfig(f"the group {group!r} has two views named {name!r}", key=name)
        taken.add(name.lower())
        yield name


def _parsed_view(connection: Connection, query: ViewQuery) -> dict[str, object]:
    """The SQL of a view as DuckDB parses it. Raises InvalidConfig, naming the view."""
    try:
        found = parsed(connection, query.sql)
    except InvalidConfig as error:
        raise InvalidConfig(f"view {query.name!r}: {error.error.str()}", key=query.name) from None
    if len(found["statements"]) != 1:
        raise InvalidConfig(f"view {query.name!r} has more than one statement", key=query.name)
    return found


def functions_of(connection: Connection) -> Functions:
    """The functions of a connection that has no others than DuckDB's."""
    rows = connection.execute(
        "select function_name, function_type, stability, macro_definition from duckdb_functions()"
    ).fetchall()
    unstable = {
        name
        for name, _, stability, _ in rows
        if stability in ("VOLATILE", "CONSISTENT_WITHIN_QUERY")
    }
    calls = re.compile(rf"\b({'|'.join(map(re.escape, unstable))}|current_timestamp)\b")
    unstable.update(name for name, _, _, macro in rows if macro and calls.search(macro))
    makes_rows = (name for name, _, _, macro in rows if macro and "unnest(" in macro)
    return Functions(
        frozenset(name for name, kind, _, _ in rows if kind == "aggregate"),
        frozenset(unstable),
        frozenset({"unlist", "unnest", *makes_rows}),
    )


def _check_functions(connection: Connection, calls: Sequence[ViewFunction]) -> None:
    """Raise InvalidConfig for a function with the name of one of DuckDB."""
    rows = connection.execute("select distinct lower(function_name) from duckdb_functions()")
    taken = {name for (name,) in rows.fetchall()}
    for name in (call.signature.name for call in calls):
        if name.lower() in taken:
            reason = f"DuckDB has a function {name!r} already: give that of the views another name"
            raise InvalidConfig(reason, key=name)


def _in_order(reads: Mapping[str, Sequence[str]]) -> list[str]:
    try:
        return list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        path = " reads ".join(reversed(error.args[1]))
        raise InvalidConfig(f"views read each other: {path}", key=error.args[1][0]) from None
