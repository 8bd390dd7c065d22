"""The options of `format("deltaq")`: accepted values, and the errors for the others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from deltaq.errors import InvalidConfig
from deltaq.spark.bounds import Bound, Edge, Limit, Moment
from deltaq.spark.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    SourceTopics,
    TaskLimits,
    TriggerLimits,
    parse_sink_options,
    parse_source_options,
)

READ = {"path": "/data/events", "subscribe": "orders"}
WRITE = {"path": "/data/events", "topic": "orders"}


def test_the_guide_knows_every_option() -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs/guides/spark.md").read_text()
    assert [
        option for option in (*SOURCE_OPTIONS, *SINK_OPTIONS) if f"`{option}`" not in guide
    ] == []


def test_a_read_needs_only_a_root_and_a_topic() -> None:
    options = parse_source_options(READ)
    assert options.client.root == "/data/events"
    assert options.subscription == SourceTopics(("orders",))
    assert (options.starting, options.ending) == (None, None)
    assert (options.trigger, options.tasks) == (
        TriggerLimits(None, None, delay_s=900),
        TaskLimits(1, None),
    )
    assert (options.headers, options.fail_on_data_loss, options.columns) == (False, True, "kafka")


@pytest.mark.parametrize("name", ["path", "root", "bootstrap.servers", "kafka.bootstrap.servers"])
def test_the_root_may_be_named_as_in_kafka_or_as_a_path(name: str) -> None:
    assert (
        parse_source_options({name: "s3://bucket/prefix", "subscribe": "orders"}).client.root
        == "s3://bucket/prefix"
    )


@pytest.mark.parametrize(
    "options",
    [{"subscribe": "orders"}, {**READ, "kafka.bootstrap.servers": "/elsewhere"}],
    ids=["none", "two"],
)
def test_no_root_and_two_roots_are_refused_with_the_option_to_set(options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match='set one option "path"'):
        parse_source_options(options)


def test_a_list_of_brokers_as_root_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(InvalidConfig, match="list of brokers"):
        parse_source_options(
            {"kafka.bootstrap.servers": "one:9092,two:9092", "subscribe": "orders"}
        )


def test_option_names_are_compared_without_case() -> None:
    options = parse_source_options({**READ, "INCLUDEHEADERS": "TRUE", "maxoffsetspertrigger": "7"})
    assert (options.headers, options.trigger.offsets_max) == (True, 7)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscribepatern", "subscribePattern"),
        ("maxOffsets", "maxOffsetsPerTrigger"),
        ("startingOffsetsByTimestamps", "startingOffsetsByTimestamp"),
        ("wildcards", None),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(
    name: str, near: str | None
) -> None:
    with pytest.raises(
        InvalidConfig, match=f'did you mean "{near}"' if near else "known are subscribe, "
    ):
        parse_source_options({**READ, name: "x"})


def test_options_of_the_other_side_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    both = {**READ, **WRITE, "startingOffsets": "earliest", "txnAppId": "a"}
    with caplog.at_level(logging.INFO, "deltaq.spark"):
        assert parse_sink_options(both).topic == "orders"
        assert parse_source_options(both).subscription == SourceTopics(("orders",))
    assert [record.args for record in caplog.records if "startingoffsets" in record.getMessage()]


@pytest.mark.parametrize(
    "options", [{}, {"provider": "deltaq", "option.path": "/data", "path": "/data"}]
)
def test_a_table_of_sparks_catalog_is_refused_with_the_view_that_works(
    options: dict[str, str],
) -> None:
    with pytest.raises(InvalidConfig, match="use CREATE TEMPORARY VIEW"):
        parse_source_options(options)


@pytest.mark.parametrize(
    "name",
    [
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "checkpointLocation",
        "queryName",
    ],
)
def test_options_that_only_brokers_or_spark_need_are_ignored(name: str) -> None:
    assert parse_source_options({**READ, name: "x"}) == parse_source_options(READ)


def test_options_with_the_kafka_prefix_configure_the_client() -> None:
    client = parse_sink_options(
        {**WRITE, "kafka.compression.type": "zstd", "kafka.num.partitions": "8"}
    ).client
    assert (client.compression_type, client.num_partitions) == ("zstd", 8)
    with pytest.raises(InvalidConfig, match=r"compression\.tipe"):
        parse_sink_options({**WRITE, "kafka.compression.tipe": "zstd"})


@pytest.mark.fault("K5")
def test_store_options_reach_the_store_and_are_never_shown() -> None:
    options = parse_source_options(
        {**READ, "path": "s3://bucket", "store.secret_access_key": "wJalrXUtnFEMI"}
    )
    assert options.client.store_options == {"secret_access_key": "wJalrXUtnFEMI"}
    assert "wJalrXUtnFEMI" not in repr(options)


@pytest.mark.parametrize(
    ("options", "subscription"),
    [
        ({"subscribe": "b, a,b"}, SourceTopics(("b", "a"))),
        ({"subscribePattern": "orders-.*"}, SourceTopics(pattern="orders-.*")),
        (
            {"assign": '{"a":[0,2],"b":[1]}'},
            SourceTopics(("a", "b"), assigned={"a": frozenset({0, 2}), "b": frozenset({1})}),
        ),
    ],
)
def test_topics_are_chosen_in_the_three_ways_of_kafka(
    options: dict[str, str], subscription: SourceTopics
) -> None:
    assert parse_source_options({"path": "/data", **options}).subscription == subscription


@pytest.mark.parametrize(
    "extra", [{}, {"subscribe": "a", "assign": '{"a":[0]}'}], ids=["none", "two"]
)
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
def test_offsets_are_words_or_json_for_each_partition(text: str, bound: Bound) -> None:
    options = parse_source_options({**READ, "startingOffsets": text, "endingOffsets": text})
    assert (options.starting, options.ending) == (
        Limit("startingOffsets", bound),
        Limit("endingOffsets", bound),
    )


EACH = '{"orders":{"0":1700000000000,"1":0}}'
TIMES = {"orders": {0: 1_700_000_000_000, 1: 0}}


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_one_time_wins_over_times_and_these_over_offsets(
    side: str, caplog: pytest.LogCaptureFixture
) -> None:
    def bound(**options: str) -> Limit | None:
        parsed = parse_source_options(
            READ | {side + name: value for name, value in options.items()}
        )
        return parsed.starting if side == "starting" else parsed.ending

    is_end = side == "ending"
    one, each = Moment(5, or_latest=is_end), Moment(TIMES, or_latest=is_end)
    with caplog.at_level(logging.INFO, "deltaq.spark"):
        assert bound(Offsets="{", OffsetsByTimestamp="{", Timestamp=" 5 ") == Limit(
            f"{side}Timestamp", one
        )
    assert [
        f"name={side}{name} used={side}Timestamp" in caplog.text
        for name in ("OffsetsByTimestamp", "Offsets")
    ] == [
        True,
        True,
    ]
    assert bound(Offsets="{", OffsetsByTimestamp=EACH) == Limit(f"{side}OffsetsByTimestamp", each)
    assert bound(Offsets="latest") == Limit(f"{side}Offsets", Edge.LATEST)


@pytest.mark.parametrize("name", ["startingTimestamp", "startingOffsetsByTimestamp"])
@pytest.mark.parametrize(("strategy", "or_latest"), [("error", False), ("LATEST", True)])
def test_the_strategy_applies_to_both_options_for_times(
    name: str, strategy: str, or_latest: bool
) -> None:
    value = "5" if name == "startingTimestamp" else EACH
    parsed = parse_source_options(
        {**READ, name: value, "startingOffsetsByTimestampStrategy": strategy}
    )
    assert parsed.starting is not None
    assert isinstance(parsed.starting.bound, Moment)
    assert parsed.starting.bound.or_latest is or_latest


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("10s", 10),
        ("5min", 300),
        (" 2H ", 7200),
        ("1d", 86_400),
        ("250", 0.25),
        ("250ms", 0.25),
        ("0s", 0),
    ],
)
def test_a_delay_is_a_duration_of_spark(text: str, seconds: float) -> None:
    assert parse_source_options({**READ, "maxTriggerDelay": text}).trigger.delay_s == seconds


def test_a_minimum_above_the_maximum_is_refused() -> None:
    limits = {"minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "8"}
    assert parse_source_options(READ | limits).trigger == TriggerLimits(8, 8, 900)
    with pytest.raises(InvalidConfig, match="it is above maxOffsetsPerTrigger, which is 7"):
        parse_source_options(READ | limits | {"maxOffsetsPerTrigger": "7"})


def test_tasks_have_a_least_number_and_a_largest_size() -> None:
    options = parse_source_options({**READ, "minPartitions": "4", "maxRecordsPerPartition": "100"})
    assert options.tasks == TaskLimits(4, 100)


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
        ("startingOffsetsByTimestamp", "5"),
        ("startingOffsetsByTimestamp", '{"orders":{"0":-2}}'),
        ("endingOffsetsByTimestamp", '{"orders":{"0":"5"}}'),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("maxOffsetsPerTrigger", "0"),
        ("minOffsetsPerTrigger", "0"),
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "-1s"),
        ("maxTriggerDelay", "5 weeks"),
        ("maxRecordsPerPartition", "0"),
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
        parse_source_options(
            {**READ, "startingTimestamp": "5", name: value}
            if "Strategy" in name
            else {**READ, name: value}
        )


@pytest.mark.parametrize(
    "value", ["{}", '{"a":[]}', '{"a":[-1]}', '{"a":0}', '{"a":["0"]}', '{"a":[true]}']
)
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


def test_large_messages_are_refused_by_the_name_of_the_setting() -> None:
    for parse, options in ((parse_source_options, READ), (parse_sink_options, WRITE)):
        with pytest.raises(
            InvalidConfig, match=r"kafka\.large\.message\.enabled.* is not supported: Spark"
        ):
            parse({**options, "kafka.large.message.enabled": "true"})
