"""A member of a group as a process of its own, and what it reports: `python -m
tests.doubles.group_member CONF`.

The process reads topic `t` and commits after each record, until SIGTERM. It prints a JSON line for
each event: the time (`time.monotonic`, which the processes of a machine share), the kind, and
details. With `test.hold` in `CONF`, it waits for a line of standard input after that many records,
before it commits them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from deltaq import Consumer, KafkaException, TopicPartition
from tests.doubles.reading import eventually

__all__ = ["GroupMemberProcess", "MemberEvent"]

_ROOT_FOLDER = Path(__file__).resolve().parents[2]

_stopping = False


class MemberEvent(NamedTuple):
    """What a member has reported. Kinds: `owns` (a list of partitions), `lost` (the same), `read`
    (partition, offset), `holds`, `committed`, `refused` (the exception of a commit) and `error` (of
    a poll).
    """

    at: float
    kind: str
    details: tuple[Any, ...]


class GroupMemberProcess:
    """The process of a member. `events` grows while it runs. A context manager that kills it."""

    def __init__(self, root: str, name: str = "child", **settings: Any) -> None:
        conf = {
            "bootstrap.servers": root,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "client.id": name,
        }
        command = [sys.executable, "-m", __name__, json.dumps({**conf, **settings})]
        self.name = name
        self.events: list[MemberEvent] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT_FOLDER
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, kind, *details = json.loads(line)
            self.events.append(MemberEvent(at, kind, tuple(details)))

    def __enter__(self) -> GroupMemberProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that it has, by its latest report."""
        return self.owned_at(float("inf"))

    def owned_at(self, time_s: float) -> frozenset[int]:
        """The partitions that it had at a time."""
        reports = [
            event.details[0] for event in self.events if event.kind == "owns" and event.at <= time_s
        ]
        return frozenset(reports[-1] if reports else ())

    def of_kind(self, kind: str) -> list[tuple[Any, ...]]:
        """The details of all events of one kind."""
        return [event.details for event in list(self.events) if event.kind == kind]

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Wait until it has reported at least `count` events of this kind."""
        eventually(
            lambda: len(self.of_kind(kind)) >= count, f"event {kind!r} of member {self.name}"
        )

    def wait_for_next(self, kind: str) -> None:
        """Wait until it has reported another event of this kind."""
        self.wait_for(kind, len(self.of_kind(kind)) + 1)

    def proceed(self) -> None:
        """Let a member that holds commit what it has read, and go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def kill(self) -> float:
        """Kill it, unless it has ended. Returns the time just before."""
        at = time.monotonic()
        self._process.kill()
        self._process.wait()
        return at

    def close(self) -> None:
        """Let it leave the group and end."""
        self.signal(signal.SIGTERM)
        assert self._process.wait(60) == 0


def _report(*event: object) -> None:
    print(json.dumps([time.monotonic(), *event]), flush=True)


class _Program:
    def __init__(self, conf: dict[str, Any]) -> None:
        self._hold_after = int(conf.pop("test.hold", -1))
        self._owned: set[int] = set()
        self._count = 0
        self._consumer = Consumer({**conf, "enable.auto.commit": False})

    def run(self) -> None:
        self._consumer.subscribe(
            ["t"], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        while not _stopping:
            try:
                self._step()
            except KafkaException as error:
                _report("error", type(error).__name__)
        self._consumer.close()

    def _step(self) -> None:
        message = self._consumer.poll(0.05)
        if message is None:
            return
        error = message.error()
        if error is not None:
            _report("error", error.name())
            return
        _report("read", message.partition(), message.offset())
        self._count += 1
        if self._count == self._hold_after:
            _report("holds")
            sys.stdin.readline()
        try:
            self._consumer.commit(message, asynchronous=False)
        except KafkaException as refusal:
            _report("refused", type(refusal).__name__)
        else:
            _report("committed")

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned |= {tp.partition for tp in partitions}
        _report("owns", sorted(self._owned))

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned -= {tp.partition for tp in partitions}
        _report("owns", sorted(self._owned))

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        _report("lost", [tp.partition for tp in partitions])
        self._revoked(consumer, partitions)


def _stop(*_: object) -> None:
    global _stopping
    _stopping = True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    _Program(json.loads(sys.argv[1])).run()
