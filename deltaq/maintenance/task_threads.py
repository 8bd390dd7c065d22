"""Threads for the maintenance of all topics and groups of a store in one process, however many
these are.

The topics of a producer often become due together: those that get equally many messages reach a
multiple of the checkpoint interval in the same moment. A thread for each would need hundreds, and
the memory of as many merges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock, Lock, Thread, after_fork
from deltaq.store import Store

THREADS = 2
"""Most threads for one kind of task. A task sleeps for most of its time, so that clients keep the
processor.
"""

GROW_AFTER_S = 10.0
"""Seconds after which a waiting task gets one more thread: the others may belong to topics that
never have a rest.
"""


@dataclass(eq=False)
class TaskThreads:
    """Runs the jobs of one kind, in the order of their coming, each on a thread of its own.
    Thread-safe.
    """

    clock: Clock
    waiting: deque[Job] = field(default_factory=deque)
    _running: int = 0
    _grown_at: float = float("-inf")

    def __post_init__(self) -> None:
        # Re-entrant: a clock may run a job before `start_thread` returns.
        self.lock: Lock = self.clock.condition()

    def add(self, job: Job) -> None:
        """Run a job soon. RuntimeError, without it, if the system cannot start the thread that is
        due.
        """
        with self.lock:
            self.waiting.append(job)
            now = self.clock.monotonic()
            if (
                self._running < THREADS
                or now >= max(self.waiting[0].since, self._grown_at) + GROW_AFTER_S
            ):
                self._grown_at = now
                self._running += 1
                self._start_next()

    def ended(self) -> None:
        """A job has ended: its thread starts that of the next one."""
        with self.lock, suppress(RuntimeError):
            self._start_next()

    def _start_next(self) -> None:
        """Start a thread for the next job that is still wanted. The caller holds the lock.

        RuntimeError if the system cannot. Then all jobs that wait are dropped, and can be added
        again: without a running job, whose end starts the next one, they would wait for ever.
        """
        while self.waiting and not self.waiting[0].is_wanted():
            self.waiting.popleft()
        if not self.waiting:
            self._running -= 1
            return
        job = self.waiting.popleft()
        try:
            job.thread = self.clock.start_thread(job.run, f"deltaq-{job.name}")
        except RuntimeError:
            self._running -= 1
            for each in (job, *self.waiting):
                each.drop()
            self.waiting.clear()
            raise


def _never() -> bool:
    return False


@dataclass(eq=False)
class Job:
    """A task of one topic or group, which waits for its thread or has it. `is_wanted()` is asked
    before it begins.
    """

    name: str
    is_wanted: Callable[[], bool]
    _work: Callable[[], object]
    _threads: TaskThreads
    thread: Thread | None = None

    def __post_init__(self) -> None:
        self.since = self._threads.clock.monotonic()

    def run(self) -> None:
        """Do the work, and then let the next job begin."""
        try:
            self._work()
        finally:
            self.drop()
            self._threads.ended()

    def drop(self) -> None:
        """It has ended, or will not begin."""
        self._work = self.is_wanted = _never  # they refer to what keeps this job

    def is_alive(self) -> bool:
        """Whether it runs, or will. Takes no lock: a finalizer may ask, in a thread whose start the
        lock waits for.
        """
        thread = self.thread
        return self.is_wanted() if thread is None else thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds (None: without limit) for the end of its thread, if it has
        begun.
        """
        with self._threads.lock:
            thread = self.thread
        if thread is not None:
            thread.join(timeout)


_lock = SYSTEM_CLOCK.lock()
_by_store: WeakKeyDictionary[Store, dict[tuple[int, str], TaskThreads]] = WeakKeyDictionary()
"""By store, then by clock and kind of task: a store that does not answer holds up no other. They
keep their clock, so its `id` is not reused.
"""


def task_threads(store: Store, clock: Clock, kind: str) -> TaskThreads:
    """The threads of all tasks of a kind (`maintenance`, `checkpoint`, …) for `store`."""
    with _lock:
        of_store = _by_store.setdefault(store, {})
        found = of_store.get((id(clock), kind))
        if found is None:
            found = of_store[id(clock), kind] = TaskThreads(clock)
        return found


def _forget_all() -> None:
    """In a forked child."""
    global _lock, _by_store
    _lock, _by_store = SYSTEM_CLOCK.lock(), WeakKeyDictionary()


after_fork(_forget_all)
