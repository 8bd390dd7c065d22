"""A streaming query with state whose driver is killed again and again, and the judgement of what it
has written.

Meanwhile records are appended, those that the query has read are deleted, both topics get more
partitions, and maintenance merges files and shortens logs. Nothing is decided by time: a kill hits
either the moment right after the topic's commit, or a random one after the query has got on. What
each kill hit is read from the log and the checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pyspark.sql import SparkSession

from deltaq import AdminClient, Producer, Topic, TopicPartition
from deltaq.admin import NewPartitions
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import open_store
from tests.crash.windows_query import EVENTS, WINDOW_MS, WINDOWS, start

__all__ = ["GAP", "Findings", "Kill", "run_query"]

Kill: TypeAlias = Literal["after a commit", "at random"]

GAP = "between commit and note"
"""The place of a kill: the topic has the micro-batch, and Spark's checkpoint does not say so."""

KEYS = 20
START_MS = 1_700_000_000_000
"""The event time of the first record, on the edge of a window. The next ones follow a millisecond
apart.
"""

TIMEOUT_S = 300.0
"""Maximum seconds without any progress of the query, on a busy machine."""

MOMENT_S = 1.5
"""Maximum seconds between observed progress and a random kill: about a micro-batch."""

LOOK_AGAIN_S = 0.1
CHANGE_EVERY = 7
"""Topics change with every so many kills."""

REPORT_EVERY = 10

TOO_LATE = (
    "Python worker failed to connect back",
    "waited for their commit longer than file.delete.delay.ms",
)
"""What a query says that a busy machine has ended: Spark gives each new Python worker ten seconds,
and files that were uploaded half a minute ago may be orphans here. It is started again, as a
supervisor would do.
"""

EAGER = MaintenanceSettings(
    checkpoint_interval=5,
    keep_entries_min=3,
    log_retention_ms=0,
    clean_up_grace_s=10.0,
    clean_up_interval_s=0.0,
    merge_files=4,
    file_delete_delay_ms=30_000,
    scan_interval_ms=0,
)
"""Maintenance is due soon, and what it may remove goes while the query runs."""

ROUND_S = 2.0


@dataclass
class Findings:
    """What a run did: its kills by the place that they hit, micro-batches, rows written, actions of
    maintenance.
    """

    kills: Counter[str] = field(default_factory=Counter)
    maintenance: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    batches: int = 0
    rows: int = 0

    def __str__(self) -> str:
        kills = ", ".join(f"{count} kills {place}" for place, count in sorted(self.kills.items()))
        done = ", ".join(f"{what} {count}" for what, count in sorted(self.maintenance.items()))
        return (
            f"{self.rows} rows in {self.batches} micro-batches and {self.starts} starts; {kills}; "
            f"{done}"
        )


