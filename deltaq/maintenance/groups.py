"""Maintenance of consumer groups: short logs, expired offsets, and heartbeats of members that no
longer exist; and of share groups, which have logs only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.entries import LogEntries
from deltaq.delta.log import positioned
from deltaq.delta.store_errors import raising_unavailable
from deltaq.delta.table_state import TableState
from deltaq.errors import GroupInUse, KafkaException
from deltaq.groups.heartbeat import heartbeat_name
from deltaq.groups.log import GroupChanged, GroupLog
from deltaq.groups.state import group_head, is_share_group
from deltaq.groups.transaction_offsets import TransactionOffsets, transaction_offsets
from deltaq.maintenance.clock_check import compare_clocks, expiry_ms
from deltaq.maintenance.log_cleanup import entry_time_ms
from deltaq.maintenance.log_maintenance import LogMaintenance
from deltaq.maintenance.report import Notify, Report
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import TransactionKey
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.log import ShareGroup, ShareLog
from deltaq.share_groups.transaction_acknowledgements import pending_transactions
from deltaq.store import ObjectEntry, Store
from deltaq.topics.log import TopicLog
from deltaq.transactions.resolution import (
    may_be_committed,
    resolve_acknowledgements,
    resolve_offsets,
)
from deltaq.transactions.state import AbortReason
from deltaq.work import finish

FORGET_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class SeenHeartbeat:
    """A heartbeat object, and the uptime of this process when it was first seen unchanged."""

    entry: ObjectEntry
    seen_at: float


def plan_heartbeats(
    members: frozenset[str],
    beats: Mapping[str, SeenHeartbeat],
    now_s: float,
    oldest_ms: int,
    grace_s: float,
) -> tuple[frozenset[str], frozenset[str]]:
    """(dead members, names of heartbeat objects to remove) of a group with `members`, at uptime
    `now_s`. Members are known by the names of their heartbeat objects.

    The object of a non-member is removed if it does not change: a client that is about to join
    rewrites it. A member is dead if its object does not change and was written before `oldest_ms`.
    This rule is for abandoned groups: a client that joins removes a silent member much sooner
    (`groups/heartbeat.py`).
    """
    still = {member for member, beat in beats.items() if now_s - beat.seen_at >= grace_s}
    ancient = {member for member, beat in beats.items() if beat.entry.modified_ms < oldest_ms}
    dead = members & still & ancient
    return dead, frozenset(still - (members - dead))


class GroupPass:
    """Maintenance of one group, round after round. Several instances, in any processes, may run at
    once.

    Not thread-safe.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        clock: Clock,
        settings: MaintenanceSettings,
        offsets_retention_ms: int,
        notify: Notify | None = None,
    ) -> None:
        self._store = store
        self._group = group
        self._folder = names.group_folder(group)
        self._clock = clock
        self._settings = settings
        self._retention_ms = offsets_retention_ms
        self._report = Report("group", group, notify)
        self._log = GroupLog(store, group, clock, "deltaq-maintenance")
        self._log_maintenance = LogMaintenance(store, self._folder, clock, settings, self._report)
        self._beats: dict[str, SeenHeartbeat] = {}  # by the name of the object
        self._unreadable: dict[TransactionKey, str] = {}  # as `resolve_acknowledgements` has it
        self._is_watching = False  # whether heartbeats must be seen unchanged a second time

    def plan(self) -> Counter[str]:
        """Report what a round would do, as far as one scan shows. Changes nothing. Raises what
        `run` raises.
        """
        return self._report.plan(self._planned())

    def _planned(self) -> Iterator[str]:
        state = self._log.state()
        if is_share_group(state):
            yield from self._planned_of_share_group(state)
            return
        if overdue := self._overdue(state):
            yield f"end {len(overdue)} transactions that have offsets"
        with raising_unavailable():
            self._observe_heartbeats(state)
            members = self._members(state)
            ancient = self._ancient(members)
            if self._is_expired(state, ancient):
                yield f"forget {len(state.txns)} committed offsets"
            elif app_ids := self._of_deleted_topics(state):
                yield f"forget {len(app_ids)} committed offsets of deleted topics"
            if unused := self._beats.keys() - (members - ancient):
                yield f"delete up to {len(unused)} heartbeats of members that are gone"
            if state.version >= 0:
                yield from self._planned_of_log(state)

    def _planned_of_share_group(self, state: TableState) -> Iterator[str]:
        group = ShareGroup(state, self._folder)
        if overdue := self._overdue_acknowledgements(group):
            yield f"end {len(overdue)} transactions that have acknowledgements"
        if over := self._over(group):
            yield f"forget {len(over)} partitions of deleted topics"
        with raising_unavailable():
            yield from self._planned_of_log(state)

    def _planned_of_log(self, state: TableState) -> Iterator[str]:
        yield from self._log_maintenance.plan_checkpoint(state.version)
        log = positioned(self._store, self._folder, self._clock, state)
        yield from self._log_maintenance.plan_clean_up(log)

    def run(self) -> Counter[str]:
        """Do all that is due. Returns counts by kind of action.

        Raises Corrupt, Incompatible, Unavailable, OutcomeUnknown, CheckpointFailed.
        """
        self._report.begin()
        state = self._log.state()
        compare_clocks(self._store, self._clock)
        if is_share_group(state):
            return self._run_share_group(state)
        if overdue := self._overdue(state):
            self._report.line(f"end {len(overdue)} transactions that have offsets")
            deadline = self._clock.monotonic() + FORGET_TIMEOUT_S
            reason = AbortReason.TIMEOUT
            resolve_offsets(self._store, self._log, overdue, reason, self._clock, deadline)
            self._report.counts["pending offsets resolved"] += len(overdue)
            state = self._log.state()
        with raising_unavailable():
            dead, unused = self._observe_heartbeats(state)
            self._is_watching = self._has_young(state)
            if self._is_expired(state, dead):
                self._forget(state, dead)
            for member_id in sorted(unused):
                self._store.delete(names.member_folder(self._group) + member_id)
                self._beats.pop(member_id, None)
                self._report.counts["heartbeats deleted"] += 1
        if state.version < 0:
            return self._report.counts
        self._log_maintenance.write_checkpoint(self._log.state())
        if self._log_maintenance.is_clean_up_due():
            if app_ids := self._of_deleted_topics(self._log.state()):
                self._report.line(f"forget {len(app_ids)} committed offsets of deleted topics")
                self._log.forget_over(app_ids, self._clock.monotonic() + FORGET_TIMEOUT_S)
                self._report.counts["offsets forgotten"] += len(app_ids)
            self._clean_log()
        return self._report.counts

    def _run_share_group(self, state: TableState) -> Counter[str]:
        """The round of a share group: it has no heartbeats, and its state does not expire."""
        log = ShareLog(self._store, self._group, self._clock, "deltaq-maintenance")
        if overdue := self._overdue_acknowledgements(ShareGroup(state, self._folder)):
            self._report.line(f"end {len(overdue)} transactions that have acknowledgements")
            deadline = self._clock.monotonic() + FORGET_TIMEOUT_S
            about = AbortReason.TIMEOUT, self._clock, deadline, self._unreadable
            ended = resolve_acknowledgements(self._store, log, overdue, *about)
            self._report.counts["pending acknowledgements resolved"] += ended
        self._log_maintenance.write_checkpoint(state)
        if self._log_maintenance.is_clean_up_due():
            if over := self._over(ShareGroup(state, self._folder)):
                self._report.line(f"forget {len(over)} partitions of deleted topics")
                log.forget(over, self._clock.monotonic() + FORGET_TIMEOUT_S)
                self._report.counts["partitions forgotten"] += len(over)
            self._clean_log()
        return self._report.counts

    def _over(self, group: ShareGroup) -> list[PartitionId]:
        """The partitions of topics that were deleted. If the topic was created again, they stay
        until the group has read that one: they say that it is new to the group.
        """
        ids: dict[str, set[str]] = {}
        keys = sorted(group.partitions())
        for key in keys:
            ids.setdefault(key.topic, set()).add(key.topic_id)
        gone: set[tuple[str, str]] = set()
        for topic, known in sorted(ids.items()):
            is_read, alive = self._life(topic)
            if is_read and (alive is None or alive in known):
                gone |= {(topic, topic_id) for topic_id in known - {alive}}
        return [key for key in keys if (key.topic, key.topic_id) in gone]

    def is_waiting(self) -> bool:
        """Whether heartbeats or log entries wait for the grace period before they are removed."""
        return self._is_watching or self._log_maintenance.is_waiting()

    def finish(self) -> Counter[str]:
        """After the grace period: remove what waited for it. Raises what `run` raises."""
        self.run()
        self._clean_log()
        return self._report.counts

    def _clean_log(self) -> None:
        log = positioned(self._store, self._folder, self._clock, self._log.state())
        finish(self._log_maintenance.clean(log))

    def _overdue(self, state: TableState) -> list[TransactionOffsets]:
        """The pending offsets of transactions that have ended, or whose time-out is over."""
        now_ms = expiry_ms(self._store, self._clock)
        pending = transaction_offsets(state, self._folder).values()
        return [
            of
            for of in pending
            if not may_be_committed(self._store, of.transaction, now_ms - of.time_ms, self._clock)
        ]

    def _overdue_acknowledgements(self, group: ShareGroup) -> list[TransactionKey]:
        """The transactions with acknowledgements that have ended, or whose time-out is over."""
        now_ms = expiry_ms(self._store, self._clock)
        pending = pending_transactions(group.partitions().values())
        return [
            transaction
            for transaction, time_ms in sorted(pending.items())
            if not may_be_committed(self._store, transaction, now_ms - time_ms, self._clock)
        ]

    def _members(self, state: TableState) -> frozenset[str]:
        """The members by the names of their heartbeat objects, which members of one process may
        share.
        """
        return frozenset(
            heartbeat_name(*member) for member in group_head(state, self._folder).members.items()
        )

    def _is_expired(self, state: TableState, dead: frozenset[str]) -> bool:
        """Whether the group's offsets and its dead members are to be removed.

        They are when there have been no live members and no commits for Kafka's
        `offsets.retention.minutes`, counted from when the group became empty. Leaving the group is
        a log entry, so the newest entry is at least as recent.
        """
        members = self._members(state)
        if not (state.txns or members) or members - dead:
            return False
        entry_ms = entry_time_ms(LogEntries(self._store, self._folder, self._clock), state.version)
        if entry_ms is None:
            return False
        return (
            max([entry_ms, *(txn.last_updated or 0 for txn in state.txns.values())])
            < self._oldest_ms()
        )

    def _forget(self, state: TableState, dead: frozenset[str]) -> None:
        self._report.line(f"forget {len(state.txns)} committed offsets")
        deadline = self._clock.monotonic() + FORGET_TIMEOUT_S
        members = group_head(state, self._folder).members
        removed = [
            member_id
            for member_id, member in members.items()
            if heartbeat_name(member_id, member) in dead
        ]
        try:
            self._log.forget_offsets(None, deadline, removed, at_version=state.version)
        except (GroupChanged, GroupInUse):
            return  # a member has joined or committed meanwhile
        self._report.counts["offsets forgotten"] += len(state.txns)

    def _of_deleted_topics(self, state: TableState) -> list[str]:
        """The app ids of committed offsets whose topic was deleted, or created again. Reads the
        topics, which are newer than every topic id in the state.
        """
        found: dict[str, list[tuple[str, str]]] = {}
        for app_id in state.txns:
            topic, *rest = app_id.split("/")
            if len(rest) == 2:
                found.setdefault(topic, []).append((rest[0], app_id))
        over: list[str] = []
        for topic, ids in sorted(found.items()):
            known, alive = self._life(topic)
            over += [app_id for topic_id, app_id in ids if known and topic_id != alive]
        return over

    def _life(self, topic: str) -> tuple[bool, str | None]:
        """(whether the topic's log could be read, the topic's current id; None if there is no such
        topic).
        """
        try:
            log = TopicLog(self._store, topic, self._clock)
            log.load()
        except KafkaException:
            # Damaged or unavailable: this does not prove that the topic was deleted.
            return False, None
        return (
            log.head is not None or log.ended is not None,
            None if log.head is None else log.head.topic_id,
        )

    def _observe_heartbeats(self, state: TableState) -> tuple[frozenset[str], frozenset[str]]:
        """As `plan_heartbeats`. Remembers the objects for the next scan. Raises StoreError."""
        folder = names.member_folder(self._group)
        members = self._members(state)
        # A member without an object counts as one whose object was last written at time 0.
        listed = {member_id: ObjectEntry(folder + member_id, 0, 0) for member_id in members}
        # Silence is measured from the end of the first listing to the start of the last: a slow
        # listing adds nothing.
        began_at = self._clock.uptime()
        listed |= {entry.key.removeprefix(folder): entry for entry in self._store.list(folder)}
        ended_at = self._clock.uptime()
        before, self._beats = self._beats, {}
        for member_id, entry in listed.items():
            known = before.get(member_id)
            self._beats[member_id] = (
                known if known and known.entry == entry else SeenHeartbeat(entry, ended_at)
            )
        return plan_heartbeats(
            members, self._beats, began_at, self._oldest_ms(), self._settings.clean_up_grace_s
        )

    def _has_young(self, state: TableState) -> bool:
        """Whether heartbeat objects must be seen again after the grace period: those of
        non-members, and those of members of a group that would otherwise be expired. Raises
        StoreError.
        """
        members = self._members(state)
        now_s, grace_s = self._clock.uptime(), self._settings.clean_up_grace_s
        young = {
            member_id for member_id, beat in self._beats.items() if now_s - beat.seen_at < grace_s
        }
        return bool(young - members) or (
            bool(young) and self._is_expired(state, self._ancient(members))
        )

    def _ancient(self, members: frozenset[str]) -> frozenset[str]:
        """The members that are dead unless their heartbeat changes before the next scan."""
        oldest_ms = self._oldest_ms()
        return frozenset(
            member_id
            for member_id in members
            if self._beats[member_id].entry.modified_ms < oldest_ms
        )

    def _oldest_ms(self) -> int:
        return expiry_ms(self._store, self._clock) - self._retention_ms
