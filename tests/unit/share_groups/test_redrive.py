"""Redrive: dead letters are copied back to their topics, each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from deltaq import InvalidConfig, Producer, Topic, UnknownTopic
from deltaq.admin import NewTopic
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.log import ShareLog
from deltaq.store import Store
from deltaq.tools.redrive import COPIED, TO_COPY, LetterState, Redrive
from deltaq.topics.lookup import TopicLookup
from tests.doubles.killed_store import Killed, KilledStore, kills
from tests.doubles.sharing import ShareWorld, places, set_group

DEAD = "dlq.t"


@pytest.fixture
def shared() -> ShareWorld:
    shared = ShareWorld()
    shared.set(errors_deadletterqueue_topic_name=DEAD)
    return shared


def reject_all(shared: ShareWorld, topic: str = "t") -> None:
    with shared.consumer(topic) as consumer:
        for message in consumer.poll(0):
            consumer.reject(message, error=f"bad {message.offset()}")


def new_values(shared: ShareWorld, topic: str = "t") -> list[Any]:
    """The values that the group gets, which accepts them."""
    with shared.consumer(topic) as consumer:
        found = [message.value() for message in consumer.poll(0)]
        consumer.commit_sync()
    return found


def redrive(shared: ShareWorld, store: Store | None = None) -> Redrive:
    return Redrive(store or shared.store, "g", shared.clock)


def test_dead_letters_are_copied_back_once(shared: ShareWorld) -> None:
    with Producer(bootstrap_servers="memory://shared", store=shared.store) as producer:
        for number in range(3):
            producer.produce("t", f"v{number}", key=b"k", headers={"trace": b"7"})
    reject_all(shared)
    assert [letter.state for letter in redrive(shared).letters()] == [TO_COPY] * 3
    assert redrive(shared).run() == 3
    assert redrive(shared).run() == 0
    assert redrive(shared).letters()[1] == LetterState(0, 1, "t", 0, 1, "bad 1", COPIED)
    with shared.consumer() as consumer:
        messages = consumer.poll(0)
        assert [message.value() for message in messages] == [b"v0", b"v1", b"v2"]
        assert [message.key() for message in messages] == [b"k"] * 3
        assert messages[0].headers() == [("trace", b"7")]
        assert places(messages) == [(3, 1), (4, 1), (5, 1)]


def test_some_are_copied_back_and_others_later(shared: ShareWorld) -> None:
    shared.fill(5)
    reject_all(shared)
    assert redrive(shared).run({(0, 3), (0, 1)}) == 2
    assert new_values(shared) == [b"v1", b"v3"]
    assert [letter.state == COPIED for letter in redrive(shared).letters()] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert redrive(shared).run() == 3
    assert new_values(shared) == [b"v0", b"v2", b"v4"]


def test_letters_that_were_not_chosen_are_no_lag(shared: ShareWorld) -> None:
    shared.fill(5)
    reject_all(shared)
    redrive(shared).run({(0, 3)})
    group = "redrive." + DEAD
    key = PartitionId(DEAD, TopicLookup(shared.store, shared.clock).head(DEAD).topic_id, 0)
    log = ShareLog(shared.store, group, shared.clock)

    def described() -> tuple[int, int, bool]:
        with shared.admin() as admin:
            about = admin.describe_share_groups([group])[group].result(20)
        return about.lag, about.partitions[0].available, about.oldest_ms is None

    assert described() == (0, 0, True)
    log.choose({key: {1: "t", 4: "t"}}, shared.clock.monotonic() + 9)  # and is killed
    assert described() == (2, 0, False)


def test_a_record_that_fails_again_is_another_dead_letter(shared: ShareWorld) -> None:
    shared.fill(1)
    reject_all(shared)
    redrive(shared).run()
    reject_all(shared)
    assert redrive(shared).run() == 1
    assert new_values(shared) == [b"v0"]


def test_a_redrive_that_is_killed_at_any_write_neither_loses_nor_doubles() -> None:
    worlds: list[ShareWorld] = []

    def run(number: int, is_done: bool) -> bool:
        shared = ShareWorld()
        shared.set(errors_deadletterqueue_topic_name=DEAD)
        shared.fill(3)
        reject_all(shared)
        worlds.append(shared)
        killed = KilledStore(shared.store, shared.clock, number, is_done=is_done)
        try:
            redrive(shared, killed).run()
        except Killed:
            return True
        return False

    count = 0
    for _ in kills(run):
        count += 1
        shared = worlds.pop()
        redrive(shared).run()
        assert new_values(shared) == [b"v0", b"v1", b"v2"]
        assert redrive(shared).run() == 0
    assert count == 2 * 4, "two entries of the group, the records and their entry"


def test_two_that_run_at_once_copy_each_once(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(3)
    reject_all(shared)
    one, two = redrive(shared), redrive(shared)
    append = Redrive._append

    def after_another(self: Redrive, *about: Any) -> None:
        if self is one:
            two.run()
        append(self, *about)

    monkeypatch.setattr(Redrive, "_append", after_another)
    one.run()
    assert new_values(shared) == [b"v0", b"v1", b"v2"]


def test_what_a_killed_redrive_has_copied_is_not_copied_with_others(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(2)
    reject_all(shared)
    one, two = redrive(shared), redrive(shared)
    choose = two._log.choose

    def is_killed(*_: object) -> None:
        raise Killed

    def after_another(*about: Any) -> None:
        with pytest.raises(Killed):
            one.run({(0, 0)})
        choose(*about)

    monkeypatch.setattr(one._log, "exchange", is_killed)
    monkeypatch.setattr(two._log, "choose", after_another)
    two.run({(0, 1)})
    assert new_values(shared) == [b"v0", b"v1"]


# --- what a killed one has chosen ---


def killed(redriven: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a redrive after it has chosen all letters."""

    def is_killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(redriven, "_append", is_killed)
        with pytest.raises(Killed):
            redriven.run()


