"""Arrow data as records: the same as row by row, and refused by column name where it does not
fit.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from deltaq.delta.schema import arrow_schema, delta_schema
from deltaq.errors import InvalidValue, KafkaError, MessageTooLarge, UnknownTopic
from deltaq.parquet.segment import encode_segment
from deltaq.serde.source import schema_of
from deltaq.topics.arrow_input import columns_from_arrow
from deltaq.topics.columns import Columns, by_partition, columns_of_rows

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns(data: Any, schema: pa.Schema | None = None, **changes: Any) -> Columns:
    """What the topic "t" with 4 partitions makes of some data."""
    arguments: dict[str, Any] = {
        "partitions": 4,
        "size_max": 1000,
        "keyed": False,
        "now_ms": NOW_MS,
    } | changes
    return columns_from_arrow(data, "t", None if schema is None else schema_of(schema), **arguments)


def rows_of(result: Columns) -> list[tuple[Any, ...]]:
    values = result.values.to_pylist(maps_as_pydicts="strict")
    parts = (result.partitions, result.timestamps, result.keys, result.headers)
    return list(zip(*(part.to_pylist() for part in parts), values, strict=True))


# --- untyped topics ---


def test_an_untyped_topic_needs_only_a_value_column():
    result = columns(pa.table({"value": pa.array([b"a", None])}))
    assert rows_of(result) == [
        (-1, NOW_MS, None, None, {"value": b"a"}),
        (-1, NOW_MS, None, None, {"value": None}),
    ]


_binary = st.none() | st.binary(max_size=5)
_header_lists = st.none() | st.lists(st.tuples(st.text(max_size=3), _binary), max_size=3)
_row = st.tuples(
    st.integers(0, 3), st.integers(1, 10**13 - 10**12), _binary, _header_lists, _binary
)


@given(st.lists(_row, max_size=20), st.integers(0, 3))
def test_a_table_gives_the_same_columns_as_its_rows_one_by_one(rows, skipped):
    partitions, timestamps, keys, headers, values = zip(*rows, strict=True) if rows else ((),) * 5
    table = pa.table(
        {
            "partition": pa.array(partitions, pa.int64()),
            "timestamp": pa.array(timestamps, pa.int64()).cast(pa.timestamp("ms", "UTC")),
            "key": pa.array(keys, pa.binary()),
            "headers": pa.array(
                [h and [{"key": k, "value": v} for k, v in h] for h in headers], HEADERS
            ),
            "value": pa.array(values, pa.binary()),
        }
    )
    times = pa.array(timestamps, pa.int64())
    expected = columns_of_rows(partitions, times, keys, [h or None for h in headers], values, None)
    # Sliced, so that arrays with an offset are met as well.
    assert rows_of(columns(table.slice(skipped))) == rows_of(expected)[skipped:]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_keys_and_values_may_be_any_kind_of_text_or_bytes(kind):
    data = (
        pa.array(["ä", None, ""])
        .cast(pa.binary() if "binary" in str(kind) else pa.string())
        .cast(kind)
    )
    result = columns(pa.table({"key": data, "value": data}))
    assert result.keys.to_pylist() == ["ä".encode(), None, b""]
    assert result.values.column("value").equals(result.keys)


def test_keys_and_values_may_be_categories_of_polars():
    texts = pl.DataFrame({"value": ["b", None, "a"]}, schema={"value": pl.Categorical})
    result = columns(texts.with_columns(key="value"))
    assert result.keys.to_pylist() == [b"b", None, b"a"]
    assert result.values.column("value").equals(result.keys)
    empty = texts.clear().with_columns(id=pl.lit(1, pl.Int64)).rename({"value": "note"})
    assert (
        columns(empty, pa.schema([("id", pa.int64()), ("note", pa.string())])).values.num_rows == 0
    )


def test_a_table_read_from_a_topic_can_be_produced_without_its_offsets():
    table = pa.table(
        {
            "_partition": pa.array([1], pa.int32()),
            "_timestamp": pa.array([5_000_000], pa.timestamp("us", "UTC")),
            "_key": pa.array([b"k"]),
            "_headers": pa.array([[{"key": "h", "value": b"x"}]], HEADERS),
            "value": pa.array([b"v"]),
        }
    )
    assert rows_of(columns(table)) == [
        (1, 5000, b"k", [{"key": "h", "value": b"x"}], {"value": b"v"})
    ]
    with pytest.raises(
        InvalidValue, match="'_offset': offsets are assigned when the rows are written"
    ):
        columns(table.append_column("_offset", pa.array([7])))


def test_headers_may_be_a_map_and_no_headers_are_none():
    maps = pa.array([[("a", b"1"), ("a", None)], [], None], pa.map_(pa.string(), pa.binary()))
    result = columns(pa.table({"value": pa.nulls(3, pa.binary()), "headers": maps}))
    assert result.headers.to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        None,
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_and_zone_become_milliseconds(unit):
    times = (
        pa.array([1_234_000_000_000, None])
        .cast(pa.timestamp("ns", "Asia/Tokyo"))
        .cast(pa.timestamp(unit, "Asia/Tokyo"))
    )
    result = columns(pa.table({"value": pa.nulls(2, pa.binary()), "timestamp": times}))
    assert result.timestamps.to_pylist() == [1_234_000, NOW_MS]


def test_integer_timestamps_are_milliseconds_and_zero_is_now():
    result = columns(
        pa.table({"value": pa.nulls(3, pa.binary()), "timestamp": pa.array([7, 0, None])})
    )
    assert result.timestamps.to_pylist() == [7, NOW_MS, NOW_MS]


def test_the_partitioner_chooses_for_null_partitions():
    result = columns(
        pa.table(
            {"value": pa.nulls(3, pa.binary()), "partition": pa.array([3, None, -1], pa.int8())}
        )
    )
    assert result.partitions.to_pylist() == [3, -1, -1]
    assert result.partitions.type == pa.int32()


class Frame:
    """A data frame of some other library."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class Liar:
    """Data of a library that declares another type than it delivers."""

    def __init__(self, array: pa.Array, declared: pa.DataType) -> None:
        self._array = array
        self._declared = declared

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._declared.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


