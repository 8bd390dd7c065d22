"""Commands that read messages: consume, cat, head, tail, grep, wc, stat, diff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from deltaq.cli.arguments import Topic, Topics, complete_group, complete_topic
from deltaq.cli.command import Argument, Command, Option, UsageError, fail, finish
from deltaq.cli.output import OutputForm
from deltaq.cli.printing import MessagePrinter
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.units import as_count, as_size, as_text, as_time, counted

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaq.consumer import Consumer
    from deltaq.tools.positions import Ranges
    from deltaq.tools.records import Record
    from deltaq.tools.statistics import MessageSize

_FORMAT = (
    "How to print a message: %s value, %k key, %h headers, %t topic, %p partition, %o offset, %T "
    "timestamp in ms, %S and %K lengths of value and key (-1 for none), \\n, \\t. The default is "
    "'%s\\n'."
)
_PLACE = (
    "beginning, end, an offset, -N for the last N, an age such as -2h, a time such as "
    "2026-11-25T09:30, @ms."
)

_ROWS_AT_ONCE = 10_000
"""Messages that are printed, and committed, in one step."""

Partitions = Annotated[
    list[int] | None,
    Option("--partition", "-p", min=0, help="Only this partition. May be repeated."),
]
Format = Annotated[str | None, Option("--format", "-f", metavar="FORMAT", help=_FORMAT)]
Table = Annotated[
    bool, Option("--table", help="Print a table, with a column for each field of a typed topic.")
]
From = Annotated[str, Option("--from", metavar="PLACE", help=f"Where to begin: {_PLACE}")]
Until = Annotated[
    str, Option("--until", metavar="PLACE", help=f"Where to end, exclusive: {_PLACE}")
]
Grep = Annotated[
    str | None, Option("--grep", metavar="REGEX", help="Only messages whose key or value matches.")
]
Json = Annotated[bool, Option("--json", help="Print JSON lines, as -o json.")]
Raw = Annotated[
    bool,
    Option(
        "--raw",
        help="Print the bytes of values that have a schema of the registry, in place of JSON.",
    ),
]


def _ranges(
    session: CliSession, topic: str, start: str, end: str, partitions: Iterable[int] | None
) -> Ranges:
    # Here, as in other commands: `deltaq --help` needs no clients.
    from deltaq.tools.positions import offset_ranges, parse_place  # noqa: PLC0415 - as above

    now_ms = session.clock.time_ms()
    first, after = parse_place(start, now_ms), parse_place(end, now_ms, end=True)
    return offset_ranges(session.topic(topic), first, after, partitions or None)


def _printer(
    session: CliSession, topic: str, form: str | None, *, raw: bool, table: bool = False
) -> MessagePrinter:
    schema = session.topic(topic).describe().schema
    decode = None if raw or schema is not None else session.decoder().record
    return MessagePrinter(session.out, topic, schema, form, table=table, decode=decode)


# --- consume ---


@dataclass(frozen=True)
class _Filter:
    """Which of the messages that are read are printed."""

    pattern: str | None = None
    ignore_case: bool = False
    invert: bool = False

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from deltaq.tools.reading import matching  # noqa: PLC0415 - as above

        if self.pattern is None:
            return batch
        return matching(batch, self.pattern, ignore_case=self.ignore_case, invert=self.invert)


_ALL = _Filter()


def _print(
    printer: MessagePrinter,
    batches: Iterable[pa.RecordBatch],
    wanted: _Filter = _ALL,
    count: int | None = None,
) -> int:
    """Print up to `count` matching messages; how many."""
    printed = 0
    if count is None or count > 0:
        for batch in batches:
            rows = wanted.rows(batch)
            if count is not None:
                rows = rows.slice(0, count - printed)
            printer.print(rows)
            printed += rows.num_rows
            if printed == count:
                break
    printer.end()
    return printed


def consume(
    session: CliSession,
    topic: Topic,
    start: From = "end",
    until: Until = "",
    at_end: Annotated[
        bool, Option("--exit", "-e", help="End when all messages that there are now are read.")
    ] = False,
    count: Annotated[
        int | None, Option("--count", "-n", min=0, help="End after so many messages.")
    ] = None,
    timeout: Annotated[
        float | None, Option("--timeout", min=0, help="End after so many seconds without one.")
    ] = None,
    group: Annotated[
        str | None,
        Option(
            "--group",
            "-g",
            help="Read as a member of this group, and commit.",
            autocompletion=complete_group,
        ),
    ] = None,
    partitions: Partitions = None,
    form: Format = None,
    table: Table = False,
    grep: Grep = None,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Print messages as they come. Ctrl-C ends it.

    With --group, the offsets of printed messages are committed, and --from says where to begin if
    there are none: beginning or end.
    """
    if json:
        session.out.form = OutputForm.JSON
    wanted = _Filter(grep)
    is_endless = not (until or at_end or count is not None or timeout is not None)
    if table and (is_endless or group is not None):
        raise UsageError(
            "--table needs an end and no --group: add --exit, --until, --count or --timeout"
        )
    if group is not None:
        if until or at_end or partitions:
            raise UsageError(
                "a member of a group reads what the group assigns: leave out --until, --exit, "
                "--partition"
            )
        _consume_as_member(
            session,
            topic,
            group,
            start,
            timeout,
            _printer(session, topic, form, raw=raw),
            wanted,
            count,
        )
        return
    ranges = _ranges(session, topic, start, until or "end", partitions)
    printer = _printer(session, topic, form, raw=raw, table=table)
    if until or at_end:
        from deltaq.tools.reading import read  # noqa: PLC0415 - `deltaq --help` needs no clients

        batches = read(session.topic(topic), ranges)
    else:
        starts = {partition: start for partition, (start, _) in ranges.items()}
        batches = follow(session, topic, starts, timeout)
    _print(printer, batches, wanted, count)


