"""Topics for tests of Spark: one call is one commit of a producer that shares nothing with others
of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import LocalStore

__all__ = ["Produce", "producing_to"]

Produce: TypeAlias = Callable[..., None]


def producing_to(root: str) -> Produce:
    """A function that appends values to a topic in one commit and creates the topic, with
    `partitions`, if needed.
    """

    def append(
        topic: str,
        values: Sequence[bytes | None],
        *,
        to: int | Sequence[int] = 0,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[object] | None = None,
        partitions: int = 1,
    ) -> None:
        Topic(topic, partitions=partitions, bootstrap_servers=root).create(exist_ok=True)
        columns = {
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([to] * len(values) if isinstance(to, int) else to, pa.int32()),
        }
        if keys is not None:
            columns["key"] = pa.array(keys, pa.binary())
        if timestamps is not None:
            columns["timestamp"] = pa.array(timestamps, pa.int64())
        if headers is not None:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns["headers"] = pa.array(headers, kind)
        # With a store of its own it shares nothing with other producers of this process, as if it
        # were in another.
        with Producer(
            {"bootstrap.servers": root}, store=LocalStore(root, SYSTEM_CLOCK)
        ) as producer:
            producer.produce_arrow(topic, pa.table(columns))

    return append
