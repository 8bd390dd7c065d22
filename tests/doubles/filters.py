"""Filters of a table's rows, said once: in plain Python, and in the languages of the engines that
read the table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds

__all__ = ["Filter", "filters_of"]

_OPERATORS: Mapping[str, tuple[Callable[[Any, Any], Any], str]] = {
    "eq": (operator.eq, "="),
    "ne": (operator.ne, "<>"),
    "lt": (operator.lt, "<"),
    "le": (operator.le, "<="),
    "gt": (operator.gt, ">"),
    "ge": (operator.ge, ">="),
}


@dataclass(frozen=True)
class Filter:
    """`column <operator> literal`, `column is null` or `column is not null`; a dot leads into a
    struct.

    `kind` is the column's type in the table.
    """

    column: str
    kind: pa.DataType
    name: str
    literal: Any = None

    def __str__(self) -> str:
        return f"{self.column} {self.name} {self.literal!r}"

    def picks(self, row: Mapping[str, Any], *, nan_is_largest: bool) -> bool:
        """Whether a row is to be found. NaN is above all numbers and equal to itself, or in no
        relation to any.
        """
        value: Any = row
        for step in self.column.split("."):
            value = None if value is None else value[step]
        if self.name == "is null":
            return value is None
        if self.name == "is not null":
            return value is not None
        if value is None:
            return False
        compare, literal = _OPERATORS[self.name][0], self.literal
        if nan_is_largest and isinstance(value, float):
            value, literal = (math.isnan(value), value), (math.isnan(literal), literal)
            if value[0] or literal[0]:
                value, literal = value[0], literal[0]
        return bool(compare(value, literal))

    def in_arrow(self) -> ds.Expression:
        column = ds.field(*self.column.split("."))
        if self.literal is None:
            return column.is_null() if self.name == "is null" else column.is_valid()
        found: ds.Expression = _OPERATORS[self.name][0](column, pa.scalar(self.literal, self.kind))
        return found

    def in_polars(self) -> pl.Expr:
        first, *steps = self.column.split(".")
        column = pl.col(first)
        for step in steps:
            column = column.struct.field(step)
        if self.literal is None:
            return column.is_null() if self.name == "is null" else column.is_not_null()
        kind = pl.Series(pa.array([self.literal], self.kind)).dtype  # Polars' own choice for it
        found: pl.Expr = _OPERATORS[self.name][0](column, pl.lit(self.literal, kind))
        return found

    def in_sql(self, quote: str) -> str:
        """As SQL of an engine that quotes names with `quote`."""
        column = ".".join(f"{quote}{step}{quote}" for step in self.column.split("."))
        if self.literal is None:
            return f"{column} {self.name}"
        return f"{column} {_OPERATORS[self.name][1]} {self._sql_literal(spark=quote == '`')}"

    def _sql_literal(self, *, spark: bool) -> str:
        match self.literal:
            case bool():
                return str(self.literal).lower()
            case float():
                return (
                    f"cast('{self.literal!r}' as "
                    f"{'float' if pa.types.is_float32(self.kind) else 'double'})"
                )
            case datetime():
                return (
                    f"cast('{self.literal.isoformat()}' as "
                    f"{'timestamp' if spark else 'timestamptz'})"
                )
            case date():
                return f"cast('{self.literal.isoformat()}' as date)"
            case Decimal():
                return f"cast('{self.literal}' as decimal({self.kind.precision},{self.kind.scale}))"
            case bytes():
                return f"X'{self.literal.hex()}'" if spark else f"unhex('{self.literal.hex()}')"
            case str():
                return "'" + self.literal.replace("'", "''") + "'"
        return str(self.literal)


def filters_of(
    columns: Mapping[str, pa.DataType], literals: Mapping[str, Sequence[Any]]
) -> list[Filter]:
    """For each column whether it is null, and each comparison with each of its literals."""
    return list(_filters(columns.items(), literals))


def _filters(
    columns: Iterable[tuple[str, pa.DataType]], literals: Mapping[str, Sequence[Any]]
) -> Iterator[Filter]:
    for column, kind in columns:
        yield Filter(column, kind, "is null")
        yield Filter(column, kind, "is not null")
        for literal in literals.get(column, ()):
            for name in _OPERATORS:
                yield Filter(column, kind, name, literal)
