"""The transactions of one producer: which calls are valid when, and the steps of a commit.

A transaction is staged (uploaded), then decided by one entry in the log of its `transactional.id`,
then published. Each step may be repeated, so a call that ended with a time-out is called again, and
then goes on.
"""

from __future__ import annotations

import enum
import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, Protocol, TypeAlias

from deltaq import metrics, names
from deltaq.clock import Clock, checked_timeout, this_thread
from deltaq.config import ProducerConfig
from deltaq.delta.retry import error_pause_s
from deltaq.errors import (
    Fenced,
    InvalidConfig,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import MembershipMetadata
from deltaq.groups.offsets import CommittedOffset, metadata_fault
from deltaq.groups.state import Key
from deltaq.groups.transaction_offsets import LaterOffsets, TransactionOffsets
from deltaq.message import TopicPartition
from deltaq.names import TransactionKey
from deltaq.producer.sender import Sender
from deltaq.producer.staging import Staging
from deltaq.share_groups.log import ShareLog
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    ShareGroupMetadata,
)
from deltaq.store import Store
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.view import known_topic
from deltaq.transactions.log import DecisionNotPublished, TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import (
    TIMEOUT_MS_MAX,
    AbortReason,
    Decision,
    StagedRecords,
    TransactionAborted,
    fenced,
)

if TYPE_CHECKING:
    from deltaq.maintenance.log_maintenance import BackgroundLogMaintenance, LogKind

P = ParamSpec("P")
Method: TypeAlias = "Callable[Concatenate[Transactions, P], None]"


class Resolve(Protocol):
    """Ends a transaction in the log of one group."""

    def __call__(
        self, transaction: TransactionKey, deadline: float, *, is_committed: bool
    ) -> None: ...


_log = logging.getLogger("deltaq.transactions")


class State(enum.Enum):
    """The state of a producer's transactions, by librdkafka's names."""

    INIT = "Init"
    READY = "Ready"
    IN_TRANSACTION = "InTransaction"
    ABORTABLE = "AbortableError"
    BEGIN_COMMIT = "BeginCommit"
    """Messages are flushed; nothing is decided."""
    DECIDING = "CommittingTransaction"
    """The decision was sent. It is in the log, or may be."""
    DECIDED = "CommitNotAcked"
    """It is in the log, and not published everywhere."""
    ABORTING = "AbortingTransaction"
    FATAL = "FatalError"


_UNDECIDED = (State.IN_TRANSACTION, State.BEGIN_COMMIT, State.ABORTABLE, State.ABORTING)
_ABORT = "abort_transaction"


