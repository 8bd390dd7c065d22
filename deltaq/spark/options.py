"""The options of `format("deltaq")`, with the names of Spark's Kafka source and sink. Parsing and checks, no I/O.

Spark passes all option names in lower case, so they are compared without case. Errors show them as documented.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Literal, NoReturn, TypeAlias

from deltaq.config import AdminConfig, ProducerConfig, parse_client_config
from deltaq.errors import InvalidConfig
from deltaq.names import check_topic
from deltaq.serde.json_text import strict_json

_log = logging.getLogger("deltaq.spark")

SOURCE_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "includeHeaders",
    "failOnDataLoss",
    "columns",
)
SINK_OPTIONS = ("topic", "columns", "txnAppId", "txnVersion")

_ROOT_OPTIONS = ("path", "root", "bootstrap.servers", "kafka.bootstrap.servers")
_OF_SPARK = ("checkpointlocation", "queryname")
_WITHOUT_BROKER = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)
"""Options of Spark's Kafka source that concern a consumer group or a broker. They have no effect."""

ColumnSet: TypeAlias = Literal["kafka", "table"]
_COLUMN_SETS: tuple[ColumnSet, ...] = ("kafka", "table")
_OFFSET_MAX = 2**63 - 1


class Edge(IntEnum):
    """An end of a partition. The value is its number in offsets given as JSON."""

    EARLIEST = -2
    LATEST = -1


@dataclass(frozen=True, slots=True)
class Moment:
    """The first record of each partition with this timestamp (ms since 1970 UTC) or a later one; else its end."""

    time_ms: int


