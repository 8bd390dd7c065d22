"""A group's log. Joining, leaving and committing offsets are one entry each."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from deltaq import metrics, names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.delta.actions import Action, CommitInfo, Metadata
from deltaq.delta.known_log import KnownLog, NoView
from deltaq.delta.log import Abandoned, DeltaLog, Draft
from deltaq.delta.store_errors import unavailable
from deltaq.delta.table_state import PROTOCOL, TableState
from deltaq.errors import Fenced
from deltaq.groups.commit_in_turn import CommitInTurn
from deltaq.groups.commit_turns import CommitTurns
from deltaq.groups.heartbeat import LivenessCheck, remove_heartbeat
from deltaq.groups.offsets import (
    CommittedOffset,
    PendingOffsets,
    acceptable,
    committed_offset,
    forget_actions,
    offset_actions,
)
from deltaq.groups.state import (
    NO_MEMBER,
    GroupHead,
    Key,
    MemberIdentity,
    check_may_commit,
    check_no_members,
    check_not_in_use,
    check_there,
    group_head,
    has_pending_offsets,
    subscribed,
)
from deltaq.groups.transaction_offsets import (
    TransactionOffsets,
    deleted_actions,
    replaced_actions,
    resolved_actions,
    sent_actions,
    transaction_offsets,
)
from deltaq.names import TransactionKey
from deltaq.store import ObjectMissing, Store, StoreError
from deltaq.topics.log import ENGINE

Plan: TypeAlias = "Callable[[TableState, int], list[Action]]"
HeadPlan: TypeAlias = "Callable[[GroupHead], GroupHead | None]"

OFFSET_COMMIT = "COMMIT OFFSETS"
"""The operation of an entry that commits offsets and changes no membership."""

_SEND = "SEND OFFSETS TO TRANSACTION"

CHECK_INTERVAL_S = 1.0
"""Longest time between two checks of a member's heartbeat while a commit waits for their result."""


# A Delta table must have a column, though a group never has a row.
_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "group", "type": "string", "nullable": True, "metadata": {}}],
    }
)


class LogMaintainer(Protocol):
    """Maintains a log while it is written; see `deltaq/maintenance/log_maintenance.py`."""

    def committed(self, state: TableState) -> None: ...


class GroupChanged(Exception):
    """The group has changed since the version that a plan was made for."""


