"""Runs the programs of this folder with deltaq on a folder and, with `--kafka`, unchanged with a
broker, and compares.

`make side-by-side` starts a broker for it. For deltaq, the imports of Kafka's client are changed:
one line of each program, and five of the one with a schema registry. The registry of Kafka's side
is `registry_double`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka as kafka

import deltaq
from examples.kafka_migration import copy_topic
from examples.kafka_migration.registry_double import registry_double

HERE = Path(__file__).resolve().parent
PROGRAMS = (
    "manage_topics.py",
    "produce_orders.py",
    "consume_orders.py",
    "transform_orders.py",
    "report_lag.py",
    "replay_readings.py",
    "share_work.py",
    "publish_states.py",
    "async_service.py",
    "avro_service.py",
)
"""In the order in which they run: some read what others have written."""

TIMEOUT_S = 120


def for_deltaq(source: str) -> str:
    """The program with the import of deltaq in the place of that of Kafka's client."""
    return re.sub(
        r"^(import|from) confluent_kafka\b",
        r"\1 deltaq.compat.confluent",
        source,
        flags=re.MULTILINE,
    )


def changes(source: str) -> list[tuple[str, str]]:
    """The lines that deltaq needs changed, each with what takes its place."""
    pairs = zip(source.splitlines(), for_deltaq(source).splitlines(), strict=True)
    return [(before, after) for before, after in pairs if before != after]


def output(source: str, servers: str, registry: str) -> str:
    """What a program prints. `registry` is the URL of the schema registry. Raises RuntimeError if
    it fails.
    """
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(  # noqa: S603 - a program of this folder
        [sys.executable, "-c", source, servers, registry],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the program failed:\n{done.stderr}")
    return done.stdout


def copies(servers: str) -> bool:
    """Whether `copy_topic.py` brings the orders from a broker to a folder, as a consumer of each
    side reads them.
    """
    group = "copied"
    with tempfile.TemporaryDirectory() as root:
        copied = copy_topic.copy(servers, root, "orders", group)
        found = [
            sorted(_records(client, address, group))
            for client, address in ((kafka, servers), (deltaq, root))
        ]
    print(f"== copy_topic.py\n{copied} records copied, equal: {found[0] == found[1]}")
    return len(found[0]) == copied and found[0] == found[1]


def _records(client: Any, servers: str, group: str) -> Iterator[tuple[Any, ...]]:
    """The orders by one of the clients. Their partitions end with an event."""
    conf = {
        "bootstrap.servers": servers,
        "group.id": f"{group}-compared",
        "enable.partition.eof": True,
    }
    consumer = client.Consumer(
        {**conf, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.assign([client.TopicPartition("orders", partition, 0) for partition in range(3)])
    ended = 0
    while ended < 3:
        message = consumer.poll(10)
        if message is None:
            raise RuntimeError(f"no message from {servers} within 10 s")
        if message.error() is not None:
            ended += 1
            continue
        headers = repr(message.headers())
        yield (
            message.partition(),
            message.key() or b"",
            message.value() or b"",
            message.timestamp(),
            headers,
        )
    consumer.close()


def main(arguments: Sequence[str]) -> int:
    """Run and compare. Exit status 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kafka", metavar="HOST:PORT", help="a broker without topics, for the unchanged programs"
    )
    given = parser.parse_args(arguments)
    different = 0
    with (
        tempfile.TemporaryDirectory() as root,
        registry_double("memory://registry-of-kafka") as registry,
    ):
        for name in PROGRAMS:
            source = (HERE / name).read_text()
            ours = output(for_deltaq(source), root, root)
            print(
                f"== {name}",
                *(f"-{before}\n+{after}" for before, after in changes(source)),
                sep="\n",
            )
            print(ours, end="")
            if given.kafka is not None:
                theirs = output(source, given.kafka, registry)
                different += theirs != ours
                print(
                    "-- with Kafka: the same output"
                    if theirs == ours
                    else f"-- with Kafka, different:\n{theirs}"
                )
    if given.kafka is not None:
        different += not copies(given.kafka)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