class _Checkpoint:
    """What Spark has noted, read without Spark. `planned` and `noted` are the newest micro-batches,
    or -1.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def planned(self) -> int:
        return self._newest("offsets")

    @property
    def noted(self) -> int:
        return self._newest("commits")

    def next_offsets(self, batch: int) -> dict[int, int]:
        """The end of a micro-batch."""
        *_, line = (self.folder / "offsets" / str(batch)).read_text().splitlines()
        return {
            int(number): offset
            for number, offset in json.loads(line)[EVENTS]["next_offsets"].items()
        }

    def _newest(self, of: str) -> int:
        return max(
            (int(path.name) for path in (self.folder / of).glob("[0-9]*") if path.name.isdigit()),
            default=-1,
        )


class _Driver:
    """One life of the query."""

    def __init__(self, log: Path, given: Mapping[str, object]) -> None:
        self._log = log
        command = [sys.executable, "-m", "tests.crash.windows_query", json.dumps(given)]
        environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
        with log.open("wb") as output:
            # Its JVM is in its process group. Python's workers end with the JVM.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=_REPOSITORY,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self._process.poll() is None

    def was_killed(self) -> bool:
        return self._process.poll() == -signal.SIGKILL

    def kill(self) -> None:
        if self.is_running():
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def check_too_late(self) -> None:
        """Raise AssertionError unless it ended because a worker or a commit came too late."""
        said = self._log.read_text(errors="replace")
        assert any(reason in said for reason in TOO_LATE), said[-4000:]


class _InSession:
    """A life of the query in the Spark of the tests, which saves the start of another one."""

    def __init__(self, spark: SparkSession, given: Mapping[str, object]) -> None:
        self._query = start(spark, given)

    def is_running(self) -> bool:
        return self._query.isActive

    def was_killed(self) -> bool:
        return False

    def kill(self) -> None:
        self._query.stop()

    def check_too_late(self) -> None:
        """Raise AssertionError with its error."""
        raise AssertionError(self._query.exception())


_REPOSITORY = Path(__file__).resolve().parents[2]


class _Run:
    """The topics below `root`, and the query's lives one after the other. A context manager that
    leaves none behind.
    """

    def __init__(self, root: str, folder: Path, seed: int, rows: int, offsets_max: int) -> None:
        self.root, self.folder, self.rows = root, folder, rows
        self.chance = random.Random(seed)
        self.findings = Findings()
        self.checkpoint = _Checkpoint(folder / "checkpoint")
        self._offsets_max = offsets_max
        self._lateness_ms = 4 * offsets_max  # more than has been written and not read, see `_tend`
        self._written, self._closed = 0, False
        self._driver: _Driver | _InSession | None = None
        self._maintenance = Maintenance(open_store(root), settings=EAGER)
        self._maintained_at = 0.0
        self._producer = Producer({"bootstrap.servers": root, "maintenance.enable": False})
        for topic, partitions in ((EVENTS, 2), (WINDOWS, 1)):
            conf = {"bootstrap.servers": root}
            Topic(topic, partitions=partitions, conf=conf, config={"retention.ms": -1}).create()

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self._driver is not None:
            self._driver.kill()
        self._producer.close()

    # --- the query ---

    def _live(
        self,
        until: Callable[[], bool],
        dies_from: int | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Start the query, and look after the topics until it was killed or until that is so."""
        while True:
            self.findings.starts += 1
            given = {
                "root": self.root,
                "checkpoint": str(self.checkpoint.folder),
                "offsets_max": self._offsets_max,
                "lateness_ms": self._lateness_ms,
                "dies_from": dies_from,
            }
            log = self.folder / f"driver-{self.findings.starts}.log"
            self._driver = driver = (
                _Driver(log, given) if spark is None else _InSession(spark, given)
            )
            place, deadline = (-1, -1), time.monotonic() + TIMEOUT_S
            while driver.is_running() and not until():
                self._tend()
                now = self.checkpoint.planned, self.checkpoint.noted
                if now != place:
                    place, deadline = now, time.monotonic() + TIMEOUT_S
                assert time.monotonic() < deadline, f"no progress within {TIMEOUT_S:g} s"
                time.sleep(LOOK_AGAIN_S)
            if driver.is_running() or driver.was_killed():
                return
            driver.kill()  # it has ended; its pipe has not
            driver.check_too_late()

    def kill(self, kind: Kill, *, topics_change: bool) -> None:
        """Let the query live until it has got on, and kill it. The topics change while it runs or
        when it is dead.
        """
        before = self.checkpoint.planned
        if kind == "after a commit":
            self._live(lambda: False, dies_from=before + 1)
        else:
            self._live(lambda: self.checkpoint.planned > before)
        if topics_change:
            self._change_topics()
        assert self._driver is not None
        if self._driver.is_running():
            time.sleep(self.chance.uniform(0, MOMENT_S))
        self._driver.kill()
        self.findings.kills[self._hit()] += 1
        if sum(self.findings.kills.values()) % REPORT_EVERY == 0:
            print(f"micro-batch {self.checkpoint.planned}: {dict(self.findings.kills)}", flush=True)

    def _hit(self) -> str:
        """Where the query was when it died."""
        planned, noted = self.checkpoint.planned, self.checkpoint.noted
        if planned == noted:
            return "between micro-batches"
        return GAP if self._committed() == planned else "in a micro-batch"

    def _committed(self) -> int:
        """The newest micro-batch that the topic knows of, read from its log without deltaq; -1 if
        there is none.
        """
        newest = -1
        for path in Path(self.root, "topics", WINDOWS, "_delta_log").glob("*.json"):
            for line in path.read_text().splitlines():
                action = json.loads(line)
                if str(action.get("txn", {}).get("appId")).startswith("spark:"):
                    newest = max(newest, action["txn"]["version"])
        return newest

    # --- meanwhile ---

    def _tend(self) -> None:
        """Append records so that the query has something to read and its records are close in event
        time.
        """
        read = (
            sum(self.checkpoint.next_offsets(planned).values())
            if (planned := self.checkpoint.planned) >= 0
            else 0
        )
        if self._written < self.rows and self._written - read < 2 * self._offsets_max:
            self._produce(range(self._written, min(self.rows, self._written + self._offsets_max)))
        if read == self.rows and not self._closed:
            # Not before, because the records that the query reads after this one are late.
            closing = START_MS + self.rows + 2 * self._lateness_ms
            self._producer.produce(EVENTS, b"0", b"closes all windows before it", timestamp=closing)
            assert self._producer.flush(TIMEOUT_S) == 0
            self._closed = True
        if time.monotonic() - self._maintained_at > ROUND_S:
            self.findings.maintenance.update(self._maintenance.round())
            self._maintained_at = time.monotonic()

    def _produce(self, numbers: range) -> None:
        for number in numbers:
            self._producer.produce(
                EVENTS, b"%d" % number, b"%d" % (number % KEYS), timestamp=START_MS + number
            )
        assert self._producer.flush(TIMEOUT_S) == 0
        self._written = numbers.stop

    def _change_topics(self) -> None:
        """Delete what no micro-batch will read again, and add a partition to both topics."""
        with AdminClient({"bootstrap.servers": self.root}) as admin:
            if (noted := self.checkpoint.noted) >= 0:
                ends = self.checkpoint.next_offsets(noted)
                deleted = admin.delete_records(
                    [TopicPartition(EVENTS, number, end) for number, end in ends.items()]
                )
                for done in deleted.values():
                    done.result(TIMEOUT_S)
                state = (
                    "ran" if self._driver is not None and self._driver.is_running() else "was dead"
                )
                self.findings.maintenance[f"records deleted while the query {state}"] += 1
            wanted = [
                NewPartitions(name, len(self._offsets(name)) + 1) for name in (EVENTS, WINDOWS)
            ]
            for raised in admin.create_partitions(wanted).values():
                raised.result(TIMEOUT_S)

    # --- the end ---

    def finish(self, spark: SparkSession | None) -> None:
        """Let the query write all windows."""
        expected = len(_expected(self.rows))

        def is_done() -> bool:
            return (
                self.checkpoint.noted == self.checkpoint.planned and self._result_rows() >= expected
            )

        self._live(is_done, spark=spark)

    def _result_rows(self) -> int:
        return sum(self._offsets(WINDOWS))

    def _offsets(self, topic: str) -> Sequence[int]:
        described = Topic(topic, conf={"bootstrap.servers": self.root}).describe()
        return [partition.next_offset for partition in described.partitions]

    def judge(self) -> Findings:
        """Compare the rows with those that plain Python computes. Raises AssertionError."""
        table = (
            Topic(WINDOWS, conf={"bootstrap.servers": self.root})
            .to_arrow()
            .select(["_key", "value"])
        )
        found: Counter[tuple[int, bytes, int, int]] = Counter()
        for row in table.to_pylist():
            value = json.loads(row["value"])
            found[value["start"], row["_key"], value["count"], value["sum"]] += 1
        expected = Counter(_expected(self.rows))
        assert found == expected, (
            f"too many: {list((found - expected).items())[:5]}, missing: "
            f"{list((expected - found).items())[:5]}"
        )
        assert not self.findings.maintenance[FAILURES], self.findings
        self.findings.rows, self.findings.batches = table.num_rows, self.checkpoint.noted + 1
        return self.findings


def _expected(rows: int) -> list[tuple[int, bytes, int, int]]:
    """Start of the window, key, count and sum of all windows with records."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number in range(rows):
        groups.setdefault((number // WINDOW_MS, number % KEYS), []).append(number)
    return [
        (START_MS + window * WINDOW_MS, b"%d" % key, len(of_group), sum(of_group))
        for (window, key), of_group in groups.items()
    ]


def run_query(
    root: str,
    folder: Path,
    seed: int,
    kills: Sequence[Kill],
    rows: int,
    offsets_max: int,
    spark: SparkSession | None = None,
) -> Findings:
    """Kill the query as often as said, in a random order, while it reads so many records; then
    check what it wrote.

    With `spark` its last life is in this session.
    """
    with _Run(root, folder, seed, rows, offsets_max) as run:
        order = run.chance.sample(list(kills), len(kills))
        for number, kind in enumerate(order):
            run.kill(kind, topics_change=number % CHANGE_EVERY == 0)
        run.finish(spark)
        return run.judge()
