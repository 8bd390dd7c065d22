"""The seal of a checkpoint: its version and a checksum, stored in the checkpoint file.

Delta defines no checksum for checkpoints, and those of Parquet pages do not cover the footer. A
flipped bit could change an offset unnoticed, or crash the process, because Arrow trusts the footer.
deltaq therefore seals its checkpoints and verifies the seal before it parses the file. The seal
also detects a checkpoint under the wrong name, because no other part of a checkpoint names its
version.

The seal lies between the last page and the footer. Parquet allows a gap there: readers use the
positions in the footer, and the seal does not change those.
"""

from __future__ import annotations

import re
import zlib

# Not UTF-8, so no string in a checkpoint can contain it.
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
