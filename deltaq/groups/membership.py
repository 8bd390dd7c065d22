"""A consumer's membership in its group, on a thread: joining, heartbeats, watching other members, leaving.

The thread keeps the consumer in its group and publishes what the group's log says of it (`GroupView`). The consumer's
own thread follows the view: it runs the rebalance callbacks and releases partitions (`consumer/subscription.py`).
A member that was silent for its `session.timeout.ms` ends its own session and joins again with a new id, so a watcher
never removes a living member, however late it acts.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from deltaq import names
from deltaq.clock import Clock, Thread
from deltaq.errors import Fenced, KafkaError, KafkaException, OutcomeUnknown, Unavailable
from deltaq.groups.fencing import Claim, not_a_member
from deltaq.groups.heartbeat import Heartbeat, MemberWatch, SessionExpired
from deltaq.groups.liveness import HeartbeatWatch, remove_heartbeat
from deltaq.groups.log import GroupLog
from deltaq.groups.rebalance import Strategies, differs, joined, left, released, resized
from deltaq.groups.state import GroupHead, Key, Member
from deltaq.store import Store

_log = logging.getLogger("deltaq.groups")

POLL_S = 1.0
"""Longest time between two reads of the group's log while no partition has to move. On local disk a change of the
folder ends the wait."""

BUSY_POLL_S = 0.1
"""The same while partitions move."""

_REST_S = 0.02
"""Shortest time between two reads of the group's log: offset commits of all members wake this thread."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group as one of its members sees it: the partitions that it shall have, and those that it owns."""

    member_id: str
    instance_id: str | None
    generation: int
    assigned: frozenset[Key]
    owned: frozenset[Key]

    @property
    def claim(self) -> Claim:
        """On whose behalf offsets are committed."""
        return Claim(self.member_id, self.generation, self.instance_id)


def group_metadata(group: str, view: GroupView | None) -> bytes:
    """Opaque bytes that identify a membership, in librdkafka's layout; `view` is None for a non-member."""
    generation, member_id = (-1, "") if view is None else (view.generation, view.member_id)
    texts = b"".join(text.encode() + b"\0" for text in (group, member_id))
    return b"CGMDv2:" + struct.pack("<i", generation) + texts + b"\x01"


