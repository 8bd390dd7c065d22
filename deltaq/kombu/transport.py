"""The transport: connections and channels of kombu on a root.

An exchange is a topic, and so is a queue. A queue that is bound to an exchange reads the topic of
the exchange, and takes the messages whose routing key fits. A process that sends therefore needs no
list of queues, and a queue without readers costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kombu.transport import virtual
from kombu.transport.virtual.base import Empty
from kombu.utils.json import dumps

from deltaq.admin import AdminClient, NewTopic
from deltaq.clock import SYSTEM_CLOCK, checked_timeout
from deltaq.config import AdminConfig, parse_client_config
from deltaq.consumer.fetcher import PollTimer
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, UnknownTopic
from deltaq.kombu import SCHEME
from deltaq.kombu.private_queue import PrivateQueue
from deltaq.kombu.routes import Matches, Route, exchange_topic, queue_topic
from deltaq.kombu.shared_queue import SharedQueue
from deltaq.message import AcknowledgeType
from deltaq.names import TOPICS_FOLDER
from deltaq.producer import Producer
from deltaq.root import open_root
from deltaq.share_groups.exchange import PartitionId
from deltaq.topics.lookup import TopicLookup
from deltaq.version import __version__

VISIBILITY_S = 300.0
"""Seconds after which others get the messages of a worker that has died: `visibility_timeout` of
the transport options.
"""

VISIBILITY_MAX_S = 86_400

TAKEN_AT_ONCE = 100
"""Messages that are taken at once without a prefetch limit."""

IDLE_S = 0.5
"""Most seconds between two looks at the logs."""


class QueueChannel(virtual.Channel):
    """A channel: sends to topics, and takes from the queues that it consumes."""

    supports_fanout = True

    def __init__(self, connection: QueueTransport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._shared: dict[str, SharedQueue] = {}
        # The queue of each message that was delivered and is not decided.
        self._queue_of: dict[str, SharedQueue | PrivateQueue] = {}
        self._no_ack: set[str] = set()

    def _queue(self, queue: str) -> SharedQueue | PrivateQueue:
        private: PrivateQueue | None = self.connection.private.get(queue)
        if private is not None:
            return private
        if queue not in self._shared:
            self._shared[queue] = self.connection.shared_queue(queue)
        return self._shared[queue]

    # --- sending ---

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Send a message, and wait until it is durable. Raises KafkaException."""
        self._inplace_augment_message(message, exchange, routing_key)
        topic = exchange_topic(exchange) if exchange else queue_topic(routing_key)
        self.connection.send(topic, dumps(message).encode())

    # --- queues and bindings ---

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("auto_delete"):  # kombu sets it for an exclusive queue, too
            self.connection.declare_private(queue)
        elif queue not in self.connection.private:
            self.connection.create_topic(queue_topic(queue))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.connection.private or self.connection.has_topic(queue_topic(queue))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        topic = exchange_topic(exchange)
        ends = self.connection.ends(topic)
        is_fanout = self.typeof(exchange).type == "fanout"
        matches = _matches(routing_key, pattern, is_fanout=is_fanout)
        self.connection.route(queue).bindings.setdefault(topic, []).append(matches)
        self._queue(queue).bind(ends)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._shared.pop(queue, None)
        self.connection.delete_queue(queue)

    def _size(self, queue: str) -> int:
        return self._queue(queue).size()

    def _purge(self, queue: str) -> int:
        return self._queue(queue).purge()

    # --- taking ---

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[..., Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Deliver the messages of a queue to `callback`."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """The next message of a queue; None if there is none."""
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self._decide(message.delivery_tag, AcknowledgeType.ACCEPT)
        return message

    def drain_events(
        self, timeout: float | None = None, callback: Callable[..., Any] | None = None
    ) -> None:
        """Deliver one message. Raises Empty if there is none."""
        for queue in self._shared.values():
            queue.keep()
        super().drain_events(timeout, callback)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        taken_from = self._queue(queue)
        if isinstance(taken_from, PrivateQueue) and taken_from.reads_nothing:
            # Without a binding, it has what is sent to the queue itself.
            taken_from.bind(dict.fromkeys(self.connection.ends(queue_topic(queue)), 0))
        free = self.qos.can_consume_max_estimate()
        delivery = taken_from.take(
            min(TAKEN_AT_ONCE, TAKEN_AT_ONCE if free is None else max(1, free))
        )
        if delivery is None:
            raise Empty
        properties = delivery.payload["properties"]
        properties["delivery_tag"] = delivery.tag
        properties["delivery_info"]["redelivered"] = delivery.deliveries > 1
        self._queue_of[delivery.tag] = taken_from
        if queue in self._no_ack:
            self._decide(delivery.tag, AcknowledgeType.ACCEPT)
        return delivery.payload

    # --- acknowledging ---

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Accept a message. May be called by any thread."""
        self._decide(delivery_tag, AcknowledgeType.ACCEPT)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Refuse a message for good, or give it back."""
        if not requeue:
            self._decide(delivery_tag, AcknowledgeType.REJECT)
        super().basic_reject(delivery_tag, requeue)

    def _restore(self, message: virtual.Message) -> None:
        self._decide(message.delivery_tag, AcknowledgeType.RELEASE)

    def _decide(self, delivery_tag: str, decided: AcknowledgeType) -> None:
        queue = self._queue_of.pop(delivery_tag, None)
        if queue is not None:
            queue.acknowledge(delivery_tag, decided)

    def close(self) -> None:
        """Write what is decided, and give back all other messages."""
        if not self.closed:
            try:
                super().close()
            finally:
                for queue in self._shared.values():
                    queue.close()
                self._shared.clear()


def _matches(routing_key: str, pattern: str | None, *, is_fanout: bool) -> Matches:
    if is_fanout:
        return lambda _: True
    if pattern is None:
        return lambda key: key == routing_key
    compiled = re.compile(pattern)
    return lambda key: compiled.match(key) is not None


class QueueTransport(virtual.Transport):
    """A connection to a root. Channels of one connection share its clients and the private
    queues.
    """

    Channel = QueueChannel
    can_parse_url = True
    driver_type = "deltaq"
    driver_name = "deltaq"
    default_port = 0
    connection_errors = (*virtual.Transport.connection_errors, KafkaException)
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options
        self._lock_s = _visibility_s(options.get("visibility_timeout", VISIBILITY_S))
        root = str(client.hostname).removeprefix(f"{SCHEME}://")
        settings = {name: value for name, value in options.items() if name.startswith("store.")}
        self._conf: dict[str, Any] = {"bootstrap.servers": root, **settings}
        self._clock = SYSTEM_CLOCK
        self._store = open_root(parse_client_config(AdminConfig, self._conf), self._clock)
        self._lookup = TopicLookup(self._store, self._clock)
        self._watch = self._store.watch()
        self._timer = PollTimer(self._store, self._watch, IDLE_S, self._clock)
        self._producer: Producer | None = None
        self._created: set[str] = set()
        self._routes: dict[str, Route] = {}
        self.private: dict[str, PrivateQueue] = {}

    def driver_version(self) -> str:
        """The version of deltaq."""
        return __version__

    def establish_connection(self) -> Any:
        """Check that the root can be listed. Raises Unavailable."""
        with raising_unavailable():
            self._store.list_folders(TOPICS_FOLDER)
        return super().establish_connection()

    def send(self, topic: str, value: bytes) -> None:
        """Write a message, and wait until it is durable. Raises KafkaException."""
        if self._producer is None:
            self._producer = Producer(self._conf)
        outcome: list[KafkaError | None] = []
        self._producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
        self._producer.flush()
        if outcome[0] is not None:
            raise KafkaException(outcome[0])

    # --- topics ---

    def create_topic(self, topic: str) -> None:
        """Create a topic that does not exist. Raises KafkaException."""
        if topic in self._created:
            return
        if not self.has_topic(topic):
            with AdminClient(self._conf) as admin:
                try:
                    admin.create_topics([NewTopic(topic, 1)])[topic].result()
                except KafkaException as error:
                    if error.error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
        self._created.add(topic)

    def has_topic(self, topic: str) -> bool:
        """Whether a topic exists. Raises KafkaException."""
        try:
            self._lookup.head(topic)
        except UnknownTopic:
            return False
        return True

    def ends(self, topic: str) -> dict[PartitionId, int]:
        """The end of each partition of a topic, which is created if it does not exist. Raises
        KafkaException.
        """
        self.create_topic(topic)
        head = self._lookup.head(topic)
        offsets = enumerate(head.next_offsets)
        return {PartitionId(topic, head.topic_id, number): end for number, end in offsets}

    # --- queues ---

    def route(self, queue: str) -> Route:
        """Where the messages of a queue come from."""
        return self._routes.setdefault(queue, Route())

    def shared_queue(self, queue: str) -> SharedQueue:
        """A reader of a queue for one channel. Raises KafkaException."""
        self.create_topic(queue_topic(queue))
        about = queue, self.route(queue), self._lock_s, self._watch
        return SharedQueue(self._store, self._clock, *about)

    def declare_private(self, queue: str) -> None:
        """Have a queue that only this connection reads, and that ends with it."""
        if queue not in self.private:
            self.private[queue] = PrivateQueue(self._conf, self._clock, self.route(queue))

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with all that it has. Raises KafkaException."""
        self._routes.pop(queue, None)
        if (private := self.private.pop(queue, None)) is not None:
            private.close()
            return
        topic = queue_topic(queue)
        self._created.discard(topic)
        with AdminClient(self._conf) as admin, suppress(UnknownTopic):
            admin.delete_topics([topic])[topic].result()

    # --- connections ---

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the next message of any channel. Raises TimeoutError if there is none within
        `timeout` seconds.
        """
        deadline = self._clock.monotonic() + checked_timeout(timeout)
        while True:
            try:
                self.cycle.get(self._deliver)
            except Empty:
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    raise TimeoutError("no message came in time") from None
                self._timer.wait(False, most_s=left_s)
            else:
                self._timer.wait(True)
                return

    def close_connection(self, connection: Any) -> None:
        """Close all channels, then the clients."""
        try:
            super().close_connection(connection)
        finally:
            for private in self.private.values():
                private.close()
            self.private.clear()
            if self._producer is not None:
                self._producer.close()
            self._watch.close()


def _visibility_s(value: object) -> float:
    """Seconds of a lock. Raises InvalidConfig."""
    if isinstance(value, int | float) and 1 <= value <= VISIBILITY_MAX_S:
        return float(value)
    reason = f"visibility_timeout={value!r}: give 1 to {VISIBILITY_MAX_S:,} seconds"
    raise InvalidConfig(reason, key="visibility_timeout")
