"""JSON as text: written without spaces, read strictly."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn

_LONG_DIGITS_MAX = 20  # those of a 64-bit number and its sign

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?")
_NOT_ZERO = re.compile("[^1-9eE]*[1-9]")  # a digit before the exponent

_FINER_THAN_MICROSECONDS = re.compile(r"[.,]\d{7}")
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The texts that stand for numbers which JSON does not have."""

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def compact_json(value: object) -> str:
    """JSON without spaces. ValueError for NaN and infinities."""
    return _ENCODER.encode(value)


def strict_json(text: str | bytes) -> object:
    """Parse JSON. ValueError for repeated keys, NaN, infinities, integers of more than 64 bits and
    very deep nesting.

    Other programs may read such JSON differently, so deltaq must not act on it.
    """
    return _decoded(text, _STRICT)


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
    return _decoded(text, _FINITE if finite else _TYPED)


def exact_json(text: bytes) -> object:
    """As `strict_json`, but numbers, which may have any size, stay text, a `JsonNumber`."""
    return _decoded(text, _EXACT)


def _decoded(text: str | bytes, decoder: json.JSONDecoder) -> object:
    try:
        return decoder.decode(text if isinstance(text, str) else text.decode())
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


def decimal_of_json(value: object) -> object:
    """The decimal that a number or a text of `typed_json` stands for; any other value as it is.
    Raises ValueError.
    """
    if isinstance(value, float):
        return decimal_of_float(value)
    if isinstance(value, str):
        return decimal_of_text(value)
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value


def bytes_of_json(value: Any) -> Any:
    """The bytes that a text or {"base64": text} stands for; any other value as it is. Raises
    ValueError.
    """
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else value


def check_microseconds(text: str) -> None:
    """Raises ValueError for a time with parts of a microsecond, which Python would cut."""
    if _FINER_THAN_MICROSECONDS.search(text):
        raise ValueError(f"{text:.40} is finer than microseconds")


def parse_time(text: str) -> datetime:
    """A time in ISO 8601, in UTC unless it says otherwise. Raises ValueError for other text, and
    for parts of a microsecond.
    """
    check_microseconds(text)
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _typed_float(text: str) -> float:
    if repr(number := float(text)) == text:
        return number
    found = JsonFloat(number)
    found.text = text
    return found


def _finite_typed_float(text: str) -> float:
    finite_float(text)
    return _typed_float(text)


def _decoder(
    parse_int: Callable[[str], Any], parse_float: Callable[[str], Any]
) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_unique_keys,
        parse_constant=_no_constant,
        parse_int=parse_int,
        parse_float=parse_float,
    )


_STRICT = _decoder(_long, finite_float)
_TYPED = _decoder(_long, _typed_float)
_FINITE = _decoder(_long, _finite_typed_float)
_EXACT = _decoder(JsonNumber, JsonNumber)
