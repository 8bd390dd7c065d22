"""The log of a share group: workers take and acknowledge records by entries, each created if
absent.

It is the log that a consumer group of the same name would have, so its first entries decide which
of the two the group is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from deltaq import metrics, names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config.group import GroupSettings, group_settings
from deltaq.delta.actions import Action, CommitInfo, DomainMetadata
from deltaq.delta.known_log import KNOWN_LOGS, KnownLog
from deltaq.delta.log import Abandoned, DeltaLog, Draft
from deltaq.delta.resolve import resolve_commit
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.delta.tokens import commit_token
from deltaq.errors import (
    Corrupt,
    GroupInUse,
    Incompatible,
    InvalidConfig,
    KafkaError,
    KafkaException,
)
from deltaq.groups.commit_in_turn import CommitInTurn
from deltaq.groups.commit_turns import CommitTurns
from deltaq.groups.log import LogMaintainer, sync_topics, table_actions
from deltaq.groups.state import SHARE_FORMAT, SHARE_TYPE, group_head, is_share_group, is_there
from deltaq.names import TransactionKey
from deltaq.serde.json_text import compact_json, strict_json
from deltaq.share_groups.bindings import Binding, encoded_bindings, parse_bindings
from deltaq.share_groups.exchange import (
    Exchange,
    Exchanged,
    PartitionId,
    exchanged,
    resolved_partitions,
)
from deltaq.share_groups.locks import LockWatch
from deltaq.share_groups.state import (
    FailedProcessing,
    PendingTransaction,
    RecordLock,
    SharePartition,
    chosen,
    not_chosen,
    parse_partition,
    without_removed,
)
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    acknowledged_by,
    overdue_transactions,
    pending_transactions,
    sent_partitions,
)
from deltaq.store import Store
from deltaq.topics.log import ENGINE

SETTINGS_DOMAIN = "deltaq.settings"
"""The domain metadata of a group's settings: an object from name to text."""

DEAD_LETTERS_DOMAIN = "deltaq.dead_letters"
"""The domain metadata that counts the newest dead letters: `minute` since 1970, `count` in it."""

BINDINGS_DOMAIN = "deltaq.bindings"
"""The domain metadata of a group that is a queue of AMQP: its bindings."""

CHOOSES_DOMAIN = "deltaq.chooses"
"""The domain metadata of a group whose records are chosen, as a redrive does: an empty object. What
is not chosen does not wait for anything.
"""

PARTITION_PREFIX = "deltaq.share."
"""The domain of a partition is this and `<topic>/<topic id>/<partition>`."""

SharePlan: TypeAlias = "Callable[[ShareGroup, int, int], list[Action]]"

_HEAD = DomainMetadata(DELTAQ_DOMAIN, compact_json({"format": SHARE_FORMAT, "type": SHARE_TYPE}))

_MINUTE_MS = 60_000

_LOOK_S = 0.5
"""Seconds between two looks at locks that keep an administrator from changing the group."""

_LOCAL_ROUNDS = 4
"""Members on a local store leave a slot to one that is so many rounds behind. Strict turns would
cost a quarter of the rate there.
"""

_PROCESS_DIGITS = 8
"""Digits with which the unique ids of all members begin that run in one process."""

_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})

