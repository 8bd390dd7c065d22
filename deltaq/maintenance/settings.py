"""The numbers that maintenance goes by, in one place, so that tests and the simulation can take small ones."""

from __future__ import annotations

from dataclasses import dataclass

from deltaq.delta.log import CLEAN_UP_GRACE_S

__all__ = ["DEFAULT_SETTINGS", "MaintenanceSettings"]


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """How maintenance does its work; the defaults are those of every deltaq client.

    Log entries are kept for `log_retention_ms` at least (Kafka's `metadata.max.retention.ms`), but never fewer than the
    newest `keep_entries_min` and, whatever their age, not many more than the newest `keep_entries_max`.
    """

    checkpoint_interval: int = 100
    """A checkpoint is written at each version that is a multiple of this, but see `checkpoint_rest_s`: a reader applies
    about so many entries at most."""

    checkpoint_rest_s: float = 10.0
    """Seconds between two checkpoints beside a writer, however fast it commits: each one keeps it waiting a little. At
    200 commits a second a reader may have 2,000 entries to apply."""

    log_retention_ms: int = 24 * 60 * 60 * 1000
    """Age from which on a log entry may go."""

    keep_entries_min: int = 1000
    """Log entries that always stay: whoever follows a log may be away for so many without loading it anew."""

    keep_entries_max: int = 100_000
    """Log entries that stay at most, plus what came since the last checkpoint and clean-up."""

    keep_checkpoints: int = 3
    """Newest checkpoints that stay: if one is damaged, there is another nearby."""

    keep_checkpoint_interval: int = 1000
    """Of older checkpoints the first in each span of so many versions stays, for readers of a topic as it was."""

    clean_up_grace_s: float = CLEAN_UP_GRACE_S
    """Seconds of uptime that a cleaner waits between seeing a log-start marker and removing what lies below it."""

    merge_files: int = 32
    """Small neighbouring files that are worth a merge."""

    dirty_bytes_max: int = 256 * 1024 * 1024
    """Bytes of dirty files whose keys are learned in one cleaning: a bound on the memory that it takes."""

    file_delete_delay_ms: int | None = None
    """How long a file stays after it has left its topic; None leaves that to the topic's `file.delete.delay.ms`."""

    look_interval_ms: int = 3 * 60 * 60 * 1000
    """How often a topic's folder is listed for files that are not in the topic. Each such file stays so much longer."""

    background_share: float = 0.1
    """Of the time, how much maintenance in a producer's process works at most; the rest it sleeps."""

    background_interval_s: float = 300.0
    """Seconds from which on, up to twice as many, a producer looks after a topic to which little is written."""

    in_flight_ms: int = 60_000
    """A file this young when a look found it was perhaps just being committed: so it is left for a later look."""

    clean_up_interval_s: float = 600.0
    """Seconds between two looks at a log for what may go: they list all of it."""


DEFAULT_SETTINGS = MaintenanceSettings()
