"""`deltaq copy`, `backup` and `restore`: topics and the offsets of groups in another root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from deltaq.cli.command import Argument, Command, Option, UsageError, fail, finish
from deltaq.cli.session import ROOT, CliSession, settings_of_file
from deltaq.cli.table import Column
from deltaq.units import as_count, counted

Topics = Annotated[
    list[str] | None,
    Option(
        "--topic", "-t", metavar="PATTERN", help="Only these topics, as 'orders*'. May be repeated."
    ),
]
Folder = Annotated[
    str, Argument(help="The folder of the backup, a root of its own.", metavar="FOLDER")
]


def copy(
    session: CliSession,
    source: Annotated[
        str, Argument(help="Folder or URL of the root to copy from.", metavar="SOURCE")
    ],
    target: Annotated[
        str, Argument(help="Folder or URL of the root to copy to.", metavar="TARGET")
    ],
    topics: Topics = None,
    groups: Annotated[
        bool, Option("--groups", help="Copy the committed offsets of all groups, too.")
    ] = False,
    schemas: Annotated[
        bool, Option("--schemas", help="Copy the schema registry, too, with its ids.")
    ] = False,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Go on as a mirror until Ctrl-C.")
    ] = False,
    source_config: Annotated[
        Path | None,
        Option(
            "--source-config", metavar="FILE", help="Settings for SOURCE, as in --command-config."
        ),
    ] = None,
    target_config: Annotated[
        Path | None,
        Option(
            "--target-config", metavar="FILE", help="Settings for TARGET, as in --command-config."
        ),
    ] = None,
) -> None:
    """Copy topics to another root, with the same offsets, timestamps, keys, values and headers.

    A copy that was interrupted goes on where it ended: run the same command again. Only copies may
    write the topics at the target.
    """
    confs = []
    for root, path, option in (
        (source, source_config, "--source-config"),
        (target, target_config, "--target-config"),
    ):
        own = {} if path is None else settings_of_file(path, option)
        confs.append({**session.conf, **own, ROOT: root})
    _copy(session, confs[0], confs[1], topics, groups=groups, schemas=schemas, follow=follow)


def backup(session: CliSession, folder: Folder, topics: Topics = None) -> None:
    """Copy topics, the offsets of groups and the schema registry to a folder. Run again, it adds
    what is new.
    """
    source = {**session.conf, ROOT: session.root}
    _copy(session, source, {ROOT: _checked_folder(folder)}, topics)


def restore(session: CliSession, folder: Folder, topics: Topics = None) -> None:
    """Copy topics, the offsets of groups and the schema registry from a backup. The root must not
    have them.
    """
    target = {**session.conf, ROOT: session.root}
    _copy(session, {ROOT: _checked_folder(folder)}, target, topics)


def _checked_folder(folder: str) -> str:
    # A bucket needs settings of its own, which these commands do not have.
    if "://" in folder and not folder.startswith("file://"):
        raise UsageError(
            "a backup is in a folder; for another root, use deltaq copy --groups --schemas"
        )
    return folder


def _copy(
    session: CliSession,
    source: Mapping[str, str],
    target: Mapping[str, str],
    topics: list[str] | None,
    *,
    groups: bool = True,
    schemas: bool = True,
    follow: bool = False,
) -> None:
    from deltaq.tools.copying import CopyReport  # noqa: PLC0415 - `deltaq --help` needs no clients
    from deltaq.tools.copying import copy as copy_topics  # noqa: PLC0415 - as above

    report = CopyReport()
    with session.out.progress("messages") as progress:
        try:
            copy_topics(
                source,
                target,
                topics or ("*",),
                groups=groups,
                schemas=schemas,
                follow=follow,
                notify=lambda found: progress(found.topic, found.copied, found.total),
                clock=session.clock,
                report=report,
            )
        except KeyboardInterrupt:
            if not follow:
                # A mirror ends only by an interrupt; a copy that was interrupted is incomplete.
                raise
    if session.out.is_json:
        failures = {name: error.error.str() for name, error in report.failures.items()}
        about = {
            "topics": report.topics,
            "groups": sorted(report.groups),
            "schemas": report.schemas,
        }
        session.out.json({**about, "failures": failures})
    else:
        rows = [{"topic": topic, "copied": count} for topic, count in report.topics.items()]
        session.out.rows([Column("topic"), Column("copied", as_count)], rows)
        for group in sorted(report.groups):
            session.out.line(f"group {group}: offsets copied")
        if report.schemas:
            session.out.line(f"schema registry: {counted(report.schemas, 'change')} copied")
    if not (report.topics or report.groups or report.schemas or report.failures or follow):
        fail(
            f"there is nothing to copy: no topic matches {', '.join(topics or ('*',))} under "
            f"{source[ROOT]}"
        )
    for name, error in report.failures.items():
        session.out.note(f"{name}: {error.error.str()}")
    if report.failures:
        finish(1)


COMMANDS: Mapping[str, Command] = {"copy": copy, "backup": backup, "restore": restore}
