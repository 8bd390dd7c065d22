"""Key compaction against a dict: of each key the newest record stays, at its offset; tombstones for
their time.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq.config import TopicSettings, topic_properties
from deltaq.maintenance import key_compaction
from deltaq.maintenance.key_compaction import KeyCleaner, KeyCleaning, plan_cleaning
from deltaq.maintenance.retention import plan_deletion
from deltaq.maintenance.rewrite import Rewriter
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.serde.source import schema_of
from deltaq.store import MemoryStore
from deltaq.testing import Crash, Effect, Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.state import DataFile
from deltaq.work import finish
from tests.depth import depth
from tests.doubles.data_files import index_of, made_file
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers

NOW = 1_700_000_000_000
HOUR_MS = 3600 * 1000
NEVER_MERGE = replace(SMALL, merge_files=1000)


# --- plans
# --------------------------------------------------------------------------------------------------


def topic(**config: object) -> TopicSettings:
    config = {"cleanup_policy": "compact", **config}
    return TopicSettings.from_properties(
        topic_properties({k.replace("_", "."): v for k, v in config.items()})
    )


def files(*kinds: int | None, size: int = 100, age_ms: int = HOUR_MS) -> list[DataFile]:
    """One file in each version; `kinds` is what their `clean` says."""
    time = NOW - age_ms
    return [
        made_file(
            f"{n}", n, [(0, n, n + 1)], size=size, times=(time, time), modified_ms=time, clean=kind
        )
        for n, kind in enumerate(kinds)
    ]


def planned(
    found: Sequence[DataFile],
    settings: TopicSettings,
    limits: MaintenanceSettings = DEFAULT_SETTINGS,
    damaged: Container[str] = (),
) -> tuple[list[str], list[str]] | None:
    """(clean, dirty) of a plan, as paths."""
    plan = plan_cleaning(index_of(found), settings, limits, NOW, damaged)
    if plan is None:
        return None
    return [f.path for unit in plan.clean for f in unit], [
        f.path for unit in plan.dirty for f in unit
    ]


def test_only_compacted_topics_are_cleaned() -> None:
    assert planned(files(None), topic(cleanup_policy="delete")) is None
    assert planned(files(None), topic(cleanup_policy="compact,delete")) == ([], ["0"])
    assert planned([], topic()) is None


@pytest.mark.parametrize(
    ("ratio", "dirty", "is_due"), [(0.5, 3, False), (0.5, 4, True), (0.0, 1, True), (1.0, 9, False)]
)
def test_cleaning_begins_at_the_dirty_ratio(ratio: float, dirty: int, is_due: bool) -> None:
    found = files(*[0] * 4, *[None] * dirty)
    expected = (["0", "1", "2", "3"], [f"{n}" for n in range(4, 4 + dirty)])
    assert planned(found, topic(min_cleanable_dirty_ratio=ratio)) == (expected if is_due else None)


@pytest.mark.parametrize(("age_ms", "is_due"), [(HOUR_MS, False), (HOUR_MS + 1, True)])
def test_old_records_are_cleaned_at_any_ratio(age_ms: int, is_due: bool) -> None:
    found = files(*[0] * 9) + [
        replace(f, path="9") for f in files(*[0] * 9, None, age_ms=age_ms)[-1:]
    ]
    settings = topic(min_cleanable_dirty_ratio=1, max_compaction_lag_ms=HOUR_MS)
    assert (planned(found, settings) is not None) is is_due


def test_young_records_and_all_behind_them_wait() -> None:
    old, young = files(None, None, None), files(None, None, age_ms=10)
    found = [
        *old[:2],
        replace(young[0], path="y", segment=replace(young[0].segment, version=2)),
        *files(*[None] * 4)[3:],
    ]
    assert planned(found, topic(min_compaction_lag_ms=60_000)) == ([], ["0", "1"])
    assert planned(young, topic(min_compaction_lag_ms=60_000)) is None


@pytest.mark.fault("C5")
def test_a_record_of_the_year_2262_is_no_younger_than_its_upload() -> None:
    found = [replace(f, max_timestamp_ms=9_223_372_036_854) for f in files(None)]
    assert planned(found, topic(min_compaction_lag_ms=60_000)) == ([], ["0"])


def test_one_cleaning_fits_the_memory_limit() -> None:
    limits = MaintenanceSettings(dirty_bytes_max=250)
    assert planned(files(*[None] * 9), topic(), limits) == ([], ["0", "1"])
    assert planned(files(None, size=1000), topic(), limits) == ([], ["0"]), "one file at least"


def test_cleaning_progresses_with_any_clean_part_and_any_step_size() -> None:
    """What counts against the ratio is all that is dirty, not just what is cleaned next."""
    limits = MaintenanceSettings(dirty_bytes_max=250)
    found = files(*[0] * 20, *[None] * 25)
    assert planned(found, topic(min_cleanable_dirty_ratio=0.5), limits) == (
        [f"{n}" for n in range(20)],
        ["20", "21"],
    )


def test_a_clean_file_behind_a_dirty_one_is_not_clean() -> None:
    """A topic that was compacted, then not, then is again."""
    assert planned(files(0, None, 0, 0), topic(min_cleanable_dirty_ratio=0)) == (
        ["0"],
        ["1", "2", "3"],
    )


@pytest.mark.parametrize(
    ("clean", "expected"), [(NOW, (["1"], [])), (NOW + 1, None), (0, None), (1, (["1"], []))]
)
def test_tombstones_are_cleaned_again_after_their_delay(
    clean: int, expected: tuple[list[str], list[str]] | None
) -> None:
    assert planned(files(0, clean, 0), topic()) == expected


def test_records_after_an_unreadable_file_stay_dirty() -> None:
    found = files(0, None, None, None)
    assert planned(found, topic(), damaged={"2"}) == (["0"], ["1"])
    assert planned(found, topic(), damaged={"1"}) is None


def test_with_a_clean_file_that_cannot_be_read_nothing_becomes_clean_and_other_tombstones_go() -> (
    None
):
    """Older values in it could not be dropped."""
    assert planned(files(0, 1, 1, None, None, None, None), topic(), damaged={"1"}) == (["2"], [])


@given(
    st.lists(st.sampled_from([None, 0, NOW - 1, NOW + 1]), max_size=8),
    st.floats(0, 1),
    st.integers(50, 500),
)
def test_a_plan_is_a_clean_prefix_and_the_dirty_files_after_it(
    kinds: list[int | None], ratio: float, bytes_max: int
) -> None:
    found = files(*kinds)
    plan = plan_cleaning(
        index_of(found),
        topic(min_cleanable_dirty_ratio=ratio),
        MaintenanceSettings(dirty_bytes_max=bytes_max),
        NOW,
    )
    if plan is None or not plan.dirty:
        return
    taken = [f for unit in (*plan.clean, *plan.dirty) for f in unit]
    assert taken == found[: len(taken)]
    assert all(f.clean is not None for unit in plan.clean for f in unit)
    assert plan.dirty[0][0].clean is None


# --- against a dict
# --------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """What was ever written, by partition."""

    log: dict[int, list[RowToWrite]] = field(default_factory=lambda: defaultdict(list))

    def append(self, rows: Sequence[RowToWrite]) -> None:
        for row in rows:
            self.log[row.partition].append(row)

    def newest(self) -> dict[tuple[int, int], tuple[bytes | None, bytes | None]]:
        """Place -> key and value of the newest record of each key, and of all records without a
        key.
        """
        found = {}
        for partition, rows in self.log.items():
            last = {row.key: offset for offset, row in enumerate(rows)}
            for offset, row in enumerate(rows):
                if row.key is None or last[row.key] == offset:
                    found[partition, offset] = (row.key, row.value)
        return found


def seen(topic: WrittenTopic) -> dict[tuple[int, int], tuple[bytes | None, bytes | None]]:
    found = seen_by_consumers(topic.store)
    places = [(partition, offset) for partition, offset, *_ in found]
    assert places == sorted(set(places))
    return {(partition, offset): (key, value) for partition, offset, _, key, value, _ in found}


def without_tombstones(
    found: dict[tuple[int, int], tuple[bytes | None, bytes | None]],
) -> dict[tuple[int, int], tuple[bytes | None, bytes | None]]:
    return {
        place: (key, value)
        for place, (key, value) in found.items()
        if value is not None or key is None
    }


KEYED = st.builds(
    RowToWrite,
    st.one_of(st.none(), st.just(b""), st.binary(min_size=1, max_size=3)),
    st.sampled_from([None, b"", b"a", b"b", b"c"]),
    st.integers(0, 1),
)


@pytest.mark.slow
@settings(max_examples=depth(12, 25))
@given(
    st.lists(
        st.tuples(st.lists(KEYED, min_size=1, max_size=5), st.booleans(), st.booleans()),
        min_size=1,
        max_size=7,
    )
)
def test_after_each_cleaning_only_the_newest_of_each_key_is_there(
    steps: list[tuple[list[RowToWrite], bool, bool]],
) -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(
        MemoryStore("test", clock),
        clock,
        2,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
        delete_retention_ms=HOUR_MS,
    )
    model = Model()
    last_append = clock.time_ms()
    for rows, clean, wait in steps:
        written.append(*rows)
        model.append(rows)
        last_append = clock.time_ms()
        if clean:
            written.maintain(SMALL if wait else NEVER_MERGE)
            found = seen(written)
            assert without_tombstones(found) == without_tombstones(model.newest())
            assert found.items() <= model.newest().items()
            if clock.time_ms() - last_append < HOUR_MS and not wait:
                recent = {
                    p: kv
                    for p, kv in model.newest().items()
                    if p in found or kv[1] is not None or kv[0] is None
                }
                assert found == recent
        if wait:
            clock.advance(HOUR_MS / 1000 + 1)
    written.maintain(NEVER_MERGE)
    assert without_tombstones(seen(written)) == without_tombstones(model.newest())
    clock.advance(HOUR_MS / 1000 + 1)
    written.maintain(NEVER_MERGE)
    assert seen(written) == without_tombstones(model.newest())
    ends = written.fresh_log().live_head.next_offsets
    assert ends == tuple(len(model.log[partition]) for partition in range(2)), (
        "offsets keep their gaps"
    )


def test_keys_beyond_the_memory_limit_are_cleaned_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To call clean what was not learned would leave older values for ever."""
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(
        MemoryStore("test", clock), clock, cleanup_policy="compact", min_cleanable_dirty_ratio=0
    )
    keys = [b"%04d" % n for n in range(10)]
    for number in range(4):
        written.append(*(RowToWrite(b"%d" % number, key) for key in keys))
    monkeypatch.setattr(key_compaction, "KEYS_BYTES_AT_ONCE", 1)
    log = MaintenanceLog(written.store, "t", clock)
    log.load()
    plan = plan_cleaning(log.index, log.settings, SMALL, clock.time_ms())
    assert plan is not None
    assert len(plan.dirty) == 4
    finish(
        KeyCleaner(written.store, log, clock, Rewriter(written.store, log, clock)).clean(
            plan, log.settings
        )
    )
    assert [file.clean for file in written.files] == [0, None, None, None]
    written.maintain(NEVER_MERGE)
    assert seen(written) == {(0, 30 + n): (key, b"3") for n, key in enumerate(keys)}


