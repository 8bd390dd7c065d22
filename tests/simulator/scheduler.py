"""A deterministic scheduler: one thread runs at a time, on simulated time, chosen by a seeded
random source.

The threads are real and run the product's own blocking code. Each has a *baton*, and runs only when
it is handed its baton. A thread hands over where it sleeps, waits for a lock or a condition, or
ends; the simulated store sleeps in every operation. There is no other interleaving, so the same
seed gives the same run.

A simulated *process* is a set of threads that are killed, paused and restarted together, with a
clock of its own.
"""

from __future__ import annotations

import hashlib
import random
import threading
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from deltaq.clock import Clock

__all__ = ["EPOCH_S", "Killed", "Process", "Scheduler", "SimulationError"]

T = TypeVar("T")

NEVER = float("inf")
ALWAYS = -NEVER
EPOCH_S = 1_700_000_000.0
"""The wall-clock time at the start of a simulation, in epoch seconds."""
TICK_S = 1e-6
STEPS_MAX = 2_000_000
TRACE_LINES_KEPT = 200


class SimulationError(AssertionError):
    """The simulated program is stuck, spins without time passing, or raised an unhandled
    exception.
    """


class Killed(BaseException):
    """The thread's process was killed; the thread unwinds without further effects."""


class Task:
    """One thread. `able_at`: the simulated time from which it may run; NEVER while it waits without
    a timeout.
    """

    def __init__(self, process: Process, name: str, number: int, ready_at: float) -> None:
        self.process = process
        self.name = f"{process.name}/{name}"
        self.number = number
        self.wait_until(ready_at)
        self.baton = threading.Lock()
        self.baton.acquire()
        self.is_done = False
        self.joining: list[Task] = []

    def wait_until(self, ready_at: float) -> None:
        """Let it run from `ready_at` on and once its process is not suspended; at once if its
        process was killed.
        """
        self.ready_at = ready_at
        self.look_again()

    def look_again(self) -> None:
        """Recompute `able_at` after its process was suspended or killed."""
        # Stored, because the scheduler reads it for every task at every step.
        self.able_at = (
            ALWAYS if self.process.is_killed else max(self.ready_at, self.process.paused_until)
        )

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, like `threading.Thread.join`."""
        scheduler = self.process.scheduler
        current = scheduler.current()
        if current is None or self.is_done:
            return
        self.joining.append(current)
        try:
            scheduler.pause(current, NEVER if timeout is None else timeout)
        finally:
            # Else the end of this task would cut a later sleep of `current` short.
            self.joining.remove(current)

    def is_alive(self) -> bool:
        return not self.is_done


class Process:
    """A set of threads with a common lifetime and clock. `skew_s`: the error of its wall clock in
    seconds.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.is_killed = False
        self.paused_until = 0.0
        self.skew_s = 0.0
        self.asleep_s = 0.0
        self.clock: Clock = ProcessClock(self)

    def kill(self) -> None:
        """End all its threads, wherever they are. Requests that they have sent may still arrive."""
        self.end()
        self.scheduler.note(f"kill {self.name}")

    def end(self) -> None:
        """Kill it without an event in the trace."""
        self.is_killed = True
        self.paused_until = 0.0
        self.scheduler.look_again(self)

    def suspend(self, seconds: float, *, machine: bool = False) -> None:
        """Suspend its threads for `seconds`, as by SIGSTOP; time goes on. With `machine`, as a
        laptop does when it is closed: `monotonic` stands still meanwhile.
        """
        until = max(self.paused_until, self.scheduler.now + seconds)
        if machine:
            self.asleep_s += until - max(self.paused_until, self.scheduler.now)
        self.paused_until = until
        self.scheduler.look_again(self)
        self.scheduler.note(f"suspend {self.name} {seconds:.6f}")


