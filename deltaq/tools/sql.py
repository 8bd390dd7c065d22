"""SQL over topics as tables, by DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, count

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import InvalidConfig
from deltaq.store import Store
from deltaq.tools.duckdb_tables import (
    ONE_TABLE,
    Connection,
    Relation,
    connected,
    fetched,
    load,
    parsed,
    tables_read,
    topic_of,
)
from deltaq.tools.frames import from_arrow
from deltaq.tools.positions import Place
from deltaq.topic import Topic
from deltaq.topics.listing import topic_names


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
    with connected() as connection:
        tables = (name for _, name in tables_read(parsed(connection, query)))
        for topic, name in _topics(store, tables).items():
            load(connection, name, Topic(topic, store=store, clock=clock), start, end)
        return _with_names_apart(fetched(connection, query))


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
    connection: Connection,
    table: str | None = None,
    start: Place = None,
    end: Place = None,
) -> str:
    """Load the records between two places into a temporary table of a connection; its name, by
    default the topic's.

    Raises as `Topic.to_batches`, and what DuckDB raises for a name that is taken.
    """
    name = topic.name if table is None else table
    load(connection, name, topic, start, end)
    return name


def from_duckdb(topic: Topic, relation: Relation, *, key_column: str | None = None) -> int:
    """Produce the rows of a query, as `from_arrow` does: `connection.sql('select ...')`; their
    number.
    """
    return from_arrow(topic, relation.to_arrow_table(), key_column=key_column)


def _topics(store: Store, tables: Iterable[str]) -> Mapping[str, str]:
    """The topics that a query names, with one of their names in the query. Raises InvalidConfig for
    two of them that DuckDB takes for one table.
    """
    there = topic_names(store)
    named = {name: topic_of(name, there) for name in sorted(tables)}
    found = {topic: name for name, topic in named.items() if topic is not None}
    by_lower: dict[str, str] = {}
    for topic in found:
        other = by_lower.setdefault(topic.lower(), topic)
        if other != topic:
            reason = f"the topics {other!r} and {topic!r} {ONE_TABLE}: read them in two queries"
            raise InvalidConfig(reason, key="sql")
    return found
