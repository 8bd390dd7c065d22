"""What confluent-kafka and a broker showed of groups, shown by deltaq for the same calls.

`kafka_observations.json` has what was observed with confluent-kafka 2.x and Apache Kafka; texts of
errors are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deltaq import KafkaError, KafkaException, Message, TopicPartition
from tests.doubles.consumer_group import ConsumerGroup, numbers
from tests.doubles.reading import drain, eventually

OBSERVED: dict[str, Any] = json.loads(
    Path(__file__).with_name("kafka_observations.json").read_text()
)


@pytest.fixture
def group(root: str) -> Iterator[ConsumerGroup]:
    made = ConsumerGroup(root)
    yield made
    made.close_all()


def shown(error: KafkaError | None) -> dict[str, object] | None:
    """An error as observations have it."""
    return None if error is None else {"code": error.code(), "err": error.name()}


def refused(call: Any, *arguments: Any, **keywords: Any) -> dict[str, object] | None:
    """The error with which a call is refused."""
    try:
        call(*arguments, **keywords)
    except KafkaException as error:
        return shown(error.error)
    return None


def event_of(message: Message) -> str:
    """The name of the error of an event."""
    error = message.error()
    return "message" if error is None else error.name()


@pytest.mark.parametrize(
    ("name", "conf"),
    [
        ("rebalance_default_strategy", {}),
        ("rebalance_default_strategy", {"group__protocol": "consumer"}),
        ("rebalance_range", {"partition__assignment__strategy": "range"}),
        ("rebalance_roundrobin", {"partition__assignment__strategy": "roundrobin"}),
        ("rebalance_cooperative_sticky", {"partition__assignment__strategy": "cooperative-sticky"}),
    ],
)
def test_one_member_two_members_one_member(
    name: str, conf: dict[str, str], group: ConsumerGroup
) -> None:
    group.topic("t", 4)
    seen: dict[str, Any] = {}

    def end_phase(phase: str) -> None:
        group.follow()
        seen[phase] = {"events": group.events(), "assignment": group.assignment()}

    group.join("A", ["t"], **conf)
    end_phase("1_A_joins")
    group.join("B", ["t"], **conf)
    end_phase("2_B_joins")
    seen["assignor"] = group.log.head().protocol
    group.close("B")
    end_phase("3_B_closes")
    group.close("A")
    seen["4_A_closes"] = group.events()
    assert seen == {key: found for key, found in OBSERVED[name].items() if key != "type"}


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_two_members_of_two_topics(strategy: str, group: ConsumerGroup) -> None:
    for topic in ("ta", "tb"):
        group.topic(topic, 3)
    for name in "AB":
        group.join(name, ["ta", "tb"], partition__assignment__strategy=strategy)
    group.follow()
    found = {
        name: [[tp.topic, tp.partition] for tp in c.assignment()]
        for name, c in group.consumers.items()
    }
    assert found == OBSERVED["rebalance_two_topics_range"][strategy]


def test_static_members_close_and_return(group: ConsumerGroup) -> None:
    group.topic("t", 4)
    for name in "AB":
        group.join(name, ["t"], group__instance__id=name, partition__assignment__strategy="range")
        group.follow()
    seen: dict[str, Any] = {"before": group.assignment()}
    group.take_calls()

    def take() -> list[list[Any]]:
        return [
            [name, event, [number for _, number in parts]]
            for name, event, parts in group.take_calls()
        ]

    group.close("B")
    seen["close_events"] = take()
    for _ in range(20):
        group.poll(group.consumers["A"], 0.01)
    seen["members_while_away"] = len(group.log.head().members)
    seen["instances"] = sorted(
        str(member.instance_id) for member in group.log.head().members.values()
    )
    seen["a_events_while_away"] = take()
    # The time-out of its last session counts.
    group.join(
        "B",
        ["t"],
        group__instance__id="B",
        partition__assignment__strategy="range",
        session__timeout__ms=1000,
    )
    group.follow()
    seen["rejoin_events"] = take()
    group.close("B")
    take()
    group.poll_until(
        lambda: len(group.consumers["A"].assignment()) == 4, "the session time-out of B"
    )
    seen["after_session_timeout"] = {"a_got_all": True, "events": take()}
    assert seen == OBSERVED["static_membership"]


def test_two_consumers_with_the_same_instance_id(group: ConsumerGroup) -> None:
    group.topic("t", 2)
    errors: list[str] = []
    old = group.join(
        "a", ["t"], group__instance__id="X", error_cb=lambda error: errors.append(error.name())
    )
    group.follow()
    new = group.join("b", ["t"], group__instance__id="X")
    group.poll_until(
        lambda: group.messages and len(new.assignment()) == 2, "the end of the old one"
    )
    for _ in range(20):
        group.poll(old)
    assert [name for name, _ in group.messages] == ["a"]
    ((_, message),) = group.messages
    error = message.error()
    assert error is not None
    # As observed with confluent-kafka 2.16.
    assert (error.code(), error.fatal()) == (KafkaError._FATAL, False)
    assert {
        "new_assignment": numbers(new.assignment()),
        "old_commit": refused(old.commit, offsets=[TopicPartition("t", 0, 1)], asynchronous=False),
        "old_error_cb": errors,
        "old_poll_events": [error.name()],
        "old_poll_raised": None,
    } == OBSERVED["static_duplicate_instance"]


@pytest.mark.parametrize(
    ("strategy", "idle_member"),
    [
        ("range", [["assign", []], ["revoke", []], ["assign", [0]], ["revoke", [0]]]),
        ("cooperative-sticky", [["assign", []], ["assign", [0]], ["revoke", [0]]]),
    ],
)
def test_callbacks_of_a_member_without_partitions(
    strategy: str, idle_member: list[Any], group: ConsumerGroup
) -> None:
    group.topic("t")
    for name in "AB":
        group.join(name, ["t"], partition__assignment__strategy=strategy)
        group.follow()
    group.close("A")
    group.follow()
    group.close("B")
    # As observed with confluent-kafka 2.16 and a broker.
    assert group.events()["B"] == idle_member


def test_a_consumer_that_was_replaced_can_only_be_closed(group: ConsumerGroup) -> None:
    group.topic("t", 2)
    old = group.join("a", ["t"], group__instance__id="X")
    group.follow()
    new = group.join("b", ["t"], group__instance__id="X")
    group.poll_until(
        lambda: group.messages and len(new.assignment()) == 2, "the end of the old one"
    )
    # As observed with confluent-kafka 2.16 and a broker.
    for call in (
        partial(old.subscribe, ["t"]),
        old.unsubscribe,
        partial(old.commit, asynchronous=False),
    ):
        with pytest.raises(KafkaException) as caught:
            call()
        error = caught.value.args[0]
        assert (error.code(), error.fatal()) == (KafkaError._FATAL, False)
    group.close("a")
    group.poll(new)
    assert (len(group.messages), len(new.assignment())) == (1, 2)


def test_a_static_member_that_unsubscribes_leaves_the_group(group: ConsumerGroup) -> None:
    group.topic("t", 2)
    leaver = group.join("a", ["t"], group__instance__id="X")
    group.follow()
    leaver.unsubscribe()
    # As observed with confluent-kafka 2.16 and a broker.
    assert group.log.head().members == {}


def test_a_former_member_cannot_commit_what_it_has_read(group: ConsumerGroup) -> None:
    group.topic("t")
    group.fill("t", 3)
    reader = group.join("a", ["t"])
    message, *_ = drain(reader, 3)
    reader.unsubscribe()
    # As observed with confluent-kafka 2.16 and a broker.
    unknown = {"code": KafkaError.UNKNOWN_MEMBER_ID, "err": "UNKNOWN_MEMBER_ID"}
    assert refused(reader.commit, message, asynchronous=False) == unknown
    assert (
        refused(reader.commit, offsets=[TopicPartition("t", 0, 2)], asynchronous=False) == unknown
    )
    reader.assign([TopicPartition("t", 0, 0)])
    (result,) = reader.commit(message, asynchronous=False)
    assert (result.offset, result.error) == (1, None), (
        "no member any more, as any consumer with assign()"
    )


def test_members_without_a_common_assignor(group: ConsumerGroup) -> None:
    group.topic("t", 2)
    holder = group.join("a", ["t"], partition__assignment__strategy="range")
    group.follow()
    other = group.join("b", ["t"], partition__assignment__strategy="cooperative-sticky")
    group.poll_until(lambda: group.messages, "a refusal")
    assert {
        "a": numbers(holder.assignment()),
        "b_assignment": other.assignment(),
        "b_events": [event_of(message) for name, message in group.messages if name == "b"],
    } == OBSERVED["assignor_mismatch"]


def test_an_application_that_polls_too_late(group: ConsumerGroup) -> None:
    group.topic("t")
    group.fill("t", 3)
    late = group.join(
        "A",
        ["t"],
        partition__assignment__strategy="range",
        session__timeout__ms=2000,
        max__poll__interval__ms=2000,
        heartbeat__interval__ms=20,
    )
    drain(late, 2)
    eventually(lambda: late.memberid() is None, "the end of its membership")
    # The group hears of it right after the consumer itself.
    eventually(lambda: group.log.head().members == {}, "the member to leave")
    seen: dict[str, Any] = {"commit_late": refused(late.commit, asynchronous=False)}
    seen["polls"] = [
        {"event": event_of(message), "o": message.offset(), "p": 0, "t": message.topic()}
        if message.error() is not None
        else {
            "o": message.offset(),
            "p": message.partition(),
            "v": (message.value() or b"").decode(),
        }
        for message in drain(late, 4)
    ]
    seen["callbacks"] = group.events()["A"]
    assert seen == OBSERVED["max_poll_exceeded"]


def test_an_outsider_commits_offsets(group: ConsumerGroup) -> None:
    group.topic("t")
    group.fill("t", 3)
    group.join("A", ["t"])
    group.follow()
    outsider = group.consumer("B")
    assert {
        "outsider_commit": refused(
            outsider.commit, offsets=[TopicPartition("t", 0, 1)], asynchronous=False
        ),
        "outsider_read": [
            {"t": tp.topic, "p": tp.partition, "o": tp.offset}
            for tp in outsider.committed([TopicPartition("t", 0)])
        ],
    } == OBSERVED["commit_from_outsider"]
