"""Schemas of the registry on the command line, and values that are written and read with them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaq import Producer
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltaq.serde.serializers import MessageField, SerializationContext
from deltaq.tools import from_file, to_csv, to_xlsx
from deltaq.topic import Topic
from tests.unit.cli.conftest import ROOT, Shell

RECORD: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}
PROTO = (
    'syntax = "proto3"; message Other { int32 n = 1; } message Order { string item = 1; repeated'
    " Other others = 2; }"
)
LOGICAL: dict[str, Any] = {
    "type": "record",
    "name": "All",
    "fields": [
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "hour", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "raw", "type": {"type": "array", "items": "bytes"}},
        {"name": "rates", "type": {"type": "map", "values": ["null", "double"]}},
        {
            "name": "kind",
            "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, RECORD],
        },
        {"name": "more", "type": ["null", "All"], "default": None},
    ],
}
VALUE: dict[str, Any] = {
    "price": Decimal("12.50"),
    "day": date(2026, 1, 2),
    "hour": time(10, 20, 30, 5),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "raw": [b"text", b"\xff\x00"],
    "rates": {"a": 1.5, "b": float("inf"), "c": None},
    "kind": {"id": 7, "item": "tea"},
    "more": None,
}


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _values(topic: str = "orders") -> list[bytes]:
    values: list[bytes] = (
        Topic(topic, conf={"bootstrap.servers": ROOT}).to_arrow()["value"].to_pylist()
    )
    return values


def _serialized(record: dict[str, Any], value: Any) -> bytes:
    serializer = AvroSerializer(
        SchemaRegistryClient({"url": ROOT}), Schema(json.dumps(record), "AVRO")
    )
    data = serializer(value, SerializationContext("orders", MessageField.VALUE))
    assert data is not None
    return data


def test_schemas_are_registered_listed_shown_and_deleted(deltaq: Shell, tmp_path: Path) -> None:
    avro, proto = (
        _file(tmp_path, "order.avsc", json.dumps(RECORD)),
        _file(tmp_path, "order.proto", PROTO),
    )
    assert deltaq(f"schemas register orders-value {avro}").printed(
        "version 1 of orders-value: schema 1\n"
    )
    assert deltaq(f"schemas register orders-value {avro}").printed(
        "version 1 of orders-value: schema 1\n"
    )
    assert deltaq(f"schemas register carts-value {proto} -o json").json == {
        "subject": "carts-value",
        "version": 1,
        "id": 2,
    }
    assert deltaq("schemas list").printed("""
        SUBJECT       VERSIONS  ID  TYPE      COMPATIBILITY
        carts-value   1          2  PROTOBUF  BACKWARD
        orders-value  1          1  AVRO      BACKWARD
        """)
    assert [row["subject"] for row in deltaq("schemas list 'orders*' -o json").json] == [
        "orders-value"
    ]
    assert json.loads(deltaq("schemas show orders-value").output) == RECORD
    assert json.loads(deltaq("schemas show 1 -o json").json["schema"]) == RECORD
    assert deltaq("schemas show carts-value --version 1").output == PROTO + "\n"
    assert "to ask for confirmation" in deltaq("schemas delete carts-value").errors
    assert deltaq("schemas delete carts-value --yes").printed(
        "deleted subject carts-value: 1 version\n"
    )
    assert deltaq("schemas delete carts-value --permanent --yes").status == 0
    assert deltaq("schemas delete orders-value --version 1 --yes").printed(
        "deleted version 1 of subject orders-value: 1 version\n"
    )
    assert deltaq("schemas list").errors.startswith("deltaq: no subjects")


def test_a_schema_is_checked_before_it_is_registered(deltaq: Shell, tmp_path: Path) -> None:
    deltaq(f"schemas register orders-value {_file(tmp_path, 'a.avsc', json.dumps(RECORD))}")
    more = {**RECORD, "fields": [*RECORD["fields"], {"name": "n", "type": "int"}]}
    worse = _file(tmp_path, "b.avsc", json.dumps(more))
    refused = deltaq(f"schemas check orders-value {worse}")
    assert (refused.status, "is not compatible with orders-value: 1 reason" in refused.errors) == (
        1,
        True,
    )
    assert "n" in refused.output
    assert deltaq(f"schemas register orders-value {worse}").status == 1
    more["fields"][-1]["default"] = 0
    better = _file(tmp_path, "c.avsc", json.dumps(more))
    assert deltaq(f"schemas check orders-value {better} -o json").json["compatible"] is True
    assert (
        "the type of" in deltaq(f"schemas check orders-value {_file(tmp_path, 'x.txt', '')}").errors
    )
    assert deltaq(f"schemas check orders-value {tmp_path / 'none.avsc'}").status == 2


def test_a_schema_may_refer_to_another(deltaq: Shell, tmp_path: Path) -> None:
    deltaq(f"schemas register order {_file(tmp_path, 'order.avsc', json.dumps(RECORD))}")
    outer = {"type": "record", "name": "Cart", "fields": [{"name": "order", "type": "Order"}]}
    path = _file(tmp_path, "cart.avsc", json.dumps(outer))
    assert deltaq(f"schemas register carts-value {path} --reference Order=order:1").status == 0
    assert (
        "NAME=SUBJECT:VERSION"
        in deltaq(f"schemas register carts-value {path} --reference Order=order").errors
    )


def test_values_of_the_registry_are_printed_as_json(deltaq: Shell) -> None:
    deltaq("topics create orders")
    data = _serialized(RECORD, {"id": 1, "item": "tea"})
    with Producer(bootstrap_servers=ROOT) as producer:
        for value in (data, b"text", b"\0\0\0\x07\x07other", data[:5] + b"\xff", None):
            producer.produce("orders", value)
    assert deltaq("cat orders").raw.splitlines() == [
        b'{"id": 1, "item": "tea"}',
        b"text",
        b"\0\0\0\x07\x07other",
        data[:5] + b"\xff",
        b"",
    ]
    assert deltaq("cat orders --raw").raw.splitlines()[0] == data
    assert '{"id": 1, "item": "tea"}' in deltaq("head orders -n 1 --table").output
    assert json.loads(deltaq("head orders -n 1 -o json").output)["value"] == {
        "id": 1,
        "item": "tea",
    }
    assert deltaq("stat orders -o json").json["by_schema"] == {"1": 2}
    assert "Schemas      1: 2" in deltaq("stat orders").output


def test_printed_values_of_the_registry_are_loaded_again(deltaq: Shell, tmp_path: Path) -> None:
    deltaq("topics create orders")
    data = _serialized(LOGICAL, VALUE)
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("orders", data)
    printed = deltaq("cat orders -o json").raw
    assert deltaq("produce copy --create --json", given=printed).status == 0
    (tmp_path / "printed.jsonl").write_bytes(printed)
    assert deltaq(f"produce copy {tmp_path / 'printed.jsonl'}").status == 0
    assert _values("copy") == [data, data]
    assert AvroDeserializer(SchemaRegistryClient({"url": ROOT}))(data) == VALUE


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_files_of_values_of_the_registry_are_loaded_again(
    deltaq: Shell, tmp_path: Path, suffix: str
) -> None:
    deltaq("topics create orders")
    data = _serialized(LOGICAL, VALUE)
    deltaq(f"schemas register other-value {_file(tmp_path, 'o.proto', PROTO)}")
    with Producer(bootstrap_servers=ROOT) as producer:
        for value in (data, b"\xff text", None, b"\0\0\0\0\x02" + b"\x02\x02" + b"\x0a\x03tea"):
            producer.produce("orders", value)
    source, path = Topic("orders", conf={"bootstrap.servers": ROOT}), tmp_path / f"orders{suffix}"
    assert (to_csv if suffix == ".csv" else to_xlsx)(source, path) == 4
    target = Topic("copy", conf={"bootstrap.servers": ROOT}).create()
    assert from_file(target, path) == 4
    assert _values("copy") == _values()


def test_a_query_has_values_of_the_registry_as_json(deltaq: Shell) -> None:
    deltaq("topics create orders")
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("orders", _serialized(RECORD, {"id": 1, "item": "tea"}))
        producer.produce("orders", b"text")
    found = deltaq(
        "sql \"select _value->>'$.item' as item from orders order by _offset\" -o json"
    ).json
    assert found == [{"item": "tea"}, {"item": None}]


def test_lines_are_written_with_a_schema(deltaq: Shell, tmp_path: Path) -> None:
    deltaq("topics create orders")
    deltaq(f"schemas register orders-value {_file(tmp_path, 'o.avsc', json.dumps(RECORD))}")
    line = b'{"id": 1, "item": "tea"}\n'
    assert deltaq("produce orders --schema orders-value", given=line).status == 0
    assert deltaq("produce orders --schema 1 -K :", given=b"key:" + line).status == 0
    assert (
        deltaq(
            "produce orders --schema 1 --json", given=b'{"value": {"id": 1, "item": "tea"}}\n{}'
        ).status
        == 0
    )
    data = _serialized(RECORD, {"id": 1, "item": "tea"})
    assert _values() == [data, data, data, None]
    wrong = deltaq(
        "produce orders --schema orders-value", given=line + b'{"id": "x", "item": ""}\n'
    )
    assert (wrong.status, "line 2: no value of schema 1: field" in wrong.errors) == (1, True)
    assert deltaq("produce orders --schema none-value", given=line).status == 1
    assert (
        "line 1: schema_id must be a number"
        in deltaq("produce orders --json", given=b'{"schema_id": "1"}').errors
    )
    assert "is for topics of bytes" in _typed(deltaq).errors


def _typed(deltaq: Shell) -> Any:
    Topic("typed", pa.schema([("id", pa.int64())]), conf={"bootstrap.servers": ROOT}).create()
    return deltaq("produce typed --schema orders-value", given=b"{}")


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("price", "1.0000000000000000000001", "no value of schema 1"),
        ("price", '"1_0"', "n: '1_0' is no decimal"),
        ("price", '"\u0661"', "is no decimal"),
        ("price", "1e-999", "too small for a float"),
        ("hour", '"10:20:30.0000001"', "is no time-micros"),
        ("at", '"2026-01-01T00:00:00.0000001Z"', "field 'R.n'"),
    ],
)
def test_text_that_would_lose_digits_in_avro_is_refused(
    deltaq: Shell, tmp_path: Path, kind: str, text: str, reason: str
) -> None:
    of_field = next(field["type"] for field in LOGICAL["fields"] if field["name"] == kind)
    record = {"type": "record", "name": "R", "fields": [{"name": "n", "type": of_field}]}
    deltaq(f"schemas register r {_file(tmp_path, 'r.avsc', json.dumps(record))}")
    found = deltaq("produce orders --create --schema r", given=f'{{"n": {text}}}\n'.encode())
    assert (found.status, found.errors[:16]) == (1, "deltaq: line 1: ")
    assert reason in found.errors


def test_protobuf_messages_keep_their_type(deltaq: Shell, tmp_path: Path) -> None:
    deltaq(f"schemas register orders-value {_file(tmp_path, 'o.proto', PROTO)}")
    # The second message of the file.
    order = b"\0\0\0\0\x01" + b"\x02\x02" + b"\x0a\x03tea" + b"\x12\x02\x08\x05"
    deltaq("topics create orders")
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("orders", order)
    printed = deltaq("cat orders -o json")
    assert json.loads(printed.output)["value"] == {"item": "tea", "others": [{"n": 5}]}
    assert deltaq("produce copy --create --json", given=printed.raw).status == 0
    assert _values("copy") == [order]
    first = deltaq("produce orders --schema orders-value", given=b'{"n": 3}')
    assert first.status == 0
    assert _values()[-1] == b"\0\0\0\0\x01\x00" + b"\x08\x03"
    assert (
        "line 1: no value of schema 1"
        in deltaq("produce orders --schema 1", given=b'{"item": "x"}').errors
    )


def test_json_values_conform_to_their_schema(deltaq: Shell, tmp_path: Path) -> None:
    text = json.dumps(
        {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    )
    deltaq(f"schemas register orders-value {_file(tmp_path, 'o.json', text)}")
    deltaq("topics create orders")
    assert deltaq("produce orders --schema orders-value", given=b'{"id": 1}').status == 0
    assert _values() == [b'\0\0\0\0\x01{"id":1}']
    assert deltaq("cat orders").output == '{"id": 1}\n'
    assert "line 1: no value of schema 1" in deltaq("produce orders --schema 1", given=b"{}").errors
