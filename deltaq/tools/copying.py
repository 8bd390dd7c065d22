"""Copies of topics in other roots, with the same partitions, offsets, timestamps, keys, values and
headers.

A copy is a topic whose table names its source (`ORIGIN_PROPERTY`). How far it has come is said by
its own end offsets, which each commit moves together with the records, so a copy that was killed
goes on where it ended, and no record is there twice. Records are committed with the offsets that
they have in the source: a gap, left by retention or key compaction, is a gap in the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from deltaq import names
from deltaq.admin.group_calls import GroupCalls
from deltaq.admin.offset_copy import copy_offsets, offsets_to_copy
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import AdminConfig, parse_client_config
from deltaq.delta.position import LogCleaned
from deltaq.delta.retry import error_pause_s
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import (
    InvalidConfig,
    KafkaError,
    KafkaException,
    OffsetOutOfRange,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from deltaq.groups.offsets import CommittedOffset
from deltaq.maintenance.retention import plan_deletion
from deltaq.parquet.segment import encode_segment
from deltaq.root import open_root
from deltaq.schema_registry.mirror import RegistryCopier
from deltaq.store import Store
from deltaq.store.parallel import in_parallel
from deltaq.tools.copy_plan import (
    ORIGIN_PROPERTY,
    CopiedRows,
    CopyPlan,
    RowGathering,
    TopicImage,
    not_a_copy,
    plan_copy,
)
from deltaq.topics.comparison import same_rows
from deltaq.topics.listing import topic_names
from deltaq.topics.log import TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.metadata import NewTopicPlan, create_topic, definition_of
from deltaq.topics.ranges import read_ranges
from deltaq.topics.record_faults import name_faults
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.state import PendingSegment, RewrittenRecords, TopicHead
from deltaq.transactions.cut import cut_of_readable
from deltaq.transactions.resolution import publish_sent_offsets

_log = logging.getLogger("deltaq.tools")

BYTES_AT_ONCE = 32 * 1024 * 1024
"""Decoded bytes of the records in one commit of a copy, about."""

COMMIT_TIMEOUT_S = 60.0
_CLIENT_ID = "deltaq-copy"
TRIES = 6
"""How often a topic is tried in a row if the store does not answer or the source changes, before
that is raised. A try that copies records begins a new row.
"""

FOLLOW_PAUSE_S = 0.5
"""How often the sources are looked at for new records by a copy that follows them."""

GROUPS_PAUSE_S = 30.0
"""How often a copy that follows its source copies the offsets of groups."""


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far the copy of one topic has come: offsets that are copied of those that were to be
    copied in this run, and the bytes written.
    """

    topic: str
    copied: int
    total: int
    bytes: int


Notify = Callable[[CopyProgress], None]


@dataclass(slots=True)
class CopyReport:
    """What `copy` has done: offsets copied by topic, groups whose offsets were copied, how many
    schemas and subjects of the registry were changed at the target, and what failed, by name.
    """

    topics: dict[str, int] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    schemas: int = 0
    failures: dict[str, KafkaException] = field(default_factory=dict)


def copy(
    source: Mapping[str, Any],
    target: Mapping[str, Any],
    topics: Iterable[str] = ("*",),
    *,
    groups: bool = False,
    schemas: bool = False,
    follow: bool = False,
    notify: Notify = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
    bytes_at_once: int = BYTES_AT_ONCE,
    report: CopyReport | None = None,
) -> CopyReport:
    """Copy topics to another root, or continue earlier copies. `source` and `target` are
    configurations of clients.

    `topics` are names or patterns such as `orders*`. A topic gets the settings and the number of
    partitions of its source, and each record its partition, offset, timestamp, key, value and
    headers. A round ends where no transaction is split: once it is done, the copies have each
    transaction of the source as a whole, or not at all. With `groups`, the committed offsets of all
    groups are copied, too; a group must have no members at the target. With `schemas`, the schema
    registry is copied first, with its ids; that of the target must be empty or an earlier copy.
    With `follow`, the call goes on with new records and topics until it is interrupted. Nothing
    else may write a copy. `notify` is called after each commit, from several threads if a store is
    remote. `report` is filled in while the call goes on, for a caller that interrupts it.

    A topic or group that fails is in the report's `failures`, and the others are copied:
    KafkaException (_INCONSISTENT) for a topic of the target that is no copy of the source,
    UnknownTopic for a name without a topic, Corrupt, Incompatible, Unavailable, OutcomeUnknown,
    KafkaException (_FAIL) for any other error of a topic. A record with a value that cannot be
    returned is copied as it is stored, and the log names it. Raises InvalidConfig for a wrong
    configuration, Unavailable if the topics or groups of the source cannot be listed; with
    `follow`, that is a failure too, and the next round lists them again.
    """
    run = _CopyRun(
        source,
        target,
        list(topics),
        clock,
        notify,
        bytes_at_once,
        report or CopyReport(),
        follow=follow,
    )
    groups_at = float("-inf")
    while True:
        if schemas:
            run.schemas()
        with_groups = groups and clock.monotonic() >= groups_at + (GROUPS_PAUSE_S if follow else 0)
        if with_groups:
            run.listed("groups of the source", run.read_groups)
            groups_at = clock.monotonic()
        run.listed("topics of the source", run.topics)
        if with_groups:
            run.groups()
        if not follow:
            return run.report
        clock.sleep(FOLLOW_PAUSE_S)


