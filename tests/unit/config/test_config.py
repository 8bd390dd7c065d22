"""Configurations written for confluent-kafka are taken as they are, and mistakes are refused by
name and value.
"""

from __future__ import annotations

import ast
import dataclasses
import logging
import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.config import (
    CLIENT_SETTINGS,
    TOPIC_SETTINGS,
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    Setting,
    TopicSettings,
    parse_client_config,
    topic_config,
    topic_properties,
)
from deltaq.config import client as client_module
from deltaq.errors import InvalidConfig, KafkaError

# Every setting that librdkafka documents and lets a program set by name.
DOCUMENTED = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
auto.commit.enable auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size bootstrap.servers
broker.address.family broker.address.ttl broker.version.fallback builtin.features check.crcs client.dns.lookup
client.id client.rack compression.codec compression.level compression.type connections.max.idle.ms
consume.callback.max.messages coordinator.query.interval.ms debug delivery.report.only.error delivery.timeout.ms
enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.metrics.push
enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification
enabled_events fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
heartbeat.interval.ms https.ca.location https.ca.pem internal.termination.signal isolation.level linger.ms
log.connection.close log.queue log.thread.name log_level max.in.flight max.in.flight.requests.per.connection
max.partition.fetch.bytes max.poll.interval.ms max.poll.records message.copy.max.bytes message.max.bytes
message.send.max.retries message.timeout.ms metadata.broker.list metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy offset.store.method offset.store.path
offset.store.sync.interval.ms partition.assignment.strategy partitioner plugin.library.paths produce.offset.report
queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy receive.message.max.bytes
reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms request.required.acks request.timeout.ms
retries retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.ms
socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id
ssl.engine.location ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password
ssl.providers ssl.sigalgs.list statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist
topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms
topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""  # noqa: E501

ALIAS_OF = {alias: s.name for s in CLIENT_SETTINGS.values() for alias in s.aliases}
OUR_OWN = {
    "auto.create.topics.enable",
    "auto.register.schemas",  # of confluent-kafka's serializers
    "deltaq.group.commit",
    "large.message.enabled",
    "max.block.ms",  # of the Java client
    "maintenance.enable",
    "num.partitions",
    "offsets.retention.minutes",
    "transactional.id.expiration.ms",
}
PYTHON_LEVEL = {
    "error_cb",
    "stats_cb",
    "throttle_cb",
    "oauth_cb",
    "logger",
    "on_delivery",
    "on_commit",
}
NUMBERS = [
    s for s in CLIENT_SETTINGS.values() if s.kind in ("integer", "float") and s.name not in OUR_OWN
]


@pytest.fixture(autouse=True)
def _nothing_warned_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_warned", set())


def producer(**conf: object) -> ProducerConfig:
    return parse_client_config(
        ProducerConfig, {"bootstrap.servers": "memory://test"} | _dotted(conf)
    )


def consumer(**conf: object) -> ConsumerConfig:
    return parse_client_config(
        ConsumerConfig, {"bootstrap.servers": "memory://test", "group.id": "g"} | _dotted(conf)
    )


def _dotted(conf: dict[str, object]) -> dict[str, object]:
    return {key.replace("__", "."): value for key, value in conf.items()}


def refusal(**conf: object) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        producer(**conf)
    assert caught.value.args[0] == KafkaError._INVALID_ARG
    return caught.value


def peer_refusal(conf: dict[str, object]) -> str:
    """What the real client says at construction; nothing if it is content."""
    base: dict[str, object] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    try:
        confluent_kafka.Producer(base | conf)
    except confluent_kafka.KafkaException as error:
        return str(error.args[0].str())
    except (TypeError, ValueError) as error:  # a few settings are checked by the Python layer
        return str(error)
    return ""


# --- the table against the real client ---


def test_every_documented_setting_of_librdkafka_is_known() -> None:
    documented = DOCUMENTED.split()
    assert len(documented) > 150
    assert [
        name for name in documented if name not in CLIENT_SETTINGS and name not in ALIAS_OF
    ] == []


