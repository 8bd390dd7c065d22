"""Topics of any age, made in minutes: written and looked after as in real life, by a clock that
leaps.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from benchmarks.payload import MESSAGE_BYTES, TimedPayloads
from deltaq import KafkaError, Message, Producer, Topic
from deltaq.clock import Clock, SystemClock
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import Maintenance
from deltaq.store import LocalStore, Store

Report: TypeAlias = Callable[[str], None]

COMMITS_BETWEEN_ROUNDS = 100
"""Producers have their topic looked after at each version that is a multiple of this."""

_REPORT_EVERY_S = 20.0
_DAY_S = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class Life:
    """How a topic was written: `commits` evenly over `days`, each of `records` of 100 bytes for all
    partitions.
    """

    commits: int
    days: float
    records: int = 100
    partitions: int = 3

    @property
    def total(self) -> int:
        """All its records."""
        return self.commits * self.records

    @property
    def payload_bytes(self) -> int:
        """Their keys and values; they have no keys."""
        return self.total * MESSAGE_BYTES


class LeapingClock(SystemClock):
    """The machine's clock, set back `behind_s` seconds, which `leap` makes up for step by step."""

    def __init__(self, behind_s: float) -> None:
        self._behind_s = behind_s
        self._leapt_s = 0.0

    def leap(self, seconds: float) -> None:
        """Advance by so many seconds at once."""
        self._leapt_s += seconds

    def time_ms(self) -> int:
        return super().time_ms() + round((self._leapt_s - self._behind_s) * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self._leapt_s

    def uptime(self) -> float:
        return super().uptime() + self._leapt_s


class BackdatedStore(LocalStore):
    """A folder whose files were last changed when `clock` says so: clean-up goes by the times of
    the store too.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        super().__init__(root, clock)
        self._folder_path, self._now = Path(root), clock

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key, data)
        self._backdate(key)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        super().create(key, data, after)
        self._backdate(key)

    def _backdate(self, key: str) -> None:
        changed_ns = self._now.time_ms() * 1_000_000
        os.utime(self._folder_path / key, ns=(changed_ns, changed_ns))


def grow(root: str, topic: str, life: Life, payloads: TimedPayloads, report: Report) -> array[int]:
    """Write a new topic through its life, which ends now; for each commit a moment between it and
    the one before.

    `root` is a folder. The moments are epoch milliseconds. Record n goes to partition n modulo
    their number. Between commits the clock leaps, and every hundred commits the topic is looked
    after, as it is by producers; but not at the same time, so the next commit need not wait for it.
    Its records are kept for ever.
    """
    pause_s = life.days * _DAY_S / max(1, life.commits)
    clock = LeapingClock(pause_s * life.commits)
    store = BackdatedStore(root, clock)
    Topic(
        topic, partitions=life.partitions, config={"retention.ms": -1}, store=store, clock=clock
    ).create()
    maintenance = Maintenance(store, clock, notify=lambda line: _alarm(line, report))
    times_ms, reported_at = array("q"), monotonic()
    conf = {"bootstrap.servers": root, "linger.ms": 0, "maintenance.enable": False}
    with Producer(conf, store=store, clock=clock, on_delivery=_delivered) as producer:
        for commit in range(1, life.commits + 1):
            clock.leap(pause_s / 2)
            times_ms.append(clock.time_ms())
            clock.leap(pause_s / 2)
            for sequence in range((commit - 1) * life.records, commit * life.records):
                producer.produce(
                    topic, payloads.make(sequence), partition=sequence % life.partitions
                )
            producer.flush()
            if commit % COMMITS_BETWEEN_ROUNDS == 0:
                _look_after(maintenance, store)
                if monotonic() - reported_at > _REPORT_EVERY_S:
                    reported_at = monotonic()
                    report(f"  {commit:,} of {life.commits:,} commits")
    return times_ms


def _delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise RuntimeError(f"a message was not delivered: {error}")


def _look_after(maintenance: Maintenance, store: Store) -> None:
    if maintenance.round()[FAILURES]:
        raise RuntimeError(f"maintenance of {store.url} failed")


def _alarm(line: str, report: Report) -> None:
    """Of what maintenance tells, only what went wrong is of interest here."""
    if "failed" in line:
        report(f"  {line}")
