"""A producer that is stopped or killed at one exact place of a commit: before or after the upload,
or the log entry.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deltaq import Producer, Topic
from deltaq.names import topic_folder
from deltaq.store import open_store
from deltaq.testing import messages_of
from tests.doubles.reading import eventually

TIMEOUT_MS = 1000
"""A `message.timeout.ms` that a test can wait for, but within which even a busy machine comes to
the place.
"""

# Sends one message. Stops itself (SIGSTOP) before or after the first `put` or `create` of the
# topic's folder, and says what became of the message: ["ok", partition, offset] or ["failed",
# text].
PROGRAM = """
import json, os, signal, sys
from deltaq import Producer
from deltaq.store import open_store

root, timeout_ms, operation, when = sys.argv[1:]

class Stopping:
    def __init__(self, inner):
        self.inner = inner
        self.armed = True
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def _do(self, name, key, *args):
        strikes = self.armed and name == operation and key.startswith("topics/t/")
        self.armed = self.armed and not strikes
        if strikes and when == "before":
            self._stand_still()
        getattr(self.inner, name)(key, *args)
        if strikes and when == "after":
            self._stand_still()
    def _stand_still(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        sys.stdin.readline()  # where another thread takes the signal, this one runs on until it is interrupted
    def put(self, key, data):
        self._do("put", key, data)
    def create(self, key, data, after=""):
        self._do("create", key, data, after)

def report(error, message):
    print(json.dumps(["ok", message.partition(), message.offset()] if error is None else ["failed", error.str()]))

conf = {"bootstrap.servers": root, "message.timeout.ms": int(timeout_ms), "linger.ms": 0}
with Producer(conf, store=Stopping(open_store(root)), on_delivery=report) as producer:
    producer.produce("t", "child")
"""  # noqa: E501


class Child:
    """The producer, which stops at the given operation."""

    def __init__(self, root: str, operation: str, when: str, timeout_ms: int = 60_000) -> None:
        command = [sys.executable, "-c", PROGRAM, root, str(timeout_ms), operation, when]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended before it came to that place"

    def outcome(self) -> list[Any]:
        """Resume it and return the outcome of its message."""
        os.kill(self.process.pid, signal.SIGCONT)
        said, _ = self.process.communicate("go on\n", timeout=60)
        assert self.process.returncode == 0
        (line,) = said.splitlines()
        return list(json.loads(line))

    def kill(self) -> None:
        """Kill it where it stopped, before it reported an outcome."""
        self.process.kill()
        said, _ = self.process.communicate()
        assert said == ""


@pytest.fixture
def root(local_root: str) -> str:
    Topic("t", conf={"bootstrap.servers": local_root}).create()
    return local_root


def send(root: str, value: str) -> None:
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("t", value)


def values(root: str) -> list[str]:
    found = messages_of(root, "t")
    assert [message.offset() for message in found] == list(range(len(found)))
    return [message.value().decode() for message in found]


def data_files(root: str) -> int:
    return len(list(Path(root, topic_folder("t")).glob("*.parquet")))


@pytest.mark.parametrize(
    ("operation", "when", "uploaded", "visible"),
    [
        pytest.param("put", "before", 0, [], marks=pytest.mark.fault("P1")),
        pytest.param("put", "after", 1, [], marks=pytest.mark.fault("P2")),
        pytest.param("create", "before", 1, [], marks=pytest.mark.fault("P2")),
        pytest.param("create", "after", 1, ["child"], marks=pytest.mark.fault("P3")),
    ],
)
def test_a_killed_writer_leaves_its_message_once_or_not_at_all(
    root, operation, when, uploaded, visible
):
    Child(root, operation, when).kill()
    assert data_files(root) == uploaded
    assert values(root) == visible
    send(root, "next")
    assert values(root) == [*visible, "next"]


@pytest.mark.fault("C2")
@pytest.mark.parametrize(
    ("operation", "when"), [("put", "before"), ("put", "after"), ("create", "before")]
)
def test_a_paused_writer_commits_after_the_records_written_meanwhile(root, operation, when):
    child = Child(root, operation, when)
    send(root, "first")
    send(root, "second")
    assert child.outcome() == ["ok", 0, 2]
    assert values(root) == ["first", "second", "child"]


@pytest.mark.fault("C2", "P3")
def test_a_writer_paused_after_its_commit_learns_its_offset(root):
    child = Child(root, "create", "after", timeout_ms=TIMEOUT_MS)
    send(root, "second")
    assert child.outcome() == ["ok", 0, 0]
    assert values(root) == ["child", "second"]


@pytest.mark.fault("C2")
@pytest.mark.parametrize("taken", [False, True], ids=["free slot", "taken slot"])
@pytest.mark.parametrize(("operation", "when"), [("put", "after"), ("create", "before")])
def test_a_writer_paused_past_its_timeout_reports_what_the_log_says(root, operation, when, taken):
    child = Child(root, operation, when, timeout_ms=TIMEOUT_MS)
    if taken:
        send(root, "first")
    # The timeout is over when the file system's clock has moved on by more than it.
    stopped_at = open_store(root)
    newest = max(entry.modified_ms for entry in stopped_at.list(""))

    def is_over() -> bool:
        stopped_at.put("topics/t/_deltaq/clock", b"")
        return max(entry.modified_ms for entry in stopped_at.list("")) > newest + 2 * TIMEOUT_MS

    eventually(is_over, "the end of the timeout")
    outcome = child.outcome()
    expected = ["first"] if taken else []
    if outcome[0] == "ok":
        assert outcome == ["ok", 0, len(expected)]
        expected.append("child")
    assert values(root) == expected
    send(root, "next")
    assert values(root) == [*expected, "next"], "what has failed must not come later"


# Produces until Ctrl-C, then closes; says how often each message was reported, and how many were
# acknowledged.
INTERRUPTED = """
import json, sys
from collections import Counter
from deltaq import Producer

reports = Counter()
acknowledged = []
sent = 0

def reported(error, message):
    reports[message.value()] += 1
    if error is None:
        acknowledged.append(message.value().decode())
        if len(acknowledged) == 1:
            print("begun", flush=True)

producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 1}, on_delivery=reported)
try:
    while True:
        for _ in range(20):
            producer.produce("t", str(sent))
            sent += 1
        producer.flush()
except KeyboardInterrupt:
    pass
producer.close()
print(json.dumps([sent, len(reports), max(reports.values()), acknowledged]))
"""


@pytest.mark.fault("P14")
def test_control_c_during_produce_leaves_each_message_exactly_one_outcome(root):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, root], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    sent, reported, most, acknowledged = json.loads(said)
    # Ctrl-C may fall between a message being queued and being counted.
    assert reported in (sent, sent + 1)
    assert most == 1
    assert sorted(acknowledged, key=int) == values(root)
