"""Measure how fast and how fair deltaq is, and check that nothing is lost, doubled, disordered or
changed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any
from uuid import uuid4

from benchmarks.age import AgePlan, measure_ages
from benchmarks.ageing import Life
from benchmarks.contention import FULL_CONTENTION, QUICK_CONTENTION, measure_contention
from benchmarks.contention_model import FULL_ON_A_MODEL, QUICK_ON_A_MODEL, measure_on_a_model
from benchmarks.flow import FULL_FLOW, QUICK_FLOW, measure_flows
from benchmarks.groups import FULL_GROUPS, QUICK_GROUPS, measure_groups
from benchmarks.latency import LatencyPlan, measure_latencies
from benchmarks.load import Load
from benchmarks.machine import (
    delta_rs_version,
    describe,
    kafka_versions,
    spread_folders,
    store_version,
)
from benchmarks.maintenance import MaintenancePlan, measure_maintenance
from benchmarks.modelled import FULL_MODELLED, QUICK_MODELLED, measure_modelled
from benchmarks.peers import PeerPlan, measure_peers
from benchmarks.published import (
    FULL_PUBLISHED,
    QUICK_PUBLISHED,
    measure_published,
    range_plan,
)
from benchmarks.queues import FULL_QUEUES, QUICK_QUEUES, measure_queues
from benchmarks.report import Findings, as_json, as_text
from benchmarks.spark import FULL_SPARK, QUICK_SPARK, measure_spark, spark_versions
from benchmarks.suite import Place, Suite
from benchmarks.throughput import ThroughputPlan, measure_speeds
from benchmarks.trace import FULL_TRACE, QUICK_TRACE, measure_trace
from benchmarks.transaction_latency import measure_latency_of_transactions
from benchmarks.transactions import TransactionPlan, measure_transactions
from benchmarks.views import ViewPlan, measure_views
from deltaq.store import open_store

_YOUNG = Life(100, 0.1)

SUITES: dict[str, Suite[Any]] = {
    "latency": Suite(
        LatencyPlan(
            tuple(
                Load(rate, linger_ms, 15.0, 3.0)
                for linger_ms in (20.0, 5.0)
                for rate in (10_000, 100_000)
            ),
            200,
        ),
        LatencyPlan(tuple(Load(rate, 20.0, 3.0, 1.0) for rate in (10_000, 100_000)), 50),
        measure_latencies,
        usual=True,
    ),
    "throughput": Suite(
        ThroughputPlan(1_000_000, 3), ThroughputPlan(200_000, 1), measure_speeds, usual=True
    ),
    "trace": Suite(FULL_TRACE, QUICK_TRACE, measure_trace, usual=True),
    "flow": Suite(FULL_FLOW, QUICK_FLOW, measure_flows),
    "age": Suite(
        # For each new file, ext4 without a journal searches the inodes of all files deleted within
        # the last five minutes. A real topic of that age has far fewer.
        AgePlan(Life(100_000, 100.0), _YOUNG, rounds=100, rest_s=330.0),
        AgePlan(Life(3_000, 3.0), _YOUNG, rounds=30),
        measure_ages,
        only_local="files are made old by their times, which only a local disk takes",
    ),
    "peers": Suite(
        PeerPlan(
            tuple(Load(rate, 5.0, 15.0, 5.0) for rate in (10_000, 70_000, 250_000)),
            1_000_000,
            rounds=3,
        ),
        PeerPlan((Load(10_000, 5.0, 3.0, 1.0),), 200_000, rounds=1),
        measure_peers,
        needs_kafka="make bench-peers",
        versions=kafka_versions,
    ),
    "transactions": Suite(
        TransactionPlan(small=200, large=60, messages=100_000, rounds=3),
        TransactionPlan(small=50, large=15, messages=20_000, rounds=1),
        measure_transactions,
        needs_kafka="make bench-peers",
        versions=kafka_versions,
    ),
    "transaction-latency": Suite(300, 30, measure_latency_of_transactions),
    "views": Suite(
        ViewPlan((1_000_000, 10_000_000), 1_000, 100_000, ticks=20, ages=50),
        ViewPlan((20_000, 100_000), 1_000, 20_000, ticks=3, ages=3),
        measure_views,
    ),
    "spark": Suite(
        FULL_SPARK,
        QUICK_SPARK,
        measure_spark,
        needs_kafka="make bench-spark",
        versions=spark_versions,
    ),
    "published": Suite(
        FULL_PUBLISHED,
        QUICK_PUBLISHED,
        lambda plan, at: [measure_published(at.root, plan, at.report)],
        versions=delta_rs_version,
    ),
    "contention": Suite(
        FULL_CONTENTION,
        QUICK_CONTENTION,
        lambda plan, at: [measure_contention(at.root, plan, at.report)],
    ),
    "contention-model": Suite(
        FULL_ON_A_MODEL, QUICK_ON_A_MODEL, lambda plan, at: [measure_on_a_model(plan, at.report)]
    ),
    "groups": Suite(
        FULL_GROUPS,
        QUICK_GROUPS,
        measure_groups,
        versions=lambda: kafka_versions() if os.environ.get("DELTAQ_BENCH_KAFKA") else {},
    ),
    "queues": Suite(
        FULL_QUEUES,
        QUICK_QUEUES,
        measure_queues,
        versions=lambda: kafka_versions() if os.environ.get("DELTAQ_BENCH_KAFKA") else {},
    ),
    "s3-model": Suite(
        FULL_MODELLED, QUICK_MODELLED, lambda plan, at: [measure_modelled(plan, at.report)]
    ),
    "maintenance": Suite(
        MaintenancePlan(Load(50_000, 5.0, 20.0, 5.0), pairs=8, window_s=5.0),
        MaintenancePlan(Load(50_000, 5.0, 8.0, 2.0), pairs=1, window_s=2.0),
        measure_maintenance,
    ),
}
"""The suites in the order in which they run. One that is not `usual` takes minutes and runs only if
it is chosen.
"""


def run(plans: Mapping[str, Any], root: str, kafka: str = "") -> Findings:
    """Carry out plans, each of the suite of that name, on an empty root. `kafka` (host:port) is for
    comparisons.

    Reports progress on standard error.
    """
    started, begin = datetime.now(UTC).isoformat(timespec="seconds"), monotonic()

    def report(text: str) -> None:
        print(f"[{monotonic() - begin:5.0f} s] {text}", file=sys.stderr, flush=True)

    machine = spread_folders(root)
    if machine:
        report(", ".join(f"{value} {name}" for name, value in machine.items()))

    place = Place(root, kafka, report)
    found = {name: tuple(SUITES[name].measure(plan, place)) for name, plan in plans.items()}
    machine |= describe(root) | store_version(root)
    for name in plans:
        machine |= SUITES[name].versions()
    return Findings(started, machine, found)


@contextmanager
def _root(given: str | None, results: Path) -> Iterator[str]:
    """A new root, emptied afterwards: below the given one, or in the folder of the results. That is
    on disk, while the system's temporary folder may be in memory.
    """
    if given is None:
        # Maintenance of a closed producer may still write.
        with TemporaryDirectory(prefix="root-", dir=results, ignore_cleanup_errors=True) as folder:
            yield folder
        return
    root = f"{given.rstrip('/')}/deltaq-benchmark-{uuid4().hex[:12]}"
    try:
        yield root
    finally:
        store = open_store(root)
        for entry in list(store.list("")):
            store.delete(entry.key)


def _plans(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.range_start is not None:
        given = (
            arguments.range_start,
            arguments.range_end or arguments.range_start,
            arguments.range_step,
        )
        return {"published": range_plan(*given, arguments.seconds_to_stream)}
    chosen = [
        name
        for name, suite in SUITES.items()
        if (arguments.only == name if arguments.only else suite.usual)
    ]
    return {name: SUITES[name].quick if arguments.quick else SUITES[name].full for name in chosen}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a small version: half a minute, for a first impression",
    )
    parser.add_argument(
        "--root", help="measure another store: a path or URL, such as s3://bucket/prefix"
    )
    parser.add_argument("--only", choices=tuple(SUITES), help="measure only this")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("bench-results"),
        help="folder for the figures as JSON",
    )
    parser.add_argument(
        "--kafka",
        default=os.environ.get("DELTAQ_BENCH_KAFKA"),
        help="host:port of a broker, for what compares with Kafka",
    )
    published = parser.add_argument_group("rates of one's own, with --only published")
    published.add_argument("--range-start", type=_count, help="messages a second of the first load")
    published.add_argument(
        "--range-end", type=_count, help="of the last load; by default there is one load"
    )
    published.add_argument("--range-step", type=_count, default=10_000, help="between the loads")
    published.add_argument(
        "--seconds-to-stream",
        type=_count,
        default=300,
        help="of each load; the first tenth warms up, at most 30 s",
    )
    arguments = parser.parse_args(given)
    if arguments.range_start is not None and (arguments.only != "published" or arguments.quick):
        parser.error("--range-start: goes with --only published, and without --quick")
    if arguments.range_end is not None and arguments.range_start is None:
        parser.error("--range-end: needs --range-start, the first rate")
    if arguments.range_end is not None and arguments.range_end < arguments.range_start:
        parser.error(
            f"--range-end: {arguments.range_end} is below --range-start; give the lower rate there"
        )
    suite = SUITES.get(arguments.only)
    if suite and suite.needs_kafka and not arguments.kafka:
        parser.error(f"--kafka: no broker to compare with; `{suite.needs_kafka}` starts one")
    if arguments.root is not None and arguments.root.startswith("memory:"):
        parser.error(
            "--root: a memory:// store lives in one process, and two are measured here; give a path"
        )
    if suite and suite.only_local and "://" in (arguments.root or ""):
        parser.error(f"--root: {suite.only_local}; give a path")
    return arguments


def main(given: Sequence[str] | None = None) -> int:
    """Run the chosen suites, print and write the figures; exit status 1 if a message was lost,
    doubled or changed.
    """
    arguments = _arguments(given)
    arguments.results.mkdir(parents=True, exist_ok=True)
    with _root(arguments.root, arguments.results) as root:
        findings = run(_plans(arguments), root, arguments.kafka or "")
    print(as_text(findings))
    began = findings.started.replace(":", "").replace("+0000", "Z")
    figures = arguments.results / f"{began}.json"
    figures.write_text(as_json(findings) + "\n")
    print(f"\nFigures: {figures}")
    return 0 if findings.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
