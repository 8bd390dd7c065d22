"""A store that injects faults, and counts their effects."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar
from weakref import WeakSet

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.store import (
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    PollInterval,
    Store,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    Watch,
)
from deltaq.testing.chance import chance
from deltaq.testing.faults import Crash, Effect, Fault, Rule

__all__ = ["FaultyStore", "TracedOperation"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """An operation on a `FaultyStore`. `fault` is the name of the fault injected into it; None if
    there was none.
    """

    operation: str
    key: str
    fault: str | None


@dataclass(slots=True, eq=False)
class _Armed:
    """A rule in use. Its number makes its random decisions independent of those of other rules."""

    number: int
    rule: Rule
    seen: int = 0
    struck: int = 0

    def strikes(self, seed: int) -> bool:
        """Whether the fault is injected into the operation just counted in `seen`."""
        rule = self.rule
        if self.seen < rule.nth or (rule.times is not None and self.struck >= rule.times):
            return False
        return rule.probability == 1 or chance(seed, self.number, self.seen) < rule.probability


class FaultyStore:
    """Wraps a store and injects faults. The first rule that applies to an operation determines its
    fault. Thread-safe.

    One `FaultyStore` is one process's connection to the storage. For another process, or for a
    process that restarts after a crash, wrap the same `inner` again. Read `inner` directly to see
    the true content.

    `operations` counts operations by name, `struck` injected faults by name, and `effects` what
    they did. With `trace=True`, `trace` lists every operation in order. With the same `seed`, the
    same operations in the same order meet the same faults. `clock` measures the seconds of faults.
    """

    def __init__(
        self,
        inner: Store,
        *rules: Rule,
        clock: Clock = SYSTEM_CLOCK,
        seed: int = 0,
        trace: bool = False,
    ) -> None:
        self.inner = inner
        self.operations: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self.effects: Counter[Effect] = Counter()
        self.trace: builtins.list[TracedOperation] = []
        self._clock = clock
        self._seed = seed
        self._traces = trace
        self._changed = clock.condition()
        self._armed: builtins.list[_Armed] = []
        self._rules_ever = 0
        self._releases = 0
        self._blocked = 0
        self._crashed = False
        self._late: builtins.list[_LateWrite] = []
        self._watches: WeakSet[Watch] = WeakSet()
        self.add(*rules)

    # --- control ---

    def add(self, *rules: Rule) -> None:
        """Add rules, with lower precedence than those added before."""
        with self._changed:
            for rule in rules:
                self._armed.append(_Armed(self._rules_ever, rule))
                self._rules_ever += 1

    def clear(self) -> None:
        """Remove all rules. Operations that hang go on hanging, and held writes stay held."""
        with self._changed:
            self._armed.clear()

    def release(self) -> None:
        """End every `hang` and `slow` that was made without `seconds`."""
        with self._changed:
            self._releases += 1
            self._changed.notify_all()

    def land_late(self) -> builtins.list[bool]:
        """Carry out the held writes of `late_apply` without `seconds`, oldest first. Returns for
        each whether it took effect.
        """
        with self._changed:
            held, self._late = self._late, []
        return [write.land() for write in held]

    @property
    def blocked(self) -> int:
        """The number of operations that wait for `release` now."""
        return self._blocked

    @property
    def crashed(self) -> bool:
        """Whether a crash was injected. Then every operation raises `Crash`."""
        return self._crashed

    # --- the store ---

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def poll_interval(self) -> PollInterval:
        return self.inner.poll_interval

    @property
    def is_remote(self) -> bool:
        return self.inner.is_remote

    @property
    def case_sensitive(self) -> bool:
        return self.inner.case_sensitive

    def __repr__(self) -> str:
        return f"<FaultyStore {self.url}>"

    def get(self, key: str, size_max: int | None = None) -> bytes:
        return self._read("get", key, lambda: self.inner.get(key, size_max))

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        return self.get(key, size_max)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read("get_range", key, lambda: self.inner.get_range(key, start, length))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._write("put", key, data, self.inner.put)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self._write("create", key, data, partial(self._create, after))

    def link(self, key: str, to: str) -> None:
        self._write("link", to, b"", lambda to, _: self.inner.link(key, to))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        fault = self._strike("list", prefix)
        answer_is_lost = fault is not None and fault.name == "error_after"
        found = self._carry_out(
            None if answer_is_lost else fault,
            "list",
            prefix,
            lambda: [*self.inner.list(prefix, start_after)],
        )
        if fault is None:
            return iter(found)
        if answer_is_lost:
            self._count(Effect.ANSWER_LOST)
            return chain(found, self._broken_off(prefix, fault))
        if fault.name == "stale_list":
            newest = sorted(found, key=lambda entry: (entry.modified_ms, entry.key))[
                -(fault.number or 1) :
            ]
            self._count(Effect.KEYS_HIDDEN, if_so=bool(newest))
            return iter([entry for entry in found if entry not in newest])
        if fault.name == "repeated_page":
            self._count(Effect.PAGE_REPEATED, if_so=bool(found))
            return iter(found[: fault.number] + found)
        return iter(found)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        return builtins.list(self.list(prefix, start_after))

    def list_folders(self, prefix: str) -> builtins.list[str]:
        fault = self._strike("list_folders", prefix)
        return self._carry_out(
            fault, "list_folders", prefix, lambda: self.inner.list_folders(prefix)
        )

    def delete(self, key: str) -> None:
        self._write("delete", key, b"", lambda key, _: self.inner.delete(key))

    def sync(self, folder: str) -> None:
        self._die_if_crashed()
        self.inner.sync(folder)

    def remove_unfinished(self) -> Iterator[int]:
        self._die_if_crashed()
        return self.inner.remove_unfinished()

    def watch(self) -> Watch:
        self._die_if_crashed()
        watch = self.inner.watch()
        self._watches.add(watch)
        return watch

    # --- which fault ---

    def _strike(self, operation: str, key: str) -> Fault | None:
        """Choose the fault for this operation. Faults that prevent the operation raise here; delays
        end here.
        """
        with self._changed:
            self._die_if_crashed()
            self.operations[operation] += 1
            fault = self._first_that_strikes(operation, key)
            if fault is not None:
                self.struck[fault.name] += 1
            if self._traces:
                self.trace.append(
                    TracedOperation(operation, key, None if fault is None else fault.name)
                )
        if fault is not None:
            self._before(fault, operation, key)
        return fault

    def _first_that_strikes(self, operation: str, key: str) -> Fault | None:
        striking = None
        for armed in self._armed:
            if armed.rule.matches(operation, key):
                # Even if an earlier rule strikes: `nth` counts operations, not opportunities.
                armed.seen += 1
                if striking is None and armed.strikes(self._seed):
                    armed.struck += 1
                    striking = armed.rule.fault
        return striking

    def _before(self, fault: Fault, operation: str, key: str) -> None:
        if fault.name == "crash_before":
            self._crash(Effect.CRASHED_BEFORE)
        elif fault.name == "error_before":
            self._count(Effect.ERROR_BEFORE)
            raise StoreUnavailable(operation, key, fault.reason)
        elif fault.name == "hang":
            self._wait(fault.seconds)
            self._count(Effect.HUNG)
            raise StoreUnavailable(operation, key, fault.reason)
        elif fault.name == "slow":
            self._wait(fault.seconds)
            self._count(Effect.DELAYED)
        elif fault.name in ("refused", "no_space"):
            self._count(Effect.REFUSED if fault.name == "refused" else Effect.NO_SPACE)
            kind = StoreRefused if fault.name == "refused" else StoreFull
            raise kind(operation, key, fault.reason)

    def _wait(self, seconds: float | None) -> None:
        if seconds is not None:
            self._clock.sleep(seconds)
        else:
            with self._changed:
                releases = self._releases
                self._blocked += 1
                while self._releases == releases and not self._crashed:
                    self._changed.wait()
                self._blocked -= 1
        self._die_if_crashed()

    # --- what it does ---

    def _carry_out(self, fault: Fault | None, operation: str, key: str, work: Callable[[], T]) -> T:
        """Carry out the operation, then lose its answer or crash if the fault says so."""
        if fault is None or fault.name not in ("crash_after", "error_after"):
            return work()
        effect = Effect.ANSWER_LOST
        try:
            work()
        except StoreError:
            effect = Effect.REFUSAL_LOST
        if fault.name == "crash_after":
            self._crash(Effect.CRASHED_AFTER)
        self._count(effect)
        raise StoreUnavailable(operation, key, fault.reason)

    def _read(self, operation: str, key: str, read: Callable[[], bytes]) -> bytes:
        fault = self._strike(operation, key)
        data = self._carry_out(fault, operation, key, read)
        if fault is None:
            return data
        if fault.name == "missing":
            self._count(Effect.OBJECT_HIDDEN)
            raise ObjectMissing(operation, key, "there is no such object")
        damaged = fault.damaged(data, (self._seed, operation, key))
        self._count(_DAMAGE.get(fault.name), if_so=damaged != data)
        return damaged

    def _write(
        self,
        operation: str,
        key: str,
        data: bytes | memoryview,
        write: Callable[[str, bytes | memoryview], None],
    ) -> None:
        fault = self._strike(operation, key)
        if fault is not None and fault.name == "late_apply":
            self._hold(_LateWrite(self, key, bytes(data), write), fault.seconds)
            raise StoreUnavailable(operation, key, fault.reason)
        if fault is not None and fault.name == "conflict":
            self._count(Effect.FALSE_CONFLICT, if_so=not self._is_there(key))
            raise ObjectExists(operation, key, fault.reason)
        if fault is not None and fault.name == "ignored_condition":
            write = self._create_or_replace
        self._carry_out(fault, operation, key, lambda: write(key, data))

    def _create(self, after: str, key: str, data: bytes | memoryview) -> None:
        self.inner.create(key, data, after)

    def _create_or_replace(self, key: str, data: bytes | memoryview) -> None:
        try:
            self.inner.create(key, data)
        except ObjectExists:
            self.inner.put(key, data)
            self._count(Effect.CONDITION_IGNORED)

    def _is_there(self, key: str) -> bool:
        try:
            self.inner.get_range(key, 0, 0)
        except ObjectMissing:
            return False
        return True

    def _hold(self, late: _LateWrite, seconds: float | None) -> None:
        self._count(Effect.LATE_WRITE_HELD)
        if seconds is None:
            with self._changed:
                self._late.append(late)
        else:
            # On a thread of its own: the write is in the network, and lands even if its sender has
            # died.
            self._clock.start_thread(lambda: late.land_after(seconds), "deltaq-late-write")

    def _broken_off(self, prefix: str, fault: Fault) -> Iterator[ObjectEntry]:
        raise StoreUnavailable("list", prefix, fault.reason)
        yield

    def _crash(self, effect: Effect) -> None:
        with self._changed:
            self._crashed = True
            self._changed.notify_all()
        self._count(effect)
        for watch in tuple(self._watches):
            watch.wake()  # a waiting thread must die too: its next operation raises Crash
        self._die_if_crashed()

    def _die_if_crashed(self) -> None:
        if self._crashed:
            raise Crash(f"the process behind {self!r} has crashed")

    def _count(self, effect: Effect | None, *, if_so: bool = True) -> None:
        if effect is not None and if_so:
            with self._changed:
                self.effects[effect] += 1


_DAMAGE = {"truncate": Effect.TRUNCATED, "flip_bit": Effect.BIT_FLIPPED, "damage": Effect.DAMAGED}


@dataclass(frozen=True, slots=True, eq=False)
class _LateWrite:
    """A write that was reported as failed and is carried out later."""

    store: FaultyStore
    key: str
    data: bytes
    write: Callable[[str, bytes | memoryview], None]

    def land(self) -> bool:
        """Carry out the write. Returns whether it took effect."""
        try:
            self.write(self.key, self.data)
        except StoreError:
            self.store._count(Effect.LATE_WRITE_REFUSED)
            return False
        self.store._count(Effect.LATE_WRITE_LANDED)
        return True

    def land_after(self, seconds: float) -> None:
        """Carry out the write after `seconds` of the store's clock."""
        self.store._clock.sleep(seconds)
        self.land()
