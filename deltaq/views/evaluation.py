"""What evaluates the views of a runner: an engine, and where it keeps its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.store import Store
from deltaq.views.checkpoints import Checkpoints
from deltaq.views.engine import StateLimits, ViewChanges, ViewEngine, engine
from deltaq.views.modes import Mode
from deltaq.views.program import View, ViewProgram
from deltaq.views.ticks import Tick


class InputTables(Protocol):
    """The inputs of an engine. See `ViewEngine`."""

    def create_input(
        self, name: str, columns: pa.Schema, *, is_keyed: bool, is_replaced: bool = False
    ) -> None:
        """An input with these columns, without rows."""

    def add_rows(self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Add records to an input."""

    def replace_rows(
        self, name: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> None:
        """Take these rows for all that an input has."""

    def remove_before(self, name: str, starts: Sequence[int]) -> None:
        """Remove the records before these offsets, by partition, from an input."""


class TickEngine(InputTables, Protocol):
    """The views of a program at a tick. See `ViewEngine`."""

    def set_time(self, time_ms: int) -> None:
        """Have the clock show the time of a tick."""

    def evaluate(self) -> None:
        """Make all views from the inputs."""

    def columns(self, view: str) -> pa.Schema:
        """The columns of a view in its topic."""

    def restore(self, view: str, rows: pa.Table) -> None:
        """Take these rows for what a view had at the last tick."""

    def changes(self, view: View) -> ViewChanges:
        """What has changed in a view since the last tick."""

    def by_rules(self) -> dict[str, bool]:
        """Of each view, whether it is evaluated by rules."""

    def state_rows(self) -> dict[str, int]:
        """By view the rows that its rules keep."""

    def accept(self) -> None:
        """Take what the views have now for what they had at the last tick."""


Engine = TypeVar("Engine", bound=TickEngine)


@dataclass(frozen=True, slots=True)
class SavedState(Generic[Engine]):
    """A state that was saved after the tick `at`. `resume` has an engine whose inputs have no rows
    go on from it, or returns False; see `ViewEngine.resume`.
    """

    at: Tick
    resume: Callable[[Engine, Callable[[], None]], bool]


class Evaluator(Protocol[Engine]):
    """Opens the engine of a runner, one at a time, and keeps its state from runner to runner."""

    def open(self) -> Engine:
        """A new engine without inputs. Raises InvalidConfig."""

    def close(self) -> None:
        """Close the engine, if one is open."""

    def is_outgrown(self, engine: Engine) -> bool:
        """Whether a new engine, without the state of this one, will be quicker."""

    def is_save_due(self) -> bool:
        """Whether it is time to save the state."""

    def save(self, engine: Engine, tick: Tick) -> None:
        """Save the state of an engine that has accepted this tick. Raises Corrupt, Incompatible,
        Unavailable.
        """

    def last(self, tick: Tick) -> SavedState[Engine] | None:
        """The saved state, if a runner can go on from it to `tick`. Raises Corrupt, Incompatible,
        Unavailable; its `resume` RowsMissing, Unavailable.
        """


MakeEvaluator: TypeAlias = Callable[
    [ViewProgram, Mapping[str, Mode], Store, Clock], Evaluator[Engine]
]
"""Makes the evaluator of a runner, for views with these modes."""


@dataclass(eq=False)
class DuckdbEvaluator:
    """Evaluates with DuckDB in this process."""

    program: ViewProgram
    modes: Mapping[str, Mode]
    store: Store
    clock: Clock
    keeps_inputs: bool = field(kw_only=True)
    limits: StateLimits | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._open = ExitStack()
        self._checkpoints = Checkpoints(self.store, self.clock, self.program.group)

    def open(self) -> ViewEngine:
        """See `Evaluator`."""
        opened = engine(
            self.program,
            self.modes,
            keeps_inputs=self.keeps_inputs,
            limits=self.limits,
            clock=self.clock,
        )
        return self._open.enter_context(opened)

    def close(self) -> None:
        """See `Evaluator`."""
        self._open.close()

    def is_outgrown(self, engine: ViewEngine) -> bool:
        """See `Evaluator`."""
        return engine.is_outgrown

    def is_save_due(self) -> bool:
        """See `Evaluator`."""
        return self._checkpoints.is_due()

    def save(self, engine: ViewEngine, tick: Tick) -> None:
        """See `Evaluator`."""
        self._checkpoints.save(tick, engine.saved(), engine.full_cost())

    def last(self, tick: Tick) -> SavedState[ViewEngine] | None:
        """See `Evaluator`."""
        found = self._checkpoints.last(tick)
        if found is None:
            return None
        at, checkpoint = found
        # A view that was in full since may differ in the last digits of floats.
        if at.number < tick.number and not {*checkpoint.views} & {*tick.views} <= {*tick.ruled}:
            return None
        rows, cost = self._checkpoints.rows, checkpoint.cost
        return SavedState(at, lambda views, fill: views.resume(checkpoint.views, cost, rows, fill))
