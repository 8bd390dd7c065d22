"""What a command prints: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from deltaq.cli.table import Column, Rows, aligned, table_lines
from deltaq.errors import printable
from deltaq.units import as_text


class OutputForm(StrEnum):
    """The form of a command's output."""

    TABLE = "table"
    JSON = "json"


class Output:
    """Prints the results of one command."""

    def __init__(self, form: OutputForm | None = None) -> None:
        self.form = form or OutputForm.TABLE

    @property
    def is_json(self) -> bool:
        return self.form is OutputForm.JSON

    @property
    def is_terminal(self) -> bool:
        """Whether a person sees the output as it is printed."""
        return sys.stdout.isatty()

    @property
    def is_ascii(self) -> bool:
        """Whether JSON is written in ASCII: for a terminal, which acts on other characters, and
        where only few can be encoded.
        """
        return self.is_terminal or sys.stdout.encoding.lower() not in ("utf-8", "utf8")

    def rows(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows: as a table with these columns, or all that they hold as a JSON array."""
        if self.is_json:
            self.json(list(rows))
        else:
            sys.stdout.writelines(
                line + "\n" for line in table_lines(columns, rows, bold=self.is_terminal)
            )

    def fields(self, fields: Iterable[tuple[str, str]]) -> None:
        """Print names and their values, one pair per line, below each other."""
        pairs = [(name, as_text(value)) for name, value in fields]
        sys.stdout.writelines(line + "\n" for line in aligned(pairs, (False, False)))

    def json(self, value: object) -> None:
        """Print a value as indented JSON."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=self.is_ascii) + "\n")

    def json_line(self, value: object) -> None:
        """Print a value as JSON on one line, as one of many."""
        sys.stdout.write(json.dumps(value, ensure_ascii=self.is_ascii) + "\n")
        sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """Print a line of text that comes from the command itself."""
        sys.stdout.write(text + "\n")

    def lines(self, texts: Sequence[str]) -> None:
        """Print texts, one per line, or all as a JSON array."""
        if self.is_json:
            self.json(texts)
        else:
            sys.stdout.writelines(text + "\n" for text in texts)

    def done(self, text: str) -> None:
        """Say that a change was made; programs learn it by the exit status."""
        if not self.is_json:
            self.line(text)
            sys.stdout.flush()  # a service's lines are read as they come

    def note(self, text: str) -> None:
        """Print a remark for people, apart from the output."""
        sys.stderr.write(f"deltaq: {printable(text)}\n")

    @contextmanager
    def screen(self) -> Iterator[Callable[[Sequence[Rows]], None]]:
        """Within it, the function shows tables in the place of those before; into a pipe, below
        them.
        """
        if self.is_terminal:
            from deltaq.cli import live  # noqa: PLC0415 - rich takes 0.2 s to begin

            with live.screen() as show:
                yield show
        else:
            yield self._below

    def _below(self, tables: Sequence[Rows]) -> None:
        for columns, rows in tables:
            self.rows(columns, rows)
        self.line()
        sys.stdout.flush()

    @contextmanager
    def progress(self, unit: str) -> Iterator[Callable[[str, int, int], None]]:
        """Within it, the function shows how far a piece of work has come: (name, done, total). For
        people only.
        """
        if self.is_json or not sys.stderr.isatty():
            yield lambda _name, _done, _total: None
            return
        from deltaq.cli import live  # noqa: PLC0415 - as above

        with live.progress_bars(unit) as show:
            yield show