_TAKE, _ACKNOWLEDGE, _FENCE = "TAKE RECORDS", "ACKNOWLEDGE RECORDS", "FENCE"


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A group's log at one version, as a share group."""

    table: TableState
    path: str

    @property
    def exists(self) -> bool:
        """Whether there is a share group, and not one that was deleted or a consumer group."""
        return is_share_group(self.table)

    @property
    def created_ms(self) -> int:
        """When the log was begun, in milliseconds since 1970 UTC; 0 for one without entries."""
        metadata = self.table.metadata
        return 0 if metadata is None else metadata.created_time or 0

    @property
    def settings(self) -> GroupSettings:
        """The group's settings. Raises Corrupt, InvalidConfig."""
        return group_settings(stored_settings(self.table, self.path))

    def partition(self, key: PartitionId) -> SharePartition | None:
        """The state of a partition; None if the group has never read it. Raises Corrupt."""
        text = self.table.domains.get(_domain(key))
        return None if text is None else self._parsed(text)

    def known(self, keys: Collection[PartitionId]) -> dict[PartitionId, SharePartition]:
        """The states of those of the partitions that the group has read. Raises Corrupt."""
        found = ((key, self.partition(key)) for key in keys)
        return {key: state for key, state in found if state is not None}

    def partitions(self) -> dict[PartitionId, SharePartition]:
        """The states of all partitions, also those of topics that no longer exist. Raises
        Corrupt.
        """
        return {
            _partition_id(domain): self._parsed(text)
            for domain, text in self.table.domains.items()
            if domain.startswith(PARTITION_PREFIX)
        }

    def dead_letters_in(self, minute: int) -> int:
        """The number of records that were to be written to the dead-letter topic in a minute since
        1970; 0 if that is not the newest. Raises Corrupt.
        """
        text = self.table.domains.get(DEAD_LETTERS_DOMAIN, '{"minute":0,"count":0}')
        try:
            body: Any = strict_json(text)
            return int(body["count"]) if body["minute"] == minute else 0
        except (ValueError, KeyError, TypeError) as error:
            reason = f"the number of dead letters cannot be parsed: {error}"
            raise Corrupt(reason, path=self.path, version=self.table.version) from error

    @property
    def is_of_chosen(self) -> bool:
        """Whether only those records of the group wait that were chosen, by `ShareLog.choose`."""
        return CHOOSES_DOMAIN in self.table.domains

    @property
    def bindings(self) -> frozenset[Binding]:
        """The bindings of a group that is a queue of AMQP; others have none. Raises Corrupt."""
        text = self.table.domains.get(BINDINGS_DOMAIN)
        if text is None:
            return frozenset()
        try:
            return _parsed_bindings(text)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"the bindings of the group cannot be parsed: {error}"
            raise Corrupt(reason, path=self.path, version=self.table.version) from error

    def reads(self, topic: str) -> bool:
        """Whether the group has read a partition of a topic of this name."""
        prefix = f"{PARTITION_PREFIX}{topic}/"
        return any(domain.startswith(prefix) for domain in self.table.domains)

    def check(self, group: str) -> None:
        """Raise Incompatible for a share group of a later format, and KafkaException
        (GROUP_ID_NOT_FOUND) for a consumer group.
        """
        if self.exists:
            body: Any = strict_json(self.table.domains[DELTAQ_DOMAIN])
            if body.get("format") != SHARE_FORMAT:
                raise Incompatible(
                    f"share group at {self.path!r} has format {body.get('format')!r}; this deltaq "
                    f"reads {SHARE_FORMAT}. Upgrade deltaq."
                )
        elif is_there(self.table, group_head(self.table, self.path)):
            reason = (
                f"group {group!r} is a consumer group: read it with a Consumer, delete it, or use "
                "another group.id"
            )
            raise KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND, reason, fatal=True))

    def _parsed(self, text: str) -> SharePartition:
        try:
            return _parsed(text)
        except (ValueError, KeyError, TypeError, InvalidConfig) as error:
            reason = f"the state of a partition cannot be parsed: {error}"
            raise Corrupt(reason, path=self.path, version=self.table.version) from error


_parsed = lru_cache(maxsize=4_096)(parse_partition)
_parsed_bindings = lru_cache(maxsize=256)(parse_bindings)


def stored_settings(state: TableState, path: str) -> dict[str, str]:
    """The settings that a group's log has, by name. Raises Corrupt."""
    try:
        found = strict_json(state.domains.get(SETTINGS_DOMAIN, "{}"))
    except ValueError as error:
        reason = f"the settings of the group cannot be parsed: {error}"
        raise Corrupt(reason, path=path, version=state.version) from error
    if not isinstance(found, dict):
        raise Corrupt("the settings of the group are no object", path=path, version=state.version)
    return {str(name): str(value) for name, value in found.items()}


def process_of(member_id: str) -> str:
    """What the ids of the members have in common that run in one process."""
    return member_id.rpartition("-")[2][:_PROCESS_DIGITS]


def _domain(key: PartitionId) -> str:
    return f"{PARTITION_PREFIX}{key.topic}/{key.topic_id}/{key.partition}"


def _partition_id(domain: str) -> PartitionId:
    topic, topic_id, partition = domain.removeprefix(PARTITION_PREFIX).split("/")
    return PartitionId(topic, topic_id, int(partition))


