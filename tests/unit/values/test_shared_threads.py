"""Shared threads: few threads for many tasks, and no task that waits for a blocked one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from deltaq.clock import SYSTEM_CLOCK, SystemClock
from deltaq.shared_threads import IDLE_KEPT, SharedThreads, ThreadTask
from tests.doubles.reading import TIMEOUT_S, eventually

MOST = 3


@pytest.fixture
def threads() -> Iterator[SharedThreads]:
    shared = SharedThreads(SYSTEM_CLOCK, "test-shared", MOST)
    shared.attach("test")
    yield shared
    shared.stop()
    shared.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in shared.threads)


class Work:
    """A step that notes its runs, and waits in each until `gate` is open."""

    def __init__(
        self,
        threads: SharedThreads,
        *,
        is_open: bool = True,
        waits_s: tuple[float | None, ...] = (),
    ) -> None:
        self.gate = threading.Event()
        if is_open:
            self.gate.set()
        self.runs = 0
        self.at_once = 0
        self.at_once_most = 0
        self._waits_s = iter(waits_s)
        self.task = threads.task(self.step)

    def step(self) -> float | None:
        self.at_once += 1
        self.at_once_most = max(self.at_once_most, self.at_once)
        self.runs += 1
        assert self.gate.wait(TIMEOUT_S)
        self.at_once -= 1
        return next(self._waits_s, None)


def begun(works: list[Work]) -> int:
    return sum(work.runs for work in works)


def test_a_thousand_tasks_all_run_on_no_more_than_the_most_threads(threads):
    works = [Work(threads) for _ in range(1000)]
    for work in works:
        work.task.call()
    eventually(lambda: all(work.runs for work in works))
    assert len(threads.threads) <= MOST + 1


def test_tasks_wait_for_a_thread_until_one_of_the_most_has_ended_or_blocked(threads):
    held = [Work(threads, is_open=False) for _ in range(MOST)]
    behind = [Work(threads) for _ in range(20)]
    for work in [*held, *behind]:
        work.task.call()
    eventually(lambda: begun(held) == MOST)
    eventually(lambda: begun(behind) == len(behind))  # the held ones count as blocked
    assert not any(work.gate.is_set() for work in held)
    for work in held:
        work.gate.set()
    eventually(lambda: not any(work.at_once for work in held))


def test_a_task_runs_again_when_it_said_that_more_is_due(threads):
    work = Work(threads, waits_s=(0.0, 0.001, 0.002, None))
    work.task.call()
    eventually(lambda: work.runs == 4)


def test_a_call_during_the_step_repeats_it_and_never_runs_it_twice_at_once(threads):
    work = Work(threads, is_open=False)
    work.task.call()
    eventually(lambda: work.runs == 1)
    for _ in range(50):
        work.task.call()
    work.gate.set()
    eventually(lambda: work.runs == 2)

    def call_often() -> None:
        for _ in range(200):
            work.task.call()

    callers = [threading.Thread(target=call_often) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    last = Work(threads)
    last.task.call()
    eventually(lambda: last.runs == 1 and not work.at_once)
    assert work.at_once_most == 1


def test_a_call_before_a_task_is_due_runs_it_now_and_only_once(threads):
    work = Work(threads, waits_s=(3600.0, None))
    work.task.call()
    eventually(lambda: work.runs == 1 and not work.task.is_running)
    work.task.call()
    eventually(lambda: work.runs == 2)


def test_a_call_inside_the_step_itself_runs_it_once_more(threads):
    runs: list[int] = []
    tasks: list[ThreadTask] = []

    def step() -> None:
        runs.append(1)
        if len(runs) == 1:  # as a finalizer does, which may run after the step has looked
            tasks[0].call()

    tasks.append(threads.task(step))
    tasks[0].call()
    eventually(lambda: len(runs) == 2 and not tasks[0].is_running)


def test_the_tasks_of_a_user_that_has_left_are_not_due_any_more(threads):
    left, stays = Work(threads, waits_s=(3600.0,)), Work(threads, waits_s=(3600.0,))
    for work in (left, stays):
        work.task.call()
    eventually(lambda: set(threads._due) == {left.task, stays.task})
    threads.detach("other", left.task)
    assert set(threads._due) == {stays.task}


def test_no_thread_waits_for_a_task_that_was_running_when_the_last_user_left():
    threads = SharedThreads(SYSTEM_CLOCK, "test-users", MOST)
    threads.attach("test")
    work = Work(threads, is_open=False, waits_s=(3600.0,))
    work.task.call()
    eventually(lambda: work.runs == 1)
    threads.detach("test", work.task)
    work.gate.set()
    # Each one started the next.
    eventually(lambda: not any(thread.is_alive() for thread in threads.threads))
    threads.stop()


def test_a_task_becomes_due_while_all_threads_work_and_has_its_turn_after_them(threads):
    first = Work(threads, waits_s=(0.01, None))
    first.task.call()
    eventually(lambda: first.runs >= 1)  # due again at any moment
    busy = [Work(threads, is_open=False) for _ in range(MOST)]
    for work in busy:
        work.task.call()
    eventually(lambda: begun(busy) == MOST)
    for work in busy:
        work.gate.set()
    eventually(lambda: first.runs == 2)


def test_a_failing_step_is_logged_and_the_thread_goes_on(threads, caplog):
    def fail() -> None:
        raise ValueError("of the test")

    threads.task(fail).call()
    work = Work(threads)
    work.task.call()
    eventually(lambda: work.runs == 1)
    eventually(lambda: "a task of test-shared failed" in caplog.text)


def test_the_threads_end_with_the_last_user_and_start_again_for_the_next():
    shared = SharedThreads(SYSTEM_CLOCK, "test-users", MOST)
    for _ in range(3):
        shared.attach("a")
        shared.attach("b")
        work = Work(shared, waits_s=(3600.0,))
        work.task.call()
        eventually(partial(lambda work: work.runs == 1, work))
        alive = list(shared.threads)
        shared.detach("a")
        assert any(thread.is_alive() for thread in alive)
        shared.detach("b")
        eventually(partial(lambda alive: not any(thread.is_alive() for thread in alive), alive))


def test_threads_that_were_needed_while_others_had_blocked_end_when_they_are_spare(
    threads, monkeypatch
):
    monkeypatch.setattr("deltaq.shared_threads.BLOCKED_S", 0.001)
    monkeypatch.setattr("deltaq.shared_threads.IDLE_S", 0.001)
    held = [Work(threads, is_open=False) for _ in range(3 * MOST)]
    for work in held:
        work.task.call()
    eventually(lambda: begun(held) == len(held))
    for work in held:
        work.gate.set()
    eventually(lambda: sum(thread.is_alive() for thread in threads.threads) <= IDLE_KEPT)


def test_a_finalizer_that_calls_a_task_inside_the_lock_does_not_block(threads):
    work = Work(threads)

    class Dropped:
        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            work.task.call()

    with threads._lock:
        Dropped()
        gc.collect()
    eventually(lambda: work.runs == 1)


@pytest.mark.parametrize("succeeds", [False, True], ids=["none", "one"])
def test_without_threads_a_user_is_refused_and_with_one_all_tasks_run(succeeds):
    class Scarce(SystemClock):
        left = 1 if succeeds else 0

        def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
            if not self.left:
                raise RuntimeError("can't start new thread")
            self.left -= 1
            return super().start_thread(target, name)  # type: ignore[return-value]

    shared = SharedThreads(Scarce(), "test-scarce", MOST)
    if not succeeds:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            shared.attach("test")
        return
    shared.attach("test")
    works = [Work(shared, waits_s=(0.001,)) for _ in range(10)]
    for work in works:
        work.task.call()
    eventually(lambda: all(work.runs == 2 for work in works))
    shared.detach("test")
    eventually(lambda: not shared.threads[0].is_alive())
