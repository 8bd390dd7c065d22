"""Run a producer, replicas and a PostgreSQL, and show who counts what. Keys kill, pause, resume and
add replicas.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.console import Console
from rich.live import Live

from examples._programs import Program, own_root, parser_of, stop_all
from examples.replicas.database import ReplicaDatabase
from examples.replicas.keys import Keys
from examples.replicas.layout import EVENTS, GROUP, create_topic
from examples.replicas.observer import NAME, Observer, Snapshot
from examples.replicas.postgres import NoPostgres, Postgres
from examples.replicas.table import ReplicaState, render

REFRESH_S = 0.5
RATES_OVER = 4
"""Refreshes over which rates are taken."""

DRAIN_S = 30.0


class Fleet:
    """The producer and the replicas. The keys act on the selected replica."""

    def __init__(
        self, root: str, database_url: str, folder: Path, rate: float, session_timeout_s: float
    ) -> None:
        place = ("--until-eof", "--root", root)
        timeout = ("--session-timeout", str(session_timeout_s))
        self._of_replicas = (*place, "--database-url", database_url, *timeout)
        self._folder = folder
        self.selected = 0
        self.replicas: list[Program] = []
        self.producer = Program(
            "replicas.producer", "producer", folder, *place, "--rate", str(rate)
        )

    def add(self) -> None:
        """Start another replica."""
        name = f"{NAME}{len(self.replicas) + 1}"
        self.replicas.append(
            Program("replicas.service", name, self._folder, *self._of_replicas, "--name", name)
        )

    def press(self, key: str) -> None:
        """Do what a key says. Other keys do nothing."""
        chosen = self.replicas[self.selected]
        if key.isdigit() and 0 < int(key) <= len(self.replicas):
            self.selected = int(key) - 1
        elif key == "a":
            self.add()
        elif key == "k" and chosen.state in ("running", "paused"):
            chosen.kill()
        elif key == "p" and chosen.state == "running":
            chosen.pause()
        elif key == "r" and chosen.state == "paused":
            chosen.resume()

    def states(self) -> list[ReplicaState]:
        """The replicas for the table."""
        running = [program for program in self.replicas if program.state in ("running", "paused")]
        memory = resident_megabytes(running)
        return [ReplicaState(each.name, each.state, memory.get(each.pid)) for each in self.replicas]

    def check(self) -> None:
        """Raise SystemExit with the log of a program that has failed."""
        for program in (self.producer, *self.replicas):
            program.check()

    def close(self) -> None:
        """End all programs."""
        stop_all([self.producer, *self.replicas])


def resident_megabytes(programs: list[Program]) -> dict[int, int]:
    """Resident memory by process id, of those that run."""
    pids = ",".join(str(program.pid) for program in programs)
    command = ["ps", "-o", "pid=,rss=", "-p", pids or "0"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()  # noqa: S603
    return {int(pid): int(kilobytes) // 1024 for pid, kilobytes in map(str.split, lines)}


@contextmanager
def database(url: str | None, sessions_max: int) -> Iterator[tuple[str, str]]:
    """The URLs of the replicas and of the observer: of a server that runs as long as the block, or
    of a schema in the database that `url` names.
    """
    if url is None:
        with Postgres(sessions_max) as server:
            yield server.url, server.admin_url
        return
    schema = f"deltaq_replicas_{os.getpid()}"
    options = f"{conninfo_to_dict(url).get('options', '')} -c search_path={schema}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    try:
        yield (make_conninfo(url, options=options),) * 2
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


class Screen:
    """The table on the terminal, and what it remembers of earlier refreshes."""

    def __init__(self, observer: Observer, fleet: Fleet, sessions_max: str) -> None:
        self._observer = observer
        self._fleet = fleet
        self._sessions_max = sessions_max
        self._seen: deque[Snapshot] = deque([observer.observe()], maxlen=RATES_OVER)
        self._peak = 0

    def refresh(self, live: Live) -> Snapshot:
        """Show the present state, and return it."""
        now = self._observer.observe()
        sessions = sum(now.sessions.values())
        self._peak = max(self._peak, sessions)
        shown = f"{sessions} (peak {self._peak}, {self._sessions_max})"
        live.update(
            render(self._seen[0], now, self._fleet.states(), self._fleet.selected, shown),
            refresh=True,
        )
        self._seen.append(now)
        return now


def run(fleet: Fleet, screen: Screen, live: Live, keys: Keys, seconds: float) -> None:
    """Refresh the table and obey the keys, until `q` or the end of the time, which begins with the
    first event. Then stop the producer, and wait until the replicas have counted all records.
    """
    end_at = float("inf")
    while (left_s := end_at - time.monotonic()) > 0:
        fleet.check()
        if screen.refresh(live).produced and end_at == float("inf"):
            end_at = time.monotonic() + seconds
        pressed = keys.wait(min(REFRESH_S, left_s))
        if "q" in pressed:
            break
        for key in pressed:
            fleet.press(key)
    fleet.producer.stop()
    for replica in fleet.replicas:
        replica.resume()
    end_at = time.monotonic() + DRAIN_S
    while (now := screen.refresh(live)).counted < now.produced and time.monotonic() < end_at:
        fleet.check()
        keys.wait(REFRESH_S)


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__, root=None)
    parser.add_argument("--replicas", type=int, default=3, help="how many to start with")
    parser.add_argument("--rate", type=float, default=2_000, help="events per second")
    parser.add_argument(
        "--sessions", type=int, default=2, help="sessions that PostgreSQL accepts from all replicas"
    )
    parser.add_argument(
        "--session-timeout",
        type=float,
        default=6.0,
        help="seconds until a dead replica is replaced",
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop so long after the first event"
    )
    args = parser.parse_args()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    url = os.environ.get("DATABASE_URL")
    try:
        with ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="deltaq-replicas-"))
            )
            root = own_root(args.root or str(folder), "replicas")
            waiting = "; PostgreSQL takes a few seconds to start" if url is None else ""
            print(f"topics in {root}{waiting}", flush=True)
            urls = stack.enter_context(database(url, args.sessions))
            show(args, root, folder, *urls, stack)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except NoPostgres as error:
        raise SystemExit(str(error)) from None


def show(
    args: argparse.Namespace, root: str, folder: Path, url: str, observer_url: str, stack: ExitStack
) -> None:
    """Start the programs, run them, and print what they have counted."""
    create_topic(root)
    tables = ReplicaDatabase(url, "demo", GROUP, EVENTS.name, threading.Event())
    tables.create_tables()
    tables.close()
    observer = stack.enter_context(closing(Observer(root, observer_url)))
    fleet = stack.enter_context(closing(Fleet(root, url, folder, args.rate, args.session_timeout)))
    for _ in range(args.replicas):
        fleet.add()
    limit = "no cap of ours" if "DATABASE_URL" in os.environ else f"cap {args.sessions}"
    with Live(console=Console(), auto_refresh=False) as live, Keys() as keys:
        run(fleet, Screen(observer, fleet, limit), live, keys, args.seconds)
    last = observer.observe()
    records, users = observer.totals()
    print(
        f"\n{last.produced:,} events produced; the totals of {users:,} users add up to {records:,} "
        "events"
    )


if __name__ == "__main__":
    main()
