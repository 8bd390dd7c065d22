"""A worker of a share group that accepts, releases and rejects at random: `python -m
tests.crash.sharer ROOT NAME HISTORY`.

It writes each delivery and each decision down, as a line of JSON in the file HISTORY, before it
goes on. It runs until SIGTERM; with `--drain` it accepts all, and ends once nothing has come for a
while.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from deltaq import AcknowledgeType, KafkaException, ShareConsumer, TopicPartition

__all__ = ["DRAIN", "GROUP", "TOPIC"]

TOPIC = "work"
GROUP = "workers"
DRAIN = "--drain"
BATCH = 20
QUIET_S = 6.0
WEIGHTS = {AcknowledgeType.ACCEPT: 80, AcknowledgeType.RELEASE: 15, AcknowledgeType.REJECT: 5}

_stopping = False


def _stop(*_: object) -> None:
    global _stopping
    _stopping = True


class Sharer:
    """The worker, and what it writes down."""

    def __init__(self, root: str, name: str, history: Path, *, drains: bool) -> None:
        self._history = history.open("a", buffering=1)
        self._drains = drains
        self._chance = random.Random(name)
        # Of each place the delivery and what is decided of it, for the callback.
        self._decided: dict[tuple[int, int], tuple[int, int]] = {}
        self._consumer: ShareConsumer[Any, Any] = ShareConsumer(
            {
                "bootstrap.servers": root,
                "group.id": GROUP,
                "client.id": name,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": BATCH,
            }
        )
        self._consumer.set_acknowledgement_commit_callback(self._heard)
        self._consumer.subscribe([TOPIC])

    def work(self) -> bool:
        """Take messages and decide them. Returns whether there were some."""
        messages = [each for each in self._consumer.poll(0.3) if each.error() is None]
        for message in messages:
            place = message.partition() or 0, message.offset() or 0
            self._note("delivered", *place, message.delivery_count())
        time.sleep(self._chance.random() * 0.05)
        for message in messages:
            kinds, weights = zip(*WEIGHTS.items(), strict=True)
            (kind,) = self._chance.choices(kinds, weights)
            kind = AcknowledgeType.ACCEPT if self._drains else kind
            place = message.partition() or 0, message.offset() or 0
            self._decided[place] = message.delivery_count() or 0, int(kind)
            self._note("decided", *place, *self._decided[place])
            self._consumer.acknowledge(message, kind)
        if self._chance.random() < 0.5:
            self._consumer.commit_sync()
        return bool(messages)

    def _heard(self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        for tp, of_partition in offsets.items():
            for offset in of_partition:
                place = tp.partition, offset
                what = "refused" if error else "confirmed"
                self._note(what, *place, *self._decided[place], time.time())

    def _note(self, *what: object) -> None:
        self._history.write(json.dumps(what) + "\n")

    def close(self) -> None:
        """Give back what is held."""
        self._consumer.close()


def main(root: str, name: str, history: str, *options: str) -> None:
    """Work until SIGTERM, or until nothing comes."""
    drains = DRAIN in options
    signal.signal(signal.SIGTERM, _stop)
    sharer = Sharer(root, name, Path(history), drains=drains)
    busy_at = time.monotonic()
    while not _stopping and not (drains and time.monotonic() - busy_at > QUIET_S):
        if sharer.work():
            busy_at = time.monotonic()
    sharer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
