"""The service's tables in PostgreSQL, and the transaction that counts each record once.

`progress` holds the next offset of each partition. A transaction moves it together with the totals,
and only from the offset that the replica started from. A second replica that has read the same
records therefore changes nothing, whatever the group says about who owns the partition, and so does
a transaction that is repeated after a lost answer.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import psycopg
from psycopg_pool import NullConnectionPool

from examples.replicas.aggregate import TotalsChange

_log = logging.getLogger(__name__)

TABLES = """
CREATE TABLE IF NOT EXISTS events (
    user_id TEXT PRIMARY KEY, count INT NOT NULL, total_value DOUBLE PRECISION NOT NULL, time BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS progress (
    group_id TEXT, topic TEXT, partition INT, next_offset BIGINT NOT NULL, PRIMARY KEY (group_id, topic, partition));
"""  # noqa: E501

ADD = """
INSERT INTO events AS e (user_id, count, total_value, time)
SELECT * FROM unnest(%s::text[], %s::int[], %s::float8[], %s::bigint[])
ON CONFLICT (user_id) DO UPDATE SET count = e.count + excluded.count,
    total_value = e.total_value + excluded.total_value, time = greatest(e.time, excluded.time)
"""

ADVANCE = """
UPDATE progress AS p SET next_offset = n.next_offset
FROM unnest(%s::int[], %s::bigint[], %s::bigint[]) AS n (partition, expected, next_offset)
WHERE p.group_id = %s AND p.topic = %s AND p.partition = n.partition AND p.next_offset = n.expected
"""

BEGIN_PARTITIONS = """
INSERT INTO progress (group_id, topic, partition, next_offset)
SELECT %s, %s, unnest(%s::int[]), 0 ORDER BY 3 ON CONFLICT DO NOTHING
"""

POSITIONS = (
    "SELECT partition, next_offset FROM progress WHERE group_id = %s AND topic = %s AND partition ="
    " ANY(%s)"
)

# A suspended replica must not keep its locks, for which the next owner of its partitions waits.
LIMIT_LOCKS = "SET LOCAL idle_in_transaction_session_timeout = '2s'"

CONNECT_S = 5.0
RETRY_MIN_S, RETRY_MAX_S = 0.02, 1.0

# Refused or lost connections and deadlocks; and the end of a session by LIMIT_LOCKS, which has a
# class of its own.
TEMPORARY = (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout)

R = TypeVar("R")


class StalePositions(Exception):
    """Another replica has counted records of the change. Nothing was written: read the positions
    again.
    """


class ReplicaStopped(Exception):
    """The replica was asked to stop while it waited for the database."""


class ReplicaDatabase:
    """The tables of one group and topic. Each call is one transaction, and is repeated until the
    database answers.

    A session lasts for one transaction. The database may therefore accept fewer sessions than there
    are replicas, for example with `ALTER ROLE ... CONNECTION LIMIT`; a refused replica waits for a
    random time.

    `stopping` ends the waiting: then a call raises Stopped. Each `write` takes `delay_s` longer.
    """

    def __init__(
        self,
        url: str,
        name: str,
        group: str,
        topic: str,
        stopping: threading.Event,
        delay_s: float = 0.0,
    ) -> None:
        self.delay_s = delay_s
        self._where = (group, topic)
        self._stopping = stopping
        self.reported = ""  # why the database was unavailable last
        self._pool = NullConnectionPool(
            url,
            kwargs={"application_name": name},
            max_size=1,
            num_workers=1,
            open=True,
        )

    def create_tables(self) -> None:
        """Create the tables unless they exist."""

        def create(connection: psycopg.Connection) -> None:
            # Two sessions that create one table at the same time fail, in spite of IF NOT EXISTS.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('deltaq replicas'))")
            connection.execute(TABLES)

        self._transact(create)

    def positions(self, partitions: Collection[int]) -> dict[int, int]:
        """The next offset of each partition; 0 for a new one."""
        wanted = sorted(partitions)

        def read(connection: psycopg.Connection) -> dict[int, int]:
            connection.execute(BEGIN_PARTITIONS, (*self._where, wanted))
            return dict(connection.execute(POSITIONS, (*self._where, wanted)).fetchall())

        return self._transact(read)

    def write(
        self, change: TotalsChange, expected: Mapping[int, int], before_commit: Callable[[], object]
    ) -> None:
        """Add the change to the totals. `expected` has the positions from which its records were
        read.

        Raises StalePositions if one of them is no longer the partition's next offset.
        """

        def add(connection: psycopg.Connection) -> None:
            partitions = sorted(change.positions)
            before = [expected[partition] for partition in partitions]
            after = [change.positions[partition] for partition in partitions]
            if connection.execute(
                ADVANCE, (partitions, before, after, *self._where)
            ).rowcount < len(partitions):
                raise StalePositions
            if self.delay_s:
                connection.execute("SELECT pg_sleep(%s)", (self.delay_s,))
            connection.execute(ADD, (change.users, change.counts, change.values, change.times))
            before_commit()

        self._transact(add)

    def close(self) -> None:
        """Close the session, if there is one."""
        self._pool.close()

    def _transact(self, work: Callable[[psycopg.Connection], R]) -> R:
        delay_s = RETRY_MIN_S
        while True:
            try:
                with self._pool.connection(CONNECT_S) as connection:
                    connection.execute(LIMIT_LOCKS)
                    return work(connection)
            except TEMPORARY as error:
                if self.reported != (reason := str(error)):
                    self.reported = reason
                    _log.warning("database unavailable, retrying: %s", reason)
            if self._stopping.wait(delay_s * random.uniform(0.5, 1.0)):
                raise ReplicaStopped
            delay_s = min(delay_s * 2, RETRY_MAX_S)
