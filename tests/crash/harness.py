"""Writers and readers of one topic as child processes, what happens to them, and the judgement of
what they wrote down.

A writer or reader that was killed is started again under the same name. Nothing is decided by time:
a process is left alone until it has got something done, and then for a random moment more, so that
the kill finds it anywhere.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deltaq import Consumer, Topic, TopicPartition
from deltaq.delta.actions import Add, parse_entry
from deltaq.names import entry_version, topic_folder, topic_log
from deltaq.store import open_store
from deltaq.testing import messages_of
from deltaq.topics.shared_files import parse_shared_file, writer_of
from tests.checker import check_history, report
from tests.checker.history import History, Operation, SeenRecord, load_history
from tests.doubles.group_entries import group_entries

__all__ = ["PARTITIONS", "Actor", "Findings", "Harness"]

TOPIC = "events"
GROUP = "readers"
PARTITIONS = 3

TIMEOUT_S = 60.0
"""Maximum seconds to wait for something that must happen, on a busy machine."""

MOMENT_S = 0.4
"""Maximum seconds between observed progress and a kill: many commits."""

SESSION = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 100}


@dataclass
class Actor:
    """A writer or reader with one name, over all its starts."""

    name: str
    arguments: Callable[[int, Path], list[str]]
    """Makes the command's arguments from a start number and a history file."""

    settings: dict[str, object]
    sign_of_life: str
    """The text that its history contains once it has made progress."""

    folder: Path
    starts: int = 0
    seen: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def history(self) -> Path:
        """The history file of its latest start."""
        return self.folder / f"{self.name}-{self.starts}.jsonl"

    def start(self) -> None:
        """Start it, or start it again."""
        self.starts += 1
        self.seen = 0
        command = [sys.executable, "-m", *self.arguments(self.starts, self.history)]
        log = self.history.with_suffix(".log").open("wb")
        with log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=log, cwd=_ROOT_FOLDER
            )
        assert self.process.stdin is not None
        with self.process.stdin as settings:
            settings.write(json.dumps(self.settings).encode())

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kill it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def is_running(self) -> bool:
        """Whether it was started and has not ended; a stopped process is running."""
        return self.process is not None and self.process.poll() is None

    def has_lived(self) -> bool:
        """Whether it has made progress since its latest start. AssertionError if it ended by
        itself.
        """
        self.check_alive()
        return self.history.exists() and self.sign_of_life in self.history.read_text()

    def gets_on(self) -> bool:
        """Whether it has made progress since the last call that returned True."""
        self.check_alive()
        done = self.history.read_text().count(self.sign_of_life) if self.history.exists() else 0
        gets_on = done > self.seen
        self.seen = done if gets_on else self.seen
        return gets_on

    def check_alive(self) -> None:
        """Raise AssertionError, with its output, if it ended by itself."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended by itself: {self.said()}"

    def end(self) -> None:
        """Ask it to end and wait. AssertionError if its exit status is not 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == 0, f"{self.name} did not end well: {self.said()}"

    def said(self) -> str:
        """The end of its standard error."""
        return self.history.with_suffix(".log").read_text(errors="replace")[-2000:]


_ROOT_FOLDER = Path(__file__).resolve().parents[2]


@dataclass
class Findings:
    """The counts of a run. `kills`: kills of writers by the stage in which they hit records.

    `committed_by_peers`: the files committed by another writer than their uploader.
    """

    sends: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    orphans: int = 0
    committed_by_peers: int = 0

    def __str__(self) -> str:
        parts = {
            "records": self.stored,
            "orphan files": self.orphans,
            "files committed by peers": self.committed_by_peers,
        }
        counts = [f"{name} {count}" for name, count in parts.items()]
        counts += [f"{count} sends {outcome}" for outcome, count in sorted(self.sends.items())]
        counts += [
            f"{count} offset commits {outcome}" for outcome, count in sorted(self.commits.items())
        ]
        return ", ".join(
            counts + [f"{count} kills {place}" for place, count in sorted(self.kills.items())]
        )


