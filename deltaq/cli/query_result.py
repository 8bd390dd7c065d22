"""Rows of a query or a view, as commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.units import as_text

if TYPE_CHECKING:
    import pyarrow as pa


def show_rows(session: CliSession, found: pa.Table) -> None:
    """Print an Arrow table, and a note for each value that cannot be shown."""
    from deltaq.serde.schema import Unreadable, python_values  # noqa: PLC0415 - `deltaq --help` needs no clients
    from deltaq.tools.records import plain  # noqa: PLC0415 - as above

    rows = [row for batch in found.to_batches() for row in python_values(batch)]
    for number, row in enumerate(rows, 1):
        for name, value in row.items():
            if isinstance(value, Unreadable):
                session.out.note(f"row {number}: the value cannot be shown: {value}")
                row[name] = None

    def cell(value: object) -> str:
        return as_text(value if isinstance(value, bytes) else plain(value))

    columns = [Column(name, cell, title=name) for name in found.column_names]
    session.out.rows(columns, plain(rows) if session.out.is_json else rows)
