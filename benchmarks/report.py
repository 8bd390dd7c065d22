"""What a run of the benchmarks found, as text and as JSON. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.age import Age
from benchmarks.distribution import Distribution, histogram
from benchmarks.fairness import Fairness
from benchmarks.latency import Latency
from benchmarks.maintenance import Care
from benchmarks.payload import MESSAGE_BYTES
from benchmarks.peers import Peers
from benchmarks.throughput import Run

__all__ = ["Findings", "Speed", "Target", "as_json", "as_text", "speeds", "targets"]


@dataclass(frozen=True, slots=True)
class Findings:
    """All figures of one run. `machine` says what they were measured on, `started` when (ISO 8601, UTC)."""

    started: str
    machine: dict[str, str]
    latencies: tuple[Latency, ...]
    runs: tuple[Run, ...]
    crowds: tuple[Fairness, ...] = ()
    ages: tuple[Age, ...] = ()
    cares: tuple[Care, ...] = ()
    peers: tuple[Peers, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether every message of every load arrived as it should. (A throughput run that went wrong has raised.)"""
        verdicts = [latency.verdict for latency in self.latencies] + [crowd.verdict for crowd in self.crowds]
        verdicts += [age.verdict for age in self.ages] + [
            window.verdict for care in self.cares for window in care.windows
        ]
        verdicts += [delivered.verdict for peers in self.peers for delivered in peers.delivered]
        return all(verdict.is_clean for verdict in verdicts)


@dataclass(frozen=True, slots=True)
class Speed:
    """Messages a second: the best of several runs, their median, and the slowest."""

    name: str
    best: float
    median: float
    worst: float
    cpu_us: float
    """Microseconds of CPU time a message took in the best run, all threads together."""


@dataclass(frozen=True, slots=True)
class Target:
    """What was aimed at, and what came out."""

    name: str
    aim: str
    found: str
    met: bool


QUIET_CORES = 0.1
"""Up to this the machine counts as quiet."""

_SPEED_AIMS = {"produce, calls": 800_000, "produce_arrow, acknowledged": 3_000_000, "consume(500)": 800_000}
_NAMES = {"consume_500": "consume(500)", "produce_callback": "produce with callback, poll"}
_LATENCY_AIM = 100_000, 20.0, 100.0
"""Messages a second, linger.ms, and the 99th percentile in milliseconds that is aimed at."""

_FAIRNESS_AIM = 0.5
_PUTS_AIM = 2.0
_AGE_AIM = 1.2
_BYTES_AIM = 1.3
_CARE_AIM = 1.25
_PEER_P50_AIM = 1.3
_PEER_P99_AIM_MS = 20.0
_PEER_SPEED_AIM = 1.0


def speeds(runs: Sequence[Run]) -> list[Speed]:
    """Runs of the same kind as one line each; ways in as two: when the calls had returned, and when all was safe."""
    found = []
    for way in dict.fromkeys(run.way for run in runs):
        alike = [run for run in runs if run.way == way]
        name = _NAMES.get(way, way)
        calls = [run.messages / run.calls_s for run in alike if run.calls_s is not None]
        best = min(alike, key=lambda run: run.seconds)
        cpu_us = best.cpu_s / best.messages * 1e6
        if calls and way == "produce":  # of a table, the call tells nothing about rows
            found.append(_speed(f"{name}, calls", calls, cpu_us))
        done = [run.messages / run.seconds for run in alike]
        found.append(_speed(f"{name}, acknowledged" if calls else name, done, cpu_us))
    return found


def _speed(name: str, rates: list[float], cpu_us: float) -> Speed:
    return Speed(name, max(rates), statistics.median(rates), min(rates), cpu_us)


