"""Log metadata of data files that do not exist, for tests of rules that read only metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from deltaq.parquet.segment_file import SegmentFile
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import Batch, DataFile, TopicHead

__all__ = ["Log", "appended_logs", "index_of", "made_file", "offsets_of"]


def made_file(
    path: str,
    version: int,
    ranges: Sequence[tuple[int, int, int]],
    *,
    size: int = 1000,
    times: tuple[int, int] = (0, 0),
    modified_ms: int = 0,
    log_append_time: bool = False,
    clean: int | None = None,
    gaps: int = 0,
    decoded_bytes: int = 0,
) -> DataFile:
    """A file with offset ranges `(partition, from, to)`, from each of which up to `gaps` records
    are missing.
    """
    batches = []
    first = 0
    for partition, start, end in ranges:
        rows = max(0, end - start - gaps)
        batches.append(Batch(partition, start, end, first, rows, rows != end - start, path))
        first += rows
    segment = SegmentFile(f"topics/t/{path}", version, size, first, 0, 0, 0)
    return DataFile(
        path,
        segment,
        tuple(batches),
        *times,
        modified_ms,
        None,
        log_append_time,
        clean,
        decoded_bytes,
    )


def index_of(files: Iterable[DataFile]) -> OffsetIndex:
    index = OffsetIndex()
    for file in files:
        index.add(file)
    return index


def offsets_of(files: Iterable[DataFile]) -> list[tuple[int, int]]:
    """Every (partition, offset) in the files, with repetitions, in order."""
    return sorted(
        (b.partition, o)
        for f in files
        for b in f.batches
        for o in range(b.base_offset, b.next_offset)
    )


@dataclass
class Log:
    """Files in the order of the log, and the head that they add up to."""

    files: list[DataFile]
    head: TopicHead

    @property
    def index(self) -> OffsetIndex:
        return index_of(self.files)


@st.composite
def appended_logs(
    draw: st.DrawFn,
    *,
    partitions: int = 3,
    entries_max: int = 10,
    times: st.SearchStrategy[int] = st.just(0),  # noqa: B008 - a strategy is a value
    sizes: st.SearchStrategy[int] = st.integers(1, 1000),  # noqa: B008 - a strategy is a value
    starts: bool = True,
) -> Log:
    """Random histories of appends of one or two files each; with `starts`, some records may be
    deleted.
    """
    ends = [0] * partitions
    files: list[DataFile] = []
    for version in range(1, 1 + draw(st.integers(0, entries_max))):
        for number in range(draw(st.sampled_from([1, 1, 1, 2]))):
            ranges = []
            for partition in sorted(draw(st.sets(st.integers(0, partitions - 1), min_size=1))):
                rows = draw(st.integers(1, 5))
                ranges.append((partition, ends[partition], ends[partition] + rows))
                ends[partition] += rows
            low, high = sorted((draw(times), draw(times)))
            file = made_file(
                f"{version}-{number}",
                version,
                ranges,
                size=draw(sizes),
                times=(low, high),
                modified_ms=draw(times),
            )
            files.append(file)
    begin = [draw(st.integers(0, end)) if starts else 0 for end in ends]
    return Log(files, TopicHead("id", tuple(ends), tuple(begin), 0))
