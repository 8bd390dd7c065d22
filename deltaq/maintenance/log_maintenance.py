"""Keeps the log of one topic, group or `transactional.id`, or of the schema registry, short:
checkpoints, and clean-up of what they replace.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import Any, Literal
from weakref import WeakSet

from deltaq import names
from deltaq.clock import Clock, Thread, after_fork
from deltaq.delta.checkpoint import pointed_version
from deltaq.delta.log import DeltaLog, positioned
from deltaq.delta.store_errors import raising_unavailable
from deltaq.delta.table_state import TableState
from deltaq.maintenance.background_tasks import BackgroundTasks
from deltaq.maintenance.checkpoint import CheckpointFailed, write_checkpoint
from deltaq.maintenance.clock_check import compare_clocks
from deltaq.maintenance.log_cleanup import LogCleanup
from deltaq.maintenance.report import Report
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.store import Store
from deltaq.work import Work, finish

CLOSE_WAIT_S = 10.0
"""Seconds that a closing client waits for maintenance of its log. The next maintenance of the log
continues it.
"""

EXIT_WAIT_S = 2.0
"""Maximum seconds that the exit of the process waits for maintenance of a log."""

REMOVALS_MAX = 1000
"""Maximum number of objects that a client's own maintenance removes in one go, so as not to delay
its close. It is at least ten times the number of objects added until the next time.
"""

LogKind = Literal["group", "transactional id"]
"""What has a log that its clients maintain."""


class LogMaintenance:
    """One instance for all rounds of a log, since it remembers when it first saw each
    log-start marker.

    `settings` may be replaced. Not thread-safe.
    """

    def __init__(
        self, store: Store, folder: str, clock: Clock, settings: MaintenanceSettings, report: Report
    ) -> None:
        self.settings = settings
        self._store = store
        self._folder = folder
        self._clock = clock
        self._report = report
        self._cleanup = LogCleanup(store, folder, clock, settings)
        self._cleaned_at = float("-inf")

    def is_waiting(self) -> bool:
        """Whether log entries wait for the grace period before they are removed."""
        return self._cleanup.is_waiting

    def is_clean_up_due(self) -> bool:
        return self._clock.monotonic() - self._cleaned_at >= self.settings.clean_up_interval_s

    def plan_checkpoint(self, version: int) -> Iterator[str]:
        """A line if a checkpoint of `version`, the newest, is due. Raises StoreError."""
        if self._is_checkpoint_due(version):
            yield f"write a checkpoint of version {version}"

    def plan_clean_up(self, log: DeltaLog[Any]) -> Iterator[str]:
        """A line for each effect of a clean-up of the log. Raises StoreError."""
        self._cleanup.settings = self.settings
        plan = self._cleanup.plan(log)
        if plan.start is not None:
            yield f"let the log start at version {plan.start}"
        if plan.removed:
            yield f"delete {plan.removed} log objects"

    def write_checkpoint(self, state: TableState) -> None:
        """Write a checkpoint of the newest state, if the last one is far behind.

        A checkpoint that cannot be made is reported, since other maintenance does not depend on it.
        Raises Unavailable.
        """
        with raising_unavailable():
            try:
                if self._is_checkpoint_due(state.version):
                    write_checkpoint(self._store, self._folder + names.LOG_FOLDER, state)
                    self._report.counts["checkpoints"] += 1
            except CheckpointFailed as error:
                self._report.failed(f"no checkpoint could be made: {error}")

    def clean(self, log: DeltaLog[Any]) -> Work[None]:
        """Remove log entries and checkpoints that a newer checkpoint replaces. Raises Unavailable,
        CheckpointFailed.
        """
        self._cleanup.settings = self.settings
        self._cleaned_at = self._clock.monotonic()
        with raising_unavailable():
            marked = yield from self._cleanup.mark(log)
            # The entries below it are removed after the grace period, by a later call.
            if marked is not None:
                self._report.line(f"the log will start at version {marked}")
            removed = yield from self._cleanup.remove()
        self._report.counts["log objects deleted"] += removed

    def _is_checkpoint_due(self, version: int) -> bool:
        pointed = pointed_version(self._store, self._folder + names.LOG_FOLDER)
        return version - (-1 if pointed is None else pointed) >= self.settings.checkpoint_interval


class BackgroundLogMaintenance:
    """Keeps the log of a group or `transactional.id` short, in the process of a client that commits
    to it. Thread-safe.

    The client whose commit becomes a version that is a multiple of the checkpoint interval does the
    work.
    """

    def __init__(
        self,
        store: Store,
        kind: LogKind,
        name: str,
        clock: Clock,
        settings: MaintenanceSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._store = store
        is_group = kind == "group"
        self._folder = names.group_folder(name) if is_group else names.transaction_folder(name)
        self._clock = clock
        self._settings = settings
        self._cleanup = LogCleanup(store, self._folder, clock, settings)
        self._cleaned_at = float("-inf")
        self._tasks = BackgroundTasks(store, clock, kind, name)

    def committed(self, state: TableState) -> None:
        """Note that a commit of this client made this state."""
        if state.version == 0 or state.version % self._settings.checkpoint_interval:
            return
        _AT_WORK.add(self)
        self._tasks.start("maintenance", lambda: self._maintain(state))

    def abandon(self) -> Thread | None:
        """Start no more work, because the client was dropped. Returns the latest job, if there is
        one.

        Takes no lock: a finalizer calls this, and may run in a thread that holds the lock.
        """
        self._tasks.stopped = True
        return self._tasks.jobs.get("maintenance")

    def close(self, timeout_s: float = CLOSE_WAIT_S) -> None:
        """Start no more work, and wait at most `timeout_s` seconds for running work."""
        for job in self._tasks.stop():
            job.join(timeout_s)

    def _maintain(self, state: TableState) -> None:
        write_checkpoint(self._store, self._folder + names.LOG_FOLDER, state)
        if (
            self._clock.monotonic() - self._cleaned_at < self._settings.clean_up_interval_s
            or self._tasks.stopped
        ):
            return
        self._cleaned_at = self._clock.monotonic()
        if finish(self._cleanup.remove(REMOVALS_MAX)) == REMOVALS_MAX:
            # More is left; the next checkpoint removes as much again.
            self._cleaned_at = float("-inf")
        elif not self._tasks.stopped:
            compare_clocks(self._store, self._clock)
            log = positioned(self._store, self._folder, self._clock, state)
            finish(self._cleanup.mark(log))


_AT_WORK: WeakSet[BackgroundLogMaintenance] = WeakSet()
"""Those of this process that have begun a task, so that they can be stopped at exit."""


def _stop_all() -> None:
    """At exit: a thread inside Arrow's C++ or the store's Rust aborts the process when Python
    finalizes. A client that was dropped has not waited for its own.
    """
    for maintenance in tuple(_AT_WORK):
        maintenance.close(EXIT_WAIT_S)


after_fork(_AT_WORK.clear)
atexit.register(_stop_all)