Bound: TypeAlias = "Edge | Moment | Mapping[str, Mapping[int, int]]"
"""Where reading begins or ends. A mapping is topic -> partition -> offset or edge, and names every partition."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to read: those of `names`, or all whose full name matches `pattern`.

    With `assigned` (topic -> partitions) only these partitions of `names` are read, and none that is added later.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, frozenset[int]] | None = None

    def covers(self, topic: str, partition: int) -> bool:
        """Whether to read this partition of a topic in the subscription."""
        return self.assigned is None or partition in self.assigned[topic]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a read. `starting` and `ending` are None if the options were not given."""

    client: AdminConfig
    subscription: Subscription
    starting: Bound | None
    ending: Bound | None
    offsets_per_trigger: int | None
    min_partitions: int
    headers: bool
    fail_on_data_loss: bool
    columns: ColumnSet


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write. Without `topic` each row names its topic. `txn_*` make a write idempotent."""

    client: ProducerConfig
    topic: str | None
    columns: ColumnSet
    txn_app_id: str | None
    txn_version: int | None


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a batch or streaming read. Raises InvalidConfig with the option and the remedy."""
    given = _Given(options, SOURCE_OPTIONS)
    starting = _bound(given, "startingOffsets", "startingTimestamp")
    ending = _bound(given, "endingOffsets", "endingTimestamp")
    return SourceOptions(
        client=parse_client_config(AdminConfig, given.client()),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        offsets_per_trigger=given.number("maxOffsetsPerTrigger", low=1),
        min_partitions=given.number("minPartitions", low=1) or 1,
        headers=given.flag("includeHeaders", default=False),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        columns=_column_set(given),
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a batch or streaming write. Raises InvalidConfig with the option and the remedy."""
    given = _Given(options, SINK_OPTIONS)
    topic = given.text("topic")
    return SinkOptions(
        client=parse_client_config(ProducerConfig, given.client()),
        topic=None if topic is None else check_topic(topic),
        columns=_column_set(given),
        txn_app_id=given.text("txnAppId"),
        txn_version=given.number("txnVersion", low=0),
    )


class _Given:
    """The given options, by name in lower case."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        allowed = {name.lower() for name in known} | set(_ROOT_OPTIONS) | set(_OF_SPARK)
        for name in self._values:
            if name in _WITHOUT_BROKER:
                _log.info("option has no effect in deltaq name=%s", name)
            elif name not in allowed and not name.startswith(("kafka.", "store.")):
                raise _unknown(name, known)

    def client(self) -> dict[str, object]:
        """The configuration of a client: the root, `store.*`, and the settings prefixed `kafka.`."""
        roots = {self._values[name] for name in _ROOT_OPTIONS if name in self._values}
        if len(roots) != 1:
            what = "is missing" if not roots else "was given more than once, with different values"
            raise InvalidConfig(
                f'the root URL {what}: set one option "path", e.g. to /data/events or s3://bucket/prefix '
                '("kafka.bootstrap.servers" means the same)',
                key="path",
            )
        conf: dict[str, object] = {name: value for name, value in self._values.items() if name.startswith("store.")}
        for name, value in self._values.items():
            if name.startswith("kafka.") and name not in _ROOT_OPTIONS:
                conf[name.removeprefix("kafka.")] = value
        return conf | {"bootstrap.servers": roots.pop()}

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def flag(self, name: str, *, default: bool) -> bool:
        text = (self.text(name) or str(default)).lower()
        if text not in ("true", "false"):
            refuse(name, text, "use true or false")
        return text == "true"

    def number(self, name: str, *, low: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or not low <= int(text) <= _OFFSET_MAX:
            refuse(name, text, f"use a whole number of at least {low}")
        return int(text)


def refuse(name: str, value: object, remedy: str) -> NoReturn:
    """Raise InvalidConfig for the value of an option."""
    shown = str(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
    raise InvalidConfig(f'option "{name}" cannot be {shown!a}: {remedy}', key=name)


def needs_table_columns(topic: str) -> InvalidConfig:
    """The error for a typed topic that is read or written as Kafka's key and value."""
    return InvalidConfig(
        f'topic {topic!r} is typed: it has its own columns instead of a value; set option "columns" to "table"',
        key="columns",
    )


def _unknown(name: str, known: Iterable[str]) -> InvalidConfig:
    by_lower = {option.lower(): option for option in (*known, *_ROOT_OPTIONS)}
    near = get_close_matches(name, by_lower, n=1)
    hint = f'did you mean "{by_lower[near[0]]}"?' if near else f"known are {', '.join(known)}, store.* and kafka.*"
    return InvalidConfig(f'no such option: "{ascii(name[:60])[1:-1]}"; {hint}', key=name)


def _column_set(given: _Given) -> ColumnSet:
    text = (given.text("columns") or "kafka").lower()
    for columns in _COLUMN_SETS:
        if text == columns:
            return columns
    refuse("columns", text, f"use {' or '.join(_COLUMN_SETS)}")


def _subscription(given: _Given) -> Subscription:
    ways = [way for way in ("subscribe", "subscribePattern", "assign") if given.text(way) is not None]
    if len(ways) != 1:
        found = " and ".join(ways) or "none"
        raise InvalidConfig(
            f'set exactly one of the options "subscribe", "subscribePattern" and "assign", not {found}', key="subscribe"
        )
    text = given.text(ways[0]) or ""
    if ways[0] == "subscribe":
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            refuse("subscribe", text, "name one topic, or several separated by commas")
        return Subscription(tuple(dict.fromkeys(map(check_topic, names))))
    if ways[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            refuse("subscribePattern", text, f"it is not a regular expression: {error}")
        return Subscription(pattern=text)
    return _assigned(text)


def _assigned(text: str) -> Subscription:
    example = 'use JSON such as {"orders":[0,1],"payments":[2]}'
    body = _json("assign", text, example)
    assigned: dict[str, frozenset[int]] = {}
    for topic, partitions in body.items():
        if not isinstance(partitions, list) or not partitions:
            refuse("assign", text, example)
        if not all(type(number) is int and number >= 0 for number in partitions):
            refuse("assign", text, example)
        assigned[check_topic(topic)] = frozenset(partitions)
    return Subscription(tuple(assigned), assigned=assigned)


def _bound(given: _Given, offsets: str, timestamp: str) -> Bound | None:
    time_ms, text = given.number(timestamp, low=0), given.text(offsets)
    if time_ms is not None and text is not None:
        raise InvalidConfig(f'set one of the options "{offsets}" and "{timestamp}", not both', key=timestamp)
    if time_ms is not None:
        return Moment(time_ms)
    if text is None:
        return None
    if text.strip().upper() in Edge.__members__:
        return Edge[text.strip().upper()]
    return _offsets(offsets, text)


def _offsets(name: str, text: str) -> Mapping[str, Mapping[int, int]]:
    example = 'use earliest, latest, or JSON such as {"orders":{"0":23,"1":-2}} (-2 is earliest, -1 latest)'
    offsets: dict[str, dict[int, int]] = {}
    for topic, of_topic in _json(name, text, example).items():
        if not isinstance(of_topic, dict) or not all(
            re.fullmatch("[0-9]{1,9}", partition) and type(offset) is int and Edge.EARLIEST <= offset <= _OFFSET_MAX
            for partition, offset in of_topic.items()
        ):
            refuse(name, text, example)
        offsets[check_topic(topic)] = {int(partition): offset for partition, offset in of_topic.items()}
    return offsets


def _json(name: str, text: str, example: str) -> dict[str, object]:
    try:
        body = strict_json(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not body:
        refuse(name, text, example)
    return body
