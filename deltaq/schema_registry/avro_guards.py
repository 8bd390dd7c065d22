"""Schemas with which fastavro refuses damaged values: it would take a negative index of a union or
enum from the end, and round a decimal that has more digits than its type. Pure.

To check each payload beforehand takes twice the time of reading it. Here fastavro looks for
branches and symbols in dicts instead of lists, and meets a logical type of ours. It cannot resolve
such a schema to one of a reader.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

from deltaq.schema_registry.avro_bounds import DECIMAL_DIGITS_MAX, has_digits
from deltaq.schema_registry.work import OutOfBounds

_DECIMAL = "deltaq-decimal"
_EXACT = Context(prec=DECIMAL_DIGITS_MAX)


def guarded(schema: Any) -> Any:
    """A copy of a schema that fastavro has parsed, to read with. A union is a dict of type
    "union".
    """
    if isinstance(schema, list):
        return {"type": "union", **dict(enumerate(map(guarded, schema)))}
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for key in ("type", "items", "values"):
        if key in found:
            found[key] = guarded(found[key])
    if "fields" in found:
        found["fields"] = [{**field, "type": guarded(field["type"])} for field in found["fields"]]
    if "symbols" in found:
        found["symbols"] = dict(enumerate(found["symbols"]))
    if found.get("logicalType") == "decimal" and found["type"] in ("bytes", "fixed"):
        found["logicalType"] = _DECIMAL
    return found


def _read_decimal(data: Any, schema: Any, reader: object) -> Decimal:
    if not has_digits(data, schema["precision"]):
        raise OutOfBounds(f"a decimal has more than {schema['precision']} digits")
    return Decimal(int.from_bytes(data, signed=True)).scaleb(-schema.get("scale", 0), _EXACT)


LOGICAL_READERS = {f"bytes-{_DECIMAL}": _read_decimal, f"fixed-{_DECIMAL}": _read_decimal}
"""What fastavro has to know of these schemas."""
