"""The validators of `jsonschema`, with a limit of their work: each keyword spends steps, and those
whose time grows faster than the value are replaced. A schema of 28 definitions can have 2^28
keywords to judge for a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.validators import Draft201909Validator, extend

from deltaq.schema_registry import json_unevaluated
from deltaq.schema_registry.json_patterns import is_found
from deltaq.schema_registry.work import TooMuchWork, spend

_Keyword = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]

UNEVALUATED_NAME_CHARS_MAX = 1_000
_MESSAGE_CHARS = 500
_CHARS_PER_STEP = 2_000
_NAMES_PER_STEP = 16
_PARTS_PER_STEP = 4
_VALUES_PER_STEP = 64
_COMPARED_MAX = 8
_DECIMAL_DIGITS_MAX = 1_000
_JUDGE_PARTS = frozenset(
    (
        *(
            "$ref",
            "$dynamicRef",
            "$recursiveRef",
            "allOf",
            "if",
            "dependentSchemas",
        ),
        *("items", "prefixItems", "additionalItems", "properties", "propertyNames"),
        "patternProperties",
    )
)
"""Keywords whose errors are those of other keywords."""
_SUBSCHEMAS = frozenset(("allOf", "anyOf", "oneOf"))
"""Keywords that judge the value by each of their parts."""


@lru_cache(maxsize=16)
def limited_validator(draft: Any) -> Any:
    """The validator of a draft, whose keywords spend steps of `work.limited_work`. It raises
    TooMuchWork.
    """
    is_2019 = draft is Draft201909Validator
    own = {
        "additionalProperties": _additional_properties,
        "const": _const,
        "enum": _enum,
        "multipleOf": _multiple_of,
        "not": _not,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "unevaluatedItems": json_unevaluated.unevaluated_items_2019
        if is_2019
        else json_unevaluated.unevaluated_items,
        "unevaluatedProperties": json_unevaluated.unevaluated_properties_2019
        if is_2019
        else json_unevaluated.unevaluated_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {
        name: _limited(name, own.get(name, function)) for name, function in draft.VALIDATORS.items()
    }
    limited = extend(draft, keywords)
    limited.descend = _counting(limited.descend)
    limited.iter_errors = _without_text(limited.iter_errors)
    return limited


def _counting(descend: Any) -> Any:
    """The method that goes to a part of the schema, with a step for each: a part without keywords
    takes time, too.
    """

    def counting(
        self: Any,
        instance: Any,
        schema: Any,
        path: Any = None,
        schema_path: Any = None,
        resolver: Any = None,
    ) -> Iterator[ValidationError]:
        if schema is False:
            error = _nothing_allowed(instance)
            error.path.extend([] if path is None else [path])
            return iter((error,))
        spend()
        errors: Iterator[ValidationError] = descend(
            self, instance, schema, path, schema_path, resolver
        )
        return errors

    return counting


def _without_text(iter_errors: Any) -> Any:
    """The method that judges a value, without the text of the value in the error of `false`."""

    def judging(self: Any, instance: Any, _schema: Any = None) -> Iterator[ValidationError]:
        if self.schema is False:
            return iter((_nothing_allowed(instance),))
        errors: Iterator[ValidationError] = iter_errors(self, instance)
        return errors

    return judging


def _nothing_allowed(instance: Any) -> ValidationError:
    return ValidationError(
        "no value is allowed", validator=None, validator_value=None, instance=instance, schema=False
    )


def _limited(name: str, function: _Keyword) -> _Keyword:
    """A keyword that spends steps. Errors show the value and the schema, so their texts are cut."""

    def counted(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        spend(_steps_of(name, value, instance))
        return function(validator, value, instance, schema)

    def shortened(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        errors = counted(validator, value, instance, schema)
        return None if errors is None else _shortened(errors)

    def parts(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        # Without a part, the error is of this keyword and shows the value.
        judge = shortened if value is False else counted
        return judge(validator, value, instance, schema)

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
    return parts if name in _JUDGE_PARTS else shortened


def _steps_of(name: str, value: Any, instance: Any) -> int:
    """What a keyword takes beside the keywords in its parts."""
    if name == "contains" and isinstance(instance, list):
        return 1 + len(instance) // _PARTS_PER_STEP
    if not isinstance(value, dict | list) or isinstance(value, Enumeration):
        return 1
    return 1 + len(value) // (_PARTS_PER_STEP if name in _SUBSCHEMAS else _NAMES_PER_STEP)


def _shortened(errors: Iterator[ValidationError]) -> Iterator[ValidationError]:
    for error in errors:
        spend(1 + len(error.message) // _CHARS_PER_STEP)
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
            spend(len(instance) // _NAMES_PER_STEP)
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
        spend(len(extra) * len(patterns) // _NAMES_PER_STEP)
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
        and len(set(map(_identity, instance))) < len(instance)
    ):
        yield ValidationError("it has non-unique elements")


def _not(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.evolve(schema=part).is_valid(instance):
        yield ValidationError("the value conforms to the schema of not")


def _const(validator: Any, const: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not _is_equal(instance, const):
        yield ValidationError("the value is another one than that of const")


def _enum(validator: Any, enums: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    is_listed = (
        enums.holds(instance)
        if isinstance(enums, Enumeration)
        else any(_is_equal(instance, each) for each in enums)
    )
    if not is_listed:
        yield ValidationError("the value is none of the enumeration")


class Enumeration(list[Any]):
    """The values of `enum`, which are compared with many values."""

    def __init__(self, values: Sequence[Any]) -> None:
        super().__init__(values)
        self._identities = frozenset(map(_identity, values))
        self._of_shape: dict[Any, list[Any]] = {}
        for value in values:
            self._of_shape.setdefault(_shape(value), []).append(value)

    def holds(self, value: Any) -> bool:
        """Whether a value is the same as one of these to JSON Schema."""
        candidates = self._of_shape.get(_shape(value), ())
        if len(candidates) <= _COMPARED_MAX:
            return any(_is_equal(value, each) for each in candidates)
        return _identity(value) in self._identities


def _shape(value: Any) -> Any:
    """What is quick to tell of a value, and the same for equal ones."""
    if isinstance(value, list | tuple):
        return list, len(value)
    return (dict, len(value)) if isinstance(value, dict) else isinstance(value, str)


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are the same to JSON Schema."""
    if one is other:
        return True
    if isinstance(one, list | tuple):
        if not isinstance(other, list | tuple) or len(one) != len(other):
            return False
        spend(len(one) // _VALUES_PER_STEP)
        return all(map(_is_equal, one, other))
    if isinstance(one, dict):
        if not isinstance(other, dict) or len(one) != len(other):
            return False
        spend(len(one) // _VALUES_PER_STEP)
        return all(key in other and _is_equal(part, other[key]) for key, part in one.items())
    return not isinstance(one, bool) and not isinstance(other, bool) and bool(one == other)


def _identity(value: Any) -> Any:
    """What equal values of JSON have in common: true and 1 are different, 1 and 1.0 are not."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, int):
        return float, f"{value:x}/1"
    if isinstance(value, float | Decimal):
        return float, _number_text(value)
    if isinstance(value, dict):
        spend(len(value) // _VALUES_PER_STEP)
        return dict, frozenset((key, _identity(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        spend(len(value) // _VALUES_PER_STEP)
        return list, tuple(map(_identity, value))
    return value


def _number_text(number: float | Decimal) -> str:
    """A text that only equal numbers have. Numbers themselves can be chosen so that all have the
    same hash.
    """
    if isinstance(number, Decimal) and abs(number.adjusted()) >= _DECIMAL_DIGITS_MAX:
        return str(number)
    try:
        numerator, denominator = number.as_integer_ratio()
    except (ValueError, OverflowError):  # of what is no number, or infinite
        return str(number)
    return f"{numerator:x}/{denominator:x}"


def _multiple_of(
    validator: Any, divisor: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "number") and not _is_multiple(instance, divisor):
        yield ValidationError("the number is no multiple of that of multipleOf")


def _is_multiple(number: Any, divisor: Any) -> bool:
    """Whether a number is a multiple, as `jsonschema` decides it; infinite numbers are none."""
    try:
        if not isinstance(divisor, float):
            return not number % divisor
        quotient = number / divisor
        return bool(int(quotient) == quotient)
    except (ArithmeticError, ValueError, TypeError):
        pass
    try:
        # For numbers that float cannot hold.
        exact = Fraction(number) / Fraction(divisor)
    except (ArithmeticError, ValueError, TypeError):
        return False
    return exact.denominator == 1