def _consume_as_member(
    session: CliSession,
    topic: str,
    group: str,
    start: str,
    timeout: float | None,
    printer: MessagePrinter,
    wanted: _Filter,
    count: int | None,
) -> None:
    """Print the messages of a group's partitions, and commit after each batch that was printed."""
    if start not in ("beginning", "earliest", "end", "latest"):
        raise UsageError(
            "with --group, --from is beginning or end: it applies where nothing is committed"
        )
    reset = "earliest" if start in ("beginning", "earliest") else "latest"
    with session.consumer(group, **{"auto.offset.reset": reset}) as consumer:
        consumer.subscribe([topic])
        while count is None or count > 0:
            batch = _next_batch(
                consumer, timeout, _ROWS_AT_ONCE if count is None else min(count, _ROWS_AT_ONCE)
            )
            if batch is None:
                return
            rows = wanted.rows(batch)
            printer.print(rows)
            consumer.commit(asynchronous=False)
            count = None if count is None else count - rows.num_rows


def follow(
    session: CliSession, topic: str, positions: dict[int, int], timeout: float | None
) -> Iterator[pa.RecordBatch]:
    """Batches from these offsets on, as they come, until none comes for `timeout` seconds."""
    from deltaq.message import TopicPartition  # noqa: PLC0415 - `deltaq --help` needs no clients

    # Records that retention removes before they are read are skipped, and the others are not.
    with session.consumer("deltaq-command-line", **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(
            [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        )
        while (batch := _next_batch(consumer, timeout, _ROWS_AT_ONCE)) is not None:
            yield batch


def _next_batch(consumer: Consumer, timeout: float | None, rows: int) -> pa.RecordBatch | None:
    batch = consumer.consume_arrow(rows, timeout=-1 if timeout is None else timeout)
    return None if batch is None else batch.drop_columns(["_topic"])


# --- cat, head, tail, grep ---


def cat(
    session: CliSession,
    topic: Topic,
    start: From = "beginning",
    until: Until = "end",
    partitions: Partitions = None,
    form: Format = None,
    table: Table = False,
    raw: Raw = False,
) -> None:
    """Print the messages that a topic has now, each partition in order."""
    from deltaq.tools.reading import read  # noqa: PLC0415 - `deltaq --help` needs no clients

    ranges = _ranges(session, topic, start, until, partitions)
    printer = _printer(session, topic, form, raw=raw, table=table)
    _print(printer, read(session.topic(topic), ranges))


Count = Annotated[int, Option("--count", "-n", min=0, help="How many messages.")]


def head(
    session: CliSession,
    topic: Topic,
    count: Count = 10,
    partitions: Partitions = None,
    form: Format = None,
    table: Table = False,
    raw: Raw = False,
) -> None:
    """Print the first messages of a topic."""
    from deltaq.tools.reading import first  # noqa: PLC0415 - `deltaq --help` needs no clients

    ranges = _ranges(session, topic, "beginning", "end", partitions)
    printer = _printer(session, topic, form, raw=raw, table=table)
    _print(printer, first(session.topic(topic), ranges, count), count=count)


def tail(
    session: CliSession,
    topic: Topic,
    count: Count = 10,
    go_on: Annotated[
        bool, Option("--follow", "-f", help="Go on with new messages until Ctrl-C.")
    ] = False,
    partitions: Partitions = None,
    form: Annotated[str | None, Option("--format", metavar="FORMAT", help=_FORMAT)] = None,
    table: Table = False,
    timeout: Annotated[
        float | None, Option("--timeout", min=0, help="With -f: end after so many idle seconds.")
    ] = None,
    raw: Raw = False,
) -> None:
    """Print the last messages of a topic by their timestamps, and with -f those that come after."""
    from deltaq.tools.reading import last  # noqa: PLC0415 - `deltaq --help` needs no clients

    ranges = _ranges(session, topic, "beginning", "end", partitions)
    printer = _printer(session, topic, form, raw=raw, table=table)
    found = last(session.topic(topic), ranges, count)
    _print(printer, found.to_batches())
    if go_on:
        after = {partition: end for partition, (_, end) in ranges.items()}
        _print(_printer(session, topic, form, raw=raw), follow(session, topic, after, timeout))


def grep(
    session: CliSession,
    pattern: Annotated[
        str, Argument(help="A regular expression (syntax of RE2).", metavar="REGEX")
    ],
    topic: Topic,
    start: From = "beginning",
    until: Until = "end",
    ignore_case: Annotated[
        bool, Option("--ignore-case", "-i", help="Ignore upper and lower case.")
    ] = False,
    invert: Annotated[
        bool, Option("--invert-match", "-v", help="Print messages that do not match.")
    ] = False,
    only_count: Annotated[
        bool, Option("--count", "-c", help="Print only how many messages match.")
    ] = False,
    partitions: Partitions = None,
    form: Format = None,
    table: Table = False,
    raw: Raw = False,
) -> None:
    """Print the messages whose key or value matches. The status is 1 if none does.

    The columns of a typed topic are searched as text.
    """
    from deltaq.tools.reading import read  # noqa: PLC0415 - `deltaq --help` needs no clients

    ranges = _ranges(session, topic, start, until, partitions)
    wanted = _Filter(pattern, ignore_case, invert)
    batches = read(session.topic(topic), ranges)
    if only_count:
        found = sum(wanted.rows(batch).num_rows for batch in batches)
        session.out.line(str(found))
    else:
        found = _print(_printer(session, topic, form, raw=raw, table=table), batches, wanted)
    if not found:
        finish(1)


# --- wc, stat, diff ---


def wc(
    session: CliSession, topics: Topics, start: From = "beginning", until: Until = "end"
) -> None:
    """Count the messages and bytes of topics. Reads all of them, so gaps of compaction are not
    counted.
    """
    from deltaq.tools.statistics import stats  # noqa: PLC0415 - `deltaq --help` needs no clients

    rows: list[dict[str, Any]] = []
    for topic in topics:
        found = stats(session.topic(topic), _ranges(session, topic, start, until, None))
        rows.append({"topic": topic, "messages": found.messages, "bytes": found.bytes})
    if len(rows) > 1 and not session.out.is_json:
        rows.append(
            {
                "topic": "total",
                **{key: sum(row[key] for row in rows) for key in ("messages", "bytes")},
            }
        )
    session.out.rows(
        [Column("messages", as_count), Column("bytes", as_count), Column("topic")], rows
    )


def stat(
    session: CliSession, topic: Topic, start: From = "beginning", until: Until = "end"
) -> None:
    """Show how many messages a topic has, how large they are, and where the smallest and the
    largest is.
    """
    from deltaq.tools.statistics import stats  # noqa: PLC0415 - `deltaq --help` needs no clients

    found = stats(session.topic(topic), _ranges(session, topic, start, until, None))
    if session.out.is_json:
        about = {**asdict(found), "average_bytes": found.average_bytes}
        for name in ("by_schema", "by_partition"):
            about[name] = dict(sorted(about[name].items()))
        session.out.json({"topic": topic, **about})
        return
    session.out.fields(
        [
            ("Topic", topic),
            ("Messages", as_count(found.messages)),
            ("Tombstones", as_count(found.tombstones)),
            ("Without key", as_count(found.without_key)),
            ("Bytes", as_size(found.bytes)),
            ("Average", as_size(found.average_bytes)),
            ("Smallest", _shown(found.smallest)),
            ("Largest", _shown(found.largest)),
            ("First", as_time(found.first_timestamp)),
            ("Last", as_time(found.last_timestamp)),
            *([("Schemas", _counts(found.by_schema))] if found.by_schema else ()),
            ("Partitions", _counts(found.by_partition)),
        ]
    )


def _counts(found: Mapping[int, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(found.items()))


def _shown(size: MessageSize | None) -> str:
    if size is None:
        return ""
    return f"{as_size(size.bytes)} in partition {size.partition} at offset {size.offset}"


def diff(
    session: CliSession,
    left: Annotated[str, Argument(help="A topic.", metavar="LEFT", autocompletion=complete_topic)],
    right: Annotated[
        str,
        Argument(
            help="The topic to compare with it.", metavar="RIGHT", autocompletion=complete_topic
        ),
    ],
    right_root: Annotated[
        str | None, Option("--right-root", metavar="ROOT", help="The root of RIGHT, if another.")
    ] = None,
    start: From = "beginning",
    until: Until = "end",
    count: Annotated[
        int, Option("--count", "-n", min=0, help="Print no more differences than this.")
    ] = 100,
    raw: Raw = False,
) -> None:
    """Compare two topics, message by message at the same partition and offset. The status is 1 if
    they differ.

    A line with < is a message of LEFT, one with > a message of RIGHT.
    """
    from deltaq.tools.differences import diff as differences  # noqa: PLC0415 - as above

    other = session if right_root is None else session.at(right_root)
    ranges = _ranges(session, left, start, until, None), _ranges(other, right, start, until, None)
    decoders = [None if raw else of.decoder().record for of in (session, other)]
    found = 0
    for found, difference in enumerate(
        differences(session.topic(left), other.topic(right), *ranges), 1
    ):
        if found > count:
            fail(f"more than {counted(count, 'difference')}: see --count")
        records = zip(decoders, (difference.left, difference.right), strict=True)
        _print_difference(
            session,
            left,
            right,
            *(decode(record) if record and decode else record for decode, record in records),
        )
    if found:
        finish(1)


def _print_difference(
    session: CliSession, left: str, right: str, ours: Record | None, theirs: Record | None
) -> None:
    from deltaq.tools.records import RegistryValue, as_json, json_text  # noqa: PLC0415 - as above

    pairs = ((left, ours), (right, theirs))
    if session.out.is_json:
        shown = [None if record is None else as_json(record, topic) for topic, record in pairs]
        session.out.json_line({"left": shown[0], "right": shown[1]})
        return
    for mark, (_, record) in zip("<>", pairs, strict=True):
        if record is not None:
            time = as_time(record.timestamp if record.timestamp >= 0 else None)
            about: list[Any] = [f"{record.partition}:{record.offset}", time, as_text(record.key)]
            headers = ",".join(f"{name}={as_text(value)}" for name, value in record.headers)
            value = record.value
            text = json_text(value.value) if isinstance(value, RegistryValue) else value
            session.out.line(" ".join([mark, *about, as_text(headers), as_text(text)]))


COMMANDS: Mapping[str, Command] = {
    "consume": consume,
    "cat": cat,
    "head": head,
    "tail": tail,
    "grep": grep,
    "wc": wc,
    "stat": stat,
    "diff": diff,
}
