"""Metrics as events: what happens inside the clients of this process, passed to its listeners.

A client adds to a `Counter` or observes a `Histogram` at most once per batch, commit, request or
read of a log, never per message. Without a listener that costs one check. Listeners are called by
the thread on which the event happens, which may hold a client's locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, TypeAlias

_log = logging.getLogger("deltaq.metrics")


@dataclass(frozen=True, slots=True)
class Convention:
    """The name and fixed attributes under which OpenTelemetry's conventions for messaging know a
    metric.
    """

    name: str
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric: its name in Prometheus, its unit, when it changes, the labels of its values, and
    its name in OpenTelemetry's conventions, None if these do not have it.
    """

    name: str
    unit: str
    when: str
    labels: tuple[str, ...] = ("topic",)
    convention: Convention | None = None
    kind: ClassVar[str]


@dataclass(frozen=True, slots=True, eq=False)
class Counter(Metric):
    """A number that only grows."""

    kind: ClassVar[str] = "counter"

    def add(self, amount: int = 1, **labels: str) -> None:
        """Count `amount` more, of the topic or another subject that the `labels` name."""
        if _listeners:
            _notify(Event(self, amount, labels))


@dataclass(frozen=True, slots=True, eq=False)
class Histogram(Metric):
    """A distribution of times in seconds, counted in buckets that end at `bounds`."""

    bounds: tuple[float, ...] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
    kind: ClassVar[str] = "histogram"

    def observe(self, seconds: float, **labels: str) -> None:
        """Count a time, of the topic or another subject that the `labels` name."""
        if _listeners:
            _notify(Event(self, seconds, labels))


@dataclass(frozen=True, slots=True, eq=False)
class Gauge(Metric):
    """A value that is read when metrics are exported: it causes no events."""

    kind: ClassVar[str] = "gauge"


@dataclass(frozen=True, slots=True, eq=False)
class Total(Metric):
    """A number that only grows, and is read when metrics are exported: it causes no events."""

    kind: ClassVar[str] = "counter"


@dataclass(frozen=True, slots=True)
class Event:
    """An addition to a counter, or a time in seconds that a histogram counts."""

    metric: Counter | Histogram
    amount: float
    labels: Mapping[str, str]


Listener: TypeAlias = Callable[[Event], object]
"""Is called with each event. It must return soon, call no client, and raise nothing: an `Exception`
is only logged.
"""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with the events of all clients in this process, until the end of the
    block.
    """
    key = object()
    _listeners[key] = listener
    try:
        yield
    finally:
        del _listeners[key]


_listeners: dict[object, Listener] = {}


def _notify(event: Event) -> None:
    for listener in tuple(_listeners.values()):  # a listener may be added or removed meanwhile
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - a listener must not break a client
            _log.exception("a listener of metrics failed metric=%s", event.metric.name)
