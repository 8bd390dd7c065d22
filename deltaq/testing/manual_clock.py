"""A clock whose time is moved by the test."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from deltaq.clock import SYSTEM_CLOCK, Condition, Lock, Thread
from deltaq.testing.chance import chance
from deltaq.testing.mortal_clock import until_crash

__all__ = ["ManualClock"]

START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
TIMEOUT_S = 20.0


class ManualClock:
    """A `deltaq.clock.Clock` whose time moves only by `advance`, which wakes the threads whose
    sleep or wait is over.

    Threads, locks and conditions are real. A thread in which a `Crash` is raised ends without a
    traceback. `advance` moves the time in one step: after `advance(60)`, a thread that sleeps for
    10 s wakes up and sees a time 60 s later. Call `until_waiting` first if the thread may not have
    begun to sleep yet.

    With `auto_advance=True`, `sleep` returns at once and advances the clock itself. Use it for code
    on one thread whose pauses would take minutes. Waits for a condition still block.

    `start_ms` is the initial wall-clock time in epoch milliseconds. Random numbers are derived from
    `seed`. Unique ids are not, since two clocks must never return the same id.
    """

    def __init__(
        self, start_ms: int = START_MS, *, auto_advance: bool = False, seed: int = 0
    ) -> None:
        self._changed = SYSTEM_CLOCK.condition()
        self._auto_advance = auto_advance
        self._seed = seed
        self._drawn = 0
        self._monotonic = 0.0
        self._suspended = 0.0
        self._wall_ms = float(start_ms)
        # Monotonic time at which each sleep or wait with a timeout ends.
        self._waiting: builtins.list[float] = []
        self._conditions: WeakSet[_ManualCondition] = WeakSet()

    # --- control ---

    def advance(self, seconds: float) -> None:
        """Move the time forward and wake the threads that are due. Raises ValueError if `seconds`
        is negative.
        """
        self._pass(seconds, awake=True)

    def suspend(self, seconds: float) -> None:
        """Simulate suspension of the machine: wall clock and `uptime` advance, not `monotonic`.
        Wakes no thread.
        """
        self._pass(seconds, awake=False)

    def set_wall_clock(self, time_ms: int) -> None:
        """Set the wall-clock time, in epoch milliseconds, forwards or back. `monotonic` and
        `uptime` do not change.
        """
        with self._changed:
            self._wall_ms = float(time_ms)

    @property
    def waiting(self) -> int:
        """The number of threads that sleep, or wait with a timeout, and are not due yet."""
        with self._changed:
            return sum(due_at > self._monotonic for due_at in self._waiting)

    def until_waiting(self, threads: int = 1) -> None:
        """Block until at least `threads` threads sleep or wait with a timeout. TimeoutError after
        20 s of real time.
        """
        deadline = SYSTEM_CLOCK.monotonic() + TIMEOUT_S
        with self._changed:
            while (found := sum(due_at > self._monotonic for due_at in self._waiting)) < threads:
                left = deadline - SYSTEM_CLOCK.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"{found} threads wait for the clock after {TIMEOUT_S:g} s, not {threads}"
                    )
                self._changed.wait(left)

    def _pass(self, seconds: float, *, awake: bool) -> None:
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds={seconds!r}: time moves forwards only, and not for ever")
        with self._changed:
            self._wall_ms += seconds * 1000
            if awake:
                self._monotonic += seconds
            else:
                self._suspended += seconds
            conditions = tuple(self._conditions)
        for condition in conditions:
            condition.look_again()

    # --- the clock ---

    def time_ms(self) -> int:
        return int(self._wall_ms)

    def monotonic(self) -> float:
        return self._monotonic

    def uptime(self) -> float:
        with self._changed:
            return self._monotonic + self._suspended

    def sleep(self, seconds: float) -> None:
        if self._auto_advance:
            self.advance(max(0.0, seconds))
            return
        never_notified = self.condition()
        with never_notified:
            never_notified.wait(seconds)

    def lock(self) -> Lock:
        return SYSTEM_CLOCK.lock()

    def condition(self) -> Condition:
        condition = _ManualCondition(self)
        with self._changed:
            self._conditions.add(condition)
        return condition

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        return SYSTEM_CLOCK.start_thread(until_crash(target), name)

    def random(self) -> float:
        with self._changed:
            self._drawn += 1
            return chance(self._seed, self._drawn)

    def unique_id(self) -> str:
        return SYSTEM_CLOCK.unique_id()


class _ManualCondition:
    """A condition whose timeouts use a `ManualClock`. A wait ends only by `notify_all` or when it
    is due.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._real = SYSTEM_CLOCK.condition()
        self._notified = 0

    def __enter__(self) -> bool:
        return self._real.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._real.__exit__(*error)

    def notify_all(self) -> None:
        self._notified += 1
        self._real.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        notified = self._notified
        if timeout is None:
            while self._notified == notified:
                self._real.wait()
            return True
        due_at = self._clock.monotonic() + timeout
        with self._clock._changed:
            self._clock._waiting.append(due_at)
            self._clock._changed.notify_all()
        try:
            # The time is read under this condition's lock, which `look_again` takes, so no advance
            # is missed.
            while self._notified == notified and self._clock.monotonic() < due_at:
                self._real.wait()
            return self._notified != notified
        finally:
            with self._clock._changed:
                self._clock._waiting.remove(due_at)

    def look_again(self) -> None:
        """Wake all waiting threads to check the time, after the clock has moved."""
        with self._real:
            self._real.notify_all()
