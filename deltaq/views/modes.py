"""How a view is evaluated: in full, or by rules; and when that changes."""

from __future__ import annotations

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
    _try_s: float = TRY_S
    _trial: list[float] = field(default_factory=list)

    @property
    def stays_by_rules(self) -> bool:
        """Whether it stays with rules, so that nothing is needed any more for a full evaluation."""
        return self.by_rules and (self.wanted == "incremental" or len(self._trial) >= TRIAL_TICKS)

    @property
    def may_resume(self) -> bool:
        """Whether it may go on by rules that an earlier runner had."""
        return self.wanted != "full"

    def resume(self) -> None:
        """It goes on by rules, which have had their trial."""
        self._trial = [0.0] * TRIAL_TICKS

    def spent(self, seconds: float) -> None:
        """A tick of the view has taken so long."""
        if not self.by_rules:
            self._full_s = seconds
        elif not self.stays_by_rules:
            self._trial.append(seconds)

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
