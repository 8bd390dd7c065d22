"""A data file as a log entry describes it, and the limits of its size. The log is read without
Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

DECODED_BYTES_MAX = 2**31 - 1
"""Maximum decoded size of a segment: bounds the memory that a damaged or hostile file can make a
reader allocate.

It counts the Arrow columns and the largest decoding buffer. Joining the pieces of a column takes
the same amount again. The limit also applies to the parsed footer alone.
"""

WHOLE_FILE_BYTES = 1024 * 1024
"""Files up to this size are always read whole, in one request."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment as described in the log: its key, its size in bytes and rows, and its checksums."""

    key: str
    version: int
    size: int
    rows: int
    crc32: int
    footer_bytes: int
    footer_crc32: int

    @property
    def is_small(self) -> bool:
        """Whether the file is always read whole."""
        return self.size <= WHOLE_FILE_BYTES
