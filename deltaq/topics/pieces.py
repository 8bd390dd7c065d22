"""The pieces of a large message: records of one partition that follow one another, each with a
header. Pure.

All pieces have the message's key, timestamp and headers, and are appended in one entry of the log,
so that no other record comes between them and no reader sees only some. The specification is
`docs/internals/format.md`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PIECE_HEADER = "deltaq.piece"
"""The header that a piece has besides those of its message."""

_TEXT = re.compile(r"([0-9a-zA-Z-]{1,64}) (0|[1-9][0-9]{0,8}) ([1-9][0-9]{0,8}) ([1-9][0-9]{0,14})")

HEADER_ROOM = len(PIECE_HEADER) + 100
"""Bytes that the header takes at most, with its name."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece: `index` of `count` of the message `id`, whose value has `size` bytes."""

    id: str
    index: int
    count: int
    size: int

    def text(self) -> bytes:
        """The content of the header."""
        return f"{self.id} {self.index} {self.count} {self.size}".encode()

    @staticmethod
    def parsed(content: bytes | None) -> Piece | None:
        """The piece that a header names; None for a header that names none."""
        found = _TEXT.fullmatch((content or b"").decode("ascii", "replace"))
        if found is None:
            return None
        piece = Piece(found[1], int(found[2]), int(found[3]), int(found[4]))
        return piece if piece.index < piece.count <= piece.size else None

    def follows(self, other: Piece | None) -> bool:
        """Whether this is the piece after `other`; the first one of a message if that is None."""
        if other is None:
            return self.index == 0
        return self == Piece(other.id, other.index + 1, other.count, other.size)
