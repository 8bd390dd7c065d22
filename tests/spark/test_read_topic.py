"""`read_topic` returns the rows of `format("deltaq")`, and those that a model says are left."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import unix_millis

from deltaq import InvalidConfig, Producer, Topic, UnknownTopic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.spark import latest_by_key, read_topic
from deltaq.store import LocalStore
from deltaq.testing import ManualClock
from tests.doubles.compaction import compact
from tests.doubles.produced_tables import Produce, producing_to
from tests.doubles.unsound import append_unsound, text_of
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic
from tests.integration.test_maintenance_model import PARTITIONS, Model

pytestmark = pytest.mark.spark

Rows = Counter[tuple[Any, ...]]


def rows(frame: DataFrame) -> Rows:
    """The rows with times in epoch milliseconds, which Python's own times do not all hold."""
    times: dict[str, Column] = {
        name: unix_millis(name) for name in ("timestamp", "_timestamp") if name in frame.columns
    }
    return Counter(map(plain, frame.withColumns(times).collect()))


def plain(value: Any) -> Any:
    """A value of a row as one that can be compared and hashed."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple(sorted((key, plain(of)) for key, of in value.items()))
    return bytes(value) if isinstance(value, bytearray) else value


def by_python(spark: SparkSession, root: str, topic: str, **options: str) -> DataFrame:
    return spark.read.format("deltaq").options(subscribe=topic, **options).load(root)


def assert_same(spark: SparkSession, root: str, topic: str, **options: str) -> Rows:
    """Assert that both ways of reading return the same columns and rows, which are returned."""
    native, python = (
        read_topic(spark, topic, root, **options),
        by_python(spark, root, topic, **options),
    )
    assert [(field.name, field.dataType) for field in native.schema] == [
        (field.name, field.dataType) for field in python.schema
    ]
    found = rows(native)
    assert found == rows(python)
    return found


class Story:
    """A topic that is written and maintained at random, and a model of what is left of it."""

    def __init__(self, policy: str, ending: contextlib.ExitStack) -> None:
        self._chance, self._policy = random.Random(policy), policy
        self.model = Model()
        ending.callback(self.model.teardown)
        self.model.begin(policy=policy)

    def go_on(self, step: int) -> None:
        chance, model = self._chance, self.model
        if step % 2 == 0:
            written = [
                (
                    chance.randrange(PARTITIONS),
                    chance.choice([b"a", b"b", b"c", None]),
                    chance.randint(0, 4),
                    None,
                )
                for _ in range(chance.randint(2, 6))
            ]
            model.produce(written, commits=chance.randint(2, 5), hours=0)
        elif step % 4 == 3 and self._policy == "delete":
            model.delete_records(partition=chance.randrange(PARTITIONS), share=0.4)
        else:
            model.maintain(hours=0.5, new=True)

    def offset_range(self) -> tuple[list[int], list[int]]:
        """Offsets within what the topic holds."""
        ends = [
            self._chance.randint(start, end)
            for start, end in zip(self.model.starts, self.model.ends, strict=True)
        ]
        starts = [
            self._chance.randint(start, end)
            for start, end in zip(self.model.starts, ends, strict=True)
        ]
        return starts, ends


def offsets(numbers: list[int]) -> str:
    return json.dumps({"t": dict(enumerate(numbers))})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_any_range_of_a_maintained_topic_has_the_rows_of_the_model(
    spark: SparkSession, policy: str
) -> None:
    seen: Counter[str] = Counter()
    with contextlib.ExitStack() as ending:
        story = Story(policy, ending)
        model = story.model
        for step in range(6):
            story.go_on(step)
            starts, ends = story.offset_range()
            options = (
                {"startingOffsets": offsets(starts), "endingOffsets": offsets(ends)}
                if step % 3
                else {}
            )
            lows, highs = (starts, ends) if options else (model.starts, model.ends)
            frame = read_topic(spark, "t", model.root, **options)
            found = {
                (row.partition, row.offset): (row.time, plain(row.key), plain(row.value))
                for row in frame.select("*", unix_millis("timestamp").alias("time")).collect()
            }
            assert found == {
                (p, offset): (r.timestamp_ms, r.key, r.value)
                for (p, offset), r in model.live.items()
                if lows[p] <= offset < highs[p]
            }
            seen["rows"] += len(found)
            seen["rows of ranges"] += len(found) if options else 0
        seen["records that have left"] = len(model.ever) - len(model.live)
        assert_same(spark, model.root, "t", **options)
    assert min(seen.values()) > 0, seen


def test_log_append_time_and_headers_are_those_of_the_log(spark: SparkSession, root: str) -> None:
    """Of files of either type of timestamp, appended and merged."""
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(
        LocalStore(root, clock), clock, partitions=2, message_timestamp_type="LogAppendTime"
    )
    expected: Rows = Counter()

    def append(offset: int, kind: int) -> None:
        clock.advance(10)
        written = [
            RowToWrite(b"%d" % p, b"k", p, 5, [("h", b"1"), ("h", None)] if p else None)
            for p in range(2)
        ]
        topic.append(*written)
        for row in written:
            time = topic.log.live_head.time_ms if kind else 5
            headers = row.headers and tuple(row.headers)
            expected[row.key, row.value, "t", row.partition, offset, time, kind, headers] += 1

    for offset in range(3):
        append(offset, 1)
    assert rows(read_topic(spark, "t", root, includeHeaders=True)) == expected
    topic.maintain(replace(SMALL, merge_files=3, in_flight_ms=0))
    append(3, 1)
    topic.configure(message_timestamp_type="CreateTime")
    append(4, 0)
    assert len(topic.files) == 3
    assert assert_same(spark, root, "t", includeHeaders="true") == expected


SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("medium", pa.int32()),
        ("large", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(20, 3)),
        ("name", pa.string()),
        ("blob", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def test_a_typed_topic_has_its_own_columns_of_every_type(spark: SparkSession, root: str) -> None:
    value: dict[str, Any] = {
        "flag": True,
        "tiny": -8,
        "small": 1,
        "medium": 2,
        "large": 2**60,
        "single": 0.5,
        "double": -0.25,
        "price": Decimal("12345678901234567.125"),
        "name": "tea",
        "blob": b"\0",
        "day": datetime.date(1400, 2, 28),
        "at": datetime.datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=datetime.UTC),
        "tags": ["a", "b"],
        "place": {"x": 1, "y": "z"},
        "counts": {"one": 1},
    }
    Topic("sales", SCHEMA, bootstrap_servers=root).create()
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("sales", value, key=b"k", timestamp=1)
        producer.produce("sales", None, key=b"k", timestamp=2)
    (first, second) = sorted(
        assert_same(spark, root, "sales", columns="table"), key=lambda row: row[2]
    )
    assert first[:6] == ("sales", 0, 0, 1, b"k", None)
    # As Spark returns it in a session of this time zone.
    value["at"] = value["at"].replace(tzinfo=None)
    value["place"] = tuple(value["place"].values())
    assert first[6:] == tuple(plain(of) for of in value.values())
    assert second == ("sales", 0, 1, 2, b"k", None, *[None] * len(SCHEMA))


def test_columns_of_a_typed_topic_may_have_the_names_of_kafkas(
    spark: SparkSession, root: str
) -> None:
    named = {"topic": "a", "key": 1, "offset": 2, "timestampType": "b", "value": 4, "a`b.c": 5}
    schema = pa.schema(
        [(name, pa.string() if isinstance(of, str) else pa.int64()) for name, of in named.items()]
    )
    Topic("sales", schema, bootstrap_servers=root).create()
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("sales", None, key=b"k")
        producer.produce("sales", named, key=b"k")
    newest = latest_by_key(spark, "sales", root, columns="table").collect()
    assert [row[6:] for row in newest] == [tuple(named.values())]
    assert {row[6:] for row in assert_same(spark, root, "sales", columns="table")} == {
        tuple(named.values()),
        (None,) * len(named),
    }


def test_several_topics_and_assigned_partitions_are_read_with_the_options_of_the_source(
    spark: SparkSession, root: str, produce: Produce
) -> None:
    produce("orders", [b"a", b"b", b"c"], to=[0, 1, 2], timestamps=[10, 20, 30], partitions=3)
    produce("orders", [b"d", b"e", b"f"], to=[0, 1, 2], timestamps=[40, 50, 60])
    produce("bills", [b"g"], timestamps=[25])

    def values(topic: str | None, **options: object) -> list[bytes]:
        return sorted(
            bytes(row.value)
            for row in read_topic(spark, topic, root, **options).select("value").collect()
        )

    assert values("orders,bills") == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    assert values(None, assign='{"orders":[0,2]}') == [b"a", b"c", b"d", b"f"]
    assert values(None, assign='{"orders":[0,2]}', startingTimestamp=30) == [b"c", b"d", b"f"]
    assert values(None, subscribePattern="b.*|none") == [b"g"]
    assert values("orders", startingTimestamp=20, endingTimestamp=50) == [b"b", b"c", b"d"]
    assert values(None, subscribePattern="none") == []
    with pytest.raises(InvalidConfig, match="a batch query would read nothing"):
        values("orders", startingOffsets="latest")
    with pytest.raises(UnknownTopic, match="'nothing' does not exist"):
        values("nothing")
    lost = '{"bills":{"0":0}}'
    with pytest.raises(InvalidConfig, match='did you mean "startingOffsets"'):
        values("bills", startingOffset=lost)


def test_a_file_that_was_removed_is_an_error_and_never_fewer_rows(
    spark: SparkSession, root: str, produce: Produce
) -> None:
    produce("orders", [b"a"])
    produce("orders", [b"b"])
    before = read_topic(spark, "orders", root)
    compact(LocalStore(root, SYSTEM_CLOCK), "orders")
    after = read_topic(spark, "orders", root)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
            before.count()
        assert after.count() == 2
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_a_flipped_bit_of_a_page_is_an_error(
    spark: SparkSession, root: str, produce: Produce
) -> None:
    produce("orders", [b"%d" % number * 100 for number in range(100)])
    (path,) = Path(root, "topics", "orders").glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[data.index(b"9" * 50)] ^= 1
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
        read_topic(spark, "orders", root).select("value").collect()


def test_a_root_with_characters_of_patterns_is_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    root = str(tmp_path / "day=1" / "a b[1]{x,y}*%20")
    producing_to(root)("orders", [b"a"])
    assert [bytes(row.value) for row in read_topic(spark, "orders", root).collect()] == [b"a"]


def decimals(*unscaled: int) -> pa.Array:
    """Numbers with one digit after the point that Arrow has not checked."""
    data = b"".join(number.to_bytes(16, "little") for number in unscaled)
    return pa.Array.from_buffers(pa.decimal128(3, 1), len(unscaled), [None, pa.py_buffer(data)])


def test_a_record_that_no_producer_accepts_hurts_no_other_one(spark, tmp_path):
    root, columns = (
        str(tmp_path / "root"),
        {"text": pa.string(), "day": pa.date32(), "price": pa.decimal128(3, 1)},
    )
    inner = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), decimals(1, 2, 9_999))
    topic = Topic(
        "t", pa.schema([*columns.items(), ("list", inner.type)]), conf={"bootstrap.servers": root}
    ).create()
    days = pa.array([0, 2**31 - 1, 1], pa.int32()).cast(pa.date32())
    append_unsound(
        LocalStore(root),
        topic.name,
        pa.table(
            {
                "text": text_of(b"a", b"\xff", b"c"),
                "day": days,
                "price": decimals(1, 9_999, 3),
                "list": inner,
            }
        ),
    )
    tenth, frame = Decimal("0.1"), by_python(spark, root, "t", columns="table")
    found = [
        tuple(row)
        for row in frame.select("_offset", "text", "price", "list").orderBy("_offset").collect()
    ]
    assert found == [
        (0, "a", tenth, [tenth]),
        (1, "\ufffd", None, [2 * tenth]),
        (2, "c", 3 * tenth, None),
    ]
    native = (
        read_topic(spark, "t", root, columns="table")
        .select("_offset", "text", "day")
        .orderBy("_offset")
    )
    assert [tuple(row) for row in native.select("_offset", "text").collect()] == [
        row[:2] for row in found
    ]
