"""Carries out the maintenance plans of one topic, round after round."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.checkpoint import pointed_version
from deltaq.delta.store_errors import unavailable
from deltaq.errors import Corrupt, KafkaException, OutcomeUnknown, Unavailable
from deltaq.maintenance.checkpoint import CheckpointFailed, write_checkpoint
from deltaq.maintenance.clock_check import NOTHING_EXPIRES_MS, compare_clocks, expiry_ms
from deltaq.maintenance.file_compaction import MERGED_FILES_MAX, FileRewrite, count_waiting, plan_compaction
from deltaq.maintenance.key_compaction import KeyCleaner
from deltaq.maintenance.log_cleanup import LogCleanup
from deltaq.maintenance.orphan_files import OrphanFileRemover, settled
from deltaq.maintenance.plan import Action, Kind, TopicSnapshot, plan
from deltaq.maintenance.rewrite import COMMIT_TIMEOUT_S, Rewriter
from deltaq.maintenance.row_cache import RowCache
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.store import Store, StoreError
from deltaq.topics.log import SharedTopicLog, StalePlan, TopicLog
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.scan import FileGone
from deltaq.topics.state import TopicHead

__all__ = ["FAILURES", "Tell", "TopicPass"]

_log = logging.getLogger("deltaq.maintenance")

FAILURES = "failures"
"""The name under which failures are counted."""

Tell: TypeAlias = Callable[[str], None]
"""Receives a line about each action."""

BACKLOG_MERGES = 8
"""Number of pending merges of small files above which background maintenance exceeds its share of the time."""

NEW_VERSIONS = MERGED_FILES_MAX
"""Number of new commits by the writer after which a merge of older files is interrupted to merge the new ones."""

TIDY_S = 60.0
"""Run checkpointing, orphan removal and log clean-up at least this often, in seconds, even while merges are pending.
Beside a fast writer merges are always pending."""

_NAME_STATISTICS = "name the columns that have statistics, for other engines"

OVERTAKEN_MAX = 5
"""Number of stale plans in one round after which the round leaves the topic to the processes that conflict with it."""

UNREAD_MAX = 5
"""Number of files that the store may fail to return before it counts as unavailable and the round skips the records."""


class TopicPass:
    """Maintenance of one topic, round after round. Not thread-safe.

    Several instances, in any processes, may run at once: a stale plan is dropped.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock,
        settings: MaintenanceSettings,
        throttle: Throttle,
        tell: Tell | None = None,
        row_cache: RowCache | None = None,
        beside: SharedTopicLog | None = None,
    ) -> None:
        self._row_cache = row_cache or RowCache(clock)
        self._clock = clock
        self._settings = settings
        self._throttle = throttle
        self._tell = tell or (lambda _: None)
        client_id = "deltaq-maintenance"
        self._log = TopicLog(
            store, topic, clock, indexed=True, client_id=client_id, beside=beside, between=throttle.pause
        )
        self._beside = beside
        self._of_topic: str | None = None  # during long work on records: the topic id
        self._after: int | None = None  # during long work: files newer than this version are merged in between
        self._damaged: set[str] = set()
        self._unread: set[str] = set()  # those of `_damaged` that are tried again in the next round
        self._unmergeable: set[str] = set()
        self._new_files_at = float("-inf")
        self._rewriter = Rewriter(store, self._log, clock, self._step, self._row_cache, gently=throttle.shares_time)
        self._key_cleaner = KeyCleaner(store, self._log, clock, self._rewriter, self._step)
        self._orphans = OrphanFileRemover(store, self._log, clock, throttle, settings, self._step)
        self._store = store
        # One instance for all rounds, since it remembers when it first saw each marker.
        self._log_cleanup = LogCleanup(store, clock, settings, self._step)
        self._looked_at = float("-inf")  # uptime: a wall clock that is set back would delay the next scan
        self._tidied_at = self._cleaned_at = float("-inf")

    def plan(self) -> Counter[str]:
        """Report the first action of each kind that a round would take. Changes nothing. Raises what `run` raises."""
        done: Counter[str] = Counter()
        for words in self._planned():
            self._tell(f"{self._log.topic}: {words}")
            done["actions planned"] += 1
        return done

    def _planned(self) -> Iterator[str]:
        yield from map(_words, self._plan().values() if self._log.load() else ())
        if self._log.version < 0:
            return
        try:
            if self._log.head is not None and not self._log.names_statistics:
                yield _NAME_STATISTICS
            if self._is_checkpoint_due():
                yield f"write a checkpoint of version {self._log.version}"
            deleted, noted = self._orphans.plan(expiry_ms(self._store, self._clock), self._grace_ms())
            if deleted:
                yield f"delete up to {deleted} files that are no longer in it"
            if noted:
                yield f"note {noted} files that are not in it, to be deleted later"
            yield from self._configured_log_cleanup().plan(self._log.delta_log).words()
        except StoreError as error:
            raise unavailable(error) from error

    def run(self, *, checkpoint: bool = True) -> Counter[str]:
        """Do all that is due. Returns counts by kind of action. Without `checkpoint`, the caller writes checkpoints.

        A data file that cannot be read is reported, counted as a failure, and excluded from then on. A file that the
        store fails to return is excluded until the next round. Other store errors during a rewrite, and a checkpoint
        that cannot be made, are counted as failures too. After a failure the rest of the round goes on.

        Raises Corrupt, Incompatible, Unavailable, OutcomeUnknown, Stopped. The next round does what this one did not.
        """
        done: Counter[str] = Counter()
        self._throttle.begin()
        if not self._log.is_beside_writer:
            self._log.load()
        is_alive = self._log.catch_up()
        if self._log.version >= 0:
            compare_clocks(self._store, self._clock)
        self._tidied_at = self._clock.monotonic()
        if is_alive:
            self._name_statistics(done)
            self._work(done, checkpoint=checkpoint)
        # Drop the rows of files that have expired or were rewritten by others. Rows of files that are being committed
        # right now are lost too; a merge then reads the files. With `checkpoint`, little is written to the topic, and
        # the rows of a few files are not worth the memory.
        self._row_cache.forget_all_but(() if checkpoint else self._log.index.files)
        if self._log.version >= 0:
            self._tidy(done, checkpoint=checkpoint)
        return done

    def _name_statistics(self, done: Counter[str]) -> None:
        """Name the columns with statistics in a table of an earlier deltaq; else delta-rs expects them for all."""
        if self._log.names_statistics:
            return
        self._tell(f"{self._log.topic}: {_NAME_STATISTICS}")
        try:
            self._log.name_statistics(self._clock.monotonic() + COMMIT_TIMEOUT_S)
        except StalePlan:
            return
        done["tables corrected"] += 1

    def _tidy(self, done: Counter[str], *, checkpoint: bool) -> None:
        """Checkpointing, orphan removal and log clean-up. Small files that arrive meanwhile are merged in between."""
        self._throttle.boost = 1.0
        self._after = -1
        try:
            compare_clocks(self._store, self._clock)  # again, since beside a fast writer a round may last for days
            if checkpoint:
                self._write_checkpoint(done)
            self._sweep(done)
            if self._clock.monotonic() - self._cleaned_at >= self._settings.clean_up_interval_s:
                done.update(self.clean_log())
        finally:
            self._after = None
            self._tidied_at = self._clock.monotonic()
            self._damaged -= self._unread
            self._unread.clear()

    def is_waiting(self) -> bool:
        """Whether log entries wait for the grace period before they are removed."""
        return self._log_cleanup.is_waiting(self._log.folder)

    def second_look(self) -> Counter[str]:
        """After the grace period: remove what waited for it. Raises what `run` raises."""
        return self.clean_log()

    def clean_log(self) -> Counter[str]:
        """Remove log entries and checkpoints that a newer checkpoint replaces. Raises what `run` raises."""
        cleaner = self._configured_log_cleanup()
        self._cleaned_at = self._clock.monotonic()
        try:
            marked = cleaner.mark(self._log.delta_log)
            if marked is not None:
                self._tell(f"{self._log.topic}: the log will start at version {marked}")
            removed = cleaner.sweep(self._log.folder)
        except StoreError as error:
            raise unavailable(error) from error
        return Counter({"log objects deleted": removed})

    def _configured_log_cleanup(self) -> LogCleanup:
        retention_ms = self._log.settings.metadata_max_retention_ms
        self._log_cleanup.settings = replace(self._settings, log_retention_ms=retention_ms)
        return self._log_cleanup

    def _is_checkpoint_due(self) -> bool:
        pointed = pointed_version(self._store, self._log.folder + names.LOG_FOLDER)
        return self._log.version - (-1 if pointed is None else pointed) >= self._settings.checkpoint_interval

    def _write_checkpoint(self, done: Counter[str]) -> None:
        """Write a checkpoint at the end of the log if the newest is far behind. Writers write them only on commit."""
        try:
            if not self._is_checkpoint_due():
                return
            write_checkpoint(self._store, self._log.folder + names.LOG_FOLDER, self._log.copied_state())
            done["checkpoints"] += 1
        except CheckpointFailed as error:
            self._failed(f"no checkpoint could be made: {error}", done)
        except StoreError as error:
            raise unavailable(error) from error
        self._throttle.step()

    # --- records and files ---

    def _plan(self, until: int | None = None) -> dict[Kind, Action]:
        self._damaged &= self._log.index.files.keys()
        self._unmergeable &= self._log.index.files.keys()
        about = self._log.live_head, self._log.index, self._log.settings
        snapshot = TopicSnapshot(*about, self._damaged, self._unmergeable, until)
        now_ms = expiry_ms(self._store, self._clock)
        actions = plan(snapshot, self._settings, now_ms, self._rewriter.bytes_max, self._throttle.step)
        if now_ms == NOTHING_EXPIRES_MS:  # key compaction stores the expiry of tombstones, from the wrong clock
            actions.pop(Kind.CLEANING, None)
        return actions

    def _work(self, done: Counter[str], *, checkpoint: bool) -> None:
        thwarted = 0
        # New files may arrive as fast as they are merged. Beside a writer the round goes on; otherwise it ends with the
        # files that were there at its start, so that the other topics of the root are maintained too.
        until = self._log.version if self._beside is None else None
        turns = list(Kind)  # least recently done first: beside a writer, every kind may be due all the time
        while self._log.catch_up() and thwarted < OVERTAKEN_MAX:
            self._orphans.note_live()
            if self._clock.monotonic() - self._tidied_at >= TIDY_S:
                self._tidy(done, checkpoint=checkpoint)
                continue  # the topic may have been deleted, or created again
            before = self._log.version
            self._throttle.step()
            self._set_poll_interval()
            self._throttle.step()
            for kind, action in sorted(self._plan(until).items(), key=lambda planned: turns.index(planned[0])):
                if until is not None and _oldest(action, self._log.index, self._log.live_head) > until:
                    continue  # all of its files came after the round began: the next round does it
                self._tell(f"{self._log.topic}: {_words(action)}")
                turns.remove(kind)
                turns.append(kind)
                try:
                    self._do(action, done)
                except (StalePlan, FileGone) as error:
                    self._log.load()
                    if not self._is_damage(error, done):
                        thwarted += 1
                    break
                except (Corrupt, Unavailable, OutcomeUnknown) as error:
                    if self._is_damage(error, done):
                        break
                    if isinstance(error, Corrupt):
                        raise  # the log is damaged, on which all else depends
                    self._failed(str(error), done)
                    return
                self._throttle.step()
                if self._log.version != before:
                    break  # the other plans were made for an earlier version
            else:
                return  # no plan changed the topic: the same plans would be made again, for ever

    def _do(self, action: Action, done: Counter[str]) -> None:
        match action:
            case Trimmed():
                self._retain(action, self._log.live_head)
                done["files expired"] += len(action.paths)
            case FileRewrite():
                with self._interruptible(action.newest_version):
                    self._merge(action)
                done["files merged"] += len(action.inputs)
            case _:
                with self._interruptible(action.newest_version):
                    done["records superseded"] += self._key_cleaner.clean(action, self._log.settings)

    @contextmanager
    def _interruptible(self, version: int) -> Iterator[None]:
        """Run long work on files up to `version`, while files after it are merged in between.

        A step of the work raises StalePlan if the topic has been deleted, or created again.
        """
        self._after, self._of_topic = version, self._log.live_head.topic_id
        try:
            yield
        finally:
            self._after = self._of_topic = None

    def _is_damage(self, error: Exception, done: Counter[str]) -> bool:
        """Whether an error is a new finding about a data file: it is damaged or lost, or the store fails to return it.

        Every plan that reads the file would fail. So it is excluded from plans, or for this round if the store failed.
        """
        key, reason = None, str(error)
        if isinstance(error, FileGone) and self._log.is_lost(error.file):
            key = error.file.segment.key
            reason = f"{key} is in the topic, and not in the store"
        elif isinstance(error, Corrupt):
            key = error.path
        elif isinstance(cause := error.__cause__, StoreError) and len(self._unread) < UNREAD_MAX:
            key = cause.key
        path = next((file.path for file in self._log.index.files.values() if file.segment.key == key), None)
        if path is None or path in self._damaged:
            return False
        if isinstance(error, Unavailable):
            self._unread.add(path)
        self._damaged.add(path)
        for_now = " for now" if path in self._unread else ""
        self._failed(f"{reason}. Maintenance leaves this file as it is{for_now}", done)
        return True

    def _failed(self, reason: str, done: Counter[str]) -> None:
        done[FAILURES] += 1
        self._tell(f"{self._log.topic}: {reason}")
        _log.warning("maintenance of topic %r: %s", self._log.topic, reason)

    def _merge(self, files: FileRewrite) -> None:
        clean = [file.clean for file in files.inputs]
        made = self._rewriter.rewrite(files, clean=None if None in clean else max(time or 0 for time in clean))
        if len(made) > len(files.outputs) and 2 * len(made) > len(files.inputs):
            # The records decode to far more memory than was known. Merging the new files again might never end.
            self._unmergeable.update(made)

    def _set_poll_interval(self) -> None:
        """Raise the throttle's share while more small files wait than throttled maintenance can merge."""
        target_bytes, decoded_max = self._log.settings.segment_bytes, self._rewriter.bytes_max
        left_out = self._damaged | self._unmergeable
        waiting = count_waiting(
            self._log.index,
            target_bytes,
            self._settings,
            decoded_max=decoded_max,
            left_out=left_out,
            between=self._throttle.step,
        )
        self._throttle.boost = max(1.0, waiting / (BACKLOG_MERGES * self._settings.merge_files))

    def _step(self) -> None:
        """Throttle, and during long work such as a large merge, merge the new small files in between.

        Otherwise new small files would pile up behind it: each plan would take longer, and their rows would be dropped
        from the row cache.
        """
        self._throttle.step()
        after, now_s = self._after, self._clock.monotonic()
        if after is None or self._beside is None or now_s < self._new_files_at:
            return
        if self._beside.version - self._log.version >= NEW_VERSIONS:
            self._after = None
            try:
                self._merge_new_files(after)
            except (StalePlan, FileGone, KafkaException) as error:
                # This merge will be planned again. Its failure is no reason to abandon the interrupted work.
                if isinstance(error, Corrupt):
                    self._is_damage(error, Counter())
                _log.info("a merge of new files of topic %r was not made: %s", self._log.topic, error)
            finally:
                self._after = after
            # Give the interrupted work as much time as this took; otherwise, beside a fast writer, it would never end.
            self._new_files_at = 2 * self._clock.monotonic() - now_s
            self._throttle.begin()
        head = self._log.head
        if self._of_topic is not None and (head is None or head.topic_id != self._of_topic):
            raise StalePlan  # the topic of this work was deleted, or created again

    def _merge_new_files(self, after: int) -> None:
        """Merge the smallest of the files that came after version `after`."""
        if not self._log.catch_up():
            return
        self._orphans.note_live()
        self._throttle.step()
        self._set_poll_interval()
        self._throttle.step()
        head, target_bytes = self._log.live_head, self._log.settings.segment_bytes
        files = plan_compaction(
            self._log.index,
            head,
            target_bytes,
            self._settings,
            after,
            decoded_max=self._rewriter.bytes_max,
            left_out=self._damaged | self._unmergeable,
            between=self._throttle.step,
        )
        if files is not None:
            self._merge(files)

    def _retain(self, trimmed: Trimmed, planned_for: TopicHead) -> None:
        def decide(head: TopicHead) -> Trimmed:
            if head.topic_id != planned_for.topic_id:
                raise StalePlan
            return trimmed

        self._log.retain(decide, self._clock.monotonic() + COMMIT_TIMEOUT_S, self._log.settings)

    # --- orphan files ---

    def _sweep(self, done: Counter[str]) -> None:
        now_ms = expiry_ms(self._store, self._clock)
        if now_ms == NOTHING_EXPIRES_MS:
            return  # no scan either: it would be recorded with a time that is wrong for other machines
        for scan in self._orphans.due(now_ms, self._grace_ms()):
            if doomed := settled(scan, self._settings.in_flight_ms):
                self._tell(f"{self._log.topic}: delete up to {len(doomed)} files that are no longer in it")
            done["files deleted"] += self._orphans.sweep(scan)
        began = self._clock.uptime()
        if (began - self._looked_at) * 1000 >= self._settings.look_interval_ms:
            done["files noted"] += self._orphans.look()
            self._looked_at = began

    def _grace_ms(self) -> int:
        wanted = self._settings.file_delete_delay_ms
        return self._log.settings.file_delete_delay_ms if wanted is None else wanted


def _oldest(action: Action, index: OffsetIndex, head: TopicHead) -> int:
    """The version of the oldest file that an action affects."""
    match action:
        case Trimmed():
            bounds = enumerate(zip(head.start_offsets, action.start_offsets, strict=True))
            batches = (index.find(partition, start) for partition, (start, end) in bounds if start < end)
            files = [index.files[path] for path in (*action.paths, *(batch.path for batch in batches if batch))]
        case FileRewrite():
            files = [*action.inputs]
        case _:
            files = [file for unit in action.dirty or action.clean for file in unit]
    return min(file.segment.version for file in files)


def _words(action: Action) -> str:
    if isinstance(action, Trimmed):
        return f"remove expired records, and {len(action.paths)} files with them"
    return str(action)