@contextmanager
def damaged(shared: ShareWorld, topic: str) -> Iterator[None]:
    """Within it, the first data file of a topic is damaged."""
    entries = [each for each in shared.store.list(f"topics/{topic}/") if "parquet" in each.key]
    key = min(entries, key=lambda each: each.modified_ms).key
    content = shared.store.get(key)
    shared.store.put(key, b"damaged")
    yield
    shared.store.put(key, content)


def test_letters_that_are_newer_than_the_look_of_a_redrive_are_not_lost(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(1)
    reject_all(shared)
    before = redrive(shared)
    shared.fill(1, start=1)
    reject_all(shared)
    killed(redrive(shared), monkeypatch)
    assert before.run() == 2
    assert new_values(shared) == [b"v0", b"v1"]


def test_letters_that_a_redrive_of_another_group_has_chosen_are_not_lost(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(1)
    reject_all(shared)
    with shared.admin() as admin:
        set_group(admin, "h", errors_deadletterqueue_topic_name=DEAD)
    killed(redrive(shared), monkeypatch)
    assert Redrive(shared.store, "h", shared.clock).run() == 1
    assert new_values(shared) == [b"v0"]


def test_letters_of_a_topic_that_was_deleted_are_not_taken_for_others(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.fill(1)
    reject_all(shared)
    killed(redrive(shared), monkeypatch)
    with shared.admin() as admin:
        admin.delete_topics([DEAD])[DEAD].result(20)
    shared.fill(1, start=1)
    reject_all(shared)
    assert redrive(shared).run({(0, 7)}) == 0
    assert new_values(shared) == []
    assert redrive(shared).run() == 1
    assert new_values(shared) == [b"v1"]


@pytest.mark.parametrize("topic", ["t", DEAD])
def test_what_was_chosen_and_cannot_be_read_is_copied_once_it_can(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    shared.fill(1)
    reject_all(shared)
    killed(redrive(shared), monkeypatch)
    with damaged(shared, topic):
        assert redrive(shared).run() == 0
        (letter,) = redrive(shared).letters()
        what = "record" if topic == "t" else "letter"
        assert letter.state.startswith(f"the {what} cannot be read: ")
        assert (letter.partition, letter.offset) == (0, 0)
    assert redrive(shared).run() == 1
    assert redrive(shared).run() == 0
    assert new_values(shared) == [b"v0"]


@pytest.mark.parametrize("topic", ["t", DEAD])
def test_what_was_chosen_and_is_damaged_keeps_no_other_letter_back(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    for number in range(2):
        shared.fill(1, start=number)
        reject_all(shared)
        shared.clock.advance(1)
    killed(redrive(shared), monkeypatch)
    shared.fill(1, start=2)
    reject_all(shared)
    with damaged(shared, topic):
        assert redrive(shared).run() == 2
        states = [letter.state for letter in redrive(shared).letters()]
        assert (states[0] == COPIED, states[1:]) == (False, [COPIED] * 2)
        assert new_values(shared) == [b"v1", b"v2"]
    assert redrive(shared).run({(0, 0)}) == 1
    assert redrive(shared).run() == 0
    assert new_values(shared) == [b"v0"]


@pytest.mark.parametrize("topic", ["t", DEAD])
def test_what_was_copied_by_a_killed_redrive_is_not_given_up_when_it_is_damaged(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    shared.fill(1)
    reject_all(shared)
    one = redrive(shared)

    def is_killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(one._log, "exchange", is_killed)
    with pytest.raises(Killed):
        one.run()
    with damaged(shared, topic):
        redrive(shared).run()
    assert redrive(shared).run() == 0
    assert new_values(shared) == [b"v0"]


def test_a_topic_whose_log_is_damaged_keeps_no_letter_of_another_back(shared: ShareWorld) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable="true")
    shared.fill(1, topic="u")
    reject_all(shared, "u")
    shared.fill(1)
    reject_all(shared)
    log = "topics/u/_delta_log/"
    count = len([*shared.store.list(log)])
    shared.store.create(f"{log}{count:020}.json", b"damaged")
    assert redrive(shared).run() == 1
    states = [letter.state for letter in redrive(shared).letters()]
    assert states[0].startswith("topic 'u' cannot be read: ")
    assert states[1] == COPIED


def test_a_record_that_cannot_be_read_is_left(shared: ShareWorld) -> None:
    shared.fill(1)
    reject_all(shared)
    with damaged(shared, "t"):
        assert redrive(shared).run() == 0
        assert redrive(shared).letters()[0].state.startswith("the record cannot be read: ")
    shared.set(errors_deadletterqueue_copy_record_enable="true")
    shared.fill(1, start=1)
    reject_all(shared)
    assert redrive(shared).run() == 2


def test_a_record_that_is_damaged_is_copied_from_its_dead_letter(shared: ShareWorld) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable="true")
    shared.fill(1)
    reject_all(shared)
    with damaged(shared, "t"):
        assert redrive(shared).run() == 1


class Task(BaseModel):
    """A value of a typed topic."""

    id: int


class OtherTask(BaseModel):
    """A value of another topic of that name."""

    number: int


class NamedTask(BaseModel):
    """One whose column has another type."""

    id: str


def typed(shared: ShareWorld, model: type[BaseModel], *values: BaseModel) -> None:
    """Create the topic `tasks` and write values to it."""
    conf = {"bootstrap.servers": "memory://shared"}
    topic = Topic("tasks", model, conf=conf, store=shared.store, clock=shared.clock).create()
    with Producer(conf, store=shared.store) as producer:
        for value in values:
            producer.produce(topic, value)


def typed_dead_letters(shared: ShareWorld, *, copies: bool = True) -> None:
    """Dead letters of a typed topic, which does not exist any more."""
    shared.set(errors_deadletterqueue_copy_record_enable=str(copies).lower())
    typed(shared, Task, Task(id=7), Task(id=8))
    reject_all(shared, "tasks")
    with shared.admin() as admin:
        admin.delete_topics(["tasks"])["tasks"].result(20)


@pytest.mark.parametrize("copies", ["true", "false"])
def test_records_of_typed_topics_are_read_from_their_topic(shared: ShareWorld, copies: str) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable=copies)
    typed(shared, Task, Task(id=7))
    reject_all(shared, "tasks")
    assert redrive(shared).run() == 1
    assert new_values(shared, "tasks") == [{"id": 7}]


class LaterTask(Task):
    """A value with a further column."""

    note: str = ""


@pytest.mark.parametrize("model", [Task, LaterTask])
def test_a_typed_record_that_its_topic_has_lost_comes_back_with_its_columns(
    shared: ShareWorld, model: type[BaseModel]
) -> None:
    typed_dead_letters(shared)
    typed(shared, Task)
    if model is LaterTask:
        shared.set(share_auto_offset_reset="earliest")
        conf = {"bootstrap.servers": "memory://shared"}
        Topic("tasks", model, conf=conf, store=shared.store, clock=shared.clock).evolve()
    assert redrive(shared).run() == 2
    note = {"note": None} if model is LaterTask else {}
    assert new_values(shared, "tasks") == [{"id": 7} | note, {"id": 8} | note]


def test_a_column_that_only_other_dead_letters_have_is_passed_over(shared: ShareWorld) -> None:
    typed_dead_letters(shared)
    typed(shared, LaterTask, LaterTask(id=9, note="n"))
    reject_all(shared, "tasks")
    with shared.admin() as admin:
        admin.delete_topics(["tasks"])["tasks"].result(20)
    typed(shared, Task)
    assert redrive(shared).run() == 2
    assert new_values(shared, "tasks") == [{"id": 7}, {"id": 8}]
    assert redrive(shared).letters()[2].state.endswith("'note': the topic has no such column")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (OtherTask, "field 'id': the topic has no such column"),
        (NamedTask, "field 'id': Input should be a valid string, got int"),
        (None, "the topic holds bytes"),
    ],
)
def test_a_record_with_columns_that_do_not_fit_is_left(
    shared: ShareWorld, model: type[BaseModel] | None, expected: str
) -> None:
    typed_dead_letters(shared)
    if model is None:
        with shared.admin() as admin:
            admin.create_topics([NewTopic("tasks", 1)])["tasks"].result(20)
    else:
        typed(shared, model)
    assert redrive(shared).run() == 0
    for letter in redrive(shared).letters():
        assert letter.state.startswith("the record does not fit topic 'tasks': ")
        assert letter.state.endswith(expected)


def test_bytes_do_not_fit_a_topic_that_has_columns_now(shared: ShareWorld) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable="true")
    shared.fill(1, topic="tasks")
    reject_all(shared, "tasks")
    with shared.admin() as admin:
        admin.delete_topics(["tasks"])["tasks"].result(20)
    typed(shared, Task)
    assert redrive(shared).run() == 0
    (letter,) = redrive(shared).letters()
    assert letter.state.endswith("the record is bytes, and the topic has columns")


