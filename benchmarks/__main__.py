"""Measure how fast and how fair deltaq is, and check that nothing is lost, doubled, disordered or changed."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TypeAlias
from uuid import uuid4

from benchmarks.age import Age, AgePlan, measure_age
from benchmarks.ageing import Life
from benchmarks.client import deltaq_client, kafka_client
from benchmarks.fairness import Crowd, Fairness, measure_fairness
from benchmarks.latency import Latency, Load, measure_latency
from benchmarks.machine import describe
from benchmarks.maintenance import Care, CarePlan, measure_care
from benchmarks.peers import Delivered, PeerPlan, Peers, measure_peers
from benchmarks.report import Findings, as_json, as_text
from benchmarks.throughput import WAYS, Run, fill_topic, measure_throughput
from deltaq.store import open_store

__all__ = ["CROWDS", "FULL", "QUICK", "QUICK_CROWDS", "Plan", "main", "run"]

_Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: each part only if something is said of it; throughput only with messages."""

    loads: tuple[Load, ...]
    messages: int
    rounds: int
    floor_rounds: int
    ways: tuple[str, ...] = WAYS
    crowds: tuple[Crowd, ...] = ()
    ages: tuple[AgePlan, ...] = ()
    cares: tuple[CarePlan, ...] = ()
    peers: tuple[PeerPlan, ...] = ()


NOTHING = Plan((), messages=0, rounds=0, floor_rounds=0)
FULL = Plan(
    tuple(Load(rate, linger_ms, 15.0, 3.0) for linger_ms in (20.0, 5.0) for rate in (10_000, 100_000)),
    messages=1_000_000,
    rounds=3,
    floor_rounds=200,
)
QUICK = Plan(
    tuple(Load(rate, 20.0, 3.0, 1.0) for rate in (10_000, 100_000)), messages=200_000, rounds=1, floor_rounds=50
)

# Minutes, and of interest only where many processes share a topic: not part of the rest.
CROWDS = (Crowd(16, 60.0), Crowd(16, 60.0, rate=100))
QUICK_CROWDS = (Crowd(4, 5.0),)

_YOUNG = Life(100, 0.1)
AGES = (AgePlan(Life(100_000, 100.0), _YOUNG, rounds=100, spark_rounds=9),)
QUICK_AGES = (AgePlan(Life(3_000, 3.0), _YOUNG, rounds=30, spark_rounds=3),)
CARES = (CarePlan(Load(50_000, 5.0, 25.0, 5.0), pairs=4),)
QUICK_CARES = (CarePlan(Load(50_000, 5.0, 8.0, 2.0), pairs=1),)

PEERS = (PeerPlan(tuple(Load(rate, 5.0, 15.0, 5.0) for rate in (10_000, 70_000, 250_000)), 1_000_000, rounds=3),)
QUICK_PEERS = (PeerPlan((Load(10_000, 5.0, 3.0, 1.0),), 200_000, rounds=1),)

_PARTS = {
    "latency": (replace(FULL, messages=0), replace(QUICK, messages=0)),
    "throughput": (replace(FULL, loads=()), replace(QUICK, loads=())),
    "fairness": (replace(NOTHING, crowds=CROWDS), replace(NOTHING, crowds=QUICK_CROWDS)),
    "age": (replace(NOTHING, ages=AGES), replace(NOTHING, ages=QUICK_AGES)),
    "peers": (replace(NOTHING, peers=PEERS), replace(NOTHING, peers=QUICK_PEERS)),
    "maintenance": (replace(NOTHING, cares=CARES), replace(NOTHING, cares=QUICK_CARES)),
}
"""What may be measured alone: in full, and quickly."""


def run(plan: Plan, root: str, kafka: str | None = None) -> Findings:
    """Carry a plan out on an empty root, and where it compares with Kafka, with the broker at `kafka` (host:port).
    Tells on standard error how far it is."""
    started, begin = datetime.now(timezone.utc).isoformat(timespec="seconds"), monotonic()

    def tell(text: str) -> None:
        print(f"[{monotonic() - begin:5.0f} s] {text}", file=sys.stderr, flush=True)

    latencies = tuple(_latencies(plan, root, tell))
    runs = tuple(_runs(plan, root, tell))
    crowds = tuple(_crowds(plan, root, tell))
    ages = tuple(_ages(plan, root, tell))
    cares = tuple(_cares(plan, root, tell))
    peers = tuple(_peers(plan, root, kafka or "", tell))
    return Findings(started, describe(root), latencies, runs, crowds, ages, cares, peers)


def _latencies(plan: Plan, root: str, tell: _Tell) -> Iterator[Latency]:
    for load in plan.loads:
        tell(f"latency at {load}: {load.warmup_s:g} s to warm up, {load.seconds:g} s that count")
        latency = measure_latency(root, load, plan.floor_rounds)
        tell(f"  p99 {latency.from_send.p99:.1f} ms, {latency.verdict}")
        yield latency