class Scheduler:
    """Decides which thread runs, from one random source. `preempt` is the chance of a switch before
    taking a lock.
    """

    def __init__(self, seed: int, preempt: float = 0.05) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.recent: deque[str] = deque(maxlen=TRACE_LINES_KEPT)
        self._preempt = preempt
        self._digest = hashlib.sha256()
        self._tasks: list[Task] = []  # those not done, by number
        self._numbers = 0
        self._by_thread: dict[int, Task] = {}
        self._current: Task | None = None
        self._main: Task | None = None
        self._driver = threading.Lock()
        self._driver.acquire()
        self._failure: SimulationError | None = None

    # --- for the driver of the simulation ---

    def run(self, process: Process, target: Callable[[], T], time_max_s: float = 86_400.0) -> T:
        """Run `target` as a thread of `process` until it returns; the other threads run meanwhile.

        Propagates its exceptions. Raises SimulationError if any thread fails, or if no thread can
        run within the next `time_max_s` simulated seconds.
        """
        results: list[T] = []
        failures: list[BaseException] = []

        def body() -> None:
            try:
                results.append(target())
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                failures.append(error)

        self._time_max = self.now + time_max_s
        self._steps_max = self.steps + STEPS_MAX
        self._main = self.start(process, body, "main")
        self._resume()
        if self._failure is not None:
            raise self._failure
        if failures:
            raise failures[0]
        return results[0]

    def close(self) -> None:
        """Kill all remaining threads and wait for their end. Idempotent."""
        self._main = None
        self._time_max = NEVER
        self._kill_all()
        if self._tasks:
            self._resume()

    @property
    def trace(self) -> str:
        """A digest of all events in order."""
        return self._digest.hexdigest()

    def note(self, event: str) -> None:
        """Add an event to the trace."""
        line = f"{self.now:.6f} {event}"
        self._digest.update(line.encode())
        self.recent.append(line)

    # --- for the clock of a process ---

    def start(self, process: Process, target: Callable[[], None], name: str) -> Task:
        """Start a new thread; in a killed process, one that never runs `target`."""
        task = Task(process, name, self._numbers, self.now)
        self._numbers += 1
        self.note(f"start {task.name}")

        def body() -> None:
            self._by_thread[threading.get_ident()] = task
            task.baton.acquire()
            try:
                if not process.is_killed:
                    target()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - a thread of the product must not fail
                self._fail(
                    f"{task.name} raised {error!r}\n{''.join(traceback.format_exception(error))}"
                )
            finally:
                del self._by_thread[threading.get_ident()]
                self._end(task)

        self._tasks.append(task)
        threading.Thread(target=body, name=f"simulated {task.name}", daemon=True).start()
        return task

    def current(self) -> Task | None:
        """The task of the calling thread; None for a thread outside the simulation."""
        return self._by_thread.get(threading.get_ident())

    def pause(self, task: Task, seconds: float) -> None:
        """Let other tasks run. The current `task` resumes after `seconds`, or when it is made
        ready. Raises Killed.
        """
        if task.process.is_killed:
            raise Killed
        # A tiny remainder of a wait may not change a large float: the task would wait for it again
        # and again.
        task.wait_until(self.now + (max(seconds, TICK_S) if seconds > 0 else 0.0))
        following = self._next()
        if following is not task:
            self._hand_over(following)
            task.baton.acquire()
        task.wait_until(self.now)
        if task.process.is_killed:
            raise Killed

    def preempt(self, task: Task) -> None:
        """Let other tasks run first, with the probability given to the scheduler."""
        if self._preempt and self.random.random() < self._preempt:
            self.pause(task, 0.0)

    def ready(self, task: Task) -> None:
        """Let a waiting task resume."""
        task.wait_until(min(task.ready_at, self.now))

    def look_again(self, process: Process) -> None:
        """Update the tasks of a process that was suspended or killed."""
        for task in self._tasks:
            if task.process is process:
                task.look_again()

    # --- scheduling ---

    def _resume(self) -> None:
        """Called by the driver: run the tasks until the main task has ended, or all have."""
        self._hand_over(self._next())
        self._driver.acquire()

    def _hand_over(self, task: Task) -> None:
        self._current = task
        task.baton.release()

    def _end(self, task: Task) -> None:
        task.is_done = True
        self._tasks.remove(task)
        self.note(f"end {task.name}")
        for waiting in task.joining:
            self.ready(waiting)
        if task is self._main or not self._tasks:
            self._current = None
            self._driver.release()
        else:
            self._hand_over(self._next())

    def _next(self) -> Task:
        """Choose the next task to run; advances simulated time if no task can run now."""
        self.steps += 1
        while True:
            now = self.now
            able = [task for task in self._tasks if task.able_at <= now]
            if able:
                chosen = able[0] if len(able) == 1 else able[int(self.random.random() * len(able))]
                self._digest.update(b"%d;" % chosen.number)
                if self.steps > self._steps_max and self._failure is None:
                    self._fail(f"no end after {STEPS_MAX} steps; {chosen.name} runs")
                    continue
                return chosen
            soonest = min([task.able_at for task in self._tasks])
            if soonest > self._time_max:
                waiting = "".join(f"\n  {task.name}" for task in self._tasks)
                self._fail(f"stuck at {self.now:.3f} s; waiting without an end in sight:{waiting}")
            else:
                self.now = soonest

    def _fail(self, reason: str) -> None:
        """Remember the first failure and kill all processes, so that the main task ends and `run`
        raises.
        """
        if self._failure is None:
            recent = "\n".join(self.recent)
            self._failure = SimulationError(f"{reason}\nThe last events:\n{recent}")
        self._kill_all()

    def _kill_all(self) -> None:
        for process in {task.process for task in self._tasks}:
            process.end()


