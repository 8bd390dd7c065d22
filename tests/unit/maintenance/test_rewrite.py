"""Rewriting files: every record stays what it is to consumers; a stale plan leaves nothing
behind.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from deltaq import Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.delta.actions import Add
from deltaq.errors import OutcomeUnknown
from deltaq.maintenance.file_compaction import FileRewrite, cut
from deltaq.maintenance.rewrite import Rewriter
from deltaq.maintenance.row_cache import RowCache
from deltaq.serde.source import schema_of
from deltaq.store import LocalStore, MemoryStore, Store
from deltaq.testing import Effect, Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.log import StalePlan, TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.scan import FileGone
from deltaq.work import finish
from tests.depth import depth
from tests.doubles.written_topic import RowToWrite, WrittenTopic, seen_by_consumers

YEAR_2262_MS = 9_223_372_036_854
ROWS = st.builds(
    RowToWrite,
    st.one_of(st.none(), st.binary(max_size=5)),
    st.one_of(st.none(), st.just(b""), st.binary(max_size=5)),
    st.integers(0, 2),
    st.one_of(st.none(), st.sampled_from([0, 1, 999, 1_600_000_000_123, YEAR_2262_MS])),
    st.one_of(
        st.none(),
        st.just([]),
        st.lists(
            st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2
        ),
    ),
)


def rewriter(
    topic: WrittenTopic, store: Store | None = None, row_cache: RowCache | None = None
) -> tuple[MaintenanceLog, Rewriter]:
    """Another compactor, in a process of its own unless it has the writer's row cache."""
    store = store or topic.store
    log = MaintenanceLog(store, "t", topic.clock)
    log.load()
    return log, Rewriter(store, log, topic.clock, row_cache=row_cache)


def everything(log: TopicLog, target_bytes: int = 2**30) -> FileRewrite:
    files = tuple(sorted(log.index.files.values(), key=lambda file: file.segment.version))
    return FileRewrite(files, cut(files, log.live_head, target_bytes))


def compact(
    topic: WrittenTopic, target_bytes: int = 2**30, row_cache: RowCache | None = None
) -> None:
    log, work = rewriter(topic, row_cache=row_cache)
    finish(work.rewrite(everything(log, target_bytes)))


def add_of(topic: WrittenTopic, path: str) -> Add:
    topic.log.catch_up()
    return topic.log.state.files[path]


# --- records
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.slow
@settings(max_examples=depth(12, 25))
@given(
    commits=st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=5),
    target=st.sampled_from([1, 2**30]),
)
def test_a_consumer_sees_the_same_after_a_rewrite(
    kind: str, commits: list[list[RowToWrite]], target: int
) -> None:
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test"), clock, partitions=3, message_timestamp_type=kind)
    for rows in commits:
        topic.append(*rows)
        clock.advance(0.7)
    before = seen_by_consumers(topic.store)
    assert len(before) == sum(map(len, commits))
    compact(topic, target)
    assert seen_by_consumers(topic.store) == before
    compact(topic)  # of what has its offsets already
    assert len(topic.files) == 1
    assert seen_by_consumers(topic.store) == before
    topic.fresh_log()