@dataclass(frozen=True, slots=True)
class Outlet:
    """What transactions need of their producer.

    `flush(deadline)` sends all messages, runs callbacks, and returns how many are left, and the
    first exception of a callback; `purge()` drops them; `admit(is_allowed)` says whether messages
    may be produced from now on; `senders()` are the producer's senders by topic.
    """

    flush: Callable[[float], tuple[int, Exception | None]]
    purge: Callable[[], None]
    admit: Callable[[bool], None]
    senders: Callable[[], Mapping[str, Sender]]


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call that is in progress."""

    name: str
    thread: int


def _call(name: str) -> Callable[[Method[P]], Method[P]]:
    """Decorate a method of `Transactions` that runs under its lock, and alone."""

    def decorated(method: Method[P]) -> Method[P]:
        @functools.wraps(method)
        def called(self: Transactions, /, *arguments: P.args, **keywords: P.kwargs) -> None:
            self.run(name, lambda: method(self, *arguments, **keywords))

        return called

    return decorated


class Transactions:
    """The transactions of one producer. Methods are those of `Producer`, under one lock."""

    def __init__(
        self,
        store: Store,
        config: ProducerConfig,
        clock: Clock,
        staging: Staging,
        lookup: TopicLookup,
        outlet: Outlet,
    ) -> None:
        self._store = store
        self._clock = clock
        self._id = names.check_transactional_id(config.transactional_id)
        self._client_id = config.client_id
        self._timeout_ms = config.transaction_timeout_ms
        self._staging = staging
        self._lookup = lookup
        self._outlet = outlet
        self._lock = clock.condition()  # re-entrant: a callback may call any method
        self._has_maintenance = config.maintenance_enable
        self._maintenance: list[BackgroundLogMaintenance] = []
        maintenance = self._maintained("transactional id", self._id)
        self._log = TransactionLog(store, self._id, clock, config.client_id, maintenance)
        self._groups: dict[str, GroupLog] = {}
        self._share_groups: dict[str, ShareLog] = {}
        others = Publisher.of(self._log, store, clock, config.client_id)
        self._publisher = replace(
            others,
            topic_log=self._topic_log,
            group_log=self._group_log,
            share_log=self._share_log,
        )
        self._of_others = others.topic_log
        self._state = State.INIT
        self._running: RunningCall | None = None
        self._failure: KafkaException | None = None  # why the transaction, or all, have to end
        self._raised: Exception | None = None  # by a callback
        self._begun_at = 0.0
        self._sent: set[str] = set()  # the groups to which the transaction has sent offsets
        self._acknowledged: set[str] = set()  # the share groups in which it acknowledges messages
        self._unsent: set[str] = set()  # those of both for which the last call has not ended
        self._decision: Decision | None = None  # of `DECIDED`
        # Acknowledgements of which the transaction decides, and whose consumers hear of it.
        self._handed_over: list[ShareAcknowledgements] = []

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self._outlet.admit(state is State.IN_TRANSACTION)

    # --- calls ---

    @_call("init_transactions")
    def init(self, timeout: float | None) -> None:
        """`Producer.init_transactions`."""
        self._check_state(State.INIT)
        if self._timeout_ms > TIMEOUT_MS_MAX:
            error = KafkaError(
                KafkaError.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms is {self._timeout_ms}, more than {TIMEOUT_MS_MAX}",
                fatal=True,
            )
            self._end_all(KafkaException(error))
        deadline = self._deadline(timeout)
        self._repeated(lambda: self._take_id(deadline), deadline, "taking the transactional.id")

    def _take_id(self, deadline: float) -> None:
        head = self._log.head()
        while True:
            decision = None if head is None else head.decision
            if decision is not None:
                self._publisher.publish(decision, deadline)
            key = None if decision is None else decision.key
            try:
                head = self._log.begin(self._timeout_ms, key, deadline)
            # This can happen when the producer before has decided meanwhile.
            except DecisionNotPublished:
                head = self._log.head()
                continue
            self._staging.transaction = TransactionKey(self._id, head.epoch, 0)
            self.state = State.READY
            _log.info("transactional.id=%r epoch=%d", self._id, head.epoch)
            return

    @_call("begin_transaction")
    def begin(self) -> None:
        """`Producer.begin_transaction`."""
        self._check_state(State.READY)
        # What another thread has produced while the transaction before ended is of that one.
        self._outlet.purge()
        before = self._staging.transaction
        self._sent, self._acknowledged, self._unsent = set(), set(), set()
        self._decision, self._handed_over = None, []
        self._failure = None
        self._begun_at = self._clock.uptime()
        self._staging.begin(before._replace(number=before.number + 1))
        self.state = State.IN_TRANSACTION

    @_call("send_offsets_to_transaction")
    def send_offsets(
        self,
        positions: Sequence[TopicPartition],
        group_metadata: object,
        timeout: float | None,
    ) -> None:
        """`Producer.send_offsets_to_transaction`."""
        offsets = [position for position in _positions(positions) if position.offset >= 0]
        metadata = MembershipMetadata.parse(group_metadata)
        group, topic_ids = metadata.group, metadata.topic_ids
        self._check_state(State.IN_TRANSACTION)
        if not offsets:
            return
        for position in offsets:
            if (fault := metadata_fault(position)) is not None:
                self._must_abort(fault)
        deadline = self._deadline(timeout)
        # First: they may be in the log after any exception.
        self._sent.add(group)

        def send() -> None:
            located = tuple(self._located(position, topic_ids) for position in offsets)
            sent = TransactionOffsets(self._staging.transaction, metadata.identity, located)
            log = self._group_log(group)
            try:
                log.send_offsets(sent, deadline)
            except LaterOffsets as later:
                # If this producer has the id, they are of a log of it that was removed, and whose
                # clock was ahead: they can never be committed.
                self._check_epoch()
                log.resolve(later.transaction, deadline, is_committed=False)
                log.send_offsets(sent, deadline)

        self._send(group, send, deadline, f"sending offsets to group {group!r}")

    @_call("send_share_acknowledgements_to_transaction")
    def send_acknowledgements(
        self,
        acknowledgements: ShareAcknowledgements,
        group_metadata: ShareGroupMetadata,
        timeout: float | None,
    ) -> None:
        """`Producer.send_share_acknowledgements_to_transaction`."""
        if not isinstance(acknowledgements, ShareAcknowledgements):
            raise TypeError(
                "expected what ShareConsumer.acknowledgements_for_transaction returns, not "
                f"{type(acknowledgements).__name__}"
            )
        if not isinstance(group_metadata, ShareGroupMetadata):
            raise TypeError(
                "expected what ShareConsumer.share_group_metadata returns, not "
                f"{type(group_metadata).__name__}"
            )
        self._check_state(State.IN_TRANSACTION)
        if not acknowledgements:
            return
        deadline = self._deadline(timeout)
        group, owner = group_metadata.group_id, group_metadata.member_id
        # First: they may be in the log after any exception.
        self._acknowledged.add(group)
        if all(each is not acknowledgements for each in self._handed_over):
            self._handed_over.append(acknowledgements)
        log, transaction = self._share_log(group), self._staging.transaction
        self._send(
            group,
            lambda: log.send_acknowledgements(transaction, acknowledgements, owner, deadline),
            deadline,
            f"acknowledging messages of share group {group!r}",
        )

    def _send(self, group: str, send: Callable[[], None], deadline: float, doing: str) -> None:
        """Send what the transaction decides in a group."""
        self._unsent.add(group)
        try:
            self._repeated(send, deadline, doing)
        except KafkaException as error:
            if error.error.retriable():
                raise
            if isinstance(error, Fenced) and error.error.code() == KafkaError._FENCED:
                self._end_all(error)
            self._must_abort(error)
        self._unsent.discard(group)

    def _located(self, position: TopicPartition, topic_ids: Mapping[Key, str]) -> CommittedOffset:
        """The position with the id of its topic: the one that the consumer has read, or else the
        present one. Raises KafkaException (UNKNOWN_TOPIC_OR_PART) for a partition that does not
        exist, Unavailable, Corrupt, Incompatible.
        """
        try:
            # A consumer of this process has read the records, and the topic's log with them.
            known = known_topic(self._store, position.topic, self._clock).newest
            head = None if known is None else known.state.view.last_head
            if head is None or head.deleted or not 0 <= position.partition < head.partitions:
                head = self._lookup.head(position.topic, position.partition)
        except (UnknownTopic, InvalidConfig) as error:
            code = KafkaError.UNKNOWN_TOPIC_OR_PART
            raise KafkaException(KafkaError(code, error.error.str())) from None
        topic, partition = key = position.topic, position.partition
        topic_id = topic_ids.get(key, head.topic_id)
        return CommittedOffset(topic, topic_id, partition, position.offset, position.metadata)

    @_call("commit_transaction")
    def commit(self, timeout: float | None) -> None:
        """`Producer.commit_transaction`."""
        self._check_state(State.IN_TRANSACTION, State.BEGIN_COMMIT, State.DECIDING, State.DECIDED)
        self._check_sent()
        started_at = self._clock.monotonic()
        deadline = self._deadline(timeout)
        if self.state in {State.IN_TRANSACTION, State.BEGIN_COMMIT}:
            self.state = State.BEGIN_COMMIT
            self._flush_all(deadline)
        if self.state is not State.DECIDED:
            self._repeated(lambda: self._decide(deadline), deadline, "deciding the transaction")
        if (decision := self._decision) is not None:
            self._repeated(
                lambda: self._publish(decision, deadline),
                deadline,
                "publishing the transaction",
            )
        self.state = State.READY
        metrics.TRANSACTION_LATENCY.observe(self._clock.monotonic() - started_at)
        metrics.TRANSACTIONS.add(outcome="committed")
        self._raise_of_callback()

    def _check_sent(self) -> None:
        """Refuse a commit whose offsets or acknowledgements may be missing in a group, or come to
        its log later.
        """
        if self._unsent:
            group = min(self._unsent)
            what, call = (
                ("acknowledgements", "send_share_acknowledgements_to_transaction")
                if group in self._acknowledged
                else ("offsets", "send_offsets_to_transaction")
            )
            reason = f"sending {what} to group {group!r} has not ended: call {call} again, or abort"
            raise KafkaException(KafkaError(KafkaError._STATE, reason))

    def _flush_all(self, deadline: float) -> None:
        transaction = self._staging.transaction
        left = self._flush(deadline)
        # A callback may have ended the transaction, and its files may be removed.
        self._check_state(State.BEGIN_COMMIT)
        if self._staging.transaction != transaction:
            raise KafkaException(KafkaError(KafkaError._STATE, "the transaction has ended"))
        if self._staging.failure is not None:
            self._must_abort(self._staging.failure)
        if left:
            reason = f"{left} messages of the transaction are not written yet: commit again"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason, retriable=True))

    def _decide(self, deadline: float) -> None:
        records = self._staging.sealed()
        if not (records or self._sent or self._acknowledged):
            return
        self._check_topics(records)
        # A decision that was sent may be in the log, however late it is now.
        if self.state is State.BEGIN_COMMIT and self._is_late():
            limit = f"transaction.timeout.ms ({self._timeout_ms})"
            reason = f"the transaction lasted longer than {limit}"
            self._must_abort(KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, reason)))
        draft = Decision(
            self._staging.transaction,
            0,
            records,
            tuple(sorted(self._sent)),
            share_groups=tuple(sorted(self._acknowledged)),
        )
        was_sent = self.state is State.DECIDING
        self.state = State.DECIDING
        try:
            self._decision = self._log.commit(draft, deadline, may_be_decided=was_sent)
        except TransactionAborted as aborted:
            reason = "another process has aborted the transaction: " + _why(aborted.reason)
            is_lost = aborted.reason is AbortReason.LOCK
            code = KafkaError.INVALID_RECORD_STATE if is_lost else KafkaError.INVALID_TXN_STATE
            self._must_abort(KafkaException(KafkaError(code, reason)))
        except Fenced as error:
            self._end_all(error)
        except OutcomeUnknown:
            raise
        except KafkaException as error:
            # An earlier try may be in the log, or may come to it late. This one is not.
            if was_sent:
                raise
            self.state = State.BEGIN_COMMIT
            if error.error.retriable():
                raise
            self._must_abort(error)
        self.state = State.DECIDED
        self._report(None)

    def _check_topics(self, records: Sequence[StagedRecords]) -> None:
        """Refuse the records of a topic that was deleted and created again inside the transaction:
        only some of them could be published.
        """
        written = Counter(staged.topic for staged in records)
        for topic, topic_ids in written.items():
            if topic_ids > 1:
                reason = "it was deleted and created again inside the transaction"
                self._must_abort(UnknownTopic(topic, reason=reason))

    def _flush(self, deadline: float) -> int:
        """Flush. Returns the number of messages that are left. What a callback raises is raised
        when the transaction has ended: it must not stop the call in the middle.
        """
        left, raised = self._outlet.flush(deadline)
        self._raised = self._raised or raised
        return left

    def _raise_of_callback(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def _is_late(self) -> bool:
        return (self._clock.uptime() - self._begun_at) * 1000 > self._timeout_ms

    def _publish(self, decision: Decision, deadline: float) -> None:
        self._publisher.publish(decision, deadline)
        senders = self._outlet.senders()
        for staged in decision.topics:
            if (sender := senders.get(staged.topic)) is not None:
                sender.topic.refresh()

    @_call(_ABORT)
    def abort(self, timeout: float | None, failure: str | None = None) -> None:
        """`Producer.abort_transaction`. After a `failure`, the text of an exception, messages of
        share groups are delivered again later, as `ShareLog.resolve_transaction` says.
        """
        self._check_state(*_UNDECIDED)
        try:
            self._abort(self._deadline(timeout), failure)
        finally:
            self._flush(self._clock.monotonic())
        self._raise_of_callback()

    def _abort(self, deadline: float, failure: str | None = None) -> None:
        """Abort, but for the callbacks of messages that this drops."""
        # What a callback in another thread produced now would be of the next transaction.
        self.state = State.ABORTING
        self._staging.end()
        self._outlet.purge()
        self._staging.remove()
        for group in sorted(self._sent):
            self._drop(group, self._group_log(group).resolve, deadline)
        for group in sorted(self._acknowledged):
            resolve = partial(self._share_log(group).resolve_transaction, failure=failure)
            self._drop(group, resolve, deadline)
        self.state = State.READY
        self._report(_abort_error(self._failure))
        metrics.TRANSACTIONS.add(outcome="aborted")
        try:
            self._check_epoch()
        except Fenced as error:
            self._end_all(error)
        except KafkaException as error:
            _log.info("an abort could not ask for a newer producer: %s", error)

    def _drop(self, group: str, resolve: Resolve, deadline: float) -> None:
        """Drop what is pending in a group. If that fails, a process that needs it finds the
        transaction aborted.
        """
        try:
            resolve(self._staging.transaction, deadline, is_committed=False)
        except KafkaException as error:
            _log.info("an aborted transaction stays pending in group=%r: %s", group, error)

    def _report(self, error: KafkaException | None) -> None:
        """Report the outcome of the transaction to the share consumers whose acknowledgements it
        has.
        """
        handed_over, self._handed_over = self._handed_over, []
        for acknowledgements in handed_over:
            acknowledgements.report(error)

    def _check_epoch(self) -> None:
        """Raise Fenced if the id has another epoch than this producer, and what
        `TransactionLog.head` raises.
        """
        head = self._log.head()
        if head is None or head.epoch != self._staging.transaction.epoch:
            raise fenced(self._id, head)

    def close(self) -> None:
        """Abort an open transaction; the caller runs callbacks. One that may be decided is left to
        the next producer.
        """
        with self._lock:
            if self.can_abort:
                try:
                    self._abort(self._deadline(0))
                except KafkaException as error:
                    _log.info("the transaction was not aborted cleanly: %s", error)
            elif self.state is State.DECIDING:
                reason = "the producer was closed before it knew the outcome of the transaction"
                self._report(KafkaException(KafkaError(KafkaError._TIMED_OUT, reason)))
            for maintenance in self._maintenance:
                maintenance.close()

    def serve(self) -> None:
        """Write what is queued, and run callbacks. Raises what a callback raises."""
        _, raised = self._outlet.flush(self._deadline(None))
        if raised is not None:
            raise raised

    # --- rules ---

    def run(self, name: str, call: Callable[[], None]) -> None:
        """Run a call under the lock. As in librdkafka, it is refused with a retriable
        KafkaException while another one is in progress: _CONFLICT, _PREV_IN_PROGRESS if that has
        the same name. It may come from a callback, for which the other one waits.
        """
        before = self._running
        # A callback may abort: the commit that runs it decides nothing then.
        is_nested = before is not None and before.thread == this_thread() and name == _ABORT
        if before is not None and not is_nested:
            raise KafkaException(_refusal(before.name, name))
        with self._lock:
            try:
                self._running = RunningCall(name, this_thread())
                call()
            finally:
                self._running = before

    @property
    def can_abort(self) -> bool:
        """Whether a transaction is open and certainly not decided."""
        return self.state in _UNDECIDED

    def check_may_produce(self) -> None:
        """Raise KafkaException: _STATE outside of a transaction, _FATAL after a fatal error."""
        if self.state is State.FATAL and self._failure is not None:
            reason = f"Unable to produce message: {self._failure.error.str()}"
            raise KafkaException(KafkaError(KafkaError._FATAL, reason)) from self._failure
        if self.state is not State.IN_TRANSACTION:
            reason = "Unable to produce message: Local: Erroneous state"
            raise KafkaException(KafkaError(KafkaError._STATE, reason))

    def refuse(self, error: KafkaException) -> None:
        """A message of the open transaction is not written, so that it cannot be committed."""
        self._staging.failed(error)

    def _check_state(self, *allowed: State) -> None:
        if self.state in allowed:
            return
        # After a failure each call but the abort reports it again, as librdkafka does.
        if self.state in {State.FATAL, State.ABORTABLE} and self._failure is not None:
            raise self._failure
        reason = f"Operation not valid in state {self.state.value}"
        raise KafkaException(KafkaError(KafkaError._STATE, reason))

    def _must_abort(self, error: KafkaException) -> NoReturn:
        """The transaction cannot be committed any more."""
        about = error.error
        reason = f"{about.str()}: current transaction must be aborted"
        failure = KafkaException(KafkaError(about.code(), reason, txn_requires_abort=True))
        self._failure, self.state = failure, State.ABORTABLE
        raise failure from error

    def _end_all(self, error: KafkaException) -> NoReturn:
        """The producer cannot be used any more."""
        self._staging.end()
        self._failure, self.state = error, State.FATAL
        self._report(error)
        if isinstance(error, Fenced):
            metrics.PRODUCERS_FENCED.add()
        raise error

    def _repeated(self, step: Callable[[], None], deadline: float, doing: str) -> None:
        """Run a step again until it ends or the deadline is over. Then it may be called again, so
        the error is a retriable time-out.
        """
        failures = 0
        while True:
            try:
                return step()
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, Unavailable) and not error.error.retriable():
                    raise
                failures += 1
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    reason = f"{doing}: {error.error.str()}; call again"
                    raise KafkaException(
                        KafkaError(KafkaError._TIMED_OUT, reason, retriable=True)
                    ) from error
            self._clock.sleep(min(left, error_pause_s(failures, self._clock.random())))

    def _deadline(self, timeout: float | None) -> float:
        """A time of `Clock.monotonic`. Without a time limit it is `transaction.timeout.ms`."""
        seconds = min(checked_timeout(timeout), self._timeout_ms / 1000)
        return self._clock.monotonic() + seconds

    def _topic_log(self, topic: str) -> TopicLog:
        """The position of the producer's own sender, which is at the end of the log."""
        sender = self._outlet.senders().get(topic)
        return self._of_others(topic) if sender is None else sender.log

    def _group_log(self, group: str) -> GroupLog:
        found = self._groups.get(group)
        if found is None:
            # A group whose offsets only transactions commit: no consumer maintains its log.
            maintenance = self._maintained("group", group)
            found = GroupLog(self._store, group, self._clock, self._client_id, maintenance)
            self._groups[group] = found
        return found

    def _share_log(self, group: str) -> ShareLog:
        found = self._share_groups.get(group)
        if found is None:
            # The group's consumers maintain its log.
            found = ShareLog(self._store, group, self._clock, self._client_id)
            self._share_groups[group] = found
        return found

    def _maintained(self, kind: LogKind, name: str) -> BackgroundLogMaintenance | None:
        """Maintenance of a log beside this producer, unless it is switched off."""
        if not self._has_maintenance:
            return None
        from deltaq.maintenance.log_maintenance import BackgroundLogMaintenance  # noqa: PLC0415 - `import deltaq` is lean

        maintenance = BackgroundLogMaintenance(self._store, kind, name, self._clock)
        self._maintenance.append(maintenance)
        return maintenance