def _runs(plan: Plan, root: str, tell: _Tell) -> Iterator[Run]:
    if not plan.messages:
        return
    filled, seed = f"filled-{uuid4().hex[:12]}", 1
    tell(f"throughput: filling the topic that is read with {plan.messages:,} messages")
    client = deltaq_client(root)
    fill_topic(client, filled, plan.messages, seed)
    # Round by round, so that a moment in which the machine was busy does not hit all runs of one way.
    for number in range(1, plan.rounds + 1):
        for way in plan.ways:
            outcome = measure_throughput(client, way, plan.messages, seed, filled)
            tell(f"  round {number} of {plan.rounds}, {way}: {outcome.messages / outcome.seconds:,.0f}/s")
            yield outcome


def _crowds(plan: Plan, root: str, tell: _Tell) -> Iterator[Fairness]:
    for crowd in plan.crowds:
        tell(f"fairness, {crowd}: {crowd.seconds:g} s")
        outcome = measure_fairness(root, crowd)
        tell(
            f"  slowest to fastest {outcome.fairness:.2f}, {outcome.puts_per_commit:.2f} PUTs/commit, {outcome.verdict}"
        )
        yield outcome


def _ages(plan: Plan, root: str, tell: _Tell) -> Iterator[Age]:
    for ages in plan.ages:
        tell(f"age: {ages.old.commits:,} commits against {ages.young.commits:,}")
        with_spark = shutil.which("java") is not None
        if ages.spark_rounds and not with_spark:
            tell("  no Java here, so Spark's first batch is not measured")
        yield measure_age(root, ages if with_spark else replace(ages, spark_rounds=0), tell)


def _cares(plan: Plan, root: str, tell: _Tell) -> Iterator[Care]:
    for care in plan.cares:
        tell(f"maintenance in the background at {care.load}: {care.pairs} times with and without")
        windows = []
        for window in measure_care(root, care):
            tell(f"  {'with' if window.on else 'without'}: p99 {window.acknowledged.p99:.1f} ms, {window.verdict}")
            windows.append(window)
        yield Care(care, tuple(windows))


def _peers(plan: Plan, root: str, kafka: str, tell: _Tell) -> Iterator[Peers]:
    for peers in plan.peers:
        tell("deltaq and Kafka in turns")
        delivered: list[Delivered] = []
        runs: list[Run] = []
        for measured in measure_peers((deltaq_client(root), kafka_client(kafka)), peers):
            if isinstance(measured, Delivered):
                delivered.append(measured)
                marks = f"p50 {measured.latency.p50:.1f} ms, p99 {measured.latency.p99:.1f} ms, {measured.verdict}"
                tell(f"  {measured.load}, {measured.client}: {marks}")
            else:
                runs.append(measured)
                tell(f"  {measured.way}, {measured.client}: {measured.messages / measured.seconds:,.0f}/s")
        yield Peers(peers, tuple(delivered), tuple(runs))


@contextmanager
def _root(given: str | None, results: Path) -> Iterator[str]:
    """A root of our own, emptied afterwards: below the given one, or in the folder of the results, which is on a real
    disk where the system's temporary folder may be in memory."""
    if given is None:
        with TemporaryDirectory(prefix="root-", dir=results) as folder:
            yield folder
        return
    root = f"{given.rstrip('/')}/deltaq-benchmark-{uuid4().hex[:12]}"
    try:
        yield root
    finally:
        store = open_store(root)
        for entry in list(store.list("")):
            store.delete(entry.key)


def _plan(arguments: argparse.Namespace) -> Plan:
    full, quick = _PARTS[arguments.only] if arguments.only else (FULL, QUICK)
    return quick if arguments.quick else full


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small version: half a minute, for a first impression")
    parser.add_argument("--root", help="measure another store: a path or URL, such as s3://bucket/prefix")
    parser.add_argument("--only", choices=tuple(_PARTS), help="measure only this")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="folder for figures as JSON")
    parser.add_argument(
        "--kafka", default=os.environ.get("DELTAQ_BENCH_KAFKA"), help="host:port of a broker, for --only peers"
    )
    arguments = parser.parse_args(given)
    if arguments.only == "peers" and not arguments.kafka:
        parser.error("--kafka: no broker to compare with; `make bench-peers` starts one")
    if arguments.root is not None and arguments.root.startswith("memory:"):
        parser.error("--root: a memory:// store lives in one process, and two are measured here; give a path")
    if arguments.only == "age" and "://" in (arguments.root or ""):
        parser.error("--root: files are made old by their times, which only a local disk takes; give a path")
    return arguments


def main(given: Sequence[str] | None = None) -> int:
    """Run, print, write the figures down; 1 if a message was not what it should be."""
    arguments = _arguments(given)
    arguments.results.mkdir(parents=True, exist_ok=True)
    with _root(arguments.root, arguments.results) as root:
        findings = run(_plan(arguments), root, arguments.kafka)
    print(as_text(findings))
    written = arguments.results / f"{findings.started.replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(as_json(findings) + "\n")
    print(f"\nFigures: {written}")
    return 0 if findings.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
