"""A machine with a wrong clock removes nothing because of its age, says so, and does everything
else.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from deltaq.errors import Unavailable
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.maintenance.clock_check import (
    CLOCK_TOLERANCE_S,
    COMPARED_EVERY_S,
    NOTHING_EXPIRES_MS,
    RECOVERY_S,
    clock_fault,
    compare_clocks,
    expiry_ms,
)
from deltaq.maintenance.log_maintenance import BackgroundLogMaintenance
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import Maintenance
from deltaq.names import clock_key, group_folder, member_key
from deltaq.store import MemoryStore, Store
from deltaq.store.probe import PROBE_FOLDER
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.groups import commit, join
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers

DAY_S = 24 * 3600
YEAR_S = 365 * DAY_S
MONTH_MS = 30 * DAY_S * 1000


class SkewedClock(ManualClock):
    """A clock whose time passes with another one's, and which is `ahead_s` ahead of it."""

    def __init__(self, right: ManualClock, ahead_s: float) -> None:
        super().__init__(auto_advance=True)
        self.right = right
        self.ahead_s = ahead_s

    def time_ms(self) -> int:
        return self.right.time_ms() + round(self.ahead_s * 1000)

    def monotonic(self) -> float:
        return self.right.monotonic()

    def uptime(self) -> float:
        return self.right.uptime()

    def advance(self, seconds: float) -> None:
        self.right.advance(seconds)


@pytest.fixture
def right() -> ManualClock:
    """The clock of the store, and of all other machines."""
    return ManualClock(auto_advance=True)


@pytest.fixture
def store(right: ManualClock) -> MemoryStore:
    return MemoryStore("test", right)


def looks(store: FaultyStore) -> int:
    """How often the store's clock was looked at."""
    return sum(
        operation.operation == "put" and operation.key == clock_key() for operation in store.trace
    )


# --- the comparison
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [0.0, CLOCK_TOLERANCE_S - 1, -CLOCK_TOLERANCE_S + 1])
def test_a_nearly_right_clock_is_accepted(store, right, ahead_s):
    clock = SkewedClock(right, ahead_s)
    compare_clocks(store, clock)
    assert expiry_ms(store, clock) == clock.time_ms()
    assert clock_fault(store, clock) is None


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [
        (CLOCK_TOLERANCE_S + 1, "301 s ahead of"),
        (8.0 * DAY_S, "691,200 s ahead of"),
        (-4000.0, "4,000 s behind"),
    ],
)
def test_a_wrong_clock_is_rejected_and_the_remedy_logged_once(store, right, ahead_s, words, caplog):
    clock = SkewedClock(right, ahead_s)
    for _ in range(5):
        compare_clocks(store, clock)
        assert expiry_ms(store, clock) == NOTHING_EXPIRES_MS
        assert words in (clock_fault(store, clock) or "")
        right.advance(RECOVERY_S)
    assert [record.levelno for record in caplog.records if record.name == "deltaq.maintenance"] == [
        logging.WARNING
    ]
    assert words in caplog.text
    assert "set it right" in caplog.text


def test_a_plan_uses_the_machines_clock_until_the_first_check(store, right):
    clock = SkewedClock(right, YEAR_S)
    assert expiry_ms(store, clock) == clock.time_ms()
    assert clock_fault(store, clock) is None
    assert list(store.list("")) == []


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_clock_set_wrong_between_two_checks_is_noticed_at_once(store, right, jump_s):
    clock = SkewedClock(right, 0)
    compare_clocks(store, clock)
    right.advance(600)
    clock.ahead_s = jump_s
    assert expiry_ms(store, clock) == NOTHING_EXPIRES_MS
    clock.ahead_s = 0
    assert expiry_ms(store, clock) == clock.time_ms()


def test_a_corrected_clock_is_accepted_at_once(store, right):
    clock = SkewedClock(right, DAY_S)
    compare_clocks(store, clock)
    assert expiry_ms(store, clock) == NOTHING_EXPIRES_MS
    clock.ahead_s = 0
    assert expiry_ms(store, clock) == clock.time_ms()


def test_a_right_clock_is_accepted_a_minute_after_the_stores_was_corrected(store, right):
    clock = SkewedClock(right, DAY_S)
    compare_clocks(store, clock)
    right.set_wall_clock(right.time_ms() + DAY_S * 1000)
    clock.ahead_s = 0
    right.advance(RECOVERY_S)
    compare_clocks(store, clock)
    assert expiry_ms(store, clock) == clock.time_ms()