def test_every_setting_is_known_to_the_real_client_too() -> None:
    ours = {*CLIENT_SETTINGS, *ALIAS_OF} - OUR_OWN - PYTHON_LEVEL - {"plugin.library.paths"}
    assert [
        name
        for name in sorted(ours)
        if "No such configuration property" in peer_refusal({name: "\x01"})
    ] == []


def test_ranges_of_numbers_are_those_of_the_real_client() -> None:
    for setting in NUMBERS:
        text = peer_refusal({setting.name: str(int(setting.low) - 1)})
        bounds = re.search(r"outside allowed range (-?\d+)\.\.(\d+)", text)
        assert bounds, (setting.name, text)
        assert (setting.low, setting.high) == (int(bounds[1]), int(bounds[2])), setting.name


CHOICES = [
    s
    for s in CLIENT_SETTINGS.values()
    if s.kind == "choice" and s.name not in OUR_OWN
    # librdkafka takes any other text as `implicit`.
    if s.name != "share.acknowledgement.mode"
]


@pytest.mark.parametrize("setting", CHOICES, ids=lambda s: s.name)
def test_choices_are_exactly_those_of_the_real_client(setting: Setting) -> None:
    for choice in (*setting.choices, *setting.synonyms):
        assert "Invalid value" not in peer_refusal({setting.name: choice})
    assert "Invalid value" in peer_refusal({setting.name: "something.else"})


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("acks", -1),
        ("linger.ms", 5.0),
        ("batch.size", 1_000_000),
        ("batch.num.messages", 10_000),
        ("compression.type", "none"),
        ("compression.level", -1),
        ("enable.idempotence", False),
        ("transaction.timeout.ms", 60_000),
        ("partitioner", "consistent_random"),
        ("sticky.partitioning.linger.ms", 10),
        ("queue.buffering.max.messages", 100_000),
        ("queue.buffering.max.kbytes", 1_048_576),
        ("message.timeout.ms", 300_000),
        ("retries", 2**31 - 1),
        ("message.max.bytes", 1_000_000),
        ("delivery.report.only.error", False),
        ("auto.offset.reset", "latest"),
        ("enable.auto.commit", True),
        ("auto.commit.interval.ms", 5_000),
        ("enable.auto.offset.store", True),
        ("session.timeout.ms", 45_000),
        ("heartbeat.interval.ms", 3_000),
        ("max.poll.interval.ms", 300_000),
        ("partition.assignment.strategy", ("range", "roundrobin")),
        ("isolation.level", "read_committed"),
        ("fetch.min.bytes", 1),
        ("fetch.wait.max.ms", 500),
        ("fetch.max.bytes", 52_428_800),
        ("fetch.message.max.bytes", 1_048_576),
        ("queued.min.messages", 100_000),
        ("queued.max.messages.kbytes", 65_536),
        ("enable.partition.eof", False),
        ("allow.auto.create.topics", False),
        ("check.crcs", False),
        ("auto.create.topics.enable", True),
        ("num.partitions", 1),
    ],
)
def test_defaults_are_those_of_librdkafka(name: str, default: object) -> None:
    assert CLIENT_SETTINGS[name].default == default


def test_every_setting_has_a_description_and_accepts_its_own_default() -> None:
    for setting in (*CLIENT_SETTINGS.values(), *TOPIC_SETTINGS.values()):
        assert setting.doc.endswith("."), setting.name
        if setting.kind not in ("callable", "logger") and setting.default is not None:
            assert setting.parse(setting.default) == setting.default, setting.name


# --- what comes out ---


