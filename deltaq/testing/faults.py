"""Storage faults as values: which fault, when it is injected, and what effect it had."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache

from deltaq.testing.chance import chance

__all__ = ["OPERATIONS", "Crash", "Effect", "Fault", "Rule"]

READS = ("get", "get_range", "list", "list_folders")
WRITES = ("put", "create", "link", "delete")
OPERATIONS = READS + WRITES
_GROUPS = {"*": OPERATIONS, "read": READS, "write": WRITES}

_STRIKES = {
    "error_before": OPERATIONS,
    "error_after": OPERATIONS,
    "hang": OPERATIONS,
    "slow": OPERATIONS,
    "refused": OPERATIONS,
    "crash_before": OPERATIONS,
    "crash_after": OPERATIONS,
    "late_apply": WRITES,
    "no_space": ("put", "create"),
    "ignored_condition": ("create",),
    "conflict": ("create",),
    "stale_list": ("list",),
    "repeated_page": ("list",),
    "missing": ("get", "get_range"),
    "truncate": ("get", "get_range"),
    "flip_bit": ("get", "get_range"),
    "damage": ("get", "get_range"),
}


class Crash(SystemExit):
    """Simulates the death of the process. Abandon its clients; do not close them.

    It is a SystemExit, so that no `except Exception` catches it. Give the clients a `MortalClock`
    or a `ManualClock`, so that their threads end without a traceback.
    """


class Effect(StrEnum):
    """The effect of a fault, as counted in `FaultyStore.effects`. A fault that changed nothing is
    not counted.
    """

    ERROR_BEFORE = "error_before"  # reported as failed; not done
    ANSWER_LOST = "answer_lost"  # done, but reported as failed
    # The store's own refusal or error was replaced by StoreUnavailable.
    REFUSAL_LOST = "refusal_lost"
    HUNG = "hung"  # no answer for a long time, then reported as failed; not done
    DELAYED = "delayed"  # done after a delay
    LATE_WRITE_HELD = "late_write_held"  # reported as failed, and still pending
    LATE_WRITE_LANDED = "late_write_landed"  # a held write took effect
    # The store refused a held write, such as a create of an existing key.
    LATE_WRITE_REFUSED = "late_write_refused"
    REFUSED = "refused"
    NO_SPACE = "no_space"
    FALSE_CONFLICT = "false_conflict"  # refused as taken, though the key was free
    CONDITION_IGNORED = "condition_ignored"  # a create replaced an object
    KEYS_HIDDEN = "keys_hidden"  # a listing lacked its newest keys
    PAGE_REPEATED = "page_repeated"  # a listing gave some keys twice
    OBJECT_HIDDEN = "object_hidden"  # reported as missing, though it exists
    TRUNCATED = "truncated"
    BIT_FLIPPED = "bit_flipped"
    DAMAGED = "damaged"
    CRASHED_BEFORE = "crashed_before"
    CRASHED_AFTER = "crashed_after"  # done, but the process crashed before the answer


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of failure; create it with the class methods below. The exceptions are those of
    `deltaq.store`.
    """

    name: str
    reason: str = ""
    seconds: float | None = None
    number: int | None = None
    change: Callable[[bytes], bytes] | None = None

    def __post_init__(self) -> None:
        if self.name not in _STRIKES:
            raise ValueError(
                f"fault {self.name!r}: unknown; known are {', '.join(sorted(_STRIKES))}"
            )
        if self.seconds is not None and not 0 <= self.seconds < math.inf:
            raise ValueError(
                f"{self.name}: seconds={self.seconds!r} must be a finite number, not below 0"
            )

    # --- no answer ---

    @classmethod
    def error_before(cls, reason: str = "connection refused") -> Fault:
        """StoreUnavailable, and the operation is not done: server unreachable, HTTP 429, 500,
        503.
        """
        return cls("error_before", reason)

    @classmethod
    def error_after(cls, reason: str = "the answer was lost") -> Fault:
        """StoreUnavailable, although the operation is done. A listing breaks off after its last
        key.
        """
        return cls("error_after", reason)

    @classmethod
    def hang(cls, seconds: float | None = None, reason: str = "timed out") -> Fault:
        """No answer for `seconds` of the clock (None: until `FaultyStore.release`), then as
        `error_before`.
        """
        return cls("hang", reason, seconds)

    @classmethod
    def slow(cls, seconds: float | None = None) -> Fault:
        """The operation succeeds after `seconds` of the clock (None: after
        `FaultyStore.release`).
        """
        return cls("slow", seconds=seconds)

    @classmethod
    def late_apply(cls, seconds: float | None = None, reason: str = "timed out") -> Fault:
        """A write that raises StoreUnavailable at once, and is carried out later.

        It is carried out after `seconds` of the clock (None: when `FaultyStore.land_late` is
        called).
        """
        return cls("late_apply", reason, seconds)

    # --- refusals ---

    @classmethod
    def refused(cls, reason: str = "access denied") -> Fault:
        """StoreRefused, and the operation is not done: HTTP 401, 403, 413, no such bucket."""
        return cls("refused", reason)

    @classmethod
    def no_space(cls, reason: str = "the disk is full; free space or enlarge it") -> Fault:
        """StoreFull from a `put` or `create`; nothing is written."""
        return cls("no_space", reason)

    @classmethod
    def conflict(cls, reason: str = "conflicting request in flight") -> Fault:
        """ObjectExists from a `create` of a free key: HTTP 409 for two concurrent requests, both of
        which fail.
        """
        return cls("conflict", reason)

    # --- wrong answers ---

    @classmethod
    def ignored_condition(cls) -> Fault:
        """A `create` that replaces an existing object, as in stores without support for
        `If-None-Match`.
        """
        return cls("ignored_condition")

    @classmethod
    def missing(cls) -> Fault:
        """ObjectMissing from a `get` or `get_range` of an existing object: HTTP 404 for a key that
        was just listed.
        """
        return cls("missing")

    @classmethod
    def stale_list(cls, keys: int = 1) -> Fault:
        """A listing without its `keys` newest objects."""
        return cls("stale_list", number=_positive("stale_list", "keys", keys))

    @classmethod
    def repeated_page(cls, keys: int = 1) -> Fault:
        """A listing that returns its first `keys` keys twice, as if a page was sent again."""
        return cls("repeated_page", number=_positive("repeated_page", "keys", keys))

    @classmethod
    def truncate(cls, length: int) -> Fault:
        """A read that returns only the first `length` bytes; a negative `length` is the number of
        bytes cut off.
        """
        return cls("truncate", number=length)

    @classmethod
    def flip_bit(cls, bit: int | None = None) -> Fault:
        """A read that returns the content with bit number `bit` flipped (None: a bit chosen by the
        seed).
        """
        if bit is not None and bit < 0:
            raise ValueError(f"flip_bit: bit={bit!r} must not be negative")
        return cls("flip_bit", number=bit)

    @classmethod
    def damage(cls, change: Callable[[bytes], bytes]) -> Fault:
        """A read that returns `change(content)`: for example a proxy's error page, or an older
        version.
        """
        return cls("damage", change=change)

    # --- crashes ---

    @classmethod
    def crash_before(cls) -> Fault:
        """The process dies before the operation. It and every later operation of the store raise
        `Crash`.
        """
        return cls("crash_before")

    @classmethod
    def crash_after(cls) -> Fault:
        """The operation is done, and the process dies before its answer. It and every later
        operation raise `Crash`.
        """
        return cls("crash_after")

    # --- damage ---

    def damaged(self, data: bytes, seed: object) -> bytes:
        """`data` after this fault; unchanged if the fault does not damage content."""
        if self.name == "truncate":
            return data[: self.number]
        if self.name == "flip_bit" and data:
            bit = int(chance(seed) * len(data) * 8) if self.number is None else self.number
            at, mask = bit // 8, 1 << bit % 8
            return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :] if at < len(data) else data
        return data if self.change is None else self.change(data)