class ProcessClock:
    """The clock that a simulated process sees."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler

    def time_ms(self) -> int:
        return int((EPOCH_S + self._scheduler.now + self._process.skew_s) * 1000)

    def monotonic(self) -> float:
        return self._scheduler.now - self._process.asleep_s

    def uptime(self) -> float:
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        task = self._scheduler.current()
        if task is not None:
            self._scheduler.pause(task, seconds)

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self._scheduler)

    def condition(self) -> SimulatedCondition:
        return SimulatedCondition(self._scheduler)

    def start_thread(self, target: Callable[[], None], name: str) -> Task:
        return self._scheduler.start(self._process, target, name)

    def random(self) -> float:
        return self._scheduler.random.random()

    def unique_id(self) -> str:
        return f"{self._scheduler.random.getrandbits(128):032x}"


class SimulatedLock:
    """A lock; with `again`, it is re-entrant. Threads outside the simulation do not take it."""

    def __init__(self, scheduler: Scheduler, *, again: bool = False) -> None:
        self._scheduler = scheduler
        self._again = again
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        task = self._scheduler.current()
        if task is not None:
            # A killed thread that unwinds may take a free lock: finalizers must not raise, and have
            # no visible effect.
            if self._owner is not task and not task.process.is_killed:
                self._scheduler.preempt(task)
            self._take(task)
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        task = self._scheduler.current()
        if task is not None and self._owner is task:
            self._depth -= 1
            if not self._depth:
                self._release()

    def _take(self, task: Task, depth: int = 1) -> None:
        # A lock whose owner was killed stays locked: only threads of the same process use it.
        while self._owner is not None and not (self._again and self._owner is task):
            self._waiting.append(task)
            self._scheduler.pause(task, NEVER)
        self._owner = task
        self._depth += depth

    def _release(self) -> None:
        self._owner, self._depth = None, 0
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.ready(task)


class SimulatedCondition(SimulatedLock):
    """A condition variable with a re-entrant lock of its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, again=True)
        self._sleeping: dict[Task, bool] = {}  # whether it was notified

    def wait(self, timeout: float | None = None) -> bool:
        task = self._scheduler.current()
        if task is None:
            return False
        depth = self._depth
        self._sleeping[task] = False
        self._release()
        try:
            self._scheduler.pause(task, NEVER if timeout is None else max(0.0, timeout))
        finally:
            notified = self._sleeping.pop(task)
        self._take(task, depth)
        return notified

    def notify_all(self) -> None:
        for task in self._sleeping:
            self._sleeping[task] = True
            self._scheduler.ready(task)