def test_batches_readers_and_foreign_frames_are_taken_too():
    table = pa.table({"value": pa.chunked_array([[b"a"], [b"b", b"c"]])})
    for data in (table.combine_chunks().to_batches()[0], table.to_reader(), Frame(table)):
        assert columns(data).values.column(0).to_pylist() == [b"a", b"b", b"c"]


def test_an_empty_table_gives_no_rows():
    assert (
        len(
            columns(
                pa.table(
                    {"value": pa.array([], pa.binary()), "partition": pa.array([], pa.int32())}
                )
            )
        )
        == 0
    )


@pytest.mark.parametrize("data", [{"value": [b"a"]}, [b"a"], "a", None, 5])
def test_data_other_than_arrow_raises_type_error(data):
    with pytest.raises(TypeError, match="expected an Arrow table"):
        columns(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": pa.array([1])}, "field 'value': is int64: the topic holds bytes"),
        ({"value": None}, "field 'value': the table has no such column"),
        ({"key": pa.array([1.5])}, "field 'key': is double"),
        (
            {"_key": pa.array(["x"]), "key": pa.array(["y"])},
            "field 'key': the table has the column '_key' too",
        ),
        ({"keys": pa.array(["x"])}, "field 'keys': the topic has no such column"),
        (
            {"__index_level_0__": pa.array([3])},
            "the index of a pandas frame: call reset_index(drop=True)",
        ),
        ({"partition": pa.array(["0"])}, "field 'partition': is string, not int64"),
        ({"partition": pa.array([1.0])}, "field 'partition': is double, not int64"),
        ({"timestamp": pa.array([0], pa.timestamp("us"))}, "field 'timestamp': has no time zone"),
        ({"timestamp": pa.array([-1])}, "field 'timestamp[0]': -1 ms is outside"),
        (
            {"timestamp": pa.array([2**62], pa.timestamp("s", "UTC"))},
            "field 'timestamp[0]': cannot become timestamp",
        ),
        (
            {"timestamp": pa.array(["now"])},
            "field 'timestamp': is string: use a timestamp with a time zone",
        ),
        ({"headers": pa.array([["a"]])}, "field 'headers': headers cannot be list<item: string>"),
        (
            {"headers": pa.array([[{"key": None, "value": b""}]], HEADERS)},
            "field 'headers[0]': a header without a name",
        ),
    ],
)
def test_a_column_that_does_not_fit_an_untyped_topic_is_named(change, message):
    arrays = {"value": pa.array([b"v"])} | change
    with pytest.raises(InvalidValue) as refusal:
        columns(pa.table({name: array for name, array in arrays.items() if array is not None}))
    assert message in str(refusal.value)
    assert refusal.value.topic == "t"


