"""Replicas that are killed or suspended at any of their named points, while others go on: each
record counts once.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from examples.replicas.layout import ReplicaSettings
from examples.replicas.postgres import Postgres
from examples.replicas.service import POINTS
from tests.depth import depth
from tests.examples.replica_harness import Events, Running, Victim, table, until, value

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROUNDS = int(os.environ.get("DELTAQ_KILL_ROUNDS", "20"))


@contextmanager
def producing(events: Events) -> Iterator[None]:
    """Produce until the end of the block."""
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.05):
            events.produce(50)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(produce)
        try:
            yield
        finally:
            ended.set()
        running.result()


def settings_of(running: Running, name: str) -> ReplicaSettings:
    return ReplicaSettings(name=name, **running.settings)  # type: ignore[arg-type]  # of several types


def kill(running: Running, point: str, nth: int) -> None:
    """Start a replica that is killed at the point, and wait for its end."""
    with Victim(settings_of(running, "victim"), point, nth, signal.SIGKILL) as victim:
        if point == "revoked":
            victim.wait_for("committed")
            while not victim.has_ended():
                take_partitions(running, victim)
        until(lambda: running.check() and victim.has_ended(), f"the kill when {point}")


def take_partitions(running: Running, victim: Victim) -> None:
    """Let another replica join and leave: partitions of all members move."""
    (other,) = running.start()
    until(
        lambda: running.check() and (victim.has_ended() or other.partitions), "another assignment"
    )
    running.stop(other)


def rounds(count: int, root: str, postgres: Postgres, admin: psycopg.Connection) -> None:
    """Kill replicas at each point, `count` times, and check the totals."""
    seed = int(os.environ.get("DELTAQ_CRASH_SEED", random.randrange(10**6)))
    print(f"\nDELTAQ_CRASH_SEED={seed} DELTAQ_KILL_ROUNDS={count}", flush=True)
    chance = random.Random(seed)
    events = Events(root)
    with Running(root, postgres, batch_rows=100) as running:
        running.start()
        with producing(events):
            for _ in range(count):
                for point in chance.sample(POINTS, len(POINTS)):
                    kill(
                        running,
                        point,
                        1 if point in ("assigned", "revoked") else chance.randint(1, 5),
                    )
        running.until_counted(admin, events.count)
    assert table(admin) == events.totals
    assert value(admin, "SELECT sum(next_offset) FROM progress") == events.count


@pytest.mark.timeout(900)
def test_replicas_killed_at_each_point_count_each_record_once(local_root, postgres, admin):
    rounds(depth(1, 2), local_root, postgres, admin)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_replicas_killed_many_times_at_each_point_count_each_record_once(
    local_root, postgres, admin
):
    rounds(ROUNDS, local_root, postgres, admin)


@pytest.mark.timeout(900)
def test_a_replica_suspended_in_its_transaction_is_replaced_and_comes_back(
    local_root, postgres, admin
):
    """The database ends the suspended session, for whose locks the next owner waits. The replica's
    retry then finds its records counted.
    """
    events = Events(local_root)
    with (
        Running(local_root, postgres) as running,
        Victim(settings_of(running, "victim"), "written", 2, signal.SIGSTOP) as victim,
    ):
        victim.wait_for("assigned")
        events.produce(300)
        victim.wait_for("committed")
        events.produce(300)
        victim.wait_for("written")
        (survivor,) = running.start()
        events.produce(300)
        running.until_counted(admin, events.count)
        victim.process.send_signal(signal.SIGCONT)
        victim.wait_for("assigned")
        events.produce(300)
        victim.wait_for("committed")
        running.until_counted(admin, events.count)
        until(
            lambda: running.check() and len(survivor.partitions) == 5,
            "both replicas with their partitions",
        )
        victim.process.terminate()
        until(lambda: victim.process.poll() == 0, "a clean end")
    assert table(admin) == events.totals
