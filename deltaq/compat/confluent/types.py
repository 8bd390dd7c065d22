"""Small values of `confluent_kafka` that deltaq itself has no use for."""

from __future__ import annotations

import base64
from enum import Enum

from deltaq.partitioner import assign_partitions

MIRRORED_VERSION = "2.16.1"
"""The version of confluent-kafka whose names and behaviour this package follows."""

_LIBRARY = ("2.16.0", 0x021000FF)
_BITS_64 = 64


def version() -> str:
    """The version of confluent-kafka that is mirrored. `deltaq.__version__` is the version of
    deltaq.
    """
    return MIRRORED_VERSION


def libversion() -> tuple[str, int]:
    """The version of librdkafka whose behaviour is mirrored, as text and as a number."""
    return _LIBRARY


def murmur2(key: bytes, partitions: int) -> int:
    """The partition that the Java client chooses for a key."""
    return _partition("murmur2", key, partitions)


def consistent(key: bytes, partitions: int) -> int:
    """The partition that librdkafka's `consistent` partitioner chooses for a key: its CRC-32."""
    return _partition("consistent", key, partitions)


def fnv1a(key: bytes, partitions: int) -> int:
    """The partition that Sarama, the Go client, chooses for a key."""
    return _partition("fnv1a", key, partitions)


def _partition(partitioner: str, key: bytes, partitions: int) -> int:
    return assign_partitions(partitioner, [bytes(memoryview(key))], partitions, 0)[0]


class ElectionType(Enum):
    """Kafka's kinds of leader elections. deltaq has no leaders, so `elect_leaders` is refused."""

    PREFERRED = 0
    UNCLEAN = 1

    def __lt__(self, other: object) -> bool:
        return (
            int(self.value) < int(other.value)
            if isinstance(other, ElectionType)
            else NotImplemented
        )


class Uuid:
    """128 bits, shown as 22 characters of base64 as by librdkafka: the id of a topic."""

    __slots__ = ("_bits",)

    def __init__(self, most_significant_bits: int, least_significant_bits: int) -> None:
        self._bits = b"".join(
            _unsigned(half).to_bytes(8) for half in (most_significant_bits, least_significant_bits)
        )

    @classmethod
    def from_hex(cls, digits: str) -> Uuid:
        """The Uuid with these 32 hexadecimal digits, the form of
        `deltaq.admin.TopicDescription.topic_id`.
        """
        bits = bytes.fromhex(digits)
        return cls(int.from_bytes(bits[:8]), int.from_bytes(bits[8:]))

    def get_most_significant_bits(self) -> int:
        """The first 64 bits as a signed integer."""
        return int.from_bytes(self._bits[:8], signed=True)

    def get_least_significant_bits(self) -> int:
        """The last 64 bits as a signed integer."""
        return int.from_bytes(self._bits[8:], signed=True)

    def __eq__(self, other: object) -> bool:
        return self._bits == other._bits if isinstance(other, Uuid) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bits)

    def __str__(self) -> str:
        return base64.b64encode(self._bits).decode().rstrip("=")

    __repr__ = __str__


def _unsigned(half: int) -> int:
    return half % (1 << _BITS_64)
