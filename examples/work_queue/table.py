"""The demo's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deltaq.admin import ShareGroupDescription


@dataclass(frozen=True)
class QueueState:
    """The queue at one time: mails that were written, and that were sent, by the number of the
    delivery that succeeded.
    """

    about: ShareGroupDescription
    written: int
    sent: dict[int, int]
    now_ms: int

    @property
    def oldest_s(self) -> float:
        """Seconds since the oldest mail was written that is not finished; 0 without one."""
        oldest_ms = self.about.oldest_ms
        return 0.0 if oldest_ms is None else max(0, self.now_ms - oldest_ms) / 1000


def render(state: QueueState, workers: Sequence[tuple[str, str]]) -> RenderableType:
    """The table. `workers` are names and states."""
    running = ", ".join(f"{name} {shown}" for name, shown in workers)
    sent = sum(state.sent.values())
    return Group(
        Text(
            f"written {state.written:,}   sent {sent:,}   waiting {state.about.lag:,}, "
            f"the oldest for {state.oldest_s:.1f} s"
        ),
        Text(running, style="dim"),
        _partitions(state.about),
        _attempts(state.sent),
    )


def _partitions(about: ShareGroupDescription) -> Table:
    names = ("acquired", "available", "delayed", "lag")
    table = Table("partition", box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name, justify="right")
    for part in about.partitions:
        table.add_row(str(part.partition), *(f"{getattr(part, name):,}" for name in names))
    return table


def _attempts(sent: dict[int, int]) -> Table:
    table = Table("sent at attempt", box=box.SIMPLE_HEAD)
    for attempt in sorted(sent):
        table.add_column(str(attempt), justify="right")
    table.add_row("mails", *(f"{sent[attempt]:,}" for attempt in sorted(sent)))
    return table