def test_no_entry_of_a_cleaning_names_very_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are: the writer beside it waits for each entry."""
    monkeypatch.setattr(key_compaction, "MERGED_FILES_MAX", 4)
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test", clock), clock, cleanup_policy="compact")
    for number in range(11):
        topic.append(RowToWrite(b"%d" % number, key=b"k" if number % 2 else b"%d" % number))
    newest = {key: value for *_, key, value, _ in seen_by_consumers(topic.store)}
    removed = []
    rewrite = MaintenanceLog.rewrite

    def counted(self: MaintenanceLog, inputs: Sequence[str], *arguments: Any) -> None:
        removed.append(len(inputs))
        rewrite(self, inputs, *arguments)

    monkeypatch.setattr(MaintenanceLog, "rewrite", counted)
    log = MaintenanceLog(topic.store, "t", clock)
    assert log.load()
    plan = plan_cleaning(log.index, log.settings, SMALL, clock.time_ms())
    assert plan is not None
    finish(
        KeyCleaner(topic.store, log, clock, Rewriter(topic.store, log, clock)).clean(
            plan, log.settings
        )
    )
    assert removed == [4, 4, 3]
    seen = [(key, value) for *_, key, value, _ in seen_by_consumers(topic.store)]
    assert sorted(seen) == sorted(newest.items())


@pytest.mark.fault("M2")
def test_a_tombstone_stays_until_its_delay_is_over_from_the_cleaning_on() -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(
        MemoryStore("test", clock), clock, cleanup_policy="compact", delete_retention_ms=HOUR_MS
    )
    written.append(RowToWrite(b"v", b"k"), RowToWrite(b"w", b"other"))
    written.append(RowToWrite(None, b"k"))
    clock.advance(
        10 * 3600
    )  # its age before the cleaning does not count: a reader may have seen the old value till now
    written.maintain()
    assert seen(written) == {(0, 1): (b"other", b"w"), (0, 2): (b"k", None)}
    clock.advance(3600 - 1)
    written.maintain()
    assert seen(written) == {(0, 1): (b"other", b"w"), (0, 2): (b"k", None)}
    clock.advance(2)
    written.maintain()
    assert seen(written) == {(0, 1): (b"other", b"w")}
    written.append(RowToWrite(b"again", b"k"))
    written.maintain()
    assert seen(written) == {(0, 1): (b"other", b"w"), (0, 3): (b"k", b"again")}


@pytest.mark.fault("M2")
def test_no_older_value_comes_to_light_when_a_tombstone_goes() -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(
        MemoryStore("test", clock),
        clock,
        cleanup_policy="compact",
        delete_retention_ms=0,
        min_cleanable_dirty_ratio=0,
    )
    for step in range(6):
        written.append(RowToWrite(b"%d" % step, b"k"), RowToWrite(b"x", b"%d" % step))
        written.append(RowToWrite(None, b"k"))
        written.maintain()
        clock.advance(1)
        written.maintain()
        assert all(key != b"k" for key, _ in seen(written).values())


@pytest.mark.fault("M2")
def test_a_record_that_comes_during_a_cleaning_stays_and_so_does_the_one_that_it_replaces() -> None:
    written = WrittenTopic(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    written.append(RowToWrite(b"1", b"k"), RowToWrite(b"1", b"j"))
    written.append(RowToWrite(b"2", b"k"))
    log = MaintenanceLog(written.store, "t", written.clock)
    log.load()
    plan = plan_cleaning(log.index, log.settings, SMALL, written.clock.time_ms())
    assert plan is not None
    written.append(RowToWrite(b"3", b"k"), RowToWrite(None, b"j"))
    finish(
        KeyCleaner(
            written.store, log, written.clock, Rewriter(written.store, log, written.clock)
        ).clean(plan, log.settings)
    )
    assert seen(written) == {
        (0, 1): (b"j", b"1"),
        (0, 2): (b"k", b"2"),
        (0, 3): (b"k", b"3"),
        (0, 4): (b"j", None),
    }
    written.maintain()
    assert seen(written) == {(0, 3): (b"k", b"3"), (0, 4): (b"j", None)}


def crashing_cleaning(crash: int) -> bool:
    """Whether the cleaning met its death at that write; whether or not, nothing is lost, and the
    next one does all.
    """
    written = WrittenTopic(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    model = Model()
    for number in range(6):
        big = b"%d" % number * 4000
        rows = [
            RowToWrite(big, b"k"),
            RowToWrite(big, b"%d" % (number % 3)),
            RowToWrite(None, b"t"),
        ]
        written.append(*rows)
        model.append(rows)
        if number == 2:
            written.maintain(NEVER_MERGE)
    rule = Rule("write", "topics/t/*", Fault.crash_before(), nth=crash)
    faulty = FaultyStore(written.store, rule, clock=written.clock)
    log = MaintenanceLog(faulty, "t", written.clock)
    log.load()
    plan = plan_cleaning(log.index, log.settings, SMALL, written.clock.time_ms())
    assert plan is not None
    with contextlib.suppress(Crash):
        finish(
            KeyCleaner(faulty, log, written.clock, Rewriter(faulty, log, written.clock)).clean(
                plan, log.settings
            )
        )
    assert model.newest().items() <= seen(written).items()
    written.maintain(NEVER_MERGE)
    assert seen(written) == model.newest()
    return faulty.effects[Effect.CRASHED_BEFORE] > 0


@pytest.mark.slow
@pytest.mark.fault("M1", "M2")
def test_a_cleaning_that_dies_at_any_write_has_lost_nothing_and_is_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It rewrites several files, one after the other."""
    monkeypatch.setattr(key_compaction, "MERGED_FILES_MAX", 2)
    crash = 1
    while crashing_cleaning(crash):
        crash += 1
    assert crash > 6


