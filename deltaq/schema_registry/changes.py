"""Changes of the registry, as pure functions: from the registry to the result and the actions of
one entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from deltaq.delta.actions import DomainMetadata
from deltaq.schema_registry.compatibility.levels import compared_versions, conflicts
from deltaq.schema_registry.errors import (
    INCOMPATIBLE,
    INVALID_MODE,
    INVALID_SCHEMA,
    INVALID_SUBJECT,
    INVALID_VERSION,
    NO_SUBJECT_COMPATIBILITY,
    NO_SUBJECT_MODE,
    NOT_PERMITTED,
    REFERENCE_EXISTS,
    SCHEMA_NOT_FOUND,
    SCHEMA_TOO_LARGE,
    SUBJECT_NOT_FOUND,
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_FOUND,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    registry_error,
)
from deltaq.schema_registry.formats import load_format, schema_guid
from deltaq.schema_registry.rules import NO_RULES, has_rules
from deltaq.schema_registry.schemas import ConfigCompatibilityLevel, RegisteredSchema, Schema
from deltaq.schema_registry.state import MODES, Registry, StoredSchema, Subject, Version

T = TypeVar("T")

SCHEMA_CHARS_MAX = 1_000_000
SUBJECT_CHARS_MAX = 600
"""A subject may join the names of a topic and of a record."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The result of a change, and the actions to commit for it; without actions, nothing is to be
    written.
    """

    result: T
    actions: Sequence[DomainMetadata] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schema that may be registered: checked, in canonical form, with its parsed form and its
    guid.
    """

    schema: Schema
    guid: str
    parsed: Any


# --- registering and comparing ---


