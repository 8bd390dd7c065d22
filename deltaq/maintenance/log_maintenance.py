"""Keeps the log of one topic or group, or of the schema registry, short: checkpoints, and clean-up
of what they replace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.checkpoint import pointed_version
from deltaq.delta.log import DeltaLog
from deltaq.delta.store_errors import raising_unavailable
from deltaq.delta.table_state import TableState
from deltaq.maintenance.checkpoint import CheckpointFailed, write_checkpoint
from deltaq.maintenance.log_cleanup import LogCleanup
from deltaq.maintenance.report import Report
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import Store
from deltaq.work import Work


class LogMaintenance:
    """One instance for all rounds of a topic or group, since it remembers when it first saw each
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
