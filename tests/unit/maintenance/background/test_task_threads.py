"""The tasks of many topics share a few threads, in order; a task that waits long gets one of its
own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaq.clock import SystemClock, Thread
from deltaq.maintenance.background_tasks import BackgroundTasks
from deltaq.maintenance.task_threads import GROW_AFTER_S, THREADS, Job, TaskThreads
from deltaq.store import MemoryStore, Store
from deltaq.testing import ManualClock


class Threads(ManualClock):
    """Threads that run when the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: dict[str, Callable[[], None]] = {}
        self.refuses = False

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        if self.refuses:
            raise RuntimeError("can't start new thread")
        self.ready[name] = target
        return Running(self, name)

    def finish(self, name: str) -> None:
        self.ready.pop(f"deltaq-{name}")()

    @property
    def names(self) -> list[str]:
        return [name.removeprefix("deltaq-") for name in self.ready]


class Running:
    def __init__(self, threads: Threads, name: str) -> None:
        self._threads = threads
        self._name = name

    def is_alive(self) -> bool:
        return self._name in self._threads.ready

    def join(self, timeout: float | None = None) -> None:
        raise AssertionError("no test waits")


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def store(threads: Threads) -> Store:
    return MemoryStore("test", threads)


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def begin(store: Store, threads: Threads, done: list[str]) -> Callable[[str, str], BackgroundTasks]:
    def begin(task: str, topic: str) -> BackgroundTasks:
        tasks = BackgroundTasks(store, threads, "topic", topic)
        tasks.start(task, lambda: done.append(topic))
        return tasks

    return begin


Begin = Callable[[str, str], BackgroundTasks]


def test_a_task_of_many_topics_has_few_threads_and_runs_once_for_each_in_order(
    threads: Threads, begin: Begin, done: list[str]
) -> None:
    tasks = [begin("checkpoint", f"{number}") for number in range(200)]
    for each in tasks:
        each.start("checkpoint", lambda: done.append("again"))  # it waits or runs already
    while threads.names:
        assert len(threads.names) <= THREADS
        threads.finish(threads.names[0])
    assert done == [f"{number}" for number in range(200)]
    assert not any(each.jobs["checkpoint"].is_alive() for each in tasks)


def test_each_kind_of_task_and_each_store_has_threads_of_its_own(
    threads: Threads, begin: Begin
) -> None:
    for number in range(THREADS + 1):
        begin("maintenance", f"{number}")
    begin("checkpoint", "0")
    other = BackgroundTasks(MemoryStore("other", threads), threads, "topic", "there")
    other.start("maintenance", lambda: None)
    of_first = [f"maintenance-{number}" for number in range(THREADS)]
    assert threads.names == [*of_first, "checkpoint-0", "maintenance-there"]


def test_a_task_that_waits_long_gets_one_more_thread(threads: Threads, begin: Begin) -> None:
    for number in range(10):
        begin("maintenance", f"{number}")
    threads.advance(GROW_AFTER_S)
    begin("maintenance", "10")
    begin("maintenance", "11")
    assert threads.names[THREADS:] == [f"maintenance-{THREADS}"]
    threads.advance(GROW_AFTER_S)
    begin("maintenance", "12")
    assert len(threads.names) == THREADS + 2


def test_waiting_tasks_of_a_stopped_topic_do_not_run(
    threads: Threads, begin: Begin, done: list[str]
) -> None:
    tasks = [begin("maintenance", f"{number}") for number in range(6)]
    for job in tasks[4].stop():
        assert not job.is_alive()
        job.join()  # at once: it never began
    while threads.names:
        threads.finish(threads.names[0])
    assert done == ["0", "1", "2", "3", "5"]


def test_a_thread_that_cannot_start_takes_no_place(
    threads: Threads, begin: Begin, done: list[str]
) -> None:
    threads.refuses = True
    for number in range(2 * THREADS):
        begin("maintenance", f"{number}")
    threads.refuses = False
    begin("maintenance", "last")
    assert "maintenance-last" in threads.names
    while threads.names:
        threads.finish(threads.names[0])
    assert done[-1] == "last"


def test_tasks_that_wait_when_no_thread_can_start_can_begin_again(
    threads: Threads, begin: Begin, done: list[str]
) -> None:
    """Without a running task, whose end starts the next one, they would wait for ever."""
    tasks = [begin("maintenance", f"{number}") for number in range(3 * THREADS)]
    threads.refuses = True
    while threads.names:
        threads.finish(threads.names[0])
    threads.refuses = False
    tasks[-1].start("maintenance", lambda: done.append("again"))
    threads.finish(threads.names[0])
    assert done == [*map(str, range(THREADS)), "again"]


def test_a_finalizer_learns_whether_a_task_is_alive_while_its_thread_starts() -> None:
    """It may run in the new thread, before that reports that it has started, for which the caller
    waits.
    """
    answers: list[bool] = []

    class Collecting(Threads):
        def start_thread(self, target: Callable[[], None], name: str) -> Thread:
            thread = SystemClock().start_thread(lambda: answers.append(job.is_alive()), "finalizer")
            thread.join(5)
            return super().start_thread(target, name)

    shared = TaskThreads(Collecting())
    job = Job("maintenance-t", lambda: True, lambda: None, shared)
    shared.add(job)
    assert answers == [True]
