"""Fresh sessions: each in a process and a JVM of its own, from nothing to the first row or the
first micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TypeVar

from benchmarks.client import records_in
from benchmarks.spark.batch import WrongRows
from benchmarks.spark.sides import Side, new_topic, session

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Fresh:
    """Seconds until the session was there, and from then on until the first row or the end of the
    first micro-batch.
    """

    what: str
    side: str
    session_s: float
    seconds: float

    @property
    def all_s(self) -> float:
        """From nothing."""
        return self.session_s + self.seconds


def apart(run: Callable[..., _Found], *arguments: object) -> _Found:
    """Run a function in a process of its own, with a JVM of its own, and return its result. Raises
    what it raised.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def first_row(side: Side, topic: str, jars: str) -> Fresh:
    """A batch read that needs one row. Raises WrongRows."""
    start = perf_counter()
    spark = session(jars if side.format == "kafka" else "")
    ready = perf_counter()
    row = side.reader(spark.read, topic).select("partition", "offset", "value").first()
    done = perf_counter()
    if row is None or row.offset != 0 or len(row.value) != 100:
        raise WrongRows(f"{side.name}: the first row is {row}")
    spark.stop()
    return Fresh("first row", side.name, ready - start, done - ready)


def first_batch(side: Side, topic: str, messages: int, jars: str) -> Fresh:
    """A stream that copies a topic to another one in one micro-batch. Raises WrongRows."""
    copy = new_topic(side)
    start = perf_counter()
    spark = session(jars if side.format == "kafka" else "")
    ready = perf_counter()
    with TemporaryDirectory() as checkpoint:
        writer = side.sink(side.stream(spark.readStream, topic).select("value").writeStream, copy)
        place = str(Path(checkpoint).resolve())
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        done = perf_counter()
    batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    spark.stop()
    copied = records_in(side.client, copy)
    if (batches, copied) != ([messages], messages):
        raise WrongRows(
            f"{side.name}: micro-batches of {batches} rows made {copied:,} of {messages:,}"
        )
    return Fresh("first batch", side.name, ready - start, done - ready)
