"""Lay out the pages for the site, or check the links of the built one.

`python -m tests.docs_site lay-out | check`

The pages are those of the repository, in their folders, so that their links to each other hold.
Files that they link are copied beside them. The pages of the API are made of the public names. Only
the standard library is used: the site is built in an environment of its own.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/docs"
SITE = ROOT / "site"
FOLDERS = ("docs", "benchmarks", "examples")

API = {
    "asyncio": ("deltaq.aio", "Clients for asyncio"),
    "schema_registry": ("deltaq.schema_registry", "Schema registry"),
    "spark": ("deltaq.spark", "Spark"),
    "tools": ("deltaq.tools", "Whole topics"),
    "testing": ("deltaq.testing", "Test kit"),
}
"""Page -> the package whose public names it has, and its title."""

LEFT_OUT = {"__version__", "ArrowInput"}
"""Public names without a place among the pages: a version, and an alias of types."""

LINK = re.compile(r"\]\(<?([^)\s>]+)")


def sources(root: Path = ROOT) -> list[Path]:
    """The pages of the repository that the site has."""
    found = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.md"))]
    return [root / "README.md", root / "CHANGELOG.md", root / "CONTRIBUTING.md", *found]


def page_of(text: str) -> str:
    """A page for the Markdown of the site: a bare language behind fences, lists set off."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        opening = re.match(r" *(`{3,}|~{3,}) *(\w*)", line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif opening:
            fence = opening[1]
            line = line[: opening.start(1)] + fence + opening[2]
        elif (
            re.match(r"([*-]|\d+\.) ", line) and lines and lines[-1].strip() and not _in_list(lines)
        ):
            lines.append("")
        elif lines and re.match(r" {2,3}\S", line) and _in_list(lines):
            line = f"    {line.strip()}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _in_list(lines: list[str]) -> bool:
    """Whether the last of these lines belongs to the item of a list."""
    for line in reversed(lines):
        if re.match(r" *([*-]|\d+\.) ", line):
            return True
        if line.strip() and not line.startswith("  "):
            return False
    return False


def linked_files(page: Path, text: str) -> Iterator[Path]:
    """The files of the repository that a page links and that are no pages."""
    for found in LINK.finditer(text):
        target = urldefrag(unquote(found[1])).url
        if target and not re.match(r"[a-z][a-z0-9+.-]*:", target):
            file = (page.parent / target).resolve()
            if file.is_file() and file.suffix != ".md":
                yield file


def public_names(module: str) -> list[str]:
    """The names in `__all__` of a package, which is not imported."""
    tree = ast.parse((ROOT / module.replace(".", "/") / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise ValueError(f"{module} has no __all__")


def api_pages() -> dict[str, str]:
    """File name -> text of the pages that the docstrings fill."""
    errors = ast.parse((ROOT / "deltaq/errors.py").read_text())
    exceptions = {node.name for node in errors.body if isinstance(node, ast.ClassDef)}
    names = [name for name in public_names("deltaq") if name not in LEFT_OUT]
    names.sort(key=str.isupper)  # classes before constants
    pages = {
        "clients": _api_page(
            "Clients", "deltaq", [name for name in names if name not in exceptions]
        ),
        "errors": _api_page("Exceptions", "deltaq", [name for name in names if name in exceptions]),
    }
    for page, (module, title) in API.items():
        pages[page] = _api_page(title, module, public_names(module))
    return {f"{page}.md": text for page, text in pages.items()}


def _api_page(title: str, module: str, names: list[str]) -> str:
    parts = [f"# {title}", f"Names of `{module}`."]
    parts += [f"::: {module}.{name}" for name in names]
    return "\n\n".join(parts) + "\n"


def lay_out() -> None:
    """Write all pages, and the files that they link, to `build/docs`."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for page in sources():
        text = page.read_text()
        where = page.relative_to(ROOT)
        target = PAGES / ("index.md" if where == Path("README.md") else where)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page_of(text))
        for file in linked_files(page, text):
            beside = PAGES / file.relative_to(ROOT)
            beside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, beside)
    (PAGES / "api").mkdir()
    for name, text in api_pages().items():
        (PAGES / "api" / name).write_text(text)


class _Links(HTMLParser):
    """The links and the anchors of a page of the site."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and tag in ("a", "img", "script", "link"):
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Every link of a page of the site that leads to no file or no anchor of it."""
    pages: dict[Path, _Links] = {}
    for file in site.rglob("*.html"):
        pages[file] = _Links()
        pages[file].feed(file.read_text())
    broken = []
    for file, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if re.match(r"[a-z][a-z0-9+.-]*:|//", address) or file.name == "404.html":
                continue
            target = (file.parent / unquote(address)).resolve() if address else file
            if target.is_dir():
                target /= "index.html"
            found = pages.get(target)
            if not target.is_file() or (
                anchor and found is not None and unquote(anchor) not in found.anchors
            ):
                broken.append(f"{file.relative_to(site)}: {link}")
    return broken


def main(arguments: list[str]) -> int:
    """0 if all is well."""
    if arguments == ["lay-out"]:
        lay_out()
        return 0
    broken = broken_links(SITE)
    print("\n".join(broken), file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
