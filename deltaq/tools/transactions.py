"""The transactions of a root: what each `transactional.id` is doing, and the end of what it has
left open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deltaq import names
from deltaq.admin.group_calls import GroupCalls
from deltaq.clock import Clock
from deltaq.delta.store_errors import reading
from deltaq.errors import KafkaException
from deltaq.groups.transaction_offsets import TransactionOffsets, transaction_offsets
from deltaq.names import TransactionKey
from deltaq.share_groups.log import ShareGroup
from deltaq.share_groups.transaction_acknowledgements import pending_transactions
from deltaq.store import Store
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.topics.listing import topic_names
from deltaq.topics.log import TopicLog
from deltaq.topics.view import known_topic
from deltaq.transactions.log import DecisionNotPublished, TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import AbortReason, TransactionHead

_Head: TypeAlias = "TransactionHead | KafkaException | None"

IDLE = "idle"
OPEN = "open"
DECIDED = "decided, not published"
PUBLISHED = "published"
PENDING = "pending offsets"
ACKNOWLEDGING = "pending acknowledgements"
EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The files of one transaction in one topic that neither the topic nor a decision names.
    `oldest_ms` is the time of the first one. `transaction` is None for all that have ended: merged
    files of committed ones stay for a while, so their number has no bound.
    """

    topic: str
    transaction: TransactionKey | None
    files: int
    bytes: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The pending offsets that a group has of one id."""

    group: str
    pending: TransactionOffsets


@dataclass(frozen=True, slots=True)
class GroupAcknowledgements:
    """The pending acknowledgements that a share group has of a transaction, the first of which were
    sent at `time_ms`, in milliseconds since 1970 UTC.
    """

    group: str
    transaction: TransactionKey
    time_ms: int


_Pending: TypeAlias = "GroupOffsets | GroupAcknowledgements"


@dataclass(frozen=True, slots=True)
class DecidedTopic:
    """A topic of the newest decision, with the files and records that it gets."""

    topic: str
    files: int
    rows: int


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """A `transactional.id` at one time: the newest epoch, the number of its last transaction that
    has ended, and its newest decision with where that is `missing`.

    `staged`, `pending` and `acknowledging` are of any transaction of the id. Its state is that of
    the newest one: `open` if it has written something, `pending offsets` if it has ended and a
    group still holds offsets of it, `pending acknowledgements` if a share group holds some.
    """

    name: str
    head: TransactionHead
    missing: Sequence[str] = ()
    pending: Sequence[GroupOffsets] = ()
    staged: Sequence[StagedFiles] = ()
    acknowledging: Sequence[GroupAcknowledgements] = ()

    @property
    def state(self) -> str:
        """What it does."""
        if self.missing:
            return DECIDED
        if self.began_ms is not None:
            return OPEN
        if self.pending:
            return PENDING
        if self.acknowledging:
            return ACKNOWLEDGING
        if self.head.is_expired:
            return EXPIRED
        return IDLE if self.head.decision is None else PUBLISHED

    @property
    def began_ms(self) -> int | None:
        """When its open transaction began, as far as it has written; None without one."""
        times = [of.oldest_ms for of in self.staged if of.transaction is not None]
        sent = [(of.pending.transaction, of.pending.time_ms) for of in self.pending]
        sent += [(of.transaction, of.time_ms) for of in self.acknowledging]
        times += [time_ms for transaction, time_ms in sent if self.head.is_open(transaction)]
        return min(times, default=None)

    def age_ms(self, now_ms: int) -> int:
        """The time since its open transaction began, or since its newest entry."""
        began_ms = self.began_ms
        return max(0, now_ms - (self.head.time_ms if began_ms is None else began_ms))

    @property
    def decided(self) -> list[DecidedTopic]:
        """The topics of its newest decision."""
        decision = self.head.decision
        return [
            DecidedTopic(of.topic, len(of.segments), sum(file.rows for file in of.segments))
            for of in ([] if decision is None else decision.topics)
        ]

    @property
    def topics(self) -> list[str]:
        """The topics of its newest decision, and those with files that no decision names."""
        return sorted({*(of.topic for of in self.decided), *(of.topic for of in self.staged)})

    @property
    def groups(self) -> list[str]:
        """The groups of its newest decision, and those with pending offsets or acknowledgements."""
        decision = self.head.decision
        decided = () if decision is None else (*decision.groups, *decision.share_groups)
        offsets, acknowledgements = self.pending, self.acknowledging
        pending = [*(of.group for of in offsets), *(of.group for of in acknowledgements)]
        return sorted({*decided, *pending})


@dataclass(frozen=True, slots=True)
class TransactionSurvey:
    """The ids of a root, and the errors of those that cannot be read. `strays` are files of ids
    without a log.
    """

    ids: Sequence[TransactionalId]
    errors: Mapping[str, KafkaException] = field(default_factory=dict)
    strays: Sequence[StagedFiles] = ()

    @property
    def left_files(self) -> list[StagedFiles]:
        """The files of transactions that have ended, in no topic: one entry for each topic."""
        staged = (files for of in self.ids for files in of.staged)
        return _summed([*(of for of in staged if of.transaction is None), *self.strays])


def survey(store: Store, clock: Clock, wanted: Collection[str] | None = None) -> TransactionSurvey:
    """The ids of a root, by name; with `wanted`, only these. Raises Unavailable."""
    folders = reading(lambda: store.list_folders(names.TRANSACTIONS_FOLDER))
    ids = names.named(names.TRANSACTIONS_FOLDER, folders)
    found = [name for name in ids if wanted is None or name in wanted]
    logs = [TransactionLog(store, name, clock) for name in found]
    heads = in_parallel_if_remote(store, clock, _head, logs)
    staged = _staged(store, clock, wanted, _decided_files(heads))
    pending = _pending(store, clock)

    def described(of: tuple[TransactionLog, _Head]) -> TransactionalId | KafkaException | None:
        log, head = of
        if not isinstance(head, TransactionHead):
            return head
        name, decision = log.transactional_id, head.decision
        try:
            missing = [] if decision is None else Publisher.of(log, store, clock).missing(decision)
        except KafkaException as error:
            return error
        files, held = _summed(staged.get(name, ()), head), pending.get(name, ())
        return TransactionalId(
            name,
            head,
            missing,
            [of for of in held if isinstance(of, GroupOffsets)],
            files,
            [of for of in held if isinstance(of, GroupAcknowledgements)],
        )

    parts = list(zip(logs, heads, strict=True))
    answers = dict(zip(found, in_parallel_if_remote(store, clock, described, parts), strict=True))
    return TransactionSurvey(
        [answer for answer in answers.values() if isinstance(answer, TransactionalId)],
        {name: answer for name, answer in answers.items() if isinstance(answer, KafkaException)},
        [files for name in staged.keys() - {*found} for files in staged[name]],
    )


def _head(log: TransactionLog) -> _Head:
    try:
        return log.head()
    except KafkaException as error:
        return error


def _decided_files(heads: Iterable[_Head]) -> frozenset[tuple[str, str]]:
    """The topics and paths of the files that decisions name."""
    decisions = (head.decision for head in heads if isinstance(head, TransactionHead))
    return frozenset(
        (of.topic, file.path)
        for decision in decisions
        if decision is not None
        for of in decision.topics
        for file in of.segments
    )


def _staged(
    store: Store,
    clock: Clock,
    wanted: Collection[str] | None,
    decided: Collection[tuple[str, str]],
) -> dict[str, list[StagedFiles]]:
    """By id, the staged files that neither their topics nor decisions name."""
    only = None if wanted is None or len(wanted) != 1 else next(iter(wanted))

    def of_topic(topic: str) -> list[tuple[TransactionKey, StagedFiles]]:
        return list(_staged_in(store, clock, topic, only, decided))

    found: dict[str, list[StagedFiles]] = {}
    for of_one in in_parallel_if_remote(store, clock, of_topic, topic_names(store)):
        for transaction, files in of_one:
            found.setdefault(transaction.transactional_id, []).append(files)
    return found


def _staged_in(
    store: Store,
    clock: Clock,
    topic: str,
    only: str | None,
    decided: Collection[tuple[str, str]],
) -> Iterator[tuple[TransactionKey, StagedFiles]]:
    folder = names.topic_folder(topic)
    prefix = names.staged_files_folder(folder, only)
    listed = reading(lambda: list(store.list(prefix)))
    if not listed:
        return
    # After the listing: what is committed meanwhile is not reported.
    log = TopicLog(store, topic, clock, known=known_topic(store, topic, clock))
    try:
        log.catch_up()
    except KafkaException:
        return  # the checks of topics report it
    named = log.state.files
    found: dict[TransactionKey, list[tuple[int, int]]] = {}
    for entry in listed:
        path = entry.key.removeprefix(folder)
        transaction = names.parse_staged_file(path)
        if transaction is not None and path not in named and (topic, path) not in decided:
            found.setdefault(transaction, []).append((entry.size, entry.modified_ms))
    for transaction, files in sorted(found.items()):
        size, oldest_ms = sum(size for size, _ in files), min(time_ms for _, time_ms in files)
        yield transaction, StagedFiles(topic, transaction, len(files), size, oldest_ms)


def _summed(files: Iterable[StagedFiles], head: TransactionHead | None = None) -> list[StagedFiles]:
    """The files of the transactions that are open by the `head`, and of each topic the others."""
    found: dict[tuple[str, TransactionKey | None], StagedFiles] = {}
    for of in files:
        is_open = head is not None and of.transaction is not None and head.is_open(of.transaction)
        key = of.topic, of.transaction if is_open else None
        before = found.get(key, StagedFiles(*key, 0, 0, of.oldest_ms))
        oldest_ms = min(before.oldest_ms, of.oldest_ms)
        found[key] = StagedFiles(*key, before.files + of.files, before.bytes + of.bytes, oldest_ms)
    return list(found.values())


def _pending(store: Store, clock: Clock) -> dict[str, list[_Pending]]:
    """By id, what is pending in all groups that can be read."""
    calls = GroupCalls(store, clock, "")

    def of_group(group: str) -> list[tuple[str, _Pending]]:
        try:
            state, folder = calls.log(group).state(), names.group_folder(group)
            share_group = ShareGroup(state, folder)
            if share_group.exists:
                found = pending_transactions(share_group.partitions().values())
                return [
                    (key.transactional_id, GroupAcknowledgements(group, key, time_ms))
                    for key, time_ms in sorted(found.items())
                ]
            offsets = transaction_offsets(state, folder)
            return [(id_, GroupOffsets(group, of)) for id_, of in offsets.items()]
        except KafkaException:
            return []  # the checks of groups report it

    found: dict[str, list[_Pending]] = {}
    for of_one in in_parallel_if_remote(store, clock, of_group, calls.names()):
        for transactional_id, of in of_one:
            found.setdefault(transactional_id, []).append(of)
    return found


def abort(store: Store, clock: Clock, transactional_id: str, deadline: float) -> TransactionHead:
    """End what an id has open: its producer is fenced by a new epoch, and pending offsets are
    dropped. A decided transaction is published before. Files are left to orphan removal. The new
    head. Raises what `DeltaLog.commit` raises, and ValueError for an id without a log.
    """
    log = TransactionLog(store, transactional_id, clock, "deltaq-admin")
    publisher = Publisher.of(log, store, clock)
    while True:
        head = log.head()
        if head is None:
            raise ValueError(f"no producer has used transactional.id {transactional_id!r}")
        decision = head.decision
        if decision is not None:
            publisher.publish(decision, deadline)
        try:
            published = None if decision is None else decision.key
            after = log.begin(head.timeout_ms, published, deadline, AbortReason.OPERATOR)
        except DecisionNotPublished:
            continue  # the producer has decided meanwhile
        calls = GroupCalls(store, clock, "")
        for of in _pending(store, clock).get(transactional_id, ()):
            drop, transaction = (
                (calls.log(of.group).resolve, of.pending.transaction)
                if isinstance(of, GroupOffsets)
                else (calls.share_log(of.group).resolve_transaction, of.transaction)
            )
            if transaction.epoch < after.epoch:  # otherwise a producer has begun since
                drop(transaction, deadline, is_committed=False)
        return after
