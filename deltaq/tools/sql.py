"""SQL over topics as tables, by DuckDB. DuckDB is known only here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import InvalidConfig
from deltaq.store import Store
from deltaq.tools.frames import from_arrow, sound_batches
from deltaq.tools.positions import Place
from deltaq.tools.records import json_text
from deltaq.tools.registry_values import RegistryDecoder
from deltaq.topic import Topic
from deltaq.topics.columns import table_schema
from deltaq.topics.listing import topic_names

if TYPE_CHECKING:
    import duckdb

_SOURCE = "_deltaq_source"
_DECODED = "_value"


def sql(
    store: Store, query: str, start: Place = None, end: Place = None, *, clock: Clock = SYSTEM_CLOCK
) -> pa.Table:
    """The result of a query in DuckDB's SQL, in which topics are tables.

    Their columns are `_partition`, `_offset`, `_timestamp`, `_key`, `_headers`, and `value` or the
    columns of a typed topic. Where the registry has schemas, `_value` is the value of a topic of
    bytes as JSON, null if it has no schema. The records from `start` to `end` are loaded first;
    DuckDB writes to disk what does not fit into memory. A value that cannot be returned is null,
    and the log names its record.

    Raises InvalidConfig for a query that DuckDB refuses, and where DuckDB is missing; UnknownTopic,
    Corrupt, Incompatible, Unavailable.
    """
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise InvalidConfig(
            "SQL needs the extra [sql]: pip install 'deltaq[sql]'", key="sql"
        ) from None
    with duckdb.connect() as connection:
        try:
            for topic, name in _topics(store, _table_names(connection, query)).items():
                _load(connection, name, Topic(topic, store=store, clock=clock), start, end)
            # A connection of DuckDB 1.4 has no `to_arrow_table`.
            return _with_names_apart(connection.execute(query).arrow().read_all())
        except duckdb.Error as error:
            raise InvalidConfig(f"DuckDB: {error}", key="sql") from None


def _with_names_apart(found: pa.Table) -> pa.Table:
    """The table with another name for each column after the first of a name, as in a subquery of
    DuckDB: a, a_1.
    """
    names: list[str] = []
    for name in found.column_names:
        taken = {*found.column_names, *names} if name in names else {*names}
        others = (f"{name}_{number}" for number in count(1))
        names.append(next(other for other in chain([name], others) if other not in taken))
    return found.rename_columns(names)


def to_duckdb(
    topic: Topic,
    connection: duckdb.DuckDBPyConnection,
    table: str | None = None,
    start: Place = None,
    end: Place = None,
) -> str:
    """Load the records between two places into a temporary table of a connection; its name, by
    default the topic's.

    Raises as `Topic.to_batches`, and what DuckDB raises for a name that is taken.
    """
    name = topic.name if table is None else table
    _load(connection, name, topic, start, end)
    return name


def from_duckdb(
    topic: Topic, relation: duckdb.DuckDBPyRelation, *, key_column: str | None = None
) -> int:
    """Produce the rows of a query, as `from_arrow` does: `connection.sql('select ...')`; their
    number.
    """
    return from_arrow(topic, relation.to_arrow_table(), key_column=key_column)


def _table_names(connection: duckdb.DuckDBPyConnection, query: str) -> set[str]:
    """The tables that a query names. Raises InvalidConfig for a statement that is no query: topics
    only are read.
    """
    answer = connection.execute("select json_serialize_sql(?::varchar)", [query]).fetchone()
    parsed: dict[str, Any] = {"error": False} if answer is None else json.loads(answer[0])
    if not parsed["error"] and not parsed.get("statements"):
        raise InvalidConfig("DuckDB: no statement", key="sql")
    if parsed["error"]:
        where = parsed.get("position")
        place = "" if where is None else f" at character {int(where) + 1}"
        raise InvalidConfig(f"DuckDB: {parsed['error_message']}{place}", key="sql")
    return set(_tables(parsed))


def _tables(node: object) -> Iterator[str]:
    """The names of tables in a parsed query."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield node["table_name"]
        for inner in node.values():
            yield from _tables(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _tables(inner)


def _topics(store: Store, named: set[str]) -> Mapping[str, str]:
    """The topics that a query names, with one of their names in the query. DuckDB ignores case."""
    there = topic_names(store)
    folded = {topic.lower(): topic for topic in there}
    return {
        name if name in there else folded[name.lower()]: name
        for name in sorted(named)
        if name.lower() in folded
    }


def _load(
    connection: duckdb.DuckDBPyConnection, name: str, topic: Topic, start: Place, end: Place
) -> None:
    columns, decoder = table_schema(topic.describe().schema), RegistryDecoder.of_topic(topic)
    batches = sound_batches(topic, start, end)
    if decoder is not None:
        columns = columns.append(pa.field(_DECODED, pa.string()))
        batches = (_with_decoded(batch, decoder) for batch in batches)
    connection.register(_SOURCE, pa.RecordBatchReader.from_batches(columns, batches))
    quoted = '"' + name.replace('"', '""') + '"'
    # A table and not a view: DuckDB may scan it several times, and batches can be read once.
    connection.execute(f"create temp table {quoted} as select * from {_SOURCE}")  # noqa: S608 - quoted
    connection.unregister(_SOURCE)


def _with_decoded(batch: pa.RecordBatch, decoder: RegistryDecoder) -> pa.RecordBatch:
    """The batch with a column of its decoded values."""
    found = decoder.column(batch.column("value"))
    texts = [None if value is None else json_text(value.value) for value in found]
    return batch.append_column(_DECODED, pa.array(texts, pa.string()))