def test_retention_of_a_compacted_topic_keeps_the_rest_clean() -> None:
    clock = ManualClock(auto_advance=True)
    written = WrittenTopic(
        MemoryStore("test", clock),
        clock,
        cleanup_policy="compact,delete",
        retention_ms=HOUR_MS,
        min_cleanable_dirty_ratio=0,
    )
    written.append(RowToWrite(b"old", b"a"), RowToWrite(b"old", b"b"))
    clock.advance(3000)
    written.append(RowToWrite(b"new", b"b"), RowToWrite(b"new", b"c"))
    written.maintain(NEVER_MERGE)
    assert seen(written) == {(0, 0): (b"a", b"old"), (0, 2): (b"b", b"new"), (0, 3): (b"c", b"new")}
    clock.advance(3000)
    written.maintain(NEVER_MERGE)
    assert written.starts[0] in (0, 2)
    clock.advance(3000)
    written.append(RowToWrite(b"newest", b"c"))
    written.maintain(NEVER_MERGE)
    assert seen(written) == {(0, 4): (b"c", b"newest")}
    assert written.starts == (4,)


def test_a_topic_with_keyless_records_from_before_keeps_them() -> None:
    written = WrittenTopic()
    written.append(
        RowToWrite(b"1"),
        RowToWrite(b"2", b"k"),
        RowToWrite(None),
        RowToWrite(b"3", b"k"),
        RowToWrite(b"1"),
    )
    written.configure(cleanup_policy="compact")
    written.maintain()
    assert seen(written) == {
        (0, 0): (None, b"1"),
        (0, 2): (None, None),
        (0, 3): (b"k", b"3"),
        (0, 4): (None, b"1"),
    }


