"""Maintenance of the ids of transactional producers: short logs, decisions that a crashed producer
has not published, and ids that are not used any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from deltaq import metrics, names
from deltaq.clock import Clock
from deltaq.delta.log import positioned
from deltaq.maintenance.clock_check import compare_clocks, expiry_ms
from deltaq.maintenance.log_maintenance import LogMaintenance
from deltaq.maintenance.report import Notify, Report
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import TransactionKey
from deltaq.store import Store
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import Decision, TransactionHead
from deltaq.work import finish

PUBLISH_TIMEOUT_S = 60.0

_CLIENT_ID = "deltaq-maintenance"


class TransactionsPass:
    """Maintenance of one `transactional.id`, round after round. Several instances, in any
    processes, may run at once.

    What is decided is published at once; an open transaction is left alone. What was found
    published is not looked at again. Not thread-safe.
    """

    def __init__(
        self,
        store: Store,
        transactional_id: str,
        clock: Clock,
        settings: MaintenanceSettings,
        expiration_ms: int,
        notify: Notify | None = None,
    ) -> None:
        self._store = store
        self._folder = names.transaction_folder(transactional_id)
        self._clock = clock
        self._expiration_ms = expiration_ms
        self._report = Report("transactional id", transactional_id, notify)
        self._log = TransactionLog(store, transactional_id, clock, _CLIENT_ID)
        self._publisher = Publisher.of(self._log, store, clock, _CLIENT_ID)
        self._log_maintenance = LogMaintenance(store, self._folder, clock, settings, self._report)
        self._published: TransactionKey | None = None

    def plan(self) -> Counter[str]:
        """Report what a round would do. Changes nothing. Raises what `run` raises."""
        return self._report.plan(self._planned())

    def _planned(self) -> Iterator[str]:
        head = self._log.head()
        if head is None:
            return
        if missing := self._missing(head.decision):
            yield f"publish a transaction to {', '.join(missing)}"
        if self._is_unused(head):
            yield "expire it"
        state = self._log.state()
        yield from self._log_maintenance.plan_checkpoint(state.version)
        log = positioned(self._store, self._folder, self._clock, state)
        yield from self._log_maintenance.plan_clean_up(log)

    def run(self) -> Counter[str]:
        """Do all that is due. Returns counts by kind of action. Raises Corrupt, Incompatible,
        Unavailable, OutcomeUnknown, CheckpointFailed.
        """
        self._report.begin()
        head = self._log.head()
        if head is None:
            return self._report.counts
        compare_clocks(self._store, self._clock)
        deadline = self._clock.monotonic() + PUBLISH_TIMEOUT_S
        if head.decision is not None and (missing := self._missing(head.decision)):
            self._report.line(f"publish a transaction to {', '.join(missing)}")
            self._publisher.publish(head.decision, deadline)
            self._published = head.decision.key
            self._report.counts["transactions published"] += 1
            metrics.TRANSACTIONS_PUBLISHED.add()
        if self._is_unused(head):
            self._expire(head, deadline)
        state = self._log.state()
        self._log_maintenance.write_checkpoint(state)
        if self._log_maintenance.is_clean_up_due():
            self._clean_log()
        return self._report.counts

    def is_waiting(self) -> bool:
        """Whether log entries wait for the grace period before they are removed."""
        return self._log_maintenance.is_waiting()

    def finish(self) -> Counter[str]:
        """After the grace period: remove what waited for it. Raises what `run` raises."""
        self._report.begin()
        self._clean_log()
        return self._report.counts

    def _missing(self, decision: Decision | None) -> list[str]:
        """Where a decision is not published yet."""
        if decision is None or decision.key == self._published:
            return []
        missing = self._publisher.missing(decision)
        if not missing:
            self._published = decision.key
        return missing

    def _is_unused(self, head: TransactionHead) -> bool:
        # The files of a Spark query keep the epoch 0: a later one would not protect them.
        if head.is_of_query:
            return False
        oldest_ms = expiry_ms(self._store, self._clock) - self._expiration_ms
        return not head.is_expired and head.time_ms < oldest_ms

    def _expire(self, head: TransactionHead, deadline: float) -> None:
        self._report.line("expire it")
        if head.decision is not None:
            # Again: what was found published may not be durable, and the decision is dropped.
            self._publisher.publish(head.decision, deadline)
        if self._log.expire(head, deadline):
            self._report.counts["transactional ids expired"] += 1

    def _clean_log(self) -> None:
        log = positioned(self._store, self._folder, self._clock, self._log.state())
        finish(self._log_maintenance.clean(log))
