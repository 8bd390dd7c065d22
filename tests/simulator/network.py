"""The store as seen by one simulated process: every answer takes time, and may be lost, late or
wrong.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from deltaq.store import (
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    PollInterval,
    StoreError,
    StoreUnavailable,
    Watch,
)
from deltaq.store.watch import SignalWatch
from tests.simulator.disk import Disk
from tests.simulator.scheduler import EPOCH_S, Killed, Process, Scheduler

__all__ = ["CrashPoint", "Faults", "Network", "SimulatedStore"]

T = TypeVar("T")

TIMEOUT_S = 1.0
"""Seconds that a client waits for a lost answer."""

STALE_S = 2.0
"""Seconds by which a listing may be stale."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Fault probabilities per operation, and maximum delays in seconds.

    `lost_request` and `lost_answer` end in a timeout; both apply to reads too. `late` writes are
    reported as failed and take effect up to `late_s` later. `conflict` refuses a create of a free
    key. `stale_list` leaves out objects written in the last two seconds. `stall` suspends the
    process for up to `stall_s` before a create or the read of a Parquet file, more rarely before
    another request, or before the answer to a write. `stall_again` is the chance to suspend a
    stalled create once more, each time its key has been taken meanwhile: it may be freed by
    clean-up until the end. `damage` flips a bit of a read's content, never twice in a row for one
    key.
    """

    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    conflict: float = 0.0
    stale_list: float = 0.0
    stall: float = 0.0
    stall_again: float = 0.0
    damage: float = 0.0
    late_s: float = 3.0
    stall_s: float = 10.0


NONE = Faults()


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Kill `process` at its `operation`-th store operation (counted from 1), before or after it
    took effect.
    """

    process: str
    operation: int
    after: bool


@dataclass
class Network:
    """State shared by all processes: the objects, the faults, and the counts of the faults that
    took effect.

    `writes` has the write operations of each process: (number, operation, key). `latency_s` is the
    mean one-way delay in seconds. `signals`: whether watches are notified of the writes of other
    processes. The requests of processes that are `spared` meet no fault.
    """

    scheduler: Scheduler
    disk: Disk
    faults: Faults = NONE
    latency_s: float = 0.005
    signals: bool = True
    remote: bool = True
    crash: CrashPoint | None = None
    happened: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    writes: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    watches: list[tuple[Process, SignalWatch]] = field(default_factory=list)
    spared: set[str] = field(default_factory=set)

    def count(self, event: str) -> None:
        """Count an event that must occur at least once in a set of runs."""
        self.happened[event] += 1
        self.scheduler.note(event)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return probability > 0 and self.scheduler.random.random() < probability

    def delay_s(self) -> float:
        """A random one-way delay in seconds, exponentially distributed with mean `latency_s`."""
        return self.scheduler.random.expovariate(1 / self.latency_s) if self.latency_s else 0.0

    def written(self, key: str) -> None:
        """Notify the watches, if `signals`."""
        if self.signals:
            self.watches = [
                (process, watch) for process, watch in self.watches if not process.is_killed
            ]
            for _, watch in self.watches:
                watch.changed(key)


