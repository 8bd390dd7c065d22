"""The settings of clients, with the names, defaults and ranges of librdkafka 2.16 and Apache Kafka 4."""

from __future__ import annotations

from collections.abc import Mapping

from deltaq.config.declare import CODECS, DAY_MS, INT32_MAX, always, boolean, callback, choice, integer, string
from deltaq.config.no_effect import NO_EFFECT
from deltaq.config.setting import Setting
from deltaq.partitioner import PARTITIONERS

PARTITIONS_MAX = 10_000
"""Maximum number of partitions of a topic. Bounds the size of log entries: each lists an offset per partition."""

_SHARED = (
    string(
        "bootstrap.servers",
        "both",
        None,
        "URL or path of the root of the topics. Required.",
        "metadata.broker.list",
    ),
    string("client.id", "both", "deltaq", "Name of the client in commits, groups and log lines."),
    boolean("auto.create.topics.enable", "both", True, "Create a topic on the first produce to it."),
    integer("num.partitions", "both", 1, 1, PARTITIONS_MAX, "Partitions of an automatically created topic."),
    integer(
        "message.max.bytes", "both", 1_000_000, 1_000, 1_000_000_000, "Maximum size of a message with key and headers."
    ),
    boolean(
        "maintenance.enable",
        "both",
        True,
        "Maintain in the background what this client writes: checkpoints, retention, compaction, clean-up.",
    ),
    callback(
        "error_cb",
        "both",
        "Called in `poll` and similar calls with a KafkaError if the store fails or messages were not written.",
    ),
)

_OF_PRODUCERS = (
    always(
        boolean("enable.idempotence", "producer", False, "No retry within a producer's life writes a message twice.")
    ),
    string("transactional.id", "producer", None, "Refused: this version has no transactions."),
    Setting(
        "linger.ms",
        "producer",
        "float",
        5.0,
        "Maximum wait for more messages before a commit. It is extended while other processes write the topic. Must be "
        "below `message.timeout.ms`.",
        0,
        900_000,
        (),
        ("queue.buffering.max.ms",),
    ),
    integer("batch.size", "producer", 1_000_000, 1, INT32_MAX, "Bytes of a topic that end the wait of `linger.ms`."),
    integer(
        "batch.num.messages", "producer", 10_000, 1, 1_000_000, "Messages of a topic that end the wait of `linger.ms`."
    ),
    integer(
        "queue.buffering.max.messages",
        "producer",
        100_000,
        0,
        INT32_MAX,
        "Maximum messages in the buffer; 0 is no limit.",
    ),
    integer("queue.buffering.max.kbytes", "producer", 1_048_576, 1, INT32_MAX, "Maximum size of the buffer in KiB."),
    integer(
        "message.timeout.ms",
        "producer",
        300_000,
        0,
        INT32_MAX,
        "Time limit for the delivery of a message, after which it fails; 0 is no limit.",
        "delivery.timeout.ms",
    ),
    always(
        integer(
            "acks",
            "producer",
            -1,
            -1,
            1_000,
            "As with `all`, a message is acknowledged after its commit.",
            "request.required.acks",
            all="-1",
        )
    ),
    choice("compression.type", "producer", "none", CODECS, "Codec of the data files.", "compression.codec"),
    integer("compression.level", "producer", -1, -1, 12, "Level of the codec; -1 is the codec's default."),
    choice(
        "partitioner",
        "producer",
        "consistent_random",
        PARTITIONERS,
        "Chooses the partition of a message.",
    ),
    integer(
        "sticky.partitioning.linger.ms",
        "producer",
        10,
        0,
        900_000,
        "Time for which messages without a key go to the same partition; 0 distributes them one by one. The default is "
        "twice `linger.ms`.",
    ),
    choice(
        "deltaq.group.commit",
        "producer",
        "auto",
        ("auto", "true", "false"),
        "Whether processes that write a busy topic concurrently commit for each other: one adds the files that others "
        "have uploaded to the log. `auto`: on object stores only. If one producer of a process sets `false`, it is off "
        "for all producers of that process that write the topic.",
    ),
    boolean("delivery.report.only.error", "producer", False, "Report only failed messages."),
    integer(
        "offsets.retention.minutes",
        "producer",
        10_080,
        1,
        INT32_MAX,
        "Time for which a group without members keeps its committed offsets, in minutes. The shortest value among the "
        "processes that maintain the root applies: set the same for all producers and `python -m deltaq.maintenance`.",
    ),
    callback(
        "on_delivery", "producer", "Called with (error, message) for messages that were produced without a callback."
    ),
)

