"""Maintenance beside a writer: at the right version, one at a time, ended at exit, and never in the
writer's way.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK, Clock, Thread
from deltaq.delta.checkpoint import pointed_version
from deltaq.delta.table_state import TableState
from deltaq.errors import Unavailable
from deltaq.maintenance import background, topic_pass
from deltaq.maintenance.background import (
    ROOT_CLAIM_PERIOD_MS,
    BackgroundTopicMaintenance,
    claim_root_maintenance,
)
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.names import checkpoint_file, root_claims_folder, topic_log
from deltaq.producer.sender import topic_sender
from deltaq.store import MemoryStore, Store
from deltaq.testing import Effect, Fault, FaultyStore, ManualClock, MortalClock, Rule, messages_of
from deltaq.topics.log import TopicLog
from deltaq.topics.view import KnownTopic
from tests.children import environment_of_child
from tests.doubles.reading import eventually
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers

CONF = {"bootstrap.servers": "memory://test", "linger.ms": 0}
NO_PAUSES = replace(SMALL, background_fraction=1.0, checkpoint_interval=10, checkpoint_rest_s=0.0)


class HeldThreads(MortalClock):
    """Threads are counted by the beginning of their names, and run when the test says."""

    def __init__(self) -> None:
        self.held: dict[str, Callable[[], None]] = {}
        self.running: dict[str, Thread] = {}

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        self.held[name] = target
        return HeldThread(self, name)

    def run(self) -> None:
        for name in list(self.held):
            self.held[name]()
            del self.held[name]


class HeldThread:
    def __init__(self, clock: HeldThreads, name: str) -> None:
        self._clock = clock
        self._name = name

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return self._name in self._clock.held


@pytest.fixture
def held() -> HeldThreads:
    return HeldThreads()


@pytest.fixture
def topic(held: HeldThreads) -> WrittenTopic:
    return WrittenTopic(MemoryStore("test"), held)


def background_of(topic: WrittenTopic, clock: Any, **changes: Any) -> BackgroundTopicMaintenance:
    return BackgroundTopicMaintenance(
        topic.store, "t", clock, settings=replace(NO_PAUSES, **changes)
    )


def state_of(topic: WrittenTopic, version: int | None = None) -> TableState:
    """The state of the topic, as that of a later version if one is given."""
    topic.log.catch_up()
    return topic.log.state if version is None else replace(topic.log.state, version=version)


# --- when
# --------------------------------------------------------------------------------------------------


def test_a_writer_that_commits_very_fast_does_not_write_one_checkpoint_after_the_other(
    topic: WrittenTopic, held: HeldThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    care = background_of(topic, held, checkpoint_rest_s=2.0)
    written = []
    for number in range(5):
        monkeypatch.setattr(held, "monotonic", lambda now=1000 + 0.75 * number: now)
        care.committed(state_of(topic, 10 * number))
        if "deltaq-checkpoint-t" in held.held:
            written.append(number)
        held.run()
    assert written == [0, 3]


def pointed(topic: WrittenTopic) -> int:
    found = pointed_version(topic.store, topic_log("t"))
    return -1 if found is None else found


def log_entries(topic: WrittenTopic) -> list[str]:
    return [entry.key for entry in topic.store.list(topic_log("t")) if entry.key.endswith(".json")]


def test_a_writer_keeps_the_folder_of_its_log_small_on_a_local_store(
    topic: WrittenTopic, held: HeldThreads
) -> None:
    care = background_of(topic, held, archive_interval=3, listed_bytes_max=20 * 48)
    most = 0
    for _ in range(100):
        topic.append(RowToWrite(b"x"))
        care.committed(state_of(topic))
        held.run()
        most = max(most, len(log_entries(topic)))
    assert most < 30
    assert [offset for _, offset, *_ in seen_by_consumers(topic.store)] == [*range(100)]


@pytest.mark.parametrize("writers", [1, 5])
def test_the_folder_of_a_log_has_a_bound_though_no_thread_of_maintenance_gets_the_processor(
    topic: WrittenTopic, held: HeldThreads, writers: int
) -> None:
    limit = 30 * 48
    cares = [
        background_of(topic, held, listed_bytes_max=20 * 48, listed_bytes_limit=limit)
        for _ in range(writers)
    ]
    most = 0
    for number in range(200):
        topic.append(RowToWrite(b"x"))
        # Each writer has made its commit before any of them goes on.
        keys = [entry.key for entry in topic.store.list(topic_log("t"))]
        most = max(most, sum((20 + len(key.rpartition("/")[2]) + 7) // 8 * 8 for key in keys))
        if number % writers == writers - 1:
            for care in cares:
                care.committed(state_of(topic))
    assert limit < most + 48, "it was full"
    assert most <= limit + writers * 48
    assert [offset for _, offset, *_ in seen_by_consumers(topic.store)] == [*range(200)]


@pytest.mark.parametrize("writers", [1, 3])
def test_a_checkpoint_is_never_far_behind_though_no_thread_of_maintenance_gets_the_processor(
    topic: WrittenTopic, held: HeldThreads, writers: int
) -> None:
    cares = [background_of(topic, held, checkpoint_interval=10) for _ in range(writers)]
    furthest = checkpoints = 0
    for number in range(150):
        topic.append(RowToWrite(b"x"))
        cares[number % writers].committed(state_of(topic))
        listed = [
            entry.key
            for entry in topic.store.list(topic_log("t"))
            if entry.key.endswith(".parquet")
        ]
        furthest, checkpoints = max(furthest, topic.log.version - pointed(topic)), len(listed)
    assert furthest < 20 + writers
    assert checkpoints <= 150 / 20 + 1, "one of the writers is enough"


def test_a_writer_that_ends_after_its_commit_archives_what_its_checkpoint_replaces(
    topic: WrittenTopic,
) -> None:
    settings = replace(NO_PAUSES, listed_bytes_max=20 * 48)
    for _ in range(50):
        topic.append(RowToWrite(b"x"))
        background.checkpoint_if_due(topic.store, topic.log, settings)
        assert len(log_entries(topic)) < 30


def test_maintenance_begins_at_a_multiple_of_the_checkpoint_interval(
    topic: WrittenTopic, held: HeldThreads
) -> None:
    care = background_of(topic, held)
    begun = []
    for _ in range(30):
        topic.append(RowToWrite(b"x"))
        care.committed(state_of(topic))
        if held.held:
            assert sorted(held.held) == ["deltaq-checkpoint-t", "deltaq-maintenance-t"]
            begun.append(topic.log.version)
            held.run()
            assert checkpoint_file(topic_log("t"), begun[-1]) in {
                e.key for e in topic.store.list(topic_log("t"))
            }
    assert len(begun) >= 3
    assert all(version % 10 == 0 for version in begun)
    assert len(topic.files) < 15
    assert len(seen_by_consumers(topic.store)) == 30


def test_at_most_one_of_each_kind_works_at_a_time(topic: WrittenTopic, held: HeldThreads) -> None:
    topic.append(RowToWrite(b"x"))
    care = background_of(topic, held)
    care.committed(state_of(topic, 10))
    first = dict(held.held)
    care.committed(state_of(topic, 20))
    care.start_due()
    assert {name: held.held[name] for name in first} == first
    held.run()
    care.committed(state_of(topic, 30))
    assert all(held.held[name] is not first[name] for name in first)


class Untouchable:
    def __enter__(self) -> None:
        pytest.fail("the lock was taken")

    def __exit__(self, *_: object) -> None:
        pass


def test_requesting_maintenance_takes_no_maintenance_lock(
    topic: WrittenTopic, held: HeldThreads
) -> None:
    """The writer asks while it holds its own, which a finalizer may want in a thread that holds the
    other one.
    """
    care = background_of(topic, held)
    care._row_cache._lock = Untouchable()  # type: ignore[assignment]
    care.start_due()
    care.committed(state_of(topic, 10))


def test_a_topic_with_few_writes_is_maintained_occasionally() -> None:
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test", clock), clock)
    care = BackgroundTopicMaintenance(topic.store, "t", clock)
    least, most = DEFAULT_SETTINGS.background_interval_s, 2 * DEFAULT_SETTINGS.background_interval_s
    waits = [care.due_in_s()]
    for _ in range(5):
        clock.advance(care.due_in_s())
        assert care.due_in_s() == 0
        care.start_due()
        waits.append(care.due_in_s())
    assert all(least <= wait <= most for wait in waits)
    assert len(set(waits)) > 1, "not all writers at the same moment"
    care.stop(20)


def test_the_first_process_of_each_hour_maintains_the_root() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    asked = []
    for _ in range(10):
        asked.append([claim_root_maintenance(store, clock) for _ in range(3)])
        clock.advance(ROOT_CLAIM_PERIOD_MS / 2000)
    assert all(not any(again) for _, *again in asked)
    assert sum(first for first, *_ in asked) in (5, 6)
    assert len(list(store.list(root_claims_folder()))) == 1, "notes of earlier hours go"


def test_a_root_with_busy_topics_only_is_maintained() -> None:
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test", clock), clock)
    care = BackgroundTopicMaintenance(topic.store, "t", clock)
    for minute in range(1, 30):
        clock.advance(60)
        assert care.due_in_s() > 0, "its topic is looked after"
        care.committed(state_of(topic, 100 * minute))
    care.stop(20)
    assert list(topic.store.list(root_claims_folder()))


# --- in a producer
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    made = BackgroundTopicMaintenance.__init__

    def small(
        self: BackgroundTopicMaintenance,
        store: Store,
        topic: str,
        clock: Clock,
        beside: KnownTopic,
        **_: Any,
    ) -> None:
        made(self, store, topic, clock, beside, NO_PAUSES)

    monkeypatch.setattr(BackgroundTopicMaintenance, "__init__", small)


def produce(producer: Producer, count: int) -> list[object]:
    reports: list[object] = []
    for number in range(count):
        producer.produce(
            "t",
            b"%d" % number,
            on_delivery=lambda error, message: reports.append(error or message.offset()),
        )
        assert producer.flush(20) == 0
    return reports


@pytest.mark.usefixtures("small_settings")
def test_a_producer_keeps_its_topic_compacted() -> None:
    store = MemoryStore("test")
    with Producer(CONF, store=store) as producer:
        assert produce(producer, 60) == list(range(60))
        files = WrittenTopicFiles(store)
        eventually(lambda: len(files()) < 25, "compaction")
        entries = lambda: [entry.key for entry in store.list(topic_log("t"))]  # noqa: E731
        eventually(
            lambda: any(key.endswith(".checkpoint.parquet") for key in entries()), "a checkpoint"
        )
    assert [message.value() for message in messages_of(store, "t")] == [
        b"%d" % number for number in range(60)
    ]


class WrittenTopicFiles:
    """The live files of a topic that a producer writes."""

    def __init__(self, store: MemoryStore) -> None:
        self.log = TopicLog(store, "t", indexed=True)

    def __call__(self) -> list[str]:
        self.log.catch_up()
        return list(self.log.index.files)


@pytest.mark.usefixtures("small_settings")
def test_a_producer_with_maintenance_disabled_never_begins() -> None:
    store = MemoryStore("test")
    with Producer({**CONF, "maintenance.enable": False}, store=store) as producer:
        assert produce(producer, 25) == list(range(25))
        assert topic_sender(store, "t", SYSTEM_CLOCK).topic.maintenance is None
    assert len(WrittenTopicFiles(store)()) == 25
    assert not [entry.key for entry in store.list("") if "checkpoint" in entry.key]


@pytest.mark.usefixtures("small_settings")
@pytest.mark.parametrize(
    "fault", [Fault.error_before(), Fault.refused(), Fault.hang(0.0), Fault.no_space()]
)
def test_maintenance_that_fails_is_logged_and_costs_the_writer_nothing(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyStore(
        MemoryStore("test"),
        Rule("write", "*checkpoint*", fault, times=None),
        Rule("list", "*/_deltaq/unreferenced/", Fault.error_before(), times=None),
    )
    with (
        caplog.at_level(logging.WARNING, "deltaq.maintenance"),
        Producer(CONF, store=faulty) as producer,
    ):
        assert produce(producer, 30) == list(range(30))
        eventually(lambda: faulty.struck[fault.name], "the fault")
        eventually(
            lambda: [r for r in caplog.records if r.name == "deltaq.maintenance"],
            "a line in the log",
        )
    assert [message.value() for message in messages_of(faulty.inner, "t")] == [
        b"%d" % number for number in range(30)
    ]


@pytest.mark.parametrize(
    "refused",
    [
        [Rule("delete", "topics/*", Fault.refused("403 Forbidden"), times=None)],
        [Rule("put", "_deltaq/clock", Fault.refused("403 Forbidden"), times=None)],
    ],
    ids=["deletes", "all of it"],
)
def test_forbidden_maintenance_is_logged_once_and_retried(
    refused: list[Rule], held: HeldThreads, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyStore(MemoryStore("test", held), *refused)
    topic = WrittenTopic(faulty, held)
    care = background_of(topic, held, clean_up_grace_s=0.0, keep_checkpoints=1)
    with caplog.at_level(logging.INFO, "deltaq.maintenance"):
        for _ in range(4):
            for _ in range(20):
                topic.append(RowToWrite(b"x"))
            care.start_due()
            held.run()
    assert faulty.struck["refused"] >= 2
    lines = [record for record in caplog.records if "403 Forbidden" in record.getMessage()]
    assert [record.levelname for record in lines].count("WARNING") == 1
    assert len(lines) >= 2
    assert "maintenance.enable" in lines[0].getMessage()
    assert len(seen_by_consumers(faulty.inner)) == 80


@pytest.mark.usefixtures("small_settings")
def test_an_unexpected_maintenance_error_is_logged_and_spares_the_writer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(background, "write_checkpoint", broken)
    monkeypatch.setattr(topic_pass.TopicPass, "run", broken)
    store = MemoryStore("test")
    with (
        caplog.at_level(logging.ERROR, "deltaq.maintenance"),
        Producer(CONF, store=store) as producer,
    ):
        assert produce(producer, 20) == list(range(20))
        eventually(lambda: len(caplog.records) >= 2, "lines in the log")
    assert all(record.exc_info for record in caplog.records if record.name == "deltaq.maintenance")


@pytest.mark.usefixtures("small_settings")
def test_a_commit_succeeds_if_no_maintenance_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at the end of a program: Python starts no more threads then, and `flush` still works."""
    refused: list[str] = []

    class Ending(MortalClock):
        def start_thread(self, target: Callable[[], None], name: str) -> Thread:
            if "checkpoint" in name or "maintenance" in name:
                refused.append(name)
                raise RuntimeError("can't start new thread at interpreter shutdown")
            return super().start_thread(target, name)

    store, clock = MemoryStore("test"), Ending()
    with Producer(CONF, store=store, clock=clock) as producer:
        assert produce(producer, 20) == list(range(20))
    assert len(refused) >= 2
    assert len(messages_of(store, "t")) == 20


