"""Rewrites of files: an entry that would make a reader skip or repeat records is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.delta.actions import Action, Add, CommitInfo, DomainMetadata, Remove
from deltaq.delta.log import DeltaLog, Draft
from deltaq.errors import Corrupt
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.names import topic_log
from deltaq.store import MemoryStore
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.rewrites import (
    Trimmed,
    check_covered,
    check_rewrite,
    may_have_left,
    renewed,
    retained,
    rewritten,
)
from deltaq.topics.state import Batch, PendingSegment, RewrittenRecords, TopicHead, data_file
from tests.doubles.data_files import Log, appended_logs, index_of, made_file
from tests.doubles.written_topic import RowToWrite, WrittenTopic

NUMBERS = count()


def add(
    *batches: list[int], version: int = 4, data_change: bool = False, path: str | None = None
) -> Add:
    """A file with batches `[partition, base, first row, rows]`, with the next offset behind it if
    there are gaps.
    """
    rows = sum(batch[3] for batch in batches)
    about = {"version": version, "rows": rows, "crc32": 0, "footer": [1, 0], "timestamps": [0, 0]}
    tags = {"deltaq.batches": json.dumps(batches), "deltaq.file": json.dumps(about)}
    path = path or f"forged-{next(NUMBERS)}.parquet"
    return Add(path, 100, 0, data_change, json.dumps({"numRecords": rows}), tags)


@pytest.fixture
def topic() -> WrittenTopic:
    """Four files: partition 0 has the offsets 0 to 6 in the first three, partition 1 has 0 to 3 in
    the last two.
    """
    written = WrittenTopic(MemoryStore("test"), partitions=2)
    written.append(RowToWrite(b"a"), RowToWrite(b"b"))
    written.append(RowToWrite(b"c"), RowToWrite(b"d"))
    written.append(RowToWrite(b"e"), RowToWrite(b"f"), RowToWrite(b"g", partition=1))
    written.append(RowToWrite(b"h", partition=1), RowToWrite(b"i", partition=1))
    return written


Forgery = Callable[[list[str], TopicHead], Sequence[Action]]


def gone(*paths: str, data_change: bool = False) -> list[Action]:
    return [Remove(path, 0, data_change) for path in paths]


def starting(head: TopicHead, *starts: int) -> Action:
    return replace(head, start_offsets=starts).action()


FORGERIES: dict[str, Forgery] = {
    "a gap at the beginning": lambda f, head: [*gone(f[0]), add([0, 1, 0, 1]), head.action()],
    "a gap at the end": lambda f, head: [*gone(f[0], f[1]), add([0, 0, 0, 3]), head.action()],
    "a gap in the middle": lambda f, head: [
        *gone(f[0], f[1]),
        add([0, 0, 0, 1], [0, 2, 1, 2]),
        head.action(),
    ],
    "an offset twice": lambda f, head: [
        *gone(f[0], f[1]),
        add([0, 0, 0, 3], [0, 2, 3, 2]),
        head.action(),
    ],
    "an offset of a file that stays": lambda f, head: [
        *gone(f[0]),
        add([0, 0, 0, 3]),
        head.action(),
    ],
    "all offsets twice": lambda f, head: [
        *gone(f[0]),
        add([0, 0, 0, 2]),
        add([0, 0, 0, 2]),
        head.action(),
    ],
    "offsets beyond the end": lambda f, head: [*gone(f[3]), add([1, 1, 0, 3]), head.action()],
    "gaps beyond the end": lambda f, head: [*gone(f[3]), add([1, 1, 0, 2, 9]), head.action()],
    "another partition": lambda f, head: [*gone(f[0]), add([1, 0, 0, 2]), head.action()],
    "a partition that there is not": lambda f, head: [
        *gone(f[0]),
        add([0, 0, 0, 2], [7, 0, 2, 1]),
        head.action(),
    ],
    "only one of two partitions": lambda f, head: [*gone(f[2]), add([0, 4, 0, 2]), head.action()],
    "a file without a successor": lambda f, head: [*gone(f[1]), head.action()],
    "a file without a successor, called a change": lambda f, head: [
        *gone(f[1], data_change=True),
        head.action(),
    ],
    "the first file without a new start": lambda f, head: [
        *gone(f[0], data_change=True),
        head.action(),
    ],
    "a start short of what goes": lambda f, head: [
        *gone(f[0], data_change=True),
        starting(head, 1, 0),
    ],
    "a file out of order": lambda f, head: [*gone(f[1], data_change=True), starting(head, 2, 0)],
    "a file from nowhere": lambda f, head: [add([0, 0, 0, 2]), head.action()],
    "a live file again": lambda f, head: [
        add([0, 6, 0, 1], data_change=True, path=f[0]),
        raised(head, 7),
    ],
    "a file that goes and comes": lambda f, head: [
        *gone(f[0]),
        add([0, 0, 0, 2], path=f[0]),
        head.action(),
    ],
    "a file that comes and goes": lambda f, head: [
        add([0, 0, 0, 2], path=f[0]),
        *gone(f[0]),
        head.action(),
    ],
    "voided uploads of the future": lambda f, head: [replace(head, min_upload_version=99).action()],
}


def raised(head: TopicHead, end: int) -> Action:
    return replace(head, next_offsets=(end, head.next_offsets[1])).action()


def write(topic: WrittenTopic, actions: Sequence[Action]) -> None:
    """Commit what no deltaq would, but sealed like its own."""
    log = DeltaLog(topic.store, topic.log.folder, topic.clock)
    log.load()
    info = CommitInfo(topic.clock.unique_id(), topic.clock.time_ms(), "OPTIMIZE")
    log.commit(lambda state: Draft(info, actions), topic.clock.monotonic() + 60)


def refusals(topic: WrittenTopic, forgery: Forgery) -> int:
    """How many of three readers refuse the entry: one that follows, one that comes, one that begins
    at a checkpoint.
    """
    files = [file.path for file in topic.files]
    head = topic.log.live_head
    write(topic, forgery(files, head))
    follower = topic.log
    state = topic.log.state
    refused = 0
    for attempt in (follower.catch_up, topic.fresh_log):
        try:
            attempt()
        except Corrupt:
            refused += 1
    table = DeltaLog(topic.store, topic.log.folder, topic.clock)
    table.load()
    assert table.state.version == state.version + 1
    write_checkpoint(topic.store, topic_log("t"), table.state)
    try:
        topic.fresh_log()
    except Corrupt:
        refused += 1
    return refused


@pytest.mark.fault("M1")
@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_an_entry_that_would_make_a_reader_jump_or_read_twice_is_refused(
    topic: WrittenTopic, forgery: Forgery
) -> None:
    assert refusals(topic, forgery) >= 2


SNAPSHOTS = {
    name: forgery
    for name, forgery in FORGERIES.items()
    if "gap" in name or "twice" in name or "without" in name
}


@pytest.mark.fault("M1")
@pytest.mark.parametrize("forgery", SNAPSHOTS.values(), ids=SNAPSHOTS.keys())
def test_a_snapshot_with_a_hole_or_an_overlap_is_refused_from_any_writer(
    topic: WrittenTopic, forgery: Forgery
) -> None:
    assert refusals(topic, forgery) == 3


@pytest.mark.parametrize(
    "forgery", [[*gone("a", "a")], [add([0, 6, 0, 1], path="a"), add([0, 7, 0, 1], path="a")]]
)
def test_an_entry_with_a_repeated_file_action_is_not_written(
    topic: WrittenTopic, forgery: list[Action]
) -> None:
    with pytest.raises(Corrupt, match="two actions"):
        write(topic, [*forgery, topic.log.live_head.action()])


@pytest.mark.parametrize("field", ["start_offsets", "min_upload_version"])
def test_a_removed_file_never_comes_back(topic: WrittenTopic, field: str) -> None:
    topic.log.retain(
        lambda head: Trimmed((2, 0), (topic.files[0].path,)), topic.clock.monotonic() + 60
    )
    topic.log.raise_min_upload_version(3, topic.clock.monotonic() + 60)
    head = topic.log.live_head
    lower = {"start_offsets": (1, 0), "min_upload_version": 2}[field]
    write(topic, [replace(head, **{field: lower}).action()])  # type: ignore[arg-type]
    with pytest.raises(Corrupt, match="lowers a start offset"):
        topic.log.catch_up()
    with pytest.raises(Corrupt, match="lowers a start offset"):
        topic.fresh_log()


GOOD: dict[str, Forgery] = {
    "two files become one": lambda f, head: [*gone(f[0], f[1]), add([0, 0, 0, 4]), head.action()],
    "one becomes two": lambda f, head: [
        *gone(f[0]),
        add([0, 0, 0, 1]),
        add([0, 1, 0, 1]),
        head.action(),
    ],
    "one without its middle": lambda f, head: [
        *gone(f[0], f[1]),
        add([0, 0, 0, 2, 4]),
        head.action(),
    ],
    "one without any record": lambda f, head: [*gone(f[0]), add([0, 0, 0, 0, 2]), head.action()],
    "the first ones go": lambda f, head: [
        *gone(f[0], f[1], data_change=True),
        starting(head, 4, 0),
    ],
    "all go": lambda f, head: [*gone(*f, data_change=True), starting(head, 6, 3)],
    "a start inside a file": lambda f, head: [starting(head, 3, 1)],
    "nothing": lambda f, head: [head.action()],
}


@pytest.mark.parametrize("entry", GOOD.values(), ids=GOOD.keys())
def test_an_entry_that_keeps_the_offsets_is_accepted_by_every_reader(
    topic: WrittenTopic, entry: Forgery
) -> None:
    assert refusals(topic, entry) == 0


def test_records_below_a_new_start_need_no_successor(topic: WrittenTopic) -> None:
    files = [file.path for file in topic.files]
    write(topic, [starting(topic.log.live_head, 1, 0)])
    topic.log.catch_up()
    write(topic, [*gone(files[0]), add([0, 1, 0, 1], version=1), topic.log.live_head.action()])
    assert topic.log.catch_up()
    assert topic.fresh_log().live_head.start_offsets == (1, 0)


# --- against counting
# ------------------------------------------------------------------------------------------------


@given(appended_logs(), st.data())
def test_a_rewrite_is_right_if_and_only_if_it_covers_the_same_offsets_once(
    log: Log, data: st.DataObject
) -> None:
    removed = data.draw(
        st.lists(st.sampled_from([file.path for file in log.files]), unique=True)
        if log.files
        else st.just([])
    )
    starts = log.head.start_offsets
    ranges = [
        (b.partition, b.base_offset, b.next_offset)
        for f in log.files
        if f.path in removed
        for b in f.batches
    ]
    for _ in range(data.draw(st.integers(0, 2))):  # some damage, or none
        if ranges:
            at = data.draw(st.integers(0, len(ranges) - 1))
            partition, low, high = ranges.pop(at)
            low, high = (
                max(0, low + data.draw(st.integers(-1, 1))),
                high + data.draw(st.integers(-1, 1)),
            )
            ranges += [(partition, low, max(low, high))] * data.draw(
                st.sampled_from([0, 1, 1, 1, 2])
            )
    added = [made_file(f"new{n}", 99, [span]) for n, span in enumerate(ranges)]

    def readable(spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
        return sorted((p, o) for p, low, high in spans for o in range(low, high) if o >= starts[p])

    old = [
        (b.partition, b.base_offset, b.next_offset)
        for f in log.files
        if f.path in removed
        for b in f.batches
    ]
    if readable(old) == readable(ranges):
        check_rewrite(log.index, removed, added, log.head, "entry", 99)
        after = index_of([*(file for file in log.files if file.path not in removed), *added])
        check_covered(after, log.head, "entry", 99)
    else:
        with pytest.raises(Corrupt):
            check_rewrite(log.index, removed, added, log.head, "entry", 99)


@given(appended_logs())
def test_appends_cover_all_offsets_and_a_missing_file_leaves_a_hole(log: Log) -> None:
    check_covered(log.index, log.head, "entry", 99)
    starts = log.head.start_offsets
    for file in log.files:
        rest = index_of(other for other in log.files if other is not file)
        if any(batch.next_offset > starts[batch.partition] for batch in file.batches):
            with pytest.raises(Corrupt):
                check_covered(rest, log.head, "entry", 99)
        else:
            check_covered(rest, log.head, "entry", 99)


# --- what is written
# -------------------------------------------------------------------------------------------------


def test_a_rewrite_changes_no_data_and_retention_only_removes() -> None:
    head = TopicHead("id", (4,), (1,), 50)
    batches = (Batch(0, 0, 4, 0, 2, True, "new"),)
    records = RewrittenRecords(((0, 4),), (1, 3), 7, log_append_time=True, clean=99)
    segment = PendingSegment(
        "new", 100, 2, 1, 2, 3, ((0, 2),), 10, 20, 15, as_of=6, rewritten=records
    )
    actions = [*rewritten(["a", "b"], [segment], 50), renewed(head, now_ms=40)]
    removes = [action for action in actions if isinstance(action, Remove)]
    adds = [action for action in actions if isinstance(action, Add)]
    assert [(remove.path, remove.data_change) for remove in removes] == [("a", False), ("b", False)]
    assert [action for action in actions if isinstance(action, DomainMetadata)] == [head.action()]
    (file,) = (data_file(action, "topics/t/") for action in adds)
    assert (adds[0].data_change, file.batches, file.segment.version, file.clean) == (
        False,
        batches,
        7,
        99,
    )
    assert (file.min_timestamp_ms, file.max_timestamp_ms, file.modified_ms) == (10, 20, 15)
    assert (file.append_time_ms, file.log_append_time) == (None, True)
    actions = retained(head, Trimmed((0,), ("a",)), now_ms=60)
    assert actions == [Remove("a", 60, data_change=True), replace(head, time_ms=60).action()]


def test_retention_that_was_planned_before_partitions_were_added_leaves_these_alone() -> None:
    head = TopicHead("id", (4, 2, 0), (1, 0, 0), 50)
    actions = retained(head, Trimmed((3, 1), ("a",)), now_ms=60)
    assert actions[-1] == replace(head, start_offsets=(3, 1, 0), time_ms=60).action()


def test_maintenance_writes_no_entry_that_readers_would_refuse(topic: WrittenTopic) -> None:
    version = topic.log.version
    with pytest.raises(Corrupt):
        topic.log.rewrite([topic.files[0].path], [], topic.clock.monotonic() + 60)
    assert topic.fresh_log().version == version


def test_a_file_that_is_gone_already_removes_nothing() -> None:
    log = MaintenanceLog(MemoryStore("test"), "t")
    check_rewrite(log.index, ["unknown"], [], TopicHead("id", (1,), (0,), 0), "entry", 1)


def test_a_rewritten_file_without_bounds_does_not_pass_for_records_of_others() -> None:
    """It has the offsets of all that it was made of, which may be the very records that are looked
    for.
    """
    records = RewrittenRecords(((0, 2),), (0, 1), 7, log_append_time=False)
    unbounded = PendingSegment(
        "new", 100, 2, 1, 2, 3, ((0, 2),), 10, 20, 15, as_of=6, rewritten=records
    )
    add = next(a for a in rewritten(["old"], [unbounded], 50, ("ratio",)) if isinstance(a, Add))
    assert "minValues" not in (add.stats or "")
    before, after = TopicHead("id", (0,), (0,), 50), TopicHead("id", (2,), (0,), 50)
    assert may_have_left(before, after, after, [add], "topics/t/")
    appended_by_others = replace(
        add, stats='{"numRecords":2,"nullCount":{"_partition":0,"_offset":2}}'
    )
    assert not may_have_left(before, after, after, [appended_by_others], "topics/t/")
