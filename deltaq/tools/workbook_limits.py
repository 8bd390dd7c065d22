"""Limits of workbooks (.xlsx) that are checked before openpyxl, which builds trees, parses them.

A workbook is an archive of XML: a few kilobytes may unpack to gigabytes, and one number of a row or
a column makes openpyxl fill all places before it. So each part is first read once as a stream, and
refused beyond a limit.
"""

from __future__ import annotations

import re
import zipfile
from typing import BinaryIO
from xml.parsers import expat

from deltaq.tools.file_rows import COLUMNS_MAX

ROWS_MAX = 1_048_576
"""Rows of a sheet, with its heading."""

UNPACKED_BYTES_MAX = 1024 * 1024 * 1024
"""Size of all parts of a workbook, unpacked."""

ROW_CHARS_MAX = 16 * 1024 * 1024
"""Characters of a row, a text, or of all of a part that is no row and no text."""

ELEMENTS_MAX = 1_000_000
"""XML elements of a row, and of a part without its rows and texts."""

TEXTS_MAX = 10_000_000
"""Texts that the cells of a workbook share."""

DIRECTORY_BYTES_MAX = 4 * 1024 * 1024
"""Size of the list of the parts of a workbook."""

DEPTH_MAX = 100
"""Nesting of the XML of a part."""

TOKEN_BYTES_MAX = 4 * 1024 * 1024
"""Size of a tag, which is in memory as a whole before it is known what it is."""

_CHUNK_BYTES = 256 * 1024
_PLACE = re.compile(r"([A-Za-z]{1,3})([0-9]{1,7})")
_XML = (".xml", ".rels", ".vml")


def check_workbook(file: BinaryIO) -> None:
    """Raises ValueError for a workbook beyond a limit, and for damaged XML; zipfile.BadZipFile,
    zlib.error.
    """
    _check_directory(file)
    with zipfile.ZipFile(file) as archive:
        # No more than this is read of each part.
        unpacked = sum(part.file_size for part in archive.infolist())
        if unpacked > UNPACKED_BYTES_MAX:
            raise ValueError(
                f"it unpacks to {unpacked:,} bytes, and {UNPACKED_BYTES_MAX:,} are the limit"
            )
        for part in archive.infolist():
            with archive.open(part) as content:
                try:
                    _WorkbookPart().read(content)
                except expat.ExpatError as error:
                    if part.filename.lower().endswith(_XML):
                        raise ValueError(f"{part.filename}: {error}") from None
                    # A picture, or the like. If openpyxl reads it as XML, it ends at the same
                    # place.
                except _BeyondLimitError as error:
                    raise ValueError(f"{part.filename}: {error}") from None


def _check_directory(file: BinaryIO) -> None:
    """ValueError for a list of parts that would take much memory."""
    size = file.seek(0, 2)
    start = max(0, size - 66_000)  # with the longest comment
    file.seek(start)
    tail = file.read()
    end = tail.rfind(b"PK\5\6")
    if end < 0:
        raise zipfile.BadZipFile("File is not a zip file")
    length = int.from_bytes(tail[end + 12 : end + 16], "little")
    long_end = tail.rfind(b"PK\6\6", 0, end)
    if long_end >= 0:
        length = int.from_bytes(tail[long_end + 40 : long_end + 48], "little")
    elif tail.rfind(b"PK\6\7", 0, end) >= 0:
        raise ValueError("its list of parts is not at its end")
    if length > DIRECTORY_BYTES_MAX:
        raise ValueError(
            f"its list of parts has {length:,} bytes, and {DIRECTORY_BYTES_MAX:,} are the limit"
        )


class _BeyondLimitError(Exception):
    """What a part has too much of."""


class _WorkbookPart:
    """Counts what a part of a workbook has. A row or a shared text is an item: its memory is
    released after it.
    """

    def __init__(self) -> None:
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.CommentHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.ProcessingInstructionHandler = lambda _, data: self._text(data)
        self._at = 0  # the place of the newest token
        self._depth = 0
        self._item = 0  # the depth of the item that is open; 0: none
        self._rows = self._row = self._texts = 0
        self._elements = [0, 0]  # outside of items, and in the one that is open
        self._chars = [0, 0]

    def read(self, content: object) -> None:
        """Read the part. Raises _BeyondLimitError, expat.ExpatError."""
        done = 0
        while chunk := content.read(_CHUNK_BYTES):  # type: ignore[attr-defined]
            self._parser.Parse(chunk, False)
            done += len(chunk)
            if done - self._at > TOKEN_BYTES_MAX:
                raise _BeyondLimitError(
                    f"has a tag of more than {TOKEN_BYTES_MAX:,} bytes, the limit"
                )
        self._parser.Parse(b"", True)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._at = self._parser.CurrentByteIndex
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _BeyondLimitError(f"is nested more than {DEPTH_MAX} levels deep, the limit")
        name = name.rpartition(":")[2]
        if not self._item and name in ("row", "si"):
            self._item = self._depth
            self._elements[1] = self._chars[1] = 0
            self._count_item(name, attributes)
        elif name == "c" and (place := attributes.get("r")) is not None:
            self._check_place(place)
        kind = int(self._item > 0)
        self._elements[kind] += 1
        if self._elements[kind] > ELEMENTS_MAX:
            raise _BeyondLimitError(
                f"has more than {ELEMENTS_MAX:,} XML elements{self._where()}, the limit"
            )
        self._text("".join(attributes.values()))

    def _count_item(self, name: str, attributes: dict[str, str]) -> None:
        if name == "si":
            self._texts += 1
            if self._texts > TEXTS_MAX:
                raise _BeyondLimitError(f"has more than {TEXTS_MAX:,} texts, the limit")
            return
        self._rows += 1
        given = attributes.get("r", "")
        if not given:
            self._row += 1
        else:
            self._row = int(given) if given.isdecimal() and len(given) < 8 else ROWS_MAX + 1
        if max(self._rows, self._row) > ROWS_MAX:
            number = given if len(given) < 20 else f"{given[:20]}…"
            raise _BeyondLimitError(
                f"row {number or self._rows} is beyond {ROWS_MAX:,}, the limit of a sheet"
            )

    def _check_place(self, place: str) -> None:
        found = _PLACE.fullmatch(place)
        column = 0
        for letter in found[1].upper() if found else "":
            column = 26 * column + ord(letter) - 64
        if not 0 < column <= COLUMNS_MAX:
            raise _BeyondLimitError(
                f"cell {place:.20} is beyond {COLUMNS_MAX:,} columns, the limit of a sheet"
            )

    def _end(self, _: str) -> None:
        self._at = self._parser.CurrentByteIndex
        if self._depth == self._item:
            self._item = 0
        self._depth -= 1

    def _text(self, text: str) -> None:
        self._at = self._parser.CurrentByteIndex
        kind = int(self._item > 0)
        self._chars[kind] += len(text)
        if self._chars[kind] > ROW_CHARS_MAX:
            raise _BeyondLimitError(
                f"has more than {ROW_CHARS_MAX:,} characters{self._where()}, the limit"
            )

    def _where(self) -> str:
        if not self._item:
            return ""
        return f" in row {self._row}" if self._rows else " in a text"

    def _doctype(self, *_: object) -> None:
        raise _BeyondLimitError("has a document type, which no workbook has")
