"""The gauges of groups of SQL views, read from what their runners know of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from deltaq.metrics.catalogue import VIEW_BEHIND, VIEW_LAG, VIEW_MODE, VIEW_STATE
from deltaq.metrics.events import Gauge
from deltaq.metrics.totals import Sample


class ObservedGroup(Protocol):
    """What `Views.health` returns."""

    @property
    def group(self) -> str: ...
    @property
    def behind_s(self) -> float | None: ...
    @property
    def lag(self) -> Mapping[str, int]: ...
    @property
    def by_rules(self) -> Mapping[str, bool]: ...
    @property
    def state_rows(self) -> Mapping[str, int]: ...


class ObservedViews(Protocol):
    """A group of views, as far as its gauges need it."""

    def health(self) -> ObservedGroup:
        """What its runner knows."""


def view_samples(*views: ObservedViews) -> Iterator[Sample]:
    """The gauges of groups of views now, which this process runs. Does not ask the store."""
    for health in [of.health() for of in views]:
        found: list[tuple[Gauge, tuple[str, ...], float | None]] = [
            (VIEW_BEHIND, (), health.behind_s),
            *((VIEW_LAG, (topic,), lag) for topic, lag in health.lag.items()),
            *((VIEW_MODE, (view,), float(is_)) for view, is_ in health.by_rules.items()),
            *((VIEW_STATE, (view,), rows) for view, rows in health.state_rows.items()),
        ]
        for gauge, labels, value in found:
            if value is not None:
                named = dict(zip(gauge.labels, (health.group, *labels), strict=True))
                yield Sample(gauge, named, value)