@pytest.mark.parametrize(
    ("kind", "config"),
    [("producer", ProducerConfig), ("consumer", ConsumerConfig), ("admin", AdminConfig)],
)
def test_a_config_has_exactly_the_settings_that_have_an_effect(
    kind: str, config: type[ClientConfig]
) -> None:
    attributes = {f.name for f in dataclasses.fields(config)} - {"root", "store_options"}
    honoured = {
        s.attribute
        for s in CLIENT_SETTINGS.values()
        if s.effect == "honoured" and s.clients in (kind, "both")
    }
    assert attributes == honoured - {"bootstrap_servers"}


@pytest.mark.slow
def test_every_honoured_setting_is_read_by_the_code() -> None:
    package = Path(client_module.__file__).parent.parent
    modules = [path for path in package.rglob("*.py") if path.parent != package / "config"]
    nodes = [node for path in modules for node in ast.walk(ast.parse(path.read_text()))]
    read = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    honoured = {s.attribute for s in CLIENT_SETTINGS.values() if s.effect == "honoured"} - {
        "bootstrap_servers"
    }
    assert sorted(honoured - read) == []


@pytest.mark.parametrize("config", [producer(), consumer()], ids=["producer", "consumer"])
def test_attributes_have_the_types_they_declare(config: ClientConfig) -> None:
    hints = get_type_hints(type(config), vars(client_module))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        declared = hints[field.name]
        if declared in (int, float, bool, str):
            assert type(value) is declared, field.name


def test_topic_settings_are_exactly_those_that_have_an_effect() -> None:
    honoured = {s.attribute for s in TOPIC_SETTINGS.values() if s.effect == "honoured"}
    assert {f.name for f in dataclasses.fields(TopicSettings)} == honoured


def test_keywords_win_over_the_dict_and_neither_is_changed() -> None:
    conf: dict[str, object] = {
        "bootstrap.servers": "memory://test",
        "linger.ms": 1,
        "default.topic.config": {"compression.type": "lz4"},
    }
    kwargs: dict[str, object] = {"linger_ms": 7, "batch.size": 2_000, "default_topic_config": None}
    before = (pickle.dumps(conf), pickle.dumps(kwargs))
    config = parse_client_config(ProducerConfig, conf, kwargs)
    assert (config.linger_ms, config.batch_size, config.compression_type) == (7.0, 2_000, "lz4")
    assert (pickle.dumps(conf), pickle.dumps(kwargs)) == before


def test_keywords_alone_are_enough() -> None:
    config = parse_client_config(
        AdminConfig, None, {"bootstrap_servers": "/data", "client_id": "me", "store_region": "eu"}
    )
    assert (config.root, config.client_id, config.store_options) == (
        "/data",
        "me",
        {"region": "eu"},
    )


@pytest.mark.parametrize("spelling", sorted(ALIAS_OF))
def test_an_alias_sets_the_setting_it_stands_for(spelling: str) -> None:
    setting = CLIENT_SETTINGS[ALIAS_OF[spelling]]
    value = "7" if setting.kind != "choice" else setting.choices[-1]
    if setting.kind == "boolean":
        value = str(not setting.default)
    clients: dict[str, Any] = {"producer": producer, "consumer": consumer, "both": producer}
    config = clients[setting.clients](**{spelling.replace(".", "__"): value})
    if setting.effect == "honoured":
        shown = (
            config.root
            if setting.name == "bootstrap.servers"
            else getattr(config, setting.attribute)
        )
        assert shown == setting.parse(value)


def test_the_last_of_two_spellings_wins_and_the_legacy_dict_over_both() -> None:
    assert producer(linger__ms=1, queue__buffering__max__ms=2).linger_ms == 2
    assert producer(queue__buffering__max__ms=2, linger__ms=1).linger_ms == 1
    legacy = {"compression.type": "lz4"}
    for conf in (
        {"default.topic.config": legacy, "acks": 1},
        {"acks": 1, "default.topic.config": legacy},
    ):
        conf |= {"bootstrap.servers": "memory://test"}
        found = parse_client_config(ProducerConfig, conf, {"compression.type": "zstd"})
        assert found.compression_type == "lz4", "as confluent-kafka 2.16 was observed to do"
    assert (
        consumer(default__topic__config={"auto.offset.reset": "smallest"}).auto_offset_reset
        == "earliest"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (False, False),
        ("true", True),
        ("F", False),
        ("TRUE", True),
        (1, True),
        ("0", False),
    ],
    ids=repr,
)
def test_booleans_may_be_written_as_strings(value: object, expected: bool) -> None:
    assert consumer(enable__auto__commit=value).enable_auto_commit is expected


