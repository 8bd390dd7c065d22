"""`deltaq.tools`: places, the first and last records of topics with gaps, and records on to another
topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig, KafkaException
from deltaq.maintenance import run
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import forget_memory_store, open_store
from deltaq.tools import (
    Last,
    Place,
    Record,
    TopicStats,
    first,
    foldl,
    last,
    matching,
    offset_ranges,
    parse_place,
    reading,
    records_of,
    transform,
)
from deltaq.tools.records import plain
from tests.doubles.unsound import append_unsound

ROOT = "memory://tools"
NOW_MS = 1_795_600_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.fixture
def root() -> Iterator[str]:
    yield ROOT
    forget_memory_store("tools")


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("beginning", None, 0),
        ("Earliest", None, 0),
        ("end", Last(0), None),
        ("latest", Last(0), None),
        (" 42 ", 42, 42),
        ("-10", Last(10), Last(10)),
        ("-90s", NOW - timedelta(seconds=90), NOW - timedelta(seconds=90)),
        ("7d", NOW - timedelta(days=7), NOW - timedelta(days=7)),
        (f"@{NOW_MS}", NOW, NOW),
        ("2026-11-25", datetime(2026, 11, 25, tzinfo=UTC), datetime(2026, 11, 25, tzinfo=UTC)),
        (
            "2026-11-25T09:30+02:00",
            datetime(2026, 11, 25, 7, 30, tzinfo=UTC),
            datetime(2026, 11, 25, 7, 30, tzinfo=UTC),
        ),
    ],
)
def test_places_are_read_as_people_write_them(text: str, start: Place, end: Place) -> None:
    assert (parse_place(text, NOW_MS), parse_place(text, NOW_MS, end=True)) == (start, end)


@pytest.mark.parametrize(
    "text", ["", "x", "--1", "1.5", "-5y", "2026-13-01", "@x", "9" * 40, "-999999999w"]
)
def test_other_texts_are_no_places(text: str) -> None:
    with pytest.raises(InvalidConfig, match="is no place in a topic"):
        parse_place(text, NOW_MS)


def _compacted(root: str) -> Topic:
    """Keys 0 to 9, each ten times; key compaction has left only the last record of each, at offsets
    90 to 99, and of those that come first.
    """
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    topic = Topic("keys", conf={"bootstrap.servers": root}, config=config).create()
    for _ in range(2):
        with Producer(bootstrap_servers=root) as producer:
            for number in range(50):
                producer.produce(
                    topic, b"%d" % number, key=b"%d" % (number % 10), timestamp=NOW_MS + number
                )
    run(root, once=True, settings=MaintenanceSettings(clean_up_grace_s=0))
    return topic


def test_gaps_of_compaction_are_read_over(root: str) -> None:
    topic = _compacted(root)
    ranges = offset_ranges(topic)
    everything = [record.offset for record in _records(topic.to_batches())]
    assert ranges == {0: (0, 100)}
    assert 10 <= len(everything) < 100
    assert [record.offset for record in _records(first(topic, ranges, 3))] == everything[:3]
    assert (
        sorted(record.offset for record in _records(last(topic, ranges, 9).to_batches()))
        == everything[-9:]
    )


def _records(batches: object) -> list[Record]:
    return [record for batch in batches for record in records_of(batch, None)]  # type: ignore[attr-defined]


def test_records_go_to_another_topic_as_a_function_makes_them(root: str) -> None:
    source = Topic("a", conf={"bootstrap.servers": root}).create()
    target = Topic("b", conf={"bootstrap.servers": root}).create()
    with Producer(bootstrap_servers=root) as producer:
        for number in range(10):
            producer.produce(
                source, b"%d" % number, key=b"k", timestamp=NOW_MS + number, headers=[("h", b"1")]
            )

    def doubled_odd(record: Record) -> Record | None:
        return record._replace(value=record.value * 2) if int(record.value) % 2 else None

    assert transform(source, target, doubled_odd, start=2) == 4
    found = _records(target.to_batches())
    assert [(record.value, record.timestamp - NOW_MS) for record in found] == [
        (b"33", 3),
        (b"55", 5),
        (b"77", 7),
        (b"99", 9),
    ]
    assert {(record.key, tuple(record.headers)) for record in found} == {(b"k", (("h", b"1"),))}
    assert foldl(target, lambda total, record: total + int(record.value), 0) == 33 + 55 + 77 + 99


def test_a_record_becomes_as_many_as_a_function_makes(root: str) -> None:
    source = Topic("a", conf={"bootstrap.servers": root}).create()
    target = Topic("b", conf={"bootstrap.servers": root}).create()
    with Producer(bootstrap_servers=root) as producer:
        for text in (b"a b", b"", b"c"):
            producer.produce(source, text, key=b"k")

    def words(record: Record) -> list[Record]:
        return [record._replace(value=word) for word in record.value.split()]

    assert transform(source, target, words) == 3
    assert transform(source, target, lambda record: (one for one in words(record))) == 3
    assert [record.value for record in _records(target.to_batches())] == [b"a", b"b", b"c"] * 2
    with pytest.raises(TypeError, match="must return a Record, several or None, not bytes"):
        transform(source, target, lambda record: [record.value])


def test_a_record_that_is_refused_ends_the_transfer(root: str) -> None:
    source = Topic("a", conf={"bootstrap.servers": root}).create()
    target = Topic("b", conf={"bootstrap.servers": root}, config={"max.message.bytes": 5}).create()
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(source, b"much too long")
    with pytest.raises(KafkaException, match="more than the limit"):
        transform(source, target, lambda record: record)
    assert open_store(root).url == ROOT


SHIPMENT = pa.schema(
    [
        ("id", pa.int64()),
        ("items", pa.list_(pa.string())),
        ("to", pa.struct([("city", pa.string()), ("day", pa.date32())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("price", pa.decimal128(9, 2)),
        ("seal", pa.binary()),
    ]
)


@pytest.fixture
def shipments(root: str) -> list[pa.RecordBatch]:
    topic = Topic("shipments", SHIPMENT, conf={"bootstrap.servers": root}).create()
    rows: list[dict[str, object]] = [
        {
            "id": 1,
            "items": ["tea", "cup"],
            "to": {"city": "Łódź", "day": date(2026, 1, 2)},
            "seal": b"\xfftea",
        },
        {
            "id": 2,
            "items": [],
            "to": None,
            "counts": {"tea": 12},
            "price": Decimal("12.50"),
            "seal": None,
        },
        {
            "id": 3,
            "items": None,
            "to": {"city": None, "day": None},
            "counts": {},
            "price": None,
            "seal": b"x",
        },
    ]
    with Producer(bootstrap_servers=root) as producer:
        for row in rows:
            producer.produce(topic, {name: row.get(name) for name in SHIPMENT.names}, key=b"k")
    return list(topic.to_batches())


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("cup", [1]),
        ("tea", [1, 2]),
        ('"tea": 12\\b', [2]),
        ("Łódź", [1]),
        ("2026-01-02", [1]),
        (r"^12\.50$", [2]),
        ("^x$", [3]),
        ("^k$", [1, 2, 3]),
        ("nothing", []),
    ],
)
def test_columns_of_every_kind_are_searched(
    shipments: list[pa.RecordBatch], pattern: str, ids: list[int]
) -> None:
    def found(*, invert: bool) -> list[int]:
        return [
            number
            for b in shipments
            for number in matching(b, pattern, invert=invert)["id"].to_pylist()
        ]

    assert found(invert=False) == ids
    assert found(invert=True) == [number for number in (1, 2, 3) if number not in ids]


def test_a_map_with_a_repeated_key_is_searched_as_it_is_stored(root: str) -> None:
    topic = Topic("shipments", SHIPMENT, conf={"bootstrap.servers": root}).create()
    counts = pa.array([[("a", 1), ("a", 2)], [("b", 1)]], SHIPMENT.field("counts").type)
    append_unsound(topic.store, "shipments", pa.table({"counts": counts}))
    (batch,) = topic.to_batches()
    assert [
        matching(batch, pattern).column("_offset").to_pylist()
        for pattern in ("a", "b'a'", '"b"', "c")
    ] == [
        [0],
        [0],
        [1],
        [],
    ]


def test_statistics_know_the_first_millisecond_of_all_times(root: str) -> None:
    """Producers take 0 for the present. Another writer may write it."""
    topic = Topic("old", conf={"bootstrap.servers": root}).create()
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(topic, b"v", timestamp=7)
    (batch,) = topic.to_batches()
    at = batch.schema.get_field_index("_timestamp")
    earliest = batch.set_column(
        at, batch.schema.field(at), pa.array([0]).cast(batch.schema.field(at).type)
    )
    found = TopicStats()
    for each in (batch, earliest, batch):
        found.add(each)
    assert (found.messages, found.first_timestamp, found.last_timestamp) == (3, 0, 7)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (time(9, 30), "09:30:00"),
        (timedelta(hours=1), "1:00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([("a", date(2026, 1, 2))], [["a", "2026-01-02"]]),
        ({date(2026, 1, 2): Decimal("1.0")}, {"2026-01-02": "1.0"}),
        ((1, 2.5, True, None), [1, 2.5, True, None]),
    ],
)
def test_values_of_queries_become_those_of_json(value: object, expected: object) -> None:
    assert json.loads(json.dumps(plain(value))) == expected


def test_the_newest_records_are_found_without_keeping_all_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_UNSORTED_BYTES", 4 * 1024 * 1024)
    columns = pa.schema(
        [(name, pa.int64()) for name in ("_timestamp", "_partition", "_offset")]
        + [("value", pa.binary())]
    )
    before, most = pa.total_allocated_bytes(), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(40):
            at = [number * 7 % 40]
            # A copy, in Arrow's own memory.
            value = pa.array([b"x" * 1024 * 1024]).take(pa.array([0]))
            yield pa.RecordBatch.from_arrays(
                [pa.array(at), pa.array([0]), pa.array([number]), value], schema=columns
            )
            most = max(most, pa.total_allocated_bytes() - before)

    found = reading.newest(batches(), columns, 3)
    assert found.column("_timestamp").to_pylist() == [37, 38, 39]
    assert most < 20 * 1024 * 1024
    assert reading.newest([], columns, 3).num_rows == 0
