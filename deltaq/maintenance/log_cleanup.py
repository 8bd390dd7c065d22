"""Keep a log short: remove entries and checkpoints that nobody needs any more. Topics and groups alike.

A log that is cleaned up re-opens its old slots, so clean-up takes two steps, and crashes between them do no harm
(`docs/internals/format.md`, "Committing"; decisions 0007, 0018, 0019):

1. *Mark.* Choose a version that has a readable checkpoint, and create the log-start marker which says that everything
   below may be gone.
2. *Sweep.* When `clean_up_grace_s` have passed since this cleaner saw the marker, remove what lies below it. The time
   is counted by this process alone, on a clock that counts suspended time: no clocks are compared.

Several cleaners at once are harmless: a marker stays until there is a higher one, and what lies below it is nobody's.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.actions import parse_entry
from deltaq.delta.checkpoint import Checkpoint, read_checkpoint
from deltaq.delta.log import DeltaLog
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.errors import Corrupt, Incompatible
from deltaq.maintenance.checkpoint import point_to_checkpoint, write_checkpoint
from deltaq.maintenance.clock_check import expiry_ms
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.serde.json_text import strict_json
from deltaq.store import ObjectExists, ObjectMissing, Store
from deltaq.store.parallel import delete_all

__all__ = ["LogCleanup", "LogListing", "LogPlan", "entry_time_ms", "plan_log_start", "plan_removal"]

_log = logging.getLogger("deltaq.maintenance")

LISTED_AT_ONCE = 500
"""Objects listed between two pauses."""

DELETES_AT_ONCE = 64
"""Objects deleted between two pauses."""

_VERSION_DIGITS = 20


@dataclass(frozen=True, slots=True)
class LogListing:
    """What there is of a log: the keys of each version, lowest first, and the versions of the log-start markers."""

    keys: Mapping[int, Sequence[str]]
    markers: Sequence[int]

    @property
    def start(self) -> int:
        """The log's start: 0 if nothing was ever removed."""
        return max(self.markers, default=0)

    @property
    def has_more(self) -> bool:
        """Whether there is something below the log's start."""
        return min(self.keys, default=self.start) < self.start

    @property
    def checkpoints(self) -> list[int]:
        """The versions that have a checkpoint, lowest first."""
        return [
            version
            for version, keys in self.keys.items()
            if any(names.checkpoint_version(key) is not None for key in keys)
        ]

    @property
    def starts(self) -> list[int]:
        """The versions at which the log could start, lowest first: they have a checkpoint and an entry."""
        checkpoints = set(self.checkpoints)
        return [
            version
            for version, keys in self.keys.items()
            if version in checkpoints and any(names.entry_version(key) is not None for key in keys)
        ]


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What cleaning up a log would come to: its new start (None: it stays where it is), and how many objects would go
    once the grace period is over."""

    start: int | None
    removed: int

    def words(self) -> Iterator[str]:
        """That for people; nothing if nothing is due."""
        if self.start is not None:
            yield f"let the log start at version {self.start}"
        if self.removed:
            yield f"delete {self.removed} log objects"


def plan_log_start(
    listing: LogListing,
    head: int,
    time_of: Callable[[int], int | None],
    now_ms: int,
    settings: MaintenanceSettings,
    unfit: frozenset[int] = frozenset(),
) -> int | None:
    """The version at which the log is to start from now on; None if it stays where it is.

    It is the newest checkpointed version whose entry is older than the log retention, or that lies beyond the newest
    `keep_entries_max`; never one within the newest `keep_entries_min`. `head` is the newest version, `time_of(version)`
    an entry's time in epoch milliseconds (None if it cannot be told), which is asked of a few; `unfit` are versions
    whose checkpoint is of no use.
    """
    newest = head + 1 - settings.keep_entries_min
    possible = [version for version in listing.starts if listing.start < version <= newest and version not in unfit]
    oldest_ms = now_ms - settings.log_retention_ms

    def may_not_go_yet(version: int) -> bool:
        if version <= head + 1 - settings.keep_entries_max:
            return False
        time_ms = time_of(version)
        return time_ms is None or time_ms >= oldest_ms

    count = bisect_left(possible, True, key=may_not_go_yet)
    return possible[count - 1] if count else None


def plan_removal(listing: LogListing, start: int, settings: MaintenanceSettings) -> list[str]:
    """The keys that may go, lowest version first, if everything below `start` may; 0 for a log that stays whole.

    Of the checkpoints from there on stay the newest, those at markers, and the first in each span of
    `keep_checkpoint_interval` versions.
    """
    below = [key for version, keys in sorted(listing.keys.items()) if version < start for key in keys]
    checkpoints = [version for version in listing.checkpoints if version >= start]
    kept = {*checkpoints[-settings.keep_checkpoints :], *listing.markers}
    spans: set[int] = set()
    for version in checkpoints:
        if version == start or version // settings.keep_checkpoint_interval not in spans:
            kept.add(version)
        spans.add(version // settings.keep_checkpoint_interval)
    thinned = [
        key
        for version in checkpoints
        if version not in kept
        for key in listing.keys[version]
        if names.checkpoint_version(key) is not None
    ]
    return below + thinned


class LogCleanup:
    """Keeps logs short, and remembers when it first saw which marker. Not thread-safe. `settings` may be replaced.

    `between` is called between two pieces of what may be very much to list or to remove. Every method raises what that
    does, and StoreError if the store does not answer. What was done until then is done, and the next call goes on from
    there.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: MaintenanceSettings,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self.settings = settings
        self._between = between
        self._seen: dict[str, tuple[int, float]] = {}  # table folder -> its newest marker, and when that was seen
        self._waiting: set[str] = set()  # table folders of which something may go later

    def plan(self, log: DeltaLog) -> LogPlan:
        """What `mark`, and `sweep` once the grace period is over, would do to a log at its newest version. Changes
        nothing."""
        listing = _listing(self._store, log.folder, self._between)
        start = None
        if not listing.has_more:
            start = self._end(log, listing)
            if start is None and (found := self._checkpoint_to_start_at(log, listing)) is not None:
                start = found.version
            if start is not None and start <= listing.start:
                start = None
        after = replace(listing, markers=[*listing.markers] if start is None else [*listing.markers, start])
        passed = [version for version in after.markers if version < after.start]
        return LogPlan(start, len(passed) + len(plan_removal(after, after.start, self.settings)))

    def mark(self, log: DeltaLog) -> int | None:
        """Step one, for a log at its newest version: the new start of the log, or None if it stays where it is.

        Raises CheckpointFailed too.
        """
        listing = _listing(self._store, log.folder, self._between)
        if listing.has_more:
            return None  # one after the other: whoever marked again and again would never see one old enough
        checkpoint = self._checkpoint_at_the_end(log, listing) or self._checkpoint_to_start_at(log, listing)
        if checkpoint is None or checkpoint.version <= listing.start:
            return None
        point_to_checkpoint(self._store, log.folder + names.LOG_FOLDER, checkpoint)
        try:
            self._store.create(names.log_start_marker(log.folder, checkpoint.version), b"")
        except ObjectExists:
            pass  # another cleaner came to the same conclusion
        self._seen[log.folder] = checkpoint.version, self._clock.uptime()
        self._waiting.add(log.folder)
        _log.info("the log starts later log=%r version=%d", log.folder, checkpoint.version)
        return checkpoint.version

    def sweep(self, table_folder: str, limit: int | None = None) -> int:
        """Step two: how many objects were removed, of which there may be a `limit`.

        Checkpoints that are too many go at once, what lies below the log's start when it is time.
        """
        listing = _listing(self._store, table_folder, self._between)
        start = self._removable_below(table_folder, listing)
        markers = [names.log_start_marker(table_folder, version) for version in listing.markers if version < start]
        keys = (markers + plan_removal(listing, start, self.settings))[:limit]
        self._delete(keys)
        return len(keys)

    def is_waiting(self, table_folder: str) -> bool:
        """Whether `sweep` will remove something once the grace period is over, as far as this cleaner has seen."""
        return table_folder in self._waiting

    def _delete(self, keys: Sequence[str]) -> None:
        # The lowest entry goes before the others: whoever opens a log that has it would read on from there.
        first = next((at for at, key in enumerate(keys) if names.entry_version(key) is not None), 0) + 1
        for key in keys[:first]:
            self._store.delete(key)
        for at in range(first, len(keys), DELETES_AT_ONCE):
            delete_all(self._store, self._clock, keys[at : at + DELETES_AT_ONCE])
            self._between()

    def _removable_below(self, folder: str, listing: LogListing) -> int:
        """The log's start, if what lies below it may go now; otherwise 0."""
        start = listing.start
        self._waiting.discard(folder)
        if not self._is_old_enough(folder, start):
            self._waiting |= {folder} if listing.has_more else set()
            return 0
        if not listing.has_more:
            return start
        # Once more, since from now on there is no way back: it may have been damaged, or thinned by another cleaner.
        others = [version for version in reversed(listing.checkpoints) if version > start]
        if any(self._usable(folder, version) for version in (start, *others)):
            return start
        _log.warning("no checkpoint can be read, so nothing is removed log=%r start=%d", folder, start)
        return 0

    def _is_old_enough(self, folder: str, start: int) -> bool:
        """Whether the log's start was promised long enough ago for everybody to know. Notes one that is new to us."""
        version, seen_at = self._seen.get(folder, (0, 0.0))
        if version != start:
            version, seen_at = self._seen[folder] = start, self._clock.uptime()
        return version > 0 and self._clock.uptime() - seen_at >= self.settings.clean_up_grace_s

    def _checkpoint_to_start_at(self, log: DeltaLog, listing: LogListing) -> Checkpoint | None:
        unfit: frozenset[int] = frozenset()
        while True:
            version = plan_log_start(
                listing,
                log.state.version,
                lambda wanted: entry_time_ms(self._store, log.folder, wanted),
                expiry_ms(self._store, self._clock),
                self.settings,
                unfit,
            )
            if version is None:
                return None
            checkpoint = self._usable(log.folder, version)
            if checkpoint is not None:
                return checkpoint
            unfit |= {version}

    def _end(self, log: DeltaLog, listing: LogListing) -> int | None:
        """The last version of a log whose topic or group is no more: it alone has to stay, as a stub. None if that
        lives, or ended within the log retention."""
        version = log.state.version
        if max(listing.keys, default=-1) > version or not _is_over(log.state):
            return None
        ended_ms = entry_time_ms(self._store, log.folder, version)
        if ended_ms is None or ended_ms >= expiry_ms(self._store, self._clock) - self.settings.log_retention_ms:
            return None
        return version

    def _checkpoint_at_the_end(self, log: DeltaLog, listing: LogListing) -> Checkpoint | None:
        """The checkpoint of `_end`, written if there is none."""
        version = self._end(log, listing)
        if version is None:
            return None
        found = self._usable(log.folder, version) if version in listing.checkpoints else None
        if found is None:
            write_checkpoint(self._store, log.folder + names.LOG_FOLDER, log.state)
            found = self._usable(log.folder, version)
        return found

    def _usable(self, folder: str, version: int) -> Checkpoint | None:
        """The checkpoint, if what it replaces may go: it can be read, and is vouched for by a checksum."""
        found = read_checkpoint(self._store, folder + names.LOG_FOLDER, version)
        return found if found is not None and found.is_sealed else None


