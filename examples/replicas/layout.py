"""The topic of the example, and the settings of a replica."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from deltaq import Topic

PARTITIONS = 10
GROUP = "replicas"


class UserEvent(BaseModel):
    """The values of the topic. The key is the user, so that all events of a user are in one
    partition.
    """

    user_id: str
    value: float


EVENTS = Topic("events", UserEvent, partitions=PARTITIONS)


def create_topic(root: str) -> None:
    """Create the topic unless it exists."""
    Topic(EVENTS.name, UserEvent, partitions=PARTITIONS, bootstrap_servers=root).create(
        exist_ok=True
    )


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica needs to know."""

    root: str
    database_url: str
    name: str = "replica"
    group: str = GROUP
    batch_rows: int = 5_000
    """Maximum number of rows in one transaction; also of the rows that the replica has taken and
    not yet written.
    """

    linger_s: float = 0.2
    """How long to collect rows for a transaction."""

    read_ahead_kbytes: int = 4_096
    """Maximum size of the records that the consumer has fetched and the replica has not yet taken;
    at least 1,000.
    """

    session_timeout_ms: int = 6_000
    """Time without a heartbeat after which the group gives the partitions of a replica to the
    others.
    """

    database_delay_s: float = 0.0
    """Added to each transaction, to see what a slow database does."""
