"""Holds on a topic: records that maintenance keeps for a reader that needs an earlier state of it.

A view publishes a result for a cut, and can be verified and replayed only while its inputs still
have what stood before the cut. Its holder writes a hold on each input before it chooses a cut, and
renews the hold by writing it again. Maintenance (`maintenance/topic_pass.py`) then

* compacts by key only what is below the lowest `ends`, as if all later records were too young;
* removes no record at or after the lowest `starts` because of its age or of the topic's size.

The deletion of records by an administrator, and that of the topic, are not held.

Removal that was planned before the hold was written may still be committed. For `ends` this makes
no difference: it was planned for offsets that no later cut is below. A holder with `starts`
compares them with the topic's start offsets when it needs the records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.store_errors import raising_unavailable
from deltaq.serde.json_text import compact_json, strict_json
from deltaq.store import ObjectMissing, ObjectTooLarge, Store
from deltaq.topics.state import Batch

_log = logging.getLogger("deltaq.topics")

HOLD_MAX_MS = 7 * 24 * 60 * 60 * 1000
"""Milliseconds after which a hold that was not renewed is void, so that a holder that has gone does
not keep records for ever.
"""

HOLD_BYTES_MAX = 1024 * 1024
"""A larger object is no hold. The offsets of 10,000 partitions take at most 400 kB."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """What one holder needs of a topic. `ends` and `starts` are offsets by partition; a partition
    that they lack, since the topic has grown, has offset 0.

    `ends`: key compaction keeps the state of the topic as of these offsets, and every later record.
    `starts`: retention keeps the records at or after these; None: retention is not held. `time_ms`:
    when the hold was written, by the holder's clock.
    """

    holder: str
    topic_id: str
    ends: tuple[int, ...]
    starts: tuple[int, ...] | None
    time_ms: int


@dataclass(frozen=True, slots=True)
class StoredHold:
    """An object in the folder of the holds; `hold` is None if it is malformed. `modified_ms` is by
    the store's clock, with which maintenance compares its own.
    """

    holder: str
    modified_ms: int
    hold: Hold | None


@dataclass(frozen=True, slots=True)
class HeldOffsets:
    """What the holds on a topic keep, all together: offsets by partition, as in `Hold`."""

    ends: tuple[int, ...]
    starts: tuple[int, ...] | None = None


# --- rules ---


def format_hold(hold: Hold) -> bytes:
    """The content of the object of a hold."""
    body = {
        "format": _FORMAT,
        "topic_id": hold.topic_id,
        "ends": hold.ends,
        "starts": hold.starts,
        "time": hold.time_ms,
    }
    return compact_json(body).encode()


def parse_hold(holder: str, data: bytes) -> Hold:
    """Parse the object of a hold. Raises ValueError, KeyError or TypeError if it is malformed."""
    body = strict_json(data)
    if not isinstance(body, dict):
        raise TypeError("not an object")
    if body["format"] != _FORMAT:
        raise ValueError(f"format {body['format']!r:.40}")
    topic_id, time_ms, starts = body["topic_id"], body["time"], body["starts"]
    if not isinstance(topic_id, str) or not _is_offset(time_ms):
        raise TypeError("topic_id is no text, or time is no time")
    return Hold(
        holder,
        topic_id,
        _offsets(body["ends"]),
        None if starts is None else _offsets(starts),
        time_ms,
    )


def _offsets(found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(map(_is_offset, found)):
        raise TypeError("not a list of offsets")
    return tuple(found)


def _is_offset(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def valid_holds(stored: Iterable[StoredHold], topic_id: str, now_ms: int) -> tuple[Hold, ...]:
    """The holds that count for a topic: well-formed, of this life of it, and not expired."""
    return tuple(
        found.hold
        for found in stored
        if found.hold is not None
        and found.hold.topic_id == topic_id
        and not _is_expired(found, now_ms)
    )


def dead_holds(
    stored: Iterable[StoredHold], topic_id: str | None, now_ms: int
) -> list[tuple[StoredHold, str]]:
    """The objects to be removed, and why. `topic_id` is that of the topic now, read after the
    objects were: an earlier one would make a hold on a topic created since look outlived. None: the
    topic was deleted.
    """
    dead = []
    for found in stored:
        if found.hold is not None and found.hold.topic_id != topic_id:
            dead.append((found, "it is of a topic that was deleted"))
        elif _is_expired(found, now_ms):
            days = HOLD_MAX_MS // (24 * 60 * 60 * 1000)
            dead.append((found, f"it was not renewed for {days} days"))
    return dead


def _is_expired(found: StoredHold, now_ms: int) -> bool:
    return found.modified_ms < now_ms - HOLD_MAX_MS


def held_offsets(holds: Sequence[Hold], next_offsets: Sequence[int]) -> HeldOffsets:
    """What the holds that were read at a position of the topic keep, all together.

    Without holds, `ends` are the position's `next_offsets`: a hold that is written afterwards has a
    cut at or after them.
    """
    count = len(next_offsets)
    starts = [hold.starts for hold in holds if hold.starts is not None]
    return HeldOffsets(
        _lowest([next_offsets, *(hold.ends for hold in holds)], count),
        _lowest(starts, count) if starts else None,
    )


def _lowest(several: Sequence[Sequence[int]], partitions: int) -> tuple[int, ...]:
    return tuple(
        min(_at(offsets, partition) for offsets in several) for partition in range(partitions)
    )


def _at(offsets: Sequence[int], partition: int) -> int:
    return offsets[partition] if partition < len(offsets) else 0


def is_below(batch: Batch, offsets: Sequence[int] | None) -> bool:
    """Whether all records of a batch are below its partition's offset in `offsets`; None: any
    are.
    """
    return offsets is None or batch.next_offset <= _at(offsets, batch.partition)


# --- acting ---


def put_hold(store: Store, topic: str, hold: Hold) -> None:
    """Write or renew a hold. Renew it well within `HOLD_MAX_MS`, with `ends` at or below every cut
    that is still needed.

    A new hold protects cuts at or after the end of the log as it is read after this call: earlier
    states may have been compacted meanwhile. A hold that was not renewed in time may be removed at
    any moment, even just after it is written again: hold under another name then. Raises
    InvalidConfig, Unavailable.
    """
    key = names.hold_key(topic, hold.holder)
    with raising_unavailable():
        store.put(key, format_hold(hold))


def read_holds(store: Store, topic: str, topic_id: str, clock: Clock) -> tuple[Hold, ...]:
    """The holds that count for a topic now, by holder. Raises Unavailable."""
    return valid_holds(stored_holds(store, topic), topic_id, clock.time_ms())


def stored_holds(store: Store, topic: str) -> tuple[StoredHold, ...]:
    """All holds on a topic, also expired, earlier and malformed ones, by holder: one listing, and a
    read of each. Raises Unavailable.
    """
    found = []
    with raising_unavailable():
        for entry in list(store.list(names.holds_folder(names.topic_folder(topic)))):
            holder = names.hold_holder(entry.key)
            if holder is None or entry.key != names.hold_key(topic, holder):
                continue  # another program's
            try:
                hold = parse_hold(holder, store.get_impatient(entry.key, HOLD_BYTES_MAX))
            except ObjectMissing:
                continue  # its holder has removed it meanwhile
            except (ValueError, KeyError, TypeError, ObjectTooLarge) as error:
                _log.warning("a malformed hold is ignored key=%r reason=%s", entry.key, error)
                hold = None
            found.append(StoredHold(holder, entry.modified_ms, hold))
    return tuple(found)


def remove_hold(store: Store, topic: str, holder: str) -> None:
    """Remove a hold; no error if there is none. Raises InvalidConfig, Unavailable."""
    key = names.hold_key(topic, holder)
    with raising_unavailable():
        store.delete(key)