def targets(findings: Findings) -> list[Target]:
    """Every target for which something was measured. The median run counts, not the best."""
    rate, linger_ms, aim_ms = _LATENCY_AIM
    found = []
    for latency in findings.latencies:
        if (latency.load.rate, latency.load.linger_ms) == (rate, linger_ms):
            p99 = latency.from_send.p99
            name = f"p99 at {rate:,}/s, linger.ms={linger_ms:g}"
            found.append(Target(name, f"<= {aim_ms:g} ms", f"{p99:.1f} ms", p99 <= aim_ms))
    for speed in speeds(findings.runs):
        aim = _SPEED_AIMS.get(speed.name)
        if aim is not None:
            found.append(Target(speed.name, f">= {aim:,}/s", f"{speed.median:,.0f}/s", speed.median >= aim))
    for crowd in findings.crowds:
        share, puts = crowd.fairness, crowd.puts_per_commit
        found += [
            Target(f"slowest/fastest, {crowd.crowd}", f">= {_FAIRNESS_AIM:g}", f"{share:.2f}", share >= _FAIRNESS_AIM),
            Target(f"PUTs/commit, {crowd.crowd}", f"< {_PUTS_AIM:g}", f"{puts:.2f}", puts < _PUTS_AIM),
        ]
    for age in findings.ages:
        ratios = [_at_most(f"{cost.operation}, old/young", _AGE_AIM, cost.ratio) for cost in age.costs]
        found += [
            *ratios,
            _at_most("bytes of the old topic/payload", _BYTES_AIM, age.old.bytes / age.old.payload_bytes),
        ]
    found += [
        _at_most(f"p99 with maintenance/without, {care.plan.load}", _CARE_AIM, care.ratio) for care in findings.cares
    ]
    for peers in findings.peers:
        found += _peer_targets(peers)
    return found


def _peer_targets(peers: Peers) -> Iterator[Target]:
    for load in peers.plan.loads:
        yield _at_most(f"p50, {load}, deltaq/Kafka", _PEER_P50_AIM, peers.latency(load, "p50").ratio)
        p99 = peers.latency(load, "p99").ours
        yield Target(f"p99, {load}", f"<= {_PEER_P99_AIM_MS:g} ms", f"{p99:.1f} ms", p99 <= _PEER_P99_AIM_MS)
    for way in dict.fromkeys(run.way for run in peers.runs):
        ratio = peers.speed(way).ratio
        name = f"{_NAMES.get(way, way)}, deltaq/Kafka"
        yield Target(name, f">= {_PEER_SPEED_AIM:g}", f"{ratio:.2f}", ratio >= _PEER_SPEED_AIM)


def _at_most(name: str, aim: float, ratio: float) -> Target:
    return Target(name, f"<= {aim:g}", f"{ratio:.2f}", ratio <= aim)


def as_json(findings: Findings) -> str:
    """Everything, for comparisons between runs."""
    content = asdict(findings)
    for crowd, measured in zip(content["crowds"], findings.crowds, strict=True):
        crowd |= {"fairness": measured.fairness, "puts_per_commit": measured.puts_per_commit}
    for care, taken in zip(content["cares"], findings.cares, strict=True):
        care["ratio"] = taken.ratio
    content["speeds"] = [asdict(speed) for speed in speeds(findings.runs)]
    content["targets"] = [asdict(target) for target in targets(findings)]
    return json.dumps(content, indent=1)


def as_text(findings: Findings) -> str:
    """Everything a reader wants to see at the end of a run."""
    lines = [", ".join(f"{name} {value}" for name, value in findings.machine.items()), _quiet(findings)]
    if findings.latencies:
        lines += ["", *_latency_table(findings.latencies), "", *_conditions_table(findings.latencies)]
        for latency in findings.latencies:
            lines += ["", f"from produce to consumer, {latency.load}", *histogram(latency.from_send)]
    if findings.runs:
        lines += ["", *_speed_table(findings.runs)]
    if findings.crowds:
        lines += ["", *_crowd_table(findings.crowds)]
    for age in findings.ages:
        lines += ["", *_age_table(age), "", *_footprint_table(age)]
    for care in findings.cares:
        lines += ["", *_care_table(care)]
    for peers in findings.peers:
        lines += ["", *_peer_latency_table(peers), "", *_peer_speed_table(peers)]
    if aimed_at := targets(findings):
        rows = [(target.name, target.aim, target.found, "met" if target.met else "MISSED") for target in aimed_at]
        lines += ["", *_table(("target", "aim", "found", ""), rows)]
    return "\n".join(lines)


