"""Which work on a topic comes next, as rules without I/O. `topic_pass` does the work."""

from __future__ import annotations

from collections.abc import Mapping

from deltaq.maintenance.file_compaction import MERGED_FILES_MAX
from deltaq.maintenance.plan import DueAction, Kind

HOUSEKEEPING_INTERVAL_S = 60.0
"""Run checkpointing, orphan removal and log clean-up at least this often, in seconds. Beside a fast
writer, merges are always pending.
"""

NEW_VERSIONS = MERGED_FILES_MAX
"""Number of new commits by the writer for which long work is interrupted, to merge their files."""


class WorkQueue:
    """The order of the work of one topic. Times are in seconds of a monotonic clock. The first rule
    that applies:

    1. Housekeeping (checkpointing, orphan removal, log clean-up), `HOUSEKEEPING_INTERVAL_S` after
       the last one.
    2. Of the planned actions, the kind that was done least recently; of those not done yet, the
       most urgent. Beside a writer, every kind may be due all the time.

    Between two pieces of long work, small files of `NEW_VERSIONS` commits are merged first:
    otherwise they would slow down each plan, and leave the row cache. The long work then gets as
    much time as that merge took, so that it ends even beside a fast writer.
    """

    def __init__(self, now_s: float) -> None:
        self._order = list(Kind)
        self._housekeeping_at = now_s + HOUSEKEEPING_INTERVAL_S
        self._interrupt_at = float("-inf")

    def is_housekeeping_due(self, now_s: float) -> bool:
        return now_s >= self._housekeeping_at

    def housekeeping_done(self, now_s: float) -> None:
        self._housekeeping_at = now_s + HOUSEKEEPING_INTERVAL_S

    def in_order(self, actions: Mapping[Kind, DueAction]) -> list[tuple[Kind, DueAction]]:
        """The planned actions, next first."""
        return sorted(actions.items(), key=lambda planned: self._order.index(planned[0]))

    def began(self, kind: Kind) -> None:
        """Note that an action of this kind has begun."""
        self._order.remove(kind)
        self._order.append(kind)

    def may_interrupt(self, new_versions: int, now_s: float) -> bool:
        """Whether long work is interrupted to merge the files of so many new commits."""
        return new_versions >= NEW_VERSIONS and now_s >= self._interrupt_at

    def interrupted(self, from_s: float, until_s: float) -> None:
        """Note that new files were merged between two pieces of long work."""
        self._interrupt_at = until_s + (until_s - from_s)
