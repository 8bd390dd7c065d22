"""Topic handles: what a producer knows of a topic, and the checks of messages against it, one by
one and before a call of `produce_batch`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from deltaq.clock import Clock
from deltaq.config import ProducerConfig, topic_properties
from deltaq.errors import (
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    UnknownTopic,
)
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.names import check_topic
from deltaq.producer.accumulator import (
    AccumulatorSettings,
    BatchResult,
    RecordAccumulator,
)
from deltaq.producer.callbacks import CallbackQueue
from deltaq.producer.sender import Sender, staging_sender, topic_sender
from deltaq.producer.staging import Staging
from deltaq.serde.schema import TopicSchema
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.topics.columns import Headers
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition
from deltaq.topics.schema_evolution import evolution, unregistered
from deltaq.weak import weakly

HeadersInput: TypeAlias = (
    Mapping[str, str | bytes | None]
    | list[tuple[str, str | bytes | None]]
    | list[tuple[str, bytes | None]]
    | list[tuple[str, str]]
    | list[tuple[str, bytes]]
    | None
)
"""A dict, or a list of pairs. Lists of one value type are named too: `list` is invariant to a type
checker.
"""


class _NoPlainValue:
    """A type without instances: it marks topics whose every value must be converted."""


@dataclass(slots=True, eq=False)
class TopicHandle:
    """What one producer knows of one topic. Values of type `plain` need no conversion."""

    name: str
    sender: Sender
    buffer: RecordAccumulator
    client_limit: int
    client_schema: TopicSchema | None
    partitions: int | None = None
    keyed: bool = False
    size_max: int = field(init=False)
    plain: type[Any] = field(init=False)
    schema: TopicSchema | None = field(init=False)
    _refusal: InvalidConfig | None = None

    def __post_init__(self) -> None:
        self.size_max, self.schema = self.client_limit, self.client_schema
        self.plain = bytes if self.schema is None else _NoPlainValue

    def observe(self, definition: TopicDefinition) -> None:
        """Apply the topic's partitions, schema, size limit and clean-up policy."""
        self._refusal = self._conflict(definition)
        self.partitions = definition.partitions
        self.schema = self.client_schema or definition.schema
        self.plain = bytes if self.schema is None and self._refusal is None else _NoPlainValue
        self.size_max = min(self.client_limit, definition.settings.max_message_bytes)
        self.keyed = "compact" in definition.settings.cleanup_policy

    def _conflict(self, definition: TopicDefinition) -> InvalidConfig | None:
        """Why values of the client's schema do not fit the topic. The sender changes a schema that
        may be changed.
        """
        if self.client_schema is None:
            return None
        try:
            change = evolution(self.name, definition.schema, definition.history, self.client_schema)
        except InvalidConfig as error:
            return error
        if change is None or self.buffer.settings.register_schemas:
            return None
        return unregistered(self.name)

    def check(self) -> None:
        """Raises InvalidConfig if the client's schema does not fit the topic."""
        if self._refusal is not None:
            raise self._refusal

    def accepted(self, value: object) -> tuple[object, int]:
        """Convert a value that is not plain; with its size in bytes. Raises TypeError,
        InvalidValue, InvalidConfig.
        """
        self.check()
        if value is None:
            return None, 0
        if self.schema is not None:
            row = _as_row(value, self.schema, self.name)
            return row, _size(row)
        data = as_bytes(value, "value")
        return data, len(data)