def recreated(shared: ShareWorld, model: type[BaseModel]) -> None:
    """Delete the topic `tasks`, and create it with these columns."""
    with shared.admin() as admin:
        admin.delete_topics(["tasks"])["tasks"].result(20)
    typed(shared, model)


def test_what_was_chosen_and_does_not_fit_any_more_is_copied_once_it_does(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed_dead_letters(shared)
    typed(shared, Task)
    killed(redrive(shared), monkeypatch)
    recreated(shared, OtherTask)
    shared.fill(1)
    reject_all(shared)
    assert redrive(shared).run() == 1
    states = [letter.state for letter in redrive(shared).letters()]
    assert ["does not fit" in state for state in states] == [True, True, False]
    recreated(shared, Task)
    assert redrive(shared).run() == 2
    assert new_values(shared, "tasks") == [{"id": 7}, {"id": 8}]


def test_what_does_not_fit_a_topic_that_is_created_again_in_a_redrive_is_dropped(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    typed_dead_letters(shared)
    typed(shared, Task)
    append = Redrive._append

    def after_another(self: Redrive, *about: Any) -> None:
        recreated(shared, OtherTask)
        append(self, *about)

    monkeypatch.setattr(Redrive, "_append", after_another)
    redrive(shared).run()
    assert "a dead letter is dropped topic='tasks': " in caplog.text
    assert new_values(shared, "tasks") == []


@pytest.mark.parametrize("copies", [False, True])
def test_a_record_that_its_topic_has_lost_is_copied_from_its_dead_letter(
    shared: ShareWorld, copies: bool
) -> None:
    shared.set(errors_deadletterqueue_copy_record_enable=str(copies).lower())
    shared.fill(2)
    reject_all(shared)
    with shared.admin() as admin:
        admin.delete_topics(["t"])["t"].result(20)
        (first, _) = redrive(shared).letters()
        assert first.state == "topic 't' does not exist"
        assert redrive(shared).run() == 0
        admin.create_topics([NewTopic("t", 1)])["t"].result(20)
    assert redrive(shared).run() == (2 if copies else 0)
    assert new_values(shared) == ([b"v0", b"v1"] if copies else [])
    if not copies:
        assert redrive(shared).letters()[0].state.startswith("the record is not in its topic")


def test_letters_of_other_groups_and_other_messages_are_left(shared: ShareWorld) -> None:
    shared.fill(1, topic=DEAD)
    shared.fill(1)
    reject_all(shared)
    assert [letter.offset for letter in redrive(shared).letters()] == [1]
    with shared.admin() as admin:
        set_group(admin, "h", errors_deadletterqueue_topic_name=DEAD)
    assert Redrive(shared.store, "h", shared.clock).letters() == []


def test_a_group_without_dead_letters_is_refused(shared: ShareWorld) -> None:
    with pytest.raises(UnknownTopic):
        redrive(shared)
    shared.set(errors_deadletterqueue_topic_name="")
    with pytest.raises(InvalidConfig, match="has no dead-letter topic"):
        redrive(shared)
