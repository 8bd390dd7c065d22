"""Schemas go into Delta's log and come back, and other Delta software reads the same."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from deltaq.delta.schema import arrow_schema, delta_schema

PRIMITIVES = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.decimal128(1, 0),
    pa.decimal128(38, 38),
]
NAMES = st.text("abcdefgh_é", min_size=1, max_size=6)
METADATA = st.one_of(st.none(), st.dictionaries(NAMES, st.text(max_size=5), min_size=1, max_size=2))


def _fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    field = st.builds(pa.field, NAMES, types, st.booleans(), METADATA)
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda f: f.name.lower())


TYPES = st.recursive(
    st.sampled_from(PRIMITIVES),
    lambda inner: st.one_of(
        _fields(inner).map(pa.struct),
        st.builds(
            lambda kind, null: pa.list_(pa.field("element", kind, null)), inner, st.booleans()
        ),
        st.builds(
            lambda kind, null: pa.map_(pa.string(), pa.field("value", kind, null)),
            inner,
            st.booleans(),
        ),
    ),
    max_leaves=8,
)
SCHEMAS = _fields(TYPES).map(pa.schema)


@given(SCHEMAS)
def test_a_schema_comes_back_with_its_nullability_and_metadata(schema: pa.Schema) -> None:
    assert arrow_schema(delta_schema(schema)).equals(schema, check_metadata=True)


@given(SCHEMAS)
def test_delta_rs_reads_the_same_columns(schema: pa.Schema) -> None:
    text = delta_schema(schema)
    theirs = Schema.from_json(text)
    assert json.loads(theirs.to_json()) == json.loads(text)
    assert pa.schema(theirs.to_arrow()).equals(schema, check_metadata=False)


@given(SCHEMAS)
def test_a_schema_written_by_delta_rs_is_read(schema: pa.Schema) -> None:
    assert arrow_schema(Schema.from_arrow(schema).to_json()).equals(schema, check_metadata=False)


def test_every_type_is_written_by_its_name_in_the_protocol() -> None:
    written = json.loads(
        delta_schema(pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(PRIMITIVES)]))
    )
    names = (
        "boolean byte short integer long float double string binary date timestamp decimal(1,0) "
        "decimal(38,38)"
    )
    assert [field["type"] for field in written["fields"]] == names.split()


def test_nested_types_say_whether_they_hold_nulls() -> None:
    nested = pa.struct([pa.field("x", pa.int8(), nullable=False)])
    schema = pa.schema(
        [
            pa.field("a", pa.list_(pa.field("element", nested, nullable=False)), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.float64()), metadata={"comment": "why"}),
        ]
    )
    struct = {
        "type": "struct",
        "fields": [{"name": "x", "type": "byte", "nullable": False, "metadata": {}}],
    }
    assert json.loads(delta_schema(schema)) == {
        "type": "struct",
        "fields": [
            {
                "name": "a",
                "type": {"type": "array", "elementType": struct, "containsNull": False},
                "nullable": False,
                "metadata": {},
            },
            {
                "name": "m",
                "type": {
                    "type": "map",
                    "keyType": "string",
                    "valueType": "double",
                    "valueContainsNull": True,
                },
                "nullable": True,
                "metadata": {"comment": "why"},
            },
        ],
    }


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.timestamp("us"),
        pa.timestamp("ns", tz="UTC"),
        pa.timestamp("us", tz="Europe/Vienna"),
        pa.time64("us"),
        pa.large_string(),
        pa.decimal128(3, 5),
        pa.decimal256(40, 0),
        pa.dictionary(pa.int8(), pa.string()),
        pa.null(),
    ],
    ids=str,
)
def test_a_type_that_delta_does_not_have_is_refused_by_column(kind: pa.DataType) -> None:
    nested = pa.list_(pa.struct([("y", kind)]))
    with pytest.raises(ValueError, match=r"column 'x\[\]\.y' has the type"):
        delta_schema(pa.schema([("x", nested)]))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        delta_schema(pa.schema([("a", pa.int8()), ("A", pa.int8())]))


FIELD = {"name": "a", "type": "long", "nullable": True, "metadata": {}}


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"type":"array"}',
        '{"type":"struct"}',
        '{"type":"struct","fields":{}}',
        '{"type":"struct","fields":[3]}',
        *(
            json.dumps({"type": "struct", "fields": [FIELD | change]})
            for change in (
                {"name": 3},
                {"type": None},
                {"type": "timestamp_ntz"},
                {"type": "variant"},
                {"type": "decimal(39,0)"},
                {"type": "decimal(3,4)"},
                {"type": "decimal(0,0)"},
                {"type": {"type": "set"}},
                {"type": {"type": "array", "elementType": "long"}},
                {"type": {"type": "map", "keyType": "string", "valueContainsNull": True}},
                {"nullable": "yes"},
                {"metadata": 3},
            )
        ),
        '{"type":"struct","fields":' * 10_000,
    ],
    ids=lambda text: text[:160].replace(" ", ""),
)
def test_an_invalid_schema_raises_value_error(schema: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        arrow_schema(schema)


def test_non_text_metadata_is_kept_as_json() -> None:
    schema = json.dumps(
        {"type": "struct", "fields": [FIELD | {"metadata": {"id": 7, "name": "x"}}]}
    )
    assert arrow_schema(schema).field("a").metadata == {b"id": b"7", b"name": b"x"}


def test_metadata_may_be_missing() -> None:
    schema = json.dumps(
        {"type": "struct", "fields": [{k: v for k, v in FIELD.items() if k != "metadata"}]}
    )
    assert arrow_schema(schema) == pa.schema([("a", pa.int64())])
