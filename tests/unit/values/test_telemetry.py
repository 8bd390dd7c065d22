"""OpenTelemetry's SDK gets the metrics of clients and the spans of messages under the names of its
conventions.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics

from deltaq import Consumer, Message, Producer, telemetry
from deltaq.metrics import METRICS, MISSING_FILES, RECORD_ERRORS
from tests.doubles.reading import drain

Points = dict[str, list[tuple[dict[str, Any], Any]]]


def points(reader: InMemoryMetricReader) -> Points:
    """Attributes and value (or count) of all data points, by the name of the instrument."""
    found: Points = {}
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                value = getattr(point, "value", None)
                count = getattr(point, "count", value)
                found.setdefault(metric.name, []).append((dict(point.attributes or {}), count))
    return found


def test_names_of_the_conventions_are_those_of_their_package() -> None:
    known = {value for name, value in vars(messaging_metrics).items() if name.isupper()}
    attributes = {value for name, value in vars(messaging_attributes).items() if name.isupper()}
    used = [metric.convention for metric in METRICS if metric.convention is not None]
    assert used
    assert {convention.name for convention in used} <= known
    assert {name for convention in used for name in convention.attributes} <= attributes
    assert {
        name for name in telemetry._ATTRIBUTES.values() if name.startswith("messaging")
    } <= attributes


def test_the_sdk_gets_what_clients_count(memory_root: str) -> None:
    reader = InMemoryMetricReader()
    health = SimpleNamespace(
        group_id="g",
        partitions=[SimpleNamespace(topic="t", partition=0, lag=5)],
        since_poll_s=None,
        since_heartbeat_s=None,
    )
    consumer = SimpleNamespace(health=lambda: health)
    with telemetry.export_metrics(consumer, provider=MeterProvider([reader])):
        with Producer(bootstrap_servers=memory_root) as producer:
            producer.produce("t", b"x")
        RECORD_ERRORS.add(2, topic="t", error="_MSG_TIMED_OUT")
        MISSING_FILES.add(topic="t")
        found = points(reader)
    system = {"messaging.system": "deltaq"}
    of_topic = {**system, "messaging.destination.name": "t"}
    sending = {
        **of_topic,
        "messaging.operation.name": "produce",
        "messaging.operation.type": "send",
    }
    assert found["messaging.client.sent.messages"] == [
        (sending, 1),
        ({**sending, "error.type": "_MSG_TIMED_OUT"}, 2),
    ]
    assert found["messaging.client.operation.duration"] == [(sending, 1)]
    assert found["deltaq.consumer.missing_files"] == [(of_topic, 1)]
    partition = {"messaging.consumer.group.name": "g", "messaging.destination.partition.id": "0"}
    assert found["deltaq.consumer.records_lag"] == [({**of_topic, **partition}, 5)]
    MISSING_FILES.add(topic="t")
    assert points(reader)["deltaq.consumer.missing_files"] == [(of_topic, 1)]


def test_the_sdk_gets_the_gauges_of_views() -> None:
    reader = InMemoryMetricReader()
    health = SimpleNamespace(
        group="g", behind_s=2.5, lag={"t": 7}, by_rules={"v": True}, state_rows={"v": 3}
    )
    views = SimpleNamespace(health=lambda: health)
    with telemetry.export_metrics(views=[views], provider=MeterProvider([reader])):
        found = points(reader)
    of_group = {"messaging.system": "deltaq", "messaging.consumer.group.name": "g"}
    of_view = {**of_group, "deltaq.view": "v"}
    assert found["deltaq.views.behind"] == [(of_group, 2.5)]
    assert found["deltaq.views.mode"] == [(of_view, 1)]
    assert found["deltaq.views.state_rows"] == [(of_view, 3)]
    lag = {**of_group, "messaging.destination.name": "t"}
    assert found["deltaq.views.records_lag"] == [(lag, 7)]


def test_consumers_are_asked_no_more_after_a_block_that_failed():
    reader, asked = InMemoryMetricReader(), []
    consumer = SimpleNamespace(health=lambda: asked.append(1))
    with (
        pytest.raises(LookupError),
        telemetry.export_metrics(consumer, provider=MeterProvider([reader])),
    ):
        raise LookupError
    reader.get_metrics_data()
    assert asked == []


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The finished spans of the test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A provider can be set once in a process; a test replaces what the module asks.
    monkeypatch.setattr(telemetry, "_tracer", lambda: provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def test_a_trace_goes_on_from_the_producer_to_the_consumer(
    memory_root: str, spans: InMemorySpanExporter
) -> None:
    with (
        Producer(bootstrap_servers=memory_root) as producer,
        telemetry.sending("t", {"kind": "order"}) as headers,
    ):
        producer.produce("t", b"x", headers=headers)
    conf = {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(conf) as consumer:
        consumer.subscribe(["t"])
        (message,) = drain(consumer, 1)
    with telemetry.processing(message, "g"):
        pass
    sent, processed = spans.get_finished_spans()
    assert (sent.name, processed.name) == ("send t", "process t")
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert dict(message.headers() or ())["kind"] == b"order"
    w3c = f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-{sent.context.trace_flags:02x}"  # noqa: E501
    assert dict(message.headers() or ())["traceparent"] == w3c.encode()
    assert _attributes(processed)["messaging.consumer.group.name"] == "g"
    assert _attributes(processed)["messaging.kafka.offset"] == 0


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_context_is_replaced_and_not_repeated(spans: InMemorySpanExporter) -> None:
    old = [("Traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"), ("kind", b"order")]
    with telemetry.sending("t", old) as headers:
        pass
    assert [name for name, _ in headers] == ["kind", "traceparent"]


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("traceparent", None)],
        [("traceparent", b"\xff\xfe")],
        [("traceparent", b"00-0-0-zz")],
    ],
)
def test_a_message_without_a_usable_context_begins_a_trace(
    headers: list[tuple[str, bytes | None]] | None, spans: InMemorySpanExporter
) -> None:
    with telemetry.processing(Message("t", 0, 3, headers=headers)) as span:
        assert span.get_span_context().is_valid
    (found,) = spans.get_finished_spans()
    assert found.parent is None


def test_without_an_sdk_nothing_is_added_to_headers() -> None:
    assert not trace.get_current_span().get_span_context().is_valid
    assert telemetry.inject({"a": b"1"}) == [("a", b"1")]
