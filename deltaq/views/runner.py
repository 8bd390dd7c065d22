"""The runner of a group of views: it evaluates them at a cut, and publishes what has changed, tick
after tick.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from deltaq import metrics
from deltaq.clock import Clock
from deltaq.errors import Fenced, InvalidConfig, Unavailable
from deltaq.producer import Producer
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.views.checkpoints import RowsMissing
from deltaq.views.delta_tables import TableVersionLost
from deltaq.views.evaluation import DuckdbEvaluator, Evaluator, TickEngine
from deltaq.views.health import RunnerProgress
from deltaq.views.holding import GroupHolds, is_kept
from deltaq.views.inputs import ChosenCut, InputForm, Inputs
from deltaq.views.modes import Mode
from deltaq.views.program import KEY, ViewProgram, ViewQuery, key_text, ticks_topic, view_topic
from deltaq.views.reading import program_of
from deltaq.views.tables import (
    ViewRecords,
    ViewTopics,
    about_topics,
    records_of,
    written_after,
)
from deltaq.views.tick_clock import shown_s
from deltaq.views.ticks import KEPT, InputCut, Tick, ViewOffsets, last_tick
from deltaq.views.view_columns import check_values

_log = logging.getLogger("deltaq.views")

ROWS_AT_ONCE = 100_000
"""Rows of a view that are handed to the producer at once."""

IDLE_S = 24 * 3600.0
"""Seconds after which a tick is published though no input has changed: a `transactional.id` that is
not used for a week expires.
"""

_QUEUE_MS = 600_000
"""Milliseconds for which a tick waits until the producer has room for its rows."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the engine has: its inputs at a cut, in these forms."""

    inputs: Mapping[str, InputCut]
    forms: Mapping[str, InputForm]


