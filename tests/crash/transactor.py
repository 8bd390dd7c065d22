"""A worker that copies each record of one topic to two others, in transactions: `python -m
tests.crash.transactor ROOT TRANSACTIONAL_ID`.

It runs until SIGTERM. It ends with the exit status FENCED once another process has its
`transactional.id`.
"""

from __future__ import annotations

import signal
import sys

from deltaq import Consumer, KafkaException, Producer

__all__ = ["FENCED", "GROUP", "INPUT", "OUTPUTS", "READY"]

READY = "has its id"
"""Written to standard error once it has taken its `transactional.id`."""

FENCED = 3
INPUT = "in"
OUTPUTS = ("left", "right")
GROUP = "workers"
BATCH = 20
SESSION = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 200}

_stopping = False


def _stop(*_: object) -> None:
    global _stopping
    _stopping = True


def copy(root: str, transactional_id: str) -> None:
    """Copy until SIGTERM. Raises KafkaException, fatal, if the worker is fenced."""
    conf = {"bootstrap.servers": root, "client.id": transactional_id}
    producer = Producer(conf, transactional_id=transactional_id, linger_ms=0)
    producer.init_transactions()
    print(READY, file=sys.stderr, flush=True)
    settings = {**conf, **SESSION, "enable.auto.commit": False}
    consumer = Consumer(settings, group_id=GROUP, auto_offset_reset="earliest")
    consumer.subscribe([INPUT])
    while not _stopping:
        messages = [message for message in consumer.consume(BATCH, 0.2) if not message.error()]
        if not messages:
            continue
        try:
            with producer.transaction(consumer=consumer):
                for message in messages:
                    for topic in OUTPUTS:
                        producer.produce(topic, message.value(), message.key())
        except KafkaException as error:
            if not error.error.txn_requires_abort():
                raise
            # The transaction was aborted: another member may own the partitions.
    consumer.close()
    producer.close()


def main() -> int:
    """Run until SIGTERM, or until it is fenced."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        copy(*sys.argv[1:])
    except KafkaException as error:
        if not error.error.fatal():
            raise
        print(error, file=sys.stderr)
        return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main())
