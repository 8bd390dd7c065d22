"""Whether a reader's Avro schema reads what a writer's wrote: the only door to `avro`, whose rules
these are.

The rules are those of the Avro specification, "Schema Resolution". The library does not compare
decimals, and takes an alias without a namespace for a full name, so both are done here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import avro.compatibility
import avro.errors
import avro.name
import avro.schema

from deltaq.schema_registry.work import TooMuchWork, limited_work, spend

_DECIMALS = (avro.schema.BytesDecimalSchema, avro.schema.FixedDecimalSchema)
_COMPATIBLE = avro.compatibility.SchemaCompatibilityType.compatible

_PAIRS_MAX = 30_000
_FIELDS_PER_PAIR = 10
_NAMES_PER_PAIR = 1_000

_Mismatch: TypeAlias = tuple[str, str]
"""Where two decimals differ, and how."""


def parsed(schema: Any, references: Sequence[Any]) -> avro.schema.Schema:
    """A schema, and those that it refers to, each as its JSON was loaded, for a comparison. Raises
    ValueError.
    """
    try:
        names = avro.name.Names(validate_names=True)
        for reference in references:
            avro.schema.make_avsc_object(reference, names)
        found = avro.schema.make_avsc_object(schema, names)
    except avro.errors.AvroException as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    _qualify_aliases(names.names)
    return found


def _qualify_aliases(named: Mapping[str, avro.schema.NamedSchema]) -> None:
    """Give each alias the namespace of its type, as the specification does. Its full name is
    compared.
    """
    for full_name, schema in named.items():
        aliases, namespace = schema.get_prop("aliases"), full_name.rpartition(".")[0]
        if isinstance(aliases, list) and namespace:
            schema.set_prop(
                "aliases", [each if "." in str(each) else f"{namespace}.{each}" for each in aliases]
            )


def incompatibilities(reader: avro.schema.Schema, writer: avro.schema.Schema) -> list[str]:
    """Why records of the writer's schema cannot be read with the reader's, by the rules of the Avro
    specification, "Schema Resolution".
    """
    try:
        with limited_work(_PAIRS_MAX):
            return _incompatibilities(reader, writer)
    except TooMuchWork:
        return [f"the schemas have more than {_PAIRS_MAX} pairs of parts to be compared"]


def _incompatibilities(reader: avro.schema.Schema, writer: avro.schema.Schema) -> list[str]:
    comparison = _AvroComparison()
    found = comparison.of(reader, writer)
    if found.compatibility is _COMPATIBLE:
        return [
            f"decimal mismatch at {path or '/'}: {why}"
            for path, why in comparison.decimals(reader, writer)
        ]
    places = ", ".join(sorted(found.locations, key=len, reverse=True)[:1])
    reasons = zip(found.incompatibilities, sorted(found.messages) or [""], strict=False)
    return [
        f"{kind.value.replace('_', ' ')} at {places or '/'}: {message}" for kind, message in reasons
    ]


class _Checker(avro.compatibility.ReaderWriterCompatibilityChecker):
    """Counts the pairs that it compares: two unions have as many as the product of their
    branches.
    """

    def calculate_compatibility(self, reader: Any, writer: Any, location: list[str]) -> Any:
        """What the library says of a pair that it has not compared yet. Raises TooMuchWork."""
        fields = getattr(reader, "fields", ())
        aliases = sum(
            len(names)
            for part in (reader, *fields)
            if isinstance(names := part.props.get("aliases"), list)
        )
        # The library makes a dict of the writer's fields for each field of the reader.
        pairs = len(fields) * len(getattr(writer, "fields", ()))
        spend(1 + len(fields) // _FIELDS_PER_PAIR + (aliases + pairs) // _NAMES_PER_PAIR)
        if isinstance(reader, avro.schema.NamedSchema) and isinstance(writer, type(reader)):
            names = avro.compatibility.check_schema_names(reader, writer, location)
            # The fields of another type do not matter.
            if names.compatibility is not _COMPATIBLE:
                return names
        return super().calculate_compatibility(reader, writer, location)


class _AvroComparison:
    """A comparison of two schemas. It compares each pair of their parts once: the same named type
    may stand in many places, and in itself.
    """

    def __init__(self) -> None:
        self._checker = _Checker()  # type: ignore[no-untyped-call]
        self._decimals: dict[tuple[int, int], list[_Mismatch]] = {}

    def of(self, reader: avro.schema.Schema, writer: avro.schema.Schema) -> Any:
        """What the library says of a pair."""
        return self._checker.get_compatibility(reader, writer)

    def decimals(self, reader: Any, writer: Any) -> list[_Mismatch]:
        """The decimals whose precision or scale differs, in two schemas that are compatible apart
        from that: the specification lets two decimals match only if both are equal.
        """
        pair = id(reader), id(writer)
        if pair not in self._decimals:
            spend()
            self._decimals[pair] = []  # what a recursive type finds in itself is found already
            self._decimals[pair] = list(self._mismatches(reader, writer))
        return self._decimals[pair]

    def _mismatches(self, reader: Any, writer: Any) -> Iterator[_Mismatch]:
        if isinstance(writer, avro.schema.UnionSchema):
            for branch in writer.schemas:
                yield from self.decimals(reader, branch)
        elif isinstance(reader, avro.schema.UnionSchema):
            branches = [
                each
                for each in reader.schemas
                if self.of(each, writer).compatibility is _COMPATIBLE
            ]
            yield from min(
                (self.decimals(branch, writer) for branch in branches), key=len, default=[]
            )
        elif isinstance(writer, _DECIMALS) and isinstance(reader, _DECIMALS):
            ours, theirs = (f"decimal({each.precision}, {each.scale})" for each in (reader, writer))
            if ours != theirs:
                yield "", f"reader {ours}, writer {theirs}"
        else:
            for place, inner, other in _parts(reader, writer):
                yield from ((f"/{place}{path}", why) for path, why in self.decimals(inner, other))


def _parts(reader: Any, writer: Any) -> Iterator[tuple[str, Any, Any]]:
    """The parts of the reader's schema, each with its place and with the part of the writer's that
    it reads.
    """
    if isinstance(writer, avro.schema.RecordSchema) and isinstance(
        reader, avro.schema.RecordSchema
    ):
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            for name in (field.name, *(field.get_prop("aliases") or ())):
                if name in written:
                    yield field.name, field.type, written[name].type
                    break
    elif isinstance(writer, avro.schema.ArraySchema) and isinstance(
        reader, avro.schema.ArraySchema
    ):
        yield "items", reader.items, writer.items
    elif isinstance(writer, avro.schema.MapSchema) and isinstance(reader, avro.schema.MapSchema):
        yield "values", reader.values, writer.values
