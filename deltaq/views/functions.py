"""Python functions in the SQL of views. The types come from annotations; a program names a function
by its name, its types and its source.

A function gets whole columns of rows from DuckDB, and is called once for each row.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from deltaq.errors import InvalidConfig
from deltaq.tools.duckdb_tables import Connection, create_function

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

_OPTIONAL = " NULL"
"""What stands behind a type for which None is a value."""

_TYPES: Final[Mapping[Any, str]] = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    bytes: "BLOB",
    date: "DATE",
    datetime: "TIMESTAMP WITH TIME ZONE",
}
"""The types of DuckDB by annotation."""

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}

_SHOWN_CHARS = 200
"""What is shown of the values with which a function has failed."""

Failures: TypeAlias = list[str]
"""What functions have failed with, for people: DuckDB wraps it in a text of its own."""


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """What a program says of a function. `parameters` and `returns` are types of DuckDB, followed
    by NULL where None is a value.
    """

    name: str
    parameters: tuple[str, ...]
    returns: str
    source: str


@dataclass(frozen=True, slots=True)
class ViewFunction:
    """A function that views call."""

    signature: FunctionSignature
    call: Callable[..., object]


def view_function(call: Callable[..., object], name: str | None) -> ViewFunction:
    """The function of a callable, by default with its own name. Raises InvalidConfig for a name
    that SQL does not take, types that are missing or unknown, and a callable without source.
    """
    own = getattr(call, "__name__", type(call).__name__) if name is None else name
    if _NAME.fullmatch(own) is None:
        reason = (
            f"a function of views cannot be named {own!r}: give it a name of letters and digits"
        )
        raise InvalidConfig(reason, key=own)
    parameters = inspect.signature(call).parameters.values()
    if not parameters or any(of.kind is not of.POSITIONAL_OR_KEYWORD for of in parameters):
        reason = "must have one parameter at least, and positional ones only"
        raise InvalidConfig(f"function {own!r} {reason}", key=own)
    hints = get_type_hints(call)
    types = [_type(own, hints, of.name, f"parameter {of.name!r}") for of in parameters]
    returns = _type(own, hints, "return", "its result")
    try:
        source = dedent(inspect.getsource(call))
    except (OSError, TypeError):
        reason = "has no source, which the program of a group names: define it in a file"
        raise InvalidConfig(f"function {own!r} {reason}", key=own) from None
    return ViewFunction(FunctionSignature(own, tuple(types), returns, source), call)


def _type(function: str, hints: Mapping[str, Any], name: str, what: str) -> str:
    """The type of DuckDB for an annotation. Raises InvalidConfig."""
    hint = hints.get(name)
    of = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    (plain, *others) = of - {NoneType} or {None}
    if others or plain not in _TYPES:
        known = ", ".join(kind.__name__ for kind in _TYPES)
        shown = "no type" if hint is None else f"the type {hint}"
        reason = f"{what} has {shown}: annotate it with one of {known}, or one of them | None"
        raise InvalidConfig(f"function {function!r}: {reason}", key=function)
    return _TYPES[plain] + (_OPTIONAL if NoneType in of else "")


def matched(
    group: str, wanted: Iterable[FunctionSignature], given: Iterable[ViewFunction]
) -> tuple[ViewFunction, ...]:
    """The functions of a program, of those that this process has. In the place of one that is
    missing, or another, stands one that raises with a reason.
    """
    by_name = {function.signature.name: function for function in given}

    def found(signature: FunctionSignature) -> ViewFunction:
        own = by_name.get(signature.name)
        if own is not None and own.signature == signature:
            return own
        is_ = "does not have" if own is None else "has with another source or other types"
        reason = (
            f"the group {group!r} calls the Python function {signature.name!r}, which this process "
            f"{is_}: define it with Views.function as the program does that runs the group"
        )

        def missing(*_: object) -> object:
            raise InvalidConfig(reason, key=signature.name)

        return ViewFunction(signature, missing)

    return tuple(map(found, wanted))


def register(connection: Connection, functions: Iterable[ViewFunction]) -> Failures:
    """Make functions known to DuckDB; what they fail with is added to the result."""
    failures: Failures = []
    for function in functions:
        of = function.signature
        create_function(
            connection,
            of.name,
            _Call(function, failures),
            [_plain(kind) for kind in of.parameters],
            _plain(of.returns),
        )
    return failures


@contextmanager
def named_failure(failures: Failures, what: str, key: str) -> Iterator[None]:
    """Where a function fails within it, raise InvalidConfig that begins with `what`, without the
    text of DuckDB.
    """
    failures.clear()
    try:
        yield
    except InvalidConfig:
        if failures:
            raise InvalidConfig(f"{what}{failures.pop()}", key=key) from None
        raise


@dataclass(frozen=True, slots=True)
class _Call:
    """A function as DuckDB calls it, with the columns of many rows."""

    function: ViewFunction
    failures: Failures

    @property
    def __signature__(self) -> inspect.Signature:
        """DuckDB counts the parameters."""
        names = [f"p{number}" for number in range(len(self.function.signature.parameters))]
        kind = inspect.Parameter.POSITIONAL_ONLY
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def __call__(self, *columns: pa.ChunkedArray) -> pa.Array:
        """The results for all rows. Raises InvalidConfig, and adds its reason to `failures`."""
        try:
            rows = zip(*(column.to_pylist() for column in columns), strict=True)
            return pa.array([_result(self.function, row) for row in rows], _arrow(self.function))
        except InvalidConfig as error:
            self.failures.append(error.error.str())
            raise


def _result(function: ViewFunction, row: tuple[object, ...]) -> object:
    """The result for one row; NULL for NULL in a parameter for which None is no value."""
    of = function.signature
    for value, kind in zip(row, of.parameters, strict=True):
        if value is None and not kind.endswith(_OPTIONAL):
            return None
    try:
        result = function.call(*row)
        if result is None and not of.returns.endswith(_OPTIONAL):
            raise TypeError("it returns None, which its annotation does not say")
        return pa.scalar(result, _arrow(function)).as_py()
    except InvalidConfig:
        raise
    except Exception as error:
        shown = repr(row[0] if len(row) == 1 else row)[:_SHOWN_CHARS]
        reason = f"function {of.name!r} fails for {shown}: {type(error).__name__}: {error}"
        raise InvalidConfig(reason, key=of.name) from error


def _arrow(function: ViewFunction) -> pa.DataType:
    return _ARROW[_plain(function.signature.returns)]


def _plain(kind: str) -> str:
    return kind.removesuffix(_OPTIONAL)
