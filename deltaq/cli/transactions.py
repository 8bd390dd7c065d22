"""`deltaq transactions`: list and describe transactional ids, and abort what they have open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from deltaq.cli.arguments import complete_transactional_id
from deltaq.cli.command import Argument, Command, Commands, Yes, confirm, fail
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.errors import printable
from deltaq.units import as_age, as_count, as_size, as_span, counted

if TYPE_CHECKING:
    from deltaq.tools.transactions import StagedFiles, TransactionalId

_VERBS = Commands("List and describe transactional ids, and abort what they have open.")

Id = Annotated[
    str,
    Argument(help="A transactional.id.", metavar="ID", autocompletion=complete_transactional_id),
]

ABORT_S = 60.0
"""Seconds for which an abort tries to write its entries."""


@_VERBS.add("list")
def list_transactions(session: CliSession) -> None:
    """List transactional ids: what each one does, since when, and to what.

    AGE is the time since an open transaction began to write, or else since the newest entry.
    """
    from deltaq.tools.transactions import survey  # noqa: PLC0415 - `deltaq --help` needs no clients

    found = survey(session.store, session.clock)
    rows: list[dict[str, Any]] = [_summary(session, of) for of in found.ids]
    rows += [
        {"transactional_id": name, "error": error.error.str()}
        for name, error in sorted(found.errors.items())
    ]
    columns = [
        Column("transactional_id"),
        Column("epoch"),
        Column("state"),
        Column("age_ms", as_age, "AGE"),
        Column("timeout_ms", lambda ms: "" if ms is None else as_span(ms), "TIMEOUT"),
        Column("client"),
        Column("topics", _names),
        Column("groups", _names),
    ]
    if found.errors:
        columns.append(Column("error"))
    session.out.rows(columns, rows)
    for files in found.left_files:
        session.out.note(f"of transactions that have ended: {_files(files)}")
    if found.errors:
        fail(f"{len(found.errors)} of {len(rows)} transactional ids cannot be read")


def _summary(session: CliSession, of: TransactionalId) -> dict[str, Any]:
    return {
        "transactional_id": of.name,
        "epoch": of.head.epoch,
        "state": of.state,
        "age_ms": of.age_ms(session.clock.time_ms()),
        "timeout_ms": of.head.timeout_ms,
        "client": of.head.client_id,
        "topics": of.topics,
        "groups": of.groups,
    }


def _names(found: list[str] | None) -> str:
    return ", ".join(found or ())


def _files(files: StagedFiles) -> str:
    return f"{counted(files.files, 'file')} with {as_size(files.bytes)} in topic {files.topic}"


@_VERBS.add("describe")
def describe_transaction(session: CliSession, transactional_id: Id) -> None:
    """Describe a transactional id: its newest decision and where that is published, pending offsets
    of groups, share groups with pending acknowledgements, and files that no decision names.
    """
    of = _found(session, transactional_id)
    missing = {*of.missing}
    decided: list[dict[str, Any]] = [
        {
            "topic": topic.topic,
            "records": topic.rows,
            "files": topic.files,
            "published": topic.topic not in missing,
        }
        for topic in of.decided
    ]
    pending, acknowledging, staged = _pending(of), _acknowledging(of), _staged(of)
    summary = _summary(session, of)
    if session.out.is_json:
        numbers = {"number": of.head.number, "unpublished": list(of.missing)}
        parts = {
            "decided": decided,
            "pending": pending,
            "acknowledging": acknowledging,
            "staged": staged,
        }
        session.out.json({**summary, **numbers, **parts})
        return
    session.out.fields(
        [
            ("Transactional id", of.name),
            ("State", of.state),
            ("Epoch", str(of.head.epoch)),
            ("Transactions", f"{of.head.number:,} of this epoch have ended"),
            ("Age", as_age(summary["age_ms"])),
            ("Timeout", as_span(of.head.timeout_ms)),
            ("Client", of.head.client_id),
            ("Groups", _names(of.groups) or "none"),
        ]
    )
    whose = [Column("epoch"), Column("number", as_count)]
    sizes = [Column("files", as_count), Column("bytes", as_size)]
    place = [Column("topic"), Column("partition"), Column("offset", as_count)]
    tables = (
        (
            decided,
            [Column("topic"), Column("records", as_count), sizes[0], Column("published", _yes)],
        ),
        (pending, [Column("group"), *place, *whose]),
        (acknowledging, [Column("group"), *whose]),
        (staged, [Column("topic"), *sizes, *whose, Column("open", _yes)]),
    )
    for rows, columns in tables:
        if rows:
            session.out.line()
            session.out.rows(columns, rows)


def _pending(of: TransactionalId) -> list[dict[str, Any]]:
    """The offsets that groups hold for it."""
    return [
        {
            "group": held.group,
            "topic": offset.topic,
            "partition": offset.partition,
            "offset": offset.offset,
            "epoch": held.pending.transaction.epoch,
            "number": held.pending.transaction.number,
        }
        for held in of.pending
        for offset in held.pending.offsets
    ]


def _acknowledging(of: TransactionalId) -> list[dict[str, Any]]:
    """The share groups that hold acknowledgements for it."""
    return [
        {
            "group": held.group,
            "epoch": held.transaction.epoch,
            "number": held.transaction.number,
        }
        for held in of.acknowledging
    ]


def _staged(of: TransactionalId) -> list[dict[str, Any]]:
    """The files that no decision names."""
    return [
        {
            "topic": files.topic,
            "files": files.files,
            "bytes": files.bytes,
            "epoch": None if files.transaction is None else files.transaction.epoch,
            "number": None if files.transaction is None else files.transaction.number,
            "open": files.transaction is not None,
        }
        for files in of.staged
    ]


def _yes(value: bool | None) -> str:
    return "yes" if value else "no"


def _found(session: CliSession, transactional_id: str) -> TransactionalId:
    from deltaq.tools.transactions import survey  # noqa: PLC0415 - `deltaq --help` needs no clients

    found = survey(session.store, session.clock, [transactional_id])
    for error in found.errors.values():
        raise error
    if not found.ids:
        fail(f"no producer has used transactional.id {transactional_id!r}")
    return found.ids[0]


@_VERBS.add("abort")
def abort_transaction(session: CliSession, transactional_id: Id, yes: Yes = False) -> None:
    """Abort the open transaction of a transactional id, and fence its producer by a new epoch.

    A transaction that is decided is published, not aborted. Files are removed by maintenance.
    """
    from deltaq.tools.transactions import abort  # noqa: PLC0415 - as above

    of = _found(session, transactional_id)
    session.out.note(_effect(of))
    question = f"Fence the producer of {printable(transactional_id)} under {session.store.url}?"
    confirm(question, yes=yes)
    head = abort(
        session.store, session.clock, transactional_id, session.clock.monotonic() + ABORT_S
    )
    session.out.done(f"transactional id {printable(transactional_id)} has epoch {head.epoch}")


def _effect(of: TransactionalId) -> str:
    """What an abort does, in one line."""
    parts = [f"publish a transaction to {_names(list(of.missing))}"] if of.missing else []
    parts += [f"drop {_files(files)}" for files in of.staged if files.transaction is not None]
    parts += [f"drop pending offsets of group {held.group}" for held in of.pending]
    parts += [f"give back messages of share group {held.group}" for held in of.acknowledging]
    client = f"client {of.head.client_id}" if of.head.client_id else "its client"
    return "; ".join([*parts, f"fence the producer of epoch {of.head.epoch} ({client})"])


COMMANDS: Mapping[str, Command] = {"transactions": _VERBS}