def entry_time_ms(store: Store, table_folder: str, version: int) -> int | None:
    """The writer's time of a log entry, in epoch milliseconds; None if it is missing or damaged. Raises StoreError."""
    key = names.log_entry(table_folder + names.LOG_FOLDER, version)
    try:
        entry = parse_entry(store.get(key), version, key)
    except (ObjectMissing, Corrupt, Incompatible):
        return None
    return None if entry.info is None else entry.info.timestamp


def _listing(store: Store, folder: str, between: Callable[[], object] = lambda: None) -> LogListing:
    found = [names.log_start_version(entry.key) for entry in store.list(names.log_start_folder(folder))]
    keys: dict[int, list[str]] = {}
    log_folder = folder + names.LOG_FOLDER
    for number, entry in enumerate(store.list(log_folder), 1):
        version = _version(entry.key.removeprefix(log_folder))
        if version is not None:
            keys.setdefault(version, []).append(entry.key)
        if number % LISTED_AT_ONCE == 0:
            between()
    return LogListing(dict(sorted(keys.items())), sorted(version for version in found if version is not None))


def _version(name: str) -> int | None:
    """The version that an object in a log's folder belongs to; None for `_last_checkpoint` and whatever is in folders.

    Entries, checkpoints of every kind, checksums and compacted entries all begin with it.
    """
    digits, dot, _ = name.partition(".")
    if "/" in name or not dot or len(digits) != _VERSION_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def _is_over(state: TableState) -> bool:
    """Whether the table is that of a deleted topic, or of a group without members and offsets."""
    try:
        head = strict_json(state.domains.get(DELTAQ_DOMAIN, "{}"))
    except ValueError:
        return False
    if not isinstance(head, dict):
        return False
    return head.get("deleted") is True or (head.get("members") == {} and not state.txns)
