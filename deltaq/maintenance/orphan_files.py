"""Removal of orphan files, which no live version of a table names: replaced files, expired files,
abandoned uploads.

A *scan* records the files in a topic's folder that are not in the topic at some version. After a
grace period, a log entry declares all uploads from before the scan void, and the recorded files
that are still not in the topic are deleted. So a slow writer never loses a committed file, whatever
the clocks say: it reads that entry before it can commit, and uploads again (`TopicLog.append`).

A file that was committed after a scan, and left the topic before the scan is due, needs a grace
period of its own for its readers. So a file that has been live since a scan is dropped from that
scan.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.store_errors import raising_unavailable
from deltaq.maintenance.hashed_names import HashedNames, SeenLive
from deltaq.maintenance.rewrite import COMMIT_TIMEOUT_S
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.serde.json_text import strict_json
from deltaq.store import ObjectEntry, ObjectExists, ObjectMissing, ObjectTooLarge, Store
from deltaq.store.parallel import delete_all
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.transactions.resolution import resolve_files
from deltaq.work import Work

_log = logging.getLogger("deltaq.maintenance")

NAMES_OF_NOTE_MAX = 10_000
"""Maximum number of files in one note of a scan. Parsing a note blocks all other threads of the
process.
"""
NOTE_BYTES_MAX = 16 * 2**20
"""A larger note is dropped. A name has at most 255 bytes."""

LISTED_AT_ONCE = 500
"""Files listed between two pauses."""

DELETES_AT_ONCE = 64
"""Files deleted between two pauses."""


@dataclass(frozen=True, slots=True)
class OrphanScan:
    """The files found in a topic's folder at `time_ms` that were not in the topic at `version`.

    `names` maps each name, relative to the folder, to the time of its last change. That time and
    `noted_ms` are by the store's clock. The scan was recorded at `noted_ms`, `took_ms` after it
    began, in one note or several (`part`). All times are in milliseconds.
    """

    version: int
    time_ms: int
    names: Mapping[str, int]
    noted_ms: int
    took_ms: int = 0
    part: int = 0


# --- rules ---


def parse_orphan_scan(data: bytes, entry: ObjectEntry) -> OrphanScan:
    """Parse a recorded scan. Raises ValueError, KeyError or TypeError if it is malformed or names
    no data file.
    """
    body = strict_json(data)
    if not isinstance(body, dict) or not isinstance(found := body["names"], dict):
        raise TypeError("not an object with names")
    version, time_ms, took_ms = body["version"], body["time"], body["took"]
    if not all(isinstance(number, int) for number in (version, time_ms, took_ms, *found.values())):
        raise TypeError("a version or a time is no number")
    place = names.orphan_scan_part(entry.key)
    if place is None or version != place[0] or took_ms < 0 or not all(map(_may_go, found)):
        raise ValueError("it is not of this place, or names what is no data file")
    return OrphanScan(version, time_ms, found, entry.modified_ms, took_ms, place[1])


def _note_of(version: int, time_ms: int, took_ms: int, found: Mapping[str, int]) -> bytes:
    return json.dumps(
        {"version": version, "time": time_ms, "took": took_ms, "names": dict(found)}
    ).encode()


def _may_go(name: str) -> bool:
    return names.holds_data(name) and not {"", ".", ".."} & set(name.split("/"))


def older_than(scan: OrphanScan, in_flight_ms: int) -> frozenset[str]:
    """The files that were at least `in_flight_ms` old when the scan began. A younger file may have
    been committed right after the scan, and may have left the topic only recently.
    """
    newest_ms = scan.noted_ms - scan.took_ms - in_flight_ms
    return frozenset(name for name, modified_ms in scan.names.items() if modified_ms <= newest_ms)


def never_live(scan: OrphanScan, live_since: AbstractSet[str], in_flight_ms: int) -> OrphanScan:
    """The scan without the names that have been live since; the same object if none of those old
    enough has been.

    A changed scan has only names that were old enough (`older_than`), so it can be recorded again
    at any time.
    """
    old_names = older_than(scan, in_flight_ms)
    if old_names.isdisjoint(live_since):
        return scan
    return replace(scan, names={name: scan.names[name] for name in sorted(old_names - live_since)})


def is_due(scan: OrphanScan, now_ms: int, grace_ms: int) -> bool:
    """Whether the grace period of a scan is over."""
    return scan.time_ms + grace_ms <= now_ms


# --- acting ---


class OrphanFileRemover:
    """Finds and removes the orphan files of one topic. `log` keeps an index, and may move between
    pieces of work.
    """

    def __init__(
        self,
        store: Store,
        log: MaintenanceLog,
        clock: Clock,
        settings: MaintenanceSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._settings = settings
        self._orphan_scans_folder = names.orphan_scans_folder(log.folder)
        # Note key -> time of its scan: a known note need not be read again until it is due.
        self._times_ms: dict[str, int] = {}
        self._live_since = SeenLive()  # the names that have been live since the last scan
        self._holds_folder = names.holds_folder(log.folder)
        self.has_seen_holds = False
        """Whether the latest listing of the topic's folder has found holds. If not, no other one is
        needed to look for them.
        """

    def note_live(self) -> frozenset[str]:
        """Record and return the names that are live now. Must be called before files leave the
        topic: they are then kept for a grace period, even if an earlier scan found them.
        """
        live = self._live()
        self._live_since.add(live)
        return live

    def scans(self, *, drop: bool = True) -> Iterator[OrphanScan]:
        """The recorded scans whose files have not been removed yet, one by one. Raises Unavailable.

        Notes that cannot be parsed are deleted, or with `drop=False` skipped.
        """
        for entry in self._notes():
            if (scan := self._read(entry, drop=drop)) is not None:
                yield scan

    def due(self, now_ms: int, grace_ms: int) -> Iterator[OrphanScan | None]:
        """The scans whose grace period is over, oldest first, one by one; None after reading
        another one, so that the caller can pause there. Raises Unavailable.
        """
        notes = self._notes()
        self._times_ms = {
            key: self._times_ms[key] for entry in notes if (key := entry.key) in self._times_ms
        }
        for entry in notes:
            # Read before, and not due yet. The time of a note never changes.
            if self._times_ms.get(entry.key, 0) + grace_ms > now_ms:
                continue
            scan = self._read(entry)
            if scan is not None:
                self._times_ms[entry.key] = scan.time_ms
            yield scan if scan is not None and is_due(scan, now_ms, grace_ms) else None

    def scan(self) -> Work[int]:
        """Scan the folder and record the orphan files. Returns their number. Raises Unavailable,
        Corrupt.
        """
        earlier, self._live_since = self._live_since, SeenLive()
        try:
            return (yield from self._scan(earlier))
        except BaseException:
            earlier.absorb(self._live_since)
            self._live_since = earlier
            raise

    def _scan(self, earlier: SeenLive) -> Work[int]:
        self._log.catch_up()
        self.note_live()
        noted = HashedNames()
        for scan in self._corrected(earlier):
            noted.add(scan.names)
            yield
        count = 0
        for listed in self._unnoted(noted):
            if listed is not None:
                self._log.catch_up()  # read every commit that was made before the listing
                live, (found, began) = self.note_live(), listed
                count += self._note(
                    {name: found[name] for name in sorted(found.keys() - live)}, began
                )
            yield
        return count

    def _unnoted(self, noted: Container[str]) -> Iterator[tuple[dict[str, int], float] | None]:
        """The data files in the folder that are not in `noted`, with their modification times in
        epoch milliseconds: as many at a time as fit one note, and the uptime at which their listing
        began. Yields None after every `LISTED_AT_ONCE` files, so that the caller can pause.
        """
        found: dict[str, int] = {}
        began = self._clock.uptime()
        self.has_seen_holds = False
        with raising_unavailable():
            for number, entry in enumerate(self._store.list(self._log.folder), 1):
                name = entry.key.removeprefix(self._log.folder)
                if entry.key.startswith(self._holds_folder):
                    self.has_seen_holds = True
                # Files of an earlier scan keep its time: a new note would begin their grace period
                # anew.
                if names.holds_data(name) and name not in noted:
                    found[name] = entry.modified_ms
                if number % LISTED_AT_ONCE == 0:
                    yield None
                if len(found) == NAMES_OF_NOTE_MAX:
                    yield found, began
                    found, began = {}, self._clock.uptime()
        if found:
            yield found, began

    def _corrected(self, earlier: SeenLive) -> Iterator[OrphanScan]:
        """The scans, one by one, after the names that have been live since were removed from the
        records.
        """
        for scan in self.scans():
            live_since = earlier.among(scan.names) | self._live_since.among(scan.names)
            left = never_live(scan, live_since, self._settings.in_flight_ms)
            if left is not scan:
                self._replace(left)
            yield left

    def _replace(self, scan: OrphanScan) -> None:
        """Overwrite the record of a scan. Its later `noted_ms` makes no difference: all its names
        were old enough.
        """
        key = names.orphan_scan_key(self._log.folder, scan.version, scan.part)
        with raising_unavailable():
            # A scan of which no name is left needs no record.
            if scan.names:
                self._store.put(key, _note_of(scan.version, scan.time_ms, scan.took_ms, scan.names))
            else:
                self._store.delete(key)

    def _note(self, found: Mapping[str, int], began: float) -> int:
        """Record the files that a listing found which began at uptime `began`. Returns the number
        recorded.
        """
        if not found:
            return 0
        version = self._log.version
        parts = [
            place[1]
            for note in self._notes()
            if (place := names.orphan_scan_part(note.key)) and place[0] == version
        ]
        part = max(parts, default=-1) + 1
        noting = self._clock.uptime()
        took_ms = math.ceil((noting - began) * 1000)
        data = _note_of(version, self._clock.time_ms(), took_ms, found)
        key = names.orphan_scan_key(self._log.folder, version, part)
        with raising_unavailable():
            try:
                self._store.create(key, data)
            except ObjectExists:
                return 0  # another process has recorded a scan at the same time
            if (self._clock.uptime() - noting) * 1000 > self._settings.in_flight_ms / 2:
                # With this late `noted_ms`, a file that was young when found would seem old.
                self._store.delete(key)
                return 0
        return len(found)

    def plan(self, now_ms: int, grace_ms: int) -> tuple[int, int]:
        """(number of files of due scans that may be deleted, number that a new scan would record).
        Changes nothing. Raises Unavailable, Corrupt.
        """
        found = {name for part in self._unnoted(()) if part for name in part[0]}
        self._log.catch_up()
        live = self._live()
        deleted, new = 0, found - live
        for scan in self.scans(drop=False):
            if scan.version > self._log.version:
                continue
            if is_due(scan, now_ms, grace_ms):
                removable = older_than(scan, self._settings.in_flight_ms)
                deleted += len(removable - live)
                new -= removable
            else:
                new -= never_live(scan, live, self._settings.in_flight_ms).names.keys()
        return deleted, len(new)

    def _notes(self) -> list[ObjectEntry]:
        with raising_unavailable():
            return list(self._store.list(self._orphan_scans_folder))

    def remove(self, scan: OrphanScan) -> Work[int]:
        """Delete the files of a scan that are still not in the topic. Returns their number. Raises
        what `MaintenanceLog.raise_min_upload_version` raises.
        """
        self._log.catch_up()
        key = names.orphan_scan_key(self._log.folder, scan.version, scan.part)
        if scan.version > self._log.version:
            # No scan can have seen a version that does not exist: the note is damaged. Voiding all
            # uploads up to that version would block every writer for ever.
            self._drop(key, "its version is not in the log yet")
            return 0
        noted = older_than(scan, self._settings.in_flight_ms)
        noted -= self._live_since.among(noted)
        head = self._log.head or self._log.ended
        if noted - self._live() and (head is None or head.min_upload_version <= scan.version):
            deadline = self._clock.monotonic() + COMMIT_TIMEOUT_S
            if self._log.raise_min_upload_version(scan.version + 1, deadline) is not None:
                return 0
        # Only now is the outcome final: the writers of these files have committed them, or never
        # will.
        noted -= self._kept_by_transactions(noted - self._live(), scan)
        removable = sorted(noted - self._live())
        with raising_unavailable():
            for first in range(0, len(removable), DELETES_AT_ONCE):
                keys = [
                    self._log.folder + name for name in removable[first : first + DELETES_AT_ONCE]
                ]
                delete_all(self._store, self._clock, keys)
                yield
            self._store.delete(key)
        return len(removable)

    def _kept_by_transactions(self, found: AbstractSet[str], scan: OrphanScan) -> frozenset[str]:
        """Those of the files that a transaction may still commit. The other transactions of these
        files are ended: published if they are decided, so that their files are live afterwards, or
        aborted. Raises Unavailable, OutcomeUnknown, Corrupt, Incompatible.
        """
        if not any(map(names.parse_staged_file, found)):
            return frozenset()
        age_ms = self._clock.time_ms() - scan.time_ms + self._settings.in_flight_ms
        deadline = self._clock.monotonic() + COMMIT_TIMEOUT_S
        kept = resolve_files(self._store, found, age_ms, self._clock, deadline)
        self._log.catch_up()
        return kept

    def _live(self) -> frozenset[str]:
        folder = self._log.folder
        return frozenset(
            file.segment.key.removeprefix(folder) for file in self._log.index.files.values()
        )

    def _read(self, entry: ObjectEntry, *, drop: bool = True) -> OrphanScan | None:
        """Read a recorded scan; None if another process has removed it, or if it is malformed, and
        then deleted.
        """
        with raising_unavailable():
            try:
                return parse_orphan_scan(self._store.get(entry.key, NOTE_BYTES_MAX), entry)
            except ObjectMissing:
                return None
            except (ValueError, KeyError, TypeError, ObjectTooLarge) as error:
                if drop:
                    self._drop(entry.key, str(error))
                return None

    def _drop(self, key: str, reason: str) -> None:
        _log.warning(
            "a damaged note of files to be removed is dropped key=%r reason=%s", key, reason
        )
        with raising_unavailable():
            self._store.delete(key)
