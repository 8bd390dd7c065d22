"""Findings as a page for a browser: one file, without a script and without anything from
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from benchmarks.finding import Bars, Chart, Finding, Table, Target
from benchmarks.report.drawing import as_table, draw, names, sample
from benchmarks.report.findings import Findings
from benchmarks.report.markup import Content, element

__all__ = ["as_html"]

_STYLE = Path(__file__).with_name("page.css")
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
{body}
</html>
"""


def as_html(findings: Findings) -> str:
    """The whole page."""
    sections = (_section(name, found) for name, found in findings.found.items())
    body = element(
        "body", _header(findings), element("main", *_target_section(findings.targets), *sections)
    )
    return _PAGE.format(
        title=escape(f"deltaq benchmarks, {_when(findings)}"),
        style=_STYLE.read_text(),
        # Written as XML, in which "<" is escaped in attributes too; a browser would not take <td/>
        # for a whole cell.
        body=tostring(body, encoding="unicode", short_empty_elements=False),
    )


def _when(findings: Findings) -> str:
    return findings.started.replace("T", " ").replace("+00:00", " UTC")


def _header(findings: Findings) -> Element:
    facts = [
        element("div", element("dt", name), element("dd", value))
        for name, value in {"started": _when(findings), **findings.machine}.items()
    ]
    links = [element("a", name, href=f"#{_anchor(name)}") for name in findings.found]
    return element(
        "header",
        element("h1", "deltaq benchmarks"),
        element("dl", *facts),
        _cleanliness(findings),
        _quietness(findings),
        element("nav", *links, aria_label="Suites"),
    )


def _anchor(name: str) -> str:
    return f"suite-{name}"


def _cleanliness(findings: Findings) -> Element:
    if findings.is_clean:
        return _note("Complete", "Every message arrived once, in order and unchanged.", good=True)
    wrong = ", ".join(
        name for name, found in findings.found.items() if not all(one.is_clean for one in found)
    )
    said = (
        f"Messages were lost, doubled, disordered or changed in: {wrong}. No figure of it counts."
    )
    return _note("Wrong", said, good=False)


def _quietness(findings: Findings) -> Element:
    word = {True: "Quiet", False: "Not quiet", None: "Perhaps not quiet"}[findings.is_quiet]
    return _note(word, findings.quiet, good=findings.is_quiet is True)


def _note(word: str, text: str, *, good: bool) -> Element:
    return element("p", _mark(word, good=good), f" {text}", class_="note")


def _mark(word: str, *, good: bool) -> Element:
    return element("strong", f"{'✓' if good else '✗'} {word}", class_="good" if good else "bad")


def _target_section(targets: Sequence[Target]) -> Iterable[Element]:
    if not targets:
        return
    met = sum(target.met for target in targets)
    rows = [
        (
            target.name,
            target.aim,
            target.found,
            _mark("met" if target.met else "missed", good=target.met),
        )
        for target in targets
    ]
    yield element(
        "section",
        element("h2", "Targets"),
        element("p", f"{met} of {len(targets)} met."),
        _grid("Targets", ("target", "aim", "found", "outcome"), rows),
    )


def _section(name: str, found: Sequence[Finding]) -> Element:
    shown: list[Element] = []
    for finding in found:
        if charts := [_figure(chart) for chart in finding.charts()]:
            shown.append(element("div", *charts, class_="charts"))
        shown += [_table(table) for table in finding.tables()]
    return element("section", element("h2", name.capitalize()), *shown, id=_anchor(name))


def _table(table: Table) -> Element:
    if not table.head:
        lines = "\n".join(cell for row in table.rows for cell in row)
        return element("details", element("summary", *_prose(table.title)), element("pre", lines))
    return element(
        "div", element("h3", *_prose(table.title)), _grid(table.title, table.head, table.rows)
    )


def _prose(text: str) -> Iterator[Content]:
    """Text in which code stands between backticks."""
    for number, part in enumerate(text.split("`")):
        yield element("code", part) if number % 2 else part


def _grid(title: str, head: Sequence[str], rows: Iterable[Sequence[Content]]) -> Element:
    """A table that scrolls by itself where it is wider than the window."""
    columns = element("tr", *(element("th", name, scope="col") for name in head))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in others))
        for first, *others in rows
    ]
    table = element("table", element("thead", columns), element("tbody", *body))
    return element("div", table, class_="wide", role="region", aria_label=title, tabindex="0")


def _figure(chart: Chart | Bars) -> Element:
    of_series = names(chart)
    legend = element(
        "ul", *(element("li", sample(chart, at), name) for at, name in enumerate(of_series))
    )
    figures = as_table(chart)
    return element(
        "figure",
        element("figcaption", *_prose(chart.title)),
        *([legend] if len(of_series) > 1 else []),
        draw(chart),
        element(
            "details",
            element("summary", "Figures of this chart"),
            _grid(figures.title, figures.head, figures.rows),
        ),
    )
