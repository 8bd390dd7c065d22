"""The graph of a group of views as numbers for SVG: boxes in columns, and arrows. Pure; a template
draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LABEL_CHARS = 28
"""Longest name in a box; longer ones are cut."""

_BOX_HEIGHT, _ROW, _GAP, _MARGIN = 34, 52, 64, 4
_CHAR, _PADDING, _TIP = 8, 28, 8


@dataclass(frozen=True, slots=True)
class GraphBox:
    """A topic or a view: a box with its left upper corner at `x`, `y`."""

    name: str
    label: str
    is_view: bool
    x: int
    y: int
    width: int
    height: int = _BOX_HEIGHT


@dataclass(frozen=True, slots=True)
class GraphArrow:
    """From what is read to what reads it: a curve, and the points of its tip."""

    curve: str
    tip: str


@dataclass(frozen=True, slots=True)
class ViewGraph:
    """Boxes and arrows in a picture of `width` by `height`."""

    width: int
    height: int
    boxes: tuple[GraphBox, ...]
    arrows: tuple[GraphArrow, ...]


_Place: TypeAlias = tuple[str, str]
"""What stands in a column: a box, as its name and "", or the way of an arrow that passes the column
between boxes, as what is read and what reads it.
"""


def view_graph(reads: Mapping[str, Sequence[str]]) -> ViewGraph:
    """The graph of views and of what each reads: views before it in the mapping, and topics. What
    is read stands in a column to the left of what reads it.
    """
    columns = _columns(reads)
    rows = max(map(len, columns))
    boxes: dict[str, GraphBox] = {}
    ways: dict[_Place, list[tuple[int, int, int]]] = {}
    x = _MARGIN
    for places in columns:
        width = _PADDING + _CHAR * max(
            len(_label(name)) for name, passes_to in places if not passes_to
        )
        y = _MARGIN + (rows - len(places)) * _ROW // 2
        for name, passes_to in places:
            if passes_to:
                ways.setdefault((name, passes_to), []).append((x, x + width, y + _BOX_HEIGHT // 2))
            else:
                boxes[name] = GraphBox(name, _label(name), name in reads, x, y, width)
            y += _ROW
        x += width + _GAP
    arrows = tuple(
        _arrow(boxes[read], ways.get((read, view), ()), boxes[view])
        for view, of in reads.items()
        for read in of
    )
    height = 2 * _MARGIN + (rows - 1) * _ROW + _BOX_HEIGHT
    return ViewGraph(x - _GAP + _MARGIN, height, tuple(boxes.values()), arrows)


def _columns(reads: Mapping[str, Sequence[str]]) -> list[list[_Place]]:
    """The places by column. Each column is in the order of what comes into it from the one before,
    so that fewer arrows cross.
    """
    column: dict[str, int] = {}
    for view, of in reads.items():
        for name in of:
            column.setdefault(name, 0)
        column[view] = 1 + max((column[name] for name in of), default=-1)
    found: list[list[_Place]] = [[] for _ in range(1 + max(column.values()))]
    for name, at in column.items():
        found[at].append((name, ""))
        for read in reads.get(name, ()):
            for between in range(column[read] + 1, at):
                found[between].append((read, name))
    row: dict[_Place, float] = {}
    for places in found:
        middle = {place: _middle(place, reads, row) for place in places}
        places.sort(key=lambda place: middle[place])
        row |= {place: at - len(places) / 2 for at, place in enumerate(places)}
    return found


def _middle(
    place: _Place, reads: Mapping[str, Sequence[str]], row: Mapping[_Place, float]
) -> float:
    """The middle of the rows from which arrows come to a place."""
    name, passes_to = place
    ways = [place] if passes_to else [(read, name) for read in reads.get(name, ())]
    rows = [row.get(way, row[way[0], ""]) for way in ways]
    return sum(rows) / len(rows) if rows else 0.0


def _label(name: str) -> str:
    return name if len(name) <= LABEL_CHARS else f"{name[: LABEL_CHARS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _arrow(source: GraphBox, ways: Sequence[tuple[int, int, int]], target: GraphBox) -> GraphArrow:
    x, y = source.x + source.width, source.y + source.height // 2
    curve = f"M{x},{y}"
    for left, right, passes_at in ways:
        curve += f"{_bend(x, y, left, passes_at)} H{right}"
        x, y = right, passes_at
    tip_x, tip_y = target.x, target.y + target.height // 2
    curve += _bend(x, y, tip_x - _TIP, tip_y)
    return GraphArrow(
        curve, f"{tip_x - _TIP},{tip_y - 4} {tip_x},{tip_y} {tip_x - _TIP},{tip_y + 4}"
    )


def _bend(x0: int, y0: int, x1: int, y1: int) -> str:
    middle = (x0 + x1) // 2
    return f" C{middle},{y0} {middle},{y1} {x1},{y1}"
