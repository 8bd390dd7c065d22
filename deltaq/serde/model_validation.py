"""Validation by a user's model: every exception of its validators becomes an error of validation,
by field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import pydantic
from pydantic_core import PydanticCustomError

from deltaq.serde.json_text import compact_json

Validated = TypeVar("Validated")

Parts: TypeAlias = Mapping[str | None, Any]
"""The input of a validation with one field only, by the name of that field; that without fields for
None.
"""

VALIDATOR_ERROR: Final = "validator_error"
"""The type of the error of a validator that raised something else than ValueError and
AssertionError.
"""


def validated(
    validate: Callable[..., Validated], given: Any, parts: Callable[[Any], Parts], /, **how: Any
) -> Validated:
    """What `validate` makes of `given`, with the arguments `how`.

    Raises ValidationError. pydantic has one for ValueError and AssertionError, and passes any other
    exception of a validator on; this function chains it to a ValidationError of the field whose
    validator raises it.
    """
    try:
        return validate(given, **how)
    except pydantic.ValidationError:
        raise
    except Exception as error:
        # The message of the exception may hold the value: `KeyError` has nothing else.
        problem = PydanticCustomError(
            VALIDATOR_ERROR, "A validator raised {name}", {"name": type(error).__name__}
        )
        place = _raising(validate, parts(given), how)
        line: Any = {"type": problem, "loc": () if place is None else (place,), "input": given}
        raise pydantic.ValidationError.from_exception_data(
            "model", [line], hide_input=True
        ) from error


def python_parts(given: Any) -> Parts:
    """The parts of a dict."""
    if not isinstance(given, Mapping):
        return {}
    return {None: {}, **{str(name): {name: value} for name, value in given.items()}}


def json_parts(text: bytes | str) -> Parts:
    """The parts of a JSON object."""
    parts = python_parts(json.loads(text))
    return {name: compact_json(part) for name, part in parts.items()}


def _raising(validate: Callable[..., object], parts: Parts, how: Mapping[str, Any]) -> str | None:
    """The field whose validators raise something else than a ValidationError; None if that cannot
    be found out.
    """
    for name, part in parts.items():
        try:
            validate(part, **how)
        except pydantic.ValidationError:
            continue  # other fields are missing
        except Exception:  # noqa: BLE001 - any, because a user wrote the validator
            return name
    return None
