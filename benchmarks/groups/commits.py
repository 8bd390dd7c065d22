"""Offset commits: of members that commit at once, and what a day of them leaves in the group's
log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from threading import Barrier
from time import monotonic, monotonic_ns

from benchmarks.distribution import Distribution, distribution
from benchmarks.groups.members import wait_until
from benchmarks.groups.requests import GroupStore
from benchmarks.modelled.model import StoreModel
from deltaq import Consumer, Topic, TopicPartition
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.maintenance.groups import GroupPass
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.store import MemoryStore, Store, open_store
from deltaq.testing import ManualClock

__all__ = ["Commits", "LogSize", "kept_entries", "measure_commits", "measure_log"]

COMMIT_INTERVAL_S = 5
PARTITIONS = 5
"""Partitions of the member whose day is modelled."""
WEEK_MS = 7 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Commits:
    """Members that commit the offset of a partition of their own synchronously, again and again,
    for `seconds`.

    `counts` of accepted commits are those of each member, from the fewest to the most.
    """

    place: str
    seconds: float
    counts: tuple[int, ...]
    latency: Distribution

    @property
    def members(self) -> int:
        return len(self.counts)

    @property
    def per_member(self) -> float:
        """Commits a second of the median member."""
        return median(self.counts) / self.seconds

    @property
    def fairness(self) -> float:
        """Commits of the slowest member, as a share of those of the median one."""
        return self.counts[0] / max(1, median(self.counts))


def measure_commits(
    root: str, members: int, seconds: float, model: StoreModel, seed: int
) -> Iterator[Commits]:
    """On local disk below `root`, and on a modelled S3."""
    yield _commit_at_once("local disk", [open_store(root) for _ in range(members)], seconds)
    inner = MemoryStore("commits")
    yield _commit_at_once(
        model.name, [GroupStore(inner, model, seed + number) for number in range(members)], seconds
    )


def _commit_at_once(place: str, stores: Sequence[Store], seconds: float) -> Commits:
    """Each member on a thread, with a store of its own."""
    topic = f"commits-{len(stores)}"
    Topic(topic, partitions=len(stores), store=stores[0]).create()
    owned, ready = [0] * len(stores), Barrier(len(stores))

    def commit(number: int) -> list[int]:
        store, took_ns = stores[number], list[int]()
        conf = {"bootstrap.servers": store.url, "group.id": topic, "enable.auto.commit": False}
        try:
            with Consumer(conf, store=store) as consumer:
                consumer.subscribe([topic])

                def is_shared() -> bool:
                    consumer.poll(0.02)
                    owned[number] = len(consumer.assignment())
                    return set(owned) == {1}

                wait_until(is_shared, f"{owned} partitions are assigned")
                (own,) = consumer.assignment()
                ready.wait()
                end = monotonic() + seconds
                while monotonic() < end:
                    begun_ns, first = monotonic_ns(), TopicPartition(topic, own.partition, 0)
                    consumer.commit(offsets=[first], asynchronous=False)  # the topic is empty
                    took_ns.append(monotonic_ns() - begun_ns)
                ready.wait()  # a member that leaves would rebalance the group while others commit
        except BaseException:
            ready.abort()  # the others must not wait for a failed member
            raise
        return took_ns

    with ThreadPoolExecutor(len(stores)) as pool:
        found = list(pool.map(commit, range(len(stores))))
    counts = tuple(sorted(map(len, found)))
    return Commits(place, seconds, counts, distribution(took for one in found for took in one))


# --- the size of the log
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogSize:
    """The group's log after one member has committed five partitions every five seconds for
    `modelled_s`, with checkpoints and clean-up.
    """

    modelled_s: int
    entries: int
    objects: int
    mb: float

    def after_a_day(self, members: int) -> tuple[int, float]:
        """Entries and megabytes of a group of this size, whose members commit as often."""
        kept = kept_entries(members * 24 * 60 * 60 // COMMIT_INTERVAL_S)
        return kept, kept * self.mb / max(1, self.entries)


def kept_entries(written: int) -> int:
    """How many of the entries that were written within a day are kept. Pure."""
    return min(written, DEFAULT_SETTINGS.keep_entries_max)


def measure_log(modelled_s: int) -> LogSize:
    """Write the log on a clock that leaps from commit to commit."""
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("log", clock)
    log, maintenance = (
        GroupLog(store, "g", clock),
        GroupPass(store, "g", clock, DEFAULT_SETTINGS, WEEK_MS),
    )
    for number in range(modelled_s // COMMIT_INTERVAL_S):
        offsets = [
            CommittedOffset("events", "0" * 32, partition, number)
            for partition in range(PARTITIONS)
        ]
        log.commit(None, offsets, float("inf"))
        clock.advance(COMMIT_INTERVAL_S)
        if number % DEFAULT_SETTINGS.checkpoint_interval == 0:
            maintenance.run()
    listed = list(store.list("groups/"))
    entries = sum(entry.key.endswith(".json") for entry in listed)
    return LogSize(modelled_s, entries, len(listed), sum(entry.size for entry in listed) / 1e6)
