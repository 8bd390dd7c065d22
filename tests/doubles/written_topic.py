"""A topic that is written and maintained on one thread, so that a test controls the order of
events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.config import topic_properties
from deltaq.maintenance.row_cache import RowCache
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.serde.schema import TopicSchema
from deltaq.store import MemoryStore, Store
from deltaq.testing import ManualClock, messages_of
from deltaq.topics.columns import Columns, Headers, columns_of_rows
from deltaq.topics.log import Appended, AppendOutcome
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.metadata import NewTopicPlan, create_topic
from deltaq.topics.state import DataFile, PendingSegment, TopicChange
from deltaq.topics.upload import upload_segment

__all__ = ["SMALL", "RowToWrite", "WrittenTopic", "seen_by_consumers"]

TOPIC = "t"

SMALL = MaintenanceSettings(
    checkpoint_interval=5,
    keep_entries_min=3,
    keep_entries_max=1000,
    clean_up_grace_s=60.0,
    clean_up_interval_s=0.0,
    merge_files=4,
    scan_interval_ms=0,
)
"""Settings with small limits and intervals, with which all maintenance is due soon."""


@dataclass(frozen=True)
class RowToWrite:
    """A record to be written. `timestamp_ms` None: now."""

    value: Any
    key: bytes | None = None
    partition: int = 0
    timestamp_ms: int | None = None
    headers: Headers = None


class WrittenTopic:
    """The topic `t` with a log of its own. Every `append` is one commit. `row_cache`: of background
    maintenance.
    """

    def __init__(
        self,
        store: Store | None = None,
        clock: Clock | None = None,
        partitions: int = 1,
        schema: TopicSchema | None = None,
        **config: object,
    ) -> None:
        self.clock = clock or ManualClock(auto_advance=True)
        self.store = store = store or MemoryStore("test", self.clock)
        self.schema = schema
        self.row_cache = RowCache(self.clock)
        self.log = MaintenanceLog(store, TOPIC, self.clock)
        properties = topic_properties(
            {name.replace("_", "."): value for name, value in config.items()}
        )
        create_topic(
            self.log, NewTopicPlan(partitions, schema, properties), self._deadline(), exist_ok=False
        )

    def _deadline(self) -> float:
        return self.clock.monotonic() + 60

    # --- writing ---

    def columns(self, rows: Sequence[RowToWrite]) -> Columns:
        now = self.clock.time_ms()
        times = [now if row.timestamp_ms is None else row.timestamp_ms for row in rows]
        return columns_of_rows(
            [row.partition for row in rows],
            pa.array(times, pa.int64()),
            [row.key for row in rows],
            [row.headers for row in rows],
            [row.value for row in rows],
            self.schema,
        )

    def upload(self, *rows: RowToWrite, codec: str = "none") -> PendingSegment:
        """What a producer has done before it commits."""
        self.log.catch_up()
        segment, written = upload_segment(
            self.store,
            TOPIC,
            self.columns(rows),
            self.log.settings,
            (codec, None),
            deadline=self._deadline(),
            clock=self.clock,
            as_of=self.log.version,
        )
        self.row_cache.keep(segment.path, written)
        return segment

    def commit(self, *segments: PendingSegment) -> tuple[DataFile, ...]:
        appended = self.try_commit(*segments)
        assert isinstance(appended, Appended)
        return appended.files

    def try_commit(self, *segments: PendingSegment) -> AppendOutcome:
        return self.log.append(lambda: segments, self.log.live_head.topic_id, self._deadline())

    def append(self, *rows: RowToWrite, codec: str = "none") -> tuple[DataFile, ...]:
        return self.commit(self.upload(*rows, codec=codec))

    def configure(self, **config: object) -> None:
        properties: dict[str, str | None] = {}
        properties |= topic_properties(
            {name.replace("_", "."): value for name, value in config.items()}
        )
        self.log.change(lambda head, _: TopicChange(head.partitions, properties), self._deadline())

    # --- inspection ---

    @property
    def files(self) -> list[DataFile]:
        """The live files, oldest records first."""
        self.log.catch_up()
        return sorted(self.log.index.files.values(), key=lambda file: file.segment.version)

    @property
    def starts(self) -> tuple[int, ...]:
        self.log.catch_up()
        return self.log.live_head.start_offsets

    def fresh_log(self) -> MaintenanceLog:
        """The topic as a new client loads it: a snapshot, verified as a whole."""
        log = MaintenanceLog(self.store, TOPIC, self.clock)
        log.load()
        return log

    def stored(self) -> set[str]:
        """The names of the data files in the topic's folder."""
        folder = self.log.folder
        names = (entry.key.removeprefix(folder) for entry in self.store.list(folder))
        return {name for name in names if not name.startswith("_")}

    def live(self) -> set[str]:
        return {file.path for file in self.files}

    # --- maintenance ---

    def maintenance(self, settings: MaintenanceSettings = SMALL, **changes: Any) -> TopicPass:
        settings = replace(settings, **changes)
        return TopicPass(self.store, TOPIC, self.clock, settings, Throttle(self.clock))

    def maintain(self, settings: MaintenanceSettings = SMALL, **changes: Any) -> Counter[str]:
        """Run one round of a new maintenance instance."""
        return self.maintenance(settings, **changes).run()


def seen_by_consumers(store: Store, topic: Any = TOPIC) -> list[tuple[Any, ...]]:
    """All that a consumer sees of each record: partition, offset, (type of the time, time), key,
    value, headers.
    """
    return [
        (m.partition(), m.offset(), m.timestamp(), m.key(), m.value(), m.headers())
        for m in messages_of(store, topic)
    ]
