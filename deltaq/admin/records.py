"""Deletion of the records of partitions before an offset."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, OffsetOutOfRange, UnknownTopic
from deltaq.maintenance.file_compaction import plan_trim
from deltaq.maintenance.retention import plan_deletion
from deltaq.maintenance.rewrite import Rewriter
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.message import OFFSET_END
from deltaq.store import Store
from deltaq.topics.log import StalePlan, TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.scan import FileGone
from deltaq.topics.state import TopicHead

_log = logging.getLogger("deltaq.admin")


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The result of a deletion: `low_watermark` is the partition's first offset now."""

    low_watermark: int


def checked_offsets(
    log: TopicLog, wanted: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, UnknownTopic | OffsetOutOfRange]]:
    """The new start offset of each valid partition, and the error of each other one.

    Raises UnknownTopic, KafkaException (POLICY_VIOLATION) for a topic that is only compacted.
    """
    head = log.live_head
    if log.settings.cleanup_policy == ("compact",):
        reason = (
            f"records of topic {log.topic!r} are not deleted by age or offset: its cleanup.policy "
            "is compact"
        )
        raise KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, reason))
    starts: dict[int, int] = {}
    wrong: dict[int, UnknownTopic | OffsetOutOfRange] = {}
    for partition, offset in wanted.items():
        if partition >= head.partitions:
            wrong[partition] = UnknownTopic(log.topic, partition=partition)
            continue
        earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
        if offset == OFFSET_END:
            starts[partition] = latest
        elif 0 <= offset <= latest:
            starts[partition] = offset
        else:
            wrong[partition] = OffsetOutOfRange(
                topic=log.topic,
                partition=partition,
                requested=offset,
                earliest=earliest,
                latest=latest,
            )
    return starts, wrong


def delete_before(log: MaintenanceLog, starts: Mapping[int, int], deadline: float) -> TopicHead:
    """Move the start offsets of partitions in one commit, and return the topic's new head.

    Raises UnknownTopic, and what `MaintenanceLog.retain` raises.
    """
    topic_id = log.live_head.topic_id

    def decide(head: TopicHead) -> Trimmed:
        if head.deleted or head.topic_id != topic_id:
            raise UnknownTopic(log.topic, reason=f"topic {log.topic!r} was deleted meanwhile")
        return plan_deletion(log.index, head, starts)

    before = log.live_head.start_offsets
    if any(before[partition] < start for partition, start in starts.items()):
        log.retain(decide, deadline)
    return log.live_head


def trim(store: Store, log: MaintenanceLog, clock: Clock, throttle: Throttle) -> None:
    """Remove records before the start offset from the files that also hold later records, by
    rewriting those files.

    Other readers of the table do not know start offsets and would read those records. Raises
    nothing: the next maintenance does what fails here or is stopped by `throttle`.
    """
    rewriter = Rewriter(store, log, clock)
    try:
        while log.catch_up() and (plan := plan_trim(log.index, log.live_head)) is not None:
            done = throttle.run(rewriter.rewrite(plan, clean=plan.inputs[0].clean))
            if isinstance(done, StalePlan):
                _log.info(
                    "files are left to be trimmed topic=%r reason=the topic changed meanwhile",
                    log.topic,
                )
                return
    except (FileGone, KafkaException, Stopped) as error:
        _log.info("files are left to be trimmed topic=%r reason=%s", log.topic, error)
    except Exception:  # noqa: BLE001 - the records are deleted already; only their files remain
        _log.exception("files are left to be trimmed topic=%r", log.topic)
