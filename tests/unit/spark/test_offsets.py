"""Which offsets a micro-batch reads: rules that hold whatever the topics look like."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.spark.bounds import Bound, Edge, Limit, Moment
from deltaq.spark.offsets import (
    DataLoss,
    SourceOffset,
    TopicOffsets,
    as_json,
    at_bound,
    available,
    backlog,
    check_order,
    from_json,
    limited,
    to_read,
)
from deltaq.spark.options import SourceTopics
from deltaq.topics.state import TopicHead

ALL = SourceTopics(("orders",))
FAIL, GO_ON = DataLoss(fail=True), DataLoss(fail=False)


def head(*ranges: tuple[int, int], topic_id: str = "one") -> TopicHead:
    return TopicHead(
        topic_id, tuple(end for _, end in ranges), tuple(start for start, _ in ranges), 0
    )


def offset(*next_offsets: int, topic_id: str = "one") -> SourceOffset:
    return {"orders": TopicOffsets(topic_id, dict(enumerate(next_offsets)))}


def nowhere(topic: str, partition: int, time_ms: int) -> int | None:
    return None


heads = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=6).map(
    lambda pairs: head(*((start, start + size) for start, size in pairs))
)


@given(heads)
def test_offsets_round_trip_through_a_checkpoint(topic: TopicHead) -> None:
    kept = available({"orders": topic, "b": topic}, SourceTopics(("orders", "b")))
    assert from_json(json.loads(json.dumps(as_json(kept)))) == kept


def test_equal_offsets_give_equal_text_in_any_order() -> None:
    one = {"b": TopicOffsets("x", {10: 1, 2: 3}), "a": TopicOffsets("y", {0: 0})}
    other = {"a": TopicOffsets("y", {0: 0}), "b": TopicOffsets("x", {2: 3, 10: 1})}
    assert json.dumps(as_json(one)) == json.dumps(as_json(other))


@pytest.mark.parametrize(
    "body", [{"orders": {"0": 5}}, {"orders": 5}, {"orders": {"topic_id": "x"}}]
)
def test_the_checkpoint_of_another_source_is_refused(body: Mapping[str, object]) -> None:
    with pytest.raises(InvalidConfig, match="set another checkpointLocation"):
        from_json(body)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (Edge.EARLIEST, (3, 0)),
        (Edge.LATEST, (9, 4)),
        ({"orders": {0: 5, 1: -2}}, (5, 0)),
        ({"orders": {0: -1, 1: 77}}, (9, 77)),
        (Moment(1000, or_latest=True), (6, 4)),
        (Moment({"orders": {0: 1000, 1: 2000}}, or_latest=True), (6, 4)),
    ],
)
def test_a_query_begins_at_the_position_of_its_option(
    bound: Bound, expected: tuple[int, int]
) -> None:
    def look_up(topic: str, partition: int, time_ms: int) -> int | None:
        assert (topic, time_ms) in (("orders", 1000), ("orders", 2000))
        return 6 if partition == 0 else None  # no record of partition 1 is that late

    limit = Limit("startingOffsets", bound)
    assert at_bound(limit, {"orders": head((3, 9), (0, 4))}, ALL, look_up) == offset(*expected)


@pytest.mark.parametrize("times", [1000, {"orders": {0: 500, 1: 1000}}])
def test_a_time_after_the_last_record_is_an_error_with_its_place_and_the_remedy(times: int) -> None:
    limit = Limit("startingTimestamp", Moment(times, or_latest=False))
    place = "topic 'orders' partition 1 has no record with the timestamp 1000 ms"
    with pytest.raises(
        InvalidConfig, match=f'{place}.*"startingOffsetsByTimestampStrategy" to latest'
    ):
        at_bound(
            limit,
            {"orders": head((0, 9), (0, 4))},
            ALL,
            lambda topic, partition, _: (6, None)[partition],
        )


@pytest.mark.parametrize(
    ("bound", "complaint"),
    [
        ({"orders": {0: 5}}, "lacks orders/1"),
        ({"orders": {0: 5, 1: 0, 2: 0}}, "names orders/2, which is not read"),
        ({"orders": {0: 5, 1: 0}, "b": {0: 1}}, "names b/0"),
        (Moment({"orders": {1: 5}}, or_latest=True), "lacks orders/0: give a time in milliseconds"),
    ],
)
def test_offsets_are_given_for_just_the_partitions_that_are_read(
    bound: Bound, complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        at_bound(Limit("startingOffsets", bound), {"orders": head((0, 9), (0, 4))}, ALL, nowhere)


def test_a_batch_that_ends_before_it_begins_is_refused() -> None:
    check_order(offset(4, 4), offset(4, 5))
    with pytest.raises(
        InvalidConfig, match="partition 1: its start 4 is after its endingOffsets 3"
    ):
        check_order(offset(4, 4), offset(4, 3))


def test_assigned_partitions_are_read_and_no_others() -> None:
    chosen = SourceTopics(("orders",), assigned={"orders": frozenset({1})})
    assert available({"orders": head((0, 9), (0, 4))}, chosen) == {
        "orders": TopicOffsets("one", {1: 4})
    }


# --- limits ---


@given(heads, st.integers(1, 1000), st.data())
def test_a_limited_micro_batch_is_as_large_as_the_limit_allows(
    topic: TopicHead, rows_max: int, data: st.DataObject
) -> None:
    begins = [
        data.draw(st.integers(s, e))
        for s, e in zip(topic.start_offsets, topic.next_offsets, strict=True)
    ]
    start, end = offset(*begins), available({"orders": topic}, ALL)
    waiting = sum(topic.next_offsets) - sum(begins)
    cut = limited(start, end, {"orders": topic}, rows_max)["orders"].next_offsets
    assert all(begin <= cut[p] <= topic.next_offsets[p] for p, begin in enumerate(begins))
    assert sum(cut.values()) - sum(begins) == min(rows_max, waiting)


def test_the_backlog_counts_new_partitions_from_their_beginning_and_none_below_zero() -> None:
    topics = {"orders": head((0, 9), (3, 5), (0, 4))}
    assert (
        backlog({"orders": TopicOffsets("one", {0: 7, 2: 6})}, available(topics, ALL), topics)
        == 2 + 2
    )


@given(heads, st.integers(6, 1000))
def test_every_partition_with_new_records_gets_a_share(topic: TopicHead, rows_max: int) -> None:
    cut = limited({}, available({"orders": topic}, ALL), {"orders": topic}, rows_max)[
        "orders"
    ].next_offsets
    for partition, (start, end) in enumerate(
        zip(topic.start_offsets, topic.next_offsets, strict=True)
    ):
        assert start == end or cut[partition] > start


def test_with_fewer_offsets_than_partitions_they_take_turns() -> None:
    topic = head((0, 1000), (0, 1000), (0, 2))
    position: SourceOffset = offset(0, 0, 0)
    for _ in range(6):
        position = limited(position, available({"orders": topic}, ALL), {"orders": topic}, 1)
    assert position["orders"].next_offsets == {0: 2, 1: 2, 2: 2}


def test_a_busy_partition_gets_the_larger_part() -> None:
    topic = head((0, 900), (0, 100))
    assert limited({}, available({"orders": topic}, ALL), {"orders": topic}, 100) == offset(90, 10)


@given(heads, st.integers(1, 300))
def test_micro_batch_after_micro_batch_reads_each_offset_once(
    topic: TopicHead, rows_max: int
) -> None:
    end = available({"orders": topic}, ALL)
    position: SourceOffset = {"orders": TopicOffsets("one", dict(enumerate(topic.start_offsets)))}
    read: dict[int, list[int]] = {partition: [] for partition in range(topic.partitions)}
    while position != end:
        until = limited(position, end, {"orders": topic}, rows_max)
        for partition, span in (
            to_read(position, until, {"orders": topic}, FAIL).get("orders", {}).items()
        ):
            read[partition] += range(*span)
        assert until != position
        position = until
    expected = {
        p: list(range(s, e))
        for p, (s, e) in enumerate(zip(topic.start_offsets, topic.next_offsets, strict=True))
    }
    assert read == expected


# --- loss ---


def test_partitions_and_topics_that_are_new_are_read_from_their_beginning() -> None:
    topics = {"orders": head((0, 9), (3, 4)), "new": head((2, 5), topic_id="two")}
    end = available(topics, SourceTopics(("orders", "new")))
    assert to_read(offset(7), end, topics, FAIL) == {
        "orders": {0: (7, 9), 1: (3, 4)},
        "new": {0: (2, 5)},
    }


LOSSES = [
    pytest.param(
        offset(1),
        offset(9),
        head((4, 9)),
        {"orders": {0: (4, 9)}},
        "out of range",
        id="removed by retention",
    ),
    pytest.param(
        offset(7), {}, None, {}, "was deleted, or the query no longer subscribes", id="deleted"
    ),
    pytest.param(
        offset(7),
        offset(3, topic_id="two"),
        head((0, 3), topic_id="two"),
        {"orders": {0: (0, 3)}},
        "deleted and created again",
        id="created again",
    ),
    pytest.param(
        offset(3),
        offset(7),
        head((0, 9), topic_id="two"),
        {},
        "deleted before it was read",
        id="created again meanwhile",
    ),
    pytest.param(
        offset(7), offset(5), head((0, 5)), {}, "out of range", id="an older log was restored"
    ),
]


@pytest.mark.parametrize(("start", "end", "topic", "ranges", "reason"), LOSSES)
def test_lost_records_end_the_query_with_the_option_that_accepts_it(
    start: SourceOffset, end: SourceOffset, topic: TopicHead | None, ranges: object, reason: str
) -> None:
    with pytest.raises(
        KafkaException, match=f'{reason}.*set the option "failOnDataLoss" to false'
    ) as caught:
        to_read(start, end, {} if topic is None else {"orders": topic}, FAIL)
    assert caught.value.error.code() in (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )


@pytest.mark.parametrize(("start", "end", "topic", "ranges", "reason"), LOSSES)
def test_accepted_loss_is_reported_as_a_warning_and_the_rest_is_read(
    start: SourceOffset,
    end: SourceOffset,
    topic: TopicHead | None,
    ranges: object,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "deltaq.spark"):
        assert to_read(start, end, {} if topic is None else {"orders": topic}, GO_ON) == ranges
    assert reason in caplog.text
