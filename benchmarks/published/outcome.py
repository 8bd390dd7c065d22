"""What the published benchmark says: its tables and charts next to what was published, and what was
aimed at.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass

from benchmarks.finding import Chart, Series, Table, Target, at_least, at_most, known_cores
from benchmarks.floor import against_floor
from benchmarks.published.article import MODES_MS, PUBLISHED, best_p50, published_at
from benchmarks.published.marks import SPIKE_FACTOR, spikes
from benchmarks.published.plan import MESSAGES, TABLES, PublishedPlan
from benchmarks.published.result import Result

__all__ = ["Published"]

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
    results: tuple[Result, ...]
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

    def percentiles_csv(self) -> str:
        """The percentiles of each window of each load, in milliseconds, with the second after the
        warm-up at which it ended: a table in CSV with a header.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("rate", "way", "second", *_MARKS))
        for result in self.results:
            about = result.trial.load.rate, result.trial.name
            for number, window in enumerate(result.windows, 1):
                figures = (f"{value:.3f}" for value in astuple(window))
                writer.writerow((*about, f"{number * self.plan.window_s:g}", *figures))
        return text.getvalue()

    def _delta_rs_table(self) -> Table:
        title = (
            "Next to a plain delta-rs pipeline, ms from when a message was due, and how many times "
            "as long as deltaq"
        )
        head = (
            "load",
            "delta-rs",
            "deltaq p50",
            "delta-rs p50",
            "ratio",
            "deltaq p99",
            "delta-rs p99",
            "ratio",
        )
        rows = []
        for ours, theirs in self._pairs():
            one, other = ours.middle_from_due, theirs.middle_from_due
            medians = _ms(one.p50), _ms(other.p50), f"{other.p50 / one.p50:.1f}"
            tails = _ms(one.p99), _ms(other.p99), f"{other.p99 / one.p99:.1f}"
            rows.append((str(ours.trial), theirs.trial.name, *medians, *tails))
        return Table(title, head, tuple(rows))

    def _pairs(self) -> Iterator[tuple[Result, Result]]:
        for theirs in self.results:
            for ours in self.results:
                alike = ours.trial.load.rate == theirs.trial.load.rate
                if alike and ours.trial.is_ours and not theirs.trial.is_ours:
                    yield ours, theirs

    def _conditions_table(self) -> Table:
        head = (
            "load",
            "sent",
            "commits",
            "bytes/message",
            "log KB/commit",
            "CPU s in",
            "CPU s out",
            "others",
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

    def charts(self) -> Iterator[Chart]:
        """Median and tail over the rate, with what was published; and the tail of each window over
        time.
        """
        names = tuple(dict.fromkeys(result.trial.name for result in self.results))
        for mark in ("p50", "p99"):
            series = [Series(name, self._over_rates(name, mark)) for name in names]
            series += [
                Series(f"published, {mode_ms} ms", _published_over_rates(mode_ms, mark))
                for mode_ms in MODES_MS
            ]
            yield Chart(
                f"{mark} over the rate", "messages/s", "ms", tuple(series), log_x=True, log_y=True
            )
        for name in names:
            alike = [result for result in self.results if result.trial.name == name]
            lines = tuple(
                Series(f"{one.trial.load.rate:,}/s", self._over_time(one)) for one in alike
            )
            yield Chart(f"p99 of each window, {name}", "s", "ms", lines)

    def _over_rates(self, name: str, mark: str) -> tuple[tuple[float, float], ...]:
        alike = [result for result in self.results if result.trial.name == name]
        return tuple(sorted((one.trial.load.rate, getattr(one.middle, mark)) for one in alike))

    def _over_time(self, result: Result) -> tuple[tuple[float, float], ...]:
        step = self.plan.window_s
        return tuple((number * step, window.p99) for number, window in enumerate(result.windows, 1))

    def targets(self) -> Iterator[Target]:
        """What was aimed at of each trial. The median of the windows counts, not the best or the
        worst.
        """
        for result in self.results:
            if result.trial.is_ours:
                yield from _s3_targets(result) if self.on_s3 else _local_targets(result)
                yield from _spike_targets(result, self.plan.window_s)


def _s3_targets(result: Result) -> Iterator[Target]:
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


def _local_targets(result: Result) -> Iterator[Target]:
    trial, middle = result.trial, result.middle
    if trial.way == MESSAGES and trial.load.linger_ms == 5.0:
        yield at_most(f"p99, {trial}", _LOCAL_AIM_MS, middle.p99, " ms")
    if trial.way == TABLES and trial.load.rate == 1_000_000:
        yield at_least(f"kept up, {trial}", _MILLION_AIM_S, result.kept_up_s, " s")
        yield at_most(f"p95, {trial}", _MILLION_AIM_MS, middle.p95, " ms")


def _spike_targets(result: Result, window_s: float) -> Iterator[Target]:
    found = spikes(result.windows, window_s)
    if found:
        recovered = sum(spike.is_recovered for spike in found)
        yield Target(
            f"spikes recovered, {result.trial}",
            "all",
            f"{recovered} of {len(found)}",
            met=recovered == len(found),
        )


def _published_over_rates(mode_ms: int, mark: str) -> tuple[tuple[float, float], ...]:
    return tuple(
        (figure.rate, getattr(figure.marks, mark))
        for figure in PUBLISHED
        if figure.mode_ms == mode_ms
    )


def _ms(value: float) -> str:
    return f"{value:,.1f}"


def _compared(result: Result) -> tuple[str, ...]:
    """The p50 that was published in each mode, and how many times ours the lowest is."""
    rate = result.trial.load.rate
    figures = [published_at(rate, mode_ms) for mode_ms in MODES_MS]
    best_ms = best_p50(rate)
    times = "-" if best_ms is None else f"{best_ms / result.middle.p50:.0f}"
    return *("-" if figure is None else _ms(figure.marks.p50) for figure in figures), times
