"""Background maintenance in a producer's process, so that topics need no maintenance service.

The writer whose commit becomes a version that is a multiple of the checkpoint interval maintains
the topic: one of all writers, without coordination, that already holds the table state for a
checkpoint.

No commit triggers the maintenance of deleted topics, groups without members and topics that only
grow older. So each hour, the first process to create the hour's marker in the root maintains the
whole root once.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from weakref import WeakSet

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock, after_fork
from deltaq.delta.checkpoint import pointed_version
from deltaq.delta.table_state import TableState
from deltaq.maintenance.background_tasks import BackgroundTasks
from deltaq.maintenance.checkpoint import CheckpointFailed, write_checkpoint
from deltaq.maintenance.log_archive import LogArchive
from deltaq.maintenance.row_cache import RowCache
from deltaq.maintenance.run import (
    OFFSETS_RETENTION_MS,
    TRANSACTIONAL_ID_EXPIRATION_MS,
    Maintenance,
)
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.names import root_claim_key, root_claims_folder, topic_folder, topic_log
from deltaq.parquet.plain_segment import PlainRows
from deltaq.store import ObjectExists, Store, StoreError
from deltaq.topics.log import TopicLog
from deltaq.topics.view import KnownTopic
from deltaq.work import finish

_log = logging.getLogger("deltaq.maintenance")

ROOT_CLAIM_PERIOD_MS = 3600 * 1000
"""How often one of the processes that write to a root maintains the whole root."""

ARCHIVE_FRACTION = 0.5
"""Maximum fraction of the time in which a writer's process archives log entries: it must keep up
with the commits.
"""

LATE_CHECKPOINTS = 2
"""Intervals of checkpoints after which the thread that commits to a local topic writes one itself.
A reader of another engine needs the entries after the checkpoint that it began with: the archive
must be far from them until it ends.
"""

EXIT_WAIT_S = 2.0
"""Maximum seconds that the exit of the process waits for each task."""


def claim_root_maintenance(store: Store, clock: Clock) -> bool:
    """Claim the maintenance of the root for this period; False if another process has. Raises
    StoreError.

    Two claims of one period, as by processes whose clocks differ, are harmless.
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


def checkpoint_if_due(
    store: Store, log: TopicLog, settings: MaintenanceSettings = DEFAULT_SETTINGS
) -> None:
    """Write a checkpoint in the calling thread if the version of the log's last commit requires
    one, and archive what it replaces; log a failure.

    For writers whose process may end right after the commit.
    """
    if log.version % settings.checkpoint_interval == 0:
        try:
            write_checkpoint(store, topic_log(log.topic), log.state)
            finish(LogArchive(store, topic_folder(log.topic), settings).move())
        except (StoreError, CheckpointFailed) as error:
            _log.warning("checkpoint of topic %r failed: %s", log.topic, error)


