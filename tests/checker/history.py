"""Records what the clients of a test did and observed, for `check_history`. Histories can be saved
to files.

    history = History(clock)
    sending = history.send("producer-1", "orders", value)       # before produce()
    sending.ok(partition=0, offset=17)                          # in the callback; or fail(), info()
    polling = history.poll("consumer-1")                        # before poll()
    polling.ok([("orders", 0, 17, value)], at_tail=[("orders", 0)])
    assert not (found := check_history(history.operations, drained=True)), report(found)

**Processes.** A process is one client, or several clients used as one, that does one thing at a
time. Give a transactional producer and the consumer that feeds it the same name. Give two threads
that share a producer different names. Sends may overlap: their order is that of the calls of
`produce`. A client that replaces a closed or killed one may reuse its name if `crash` was recorded
in between.

**Values** must be unique in the whole history, so that each identifies one send: use another value
to resend, or to copy to another topic, such as `("copied", value)`. Values must be hashable. In
files they may be None, bool, int, float, str, bytes, and tuples of these.

**Partitions** are `(topic, number)`. A topic that is deleted and created again is a different
topic: include the topic id in its name then (`f"orders#{topic_id}"`).

**Outcomes.** `ok`: it happened. `fail`: it did not happen and never will. `info`: unknown; it may
have happened, or may happen later, once or never. An operation that never ends counts as `info`.
Record `fail` only where the client guarantees it.

**Time** is `Clock.monotonic` in seconds. All times of one `History` differ, so operations are
ordered even on a clock that stands still. Histories of several processes on one machine can be
merged, since they share that clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from deltaq.clock import SYSTEM_CLOCK, Clock

__all__ = [
    "History",
    "Invocation",
    "Kind",
    "Operation",
    "Outcome",
    "Partition",
    "SeenRecord",
    "dump_history",
    "load_history",
]

Partition: TypeAlias = tuple[str, int]
"""(topic name, which may include the topic id; partition number)."""

Outcome: TypeAlias = Literal["invoke", "ok", "fail", "info"]
"""`invoke`: the end of the operation was not recorded."""

Kind: TypeAlias = Literal[
    "send",
    "poll",
    "assign",
    "unassign",
    "subscribe",
    "seek",
    "crash",
    "commit",
    "committed",
    "begin",
    "commit-transaction",
    "abort-transaction",
]


class SeenRecord(NamedTuple):
    """A record as a client sees it; partition and offset are None while unknown."""

    topic: str
    partition: int | None
    offset: int | None
    value: Any

    def __str__(self) -> str:
        partition = "?" if self.partition is None else self.partition
        offset = "?" if self.offset is None else self.offset
        return f"{self.value!r} at {self.topic}[{partition}]@{offset}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call by one process, from `invoked` to `completed` (seconds of `Clock.monotonic`; None:
    not ended).

    `records`: the record sent, or the records that a poll returned, in order. `at_tail`: the
    partitions in which a poll claims to have seen all records acknowledged before it began.
    `positions`: next offsets to read, by partition; None where none was given or committed.
    `group`: the group of an assignment or commit. `is_reset`: whether a commit may move positions
    back. `error`: why it failed, or may have failed.
    """

    process: str
    kind: Kind
    outcome: Outcome
    invoked: float
    completed: float | None = None
    records: tuple[SeenRecord, ...] = ()
    at_tail: tuple[Partition, ...] = ()
    positions: tuple[tuple[Partition, int | None], ...] = ()
    group: str | None = None
    is_reset: bool = False
    error: str = ""

    def __str__(self) -> str:
        end = "" if self.completed is None else f"-{self.completed:.6f}"
        said = [f"{self.invoked:.6f}{end} {self.process}: {self.kind} {self.outcome}"]
        said += [f"of {self.group}"] if self.group else []
        said += [str(record) for record in self.records[:8]]
        said += [f"and {len(self.records) - 8} more records"] if len(self.records) > 8 else []
        said += [
            f"{topic}[{number}]" + ("" if to is None else f" to {to}")
            for (topic, number), to in self.positions
        ]
        said += [
            "at the tail of " + ", ".join(f"{topic}[{number}]" for topic, number in self.at_tail)
        ] * bool(self.at_tail)
        return ", ".join(said + [self.error] * bool(self.error))