@dataclass(frozen=True, slots=True)
class Rule:
    """Injects `fault` into operations whose key (for a listing: prefix) matches the pattern `key`.

    `operation` is one of `get`, `get_range`, `list`, `list_folders`, `put`, `create`, `delete`, or
    a group: `read`, `write` or `*`, restricted to the operations that the fault applies to. `key`
    is a pattern with `*` and `?`; `*` also matches `/`.

    Of the matching operations, the fault strikes from the `nth` on (1: the first), each with
    `probability`, until it has struck `times` times (None: no limit).

    Raises ValueError for invalid values.
    """

    operation: str
    key: str
    fault: Fault
    times: int | None = 1
    nth: int = 1
    probability: float = 1.0

    def __post_init__(self) -> None:
        if self.operation not in _GROUPS and self.operation not in OPERATIONS:
            known = ", ".join((*OPERATIONS, *_GROUPS))
            raise ValueError(f"operation={self.operation!r}: unknown; known are {known}")
        if not isinstance(self.fault, Fault):
            raise ValueError(
                f"fault={self.fault!r}: must be a Fault, for example Fault.error_before()"
            )
        if not _struck(self.operation, self.fault.name):
            raise ValueError(
                f"operation={self.operation!r}: {self.fault.name} strikes only "
                f"{', '.join(_STRIKES[self.fault.name])}"
            )
        if not self.key:
            raise ValueError(
                "key='' matches no key: use a pattern such as '*' or 'topics/*.parquet'"
            )
        if self.times is not None:
            _positive("rule", "times", self.times)
        _positive("rule", "nth", self.nth)
        if not 0 < self.probability <= 1:
            raise ValueError(
                f"rule: probability={self.probability!r} must be above 0 and at most 1"
            )

    def matches(self, operation: str, key: str) -> bool:
        """Whether the rule applies to this operation, apart from `nth`, `times` and
        `probability`.
        """
        return operation in _struck(self.operation, self.fault.name) and fnmatchcase(key, self.key)


@cache
def _struck(operation: str, fault: str) -> frozenset[str]:
    """The operations that a rule for `operation`, an operation or a group, strikes with `fault`."""
    return frozenset(_GROUPS.get(operation, (operation,))) & frozenset(_STRIKES[fault])


def _positive(where: str, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where}: {name}={value!r} must be a whole number, at least 1")
    return value
