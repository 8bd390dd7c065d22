"""Runners of a group of SQL views are killed, stopped while another one takes over, and started
beside each other: ticks have no gap, each one is right, and a reader has seen nothing else.

`make crash` runs many rounds, on local disk and on a MinIO that is killed too.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaq import KafkaException, Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import open_store
from deltaq.views import Views
from deltaq.views.ticks import last_tick, ticks_from
from tests.children import NEED_NUMPY
from tests.crash.test_group_soak import new_seed, rounds
from tests.crash.test_transactions import in_background
from tests.servers.minio import MinioServer

TRANSACTIONS = pa.schema([("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())])
# Two views by rules, one of which reads one in full; and two in full.
SQL = {
    "credits": "-- mode: incremental\n"
    "select target as account, sum(amount) as c from transactions group by 1",
    "debits": "select source as account, sum(amount) as d from transactions group by 1",
    "balance": "-- mode: incremental\n"
    "select account, c - d as b from credits join debits using (account)",
    "total": "select sum(b) as total from balance",
}
ACCOUNTS = 10
RATE = 200
"""Records per second."""

TIMEOUT_S = 90.0
COMPARED = 40
"""Ticks that are compared at the end, beside those that a reader has seen."""

_ROOT_FOLDER = Path(__file__).resolve().parents[2]

Rows = dict[str, list[tuple[Any, ...]]]


SMALL_STATE = """
from deltaq.cli import main
from deltaq.views import checkpoints, state

