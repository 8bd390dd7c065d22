"""One consumer's life in a group: joining, showing that it lives, leaving; on a thread of its own.

A group has one member at a time. A consumer that finds another one watches that one's heartbeat object: if it changes,
the other is alive and this one is refused; if it stays the same for `session.timeout.ms` on this machine's clock, the other
is dead and is put out. No clocks are compared between machines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock
from deltaq.errors import Fenced, GroupInUse, KafkaException, Unavailable
from deltaq.group.group_log import GroupLog
from deltaq.group.group_state import Member
from deltaq.log.store_errors import unavailable
from deltaq.store import ObjectMissing, Store, StoreError

__all__ = ["GroupSettings", "Membership"]

_log = logging.getLogger("deltaq.group")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's `session.timeout.ms`, `heartbeat.interval.ms` and `max.poll.interval.ms`, in seconds."""

    session_timeout_s: float
    heartbeat_interval_s: float
    max_poll_interval_s: float


class Membership:
    """Keeps one consumer in its group from construction to `close`.

    `joined` is True while the member may deliver records. `take_error()` gives, once each, what the user has to be told.
    `told()` is called when either has changed.
    """

    def __init__(
        self, store: Store, log: GroupLog, member: Member, settings: GroupSettings, clock: Clock, told: Callable[[], None]
    ) -> None:
        self.member_id = f"{member.client_id or 'deltaq'}-{clock.unique_id()}"
        self.joined = False
        self._store = store
        self._log = log
        self._member = member
        self._settings = settings
        self._clock = clock
        self._told = told
        self._changed = clock.condition()
        self._error: KafkaException | None = None
        self._closing = False
        self._poll_at = clock.monotonic()
        self._poll_exceeded = False
        self._beats = 0
        self._thread = clock.start_thread(self._run, f"deltaq-group-{log.group}")

    # --- what the consumer calls ---

    def polled(self) -> bool:
        """The application polled. True if it had stayed away for longer than `max.poll.interval.ms` and lost its membership."""
        self._poll_at = self._clock.monotonic()
        if not self._poll_exceeded:
            return False
        with self._changed:
            self._poll_exceeded = False
            self._changed.notify_all()
        return True

    def take_error(self) -> KafkaException | None:
        """Why this consumer is not a member, told once."""
        error, self._error = self._error, None
        return error

    def lost(self) -> None:
        """The group's log says that this consumer was put out: join anew."""
        with self._changed:
            self.joined = False
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the group and end the thread. A store that does not answer only delays the next member."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing:
            try:
                if self._poll_exceeded:
                    self._wait(self._settings.heartbeat_interval_s)
                elif self.joined:
                    self._stay()
                else:
                    self._join()
            except KafkaException as error:
                self._error = error
                self._told()
                self._wait(self._settings.heartbeat_interval_s)
        self._leave()

    def _join(self) -> None:
        self._beat()
        dead = [id for id in self._log.head().members if id != self.member_id and self._is_dead(id)]
        if self._closing:
            return
        self._log.join(self.member_id, self._member, dead, self._clock.monotonic() + self._settings.session_timeout_s)
        self.joined = True
        self._told()

    def _is_dead(self, member_id: str) -> bool:
        """Whether a member's heartbeat stands still. Raises GroupInUse as soon as it is seen to change."""
        before = self._heartbeat_of(member_id)
        started_at = self._clock.monotonic()
        while not self._closing and self._clock.monotonic() - started_at < self._settings.session_timeout_s:
            self._wait(min(self._settings.heartbeat_interval_s, self._settings.session_timeout_s / 4))
            self._beat()
            if self._heartbeat_of(member_id) != before:
                raise GroupInUse(self._log.group, reason=f"member {member_id!r} is alive")
            if member_id not in self._log.head().members:
                return True
        return not self._closing

    def _heartbeat_of(self, member_id: str) -> bytes | None:
        try:
            return self._store.get(names.member_key(self._log.group, member_id))
        except ObjectMissing:
            return None
        except StoreError as error:
            raise unavailable(error) from error

    def _stay(self) -> None:
        """One heartbeat, then a pause. Whoever cannot show that it lives must assume that others hold it for dead."""
        written_at = self._clock.monotonic()
        while not self._closing and self.joined:
            try:
                self._beat()
                written_at = self._clock.monotonic()
                if self.member_id not in self._log.head().members:
                    raise Fenced(f"this consumer was put out of group {self._log.group!r}: it was silent for too long", fatal=False)
            except Unavailable as error:
                if self._clock.monotonic() - written_at >= self._settings.session_timeout_s:
                    self.lost()
                    raise
                _log.warning("heartbeat failed group=%r reason=%s", self._log.group, error)
            except Fenced:
                self.lost()
                raise
            if self._clock.monotonic() - self._poll_at > self._settings.max_poll_interval_s:
                self._log.leave(self.member_id, self._clock.monotonic() + self._settings.session_timeout_s)
                self.joined, self._poll_exceeded = False, True
            self._wait(self._settings.heartbeat_interval_s)

    def _beat(self) -> None:
        self._beats += 1
        try:
            self._store.put(names.member_key(self._log.group, self.member_id), b"%d" % self._beats)
        except StoreError as error:
            raise unavailable(error) from error

    def _leave(self) -> None:
        self.joined = False
        try:
            self._log.leave(self.member_id, self._clock.monotonic() + self._settings.heartbeat_interval_s)
            self._store.delete(names.member_key(self._log.group, self.member_id))
        except (KafkaException, StoreError) as error:
            _log.warning("leaving failed, the next member will wait group=%r reason=%s", self._log.group, error)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait(seconds)