def test_a_duplicate_column_is_refused():
    twice = pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"])
    with pytest.raises(InvalidValue, match="appears twice"):
        columns(twice)


TWINS = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
ONE = pa.array([0, 1], pa.int32())


@pytest.mark.parametrize(
    ("wanted", "given", "field"),
    [
        (pa.struct([("a", pa.int64())]), TWINS, "c.a"),
        (
            pa.list_(pa.struct([("a", pa.int64())])),
            pa.ListArray.from_arrays(ONE, TWINS),
            "c.element.a",
        ),
        (
            pa.map_(pa.string(), pa.struct([("a", pa.int64())])),
            pa.MapArray.from_arrays(ONE, pa.array(["k"]), TWINS),
            "c.value.a",
        ),
        (
            pa.struct([("s", pa.struct([("a", pa.int64())]))]),
            pa.StructArray.from_arrays([TWINS], ["s"]),
            "c.s.a",
        ),
        (pa.struct([("a", pa.int64())]), TWINS.slice(1), "c.a"),
    ],
    ids=["struct", "list", "map", "struct in a struct", "no row"],
)
def test_a_struct_with_two_fields_of_one_name_is_refused(wanted, given, field):
    with pytest.raises(InvalidValue, match="two fields of this name") as refusal:
        columns(pa.table({"c": given}), pa.schema([("c", wanted)]))
    assert refusal.value.field == field


def test_a_header_with_two_values_is_refused():
    pair = pa.StructArray.from_arrays(
        [pa.array(["k"]), pa.array([b"1"]), pa.array([b"2"])], ["key", "value", "value"]
    )
    table = pa.table({"value": [b"x"], "headers": pa.ListArray.from_arrays(ONE, pair)})
    with pytest.raises(InvalidValue, match=r"headers\.element\.value.* two fields of this name"):
        columns(table)


@pytest.mark.parametrize("partition", [4, -2, 2**31, 2**40])
def test_an_unknown_partition_is_refused(partition):
    table = pa.table({"value": [b"a", b"b"], "partition": [0, partition]})
    with pytest.raises(UnknownTopic) as refusal:
        columns(table)
    assert refusal.value.partition == partition
    assert refusal.value.args[0].code() == KafkaError._UNKNOWN_PARTITION


def test_partitions_are_not_checked_while_their_number_is_unknown():
    table = pa.table({"value": [b"a"], "partition": [1000]})
    assert columns(table, partitions=None).partitions.to_pylist() == [1000]


def test_a_compacted_topic_takes_no_null_key_and_the_row_is_named():
    with pytest.raises(InvalidValue, match="field 'key': row 1: the topic is compacted"):
        columns(pa.table({"value": [b"a", b"b"], "key": ["x", None]}), keyed=True)
    with pytest.raises(InvalidValue, match="field 'key': the topic is compacted"):
        columns(pa.table({"value": [b"a"]}), keyed=True)


def test_the_size_of_a_row_is_that_of_value_key_and_headers():
    headers = pa.array(
        [None, [{"key": "hh", "value": b"123"}, {"key": "h", "value": None}]], HEADERS
    )
    table = pa.table({"value": [b"x" * 50, b"x" * 80], "key": ["kk", None], "headers": headers})
    assert len(columns(table, size_max=86)) == 2
    with pytest.raises(MessageTooLarge) as refusal:
        columns(table, size_max=85)
    assert (refusal.value.size, refusal.value.limit) == (86, 85)


@given(st.lists(st.tuples(_binary, _header_lists), min_size=1, max_size=8))
def test_the_largest_row_decides_whether_a_table_is_too_large(rows):
    size = max(
        len(v or b"") + sum(len(k.encode()) + len(c or b"") for k, c in h or ()) for v, h in rows
    )
    headers = pa.array([h and [{"key": k, "value": c} for k, c in h] for _, h in rows], HEADERS)
    table = pa.table({"value": pa.array([v for v, _ in rows], pa.binary()), "headers": headers})
    assert len(columns(table, size_max=size)) == len(rows)
    if size:
        with pytest.raises(MessageTooLarge, match=f"the message has {size} bytes"):
            columns(table, size_max=size - 1)


# --- typed topics ---

