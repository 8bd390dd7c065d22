"""What a topic needs now, as a pure function of what it is."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from deltaq.config import TopicSettings
from deltaq.maintenance.file_compaction import DECODED_BYTES_AT_ONCE, FileRewrite, plan_compaction, plan_trim
from deltaq.maintenance.key_compaction import KeyCleaning, plan_cleaning
from deltaq.maintenance.retention import plan_retention
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.state import TopicHead

__all__ = ["Action", "Kind", "TopicSnapshot", "plan"]

Action: TypeAlias = "Trimmed | FileRewrite | KeyCleaning"


class Kind(Enum):
    """What may be due, most urgent first."""

    RETENTION = auto()
    TRIM = auto()
    CLEANING = auto()
    MERGE = auto()


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A living topic at one version. `index` must not change while this is in use.

    `damaged` and `unmergeable` are paths: of files that cannot be read, and of those that a merge cannot make fewer.
    `until` is the version up to which files are merged; None for all. What came later must not be planned in the place
    of what was there before: one merge is planned at a time, of the smallest files first.
    """

    head: TopicHead
    index: OffsetIndex
    topic: TopicSettings
    damaged: AbstractSet[str] = frozenset()
    unmergeable: AbstractSet[str] = frozenset()
    until: int | None = None


def plan(
    snapshot: TopicSnapshot,
    settings: MaintenanceSettings,
    now_ms: int,
    decoded_max: int = DECODED_BYTES_AT_ONCE,
    between: Callable[[], object] = lambda: None,
) -> dict[Kind, Action]:
    """What should be done to the records and files of a topic, most urgent first; new files decode to about
    `decoded_max` bytes at most. `between` is called between two pieces of what may be much to look at.

    One thing changes what the others see: do the first, and plan anew.
    """
    head, index, topic, damaged = snapshot.head, snapshot.index, snapshot.topic, snapshot.damaged
    left_out = damaged | snapshot.unmergeable
    rules: dict[Kind, Callable[[], Action | None]] = {
        Kind.RETENTION: lambda: plan_retention(index, head, topic, now_ms, between),
        Kind.TRIM: lambda: plan_trim(index, head, damaged),
        Kind.CLEANING: lambda: plan_cleaning(index, topic, settings, now_ms, damaged),
        Kind.MERGE: lambda: plan_compaction(
            index,
            head,
            topic.segment_bytes,
            settings,
            until=snapshot.until,
            decoded_max=decoded_max,
            left_out=left_out,
            between=between,
        ),
    }
    actions = {}
    for kind, rule in rules.items():
        if (action := rule()) is not None:
            actions[kind] = action
        between()
    return actions
