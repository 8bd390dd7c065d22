"""Threads that take turns: one runs at a time, on simulated time, and a seed decides whose turn it is.

The threads are real and run the product's own blocking code; each has a *baton*, and only the one that was handed its
baton runs. It hands over wherever it sleeps, waits for a lock or a condition, or ends; the store of the simulation
sleeps in every operation. Nothing else can interleave, so the same seed gives the same run.

A simulated *process* is a set of threads that are killed, paused and restarted together, with a clock of its own.
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
"""What the wall clocks show at the start of a simulation."""
TICK_S = 1e-6
STEPS_MAX = 2_000_000
TRACE_LINES_KEPT = 200


class SimulationError(AssertionError):
    """The simulated program is stuck, spins without time passing, or raised what nobody caught."""


class Killed(BaseException):
    """The thread's process was killed: it unwinds without having any further effect."""


class Task:
    """One thread. `able_at`: the simulated time from which it may run; NEVER while it waits without a limit."""

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
        """Let it run from `ready_at` on, not while its process stands still; to unwind, if that was killed, at once."""
        self.ready_at = ready_at
        self.look_again()

    def look_again(self) -> None:
        """Its process was stopped or killed: see again from when on it may run."""
        # Kept, because the scheduler looks at it of every task at every step.
        self.able_at = ALWAYS if self.process.is_killed else max(self.ready_at, self.process.paused_until)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, as `threading.Thread.join`."""
        scheduler = self.process.scheduler
        current = scheduler.current()
        if current is None or self.is_done:
            return
        self.joining.append(current)
        scheduler.pause(current, NEVER if timeout is None else timeout)

    def is_alive(self) -> bool:
        return not self.is_done


class Process:
    """Threads that live and die together, and the clock they see. `skew_s` is how wrong its wall clock is."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.is_killed = False
        self.paused_until = 0.0
        self.skew_s = 0.0
        self.asleep_s = 0.0
        self.clock: Clock = ProcessClock(self)

    def kill(self) -> None:
        """End all its threads, wherever they are; what they have sent may still arrive."""
        self.end()
        self.scheduler.note(f"kill {self.name}")

    def end(self) -> None:
        """Kill it without a word in the trace."""
        self.is_killed = True
        self.paused_until = 0.0
        self.scheduler.look_again(self)

    def suspend(self, seconds: float, *, machine: bool = False) -> None:
        """Stop its threads for a while, as SIGSTOP does; time goes on. `machine`: as a laptop's lid does, so that
        `monotonic` stands still meanwhile."""
        until = max(self.paused_until, self.scheduler.now + seconds)
        if machine:
            self.asleep_s += until - max(self.paused_until, self.scheduler.now)
        self.paused_until = until
        self.scheduler.look_again(self)
        self.scheduler.note(f"suspend {self.name} {seconds:.6f}")


class Scheduler:
    """Decides which thread runs, from one random source. `preempt` is the chance of a switch before taking a lock."""

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

    # --- what the driver of the simulation calls ---

    def run(self, process: Process, target: Callable[[], T], time_max_s: float = 86_400.0) -> T:
        """Run `target` as a thread of `process` until it returns; the other threads run as long as that takes.

        Raises what it raises, and SimulationError if any thread fails or nothing can go on before `time_max_s` more
        seconds have passed.
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
        """Kill what is left and wait until it has ended. Idempotent."""
        self._main = None
        self._time_max = NEVER
        self._kill_all()
        if self._tasks:
            self._resume()

    @property
    def trace(self) -> str:
        """A digest of everything that happened, in its order."""
        return self._digest.hexdigest()

    def note(self, event: str) -> None:
        """Add an event to the trace."""
        line = f"{self.now:.6f} {event}"
        self._digest.update(line.encode())
        self.recent.append(line)

    # --- what the clock of a process calls ---

    def start(self, process: Process, target: Callable[[], None], name: str) -> Task:
        """A new thread. A process that was killed gets one that never runs."""
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
                self._fail(f"{task.name} raised {error!r}\n{''.join(traceback.format_exception(error))}")
            finally:
                del self._by_thread[threading.get_ident()]
                self._end(task)

        self._tasks.append(task)
        threading.Thread(target=body, name=f"simulated {task.name}", daemon=True).start()
        return task

    def current(self) -> Task | None:
        """The task whose thread calls; None for a thread that is not of the simulation."""
        return self._by_thread.get(threading.get_ident())

    def pause(self, task: Task, seconds: float) -> None:
        """Let others run; the current `task` goes on after `seconds`, or once it is made ready. Raises Killed."""
        if task.process.is_killed:
            raise Killed
        # What is left of a wait may be too little to move a large number: it would be waited for again and again.
        task.wait_until(self.now + (max(seconds, TICK_S) if seconds > 0 else 0.0))
        following = self._next()
        if following is not task:
            self._hand_over(following)
            task.baton.acquire()
        task.wait_until(self.now)
        if task.process.is_killed:
            raise Killed

    def preempt(self, task: Task) -> None:
        """Perhaps let others run first."""
        if self._preempt and self.random.random() < self._preempt:
            self.pause(task, 0.0)

    def ready(self, task: Task) -> None:
        """Let a task that waits go on."""
        task.wait_until(min(task.ready_at, self.now))

    def look_again(self, process: Process) -> None:
        """A process was stopped or killed."""
        for task in self._tasks:
            if task.process is process:
                task.look_again()

    # --- taking turns ---

    def _resume(self) -> None:
        """Called by the driver: let the tasks run until the main one has ended, or all."""
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
        """Whose turn it is; simulated time moves on when nobody can run now."""
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
        """Remember the first failure and kill everything: the main task ends too, and `run` raises."""
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
    """A lock; `again` allows its owner to take it several times. For threads outside the simulation it is open."""

    def __init__(self, scheduler: Scheduler, *, again: bool = False) -> None:
        self._scheduler = scheduler
        self._again = again
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        task = self._scheduler.current()
        if task is not None:
            # Who unwinds after a kill may take what is free: finalizers must not raise, and nobody sees what they do.
            if self._owner is not task and not task.process.is_killed:
                self._scheduler.preempt(task)
            self._take(task)
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        task = self._scheduler.current()
        if task is not None and self._owner is task:
            self._depth -= 1
            if not self._depth:
                self._release()

    def _take(self, task: Task, depth: int = 1) -> None:
        # A lock whose owner was killed stays taken: only threads of the same process could want it.
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
