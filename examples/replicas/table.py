"""The demo's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from examples.replicas.observer import NAME, Snapshot, counted_per_second

COLOURS = {"running": "green", "paused": "yellow", "killed": "red", "failed": "red"}
KEYS = "1-9 select   k kill   p pause   r resume   a add   q quit"


@dataclass(frozen=True)
class ReplicaState:
    """A process of the demo."""

    name: str
    state: str
    megabytes: int | None


def render(
    before: Snapshot, now: Snapshot, replicas: Sequence[ReplicaState], selected: int, sessions: str
) -> RenderableType:
    """The table at one moment. `before` is an earlier snapshot, for the rates; `sessions` describes
    the database's.
    """
    produced = (now.produced - before.produced) / (now.at - before.at)
    counted = (now.counted - before.counted) / (now.at - before.at)
    return Group(
        Text(
            f"produced {now.produced:,} ({produced:,.0f}/s)   counted {now.counted:,} "
            f"({counted:,.0f}/s)"
        ),
        Text(f"group {now.group_state}   database sessions {sessions}"),
        _replicas(before, now, replicas, selected),
        _partitions(now),
        Text(KEYS, style="dim"),
    )


def _replicas(
    before: Snapshot, now: Snapshot, replicas: Sequence[ReplicaState], selected: int
) -> Table:
    table = Table("", "replica", "state", box=box.SIMPLE_HEAD)
    for name in ("owns", "lag", "rows/s", "sessions", "MB"):
        table.add_column(name, justify="right")
    for number, replica in enumerate(replicas):
        owned = now.of(replica.name)
        table.add_row(
            ">" if number == selected else "",
            replica.name,
            Text(replica.state, style=COLOURS.get(replica.state, "")),
            str(len(owned)),
            f"{sum(partition.lag for partition in owned):,}",
            f"{counted_per_second(before, now, replica.name):,.0f}",
            str(now.sessions.get(replica.name, 0)),
            "" if replica.megabytes is None else str(replica.megabytes),
        )
    return table


def _partitions(now: Snapshot) -> Table:
    table = Table("", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for partition in now.partitions:
        table.add_column(f"p{partition.partition}", justify="right")
    table.add_row(
        "owner", *((partition.owner or "-").removeprefix(NAME) for partition in now.partitions)
    )
    table.add_row("lag", *(str(partition.lag) for partition in now.partitions))
    return table
