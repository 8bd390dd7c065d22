"""The messages that are sent: random bytes, which no encoding compresses, each different from all
others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from struct import Struct
from time import monotonic_ns

import pyarrow as pa

MESSAGE_BYTES = 100
_HEAD = Struct("<qq")
_TAIL_BYTES = MESSAGE_BYTES - _HEAD.size
_POOL_BYTES = 1 << 20


class TimedPayloads:
    """Payloads of 100 bytes: time of sending (`time.monotonic_ns`), sequence number, and 84 random
    bytes.

    All processes of a machine share one monotonic clock, which is never set. Producer and consumer
    make the same random bytes from the same `seed`, so that the consumer notices a changed one.
    """

    def __init__(self, seed: int) -> None:
        self._pool = random.Random(seed).randbytes(_POOL_BYTES + _TAIL_BYTES)

    def make(self, sequence: int) -> bytes:
        """The payload of message `sequence`, sent now."""
        return _HEAD.pack(monotonic_ns(), sequence) + self._tail(sequence)

    def read(self, payload: bytes) -> tuple[int, int] | None:
        """(time of sending in ns, sequence number), or None if the payload was never made."""
        if len(payload) != MESSAGE_BYTES:
            return None
        sent_ns, sequence = _HEAD.unpack_from(payload)
        return (sent_ns, sequence) if payload[_HEAD.size :] == self._tail(sequence) else None

    def _tail(self, sequence: int) -> bytes:
        # An odd step visits every place of the pool before it comes back to the first.
        start = sequence * 85 % _POOL_BYTES
        return self._pool[start : start + _TAIL_BYTES]


class ProducerPayloads(TimedPayloads):
    """Payloads of one of many producers: its number stands where the time would, and its random
    bytes are its own.
    """

    def __init__(self, producer: int) -> None:
        super().__init__(producer)
        self._producer = producer

    def make(self, sequence: int) -> bytes:
        """The payload of message `sequence`."""
        return _HEAD.pack(self._producer, sequence) + self._tail(sequence)

    @staticmethod
    def read_any(payload: bytes, of: Sequence[ProducerPayloads]) -> tuple[int, int] | None:
        """(producer, sequence number) of what the first, the second, … made, or None if none of
        them did.
        """
        producer = _HEAD.unpack_from(payload)[0] if len(payload) == MESSAGE_BYTES else -1
        return of[producer].read(payload) if 0 <= producer < len(of) else None


def random_values(count: int, seed: int) -> list[bytes]:
    """`count` values of 100 random bytes, the same ones for the same seed in every process."""
    chance = random.Random(seed)
    return [chance.randbytes(MESSAGE_BYTES) for _ in range(count)]


def as_arrow(values: Sequence[bytes]) -> pa.Array:
    """Values as one Arrow array of binary."""
    return pa.array(values, pa.binary())
