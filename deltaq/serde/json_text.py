"""JSON as text: written without spaces, read strictly."""

from __future__ import annotations

import json
import math
from typing import NoReturn

_LONG_DIGITS_MAX = 20  # those of a 64-bit number and its sign

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def compact_json(value: object) -> str:
    """JSON without spaces. ValueError for NaN and infinities."""
    return _ENCODER.encode(value)


def strict_json(text: str | bytes) -> object:
    """Parse JSON. ValueError for repeated keys, NaN, infinities, integers of more than 64 bits and
    very deep nesting.

    Other programs may read such JSON differently, so deltaq must not act on it.
    """
    try:
        return _STRICT.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class JsonNumber(str):
    """The text of a number of JSON."""

    __slots__ = ()


def exact_json(text: bytes) -> object:
    """As `strict_json`, but numbers, which may have any size, stay text, a `JsonNumber`."""
    try:
        return _EXACT.decode(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _long(digits: str) -> int:
    # The length is checked first: Python converts long numbers in quadratic time, or refuses them
    # with its own error.
    if len(digits) > _LONG_DIGITS_MAX or not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError(f"the number {digits:.40} does not fit 64 bits")
    return number


def finite_float(text: str) -> float:
    """The float that is nearest to the text. ValueError for one beyond all floats."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text:.40} is infinite")
    return number


_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_int=_long,
    parse_float=finite_float,
)
_EXACT = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_int=JsonNumber,
    parse_float=JsonNumber,
)
