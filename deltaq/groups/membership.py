"""A consumer's membership in its group, on a thread: joining, heartbeats, watching other members,
leaving.

The thread keeps the consumer in its group and publishes what the group's log says of it
(`GroupView`). The consumer's own thread follows the view: it runs the rebalance callbacks and
releases partitions (`consumer/reconciliation.py`). A member that was silent for its
`session.timeout.ms` ends its own session and joins again with a new id, so a watcher never removes
a living member, however late it acts.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaq import metrics, names
from deltaq.clock import Thread
from deltaq.delta.table_state import TableState
from deltaq.errors import (
    Fenced,
    InvalidConfig,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Unavailable,
)
from deltaq.groups.heartbeat import SessionExpired
from deltaq.groups.session import GroupView, MemberSettings, MemberTopics
from deltaq.groups.state import NO_MEMBER, Key, MemberIdentity
from deltaq.serde.json_text import compact_json, strict_json

_log = logging.getLogger("deltaq.groups")

_REST_S = 0.02
"""Shortest time between two reads of the group's log: offset commits of all members wake this
thread.
"""

_COUNTS_S = 0.1
"""Longest time between two looks at the partition counts of topics while a consumer waits for them
to join.
"""


_METADATA_MARK = b"CGMDv2:"


@dataclass(frozen=True, slots=True)
class MembershipMetadata:
    """What `Consumer.consumer_group_metadata` says. `identity`: on whose behalf offsets are
    committed; None for a consumer that is no member. `topic_ids` of partitions are those of the
    messages that the consumer returned last: an offset of a topic that was deleted must not count
    for a later topic of its name.
    """

    group: str
    identity: MemberIdentity | None
    topic_ids: Mapping[Key, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Opaque bytes in librdkafka's layout, with the topic ids behind it, if there are any."""
        of = NO_MEMBER if self.identity is None else self.identity
        texts = b"".join(text.encode() + b"\0" for text in (self.group, of.member_id))
        instance = b"\x01" if of.instance_id is None else b"\0" + of.instance_id.encode() + b"\0"
        ids: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), topic_id in self.topic_ids.items():
            ids.setdefault(topic, {}).setdefault(topic_id, []).append(partition)
        behind = compact_json(ids).encode() if ids else b""
        return _METADATA_MARK + struct.pack("<i", of.generation) + texts + instance + behind

    @classmethod
    def parse(cls, metadata: object) -> MembershipMetadata:
        """From the bytes. Raises TypeError, and InvalidConfig for other bytes."""
        if not isinstance(metadata, bytes):
            raise TypeError(
                f"expected what Consumer.consumer_group_metadata returns, not "
                f"{type(metadata).__name__}"
            )
        try:
            found = cls._parsed(metadata)
        except (ValueError, TypeError, AttributeError, struct.error) as error:
            raise InvalidConfig(
                "these bytes are not what Consumer.consumer_group_metadata returns",
                key="group_metadata",
                code=KafkaError._BAD_MSG,
            ) from error
        names.check_group(found.group)
        return found

    @classmethod
    def _parsed(cls, metadata: bytes) -> MembershipMetadata:
        start = len(_METADATA_MARK) + 4
        if not metadata.startswith(_METADATA_MARK):
            raise ValueError("they begin with another mark")
        (generation,) = struct.unpack("<i", metadata[len(_METADATA_MARK) : start])
        group, member_id, rest = (text.decode() for text in metadata[start:].split(b"\0", 2))
        instance_id, behind = None, rest[1:]
        if not rest.startswith("\x01"):
            _, instance_id, behind = rest.split("\0", 2)
        ids: Any = strict_json(behind or "{}")
        identity = MemberIdentity(member_id, generation, instance_id) if member_id else None
        topic_ids = {
            (topic, int(partition)): str(topic_id)
            for topic, of_topic in ids.items()
            for topic_id, partitions in of_topic.items()
            for partition in partitions
        }
        return cls(group, identity, topic_ids)


@dataclass(slots=True, eq=False)
class PollLease:
    """For how long `poll` may return accepted records without looking for other work: until
    `until`, or until another thread ends it after a change that the application's thread has to
    follow.

    It is made known to the other threads before the application's thread looks for changes, so that
    none is missed. `polled_at` is when `poll` was called last, infinite before the first time. Both
    are times of `Clock.uptime`.
    """

    until: float
    polled_at: float

    def end(self) -> None:
        """End the lease for good. For any thread."""
        self.until = float("-inf")


