"""Measures trials, each through a new topic or table, which is deleted afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import uuid4

import numpy as np

from benchmarks.client import deltaq_client, records_in
from benchmarks.delta_rs import create_queue
from benchmarks.floor import FLOOR_ROUNDS, measure_floor
from benchmarks.history import unread
from benchmarks.latency import send_and_read
from benchmarks.load import Load
from benchmarks.machine import OthersLoad
from benchmarks.published.article import KEEPS_UP_P99_MS
from benchmarks.published.marks import Marks, middle_of
from benchmarks.published.outcome import Published
from benchmarks.published.pipeline import transfer_tables
from benchmarks.published.plan import MESSAGES, PublishedPlan, Trial
from benchmarks.published.result import Result, Seen, Sent
from benchmarks.published.rows import Arrivals
from benchmarks.suite import Keep, Report, keep_nothing
from deltaq import Topic
from deltaq.names import entry_version, topic_folder
from deltaq.store import Store, open_store

__all__ = ["measure_published", "measure_trial"]

_SECOND_NS = 1_000_000_000


def measure_published(
    root: str, plan: PublishedPlan, report: Report, keep: Keep = keep_nothing
) -> Published:
    """Measure every trial below `root`, a path or URL. The tables are deleted afterwards.

    A trial that fails is reported, and the others are measured. The percentiles are kept as `.csv`
    after each of them.
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
        keep(".csv", found.percentiles_csv())
    return found


def measure_trial(root: str, trial: Trial, window_s: float) -> Result:
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
    return Result(
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
