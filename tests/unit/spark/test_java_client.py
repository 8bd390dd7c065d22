"""Options `kafka.*` as jobs for Kafka have them: which ones count, which have no effect, and which
are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from deltaq.config import CLIENT_SETTINGS
from deltaq.errors import InvalidConfig
from deltaq.spark.java_client import REFUSED, TRANSLATED, WITHOUT_EFFECT, Side
from deltaq.spark.options import parse_sink_options, parse_source_options

READ = {"path": "/data/events", "subscribe": "orders"}
WRITE = {"path": "/data/events", "topic": "orders"}

# Options of jobs against a secured cluster, with values that the Java client allows and librdkafka
# does not.
CONNECTION = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required password="hunter2";'
    ),
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    "ssl.truststore.location": "/etc/trust.jks",
    "ssl.truststore.password": "hunter2",
    "ssl.keystore.type": "JKS",
    "ssl.key.password": "hunter2",
    "ssl.endpoint.identification.algorithm": "",
    "connections.max.idle.ms": "-1",
    "request.timeout.ms": "1200000",
    "retry.backoff.ms": "0",
    "metadata.max.age.ms": "0",
    "client.dns.lookup": "use_all_dns_ips",
}
CONSUMER = {
    "group.id": "spark",
    "session.timeout.ms": "30000",
    "heartbeat.interval.ms": "60000",
    "max.poll.records": "5000000",
    "max.poll.interval.ms": "2147483647",
    "fetch.max.bytes": "2147483647",
    "fetch.min.bytes": "0",
    "fetch.max.wait.ms": "500",
    "max.partition.fetch.bytes": "2147483647",
    "isolation.level": "read_committed",
    "default.api.timeout.ms": "60000",
    "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
PRODUCER = {
    "acks": "all",
    "retries": "2147483647",
    "enable.idempotence": "true",
    "max.in.flight.requests.per.connection": "20",
    "buffer.memory": "33554432",
    "batch.size": "0",
    "linger.ms": "900000",
    "max.block.ms": "60000",
    "compression.zstd.level": "-7",
}


@pytest.mark.parametrize(
    "options", [CONNECTION, CONSUMER, PRODUCER], ids=["connection", "consumer", "producer"]
)
def test_options_without_effect_are_accepted_whatever_their_value_and_logged_by_name(
    options: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    prefixed = {f"kafka.{name}": value for name, value in options.items()}
    with caplog.at_level(logging.DEBUG, "deltaq"):
        assert parse_source_options(READ | prefixed) == parse_source_options(READ)
        assert parse_sink_options(WRITE | prefixed) == parse_sink_options(WRITE)
    assert {record.getMessage() for record in caplog.records if record.name == "deltaq.spark"} == {
        f"option has no effect in deltaq name={name}" for name in prefixed
    }


def test_settings_of_a_write_count_under_their_java_name() -> None:
    options = {
        "kafka.delivery.timeout.ms": "1000",
        "kafka.max.request.size": "5000000",
        "kafka.compression.type": "zstd",
        "kafka.client.id": "job",
    }
    client = parse_sink_options(WRITE | options).client
    assert (client.message_timeout_ms, client.message_max_bytes) == (1000, 5_000_000)
    assert (client.compression_type, client.client_id) == ("zstd", "job")


def test_a_limit_of_messages_that_means_no_limit_becomes_the_highest_one() -> None:
    highest = CLIENT_SETTINGS["message.max.bytes"].high
    assert (
        parse_sink_options(
            WRITE | {"kafka.max.request.size": "2147483647"}
        ).client.message_max_bytes
        == highest
    )
    with pytest.raises(InvalidConfig, match=r"message\.max\.bytes"):
        parse_sink_options(WRITE | {"kafka.max.request.size": "large"})


@pytest.mark.parametrize(
    ("java", "partitioner"),
    [
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "murmur2_random"),
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", "random"),
    ],
)
def test_a_partitioner_of_the_java_client_has_a_counterpart(java: str, partitioner: str) -> None:
    assert (
        parse_sink_options(WRITE | {"kafka.partitioner.class": java}).client.partitioner
        == partitioner
    )


def test_partitions_without_regard_to_keys_are_chosen_at_random() -> None:
    def chosen(**options: str) -> str:
        given = {
            f"kafka.partitioner.{name.replace('_', '.')}": value for name, value in options.items()
        }
        return parse_sink_options(WRITE | given).client.partitioner

    assert [chosen(ignore_keys=text) for text in ("true", " False ")] == ["random", chosen()]
    # As in Kafka, the setting belongs to the built-in partitioner.
    assert chosen(ignore_keys="true", **{"class": "DefaultPartitioner"}) == "murmur2_random"
    with pytest.raises(InvalidConfig, match="cannot be 'yes': use true or false"):
        chosen(ignore_keys="yes")


def test_a_partitioner_of_the_users_own_is_refused_with_what_replaces_it() -> None:
    with pytest.raises(InvalidConfig, match='add a column "partition" to the rows'):
        parse_sink_options(WRITE | {"kafka.partitioner.class": "com.example.MyPartitioner"})


@pytest.mark.parametrize(
    ("side", "name", "remedy"),
    [
        ("source", "key.deserializer", "convert the column key"),
        ("source", "value.deserializer", "convert the column value"),
        ("source", "auto.offset.reset", '"startingOffsets" to earliest or latest'),
        ("source", "enable.auto.commit", "offsets in its checkpoint: omit it"),
        ("source", "interceptor.classes", "in the query"),
        ("sink", "key.serializer", "convert the column key"),
        ("sink", "value.serializer", "convert the column value"),
        ("sink", "interceptor.classes", "in the query"),
        ("sink", "transactional.id", "omit it"),
    ],
)
def test_what_sparks_kafka_refuses_is_refused_with_the_remedy(
    side: Side, name: str, remedy: str
) -> None:
    assert name in REFUSED[side]
    with pytest.raises(
        InvalidConfig, match=rf'option "kafka\.{name}" is not supported: .*{remedy}'
    ):
        (
            parse_source_options(READ | {f"kafka.{name}": "x"})
            if side == "source"
            else parse_sink_options(WRITE | {f"kafka.{name}": "x"})
        )


@pytest.mark.parametrize("name", ["key.deserializer", "auto.offset.reset", "enable.auto.commit"])
def test_a_consumers_option_has_no_effect_in_a_write(name: str) -> None:
    assert parse_sink_options(WRITE | {f"kafka.{name}": "x"}) == parse_sink_options(WRITE)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max.request.sizes", "max.request.size"),
        ("ssl.truststore.locations", "ssl.truststore.location"),
        ("aks", "acks"),
        ("qqq", None),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(name: str, near: str | None) -> None:
    with pytest.raises(InvalidConfig, match="No such configuration property") as caught:
        parse_sink_options(WRITE | {f"kafka.{name}": "1"})
    assert (f'did you mean "{near}"' in str(caught.value)) is (near is not None)


def test_no_name_stands_in_two_tables() -> None:
    known = {
        name for setting in CLIENT_SETTINGS.values() for name in (setting.name, *setting.aliases)
    }
    assert not known & (WITHOUT_EFFECT | TRANSLATED.keys())
    assert not WITHOUT_EFFECT & TRANSLATED.keys()
