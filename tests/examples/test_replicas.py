"""Replicas of a service in one group count each record exactly once in PostgreSQL."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from psycopg_pool import ConnectionPool

from examples.replicas.aggregate import TotalsChange
from examples.replicas.database import ReplicaDatabase, ReplicaStopped, StalePositions
from examples.replicas.layout import EVENTS, PARTITIONS
from examples.replicas.postgres import Postgres
from examples.replicas.service import Replica
from tests.examples.conftest import SESSIONS_MAX
from tests.examples.replica_harness import Events, Running, counted, sampling, table, until, value

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def offsets(admin: psycopg.Connection) -> int:
    """The sum of the next offsets: each record is counted in the table once if it equals that of
    the counts.
    """
    assert value(admin, "SELECT count(*) FROM progress") == PARTITIONS
    return value(admin, "SELECT sum(next_offset) FROM progress")


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_totals_of_all_users_are_exact_for_any_number_of_replicas(
    replicas, local_root, postgres, admin
):
    events = Events(local_root)
    events.produce(3_000)
    with Running(local_root, postgres) as running:
        running.start(replicas)
        running.until_counted(admin, 3_000)
        events.produce(500)
        running.until_counted(admin, 3_500)
    assert table(admin) == events.totals
    assert offsets(admin) == 3_500


def test_the_totals_are_exact_while_replicas_join_and_leave(local_root, postgres, admin):
    events = Events(local_root)
    events.produce(500)
    with Running(local_root, postgres, batch_rows=50) as running, ThreadPoolExecutor(1) as thread:
        (first,) = running.start()
        running.until_counted(admin, 1)
        producing = thread.submit(events.produce_in_turns, 10, 300)
        (second,) = running.start()
        until(
            lambda: running.check() and first.partitions and second.partitions,
            "the second replica's share",
        )
        running.start()
        running.stop(first)
        running.start()
        running.until_counted(admin, 2_000)
        running.stop(second)
        producing.result()
        running.until_counted(admin, events.count)
    assert table(admin) == events.totals
    assert offsets(admin) == events.count


def test_emptied_tables_are_filled_again_with_the_same_totals(local_root, postgres, admin):
    events = Events(local_root)
    events.produce(1_000)
    for _ in range(2):
        with Running(local_root, postgres) as running:
            running.start(2)
            running.until_counted(admin, 1_000)
        assert table(admin) == events.totals
        admin.execute("TRUNCATE progress, events")


@pytest.mark.parametrize("replicas", [1, 3, 10])
@pytest.mark.parametrize("load", [1, 10])
def test_any_number_of_replicas_shares_the_capped_sessions(
    replicas, load, local_root, postgres, admin
):
    events = Events(local_root)
    with (
        Running(local_root, postgres, batch_rows=200) as running,
        sampling(lambda: sessions(admin)) as samples,
    ):
        running.start(replicas)
        for _ in range(5):
            events.produce(100 * load)
        running.until_counted(admin, events.count)
    assert 0 < max(samples) <= SESSIONS_MAX
    assert table(admin) == events.totals


def test_one_connection_per_worker_would_exceed_the_cap(local_root, postgres, admin):
    """The other arm of the test above, which also shows that it sees sessions."""

    class ConnectionPerWorker(Replica):
        def _open_database(self) -> ReplicaDatabase:
            database = super()._open_database()
            database._pool.close()
            name = {"application_name": self._settings.name}
            database._pool = ConnectionPool(  # type: ignore[assignment]  # the other kind of pool
                postgres.admin_url, kwargs=name, min_size=1, max_size=1, open=True
            )
            return database

    events = Events(local_root)
    with Running(local_root, postgres) as running, sampling(lambda: sessions(admin)) as samples:
        running.start(10, ConnectionPerWorker)
        events.produce(500)
        running.until_counted(admin, 500)
    assert max(samples) == 10 > SESSIONS_MAX


def test_tables_that_are_emptied_under_running_replicas_are_filled_again_from_the_first_record(
    local_root, postgres, admin
):
    events = Events(local_root)
    with Running(local_root, postgres) as running:
        running.start(2)
        events.produce(500)
        running.until_counted(admin, 500)
        admin.execute("TRUNCATE progress, events")
        events.produce(500)  # each replica gets some, and finds its positions gone
        running.until_counted(admin, 1_000)
    assert table(admin) == events.totals
    assert offsets(admin) == 1_000


def sessions(admin: psycopg.Connection) -> int:
    """The sessions that the replicas have now."""
    return value(
        admin, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'replica-%'"
    )


@pytest.mark.parametrize(
    ("turns", "count"),
    [(3, 10_000), pytest.param(60, 3_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
    ids=["seconds", "a minute"],
)
def test_a_slow_database_bounds_rows_and_memory_and_nothing_is_lost(
    turns, count, local_root, postgres, admin
):
    """A transaction takes a second, a hundred times as long as before; in each turn one is
    awaited.
    """
    # A kilobyte per record. Maintenance beside the producer would take memory of this process, too.
    events = Events(local_root, width=1_000, maintenance__enable=False)
    events.produce(1_000)
    memory: list[int] = []
    lags: list[int] = []
    with Running(local_root, postgres, batch_rows=500, read_ahead_kbytes=1_024) as running:
        (replica,) = running.start()
        running.until_counted(admin, 1_000)
        before = pa.total_allocated_bytes()
        begun_at, replica.database.delay_s = time.monotonic(), 1.0
        with sampling(lambda: replica.rows_in_flight) as rows:
            for _ in range(turns):
                events.produce(count)
                with sampling(pa.total_allocated_bytes) as samples:  # without those of the producer
                    running.until_counted(admin, counted(admin) + 500)
                memory += samples
                lags.append(events.count - counted(admin))
            slow_s, replica.database.delay_s = time.monotonic() - begun_at, 0.0
            running.until_counted(admin, events.count)
    took_s = time.monotonic() - begun_at - slow_s
    print(f"\nslow for {slow_s:.1f} s: lag {lags[0]:,} to {lags[-1]:,}, drained in {took_s:.1f} s")
    print(
        f"rows in flight {max(rows)}, Arrow memory {(max(memory) - before) / 1e6:.1f} MB more than "
        "before"
    )
    assert max(rows) == 500
    assert max(memory) - before < 8_000_000 < 1_000 * lags[-1]
    assert lags[0] < lags[-1]
    assert table(admin) == events.totals
    assert offsets(admin) == events.count


def test_sessions_that_the_database_ends_cost_no_record(local_root, postgres, admin):
    """Sessions end at any point of their transactions, so a replica cannot know whether the last
    one was committed.
    """
    end = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE "
        "'replica-%'"
    )
    events = Events(local_root)
    with Running(
        local_root, postgres, batch_rows=20, linger_s=0.005, database_delay_s=0.02
    ) as running:
        running.start(2)
        ended = 0
        while running.check() and ended < 10:
            events.produce(40)
            ended += value(admin, end)
        running.until_counted(admin, events.count)
    assert table(admin) == events.totals
    assert offsets(admin) == events.count


@pytest.fixture
def database(postgres: Postgres, admin: psycopg.Connection) -> Iterator[ReplicaDatabase]:
    opened = ReplicaDatabase(postgres.url, "test", "g", EVENTS.name, threading.Event())
    opened.create_tables()
    yield opened
    opened.close()


def test_records_that_another_replica_has_counted_change_nothing(database, admin):
    before = database.positions([0, 1])
    database.write(TotalsChange(["ada"], [3], [1.5], [9], {0: 3, 1: 4}), before, lambda: None)
    with pytest.raises(StalePositions):
        database.write(
            TotalsChange(["ada"], [1], [1.0], [10], {1: 5, 0: 1}), {0: 0, 1: 4}, lambda: None
        )
    assert table(admin) == {"ada": (3, 1.5, 9)}
    assert database.positions([0, 1, 2]) == {0: 3, 1: 4, 2: 0}


def test_a_replica_that_waits_for_the_database_can_be_stopped(tmp_path):
    stopping = threading.Event()
    database = ReplicaDatabase(
        f"postgresql:///none?host={tmp_path}", "test", "g", EVENTS.name, stopping
    )
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(database.create_tables)
        until(lambda: database.reported, "a first attempt")
        stopping.set()
        with pytest.raises(ReplicaStopped):
            waiting.result()
    database.close()


def test_a_server_that_is_stopped_leaves_no_process_and_no_file():
    with Postgres(1) as server:
        pid = int(Path(server.folder, "data", "postmaster.pid").read_text().split()[0])
        os.kill(pid, 0)
    assert not Path(server.folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
