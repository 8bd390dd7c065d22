"""What callbacks may do while partitions move between two consumers, and what their exceptions
change.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deltaq import Consumer, KafkaError, KafkaException, TopicPartition
from tests.doubles.consumer_group import ConsumerGroup, numbers
from tests.doubles.reading import drain, eventually, next_message

EAGER, COOPERATIVE = "range", "cooperative-sticky"


@pytest.fixture
def group(root: str) -> Iterator[ConsumerGroup]:
    made = ConsumerGroup(root)
    made.topic("t", 4)
    yield made
    made.close_all()


def committed(reader: Consumer) -> list[int]:
    """The committed offset of each partition; -1001 without one."""
    return [
        tp.offset for tp in reader.committed([TopicPartition("t", number) for number in range(4)])
    ]


def fill(group: ConsumerGroup, count: int, start: int = 0) -> None:
    for partition in range(4):
        group.fill("t", count, partition, start)


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_what_on_revoke_commits_is_where_the_next_owner_begins(
    strategy: str, group: ConsumerGroup
) -> None:
    fill(group, 5)
    first = group.consumer("A", partition__assignment__strategy=strategy)

    def commit(reader: Consumer, partitions: list[TopicPartition]) -> None:
        reader.commit(asynchronous=False)

    first.subscribe(["t"], on_revoke=commit)
    read = {(message.partition(), message.offset()) for message in drain(first, 20)}
    second = group.join("B", ["t"], partition__assignment__strategy=strategy)
    group.follow()
    fill(group, 1, 5)
    group.poll_until(lambda: len(group.messages) == 4, "one record more of each partition")
    read_later = [(message.partition(), message.offset()) for _, message in group.messages]
    assert len(read) == 20
    assert sorted(read_later) == [(number, 5) for number in range(4)], "each record once"
    assert len(second.assignment()) == 2


@pytest.mark.fault("R6")
@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_stored_offsets_move_with_the_partitions_in_the_entry_that_releases_them(
    strategy: str, group: ConsumerGroup
) -> None:
    fill(group, 5)
    conf = {"partition__assignment__strategy": strategy, "enable__auto__commit": True}
    first = group.consumer("A", **conf)
    first.subscribe(["t"])
    drain(first, 20)
    group.join("B", ["t"], **conf)
    group.follow()
    moved = group.consumers["B"].assignment()
    assert [tp.offset for tp in group.consumers["B"].committed(moved)] == [5, 5]


def test_a_seek_in_on_assign_decides_where_reading_begins(group: ConsumerGroup) -> None:
    fill(group, 5)
    reader = group.consumer("A", partition__assignment__strategy=COOPERATIVE)

    def from_three(reader: Consumer, partitions: list[TopicPartition]) -> None:
        reader.incremental_assign(partitions)
        for partition in partitions:
            reader.seek(TopicPartition(partition.topic, partition.partition, 3))

    reader.subscribe(["t"], on_assign=from_three)
    assert sorted((m.partition(), m.offset()) for m in drain(reader, 8)) == [
        (p, o) for p in range(4) for o in (3, 4)
    ]


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_what_the_application_has_paused_stays_paused_over_rebalances(
    strategy: str, group: ConsumerGroup
) -> None:
    first = group.join("A", ["t"], partition__assignment__strategy=strategy)
    group.follow()
    first.pause([TopicPartition("t", number) for number in range(4)])
    group.join("B", ["t"], partition__assignment__strategy=strategy)
    group.follow()
    group.close("B")
    group.follow()
    fill(group, 1)
    for _ in range(20):
        group.poll(first)
    assert (numbers(first.assignment()), group.messages) == ([0, 1, 2, 3], [])
    first.resume(first.assignment())
    group.poll_until(lambda: len(group.messages) == 4, "the records of the resumed partitions")


def test_callbacks_may_add_and_remove_the_partitions_themselves(group: ConsumerGroup) -> None:
    fill(group, 2)
    reader = group.consumer("A", partition__assignment__strategy=COOPERATIVE)
    steps: list[tuple[str, list[int]]] = []

    def add(reader: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = 1
        reader.incremental_assign(partitions)
        steps.append(("added", numbers(reader.assignment())))

    def remove(reader: Consumer, partitions: list[TopicPartition]) -> None:
        reader.incremental_unassign(partitions)
        steps.append(("removed", numbers(reader.assignment())))

    reader.subscribe(["t"], on_assign=add, on_revoke=remove)
    assert sorted((m.partition(), m.offset()) for m in drain(reader, 4)) == [
        (number, 1) for number in range(4)
    ]
    group.join("B", ["t"], partition__assignment__strategy=COOPERATIVE)
    group.follow()
    assert steps == [
        ("added", [0, 1, 2, 3]),
        ("removed", [2, 3]),
        ("added", [2, 3]),
        ("added", [2, 3]),
    ]
    assert group.assignment() == {"A": [2, 3], "B": [0, 1]}


def test_partitions_that_on_revoke_has_not_removed_move_nevertheless(group: ConsumerGroup) -> None:
    """The application's own list of partitions does not decide what the group has given away."""
    group.join("A", ["t"], partition__assignment__strategy=COOPERATIVE)
    group.follow()
    group.consumers["A"].incremental_unassign([TopicPartition("t", 0)])
    group.join("B", ["t"], partition__assignment__strategy=COOPERATIVE)

    def owned() -> list[int]:
        return sorted(
            len(group.log.head().owned(each.memberid() or "")) for each in group.consumers.values()
        )

    # Stable alone is not enough: so is the generation in which A still has all and is asked to give
    # some away.
    group.poll_until(
        lambda: group.log.head().is_stable() and owned() == [2, 2], "two partitions each"
    )


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
@pytest.mark.parametrize("at", ["on_assign", "on_revoke"])
def test_an_exception_of_a_callback_is_raised_by_poll_and_holds_up_no_partition(
    at: str, strategy: str, group: ConsumerGroup
) -> None:
    fill(group, 1)
    failures: list[int] = []

    def fail(reader: Consumer, partitions: list[TopicPartition]) -> None:
        failures.append(len(partitions))
        raise ValueError("mine")

    raised: list[str] = []

    def held(reader: Consumer) -> int:
        try:
            reader.poll(0.005)
        except ValueError as error:
            raised.append(str(error))
        return len(reader.assignment())

    first = group.consumer("A", partition__assignment__strategy=strategy)
    first.subscribe(["t"], **{at: fail})
    eventually(lambda: held(first) == 4, "the first assignment")
    second = group.consumer("B", partition__assignment__strategy=strategy)
    second.subscribe(["t"])
    eventually(lambda: [held(first), held(second)] == [2, 2], "a share for each")
    assert raised == ["mine"] * len(failures)
    assert failures
    if at == "on_revoke":
        with pytest.raises(ValueError, match="mine"):
            first.close()


