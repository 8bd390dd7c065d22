"""What a share group knows of a partition, and how each entry of its log changes it. Pure.

The specification is `docs/internals/format.md`, "Share groups". Each rule sees the state that the
entry would follow, so no clock decides: of an acknowledgement and the end of its lock, the one that
takes the next slot wins.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from deltaq.errors import printable
from deltaq.message import AcknowledgeType
from deltaq.names import TransactionKey, check_id, check_transactional_id
from deltaq.serde.json_text import compact_json, strict_json


class RecordState(enum.IntEnum):
    """What is decided of a record. The numbers are Kafka's."""

    AVAILABLE = 0
    """To be delivered; at once, or from a time on."""
    ACQUIRED = 1
    """Locked by the worker that has taken it."""
    ACKNOWLEDGED = 2
    """Processed. Never delivered again."""
    ARCHIVING = 3
    """Rejected, or delivered too often. Not delivered again; to be written to the dead-letter
    topic.
    """
    ARCHIVED = 4
    """Rejected, delivered too often, or removed from the topic. Never delivered again."""
    PENDING = 5
    """Acknowledged inside of a transaction, whose outcome the group does not know yet. It is locked
    until that is known. Kafka calls it TX_PENDING.
    """


_FINISHED = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)

_BACK_OFF_MS = 1_000, 600_000
"""Milliseconds after which a message is delivered again whose processing failed: at first, and at
most.
"""

_DOUBLINGS = 10
"""Times that this doubles before it is at its most."""

ERROR_CHARS_MAX = 500
"""Characters of an exception's text that the group's log keeps until the dead letter is written."""

_SENT = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
"""What a transaction may decide. To renew a lock is no decision."""


class RecordLock(NamedTuple):
    """A worker's lock on the records that it has taken in the entry `since`."""

    owner: str
    since: int


class Failure(NamedTuple):
    """Why the entry `since` has ended the deliveries of a record: a worker has rejected it, or it
    was delivered too often. `error` is what the last worker said; empty if it said nothing. Of a
    record that was `chosen`, it is the topic.
    """

    since: int
    is_rejected: bool
    error: str = ""


class PendingTransaction(NamedTuple):
    """A transaction with acknowledgements, and when the first of a partition were sent, in
    milliseconds since 1970 UTC.
    """

    key: TransactionKey
    time_ms: int


class PendingAcknowledgement(NamedTuple):
    """What becomes of a record if the transaction is committed: `type`, `visible_ms` and `error`
    are those of `Acknowledgement`.
    """

    transaction: PendingTransaction
    type: AcknowledgeType
    visible_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a record. `deliveries` counts how often it was taken, 0 once it is finished.
    `lock` is that of an acquired or pending record, `failure` that of an archiving one, `pending`
    that of a pending one. An available one is delivered from `visible_ms` on, a time in
    milliseconds since 1970 UTC; 0 is at once.
    """

    state: RecordState
    deliveries: int = 0
    lock: RecordLock | None = None
    visible_ms: int = 0
    failure: Failure | None = None
    pending: PendingAcknowledgement | None = None

    def is_held(self, owner: str, deliveries: int) -> bool:
        """Whether this worker has taken the record, in its delivery of this number, and may decide
        of it. Of a pending one its transaction decides.
        """
        return self._is_taken(owner, deliveries) and self.pending is None

    def is_pending(self, owner: str, deliveries: int, transaction: TransactionKey) -> bool:
        """Whether this worker has acknowledged this delivery in the transaction."""
        return self._is_taken(owner, deliveries) and self.is_of(transaction)

    def is_of(self, transaction: TransactionKey) -> bool:
        """Whether the record is acknowledged in this transaction."""
        return self.pending is not None and self.pending.transaction.key == transaction

    def _is_taken(self, owner: str, deliveries: int) -> bool:
        lock = self.lock
        return lock is not None and lock.owner == owner and self.deliveries == deliveries


def back_off_ms(deliveries: int) -> int:
    """Milliseconds until a message is delivered again whose processing failed in the delivery of
    this number.
    """
    doublings = max(0, min(deliveries - 1, _DOUBLINGS))
    return min(_BACK_OFF_MS[0] << doublings, _BACK_OFF_MS[1])


def error_text(error: BaseException | str | None) -> str:
    """What `Failure.error` says of an exception; empty for None. Raises TypeError."""
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {_text_of(error)}"
    elif not isinstance(error, str | None):
        raise TypeError(f"error must be an exception or str, not {type(error).__name__}")
    return printable(error or "")[:ERROR_CHARS_MAX]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its class may have a `__str__` of its own
        return "its text cannot be read"


ACKNOWLEDGED = Status(RecordState.ACKNOWLEDGED)
ARCHIVED = Status(RecordState.ARCHIVED)


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """The offsets `[first, end)`, which have one status."""

    first: int
    end: int
    status: Status


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a worker decides of the offsets `[first, end)`, which it has taken in their delivery of
    the number `deliveries`. Released records are delivered again from `visible_ms` on, as in
    `Status`; if they are `unseen`, this delivery does not count, because the application did not
    get them. `error` is that of `Failure`.
    """

    first: int
    end: int
    deliveries: int
    type: AcknowledgeType
    visible_ms: int = 0
    error: str = ""
    unseen: bool = False


