"""The settings of clients, with the names, defaults and ranges of librdkafka 2.16 and Apache Kafka
4.
"""

from __future__ import annotations

from collections.abc import Mapping

from deltaq.config.declare import (
    CODECS,
    DAY_MS,
    INT32_MAX,
    boolean,
    callback,
    choice,
    integer,
    number,
    several,
    string,
)
from deltaq.config.no_effect import NO_EFFECT
from deltaq.config.setting import Setting
from deltaq.partitioner import PARTITIONERS

PARTITIONS_MAX = 10_000
"""Maximum number of partitions of a topic. Bounds the size of log entries: each lists an offset per
partition.
"""

_SHARED = (
    string("bootstrap.servers", "both", None, "metadata.broker.list").means(
        "URL or path of the root of the topics; a path has a slash. Required."
    ),
    string("client.id", "both", "deltaq").means(
        "Name of the client in commits, groups and log lines."
    ),
    boolean("auto.create.topics.enable", "both", True).means(
        "Create a topic on the first produce to it."
    ),
    integer("num.partitions", "both", 1, 1, PARTITIONS_MAX).means(
        "Partitions of an automatically created topic."
    ),
    integer("message.max.bytes", "both", 1_000_000, 1_000, 1_000_000_000).means(
        "Maximum size of a message with key and headers."
    ),
    boolean("large.message.enabled", "both", False).means(
        "Write messages above `message.max.bytes` in pieces, and join pieces when they are read. A "
        "consumer with `false` returns each piece as a message."
    ),
    boolean("maintenance.enable", "both", True).means(
        "Maintain in the background what this client writes: checkpoints, retention, compaction, "
        "clean-up."
    ),
    integer("statistics.interval.ms", "both", 0, 0, DAY_MS).means(
        "Time between calls of `stats_cb`; 0 is never."
    ),
    callback("stats_cb", "both").means(
        "Called in `poll` and similar calls with statistics of a producer or consumer: the fields "
        "of librdkafka's JSON that have a meaning without a broker."
    ),
    Setting("logger", "both", "logger", None).means(
        "Logger that gets the log records of deltaq too while the client is open. The level of the "
        "logger `deltaq` decides which there are."
    ),
    callback("error_cb", "both").means(
        "Called in `poll` and similar calls with a KafkaError: `_TRANSPORT` and "
        "`_ALL_BROKERS_DOWN`, at once and again, while the store does not answer, and of a "
        "producer also if messages were not written."
    ),
)

_OF_PRODUCERS = (
    boolean("enable.idempotence", "producer", False).means(
        "No retry within a producer's life writes a message twice. A `transactional.id` requires "
        "it.",
        effect="always",
    ),
    string("transactional.id", "producer", None).means(
        "Identity of the producer's transactions, across restarts: a new producer with the same id "
        "ends those of the one before. Needed for transactions. Any text of up to 249 bytes; each "
        "other than `A-Z a-z 0-9 . _ -` counts as 3."
    ),
    integer("transaction.timeout.ms", "producer", 60_000, 1_000, INT32_MAX).means(
        "Longest time from the begin of a transaction to its commit, which is refused later. At "
        "most 900000."
    ),
    number("linger.ms", "producer", 5.0, 0, 900_000, "queue.buffering.max.ms").means(
        "Maximum wait for more messages before a commit. It is extended while other processes write"
        " the topic. Must be below `message.timeout.ms`."
    ),
    integer("batch.size", "producer", 1_000_000, 1, INT32_MAX).means(
        "Bytes of a topic that end the wait of `linger.ms`."
    ),
    integer("batch.num.messages", "producer", 10_000, 1, 1_000_000).means(
        "Messages of a topic that end the wait of `linger.ms`."
    ),
    integer("queue.buffering.max.messages", "producer", 100_000, 0, INT32_MAX).means(
        "Maximum messages in the buffer; 0 is no limit."
    ),
    integer("queue.buffering.max.kbytes", "producer", 1_048_576, 1, INT32_MAX).means(
        "Maximum size of the buffer in KiB."
    ),
    integer("max.block.ms", "producer", 0, 0, INT32_MAX).means(
        "Time for which `produce` waits while the buffer is full, as in Kafka's Java client, "
        "running due callbacks meanwhile. Then, or at once if it is 0, it raises QueueFull."
    ),
    integer("message.timeout.ms", "producer", 300_000, 0, INT32_MAX, "delivery.timeout.ms").means(
        "Time limit for the delivery of a message, after which it fails; 0 is no limit."
    ),
    boolean("auto.register.schemas", "producer", True).means(
        "Change the schema of a typed topic to that of a `Topic`, if the rules of evolution allow "
        "it. With `false`, messages of another schema are refused."
    ),
    integer("acks", "producer", -1, -1, 1_000, "request.required.acks", all="-1").means(
        "As with `all`, a message is acknowledged after its commit.", effect="always"
    ),
    choice("compression.type", "producer", "none", CODECS, "compression.codec").means(
        "Codec of the data files."
    ),
    integer("compression.level", "producer", -1, -1, 12).means(
        "Level of the codec; -1 is the codec's default."
    ),
    choice("partitioner", "producer", "consistent_random", PARTITIONERS).means(
        "Chooses the partition of a message."
    ),
    integer("sticky.partitioning.linger.ms", "producer", 10, 0, 900_000).means(
        "Time for which messages without a key go to the same partition; 0 distributes them one by "
        "one. The default is twice `linger.ms`."
    ),
    choice("deltaq.group.commit", "producer", "auto", ("auto", "true", "false")).means(
        "Whether processes that write a busy topic concurrently commit for each other: one adds the"
        " files that others have uploaded to the log. `auto`: on object stores only. If one "
        "producer of a process sets `false`, it is off for all producers of that process that "
        "write the topic."
    ),
    boolean("delivery.report.only.error", "producer", False).means("Report only failed messages."),
    integer("offsets.retention.minutes", "producer", 10_080, 1, INT32_MAX).means(
        "Time for which a group without members keeps its committed offsets, in minutes. The "
        "shortest value among the processes that maintain the root applies: set the same for all "
        "producers and `python -m deltaq.maintenance`."
    ),
    integer("transactional.id.expiration.ms", "producer", 604_800_000, 1, INT32_MAX).means(
        "Time after which a `transactional.id` that has committed nothing expires: the producer "
        "that still has it is fenced, and what was kept for it is removed. The shortest value among"
        " the processes that maintain the root applies, as with `offsets.retention.minutes`."
    ),
    callback("on_delivery", "producer").means(
        "Called with (error, message) for messages that were produced without a callback."
    ),
)

