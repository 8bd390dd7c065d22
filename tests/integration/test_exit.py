"""A program that ends without closing its clients ends well: Python does not finalize under their
threads.
"""

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
"""  # noqa: E501

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
"""  # noqa: E501

AT_EXIT = """
import atexit
import sys

from deltaq import AdminClient, Consumer, Producer, TopicPartition
from deltaq.admin import NewTopic

conf = {"bootstrap.servers": sys.argv[1]}
producer, admin = Producer(conf), AdminClient(conf)
consumer = Consumer({**conf, "group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False})


def finish() -> None:
    producer.produce("events", b"last")
    producer.produce("others", b"only")
    assert producer.flush(20) == 0
    admin.create_topics([NewTopic("created")])["created"].result(20)
    assert {"events", "others", "created"} <= set(admin.list_topics(timeout=20).topics)
    values = [message.value()] + [consumer.poll(20).value()]
    assert values == [b"first", b"last"], values
    consumer.commit(asynchronous=False)
    assert [each.offset for each in consumer.committed([TopicPartition("events", 0)], timeout=20)] == [2]
    assert consumer.get_watermark_offsets(TopicPartition("events", 0), timeout=20) == (0, 2)
    consumer.close()
    producer.close()
    print("finished")


producer.produce("events", b"first")
producer.flush()
consumer.subscribe(["events"])
message = consumer.poll(20)
atexit.register(finish)
"""  # noqa: E501


@pytest.mark.fault("P14")
@pytest.mark.parametrize(
    "program", [PROGRAM, DROPPED], ids=["held until the end", "dropped just before it"]
)
def test_a_program_without_close_exits_cleanly_and_leaves_its_group(tmp_path, program):
    for _ in range(depth(1, 3)):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "root")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


def test_clients_work_in_functions_that_run_at_the_exit(tmp_path):
    """Python 3.12.0 to 3.12.2 start no more threads there."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path / "root")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "finished\n", "")
