"""What the resets of consumer groups and of share groups have in common: options, and the table of
what is planned or done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from deltaq.cli.arguments import complete_topic
from deltaq.cli.command import Option
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.units import as_count

if TYPE_CHECKING:
    from deltaq.tools.offset_resets import PlannedReset

PLACES = "beginning, end, an offset, -N before the end, an age or a time."
"""Help of an option that names a place."""

ResetTopics = Annotated[
    list[str] | None,
    Option(
        "--topic",
        "-t",
        help="Only this topic; without it all that the group reads. May be repeated.",
        autocompletion=complete_topic,
    ),
]
Execute = Annotated[
    bool, Option("--execute", help="Set the new offsets. Without it, only show them.")
]


def report_resets(
    session: CliSession, resets: Sequence[PlannedReset], before: str, *, execute: bool
) -> None:
    """Show resets, with the column `before` for the offsets that they replace."""
    rows = [
        {
            "topic": reset.topic,
            "partition": reset.partition,
            before: reset.committed,
            "new_offset": reset.target,
            "lag": reset.lag,
        }
        for reset in resets
    ]
    numbers = [Column(name, as_count) for name in (before, "new_offset", "lag")]
    session.out.rows([Column("topic"), Column("partition"), *numbers], rows)
    if not execute:
        session.out.note("dry run: nothing was changed; add --execute")