def _latency_table(latencies: Sequence[Latency]) -> list[str]:
    title = "Latency in ms, from `produce` in one process to the value in the other"
    head = "load", "p50", "p95", "p99", "p99.9", "max", "worst s", "due p99", "floor", "p50/floor", "messages"
    rows = []
    for latency in latencies:
        sent, floor_ms = latency.from_send, latency.floor.total_ms
        marks = sent.p50, sent.p95, sent.p99, sent.p999, sent.max, max(latency.by_second_p99_ms), latency.from_due.p99
        rows.append(
            (
                str(latency.load),
                *(f"{mark:.1f}" for mark in marks),
                f"{floor_ms:.2f}",
                f"{sent.p50 / floor_ms:.1f}",
                str(latency.verdict),
            )
        )
    return [title, *_table(head, rows)]


def _conditions_table(latencies: Sequence[Latency]) -> list[str]:
    title = "What these loads were, warm-up included"
    head = (
        "load",
        "sent",
        "achieved/s",
        "commits",
        "KB/commit",
        "log KB/commit",
        "full",
        "CPU s in",
        "CPU s out",
        "others",
    )
    rows = [
        (
            str(latency.load),
            f"{latency.verdict.sent:,}",
            f"{latency.achieved_rate:,.0f}",
            f"{latency.commits:,}",
            f"{latency.data_bytes / max(1, latency.commits) / 1000:.1f}",
            f"{latency.log_bytes / max(1, latency.commits) / 1000:.1f}",
            f"{latency.waits_for_room:,}",
            f"{latency.producer_cpu_s:.2f}",
            f"{latency.consumer_cpu_s:.2f}",
            _cores(latency.others_cores),
        )
        for latency in latencies
    ]
    return [title, *_table(head, rows)]


def _crowd_table(crowds: Sequence[Fairness]) -> list[str]:
    title = "Many processes on one topic: messages acknowledged in time, and requests for each commit"
    head = (
        "crowd",
        "slowest",
        "fastest",
        "ratio",
        "commits/s",
        "PUTs/commit",
        "lost races",
        "files/commit",
        "GETs/commit",
        "ack p50 ms",
        "p99",
        "max",
        "others",
        "messages",
    )
    rows = []
    for crowd in crowds:
        commits = max(1, crowd.commits)
        rows.append(
            (
                str(crowd.crowd),
                f"{crowd.in_time[0]:,}",
                f"{crowd.in_time[-1]:,}",
                f"{crowd.fairness:.2f}",
                f"{crowd.commits / crowd.crowd.seconds:.1f}",
                f"{crowd.puts_per_commit:.2f}",
                f"{crowd.lost_races:,}",
                f"{crowd.data_puts / commits:.2f}",
                f"{crowd.entry_gets / commits:.1f}",
                *(f"{mark:,.0f}" for mark in (crowd.acknowledged.p50, crowd.acknowledged.p99, crowd.acknowledged.max)),
                _cores(crowd.others_cores),
                str(crowd.verdict),
            )
        )
    return [title, *_table(head, rows)]


def _age_table(age: Age) -> list[str]:
    old, young = age.plan.old, age.plan.young
    title = (
        f"Age in ms: a topic of {old.commits:,} commits in {old.days:g} days, made in {age.grown_s:,.0f} s, "
        f"against one of {young.commits:,}; messages {age.verdict}"
    )
    head = "operation", "young p50", "old p50", "ratio", "young p95", "old p95", "times"
    rows = []
    for cost in age.costs:
        marks = (f"{mark:.2f}" for mark in (cost.young.p50, cost.old.p50, cost.ratio, cost.young.p95, cost.old.p95))
        rows.append((cost.operation, *marks, f"{cost.old.count:,}"))
    return [title, *_table(head, rows)]


def _footprint_table(age: Age) -> list[str]:
    old, young = age.old, age.young
    title = (
        f"Objects, and bytes for each byte of payload, of which the old topic has {old.payload_bytes:,} "
        f"and the young one {young.payload_bytes:,}"
    )
    rows = [
        (
            kind,
            f"{young.parts[kind].objects:,}",
            f"{part.objects:,}",
            f"{young.parts[kind].bytes / young.payload_bytes:.3f}",
            f"{part.bytes / old.payload_bytes:.3f}",
        )
        for kind, part in old.parts.items()
    ]
    (all_young, plain_young), (all_old, plain_old) = (
        [f"{taken / size.payload_bytes:.3f}" for taken in (size.bytes, size.plain_bytes)] for size in (young, old)
    )
    rows += [
        ("all", f"{young.objects:,}", f"{old.objects:,}", all_young, all_old),
        ("as one plain Parquet file", "1", "1", plain_young, plain_old),
    ]
    return [title, *_table(("kind", "young", "old", "young bytes", "old bytes"), rows)]


