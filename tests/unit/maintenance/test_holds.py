"""Maintenance of a topic with holds: what stood before a cut stays until the hold is released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import AdminClient, TopicPartition
from deltaq.config import TopicSettings, topic_properties
from deltaq.maintenance.key_compaction import plan_cleaning
from deltaq.maintenance.plan import Kind, MaintainedTopic, plan
from deltaq.maintenance.retention import plan_deletion, plan_retention
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.maintenance.throttle import Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.names import clock_key, hold_key, holds_folder
from deltaq.store import MemoryStore
from deltaq.testing import FaultyStore, ManualClock
from deltaq.topics.holds import HOLD_MAX_MS, HeldOffsets, Hold, put_hold, remove_hold
from deltaq.topics.state import DataFile, TopicHead
from tests.depth import depth
from tests.doubles.data_files import index_of, made_file
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers

HOLDS = holds_folder("topics/t/")
NOW = 1_700_000_000_000
HOUR_MS = 3600 * 1000
DAY_S = 24 * 3600


def settings(**config: object) -> TopicSettings:
    return TopicSettings.from_properties(
        topic_properties({name.replace("_", "."): value for name, value in config.items()})
    )


COMPACTED = settings(cleanup_policy="compact", min_cleanable_dirty_ratio=0)


# --- plans of key compaction
# -------------------------------------------------------------------------------------------------


def files(*kinds: int | None) -> list[DataFile]:
    """One file of ten records in each version; `kinds` is what their `clean` says."""
    return [
        made_file(f"{n}", n, [(0, 10 * n, 10 * n + 10)], clean=kind) for n, kind in enumerate(kinds)
    ]


def cleaned(
    found: Sequence[DataFile], *ends: int, topic: TopicSettings = COMPACTED
) -> tuple[list[str], list[str]] | None:
    """(clean, dirty) of a plan with these ends held, as paths."""
    planned = plan_cleaning(index_of(found), topic, DEFAULT_SETTINGS, NOW, held_ends=ends)
    if planned is None:
        return None
    assert planned.held_ends == ends
    return [f.path for unit in planned.clean for f in unit], [
        f.path for unit in planned.dirty for f in unit
    ]


@pytest.mark.parametrize(
    ("end", "dirty"),
    [(0, None), (9, None), (10, ["0"]), (19, ["0"]), (20, ["0", "1"]), (99, ["0", "1", "2"])],
)
def test_only_files_below_a_held_end_become_clean(end: int, dirty: list[str] | None) -> None:
    """A file with records on both sides of the cut is on neither: compacting it would take a record
    before the cut because of one behind it.
    """
    assert cleaned(files(None, None, None), end) == (None if dirty is None else ([], dirty))


def test_old_records_are_held_at_any_lag() -> None:
    topic = settings(cleanup_policy="compact", max_compaction_lag_ms=1)
    assert cleaned(files(None, None), 0, topic=topic) is None


def test_files_behind_a_held_one_wait_whatever_their_partition() -> None:
    """The order of the log is kept, in which older values lie before newer ones."""
    found = [
        made_file("0", 0, [(0, 0, 5), (1, 0, 5)]),
        made_file("1", 1, [(1, 5, 9)]),
        made_file("2", 2, [(0, 5, 9)]),
    ]
    assert cleaned(found, 9, 5) == ([], ["0"])
    assert cleaned(found, 9, 9) == ([], ["0", "1", "2"])
    assert cleaned(found, 4, 9) is None


def test_a_partition_that_the_hold_does_not_know_is_held_as_a_whole() -> None:
    found = [made_file("0", 0, [(0, 0, 5)]), made_file("1", 1, [(0, 5, 6), (1, 0, 5)])]
    assert cleaned(found, 9) == ([], ["0"])
    assert cleaned(found, 9, 5) == ([], ["0", "1"])


@pytest.mark.parametrize(
    ("end", "expired"), [(30, ["0", "1", "2"]), (20, ["0", "1"]), (19, ["0"]), (9, None)]
)
def test_an_expired_tombstone_goes_only_below_a_held_end(
    end: int, expired: list[str] | None
) -> None:
    """A reader that replays from the cut on needs those behind it."""
    assert cleaned(files(1, 1, 1), end) == (None if expired is None else (expired, []))


# --- plans of retention
# -------------------------------------------------------------------------------------------------


def test_retention_stops_at_a_held_start() -> None:
    found = [made_file(f"{n}", n, [(0, 10 * n, 10 * n + 10), (1, n, n + 1)]) for n in range(3)]
    head = TopicHead("id", (30, 3), (0, 0), 0)

    def kept(*starts: int, **config: object) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        found_plan = plan_retention(
            index_of(found), head, settings(**config), NOW, held_starts=starts
        )
        return None if found_plan is None else (found_plan.start_offsets, found_plan.paths)

    for config in ({"retention_ms": HOUR_MS}, {"retention_bytes": 0}):
        assert kept(30, 3, **config) == ((30, 3), ("0", "1", "2"))
        assert kept(20, 2, **config) == ((20, 2), ("0", "1"))
        assert kept(19, 2, **config) == ((10, 1), ("0",))
        assert kept(0, 0, **config) is None
        assert kept(0, 3, **config) is None, "no file would go, and each be rewritten"
        assert kept(30, **config) == ((30, 0), ()), "a partition that the hold does not know"


def test_an_administrator_deletes_records_that_are_held() -> None:
    found = [made_file("0", 0, [(0, 0, 10)])]
    trimmed = plan_deletion(index_of(found), TopicHead("id", (10,), (0,), 0), {0: 10})
    assert trimmed.paths == ("0",)


def test_small_files_are_merged_whatever_is_held() -> None:
    found = files(*[None] * 40)
    topic = settings(cleanup_policy="compact,delete", retention_ms=HOUR_MS)
    maintained = MaintainedTopic(TopicHead("id", (400,), (0,), 0), index_of(found), topic)
    assert list(plan(maintained, DEFAULT_SETTINGS, NOW)) == [
        Kind.RETENTION,
        Kind.CLEANING,
        Kind.MERGE,
    ]
    held = replace(maintained, held=HeldOffsets((0,), (0,)))
    assert list(plan(held, DEFAULT_SETTINGS, NOW)) == [Kind.MERGE]


# --- rounds
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def topic(clock: ManualClock) -> WrittenTopic:
    return WrittenTopic(
        MemoryStore("test", clock),
        clock,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
        delete_retention_ms=HOUR_MS,
    )


def hold(
    topic: WrittenTopic, *ends: int, starts: tuple[int, ...] | None = None, holder: str = "views"
) -> Hold:
    topic.log.catch_up()
    topic_id = topic.log.live_head.topic_id
    written = Hold(holder, topic_id, ends, starts, topic.clock.time_ms())
    put_hold(topic.store, "t", written)
    return written


def seen(topic: WrittenTopic) -> list[tuple[int, bytes | None]]:
    """Offset and value of each record."""
    return [(offset, value) for _, offset, _, _, value, _ in seen_by_consumers(topic.store)]


def lines_of(topic: WrittenTopic, *, dry: bool = False) -> list[str]:
    """What a round of a new maintenance instance reports."""
    lines: list[str] = []
    work = TopicPass(topic.store, "t", topic.clock, SMALL, Throttle(topic.clock), lines.append)
    work.plan() if dry else work.run()
    return lines


def test_a_record_before_the_cut_stays_until_the_hold_is_released(topic: WrittenTopic) -> None:
    topic.append(RowToWrite(b"1", b"a"), RowToWrite(b"1", b"b"))
    topic.append(RowToWrite(b"2", b"a"))
    hold(topic, 3)
    topic.append(RowToWrite(b"3", b"a"))
    topic.append(RowToWrite(None, b"b"))
    assert topic.maintain()["records superseded"] == 1
    assert seen(topic) == [(1, b"1"), (2, b"2"), (3, b"3"), (4, None)]
    assert topic.maintain()["records superseded"] == 0
    remove_hold(topic.store, "t", "views")
    assert topic.maintain()["records superseded"] == 2
    assert seen(topic) == [(3, b"3"), (4, None)]


def test_of_two_holds_the_lower_end_counts(topic: WrittenTopic) -> None:
    for value in (b"1", b"2", b"3", b"4"):
        topic.append(RowToWrite(value, b"k"))
    hold(topic, 2)
    hold(topic, 3, holder="other")
    topic.maintain()
    assert seen(topic) == [(1, b"2"), (2, b"3"), (3, b"4")]
    remove_hold(topic.store, "t", "views")
    topic.maintain()
    assert seen(topic) == [(2, b"3"), (3, b"4")]


def test_files_are_merged_across_the_cut_and_lose_no_record(topic: WrittenTopic) -> None:
    for number in range(8):
        topic.append(RowToWrite(b"%d" % number, b"k"))
    hold(topic, 3)
    done = topic.maintain()
    assert (done["files merged"] > 0, done["records superseded"]) == (True, 2)
    assert seen(topic) == [(n, b"%d" % n) for n in range(2, 8)]
    hold(topic, 8)
    topic.maintain()
    assert seen(topic) == [(7, b"7")]


def test_a_tombstone_behind_the_cut_outlives_its_delay(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    topic.append(RowToWrite(b"1", b"a"), RowToWrite(b"1", b"b"))
    topic.append(RowToWrite(None, b"a"))
    topic.maintain()
    assert seen(topic) == [(1, b"1"), (2, None)]
    hold(topic, 2)
    clock.advance(2 * HOUR_MS / 1000)
    topic.maintain()
    assert seen(topic) == [(1, b"1"), (2, None)]
    hold(topic, 3)
    topic.maintain()
    assert seen(topic) == [(1, b"1")], "below the cut no state needs it"


def test_a_tombstone_behind_the_cut_stays_when_its_file_is_rewritten(clock: ManualClock) -> None:
    topic = WrittenTopic(
        MemoryStore("test", clock),
        clock,
        2,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
        delete_retention_ms=HOUR_MS,
    )
    topic.append(RowToWrite(None, b"gone"), RowToWrite(b"1", b"k", 1))
    topic.maintain()
    clock.advance(2 * HOUR_MS / 1000)
    topic.append(RowToWrite(b"2", b"k", 1))
    hold(topic, 0, 2)
    assert topic.maintain()["records superseded"] == 1
    assert seen(topic) == [(0, None), (1, b"2")]
    hold(topic, 1, 2)
    topic.maintain()
    assert seen(topic) == [(1, b"2")]


def test_new_partitions_are_held_until_the_hold_knows_them(clock: ManualClock) -> None:
    topic = WrittenTopic(
        MemoryStore("test", clock), clock, 2, cleanup_policy="compact", min_cleanable_dirty_ratio=0
    )
    for partition in (0, 1):
        topic.append(RowToWrite(b"1", b"k", partition), RowToWrite(b"2", b"k", partition))
    hold(topic, 2)
    topic.maintain()
    assert seen(topic) == [(1, b"2"), (0, b"1"), (1, b"2")]
    hold(topic, 2, 2)
    topic.maintain()
    assert seen(topic) == [(1, b"2"), (1, b"2")]


def test_retention_keeps_what_is_held_and_an_administrator_does_not(clock: ManualClock) -> None:
    store = MemoryStore("test", clock)
    topic = WrittenTopic(store, clock, retention_ms=HOUR_MS)
    for number in range(4):
        topic.append(RowToWrite(b"%d" % number))
    hold(topic, 4, starts=(2,))
    hold(topic, 4, holder="other")
    clock.advance(2 * HOUR_MS / 1000)
    topic.maintain()
    assert (topic.starts, seen(topic)) == ((2,), [(2, b"2"), (3, b"3")])
    conf = {"bootstrap.servers": "memory://test"}
    with AdminClient(conf, store=store, clock=clock) as admin:
        (deleted,) = admin.delete_records([TopicPartition("t", 0, 3)]).values()
        assert deleted.result().low_watermark == 3
    remove_hold(store, "t", "views")
    topic.maintain()
    assert seen(topic) == []


KEYED = st.builds(
    RowToWrite,
    st.sampled_from([None, None, b"1", b"2"]),
    st.sampled_from([b"a", b"b"]),
    st.integers(0, 1),
)

Records = dict[tuple[int, int], tuple[bytes | None, bytes | None]]
"""Key and value by partition and offset."""


def state_at(records: Records, ends: Sequence[int]) -> Records:
    """The newest value of each key below these offsets, where it was written."""
    newest = {
        (partition, key): (partition, offset)
        for (partition, offset), (key, _) in sorted(records.items())
        if offset < ends[partition]
    }
    return {place: records[place] for place in newest.values() if records[place][1] is not None}


@dataclass(frozen=True)
class Step:
    """Records that are appended after a hold was released or put, and the round after that, if
    any. `whole`: the hold keeps all that there is, instead of the state as of the end.
    """

    rows: list[RowToWrite]
    released: str | None
    holder: str | None
    whole: bool
    wait: bool
    maintain: bool


ROWS = st.lists(KEYED, min_size=1, max_size=3)
HOLDERS = st.sampled_from(["views", "other", None])
STEPS = st.builds(Step, ROWS, HOLDERS, HOLDERS, st.booleans(), st.booleans(), st.booleans())

# Files are merged across the cut of `views`; tombstones are clean when `other` holds them.
SCHEDULE = (
    (None, "other", True, False, False),
    (None, None, False, False, False),
    (None, "views", False, False, False),
    (None, None, False, False, True),
    ("other", None, False, False, True),
    ("views", None, False, False, True),
    (None, "other", True, True, True),
    (None, "views", False, True, True),
    ("other", None, False, True, True),
    ("views", None, False, True, True),
)
SCHEDULED = st.tuples(*(st.builds(Step, ROWS, *map(st.just, about)) for about in SCHEDULE))


@pytest.mark.slow
@hypothesis.settings(max_examples=depth(12, 100))
@given(st.one_of(SCHEDULED, st.lists(STEPS, max_size=10)))
def test_each_held_state_and_all_later_records_can_be_read(steps: Sequence[Step]) -> None:
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(
        MemoryStore("test", clock),
        clock,
        2,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
        delete_retention_ms=HOUR_MS,
    )
    written: Records = {}
    ends = [0, 0]
    kept: dict[str, tuple[list[int], Records]] = {}  # of each hold: its cut, and what must stay

    def found() -> Records:
        return {
            (partition, offset): (key, value)
            for partition, offset, _, key, value, _ in seen_by_consumers(topic.store)
        }

    for step in steps:
        if step.released in kept:
            del kept[step.released]
            remove_hold(topic.store, "t", step.released)
        if step.holder is not None:
            hold(topic, *([0, 0] if step.whole else ends), holder=step.holder)
            kept[step.holder] = [*ends], found() if step.whole else {}
        topic.append(*step.rows)
        for row in step.rows:
            place = row.partition, ends[row.partition]
            written[place] = row.key, row.value
            ends[row.partition] += 1
            for _, records in kept.values():
                records[place] = written[place]
        if step.wait:
            clock.advance(2 * HOUR_MS / 1000)
        if step.maintain:
            topic.maintain(merge_files=2)
        now = found()
        assert state_at(now, ends) == state_at(written, ends)
        for cut, records in kept.values():
            assert state_at(now, cut) == state_at(written, cut)
            assert records.items() <= now.items()


def test_a_hold_that_is_written_after_the_holds_were_read_misses_nothing(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cut lies at or after the position of the plans, and later records are not compacted in
    that round.
    """
    for value in (b"1", b"2", b"3"):
        topic.append(RowToWrite(value, b"k"))
    of_two_files = 5 * topic.files[0].segment.size // 2
    work = topic.maintenance(merge_files=1000, dirty_bytes_max=of_two_files)
    read_holds = work._read_holds

    def read_and_hold(*about: object) -> object:
        found = read_holds(*about)  # type: ignore[arg-type]
        hold(topic, 3)
        for value in (b"4", b"5"):
            topic.append(RowToWrite(value, b"k"))
        return found

    monkeypatch.setattr(work, "_read_holds", read_and_hold)
    work.run()
    assert seen(topic) == [(2, b"3"), (3, b"4"), (4, b"5")]


