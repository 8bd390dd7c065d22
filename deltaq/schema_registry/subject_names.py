"""Strategies that name the subject of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from deltaq.schema_registry.errors import InvalidSetting
from deltaq.schema_registry.schemas import SchemaReference
from deltaq.serde.errors import SerializationError
from deltaq.serde.serializers import SerializationContext

SubjectNameStrategy: TypeAlias = Callable[
    ["SerializationContext | None", "str | None"], "str | None"
]


class SubjectNameStrategyType(str, Enum):  # noqa: UP042 - confluent-kafka's has this base
    """The values of `subject.name.strategy.type`."""

    NONE = "NONE"
    TOPIC = "TOPIC"
    RECORD = "RECORD"
    TOPIC_RECORD = "TOPIC_RECORD"
    ASSOCIATED = "ASSOCIATED"


def topic_subject_name_strategy(
    ctx: SerializationContext | None, record_name: str | None
) -> str | None:
    """`<topic>-key` or `<topic>-value`: the default. Raises ValueError without a context."""
    return f"{_needed(ctx).topic}-{_needed(ctx).field}"


def topic_record_subject_name_strategy(
    ctx: SerializationContext | None, record_name: str | None
) -> str | None:
    """`<topic>-<record name>`. Raises ValueError without a context."""
    return None if record_name is None else f"{_needed(ctx).topic}-{record_name}"


def record_subject_name_strategy(
    ctx: SerializationContext | None, record_name: str | None
) -> str | None:
    """The full name of the record."""
    return record_name


def reference_subject_name_strategy(
    ctx: SerializationContext | None, schema_ref: SchemaReference
) -> str | None:
    """The name of a reference: for Protobuf, the path of the imported file."""
    return schema_ref.name


def _needed(ctx: SerializationContext | None) -> SerializationContext:
    if ctx is None:
        raise ValueError("the subject has the topic's name: pass a SerializationContext")
    return ctx


def _no_subject(ctx: SerializationContext | None, record_name: str | None) -> str | None:
    raise SerializationError(f"no subject is associated with topic {_needed(ctx).topic!r}")


_BY_TYPE: Mapping[SubjectNameStrategyType, SubjectNameStrategy] = {
    SubjectNameStrategyType.NONE: _no_subject,
    SubjectNameStrategyType.TOPIC: topic_subject_name_strategy,
    SubjectNameStrategyType.RECORD: record_subject_name_strategy,
    SubjectNameStrategyType.TOPIC_RECORD: topic_record_subject_name_strategy,
}
_FALLBACK = "subject.name.strategy.fallback.type"


def chosen_strategy(function: Any, kind: Any, conf: Any) -> SubjectNameStrategy:
    """The strategy of the settings `subject.name.strategy`, `.type` and `.conf`. Raises
    InvalidSetting.

    No subjects are associated with topics here, so the type ASSOCIATED means what `conf` names for
    that case.
    """
    if function is not None:
        if not callable(function):
            raise InvalidSetting(
                "subject.name.strategy must be callable", key="subject.name.strategy"
            )
        strategy: SubjectNameStrategy = function
        return strategy
    key = "subject.name.strategy.type"
    chosen = _strategy_type(kind or SubjectNameStrategyType.ASSOCIATED, key)
    if chosen is SubjectNameStrategyType.NONE:
        raise InvalidSetting(f"{key} NONE names no subject", key=key)
    if chosen is SubjectNameStrategyType.ASSOCIATED:
        chosen = _strategy_type(
            (conf or {}).get(_FALLBACK, SubjectNameStrategyType.TOPIC), _FALLBACK
        )
        if chosen is SubjectNameStrategyType.ASSOCIATED:
            raise InvalidSetting(
                f"{_FALLBACK} must be another strategy than ASSOCIATED", key=_FALLBACK
            )
    return _BY_TYPE[chosen]


def _strategy_type(kind: Any, key: str) -> SubjectNameStrategyType:
    try:
        return SubjectNameStrategyType(str(getattr(kind, "value", kind)).upper())
    except ValueError:
        known = ", ".join(SubjectNameStrategyType.__members__)
        raise InvalidSetting(
            f"invalid {key} {str(kind)[:60]!a}: use one of {known}", key=key
        ) from None
