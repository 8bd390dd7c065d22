"""Copies of topics that are written, trimmed, grown and maintained in any order; the copier crashes
at any write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq import AdminClient, Producer, Topic, TopicPartition
from deltaq.admin import NewPartitions
from deltaq.clock import SYSTEM_CLOCK
from deltaq.maintenance import run
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import forget_memory_store, open_store
from deltaq.testing import Crash, Fault, FaultyStore, Rule
from deltaq.tools.copying import TopicCopier

SOURCE, TARGET = "memory://model-source", "memory://model-target"
T0 = 1_700_000_000_000

STEP = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 30), st.integers(0, 3)),
    st.tuples(st.just("trim"), st.integers(0, 3), st.floats(0, 1)),
    st.tuples(st.just("grow"), st.just(0), st.just(0)),
    st.tuples(st.just("maintain"), st.sampled_from([SOURCE, TARGET]), st.just(0)),
    st.tuples(st.just("copy"), st.integers(1, 12), st.sampled_from([1, 300, 10**6])),
)


@dataclass
class Model:
    """A source, its copy, and every record that was ever produced, by place."""

    policy: str
    produced: dict[tuple[int, int], tuple[bytes, bytes | None]] = field(default_factory=dict)
    partitions: int = 2
    count: int = 0

    def begin(self) -> None:
        config = {"retention.ms": -1, "cleanup.policy": self.policy, "min.cleanable.dirty.ratio": 0}
        Topic(
            "t", partitions=self.partitions, config=config, conf={"bootstrap.servers": SOURCE}
        ).create()

    def produce(self, number: int, partition: int) -> None:
        ends = Topic("t", conf={"bootstrap.servers": SOURCE}).describe().next_offsets
        partition %= self.partitions
        with Producer(bootstrap_servers=SOURCE) as producer:
            for at in range(number):
                key, value = (
                    b"%d" % (self.count % 5),
                    None if self.count % 7 == 0 else b"%d" % self.count,
                )
                producer.produce(
                    "t", value, key=key, partition=partition, timestamp=T0 + self.count
                )
                self.produced[partition, ends[partition] + at] = key, value
                self.count += 1

    def trim(self, partition: int, share: float) -> None:
        about = Topic("t", conf={"bootstrap.servers": SOURCE}).describe()
        partition %= self.partitions
        start, end = about.start_offsets[partition], about.next_offsets[partition]
        before = TopicPartition("t", partition, start + int((end - start) * share))
        with AdminClient(bootstrap_servers=SOURCE) as admin:
            for future in admin.delete_records([before]).values():
                future.result()

    def grow(self, *_: Any) -> None:
        self.partitions = min(4, self.partitions + 1)
        if self.partitions > len(
            Topic("t", conf={"bootstrap.servers": SOURCE}).describe().partitions
        ):
            admin = AdminClient(bootstrap_servers=SOURCE)
            admin.create_partitions([NewPartitions("t", self.partitions)])["t"].result()

    def maintain(self, root: str, _: int) -> None:
        run(root, once=True, settings=MaintenanceSettings(clean_up_grace_s=0))

    def copy(self, write: int, bytes_at_once: int) -> None:
        """Copy, and crash at a write: before it, or after it without an answer."""
        fault = Fault.crash_before() if write % 2 else Fault.crash_after()
        target = FaultyStore(open_store(TARGET), Rule("write", "*", fault, nth=write))
        try:
            TopicCopier(
                open_store(SOURCE), target, "t", SYSTEM_CLOCK, bytes_at_once=bytes_at_once
            ).run()
        except Crash:
            pass


def _records(root: str) -> dict[tuple[int, int], tuple[object, ...]]:
    rows = Topic("t", conf={"bootstrap.servers": root}).to_arrow().to_pylist()
    found: dict[tuple[int, int], tuple[object, ...]]
    found = {
        (row["_partition"], row["_offset"]): (row["_timestamp"], row["_key"], row["value"])
        for row in rows
    }
    assert len(found) == len(rows)
    return found


@pytest.fixture(autouse=True)
def roots() -> Iterator[None]:
    yield
    for name in ("model-source", "model-target"):
        forget_memory_store(name)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
@settings(max_examples=25)
@given(steps=st.lists(STEP, max_size=10))
def test_every_copy_ends_identical(policy: str, steps: list[tuple[str, Any, Any]]) -> None:
    for name in ("model-source", "model-target"):
        forget_memory_store(name)
    model = Model(policy)
    model.begin()
    for verb, first, second in steps:
        getattr(model, verb)(first, second)
    TopicCopier(open_store(SOURCE), open_store(TARGET), "t", SYSTEM_CLOCK, bytes_at_once=500).run()
    source, target = (
        Topic("t", conf={"bootstrap.servers": root}).describe() for root in (SOURCE, TARGET)
    )
    assert target.next_offsets == source.next_offsets
    assert target.start_offsets == source.start_offsets
    here, there = _records(SOURCE), _records(TARGET)
    for place, (_, key, value) in (here | there).items():
        assert (key, value) == model.produced[place]
    if policy == "delete":
        assert there == here
    else:
        # Each side is compacted on its own: both have at least the newest record of each key.
        newest = {
            (partition, key): (partition, offset)
            for (partition, offset), (_, key, _) in sorted(there.items())
        }
        assert newest == {
            (p, key): (p, offset) for (p, offset), (_, key, _) in sorted(here.items())
        }
