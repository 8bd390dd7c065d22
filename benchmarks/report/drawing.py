"""Charts as SVG. Colours and strokes are those of the page: the series have the classes s0, s1,
…
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from benchmarks.finding import Bars, Chart, Table
from benchmarks.report.axis import Axis, figure
from benchmarks.report.markup import element

__all__ = ["SERIES_STYLES", "as_table", "draw", "names", "sample", "style_of"]

SERIES_STYLES = 8
"""Number of distinct series styles; further series repeat them."""

WIDTH = 640
LEFT, RIGHT, TOP, BOTTOM = 58, 22, 30, 48
"""Around the plot of lines; bars need no room for a unit above them."""

BARS_TOP = 6
PLOT_HEIGHT = 250

MOST_DOTS = 60
"""Points of a line are marked only if there are no more of them."""

BAR, GAP = 16, 12
CHARACTER = 7.2
"""About as wide is one, in a text of 13 pixels."""

VALUE_WIDTH = 76


def draw(chart: Chart | Bars) -> Element:
    """The picture of a chart, without its title and legend."""
    return _draw_bars(chart) if isinstance(chart, Bars) else _draw_lines(chart)


def names(chart: Chart | Bars) -> tuple[str, ...]:
    """Of the series, for a legend."""
    return (
        tuple(name for name, _ in chart.series)
        if isinstance(chart, Bars)
        else tuple(s.name for s in chart.series)
    )


def style_of(number: int) -> str:
    """The class of a series."""
    return f"series s{number % SERIES_STYLES}"


def sample(chart: Chart | Bars, number: int) -> Element:
    """How a series looks, as a small picture for a legend."""
    drawn = (
        element("rect", x=0, y=1, width=28, height=10)
        if isinstance(chart, Bars)
        else element("polyline", points="0,6 28,6")
    )
    return element(
        "svg", element("g", drawn, class_=style_of(number)), viewBox="0 0 28 12", aria_hidden="true"
    )


def as_table(chart: Chart | Bars) -> Table:
    """The same as figures: a row for each x or label, a column for each series."""
    if isinstance(chart, Bars):
        columns = zip(*(values for _, values in chart.series), strict=True)
        bars = (
            (label, *map(figure, values))
            for label, values in zip(chart.labels, columns, strict=True)
        )
        return Table(chart.title, (f"in {chart.unit}", *names(chart)), tuple(bars))
    places = sorted({x for line in chart.series for x, _ in line.points})
    points = (
        (
            f"{place:,.10g}",
            *(", ".join(figure(y) for x, y in line.points if x == place) for line in chart.series),
        )
        for place in places
    )
    return Table(
        chart.title, (chart.x, *(f"{name}, {chart.y}" for name in names(chart))), tuple(points)
    )


def _svg(chart: Chart | Bars, height: float, *contents: Element) -> Element:
    kind = "Bars" if isinstance(chart, Bars) else "Lines"
    label = (
        f"{chart.title}. {kind}: {', '.join(names(chart))}. The table below the picture has the "
        "figures."
    )
    return element(
        "svg", *contents, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=label
    )


# --- lines
# --------------------------------------------------------------------------------------------------


def _draw_lines(chart: Chart) -> Element:
    lines = [
        [(x, y) for x, y in one.points if math.isfinite(x) and math.isfinite(y)]
        for one in chart.series
    ]
    across = Axis.covering([x for line in lines for x, _ in line], log=chart.log_x)
    up = Axis.covering([y for line in lines for _, y in line], log=chart.log_y, from_zero=True)
    bottom, right = TOP + PLOT_HEIGHT, WIDTH - RIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return _within((LEFT, right), across.place(x)), _within((bottom, TOP), up.place(y))

    grid = [*_levels(up, right), *_uprights(across, (LEFT, right), TOP, bottom)]
    about = [
        element("text", _with_scale(chart.y, up), x=4, y=14, class_="unit"),
        element("text", _with_scale(chart.x, across), x=right, y=bottom + 40, class_="unit end"),
    ]
    drawn = (
        _line(number, line, chart, [place(*point) for point in line])
        for number, line in enumerate(lines)
    )
    return _svg(chart, bottom + BOTTOM, *grid, *about, *drawn)


def _with_scale(name: str, axis: Axis) -> str:
    return f"{name}, logarithmic" if axis.log else name


def _levels(axis: Axis, right: float) -> Iterator[Element]:
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        y = _within((TOP + PLOT_HEIGHT, TOP), axis.place(float(tick)))
        yield element("line", x1=LEFT, x2=right, y1=y, y2=y, class_="grid")
        yield element("text", label, x=LEFT - 8, y=y + 4, class_="end")


def _uprights(
    axis: Axis, room: tuple[float, float], top: float, bottom: float
) -> Iterator[Element]:
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        x = _within(room, axis.place(float(tick)))
        yield element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid")
        yield element("text", label, x=x, y=bottom + 19, class_="middle")


def _within(room: tuple[float, float], place: float) -> float:
    return room[0] + place * (room[1] - room[0])


def _line(
    number: int, line: list[tuple[float, float]], chart: Chart, places: list[tuple[float, float]]
) -> Element:
    drawn = (
        [element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places))]
        if len(places) > 1
        else []
    )
    if len(places) <= MOST_DOTS:
        for (x, y), (across, up) in zip(line, places, strict=True):
            text = f"{chart.series[number].name}: {figure(y)} {chart.y} at {figure(x)}"
            drawn.append(element("circle", element("title", text), cx=across, cy=up, r=3.5))
    return element("g", *drawn, class_=style_of(number))


# --- bars
# --------------------------------------------------------------------------------------------------


def _draw_bars(chart: Bars) -> Element:
    shown = [value for _, values in chart.series for value in values if math.isfinite(value)]
    axis = Axis.covering(shown, from_zero=True)
    left, right = _labels_width(chart), WIDTH - VALUE_WIDTH
    group = BAR * len(chart.series) + GAP
    bottom = BARS_TOP + group * len(chart.labels)
    drawn = list(_uprights(axis, (left, right), BARS_TOP, bottom))
    drawn.append(element("text", chart.unit, x=right, y=bottom + 40, class_="unit end"))
    for row, label in enumerate(chart.labels):
        top = BARS_TOP + row * group + GAP / 2
        drawn.append(
            element("text", label, x=left - 8, y=top + (group - GAP) / 2 + 4, class_="end")
        )
        for number, (_, values) in enumerate(chart.series):
            if math.isfinite(values[row]):
                drawn.append(_bar(number, values[row], axis, (left, right), top + number * BAR))
    return _svg(chart, bottom + BOTTOM, *drawn)


def _labels_width(chart: Bars) -> float:
    longest = max(map(len, chart.labels), default=0)
    return min(12 + CHARACTER * longest, WIDTH / 2)


def _bar(number: int, value: float, axis: Axis, room: tuple[float, float], top: float) -> Element:
    start, end = (_within(room, axis.place(at)) for at in sorted((0.0, value)))
    drawn = element("rect", x=start, y=top + 1, width=max(0.5, end - start), height=BAR - 2)
    return element(
        "g",
        drawn,
        element("text", figure(value), x=end + 6, y=top + BAR / 2 + 4),
        class_=style_of(number),
    )
