"""The log of a topic that is a copy: its records have the offsets that they have in their
source.
"""

from __future__ import annotations

from deltaq.delta.actions import Action
from deltaq.delta.table_state import TableState
from deltaq.topics.log import StalePlan, voided_uploads
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.shared_files import APPEND_OPERATION
from deltaq.topics.state import PendingSegment, TopicHead, copied


class CopyLog(MaintenanceLog):
    """A position in the log of a copy. Not thread-safe: one owner at a time."""

    def append_copied(
        self, topic_id: str, segment: PendingSegment, deadline: float
    ) -> StalePlan | None:
        """Append a segment whose records have offsets already.

        The plan is stale, and nothing is written, unless each partition ends where its rows in
        the segment begin: an earlier attempt has succeeded, or another process writes the topic.
        It is also stale for another topic than `topic_id`, and for an upload that has waited for
        too long. Raises what `DeltaLog.commit` raises.
        """

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action] | StalePlan:
            is_it = head.topic_id == topic_id and not head.deleted
            if not is_it or not _begins_at_end(segment, head) or voided_uploads([segment], head):
                return StalePlan()
            return copied(head, state.version + 1, segment, now_ms, self._indexed_columns())

        # A retry is safe: if the entry is in the log, its partitions end further on, and the plan
        # is stale.
        return self._maintain(APPEND_OPERATION, actions, deadline)


def _begins_at_end(segment: PendingSegment, head: TopicHead) -> bool:
    records = segment.rewritten
    return records is not None and all(
        partition < head.partitions and head.next_offsets[partition] == base
        for (partition, _), (base, _) in zip(segment.partition_rows, records.ranges, strict=True)
    )
