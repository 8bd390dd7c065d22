"""The clients that are compared: deltaq's, and Kafka's own. The same program text drives both."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import Any

TIMEOUT_S = 10.0

START_TIMEOUT_S = 60.0
"""How long a consumer may take until it has its partitions."""


@dataclass(frozen=True, slots=True)
class Client:
    """A library with the API of confluent-kafka, and its `bootstrap.servers`. Can be sent to
    another process.
    """

    library: str
    bootstrap: str

    @property
    def api(self) -> Any:
        """The module with `Producer`, `Consumer` and `TopicPartition`. The libraries share no
        types, hence Any.
        """
        return import_module(self.library)

    @property
    def conf(self) -> dict[str, object]:
        """What every configuration has to say."""
        return {"bootstrap.servers": self.bootstrap}

    @property
    def consumer_conf(self) -> dict[str, object]:
        """What the configuration of a consumer has to say. By default librdkafka stops fetching
        once it holds 100,000 messages, looks again only a second later, and leaves a consumer that
        has read them by then with nothing to do.
        """
        busy = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 0}
        return {**self.conf, **(busy if self.library == "confluent_kafka" else {})}

    @property
    def name(self) -> str:
        """What it is called in a report."""
        return "Kafka" if self.library == "confluent_kafka" else "deltaq"

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """A new topic, which every client finds at once. Raises the library's KafkaException, and
        TimeoutError if it is not to be found."""
        admin = import_module(f"{self.library}.admin")
        client = admin.AdminClient(dict(self.conf))
        client.create_topics([admin.NewTopic(topic, num_partitions=partitions)])[topic].result()
        with self.api.Producer(dict(self.conf)) as producer:
            give_up_at = monotonic() + TIMEOUT_S
            # A broker says that a topic is made before it can itself be asked for it.
            while (
                error := producer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].error
            ) is not None:
                if monotonic() > give_up_at:
                    raise TimeoutError(
                        f"{self.name} made topic {topic!r} and does not find it: {error}"
                    )


def deltaq_client(root: str) -> Client:
    """deltaq, with its topics below `root`."""
    return Client("deltaq", root)


def kafka_client(address: str) -> Client:
    """confluent-kafka, with a broker at `address`, host:port."""
    return Client("confluent_kafka", address)


def subscribe(
    consumer: Any, topic: str, partitions: int = 1, timeout_s: float = START_TIMEOUT_S
) -> None:
    """Subscribe a consumer that is alone in its group, and wait until it has all partitions of the
    topic. Raises TimeoutError.
    """
    consumer.subscribe([topic])
    give_up_at = monotonic() + timeout_s
    while len(consumer.assignment()) < partitions:
        consumer.poll(0.05)
        if monotonic() > give_up_at:
            raise TimeoutError(f"a consumer alone in its group was not given topic {topic!r}")


def records_in(client: Client, topic: str, partitions: int = 1) -> int:
    """The number of records in a topic. Raises the library's KafkaException."""
    with client.api.Consumer({**client.conf, "group.id": f"count-{topic}"}) as consumer:
        places = [client.api.TopicPartition(topic, partition) for partition in range(partitions)]
        bounds = [consumer.get_watermark_offsets(place, TIMEOUT_S) for place in places]
    return sum(end - first for first, end in bounds)
