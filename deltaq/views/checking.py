"""The proof of a group of views: its SQL over the cut of a tick, evaluated from nothing, next to
what is published.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.store import Store
from deltaq.views.engine import ViewEngine
from deltaq.views.functions import ViewFunction
from deltaq.views.incremental import DIGITS
from deltaq.views.program import View
from deltaq.views.reading import ViewCut, opened


@dataclass(frozen=True, slots=True)
class ViewMismatch:
    """A view that differs from its SQL at the tick `tick`. `missing` are the rows that it lacks,
    `wrong` those that it has too much.
    """

    view: str
    tick: int
    missing: pa.Table
    wrong: pa.Table


def mismatches(
    store: Store,
    clock: Clock,
    group: str,
    functions: Iterable[ViewFunction],
    number: int | None = None,
) -> list[ViewMismatch]:
    """The views that differ from their SQL at the tick of this number; None for the last one.
    `functions` are those that this process has.
    """
    return mismatches_at(opened(store, clock, group, number, functions))


def mismatches_at(found: ViewCut) -> list[ViewMismatch]:
    """The same at a cut. Raises as `Views.check`."""
    with found.at_cut() as (engine, program):
        engine.evaluate(kind="view")
        published = {view.name: found[view.name].to_arrow() for view in program.views}
        return [
            ViewMismatch(view.name, found.tick, *differing)
            for view in program.views
            if (differing := _differing(engine, view, published[view.name])) is not None
        ]


def _differing(
    engine: ViewEngine, view: View, published: pa.Table
) -> tuple[pa.Table, pa.Table] | None:
    """The rows that a published view lacks, and those that it has too much; None if it is equal."""
    engine.restore(view.name, published)
    missing, wrong = engine.differences(view)
    if _same(missing, wrong):
        return None
    return missing, wrong


def _same(missing: pa.Table, wrong: pa.Table) -> bool:
    """Whether rows differ in the last digits of floats only."""
    if missing.num_rows != wrong.num_rows:
        return False
    if not any(pa.types.is_floating(field.type) for field in missing.schema):
        return not missing.num_rows
    return Counter(_rounded(missing)) == Counter(_rounded(wrong))


def _rounded(rows: pa.Table) -> Iterator[str]:
    for row in rows.to_pylist():
        yield repr([_shown(value) for value in row.values()])


def _shown(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.{DIGITS}g}"
    return value
