"""Where a read begins and ends: the options for offsets and times, with the precedence of Spark's
Kafka source.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from deltaq.config.declare import INT64_MAX
from deltaq.names import check_topic
from deltaq.spark.given import GivenOptions, json_object, refuse

_log = logging.getLogger("deltaq.spark")

STRATEGY = "startingOffsetsByTimestampStrategy"

PerPartition: TypeAlias = "Mapping[str, Mapping[int, int]]"
"""Topic -> partition -> number."""


class Edge(IntEnum):
    """An end of a partition. The value is its number in offsets given as JSON."""

    EARLIEST = -2
    LATEST = -1


@dataclass(frozen=True, slots=True)
class Moment:
    """The first record of each partition with this timestamp (ms since 1970 UTC) or a later one.

    `times_ms` is one time, or a time for every partition. A partition without such a record begins
    or ends at its end with `or_latest`; otherwise it is an error.
    """

    times_ms: int | PerPartition
    or_latest: bool

    def time_ms(self, topic: str, partition: int) -> int:
        """The time for a partition."""
        return self.times_ms if isinstance(self.times_ms, int) else self.times_ms[topic][partition]


Bound: TypeAlias = "Edge | Moment | PerPartition"
"""Where reading begins or ends. A mapping gives an offset or an edge for every partition."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound, and the option that it comes from."""

    option: str
    bound: Bound


def parse_bound(given: GivenOptions, side: Literal["starting", "ending"]) -> Limit | None:
    """The start or the end of a read; None if no option says it. Raises InvalidConfig.

    As in Kafka, one time for all partitions takes precedence over times for each one, and these
    over offsets.
    """
    moment, moments, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    texts = {
        name: text for name in (moment, moments, offsets) if (text := given.text(name)) is not None
    }
    or_latest = side == "ending" or _strategy(given) == "latest"
    if not texts:
        return None
    used, *unused = texts
    for name in unused:
        _log.info("option has no effect beside another one name=%s used=%s", name, used)
    if used == moment:
        return Limit(used, Moment(given.number(used, low=0) or 0, or_latest))
    if used == moments:
        example = (
            "use JSON with a time in milliseconds for each partition, such as"
            ' {"orders":{"0":1700000000000}}'
        )
        return Limit(used, Moment(_per_partition(used, texts[used], example, lowest=0), or_latest))
    word = texts[used].strip().upper()
    if word in Edge.__members__:
        return Limit(used, Edge[word])
    example = (
        'use earliest, latest, or JSON such as {"orders":{"0":23,"1":-2}} (-2 is earliest, -1'
        " latest)"
    )
    return Limit(used, _per_partition(used, texts[used], example, lowest=Edge.EARLIEST))


def _strategy(given: GivenOptions) -> str:
    text = (given.text(STRATEGY) or "error").lower()
    if text not in ("error", "latest"):
        refuse(STRATEGY, text, "use error or latest")
    return text


def _per_partition(name: str, text: str, example: str, *, lowest: int) -> PerPartition:
    numbers: dict[str, dict[int, int]] = {}
    for topic, of_topic in json_object(name, text, example).items():
        if not isinstance(of_topic, dict) or not all(
            re.fullmatch("[0-9]{1,9}", partition)
            and type(number) is int
            and lowest <= number <= INT64_MAX
            for partition, number in of_topic.items()
        ):
            refuse(name, text, example)
        numbers[check_topic(topic)] = {
            int(partition): number for partition, number in of_topic.items()
        }
    return numbers