@pytest.mark.parametrize("value", ["yes", "", "2", 2, 1.5, [True], b"true"], ids=repr)
def test_other_words_are_no_booleans(value: object) -> None:
    assert refusal(enable__idempotence=value).key == "enable.idempotence"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(6000, 6000), ("6000", 6000), (6000.0, 6000), ("6000.0", 6000), ("0x10", 16), (" 7 ", 7)],
    ids=repr,
)
def test_integers_may_be_written_as_strings(value: object, expected: int) -> None:
    assert producer(batch__size=value).batch_size == expected


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    "value",
    [
        "x",
        "",
        "12abc",
        "6e3",
        6000.7,
        True,
        math.nan,
        math.inf,
        b"5",
        [5],
        "1_000",
        "\u0661",
        "9" * 5000,
        object(),
    ],
    ids=lambda v: repr(v)[:20],
)
def test_a_non_integer_is_refused(value: object) -> None:
    error = refusal(batch__size=value)
    assert "batch.size" in error.error.str()
    assert len(error.error.str()) < 200


@pytest.mark.parametrize(
    ("value", "expected"), [(0.5, 0.5), (".5", 0.5), (3, 3.0), ("1e-1", 0.1), (0, 0.0)], ids=repr
)
def test_the_linger_may_be_a_fraction_of_a_millisecond(value: object, expected: float) -> None:
    assert producer(linger__ms=value).linger_ms == expected


@pytest.mark.parametrize(
    "value", ["nan", "inf", math.nan, True, "x", "1_000", "\u0661", "1e999", "."], ids=repr
)
def test_the_linger_must_be_a_number(value: object) -> None:
    assert "linger.ms" in refusal(linger__ms=value).error.str()


@pytest.mark.fault("K1")
def test_a_number_out_of_range_is_refused_with_key_value_and_range() -> None:
    text = 'Configuration property "linger.ms" value -1.0 is outside allowed range 0..900000'
    assert refusal(linger__ms=-1).error.str() == text
    with pytest.raises(InvalidConfig, match=r"range -1\.\.9223372036854775807\b"):
        topic_properties({"retention.ms": 2**63})
    assert "queue.buffering.max.ms" in refusal(queue__buffering__max__ms=-1).error.str()


@pytest.mark.fault("K1")
def test_a_wrong_choice_is_refused_with_the_choices() -> None:
    text = (
        'Invalid value "foo" for configuration property "compression.type": use none, gzip, snappy,'
        " lz4, zstd"
    )
    assert refusal(compression__type="foo").error.str() == text
    assert producer(compression__type="ZSTD").compression_type == "zstd"


def test_none_is_the_default() -> None:
    assert producer(linger__ms=None, on_delivery=None, transactional__id=None) == producer()
    assert (
        parse_client_config(
            ProducerConfig, {"bootstrap.servers": "x", "linger.ms": 9}, {"linger_ms": None}
        ).linger_ms
        == 5
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("smallest", "earliest"),
        ("beginning", "earliest"),
        ("Earliest", "earliest"),
        ("largest", "latest"),
        ("end", "latest"),
        ("error", "error"),
    ],
    ids=repr,
)
def test_every_spelling_of_auto_offset_reset_is_accepted(value: str, expected: str) -> None:
    assert consumer(auto__offset__reset=value).auto_offset_reset == expected


