"""Topics as tables of DuckDB, which is known only here."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from deltaq.errors import InvalidConfig
from deltaq.tools.positions import Place, Ranges, offset_ranges
from deltaq.tools.reading import read
from deltaq.tools.records import json_text
from deltaq.tools.registry_values import RegistryDecoder
from deltaq.topic import Topic
from deltaq.topics.columns import table_schema
from deltaq.topics.record_faults import without_faults

if TYPE_CHECKING:
    import duckdb

Connection: TypeAlias = "duckdb.DuckDBPyConnection"
Relation: TypeAlias = "duckdb.DuckDBPyRelation"

_log = logging.getLogger("deltaq.tools")

BYTES_AT_ONCE = 64 * 1024 * 1024
"""Bytes of rows that DuckDB gets at once, about."""

_SOURCE = "_deltaq_source"
_DECODED = "_value"


@contextmanager
def connected(extra: str = "sql", *, threads: int | None = None) -> Iterator[Connection]:
    """A connection to a database of its own in memory. DuckDB writes to disk what does not fit, and
    uses all processors unless `threads` says how many.

    What DuckDB raises within it becomes InvalidConfig, and so do a missing DuckDB and SQL that is
    nested too deeply.
    """
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise InvalidConfig(
            f"SQL needs the extra [{extra}]: pip install 'deltaq[{extra}]'", key="sql"
        ) from None
    config: dict[str, Any] = {} if threads is None else {"threads": threads}
    with duckdb.connect(config=config) as connection:
        if threads != 1:
            # With several threads DuckDB 1.5.5 applies the filter of a join to rows below a LIMIT
            # before it takes the first ones, at times.
            connection.execute("set disabled_optimizers = 'join_filter_pushdown'")
        try:
            yield connection
        except duckdb.Error as error:
            raise InvalidConfig(f"DuckDB: {error}", key="sql") from None
        except RecursionError:
            raise InvalidConfig("the SQL is nested too deeply: split it", key="sql") from None


@contextmanager
def naming(what: str, key: str) -> Iterator[None]:
    """What DuckDB raises within it becomes InvalidConfig that begins with `what`."""
    import duckdb  # noqa: PLC0415 - an extra

    try:
        yield
    except duckdb.Error as error:
        raise InvalidConfig(f"{what}: DuckDB: {error}", key=key) from None


def fetched(connection: Connection, query: str) -> pa.Table:
    """The result of a query as Arrow."""
    return streamed(connection, query).read_all()


def streamed(connection: Connection, query: str) -> pa.RecordBatchReader:
    """The result of a query as Arrow, in parts. The connection is used until they are read."""
    # A connection of DuckDB 1.4 has no `to_arrow_reader`.
    return connection.execute(query).arrow()


def number_of(connection: Connection, statement: str) -> int:
    """The number that a statement returns, such as that of the rows that it has written."""
    (found,) = connection.execute(statement).fetchone() or (0,)
    return int(found)


def filled(connection: Connection, table: str, query: str) -> int:
    """Give a table these rows only; their number. `table` is its name as SQL takes it."""
    return number_of(connection, f"create or replace table {table} as {query}")


def casts(types: Mapping[str, str]) -> str:
    """All columns, cast to these types."""
    named = ((quoted(name), kind) for name, kind in types.items())
    return ", ".join(f"cast({name} as {kind}) as {name}" for name, kind in named)


def described(connection: Connection, query: str) -> dict[str, str]:
    """The columns of a query or table with their types."""
    rows = connection.execute(f"describe {query}").fetchall()
    return {name: kind for name, kind, *_ in rows}


def parsed(connection: Connection, query: str) -> dict[str, Any]:
    """A query as DuckDB parses it. Raises InvalidConfig for a statement that is no query: topics
    only are read.
    """
    answer = connection.execute("select json_serialize_sql(?::varchar)", [query]).fetchone()
    found: dict[str, Any] = {"error": False} if answer is None else json.loads(answer[0])
    if not found["error"] and not found.get("statements"):
        raise InvalidConfig("DuckDB: no statement", key="sql")
    if found["error"]:
        where = found.get("position")
        place = "" if where is None else f" at character {int(where) + 1}"
        raise InvalidConfig(f"DuckDB: {found['error_message']}{place}", key="sql")
    return found


def tables_read(query: object) -> frozenset[tuple[str, str]]:
    """The tables that a parsed query reads, as schema ("" without one) and name, without those that
    it defines itself.
    """
    return frozenset(_tables(query, frozenset()))


def _tables(node: object, hidden: frozenset[str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, list):
        for inner in node:
            yield from _tables(inner, hidden)
    elif isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            schema, name = str(node.get("schema_name") or ""), str(node["table_name"])
            if schema or name.lower() not in hidden:
                yield schema, name
        if node.get("type") == "RECURSIVE_CTE_NODE":
            hidden |= {str(node["cte_name"]).lower()}
        defined = node.get("cte_map")
        for entry in defined["map"] if isinstance(defined, dict) else ():
            yield from _tables(entry["value"], hidden)
            hidden |= {str(entry["key"]).lower()}
        for name, inner in node.items():
            if name != "cte_map":
                yield from _tables(inner, hidden)


def create_function(
    connection: Connection,
    name: str,
    call: Callable[..., pa.Array],
    parameters: Sequence[str],
    returns: str,
) -> None:
    """Have DuckDB call a function with the columns of many rows at once, also where they are
    null. The types are DuckDB's.
    """
    # The enums, in whose place DuckDB takes texts, are in other modules in other versions.
    create_one: Any = connection.create_function
    create_one(name, call, [*parameters], returns, type="arrow", null_handling="special")


def topic_of(table: str, topics: Collection[str]) -> str | None:
    """The topic that a query names as a table. DuckDB ignores case; the exact name goes first.
    Raises InvalidConfig for a name that may mean several topics.
    """
    if table in topics:
        return table
    found = sorted(topic for topic in topics if topic.lower() == table.lower())
    if len(found) > 1:
        reason = f"{table!r} may be {' or '.join(map(repr, found))}: write one of these names"
        raise InvalidConfig(f"{reason} as it is", key=table)
    return found[0] if found else None


ONE_TABLE = "differ by case only, which DuckDB takes for one table"
"""Why two names cannot be in one query, or one group of views."""


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def load(connection: Connection, name: str, topic: Topic, start: Place, end: Place) -> None:
    """Load the records between two places into a temporary table."""
    columns, batches = rows_of(topic, offset_ranges(topic, start, end))
    create(connection, quoted(name), columns, batches, kind="temp table")


def rows_of(topic: Topic, ranges: Ranges) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns of a topic's table, and its records between these offsets: with `_value` where
    the registry decodes values, and null in the place of a value that DuckDB cannot take.
    """
    columns, decoder = table_schema(topic.describe().schema), RegistryDecoder.of_topic(topic)
    batches = (without_faults(batch, topic.name, _log) for batch in read(topic, ranges))
    if decoder is None:
        return columns, batches
    decoded = (_with_decoded(batch, decoder) for batch in batches)
    return columns.append(pa.field(_DECODED, pa.string())), decoded


