"""Produce batches: which records a sender uploads together, and the state of each batch until its
commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from deltaq import metrics
from deltaq.clock import Clock, Lock
from deltaq.errors import InvalidValue, KafkaException
from deltaq.parquet.plain_segment import PlainRows
from deltaq.producer.accumulator import RecordAccumulator, Records
from deltaq.producer.group_commit import GroupCommitPolicy
from deltaq.topics.columns import Columns
from deltaq.topics.shared_files import PendingSharedFiles
from deltaq.topics.state import PendingSegment

BATCH_ROWS_MAX = 250_000
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Approximate limits of one batch in rows and bytes, far below what one Arrow array can hold."""


@dataclass(slots=True, eq=False)
class BatchPart:
    """The records of one buffer in a batch. Encoding fills in `partitions` (of rows), `columns` and
    `epoch_ms`, the wall-clock time of the monotonic clock's zero. `bytes` is what they take of the
    client's budget. `misfit` says why the topic does not take one of the client's schemas; None if
    it takes all.
    """

    buffer: RecordAccumulator
    records: Records
    bytes: int
    partitions: list[int] = field(default_factory=list)
    columns: Columns | PlainRows | None = None
    epoch_ms: float = 0.0
    misfit: InvalidValue | None = None
    is_reported: bool = False


@dataclass(frozen=True, slots=True)
class SharedFilePlace:
    """A batch's position among its sender's shared files. `follows`: an earlier batch was still
    open when it was given. `as_of`: a version that the log was known to have reached.
    """

    number: int
    follows: bool
    as_of: int


