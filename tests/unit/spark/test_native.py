"""What Spark's own reader gets: the files of a plan, against every row that the batches describe,
and the addresses of files for Hadoop.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import Incompatible, InvalidConfig
from deltaq.parquet.segment_file import SegmentFile
from deltaq.spark.native_paths import file_path, hadoop_root, lacks_file_system
from deltaq.spark.native_plan import native_files
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.scan import plan_reads
from deltaq.topics.state import Batch, DataFile

PARTITIONS = 3

Place = tuple[int, int]


def data_file(number: int, batches: list[Batch]) -> DataFile:
    rows = sum(batch.rows for batch in batches)
    segment = SegmentFile(f"topics/t/{number}", number, 1000, rows, 0, 100, 0)
    return DataFile(
        f"{number}", segment, tuple(batches), 0, 0, 0, None, log_append_time=False, clean=None
    )


@st.composite
def topics(draw: st.DrawFn) -> tuple[list[DataFile], list[int]]:
    """Files of a topic in the order of its log, dense and sparse, and the next offset of each
    partition.
    """
    ends = [0] * PARTITIONS
    files = []
    for number in range(draw(st.integers(1, 5))):
        batches: list[Batch] = []
        row = 0
        # A partition may have several batches in a file, in any order.
        for partition in draw(st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=4)):
            rows, gap = draw(st.integers(1, 4)), draw(st.integers(0, 2))
            base, end = ends[partition], ends[partition] + rows + gap
            batches.append(Batch(partition, base, end, row, rows, gap > 0, f"{number}"))
            row, ends[partition] = row + rows, end
        files.append(data_file(number, batches))
    return files, ends


def stored_offsets(batch: Batch) -> list[int]:
    """The offsets of a batch's rows: of a sparse one, the first and then the last ones."""
    last = range(batch.next_offset - batch.rows + 1, batch.next_offset)
    return (
        [batch.base_offset, *last]
        if batch.sparse
        else list(range(batch.base_offset, batch.next_offset))
    )


@given(topics(), st.data())
def test_the_tables_give_each_wanted_row_its_offset_and_no_other_row(
    topic: tuple[list[DataFile], list[int]], data: st.DataObject
) -> None:
    files, ends = topic
    index = OffsetIndex()
    for file in files:
        index.add(file)
    ranges = {}
    for partition in data.draw(st.sets(st.integers(0, PARTITIONS - 1))):
        start = data.draw(st.integers(0, ends[partition]))
        ranges[partition] = start, data.draw(st.integers(start, ends[partition]))
    ranges = {partition: bounds for partition, bounds in ranges.items() if bounds[0] < bounds[1]}
    plan = native_files(plan_reads(index, ranges))
    found: list[Place] = []
    for number, file in enumerate(plan.files):
        for batch in file.batches:
            for row, stored in enumerate(stored_offsets(batch), batch.first_row):
                place = number * plan.stride + batch.partition
                shift = plan.shifts[place]
                # A file whose offsets the tables do not give has them in its column `_offset`.
                offset = stored if shift is None else row + shift
                if plan.partitions is not None and batch.partition not in plan.partitions:
                    continue
                low, high = plan.wanted[place] if number < plan.partial else (0, 2**63)
                if low <= offset < high:
                    found.append((batch.partition, offset))
    everything = [
        (batch.partition, offset)
        for file in files
        for batch in file.batches
        for offset in stored_offsets(batch)
    ]
    wanted = [
        (p, offset)
        for p, offset in everything
        if p in ranges and ranges[p][0] <= offset < ranges[p][1]
    ]
    assert sorted(found) == sorted(wanted)


def test_a_read_of_everything_compares_no_row() -> None:
    files = [
        data_file(n, [Batch(p, 10 * n, 10 * n + 10, 10 * p, 10, False, f"{n}") for p in range(2)])
        for n in range(3)
    ]
    index = OffsetIndex()
    for file in files:
        index.add(file)
    plan = native_files(plan_reads(index, {0: (0, 30), 1: (0, 30)}))
    assert (plan.partial, plan.partitions, plan.wanted) == (0, None, ())
    assert plan.shifts == (0, -10, 10, 0, 20, 10)


# --- addresses ---


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("file:///data/a%20b", "file:///data/a b"),
        ("s3://bucket/prefix", "s3a://bucket/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("az://box/some/prefix", "abfss://box@mine.dfs.core.windows.net/some/prefix"),
        ("az://box", "abfss://box@mine.dfs.core.windows.net"),
    ],
)
def test_a_root_has_the_scheme_that_hadoop_knows(url: str, address: str) -> None:
    assert hadoop_root(url, {"account_name": "mine"}) == address


def test_an_azure_container_without_its_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidConfig, match=r"set the option store\.account_name"):
        hadoop_root("az://box", {})
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "yours")
    assert hadoop_root("az://box", {}) == "abfss://box@yours.dfs.core.windows.net"


def test_characters_of_patterns_are_escaped() -> None:
    assert (
        file_path("file:///a[1]{b}*", "topics/t/0a.parquet")
        == r"file:///a\[1\]\{b\}\*/topics/t/0a.parquet"
    )


@pytest.mark.parametrize("name", ["_hidden.parquet", ".hidden.parquet", "a b.parquet", "ä.parquet"])
def test_a_name_that_spark_hides_or_changes_is_refused(name: str) -> None:
    with pytest.raises(Incompatible, match="read with format"):
        file_path("file:///data", f"topics/t/{name}")


def test_a_missing_file_system_is_reported_with_what_to_add() -> None:
    missing = RuntimeError(
        "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"
    )
    error = lacks_file_system("s3a://bucket", missing)
    assert error is not None
    assert "add hadoop-aws" in str(error)
    assert lacks_file_system("s3a://bucket", RuntimeError("Access Denied")) is None
    assert lacks_file_system("file:///data", missing) is None
