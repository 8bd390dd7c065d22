"""What moves on a terminal: progress bars, and tables in the place of those before. Rich is known
only here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import progress
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deltaq.cli.table import Rows, table_lines


class _Rate(progress.ProgressColumn):
    """Pieces per second."""

    def render(self, task: progress.Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s")


@contextmanager
def progress_bars(unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """Within it, the function shows how far a piece of work has come: (name, done, total).
    Thread-safe.
    """
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:,} of {task.total:,} " + unit),
        _Rate(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as shown:
        tasks: dict[str, progress.TaskID] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            shown.update(tasks[name], completed=done, total=total)

        yield show


@contextmanager
def screen() -> Iterator[Callable[[Sequence[Rows]], None]]:
    """Within it, the function fills the screen with tables."""
    with Live(console=Console(), screen=True, auto_refresh=False) as live:

        def show(tables: Sequence[Rows]) -> None:
            lines = [line for columns, rows in tables for line in (*table_lines(columns, rows), "")]
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)

        yield show