class TopicHandles:
    """The handles of one producer, opened at the first use of a topic. `lock` is held while one is
    opened.

    Their buffers report to `callbacks`, weakly: the sender must not keep a dropped producer alive.
    """

    def __init__(
        self,
        store: Store,
        config: ProducerConfig,
        clock: Clock,
        callbacks: CallbackQueue,
        *,
        takes_serializers: bool,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._callbacks = callbacks
        self._takes_serializers = takes_serializers
        self.settings = AccumulatorSettings.of(config, is_remote=store.is_remote)
        self.staging = None if config.transactional_id is None else Staging(store, clock)
        self.lock = clock.lock()
        self.by_topic: dict[str | Topic, TopicHandle] = {}

    def open(self, topic: str | Topic, check_open: Callable[[], None]) -> TopicHandle:
        """Create the handle of a topic. Looks the topic up, so that `produce` can refuse bad input.
        `check_open` raises if the producer is closed.
        """
        check_open()
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        name = topic.name if isinstance(topic, Topic) else check_topic(topic)
        if not self._takes_serializers and isinstance(topic, Topic) and topic.serializers:
            raise InvalidConfig(
                f"topic {name!r} has serializers: use a SerializingProducer", key="value_serializer"
            )
        plan = self._new_topic(topic)
        with self.lock:
            check_open()  # `close` may have run during the wait for the lock
            # Another thread has opened it during the wait for the lock.
            if (handle := self.by_topic.get(topic)) is not None:
                return handle
            sender = self._sender(name)
            # A topic used by name and by `Topic` shares one buffer, which keeps the order of its
            # messages.
            known = next(
                (other.buffer for other in self.by_topic.values() if other.name == name), None
            )
            buffer = self._new_buffer(name, sender, plan) if known is None else known
            schema = topic.schema if isinstance(topic, Topic) else None
            handle = TopicHandle(name, sender, buffer, self._config.message_max_bytes, schema)
            definition = sender.topic.read_for(
                plan, schema, register=self.settings.register_schemas
            )
            if definition is None:
                # The upload retries the lookup until the messages' deadline.
                buffer.unchecked = True
            else:
                handle.observe(definition)
                handle.check()
            if schema is not None:
                buffer.schemas.add(schema)
            # A signal handler may raise here. A buffer without a handle would keep the sender's
            # threads alive.
            try:
                if known is None:
                    sender.attach(buffer)
                self.by_topic[topic] = handle
            except BaseException:
                if known is None:
                    sender.detach(buffer)
                raise
            return handle

    def _sender(self, name: str) -> Sender:
        """The sender of a topic, with maintenance beside it if this process does that."""
        config = self._config
        where = self._store, name, self._clock, config.client_id
        if self.staging is None:
            sender = topic_sender(*where)
        else:
            known = (other for other in self.by_topic.values() if other.name == name)
            sender = next((other.sender for other in known), None) or staging_sender(
                *where, self.staging
            )
        if config.maintenance_enable and sender.topic.maintenance is None:
            from deltaq.maintenance.background import BackgroundTopicMaintenance  # noqa: PLC0415

            sender.topic.maintenance = BackgroundTopicMaintenance(
                self._store,
                name,
                self._clock,
                sender.log.known,
                offsets_retention_ms=config.offsets_retention_minutes * 60_000,
                transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            )
        return sender

    def _new_buffer(
        self, name: str, sender: Sender, plan: NewTopicPlan | None
    ) -> RecordAccumulator:
        callbacks = self._callbacks
        return RecordAccumulator(
            self.settings,
            on_result=weakly(callbacks.report if self.staging is None else self._staged, None),
            wake_sender=sender.wake,
            observe=partial(weakly(self._observe, None), name),
            store_failed=weakly(callbacks.store_failed, None),
            plan=plan,
            flushes=callbacks.flushes,
        )

    def _staged(self, buffer: RecordAccumulator, result: BatchResult) -> None:
        """Report messages of a transaction, which cannot be committed without them."""
        if self.staging is not None and result.error is not None:
            self.staging.failed(result.error)
        self._callbacks.report(buffer, result)

    def _new_topic(self, topic: str | Topic) -> NewTopicPlan | None:
        """How to create the topic if it does not exist; None if `auto.create.topics.enable` is
        false.
        """
        if not self._config.auto_create_topics_enable:
            return None
        if isinstance(topic, Topic):
            return topic.plan(self._config.num_partitions)
        return NewTopicPlan(self._config.num_partitions, None, topic_properties({}))

    def _observe(self, name: str, definition: TopicDefinition) -> None:
        """Called by the sender when partitions or settings of the topic have changed."""
        for handle in tuple(self.by_topic.values()):
            if handle.name == name:
                handle.observe(definition)


def check_before_io(
    topic: str | Topic,
    value: object,
    key: object,
    partition: int,
    timestamp: int,
    headers: object,
    size_max: int,
) -> None:
    """Refuse what no topic accepts, before the first `produce` to a topic looks it up or creates
    it. Raises TypeError, MessageTooLarge above `size_max` bytes, UnknownTopic, InvalidValue.
    """
    if not isinstance(topic, str | Topic):
        raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
    name = topic.name if isinstance(topic, Topic) else check_topic(topic)
    size = 0 if key is None else len(as_bytes(key, "key"))
    size += 0 if headers is None else accepted_headers(headers)[1]
    if isinstance(topic, Topic) and topic.schema is not None:
        size += 0 if value is None else _size(_as_row(value, topic.schema, name))
    elif (
        value is not None and not isinstance(value, dict) and not hasattr(value, "model_fields_set")
    ):
        size += len(as_bytes(value, "value"))  # only typed topics take dicts and models
    if size > size_max:
        raise MessageTooLarge(size=size, limit=size_max, topic=name)
    if operator.index(partition) < -1:
        raise UnknownTopic(name, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
    check_timestamp(operator.index(timestamp), name)


def _as_row(value: object, schema: TopicSchema, topic: str) -> dict[str, object]:
    """The row of a typed topic's value. Bytes are refused with the name of the topic: a producer of
    bytes may not know that the topic is typed. Raises InvalidValue.
    """
    if isinstance(value, bytes | str):
        has, wanted = (
            ("schema", "") if schema.model is None else ("model", f"{schema.model.__name__} or ")
        )
        raise InvalidValue(
            f"topic {topic!r} has a {has}: expected {wanted}dict, got {type(value).__name__}",
            topic=topic,
        )
    return schema.accept(value)


def check_timestamp(timestamp: int, topic: str) -> None:
    """Raises InvalidValue for a time that the log cannot hold."""
    if not 0 <= timestamp <= TIMESTAMP_MS_MAX:
        raise InvalidValue(
            f"timestamp {timestamp} is outside 0..{TIMESTAMP_MS_MAX} ms (1970 to 2262); "
            "it counts milliseconds, 0 means now",
            field="timestamp",
            topic=topic,
        )


def as_bytes(data: object, what: str) -> bytes:
    """Text as UTF-8, bytes as they are. Raises TypeError, UnicodeEncodeError."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return bytes(data)
    raise TypeError(f"{what} must be bytes or str, not {type(data).__name__}")


def _size(value: object) -> int:
    """Approximate size of an accepted value in bytes: the length of text and bytes, 8 for other
    scalars.
    """
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 8


def with_header(headers: HeadersInput, header: tuple[str, bytes]) -> HeadersInput:
    """The headers of a message and one more, which takes the place of those of its name."""
    if headers is None or isinstance(headers, Mapping):
        return {**(headers or {}), header[0]: header[1]}
    return [*(pair for pair in headers if pair[:1] != header[:1]), header]


def accepted_headers(headers: object) -> tuple[Headers, int]:
    """Headers as a list of (str, bytes or None), and their size. TypeError for what `HeadersInput`
    does not allow.
    """
    if not isinstance(headers, Mapping | list):
        raise TypeError(
            f"headers must be a dict or a list of (name, value) pairs, not {type(headers).__name__}"
        )
    checked: list[tuple[str, bytes | None]] = []
    size = 0
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(
                f"a header must be a (str, bytes, str or None) pair, not {type(pair).__name__} "
                f"{pair!r:.60}"
            )
        name, content = pair
        data = None if content is None else as_bytes(content, f"header {name!r:.60}")
        checked.append((name, data))
        # Refuse a name that UTF-8 cannot hold here: at the upload it would fail its whole batch.
        size += (len(name) if name.isascii() else len(name.encode())) + len(data or b"")
    return checked or None, size


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """The messages of a call. `partition` and `callback` are those of messages that have none of
    their own.
    """

    messages: Sequence[dict[str, Any]]
    partition: int
    callback: object

    def check(self, topic: object, *, serializes: bool) -> None:
        """Raise TypeError for what no topic takes. Keys may be of any type if the producer
        `serializes`; text that UTF-8 cannot hold refuses only its message.
        """
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        operator.index(self.partition)
        _check_callable(self.callback)
        for at, message in enumerate(self.messages):
            if not isinstance(message, dict):
                raise TypeError(
                    f"message at index {at} must be a dict, not {type(message).__name__}"
                )
            try:
                _check_fields(message, serializes=serializes)
            except UnicodeEncodeError:
                continue
            except TypeError as error:
                raise TypeError(f"message at index {at}: {error}") from None

    def unplain(self) -> tuple[int, object] | None:
        """The first value that only a typed topic takes, behind its index."""
        values = enumerate(message.get("value") for message in self.messages)
        return next(
            (found for found in values if not isinstance(found[1], bytes | str | None)), None
        )

    def queue(self, produce: Callable[..., None]) -> int:
        """Queue the messages; the number of those that were queued. The others have their error
        under `_error`.
        """
        queued = 0
        for at, message in enumerate(self.messages):
            own, callback = message.get("partition"), message.get("callback")
            try:
                produce(
                    value=message.get("value"),
                    key=message.get("key"),
                    partition=self.partition if own is None else own,
                    on_delivery=self.callback if callback is None else callback,
                    timestamp=message.get("timestamp") or 0,
                    headers=message.get("headers"),
                )
            except BufferError:  # QueueFull, and that of the compatible producer
                # A later message that found room would overtake this one.
                for left in self.messages[at:]:
                    left["_error"] = KafkaError(KafkaError._QUEUE_FULL, retriable=True)
                break
            except KafkaException as error:
                message["_error"] = error.args[0]
            except (TypeError, UnicodeEncodeError) as error:
                message["_error"] = KafkaError(KafkaError._INVALID_ARG, str(error))
            else:
                # Left by an earlier call: a loop that retries refused messages would never end.
                message.pop("_error", None)
                queued += 1
        return queued


def _check_fields(message: Mapping[str, Any], *, serializes: bool) -> None:
    _check_callable(message.get("callback"))
    for name in ("partition", "timestamp"):
        if (number := message.get(name)) is not None and not hasattr(number, "__index__"):
            raise TypeError(f"{name} must be int, not {type(number).__name__}")
    if not serializes and (key := message.get("key")) is not None:
        as_bytes(key, "key")
    if (headers := message.get("headers")) is not None:
        accepted_headers(headers)


def _check_callable(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")