class _CopyRun:
    """One call of `copy`."""

    def __init__(
        self,
        source: Mapping[str, Any],
        target: Mapping[str, Any],
        patterns: list[str],
        clock: Clock,
        notify: Notify,
        bytes_at_once: int,
        report: CopyReport,
        *,
        follow: bool,
    ) -> None:
        configs = (parse_client_config(AdminConfig, conf) for conf in (source, target))
        first, second = (open_root(config, clock) for config in configs)
        self._stores = first, second
        self._group_calls = [GroupCalls(store, clock, _CLIENT_ID) for store in self._stores]
        self._offsets: dict[str, list[CommittedOffset]] = {}
        if self._stores[0].url == self._stores[1].url:
            raise InvalidConfig("the source and the target are the same root", key="target")
        self._patterns = patterns
        self._clock = clock
        self._notify = notify
        self._bytes_at_once = bytes_at_once
        self._copiers: dict[str, TopicCopier] = {}
        self._registry = RegistryCopier(*self._stores, clock)
        self._follow = follow
        self._ends: Mapping[str, Mapping[int, int]] = {}
        self.report = report

    def listed(self, what: str, copy_them: Callable[[], None]) -> None:
        """Copy topics or groups. A mirror outlives a source that cannot be listed for a while."""
        if not self._follow:
            copy_them()
            return
        with self._reported(what):
            copy_them()

    def topics(self) -> None:
        """Copy what the topics have now; several at once between remote stores, whose answers take
        long.
        """
        wanted = self._names()
        self._ends = self._cut(wanted)
        if any(store.is_remote for store in self._stores):
            in_parallel(self._clock, self._copy_topic, wanted)
        else:
            for name in wanted:
                self._copy_topic(name)

    def _cut(self, topics: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        """Up to where this round copies each topic, so that the copies split no transaction. Empty
        for a source without transactions.
        """
        store = self._stores[0]
        with raising_unavailable():
            has_transactions = bool(store.list_folders(names.TRANSACTIONS_FOLDER))
        if not has_transactions or len(topics) < 2:
            return {}
        while True:
            try:
                return cut_of_readable(store, topics, self._clock, COMMIT_TIMEOUT_S)
            except LogCleaned:
                continue  # a log was cleaned up while it was read

    def _copy_topic(self, name: str) -> None:
        if name not in self._copiers:
            about = self._clock, self._notify, self._bytes_at_once
            self._copiers[name] = TopicCopier(self._stores[0], self._stores[1], name, *about)
        copier = self._copiers[name]
        try:
            copier.run(self._ends.get(name))
        except KafkaException as error:
            # A folder may be that of a deleted topic.
            if not isinstance(error, UnknownTopic) or name in self._patterns:
                self._failed(name, error)
        except Exception as error:  # noqa: BLE001 - the other topics are copied, whatever is wrong with this one
            _log.exception("not copied: %s", name)
            reason = f"{type(error).__name__}: {error}; please report it"
            self._failed(name, KafkaException(KafkaError(KafkaError._FAIL, reason)))
        else:
            self.report.failures.pop(name, None)
            self.report.topics.setdefault(name, 0)
        finally:
            if copier.copied:  # perhaps before it failed
                self.report.topics[name] = copier.copied

    def schemas(self) -> None:
        """Copy the schema registry."""
        with self._reported("schema registry"):
            self.report.schemas += self._registry.run()

    def read_groups(self) -> None:
        """Read the committed offsets of all groups, before the topics are copied: what was
        processed up to them is in the copies then.
        """
        self._offsets = {}
        source, _ = self._group_calls
        found = source.list_groups(None, None)
        offsets: dict[str, list[CommittedOffset]] = {}
        for listing in found.valid:
            with self._reported(f"group {listing.group_id}"):
                offsets[listing.group_id] = offsets_to_copy(source, listing.group_id)
        with self._reported("groups that cannot be read"):
            for error in found.errors:
                raise error
        for name in source.names():
            with self._reported(f"group {name}"):
                if source.find_share_group(name) is not None:
                    reason = "a share group is not copied: begin one by deltaq queues reset"
                    raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, reason))
        publish_sent_offsets(self._stores[0], self._clock, self._deadline())
        self._offsets = offsets

    def groups(self) -> None:
        """Copy the offsets that were read."""
        source, target = self._group_calls
        for group, offsets in self._offsets.items():
            with self._reported(f"group {group}"):
                copy_offsets(source, offsets, target, group, self._deadline())
                if group not in self.report.groups:
                    self.report.groups.append(group)

    def _deadline(self) -> float:
        return self._clock.monotonic() + COMMIT_TIMEOUT_S

    def _names(self) -> list[str]:
        there = topic_names(self._stores[0])
        found = [
            name for name in there if any(fnmatchcase(name, pattern) for pattern in self._patterns)
        ]
        missing = [name for name in self._patterns if names.is_name(name) and name not in there]
        return [*found, *missing]

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """A KafkaException within it is a failure of this name, until the next time without one."""
        try:
            yield
        except KafkaException as error:
            self._failed(name, error)
        else:
            self.report.failures.pop(name, None)

    def _failed(self, name: str, error: KafkaException) -> None:
        reason, earlier = error.error.str(), self.report.failures.get(name)
        # The same is not said in every round.
        if self._follow and (earlier is None or earlier.error.str() != reason):
            _log.warning("not copied: %s reason=%s", name, reason)
        self.report.failures[name] = error


