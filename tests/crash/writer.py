"""A producer that records all it does: `python -m tests.crash.writer ROOT TOPIC PARTITIONS NAME
START HISTORY`.

It sends the values `NAME.START.0`, `NAME.START.1`, … until it gets SIGTERM; then it flushes and
resolves unknown outcomes. `START` tells the starts of one name apart. Settings of the producer come
as JSON on standard input; `test.rate` is the number of messages per second, by default as many as
possible.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

from deltaq import KafkaError, Message, Producer
from tests.checker.history import History, Invocation

UNDER_WAY = 100
"""Maximum number of undelivered messages. Few, so that the history of many kills can still be
checked.
"""

TOKEN = re.compile(r"\(token ([^)]+)\)")

_stopping = False


def _stop(*_: object) -> None:
    global _stopping
    _stopping = True


class Writer:
    """The producer of this process, and the outcomes of its messages."""

    def __init__(
        self, root: str, topic: str, partitions: int, name: str, start: int, history: History
    ) -> None:
        self.root = root
        self.topic = topic
        self.partitions = partitions
        self.name = name
        self.prefix = f"{name}.{start}"
        self.history = history
        self.sent = 0
        self.unknown: dict[str, list[Invocation]] = defaultdict(list)
        settings = json.load(sys.stdin)
        self.rate = float(settings.pop("test.rate", "inf"))
        self.producer = Producer(
            {"bootstrap.servers": root, "client.id": name, "linger.ms": 2, **settings}
        )
        self.begun = time.monotonic()

    def run(self) -> None:
        """Send until it is asked to stop, then wait for every outcome."""
        self.history.crash(self.name)  # the previous process with this name has ended
        while not _stopping:
            is_due = self.sent < self.rate * (time.monotonic() - self.begun)
            if is_due and len(self.producer) < UNDER_WAY:
                self.send()
            self.producer.poll(0.002)
        self.producer.close()
        self.resolve()

    def send(self) -> None:
        """Send one message."""
        value, partition = f"{self.prefix}.{self.sent}", self.sent % self.partitions
        self.sent += 1
        sending = self.history.send(self.name, self.topic, value, partition)
        self.producer.produce(
            self.topic, value, partition=partition, on_delivery=partial(self.ended, sending)
        )

    def ended(self, sending: Invocation, error: KafkaError | None, message: Message) -> None:
        """The delivery report of one message."""
        if error is None:
            sending.ok(partition=message.partition(), offset=message.offset())
        elif token := TOKEN.search(error.str()):
            self.unknown[token[1]].append(sending)
        else:
            sending.fail(error)

    def resolve(self) -> None:
        """Resolve every commit with unknown outcome."""
        if not self.unknown:
            return
        with Producer({"bootstrap.servers": self.root}) as resolver:
            for token, sendings in self.unknown.items():
                stands = resolver.resolve(self.topic, token)
                for sending in sendings:
                    if stands:
                        sending.ok()
                    else:
                        sending.fail("resolved: not committed")


def main() -> None:
    """Run until SIGTERM."""
    root, topic, partitions, name, start, path = sys.argv[1:]
    signal.signal(signal.SIGTERM, _stop)
    with Path(path).open("a") as file:
        Writer(root, topic, int(partitions), name, int(start), History(file=file)).run()


if __name__ == "__main__":
    main()