@dataclass(frozen=True, slots=True, order=True)
class TakenRange:
    """The offsets `[first, end)`, which a worker has taken. `deliveries` counts this delivery."""

    first: int
    end: int
    deliveries: int


class FailedProcessing(NamedTuple):
    """The processing of records failed at `time_ms`, in milliseconds since 1970 UTC: they are
    delivered again after a delay that grows with their deliveries. `error` is that of `Failure`.
    """

    time_ms: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryLimit:
    """When the deliveries of records end: after `deliveries` of them, or if a worker rejects one.
    `dead_letters` is the version of the entry that is written; None if the group has no dead-letter
    topic for them.
    """

    deliveries: int
    dead_letters: int | None = None

    def ended(self, status: Status, error: str, *, is_rejected: bool) -> Status:
        """The status of a record that is not delivered again."""
        if self.dead_letters is None:
            return ARCHIVED
        failure = Failure(self.dead_letters, is_rejected, error)
        return Status(RecordState.ARCHIVING, status.deliveries, failure=failure)

    def given_back(self, status: Status, visible_ms: int = 0, error: str = "") -> Status:
        """The status of a record that is given back."""
        if status.deliveries >= self.deliveries:
            return self.ended(status, error, is_rejected=False)
        return Status(RecordState.AVAILABLE, status.deliveries, visible_ms=visible_ms)

    def given_back_after(self, status: Status, failed: FailedProcessing | None) -> Status:
        """The status of a record that is given back, at once unless its processing failed."""
        if failed is None:
            return self.given_back(status)
        return self.given_back(
            status, failed.time_ms + back_off_ms(status.deliveries), failed.error
        )


@dataclass(frozen=True, slots=True)
class SharePartition:
    """A partition of a share group.

    Records below `start` are finished, those from `end` on were never taken. `spans` cover all
    between, in order and without gap; neighbours differ, and the first one is not finished.
    """

    start: int
    spans: tuple[OffsetSpan, ...] = ()

    @property
    def end(self) -> int:
        """The first offset that was never taken."""
        return self.spans[-1].end if self.spans else self.start

    @property
    def undecided(self) -> int:
        """The number of records that were taken and are not finished."""
        return sum(span.end - span.first for span in self.spans if not _is_finished(span))

    def locks(self) -> Iterator[RecordLock]:
        """The locks of acquired and pending records; one may come several times."""
        return (span.status.lock for span in self.spans if span.status.lock is not None)

    def is_finished(self, offset: int) -> bool:
        """Whether a record is acknowledged or archived."""
        holds = (span for span in self.spans if span.first <= offset < span.end)
        return offset < self.start or any(map(_is_finished, holds))

    def failures(self) -> Iterator[tuple[OffsetSpan, Failure]]:
        """The records that are to be written to the dead-letter topic."""
        return (
            (span, span.status.failure) for span in self.spans if span.status.failure is not None
        )

    def pending(self) -> Iterator[tuple[OffsetSpan, PendingAcknowledgement]]:
        """The records that are acknowledged inside of transactions."""
        return (
            (span, span.status.pending) for span in self.spans if span.status.pending is not None
        )

    def encoded(self) -> str:
        """This state as the text of a domain."""
        texts = _Texts.of(self)
        spans = [[span.end - span.first, *texts.numbers(span.status)] for span in self.spans]
        return compact_json({"start": self.start, **texts.body(), "spans": spans})


