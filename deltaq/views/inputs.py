"""The inputs of a group of views: the topics and Delta tables that they read, at a cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import InvalidConfig, OffsetOutOfRange, UnknownTopic
from deltaq.metadata import TopicDescription
from deltaq.schema_registry import SchemaRegistryClient
from deltaq.serde.schema import TopicSchema
from deltaq.store import Store
from deltaq.tools.duckdb_tables import rows_of
from deltaq.tools.positions import Ranges
from deltaq.topic import Topic
from deltaq.topics.listing import topic_names
from deltaq.transactions.cut import cut
from deltaq.views.declared import DeclaredInput
from deltaq.views.decoding import decoded_rows
from deltaq.views.delta_tables import DeltaSource, DeltaVersion
from deltaq.views.evaluation import InputTables
from deltaq.views.input_names import named_inputs
from deltaq.views.plain_floats import plain_rows
from deltaq.views.program import ViewProgram
from deltaq.views.registry_inputs import RegistryColumns
from deltaq.views.tick_clock import CLOCK
from deltaq.views.ticks import InputCut, Tick

CUT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class InputForm:
    """What decides how an input is loaded: its columns, and whether the newest record of each key
    counts, as in a compacted topic. `is_compacted`: it is one now.
    """

    schema: TopicSchema | pa.Schema | None
    is_keyed: bool = False
    is_compacted: bool = False


@dataclass(frozen=True, slots=True)
class ChosenCut:
    """A cut of the inputs, and their forms, by topic."""

    time_ms: int
    inputs: Mapping[str, InputCut]
    forms: Mapping[str, InputForm]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The topics and tables that a program reads, by the names in its SQL. `declared` are those
    with declared columns, by topic.
    """

    store: Store
    clock: Clock
    topics: Mapping[str, str]
    tables: Mapping[str, DeltaSource]
    declared: Mapping[str, DeclaredInput]
    registry: RegistryColumns

    @classmethod
    def of(
        cls,
        program: ViewProgram,
        store: Store,
        clock: Clock,
        *,
        at: Mapping[str, InputCut] | None = None,
    ) -> Inputs:
        """The inputs of a program; those of a tick, where `at` are its inputs. Raises InvalidConfig
        for a table that is neither a view nor a topic, and for names that differ by case only;
        Unavailable.
        """
        there = topic_names(store)
        _refuse_topic_of_clock(program, there)
        declared = {of.name: of for of in program.declared if not of.delta}
        sources = {of.name: DeltaSource(of.name, of.delta) for of in program.declared if of.delta}
        # A topic that came after the tick may have the name in the very case of the SQL.
        known = there if at is None else [name for name in there if name in at]
        named = named_inputs(program, {*sources, *known})
        tables = {name: sources[found] for name, found in named.items() if found in sources}
        topics = {name: found for name, found in named.items() if found not in sources}
        for name in declared:
            if name not in topics.values():
                reason = f"input {name!r} is declared, and there is no topic of this name"
                raise InvalidConfig(reason, key=name)
        registry = SchemaRegistryClient({"url": store.url}, store=store, clock=clock)
        return cls(store, clock, topics, tables, declared, RegistryColumns(registry))

    def choose(self, last: Tick | None, *, moves_with_retention: bool) -> ChosenCut:
        """The newest cut that splits no transaction. It begins where the last one began; where the
        topics begin now, if it moves with retention, or is the first.

        Raises UnknownTopic for a topic that was deleted, or created anew since the last tick,
        OffsetOutOfRange if it lacks records that the last tick had, InvalidConfig for a declaration
        that does not fit, and what `cut` raises.
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
            # Since the cut, retention may have passed it, and a partition been added.
            starts = (min(topic.start_offsets.get(p, end), end) for p, end in ends[name].items())
            # After the cut: the schemas of its records are in the registry by now.
            forms[name] = form = self._form(topic)
            now = InputCut(
                topic.topic_id,
                tuple(starts),
                tuple(ends[name].values()),
                is_keyed=form.is_keyed,
            )
            before = None if last is None else last.inputs.get(name)
            found[name] = now if before is None else _after(name, before, now, moves_with_retention)
        for source in self.tables.values():
            newest = source.newest()
            found[source.name] = _table_after(source, newest, last)
            forms[source.name] = InputForm(newest.columns)
        return ChosenCut(time_ms, found, forms)

    def ids(self) -> dict[str, str]:
        """The present topic ids. Raises UnknownTopic, Corrupt, Incompatible, Unavailable."""
        return {name: self._topic(name).describe().topic_id for name in self.topics.values()}

    def forms(self, at: Mapping[str, InputCut] | None = None) -> dict[str, InputForm]:
        """The forms of the topics and tables at a cut, with the present columns of topics; present
        ones without it. Raises InvalidConfig for a declaration that does not fit its topic,
        UnknownTopic, Corrupt, Unavailable, and TableVersionLost for a version of a table.
        """
        found = {name: self._form(self._topic(name).describe()) for name in self.topics.values()}
        for name, form in found.items():
            is_keyed = None if at is None else at[name].is_keyed
            if is_keyed is not None:
                found[name] = replace(form, is_keyed=is_keyed)
        for source in self.tables.values():
            version = source.newest() if at is None else source.at(_version(at[source.name]))
            found[source.name] = InputForm(version.columns)
        return found

    def _form(self, topic: TopicDescription) -> InputForm:
        schema, declared = topic.schema, self.declared.get(topic.name)
        if declared is not None:
            if schema is not None:
                reason = f"input {topic.name!r} is a typed topic, which has columns of its own"
                raise InvalidConfig(f"{reason}: remove its declaration", key=topic.name)
            schema = declared.schema or self.registry.schema(declared)
        is_compacted = "compact" in topic.settings.cleanup_policy
        return InputForm(schema, is_keyed=is_compacted, is_compacted=is_compacted)

    def create(self, engine: InputTables, forms: Mapping[str, InputForm]) -> None:
        """Create the inputs without rows. Raises Corrupt, Unavailable."""
        for name, source in self.tables.items():
            columns = forms[source.name].schema
            engine.create_input(name, columns, is_keyed=False, is_replaced=True)
        for name, topic in self.topics.items():
            columns, _ = self._rows(topic, {}, forms[topic])
            engine.create_input(name, columns, is_keyed=forms[topic].is_keyed)

    def load(
        self,
        engine: InputTables,
        had: Mapping[str, InputCut],
        wanted: Mapping[str, InputCut],
        forms: Mapping[str, InputForm],
    ) -> None:
        """Add to the engine what `wanted` has and `had` had not; without any, create all inputs
        before. Raises ValueDeserializationError for a record that does not fit declared columns,
        Corrupt, Unavailable, and as `forms` for a table.
        """
        if not had:
            self.create(engine, forms)
        for name, source in self.tables.items():
            cut = wanted[source.name]
            _load_table(engine, name, source, had.get(source.name), cut, forms[source.name])
        for name, topic_name in self.topics.items():
            before, after = had.get(topic_name), wanted[topic_name]
            if before is None or before.ends != after.ends:
                ranges = _between(before, after)
                engine.add_rows(name, *self._rows(topic_name, ranges, forms[topic_name]))
            if before is not None and before.starts != after.starts[: len(before.starts)]:
                engine.remove_before(name, after.starts)

    def _rows(
        self, name: str, ranges: Ranges, form: InputForm
    ) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        topic, declared = self._topic(name), self.declared.get(name)
        if declared is None or not isinstance(form.schema, TopicSchema):
            return plain_rows(*rows_of(topic, ranges))
        client = self.registry.client
        return plain_rows(*decoded_rows(topic, ranges, declared, form.schema, client))

    def _topic(self, name: str) -> Topic:
        return Topic(name, store=self.store, clock=self.clock)


def _refuse_topic_of_clock(program: ViewProgram, topics: Collection[str]) -> None:
    """Raise InvalidConfig if a view reads the clock by its name, which is that of a topic, too."""
    topic = {name.lower(): name for name in topics}.get(CLOCK)
    for view in program.views:
        if view.names_clock and topic is not None:
            reason = (
                f"view {view.name!r} reads 'clock', the time of the tick, and there is a topic "
                f"{topic!r}, which views cannot read: write now() for the time, or give the topic "
                "another name"
            )
            raise InvalidConfig(reason, key=view.name)


def _version(cut: InputCut) -> int:
    """The version of a Delta table that a cut has."""
    return cut.ends[0] - 1


def _table_after(source: DeltaSource, newest: DeltaVersion, last: Tick | None) -> InputCut:
    """The cut of a table, after that of the last tick."""
    now = InputCut(newest.table_id, (0,), (newest.version + 1,), source.address)
    before = None if last is None else last.inputs.get(source.name)
    if before is not None and (before.topic_id != now.topic_id or before.ends > now.ends):
        reason = (
            f"input {source.name!r} is another Delta table than at the last tick, at version "
            f"{newest.version}: delete the group of views that reads it, and run it anew"
        )
        raise InvalidConfig(reason, key=source.name)
    return now


def _load_table(
    engine: InputTables,
    name: str,
    source: DeltaSource,
    before: InputCut | None,
    after: InputCut,
    form: InputForm,
) -> None:
    """Give the engine the version of a table that the later cut has; none if that has no end."""
    had = before.ends if before is not None else after.starts
    if had == after.ends:
        return
    version = source.at(_version(after))
    if version.columns != form.schema:
        # A checkpoint has a version from before the table had the columns that the engine has.
        reason = f"version {version.version} of the table of {source.name!r} has other columns"
        raise InvalidConfig(reason, key=source.name)
    if had == after.starts:
        engine.add_rows(name, *plain_rows(*version.rows()))
        return
    added = version.added_since(had[0] - 1)
    if added is None:
        engine.replace_rows(name, *plain_rows(*version.rows()))
    else:
        engine.add_rows(name, *plain_rows(*added))


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
                remedy="run the views with retract_on_retention=True, and rows of records that "
                "were removed go; or delete the group and run it anew",
            )
    return replace(now, starts=starts)


def _between(before: InputCut | None, after: InputCut) -> dict[int, tuple[int, int]]:
    """The offsets that the later cut has beyond the earlier one, by partition."""
    had = {} if before is None else dict(enumerate(before.ends))
    ranges = {
        partition: (max(start, had.get(partition, 0)), end)
        for partition, (start, end) in enumerate(zip(after.starts, after.ends, strict=True))
    }
    return {partition: (start, end) for partition, (start, end) in ranges.items() if start < end}