class BackgroundTopicMaintenance:
    """Maintains one topic in the process of its writer. Thread-safe.

    Its checkpoints, the archiving of its log, the other maintenance of the topic and that of the
    root are four tasks, each at most once at a time, on threads that all topics of the store share.
    Commits to the topic are made in turn with the writer that knows `beside`.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock,
        beside: KnownTopic | None = None,
        settings: MaintenanceSettings = DEFAULT_SETTINGS,
        offsets_retention_ms: int = OFFSETS_RETENTION_MS,
        transactional_id_expiration_ms: int = TRANSACTIONAL_ID_EXPIRATION_MS,
    ) -> None:
        self._store = store
        self._log_folder = topic_log(topic)
        self._clock = clock
        self._settings = settings
        self._offsets_retention_ms = offsets_retention_ms
        self._expiration_ms = transactional_id_expiration_ms
        self._throttle = Throttle(clock, settings.background_fraction)
        # One for each thread.
        self._checkpoint_throttle = Throttle(clock, settings.background_fraction)
        self._root_throttle = Throttle(clock, settings.background_fraction)
        self._archive_throttle = Throttle(clock, ARCHIVE_FRACTION)
        self._archive = LogArchive(store, topic_folder(topic), settings)
        self._row_cache = RowCache(clock)
        self._pass = TopicPass(
            store, topic, clock, settings, self._throttle, row_cache=self._row_cache, beside=beside
        )
        self._tasks = BackgroundTasks(store, clock, "topic", topic)
        self._checkpointed_at = float("-inf")
        self._full_at = self._late_at = 0
        self._rest()
        self._claim_due_at = self._due_at

    def due_in_s(self) -> float:
        """Seconds until `start_due` is due, even if nothing is written."""
        return max(0.0, self._due_at - self._clock.monotonic())

    def uploaded(self, path: str, rows: pa.RecordBatch | PlainRows) -> None:
        """Keep `rows` for the next merge: the writer has uploaded them as file `path`, which is not
        committed yet.
        """
        self._row_cache.keep(path, rows)

    def committed(self, state: TableState) -> None:
        """Note that a commit of the writer made this state."""
        if not self._store.is_remote:
            if state.version % self._settings.archive_interval == 0:
                self._begin("archive", self._archive_entries)
            if state.version >= self._late_at:
                self._late_at = state.version + self._settings.checkpoint_interval  # if this fails
                self._tasks.do("checkpoint", lambda: self._keep_near(state))
            if state.version >= self._full_at:
                self._full_at = state.version + self._settings.archive_interval  # if this fails
                self._tasks.do("archive", lambda: self._keep_room(state))
        # Most commits: nothing is due.
        if state.version % self._settings.checkpoint_interval:
            return
        now_s = self._clock.monotonic()
        # Not at each interval: a fast writer reaches the next one before a checkpoint is worth its
        # cost.
        if now_s - self._checkpointed_at >= self._settings.checkpoint_rest_s:
            self._checkpointed_at = now_s
            self._begin("checkpoint", lambda: self._write_checkpoint(state))
        self._begin_topic_maintenance(checkpoint=False)
        # Frequent commits postpone `start_due`, so the root's maintenance starts here.
        if now_s >= self._claim_due_at:
            self._claim_root()

    def start_due(self) -> None:
        """Start all due maintenance in the background unless it is running. For topics that are
        rarely written.
        """
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
        write_checkpoint(self._store, self._log_folder, state, self._checkpoint_throttle.step)

    def _archive_entries(self) -> None:
        self._archive_throttle.begin()
        self._archive_throttle.run(self._archive.move())

    def _keep_near(self, state: TableState) -> None:
        """Write a checkpoint in the calling thread if the last one is far behind. This can happen
        when the threads of the tasks do not get the processor as often as the writers do.
        """
        room = LATE_CHECKPOINTS * self._settings.checkpoint_interval
        pointed = pointed_version(self._store, self._log_folder)
        last = -1 if pointed is None else pointed
        if state.version >= last + room:
            write_checkpoint(self._store, self._log_folder, state)
            last, self._full_at = state.version, 0  # the checkpoint has a name in the folder, too
        self._late_at = last + room

    def _keep_room(self, state: TableState) -> None:
        """Archive in the calling thread if the log's folder is full. This can happen when the
        threads of the tasks do not get the processor as often as the writers do. The last
        checkpoint may be too old then, too.
        """
        full_at = self._archive.full_at(state.version)
        if full_at <= state.version:
            finish(self._archive.move())
            full_at = self._archive.full_at(state.version)
        if full_at <= state.version:
            write_checkpoint(self._store, self._log_folder, state)
            finish(self._archive.move())
            full_at = self._archive.full_at(state.version)
        if full_at > state.version:
            self._full_at = full_at

    def _maintain_root(self) -> None:
        # Otherwise another process maintains the root in this hour.
        if claim_root_maintenance(self._store, self._clock):
            self._root_throttle.begin()
            maintenance = Maintenance(
                self._store,
                self._clock,
                self._settings,
                self._root_throttle,
                offsets_retention_ms=self._offsets_retention_ms,
                transactional_id_expiration_ms=self._expiration_ms,
            )
            maintenance.round()
            # Now, since the next hour may fall to a process that has seen nothing yet.
            maintenance.finish()

    def stop(self, timeout_s: float) -> None:
        """End the work before the process exits, waiting at most `timeout_s` for each task.
        Idempotent.
        """
        jobs = self._tasks.stop()
        for throttle in (
            self._throttle,
            self._checkpoint_throttle,
            self._archive_throttle,
            self._root_throttle,
        ):
            throttle.stop()
        for job in jobs:
            job.join(timeout_s)

    def _rest(self) -> None:
        # With jitter: writers that were started together must not maintain at the same moments.
        self._due_at = self._clock.monotonic() + self._settings.background_interval_s * (
            1 + self._clock.random()
        )

    def _begin(self, task: str, work: Callable[[], object]) -> None:
        _AT_WORK.add(self)
        self._tasks.start(task, work)


# --- the end of the process ---


class _AtWork:
    """The instances of this process that have begun a task, so that they can be stopped at exit."""

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
    """In a forked child."""
    global _AT_WORK
    _AT_WORK = _AtWork()


after_fork(_forget_all)


def _stop_all() -> None:
    """At exit: a thread inside Arrow's C++ or the store's Rust aborts the process when Python
    finalizes.
    """
    _AT_WORK.stop()


atexit.register(_stop_all)