PLACE = pa.struct([pa.field("city", pa.string(), nullable=False), pa.field("zip", pa.int32())])
ORDER = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("small", pa.float32()),
        pa.field("exact", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("place", PLACE),
        pa.field("sizes", pa.map_(pa.string(), pa.field("value", pa.int16(), nullable=False))),
        pa.field("raw", pa.binary()),
        pa.field("done", pa.bool_()),
    ]
)


def test_columns_of_a_typed_topic_are_matched_by_name_and_missing_ones_are_null():
    table = pa.table({"price": [1.5], "_key": ["k"], "id": pa.array([7], pa.uint8())})
    result = columns(table, ORDER)
    assert result.keys.to_pylist() == [b"k"]
    assert result.values.schema.equals(schema_of(ORDER).arrow)
    assert result.values.to_pylist() == [dict.fromkeys(ORDER.names) | {"id": 7, "price": 1.5}]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("price", pa.array([3]), 3.0),
        ("price", pa.array([0.5], pa.float32()), 0.5),
        ("small", pa.array([0.1]), 0.10000000149011612),
        ("small", pa.array([float("inf")]), float("inf")),
        ("exact", pa.array([Decimal("1.5")]), Decimal("1.50")),
        ("exact", pa.array([3], pa.int8()), Decimal("3.00")),
        (
            "at",
            pa.array([1], pa.timestamp("s", "Asia/Tokyo")),
            dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
        ),
        ("day", pa.array([86_400_000], pa.date64()), dt.date(1970, 1, 2)),
        ("tags", pa.array([["a"]], pa.large_list(pa.large_string())), ["a"]),
        ("tags", pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()), 1)), ["a"]),
        ("place", pa.array([{"city": "Ulm"}]), {"city": "Ulm", "zip": None}),
        ("place", pa.array([{"zip": 1, "city": "Ulm"}]), {"city": "Ulm", "zip": 1}),
        ("sizes", pa.array([[("a", 1)]], pa.map_(pa.string_view(), pa.int64())), {"a": 1}),
        ("raw", pa.array([b"ab"], pa.binary(2)), b"ab"),
        ("done", pa.nulls(1), None),
    ],
)
def test_values_are_cast_if_nothing_is_lost(name, given, expected):
    result = columns(pa.table({"id": [1], name: given}), ORDER)
    assert result.values.column(name).to_pylist(maps_as_pydicts="strict") == [expected]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("id", pa.array(["5"]), "field 'id': is string, not int64"),
        ("id", pa.array([5.0]), "field 'id': is double, not int64"),
        ("id", pa.array([2**63], pa.uint64()), "field 'id[0]': cannot become int64"),
        (
            "id",
            pa.array([None], pa.int64()),
            "field 'id[0]': is null, and the topic requires a value",
        ),
        ("price", pa.array([2**53 + 1]), "field 'price[0]': cannot become double"),
        ("price", pa.array([True]), "field 'price': is bool, not double"),
        ("small", pa.array([1e300]), "field 'small[0]': holds a number too large for float"),
        (
            "exact",
            pa.array([Decimal("1.555")]),
            "field 'exact[0]': cannot become decimal128(10, 2)",
        ),
        ("exact", pa.array([1.5]), "field 'exact': is double, not decimal128(10, 2)"),
        ("at", pa.array([0], pa.timestamp("us")), "field 'at': has no time zone"),
        (
            "at",
            pa.array([1], pa.timestamp("ns", "UTC")),
            "field 'at[0]': cannot become timestamp[us, tz=UTC]",
        ),
        ("tags", pa.array(["a"]), "field 'tags': is string, not list"),
        ("tags", pa.array([[1]]), "field 'tags.element': is int64, not string"),
        ("tags", pa.array([["a", None]]), "field 'tags.element[0]': is null"),
        ("tags", pa.array([["a"]], pa.list_view(pa.string())), "field 'tags': is list_view"),
        ("place", pa.array([{"zip": 1}]), "field 'place.city': is missing"),
        ("place", pa.array([{"city": None, "zip": 1}]), "field 'place.city"),
        (
            "place",
            pa.array([{"city": "Ulm", "street": "x"}]),
            "field 'place.street': the topic has no such field",
        ),
        (
            "sizes",
            pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
            "field 'sizes.value': is string",
        ),
        (
            "sizes",
            pa.array([[("a", None)]], pa.map_(pa.string(), pa.int16())),
            "field 'sizes.value[0]': is null",
        ),
        (
            "sizes",
            pa.array([[("a", 70_000)]], pa.map_(pa.string(), pa.int32())),
            "field 'sizes[0]': cannot become map",
        ),
        ("done", pa.array([1]), "field 'done': is int64, not bool"),
        ("colour", pa.array(["red"]), "field 'colour': the topic has no such column"),
        ("key", pa.array(["k"]), "field 'key': the topic has no such column"),
    ],
)
def test_a_lossy_cast_is_refused_by_column_name(name, given, message):
    with pytest.raises(InvalidValue) as refusal:
        columns(pa.table({"id": [1]} | {name: given}), ORDER)
    assert message in str(refusal.value)


