"""Spark with its own Delta for the tests that need it, and topics for them to work on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql import SparkSession

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import LocalStore
from tests.doubles.produced_tables import Produce, producing_to
from tests.spark.native_spark import NativeSpark


class BackgroundWriter:
    """What a thread has appended to a topic: the values 0, 1, 2, ..., one commit each. `count`:
    those acknowledged.
    """

    def __init__(self) -> None:
        self.count = 0
        self.has_begun = threading.Event()
        self.is_over = threading.Event()

    def run(self, root: str, topic: str) -> None:
        with Producer(
            {"bootstrap.servers": root}, store=LocalStore(root, SYSTEM_CLOCK)
        ) as producer:
            while not self.is_over.wait(0.04):  # leaves a small machine to Spark
                producer.produce(topic, b"%d" % self.count)
                producer.flush()
                self.count += 1
                self.has_begun.set()


WrittenThroughout: TypeAlias = Callable[[str], AbstractContextManager[BackgroundWriter]]


@pytest.fixture(scope="session")
def native(spark: SparkSession, lack_of_native_delta: str | None) -> NativeSpark:
    """Spark's own Delta."""
    if lack_of_native_delta:
        pytest.skip(reason=f"needs the jars of Delta: {lack_of_native_delta}")
    return NativeSpark(spark)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")


@pytest.fixture
def produce(root: str) -> Produce:
    return producing_to(root)


@pytest.fixture
def written_throughout(root: str) -> WrittenThroughout:
    """Write a topic of one partition, some twenty times a second, for as long as a context lasts.

    Between two calls of Spark there are new records then: what changes from answer to answer shows.
    """

    @contextmanager
    def write(topic: str) -> Iterator[BackgroundWriter]:
        Topic(topic, bootstrap_servers=root).create(exist_ok=True)
        writer = BackgroundWriter()
        thread = threading.Thread(target=writer.run, args=(root, topic))
        thread.start()
        try:
            assert writer.has_begun.wait(60)
            yield writer
        finally:
            writer.is_over.set()
            thread.join()

    return write
