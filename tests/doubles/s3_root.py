"""A root with a topic on the S3 stub, and helpers to produce, read and inspect it."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from deltaq import Consumer, KafkaError, Message, Producer, Topic, TopicPartition
from tests.doubles.reading import next_message
from tests.servers.s3_stub import S3Stub

__all__ = ["DATA", "ENTRY", "IMPATIENT_MS", "Reports", "S3Root", "produce", "values_read"]

ENTRY = "*/topics/t/_delta_log/*.json"
DATA = "*/topics/t/*.parquet"

PATIENT_MS, IMPATIENT_MS = 30_000, 300
"""How long clients wait for an answer: not to be taken for a fault on a busy machine; and where
none will come.
"""


class S3Root:
    """A new root in the stub, with the topic `t`."""

    def __init__(self, stub: S3Stub) -> None:
        self.stub = stub
        self.timeout_ms = PATIENT_MS
        self.prefix = uuid.uuid4().hex
        stub.set_rules()
        Topic("t", partitions=2, conf=self.conf()).create()
        stub.effects(clear=True)
        stub.requests(clear=True)

    def conf(self, user: str = "test", **more: Any) -> dict[str, object]:
        """The configuration of a client. Clients with the same `user` share a store, and their
        producers a sender.
        """
        options = {"timeout_ms": self.timeout_ms, "user_agent": user, "retries": 1, **more}
        return self.stub.conf(self.prefix, "deltaq", **options)

    def producer(self, user: str = "test", **config: Any) -> Producer:
        return Producer({**self.conf(user), "linger.ms": 0}, **config)

    def consumer(self, user: str = "test", group: str = "g", **config: Any) -> Consumer:
        return Consumer(
            {**self.conf(user), "group.id": group, "auto.offset.reset": "earliest"}, **config
        )

    def entries(self) -> dict[int, list[dict[str, Any]]]:
        """The log entries as stored by the server."""
        found = self.stub.objects(f"{self.prefix}/topics/t/_delta_log/")
        logs = {int(re.sub(r"\D", "", key.rpartition("/")[2])): data for key, data in found.items()}
        return {
            version: [json.loads(line) for line in data.splitlines()]
            for version, data in logs.items()
        }

    def stored(self) -> dict[int, list[str]]:
        """All values by partition, in order, read by a new client without faults."""
        self.stub.set_rules()
        found: dict[int, list[str]] = {0: [], 1: []}
        with self.consumer(uuid.uuid4().hex, enable_partition_eof=True) as consumer:
            consumer.assign([TopicPartition("t", partition, 0) for partition in found])
            ended = 0
            while ended < len(found):
                message = next_message(consumer)
                if message.error() is None:
                    assert message.offset() == len(found[message.partition()])
                    found[message.partition()].append(message.value().decode())
                else:
                    assert message.error() == KafkaError._PARTITION_EOF, message.error()
                    ended += 1
        return found


class Reports(list[tuple[Any, Any]]):
    """Collects (error, message)."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.append((error, message))

    def values(self, *, acknowledged: bool) -> list[str]:
        return [
            message.value().decode() for error, message in self if (error is None) == acknowledged
        ]


def produce(producer: Producer, *values: str, partition: int = 0) -> Reports:
    reports = Reports()
    for value in values:
        producer.produce("t", value, partition=partition, on_delivery=reports)
    assert producer.flush(60) == 0
    assert len(reports) == len(values)
    return reports


def values_read(consumer: Consumer, count: int) -> tuple[list[str], list[KafkaError]]:
    """The next `count` values, and the errors in between."""
    values: list[str] = []
    errors: list[KafkaError] = []
    while len(values) < count:
        message = next_message(consumer)
        if message.error() is None:
            values.append(message.value().decode())
        else:
            errors.append(message.error())
    return values, errors
