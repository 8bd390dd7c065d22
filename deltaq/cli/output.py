"""What a command prints: tables for people, JSON for programs. Rich is known only here.

Text from topics may hold anything. In tables and on terminals it is escaped, so that a message cannot move the cursor,
recolour the screen or forge lines of a table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deltaq.errors import printable

_WIDE = 100_000
"""Characters of a line where the output is not a terminal: nothing is wrapped or cut."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Form(StrEnum):
    """The form of a command's output."""

    TABLE = "table"
    JSON = "json"


def as_text(value: object) -> str:
    """A value in a cell: bytes as text, None as nothing, anything that a terminal would act on escaped."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "backslashreplace"))
    return printable(value if isinstance(value, str) else str(value))


def as_count(value: int | None) -> str:
    """1234567 -> 1,234,567."""
    return "" if value is None else f"{value:,}"


def as_rate(value: float | None) -> str:
    """A number per second with three digits at least: 0.25, 12.5, 1,234."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def counted(count: int, noun: str) -> str:
    """1 partition, 2,000 partitions."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def as_size(value: float | None) -> str:
    """A number of bytes with three digits: 1.21 MiB."""
    if value is None:
        return ""
    unit = 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the key of its values in the rows, how it shows them, and its title, by default the key in
    capital letters. Numbers are on the right."""

    key: str
    show: Callable[[Any], str] = as_text
    title: str = ""

    @property
    def heading(self) -> str:
        return self.title or self.key.replace("_", " ").upper()

    @property
    def is_number(self) -> bool:
        return self.show in (as_count, as_rate, as_size)


Rows: TypeAlias = tuple[Sequence[Column], Sequence[Mapping[str, Any]]]


def _table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(Text(column.heading), justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(column.show(row.get(column.key))) for column in columns))
    return table


class Output:
    """Prints the results of one command."""

    def __init__(self, form: Form | None = None) -> None:
        self.form = form or Form.TABLE

    @property
    def is_json(self) -> bool:
        return self.form is Form.JSON

    @property
    def is_terminal(self) -> bool:
        """Whether a person sees the output as it is printed."""
        return sys.stdout.isatty()

    def rows(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows: as a table with these columns, or all that they hold as a JSON array."""
        if self.is_json:
            self.json(list(rows))
            return
        self._print(_table(columns, rows))

    @contextmanager
    def screen(self) -> Iterator[Callable[[Sequence[Rows]], None]]:
        """Within it, the function shows tables in the place of those before; into a pipe, below them."""
        if not self.is_terminal:

            def below(tables: Sequence[Rows]) -> None:
                for columns, rows in tables:
                    self.rows(columns, rows)
                self.line()
                sys.stdout.flush()

            yield below
            return
        from rich.console import Group  # noqa: PLC0415 - only `top` needs it
        from rich.live import Live  # noqa: PLC0415 - as above

        with Live(console=self._console(), screen=True, auto_refresh=False) as live:

            def instead(tables: Sequence[Rows]) -> None:
                shown = (part for columns, rows in tables for part in (_table(columns, rows), Text()))
                live.update(Group(*shown), refresh=True)

            yield instead

    def fields(self, fields: Iterable[tuple[str, str]]) -> None:
        """Print names and their values, one pair per line, below each other."""
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in fields:
            table.add_row(Text(name), Text(value))
        self._print(table)

    def json(self, value: object) -> None:
        """Print a value as indented JSON."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=self.is_terminal) + "\n")

    def json_line(self, value: object) -> None:
        """Print a value as JSON on one line, as one of many."""
        sys.stdout.write(json.dumps(value, ensure_ascii=self.is_terminal) + "\n")
        sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """Print a line of text that comes from the command itself."""
        sys.stdout.write(text + "\n")

    def done(self, text: str) -> None:
        """Say that a change was made; programs learn it by the exit status."""
        if not self.is_json:
            self.line(text)
            sys.stdout.flush()  # a service's lines are read as they come

    def note(self, text: str) -> None:
        """Print a remark for people, apart from the output."""
        sys.stderr.write(f"deltaq: {printable(text)}\n")

    @contextmanager
    def progress(self, unit: str) -> Iterator[Callable[[str, int, int], None]]:
        """Within it, the function shows how far a piece of work has come: (name, done, total). For people only."""
        if self.is_json or not sys.stderr.isatty():
            yield lambda _name, _done, _total: None
            return
        from rich import progress  # noqa: PLC0415 - only copies show progress

        class Rate(progress.ProgressColumn):
            """Pieces per second."""

            def render(self, task: progress.Task) -> Text:
                return Text(f"{task.speed or 0:,.0f}/s")

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TextColumn("{task.completed:,} of {task.total:,} " + unit),
            Rate(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=Console(stderr=True)) as shown:
            tasks: dict[str, progress.TaskID] = {}

            def show(name: str, done: int, total: int) -> None:
                if name not in tasks:
                    tasks[name] = shown.add_task(name, total=total)
                shown.update(tasks[name], completed=done, total=total)

            yield show

    def _console(self) -> Console:
        return Console(width=None if self.is_terminal else _WIDE, highlight=False, emoji=False, markup=False)

    def _print(self, table: Table) -> None:
        console = self._console()
        if self.is_terminal:
            console.print(table)
            return
        with console.capture() as captured:
            console.print(table)
        sys.stdout.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())