def test_a_required_column_must_be_there():
    with pytest.raises(
        InvalidValue, match="field 'id': the table lacks this column, which the topic requires"
    ):
        columns(pa.table({"price": [1.0]}), ORDER)


def test_a_row_of_nulls_is_refused_because_it_would_be_a_tombstone():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    table = pa.table(
        {"a": pa.array([1, None, None]), "b": pa.array([None, "x", None], pa.string())}
    )
    with pytest.raises(InvalidValue, match="row 2 has nothing but nulls"):
        columns(table, schema)


Colour = Literal["red", "blue"]


class OrderLine(BaseModel):
    colour: Colour
    size: Literal[1, 2] | None = None


class Basket(BaseModel):
    colour: Colour = "red"
    maybe: Colour | None = None
    size: Literal[1, 2] = 1
    lines: list[OrderLine] | None = None
    counts: dict[str, list[Colour | None]] | None = None


OF_MEMBERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "colour": ("blue", "green", {"colour": "{}"}),
    "maybe": ("blue", "", {"maybe": "{}"}),
    "size": (2, -1, {"size": "{}"}),
    "lines.element.colour": ("blue", "Red", {"lines": [{"colour": "red"}, {"colour": "{}"}]}),
    "lines.element.size": (2, 3, {"lines": [{"colour": "red"}, {"colour": "red", "size": "{}"}]}),
    "counts.value.element": ("blue", "green", {"counts": [("a", [None, "red"]), ("b", ["{}"])]}),
}
"""By path: a member, a value that is none, and the fields of a row where "{}" stands for it."""


def filled(form: Any, value: object) -> Any:
    """A form with the value in place of "{}"."""
    if isinstance(form, dict):
        return {name: filled(inner, value) for name, inner in form.items()}
    if isinstance(form, list | tuple):
        return type(form)(filled(inner, value) for inner in form)
    return value if form == "{}" else form


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", OF_MEMBERS)
def test_a_value_that_is_no_member_is_refused_with_row_and_field(path: str, chunked: bool) -> None:
    member, other, form = OF_MEMBERS[path]
    columns_of_topic = arrow_schema(delta_schema(schema_of(Basket).arrow))  # as a client finds them
    usual = {"colour": "red", "size": 1}
    rows = [usual | filled(form, member) for _ in range(7)]
    rows[3] = usual  # with nulls
    good = pa.Table.from_pylist(rows, columns_of_topic)
    assert len(columns(good, columns_of_topic)) == 7
    rows[5] = usual | filled(form, other)
    bad = pa.Table.from_pylist(rows, columns_of_topic)
    table = pa.concat_tables([bad[:4], bad[4:]]) if chunked else bad
    with pytest.raises(InvalidValue, match="is none of") as caught:
        columns(table, columns_of_topic)
    assert (caught.value.field, caught.value.topic) == (f"{path}[5]", "t")


def test_members_are_checked_in_columns_of_other_types_with_the_same_values() -> None:
    known = schema_of(Basket).arrow
    table = pa.table(
        {
            "size": pa.array([1, 2], pa.int8()),
            "colour": pa.array(["red", "blue"]).dictionary_encode(),
        }
    )
    assert columns(table, known).values["size"].to_pylist() == [1, 2]
    with pytest.raises(InvalidValue, match="is none of 'blue', 'red'") as caught:
        columns(table.set_column(1, "colour", pa.array(["red", "grey"]).dictionary_encode()), known)
    assert caught.value.field == "colour[1]"


