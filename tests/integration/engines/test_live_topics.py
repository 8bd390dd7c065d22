"""Other engines read a local topic while it is written.

A file system returns the names of a large folder in pieces. An entry that is made between two
pieces may be left out while a later one is not, and an engine that lists the log refuses it then.
So the log's folder must stay so small that one piece holds all of its names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from deltaq import Producer, Topic
from tests.depth import depth
from tests.integration.engines.test_filtered_reads import _delta_of_duckdb

COMMITS = depth(750, 100_000)
READS = depth(10, 2_000)
UNREAD = depth(500, 0)
"""So many commits are not read while they are made: engines take most of the processor."""

PIECE_BYTES = 32 * 1024
"""What Rust, Java and C++ read of a folder at once: the buffer of the C library's `readdir`."""


class Writer:
    """Commits single records to the topic `t` from a thread, as fast as it can."""

    def __init__(self, root: str) -> None:
        self.commits = 0
        self.ends = threading.Event()
        self._root = root

    def run(self) -> None:
        with Producer({"bootstrap.servers": self._root, "linger.ms": 0}) as producer:
            while not self.ends.is_set():
                producer.produce("t", b"%d" % self.commits)
                producer.flush()
                self.commits += 1


@contextmanager
def written(root: Path) -> Iterator[Writer]:
    Topic("t", partitions=3, bootstrap_servers=str(root)).create()
    writer = Writer(str(root))
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.ends.set()
        thread.join()


def opened_by_delta_rs(table: str) -> Callable[[], int]:
    return lambda: int(DeltaTable(table).version())


def followed_by_delta_rs(table: str) -> Callable[[], int]:
    followed = DeltaTable(table)

    def update() -> int:
        followed.update_incremental()
        return int(followed.version())

    return update


def scanned_by_duckdb(table: str) -> Callable[[], int]:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(f"LOAD '{_delta_of_duckdb()}'")

    def scan() -> int:
        found = connection.execute(f"SELECT count(*) FROM delta_scan('{table}')").fetchone()
        assert found is not None
        return int(found[0])

    return scan


def scanned_by_polars(table: str) -> Callable[[], int]:
    return lambda: int(pl.scan_delta(table).select(pl.len()).collect().item())


ENGINES = (opened_by_delta_rs, followed_by_delta_rs, scanned_by_duckdb, scanned_by_polars)


def listed_bytes(folder: Path) -> int:
    # struct linux_dirent64 has 19 bytes before the name, which ends in NUL; records are aligned to
    # 8 bytes.
    return sum(
        (19 + len(name) + 1 + 7) // 8 * 8
        for name in (".", "..", *(entry.name for entry in folder.iterdir()))
    )


@pytest.mark.timeout(depth(120, 7200))
def test_other_engines_read_a_topic_that_is_being_written(tmp_path: Path) -> None:
    table = str(tmp_path / "topics" / "t")
    with written(tmp_path) as writer:
        engines = {engine.__name__: engine(table) for engine in ENGINES}
        seen = dict.fromkeys(engines, 0)
        reads, largest = 0, 0
        while writer.commits < UNREAD:
            largest = max(largest, listed_bytes(Path(table, "_delta_log")))
            time.sleep(0.05)
        while writer.commits < COMMITS or reads < READS:
            for name, read in engines.items():
                found = read()
                assert found >= seen[name], name
                seen[name] = found
                largest = max(largest, listed_bytes(Path(table, "_delta_log")))
            reads += 1
    assert largest <= PIECE_BYTES
    for name, read in engines.items():
        assert read() >= writer.commits, name
    assert Topic("t", bootstrap_servers=str(tmp_path)).to_arrow().num_rows == writer.commits
