"""Compares a value with what a reader makes of its stored form, so that no accepted value changes
on the way.
"""

from __future__ import annotations

import datetime
import enum
import math
from collections.abc import Iterable
from itertools import chain
from typing import Any, TypeAlias

Place: TypeAlias = tuple[str | int, ...]
"""A part of a value: the keys and indexes that lead there."""

_CHANGED = (
    "would be read back as another value; give it a value of its own type, and validators that "
    "accept their result"
)

_PLAIN = frozenset((int, str, bool, float, bytes, type(None)))
"""Types whose equal values are the same, and which most values have."""

_MISSING = object()
"""Stands for a field of an instance that was never validated, or lost the field since."""


def difference(read: object, given: Any, place: Place = ()) -> tuple[Place, str] | None:
    """Where and how a value that was read differs from the one given; None if they are equal.

    Models are equal if their fields are: private attributes are not part of a value, and a subclass
    without more fields is read back as the model. NaN equals NaN, and times are equal if they are
    the same instant.
    """
    kind = type(read)
    if kind is type(given) and kind in _PLAIN and read == given:
        return None
    if hasattr(read, "model_fields_set"):
        return _model_difference(read, given, place)
    pairs: Iterable[tuple[str | int, object, object]]
    if isinstance(read, dict) and isinstance(given, dict) and read.keys() == given.keys():
        pairs = [(name, value, given[name]) for name, value in read.items()]
    elif (
        isinstance(read, list | tuple) and isinstance(given, type(read)) and len(read) == len(given)
    ):
        pairs = [(i, value, given[i]) for i, value in enumerate(read)]
    else:
        return None if _is_same(read, given) else (place, _CHANGED)
    return _first((value, other, (*place, name)) for name, value, other in pairs)


def _model_difference(read: Any, given: Any, place: Place) -> tuple[Place, str] | None:
    model, found = type(read), type(given)
    if not isinstance(given, model):
        return place, f"is no instance of {model.__name__}"
    if model.__pydantic_root_model__:
        return difference(read.root, given.root, place)
    names = model.__pydantic_fields__.keys()
    extra = (given.__pydantic_extra__ or {}).keys() - (read.__pydantic_extra__ or {}).keys()
    if lost := sorted((found.__pydantic_fields__.keys() - names) | extra):
        reason = (
            f"{found.__name__} has the field {lost[0]!r}, which {model.__name__} does not have and "
            "would lose"
        )
        return (*place, lost[0]), f"{reason}; annotate the field with {found.__name__}"
    fields = (
        (getattr(read, name), getattr(given, name, _MISSING), (*place, name)) for name in names
    )
    extras = (read.__pydantic_extra__ or {}).items()
    return _first(
        chain(
            fields,
            ((value, given.__pydantic_extra__[name], (*place, name)) for name, value in extras),
        )
    )


def _first(pairs: Iterable[tuple[object, object, Place]]) -> tuple[Place, str] | None:
    for read, given, place in pairs:
        found = difference(read, given, place)
        if found is not None:
            return found
    return None


def _is_same(read: object, given: object) -> bool:
    if isinstance(given, enum.Enum) and not isinstance(read, enum.Enum):
        given = given.value  # a default under `use_enum_values`, which pydantic leaves as it is
    return _comparable(read) == _comparable(given)


def _comparable(value: object) -> object:
    """A value as one that equals another of the same meaning."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # Python finds times in two zones unequal if one of them is within an hour that a zone skips
        # or repeats.
        return value.astimezone(datetime.UTC)
    if isinstance(value, set | frozenset):
        return {_comparable(item) for item in value}
    return value
