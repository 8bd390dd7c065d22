"""Records as plain values: from the rows of a topic's table, and as JSON."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from deltaq.errors import InvalidValue
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.serde.column_values import scaled_decimal
from deltaq.serde.json_text import (
    NOT_FINITE,
    JsonFloat,
    bytes_of_json,
    decimal_of_json,
    finite_float,
    parse_time,
    strict_json,
    typed_json,
)
from deltaq.serde.schema import TopicSchema, Unreadable
from deltaq.topics.columns import header_pairs

_PLACE = {"topic", "partition", "offset", "timestamp"}
_FIELDS = {
    *_PLACE,
    "key",
    "key_base64",
    "value",
    "value_base64",
    "headers",
    "schema_id",
    "message_type",
}
_NAMES = {repr(number): name for name, number in NOT_FINITE.items()}
_EXACT_DIGITS_MAX = 15  # the decimal digits that every float keeps


class Record(NamedTuple):
    """A record with its place. `timestamp` is milliseconds since 1970 UTC, -1 for a stored time
    that no message has; `value` is bytes, a dict for a typed topic, None for a tombstone, a
    `RegistryValue` where it was decoded, or an `Unreadable` where it cannot be returned.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    value: Any


class RegistryValue(NamedTuple):
    """A value that was decoded with a schema of the registry: of JSON's types, or with bytes,
    decimals and times; the type and the id of the schema, and for Protobuf the full name of the
    message.
    """

    value: Any
    schema_type: str
    schema_id: int
    message_type: str | None = None


def records_of(batch: pa.RecordBatch, schema: TopicSchema | None) -> Iterator[Record]:
    """The rows of a topic's table as records. `schema` is the topic's, None for a topic of
    bytes.
    """
    values = batch.column("value").to_pylist() if schema is None else schema.to_python(batch)
    times = batch.column("_timestamp").cast(pa.int64()).to_pylist()
    headers = header_pairs(batch.column("_headers"))
    columns = (batch.column(name).to_pylist() for name in ("_partition", "_offset", "_key"))
    for partition, offset, key, microseconds, pairs, value in zip(
        *columns, times, headers, values, strict=True
    ):
        time_ms = microseconds // 1000
        yield Record(
            partition,
            offset,
            time_ms if 0 <= time_ms <= TIMESTAMP_MS_MAX else -1,
            key,
            pairs or [],
            value,
        )


def as_json(record: Record, topic: str) -> dict[str, Any]:
    """The record as an object for JSON. Bytes that are no UTF-8 stand in base64 under `key_base64`,
    `value_base64`; the reason why a value cannot be returned stands under `error`, in the place of
    the value.
    """
    about: dict[str, Any] = {"topic": topic, "partition": record.partition, "offset": record.offset}
    about["timestamp"] = record.timestamp if record.timestamp >= 0 else None
    about |= _named("key", record.key)
    about |= _value_as_json(record.value)
    if record.headers:
        about["headers"] = [
            _named("value", value) | {"name": name} for name, value in record.headers
        ]
    return about


def _value_as_json(value: Any) -> dict[str, Any]:
    if isinstance(value, Unreadable):
        return {"error": str(value)}
    if isinstance(value, RegistryValue):
        schema = {"schema_id": value.schema_id, "message_type": value.message_type}
        return {"value": plain(value.value)} | {
            name: part for name, part in schema.items() if part is not None
        }
    return {"value": plain(value)} if isinstance(value, dict) else _named("value", value)


