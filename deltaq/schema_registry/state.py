"""What the registry's log says: schemas by id, versions by subject, and settings.

The specification is `docs/internals/format.md`, "Schema registry". Each schema and each subject is
one domain of the table's domain metadata, so that an entry holds only what it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from deltaq.delta.actions import DomainMetadata
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.errors import Corrupt, Incompatible
from deltaq.schema_registry.formats import NamedText
from deltaq.schema_registry.schemas import (
    ConfigCompatibilityLevel,
    RegisteredSchema,
    Schema,
    SchemaReference,
)
from deltaq.serde.json_text import compact_json, strict_json

REGISTRY_FORMAT = 1
"""The format of the registry's domains."""

REFERENCES_MAX = 200
"""Schemas that one schema refers to, directly or not."""
REFERENCES_CHARS_MAX = 2_000_000

_SCHEMA_DOMAIN = "deltaq.schema."
_SUBJECT_DOMAIN = "deltaq.subject."
_COPY_DOMAIN = "deltaq.copy"

MODES = ("READWRITE", "READONLY")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema under its id. It never changes."""

    schema_id: int
    guid: str
    schema: Schema

    def action(self) -> DomainMetadata:
        """The schema as domain metadata."""
        body = {"guid": self.guid, **self.schema.to_dict()}
        return DomainMetadata(f"{_SCHEMA_DOMAIN}{self.schema_id}", compact_json(body))

    def removal(self) -> DomainMetadata:
        """The action that removes the schema."""
        return DomainMetadata(f"{_SCHEMA_DOMAIN}{self.schema_id}", "{}", removed=True)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject. `deleted`: softly, so that its messages can still be read."""

    number: int
    schema_id: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject: its versions in ascending order, and the settings that it has of its own."""

    name: str
    versions: tuple[Version, ...] = ()
    compatibility: ConfigCompatibilityLevel | None = None
    mode: str | None = None

    @property
    def live(self) -> tuple[Version, ...]:
        """The versions that are not deleted."""
        return tuple(version for version in self.versions if not version.deleted)

    @property
    def next_number(self) -> int:
        """The number of the next version."""
        return self.versions[-1].number + 1 if self.versions else 1

    def action(self) -> DomainMetadata:
        """The subject as domain metadata; its removal if nothing of it is left."""
        domain = _SUBJECT_DOMAIN + self.name
        if not self.versions and self.compatibility is None and self.mode is None:
            return DomainMetadata(domain, "{}", removed=True)
        body: dict[str, Any] = {
            "versions": [[v.number, v.schema_id, v.deleted] for v in self.versions]
        }
        if self.compatibility is not None:
            body["compatibility"] = self.compatibility.value
        if self.mode is not None:
            body["mode"] = self.mode
        return DomainMetadata(domain, compact_json(body))


@dataclass(frozen=True, slots=True)
class RegistryHead:
    """What applies to the whole registry. Ids are never used again, also not that of a removed
    schema.
    """

    next_id: int = 1
    compatibility: ConfigCompatibilityLevel = ConfigCompatibilityLevel.BACKWARD
    mode: str = "READWRITE"

    def action(self) -> DomainMetadata:
        """The head as domain metadata."""
        body = {
            "format": REGISTRY_FORMAT,
            "next_id": self.next_id,
            "compatibility": self.compatibility.value,
            "mode": self.mode,
        }
        return DomainMetadata(DELTAQ_DOMAIN, compact_json(body))


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry at one version of its log. Never changed. `copied_digest` is the digest that it
    had when it was last copied from another root; None if it never was.
    """

    head: RegistryHead = RegistryHead()
    schemas: Mapping[int, StoredSchema] = field(default_factory=dict)
    subjects: Mapping[str, Subject] = field(default_factory=dict)
    copied_digest: str | None = None

    def domains(self) -> dict[str, DomainMetadata]:
        """All that the registry says, by domain: schemas, then the subjects that name them, then
        the head. Nothing for a registry without any of it.
        """
        if self == Registry(copied_digest=self.copied_digest):
            return {}
        actions = [stored.action() for _, stored in sorted(self.schemas.items())]
        actions += [subject.action() for _, subject in sorted(self.subjects.items())]
        return {action.domain: action for action in (*actions, self.head.action())}

    def digest(self) -> str:
        """A digest of all that the registry says."""
        return _digest(self.domains().values())

    def subject(self, name: str) -> Subject:
        """The subject; an empty one if there is none."""
        return self.subjects.get(name) or Subject(name)

    def id_of(self, guid: str) -> int | None:
        """The id of a schema with this content."""
        return next(
            (stored.schema_id for stored in self.schemas.values() if stored.guid == guid), None
        )

    def registered(self, subject: str, version: Version) -> RegisteredSchema:
        """A version with its schema."""
        stored = self.schemas[version.schema_id]
        return RegisteredSchema(
            subject, version.number, stored.schema_id, stored.guid, stored.schema
        )

    def version(self, reference: SchemaReference) -> Version | None:
        """The version that a reference names, also a deleted one."""
        versions = self.subject(reference.subject).versions
        return next((version for version in versions if version.number == reference.version), None)

    def referring(self, subject: str, number: int, *, deleted: bool) -> list[int]:
        """The ids of schemas that refer to a version, ascending. Schemas of which every version is
        deleted count only with `deleted`.
        """
        used = {
            v.schema_id
            for s in self.subjects.values()
            for v in s.versions
            if deleted or not v.deleted
        }
        return sorted(
            schema_id
            for schema_id in used
            for reference in self.schemas[schema_id].schema.references
            if (reference.subject, reference.version) == (subject, number)
        )

    def resolved(self, schema: Schema) -> list[NamedText]:
        """The texts of all schemas that a schema refers to, directly or not, each after those that
        it refers to itself. Raises KeyError with the reference that does not exist, ValueError for
        too many.
        """
        found: dict[str, NamedText] = {}
        entered: set[str] = set()
        # With a text once what it refers to was found.
        waiting: list[tuple[SchemaReference, NamedText | None]] = []
        waiting += [(reference, None) for reference in reversed(schema.references or ())]
        chars = 0
        while waiting:
            reference, text = waiting.pop()
            if text is not None:
                found[reference.name] = text
            elif reference.name not in entered:
                version = self.version(reference)
                if version is None:
                    raise KeyError(
                        f"{reference.name} (subject {reference.subject!r}, version "
                        f"{reference.version})"
                    )
                entered.add(reference.name)
                target = self.schemas[version.schema_id].schema
                chars += len(target.schema_str)
                if len(entered) > REFERENCES_MAX or chars > REFERENCES_CHARS_MAX:
                    most = f"{REFERENCES_MAX} schemas or {REFERENCES_CHARS_MAX} characters"
                    raise ValueError(f"it refers to more than {most}")
                waiting.append((reference, NamedText(reference.name, target.schema_str)))
                waiting += [(inner, None) for inner in reversed(target.references)]
        return list(found.values())


