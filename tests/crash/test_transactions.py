"""Workers that copy records in transactions are killed, and stopped while a successor takes their
`transactional.id`: both outputs equal the input, and a follower sees nothing that is not there at
the end.

`make crash` runs many rounds, on local disk and on a MinIO that is killed too.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from deltaq import Consumer, KafkaException, Producer, Topic, TopicPartition
from deltaq.admin import AdminClient, ConsumerGroupTopicPartitions
from tests.crash.test_group_soak import new_seed, rounds
from tests.crash.transactor import FENCED, GROUP, INPUT, OUTPUTS, READY
from tests.servers.minio import MinioServer

WORKERS = 3
PARTITIONS = 8
RATE = 150
"""Records per second."""

TIMEOUT_S = 90.0
MOMENT_S = 0.5
"""Longest time between observed progress and a fault."""

_ROOT_FOLDER = Path(__file__).resolve().parents[2]


@dataclass
class CopyingProcess:
    """A process with one `transactional.id`, over all its starts."""

    root: str
    name: str
    folder: Path
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, beside an earlier process if that still runs."""
        self.starts += 1
        with (self.folder / f"{self.name}-{self.starts}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.crash.transactor", self.root, self.name]
            self.process = subprocess.Popen(command, stderr=log, cwd=_ROOT_FOLDER)

    def has_its_id(self) -> bool:
        """Whether its latest process has taken its `transactional.id`."""
        log = self.folder / f"{self.name}-{self.starts}.log"
        return READY in log.read_text(errors="replace")

    def running(self) -> subprocess.Popen[bytes]:
        """Its process. AssertionError if it ended by itself."""
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        return self.process

    def said(self) -> str:
        """The end of what all of its processes have written to standard error."""
        logs = sorted(self.folder.glob(f"{self.name}-*.log"))
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in logs[-2:])


@dataclass
class Follower:
    """Reads both outputs as they grow, on a thread: what a reader has seen by partition."""

    root: str
    seen: dict[tuple[str, int], list[tuple[int, bytes]]] = field(default_factory=dict)
    is_over: bool = False

    def count(self) -> int:
        """How many records it has seen."""
        return sum(map(len, tuple(self.seen.values())))

    def has(self, place: tuple[str, int], count: int) -> bool:
        """Whether it has seen so many records of a partition."""
        return len(self.seen.get(place, ())) >= count

    def run(self) -> None:
        """Read until `is_over`."""
        conf = {"bootstrap.servers": self.root, "group.id": "follower"}
        with Consumer(conf, auto_offset_reset="earliest") as consumer:
            places = [TopicPartition(t, p, 0) for t in OUTPUTS for p in range(PARTITIONS)]
            consumer.assign(places)
            while not self.is_over:
                try:
                    messages = consumer.consume(500, 0.2)
                except KafkaException:
                    continue  # the server is down
                for message in messages:
                    if message.error() is None:
                        place = str(message.topic()), int(message.partition() or 0)
                        at = int(message.offset() or 0)
                        self.seen.setdefault(place, []).append((at, bytes(message.value())))