@dataclass(eq=False)
class Membership:
    """Keeps one consumer in its group, one session after the other. `on_change()` is called when
    `view` or the result of `take_error` changes.

    `session` is the current one, which may not have joined yet. `lease` is the one that the
    consumer polls by, or `on_change` has ended; the consumer sets it.
    """

    _settings: MemberSettings
    _max_poll_interval_s: float
    _on_change: Callable[[], None]
    _first_topics: Callable[[], MemberTopics | None] = lambda: None
    """The topics to join with while the consumer has not set any: a consumer that has not polled
    yet is a member, as in Kafka. None while their partition counts are not known. For the thread;
    may raise KafkaException.
    """
    held: frozenset[Key] = frozenset()
    """The partitions that the consumer holds, set by it. It releases what it gives up, and the
    membership what it could not release.
    """
    is_replaced: bool = False
    """Whether another consumer has joined with this `group.instance.id`."""
    keeps_place: bool = field(init=False)
    """Whether the consumer stays a member as it closes: with a `group.instance.id`, unless it
    unsubscribes.
    """
    _topics: MemberTopics | None = None  # as the consumer knows them
    _first: MemberTopics | None = None  # the same before the consumer has polled
    _error: KafkaException | None = None
    _failure: KafkaException | None = None  # of the last try to join or stay; None if it succeeded
    _closing: bool = False
    _is_leaving: bool = False  # the consumer is leaving the group itself
    _poll_exceeded: bool = False
    _is_running: bool = False
    _thread: Thread | None = None
    # Ids of ended sessions that may still be members in the log.
    _ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings = self._settings
        self._clock = settings.clock
        self._group = settings.log.group
        self.session = settings.session(self._on_change)
        self.keeps_place = self.is_static
        self._closes = settings.clock.condition()
        self._wakes = settings.store.watch()
        self._wakes.add(names.group_folder(self._group) + names.LOG_FOLDER)
        self.lease = PollLease(float("-inf"), float("inf"))

    # --- what the consumer calls ---

    def begin(self) -> None:
        """Start the thread, unless it runs. The consumer must hold the membership before, to end it
        in any case.
        """
        if self._thread is None:
            self._wakes.wake()  # opens it, before two threads use it
            self._thread = self._clock.start_thread(self._run, f"deltaq-group-{self._group}")

    @property
    def view(self) -> GroupView | None:
        """What the consumer may deliver records of; None while it is not a member. Also None once
        its last heartbeat is `session.timeout.ms` old, suspensions included: the group may have
        removed it.
        """
        session = self.session
        view = session.view
        return None if view is None or session.is_silent() else view

    @property
    def is_static(self) -> bool:
        """Whether the consumer has a `group.instance.id`: then it keeps its partitions while it is
        away.
        """
        return self._settings.member.instance_id is not None

    def last_read(self) -> TableState:
        """The group's table as last read, only to look at. Does no I/O and takes no lock."""
        return self._settings.log.last_read()

    def problem(self) -> str:
        """Why the consumer is not a member, or soon will not be; empty if nothing is known."""
        if self._poll_exceeded:
            return (
                "poll() was not called for max.poll.interval.ms; the next call lets the consumer "
                "join again"
            )
        return "" if self._failure is None else str(self._failure)

    def polled_s_ago(self) -> float:
        """Seconds since the last poll; below 0 before the first. `max.poll.interval.ms` counts from
        it, as in Kafka.
        """
        return self._clock.uptime() - self.lease.polled_at

    def set_topics(self, topics: MemberTopics) -> None:
        """Set what the consumer subscribes to. It joins once the partition counts are known, and
        the log gets each change. The consumer must have given up the partitions of topics that it
        leaves out.
        """
        if self._topics != topics:
            self._topics = topics
            self._wakes.wake()

    def begin_to_leave(self) -> None:
        """The consumer is about to leave the group itself, so its removal is no error."""
        self._is_leaving = True

    def polled(self) -> bool:
        """Record a poll. True, once, if the consumer has left its group by
        `max.poll.interval.ms`.
        """
        self.lease.polled_at = self._clock.uptime()
        if not self._poll_exceeded:
            return False
        self._poll_exceeded = False
        self._wakes.wake()
        return True

    def take_error(self) -> KafkaException | None:
        """The error that keeps the consumer out of the group, or ended its last session. Each is
        returned once.
        """
        error = self._error
        if error is not None:  # else an error that is set at this moment would be lost
            self._error = None
        return error

    def close(self) -> None:
        """Leave the group and end the thread. During an outage, the group waits for the session
        time-out.

        A member that `keeps_place` stays, so that it finds its partitions again if it returns in
        time.
        """
        if (thread := self.abandon()) is not None:
            with self._closes:
                self._closes.notify_all()
            self._wakes.wake()
            thread.join()

    def abandon(self) -> Thread | None:
        """Let the thread leave the group and end soon, and return it. Does not wake it: a finalizer
        may call this in that very thread while it waits.
        """
        self._closing = True
        return self._thread

    # --- the thread ---

    def _run(self) -> None:
        if self._is_running:
            return  # an interrupted `begin` has already started a thread
        self._is_running = True
        while not self._closing:
            try:
                self._advance()
            except OutcomeUnknown as error:
                # Each change is idempotent, so the loop retries.
                _log.warning(
                    "change of the group has an unknown outcome, retrying group=%r: %s",
                    self._group,
                    error,
                )
                self._wait(self._settings.heartbeat_interval_s)
            except SessionExpired:
                silence = f"{self._settings.member.session_timeout_s:g} s"
                _log.warning(
                    "no heartbeat for %s, joining again with a new id group=%r",
                    silence,
                    self._group,
                )
                self._end_session(KafkaError(KafkaError._TIMED_OUT))
            except KafkaException as error:
                self._report_error(error)
            except Exception as error:  # noqa: BLE001 - a bug must not leave the application waiting forever
                _log.exception("keeping the membership failed group=%r", self._group)
                reason = (
                    f"keeping the membership of group {self._group!r} failed: "
                    f"{type(error).__name__}: {error}"
                )
                self._report_error(KafkaException(KafkaError(KafkaError._FAIL, reason)))
        try:
            self._leave()
        except Exception:  # noqa: BLE001 - the consumer is closing, so the error is only logged
            _log.exception(
                "leaving failed, the group waits for the session time-out group=%r", self._group
            )
        self._wakes.close()

    def _advance(self) -> None:
        """One round of the thread."""
        is_member = self.session.view is not None
        if self._topics is None and self._first is None:
            self._first = self._first_topics()
        topics = self._first if self._topics is None else self._topics
        if self._poll_exceeded and self._ended and not self.is_static:
            self.session.leave(self._ended)
            self._ended.clear()
        # It must not join: before the next poll, ever again, or any more.
        elif self._poll_exceeded or self.is_replaced or (self._is_leaving and not is_member):
            self._wait(self._settings.heartbeat_interval_s)
        elif topics is None:
            self._wait(_COUNTS_S)
        elif is_member:
            self._stay(topics)
        else:
            self.session.join(topics, self._ended, is_refused=self._failure is not None)
            # Keep the error that ended the previous session.
            if not isinstance(self._error, Fenced):
                self._error = None
            self._ended.clear()
            self._failure = None

    def _stay(self, topics: MemberTopics) -> None:
        """One round of a member. Any error ends the session, except a store that is unavailable for
        less than the session time-out: a consumer that can neither read nor prove its membership
        must not deliver records.
        """
        try:
            self.session.keep_up(topics, self.held)
            self._failure = None
        except Unavailable as error:
            if self.session.is_silent():
                self._end_session(KafkaError(KafkaError._TIMED_OUT))
                raise
            if self._failed(error):
                _log.warning("heartbeat failed group=%r reason=%s", self._group, error)
        except (OutcomeUnknown, SessionExpired):
            raise
        except Exception as error:
            self._end_session(
                error.error if isinstance(error, KafkaException) else KafkaError(KafkaError._FAIL)
            )
            raise
        if self.polled_s_ago() > self._max_poll_interval_s:
            # Before the group hears of it, so that the consumer cannot find itself removed while it
            # still counts as a member.
            self._end_session(KafkaError(KafkaError._MAX_POLL_EXCEEDED))
        else:
            self._rest()

    def _report_error(self, error: KafkaException) -> None:
        if self._is_leaving:
            self._wait(self._settings.heartbeat_interval_s)
            return
        is_new = self._failed(error)
        if is_new:
            _log.warning("not a member group=%r reason=%s", self._group, error.error.str())
        if is_new or error.error.code() != KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            self._error = error
        # Joining again would put out the other one.
        self.is_replaced = self.is_replaced or error.error.fatal()
        self._on_change()
        if isinstance(error, Unavailable):
            self._pause(self._settings.heartbeat_interval_s)
        else:
            self._wait(self._settings.heartbeat_interval_s)

    def _failed(self, error: KafkaException) -> bool:
        """Note a failure; whether it is another one than before. The same one is not logged again
        at each try.
        """
        before, self._failure = self._failure, error
        return before is None or str(before) != str(error)

    def _end_session(self, reason: KafkaError) -> None:
        if not self._is_leaving:
            metrics.SESSIONS_LOST.add(group=self._group, reason=reason.name())
        ended, self.session = self.session, self._settings.session(self._on_change)
        # Set after the session, so that a poll that takes it finds no view of the ended session.
        self._poll_exceeded |= reason.code() == KafkaError._MAX_POLL_EXCEEDED
        self._on_change()
        self._ended.add(ended.member_id)
        ended.end()

    def _leave(self) -> None:
        session = self.session
        session.view = None
        if self.keeps_place:
            return
        try:
            session.leave({*self._ended, session.member_id})
        except KafkaException as error:
            text = "leaving failed, the group waits for the session time-out group=%r reason=%s"
            _log.warning(text, self._group, error)
        session.end()

    def _rest(self) -> None:
        """Wait until the group's log may have changed, or something else is due."""
        poll_due_in_s = self._max_poll_interval_s - self.polled_s_ago()
        if (
            self._wait(max(min(self.session.due_in_s(), poll_due_in_s), _REST_S))
            and not self._closing
        ):
            rest_s = _REST_S - self.session.read_s_ago()
            if rest_s > 0:
                self._pause(rest_s)

    def _pause(self, seconds: float) -> None:
        """Wait until the consumer closes. Unlike `_wait`, not until something changes: a busy topic
        grows all the time, and each growth would have a store that refuses asked again.
        """
        with self._closes:
            if not self._closing:
                self._closes.wait(seconds)

    def _wait(self, seconds: float) -> bool:
        return not self._closing and self._wakes.wait(
            min(seconds, self._settings.heartbeat_interval_s)
        )