# --- its end
# --------------------------------------------------------------------------------------------------


def test_unfinished_maintenance_at_exit_is_left_and_none_begins(
    topic: WrittenTopic, held: HeldThreads
) -> None:
    for _ in range(12):
        topic.append(RowToWrite(b"x"))
    care = background_of(topic, held)
    care.committed(state_of(topic, 10))
    del held.held["deltaq-checkpoint-t"]
    care.stop(0)
    held.run()
    assert len(topic.files) == 12
    care.committed(state_of(topic, 20))
    care.start_due()
    assert held.held == {}
    assert len(seen_by_consumers(topic.store)) == 12
    topic.maintain()
    assert len(topic.files) == 1


def test_stopping_waits_for_the_step_under_way() -> None:
    store = MemoryStore("test")
    topic = WrittenTopic(store, SYSTEM_CLOCK)
    for _ in range(12):
        topic.append(RowToWrite(b"x"))
    slow = FaultyStore(store, Rule("put", "*.parquet", Fault.slow(), times=None))
    care = BackgroundTopicMaintenance(slow, "t", SYSTEM_CLOCK, settings=NO_PAUSES)
    care.start_due()
    eventually(
        lambda: slow.blocked == 2, "an upload for the topic, and one by the maintenance of the root"
    )
    care.stop(0)
    slow.release()
    care.stop(20)
    assert slow.effects[Effect.DELAYED] == 2
    assert not [name for name, thread in care._tasks.jobs.items() if thread.is_alive()]
    assert len(topic.files) == 12