class _TickTimer:
    """How long each step of a tick takes."""

    def __init__(self, group: str, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._at = clock.monotonic()

    def ended(self, step: str) -> None:
        """A step has ended."""
        before, self._at = self._at, self._clock.monotonic()
        metrics.VIEW_TICK_LATENCY.observe(self._at - before, group=self._group, step=step)


class GroupRunner:
    """Publishes the ticks of a group. Not thread-safe.

    One runner writes: a new one fences the one before, whose next tick raises Fenced. Use it as a
    context manager. `evaluator` evaluates the views; None for DuckDB, with `modes`.
    """

    def __init__(
        self,
        program: ViewProgram,
        queries: tuple[ViewQuery, ...],
        store: Store,
        clock: Clock,
        *,
        modes: Mapping[str, Mode],
        moves_with_retention: bool,
        progress: RunnerProgress | None = None,
        evaluator: Evaluator[Any] | None = None,
    ) -> None:
        self._program = program
        self._progress = progress or RunnerProgress()
        self._queries = queries
        self._store = store
        self._clock = clock
        self._moves = moves_with_retention
        self._topics = ViewTopics.of(store, clock)
        self._inputs = Inputs.of(program, store, clock)
        self._producer = Producer(
            {
                "bootstrap.servers": store.url,
                "client.id": f"views-{program.group}",
                "transactional.id": transactional_id(program.group),
                "transaction.timeout.ms": 900_000,
                "max.block.ms": _QUEUE_MS,
                "linger.ms": 0,
            },
            store=store,
            clock=clock,
        )
        self._engine: TickEngine | None = None
        self._loaded: _Loaded | None = None
        self._is_compared = False
        self._is_outgrown = False
        self._handles: dict[str, tuple[pa.Schema, Topic]] = {}
        self._last: Tick | None = None
        self._published_at = clock.monotonic()
        self._holds = GroupHolds(store, clock, program.group, moves_with_retention)
        self._evaluator: Evaluator[Any] = evaluator or DuckdbEvaluator(
            program, modes, store, clock, keeps_inputs=moves_with_retention
        )

    def __enter__(self) -> GroupRunner:
        try:
            # What an earlier runner has decided is published now, and it writes nothing more.
            self._producer.init_transactions()
            ticks = Topic(
                ticks_topic(self._program.group),
                partitions=1,
                config={"cleanup.policy": "compact"},
                store=self._store,
                clock=self._clock,
            )
            ticks.create(exist_ok=True)
            self._last = last_tick(self._store, self._program.group, self._clock)
            self._holds.begin(self._last, self._inputs.ids())
        except BaseException:
            self._producer.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        try:
            # Not after an error: another runner may have taken over.
            if kind is None or issubclass(kind, KeyboardInterrupt):
                self._save()
            self._forget()
        finally:
            self._producer.close()

    @property
    def last(self) -> Tick | None:
        """The last tick that was published."""
        return self._last

    def tick(self) -> Tick | None:
        """Publish a tick, if an input, the program or the clock that it reads has changed; None if
        not. May be called again after an error that is retriable.

        Raises Fenced if another runner has taken over, InvalidConfig for SQL that DuckDB refuses,
        InvalidValue for a row key that does not tell rows apart and a value that a topic cannot
        have, UnknownTopic for a topic of a view that was deleted, what `Inputs.choose` raises,
        Corrupt, Incompatible, Unavailable.
        """
        with about_topics(self._program.group, [view.name for view in self._program.views]):
            return self._tick_at_cut()

    def _tick_at_cut(self) -> Tick | None:
        last, steps = self._last, _TickTimer(self._program.group, self._clock)
        cut = self._inputs.choose(last, moves_with_retention=self._moves)
        self._progress.looked(last, cut.inputs)
        if last is not None and not self._is_due(last, cut):
            self._progress.is_current(cut.time_ms)
            self._holds.follow(last)
            return None
        steps.ended("cut")
        number = 1 if last is None else last.number + 1
        try:
            views = self._evaluated(cut)
            before = self._prepared(views, last)
            self._holds.add(before)
            records = {
                view.name: records_of(views.changes(view), number, is_keyed=view.key is not None)
                for view in self._program.views
            }
            for name, found in records.items():
                check_values(name, found.rows)
        except Exception:
            # Another runner may have written what this one did not expect, or removed its state.
            self._check_last()
            raise
        steps.ended("evaluate")
        tick = self._tick(number, cut, written_after(before, records), views.by_rules())
        self._publish(tick, records)
        steps.ended("publish")
        self._last, self._published_at = tick, self._clock.monotonic()
        try:
            views.accept()
        except BaseException:
            self._forget()
            raise
        self._is_compared = True
        self._progress.is_current(tick.time_ms)
        self._progress.by_rules = views.by_rules()
        self._progress.state_rows = views.state_rows()
        self._holds.follow(tick)
        self._look_at(views)
        return tick

    def _look_at(self, views: TickEngine) -> None:
        """Save the state of the engine, or give it up where a new one will be quicker."""
        if self._evaluator.is_outgrown(views):
            _log.info("evaluating %r in full again, which is quicker now", self._program.group)
            self._forget()
            self._is_outgrown = True
        elif self._evaluator.is_save_due():
            self._save()

    def _save(self) -> None:
        """Write a checkpoint. Without it a new runner takes longer."""
        if self._engine is None or self._last is None:
            return
        try:
            self._evaluator.save(self._engine, self._last)
        except Unavailable as error:
            _log.warning("no checkpoint of %r: %s", self._program.group, error.error.str())

    def _is_due(self, last: Tick, cut: ChosenCut) -> bool:
        is_idle = self._clock.monotonic() - self._published_at < IDLE_S
        is_same = last.inputs == cut.inputs and last.program == self._program.digest
        is_later = self._program.reads_clock and shown_s(last.time_ms) < shown_s(cut.time_ms)
        return is_later or not (is_same and is_idle)

    # --- evaluation ---

    def _evaluated(self, cut: ChosenCut) -> TickEngine:
        """The engine with the views at a cut."""
        if self._loaded is not None and self._loaded.forms != cut.forms:
            _log.info("inputs of %r have other columns: loading them anew", self._program.group)
            self._forget()
        found = self._engine or self._resumed(cut) or self._evaluator.open()
        self._is_outgrown = False
        had = {} if self._loaded is None else self._loaded.inputs
        # After an error in the middle the engine would have some of the records already.
        self._engine, self._loaded = found, None
        try:
            self._inputs.load(found, had, cut.inputs, cut.forms)
            found.set_time(cut.time_ms)
            found.evaluate()
        except BaseException:
            self._forget()
            raise
        self._loaded = _Loaded(cut.inputs, cut.forms)
        return found

    def _resumed(self, cut: ChosenCut) -> TickEngine | None:
        """An engine with the last tick, from a checkpoint; None without one that can be used."""
        last = self._last
        if last is None or last.program != self._program.digest or self._is_outgrown:
            return None
        saved = self._evaluator.last(last)
        if saved is None or not self._has_all_since(saved.at, last, cut):
            return None
        at, inputs = saved.at, self._inputs
        views: TickEngine = self._evaluator.open()
        nothing = {topic: replace(of, ends=of.starts) for topic, of in at.inputs.items()}
        try:
            inputs.create(views, cut.forms)
            views.set_time(at.time_ms)
            if saved.resume(views, lambda: inputs.load(views, nothing, at.inputs, cut.forms)):
                # What rules make otherwise than the last tick has it is published with the next.
                if at.number < last.number:
                    inputs.load(views, at.inputs, last.inputs, cut.forms)
                    views.set_time(last.time_ms)
                    views.evaluate()
                    views.accept()
                self._loaded, self._is_compared = _Loaded(last.inputs, cut.forms), True
                return views
        except (RowsMissing, InvalidConfig, TableVersionLost) as error:
            _log.warning("the checkpoint of %r is not used: %s", self._program.group, error)
        except BaseException:
            self._forget()
            raise
        self._forget()
        return None

    def _has_all_since(self, at: Tick, last: Tick, cut: ChosenCut) -> bool:
        """Whether the inputs begin where they began at a tick, have all records since, and were
        loaded alike at the last one.
        """
        group = self._program.group
        # A topic may have come whose name has the very case of the SQL.
        return at.inputs.keys() == last.inputs.keys() == cut.inputs.keys() and all(
            of.is_keyed == last.inputs[topic].is_keyed == cut.inputs[topic].is_keyed
            and of.starts == cut.inputs[topic].starts[: len(of.starts)]
            and (
                bool(of.delta)
                or is_kept(
                    self._store, self._clock, group, topic, of, is_keyed=cut.forms[topic].is_keyed
                )
            )
            for topic, of in at.inputs.items()
        )

    def _forget(self) -> None:
        self._engine, self._loaded, self._is_compared = None, None, False
        self._evaluator.close()

    def _prepared(self, views: TickEngine, last: Tick | None) -> dict[str, ViewOffsets]:
        """Where each view's topic ends; and the engine knows what each view had."""
        known = {} if last is None else last.views
        found = {}
        if last is not None and not self._is_compared:
            self._check_keys(last)
        if not self._is_compared:
            # All of them before anything is written.
            for view in self._program.views:
                self._topics.check(
                    view.name,
                    view_topic(self._program.group, view.name),
                    views.columns(view.name),
                    known.get(view.name),
                    is_keyed=view.key is not None,
                )
        for view in self._program.views:
            topic, before = view_topic(self._program.group, view.name), known.get(view.name)
            if self._is_compared:
                found[view.name] = self._topics.end(topic, before)
            else:
                columns = views.columns(view.name)
                found[view.name] = self._topics.prepare(
                    topic, columns, before, is_keyed=view.key is not None
                )
                rows = (
                    columns.empty_table() if before is None else self._topics.content(topic, before)
                )
                views.restore(view.name, rows)
        return found

    def _check_keys(self, last: Tick) -> None:
        """Raise InvalidConfig for a view whose row key has changed since the last tick: its records
        have the keys of the old one.
        """
        if last.program == self._program.digest:
            return
        said = program_of(self._store, self._clock, self._program.group, last, ())
        before = {view.name: view.key for view in said.views}
        for view in self._program.views:
            old = before.get(view.name)
            if view.name in last.views and old != view.key:
                reason = (
                    f"view {view.name!r} has the row key ({key_text(view.key)}), and had "
                    f"({key_text(old)}) at the last tick: give the view another name, or delete "
                    "the group and run it anew"
                )
                raise InvalidConfig(reason, key=view.name)

    def _check_last(self) -> None:
        """Raise Fenced if another runner has published a tick."""
        found = last_tick(self._store, self._program.group, self._clock)
        if found is not None and found != self._last:
            reason = f"another runner of the group {self._program.group!r} has published tick"
            raise Fenced(f"{reason} {found.number}: close this one")

    # --- publication ---

    def _tick(
        self,
        number: int,
        cut: ChosenCut,
        written: Mapping[str, ViewOffsets],
        by_rules: Mapping[str, bool],
    ) -> Tick:
        last, digest = self._last, self._program.digest
        is_said = (
            last is not None and last.program == digest and number - last.program_at < KEPT // 2
        )
        return Tick(
            number,
            cut.time_ms,
            digest,
            last.program_at if last is not None and is_said else number,
            cut.inputs,
            written,
            () if is_said else self._queries,
            () if is_said else tuple(of.signature for of in self._program.functions),
            tuple(name for name, is_ruled in by_rules.items() if is_ruled),
            () if is_said else self._program.declared,
        )

    def _publish(self, tick: Tick, records: Mapping[str, ViewRecords]) -> None:
        producer = self._producer
        handles = {name: self._handle(name, found.rows.schema) for name, found in records.items()}
        with producer.transaction():
            for name, found in records.items():
                topic = handles[name]
                for part in found.rows.to_batches(max_chunksize=ROWS_AT_ONCE):
                    producer.produce_arrow(topic, part)
                for key in found.tombstones:
                    producer.produce(topic, None, key)
            producer.produce(ticks_topic(self._program.group), tick.value(), tick.key)
        rows = sum(map(len, records.values()))
        metrics.VIEW_ROWS.add(rows, group=self._program.group)
        _log.debug("tick group=%r number=%d rows=%d", self._program.group, tick.number, rows)

    def _handle(self, view: str, rows: pa.Schema) -> Topic:
        """The topic of a view with the columns of these rows. An input may have gained some since
        the producer, or the runner that wrote the checkpoint, has seen the topic.
        """
        columns = pa.schema([column for column in rows if column.name != KEY])
        known, handle = self._handles.get(view, (None, None))
        if handle is None or known != columns:
            topic = view_topic(self._program.group, view)
            handle = Topic(topic, columns, store=self._store, clock=self._clock)
            handle.evolve()
            self._handles[view] = columns, handle
        return handle


def transactional_id(group: str) -> str:
    """The `transactional.id` of the runner of a group."""
    return f"views.{group}"