def test_a_null_struct_may_have_null_fields():
    place = pa.StructArray.from_arrays(
        [pa.array([None, "Ulm"], pa.string()), pa.nulls(2, pa.int32())],
        ["city", "zip"],
        mask=pa.array([True, False]),
    )
    result = columns(pa.table({"id": [1, 2], "place": place}), ORDER)
    assert result.values.column("place").to_pylist() == [None, {"city": "Ulm", "zip": None}]


def test_arrays_that_contradict_themselves_are_refused():
    with pytest.raises(InvalidValue, match="not valid Arrow data"):
        columns(Liar(pa.array([{"value": b"a" * 300}]), pa.struct([("value", pa.large_binary())])))
    with pytest.raises(InvalidValue, match="not a table"):
        columns(Liar(pa.array([{"value": b"a"}]), pa.struct([("value", pa.int64())])))


def test_the_size_of_a_typed_row_counts_nested_content():
    schema = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
    table = pa.table({"n": [1, 2], "tags": [["a" * 100, "b" * 20], None]})
    assert pc.sum(columns(table, schema, size_max=128).values.column("n")).as_py() == 3
    with pytest.raises(MessageTooLarge, match="128 bytes"):
        columns(table, schema, size_max=127)


def test_a_missing_nested_column_is_null():
    place = pa.struct([pa.field("x", pa.int8(), nullable=False)])
    schema = pa.schema([("a", pa.int64()), ("place", place)])
    result = columns(pa.table({"a": [1, 2]}), schema)
    assert [row[-1] for row in rows_of(result)] == [
        {"a": 1, "place": None},
        {"a": 2, "place": None},
    ]
    encode_segment(by_partition(result)[0], [2], "none")


# --- values that a reader could not return ---


def text_of(*contents: bytes | None, kind: pa.DataType | None = None) -> pa.Array:
    """Bytes as text that Arrow has not checked."""
    wanted = pa.string() if kind is None else kind
    array = pa.array(
        contents,
        {pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}.get(
            wanted, pa.binary()
        ),
    )
    return pa.array(Liar(array, wanted))


BAD = text_of(b"ok", b"a\xfc", b"b")
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("d", pa.date32()),
        pa.field("e", pa.decimal128(3, 0)),
        pa.field("m", pa.map_(pa.string(), pa.float32())),
        pa.field("l", pa.list_(pa.struct([("s", pa.string()), ("d", pa.date32())]))),
    ]
)
FAR = pa.array([0, 0, 576 * 10**15]).cast(pa.timestamp("us", "UTC"))
DAYS = pa.array([2_932_896, -719_162, 2_932_897], pa.int32()).cast(pa.date32())


def lists_of(items: pa.Array, name: str) -> pa.Array:
    """Lists of one struct, whose other field is null."""
    fields = {"s": pa.nulls(len(items), pa.string()), "d": pa.nulls(len(items), pa.date32())} | {
        name: items
    }
    structs = pa.StructArray.from_arrays([*fields.values()], [*fields])
    return pa.ListArray.from_arrays(pa.array(range(len(items) + 1), pa.int32()), structs)


def long_decimals() -> pa.Array:
    wide = pa.array([Decimal(999), Decimal(-999), Decimal(1000)], pa.decimal128(38, 0))
    return pa.array(Liar(wide, pa.decimal128(3, 0)))