_OF_CONSUMERS = (
    string("group.id", "consumer", None).means("The consumer group. Required."),
    choice(
        "auto.offset.reset",
        "consumer",
        "latest",
        ("earliest", "latest", "error"),
        smallest="earliest",
        beginning="earliest",
        largest="latest",
        end="latest",
    ).means(
        "Where to start without a committed offset. `smallest`, `beginning`, `largest` and `end` "
        "are accepted as well."
    ),
    boolean("enable.auto.commit", "consumer", True, "auto.commit.enable").means(
        "Commit stored offsets in the background."
    ),
    integer("auto.commit.interval.ms", "consumer", 5_000, 0, DAY_MS).means(
        "Time between automatic commits; 0 is never."
    ),
    boolean("enable.auto.offset.store", "consumer", True).means(
        "Store the offset of a message when it is returned."
    ),
    integer("session.timeout.ms", "consumer", 45_000, 1, 3_600_000).means(
        "Time without a heartbeat after which a member counts as dead. Must be above "
        "`heartbeat.interval.ms`, and not above `max.poll.interval.ms`."
    ),
    integer("heartbeat.interval.ms", "consumer", 3_000, 1, 3_600_000).means(
        "Time between two heartbeats. Must be below `session.timeout.ms`."
    ),
    integer("max.poll.interval.ms", "consumer", 300_000, 1, DAY_MS).means(
        "Maximum time between two polls; after it, the member leaves the group. Not below "
        "`session.timeout.ms`."
    ),
    several(
        "partition.assignment.strategy",
        "consumer",
        ("range", "roundrobin"),
        ("range", "roundrobin", "sticky", "cooperative-sticky"),
        functions=True,
    ).means(
        "Assignors, the preferred one first: names, separated by commas or in a list, or functions "
        "of your own, which other members know by their `__name__`. `cooperative-sticky` stands "
        "alone."
    ),
    string("group.instance.id", "consumer").means(
        "The name of this member. A member with a name keeps its partitions while it is away, for "
        "up to `session.timeout.ms`. Two consumers of a group must not have the same name: the "
        "newer one replaces the other."
    ),
    choice(
        "isolation.level", "consumer", "read_committed", ("read_uncommitted", "read_committed")
    ).means(
        "Both values show committed records only: a topic holds no others, and an open transaction "
        "holds up no reader.",
        effect="always",
    ),
    integer("fetch.wait.max.ms", "consumer", 500, 0, 300_000).means(
        "Maximum pause between two checks for new messages."
    ),
    integer("fetch.max.bytes", "consumer", 52_428_800, 0, 2_147_483_135).means(
        "Approximate number of bytes of a data file per fetch. Must not be below "
        "`message.max.bytes`."
    ),
    integer("queued.max.messages.kbytes", "consumer", 65_536, 1, 2_097_151).means(
        "Maximum size of records read ahead, in KiB."
    ),
    boolean("enable.partition.eof", "consumer", False).means(
        "Report the end of a partition with _PARTITION_EOF."
    ),
    boolean("check.crcs", "consumer", False).means(
        "The checksums of all data are verified.", effect="always"
    ),
    boolean("allow.auto.create.topics", "consumer", False).means(
        "Create a missing topic on the first read. A producer with `false` does not create topics "
        "either."
    ),
    integer("topic.metadata.refresh.interval.ms", "consumer", 300_000, -1, 3_600_000).means(
        "Time between two checks for new topics that match a subscribed pattern; -1 is never."
    ),
    callback("on_commit", "consumer").means("Called with (error, partitions) after a commit."),
)

_OF_SHARE_CONSUMERS = (
    choice(
        "share.acknowledgement.mode", "share consumer", "implicit", ("implicit", "explicit")
    ).means(
        "`implicit`: the messages of a `poll` are accepted by the next `poll` or commit. "
        "`explicit`: each is acknowledged by `acknowledge` before the next `poll`."
    ),
    integer("max.poll.records", "share consumer", 500, 1, INT32_MAX).means(
        "Most messages that one `poll` takes."
    ),
)


CLIENT_SETTINGS: Mapping[str, Setting] = {
    s.name: s for s in (*_SHARED, *_OF_PRODUCERS, *_OF_CONSUMERS, *_OF_SHARE_CONSUMERS, *NO_EFFECT)
}
"""Client settings by name; each lists its aliases. `store.*` is not included: the store checks
these settings.
"""
