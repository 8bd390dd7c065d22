"""Carries out the maintenance plans of one topic, round after round: plan, take an action, do it,
plan again.

All long work comes in pieces (`deltaq/work.py`), throttled. `work_queue` decides its order.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

from deltaq.clock import Clock
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import Corrupt, KafkaException, OutcomeUnknown, Unavailable
from deltaq.maintenance.clock_check import NOTHING_EXPIRES_MS, compare_clocks, expiry_ms
from deltaq.maintenance.excluded_files import ExcludedFiles
from deltaq.maintenance.file_compaction import FileRewrite, count_waiting, plan_compaction
from deltaq.maintenance.key_compaction import KeyCleaner
from deltaq.maintenance.log_archive import LogArchive
from deltaq.maintenance.log_maintenance import LogMaintenance
from deltaq.maintenance.orphan_files import OrphanFileRemover, older_than
from deltaq.maintenance.plan import HELD_KINDS, DueAction, Kind, MaintainedTopic, plan
from deltaq.maintenance.report import Notify, Report
from deltaq.maintenance.rewrite import COMMIT_TIMEOUT_S, Rewriter
from deltaq.maintenance.row_cache import RowCache
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.maintenance.work_queue import WorkQueue
from deltaq.store import Store
from deltaq.topics.holds import (
    HeldOffsets,
    Hold,
    StoredHold,
    dead_holds,
    held_offsets,
    remove_hold,
    stored_holds,
    valid_holds,
)
from deltaq.topics.log import StalePlan
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.scan import FileGone
from deltaq.topics.state import TopicHead
from deltaq.topics.view import KnownTopic
from deltaq.work import Work

_log = logging.getLogger("deltaq.maintenance")

T = TypeVar("T")

BACKLOG_MERGES = 8
"""Number of pending merges of small files above which background maintenance works longer than
`background_fraction`.
"""

STALE_PLANS_MAX = 5
"""Number of stale plans in one round after which the round leaves the topic to the processes that
conflict with it.
"""

_NAME_STATISTICS = "name the columns that have statistics, for other engines"


class _ActionOutcome(Enum):
    """The outcome of one action on records or files."""

    DONE = auto()
    STALE = auto()
    REPLAN = auto()  # a file was excluded
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class _HoldsRead:
    """The holds on a topic, and what they keep, with what came after the position at which they
    were read.
    """

    topic_id: str
    holds: tuple[Hold, ...]
    offsets: HeldOffsets


class TopicPass:
    """Maintenance of one topic, round after round. Several instances may run at once. Not
    thread-safe.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock,
        settings: MaintenanceSettings,
        throttle: Throttle,
        notify: Notify | None = None,
        row_cache: RowCache | None = None,
        beside: KnownTopic | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._throttle = throttle
        self._row_cache = row_cache or RowCache(clock)
        self._report = Report("topic", topic, notify)
        self._log = MaintenanceLog(
            store,
            topic,
            clock,
            client_id="deltaq-maintenance",
            beside=beside,
            pause=throttle.pause,
        )
        self._excluded = ExcludedFiles(self._log)
        self._rewriter = Rewriter(
            store, self._log, clock, self._row_cache, gently=throttle.shares_time
        )
        self._key_cleaner = KeyCleaner(store, self._log, clock, self._rewriter)
        self._orphans = OrphanFileRemover(store, self._log, clock, settings)
        self._log_archive = LogArchive(store, self._log.folder, settings)
        self._log_maintenance = LogMaintenance(
            store, self._log.folder, clock, settings, self._report
        )
        self._queue = WorkQueue(clock.monotonic())
        self._held: _HoldsRead | None = None
        # Uptime: a wall clock that is set back would delay the next scan.
        self._scanned_at = float("-inf")

    def plan(self) -> Counter[str]:
        """Report the first action of each kind that a round would take. Changes nothing. Raises
        what `run` raises.
        """
        return self._report.plan(self._planned())

    def _planned(self) -> Iterator[str]:
        self._held = None
        yield from map(_words, self._plan().values() if self._log.load() else ())
        for holder in self._holders():
            self._report.line(f"records are kept for {holder!r}, which holds the topic")
        if self._log.version < 0:
            return
        with raising_unavailable():
            if self._log.head is not None and not self._log.names_statistics:
                yield _NAME_STATISTICS
            yield from self._log_maintenance.plan_checkpoint(self._log.version)
            if archived := len(self._log_archive.plan().versions):
                yield f"archive {archived} log entries"
            deleted, noted = self._orphans.plan(
                expiry_ms(self._store, self._clock), self._grace_ms()
            )
            if deleted:
                yield f"delete up to {deleted} files that are no longer in it"
            if noted:
                yield f"note {noted} files that are not in it, to be deleted later"
            for dead, reason in self._dead_holds(expiry_ms(self._store, self._clock)):
                yield _words_of_removal(dead, reason)
            self._configure_log_maintenance()
            yield from self._log_maintenance.plan_clean_up(self._log.delta_log)

    def run(self, *, checkpoint: bool = True) -> Counter[str]:
        """Do all that is due. Returns counts by kind of action. Without `checkpoint`, the caller
        writes checkpoints.

        A data file that cannot be read is excluded from then on; one that the store fails to
        return, until the next round. These and other store errors during a rewrite, and a
        checkpoint that cannot be made, are reported and counted as failures; the round goes on.
        Raises Corrupt, Incompatible, Unavailable, OutcomeUnknown, Stopped.
        """
        self._report.begin()
        self._throttle.begin()
        self._held = None
        # Beside a writer the log is at what this process has read; a load would read it once more.
        if not self._log.is_beside_writer:
            self._log.load()
        is_alive = self._log.catch_up()
        if self._log.version >= 0:
            compare_clocks(self._store, self._clock)
        self._queue = WorkQueue(self._clock.monotonic())
        if is_alive:
            self._name_statistics()
            self._maintain_files(checkpoint=checkpoint)
        # Drop the rows of files that have expired or were rewritten by others; also those of files
        # that are being committed. With `checkpoint`, little is written, and the rows of a few
        # files are not worth the memory.
        self._row_cache.forget_all_but(() if checkpoint else self._log.index.files)
        if self._log.version >= 0:
            self._run_housekeeping(checkpoint=checkpoint)
        return self._report.counts

    def is_waiting(self) -> bool:
        """Whether log entries wait for the grace period before they are removed."""
        return self._log_maintenance.is_waiting()

    def finish(self) -> Counter[str]:
        """After the grace period: remove what waited for it. Raises what `run` raises."""
        self._report.begin()
        self._configure_log_maintenance()
        self._throttle.run(self._log_maintenance.clean(self._log.delta_log))
        return self._report.counts

    # --- records and files ---

    def _name_statistics(self) -> None:
        """Name the columns with statistics in a table of an earlier deltaq; else delta-rs expects
        them for all.
        """
        if self._log.names_statistics:
            return
        self._report.line(_NAME_STATISTICS)
        if self._log.name_statistics(self._clock.monotonic() + COMMIT_TIMEOUT_S) is None:
            self._report.counts["tables corrected"] += 1

    def _maintain_files(self, *, checkpoint: bool) -> None:
        """Do the planned actions one after the other, until none is due, and the housekeeping when
        that is due.
        """
        # New files may arrive as fast as they are merged. Unless it is beside a writer, the round
        # ends with the files that were there at its start, so that the other topics of the root are
        # maintained too.
        until = None if self._log.is_beside_writer else self._log.version
        stale_plans = 0
        while self._log.catch_up() and stale_plans < STALE_PLANS_MAX:
            self._orphans.note_live()
            if self._queue.is_housekeeping_due(self._clock.monotonic()):
                self._run_housekeeping(checkpoint=checkpoint)
                continue  # the topic may have been deleted, or created again
            self._throttle.step()
            self._set_boost()
            self._throttle.step()
            outcome = self._do_next(until)
            # After a failure the round ends: most likely the store does not answer, and the next
            # action would fail, too.
            if outcome is None or outcome is _ActionOutcome.FAILED:
                return
            stale_plans += outcome is _ActionOutcome.STALE

    def _do_next(self, until: int | None) -> _ActionOutcome | None:
        """Do the next planned action that changes the topic; None if there is none."""
        version = self._log.version
        for kind, action in self._queue.in_order(self._plan(until)):
            if until is not None and _oldest(action, self._log.index, self._log.live_head) > until:
                continue  # all of its files came after the round began: the next round does it
            self._report.line(_words(action))
            self._queue.began(kind)
            outcome = self._attempt(action)
            if outcome is not _ActionOutcome.DONE:
                return outcome
            self._throttle.step()
            if self._log.version != version:
                return outcome  # the other plans were made for an earlier version
        return None  # the same plans would be made again, for ever

    def _plan(self, until: int | None = None) -> dict[Kind, DueAction]:
        self._excluded.forget_removed()
        head = self._log.live_head
        if self._held is not None and self._held.topic_id != head.topic_id:
            self._held = None
        maintained = MaintainedTopic(
            head,
            self._log.index,
            self._log.settings,
            self._excluded.damaged,
            self._excluded.unmergeable,
            until,
            None if self._held is None else self._held.offsets,
        )
        now_ms = expiry_ms(self._store, self._clock)
        about = self._settings, now_ms, self._rewriter.bytes_max, self._throttle.step
        actions = plan(maintained, *about)
        if self._held is None and not HELD_KINDS.isdisjoint(actions):
            self._held = self._read_holds(head, now_ms)
            # Without holds, the plan for this position stands.
            if self._held.holds:
                actions = plan(replace(maintained, held=self._held.offsets), *about)
        # Key compaction stores the expiry of tombstones, from the wrong clock.
        if now_ms == NOTHING_EXPIRES_MS:
            actions.pop(Kind.CLEANING, None)
        return actions

    def _holders(self) -> list[str]:
        """The holders whose holds the latest plan respects."""
        return [] if self._held is None else [hold.holder for hold in self._held.holds]

    def _read_holds(self, head: TopicHead, now_ms: int) -> _HoldsRead:
        """Read the holds for plans at the position `head` and, up to its offsets, at later ones."""
        # The position first, then the holds. A hold that this listing misses is written after it,
        # and its holder reads the log after that, so its cut is at or after the position. Removal
        # that is planned for records before the position changes no state at such a cut. In the
        # other order, a hold could be written after the listing, with a cut before the position.
        stored = stored_holds(self._store, self._log.topic)
        holds = valid_holds(stored, head.topic_id, now_ms)
        return _HoldsRead(head.topic_id, holds, held_offsets(holds, head.next_offsets))

    def _attempt(self, action: DueAction) -> _ActionOutcome:
        try:
            stale = self._do(action)
        except FileGone as error:
            self._log.load()
            return _ActionOutcome.REPLAN if self._exclude_cause(error) else _ActionOutcome.STALE
        except (Corrupt, Unavailable, OutcomeUnknown) as error:
            if self._exclude_cause(error):
                return _ActionOutcome.REPLAN
            if isinstance(error, Corrupt):
                raise  # the log is damaged, on which all else depends
            self._report.failed(str(error))
            return _ActionOutcome.FAILED
        if stale is None:
            return _ActionOutcome.DONE
        self._log.load()
        return _ActionOutcome.STALE

    def _do(self, action: DueAction) -> StalePlan | None:
        topic_id = self._log.live_head.topic_id
        if isinstance(action, Trimmed):
            what, done = "files expired", self._retain(action, topic_id)
        else:
            if isinstance(action, FileRewrite):
                what, work = "files merged", self._merge(action)
            else:
                what = "records superseded"
                work = self._key_cleaner.clean(action, self._log.settings)
            done = self._complete(work, action.newest_version, topic_id)
        if isinstance(done, StalePlan):
            return done
        self._report.counts[what] += done
        return None

    def _retain(self, trimmed: Trimmed, topic_id: str) -> int | StalePlan:
        def decide(head: TopicHead) -> Trimmed | StalePlan:
            return trimmed if head.topic_id == topic_id else StalePlan()

        stale = self._log.retain(
            decide, self._clock.monotonic() + COMMIT_TIMEOUT_S, self._log.settings
        )
        return len(trimmed.paths) if stale is None else stale

    def _merge(self, files: FileRewrite) -> Work[int | StalePlan]:
        """Merge small files. Returns their number."""
        clean = [file.clean for file in files.inputs]
        clean_until_ms = None if None in clean else max(time or 0 for time in clean)
        made = yield from self._rewriter.rewrite(files, clean=clean_until_ms)
        if isinstance(made, StalePlan):
            return made
        if len(made) > len(files.outputs) and 2 * len(made) > len(files.inputs):
            # The records decode to far more memory than was known. Merging the new files again
            # might never end.
            self._excluded.unmergeable.update(made)
        return len(files.inputs)

    def _exclude_cause(self, error: Exception) -> bool:
        """Exclude the file that caused an error from all plans, if there is one."""
        reason = self._excluded.exclude_cause(error)
        if reason is not None:
            self._report.failed(reason)
        return reason is not None

    def _set_boost(self) -> None:
        """Raise the throttle's fraction while more small files wait than throttled maintenance can
        merge.
        """
        waiting = count_waiting(
            self._log.index,
            self._log.settings.segment_bytes,
            self._settings,
            decoded_max=self._rewriter.bytes_max,
            left_out=self._excluded.unmerged,
            yield_point=self._throttle.step,
        )
        self._throttle.boost = max(1.0, waiting / (BACKLOG_MERGES * self._settings.merge_files))

    # --- long work ---

    def _complete(self, work: Work[T], after: int, topic_id: str | None = None) -> T | StalePlan:
        """Do long work, throttled. Beside a writer, merge files that come after version `after` in
        between; then, with `topic_id`, the work is given up as stale once the topic is deleted, or
        created again.
        """
        with closing(work):
            while True:
                try:
                    next(work)
                except StopIteration as end:
                    result: T = end.value
                    return result
                self._throttle.step()
                # Without a writer in this process, new files are not in the row cache and can wait
                # for the next round.
                if self._log.is_beside_writer:
                    self._merge_between_pieces(self._log.versions_behind(), after)
                    head = self._log.head
                    if topic_id is not None and (head is None or head.topic_id != topic_id):
                        return StalePlan()

    def _merge_between_pieces(self, new_versions: int, after: int) -> None:
        now_s = self._clock.monotonic()
        if not self._queue.may_interrupt(new_versions, now_s):
            return
        made: object
        try:
            made = self._throttle.run(self._merge_new_files(after))
        except (FileGone, KafkaException) as error:
            # This merge will be planned again. Its failure is no reason to abandon the interrupted
            # work.
            made = error
            if isinstance(error, Corrupt):
                self._exclude_cause(error)
        if not isinstance(made, int):
            _log.info("a merge of new files of topic %r was not made: %s", self._log.topic, made)
        self._queue.interrupted(now_s, self._clock.monotonic())
        self._throttle.begin()

    def _merge_new_files(self, after: int) -> Work[int | StalePlan]:
        """Merge the smallest of the files that came after version `after`. Returns their number."""
        if not self._log.catch_up():
            return 0
        self._orphans.note_live()
        yield
        self._set_boost()
        yield
        files = plan_compaction(
            self._log.index,
            self._log.live_head,
            self._log.settings.segment_bytes,
            self._settings,
            after,
            decoded_max=self._rewriter.bytes_max,
            left_out=self._excluded.unmerged,
            yield_point=self._throttle.step,
        )
        return 0 if files is None else (yield from self._merge(files))

    # --- housekeeping ---

    def _run_housekeeping(self, *, checkpoint: bool) -> None:
        self._throttle.boost = 1.0
        try:
            self._complete(self._housekeeping(checkpoint=checkpoint), after=-1)
        finally:
            self._queue.housekeeping_done(self._clock.monotonic())
            self._excluded.retry_unread()

    def _housekeeping(self, *, checkpoint: bool) -> Work[None]:
        """Checkpointing, orphan removal and log clean-up."""
        # Again, since beside a fast writer a round may last for days.
        compare_clocks(self._store, self._clock)
        # For the same reason, the holds are read again when they are needed next.
        self._held = None
        self._configure_log_maintenance()
        if checkpoint:
            self._log_maintenance.write_checkpoint(self._log.state)
            yield
            with raising_unavailable():
                self._report.counts["log entries archived"] += yield from self._log_archive.move()
        yield from self._remove_orphans()
        if self._log_maintenance.is_clean_up_due():
            yield from self._log_maintenance.clean(self._log.delta_log)

    def _configure_log_maintenance(self) -> None:
        retention_ms = self._log.settings.metadata_max_retention_ms
        self._log_maintenance.settings = replace(self._settings, log_retention_ms=retention_ms)

    def _remove_orphans(self) -> Work[None]:
        """Remove the orphan files of earlier scans, and scan again if that is due."""
        counts, now_ms = self._report.counts, expiry_ms(self._store, self._clock)
        if now_ms == NOTHING_EXPIRES_MS:
            # No scan either: it would be recorded with a time that is wrong for other machines.
            return
        for scan in self._orphans.due(now_ms, self._grace_ms()):
            yield
            if scan is None:
                continue
            if old := older_than(scan, self._settings.in_flight_ms):
                self._report.line(f"delete up to {len(old)} files that are no longer in it")
            counts["files deleted"] += yield from self._orphans.remove(scan)
        began = self._clock.uptime()
        if (began - self._scanned_at) * 1000 >= self._settings.scan_interval_ms:
            counts["files noted"] += yield from self._orphans.scan()
            self._scanned_at = began
            self._remove_dead_holds(now_ms)

    def _remove_dead_holds(self, now_ms: int) -> None:
        for hold, reason in self._dead_holds(now_ms):
            self._report.line(_words_of_removal(hold, reason))
            remove_hold(self._store, self._log.topic, hold.holder)
            self._report.counts["holds removed"] += 1

    def _dead_holds(self, now_ms: int) -> list[tuple[StoredHold, str]]:
        """The holds to be removed, if the scan for orphan files has seen any, and why."""
        if not self._orphans.has_seen_holds:
            return []
        stored = stored_holds(self._store, self._log.topic)
        # After the listing: a topic may have been created again meanwhile, with holds on it.
        self._log.catch_up()
        self._orphans.note_live()
        head = self._log.head
        return dead_holds(stored, None if head is None else head.topic_id, now_ms)

    def _grace_ms(self) -> int:
        wanted = self._settings.file_delete_delay_ms
        return self._log.settings.files_kept_ms if wanted is None else wanted


def _oldest(action: DueAction, index: OffsetIndex, head: TopicHead) -> int:
    """The version of the oldest file that an action affects."""
    match action:
        case Trimmed():
            bounds = enumerate(zip(head.start_offsets, action.start_offsets, strict=True))
            batches = (
                index.find(partition, start) for partition, (start, end) in bounds if start < end
            )
            files = [
                index.files[path]
                for path in (*action.paths, *(batch.path for batch in batches if batch))
            ]
        case FileRewrite():
            files = [*action.inputs]
        case _:
            files = [file for unit in action.dirty or action.clean for file in unit]
    return min(file.segment.version for file in files)


def _words(action: DueAction) -> str:
    if isinstance(action, Trimmed):
        return f"remove expired records, and {len(action.paths)} files with them"
    return str(action)


def _words_of_removal(hold: StoredHold, reason: str) -> str:
    return f"remove the hold of {hold.holder!r}: {reason}"
