"""Maintenance beside a writer: what it writes stays in good order without anybody running anything.

The writer whose commit becomes a version that is a multiple of the checkpoint interval sees to the topic: so of all
writers, wherever they are, one does, and nobody asks who. What it needs to know is the state that it has just written.

What nobody writes to needs care too: deleted topics, groups without members, topics of which only the age changes. So
whoever is first to note an hour in the root looks after all of it once.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from weakref import WeakSet

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock, Thread
from deltaq.delta.table_state import TableState
from deltaq.errors import KafkaException
from deltaq.maintenance.checkpoint import CheckpointFailed, write_checkpoint
from deltaq.maintenance.refusals import log_failure
from deltaq.maintenance.row_cache import RowCache
from deltaq.maintenance.run import OFFSETS_RETENTION_MS, Maintenance
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.names import duty_folder, duty_key, topic_log
from deltaq.store import ObjectExists, Store, StoreError
from deltaq.topics.log import SharedTopicLog, TopicLog

__all__ = ["BackgroundTopicMaintenance", "checkpoint_if_due", "claim_root_maintenance"]

_log = logging.getLogger("deltaq.maintenance")

DUTY_PERIOD_MS = 3600 * 1000
"""How often a root is looked after as a whole, by one of those who write to it."""

EXIT_WAIT_S = 2.0
"""How long the exit of the process waits for each thread."""


def claim_root_maintenance(store: Store, clock: Clock) -> bool:
    """Whether it falls to the caller to look after the root now: it is the first to ask in this period.

    Nothing rests on it, nor on the clocks that tell the period. Raises StoreError.
    """
    key = duty_key(max(0, clock.time_ms() // DUTY_PERIOD_MS))
    try:
        store.create(key, b"")
    except ObjectExists:
        return False
    for entry in store.list(duty_folder()):
        if entry.key < key:
            store.delete(entry.key)
    return True


def checkpoint_if_due(store: Store, log: TopicLog, settings: MaintenanceSettings = DEFAULT_SETTINGS) -> None:
    """For a writer whose process may end with its commit: write a checkpoint now if that commit's version asks for one.

    Whatever fails is only logged: others will write one.
    """
    if log.version % settings.checkpoint_interval == 0:
        try:
            write_checkpoint(store, topic_log(log.topic), log.copied_state())
        except (StoreError, CheckpointFailed) as error:
            _log.warning("checkpoint of topic %r failed: %s", log.topic, error)


class BackgroundTopicMaintenance:
    """Keeps one topic in good order on behalf of the writer of a process. Thread-safe.

    Its threads live as long as their work; at most one writes a checkpoint, one does the rest for the topic, and one
    looks after the root. What it commits to the topic, it commits in the turn of the writer `beside` it.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock,
        beside: SharedTopicLog | None = None,
        settings: MaintenanceSettings = DEFAULT_SETTINGS,
        offsets_retention_ms: int = OFFSETS_RETENTION_MS,
    ) -> None:
        self._store = store
        self._topic = topic
        self._clock = clock
        self._settings = settings
        self._offsets_retention_ms = offsets_retention_ms
        self._pacer = Throttle(clock, settings.background_share)
        self._checkpoint_pacer = Throttle(clock, settings.background_share)  # each is for one thread
        self._duty_pacer = Throttle(clock, settings.background_share)
        self._first_hand = RowCache(clock)
        self._pass = TopicPass(store, topic, clock, settings, self._pacer, first_hand=self._first_hand, beside=beside)
        self._lock = clock.lock()
        self._threads: dict[str, Thread] = {}
        self._stopped = False
        self._checkpointed_at = float("-inf")
        self._rest()
        self._duty_at = self._due_at

    def due_in_s(self) -> float:
        """Seconds until `look_after` should be called, even if nothing is written."""
        return max(0.0, self._due_at - self._clock.monotonic())

    def uploaded(self, path: str, rows: pa.RecordBatch) -> None:
        """The file `path` has `rows` in it, and will be in the topic if its commit succeeds."""
        self._first_hand.keep(path, rows)

    def committed(self, version: int, state: Callable[[], TableState]) -> None:
        """The writer's commit became `version`; `state()` is a copy of the table's state then."""
        if version % self._settings.checkpoint_interval:
            return
        now_s = self._clock.monotonic()
        if now_s - self._checkpointed_at >= self._settings.checkpoint_rest_s:
            now, self._checkpointed_at = state(), now_s
            self._begin("checkpoint", lambda: self._write_checkpoint(now))
        self._look_after_topic(checkpoint=False)
        if now_s >= self._duty_at:  # with so many commits nobody asks it to `look_after` the topic
            self._begin_duty()

    def look_after(self) -> None:
        """Do what is due, in the background, unless that is under way: for a topic to which little is written."""
        self._look_after_topic(checkpoint=True)
        self._begin_duty()

    def _look_after_topic(self, *, checkpoint: bool) -> None:
        self._rest()
        self._begin("maintenance", lambda: self._pass.run(checkpoint=checkpoint))

    def _begin_duty(self) -> None:
        self._duty_at = self._due_at
        self._begin("duty", self._look_after_root)

    def _write_checkpoint(self, state: TableState) -> None:
        self._checkpoint_pacer.begin()
        write_checkpoint(self._store, topic_log(self._topic), state, self._checkpoint_pacer.step)

    def _look_after_root(self) -> None:
        if claim_root_maintenance(self._store, self._clock):
            retention_ms = self._offsets_retention_ms
            self._duty_pacer.begin()
            maintenance = Maintenance(
                self._store, self._clock, self._settings, self._duty_pacer, offsets_retention_ms=retention_ms
            )
            maintenance.round()
            maintenance.finish()  # it is of the same object that sees things twice: the next duty may be anybody's

    def stop(self, timeout_s: float) -> None:
        """The process is about to exit: end the threads, with what is half done left to others. May be called again."""
        with self._lock:
            self._stopped = True
            threads = list(self._threads.values())
        for pacer in (self._pacer, self._checkpoint_pacer, self._duty_pacer):
            pacer.stop()
        for thread in threads:
            thread.join(timeout_s)

    def _rest(self) -> None:
        # Not all at the same moment: writers that were started together would go on together.
        self._due_at = self._clock.monotonic() + self._settings.background_interval_s * (1 + self._clock.random())

    def _is_at(self, task: str) -> bool:
        thread = self._threads.get(task)
        return thread is not None and thread.is_alive()

    def _begin(self, task: str, work: Callable[[], object]) -> None:
        with self._lock:
            if self._stopped or self._is_at(task):
                return
            _AT_WORK.add(self)
            try:
                self._threads[task] = self._clock.start_thread(
                    lambda: self._undisturbing(task, work), f"deltaq-{task}-{self._topic}"
                )
            except RuntimeError as error:
                # Python starts no more threads once it ends. What was just committed is so all the same.
                _log.info("%s of topic %r is left to others: %s", task, self._topic, error)

    def _undisturbing(self, task: str, work: Callable[[], object]) -> None:
        """Whatever fails is tried again by the next one, here or elsewhere."""
        try:
            work()
        except Stopped:
            pass
        except (KafkaException, StoreError, CheckpointFailed) as error:
            log_failure(self._store, task, f"topic {self._topic!r}", error)
        except Exception:  # noqa: BLE001 - a defect here must not concern whoever writes
            _log.exception("%s of topic %r failed", task, self._topic)


# --- the end of the process ------------------------------------------------------------------------------------------


class _AtWork:
    """The caretakers of this process that have begun something. A thread keeps its caretaker, which may be all that
    does: the writer is gone once its producers are."""

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._caretakers: WeakSet[BackgroundTopicMaintenance] = WeakSet()

    def add(self, caretaker: BackgroundTopicMaintenance) -> None:
        with self._lock:
            self._caretakers.add(caretaker)

    def stop(self) -> None:
        with self._lock:
            caretakers = tuple(self._caretakers)
        for timeout_s in (0.0, EXIT_WAIT_S):  # all are told before any is waited for
            for caretaker in caretakers:
                caretaker.stop(timeout_s)


_AT_WORK = _AtWork()


def _forget_all() -> None:
    """A forked child has neither the threads of its parent's caretakers nor a say in their locks."""
    global _AT_WORK
    _AT_WORK = _AtWork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _stop_all() -> None:
    """At exit: a thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts the process."""
    _AT_WORK.stop()


atexit.register(_stop_all)
