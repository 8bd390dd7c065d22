"""The fetched parts of a file as a Python file object, from which Arrow reads."""

from __future__ import annotations

from collections.abc import Sequence


class FileParts:
    """A file of `size` bytes of which only `parts`, (start, bytes), can be read. OSError for other
    ranges.
    """

    closed = False

    def __init__(self, size: int, parts: Sequence[tuple[int, bytes]]) -> None:
        self._size = size
        self._parts = parts
        self._at = 0

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """The position of the next `read`."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position of the next `read`; `whence` as in `io.IOBase`."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    @property
    def whole(self) -> bytes | None:
        """The content of the file if one part contains all of it, else None."""
        start, part = self._parts[0] if self._parts else (0, b"")
        return part if start == 0 and len(part) == self._size else None

    def part(self, start: int, length: int) -> memoryview:
        """`length` bytes from `start`, not copied. OSError if they were not fetched."""
        for first, part in self._parts:
            if first <= start and 0 <= length <= first + len(part) - start:
                return memoryview(part)[start - first :][:length]
        raise OSError(f"bytes {start} to {start + length} are not among those that were fetched")

    def read(self, length: int) -> memoryview:
        """The next `length` bytes, not copied. OSError if they were not fetched."""
        found = self.part(self._at, length)
        self._at += length
        return found

    def close(self) -> None:
        """Mark the file as closed; it holds no resources."""
        self.closed = True
