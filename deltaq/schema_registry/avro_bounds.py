"""Whether a native decoder can be trusted with an Avro payload: its depth and its number of values
have a limit.

A decoder recurses with each record, array and map, and reads as many items as an array says it has.
Where the schema bounds the depth and each item takes a byte, the length of the payload bounds all
of that, and nothing is checked. Otherwise `check_payload` walks over the bytes first, without
recursion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaq.schema_registry.work import VALUE_DEPTH_MAX, OutOfBounds

FREE_VALUES_MAX = 1_000_000
"""Values of one payload that take no byte in it: nulls, records without fields, and defaults of the
reader, whose texts count for each 64 characters.
"""
CHECKED_VALUES_MAX = 1_000_000
"""Values of one payload that is walked through: a few seconds."""
DECIMAL_DIGITS_MAX = 1_000
_DECIMAL_BYTES_MAX = 416
"""Of these digits. The time of converting a number grows with the square of its length."""
_VARINT_BYTES_MAX = 10
_MASK = (1 << 64) - 1

_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBER, _SIZED, _TEXT, _ENUM, _DECIMAL, _RECORD, _UNION, _ARRAY, _MAP = range(9)
_VARIABLE = -1
_CONTAINERS = frozenset((_RECORD, _ARRAY, _MAP))


@dataclass(slots=True, eq=False)
class _Type:
    """A type of the schema. `size` is that of values that all have the same number of bytes,
    `count` that of an enum's symbols and a decimal's digits, `is_free` says whether values can have
    none.
    """

    kind: int
    parts: list[_Type] = field(default_factory=list)
    size: int = 0
    count: int = 0
    is_free: bool = False


@dataclass(frozen=True, slots=True)
class _ValueCost:
    """What a value of a type costs. `least` is its smallest number of bytes, `free` the largest
    number of values in it that take none, apart from those in items of arrays and maps;
    `free_items` is the largest `free` of an item, and None for items of no bytes.
    """

    depth: int = 0
    least: int = 1
    free: int = 0
    free_items: int | None = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of all payloads of a schema. `is_recursive`: the schema does not bound the
    depth.
    """

    root: _Type
    is_recursive: bool
    cost: _ValueCost
    has_limits: bool
    """There are unions, enums or decimals, which `check_payload` checks, too."""

    def are_unknown(self, length: int, reader_free: int) -> bool:
        """Whether a payload of this many bytes has to be checked. `reader_free` is the largest
        number of values that the reader's schema adds to a record.
        """
        if self.is_recursive or self.cost.free_items is None:
            return True
        free = self.cost.free + length * self.cost.free_items
        # A byte is in so many records at most.
        records = free + self.cost.depth * length if reader_free else 0
        return free + records * reader_free > FREE_VALUES_MAX


def bounds_of(parsed: Any, named: Mapping[str, Any]) -> Bounds:
    """The bounds of a schema that fastavro has parsed. Raises ValueError for types that are nested
    too deeply, a record that contains itself in each value, and a decimal with too many digits.
    """
    found = _Compiler(named)
    root = found.compiled(parsed, 0)
    costs = _Costs()
    cost = costs.of(root)
    return Bounds(root, costs.is_recursive, cost, found.has_limits)


