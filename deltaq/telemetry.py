"""OpenTelemetry: metrics under the names of its conventions for messaging, and trace context in
headers.

Needs the extra `[otel]`, which is OpenTelemetry's API: a program chooses the SDK and its exporters.
OpenTelemetry is known only here. Without an SDK, all of this does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind

from deltaq.message import Message
from deltaq.metrics import (
    METRICS,
    ObservedConsumer,
    ObservedViews,
    consumer_samples,
    listening,
    view_samples,
)
from deltaq.metrics.events import Counter, Event, Gauge, Histogram, Metric
from deltaq.version import __version__

SYSTEM = "deltaq"
"""The value of `messaging.system`."""

_ATTRIBUTES = {
    "topic": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
    "group": "messaging.consumer.group.name",
    "error": "error.type",
    "reason": "error.type",
}
_SYSTEM = {"messaging.system": SYSTEM}
_UNITS = {"seconds": "s", "bytes": "By", "records": "{message}"}
_DOTTED = 2  # deltaq_producer_expired_uploads_total -> deltaq.producer.expired_uploads


def otel_name(metric: Metric) -> str:
    """The name of a metric in OpenTelemetry: that of the conventions, or else its own with dots and
    without unit.
    """
    if metric.convention is not None:
        return metric.convention.name
    return metric.name.removesuffix("_total").removesuffix("_seconds").replace("_", ".", _DOTTED)


@contextmanager
def export_metrics(
    *consumers: ObservedConsumer,
    views: Sequence[ObservedViews] = (),
    provider: MeterProvider | None = None,
) -> Iterator[None]:
    """Hand the metrics of all clients in this process to OpenTelemetry until the end of the block,
    and the gauges of these consumers and groups of views. `provider` is the global one by default.
    """
    meter = get_meter("deltaq", __version__, provider)
    instruments = {}
    for metric in METRICS:
        about = (
            otel_name(metric),
            _UNITS.get(metric.unit, f"{{{metric.unit.removesuffix('s')}}}"),
            metric.when,
        )
        if about[0] in instruments:
            continue  # metrics that differ in Prometheus can be one with attributes here
        if isinstance(metric, Counter):
            instruments[about[0]] = meter.create_counter(*about).add
        elif isinstance(metric, Histogram):
            bounds = list(metric.bounds)
            made = meter.create_histogram(*about, explicit_bucket_boundaries_advisory=bounds)
            instruments[about[0]] = made.record

    def on_event(event: Event) -> None:
        instruments[otel_name(event.metric)](event.amount, _attributes(event.metric, event.labels))

    is_over = False

    def observed(gauge: Gauge) -> Iterator[Observation]:
        if not is_over:
            for sample in (*consumer_samples(*consumers), *view_samples(*views)):
                if sample.metric is gauge and isinstance(sample.value, int | float):
                    yield Observation(sample.value, _attributes(gauge, sample.labels))

    for gauge in (
        metric for metric in METRICS if isinstance(metric, Gauge) and (consumers or views)
    ):

        def observe(_: CallbackOptions, gauge: Gauge = gauge) -> Iterable[Observation]:
            return observed(gauge)

        meter.create_observable_gauge(
            otel_name(gauge), [observe], _UNITS.get(gauge.unit, ""), gauge.when
        )
    try:
        with listening(on_event):
            yield
    finally:
        # Instruments stay registered, and their callbacks would keep asking closed consumers.
        is_over = True


def _attributes(metric: Metric, labels: Mapping[str, str]) -> dict[str, str]:
    fixed = {} if metric.convention is None else metric.convention.attributes
    return {
        **_SYSTEM,
        **fixed,
        **{_ATTRIBUTES.get(name, f"deltaq.{name}"): value for name, value in labels.items()},
    }


# --- trace context ---

Header = tuple[str, "bytes | str | None"]


class _Headers(Getter["list[tuple[str, bytes | None]]"]):
    """Reads context from the headers of a message. Of repeated headers, the last one counts, as in
    Kafka.
    """

    def get(self, carrier: list[tuple[str, bytes | None]], key: str) -> list[str] | None:
        found = [
            value for name, value in carrier if name.lower() == key.lower() and value is not None
        ]
        try:
            return [found[-1].decode("ascii")] if found else None
        except UnicodeDecodeError:
            return None  # a context that is damaged is none

    def keys(self, carrier: list[tuple[str, bytes | None]]) -> list[str]:
        return [name for name, _ in carrier]


def inject(
    headers: Mapping[str, bytes | str | None] | Iterable[Header] | None = None,
    context: Context | None = None,
) -> list[Header]:
    """The headers with the trace context: `traceparent` and what else the global propagator writes.

    `context` is the current one by default. Earlier headers of these names are replaced.
    """
    given = list(headers.items() if isinstance(headers, Mapping) else headers or ())
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    kept: list[Header] = [header for header in given if header[0].lower() not in carrier]
    return [*kept, *((name, value.encode()) for name, value in carrier.items())]


def extract(message: Message, context: Context | None = None) -> Context:
    """The context that a message carries, on top of `context`, by default the current one."""
    return propagate.extract(message.headers() or [], context, _Headers())


@contextmanager
def sending(
    topic: str, headers: Mapping[str, bytes | str | None] | Iterable[Header] | None = None
) -> Iterator[list[Header]]:
    """A span of a producer; yields the headers for `produce`, with the span's context."""
    attributes = {**_SYSTEM, "messaging.destination.name": topic, **_operation("send")}
    with _tracer().start_as_current_span(
        f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
    ):
        yield inject(headers)


@contextmanager
def processing(message: Message, group: str | None = None) -> Iterator[Span]:
    """A span of a consumer around the work on a message, as a child of the span that sent it."""
    place = {
        "messaging.destination.name": message.topic(),
        "messaging.destination.partition.id": None
        if message.partition() is None
        else str(message.partition()),
        "messaging.consumer.group.name": group,
    }
    attributes: dict[str, str | int] = {
        name: value for name, value in place.items() if value is not None
    }
    if (offset := message.offset()) is not None:
        attributes["messaging.kafka.offset"] = offset
    about = {**_SYSTEM, **attributes, **_operation("process")}
    name = f"process {message.topic()}"
    with _tracer().start_as_current_span(name, extract(message), SpanKind.CONSUMER, about) as span:
        yield span


def _operation(name: str) -> dict[str, str]:
    return {"messaging.operation.name": name, "messaging.operation.type": name}


def _tracer() -> trace.Tracer:
    return trace.get_tracer("deltaq", __version__)