def _digest(actions: Iterable[DomainMetadata]) -> str:
    lines = sorted(f"{action.domain} {action.configuration}\n" for action in actions)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def copy_mark(actions: Iterable[DomainMetadata]) -> DomainMetadata:
    """The action that marks a registry as a copy which says no more than these domains."""
    return DomainMetadata(_COPY_DOMAIN, compact_json({"digest": _digest(actions)}))


def registry_of(state: TableState, path: str) -> Registry:
    """The registry in a table state; an empty one if there is none. Raises Corrupt,
    Incompatible.
    """
    if state.version < 0:
        return Registry()
    try:
        head = _head(state.domains[DELTAQ_DOMAIN], path)
        schemas = {stored.schema_id: stored for stored in _of(state, _SCHEMA_DOMAIN, _schema)}
        subjects = {subject.name: subject for subject in _of(state, _SUBJECT_DOMAIN, _subject)}
        for subject in subjects.values():
            for version in subject.versions:
                _ = schemas[version.schema_id]
        mark = state.domains.get(_COPY_DOMAIN)
        copied_digest = None if mark is None else str(_object(mark)["digest"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"the schema registry cannot be parsed: {type(error).__name__} {error}"
        raise Corrupt(reason, path=path, version=state.version) from error
    return Registry(head, schemas, subjects, copied_digest)


def _of(state: TableState, prefix: str, parse: Any) -> Iterator[Any]:
    return (
        parse(domain.removeprefix(prefix), body)
        for domain, body in state.domains.items()
        if domain.startswith(prefix)
    )


def _head(configuration: str, path: str) -> RegistryHead:
    body = _object(configuration)
    if body.get("format") != REGISTRY_FORMAT:
        reason = (
            f"the registry has format {body.get('format')!r}; this deltaq reads {REGISTRY_FORMAT}. "
            "Upgrade deltaq."
        )
        raise Incompatible(reason, path=path)
    return RegistryHead(
        _positive(body["next_id"]),
        ConfigCompatibilityLevel(body["compatibility"]),
        _mode(body["mode"]),
    )


# Entries change few of the domains, so most were parsed before.
@lru_cache(maxsize=10_000)
def _schema(schema_id: str, configuration: str) -> StoredSchema:
    body = _object(configuration)
    return StoredSchema(int(schema_id), str(body["guid"]), Schema.from_dict(body))


@lru_cache(maxsize=10_000)
def _subject(name: str, configuration: str) -> Subject:
    body = _object(configuration)
    versions = [
        Version(_positive(v), _positive(i), bool(deleted)) for v, i, deleted in body["versions"]
    ]
    if [v.number for v in versions] != sorted({v.number for v in versions}):
        raise ValueError(f"the versions of subject {name!r} are not in order")
    level, mode = body.get("compatibility"), body.get("mode")
    return Subject(
        name,
        tuple(versions),
        None if level is None else ConfigCompatibilityLevel(level),
        None if mode is None else _mode(mode),
    )


def _object(configuration: str) -> dict[str, Any]:
    body = strict_json(configuration)
    if not isinstance(body, dict):
        raise TypeError("not an object")
    return body


def _positive(number: object) -> int:
    if type(number) is not int or number < 1:
        raise ValueError(f"{number!r} is not a positive number")
    return number


def _mode(mode: object) -> str:
    if mode not in MODES:
        raise ValueError(f"{mode!r} is not a mode")
    return str(mode)
