"""Foreign values at the border of a table: what is accepted is read back equal by every reader, and
what is refused is refused before the commit, with row and field. Compared with plain Python.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import operator
import tempfile
import uuid
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import (
    Consumer,
    InvalidConfig,
    InvalidValue,
    KafkaException,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.tools import from_arrow, from_file, from_pandas, from_polars, messages
from tests.depth import depth
from tests.doubles.unsound import append_unsound

TIME = pa.timestamp("us", "UTC")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
FEW = settings(
    max_examples=depth(15, 500),
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)

# --- types, and values as they are stored: text as bytes, times and days as integers, decimals
# without their point, maps as lists of pairs. Such a value need not be one that Python has. ---

SCALARS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.decimal128(3, 1), pa.decimal128(38, 0), pa.string(), pa.binary(), pa.date32(), TIME),
]


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        inner.map(lambda kind: pa.map_(pa.string(), pa.field("value", kind))),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda kinds: pa.struct([(f"f{number}", kind) for number, kind in enumerate(kinds)])
        ),
    )


def types(deep: int) -> st.SearchStrategy[pa.DataType]:
    return (
        st.sampled_from(SCALARS) if not deep else st.sampled_from(SCALARS) | nested(types(deep - 1))
    )


def near(*edges: int) -> st.SearchStrategy[int]:
    return st.one_of(*(st.integers(edge - 1, edge + 1) for edge in edges))


def stored(kind: pa.DataType, *, sound: bool) -> st.SearchStrategy[Any]:
    """Values of a type; all of them ones that Python has if `sound`."""
    found = _nested_values(kind, sound=sound) if pa.types.is_nested(kind) else _scalar_values(kind)
    return st.none() | (found.filter(lambda value: is_sound(kind, value)) if sound else found)


def _nested_values(kind: pa.DataType, *, sound: bool) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.tuples(*(stored(field.type, sound=sound) for field in kind))
    if pa.types.is_list(kind):
        return st.lists(stored(kind.value_type, sound=sound), max_size=3)
    keys = st.sampled_from([b"a", b"b"]) | TEXTS
    return st.lists(st.tuples(keys, stored(kind.item_type, sound=sound)), max_size=2)


TEXTS = (
    st.text(max_size=3).map(str.encode)
    | st.binary(max_size=2)
    | st.sampled_from([b"\xfc", b"\xed\xa0\x80", b""])
)


def _scalar_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        edge = 2 ** (kind.bit_width - 1)
        return st.sampled_from([-edge, -1, 0, edge - 1])
    if pa.types.is_decimal(kind):
        edge = 10**kind.precision
        return near(0, edge, -edge) if kind.precision < 38 else st.integers(1 - edge, edge - 1)
    others: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.bool_(): st.booleans(),
        pa.float32(): st.floats(width=32),
        pa.float64(): st.floats(),
        pa.string(): TEXTS,
        pa.binary(): st.binary(max_size=3),
        pa.date32(): near(0, FIRST_DAY, LAST_DAY) | st.sampled_from([-(2**31), 2**31 - 1]),
        TIME: near(0, FIRST_US, LAST_US) | st.sampled_from([-(2**63), 2**63 - 1, 576 * 10**15]),
    }
    return others[kind]


def is_sound(kind: pa.DataType, value: Any) -> bool:
    """Whether plain Python has the value."""
    try:
        plain(kind, value)
    except (ValueError, OverflowError):
        return False
    return True


def plain(kind: pa.DataType, value: Any) -> Any:
    """The value in plain Python. Raises ValueError or OverflowError for one that it does not
    have.
    """
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            field.name: plain(field.type, each) for field, each in zip(kind, value, strict=True)
        }
    if pa.types.is_list(kind):
        return [plain(kind.value_type, each) for each in value]
    if pa.types.is_map(kind):
        pairs = {key.decode(): plain(kind.item_type, each) for key, each in value}
        if len(pairs) < len(value):
            raise ValueError("a key twice")
        return pairs
    if pa.types.is_decimal(kind):
        if abs(value) >= 10**kind.precision:
            raise ValueError("too many digits")
        return Decimal(value).scaleb(-kind.scale, Context(prec=80))
    if kind == TIME:
        return EPOCH + dt.timedelta(microseconds=value)
    if kind == pa.date32():
        return EPOCH.date() + dt.timedelta(days=value)
    return value.decode() if kind == pa.string() else value


def array_of(kind: pa.DataType, values: list[Any], *, large: bool = False) -> pa.Array:
    """Stored values as an array that nothing has checked; with `large`, of the types with offsets
    of 64 bits.
    """
    is_null = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        columns = [
            [None if value is None else value[at] for value in values]
            for at in range(kind.num_fields)
        ]
        children = [
            array_of(field.type, each, large=large)
            for field, each in zip(kind, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(children, [field.name for field in kind], mask=is_null)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        lengths = [len(value or ()) for value in values]
        ends = functools.reduce(lambda ends, length: [*ends, ends[-1] + length], lengths, [0])
        items = [item for value in values for item in value or ()]
        if pa.types.is_list(kind):
            elements = array_of(kind.value_type, items, large=large)
            of_lists = pa.LargeListArray if large else pa.ListArray
            return of_lists.from_arrays(
                pa.array(ends, pa.int64() if large else pa.int32()), elements, mask=is_null
            )
        keys, each = (
            array_of(pa.string(), [key for key, _ in items]),
            array_of(kind.item_type, [v for _, v in items]),
        )
        lists = pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()),
            pa.StructArray.from_arrays([keys, each], ["key", "value"]),
            mask=is_null,
        )
        offsets, validity = lists.buffers()[1], lists.buffers()[0]
        entries = pa.StructArray.from_arrays(
            [keys, each], fields=[pa.field("key", pa.string(), False), kind.item_field]
        )
        return pa.Array.from_buffers(
            pa.map_(keys.type, pa.field("value", each.type)),
            len(values),
            [validity, offsets],
            children=[entries],
        )
    if kind == pa.string():
        texts = pa.array(values, pa.large_binary() if large else pa.binary())
        return pa.Array.from_buffers(
            pa.large_string() if large else kind, len(values), texts.buffers()
        )
    if pa.types.is_decimal(kind):
        digits = pa.array(
            [None if value is None else Decimal(value) for value in values], pa.decimal128(38, 0)
        )
        return pa.Array.from_buffers(kind, len(values), digits.buffers())
    numbers = {TIME: pa.int64(), pa.date32(): pa.int32()}
    return pa.array(values, numbers.get(kind, kind)).cast(kind)


@st.composite
def columns(draw: st.DrawFn, *, sound: bool = False) -> tuple[pa.DataType, list[Any]]:
    """A type, and values of it."""
    kind = draw(types(3))
    return kind, draw(st.lists(stored(kind, sound=sound), min_size=1, max_size=4))


# --- ways in ---


def table_of(kind: pa.DataType, values: list[Any], *, large: bool = False) -> pa.Table:
    return pa.table(
        {"n": pa.array(range(len(values)), pa.int64()), "c": array_of(kind, values, large=large)}
    )


def by_dict(topic: Topic, kind: pa.DataType, values: list[Any]) -> None:
    with Producer({"bootstrap.servers": topic.store.url}) as producer:
        for number, value in enumerate(values):
            producer.produce(topic.name, {"n": number, "c": plain(kind, value)})


def by_arrow(topic: Topic, kind: pa.DataType, values: list[Any], *, large: bool = False) -> None:
    with Producer({"bootstrap.servers": topic.store.url}) as producer:
        producer.produce_arrow(topic.name, table_of(kind, values, large=large))


def by_categories(topic: Topic, kind: pa.DataType, values: list[Any]) -> None:
    table = table_of(kind, values)
    if kind in (pa.string(), pa.binary()):
        table = table.set_column(1, "c", table["c"].combine_chunks().dictionary_encode())
    with Producer({"bootstrap.servers": topic.store.url}) as producer:
        producer.produce_arrow(topic.name, table)


def by_frame_of_arrow(topic: Topic, kind: pa.DataType, values: list[Any]) -> None:
    from_arrow(topic, table_of(kind, values))


def by_pandas(topic: Topic, kind: pa.DataType, values: list[Any]) -> None:
    table = table_of(kind, values)
    from_pandas(
        topic,
        pd.DataFrame(
            {name: pd.Series(pd.arrays.ArrowExtensionArray(table[name])) for name in ("n", "c")}
        ),
    )


def by_parquet(topic: Topic, kind: pa.DataType, values: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table_of(kind, values), path := Path(folder) / "x.parquet")
        from_file(topic, path)


WAYS_IN: list[Callable[[Topic, pa.DataType, list[Any]], None]] = [
    by_arrow,
    functools.partial(by_arrow, large=True),
    by_categories,
    by_frame_of_arrow,
    by_pandas,
    by_parquet,
]


# --- ways out: the values of the column `c`, by number ---


def comparable(value: Any) -> Any:
    """A form in which a NaN is equal to itself, and 0.0 is not -0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    return [comparable(each) for each in value] if isinstance(value, list) else value


