"""The holds of a group of views on its inputs and on the topics of its views: key compaction and
retention keep what its last `HISTORY` ticks need, so that they can be read and proved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deltaq.clock import Clock
from deltaq.store import Store
from deltaq.topics.holds import Hold, put_hold, read_holds, remove_hold, stored_holds
from deltaq.topics.lookup import TopicLookup
from deltaq.views.program import view_topic
from deltaq.views.ticks import InputCut, Tick, ViewOffsets, tick_at

HISTORY = 1000
"""How many ticks before the last one can be read."""

RENEW_S = 60.0
"""Seconds after which the holds follow new ticks."""

REST_S = 3600.0
"""Seconds after which they are renewed, though there is no new tick."""


@dataclass(eq=False)
class GroupHolds:
    """The holds of one runner, under a name of its own: one that was not renewed in time may be
    removed at any moment, also just after another runner has written it again.
    """

    _store: Store
    _clock: Clock
    _group: str
    _moves_with_retention: bool

    def __post_init__(self) -> None:
        self._name = f"{_prefix(self._group)}{self._clock.unique_id()}"
        self._held: Tick | None = None
        self._put_at = float("-inf")

    def begin(self, last: Tick | None, inputs: Mapping[str, str]) -> None:
        """Hold the inputs, topic ids by name, before the first cut is chosen, and what the ticks up
        to `last` need. Then remove the holds of earlier runners. Raises Unavailable.
        """
        # Until there is a tick, all of the inputs is held.
        everything = {topic: InputCut(topic_id, (), ()) for topic, topic_id in inputs.items()}
        oldest = None if last is None else self._oldest(last)
        held = everything if oldest is None else everything | dict(oldest.inputs)
        self._put_inputs({topic: held[topic] for topic in inputs})
        views = {} if last is None or oldest is None else _views(last, oldest)
        self._put_views(views)
        self._held, self._put_at = last, self._clock.monotonic()
        for topic in [*inputs, *(view_topic(self._group, name) for name in views)]:
            release(self._store, topic, self._group, but=self._name)

    def follow(self, last: Tick) -> None:
        """Renew the holds if it is time, so that they release what only older ticks need. Raises
        Unavailable.
        """
        if self._is_due(last):
            oldest = self._oldest(last)
            self._put_inputs(oldest.inputs)
            self._put_views(_views(last, oldest))
            self._held, self._put_at = last, self._clock.monotonic()

    def _is_due(self, last: Tick) -> bool:
        held, waited_s = self._held, self._clock.monotonic() - self._put_at
        if held is None or held.views.keys() != last.views.keys():
            return True
        return waited_s >= (RENEW_S if last.number > held.number else REST_S)

    def _oldest(self, last: Tick) -> Tick:
        """The oldest tick that is to be read."""
        number = max(1, last.number - HISTORY)
        return tick_at(self._store, self._group, self._clock, number) or last

    def _put_inputs(self, inputs: Mapping[str, InputCut]) -> None:
        for topic, cut in inputs.items():
            starts = None if self._moves_with_retention else cut.starts
            self._put_one(topic, cut.topic_id, cut.ends, starts)

    def _put_views(self, views: Mapping[str, ViewOffsets]) -> None:
        for name, of in views.items():
            self._put_one(view_topic(self._group, name), of.topic_id, (of.end,), None)

    def _put_one(
        self, topic: str, topic_id: str, ends: tuple[int, ...], starts: tuple[int, ...] | None
    ) -> None:
        hold = Hold(self._name, topic_id, ends, starts, self._clock.time_ms())
        put_hold(self._store, topic, hold)


def _views(last: Tick, oldest: Tick) -> dict[str, ViewOffsets]:
    """Where the views ended at the oldest tick that is to be read; those that it does not have
    began at 0.
    """
    return {
        name: oldest.views.get(name, replace(of, start=0, end=0)) for name, of in last.views.items()
    }


def _prefix(group: str) -> str:
    """What the names of the holds of a group begin with."""
    return f"views.{group}."


def release(store: Store, topic: str, group: str, *, but: str = "") -> None:
    """Remove the holds of a group on a topic, but for one. Raises Unavailable."""
    for found in stored_holds(store, topic):
        if found.holder.startswith(_prefix(group)) and found.holder != but:
            remove_hold(store, topic, found.holder)


def is_kept(
    store: Store, clock: Clock, group: str, topic: str, cut: InputCut, *, is_keyed: bool
) -> bool:
    """Whether a topic still has what a cut needs: where key compaction removes records, it needs a
    hold at or before its ends. Raises UnknownTopic, Unavailable.
    """
    if TopicLookup(store, clock).head(topic).topic_id != cut.topic_id:
        return False
    return not is_keyed or any(
        hold.holder.startswith(_prefix(group)) and _is_at_most(hold.ends, cut.ends)
        for hold in read_holds(store, topic, cut.topic_id, clock)
    )


def _is_at_most(offsets: Sequence[int], others: Sequence[int]) -> bool:
    """Whether offsets by partition are at or before others, where both name the partition."""
    return all(offset <= other for offset, other in zip(offsets, others, strict=False))
