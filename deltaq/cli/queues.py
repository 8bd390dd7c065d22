"""`deltaq queues`: list, describe and delete share groups, have them begin anew, and copy their
dead letters back.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Annotated, Any, TypeAlias

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
from deltaq.cli.resets import PLACES, Execute, ResetTopics, report_resets
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.errors import GroupInUse, KafkaException
from deltaq.message import TopicPartition
from deltaq.units import as_age, as_count, as_lag, counted

_VERBS = Commands(
    "List, describe and delete share groups, have them begin anew, and copy dead letters back."
)


_WAIT_S = 60.0

Wait: TypeAlias = Annotated[
    float,
    Option(
        "--timeout",
        min=0,
        help="Seconds for which it waits while members hold records. Those of one that has died "
        "are free after more than share.record.lock.duration.ms.",
    ),
]


@_VERBS.add("list")
def list_queues(session: CliSession) -> None:
    """List share groups with their state and how far they are behind.

    LAG is the number of records that are neither accepted nor archived, OLDEST the age of the first
    of them by its timestamp.
    """
    rows, errors = queue_rows(session)
    columns = [Column("group"), Column("state"), Column("lag", as_lag), _oldest(session)]
    session.out.rows([*columns, Column("topics", ", ".join)], rows)
    for error in errors:
        session.out.note(error.error.str())
    if errors:
        finish(1)


def queue_rows(session: CliSession) -> tuple[list[dict[str, Any]], list[KafkaException]]:
    """A row for each share group, and why others cannot be read."""
    found = session.admin.list_share_groups().result()
    ids = [listing.group_id for listing in found.valid]
    rows = []
    for group, future in (session.admin.describe_share_groups(ids) if ids else {}).items():
        about = future.result()
        row: dict[str, Any] = {"group": group, "state": about.state.name, "lag": about.lag}
        row["oldest_ms"] = about.oldest_ms
        row["topics"] = sorted({partition.topic for partition in about.partitions})
        rows.append(row)
    return rows, found.errors


def _oldest(session: CliSession) -> Column:
    """The age of the first record that is not finished."""
    now_ms = session.clock.time_ms()

    def age(oldest_ms: int | None) -> str:
        return "" if oldest_ms is None else as_age(max(0, now_ms - oldest_ms))

    return Column("oldest_ms", age, "OLDEST")


@_VERBS.add("describe")
def describe_queue(session: CliSession, group: Group) -> None:
    """Describe a share group: the members that hold records, and for each partition what is
    accepted, held, and waits to be delivered again.

    ACKNOWLEDGED and ARCHIVED count only what is finished out of order, above START OFFSET.
    """
    about = session.admin.describe_share_groups([group])[group].result()
    if about.state.name == "DEAD":
        fail(f"share group {group!r} does not exist")
    members = [{"member": each.member_id, "records": each.records} for each in about.members]
    partitions: list[dict[str, Any]] = [
        {
            "topic": part.topic,
            "partition": part.partition,
            "start_offset": part.start_offset,
            "next_offset": part.next_offset,
            "end_offset": part.end_offset,
            "acquired": part.acquired,
            "available": part.available,
            "delayed": part.delayed,
            "acknowledged": part.acknowledged,
            "archived": part.archived,
            "lag": part.lag,
            "oldest_ms": part.oldest_ms,
        }
        for part in about.partitions
    ]
    if session.out.is_json:
        summary: dict[str, Any] = {"group": group, "state": about.state.name, "lag": about.lag}
        summary["oldest_ms"] = about.oldest_ms
        session.out.json({**summary, "members": members, "partitions": partitions})
        return
    oldest = _oldest(session)
    session.out.fields(
        [
            ("Group", group),
            ("State", about.state.name),
            ("Lag", as_lag(about.lag)),
            ("Oldest", oldest.show(about.oldest_ms)),
        ]
    )
    session.out.line()
    offsets = [Column(name, as_count) for name in ("start_offset", "next_offset", "end_offset")]
    states = ("acquired", "available", "delayed", "acknowledged", "archived")
    counts = [Column(name, as_count) for name in states]
    session.out.rows(
        [
            Column("topic"),
            Column("partition"),
            *offsets,
            *counts,
            Column("lag", as_lag),
            oldest,
        ],
        partitions,
    )
    if members:
        session.out.line()
        session.out.rows([Column("member"), Column("records", as_count)], members)


@_VERBS.add("delete")
def delete_queues(
    session: CliSession,
    groups: Groups,
    yes: Yes = False,
    timeout: Wait = _WAIT_S,
) -> None:
    """Delete share groups with all that they have decided. A group whose members hold records is
    refused; the locks of members that have died are over after a while, see --timeout.
    """
    confirm(f"Delete the share groups {', '.join(groups)} under {session.store.url}?", yes=yes)
    deleted: dict[str, Future[None]] = {}
    left = list(groups)
    for seconds in _calls_within(timeout):
        deleted |= session.admin.delete_share_groups(left, request_timeout=seconds)
        left = [group for group in left if isinstance(deleted[group].exception(), GroupInUse)]
        if not left:
            break
    report_deleted(session, "share group", deleted)


@_VERBS.add("reset")
def reset_queue(
    session: CliSession,
    group: Group,
    to: Annotated[str, Option("--to", metavar="PLACE", help=PLACES)],
    topics: ResetTopics = None,
    execute: Execute = False,
    timeout: Wait = _WAIT_S,
) -> None:
    """Have a share group begin anew, whatever it has decided. A dry run, unless --execute is given.

    Records from the new offset on are delivered again. A group whose members hold records is
    refused; the locks of members that have died are over after a while, see --timeout.
    """
    from deltaq.tools.offset_resets import plan_resets  # noqa: PLC0415 - `deltaq --help` needs no clients
    from deltaq.tools.positions import parse_place  # noqa: PLC0415 - as above

    about = session.admin.describe_share_groups([group])[group].result()
    starts = {(part.topic, part.partition): part.start_offset for part in about.partitions}
    if not topics and not starts:
        raise UsageError(f"share group {group!r} has read nothing: name topics by --topic")
    place = parse_place(to, session.clock.time_ms())
    resets = plan_resets(session.store, session.clock, starts, place, topics or ())
    if execute and resets:
        wanted = [TopicPartition(reset.topic, reset.partition, reset.target) for reset in resets]
        for seconds in _calls_within(timeout):
            altered = session.admin.alter_share_group_offsets(
                group, wanted, request_timeout=seconds
            )
            if not isinstance(altered.exception(), GroupInUse):
                break
        altered.result()
    report_resets(session, resets, "start_offset", execute=execute)


def _calls_within(timeout_s: float) -> list[float]:
    """The time-outs of calls that follow each other, of which each may take an hour. The client
    knows in a later one what it has seen before.
    """
    from deltaq.admin.calls import TIMEOUT_S_MAX  # noqa: PLC0415 - `deltaq --help` needs no clients

    count, left = divmod(timeout_s, TIMEOUT_S_MAX)
    return [TIMEOUT_S_MAX] * int(count) + [left]


@_VERBS.add("redrive")
def redrive_queue(
    session: CliSession,
    group: Group,
    places: Annotated[
        list[str] | None,
        Option(
            "--letter",
            metavar="PARTITION:OFFSET",
            help="Only this dead letter; without it all of the group. May be repeated.",
        ),
    ] = None,
    execute: Annotated[
        bool, Option("--execute", help="Copy them back. Without it, only show them.")
    ] = False,
) -> None:
    """Copy dead letters of a share group back to the topics that they come from, each once. A dry
    run, unless --execute is given.

    All that reads these topics gets the records again. A letter that was copied back before is
    left. So is one that cannot be copied, for which STATE says why: a later run copies it once it
    can. The exit status is 1 then, and for a --letter that there is not.
    """
    from deltaq.tools.redrive import COPIED, Redrive  # noqa: PLC0415 - `deltaq --help` needs no clients

    wanted = None if not places else {_letter_place(text) for text in places}
    redrive = Redrive(session.store, group, session.clock)
    if execute:
        redrive.run(wanted)
    rows = [letter._asdict() for letter in redrive.letters(wanted)]
    numbers = [Column(name, as_count) for name in ("topic_partition", "topic_offset")]
    session.out.rows(
        [
            Column("partition"),
            Column("offset", as_count),
            Column("topic"),
            *numbers,
            Column("reason"),
            Column("state"),
        ],
        rows,
    )
    if not execute:
        session.out.note("dry run: nothing was changed; add --execute")
    missing = (wanted or set()) - {(row["partition"], row["offset"]) for row in rows}
    for partition, offset in sorted(missing):
        session.out.note(f"{redrive.topic} has no dead letter of {group} at {partition}:{offset}")
    left = sum(row["state"] != COPIED for row in rows) if execute else 0
    if left:
        session.out.note(f"{counted(left, 'dead letter')} could not be copied back")
    if missing or left:
        finish(1)


def _letter_place(text: str) -> tuple[int, int]:
    """Partition and offset of a dead letter. Raises UsageError."""
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise UsageError(f"--letter {text!r}: give partition and offset, as 0:17")
    return int(partition), int(offset)


COMMANDS: Mapping[str, Command] = {"queues": _VERBS}