def test_assignors_are_a_list_without_repetitions() -> None:
    assert consumer().partition_assignment_strategy == ("range", "roundrobin")
    assert consumer(
        partition__assignment__strategy="sticky, range,sticky"
    ).partition_assignment_strategy == (
        "sticky",
        "range",
    )
    assert consumer(partition__assignment__strategy=["range"]).partition_assignment_strategy == (
        "range",
    )
    with pytest.raises(InvalidConfig, match="foo"):
        consumer(partition__assignment__strategy="range,foo")


def mine(partitions: object, members: object) -> dict[str, list[tuple[str, int]]]:
    """A user's own assignor."""
    return {}


def test_assignors_may_be_functions_and_names_in_any_mixture() -> None:
    for value, parsed in (
        (mine, (mine,)),
        ([mine], (mine,)),
        ((mine, "range,sticky", mine, "Range"), (mine, "range", "sticky")),
        (["sticky", mine], ("sticky", mine)),
    ):
        assert (
            consumer(partition__assignment__strategy=value).partition_assignment_strategy == parsed
        )


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            [mine, "foo"],
            (
                'Invalid value "foo" for configuration property "partition.assignment.strategy":'
                " use range, "
            ),
        ),
        ([mine, 5], "expected names and functions, got int"),
        ([None], "expected names and functions, got NoneType"),
        ([[mine]], "expected names and functions, got list"),
        ([], "use range, roundrobin, sticky, cooperative-sticky, or a function"),
        ({"range": mine}, "expected list, got dict"),
        (
            [mine, "cooperative-sticky"],
            r"strategy \(mine,cooperative-sticky\) assignors must have the same protocol type",
        ),
    ],
)
def test_other_assignors_are_refused_with_a_reason(wrong: object, text: str) -> None:
    with pytest.raises(InvalidConfig, match=text) as caught:
        consumer(partition__assignment__strategy=wrong)
    assert caught.value.key == "partition.assignment.strategy"


def test_functions_are_no_values_of_other_lists() -> None:
    with pytest.raises(InvalidConfig, match=r"cleanup\.policy"):
        TOPIC_SETTINGS["cleanup.policy"].parse(mine)