@dataclass(frozen=True, slots=True)
class Taken:
    """It is being encoded and uploaded, and no other process knows of it. With a `place`, it is to
    become a shared file.
    """

    place: SharedFilePlace | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """Its upload as a shared file has begun: any writer of the topic may commit it from now on."""

    place: SharedFilePlace
    segment: PendingSegment


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Its files are in the store, for the topic `topic_id`, and wait for a commit: its own, or if
    it `is_shared` that of any writer of the topic. With a `place` that it does not use, it was to
    become a shared file, and has become several or a large one.

    One that `is_late` was uploaded again, perhaps after a later batch was shared.
    """

    topic_id: str
    segments: tuple[PendingSegment, ...]
    place: SharedFilePlace | None = None
    is_shared: bool = False
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class UploadFailed:
    """Its upload as a shared file has failed. The file `shared` may be in the store nevertheless;
    None if it is not.
    """

    failure: KafkaException
    shared: PendingSegment | None


BatchState: TypeAlias = Taken | Shared | Uploaded | UploadFailed


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """An attempt to commit a batch, which lasts until `until`, in seconds on the monotonic clock.
    `token`: that of the slot tried; None before the first one, and where nothing was written.
    """

    token: str | None
    until: float


@dataclass(slots=True, eq=False)
class ProduceBatch:
    """Records that are uploaded together. `deadline` is that of the oldest; times are seconds on
    the monotonic clock.

    Only `InFlightBatches` changes `state`. `attempt` is the newest attempt to commit it; None
    before the first one.
    """

    parts: list[BatchPart]
    taken_at: float
    deadline: float
    state: BatchState = Taken()
    attempt: CommitAttempt | None = None

    @property
    def is_unwanted(self) -> bool:
        """Whether all of its parts have been reported."""
        return all(part.is_reported for part in self.parts)

    @property
    def uploaded(self) -> Uploaded:
        """Its state after an upload. Raises TypeError before, and after a failure."""
        if isinstance(self.state, Uploaded):
            return self.state
        raise TypeError(f"a batch is {type(self.state).__name__}, not Uploaded")

    @property
    def place(self) -> SharedFilePlace | None:
        """Its place among the shared files, for an upload."""
        return None if isinstance(self.state, UploadFailed) else self.state.place

    @property
    def segments(self) -> tuple[PendingSegment, ...]:
        """Its files that are in the store, or may be."""
        match self.state:
            case Uploaded(segments=segments):
                return segments
            case Shared(segment=segment) | UploadFailed(shared=PendingSegment() as segment):
                return (segment,)
        return ()

    @property
    def is_shared(self) -> bool:
        """Whether other writers may commit it, or may have committed it."""
        match self.state:
            case Uploaded(is_shared=is_shared):
                return is_shared
            case UploadFailed(shared=segment):
                return segment is not None
        return isinstance(self.state, Shared)

    @property
    def has_place(self) -> bool:
        """Whether it has been given a place among the shared files."""
        return isinstance(self.state, UploadFailed) or self.place is not None

    @property
    def others_will_see(self) -> bool:
        """Whether other processes can commit it before a later batch, as far as is known now."""
        return self.has_place if isinstance(self.state, Taken) else self.is_shared


class InFlightBatches:
    """The batches of one sender. Callers and readers hold `lock`, which is re-entrant.

    `call_uploader()` has the sender look for records to upload, and `call_committer()` for uploaded
    batches to commit. One thread at a time commits, which has claimed it.
    """

    def __init__(
        self,
        clock: Clock,
        pending_shared: PendingSharedFiles,
        call_uploader: Callable[[], None],
        call_committer: Callable[[], None],
    ) -> None:
        self.lock: Lock = clock.condition()
        self.call_uploader = call_uploader
        self.call_committer = call_committer
        self.buffers: list[RecordAccumulator] = []  # the source of batches
        # For their upload or commit, in the order of taking.
        self.waiting: deque[ProduceBatch] = deque()
        # The waiting ones and those in a commit: outcome not known yet.
        self.open: list[ProduceBatch] = []
        self.under_way: dict[BatchPart, None] = {}  # parts not reported yet, in the order of taking
        self.is_stopping = False
        self.is_committing = False  # also true while the batches being committed are all reported
        # Each is expired by itself, since producers have different `message.timeout.ms`.
        self.is_expiring = False
        # None: each process commits its own files only.
        self.group_commit: GroupCommitPolicy | None = None
        self._pending_shared = pending_shared
        self._places = 0

    def update_group_commit(self) -> None:
        """Turn group commit on if all producers of this process use it, and off if one does not."""
        # A batch has records of all producers, and one of them wants no other process to commit its
        # own.
        if self.buffers and not all(buffer.settings.group_commit for buffer in self.buffers):
            self.group_commit = None
        elif self.buffers and self.group_commit is None:
            self.group_commit = GroupCommitPolicy()

    def contended_left_s(self, now: float) -> float:
        """Seconds for which files will be shared without another sign of other writers; 0 without
        group commit.
        """
        policy = self.group_commit
        return 0.0 if policy is None else policy.contended_left_s(now)

    def take(self, now: float, *, as_of: int) -> ProduceBatch:
        """Take a batch from the buffers. Under contention it gets a place as a shared file, unless
        an earlier open batch is not shared: other writers could not commit it in order.
        """
        parts = list(_oldest(self.buffers))
        deadline = min(part.records.produced_at + part.buffer.settings.timeout_s for part in parts)
        batch = ProduceBatch(parts, now, deadline)
        if self.contended_left_s(now) > 0 and all(other.others_will_see for other in self.open):
            batch.state = Taken(self.place(as_of, follows=bool(self.open)))
        self.waiting.append(batch)
        self.open.append(batch)
        self.under_way.update(dict.fromkeys(parts))
        return batch

    def take_all(self, buffer: RecordAccumulator) -> list[BatchPart]:
        """Take all records of a buffer, not to be written. The caller holds the lock."""
        taken = iter(lambda: buffer.take(BATCH_ROWS_MAX, float("inf")), None)
        return [BatchPart(buffer, *records) for records in taken]

    def parts_under_way(self, buffer: RecordAccumulator) -> list[BatchPart]:
        """The parts of a buffer that are taken and not reported yet. The caller holds the lock."""
        return [part for part in self.under_way if part.buffer is buffer]

    def remove(self, buffer: RecordAccumulator) -> None:
        """Take no more records from a buffer. The caller holds the lock."""
        self.buffers = [other for other in self.buffers if other is not buffer]

    def place(self, as_of: int, *, follows: bool) -> SharedFilePlace:
        """The next place, in the order of the records. The log must reach `as_of` before another
        one is given.
        """
        self._places += 1
        if follows:
            metrics.PIPELINED_BATCHES.add()
        return SharedFilePlace(self._places - 1, follows, as_of)

    # --- the states of a batch ---

    def share(self, batch: ProduceBatch, segment: PendingSegment) -> bool:
        """Mark a batch as shared: others may commit it from now on. False if it has already been
        reported as failed.
        """
        with self.lock:
            # This can happen when its records were purged, or expired, during the upload.
            if batch.is_unwanted:
                return False
            # It had been uploaded for this process alone, and has lost a race since.
            if isinstance(batch.state, Uploaded):
                batch.state = replace(batch.state, segments=(segment,), is_shared=True)
            elif batch.place is not None:
                batch.state = Shared(batch.place, segment)
            return True

    def not_shared(self, batch: ProduceBatch) -> None:
        """The store has refused the shared file of a batch: no other writer will see it."""
        self.forget(batch)
        if isinstance(batch.state, Uploaded):
            batch.state = replace(batch.state, segments=(), is_shared=False)
        elif isinstance(batch.state, Shared):
            batch.state = Taken(batch.state.place)

    def uploaded(
        self, batch: ProduceBatch, stored: Uploaded | None, failure: KafkaException | None
    ) -> None:
        """The first upload of a batch has ended: with files in the store, with none because no row
        could be written, or with a failure. What has become of a shared file that failed is for the
        committer to find out. Any other batch that failed has been reported.
        """
        if batch not in self.open:
            self.forget(batch)  # reported during the upload
        elif stored is not None:
            batch.state = stored
        elif failure is not None and isinstance(batch.state, Shared):
            batch.state = UploadFailed(failure, batch.state.segment)
        else:
            self.waiting.remove(batch)
            self.finished([batch])
        self.call_uploader()

    def upload_again(self, batch: ProduceBatch) -> None:
        """The log refuses the files of an uploaded batch from now on, and they are uploaded again.
        Later batches must not be committed before the new files.
        """
        with self.lock:
            self.forget(batch)
            batch.state = replace(batch.uploaded, place=None, is_shared=False, is_late=True)

    def share_again(self, taken: Sequence[ProduceBatch], as_of: int) -> bool:
        """Give uploaded batches places, to be uploaded again as shared files. False, without
        effect, if they are not the first open ones or if an open batch has a place.
        """
        with self.lock:
            if self.open[: len(taken)] != taken or any(batch.has_place for batch in self.open):
                return False
            for number, batch in enumerate(taken):
                place = self.place(as_of, follows=number > 0)
                batch.state = replace(batch.uploaded, place=place)
            return True

    def replaced(self, batch: ProduceBatch, segments: Sequence[PendingSegment]) -> None:
        """A batch has been uploaded again."""
        batch.state = replace(batch.uploaded, segments=tuple(segments))

    def not_replaced(self, batch: ProduceBatch, failure: KafkaException) -> None:
        """The upload of a batch as a shared file, after it had been uploaded, has failed."""
        batch.state = UploadFailed(failure, batch.segments[0] if batch.is_shared else None)

    def front(self) -> ProduceBatch | None:
        """The next batch to commit, if its upload has ended. Batches that are fully reported are
        dropped.
        """
        while self.waiting and self.waiting[0].is_unwanted:
            self.finished([self.waiting.popleft()])
            self.call_uploader()
        front = self.waiting[0] if self.waiting else None
        return (
            front
            if front is not None and isinstance(front.state, Uploaded | UploadFailed)
            else None
        )

    # --- the commits ---

    def claim_commit(self) -> bool:
        """Claim the commit of the uploaded batches in front; False if there is none, or if another
        thread commits. That thread claims again after its commit.
        """
        with self.lock:
            if self.is_stopping or self.is_committing or self.front() is None:
                return False
            self.is_committing = True
            return True

    def take_uploaded(self, topic_id: str) -> Iterator[ProduceBatch]:
        """Take the uploaded batches in front that belong to this topic id, to commit them."""
        while (batch := self.front()) is not None and _is_for(batch, topic_id):
            yield self.waiting.popleft()
        self.call_uploader()

    def take_lost(self) -> Iterator[ProduceBatch]:
        """Take the batches in front whose upload has failed. Their files may be in the store."""
        while (batch := self.front()) is not None and isinstance(batch.state, UploadFailed):
            yield self.waiting.popleft()
        self.call_uploader()  # there is room for more batches

    def put_back(self, batches: Sequence[ProduceBatch]) -> None:
        """Return batches to the front, to be tried again first."""
        self.waiting.extendleft(reversed(batches))
        self.call_uploader()

    def finished(self, batches: Sequence[ProduceBatch]) -> None:
        """These batches were reported, as delivered, failed or unknown."""
        self.open = [batch for batch in self.open if batch not in batches]
        for batch in batches:
            self.forget(batch)

    def forget(self, batch: ProduceBatch) -> None:
        """Stop watching the log for the files of a batch."""
        for segment in batch.segments:
            self._pending_shared.forget(segment.path)


def _is_for(batch: ProduceBatch, topic_id: str) -> bool:
    return isinstance(batch.state, Uploaded) and batch.state.topic_id == topic_id


def _oldest(buffers: Sequence[RecordAccumulator]) -> Iterator[BatchPart]:
    """The oldest records of each buffer, of similar age and the same `message.timeout.ms`: they
    share a deadline.
    """
    waiting = [(at, buffer) for buffer in buffers if (at := buffer.first_produced_at()) is not None]
    oldest_at, first = min(waiting, key=lambda entry: entry[0])
    timeout_s = first.settings.timeout_s
    rows_left, bytes_left = BATCH_ROWS_MAX, BATCH_BYTES_MAX
    for _, buffer in waiting:
        if buffer.settings.timeout_s == timeout_s and rows_left and bytes_left > 0:
            rows_max = min(rows_left, buffer.rows_within(bytes_left))
            taken = buffer.take(rows_max, oldest_at + timeout_s / 10)
            if taken is not None:
                rows_left = max(0, rows_left - len(taken[0]))
                bytes_left -= taken[1]
                yield BatchPart(buffer, *taken)