def check_subject(name: object) -> str:
    """A valid subject name. Raises SchemaRegistryError (42208), TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"subject_name must be str, not {type(name).__name__}")
    if not 1 <= len(name) <= SUBJECT_CHARS_MAX or not name.isprintable():
        reason = f"invalid subject {name[:60]!a}: use 1 to {SUBJECT_CHARS_MAX} printable characters"
        raise registry_error(INVALID_SUBJECT, reason)
    return name


def canonical_schema(schema: Schema, *, normalize: bool) -> Schema:
    """The schema without differences that have no meaning. Raises SchemaRegistryError (42201,
    42209).
    """
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be a Schema, not {type(schema).__name__}")
    if has_rules(schema.rule_set):
        raise registry_error(INVALID_SCHEMA, NO_RULES)
    if not isinstance(schema.schema_str, str):
        raise registry_error(
            INVALID_SCHEMA, f"the text must be str, not {type(schema.schema_str).__name__}"
        )
    if len(schema.schema_str) > SCHEMA_CHARS_MAX:
        raise registry_error(
            SCHEMA_TOO_LARGE, f"the schema has more than {SCHEMA_CHARS_MAX} characters"
        )
    chosen = load_format(schema.schema_type)
    references = list(schema.references or ())
    if normalize:
        references.sort(key=lambda reference: reference.name)
    try:
        text = (chosen.normalized if normalize else chosen.canonical)(schema.schema_str)
        return replace(schema, schema_str=text, references=references, rule_set=None)
    except (ValueError, RecursionError) as error:
        raise _invalid(schema, error) from error


def candidate(registry: Registry, schema: Schema, *, normalize: bool) -> Candidate:
    """The schema, checked. Raises SchemaRegistryError (42201) with what is wrong."""
    found = canonical_schema(schema, normalize=normalize)
    for reference in found.references:
        version = registry.version(reference)
        if version is None or version.deleted:
            where = f"subject {reference.subject!r}, version {reference.version}"
            raise registry_error(
                INVALID_SCHEMA, f"reference {reference.name!r}: there is no {where}"
            )
    try:
        parsed = _parsed(registry, found)
        return Candidate(found, schema_guid(found, registry.resolved(found)), parsed)
    except ValueError as error:
        raise _invalid(schema, error) from error


def _invalid(schema: Schema, error: Exception) -> Exception:
    return registry_error(
        INVALID_SCHEMA, f"invalid {schema.schema_type} schema: {str(error)[:1000]}"
    )


def _parsed(registry: Registry, schema: Schema) -> Any:
    """Raises ValueError."""
    try:
        references = registry.resolved(schema)
    except KeyError as error:
        raise ValueError(f"the reference {error.args[0]} does not exist") from error
    return load_format(schema.schema_type).parse(schema.schema_str, references)


def level_of(registry: Registry, subject: Subject) -> ConfigCompatibilityLevel:
    """The compatibility level that applies to a subject."""
    return subject.compatibility or registry.head.compatibility


def conflicts_with(
    registry: Registry,
    level: ConfigCompatibilityLevel,
    new: Candidate,
    subject: str,
    versions: Sequence[Version],
) -> list[str]:
    """Why the new schema may not follow these versions of a subject, the oldest first."""
    if level is ConfigCompatibilityLevel.NONE:
        return []
    earlier = []
    for version in compared_versions(level, versions):
        old = registry.registered(subject, version).schema
        if old.schema_type != new.schema.schema_type:
            return [f"version {version.number} is {old.schema_type}, not {new.schema.schema_type}"]
        try:
            earlier.append((version.number, _parsed(registry, old)))
        except ValueError as error:
            # Another version of deltaq, or another program, registered it.
            return [f"version {version.number} is no schema: {str(error)[:1000]}"]
    return conflicts(
        level, new.parsed, earlier, load_format(new.schema.schema_type).incompatibilities
    )


def register(
    registry: Registry, name: str, schema: Schema, *, normalize: bool
) -> Change[RegisteredSchema]:
    """Register a schema as the next version. A schema that the subject has already is returned as
    it is, also of one that is read-only: its serializers register their schemas. Raises
    SchemaRegistryError.
    """
    subject = registry.subject(check_subject(name))
    new = candidate(registry, schema, normalize=normalize)
    known_id = registry.id_of(new.guid)
    for version in subject.live:
        if version.schema_id == known_id:
            return Change(registry.registered(name, version))
    check_writable(registry, name)
    level = level_of(registry, subject)
    if reasons := conflicts_with(registry, level, new, name, subject.live):
        text = (
            f"the schema is incompatible with subject {name!r}, whose level is {level.value}: "
            f"{'; '.join(reasons)}"
        )
        raise registry_error(INCOMPATIBLE, text)
    schema_id = registry.head.next_id if known_id is None else known_id
    version = Version(subject.next_number, schema_id)
    actions = [replace(subject, versions=(*subject.versions, version)).action()]
    if known_id is None:
        head = replace(registry.head, next_id=schema_id + 1)
        actions += [StoredSchema(schema_id, new.guid, new.schema).action(), head.action()]
    return Change(RegisteredSchema(name, version.number, schema_id, new.guid, new.schema), actions)


def check_writable(registry: Registry, name: str) -> None:
    """Raises SchemaRegistryError (42205) if the subject is read-only, 42208 for an invalid name."""
    if (registry.subject(check_subject(name)).mode or registry.head.mode) == "READONLY":
        raise registry_error(NOT_PERMITTED, f"subject {name!r} is in read-only mode")


# --- finding ---


def live_subject(registry: Registry, name: str, *, deleted: bool = False) -> Subject:
    """A subject with versions; with `deleted`, the deleted ones count. Raises SchemaRegistryError
    (40401).
    """
    subject = registry.subject(check_subject(name))
    if not (subject.versions if deleted else subject.live):
        raise registry_error(SUBJECT_NOT_FOUND, f"subject {name!r} not found")
    return subject


def find_version(
    registry: Registry, name: str, version: int | str, *, deleted: bool = False
) -> Version:
    """A version by its number or `latest`. Raises SchemaRegistryError (40401, 40402, 42202)."""
    subject = live_subject(registry, name, deleted=deleted)
    among = subject.versions if deleted else subject.live
    if is_latest(version):
        return among[-1]
    number = _number(version)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise registry_error(
            INVALID_VERSION, f"invalid version {version!r}: use a positive number or 'latest'"
        )
    for found in among:
        if found.number == number:
            return found
    raise registry_error(VERSION_NOT_FOUND, f"version {number} of subject {name!r} not found")


def is_latest(version: int | str) -> bool:
    """Whether this means the newest version, which -1 does too."""
    return version in ("latest", "-1", -1)


def _number(version: int | str) -> int | str:
    """The number that a version was given as, in digits too; other text as it is."""
    return int(version) if isinstance(version, str) and version.isdecimal() else version


def find_schema(
    registry: Registry, name: str, schema: Schema, *, normalize: bool, deleted: bool
) -> RegisteredSchema:
    """The newest version with this schema. Raises SchemaRegistryError (40401, 40403)."""
    subject = live_subject(registry, name, deleted=deleted)
    found = canonical_schema(schema, normalize=normalize)
    try:
        known_id = registry.id_of(schema_guid(found, registry.resolved(found)))
    except ValueError as error:
        raise _invalid(schema, error) from error
    except KeyError:  # it refers to what does not exist
        known_id = None
    for version in reversed(subject.versions if deleted else subject.live):
        if version.schema_id == known_id:
            return registry.registered(name, version)
    raise registry_error(SCHEMA_NOT_FOUND, f"subject {name!r} has no such schema")


# --- deleting ---


def delete_version(
    registry: Registry, name: str, version: int | str, *, permanent: bool
) -> Change[int]:
    """Delete a version: softly first, then, with `permanent`, for good. Raises
    SchemaRegistryError.
    """
    check_writable(registry, name)
    if permanent:
        found = find_version(registry, name, version, deleted=True)
        if not found.deleted:
            text = f"version {found.number} of subject {name!r} must be deleted softly first"
            raise registry_error(VERSION_NOT_SOFT_DELETED, text)
    else:
        subject = live_subject(registry, name, deleted=True)
        if any(v.number == _number(version) and v.deleted for v in subject.versions):
            text = (
                f"version {version} of subject {name!r} was deleted softly; delete it with "
                "permanent=True"
            )
            raise registry_error(VERSION_SOFT_DELETED, text)
        found = find_version(registry, name, version)
    return Change(
        found.number, _deleted(registry, registry.subject(name), [found], permanent=permanent)
    )


def delete_subject(registry: Registry, name: str, *, permanent: bool) -> Change[list[int]]:
    """Delete all versions of a subject, and with `permanent` its settings. Raises
    SchemaRegistryError.
    """
    check_writable(registry, name)
    subject = live_subject(registry, name, deleted=True)
    if permanent and subject.live:
        raise registry_error(
            SUBJECT_NOT_SOFT_DELETED, f"subject {name!r} must be deleted softly first"
        )
    if not permanent and not subject.live:
        text = f"subject {name!r} was deleted softly; delete it with permanent=True"
        raise registry_error(SUBJECT_SOFT_DELETED, text)
    chosen = subject.versions if permanent else subject.live
    return Change(
        [version.number for version in chosen],
        _deleted(registry, subject, chosen, permanent=permanent),
    )


def _deleted(
    registry: Registry, subject: Subject, chosen: Sequence[Version], *, permanent: bool
) -> list[DomainMetadata]:
    for version in chosen:
        # A version that only deleted ones refer to may be deleted softly. For good, it would make
        # them unreadable.
        referring = set(registry.referring(subject.name, version.number, deleted=permanent))
        if referring - {v.schema_id for v in chosen}:
            ids = ", ".join(map(str, sorted(referring)))
            text = (
                f"version {version.number} of subject {subject.name!r} is referenced by the schemas"
                f" with the ids {ids}"
            )
            raise registry_error(REFERENCE_EXISTS, text)
    if not permanent:
        versions = tuple(replace(v, deleted=True) if v in chosen else v for v in subject.versions)
        return [replace(subject, versions=versions).action()]
    left = tuple(v for v in subject.versions if v not in chosen)
    kept = replace(subject, versions=left) if left else Subject(subject.name)
    others = {
        v.schema_id
        for s in registry.subjects.values()
        if s.name != subject.name
        for v in s.versions
    }
    gone = {v.schema_id for v in chosen} - others - {v.schema_id for v in left}
    return [kept.action(), *(registry.schemas[schema_id].removal() for schema_id in sorted(gone))]


# --- settings ---


def set_compatibility(
    registry: Registry, name: str | None, level: ConfigCompatibilityLevel
) -> Change[None]:
    """Set the level of a subject, or of the registry."""
    if name is None:
        return Change(None, [replace(registry.head, compatibility=level).action()])
    return Change(
        None, [replace(registry.subject(check_subject(name)), compatibility=level).action()]
    )


def delete_compatibility(registry: Registry, name: str | None) -> Change[ConfigCompatibilityLevel]:
    """Remove the level of a subject, or reset that of the registry. Returns the old one. Raises
    SchemaRegistryError (40408).
    """
    if name is None:
        head = replace(registry.head, compatibility=ConfigCompatibilityLevel.BACKWARD)
        return Change(registry.head.compatibility, [head.action()])
    subject = registry.subject(check_subject(name))
    if subject.compatibility is None:
        raise registry_error(
            NO_SUBJECT_COMPATIBILITY, f"subject {name!r} has no compatibility of its own"
        )
    return Change(subject.compatibility, [replace(subject, compatibility=None).action()])


def set_mode(registry: Registry, name: str | None, mode: str) -> Change[str]:
    """Set the mode of a subject, or of the registry. Raises SchemaRegistryError (42204)."""
    chosen = str(mode).upper()
    if chosen not in MODES:
        raise registry_error(
            INVALID_MODE, f"invalid mode {str(mode)[:60]!a}: use {' or '.join(MODES)}"
        )
    if name is None:
        return Change(chosen, [replace(registry.head, mode=chosen).action()])
    return Change(chosen, [replace(registry.subject(check_subject(name)), mode=chosen).action()])


def delete_mode(registry: Registry, name: str) -> Change[str]:
    """Remove the mode of a subject. Returns the old one. Raises SchemaRegistryError (40409)."""
    subject = registry.subject(check_subject(name))
    if subject.mode is None:
        raise registry_error(NO_SUBJECT_MODE, f"subject {name!r} has no mode of its own")
    return Change(subject.mode, [replace(subject, mode=None).action()])
