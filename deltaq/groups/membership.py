"""A consumer's membership in its group: joining, heartbeats and leaving, on a thread.

A group has one member at a time. A consumer that finds another member is refused if that one's heartbeat object
changes, and replaces it if it does not change for the member's `session.timeout.ms` (`deltaq/groups/liveness.py`).
A member that was silent for that long ends its own session and joins again with a new id: a watcher never puts out a
living member, however late it acts.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deltaq import names
from deltaq.clock import Clock, Thread
from deltaq.delta.store_errors import unavailable
from deltaq.errors import Fenced, KafkaError, KafkaException, OutcomeUnknown, Unavailable
from deltaq.groups.liveness import HeartbeatWatch, remove_heartbeat
from deltaq.groups.log import GroupLog
from deltaq.groups.state import Member, in_use
from deltaq.store import Store, StoreError

_log = logging.getLogger("deltaq.groups")


@dataclass(frozen=True, slots=True)
class Session:
    """One uninterrupted membership of a consumer: its member id, and the group's generation when it joined."""

    member_id: str
    generation: int


def group_metadata(group: str, session: Session | None) -> bytes:
    """Opaque bytes that identify a membership, in librdkafka's layout; `session` is None for a non-member."""
    generation, member_id = (-1, "") if session is None else (session.generation, session.member_id)
    texts = b"".join(text.encode() + b"\0" for text in (group, member_id))
    return b"CGMDv2:" + struct.pack("<i", generation) + texts + b"\x01"


class _SessionExpired(Exception):
    """This member was silent for its `session.timeout.ms`, so another consumer may have replaced it."""


