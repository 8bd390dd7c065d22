"""The site has every page of the documentation, and its broken links are noticed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs_site import ROOT, api_pages, broken_links, page_of, sources


def _pages_of(nav: list[Any]) -> Iterator[str]:
    """The pages that a part of the navigation names."""
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, list):
                yield from _pages_of(value)
            else:
                yield value


def test_the_navigation_has_every_page_once_but_the_decisions_which_their_index_lists() -> None:
    named = list(_pages_of(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    pages = [page.relative_to(ROOT).as_posix() for page in sources()]
    expected = [
        page for page in pages if not page.startswith("docs/decisions/0") and page != "README.md"
    ]
    assert sorted(named) == sorted(
        [*expected, "index.md", *(f"api/{name}" for name in api_pages())]
    )


def test_the_pages_of_the_api_have_each_public_name() -> None:
    pages = api_pages()
    assert "::: deltaq.Producer\n" in pages["clients.md"]
    assert "::: deltaq.OutcomeUnknown\n" in pages["errors.md"]
    assert "::: deltaq.spark.read_topic\n" in pages["spark.md"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("```python no-run: slow\n* a\n```\n", "```python\n* a\n```\n"),
        ("Text:\n* one\n  of it\n* two\n", "Text:\n\n* one\n    of it\n* two\n"),
        ("- one\n- two\n\n  more\n", "- one\n- two\n\n    more\n"),
        ("1. one\n\nText\n  indented\n", "1. one\n\nText\n  indented\n"),
    ],
)
def test_a_page_is_written_as_the_site_reads_it(text: str, written: str) -> None:
    assert page_of(text) == written


def test_a_broken_link_of_the_site_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#x">b</a> <a href="https://example.org">c</a>'
    )
    (tmp_path / "b.html").write_text(
        '<p id="x"></p><a href="a.html#nothing">a</a> <img src="c.png">'
    )
    assert sorted(broken_links(tmp_path)) == ["b.html: a.html#nothing", "b.html: c.png"]
