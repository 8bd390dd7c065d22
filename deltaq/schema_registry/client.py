"""`SchemaRegistryClient`: confluent-kafka's client, on a registry in the root instead of a
server.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias, TypeVar

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config.client import STORE_PREFIX, store_option
from deltaq.schema_registry import changes
from deltaq.schema_registry.associations import RefusedAssociations
from deltaq.schema_registry.compatibility.levels import compatibility_level
from deltaq.schema_registry.errors import SCHEMA_NOT_FOUND, InvalidSetting, registry_error
from deltaq.schema_registry.formats import SCHEMA_TYPES
from deltaq.schema_registry.log import RegistryLog
from deltaq.schema_registry.rules import has_rules
from deltaq.schema_registry.schemas import (
    ConfigCompatibilityLevel,
    RegisteredSchema,
    Schema,
    SchemaVersion,
    ServerConfig,
)
from deltaq.schema_registry.state import Registry, StoredSchema
from deltaq.store import Store, open_store

T = TypeVar("T")

VersionNumber: TypeAlias = "int | Literal['latest'] | str"

_TIMEOUT_S = 60.0

_WITHOUT_EFFECT = frozenset(
    (
        "ssl.ca.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.certificate.location",
        "basic.auth.user.info",
        "basic.auth.credentials.source",
        "max.retries",
        "retries.wait.ms",
        "retries.max.wait.ms",
        "proxy",
    )
)
_PREFIXES_WITHOUT_EFFECT = ("bearer.auth.", "sasl.")


class SchemaRegistryClient(RefusedAssociations):
    """Registers and finds schemas. Mirrors `confluent_kafka.schema_registry.SchemaRegistryClient`.
    Thread-safe.

    `url` (or `bootstrap.servers`) is the root, `store.*` are the settings of its store, `timeout`
    is the time that a change may take, in seconds. Settings for a server, such as
    `basic.auth.user.info`, have no effect.

    A method that only looks for what never changes, such as a schema by its id, answers from memory
    if it can; the latest version is read each time. Serializers with `use.latest.version` keep it
    for `cache.latest.ttl.sec` seconds, by default for as long as the client exists, for up to
    `cache.capacity` (1000) subjects. A change is one entry of the registry's log, so that of two
    clients that register the same schema both get the same id. Methods raise SchemaRegistryError if
    the registry refuses, and Unavailable, OutcomeUnknown, Corrupt, Incompatible as other clients
    do. After OutcomeUnknown, call the method again: a schema that was registered is found.
    """

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        settings = {
            **(conf or {}),
            **{_key_of_keyword(name): value for name, value in keywords.items()},
        }
        self._conf = dict(settings)
        self._timeout_s = _positive(settings.pop("timeout", None), "timeout", _TIMEOUT_S)
        self._remember_s = _positive(
            settings.pop("cache.latest.ttl.sec", None), "cache.latest.ttl.sec", math.inf
        )
        self._remember_count = _positive(
            settings.pop("cache.capacity", None), "cache.capacity", 1000
        )
        self._remembered: dict[Hashable, tuple[float, RegisteredSchema]] = {}
        self._monotonic = clock.monotonic
        options = {
            key.removeprefix(STORE_PREFIX): option
            for key in tuple(settings)
            if key.startswith(STORE_PREFIX)
            and (option := store_option(key, settings.pop(key))) is not None
        }
        url = settings.pop("url", None)
        root = settings.pop("bootstrap.servers", None)
        unknown = [
            key
            for key in settings
            if key not in _WITHOUT_EFFECT and not key.startswith(_PREFIXES_WITHOUT_EFFECT)
        ]
        if unknown:
            raise InvalidSetting(
                f"Unrecognized properties: {', '.join(sorted(unknown))}", key=unknown[0]
            )
        self._log = RegistryLog(
            _opened(url or root, options, clock) if store is None else store, clock
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Has no effect: the client holds no connection."""

    def config(self) -> dict[str, Any]:
        """The configuration that was passed."""
        return dict(self._conf)

    # --- registering and finding ---

    def register_schema(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> int:
        """Register a schema as the next version of a subject, and return its id.

        A schema that the subject has already keeps its version, and a schema that another subject
        has, its id.
        """
        return self.register_schema_full_response(subject_name, schema, normalize_schemas).schema_id

    def register_schema_full_response(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> RegisteredSchema:
        """Like `register_schema`, with the whole answer."""
        return self._change(
            "REGISTER SCHEMA",
            lambda registry: changes.register(
                registry, subject_name, schema, normalize=normalize_schemas
            ),
        )

    def _change(self, operation: str, plan: Callable[[Registry], changes.Change[T]]) -> T:
        return self._log.change(operation, plan, self._timeout_s)

    def get_schema(
        self,
        schema_id: int,
        subject_name: str | None = None,
        fmt: str | None = None,
        reference_format: str | None = None,
    ) -> Schema:
        """The schema with this id, also one whose versions were deleted softly. `fmt` and
        `reference_format` have no effect.
        """
        return self._stored(
            lambda registry: registry.schemas.get(schema_id), f"with id {schema_id}"
        ).schema

    def get_schema_by_guid(self, guid: str, fmt: str | None = None) -> Schema:
        """The schema with this guid."""

        def find(registry: Registry) -> StoredSchema | None:
            known_id = registry.id_of(guid)
            return None if known_id is None else registry.schemas[known_id]

        return self._stored(find, f"with guid {guid}").schema

    def _stored(self, find: Any, what: str) -> StoredSchema:
        """A schema from memory, or else from the newest registry: one that was found cannot
        change.
        """
        found: StoredSchema | None = find(self._log.last_read()) or find(self._log.read())
        if found is None:
            raise registry_error(SCHEMA_NOT_FOUND, f"there is no schema {what}")
        return found

    def references_of(self, schema: Schema) -> tuple[Any, ...]:
        """The texts of all schemas that a schema refers to, each after those that it refers to
        itself. Raises SchemaRegistryError (40403).
        """
        if not schema.references:
            return ()
        try:
            return tuple(self._log.last_read().resolved(schema))
        except KeyError:
            pass
        try:
            return tuple(self._log.read().resolved(schema))
        except KeyError as error:
            raise registry_error(
                SCHEMA_NOT_FOUND, f"the reference {error.args[0]} does not exist"
            ) from error

    def get_schema_types(self) -> list[str]:
        """The formats that the registry knows."""
        return list(SCHEMA_TYPES)

    def lookup_schema(
        self,
        subject_name: str,
        schema: Schema,
        normalize_schemas: bool = False,
        fmt: str | None = None,
        deleted: bool = False,
    ) -> RegisteredSchema:
        """The version of a subject that has this schema."""
        found = changes.find_schema(
            self._log.read(), subject_name, schema, normalize=normalize_schemas, deleted=deleted
        )
        return RegisteredSchema(found.subject, found.version, found.schema_id, found.guid, schema)

    def get_subjects_by_schema_id(
        self,
        schema_id: int,
        subject_name: str | None = None,
        deleted: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[str]:
        """The subjects that have the schema with this id."""
        versions = self.get_schema_versions(schema_id, subject_name, deleted)
        return _page(sorted({version.subject for version in versions}), offset, limit)

    def get_schema_versions(
        self,
        schema_id: int,
        subject_name: str | None = None,
        deleted: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[SchemaVersion]:
        """The subjects and versions that have the schema with this id."""
        registry = self._log.read()
        if schema_id not in registry.schemas:
            raise registry_error(SCHEMA_NOT_FOUND, f"there is no schema with id {schema_id}")
        found = [
            SchemaVersion(subject.name, version.number)
            for subject in registry.subjects.values()
            for version in (subject.versions if deleted else subject.live)
            if version.schema_id == schema_id and subject_name in (None, subject.name)
        ]
        return _page(
            sorted(found, key=lambda version: (version.subject, version.version)), offset, limit
        )

    def get_subjects(
        self,
        subject_prefix: str | None = None,
        deleted: bool = False,
        deleted_only: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[str]:
        """The subjects, sorted. Those without a version that is not deleted only with `deleted` or
        `deleted_only`.
        """
        subjects = [subject for subject in self._log.read().subjects.values() if subject.versions]
        if deleted_only:
            subjects = [subject for subject in subjects if not subject.live]
        elif not deleted:
            subjects = [subject for subject in subjects if subject.live]
        found = sorted(
            subject.name for subject in subjects if subject.name.startswith(subject_prefix or "")
        )
        return _page(found, offset, limit)

    def get_latest_version(self, subject_name: str, fmt: str | None = None) -> RegisteredSchema:
        """The newest version of a subject."""
        return self.get_version(subject_name, "latest")

    def get_latest_with_metadata(
        self,
        subject_name: str,
        metadata: dict[str, str],
        deleted: bool = False,
        fmt: str | None = None,
    ) -> RegisteredSchema:
        """The newest version of a subject whose metadata has these properties."""
        registry = self._log.read()
        subject = changes.live_subject(registry, subject_name, deleted=deleted)
        for version in reversed(subject.versions if deleted else subject.live):
            found = registry.registered(subject_name, version)
            noted = found.schema.metadata
            properties = (
                noted.properties.properties
                if noted is not None and noted.properties is not None
                else {}
            )
            if metadata.items() <= properties.items():
                return found
        raise registry_error(
            SCHEMA_NOT_FOUND, f"no version of subject {subject_name!r} has this metadata"
        )

    def get_version(
        self,
        subject_name: str,
        version: VersionNumber = "latest",
        deleted: bool = False,
        fmt: str | None = None,
    ) -> RegisteredSchema:
        """A version of a subject."""
        registry = self._log.read()
        found = changes.find_version(registry, subject_name, version, deleted=deleted)
        return registry.registered(subject_name, found)

    def get_referenced_by(
        self, subject_name: str, version: VersionNumber = "latest", offset: int = 0, limit: int = -1
    ) -> list[int]:
        """The ids of schemas that refer to a version of a subject."""
        registry = self._log.read()
        found = changes.find_version(registry, subject_name, version)
        return _page(registry.referring(subject_name, found.number, deleted=False), offset, limit)

    def get_versions(
        self,
        subject_name: str,
        deleted: bool = False,
        deleted_only: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[int]:
        """The numbers of a subject's versions."""
        subject = changes.live_subject(
            self._log.read(), subject_name, deleted=deleted or deleted_only
        )
        if deleted_only:
            versions = [version for version in subject.versions if version.deleted]
        else:
            versions = list(subject.versions if deleted else subject.live)
        return _page([version.number for version in versions], offset, limit)

    # --- deleting ---

    def delete_subject(self, subject_name: str, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject: softly first, then, with `permanent`, for good with its
        settings.

        Messages with a softly deleted schema can still be read. Returns the numbers of the
        versions.
        """
        return self._change(
            "DELETE SUBJECT",
            lambda registry: changes.delete_subject(registry, subject_name, permanent=permanent),
        )

    def delete_version(
        self, subject_name: str, version: VersionNumber, permanent: bool = False
    ) -> int:
        """Delete a version: softly first, then, with `permanent`, for good. Returns its number."""
        return self._change(
            "DELETE VERSION",
            lambda registry: changes.delete_version(
                registry, subject_name, version, permanent=permanent
            ),
        )

    # --- compatibility ---

    def set_compatibility(
        self, subject_name: str | None = None, level: str | None = None
    ) -> dict[str, str]:
        """Set the compatibility level of a subject; without a subject, that of the registry."""
        if level is None:
            raise ValueError("level must be set")
        chosen = compatibility_level(level)
        self._change(
            "SET COMPATIBILITY",
            lambda registry: changes.set_compatibility(registry, subject_name, chosen),
        )
        return {"compatibility": chosen.value}

    def get_compatibility(self, subject_name: str | None = None) -> str:
        """The compatibility level that applies to a subject; without a subject, that of the
        registry.
        """
        return self._level(self._log.read(), subject_name).value

    def _level(self, registry: Registry, subject_name: str | None) -> ConfigCompatibilityLevel:
        if subject_name is None:
            return registry.head.compatibility
        return changes.level_of(registry, registry.subject(changes.check_subject(subject_name)))

    def test_compatibility(
        self,
        subject_name: str,
        schema: Schema,
        version: VersionNumber = "latest",
        normalize: bool = False,
        verbose: bool = False,
    ) -> bool:
        """Whether a schema is compatible with one version, by the subject's level. `verbose` has no
        effect.

        Every valid schema is compatible with the latest version of a subject that has none.
        """
        return not self.incompatibilities(subject_name, schema, version, normalize)

    def test_compatibility_all_versions(
        self, subject_name: str, schema: Schema, normalize: bool = False, verbose: bool = False
    ) -> bool:
        """Whether a schema could be registered: compatible with the versions that the subject's
        level names.
        """
        return not self.incompatibilities(subject_name, schema, None, normalize)

    def incompatibilities(
        self,
        subject_name: str,
        schema: Schema,
        version: VersionNumber | None = None,
        normalize: bool = False,
    ) -> list[str]:
        """Why a schema is incompatible with one version of a subject; without one, with those that
        its level names.
        """
        registry = self._log.read()
        new = changes.candidate(registry, schema, normalize=normalize)
        subject = registry.subject(changes.check_subject(subject_name))
        versions = subject.live
        if version is not None and (versions or not changes.is_latest(version)):
            versions = (changes.find_version(registry, subject_name, version),)
        return changes.conflicts_with(
            registry, changes.level_of(registry, subject), new, subject_name, versions
        )

    # --- settings ---

    def set_config(
        self, subject_name: str | None = None, config: ServerConfig | None = None
    ) -> dict[str, str]:
        """Set the compatibility level of a subject or of the registry, as `set_compatibility` does.
        Other fields of `config` raise InvalidSetting.
        """
        if config is not None:
            _check_config(config)
        level = None if config is None else config.compatibility or config.compatibility_level
        if level is None:
            raise ValueError("config must be set")
        return self.set_compatibility(subject_name, level.value)

    def get_config(self, subject_name: str | None = None) -> ServerConfig:
        """The settings that apply to a subject; without a subject, those of the registry."""
        level = self._level(self._log.read(), subject_name)
        return ServerConfig(level, level)

    def delete_config(self, subject_name: str | None = None) -> ServerConfig:
        """Remove the settings of a subject, or reset those of the registry. Returns the old
        ones.
        """
        level = self._change(
            "SET COMPATIBILITY",
            lambda registry: changes.delete_compatibility(registry, subject_name),
        )
        return ServerConfig(level, level)

    def get_mode(self, subject_name: str) -> str:
        """The mode that applies to a subject: READWRITE or READONLY."""
        registry = self._log.read()
        return registry.subject(changes.check_subject(subject_name)).mode or registry.head.mode

    def update_mode(self, subject_name: str, mode: str, force: bool = False) -> str:
        """Set the mode of a subject: READONLY refuses registrations and deletions. `force` has no
        effect.
        """
        return self._set_mode(subject_name, mode)

    def delete_mode(self, subject_name: str) -> str:
        """Remove the mode of a subject, to which that of the registry then applies. Returns the old
        one.
        """
        return self._change(
            "SET MODE", lambda registry: changes.delete_mode(registry, subject_name)
        )

    def get_global_mode(self) -> str:
        """The mode of the registry."""
        return self._log.read().head.mode

    def update_global_mode(self, mode: str, force: bool = False) -> str:
        """Set the mode of the registry. `force` has no effect."""
        return self._set_mode(None, mode)

    def _set_mode(self, subject_name: str | None, mode: str) -> str:
        return self._change(
            "SET MODE", lambda registry: changes.set_mode(registry, subject_name, mode)
        )

    def get_contexts(self, offset: int = 0, limit: int = -1) -> list[str]:
        """The contexts of subjects: always the default one."""
        return _page(["."], offset, limit)

    def remembered(self, key: Hashable, find: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        """What `find` returned for this key within the last `cache.latest.ttl.sec` seconds: for
        serializers, which cannot read the registry for each message.
        """
        now = self._monotonic()
        kept = self._remembered.get(key)
        if kept is not None and now - kept[0] < self._remember_s:
            return kept[1]
        found = find()
        if len(self._remembered) >= self._remember_count:
            self._remembered.clear()
        self._remembered[key] = now, found
        return found

    def clear_latest_caches(self) -> None:
        """Forget the latest versions that serializers keep."""
        self._remembered.clear()

    def clear_caches(self) -> None:
        """Like `clear_latest_caches`: what else is kept never changes."""
        self.clear_latest_caches()

    @staticmethod
    def new_client(conf: Mapping[str, Any]) -> SchemaRegistryClient:
        """A client with this configuration."""
        return SchemaRegistryClient(conf)


def _check_config(config: ServerConfig) -> None:
    for name in ("compatibility_group", "default_metadata", "override_metadata"):
        if getattr(config, name) is not None:
            raise InvalidSetting(
                f"{name} is not supported: only the compatibility can be set", key=name
            )
    for name in ("default_rule_set", "override_rule_set"):
        if has_rules(getattr(config, name)):
            raise InvalidSetting(f"rules are not supported: leave out {name}", key=name)


def _page(found: Sequence[Any], offset: int, limit: int) -> list[Any]:
    return list(found[offset:] if limit < 0 else found[offset : offset + limit])


def _positive(number: object, key: str, default: float) -> float:
    if number is None:
        return default
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise InvalidSetting(f"{key} must be a positive number", key=key)
    return float(number)


def _key_of_keyword(keyword: str) -> str:
    """`cache_capacity` -> `cache.capacity`. The names of the store's settings have underscores of
    their own.
    """
    if keyword.startswith("store_"):
        return STORE_PREFIX + keyword.removeprefix("store_")
    return keyword if "." in keyword else keyword.replace("_", ".")


def _opened(root: object, options: Mapping[str, str], clock: Clock) -> Store:
    url = str(os.fspath(root)) if isinstance(root, os.PathLike) else root
    if not isinstance(url, str) or not url:
        raise InvalidSetting(
            "Missing required configuration property url: the root of the topics", key="url"
        )
    if url.startswith(("http://", "https://", "mock://")):
        reason = (
            "url must be the root of the topics: deltaq keeps schemas there and asks no schema "
            "registry server"
        )
        raise InvalidSetting(reason, key="url")
    try:
        return open_store(url, options, clock)
    except ValueError as error:
        # Not chained: the error text holds no secrets, but values in the traceback may.
        raise InvalidSetting(str(error), key="url") from None