@dataclass(eq=False)
class Membership:
    """Keeps one consumer in its group, with a new member id for each session, so that commits of an earlier one are
    refused. `on_change()` is called when `session` or the result of `take_error` changes."""

    _store: Store
    _log: GroupLog
    _member: Member
    _heartbeat_interval_s: float
    _max_poll_interval_s: float
    _clock: Clock
    _on_change: Callable[[], None]
    _session: Session | None = None
    _proven_at: float = float("inf")  # `uptime` before the last heartbeat; infinite before the first
    _error: KafkaException | None = None
    _logged: str = ""  # the last error that was logged since the last session
    _waited_for: str = ""  # the members last logged as waited for since the last session
    _closing: bool = False
    _poll_exceeded: bool = False
    _beats: int = 0
    _is_running: bool = False
    _thread: Thread | None = None
    _ended: set[str] = field(default_factory=set)  # ids of ended sessions that may still be members in the log

    def __post_init__(self) -> None:
        self._changed = self._clock.condition()
        self._id = self._new_id()
        self._watch = HeartbeatWatch(self._store, self._log.group, self._clock)
        self._session_timeout_s = self._member.session_timeout_s
        self._poll_at = self._clock.monotonic()

    # --- what the consumer calls ---

    def begin(self) -> None:
        """Start the thread, unless it runs. The consumer must hold the membership before, to end it in any case."""
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, f"deltaq-group-{self._log.group}")

    @property
    def session(self) -> Session | None:
        """The session in which this consumer may deliver records; None while it is not a member. Also None once its
        last heartbeat is `session.timeout.ms` old, suspensions included: another consumer may have replaced it."""
        proven_at = self._proven_at  # read before the session: the end of a session resets it
        session = self._session
        if session is None or self._clock.uptime() - proven_at >= self._session_timeout_s:
            return None
        return session

    def polled_in_time(self) -> bool:
        """Record a poll. False if `max.poll.interval.ms` was exceeded: call `polled` to let the consumer rejoin."""
        self._poll_at = self._clock.monotonic()
        return not self._poll_exceeded

    def polled(self) -> bool:
        """Record a poll. True, once, if the consumer has left its group by `max.poll.interval.ms`."""
        if self.polled_in_time():
            return False
        with self._changed:
            self._poll_exceeded = False
            self._changed.notify_all()
        return True

    def take_error(self) -> KafkaException | None:
        """The error that keeps the consumer out of the group, or ended its last session. Each is returned once."""
        error = self._error
        if error is not None:  # else an error that is set at this moment would be lost
            self._error = None
        return error

    def close(self) -> None:
        """Leave the group and end the thread. During an outage, the next member waits for the session time-out."""
        if (thread := self.abandon()) is not None:
            thread.join()

    def abandon(self) -> Thread | None:
        """Let the thread leave the group and end soon, and return it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return self._thread

    # --- the thread ---

    def _run(self) -> None:
        with self._changed:
            if self._is_running:
                return  # an interrupted `begin` has already started a thread
            self._is_running = True
        while not self._closing:
            try:
                if self._poll_exceeded:
                    self._wait(self._heartbeat_interval_s)
                elif self._session is not None:
                    self._stay()
                else:
                    self._join()
            except OutcomeUnknown as error:
                # Joining and leaving are idempotent, so the loop retries.
                _log.warning("group join or leave outcome unknown, retrying group=%r: %s", self._log.group, error)
                self._wait(self._heartbeat_interval_s)
            except _SessionExpired:
                silence = f"{self._session_timeout_s:g} s"
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
            _log.exception("leaving failed, the next member waits for the session time-out group=%r", self._log.group)

    def _report_error(self, error: KafkaException) -> None:
        if str(error) != self._logged:  # do not repeat the same error at every attempt to join
            self._logged = str(error)
            _log.warning("not a member group=%r reason=%s", self._log.group, error.error.str())
        self._error = error
        self._on_change()
        self._wait(self._heartbeat_interval_s)

    def _new_id(self) -> str:
        return names.member_id(self._member.client_id, self._clock.unique_id())

    def _join(self) -> None:
        self._beat()
        dead = self._dead_members()
        if self._closing:
            return
        deadline = self._clock.monotonic() + self._session_timeout_s
        generation = self._log.join(self._id, self._member, dead, deadline)
        for other in dead:
            remove_heartbeat(self._store, self._log.group, other)
        self._beat()
        if not isinstance(self._error, Fenced):  # keep the error that ended the previous session
            self._error = None
        self._ended.clear()
        self._logged = self._waited_for = ""
        self._session = Session(self._id, generation)
        _log.info("joined group=%r member=%r generation=%d", self._log.group, self._id, generation)
        self._on_change()

    def _dead_members(self) -> list[str]:
        """Wait until all other members are dead, and return them. Raises GroupInUse as soon as one is alive."""
        while True:
            members = self._log.head().members
            others = {member_id: member for member_id, member in members.items() if member_id != self._id}
            unsure = {member_id: member for member_id, member in others.items() if member_id not in self._ended}
            seen = self._watch.check(unsure)
            for member_id in seen.alive:
                raise in_use(self._log.group, member_id, unsure[member_id])
            if self._closing or seen.dead == unsure.keys():
                return list(others)
            self._log_waiting(unsure)
            shortest_s = min(member.session_timeout_s for member in unsure.values())
            self._wait(min(self._heartbeat_interval_s, shortest_s / 4))
            self._beat()

    def _log_waiting(self, others: Mapping[str, Member]) -> None:
        """Log once for the same members that joining waits for them, and for how long."""
        waited_for = f"{', '.join(map(repr, sorted(others)))} group={self._log.group!r}"
        if waited_for != self._waited_for:
            self._waited_for = waited_for
            longest_s = max(member.session_timeout_s for member in others.values())
            _log.warning(
                "waiting to join: the group has a member that has not left; it counts as dead after %g s without a "
                "heartbeat (its session.timeout.ms): %s",
                longest_s,
                waited_for,
            )

    def _stay(self) -> None:
        """Send heartbeats until the session ends. Any error ends it, except a store that is unavailable for less than
        the session time-out: a consumer that can neither read nor prove its membership must not deliver records."""
        while not self._closing and self._session is not None:
            try:
                self._show_life()
            except Unavailable as error:
                if self._is_silent():
                    self._end_session()
                    raise
                _log.warning("heartbeat failed group=%r reason=%s", self._log.group, error)
            except _SessionExpired:
                raise
            except Exception:
                self._end_session()
                raise
            if self._clock.monotonic() - self._poll_at > self._max_poll_interval_s:
                self._log.leave(self._id, self._clock.monotonic() + self._session_timeout_s)
                self._poll_exceeded = True
                self._end_session()
                self._on_change()
            self._wait(self._heartbeat_interval_s)

    def _show_life(self) -> None:
        """Send one heartbeat. Raises Fenced if this consumer is no longer a member, and what `_beat` raises."""
        try:
            self._beat()
        finally:  # Fenced takes precedence over the reason why the heartbeat failed
            if self._id not in self._log.head().members:
                reason = f"this consumer was removed from group {self._log.group!r}: it sent no heartbeat in time"
                raise Fenced(reason, code=KafkaError.UNKNOWN_MEMBER_ID, fatal=False)

    def _end_session(self) -> None:
        """End the session. The consumer can only join again with a new id."""
        self._session = None  # first: the property `session` reads it last
        ended, self._id = self._id, self._new_id()
        self._ended.add(ended)
        self._proven_at = float("inf")
        remove_heartbeat(self._store, self._log.group, ended)

    def _is_silent(self) -> bool:
        """Whether other consumers may hold this member for dead. Time during which the machine is suspended counts."""
        return self._clock.uptime() - self._proven_at >= self._session_timeout_s

    def _beat(self) -> None:
        """Write the heartbeat object. Raises Unavailable, and _SessionExpired if the previous heartbeat is too old."""
        # It counts from before the request, and only if that ended before the previous heartbeat was
        # `session.timeout.ms` old: when the store applied it in between is unknown.
        begun_at = self._clock.uptime()
        self._beats += 1
        try:
            self._store.put(names.member_key(self._log.group, self._id), b"%d" % self._beats)
        except StoreError as error:
            raise unavailable(error) from error
        if self._is_silent():
            raise _SessionExpired
        self._proven_at = begun_at

    def _leave(self) -> None:
        self._session = None
        try:
            for member_id in (*self._ended, self._id):
                self._log.leave(member_id, self._clock.monotonic() + self._heartbeat_interval_s)
        except KafkaException as error:
            text = "leaving failed, the next member waits for the session time-out group=%r reason=%s"
            _log.warning(text, self._log.group, error)
        remove_heartbeat(self._store, self._log.group, self._id)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait(seconds)