class TopicCopier:
    """Copies one topic from one store to another. Not thread-safe. `copied` counts the offsets that
    it has copied.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        topic: str,
        clock: Clock,
        notify: Notify = lambda _: None,
        bytes_at_once: int = BYTES_AT_ONCE,
    ) -> None:
        self._source_store = source
        self._target_store = target
        self._topic = topic
        self._clock = clock
        self._notify = notify
        self._bytes_at_once = bytes_at_once
        self._source = TopicLog(source, topic, clock, indexed=True)
        self._copy = MaintenanceLog(target, topic, clock, client_id=_CLIENT_ID)
        self.copied = 0
        self._ends: Mapping[int, int] | None = None
        self._bytes = 0
        self._written_version = -1  # of the copy, whose newest entry this copier has written

    def run(self, ends: Mapping[int, int] | None = None) -> None:
        """Copy what the source has now, or only up to `ends` by partition. Raises as `copy`
        reports.
        """
        self._ends = ends
        failures, before = 0, self.copied
        while True:
            at_begin = self.copied
            try:
                plan = self._plan()
                if not plan.ranges and not plan.starts:
                    return
                self._copy_ranges(plan, self.copied - before)
                self._raise_starts(plan)
            except (Unavailable, OffsetOutOfRange) as error:
                # OffsetOutOfRange: retention has removed records of the source that were to be
                # copied.
                failures = failures + 1 if self.copied == at_begin else 1
                if failures == TRIES or not (
                    isinstance(error, OffsetOutOfRange) or error.error.retriable()
                ):
                    raise
                self._clock.sleep(error_pause_s(failures, self._clock.random()))
            else:
                failures = 0

    # --- planning ---

    def _plan(self) -> CopyPlan:
        """Read both topics, create or change the copy, and plan what it lacks."""
        self._source.catch_up()
        source = _image(self._source)
        if self._ends is not None:
            # A partition that is new since the cut waits for the next one.
            ends = (min(end, self._ends.get(p, 0)) for p, end in enumerate(source.next_offsets))
            source = replace(source, next_offsets=tuple(ends))
        if not self._copy.catch_up():
            self._create(source)
        plan = plan_copy(self._topic, source, _image(self._copy))
        if plan.ranges and self._copy.version != self._written_version:
            self._check_last_records()
        if plan.change is not None:
            change = plan.change
            self._copy.change(lambda _head, _metadata: change, self._deadline())
        return plan

    def _create(self, source: TopicImage) -> None:
        properties = {**source.settings, ORIGIN_PROPERTY: source.topic_id}
        plan = NewTopicPlan(len(source.next_offsets), source.schema, properties)
        try:
            create_topic(self._copy, plan, self._deadline())
        except TopicExists:
            # Another process has created it: the plan tells whether it is a copy.
            self._copy.catch_up()

    def _check_last_records(self) -> None:
        """Raise KafkaException (_INCONSISTENT) if another program has written to the copy: its last
        records differ.
        """
        head, source = self._copy.live_head, self._source.live_head
        last = {
            partition: (end - 1, end)
            for partition, end in enumerate(head.next_offsets)
            if max(head.start_offsets[partition], source.start_offsets[partition]) < end
        }
        stores = (self._source_store, self._source), (self._target_store, self._copy)
        ours, theirs = (
            {part.partition: part.rows for part in read_ranges(store, log, last)}
            for store, log in stores
        )
        for partition in ours.keys() & theirs.keys():
            both = ours[partition], theirs[partition]
            # Key compaction may have removed the record on one side.
            if all(rows.num_rows for rows in both) and not same_rows(*both):
                place = (
                    f"offset {last[partition][0]} of partition {partition} of topic {self._topic!r}"
                )
                raise not_a_copy(
                    f"{place} holds another message at the target, which another program has "
                    "written"
                )

    # --- acting ---

    def _copy_ranges(self, plan: CopyPlan, done: int) -> None:
        """Copy the records of the plan, after `done` offsets in this run. Ends early where the copy
        has changed meanwhile.
        """
        total = done + sum(end - start for start, end in plan.ranges.values())
        for rows in self._gathered(plan):
            segment = self._upload(rows)
            topic_id = self._copy.live_head.topic_id
            if self._copy.append_copied(topic_id, segment, self._deadline()) is not None:
                break  # the next plan tells why
            self._written_version = self._copy.version
            count = sum(end - base for base, end in rows.ranges)
            done, self.copied = done + count, self.copied + count
            self._bytes += segment.size
            self._notify(CopyProgress(self._topic, done, total, self._bytes))

    def _gathered(self, plan: CopyPlan) -> Iterator[CopiedRows]:
        head = self._source.live_head
        ends = {partition: start for partition, (start, _) in plan.ranges.items()}
        gathering = RowGathering(definition_of(self._source).columns, ends)
        there = {
            p: (max(start, head.start_offsets[p]), end) for p, (start, end) in plan.ranges.items()
        }
        for fetched in read_ranges(self._source_store, self._source, there):
            if gathering.bytes >= self._bytes_at_once or not gathering.takes(fetched):
                rows = gathering.take()
                if rows is not None:
                    yield rows
            name_faults(
                fetched.rows,
                self._topic,
                _log,
                "a value that cannot be returned is copied as it is stored",
            )
            gathering.add(fetched)
        gathering.cover({partition: end for partition, (_, end) in plan.ranges.items()})
        rows = gathering.take()
        if rows is not None:
            yield rows

    def _upload(self, rows: CopiedRows) -> PendingSegment:
        compression = self._source.settings.compression_type
        counts = [count for _, count in rows.partition_rows]
        encoded = encode_segment(
            rows.table, counts, "zstd" if compression == "producer" else compression
        )
        path = names.data_file_name(self._clock.unique_id())
        with raising_unavailable():
            self._target_store.put(self._copy.folder + path, encoded.data)
        earliest, latest = rows.bounds("_timestamp")
        return PendingSegment.of(
            path,
            encoded,
            rows.partition_rows,
            (earliest // 1000, latest // 1000),
            self._clock.time_ms(),
            as_of=self._copy.version,
            rewritten=RewrittenRecords(
                rows.ranges, rows.bounds("_offset"), 0, rows.log_append_time
            ),
        )

    def _raise_starts(self, plan: CopyPlan) -> None:
        """Let the copy begin where its source begins."""
        ends = self._copy.live_head.next_offsets
        starts = {
            partition: min(start, ends[partition]) for partition, start in plan.starts.items()
        }
        before = self._copy.live_head.start_offsets
        if any(before[partition] < start for partition, start in starts.items()):

            def decide(head: TopicHead) -> Trimmed:
                return plan_deletion(self._copy.index, head, starts)

            self._copy.retain(decide, self._deadline())

    def _deadline(self) -> float:
        return self._clock.monotonic() + COMMIT_TIMEOUT_S


def _image(log: TopicLog) -> TopicImage:
    """The topic at the log's position. Raises UnknownTopic."""
    head = log.live_head
    properties = log.metadata.configuration
    return TopicImage(
        head.topic_id, definition_of(log).schema, properties, head.start_offsets, head.next_offsets
    )
