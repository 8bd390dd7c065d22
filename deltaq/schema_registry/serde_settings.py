"""The settings of serializers and deserializers that use the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaq.schema_registry.errors import InvalidSetting
from deltaq.schema_registry.subject_names import SubjectNameStrategy, chosen_strategy
from deltaq.schema_registry.wire_format import (
    IdDeserializer,
    IdSerializer,
    dual_schema_id_deserializer,
    prefix_schema_id_serializer,
)


@dataclass(frozen=True, slots=True)
class LatestSchema:
    """Which version of a subject takes the place of the given or the written schema: the newest,
    the newest with this metadata, the schema with this id, or none.
    """

    version: bool = False
    metadata: Mapping[str, str] | None = None
    schema_id: int | None = None

    def __bool__(self) -> bool:
        return self.version or self.metadata is not None or self.schema_id is not None


@dataclass(frozen=True, slots=True)
class SerializerSettings:
    """What `conf` of a serializer says. `own` has the settings of its format."""

    auto_register: bool
    normalize: bool
    latest: LatestSchema
    subject_name: SubjectNameStrategy
    serialize_id: IdSerializer
    own: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeserializerSettings:
    """What `conf` of a deserializer says. `own` has the settings of its format."""

    latest: LatestSchema
    subject_name: SubjectNameStrategy
    deserialize_id: IdDeserializer
    own: Mapping[str, Any] = field(default_factory=dict)


def serializer_settings(
    conf: Mapping[str, Any] | None, own: Mapping[str, Any]
) -> SerializerSettings:
    """Settings checked; those of a format have the type of their default in `own`. Raises
    InvalidSetting.
    """
    rest = _Settings(conf)
    auto_register = rest.flag("auto.register.schemas", default=True)
    latest = LatestSchema(
        rest.flag("use.latest.version", default=False),
        rest.of_type("use.latest.with.metadata", dict),
        rest.of_type("use.schema.id", int),
    )
    if latest.version and auto_register:
        text = (
            "use.latest.version needs auto.register.schemas False: the latest version must not be "
            "the one registered"
        )
        raise InvalidSetting(text, key="use.latest.version")
    rest.refuse_rules()
    return SerializerSettings(
        auto_register,
        rest.flag("normalize.schemas", default=False),
        latest,
        rest.subject_name(),
        rest.function("schema.id.serializer", prefix_schema_id_serializer),
        rest.remaining(own),
    )


def deserializer_settings(
    conf: Mapping[str, Any] | None, own: Mapping[str, Any]
) -> DeserializerSettings:
    """Settings checked; those of a format have the type of their default in `own`. Raises
    InvalidSetting.
    """
    rest = _Settings(conf)
    latest = LatestSchema(
        rest.flag("use.latest.version", default=False),
        rest.of_type("use.latest.with.metadata", dict),
    )
    rest.refuse_rules()
    return DeserializerSettings(
        latest,
        rest.subject_name(),
        rest.function("schema.id.deserializer", dual_schema_id_deserializer),
        rest.remaining(own),
    )


def refuse_rules(rule_conf: object, rule_registry: object) -> None:
    """Raises InvalidSetting for arguments that configure rules, which would not be applied."""
    if rule_conf or rule_registry is not None:
        raise InvalidSetting(
            "rules are not supported: leave out rule_conf and rule_registry", key="rule_registry"
        )


def checked_callable(function: Any, name: str) -> Any:
    """`function` if it is callable or None. Raises InvalidSetting."""
    if function is not None and not callable(function):
        raise InvalidSetting(f"{name} must be callable, not {type(function).__name__}", key=name)
    return function


class _Settings:
    """Settings, of which each method takes some."""

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        self._rest = dict(conf or {})

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._rest.pop(key, default)
        if not isinstance(value, bool):
            raise InvalidSetting(f"{key} must be a boolean value, not {value!r:.60}", key=key)
        return value

    def of_type(self, key: str, kind: type) -> Any:
        value = self._rest.pop(key, None)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidSetting(f"{key} must be {kind.__name__}, not {value!r:.60}", key=key)
        return value

    def function(self, key: str, default: Any) -> Any:
        return checked_callable(self._rest.pop(key, default), key)

    def subject_name(self) -> SubjectNameStrategy:
        prefix = "subject.name.strategy"
        return chosen_strategy(
            *(self._rest.pop(prefix + end, None) for end in ("", ".type", ".conf"))
        )

    def refuse_rules(self) -> None:
        execution = self._rest.pop("validation.rules.execution", "DISABLED")
        if str(getattr(execution, "value", execution)).upper() != "DISABLED":
            key = "validation.rules.execution"
            raise InvalidSetting(f"rules are not supported: {key} must be DISABLED", key=key)
        for key in ("validation.rules.fail.fast", "validation.rules.executor"):
            self._rest.pop(key, None)

    def remaining(self, own: Mapping[str, Any]) -> dict[str, Any]:
        found = {
            key: (
                self.flag(key, default=default)
                if isinstance(default, bool)
                else self.function(key, default)
            )
            for key, default in own.items()
        }
        if self._rest:
            raise InvalidSetting(
                f"Unrecognized properties: {', '.join(map(str, self._rest))}",
                key=str(next(iter(self._rest))),
            )
        return found
