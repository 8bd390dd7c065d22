"""A clock that stands still until a test moves it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import TracebackType
from weakref import WeakSet

from deltaq.clock import SYSTEM_CLOCK, Condition, Lock, Thread
from deltaq.testing.chance import chance
from deltaq.testing.mortal_clock import until_crash

__all__ = ["ManualClock"]

START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
PATIENCE_S = 20.0


class ManualClock:
    """A `deltaq.clock.Clock` whose time moves only by `advance`; whoever sleeps or waits then wakes when it is due.

    Threads, locks and conditions are real; a thread that meets a `Crash` ends without a word. Time passes in one leap:
    after `advance(60)` all see the new time, and who wanted to be woken on the way is woken late. `until_waiting` waits
    until a thread has come to its sleep.

    With `auto_advance=True` a `sleep` takes no time and moves the clock itself: for code on one thread whose pauses
    would take minutes. Waiting for a condition still waits.

    `start_ms` is the wall-clock time at the start, in epoch milliseconds. Random numbers come from `seed`; ids do not,
    since two clocks must never give the same one.
    """

    def __init__(self, start_ms: int = START_MS, *, auto_advance: bool = False, seed: int = 0) -> None:
        self._changed = SYSTEM_CLOCK.condition()
        self._auto_advance = auto_advance
        self._seed = seed
        self._drawn = 0
        self._monotonic = 0.0
        self._suspended = 0.0
        self._wall_ms = float(start_ms)
        self._waiting: builtins.list[float] = []  # when each thread that sleeps or waits with a time-out is due
        self._conditions: WeakSet[_ManualCondition] = WeakSet()

    # --- what a test does ---

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake those whose time has come. ValueError if it is negative."""
        self._pass(seconds, awake=True)

    def suspend(self, seconds: float) -> None:
        """As when a laptop sleeps: wall-clock time and `uptime` move on, `monotonic` does not. Nobody is woken."""
        self._pass(seconds, awake=False)

    def set_wall_clock(self, time_ms: int) -> None:
        """Set the wall-clock time, forwards or back, as an administrator or a time server may. Nothing else moves."""
        with self._changed:
            self._wall_ms = float(time_ms)

    @property
    def waiting(self) -> int:
        """How many threads sleep, or wait with a time-out, and are not due yet."""
        with self._changed:
            return sum(due_at > self._monotonic for due_at in self._waiting)

    def until_waiting(self, threads: int = 1) -> None:
        """Block until at least so many threads sleep or wait with a time-out. TimeoutError after 20 s of real time."""
        deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_S
        with self._changed:
            while (found := sum(due_at > self._monotonic for due_at in self._waiting)) < threads:
                left = deadline - SYSTEM_CLOCK.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{found} threads wait for the clock after {PATIENCE_S:g} s, not {threads}")
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
        nobody_notifies = self.condition()
        with nobody_notifies:
            nobody_notifies.wait(seconds)

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
    """A condition whose time-outs are of a `ManualClock`. A wait ends by `notify_all` or when it is due, never else."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._real = SYSTEM_CLOCK.condition()
        self._notified = 0

    def __enter__(self) -> bool:
        return self._real.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._real.__exit__(kind, error, trace)

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
            # The time is looked at under this condition's lock, which `look_again` takes: no leap goes unnoticed.
            while self._notified == notified and self._clock.monotonic() < due_at:
                self._real.wait()
            return self._notified != notified
        finally:
            with self._clock._changed:
                self._clock._waiting.remove(due_at)

    def look_again(self) -> None:
        """The clock has moved: let every waiter see whether it is due."""
        with self._real:
            self._real.notify_all()
