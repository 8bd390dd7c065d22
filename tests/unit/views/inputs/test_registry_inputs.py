"""Topics whose values have schemas of the registry, as inputs of views."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import InvalidConfig
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.schema_registry.message_schemas import parsed_schema
from deltaq.schema_registry.table_columns import columns_of, columns_of_all
from deltaq.serde import MissingLibrary, ValueDeserializationError
from deltaq.store import forget_memory_store, open_store
from deltaq.tools.registry_values import RegistryDecoder, RegistryEncoder
from deltaq.views import Views
from deltaq.views.declared import REGISTRY_TYPES, InputFormat
from deltaq.views.modes import Mode
from tests.doubles.views import runner
from tests.unit.views.inputs.test_inputs import rows

ROOT = "memory://inputs"

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "shop", "type": ["null", "string"]}],
}
JSON: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "shop": {"type": ["string", "null"]}},
    "additionalProperties": False,
}
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; optional string shop = 2; }'

OWN = "* exclude (_partition, _offset, _timestamp, _key, _headers)"
"""The declared columns, in SQL."""

SCHEMAS: Mapping[InputFormat, tuple[str, str]] = {
    "avro": (
        json.dumps(AVRO),
        json.dumps(
            AVRO
            | {"fields": [*AVRO["fields"], {"name": "n", "type": ["null", "int"], "default": None}]}
        ),
    ),
    "json_schema": (
        json.dumps(JSON),
        json.dumps(JSON | {"properties": JSON["properties"] | {"n": {"type": "integer"}}}),
    ),
    "protobuf": (PROTOBUF, PROTOBUF.replace(" }", " optional int32 n = 3; }")),
}
"""A schema of each format, and a later version with one more field."""


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("inputs")


def registry() -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": ROOT})


def register(schema: str, kind: str, subject: str = "orders-value") -> int:
    return registry().register_schema(subject, Schema(schema, kind))


def write(schema_id: int, *values: Any) -> None:
    encode = RegistryEncoder(open_store(ROOT), SYSTEM_CLOCK)
    with Producer(bootstrap_servers=ROOT) as producer:
        for value in values:
            producer.produce("orders", encode(value, schema_id), key="k")


def orders(form: InputFormat, columns: Any = None, mode: Mode = "auto", **options: Any) -> Views:
    views = Views("g", ROOT)
    views.input("orders", columns, format=form, **options)
    views.view(
        "shops", "select shop, count(*) as c, sum(id) as s from orders group by shop", mode=mode
    )
    return views


@pytest.mark.parametrize("form", REGISTRY_TYPES)
@pytest.mark.parametrize(
    ("mode", "columns"),
    [
        ("full", None),
        ("incremental", None),
        ("auto", "shop VARCHAR, id BIGINT NOT NULL, n INTEGER"),
    ],
)
def test_values_of_the_registry_have_columns(form: InputFormat, mode: Mode, columns: str | None):
    Topic("orders", bootstrap_servers=ROOT).create()
    first, later = SCHEMAS[form]
    written = [{"id": 2**40, "shop": "a"}, {"id": 0, "shop": "b"}, {"id": 2, "shop": "a"}]
    number = register(first, REGISTRY_TYPES[form])
    write(number, *written)
    views = orders(form, columns, mode)
    with runner(views) as running:
        running.tick()
        assert rows(views, "shops") == expected(written)
        # A later version of the schema gains a field while the runner is at work.
        more = [{"id": 7, "shop": "a", "n": 5}, {"id": 8, "shop": "c"}]
        number = register(later, REGISTRY_TYPES[form])
        write(number, *more)
        running.tick()
        write(number, {"id": 9, "shop": "a"})
        running.tick()
    everything = [*written, *more, {"id": 9, "shop": "a"}]
    assert rows(views, "shops") == expected(everything)
    assert rows(views, "shops", at=1) == expected(written)
    assert Views("g", ROOT).check() == []
    later_views = orders(form, columns, mode)
    later_views.view("numbers", "select n from orders where n is not null")
    later_views.run(until="now")
    assert rows(later_views, "numbers") == [(5,)]
    for tick in (1, 3, 4):
        found = Views("g", ROOT).read(tick).sql("select count(*) as c, count(n) as n from orders")
        count = 3 if tick == 1 else 6
        assert found.to_pylist() == [{"c": count, "n": int(count > 3)}]
    assert Views("g", ROOT).check() == []


def expected(written: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    counts = Counter(value["shop"] for value in written)
    return [
        (shop, count, sum(value["id"] for value in written if value["shop"] == shop))
        for shop, count in sorted(counts.items())
    ]


def test_values_of_avro_become_values_of_columns():
    Topic("orders", bootstrap_servers=ROOT).create()
    logical: dict[str, Any] = {
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "clock": {"type": "long", "logicalType": "time-micros"},
        "uid": {"type": "string", "logicalType": "uuid"},
        "state": {"type": "enum", "name": "S", "symbols": ["new", "paid"]},
        "raw": "bytes",
        "tags": {"type": "array", "items": "string"},
        "counts": {"type": "map", "values": "int"},
        "inner": {
            "type": "record",
            "name": "Inner",
            "fields": [{"name": "x", "type": "double"}, {"name": "again", "type": ["null", "S"]}],
        },
    }
    fields = [{"name": name, "type": kind} for name, kind in logical.items()]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    write(
        register(schema, "AVRO"),
        {
            "price": "9.90",
            "at": "2026-01-02T03:04:05.678+00:00",
            "day": "2026-01-02",
            "clock": "10:00:00",
            "uid": "00000000-0000-0000-0000-000000000001",
            "state": "new",
            "raw": {"base64": "AP8="},
            "tags": ["a"],
            "counts": {"a": 1},
            "inner": {"x": 0.5, "again": "paid"},
        },
    )
    views = Views("g", ROOT)
    views.input("orders", format="avro")
    views.view("v", f"select {OWN} from orders")
    views.run(until="now")
    (found,) = views.read()["v"].to_arrow().to_pylist()
    assert found == {
        "price": Decimal("9.90"),
        "at": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        "day": date(2026, 1, 2),
        "clock": "10:00:00",
        "uid": "00000000-0000-0000-0000-000000000001",
        "state": "new",
        "raw": b"\x00\xff",
        "tags": ["a"],
        "counts": [("a", 1)],
        "inner": {"x": 0.5, "again": "paid"},
    }
    assert views.check() == []


def test_values_of_protobuf_become_values_of_columns():
    Topic("orders", bootstrap_servers=ROOT).create()
    schema = """syntax = "proto3";
        import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
        message Order {
            int64 id = 1; uint64 big = 2; bytes raw = 3; State state = 4; repeated int64 ids = 5;
            map<string, int64> counts = 6; google.protobuf.Timestamp at = 7; Inner inner = 8;
            google.protobuf.Int64Value maybe = 9; bool ok = 10; double rate = 11;
            map<int32, Inner> inners = 12;
        }
        message Inner { fixed64 x = 1; repeated bytes parts = 2; }
        enum State { NONE = 0; NEW = 1; }"""
    number = register(schema, "PROTOBUF")
    values = [
        {
            "id": "5", "big": str(2**64 - 1), "raw": "AP8=", "state": "NEW", "ids": ["1", "2"],
            "counts": {"a": "7"}, "at": "2026-01-02T03:04:05.5Z", "maybe": "0", "ok": True,
            "inner": {"x": "9", "parts": ["AP8="]}, "rate": "NaN", "inners": {"3": {"x": "4"}},
        },
        {},
    ]  # fmt: skip
    write(number, *values)
    views = Views("g", ROOT)
    views.input("orders", format="protobuf")
    views.view("v", f"select {OWN} replace (isnan(rate) as rate) from orders")
    views.run(until="now")
    full, empty = sorted(views.read()["v"].to_arrow().to_pylist(), key=lambda row: -row["id"])
    assert full == {
        "id": 5, "big": 2**64 - 1, "raw": b"\x00\xff", "state": "NEW", "ids": [1, 2],
        "counts": [("a", 7)], "at": datetime(2026, 1, 2, 3, 4, 5, 500000, UTC), "maybe": 0,
        "ok": True, "inner": {"x": 9, "parts": [b"\x00\xff"]}, "rate": True,
        "inners": [("3", {"x": 4, "parts": []})],
    }  # fmt: skip
    # What is not written for its default is no null.
    assert empty == {
        "id": 0, "big": 0, "raw": b"", "state": "NONE", "ids": [], "counts": [], "at": None,
        "maybe": None, "ok": False, "inner": None, "inners": [], "rate": False,
    }  # fmt: skip
    assert views.check() == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"text", "does not begin with the id of a schema"),
        (b"\x00\x00\x00\x00\x63x", "99"),
        ("others-value", "has a schema of the type JSON, not AVRO"),
        ("orders-value", ""),
    ],
)
def test_values_without_a_schema_of_the_format_are_refused_by_place(value: Any, reason: str):
    Topic("orders", bootstrap_servers=ROOT).create()
    ids = {"orders-value": register(SCHEMAS["avro"][0], "AVRO")}
    ids["others-value"] = register(SCHEMAS["json_schema"][0], "JSON", "others-value")
    write(ids["orders-value"], {"id": 1, "shop": "a"})
    if isinstance(value, str):
        value = b"\x00" + ids[value].to_bytes(4, "big") + b"{}\x09"
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("orders", value)
    with pytest.raises(ValueDeserializationError, match=f"{reason}.*partition 0, offset 1"):
        orders("avro").run(until="now")
    views = orders("avro", on_error="skip")
    views.run(until="now")
    assert rows(views, "shops") == [("a", 1, 1)]
    assert Views("g", ROOT).check() == []


def test_a_library_that_is_missing_skips_no_record(monkeypatch: pytest.MonkeyPatch):
    Topic("orders", bootstrap_servers=ROOT).create()
    write(register(SCHEMAS["avro"][0], "AVRO"), {"id": 1, "shop": "a"})
    views = orders("avro", "shop VARCHAR, id BIGINT", on_error="skip")
    missing = Mock(side_effect=MissingLibrary("Avro", "avro"))
    monkeypatch.setattr(RegistryDecoder, "decoded", missing)
    with pytest.raises(MissingLibrary):
        views.run(until="now")
    monkeypatch.undo()
    views.run(until="now")
    assert rows(views, "shops") == [("a", 1, 1)]


def test_a_field_that_a_later_version_lacks_keeps_its_column():
    Topic("orders", bootstrap_servers=ROOT).create()
    write(register(json.dumps(AVRO), "AVRO"), {"id": 1, "shop": "a"})
    views = orders("avro")
    views.run(until="now")
    number = register(json.dumps(AVRO | {"fields": AVRO["fields"][:1]}), "AVRO")
    registry().delete_version("orders-value", 1)
    write(number, {"id": 2})
    views.run(until="now")
    assert rows(views, "shops") == [("a", 1, 1), (None, 1, 2)]
    assert views.check() == []


def test_a_registry_that_does_not_name_columns_is_refused():
    Topic("orders", bootstrap_servers=ROOT).create()
    with pytest.raises(InvalidConfig, match=r"input 'orders': .*orders-value.*declare its columns"):
        orders("avro").run(until="now")
    register(json.dumps(AVRO), "AVRO")
    with pytest.raises(InvalidConfig, match="has schemas of the type AVRO, not PROTOBUF"):
        orders("protobuf").run(until="now")
    union = {"name": "u", "type": ["null", "int", "string"]}
    registry().set_compatibility("orders-value", "NONE")
    register(json.dumps(AVRO | {"fields": [union]}), "AVRO")
    with pytest.raises(InvalidConfig, match="input 'orders': field 'u': it may have values of sev"):
        orders("avro").run(until="now")
    # With columns, the registry is asked for the schemas of values only.
    views = orders("avro", "shop VARCHAR, id BIGINT")
    views.run(until="now")
    assert rows(views, "shops") == []


# --- columns of schemas ---


def columns(kind: str, schema: Any) -> pa.Schema:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return columns_of(kind, parsed_schema(Schema(text, kind), None))


def test_columns_of_json_schema():
    schema = {
        "$defs": {"point": {"properties": {"x": {"type": "number"}}}},
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "name": {"anyOf": [{"type": "null"}, {"type": "string"}]},
            "ids": {"type": "array", "items": {"type": "integer"}},
            "at": {"$ref": "#/$defs/point"},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }
    assert columns("JSON", schema) == pa.schema(
        [
            ("ok", pa.bool_()),
            ("name", pa.string()),
            ("ids", pa.list_(pa.int64())),
            ("at", pa.struct([("x", pa.float64())])),
            ("counts", pa.map_(pa.string(), pa.int64())),
        ]
    )


def avro(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


def properties(schema: Any) -> dict[str, Any]:
    return {
        "properties": {"f": schema},
        "$defs": {"r": {"properties": {"f": {"$ref": "#/$defs/r"}}}},
    }


@pytest.mark.parametrize(
    ("kind", "schema", "reason"),
    [
        ("AVRO", '"string"', "no record"),
        ("AVRO", avro(["int", "string"]), "field 'f': it may have values of several types"),
        ("AVRO", avro(["null", "R"]), "field 'f': its record contains itself"),
        ("AVRO", avro({"type": "array", "items": ["null"]}), r"field 'f\[\]': it may have"),
        ("AVRO", avro("null"), "field 'f': no column has the type null"),
        ("JSON", {"type": "string"}, "no record"),
        ("JSON", properties({}), "field 'f': its schema does not name one type"),
        ("JSON", properties(True), "field 'f': its schema does not name a type"),
        ("JSON", properties({"type": ["string", "integer"]}), "field 'f': it may have values of s"),
        ("JSON", properties({"type": "object"}), "field 'f': its schema names no properties"),
        ("JSON", properties({"$ref": "#/$defs/r"}), "field 'f.f': its schema contains itself"),
        ("JSON", properties({"$ref": "#"}), "field 'f': its schema is elsewhere, '#'"),
        ("PROTOBUF", 'syntax = "proto3"; enum E { A = 0; }', "has no message"),
        ("PROTOBUF", 'syntax = "proto3"; message M { M f = 1; }', "'f': its message contains itse"),
        ("PROTOBUF", 'syntax = "proto3"; message M {}', "its message has no fields"),
        (
            "PROTOBUF",
            """syntax = "proto3"; import "google/protobuf/any.proto";
            message M { google.protobuf.Any f = 1; }""",
            "field 'f': no column has the type google.protobuf.Any",
        ),
    ],
)
def test_fields_without_a_column_are_named(kind: str, schema: Any, reason: str):
    with pytest.raises(InvalidConfig, match=reason):
        columns(kind, schema)


def test_columns_of_all_versions_have_the_wider_types():
    short = pa.schema([("a", pa.int32()), ("s", pa.struct([("x", pa.int32())]))])
    long = pa.schema([("a", pa.int64()), ("b", pa.string())])
    deep = pa.schema([("s", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
    wide = pa.schema([("a", pa.int64()), ("s", deep.field("s").type), ("b", pa.string())])
    assert columns_of_all([short, long, deep]) == wide
    assert columns_of_all([long, short]).field("a").type == pa.int64()
    with pytest.raises(InvalidConfig, match="field 'a': it has the types int32 and string"):
        columns_of_all([short, pa.schema([("a", pa.string())])])