class TextSink(Protocol):
    """The destination of lines, such as a text file opened for appending."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class History:
    """Records operations. Thread-safe.

    `clock` provides the time and the lock. `file` receives a line, flushed at once, when an
    operation begins and when it ends; `load_history` reads it, even if the process was killed. Use
    a new file for each start of a process, since a kill may leave an incomplete line.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, file: TextSink | None = None) -> None:
        self._clock = clock
        self._file = file
        self._lock = clock.lock()
        self._last = -math.inf
        self._operations: list[Operation] = []

    @property
    def operations(self) -> list[Operation]:
        """All operations so far, in order of their beginning."""
        with self._lock:
            return list(self._operations)

    def send(
        self, process: str, topic: str, value: Hashable, partition: int | None = None
    ) -> Invocation:
        """Call before a record is produced. `partition`: None if the client chooses it."""
        return self._begin(process, "send", records=(SeenRecord(topic, partition, None, value),))

    def poll(self, process: str) -> Invocation:
        """Call before a poll. Operations recorded during it, as in `on_assign`, precede the records
        it returns.
        """
        return self._begin(process, "poll")

    def assign(
        self,
        process: str,
        partitions: Mapping[Partition, int | None] | Iterable[Partition],
        group: str | None = None,
    ) -> None:
        """The process is assigned these partitions in addition to those it has, and starts reading
        them anew.

        It starts at the offset that `partitions` maps to. If that is None, or `partitions` is no
        mapping, it may start anywhere, unless `group` assigned the partitions. A member of a group
        must start at the group's committed position, or at offset 0 if there is none. If a member
        starts elsewhere, as with `auto.offset.reset=latest`, record a `seek` after this. A member
        owns its partitions until `unassign` or `crash`.
        """
        self._event(process, "assign", positions=_positions(partitions), group=group)

    def unassign(self, process: str, partitions: Iterable[Partition] = ()) -> None:
        """The process gives up these partitions; all, if none are given."""
        self._event(process, "unassign", positions=_positions(partitions))

    def subscribe(self, process: str, group: str) -> None:
        """The process starts reading anew at the group's committed positions.

        For tests that do not record assignments. The owners of partitions are then unknown.
        """
        self._event(process, "subscribe", group=group)

    def seek(self, process: str, positions: Mapping[Partition, int | None]) -> None:
        """The process continues at these positions after a seek or an offset reset. None:
        anywhere.
        """
        self._event(process, "seek", positions=_positions(positions))

    def crash(self, process: str) -> None:
        """The process was killed or closed. Its assignment, positions, open transaction and order
        of sends end.
        """
        self._event(process, "crash")

    def commit(
        self, process: str, group: str, positions: Mapping[Partition, int], is_reset: bool = False
    ) -> Invocation:
        """Call before offsets (the next ones to read) are committed or, in a transaction, sent to
        it.

        `is_reset`: the positions may move back, as when an administrator resets a group.
        """
        return self._begin(
            process, "commit", positions=_positions(positions), group=group, is_reset=is_reset
        )

    def committed(self, process: str, group: str) -> Invocation:
        """Call before committed positions are queried; pass the answer to `ok(positions=...)`."""
        return self._begin(process, "committed", group=group)

    def begin_transaction(self, process: str) -> None:
        """A transaction begins. It includes all that the process sends, polls and commits from now
        on.

        It ends with a successful `commit_transaction` or `abort_transaction`, a `crash`, or the
        next begin, before which its outcome must be known. Polls in a transaction that is not
        committed are undone: the process must read the same records again.
        """
        self._event(process, "begin")

    def commit_transaction(self, process: str) -> Invocation:
        """Call before the process commits its transaction, or retries a commit with unknown
        outcome.
        """
        return self._begin(process, "commit-transaction")

    def abort_transaction(self, process: str) -> Invocation:
        """Call before the process aborts its transaction. One that is never committed also counts
        as aborted.
        """
        return self._begin(process, "abort-transaction")

    def _now(self) -> float:
        self._last = max(self._clock.monotonic(), math.nextafter(self._last, math.inf))
        return self._last

    def _begin(self, process: str, kind: Kind, **fields: Any) -> Invocation:
        with self._lock:
            self._add(Operation(process, kind, "invoke", self._now(), **fields))
            return Invocation(self, len(self._operations) - 1)

    def _event(self, process: str, kind: Kind, **fields: Any) -> None:
        with self._lock:
            now = self._now()
            self._add(Operation(process, kind, "ok", now, now, **fields))

    def _add(self, operation: Operation) -> None:
        self._operations.append(operation)
        self._write(operation)

    def _end(
        self,
        index: int,
        outcome: Outcome,
        partition: int | None = None,
        offset: int | None = None,
        **fields: Any,
    ) -> None:
        with self._lock:
            began = self._operations[index]
            if began.outcome != "invoke":
                raise ValueError(f"ended twice, now as {outcome}: {began}")
            if began.kind == "send":
                sent = began.records[0]
                fields["records"] = (
                    sent._replace(
                        partition=sent.partition if partition is None else partition, offset=offset
                    ),
                )
            ended = replace(began, outcome=outcome, completed=self._now(), **fields)
            self._operations[index] = ended
            self._write(ended)

    def _write(self, operation: Operation) -> None:
        if self._file is not None:
            self._file.write(_line(operation) + "\n")
            self._file.flush()


