"""The clients with which a connection of kombu works on a root."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from deltaq.admin import AdminClient, NewTopic
from deltaq.clock import Clock
from deltaq.config import AdminConfig, parse_client_config
from deltaq.consumer.fetcher import PollTimer
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.kombu.routes import queue_topic
from deltaq.kombu.shared_queue import WRITE_S, SharedQueue
from deltaq.names import TOPICS_FOLDER
from deltaq.producer import Producer
from deltaq.root import open_root
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.log import ShareLog
from deltaq.topics.lookup import TopicLookup

IDLE_S = 0.5
"""Most seconds between two looks at the logs."""


class RootClients:
    """Sends to topics, and makes topics and readers of queues. For one process: a forked child
    needs others. The constructor does no I/O. Methods raise KafkaException.
    """

    def __init__(self, conf: Mapping[str, Any], clock: Clock) -> None:
        self._conf = conf
        self._clock = clock
        self._store = open_root(parse_client_config(AdminConfig, conf), clock)
        self._lookup = TopicLookup(self._store, clock)
        self._watch = self._store.watch()
        self.timer = PollTimer(self._store, self._watch, IDLE_S, clock)
        self._producer: Producer | None = None

    def check(self) -> None:
        """Check that the root can be listed. Raises Unavailable."""
        with raising_unavailable():
            self._store.list_folders(TOPICS_FOLDER)

    def send(self, topic: str, value: bytes) -> None:
        """Write a message, and wait until it is durable."""
        if self._producer is None:
            self._producer = Producer(self._conf)
        outcome: list[KafkaError | None] = []
        self._producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
        self._producer.flush()
        if outcome[0] is not None:
            raise KafkaException(outcome[0])

    def create_topic(self, topic: str) -> None:
        """Create a topic that does not exist; also one that this process has made before, as
        another one may have deleted it.
        """
        if self.has_topic(topic):
            return
        with AdminClient(self._conf) as admin:
            try:
                admin.create_topics([NewTopic(topic, 1)])[topic].result()
            except KafkaException as error:
                if error.error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def has_topic(self, topic: str) -> bool:
        """Whether a topic exists."""
        try:
            self._lookup.head(topic)
        except UnknownTopic:
            return False
        return True

    def ends(self, topic: str) -> dict[PartitionId, int]:
        """The end of each partition of a topic, which is created if it does not exist."""
        self.create_topic(topic)
        head = self._lookup.head(topic)
        offsets = enumerate(head.next_offsets)
        return {PartitionId(topic, head.topic_id, number): end for number, end in offsets}

    def shared_queue(self, queue: str, lock_s: float | None) -> SharedQueue:
        """A reader of a queue for one channel. Its locks last `lock_s` seconds; for None as long as
        an administrator has set, or by default.
        """
        self.create_topic(queue_topic(queue))
        return SharedQueue(self._store, self._clock, queue, lock_s, self._watch)

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with all that waits in it and its bindings, also while others read it."""
        topic = queue_topic(queue)
        with AdminClient(self._conf) as admin, suppress(UnknownTopic):
            admin.delete_topics([topic])[topic].result()
        log = ShareLog(self._store, topic, self._clock, "kombu")
        log.drop(self._clock.monotonic() + WRITE_S)

    def close(self) -> None:
        """Flush and end the clients."""
        if self._producer is not None:
            self._producer.close()
        self._watch.close()
