"""A group member that records all it does: `python -m tests.crash.reader ROOT TOPIC GROUP NAME
HISTORY`.

It polls and commits until it gets SIGTERM, and then leaves. Settings of the consumer come as JSON
on standard input. With `test.commit.on.revoke`, it commits what it has read of partitions that it
has to give up.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from deltaq import Consumer, Fenced, KafkaException, TopicPartition
from tests.checker.history import History

BATCH = 50
# Polls that brought something: so that a kill finds records that were read and not committed.
COMMIT_EVERY = 3

_stopping = False


def _stop(*_: object) -> None:
    global _stopping
    _stopping = True


class ProcessReader:
    """The consumer of this process."""

    def __init__(self, root: str, topic: str, group: str, name: str, history: History) -> None:
        self.group = group
        self.name = name
        self.history = history
        self.positions: dict[tuple[str, int], int] = {}
        settings = json.load(sys.stdin)
        self.commits_on_revoke = settings.pop("test.commit.on.revoke", False)
        conf = {
            "bootstrap.servers": root,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
        self.consumer = Consumer(conf)
        self.consumer.subscribe(
            [topic], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.gone
        )

    def assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.history.assign(self.name, [(tp.topic, tp.partition) for tp in partitions], self.group)

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self.commits_on_revoke:
            self.commit({(tp.topic, tp.partition) for tp in partitions})
        self.gone(consumer, partitions)

    def gone(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        given_up = [(tp.topic, tp.partition) for tp in partitions]
        if given_up:  # none would mean all
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
        except KafkaException as error:
            polling.info(error)
            return False
        records: list[tuple[str, int, int, str]] = []
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if (
                message.error() is None
                and topic is not None
                and partition is not None
                and offset is not None
            ):
                records.append((topic, partition, offset, message.value().decode()))
                self.positions[topic, partition] = offset + 1
        polling.ok(records)
        return bool(records)

    def commit(self, of: Collection[tuple[str, int]] | None = None) -> None:
        """Commit what was read since the last commit; `of` these partitions, or all."""
        positions = {key: to for key, to in self.positions.items() if of is None or key in of}
        if not positions:
            return
        self.positions = {key: to for key, to in self.positions.items() if key not in positions}
        committing = self.history.commit(self.name, self.group, positions)
        offsets = [
            TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()
        ]
        try:
            self.consumer.commit(offsets=offsets, asynchronous=False)
        except Fenced as error:
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
        ProcessReader(root, topic, group, name, History(file=file)).run()


if __name__ == "__main__":
    main()
