"""A `produce` that `close` overtakes: the message is delivered and reported, or refused; it is
never lost silently.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.store import MemoryStore


class ClosingHeaders(dict[str, bytes]):
    """Headers that close the producer when `produce` reads them: after it has looked the topic
    up.
    """

    def __init__(self, producer: Producer) -> None:
        super().__init__(name=b"value")
        self._producer = producer

    def items(self) -> Any:
        self._producer.close()
        return super().items()


class LateProducer(Producer):
    """A producer to which another thread produces between the flush and the end of a close."""

    late: tuple[bytes, ...] = ()
    reported: tuple[bytes, ...] = ()

    def flush(self, timeout: float | None = -1) -> int:
        left = super().flush(timeout)
        late, self.late = self.late, ()
        for value in late:
            self.produce("t", value, on_delivery=lambda error, message: self._note(error, message))
        return left

    def _note(self, error: Any, message: Any) -> None:
        assert error is None
        self.reported += (message.value(),)


def values(store: MemoryStore) -> list[Any]:
    found: list[Any] = Topic("t", store=store).to_arrow()["value"].to_pylist()
    return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("test")


def opened(store: MemoryStore, cls: type[Producer] = Producer) -> Any:
    producer = cls({"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store)
    producer.produce("t", b"first")
    producer.flush()
    return producer


def test_a_message_whose_producer_is_closed_before_it_is_queued_is_refused(store):
    producer = opened(store)
    for value in (b"second", b"third"):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            producer.produce("t", value, headers=ClosingHeaders(producer))
    assert values(store) == [b"first"]


def test_each_of_several_messages_that_a_close_overtakes_is_refused(store):
    producer = opened(store)
    (handle,) = producer._handles.values()
    producer.close()
    for value in (b"second", b"third"):
        producer._handles["t"] = handle  # as another thread looked it up before the close
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            producer.produce("t", value)
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce_arrow("t", pa.table({"value": [b"fourth"]}))
    producer._handles.clear()
    assert values(store) == [b"first"]


def test_a_message_queued_after_the_flush_of_a_close_is_written_and_reported(store):
    producer = opened(store, LateProducer)
    producer.late = b"second", b"third"
    producer.close()
    assert producer.reported == (b"second", b"third")
    assert values(store) == [b"first", b"second", b"third"]