@pytest.mark.fault("R3")
def test_a_commit_in_on_lost_is_refused(group: ConsumerGroup) -> None:
    fill(group, 1)
    refused: list[KafkaError] = []

    def commit(reader: Consumer, partitions: list[TopicPartition]) -> None:
        with pytest.raises(KafkaException) as caught:
            reader.commit(asynchronous=False)
        refused.append(caught.value.error)

    reader = group.consumer(
        "A", session__timeout__ms=2000, max__poll__interval__ms=2000, heartbeat__interval__ms=20
    )
    reader.subscribe(["t"], on_lost=commit)
    drain(reader, 2)
    eventually(lambda: group.log.head().members == {}, "the end of its membership")
    assert next_message(reader).error() == KafkaError._MAX_POLL_EXCEEDED
    eventually(lambda: reader.poll(0.005) is None or refused, "the loss")
    assert refused == [KafkaError._ASSIGNMENT_LOST]
    assert committed(reader) == [-1001] * 4


def test_partitions_that_stay_are_read_on_while_others_move(group: ConsumerGroup) -> None:
    """Under a cooperative assignor nothing that was fetched of them is dropped or read twice."""
    fill(group, 50)
    first = group.join("A", ["t"], partition__assignment__strategy=COOPERATIVE)
    read = [(message.partition(), message.offset()) for message in drain(first, 10)]
    group.join("B", ["t"], partition__assignment__strategy=COOPERATIVE)
    group.follow()
    stayed = numbers(first.assignment())
    assert [event for name, event, _ in group.calls if name == "A"] == [
        "assign",
        "revoke",
        "assign",
        "assign",
    ]

    def of_first() -> list[tuple[int | None, int | None]]:
        later = [
            (message.partition(), message.offset())
            for name, message in group.messages
            if name == "A"
        ]
        return [place for place in read + later if place[0] in stayed]

    group.poll_until(lambda: len(of_first()) >= 100, "all records that stay")
    for partition in stayed:
        assert [offset for number, offset in of_first() if number == partition] == list(range(50))


def test_a_callback_may_close_one_consumer_while_another_waits_for_its_partitions(
    group: ConsumerGroup,
) -> None:
    first = group.consumer("A")
    first.subscribe(["t"], on_revoke=lambda reader, partitions: reader.close())
    group.follow()
    group.join("B", ["t"])

    def has_closed() -> bool:
        group.consumers["B"].poll(0.005)
        try:
            first.poll(0.005)
        except RuntimeError:
            return True
        return False

    eventually(has_closed, "the end of A")
    del group.consumers["A"]
    group.follow()
    assert group.assignment() == {"B": [0, 1, 2, 3]}
