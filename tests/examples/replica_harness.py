"""Replicas in threads and processes, the events that they count, and what the table must hold in
the end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import TypeAlias

import psycopg

from deltaq import Producer
from examples.replicas.layout import EVENTS, ReplicaSettings, UserEvent
from examples.replicas.postgres import Postgres
from examples.replicas.service import Replica

__all__ = [
    "QUICK",
    "Events",
    "Running",
    "Totals",
    "Victim",
    "counted",
    "sampling",
    "table",
    "until",
    "value",
]

QUICK = {"linger_s": 0.02, "session_timeout_ms": 1_200}
"""Settings of a replica in tests."""

TIMEOUT_S = 300.0
"""Longest wait, in seconds, for what must come: a bound for a test that hangs, which no busy
machine reaches.
"""

REPOSITORY = Path(__file__).resolve().parents[2]

Totals: TypeAlias = "dict[str, tuple[int, float, int]]"
"""User -> count, sum of the values, newest time."""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()` is true. Raises AssertionError after a timeout that is generous for
    any machine.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {TIMEOUT_S} s"
        time.sleep(0.01)


class Events:
    """Produces events, and adds them up as they are produced: the oracle reads neither the topic
    nor the service.

    `settings` are more settings of the producer.
    """

    def __init__(self, root: str, users: int = 50, width: int = 8, **settings: object) -> None:
        self.root = root
        self._settings = {key.replace("__", "."): value for key, value in settings.items()}
        self.totals: Totals = {}
        self.count = 0
        self._random = Random(0)
        self._begun_ms = time.time_ns() // 1_000_000  # records of the distant past would expire
        self._users = [f"user-{number:0{width}d}" for number in range(users)]

    def produce(self, count: int) -> None:
        """Produce `count` events, and wait until all are written."""
        failures: list[object] = []
        with Producer(
            {"bootstrap.servers": self.root, "linger.ms": 5, **self._settings},
            on_delivery=lambda error, _: None if error is None else failures.append(error),
        ) as producer:
            for _ in range(count):
                user, value = self._random.choice(self._users), self._random.randrange(1, 400) / 4
                timestamp = self._begun_ms - self._random.randrange(1_000_000)
                producer.produce(
                    EVENTS, UserEvent(user_id=user, value=value), key=user, timestamp=timestamp
                )
                before = self.totals.get(user, (0, 0.0, 0))
                self.totals[user] = before[0] + 1, before[1] + value, max(before[2], timestamp)
        assert not failures
        self.count += count

    def produce_in_turns(self, turns: int, count: int) -> None:
        """Produce `count` events several times."""
        for _ in range(turns):
            self.produce(count)


def table(admin: psycopg.Connection) -> Totals:
    """What the service has written."""
    rows = admin.execute("SELECT user_id, count, total_value, time FROM events").fetchall()
    return {user: (count, value, time_ms) for user, count, value, time_ms in rows}


def counted(admin: psycopg.Connection) -> int:
    """How many records the service has counted."""
    is_created = value(admin, "SELECT count(*) FROM pg_tables WHERE tablename = 'events'")
    return value(admin, "SELECT coalesce(sum(count), 0) FROM events") if is_created else 0


def value(admin: psycopg.Connection, query: str) -> int:
    """The single number that a query returns."""
    ((found,),) = admin.execute(query.encode()).fetchall()
    return int(found)


class Running:
    """Replicas in threads of this process. The end of the block stops them, and raises what one of
    them raised.
    """

    def __init__(self, root: str, postgres: Postgres, **settings: object) -> None:
        self._threads = ThreadPoolExecutor(max_workers=32)
        self.settings = {"root": root, "database_url": postgres.url, **QUICK, **settings}
        self._replicas: dict[Replica, Future[None]] = {}

    def start(self, count: int = 1, kind: type[Replica] = Replica) -> list[Replica]:
        """Start replicas."""
        started = []
        for _ in range(count):
            name = f"replica-{len(self._replicas) + 1}"
            replica = kind(ReplicaSettings(name=name, **self.settings))  # type: ignore[arg-type]  # of several types
            self._replicas[replica] = self._threads.submit(replica.run)
            started.append(replica)
        return started

    def stop(self, replica: Replica) -> None:
        """Stop a replica and wait for its end."""
        replica.stop()
        self._replicas.pop(replica).result()

    def check(self) -> bool:
        """Raise what a replica has raised. Otherwise True."""
        for future in self._replicas.values():
            if future.done():
                future.result()
        return True

    def until_counted(self, admin: psycopg.Connection, count: int) -> None:
        """Wait until this many records are counted, or more."""
        until(lambda: self.check() and counted(admin) >= count, f"{count} records counted")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self._replicas:
            replica.stop()
        self._threads.shutdown()
        self.check()


@contextmanager
def sampling(sample: Callable[[], int]) -> Iterator[list[int]]:
    """Take samples in a thread of its own until the end of the block."""
    samples: list[int] = []
    ended = threading.Event()

    def take() -> None:
        while not ended.wait(0.005):
            samples.append(sample())

    with ThreadPoolExecutor(max_workers=1) as thread:
        taking = thread.submit(take)
        try:
            yield samples
        finally:
            ended.set()
        taking.result()


class Victim:
    """A replica in a process of its own, which sends itself a signal when it reaches a point for
    the `nth` time.
    """

    def __init__(self, settings: ReplicaSettings, point: str, nth: int, signal_number: int) -> None:
        arguments = json.dumps(
            {"settings": asdict(settings), "point": point, "nth": nth, "signal": signal_number}
        )
        command = [sys.executable, "-m", "tests.examples.victim", arguments]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)

    def wait_for(self, point: str) -> None:
        """Wait until it has reached a point."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == point:
                return
        raise AssertionError(f"the process ended with {self.process.wait()} before it was {point}")

    def has_ended(self) -> bool:
        """Whether it was killed. Raises AssertionError if it ended in another way."""
        assert self.process.poll() in (None, -signal.SIGKILL)
        return self.process.returncode is not None

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
