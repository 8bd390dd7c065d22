"""A program that ends without closing its clients ends well: Python does not finalize under their threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.depth import depth

PROGRAM = """
import sys

import pytest
from deltaq import Consumer, Producer

producer = Producer({"bootstrap.servers": sys.argv[1], "queue.buffering.max.messages": 1_000_000})
for number in range(20_000):
    producer.produce("events", b"x" * 100)
producer.flush()
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "readers", "auto.offset.reset": "earliest"})
consumer.subscribe(["events"])
assert consumer.poll(10) is not None
for number in range(20_000):
    producer.produce("events", b"x" * 100)
"""

DROPPED = """
import sys

from deltaq import Consumer, Producer


def main() -> None:
    with Producer({"bootstrap.servers": sys.argv[1]}) as producer:
        producer.produce("events", b"x")
    consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["events"])
    assert consumer.poll(10) is not None


main()
"""


@pytest.mark.fault("P14")
@pytest.mark.parametrize("program", [PROGRAM, DROPPED], ids=["held until the end", "dropped just before it"])
def test_a_program_without_close_exits_cleanly_and_leaves_its_group(tmp_path, program):
    for _ in range(depth(1, 3)):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "root")], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