checkpoints.CHECKPOINT_S = 0.2
state.SEAL_ROWS = 8
raise SystemExit(main())
"""
"""The command line with runs and checkpoints after a few rows and ticks."""


@dataclass
class RunnerProcess:
    """`deltaq views run`, as a process."""

    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, root: str, folder: Path, number: int) -> RunnerProcess:
        log = folder / f"runner-{number}.log"
        command = [sys.executable, "-c", SMALL_STATE, "--root", root]
        command += ["views", "run", str(folder / "bank"), "--every", "0.05"]
        with log.open("wb") as file:
            env = os.environ | NEED_NUMPY
            return cls(log, subprocess.Popen(command, stderr=file, cwd=_ROOT_FOLDER, env=env))

    def ends_as_fenced(self) -> None:
        """It finds that another one has taken over, and ends."""
        assert self.process.wait(TIMEOUT_S) == 1, self.said()
        assert "fenced" in self.said() or "another runner" in self.said()

    def said(self) -> str:
        """The end of what it has written to standard error."""
        return self.log.read_text(errors="replace")[-2000:]


@dataclass
class BankRun:
    """A producer of transactions, runners of the views, and a reader of cuts."""

    root: str
    folder: Path
    chance: random.Random
    written: int = 0
    is_over: bool = False
    starts: int = 0
    seen: dict[int, tuple[int, Rows]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    def views(self) -> Views:
        return Views("bank", self.root)

    def write(self) -> None:
        """Produce transactions until it is over."""
        with Producer({"bootstrap.servers": self.root}) as producer:
            while not self.is_over:
                number = self.written
                row = {"source": number % ACCOUNTS, "target": number * 7 % ACCOUNTS, "amount": 1}
                producer.produce("transactions", row)
                self.written += 1
                producer.poll(1 / RATE)
            assert producer.flush(TIMEOUT_S) == 0

    def look(self) -> None:
        """Read the newest cut again and again until it is over."""
        while not self.is_over:
            try:
                self.note(None)
            except KafkaException:
                time.sleep(0.1)  # there is no tick yet, or the server is down

    def note(self, at: int | None) -> None:
        """Read a tick: it is the same whenever it is read."""
        cut = self.views().read(at)
        rows = {
            name: sorted(tuple(row.values()) for row in cut[name].to_arrow().to_pylist())
            for name in cut.views
        }
        found = cut.offsets["transactions"][0], rows
        if self.seen.setdefault(cut.tick, found) != found:
            self.problems.append(f"tick {cut.tick} was {self.seen[cut.tick]} and is {found}")

    def start(self) -> RunnerProcess:
        self.starts += 1
        return RunnerProcess.start(self.root, self.folder, self.starts)

    def tick(self) -> int:
        """The number of the last tick; 0 while there is none, or while the server is down."""
        try:
            found = last_tick(open_store(self.root), "bank", SYSTEM_CLOCK)
        except KafkaException:
            return 0
        return 0 if found is None else found.number

    def progress(self, runner: RunnerProcess) -> None:
        """Wait until another tick is published, and then for a random moment."""
        known, until = self.tick(), time.monotonic() + TIMEOUT_S
        while self.tick() <= known:
            assert runner.process.poll() is None, runner.said()
            assert time.monotonic() < until, f"no tick after {known}: {runner.said()}"
            time.sleep(0.02)
        time.sleep(self.chance.uniform(0, 0.3))

    def inject(self, runner: RunnerProcess) -> RunnerProcess:
        """End a runner in one of three ways; the next one."""
        kind = self.chance.choice(["kill", "kill", "stop", "beside"])
        self.happened[kind] += 1
        if kind == "kill":
            runner.process.kill()
            runner.process.wait()
            return self.start()
        if kind == "stop":
            runner.process.send_signal(signal.SIGSTOP)
        following = self.start()
        self.progress(following)
        if kind == "stop":
            runner.process.send_signal(signal.SIGCONT)
        runner.ends_as_fenced()
        return following

    def judge(self) -> None:
        """Ticks are without gap, and each one is right."""
        ticks = ticks_from(open_store(self.root), "bank", SYSTEM_CLOCK, 1)
        assert [tick.number for tick in ticks] == [*range(1, len(ticks) + 1)]
        for before, after in pairwise(ticks):
            assert before.inputs["transactions"].ends <= after.inputs["transactions"].ends
            for name, of in after.views.items():
                assert before.views[name].end == of.start, (name, after.number)
        kept = range(max(1, len(ticks) - 900), len(ticks) + 1)
        for number in sorted(self.chance.sample(kept, min(COMPARED, len(kept)))):
            self.note(number)
        self.note(None)
        table = Topic("transactions", bootstrap_servers=self.root).to_arrow().to_pydict()
        places = zip(table["source"], table["target"], table["amount"], strict=True)
        rows = list(places)
        assert len(rows) == self.written
        assert max(end for end, _ in self.seen.values()) == self.written
        for number, (end, found) in self.seen.items():
            assert found == expected(rows[:end]), f"tick {number} at {end}"
        assert self.problems == []
        assert self.views().check() == []


def expected(rows: list[tuple[int, int, int]]) -> Rows:
    """The views over these transactions, by plain Python."""
    credits_, debits = Counter[int](), Counter[int]()
    for source, target, amount in rows:
        credits_[target] += amount
        debits[source] += amount
    both = sorted(credits_.keys() & debits.keys())
    balance = [(account, credits_[account] - debits[account]) for account in both]
    return {
        "credits": sorted(credits_.items()),
        "debits": sorted(debits.items()),
        "balance": balance,
        "total": [(sum(b for _, b in balance) if balance else None,)],
    }


def run(
    root: str, folder: Path, count: int, kill_server: Callable[[], None] | None = None
) -> BankRun:
    """End runners `count` times, and judge what is there at the end."""
    chance = random.Random(new_seed(count))
    (folder / "bank").mkdir()
    for name, sql in SQL.items():
        (folder / "bank" / f"{name}.sql").write_text(sql)
    Topic("transactions", TRANSACTIONS, conf={"bootstrap.servers": root}).create()
    found = BankRun(root, folder, chance)
    runner = found.start()
    with in_background(found.write, found.look) as failures:
        try:
            for number in range(1, count + 1):
                found.progress(runner)
                if kill_server is not None and chance.random() < 0.3:
                    kill_server()
                    found.happened["kill server"] += 1
                runner = found.inject(runner)
                if number % 20 == 0:
                    print(f"{number} rounds: {dict(found.happened)}, tick {found.tick()}")
            found.progress(runner)
        finally:
            found.is_over = True
            runner.process.kill()
            runner.process.wait()
    assert failures == []
    # One more tick, over all of the input.
    Views.from_folder(folder / "bank", root).run(until="now")
    found.judge()
    print(f"{dict(found.happened)}, {found.tick()} ticks, {len(found.seen)} of them compared")
    return found


@pytest.mark.timeout(180)
def test_a_few_faults_leave_no_gap_between_ticks(local_root: str, tmp_path: Path):
    assert run(local_root, tmp_path, 1).happened.total() == 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_runners_killed_and_stopped_leave_no_gap_between_ticks(local_root: str, tmp_path: Path):
    found = run(local_root, tmp_path, rounds(200))
    assert {"kill", "stop", "beside"} <= found.happened.keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.s3_server
def test_runners_on_a_server_that_dies_leave_no_gap_between_ticks(
    own_server: MinioServer, tmp_path: Path
):
    def kill_server() -> None:
        own_server.kill()
        time.sleep(0.5)
        own_server.restart()

    found = run(f"s3://{own_server.bucket}/root", tmp_path, rounds(30), kill_server)
    assert found.happened["kill server"] > 0
