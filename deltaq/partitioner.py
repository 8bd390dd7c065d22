"""The partition of each message: the hash functions and partitioners of librdkafka, bit for bit.

A key must map to the same partition with every Kafka client. Otherwise a service that migrates
loses the order per key. All functions are pure; the producer chooses the partition of rows without
a key and passes it as `sticky`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from deltaq.errors import InvalidConfig

PARTITIONERS = (
    "random",
    "consistent",
    "consistent_random",
    "murmur2",
    "murmur2_random",
    "fnv1a",
    "fnv1a_random",
)
"""Names allowed for the setting `partitioner`; librdkafka's default is `consistent_random`."""

_UINT32 = 0xFFFFFFFF


def assign_partitions(
    partitioner: str, keys: Sequence[bytes | None], count: int, sticky: int, *, spread: bool = False
) -> list[int]:
    """The partition (0..count-1) of each row of a batch, given the keys of the rows.

    Rows without a key follow librdkafka: `consistent`, `murmur2` and `fnv1a` hash a missing key
    like an empty key. The other partitioners assign the batch's `sticky` partition, and
    `consistent_random` treats an empty key as missing. With `spread`
    (`sticky.partitioning.linger.ms=0`) such rows, and rows with a key under `random`, are assigned
    round robin from `sticky` on. librdkafka draws a random partition for each; round robin is even.

    InvalidConfig for an unknown partitioner; ValueError if `sticky` is not a partition.
    """
    if count <= 0:
        raise ValueError(f"the number of partitions must be positive, not {count}")
    if not 0 <= sticky < count:
        raise ValueError(f"sticky partition {sticky} is outside 0..{count - 1}")
    if partitioner == "consistent_random" and not spread:
        # The default partitioner is the hot path.
        return [crc32(key) % count if key else sticky for key in keys]
    if partitioner not in PARTITIONERS:
        raise InvalidConfig(
            f"unknown partitioner {partitioner!r}: use one of {', '.join(PARTITIONERS)}",
            key="partitioner",
        )
    name, keyless_at_random = partitioner.removesuffix("_random"), partitioner.endswith("random")
    if name == "random":
        return [
            sticky if key is None and not spread else (sticky + row) % count
            for row, key in enumerate(keys)
        ]
    hash_of = _HASHES[name]
    # Keys repeat within a batch, and hashing in Python costs more than a dictionary lookup.
    partition_of = {key: hash_of(key or b"") % count for key in set(keys)}
    if not keyless_at_random:
        return [partition_of[key] for key in keys]
    keyless = (None, b"") if name == "consistent" else (None,)
    if spread:
        return [
            (sticky + row) % count if key in keyless else partition_of[key]
            for row, key in enumerate(keys)
        ]
    partition_of.update(dict.fromkeys(keyless, sticky))
    return [partition_of[key] for key in keys]


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """How the partitions of a batch are chosen; the fields are the arguments of
    `assign_partitions`.
    """

    partitioner: str
    count: int
    sticky: int
    spread: bool = False

    def of(self, keys: Sequence[bytes | None]) -> list[int]:
        """The partition of each row. Raises InvalidConfig."""
        return assign_partitions(
            self.partitioner, keys, self.count, self.sticky, spread=self.spread
        )


def _murmur2(key: bytes) -> int:
    """MurmurHash2, 32 bits, with the seed of the Java client and its sign bit cleared: that
    client's default.
    """
    multiplier = 0x5BD1E995
    size = len(key)
    hashed = 0x9747B28C ^ size
    whole = size & ~3
    for (word,) in struct.iter_unpack("<I", memoryview(key)[:whole]):
        word = word * multiplier & _UINT32
        word = (word ^ word >> 24) * multiplier & _UINT32
        hashed = hashed * multiplier & _UINT32 ^ word
    if whole != size:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * multiplier & _UINT32
    hashed = (hashed ^ hashed >> 13) * multiplier & _UINT32
    return (hashed ^ hashed >> 15) & 0x7FFFFFFF


def _fnv1a(key: bytes) -> int:
    """The absolute value of FNV-1a, 32 bits, read as a signed integer: the default of the Go client
    Sarama.
    """
    hashed = 0x811C9DC5
    for byte in key:
        hashed = (hashed ^ byte) * 0x01000193 & _UINT32
    return min(hashed, 2**32 - hashed)


_HASHES: dict[str, Callable[[bytes], int]] = {
    "consistent": crc32,
    "murmur2": _murmur2,
    "fnv1a": _fnv1a,
}
