"""The options of `format("deltaq")`: accepted values, and the errors for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaq.errors import InvalidConfig
from deltaq.spark.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Edge,
    Moment,
    Subscription,
    parse_sink_options,
    parse_source_options,
)

READ = {"path": "/data/events", "subscribe": "orders"}
WRITE = {"path": "/data/events", "topic": "orders"}


def test_the_guide_knows_every_option() -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs/guides/spark.md").read_text()
    assert [option for option in (*SOURCE_OPTIONS, *SINK_OPTIONS) if f"`{option}`" not in guide] == []


def test_a_read_needs_only_a_root_and_a_topic() -> None:
    options = parse_source_options(READ)
    assert options.client.root == "/data/events"
    assert options.subscription == Subscription(("orders",))
    assert (options.starting, options.ending, options.offsets_per_trigger) == (None, None, None)
    assert (options.headers, options.fail_on_data_loss, options.columns) == (False, True, "kafka")


@pytest.mark.parametrize("name", ["path", "root", "bootstrap.servers", "kafka.bootstrap.servers"])
def test_the_root_may_be_named_as_in_kafka_or_as_a_path(name: str) -> None:
    assert parse_source_options({name: "s3://bucket/prefix", "subscribe": "orders"}).client.root == "s3://bucket/prefix"


@pytest.mark.parametrize(
    "options", [{"subscribe": "orders"}, {**READ, "kafka.bootstrap.servers": "/elsewhere"}], ids=["none", "two"]
)
def test_no_root_and_two_roots_are_refused_with_the_option_to_set(options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match='set one option "path"'):
        parse_source_options(options)


def test_a_list_of_brokers_as_root_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(InvalidConfig, match="list of brokers"):
        parse_source_options({"kafka.bootstrap.servers": "one:9092,two:9092", "subscribe": "orders"})


def test_option_names_are_compared_without_case() -> None:
    options = parse_source_options({**READ, "INCLUDEHEADERS": "TRUE", "maxoffsetspertrigger": "7"})
    assert (options.headers, options.offsets_per_trigger) == (True, 7)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscribepatern", "subscribePattern"),
        ("maxOffsets", "maxOffsetsPerTrigger"),
        ("wildcards", None),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(name: str, near: str | None) -> None:
    with pytest.raises(InvalidConfig, match=f'did you mean "{near}"' if near else "known are subscribe, "):
        parse_source_options({**READ, name: "x"})


def test_an_option_of_reading_is_unknown_to_writing() -> None:
    with pytest.raises(InvalidConfig, match="no such option"):
        parse_sink_options({**WRITE, "startingOffsets": "earliest"})


@pytest.mark.parametrize(
    "name",
    ["groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "checkpointLocation", "queryName"],
)
def test_options_that_only_brokers_or_spark_need_are_ignored(name: str) -> None:
    assert parse_source_options({**READ, name: "x"}) == parse_source_options(READ)


def test_options_with_the_kafka_prefix_configure_the_client() -> None:
    client = parse_sink_options({**WRITE, "kafka.compression.type": "zstd", "kafka.num.partitions": "8"}).client
    assert (client.compression_type, client.num_partitions) == ("zstd", 8)
    with pytest.raises(InvalidConfig, match=r"compression\.tipe"):
        parse_sink_options({**WRITE, "kafka.compression.tipe": "zstd"})


@pytest.mark.fault("K5")
def test_store_options_reach_the_store_and_are_never_shown() -> None:
    options = parse_source_options({**READ, "path": "s3://bucket", "store.secret_access_key": "wJalrXUtnFEMI"})
    assert options.client.store_options == {"secret_access_key": "wJalrXUtnFEMI"}
    assert "wJalrXUtnFEMI" not in repr(options)


@pytest.mark.parametrize(
    ("options", "subscription"),
    [
        ({"subscribe": "b, a,b"}, Subscription(("b", "a"))),
        ({"subscribePattern": "orders-.*"}, Subscription(pattern="orders-.*")),
        (
            {"assign": '{"a":[0,2],"b":[1]}'},
            Subscription(("a", "b"), assigned={"a": frozenset({0, 2}), "b": frozenset({1})}),
        ),
    ],
)
def test_topics_are_chosen_in_the_three_ways_of_kafka(options: dict[str, str], subscription: Subscription) -> None:
    assert parse_source_options({"path": "/data", **options}).subscription == subscription


@pytest.mark.parametrize("extra", [{}, {"subscribe": "a", "assign": '{"a":[0]}'}], ids=["none", "two"])
def test_exactly_one_way_of_choosing_topics_must_be_given(extra: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="exactly one of"):
        parse_source_options({"path": "/data", **extra})


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Edge.EARLIEST),
        ("Latest", Edge.LATEST),
        ('{"orders":{"0":23,"1":-2,"2":-1}}', {"orders": {0: 23, 1: -2, 2: -1}}),
    ],
)
def test_offsets_are_words_or_json_for_each_partition(text: str, bound: object) -> None:
    options = parse_source_options({**READ, "startingOffsets": text, "endingOffsets": text})
    assert options.starting == options.ending == bound


def test_starting_offsets_win_over_a_starting_time() -> None:
    assert parse_source_options({**READ, "startingTimestamp": "1700000000000"}).starting == Moment(1_700_000_000_000)
    with pytest.raises(InvalidConfig, match="not both"):
        parse_source_options({**READ, "startingTimestamp": "1", "startingOffsets": "earliest"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "soonest"),
        ("startingOffsets", "{}"),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"orders":5}'),
        ("startingOffsets", '{"orders":{"0":-3}}'),
        ("startingOffsets", '{"orders":{"0":1.5}}'),
        ("startingOffsets", '{"orders":{"0":true}}'),
        ("startingOffsets", '{"orders":{"x":1}}'),
        ("startingOffsets", '{"orders":{"0":1,"0":2}}'),
        ("endingOffsets", "["),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("minPartitions", "-1"),
        ("includeHeaders", "yes"),
        ("failOnDataLoss", "1"),
        ("columns", "all"),
        ("startingTimestamp", "yesterday"),
        ("subscribe", " , "),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_option(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f'option "{name}" cannot be'):
        parse_source_options({**READ, name: value})


@pytest.mark.parametrize("value", ["{}", '{"a":[]}', '{"a":[-1]}', '{"a":0}', '{"a":["0"]}', '{"a":[true]}'])
def test_an_assignment_without_partitions_is_refused_with_an_example(value: str) -> None:
    with pytest.raises(InvalidConfig, match="use JSON such as"):
        parse_source_options({"path": "/data", "assign": value})


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="not a regular expression"):
        parse_source_options({"path": "/data", "subscribePattern": "orders-("})


def test_a_topic_name_is_checked_before_anything_is_read() -> None:
    with pytest.raises(InvalidConfig, match="invalid topic name"):
        parse_source_options({"path": "/data", "subscribe": "a/b"})
    with pytest.raises(InvalidConfig, match="invalid topic name"):
        parse_sink_options({"path": "/data", "topic": "../b"})


def test_a_write_may_take_the_topic_from_its_rows() -> None:
    options = parse_sink_options({"path": "/data", "txnAppId": "nightly", "txnVersion": "20"})
    assert (options.topic, options.txn_app_id, options.txn_version) == (None, "nightly", 20)
