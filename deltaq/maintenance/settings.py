"""The limits and intervals of maintenance, in one place, so that tests and the simulation can use
small values.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaq.delta.checkpoint import CHECKPOINT_INTERVAL
from deltaq.delta.slot_proof import CLEAN_UP_GRACE_S


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """Limits and intervals of maintenance; every deltaq client uses the defaults."""

    checkpoint_interval: int = CHECKPOINT_INTERVAL
    """Versions between two checkpoints, and so about the number of entries that a reader applies to
    open a log. See `checkpoint_rest_s` for the exception.
    """

    checkpoint_rest_s: float = 0.3
    """Minimum seconds between two checkpoints in a writer's process, since each one delays the
    writer a little.
    """

    log_retention_ms: int = 24 * 60 * 60 * 1000
    """Minimum age in milliseconds of a log entry that is removed: Kafka's
    `metadata.max.retention.ms`.
    """

    keep_entries_min: int = 1000
    """Newest log entries that are always kept. A follower that is at most this far behind need not
    reload the log.
    """

    keep_entries_max: int = 100_000
    """Maximum number of log entries, whatever their age, not counting those since the last
    checkpoint and clean-up.
    """

    listed_bytes_max: int = 25 * 1024
    """On a local store, the bytes of the names in `_delta_log`, as a folder's names are listed,
    above which the oldest entries are archived: about 530 entries. Linux lists 32 KiB in one piece;
    the rest is room for new entries.
    """

    listed_bytes_limit: int = 28 * 1024
    """The bytes of those names from which a writer archives in the thread that commits. The rest of
    the 32 KiB has room for one entry each of 64 processes.
    """

    archive_interval: int = 50
    """Versions between two looks at the size of `_delta_log`, in a writer's process."""

    keep_checkpoints: int = 3
    """Newest checkpoints that are kept, so that a damaged one has a recent substitute."""

    keep_checkpoint_interval: int = 1000
    """Of older checkpoints, the first in each span of this many versions is kept, for time
    travel.
    """

    clean_up_grace_s: float = CLEAN_UP_GRACE_S
    """Seconds of uptime between seeing a log-start marker and removing the entries below it."""

    merge_files: int = 32
    """Minimum number of small neighbouring files for a merge."""

    dirty_bytes_max: int = 256 * 1024 * 1024
    """Bytes of dirty files whose keys one key compaction loads; bounds its memory."""

    file_delete_delay_ms: int | None = None
    """Milliseconds that a file is kept after it has left its topic. None: the topic's
    `file.delete.delay.ms`.
    """

    scan_interval_ms: int = 3 * 60 * 60 * 1000
    """Milliseconds between two scans of a topic's folder for orphan files. It adds to the time that
    each is kept.
    """

    background_fraction: float = 0.1
    """Maximum fraction of the time, from 0 to 1, that maintenance works in a producer's process;
    otherwise it sleeps.
    """

    background_interval_s: float = 300.0
    """A producer maintains a topic that is rarely written every so many seconds, plus up to as many
    at random.
    """

    in_flight_ms: int = 60_000
    """A file younger than this many milliseconds when a scan finds it may be about to be committed,
    and is left to a later scan.
    """

    clean_up_interval_s: float = 600.0
    """Seconds between two clean-ups of a log, each of which lists the whole log folder."""


DEFAULT_SETTINGS = MaintenanceSettings()
