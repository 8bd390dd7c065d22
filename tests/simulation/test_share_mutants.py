"""The simulation notices defects of share groups: each mutation of deltaq fails the checks of some
seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deltaq import AcknowledgeType, OutcomeUnknown
from deltaq.share_consumer import consumer, returned, topics
from deltaq.share_consumer.consumer import ShareConsumer
from deltaq.share_groups import dead_letters, exchange, log, state
from deltaq.share_groups.dead_letters import DeadLetters
from deltaq.share_groups.exchange import Exchange
from deltaq.share_groups.locks import LockWatch
from deltaq.share_groups.log import ShareLog
from deltaq.share_groups.state import ARCHIVED, DeliveryLimit, OffsetSpan, SharePartition, Status
from deltaq.tools import redrive
from deltaq.tools.redrive import Redrive
from deltaq.topics.append_once import append_once
from deltaq.transactions.state import Decision
from tests.depth import fifth
from tests.simulation.noticing import expect_notice
from tests.simulation.scenario import SHARING, Scenario, scenario_of

# --- the log ---


def accepts_what_another_worker_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Status, "is_held", lambda self, owner, deliveries: self.lock is not None)


def ends_locks_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LockWatch, "over", lambda self, now, duration_s: frozenset(self._seen))


def ends_locks_by_the_time_of_the_first_look(patch: pytest.MonkeyPatch) -> None:
    """Of any lock, not of this one."""

    def observe(self: Any, partitions: Any, now: float) -> None:
        self.first = getattr(self, "first", now)
        self._seen = {lock: self.first for each in partitions for lock in each.locks()}

    patch.setattr(LockWatch, "observe", observe)


def counts_no_delivery_after_the_second(patch: pytest.MonkeyPatch) -> None:
    taken = state.taken

    def lax(partition: SharePartition, lock: Any, *about: Any) -> Any:
        after, found = taken(partition, lock, *about)
        spans = (
            replace(span, status=replace(span.status, deliveries=min(2, span.status.deliveries)))
            for span in after.spans
        )
        return state._normal(after.start, spans), [
            replace(each, deliveries=min(2, each.deliveries)) for each in found
        ]

    patch.setattr(exchange, "taken", lax)


def passes_the_limit_of_deliveries(patch: pytest.MonkeyPatch) -> None:
    given_back = DeliveryLimit.given_back
    patch.setattr(
        DeliveryLimit,
        "given_back",
        lambda self, *about: given_back(replace(self, deliveries=self.deliveries + 1), *about),
    )


def passes_available_records(patch: pytest.MonkeyPatch) -> None:
    def lax(span: OffsetSpan) -> bool:
        return span.status.lock is None

    patch.setattr(state, "_is_finished", lax)


def takes_records_beyond_its_view_of_the_topic(patch: pytest.MonkeyPatch) -> None:
    taken = state.taken

    def far(partition: SharePartition, lock: Any, until: int, *about: Any) -> Any:
        return taken(partition, lock, max(until, partition.end), *about)

    patch.setattr(exchange, "taken", far)


def archives_instead_of_releasing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveryLimit, "given_back", lambda self, status, *about: ARCHIVED)


def takes_what_another_worker_holds(patch: pytest.MonkeyPatch) -> None:
    taken = state.taken

    def greedy(partition: SharePartition, lock: Any, *about: Any) -> Any:
        free = state.without_locks(
            partition, lambda held: held.owner != lock.owner, DeliveryLimit(1_000_000)
        )
        return taken(free, lock, *about)

    patch.setattr(exchange, "taken", greedy)


# --- the worker ---


def confirms_what_may_not_be_written(patch: pytest.MonkeyPatch) -> None:
    exchanged = ShareLog.exchange

    def hopeful(self: Any, wanted: Any, deadline: float) -> Any:
        try:
            return exchanged(self, wanted, deadline)
        except OutcomeUnknown:
            _, result = self._tried
            return result

    patch.setattr(ShareLog, "exchange", hopeful)


def returns_what_a_lost_entry_has_taken(patch: pytest.MonkeyPatch) -> None:
    resolve = ShareLog.resolve

    def hopeful(self: Any, deadline: float) -> Any:
        result = None if self._tried is None else self._tried[1]
        resolve(self, deadline)
        return result

    patch.setattr(ShareLog, "resolve", hopeful)


def accepts_a_record_that_it_does_not_return(patch: pytest.MonkeyPatch) -> None:
    read = topics._read

    def lossy(key: Any, found: Any, taken: Any, damage: Any = None) -> Any:
        part = read(key, found, taken, damage)
        last = max(part.deliveries, default=0)
        if last % 7 != 5:
            return part
        left = {offset: count for offset, count in part.deliveries.items() if offset != last}
        kept = [message for message in part.messages if message.offset() != last]
        return replace(part, messages=kept, deliveries=left, others=topics._without(taken, left))

    patch.setattr(topics, "_read", lossy)


def returns_records_after_their_lock(patch: pytest.MonkeyPatch) -> None:
    take = ShareConsumer._take

    def late(self: Any, deadline: float) -> Any:
        uptime = self._clock.uptime()
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._clock, "uptime", lambda: uptime, raising=False)
            return take(self, deadline)

    patch.setattr(ShareConsumer, "_take", late)


def accepts_what_it_cannot_return(patch: pytest.MonkeyPatch) -> None:
    given_back = returned.given_back

    def accepted(ranges: Any) -> Any:
        accept = AcknowledgeType.ACCEPT
        return [replace(each, type=accept, unseen=False) for each in given_back(ranges)]

    patch.setattr(returned, "given_back", accepted)


def returns_messages_before_their_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topics, "deliver_at_ms", lambda headers: 0)


# --- dead letters ---


def archives_what_failed_without_a_dead_letter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveryLimit, "ended", lambda self, *about, **more: ARCHIVED)


def archives_before_the_dead_letters_are_written(patch: pytest.MonkeyPatch) -> None:
    def newest(self: Any, group: Any, deadline: float) -> int:
        records = dead_letters.dead_records(group.partitions())
        return records[-1].failure.since if records else -1

    patch.setattr(DeadLetters, "publish", newest)


def writes_dead_letters_again_with_later_ones(patch: pytest.MonkeyPatch) -> None:
    found = dead_letters.dead_records
    patch.setattr(dead_letters, "dead_records", lambda partitions, after=-1: found(partitions))


def archives_later_failures_too(patch: pytest.MonkeyPatch) -> None:
    without = state.without_dead_letters
    patch.setattr(exchange, "without_dead_letters", lambda state, until: without(state, 10**9))


# --- redrives ---


def copies_again_what_a_killed_redrive_has_copied(patch: pytest.MonkeyPatch) -> None:
    def unnamed(log: Any, store: Any, clock: Any, app_id: str, *about: Any) -> int:
        return append_once(log, store, clock, f"{app_id}/{clock.unique_id()}", *about)

    patch.setattr(redrive, "append_once", unnamed)


def archives_dead_letters_before_they_are_copied(patch: pytest.MonkeyPatch) -> None:
    append = Redrive._append

    def late(self: Any, topic: str, records: Any) -> None:
        published = max(since for since, *_ in records)
        self._log.exchange(Exchange("redrive", published=published), self._deadline())
        append(self, topic, records)

    patch.setattr(Redrive, "_append", late)


def leaves_the_last_of_several_dead_letters(patch: pytest.MonkeyPatch) -> None:
    append = Redrive._append

    def lossy(self: Any, topic: str, records: Any) -> None:
        append(self, topic, records[: max(1, len(records) - 1)])

    patch.setattr(Redrive, "_append", lossy)


def copies_only_dead_letters_of_the_first_partition(patch: pytest.MonkeyPatch) -> None:
    states = Redrive._states

    def some(self: Any, letters: Any) -> Any:
        return states(self, [each for each in letters if not each.origin.partition])

    patch.setattr(Redrive, "_states", some)


# --- transactions ---


def ends_the_locks_of_transactions_by_itself(patch: pytest.MonkeyPatch) -> None:
    """Without asking whether the transaction is decided."""

    def lax(partition: SharePartition, is_over: Any, limit: DeliveryLimit) -> SharePartition:
        def after(status: Status) -> Status:
            is_free = status.lock is not None and is_over(status.lock)
            return limit.given_back(status) if is_free else status

        return state._changed(partition, after)

    patch.setattr(exchange, "without_locks", lax)


def drops_acknowledgements_that_are_decided(patch: pytest.MonkeyPatch) -> None:
    """A worker that ends a transaction gives its messages back, whatever is decided."""

    _end_transactions(patch, is_committed=False)


def accepts_when_a_lock_is_over(patch: pytest.MonkeyPatch) -> None:
    """A worker that ends a transaction has it count, though it is not decided."""

    _end_transactions(patch, is_committed=True)


def _end_transactions(patch: pytest.MonkeyPatch, *, is_committed: bool) -> None:
    def careless(
        _: Any, log: Any, found: Any, reason: Any, clock: Any, until: float, *__: Any
    ) -> int:
        for each in found:
            log.resolve_transaction(each, until, is_committed=is_committed)
        return len(found)

    patch.setattr(consumer, "resolve_acknowledgements", careless)


def leaves_share_groups_out_of_decisions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Decision,
        "share_groups",
        property(lambda self: (), lambda self, value: None),
    )


def sends_what_the_worker_does_not_hold(patch: pytest.MonkeyPatch) -> None:
    """It leaves out what another worker holds, and goes on."""

    def lax(partitions: Any, acknowledgements: Any, owner: str, transaction: Any) -> Any:
        found = {
            key: state.sent(partitions[key], owner, of, transaction)[0]
            for key, of in acknowledgements.by_partition.items()
            if key in partitions
        }
        return {key: after for key, after in found.items() if after != partitions[key]}

    patch.setattr(log, "sent_partitions", lax)


def accepts_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareConsumer, "_undo_transaction", lambda self, handed_over: None)


MUTATIONS = {
    ends_the_locks_of_transactions_by_itself: 51,
    drops_acknowledgements_that_are_decided: 0,
    accepts_when_a_lock_is_over: 10,
    leaves_share_groups_out_of_decisions: 0,
    sends_what_the_worker_does_not_hold: 47,
    accepts_after_an_abort: 9,
    accepts_what_another_worker_holds: 10,
    ends_locks_at_once: 0,
    ends_locks_by_the_time_of_the_first_look: 6,
    counts_no_delivery_after_the_second: 1,
    passes_the_limit_of_deliveries: 9,
    passes_available_records: 1,
    takes_records_beyond_its_view_of_the_topic: 83,
    archives_instead_of_releasing: 1,
    takes_what_another_worker_holds: 0,
    confirms_what_may_not_be_written: 6,
    returns_what_a_lost_entry_has_taken: 25,
    accepts_a_record_that_it_does_not_return: 1,
    returns_records_after_their_lock: 14,
    accepts_what_it_cannot_return: 2,
    returns_messages_before_their_time: 0,
    archives_what_failed_without_a_dead_letter: 8,
    archives_before_the_dead_letters_are_written: 8,
    writes_dead_letters_again_with_later_ones: 23,
    archives_later_failures_too: 3,
    copies_again_what_a_killed_redrive_has_copied: 13,
    archives_dead_letters_before_they_are_copied: 55,
    leaves_the_last_of_several_dead_letters: 8,
    copies_only_dead_letters_of_the_first_partition: 0,
}
"""Each with the seed that noticed it last."""


def scenario(seed: int) -> Scenario:
    return scenario_of(seed, SHARING)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", fifth(list(MUTATIONS)), ids=lambda each: each.__name__)
def test_a_defect_is_noticed(mutation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_notice(mutation, MUTATIONS[mutation], scenario, monkeypatch)