UNSOUND: dict[str, tuple[str, pa.Array, str]] = {
    "text": ("s", BAD, "field 's[1]': has bytes that are no UTF-8"),
    "large text": ("s", text_of(b"", b"\xff", kind=pa.large_string()), "field 's[1]': has bytes"),
    "views": (
        "s",
        text_of(b"x" * 20, b"\xff" * 20, kind=pa.string_view()),
        "field 's[1]': has bytes",
    ),
    "categories": (
        "s",
        pa.DictionaryArray.from_arrays(pa.array([0, 2, 1]), BAD),
        "field 's[2]': has bytes",
    ),
    "nested text": ("l", lists_of(BAD, "s"), "field 'l.element.s[1]': has bytes"),
    "a far time": ("t", FAR, "field 't[2]': is outside the years 1 to 9999"),
    "a far time in seconds": (
        "t",
        pa.array([0, -62_135_596_801]).cast(pa.timestamp("s", "UTC")),
        "field 't[1]': is out",
    ),
    "a far day": ("d", DAYS, "field 'd[2]': is outside the years 1 to 9999"),
    "a far day inside": ("l", lists_of(DAYS, "d"), "field 'l.element.d[2]': is outside"),
    "too many digits": (
        "e",
        long_decimals(),
        "field 'e[2]': has more digits than decimal128(3, 0) holds",
    ),
    "a key twice": (
        "m",
        pa.array(
            [[("a", 1)], None, [("b", 1), ("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.float32())
        ),
        "field 'm[2]': has a key twice",
    ),
    "a key that is no text": (
        "m",
        pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), BAD, pa.array([1.0, 2.0, 3.0])),
        "field 'm.key[1]': has bytes",
    ),
    "a float that becomes infinite inside": (
        "m",
        pa.array(
            [[("a", 1.0)], [("a", float("inf")), ("b", 1e39)]], pa.map_(pa.string(), pa.float64())
        ),
        "field 'm[1]': holds a number too large for float",
    ),
}


@pytest.mark.parametrize(("name", "given", "message"), UNSOUND.values(), ids=UNSOUND.keys())
@pytest.mark.parametrize("chunked", [True, False])
def test_a_value_that_no_reader_could_return_is_refused_with_row_and_field(
    name, given, message, chunked
):
    column = pa.chunked_array([given.slice(0, 1), given.slice(1)]) if chunked else given
    with pytest.raises(InvalidValue) as refusal:
        columns(pa.table({"n": list(range(len(given))), name: column}), SCHEMA)
    assert message in str(refusal.value)
    assert refusal.value.topic == "t"


@pytest.mark.parametrize(("name", "given", "message"), UNSOUND.values(), ids=UNSOUND.keys())
def test_the_rows_beside_it_are_taken(name, given, message):
    row = int(message.partition("[")[2].partition("]")[0])
    for rows in (slice(0, row), slice(row + 1, None)):
        good = pa.table({"n": list(range(len(given))), name: given}).slice(
            rows.start, len(given[rows])
        )
        taken = columns(good, SCHEMA).values.column(name)
        assert taken.to_pylist(maps_as_pydicts="strict") == good[name].to_pylist(
            maps_as_pydicts="strict"
        )


@pytest.mark.parametrize("name", ["value", "key"])
def test_text_in_a_topic_of_bytes_is_checked_as_text_and_bytes_are_not(name):
    with pytest.raises(InvalidValue, match=rf"field '{name}\[1\]': has bytes that are no UTF-8"):
        columns(pa.table({"value": [b"x"] * 3} | {name: BAD}))
    assert len(columns(pa.table({"value": [b"x"] * 3} | {name: BAD.cast(pa.binary())}))) == 3


def test_names_and_texts_of_headers_are_text_and_each_header_has_a_name():
    def refused(pairs: pa.Array) -> str:
        given = pa.ListArray.from_arrays(pa.array(range(len(pairs) + 1), pa.int32()), pairs)
        with pytest.raises(InvalidValue) as refusal:
            columns(pa.table({"value": [b"x"] * len(pairs), "headers": given}))
        return str(refusal.value)

    texts = pa.array(["a", "b", "c"])
    named = pa.StructArray.from_arrays([BAD, texts.cast(pa.binary())], ["key", "value"])
    assert "field 'headers.element.key[1]': has bytes that are no UTF-8" in refused(named)
    with_text = pa.StructArray.from_arrays([texts, BAD], ["key", "value"])
    assert "field 'headers.element.value[1]': has bytes that are no UTF-8" in refused(with_text)
    missing = pa.StructArray.from_arrays(
        [texts, texts], ["key", "value"], mask=pa.array([False, False, True])
    )
    assert "field 'headers[2]': a header without a name" in refused(missing)


def test_what_is_hidden_under_a_null_is_not_looked_at():
    hidden = pa.StructArray.from_arrays([BAD], ["s"], mask=pa.array([False, True, False]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), hidden)
    assert columns(pa.table({"n": [1, 2, 3], "l": lists}), SCHEMA).values.column(
        "l"
    ).to_pylist() == [
        [{"s": "ok", "d": None}],
        [None],
        [{"s": "b", "d": None}],
    ]


def test_a_time_just_before_1970_is_refused_and_not_rounded_up():
    times = pa.array([0, -1], pa.timestamp("us", "UTC"))
    with pytest.raises(InvalidValue, match=r"field 'timestamp\[1\]': -1 us is before 1970"):
        columns(pa.table({"value": [b"a", b"b"], "timestamp": times}))


def test_offsets_that_leave_the_data_are_refused_before_anything_is_read():
    offsets = pa.array([0, 5, 1, 2], pa.int32()).buffers()[1]
    torn = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"ab")])
    with pytest.raises(InvalidValue, match="field 's': not valid Arrow data"):
        columns(pa.table({"n": [1, 2, 3], "s": torn}), SCHEMA)


