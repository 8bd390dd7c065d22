"""Fetched parts of a file in the shape in which Arrow reads a file of Python."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FileParts"]


class FileParts:
    """A file of `size` bytes of which only `parts`, (start, bytes), can be read: anything else is an OSError.

    A copy of the file with holes would cost as much as the whole file, for its memory would have to be cleared.
    """

    closed = False

    def __init__(self, size: int, parts: Sequence[tuple[int, bytes]]) -> None:
        self._size = size
        self._parts = parts
        self._at = 0

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def seekable(self) -> bool:
        """Whether `seek` works: yes."""
        return True

    def tell(self) -> int:
        """Where the next `read` begins."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Let the next `read` begin elsewhere; `whence` as with `io.IOBase`."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    @property
    def whole(self) -> bytes | None:
        """The file, if all of it is here."""
        start, part = self._parts[0] if self._parts else (0, b"")
        return part if start == 0 and len(part) == self._size else None

    def part(self, start: int, length: int) -> memoryview:
        """`length` bytes from `start` on, without a copy."""
        for first, part in self._parts:
            if first <= start and 0 <= length <= first + len(part) - start:
                return memoryview(part)[start - first :][:length]
        raise OSError(f"bytes {start} to {start + length} are not among those that were fetched")

    def read(self, length: int) -> memoryview:
        """The next `length` bytes, without a copy."""
        found = self.part(self._at, length)
        self._at += length
        return found

    def close(self) -> None:
        """Nothing has to be given back."""
        self.closed = True
