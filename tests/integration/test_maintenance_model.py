"""Any order of writing, deleting and maintenance leaves to every reader just the records that ought
to be there.

After each step the topic is read by a consumer that has just come and by `deltalake`; a third
reader was there before and goes on. Rules about single records, not files, say which may be
removed, and by when they must be.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import deltalake
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.ageing import BackdatedStore
from deltaq import AdminClient, Consumer, KafkaError, TopicPartition
from deltaq.names import checkpoint_version, entry_version, topic_log
from deltaq.testing import ManualClock
from tests.depth import depth
from tests.doubles.reading import eventually
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers

PARTITIONS = 2
HOUR_MS = 3600 * 1000
RETENTION_MS = 5 * HOUR_MS
TOMBSTONES_MS = 3 * HOUR_MS
YEAR_2262_MS = 9_223_372_036_854
SETTINGS = replace(SMALL, merge_files=3, in_flight_ms=0)
POLICIES = ["delete", "compact", "compact,delete"]

Place = tuple[int, int]


@dataclass(frozen=True)
class ModelRecord:
    """A record as it was written; `appended_ms` is when."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    appended_ms: int

    @property
    def age_from_ms(self) -> int:
        """Since when retention may count: no claim of the future keeps a record."""
        return min(self.timestamp_ms, self.appended_ms)


