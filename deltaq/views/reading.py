"""Reading a group of views at one cut: the views at a tick, and the inputs at the same offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.transactions.cut import cut
from deltaq.views.engine import ViewEngine, engine
from deltaq.views.functions import ViewFunction, matched
from deltaq.views.holding import HISTORY, is_kept
from deltaq.views.input_names import check_names
from deltaq.views.inputs import CUT_TIMEOUT_S, Inputs
from deltaq.views.program import ViewProgram, compiled, ticks_topic, view_topic
from deltaq.views.tables import ViewTopics, about_topics
from deltaq.views.ticks import InputCut, Tick, ViewOffsets, last_tick, tick_at

_compiled = lru_cache(maxsize=16)(compiled)
"""The programs of the last ticks that were read: most are the same from tick to tick."""


@dataclass(frozen=True, slots=True)
class ViewRows:
    """A view at a tick."""

    _cut: ViewCut
    _name: str

    def to_arrow(self) -> pa.Table:
        """The rows, in no order. Raises Corrupt, Incompatible, Unavailable, and KafkaException
        (OFFSET_OUT_OF_RANGE) if the tick is not kept any more.
        """
        return self._cut._content(self._name)


@dataclass(frozen=True, slots=True)
class ViewCut:
    """A group of views at one tick: each view equals its SQL over the records of the inputs up to
    `offsets`. `cut["total"]` is a view.
    """

    _store: Store
    _clock: Clock
    _group: str
    _tick: Tick
    _functions: tuple[ViewFunction, ...] = ()

    def __enter__(self) -> ViewCut:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    @property
    def tick(self) -> int:
        """The number of the tick."""
        return self._tick.number

    @property
    def published(self) -> Tick:
        """What the tick has published."""
        return self._tick

    @property
    def offsets(self) -> dict[str, dict[int, int]]:
        """By topic and partition the offset after the last record that the views cover; of a Delta
        table, by its name and 0, the version after the one that they cover.
        """
        return {topic: dict(enumerate(of.ends)) for topic, of in self._tick.inputs.items()}

    @property
    def age(self) -> float:
        """Seconds since the cut was chosen. Later records may exist."""
        return max(0.0, (self._clock.time_ms() - self._tick.time_ms) / 1000)

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(self._tick.views)

    def __getitem__(self, name: str) -> ViewRows:
        self._written(name)
        return ViewRows(self, name)

    def _written(self, name: str) -> ViewOffsets:
        """The offsets of the view's own topic. Raises InvalidConfig for a view that the tick does
        not have.
        """
        found = self._tick.views.get(name)
        if found is None:
            known = ", ".join(self._tick.views)
            reason = f"tick {self.tick} of {self._group!r} has no view {name!r}, only {known}"
            raise InvalidConfig(reason, key=name)
        return found

    def sql(self, query: str) -> pa.Table:
        """The result of a query over the views, and the inputs at the same offsets, by their names
        in the SQL of the views. Raises InvalidConfig for a query that DuckDB refuses, and what
        `to_arrow` raises.
        """
        with self.at_cut() as (found, program):
            check_names(found.tables_of(query), [*self.offsets, *self.views], self._store)
            for view in program.views:
                found.create_view_of(view.name, self._content(view.name))
            return found.query(query)

    @contextmanager
    def at_cut(self) -> Iterator[tuple[ViewEngine, ViewProgram]]:
        """An engine with the inputs at the cut."""
        program = program_of(self._store, self._clock, self._group, self._tick, self._functions)
        inputs = Inputs.of(program, self._store, self._clock, at=self._tick.inputs)
        with engine(program) as found:
            forms = inputs.forms(self._tick.inputs)
            inputs.load(found, {}, self._tick.inputs, forms)
            found.set_time(self._tick.time_ms)
            # After reading: what was there then was there before.
            for topic, cut in self._tick.inputs.items():
                if cut.delta:
                    continue  # what is kept of it could be read
                is_keyed = forms[topic].is_keyed or forms[topic].is_compacted
                if not is_kept(
                    self._store, self._clock, self._group, topic, cut, is_keyed=is_keyed
                ):
                    raise self._not_kept(f"what topic {topic!r} had at ")
            yield found, program

    def _content(self, name: str) -> pa.Table:
        return self._checked(name, ViewTopics.content)

    def present(self, name: str) -> pa.Table:
        """The rows of a view with what tells them apart; see `ViewTopics.present`. Raises as
        `to_arrow`.
        """
        return self._checked(name, ViewTopics.present)

    def _checked(
        self, name: str, read: Callable[[ViewTopics, str, ViewOffsets], pa.Table]
    ) -> pa.Table:
        topic, of = view_topic(self._group, name), self._written(name)
        with about_topics(self._group, self.views):
            rows = read(ViewTopics.of(self._store, self._clock), topic, of)
        # Compaction may have removed what an older tick needs.
        last = last_tick(self._store, self._group, self._clock)
        cut = InputCut(of.topic_id, (), (of.end,))
        if last is None or (
            last.number > self.tick
            and not is_kept(self._store, self._clock, self._group, topic, cut, is_keyed=True)
        ):
            raise self._not_kept("")
        return rows

    def _not_kept(self, what: str) -> KafkaException:
        reason = f"{what}tick {self.tick} of {self._group!r} is not kept any more: read a later one"
        return KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, reason))


def opened(
    store: Store,
    clock: Clock,
    group: str,
    number: int | None,
    functions: Iterable[ViewFunction] = (),
) -> ViewCut:
    """The cut of a tick, which is published in all of its topics. `functions` are those that this
    process has. Raises as `Views.read`.
    """
    last = last_tick(store, group, clock)
    if last is None:
        reason = f"the group of views {group!r} has no tick yet: run it first"
        raise InvalidConfig(reason, key=group)
    wanted = last.number if number is None else number
    tick = last if wanted == last.number else tick_at(store, group, clock, wanted)
    if tick is None or last.number - wanted > HISTORY:
        oldest = max(1, last.number - HISTORY)
        reason = f"tick {wanted} of {group!r} is not kept: it has {oldest} to {last.number}"
        raise InvalidConfig(reason, key="at")
    with about_topics(group, tick.views):
        publish(store, clock, group, tick)
    return ViewCut(store, clock, group, tick, tuple(functions))


def publish(store: Store, clock: Clock, group: str, tick: Tick) -> None:
    """Publish a tick that only some of its topics show: its runner does so now, or was killed.
    Raises Unavailable.
    """
    topics = [view_topic(group, name) for name in tick.views]
    ends = (Topic(topic, store=store, clock=clock).describe().next_offsets[0] for topic in topics)
    if any(end < of.end for end, of in zip(ends, tick.views.values(), strict=True)):
        # A cut splits no transaction, and publishes what one of the topics shows.
        cut([ticks_topic(group), *topics], store=store, clock=clock, timeout=CUT_TIMEOUT_S)


def program_of(
    store: Store, clock: Clock, group: str, tick: Tick, functions: Iterable[ViewFunction] = ()
) -> ViewProgram:
    """The program of a tick. `functions` are those that this process has: others raise when they
    are called. Raises InvalidConfig if it is not kept.
    """
    said = tick if tick.queries else tick_at(store, group, clock, tick.program_at)
    if said is None or not said.queries:
        raise InvalidConfig(f"the SQL of tick {tick.number} of {group!r} is not kept", key=group)
    calls = matched(group, said.functions, functions)
    return _compiled(group, said.queries, calls, said.declared)