def test_a_key_is_of_its_partition() -> None:
    written = WrittenTopic(partitions=2, cleanup_policy="compact")
    written.append(RowToWrite(b"0", b"k"), RowToWrite(b"1", b"k", partition=1))
    written.maintain()
    assert len(seen(written)) == 2


def test_in_a_typed_topic_a_tombstone_has_no_column() -> None:
    schema = schema_of(
        pa.schema(
            [pa.field("a", pa.int64(), nullable=True), pa.field("b", pa.string(), nullable=True)]
        )
    )
    written = WrittenTopic(schema=schema, cleanup_policy="compact", delete_retention_ms=0)
    written.append(RowToWrite({"a": 1, "b": "x"}, b"k"), RowToWrite({"a": None, "b": "y"}, b"j"))
    written.append(RowToWrite(None, b"k"))
    written.maintain()
    written.clock.sleep(1)
    written.maintain()
    left: dict[tuple[int, int], Any] = dict(seen(written))
    assert left == {(0, 1): (b"j", {"a": None, "b": "y"})}


def test_an_entry_with_both_kinds_of_times_is_cleaned_file_by_file() -> None:
    """The topic's rule has changed between two uploads of one commit."""
    written = WrittenTopic(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    timed = written.upload(
        RowToWrite(b"1", b"k", timestamp_ms=5), RowToWrite(b"1", b"j", timestamp_ms=6)
    )
    written.configure(
        message_timestamp_type="LogAppendTime",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
    )
    untimed = written.upload(RowToWrite(b"2", b"k"))
    written.configure(
        message_timestamp_type="CreateTime", cleanup_policy="compact", min_cleanable_dirty_ratio=0
    )
    again = written.upload(RowToWrite(b"3", b"i", timestamp_ms=7))
    written.commit(timed, untimed, again)
    before = {found[:2]: found for found in seen_by_consumers(written.store)}
    assert [found[2][0] for found in before.values()] == [1, 1, 2, 1]
    for _ in range(2):
        written.maintain()
        assert seen_by_consumers(written.store) == [
            found for place, found in before.items() if place != (0, 0)
        ]
        written.append(RowToWrite(b"x", b"x"))
        before |= {found[:2]: found for found in seen_by_consumers(written.store)[-1:]}
        before = {
            place: found
            for place, found in before.items()
            if found[3] != b"x" or place == max(before)
        }


def test_an_entry_with_both_time_types_is_cleaned_after_a_partial_rewrite() -> None:
    """That one comes last of them then, as far as versions tell, though its offsets come first."""
    config: dict[str, Any] = {"cleanup_policy": "compact,delete", "retention_ms": -1}
    written = WrittenTopic(partitions=2, **config)
    written.append(RowToWrite(b"old", b"k", partition=1))
    uploads: list[Any] = []
    for kind in ["LogAppendTime", "CreateTime"] * 2:
        written.configure(**config, message_timestamp_type=kind)
        keys = [b"%d-%d" % (len(uploads), number) for number in range(3)]
        uploads.append(
            written.upload(
                *(RowToWrite(b"v", key, partition) for partition in range(2) for key in keys)
            )
        )
    written.commit(*uploads)
    written.append(RowToWrite(b"new", b"k", partition=1))
    before = seen_by_consumers(written.store)
    log = written.fresh_log()
    log.retain(lambda head: plan_deletion(log.index, head, {0: 2}), written.clock.monotonic() + 60)
    done = written.maintain(NEVER_MERGE)
    assert (done["files merged"], done["records superseded"]) == (1, 1), (
        "the first file of the entry was trimmed"
    )
    assert [found[:2] for found in seen_by_consumers(written.store)] == [
        found[:2] for found in before if found[:2] not in [(0, 0), (0, 1), (1, 0)]
    ]


def test_a_round_ends_when_nothing_is_left_to_clean() -> None:
    written = WrittenTopic(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    written.append(RowToWrite(b"1", b"k"))
    written.maintain()
    version = written.fresh_log().version
    assert written.maintain()["records superseded"] == 0
    assert written.fresh_log().version == version
    assert isinstance(plan_cleaning(index_of(files(None)), topic(), SMALL, NOW), KeyCleaning)
