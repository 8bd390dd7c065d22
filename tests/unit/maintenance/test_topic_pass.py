"""A round of maintenance: readers are not disturbed, others are not in the way, what is newer is
left alone.
"""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from deltaq import (
    OFFSET_BEGINNING,
    Consumer,
    Corrupt,
    Incompatible,
    KafkaError,
    KafkaException,
    OffsetOutOfRange,
    Topic,
    TopicPartition,
)
from deltaq.config import TopicSettings, topic_properties
from deltaq.delta import checkpoint_columns
from deltaq.delta.actions import Action, CommitInfo, Protocol
from deltaq.delta.log import DeltaLog, Draft
from deltaq.maintenance import topic_pass, work_queue
from deltaq.maintenance.excluded_files import UNREAD_MAX
from deltaq.maintenance.file_compaction import FileRewrite, cut
from deltaq.maintenance.key_compaction import KeyCleaner
from deltaq.maintenance.plan import Kind, MaintainedTopic, plan
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.rewrite import Rewriter
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.names import clock_key, orphan_scans_folder
from deltaq.parquet.column_bounds import STATISTICS_PROPERTY
from deltaq.store import MemoryStore, Store
from deltaq.testing import Crash, Effect, Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.log import StalePlan
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.metadata import NewTopicPlan, create_topic
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.state import PendingSegment, TopicChange, TopicHead
from deltaq.work import Work, finish
from tests.doubles.data_files import index_of, made_file
from tests.doubles.reading import drain, next_message
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
HOUR_MS = 3600 * 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def topic(clock: ManualClock) -> WrittenTopic:
    """Twenty records, one in each file."""
    written = WrittenTopic(MemoryStore("test", clock), clock, retention_ms=HOUR_MS)
    for number in range(20):
        written.append(RowToWrite(b"%d" % number))
    return written


def consumer(store: Store, reset: str = "error", position: int = 0, **config: Any) -> Consumer:
    conf = {"bootstrap.servers": "memory://test", "group.id": "g", "enable.auto.commit": False}
    reader = Consumer({**conf, "auto.offset.reset": reset}, store=store, **config)
    reader.assign([TopicPartition("t", 0, position)])
    return reader


def values(messages: list[object]) -> list[bytes]:
    return [message.value() for message in messages]  # type: ignore[attr-defined]


def next_error(reader: Consumer) -> KafkaError:
    """What the consumer is told next, in whichever way."""
    try:
        error: KafkaError | None = next_message(reader).error()
    except KafkaException as raised:
        return raised.error
    assert error is not None
    return error


# --- what is planned
# -------------------------------------------------------------------------------------------------


def test_expired_records_are_not_compacted_first(topic: WrittenTopic, clock: ManualClock) -> None:
    def planned() -> list[Kind]:
        topic.log.catch_up()
        maintained = MaintainedTopic(topic.log.live_head, topic.log.index, topic.log.settings)
        return list(plan(maintained, SMALL, clock.time_ms()))

    assert planned() == [Kind.MERGE]
    clock.advance(2 * HOUR_S)
    assert planned() == [Kind.RETENTION, Kind.MERGE]
    topic.configure(cleanup_policy="compact,delete", retention_ms=HOUR_MS)
    assert planned() == [Kind.RETENTION, Kind.CLEANING, Kind.MERGE]
    topic.maintain()
    assert planned() == []


def test_a_dry_run_reports_its_plan_and_changes_nothing(topic: WrittenTopic) -> None:
    before = {entry.key: topic.store.get(entry.key) for entry in topic.store.list("")}
    lines: list[str] = []
    work = topic_pass.TopicPass(
        topic.store, "t", topic.clock, SMALL, Throttle(topic.clock), lines.append
    )
    assert work.plan()["actions planned"] == len(lines) == 2
    assert "merge 20 files" in lines[0]
    assert lines[1] == "t: write a checkpoint of version 20"
    assert {entry.key: topic.store.get(entry.key) for entry in topic.store.list("")} == before


# --- readers
# --------------------------------------------------------------------------------------------------


