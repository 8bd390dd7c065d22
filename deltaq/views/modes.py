"""How a view is evaluated: in full, or by rules; and when that changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal, TypeAlias

Mode: TypeAlias = Literal["auto", "incremental", "full"]
"""How views are to be evaluated. `incremental`: by rules, where there are some. `auto`: by what
takes less time.
"""

MODES: Final[tuple[Mode, ...]] = ("auto", "incremental", "full")

TRY_S = 0.02
"""Seconds of a view's full evaluation from which on rules are tried: they take some milliseconds
for each statement, however small the tick is.
"""

TRIAL_TICKS = 8
"""Ticks after which a trial of rules ends."""

RELOAD = 25
"""Full evaluations of a group that take as long as to load its inputs, which rules have not kept:
measured with the bank, 18 for a million rows and 27 for three.
"""


@dataclass(frozen=True, slots=True)
class FullCost:
    """The seconds of a full evaluation, by view, each with the rows of the inputs at that time; and
    the rows that inputs have now, by input.
    """

    seconds: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


def mode_text(*, by_rules: bool) -> str:
    """How a view is evaluated, for people."""
    return "by rules" if by_rules else "in full"


@dataclass(eq=False)
class ViewMode:
    """The mode of one view. `refused` says why it has no rules."""

    wanted: Mode
    refused: str = ""
    by_rules: bool = False
    _full_s: float = 0.0
    _full_rows: int = 0
    _try_s: float = TRY_S
    _trial: list[float] = field(default_factory=list)
    excess_s: float = 0.0
    """The seconds that full evaluations would have saved since rules took longer than these."""

    @property
    def stays_by_rules(self) -> bool:
        """Whether it stays with rules, so that nothing is needed any more for a full evaluation."""
        return self.by_rules and (self.wanted == "incremental" or len(self._trial) >= TRIAL_TICKS)

    @property
    def may_resume(self) -> bool:
        """Whether it may go on by rules that an earlier runner had."""
        return self.wanted != "full"

    @property
    def full_cost(self) -> tuple[float, int]:
        """The seconds of the last full evaluation, with the rows that the inputs had. No seconds if
        they are not known.
        """
        return self._full_s, self._full_rows

    def resume(self, full_cost: tuple[float, int]) -> None:
        """It goes on by rules, which have had their trial."""
        self._trial = [0.0] * TRIAL_TICKS
        self._full_s, self._full_rows = full_cost

    def spent(self, seconds: float, rows: int) -> None:
        """A tick of the view has taken so long. The inputs have so many rows."""
        if not self.by_rules:
            self._full_s, self._full_rows = seconds, rows
        elif not self.stays_by_rules:
            self._trial.append(seconds)
        elif self.wanted == "auto" and self._full_s:
            self.excess_s = max(0.0, self.excess_s + seconds - self.full_s(rows))

    def full_s(self, rows: int) -> float:
        """The seconds that a full evaluation takes with so many rows, by the last one."""
        return self._full_s * max(1.0, rows / max(self._full_rows, 1))

    def decided(self) -> bool:
        """Whether the next tick is by rules. A trial that took longer is repeated when a full
        evaluation takes twice as long as now.
        """
        if self.refused or self.wanted == "full":
            return False
        if self.wanted == "incremental":
            return True
        if not self.by_rules:
            return self._full_s >= self._try_s
        if len(self._trial) == TRIAL_TICKS and median(self._trial) > self._full_s:
            self._trial.clear()
            self._try_s = 2 * self._full_s
            return False
        return True


def are_outgrown(modes: Collection[ViewMode], rows: int) -> bool:
    """Whether the views of a group are to be loaded anew and evaluated in full: what this would
    have saved since is as much as it costs. So a bad moment does not end rules, and rules that have
    become slow take at most twice the time that was needed.
    """
    costs = [(mode.excess_s, mode.full_s(rows)) for mode in modes]
    return sum(excess for excess, _ in costs) > RELOAD * sum(full for _, full in costs)
