"""Dead letters of typed topics: the dead-letter topic has their columns."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from deltaq import Producer, Topic, names
from deltaq.admin import NewTopic
from deltaq.serde.schema import TopicSchema, Unreadable
from tests.doubles.sharing import ShareWorld

DEAD = "dlq.t"
CONF = {"bootstrap.servers": "memory://shared"}


class Task(BaseModel):
    """A value of the topic `tasks`."""

    id: int
    note: str | None = None


class LongerTask(Task):
    """A later one."""

    priority: float = 0.5


class Order(BaseModel):
    """A value of a topic with other columns."""

    number: int


@pytest.fixture
def shared() -> ShareWorld:
    shared = ShareWorld()
    shared.set(
        errors_deadletterqueue_topic_name=DEAD, errors_deadletterqueue_copy_record_enable="true"
    )
    return shared


def topic_of(shared: ShareWorld, name: str, model: type[BaseModel]) -> Topic:
    return Topic(name, model, conf=CONF, store=shared.store, clock=shared.clock)


def write(shared: ShareWorld, name: str, *values: BaseModel) -> None:
    """Write values to a topic, which is created or evolved to take them."""
    topic = topic_of(shared, name, type(values[0]))
    topic.create(exist_ok=True)
    with Producer(CONF, store=shared.store, clock=shared.clock) as producer:
        for value in values:
            producer.produce(topic, value, key=b"k", headers={"trace": b"7"})


def reject(shared: ShareWorld, *topics: str | Topic) -> None:
    """Reject all that can be taken of these topics, and have the dead letters written."""
    with shared.consumer() as consumer:
        consumer.subscribe(list(topics))
        for message in consumer.poll(0):
            consumer.reject(message)


def values(shared: ShareWorld) -> list[Any]:
    return [letter.value() for letter in shared.read_all(DEAD)]


def test_a_dead_letter_has_the_columns_of_its_record(shared: ShareWorld) -> None:
    write(shared, "tasks", Task(id=7, note="n"), Task(id=8))
    reject(shared, "tasks")
    assert values(shared) == [{"id": 7, "note": "n"}, {"id": 8, "note": None}]
    letter = shared.read_all(DEAD)[0]
    assert letter.key() == b"k"
    assert (letter.headers() or [])[0] == ("trace", b"7")
    assert dict(letter.headers() or [])["__dlq.errors.offset"] == b"0"


def test_without_copies_the_dead_letter_topic_has_no_columns(shared: ShareWorld) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable="false")
    write(shared, "tasks", Task(id=7))
    reject(shared, "tasks")
    assert values(shared) == [None]
    shared.fill(1, topic=DEAD)
    assert values(shared) == [None, b"v0"]


def test_a_dead_letter_topic_gets_the_columns_that_its_record_has_later(
    shared: ShareWorld,
) -> None:
    write(shared, "tasks", Task(id=7))
    reject(shared, "tasks")
    write(shared, "tasks", LongerTask(id=8, priority=2.5))
    reject(shared, "tasks")
    assert values(shared) == [
        {"id": 7, "note": None, "priority": None},
        {"id": 8, "note": None, "priority": 2.5},
    ]


def test_a_record_that_the_model_of_the_application_refuses_is_copied_as_it_is_stored(
    shared: ShareWorld,
) -> None:
    class Urgent(BaseModel):
        """The application takes only one number."""

        id: Literal[1]

    write(shared, "tasks", Task(id=7))
    reject(shared, topic_of(shared, "tasks", Urgent))
    assert values(shared) == [{"id": 7, "note": None}]


def test_a_value_that_cannot_be_returned_leaves_headers_only(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(shared, "tasks", Task(id=7))
    broken = [Unreadable("id", "is broken", b"")]
    with monkeypatch.context() as patch:
        patch.setattr(TopicSchema, "to_python", lambda *_: broken)
        reject(shared, "tasks")
    assert values(shared) == [None]


@pytest.mark.parametrize("first", ["tasks", "orders"])
def test_records_that_do_not_fit_leave_headers_only_and_a_line_in_the_log(
    shared: ShareWorld, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    samples = {"tasks": Task(id=7), "orders": Order(number=1)}
    write(shared, first, samples[first])
    reject(shared, first)
    (copied,) = values(shared)
    assert copied == samples[first].model_dump()
    with caplog.at_level(logging.WARNING), shared.consumer(*samples) as consumer:
        for _ in range(2):
            for name, sample in samples.items():
                write(shared, name, sample)
            for message in consumer.poll(0):
                consumer.reject(message)
            consumer.poll(0)
            consumer.poll(0)
    assert sorted(values(shared), key=repr) == sorted(3 * [copied] + 2 * [None], key=repr)
    other = "orders" if first == "tasks" else "tasks"
    (line,) = [text for text in caplog.messages if "headers only" in text]
    assert f"topic={other!r}" in line
    assert "none of its columns" in line


def test_records_of_bytes_and_with_columns_leave_a_topic_of_bytes(
    shared: ShareWorld, caplog: pytest.LogCaptureFixture
) -> None:
    write(shared, "tasks", Task(id=7))
    shared.fill(1)
    with caplog.at_level(logging.WARNING):
        reject(shared, "tasks", "t")
    assert sorted(values(shared), key=repr) == [None, b"v0"]
    (line,) = [text for text in caplog.messages if "headers only" in text]
    assert "topic='tasks': the schema does not fit topic 'dlq.t': it holds bytes" in line


def test_bytes_do_not_fit_a_topic_with_columns(
    shared: ShareWorld, caplog: pytest.LogCaptureFixture
) -> None:
    write(shared, "tasks", Task(id=7))
    reject(shared, "tasks")
    shared.fill(1)
    with caplog.at_level(logging.WARNING):
        reject(shared, "t")
    assert values(shared) == [{"id": 7, "note": None}, None]
    (line,) = [text for text in caplog.messages if "headers only" in text]
    assert line.endswith("topic='t': the records are bytes, and topic 'dlq.t' has columns")


def test_a_topic_that_was_made_for_dead_letters_keeps_its_settings(shared: ShareWorld) -> None:
    with shared.admin() as admin:
        admin.create_topics([NewTopic(DEAD, 2)])[DEAD].result(20)
    write(shared, "tasks", Task(id=7))
    reject(shared, "tasks")
    assert values(shared) == [None]


def test_a_topic_whose_log_is_damaged_does_not_stop_a_member_that_reads_another(
    shared: ShareWorld,
) -> None:
    write(shared, "tasks", Task(id=7))
    shared.fill(1)
    with shared.consumer("tasks") as first, shared.consumer("t") as second:
        for message in first.poll(0):
            first.reject(message)
        first.commit_sync()
        log = names.topic_log("tasks")
        count = sum(each.key.endswith(".json") for each in shared.store.list(log))
        shared.store.create(f"{log}{count:020}.json", b"damaged")
        assert len(second.poll(0)) == 1
        assert values(shared) == [None]
