"""Options in the comments at the top of a file of SQL or of columns, such as `-- key: account`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from deltaq.errors import InvalidConfig

_PART = re.compile(
    r"""
      (?P<line>--[^\n]*)
    | (?P<block>/\*.*?\*/)
    | (?P<blank>\s+)
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | (?P<dollar>\$\w*\$).*?(?P=dollar)
    | .
    """,
    re.DOTALL | re.VERBOSE,
)
_OPTION = re.compile(r"\s*([\w -]+?)\s*([:=])(.*)", re.DOTALL)
_START = re.compile(r"^\s*(?:--|/\*+|\*(?!/))?")


@dataclass(frozen=True, slots=True)
class OptionFile:
    """A file: its options by name, and the text below the comments at the top. `text` is all of
    it.
    """

    options: dict[str, str]
    text: str
    rest: str


@dataclass(frozen=True, slots=True)
class _Comment:
    """A line of a comment. `is_at_top`: nothing but comments is above it."""

    number: int
    text: str
    is_at_top: bool
    is_block: bool


def option_file(file: Path, known: Sequence[str]) -> OptionFile:
    """A file with these options. Raises InvalidConfig, naming file and line, for a comment that is
    almost an option, or is one in another place, or for the second time.
    """
    try:
        # Editors of Windows begin a file with a byte-order mark.
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{file} is no text in UTF-8: {error}", key=file.stem) from None
    comments, begin = _comments(text)
    options: dict[str, str] = {}
    for comment in comments:
        found = _OPTION.fullmatch(_START.sub("", comment.text, count=1))
        if found is None:
            continue
        name, sign, value = found[1], found[2], found[3].removesuffix("*/").strip()
        is_option = name in known and sign == ":" and comment.is_at_top and not comment.is_block
        if is_option and name not in options:
            options[name] = value
        elif near := _near(name, known, comment):
            where = f"{file}, line {comment.number}"
            shown = comment.text.strip()
            if is_option:
                reason = f"{shown!r} is the second option {name!r}: remove one of them"
            elif name in known and not comment.is_at_top:
                reason = f"{shown!r} is no option here: move it to the top, or write other words"
            else:
                reason = f"{shown!r} is no option: write '-- {near}: {value}', or other words"
            raise InvalidConfig(f"{where}: the comment {reason}", key=file.stem)
    return OptionFile(options, text, text[begin:].strip())


def _near(name: str, known: Sequence[str], comment: _Comment) -> str | None:
    """The option that a comment may mean. Below the top, comments are about the SQL."""
    lower = name.lower()
    if not comment.is_at_top:
        return lower if lower in known else None
    return next(iter(get_close_matches(lower, known)), None)


def _comments(text: str) -> tuple[list[_Comment], int]:
    """The lines of all comments, and where the first part begins that is none."""
    found: list[_Comment] = []
    begin = None
    number = 1
    for part in _PART.finditer(text):
        is_block = part["block"] is not None
        if part["line"] is not None or is_block:
            lines = enumerate(part[0].split("\n"), number)
            found += [_Comment(at, line, begin is None, is_block) for at, line in lines]
        elif part["blank"] is None and begin is None:
            begin = part.start()
        number += part[0].count("\n")
    return found, len(text) if begin is None else begin