class _Compiler:
    """Makes types of a parsed schema. A named type is made once."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, _Type] = {}
        self.has_limits = False

    def compiled(self, schema: Any, depth: int) -> _Type:
        if depth > 2 * VALUE_DEPTH_MAX:  # unions count here, too
            raise ValueError(f"its types are nested more than {VALUE_DEPTH_MAX} levels deep")
        if isinstance(schema, list):
            self.has_limits = True
            return _Type(_UNION, [self.compiled(branch, depth + 1) for branch in schema])
        if isinstance(schema, str):
            if schema in self._made:
                return self._made[schema]
            schema = self._named.get(schema, {"type": schema})
        found = self._defined(schema, depth)
        self.has_limits |= found.kind in (_ENUM, _DECIMAL)
        return found

    def _defined(self, schema: Any, depth: int) -> _Type:
        match schema["type"]:
            case "record" | "error":
                made = self._made[schema["name"]] = _Type(_RECORD)
                made.parts = [self.compiled(each["type"], depth + 1) for each in schema["fields"]]
            case "array":
                made = _Type(_ARRAY, [self.compiled(schema["items"], depth + 1)])
            case "map":
                made = _Type(_MAP, [self.compiled(schema["values"], depth + 1)])
            case "fixed":
                made = self._made[schema["name"]] = _bytes_type(schema, _SIZED, int(schema["size"]))
            case "enum":
                made = self._made[schema["name"]] = _Type(_ENUM, count=len(schema["symbols"]))
            case "bytes":
                made = _bytes_type(schema, _TEXT, _VARIABLE)
            case "string":
                made = _Type(_TEXT)
            case list() as branches:
                made = self.compiled(branches, depth)
            case kind:
                size = _FIXED_SIZES.get(kind)
                made = _Type(_NUMBER) if size is None else _Type(_SIZED, size=size)
        return made


def _bytes_type(schema: Mapping[str, Any], kind: int, size: int) -> _Type:
    if schema.get("logicalType") != "decimal":
        return _Type(kind, size=size)
    digits = schema.get("precision") or 0
    if max(digits, schema.get("scale") or 0) > DECIMAL_DIGITS_MAX or size > _DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal has more than {DECIMAL_DIGITS_MAX} digits")
    return _Type(_DECIMAL, size=size, count=digits)


def has_digits(data: bytes | memoryview, digits: int) -> bool:
    """Whether the number of a decimal has at most so many digits."""
    return len(data) <= _DECIMAL_BYTES_MAX and abs(int.from_bytes(data, signed=True)) < 10**digits


class _Costs:
    """The costs of types, each worked out once."""

    def __init__(self) -> None:
        self._known: dict[int, _ValueCost | None] = {}
        self.is_recursive = False

    def of(self, kind: _Type) -> _ValueCost:
        if id(kind) in self._known:
            known = self._known[id(kind)]
            if known is None:
                self.is_recursive = True
            return known or _ValueCost()
        self._known[id(kind)] = None
        found = self._known[id(kind)] = self._worked_out(kind)
        kind.is_free = not found.least
        if found.depth > VALUE_DEPTH_MAX:
            raise ValueError(f"its types are nested more than {VALUE_DEPTH_MAX} levels deep")
        return found

    def _worked_out(self, kind: _Type) -> _ValueCost:
        parts = [self.of(part) for part in kind.parts]
        depth = max((part.depth for part in parts), default=0)
        items = [part.free_items for part in parts]
        free_items = (
            None if None in items else max((each for each in items if each is not None), default=0)
        )
        match kind.kind:
            case _k if _k in (_SIZED, _DECIMAL) and kind.size != _VARIABLE:
                return _ValueCost(0, kind.size, 0 if kind.size else 1)
            case _k if _k == _RECORD:
                least, free = sum(part.least for part in parts), sum(part.free for part in parts)
                return _ValueCost(depth + 1, least, free + (not least), free_items)
            case _k if _k == _UNION:
                return _ValueCost(
                    depth, 1, max((part.free for part in parts), default=0), free_items
                )
            case _k if _k in (_ARRAY, _MAP):
                is_free = kind.kind == _ARRAY and not parts[0].least
                most = None if is_free or free_items is None else max(free_items, parts[0].free)
                return _ValueCost(depth + 1, 1, 0, most)
        return _ValueCost()


def check_payload(data: bytes, bounds: Bounds, reader_free: int = 0) -> None:
    """Raises OutOfBounds, with the place in the payload, if it is nested too deeply or stands for
    too many values. The decoder itself refuses a payload that ends too early: it goes no further
    than this.
    """
    payload, free, count = _Payload(data), 0, 0
    # With its depth, and the items left of its block.
    waiting: list[tuple[_Type, int, int]] = [(bounds.root, 0, 0)]
    try:
        while waiting:
            kind, depth, items_left = waiting.pop()
            count += not items_left  # an array counts once, not again for each item
            if count > CHECKED_VALUES_MAX:
                raise TooManyValues(
                    f"byte {payload.position}: a payload of this schema has to be checked, and "
                    f"more than {CHECKED_VALUES_MAX} values are in it"
                )
            while kind.kind == _UNION:
                kind = kind.parts[payload.choice(len(kind.parts), "a union", "branch")]
            if kind.kind in _CONTAINERS and depth >= VALUE_DEPTH_MAX:
                raise OutOfBounds(
                    f"byte {payload.position}: it is nested more than {VALUE_DEPTH_MAX} levels deep"
                )
            if kind.kind == _RECORD:
                free += reader_free + (not kind.parts)
                waiting += [(part, depth + 1, 0) for part in reversed(kind.parts)]
            elif kind.kind in (_ARRAY, _MAP):
                items_left = items_left or payload.block()
                free += items_left if items_left > FREE_VALUES_MAX and kind.parts[0].is_free else 0
                if items_left:
                    waiting.append((kind, depth, items_left - 1))
                    waiting.append((kind.parts[0], depth + 1, 0))
                    if kind.kind == _MAP:
                        payload.skip_text()
            else:
                free += kind.is_free
                payload.pass_over(kind)
            if free > FREE_VALUES_MAX:
                raise OutOfBounds(
                    f"byte {payload.position}: more than {FREE_VALUES_MAX} values take no bytes"
                )
    except _DataEnded:
        return


class TooManyValues(OutOfBounds):
    """A payload takes too long to walk through."""


class _DataEnded(Exception):
    """The payload has no more bytes."""


class _Payload:
    """The bytes of a payload, of which each method passes over some. Raises OutOfBounds, and
    _DataEnded at the end.
    """

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def pass_over(self, kind: _Type) -> None:
        """A value without parts."""
        match kind.kind:
            case _k if _k == _SIZED:
                self.skip(kind.size)
            case _k if _k == _NUMBER:
                self.number()
            case _k if _k == _ENUM:
                self.choice(kind.count, "an enum", "symbol")
            case _k if _k == _DECIMAL:
                self.decimal(kind)
            case _:
                self.skip_text()

    def skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self._data):
            raise _DataEnded

    def number(self) -> int:
        data, start, number = self._data, self.position, 0
        if start < len(data) and (byte := data[start]) < 0x80:
            self.position = start + 1
            return (byte >> 1) ^ -(byte & 1)
        for index in range(start, min(start + _VARINT_BYTES_MAX, len(data))):
            byte = data[index]
            number |= (byte & 0x7F) << 7 * (index - start)
            if byte < 0x80:
                self.position = index + 1
                number &= _MASK
                return (number >> 1) ^ -(number & 1)
        if len(data) - start < _VARINT_BYTES_MAX:
            raise _DataEnded
        raise OutOfBounds(f"byte {start}: a number has more than {_VARINT_BYTES_MAX} bytes")

    def choice(self, count: int, what: str, choice: str) -> int:
        start, index = self.position, self.number()
        if not 0 <= index < count:
            raise OutOfBounds(f"byte {start}: {what} has no {choice} {index}, but {count} from 0")
        return index

    def decimal(self, kind: _Type) -> None:
        start = self.position
        size = self.length() if kind.size == _VARIABLE else kind.size
        first = self.position
        self.skip(size)
        if not has_digits(memoryview(self._data)[first : self.position], kind.count):
            raise OutOfBounds(f"byte {start}: a decimal has more than {kind.count} digits")

    def block(self) -> int:
        """The number of items in the next block; 0 at the end of an array."""
        count = self.number()
        if count < 0:
            self.number()  # the size of the block
        return abs(count)

    def length(self) -> int:
        start, length = self.position, self.number()
        if length < 0:
            raise OutOfBounds(f"byte {start}: a length is negative")
        return length

    def skip_text(self) -> None:
        self.skip(self.length())
