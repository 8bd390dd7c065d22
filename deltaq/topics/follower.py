"""One follower of each topic's log per process, and the readers that share what it has read.

A follower reads each log entry that the process does not know yet, and replaces its `TopicView`.
Each reader holds the view that it works with, and takes the newer one when it polls. The result of
a poll counts for all readers who waited since before that poll began, so several readers of a quiet
topic poll as often as one. A writer has a position of its own: a commit may wait for the store for
a long time, and it must not keep readers from reading. What either has read, the other takes over
(`delta/known_log.py`). Decision 0029 in `docs/decisions/` has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock, after_fork
from deltaq.delta.position import LogCleaned
from deltaq.errors import InvalidConfig
from deltaq.store import Store
from deltaq.topics.log import TopicLog
from deltaq.topics.readable import ReadableTopic
from deltaq.topics.view import TopicView, known_topic

RECENT_S = 1.0
"""Seconds for which a new reader follows on from what the process has read. After that it loads the
log, since many entries may have been written, and a checkpoint is read faster.
"""

GAP_CHECK_S = 1.0, 64.0
"""Seconds for which a topic has to be quiet before its log is listed to find a gap: the first
interval and the longest. Each interval is twice the one before.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a follower has read. `end_poll` is the number of the poll that found no entry after
    `view`; 0 if none has. `read_at`: when the newest poll was answered, a time of
    `Clock.monotonic`. `is_end_open`: the position may be a gap in the log instead of its end.
    """

    view: TopicView
    end_poll: int = 0
    read_at: float = float("-inf")
    is_end_open: bool = False

    def is_as_read(self, other: Progress) -> bool:
        """Whether both are of the same position, and as much is known of it."""
        return self.view is other.view and self.is_end_open == other.is_end_open


class Polled(Enum):
    """What a reader's poll found."""

    SHARED = auto()
    """Entries that the process had read already. There may be more."""
    FULL = auto()
    """All the entries asked for. There may be more."""
    END = auto()
    """The end of the log, with or without entries before it."""


class TopicFollower:
    """Follows one topic's log on behalf of all readers of this process. Thread-safe.

    `progress` is replaced, never changed, and is read without the lock. `polls` is the number of
    polls begun.
    """

    def __init__(self, store: Store, topic: str, clock: Clock) -> None:
        self.store = store
        self.topic = topic
        self.clock = clock
        self.polls = 0
        self._lock = clock.lock()
        self._log = self._new_log()
        self.progress = Progress(self._log.view)
        self._quiet_since = 0.0
        self._next_check_s = GAP_CHECK_S[0]

    def _new_log(self) -> TopicLog:
        known = known_topic(self.store, self.topic, self.clock)
        return TopicLog(self.store, self.topic, self.clock, known=known)

    def open(self) -> Progress:
        """Load the log unless it was read within `RECENT_S`. Raises what `TopicLog.load` raises."""
        with self._lock:
            is_recent = self.clock.monotonic() - self.progress.read_at <= RECENT_S
            # Between two readers, the folder may have been removed and the topic created again.
            if (
                is_recent
                and self._log.delta_log.is_whole
                and self._log.version >= 0
                and self._log.delta_log.is_in_place()
            ):
                return self.progress
            return self._move(self._load)

    def load(self, *, to_end: bool = True) -> Progress:
        """Load the newest version. Raises what `TopicLog.load` raises."""
        with self._lock:
            return self._move(lambda: self._load(to_end=to_end))

    def poll(self, known: Progress, after: int, count: int) -> tuple[Progress, Polled]:
        """Read up to `count` next entries, unless there is already something newer than `known`.

        A poll that reached the end of the log need not be repeated if its number is above `after`.
        Raises what `TopicLog.load` raises.
        """
        # A reader that finds entries of others does not wait for a poll under way.
        if not (progress := self.progress).is_as_read(known):
            return progress, Polled.END if progress.end_poll > after else Polled.SHARED
        with self._lock:
            if not (progress := self.progress).is_as_read(known):
                return progress, Polled.END if progress.end_poll > after else Polled.SHARED
            if progress.end_poll > after:
                return progress, Polled.END
            # Only where the log was loaded here, which checks the name of the topic.
            if self._log.delta_log.is_whole and self._log.take_over():
                self._publish(0)
                return self.progress, Polled.SHARED
            progress = self._move(lambda: self._read(count))
            return progress, Polled.END if progress.end_poll > after else Polled.FULL

    def check_end(self) -> Progress:
        """Check that the newest view is the end of the log, unless that has been done. If it is a
        gap, go on to the end. Raises what `TopicLog.check_end` raises.
        """
        with self._lock:
            if self._log.delta_log.is_whole and not self._log.is_end_open:
                return self.progress
            return self._move(self._check_end)

    def check_quiet(self) -> Progress:
        """List a log that stays quiet, at growing intervals: a lost entry looks like the end of the
        log.
        """
        with self._lock:
            now = self.clock.monotonic()
            if now - self._quiet_since < self._next_check_s:
                return self.progress
            progress = self._move(self._check_end) if self._log.version >= 0 else self.progress
            if now - self._quiet_since >= self._next_check_s:  # nothing was found
                self._quiet_since, self._next_check_s = (
                    now,
                    min(self._next_check_s * 2, GAP_CHECK_S[1]),
                )
            return progress

    # --- under the lock ---

    def _move(self, move: Callable[[], bool]) -> Progress:
        """Move the log, and publish what was read; `move` returns whether it reached the end."""
        self.polls += 1
        number, is_at_end = self.polls, False
        try:
            is_at_end = move()
        except InvalidConfig:  # a conflict of names, which must be reported each time
            self._log = self._new_log()
            raise
        finally:
            if self._log.delta_log.is_whole:
                self._publish(number if is_at_end else 0)
        return self.progress

    def _publish(self, end_poll: int) -> None:
        now, before = self.clock.monotonic(), self.progress
        progress = Progress(self._log.view, end_poll, now, self._log.is_end_open)
        if progress.view.version != before.view.version:
            self._quiet_since, self._next_check_s = now, GAP_CHECK_S[0]
        if end_poll or not progress.is_as_read(before):
            self.progress = progress

    def _load(self, *, to_end: bool = True) -> bool:
        self._log.load(to_end=to_end)
        return True

    def _read(self, count: int) -> bool:
        if not self._log.delta_log.is_whole:
            return self._load()
        try:
            return self._log.read_following(count) < count
        except LogCleaned:
            return self._load()

    def _check_end(self) -> bool:
        if not self._log.delta_log.is_whole:
            return self._load()
        self._log.check_end()
        return True