def _why(reason: AbortReason | None) -> str:
    """Why another process has aborted a transaction."""
    late = "it lasted longer than transaction.timeout.ms"
    needed = "a consumer of the group needed the outcome of its offsets"
    if reason is AbortReason.TIMEOUT:
        return late
    if reason is AbortReason.LOCK:
        return (
            "the lock of messages that it acknowledges was over, so they are delivered again. Take "
            "fewer messages in each transaction, or set a longer share.record.lock.duration.ms"
        )
    # An earlier version gives no reason.
    return needed if reason is AbortReason.READER else f"{needed}, or {late}"


def _abort_error(failure: KafkaException | None) -> KafkaException:
    """Why acknowledgements of an aborted transaction do not count. `failure` is why it had to be
    aborted; None if the application has done so.
    """
    reason, code = "the transaction was aborted", KafkaError.INVALID_TXN_STATE
    if failure is not None:
        reason = f"{reason}: {failure.error.str()}"
        if failure.error.code() == KafkaError.INVALID_RECORD_STATE:
            code = KafkaError.INVALID_RECORD_STATE
    return KafkaException(KafkaError(code, reason))


def _refusal(running: str, name: str) -> KafkaError:
    """The error of a call beside one that is in progress."""
    if running == name:
        reason = f"Simultaneous {name} API calls not allowed"
        return KafkaError(KafkaError._PREV_IN_PROGRESS, reason, retriable=True)
    reason = f"Conflicting {running} API call is already in progress"
    return KafkaError(KafkaError._CONFLICT, reason, retriable=True)


def _positions(positions: object) -> list[TopicPartition]:
    if not isinstance(positions, list) or not all(
        isinstance(position, TopicPartition) for position in positions
    ):
        raise TypeError("expected a list of TopicPartition")
    for position in positions:
        if position.offset >= 2**63 - 1:
            raise InvalidConfig(
                f"offset {position.offset} is beyond the last that there can be", key="offset"
            )
    return positions