def _is_finished(span: OffsetSpan) -> bool:
    return span.status.state in _FINISHED


@dataclass(frozen=True, slots=True)
class _Texts:
    """What the spans of a partition name by its position in a sorted list."""

    owners: Sequence[str]
    errors: Sequence[str] = ()
    transactions: Sequence[PendingTransaction] = ()

    @classmethod
    def of(cls, partition: SharePartition) -> _Texts:
        pending = [pending for _, pending in partition.pending()]
        errors = {failure.error for _, failure in partition.failures()}
        errors |= {each.error for each in pending}
        return cls(
            sorted({lock.owner for lock in partition.locks()}),
            sorted(errors - {""}),
            sorted({each.transaction for each in pending}),
        )

    @classmethod
    def parsed(cls, body: Mapping[str, Any]) -> _Texts:
        """Raises as `parse_partition`."""
        owners = [check_id(owner, "owner") for owner in body["owners"]]
        errors = body.get("errors", [])
        if not all(error and isinstance(error, str) for error in errors):
            raise ValueError("an error is no text")
        transactions = [
            PendingTransaction(
                TransactionKey(check_transactional_id(id_), _number(epoch), _number(number)),
                _number(time_ms),
            )
            for id_, epoch, number, time_ms in body.get("transactions", [])
        ]
        return cls(owners, errors, transactions)

    def body(self) -> dict[str, object]:
        found: dict[str, object] = {"owners": self.owners}
        if self.errors:
            found["errors"] = self.errors
        if self.transactions:
            found["transactions"] = [[*key, time_ms] for key, time_ms in self.transactions]
        return found

    def numbers(self, status: Status) -> Sequence[int]:
        """The status as numbers."""
        if (lock := status.lock) is not None:
            held = status.state, status.deliveries, bisect_left(self.owners, lock.owner), lock.since
            if (pending := status.pending) is None:
                return held
            transaction = bisect_left(self.transactions, pending.transaction)
            error = self._error(pending.error)
            return *held, transaction, int(pending.type), pending.visible_ms, *error
        if (failure := status.failure) is not None:
            about = failure.since, int(failure.is_rejected), *self._error(failure.error)
            return status.state, status.deliveries, *about
        if status.state is not RecordState.AVAILABLE:
            return (status.state,)
        found = (status.state, status.deliveries)
        return (*found, status.visible_ms) if status.visible_ms else found

    def _error(self, error: str) -> Sequence[int]:
        return (bisect_left(self.errors, error),) if error else ()

    def status(self, state: int, *numbers: int) -> Status:
        """The status of these numbers. Raises ValueError."""
        match RecordState(state), numbers:
            case RecordState.AVAILABLE, (deliveries, *visible_ms) if len(visible_ms) <= 1:
                visible = max(visible_ms, default=0)
                return Status(RecordState.AVAILABLE, deliveries, visible_ms=visible)
            case RecordState.ACQUIRED, (deliveries, owner, since) if deliveries and owner < len(
                self.owners
            ):
                lock = RecordLock(self.owners[owner], since)
                return Status(RecordState.ACQUIRED, deliveries, lock)
            case RecordState.PENDING, (deliveries, owner, since, at, kind, visible, *error) if (
                deliveries
                and owner < len(self.owners)
                and at < len(self.transactions)
                and kind in _SENT
                and self._has_error(error)
            ):
                lock, type_ = RecordLock(self.owners[owner], since), AcknowledgeType(kind)
                about = self.transactions[at], type_, visible, self._error_of(error)
                pending = PendingAcknowledgement(*about)
                return Status(RecordState.PENDING, deliveries, lock, pending=pending)
            case RecordState.ARCHIVING, (deliveries, since, rejected, *error) if (
                rejected <= 1 and self._has_error(error)
            ):
                failure = Failure(since, bool(rejected), self._error_of(error))
                return Status(RecordState.ARCHIVING, deliveries, failure=failure)
            case (RecordState.ACKNOWLEDGED | RecordState.ARCHIVED) as finished, ():
                return Status(finished)
        raise ValueError(f"{[state, *numbers]} is no status of records")

    def _has_error(self, numbers: Sequence[int]) -> bool:
        return len(numbers) <= 1 and max(numbers, default=-1) < len(self.errors)

    def _error_of(self, numbers: Sequence[int]) -> str:
        return self.errors[numbers[0]] if numbers else ""