class Unread(FaultyStore):
    """Counts the data files that are read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.read: set[str] = set()

    def get(self, key: str, size_max: int | None = None) -> bytes:
        if key.endswith(".parquet"):
            self.read.add(key)
        return super().get(key, size_max)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.slow
@settings(max_examples=depth(12, 25))
@given(
    commits=st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=5),
    target=st.sampled_from([1, 2**30]),
    forgotten=st.sets(st.integers(0, 4)),
)
def test_cached_rows_of_own_writes_are_rewritten_without_being_read(
    kind: str, commits: list[list[RowToWrite]], target: int, forgotten: set[int]
) -> None:
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test"), clock, partitions=3, message_timestamp_type=kind)
    for rows in commits:
        topic.append(*rows)
        clock.advance(0.7)
    before, files = seen_by_consumers(topic.store), topic.files
    gone = {file.path for number, file in enumerate(files) if number in forgotten}
    topic.row_cache.forget(gone)
    store = Unread(topic.store)
    log, work = rewriter(topic, store, topic.row_cache)
    finish(work.rewrite(everything(log, target)))
    assert store.read == {topic.log.folder + path for path in gone}
    assert seen_by_consumers(topic.store) == before
    assert all(topic.row_cache.rows(file.path) is None for file in files), (
        "they are not needed any more"
    )


@pytest.mark.parametrize("limit", [1, 4_000, 40_000])
def test_records_that_decode_to_much_more_than_their_files_become_several_new_ones(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.maintenance.rewrite.DECODED_BYTES_AT_ONCE", limit)
    topic = WrittenTopic(MemoryStore("test"), partitions=3)
    for number in range(20):
        topic.append(
            *(RowToWrite(b"%d" % number * 500, partition=p) for p in range(3)), codec="zstd"
        )
    before = seen_by_consumers(topic.store)
    compact(topic)
    assert seen_by_consumers(topic.store) == before
    payload = sum(len(value) for _, _, _, _, value, _ in before)
    assert len(topic.files) >= min(60, payload / limit), "60 batches there were"
    topic.fresh_log()


@pytest.mark.parametrize("gently", [True, False])
def test_beside_others_a_merge_makes_files_that_take_little_memory(
    gently: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.maintenance.rewrite.GENTLE_BYTES_AT_ONCE", 20_000)
    topic = WrittenTopic(MemoryStore("test"), partitions=3)
    for number in range(20):
        topic.append(*(RowToWrite(b"%06d" % number * 100, partition=p) for p in range(3)))
    before = seen_by_consumers(topic.store)
    log = topic.fresh_log()
    store = FaultyStore(topic.store)
    finish(Rewriter(store, log, topic.clock, gently=gently).rewrite(everything(log, 10**9)))
    assert seen_by_consumers(topic.store) == before
    sizes = [file.segment.size for file in topic.files]
    if gently:
        assert len(sizes) > 1
        assert max(sizes) < 30_000
        assert store.operations["get"] == 60, (
            "each of 60 batches once: nothing is read to find that it is too much"
        )
    else:
        assert len(sizes) == 1


class OrderLine(BaseModel):
    sku: str
    count: int | None = None


class Order(BaseModel):
    id: int
    price: Decimal = Field(max_digits=10, decimal_places=2)
    at: datetime
    lines: list[OrderLine]
    labels: dict[str, str] | None = None


@pytest.mark.parametrize("kept", [0, 7, 16])
def test_a_typed_topic_keeps_its_objects_and_its_tombstones(kept: int) -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    orders = [
        Order(
            id=n,
            price=Decimal(n) / 4,
            at=at,
            lines=[OrderLine(sku=f"{n}")] * (n % 3),
            labels={"a": "b"} if n % 2 else None,
        )
        for n in range(8)
    ]
    schema = schema_of(Order)
    topic = WrittenTopic(MemoryStore("test"), partitions=2, schema=schema)
    for order in orders:
        topic.append(
            RowToWrite(schema.accept(order), b"%d" % order.id, order.id % 2),
            RowToWrite(None, b"%d" % order.id),
        )
    handle = Topic("t", Order, store=topic.store, bootstrap_servers="memory://test")
    before = seen_by_consumers(topic.store, handle)
    assert sorted(value.id for *_, value, _ in before if value is not None) == list(range(8))
    topic.row_cache.forget(file.path for file in topic.files[kept:])
    compact(topic, row_cache=topic.row_cache)
    assert seen_by_consumers(topic.store, handle) == before


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_codec_is_what_producers_chose_last_unless_the_topic_says(
    codec: str, tmp_path: Path
) -> None:
    topic = WrittenTopic(LocalStore(str(tmp_path), SYSTEM_CLOCK))
    topic.append(RowToWrite(b"a" * 100), codec="none")
    topic.append(RowToWrite(b"b" * 100), codec=codec)
    compact(topic)
    parquets = {"none": "UNCOMPRESSED", "lz4": "LZ4_RAW"}
    (file,) = topic.files
    metadata = pq.read_metadata(tmp_path / file.segment.key)
    assert metadata.row_group(0).column(0).compression in (
        parquets.get(codec, codec.upper()),
        codec.upper(),
    )
    topic.configure(compression_type="zstd")
    compact(topic)
    assert (
        pq.read_metadata(tmp_path / topic.files[0].segment.key).row_group(0).column(0).compression
        == "ZSTD"
    )


@pytest.mark.fault("C5")
@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from([1, 2**30]),
)
@pytest.mark.slow
@settings(max_examples=depth(12, 25))
def test_the_statistics_of_a_new_file_are_true_and_its_times_those_of_its_records(
    commits: list[list[RowToWrite]], target: int
) -> None:
    """Other engines skip files by them."""
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test"), clock, partitions=3)
    for rows in commits:
        clock.advance(0.7)
        uploaded = clock.time_ms()
        topic.append(*rows)
    compact(topic, target)
    for file in topic.files:
        table = pq.read_table(io.BytesIO(topic.store.get(file.segment.key)))
        said = json.loads(add_of(topic, file.path).stats or "{}")
        assert said["numRecords"] == table.num_rows == file.segment.rows
        for name in ("_partition", "_offset"):
            bounds = pc.min_max(table[name]).as_py()
            assert (said["minValues"][name], said["maxValues"][name]) == (
                bounds["min"],
                bounds["max"],
            )
        times = pc.min_max(table["_timestamp"].cast("int64")).as_py()
        assert said["nullCount"] == {"_partition": 0, "_offset": 0, "_timestamp": 0}
        texts = (said[side]["_timestamp"] for side in ("minValues", "maxValues"))
        low, high = map(datetime.fromisoformat, texts)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        assert (
            (low - epoch).total_seconds() * 1e6,
            (high - epoch).total_seconds() * 1e6,
        ) == pytest.approx((times["min"], times["max"]), abs=500)
        assert (file.min_timestamp_ms, file.max_timestamp_ms) == (
            times["min"] // 1000,
            times["max"] // 1000,
        )
        assert uploaded <= file.modified_ms < uploaded + 700, "as its newest records"


def test_gaps_stay_and_records_below_a_raised_start_are_removed() -> None:
    topic = WrittenTopic(MemoryStore("test"))
    for number in range(6):
        topic.append(RowToWrite(b"%d" % number), RowToWrite(b"x%d" % number))
    log, work = rewriter(topic)
    odd = everything(log)
    finish(
        work.rewrite(
            odd,
            lambda part: part.rows.filter(
                pc.not_equal(pc.bit_wise_and(part.rows["_offset"], 1), 0)
            ),
            clean=0,
        )
    )
    topic.log.retain(lambda head: Trimmed((4,), ()), topic.clock.monotonic() + 60)
    expected = [(0, offset) for offset in (5, 7, 9, 11)]
    assert [seen[:2] for seen in seen_by_consumers(topic.store)] == expected
    compact(topic)
    assert [seen[:2] for seen in seen_by_consumers(topic.store)] == expected
    (file,) = topic.files
    assert [(b.base_offset, b.next_offset, b.rows, b.sparse) for b in file.batches] == [
        (4, 12, 4, True)
    ]


def test_a_file_without_remaining_records_keeps_its_offsets() -> None:
    topic = WrittenTopic(MemoryStore("test"), partitions=2)
    topic.append(RowToWrite(b"a"), RowToWrite(b"b", partition=1))
    topic.append(RowToWrite(b"c"))
    first = topic.files[0]
    log, work = rewriter(topic)
    finish(
        work.rewrite(
            FileRewrite((first,), cut([first], log.live_head, 2**30)),
            lambda part: part.rows.slice(0, 0),
        )
    )
    assert [seen[:2] for seen in seen_by_consumers(topic.store)] == [(0, 1)]
    empty = topic.files[0]
    assert (empty.segment.rows, empty.min_timestamp_ms, empty.max_timestamp_ms) == (
        0,
        first.min_timestamp_ms,
        first.max_timestamp_ms,
    )
    compact(topic)
    assert [seen[:2] for seen in seen_by_consumers(topic.store)] == [(0, 1)]


# --- others
# --------------------------------------------------------------------------------------------------


@pytest.mark.fault("M1")
def test_a_compaction_with_a_stale_plan_changes_nothing_and_leaves_no_file() -> None:
    topic = WrittenTopic(MemoryStore("test"))
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    before = seen_by_consumers(topic.store)
    log, slow = rewriter(topic)
    plan = everything(log, 1)
    compact(topic)
    version = topic.fresh_log().version
    stored = topic.stored()
    assert finish(slow.rewrite(plan)) == StalePlan()
    assert topic.fresh_log().version == version
    assert topic.stored() == stored
    assert seen_by_consumers(topic.store) == before


@pytest.mark.fault("M1")
def test_a_compaction_whose_inputs_are_deleted_leaves_no_file() -> None:
    topic = WrittenTopic(MemoryStore("test"))
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number * 100_000))
    log, slow = rewriter(topic)
    plan = everything(log, 100_000)
    assert len(plan.outputs) > 2
    compact(topic)
    topic.store.delete(plan.inputs[-1].segment.key)
    stored = topic.stored()
    with pytest.raises(FileGone):
        finish(slow.rewrite(plan))
    assert topic.stored() == stored


@pytest.mark.fault("M1")
def test_appends_during_a_rewrite_are_kept_and_stand_behind_it() -> None:
    topic = WrittenTopic(MemoryStore("test"))
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    log, work = rewriter(topic)
    plan = everything(log)
    for number in range(4, 7):
        topic.append(RowToWrite(b"%d" % number))
    finish(work.rewrite(plan))
    assert [(seen[1], seen[4]) for seen in seen_by_consumers(topic.store)] == [
        (n, b"%d" % n) for n in range(7)
    ]
    assert [file.segment.version for file in topic.files] == [4, 5, 6, 7]
    assert [file.segment.rows for file in topic.files] == [4, 1, 1, 1]
    topic.append(RowToWrite(b"7"))
    assert seen_by_consumers(topic.store)[-1][1:5:3] == (7, b"7")


@pytest.mark.fault("M1", "P9")
@pytest.mark.parametrize("lands", [True, False])
def test_files_of_an_unknown_outcome_are_left_alone(lands: bool) -> None:
    """The entry may land yet, and then they are the topic's."""
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test"), clock)
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    before = seen_by_consumers(topic.store)
    entries = "topics/t/_delta_log/*.json"
    faulty = FaultyStore(topic.store, clock=clock)
    log, work = rewriter(topic, faulty)
    faulty.add(
        Rule("create", entries, Fault.late_apply(), times=1),
        Rule("create", entries, Fault.error_before(), times=None),
    )
    faulty.add(Rule("get", entries, Fault.error_before(), times=None))
    with pytest.raises(OutcomeUnknown):
        finish(work.rewrite(everything(log)))
    assert faulty.effects[Effect.LATE_WRITE_HELD] == 1
    (new,) = topic.stored() - topic.live()
    if lands:
        assert faulty.land_late() == [True]
        assert topic.live() == {new}
    assert seen_by_consumers(topic.store) == before
    assert new in topic.stored()


