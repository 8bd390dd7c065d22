"""Random faults of the members of one group while records are written, one per round."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.checker.facts import Rules, gather
from tests.checker.history import Operation
from tests.checker.owners import unowned_times
from tests.crash.harness import Actor, Findings, Harness

__all__ = ["CRASHES", "NO_CRASHES", "GroupRun", "run_group"]

MEMBERS = 5
RUNNING = 2
"""Members that run at any time, at least."""

PARTITIONS = 10
RATE = 200
"""Records per second."""

SESSION_S = 2.0
HEARTBEAT_S = 0.2

PROMISED_S = SESSION_S + HEARTBEAT_S + 1.0
"""The time in which the partitions of one dead member have another owner."""

UNOWNED_S = (MEMBERS - RUNNING) * PROMISED_S + 5.0
"""The same if a partition is assigned to one dead member after the other; 5 s are for a busy
machine.
"""

CRASHES = {"kill": 3, "stop": 3, "continue": 3, "start": 4, "close": 2}
"""The weights of the faults."""

NO_CRASHES = {"start": 1, "close": 1}

REPORT_EVERY = 10


@dataclass
class GroupRun:
    """What a run has found. `unowned_s`: times in which a partition had no living owner, of half a
    second or more. `deliveries`: how often the group was given each record, by partition and
    offset.
    """

    faults: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    unowned_s: list[float] = field(default_factory=list)
    deliveries: Counter[tuple[int | None, int | None]] = field(default_factory=Counter)

    def __str__(self) -> str:
        times = sorted(self.unowned_s)
        again = sum(count - 1 for count in self.deliveries.values())
        late = sum(seconds > PROMISED_S for seconds in times)
        shown = (
            f", median {times[len(times) // 2]:.2f} s, longest {times[-1]:.2f} s" if times else ""
        )
        return (
            f"{dict(self.faults)}; {self.findings}; {again} records delivered again; {len(times)} "
            f"times without a living owner for 0.5 s or more{shown}; {late} above {PROMISED_S:g} s"
        )


@dataclass
class _Members:
    """The members of a group, and which of them are stopped."""

    harness: Harness
    settings: Mapping[str, object]
    kill_server: Callable[[Harness], None] | None
    stopped: list[Actor] = field(default_factory=list)

    def start(self) -> None:
        """Start a member that is down, or a new one."""
        down = [reader for reader in self.harness.readers if not reader.is_running()]
        if down:
            self.harness.chance.choice(down).start()
        else:
            self.harness.reader(f"r{len(self.harness.readers) + 1}", **self.settings)

    def inject(self, faults: Mapping[str, int]) -> str:
        """One random fault that is possible now. Returns its name."""
        running = [
            actor
            for actor in self.harness.readers
            if actor.is_running() and actor not in self.stopped
        ]
        may_lose_one = len(running) > RUNNING
        possible = {
            "kill": may_lose_one,
            "stop": may_lose_one,
            "close": may_lose_one,
            "continue": bool(self.stopped),
            "start": len(running) + len(self.stopped) < MEMBERS,
            "kill server": self.kill_server is not None,
        }
        names = [name for name in faults if possible[name]]
        (fault,) = self.harness.chance.choices(names, [faults[name] for name in names])
        actor = self.harness.chance.choice(running)
        if fault == "kill":
            self.harness.kill_now(actor)
        elif fault == "stop":
            actor.signal(signal.SIGSTOP)
            self.stopped.append(actor)
        elif fault == "continue":
            self.resume(self.harness.chance.choice(self.stopped))
        elif fault == "close":
            self.harness.end(actor)
        elif fault == "start":
            self.start()
        elif self.kill_server is not None:
            self.kill_server(self.harness)
        return fault

    def resume(self, actor: Actor) -> None:
        self.stopped.remove(actor)
        actor.signal(signal.SIGCONT)

    def wait_for_progress(self) -> None:
        """Wait until the group has committed records of all partitions that were written after this
        call.
        """
        ends = self.harness.ends()
        self.harness.wait(
            lambda: all(to > end for to, end in zip(self.harness.committed(), ends, strict=True)),
            "a commit of new records in each partition",
        )


def run_group(
    root: str,
    folder: Path,
    seed: int,
    rounds: int,
    faults: Mapping[str, int],
    strategy: str,
    kill_server: Callable[[Harness], None] | None = None,
) -> GroupRun:
    """Inject faults, let the group recover and read to the end, and check all that has happened.

    Raises AssertionError for each anomaly. `faults` are the weights. Without crashes, each record
    must have been delivered once.
    """
    found = GroupRun()
    begun = time.monotonic()
    settings: dict[str, object] = {
        "session.timeout.ms": int(SESSION_S * 1000),
        "heartbeat.interval.ms": int(HEARTBEAT_S * 1000),
        "partition.assignment.strategy": strategy,
        "test.commit.on.revoke": True,
    }
    # A busy machine must not end the session of a living member.
    if faults.keys() <= NO_CRASHES.keys():
        settings["session.timeout.ms"] = 60_000
    with Harness(root, folder, seed, PARTITIONS) as harness:
        harness.writer("w1", **{"test.rate": RATE})
        members = _Members(harness, settings, kill_server)
        for _ in range(RUNNING + 1):
            members.start()
        members.wait_for_progress()
        for number in range(1, rounds + 1):
            found.faults[members.inject(faults)] += 1
            harness.moment()
            if harness.chance.random() < 0.5:
                members.wait_for_progress()
            if number % REPORT_EVERY == 0:
                print(
                    f"[{time.monotonic() - begun:5.0f} s] {number} rounds: {dict(found.faults)}",
                    flush=True,
                )
        for actor in list(members.stopped):
            members.resume(actor)
        while sum(reader.is_running() for reader in harness.readers) < MEMBERS:
            members.start()
        members.wait_for_progress()
        harness.resolve()
        operations = harness.operations()
        found.findings = harness.judge(UNOWNED_S if kill_server is None else float("inf"))
        found.deliveries = Counter(
            (record.partition, record.offset) for record in harness.deliveries(operations)
        )
    found.unowned_s = _unowned(operations)
    print(f"[{time.monotonic() - begun:5.0f} s] {found}", flush=True)
    return found


def _unowned(operations: list[Operation]) -> list[float]:
    facts = gather(
        operations, Rules(drained=False, gaps=False, isolated_writes=False, expendable=frozenset())
    )
    return [found.seconds for found in unowned_times(facts, 0.5)]
