"""What the clients of a test did and were told: recorded, written to a file, read back. `check_history` judges it.

    history = History(clock)
    sending = history.send("producer-1", "orders", value)       # before produce()
    sending.ok(partition=0, offset=17)                          # in the delivery callback; or fail(), or info()
    polling = history.poll("consumer-1")                        # before poll()
    polling.ok([("orders", 0, 17, value)], at_tail=[("orders", 0)])
    assert not (found := check_history(history.operations, drained=True)), report(found)

**Processes.** A process is one client, or several used as one, that does one thing after the other: name a
transactional producer and the consumer that feeds it alike, but two threads that share a producer differently. Sends
may overlap: their order is the one in which `produce` was called. A client that replaces one that was closed or killed
may have the same name, if `crash` stands between.

**Values** are unique in the whole history, so that each one tells where it came from: resend under another value, and
give a copy in another topic another value, as `("copied", value)`. They are hashable; for files: None, bool, int,
float, str, bytes, and tuples of these.

**Partitions** are `(topic, number)`. A topic that is deleted and created again is another one: put the topic's id into
the name then (`f"orders#{topic_id}"`).

**Outcomes.** `ok`: it happened. `fail`: it certainly did not, and never will. `info`: it may have happened, or happen
later, once or never. Whatever never ends counts as `info`; so say `fail` only where the client promises it.

**Time** is `Clock.monotonic` in seconds. No two moments of one `History` are equal, so also on a clock that stands
still everything has an order. Histories of several processes of one machine can be merged: they share that clock.
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
    "Record",
    "dump_history",
    "load_history",
]

Partition: TypeAlias = tuple[str, int]
"""Topic, or topic and id, and the number of the partition."""

Outcome: TypeAlias = Literal["invoke", "ok", "fail", "info"]
"""`invoke` is what has not ended, or whose end nobody recorded."""

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


class Record(NamedTuple):
    """A record as a client sees it; partition and offset are None as long as they are unknown."""

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
    """One call of one process, from `invoked` to `completed` (seconds; None: it has not ended).

    `records`: the one that is sent, or those that a poll handed out, in that order.
    `at_tail`: where a poll claims to miss nothing that had been acknowledged before it began.
    `positions`: next offsets to read, by partition; None where none was named, or there is none.
    `group`: of a member's assignment, of a commit.
    `is_reset`: a commit that is meant to go back.
    `error`: why it failed, or may have.
    """

    process: str
    kind: Kind
    outcome: Outcome
    invoked: float
    completed: float | None = None
    records: tuple[Record, ...] = ()
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
        said += [f"{topic}[{number}]" + ("" if to is None else f" to {to}") for (topic, number), to in self.positions]
        said += ["at the tail of " + ", ".join(f"{topic}[{number}]" for topic, number in self.at_tail)] * bool(
            self.at_tail
        )
        return ", ".join(said + [self.error] * bool(self.error))


class TextSink(Protocol):
    """Where lines go: a text file, opened for appending."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class History:
    """Records operations; any thread may call any method.

    `clock`: where time and the lock come from. `file`: gets a line when an operation begins and when it ends, flushed
    at once, so that a process that is killed leaves all it did behind; for `load_history`. Each start of a process
    needs a file of its own, as a kill may leave half a line.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, file: TextSink | None = None) -> None:
        self._clock = clock
        self._file = file
        self._lock = clock.lock()
        self._last = -math.inf
        self._operations: list[Operation] = []

    @property
    def operations(self) -> list[Operation]:
        """All operations so far, in the order in which they began."""
        with self._lock:
            return list(self._operations)

    def send(self, process: str, topic: str, value: Hashable, partition: int | None = None) -> Invocation:
        """A record is about to be produced. `partition`: None while the client is to choose it."""
        return self._begin(process, "send", records=(Record(topic, partition, None, value),))

    def poll(self, process: str) -> Invocation:
        """Records are about to be polled. What is recorded meanwhile, as by `on_assign`, comes before these records."""
        return self._begin(process, "poll")

    def assign(
        self,
        process: str,
        partitions: Mapping[Partition, int | None] | Iterable[Partition],
        group: str | None = None,
    ) -> None:
        """The process may read these partitions from now on, besides those it has; reading them starts anew.

        Where it starts is the offset that `partitions` maps to. None, or no mapping: anywhere; but for a member of a
        group (`group`: partitions were assigned by it) the group's committed position decides, or offset 0 as long as
        there is none: whatever else a member does, as `auto.offset.reset=latest`, takes a `seek` after this. A member
        owns its partitions until `unassign` or `crash`.
        """
        self._event(process, "assign", positions=_positions(partitions), group=group)

    def unassign(self, process: str, partitions: Iterable[Partition] = ()) -> None:
        """The process gives up these partitions; all, if none is named."""
        self._event(process, "unassign", positions=_positions(partitions))

    def subscribe(self, process: str, group: str) -> None:
        """Everything the process reads starts anew, where the group's committed positions say.

        For tests that do not record assignments: ownership is then unknown.
        """
        self._event(process, "subscribe", group=group)

    def seek(self, process: str, positions: Mapping[Partition, int | None]) -> None:
        """The process reads on elsewhere because it was told to, or has no valid position. None: anywhere."""
        self._event(process, "seek", positions=_positions(positions))

    def crash(self, process: str) -> None:
        """The process was killed or closed: assignment, positions, an open transaction and the order of sends end."""
        self._event(process, "crash")

    def commit(
        self, process: str, group: str, positions: Mapping[Partition, int], is_reset: bool = False
    ) -> Invocation:
        """Next offsets to read are about to be committed, in a transaction: to be sent to it.

        `is_reset`: they are meant to go back, as when an administrator resets a group.
        """
        return self._begin(process, "commit", positions=_positions(positions), group=group, is_reset=is_reset)

    def committed(self, process: str, group: str) -> Invocation:
        """Committed positions are about to be asked for; `ok(positions=...)` says what they are."""
        return self._begin(process, "committed", group=group)

    def begin_transaction(self, process: str) -> None:
        """What the process sends, polls and commits is part of a transaction from now on.

        It ends with a `commit_transaction` or `abort_transaction` that is ok, a `crash`, or the next begin, before
        which its outcome must be settled. Polls in a transaction that is not committed count as undone: the process
        must read the same records again.
        """
        self._event(process, "begin")

    def commit_transaction(self, process: str) -> Invocation:
        """The process is about to commit its transaction; again, if the outcome was unknown."""
        return self._begin(process, "commit-transaction")

    def abort_transaction(self, process: str) -> Invocation:
        """The process is about to abort its transaction. What is never committed counts as aborted too."""
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
        self, index: int, outcome: Outcome, partition: int | None = None, offset: int | None = None, **fields: Any
    ) -> None:
        with self._lock:
            began = self._operations[index]
            if began.outcome != "invoke":
                raise ValueError(f"ended twice, now as {outcome}: {began}")
            if began.kind == "send":
                sent = began.records[0]
                fields["records"] = (
                    sent._replace(partition=sent.partition if partition is None else partition, offset=offset),
                )
            ended = replace(began, outcome=outcome, completed=self._now(), **fields)
            self._operations[index] = ended
            self._write(ended)

    def _write(self, operation: Operation) -> None:
        if self._file is not None:
            self._file.write(_line(operation) + "\n")
            self._file.flush()


class Invocation:
    """An operation that has begun. End it once, from any thread; one that never ends may have happened."""

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
        """It happened.

        A poll: `records` are `(topic, partition, offset, value)`, `at_tail` the partitions in which it claims to miss
        nothing that had been acknowledged before it began. A send: where the record is, as far as that is known.
        Committed positions: `positions`, None where there is none.
        """
        fields: dict[str, Any] = {}
        if got := tuple(Record(*record) for record in records):
            fields["records"] = got
        if covered := tuple(at_tail):
            fields["at_tail"] = covered
        if positions is not None:
            fields["positions"] = _positions(positions)
        self._history._end(self._index, "ok", partition=partition, offset=offset, **fields)

    def fail(self, error: object = "") -> None:
        """It did not happen and never will."""
        self._history._end(self._index, "fail", error=str(error))

    def info(self, error: object = "", *, partition: int | None = None, offset: int | None = None) -> None:
        """It may have happened, or happen later, or not. A send: where the record would be, if that is known."""
        self._history._end(self._index, "info", error=str(error), partition=partition, offset=offset)


def dump_history(operations: Iterable[Operation]) -> Iterator[str]:
    """The operations as JSON, one line each, for `load_history`. TypeError: a value has no form in JSON."""
    return map(_line, operations)


def load_history(*files: Iterable[str]) -> list[Operation]:
    """The operations of one or more files, as one history in the order of time.

    The later line of an operation replaces the earlier one. A last line that was cut off is left out, as it stands for
    something that was never done. ValueError: another line is damaged.
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
        Record(topic, partition, offset, _from_json(value))
        for topic, partition, offset, value in fields.get("records", ())
    )
    fields["at_tail"] = tuple((topic, number) for topic, number in fields.get("at_tail", ()))
    fields["positions"] = tuple(((topic, number), offset) for topic, number, offset in fields.get("positions", ()))
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
