"""Time, waiting, threads, randomness and ids. No other module of deltaq uses them directly.

Code that depends on time or randomness takes a `Clock`. The system clock is the default. A
simulation passes its own clock and so controls every sleep, wait, thread and random number of the
program under test.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Protocol


def checked_timeout(timeout: object) -> float:
    """A caller's timeout in seconds; infinity for None and for negative numbers, as in Kafka.

    TypeError for a value that is not a number. ValueError for NaN: a deadline computed from it
    would never expire.
    """
    if timeout is None:
        return math.inf
    if not isinstance(timeout, int | float):
        raise TypeError(
            f"timeout must be a number of seconds or None, not {type(timeout).__name__}"
        )
    if math.isnan(timeout):
        raise ValueError("timeout is nan: give a number of seconds, or -1 or None for no limit")
    return math.inf if timeout < 0 else timeout


def this_thread() -> int:
    """The identifier of the calling thread, unique among live threads. Clocks of tests use system
    threads too.
    """
    return threading.get_ident()


class Lock(Protocol):
    """A mutual-exclusion lock, used as a context manager."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class Condition(Lock, Protocol):
    """A condition variable, as `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...


class Thread(Protocol):
    """A running thread."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Clock(Protocol):
    """Source of time, waiting, threads, randomness and ids."""

    def time_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970-01-01 UTC. It may jump, so no safety property
        depends on it.
        """

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back; may stand still while the machine
        sleeps.
        """

    def uptime(self) -> float:
        """Seconds since an arbitrary start; never goes back, and includes time during which the
        machine slept.
        """

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for this long."""

    def lock(self) -> Lock:
        """A new lock, not re-entrant."""

    def condition(self) -> Condition:
        """A new condition variable with its own re-entrant lock."""

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        """Start a daemon thread that runs `target`."""

    def random(self) -> float:
        """A random number in [0, 1)."""

    def unique_id(self) -> str:
        """A new id: 32 lower-case hexadecimal digits, never given twice."""


# A generator of our own: the program may seed the shared one, and a test's sequence must not change
# because of deltaq.
_CHANCE = random.Random()


def after_fork(forget: Callable[[], None]) -> None:
    """Have `forget` called in each forked child: it lacks its parent's threads, and cannot release
    the locks that they held.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


after_fork(_CHANCE.seed)


class _SystemCondition:
    """A `threading.Condition` that an exception from a signal handler cannot leave locked.

    Python runs signal handlers between bytecodes, so such an exception can be raised after
    `threading.Condition.__enter__` has taken the lock and before the `with` block begins, or
    between the block and the release. Here `with` finds the methods of the lock itself. They are
    implemented in C, where no handler runs.
    """

    __slots__ = ("__enter__", "__exit__", "__weakref__", "_condition", "_lock", "notify_all")

    __enter__: Callable[[], bool]
    __exit__: Callable[
        [type[BaseException] | None, BaseException | None, TracebackType | None], None
    ]
    notify_all: Callable[[], None]

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self.__enter__ = self._lock.__enter__
        self.__exit__ = self._lock.__exit__
        self.notify_all = self._condition.notify_all

    def wait(self, timeout: float | None = None) -> bool:
        try:
            return self._condition.wait(timeout)
        finally:
            # An exception raised right after `wait` released the lock leaves it released.
            if not self._lock._is_owned():  # type: ignore[attr-defined]  # `threading.Condition` calls it too
                self._lock.acquire()


class SystemClock:
    """The clock of the machine."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Bound to C functions without a Python frame: they are called for each message.
    monotonic = staticmethod(time.monotonic)
    # CLOCK_MONOTONIC stops while the machine sleeps, and a writer must notice how long it was
    # suspended.
    uptime = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic
    )

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self) -> Condition:
        return _SystemCondition()

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def random(self) -> float:
        return _CHANCE.random()

    def unique_id(self) -> str:
        return uuid.uuid4().hex

    def __reduce__(self) -> str | tuple[Any, ...]:
        # What a process shares by its clock, such as opened stores, it also shares with what was
        # pickled elsewhere.
        return "SYSTEM_CLOCK" if type(self) is SystemClock else super().__reduce__()


SYSTEM_CLOCK: Clock = SystemClock()
