"""Maintenance of the schema registry: its log is kept short, as that of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.log import DeltaLog
from deltaq.maintenance.clock_check import compare_clocks
from deltaq.maintenance.log_maintenance import LogMaintenance
from deltaq.maintenance.report import Notify, Report
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import Store
from deltaq.work import finish

SCHEMAS = names.SCHEMAS_FOLDER.rstrip("/")


class SchemasPass:
    """Maintenance of the schema registry of a root, round after round. Several instances, in any
    processes, may run at once. Not thread-safe.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: MaintenanceSettings,
        notify: Notify | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._report = Report("registry", SCHEMAS, notify)
        self._log_maintenance = LogMaintenance(
            store, names.SCHEMAS_FOLDER, clock, settings, self._report
        )

    def plan(self) -> Counter[str]:
        """Report what a round would do. Changes nothing. Raises what `run` raises."""
        return self._report.plan(self._planned())

    def _planned(self) -> Iterator[str]:
        log = self._loaded()
        if log.state.version >= 0:
            yield from self._log_maintenance.plan_checkpoint(log.state.version)
            yield from self._log_maintenance.plan_clean_up(log)

    def run(self) -> Counter[str]:
        """Do all that is due. Returns counts by kind of action. Raises Corrupt, Incompatible,
        Unavailable, CheckpointFailed.
        """
        self._report.begin()
        log = self._loaded()
        if log.state.version >= 0:
            compare_clocks(self._store, self._clock)
            self._log_maintenance.write_checkpoint(log.state)
            if self._log_maintenance.is_clean_up_due():
                finish(self._log_maintenance.clean(log))
        return self._report.counts

    def is_waiting(self) -> bool:
        """Whether log entries wait for the grace period before they are removed."""
        return self._log_maintenance.is_waiting()

    def finish(self) -> Counter[str]:
        """After the grace period: remove what waited for it. Raises what `run` raises."""
        self._report.begin()
        finish(self._log_maintenance.clean(self._loaded()))
        return self._report.counts

    def _loaded(self) -> DeltaLog[None]:
        log = DeltaLog(self._store, names.SCHEMAS_FOLDER, self._clock)
        log.load()
        return log