def _named(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


def plain(value: Any) -> Any:
    """A value of a typed topic or a query in JSON's types: times as ISO 8601, bytes as text, or as
    {"base64": text} if they are no UTF-8; NaN, infinities and others that JSON does not have, such
    as decimals, as text.
    """
    if isinstance(value, dict):
        return {
            name if isinstance(name, str) else _name_of(name): plain(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        named = _named("", value)
        return named[""] if "" in named else {"base64": named["_base64"]}
    if isinstance(value, float):
        return value if math.isfinite(value) else _NAMES[repr(value)]
    return value if value is None or isinstance(value, str | int) else str(value)


def _name_of(key: Any) -> str:
    """A key of a map as a name in JSON."""
    shown = plain(key)
    return shown if isinstance(shown, str) else json.dumps(shown)


def json_text(value: Any) -> str:
    """A value of a typed topic as JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def headers_as_json(headers: list[dict[str, Any]]) -> str:
    """Headers of a topic's table as JSON. Values that are no UTF-8 stand in base64 under
    `value_base64`.
    """
    return json.dumps(
        [{"key": pair["key"]} | _named("value", pair["value"]) for pair in headers],
        ensure_ascii=False,
    )


def headers_from_json(text: str) -> list[dict[str, Any]]:
    """What `headers_as_json` made. Raises InvalidValue for other text."""
    try:
        return headers_of(strict_json(text))
    except ValueError as error:
        raise InvalidValue(f"not headers as JSON: {error}", field="headers") from None


def headers_of(pairs: Any) -> list[dict[str, Any]]:
    """Parsed headers as a topic's table has them. Raises InvalidValue for anything else."""
    try:
        found = [{"key": pair["key"], "value": _value(pair, "value")} for pair in pairs]
        for pair in found:
            # AttributeError for other than text, ValueError for a half of a character.
            pair["key"].encode()
            if not isinstance(pair["value"], bytes | None):
                raise TypeError(f"the value of {pair['key']!r:.100} is neither text nor null")
        return found
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise InvalidValue(f"not headers as JSON: {error}", field="headers") from None


def from_json(text: str | bytes, *, has_schema: bool = False) -> dict[str, Any]:
    """What `as_json` makes, or the parts of it that are there, as arguments of `Producer.produce`.
    With a `schema_id`, which stays among them, or with `has_schema`, the value is as JSON has it,
    and still to be encoded.

    The topic and the offset are not taken over. Raises InvalidValue for anything else.
    """
    try:
        about = typed_json(text, finite=True)
        if not isinstance(about, Mapping):
            raise TypeError("it is no JSON object")
    except (ValueError, TypeError) as error:
        raise InvalidValue(f"not a message as JSON: {error}") from None
    return message_of(about, has_schema=has_schema)


def is_message(about: Mapping[str, Any]) -> bool:
    """Whether `as_json` may have made the object: it names a place in a topic, a key and a
    value.
    """
    return (
        about.keys() >= _PLACE
        and about.keys() <= _FIELDS
        and any(name.startswith("value") for name in about)
    )


def message_of(about: Mapping[str, Any], *, has_schema: bool = False) -> dict[str, Any]:
    """As `from_json`, for the parsed object."""
    try:
        if unknown := about.keys() - _FIELDS:
            raise ValueError(
                f"it has the unknown field {min(unknown)!r}; known are {', '.join(sorted(_FIELDS))}"
            )
        is_json = (has_schema or "schema_id" in about) and "value_base64" not in about
        value = about.get("value") if is_json else _value(about, "value")
        given: dict[str, Any] = {"value": value, "key": _value(about, "key")}
        if not isinstance(about.get("headers") or [], list):
            raise TypeError("its headers are no list of objects with name and value")
        if about.get("headers"):
            given["headers"] = [
                (header["name"], _value(header, "value")) for header in about["headers"]
            ]
        others = ("partition", "timestamp", "schema_id", "message_type")
        return given | {name: about[name] for name in others if about.get(name) is not None}
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise InvalidValue(f"not a message as JSON: {error}") from None


def _value(about: Mapping[str, Any], name: str) -> Any:
    encoded = about.get(f"{name}_base64")
    value = about.get(name) if encoded is None else base64.b64decode(encoded, validate=True)
    return value.encode() if isinstance(value, str) else value


# --- values of typed topics ---


def row_from_json(text: str | bytes, schema: TopicSchema) -> dict[str, Any]:
    """The value of a typed topic that a JSON object stands for, as `plain` shows it. Raises
    InvalidValue for text that is no JSON object, and as `typed_row`.
    """
    try:
        found = typed_json(text)
    except ValueError as error:
        raise InvalidValue(f"not a JSON object with the topic's columns: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValue("not a JSON object with the topic's columns")
    return typed_row(found, schema)


def typed_row(value: Mapping[str, Any], schema: TopicSchema) -> dict[str, Any]:
    """An object of JSON's types as a value of a typed topic, which `Producer.produce` checks
    further.

    Times are ISO 8601, in UTC unless they say otherwise; bytes are text or {"base64": text}; a
    decimal is text or a number; NaN and infinities are text. Raises InvalidValue, with the field's
    name.
    """
    types = {field.name: field.type for field in schema.arrow}
    return {
        name: typed_value(inner, types[name], name) if name in types else inner
        for name, inner in value.items()
    }


def typed_value(value: Any, kind: pa.DataType, path: str) -> Any:
    """A value of JSON as one of this type; unchanged where JSON has the type, or where nothing
    fits. Raises InvalidValue.
    """
    if pa.types.is_struct(kind) and isinstance(value, dict):
        types = {field.name: field.type for field in kind}
        return {
            name: typed_value(inner, types[name], f"{path}.{name}") if name in types else inner
            for name, inner in value.items()
        }
    if pa.types.is_list(kind) and isinstance(value, list):
        return [
            typed_value(inner, kind.value_type, f"{path}[{at}]") for at, inner in enumerate(value)
        ]
    if pa.types.is_map(kind) and isinstance(value, dict):
        return {
            name: typed_value(inner, kind.item_type, f"{path}[{name}]")
            for name, inner in value.items()
        }
    try:
        return _typed_scalar(value, kind)
    except (ValueError, TypeError):
        raise InvalidValue(f"{value!r:.100} is no {kind}", field=path) from None


def _typed_scalar(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        found = decimal_of_json(value)
        return scaled_decimal(found, kind) if isinstance(found, Decimal) else found
    if isinstance(value, JsonFloat):
        return finite_float(value.text)
    if pa.types.is_binary(kind):
        return bytes_of_json(value)
    parse = next((parse for test, parse in _PARSERS if test(kind)), None)
    return value if parse is None or not isinstance(value, str) else parse(value)


def exact_decimal(value: float) -> Decimal:
    """The decimal that was written as this float. ValueError if a float does not hold so many
    digits.
    """
    found = Decimal(repr(value))
    if len(found.as_tuple().digits) > _EXACT_DIGITS_MAX:
        raise ValueError("a float does not hold it exactly; use text")
    return found


_PARSERS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]]] = (
    (pa.types.is_floating, lambda text: NOT_FINITE.get(text, text)),
    (pa.types.is_timestamp, parse_time),
    (pa.types.is_date, date.fromisoformat),
)
