"""The end of a program that has not flushed: in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from deltaq import Topic

PROGRAM = """
import sys
from deltaq import Producer, Topic
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule

def report(error, message):
    # One call: each client has a thread for callbacks, and `print` would write the end of the line apart.
    sys.stdout.write(f"callback {message.value().decode()} {None if error is None else error.name()}\\n")
    if message.value() == b"second":
        raise LookupError("a callback fails")

written = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 60_000, "on_delivery": report})
written.produce("t", b"first")
written.produce("t", b"second")
store = FaultyStore(MemoryStore("test"))
Topic("t", store=store).create()
store.add(Rule("write", "*", Fault.error_before(), times=None))
failing = Producer({"bootstrap.servers": "memory://unused", "linger.ms": 0, "message.timeout.ms": 50}, store=store)
failing.produce("t", b"third", on_delivery=report)
idle = Producer({"bootstrap.servers": sys.argv[1]})
print("end")
"""  # noqa: E501

DROPPED = """
import sys
from deltaq import Producer
from deltaq.store import open_store
from deltaq.testing import Fault, FaultyStore, Rule

store = FaultyStore(open_store(sys.argv[1]), Rule("put", "topics/t/*.parquet", Fault.slow(0.5)))

def main():
    producer = Producer({"bootstrap.servers": "memory://unused", "linger.ms": 60_000}, store=store)
    producer.produce("t", b"from a function")

main()
"""


def test_messages_that_were_not_flushed_are_written_when_the_program_ends(local_root):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, local_root], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[0] == "end"
    assert sorted(lines[1:4]) == [
        "callback first None",
        "callback second None",
        "callback third _MSG_TIMED_OUT",
    ]
    assert done.stderr.count("LookupError: a callback fails") == 1
    assert (
        "the program ends with 2 messages not delivered or reported: waiting up to 300 s"
        in done.stderr
    )
    assert (
        "the program ends with 1 messages not delivered or reported: waiting up to 0.05 s"
        in done.stderr
    )
    assert Topic("t", conf={"bootstrap.servers": local_root}).to_arrow()["value"].to_pylist() == [
        b"first",
        b"second",
    ]


def test_messages_of_a_producer_dropped_just_before_the_end_are_written(local_root):
    done = subprocess.run(
        [sys.executable, "-c", DROPPED, local_root], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "dropped with 1 messages" in done.stderr
    assert "messages of dropped producers are written: waiting up to 300 s" in done.stderr
    assert Topic("t", conf={"bootstrap.servers": local_root}).to_arrow()["value"].to_pylist() == [
        b"from a function"
    ]