class Run:
    """Workers, a producer of the input, and a follower of the outputs."""

    def __init__(self, root: str, folder: Path, seed: int) -> None:
        self.root = root
        self.chance = random.Random(seed)
        self.workers = [CopyingProcess(root, f"t{number}", folder) for number in range(WORKERS)]
        self.zombies: list[tuple[CopyingProcess, subprocess.Popen[bytes]]] = []
        self.follower = Follower(root)
        self.written = 0
        self.is_writing = True
        self.happened: Counter[str] = Counter()

    def write(self) -> None:
        """Produce numbered records to the input until `is_writing` is false."""
        with Producer({"bootstrap.servers": self.root}) as producer:
            while self.is_writing:
                number = b"%d" % self.written
                producer.produce(INPUT, number, key=number)
                self.written += 1
                producer.poll(1 / RATE)
            assert producer.flush(TIMEOUT_S) == 0

    def lag(self) -> int:
        """How many records of the input the group has not committed."""
        with AdminClient({"bootstrap.servers": self.root}) as admin:
            asked = [ConsumerGroupTopicPartitions(GROUP)]
            (answer,) = admin.list_consumer_group_offsets(asked).values()
            listed = answer.result(TIMEOUT_S).topic_partitions or []
            found = {tp.partition: tp.offset for tp in listed}
        ends = self.ends(INPUT)
        return sum(end - max(0, found.get(number, 0)) for number, end in enumerate(ends))

    def is_below(self, lag: int) -> bool:
        """Whether the group has fewer records to copy."""
        return self.lag() < lag

    def ends(self, topic: str) -> list[int]:
        """The next offsets of a topic."""
        with Consumer({"bootstrap.servers": self.root, "group.id": "look"}) as consumer:
            return [
                consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)[1]
                for number in range(PARTITIONS)
            ]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds. AssertionError after TIMEOUT_S."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if condition():
                    return
            except KafkaException:
                pass  # the server is down
            assert time.monotonic() < until, f"no {what}: {[w.said() for w in self.workers]}"
            time.sleep(0.05)

    def progress(self) -> None:
        """Wait until more records are copied, and then for a random moment."""
        known = self.follower.count()
        self.wait(lambda: self.follower.count() > known, "progress")
        time.sleep(self.chance.uniform(0, MOMENT_S))

    def inject(self) -> None:
        """Kill a worker, or stop it while a successor takes its id, or let a stopped one go on."""
        worker = self.chance.choice(self.workers)
        kind = self.chance.choice(["kill", "stop", "go on"])
        if kind == "go on" and self.zombies:
            self.end_zombie(*self.zombies.pop())
        elif kind == "stop" and len(self.zombies) < 2:
            # One that took its id only after it goes on would fence its successor.
            self.wait(worker.has_its_id, "start of a worker")
            stopped = worker.running()
            stopped.send_signal(signal.SIGSTOP)
            self.zombies.append((worker, stopped))
            worker.start()
        else:
            kind = "kill"
            process = worker.running()
            process.kill()
            process.wait()
            worker.start()
        self.happened[kind] += 1

    def end_zombie(self, worker: CopyingProcess, process: subprocess.Popen[bytes]) -> None:
        """A stopped process goes on, finds itself fenced, and ends."""
        process.send_signal(signal.SIGCONT)
        assert process.wait(TIMEOUT_S) == FENCED, worker.said()
        self.happened["fenced"] += 1

    def finish(self) -> None:
        """Let all that was written be copied, and end all processes well."""
        # They are fenced when they commit, so there must be something to copy.
        while self.zombies:
            self.end_zombie(*self.zombies.pop())
        self.is_writing = False
        left = self.written
        while left:
            # A busy machine may take long, but it gets on.
            self.wait(partial(self.is_below, left), f"progress, {left} records to copy")
            left = self.lag()
        for worker in self.workers:
            process = worker.running()
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0, worker.said()

    def judge(self) -> None:
        """Each record is in each output once, and the follower has seen just that."""
        expected = {b"%d" % number for number in range(self.written)}
        for topic in OUTPUTS:
            table = Topic(topic, conf={"bootstrap.servers": self.root}).to_arrow()
            values = [bytes(value) for value in table["value"].to_pylist()]
            assert len(values) == len(set(values)), f"doubled in {topic}"
            assert set(values) == expected
            there: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
            columns = (table[name].to_pylist() for name in ("_partition", "_offset", "value"))
            for partition, offset, value in zip(*columns, strict=True):
                there.setdefault((topic, partition), []).append((offset, bytes(value)))
            for place, records in there.items():
                self.wait(partial(self.follower.has, place, len(records)), "end of the follower")
                assert self.follower.seen[place] == sorted(records), place


@contextmanager
def in_background(*targets: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Run functions on threads until they end."""
    failures: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    yield failures
    for thread in threads:
        thread.join(TIMEOUT_S)


def run(root: str, folder: Path, count: int, kill_server: Callable[[], None] | None = None) -> Run:
    """Inject `count` faults, and judge what is there at the end."""
    seed = new_seed(count)
    conf = {"bootstrap.servers": root}
    for topic in (INPUT, *OUTPUTS):
        Topic(topic, partitions=PARTITIONS, conf=conf).create()
    found = Run(root, folder, seed)
    with in_background(found.write, found.follower.run) as failures:
        try:
            for worker in found.workers:
                worker.start()
            for number in range(1, count + 1):
                found.progress()
                if kill_server is not None and found.chance.random() < 0.3:
                    kill_server()
                    found.happened["kill server"] += 1
                found.inject()
                if number % 20 == 0:
                    print(f"{number} rounds: {dict(found.happened)}, {found.written} records")
            found.finish()
            found.judge()
        finally:
            found.is_writing, found.follower.is_over = False, True
            for worker in found.workers:
                if worker.process is not None:
                    worker.process.kill()
            for _, process in found.zombies:
                process.kill()
    assert failures == []
    print(f"{dict(found.happened)}, {found.written} records, each once in both outputs")
    return found


@pytest.mark.timeout(120)
@pytest.mark.fault("T1", "T3", "P12")
def test_a_few_faults_neither_lose_nor_double_a_record(local_root: str, tmp_path: Path):
    found = run(local_root, tmp_path, 4)
    assert found.happened.total() >= 4


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.fault("T1", "T3", "P12")
def test_workers_killed_and_stopped_copy_each_record_once(local_root: str, tmp_path: Path):
    found = run(local_root, tmp_path, rounds(200))
    assert {"kill", "stop", "fenced"} <= found.happened.keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.s3_server
@pytest.mark.fault("T1", "T3", "P12")
def test_workers_on_a_server_that_dies_copy_each_record_once(
    own_server: MinioServer, tmp_path: Path
):
    def kill_server() -> None:
        own_server.kill()
        time.sleep(0.5)
        own_server.restart()

    found = run(f"s3://{own_server.bucket}/root", tmp_path, rounds(50), kill_server)
    assert found.happened["kill server"] > 0
