"""The guide of the command does what it says: each command of its blocks runs, and prints what
stands below it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Shell

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/command-line.md"
ANYTHING = "…"
"""In the guide's output, for what differs from run to run."""


def _commands(page: str) -> Iterator[tuple[int, str, str]]:
    """(line, command, output below it) of the `console` blocks of a page."""
    for block in re.finditer(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for found in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block[1], re.MULTILINE):
            yield page.count("\n", 0, block.start(1) + found.start()) + 1, found[1], found[2]


def _run(deltaq: Shell, command: str) -> str:
    """Run `deltaq ...`, or `printf '...' | deltaq ...`; all that it prints."""
    before, pipe, after = command.rpartition(" | ")
    given = b""
    if pipe:
        program, text = shlex.split(before)
        assert program == "printf"
        given = text.encode().decode("unicode_escape").encode()
    assert after.startswith("deltaq ")
    ended = deltaq(after.removeprefix("deltaq "), given)
    return ended.output + ended.errors


def _matches(expected: str, printed: str) -> bool:
    pattern = ".*".join(map(re.escape, expected.split(ANYTHING)))
    return re.fullmatch(pattern, printed) is not None


def test_the_commands_of_the_guide_print_what_it_says(
    deltaq: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELTAQ_ROOT", "./deltaq-data")
    # The order among partitions is that of the files, so the lines of one command go into one.
    (config := tmp_path / "client.properties").write_text("linger.ms=60000\n")
    monkeypatch.setenv("DELTAQ_COMMAND_CONFIG", str(config))
    page = GUIDE.read_text()
    schema = re.search(r"Here `cart.avsc` is\n`(.*)`:", page)
    assert schema is not None
    (tmp_path / "cart.avsc").write_text(schema[1])
    found = list(_commands(page))
    assert found
    for line, command, expected in found:
        printed = _run(deltaq, command)
        assert _matches(expected, printed), f"line {line}: {command}\n{printed}"


def test_output_that_differs_is_noticed() -> None:
    assert _matches("size … KiB\n", "size 1.2 KiB\n")
    assert not _matches("size … KiB\n", "size 1.2 KiB\nmore\n")
    assert list(_commands("a\n```console\n$ deltaq x\nout\n$ deltaq y\n```\n")) == [
        (3, "deltaq x", "out\n"),
        (5, "deltaq y", ""),
    ]
