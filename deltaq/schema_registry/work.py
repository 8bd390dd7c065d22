"""A limit of the work that foreign schemas and values can cause.

The text of a schema is limited, but not what it stands for: 28 definitions, each of which names the
next one twice, have 2^28 paths through them. Whatever walks along paths therefore spends steps, and
ends when they are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

SCHEMA_DEPTH_MAX = 100
"""Nesting of the JSON of a schema, and of the named types and messages that it consists of."""
SCHEMA_PARTS_MAX = 10_000
"""Objects and arrays in the JSON of a schema. Checking one takes about a millisecond."""
VALUE_DEPTH_MAX = 100
"""Nesting of a value, as in Protobuf. Decoders and validators recurse: a few thousand levels end
the process.
"""

_REMEMBERED_MAX = 10_000
_CONTAINERS = (dict, list, tuple)


class OutOfBounds(ValueError):
    """A payload stands for a value, or for as much memory, beyond a limit."""


class TooMuchWork(ValueError):
    """The steps of `limited_work` are used up."""


class _Steps:
    __slots__ = ("left", "remembered")

    def __init__(self, left: int) -> None:
        self.left = left
        self.remembered: dict[Any, Any] = {}


_steps: ContextVar[_Steps | None] = ContextVar("steps", default=None)


@contextmanager
def limited_work(steps: int) -> Iterator[None]:
    """Limit the steps that are spent inside. Raises TooMuchWork."""
    token = _steps.set(_Steps(steps))
    try:
        yield
    finally:
        _steps.reset(token)


def spend(steps: int = 1) -> None:
    """Spend steps of the innermost `limited_work`; without one, nothing is limited. Raises
    TooMuchWork.
    """
    budget = _steps.get()
    if budget is not None:
        budget.left -= steps
        if budget.left < 0:
            raise TooMuchWork("it takes too many steps")


def remember(key: Any, make: Callable[[], Any]) -> Any:
    """What `make` returned for this key before, in the innermost `limited_work`. What is found
    keeps the objects alive whose `id` is part of the key.
    """
    budget = _steps.get()
    if budget is None:
        return make()
    found = budget.remembered.get(key)
    if found is None:
        if len(budget.remembered) >= _REMEMBERED_MAX:
            budget.remembered.clear()
        found = budget.remembered[key] = make()
    return found


def _containers(value: object) -> Iterator[tuple[int, Collection[Any]]]:
    """The lists, tuples and dicts in a value: how deeply each is nested, 1 for the value itself,
    and what is in it. Of a value that contains itself, there is no end of them.
    """
    waiting = [(value, 1)] if isinstance(value, _CONTAINERS) else []
    while waiting:
        part, depth = waiting.pop()
        children: Collection[Any] = part.values() if isinstance(part, dict) else part
        yield depth, children
        waiting += [(child, depth + 1) for child in children if isinstance(child, _CONTAINERS)]


def depth_of(value: object, depth_max: int = VALUE_DEPTH_MAX) -> int:
    """How deeply lists, tuples and dicts are nested in a value: 0 for a number. Ends at `depth_max
    + 1`, also in a value that contains itself.
    """
    deepest = 0
    for depth, _ in _containers(value):
        deepest = max(deepest, depth)
        if deepest > depth_max:
            break
    return deepest


def measure(value: object) -> tuple[int, int]:
    """How deeply lists and dicts are nested in a value, and how many values are in them. Ends where
    they are nested more deeply than values may be.
    """
    deepest, count = 0, 1
    for depth, children in _containers(value):
        deepest = max(deepest, depth)
        count += len(children)
        if deepest > VALUE_DEPTH_MAX:
            break
    return deepest, count


def count_values(value: object, chars_per_value: int) -> int:
    """The number of values in lists and dicts, with these; a text counts for more, for each so many
    characters, also one that is a key.
    """
    count, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        texts = part if isinstance(part, dict) else (part,)
        count += 1 + sum(
            len(text) // chars_per_value for text in texts if isinstance(text, str | bytes)
        )
        waiting += (
            part.values()
            if isinstance(part, dict)
            else part
            if isinstance(part, list | tuple)
            else ()
        )
    return count


def check_schema_size(schema: object, array_parts_max: int = SCHEMA_PARTS_MAX) -> None:
    """Raises ValueError for the JSON of a schema that is nested too deeply, or that has too many
    objects and arrays: in all, or in one array.
    """
    if depth_of(schema, SCHEMA_DEPTH_MAX) > SCHEMA_DEPTH_MAX:
        raise ValueError(f"it is nested more than {SCHEMA_DEPTH_MAX} levels deep")
    parts = 0
    for _, children in _containers(schema):
        inner = sum(isinstance(child, _CONTAINERS) for child in children)
        if isinstance(children, list) and inner > array_parts_max:
            raise ValueError(
                f"an array in it has {inner} objects and arrays, more than {array_parts_max}"
            )
        parts += 1
    if parts > SCHEMA_PARTS_MAX:
        raise ValueError(f"it has {parts} objects and arrays, more than {SCHEMA_PARTS_MAX}")
