"""Which topics and Delta tables the names in the SQL of views mean. DuckDB ignores the case of
names, topics do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from deltaq.errors import InvalidConfig
from deltaq.store import Store
from deltaq.tools.duckdb_tables import ONE_TABLE, topic_of
from deltaq.topics.listing import topic_names
from deltaq.views.program import View, ViewProgram
from deltaq.views.tick_clock import CLOCK


def named_inputs(program: ViewProgram, there: Collection[str]) -> dict[str, str]:
    """By name in `program.inputs` the topic or Delta table that it means, one of `there`: that of
    exactly this name, or else the one whose name differs by case only.

    Raises InvalidConfig, naming the view, for a name that means nothing, or may mean several, and
    for two that DuckDB takes for one table.
    """
    inputs = {name.lower(): name for name in program.inputs}
    views = {view.name.lower(): view.name for view in program.views}
    meant: dict[str, tuple[View, str]] = {}
    for view in program.views:
        for name in view.names:
            lower = name.lower()
            if lower in views and name != views[lower] and name in there:
                reason = (
                    f"view {view.name!r} reads {name!r}, a topic, and {program.group!r} has the "
                    f"view {views[lower]!r}: these names {ONE_TABLE}; give the view another name"
                )
                raise InvalidConfig(reason, key=view.name)
            if lower in inputs:
                found = _meant(program, view, name, there)
                other, known = meant.setdefault(inputs[lower], (view, found))
                _check_same(view, found, other, known)
    return {name: found for name, (_, found) in meant.items()}


def _meant(program: ViewProgram, view: View, name: str, there: Collection[str]) -> str:
    try:
        found = topic_of(name, there)
    except InvalidConfig as error:
        text = f"view {view.name!r}: {error.error.str()}"
        raise InvalidConfig(text, key=view.name) from None
    if found is None:
        raise InvalidConfig(
            f"view {view.name!r} reads {name!r}, which is neither a view of {program.group!r} "
            "nor a topic; a name with a dot or a dash stands in double quotes",
            key=view.name,
        )
    return found


def _check_same(view: View, found: str, other: View, known: str) -> None:
    if found != known:
        reason = (
            f"view {view.name!r} reads {found!r}, and view {other.name!r} reads {known!r}: these "
            f"names {ONE_TABLE}; read one of them through a view of another group"
        )
        raise InvalidConfig(reason, key=view.name)


def check_names(names: Iterable[str], known: Iterable[str], store: Store) -> None:
    """Raise InvalidConfig for names in a query that are topics, and would read a known table whose
    name differs by case only. Raises Unavailable.
    """
    by_lower = {name.lower(): name for name in (*known, CLOCK)}
    others = [name for name in names if by_lower.get(name.lower(), name) != name]
    for name in others and sorted({*others} & {*topic_names(store)}):
        reason = f"{name!r} is a topic, and the cut has {by_lower[name.lower()]!r}: these names"
        raise InvalidConfig(f"{reason} {ONE_TABLE}", key="sql")
