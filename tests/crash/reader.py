"""A group member that records all it does: `python -m tests.crash.reader ROOT TOPIC GROUP NAME HISTORY`.

It polls and commits until it gets SIGTERM. While another member holds the group it waits for its turn. Settings of the
consumer come as JSON on standard input.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from deltaq import Consumer, Fenced, GroupInUse, KafkaException, TopicPartition
from deltaq.testing import History

BATCH = 50
COMMIT_EVERY = 3  # polls that brought something: so that a kill finds records that were read and not committed

_stopping = False


def _stop(*_: object) -> None:
    global _stopping
    _stopping = True


class Reader:
    """The consumer of this process."""

    def __init__(self, root: str, topic: str, group: str, name: str, history: History) -> None:
        self.group = group
        self.name = name
        self.history = history
        self.positions: dict[tuple[str, int], int] = {}
        conf = {
            "bootstrap.servers": root,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **json.load(sys.stdin),
        }
        self.consumer = Consumer(conf)
        self.consumer.subscribe([topic], on_assign=self.assigned, on_revoke=self.gone, on_lost=self.gone)

    def assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.history.assign(self.name, [(tp.topic, tp.partition) for tp in partitions], self.group)

    def gone(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        given_up = [(tp.topic, tp.partition) for tp in partitions]
        self.history.unassign(self.name, given_up)
        for partition in given_up:
            self.positions.pop(partition, None)

    def run(self) -> None:
        """Read until it is asked to stop."""
        self.history.crash(self.name)
        polls = 0
        while not _stopping:
            news = self.poll()
            polls += news
            if polls == COMMIT_EVERY or not news:
                self.commit()
                polls = 0
        self.commit()
        self.consumer.close()

    def poll(self) -> bool:
        """One call of `consume`; whether it brought something."""
        polling = self.history.poll(self.name)
        try:
            messages = self.consumer.consume(BATCH, 0.1)
        except (GroupInUse, Fenced) as error:
            polling.fail(error)
            return False
        except KafkaException as error:
            polling.info(error)
            return False
        records: list[tuple[str, int, int, str]] = []
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if message.error() is None and topic is not None and partition is not None and offset is not None:
                records.append((topic, partition, offset, message.value().decode()))
                self.positions[topic, partition] = offset + 1
        polling.ok(records)
        return bool(records)

    def commit(self) -> None:
        """Commit what was read since the last commit."""
        positions, self.positions = self.positions, {}
        if not positions:
            return
        committing = self.history.commit(self.name, self.group, positions)
        offsets = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        try:
            self.consumer.commit(offsets=offsets, asynchronous=False)
        except (Fenced, GroupInUse) as error:
            committing.fail(error)
        except KafkaException as error:
            committing.info(error)
            self.positions = positions | self.positions  # again, later
        else:
            committing.ok()


def main() -> None:
    """Run until SIGTERM."""
    root, topic, group, name, path = sys.argv[1:]
    signal.signal(signal.SIGTERM, _stop)
    with Path(path).open("a") as file:
        Reader(root, topic, group, name, History(file=file)).run()


if __name__ == "__main__":
    main()
