"""Where reading begins and ends: an offset, a time, or so many records from the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from deltaq.errors import InvalidConfig, UnknownTopic
from deltaq.message import OFFSET_END
from deltaq.topic import Topic
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.state import TopicHead


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` offsets of each partition."""

    count: int


Place: TypeAlias = "int | datetime | Last | None"
"""An offset, the first record of a time or later, or the last records. None: where the partition
begins, or ends.
"""

Ranges: TypeAlias = "dict[int, tuple[int, int]]"
"""Partition -> [start, end) offsets."""

_EDGES: Mapping[str, tuple[Place, Place]] = {
    "beginning": (None, 0),
    "earliest": (None, 0),
    "end": (Last(0), None),
    "latest": (Last(0), None),
}
"""What the words mean where reading begins, and where it ends."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"-?(\d{1,9})([smhdw])")
_GRAMMAR = (
    "use an offset (42), the last records (-10), an age (-90s, -15m, -2h, -7d), a time "
    "(2026-11-25T09:30, UTC unless it says otherwise; or @ and milliseconds since 1970), beginning "
    "or end"
)


def parse_place(text: str, now_ms: int, *, end: bool = False) -> Place:
    """A place as people write it: `42`, `-10`, `-2h`, `2026-11-25T09:30`, `@1795258300560`,
    `beginning`, `end`.

    `now_ms` is the time to which ages refer, in milliseconds since 1970. With `end`, the place is
    where reading ends. Raises InvalidConfig for any other text.
    """
    given = text.strip().lower()
    if given in _EDGES:
        return _EDGES[given][end]
    try:
        if re.fullmatch(r"-?\d{1,18}", given):
            return Last(-int(given)) if given.startswith("-") else int(given)
        return _parsed_time(text.strip(), now_ms)
    except (ValueError, OverflowError):
        raise InvalidConfig(f"{text!r} is no place in a topic: {_GRAMMAR}", key="place") from None


def _parsed_time(text: str, now_ms: int) -> datetime:
    if found := _AGE.fullmatch(text.lower()):
        return _time(now_ms) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    if re.fullmatch(r"@\d{1,15}", text):
        return _time(int(text[1:]))
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _time(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def milliseconds(time: datetime) -> int:
    """A time in milliseconds since 1970, rounded up. Raises InvalidConfig for a time without a
    zone.
    """
    if time.tzinfo is None:
        raise InvalidConfig(
            f"{time} has no time zone: use, for example, datetime(..., tzinfo=UTC)", key="place"
        )
    return -((datetime(1970, 1, 1, tzinfo=UTC) - time) // timedelta(milliseconds=1))


def offset_ranges(
    topic: Topic, start: Place = None, end: Place = None, partitions: Iterable[int] | None = None
) -> Ranges:
    """The offsets between two places, by partition, within what the topic holds now.

    Places outside of a partition are moved to its nearer end, so that one offset fits partitions of
    any length. Raises UnknownTopic (also for a partition), Corrupt, Incompatible, Unavailable.
    """
    lookup = TopicLookup(topic.store, topic.clock)
    head = lookup.head(topic.name)
    chosen = sorted(set(range(head.partitions) if partitions is None else partitions))
    for partition in chosen:
        if not 0 <= partition < head.partitions:
            raise UnknownTopic(topic.name, partition=partition)
    starts = offsets_at(lookup, topic.name, head, dict.fromkeys(chosen, start))
    ends = offsets_at(lookup, topic.name, head, dict.fromkeys(chosen, end), end=True)
    return {
        partition: (starts[partition], max(starts[partition], ends[partition]))
        for partition in chosen
    }


def offsets_at(
    lookup: TopicLookup,
    topic: str,
    head: TopicHead,
    places: Mapping[int, Place],
    *,
    end: bool = False,
) -> dict[int, int]:
    """The offset of each partition's place, within what `head` holds. Raises as
    `TopicLookup.offsets_for_times`.
    """
    timed = [(p, milliseconds(place)) for p, place in places.items() if isinstance(place, datetime)]
    answers = lookup.offsets_for_times(topic, timed) if timed else []
    by_time = {partition: answer for (partition, _), answer in zip(timed, answers, strict=True)}
    found = {}
    for partition, place in places.items():
        first, after = head.start_offsets[partition], head.next_offsets[partition]
        if place is None:
            offset = after if end else first
        elif isinstance(place, Last):
            offset = after - place.count
        elif isinstance(place, datetime):
            answer = by_time[partition]
            if isinstance(answer, UnknownTopic):
                raise answer
            offset = after if answer == OFFSET_END else answer
        else:
            offset = place
        found[partition] = min(max(offset, first), after)
    return found
