"""Many producers of one topic where only the store takes time.

Sixteen processes and their store need the whole of a small machine, so that the suite *contention*
measures processors. Here the producers run on the simulated clock of the test kit, on which
computing takes no time, and requests last as a model of a store says.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.contention import P99_AIM
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most
from benchmarks.modelled_store import S3_STANDARD, ModelledStore, RequestLatency, StoreModel
from benchmarks.suite import Report
from deltaq import KafkaError, Message, Producer, Topic
from deltaq.clock import Clock
from deltaq.names import entry_version, topic_log
from deltaq.store import Store
from tests.simulator.world import World

TOPIC = "contended"
MESSAGE = b"x" * 100

START_S = 5.0
"""When all begin to send, at the same moment. Before, each has sent one message, so that the topic
is known.
"""

QUICKER_STORE = replace(
    S3_STANDARD,
    name="a quicker store",
    latencies={
        "PUT": RequestLatency(30, 120),
        "GET": RequestLatency(15, 40),
        "LIST": RequestLatency(15, 40),
        "DELETE": RequestLatency(30, 120),
    },
)
"""About as far away as a store with disks of its own in the same data centre; assumed."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """So many producers at a time, each of which sends `rate` messages a second for `seconds`, with
    each of the `seeds`, through a store of each model.
    """

    producers: tuple[int, ...]
    rate: int
    seconds: float
    seeds: int
    models: tuple[StoreModel, ...] = (S3_STANDARD, QUICKER_STORE)


FULL_ON_A_MODEL = ModelPlan((1, 4, 16), 100, 15.0, 10)
QUICK_ON_A_MODEL = ModelPlan((1, 4), 100, 3.0, 1, (QUICKER_STORE,))


@dataclass(frozen=True, slots=True)
class Contended:
    """What so many producers met with one seed: from when a message was due to its acknowledgement,
    and the commits. `is_complete`: whether every message has an offset of its own, without a gap.
    """

    producers: int
    acknowledged: Percentiles
    commits: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class OnAModel:
    """The outcome of a plan: for each model the results with each number of producers and each
    seed.
    """

    plan: ModelPlan
    found: Mapping[str, tuple[Contended, ...]]

    @property
    def is_clean(self) -> bool:
        return all(result.is_complete for results in self.found.values() for result in results)

    @property
    def others_cores(self) -> tuple[float, ...]:
        """None: what other programs do has no influence."""
        return ()

    def tables(self) -> Iterator[Table]:
        plan = self.plan
        title = (
            f"Producers of one topic where only the store takes time: {plan.rate}/s each, mean of "
            f"{plan.seeds} seeds; messages "
            f"{'complete' if self.is_clean else 'LOST, DOUBLED OR DISORDERED'}"
        )
        rows = []
        for name, results in self.found.items():
            for count in plan.producers:
                p50, p99 = _mean(results, count)
                commits = (
                    statistics.mean(of.commits for of in results if of.producers == count)
                    / plan.seconds
                )
                figures = (
                    f"{commits:.1f}",
                    f"{p50:,.0f}",
                    f"{p99:,.0f}",
                    f"{self._to_ones(name, count):.1f}",
                )
                rows.append((f"{name}, {count}", *figures))
        yield Table(
            title, ("store, producers", "commits/s", "ack p50 ms", "p99", "p99/one's"), tuple(rows)
        )

    def targets(self) -> Iterator[Target]:
        most = max(self.plan.producers)
        for name in self.found:
            yield at_most(
                f"p99 of {most} producers/one's, {name}", P99_AIM, self._to_ones(name, most)
            )

    def _to_ones(self, name: str, producers: int) -> float:
        results = self.found[name]
        return _mean(results, producers)[1] / _mean(results, min(self.plan.producers))[1]


def _mean(results: tuple[Contended, ...], producers: int) -> tuple[float, float]:
    """The means of p50 and p99 over all seeds."""
    alike = [result.acknowledged for result in results if result.producers == producers]
    return statistics.mean(found.p50 for found in alike), statistics.mean(
        found.p99 for found in alike
    )


def measure_on_a_model(plan: ModelPlan, report: Report) -> OnAModel:
    """Carry out a plan. Raises RuntimeError if a message was not delivered."""
    found = {}
    for model in plan.models:
        report(f"contention on a model: {model.name}")
        runs = ((count, seed) for count in plan.producers for seed in range(1, plan.seeds + 1))
        found[model.name] = tuple(_contended(model, count, plan, seed) for count, seed in runs)
    return OnAModel(plan, found)


def _contended(model: StoreModel, producers: int, plan: ModelPlan, seed: int) -> Contended:
    with World(seed, preempt=0.0) as world:
        disk, director = world.network.disk, world.machine("director")
        writers = []
        for number in range(producers):
            clock = world.machine(f"producer-{number}").clock
            writers.append(
                _Writer(clock, ModelledStore(disk, model, 100 * seed + number, clock), plan)
            )

        def contended() -> None:
            Topic(TOPIC, store=disk, clock=director.clock).create()
            for thread in [writer.clock.start_thread(writer.run, "main") for writer in writers]:
                thread.join()

        world.run(contended, on=director)
        commits = sum(entry_version(entry.key) is not None for entry in disk.list(topic_log(TOPIC)))
    offsets = sorted(offset for writer in writers for offset in writer.offsets)
    return Contended(
        producers,
        distribution(took for writer in writers for took in writer.took_ns),
        commits,
        offsets == list(range(len(offsets))) and all(writer.is_in_order for writer in writers),
    )


@dataclass(eq=False)
class _Writer:
    """One producer, in a process of its own."""

    clock: Clock
    store: Store
    plan: ModelPlan
    took_ns: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    @property
    def is_in_order(self) -> bool:
        return self.offsets == sorted(self.offsets)

    def run(self) -> None:
        """Send all messages, each when it is due, and wait for their acknowledgements."""
        now = self.clock.monotonic
        conf = {"bootstrap.servers": self.store.url, "maintenance.enable": False}
        with Producer(conf, store=self.store, clock=self.clock) as producer:
            producer.produce(TOPIC, MESSAGE, on_delivery=self._noted)
            producer.flush()
            self.clock.sleep(max(0.0, START_S - now()))
            began = now()
            for number in range(int(self.plan.rate * self.plan.seconds)):
                due = began + number / self.plan.rate
                while (left := due - now()) > 0:
                    producer.poll(left)
                producer.produce(TOPIC, MESSAGE, on_delivery=partial(self._acknowledged, due))
            producer.flush()

    def _acknowledged(self, due: float, error: KafkaError | None, message: Message) -> None:
        """The delivery callback of a message that was due at `due` seconds."""
        self._noted(error, message)
        self.took_ns.append(int((self.clock.monotonic() - due) * 1e9))

    def _noted(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a message was not delivered: {error}")
        offset = message.offset()
        assert offset is not None
        self.offsets.append(offset)
