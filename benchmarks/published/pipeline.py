"""The two processes that transfer tables: through deltaq, or through a plain table of delta-rs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic, monotonic_ns, process_time
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from benchmarks.barrier import send_to_reader, wait_for_all
from benchmarks.client import subscribe
from benchmarks.delta_rs import Appender, TableFollower
from benchmarks.latency import QUIET_S, TIMEOUT_S
from benchmarks.published.rows import TimedRows
from benchmarks.published.trials import DELTA_RS_KEPT, Seen, Sent, Trial
from deltaq import Consumer, KafkaError, Producer

Source: TypeAlias = Callable[[], Iterable["pa.Array | pa.ChunkedArray"]]

TABLE_ROWS_MAX = 100_000
"""Most rows of one table, for a producer that is late: larger tables would delay it further."""

FULL_S = 0.01
"""Seconds to wait when a producer's queue is full: a refused table costs as much as an accepted
one.
"""

_SECOND_NS = 1_000_000_000


def transfer_tables(root: str, name: str, trial: Trial, window_s: float) -> tuple[Sent, Seen]:
    """Send from one process and read in another one; raises what either raised. Both waits are
    bounded.
    """
    return send_to_reader(
        partial(_send, root, name, trial), partial(_read, root, name, trial, window_s)
    )


def _send(root: str, name: str, trial: Trial) -> Sent:
    load, rows, tick_ns = trial.load, TimedRows(trial.load.rate), round(trial.tick_ms * 1_000_000)
    cpu_s = process_time()
    sent = 0
    with _sink(root, name, trial) as append:
        wait_for_all()
        start_ns = monotonic_ns()
        elapsed_ns = 0
        while sent < load.total:
            elapsed_ns = monotonic_ns() - start_ns
            due = min(load.total, elapsed_ns * load.rate // _SECOND_NS + 1)
            for first in range(sent, due, TABLE_ROWS_MAX):
                sequences = np.arange(first, min(due, first + TABLE_ROWS_MAX))
                append(rows.make(sequences, start_ns + sequences * _SECOND_NS // load.rate))
            sent = due
            if sent < load.total:
                next_ns = start_ns + (elapsed_ns // tick_ns + 1) * tick_ns
                time.sleep(max(0.0, (next_ns - monotonic_ns()) / _SECOND_NS))
    # Up to the start of the last table: how long delta-rs takes for that one does not affect the
    # rate.
    return Sent(load.total / (elapsed_ns / _SECOND_NS), process_time() - cpu_s)


def _read(root: str, name: str, trial: Trial, window_s: float) -> Seen:
    cpu_s = process_time()
    received: deque[tuple[int, pa.Array | pa.ChunkedArray]] = deque()
    with source(root, name, trial) as take:
        wait_for_all()
        # Only stored: reading a table now would delay the next one. A million rows a second are 6
        # GB a minute.
        received.extend(collect(take, trial.load.total))
    cpu_s = process_time() - cpu_s
    emptied = (received.popleft() for _ in range(len(received)))
    arrivals = TimedRows(trial.load.rate).read(emptied)
    return Seen.of(trial.load, arrivals, window_s, cpu_s)


@contextmanager
def _sink(root: str, name: str, trial: Trial) -> Iterator[Callable[[pa.Array], None]]:
    """A function that sends a column of values. At the end all are committed; raises RuntimeError
    if one is not.
    """
    if not trial.is_ours:
        yield Appender(f"{root}/{name}", keep=trial.way == DELTA_RS_KEPT).append
        return
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        failures.extend([error] if error is not None else [])

    # The usual limit of 100,000 rows is a tenth of a second of a million. That of 1 GiB remains.
    conf = {
        "bootstrap.servers": root,
        "linger.ms": trial.load.linger_ms,
        "queue.buffering.max.messages": 0,
    }
    with Producer(conf) as producer:
        producer.list_topics(name)

        def append(values: pa.Array) -> None:
            table = pa.table({"value": values})
            while True:
                producer.poll(0)
                try:
                    producer.produce_arrow(name, table, on_delivery=delivered)
                except BufferError:
                    producer.poll(FULL_S)
                else:
                    return

        yield append
        producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} tables were not delivered; the first: {failures[0]}")


@contextmanager
def source(root: str, name: str, trial: Trial) -> Iterator[Source]:
    """A function that returns the columns that have arrived, and waits briefly if there is none.
    Raises TimeoutError if the reader is not ready in time.
    """
    if not trial.is_ours:
        yield TableFollower(f"{root}/{name}").poll
        return
    conf = {
        "bootstrap.servers": root,
        "group.id": f"reader-{name}",
        "auto.offset.reset": "earliest",
    }
    with Consumer(conf) as consumer:
        subscribe(consumer, name)

        def take() -> list[pa.Array]:
            batch = consumer.consume_arrow(timeout=0.1)
            return [] if batch is None else [batch.column("value")]

        yield take


def collect(take: Source, total: int) -> Iterator[tuple[int, pa.Array | pa.ChunkedArray]]:
    """Columns with their times of arrival, until all rows have arrived and no more follow, or the
    reader times out.
    """
    rows, last = 0, monotonic()
    while monotonic() - last < (QUIET_S if rows >= total else TIMEOUT_S):
        for column in take():
            received_ns = monotonic_ns()
            yield received_ns, column
            rows, last = rows + len(column), received_ns / _SECOND_NS
