"""A copy that is killed five times ends identical to its source: no record lost, doubled or
moved.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltaq import AdminClient, Producer, Topic, TopicPartition

REPOSITORY = Path(__file__).resolve().parents[2]
PARTITIONS = 4


def _write_source(root: str, messages: int, rows: int) -> None:
    """A topic with headers, tombstones and missing keys, trimmed at its beginning."""
    Topic(
        "orders",
        partitions=PARTITIONS,
        conf={"bootstrap.servers": root},
        config={"retention.ms": -1},
    ).create()
    # Without maintenance: merged files would be copied in fewer commits than there are kills.
    with Producer(bootstrap_servers=root, linger_ms=5, maintenance_enable=False) as producer:
        for first in range(0, messages, rows):
            numbers = range(first, min(first + rows, messages))
            pairs = [
                [{"key": "trace", "value": b"%d" % n}] if n % 3 == 0 else None for n in numbers
            ]
            columns = {
                "value": pa.array(
                    [None if n % 100 == 0 else b"value %d" % n for n in numbers], pa.binary()
                ),
                "key": pa.array(
                    [None if n % 9 == 1 else b"%d" % (n % 1000) for n in numbers], pa.binary()
                ),
                "partition": pa.array([n % PARTITIONS for n in numbers], pa.int32()),
                "timestamp": pa.array([1_700_000_000_000 + n for n in numbers], pa.int64()),
                "headers": pa.array(
                    pairs, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                ),
            }
            producer.produce_arrow("orders", pa.table(columns))
            producer.flush()
    before = [TopicPartition("orders", 1, messages // PARTITIONS // 10)]
    with AdminClient(bootstrap_servers=root) as admin:
        for future in admin.delete_records(before).values():
            future.result()


def _checksums(root: str) -> dict[int, tuple[int, int, int, str]]:
    """Start offset, end offset, records, and the digest of all fields of all records, by
    partition.
    """
    topic = Topic("orders", conf={"bootstrap.servers": root})
    about = topic.describe()
    digests = {partition: hashlib.sha256() for partition in about.start_offsets}
    counts = dict.fromkeys(digests, 0)
    for batch in topic.to_batches():
        rows = batch.to_pylist()
        digest = digests[rows[0]["_partition"]]
        counts[rows[0]["_partition"]] += len(rows)
        for row in rows:
            digest.update(repr(list(row.values())).encode())
    return {
        partition: (
            about.start_offsets[partition],
            about.next_offsets[partition],
            counts[partition],
            digest.hexdigest(),
        )
        for partition, digest in digests.items()
    }


def _assert_copied_in_spite_of_kills(
    folder: Path, messages: int, bytes_at_once: int, kills: list[int]
) -> None:
    source, target = str(folder / "source"), str(folder / "target")
    _write_source(source, messages, messages // 100)
    begun = time.monotonic()
    copier = [
        sys.executable,
        "-m",
        "tests.crash.copier",
        source,
        target,
        str(bytes_at_once),
        *map(str, kills),
    ]
    subprocess.run(copier, cwd=REPOSITORY, check=True, timeout=600)
    print(f"{messages:,} messages, {len(kills)} kills: {time.monotonic() - begun:.1f} s")
    expected = _checksums(source)
    assert (
        sum(count for _, _, count, _ in expected.values())
        == messages - messages // PARTITIONS // 10
    )
    assert _checksums(target) == expected
    # Another engine sees each place once, too.
    rows = DeltaTable(f"{target}/topics/orders").to_pyarrow_table(
        columns=["_partition", "_timestamp"]
    )
    assert rows.num_rows == sum(count for _, _, count, _ in expected.values())
    assert rows.group_by(["_partition", "_timestamp"]).aggregate([]).num_rows == rows.num_rows


def test_a_copy_that_is_killed_five_times_ends_identical(tmp_path: Path) -> None:
    _assert_copied_in_spite_of_kills(tmp_path, 20_000, 30_000, [1, 3, 2, 4, 1])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_copy_of_a_million_messages_that_is_killed_five_times_ends_identical(
    tmp_path: Path,
) -> None:
    _assert_copied_in_spite_of_kills(tmp_path, 1_000_000, 2_000_000, [1, 5, 3, 8, 2])
