"""Tables as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from unicodedata import combining, east_asian_width

from deltaq.units import as_count, as_lag, as_rate, as_size, as_text

_BETWEEN = "  "
_BOLD, _NOT_BOLD = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the key of its values in the rows, how it shows them, and its title, by
    default the key in capital letters. Numbers are on the right.
    """

    key: str
    show: Callable[[Any], str] = as_text
    title: str = ""

    @property
    def heading(self) -> str:
        return as_text(self.title or self.key.replace("_", " ").upper())

    @property
    def is_number(self) -> bool:
        return self.show in (as_count, as_lag, as_rate, as_size)


Rows: TypeAlias = tuple[Sequence[Column], Sequence[Mapping[str, Any]]]


def table_lines(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, bold: bool = False
) -> list[str]:
    """A heading, `bold` for a terminal, and a line for each row. Columns are as wide as their
    widest cell.
    """
    cells = [[column.show(row.get(column.key)) for column in columns] for row in rows]
    heading, *lines = aligned(
        [[column.heading for column in columns], *cells], [c.is_number for c in columns]
    )
    return [f"{_BOLD}{heading}{_NOT_BOLD}" if bold else heading, *lines]


def aligned(rows: Sequence[Sequence[str]], on_the_right: Sequence[bool]) -> list[str]:
    """Rows of cells as lines, in columns."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return [
        _BETWEEN.join(
            " " * (wide - width(cell)) + cell if right else cell + " " * (wide - width(cell))
            for cell, wide, right in zip(row, widths, on_the_right, strict=True)
        ).rstrip()
        for row in rows
    ]


def width(text: str) -> int:
    """The columns that a text takes on a terminal: two for a wide character, none for one that is
    put on another.
    """
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 1 + (east_asian_width(char) in "WF") for char in text)