class TopicReader(ReadableTopic):
    """A reader's position in a topic. Not thread-safe: one owner at a time."""

    def __init__(self, follower: TopicFollower) -> None:
        super().__init__(follower.store, follower.topic, follower.clock)
        self._follower = follower
        self._progress = follower.progress

    # --- the topic as this reader knows it ---

    @property
    def view(self) -> TopicView:
        return self._progress.view

    @property
    def is_end_open(self) -> bool:
        """Whether the position may be a gap in the log instead of its end; `check_end` finds
        out.
        """
        return self._progress.is_end_open

    # --- moving on ---

    @property
    def polls(self) -> int:
        """The number of polls that this process has begun. A later `end_poll` is newer than this
        moment.
        """
        return self._follower.polls

    @property
    def end_poll(self) -> int:
        """The number of the poll that found this position to be the end of the log; 0 if none
        has.
        """
        return self._progress.end_poll

    @property
    def read_at(self) -> float:
        """When the log was last read up to this position, a time of `Clock.monotonic`."""
        return self._progress.read_at

    def open(self) -> None:
        """Begin near the end of the log: where this process has just read it, or by loading it.

        All methods from here on raise what `TopicLog.load` raises.
        """
        self._progress = self._follower.open()

    def load(self, *, to_end: bool = True) -> bool:
        self._progress = self._follower.load(to_end=to_end)
        return self.head is not None

    def poll(self, after: int, count: int = 1) -> Polled:
        """Take over what the process has read, or read up to `count` next entries.

        The end of the log is read again unless a poll with a number above `after` has found it.
        """
        self._progress, polled = self._follower.poll(self._progress, after, count)
        return polled

    def catch_up(self, *, to_end: bool = True) -> bool:
        """Follow the log to the version that is the newest now; whether the topic exists. Unless
        `to_end`, `is_end_open` may be true afterwards.
        """
        after = self.polls
        self._progress = self._follower.progress
        if self.version < 0:
            return self.load(to_end=to_end)
        while self.poll(after) is not Polled.END:
            pass
        if to_end and self.is_end_open:
            self.check_end()
        return self.head is not None

    def check_end(self) -> None:
        """Check that the position is the end of the log; if it is a gap, go on to the end."""
        self._progress = self._follower.check_end()

    def check_quiet(self) -> None:
        """`check_end`, if the log has been quiet for long enough."""
        self._progress = self._follower.check_quiet()


class _Followers:
    """Followers by (store, topic, clock), referenced weakly.

    A follower keeps its store and clock alive, so their `id` is not reused while the follower
    exists.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._followers: WeakValueDictionary[tuple[int, str, int], TopicFollower] = (
            WeakValueDictionary()
        )

    def get(self, store: Store, topic: str, clock: Clock) -> TopicFollower:
        key = id(store), topic, id(clock)
        with self._lock:
            found = self._followers.get(key)
            if found is None:
                found = self._followers[key] = TopicFollower(store, topic, clock)
            return found


_FOLLOWERS = _Followers()


def _forget_followers() -> None:
    """A forked child starts without followers: a thread of its parent may have been in the middle
    of a change.
    """
    global _FOLLOWERS
    _FOLLOWERS = _Followers()


after_fork(_forget_followers)


def topic_reader(store: Store, topic: str, clock: Clock = SYSTEM_CLOCK) -> TopicReader:
    """A reader of `topic` on `store`. All readers of a process share one follower, as long as one
    of them exists.
    """
    return TopicReader(_FOLLOWERS.get(store, topic, clock))
