"""The transactional methods of `Producer`, as in `confluent_kafka`, and a transaction as a context
manager.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.message import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, TopicPartition
from deltaq.share_groups.state import error_text
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    ShareGroupMetadata,
)

if TYPE_CHECKING:
    from deltaq.producer.transactions import Transactions


_log = logging.getLogger("deltaq.transactions")

_NOT_KNOWN = {OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED}


class TransactionConsumer(Protocol):
    """What a transaction needs of the consumer whose positions it commits."""

    @property
    def commits_automatically(self) -> bool: ...
    def assignment(self) -> list[TopicPartition]: ...
    def consumer_group_metadata(self) -> bytes: ...
    def seek(self, partition: TopicPartition) -> None: ...
    def _unsent(self) -> list[TopicPartition]: ...
    def _to_send(self) -> list[TopicPartition]: ...
    def _mark_sent(self) -> None: ...


@runtime_checkable
class TransactionShareConsumer(Protocol):
    """What a transaction needs of the share consumer whose messages it acknowledges."""

    def share_group_metadata(self) -> ShareGroupMetadata: ...
    def acknowledgements_for_transaction(self) -> ShareAcknowledgements: ...
    def _undo_transaction(
        self, handed_over: ShareAcknowledgements, error: BaseException | None
    ) -> None: ...


class TransactionCalls:
    """The transactional methods. They raise KafkaException: _NOT_CONFIGURED without a
    `transactional.id`, _STATE for a call in the wrong state. Of an error, `retriable()` means that
    the same call goes on where it stopped, `txn_requires_abort()` that the transaction must be
    aborted, and `fatal()` that this producer does not have its id any more: close it.

    A call while another one is in progress, in a delivery callback or in another thread, is refused
    with _CONFLICT, or _PREV_IN_PROGRESS if that is the same method. Both are retriable. Only
    `abort_transaction` may be called in a callback that `commit_transaction` runs.

    `timeout` is in seconds; -1 and None mean `transaction.timeout.ms`.
    """

    _transactions: Transactions | None

    def init_transactions(self, timeout: float | None = -1, /) -> None:
        """Take the `transactional.id`: the producer that had it before is fenced. What that one has
        committed is published, and the rest is aborted. Called once, before the first transaction.
        """
        self._configured().init(timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction: what is produced from now on belongs to it. Does no I/O."""
        self._configured().begin()

    def send_offsets_to_transaction(
        self,
        positions: list[TopicPartition],
        group_metadata: object,
        timeout: float | None = -1,
        /,
    ) -> None:
        """Commit these offsets of a consumer's group with the transaction. `group_metadata` is what
        `Consumer.consumer_group_metadata` returns.

        Negative offsets are left out. Requires an abort if the consumer does not own the partitions
        any more (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID).
        """
        self._configured().send_offsets(positions, group_metadata, timeout)

    def send_share_acknowledgements_to_transaction(
        self,
        acknowledgements: ShareAcknowledgements,
        group_metadata: ShareGroupMetadata,
        timeout: float | None = -1,
        /,
    ) -> None:
        """Acknowledge messages of a share consumer with the transaction: what
        `ShareConsumer.acknowledgements_for_transaction` and `share_group_metadata` return.

        Until the transaction has ended, the messages stay locked. After an abort they are delivered
        again. Requires an abort if the consumer does not hold all of them any more
        (INVALID_RECORD_STATE); so does the commit if the lock of one of them was over before.
        """
        self._configured().send_acknowledgements(acknowledgements, group_metadata, timeout)

    def commit_transaction(self, timeout: float | None = -1, /) -> None:
        """Commit: write what is still queued, decide, and make the messages and offsets visible.
        Runs delivery callbacks; what they raise is raised after the commit.

        Requires an abort if a message could not be written, or if the transaction has lasted longer
        than `transaction.timeout.ms`. After a retriable error the outcome may be open: the same
        call, repeated, tells it.
        """
        self._configured().commit(timeout)

    def abort_transaction(self, timeout: float | None = -1, /) -> None:
        """Abort: nothing of the transaction will be visible. Messages still queued are reported
        with _PURGE_QUEUE, those being written with _PURGE_INFLIGHT. Runs delivery callbacks; what
        they raise is raised after the abort.
        """
        self._configured().abort(timeout)

    def transaction(
        self, *, consumer: TransactionConsumer | TransactionShareConsumer | None = None
    ) -> TransactionBlock:
        """A transaction as a context manager: it begins with the block, commits after it, and
        aborts if an exception leaves it.

        With a `consumer` the commit includes its positions: the offsets after the last messages
        that it has returned, or those at which it goes on after `seek`. After an abort it continues
        at its committed offsets, as after a restart. Raises InvalidConfig for a consumer with
        `enable.auto.commit`: it could commit offsets whose transaction is aborted.

        With a `ShareConsumer` the commit includes what it has decided of its messages; in implicit
        mode all that it has returned are accepted. After an abort all of them are delivered again,
        after 1 s, and after twice as long each further time. The text of the exception is in the
        dead letter of one that was delivered too often.

        An error that requires an abort is raised after the abort.
        """
        of: TransactionInput | None = None
        if isinstance(consumer, TransactionShareConsumer):
            of = ShareInput(consumer)
        elif consumer is not None:
            of = PositionInput.of(consumer)
        return TransactionBlock(self, self._configured(), of)

    def _configured(self) -> Transactions:
        self._check_open()
        if self._transactions is None:
            reason = "The Transactional API requires transactional.id to be configured"
            raise KafkaException(KafkaError(KafkaError._NOT_CONFIGURED, reason))
        return self._transactions

    if TYPE_CHECKING:

        def _check_open(self) -> None: ...


