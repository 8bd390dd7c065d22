"""`deltaq setup`, `doctor`, `maintain` and `sql`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from deltaq.cli.arguments import complete_views
from deltaq.cli.command import Argument, Command, Option, UsageError, fail, finish
from deltaq.cli.messages import From, Until
from deltaq.cli.query_result import show_rows
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column

if TYPE_CHECKING:
    import pyarrow as pa


def setup(session: CliSession) -> None:
    """Prepare the root for use: on S3 and MinIO its bucket, a lifecycle rule and policies. Can be
    repeated.

    Needs the credentials of an administrator, and the extra [minio] for a bucket.
    """
    from deltaq.store.bucket_setup import setup as set_up  # noqa: PLC0415 - `deltaq --help` needs no clients

    try:
        done = set_up(session.root, session.conf)
    except ImportError as missing:
        fail(str(missing))
    if session.out.is_json:
        session.out.json(asdict(done))
    else:
        session.out.line(str(done))


def doctor(session: CliSession) -> None:
    """Examine a root: store, permissions, clock, topics, groups, files, maintenance. Says what to
    do.

    The status is 1 if something is wrong. What is due can wait. Writes a few bytes, to prove that
    the store is safe.
    """
    from deltaq.tools.doctor import WRONG, examine  # noqa: PLC0415 - `deltaq --help` needs no clients

    findings = list(examine(session.store, session.clock))
    columns = [Column("check"), Column("state"), Column("found"), Column("remedy")]
    session.out.rows(columns, [asdict(finding) for finding in findings])
    if any(finding.state == WRONG for finding in findings):
        finish(1)


def maintain(
    session: CliSession,
    once: Annotated[
        bool, Option("--once", help="Run one round, then end: for scheduled jobs.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be done first; change nothing.")
    ] = False,
    interval: Annotated[
        float, Option("--interval", min=0.001, max=1e6, metavar="S", help="Seconds between rounds.")
    ] = 60.0,
) -> None:
    """Maintain all topics and groups: checkpoints, retention, compaction, clean-up. Goes on until
    Ctrl-C.

    Safe beside producers, consumers and other maintenance. The same as `python -m
    deltaq.maintenance`.
    """
    from deltaq.maintenance.report import FAILURES  # noqa: PLC0415 - `deltaq --help` needs no clients
    from deltaq.maintenance.run import run  # noqa: PLC0415 - as above

    about: dict[str, Any] = {
        "once": once,
        "dry_run": dry_run,
        "interval_s": interval,
        "conf": session.conf,
    }
    try:
        done = run(
            session.root, **about, store=session.store, clock=session.clock, notify=session.out.done
        )
    except KeyboardInterrupt:
        # A service ends only by an interrupt; a job that was interrupted is incomplete.
        finish(int(once))
    if session.out.is_json:
        session.out.json(dict(done))
    if done[FAILURES]:
        finish(1)


def sql(
    session: CliSession,
    query: Annotated[
        str, Argument(help="A query in DuckDB's SQL. Topics are its tables.", metavar="QUERY")
    ],
    start: From = "beginning",
    until: Until = "end",
    at: Annotated[
        str | None,
        Option(
            "--at",
            metavar="GROUP[@TICK]",
            help="The views of a group and their inputs as tables, at one cut.",
            autocompletion=complete_views,
        ),
    ] = None,
) -> None:
    """Query topics as tables, with the extra [sql].

    The columns are _partition, _offset, _timestamp, _key, _headers, and value or those of a typed
    topic. Bytes become text by decode(value), and fields of JSON by decode(value)->>'$.name'.
    """
    from deltaq.tools.positions import parse_place  # noqa: PLC0415 - `deltaq --help` needs no clients
    from deltaq.tools.sql import sql as queried  # noqa: PLC0415 - as above

    if at is not None:
        show_rows(session, _at_tick(session, at, query))
        return
    now_ms = session.clock.time_ms()
    places = parse_place(start, now_ms), parse_place(until, now_ms, end=True)
    show_rows(session, queried(session.store, query, *places, clock=session.clock))


def _at_tick(session: CliSession, at: str, query: str) -> pa.Table:
    from deltaq.views.reading import opened  # noqa: PLC0415 - as above

    group, _, tick = at.partition("@")
    if tick and not tick.isdecimal():
        raise UsageError(f"{at!r} is no group of views with a tick, such as bank@17")
    number = int(tick) if tick else None
    return opened(session.store, session.clock, group, number).sql(query)


COMMANDS: Mapping[str, Command] = {
    "setup": setup,
    "sql": sql,
    "doctor": doctor,
    "maintain": maintain,
}
