"""The topic of the example, and the settings of a replica."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from deltaq import Topic

PARTITIONS = 10
GROUP = "replicas"


class Event(BaseModel):
    """The values of the topic. The key is the user, so that all events of a user are in one
    partition.
    """

    user_id: str
    value: float


EVENTS = Topic("events", Event, partitions=PARTITIONS)


def create_topic(root: str) -> None:
    """Create the topic unless it exists."""
    Topic(EVENTS.name, Event, partitions=PARTITIONS, bootstrap_servers=root).create(exist_ok=True)


@dataclass(frozen=True)
class Settings:
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


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that the producer and the service have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--root",
        default="./deltaq-data",
        help="where the topics are: a folder, or s3://bucket/prefix",
    )
    parser.add_argument(
        "--until-eof", action="store_true", help="stop also when standard input ends"
    )
    return parser


def on_stop(stop: Callable[[], None], *, until_eof: bool) -> None:
    """Call `stop` at SIGTERM and Ctrl-C, and if `until_eof` when standard input ends: then a
    program ends with the one that started it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())

    def read() -> None:
        sys.stdin.read()
        stop()

    if until_eof:
        threading.Thread(target=read, daemon=True).start()