class SimulatedStore:
    """A `Store` on the objects of a `Network`, for one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self._disk = network.disk
        self._damaged: set[tuple[object, str]] = set()  # (thread, key) whose last read was damaged
        # Its threads outlive the process: requests sent before a crash may still arrive.
        self._wire = Process(network.scheduler, f"{process.name}'s network")

    @property
    def _faults(self) -> Faults:
        spared = self._process.name in self._network.spared
        return NONE if spared else self._network.faults

    @property
    def url(self) -> str:
        return self._disk.url

    @property
    def poll_interval(self) -> PollInterval:
        return PollInterval(busy_s=0.01, idle_s=0.2)

    @property
    def is_remote(self) -> bool:
        return self._network.remote

    @property
    def case_sensitive(self) -> bool:
        return True

    def get(self, key: str, size_max: int | None = None) -> bytes:
        return self._read(
            "get", key, lambda: self._perhaps_damaged(key, self._disk.get(key, size_max))
        )

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        return self.get(key, size_max)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        def read() -> bytes:
            return self._perhaps_damaged(key, self._disk.get_range(key, start, length))

        return self._read("get_range", key, read)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        return iter(self._read("list", prefix, lambda: self._listing(prefix, start_after)))

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        return builtins.list(self.list(prefix, start_after))

    def list_folders(self, prefix: str) -> builtins.list[str]:
        return self._read("list_folders", prefix, lambda: self._disk.list_folders(prefix))

    def put(self, key: str, data: bytes | memoryview) -> None:
        content = bytes(data)
        self._write("put", key, lambda: self._disk.put(key, content))

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        content = bytes(data)
        if self._network.chance(self._faults.conflict):
            self._answer(self._send("create", key))
            self._network.count(
                "a create was refused though the key was free"
                if self._is_free(key)
                else _lost_race(key)
            )
            raise ObjectExists("create", key, "conflicting request in flight")
        try:
            self._write("create", key, lambda: self._create(key, content))
        except ObjectExists:
            self._network.count(_lost_race(key))
            raise

    def link(self, key: str, to: str) -> None:
        self._write("link", to, lambda: self._disk.link(key, to))
        self._network.count("a log entry was archived")

    def delete(self, key: str) -> None:
        self._write("delete", key, lambda: self._disk.delete(key))

    def sync(self, folder: str) -> None:
        self._disk.sync(folder)

    def remove_unfinished(self) -> Iterator[int]:
        return self._disk.remove_unfinished()

    def watch(self) -> Watch:
        watch = SignalWatch(self._process.clock)
        self._network.watches.append((self._process, watch))
        return watch

    def _perhaps_damaged(self, key: str, content: bytes) -> bytes:
        reading = self._network.scheduler.current(), key
        if reading in self._damaged:
            self._damaged.remove(reading)
            return content
        if not content or not self._network.chance(self._faults.damage):
            return content
        self._damaged.add(reading)
        self._network.count("a flipped bit was read")
        chance = self._network.scheduler.random
        at, bit = int(chance.random() * len(content)), int(chance.random() * 8)
        return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]

    def _create(self, key: str, content: bytes) -> None:
        self._disk.create(key, content)
        if "/_delta_log/" in key and len(self._disk.history[key]) > 1:
            is_archived = not self._is_free(key.replace("/_delta_log/", "/_deltaq/log/"))
            self._network.count(
                f"a slot was filled again after {'archiving' if is_archived else 'clean-up'}"
            )

    # --- what happens to a request ---

    def _read(self, operation: str, key: str, read: Callable[[], T]) -> T:
        number = self._send(operation, key)
        faults = self._faults
        if self._network.chance(faults.lost_request + faults.lost_answer):
            self._lose(operation, key, "a read was not answered")
        try:
            return read()
        finally:
            self._answer(number)

    def _write(self, operation: str, key: str, write: Callable[[], None]) -> None:
        network, faults = self._network, self._faults
        if network.chance(faults.lost_request):
            self._send(operation, key)
            self._lose(operation, key, "a request was lost")
        if network.chance(faults.late):
            self._send(operation, key)
            delay_s = TIMEOUT_S + network.scheduler.random.random() * faults.late_s
            self._arrive_later(operation, key, write, delay_s)
            self._lose(operation, key, "a write was reported as failed while in flight")
        number = self._send(operation, key, write)
        try:
            write()
            network.written(key)
            if network.chance(faults.lost_answer):
                self._lose(operation, key, "an answer was lost after the write")
            if network.chance(faults.stall / 2):
                network.count("a process was suspended before an answer")
                self._process.suspend(network.scheduler.random.random() * faults.stall_s)
        finally:
            self._answer(number)

    def _send(self, operation: str, key: str, write: Callable[[], None] | None = None) -> int:
        """Send a request. If the process dies meanwhile, its `write` may still arrive."""
        network = self._network
        network.operations[self._process.name] += 1
        number = network.operations[self._process.name]
        if write is not None:
            network.writes.setdefault(self._process.name, []).append((number, operation, key))
        network.scheduler.note(f"{self._process.name} {operation} {key}")
        self._crash(number, after=False)
        # Rare for reads of the log's tail, which are very frequent.
        is_rare = operation != "create" and not (
            operation.startswith("get") and key.endswith(".parquet")
        )
        stalls = network.chance(self._faults.stall / 20 if is_rare else self._faults.stall)
        if stalls:
            network.count("a process was suspended before a request")
            self._process.suspend(network.scheduler.random.random() * self._faults.stall_s)
        try:
            self._process.clock.sleep(network.delay_s())
            if stalls and operation == "create":
                self._stall_while_taken(key)
        except Killed:
            if write is not None and network.chance(0.5):
                self._arrive_later(operation, key, write, network.delay_s())
            raise
        return number

    def _stall_while_taken(self, key: str) -> None:
        """Suspend the process again while another one's object has the key, so that the create may
        find it freed.
        """
        network = self._network
        while network.chance(self._faults.stall_again) and not self._is_free(key):
            self._process.suspend(network.scheduler.random.random() * self._faults.stall_s)
            self._process.clock.sleep(network.delay_s())

    def _answer(self, number: int) -> None:
        """Receive the answer."""
        self._crash(number, after=True)
        self._process.clock.sleep(self._network.delay_s())

    def _lose(self, operation: str, key: str, event: str) -> None:
        self._network.count(event)
        self._process.clock.sleep(TIMEOUT_S)
        raise StoreUnavailable(operation, key, "no answer in time")

    def _arrive_later(
        self, operation: str, key: str, write: Callable[[], None], delay_s: float
    ) -> None:
        def arrive() -> None:
            self._wire.clock.sleep(delay_s)
            try:
                write()
            except StoreError:
                self._network.count(f"a late {operation} was refused")
            else:
                self._network.count(f"a late {operation} landed")
                self._network.written(key)

        self._wire.clock.start_thread(arrive, f"late {operation}")

    def _crash(self, number: int, *, after: bool) -> None:
        crash = self._network.crash
        if crash is not None and (crash.process, crash.operation, crash.after) == (
            self._process.name,
            number,
            after,
        ):
            self._network.count(f"crashed {'after' if after else 'before'} an operation")
            self._process.kill()
            self._process.clock.sleep(0)

    def _listing(self, prefix: str, start_after: str) -> builtins.list[ObjectEntry]:
        entries = list(self._disk.list(prefix, start_after))
        if self._network.chance(self._faults.stale_list):
            now_ms = (EPOCH_S + self._network.scheduler.now) * 1000
            older = [entry for entry in entries if entry.modified_ms < now_ms - STALE_S * 1000]
            if len(older) < len(entries):
                self._network.count("a listing left out the newest objects")
                return older
        return entries

    def _is_free(self, key: str) -> bool:
        try:
            self._disk.get(key)
        except ObjectMissing:
            return True
        return False


def _lost_race(key: str) -> str:
    return "lost race of a group" if key.startswith("groups/") else "lost race"
