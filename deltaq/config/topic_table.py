"""The settings of topics, with the names, defaults and ranges of Apache Kafka 4."""

from __future__ import annotations

from collections.abc import Mapping

from deltaq.config.client_table import PARTITIONS_MAX
from deltaq.config.declare import (
    CODECS,
    DAY_MS,
    INT32_MAX,
    INT64_MAX,
    boolean,
    choice,
    integer,
    number,
    several,
    string,
    without_effect,
)
from deltaq.config.setting import Setting

_TOPIC_ROWS = (
    integer("partitions", "topic", 1, 1, PARTITIONS_MAX).means(
        "Number of partitions. It can grow, but not shrink."
    ),
    integer("retention.ms", "topic", 604_800_000, -1, INT64_MAX).means(
        "Age at which messages are removed; -1 is never."
    ),
    integer("retention.bytes", "topic", -1, -1, INT64_MAX).means(
        "Size of a partition above which its oldest messages are removed; -1 is no limit."
    ),
    several("cleanup.policy", "topic", ("delete",), ("delete", "compact"), may_be_empty=True).means(
        "`delete` applies retention; `compact` keeps only the newest message of each key; both can "
        "be combined. Without either, all messages are kept."
    ),
    integer("delete.retention.ms", "topic", DAY_MS, 0, INT64_MAX).means(
        "Time for which key compaction keeps a tombstone."
    ),
    integer("min.compaction.lag.ms", "topic", 0, 0, INT64_MAX).means(
        "Minimum age of a message for key compaction."
    ),
    number("min.cleanable.dirty.ratio", "topic", 0.5, 0, 1).means(
        "Share of uncompacted data in a topic at which key compaction starts."
    ),
    integer("max.compaction.lag.ms", "topic", INT64_MAX, 1, INT64_MAX).means(
        "Age of a message at which key compaction starts, regardless of "
        "`min.cleanable.dirty.ratio`."
    ),
    integer("segment.bytes", "topic", 134_217_728, 1_048_576, INT32_MAX).means(
        "Approximate size of the data files that compaction writes. The default is below Kafka's 1 "
        "GiB because files are built in memory."
    ),
    integer("file.delete.delay.ms", "topic", DAY_MS, 0, INT64_MAX).means(
        "Time for which a data file is kept after it has left the topic, for readers with an older "
        "state of the log. A value below a day, as Kafka's 60000, counts as a day, and one below "
        "`metadata.max.retention.ms` as that."
    ),
    integer("metadata.max.retention.ms", "topic", DAY_MS, DAY_MS, INT64_MAX).means(
        "Age at which log entries that a checkpoint replaces are removed. In a log of more than "
        "100,000 entries, the oldest are removed sooner; the newest 1,000 are always kept."
    ),
    integer("max.message.bytes", "topic", 1_048_588, 0, INT32_MAX).means(
        "Maximum size of a message with key and headers."
    ),
    choice(
        "compression.type", "topic", "producer", ("producer", *CODECS), uncompressed="none"
    ).means("Codec of the data files; `producer` keeps the codec of the producer."),
    choice("message.timestamp.type", "topic", "CreateTime", ("CreateTime", "LogAppendTime")).means(
        "Timestamp of a message: `CreateTime` is set by the producer, `LogAppendTime` is the time "
        "of the commit."
    ),
    *without_effect(
        "Files are rolled and merged by size: see `segment.bytes`.",
        integer("segment.ms", "topic", 604_800_000, 1, INT64_MAX),
        integer("segment.jitter.ms", "topic", 0, 0, INT64_MAX),
        integer("segment.index.bytes", "topic", 10_485_760, 4, INT32_MAX),
        integer("index.interval.bytes", "topic", 4_096, 0, INT32_MAX),
        boolean("preallocate", "topic", False),
    ),
    *without_effect(
        "Every message is durable before it is acknowledged.",
        integer("flush.messages", "topic", INT64_MAX, 1, INT64_MAX),
        integer("flush.ms", "topic", INT64_MAX, 0, INT64_MAX),
    ),
    *without_effect(
        "The store replicates the data.",
        integer("min.insync.replicas", "topic", 1, 1, INT32_MAX),
        boolean("unclean.leader.election.enable", "topic", False),
        string("leader.replication.throttled.replicas", "topic", ""),
        string("follower.replication.throttled.replicas", "topic", ""),
    ),
    *without_effect(
        "All data is in the store, without tiers.",
        boolean("remote.storage.enable", "topic", False),
        boolean("remote.log.copy.disable", "topic", False),
        boolean("remote.log.delete.on.disable", "topic", False),
        integer("local.retention.ms", "topic", -2, -2, INT64_MAX),
        integer("local.retention.bytes", "topic", -2, -2, INT64_MAX),
    ),
    *without_effect(
        "The producer sets the level: see `compression.level`.",
        integer("compression.gzip.level", "topic", -1, -1, 9),
        integer("compression.lz4.level", "topic", 9, 1, 17),
        integer("compression.zstd.level", "topic", 3, -131_072, 22),
    ),
    *without_effect(
        "Timestamps are not checked.",
        integer("message.timestamp.before.max.ms", "topic", INT64_MAX, 0, INT64_MAX),
        integer("message.timestamp.after.max.ms", "topic", 3_600_000, 0, INT64_MAX),
        integer("message.timestamp.difference.max.ms", "topic", INT64_MAX, 0, INT64_MAX),
        string("message.format.version", "topic"),
        boolean("message.downconversion.enable", "topic", True),
    ),
)

TOPIC_SETTINGS: Mapping[str, Setting] = {s.name: s for s in _TOPIC_ROWS}
"""Topic settings by name; as table properties they have the prefix `deltaq.`."""