def parse_partition(text: str) -> SharePartition:
    """The state in the text of a domain. Raises ValueError, KeyError, TypeError, and InvalidConfig
    for the id of an owner or transaction that is none.
    """
    body: Any = strict_json(text)
    texts = _Texts.parsed(body)
    start = at = _number(body["start"])
    spans = []
    for length, *numbers in body["spans"]:
        end = at + _number(length, 1)
        spans.append(OffsetSpan(at, end, texts.status(*map(_number, numbers))))
        at = end
    found = SharePartition(start, tuple(spans))
    if found != _normal(start, spans):
        raise ValueError("spans that follow each other have one status, or the first is finished")
    return found


def _number(value: object, lowest: int = 0) -> int:
    if type(value) is not int or value < lowest:
        raise ValueError(f"{value!r} is not a number from {lowest}")
    return value


# --- how entries change it ---


def _normal(start: int, spans: Iterable[OffsetSpan]) -> SharePartition:
    """The partition with these spans: neighbours of one status are joined, and `start` passes what
    is finished.
    """
    joined: list[OffsetSpan] = []
    for span in spans:
        if not joined and _is_finished(span):
            start = span.end
        elif joined and joined[-1].status == span.status:
            joined[-1] = replace(joined[-1], end=span.end)
        else:
            joined.append(span)
    return SharePartition(start, tuple(joined))


def _changed(partition: SharePartition, after: Callable[[Status], Status]) -> SharePartition:
    """The partition with another status of each span."""
    spans = (replace(span, status=after(span.status)) for span in partition.spans)
    return _normal(partition.start, spans)


def without_locks(
    partition: SharePartition, is_over: Callable[[RecordLock], bool], limit: DeliveryLimit
) -> SharePartition:
    """The records whose lock is over are given back, but not those that are pending."""

    def after(status: Status) -> Status:
        # The lock of a pending record ends with its transaction.
        is_free = status.lock is not None and status.pending is None and is_over(status.lock)
        return limit.given_back(status) if is_free else status

    return _changed(partition, after)


def acknowledged(
    partition: SharePartition,
    lock: RecordLock,
    acknowledgements: Collection[Acknowledgement],
    limit: DeliveryLimit,
) -> tuple[SharePartition, list[range]]:
    """The partition after acknowledgements of a worker, which do not overlap, and the offsets of
    those that count. Others are refused: the worker does not hold the record any more. What it
    renews has the new `lock`.
    """

    def after(status: Status, by: Acknowledgement) -> Status | None:
        if not status.is_held(lock.owner, by.deliveries):
            return None
        is_renewed = by.type is AcknowledgeType.RENEW
        return replace(status, lock=lock) if is_renewed else _decided(status, by, limit)

    return _decided_by(partition, acknowledgements, after)