@pytest.mark.fault("M3")
@pytest.mark.parametrize("reset", ["error", "earliest", "latest"])
def test_a_reader_below_the_start_gets_an_error_or_is_reset(
    topic: WrittenTopic, clock: ManualClock, reset: str
) -> None:
    topic.append(RowToWrite(b"late", timestamp_ms=clock.time_ms() + 2 * HOUR_MS))
    clock.advance(HOUR_S + 1)
    topic.append(RowToWrite(b"20"), RowToWrite(b"21"))
    assert topic.maintain()["files expired"] == 21
    with consumer(topic.store, reset, position=5, enable_partition_eof=True) as reader:
        if reset == "error":
            lines = next_error(reader)
            assert lines.code() == KafkaError._AUTO_OFFSET_RESET
            out = OffsetOutOfRange(topic="t", partition=0, requested=5, earliest=21, latest=23)
            assert lines.str() == out.args[0].str()
        else:
            read = drain(reader, 2) if reset == "earliest" else []
            assert values(read) == [b"20", b"21"][: len(read)]
            assert next_message(reader).error() == KafkaError._PARTITION_EOF
            topic.append(RowToWrite(b"22"))
            assert next_message(reader).offset() == 23


@pytest.mark.fault("M3")
def test_a_table_of_removed_offsets_raises_with_the_available_range(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    clock.advance(HOUR_S + 1)
    topic.append(RowToWrite(b"20"))
    topic.maintain()
    handle = Topic("t", bootstrap_servers="memory://test", store=topic.store)
    assert handle.to_arrow()["value"].to_pylist() == [b"20"]
    with pytest.raises(OffsetOutOfRange) as raised:
        handle.to_arrow(start=5)
    error = raised.value
    assert (error.requested, error.earliest, error.latest) == (5, 20, 21)


@pytest.mark.fault("M4")
@pytest.mark.parametrize("swept", [False, True])
def test_a_reader_in_the_files_from_before_finishes(
    topic: WrittenTopic, clock: ManualClock, swept: bool
) -> None:
    """Its snapshot names files that give way to others, and then are deleted."""
    reads = FaultyStore(topic.store, clock=clock)
    with consumer(reads) as reader:
        assert values(drain(reader, 3)) == [b"%d" % n for n in range(3)]
    # One more, held just before it opens its next file.
    reads = FaultyStore(
        topic.store, Rule("get", "topics/t/*.parquet", Fault.slow(), nth=4), clock=clock
    )
    with consumer(reads, queued_max_messages_kbytes=1) as reader:
        got = values(drain(reader, 3))
        while not reads.blocked:
            assert reader.poll(0.001) is None or pytest.fail("nothing more can be ready")
        if swept:
            clock.advance(60)
            assert topic.maintain()["files merged"] == 20
            topic.configure(retention_ms=-1)
            clock.advance(DAY_S)
            assert topic.maintain()["files deleted"] == 20
        else:
            assert topic.maintain()["files merged"] == 20
        reads.release()
        got += values(drain(reader, 17))
        assert got == [b"%d" % n for n in range(20)]
    assert reads.effects[Effect.DELAYED] == 1


@pytest.mark.fault("M3", "M4")
def test_a_reader_whose_files_expire_gets_an_error(topic: WrittenTopic, clock: ManualClock) -> None:
    reads = FaultyStore(
        topic.store, Rule("get", "topics/t/*.parquet", Fault.slow(), nth=4), clock=clock
    )
    with consumer(reads) as reader:
        assert values(drain(reader, 3)) == [b"0", b"1", b"2"]
        while not reads.blocked:
            assert reader.poll(0.001) is None
        clock.advance(HOUR_S + 1)
        assert topic.maintain()["files expired"] == 20
        clock.advance(DAY_S)
        assert topic.maintain()["files deleted"] == 20
        topic.append(RowToWrite(b"new"))
        reads.release()
        assert next_error(reader).code() == KafkaError._AUTO_OFFSET_RESET
        reader.seek(TopicPartition("t", 0, OFFSET_BEGINNING))
        assert values(drain(reader, 1)) == [b"new"]


# --- others
# --------------------------------------------------------------------------------------------------


@pytest.mark.fault("M1")
def test_two_rounds_at_once_do_the_work_once(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes in just before the first commits."""
    before = seen_by_consumers(topic.store)
    others: list[int] = []
    write = Rewriter._write

    def interrupted(self: Rewriter, *args: Any) -> Work[PendingSegment]:
        segment = yield from write(self, *args)
        if not others:
            others.append(0)
            others[0] = topic.maintain()["files merged"]
        return segment

    monkeypatch.setattr(Rewriter, "_write", interrupted)
    assert topic.maintain()["files merged"] == 0
    assert others == [20]
    assert len(topic.files) == 1
    assert seen_by_consumers(topic.store) == before


def test_a_topic_that_others_keep_changing_is_left_to_them(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[FileRewrite] = []

    def stale(self: Rewriter, plan: FileRewrite, *_: object, **__: object) -> Work[StalePlan]:
        attempts.append(plan)
        yield
        return StalePlan()

    monkeypatch.setattr(Rewriter, "rewrite", stale)
    assert topic.maintain()["files merged"] == 0
    assert len(attempts) == topic_pass.STALE_PLANS_MAX


def test_a_plan_without_result_does_not_delay_the_others(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.configure(cleanup_policy="compact")

    def nothing(*_: object) -> Work[int]:
        yield
        return 0

    monkeypatch.setattr(KeyCleaner, "clean", nothing)
    assert topic.maintain()["files merged"] == 20
    assert len(topic.files) == 1


class TooOften(Exception):
    """What would go on for ever."""


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[FileRewrite]:
    """The merges that are made. Raises TooOften after a few."""
    made: list[FileRewrite] = []
    rewrite = Rewriter.rewrite

    def counted(
        self: Rewriter, plan: FileRewrite, *others: Any, **more: Any
    ) -> Work[tuple[str, ...] | StalePlan]:
        made.append(plan)
        if len(made) > 9:
            raise TooOften
        return rewrite(self, plan, *others, **more)

    monkeypatch.setattr(Rewriter, "rewrite", counted)
    return made


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_files_that_decode_to_too_much_are_merged_once(
    clock: ManualClock, merges: list[FileRewrite], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    at_once = {1.0: "deltaq.maintenance.rewrite.DECODED_BYTES_AT_ONCE"}
    monkeypatch.setattr(
        at_once.get(share, "deltaq.maintenance.rewrite.GENTLE_BYTES_AT_ONCE"), 20_000
    )
    topic = WrittenTopic(MemoryStore("test", clock), clock)
    for number in range(20):
        topic.append(*(RowToWrite(b"%06d" % number * 100) for _ in range(20)), codec="zstd")
    before = seen_by_consumers(topic.store)

    def round_by_a_newcomer() -> int:
        work = topic_pass.TopicPass(topic.store, "t", clock, SMALL, Throttle(clock, share))
        return work.run()["files merged"]

    assert round_by_a_newcomer() == 20
    assert len(topic.files) >= 15, "of 12 kB each"
    for file in topic.files:
        payload = sum(
            600
            for _, offset, *_ in before
            if any(b.base_offset <= offset < b.next_offset for b in file.batches)
        )
        assert payload <= file.decoded_bytes < 2 * payload, "as the log says"
    assert round_by_a_newcomer() == 0
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number))
    assert round_by_a_newcomer() == 8, "others are merged as ever"
    assert len(merges) == 2
    assert seen_by_consumers(topic.store)[:400] == before


def test_files_that_a_merge_has_not_made_fewer_are_not_merged_again(
    topic: WrittenTopic, merges: list[FileRewrite], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: the round would never end, and fill the store."""
    counted = Rewriter.rewrite

    def into_many(
        self: Rewriter, plan: FileRewrite, *others: Any, **more: Any
    ) -> Work[tuple[str, ...] | StalePlan]:
        outputs = cut(plan.inputs, self._log.live_head, 1)
        return counted(self, replace(plan, outputs=outputs), *others, **more)

    monkeypatch.setattr(Rewriter, "rewrite", into_many)
    work = topic.maintenance()
    assert work.run()["files merged"] == 20
    assert len(topic.files) == 20
    assert work.run()["files merged"] == 0
    assert len(merges) == 1


def test_a_file_that_was_trimmed_is_merged_with_others(topic: WrittenTopic) -> None:
    topic.append(RowToWrite(b"20"), RowToWrite(b"21"))
    topic.log.retain(lambda head: Trimmed((21,), ()), topic.clock.monotonic() + 60)
    for number in range(22, 26):
        topic.append(RowToWrite(b"%d" % number))
    assert topic.maintain()["files merged"] == 1 + 5
    assert [seen[4] for seen in seen_by_consumers(topic.store)] == [
        b"%d" % number for number in range(21, 26)
    ]


def test_retention_planned_for_a_topic_does_not_touch_its_successor(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    """Deleted and created again between plan and commit."""
    work = topic.maintenance()
    work._log.load()
    topic_id = work._log.live_head.topic_id
    clock.advance(2 * HOUR_S)
    trimmed = work._plan()[Kind.RETENTION]
    assert isinstance(trimmed, Trimmed)
    topic.log.delete(clock.monotonic() + 60)
    create_topic(topic.log, NewTopicPlan(1), clock.monotonic() + 60, exist_ok=False)
    for number in range(20):
        topic.append(RowToWrite(b"new %d" % number))
    assert work._retain(trimmed, topic_id) == StalePlan()
    assert len(seen_by_consumers(topic.store)) == 20
    assert topic.starts == (0,)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a writer"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"retention_ms": HOUR_MS}, {"retention_ms": -1}),
        ({"retention_ms": HOUR_MS}, {"retention_ms": HOUR_MS, "cleanup_policy": "compact"}),
        ({"cleanup_policy": "compact"}, {"cleanup_policy": "delete", "retention_ms": -1}),
        (
            {"cleanup_policy": "compact"},
            {"cleanup_policy": "compact", "min_compaction_lag_ms": 10**12},
        ),
    ],
    ids=str,
)
def test_a_plan_made_under_other_settings_removes_nothing(
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    after: dict[str, Any],
    beside: bool,
) -> None:
    """They are changed after the plan, and before its entry."""
    topic = WrittenTopic(MemoryStore("test", clock), clock, **before)
    for number in range(20):
        topic.append(
            RowToWrite(
                b"%d" % number, key=b"%d" % (number % 4 if "cleanup_policy" in before else number)
            )
        )
    clock.advance(2 * HOUR_S)
    changed: list[int] = []

    def changing(method: Any) -> Any:
        def first(*arguments: Any, **more: Any) -> Any:
            if not changed:
                changed.append(1)
                admin = topic.fresh_log()
                properties = topic_properties(
                    {name.replace("_", "."): value for name, value in after.items()}
                )
                admin.change(
                    lambda head, _: TopicChange(head.partitions, properties), clock.monotonic() + 60
                )
            return method(*arguments, **more)

        return first

    monkeypatch.setattr(MaintenanceLog, "retain", changing(MaintenanceLog.retain))
    monkeypatch.setattr(Rewriter, "rewrite", changing(Rewriter.rewrite))
    log = topic.log.known if beside else None
    topic_pass.TopicPass(topic.store, "t", clock, SMALL, Throttle(clock), beside=log).run()
    assert changed
    assert len(seen_by_consumers(topic.store)) == 20


def test_merging_with_older_records_does_not_expire_records_earlier(clock: ManualClock) -> None:
    topic = WrittenTopic(MemoryStore("test", clock), clock, retention_ms=5 * HOUR_MS)
    for _ in range(3):
        topic.append(RowToWrite(b"old"))
    clock.advance(4 * HOUR_S)
    topic.append(RowToWrite(b"young"))
    assert topic.maintain()["files merged"] == 4
    clock.advance(5 * HOUR_S - 1)
    topic.maintain()
    assert [seen[4] for seen in seen_by_consumers(topic.store)] == [b"old"] * 3 + [b"young"]
    clock.advance(2)
    topic.maintain()
    assert seen_by_consumers(topic.store) == []


# --- what cannot be read
# ---------------------------------------------------------------------------------------------


def damage(topic: WrittenTopic, number: int, how: str) -> str:
    """Of the file of that number; its key."""
    key = topic.files[number].segment.key
    if how == "lost":
        topic.store.delete(key)
    else:
        data = topic.store.get(key)
        topic.store.put(key, data[:10] + bytes([data[10] ^ 1]) + data[11:])
    return key


@pytest.mark.fault("C5")
@pytest.mark.parametrize("how", ["flipped", "lost"])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_damaged_file_is_reported_and_skipped(
    topic: WrittenTopic, clock: ManualClock, how: str, share: float
) -> None:
    topic.configure(retention_ms=-1)
    damaged = {damage(topic, number, how) for number in (3, 9, 10, 11, 12, 13, 14)}
    topic.store.put("topics/t/orphan.parquet", b"x")
    clock.advance(HOUR_S)
    lines: list[str] = []
    reads = FaultyStore(topic.store, clock=clock)
    work = topic_pass.TopicPass(reads, "t", clock, SMALL, Throttle(clock, share), lines.append)
    done = work.run()
    assert done["failures"] == 7
    assert all(any(key in line for line in lines) for key in damaged)
    assert done["files merged"] == 5 + 5
    assert done["checkpoints"] == 1
    assert done["files noted"] == 1 + 10
    assert {file.segment.key for file in topic.files} >= damaged
    assert [file.segment.rows for file in topic.files] == [1, 1, 1, 1, 5, *[1] * 6, 5]
    reads.add(*(Rule("read", key, Fault.error_before(), times=None) for key in damaged))
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    clock.advance(DAY_S)
    done = work.run()
    assert (done["failures"], done["files merged"], done["files deleted"]) == (0, 1 + 4, 11)
    log_objects_deleted = 0
    for _ in range(2):
        clock.advance(SMALL.clean_up_grace_s)
        log_objects_deleted += work.run()["log objects deleted"]
    assert log_objects_deleted > 20
    assert reads.effects.total() == 0, "no reader tries them again"


@pytest.mark.parametrize(
    "fault", [Fault.refused(), Fault.error_before()], ids=["refused", "unavailable"]
)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a writer"])
def test_an_unreadable_file_is_skipped_for_a_round(
    topic: WrittenTopic, clock: ManualClock, fault: Fault, beside: bool
) -> None:
    """As one in a bad sector of the disk, or one that was moved to an archive."""
    key = topic.files[3].segment.key
    lines: list[str] = []
    reads = FaultyStore(topic.store, Rule("read", key, fault, times=None), clock=clock)
    log = topic.log.known if beside else None
    work = topic_pass.TopicPass(reads, "t", clock, SMALL, Throttle(clock), lines.append, beside=log)
    for _ in range(2):
        assert work.run()["failures"] == 1
        assert sum(key in line and "for now" in line for line in lines) == 1
        assert [file.segment.rows for file in topic.files] == [1, 1, 1, 1, 16]
        lines.clear()
    reads.clear()
    assert work.run()["failures"] == 0
    assert [file.segment.rows for file in topic.files] == [20]


def test_a_store_outage_ends_the_reads_of_a_round(topic: WrittenTopic, clock: ManualClock) -> None:
    reads = FaultyStore(
        topic.store, Rule("read", "topics/t/*.parquet", Fault.refused(), times=None), clock=clock
    )
    done = topic_pass.TopicPass(reads, "t", clock, SMALL, Throttle(clock)).run()
    assert done["failures"] == reads.effects.total() == UNREAD_MAX + 1
    assert done["checkpoints"] == 1


@pytest.mark.fault("C5")
def test_a_damaged_file_does_not_keep_those_before_it_from_being_compacted_by_key(
    topic: WrittenTopic,
) -> None:
    topic.configure(cleanup_policy="compact")
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number, b"key"))
    key = damage(topic, 26, "flipped")
    done = topic.maintain()
    assert (done["failures"], done["records superseded"]) == (1, 5)
    assert next(file.segment.key for file in topic.files if file.clean is None) == key
    assert topic.maintain()["records superseded"] == 0


