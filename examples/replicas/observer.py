"""What the demo shows: who owns which partition, how far the database is, and the sessions that it
serves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from deltaq.admin import AdminClient
from examples.replicas.layout import EVENTS, GROUP

COUNTED = "SELECT partition, next_offset FROM progress WHERE group_id = %s AND topic = %s"
SESSIONS = (
    "SELECT application_name, count(*) FROM pg_stat_activity WHERE application_name LIKE %s GROUP "
    "BY 1"
)
NAME = "replica-"
"""How the names of replicas begin, in the group and in the database."""


@dataclass(frozen=True)
class PartitionState:
    """One partition: the replica that owns it, the offset up to which its records are counted, and
    its end.
    """

    partition: int
    owner: str | None
    counted: int
    end: int

    @property
    def lag(self) -> int:
        """How many records are not counted yet."""
        return self.end - self.counted


@dataclass(frozen=True)
class Snapshot:
    """The group and the database at one moment."""

    at: float
    group_state: str
    partitions: tuple[PartitionState, ...]
    sessions: Mapping[str, int]

    def of(self, owner: str | None) -> list[PartitionState]:
        """The partitions of one replica."""
        return [partition for partition in self.partitions if partition.owner == owner]

    @property
    def produced(self) -> int:
        """The number of records in the topic."""
        return sum(partition.end for partition in self.partitions)

    @property
    def counted(self) -> int:
        """The number of records that are counted in the database."""
        return sum(partition.counted for partition in self.partitions)


def counted_per_second(before: Snapshot, now: Snapshot, owner: str) -> float:
    """How many records per second the owner has counted, in the partitions that it has now."""
    counted = {partition.partition: partition.counted for partition in before.partitions}
    more = sum(
        partition.counted - counted.get(partition.partition, 0) for partition in now.of(owner)
    )
    return more / (now.at - before.at)


class Observer:
    """Takes snapshots."""

    def __init__(self, root: str, database_url: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": root})
        self._database = psycopg.connect(database_url, autocommit=True, application_name="observer")

    def observe(self) -> Snapshot:
        """The present state."""
        lag = self._admin.consumer_group_lag([GROUP])[GROUP].result()
        # The ends are older than the counts, so the lag can be too small for a moment, but never
        # below the truth later.
        counted: dict[int, int] = dict(
            self._database.execute(COUNTED, (GROUP, EVENTS.name)).fetchall()
        )
        partitions = tuple(
            PartitionState(
                found.partition,
                found.client_id,
                counted.get(found.partition, 0),
                max(found.end_offset, counted.get(found.partition, 0)),
            )
            for found in lag.partitions
        )
        sessions: dict[str, int] = dict(self._database.execute(SESSIONS, (f"{NAME}%",)).fetchall())
        return Snapshot(
            time.monotonic(), lag.state.name.lower().replace("_", " "), partitions, sessions
        )

    def totals(self) -> tuple[int, int]:
        """The number of records in the users' totals, and that of the users."""
        query = "SELECT coalesce(sum(count), 0), count(*) FROM events"
        ((records, users),) = self._database.execute(query).fetchall()
        return int(records), int(users)

    def close(self) -> None:
        """Close the session."""
        self._database.close()