def test_a_machine_that_slept_for_long_is_not_taken_for_one_with_a_wrong_clock(store, right):
    clock = SkewedClock(right, 0)
    compare_clocks(store, clock)
    right.suspend(40 * DAY_S)
    assert expiry_ms(store, clock) == clock.time_ms()
    compare_clocks(store, clock)
    assert clock_fault(store, clock) is None


def test_a_store_that_takes_long_to_answer_is_not_taken_for_a_wrong_clock(right):
    class Slow(MemoryStore):
        def put(self, *arguments, **named):
            right.advance(3600)
            super().put(*arguments, **named)
            right.advance(3600)

    store = Slow("slow", right)
    compare_clocks(store, right)
    assert clock_fault(store, right) is None
    behind = SkewedClock(right, -3 * 3600)
    compare_clocks(store, behind)
    assert "behind" in (clock_fault(store, behind) or "")


@pytest.mark.parametrize("operation", ["put", "list"])
def test_a_store_without_a_time_is_asked_again(store, right, operation):
    faulty = FaultyStore(
        store, Rule(operation, clock_key(), Fault.error_before(), times=1), clock=right
    )
    with pytest.raises(Unavailable):
        compare_clocks(faulty, right)
    compare_clocks(faulty, right)
    assert expiry_ms(faulty, right) == right.time_ms()


# --- what is removed
# -------------------------------------------------------------------------------------------------


ORPHAN, PROBE = "topics/t/orphan.parquet", PROBE_FOLDER + "under-way"


@pytest.fixture
def topic(store: MemoryStore, right: ManualClock) -> WrittenTopic:
    """A topic, a group and leftovers in a root of which nothing is older than an hour."""
    topic = WrittenTopic(store, right, retention_ms=MONTH_MS)
    for number in range(10):
        topic.append(RowToWrite(b"%d" % number))
    log = GroupLog(store, "g", right)
    store.put(member_key("g", "dead"), b"1")
    join(log, "dead")
    for number in range(30):
        commit(log, "dead", CommittedOffset("t", topic.log.live_head.topic_id, 0, number))
    for key in (ORPHAN, PROBE):
        store.put(key, b"x")
    right.advance(3600)
    return topic


def committed(store: Store, right: ManualClock, topic: WrittenTopic) -> int | None:
    (found,) = GroupLog(store, "g", right).committed([("t", topic.log.live_head.topic_id, 0)])
    return None if found is None else found.offset


def keys(store: Store) -> set[str]:
    return {entry.key for entry in store.list("")}


def several_rounds(maintenance: Maintenance, right: ManualClock) -> list[int]:
    """So many that whatever has to be seen twice is; the failures of each."""
    failures = []
    for _ in range(3):
        failures.append(maintenance.round()[FAILURES])
        maintenance.finish()
        right.advance(SMALL.clean_up_grace_s + 60)
    return failures


@pytest.mark.fault("C1")
def test_a_machine_a_year_ahead_removes_nothing_because_of_its_age_and_does_the_rest(
    topic, store, right
):
    clock = SkewedClock(right, YEAR_S)
    lines: list[str] = []
    before, records = keys(store), seen_by_consumers(store)
    maintenance = Maintenance(store, clock, SMALL, notify=lines.append)
    assert several_rounds(maintenance, right) == [1, 1, 1]
    assert sum("the clock of this machine is 31,536,000 s ahead of" in line for line in lines) == 3
    assert before <= keys(store)
    assert seen_by_consumers(store) == records
    assert committed(store, right, topic) == 29
    assert any("merge 10 files" in line for line in lines)
    assert "topics/t/_delta_log/_last_checkpoint" in keys(store)
    topic.configure(retention_bytes=0)
    maintenance.round()
    assert seen_by_consumers(store) == [], "retention by bytes asks no clock"
    # That all of it goes when a year is really over shows that there was something to spare.
    clock.ahead_s = 0
    right.advance(YEAR_S)
    assert several_rounds(maintenance, right) == [0, 0, 0]
    right.advance(2 * DAY_S)
    assert several_rounds(maintenance, right) == [0, 0, 0]
    assert committed(store, right, topic) is None
    assert not {
        ORPHAN,
        PROBE,
        member_key("g", "dead"),
        "topics/t/_delta_log/00000000000000000000.json",
    } & keys(store)
    assert "groups/g/_delta_log/00000000000000000000.json" not in keys(store)


@pytest.mark.fault("C1")
def test_a_deleted_topic_keeps_its_files_and_its_log_from_a_machine_a_year_ahead(
    topic, store, right
):
    topic.log.delete(float("inf"))
    before = {key for key in keys(store) if key.startswith("topics/")}
    clock = SkewedClock(right, YEAR_S)
    several_rounds(Maintenance(store, clock, SMALL), right)
    assert before <= keys(store)
    clock.ahead_s = 0
    for _ in range(2):
        right.advance(2 * DAY_S)
        several_rounds(Maintenance(store, clock, SMALL), right)
    assert not topic.stored()


