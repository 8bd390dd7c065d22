"""Checks each entry of the topic's log: the offsets it gave, the files it replaced, and the records
it removed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq import names
from tests.simulation.audit.oracle import (
    LogEntry,
    LoggedFile,
    Place,
    WrittenRecord,
    data_files,
    read_log,
    shared_file_of,
    values_in,
)
from tests.simulation.scenario import TOPIC
from tests.simulator.disk import Disk

__all__ = ["Audit", "Removal", "audit_log", "places"]

Snapshot = Mapping[str, LoggedFile]


@dataclass(frozen=True)
class Removal:
    """Values that maintenance has removed from the topic, and when."""

    landed: float
    values: frozenset[str]


@dataclass
class Audit:
    """The topic entry by entry. `topic`: its name. `places`: where each value ever was; `removals`:
    what maintenance has removed; `happened`: events of it. `right_clocks`: whether the timestamps
    of entries are right.
    """

    right_clocks: bool = True
    topic: str = TOPIC
    places: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    records: dict[Place, WrittenRecord] = field(default_factory=dict)
    came: dict[Place, float] = field(default_factory=dict)
    of_key: dict[tuple[str, int, bytes], list[Place]] = field(
        default_factory=lambda: defaultdict(list)
    )
    properties: Mapping[str, str] = field(default_factory=dict)
    topic_id: str = ""
    is_deleted: bool = False
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    live: dict[str, LoggedFile] = field(default_factory=dict)
    # The live files after each entry of this topic id.
    before: list[Snapshot] = field(default_factory=list)
    # By writer, the number of the newest in the log.
    shared: dict[str, int] = field(default_factory=dict)
    # Path -> when it came and went.
    lived: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, entry: LogEntry) -> None:
        """Check the next entry."""
        self.properties = self.properties if entry.properties is None else entry.properties
        head = entry.head
        if head is None:
            self._claim(
                entry,
                not entry.adds and not entry.removes,
                "changes files without saying the offsets",
            )
            return
        if head["topic_id"] != self.topic_id:
            self._claim(
                entry, not self.live, "creates the topic again though the old one has files"
            )
            self.topic_id, self.starts, self.ends, self.before = head["topic_id"], [], [], []
        partitions = len(head["next_offsets"])
        self.starts += [0] * (partitions - len(self.starts))
        self.ends += [0] * (partitions - len(self.ends))
        self._claim(
            entry, len(head["start_offsets"]) == partitions, "has not as many starts as ends"
        )
        self._append(entry)
        self._claim(
            entry, self.ends == head["next_offsets"], f"says next offsets {head['next_offsets']}"
        )
        self.is_deleted = head.get("deleted", False)
        self._remove(entry, head["start_offsets"], is_end=self.is_deleted)
        if not self.is_deleted:
            self._check_covered(entry)
        self.before.append(dict(self.live))

    def _append(self, entry: LogEntry) -> None:
        for file in entry.adds:
            self._note_delegated(entry, file.path)
            self.lived[file.path] = entry.landed, float("inf")
            if file.is_rewrite:
                continue
            self._claim(entry, not entry.removes, "appends and removes")
            for partition, base, end in file.batches:
                follows = base == self.ends[partition]
                self._claim(
                    entry,
                    follows,
                    f"gives offset {base} of partition {partition} after {self.ends}",
                )
                self.ends[partition] = end
            self.live[file.path] = file
            for place, record in file.records.items():
                self.records[place], self.came[place] = record, entry.landed
                self.places[record.value].append(place)
                if record.key is not None:
                    self.of_key[place.topic_id, place.partition, record.key].append(place)

    def _note_delegated(self, entry: LogEntry, path: str) -> None:
        shared = shared_file_of(path)
        if shared is None:
            return
        writer, number = shared
        self.happened["a shared file was committed"] += 1
        self.happened["a peer committed a shared file"] += writer != entry.writer
        newest = self.shared.get(writer, -1)
        self._claim(entry, number > newest, f"adds shared file {number} of {writer} after {newest}")
        self.shared[writer] = number

    def _remove(self, entry: LogEntry, starts: list[int], *, is_end: bool) -> None:
        lost = [path for path in entry.removes if path not in self.live]
        self._claim(entry, not lost, f"removes what is not there: {lost}")
        removed = {path: self.live.pop(path) for path in entry.removes if path in self.live}
        for path in removed:
            self.lived[path] = self.lived[path][0], entry.landed
        gone = {place: file for file in removed.values() for place in file.records}
        for file in entry.adds:
            if file.is_rewrite:
                for place, record in file.records.items():
                    self._claim(
                        entry,
                        record == self.records.get(place),
                        f"changes {self.records.get(place)}: {record}",
                    )
                    self._claim(
                        entry, gone.pop(place, None) is not None, f"has {place} from nowhere"
                    )
                self.live[file.path] = file
        if not is_end:
            if starts != self.starts or (entry.has_data_change and removed):
                self._retain(entry, starts, removed)
            elif removed:
                self.happened["files were merged"] += 1
            self._check_dropped(entry, starts, gone)
        self.starts = list(starts)

    # --- retention ---

    def _retain(self, entry: LogEntry, starts: list[int], removed: Snapshot) -> None:
        self._claim(entry, not entry.adds, "mixes retention with something else")
        for file in removed.values():
            is_empty = all(end <= starts[partition] for partition, _, end in file.batches)
            self._claim(
                entry,
                is_empty,
                f"removes {file.path}, and partitions start at {starts}: {file.batches}",
            )
        values = set()
        for partition, (old, new) in enumerate(zip(self.starts, starts, strict=False)):
            if old == new:
                continue
            # As of any earlier entry: merging makes files smaller, and gives old records the age of
            # younger ones.
            due = max(
                self._due_until(snapshot, partition, entry.time_ms) for snapshot in self.before
            )
            self._claim(
                entry,
                old < new <= due,
                f"lets partition {partition} start at {new}, not up to {due}",
            )
            values |= {
                record.value
                for place, record in self.records.items()
                if (place.topic_id, place.partition) == (self.topic_id, partition)
                and old <= place.offset < new
            }
        if values:
            self.happened["records expired"] += 1
            self.removals.append(Removal(entry.landed, frozenset(values)))

    def _due_until(self, snapshot: Snapshot, partition: int, now_ms: int) -> int:
        """Up to which offset the records of a partition may go: in batches, those that are too old
        or have `retention.bytes` in newer ones.
        """
        if "delete" not in self.properties.get("deltaq.cleanup.policy", "delete"):
            return -1
        retention_ms = int(self.properties.get("deltaq.retention.ms", 7 * 86_400_000))
        retention_bytes = int(self.properties.get("deltaq.retention.bytes", -1))
        batches = [
            (base, end, file)
            for file in snapshot.values()
            for number, base, end in file.batches
            if number == partition
        ]
        batches.sort(key=lambda batch: batch[:2])
        until = -1
        for at, (base, end, file) in enumerate(batches):
            newer = sum(
                other.bytes_of(partition, first, last) for first, last, other in batches[at + 1 :]
            )
            is_old = retention_ms >= 0 and file.time_ms < now_ms - retention_ms
            is_beyond = 0 <= retention_bytes <= newer
            if not (is_old or is_beyond or not file.bytes_of(partition, base, end)):
                break
            until = end
        return until

    # --- key compaction ---

    def _check_dropped(
        self, entry: LogEntry, starts: list[int], gone: Mapping[Place, LoggedFile]
    ) -> None:
        dropped = {
            place: file for place, file in gone.items() if place.offset >= starts[place.partition]
        }
        if not dropped:
            return
        self.happened["records were superseded"] += 1
        is_compacted = "compact" in self.properties.get("deltaq.cleanup.policy", "delete")
        self._claim(
            entry, is_compacted, f"loses {sorted(self.records[place].value for place in dropped)}"
        )
        alive = {place for file in self.live.values() for place in file.records}
        for place, file in dropped.items():
            record = self.records[place]
            same_key = (
                self.of_key[place.topic_id, place.partition, record.key]
                if record.key is not None
                else []
            )
            if not any(other.offset > place.offset for other in same_key):
                self._claim(
                    entry, record.is_tombstone, f"loses the newest record of its key: {record}"
                )
                # A wrong clock may jump back between the plan and the entry.
                is_past = file.clean_ms is not None and (
                    file.clean_ms <= entry.time_ms or not self.right_clocks
                )
                over = is_past and file.clean_ms != 0
                self._claim(
                    entry, over, f"drops a tombstone that stays until {file.clean_ms}: {record}"
                )
                delay_s = int(self.properties.get("deltaq.delete.retention.ms", 86_400_000)) / 1000
                on_time = entry.landed - self.came[place] >= delay_s or not self.right_clocks
                self._claim(entry, on_time, f"drops a tombstone too early: {record}")
                older = [
                    other
                    for other in same_key
                    if other in alive and other.offset >= starts[other.partition]
                ]
                self._claim(
                    entry, not older, f"drops a tombstone, and what it deletes comes back: {older}"
                )
                self.happened["a tombstone was dropped"] += 1
        values = frozenset(self.records[place].value for place in dropped)
        self.removals.append(Removal(entry.landed, values))

    # --- always ---

    def _check_covered(self, entry: LogEntry) -> None:
        """The live files have each offset from a partition's start to its end once, in the order of
        the log.
        """
        for partition, (start, end) in enumerate(zip(self.starts, self.ends, strict=False)):
            at = start
            ranges = sorted(
                (base, following)
                for file in self.live.values()
                for number, base, following in file.batches
                if number == partition and following > start
            )
            for base, following in ranges:
                self._claim(
                    entry,
                    max(base, start) == at,
                    f"leaves partition {partition} with {ranges}, not {at}",
                )
                at = following
            self._claim(
                entry, at == end, f"leaves partition {partition} with {ranges}, up to {end}"
            )

    def _claim(self, entry: LogEntry, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(f"entry {entry.version} ({entry.operation}) {what}")

    # --- files ---

    def check_files(self, disk: Disk, delay_s: float, in_flight_s: float) -> None:
        """Check that no file was deleted while the topic needed it, or within `delay_s` after it
        left the topic.

        That is not promised of a file that was committed later than half of `in_flight_s` after its
        upload.
        """
        folder = names.topic_folder(self.topic)
        for path, (came, went) in self.lived.items():
            uploaded = disk.written[folder + path][0]
            for deleted in disk.deleted.get(folder + path, ()):
                self.happened["a file was removed"] += 1
                if deleted < went:
                    self.problems.append(
                        f"{path} was deleted at {deleted:.3f}; it was needed from {came} to {went}"
                    )
                elif (
                    self.right_clocks
                    and deleted < went + delay_s
                    and came - uploaded <= in_flight_s / 2
                ):
                    self.problems.append(
                        f"{path} was deleted at {deleted:.3f}, too soon after {went:.3f}"
                    )
        for path in data_files(disk, self.topic) - self.lived.keys():
            has_offsets, values = values_in(disk, folder + path)
            if has_offsets:
                self.happened["a rewrite was not committed"] += 1
            elif values and values <= self.places.keys():
                self.happened["an expired upload was repeated"] += 1
            self.happened["an orphan was removed"] += folder + path in disk.deleted
        for key in disk.deleted:
            if key.startswith(f"{folder}_delta_log/") and key.endswith(".json"):
                self.happened["a log entry was cleaned up"] += 1


def audit_log(
    disk: Disk,
    *,
    right_clocks: bool = True,
    delay_s: float = 0.0,
    in_flight_s: float = 0.0,
    topic: str = TOPIC,
) -> Audit:
    """Audit the whole log; the delays are those of `check_files`. Raises AssertionError if it
    cannot be read.
    """
    audit = Audit(right_clocks, topic)
    for entry in read_log(disk, topic):
        audit.take(entry)
    audit.check_files(disk, delay_s, in_flight_s)
    return audit


def places(disk: Disk) -> dict[str, list[Place]]:
    """Where each value ever was, in the order of the log. Raises AssertionError for a log that
    contradicts itself.
    """
    audit = audit_log(disk)
    assert not audit.problems, "\n".join(audit.problems)
    return dict(audit.places)
