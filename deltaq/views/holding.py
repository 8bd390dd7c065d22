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
        self._held = 0  # the last tick when the holds were put
        self._put_at = float("-inf")
        self._inputs = dict[str, str]()
        self._views = set[str]()
        self._floor: Tick | None = None

    def begin(self, last: Tick | None, inputs: Mapping[str, str]) -> None:
        """Hold the inputs, topic ids by name, before the first cut is chosen, and what the ticks up
        to `last` need, as far as it was held until now. Then remove the holds of earlier runners.
        Raises UnknownTopic, Unavailable.
        """
        self._inputs = dict(inputs)
        if last is None or self._was_held(last):
            self._put_first(last)
        # Also when a hold that was there a moment ago was not renewed in time: maintenance may not
        # have seen the one that follows it.
        if last is not None and not self._was_held(last):
            self._floor = self._present(last)
            self._put_first(last)
        if last is not None:
            self._held, self._put_at = last.number, self._clock.monotonic()
            self._views.update(last.views)
        for topic in [*inputs, *(view_topic(self._group, name) for name in sorted(self._views))]:
            release(self._store, topic, self._group, but=self._name)

    def add(self, views: Mapping[str, ViewOffsets]) -> None:
        """Hold the topics of views that have none of their rows in a tick yet, before they are in
        one. Raises Unavailable.
        """
        new = {name: of for name, of in views.items() if name not in self._views}
        self._put_views(new)
        self._views.update(new)

    def _was_held(self, last: Tick) -> bool:
        """Whether the holds of earlier runners cover the oldest tick that is to be read."""
        oldest = self._oldest(last)
        cuts = self._of_inputs(oldest) | {
            view_topic(self._group, name): InputCut(of.topic_id, (), (of.end,))
            for name, of in _views(last, oldest).items()
        }
        return all(
            _is_held(self._store, self._clock, self._group, topic, cut, but=self._name)
            for topic, cut in cuts.items()
        )

    def _present(self, last: Tick) -> Tick:
        """The last tick as if its inputs had been read now: key compaction may have removed what
        was before.
        """
        lookup = TopicLookup(self._store, self._clock)
        held = {
            topic: replace(cut, ends=tuple(lookup.head(topic).next_offsets))
            for topic, cut in self._of_inputs(last).items()
        }
        return replace(last, inputs=held)

    def _of_inputs(self, tick: Tick) -> dict[str, InputCut]:
        """What a tick covers of the topics that the program reads now."""
        return {topic: cut for topic, cut in tick.inputs.items() if topic in self._inputs}

    def _put_first(self, last: Tick | None) -> None:
        # An input is held from its begin until a tick has read it.
        held = {topic: InputCut(topic_id, (), ()) for topic, topic_id in self._inputs.items()}
        if last is not None:
            oldest = self._oldest(last)
            held |= self._of_inputs(oldest)
            self._put_views(_views(last, oldest))
        self._put_inputs(held)

    def follow(self, last: Tick) -> None:
        """Renew the holds if it is time, so that they release what only older ticks need. Raises
        Unavailable.
        """
        if self._is_due(last):
            oldest = self._oldest(last)
            self._put_inputs(self._of_inputs(oldest))
            self._put_views(_views(last, oldest))
            self._held, self._put_at = last.number, self._clock.monotonic()

    def _is_due(self, last: Tick) -> bool:
        waited_s = self._clock.monotonic() - self._put_at
        return waited_s >= (RENEW_S if last.number > self._held else REST_S)

    def _oldest(self, last: Tick) -> Tick:
        """The oldest tick that is to be read."""
        number = max(1, last.number - HISTORY)
        if self._floor is not None and number <= self._floor.number:
            return self._floor
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
    return not is_keyed or _is_held(store, clock, group, topic, cut)


def _is_held(
    store: Store, clock: Clock, group: str, topic: str, cut: InputCut, *, but: str = ""
) -> bool:
    return any(
        hold.holder.startswith(_prefix(group))
        and hold.holder != but
        and _is_at_most(hold.ends, cut.ends)
        for hold in read_holds(store, topic, cut.topic_id, clock)
    )


def _is_at_most(offsets: Sequence[int], others: Sequence[int]) -> bool:
    """Whether offsets by partition are at or before others, where both name the partition."""
    return all(offset <= other for offset, other in zip(offsets, others, strict=False))