def by_consumer(topic: Topic, count: int) -> list[Any]:
    with Consumer({"bootstrap.servers": topic.store.url, "group.id": "g"}) as consumer:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        return [message.value()["c"] for message in consumer.consume(count, 30)]


def by_batches(topic: Topic, count: int) -> list[Any]:
    with Consumer({"bootstrap.servers": topic.store.url, "group.id": "g"}) as consumer:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        found: list[Any] = []
        while len(found) < count:  # one batch for each commit
            batch = consumer.consume_arrow(count, timeout=30)
            assert batch is not None
            found += batch.column("c").to_pylist(maps_as_pydicts="strict")
        return found


def by_rows(topic: Topic, _: int) -> list[Any]:
    return [record.value["c"] for record in messages(topic)]


def by_table(topic: Topic, _: int) -> list[Any]:
    found: list[Any] = topic.to_arrow()["c"].to_pylist(maps_as_pydicts="strict")
    return found


WAYS_OUT: list[Callable[[Topic, int], list[Any]]] = [by_consumer, by_batches, by_rows, by_table]


def of_engine(table: pa.Table) -> list[Any]:
    rows = sorted(
        table.select(["n", "c"]).to_pylist(maps_as_pydicts="strict"), key=operator.itemgetter("n")
    )
    return [row["c"] for row in rows]


