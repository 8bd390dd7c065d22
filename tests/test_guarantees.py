"""docs/concepts/guarantees.md names, for every promise and every fault, the tests that hold it.

A test says what it holds with `@pytest.mark.fault("P5", ...)`. `make docs` writes the last column
of the page's tables from these marks; all else on the page is written by hand.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PAGE = ROOT / "docs/concepts/guarantees.md"

ROW = re.compile(r"^\| `([A-Z]\d+)` \| (.+?) \| (.+?) \|.*\|$", re.MULTILINE)
PROMISES = re.compile(r"^## (G\d+): .+?^\*Tested under\* ([^.]+)\.$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"\*Tested under\* ([^.]+)\.")


# --- the marks ---


def marked(source: str) -> Iterator[tuple[str, str]]:
    """(fault, name of a test function) for every mark in the text of a test module."""
    tree = ast.parse(source)
    everywhere = [
        fault
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for fault in _faults(node.value)
    ]
    parents: list[tuple[list[ast.stmt], list[str]]] = [(tree.body, everywhere)]
    while parents:
        body, inherited = parents.pop()
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                own = [
                    *inherited,
                    *(fault for mark in node.decorator_list for fault in _faults(mark)),
                ]
                if isinstance(node, ast.ClassDef):
                    parents.append((node.body, own))
                elif node.name.startswith("test_"):
                    yield from ((fault, node.name) for fault in own)


def _faults(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
            yield from (str(ast.literal_eval(argument)) for argument in node.args)


@cache
def files_by_fault() -> Mapping[str, Counter[str]]:
    """For every fault the files with tests that hold it, and how many these are."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        if "mark.fault" in (source := path.read_text()):
            for fault, _ in set(marked(source)):
                found.setdefault(fault, Counter())[path.relative_to(TESTS).as_posix()] += 1
    return found


# --- the page ---


def with_tests(page: str, files: Mapping[str, Counter[str]]) -> str:
    """The page with the links to the tests as they are now."""

    def row(found: re.Match[str]) -> str:
        fault, what, then = found.groups()
        links = (
            f"[{path}](../../tests/{path}) ({count})"
            for path, count in sorted(files.get(fault, {}).items())
        )
        return f"| `{fault}` | {what} | {then} | {'<br>'.join(links)} |"

    return ROW.sub(row, page)


def faults_of(page: str) -> list[str]:
    """The faults in the tables of the page."""
    return [found[1] for found in ROW.finditer(page)]


def test_the_page_links_the_tests_that_are_marked() -> None:
    assert PAGE.read_text() == with_tests(PAGE.read_text(), files_by_fault()), "run `make docs`"


def test_every_fault_on_the_page_has_a_test() -> None:
    tested = files_by_fault()
    assert [fault for fault in faults_of(PAGE.read_text()) if not tested.get(fault)] == []


def test_every_fault_that_a_test_names_is_on_the_page_once() -> None:
    faults = faults_of(PAGE.read_text())
    assert sorted(set(files_by_fault()) - set(faults)) == []
    assert [fault for fault, times in Counter(faults).items() if times > 1] == []


def test_every_promise_names_faults_of_the_tables_and_no_fault_is_without_a_promise() -> None:
    page = PAGE.read_text()
    promises = PROMISES.findall(page)
    assert [number for number, _ in promises] == re.findall(r"^## (G\d+)", page, re.MULTILINE)
    assert [number for number, _ in promises] == [f"G{number}" for number in range(1, 12)]
    named = {
        fault for faults in NAMED.findall(page) for fault in re.findall(r"`([A-Z]\d+)`", faults)
    }
    assert all(re.search(r"`[A-Z]\d+`", faults) for _, faults in promises)
    assert named ^ set(faults_of(page)) == set()


def test_every_link_to_a_test_leads_to_a_file() -> None:
    links = re.findall(r"\]\(\.\./\.\./(tests/[^)]+)\)", PAGE.read_text())
    assert len(links) >= len(faults_of(PAGE.read_text()))
    assert [link for link in links if not (ROOT / link).is_file()] == []


MODULE = """
import pytest
pytestmark = [pytest.mark.spark, pytest.mark.fault("P1")]

@pytest.mark.fault("P2", "P3")
@pytest.mark.parametrize("x", [1])
def test_one(x): ...

@pytest.mark.fault("P4")
class TestGroup:
    @pytest.mark.fault("P5")
    async def test_two(self): ...

@pytest.mark.fault("P6")
def not_a_test(): ...
"""


def test_marks_are_found_on_modules_classes_and_functions() -> None:
    assert sorted(marked(MODULE)) == [
        ("P1", "test_one"),
        ("P1", "test_two"),
        ("P2", "test_one"),
        ("P3", "test_one"),
        ("P4", "test_two"),
        ("P5", "test_two"),
    ]


def test_a_row_gets_the_tests_of_its_fault_in_place_of_what_was_there() -> None:
    page = "| `P1` | a crash | nothing | [old](x.md) (3) |\n| `P2` | another | all |  |\n"
    written = with_tests(page, {"P1": Counter({"b.py": 2, "a.py": 1})})
    assert written.splitlines() == [
        (
            "| `P1` | a crash | nothing | [a.py](../../tests/a.py) (1)<br>[b.py](../../tests/b.py) "
            "(2) |"
        ),
        "| `P2` | another | all |  |",
    ]
    assert faults_of(written) == ["P1", "P2"]


if __name__ == "__main__":
    PAGE.write_text(with_tests(PAGE.read_text(), files_by_fault()))
