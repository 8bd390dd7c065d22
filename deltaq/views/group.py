"""A group of views as users see it: defined, run, read, followed and checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import AdminConfig, parse_client_config
from deltaq.errors import InvalidConfig, Unavailable
from deltaq.names import check_id
from deltaq.root import open_root
from deltaq.store import Store
from deltaq.views.checking import ViewMismatch, mismatches
from deltaq.views.declared import (
    Columns,
    DeclaredInput,
    InputFormat,
    OnError,
    declared_input,
    declared_table,
)
from deltaq.views.engine import StateLimits
from deltaq.views.evaluation import DuckdbEvaluator, MakeEvaluator
from deltaq.views.explaining import ViewRules, explained
from deltaq.views.file_options import option_file
from deltaq.views.following import ViewChange, followed
from deltaq.views.functions import ViewFunction, view_function
from deltaq.views.health import RunnerProgress, ViewsHealth
from deltaq.views.listing import delete
from deltaq.views.modes import MODES, Mode
from deltaq.views.program import ViewProgram, ViewQuery, compiled
from deltaq.views.reading import ViewCut, opened
from deltaq.views.runner import GroupRunner
from deltaq.views.ticks import Tick, last_tick

_log = logging.getLogger("deltaq.views")

_Call = TypeVar("_Call", bound=Callable[..., object])


class Views:
    """A group of SQL views over topics, and over each other.

    A runner evaluates them at a *cut*, offsets of all topics that they read, and publishes what has
    changed as one transaction: a *tick*. So each version that a reader can see equals the result of
    the SQL over the records up to the offsets that it names, and all views of the group have the
    same offsets.

    `root` is the configuration of a client, or the root itself. The SQL is DuckDB's; it needs the
    extra [views]. The view `name` has the topic `<group>.<name>`. `store` and `clock` replace the
    built-in components. The constructor does no I/O. Raises InvalidConfig.
    """

    def __init__(
        self,
        group: str,
        root: str | Mapping[str, Any] | None = None,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.group = check_id(group, "group")
        self._clock = clock
        if store is None:
            conf = {"bootstrap.servers": root} if isinstance(root, str) else root
            store = open_root(parse_client_config(AdminConfig, conf, {}), clock)
        self._store = store
        self._queries: dict[str, ViewQuery] = {}
        self._modes: dict[str, Mode] = {}
        self._functions: dict[str, ViewFunction] = {}
        self._progress = RunnerProgress()
        self._declared: dict[str, DeclaredInput] = {}
        self._program: ViewProgram | None = None

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        root: str | Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Views:
        """The views of a folder: each file `name.sql` is the view `name`. Comments at its top such
        as `-- key: a, b` and `-- mode: full` are `key` and `mode` of `view`. Each file `name.input`
        has the columns of `input`, after comments such as `-- format: avro` and
        `-- on_error: skip`, or one line such as `-- delta: /lake/customers`. The group has the name
        of the folder. Raises InvalidConfig for a folder without views, for a comment that is almost
        an option or is one below the top, and as `view` and `input`.
        """
        path = Path(folder)
        files = sorted(path.glob("*.sql"))
        if not files:
            raise InvalidConfig(f"{path} has no files named *.sql", key="folder")
        views = cls(group or path.resolve().name, root, store=store, clock=clock)
        for file in files:
            found = option_file(file, ("key", "mode"))
            options: dict[str, Any] = {**found.options}
            if "key" in options:
                columns = map(str.strip, options["key"].split(","))
                options["key"] = [column for column in columns if column]
            views.view(file.stem, found.text, **options)
        for file in sorted(path.glob("*.input")):
            found = option_file(file, ("format", "on_error", "delta"))
            options = {**found.options}
            views.input(file.stem, found.rest or None, **options)
        return views

    def view(
        self,
        name: str,
        sql: str,
        *,
        key: Sequence[str] | str | None = None,
        mode: Mode = "auto",
    ) -> None:
        """Define a view. `key` names the columns that tell its rows apart, if the SQL does not: by
        GROUP BY, by DISTINCT, or by one row for all. A view without any is a changelog.

        `mode` is how it is evaluated: `full`, each time from all rows; `incremental`, by rules from
        what has changed, where there are rules for its SQL; `auto`, by what takes less time. The
        result is the same. Raises InvalidConfig.
        """
        if mode not in MODES:
            known = ", ".join(MODES)
            reason = f"the mode of view {name!r} must be one of {known}, not {mode!r}"
            raise InvalidConfig(reason, key=name)
        if name in self._queries:
            raise InvalidConfig(f"the group {self.group!r} has two views named {name!r}", key=name)
        columns = (key,) if isinstance(key, str) else key
        query = ViewQuery(
            name, sql.strip().rstrip(";"), None if columns is None else tuple(columns)
        )
        self._queries[name] = query
        self._modes[name] = mode
        self._program = None

    def function(self, call: _Call, *, name: str | None = None) -> _Call:
        """Define a function that the SQL of the views may call, by its own name or another. Also a
        decorator: `@bank.function`.

        Its types are its annotations: bool, int, float, str, bytes, date and datetime, or one of
        them and None. For NULL in a parameter whose type does not have None, the result is NULL
        without a call. Equal values must give equal results, which `check` checks. It may be called
        for rows that a condition of the SQL leaves out. Raises InvalidConfig.
        """
        found = view_function(call, name)
        known = found.signature.name.lower()
        if known in self._functions:
            reason = f"the group {self.group!r} has two functions named {found.signature.name!r}"
            raise InvalidConfig(reason, key=found.signature.name)
        self._functions[known] = found
        self._program = None
        return call

    def input(
        self,
        name: str,
        columns: Columns | None = None,
        *,
        format: InputFormat = "json",  # noqa: A002 - the word that SQL engines use
        on_error: OnError = "refuse",
        delta: str | None = None,
    ) -> None:
        """Declare an input: columns for a topic of bytes, or a Delta table.

        The values of the topic `name` stand for objects with these fields, which SQL has as
        columns. Other fields are passed over, and one that a value lacks is null.

        `columns` are text with DuckDB's types, such as "account VARCHAR NOT NULL, amount
        DECIMAL(18,2)", a mapping of names to types, an Arrow schema, or a pydantic model, of which
        the columns count. Values are JSON, or with `format` those of the schema registry: `avro`,
        `json_schema`, `protobuf`. Those have the columns of all versions of the subject
        `<topic>-value`, if none are given.

        A record that does not fit stops the runner; with `on_error="skip"` it is left out, each
        time that it is read, with a warning in the log.

        With `delta`, `name` is the Delta table at this address, a folder or such as
        `s3://lake/customers`, which other programs write. A cut has one version of it; rows that a
        version has no more leave the views. It needs the extra [delta].

        Raises InvalidConfig.
        """
        if name in self._declared:
            reason = f"the group {self.group!r} has two declarations of the input {name!r}"
            raise InvalidConfig(reason, key=name)
        if delta is None:
            self._declared[name] = declared_input(name, columns, format, on_error)
        elif (columns, format, on_error) != (None, "json", "refuse"):
            reason = f"input {name!r} is a Delta table, which has columns: give its address only"
            raise InvalidConfig(reason, key=name)
        else:
            self._declared[name] = declared_table(name, delta)
        self._program = None

    @property
    def program(self) -> ViewProgram:
        """The views in an order in which each follows those that it reads.

        Raises InvalidConfig, naming the view: for SQL that DuckDB refuses, and for SQL without one
        right result, such as `random()`, or a LIMIT over an order with equal rows.
        """
        if self._program is None:
            self._program = compiled(
                self.group,
                tuple(self._queries.values()),
                tuple(self._functions.values()),
                tuple(self._declared.values()),
            )
        return self._program

    # --- running ---

    def run(
        self,
        *,
        every: float = 1.0,
        until: Literal["now"] | None = None,
        retract_on_retention: bool = False,
        memory: str | None = None,
        state_dir: str | Path | None = None,
    ) -> Tick | None:
        """Publish a tick each `every` seconds while inputs change, until Ctrl-C; with
        `until="now"`, one tick, and return the last one. A store that does not answer is tried
        again.

        Retention of an input is no change of it: the views keep what its records have contributed.
        With `retract_on_retention` they lose it.

        What does not fit into `memory`, such as "4GB", is in files of the folder `state_dir` while
        the runner runs; by default four fifths of the machine's memory, and the system's folder for
        temporary files. A runner that has no room there ends with an error, and has published
        nothing of the tick.

        Raises Fenced if another runner of the group has taken over, InvalidConfig for SQL that
        DuckDB refuses and a table that does not exist, InvalidValue for a row key that does not
        tell rows apart and a time that a topic cannot have, ValueDeserializationError for a record
        that does not fit declared columns, UnknownTopic for an input that was deleted or created
        anew, and for a topic of a view that was deleted, OffsetOutOfRange for an input that lacks
        records, Corrupt, Incompatible; with `until="now"` also Unavailable.
        """
        folder = None if state_dir is None else Path(state_dir)
        if folder is not None and not folder.is_dir():
            raise InvalidConfig(f"state_dir is no folder: {folder}", key="state_dir")
        limits = StateLimits(memory, folder)
        return self.run_with(
            lambda program, modes, store, clock: DuckdbEvaluator(
                program, modes, store, clock, keeps_inputs=retract_on_retention, limits=limits
            ),
            every=every,
            until=until,
            retract_on_retention=retract_on_retention,
        )

    def run_with(
        self,
        evaluator: MakeEvaluator[Any],
        *,
        every: float,
        until: Literal["now"] | None,
        retract_on_retention: bool,
    ) -> Tick | None:
        """`run` with another evaluator than DuckDB in this process, a new one for each runner."""
        if every <= 0:
            raise InvalidConfig(f"every must be more than 0 seconds, not {every}", key="every")
        program, queries = self.program, tuple(self._queries.values())

        def runner() -> GroupRunner:
            return GroupRunner(
                program,
                queries,
                self._store,
                self._clock,
                modes=self._modes,
                moves_with_retention=retract_on_retention,
                progress=self._progress,
                evaluator=evaluator(program, self._modes, self._store, self._clock),
            )

        if until == "now":
            with runner() as once:
                return once.tick() or once.last
        last: Tick | None = None
        with suppress(KeyboardInterrupt):
            while True:
                try:
                    with runner() as running:
                        try:
                            self._repeat(running, every)
                        finally:
                            last = running.last
                except Unavailable as error:
                    self._wait_after(error, every)
        return last

    def _repeat(self, runner: GroupRunner, every: float) -> None:
        due = self._clock.monotonic()
        while True:
            try:
                runner.tick()
            except Unavailable as error:
                self._wait_after(error, every)
            due = max(due + every, self._clock.monotonic())
            self._clock.sleep(max(0.0, due - self._clock.monotonic()))

    def _wait_after(self, error: Unavailable, every: float) -> None:
        """The store does not answer. Raises the error if it will not either."""
        if not error.error.retriable():
            raise error
        _log.warning("no tick of %r: %s", self.group, error.error.str())
        self._clock.sleep(every)

    def health(self) -> ViewsHealth:
        """How far `run` of this object is; may be called in another thread. Does not ask the
        store.
        """
        return self._progress.health(self.group, self._clock.time_ms())

    # --- reading ---

    def last_tick(self) -> Tick | None:
        """The last tick; None before the first. Raises Corrupt, Incompatible, Unavailable."""
        return last_tick(self._store, self.group, self._clock)

    def read(self, at: int | None = None) -> ViewCut:
        """The views and their inputs at one cut: that of the tick `at`, by default the last one.

        Raises InvalidConfig before the first tick, and for one that is not kept any more; Corrupt,
        Incompatible, Unavailable.
        """
        return opened(self._store, self._clock, self.group, at, self._functions.values())

    def follow(self, name: str, *, every: float = 0.2) -> Iterator[ViewChange]:
        """The changes of a view, tick after tick, without end: first all of its rows, then what
        each tick with changes has added and removed. `every` is how often it looks, in seconds.
        Raises as `read`.
        """
        return followed(self._store, self._clock, self.group, name, every)

    def delete(self) -> None:
        """Delete the group with the topics of its views; its inputs stay. A runner is fenced. May
        be repeated. Raises OutcomeUnknown, Unavailable.
        """
        delete(self._store, self._clock, self.group)

    def explain(self) -> list[ViewRules]:
        """By which rules each view is kept, and why one is evaluated in full, for the present
        columns of the inputs. Raises InvalidConfig, UnknownTopic, Corrupt, Incompatible,
        Unavailable.
        """
        return explained(self.program, self._modes, self._store, self._clock)

    def check(self, at: int | None = None) -> list[ViewMismatch]:
        """Compare the published views with their SQL over the cut of a tick, evaluated from
        nothing: the views that differ, none if all are equal. `at` is the number of the tick; None
        for the last one. The SQL is that of the tick. Sums of floats may differ in their last
        digits. Raises as `read`.
        """
        return mismatches(self._store, self._clock, self.group, self._functions.values(), at)