EXITING = """
import gc, sys
from weakref import ref
from deltaq import Producer
from deltaq.clock import SYSTEM_CLOCK
from deltaq.maintenance import background
from deltaq.maintenance.throttle import Stopped

ended = []
begun = SYSTEM_CLOCK.condition()

def work(self, **_):
    with begun:
        ended.append("begun")
        begun.notify_all()
    try:
        self._throttle.rest(600)
    except Stopped:
        sys.stdout.write("stopped")
        sys.stdout.flush()
        raise

background.TopicPass.run = work
background.claim_root_maintenance = lambda *_: False
with Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 0}) as producer:
    producer.produce("t", b"x")
    producer.flush()
    writer = next(handle.sender for handle in producer._handles.values())
    writer.topic.maintenance.start_due()
    with begun:
        while not ended:
            begun.wait()
seen = ref(writer)
del producer, writer
for _ in range(1000):
    gc.collect()
    if seen() is None:
        break
    SYSTEM_CLOCK.sleep(0.01)
sys.stdout.write("writer gone, " if seen() is None else "writer still there, ")
"""


def test_maintenance_without_a_writer_is_stopped_at_exit(tmp_path: Path) -> None:
    environment = environment_of_child()
    command = [sys.executable, "-c", EXITING, str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "writer gone, stopped", "")