# --- what is refused ---


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("linger.mss", "linger.ms"),
        ("bootstrap_servers", "bootstrap.servers"),
        ("acs", "acks"),
        ("session.timeout", "session.timeout.ms"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, hint: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_client_config(ProducerConfig, {"bootstrap.servers": "memory://test", key: 1})
    assert (
        caught.value.error.str()
        == f'No such configuration property: "{key}"; did you mean "{hint}"?'
    )


@pytest.mark.parametrize("key", ["x", 3, "store.", "", "group.id.\n", "error_cb.builder"])
def test_an_unknown_key_without_a_similar_one_is_refused_without_suggestion(key: Any) -> None:
    with pytest.raises(InvalidConfig, match="No such configuration property"):
        parse_client_config(ProducerConfig, {"bootstrap.servers": "memory://test", key: 1})


@pytest.mark.parametrize("conf", [None, 5, "bootstrap.servers=x", [("acks", 1)]])
def test_a_config_that_is_no_dict_raises_type_error(conf: Any) -> None:
    with pytest.raises(TypeError, match="expected configuration dict"):
        parse_client_config(ProducerConfig, conf)
    with pytest.raises(TypeError, match=r"default\.topic\.config must be a dict"):
        producer(default__topic__config=5)


@pytest.mark.parametrize(
    "conf", [{}, {"bootstrap.servers": "x"}, {"group.id": None}, {"group.id": ""}]
)
def test_a_consumer_needs_a_group(conf: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^Failed to create consumer: group\.id must be set$"):
        parse_client_config(ConsumerConfig, conf)


@pytest.mark.parametrize("root", [None, "", "localhost:9092", "kafka-1:9092, kafka-2:9092"])
def test_a_root_must_be_named_and_is_no_list_of_brokers(root: object) -> None:
    with pytest.raises(InvalidConfig, match="set it to the root") as caught:
        parse_client_config(AdminConfig, {"bootstrap.servers": root})
    assert caught.value.key == "bootstrap.servers"


@pytest.mark.parametrize(
    "root",
    ["/data", "relative/path", "s3://b/p", "memory://x", "file:///d", "C:/data", "http://h:9000/b"],
)
def test_paths_and_urls_are_roots(root: str) -> None:
    assert parse_client_config(AdminConfig, {"bootstrap.servers": root}).root == root


def test_a_path_object_is_a_root(tmp_path: Path) -> None:
    assert parse_client_config(AdminConfig, {"bootstrap.servers": tmp_path}).root == str(tmp_path)


PEER_AGREES: list[dict[str, object]] = [
    {"enable.idempotence": True, "acks": 0},
    {"enable.idempotence": True, "acks": 1},
    {"enable.idempotence": True, "max.in.flight": 6},
    {"enable.idempotence": True, "retries": 0},
    {"enable.idempotence": True, "queuing.strategy": "lifo"},
    {"enable.gapless.guarantee": True},
    {"transactional.id": "t", "enable.idempotence": False},
    {"transactional.id": "t", "message.timeout.ms": 100_000},
    {"message.timeout.ms": 2, "linger.ms": 100},
    {"message.timeout.ms": 5, "linger.ms": 5},
    {"enable.idempotence": True, "acks": "all"},
    {"enable.idempotence": True},
    {"transactional.id": "t"},
    {"message.timeout.ms": 2},
    {"message.timeout.ms": 0, "linger.ms": 100},
    {"transactional.id": "t", "message.timeout.ms": 0},
]


@pytest.mark.fault("K1")
@pytest.mark.parametrize("conf", PEER_AGREES, ids=str)
def test_contradictions_are_refused_as_the_real_client_does(conf: dict[str, object]) -> None:
    theirs = peer_refusal(conf).removeprefix("Failed to create producer: ")
    try:
        parse_client_config(ProducerConfig, {"bootstrap.servers": "memory://test", **conf})
        ours = ""
    except InvalidConfig as error:
        ours = error.error.str()
    assert ours == theirs


def test_defaults_adapt_to_the_given_settings() -> None:
    transactional = producer(transactional__id="t", transaction__timeout__ms=9_000)
    assert transactional.message_timeout_ms == 9_000
    assert producer(message__timeout__ms=2).linger_ms < 2
    assert producer(linger__ms=50).sticky_partitioning_linger_ms == 100
    assert (
        producer(linger__ms=50, sticky__partitioning__linger__ms=3).sticky_partitioning_linger_ms
        == 3
    )
    assert consumer(message__max__bytes=100_000_000).fetch_max_bytes == 100_000_000
    # A producer of confluent-kafka creates topics unless this says that it must not.
    assert producer().auto_create_topics_enable
    assert not producer(allow__auto__create__topics=False).auto_create_topics_enable


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    "conf",
    [
        {"session.timeout.ms": 301_000},
        {"max.poll.interval.ms": 1_000},
        {"session.timeout.ms": 3_000},
        {"heartbeat.interval.ms": 45_000},
        {"fetch.max.bytes": 100},
        {"partition.assignment.strategy": "range,cooperative-sticky"},
    ],
    ids=str,
)
def test_contradictions_of_a_consumer_are_refused(conf: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match="must"):
        parse_client_config(
            ConsumerConfig, {"bootstrap.servers": "memory://test", "group.id": "g", **conf}
        )


@pytest.mark.fault("K2")
@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("client.id", KafkaError._INVALID_ARG),
        ("group.id", KafkaError.INVALID_GROUP_ID),
        ("group.instance.id", KafkaError._INVALID_ARG),
    ],
)
def test_names_that_would_be_paths_are_refused(key: str, code: int) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_client_config(
            ConsumerConfig, {"bootstrap.servers": "memory://test", "group.id": "g", key: "../x"}
        )
    assert caught.value.args[0] == code


