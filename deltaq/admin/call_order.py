"""The order of the calls of one admin client.

A Kafka client sends its requests to a broker one after the other, and the broker answers them in
this order. Here a call waits for those before it that touch the same topic or group, unless both
only read it. Other calls run beside it, so a slow one delays only what depends on it, and for no
longer than the `request_timeout` of the call that waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException

Subject: TypeAlias = "tuple[str, str]"
"""What a call touches: "topic" or "group", and its name; an empty name stands for all."""

ALL_TOPICS: Subject = ("topic", "")
ALL_GROUPS: Subject = ("group", "")


def topic(name: str) -> Subject:
    """A topic as the subject of a call."""
    return "topic", name


def group(name: str) -> Subject:
    """A group as the subject of a call."""
    return "group", name


@dataclass(frozen=True, slots=True)
class Touched:
    """The subjects that a call reads, and those that it changes."""

    reads: frozenset[Subject] = frozenset()
    changes: frozenset[Subject] = frozenset()


def reads(*subjects: Subject) -> Touched:
    """What a call touches that changes nothing."""
    return Touched(frozenset(subjects))


def changes(*subjects: Subject, reads: Iterable[Subject] = ()) -> Touched:
    """What a call touches that changes these subjects, and `reads` others."""
    return Touched(frozenset(reads), frozenset(subjects))


def reads_topic(name: str) -> Touched:
    """What a call touches that reads this topic."""
    return reads(topic(name))


def changes_topic(name: str) -> Touched:
    """What a call touches that changes this topic."""
    return changes(topic(name))


def reads_group(name: str) -> Touched:
    """What a call touches that reads this group."""
    return reads(group(name))


def changes_group(name: str) -> Touched:
    """What a call touches that changes this group."""
    return changes(group(name))


class Turn:
    """The turn of one call, or of one item of it."""

    def __init__(self, order: CallOrder, touched: Touched, deadline: float) -> None:
        self.touched = touched
        self.after: frozenset[Turn] = frozenset()
        self._order = order
        self._deadline = deadline

    def wait(self) -> None:
        """Wait for the calls before this one. Raises KafkaException (_TIMED_OUT) at the call's
        deadline.
        """
        self._order.wait(self.after, self._deadline)

    def end(self) -> None:
        """Let the calls after this one begin."""
        self._order.end(self)


class CallOrder:
    """The turns that have not ended, in the order of the calls. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = clock.condition()
        self._open: dict[Subject, set[Turn]] = {}

    def begin(self, touched: Iterable[Touched], deadline: float) -> list[Turn]:
        """The turns of a call's items, after all turns that have begun before. Items of one call do
        not wait for each other. `deadline` is a time of `Clock.monotonic`.
        """
        turns = [Turn(self, each, deadline) for each in touched]
        with self._changed:
            for turn in turns:
                turn.after = frozenset(self._before(turn.touched))
            for turn in turns:
                for subject in turn.touched.reads | turn.touched.changes:
                    self._open.setdefault(subject, set()).add(turn)
        return turns

    def _before(self, touched: Touched) -> Iterable[Turn]:
        for subject in touched.reads | touched.changes:
            is_change = subject in touched.changes
            for other in self._meeting(subject):
                for turn in self._open[other]:
                    if is_change or other in turn.touched.changes:
                        yield turn

    def _meeting(self, subject: Subject) -> list[Subject]:
        """The subjects of open turns that are this one, or include it, or are included in it."""
        kind, name = subject
        if not name:
            return [other for other in self._open if other[0] == kind]
        return [other for other in (subject, (kind, "")) if other in self._open]

    def wait(self, after: frozenset[Turn], deadline: float) -> None:
        """Wait until these turns have ended. Raises KafkaException (_TIMED_OUT)."""
        with self._changed:
            while any(self._is_open(turn) for turn in after):
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    reason = (
                        "an earlier call of this admin client about the same topic or group has not"
                        " ended"
                    )
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason, retriable=True))
                self._changed.wait(left)

    def _is_open(self, turn: Turn) -> bool:
        subjects = turn.touched.reads | turn.touched.changes
        return any(turn in self._open.get(subject, ()) for subject in subjects)

    def end(self, turn: Turn) -> None:
        """End a turn. May be called again."""
        with self._changed:
            for subject in turn.touched.reads | turn.touched.changes:
                if turn in (turns := self._open.get(subject, set())):
                    turns.discard(turn)
                    if not turns:
                        del self._open[subject]
            self._changed.notify_all()