def test_a_rewrite_that_fails_at_its_second_file_leaves_no_file() -> None:
    topic = WrittenTopic(MemoryStore("test"), partitions=2)
    topic.append(RowToWrite(b"a" * 1000), RowToWrite(b"b" * 1000, partition=1))
    stored = topic.stored()
    faulty = FaultyStore(
        topic.store, Rule("put", "*.parquet", Fault.refused(), nth=2), clock=topic.clock
    )
    log, work = rewriter(topic, faulty)
    plan = everything(log, 1000)
    assert len(plan.outputs) > 1
    with pytest.raises(Exception, match=r"refused|permission|denied") as raised:
        finish(work.rewrite(plan))
    assert "Unavailable" in type(raised.value).__name__
    assert faulty.effects[Effect.REFUSED] == 1
    assert topic.stored() == stored


@pytest.mark.fault("M5")
def test_outputs_that_waited_too_long_are_given_up() -> None:
    """They may have been removed as orphans before their commit."""
    topic = WrittenTopic(MemoryStore("test"))
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    log, work = rewriter(topic)
    version = log.version
    topic.append(RowToWrite(b"x"))
    topic.log.raise_min_upload_version(version + 1, topic.clock.monotonic() + 60)
    assert finish(work.rewrite(everything(log))) == StalePlan()
    assert topic.stored() == topic.live()
    assert len(topic.live()) == 5