# --- the end of a hold
# -------------------------------------------------------------------------------------------------


def test_a_hold_that_is_not_renewed_is_removed(topic: WrittenTopic, clock: ManualClock) -> None:
    for value in (b"1", b"2"):
        topic.append(RowToWrite(value, b"k"))
    hold(topic, 1)
    clock.advance(HOLD_MAX_MS / 1000 - DAY_S)
    hold(topic, 1)
    clock.advance(2 * DAY_S)
    topic.maintain()
    assert seen(topic) == [(0, b"1"), (1, b"2")]
    clock.advance(HOLD_MAX_MS / 1000 - DAY_S)
    expected = "t: remove the hold of 'views': it was not renewed for 7 days"
    assert expected in lines_of(topic, dry=True)
    assert expected in lines_of(topic)
    assert seen(topic) == [(1, b"2")]
    assert list(topic.store.list(HOLDS)) == []


def test_a_clock_that_is_wrong_voids_no_hold(clock: ManualClock) -> None:
    topic = WrittenTopic(
        MemoryStore("test", clock), clock, cleanup_policy="compact", min_cleanable_dirty_ratio=0
    )
    hold(topic, 0)
    ahead = ManualClock(auto_advance=True)
    ahead.advance(30 * DAY_S)
    work = TopicPass(topic.store, "t", ahead, SMALL, Throttle(ahead))
    work.run()
    assert [entry.key for entry in topic.store.list(HOLDS)] == [hold_key("t", "views")]
    assert list(topic.store.list(clock_key()))


