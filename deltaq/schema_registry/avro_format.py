"""Avro: the only door to `avro`, whose rules judge compatibility, and to `fastavro`, which checks defaults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import avro.compatibility
import avro.errors
import avro.name
import avro.schema
import fastavro
from fastavro.schema import SchemaParseException

from deltaq.schema_registry.formats import NamedText

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


def canonical(text: str) -> str:
    """The schema without white space; a primitive type may be a bare word. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False)


def normalized(text: str) -> str:
    """The schema without white space and with sorted attributes. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def _loaded(text: str) -> Any:
    return text.strip() if text.strip() in _PRIMITIVES else json.loads(text)


def parse(text: str, references: Sequence[NamedText]) -> avro.schema.Schema:
    """The schema for a comparison. Raises ValueError."""
    try:
        fastavro_schema(text, tuple(references))  # refuses defaults and names that `avro` lets pass
        names = avro.name.Names(validate_names=True)
        for reference in references:
            avro.schema.make_avsc_object(_loaded(reference.text), names)
        return avro.schema.make_avsc_object(_loaded(text), names)
    except (avro.errors.AvroException, SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def incompatibilities(reader: avro.schema.Schema, writer: avro.schema.Schema) -> list[str]:
    """Why records of the writer's schema cannot be read with the reader's, by the rules of the Avro specification,
    "Schema Resolution"."""
    checker = avro.compatibility.ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    found = checker.get_compatibility(reader, writer)
    if found.compatibility is avro.compatibility.SchemaCompatibilityType.compatible:
        return []
    places = ", ".join(sorted(found.locations, key=len, reverse=True)[:1])
    reasons = zip(found.incompatibilities, sorted(found.messages) or [""], strict=False)
    return [f"{kind.value.replace('_', ' ')} at {places or '/'}: {message}" for kind, message in reasons]


@lru_cache(maxsize=1000)
def fastavro_schema(text: str, references: tuple[NamedText, ...]) -> Any:
    """The schema as fastavro parses it. Raises SchemaParseException, ValueError, TypeError, KeyError."""
    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(_loaded(reference.text), named_schemas=named)
    return fastavro.parse_schema(_loaded(text), named_schemas=named)