def sent(
    partition: SharePartition,
    owner: str,
    acknowledgements: Collection[Acknowledgement],
    transaction: PendingTransaction,
) -> tuple[SharePartition, list[range]]:
    """The partition after acknowledgements of a worker were sent to a transaction, and the offsets
    of those that count, also if they were sent before. None of them renews a lock.
    """

    def after(status: Status, by: Acknowledgement) -> Status | None:
        if status.is_pending(owner, by.deliveries, transaction.key):
            return status
        if not status.is_held(owner, by.deliveries):
            return None
        pending = PendingAcknowledgement(transaction, by.type, by.visible_ms, by.error)
        return replace(status, state=RecordState.PENDING, pending=pending)

    return _decided_by(partition, acknowledgements, after)


def resolved(
    partition: SharePartition,
    transaction: TransactionKey,
    limit: DeliveryLimit,
    *,
    is_committed: bool,
    failed: FailedProcessing | None = None,
) -> SharePartition:
    """The partition after the end of a transaction: what it has acknowledged is decided, or given
    back; for later if the processing inside of it `failed`.
    """

    def after(status: Status) -> Status:
        by = status.pending
        if by is None or not status.is_of(transaction):
            return status
        if is_committed:
            return _decided(status, by, limit)
        return limit.given_back_after(status, failed)

    return _changed(partition, after)


def _decided_by(
    partition: SharePartition,
    acknowledgements: Collection[Acknowledgement],
    after: Callable[[Status, Acknowledgement], Status | None],
) -> tuple[SharePartition, list[range]]:
    """The partition after acknowledgements, which do not overlap, and the offsets of those that
    count: for which `after` has another status, not None.
    """
    ordered = sorted(acknowledgements, key=lambda each: each.first)
    firsts = [each.first for each in ordered]
    edges = [edge for each in ordered for edge in (each.first, each.end)]
    spans: list[OffsetSpan] = []
    applied: list[range] = []
    for piece in _split(partition.spans, edges):
        at = bisect_right(firsts, piece.first) - 1
        about = ordered[at] if at >= 0 and piece.first < ordered[at].end else None
        status = None if about is None else after(piece.status, about)
        if status is None:
            spans.append(piece)
        else:
            applied.append(range(piece.first, piece.end))
            spans.append(replace(piece, status=status))
    return _normal(partition.start, spans), applied


def _split(spans: Iterable[OffsetSpan], edges: Sequence[int]) -> Iterator[OffsetSpan]:
    """The spans in pieces, none of which crosses one of the edges, which are in order."""
    for span in spans:
        first = span.first
        for edge in edges[bisect_right(edges, first) :]:
            if edge >= span.end:
                break
            if edge > first:
                yield OffsetSpan(first, edge, span.status)
                first = edge
        yield OffsetSpan(first, span.end, span.status)


def _decided(
    status: Status, by: Acknowledgement | PendingAcknowledgement, limit: DeliveryLimit
) -> Status:
    """The status after an acknowledgement that does not renew the lock."""
    if by.type is AcknowledgeType.ACCEPT:
        return ACKNOWLEDGED
    if by.type is AcknowledgeType.REJECT:
        return limit.ended(status, by.error, is_rejected=True)
    if isinstance(by, Acknowledgement) and by.unseen:
        seen_before = status.deliveries - 1
        return Status(RecordState.AVAILABLE, seen_before, visible_ms=by.visible_ms)
    return limit.given_back(status, by.visible_ms, by.error)


def chosen(partition: SharePartition, topics: Mapping[int, str], version: int) -> SharePartition:
    """The partition after the entry `version` has chosen records to be copied to other topics, each
    offset to that of its topic, whatever is before them. Those that are finished, held or chosen
    already stay as they are. The error of their failure is the topic.
    """
    end = max([partition.end, *(offset + 1 for offset in topics)])
    free = Status(RecordState.AVAILABLE)
    spans = [*partition.spans, OffsetSpan(partition.end, end, free)]
    edges = sorted({edge for offset in topics for edge in (offset, offset + 1)})

    def after(piece: OffsetSpan) -> OffsetSpan:
        topic = topics.get(piece.first)
        if topic is None or piece.status.state is not RecordState.AVAILABLE:
            return piece
        failure = Failure(version, is_rejected=False, error=topic)
        return replace(piece, status=Status(RecordState.ARCHIVING, failure=failure))

    pieces = _split((span for span in spans if span.first < span.end), edges)
    return _normal(partition.start, map(after, pieces))


