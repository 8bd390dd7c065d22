"""Rules for removing and rewriting the files of a topic. Pure; `topics/maintenance_log.py` commits.

In each partition, the live batches cover each offset from the partition's start to its end once; a
sparse batch covers its gaps, too. Offsets that an entry removes must therefore be below the new
start, or be covered by a file that the same entry adds. Readers check this, so that no entry can
make them skip records. The specification is `docs/internals/format.md`, "Rewriting files".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap, zip_longest

from deltaq.delta.actions import Action, Add, Entry, Remove
from deltaq.errors import Corrupt
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import (
    Batch,
    DataFile,
    PendingSegment,
    TopicHead,
    add_action,
    data_file,
    placed_batches,
)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What retention removes: the new start offset of each partition, and the files that hold no
    record after it.
    """

    start_offsets: tuple[int, ...]
    paths: tuple[str, ...]


# --- writing
# --------------------------------------------------------------------------------------------------


def rewritten(
    inputs: Sequence[str],
    outputs: Sequence[PendingSegment],
    time_ms: int,
    indexed: Sequence[str] = (),
) -> list[Action]:
    """The actions that replace the files `inputs` by `outputs`; readers see the same records. The
    entry's head comes from `renewed`. `indexed` is as in `state.appended`.
    """
    removed = [Remove(path, time_ms, data_change=False) for path in inputs]
    return [*removed, *(_add(segment, indexed) for segment in outputs)]


def renewed(head: TopicHead, now_ms: int) -> Action:
    """The head of an entry that changes only the time."""
    return replace(head, time_ms=max(now_ms, head.time_ms)).action()


def retained(head: TopicHead, trimmed: Trimmed, now_ms: int) -> list[Action]:
    """The actions of retention. The entry adds no file, since native Delta streams cannot handle
    that.
    """
    time_ms = max(now_ms, head.time_ms)
    # Partitions may have been added since the plan was made.
    starts = tuple(
        starmap(max, zip_longest(head.start_offsets, trimmed.start_offsets, fillvalue=0))
    )
    removes = [Remove(path, time_ms, data_change=True) for path in trimmed.paths]
    return [*removes, replace(head, start_offsets=starts, time_ms=time_ms).action()]


def raised_min_upload_version(
    head: TopicHead, min_upload_version: int, now_ms: int
) -> list[Action]:
    """The action that voids uploads which began at a known version below `min_upload_version`."""
    raised = replace(
        head,
        min_upload_version=max(head.min_upload_version, min_upload_version),
        time_ms=max(now_ms, head.time_ms),
    )
    return [raised.action()]


def _add(segment: PendingSegment, indexed: Sequence[str]) -> Add:
    batches = placed_batches(segment)
    return add_action(
        segment, batches, 0 if segment.rewritten is None else segment.rewritten.version, indexed
    )


# --- reading
# --------------------------------------------------------------------------------------------------


def check_files(index: OffsetIndex, entry: Entry, path: str) -> None:
    """Raises Corrupt if `entry` names a file twice or adds one that is in the topic already: the
    result would depend on the order of its actions. `index` is that of the topic before the entry.
    """
    named: set[str] = set()
    for action in entry.actions:
        if isinstance(action, (Add, Remove)):
            if action.path in named or (isinstance(action, Add) and action.path in index.files):
                raise Corrupt(
                    f"the entry adds or removes the file {action.path!r} twice",
                    path=path,
                    version=entry.version,
                )
            named.add(action.path)


def check_rewrite(
    index: OffsetIndex,
    removed: Iterable[str],
    added: Iterable[DataFile],
    after: TopicHead,
    path: str,
    version: int,
) -> None:
    """Raises Corrupt unless `added` covers the same readable offsets as `removed`.

    `index` is that of the topic before the entry.
    """
    gone = _ranges(
        batch
        for name in removed
        if (file := index.files.get(name)) is not None
        for batch in file.batches
    )
    come = _ranges(batch for file in added for batch in file.batches)
    for partition in gone.keys() | come.keys():
        start = after.start_offsets[partition] if partition < after.partitions else 0
        before, now = (_joined(ranges.get(partition, ()), start) for ranges in (gone, come))
        if before != now:
            raise Corrupt(
                f"the entry replaces offsets {before} of partition {partition} by {now}",
                path=path,
                version=version,
            )


def check_covered(index: OffsetIndex, head: TopicHead, path: str, version: int) -> None:
    """Raises Corrupt unless the files of a topic cover the offsets of each partition, once each."""
    # Without the index's own search, which finds only one of two batches at one offset.
    ranges = _ranges(batch for file in index.files.values() for batch in file.batches)
    bounds = dict(enumerate(zip(head.start_offsets, head.next_offsets, strict=True)))
    for partition in bounds.keys() | ranges.keys():
        start, end = bounds.get(partition, (0, 0))
        covered = _joined(ranges.get(partition, ()), start)
        if covered != ([(start, end)] if start < end else []):
            raise Corrupt(
                f"partition {partition} has offsets {start} to {end}, but its files cover "
                f"{covered}",
                path=path,
                version=version,
            )


def may_have_left(
    before: TopicHead, after: TopicHead, later: TopicHead | None, files: Iterable[Add], folder: str
) -> bool:
    """Whether an entry that took a topic from `before` to `after` may have been committed and its
    files removed since.

    It was not committed if a file that was not rewritten holds other records at its offsets.
    `later` is the current head, and `files` are the current files, which do not include those of
    the entry. Raises Corrupt, Incompatible.
    """
    if later is None or later.topic_id != after.topic_id or later.deleted:
        return True
    offsets = list(enumerate(zip(before.next_offsets, after.next_offsets, strict=True)))
    if any(
        start < end and later.next_offsets[partition] < end for partition, (start, end) in offsets
    ):
        return False
    held = dict(offsets)
    return not any(
        max(start, batch.base_offset) < min(end, batch.next_offset)
        for add in files
        if not _is_rewritten(add)
        for batch in data_file(add, folder).batches
        if batch.partition in held
        for start, end in (held[batch.partition],)
    )


def _is_rewritten(add: Add) -> bool:
    """Whether maintenance has written the file: such files contain their offsets."""
    stats = json.loads(add.stats or "{}")
    return not stats.get("numRecords") or stats.get("nullCount", {}).get("_offset") == 0


def _ranges(batches: Iterable[Batch]) -> Mapping[int, list[tuple[int, int]]]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for batch in batches:
        ranges.setdefault(batch.partition, []).append((batch.base_offset, batch.next_offset))
    return ranges


def _joined(ranges: Iterable[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """The ranges from `start` on, sorted, adjacent ones merged. Overlapping ranges stay apart, to
    compare unequal.
    """
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if high <= start or low == high:
            continue
        low = max(low, start)
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined
