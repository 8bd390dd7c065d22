"""The validators of `jsonschema`, with a limit of their work: each keyword spends steps, and those
whose time grows faster than the value are replaced. A schema of 28 definitions can have 2^28
keywords to judge for a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.validators import Draft201909Validator, extend
from referencing.jsonschema import specification_with

from deltaq.schema_registry import json_unevaluated
from deltaq.schema_registry.json_patterns import is_found
from deltaq.schema_registry.work import TooMuchWork, remember, spend

_Keyword = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]

UNEVALUATED_NAME_CHARS_MAX = 1_000
_MESSAGE_CHARS = 500
_CHARS_PER_STEP = 250
_NAMES_PER_STEP = 16
_MATCHES_PER_STEP = 2
_PARTS_PER_STEP = 4
_VALUES_PER_STEP = 64
_IDENTITIES_PER_STEP = 2
_COMPARED_MAX = 8
_DECIMAL_DIGITS_MAX = 1_000
_MISSING = object()
_DEPENDENCIES = frozenset(("dependencies", "dependentRequired"))
"""Keywords with a list of names for a name."""
_SUBSCHEMAS = frozenset(("allOf", "anyOf", "oneOf"))
"""Keywords that judge the value by each of their parts."""


@lru_cache(maxsize=16)
def limited_validator(draft: Any) -> Any:
    """The validator of a draft, whose keywords spend steps of `work.limited_work`. It raises
    TooMuchWork.
    """
    is_2019 = draft is Draft201909Validator
    own = {
        "$dynamicRef": _reference,
        "$ref": _reference,
        "additionalProperties": _additional_properties,
        "anyOf": _any_of,
        "const": _const,
        "contains": _measured_contains(draft.VALIDATORS.get("contains")),
        "enum": _enum,
        "if": _if,
        "multipleOf": _multiple_of,
        "not": _not,
        "oneOf": _one_of,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "type": _type,
        "unevaluatedItems": partial(json_unevaluated.unevaluated_items, is_2019=is_2019),
        "unevaluatedProperties": _checked_names(
            partial(json_unevaluated.unevaluated_properties, is_2019=is_2019)
        ),
        "uniqueItems": _unique_items,
    }
    keywords = {name: own.get(name, function) for name, function in draft.VALIDATORS.items()}
    limited = extend(draft, keywords)
    limited.descend = _descend
    limited.iter_errors = _iter_errors
    return limited


def _descend(
    self: Any,
    instance: Any,
    schema: Any,
    path: Any = None,
    schema_path: Any = None,
    resolver: Any = None,
) -> Iterator[ValidationError]:
    """The errors of a value by a part of the schema. The validator of the part is made once in a
    check; `jsonschema` makes it again for each value.
    """
    if schema is True:
        spend()
        return iter(())
    if schema is False:
        error = _nothing_allowed(instance)
        error.path.extend([] if path is None else [path])
        return iter((error,))
    key = id(schema), id(self._resolver if resolver is None else resolver), resolver is None
    part, keywords, _kept = remember(key, lambda: _part(self, schema, resolver))
    return _errors(part, keywords, instance, path)


def _iter_errors(self: Any, instance: Any, _schema: Any = None) -> Iterator[ValidationError]:
    """The errors of a value by the whole schema."""
    if isinstance(self.schema, bool):
        return iter(() if self.schema else (_nothing_allowed(instance),))
    return _errors(self, _keywords_of(self), instance, None)


def _part(validator: Any, schema: Any, resolver: Any) -> tuple[Any, list[Any], Any]:
    """The validator of a part of its schema, its keywords, and what has to stay alive with them."""
    kept = validator._resolver if resolver is None else resolver
    if resolver is None and ("$id" in schema or "id" in schema):
        specification = specification_with(validator.ID_OF(validator.META_SCHEMA))
        resolver = kept.in_subresource(specification.create_resource(schema))
    part = validator.evolve(schema=schema, _resolver=kept if resolver is None else resolver)
    return part, _keywords_of(part), kept


def _keywords_of(part: Any) -> list[tuple[_Keyword, str, Any, int]]:
    """The keywords of a part, with the steps that each takes."""
    return [(*found, _steps_of(*found[1:])) for found in part._validators]


def _steps_of(name: str, value: Any) -> int:
    """What a keyword takes beside the keywords in its parts."""
    if not isinstance(value, dict | list) or isinstance(value, Enumeration):
        return 1
    if isinstance(value, dict) and name in _DEPENDENCIES:
        names = sum(len(each) for each in value.values() if isinstance(each, list))
        return 1 + (len(value) + names) // _NAMES_PER_STEP
    return 1 + len(value) // (_PARTS_PER_STEP if name in _SUBSCHEMAS else _NAMES_PER_STEP)


def _errors(part: Any, keywords: list[Any], instance: Any, path: Any) -> Iterator[ValidationError]:
    spend()  # a part without keywords takes time, too
    schema = part.schema
    for function, keyword, value, steps in keywords:
        spend(steps)
        for error in function(part, value, instance, schema) or ():
            # Errors of the parts keep what they have.
            error._set(
                validator=keyword,
                validator_value=value,
                instance=instance,
                schema=schema,
                type_checker=part.TYPE_CHECKER,
            )
            # Some errors show the value and the schema.
            spend(1 + len(error.message) // _CHARS_PER_STEP)
            error.message = error.message[:_MESSAGE_CHARS]
            if path is not None:
                error.path.appendleft(path)
            yield error


def _is_valid(validator: Any, instance: Any, part: Any) -> bool:
    return next(validator.descend(instance, part), None) is None


def _nothing_allowed(instance: Any) -> ValidationError:
    return ValidationError(
        "no value is allowed", validator=None, validator_value=None, instance=instance, schema=False
    )


def _reference(
    validator: Any, reference: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    kept = validator._resolver
    found, _ = remember((id(kept), reference), lambda: (kept.lookup(reference), kept))
    errors: Iterator[ValidationError] = validator.descend(
        instance, found.contents, resolver=found.resolver
    )
    return errors


def _any_of(validator: Any, parts: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    possible = _possible(validator, parts, instance)
    if not any(_is_valid(validator, instance, part) for part in possible):
        yield _none_of(validator, parts, instance)


def _one_of(validator: Any, parts: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    possible = _possible(validator, parts, instance)
    valid = (part for part in possible if _is_valid(validator, instance, part))
    if next(valid, _MISSING) is _MISSING:
        yield _none_of(validator, parts, instance)
    elif next(valid, _MISSING) is not _MISSING:
        yield ValidationError("the value conforms to more than one schema of oneOf")


def _possible(validator: Any, parts: list[Any], instance: Any) -> list[Any]:
    """The parts without those that want another constant for a property of the value: of a union
    of objects with a kind each, the rest is one.
    """
    if not isinstance(instance, dict):
        return parts
    kept = validator._resolver
    constants, *_ = remember(
        (id(parts), id(kept)), lambda: ([_constant(validator, part) for part in parts], parts, kept)
    )
    return [
        part
        for part, (name, constant) in zip(parts, constants, strict=True)
        if constant is None or instance.get(name, constant) == constant
    ]


def _constant(validator: Any, part: Any) -> tuple[str, str | None]:
    """A property and the text that it has to be; None without one."""
    if isinstance(part, dict) and "$ref" in part and not part.keys() & {"$id", "id"}:
        part = validator._resolver.lookup(part["$ref"]).contents
    properties = part.get("properties", {}) if isinstance(part, dict) and "$ref" not in part else {}
    spend(len(properties) // _NAMES_PER_STEP)
    for name, subschema in properties.items():
        is_alone = isinstance(subschema, dict) and "$ref" not in subschema
        constant = subschema.get("const") if is_alone else None
        if isinstance(constant, str) and "const" in validator.VALIDATORS:
            return name, constant
    return "", None


def _none_of(validator: Any, parts: Any, instance: Any) -> ValidationError:
    context = [error for part in parts for error in validator.descend(instance, part)]
    return ValidationError(f"{_shown(instance)} conforms to none of the schemas", context=context)


def _shown(value: Any) -> str:
    """The value in an error about a schema. An error about a value does not show it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(value[:100] if isinstance(value, str) else value)