@pytest.mark.fault("C5")
def test_a_damaged_file_that_new_files_are_merged_beside_is_known_then() -> None:
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test", clock), clock)
    for _ in range(4):
        topic.append(RowToWrite(b"x"))
    key = damage(topic, 1, "flipped")
    work = topic.maintenance()
    work._log.load()
    with pytest.raises(Corrupt):
        finish(work._merge_new_files(-1))
    assert work._exclude_cause(Corrupt("damaged", path=key))
    assert not work._exclude_cause(Corrupt("damaged", path=key))
    assert work._report.counts == {FAILURES: 1}
    finish(work._merge_new_files(-1))
    assert len(topic.files) == 4


def test_a_store_that_refuses_new_files_does_not_keep_the_rest_from_being_done(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    topic.store.put("topics/t/orphan.parquet", b"x")
    faulty = FaultyStore(
        topic.store, Rule("put", "topics/t/*.parquet", Fault.refused(), times=None), clock=clock
    )
    done = topic_pass.TopicPass(faulty, "t", clock, SMALL, Throttle(clock)).run()
    assert (done["failures"], done["files merged"]) == (1, 0)
    assert (done["checkpoints"], done["files noted"]) == (1, 1)


def test_a_failed_checkpoint_does_not_stop_the_other_work(
    topic: WrittenTopic, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.store.put("topics/t/orphan.parquet", b"x")
    clock.advance(120)
    monkeypatch.setattr(checkpoint_columns, "encode_actions", lambda _: b"no checkpoint")
    done = topic.maintain()
    assert (done["failures"], done["checkpoints"]) == (1, 0)
    assert done["files noted"] > 0
    clock.advance(2 * DAY_S)
    assert topic.maintain()["files deleted"] > 0
    assert "orphan.parquet" not in topic.stored()


def test_a_damaged_log_ends_the_round(topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    def meets_damage(*_: object, **__: object) -> None:
        raise Corrupt("the entry is damaged", path="topics/t/_delta_log/00000000000000000021.json")

    monkeypatch.setattr(Rewriter, "rewrite", meets_damage)
    before = topic.fresh_log().version
    with pytest.raises(Corrupt):
        topic.maintain()
    assert topic.fresh_log().version == before
    assert not [
        entry.key for entry in topic.store.list("topics/t/_delta_log/") if "checkpoint" in entry.key
    ]


# --- pace
# --------------------------------------------------------------------------------------------------


class Noted(Throttle):
    """Records its boosts, and how long it works without a step."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, fraction=0.1)
        self.boosts: set[float] = set()

    def step(self) -> None:
        self.boosts.add(self.boost)
        super().step()


@pytest.mark.slow
def test_orphan_files_are_removed_although_merging_never_ends(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    notes: list[int] = []

    class Writing(Throttle):
        """Others write as fast as this one merges, for 200 steps."""

        def step(self) -> None:
            super().step()
            clock.advance(1)
            if len(notes) < 200:
                notes.append(len(list(topic.store.list(orphan_scans_folder("topics/t/")))))
                for _ in range(SMALL.merge_files):
                    topic.append(RowToWrite(b"new"))

    topic.store.put("topics/t/orphan.parquet", b"x")
    beside = topic.log.known
    topic_pass.TopicPass(topic.store, "t", clock, SMALL, Writing(clock, 0.1), beside=beside).run(
        checkpoint=False
    )
    assert notes[0] == 0
    assert notes[-1] > 0
    assert len(topic.files) < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [{}, {"retention_bytes": 5000}, {"cleanup_policy": "compact"}], ids=str
)
def test_a_round_ends_although_others_write_as_fast_as_it_works(
    topic: WrittenTopic, clock: ManualClock, config: dict[str, object]
) -> None:
    """Other topics want their turn. What was there when it began is done, all else is for the next
    round.
    """

    class Writing(Throttle):
        steps = 0

        def step(self) -> None:
            super().step()
            self.steps += 1
            if self.steps > 500:
                raise TooOften
            for _ in range(SMALL.merge_files):
                topic.append(RowToWrite(b"new", key=b"k"))

    topic.configure(**config)
    before = {file.path for file in topic.files}
    topic_pass.TopicPass(topic.store, "t", clock, SMALL, Writing(clock)).run()
    assert before.isdisjoint(topic.live())


@pytest.mark.slow
def test_larger_files_are_merged_while_small_ones_keep_coming(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.maintenance.file_compaction.MERGED_FILES_MAX", 8)
    topic = WrittenTopic(MemoryStore("test", clock), clock, segment_bytes=1024 * 1024)
    # That of one file is small, of eight together it is not.
    value = random.Random(0).randbytes(300)
    rewrite = Rewriter.rewrite

    def slowly(self: Rewriter, *arguments: Any, **more: Any) -> Work[tuple[str, ...] | StalePlan]:
        for _ in range(SMALL.merge_files):
            topic.append(RowToWrite(value))
        return rewrite(self, *arguments, **more)

    monkeypatch.setattr(Rewriter, "rewrite", slowly)
    work = topic_pass.TopicPass(topic.store, "t", clock, SMALL, Throttle(clock))
    merged = []
    for _ in range(8):
        for _ in range(40):
            topic.append(RowToWrite(value))
        work.run()
        merged.append(sum(file.segment.rows > 1 for file in topic.files))
    assert max(merged) < 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"cleanup_policy": "compact"}, id="cleaning"),
        pytest.param({"retention_bytes": 60_000}, id="retention"),
        pytest.param({"cleanup_policy": "compact,delete", "retention_bytes": 60_000}, id="both"),
    ],
)
def test_work_due_at_every_commit_does_not_starve_merges(
    topic: WrittenTopic, clock: ManualClock, config: dict[str, object]
) -> None:
    counts: list[int] = []

    class Writing(Throttle):
        steps = 0

        def step(self) -> None:
            super().step()
            self.steps += 1
            if len(counts) < 150 and self.steps % 6 == 0:
                topic.append(RowToWrite(b"new", key=b"%d" % (len(counts) % 5)))
                counts.append(len(topic.files))

    for number in range(40):
        topic.append(RowToWrite(b"old", key=b"%d" % number))
    topic.configure(**config)
    beside = topic.log.known
    work = topic_pass.TopicPass(topic.store, "t", clock, SMALL, Writing(clock), beside=beside)
    while len(counts) < 150:
        work.run(checkpoint=False)
    assert max(counts[75:]) < 25


@pytest.mark.parametrize(
    "again", [False, True], ids=["deleted", "and made again with fewer partitions"]
)
def test_a_topic_that_ends_while_its_keys_are_compacted_ends_that_and_nothing_else(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(work_queue, "NEW_VERSIONS", 1)
    topic = WrittenTopic(MemoryStore("test", clock), clock, partitions=3, cleanup_policy="compact")
    for number in range(12):
        topic.append(RowToWrite(b"v", key=b"%d" % number, partition=number % 3))

    class Ending(Throttle):
        steps = 0

        def step(self) -> None:
            super().step()
            self.steps += 1
            if self.steps == 12:
                topic.log.delete(clock.monotonic() + 60)
                if again:
                    create_topic(topic.log, NewTopicPlan(1), clock.monotonic() + 60, exist_ok=False)

    beside = topic.log.known
    throttle = Ending(clock, 0.1)
    done = topic_pass.TopicPass(topic.store, "t", clock, SMALL, throttle, beside=beside).run(
        checkpoint=False
    )
    assert throttle.steps > 12
    assert (done["records superseded"], done[FAILURES]) == (0, 0)
    assert done["files noted"] == 12, "what is left of it is seen to"


@pytest.mark.slow
def test_beside_a_fast_writer_the_clocks_are_compared_again_once_an_hour_is_over(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    written_at: set[int] = set()

    class Writing(Throttle):
        steps = 0

        def step(self) -> None:
            super().step()
            clock.advance(180)
            self.steps += 1
            written_at.update(entry.modified_ms for entry in topic.store.list(clock_key()))
            if self.steps < 100:
                for _ in range(SMALL.merge_files):
                    topic.append(RowToWrite(b"new"))

    beside = topic.log.known
    topic_pass.TopicPass(topic.store, "t", clock, SMALL, Writing(clock), beside=beside).run(
        checkpoint=False
    )
    assert len(written_at) > 2, "it took more than five hours, a few of them without a break"
    assert all(later - earlier >= HOUR_MS for earlier, later in pairwise(sorted(written_at)))


@pytest.mark.slow
def test_small_files_are_merged_while_a_compacted_topic_is_cleaned_again_and_again(
    topic: WrittenTopic, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "NEW_VERSIONS", 8)
    files: list[int] = []

    class Writing(Throttle):
        steps = 0

        def step(self) -> None:
            super().step()
            self.steps += 1
            if self.steps < 1500 and self.steps % 2 == 0:
                topic.append(RowToWrite(b"new", key=b"k"))
                files.append(len(topic.files))

    for _ in range(40):
        topic.append(RowToWrite(b"old", key=b"k"))
    topic.configure(cleanup_policy="compact")
    beside = topic.log.known
    done = topic_pass.TopicPass(topic.store, "t", clock, SMALL, Writing(clock), beside=beside).run(
        checkpoint=False
    )
    assert done["records superseded"] > 0
    assert max(files) < 150


def test_maintenance_beside_a_producer_speeds_up_only_while_small_files_accumulate(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.maintenance.rewrite.GENTLE_BYTES_AT_ONCE", 2500)
    topic = WrittenTopic(MemoryStore("test", clock), clock)
    settings, throttle = replace(SMALL, merge_files=4), Noted(clock)
    work = topic_pass.TopicPass(topic.store, "t", clock, settings, throttle)
    for number in range(2 * topic_pass.BACKLOG_MERGES * settings.merge_files):
        topic.append(*(RowToWrite(b"%04d" % number * 50) for _ in range(8)), codec="zstd")
    work.run()
    assert max(throttle.boosts) == 2, "twice as many as may wait"
    assert throttle.boost == 1, "when it is done"
    assert len(topic.files) > 2 * topic_pass.BACKLOG_MERGES * settings.merge_files / 2, (
        "they decode to too much"
    )
    throttle.boosts.clear()
    for _ in range(4):
        topic.append(RowToWrite(b"x"))
    assert work.run()["files merged"] == 4
    assert throttle.boosts == {1}, "though there are many files"


def test_a_large_plan_is_made_with_pauses() -> None:
    """It is made in a producer's process too, and again after each thing that is done."""
    partitions = 50
    files = [made_file(f"{n}", n, [(p, n, n + 1) for p in range(partitions)]) for n in range(5)]
    head = TopicHead("id", (5,) * partitions, (0,) * partitions, 0)
    for config in ({}, {"deltaq.retention.bytes": "1"}):
        maintained = MaintainedTopic(head, index_of(files), TopicSettings.from_properties(config))
        pauses: list[None] = []
        plan(maintained, SMALL, 0, yield_point=lambda: pauses.append(None))  # noqa: B023 - it is called before the next one
        assert len(pauses) >= partitions


def test_a_stop_request_ends_maintenance_during_a_plan(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    throttle = Throttle(clock)
    work = topic_pass.TopicPass(topic.store, "t", clock, SMALL, throttle)
    work._log.load()
    throttle.stop()
    with pytest.raises(Stopped):
        work._plan()


# --- what is newer
# --------------------------------------------------------------------------------------------------


def newer(topic: WrittenTopic, what: str) -> None:
    """An entry as only a later deltaq or Delta would write it."""
    log = DeltaLog(topic.store, topic.log.folder, topic.clock)
    log.load()
    head = topic.log.live_head.action()
    body = json.loads(head.configuration)
    known = ("domainMetadata", "deltaq")
    kinds: dict[str, list[Action]] = {
        "format": [replace(head, configuration=json.dumps({**body, "format": 2}))],
        "writer feature": [Protocol(1, 7, writer_features=(*known, "rowTracking")), head],
        "reader version": [Protocol(3, 7, writer_features=(*known, "deletionVectors")), head],
    }
    info = CommitInfo(topic.clock.unique_id(), topic.clock.time_ms(), "UPGRADE")
    try:
        log.commit(lambda state: Draft(info, kinds[what]), topic.clock.monotonic() + 60)
    except Incompatible:
        pass  # it is written, and already too new for us
    assert len(list(topic.store.list("topics/t/_delta_log/"))) == 22


@pytest.mark.fault("M9")
@pytest.mark.parametrize("what", ["format", "writer feature", "reader version"])
@pytest.mark.parametrize("known", [False, True])
def test_maintenance_by_an_older_deltaq_is_refused_and_changes_nothing(
    topic: WrittenTopic, clock: ManualClock, what: str, known: bool
) -> None:
    work = topic.maintenance()
    if known:  # as it was before the upgrade
        work._log.load()
    newer(topic, what)
    clock.advance(10 * DAY_S)
    before = {entry.key: topic.store.get(entry.key) for entry in topic.store.list("")}
    for attempt in (work.run, work.plan):
        with pytest.raises(Incompatible):
            attempt()
    assert {entry.key: topic.store.get(entry.key) for entry in topic.store.list("")} == before


# --- the store
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fault("M1")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_round_killed_at_any_write_is_harmless_and_repeated(
    clock: ManualClock, when: str
) -> None:
    deaths = 0
    fault = {"before": Fault.crash_before(), "after": Fault.crash_after()}[when]
    for crash in range(1, 100):
        topic = WrittenTopic(MemoryStore("test", clock), clock, retention_bytes=9000)
        for number in range(12):
            topic.append(RowToWrite(b"%d" % number))
        faulty = FaultyStore(topic.store, Rule("write", "*", fault, nth=crash), clock=clock)
        work = topic_pass.TopicPass(faulty, "t", clock, SMALL, Throttle(clock))
        with contextlib.suppress(Crash):
            work.run()
        found = seen_by_consumers(topic.store)
        assert [(seen[1], seen[4]) for seen in found] == [
            (n, b"%d" % n) for n in range(topic.starts[0], 12)
        ]
        topic.fresh_log()
        topic.maintain()
        assert len(topic.files) == 1
        clock.advance(HOUR_S)
        for _ in range(3):  # what was young at one look goes by the next
            topic.maintain()
            clock.advance(DAY_S)
        assert topic.stored() == topic.live()
        if not faulty.crashed:
            break
        deaths += 1
    assert deaths >= 5


def test_a_table_without_statistics_columns_gets_ours_once(clock: ManualClock) -> None:
    store = MemoryStore("test", clock)
    log = MaintenanceLog(store, "t", clock)
    log.create(1, "{}", topic_properties({}), clock.monotonic() + 60)
    lines: list[str] = []
    work = TopicPass(store, "t", clock, SMALL, Throttle(clock), lines.append)
    assert work.plan()["actions planned"] == 1
    log.catch_up()
    assert not log.names_statistics, "planning changes nothing"
    assert work.run()["tables corrected"] == 1
    assert work.run()["tables corrected"] == 0
    log.catch_up()
    assert log.metadata.configuration[STATISTICS_PROPERTY] == "_partition,_offset,_timestamp"
    assert [line.partition(": ")[2] for line in lines] == [
        "name the columns that have statistics, for other engines"
    ] * 2
    assert log.name_statistics(clock.monotonic() + 60) == StalePlan()
