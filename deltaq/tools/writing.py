"""Writing to topics: messages one after the other, and records made from those of another topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltaq.config.declare import INT32_MAX
from deltaq.errors import KafkaError, KafkaException
from deltaq.message import Message
from deltaq.producer.producer import Producer
from deltaq.tools.model_rows import ModelRows, model_rows
from deltaq.tools.positions import Place
from deltaq.tools.reading import messages
from deltaq.tools.records import Record
from deltaq.topic import Topic

if TYPE_CHECKING:
    from deltaq.tools.registry_values import RegistryEncoder


class Sending:
    """Sends messages to one topic and waits for their deliveries. Leaving the `with` block waits
    for all.

    `delivered` counts the messages that are in the topic. The first failed delivery is raised by
    the next call, or at the end of the block. `conf` are settings of the producer.
    """

    def __init__(self, topic: Topic, conf: Mapping[str, Any] | None = None) -> None:
        self.delivered = 0
        self._failure: KafkaError | None = None
        self._topic = topic
        self._encoder: RegistryEncoder | None = None
        # Without a schema of its own, a handle finds that of the topic.
        self._name = topic.name
        settings = {"max.block.ms": INT32_MAX, **(conf or {}), "bootstrap.servers": topic.store.url}
        self._producer = Producer(settings, store=topic.store, clock=topic.clock)

    def send(self, **message: Any) -> None:
        """Queue a message: the arguments of `Producer.produce`. Waits while the queue is full.
        Raises what that raises, and KafkaException for an earlier message that was not delivered.
        """
        self._queue(
            lambda: self._producer.produce(self._name, **message, on_delivery=self._reported)
        )

    def send_table(self, data: Any) -> None:
        """Queue the rows of an Arrow table: see `Producer.produce_arrow`. Raises as `send`."""

        def reported(error: KafkaError | None, _: object) -> None:
            self._failure = self._failure or error
            self.delivered += 0 if error else rows

        rows = len(data)
        self._queue(lambda: self._producer.produce_arrow(self._name, data, reported))

    def encode(self, value: Any, schema_id: int, message_type: str | None) -> bytes:
        """The bytes of a value by a schema in the registry of the topic's root: see
        `RegistryEncoder`.
        """
        from deltaq.tools.registry_values import RegistryEncoder  # noqa: PLC0415 - few files need the registry

        self._encoder = self._encoder or RegistryEncoder(self._topic.store, self._topic.clock)
        return self._encoder(value, schema_id, message_type)

    def model_rows(self) -> ModelRows | None:
        """What the rows of files and frames must pass if the handle has a model: see
        `model_rows`.
        """
        return model_rows(self._topic)

    def _queue(self, queue: Callable[[], object]) -> None:
        self._producer.poll(0)
        self._check()
        queue()

    def _reported(self, error: KafkaError | None, _: Message) -> None:
        self._failure = self._failure or error
        self.delivered += error is None

    def _check(self) -> None:
        if self._failure is not None:
            raise KafkaException(self._failure)

    def flush(self) -> None:
        """Wait until all messages are delivered. Raises KafkaException if one was not."""
        self._producer.flush()
        self._check()

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._producer:
            self._producer.flush()
        if error is None:
            self._check()


def transform(
    source: Topic,
    target: Topic,
    function: Callable[[Record], Record | Iterable[Record] | None],
    start: Place = None,
    end: Place = None,
) -> int:
    """Produce to `target` what `function` makes of each record of `source`: a record, several, or
    None, which leaves it out. Returns the number of records produced.

    The partition follows from the key; timestamp, key, headers and value are those that `function`
    returns. Ends at the first record that is refused. Raises what `messages` and `Sending.send`
    raise.
    """
    with Sending(target) as sending:
        for record in messages(source, start, end):
            for made in _records(function(record)):
                about = {
                    "key": made.key,
                    "headers": made.headers or None,
                    "timestamp": made.timestamp,
                }
                sending.send(value=made.value, **about)
    return sending.delivered


def _records(made: Any) -> Sequence[Record]:
    """What a function has made of a record. Raises TypeError for anything but records."""
    if made is None:
        return ()
    found = (made,) if isinstance(made, Record) else tuple(made)
    for record in found:
        if not isinstance(record, Record):
            raise TypeError(
                f"the function must return a Record, several or None, not {type(record).__name__}"
            )
    return found
