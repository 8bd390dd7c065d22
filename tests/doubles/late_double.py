"""Writes a duplicate after the reader of a benchmark has stopped, so that only a count of the topic
can find it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.barrier import send_to_reader
from deltaq import Producer

__all__ = ["send_and_once_more"]


def send_and_once_more(send: partial[Any], read: partial[Any]) -> Any:
    """Like `send_to_reader`, but sends one more message at the end. The first arguments are the
    root and the topic.
    """
    outcome = send_to_reader(send, read)
    root, topic, _ = send.args
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce(topic, b"again")
    return outcome
