"""`deltaq schemas`: list, show, register, check and delete schemas of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from deltaq.cli.arguments import pairs
from deltaq.cli.command import Argument, Command, Commands, Option, UsageError, Yes, confirm, fail
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.errors import InvalidConfig
from deltaq.units import as_count, counted

if TYPE_CHECKING:
    from deltaq.schema_registry import Schema

_VERBS = Commands("List, show, register, check and delete schemas of the registry.")

_TYPES = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}

Subject = Annotated[str, Argument(help="A subject, such as orders-value.", metavar="SUBJECT")]
File = Annotated[
    Path, Argument(help="A file with the schema: .avsc, .json or .proto.", metavar="FILE")
]
_Type = Annotated[
    str | None,
    Option(
        "--type",
        metavar="TYPE",
        help="AVRO, JSON or PROTOBUF, where the file's name does not say so.",
    ),
]
_References = Annotated[
    list[str] | None,
    Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that this one refers to by the name. May be repeated.",
    ),
]
_Version = Annotated[
    int | None, Option("--version", "-v", min=1, help="The version; none: the latest.")
]


@_VERBS.add("list")
def list_schemas(
    session: CliSession,
    pattern: Annotated[
        str, Argument(help="Only subjects whose name matches, as in 'orders*'.", metavar="PATTERN")
    ] = "*",
) -> None:
    """List subjects with their versions, and the id and type of the latest one."""
    registry = session.registry()
    rows = []
    for subject in sorted(name for name in registry.get_subjects() if fnmatchcase(name, pattern)):
        latest = registry.get_latest_version(subject)
        rows.append(
            {
                "subject": subject,
                "versions": registry.get_versions(subject),
                "id": latest.schema_id,
                "type": latest.schema.schema_type,
                "compatibility": registry.get_compatibility(subject),
            }
        )
    numbers = [Column("versions", lambda found: ", ".join(map(str, found))), Column("id", as_count)]
    session.out.rows([Column("subject"), *numbers, Column("type"), Column("compatibility")], rows)
    if not rows:
        session.out.note("no subjects" if pattern == "*" else f"no subject matches {pattern!r}")


@_VERBS.add("show")
def show_schema(
    session: CliSession,
    subject: Annotated[str, Argument(help="A subject, or the id of a schema.", metavar="SUBJECT")],
    version: _Version = None,
) -> None:
    """Print a schema: the latest version of a subject, another version, or the schema of an id."""
    registry = session.registry()
    if subject.isascii() and subject.isdecimal():
        if version is not None:
            raise UsageError("--version is for subjects: an id names one schema")
        found = registry.get_schema(int(subject))
        about = {"id": int(subject), **found.to_dict()}
    else:
        registered = registry.get_version(subject, "latest" if version is None else version)
        found, about = registered.schema, registered.to_dict()
    if session.out.is_json:
        session.out.json(about)
    else:
        session.out.line(found.schema_str)


@_VERBS.add("register")
def register_schema(
    session: CliSession,
    subject: Subject,
    file: File,
    kind: _Type = None,
    references: _References = None,
) -> None:
    """Register a schema as the next version of a subject. One that the subject has already keeps
    its version.
    """
    registered = session.registry().register_schema_full_response(
        subject, _schema(file, kind, references)
    )
    if session.out.is_json:
        session.out.json(
            {"subject": subject, "version": registered.version, "id": registered.schema_id}
        )
    session.out.done(f"version {registered.version} of {subject}: schema {registered.schema_id}")


@_VERBS.add("check")
def check_schema(
    session: CliSession,
    subject: Subject,
    file: File,
    kind: _Type = None,
    references: _References = None,
) -> None:
    """Check whether a schema could be registered, by the subject's level. The status is 1 if not,
    with the reasons.
    """
    reasons = session.registry().incompatibilities(subject, _schema(file, kind, references))
    if session.out.is_json:
        session.out.json({"subject": subject, "compatible": not reasons, "reasons": reasons})
    for reason in () if session.out.is_json else reasons:
        session.out.line(reason)
    if reasons:
        fail(f"{file} is not compatible with {subject}: {counted(len(reasons), 'reason')}")
    session.out.done(f"{file} is compatible with {subject}")


@_VERBS.add("delete")
def delete_schema(
    session: CliSession,
    subject: Subject,
    version: _Version = None,
    permanent: Annotated[
        bool,
        Option(
            "--permanent",
            help="Remove what was deleted before: its messages cannot be decoded any more.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a subject, or one of its versions. Messages stay readable, unless it is deleted again
    with --permanent.
    """
    what = f"subject {subject}" if version is None else f"version {version} of subject {subject}"
    confirm(f"Delete {what}{' permanently' if permanent else ''}?", yes=yes)
    registry = session.registry()
    if version is None:
        deleted = registry.delete_subject(subject, permanent)
    else:
        deleted = [registry.delete_version(subject, version, permanent)]
    if session.out.is_json:
        session.out.json({"subject": subject, "versions": deleted, "permanent": permanent})
    session.out.done(f"deleted {what}: {counted(len(deleted), 'version')}")


def _schema(file: Path, kind: str | None, references: list[str] | None) -> Schema:
    """The schema in a file. Raises UsageError, InvalidConfig."""
    # Here: `deltaq --help` needs no clients.
    from deltaq.schema_registry import Schema, SchemaReference  # noqa: PLC0415 - as above

    found = _TYPES.get(file.suffix.lower(), "") if kind is None else kind.upper()
    if found not in _TYPES.values():
        raise UsageError(
            f"the type of {file} is not known: end its name with {', '.join(_TYPES)}, or give "
            "--type"
        )
    named = []
    for name, place in pairs(references, "--reference").items():
        subject, separator, version = place.rpartition(":")
        if not separator or not (version.isascii() and version.isdecimal()):
            raise UsageError(f"--reference {name}={place}: it is NAME=SUBJECT:VERSION")
        named.append(SchemaReference(name, subject, int(version)))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{file}: {error}", key="file") from None
    return Schema(text, found, named)


COMMANDS: Mapping[str, Command | Commands] = {"schemas": _VERBS}