@pytest.mark.fault("C1")
@pytest.mark.parametrize("ahead_s", [YEAR_S, -YEAR_S])
def test_removal_by_a_producers_maintenance_requires_a_right_clock(store, right, ahead_s):
    topic = WrittenTopic(store, right, retention_ms=MONTH_MS)
    topic.append(RowToWrite(b"0"))
    topic.upload(RowToWrite(b"never committed"))
    right.advance(3600)
    clock = SkewedClock(right, ahead_s)
    topic.clock = clock
    work = topic.maintenance()
    assert work.run().total() == 0, (
        "nor is a file noted, at a time that means something else to others"
    )
    assert len(seen_by_consumers(store)) == 1
    clock.ahead_s = 0
    assert work.run()["files noted"] == 1
    right.advance(MONTH_MS / 1000)
    done = work.run()
    assert (done["files expired"], done["files deleted"]) == (1, 1)


@pytest.mark.fault("C1")
@pytest.mark.parametrize("ahead_s", [YEAR_S, -YEAR_S])
def test_a_wrong_clock_does_not_expire_tombstones(store, right, ahead_s):
    topic = WrittenTopic(store, right, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for value in (b"1", b"2", None):
        topic.append(RowToWrite(value, key=b"k"))
    clock = SkewedClock(right, ahead_s)
    topic.clock = clock
    assert topic.maintain()["records superseded"] == 0
    assert [record[4] for record in seen_by_consumers(store)] == [b"1", b"2", None]
    clock.ahead_s = 0
    assert topic.maintain()["records superseded"] == 2
    assert [record[4] for record in seen_by_consumers(store)] == [None]


@pytest.mark.fault("C1")
def test_a_consumer_a_year_ahead_does_not_clean_a_group_log_early(store, right):
    clock = SkewedClock(right, YEAR_S)
    background = BackgroundLogMaintenance(
        store, "group", "g", clock, replace(SMALL, clean_up_interval_s=0.0)
    )
    log = GroupLog(store, "g", right, "client", background)
    for number in range(60):
        log.commit(None, [CommittedOffset("t", "id", 0, number)], float("inf"))
        for thread in background._tasks.jobs.values():
            thread.join()
        right.advance(120)
    entries = [
        key for key in keys(store) if key.startswith(group_folder("g")) and key.endswith(".json")
    ]
    assert len(entries) == 60


@pytest.mark.fault("C1")
def test_a_group_alone_in_its_root_keeps_its_offsets_too(store, right):
    GroupLog(store, "g", right).commit(None, [CommittedOffset("t", "id", 0, 5)], float("inf"))
    clock = SkewedClock(right, YEAR_S)
    maintenance = Maintenance(store, clock, SMALL)
    assert maintenance.round()["offsets forgotten"] == 0
    clock.ahead_s = 0
    right.advance(YEAR_S)
    assert maintenance.round()["offsets forgotten"] == 1


@pytest.mark.fault("C1")
def test_a_probe_that_is_under_way_is_left_alone_where_there_is_nothing_else(store, right):
    store.put(PROBE, b"x")
    clock = SkewedClock(right, YEAR_S)
    maintenance = Maintenance(store, clock, SMALL)
    assert maintenance.round()["probes deleted"] == 0
    assert PROBE in keys(store)
    clock.ahead_s = 0
    right.advance(2 * DAY_S)
    assert maintenance.round()["probes deleted"] == 1


# --- what it costs
# --------------------------------------------------------------------------------------------------


def test_the_stores_clock_is_read_once_an_hour_for_all_topics_and_rounds(store, right):
    for number in range(5):
        GroupLog(store, f"g{number}", right).commit(
            None, [CommittedOffset("t", "id", 0, 5)], float("inf")
        )
    WrittenTopic(store, right).append(RowToWrite(b"x"))
    counting = FaultyStore(store, clock=right, trace=True)
    for _ in range(3):  # several in one process, as its producers are
        maintenance = Maintenance(counting, right, SMALL)
        for _ in range(5):
            maintenance.round()
            right.advance(60)
    about = [operation.operation for operation in counting.trace if operation.key == clock_key()]
    assert about == ["put", "list"]
    right.advance(COMPARED_EVERY_S)
    maintenance.round()
    assert looks(counting) == 2


def test_a_plan_reads_only_its_own_clock(store, right, topic):
    before = keys(store)
    counting = FaultyStore(store, clock=right, trace=True)
    Maintenance(counting, right, SMALL).plan()
    assert looks(counting) == 0
    assert keys(store) == before
