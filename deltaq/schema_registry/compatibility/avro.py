"""Whether a reader's Avro schema reads what a writer's wrote: the only door to `avro`, whose rules these are.

The rules are those of the Avro specification, "Schema Resolution". The library does not compare decimals, so that is
done here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import avro.compatibility
import avro.errors
import avro.name
import avro.schema

_DECIMALS = (avro.schema.BytesDecimalSchema, avro.schema.FixedDecimalSchema)


def parsed(schema: Any, references: Sequence[Any]) -> avro.schema.Schema:
    """A schema, and those that it refers to, each as its JSON was loaded, for a comparison. Raises ValueError."""
    try:
        names = avro.name.Names(validate_names=True)
        for reference in references:
            avro.schema.make_avsc_object(reference, names)
        return avro.schema.make_avsc_object(schema, names)
    except avro.errors.AvroException as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def incompatibilities(reader: avro.schema.Schema, writer: avro.schema.Schema) -> list[str]:
    """Why records of the writer's schema cannot be read with the reader's, by the rules of the Avro specification,
    "Schema Resolution"."""
    found = _compared(reader, writer)
    if found.compatibility is avro.compatibility.SchemaCompatibilityType.compatible:
        return list(_decimals(reader, writer, "", set()))
    places = ", ".join(sorted(found.locations, key=len, reverse=True)[:1])
    reasons = zip(found.incompatibilities, sorted(found.messages) or [""], strict=False)
    return [f"{kind.value.replace('_', ' ')} at {places or '/'}: {message}" for kind, message in reasons]


def _compared(reader: avro.schema.Schema, writer: avro.schema.Schema) -> Any:
    checker = avro.compatibility.ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    return checker.get_compatibility(reader, writer)


def _decimals(reader: Any, writer: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """The decimals whose precision or scale differs, in two schemas that are compatible apart from that: `avro` does
    not compare them, and the specification lets two decimals match only if both are equal."""
    if (id(reader), id(writer)) in seen:
        return
    seen.add((id(reader), id(writer)))
    if isinstance(writer, avro.schema.UnionSchema):
        for branch in writer.schemas:
            yield from _decimals(reader, branch, path, seen)
    elif isinstance(reader, avro.schema.UnionSchema):
        compatible = avro.compatibility.SchemaCompatibilityType.compatible
        branches = [each for each in reader.schemas if _compared(each, writer).compatibility is compatible]
        found = [list(_decimals(branch, writer, path, set(seen))) for branch in branches]
        yield from min(found, key=len, default=[])
    elif isinstance(writer, _DECIMALS) and isinstance(reader, _DECIMALS):
        ours, theirs = (f"decimal({each.precision}, {each.scale})" for each in (reader, writer))
        if ours != theirs:
            yield f"decimal mismatch at {path or '/'}: reader {ours}, writer {theirs}"
    elif isinstance(writer, avro.schema.RecordSchema) and isinstance(reader, avro.schema.RecordSchema):
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            there = next(
                (written[name] for name in (field.name, *(field.get_prop("aliases") or ())) if name in written), None
            )
            if there is not None:
                yield from _decimals(field.type, there.type, f"{path}/{field.name}", seen)
    elif isinstance(writer, avro.schema.ArraySchema) and isinstance(reader, avro.schema.ArraySchema):
        yield from _decimals(reader.items, writer.items, f"{path}/items", seen)
    elif isinstance(writer, avro.schema.MapSchema) and isinstance(reader, avro.schema.MapSchema):
        yield from _decimals(reader.values, writer.values, f"{path}/values", seen)