@dataclass(eq=False)
class GroupLog:
    """A client of one group's log. Thread-safe: every method runs under one lock."""

    _store: Store
    group: str
    _clock: Clock = SYSTEM_CLOCK
    _client_id: str = ""
    _maintenance: LogMaintainer | None = None  # notified of commits
    # Shared with siblings. None on a local store, where a lost race costs little.
    _turns: CommitTurns | None = None
    _known: KnownLog[None] | None = None  # shared with siblings

    def __post_init__(self) -> None:
        self._folder = names.group_folder(self.group)
        self._watch = LivenessCheck(self._store, self.group, self._clock)
        if self._store.is_remote and self._turns is None:
            self._turns = CommitTurns(self._clock)
        self._known = self._known or KnownLog(self._clock, self._turns or NoView())
        self._log = DeltaLog(self._store, self._folder, self._clock, self._known)
        self._lock = self._clock.lock()

    def sibling(self) -> GroupLog:
        """Another position in this log. An operation of the one does not wait for an operation of
        the other, and what one has read the other need not read again.
        """
        return replace(self)

    @property
    def known(self) -> KnownLog[None]:
        """What this client and its siblings know of the log."""
        return self._log.known

    def head(self) -> GroupHead:
        """Read the current head of the group. Raises Unavailable, Corrupt, Incompatible."""
        with self._lock:
            self._log.catch_up()
            return self._head(self._log.state)

    def state(self) -> TableState:
        """Read the current state of the table. Raises as `head`."""
        with self._lock:
            self._log.catch_up()
            return self._log.state

    def last_read(self) -> TableState:
        """The table as last read. Does no I/O and takes no lock."""
        return self._log.state

    def newest_read(self) -> tuple[TableState, GroupHead] | None:
        """The newest table that this client or a sibling has read, and its head; None before the
        first read. Does no I/O and takes no lock. Raises Corrupt, Incompatible.
        """
        newest = self._log.known.newest
        return None if newest is None else (newest.state.table, self._head(newest.state.table))

    def committed(self, partitions: Sequence[tuple[str, str, int]]) -> list[CommittedOffset | None]:
        """Read the committed offset, or None, of each (topic, topic id, partition). Raises as
        `head`.
        """
        with self._lock:
            self._log.catch_up()
            return [committed_offset(self._log.state, *partition) for partition in partitions]

    def change(
        self,
        operation: str,
        identity: MemberIdentity,
        plan: HeadPlan,
        deadline: float,
        offsets: Sequence[CommittedOffset] = (),
    ) -> GroupHead:
        """Change the membership: `plan(head)` is the head to write, or None if it stays. `offsets`
        are committed in the same entry, on behalf of `identity`. Returns the head. Raises Fenced,
        and what `plan` and `DeltaLog.commit` raise.
        """
        sync_topics(self._store, (of.topic for of in offsets))
        keys = [(offset.topic, offset.partition) for offset in offsets]
        with self._lock:
            self._log.catch_up()

            def actions(state: TableState, now: int) -> list[Action]:
                head = self._head(state)
                if keys:
                    check_may_commit(head, self.group, identity, keys)
                after = plan(head)
                changes = [
                    *([] if after is None else [after.action()]),
                    *self._committed_actions(state, offsets, now),
                ]
                return [*table_actions(state, self.group, now), *changes] if changes else []

            self._commit(operation, actions, deadline, identity)
            return self._head(self._log.state)

    def commit(
        self,
        identity: MemberIdentity | None,
        offsets: Sequence[CommittedOffset],
        deadline: float,
        *,
        wait: bool = False,
    ) -> None:
        """Commit offsets atomically. Raises Fenced, and what `DeltaLog.commit` raises.

        Without an `identity` the commit is refused while the group has a living member. Each such
        call checks the members' heartbeats once, and removes those seen dead, in the same entry.
        With `wait` it checks until one member is seen to live or all are found dead: a program that
        commits once and ends gets past killed members.
        """
        sync_topics(self._store, (of.topic for of in offsets))
        keys = [(offset.topic, offset.partition) for offset in offsets]
        turn = None if identity is None else self._turn(identity)
        with self._lock:
            if turn is None:
                self._log.catch_up()
            else:
                turn.catch_up(self._log, deadline, self._others)
            dead = (
                self._dead_members(deadline if wait else float("-inf"))
                if identity is None
                else frozenset()
            )

            def actions(state: TableState, now: int) -> list[Action]:
                first = self._admitted(state, identity, keys, dead, now)
                return [*first, *self._committed_actions(state, offsets, now)]

            self._commit(OFFSET_COMMIT, actions, deadline, identity, turn)
        self.clear_away(dead)

    def _admitted(
        self,
        state: TableState,
        identity: MemberIdentity | None,
        keys: Collection[Key],
        dead: Collection[str],
        now: int,
    ) -> list[Action]:
        """Check that offsets of these partitions may be committed. Returns the actions that precede
        them: those of a new log, or the removal of dead members by a consumer that is none. Raises
        Fenced.
        """
        head = self._head(state)
        if identity is None:
            check_no_members(head, self.group, dead)
        else:
            check_may_commit(head, self.group, identity, keys)
        emptied = _emptied(head) if identity is None else []
        table = table_actions(state, self.group, now)
        return [*table, *(emptied or (table and [head.action()]))]

    def commit_pending(
        self, identity: MemberIdentity, pending: Sequence[PendingOffsets], deadline: float
    ) -> None:
        """Commit those of the pending offsets that may be committed, on behalf of their members, as
        the leader that `identity` names. Raises what `DeltaLog.commit` raises.
        """
        sync_topics(self._store, (of.topic for of_member in pending for of in of_member.offsets))
        turn = self._turn(identity)
        with self._lock:
            self._log.catch_up()

            def actions(state: TableState, now: int) -> list[Action]:
                offsets = acceptable(state, self._head(state), pending)
                return self._committed_actions(state, offsets, now)

            self._commit(OFFSET_COMMIT, actions, deadline, identity, turn, {"pending": "true"})

    # --- the offsets of transactions ---

    def send_offsets(
        self,
        sent: TransactionOffsets,
        deadline: float,
        *,
        wait: bool = False,
    ) -> None:
        """Write offsets of a transaction as pending. Raises Fenced as `commit` does, LaterOffsets,
        and what `DeltaLog.commit` raises. `wait` as for `commit`. May be repeated.
        """
        sync_topics(self._store, (of.topic for of in sent.offsets))
        with self._lock:
            dead: frozenset[str] = frozenset()
            if sent.identity is None:
                self._log.catch_up()
                dead = self._dead_members(deadline if wait else float("-inf"))

            def actions(state: TableState, now: int) -> list[Action]:
                first = self._admitted(state, sent.identity, sent.keys, dead, now)
                pending = self._transaction_offsets(state)
                changes = sent_actions(pending, sent, now)
                return [*first, *changes] if changes else []

            try:
                self._commit(_SEND, actions, deadline, sent.identity)
            except Fenced:
                # This can happen when the member has joined since this client has read the log.
                self._log.catch_up()
                self._commit(_SEND, actions, deadline, sent.identity)
        self.clear_away(dead)

    def resolve(self, transaction: TransactionKey, deadline: float, *, is_committed: bool) -> None:
        """Commit or drop the pending offsets of a transaction that is decided. Without effect if
        there are none. Raises what `DeltaLog.commit` raises; may be repeated.
        """
        operation = "COMMIT TRANSACTION" if is_committed else "ABORT TRANSACTION"
        with self._lock:
            # This client may not have read the entry that has the offsets.
            before = self._transaction_offsets(self._log.state).get(transaction.transactional_id)
            if before is None or before.transaction != transaction:
                self._log.catch_up()

            def actions(state: TableState, now: int) -> list[Action]:
                pending = self._transaction_offsets(state)
                return resolved_actions(state, pending, transaction, now, is_committed=is_committed)

            has_written = self._commit(operation, actions, deadline)
            # Another process has resolved it, and may have been killed before that was durable.
            if is_committed and not has_written and self._log.state.version >= 0:
                self._log.sync()

    def pending(self) -> list[TransactionOffsets]:
        """Read the pending offsets of transactions. Raises as `head`."""
        return list(self._transaction_offsets(self.state()).values())

    def undecided(
        self, partitions: Collection[Key], reader: MemberIdentity | None
    ) -> list[TransactionOffsets]:
        """The pending offsets of these partitions, as last read, whose outcome their `reader` needs
        to begin at the committed offsets: those that it has sent itself, and those whose sender
        does not own the partitions any more. Does no I/O. Raises Corrupt, Incompatible.
        """
        state = self._log.state
        head = self._head(state)
        found = self._transaction_offsets(state).values()
        return [
            of
            for of in found
            if not of.keys.isdisjoint(partitions)
            and (_is_by(of, reader) or not _may_commit(head, of))
        ]

    def _transaction_offsets(self, state: TableState) -> dict[str, TransactionOffsets]:
        return transaction_offsets(state, self._folder)

    def _committed_actions(
        self, state: TableState, offsets: Sequence[CommittedOffset], now: int
    ) -> list[Action]:
        """Commit offsets outside of transactions."""
        committed = offset_actions(state, offsets, now)
        # Most groups have no transactions, so their commits parse nothing.
        if not (offsets and has_pending_offsets(state)):
            return committed
        return [*committed, *replaced_actions(self._transaction_offsets(state), offsets)]

    def _deleted_actions(
        self, state: TableState, app_ids: Sequence[str] | None, now: int
    ) -> list[Action]:
        """Delete these offsets, or all, and what transactions have of them."""
        deleted = forget_actions(state, state.txns if app_ids is None else app_ids, now)
        return [*deleted, *deleted_actions(self._transaction_offsets(state), app_ids)]

    def _dead_members(self, wait_until: float) -> frozenset[str]:
        """The dead members. Until `wait_until`, waits while no member is seen to live and not all
        are known dead.
        """
        while True:
            members = self._head(self._log.state).members
            seen = self._watch.check(members)
            if seen.alive or seen.dead == members.keys() or self._clock.monotonic() >= wait_until:
                return seen.dead
            self._clock.sleep(
                min(
                    CHECK_INTERVAL_S, *(member.session_timeout_s / 4 for member in members.values())
                )
            )
            self._log.catch_up()

    def delete(self, deadline: float) -> None:
        """Delete the group: all offsets, also those of open transactions, and members that are
        found dead, which may take their session time-out. Raises GroupInUse for other members,
        KafkaException (GROUP_ID_NOT_FOUND), and what `DeltaLog.commit` raises.
        """
        with self._lock:
            self._log.catch_up()
            dead = self._dead_members(deadline)

            def actions(state: TableState, now: int) -> list[Action]:
                head = self._head(state)
                check_there(state, head, self.group)
                check_not_in_use(head, self.group, dead)
                return [*_emptied(head), *self._deleted_actions(state, None, now)]

            self._commit("FORGET OFFSETS", actions, deadline)
        self.clear_away(dead)

    def delete_offsets(self, offsets: Sequence[CommittedOffset], deadline: float) -> frozenset[str]:
        """Delete offsets, committed or of open transactions. Returns the topics whose offsets stay,
        because members that are not found dead subscribe to them. Raises as `delete`, but not
        GroupInUse.
        """
        topics = {offset.topic for offset in offsets}
        kept: frozenset[str] = frozenset()
        removed: frozenset[str] = frozenset()
        with self._lock:
            self._log.catch_up()
            is_subscribed = subscribed(self._head(self._log.state), topics)
            dead = self._dead_members(deadline) if is_subscribed else frozenset()

            def actions(state: TableState, now: int) -> list[Action]:
                nonlocal kept, removed
                head = self._head(state)
                check_there(state, head, self.group)
                kept = subscribed(head, topics, dead)
                removed = dead if head.members.keys() <= dead else frozenset()
                forgotten = [offset.app_id for offset in offsets if offset.topic not in kept]
                return [
                    *(_emptied(head) if removed else ()),
                    *self._deleted_actions(state, forgotten, now),
                ]

            self._commit("FORGET OFFSETS", actions, deadline)
        self.clear_away(removed)
        return kept

    def forget_offsets(
        self,
        app_ids: Sequence[str] | None,
        deadline: float,
        dead: Sequence[str] = (),
        at_version: int | None = None,
    ) -> None:
        """Delete offsets (all if `app_ids` is None), and remove the members in `dead`.
        Raises GroupInUse for other members, GroupChanged if `at_version` is not the newest version,
        and what `DeltaLog.commit` raises.
        """

        def plan(state: TableState, now: int) -> list[Action]:
            if at_version is not None and state.version != at_version:
                raise GroupChanged(self.group)
            head = self._head(state)
            check_not_in_use(head, self.group, dead)
            return [*_emptied(head), *self._deleted_actions(state, app_ids, now)]

        self._forget(plan, deadline)

    def forget_over(self, app_ids: Sequence[str], deadline: float) -> None:
        """Delete offsets of topic ids that no longer exist; the group may have members. Raises as
        `DeltaLog.commit`.
        """
        self._forget(lambda state, now: forget_actions(state, app_ids, now), deadline)

    def _forget(self, plan: Plan, deadline: float) -> None:
        with self._lock:
            self._log.catch_up()
            self._commit("FORGET OFFSETS", plan, deadline)

    def clear_away(self, dead: Collection[str]) -> None:
        """Count members that were removed because they died, and remove their heartbeat objects."""
        if dead:
            metrics.MEMBERS_REMOVED.add(len(dead), group=self.group)
        for member_id in sorted(dead):  # in the same order in each run of a simulation
            remove_heartbeat(self._store, self.group, member_id)

    def _commit(
        self,
        operation: str,
        plan: Plan,
        deadline: float,
        identity: MemberIdentity | None = None,
        turn: CommitInTurn | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> bool:
        """Commit what `plan` returns for the slot that is tried; nothing if that is no action.
        Whether an entry was written.
        """
        txn_id = self._clock.unique_id()
        by = (
            {}
            if identity is None
            else {"member": identity.member_id, "generation": str(identity.generation)}
        )
        by |= parameters or {}

        def write(state: TableState) -> Draft | Abandoned[None]:
            now = self._clock.time_ms()
            info = CommitInfo(
                txn_id,
                now,
                operation,
                self._client_id,
                ENGINE,
                is_blind_append=False,
                parameters=by | ({} if turn is None else turn.parameters()),
            )
            actions = plan(state, now)
            return Draft(info, actions) if actions else Abandoned(None)

        try:
            committed = self._log.commit(write, deadline, takes_turns=turn is not None)
        except Fenced as refused:
            metrics.COMMITS_REFUSED.add(group=self.group, reason=refused.error.name())
            raise
        if committed is None:
            return False
        if operation == OFFSET_COMMIT:
            metrics.OFFSET_COMMIT_LATENCY.observe(committed.seconds, group=self.group)
        if turn is not None:
            turn.committed(committed)
        if self._maintenance is not None and committed.entry.version == self._log.state.version:
            self._maintenance.committed(self._log.state)
        return True

    def _turn(self, identity: MemberIdentity) -> CommitInTurn | None:
        """The next commit of a member, if members take turns."""
        if self._turns is None:
            return None
        return CommitInTurn(self._turns, self._clock, identity.member_id)

    def _others(self) -> int:
        """The number of other members, as last read."""
        return len(self._head(self._log.state).members) - 1

    def _head(self, state: TableState) -> GroupHead:
        return group_head(state, self._folder)


def _is_by(of: TransactionOffsets, reader: MemberIdentity | None) -> bool:
    """Whether the reader has sent them. It would get the same records again that the transaction
    is about.
    """
    return (
        reader is not None and of.identity is not None and of.identity.member_id == reader.member_id
    )


def _may_commit(head: GroupHead, of: TransactionOffsets) -> bool:
    """Whether a member still owns what it has sent."""
    try:
        check_may_commit(head, "", of.identity or NO_MEMBER, of.keys)
    except Fenced:
        return False
    return True


def _emptied(head: GroupHead) -> list[Action]:
    """Remove all members, if there are any."""
    return [GroupHead(head.generation + 1).action()] if head.members else []


def table_actions(state: TableState, group: str, now_ms: int) -> list[Action]:
    """The protocol and metadata actions of a log's first entry; none for a log that exists."""
    if state.version >= 0:
        return []
    return [PROTOCOL, Metadata(f"group-{group}", _SCHEMA, {}, now_ms, name=group)]


def sync_topics(store: Store, topics: Iterable[str]) -> None:
    """Sync the log entries of topics whose records a group is about to note. Otherwise a power
    failure could undo a record that the group has noted, and the group would skip the next record
    written at the same offset. Raises Unavailable.
    """
    for topic in sorted(set(topics)):
        try:
            store.sync(names.topic_log(topic))
        except ObjectMissing:
            pass  # the topic has no log, so no record of it can be skipped
        except StoreError as error:
            raise unavailable(error) from error
