"""One consumer's life in a group: joining, showing that it lives, leaving; on a thread of its own.

A group has one member at a time. A consumer that finds another one watches that one's heartbeat object
(`deltaq/groups/liveness.py`): if it changes, the other is alive and this one is refused; if it stays the same for the
other's `session.timeout.ms`, the other is dead and is put out.

A member that was silent for its `session.timeout.ms` ends its stay by itself and joins again as another. So nothing
that a watcher does after its verdict, however late, puts out a member that lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock, Thread
from deltaq.delta.store_errors import unavailable
from deltaq.errors import Fenced, KafkaError, KafkaException, OutcomeUnknown, Unavailable
from deltaq.groups.liveness import HeartbeatWatch, remove_heartbeat
from deltaq.groups.log import GroupLog
from deltaq.groups.state import Member, in_use
from deltaq.store import Store, StoreError

__all__ = ["GroupSettings", "Membership", "Session"]

_log = logging.getLogger("deltaq.groups")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's `heartbeat.interval.ms` and `max.poll.interval.ms`, in seconds."""

    heartbeat_interval_s: float
    max_poll_interval_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """One stay of a consumer in its group."""

    member_id: str
    generation: int


class _SessionExpired(Exception):
    """This member was silent for its `session.timeout.ms`, so others may have taken it for dead."""


