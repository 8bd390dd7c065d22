"""Background maintenance in a producer's process, so that topics need no maintenance service.

The writer whose commit becomes a version that is a multiple of the checkpoint interval maintains the topic. So exactly
one of all writers does, without coordination, and it already holds the table state that a checkpoint needs.

Deleted topics, groups without members and topics that only grow older need maintenance too, though no commit triggers
it. So each hour, the first process to create the hour's marker in the root maintains the whole root once.
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
from deltaq.names import root_claim_key, root_claims_folder, topic_log
from deltaq.store import ObjectExists, Store, StoreError
from deltaq.topics.log import SharedTopicLog, TopicLog

_log = logging.getLogger("deltaq.maintenance")

ROOT_CLAIM_PERIOD_MS = 3600 * 1000
"""How often one of the processes that write to a root maintains the whole root."""

EXIT_WAIT_S = 2.0
"""Maximum seconds that the exit of the process waits for each thread."""


def claim_root_maintenance(store: Store, clock: Clock) -> bool:
    """Claim the maintenance of the root for this period; True if the caller is the first to claim it.

    Two claims of one period, as by processes whose clocks differ, are harmless. Raises StoreError.
    """
    key = root_claim_key(max(0, clock.time_ms() // ROOT_CLAIM_PERIOD_MS))
    try:
        store.create(key, b"")
    except ObjectExists:
        return False
    for entry in store.list(root_claims_folder()):
        if entry.key < key:
            store.delete(entry.key)
    return True


def checkpoint_if_due(store: Store, log: TopicLog, settings: MaintenanceSettings = DEFAULT_SETTINGS) -> None:
    """Write a checkpoint in the calling thread if the version of the log's last commit requires one.

    For writers whose process may end right after the commit. A failure is only logged: a later commit's checkpoint
    replaces this one.
    """
    if log.version % settings.checkpoint_interval == 0:
        try:
            write_checkpoint(store, topic_log(log.topic), log.copied_state())
        except (StoreError, CheckpointFailed) as error:
            _log.warning("checkpoint of topic %r failed: %s", log.topic, error)


class BackgroundTopicMaintenance:
    """Maintains one topic in the process of its writer. Thread-safe.

    Its threads end with their work. At most one thread writes checkpoints, one does the other maintenance of the topic,
    and one maintains the root. Commits to the topic are made under the lock of the writer's log, `beside`.
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
        self._throttle = Throttle(clock, settings.background_share)
        self._checkpoint_throttle = Throttle(clock, settings.background_share)  # one for each thread
        self._root_throttle = Throttle(clock, settings.background_share)
        self._row_cache = RowCache(clock)
        self._pass = TopicPass(store, topic, clock, settings, self._throttle, row_cache=self._row_cache, beside=beside)
        self._lock = clock.lock()
        self._threads: dict[str, Thread] = {}
        self._stopped = False
        self._checkpointed_at = float("-inf")
        self._rest()
        self._claim_due_at = self._due_at

    def due_in_s(self) -> float:
        """Seconds until `start_due` is due, even if nothing is written."""
        return max(0.0, self._due_at - self._clock.monotonic())

    def uploaded(self, path: str, rows: pa.RecordBatch) -> None:
        """Keep `rows` for the next merge: the writer has uploaded them as file `path`, which is not committed yet."""
        self._row_cache.keep(path, rows)

    def committed(self, version: int, state: Callable[[], TableState]) -> None:
        """Note that the writer's commit became `version`; `state()` returns a copy of the table state at it."""
        if version % self._settings.checkpoint_interval:
            return
        now_s = self._clock.monotonic()
        if now_s - self._checkpointed_at >= self._settings.checkpoint_rest_s:
            now, self._checkpointed_at = state(), now_s
            self._begin("checkpoint", lambda: self._write_checkpoint(now))
        self._begin_topic_maintenance(checkpoint=False)
        if now_s >= self._claim_due_at:  # frequent commits postpone `start_due`, so the root's maintenance starts here
            self._claim_root()

    def start_due(self) -> None:
        """Start all due maintenance in the background unless it is running. For topics that are rarely written."""
        self._begin_topic_maintenance(checkpoint=True)
        self._claim_root()

    def _begin_topic_maintenance(self, *, checkpoint: bool) -> None:
        self._rest()
        self._begin("maintenance", lambda: self._pass.run(checkpoint=checkpoint))

    def _claim_root(self) -> None:
        self._claim_due_at = self._due_at
        self._begin("root-maintenance", self._maintain_root)

    def _write_checkpoint(self, state: TableState) -> None:
        self._checkpoint_throttle.begin()
        write_checkpoint(self._store, topic_log(self._topic), state, self._checkpoint_throttle.step)

    def _maintain_root(self) -> None:
        if claim_root_maintenance(self._store, self._clock):
            retention_ms = self._offsets_retention_ms
            self._root_throttle.begin()
            maintenance = Maintenance(
                self._store, self._clock, self._settings, self._root_throttle, offsets_retention_ms=retention_ms
            )
            maintenance.round()
            maintenance.finish()  # now, since the next hour may fall to a process that has seen nothing yet

    def stop(self, timeout_s: float) -> None:
        """End the threads before the process exits, waiting at most `timeout_s` for each. Idempotent.

        Unfinished work is left to the next round of any process.
        """
        with self._lock:
            self._stopped = True
            threads = list(self._threads.values())
        for throttle in (self._throttle, self._checkpoint_throttle, self._root_throttle):
            throttle.stop()
        for thread in threads:
            thread.join(timeout_s)

    def _rest(self) -> None:
        # With jitter: writers that were started together must not maintain at the same moments.
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
                # Python starts no threads while it exits. The error must not reach the writer, whose commit succeeded.
                _log.info("%s of topic %r is left to others: %s", task, self._topic, error)

    def _undisturbing(self, task: str, work: Callable[[], object]) -> None:
        """Run `work` and log its failure. The next round, in any process, tries again."""
        try:
            work()
        except Stopped:
            pass
        except (KafkaException, StoreError, CheckpointFailed) as error:
            log_failure(self._store, task, f"topic {self._topic!r}", error)
        except Exception:  # noqa: BLE001 - a defect of maintenance must not affect the writer
            _log.exception("%s of topic %r failed", task, self._topic)


# --- the end of the process ------------------------------------------------------------------------------------------


class _AtWork:
    """The instances of this process that have started a thread, so that they can be stopped at exit.

    The thread alone may keep an instance alive: the writer is gone once its producers are.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._started: WeakSet[BackgroundTopicMaintenance] = WeakSet()

    def add(self, maintenance: BackgroundTopicMaintenance) -> None:
        with self._lock:
            self._started.add(maintenance)

    def stop(self) -> None:
        with self._lock:
            started = tuple(self._started)
        for timeout_s in (0.0, EXIT_WAIT_S):  # stop all of them before waiting for the first
            for maintenance in started:
                maintenance.stop(timeout_s)


_AT_WORK = _AtWork()


def _forget_all() -> None:
    """In a forked child: the parent's threads do not exist here, and its locks may be held for ever."""
    global _AT_WORK
    _AT_WORK = _AtWork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _stop_all() -> None:
    """At exit: a thread inside Arrow's C++ or the store's Rust aborts the process when Python finalizes."""
    _AT_WORK.stop()


atexit.register(_stop_all)
