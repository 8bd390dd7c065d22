"""Shared files: uploaded files that any writer of the topic may commit. Their names, and the rules.
Pure.

The name of a shared file carries all that its `add` needs, so that a writer can commit what a
listing shows. Safety depends on the log alone: a writer may add a shared file in slot v only if it
has read all entries before v, one by one, since the version in the file's name. Decision 0024 in
`docs/decisions/` has the reason of each rule.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from deltaq.delta.actions import Add, Entry
from deltaq.delta.persistent_map import PersistentMap
from deltaq.names import SHARED_FILE_BYTES_MAX, shared_file
from deltaq.topics.state import DataFile, PendingSegment, TopicHead, data_file

APPEND_OPERATION = "WRITE"
"""The operation of entries that append records."""

WRITER_CHARS = 16
"""Length of the prefix that identifies a writer in its tokens, in characters."""

WRITERS_MAX = 4096
"""Writers that a history remembers. With more it starts anew, and allows only files uploaded since
then.
"""

_FORM = 1
_ID = re.compile(r"shared-([0-9a-f]{16})-([0-9]{1,12})")
_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{16})-([0-9]{1,12})(f?)-([A-Za-z0-9_-]+)\.parquet")


@dataclass(frozen=True, slots=True)
class SharedFileId:
    """A shared file of a writer. The numbers of a writer grow in the order in which its records
    were produced.
    """

    writer: str
    number: int

    def __str__(self) -> str:
        return f"shared-{self.writer}-{self.number}"

    @staticmethod
    def parse(text: str) -> SharedFileId | None:
        """Parse what `str` returns; None for any other text."""
        found = _ID.fullmatch(text)
        return None if found is None else SharedFileId(found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class SharedFile:
    """An uploaded file that others may commit.

    `follows`: an earlier batch of the writer was still open when this one got its number, so the
    file with the previous number must be in the log before it. `topic_mark` identifies the topic
    that the rows are for; `segment.as_of` is the version that the log was known to have reached.
    """

    id: SharedFileId
    follows: bool
    topic_mark: bytes
    segment: PendingSegment


def writer_of(txn_id: str | None) -> str:
    """The writer that made the commit with this token."""
    return (txn_id or "")[:WRITER_CHARS]


def is_append(entry: Entry) -> bool:
    """Whether it appends records. Only such writers count as contention; maintenance commits
    rarely.
    """
    return entry.info is not None and entry.info.operation == APPEND_OPERATION


def topic_mark(topic_id: str) -> bytes:
    """An 8-byte hash of the topic id, which distinguishes a topic from a later one of the same
    name.
    """
    return hashlib.blake2b(topic_id.encode(), digest_size=8).digest()


# --- names
# --------------------------------------------------------------------------------------------------


def shared_file_path(
    file_id: SharedFileId, segment: PendingSegment, topic_id: str, *, follows: bool
) -> str | None:
    """The path of a segment as a shared file; None if its description does not fit into a name."""
    numbers = [
        _FORM,
        segment.size,
        segment.rows,
        segment.crc32,
        segment.footer_bytes,
        segment.footer_crc32,
        segment.min_timestamp_ms,
        segment.max_timestamp_ms - segment.min_timestamp_ms,
        segment.modified_ms,
        int(segment.timed),
    ]
    at = 0
    for partition, rows in segment.partition_rows:
        if partition < at:
            return None
        numbers += [partition - at, rows]
        at = partition
    if min(numbers) < 0 or segment.as_of < 0:  # as_of is negative while the log is being loaded
        return None
    body = topic_mark(topic_id) + _packed(numbers)
    lead = f"{segment.as_of:020d}-{file_id.writer}-{file_id.number}{'f' if follows else ''}"
    body += zlib.crc32(lead.encode() + body).to_bytes(4, "big")
    name = f"{lead}-{urlsafe_b64encode(body).decode().rstrip('=')}.parquet"
    return shared_file(segment.as_of, name) if len(name) <= SHARED_FILE_BYTES_MAX else None


def parse_shared_file(path: str) -> SharedFile | None:
    """Parse a path relative to the topic's folder; None if it is no shared file, or its name is
    damaged.
    """
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if found is None or shared_file(int(found[1]), found[0]) != path:
        return None
    as_of, writer, number, follows, packed = found.groups()
    try:
        body = urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        lead = f"{as_of}-{writer}-{number}{follows}"
        if zlib.crc32(lead.encode() + body[:-4]).to_bytes(4, "big") != body[-4:]:
            return None
        segment = _segment(path, _unpacked(body[8:-4]), int(as_of))
    except ValueError:
        return None
    return SharedFile(SharedFileId(writer, int(number)), follows == "f", body[:8], segment)


def _segment(path: str, numbers: list[int], as_of: int) -> PendingSegment:
    """The segment that the numbers in a name describe. Raises ValueError if they contradict each
    other.
    """
    form, size, rows, crc32, footer_bytes, footer_crc32, low, span, modified, timed, *pairs = (
        numbers
    )
    partition, partition_rows = 0, []
    for step, count in zip(pairs[::2], pairs[1::2], strict=True):
        partition += step
        partition_rows.append((partition, count))
    if form != _FORM or not rows or sum(count for _, count in partition_rows) != rows:
        raise ValueError("unknown form, or the shares do not add up to the rows")
    times = low, low + span, modified
    return PendingSegment(
        path,
        size,
        rows,
        crc32,
        footer_bytes,
        footer_crc32,
        tuple(partition_rows),
        *times,
        timed == 1,
        as_of,
    )


def _packed(numbers: Iterable[int]) -> bytes:
    """Encode numbers as LEB128: 7 bits per byte, lowest first; the high bit marks all but a
    number's last byte.
    """
    out = bytearray()
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


def _unpacked(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("the last number is truncated")
    return numbers


# --- rules
# --------------------------------------------------------------------------------------------------


class WriterSeen(NamedTuple):
    """A writer in the log: the version of its newest entry, the greatest number of its shared files
    that are in the log, and how many of its entries append records.
    """

    committed: int = -1
    newest: int = -1
    appends: int = 0


_NOT_SEEN = WriterSeen()


@dataclass(slots=True)
class WriterHistory:
    """What the entries after version `since` say about writers. All after `followed` were read one
    by one. A value.

    `appended_by` is the writer of the newest append, and `files` the number of files in all appends
    after `followed`.
    """

    followed: int = -1
    since: int = -1
    writers: PersistentMap[WriterSeen] = field(default_factory=PersistentMap)
    appended_by: str = ""
    files: int = 0

    def after(self, entry: Entry) -> WriterHistory:
        """The history with the next entry."""
        writers, since = self.writers.copy(), self.since
        if len(writers) > WRITERS_MAX:
            writers, since = PersistentMap(), entry.version - 1
        writer, owner, appends = writer_of(entry.txn_id), object(), is_append(entry)
        adds = [action for action in entry.actions if isinstance(action, Add)]
        for add in adds:
            found = _NAME.fullmatch(add.path.rpartition("/")[2])
            if found is not None:
                seen = writers.get(found[2], _NOT_SEEN)
                newest = max(int(found[3]), seen.newest)
                writers.put(found[2], seen._replace(newest=newest), owner)
        seen = writers.get(writer, _NOT_SEEN)
        own = WriterSeen(entry.version, seen.newest, seen.appends + appends)
        writers.put(writer, own, owner)
        if not appends:
            return WriterHistory(self.followed, since, writers, self.appended_by, self.files)
        return WriterHistory(self.followed, since, writers, writer, self.files + len(adds))

    def appends_since(self, before: WriterHistory, own: str) -> tuple[Mapping[str, int], int]:
        """The number of appends of each writer but `own` since `before`, and of files in all of
        them. Nothing if they cannot be compared: entries were skipped, or writers forgotten.
        """
        if (before.followed, before.since) != (self.followed, self.since):
            return {}, 0
        counts = {
            writer: more
            for writer, seen in self.writers.items()
            if writer != own and (more := seen.appends - before._seen(writer).appends)
        }
        return counts, self.files - before.files

    def _seen(self, writer: str) -> WriterSeen:
        return self.writers.get(writer, _NOT_SEEN)

    def takable(
        self, files: Iterable[SharedFile], head: TopicHead, version: int, own: str
    ) -> Iterator[PendingSegment]:
        """Which of `files` the writer `own` may add for their writers in the slot after `version`,
        in this order.

        `head` is the topic at `version`, the last entry that was noted.
        """
        mark, taken = topic_mark(head.topic_id), dict[str, int]()
        for file in sorted(files, key=lambda file: (file.id.writer, file.id.number)):
            writer, number, as_of = file.id.writer, file.id.number, file.segment.as_of
            if writer == own or file.topic_mark != mark or head.deleted:
                continue
            if not max(self.since, head.min_upload_version) <= as_of <= version:
                # Possibly in the log already, or void; or `as_of` is a version not read yet.
                continue
            seen = self._seen(writer)
            if seen.committed > as_of:
                continue  # its writer has made an entry since, and commits it itself
            newest = taken.get(writer, seen.newest)
            if newest >= number or (file.follows and not 0 <= newest == number - 1):
                continue  # it or a later one is in the log, or the one before it is not
            if file.segment.partition_rows[-1][0] >= head.partitions:
                continue
            taken[writer] = number
            yield file.segment


@dataclass(slots=True)
class PendingSharedFiles:
    """The shared files of one writer whose outcome is open: paths, and the versions known before
    their upload.

    All positions of a process in the topic's log use one object: the first that reads an entry with
    such a file notes it in `committed`.
    """

    paths: dict[str, int] = field(default_factory=dict)
    committed: dict[str, DataFile] = field(default_factory=dict)

    def expect(self, path: str, as_of: int) -> None:
        """From now on any writer may commit the file."""
        self.paths[path] = as_of

    def forget(self, path: str) -> None:
        """The outcome of the file has been reported."""
        self.paths.pop(path, None)
        self.committed.pop(path, None)

    def note(self, adds: Iterable[Add], folder: str) -> None:
        """Note files that are or were in the topic."""
        if self.paths:
            for add in adds:
                if add.path in self.paths:
                    self.committed[add.path] = data_file(add, folder)
