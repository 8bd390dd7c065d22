"""Log clean-up: removes the log entries and checkpoints that a newer checkpoint replaces, of topics
and groups alike.

A slow writer could fill the slot of a removed entry again, so clean-up takes two steps
(`docs/internals/format.md`, "Committing"; decisions 0007, 0018, 0019):

1. *Mark.* Choose a version that has a readable checkpoint, and create a log-start marker at it. The
   marker says that all entries below may be gone. No client uses them any more.
2. *Remove* what lies below the marker once `clean_up_grace_s` have passed since this instance first
   saw it. The time is measured in this process alone, on a clock that includes suspension, so no
   clocks are compared.

Several instances may clean up the same log at once: a marker is kept until there is a higher one.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.checkpoint import Checkpoint, read_checkpoint
from deltaq.delta.entries import LogEntries
from deltaq.delta.log import DeltaLog
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.errors import Corrupt, Incompatible
from deltaq.maintenance.checkpoint import point_to_checkpoint, write_checkpoint
from deltaq.maintenance.clock_check import expiry_ms
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.serde.json_text import strict_json
from deltaq.store import ObjectExists, Store
from deltaq.store.parallel import delete_all
from deltaq.work import Work, finish

_log = logging.getLogger("deltaq.maintenance")

LISTED_AT_ONCE = 500
"""Objects listed between two pauses."""

DELETES_AT_ONCE = 64
"""Objects deleted between two pauses."""

_VERSION_DIGITS = 20


@dataclass(frozen=True, slots=True)
class LogListing:
    """The objects of a log: the keys of each version, lowest first, and the versions of the
    log-start markers.
    """

    keys: Mapping[int, Sequence[str]]
    markers: Sequence[int]

    @property
    def start(self) -> int:
        """The log's start; 0 if nothing was ever removed."""
        return max(self.markers, default=0)

    @property
    def has_more(self) -> bool:
        """Whether objects are left below the log's start."""
        return min(self.keys, default=self.start) < self.start

    @property
    def checkpoints(self) -> list[int]:
        """The versions that have a checkpoint, lowest first."""
        return [version for version in self.keys if any(map(_is_checkpoint, self.keys[version]))]

    @property
    def starts(self) -> list[int]:
        """The versions at which the log could start, lowest first: those with a checkpoint and an
        entry.
        """
        return [version for version in self.checkpoints if any(map(_is_entry, self.keys[version]))]

    @property
    def archived(self) -> list[int]:
        """The versions whose entries are in the log archive, lowest first."""
        return [version for version in self.keys if any(map(names.is_archived, self.keys[version]))]


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The log's new start (None: unchanged), and the number of objects to be removed after the
    grace period.
    """

    start: int | None
    removed: int


def plan_log_start(
    listing: LogListing,
    head: int,
    time_of: Callable[[int], int | None],
    now_ms: int,
    settings: MaintenanceSettings,
    unfit: frozenset[int] = frozenset(),
    covered: int = 0,
) -> int | None:
    """The new start of the log, whose newest version is `head`; None if it is unchanged.

    It is the newest checkpointed version whose entry is older than the log retention, or that lies
    beyond the newest `keep_entries_max`; never one within the newest `keep_entries_min`.
    `time_of(version)` is an entry's time in epoch milliseconds (None if unknown), called for a few
    versions. The checkpoints of `unfit` versions cannot be used. Archived entries below `covered`,
    a version with a checkpoint that can be used, need none of their own: no other engine reads
    them.
    """
    newest = head + 1 - settings.keep_entries_min
    starts = {*listing.starts} - unfit | {
        version for version in listing.archived if version < covered
    }
    possible = sorted(version for version in starts if listing.start < version <= newest)
    oldest_ms = now_ms - settings.log_retention_ms

    def may_not_go_yet(version: int) -> bool:
        if version <= head + 1 - settings.keep_entries_max:
            return False
        time_ms = time_of(version)
        return time_ms is None or time_ms >= oldest_ms

    count = bisect_left(possible, True, key=may_not_go_yet)
    return possible[count - 1] if count else None


def plan_removal(listing: LogListing, start: int, settings: MaintenanceSettings) -> list[str]:
    """The keys to remove, lowest version first: everything below `start` (0: nothing), and surplus
    checkpoints above.

    Of the checkpoints from `start` on, it keeps the newest `keep_checkpoints`, those at markers,
    and the first in each span of `keep_checkpoint_interval` versions.
    """
    below = [
        key for version, keys in sorted(listing.keys.items()) if version < start for key in keys
    ]
    checkpoints = [version for version in listing.checkpoints if version >= start]
    kept = {*checkpoints[-settings.keep_checkpoints :], *listing.markers}
    spans: set[int] = set()
    for version in checkpoints:
        if version == start or version // settings.keep_checkpoint_interval not in spans:
            kept.add(version)
        spans.add(version // settings.keep_checkpoint_interval)
    surplus = [version for version in checkpoints if version not in kept]
    return below + [
        key for version in surplus for key in listing.keys[version] if _is_checkpoint(key)
    ]


def _is_checkpoint(key: str) -> bool:
    return names.checkpoint_version(key) is not None


def _is_entry(key: str) -> bool:
    return names.entry_version(key) is not None


class LogCleanup:
    """Cleans up the log of the table in `folder`. Not thread-safe. `settings` may be replaced.

    Every method raises StoreError. After an exception, the next call continues where this one
    stopped.
    """

    def __init__(
        self, store: Store, folder: str, clock: Clock, settings: MaintenanceSettings
    ) -> None:
        self._store = store
        self._folder = folder
        self._clock = clock
        self._entries = LogEntries(store, folder, clock)
        self.settings = settings
        # The newest marker, and the uptime when it was first seen.
        self._seen: tuple[int, float] = (0, 0.0)
        self.is_waiting = False
        """Whether, as far as this instance has seen, `remove` will remove objects after the grace
        period.
        """

    def plan(self, log: DeltaLog[Any]) -> LogPlan:
        """What `mark`, and `remove` after the grace period, would do to a log at its newest
        version.
        """
        listing = finish(_list_log(self._store, self._folder))
        start = None
        if not listing.has_more:
            start = self._end(log, listing)
            if start is None and (found := self._start(log, listing)) is not None:
                start, _ = found
            # The log starts there already.
            if start is not None and start <= listing.start:
                start = None
        after = replace(
            listing, markers=[*listing.markers] if start is None else [*listing.markers, start]
        )
        passed = [version for version in after.markers if version < after.start]
        return LogPlan(start, len(passed) + len(plan_removal(after, after.start, self.settings)))

    def mark(self, log: DeltaLog[Any]) -> Work[int | None]:
        """Step 1, for a log at its newest version. Returns its new start; None: unchanged. Raises
        CheckpointFailed.
        """
        listing = yield from _list_log(self._store, self._folder)
        if listing.has_more:
            # Remove first: with a new marker each time, none would ever become old enough.
            return None
        at_the_end = self._checkpoint_at_the_end(log, listing)
        found = (
            self._start(log, listing) if at_the_end is None else (at_the_end.version, at_the_end)
        )
        # No entry is old enough, or the log starts there already.
        if found is None or found[0] <= listing.start:
            return None
        start, checkpoint = found
        point_to_checkpoint(self._store, self._folder + names.LOG_FOLDER, checkpoint)
        with suppress(ObjectExists):  # another instance made the same choice
            self._store.create(names.log_start_marker(self._folder, start), b"")
        self._seen = start, self._clock.uptime()
        self.is_waiting = True
        _log.info("the log starts later log=%r version=%d", self._folder, start)
        return start

    def remove(self, limit: int | None = None) -> Work[int]:
        """Step 2; surplus checkpoints are removed at once. Returns the number of objects removed,
        at most `limit`.
        """
        listing = yield from _list_log(self._store, self._folder)
        start = self._removable_below(listing)
        markers = [
            names.log_start_marker(self._folder, version)
            for version in listing.markers
            if version < start
        ]
        keys = (markers + plan_removal(listing, start, self.settings))[:limit]
        yield from self._delete(keys)
        return len(keys)

    def _delete(self, keys: Sequence[str]) -> Work[None]:
        # Remove the lowest entry before the others: a client that opens a log in which it remains
        # reads on from it.
        entries = [(names.entry_version(key), at) for at, key in enumerate(keys) if _is_entry(key)]
        first = max((at for version, at in entries if version == entries[0][0]), default=0) + 1
        for key in keys[:first]:
            self._store.delete(key)
        for at in range(first, len(keys), DELETES_AT_ONCE):
            delete_all(self._store, self._clock, keys[at : at + DELETES_AT_ONCE])
            yield

    def _removable_below(self, listing: LogListing) -> int:
        """The log's start if the objects below it may be removed now; otherwise 0."""
        start = listing.start
        is_old_enough = self._is_old_enough(start)
        self.is_waiting = listing.has_more and not is_old_enough
        # A client may still trust a position from before the marker.
        if not is_old_enough:
            return 0
        if not listing.has_more:
            return start
        # Removal is final, so verify the checkpoint again: it may be damaged, or another instance
        # may have removed it.
        others = [version for version in reversed(listing.checkpoints) if version > start]
        if any(self._usable(version) for version in (start, *others)):
            return start
        _log.warning(
            "no checkpoint can be read, so nothing is removed log=%r start=%d", self._folder, start
        )
        return 0

    def _is_old_enough(self, start: int) -> bool:
        """Whether the grace period of the log's start is over. Starts it when the marker is first
        seen.
        """
        if self._seen[0] != start:
            self._seen = start, self._clock.uptime()
        return start > 0 and self._clock.uptime() - self._seen[1] >= self.settings.clean_up_grace_s

    def _start(self, log: DeltaLog[Any], listing: LogListing) -> tuple[int, Checkpoint] | None:
        """The new start of a log in use, and a checkpoint that replaces the entries below it. None:
        unchanged.
        """
        unfit: frozenset[int] = frozenset()
        newest = self._newest_usable(listing) if listing.archived else None
        while True:
            version = plan_log_start(
                listing,
                log.state.version,
                lambda wanted: entry_time_ms(self._entries, wanted),
                expiry_ms(self._store, self._clock),
                self.settings,
                unfit,
                0 if newest is None else newest.version,
            )
            if version is None:
                return None
            checkpoint = (
                self._usable(version)
                if version not in unfit and version in listing.starts
                else newest
            )
            if checkpoint is not None:
                return version, checkpoint
            unfit |= {version}

    def _newest_usable(self, listing: LogListing) -> Checkpoint | None:
        return next(
            (
                found
                for version in reversed(listing.checkpoints)
                if (found := self._usable(version))
            ),
            None,
        )

    def _end(self, log: DeltaLog[Any], listing: LogListing) -> int | None:
        """The last version of the log of a deleted topic, an unused group or an expired
        `transactional.id`, of which only that version is kept, as a stub. None if it is in use, or
        has ended within the log retention.
        """
        version = log.state.version
        if max(listing.keys, default=-1) > version or not _is_over(log.state):
            return None
        ended_ms = entry_time_ms(self._entries, version)
        if (
            ended_ms is None
            or ended_ms >= expiry_ms(self._store, self._clock) - self.settings.log_retention_ms
        ):
            return None
        return version

    def _checkpoint_at_the_end(self, log: DeltaLog[Any], listing: LogListing) -> Checkpoint | None:
        """The checkpoint of `_end`, written if there is none."""
        version = self._end(log, listing)
        if version is None:
            return None
        found = self._usable(version) if version in listing.checkpoints else None
        if found is None:
            write_checkpoint(self._store, self._folder + names.LOG_FOLDER, log.state)
            found = self._usable(version)
        return found

    def _usable(self, version: int) -> Checkpoint | None:
        """The checkpoint, if the entries that it replaces may be removed: it is readable and sealed
        by a checksum.
        """
        found = read_checkpoint(self._store, self._folder + names.LOG_FOLDER, version)
        return found if found is not None and found.is_sealed else None


