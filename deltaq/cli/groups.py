"""`deltaq groups`: list, describe and delete consumer groups, and reset their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from deltaq.cli.arguments import Group, Groups
from deltaq.cli.command import (
    Command,
    Commands,
    Option,
    UsageError,
    Yes,
    confirm,
    fail,
    finish,
)
from deltaq.cli.deletion import report_deleted
from deltaq.cli.queues import queue_rows
from deltaq.cli.resets import PLACES, Execute, ResetTopics, report_resets
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.errors import KafkaException
from deltaq.units import as_count, as_lag

if TYPE_CHECKING:
    from deltaq.tools.offset_resets import Shift
    from deltaq.tools.positions import Place

_VERBS = Commands("List, describe and delete consumer groups, and reset their offsets.")


@_VERBS.add("list")
def list_groups(session: CliSession) -> None:
    """List groups with their type, their state and how far they are behind.

    The LAG of a consumer group is the number of offsets between what is committed and the ends of
    the topics, - where it is not known: where a partition with records has no committed offset. For
    a share group it is the number of records that are not finished.
    """
    found = session.admin.list_consumer_groups().result()
    groups = [listing.group_id for listing in found.valid]
    lags = session.admin.consumer_group_lag(groups) if groups else {}
    rows: list[dict[str, Any]] = []
    for group, future in lags.items():
        row: dict[str, Any] = {"group": group, "type": "consumer"}
        rows.append(row)
        try:
            lag = future.result()
        except KafkaException as error:  # such as that of a topic which cannot be read
            row["error"] = error.error.str()
        else:
            topics = sorted({partition.topic for partition in lag.partitions})
            row |= {"state": lag.state.name, "lag": lag.lag, "topics": topics}
    queues, _ = queue_rows(session)  # what cannot be listed is in both answers
    rows += [{**row, "type": "share"} for row in queues]
    rows.sort(key=lambda row: row["group"])
    texts = [Column(name) for name in ("group", "type", "state")]
    columns = [*texts, Column("lag", as_lag), Column("topics", _names)]
    if broken := sum("error" in row for row in rows):
        columns.append(Column("error"))
    session.out.rows(columns, rows)
    for unlisted in found.errors:
        session.out.note(unlisted.error.str())
    if broken:
        fail(f"the lag of {broken} of {len(rows)} groups cannot be read")
    if found.errors:
        finish(1)


def _names(topics: list[str] | None) -> str:
    return ", ".join(topics or ())


@_VERBS.add("describe")
def describe_group(session: CliSession, group: Group) -> None:
    """Describe a group: its members, and for each partition what is committed and how far the group
    is behind.
    """
    about = session.admin.describe_consumer_groups([group])[group].result()
    lag = session.admin.consumer_group_lag([group])[group].result()
    if about.state.name == "DEAD":
        fail(f"group {group!r} does not exist")
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host,
            "instance": member.group_instance_id,
            "partitions": [
                f"{tp.topic}:{tp.partition}" for tp in member.assignment.topic_partitions
            ],
        }
        for member in about.members
    ]
    partitions: list[dict[str, Any]] = [
        {
            "topic": part.topic,
            "partition": part.partition,
            "committed": part.committed,
            "start_offset": part.start_offset,
            "end_offset": part.end_offset,
            "lag": part.lag,
            "member": part.member_id,
        }
        for part in lag.partitions
    ]
    pending: list[dict[str, Any]] = [
        {
            "topic": offset.topic,
            "partition": offset.partition,
            "offset": offset.offset,
            "transactional_id": offset.transactional_id,
        }
        for offset in lag.pending
    ]
    if session.out.is_json:
        summary = {
            "group": group,
            "state": about.state.name,
            "assignor": about.partition_assignor,
            "lag": lag.lag,
        }
        parts = {"members": members, "partitions": partitions, "pending": pending}
        session.out.json({**summary, **parts})
        return
    session.out.fields(
        [
            ("Group", group),
            ("State", about.state.name),
            ("Assignor", about.partition_assignor or "none"),
            ("Lag", as_lag(lag.lag)),
        ]
    )
    session.out.line()
    numbers = [Column(name, as_count) for name in ("committed", "start_offset", "end_offset")]
    session.out.rows(
        [Column("topic"), Column("partition"), *numbers, Column("lag", as_lag), Column("member")],
        partitions,
    )
    if pending:
        session.out.line()
        places = [Column("topic"), Column("partition"), Column("offset", as_count, "PENDING")]
        session.out.rows([*places, Column("transactional_id")], pending)
    if members:
        session.out.line()
        texts = [Column(name) for name in ("member", "client", "host", "instance")]
        session.out.rows([*texts, Column("partitions", ", ".join)], members)


@_VERBS.add("delete")
def delete_groups(
    session: CliSession,
    groups: Groups,
    yes: Yes = False,
) -> None:
    """Delete groups and their committed offsets. A group with a live member is refused."""
    confirm(f"Delete the groups {', '.join(groups)} under {session.store.url}?", yes=yes)
    report_deleted(session, "group", session.admin.delete_consumer_groups(groups))


@_VERBS.add("reset-offsets")
def reset_offsets(
    session: CliSession,
    group: Group,
    topics: ResetTopics = None,
    to: Annotated[str | None, Option("--to", metavar="PLACE", help=PLACES)] = None,
    to_earliest: Annotated[
        bool, Option("--to-earliest", help="The same as --to beginning.")
    ] = False,
    to_latest: Annotated[bool, Option("--to-latest", help="The same as --to end.")] = False,
    shift_by: Annotated[
        int | None, Option("--shift-by", metavar="N", help="N offsets on; back if N is negative.")
    ] = None,
    from_file: Annotated[
        Path | None,
        Option(
            "--from-file",
            metavar="FILE",
            help="Lines of topic,partition,offset, as --export writes.",
        ),
    ] = None,
    export: Annotated[
        Path | None, Option("--export", metavar="FILE", help="Write the new offsets to this file.")
    ] = None,
    execute: Execute = False,
) -> None:
    """Set the committed offsets of a group without members. A dry run, unless --execute is given.

    Offsets outside of what a topic holds are moved to its beginning or end.
    """
    from deltaq.tools import offset_resets  # noqa: PLC0415 - `deltaq --help` needs no clients

    target = _target(session, to, to_earliest, to_latest, shift_by, from_file)
    committed = offset_resets.committed_offsets(session.admin, group)
    if not topics and from_file is None and not committed:
        raise UsageError(
            f"group {group!r} has no committed offsets: name the topics to begin with by --topic"
        )
    resets = offset_resets.plan_resets(
        session.store, session.clock, committed, target, topics or ()
    )
    # First: a file that cannot be written must not hide that offsets were committed.
    if export is not None:
        offset_resets.write_resets(export, resets)
    if execute and resets:
        offset_resets.commit_resets(session.admin, group, resets)
    report_resets(session, resets, "committed", execute=execute)


def _target(
    session: CliSession,
    to: str | None,
    to_earliest: bool,
    to_latest: bool,
    shift_by: int | None,
    from_file: Path | None,
) -> Place | Shift | dict[tuple[str, int], int]:
    """The one target that the options name. Raises UsageError for none or several."""
    from deltaq.tools.offset_resets import Shift, read_resets  # noqa: PLC0415 - `deltaq --help` needs no clients
    from deltaq.tools.positions import parse_place  # noqa: PLC0415 - as above

    places = [
        place
        for place in (to, "beginning" if to_earliest else None, "end" if to_latest else None)
        if place
    ]
    if len(places) + (shift_by is not None) + (from_file is not None) != 1:
        raise UsageError(
            "say where to: one of --to, --to-earliest, --to-latest, --shift-by, --from-file"
        )
    if from_file is not None:
        return read_resets(from_file)
    if shift_by is not None:
        return Shift(shift_by)
    return parse_place(places[0], session.clock.time_ms())


COMMANDS: Mapping[str, Command] = {"groups": _VERBS}