class Model(RuleBasedStateMachine):
    """`ever` is all that was written, `live` what is left of it; `expired` what went for its age or
    on demand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cleanup = contextlib.ExitStack()
        self.root = self.cleanup.enter_context(tempfile.TemporaryDirectory())
        self.clock = ManualClock(auto_advance=True)
        self.store = BackdatedStore(self.root, self.clock)
        self.sent = 0
        self.ever: dict[Place, ModelRecord] = {}
        self.live: dict[Place, ModelRecord] = {}
        self.expired: set[Place] = set()
        self.starts = [0] * PARTITIONS
        self.ends = [0] * PARTITIONS

    def teardown(self) -> None:
        try:
            if hasattr(self, "reader"):
                self.go_on(10**9)
        finally:
            self.cleanup.close()

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: str) -> None:
        self.policy, self.retention_bytes = policy, -1
        self.topic = WrittenTopic(self.store, self.clock, PARTITIONS, **self.config())
        self.maintenance = self.topic.maintenance(SETTINGS)
        conf: dict[str, object] = {
            "bootstrap.servers": self.root,
            "group.id": "g",
            "enable.auto.commit": False,
        }
        conf |= {"auto.offset.reset": "error", "enable.partition.eof": True}
        # Or it would have read all before anything can go.
        conf |= {"queued.max.messages.kbytes": 1}
        self.reader = self.cleanup.enter_context(Consumer(conf, store=self.store, clock=self.clock))
        self.reader.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
        self.position = [0] * PARTITIONS
        self.reported_end = [-1] * PARTITIONS

    def config(self) -> dict[str, Any]:
        return {
            "cleanup_policy": self.policy,
            "retention_ms": RETENTION_MS,
            "retention_bytes": self.retention_bytes,
            "delete_retention_ms": TOMBSTONES_MS,
            "min_cleanable_dirty_ratio": 0,
        }

    # --- what happens ---

    @rule(
        rows=st.lists(
            st.tuples(
                st.integers(0, PARTITIONS - 1),
                st.sampled_from([b"a", b"b", b"c", None]),
                st.integers(0, 4),
                st.sampled_from([None, None, None, 0, YEAR_2262_MS]),
            ),
            min_size=1,
            max_size=4,
        ),
        commits=st.integers(1, 4),
        hours=st.sampled_from([0, 0, 1, 4]),
    )
    def produce(
        self, rows: list[tuple[int, bytes | None, int, int | None]], commits: int, hours: float
    ) -> None:
        self.clock.advance(hours * 3600)
        for _ in range(commits):
            written = []
            for partition, key, choice, timestamp in rows:
                if key is None and "compact" in self.policy:
                    key = b"d"  # producers refuse a record without one
                self.sent += 1
                value = None if choice == 0 else b"%d-" % self.sent * 40
                row = RowToWrite(
                    value, key, partition, self.clock.time_ms() if timestamp is None else timestamp
                )
                written.append(row)
            self.topic.append(*written)
            for row in written:
                place = row.partition, self.ends[row.partition]
                self.ends[row.partition] += 1
                self.ever[place] = ModelRecord(
                    row.timestamp_ms or 0, row.key, row.value, self.clock.time_ms()
                )
                self.live[place] = self.ever[place]

    @rule(policy=st.sampled_from(POLICIES), retention_bytes=st.sampled_from([-1, -1, 3000]))
    def configure(self, policy: str, retention_bytes: int) -> None:
        self.policy, self.retention_bytes = policy, retention_bytes
        self.topic.configure(**self.config())

    @precondition(lambda self: "delete" in self.policy)
    @rule(partition=st.integers(0, PARTITIONS - 1), share=st.floats(0, 1))
    def delete_records(self, partition: int, share: float) -> None:
        start, end = self.starts[partition], self.ends[partition]
        offset = start + round((end - start) * share)
        tp = TopicPartition("t", partition, offset)
        with AdminClient(
            {"bootstrap.servers": self.root}, store=self.store, clock=self.clock
        ) as admin:
            assert admin.delete_records([tp])[tp].result(60).low_watermark == offset
        self.starts[partition] = offset
        self.gone({place for place in self.live if place[0] == partition and place[1] < offset})

    def gone(self, places: set[Place]) -> None:
        self.expired |= places
        for place in places:
            del self.live[place]

    # --- maintenance ---

    @rule(hours=st.sampled_from([0, 0, 0.5, 4, 30]), new=st.booleans())
    def maintain(self, hours: float, new: bool) -> None:
        self.clock.advance(hours * 3600)
        work = self.topic.maintenance(SETTINGS) if new else self.maintenance
        done = work.run()
        if done["log objects deleted"] == 0 and work.is_waiting():
            self.clock.advance(61)
            work.finish()
        found = {(seen[0], seen[1]) for seen in seen_by_consumers(self.store)}
        starts = list(self.topic.starts)
        assert all(map(int.__le__, self.starts, starts))
        self.starts = starts
        vanished = self.live.keys() - found
        below = {place for place in vanished if place[1] < starts[place[0]]}
        # The start may also pass records that compaction has taken in the same round.
        expired = {place for place in below if self.may_expire(self.live[place])}
        assert all(self.is_superseded(place) for place in vanished - expired)
        self.gone(expired)
        for place in vanished - expired:
            del self.live[place]
        self.check_progress()

    def may_expire(self, record: ModelRecord) -> bool:
        if "delete" not in self.policy:
            return False
        return self.retention_bytes >= 0 or record.age_from_ms < self.clock.time_ms() - RETENTION_MS

    def is_superseded(self, place: Place) -> bool:
        """Whether key compaction may have taken a record."""
        record = self.live[place]
        if "compact" not in self.policy or record.key is None:
            return False
        partition, offset = place
        newer = any(
            p == partition and o > offset and r.key == record.key for (p, o), r in self.ever.items()
        )
        return newer or (
            record.value is None and self.clock.time_ms() >= record.appended_ms + TOMBSTONES_MS
        )

    def check_progress(self) -> None:
        """What must have been done, whatever the files are."""
        if "delete" in self.policy and all(
            record.appended_ms < self.clock.time_ms() - RETENTION_MS
            for record in self.live.values()
        ):
            assert not self.live
        if "compact" in self.policy:
            keys = Counter(
                (place[0], record.key)
                for place, record in self.live.items()
                if record.key is not None
            )
            assert all(count == 1 for count in keys.values())
        log = [entry.key for entry in self.store.list(topic_log("t"))]
        entries = [version for key in log if (version := entry_version(key)) is not None]
        checkpoints = [version for key in log if (version := checkpoint_version(key)) is not None]
        assert max(entries) - max(checkpoints, default=-1) <= 2 * SETTINGS.checkpoint_interval

    # --- reading ---

    @rule(count=st.integers(1, 6))
    def go_on(self, count: int) -> None:
        """The existing consumer reads a few more records, or until the end of each partition."""
        while count and self.reported_end != self.ends:
            message = self.next_event()
            partition, error = message.partition(), message.error()
            if error is None:
                self.check_read(partition, message)
                count -= 1
            elif error == KafkaError._PARTITION_EOF:
                self.reported_end[partition] = message.offset()
                left = range(self.position[partition], message.offset())
                assert not any((partition, offset) in self.live for offset in left)
            else:
                assert error == KafkaError._AUTO_OFFSET_RESET, error
                assert self.position[partition] <= self.starts[partition]
                self.position[partition] = self.starts[partition]
                self.reported_end[partition] = -1
                self.reader.seek(TopicPartition("t", partition, self.starts[partition]))

    def next_event(self) -> Any:
        """The reader's next message or event; its time passes while it has none."""
        found: list[Any] = []

        def look() -> list[Any]:
            if (message := self.reader.poll(0)) is not None:
                found.append(message)
            else:
                self.clock.advance(0.05)
            return found

        eventually(look, "a message or an end")
        return found[0]

    def check_read(self, partition: int, message: Any) -> None:
        offset = message.offset()
        record = self.ever[partition, offset]
        assert (message.key(), message.value(), message.timestamp()[1]) == (
            record.key,
            record.value,
            record.timestamp_ms,
        )
        assert offset >= self.position[partition]
        skipped = {(partition, between) for between in range(self.position[partition], offset)}
        assert not skipped & self.live.keys(), "a record that is there was passed over"
        assert not skipped & self.expired, "passed over in silence what was removed"
        self.position[partition] = offset + 1

    @invariant()
    def a_new_consumer_sees_what_is_left(self) -> None:
        found = {
            (partition, offset): (time, key, value)
            for partition, offset, (_, time), key, value, _ in seen_by_consumers(self.store)
        }
        assert found == {place: (r.timestamp_ms, r.key, r.value) for place, r in self.live.items()}

    @invariant()
    def delta_rs_sees_what_is_left(self) -> None:
        rows = deltalake.DeltaTable(f"{self.root}/topics/t").to_pyarrow_table().to_pylist()
        found = Counter((row["_partition"], row["_key"], row["value"]) for row in rows)
        assert found == Counter(
            (partition, r.key, r.value) for (partition, _), r in self.live.items()
        )
        for row in rows:
            if row["_offset"] is not None:
                record = self.live[row["_partition"], row["_offset"]]
                assert (row["_key"], row["value"]) == (record.key, record.value)


Model.TestCase.settings = settings(
    max_examples=depth(5, 15),
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


TestModel = Model.TestCase
