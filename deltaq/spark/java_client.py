"""Options `kafka.*` of Spark jobs: settings of Kafka's Java client, as settings of a client of
deltaq.

Spark's Kafka source and sink pass these options to the Java client. Some of its settings have other
names and allowed values than those of librdkafka, which deltaq's clients have. A setting that a
read or write of Spark does not use is therefore accepted without a check of its value, so that a
job keeps the options that it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from deltaq.config import CLIENT_SETTINGS
from deltaq.config.setting import unknown_setting
from deltaq.errors import InvalidConfig

_log = logging.getLogger("deltaq.spark")

Side: TypeAlias = Literal["source", "sink"]

_USED: Mapping[Side, tuple[str, ...]] = MappingProxyType(
    {
        "source": ("client.id",),
        "sink": (
            "client.id",
            "auto.create.topics.enable",
            "allow.auto.create.topics",
            "num.partitions",
            "message.max.bytes",
            "maintenance.enable",
            "message.timeout.ms",
            "compression.type",
            "compression.level",
            "partitioner",
        ),
    }
)
"""The settings of clients that a read or a write of Spark uses."""

_ONLY_JAVA = """
    auto.include.jmx.reporter buffer.memory compression.gzip.level compression.lz4.level
    compression.zstd.level config.providers default.api.timeout.ms exclude.internal.topics
    fetch.max.wait.ms key.deserializer key.serializer metadata.max.idle.ms metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    receive.buffer.bytes sasl.client.callback.handler.class sasl.jaas.config
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
    sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.assertion.template.file security.providers
    send.buffer.bytes socket.connection.setup.timeout.max.ms ssl.enabled.protocols
    ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.certificate.chain
    ssl.keystore.key ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
    ssl.truststore.password ssl.truststore.type transaction.two.phase.commit.enable
    value.deserializer value.serializer
"""

WITHOUT_EFFECT = frozenset(_ONLY_JAVA.split())
"""Settings that only the Java client has, and that have no effect in deltaq: they concern brokers,
connections, memory or classes of Java. One that decides what is read or written stands in `REFUSED`
too, for that side.
"""

REFUSED: Mapping[Side, Mapping[str, str]] = MappingProxyType(
    {
        "source": {
            "key.deserializer": "keys are bytes: convert the column key in the query",
            "value.deserializer": "values are bytes: convert the column value in the query",
            "auto.offset.reset": 'set the option "startingOffsets" to earliest or latest',
            "enable.auto.commit": "the query keeps its offsets in its checkpoint: omit it",
            "interceptor.classes": (
                "a class of Java cannot run here: change the columns in the query"
            ),
            "large.message.enabled": (
                "Spark joins no large messages: read the topic with a Consumer"
            ),
        },
        "sink": {
            "key.serializer": "keys are bytes or strings: convert the column key in the query",
            "value.serializer": (
                "values are bytes or strings: convert the column value in the query"
            ),
            "interceptor.classes": (
                "a class of Java cannot run here: change the columns in the query"
            ),
            "large.message.enabled": "Spark writes no large messages: write them with a Producer",
            "transactional.id": "each batch and micro-batch is one commit already: omit it",
        },
    }
)
"""Settings that Spark's Kafka source or sink refuses, or that deltaq cannot follow, with the
remedy.
"""

_MESSAGE_MAX_BYTES = int(CLIENT_SETTINGS["message.max.bytes"].high)

_PARTITIONERS = {
    "DefaultPartitioner": "murmur2_random",
    "RoundRobinPartitioner": "random",
    "UniformStickyPartitioner": "random",
}
"""The partitioners of the Java client, and deltaq's with the same result. The last two ignore the
key.
"""


def _message_max_bytes(text: str) -> tuple[str, str]:
    """The limit of a message. Programs set the Java client's limit to its maximum of 2 GiB to
    switch it off.
    """
    size = int(text) if text.strip().isascii() and text.strip().isdigit() else None
    return "message.max.bytes", text if size is None else str(min(size, _MESSAGE_MAX_BYTES))


def _partitioner(text: str) -> tuple[str, str]:
    name = text.strip().rpartition(".")[2]
    if name not in _PARTITIONERS:
        raise InvalidConfig(
            f'option "kafka.partitioner.class" cannot be {text[:100]!a}: a class of Java cannot run'
            ' here; add a column "partition" to the rows, or set the option "kafka.partitioner"',
            key="kafka.partitioner.class",
        )
    return "partitioner", _PARTITIONERS[name]


def _partitioner_without_keys(text: str) -> tuple[str, str]:
    if text.strip().lower() not in ("true", "false"):
        reason = (
            f'option "kafka.partitioner.ignore.keys" cannot be {text[:100]!a}: use true or false'
        )
        raise InvalidConfig(reason, key="kafka.partitioner.ignore.keys")
    return "partitioner", (
        "random" if text.strip().lower() == "true" else str(CLIENT_SETTINGS["partitioner"].default)
    )


TRANSLATED: Mapping[str, Callable[[str], tuple[str, str]]] = MappingProxyType(
    {
        "max.request.size": _message_max_bytes,
        "partitioner.class": _partitioner,
        "partitioner.ignore.keys": _partitioner_without_keys,
    }
)
"""Settings that only the Java client has: the setting of deltaq that means the same, and its
value.
"""

_SETTINGS = {
    name: setting.name
    for setting in CLIENT_SETTINGS.values()
    for name in (setting.name, *setting.aliases)
}


def client_settings(given: Mapping[str, str], side: Side) -> dict[str, str]:
    """The settings among the options `kafka.*`, without that prefix, that a client of deltaq uses
    for this side.

    The others are logged by name: a value may be a secret. Raises InvalidConfig for an unknown name
    and for a setting in `REFUSED`.
    """
    used: dict[str, str] = {}
    # Partitioner.class takes precedence over partitioner.ignore.keys.
    for name, value in sorted(given.items()):
        if name in REFUSED[side]:
            raise InvalidConfig(
                f'option "kafka.{name}" is not supported: {REFUSED[side][name]}',
                key=f"kafka.{name}",
            )
        if name in TRANSLATED and side == "sink":
            canonical, text = TRANSLATED[name](value)
            used.setdefault(canonical, text)
        elif _SETTINGS.get(name) in _USED[side]:
            used[_SETTINGS[name]] = value
        elif name in _SETTINGS or name in WITHOUT_EFFECT | TRANSLATED.keys():
            _log.info("option has no effect in deltaq name=kafka.%s", name)
        else:
            raise unknown_setting(name, {*_SETTINGS, *WITHOUT_EFFECT, *TRANSLATED})
    return used
