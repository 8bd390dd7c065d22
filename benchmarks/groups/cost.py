"""What the members of a group cost: requests a minute, idle and busy, on a modelled S3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Barrier, Event
from time import monotonic, sleep

from benchmarks.groups.members import Members
from benchmarks.groups.plan import GroupsPlan
from benchmarks.groups.requests import GroupStore, by_label
from benchmarks.modelled.model import StoreModel
from deltaq import Producer, Topic
from deltaq.store import MemoryStore

__all__ = ["GroupCost", "measure_costs"]


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Requests of all members of a group in `seconds`, by what they are for; `billed` by the kinds
    of the price list.

    Busy: each partition gets a record every half second, and members commit every five seconds.
    `started_s`: from the first subscription until all had their partitions. `records` were
    returned.
    """

    members: int
    busy: bool
    seconds: float
    started_s: float
    requests: dict[str, int]
    billed: dict[str, int]
    records: int

    def per_minute(self, label: str) -> float:
        """Requests of one member."""
        return self.requests[label] * 60 / self.seconds / self.members

    @property
    def group_per_minute(self) -> float:
        """Requests of one member for its group, without those for records."""
        return sum(
            self.per_minute(label)
            for label in self.requests
            if label.startswith(("heartbeat", "group"))
        )

    @property
    def commits_per_s(self) -> float:
        """Entries of the group's log that one member writes a second."""
        return self.per_minute("group log create") / 60

    def dollars(self, model: StoreModel) -> float:
        """A day, for one member."""
        rates = {kind: number / self.seconds for kind, number in self.billed.items()}
        return model.prices.dollars_for_requests(rates) / self.members


def measure_costs(plan: GroupsPlan, sizes: Sequence[int]) -> list[GroupCost]:
    """Groups of these sizes at the same time, in this process: each idle, then busy."""
    idle, busy = Barrier(len(sizes)), Barrier(len(sizes))

    def measure(size: int) -> list[GroupCost]:
        try:
            return _measure(plan, size, lambda is_busy: (busy if is_busy else idle).wait())
        except BaseException:
            idle.abort()  # the others must not wait for a failed group
            busy.abort()
            raise

    with ThreadPoolExecutor(len(sizes)) as pool:
        return [cost for costs in pool.map(measure, sizes) for cost in costs]


def _measure(plan: GroupsPlan, size: int, together: Callable[[bool], object]) -> list[GroupCost]:
    inner, partitions = MemoryStore(f"group-of-{size}"), max(size, 10)
    Topic("events", partitions=partitions, store=inner).create()
    stores = [GroupStore(inner, plan.model, plan.seed + number) for number in range(size)]
    members = Members(stores, "events", {"group.id": "g", "auto.offset.reset": "earliest"})

    def count(is_busy: bool, seconds: float, started_s: float) -> GroupCost:
        together(is_busy)
        begun_at, before, billed, records = monotonic(), *_counted(stores), sum(members.records)
        sleep(seconds)
        after, billed_after = _counted(stores)
        return GroupCost(
            size,
            is_busy,
            monotonic() - begun_at,
            started_s,
            by_label(before, after),
            {kind: number - billed[kind] for kind, number in billed_after.items()},
            sum(members.records) - records,
        )

    with members.polling():
        started_s = members.await_all(partitions)
        sleep(1.0)  # until the topic's log is read as rarely as that of an idle topic
        idle = count(False, plan.idle_s, started_s)
        with _producing(inner, partitions):
            sleep(plan.warmup_s)
            busy = count(True, plan.busy_s, started_s)
    return [idle, busy]


def _counted(stores: Sequence[GroupStore]) -> tuple[Counter[str], Counter[str]]:
    labels: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for store in stores:
        labels.update(store.counted())
        kinds.update(store.requests())
    return labels, kinds


@contextmanager
def _producing(store: MemoryStore, partitions: int) -> Iterator[None]:
    """One commit of a producer a second, whose requests are not counted."""
    stop = Event()

    def produce() -> None:
        conf = {"bootstrap.servers": store.url, "linger.ms": 1000, "maintenance.enable": False}
        with Producer(conf, store=store) as producer:
            while not stop.wait(0.5):
                for partition in range(partitions):
                    producer.produce("events", b"x" * 100, partition=partition)
                producer.poll(0)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(produce)
        try:
            yield
        finally:
            stop.set()
        running.result()
