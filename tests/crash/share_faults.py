"""Workers of a share group are killed and stopped at random while records are written, and the log
is audited with all that they wrote down.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from deltaq import AdminClient, Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.names import group_folder, topic_folder
from deltaq.store import open_store
from deltaq.topics.lookup import TopicLookup
from tests.crash.sharer import DRAIN, GROUP, TOPIC
from tests.doubles.sharing import set_group
from tests.simulation.actors.workers import Delivered, RecordDecision, SharedWork
from tests.simulation.audit.oracle import Place
from tests.simulation.audit.shares import DEAD_LETTERS, ShareAudit, dead_letters
from tests.simulator.disk import Disk

__all__ = ["ShareRun", "run_share_group"]

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 4
PARTITIONS = 2
LOCK_S = 2.0
DELIVERIES_MAX = 1_000
BATCH = 20

STOPS_S = (0.5, LOCK_S + 0.5, LOCK_S + 1.5)
"""How long a worker is stopped: within its lock, and beyond."""

TIMEOUT_S = 120.0


@dataclass
class ShareRun:
    """What a run has found."""

    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    work: SharedWork = field(default_factory=SharedWork)
    happened: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        work = self.work
        return (
            f"{dict(self.faults)}; {self.messages} messages, {len(work.delivered)} deliveries, "
            f"{len(work.confirmed)} confirmed, {len(work.refused)} refused; {dict(self.happened)}"
        )


class Workers:
    """The processes of the workers, which are started again under another name."""

    def __init__(self, root: str, folder: Path, chance: random.Random) -> None:
        self._root = root
        self._folder = folder
        self._chance = chance
        self._starts = 0
        self._running = [self.start() for _ in range(WORKERS)]
        self._stopped: dict[subprocess.Popen[bytes], float] = {}

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker."""
        self._starts += 1
        name = f"w{self._starts}"
        log = (self._folder / f"{name}.log").open("wb")
        history = str(self._folder / f"{name}.jsonl")
        command = [sys.executable, "-m", "tests.crash.sharer", self._root, name, history, *options]
        with log:
            return subprocess.Popen(command, cwd=ROOT, stderr=log)

    def inject(self) -> str:
        """Kill a worker, and start another; or stop one for a while."""
        self.resume_due()
        at = self._chance.randrange(WORKERS)
        worker = self._running[at]
        assert worker.poll() is None, "a worker ended by itself"
        if worker not in self._stopped and self._chance.random() < 0.5:
            worker.send_signal(signal.SIGSTOP)
            self._stopped[worker] = time.monotonic() + self._chance.choice(STOPS_S)
            return "stop"
        self._stopped.pop(worker, None)
        worker.kill()
        worker.wait()
        self._running[at] = self.start()
        return "kill"

    def resume_due(self, *, all_of_them: bool = False) -> None:
        """Continue the workers whose stop is over."""
        for worker, until in list(self._stopped.items()):
            if all_of_them or time.monotonic() >= until:
                del self._stopped[worker]
                worker.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill all, and have one more take what is left."""
        self.resume_due(all_of_them=True)
        for worker in self._running:
            worker.kill()
            worker.wait()
        assert self.start(DRAIN).wait(TIMEOUT_S) == 0, "the last worker failed"

    def kill(self) -> None:
        """Leave none behind."""
        for worker in self._running:
            worker.kill()
            worker.wait()


def run_share_group(
    root: str,
    folder: Path,
    seed: int,
    rounds: int,
    kill_server: Callable[[], None] = lambda: None,
) -> ShareRun:
    """Inject a fault in each round, then let a worker take what is left, and check the log. Every
    tenth round also kills the server. Raises AssertionError for each anomaly.
    """
    chance, found, begun = random.Random(seed), ShareRun(), time.monotonic()
    Topic(TOPIC, partitions=PARTITIONS, bootstrap_servers=root).create()
    with AdminClient(bootstrap_servers=root) as admin:
        set_group(
            admin,
            GROUP,
            share_auto_offset_reset="earliest",
            share_record_lock_duration_ms=round(LOCK_S * 1000),
            share_delivery_count_limit=DELIVERIES_MAX,
            errors_deadletterqueue_topic_name=DEAD_LETTERS,
            errors_deadletterqueue_copy_record_enable="true",
        )
    workers = Workers(root, folder, chance)
    try:
        with Producer(bootstrap_servers=root, linger_ms=5) as producer:
            for number in range(1, rounds + 1):
                for _ in range(BATCH * chance.randint(1, 4)):
                    partition = chance.randrange(PARTITIONS)
                    producer.produce(TOPIC, b"%d" % found.messages, partition=partition)
                    found.messages += 1
                producer.flush(TIMEOUT_S)
                time.sleep(chance.random() * 1.5)
                found.faults[workers.inject()] += 1
                if number % 10 == 0:
                    kill_server()
                    shown = f"[{time.monotonic() - begun:5.0f} s] {number} rounds"
                    print(f"{shown}: {dict(found.faults)}", flush=True)
        workers.end()
    finally:
        workers.kill()
    _check(root, folder, found)
    print(f"[{time.monotonic() - begun:5.0f} s] {found}", flush=True)
    return found


@dataclass
class _LogOnDisk:
    """The group's log and the dead letters, as the audit of simulations has them."""

    history: dict[str, list[bytes]] = field(default_factory=dict)
    written: dict[str, tuple[float]] = field(default_factory=dict)


def _check(root: str, folder: Path, found: ShareRun) -> None:
    store, disk = open_store(root), _LogOnDisk()
    for kept in (group_folder(GROUP), topic_folder(DEAD_LETTERS)):
        for entry in store.list(kept):
            if entry.key.endswith((".json", ".parquet")):
                disk.history[entry.key] = [store.get(entry.key)]
                disk.written[entry.key] = (entry.modified_ms / 1000,)
    audit = ShareAudit(cast(Disk, disk), GROUP, LOCK_S, DELIVERIES_MAX)
    audit.read()
    head = TopicLookup(store, SYSTEM_CLOCK).head(TOPIC)
    for history in sorted(folder.glob("*.jsonl")):
        _read(history, head.topic_id, found.work)
    places = {
        Place(head.topic_id, partition, offset)
        for partition, end in enumerate(head.next_offsets)
        for offset in range(end)
    }
    assert len(places) == found.messages
    audit.compare(found.work, places, head.topic_id)
    audit.compare_dead_letters(found.work, dead_letters(cast(Disk, disk)))
    found.happened = audit.happened
    assert audit.problems == []


def _read(history: Path, topic_id: str, work: SharedWork) -> None:
    """What a worker has written down. The last line of one that was killed may be cut."""
    lines = history.read_text().splitlines(keepends=True)
    for line in lines:
        if not line.endswith("\n"):
            continue
        what, partition, offset, deliveries, *more = json.loads(line)
        place = Place(topic_id, partition, offset)
        if what == "delivered":
            # Its time says nothing: the worker may have been stopped before it wrote this.
            work.delivered.append(Delivered(history.stem, place, deliveries, 0.0))
        else:
            kind, at = more[0], more[1] if len(more) > 1 else 0.0
            decision = RecordDecision(history.stem, place, deliveries, kind, at)
            getattr(work, what).append(decision)