@pytest.mark.fault("K2")
def test_a_transactional_id_is_any_text_that_is_not_too_long_in_keys() -> None:
    assert producer(transactional__id="../x:é").transactional_id == "../x:é"
    with pytest.raises(InvalidConfig, match=r"invalid transactional\.id .*use 1 to 249"):
        producer(transactional__id="/" * 84)


def test_callbacks_must_be_callable_and_loggers_loggers() -> None:
    for key in ("error_cb", "stats_cb", "throttle_cb", "oauth_cb"):
        with pytest.raises(TypeError, match=f"expected {key} property as a callable function"):
            producer(**{key: 5})
    with pytest.raises(InvalidConfig, match="on_delivery requires a callable object"):
        producer(on_delivery=5)
    with pytest.raises(InvalidConfig, match="on_commit requires a callable object"):
        consumer(on_commit=5)
    with pytest.raises(TypeError, match="logger"):
        producer(logger=print)
    config = producer(logger=logging.getLogger("mine"), error_cb=print, on_delivery=repr)
    assert (config.error_cb, config.on_delivery) == (print, repr)


# --- no effect, no secret ---


@pytest.fixture
def warnings_logged(
    nothing_left: None, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, logger="deltaq"):
        yield caplog


def test_a_setting_without_effect_is_logged_once(warnings_logged: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        producer(socket__timeout__ms=1_000, security__protocol="ssl", sasl__password="hunter2")
    texts = [record.getMessage() for record in warnings_logged.records]
    assert len(texts) == 3
    assert all("has no effect in deltaq" in text for text in texts)
    assert "hunter2" not in str(texts)


@pytest.mark.parametrize("kind", [ConsumerConfig, AdminConfig])
def test_offsets_retention_belongs_to_clients_that_run_maintenance(
    kind: Any, warnings_logged: pytest.LogCaptureFixture
) -> None:
    conf = {"bootstrap.servers": "memory://test", "group.id": "g", "offsets.retention.minutes": 60}
    assert producer(offsets__retention__minutes=60).offsets_retention_minutes == 60
    assert not warnings_logged.records
    config = parse_client_config(kind, conf)
    assert not hasattr(config, "offsets_retention_minutes")
    texts = [record.getMessage() for record in warnings_logged.records]
    assert any(
        "offsets.retention.minutes is a producer property and will be ignored" in text
        for text in texts
    )


def test_an_explicit_default_is_not_logged(warnings_logged: pytest.LogCaptureFixture) -> None:
    producer(socket__timeout__ms=60_000, security__protocol="PLAINTEXT")
    assert warnings_logged.records == []


def test_a_setting_that_always_holds_is_not_logged(
    warnings_logged: pytest.LogCaptureFixture,
) -> None:
    producer(acks=1, enable__idempotence=False)
    producer(enable__idempotence=True)
    consumer(isolation__level="read_uncommitted", check__crcs=True)
    assert warnings_logged.records == []
    assert CLIENT_SETTINGS["acks"].effect == "always"


def test_a_setting_of_the_other_client_is_validated_and_logged(
    warnings_logged: pytest.LogCaptureFixture,
) -> None:
    config = consumer(linger__ms=7)
    assert not hasattr(config, "linger_ms")
    assert [
        "linger.ms is a producer property" in r.getMessage() for r in warnings_logged.records
    ] == [True]
    with pytest.raises(InvalidConfig):
        consumer(linger__ms=-1)


@pytest.mark.fault("K5")
def test_secrets_of_the_store_and_the_root_are_not_shown() -> None:
    config = parse_client_config(
        ProducerConfig,
        {
            "bootstrap.servers": "s3://KEYID:PLANTED1@bucket/prefix?sig=PLANTED2",
            "store.secret_access_key": "PLANTED3",
            "store.allow_http": True,
            "sasl.password": "PLANTED4",
        },
        {"store_session_token": "PLANTED5"},
    )
    assert config.store_options == {
        "secret_access_key": "PLANTED3",
        "allow_http": "true",
        "session_token": "PLANTED5",
    }
    for text in (repr(config), str(config), f"{config}"):
        assert "PLANTED" not in text
        assert "secret_access_key" in text
        assert "linger_ms=5.0" in text
    with pytest.raises(InvalidConfig) as caught:
        producer(store__secret_access_key=[b"PLANTED"])
    assert "PLANTED" not in str(caught.value)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        producer().linger_ms = 3  # type: ignore[misc] # the refusal is under test


@pytest.mark.fault("K1")
@given(
    st.dictionaries(
        st.sampled_from([*CLIENT_SETTINGS, *ALIAS_OF]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=8),
            st.binary(max_size=4),
        ),
        max_size=4,
    )
)
def test_any_dict_gives_a_config_or_an_error_that_names_the_key(conf: dict[str, object]) -> None:
    named: list[object] = []
    try:
        config = parse_client_config(ProducerConfig, {**conf, "bootstrap.servers": "memory://test"})
        named.append(config.root)
    except InvalidConfig as error:
        named.append(error.key)
    except TypeError as error:
        named.append(re.search("[a-z]+_cb|logger", str(error)))
    assert None not in named