def _if(validator: Any, condition: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    branch = schema.get("then" if _is_valid(validator, instance, condition) else "else", True)
    errors: Iterator[ValidationError] = validator.descend(instance, branch)
    return errors


def _type(validator: Any, types: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    listed = [types] if isinstance(types, str) else types
    if not any(validator.is_type(instance, each) for each in listed):
        yield ValidationError(f"{_shown(instance)} is not of type {', '.join(map(str, listed))}")


def _measured_contains(contains: _Keyword | None) -> _Keyword:
    def measured(
        validator: Any, part: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        if contains is None:
            return None
        spend(len(instance) // _PARTS_PER_STEP if isinstance(instance, list) else 0)
        return contains(validator, part, instance, schema)

    return measured


def _checked_names(unevaluated: _Keyword) -> _Keyword:
    """It matches the patterns of all parts by itself, so `json_format` refuses those of much
    work.
    """

    def checked(
        validator: Any, allowed: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        names = instance if isinstance(instance, dict) else ()
        if max(map(len, names), default=0) > UNEVALUATED_NAME_CHARS_MAX:
            reason = (
                f"a name of more than {UNEVALUATED_NAME_CHARS_MAX} characters beside "
                "unevaluatedProperties"
            )
            raise TooMuchWork(reason)
        return unevaluated(validator, allowed, instance, schema)

    return checked


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not is_found(pattern, instance):
        yield ValidationError(f"the text does not match {pattern!r:.200}")


def _pattern_properties(
    validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            spend(len(instance) // _MATCHES_PER_STEP)
            for key, value in instance.items():
                if is_found(pattern, key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    spend(len(instance) // _NAMES_PER_STEP)
    extra = [key for key in instance if key not in named]
    if patterns:
        spend(len(extra) * len(patterns) // _MATCHES_PER_STEP)
        extra = [key for key in extra if not any(is_found(pattern, key) for pattern in patterns)]
    if validator.is_type(additional, "object"):
        for key in extra:
            yield from validator.descend(instance[key], additional, path=key)
    elif not additional and extra:
        listed = ", ".join(map(repr, sorted(extra)[:10]))
        verb = "was" if len(extra) == 1 else "were"
        yield ValidationError(
            f"Additional properties are not allowed ({listed:.300} {verb} unexpected)"
        )


def _unique_items(
    validator: Any, is_unique: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if is_unique and validator.is_type(instance, "array"):
        spend(len(instance) // _IDENTITIES_PER_STEP)
        if len(set(map(_identity, instance))) < len(instance):
            yield ValidationError("it has non-unique elements")


def _not(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if _is_valid(validator, instance, part):
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
        spend(len(value) // _IDENTITIES_PER_STEP)
        return dict, frozenset((key, _identity(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        spend(len(value) // _IDENTITIES_PER_STEP)
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
