"""Maintenance of consumer groups: their logs, offsets that nobody came back for, heartbeats that nobody beats."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock, Thread
from deltaq.delta.checkpoint import pointed_version
from deltaq.delta.log import DeltaLog
from deltaq.delta.store_errors import unavailable
from deltaq.delta.table_state import TableState
from deltaq.errors import GroupInUse, KafkaException
from deltaq.groups.log import GroupChanged, GroupLog
from deltaq.groups.state import group_head
from deltaq.maintenance.checkpoint import CheckpointFailed, write_checkpoint
from deltaq.maintenance.clock_check import compare_clocks, expiry_ms
from deltaq.maintenance.log_cleanup import LogCleanup, entry_time_ms
from deltaq.maintenance.refusals import log_failure
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.maintenance.topic_pass import FAILURES
from deltaq.store import ObjectEntry, Store, StoreError
from deltaq.topics.log import TopicLog

__all__ = ["BackgroundGroupMaintenance", "GroupPass", "Heartbeat", "plan_expiry", "plan_heartbeats"]

_log = logging.getLogger("deltaq.maintenance")

FORGET_TIMEOUT_S = 60.0

SWEEP_MAX = 1000
"""Objects that a consumer's own maintenance removes at once: it must not be at it for long when the consumer closes, or
a checkpoint is due. At least ten times as many as are added until it has its next turn."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat object as a maintainer has seen it: when it was last written, and for how long it has not changed.

    `still_s` is counted on the maintainer's own clock, from when it first saw the object like this.
    """

    modified_ms: int
    still_s: float


def plan_heartbeats(
    members: frozenset[str],
    seen: Mapping[str, Heartbeat],
    now_ms: int,
    retention_ms: int,
    settings: MaintenanceSettings,
) -> tuple[frozenset[str], frozenset[str]]:
    """(members that are dead, ids of objects that may go) of a group with `members`.

    An object of somebody who is no member may go if it does not change: whoever is about to join rewrites it. A member
    whose object does not change, and is older than `retention_ms` too, is gone for good. Whoever waits to take its
    place needs no such patience: this is for groups to which nobody comes back.
    """
    still = {member for member, beat in seen.items() if beat.still_s >= settings.clean_up_grace_s}
    ancient = {member for member, beat in seen.items() if beat.modified_ms < now_ms - retention_ms}
    dead = members & still & ancient
    return dead, frozenset(still - (members - dead))


def plan_expiry(
    state: TableState, members: frozenset[str], newest_entry_ms: int | None, now_ms: int, retention_ms: int
) -> bool:
    """Whether a group's offsets, and the dead members that it may still have, are to be forgotten.

    They are when it has had no living `members`, and nobody has committed, for `retention_ms`: Kafka's
    `offsets.retention.minutes`, counted from when the group became empty. Leaving is an entry of the log as well, so
    its newest one (`newest_entry_ms`, None if it cannot be told) is not older than that.
    """
    if members or newest_entry_ms is None:
        return False
    newest_ms = max([newest_entry_ms, *(txn.last_updated or 0 for txn in state.txns.values())])
    return newest_ms < now_ms - retention_ms


class GroupPass:
    """Maintenance of one group, round after round. Several at once, anywhere, do no harm. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        group: str,
        clock: Clock,
        settings: MaintenanceSettings,
        offsets_retention_ms: int,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._group = group
        self._folder = names.group_folder(group)
        self._clock = clock
        self._settings = settings
        self._retention_ms = offsets_retention_ms
        self._tell = tell or (lambda _: None)
        self._log = GroupLog(store, group, clock, "deltaq-maintenance")
        self._cleaner = LogCleanup(store, clock, settings)
        self._cleaned_at = float("-inf")
        self._beats: dict[str, tuple[ObjectEntry, float]] = {}  # member id -> its object, and when first seen so
        self._is_watching = False  # heartbeats, which must be seen unchanged a second time

    def plan(self) -> Counter[str]:
        """Tell what a round would do, as far as one look can tell, and change nothing. Raises what `run` raises."""
        done: Counter[str] = Counter()
        for words in self._planned():
            self._tell(f"group {self._group}: {words}")
            done["actions planned"] += 1
        return done

    def _planned(self) -> Iterator[str]:
        state = self._log.state()
        try:
            self._look(state)
            members = frozenset(group_head(state, self._folder).members)
            ancient = self._ancient(members)
            if self._is_expired(state, ancient):
                yield f"forget {len(state.txns)} committed offsets"
            elif over := self._over(state):
                yield f"forget {len(over)} committed offsets of topics that are no more"
            if strays := self._beats.keys() - (members - ancient):
                yield f"delete up to {len(strays)} heartbeats that nobody beats any more"
            if state.version < 0:
                return
            if self._is_checkpoint_due(state):
                yield f"write a checkpoint of version {state.version}"
            yield from self._cleaner.plan(self._positioned(state)).words()
        except StoreError as error:
            raise unavailable(error) from error

    def run(self) -> Counter[str]:
        """Do all that is due; what was done, in numbers. Raises Corrupt, Incompatible, Unavailable, OutcomeUnknown,
        CheckpointFailed. What was not done is done by the next round."""
        done: Counter[str] = Counter()
        state = self._log.state()
        compare_clocks(self._store, self._clock)
        try:
            dead, strays = self._look(state)
            self._is_watching = self._has_young(state)
            if self._is_expired(state, dead):
                self._forget(state, dead, done)
            for member_id in sorted(strays):
                self._store.delete(names.member_folder(self._group) + member_id)
                self._beats.pop(member_id, None)
                done["heartbeats deleted"] += 1
            if state.version >= 0:
                self._write_checkpoint(done)
        except StoreError as error:
            raise unavailable(error) from error
        if state.version < 0:
            return done
        if self._clock.monotonic() - self._cleaned_at >= self._settings.clean_up_interval_s:
            self._forget_over(done)
            done.update(self.clean_log())
        return done

    def is_waiting(self) -> bool:
        """Whether there is something that may go once the clean-up's grace period is over."""
        return self._is_watching or self._cleaner.is_waiting(self._folder)

    def second_look(self) -> Counter[str]:
        """Once the grace period is over: do what waited for it. Raises what `run` raises."""
        done = self.run()
        done.update(self.clean_log())
        return done

    def clean_log(self) -> Counter[str]:
        """Remove log entries and checkpoints that nobody needs; how many. Raises what `run` raises."""
        self._cleaned_at = self._clock.monotonic()
        try:
            marked = self._cleaner.mark(self._positioned(self._log.state()))
            if marked is not None:
                self._tell(f"group {self._group}: the log will start at version {marked}")
            return Counter({"log objects deleted": self._cleaner.sweep(self._folder)})
        except StoreError as error:
            raise unavailable(error) from error

    def _positioned(self, state: TableState) -> DeltaLog:
        log = DeltaLog(self._store, self._folder, self._clock)
        log.adopt(state)
        return log

    def _is_expired(self, state: TableState, dead: frozenset[str]) -> bool:
        members = frozenset(group_head(state, self._folder).members)
        if not (state.txns or members) or members - dead:
            return False
        newest_ms = entry_time_ms(self._store, self._folder, state.version)
        return plan_expiry(state, members - dead, newest_ms, expiry_ms(self._store, self._clock), self._retention_ms)

    def _forget(self, state: TableState, dead: frozenset[str], done: Counter[str]) -> None:
        self._tell(f"group {self._group}: forget {len(state.txns)} committed offsets")
        deadline = self._clock.monotonic() + FORGET_TIMEOUT_S
        try:
            self._log.forget_offsets(None, deadline, sorted(dead), at_version=state.version)
        except (GroupChanged, GroupInUse):
            return  # somebody came back
        done["offsets forgotten"] += len(state.txns)

    def _forget_over(self, done: Counter[str]) -> None:
        if over := self._over(self._log.state()):
            self._tell(f"group {self._group}: forget {len(over)} committed offsets of topics that are no more")
            self._log.forget_over(over, self._clock.monotonic() + FORGET_TIMEOUT_S)
            done["offsets forgotten"] += len(over)

    def _over(self, state: TableState) -> list[str]:
        """The app ids of committed offsets whose topic id is no more: the topic was deleted, or another has its name.

        The topics are looked at after the group: so nobody can have committed for a life that begins only later.
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
        """(whether the topic's log tells, the id under which the topic lives now)."""
        try:
            log = TopicLog(self._store, topic, self._clock)
            log.load()
        except KafkaException:
            return False, None  # it is damaged, or away: then it does not say that anything is over
        return log.head is not None or log.ended is not None, None if log.head is None else log.head.topic_id

    def _look(self, state: TableState) -> tuple[frozenset[str], frozenset[str]]:
        """The group's dead members, and the ids of heartbeat objects that may go. Notes what it sees for the next
        look. Raises StoreError."""
        folder = names.member_folder(self._group)
        members = frozenset(group_head(state, self._folder).members)
        # A member without an object counts as one that was last written long ago.
        listed = {member_id: ObjectEntry(folder + member_id, 0, 0) for member_id in members}
        # Silence is counted from the end of the first look to the beginning of the last: a slow listing adds nothing.
        began_at = self._clock.uptime()
        listed |= {entry.key.removeprefix(folder): entry for entry in self._store.list(folder)}
        ended_at = self._clock.uptime()
        before = self._beats
        self._beats = {
            member_id: before[member_id] if member_id in before and before[member_id][0] == entry else (entry, ended_at)
            for member_id, entry in listed.items()
        }
        seen = {
            member_id: Heartbeat(entry.modified_ms, began_at - seen_at)
            for member_id, (entry, seen_at) in self._beats.items()
        }
        return plan_heartbeats(members, seen, expiry_ms(self._store, self._clock), self._retention_ms, self._settings)

    def _has_young(self, state: TableState) -> bool:
        """Whether there are heartbeat objects that the last look has not seen for long enough, and that may matter:
        those of nobody, and those of members of a group that would be forgotten without them. Raises StoreError."""
        now = self._clock.uptime()
        members = frozenset(group_head(state, self._folder).members)
        young = {
            member_id
            for member_id, (_, seen_at) in self._beats.items()
            if now - seen_at < self._settings.clean_up_grace_s
        }
        return bool(young - members) or (bool(young) and self._is_expired(state, self._ancient(members)))

    def _ancient(self, members: frozenset[str]) -> frozenset[str]:
        """The members that would be dead if they are not seen alive before the next look."""
        oldest_ms = expiry_ms(self._store, self._clock) - self._retention_ms
        return frozenset(member_id for member_id in members if self._beats[member_id][0].modified_ms < oldest_ms)

    def _write_checkpoint(self, done: Counter[str]) -> None:
        """One at the end of the log, if the newest is far behind: consumers alone see to it only as they commit."""
        state = self._log.state()
        if not self._is_checkpoint_due(state):
            return
        try:
            write_checkpoint(self._store, self._folder + names.LOG_FOLDER, state)
            done["checkpoints"] += 1
        except CheckpointFailed as error:  # no reason to leave the rest undone
            done[FAILURES] += 1
            self._tell(f"group {self._group}: no checkpoint could be made: {error}")
            _log.warning("maintenance of group %r: no checkpoint could be made: %s", self._group, error)

    def _is_checkpoint_due(self, state: TableState) -> bool:
        pointed = pointed_version(self._store, self._folder + names.LOG_FOLDER)
        return state.version - (-1 if pointed is None else pointed) >= self._settings.checkpoint_interval


class BackgroundGroupMaintenance:
    """Keeps the log of a group short on behalf of a consumer, whose commits make it long. Thread-safe.

    The consumer whose commit becomes a version that is a multiple of the checkpoint interval sees to it, on a thread
    that lives as long as its work.
    """

    def __init__(
        self, store: Store, group: str, clock: Clock, settings: MaintenanceSettings = DEFAULT_SETTINGS
    ) -> None:
        self._store = store
        self._group = group
        self._folder = names.group_folder(group)
        self._clock = clock
        self._settings = settings
        self._cleaner = LogCleanup(store, clock, settings)
        self._cleaned_at = float("-inf")
        self._lock = clock.lock()
        self._thread: Thread | None = None
        self._stopped = False

    def committed(self, version: int, state: Callable[[], TableState]) -> None:
        """A commit of this consumer became `version`; `state()` is a copy of the table's state then."""
        if version == 0 or version % self._settings.checkpoint_interval:
            return
        now = state()
        with self._lock:
            if self._stopped or (self._thread is not None and self._thread.is_alive()):
                return
            try:
                self._thread = self._clock.start_thread(
                    lambda: self._undisturbing(now), f"deltaq-maintenance-{self._group}"
                )
            except RuntimeError as error:  # what was just committed is so all the same
                _log.info("maintenance of group %r is left to others: %s", self._group, error)

    def abandon(self) -> Thread | None:
        """The consumer was dropped: begin nothing more. The thread of what is under way. Takes no lock, for it is
        called by a finalizer, which may run while this very thread holds it."""
        self._stopped = True
        return self._thread

    def stop(self, timeout_s: float) -> None:
        """The consumer closes: begin nothing more, and wait so many seconds for what is under way."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _undisturbing(self, state: TableState) -> None:
        """Whatever fails is tried again by the next one, here or elsewhere."""
        try:
            self._look_after(state)
        except (KafkaException, StoreError, CheckpointFailed) as error:
            log_failure(self._store, "maintenance", f"group {self._group!r}", error)
        except Exception:  # noqa: BLE001 - a defect here must not concern whoever reads
            _log.exception("maintenance of group %r failed", self._group)

    def _look_after(self, state: TableState) -> None:
        write_checkpoint(self._store, self._folder + names.LOG_FOLDER, state)
        if self._clock.monotonic() - self._cleaned_at < self._settings.clean_up_interval_s or self._stopped:
            return
        self._cleaned_at = self._clock.monotonic()
        if self._cleaner.sweep(self._folder, SWEEP_MAX) == SWEEP_MAX:
            self._cleaned_at = float("-inf")  # more is left, of which the next checkpoint's turn takes as much
        elif not self._stopped:
            compare_clocks(self._store, self._clock)
            log = DeltaLog(self._store, self._folder, self._clock)
            log.adopt(state)
            self._cleaner.mark(log)
