"""Answers of client libraries as JSON, so that those of two libraries can be compared; texts of
errors are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

__all__ = ["Answer", "normalised", "paths_that_differ", "value_at"]

Answer = Any
"""What JSON can hold."""

_MISSING = object()
_FLAGS = ("retriable", "fatal", "txn_requires_abort")


def normalised(value: Any, prefix: str) -> Answer:
    """A value of a program as JSON. `prefix` and a number begin the names that the program made,
    and are left out.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) and value.startswith("NotImplemented"):
        return "not implemented"  # the project's own texts do not have the name of that error
    if isinstance(value, str):
        return re.sub(rf"{prefix}(\d+-)?", "", value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Exception):
        return _raised(value)
    if isinstance(value, Mapping):
        return {
            str(normalised(key, prefix)): normalised(each, prefix) for key, each in value.items()
        }
    if isinstance(value, Iterable):
        return [normalised(each, prefix) for each in value]
    return _of_the_library(value, prefix)


def _raised(exception: Exception) -> Answer:
    error = exception.args[0] if exception.args else None
    if type(error).__name__ == "KafkaError":
        return _error(error)
    return {"raised": normalised(type(exception).__name__, "")}


def _of_the_library(value: Any, prefix: str) -> Answer:
    match type(value).__name__:
        case "KafkaError":
            return _error(value)
        case "TopicPartition":
            fields = {"t": value.topic, "p": value.partition, "o": value.offset}
            optional = {"err": value.error, "md": value.metadata}
            fields |= {name: each for name, each in optional.items() if each is not None}
            return normalised(fields, prefix)
        case "DeletedRecords":
            return {"low_watermark": value.low_watermark}
        case name:
            raise TypeError(f"an answer cannot hold a {name}")


def _error(error: Any) -> Answer:
    return {"err": error.name(), "code": error.code()} | {
        flag: True for flag in _FLAGS if getattr(error, flag)()
    }


def paths_that_differ(observed: Answer, found: Answer, path: str) -> Iterator[str]:
    """Where two answers differ, below `path`: `path/key`, `path/number`, or `path` itself."""
    if isinstance(observed, dict) and isinstance(found, dict):
        for key in sorted(observed.keys() | found.keys()):
            yield from paths_that_differ(
                observed.get(key, _MISSING), found.get(key, _MISSING), f"{path}/{key}"
            )
    elif isinstance(observed, list) and isinstance(found, list) and len(observed) == len(found):
        for at, (first, second) in enumerate(zip(observed, found, strict=True)):
            yield from paths_that_differ(first, second, f"{path}/{at}")
    elif observed != found or isinstance(observed, bool) != isinstance(found, bool):
        yield path


def value_at(answer: Answer, path: str) -> Answer:
    """What an answer has at a path that `paths_that_differ` returned; None if it has nothing
    there.
    """
    for key in path.split("/")[1:]:
        answer = answer[int(key)] if isinstance(answer, list) else answer.get(key)
    return answer