class Membership:
    """Keeps one consumer in its group from construction to `close`.

    Every time it joins it is a new member, with an id of its own: so that what was done as an earlier one can be told
    apart and refused. `told()` is called when `session` or `take_error` have something new to say.
    """

    def __init__(
        self,
        store: Store,
        log: GroupLog,
        member: Member,
        settings: GroupSettings,
        clock: Clock,
        told: Callable[[], None],
    ) -> None:
        self._store = store
        self._log = log
        self._member = member
        self._settings = settings
        self._clock = clock
        self._told = told
        self._changed = clock.condition()
        self._id = self._new_id()
        self._ended: set[str] = set()  # as whom it cannot come back, though the log may have it as a member still
        self._watch = HeartbeatWatch(store, log.group, clock)
        self._session: Session | None = None
        self._session_timeout_s = member.session_timeout_s
        self._proven_at = float("inf")  # `uptime` before the last heartbeat; infinite before the first
        self._error: KafkaException | None = None
        self._logged = ""  # the last error that was, since it was last a member
        self._waited_for = ""  # the members that were logged as waited for, since it was last a member
        self._closing = False
        self._poll_at = clock.monotonic()
        self._poll_exceeded = False
        self._beats = 0
        self._is_running = False
        self._thread: Thread | None = None

    # --- what the consumer calls ---

    def begin(self) -> None:
        """Start the thread that joins the group, unless it was started. To be called once the consumer has this object:
        an interrupted start must not leave a member that nothing ends."""
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, f"deltaq-group-{self._log.group}")

    @property
    def session(self) -> Session | None:
        """As whom this consumer may deliver records now; None while it is not a member, or cannot show that it lives.

        Others hold it for dead once it was silent for `session.timeout.ms`, so from then on it must not go on. The time
        of a suspended machine counts.
        """
        proven_at = self._proven_at  # before the session, whose end takes the proof back
        session = self._session
        if session is None or self._clock.uptime() - proven_at >= self._session_timeout_s:
            return None
        return session

    def polled_in_time(self) -> bool:
        """The application polled. False if that was too late: `polled` says the same, and lets this go on."""
        self._poll_at = self._clock.monotonic()
        return not self._poll_exceeded

    def polled(self) -> bool:
        """The application polled. True if it had stayed away for longer than `max.poll.interval.ms`, and so lost its
        membership."""
        self._poll_at = self._clock.monotonic()
        if not self._poll_exceeded:
            return False
        with self._changed:
            self._poll_exceeded = False
            self._changed.notify_all()
        return True

    def take_error(self) -> KafkaException | None:
        """Why this consumer is not a member, or was put out of its last stay, told once."""
        error = self._error
        if error is not None:  # or one that comes just now would be lost
            self._error = None
        return error

    def close(self) -> None:
        """Leave the group and end the thread. A store that does not answer only delays the next member."""
        thread = self.abandon()
        if thread is not None:
            thread.join()

    def abandon(self) -> Thread | None:
        """Leave the group and end the thread, soon."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return self._thread

    # --- the thread ---

    def _run(self) -> None:
        with self._changed:
            if self._is_running:
                return  # an interrupted `begin` had started a thread already
            self._is_running = True
        while not self._closing:
            try:
                if self._poll_exceeded:
                    self._wait(self._settings.heartbeat_interval_s)
                elif self._session is not None:
                    self._stay()
                else:
                    self._join()
            except OutcomeUnknown as error:
                # Joining or leaving once more does no harm, so nobody has to be asked what to do.
                _log.warning("it is not known yet whether this is a member group=%r: %s", self._log.group, error)
                self._wait(self._settings.heartbeat_interval_s)
            except _SessionExpired:
                silence = f"{self._session_timeout_s:g} s"
                _log.warning("no heartbeat for %s, joining again as another group=%r", silence, self._log.group)
                self._end_session()
                self._told()
            except KafkaException as error:
                self._tell(error)
            except Exception as error:  # noqa: BLE001 - a defect must not leave the application waiting for ever
                _log.exception("keeping the membership failed group=%r", self._log.group)
                reason = f"keeping the membership of group {self._log.group!r} failed: {type(error).__name__}: {error}"
                self._tell(KafkaException(KafkaError(KafkaError._FAIL, reason)))
        try:
            self._leave()
        except Exception:  # noqa: BLE001 - the application closes the consumer: only the log can say it
            _log.exception("leaving failed, the next member will wait group=%r", self._log.group)

    def _tell(self, error: KafkaException) -> None:
        if str(error) != self._logged:  # the same again at every attempt to join says nothing
            self._logged = str(error)
            _log.warning("not a member group=%r reason=%s", self._log.group, error.error.str())
        self._error = error
        self._told()
        self._wait(self._settings.heartbeat_interval_s)

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
        if not isinstance(self._error, Fenced):  # which ended the stay before this one
            self._error = None
        self._ended.clear()
        self._logged = self._waited_for = ""
        self._session = Session(self._id, generation)
        _log.info("joined group=%r member=%r generation=%d", self._log.group, self._id, generation)
        self._told()

    def _dead_members(self) -> list[str]:
        """The other members, once all of them are dead. Raises GroupInUse as soon as one is seen to live."""
        while True:
            members = self._log.head().members
            others = {member_id: member for member_id, member in members.items() if member_id != self._id}
            unsure = {member_id: member for member_id, member in others.items() if member_id not in self._ended}
            seen = self._watch.look(unsure)
            for member_id in seen.alive:
                raise in_use(self._log.group, member_id, unsure[member_id])
            if self._closing or seen.dead == unsure.keys():
                return list(others)
            self._log_waiting(unsure)
            shortest_s = min(member.session_timeout_s for member in unsure.values())
            self._wait(min(self._settings.heartbeat_interval_s, shortest_s / 4))
            self._beat()

    def _log_waiting(self, others: Mapping[str, Member]) -> None:
        """Tell, once for the same members, that joining waits for them, and for how long."""
        waited_for = f"{', '.join(map(repr, sorted(others)))} group={self._log.group!r}"
        if waited_for != self._waited_for:
            self._waited_for = waited_for
            longest_s = max(member.session_timeout_s for member in others.values())
            _log.warning(
                "waiting to join: a member has not left, and counts as dead when it has been silent for its "
                "session.timeout.ms, %g s: %s",
                longest_s,
                waited_for,
            )

    def _stay(self) -> None:
        """Heartbeats, until the membership ends. It ends with any error but a store that is away for a short time: a
        consumer that cannot see or show its membership must not deliver records."""
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
            if self._clock.monotonic() - self._poll_at > self._settings.max_poll_interval_s:
                self._log.leave(self._id, self._clock.monotonic() + self._session_timeout_s)
                self._poll_exceeded = True
                self._end_session()
                self._told()
            self._wait(self._settings.heartbeat_interval_s)

    def _show_life(self) -> None:
        """One heartbeat of a member. Raises Fenced if it is a member no more, and what `_beat` raises."""
        try:
            self._beat()
        finally:  # that it was put out says more than why its heartbeat failed
            if self._id not in self._log.head().members:
                reason = f"this consumer was put out of group {self._log.group!r}: it was silent for too long"
                raise Fenced(reason, code=KafkaError.UNKNOWN_MEMBER_ID, fatal=False)

    def _end_session(self) -> None:
        """This consumer is not that member any more: if it comes back, then as another."""
        self._session = None  # first: `session` reads it last
        ended, self._id = self._id, self._new_id()
        self._ended.add(ended)
        self._proven_at = float("inf")
        remove_heartbeat(self._store, self._log.group, ended)

    def _is_silent(self) -> bool:
        """Whether others may take this member for dead. The time of a suspended machine counts."""
        return self._clock.uptime() - self._proven_at >= self._session_timeout_s

    def _beat(self) -> None:
        """Show that this member lives. Raises Unavailable, and _SessionExpired if it is too late for that.

        The heartbeat counts from before it was written, and only if it was written before the one before it was too
        old: when it reached the store in between is not known.
        """
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
                self._log.leave(member_id, self._clock.monotonic() + self._settings.heartbeat_interval_s)
        except KafkaException as error:
            _log.warning("leaving failed, the next member will wait group=%r reason=%s", self._log.group, error)
        remove_heartbeat(self._store, self._log.group, self._id)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait(seconds)
