"""Measures trials, each through a new topic or table, deleted afterwards; tables and targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from uuid import uuid4

import numpy as np

from benchmarks.client import deltaq_client, records_in
from benchmarks.delta_rs import create_queue
from benchmarks.finding import Table, Target, at_least, at_most, columns, known_cores
from benchmarks.floor import FLOOR_ROUNDS, against_floor, measure_floor
from benchmarks.history import unread
from benchmarks.latency import send_and_read
from benchmarks.load import Load
from benchmarks.machine import OthersLoad
from benchmarks.published.pipeline import transfer_tables
from benchmarks.published.rows import SPIKE_FACTOR, Arrivals, Marks, middle_of, spikes
from benchmarks.published.trials import (
    KEEPS_UP_P99_MS,
    MESSAGES,
    MODES_MS,
    PUBLISHED,
    TABLES,
    PublishedPlan,
    Seen,
    Sent,
    Trial,
    TrialResult,
    best_p50,
    published_at,
)
from benchmarks.suite import Report
from deltaq import Topic
from deltaq.names import entry_version, topic_folder
from deltaq.store import Store, open_store

_FASTER_AIM = 40.0
_S3_AIMS = (("p50", 22.0), ("p99", 60.0))
_S3_QUICK_AIM_MS = 12.0
_LOCAL_AIM_MS = 20.0
_MILLION_AIM_S = 60.0
_MILLION_AIM_MS = 200.0
_MARKS = ("p50", "p75", "p85", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of a plan. `on_s3` says whether it was measured on an object store with the API
    of S3. `failures` are the trials without a result, with the reasons.
    """

    plan: PublishedPlan
    on_s3: bool
    results: tuple[TrialResult, ...]
    failures: tuple[tuple[str, str], ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether every message of every trial arrived once, in order and unchanged."""
        return not self.failures and all(result.verdict.is_clean for result in self.results)

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Processors that others kept busy, for each trial."""
        return known_cores(result.others_cores for result in self.results)

    def tables(self) -> Iterator[Table]:
        """By windows; over the whole run next to all that was published; spikes; next to delta-rs;
        the loads.
        """
        if self.failures:
            yield Table("Loads that failed", ("load", "reason"), self.failures)
        yield self._window_table()
        yield self._whole_table()
        if (spiky := self._spike_table()).rows:
            yield spiky
        if any(not result.trial.is_ours for result in self.results):
            yield self._delta_rs_table()
        yield self._conditions_table()

    def _window_table(self) -> Table:
        title = (
            f"Latency in ms: the median of windows of {self.plan.window_s:g} s, next to each p50 "
            "published"
        )
        published = (*(f"published, {mode_ms} ms" for mode_ms in MODES_MS), "best/p50")
        head = (
            "load",
            *_MARKS,
            "worst p99",
            "due p99, whole run",
            "floor",
            "p50/floor",
            "achieved/s",
            "kept up",
            *published,
            "messages",
        )
        rows = tuple(
            (
                str(result.trial),
                *map(_ms, astuple(result.middle)),
                _ms(result.worst_p99),
                _ms(result.from_due.p99),
                *against_floor(result.middle.p50, result.floor),
                f"{result.achieved_rate:,.0f}",
                "yes" if result.is_kept_up else f"{result.kept_up_s:g} s",
                *_compared(result),
                str(result.verdict),
            )
            for result in self.results
        )
        return Table(title, head, rows)

    def _whole_table(self) -> Table:
        title = (
            "Latency in ms over the whole run, as it was published of Pathway (on MinIO, other "
            "machines)"
        )
        rows = []
        for rate in sorted({result.trial.load.rate for result in self.results}):
            ours = [result for result in self.results if result.trial.load.rate == rate]
            rows += [(str(result.trial), *map(_ms, astuple(result.whole))) for result in ours]
            rows += [
                (f"{rate:,}/s, published, {figure.mode_ms} ms", *map(_ms, astuple(figure.marks)))
                for figure in PUBLISHED
                if figure.rate == rate
            ]
        return Table(title, ("load", *_MARKS), tuple(rows))

    def _spike_table(self) -> Table:
        title = (
            f"Spikes: windows whose p99 exceeds {SPIKE_FACTOR:g} times that of the median window"
        )
        head = ("load", "from s", "to s", "p99 ms", "recovered")
        rows = tuple(
            (
                str(result.trial),
                f"{spike.start_s:g}",
                f"{spike.end_s:g}",
                _ms(spike.p99),
                "yes" if spike.is_recovered else "no",
            )
            for result in self.results
            for spike in spikes(result.windows, self.plan.window_s)
        )
        return Table(title, head, rows)

    def _delta_rs_table(self) -> Table:
        title = (
            "Next to a plain delta-rs pipeline, ms from when a message was due, and how many times "
            "as long as deltaq"
        )
        head = columns(
            "load | delta-rs | deltaq p50 | delta-rs p50 | ratio | deltaq p99 | delta-rs p99 | "
            "ratio"
        )
        rows = []
        for ours, theirs in self._pairs():
            one, other = ours.middle_from_due, theirs.middle_from_due
            medians = _ms(one.p50), _ms(other.p50), f"{other.p50 / one.p50:.1f}"
            tails = _ms(one.p99), _ms(other.p99), f"{other.p99 / one.p99:.1f}"
            rows.append((str(ours.trial), theirs.trial.name, *medians, *tails))
        return Table(title, head, tuple(rows))

    def _pairs(self) -> Iterator[tuple[TrialResult, TrialResult]]:
        for theirs in self.results:
            for ours in self.results:
                alike = ours.trial.load.rate == theirs.trial.load.rate
                if alike and ours.trial.is_ours and not theirs.trial.is_ours:
                    yield ours, theirs

    def _conditions_table(self) -> Table:
        head = columns(
            "load | sent | commits | bytes/message | log KB/commit | CPU s in | CPU s out | others"
        )
        rows = tuple(
            (
                str(result.trial),
                f"{result.verdict.sent:,}",
                f"{result.commits:,}",
                f"{result.data_bytes / result.verdict.sent:.0f}",
                f"{result.log_bytes / max(1, result.commits) / 1000:.1f}",
                f"{result.producer_cpu_s:.2f}",
                f"{result.consumer_cpu_s:.2f}",
                "-" if result.others_cores is None else f"{result.others_cores:.2f}",
            )
            for result in self.results
        )
        return Table("What these loads were, warm-up included", head, rows)

    def targets(self) -> Iterator[Target]:
        """What was aimed at of each trial. The median of the windows counts, not the best or the
        worst.
        """
        for result in self.results:
            if result.trial.is_ours:
                yield from _s3_targets(result) if self.on_s3 else _local_targets(result)
                yield from _spike_targets(result, self.plan.window_s)


def _s3_targets(result: TrialResult) -> Iterator[Target]:
    trial, middle = result.trial, result.middle
    if trial.way == MESSAGES and trial.load.linger_ms == 20.0:
        for mark, aim_ms in _S3_AIMS:
            yield at_most(f"{mark}, {trial}", aim_ms, getattr(middle, mark), " ms")
        best_ms = best_p50(trial.load.rate)
        if best_ms is not None:
            yield at_least(f"best published p50/p50, {trial}", _FASTER_AIM, best_ms / middle.p50)
    if (
        trial.way == MESSAGES
        and trial.load.linger_ms == 5.0
        and trial.load.rate in {10_000, 70_000}
    ):
        yield at_most(f"p50, {trial}", _S3_QUICK_AIM_MS, middle.p50, " ms")


def _local_targets(result: TrialResult) -> Iterator[Target]:
    trial, middle = result.trial, result.middle
    if trial.way == MESSAGES and trial.load.linger_ms == 5.0:
        yield at_most(f"p99, {trial}", _LOCAL_AIM_MS, middle.p99, " ms")
    if trial.way == TABLES and trial.load.rate == 1_000_000:
        yield at_least(f"kept up, {trial}", _MILLION_AIM_S, result.kept_up_s, " s")
        yield at_most(f"p95, {trial}", _MILLION_AIM_MS, middle.p95, " ms")


def _spike_targets(result: TrialResult, window_s: float) -> Iterator[Target]:
    found = spikes(result.windows, window_s)
    if found:
        recovered = sum(spike.is_recovered for spike in found)
        yield Target(
            f"spikes recovered, {result.trial}",
            "all",
            f"{recovered} of {len(found)}",
            met=recovered == len(found),
        )


def _ms(value: float) -> str:
    return f"{value:,.1f}"


def _compared(result: TrialResult) -> tuple[str, ...]:
    """The p50 that was published in each mode, and how many times ours the lowest is."""
    rate = result.trial.load.rate
    figures = [published_at(rate, mode_ms) for mode_ms in MODES_MS]
    best_ms = best_p50(rate)
    times = "-" if best_ms is None else f"{best_ms / result.middle.p50:.0f}"
    return *("-" if figure is None else _ms(figure.marks.p50) for figure in figures), times


_SECOND_NS = 1_000_000_000


def measure_published(root: str, plan: PublishedPlan, report: Report) -> Published:
    """Measure every trial below `root`, a path or URL. The tables are deleted afterwards.

    A trial that fails is reported, and the others are measured.
    """
    found = Published(plan, root.startswith("s3://"), ())
    for trial in plan.trials:
        report(
            f"  {trial}: {trial.load.warmup_s:g} s to warm up, {trial.load.seconds:g} s that count"
        )
        try:
            result = measure_trial(root, trial, plan.window_s)
        except Exception as error:  # noqa: BLE001 - whatever stops one load, the figures of the others count
            reason = f"{type(error).__name__}: {error}"
            report(f"    FAILED: {reason}")
            found = replace(found, failures=(*found.failures, (str(trial), reason)))
            continue
        middle = result.middle
        report(
            f"    p50 {middle.p50:.1f} ms, p99 {middle.p99:.1f} ms, {result.achieved_rate:,.0f}/s, "
            f"{result.verdict}"
        )
        found = replace(found, results=(*found.results, result))
    return found


def measure_trial(root: str, trial: Trial, window_s: float) -> TrialResult:
    """Send a load through a new topic or table below `root`, which two processes must be able to
    reach.
    """
    root, name = root.rstrip("/"), f"published-{uuid4().hex[:12]}"
    store = open_store(root)
    if trial.is_ours:
        folder = topic_folder(name)
        Topic(name, conf={"bootstrap.servers": root}).create()
    else:
        folder = f"{name}/"
        create_queue(f"{root}/{name}")
    others = OthersLoad()
    if trial.way == MESSAGES:
        sent, seen, from_due = _transfer_messages(root, name, trial.load, window_s)
    else:
        sent, seen = transfer_tables(root, name, trial, window_s)
        if trial.is_ours:
            seen = _with_unread(seen, records_in(deltaq_client(root), name))
        from_due = seen  # a row's time of sending is when it was due
    others_cores = others.cores()
    commits, data_bytes, log_bytes = _emptied(store, folder)
    return TrialResult(
        trial,
        seen.verdict,
        seen.windows,
        seen.whole,
        from_due.whole,
        middle_of(from_due.windows),
        sent.achieved_rate,
        _kept_up_s(trial.load, seen.windows, window_s, sent.achieved_rate),
        commits,
        data_bytes,
        log_bytes,
        sent.cpu_s,
        seen.cpu_s,
        measure_floor(store, data_bytes // max(1, commits), FLOOR_ROUNDS),
        others_cores,
    )


def _transfer_messages(
    root: str, topic: str, load: Load, window_s: float
) -> tuple[Sent, Seen, Seen]:
    produced, consumed = send_and_read(deltaq_client(root), topic, load)
    sequences, sent_ns, received_ns = (
        np.frombuffer(column, np.int64)
        for column in (consumed.sequences, consumed.sent_ns, consumed.received_ns)
    )
    arrivals = Arrivals(sequences, sent_ns, received_ns, consumed.foreign)
    seen = Seen.of(load, arrivals, window_s, consumed.cpu_s)
    due_ns = produced.start_ns + arrivals.sequences * _SECOND_NS // load.rate
    from_due = Seen.of(load, replace(arrivals, sent_ns=due_ns), window_s, consumed.cpu_s)
    return (
        Sent(load.achieved_rate(produced.start_ns, produced.end_ns), produced.cpu_s),
        seen,
        from_due,
    )


def _with_unread(seen: Seen, records: int) -> Seen:
    """Add the records of the topic that the consumer did not read, as foreign. Pure."""
    verdict = seen.verdict
    more = unread(verdict.sent, verdict.received, records)
    return replace(
        seen,
        verdict=replace(verdict, received=verdict.received + more, foreign=verdict.foreign + more),
    )


def _emptied(store: Store, folder: str) -> tuple[int, int, int]:
    """Delete a table, since all tables together could fill a disk; its log entries beyond the
    first, bytes of data and bytes of the log.
    """
    entries = list(store.list(folder))
    in_log = [entry for entry in entries if "/_delta_log/" in entry.key]
    log_bytes = sum(entry.size for entry in in_log)
    for entry in entries:
        store.delete(entry.key)
    commits = sum(entry_version(entry.key) is not None for entry in in_log) - 1
    return commits, sum(entry.size for entry in entries) - log_bytes, log_bytes


def _kept_up_s(
    load: Load, windows: Iterable[Marks], window_s: float, achieved_rate: float
) -> float:
    """Seconds for which the rate was kept up: until the first window that was too late; 0 if too
    little was sent.
    """
    if achieved_rate < 0.99 * load.rate:
        return 0.0
    kept = 0
    for window in windows:
        if window.p99 > KEEPS_UP_P99_MS:
            break
        kept += 1
    return min(load.seconds, kept * window_s)
