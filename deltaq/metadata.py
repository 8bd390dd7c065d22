"""Metadata of a root: its topics, and one synthetic broker that represents the store.

Classes and attributes are those that `confluent_kafka.admin` returns from `list_topics`,
`describe_topics` and `describe_cluster`. A store has no brokers, so a synthetic broker with id 0 is
the leader and the only replica of every partition.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import TopicSettings
from deltaq.errors import KafkaError, KafkaException
from deltaq.serde.schema import TopicSchema
from deltaq.store import Store
from deltaq.store.parallel import in_parallel, within
from deltaq.topics.listing import of_each, topic_names
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import definition_of

BROKER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """The synthetic broker. `host` is the root URL, which never contains credentials; `port` is
    0.
    """

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.id}"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition. `replicas` and `isrs` are broker ids. `error` is always None: errors are
    reported by topic.
    """

    id: int
    leader: int = BROKER_ID
    replicas: list[int] = field(default_factory=lambda: [BROKER_ID])
    isrs: list[int] = field(default_factory=lambda: [BROKER_ID])
    error: KafkaError | None = None

    def __str__(self) -> str:
        return str(self.id)


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions by id. `error` says why it could not be read."""

    topic: str
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    error: KafkaError | None = None

    def __str__(self) -> str:
        return self.topic


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The topics under a root by name, and the synthetic broker by id."""

    cluster_id: str
    brokers: dict[int, BrokerMetadata]
    topics: dict[str, TopicMetadata]
    controller_id: int = BROKER_ID
    orig_broker_id: int = BROKER_ID
    orig_broker_name: str = ""

    def __str__(self) -> str:
        return self.cluster_id


@dataclass(frozen=True, slots=True)
class Node:
    """The synthetic broker, in the form that descriptions use."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def id_string(self) -> str:
        return str(self.id)

    def __str__(self) -> str:
        return f"({self.id}) {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TopicPartitionInfo:
    """One partition in a `TopicDescription`. It holds the offsets `[start_offset, next_offset)`."""

    id: int
    leader: Node = field(repr=False)
    replicas: list[Node] = field(repr=False)
    isr: list[Node] = field(repr=False)
    start_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic at `version` of its log.

    `topic_id` is 32 hexadecimal digits; a topic that is deleted and created again gets a new one.
    `schema` is None for an untyped topic. `files` and `bytes` count the data files that readers
    use, without those that compaction and retention have replaced and clean-up has not removed yet.
    """

    name: str
    topic_id: str
    partitions: list[TopicPartitionInfo]
    schema: TopicSchema | None
    settings: TopicSettings
    version: int
    files: int
    bytes: int
    is_internal: bool = False
    authorized_operations: None = None

    @property
    def start_offsets(self) -> dict[int, int]:
        """The first offset that can be read, by partition."""
        return {partition.id: partition.start_offset for partition in self.partitions}

    @property
    def next_offsets(self) -> dict[int, int]:
        """The offset that the next record will get, by partition."""
        return {partition.id: partition.next_offset for partition in self.partitions}


@dataclass(frozen=True, slots=True)
class DescribeClusterResult:
    """The synthetic broker as controller and only node."""

    controller: Node
    nodes: list[Node]
    cluster_id: str
    authorized_operations: None = None


def cluster_id(store: Store) -> str:
    """A stable id derived from the root URL: 22 characters of URL-safe base64, like Kafka's cluster
    ids.
    """
    digest = hashlib.sha256(store.url.encode()).digest()[:16]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def node_of(store: Store) -> Node:
    """The synthetic broker of a store."""
    return Node(BROKER_ID, store.url, 0)


def list_topics(
    store: Store, clock: Clock = SYSTEM_CLOCK, topic: str | None = None, timeout: float | None = -1
) -> ClusterMetadata:
    """All topics under the root, or only `topic`. Never creates a topic.

    A topic that cannot be read has its `error` set, and so does `topic` if it does not exist.
    `timeout` is in seconds; negative or None is no limit. Raises Unavailable if the root cannot be
    listed, KafkaException (_TIMED_OUT).
    """

    def read_all() -> list[TopicMetadata]:
        wanted = topic_names(store) if topic is None else [topic]
        return in_parallel(clock, lambda name: _topic_metadata(store, clock, name), wanted)

    found = within(clock, checked_timeout(timeout), read_all)
    # A folder may be that of a deleted topic.
    missing = KafkaError.UNKNOWN_TOPIC_OR_PART
    known = {entry.topic: entry for entry in found if topic is not None or entry.error != missing}
    broker = BrokerMetadata(BROKER_ID, store.url, 0)
    return ClusterMetadata(
        cluster_id(store), {BROKER_ID: broker}, known, orig_broker_name=str(broker)
    )


def describe_topic(store: Store, clock: Clock, topic: str) -> TopicDescription:
    """The topic at its newest version. Raises InvalidConfig (invalid name), UnknownTopic, Corrupt,
    Incompatible, Unavailable.
    """
    log = TopicLog(store, topic, clock, indexed=True)
    log.load()
    head, view, node = log.live_head, definition_of(log), node_of(store)
    partitions = [
        TopicPartitionInfo(partition, node, [node], [node], start, following)
        for partition, (start, following) in enumerate(
            zip(head.start_offsets, head.next_offsets, strict=True)
        )
    ]
    files = log.index.files.values()
    size = sum(file.segment.size for file in files)
    return TopicDescription(
        topic, head.topic_id, partitions, view.schema, view.settings, log.version, len(files), size
    )


def describe_topics(
    store: Store, clock: Clock, topics: Sequence[str]
) -> dict[str, TopicDescription | KafkaException]:
    """Topics at their newest version, by name; in place of a topic, the error that `describe_topic`
    raises.
    """
    return of_each(store, clock, topics, describe_topic)


def _topic_metadata(store: Store, clock: Clock, topic: str) -> TopicMetadata:
    try:
        log = TopicLog(store, topic, clock)
        log.load()
        return TopicMetadata(
            topic, {number: PartitionMetadata(number) for number in range(log.live_head.partitions)}
        )
    except KafkaException as error:
        return TopicMetadata(topic, error=error.error)
