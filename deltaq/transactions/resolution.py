"""Resolution: a process that needs the outcome of another one's transaction publishes it, or aborts
it if it is not decided. It never waits for that other process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from deltaq import metrics
from deltaq.clock import Clock
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import Corrupt, Incompatible
from deltaq.groups.log import GroupLog
from deltaq.groups.transaction_offsets import TransactionOffsets
from deltaq.names import TRANSACTIONS_FOLDER, TransactionKey, named, parse_staged_file
from deltaq.share_groups.log import ShareLog
from deltaq.store import Store
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import AbortReason

_log = logging.getLogger("deltaq.transactions")


def resolve_transaction(
    store: Store, transaction: TransactionKey, reason: AbortReason, clock: Clock, deadline: float
) -> bool:
    """End a transaction: publish it if it is committed, abort it for this `reason` if it is not
    decided. Whether it is committed; False, too, for one whose id has gone on since: then it was
    published.

    Raises Unavailable, OutcomeUnknown, Corrupt, Incompatible; may be repeated.
    """
    log = TransactionLog(store, transaction.transactional_id, clock)
    head = log.abort(transaction, reason, deadline)
    if head is None or head.decision is None or not head.has_committed(transaction):
        return False
    Publisher.of(log, store, clock).publish(head.decision, deadline)
    metrics.TRANSACTIONS_PUBLISHED.add()
    return True


def publish_sent_offsets(store: Store, clock: Clock, deadline: float) -> None:
    """Publish each decision that has sent offsets to a group, where it is not: then no topic lacks
    the records of a transaction whose offsets a group had before. Raises Unavailable,
    OutcomeUnknown.
    """
    with raising_unavailable():
        ids = list(named(TRANSACTIONS_FOLDER, store.list_folders(TRANSACTIONS_FOLDER)))

    def publish(transactional_id: str) -> None:
        log = TransactionLog(store, transactional_id, clock)
        try:
            head = log.head()
            # Earlier decisions are published: the id goes on only then.
            decision = None if head is None else head.decision
            if decision is not None and decision.groups:
                publisher = Publisher.of(log, store, clock)
                if publisher.missing(decision):
                    publisher.publish(decision, deadline)
        except (Corrupt, Incompatible) as error:
            _log.warning(
                "perhaps not published transactional.id=%r: %s", transactional_id, error.error.str()
            )

    in_parallel_if_remote(store, clock, publish, ids)


def may_be_committed(
    store: Store, transaction: TransactionKey, age_ms: float, clock: Clock
) -> bool:
    """Whether a transaction that began at least `age_ms` ago is open, and its time-out is not over.
    Raises Unavailable, Corrupt, Incompatible.
    """
    head = TransactionLog(store, transaction.transactional_id, clock).head()
    return head is not None and head.is_open(transaction) and age_ms < head.timeout_ms


def resolve_files(
    store: Store, paths: Iterable[str], age_ms: float, clock: Clock, deadline: float
) -> frozenset[str]:
    """End the transactions of staged files that are at least `age_ms` old, so that none of them is
    committed later; open ones if their time-out is over. Returns the files that must stay: those of
    transactions which may still be committed because their time-out is longer, or whose log cannot
    be read. Raises Unavailable, OutcomeUnknown.
    """
    of: dict[TransactionKey, list[str]] = {}
    for path in sorted(paths):
        if (transaction := parse_staged_file(path)) is not None:
            of.setdefault(transaction, []).append(path)
    kept: list[str] = []
    for transaction, files in of.items():
        try:
            if not may_be_committed(store, transaction, age_ms, clock):
                _end(store, transaction, clock, deadline)
                continue
        except (Corrupt, Incompatible) as error:
            # One damaged log must not end the orphan removal of the topics.
            _log.warning("files of a transaction are kept: %s", error.error.str())
        kept += files
    return frozenset(kept)


def _end(store: Store, transaction: TransactionKey, clock: Clock, deadline: float) -> None:
    log = TransactionLog(store, transaction.transactional_id, clock)
    head = log.abort(transaction, AbortReason.TIMEOUT, deadline)
    if head is not None and head.is_of_query:
        # A driver may be about to commit files of an earlier number under the next one. It finds
        # that number taken, and then that the topic holds these files for removed.
        following = transaction._replace(epoch=head.epoch, number=head.number + 1)
        head = log.abort(following, AbortReason.TIMEOUT, deadline)
    if head is not None and head.decision is not None:
        # It may have these files under another number: a micro-batch of Spark may.
        Publisher.of(log, store, clock).publish(head.decision, deadline)


def resolve_offsets(
    store: Store,
    group_log: GroupLog,
    pending: Iterable[TransactionOffsets],
    reason: AbortReason,
    clock: Clock,
    deadline: float,
) -> None:
    """End the transactions of these pending offsets of a group. Raises as `resolve_transaction`."""
    for of in pending:
        is_committed = resolve_transaction(store, of.transaction, reason, clock, deadline)
        # What is left belongs to no decision. A Spark query leaves it that was given another group
        # before it has repeated a micro-batch.
        group_log.resolve(of.transaction, deadline, is_committed=False)
        _log.info(
            "%s the offsets of a transaction group=%r transactional.id=%r",
            "committed" if is_committed else "dropped",
            group_log.group,
            of.transaction.transactional_id,
        )


def resolve_acknowledgements(
    store: Store,
    share_log: ShareLog,
    transactions: Iterable[TransactionKey],
    reason: AbortReason,
    clock: Clock,
    deadline: float,
    unreadable: dict[TransactionKey, str],
) -> int:
    """End these transactions, which have acknowledgements in a share group. Returns their number
    without those whose log cannot be read: their messages stay locked. Raises Unavailable,
    OutcomeUnknown.

    `unreadable` has why these could not be ended in earlier calls. A warning is logged once for
    each reason: a member calls this with each poll.
    """
    ended = 0
    for transaction in transactions:
        try:
            is_committed = resolve_transaction(store, transaction, reason, clock, deadline)
        except (Corrupt, Incompatible) as error:
            # One damaged log must not end the work of the group.
            why = error.error.str()
            if unreadable.get(transaction) != why:
                _log.warning("messages of a transaction stay locked: %s", why)
            unreadable[transaction] = why
            continue
        unreadable.pop(transaction, None)
        # What is left belongs to no decision.
        share_log.resolve_transaction(transaction, deadline, is_committed=False)
        ended += 1
        _log.info(
            "%s the acknowledgements of a transaction group=%r transactional.id=%r",
            "committed" if is_committed else "dropped",
            share_log.group,
            transaction.transactional_id,
        )
    return ended