def _care_table(care: Care) -> list[str]:
    title = f"Maintenance in the producer's background, {care.plan.load}: ms from `produce` to the delivery callback"
    head = (
        "maintenance",
        "p50",
        "p99",
        "p99.9",
        "max",
        "achieved/s",
        "commits",
        "rewrites",
        "files",
        "CPU s",
        "others",
        "messages",
    )
    rows = [
        (
            "on" if window.on else "off",
            *(f"{mark:.1f}" for mark in _marks(window.acknowledged)),
            f"{window.achieved_rate:,.0f}",
            f"{window.commits:,}",
            f"{window.rewrites:,}",
            f"{window.files_at_most:,}",
            f"{window.cpu_s:.1f}",
            _cores(window.others_cores),
            str(window.verdict),
        )
        for window in sorted(care.windows, key=lambda window: window.on)
    ]
    return [title, *_table(head, rows)]


def _peer_latency_table(peers: Peers) -> list[str]:
    title = "deltaq and Kafka: ms from `produce` in one process to the value in the other"
    head = "load", "client", "p50", "p99", "p99.9", "max", "achieved/s", "CPU s in", "CPU s out", "others", "messages"
    rows = [
        (
            str(one.load),
            one.client,
            *(f"{mark:.1f}" for mark in _marks(one.latency)),
            f"{one.achieved_rate:,.0f}",
            f"{one.producer_cpu_s:.2f}",
            f"{one.consumer_cpu_s:.2f}",
            _cores(one.others_cores),
            str(one.verdict),
        )
        for one in sorted(peers.delivered, key=lambda one: (one.load.rate, one.client))
    ]
    return [title, *_table(head, rows)]


def _peer_speed_table(peers: Peers) -> list[str]:
    title = f"Messages of {MESSAGE_BYTES} random bytes a second, until all is acknowledged or read: medians"
    rows = []
    for way in dict.fromkeys(run.way for run in peers.runs):
        both = peers.speed(way)
        rows.append((_NAMES.get(way, way), f"{both.ours:,.0f}", f"{both.theirs:,.0f}", f"{both.ratio:.2f}"))
    return [title, *_table(("way", "deltaq", "Kafka", "ratio"), rows)] if rows else [title]


def _marks(measured: Distribution) -> tuple[float, float, float, float]:
    return measured.p50, measured.p99, measured.p999, measured.max


def _speed_table(runs: Sequence[Run]) -> list[str]:
    times = max(sum(1 for run in runs if run.way == way) for way in {run.way for run in runs})
    title = f"Messages of {MESSAGE_BYTES} random bytes a second: {runs[0].messages:,} messages, best of {times}"
    rows = [(s.name, f"{s.best:,.0f}", f"{s.median:,.0f}", f"{s.worst:,.0f}", f"{s.cpu_us:.2f}") for s in speeds(runs)]
    return [title, *_table(("way", "best", "median", "worst", "CPU us each"), rows)]


def _quiet(findings: Findings) -> str:
    """Whether the machine was ours, in a sentence."""
    told = [latency.others_cores for latency in findings.latencies]
    told += [run.others_cores for run in findings.runs] + [crowd.others_cores for crowd in findings.crowds]
    told += [age.others_cores for age in findings.ages]
    told += [window.others_cores for care in findings.cares for window in care.windows]
    # While Kafka is measured, its broker is one of the others.
    told += [one.others_cores for peers in findings.peers for one in peers.delivered if one.client == "deltaq"]
    cores = [cores for cores in told if cores is not None]
    if not cores:
        return "How much of the machine others were using meanwhile is unknown."
    typical, most = statistics.median(cores), max(cores)
    what = f"Others kept {typical:.2f} cores busy (median of the measurements; at most {most:.2f})"
    return f"{what}." if typical <= QUIET_CORES else f"{what}: too many for figures to be relied on."


def _cores(cores: float | None) -> str:
    return "?" if cores is None else f"{cores:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()

    return [line(head), "  ".join("-" * width for width in widths), *map(line, rows)]