# --- topics ---


def test_topic_settings_go_into_properties_and_come_back() -> None:
    properties = topic_properties(
        {
            "retention.ms": "1000",
            "cleanup.policy": "compact, delete",
            "compression.type": "uncompressed",
            "preallocate": True,
            "retention.bytes": None,
        }
    )
    assert properties == {
        "deltaq.retention.ms": "1000",
        "deltaq.cleanup.policy": "compact,delete",
        "deltaq.compression.type": "none",
        "deltaq.preallocate": "true",
    }
    settings = TopicSettings.from_properties(
        properties | {"delta.appendOnly": "true", "deltaq.from.the.future": "?"}
    )
    assert settings.retention_ms == 1_000
    assert settings.cleanup_policy == ("compact", "delete")
    assert settings.compression_type == "none"


def test_a_topic_without_settings_has_the_defaults_of_kafka() -> None:
    settings = TopicSettings.from_properties({})
    assert settings.retention_ms == 7 * 24 * 3_600_000
    assert settings.retention_bytes == -1
    assert settings.cleanup_policy == ("delete",)
    assert settings.max_message_bytes == 1_048_588
    assert settings.compression_type == "producer"
    assert settings.message_timestamp_type == "CreateTime"
    assert settings.partitions == 1


@pytest.mark.parametrize(
    "config",
    [
        {"retention.mss": 1},
        {"retention.ms": -2},
        {"retention.ms": "soon"},
        {"cleanup.policy": "shred"},
        {"cleanup.policy": "delete,"},
        {"message.timestamp.type": "Yesterday"},
        {"partitions": 0},
        {"min.cleanable.dirty.ratio": 1.5},
    ],
    ids=str,
)
def test_a_wrong_topic_setting_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        topic_properties(config)
    assert caught.value.args[0] == KafkaError.INVALID_CONFIG
    assert caught.value.key in config


def test_the_spelling_of_words_is_kafkas() -> None:
    assert topic_properties({"message.timestamp.type": "logappendtime"}) == {
        "deltaq.message.timestamp.type": "LogAppendTime"
    }


def test_all_topic_settings_can_be_shown() -> None:
    shown = topic_config({"deltaq.retention.ms": "5"})
    assert shown.keys() == TOPIC_SETTINGS.keys()
    assert shown["retention.ms"] == "5"
    assert shown["cleanup.policy"] == "delete"
    assert shown["preallocate"] == "false"
    assert shown["min.cleanable.dirty.ratio"] == "0.5"
    assert topic_properties(shown).keys() == {f"deltaq.{name}" for name in TOPIC_SETTINGS}


# --- documentation ---
