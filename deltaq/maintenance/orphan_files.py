"""Removing files that no table names: replaced and expired ones, and uploads that were never committed.

What is to go is seen twice. A *look* notes what lies in a topic's folder and is not in the topic at some version. When
a grace period is over, an entry in the log says that uploads from before that look are void, and then what is still
not in the topic is deleted. So no clock decides between a slow writer and its file: a writer that had begun before the
look reads that entry before it can commit, and uploads again (`TopicLog.append`).

A file may be committed after a look that found it, and leave the topic again before that look is due: it would not stay
for a grace period after it has left. So what has been in the topic since is dropped from what was noted before.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.store_errors import unavailable
from deltaq.maintenance.hashed_names import HashedNames, SeenLive
from deltaq.maintenance.rewrite import COMMIT_TIMEOUT_S
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.serde.json_text import strict_json
from deltaq.store import ObjectEntry, ObjectExists, ObjectMissing, Store, StoreError
from deltaq.store.parallel import delete_all
from deltaq.topics.log import TopicLog

__all__ = ["OrphanFileRemover", "OrphanScan", "is_due", "never_live", "parse_orphan_scan", "settled", "unreferenced"]

_log = logging.getLogger("deltaq.maintenance")

NAMES_OF_NOTE_MAX = 10_000
"""Files in one note; a look makes as many as it needs. To parse one keeps all other threads waiting."""

LISTED_AT_ONCE = 500
"""Files listed between two pauses."""

DELETES_AT_ONCE = 64
"""Files deleted between two pauses."""


@dataclass(frozen=True, slots=True)
class OrphanScan:
    """What was found in a topic's folder at `time_ms` that was not in the topic at `version`.

    `names` are relative to the folder, with the time of their last change by the store's clock, as is `noted_ms`: when
    the look was noted, `took_ms` after it began. A look that finds very much is noted in several parts.
    """

    version: int
    time_ms: int
    names: Mapping[str, int]
    noted_ms: int
    took_ms: int = 0
    part: int = 0


# --- rules -----------------------------------------------------------------------------------------------------------


def unreferenced(found: Mapping[str, int], live: Iterable[str], looks: Iterable[OrphanScan]) -> dict[str, int]:
    """Of the names found in a folder, those that are not live and were not noted yet; in order.

    `looks` are taken one by one: a busy topic's name hundreds of thousands of files.
    """
    left = dict(found)
    for name in live:
        left.pop(name, None)
    for look in looks:
        for name in look.names:
            left.pop(name, None)
    return {name: left[name] for name in sorted(left)}


def parse_orphan_scan(data: bytes, entry: ObjectEntry) -> OrphanScan:
    """The look noted in an object. ValueError, KeyError, TypeError for what is none, or names what is no data file."""
    body = strict_json(data)
    if not isinstance(body, dict) or not isinstance(found := body["names"], dict):
        raise TypeError("not an object with names")
    version, time_ms, took_ms = body["version"], body["time"], body["took"]
    if not all(isinstance(number, int) for number in (version, time_ms, took_ms, *found.values())):
        raise TypeError("a version or a time is no number")
    place = names.look_part(entry.key)
    if place is None or version != place[0] or took_ms < 0 or not all(map(_may_go, found)):
        raise ValueError("it is not of this place, or names what is no data file")
    return OrphanScan(version, time_ms, found, entry.modified_ms, took_ms, place[1])


def _note_of(version: int, time_ms: int, took_ms: int, found: Mapping[str, int]) -> bytes:
    return json.dumps({"version": version, "time": time_ms, "took": took_ms, "names": dict(found)}).encode()


def _may_go(name: str) -> bool:
    return names.holds_data(name) and not {"", ".", ".."} & set(name.split("/"))


def settled(look: OrphanScan, in_flight_ms: int) -> frozenset[str]:
    """The names that had been there for a while when the look began.

    Another one may have been committed right after the look, and have left the topic only lately.
    """
    newest_ms = look.noted_ms - look.took_ms - in_flight_ms
    return frozenset(name for name, modified_ms in look.names.items() if modified_ms <= newest_ms)


def never_live(look: OrphanScan, live_since: AbstractSet[str], in_flight_ms: int) -> OrphanScan:
    """The look without names that have been in the topic since, if any of them is settled. It can be noted anew, at
    any time: what is not settled is left out too, for another look."""
    names_settled = settled(look, in_flight_ms)
    if names_settled.isdisjoint(live_since):
        return look
    return replace(look, names={name: look.names[name] for name in sorted(names_settled - live_since)})


def is_due(look: OrphanScan, now_ms: int, grace_ms: int) -> bool:
    """Whether a look is so old that what it found may go."""
    return look.time_ms + grace_ms <= now_ms


# --- acting ----------------------------------------------------------------------------------------------------------


class OrphanFileRemover:
    """Sweeps one topic's folder. `log` keeps an index. `step`, if not the pacer's, is called after each piece of work,
    and may move the log on."""

    def __init__(
        self,
        store: Store,
        log: TopicLog,
        clock: Clock,
        pacer: Throttle,
        settings: MaintenanceSettings = DEFAULT_SETTINGS,
        step: Callable[[], object] | None = None,
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._step = step or pacer.step
        self._settings = settings
        self._looks_folder = names.looks_folder(log.folder)
        # Of the notes that are known: they need not be read again until they are due.
        self._times_ms: dict[str, int] = {}
        self._live_since = SeenLive()  # the last look

    def note_live(self) -> frozenset[str]:
        """To be called before anything is removed from the topic: what is in it now, which is returned, is to stay for
        a grace period after that, also where an earlier look has noted it."""
        live = self._live()
        self._live_since.add(live)
        return live

    def looks(self, *, drop: bool = True) -> Iterator[OrphanScan]:
        """The looks that were taken and are not dealt with yet, one by one. Raises Unavailable.

        Notes that cannot be read are dropped, or just passed over.
        """
        for entry in self._notes():
            if (look := self._read(entry, drop=drop)) is not None:
                yield look

    def due(self, now_ms: int, grace_ms: int) -> Iterator[OrphanScan]:
        """The looks that are so old that what they found may go, oldest first, one by one. Raises Unavailable."""
        notes = self._notes()
        self._times_ms = {key: self._times_ms[key] for entry in notes if (key := entry.key) in self._times_ms}
        for entry in notes:
            if self._times_ms.get(entry.key, 0) + grace_ms > now_ms:
                continue
            look = self._read(entry)
            self._step()  # whoever comes anew reads them all
            if look is not None:
                self._times_ms[entry.key] = look.time_ms
                if is_due(look, now_ms, grace_ms):
                    yield look

    def look(self) -> int:
        """Note what there is to go; how many files. Raises Unavailable, Corrupt, Stopped."""
        earlier, self._live_since = self._live_since, SeenLive()
        try:
            return self._look(earlier)
        except BaseException:
            earlier.absorb(self._live_since)
            self._live_since = earlier
            raise

    def _look(self, earlier: SeenLive) -> int:
        self._log.catch_up()
        self.note_live()
        noted = HashedNames(look.names for look in self._corrected(earlier))
        count = 0
        for found, began in self._unnoted(noted):
            self._log.catch_up()  # what was committed before we looked is in the topic by now
            live = self.note_live()
            count += self._note({name: found[name] for name in sorted(found.keys() - live)}, began)
        return count

    def _unnoted(self, noted: HashedNames) -> Iterator[tuple[dict[str, int], float]]:
        """What lies in the folder, and since when, without what was `noted`: as much at a time as one note has, and the
        uptime at which its listing began. Of a busy topic there are millions, most of them noted."""
        found: dict[str, int] = {}
        began = self._clock.uptime()
        try:
            for number, entry in enumerate(self._store.list(self._log.folder), 1):
                name = entry.key.removeprefix(self._log.folder)
                if names.holds_data(name) and name not in noted:
                    found[name] = entry.modified_ms
                if number % LISTED_AT_ONCE == 0:
                    self._step()
                if len(found) == NAMES_OF_NOTE_MAX:
                    yield found, began
                    found, began = {}, self._clock.uptime()
        except StoreError as error:
            raise unavailable(error) from error
        if found:
            yield found, began

    def _corrected(self, earlier: SeenLive) -> Iterator[OrphanScan]:
        """The looks, one by one, noted anew without what has been in the topic since."""
        for look in self.looks():
            live_since = earlier.among(look.names) | self._live_since.among(look.names)
            left = never_live(look, live_since, self._settings.in_flight_ms)
            if left is not look:
                self._replace(left)
            self._step()
            yield left

    def _replace(self, look: OrphanScan) -> None:
        """Put a look in the place of the one that was noted. That it counts as noted later makes no difference: what it
        names is settled."""
        key = names.look_key(self._log.folder, look.version, look.part)
        try:
            if look.names:
                self._store.put(key, _note_of(look.version, look.time_ms, look.took_ms, look.names))
            else:
                self._store.delete(key)
        except StoreError as error:
            raise unavailable(error) from error

    def _note(self, found: Mapping[str, int], began: float) -> int:
        """Note what was found by a listing that began at an uptime; how many files."""
        if not found:
            return 0
        version = self._log.version
        parts = [place[1] for note in self._notes() if (place := names.look_part(note.key)) and place[0] == version]
        part = max(parts, default=-1) + 1
        noting = self._clock.uptime()
        took_ms = math.ceil((noting - began) * 1000)
        data = _note_of(version, self._clock.time_ms(), took_ms, found)
        key = names.look_key(self._log.folder, version, part)
        try:
            self._store.create(key, data)
            if (self._clock.uptime() - noting) * 1000 > self._settings.in_flight_ms / 2:
                self._store.delete(key)  # noted so late, a file that was young when it was found passes for an old one
                return 0
        except ObjectExists:
            return 0  # somebody else has just looked too
        except StoreError as error:
            raise unavailable(error) from error
        self._step()
        return len(found)

    def plan(self, now_ms: int, grace_ms: int) -> tuple[int, int]:
        """(how many files of looks that are due may be deleted, how many would be noted then). Changes nothing.

        Raises Unavailable, Corrupt.
        """
        found = self._found()
        self._log.catch_up()
        live, deleted = self._live(), 0

        def looks_left() -> Iterator[OrphanScan]:
            nonlocal deleted
            for look in self.looks(drop=False):
                if look.version > self._log.version:
                    continue
                if is_due(look, now_ms, grace_ms):
                    doomed = settled(look, self._settings.in_flight_ms)
                    deleted += len(doomed - live)
                    yield replace(look, names=dict.fromkeys(doomed, 0))
                else:
                    yield never_live(look, live, self._settings.in_flight_ms)

        noted = unreferenced(found, live, looks_left())
        return deleted, len(noted)

    def _notes(self) -> list[ObjectEntry]:
        try:
            return list(self._store.list(self._looks_folder))
        except StoreError as error:
            raise unavailable(error) from error

    def sweep(self, look: OrphanScan) -> int:
        """Delete what a look found and is still not in the topic; how many files.

        Raises what `TopicLog.raise_uploads` raises; Stopped.
        """
        self._log.catch_up()
        if look.version > self._log.version:
            # Nobody has looked at what was not there: to void all uploads up to then would stop every writer for ever.
            self._drop(names.look_key(self._log.folder, look.version, look.part), "its version is not in the log yet")
            return 0
        noted = settled(look, self._settings.in_flight_ms)
        noted -= self._live_since.among(noted)
        head = self._log.head or self._log.ended
        if noted - self._live() and (head is None or head.uploads_from <= look.version):
            self._log.raise_uploads(look.version + 1, self._clock.monotonic() + COMMIT_TIMEOUT_S)
        # Only now is it settled: whoever had uploaded one of them has committed it, or never will.
        doomed = sorted(noted - self._live())
        try:
            for first in range(0, len(doomed), DELETES_AT_ONCE):
                keys = [self._log.folder + name for name in doomed[first : first + DELETES_AT_ONCE]]
                delete_all(self._store, self._clock, keys)
                self._step()
            self._store.delete(names.look_key(self._log.folder, look.version, look.part))
        except StoreError as error:
            raise unavailable(error) from error
        return len(doomed)

    def _found(self) -> dict[str, int]:
        """What lies in the folder, and since when."""
        folder = self._log.folder
        try:
            listed = {entry.key.removeprefix(folder): entry.modified_ms for entry in self._store.list(folder)}
        except StoreError as error:
            raise unavailable(error) from error
        return {name: modified_ms for name, modified_ms in listed.items() if names.holds_data(name)}

    def _live(self) -> frozenset[str]:
        folder = self._log.folder
        return frozenset(file.segment.key.removeprefix(folder) for file in self._log.index.files.values())

    def _read(self, entry: ObjectEntry, *, drop: bool = True) -> OrphanScan | None:
        """A look; None if somebody else has just dealt with it. One that cannot be read is dropped: another is taken
        instead."""
        try:
            return parse_orphan_scan(self._store.get(entry.key), entry)
        except ObjectMissing:
            return None
        except StoreError as error:
            raise unavailable(error) from error
        except (ValueError, KeyError, TypeError) as error:
            if drop:
                self._drop(entry.key, str(error))
            return None

    def _drop(self, key: str, reason: str) -> None:
        _log.warning("a damaged note of files to be removed is dropped key=%r reason=%s", key, reason)
        try:
            self._store.delete(key)
        except StoreError as error:
            raise unavailable(error) from error