class _KnownShareLog(KnownLog[None]):
    """What a process knows of the log of a share group. Its members write in turns, so they are one
    member in `turns`.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.turns = CommitTurns(clock, 0 if store.is_remote else _LOCAL_ROUNDS)
        self.ids: dict[str, str] = {}  # how the ids of the process's members begin
        super().__init__(clock, self.turns)


@dataclass(eq=False)
class ShareLog:
    """A client of one share group's log. Thread-safe: every method runs under one lock. Clients of
    a process share what they have read, and write in turns.

    All methods raise Unavailable, Corrupt, Incompatible, and what `ShareGroup.check` raises; those
    that write also OutcomeUnknown. `deadline` is a time of `Clock.monotonic`.
    """

    _store: Store
    group: str
    _clock: Clock = SYSTEM_CLOCK
    _client_id: str = ""
    _maintenance: LogMaintainer | None = None  # notified of commits

    def __post_init__(self) -> None:
        self._folder = names.group_folder(self.group)
        store, clock = self._store, self._clock
        self._known = KNOWN_LOGS.get(
            store, self._folder, clock, lambda: _KnownShareLog(store, clock)
        )
        self._log = DeltaLog(self._store, self._folder, clock, self._known)
        self._lock = clock.lock()
        self._watch = LockWatch()
        # Below these offsets the records of topics are durable.
        self._synced: dict[PartitionId, int] = {}
        # The token of the last entry that was tried for an exchange, and its result.
        self._tried: tuple[str, Exchanged] | None = None

    def new_member_id(self) -> str:
        """The id of a new member. Those of one process begin alike, as `process_of` has it."""
        unique = self._clock.unique_id()
        # One step, in which no other thread can come between.
        process = self._known.ids.setdefault("process", unique[:_PROCESS_DIGITS])
        return names.member_id(self._client_id, process + unique[_PROCESS_DIGITS:])

    def read(self) -> ShareGroup:
        """The group as it is now."""
        with self._lock:
            return self._read()

    def last_read(self) -> ShareGroup:
        """The group as last read. Does no I/O and takes no lock."""
        return self._group(self._log.state)

    def _read(self) -> ShareGroup:
        self._log.catch_up()
        return self._group(self._log.state)

    def _group(self, state: TableState) -> ShareGroup:
        found = ShareGroup(state, self._folder)
        found.check(self.group)
        return found

    def exchange(self, exchange: Exchange, deadline: float) -> Exchanged:
        """Make an exchange. Nothing is written if it changes nothing. One that takes records also
        ends the locks on its partitions that this client has seen for the whole lock duration.
        After OutcomeUnknown, and an exception of a signal handler, `resolve` says whether it was
        made.
        """
        result = Exchanged({}, {}, {}, frozenset())
        over: Collection[RecordLock] = ()
        txn_id, self._tried = self._clock.unique_id(), None

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:
            nonlocal result, over
            group.check(self.group)
            partitions = (
                group.partitions() if exchange.is_of_all else group.known(exchange.partitions)
            )
            settings = group.settings
            if exchange.records_max:
                self._watch.observe(partitions.values(), self._clock.monotonic())
                over = self._over(group)
            minute = now_ms // _MINUTE_MS
            count = group.dead_letters_in(minute)
            result = exchanged(partitions, exchange, settings, over, version, now_ms, count)
            self._sync(exchange, result)
            self._tried = commit_token(self._folder, version, txn_id), result
            return _actions(result, minute, count)

        operation = _TAKE if exchange.records_max else _ACKNOWLEDGE
        turn = CommitInTurn(self._known.turns, self._clock, exchange.owner)
        by = {"member": exchange.owner}
        self._change(operation, plan, deadline, by, turn, txn_id)
        if over:
            metrics.SHARE_LOCKS_ENDED.add(len(over), group=self.group)
        return result

    def _sync(self, exchange: Exchange, result: Exchanged) -> None:
        """Make the records durable that are taken. All that their topics had then need not be
        synced again. Raises Unavailable.
        """
        new = {
            key.topic
            for key, ranges in result.taken.items()
            if ranges[-1].end > self._synced.get(key, 0)
        }
        sync_topics(self._store, new)
        for key, log_range in exchange.log_ranges.items():
            if key.topic in new:
                self._synced[key] = log_range.log_end

    def resolve(self, deadline: float) -> Exchanged | None:
        """The result of the last exchange, whose outcome was unknown; None if it was not and will
        not be made. Raises OutcomeUnknown if that is not known by the deadline.
        """
        if self._tried is None:
            return None
        token, result = self._tried
        txn_id = self._clock.unique_id()

        def write(state: TableState) -> Draft:
            now = self._clock.time_ms()
            table = table_actions(state, self.group, now)  # the exchange may have been the first
            return Draft(self._info(txn_id, now, _FENCE, {}), table)

        with self._lock, self._known.turn:
            entry = resolve_commit(self._log, token, write, deadline)
        return None if entry is None else result

    # --- transactions ---

    def send_acknowledgements(
        self,
        transaction: TransactionKey,
        acknowledgements: ShareAcknowledgements,
        owner: str,
        deadline: float,
    ) -> None:
        """Have the transaction decide of messages that the worker `owner` holds. May be repeated.
        Raises KafkaException (INVALID_RECORD_STATE) if it does not hold all of them any more.
        """

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            group.check(self.group)
            known = group.known(acknowledgements.by_partition.keys())
            of = PendingTransaction(transaction, now_ms)
            changed = sent_partitions(known, acknowledgements, owner, of)
            if changed is None:
                reason = (
                    "the consumer does not hold the messages any more that the transaction is to "
                    "acknowledge: their lock was over, or an administrator has changed the group"
                )
                raise KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE, reason))
            return _partition_actions(changed)

        self._change("SEND ACKNOWLEDGEMENTS", plan, deadline, {"member": owner})

    def resolve_transaction(
        self,
        transaction: TransactionKey,
        deadline: float,
        *,
        is_committed: bool,
        failure: str | None = None,
    ) -> None:
        """Have the acknowledgements of a transaction count, or give back the messages: at once, or
        with the text of a `failure` for later, as `FailedProcessing`. Without effect if there are
        none. May be repeated.
        """
        operation = "COMMIT TRANSACTION" if is_committed else "ABORT TRANSACTION"
        counted: Mapping[str, int] = {}

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:
            nonlocal counted
            partitions = group.partitions()
            counted = acknowledged_by(partitions.values(), transaction)
            minute = now_ms // _MINUTE_MS
            failed = None if failure is None else FailedProcessing(now_ms, failure)
            result = resolved_partitions(
                partitions,
                transaction,
                group.settings,
                version,
                is_committed=is_committed,
                failed=failed,
            )
            return _actions(result, minute, group.dead_letters_in(minute))

        has_written = self._change(operation, plan, deadline)
        if is_committed and has_written:
            for name, records in counted.items():
                metrics.SHARE_ACKNOWLEDGEMENTS.add(records, group=self.group, type=name)
        elif is_committed:
            # Another process has resolved it, and may have been killed before that was durable.
            with self._lock:
                if self._log.state.version >= 0:
                    self._log.sync()

    def pending(self) -> dict[TransactionKey, int]:
        """Read which transactions have acknowledgements, each with the time of the first of them,
        in milliseconds since 1970 UTC.
        """
        return pending_transactions(self.read().partitions().values())

    def overdue(self) -> list[TransactionKey]:
        """The transactions that have acknowledged messages whose lock this client has seen for its
        whole duration, as last read. Does no I/O.
        """
        with self._lock:
            group = self._group(self._log.state)
            partitions = group.partitions().values()
            return overdue_transactions(partitions, self._over(group))

    def _over(self, group: ShareGroup) -> frozenset[RecordLock]:
        """The locks that this client has seen for their whole duration."""
        duration_s = group.settings.share_record_lock_duration_ms / 1000
        return self._watch.over(self._clock.monotonic(), duration_s)

    # --- queues of AMQP ---

    def bind(self, binding: Binding, ends: Mapping[PartitionId, int], deadline: float) -> None:
        """Store a binding. In a topic to which it was not bound, the group continues at these ends:
        it does not take what came before. May be repeated.
        """

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            group.check(self.group)
            if binding in group.bindings:
                return []
            changed = {}
            if all(each.topic != binding.topic for each in group.bindings):
                for key, end in sorted(ends.items()):
                    # The queue may have been bound before, and members may hold some of it.
                    state = group.partition(key) or SharePartition(end)
                    changed[key] = without_removed(state, end)
            return [_bindings(group.bindings | {binding}), *_partition_actions(changed)]

        self._change("BIND", plan, deadline)

    def unbind(self, topic: str, routing_key: str, deadline: float) -> None:
        """Remove a binding. Without effect if there is none."""

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            group.check(self.group)
            left = {
                each
                for each in group.bindings
                if (each.topic, each.routing_key) != (topic, routing_key)
            }
            return [] if left == group.bindings else [_bindings(left)]

        self._change("UNBIND", plan, deadline)

    def drop(self, deadline: float) -> None:
        """Delete the group, also while members hold records, as AMQP deletes a queue: what they
        acknowledge later does not count. Without effect if there is none.
        """

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            group.check(self.group)
            return _deletion(group) if group.exists else []

        self._change("DELETE SHARE GROUP", plan, deadline)

    # --- administration ---

    def delete(self, deadline: float) -> None:
        """Delete the group; its settings stay. Raises KafkaException (GROUP_ID_NOT_FOUND) if there
        is no share group, and GroupInUse if members hold records whose lock is not over by the
        deadline.
        """

        def plan(group: ShareGroup) -> list[Action]:
            if not group.exists:
                reason = f"share group {self.group!r} does not exist"
                raise KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND, reason))
            return _deletion(group)

        self._change_if_free("DELETE SHARE GROUP", plan, deadline)

    def reset(self, offsets: Mapping[PartitionId, int], deadline: float) -> None:
        """Have the group begin anew in these partitions, each at its offset. Raises GroupInUse as
        `delete`.
        """

        def plan(group: ShareGroup) -> list[Action]:
            group.check(self.group)
            return [
                DomainMetadata(_domain(key), SharePartition(offset).encoded())
                for key, offset in sorted(offsets.items())
            ]

        self._change_if_free("RESET OFFSETS", plan, deadline)

    def choose(self, topics: Mapping[PartitionId, Mapping[int, str]], deadline: float) -> None:
        """Choose records that are to be copied to other topics, as dead letters are, each offset to
        that of its topic: those of them that were not chosen before.
        """

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            group.check(self.group)
            before = {key: group.partition(key) or SharePartition(0) for key in sorted(topics)}
            after = {key: chosen(state, topics[key], version) for key, state in before.items()}
            changed = _changed(before, after)
            is_marked = group.is_of_chosen or not changed
            mark = [] if is_marked else [DomainMetadata(CHOOSES_DOMAIN, "{}")]
            return [*mark, *_partition_actions(changed)]

        self._change("CHOOSE DEAD LETTERS", plan, deadline)

    def give_up(self, since: Mapping[PartitionId, Mapping[int, int]], deadline: float) -> None:
        """Give up records that were chosen and are not copied, each offset with the entry that has
        chosen it: they may be chosen again.
        """

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            before = group.known(sorted(since))
            after = {key: not_chosen(state, since[key]) for key, state in before.items()}
            return _partition_actions(_changed(before, after))

        self._change("GIVE UP DEAD LETTERS", plan, deadline)

    def _change_if_free(
        self, operation: str, plan: Callable[[ShareGroup], list[Action]], deadline: float
    ) -> None:
        """Commit what `plan(group)` returns once no member holds a record. Raises GroupInUse."""

        def if_free(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            partitions = group.partitions().values()
            self._watch.observe(partitions, self._clock.monotonic())
            over = self._over(group)
            if overdue := overdue_transactions(partitions, over):
                ids = ", ".join(repr(transaction.transactional_id) for transaction in overdue)
                reason = (
                    f"transactions that are not ended have messages of share group {self.group!r}: "
                    f"of transactional.id {ids}. End each by deltaq transactions abort"
                )
                raise GroupInUse(self.group, reason=reason)
            held = {lock for partition in partitions for lock in partition.locks()} - over
            if held:
                owners = ", ".join(sorted({repr(lock.owner) for lock in held}))
                seconds = group.settings.share_record_lock_duration_ms / 1000
                reason = (
                    f"members of share group {self.group!r} hold records: {owners}. Close these "
                    "consumers first. If they have died, repeat this with a time-out (--timeout, "
                    f"request_timeout) of more than {seconds:g} seconds: their locks are over when "
                    "it has seen them for so long"
                )
                raise GroupInUse(self.group, reason=reason)
            return plan(group)

        while True:
            try:
                self._change(operation, if_free, deadline)
                return
            except GroupInUse:
                if self._clock.monotonic() >= deadline:
                    raise
                self._clock.sleep(_LOOK_S)

    def forget(self, keys: Collection[PartitionId], deadline: float) -> None:
        """Forget the state of partitions of topics that no longer exist, unless dead letters of
        them are still to be written.
        """

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            known = sorted(group.known(keys).items())
            return [_removed(_domain(key)) for key, state in known if not any(state.failures())]

        self._change("FORGET OFFSETS", plan, deadline)

    def settings(self) -> dict[str, str]:
        """Read the settings that the log stores, by name; also those of a consumer group, or of a
        group that does not exist.
        """
        with self._lock:
            self._log.catch_up()
            return stored_settings(self._log.state, self._folder)

    def alter_settings(
        self, after: Callable[[Mapping[str, str]], Mapping[str, str]], deadline: float
    ) -> None:
        """Store the settings `after(stored)`, by name. Raises what `after` raises."""

        def plan(group: ShareGroup, version: int, now_ms: int) -> list[Action]:  # noqa: ARG001 - as SharePlan
            before = stored_settings(group.table, self._folder)
            wanted = dict(sorted(after(before).items()))
            if wanted == before:
                return []
            return [DomainMetadata(SETTINGS_DOMAIN, compact_json(wanted))]

        self._change("SET GROUP SETTINGS", plan, deadline)

    def _change(
        self,
        operation: str,
        plan: SharePlan,
        deadline: float,
        parameters: Mapping[str, str] = _NO_PARAMETERS,
        turn: CommitInTurn | None = None,
        txn_id: str = "",
    ) -> bool:
        """Commit what `plan(group, version, now_ms)` returns for the slot `version` that is tried;
        nothing if that is no action. An entry that changes partitions makes the group a share
        group. Whether an entry was written.
        """
        txn_id = txn_id or self._clock.unique_id()

        def write(state: TableState) -> Draft | Abandoned[None]:
            group, now = ShareGroup(state, self._folder), self._clock.time_ms()
            actions = plan(group, state.version + 1, now)
            if not actions:
                return Abandoned(None)
            is_new = not group.exists and any(map(_is_of_partition, actions))
            first = [*table_actions(state, self.group, now), *([_HEAD] if is_new else [])]
            by = parameters if turn is None else {**parameters, **turn.parameters()}
            return Draft(self._info(txn_id, now, operation, by), [*first, *actions])

        with self._lock, self._known.turn:
            if turn is None:
                self._log.catch_up()
            else:
                turn.catch_up(self._log, deadline)
            committed = self._log.commit(write, deadline, takes_turns=turn is not None)
            if committed is not None and turn is not None:
                turn.committed(committed)
            if committed is not None and self._maintenance is not None:
                self._maintenance.committed(self._log.state)
            return committed is not None

    def _info(
        self, txn_id: str, now_ms: int, operation: str, parameters: Mapping[str, str]
    ) -> CommitInfo:
        by = dict(parameters)
        return CommitInfo(
            txn_id, now_ms, operation, self._client_id, ENGINE, is_blind_append=False, parameters=by
        )


def _actions(result: Exchanged, minute: int, failed_before: int) -> list[Action]:
    """The actions of an entry in this minute, in which so many records have failed before."""
    counted = {"minute": minute, "count": failed_before + result.ended}
    dead_letters = DomainMetadata(DEAD_LETTERS_DOMAIN, compact_json(counted))
    return [*_partition_actions(result.changed), *([dead_letters] if result.ended else [])]


def _changed(
    before: Mapping[PartitionId, SharePartition], after: Mapping[PartitionId, SharePartition]
) -> dict[PartitionId, SharePartition]:
    return {key: state for key, state in after.items() if state != before[key]}


def _partition_actions(changed: Mapping[PartitionId, SharePartition]) -> list[Action]:
    return [DomainMetadata(_domain(key), state.encoded()) for key, state in changed.items()]


def _deletion(group: ShareGroup) -> list[Action]:
    """The actions that delete a group: its settings stay."""
    domains = [_domain(key) for key in sorted(group.partitions())]
    more = [each for each in (BINDINGS_DOMAIN, CHOOSES_DOMAIN) if each in group.table.domains]
    return [_removed(domain) for domain in (DELTAQ_DOMAIN, *domains, *more)]


def _bindings(bindings: Collection[Binding]) -> DomainMetadata:
    return DomainMetadata(BINDINGS_DOMAIN, encoded_bindings(bindings))


def _removed(domain: str) -> DomainMetadata:
    return DomainMetadata(domain, "{}", removed=True)


def _is_of_partition(action: Action) -> bool:
    return (
        isinstance(action, DomainMetadata)
        and action.domain.startswith(PARTITION_PREFIX)
        and not action.removed
    )
