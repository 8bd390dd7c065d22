"""The vocabulary of the project: words that were given up stand in no name and no sentence.

`docs/internals/glossary.md` has the terms that took their place.
"""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("deltaq", "pyspark_deltaq", "pytest_deltaq", "tests", "benchmarks", "examples", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
SUFFIXES = {".py", ".md", ".json", ".toml", ".sh", ".yml"}

# A pattern of whole words, refused everywhere, and what to write. A name counts as the words that
# it is made of: `is_taken_along` and `TakenAlong` both have "taken along".
IN_TEXT = {
    r"whoever|nobody|somebody|anybody|everybody": "the component as the subject",
    r"of late": "recently",
    r"in vain": "without result",
    r"befall(?:s|en)?|befell": "happen, inject",
    r"all the same": "still, nevertheless",
    r"tak(?:e|es|en|ing) along": "commit for a peer",
    r"caretakers?": "background maintenance",
    r"name sets": "hashed names",
}

# The same, refused as a name in code or as a part of one. In a sentence these words have an
# everyday meaning.
IN_NAMES = {
    r"told": "on_change, notify, report, answer",
    r"offers?|offered": "shared file",
    r"crowd|crowded|company": "contended, peers",
    r"ledger": "tracker",
    r"reliefs?|relieve": "extra workers",
    r"settle|settled|settling": "resolve (an outcome), older_than (an age), sync (a file)",
    r"withdraw|withdrawn|withdraws": "revoke",
    r"sweeper": "remover",
    r"log cleaner": "log clean-up",
    r"dut(?:y|ies)": "claim",
    r"pacer|hurry|hurries|breathe": "throttle, boost, pause",
    r"peek|peeked|glance": "get_impatient, list_some",
    r"out run|outrun|overtaken": "conflict, stale plan",
    r"fate|uploads gone": "commit outcome, uploads expired",
    r"sight": "metadata cache",
    r"patience": "timeout",
    r"upkeep": "maintenance, housekeeping",
    r"scene": "scenario, harness",
    r"uploads from": "min_upload_version",
    r"first hand": "row cache",
    r"record buffer|topic writer|upload threads": "record accumulator, sender, uploader",
    r"(?<!in )flights?": "produce batch",
}


def _pattern(words: dict[str, str]) -> re.Pattern[str]:
    return re.compile(
        "|".join(rf"(?P<_{number}>\b(?:{word})\b)" for number, word in enumerate(words))
    )


TEXT, NAMES = _pattern(IN_TEXT), _pattern(IN_NAMES)
LIKE_CODE = re.compile(r"\b(?:\w+_\w+|[A-Za-z]+[a-z][A-Z]\w*|[A-Z]{4,})\b")


def _words(text: str) -> str:
    """`isTaken_along` -> `is taken along`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+", " ", text).lower().strip()


def _instead(words: dict[str, str], found: re.Match[str]) -> str:
    return list(words.values())[int(str(found.lastgroup)[1:])]


def _names(path: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of all names in a text: of Python its tokens, of strings and pages what looks
    like code.
    """
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
            elif token.type == tokenize.STRING:
                yield from ((token.start[0], name) for name in LIKE_CODE.findall(token.string))
    else:
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, name) for name in LIKE_CODE.findall(line))


@functools.cache  # the same names and words make up all files
def _retired_part(name: str) -> str | None:
    """What to write instead of the first given-up word in a name; None if there is none."""
    found = NAMES.search(_words(name))
    return _instead(IN_NAMES, found) if found else None


def retired(path: str, text: str) -> list[str]:
    """Every place of a given-up word, with what to write."""
    wrong = []
    if TEXT.search(_words(text)):
        for number, line in enumerate(text.splitlines(), 1):
            wrong += [
                f"{path}:{number} {found[0]!r}: write {_instead(IN_TEXT, found)}"
                for found in TEXT.finditer(_words(line))
            ]
    if any(map(_retired_part, set(re.findall(r"\w+", text)))):
        wrong += [
            f"{path}:{number} {name}: write {instead}"
            for number, name in _names(path, text)
            if (instead := _retired_part(name))
        ]
    return wrong


def test_no_text_and_no_name_has_a_retired_word() -> None:
    paths = [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES
    ]
    own = Path(__file__).resolve()
    wrong = []
    for path in [*paths, *(ROOT / page for page in PAGES)]:
        name = path.relative_to(ROOT).as_posix()
        if path != own:
            wrong += retired(name, path.read_text())
            if found := NAMES.search(_words(path.stem)) or TEXT.search(_words(path.stem)):
                wrong.append(f"{name}: a file named after {found[0]!r}")
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "# Who" + "ever comes second waits."),
        ("a.py", "is_taken" + "_along = 1"),
        ("a.py", "class Taken" + "Along: ..."),
        ("a.py", "def test_an_error_is_told(): ..."),
        ("a.py", 'operation = "SETT' + 'LE"'),
        ("a.md", "Call `offer_file` first."),
    ],
)
def test_a_retired_word_is_noticed_with_its_replacement(path: str, text: str) -> None:
    (found,) = retired(path, text)
    assert found.startswith(f"{path}:1 ")
    assert ": write " in found


@pytest.mark.parametrize(
    "text", ["# A store offers listings, as told above.", "max_in_flight = 1", "take(along)"]
)
def test_an_everyday_use_of_a_word_is_no_retired_one(text: str) -> None:
    assert retired("a.py", text) == []