def by_delta_rs(topic: Topic) -> list[Any]:
    return of_engine(DeltaTable(path_of(topic)).to_pyarrow_table())


def by_polars(topic: Topic) -> list[Any]:
    return of_engine(pl.scan_delta(path_of(topic)).collect().to_arrow())


def by_duckdb(topic: Topic) -> list[Any]:
    files = [str(file) for file in Path(path_of(topic)).glob("*.parquet")]
    with duckdb.connect() as connection:
        return of_engine(connection.read_parquet(files).to_arrow_table())


def path_of(topic: Topic) -> str:
    return topic.store.url.removeprefix("file://") + "/topics/" + topic.name


def with_maps_as_dicts(kind: pa.DataType, value: Any) -> Any:
    """A value as an engine returns it, whose maps may be lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = (
            value.items() if isinstance(value, dict) else [tuple(pair.values()) for pair in value]
        )
        return {key: with_maps_as_dicts(kind.item_type, each) for key, each in pairs}
    if pa.types.is_list(kind):
        return [with_maps_as_dicts(kind.value_type, each) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: with_maps_as_dicts(field.type, value[field.name]) for field in kind}
    return value


def new_topic(root: str, kind: pa.DataType) -> Topic:
    schema = pa.schema([("n", pa.int64()), ("c", kind)])
    return Topic("t" + uuid.uuid4().hex, schema, bootstrap_servers=root).create()


def is_named(error: InvalidValue, rows: list[int]) -> bool:
    """Whether the error names the column and one of the rows."""
    field = error.field or ""
    return field.startswith("c") and any(field.endswith(f"[{row}]") for row in rows)


@pytest.mark.parametrize(
    "way", WAYS_IN, ids=["table", "large types", "categories", "from_arrow", "pandas", "parquet"]
)
@FEW
@given(column=columns())
def test_accepted_is_read_back_equal_and_refused_is_refused_with_row_and_field(
    memory_root, way, column
):
    kind, values = column
    wrong = [row for row, value in enumerate(values) if not is_sound(kind, value)]
    topic = new_topic(memory_root, kind)
    if wrong:
        with pytest.raises(InvalidValue) as refused:
            way(topic, kind, values)
        assert is_named(refused.value, wrong), refused.value
        assert topic.to_arrow().num_rows == 0
        return
    way(topic, kind, values)
    expected = comparable([plain(kind, value) for value in values])
    for read in WAYS_OUT:
        assert comparable(read(topic, len(values))) == expected


@FEW
@given(column=columns(sound=True))
def test_a_dict_gives_the_same_row_as_arrow(memory_root, column):
    kind, values = column
    topic = new_topic(memory_root, kind)
    by_dict(topic, kind, values)
    expected = comparable([plain(kind, value) for value in values])
    for read in WAYS_OUT:
        assert comparable(read(topic, len(values))) == expected


@settings(FEW, max_examples=depth(15, 300))
@given(column=columns(sound=True))
def test_other_engines_read_the_same(local_root, column):
    kind, values = column
    topic = new_topic(local_root, kind)
    by_arrow(topic, kind, values)
    expected = comparable([plain(kind, value) for value in values])
    for read in (by_delta_rs, by_polars, by_duckdb):
        assert comparable([with_maps_as_dicts(kind, value) for value in read(topic)]) == expected, (
            read
        )


@FEW
@given(column=columns())
def test_what_is_stored_already_hurts_only_itself(memory_root, column):
    kind, values = column
    topic = new_topic(memory_root, kind)
    append_unsound(topic.store, topic.name, table_of(kind, values))
    with Consumer({"bootstrap.servers": memory_root, "group.id": "g"}) as consumer:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        found = consumer.consume(len(values), 30)
    assert len(found) == len(values)
    for message, value in zip(found, values, strict=True):
        if is_sound(kind, value):
            assert comparable(message.value()["c"]) == comparable(plain(kind, value))
        else:
            with pytest.raises(KafkaException, match=f"offset {message.offset()}"):
                message.value()


# --- what is beside the value ---


@FEW
@given(
    st.lists(
        st.lists(st.tuples(TEXTS, st.none() | st.binary(max_size=2)), max_size=2),
        min_size=1,
        max_size=3,
    )
)
def test_headers_are_read_back_equal_or_refused(memory_root, headers):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    wrong = [
        row
        for row, pairs in enumerate(headers)
        if not all(is_sound(pa.string(), name) for name, _ in pairs)
    ]
    name = "h" + uuid.uuid4().hex
    table = pa.table({"value": [b"v"] * len(headers), "headers": array_of(kind, headers)})
    topic = Topic(name, bootstrap_servers=memory_root).create()
    with Producer({"bootstrap.servers": memory_root}) as producer:
        if wrong:
            with pytest.raises(InvalidValue, match=r"headers\.element\.key\[") as refused:
                producer.produce_arrow(name, table)
            assert any(f"[{row}]" in str(refused.value) for row in wrong)
        else:
            producer.produce_arrow(name, table)
    expected = (
        [] if wrong else [[(key.decode(), content) for key, content in pairs] for pairs in headers]
    )
    assert [record.headers for record in messages(topic)] == expected


@FEW
@given(
    st.lists(st.uuids() | st.dates() | st.text(max_size=2), min_size=1, max_size=3), st.booleans()
)
def test_python_objects_of_a_frame_are_refused(memory_root, objects, typed):
    frame = pl.DataFrame({"n": range(len(objects)), "c": pl.Series(objects, dtype=pl.Object)})
    schema = pa.schema([("n", pa.int64()), ("c", pa.binary())]) if typed else None
    topic = Topic("o" + uuid.uuid4().hex, schema, bootstrap_servers=memory_root).create()
    with pytest.raises(InvalidValue, match="field 'c': is of Polars' type Object"):
        from_polars(topic, frame)
    assert topic.to_arrow().num_rows == 0


@FEW
@given(column=columns(sound=True))
def test_a_line_of_json_is_read_back_equal_or_the_file_is_refused(memory_root, tmp_path, column):
    kind, values = column
    topic = new_topic(memory_root, kind)
    path = tmp_path / "x.jsonl"
    try:
        lines = [
            json.dumps({"n": number, "c": plain(kind, value)})
            for number, value in enumerate(values)
        ]
    except TypeError:  # JSON has no times, bytes and decimals
        return
    path.write_text("".join(line + "\n" for line in lines))
    try:
        from_file(topic, path)
    except (InvalidValue, InvalidConfig):
        assert topic.to_arrow().num_rows == 0
    else:
        assert comparable(by_rows(topic, len(values))) == comparable(
            [plain(kind, value) for value in values]
        )