def not_chosen(partition: SharePartition, since: Mapping[int, int]) -> SharePartition:
    """The partition after records were given up that were chosen to be copied, each offset by the
    entry `since`: they may be chosen again.
    """
    edges = sorted({edge for offset in since for edge in (offset, offset + 1)})
    free = Status(RecordState.AVAILABLE)
    return _normal(
        partition.start,
        (
            replace(piece, status=free)
            if (failure := piece.status.failure) is not None
            and failure.since == since.get(piece.first)
            else piece
            for piece in _split(partition.spans, edges)
        ),
    )


def without_dead_letters(partition: SharePartition, until: int) -> SharePartition:
    """The records are archived whose dead letters are written: those that entries up to the version
    `until` have ended.
    """

    def after(status: Status) -> Status:
        is_written = status.failure is not None and status.failure.since <= until
        return ARCHIVED if is_written else status

    return _changed(partition, after)


def without_removed(partition: SharePartition, log_start: int) -> SharePartition:
    """The partition after the topic has removed the records below `log_start`. Those that a worker
    holds stay, until it has decided or its lock is over; and those that await the dead-letter
    topic.
    """
    spans = [
        replace(piece, status=ARCHIVED)
        if piece.end <= log_start and piece.status.state is RecordState.AVAILABLE
        else piece
        for span in partition.spans
        for piece in _cut(span, log_start)
    ]
    if partition.end < log_start:
        spans.append(OffsetSpan(partition.end, log_start, ARCHIVED))
    return _normal(partition.start, spans)


def _cut(span: OffsetSpan, at: int) -> Sequence[OffsetSpan]:
    if not span.first < at < span.end:
        return (span,)
    return replace(span, end=at), replace(span, first=at)


class LastDelivery(NamedTuple):
    """A record in its delivery of this number is taken alone: as the first one if it
    `may_be_taken`.
    """

    number: int
    may_be_taken: bool


def taken(
    partition: SharePartition,
    lock: RecordLock,
    until: int,
    records_max: int,
    undecided_max: int,
    now_ms: int,
    last: LastDelivery | None = None,
) -> tuple[SharePartition, list[TakenRange]]:
    """The partition after a worker has taken up to `records_max` records below the offset `until`,
    the end of the topic as the worker knows it: first those to be delivered again, then new ones.
    Of these no more than leave `undecided_max` records undecided. With `last`, what is in that
    delivery is taken alone.
    """
    spans: list[OffsetSpan] = []
    found: list[TakenRange] = []
    left = records_max

    def take(first: int, end: int, deliveries: int) -> None:
        nonlocal left
        left -= end - first
        found.append(TakenRange(first, end, deliveries))
        spans.append(OffsetSpan(first, end, Status(RecordState.ACQUIRED, deliveries, lock)))

    for span in partition.spans:
        status = span.status
        is_due = status.state is RecordState.AVAILABLE and status.visible_ms <= now_ms
        if last is not None and is_due and status.deliveries + 1 >= last.number:
            is_due = last.may_be_taken and not found and span.first < until
            left = min(left, 1) if is_due else left
        # Another worker may have read further: this one would find no records there.
        cut = min(span.end, span.first + left, until) if is_due else span.first
        cut = max(cut, span.first)
        if span.first < cut:
            take(span.first, cut, status.deliveries + 1)
        if cut < span.end:
            spans.append(replace(span, first=cut))
    if last is not None and last.number <= 1:  # new ones are in their last delivery, too
        left = min(left, 1) if last.may_be_taken and not found else 0
    end = min(until, partition.end + min(left, undecided_max - partition.undecided))
    if partition.end < end:
        take(partition.end, end, 1)
    return _normal(partition.start, spans), found
