"""Messages above the size limit are written in pieces, and read whole, with
`large.message.enabled`.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from deltaq import (
    Consumer,
    KafkaError,
    MessageTooLarge,
    Producer,
    QueueFull,
    Topic,
    TopicPartition,
)
from deltaq.admin import AdminClient
from deltaq.errors import InvalidValue
from deltaq.store import MemoryStore, Store
from deltaq.testing import Effect, Fault, FaultyStore, Rule
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import LARGE_MESSAGES_PROPERTY
from deltaq.topics.pieces import PIECE_HEADER, Piece
from tests.doubles.compaction import compact
from tests.doubles.reading import drain, next_message

CONF = {"bootstrap.servers": "memory://unused", "large.message.enabled": True}
MIB = 1024 * 1024


def value_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def producing(store: Any, **config: Any) -> Producer:
    return Producer({**CONF, "linger.ms": 0}, store=store, **config)


def consuming(store: Any, **config: Any) -> Consumer:
    """A consumer of partition 0 from the committed offset on."""
    consumer = Consumer(
        {**CONF, "group.id": "g", "auto.offset.reset": "earliest"}, store=store, **config
    )
    consumer.assign([TopicPartition("t", 0)])
    return consumer


def pieces(store: MemoryStore) -> list[Piece | None]:
    """What the records of partition 0 are, as a consumer without the setting sees them."""
    table = Topic("t", store=store).to_arrow([0])
    found = []
    for headers in table["_headers"].to_pylist():
        named = {pair["key"]: pair["value"] for pair in headers or ()}
        found.append(Piece.parsed(named[PIECE_HEADER]) if PIECE_HEADER in named else None)
    return found


def test_a_message_of_ten_mebibytes_is_written_in_pieces_and_read_whole() -> None:
    store, value, reports = MemoryStore("test"), value_of(10 * MIB), []
    headers = [("trace", b"1"), ("trace", None)]
    with producing(store, message_max_bytes=MIB) as producer:
        producer.produce("t", b"before")
        about: dict[str, Any] = {"key": "k", "timestamp": 1_700_000_000_000, "headers": headers}
        producer.produce("t", value, on_delivery=lambda *report: reports.append(report), **about)
        assert len(producer) <= 2, "it counts as one, and the other may be written already"
        producer.produce("t", b"after")
    found = pieces(store)
    count = len(found) - 2
    assert found[0] is found[-1] is None
    assert [
        (piece.index, piece.count, piece.size) for piece in found[1:-1] if piece is not None
    ] == [(index, count, len(value)) for index in range(count)]
    assert 11 <= count <= 12
    stored = Topic("t", store=store).to_arrow()
    assert max(len(part) for part in stored["value"].to_pylist()) < MIB
    assert set(stored["_key"].to_pylist()[1:-1]) == {b"k"}
    ((error, delivered),) = reports
    assert error is None
    assert (delivered.offset(), delivered.partition(), len(delivered.value())) == (
        count,
        0,
        len(value),
    )
    with consuming(store) as consumer:
        before, large, after = drain(consumer, 3)
    assert [before.value(), after.value()] == [b"before", b"after"]
    assert large.value() == value
    assert (large.key(), large.headers(), large.timestamp()) == (
        b"k",
        headers,
        (1, 1_700_000_000_000),
    )
    assert [before.offset(), large.offset(), after.offset()] == [0, count, count + 1]


def test_a_topic_without_large_messages_stays_as_it_is() -> None:
    store = MemoryStore("test")
    with producing(store) as producer:
        producer.produce("t", b"x" * 999_000, headers={"h": "1"})
    assert pieces(store) == [None]
    assert LARGE_MESSAGES_PROPERTY not in loaded(store).metadata.configuration


def loaded(store: Store) -> TopicLog:
    log = TopicLog(store, "t")
    log.load()
    return log


@pytest.mark.parametrize("partitioner", ["consistent_random", "random", "murmur2_random"])
@pytest.mark.parametrize("sticky_ms", [0, 10])
def test_all_pieces_are_in_one_partition(partitioner: str, sticky_ms: int) -> None:
    store = MemoryStore("test")
    Topic("t", partitions=4, store=store).create()
    settings = {
        "partitioner": partitioner,
        "sticky_partitioning_linger_ms": sticky_ms,
        "message_max_bytes": 1000,
    }
    with producing(store, **settings) as producer:
        for number in range(8):
            producer.produce(
                "t", value_of(9000, number), key=None if number % 2 else b"k%d" % number
            )
    with Consumer({**CONF, "group.id": "g"}, store=store) as consumer:
        consumer.assign([TopicPartition("t", partition, 0) for partition in range(4)])
        assert {message.value() for message in drain(consumer, 8)} == {
            value_of(9000, number) for number in range(8)
        }


def test_messages_of_several_producers_do_not_mix_and_keep_their_order() -> None:
    store = MemoryStore("test")
    Topic("t", store=store).create()
    with (
        producing(store, message_max_bytes=2000) as one,
        producing(store, message_max_bytes=1500) as other,
    ):
        for number in range(30):
            for producer, name in ((one, b"a"), (other, b"b")):
                large = number % 3 == 0
                producer.produce(
                    "t", name + b"%02d" % number + (b"." * 10_000 if large else b""), key=name
                )
                if number % 7 == 0:
                    producer.poll(0)
    with consuming(store) as consumer:
        values = [message.value() for message in drain(consumer, 60)]
    for name in (b"a", b"b"):
        own = [value for value in values if value.startswith(name)]
        assert [value[1:3] for value in own] == [b"%02d" % number for number in range(30)]
        assert [len(value) for value in own] == [
            10_003 if number % 3 == 0 else 3 for number in range(30)
        ]
    found = [piece for piece in pieces(store) if piece is not None]
    assert all(
        piece.index == 0 or piece.follows(before)
        for before, piece in zip([None, *found], found, strict=False)
    )


def test_a_consumer_without_the_setting_gets_the_pieces() -> None:
    store = MemoryStore("test")
    with producing(store, message_max_bytes=1000) as producer:
        producer.produce("t", value_of(2500))
    with consuming(store, large_message_enabled=False) as consumer:
        parts = drain(consumer, len(pieces(store)))
    assert b"".join(part.value() for part in parts) == value_of(2500)
    assert [Piece.parsed(dict(part.headers())[PIECE_HEADER]) for part in parts] == pieces(store)


# --- offsets ---


def test_a_committed_message_is_not_returned_again_and_the_next_one_is() -> None:
    store = MemoryStore("test")
    with producing(store, message_max_bytes=1000) as producer:
        for number in range(3):
            producer.produce("t", value_of(5000, number))
    manual: dict[str, Any] = {"enable_auto_commit": False}
    with consuming(store, **manual) as consumer:
        first = next_message(consumer)
        assert consumer.position([TopicPartition("t", 0)])[0].offset == first.offset() + 1
        consumer.commit(first, asynchronous=False)
    with consuming(store, **manual) as consumer:
        second = next_message(consumer)
        assert second.value() == value_of(5000, 1)
        consumer.commit(offsets=[TopicPartition("t", 0, second.offset() + 1)], asynchronous=False)
    with consuming(store, **manual) as consumer:
        assert next_message(consumer).value() == value_of(5000, 2)


def test_a_seek_to_any_piece_returns_the_whole_message() -> None:
    store = MemoryStore("test")
    with producing(store, message_max_bytes=1000) as producer:
        producer.produce("t", b"small")
        producer.produce("t", value_of(5000))
        producer.produce("t", b"small")
    count = len(pieces(store)) - 2
    with consuming(store) as consumer:
        _, large, _ = drain(consumer, 3)
        for offset in range(1, count + 1):
            consumer.seek(TopicPartition("t", 0, offset))
            again = next_message(consumer)
            assert (again.value(), again.offset()) == (large.value(), large.offset())
            assert next_message(consumer).value() == b"small"


def test_a_pause_between_messages_loses_no_piece() -> None:
    store = MemoryStore("test")
    with producing(store, message_max_bytes=1000) as producer:
        for number in range(6):
            producer.produce("t", value_of(5000, number))
    with consuming(store) as consumer:
        values = []
        for _ in range(6):
            values.append(next_message(consumer).value())
            consumer.pause([TopicPartition("t", 0)])
            assert consumer.poll(0) is None
            consumer.resume([TopicPartition("t", 0)])
    assert values == [value_of(5000, number) for number in range(6)]


def test_a_message_that_is_fetched_in_several_parts_is_joined() -> None:
    store, value = MemoryStore("test"), value_of(6 * MIB)
    with producing(store, message_max_bytes=100_000) as producer:
        producer.produce("t", value)
        producer.produce("t", b"after")
    with consuming(store, fetch_max_bytes=1_000_000, message_max_bytes=100_000) as consumer:
        assert [message.value() for message in drain(consumer, 2)] == [value, b"after"]


def test_tables_and_lists_of_messages_have_whole_messages() -> None:
    store = MemoryStore("test")
    with producing(store, message_max_bytes=1000) as producer:
        producer.produce("t", b"a", headers={"h": "1"})
        producer.produce("t", value_of(3000), headers={"h": "2"})
        producer.produce("t", b"b")
    compact(store, "t")  # one file, and one batch of a consumer
    with consuming(store) as consumer:
        assert [message.value() for message in consumer.consume(3, 20)] == [
            b"a",
            value_of(3000),
            b"b",
        ]
        consumer.seek(TopicPartition("t", 0, 0))
        rows = consumer.consume_arrow(timeout=20)
    assert rows is not None
    assert rows.column("value").to_pylist() == [b"a", value_of(3000), b"b"]
    assert rows.column("_headers").to_pylist() == [
        [{"key": "h", "value": b"1"}],
        [{"key": "h", "value": b"2"}],
        None,
    ]
    assert rows.column("_offset").to_pylist()[0] == 0


# --- pieces that are lost ---


def forged(store: MemoryStore, *records: tuple[bytes, Piece | None]) -> None:
    """Write records by hand, some of them as pieces."""
    with Producer(
        {"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store
    ) as producer:
        for value, piece in records:
            producer.produce(
                "t", value, headers=None if piece is None else [(PIECE_HEADER, piece.text())]
            )


def of(
    name: str, count: int, *indexes: int, size: int | None = None
) -> list[tuple[bytes, Piece | None]]:
    size = 2 * count if size is None else size
    return [(b"%d." % index, Piece(name, index, count, size)) for index in indexes]


LOST: list[tuple[str, list[tuple[bytes, Piece | None]], list[Any]]] = [
    ("the end", [*of("a", 3, 0, 1), (b"x", None)], [(0, "only 2 of 3 pieces are there"), b"x"]),
    (
        "the middle",
        [*of("a", 3, 0, 2), (b"x", None)],
        [(0, "only 1 of 3"), (1, "the first 2 of 3 pieces are missing"), b"x"],
    ),
    (
        "the start",
        [(b"x", None), *of("a", 3, 1, 2), (b"y", None)],
        [b"x", (1, "the first 1 of 3"), b"y"],
    ),
    ("one of two", [*of("a", 2, 0), *of("b", 2, 0, 1)], [(0, "only 1 of 2"), b"0.1."]),
    ("twice", [*of("a", 2, 0), *of("a", 2, 0, 1)], [(0, "only 1 of 2"), b"0.1."]),
    (
        "bytes",
        [*of("a", 2, 0, 1, size=5), (b"x", None)],
        [(0, "its pieces have 4 instead of 5 bytes"), b"x"],
    ),
    (
        "too large",
        [*of("a", 2, 0, 1, size=2**40), (b"x", None)],
        [(0, "it has 1099511627776 bytes"), b"x"],
    ),
]


@pytest.mark.parametrize(
    ("records", "expected"), [case[1:] for case in LOST], ids=[case[0] for case in LOST]
)
def test_a_lost_piece_is_an_event_with_its_place_and_all_other_messages_are_read(
    records: list[tuple[bytes, Piece | None]], expected: list[Any]
) -> None:
    store = MemoryStore("test")
    forged(store, *records)
    with consuming(store) as consumer:
        found = drain(consumer, len(expected))
        for message, wanted in zip(found, expected, strict=True):
            if isinstance(wanted, bytes):
                assert (message.error(), message.value()) == (None, wanted)
            else:
                offset, reason = wanted
                assert message.error().code() == KafkaError._PARTIAL
                assert reason in message.error().str()
                assert (message.topic(), message.partition(), message.offset()) == ("t", 0, offset)
        assert consumer.position([TopicPartition("t", 0)])[0].offset == len(records)


def test_a_position_moves_past_a_lost_message_once_its_event_is_returned() -> None:
    store = MemoryStore("test")
    forged(store, (b"x", None), *of("a", 3, 0), *of("b", 2, 1))
    with consuming(store) as consumer:
        assert next_message(consumer).value() == b"x"
        assert consumer.position([TopicPartition("t", 0)])[0].offset == 1
        assert next_message(consumer).error() is not None
        assert next_message(consumer).error() is not None
        assert consumer.position([TopicPartition("t", 0)])[0].offset == 3


def test_a_message_whose_first_pieces_were_deleted_is_an_event() -> None:
    store = MemoryStore("test")
    with producing(store, message_max_bytes=1000) as producer:
        producer.produce("t", value_of(3000))
        producer.produce("t", b"after")
    with AdminClient({"bootstrap.servers": "memory://unused"}, store=store) as admin:
        admin.delete_records([TopicPartition("t", 0, 2)])[TopicPartition("t", 0, 2)].result()
    with consuming(store) as consumer:
        event, after = drain(consumer, 2)
    assert "the first 2 of" in event.error().str()
    assert after.value() == b"after"


def test_a_header_that_is_no_piece_is_left_alone() -> None:
    store = MemoryStore("test")
    texts = [b"", b"a 0 1", b"a 1 1 5", b"a 0 5 1", b"\xff 0 1 5", b"a -1 2 5", None]
    with Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer:
        for text in texts:
            producer.produce("t", b"v", headers=[(PIECE_HEADER, text)])
    with consuming(store) as consumer:
        found = drain(consumer, len(texts))
    assert [message.headers() for message in found] == [[(PIECE_HEADER, text)] for text in texts]


# --- what is refused ---


def test_a_large_message_without_the_setting_is_refused() -> None:
    with (
        producing(MemoryStore("test"), large_message_enabled=False) as producer,
        pytest.raises(MessageTooLarge),
    ):
        producer.produce("t", value_of(2_000_000))


def test_a_compacted_or_typed_topic_takes_no_large_message() -> None:
    store = MemoryStore("test")
    Topic("t", config={"cleanup.policy": "compact"}, store=store).create()
    typed = Topic("typed", pa.schema([("text", pa.string())]), store=store).create()
    with producing(store, message_max_bytes=1000) as producer:
        with pytest.raises(
            InvalidValue, match="would keep only the last piece of a large message: use a topic"
        ):
            producer.produce("t", value_of(5000), key="k")
        with pytest.raises(MessageTooLarge):
            producer.produce(typed, {"text": "x" * 5000})
        with pytest.raises(MessageTooLarge):
            producer.produce("other", b"v" * 5000, key=b"k" * 1000)


@pytest.mark.parametrize(
    ("config", "partition", "refusal"),
    [
        ({"cleanup.policy": "compact"}, -1, "_VALUE_SERIALIZATION"),
        ({}, 5, "_UNKNOWN_PARTITION"),
        ({}, -1, None),
    ],
    ids=["compacted", "no such partition", "taken"],
)
def test_a_large_message_that_is_refused_once_the_topic_is_known_leaves_it_as_it_is(
    config: dict[str, str], partition: int, refusal: str | None
) -> None:
    store, reports = FaultyStore(MemoryStore("test")), []
    Topic("t", config=config, store=store.inner).create()
    store.add(Rule("get", "topics/*_delta_log/*", Fault.error_before(), 3))
    with producing(store, message_max_bytes=1000) as producer:
        about: dict[str, Any] = {"key": "k", "partition": partition}
        producer.produce(
            "t", value_of(5000), on_delivery=lambda *report: reports.append(report), **about
        )
    ((error, message),) = reports
    assert (None if error is None else error.name()) == refusal
    assert message.value() == value_of(5000)
    is_marked = LARGE_MESSAGES_PROPERTY in loaded(store.inner).metadata.configuration
    assert is_marked is (refusal is None)


def test_a_full_queue_refuses_a_large_message_and_an_empty_one_takes_it() -> None:
    store = MemoryStore("test")
    with producing(
        store, queue_buffering_max_kbytes=100, linger_ms=60_000, message_max_bytes=10_000
    ) as producer:
        producer.produce("t", b"small")
        with pytest.raises(QueueFull):
            producer.produce("t", value_of(200_000))
        producer.flush(20)
        producer.produce("t", value_of(200_000))
    with consuming(store) as consumer:
        assert [len(message.value()) for message in drain(consumer, 2)] == [5, 200_000]


def test_a_lost_answer_of_the_store_neither_loses_nor_repeats_a_piece() -> None:
    store = FaultyStore(MemoryStore("test"))
    Topic("t", store=store.inner).create()
    store.add(
        Rule("put", "topics/*.parquet", Fault.error_before(), 2),
        Rule("create", "topics/*_delta_log/*", Fault.error_after(), 2),
    )
    with producing(store, message_max_bytes=1000) as producer:
        futures = [producer.produce_future("t", value_of(5000, number)) for number in range(3)]
        assert [len(future.result(20).value()) for future in futures] == [5000] * 3
    assert store.effects[Effect.ERROR_BEFORE] == 2
    with consuming(store.inner) as consumer:
        found = drain(consumer, 3)
    assert [message.value() for message in found] == [value_of(5000, number) for number in range(3)]
    assert [message.offset() for message in found] == [
        future.result().offset() for future in futures
    ]


def test_a_topic_is_marked_for_large_messages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("test")
    Topic("t", store=store).create()
    with producing(store) as producer:
        producer.produce("t", value_of(2 * MIB))
        assert producer.flush(30) == 0
        monkeypatch.setattr(
            "deltaq.producer.sender_topic.mark_large_messages",
            lambda *_: pytest.fail("the topic is marked"),
        )
        producer.produce("t", value_of(2 * MIB, 1))
        assert producer.flush(30) == 0
    assert len(pieces(store)) == 6