def test_a_forked_child_does_not_stop_the_maintenance_of_its_parent(
    topic: WrittenTopic, held: HeldThreads
) -> None:
    care = background_of(topic, held)
    care.start_due()
    before = background._AT_WORK
    assert care in before._started
    with before._lock:  # as another thread may hold it at that moment
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # what hangs is ended, and seen
            background._stop_all()
            os._exit(1 if care._tasks.stopped else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert background._AT_WORK is before


# --- pace
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def working() -> tuple[ManualClock, Throttle]:
    clock = ManualClock(auto_advance=True)
    return clock, Throttle(clock, fraction=0.25)


@pytest.mark.parametrize(
    ("worked_s", "boost", "pause_s"),
    [
        (0.1, 1, 0.3),
        (0.1, 2, 0.1),
        (0.1, 4, 0),
        (0.1, 9, 0),
        (1, 1, 3),
        (5, 1, 15),
        (5, 2, 5),
        (3600, 1, 60),
    ],
)
def test_a_step_is_followed_by_a_pause_in_proportion(
    working: tuple[ManualClock, Throttle], worked_s: float, boost: float, pause_s: float
) -> None:
    clock, throttle = working
    throttle.step()
    throttle.boost = boost
    clock.advance(worked_s)
    before = clock.monotonic()
    throttle.step()
    assert clock.monotonic() - before == pytest.approx(pause_s)


def test_a_long_pause_ends_soon_after_a_stop_request() -> None:
    class Ending(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            throttle.stop()

    clock = Ending(auto_advance=True)
    throttle = Throttle(clock, fraction=0.1)
    clock.advance(5)
    before = clock.monotonic()
    with pytest.raises(Stopped):
        throttle.step()
    assert clock.monotonic() - before <= 1


def test_steps_too_small_for_a_pause_are_followed_by_one_for_all_of_them(
    working: tuple[ManualClock, Throttle],
) -> None:
    clock, throttle = working
    throttle.begin()
    for pause_s in (0.0, 0.0, 0.0036, 0.0):
        clock.advance(0.0004)
        before = clock.monotonic()
        throttle.step()
        assert clock.monotonic() - before == pytest.approx(pause_s)


def test_a_throttle_that_is_stopped_ends_the_work_at_its_next_step(
    working: tuple[ManualClock, Throttle],
) -> None:
    _, throttle = working
    throttle.stop()
    with pytest.raises(Stopped):
        throttle.step()


def test_a_rest_takes_its_time_and_ends_soon_after_it_is_stopped(
    working: tuple[ManualClock, Throttle],
) -> None:
    clock, throttle = working
    clock.advance(0.1)
    before = clock.monotonic()
    throttle.rest(60.0)
    assert clock.monotonic() - before == pytest.approx(60.0)
    slept: list[float] = []

    def stopped_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)
        throttle.stop()

    clock.sleep = stopped_meanwhile  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        throttle.rest(60.0)
    assert len(slept) == 1
    assert slept[0] < background.EXIT_WAIT_S
    with pytest.raises(Stopped):
        throttle.rest(60.0)


def test_a_rest_resets_the_accumulated_work(working: tuple[ManualClock, Throttle]) -> None:
    clock, throttle = working
    throttle.rest(60.0)
    before = clock.monotonic()
    throttle.step()
    assert clock.monotonic() == before


def test_a_topic_without_a_table_is_no_failure(held: HeldThreads) -> None:
    store = MemoryStore("test")
    care = BackgroundTopicMaintenance(store, "t", held, settings=NO_PAUSES)
    care.start_due()
    held.run()
    assert [entry.key for entry in store.list("topics/")] == []
    with pytest.raises(Unavailable):
        Topic(
            "t",
            store=FaultyStore(store, Rule("*", "*", Fault.error_before(), times=None)),
            conf=CONF,
        ).to_arrow()
