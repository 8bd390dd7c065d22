"""The map of each package stands in the docstring of its `__init__`.

docs/internals/architecture.md has all of them as one table, which `make docs` writes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_tidy import LEVELS

ROOT = Path(__file__).resolve().parent.parent
DELTAQ = ROOT / "deltaq"
PAGE = ROOT / "docs/internals/architecture.md"
GLOSSARY = ROOT / "docs/internals/glossary.md"

TABLE = re.compile(r"^\| Package \| Modules \| For \|\n(?:\|.*\n)+", re.MULTILINE)
ENTRY = re.compile(r"^\* ((?:`[a-z0-9_/]+`(?:,\s+)?)+): (.+?)(?=^\* |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class MapEntry:
    """A line of the map of `package`, "" for deltaq itself: modules, or a folder with all in it,
    and what they are for.
    """

    package: str
    names: tuple[str, ...]
    text: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The modules as paths in `deltaq/`."""
        return tuple(f"{self.package}/{name}".removeprefix("/") for name in self.names)

    @property
    def level(self) -> int:
        """The level of the first module."""
        part = self.paths[0].partition("/")[0]
        return next(height for height, parts in enumerate(LEVELS) if part in parts)


def docstring(package: str) -> str:
    tree = ast.parse((DELTAQ / package / "__init__.py").read_text())
    return ast.get_docstring(tree) or ""


def packages() -> list[str]:
    """The packages of deltaq, the lowest last, and deltaq itself."""
    found = {path.parent.name for path in DELTAQ.glob("*/__init__.py")}
    return ["", *(part for parts in reversed(LEVELS) for part in sorted(parts) if part in found)]


def entries(package: str) -> list[MapEntry]:
    """The map in the docstring of a package."""
    text = docstring(package).partition("\nModules:\n\n")[2]
    return [
        MapEntry(package, tuple(re.findall(r"`([^`]+)`", names)), " ".join(found.split()))
        for names, found in ENTRY.findall(text + "\n")
    ]


def table() -> str:
    """All maps, from the highest level to the lowest."""
    by_package = {package: entries(package) for package in packages()}
    lines = ["| Package | Modules | For |", "|---|---|---|"]
    for height in reversed(range(len(LEVELS))):
        for of_package in by_package.values():
            here = [entry for entry in of_package if entry.level == height]
            lines += [_row(entry, is_first=entry is here[0]) for entry in here]
    return "\n".join(lines) + "\n"


def _row(entry: MapEntry, *, is_first: bool) -> str:
    package = f"| `{entry.package or 'deltaq'}/`" if is_first else "|"
    return f"{package} | {', '.join(f'`{path}`' for path in entry.paths)} | {entry.text} |"


def _modules() -> Iterator[str]:
    for path in sorted(DELTAQ.rglob("*.py")):
        if path.name != "__init__.py":
            yield path.relative_to(DELTAQ).with_suffix("").as_posix()


def test_every_module_is_in_the_map_of_its_package() -> None:
    named = {path for package in packages() for entry in entries(package) for path in entry.paths}
    missing = [name for name in _modules() if not {name, f"{name.rpartition('/')[0]}/"} & named]
    assert missing == [], "name them in the docstring of the package"


@pytest.mark.parametrize("package", packages())
def test_the_map_of_a_package_names_only_what_there_is(package: str) -> None:
    paths = [path for entry in entries(package) for path in entry.paths]
    assert paths, "the docstring has no map"
    assert [
        path
        for path in paths
        if not (DELTAQ / path).is_dir() and not (DELTAQ / f"{path}.py").exists()
    ] == []
    assert len(paths) == len(set(paths))


def test_the_table_of_the_architecture_page_is_that_of_the_docstrings() -> None:
    (found,) = TABLE.findall(PAGE.read_text())
    assert found == table(), "run: make docs"


def test_the_glossary_names_a_module_for_each_term() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in GLOSSARY.read_text().splitlines()
        if line.startswith("| ")
    ][1:]
    assert len(rows) > 30
    for term, _, where, *_ in rows:
        path = where.strip("`")
        place = ROOT if path.startswith("tests/") else DELTAQ
        assert (place / path).exists(), f"{term}: there is no {path}"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