_OF_CONSUMERS = (
    string("group.id", "consumer", None, "The consumer group. Required."),
    choice(
        "auto.offset.reset",
        "consumer",
        "latest",
        ("earliest", "latest", "error"),
        "Where to start without a committed offset. `smallest`, `beginning`, `largest` and `end` are accepted as well.",
        smallest="earliest",
        beginning="earliest",
        largest="latest",
        end="latest",
    ),
    boolean("enable.auto.commit", "consumer", True, "Commit stored offsets in the background.", "auto.commit.enable"),
    integer("auto.commit.interval.ms", "consumer", 5_000, 0, DAY_MS, "Time between automatic commits; 0 is never."),
    boolean("enable.auto.offset.store", "consumer", True, "Store the offset of a message when it is returned."),
    integer(
        "session.timeout.ms",
        "consumer",
        45_000,
        1,
        3_600_000,
        "Time without a heartbeat after which a member counts as dead. Must be above "
        "`heartbeat.interval.ms`, and not above `max.poll.interval.ms`.",
    ),
    integer(
        "heartbeat.interval.ms",
        "consumer",
        3_000,
        1,
        3_600_000,
        "Time between two heartbeats. Must be below `session.timeout.ms`.",
    ),
    integer(
        "max.poll.interval.ms",
        "consumer",
        300_000,
        1,
        DAY_MS,
        "Maximum time between two polls; after it, the member leaves the group. Not below `session.timeout.ms`.",
    ),
    Setting(
        "partition.assignment.strategy",
        "consumer",
        "list",
        ("range", "roundrobin"),
        "Assignors, the preferred one first.",
        choices=("range", "roundrobin", "sticky", "cooperative-sticky"),
    ),
    always(
        choice(
            "isolation.level",
            "consumer",
            "read_committed",
            ("read_uncommitted", "read_committed"),
            "As with `read_committed`, only committed records are visible.",
        )
    ),
    integer("fetch.wait.max.ms", "consumer", 500, 0, 300_000, "Maximum pause between two checks for new messages."),
    integer(
        "fetch.max.bytes",
        "consumer",
        52_428_800,
        0,
        2_147_483_135,
        "Approximate number of bytes of a data file per fetch. Must not be below `message.max.bytes`.",
    ),
    integer(
        "queued.max.messages.kbytes",
        "consumer",
        65_536,
        1,
        2_097_151,
        "Maximum size of records read ahead, in KiB.",
    ),
    boolean("enable.partition.eof", "consumer", False, "Report the end of a partition with _PARTITION_EOF."),
    always(boolean("check.crcs", "consumer", False, "The checksums of all data are verified.")),
    boolean(
        "allow.auto.create.topics",
        "consumer",
        False,
        "Create a missing topic on the first read. A producer with `false` does not create topics either.",
    ),
    integer(
        "topic.metadata.refresh.interval.ms",
        "consumer",
        300_000,
        -1,
        3_600_000,
        "Time between two checks for new topics that match a subscribed pattern; -1 is never.",
    ),
    callback("on_commit", "consumer", "Called with (error, partitions) after a commit."),
)


CLIENT_SETTINGS: Mapping[str, Setting] = {s.name: s for s in (*_SHARED, *_OF_PRODUCERS, *_OF_CONSUMERS, *NO_EFFECT)}
"""Client settings by name; each lists its aliases. `store.*` is not included: the store checks these settings."""
