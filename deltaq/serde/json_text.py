"""JSON as text: written without spaces, read strictly."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import NoReturn

_LONG_DIGITS_MAX = 20  # those of a 64-bit number and its sign

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?")
_NOT_ZERO = re.compile("[^1-9eE]*[1-9]")  # a digit before the exponent

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


class JsonFloat(float):
    """A number of JSON that is not an integer, with its text: a decimal may have more digits."""

    __slots__ = ("text",)
    text: str

    def __repr__(self) -> str:
        return self.text


def typed_json(text: str | bytes, *, finite: bool = False) -> object:
    """As `strict_json`, for values that may be decimals: a float that Python would write in another
    way is a `JsonFloat`. Unless all must be `finite`, it may be infinite or too small.
    """
    decoder = _FINITE if finite else _TYPED
    try:
        return decoder.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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
    """The float that is nearest to the text. ValueError for one beyond all floats, and for one that
    is not 0 and so small that its float is.
    """
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text:.40} is infinite")
    if not number and _NOT_ZERO.match(text):
        raise ValueError(f"the number {text:.40} is too small for a float")
    return number


def decimal_of_text(text: str) -> Decimal:
    """The decimal that stands in a text of digits 0 to 9. Raises ValueError."""
    if not _DECIMAL.fullmatch(stripped := text.strip()):
        raise ValueError(f"{text:.40} is no decimal")
    return Decimal(stripped)


def decimal_of_float(number: float) -> Decimal:
    """The decimal that a float of `typed_json` was written as. Raises ValueError."""
    return decimal_of_text(repr(number))


def _typed_float(text: str) -> float:
    if repr(number := float(text)) == text:
        return number
    found = JsonFloat(number)
    found.text = text
    return found


def _finite_typed_float(text: str) -> float:
    finite_float(text)
    return _typed_float(text)


_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_int=_long,
    parse_float=finite_float,
)
_TYPED = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_int=_long,
    parse_float=_typed_float,
)
_FINITE = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_int=_long,
    parse_float=_finite_typed_float,
)
_EXACT = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_int=JsonNumber,
    parse_float=JsonNumber,
)
