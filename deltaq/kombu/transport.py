"""The transport: connections and channels of kombu on a root.

An exchange is a topic, and so is a queue. A queue that is bound to an exchange reads the topic of
the exchange, and takes the messages whose routing key fits. A process that sends therefore needs no
list of queues, and a queue without readers costs nothing. The bindings of a queue are in its group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from kombu.transport import virtual
from kombu.transport.virtual.base import Empty
from kombu.utils.json import dumps

from deltaq.clock import SYSTEM_CLOCK, after_fork, checked_timeout
from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.kombu import SCHEME
from deltaq.kombu.clients import RootClients
from deltaq.kombu.private_queue import PrivateQueue
from deltaq.kombu.routes import exchange_topic, queue_topic
from deltaq.kombu.shared_queue import SharedQueue
from deltaq.message import AcknowledgeType
from deltaq.share_groups.bindings import Binding
from deltaq.version import __version__

VISIBILITY_MAX_S = 86_400

TAKEN_AT_ONCE = 100
"""Messages that are taken at once without a prefetch limit."""

_DEFAULT_EXCHANGE = "amq.direct"
"""The exchange of a binding that names none, as in kombu."""

_UNSET = object()


class QueueChannel(virtual.Channel):
    """A channel: sends to topics, and takes from the queues that it consumes."""

    supports_fanout = True

    def __init__(self, connection: QueueTransport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._shared: dict[str, SharedQueue] = {}
        # The queue of each message that was delivered and is not decided.
        self._queue_of: dict[str, SharedQueue | PrivateQueue] = {}
        self._no_ack: set[str] = set()
        self._is_inherited = False

    def become_inherited(self) -> None:
        """The process is a forked child: what this channel has taken is its parent's, and must be
        neither acknowledged nor given back.
        """
        self._is_inherited = True
        self._shared.clear()
        self._queue_of.clear()

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
        self.connection.clients.send(topic, dumps(message).encode())

    # --- queues and bindings ---

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("auto_delete"):  # kombu sets it for an exclusive queue, too
            self.connection.declare_private(queue)
        elif queue not in self.connection.private:
            self.connection.clients.create_topic(queue_topic(queue))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        if queue in self.connection.private:
            return True
        found: bool = self.connection.clients.has_topic(queue_topic(queue))
        return found

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue, also one that this process has bound before: another process may have
        deleted it since.
        """
        exchange = exchange or _DEFAULT_EXCHANGE
        super().queue_unbind(queue, exchange, routing_key, arguments)
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        topic = exchange_topic(exchange)
        binding = Binding(topic, self.typeof(exchange).type, routing_key)
        self._queue(queue).bind(binding, self.connection.clients.ends(topic))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remove a binding, for all processes."""
        exchange = exchange or _DEFAULT_EXCHANGE
        super().queue_unbind(queue, exchange, routing_key, arguments, **kwargs)
        if self._has_queue(queue):
            self._queue(queue).unbind(exchange_topic(exchange), routing_key)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue with its bindings, also one that another process has bound."""
        if self._has_queue(queue) and not (if_empty and self._size(queue)):
            self._shared.pop(queue, None)
            self.connection.delete_queue(queue)
            self.state.queue_bindings_delete(queue)

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
        """Deliver one message. Raises Empty if there is none, KafkaException in a forked child."""
        self._check_may_take()
        for queue in self._shared.values():
            queue.keep()
        super().drain_events(timeout, callback)

    def _check_may_take(self) -> None:
        if self._is_inherited:
            reason = "this connection was made before the process forked: make one in the child"
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, reason))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        self._check_may_take()
        taken_from = self._queue(queue)
        if isinstance(taken_from, PrivateQueue) and taken_from.reads_nothing:
            # Without a binding, it has what is sent to the queue itself.
            taken_from.read_own(self.connection.clients.ends(queue_topic(queue)))
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
        given = options.get("visibility_timeout", _UNSET)
        self._lock_s = None if given is _UNSET else _visibility_s(given)
        root = str(client.hostname).removeprefix(f"{SCHEME}://")
        settings = {name: value for name, value in options.items() if name.startswith("store.")}
        self._conf: dict[str, Any] = {"bootstrap.servers": root, **settings}
        self._clock = SYSTEM_CLOCK
        self._clients: RootClients | None = RootClients(self._conf, self._clock)
        self.private: dict[str, PrivateQueue] = {}
        _OPEN.add(self)

    @property
    def clients(self) -> RootClients:
        """The clients of this process."""
        if self._clients is None:
            self._clients = RootClients(self._conf, self._clock)
        return self._clients

    def become_inherited(self) -> None:
        """The process is a forked child: the clients are those of its parent. Does no I/O, and
        takes no lock, which another thread of the parent may have held.
        """
        self._clients = None
        self.private.clear()
        for channel in (*self.channels, *self._avail_channels):
            channel.become_inherited()

    def driver_version(self) -> str:
        """The version of deltaq."""
        return __version__

    def establish_connection(self) -> Any:
        """Check that the root can be listed. Raises Unavailable."""
        self.clients.check()
        return super().establish_connection()

    # --- queues ---

    def shared_queue(self, queue: str) -> SharedQueue:
        """A reader of a queue for one channel. Raises KafkaException."""
        return self.clients.shared_queue(queue, self._lock_s)

    def declare_private(self, queue: str) -> None:
        """Have a queue that only this connection reads, and that ends with it."""
        if queue not in self.private:
            self.private[queue] = PrivateQueue(self._conf, self._clock, queue_topic(queue))

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with all that it has. Raises KafkaException."""
        if (private := self.private.pop(queue, None)) is not None:
            private.close()
        else:
            self.clients.delete_queue(queue)

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
                self.clients.timer.wait(False, most_s=left_s)
            else:
                self.clients.timer.wait(True)
                return

    def close_connection(self, connection: Any) -> None:
        """Close all channels, then the clients."""
        try:
            super().close_connection(connection)
        finally:
            for private in self.private.values():
                private.close()
            self.private.clear()
            if self._clients is not None:
                self._clients.close()
            _OPEN.discard(self)


_OPEN: WeakSet[QueueTransport] = WeakSet()


def _inherit() -> None:
    """A forked child must not use its parent's clients, nor decide what its parent has taken."""
    for transport in tuple(_OPEN):
        transport.become_inherited()


after_fork(_inherit)


def _visibility_s(value: object) -> float:
    """Seconds of a lock. Raises InvalidConfig."""
    if isinstance(value, int | float) and 1 <= value <= VISIBILITY_MAX_S:
        return float(value)
    reason = f"visibility_timeout={value!r}: give 1 to {VISIBILITY_MAX_S:,} seconds"
    raise InvalidConfig(reason, key="visibility_timeout")
