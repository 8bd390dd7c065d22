"""Threads that many tasks share, so that a process with hundreds of topics needs as few as one with
a single topic.

A task has a step, which does what is due and says when more will be. Steps may block, so there are
several threads. As few as possible are used: the one that became idle last works first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from deltaq.clock import SYSTEM_CLOCK, Clock, Condition, Lock, Thread

BLOCKED_S = 0.25
"""A step that has run for this many seconds does not count among the most: it may wait for an
answer of the store for as long as `message.timeout.ms`, and must not hold up the tasks of other
topics.
"""

IDLE_S = 10.0
"""Seconds after which a thread ends that had nothing to do."""

IDLE_KEPT = 2
"""Idle threads that do not end as long as the threads have users."""

_SLACK_S = 0.001
"""A thread is not woken merely to wait for so much less, in seconds."""

_NEVER = float("inf")

_log = logging.getLogger("deltaq.threads")

Step = Callable[[], float | None]
"""Does what is due. Returns the seconds until more is; None if nothing is until the task is
called.
"""


@dataclass(eq=False, slots=True)
class ThreadTask:
    """Repeated work. One thread at a time runs its step."""

    _threads: SharedThreads
    step: Step
    is_running: bool = False
    is_called: bool = False  # during its step, which may have looked before

    def call(self) -> None:
        """Run the step soon; once more if it is running, also if the step or a finalizer inside it
        makes the call. A call that an exception of a signal handler ended must be repeated.
        """
        self._threads.call(self)


@dataclass(eq=False, slots=True)
class _WorkerThread:
    """A thread. While idle it waits until it is called, or until the time `until`."""

    called: Condition
    is_called: bool = False
    until: float = _NEVER
    busy_since: float = 0.0

    def call(self) -> None:
        with self.called:
            self.is_called = True
            self.called.notify_all()

    def wait(self, seconds: float) -> None:
        with self.called:
            if not self.is_called:
                self.called.wait(None if seconds == _NEVER else max(0.0, seconds))
            self.is_called = False


@dataclass(eq=False)
class SharedThreads:
    """Runs tasks on at most `most` threads, not counting those whose step has blocked. Thread-safe.

    One idle thread waits for the first task that becomes due. Where all others work, it only
    watches: it takes a task once one of them ends its step or has blocked for BLOCKED_S, and starts
    the next watcher.
    """

    _clock: Clock
    _name: str
    most: int
    threads: list[Thread] = field(default_factory=list)
    users: set[object] = field(default_factory=set)
    # Waiting for a thread, in this order.
    _ready: dict[ThreadTask, None] = field(default_factory=dict)
    # When tasks become ready without a call.
    _due: dict[ThreadTask, float] = field(default_factory=dict)
    _idle: list[_WorkerThread] = field(default_factory=list)
    _busy: list[_WorkerThread] = field(default_factory=list)
    _starting: set[object] = field(default_factory=set)
    _is_stopping: bool = False

    def __post_init__(self) -> None:
        # Re-entrant: finalizers, which may run at any place, call tasks. That changes `_ready`,
        # `_due` and `_starting`.
        self._lock: Lock = self._clock.condition()

    def task(self, step: Step) -> ThreadTask:
        """A task with this step, which waits to be called."""
        return ThreadTask(self, step)

    def attach(self, user: object) -> None:
        """Keep threads for `user`, and itself alive, until `detach`. RuntimeError if the system
        starts no thread.
        """
        with self._lock:
            if not (self._idle or self._busy or self._starting):
                self._start()
            self.users.add(user)

    def detach(self, user: object, *tasks: ThreadTask) -> None:
        """Forget a user without work left, and when its tasks are due. The threads end with the
        last user.
        """
        with self._lock:
            self.users.discard(user)
            for task in tasks:
                self._due.pop(task, None)
            idle = [] if self.users else list(self._idle)
        for worker in idle:
            worker.call()

    def call(self, task: ThreadTask) -> None:
        """Run the step of a task soon; see `ThreadTask.call`."""
        with self._lock:
            if task.is_running:
                task.is_called = True
                return
            self._make_ready(task)
            watcher = self._watcher()
        if watcher is not None:
            watcher.call()

    def stop(self) -> None:
        """Start no more steps, and end each thread with the step that it runs. `join` waits for
        them.
        """
        with self._lock:
            self._is_stopping = True
            idle = list(self._idle)
        for worker in idle:
            worker.call()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, at most `timeout_s` seconds by the system clock: a test's clock may
        stand still.
        """
        until = SYSTEM_CLOCK.monotonic() + timeout_s
        for thread in self.threads:
            thread.join(max(0.0, until - SYSTEM_CLOCK.monotonic()))

    # --- under the lock ---

    def _make_ready(self, task: ThreadTask) -> None:
        self._ready[task] = None
        self._due.pop(task, None)

    def _start(self) -> None:
        token = object()
        try:
            self._starting.add(token)
            thread = self._clock.start_thread(lambda: self._run(token), self._name)
        except BaseException:  # a signal handler's, too: the thread may have started
            self._starting.discard(token)
            raise
        self.threads = [*(older for older in self.threads if older.is_alive()), thread]

    def _take(self, now: float) -> ThreadTask | None:
        """The task to run next; None if no thread may."""
        for task in list(self._due):
            if self._due.get(task, _NEVER) <= now:
                self._make_ready(task)
        if not self._ready or self._moving(now) >= self.most:
            return None
        task = next(iter(self._ready))
        # First: from now on, calls make it run once more.
        task.is_running, task.is_called = True, False
        del self._ready[task]
        self._due.pop(task, None)  # still there if a call was interrupted
        return task

    def _moving(self, now: float) -> int:
        """The number of threads whose step has not blocked."""
        return sum(worker.busy_since + BLOCKED_S > now for worker in self._busy)

    def _work_at(self, now: float) -> float:
        """When a thread may find the next task: it becomes due, or a thread that works counts as
        blocked.
        """
        if not self._ready:
            # Without users no thread waits. A task whose step was running when its user left may
            # have become due since.
            return min(self._due.values(), default=_NEVER) if self.users else _NEVER
        moving = [at for worker in self._busy if (at := worker.busy_since + BLOCKED_S) > now]
        return now if len(moving) < self.most else min(moving)

    def _watcher(self) -> _WorkerThread | None:
        """The idle thread to call, so that one is there when a thread may find work; None if one
        will be. If none is idle, another one is started, as far as the system can: else the task
        waits for one of those that work.
        """
        now = self._clock.monotonic()
        work_at = self._work_at(now)
        if self._idle:
            return self._idle[-1] if self._idle[-1].until > work_at + _SLACK_S else None
        if work_at < _NEVER and not (self._starting or self._is_stopping):
            with suppress(RuntimeError):
                self._start()
        return None

    def _is_over(self, now: float, idle_until: float) -> bool:
        """Whether an idle thread that found no task is to end."""
        is_spare = now >= idle_until and len(self._idle) > IDLE_KEPT
        return self._is_stopping or is_spare or not (self.users or self._ready)

    # --- the threads ---

    def _run(self, token: object) -> None:
        worker = _WorkerThread(self._clock.condition())
        with self._lock:
            self._starting.discard(token)
            self._idle.append(worker)
        while (task := self._next(worker)) is not None:
            wait_s: float | None = None
            try:
                wait_s = task.step()
            except Exception:  # noqa: BLE001 - a defect in one task must not end the others
                _log.exception("a task of %s failed", self._name)
            self._ended(worker, task, wait_s)
            del task  # it refers to its user

    def _next(self, worker: _WorkerThread) -> ThreadTask | None:
        """Wait for a task and take it; None if the thread is to end."""
        idle_until = self._clock.monotonic() + IDLE_S
        while True:
            with self._lock:
                now = self._clock.monotonic()
                task = None if self._is_stopping else self._take(now)
                leaves = task is not None or self._is_over(now, idle_until)
                if task is not None:
                    self._busy.append(worker)
                    worker.busy_since = now
                if leaves:
                    self._idle.remove(worker)
                    watcher = self._watcher()
                else:
                    worker.until = self._work_at(now) if worker is self._idle[-1] else _NEVER
            if leaves:
                if watcher is not None:
                    watcher.call()
                return task
            worker.wait(
                (worker.until if now >= idle_until else min(worker.until, idle_until)) - now
            )

    def _ended(self, worker: _WorkerThread, task: ThreadTask, wait_s: float | None) -> None:
        with self._lock:
            self._busy.remove(worker)
            self._idle.append(worker)
            task.is_running = False
            if task.is_called:
                self._make_ready(task)
            elif wait_s is not None:
                self._due[task] = self._clock.monotonic() + wait_s
