"""An examination of a root: whether its store keeps its promises, and what is due."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate

from deltaq import names
from deltaq.admin.group_calls import GroupCalls
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import Corrupt, Incompatible, KafkaException, Unavailable, UnknownTopic
from deltaq.maintenance.clock_check import clock_fault, compare_clocks
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import Maintenance
from deltaq.metadata import describe_topics
from deltaq.store import Store, StoreError, StoreFull, StoreRefused
from deltaq.store.parallel import in_parallel
from deltaq.store.probe import PROBE_FOLDER, StoreUnsafe, probe
from deltaq.tools.speed import left_behind
from deltaq.tools.transactions import survey
from deltaq.topics.holds import HOLD_MAX_MS, stored_holds
from deltaq.topics.listing import topic_names
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import definition_of
from deltaq.topics.record_faults import record_faults
from deltaq.topics.scan import FileGone, FileRead, read_file
from deltaq.units import as_age, as_span, counted
from deltaq.version import __version__

OK, DUE, WRONG = "ok", "due", "wrong"
"""The states of a finding: nothing to do; something to do, and deltaq works without it; something
is broken.
"""

NAMED_AT_ONCE = 5
"""How many topics, groups or actions a finding names; it counts the others."""

RECORDS_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of data files that an examination reads to look for values that cannot be returned: of each
topic a part, its newest files.
"""

OLD_HOLD_MS = 24 * 60 * 60 * 1000
"""Milliseconds without renewal after which an examination names a hold."""