def entry_time_ms(entries: LogEntries, version: int) -> int | None:
    """The time in a log entry, in epoch milliseconds; None if the entry is missing or damaged.
    Raises StoreError.
    """
    try:
        found = entries.fetch(version)
    except (Corrupt, Incompatible):
        return None
    return None if found is None or found[0].info is None else found[0].info.timestamp


def _list_log(store: Store, folder: str) -> Work[LogListing]:
    found = [
        names.log_start_version(entry.key) for entry in store.list(names.log_start_folder(folder))
    ]
    keys: dict[int, list[str]] = {}
    for log_folder in (folder + names.LOG_FOLDER, names.log_archive_folder(folder)):
        for number, entry in enumerate(store.list(log_folder), 1):
            version = _version(entry.key.removeprefix(log_folder))
            if version is not None:
                keys.setdefault(version, []).append(entry.key)
            if number % LISTED_AT_ONCE == 0:
                yield
    return LogListing(
        dict(sorted(keys.items())), sorted(version for version in found if version is not None)
    )


def _version(name: str) -> int | None:
    """The version with which the name of an object in a log's folder begins: an entry, checkpoint
    or checksum of any kind. None for `_last_checkpoint` and objects in subfolders.
    """
    digits, dot, _ = name.partition(".")
    if (
        "/" in name
        or not dot
        or len(digits) != _VERSION_DIGITS
        or not (digits.isascii() and digits.isdigit())
    ):
        return None
    return int(digits)


def _is_over(state: TableState) -> bool:
    """Whether the state is that of a deleted topic, of a group without members and offsets, or of
    an expired `transactional.id`.
    """
    try:
        head = strict_json(state.domains.get(DELTAQ_DOMAIN, "{}"))
    except ValueError:
        return False
    if not isinstance(head, dict):
        return False
    return (
        head.get("deleted") is True
        or head.get("expired") is True
        or (head.get("members") == {} and not state.txns)
    )