class Harness:
    """One topic below `root`, and all processes that use it. A context manager that leaves no
    process behind.
    """

    def __init__(self, root: str, folder: Path, seed: int, partitions: int = PARTITIONS) -> None:
        self.root = root
        self.folder = folder
        self.chance = random.Random(seed)
        self.partitions = partitions
        self.writers: list[Actor] = []
        self.readers: list[Actor] = []
        self._file = (folder / "harness.jsonl").open("a")
        self.history = History(file=self._file)  # when processes were killed
        Topic(TOPIC, partitions=partitions, conf={"bootstrap.servers": root}).create()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        for actor in self.actors:
            if actor.is_running():
                actor.kill()

    @property
    def actors(self) -> list[Actor]:
        """All writers and readers."""
        return [*self.writers, *self.readers]

    def writer(self, name: str, **settings: object) -> Actor:
        """Start a producer."""

        def arguments(start: int, history: Path) -> list[str]:
            return [
                "tests.crash.writer",
                self.root,
                TOPIC,
                str(self.partitions),
                name,
                str(start),
                str(history),
            ]

        actor = Actor(name, arguments, settings, '"kind":"send","outcome":"ok"', self.folder)
        self.writers.append(actor)
        actor.start()
        return actor

    def reader(self, name: str, **settings: object) -> Actor:
        """Start a member of the group."""

        def arguments(_: int, history: Path) -> list[str]:
            return ["tests.crash.reader", self.root, TOPIC, GROUP, name, str(history)]

        actor = Actor(
            name, arguments, SESSION | settings, '"kind":"commit","outcome":"ok"', self.folder
        )
        self.readers.append(actor)
        actor.start()
        return actor

    # --- faults ---

    def moment(self) -> None:
        """Wait for a random time, so that the next fault hits the processes at any place."""
        time.sleep(self.chance.uniform(0, MOMENT_S))

    def kill(self, actor: Actor) -> None:
        """Kill an actor at a random moment after it has made progress, and start it again."""
        self.wait(actor.has_lived, f"a sign of life from {actor.name}")
        self.moment()
        self.kill_now(actor)
        actor.start()

    def kill_now(self, actor: Actor) -> None:
        """Kill an actor. It stays dead."""
        actor.check_alive()
        actor.kill()
        self.history.crash(actor.name)

    def active_reader(self) -> Actor:
        """Wait for a reader that has made progress, and return it."""
        found: list[Actor] = []

        def look() -> bool:
            found[:] = [reader for reader in self.readers if reader.has_lived()]
            return bool(found)

        self.wait(look, "a sign of life from any reader")
        return self.chance.choice(found)

    def pause(self, actor: Actor, seconds: float) -> None:
        """Stop an actor (SIGSTOP) for about this long at a random moment after it has made
        progress.
        """
        self.wait(actor.has_lived, f"a sign of life from {actor.name}")
        self.moment()
        actor.signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.8, 1.2) * seconds)
        actor.signal(signal.SIGCONT)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come within {TIMEOUT_S:g} s"
            time.sleep(0.01)

    # --- the end ---

    def resolve(self) -> None:
        """After the faults: let every writer end with all outcomes known, and the group read all
        records (G8).
        """
        for actor in self.writers:
            self.wait(actor.has_lived, f"a sign of life from {actor.name}")
        for actor in self.writers:
            actor.end()
        if self.readers:
            self.wait(
                lambda: self.committed() == self.ends(),
                "the end of the topic to be committed by the group",
            )
        for actor in self.readers:
            if actor.is_running():
                self.end(actor)

    def end(self, actor: Actor) -> None:
        """Let a reader leave the group and end."""
        # Else SIGTERM finds no handler.
        self.wait(actor.history.exists, f"the start of {actor.name}")
        actor.end()
        self.history.crash(actor.name)

    def ends(self) -> list[int]:
        """The offset after the last record of each partition."""
        with self._asking() as consumer:
            return [
                consumer.get_watermark_offsets(TopicPartition(TOPIC, n))[1]
                for n in range(self.partitions)
            ]

    def committed(self) -> list[int]:
        """The committed offsets."""
        with self._asking() as consumer:
            return [
                tp.offset
                for tp in consumer.committed(
                    [TopicPartition(TOPIC, n) for n in range(self.partitions)]
                )
            ]

    def _asking(self) -> Consumer:
        return Consumer(
            {"bootstrap.servers": self.root, "group.id": GROUP, "enable.auto.commit": False}
        )

    def operations(self) -> list[Operation]:
        """All recorded histories as one."""
        paths = sorted(self.folder.glob("*.jsonl"))
        return load_history(*(path.read_text().splitlines(keepends=True) for path in paths))

    def judge(self, unowned_s: float = math.inf) -> Findings:
        """Check all recorded histories against the content of the topic. Raises AssertionError.

        `unowned_s`: how long a partition may be without a living owner.
        """
        operations = self.operations()
        reading = History()
        polling = reading.poll("judge")
        stored = [
            (TOPIC, m.partition() or 0, m.offset() or 0, m.value().decode())
            for m in messages_of(self.root, TOPIC)
        ]
        polling.ok(stored, at_tail=[(TOPIC, partition) for partition in range(self.partitions)])
        anomalies = check_history(
            [*operations, *reading.operations], drained=True, unowned_s=unowned_s
        )
        assert not anomalies, report(anomalies)
        self._check_sends(operations, stored)
        self._check_group(operations, {(partition, offset) for _, partition, offset, _ in stored})
        findings = Findings(stored=len(stored))
        findings.sends = Counter(
            operation.outcome for operation in operations if operation.kind == "send"
        )
        findings.commits = Counter(
            operation.outcome for operation in operations if operation.kind == "commit"
        )
        named = dict(self._named_files())
        uploaded = [self._values(path) for path in set(self._data_files()) - named.keys()]
        findings.orphans = len(uploaded)
        shared = {
            path: found
            for path in named
            if (found := parse_shared_file(path.removeprefix(topic_folder(TOPIC))))
        }
        findings.committed_by_peers = sum(
            named[path] != file.id.writer for path, file in shared.items()
        )
        self._phases(findings, operations, {value for *_, value in stored}, set().union(*uploaded))
        return findings

    def _check_sends(
        self, operations: Sequence[Operation], stored: Sequence[tuple[str, int, int, str]]
    ) -> None:
        """Check the same by other means than the history checker."""
        where = {value: (partition, offset) for _, partition, offset, value in stored}
        assert len(where) == len(stored), "a value is there twice"
        last: dict[tuple[str, int], int] = {}
        for _, partition, _, value in stored:
            # The successor of a killed writer may commit its uploads, after records of its own.
            start, _, number = value.rpartition(".")
            assert last.get((start, partition), -1) < int(number), (
                f"{value} is behind {last[start, partition]}"
            )
            last[start, partition] = int(number)
        for operation in operations:
            if operation.kind == "send":
                (record,) = operation.records
                if operation.outcome == "fail":
                    assert record.value not in where, f"{record} has failed and is there"
                elif operation.outcome == "ok":
                    found = where.get(record.value)
                    assert found is not None, f"{record} was acknowledged and is not there"
                    assert record.offset is None or (record.partition, record.offset) == found

    def _check_group(self, operations: Sequence[Operation], stored: set[tuple[int, int]]) -> None:
        """Check that the group was given each record, and what its log says of committed
        offsets.
        """
        if not self.readers:
            return
        delivered = {(record.partition, record.offset) for record in self.deliveries(operations)}
        assert stored <= delivered, f"never given to the group: {sorted(stored - delivered)[:9]}"
        committed: dict[str, int] = {}
        for entry in group_entries(self.root, GROUP):
            for txn in (action["txn"] for action in entry.actions if "txn" in action):
                before = committed.get(txn["appId"], 0)
                assert txn["version"] >= before, (
                    f"{txn['appId']} went back from {before} to {txn['version']}"
                )
                committed[txn["appId"]] = txn["version"]

    def deliveries(self, operations: Sequence[Operation]) -> list[SeenRecord]:
        """All records that polls of members have returned, with repetitions."""
        return [
            record
            for operation in operations
            if operation.kind == "poll"
            for record in operation.records
        ]

    def _phases(
        self,
        findings: Findings,
        operations: Sequence[Operation],
        stored: set[str],
        uploaded: set[str],
    ) -> None:
        """The stages in which kills of writers hit records; one kill may hit records in several
        stages.
        """
        open_sends: dict[str, set[str]] = {}
        for operation in operations:
            if operation.kind == "send" and operation.outcome == "invoke":
                value = str(operation.records[0].value)
                open_sends.setdefault(value.rpartition(".")[0], set()).add(value)
        for actor in self.writers:
            for start in range(1, actor.starts):  # the last one ended in order
                values = open_sends.get(f"{actor.name}.{start}", set())
                places = {
                    "between commit and acknowledgement": values & stored,
                    "between upload and commit": values & uploaded,
                    "before upload": values - stored - uploaded,
                }
                findings.kills.update(place for place, found in places.items() if found)

    def _values(self, path: str) -> set[str]:
        """The values in a data file, read without deltaq."""
        data = pa.BufferReader(open_store(self.root).get(path))
        return {
            value.decode()
            for value in pq.read_table(data, columns=["value"]).column("value").to_pylist()
        }

    def _data_files(self) -> Iterator[str]:
        folder, log = topic_folder(TOPIC), topic_log(TOPIC)
        for entry in open_store(self.root).list(folder):
            if entry.key.endswith(".parquet") and not entry.key.startswith(log):
                yield entry.key

    def _named_files(self) -> Iterator[tuple[str, str]]:
        """Each file that the log has added, with the writer of its entry."""
        store = open_store(self.root)
        for entry in store.list(topic_log(TOPIC)):
            version = entry_version(entry.key)
            if version is not None:
                parsed = parse_entry(store.get(entry.key), version, entry.key)
                for action in parsed.actions:
                    if isinstance(action, Add):
                        yield topic_folder(TOPIC) + action.path, writer_of(parsed.txn_id)
