"""Avro payloads with a choice that is not there, or a decimal with too many digits: refused at any
depth, with the place. fastavro itself would return another value.
"""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deltaq.schema_registry.avro_bounds import check_payload
from deltaq.schema_registry.avro_format import decode, prepared
from deltaq.schema_registry.work import OutOfBounds
from deltaq.serde import SerializationError
from tests.security.drawn_avro import Drawn, Mark, decimal, drawn, varint

pytestmark = pytest.mark.fault("K9")


def read(schema: Any, payload: bytes, reader: Any = None) -> Any:
    other = None if reader is None else prepared(json.dumps(reader), ())
    return decode(
        io.BytesIO(payload), prepared(json.dumps(schema), ()), other, return_record_name=False
    )


@given(drawn())
def test_what_is_whole_is_read_as_fastavro_reads_it(found: Drawn):
    assume(found.schema != "bytes")  # stands without a length, as with Confluent's serializers
    assume(not (isinstance(found.schema, dict) and found.schema["type"] == "bytes"))
    parsed = fastavro.parse_schema(found.schema, named_schemas={})
    expected = fastavro.schemaless_reader(io.BytesIO(found.payload), parsed, None)
    assert read(found.schema, bytes(found.payload)) == expected
    assert read(found.schema, bytes(found.payload), found.schema) == expected
    check_payload(bytes(found.payload), prepared(json.dumps(found.schema), ()).bounds)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, parsed, expected)
    again = fastavro.schemaless_reader(io.BytesIO(written.getvalue()), parsed, None)
    assert read(found.schema, written.getvalue()) == again


def damaged(mark: Mark) -> st.SearchStrategy[bytes]:
    if mark.kind != "decimal":
        return st.sampled_from([-1, -mark.limit, -(2**40), mark.limit, 2**40]).map(varint)
    numbers = (
        st.just(10**mark.limit)
        if mark.size
        else st.integers(10**mark.limit, 10 ** (mark.limit + 3))
    )
    return st.tuples(numbers, st.sampled_from([1, -1])).map(
        lambda found: decimal(found[0] * found[1], mark.size)
    )


@given(drawn(), st.data())
def test_damage_is_refused_with_its_place_and_the_limit(found: Drawn, data: st.DataObject):
    assume(found.marks)
    mark = data.draw(st.sampled_from(found.marks))
    payload = (
        bytes(found.payload[: mark.start])
        + data.draw(damaged(mark))
        + bytes(found.payload[mark.end :])
    )
    wrong = (
        f"more than {mark.limit} digits" if mark.kind == "decimal" else f"but {mark.limit} from 0"
    )
    bounds = prepared(json.dumps(found.schema), ()).bounds
    with pytest.raises(OutOfBounds, match=f"^byte {mark.start}: .*{wrong}"):
        check_payload(payload, bounds)
    assume(not (isinstance(found.schema, dict) and found.schema["type"] == "bytes"))
    with pytest.raises(SerializationError, match=f"byte {mark.start}: .*{wrong}"):
        read(found.schema, payload)


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red", "green"]}
SUM = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        (["null", "string"], b"\1\2a", "byte 0: a union has no branch -1, but 2 from 0"),
        (COLOUR, b"\3", "byte 0: an enum has no symbol -2, but 2 from 0"),
        (SUM, decimal(123_456, None), "byte 0: a decimal has more than 4 digits"),
        (SUM, varint(10**6) + b"\x7f" * 10**6, "byte 0: a decimal has more than 4 digits"),
    ],
)
def test_damage_is_found_with_the_readers_schema_too(kind, payload, text):
    writer = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    readers = writer | {"fields": [*writer["fields"], {"name": "b", "type": "int", "default": 1}]}
    for reader in (None, writer, readers):
        with pytest.raises(SerializationError, match=text):
            read(writer, payload, reader)


def test_the_digits_of_a_decimal_do_not_depend_on_its_bytes():
    fill = b"\0" * 100
    assert read(["null", SUM], b"\2" + varint(102) + fill + b"\x27\x0f") == Decimal("99.99")
    with pytest.raises(SerializationError, match="more than 4 digits"):
        read(["null", SUM], b"\2" + varint(102) + fill + b"\x27\x10")


def test_a_damaged_field_that_the_reader_does_not_have_is_refused():
    kinds, payloads = (
        (COLOUR, ["null", "int"], SUM),
        (b"\3\2", b"\1\2", decimal(10_000, None) + b"\2"),
    )
    for kind, payload in zip(kinds, payloads, strict=True):
        two = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": kind}, {"name": "b", "type": "int"}],
        }
        with pytest.raises(SerializationError, match="byte 0: "):
            read(two, payload, two | {"fields": two["fields"][1:]})