_PACKAGES = ("pyarrow", "obstore", "pydantic")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its state, what was found, and what to do about it."""

    check: str
    state: str
    found: str
    remedy: str = ""


def examine(store: Store, clock: Clock = SYSTEM_CLOCK) -> Iterator[Finding]:
    """Examine a root: versions, store, permissions, clock, topics, groups, transactions, holds,
    files, records, maintenance.

    Writes and deletes a few bytes under `_deltaq/`. Raises nothing that a store may answer.
    """
    yield _versions()
    answer = _answers(store, clock)
    yield answer
    if answer.state == WRONG:
        return
    for name, check in _CHECKS.items():
        try:
            yield check(store, clock)
        except (KafkaException, StoreError) as error:
            yield Finding(
                name, WRONG, _reason(error), "see the guarantees and errors in the documentation"
            )


def _reason(error: KafkaException | StoreError) -> str:
    return error.error.str() if isinstance(error, KafkaException) else str(error)


def _versions() -> Finding:
    found = [f"deltaq {__version__}", f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return Finding("versions", OK, ", ".join(found))


def _answers(store: Store, clock: Clock) -> Finding:
    begun = clock.monotonic()
    try:
        store.list_folders("")
    except StoreError as error:
        return Finding(
            "store", WRONG, str(error), "check the root, the network and the store.* settings"
        )
    return Finding(
        "store", OK, f"{store.url} answers in {(clock.monotonic() - begun) * 1000:.1f} ms"
    )


def _create(store: Store, clock: Clock) -> Finding:
    name = "create if absent"
    try:
        probe(store, clock)
    except StoreUnsafe as error:
        return Finding(name, WRONG, error.reason, "use a store that honours If-None-Match: *")
    except StoreError as error:
        return _unwritable(
            name, error, "consumers need no more; producers need permission to write"
        )
    return Finding(name, OK, "the store refuses a taken key")


def _unwritable(name: str, error: StoreError, remedy: str) -> Finding:
    """A store to which nothing can be written now. Credentials that permit reading alone are not
    wrong.
    """
    if isinstance(error, StoreFull):
        return Finding(
            name,
            WRONG,
            str(error),
            "until there is room, no producer and no member of a group can write",
        )
    if not isinstance(error, StoreRefused):
        return Finding(
            name, WRONG, str(error), "see the log of the store, and run deltaq doctor again"
        )
    return Finding(name, DUE, f"not proven: {error}", remedy)


def _delete(store: Store, clock: Clock) -> Finding:
    key = PROBE_FOLDER + clock.unique_id()
    try:
        store.put(key, b"")
        store.delete(key)
    except StoreError as error:
        remedy = (
            "maintenance needs permission to write and delete; another process with it can maintain"
            " the root"
        )
        return _unwritable("permissions", error, remedy)
    return Finding("permissions", OK, "read, write and delete")


def _clock(store: Store, clock: Clock) -> Finding:
    try:
        compare_clocks(store, clock)
    except Unavailable as error:
        cause = error.__cause__
        if not isinstance(cause, StoreError):
            raise
        return _unwritable(
            "clock", cause, "a process that maintains the root compares its clock by itself"
        )
    fault = clock_fault(store, clock)
    if fault is not None:
        return Finding("clock", WRONG, fault, "set the clock by NTP")
    return Finding("clock", OK, "this machine and the store agree")


def _readable(count: int, noun: str) -> str:
    """What an examination has found of so many topics or groups. A root whose name is wrong has
    none.
    """
    return f"{counted(count, noun)} can be read" if count else f"the root has no {noun}"


def _remedy(
    errors: Iterable[KafkaException], noun: str, afterwards: str = "run deltaq restore"
) -> str:
    """What to do about topics, groups or ids that cannot be read."""
    found = [*errors]
    remedies: dict[type[KafkaException], str] = {
        Corrupt: (
            "restore the named files from a copy of the storage; or end its clients and "
            f"maintenance programs, remove the folder of the {noun}, and {afterwards}"
        ),
        Incompatible: "do what the reason says",
        Unavailable: "correct what the store reports",
    }
    return "; ".join(
        text for kind, text in remedies.items() if any(isinstance(error, kind) for error in found)
    )


def _topics(store: Store, clock: Clock) -> Finding:
    answers = describe_topics(store, clock, topic_names(store))
    found = {
        name: answer for name, answer in answers.items() if not isinstance(answer, UnknownTopic)
    }
    errors = {name: answer for name, answer in found.items() if isinstance(answer, KafkaException)}
    if errors:
        broken = [f"{name}: {error.error.str()}" for name, error in errors.items()]
        return Finding("topics", WRONG, _some(broken), _remedy(errors.values(), "topic"))
    if left := left_behind(store, clock.time_ms()):
        return Finding(
            "topics",
            DUE,
            f"left by killed measurements: {_some(left)}",
            "the next deltaq bench removes them",
        )
    return Finding("topics", OK, _readable(len(found), "topic"))


def _groups(store: Store, clock: Clock) -> Finding:
    found = GroupCalls(store, clock, "deltaq-doctor").list_groups(None, None)
    if found.errors:
        broken = [error.error.str() for error in found.errors]
        return Finding("groups", WRONG, _some(broken), _remedy(found.errors, "group"))
    return Finding("groups", OK, _readable(len(found.valid), "group"))


def _transactions(store: Store, clock: Clock) -> Finding:
    """Looks for what a crashed producer has left: decisions that are not published, pending offsets
    and files of transactions that have ended.
    """
    name, found = "transactions", survey(store, clock)
    if found.errors:
        broken = [f"{id_}: {error.error.str()}" for id_, error in found.errors.items()]
        return Finding(
            name, WRONG, _some(broken), _remedy(found.errors.values(), "id", "start them")
        )
    due = [f"{of.name}: not published in {', '.join(of.missing)}" for of in found.ids if of.missing]
    due += [
        f"{of.name}: group {held.group} holds offsets of a transaction that has ended"
        for of in found.ids
        for held in of.pending
        if not (of.head.is_open(held.pending.transaction) or of.missing)
    ]
    if due:
        return Finding(name, DUE, _some(due), "run: deltaq maintain --once")
    text = _readable(len(found.ids), "transactional id")
    if files := found.left_files:
        count, size = sum(of.files for of in files), sum(of.bytes for of in files)
        text += f"; {counted(count, 'file')} with {size:,} bytes of transactions that have ended"
        return Finding(name, OK, text, "maintenance deletes them after file.delete.delay.ms")
    return Finding(name, OK, text)


def _holds(store: Store, clock: Clock) -> Finding:
    """Looks for holds that are not renewed: while they last, maintenance keeps old records."""
    name, topics = "holds", topic_names(store)
    found = in_parallel(clock, lambda topic: stored_holds(store, topic), topics)
    now_ms, count = clock.time_ms(), sum(map(len, found))
    old = [
        f"{names.hold_key(topic, hold.holder)} was not renewed for {as_age(age_ms)}"
        for topic, holds in zip(topics, found, strict=True)
        for hold in holds
        if (age_ms := now_ms - hold.modified_ms) > OLD_HOLD_MS
    ]
    if old:
        remedy = (
            "start its holder again, or delete the object; maintenance ignores and removes it after"
            f" {as_span(HOLD_MAX_MS)}"
        )
        return Finding(name, DUE, _some(old), remedy)
    return Finding(
        name, OK, f"{counted(count, 'hold')}, renewed in time" if count else "the root has no hold"
    )


@dataclass(frozen=True, slots=True)
class _TopicFiles:
    """The data files in the folder of a topic: number and bytes of those that it does not name, and
    each that it names and that is missing or has another size.
    """

    unnamed: int
    unnamed_bytes: int
    broken: list[str]


def _data_files(store: Store, clock: Clock) -> Finding:
    """Compares the files that topics name with those that there are.

    The bytes that no topic names are those of uploads under way, of interrupted ones, and of files
    that were replaced.
    """
    found = in_parallel(clock, lambda topic: _topic_files(store, clock, topic), topic_names(store))
    if broken := [file for files in found for file in files.broken]:
        remedy = (
            "restore them from a copy of the storage; readers seek past them; or restore the topic "
            "from a backup"
        )
        return Finding("files", WRONG, _some(broken), remedy)
    files, size = sum(files.unnamed for files in found), sum(files.unnamed_bytes for files in found)
    if not files:
        return Finding("files", OK, "all belong to a topic")
    remedy = "maintenance deletes those that file.delete.delay.ms does not protect"
    return Finding("files", OK, f"{files:,} with {size:,} bytes are in no topic", remedy)


def _topic_files(store: Store, clock: Clock, topic: str) -> _TopicFiles:
    log = TopicLog(store, topic, clock)
    try:
        log.load()
    except KafkaException:
        return _TopicFiles(0, 0, [])  # the check of the topics reports it
    folder = names.topic_folder(topic)
    named = log.state.files
    # After the log: a file that was replaced meanwhile stays for a day.
    there = {
        path: entry.size
        for entry in store.list(folder)
        if names.holds_data(path := entry.key.removeprefix(folder))
    }
    unnamed = [size for path, size in there.items() if path not in named]
    broken = []
    for path, add in named.items():
        if path not in there:
            broken.append(f"{folder}{path} is missing")
        elif there[path] != add.size:
            broken.append(f"{folder}{path} has {there[path]:,} bytes instead of {add.size:,}")
    return _TopicFiles(len(unnamed), sum(unnamed), broken)


@dataclass(frozen=True, slots=True)
class _TopicRecords:
    """What the newest files of a topic hold: the values at fault, files that cannot be read, and
    how many of all files were looked at.
    """

    faults: list[str]
    broken: list[str]
    read: int
    files: int


def _records(store: Store, clock: Clock) -> Finding:
    """Looks for values that readers cannot return, in the newest files of each topic."""
    topics = topic_names(store)
    bytes_max = RECORDS_BYTES_MAX // max(1, len(topics))
    found = in_parallel(clock, lambda topic: _topic_records(store, clock, topic, bytes_max), topics)
    read, files = sum(records.read for records in found), sum(records.files for records in found)
    of_all = f"{counted(read, 'file')} of {files:,}, the newest ones"
    if broken := [file for records in found for file in records.broken]:
        return Finding(
            "records", WRONG, _some(broken), "restore the named files from a copy of the storage"
        )
    if faults := [fault for records in found for fault in records.faults]:
        remedy = (
            "consumers report each of them and go on, but other engines may fail on its table: copy"
            " the other records to a new topic with deltaq.tools.transform, or wait until retention"
            " removes them"
        )
        return Finding("records", WRONG, f"{_some(faults)} ({of_all})", remedy)
    return Finding(
        "records", OK, f"readers can return all values ({of_all})" if files else "there are none"
    )


def _topic_records(store: Store, clock: Clock, topic: str, bytes_max: int) -> _TopicRecords:
    log = TopicLog(store, topic, clock, indexed=True)
    try:
        log.load()
        head, columns = log.live_head, definition_of(log).columns
    except KafkaException:
        return _TopicRecords([], [], 0, 0)  # the check of the topics reports it
    newest_first = sorted(
        log.index.files.values(), key=lambda file: file.segment.version, reverse=True
    )
    until = accumulate(file.segment.size for file in newest_first)
    chosen = [file for file, size in zip(newest_first, until, strict=True) if size <= bytes_max]
    faults, broken = [], []
    for file in chosen:
        wanted = [
            (batch, max(batch.base_offset, head.start_offsets[batch.partition]))
            for batch in file.batches
        ]
        read = tuple(
            (batch, start, batch.next_offset)
            for batch, start in wanted
            if start < batch.next_offset
        )
        try:
            parts = read_file(store, FileRead(file, read), columns) if read else []
        except FileGone:
            continue  # it was replaced meanwhile
        except Corrupt as error:
            broken.append(f"{topic}: {error.error.str()}")
            continue
        faults += [
            f"topic {topic!r}, {fault}" for part in parts for fault in record_faults(part.rows)
        ]
    return _TopicRecords(faults, broken, len(chosen), len(newest_first))


def _maintenance(store: Store, clock: Clock) -> Finding:
    lines: list[str] = []
    counts = Maintenance(store, clock, notify=lines.append).plan()
    if counts[FAILURES]:
        return Finding(
            "maintenance", WRONG, _some(lines), "see the lines above, and the log of a maintainer"
        )
    # Other lines name the holders for which records are kept.
    if counts["actions planned"]:
        return Finding("maintenance", DUE, _some(lines), "run: deltaq maintain --once")
    return Finding("maintenance", OK, "nothing is due")


_CHECKS: Mapping[str, Callable[[Store, Clock], Finding]] = {
    "create if absent": _create,
    "permissions": _delete,
    "clock": _clock,
    "topics": _topics,
    "groups": _groups,
    "transactions": _transactions,
    "holds": _holds,
    "files": _data_files,
    "records": _records,
    "maintenance": _maintenance,
}


def _some(lines: list[str]) -> str:
    more = len(lines) - NAMED_AT_ONCE
    return "; ".join(lines[:NAMED_AT_ONCE]) + (f"; and {more} more" if more > 0 else "")
