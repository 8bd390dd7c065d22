"""Spark's own Delta on maintained topics: it sees what a model says is left, and streams take each
record once.

The model is that of `tests.integration.test_maintenance_model`, whose other readers look after each
step as well.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ageing import BackdatedStore
from deltaq import AdminClient, TopicPartition
from deltaq.testing import ManualClock
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic
from tests.integration.test_maintenance_model import (
    HOUR_MS,
    PARTITIONS,
    POLICIES,
    YEAR_2262_MS,
    Model,
)
from tests.spark.native_spark import NativeSpark

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]


class RandomRun:
    """Random operations on the model's topic. After each step all readers check it, among them
    Spark's own Delta: alternately with and without the table state of an earlier read.
    """

    def __init__(self, native: NativeSpark, policy: str, seed: int) -> None:
        self._native, self._chance, self._policy = native, random.Random(f"{policy} {seed}"), policy
        self.seen: Counter[str] = Counter()

    def play(self, steps: int) -> None:
        model = Model()
        with contextlib.ExitStack() as ending:
            ending.callback(model.teardown)
            model.begin(policy=self._policy)
            for step in range(steps):
                # Each kind of step often enough in a short story, yet in no fixed order.
                self._step(model, ["produce", "maintain", "any"][step % 3])
                model.a_new_consumer_sees_what_is_left()
                model.delta_rs_sees_what_is_left()
                self._look(model, anew=step % 2 == 0)

    def _step(self, model: Model, kind: str) -> None:
        chance = self._chance
        if kind == "any":
            kind = chance.choice(["produce", "maintain", "delete records", "configure", "go on"])
        if kind == "produce":
            model.produce(
                self._rows(), commits=chance.randint(1, 4), hours=chance.choice([0, 0, 1, 4])
            )
        elif kind == "maintain":
            model.maintain(hours=chance.choice([0, 0, 0.5, 4, 30]), new=chance.random() < 0.5)
        elif kind == "delete records" and "delete" in model.policy:
            model.delete_records(partition=chance.randrange(PARTITIONS), share=chance.random())
        elif kind == "configure":
            model.configure(
                policy=chance.choice(POLICIES), retention_bytes=chance.choice([-1, -1, 3000])
            )
        else:
            model.go_on(chance.randint(1, 6))

    def _rows(self) -> list[tuple[int, bytes | None, int, int | None]]:
        chance = self._chance
        times = None, None, None, 0, YEAR_2262_MS
        return [
            (
                chance.randrange(PARTITIONS),
                chance.choice([b"a", b"b", b"c", None]),
                chance.randint(0, 4),
                time,
            )
            for time in chance.choices(times, k=chance.randint(1, 4))
        ]

    def _look(self, model: Model, *, anew: bool) -> None:
        rows = self._native.rows(f"{model.root}/topics/t", anew=anew)
        found = Counter((row.partition, row.timestamp_ms, row.key, row.value) for row in rows)
        assert found == Counter(
            (p, r.timestamp_ms, r.key, r.value) for (p, _), r in model.live.items()
        )
        for row in rows:
            if row.offset is not None:
                record = model.live[row.partition, row.offset]
                assert (row.key, row.value) == (record.key, record.value)
                self.seen["rows that say their offset"] += 1
        self.seen["rows"] += len(rows)
        self.seen["records that have left"] = len(model.ever) - len(model.live)


@pytest.mark.fault("W2")
@pytest.mark.parametrize("policy", POLICIES)
def test_native_delta_agrees_with_the_model_after_each_step(
    native: NativeSpark, policy: str
) -> None:
    story = RandomRun(native, policy, seed=1)
    story.play(steps=9)
    assert (
        min(
            story.seen[what]
            for what in ("rows", "rows that say their offset", "records that have left")
        )
        > 0
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", POLICIES)
def test_native_delta_agrees_with_the_model_in_many_long_runs(
    native: NativeSpark, policy: str
) -> None:
    for seed in range(2, 12):
        print(f"{policy}: story {seed} of 2 to 11", flush=True)
        RandomRun(native, policy, seed).play(steps=30)


@pytest.mark.fault("W2")
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_native_stream_takes_each_record_once_across_maintenance(
    native: NativeSpark, policy: str, tmp_path: Path
) -> None:
    """Rewrites change no data; `ignoreDeletes` covers removals."""
    clock, chance = ManualClock(auto_advance=True), random.Random(policy)
    topic = WrittenTopic(
        store := BackdatedStore(str(tmp_path), clock),
        clock,
        partitions=2,
        cleanup_policy=policy,
        retention_ms=50 * HOUR_MS,
        delete_retention_ms=HOUR_MS,
        min_cleanable_dirty_ratio=0,
    )
    # Entries stay that a stream may want: restarted, it looks at those of its last batch once more.
    work = topic.maintenance(replace(SMALL, merge_files=3, in_flight_ms=0, keep_entries_min=18))
    table, scratch = tmp_path / "topics" / "t", tmp_path / "scratch"
    written: Counter[tuple[int, bytes | None, bytes | None]] = Counter()
    done: Counter[str] = Counter()
    for number in range(3):
        for commit in range(7):
            rows = [
                RowToWrite(
                    None if chance.random() < 0.2 else b"%d.%d.%d" % (number, commit, n),
                    b"%d" % chance.randrange(5),
                    chance.randrange(2),
                )
                for n in range(chance.randrange(1, 5))
            ]
            topic.append(*rows)
            written.update((row.partition, row.key, row.value) for row in rows)
        native.go_on(table, scratch)  # in time: what has left the topic for a day is gone
        if policy == "delete" and number == 1:
            with AdminClient(
                {"bootstrap.servers": str(tmp_path)}, store=store, clock=clock
            ) as admin:
                admin.delete_records([tp := TopicPartition("t", 0, 9)])[tp].result(60)
        for _ in range(2):
            done.update(work.run())
            clock.advance(26 * 3600)
    assert (
        Counter((row.partition, row.key, row.value) for row in native.streamed(scratch)) == written
    )
    of_policy = {
        "delete": {"files expired", "files merged", "log objects deleted"},
        "compact": {"records superseded"},
    }
    assert {what for what, count in done.items() if count} >= of_policy[policy] | {
        "checkpoints",
        "files deleted",
    }
