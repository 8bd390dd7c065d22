"""The audit of topics finds each breach of their rules in hand-made logs and histories, and no
other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from deltaq import names
from deltaq.testing import ManualClock
from tests.checker.history import Operation
from tests.checker.history import SeenRecord as Seen
from tests.simulation.audit.history import check_run
from tests.simulation.audit.oracle import LogEntry, LoggedFile, Place, WrittenRecord
from tests.simulation.audit.topic import Audit
from tests.simulation.scenario import TOPIC
from tests.simulator.disk import Disk

RETENTION_MS = 60_000
DELETE = {"deltaq.retention.ms": str(RETENTION_MS)}
COMPACT = {"deltaq.cleanup.policy": "compact", "deltaq.delete.retention.ms": "5000"}
KEYS = [b"k", b"l", b"k", b"m", b"m"]
TOMBSTONE = 4
"""The offset of a tombstone: it is the newest record of its key."""


def record(offset: int, value: str = "") -> WrittenRecord:
    place = Place("id", 0, offset)
    return WrittenRecord(
        place, value or f"v{offset}", KEYS[offset], offset, is_tombstone=offset == TOMBSTONE
    )


def file(
    path: str, start: int, end: int, kept: Collection[int] | None = None, **changes: Any
) -> LoggedFile:
    """A file with the offsets [start, end) of partition 0, or only with the records of those in
    `kept`.
    """
    records = {
        found.place: found for found in map(record, range(start, end) if kept is None else kept)
    }
    made = LoggedFile(
        path, 100, ((0, start, end),), records, is_rewrite=False, time_ms=0, clean_ms=None
    )
    return replace(made, **changes)


def entry(
    version: int, operation: str, start: int, end: int, *adds: LoggedFile, removes: str = ""
) -> LogEntry:
    """An entry of topic `id` with one partition, one second after the one before it."""
    head = {"topic_id": "id", "next_offsets": [end], "start_offsets": [start]}
    changes = any(not add.is_rewrite for add in adds) or not adds
    landed = float(version)
    return LogEntry(
        version,
        landed,
        version * 1000,
        operation,
        head,
        None,
        adds,
        tuple(removes.split()),
        changes,
        f"w{version}",
    )


def appended(properties: dict[str, str]) -> list[LogEntry]:
    """A topic with two files and five records."""
    return [
        replace(entry(0, "CREATE", 0, 0), properties=properties),
        entry(1, "WRITE", 0, 3, file("a", 0, 3)),
        entry(2, "WRITE", 0, 5, file("b", 3, 5)),
    ]


def merged() -> list[LogEntry]:
    return [
        *appended(DELETE),
        entry(3, "OPTIMIZE", 0, 5, file("c", 0, 5, is_rewrite=True), removes="a b"),
    ]


def expired() -> list[LogEntry]:
    retention = entry(4, "DELETE", 5, 5, removes="c")
    return [*merged(), replace(retention, landed=100.0, time_ms=RETENTION_MS + 1)]


def compacted(kept: Collection[int], clean_ms: int | None = None) -> list[LogEntry]:
    """Only the newest records of keys are kept, or those in `kept`."""
    return [
        *appended(COMPACT),
        entry(
            3,
            "OPTIMIZE",
            0,
            5,
            file("c", 0, 5, kept, is_rewrite=True, clean_ms=clean_ms),
            removes="a b",
        ),
    ]


def cleaned(clean_ms: int, landed: float, kept: Collection[int] = (1, 2)) -> list[LogEntry]:
    """A second compaction drops the tombstone, which stays until `clean_ms`."""
    last = entry(4, "OPTIMIZE", 0, 5, file("d", 0, 5, kept, is_rewrite=True), removes="c")
    return [
        *compacted([1, 2, TOMBSTONE], clean_ms),
        replace(last, landed=landed, time_ms=int(landed * 1000)),
    ]


def audited(entries: list[LogEntry]) -> Audit:
    audit = Audit()
    for found in entries:
        audit.take(found)
    return audit


@pytest.mark.parametrize(
    ("entries", "gone"),
    [
        (appended(DELETE), []),
        (merged(), []),
        (expired(), [{"v0", "v1", "v2", "v3", "v4"}]),
        (compacted([1, 2, TOMBSTONE]), [{"v0", "v3"}]),
        (cleaned(9_000, 9.0), [{"v0", "v3"}, {"v4"}]),
    ],
    ids=["appended", "merged", "expired", "compacted", "without the tombstone"],
)
def test_what_a_log_may_do_is_not_reported_and_what_it_removed_is_known(entries, gone):
    audit = audited(entries)
    assert audit.problems == []
    assert [removal.values for removal in audit.removals] == gone


def last(entries: list[LogEntry], **changes: Any) -> list[LogEntry]:
    """The entries, the last one with changes."""
    return [*entries[:-1], replace(entries[-1], **changes)]


def heads(start: list[int], end: list[int], topic_id: str = "id") -> dict[str, Any]:
    return {"topic_id": topic_id, "next_offsets": end, "start_offsets": start}


FORGED = file(
    "c", 0, 5, is_rewrite=True, records={found.place: found for found in [record(0, "x")]}
)
TWICE = file("a", 3, 5)
SHARED = f"shared/{0:020d}/{0:020d}-{'a' * 16}-%d-x.parquet"
BREACHES: dict[str, tuple[Callable[[], list[LogEntry]], str]] = {
    "an offset is given twice": (
        lambda: last(appended(DELETE), adds=(file("b", 2, 5),)),
        "gives offset 2 of partition 0 after [3]",
    ),
    "an offset is left out": (
        lambda: last(appended(DELETE), adds=(file("b", 4, 5),)),
        "gives offset 4 of partition 0 after [3]",
    ),
    "the head has another end": (
        lambda: last(appended(DELETE), head=heads([0], [6])),
        "says next offsets [6]",
    ),
    "there is no head": (
        lambda: last(appended(DELETE), head=None),
        "changes files without saying the offsets",
    ),
    "starts and ends differ in number": (
        lambda: last(appended(DELETE), head=heads([], [5])),
        "as many starts as ends",
    ),
    "the topic begins again over its files": (
        lambda: [
            *appended(DELETE),
            replace(entry(3, "CREATE", 0, 0), head=heads([0], [0], "other")),
        ],
        "creates the topic again though the old one has files",
    ),
    "records are appended and files removed": (
        lambda: last(appended(DELETE), removes=("a",)),
        "appends and removes",
    ),
    "a file is removed twice": (
        lambda: last(merged(), removes=("a", "b", "x")),
        "removes what is not there: ['x']",
    ),
    "a rewrite changes a record": (lambda: last(merged(), adds=(FORGED,)), "changes WrittenRecord"),
    "a rewrite has a record from nowhere": (
        lambda: last(merged(), removes=("a",)),
        "has Place(topic_id='id', partition=0, offset=3) from nowhere",
    ),
    "a rewrite leaves out a record": (
        lambda: last(merged(), adds=(file("c", 0, 5, [0, 1, 2, 3], is_rewrite=True),)),
        "loses ['v4']",
    ),
    "a rewrite leaves out a range": (
        lambda: last(merged(), adds=(file("c", 0, 3, is_rewrite=True),)),
        "leaves partition 0 with [(0, 3)], up to 5",
    ),
    "a file stays beside its rewrite": (
        lambda: last(merged(), removes=("a",)),
        "leaves partition 0 with",
    ),
    "records expire too early": (
        lambda: last(expired(), time_ms=RETENTION_MS),
        "lets partition 0 start at 5, not up to -1",
    ),
    "the start moves back": (
        lambda: [*expired(), replace(entry(5, "DELETE", 4, 5), time_ms=10 * RETENTION_MS)],
        "lets partition 0 start at 4",
    ),
    "retention removes a file that is needed": (
        lambda: last(expired(), head=heads([4], [5])),
        "removes c, and partitions start at [4]",
    ),
    "retention also adds": (
        lambda: last(expired(), adds=(file("d", 0, 5, is_rewrite=True),)),
        "mixes retention with something else",
    ),
    "compaction drops the newest record of a key": (
        lambda: compacted([2, TOMBSTONE]),
        "loses the newest record of its key",
    ),
    "a tombstone is dropped before its time": (
        lambda: cleaned(9_001, 9.0),
        "drops a tombstone that stays until 9001",
    ),
    "a tombstone is dropped without a time": (
        lambda: compacted([1, 2], None),
        "drops a tombstone that stays until None",
    ),
    "a tombstone is dropped before its delay": (
        lambda: cleaned(4_000, 6.0),
        "drops a tombstone too early",
    ),
    "a deleted value comes back": (
        lambda: [
            *appended(COMPACT),
            entry(
                3, "OPTIMIZE", 0, 5, file("c", 0, 5, is_rewrite=True, clean_ms=3_000), removes="a b"
            ),
            replace(
                entry(
                    4, "OPTIMIZE", 0, 5, file("d", 0, 5, [1, 2, 3], is_rewrite=True), removes="c"
                ),
                landed=9.0,
                time_ms=9_000,
            ),
        ],
        "drops a tombstone, and what it deletes comes back",
    ),
    "a shared file is committed twice": (
        lambda: [
            *appended(DELETE)[:1],
            entry(1, "WRITE", 0, 3, file(SHARED % 1, 0, 3)),
            entry(2, "WRITE", 0, 5, file(SHARED % 1, 3, 5)),
        ],
        "adds shared file 1 of aaaaaaaaaaaaaaaa after 1",
    ),
}


@pytest.mark.parametrize(("make", "problem"), BREACHES.values(), ids=BREACHES.keys())
def test_a_breach_in_the_log_of_a_topic_is_reported(make, problem):
    problems = audited(make()).problems
    assert [found for found in problems if problem in found], problems


@pytest.mark.parametrize(
    ("deleted_at", "problem"),
    [(2.0, "it was needed from 1.0 to 3.0"), (12.9, "too soon after 3.000"), (13.0, None)],
)
def test_a_file_that_is_deleted_too_early_is_reported(deleted_at, problem):
    audit, disk = audited(merged()), Disk("audited", ManualClock())
    for path in "abc":
        disk.put(f"{names.topic_folder(TOPIC)}{path}", b"")
        disk.written[f"{names.topic_folder(TOPIC)}{path}"] = [0.5]
    disk.deleted[f"{names.topic_folder(TOPIC)}a"] = [deleted_at]
    audit.check_files(disk, delay_s=10.0, in_flight_s=10.0)
    assert [problem in found for found in audit.problems] == ([] if problem is None else [True])


# --- what clients did and saw ---


def send(value: str, outcome: Any, offset: int | None, at: float = 0.5) -> Operation:
    return Operation("p", "send", outcome, at, at + 0.2, (Seen("t", 0, offset, value),))


def read(*offsets: int, at: float = 10.0) -> Operation:
    records = tuple(Seen("t#id", 0, offset, f"v{offset}") for offset in offsets)
    return Operation("r", "poll", "ok", at, at + 0.1, records)


def assigned() -> Operation:
    return Operation("r", "assign", "ok", 9.0, 9.0, positions=((("t#id", 0), 0),))


SENT = [send(f"v{offset}", "ok", offset) for offset in range(5)]


def judged(operations: list[Operation], entries: list[LogEntry] | None = None) -> list[str]:
    return list(check_run(operations, audited(entries or appended(DELETE)), drained=True))


@pytest.mark.parametrize(
    ("operations", "entries"),
    [
        ([*SENT, assigned(), read(0, 1, 2, 3, 4)], None),
        ([*SENT[:4], send("v4", "info", None), assigned(), read(0, 1, 2, 3, 4)], None),
        ([*SENT, send("lost", "fail", None), assigned(), read(0, 1, 2, 3, 4)], None),
        ([*SENT, assigned(), read(1, 2, 4)], compacted([1, 2, TOMBSTONE])),
    ],
    ids=["all", "an unknown outcome", "a failure", "compacted"],
)
def test_a_history_that_the_log_agrees_with_is_not_reported(operations, entries):
    assert judged(operations, entries) == []


@pytest.mark.parametrize(
    ("operations", "problem"),
    [
        (
            [*SENT, send("lost", "ok", 5), assigned(), read(0, 1, 2, 3, 4)],
            "was acknowledged, and is not in the log",
        ),
        (
            [*SENT[:4], send("v4", "ok", 3), assigned(), read(0, 1, 2, 3, 4)],
            "was acknowledged, and is not in the log",
        ),
        (
            [*SENT[:4], send("v4", "fail", None), assigned(), read(0, 1, 2, 3, 4)],
            "was reported as failed, and is in",
        ),
        ([*SENT, assigned(), read(0, 1, 3, 4)], "poll-skip"),
        ([*SENT, assigned(), read(0, 1, 2, 3)], "unseen"),
    ],
    ids=["lost", "at another offset", "failed", "skipped", "never read"],
)
def test_a_history_that_the_log_contradicts_is_reported(operations, problem):
    assert problem in "\n".join(judged(operations))


def test_a_record_that_is_in_the_log_twice_is_reported():
    again = file("b", 3, 5, records={Place("id", 0, 3): replace(record(3), value="v0")})
    problems = judged([], last(appended(DELETE), adds=(again,)))
    assert [found for found in problems if "'v0' is in the log 2 times" in found], problems