def test_a_malformed_hold_keeps_nothing_and_is_removed_when_it_is_old(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    topic.store.put(hold_key("t", "views"), b"{")
    for value in (b"1", b"2"):
        topic.append(RowToWrite(value, b"k"))
    topic.maintain()
    assert seen(topic) == [(1, b"2")]
    assert len(list(topic.store.list(HOLDS))) == 1
    clock.advance(HOLD_MAX_MS / 1000 + 1)
    topic.maintain()
    assert list(topic.store.list(HOLDS)) == []


def test_holds_on_an_earlier_topic_of_the_name_are_removed(topic: WrittenTopic) -> None:
    outlived = replace(hold(topic, 0), topic_id="earlier", holder="other")
    put_hold(topic.store, "t", outlived)
    for value in (b"1", b"2"):
        topic.append(RowToWrite(value, b"k"))
    assert "t: remove the hold of 'other': it is of a topic that was deleted" in lines_of(topic)
    assert seen(topic) == [(0, b"1"), (1, b"2")]
    assert [entry.key for entry in topic.store.list(HOLDS)] == [hold_key("t", "views")]


def test_a_deleted_topic_loses_its_holds(topic: WrittenTopic) -> None:
    hold(topic, 0)
    topic.log.delete(topic.clock.monotonic() + 60)
    assert topic.maintain()["holds removed"] == 1
    assert list(topic.store.list(HOLDS)) == []


# --- cost and reports
# -------------------------------------------------------------------------------------------------


def test_a_topic_without_holds_costs_one_listing_in_a_round_that_removes_records(
    clock: ManualClock,
) -> None:
    store = FaultyStore(MemoryStore("test", clock), clock=clock, trace=True)
    topic = WrittenTopic(store, clock, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    listed: list[int] = []
    for count in range(3):
        for number in range(count):
            topic.append(RowToWrite(b"%d" % number, b"k"))
        before = len(store.trace)
        topic.maintain()
        keys = [operation.key for operation in store.trace[before:]]
        listed.append(keys.count(HOLDS))
    assert listed == [0, 1, 1]


def test_a_dry_run_names_the_holders(topic: WrittenTopic) -> None:
    for value in (b"1", b"2"):
        topic.append(RowToWrite(value, b"k"))
    hold(topic, 1)
    line = "t: records are kept for 'views', which holds the topic"
    assert line in lines_of(topic, dry=True)
    remove_hold(topic.store, "t", "views")
    assert line not in lines_of(topic, dry=True)