# --- extension types ---


def test_extensions_with_a_meaning_of_their_own_are_taken():
    flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
    ids = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"x" * 16, None, b"y" * 16], pa.binary(16))
    )
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1", "[]", None]))
    schema = pa.schema(
        [("f", pa.bool_()), ("u", pa.binary()), ("j", pa.string()), ("us", pa.list_(pa.binary()))]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), ids)
    result = columns(pa.table({"f": flags, "u": ids, "j": texts, "us": lists}), schema)
    assert [[*row[-1].values()] for row in rows_of(result)] == [
        [True, b"x" * 16, "1", [b"x" * 16]],
        [False, None, "[]", [None]],
        [None, b"y" * 16, None, [b"y" * 16]],
    ]
    with pytest.raises(InvalidValue, match=r"field 'n': is extension<arrow\.bool8>, not int64"):
        columns(pa.table({"n": flags}), SCHEMA)


OPAQUE = pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "thing", "maker"), pa.array([1, 2]))
UNKNOWN = pa.field("element", pa.int64(), metadata={"ARROW:extension:name": "maker.thing"})


@pytest.mark.parametrize(
    ("data", "field", "name"),
    [
        (pa.table({"n": OPAQUE}), "n", "arrow.opaque"),
        (pa.table({"n": [1]}, pa.schema([UNKNOWN.with_name("n")])), "n", "maker.thing"),
        (pa.table({"n": [[1]]}, pa.schema([("n", pa.list_(UNKNOWN))])), "n.element", "maker.thing"),
        (pa.table({"value": OPAQUE}), "value", "arrow.opaque"),
    ],
)
def test_any_other_extension_is_refused_by_name(data, field, name):
    schema = None if "value" in data.column_names else pa.schema([("n", pa.int64())])
    with pytest.raises(InvalidValue, match=f"field '{field}': is of the extension type '{name}'"):
        columns(data, schema)


def test_the_extensions_of_pandas_are_refused_by_name():
    pd = pytest.importorskip("pandas", reason="only Spark's extra installs pandas")
    for values, name in (
        (pd.period_range("2020-01", periods=2, freq="M"), "pandas.period"),
        (pd.interval_range(0, 2), "pandas.interval"),
    ):
        table = pa.Table.from_pandas(pd.DataFrame({"n": values}))
        with pytest.raises(InvalidValue, match=f"field 'n': is of the extension type '{name}'"):
            columns(table, pa.schema([("n", pa.int64())]))


def test_python_objects_in_a_frame_of_polars_are_refused_and_not_their_addresses_written():
    frame = pl.DataFrame({"value": [UUID(int=1)]})
    with pytest.raises(InvalidValue, match="field 'value': is of Polars' type Object"):
        columns(frame)


def test_wide_integers_of_polars_and_mixed_columns_of_pandas_are_refused_by_name():
    pd = pytest.importorskip("pandas", reason="only Spark's extra installs pandas")
    wide = {"a": [{"b": [1]}]}
    frame = pl.DataFrame(wide, schema={"a": pl.Struct({"b": pl.List(pl.Int128)})})
    with pytest.raises(InvalidValue, match=r"field 'a\.b\.element': is of Polars' type Int128"):
        columns(frame, pa.schema([("a", pa.int64())]))
    for mixed in ([1, "a"], [["a"], 1]):
        with pytest.raises(InvalidValue, match="field 'n': not a table"):
            columns(pd.DataFrame({"i": [1, 2], "n": mixed}))
    with pytest.raises(InvalidValue, match="not a table"):
        columns(pd.DataFrame({"n": [2**70]}))


@pytest.mark.parametrize("chunked", [True, False])
def test_produced_rows_do_not_change_with_the_callers_buffers(chunked):
    """The rows are looked at long after the call: as they are uploaded, and again when their file
    is merged.
    """
    numbers = np.arange(1000)
    column = pa.array(numbers)
    values = pa.chunked_array([column]) if chunked else column
    result = columns(pa.table({"a": values}), pa.schema([("a", pa.int64())]))
    numbers[:] = -1
    assert result.values.column("a").to_pylist() == list(range(1000))
