"""The maintenance that is due for a topic, as a pure function of the topic's state."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from deltaq.config import TopicSettings
from deltaq.maintenance.file_compaction import (
    DECODED_BYTES_AT_ONCE,
    FileRewrite,
    plan_compaction,
    plan_trim,
)
from deltaq.maintenance.key_compaction import KeyCleaning, plan_cleaning
from deltaq.maintenance.retention import plan_retention
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.topics.holds import HeldOffsets
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.state import TopicHead

DueAction: TypeAlias = "Trimmed | FileRewrite | KeyCleaning"


class Kind(Enum):
    """Kinds of maintenance of records and files, most urgent first."""

    RETENTION = auto()
    TRIM = auto()
    CLEANING = auto()
    MERGE = auto()


@dataclass(frozen=True, slots=True)
class MaintainedTopic:
    """An existing topic at one version. `index` must not change while this is in use.

    `damaged` and `unmergeable` are paths: of files that cannot be read, and of files whose number a
    merge cannot reduce. `until` is the version up to which files are merged, since newer files
    could displace older ones for ever. `held`: what the holds on the topic keep; None if they were
    not read.
    """

    head: TopicHead
    index: OffsetIndex
    topic: TopicSettings
    damaged: AbstractSet[str] = frozenset()
    unmergeable: AbstractSet[str] = frozenset()
    until: int | None = None
    held: HeldOffsets | None = None


HELD_KINDS = frozenset({Kind.RETENTION, Kind.CLEANING})
"""The kinds of actions that remove records which a hold may keep."""


def plan(
    maintained: MaintainedTopic,
    settings: MaintenanceSettings,
    now_ms: int,
    decoded_max: int = DECODED_BYTES_AT_ONCE,
    yield_point: Callable[[], object] = lambda: None,
) -> dict[Kind, DueAction]:
    """The actions that are due for the records and files of a topic, most urgent first.

    New files decode to at most about `decoded_max` bytes. `yield_point` is called between pieces of
    work. Each action invalidates the others: carry out the first one, then plan again.
    """
    head, index = maintained.head, maintained.index
    topic, damaged = maintained.topic, maintained.damaged
    ends = None if maintained.held is None else maintained.held.ends
    starts = None if maintained.held is None else maintained.held.starts
    rules: dict[Kind, Callable[[], DueAction | None]] = {
        Kind.RETENTION: lambda: plan_retention(index, head, topic, now_ms, yield_point, starts),
        Kind.TRIM: lambda: plan_trim(index, head, damaged),
        Kind.CLEANING: lambda: plan_cleaning(index, topic, settings, now_ms, damaged, ends),
        Kind.MERGE: lambda: plan_compaction(
            index,
            head,
            topic.segment_bytes,
            settings,
            until=maintained.until,
            decoded_max=decoded_max,
            left_out=damaged | maintained.unmergeable,
            yield_point=yield_point,
        ),
    }
    actions = {}
    for kind, rule in rules.items():
        if (action := rule()) is not None:
            actions[kind] = action
        yield_point()
    return actions
