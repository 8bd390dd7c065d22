"""All settings, with the names, defaults and ranges of librdkafka 2.16 and Apache Kafka 4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from deltaq.config.setting import Clients, Setting
from deltaq.partitioner import PARTITIONERS

__all__ = ["CLIENT_SETTINGS", "PARTITIONS_MAX", "TOPIC_SETTINGS", "config_table"]

PARTITIONS_MAX = 10_000
"""Maximum number of partitions of a topic. Bounds the size of log entries: each lists an offset per partition."""

_BOTH: Clients = "both"
_PRODUCER: Clients = "producer"
_CONSUMER: Clients = "consumer"
_TOPIC: Clients = "topic"
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_DAY_MS = 86_400_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def _boolean(name: str, clients: Clients, default: bool, doc: str = "", *aliases: str) -> Setting:
    return Setting(name, clients, "boolean", default, doc, choices=("true", "false"), aliases=aliases)


def _integer(
    name: str, clients: Clients, default: int, low: int, high: int, doc: str = "", *aliases: str, **words: str
) -> Setting:
    return Setting(name, clients, "integer", default, doc, low, high, aliases=aliases, synonyms=words)


def _string(name: str, clients: Clients, default: str | None = None, doc: str = "", *aliases: str) -> Setting:
    return Setting(name, clients, "string", default, doc, aliases=aliases)


def _choice(
    name: str, clients: Clients, default: str, choices: tuple[str, ...], doc: str = "", *aliases: str, **words: str
) -> Setting:
    return Setting(name, clients, "choice", default, doc, choices=choices, aliases=aliases, synonyms=words)


def _callable(name: str, clients: Clients, doc: str) -> Setting:
    return Setting(name, clients, "callable", None, doc)


def _without_effect(reason: str, *settings: Setting) -> tuple[Setting, ...]:
    return tuple(replace(setting, doc=reason, effect="none") for setting in settings)


def _always(setting: Setting) -> Setting:
    return replace(setting, effect="always")


_SHARED = (
    _string(
        "bootstrap.servers",
        _BOTH,
        None,
        "URL or path of the root of the topics. Required.",
        "metadata.broker.list",
    ),
    _string("client.id", _BOTH, "deltaq", "Name of the client in commits, groups and log lines."),
    _boolean("auto.create.topics.enable", _BOTH, True, "Create a topic on the first produce to it."),
    _integer("num.partitions", _BOTH, 1, 1, PARTITIONS_MAX, "Partitions of an automatically created topic."),
    _integer(
        "message.max.bytes", _BOTH, 1_000_000, 1_000, 1_000_000_000, "Maximum size of a message with key and headers."
    ),
    _boolean(
        "maintenance.enable",
        _BOTH,
        True,
        "Maintain in the background what this client writes: checkpoints, retention, compaction, clean-up.",
    ),
    _callable(
        "error_cb",
        _BOTH,
        "Called in `poll` and similar calls with a KafkaError if the store fails or messages were not written.",
    ),
)

_OF_PRODUCERS = (
    _always(
        _boolean("enable.idempotence", _PRODUCER, False, "No retry within a producer's life writes a message twice.")
    ),
    _string("transactional.id", _PRODUCER, None, "Refused: this version has no transactions."),
    Setting(
        "linger.ms",
        _PRODUCER,
        "float",
        5.0,
        "Maximum wait for more messages before a commit. It is extended while other processes write the topic.",
        0,
        900_000,
        (),
        ("queue.buffering.max.ms",),
    ),
    _integer("batch.size", _PRODUCER, 1_000_000, 1, _INT32_MAX, "Bytes of a topic that end the wait of `linger.ms`."),
    _integer(
        "batch.num.messages", _PRODUCER, 10_000, 1, 1_000_000, "Messages of a topic that end the wait of `linger.ms`."
    ),
    _integer(
        "queue.buffering.max.messages",
        _PRODUCER,
        100_000,
        0,
        _INT32_MAX,
        "Maximum messages in the buffer; 0 is no limit.",
    ),
    _integer("queue.buffering.max.kbytes", _PRODUCER, 1_048_576, 1, _INT32_MAX, "Maximum size of the buffer in KiB."),
    _integer(
        "message.timeout.ms",
        _PRODUCER,
        300_000,
        0,
        _INT32_MAX,
        "Time limit for the delivery of a message, after which it fails; 0 is no limit.",
        "delivery.timeout.ms",
    ),
    _always(
        _integer(
            "acks",
            _PRODUCER,
            -1,
            -1,
            1_000,
            "As with `all`, a message is acknowledged after its commit.",
            "request.required.acks",
            all="-1",
        )
    ),
    _choice("compression.type", _PRODUCER, "none", _CODECS, "Codec of the data files.", "compression.codec"),
    _integer("compression.level", _PRODUCER, -1, -1, 12, "Level of the codec; -1 is the codec's default."),
    _choice(
        "partitioner", _PRODUCER, "consistent_random", PARTITIONERS, "Function that chooses the partition of a message."
    ),
    _integer(
        "sticky.partitioning.linger.ms",
        _PRODUCER,
        10,
        0,
        900_000,
        "Time for which messages without a key go to the same partition; 0 distributes them one by one. The default is "
        "twice `linger.ms`.",
    ),
    _choice(
        "deltaq.group.commit",
        _PRODUCER,
        "auto",
        ("auto", "true", "false"),
        "Whether processes that write a busy topic concurrently commit for each other: one adds the files that others "
        "have uploaded to the log. `auto`: on object stores only. If one producer of a process sets `false`, it is off "
        "for all producers of that process that write the topic.",
    ),
    _boolean("delivery.report.only.error", _PRODUCER, False, "Report only failed messages."),
    _integer(
        "offsets.retention.minutes",
        _PRODUCER,
        10_080,
        1,
        _INT32_MAX,
        "Time for which a group without members keeps its committed offsets, in minutes. The shortest value among the "
        "processes that maintain the root applies: set the same for all producers and `python -m deltaq.maintenance`.",
    ),
    _callable(
        "on_delivery", _PRODUCER, "Called with (error, message) for messages that were produced without a callback."
    ),
)

_OF_CONSUMERS = (
    _string("group.id", _CONSUMER, None, "The consumer group. Required."),
    _choice(
        "auto.offset.reset",
        _CONSUMER,
        "latest",
        ("earliest", "latest", "error"),
        "Where to start without a committed offset. `smallest`, `beginning`, `largest` and `end` are accepted as well.",
        smallest="earliest",
        beginning="earliest",
        largest="latest",
        end="latest",
    ),
    _boolean("enable.auto.commit", _CONSUMER, True, "Commit stored offsets in the background.", "auto.commit.enable"),
    _integer("auto.commit.interval.ms", _CONSUMER, 5_000, 0, _DAY_MS, "Time between automatic commits; 0 is never."),
    _boolean("enable.auto.offset.store", _CONSUMER, True, "Store the offset of a message when it is returned."),
    _integer(
        "session.timeout.ms",
        _CONSUMER,
        45_000,
        1,
        3_600_000,
        "Time without a heartbeat after which a member counts as dead.",
    ),
    _integer("heartbeat.interval.ms", _CONSUMER, 3_000, 1, 3_600_000, "Time between two heartbeats."),
    _integer(
        "max.poll.interval.ms",
        _CONSUMER,
        300_000,
        1,
        _DAY_MS,
        "Maximum time between two polls; after it, the member leaves the group.",
    ),
    Setting(
        "partition.assignment.strategy",
        _CONSUMER,
        "list",
        ("range", "roundrobin"),
        "Assignors, the preferred one first.",
        choices=("range", "roundrobin", "sticky", "cooperative-sticky"),
    ),
    _always(
        _choice(
            "isolation.level",
            _CONSUMER,
            "read_committed",
            ("read_uncommitted", "read_committed"),
            "As with `read_committed`, only committed records are visible.",
        )
    ),
    _integer("fetch.wait.max.ms", _CONSUMER, 500, 0, 300_000, "Maximum pause between two checks for new messages."),
    _integer(
        "fetch.max.bytes",
        _CONSUMER,
        52_428_800,
        0,
        2_147_483_135,
        "Approximate number of bytes of a data file per fetch.",
    ),
    _integer(
        "queued.max.messages.kbytes", _CONSUMER, 65_536, 1, 2_097_151, "Maximum size of the records read ahead, in KiB."
    ),
    _boolean("enable.partition.eof", _CONSUMER, False, "Report the end of a partition with _PARTITION_EOF."),
    _always(_boolean("check.crcs", _CONSUMER, False, "The checksums of all data are verified.")),
    _boolean(
        "allow.auto.create.topics",
        _CONSUMER,
        False,
        "Create a missing topic on the first read. A producer with `false` does not create topics either.",
    ),
    _integer(
        "topic.metadata.refresh.interval.ms",
        _CONSUMER,
        300_000,
        -1,
        3_600_000,
        "Time between two checks for new topics that match a subscribed pattern; -1 is never.",
    ),
    _callable("on_commit", _CONSUMER, "Called with (error, partitions) after a commit."),
)

_NO_BROKER = "deltaq connects to a store, not to brokers: see the settings `store.*`."
_NO_LIBRARY = "Specific to the implementation of librdkafka."
_NO_METADATA = "There is no broker metadata to refresh: see `topic.metadata.refresh.interval.ms`."
_LOGGING = "Use Python's logging: all loggers are below `deltaq`."
_NO_STATISTICS = "deltaq emits no statistics."
_RETRIES = "deltaq retries until `message.timeout.ms`, with its own back-off."
_FETCHING = "`fetch.max.bytes` and `queued.max.messages.kbytes` control fetching."
_MEMBERSHIP = "deltaq has one group protocol, without a coordinator."
_NO_TRANSACTIONS = "This version has no transactions."

_IGNORED = (
    *_without_effect(
        _NO_BROKER,
        _integer("socket.timeout.ms", _BOTH, 60_000, 10, 300_000),
        _integer("socket.blocking.max.ms", _BOTH, 1_000, 1, 60_000),
        _integer("socket.send.buffer.bytes", _BOTH, 0, 0, 100_000_000),
        _integer("socket.receive.buffer.bytes", _BOTH, 0, 0, 100_000_000),
        _boolean("socket.keepalive.enable", _BOTH, False),
        _boolean("socket.nagle.disable", _BOTH, True),
        _integer("socket.max.fails", _BOTH, 1, 0, 1_000_000),
        _integer("socket.connection.setup.timeout.ms", _BOTH, 30_000, 1_000, _INT32_MAX),
        _integer("broker.address.ttl", _BOTH, 1_000, 0, _DAY_MS),
        _choice("broker.address.family", _BOTH, "any", ("any", "v4", "v6")),
        _string("broker.version.fallback", _BOTH, "0.10.0"),
        _integer("connections.max.idle.ms", _BOTH, 0, 0, _INT32_MAX),
        _boolean("enable.sparse.connections", _BOTH, True),
        _integer("reconnect.backoff.ms", _BOTH, 100, 0, 3_600_000),
        _integer("reconnect.backoff.max.ms", _BOTH, 10_000, 0, 3_600_000),
        _integer("reconnect.backoff.jitter.ms", _BOTH, 0, 0, 3_600_000),
        _boolean("api.version.request", _BOTH, True),
        _integer("api.version.request.timeout.ms", _BOTH, 10_000, 1, 300_000),
        _integer("api.version.fallback.ms", _BOTH, 0, 0, 604_800_000),
        _choice(
            "client.dns.lookup",
            _BOTH,
            "use_all_dns_ips",
            ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        ),
        _string("client.rack", _BOTH),
        _string("client.software.name", _BOTH),
        _string("client.software.version", _BOTH),
        _boolean("enable.metrics.push", _BOTH, True),
        _integer("receive.message.max.bytes", _BOTH, 100_000_000, 1_000, _INT32_MAX),
        _integer("request.timeout.ms", _PRODUCER, 30_000, 1, 900_000),
        _callable("throttle_cb", _BOTH, ""),
    ),
    *_without_effect(
        _NO_BROKER,
        _choice("security.protocol", _BOTH, "plaintext", ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
        _string("ssl.cipher.suites", _BOTH),
        _string("ssl.curves.list", _BOTH),
        _string("ssl.sigalgs.list", _BOTH),
        _string("ssl.key.location", _BOTH),
        _string("ssl.key.password", _BOTH),
        _string("ssl.key.pem", _BOTH),
        _string("ssl.certificate.location", _BOTH),
        _string("ssl.certificate.pem", _BOTH),
        _string("ssl.ca.location", _BOTH),
        _string("ssl.ca.pem", _BOTH),
        _string("ssl.ca.certificate.stores", _BOTH, "Root"),
        _string("ssl.crl.location", _BOTH),
        _string("ssl.keystore.location", _BOTH),
        _string("ssl.keystore.password", _BOTH),
        _string("ssl.providers", _BOTH),
        _string("ssl.engine.location", _BOTH),
        _string("ssl.engine.id", _BOTH, "dynamic"),
        _boolean("enable.ssl.certificate.verification", _BOTH, True),
        _choice("ssl.endpoint.identification.algorithm", _BOTH, "https", ("none", "https")),
        _string("https.ca.location", _BOTH),
        _string("https.ca.pem", _BOTH),
    ),
    *_without_effect(
        _NO_BROKER,
        _string("sasl.mechanisms", _BOTH, "GSSAPI", "", "sasl.mechanism"),
        _string("sasl.username", _BOTH),
        _string("sasl.password", _BOTH),
        _string("sasl.kerberos.service.name", _BOTH, "kafka"),
        _string("sasl.kerberos.principal", _BOTH, "kafkaclient"),
        _string("sasl.kerberos.kinit.cmd", _BOTH),
        _string("sasl.kerberos.keytab", _BOTH),
        _integer("sasl.kerberos.min.time.before.relogin", _BOTH, 60_000, 0, _DAY_MS),
        _boolean("enable.sasl.oauthbearer.unsecure.jwt", _BOTH, False),
        _string("sasl.oauthbearer.config", _BOTH),
        _choice("sasl.oauthbearer.method", _BOTH, "default", ("default", "oidc")),
        _string("sasl.oauthbearer.client.id", _BOTH, None, "", "sasl.oauthbearer.client.credentials.client.id"),
        _string("sasl.oauthbearer.client.secret", _BOTH, None, "", "sasl.oauthbearer.client.credentials.client.secret"),
        _string("sasl.oauthbearer.scope", _BOTH),
        _string("sasl.oauthbearer.extensions", _BOTH),
        _string("sasl.oauthbearer.token.endpoint.url", _BOTH),
        _string("sasl.oauthbearer.sub.claim.name", _BOTH, "sub"),
        _choice(
            "sasl.oauthbearer.grant.type",
            _BOTH,
            "client_credentials",
            ("client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        ),
        _choice("sasl.oauthbearer.assertion.algorithm", _BOTH, "RS256", ("RS256", "ES256")),
        _string("sasl.oauthbearer.assertion.private.key.file", _BOTH),
        _string("sasl.oauthbearer.assertion.private.key.passphrase", _BOTH),
        _string("sasl.oauthbearer.assertion.private.key.pem", _BOTH),
        _string("sasl.oauthbearer.assertion.file", _BOTH),
        _string("sasl.oauthbearer.assertion.jwt.template.file", _BOTH),
        _string("sasl.oauthbearer.assertion.claim.aud", _BOTH),
        _string("sasl.oauthbearer.assertion.claim.iss", _BOTH),
        _string("sasl.oauthbearer.assertion.claim.sub", _BOTH),
        _integer("sasl.oauthbearer.assertion.claim.exp.seconds", _BOTH, 300, 1, _INT32_MAX),
        _integer("sasl.oauthbearer.assertion.claim.nbf.seconds", _BOTH, 60, 0, _INT32_MAX),
        _boolean("sasl.oauthbearer.assertion.claim.jti.include", _BOTH, False),
        _choice("sasl.oauthbearer.metadata.authentication.type", _BOTH, "none", ("none", "azure_imds", "aws_iam")),
        _callable("oauth_cb", _BOTH, ""),
    ),
    *_without_effect(
        _NO_METADATA,
        _choice("metadata.recovery.strategy", _BOTH, "rebootstrap", ("none", "rebootstrap")),
        _integer("metadata.recovery.rebootstrap.trigger.ms", _BOTH, 300_000, 0, _INT32_MAX),
        _integer("metadata.request.timeout.ms", _BOTH, 60_000, 10, 900_000),
        _integer("metadata.max.age.ms", _BOTH, 900_000, 1, _DAY_MS),
        _integer("topic.metadata.refresh.fast.interval.ms", _BOTH, 100, 1, 60_000),
        _integer("topic.metadata.refresh.fast.cnt", _BOTH, 10, 0, 1_000),
        _boolean("topic.metadata.refresh.sparse", _BOTH, True),
        _integer("topic.metadata.propagation.max.ms", _BOTH, 30_000, 0, 3_600_000),
        _string("topic.blacklist", _BOTH),
    ),
    *_without_effect(
        _LOGGING,
        _string("debug", _BOTH),
        _integer("log_level", _BOTH, 6, 0, 7),
        _boolean("log.queue", _BOTH, False),
        _boolean("log.thread.name", _BOTH, True),
        _boolean("log.connection.close", _BOTH, True),
        Setting("logger", _BOTH, "logger", None, ""),
    ),
    *_without_effect(
        _NO_STATISTICS,
        _integer("statistics.interval.ms", _BOTH, 0, 0, _DAY_MS),
        _callable("stats_cb", _BOTH, ""),
    ),
    *_without_effect(_NO_TRANSACTIONS, _integer("transaction.timeout.ms", _PRODUCER, 60_000, 1_000, _INT32_MAX)),
    *_without_effect(
        _NO_LIBRARY,
        _string("builtin.features", _BOTH),
        _string("plugin.library.paths", _BOTH),
        _integer("enabled_events", _BOTH, 0, 0, _INT32_MAX),
        _boolean("enable.random.seed", _BOTH, True),
        _integer("internal.termination.signal", _BOTH, 0, 0, 128),
        _integer("message.copy.max.bytes", _BOTH, 65_535, 0, 1_000_000_000),
        _integer("test.mock.num.brokers", _BOTH, 0, 0, 10_000),
        _integer("test.mock.broker.rtt", _BOTH, 0, 0, 3_600_000),
        _boolean("produce.offset.report", _PRODUCER, False),
        _integer("consume.callback.max.messages", _CONSUMER, 0, 0, 1_000_000),
    ),
    *_without_effect(
        _RETRIES,
        _integer("retries", _PRODUCER, _INT32_MAX, 0, _INT32_MAX, "", "message.send.max.retries"),
        _integer("retry.backoff.ms", _BOTH, 100, 1, 300_000),
        _integer("retry.backoff.max.ms", _BOTH, 1_000, 1, 300_000),
        _integer("max.in.flight.requests.per.connection", _BOTH, 1_000_000, 1, 1_000_000, "", "max.in.flight"),
        _integer("queue.buffering.backpressure.threshold", _PRODUCER, 1, 1, 1_000_000),
    ),
    *_without_effect(
        "Messages keep the order of `produce()`; a failed message does not reorder the others.",
        _choice("queuing.strategy", _PRODUCER, "fifo", ("fifo", "lifo")),
        _boolean("enable.gapless.guarantee", _PRODUCER, False),
    ),
    *_without_effect(
        _FETCHING,
        _integer("fetch.min.bytes", _CONSUMER, 1, 0, _INT32_MAX),
        _integer("queued.min.messages", _CONSUMER, 100_000, 1, 10_000_000),
        _integer("fetch.message.max.bytes", _CONSUMER, 1_048_576, 1, 1_000_000_000, "", "max.partition.fetch.bytes"),
        _integer("fetch.queue.backoff.ms", _CONSUMER, 1_000, 0, 300_000),
        _integer("fetch.error.backoff.ms", _CONSUMER, 500, 0, 300_000),
        _integer("max.poll.records", _CONSUMER, 500, 1, _INT32_MAX),
    ),
    *_without_effect(
        _MEMBERSHIP,
        _choice("group.protocol", _CONSUMER, "classic", ("classic", "consumer")),
        _string("group.protocol.type", _CONSUMER, "consumer"),
        _string("group.remote.assignor", _CONSUMER),
        _string("group.instance.id", _CONSUMER),
        _integer("coordinator.query.interval.ms", _CONSUMER, 600_000, 1, 3_600_000),
        _string("share.acknowledgement.mode", _CONSUMER, "implicit"),
    ),
    *_without_effect(
        "Offsets are always committed to the group's log.",
        _choice("offset.store.method", _CONSUMER, "broker", ("none", "file", "broker")),
        _string("offset.store.path", _CONSUMER, "."),
        _integer("offset.store.sync.interval.ms", _CONSUMER, -1, -1, _DAY_MS),
    ),
)

CLIENT_SETTINGS: Mapping[str, Setting] = {s.name: s for s in (*_SHARED, *_OF_PRODUCERS, *_OF_CONSUMERS, *_IGNORED)}
"""Client settings by name; each lists its aliases. `store.*` is not included: the store checks these settings."""

_NO_REPLICAS = "The store replicates the data."
_NO_SEGMENTS = "Files are rolled and merged by size: see `segment.bytes`."
_NO_TIERS = "All data is in the store, without tiers."

_TOPIC_ROWS = (
    _integer("partitions", _TOPIC, 1, 1, PARTITIONS_MAX, "Number of partitions. It can grow, but not shrink."),
    _integer("retention.ms", _TOPIC, 604_800_000, -1, _INT64_MAX, "Age at which messages are removed; -1 is never."),
    _integer(
        "retention.bytes",
        _TOPIC,
        -1,
        -1,
        _INT64_MAX,
        "Size of a partition above which its oldest messages are removed; -1 is no limit.",
    ),
    Setting(
        "cleanup.policy",
        _TOPIC,
        "list",
        ("delete",),
        "`delete` applies retention; `compact` keeps only the newest message of each key; both can be combined.",
        choices=("delete", "compact"),
    ),
    _integer("delete.retention.ms", _TOPIC, _DAY_MS, 0, _INT64_MAX, "Time for which key compaction keeps a tombstone."),
    _integer("min.compaction.lag.ms", _TOPIC, 0, 0, _INT64_MAX, "Minimum age of a message for key compaction."),
    Setting(
        "min.cleanable.dirty.ratio",
        _TOPIC,
        "float",
        0.5,
        "Share of uncompacted data in a topic at which key compaction starts.",
        0,
        1,
    ),
    _integer(
        "max.compaction.lag.ms",
        _TOPIC,
        _INT64_MAX,
        1,
        _INT64_MAX,
        "Age of a message at which key compaction starts, regardless of `min.cleanable.dirty.ratio`.",
    ),
    _integer(
        "segment.bytes",
        _TOPIC,
        134_217_728,
        1_048_576,
        _INT32_MAX,
        "Approximate size of the data files that compaction writes. The default is below Kafka's 1 GiB because files "
        "are built in memory.",
    ),
    _integer(
        "file.delete.delay.ms",
        _TOPIC,
        _DAY_MS,
        _DAY_MS,
        _INT64_MAX,
        "Time for which a data file is kept after it has left the topic, for readers with an older state of the log. "
        "Must not be below `metadata.max.retention.ms`.",
    ),
    _integer(
        "metadata.max.retention.ms",
        _TOPIC,
        _DAY_MS,
        _DAY_MS,
        _INT64_MAX,
        "Age at which log entries that a checkpoint replaces are removed. In a log of more than 100,000 entries, the "
        "oldest are removed sooner; the newest 1,000 are always kept.",
    ),
    _integer("max.message.bytes", _TOPIC, 1_048_588, 0, _INT32_MAX, "Maximum size of a message with key and headers."),
    _choice(
        "compression.type",
        _TOPIC,
        "producer",
        ("producer", *_CODECS),
        "Codec of the data files; `producer` keeps the codec of the producer.",
        uncompressed="none",
    ),
    _choice(
        "message.timestamp.type",
        _TOPIC,
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Timestamp of a message: `CreateTime` is set by the producer, `LogAppendTime` is the time of the commit.",
    ),
    *_without_effect(
        _NO_SEGMENTS,
        _integer("segment.ms", _TOPIC, 604_800_000, 1, _INT64_MAX),
        _integer("segment.jitter.ms", _TOPIC, 0, 0, _INT64_MAX),
        _integer("segment.index.bytes", _TOPIC, 10_485_760, 4, _INT32_MAX),
        _integer("index.interval.bytes", _TOPIC, 4_096, 0, _INT32_MAX),
        _boolean("preallocate", _TOPIC, False),
    ),
    *_without_effect(
        "Every message is durable before it is acknowledged.",
        _integer("flush.messages", _TOPIC, _INT64_MAX, 1, _INT64_MAX),
        _integer("flush.ms", _TOPIC, _INT64_MAX, 0, _INT64_MAX),
    ),
    *_without_effect(
        _NO_REPLICAS,
        _integer("min.insync.replicas", _TOPIC, 1, 1, _INT32_MAX),
        _boolean("unclean.leader.election.enable", _TOPIC, False),
        _string("leader.replication.throttled.replicas", _TOPIC, ""),
        _string("follower.replication.throttled.replicas", _TOPIC, ""),
    ),
    *_without_effect(
        _NO_TIERS,
        _boolean("remote.storage.enable", _TOPIC, False),
        _boolean("remote.log.copy.disable", _TOPIC, False),
        _boolean("remote.log.delete.on.disable", _TOPIC, False),
        _integer("local.retention.ms", _TOPIC, -2, -2, _INT64_MAX),
        _integer("local.retention.bytes", _TOPIC, -2, -2, _INT64_MAX),
    ),
    *_without_effect(
        "The producer sets the level: see `compression.level`.",
        _integer("compression.gzip.level", _TOPIC, -1, -1, 9),
        _integer("compression.lz4.level", _TOPIC, 9, 1, 17),
        _integer("compression.zstd.level", _TOPIC, 3, -131_072, 22),
    ),
    *_without_effect(
        "Timestamps are not checked.",
        _integer("message.timestamp.before.max.ms", _TOPIC, _INT64_MAX, 0, _INT64_MAX),
        _integer("message.timestamp.after.max.ms", _TOPIC, 3_600_000, 0, _INT64_MAX),
        _integer("message.timestamp.difference.max.ms", _TOPIC, _INT64_MAX, 0, _INT64_MAX),
        _string("message.format.version", _TOPIC),
        _boolean("message.downconversion.enable", _TOPIC, True),
    ),
)

TOPIC_SETTINGS: Mapping[str, Setting] = {s.name: s for s in _TOPIC_ROWS}
"""Topic settings by name; as table properties they have the prefix `deltaq.`."""


def config_table(kind: Literal["producer", "consumer", "admin", "topic"]) -> str:
    """The settings of a client or of topics as a Markdown table, sorted by name, those without effect last."""
    source = TOPIC_SETTINGS if kind == "topic" else CLIENT_SETTINGS
    rows = [s for s in source.values() if s.clients in (kind, "both")]
    lines = ["| Setting | Default | Allowed | Meaning |", "|---|---|---|---|"]
    lines += [_row(setting) for setting in sorted(rows, key=lambda s: (s.effect == "none", s.name))]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    names = ", ".join(f"`{name}`" for name in (setting.name, *setting.aliases))
    allowed = setting.range or {"string": "text", "callable": "a callable", "logger": "a logger"}[setting.kind]
    meaning = {"honoured": "", "always": "*Fixed.* ", "none": "*No effect.* "}[setting.effect] + setting.doc
    return f"| {names} | {_default_text(setting)} | {allowed} | {meaning} |"


def _default_text(setting: Setting) -> str:
    default = setting.default
    if default is None or default == "":
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{default:g}`" if isinstance(default, float) and not math.isinf(default) else f"`{default}`"
