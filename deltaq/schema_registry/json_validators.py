"""The validators of `jsonschema`, with a limit of their work: each keyword spends steps, and those
whose time grows faster than the value are replaced. A schema of 28 definitions can have 2^28
keywords to judge for a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from deltaq.schema_registry.json_patterns import is_found
from deltaq.schema_registry.work import TooMuchWork, spend

_Keyword = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]

UNEVALUATED_NAME_CHARS_MAX = 1_000
_CONTAINERS: frozenset[type] = frozenset((dict, list))
_MESSAGE_CHARS = 500
_CHARS_PER_STEP = 10_000
_NAMES_PER_STEP = 16
_JUDGE_PARTS = frozenset(
    (
        *(
            "$ref",
            "$dynamicRef",
            "$recursiveRef",
            "allOf",
            "if",
            "dependencies",
            "dependentSchemas",
        ),
        *("items", "prefixItems", "additionalItems", "properties", "propertyNames"),
    )
)
"""Keywords whose errors are those of other keywords."""


@lru_cache(maxsize=16)
def limited_validator(draft: Any) -> Any:
    """The validator of a draft, whose keywords spend steps of `work.limited_work`. It raises
    TooMuchWork.
    """
    keywords = {name: _limited(name, function) for name, function in draft.VALIDATORS.items()}
    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
    }
    keywords |= {
        name: _limited(name, function) for name, function in own.items() if name in keywords
    }
    if "additionalProperties" in keywords:
        keywords["additionalProperties"] = _limited("additionalProperties", _additional_properties)
    return extend(draft, keywords)


def _limited(name: str, function: _Keyword) -> _Keyword:
    """A keyword that spends steps. Errors show the value, so their texts are cut."""

    def counted(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        spend(1 + len(value) // _NAMES_PER_STEP if type(value) in _CONTAINERS else 1)
        return function(validator, value, instance, schema)

    def shortened(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        errors = counted(validator, value, instance, schema)
        is_long = type(instance) in _CONTAINERS or (
            type(instance) is str and len(instance) > _MESSAGE_CHARS
        )
        return _shortened(errors) if is_long and errors is not None else errors

    def unevaluated(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        # It matches the patterns of all parts by itself, so `json_format` refuses those of much
        # work.
        if (
            isinstance(instance, dict)
            and max(map(len, instance), default=0) > UNEVALUATED_NAME_CHARS_MAX
        ):
            reason = (
                f"a name of more than {UNEVALUATED_NAME_CHARS_MAX} characters beside "
                "unevaluatedProperties"
            )
            raise TooMuchWork(reason)
        return counted(validator, value, instance, schema)

    if name == "unevaluatedProperties":
        return unevaluated
    return counted if name in _JUDGE_PARTS or function is _pattern_properties else shortened


def _shortened(errors: Iterator[ValidationError]) -> Iterator[ValidationError]:
    for error in errors:
        spend(len(error.message) // _CHARS_PER_STEP)
        error.message = error.message[:_MESSAGE_CHARS]
        yield error


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not is_found(pattern, instance):
        yield ValidationError(f"the text does not match {pattern!r:.200}")


def _pattern_properties(
    validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for key, value in instance.items():
                if is_found(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [key for key in instance if key not in named]
    if patterns:
        extra = [key for key in extra if not any(is_found(pattern, key) for pattern in patterns)]
    if validator.is_type(additional, "object"):
        for key in extra:
            yield from validator.descend(instance[key], additional, path=key)
    elif not additional and extra:
        listed, verb = (
            ", ".join(map(repr, sorted(extra)[:10])),
            "was" if len(extra) == 1 else "were",
        )
        yield ValidationError(
            f"Additional properties are not allowed ({listed:.300} {verb} unexpected)"
        )


def _unique_items(
    validator: Any, is_unique: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if (
        is_unique
        and validator.is_type(instance, "array")
        and len({_identity(item) for item in instance}) < len(instance)
    ):
        yield ValidationError("it has non-unique elements")


def _identity(value: Any) -> Any:
    """What equal values of JSON have in common: true and 1 are different, 1 and 1.0 are not."""
    if isinstance(value, Mapping):
        return "object", frozenset((key, _identity(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(map(_identity, value))
    return (bool, value) if isinstance(value, bool) else value
