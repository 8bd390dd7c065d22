"""`deltaq views`: run SQL views over topics, look at them, and prove them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from deltaq.cli.arguments import complete_views
from deltaq.cli.command import Argument, Command, Commands, Option, Yes, confirm, fail
from deltaq.cli.query_result import show_rows
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.units import as_age, as_count, counted

if TYPE_CHECKING:
    from deltaq.views.modes import Mode
    from deltaq.views.program import ViewProgram

_VERBS = Commands(
    "Run SQL views over topics, look at them, and prove them, with the extra [views]."
)

Group = Annotated[
    str,
    Argument(help="A group of views.", metavar="GROUP", autocompletion=complete_views),
]
At = Annotated[int | None, Option("--at", metavar="TICK", help="This tick, not the last one.")]


@_VERBS.add("run")
def run_views(
    session: CliSession,
    folder: Annotated[
        Path, Argument(help="A folder of files NAME.sql, one for each view.", metavar="FOLDER")
    ],
    group: Annotated[
        str | None, Option("--group", metavar="NAME", help="The group; else that of the folder.")
    ] = None,
    every: Annotated[
        float, Option("--every", metavar="SECONDS", help="How often to publish what has changed.")
    ] = 1.0,
    once: Annotated[bool, Option("--once", help="Publish once, and end.")] = False,
    retract: Annotated[
        bool,
        Option(
            "--retract-on-retention", help="Records that retention removes leave the views, too."
        ),
    ] = False,
    memory: Annotated[
        str | None,
        Option("--memory", metavar="SIZE", help="Memory for DuckDB, such as 4GB; more is on disk."),
    ] = None,
    state_dir: Annotated[
        Path | None,
        Option("--state-dir", metavar="FOLDER", help="Where state is that is on disk."),
    ] = None,
) -> None:
    """Publish the views of a folder while their topics change, until Ctrl-C.

    The file total.sql is the view total. A first line "-- key: account" names the columns that tell
    its rows apart, where the SQL does not. The file visits.input declares the columns of the topic
    visits, whose values are JSON. A second runner of the group ends the first.
    """
    from deltaq.views import Views  # noqa: PLC0415 - `deltaq --help` needs no clients

    views = Views.from_folder(folder, group=group, store=session.store, clock=session.clock)
    tick = views.run(
        every=every,
        until="now" if once else None,
        retract_on_retention=retract,
        memory=memory,
        state_dir=state_dir,
    )
    if tick is not None:
        session.out.done(f"group {views.group} is at tick {tick.number}")


@_VERBS.add("list")
def list_views(session: CliSession) -> None:
    """List the groups of views, with their last tick and how many records they are behind."""
    from deltaq.views.listing import groups, lags  # noqa: PLC0415 - as above
    from deltaq.views.ticks import last_tick  # noqa: PLC0415 - as above

    rows = []
    for group in groups(session.store):
        tick = last_tick(session.store, group, session.clock)
        if tick is None:
            continue  # it was deleted, or is about to begin
        behind = [lag.records for lag in lags(session.store, session.clock, tick)]
        rows.append(
            {
                "group": group,
                "tick": tick.number,
                "age_ms": session.clock.time_ms() - tick.time_ms,
                "lag": None if None in behind else sum(lag or 0 for lag in behind),
                "views": [*tick.views],
                "inputs": [*tick.inputs],
            }
        )
    columns = [
        Column("group"),
        Column("tick", as_count),
        Column("age_ms", as_age, "AGE"),
        Column("lag", as_count),
        Column("views", _names),
        Column("inputs", _names),
    ]
    session.out.rows(columns, rows)


def _names(found: list[str] | None) -> str:
    return ", ".join(found or ())


@_VERBS.add("describe")
def describe_views(session: CliSession, group: Group) -> None:
    """Describe a group of views: what each view reads, how the last tick has evaluated it, and the
    offsets of the inputs.
    """
    from deltaq.views.listing import lags  # noqa: PLC0415 - as above
    from deltaq.views.modes import mode_text  # noqa: PLC0415 - as above
    from deltaq.views.program import key_text, view_topic  # noqa: PLC0415 - as above
    from deltaq.views.reading import opened, program_of  # noqa: PLC0415 - as above

    cut = opened(session.store, session.clock, group, None)
    program = program_of(session.store, session.clock, group, cut.published)
    behind = {lag.topic: lag.records for lag in lags(session.store, session.clock, cut.published)}
    views: list[dict[str, Any]] = [
        {
            "view": view.name,
            "topic": view_topic(group, view.name),
            "key": None if view.key is None else [*view.key],
            "reads": [*view.reads],
            "mode": mode_text(by_rules=view.name in cut.published.ruled),
            "sql": view.sql,
        }
        for view in program.views
    ]
    inputs: list[dict[str, Any]] = [
        {"input": topic, "partition": partition, "offset": offset, "lag": behind[topic]}
        for topic, offsets in cut.offsets.items()
        for partition, offset in offsets.items()
    ]
    if session.out.is_json:
        session.out.json({"group": group, "tick": cut.tick, "views": views, "inputs": inputs})
        return
    session.out.fields(
        [("group", group), ("tick", str(cut.tick)), ("age", as_age(int(cut.age * 1000)))]
    )
    session.out.line()
    columns = [
        Column("view"),
        Column("topic"),
        Column("key", key_text),
        Column("reads", _names),
        Column("mode"),
    ]
    session.out.rows(columns, views)
    session.out.line()
    session.out.rows(
        [Column("input"), Column("partition"), Column("offset", as_count), Column("lag", as_count)],
        inputs,
    )


@_VERBS.add("read")
def read_view(
    session: CliSession,
    group: Group,
    view: Annotated[str, Argument(help="A view of the group.", metavar="VIEW")],
    at: At = None,
) -> None:
    """Print the rows of a view at the last tick, or at an earlier one."""
    from deltaq.views.reading import opened  # noqa: PLC0415 - as above

    show_rows(session, opened(session.store, session.clock, group, at)[view].to_arrow())


@_VERBS.add("explain")
def explain_views(session: CliSession, group: Group) -> None:
    """Explain a group of views: by which rules each is kept, and why one is evaluated in full."""
    from deltaq.views.explaining import explained  # noqa: PLC0415 - as above

    program = _program(session, group)
    modes: dict[str, Mode] = {view.name: "auto" for view in program.views}
    found = explained(program, modes, session.store, session.clock)
    rows = [
        {
            "view": of.view,
            "rules": None if of.refused else [f"{rule} ({about})" for rule, about in of.rules],
            "in_full": of.refused or None,
        }
        for of in found
    ]
    columns = [Column("view"), Column("rules", _rules), Column("in_full", _reason, "IN FULL")]
    session.out.rows(columns, rows)


def _rules(found: list[str] | None) -> str:
    return "none" if found is None else ", ".join(found) or "map"


def _reason(found: str | None) -> str:
    return found or "where that is quicker"


@_VERBS.add("check")
def check_views(session: CliSession, group: Group, at: At = None) -> None:
    """Prove a group of views: evaluate its SQL from nothing over the offsets of a tick, and
    compare.

    The status is 1 if a view differs.
    """
    from deltaq.views.checking import mismatches_at  # noqa: PLC0415 - as above
    from deltaq.views.reading import opened  # noqa: PLC0415 - as above

    cut = opened(session.store, session.clock, group, at)
    found = mismatches_at(cut)
    rows = [
        {"view": of.view, "missing": of.missing.num_rows, "wrong": of.wrong.num_rows}
        for of in found
    ]
    if session.out.is_json or found:
        session.out.rows(
            [Column("view"), Column("missing", as_count), Column("wrong", as_count)], rows
        )
    if found:
        differ = f"{counted(len(found), 'view')} of {group} differ"
        fail(f"{differ} from their SQL at tick {cut.tick}")
    session.out.done(f"{counted(len(cut.views), 'view')} equal their SQL at tick {cut.tick}")


@_VERBS.add("graph")
def graph_views(
    session: CliSession,
    group: Group,
    as_mermaid: Annotated[bool, Option("--mermaid", help="As a diagram of Mermaid.")] = False,
) -> None:
    """Print the graph of a group of views: below each topic the views that read it."""
    from deltaq.views.graph import mermaid, tree  # noqa: PLC0415 - as above

    program = _program(session, group)
    session.out.lines(mermaid(program).splitlines() if as_mermaid else tree(program))


def _program(session: CliSession, group: str) -> ViewProgram:
    from deltaq.views.reading import opened, program_of  # noqa: PLC0415 - as above

    cut = opened(session.store, session.clock, group, None)
    return program_of(session.store, session.clock, group, cut.published)


@_VERBS.add("delete")
def delete_views(session: CliSession, group: Group, yes: Yes = False) -> None:
    """Delete a group of views with the topics of its views. Its inputs stay."""
    from deltaq.views.listing import delete  # noqa: PLC0415 - as above
    from deltaq.views.ticks import last_tick  # noqa: PLC0415 - as above

    if last_tick(session.store, group, session.clock) is None:
        fail(f"there is no group of views {group!r}")
    confirm(f"Delete the group of views {group!r} with all of its topics?", yes=yes)
    topics = delete(session.store, session.clock, group)
    session.out.done(f"deleted {group} with {counted(len(topics), 'view')}")


COMMANDS: Mapping[str, Command] = {"views": _VERBS}