class TransactionInput(Protocol):
    """What a consumer has read for a transaction."""

    def begin(self) -> None:
        """A transaction is about to begin."""

    def send(self, transactions: Transactions) -> None:
        """Have the transaction decide of what was read."""

    def undo(self, error: BaseException | None) -> None:
        """The transaction is aborted because of this error: what was read for it is to be read
        again.
        """


class PositionInput:
    """The positions of a consumer."""

    def __init__(self, consumer: TransactionConsumer) -> None:
        self._consumer = consumer
        self._moved_before: set[tuple[TopicPartition, int]] = set()

    @classmethod
    def of(cls, consumer: TransactionConsumer) -> PositionInput:
        """Raises InvalidConfig for a consumer that commits by itself."""
        if consumer.commits_automatically:
            raise InvalidConfig(
                "the consumer of a transaction must not commit by itself: give it "
                "enable.auto.commit=False",
                key="enable.auto.commit",
            )
        return cls(consumer)

    def begin(self) -> None:
        self._moved_before = {(of, of.offset) for of in self._consumer._to_send()}

    def send(self, transactions: Transactions) -> None:
        """Send the positions. Raises KafkaException."""
        if removed := self._consumer._unsent():
            lost = ", ".join(f"{of.topic}[{of.partition}]" for of in removed)
            reason = f"{lost} was taken away after messages of it: the transaction was aborted"
            error = KafkaError(KafkaError.ILLEGAL_GENERATION, reason, txn_requires_abort=True)
            raise KafkaException(error)
        wanted = self._consumer._to_send()
        for of in wanted:
            # Before the block, such a seek may be of a program that began to read anew.
            if of.offset in _NOT_KNOWN and (of, of.offset) not in self._moved_before:
                reason = (
                    f"{of.topic}[{of.partition}] was moved by seek after messages of it, to an "
                    "offset that is not known: the transaction was aborted"
                )
                raise KafkaException(KafkaError(KafkaError._STATE, reason, txn_requires_abort=True))
        transactions.send_offsets(wanted, self._consumer.consumer_group_metadata(), -1)
        self._consumer._mark_sent()

    def undo(self, error: BaseException | None) -> None:  # noqa: ARG002 - as TransactionInput
        """Have the consumer continue at its committed offsets."""
        for held in self._consumer.assignment():
            self._consumer.seek(TopicPartition(held.topic, held.partition, OFFSET_STORED))
        self._consumer._mark_sent()


class ShareInput:
    """The messages of a share consumer, and what it has decided of them."""

    def __init__(self, consumer: TransactionShareConsumer) -> None:
        self._consumer = consumer
        self._handed_over = ShareAcknowledgements()

    def begin(self) -> None:
        self._handed_over = ShareAcknowledgements()

    def send(self, transactions: Transactions) -> None:
        """Send what is decided. Raises KafkaException."""
        self._handed_over = self._consumer.acknowledgements_for_transaction()
        metadata = self._consumer.share_group_metadata()
        transactions.send_acknowledgements(self._handed_over, metadata, -1)

    def undo(self, error: BaseException | None) -> None:
        """Have the messages delivered again."""
        self._consumer._undo_transaction(self._handed_over, error)


class TransactionBlock:
    """A transaction as a context manager; see `Producer.transaction`."""

    def __init__(
        self,
        producer: TransactionCalls,
        transactions: Transactions,
        input_: TransactionInput | None,
    ) -> None:
        self._producer = producer  # a producer that is dropped would lose what is queued
        self._transactions = transactions
        self._input = input_

    def __enter__(self) -> None:
        if self._input is not None:
            self._input.begin()
        try:
            self._transactions.begin()
        except BaseException as failure:
            # What was consumed for this block is in no transaction. If another one is open, this
            # may be a block within a block, which has the messages.
            if not self._transactions.can_abort:
                self._undo(failure)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abort(error)
            return
        try:
            # First, so that what a callback raises aborts. `commit` would raise it at its end.
            self._transactions.serve()
            if self._input is not None:
                self._send(self._input)
        except BaseException as failure:
            self._abort(failure)
            raise
        try:
            self._commit()
        # A callback can raise anything, and so can a signal handler.
        except BaseException as failure:
            is_fatal = isinstance(failure, KafkaException) and failure.error.fatal()
            if self._transactions.can_abort or is_fatal:
                self._abort(failure)
            raise

    def _send(self, input_: TransactionInput) -> None:
        try:
            input_.send(self._transactions)
        except KafkaException as failure:
            about = failure.error
            if not about.retriable():
                raise
            # The caller cannot repeat this call.
            reason = f"{about.str()}: the transaction was aborted"
            aborted = KafkaError(about.code(), reason, txn_requires_abort=True)
            raise KafkaException(aborted) from failure

    def _commit(self) -> None:
        """Commit, as often as it takes: while the store does not answer, the outcome is open."""
        while True:
            try:
                self._transactions.commit(-1)
            except KafkaException as failure:
                # Any other one ends at once: another thread's call is in progress, or has failed.
                if failure.error.code() != KafkaError._TIMED_OUT or not failure.error.retriable():
                    raise
                _log.warning("the commit of a transaction is repeated: %s", failure.error.str())
            else:
                return

    def _abort(self, error: BaseException) -> None:
        """Abort, and have the input read again, also if this producer was fenced. The error that
        led here is the one to report.
        """
        try:
            self._transactions.abort(-1, error_text(error))
        except Exception as failure:  # noqa: BLE001 - a callback may raise anything
            _log.info("an error in the abort of a transaction: %s", failure)
        finally:
            self._undo(error)

    def _undo(self, error: BaseException) -> None:
        if self._input is not None:
            self._input.undo(error)
