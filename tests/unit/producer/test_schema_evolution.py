"""Clients with different schemas of one topic: who changes its schema, who is refused, and what
each one reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pytest
from pydantic import BaseModel

from deltaq import (
    Consumer,
    Corrupt,
    InvalidConfig,
    KafkaError,
    KafkaException,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.delta.actions import Metadata, parse_entry
from deltaq.errors import InvalidValue
from deltaq.store import MemoryStore, Store
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.topics.log import TopicLog
from deltaq.topics.schema_evolution import HISTORY_PROPERTY
from deltaq.topics.state import TopicChange
from tests.doubles.reading import drain, eventually

CONF = {"bootstrap.servers": "memory://unused", "linger.ms": 0}
ENTRY = "topics/*_delta_log/*"


class Old(BaseModel):
    id: int
    item: str


class New(BaseModel):
    """Adds two fields, and leaves one out."""

    id: int
    count: int = 1
    note: str | None = None


OLD, NEW = Topic("t", Old), Topic("t", New)


def producing(store: Any, **config: Any) -> Producer:
    return Producer(CONF, store=store, **config)


def read(store: Store, count: int, handle: Topic | None = None) -> list[Any]:
    handles = [] if handle is None else [handle]
    with Consumer({**CONF, "group.id": "g"}, store=store, topics=handles) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        return [message.value() for message in drain(consumer, count)]


def schemas(store: MemoryStore) -> list[tuple[int, Metadata]]:
    """The entries with a schema, by version."""
    keys = [entry.key for entry in store.list("topics/t/_delta_log/")]
    parsed = [parse_entry(store.get(key), version, key) for version, key in enumerate(keys)]
    return [
        (entry.version, action)
        for entry in parsed
        for action in entry.actions
        if isinstance(action, Metadata)
    ]


def test_producers_and_consumers_of_both_models_work_at_the_same_time() -> None:
    store = MemoryStore("test")
    with producing(store) as old, producing(store) as new:
        old.produce(OLD, Old(id=1, item="a"))
        old.flush(20)
        new.produce(NEW, New(id=2, count=5))
        new.flush(20)
        old.produce(OLD, {"id": 3, "item": "c"})
        old.flush(20)
    # One entry, between those of the messages.
    assert [version for version, _ in schemas(store)] == [0, 2]
    assert read(store, 3, NEW) == [New(id=1), New(id=2, count=5), New(id=3)]
    assert read(store, 3) == [
        {"id": 1, "item": "a", "count": None, "note": None},
        {"id": 2, "item": None, "count": 5, "note": None},
        {"id": 3, "item": "c", "count": None, "note": None},
    ]
    with Consumer({**CONF, "group.id": "g"}, store=store, topics=[OLD]) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        first, second, third = drain(consumer, 3)
    assert [first.value(), third.value()] == [Old(id=1, item="a"), Old(id=3, item="c")]
    # Which the new model does not write.
    with pytest.raises(KafkaException, match="'item'") as caught:
        second.value()
    assert caught.value.args[0] == KafkaError._VALUE_DESERIALIZATION


@pytest.mark.fault("S1")
def test_a_schema_is_changed_once_a_store_that_did_not_answer_does() -> None:
    store, reports = FaultyStore(MemoryStore("test")), []
    with producing(store) as producer:
        producer.produce(OLD, {"id": 1, "item": "a"})
        producer.flush(20)
        # That a change loads first.
        store.add(Rule("get", f"{ENTRY}_last_checkpoint", Fault.error_before(), 2))
        producer.produce(NEW, {"id": 2}, on_delivery=lambda error, _: reports.append(error))
        producer.flush(20)
    assert reports == [None]
    assert [value["id"] for value in read(store, 2)] == [1, 2]


def test_a_consumer_of_the_new_model_reads_a_topic_that_does_not_have_its_fields_yet() -> None:
    store = MemoryStore("test")
    with producing(store) as producer:
        producer.produce(OLD, {"id": 1, "item": "a"})
    assert read(store, 1, NEW) == [New(id=1)]
    assert len(schemas(store)) == 1


def test_a_row_without_any_field_of_an_older_model_is_no_tombstone_for_it() -> None:
    store = MemoryStore("test")
    first = Topic("t", pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    second = Topic("t", pa.schema([("a", pa.int8()), ("c", pa.int8())]))
    with producing(store) as producer:
        producer.produce(first, {"a": 1})
        producer.flush(20)
        producer.produce(second, {"c": 2})
        producer.produce(second, None)
    assert read(store, 3, first) == [{"a": 1, "b": None}, {"a": None, "b": None}, None]


def test_an_incompatible_model_is_refused_at_the_first_message_and_changes_nothing() -> None:
    class Required(Old):
        count: int

    class Narrow(BaseModel):
        id: bool

    store = MemoryStore("test")
    with producing(store) as producer:
        producer.produce(OLD, {"id": 1, "item": "a"})
        producer.flush(20)
        refused: list[tuple[type[BaseModel], dict[str, Any], str]] = [
            (Required, {"id": 1, "item": "a", "count": 1}, "column 'count' is new and required"),
            (Narrow, {"id": True}, "column 'id' is int64"),
        ]
        for model, value, reason in refused:
            for _ in range(2):
                with pytest.raises(InvalidConfig, match=reason):
                    producer.produce(Topic("t", model), value)
            for change in (Topic.evolve, partial(Topic.create, exist_ok=True)):
                with pytest.raises(InvalidConfig, match=reason):
                    change(Topic("t", model, store=store))
    assert len(schemas(store)) == 1


def test_a_producer_that_must_not_change_schemas_waits_for_evolve() -> None:
    store = MemoryStore("test")
    stored = Topic("t", Old, store=store).create()
    with producing(store, auto_register_schemas=False) as producer:
        producer.produce(stored, {"id": 1, "item": "a"})
        with pytest.raises(
            InvalidConfig,
            match=r"does not have this schema yet: change the topic with Topic\.evolve",
        ):
            producer.produce(NEW, {"id": 2})
        evolving = Topic("t", New, store=store)
        assert evolving.evolve()
        assert not evolving.evolve()
        assert not stored.evolve()
        producer.produce(NEW, {"id": 2})
    assert read(store, 2, NEW) == [New(id=1), New(id=2)]
    with pytest.raises(InvalidConfig, match="has no schema: pass one to Topic"):
        Topic("t", store=store).evolve()


def test_dicts_for_the_name_follow_the_schema_of_the_topic() -> None:
    store = MemoryStore("test")
    with producing(store) as named, producing(store) as new:
        new.produce(OLD, {"id": 1, "item": "a"})
        new.flush(20)
        named.produce("t", {"id": 2, "item": "b"})
        with pytest.raises(InvalidValue):
            named.produce("t", {"id": 3})
        named.flush(20)
        new.produce(NEW, {"id": 3})
        new.flush(20)
        named.produce("t", {"id": 4, "note": "by name"})
        assert named.flush(20) == 0
    assert read(store, 4, NEW)[2:] == [New(id=3), New(id=4, note="by name")]


def test_tables_of_an_older_schema_are_written_with_the_columns_of_the_topic() -> None:
    store = MemoryStore("test")
    narrow = Topic("t", pa.schema([("id", pa.int8()), ("s", pa.struct([("x", pa.int8())]))]))
    wide = Topic(
        "t",
        pa.schema(
            [
                ("n", pa.string()),
                ("id", pa.int64()),
                ("s", pa.struct([("x", pa.int16()), ("y", pa.int8())])),
            ]
        ),
    )
    with producing(store) as old, producing(store) as new:
        old.produce_arrow(narrow, pa.table({"id": [1]}))
        old.flush(20)
        new.produce_arrow(wide, pa.table({"id": [2**40], "n": ["n"]}))
        new.flush(20)
        old.produce_arrow(narrow, pa.table({"id": [3], "s": [{"x": 3}]}))
    assert read(store, 3) == [
        {"id": 1, "s": None, "n": None},
        {"id": 2**40, "s": None, "n": "n"},
        {"id": 3, "s": {"x": 3, "y": None}, "n": None},
    ]


def test_a_schema_is_changed_by_the_sender_if_the_store_was_away_at_first() -> None:
    store = FaultyStore(MemoryStore("test"))
    Topic("t", Old, store=store.inner).create()
    store.add(
        Rule("get", ENTRY, Fault.error_before(), 3), Rule("create", ENTRY, Fault.error_before(), 2)
    )
    errors: list[Any] = []
    with producing(store) as producer:
        producer.produce(NEW, {"id": 1}, on_delivery=lambda error, _: errors.append(error))
    assert errors == [None]
    assert read(store.inner, 1, NEW) == [New(id=1)]


def test_a_message_whose_schema_does_not_fit_is_reported_if_the_store_was_away_at_first() -> None:
    store = FaultyStore(MemoryStore("test"))
    Topic("t", pa.schema([("id", pa.string())]), store=store.inner).create()
    store.add(Rule("get", ENTRY, Fault.error_before(), 3))
    errors: list[Any] = []
    with producing(store) as producer:
        producer.produce(NEW, {"id": 1}, on_delivery=lambda error, _: errors.append(error))
    assert [error.code() for error in errors] == [KafkaError._VALUE_SERIALIZATION]
    assert "column 'id' is string in the topic" in errors[0].str()


def test_a_schema_that_does_not_fit_refuses_only_its_own_messages() -> None:
    store = FaultyStore(MemoryStore("test"))
    good, bad = (
        Topic("t", pa.schema([("id", pa.int32())])),
        Topic("t", pa.schema([("id", pa.string())])),
    )
    Topic("t", good.schema, store=store.inner).create()
    store.add(Rule("get", ENTRY, Fault.error_before(), 3))
    errors: dict[object, KafkaError | None] = {}

    def produce(producer: Producer, handle: Topic, value: object) -> None:
        row = None if value is None else {"id": value}
        producer.produce(handle, row, on_delivery=lambda error, _: errors.update({value: error}))

    with producing(store, linger_ms=60_000) as producer:  # all in one batch
        for handle, value in ((bad, "a"), (good, 1), (good, None), (bad, "b")):
            produce(producer, handle, value)
        producer.flush(20)
        with pytest.raises(InvalidConfig, match="column 'id' is int32 in the topic"):
            produce(producer, bad, "c")
        produce(producer, good, 2)
    assert [value for value, error in errors.items() if error is None] == [1, None, 2]
    assert all("column 'id' is int32 in the topic" in str(errors[value]) for value in ("a", "b"))
    assert read(store.inner, 3) == [{"id": 1}, None, {"id": 2}]


def test_a_topic_that_was_created_again_takes_another_schema_of_the_same_producer() -> None:
    store, errors = MemoryStore("test"), []
    other = Topic("t", pa.schema([("z", pa.string())]), store=store)
    with producing(store) as producer:
        producer.produce(OLD, {"id": 1, "item": "a"})
        producer.flush(20)
        (handle,) = producer._handles.values()
        batches = handle.sender._batches
        # While the sender has something to do, it does not look for another topic.
        eventually(
            lambda: not (batches.open or batches.is_committing),
            "the end of the commit, after its report",
        )
        other.delete()
        other.create()
        for text in "ab":
            producer.produce(other, {"z": text}, on_delivery=lambda error, _: errors.append(error))
            producer.flush(20)
    assert errors == [None, None]
    assert read(store, 2) == [{"z": "a"}, {"z": "b"}]


def test_messages_for_a_topic_that_was_created_again_get_their_columns() -> None:
    store = MemoryStore("test")
    with producing(store) as producer:
        producer.produce(NEW, {"id": 1})
        producer.flush(20)
        topic = Topic("t", Old, store=store)
        topic.delete()
        topic.create()
        producer.produce(NEW, {"id": 2, "note": "kept"})
        assert producer.flush(20) == 0
        producer.produce(NEW, {"id": 3, "note": "kept, too"})
    found = read(store, 1, NEW)
    assert found[-1].note is not None


class RacedStore(FaultyStore):
    """Calls `first` before it creates the next entry of the topic, once."""

    first: Callable[[], object] | None = None

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if self.first is not None and key.startswith("topics/t/_delta_log/"):
            first, self.first = self.first, None
            first()
        super().create(key, data, after)


def race(wanted: pa.Schema, winner: pa.Schema) -> tuple[MemoryStore, Topic]:
    """A topic whose schema `winner` changes just before the entry of a handle with the schema
    `wanted`.
    """
    inner = MemoryStore("test")
    store = RacedStore(inner)
    Topic("t", pa.schema([("a", pa.int16())]), store=inner).create()
    store.first = Topic("t", winner, store=inner).evolve
    return inner, Topic("t", wanted, store=store)


def test_of_two_changes_at_once_the_second_one_is_judged_by_the_result_of_the_first() -> None:
    store, loser = race(
        pa.schema([("a", pa.int16()), ("c", pa.int8())]),
        pa.schema([("a", pa.int32()), ("b", pa.int8())]),
    )
    assert loser.evolve()
    assert read_columns(store) == {"a": pa.int32(), "b": pa.int8(), "c": pa.int8()}
    assert len(schemas(store)) == 3


def test_the_loser_of_a_race_for_the_same_change_writes_nothing() -> None:
    wanted = pa.schema([("a", pa.int32())])
    store, loser = race(wanted, wanted)
    assert loser.evolve()
    assert len(schemas(store)) == 2


def test_the_loser_of_a_race_is_refused_if_it_no_longer_fits() -> None:
    store, loser = race(
        pa.schema([("a", pa.int16()), ("b", pa.string())]),
        pa.schema([("a", pa.int16()), ("b", pa.int8())]),
    )
    with pytest.raises(InvalidConfig, match="column 'b' is int8 in the topic, not string"):
        loser.evolve()
    assert read_columns(store) == {"a": pa.int16(), "b": pa.int8()}


def test_producers_in_many_threads_change_a_topic_together() -> None:
    store, results = MemoryStore("test"), []
    Topic("t", pa.schema([("a", pa.int8())]), store=store).create()
    ready = threading.Barrier(4)

    def produce(number: int) -> None:
        with producing(store) as producer:
            handle = Topic("t", pa.schema([("a", pa.int8()), (f"c{number}", pa.int64())]))
            ready.wait(20)
            producer.produce(handle, {f"c{number}": number})
            results.append(producer.flush(20))

    threads = [threading.Thread(target=produce, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [0] * 4
    assert read_columns(store).keys() == {"a", "c0", "c1", "c2", "c3"}
    found = read(store, 4)
    assert {next(value for value in row.values() if value is not None) for row in found} == {
        0,
        1,
        2,
        3,
    }


def read_columns(store: MemoryStore) -> dict[str, pa.DataType]:
    """The value columns of the topic, without regard to their order."""
    table = Topic("t", store=store).to_arrow()
    return {field.name: field.type for field in table.schema if not field.name.startswith("_")}


def test_a_history_that_cannot_be_read_is_reported_as_damage() -> None:
    store = MemoryStore("test")
    Topic("t", Old, store=store).create()
    log = TopicLog(store, "t")
    log.load()
    log.change(lambda head, _: TopicChange(head.partitions, {HISTORY_PROPERTY: "[]"}), 1e9)
    with pytest.raises(Corrupt, match="history of the table's schema"):
        Topic("t", store=store).describe()


class Coloured(BaseModel):
    colour: Literal["red", "blue"]


@pytest.mark.parametrize("members", ["{", '{\\"colour\\":[1]}', '{\\"colour\\":[]}'])
def test_members_that_cannot_be_read_are_reported_as_damage(members: str) -> None:
    store = MemoryStore("test")
    Topic("t", Coloured, store=store).create()
    log = TopicLog(store, "t")
    log.load()
    found = log.metadata.schema_string
    written = '{\\"colour\\":[\\"blue\\",\\"red\\"]}'
    assert found.count(written) == 1
    log.change(
        lambda head, _: TopicChange(head.partitions, {}, found.replace(written, members)), 1e9
    )
    with pytest.raises(Corrupt, match="the table's schema cannot be parsed"):
        Topic("t", store=store).describe()
