"""The pages that only show: each is a function of a visit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from deltaq.admin import ConfigResource, ResourceType
from deltaq.config import TOPIC_SETTINGS
from deltaq.console.charts import chart
from deltaq.console.graphs import view_graph
from deltaq.console.messages import MESSAGES_MAX, Row, Wanted, find
from deltaq.console.view import GroupPage, TopicPage
from deltaq.console.view_groups import proof, rows_of, state_of, tables_stored, views_of
from deltaq.console.view_groups import survey as survey_views
from deltaq.console.visits import Page, Root, Visit
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, UnknownTopic
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import Maintenance
from deltaq.metadata import describe_topic
from deltaq.tools.positions import parse_place
from deltaq.tools.prices import REQUEST_KINDS
from deltaq.tools.transactions import DECIDED, OPEN, survey
from deltaq.units import as_count, as_rate
from deltaq.views.program import view_topic
from deltaq.views.reading import opened, program_of
from deltaq.views.tick_clock import CLOCK
from deltaq.views.ticks import last_tick

PATTERN_CHARS = 200
"""Longest regular expression of a search."""


def roots_page(roots: Sequence[Root]) -> Page:
    """All roots, with what was last seen of each."""
    return Page("roots.html", {"views": [(root, root.poller.view()) for root in roots]})


def overview(visit: Visit) -> Page:
    """Topics and groups of a root."""
    return Page("overview.html", {"view": visit.view()}, live="_overview.html")


def topic(visit: Visit) -> Page:
    """A topic: rates, size, partitions, settings."""
    view = _topic_of(visit)
    entries = None
    if visit.view_now is None:
        resource = ConfigResource(ResourceType.TOPIC, view.name)
        entries = visit.root.admin.describe_configs([resource])[resource].result()
    values = {
        "topic": view,
        "chart": chart(view.rates, lambda value: f"{as_rate(value) or 0}"),
        "schema": None if entries is None else _columns(visit, view.name),
        "settings": sorted(
            (entries or {}).values(), key=lambda entry: (entry.is_default, entry.name)
        ),
        "names": sorted(TOPIC_SETTINGS),
        "readers": [group for group in visit.view().groups.values() if view.name in group.topics],
    }
    return Page("topic.html", values, live="_topic.html")


def _columns(visit: Visit, name: str) -> list[tuple[str, str]] | None:
    found = describe_topic(visit.root.store, visit.root.clock, name).schema
    return None if found is None else [(field.name, str(field.type)) for field in found.arrow]


def _topic_of(visit: Visit) -> TopicPage:
    name, view = visit.names["topic"], visit.view()
    if name not in view.topics:
        if (reason := view.errors.get(name)) is not None:
            raise KafkaException(KafkaError(KafkaError._BAD_MSG, reason))
        raise UnknownTopic(name)
    return view.topics[name]


def messages(visit: Visit) -> Page:
    """Messages of a topic: the newest, or from a place on, or those that match."""
    view, given = _topic_of(visit), visit.given
    place, pattern = given.get("from", "").strip(), given.get("search", "")
    problem, found = "", None
    try:
        wanted = Wanted(
            _number(given.get("partition", ""), "partition", len(view.ranges) - 1),
            parse_place(place, visit.root.clock.time_ms()) if place else None,
            not place,
            _checked_pattern(pattern),
            _number(given.get("count", ""), "count", MESSAGES_MAX) or 50,
        )
        found = find(visit.root.store, visit.root.clock, view.name, wanted)
    except InvalidConfig as error:
        problem = error.error.str()
    values = {
        "topic": view,
        "found": found,
        "problem": problem,
        "partition": given.get("partition", ""),
        "place": place,
        "pattern": pattern,
        "count": given.get("count", "50"),
        "following": _following(found.rows) if found is not None and place else None,
    }
    return Page("messages.html", values)


def _following(rows: Sequence[Row]) -> int | None:
    """The offset behind the rows of one partition; None for rows of several, and without rows."""
    return (
        max(row.offset for row in rows) + 1 if len({row.partition for row in rows}) == 1 else None
    )


def _number(text: str, name: str, most: int) -> int | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal() or len(text) > 9 or int(text) > most:
        raise InvalidConfig(f"{name} must be a number up to {most}", key=name)
    return int(text)


def _checked_pattern(pattern: str) -> str:
    if len(pattern) > PATTERN_CHARS:
        raise InvalidConfig(
            f"the search has {len(pattern)} characters; use {PATTERN_CHARS} at most", key="search"
        )
    return pattern


def groups(visit: Visit) -> Page:
    """All groups."""
    return Page("groups.html", {"view": visit.view()}, live="_groups.html")


def group(visit: Visit) -> Page:
    """A group: members, owners and lag."""
    view = _group_of(visit)
    values = {"group": view, "chart": chart(view.lags, lambda value: as_count(round(value)))}
    return Page("group.html", values, live="_group.html")


def _group_of(visit: Visit) -> GroupPage:
    name, view = visit.names["group"], visit.view()
    if name not in view.groups:
        reason = view.errors.get(f"group {name}")
        code = KafkaError.GROUP_ID_NOT_FOUND if reason is None else KafkaError._BAD_MSG
        raise KafkaException(KafkaError(code, reason or f"group {name!r} does not exist"))
    return view.groups[name]


def queues(visit: Visit) -> Page:
    """All share groups."""
    values = {"view": visit.view(), "now_ms": visit.root.clock.time_ms()}
    return Page("queues.html", values, live="_queues.html")


def queue(visit: Visit) -> Page:
    """A share group: what it has not finished, and who holds messages."""
    name, view = visit.names["group"], visit.view()
    if name not in view.queues:
        reason = f"share group {name!r} does not exist"
        raise KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND, reason))
    values = {"queue": view.queues[name], "now_ms": visit.root.clock.time_ms()}
    return Page("queue.html", values, live="_queue.html")


def maintenance(visit: Visit) -> Page:
    """What a round of maintenance would do first. Changes nothing."""
    lines: list[str] = []
    counts = Maintenance(visit.root.store, visit.root.clock, notify=lines.append).plan()
    view = visit.view()
    waiting = [topic for topic in view.topics.values() if topic.files_to_compact]
    waiting.sort(key=lambda topic: -topic.files_to_compact)
    values = {
        "lines": lines,
        "failures": counts[FAILURES],
        "planned": counts["actions planned"],
        "waiting": waiting,
    }
    return Page("maintenance.html", values)


def transactions(visit: Visit) -> Page:
    """What each transactional id is doing."""
    found = survey(visit.root.store, visit.root.clock)
    values = {
        "ids": found.ids,
        "errors": {name: error.error.str() for name, error in found.errors.items()},
        "open": sum(of.state == OPEN for of in found.ids),
        "unpublished": sum(of.state == DECIDED for of in found.ids),
        "left_bytes": sum(files.bytes for files in found.left_files),
        "now_ms": visit.root.clock.time_ms(),
    }
    return Page("transactions.html", values)


def view_groups(visit: Visit) -> Page:
    """The groups of views, and how far each is."""
    found = survey_views(visit.root.store, visit.root.clock)
    return Page("view_groups.html", {"found": found, "now_ms": visit.root.clock.time_ms()})


def view_group(visit: Visit) -> Page:
    """A group of views: its graph, and the rows of one."""
    return _view_group(visit, is_checked=False)


def view_check(visit: Visit) -> Page:
    """The same with the proof that its views equal their SQL."""
    return _view_group(visit, is_checked=True)


def _view_group(visit: Visit, *, is_checked: bool) -> Page:
    store, clock, name = visit.root.store, visit.root.clock, visit.names["group"]
    tick = last_tick(store, name, clock)
    if tick is None:
        reason = f"there is no group of views {name!r} with a tick"
        raise KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND, reason))
    cut = opened(store, clock, name, tick.number)
    values: dict[str, object] = {
        "group": state_of(store, clock, name, cut.published),
        "now_ms": clock.time_ms(),
        "views": [],
        "graph": None,
        "selected": visit.given.get("view", ""),
        "rows": None,
        "mismatches": None,
        "problem": "",
    }
    sizes = {topic.name: topic.bytes for topic in visit.view().topics.values()}
    topics = [view_topic(name, view) for view in cut.views]
    try:
        views = views_of(program_of(store, clock, name, cut.published), cut.published)
        # The clock has no page to which its box could lead.
        reads = {view.name: [read for read in view.reads if read != CLOCK] for view in views}
        values |= {"views": views, "graph": view_graph(reads)}
        if values["selected"]:
            stored = sizes.get(view_topic(name, visit.given["view"]), 0)
            values["rows"] = rows_of(cut, visit.given["view"], stored)
        if is_checked:
            stored = sum(sizes.get(topic, 0) for topic in (*topics, *cut.published.inputs))
            values["mismatches"] = proof(cut, stored + tables_stored(cut))
    except InvalidConfig as error:  # without the extra, or too large
        values["problem"] = error.error.str()
    return Page("view_group.html", values)


def cost(visit: Visit) -> Page:
    """Requests a second and dollars a day, estimated from rates."""
    view = visit.view()
    values = {
        "view": view,
        "kinds": [
            (kind, view.cost.requests_per_s[kind], view.cost.dollars_by_kind()[kind])
            for kind in REQUEST_KINDS
        ],
        "chart": chart(view.dollars, lambda value: f"${value:,.2f}"),
    }
    return Page("cost.html", values, live="_cost.html")


PAGES: Mapping[str, Callable[[Visit], Page]] = {
    "": overview,
    "/topics/{topic}": topic,
    "/topics/{topic}/messages": messages,
    "/groups": groups,
    "/groups/{group}": group,
    "/queues": queues,
    "/queues/{group}": queue,
    "/views": view_groups,
    "/views/{group}": view_group,
    "/views/{group}/check": view_check,
    "/transactions": transactions,
    "/maintenance": maintenance,
    "/cost": cost,
}
"""The pages of a root by their addresses below it."""

SLOW = (messages, view_groups, view_group, view_check, transactions, maintenance)
"""The pages that read more than a view, and take memory and time for it."""

LIVE: Mapping[str, Callable[[Visit], Page]] = {
    path: PAGES[path]
    for path in (
        "",
        "/topics/{topic}",
        "/groups",
        "/groups/{group}",
        "/queues",
        "/queues/{group}",
        "/cost",
    )
}
"""Those with a part that is sent again with each view, which needs nothing but the view."""