def create(
    connection: Connection,
    table: str,
    columns: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    kind: str = "table",
) -> None:
    """Create a table with these rows. `table` is its name as SQL takes it."""
    with registered(connection, columns.empty_table()) as source:
        connection.execute(f"create {kind} {table} as select * from {source}")
    insert(connection, table, columns, batches)


def insert(
    connection: Connection, table: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> None:
    """Add rows to a table."""
    for source in sources(connection, columns, batches):
        connection.execute(f"insert into {table} select * from {source}")


def sources(
    connection: Connection, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[str]:
    """The rows in parts: for each the name under which statements can read it, until the next.

    The parts are made before: DuckDB would read them in a thread of its own, and make an error of
    its own from what reading a topic raises.
    """
    for part in _parts(columns, batches):
        with registered(connection, part) as source:
            yield source


def _parts(columns: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= BYTES_AT_ONCE:
            yield pa.Table.from_batches(waiting, columns)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, columns)


@contextmanager
def registered(connection: Connection, rows: pa.Table) -> Iterator[str]:
    """The name under which statements can read these rows."""
    connection.register(_SOURCE, rows)
    try:
        yield _SOURCE
    finally:
        connection.unregister(_SOURCE)


def _with_decoded(batch: pa.RecordBatch, decoder: RegistryDecoder) -> pa.RecordBatch:
    """The batch with a column of its decoded values."""
    found = decoder.column(batch.column("value"))
    texts = [None if value is None else json_text(value.value) for value in found]
    return batch.append_column(_DECODED, pa.array(texts, pa.string()))
