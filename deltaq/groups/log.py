"""A group's log. Joining, leaving and committing offsets are one entry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.delta.actions import Action, CommitInfo
from deltaq.delta.log import DeltaLog, Draft
from deltaq.delta.reader import LogCleaned
from deltaq.delta.store_errors import unavailable
from deltaq.delta.table_state import TableState
from deltaq.errors import KafkaException
from deltaq.groups.liveness import HeartbeatWatch, remove_heartbeat
from deltaq.groups.state import (
    CommittedOffset,
    GroupHead,
    Member,
    commit_actions,
    committed_offset,
    forget_actions,
    forget_over_actions,
    group_head,
    join_actions,
    leave_actions,
)
from deltaq.store import ObjectMissing, Store, StoreError
from deltaq.topics.log import ENGINE

R = TypeVar("R")
Plan: TypeAlias = "Callable[[TableState, int], list[Action]]"

CHECK_INTERVAL_S = 1.0
"""Longest time between two checks of a member's heartbeat while a commit waits for their result."""


class GroupMaintenance(Protocol):
    """Maintains the group's log while it is written; see `deltaq/maintenance/groups.py`."""

    def committed(self, version: int, state: Callable[[], TableState]) -> None: ...


class GroupChanged(Exception):
    """The group has changed since the version that a plan was made for."""


@dataclass(eq=False)
class GroupLog:
    """A client of one group's log. Thread-safe: every method runs under one lock."""

    _store: Store
    group: str
    _clock: Clock = SYSTEM_CLOCK
    _client_id: str = ""
    _maintenance: GroupMaintenance | None = None  # notified of commits
    _loaded: bool = False

    def __post_init__(self) -> None:
        self._folder = names.group_folder(self.group)
        self._watch = HeartbeatWatch(self._store, self.group, self._clock)
        self._log = DeltaLog(self._store, self._folder, self._clock)
        self._lock = self._clock.lock()

    def head(self) -> GroupHead:
        """Read the current head of the group. Raises Unavailable, Corrupt, Incompatible."""
        with self._lock:
            self._catch_up()
            return self._head(self._log.state)

    def state(self) -> TableState:
        """Read the current state of the table, and return a copy. Raises as `head`."""
        with self._lock:
            self._catch_up()
            return self._log.state.copy()

    def committed(self, partitions: Sequence[tuple[str, str, int]]) -> list[CommittedOffset | None]:
        """Read the committed offset, or None, of each (topic, topic id, partition). Raises as `head`."""
        with self._lock:
            self._catch_up()
            return [committed_offset(self._log.state, *partition) for partition in partitions]

    def join(self, member_id: str, member: Member, dead: Sequence[str], deadline: float) -> int:
        """Become the only member, putting out those in `dead`. Returns the new generation. Raises GroupInUse if another
        member lives, and what `DeltaLog.commit` raises."""
        with self._lock:
            self._catch_up()
            self._commit(
                "JOIN",
                lambda state, now: join_actions(state, self._head(state), self.group, member_id, member, dead, now),
                deadline,
            )
            return self._head(self._log.state).generation

    def leave(self, member_id: str, deadline: float) -> None:
        """Remove a member; no effect if `member_id` is not one. Raises what `DeltaLog.commit` raises."""
        with self._lock:
            self._catch_up()
            if member_id in self._head(self._log.state).members:
                self._commit("LEAVE", lambda state, _: leave_actions(self._head(state), member_id), deadline)

    def commit(
        self, member_id: str | None, offsets: Sequence[CommittedOffset], deadline: float, *, wait: bool = False
    ) -> None:
        """Commit offsets atomically. Raises Fenced, and what `DeltaLog.commit` raises.

        The log entries of the offsets' topics are synced first. Otherwise a power failure could undo a record that the
        group has committed, and the group would skip the next record written at the same offset.

        Without a `member_id` the commit is refused while the group has a living member. Each such call checks the
        members' heartbeats once, and puts out those seen dead, in the same entry. With `wait` it checks until each
        member is known to live or to be dead: a program that commits once and ends gets past a killed member, too.
        """
        for topic in sorted({offset.topic for offset in offsets}):
            self._sync(names.topic_log(topic))
        with self._lock:
            self._catch_up()
            dead = self._dead_members(deadline if wait else float("-inf")) if member_id is None else frozenset()
            self._commit(
                "COMMIT OFFSETS",
                lambda state, now: commit_actions(state, self._head(state), self.group, member_id, offsets, now, dead),
                deadline,
            )
        for other in dead:
            remove_heartbeat(self._store, self.group, other)

    def _dead_members(self, wait_until: float) -> frozenset[str]:
        """The dead members. Until `wait_until`, waits while no member is seen to live and not all are known dead."""
        while True:
            members = self._head(self._log.state).members
            seen = self._watch.check(members)
            if seen.alive or seen.dead == members.keys() or self._clock.monotonic() >= wait_until:
                return seen.dead
            self._clock.sleep(min(CHECK_INTERVAL_S, *(member.session_timeout_s / 4 for member in members.values())))
            self._catch_up()

    def forget_offsets(
        self, app_ids: Sequence[str] | None, deadline: float, dead: Sequence[str] = (), at_version: int | None = None
    ) -> None:
        """Delete committed offsets (all if `app_ids` is None), and put out the members in `dead`. Raises GroupInUse for
        other members, GroupChanged if `at_version` is not the newest version, and what `DeltaLog.commit` raises."""

        def plan(state: TableState, now: int) -> list[Action]:
            if at_version is not None and state.version != at_version:
                raise GroupChanged(self.group)
            return forget_actions(state, self._head(state), self.group, app_ids, dead, now)

        self._forget(plan, deadline)

    def forget_over(self, app_ids: Sequence[str], deadline: float) -> None:
        """Delete offsets of topic ids that no longer exist; the group may have members. Raises as `DeltaLog.commit`."""
        self._forget(lambda state, now: forget_over_actions(state, app_ids, now), deadline)

    def _forget(self, plan: Plan, deadline: float) -> None:
        with self._lock:
            self._catch_up()
            if plan(self._log.state, 0):
                self._commit("FORGET OFFSETS", plan, deadline)

    def _sync(self, folder: str) -> None:
        try:
            self._store.sync(folder)
        except ObjectMissing:
            pass  # the topic has no log, so no record of it can be skipped
        except StoreError as error:
            raise unavailable(error) from error

    def _commit(self, operation: str, plan: Plan, deadline: float) -> None:
        txn_id = self._clock.unique_id()

        def write(state: TableState) -> Draft:
            now = self._clock.time_ms()
            info = CommitInfo(txn_id, now, operation, self._client_id, ENGINE, is_blind_append=False)
            return Draft(info, plan(state, now))

        committed = self._moved(lambda: self._log.commit(write, deadline))
        if self._maintenance is not None and committed.entry.version == self._log.state.version:
            self._maintenance.committed(committed.entry.version, self._log.state.copy)

    def _catch_up(self) -> None:
        self._moved(self._read_on)

    def _read_on(self) -> None:
        try:
            if not self._loaded:
                self._log.load()
                self._loaded = True
            while self._log.read_next() is not None:
                pass
        except LogCleaned:
            self._log.load()

    def _moved(self, move: Callable[[], R]) -> R:
        """Return `move()`. An exception that is not the log's, such as KeyboardInterrupt, may leave the state half
        changed, so the next call loads the log again."""
        try:
            return move()
        except KafkaException:
            raise
        except BaseException:
            self._loaded = False
            raise

    def _head(self, state: TableState) -> GroupHead:
        return group_head(state, self._folder)
