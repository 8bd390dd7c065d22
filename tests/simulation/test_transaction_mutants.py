"""The simulation notices defects of transactions: each mutation of deltaq fails the checks of some
seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deltaq import Consumer, OutcomeUnknown, Producer
from deltaq.errors import Fenced
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import MembershipMetadata
from deltaq.maintenance.orphan_files import OrphanFileRemover
from deltaq.maintenance.run import TRANSACTIONAL_ID_EXPIRATION_MS
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import TransactionKey
from deltaq.producer.staging import Staging
from deltaq.producer.transactions import State, Transactions
from deltaq.topics.log import AlreadyCommitted, TopicLog
from deltaq.transactions import state
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import Application, TransactionAborted
from tests.depth import fifth
from tests.simulation.noticing import anomalies, expect_notice
from tests.simulation.scenario import Scenario, scenario_of
from tests.simulator.network import Faults

# --- the decision ---


def decides_for_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    committed = state.committed

    def lax(head, decision, now_ms):
        try:
            return committed(head, decision, now_ms)
        except Fenced:
            return replace(head, number=max(head.number, decision.key.number), decision=decision)

    patch.setattr("deltaq.transactions.log.committed", lax)


def decides_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    committed = state.committed

    def lax(head, decision, now_ms):
        try:
            return committed(head, decision, now_ms)
        except TransactionAborted:
            return replace(head, decision=decision)

    patch.setattr("deltaq.transactions.log.committed", lax)


def aborts_after_an_unknown_decision(patch: pytest.MonkeyPatch) -> None:
    commit = TransactionLog.commit

    def hasty(self, *arguments, **named):
        try:
            return commit(self, *arguments, **named)
        except OutcomeUnknown:
            raise TransactionAborted(None) from None

    patch.setattr(TransactionLog, "commit", hasty)


def takes_an_id_before_its_decision_is_published(patch: pytest.MonkeyPatch) -> None:
    def hasty(self, deadline):
        head = self._log.head()
        published = None if head is None or head.decision is None else head.decision.key
        head = self._log.begin(self._timeout_ms, published, deadline)
        self._staging.transaction = TransactionKey(self._id, head.epoch, 0)
        self.state = State.READY

    patch.setattr(Transactions, "_take_id", hasty)


def keeps_the_epoch_of_an_expired_id(patch: pytest.MonkeyPatch) -> None:
    def lax(head, now_ms):
        return replace(head, time_ms=now_ms, decision=None, is_expired=True)

    patch.setattr("deltaq.transactions.log.expired", lax)


# --- files ---


def adds_messages_of_an_aborted_transaction_to_the_next(patch: pytest.MonkeyPatch) -> None:
    def lax(self, topic, topic_id, segments):
        with self._lock:
            if self.is_open:
                self._files.setdefault((topic, topic_id), []).extend(segments)
            return self.is_open

    patch.setattr(Staging, "add", lax)
    patch.setattr(Producer, "purge", lambda self: None)


def removes_staged_files_of_decided_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrphanFileRemover, "_kept_by_transactions", lambda self, found, scan: frozenset())


# --- publication ---


def publishes_again_what_is_published(patch: pytest.MonkeyPatch) -> None:
    not_appended = TopicLog._not_appended

    def lax(self, *arguments, **named):
        found = not_appended(self, *arguments, **named)
        return None if isinstance(found, AlreadyCommitted) else found

    patch.setattr(TopicLog, "_not_appended", lax)


def publishes_to_one_topic_only(patch: pytest.MonkeyPatch) -> None:
    publish = Publisher.publish

    def partial(self, decision, deadline):
        publish(self, replace(decision, topics=decision.topics[:1]), deadline)

    patch.setattr(Publisher, "publish", partial)


def publishes_half_of_the_files(patch: pytest.MonkeyPatch) -> None:
    append = Publisher._append

    def partial(self, staged, decision, deadline):
        half = staged.segments[: (len(staged.segments) + 1) // 2]
        append(self, replace(staged, segments=half), decision, deadline)

    patch.setattr(Publisher, "_append", partial)


def publishes_each_file_by_itself(patch: pytest.MonkeyPatch) -> None:
    append = Publisher._append

    def singly(self, staged, decision, deadline):
        for number, segment in enumerate(staged.segments):
            self._clock.sleep(1.0 if number else 0.0)
            application = Application(f"{decision.published_as.app_id}-{number}", decision.version)
            one = replace(staged, segments=(segment,))
            append(self, one, replace(decision, application=application), deadline)

    patch.setattr(Publisher, "_append", singly)


def publishes_no_offsets(patch: pytest.MonkeyPatch) -> None:
    publish = Transactions._publish
    patch.setattr(
        Transactions,
        "_publish",
        lambda self, decision, deadline: publish(self, replace(decision, groups=()), deadline),
    )


def cuts_topics_at_their_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("deltaq.transactions.cut._behind", lambda ends: {})


# --- offsets ---


def accepts_offsets_of_a_former_owner(patch: pytest.MonkeyPatch) -> None:
    admitted = GroupLog._admitted

    def lax(self, *arguments):
        try:
            return admitted(self, *arguments)
        except Fenced:
            return []

    patch.setattr(GroupLog, "_admitted", lax)


def sends_offsets_as_the_newest_member(patch: pytest.MonkeyPatch) -> None:
    def newest(self):
        view = self._view()
        identity = None if view is None else view.identity
        return MembershipMetadata(self._group, identity).to_bytes()

    patch.setattr(Consumer, "consumer_group_metadata", newest)


def ignores_pending_offsets_of_an_earlier_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupLog, "undecided", lambda self, partitions, reader: [])


def drops_offsets_of_a_decided_transaction(patch: pytest.MonkeyPatch) -> None:
    def careless(store, group_log, pending, clock, deadline):
        for of in pending:
            group_log.resolve(of.transaction, deadline, is_committed=False)

    patch.setattr("deltaq.consumer.reader.resolve_offsets", careless)


def commits_offsets_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    resolve = GroupLog.resolve
    patch.setattr(
        GroupLog,
        "resolve",
        lambda self, key, deadline, *, is_committed: resolve(
            self, key, deadline, is_committed=True
        ),
    )


CLEANING = {
    "maintainers": 2,
    "maintenance_rest_s": 1.0,
    "timeout_ms": 60_000,
    "maintenance": MaintenanceSettings(
        scan_interval_ms=500, file_delete_delay_ms=1000, in_flight_ms=2000
    ),
}
"""Orphan files are removed soon."""

LOSSY = Faults(lost_request=0.1, lost_answer=0.3, late=0.2)
STALLING = Faults(stall=0.15, stall_s=20.0)
UNANSWERED = {
    "processors": 3,
    "transactional_ids": 3,
    "crashes": True,
    "faults": Faults(lost_answer=0.4, stall=0.1, stall_s=20.0),
}
"""Processes often end between a decision and its publication."""

ONE_PARTITION = {
    "processors": 3,
    "partitions": 1,
    "pauses": True,
    "faults": Faults(stall=0.3, stall_s=30.0),
}
"""Members often lose the only partition while they are suspended."""

EXPIRING = {"maintainers": 2, "id_expiration_ms": 5_000}
"""Producers are fenced while they have nothing to copy, and while they wait for their commit."""

RANDOM = {"random_programs": 3}
SHARED_ID = {"processors": 3, "transactional_ids": 1}
RESTLESS = {"crashes": True, "pauses": True}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "last", "more"),
    fifth(
        [
            (decides_for_an_older_epoch, 0, SHARED_ID),
            (decides_what_was_aborted, 27, {"faults": STALLING} | RESTLESS),
            (aborts_after_an_unknown_decision, 8, {"faults": LOSSY}),
            (takes_an_id_before_its_decision_is_published, 21, RESTLESS),
            (keeps_the_epoch_of_an_expired_id, 0, EXPIRING),
            (adds_messages_of_an_aborted_transaction_to_the_next, 6, {}),
            (removes_staged_files_of_decided_transactions, 8, CLEANING),
            (publishes_again_what_is_published, 1, {"faults": LOSSY}),
            (publishes_to_one_topic_only, 0, {}),
            (publishes_no_offsets, 0, {}),
            (cuts_topics_at_their_ends, 0, RESTLESS),
            (accepts_offsets_of_a_former_owner, 2, {"faults": STALLING} | RESTLESS),
            (sends_offsets_as_the_newest_member, 20, ONE_PARTITION),
            (ignores_pending_offsets_of_an_earlier_owner, 7, RESTLESS),
            (drops_offsets_of_a_decided_transaction, 13, UNANSWERED),
            (commits_offsets_of_aborted_transactions, 1, {}),
        ]
    ),
)
def test_a_broken_transaction_is_noticed(mutation, last, more, monkeypatch):
    expect_notice(mutation, last, lambda seed: transactions(seed, **more), monkeypatch)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "last", "more"),
    fifth(
        [
            (decides_for_an_older_epoch, 1, {}),
            (aborts_after_an_unknown_decision, 7, {"faults": LOSSY}),
            (adds_messages_of_an_aborted_transaction_to_the_next, 2, {}),
            (takes_an_id_before_its_decision_is_published, 6, RESTLESS),
            (publishes_to_one_topic_only, 0, {}),
            (publishes_half_of_the_files, 0, {}),
            (publishes_each_file_by_itself, 11, {"linger_ms": 0, "rest_s": 0.5}),
            (commits_offsets_of_aborted_transactions, 5, {}),
        ]
    ),
)
def test_the_history_alone_tells_of_a_broken_transaction(mutation, last, more, monkeypatch):
    def scenario(seed: int) -> Scenario:
        return transactions(seed, **(RANDOM | more))

    expect_notice(mutation, last, scenario, monkeypatch, anomalies)


def transactions(seed: int, **more: Any) -> Scenario:
    """Transactional programs that copy small messages, on topics and with ids that stay as they
    are.
    """
    steady = {
        "recreates": False,
        "random_programs": 0,
        "large_messages": False,
        "arrow_outputs": False,
        "id_expiration_ms": TRANSACTIONAL_ID_EXPIRATION_MS,
    }
    return replace(scenario_of(seed, "transactions"), **(steady | more))
