"""A topic's log as maintenance and copies commit to it: files rewritten, records removed, uploads
voided, records appended at offsets that they have already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import TopicSettings
from deltaq.delta.actions import NOTHING_PREPARED, Action, Prepared, prepared
from deltaq.delta.table_state import TableState
from deltaq.parquet.column_bounds import STATISTICS_PROPERTY
from deltaq.parquet.file_statistics import statistics_property
from deltaq.store import Store
from deltaq.topics.log import StalePlan, TopicLog, voided_uploads
from deltaq.topics.rewrites import Trimmed, raised_min_upload_version, renewed, retained, rewritten
from deltaq.topics.shared_files import APPEND_OPERATION
from deltaq.topics.state import PendingSegment, TopicChange, TopicHead, changed, copied
from deltaq.topics.view import KnownTopic

LOCK_HOLD_MAX_S = 5.0
"""Longest time in seconds for which a maintenance commit beside a writer keeps the turn, if the
store does not answer.
"""


class MaintenanceLog(TopicLog):
    """A position in one topic's log for maintenance or a copy. Not thread-safe: one owner at a
    time.

    `beside` a writer of this process, it shares what the two have read, and commits in its turn, so
    that they do not race for slots. `pause` lets other threads run after each entry that it reads,
    and may raise to stop.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        client_id: str = "",
        beside: KnownTopic | None = None,
        pause: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(store, topic, clock, indexed=True, client_id=client_id, known=beside)
        self.is_beside_writer = beside is not None
        self._pause = pause

    def catch_up(self, *, to_end: bool = True, pause: Callable[[], object] | None = None) -> bool:
        """As `TopicLog.catch_up`."""
        return super().catch_up(to_end=to_end, pause=pause or self._pause)

    def rewrite_actions(
        self, inputs: Sequence[str], outputs: Sequence[PendingSegment]
    ) -> list[Action]:
        """The actions of a `rewrite` that can be prepared in advance, to keep the turn for a
        shorter time.
        """
        return rewritten(inputs, outputs, self._now(), self._indexed_columns())

    def rewrite(
        self,
        inputs: Sequence[str],
        outputs: Sequence[PendingSegment],
        deadline: float,
        before: Prepared | None = None,
        planned_for: TopicSettings | None = None,
    ) -> StalePlan | None:
        """Replace the files `inputs` (paths) by `outputs`. The position must not be before their
        versions.

        `before` are the prepared `rewrite_actions` for them. The plan is stale if one of the inputs
        has left the topic, if the outputs have waited for too long, or if the topic's settings are
        not `planned_for`. Raises what `DeltaLog.commit` raises.
        """
        is_uncertain = False

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action] | StalePlan:
            is_here = all(path in state.files for path in inputs)
            if (
                not is_here
                or voided_uploads(outputs, head)
                or not _has_settings(state, planned_for)
            ):
                return StalePlan(is_uncertain)
            return [renewed(head, now_ms)]

        def may_stand(_: TableState) -> bool:
            # A retry is safe: if the entry is in the log, its inputs are not, and the plan is
            # stale.
            nonlocal is_uncertain
            is_uncertain = True
            return False

        before = before or prepared(self.rewrite_actions(inputs, outputs))
        return self._maintain("OPTIMIZE", actions, deadline, may_stand, before)

    def retain(
        self,
        decide: Callable[[TopicHead], Trimmed | StalePlan],
        deadline: float,
        planned_for: TopicSettings | None = None,
    ) -> StalePlan | None:
        """Remove records as `decide` says, which is called again for each slot tried.

        The plan is stale if `decide` says so, if one of the files has already left the topic, or if
        the topic's settings are not `planned_for`. Raises what `DeltaLog.commit` raises.
        """

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action] | StalePlan:
            trimmed = decide(head)
            if isinstance(trimmed, StalePlan):
                return trimmed
            if not all(path in state.files for path in trimmed.paths) or not _has_settings(
                state, planned_for
            ):
                return StalePlan()
            return retained(head, trimmed, now_ms)

        return self._maintain("DELETE", actions, deadline)

    def raise_min_upload_version(
        self, min_upload_version: int, deadline: float
    ) -> StalePlan | None:
        """Void uploads: refuse from now on all files whose upload began at a known version below
        `min_upload_version`.

        Applies to deleted topics, too; StalePlan if the log was removed. Raises what
        `DeltaLog.commit` raises.
        """
        return self._maintain(
            "VACUUM START",
            lambda _, head, now: raised_min_upload_version(head, min_upload_version, now),
            deadline,
        )

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

    @property
    def names_statistics(self) -> bool:
        """Whether the table property names the columns with statistics. Raises UnknownTopic."""
        return STATISTICS_PROPERTY in self.metadata.configuration

    def name_statistics(self, deadline: float) -> StalePlan | None:
        """Set the table property that names the columns with statistics to deltaq's own columns,
        where it is missing.

        Files may lack statistics of other columns, and delta-rs would skip them as files without a
        match. The plan is stale if the property is set or the topic was deleted. Raises what
        `DeltaLog.commit` raises.
        """

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action] | StalePlan:
            if (
                head.deleted
                or state.metadata is None
                or STATISTICS_PROPERTY in state.metadata.configuration
            ):
                return StalePlan()
            change = TopicChange(head.partitions, {STATISTICS_PROPERTY: statistics_property()})
            return changed(head, state.metadata, change, now_ms)

        return self._maintain("SET TBLPROPERTIES", actions, deadline)

    def _maintain(
        self,
        operation: str,
        actions: Callable[[TableState, TopicHead, int], list[Action] | StalePlan],
        deadline: float,
        may_stand: Callable[[TableState], bool] = lambda _: False,
        before: Prepared = NOTHING_PREPARED,
    ) -> StalePlan | None:
        info = self._info(self._new_token(), self._now(), operation, blind=False)
        if self.is_beside_writer:
            deadline = min(deadline, self._clock.monotonic() + LOCK_HOLD_MAX_S)
        with self.known.turn:
            return self.commit_checked(info, actions, deadline, may_stand, before)


def _has_settings(state: TableState, planned_for: TopicSettings | None) -> bool:
    """Whether the settings that a plan was made for still apply. Once `alter_configs` has returned,
    no record may be removed by the former settings.
    """
    if planned_for is None or state.metadata is None:
        return planned_for is None
    return TopicSettings.from_properties(state.metadata.configuration) == planned_for


def _begins_at_end(segment: PendingSegment, head: TopicHead) -> bool:
    records = segment.rewritten
    return records is not None and all(
        partition < head.partitions and head.next_offsets[partition] == base
        for (partition, _), (base, _) in zip(segment.partition_rows, records.ranges, strict=True)
    )
