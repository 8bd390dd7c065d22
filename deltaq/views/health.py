"""How far the runner of a group is, for metrics: what it knows of itself, without a look at the
store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq.views.ticks import InputCut, Tick


@dataclass(frozen=True, slots=True)
class ViewsHealth:
    """What a process knows of a group that it runs, or has run.

    `behind_s` are the seconds since the views had all records of their inputs, None before the
    first tick. `lag` are the records of each input that the views do not have, as far as the runner
    has looked. `by_rules` says of each view whether it is evaluated by rules, and `state_rows` how
    many rows these keep.
    """

    group: str
    behind_s: float | None
    lag: Mapping[str, int]
    by_rules: Mapping[str, bool]
    state_rows: Mapping[str, int]


@dataclass(eq=False)
class RunnerProgress:
    """What a runner writes down as it goes. Each value is replaced as a whole, so that it may be
    read in another thread.
    """

    current_ms: int | None = None
    lag: Mapping[str, int] = field(default_factory=dict)
    by_rules: Mapping[str, bool] = field(default_factory=dict)
    state_rows: Mapping[str, int] = field(default_factory=dict)

    def looked(self, last: Tick | None, inputs: Mapping[str, InputCut]) -> None:
        """The runner has looked at the inputs, and goes on to publish a tick, or has none to."""
        had = {} if last is None else last.inputs
        self.lag = {
            topic: sum(cut.ends) - (sum(had[topic].ends) if topic in had else sum(cut.starts))
            for topic, cut in inputs.items()
        }

    def is_current(self, time_ms: int) -> None:
        """The views had all records that were there at this time."""
        self.current_ms = time_ms
        self.lag = dict.fromkeys(self.lag, 0)

    def health(self, group: str, now_ms: int) -> ViewsHealth:
        """What is known now."""
        at = self.current_ms
        behind_s = None if at is None else max(0.0, (now_ms - at) / 1000)
        return ViewsHealth(group, behind_s, self.lag, self.by_rules, self.state_rows)