class Invocation:
    """An operation that has begun. End it once, from any thread. Without an end, its outcome counts
    as unknown.
    """

    __slots__ = ("_history", "_index")

    def __init__(self, history: History, index: int) -> None:
        self._history = history
        self._index = index

    def ok(
        self,
        records: Iterable[tuple[str, int, int, Hashable]] = (),
        *,
        at_tail: Iterable[Partition] = (),
        partition: int | None = None,
        offset: int | None = None,
        positions: Mapping[Partition, int | None] | None = None,
    ) -> None:
        """The operation succeeded.

        For a poll, `records` are `(topic, partition, offset, value)`, and `at_tail` the partitions
        in which it claims to have seen all records acknowledged before it began. For a send,
        `partition` and `offset` of the record, as far as known. For a query of committed positions,
        `positions`, with None where there is none.
        """
        fields: dict[str, Any] = {}
        if got := tuple(SeenRecord(*record) for record in records):
            fields["records"] = got
        if covered := tuple(at_tail):
            fields["at_tail"] = covered
        if positions is not None:
            fields["positions"] = _positions(positions)
        self._history._end(self._index, "ok", partition=partition, offset=offset, **fields)

    def fail(self, error: object = "") -> None:
        """The operation did not happen and never will."""
        self._history._end(self._index, "fail", error=str(error))

    def info(
        self, error: object = "", *, partition: int | None = None, offset: int | None = None
    ) -> None:
        """The outcome is unknown. For a send, `partition` and `offset` that the record would have,
        if known.
        """
        self._history._end(
            self._index, "info", error=str(error), partition=partition, offset=offset
        )


def dump_history(operations: Iterable[Operation]) -> Iterator[str]:
    """The operations as lines of JSON for `load_history`. Raises TypeError if a value cannot be
    encoded.
    """
    return map(_line, operations)


def load_history(*files: Iterable[str]) -> list[Operation]:
    """Read the operations of one or more files as one history, ordered by time.

    The later line of an operation replaces the earlier one. An incomplete last line is ignored: its
    operation was not carried out. Raises ValueError if another line is damaged.
    """
    found: dict[tuple[str, str, float], Operation] = {}
    for file in files:
        lines = [line for line in file if line.strip()]
        for number, line in enumerate(lines, 1):
            try:
                operation = _operation(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                if number == len(lines) and not line.endswith("\n"):
                    break
                raise ValueError(f"not an operation, line {number}: {line.strip()!r}") from error
            found[operation.process, operation.kind, operation.invoked] = operation
    return sorted(found.values(), key=lambda operation: operation.invoked)


def _positions(
    partitions: Mapping[Partition, int | None] | Mapping[Partition, int] | Iterable[Partition],
) -> tuple[tuple[Partition, int | None], ...]:
    if isinstance(partitions, Mapping):
        return tuple(partitions.items())
    return tuple((partition, None) for partition in partitions)


def _line(operation: Operation) -> str:
    fields: dict[str, Any] = {
        "process": operation.process,
        "kind": operation.kind,
        "outcome": operation.outcome,
        "invoked": operation.invoked,
    }
    if operation.completed is not None:
        fields["completed"] = operation.completed
    if operation.records:
        fields["records"] = [[*record[:3], _to_json(record.value)] for record in operation.records]
    if operation.at_tail:
        fields["at_tail"] = operation.at_tail
    if operation.positions:
        fields["positions"] = [[*partition, offset] for partition, offset in operation.positions]
    if operation.group is not None:
        fields["group"] = operation.group
    if operation.is_reset:
        fields["is_reset"] = True
    if operation.error:
        fields["error"] = operation.error
    return json.dumps(fields, separators=(",", ":"))


def _operation(fields: dict[str, Any]) -> Operation:
    fields["records"] = tuple(
        SeenRecord(topic, partition, offset, _from_json(value))
        for topic, partition, offset, value in fields.get("records", ())
    )
    fields["at_tail"] = tuple((topic, number) for topic, number in fields.get("at_tail", ()))
    fields["positions"] = tuple(
        ((topic, number), offset) for topic, number, offset in fields.get("positions", ())
    )
    return Operation(**fields)


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_to_json(part) for part in value]
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    raise TypeError(f"no form in JSON for a value of {type(value).__name__}: {value!r}")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(part) for part in value)
    if isinstance(value, dict):
        return str(value["bytes"]).encode("latin-1")
    return value
