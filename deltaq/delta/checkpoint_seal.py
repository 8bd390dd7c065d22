"""The seal of a checkpoint: its version and a checksum, in the checkpoint's own file.

Delta knows no checksum for checkpoints, and delta-rs gives their pages none. A flipped bit in one could turn an offset
into another unnoticed, or end the process: Arrow trusts what a Parquet footer says. So deltaq's checkpoints carry a
seal, which is looked at before anything else, and which also tells a checkpoint that is not where it belongs: nothing
else in one names its version.

The seal lies between the last page and the footer, where a Parquet file may have a gap: readers go by the places that
the footer names, and those stay what they were.
"""

from __future__ import annotations

import re
import zlib

__all__ = ["has_seal", "sealed"]

# No text in a checkpoint can look like this: it is not UTF-8.
_MAGIC = b"\xffdeltaq checkpoint\xff"
_SEAL = re.compile(re.escape(_MAGIC) + rb"([0-9]{20}) ([0-9a-f]{8})")

_FOOTER_END = 8  # the footer's length, and Parquet's magic number


def sealed(data: bytes, version: int) -> bytes:
    """The Parquet file `data`, sealed as the checkpoint of `version`."""
    footer_at = len(data) - _FOOTER_END - int.from_bytes(data[-_FOOTER_END:-4], "little")
    before, after = data[:footer_at] + _MAGIC + b"%020d " % version, data[footer_at:]
    return before + _checksum(before, after) + after


def has_seal(data: bytes, version: int) -> bool:
    """Whether `data` is sealed as the checkpoint of `version`; False if deltaq did not write it.

    ValueError if it is damaged, or the checkpoint of another version.
    """
    at = data.rfind(_MAGIC)
    if at < 0:
        return False
    found = _SEAL.match(data, at)
    if found is None or found[2] != _checksum(data[: found.start(2)], data[found.end(2) :]):
        raise ValueError("it does not match its checksum")
    if int(found[1]) != version:
        raise ValueError(f"it is the checkpoint of version {int(found[1])}")
    return True


def _checksum(before: bytes, after: bytes) -> bytes:
    return b"%08x" % zlib.crc32(after, zlib.crc32(before))
