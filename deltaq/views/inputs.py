"""The inputs of a group of views: the topics that they read, at a cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.errors import InvalidConfig, OffsetOutOfRange, UnknownTopic
from deltaq.metadata import TopicDescription
from deltaq.serde.schema import TopicSchema
from deltaq.store import Store
from deltaq.tools.duckdb_tables import rows_of, topic_of
from deltaq.topic import Topic
from deltaq.topics.listing import topic_names
from deltaq.transactions.cut import cut
from deltaq.views.engine import ViewEngine
from deltaq.views.program import ViewProgram
from deltaq.views.tick_clock import CLOCK
from deltaq.views.ticks import InputCut, Tick

CUT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class InputForm:
    """What decides how an input is loaded: its columns, and whether the newest record of each key
    counts, as in a compacted topic.
    """

    schema: TopicSchema | None
    is_keyed: bool

    @classmethod
    def of(cls, topic: TopicDescription) -> InputForm:
        return cls(topic.schema, "compact" in topic.settings.cleanup_policy)


@dataclass(frozen=True, slots=True)
class ChosenCut:
    """A cut of the inputs, and their forms, by topic."""

    time_ms: int
    inputs: Mapping[str, InputCut]
    forms: Mapping[str, InputForm]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The topics that a program reads: by the name in its SQL, the topic."""

    store: Store
    clock: Clock
    topics: Mapping[str, str]

    @classmethod
    def of(cls, program: ViewProgram, store: Store, clock: Clock) -> Inputs:
        """Raises InvalidConfig for a table that is neither a view nor a topic, Unavailable."""
        there = topic_names(store)
        _refuse_topic_of_clock(program, there)
        topics = {}
        for name in program.inputs:
            topic = topic_of(name, there)
            if topic is None:
                (reader, *_) = (view.name for view in program.views if name in view.reads)
                raise InvalidConfig(
                    f"view {reader!r} reads {name!r}, which is neither a view of {program.group!r} "
                    "nor a topic; a name with a dot or a dash stands in double quotes",
                    key=reader,
                )
            topics[name] = topic
        return cls(store, clock, topics)

    def choose(self, last: Tick | None, *, moves_with_retention: bool) -> ChosenCut:
        """The newest cut that splits no transaction. It begins where the last one began; where the
        topics begin now, if it moves with retention, or is the first.

        Raises UnknownTopic for a topic that was deleted, or created anew since the last tick,
        OffsetOutOfRange if it lacks records that the last tick had, and what `cut` raises.
        """
        names = sorted(set(self.topics.values()))
        # The clock of this machine may be behind the one that has chosen the last cut.
        time_ms = max(self.clock.time_ms(), 0 if last is None else last.time_ms)
        ends = (
            cut(names, store=self.store, clock=self.clock, timeout=CUT_TIMEOUT_S) if names else {}
        )
        found, forms = {}, {}
        for name in names:
            topic = self._topic(name).describe()
            # Retention may have passed the cut since.
            starts = (min(start, ends[name][p]) for p, start in topic.start_offsets.items())
            now = InputCut(topic.topic_id, tuple(starts), tuple(ends[name].values()))
            before = None if last is None else last.inputs.get(name)
            found[name] = now if before is None else _after(name, before, now, moves_with_retention)
            forms[name] = InputForm.of(topic)
        return ChosenCut(time_ms, found, forms)

    def ids(self) -> dict[str, str]:
        """The present topic ids. Raises UnknownTopic, Corrupt, Incompatible, Unavailable."""
        return {name: self._topic(name).describe().topic_id for name in self.topics.values()}

    def forms(self) -> dict[str, InputForm]:
        """The present forms of the topics. Raises UnknownTopic, Corrupt, Unavailable."""
        return {name: InputForm.of(self._topic(name).describe()) for name in self.topics.values()}

    def create(self, engine: ViewEngine, forms: Mapping[str, InputForm]) -> None:
        """Create the inputs without rows. Raises Corrupt, Unavailable."""
        for name, topic in self.topics.items():
            columns, _ = rows_of(self._topic(topic), {})
            engine.create_input(name, columns, is_keyed=forms[topic].is_keyed)

    def load(
        self,
        engine: ViewEngine,
        had: Mapping[str, InputCut],
        wanted: Mapping[str, InputCut],
        forms: Mapping[str, InputForm],
    ) -> None:
        """Add to the engine what `wanted` has and `had` had not. Raises Corrupt, Unavailable."""
        for name, topic_name in self.topics.items():
            before, after = had.get(topic_name), wanted[topic_name]
            if before is None or before.ends != after.ends:
                columns, batches = rows_of(self._topic(topic_name), _between(before, after))
                if before is None:
                    engine.create_input(name, columns, is_keyed=forms[topic_name].is_keyed)
                engine.add_rows(name, columns, batches)
            if before is not None and before.starts != after.starts[: len(before.starts)]:
                engine.remove_before(name, after.starts)

    def _topic(self, name: str) -> Topic:
        return Topic(name, store=self.store, clock=self.clock)


def _refuse_topic_of_clock(program: ViewProgram, topics: Collection[str]) -> None:
    """Raise InvalidConfig if a view reads the clock by its name, which is that of a topic, too."""
    topic = topic_of(CLOCK, topics)
    for view in program.views:
        if view.names_clock and topic is not None:
            reason = (
                f"view {view.name!r} reads 'clock', the time of the tick, and there is a topic "
                f"{topic!r}, which views cannot read: write now() for the time, or give the topic "
                "another name"
            )
            raise InvalidConfig(reason, key=view.name)


def _after(name: str, before: InputCut, now: InputCut, moves: bool) -> InputCut:
    """The cut after an earlier one."""
    if before.topic_id != now.topic_id:
        reason = (
            f"topic {name!r} was deleted and created again: delete the group of views that reads "
            "it, and run it anew"
        )
        raise UnknownTopic(name, reason=reason)
    if moves:
        return now
    # A partition that is new begins at 0.
    starts = before.starts + (0,) * (len(now.ends) - len(before.starts))
    for partition, (start, is_there) in enumerate(zip(starts, now.starts, strict=True)):
        if is_there > start:
            raise OffsetOutOfRange(
                topic=name,
                partition=partition,
                requested=start,
                earliest=is_there,
                latest=now.ends[partition],
            )
    return InputCut(now.topic_id, starts, now.ends)


def _between(before: InputCut | None, after: InputCut) -> dict[int, tuple[int, int]]:
    """The offsets that the later cut has beyond the earlier one, by partition."""
    had = {} if before is None else dict(enumerate(before.ends))
    ranges = {
        partition: (max(start, had.get(partition, 0)), end)
        for partition, (start, end) in enumerate(zip(after.starts, after.ends, strict=True))
    }
    return {partition: (start, end) for partition, (start, end) in ranges.items() if start < end}
