"""`deltaq topics`: list, create, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from deltaq.cli.arguments import Topic, Topics, complete_topic, pairs
from deltaq.cli.command import Argument, Command, Commands, Option, UsageError, Yes, confirm, fail
from deltaq.cli.deletion import report_deleted
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.errors import KafkaException, TopicExists, UnknownTopic
from deltaq.units import as_age, as_count, as_size, counted

if TYPE_CHECKING:
    from deltaq.admin import ConfigEntry, ConfigResource
    from deltaq.topics.listing import TopicListing

T = TypeVar("T")

_VERBS = Commands("List, create, describe, alter and delete topics.")

_Config = Annotated[
    list[str] | None,
    Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic. May be repeated."),
]
_DryRun = Annotated[bool, Option("--dry-run", help="Check the request, change nothing.")]


# --- list and describe ---


@_VERBS.add("list")
def list_topics(
    session: CliSession,
    pattern: Annotated[
        str,
        Argument(
            help="Only topics whose name matches, as in 'orders*'.",
            metavar="PATTERN",
            autocompletion=complete_topic,
        ),
    ] = "*",
    names_only: Annotated[
        bool, Option("--names", help="Print the names alone, one per line.")
    ] = False,
) -> None:
    """List topics with their partitions, messages and bytes.

    MESSAGES counts offsets; key compaction leaves gaps, so a compacted topic may hold fewer
    messages.
    """
    # Here, as in other commands: `deltaq --help` needs no clients.
    from deltaq.topics.listing import topic_listings, topic_names  # noqa: PLC0415 - as above

    wanted = [name for name in topic_names(session.store) if fnmatchcase(name, pattern)]
    answers = topic_listings(session.store, session.clock, wanted)
    # A folder may be that of a deleted topic.
    found = {
        name: answer for name, answer in answers.items() if not isinstance(answer, UnknownTopic)
    }
    if names_only:
        session.out.lines(list(found))
        return
    rows = [_row(name, answer) for name, answer in found.items()]
    columns = [
        Column("topic"),
        Column("partitions", as_count),
        Column("messages", as_count),
        Column("bytes", as_size),
    ]
    if broken := {row["topic"]: row["error"] for row in rows if "error" in row}:
        columns.append(Column("error"))
    session.out.rows(columns, rows)
    if not rows:
        missing = "no topics" if pattern == "*" else f"no topic matches {pattern!r}"
        session.out.note(f"{missing} under {session.store.url}")
    if broken:
        fail(f"{len(broken)} of {len(rows)} topics cannot be read")


def _row(name: str, answer: TopicListing | KafkaException) -> dict[str, Any]:
    if isinstance(answer, KafkaException):
        return {"topic": name, "error": answer.error.str()}
    return {
        "topic": name,
        "partitions": answer.partitions,
        "messages": answer.offsets,
        "bytes": answer.bytes,
    }


@_VERBS.add("describe")
def describe_topic(session: CliSession, topic: Topic) -> None:
    """Describe a topic: its offsets by partition, its size, its columns, the settings that were
    changed, and the holds on it.
    """
    from deltaq.metadata import describe_topic as described  # noqa: PLC0415 - as above
    from deltaq.topics.holds import read_holds  # noqa: PLC0415 - as above

    found = described(session.store, session.clock, topic)
    holds = read_holds(session.store, topic, found.topic_id, session.clock)
    settings = _settings(session, topic)
    changed = {name: entry.value for name, entry in settings.items() if not entry.is_default}
    columns = (
        None
        if found.schema is None
        else [{"name": field.name, "type": str(field.type)} for field in found.schema.arrow]
    )
    partitions = [
        {
            "partition": partition.id,
            "start_offset": partition.start_offset,
            "next_offset": partition.next_offset,
            "messages": partition.next_offset - partition.start_offset,
        }
        for partition in found.partitions
    ]
    if session.out.is_json:
        about = {"topic": topic, "topic_id": found.topic_id, "version": found.version}
        size = {"files": found.files, "bytes": found.bytes}
        kept = [
            {name: value for name, value in asdict(hold).items() if name != "topic_id"}
            for hold in holds
        ]
        more = {"holds": kept, "partitions": partitions}
        session.out.json({**about, **size, "schema": columns, "config": changed, **more})
        return
    names = ", ".join(f"{column['name']}: {column['type']}" for column in columns or ())
    settings_changed = ", ".join(f"{name}={value}" for name, value in changed.items())
    now_ms = session.clock.time_ms()
    held = [f"{hold.holder}, {as_age(max(0, now_ms - hold.time_ms))} old" for hold in holds]
    session.out.fields(
        [
            ("Topic", topic),
            ("Topic id", found.topic_id),
            ("Version", as_count(found.version)),
            ("Size", f"{as_size(found.bytes)} in {counted(found.files, 'file')}"),
            ("Values", "bytes" if columns is None else names),
            ("Settings", settings_changed or "all at their defaults"),
            *([("Holds", "; ".join(held))] if held else []),
        ]
    )
    session.out.line()
    numbers = ("start_offset", "next_offset", "messages")
    session.out.rows(
        [Column("partition"), *(Column(number, as_count) for number in numbers)], partitions
    )


@_VERBS.add("configs")
def describe_configs(session: CliSession, topic: Topic) -> None:
    """Show all settings of a topic, and which of them were changed."""
    rows = [
        {"setting": name, "value": entry.value, "default": entry.is_default}
        for name, entry in sorted(_settings(session, topic).items())
    ]
    session.out.rows(
        [
            Column("setting"),
            Column("value"),
            Column("default", lambda is_so: "yes" if is_so else ""),
        ],
        rows,
    )


def _resource(topic: str) -> ConfigResource:
    from deltaq.admin import ConfigResource, ResourceType  # noqa: PLC0415 - as above

    return ConfigResource(ResourceType.TOPIC, topic)


def _sent(send: Callable[[], T]) -> T:
    """The futures of a request. Raises UsageError for numbers that no topic can have."""
    try:
        return send()
    except ValueError as error:
        raise UsageError(str(error)) from None


def _settings(session: CliSession, topic: str) -> Mapping[str, ConfigEntry]:
    resource = _resource(topic)
    return session.admin.describe_configs([resource])[resource].result()


# --- create, alter, delete ---


@_VERBS.add("create")
def create_topic(
    session: CliSession,
    topic: Topic,
    partitions: Annotated[
        int, Option("--partitions", "-p", min=1, help="Number of partitions.")
    ] = 1,
    config: _Config = None,
    if_not_exists: Annotated[
        bool, Option("--if-not-exists", help="Accept a topic that exists as it is.")
    ] = False,
    dry_run: _DryRun = False,
) -> None:
    """Create a topic of bytes."""
    from deltaq.admin import NewTopic  # noqa: PLC0415 - `deltaq --help` needs no clients

    new = NewTopic(topic, partitions, config=pairs(config, "--config"))
    try:
        _sent(lambda: session.admin.create_topics([new], validate_only=dry_run))[topic].result()
    except TopicExists:
        if not if_not_exists:
            raise
        session.out.done(f"topic {topic} exists")
    else:
        session.out.done(
            f"topic {topic} {'can be' if dry_run else 'was'} created with "
            f"{counted(partitions, 'partition')}"
        )


@_VERBS.add("alter")
def alter_topic(
    session: CliSession,
    topic: Topic,
    partitions: Annotated[
        int | None,
        Option("--partitions", "-p", min=1, help="New number of partitions: more than before."),
    ] = None,
    config: _Config = None,
    delete_config: Annotated[
        list[str] | None,
        Option(
            "--delete-config",
            metavar="NAME",
            help="A setting to return to its default. May be repeated.",
        ),
    ] = None,
    dry_run: _DryRun = False,
) -> None:
    """Change settings of a topic, or add partitions.

    More partitions change where new messages with a key go: consumers that rely on one partition
    per key see a key in two of them.
    """
    from deltaq.admin import (  # noqa: PLC0415 - as above
        AlterConfigOpType,
        ConfigEntry,
        NewPartitions,
    )

    setting = {
        name: (value, AlterConfigOpType.SET) for name, value in pairs(config, "--config").items()
    }
    changes = {**setting, **dict.fromkeys(delete_config or (), (None, AlterConfigOpType.DELETE))}
    if not changes and partitions is None:
        raise UsageError("nothing to change: give --config, --delete-config or --partitions")
    if changes:
        resource = _resource(topic)
        for name, (value, operation) in changes.items():
            resource.add_incremental_config(
                ConfigEntry(name, value, incremental_operation=operation)
            )
        altered = session.admin.incremental_alter_configs([resource], validate_only=dry_run)
        altered[resource].result()
    if partitions is not None:
        more = NewPartitions(topic, partitions)
        grown = _sent(lambda: session.admin.create_partitions([more], validate_only=dry_run))
        grown[topic].result()
    session.out.done(f"topic {topic} {'can be' if dry_run else 'was'} altered")


@_VERBS.add("delete")
def delete_topics(session: CliSession, topics: Topics, yes: Yes = False) -> None:
    """Delete topics and their messages. They cannot be restored."""
    confirm(f"Delete {', '.join(topics)} under {session.store.url}?", yes=yes)
    report_deleted(session, "topic", session.admin.delete_topics(topics))


COMMANDS: Mapping[str, Command] = {"topics": _VERBS}