@dataclass(eq=False)
class Membership:
    """Keeps one consumer in its group, with a new member id for each session, so that commits of an earlier one are
    refused. `on_change()` is called when `view` or the result of `take_error` changes."""

    _store: Store
    _log: GroupLog
    _member: Member
    _strategies: Strategies
    _heartbeat_interval_s: float
    _max_poll_interval_s: float
    _clock: Clock
    _on_change: Callable[[], None]
    _view: GroupView | None = None
    _head: GroupHead | None = None  # of `_view`
    _known: Mapping[str, int] | None = None  # the partitions of the topics, as the consumer knows them
    _written: Mapping[str, int] | None = None  # the same, as last written to or found in the log
    _unreleased: tuple[float, frozenset[Key]] = (float("inf"), frozenset())  # since when, and what
    _error: KafkaException | None = None
    _logged: str = ""  # the last error that was logged since the last session
    _closing: bool = False
    held: frozenset[Key] = frozenset()
    """The partitions that the consumer holds, set by it. It releases what it gives up, and this thread what it could
    not release."""
    _is_leaving: bool = False  # the consumer is leaving the group itself
    _poll_exceeded: bool = False
    is_replaced: bool = False  # another consumer has joined with this `group.instance.id`
    _is_running: bool = False
    _thread: Thread | None = None
    _ended: set[str] = field(default_factory=set)  # ids of ended sessions that may still be members in the log

    def __post_init__(self) -> None:
        session_timeout_s = self._member.session_timeout_s
        self._id = self._new_id()
        self._heartbeat = Heartbeat(
            self._store, self._log.group, self._clock, session_timeout_s, self._heartbeat_interval_s
        )
        self._watch = HeartbeatWatch(self._store, self._log.group, self._clock)
        self._members = MemberWatch(self._watch, self._clock, self._heartbeat_interval_s)
        self._wakes = self._store.watch()
        self._wakes.add(names.group_folder(self._log.group) + names.LOG_FOLDER)
        self._poll_at = self._read_at = self._clock.monotonic()

    # --- what the consumer calls ---

    def begin(self) -> None:
        """Start the thread, unless it runs. The consumer must hold the membership before, to end it in any case."""
        if self._thread is None:
            self._wakes.wake()  # opens it, before two threads use it
            self._thread = self._clock.start_thread(self._run, f"deltaq-group-{self._log.group}")

    @property
    def view(self) -> GroupView | None:
        """What the consumer may deliver records of; None while it is not a member. Also None once its last heartbeat is
        `session.timeout.ms` old, suspensions included: the group may have removed it."""
        is_silent = self._heartbeat.is_silent()  # before the view is read: the end of a session resets it
        view = self._view
        return None if view is None or is_silent else view

    @property
    def is_static(self) -> bool:
        """Whether the consumer has a `group.instance.id`: then it keeps its partitions while it is away."""
        return self._member.instance_id is not None

    def set_partitions(self, partitions: Mapping[str, int]) -> None:
        """Set the number of partitions of the topics that the consumer subscribes to; 0 for a topic that does not
        exist. The consumer joins once they are known, and the log gets each change."""
        if self._known != partitions:
            self._known = dict(partitions)
            self._wakes.wake()

    def begin_to_leave(self) -> None:
        """The consumer is about to leave the group itself, so its removal is no error."""
        self._is_leaving = True

    def polled_in_time(self) -> bool:
        """Record a poll. False if `max.poll.interval.ms` was exceeded: call `polled` to let the consumer rejoin."""
        self._poll_at = self._clock.monotonic()
        return not self._poll_exceeded

    def polled(self) -> bool:
        """Record a poll. True, once, if the consumer has left its group by `max.poll.interval.ms`."""
        if self.polled_in_time():
            return False
        self._poll_exceeded = False
        self._wakes.wake()
        return True

    def take_error(self) -> KafkaException | None:
        """The error that keeps the consumer out of the group, or ended its last session. Each is returned once."""
        error = self._error
        if error is not None:  # else an error that is set at this moment would be lost
            self._error = None
        return error

    def close(self) -> None:
        """Leave the group and end the thread. During an outage, the group waits for the session time-out.

        A member with a `group.instance.id` stays, so that it finds its partitions again if it returns in time.
        """
        if (thread := self.abandon()) is not None:
            self._wakes.wake()
            thread.join()

    def abandon(self) -> Thread | None:
        """Let the thread leave the group and end soon, and return it. Does not wake it: a finalizer may call this in
        that very thread while it waits."""
        self._closing = True
        return self._thread

    # --- the thread ---

    def _run(self) -> None:
        if self._is_running:
            return  # an interrupted `begin` has already started a thread
        self._is_running = True
        while not self._closing:
            try:
                if self._poll_exceeded or self._known is None or self.is_replaced:
                    self._wait(self._heartbeat_interval_s)
                elif self._view is not None:
                    self._stay()
                elif self._is_leaving:
                    self._wait(self._heartbeat_interval_s)
                else:
                    self._join()
            except OutcomeUnknown as error:
                # Each change is idempotent, so the loop retries.
                _log.warning(
                    "change of the group has an unknown outcome, retrying group=%r: %s", self._log.group, error
                )
                self._wait(self._heartbeat_interval_s)
            except SessionExpired:
                silence = f"{self._member.session_timeout_s:g} s"
                _log.warning("no heartbeat for %s, joining again with a new id group=%r", silence, self._log.group)
                self._end_session()
                self._on_change()
            except KafkaException as error:
                self._report_error(error)
            except Exception as error:  # noqa: BLE001 - a bug must not leave the application waiting forever
                _log.exception("keeping the membership failed group=%r", self._log.group)
                reason = f"keeping the membership of group {self._log.group!r} failed: {type(error).__name__}: {error}"
                self._report_error(KafkaException(KafkaError(KafkaError._FAIL, reason)))
        try:
            self._leave()
        except Exception:  # noqa: BLE001 - the consumer is closing, so the error is only logged
            _log.exception("leaving failed, the group waits for the session time-out group=%r", self._log.group)
        self._wakes.close()

    def _report_error(self, error: KafkaException) -> None:
        if self._is_leaving:
            self._wait(self._heartbeat_interval_s)
            return
        is_new = str(error) != self._logged
        if is_new:  # do not repeat the same error at every attempt to join
            self._logged = str(error)
            _log.warning("not a member group=%r reason=%s", self._log.group, error.error.str())
        if is_new or error.error.code() != KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            self._error = error
        self.is_replaced = self.is_replaced or error.error.fatal()  # joining again would put out the other one
        self._on_change()
        self._wait(self._heartbeat_interval_s)

    def _new_id(self) -> str:
        return names.member_id(self._member.client_id, self._clock.unique_id())

    def _join(self) -> None:
        self._beat()
        known, gone = self._known or {}, set(self._ended)
        if self._logged:  # the group may have refused this member because of dead ones
            gone |= self._members.dead(self._log.head(), self._id)

        def plan(head: GroupHead) -> GroupHead | None:
            if self._id in head.members:
                return None
            return joined(head, self._id, self._member, known, gone, self._strategies)

        head = self._log.change("JOIN", self._claim, plan, self._deadline())
        for other in gone:
            remove_heartbeat(self._store, self._log.group, other)
        self._beat()
        if not isinstance(self._error, Fenced):  # keep the error that ended the previous session
            self._error = None
        self._ended.clear()
        self._logged = ""
        self._written = known
        _log.info("joined group=%r member=%r generation=%d", self._log.group, self._id, head.generation)
        self._publish(head)

    def _stay(self) -> None:
        """One round of a member. Any error ends the session, except a store that is unavailable for less than the
        session time-out: a consumer that can neither read nor prove its membership must not deliver records."""
        try:
            head = self._show_life()
            self._publish(head)
            self._keep_up(head)
            self._remove_dead(head)
            self._logged = ""
        except Unavailable as error:
            if self._heartbeat.is_silent():
                self._end_session()
                raise
            if str(error) != self._logged:
                self._logged = str(error)
                _log.warning("heartbeat failed group=%r reason=%s", self._log.group, error)
        except (OutcomeUnknown, SessionExpired):
            raise
        except Exception:
            self._end_session()
            raise
        if self._clock.monotonic() - self._poll_at > self._max_poll_interval_s:
            if not self.is_static:
                self._remove({self._id})
            self._poll_exceeded = True
            self._end_session()
            self._on_change()
        self._rest()

    def _show_life(self) -> GroupHead:
        """Send a heartbeat if one is due, and read the log. Raises Fenced if this consumer is no longer a member, and
        what `_beat` raises."""
        try:
            if self._clock.monotonic() >= self._heartbeat.due_at:
                self._beat()
        finally:  # Fenced takes precedence over the reason why the heartbeat failed
            head = self._log.head()
            self._read_at = self._clock.monotonic()
            if self._id not in head.members:
                raise not_a_member(head, self._log.group, self._member.instance_id)
        return head

    def _publish(self, head: GroupHead) -> None:
        if head is self._head:
            return
        view = GroupView(
            self._id,
            self._member.instance_id,
            head.generation,
            head.assigned.get(self._id, frozenset()),
            head.owned(self._id),
        )
        self._head = head
        if view != self._view:
            self._view = view
            self._on_change()

    def _keep_up(self, head: GroupHead) -> None:
        """Write what the consumer has noticed, and what it could not release."""
        known = self._known or {}
        if known is not self._written:
            self._publish(
                self._log.change(
                    "REBALANCE",
                    self._claim,
                    lambda head: resized(head, known, self._strategies) if differs(head, known) else None,
                    self._deadline(),
                )
            )
            self._written = known
        unreleased = head.owned(self._id) - head.assigned.get(self._id, frozenset()) - self.held
        since, before = self._unreleased
        now = self._clock.monotonic()
        if unreleased != before:
            self._unreleased = now, unreleased
        elif unreleased and now - since >= self._heartbeat_interval_s:
            self._publish(self._log.change("RELEASE", self._claim, self._release, self._deadline()))

    def _release(self, head: GroupHead) -> GroupHead | None:
        mine = head.owned(self._id) - head.assigned.get(self._id, frozenset()) - self.held
        return released(head, self._id, mine, self._strategies) if mine else None

    def _remove_dead(self, head: GroupHead) -> None:
        if self._clock.monotonic() < self._members.due_at:
            return
        if dead := self._members.dead(head, self._id):
            self._publish(self._remove(dead))
            _log.info("members removed group=%r members=%s", self._log.group, ", ".join(map(repr, sorted(dead))))
            for other in dead:
                remove_heartbeat(self._store, self._log.group, other)

    def _remove(self, gone: Collection[str]) -> GroupHead:
        def plan(head: GroupHead) -> GroupHead | None:
            return left(head, gone, self._strategies) if head.members.keys() & set(gone) else None

        return self._log.change("LEAVE", self._claim, plan, self._deadline())

    def _end_session(self) -> None:
        """End the session. The consumer can only join again with a new id."""
        self._view = self._head = None  # first: the property `view` reads it last
        ended, self._id = self._id, self._new_id()
        self._ended.add(ended)
        self._heartbeat.end()
        remove_heartbeat(self._store, self._log.group, ended)

    def _beat(self) -> None:
        self._heartbeat.beat(self._id)

    def _leave(self) -> None:
        self._view = None
        if self.is_static:
            return
        try:
            self._remove({*self._ended, self._id})
        except KafkaException as error:
            text = "leaving failed, the group waits for the session time-out group=%r reason=%s"
            _log.warning(text, self._log.group, error)
        remove_heartbeat(self._store, self._log.group, self._id)

    @property
    def _claim(self) -> Claim:
        return Claim(self._id, -1 if self._head is None else self._head.generation, self._member.instance_id)

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._member.session_timeout_s

    def _rest(self) -> None:
        """Wait until the group's log may have changed, or something else is due."""
        now = self._clock.monotonic()
        due_at = min(self._heartbeat.due_at, self._members.due_at, self._poll_at + self._max_poll_interval_s)
        is_stable = self._head is not None and self._head.is_stable()
        due_at = min(due_at, self._read_at + (POLL_S if is_stable else BUSY_POLL_S))
        if self._wait(max(due_at - now, _REST_S)) and not self._closing:
            rest_s = self._read_at + _REST_S - self._clock.monotonic()
            if rest_s > 0:
                self._clock.sleep(rest_s)

    def _wait(self, seconds: float) -> bool:
        return not self._closing and self._wakes.wait(min(seconds, self._heartbeat_interval_s))
