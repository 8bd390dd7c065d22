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

    def read(self, length: int) -> memoryview:
        """The next `length` bytes, without a copy."""
        for start, part in self._parts:
            if start <= self._at and self._at + length <= start + len(part):
                found = memoryview(part)[self._at - start :][:length]
                self._at += length
                return found
        raise OSError(f"bytes {self._at} to {self._at + length} are not among those that were fetched")

    def close(self) -> None:
        """Nothing has to be given back."""
        self.closed = True
