"""Fault rules of the S3 stub: which fault, when it is injected, and how often it took effect."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

from deltaq.clock import SYSTEM_CLOCK
from deltaq.testing.chance import chance
from deltaq.testing.faults import Effect

__all__ = ["FAULTS", "HttpFault", "HttpRule", "HttpRules"]

HttpFault = Literal[
    "error_before",
    "error_after",
    "reset_before",
    "reset_after",
    "hang_before",
    "hang_after",
    "late_apply",
    "ignored_condition",
    "stale_list",
    "repeated_page",
    "short_body",
    "truncate",
    "flip_bit",
    "slow",
]

FAULTS: Mapping[HttpFault, str] = {
    "error_before": "answered with `status`, `code` and `body`; not done",
    "error_after": "done, then answered with `status`, `code` and `body`",
    "reset_before": "the connection was closed without an answer; not done",
    "reset_after": "done, then the connection was closed without an answer",
    "hang_before": "not done, and not answered until the client gave up",
    "hang_after": "done, but not answered until the client gave up",
    "late_apply": "answered with `status` (0: connection closed), and done `delay_ms` later",
    "ignored_condition": "a conditional write was done without checking its condition",
    "stale_list": "a listing left out the `keys` newest objects",
    "repeated_page": "a page of a listing repeated the page before it",
    "short_body": "the connection was closed in the middle of the body",
    "truncate": "the body was cut to half, with a matching Content-Length",
    "flip_bit": "one bit in the middle of the body was flipped",
    "slow": "the answer was delayed by `delay_ms`",
}
"""Every fault, with its effect on a request."""

_LONGEST_HANG_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRule:
    """Injects `fault` into matching requests.

    `operation`, `key` and `access_key` are shell patterns. Operations are those of
    `deltaq.store.Store` (`create` is a PUT with `If-None-Match: *`), and `head`, `multipart` and
    `other`. Keys begin with the prefix of the root; the key of a listing is its prefix.
    `access_key` is the access key id that signed the request.

    Of the matching requests, the fault hits those from the `nth` on (1: the first), at most `times`
    of them, each with `probability`. Random decisions depend only on `seed` and the number of the
    match, so runs are reproducible.

    `status`, `code`, `body` and `headers` define the answer; without `body`, S3's XML for errors is
    sent. `delay_ms` is the range (minimum, maximum) of a random delay in milliseconds. `keys`: the
    number of objects that a stale listing leaves out.
    """

    fault: HttpFault
    operation: str = "*"
    key: str = "*"
    access_key: str = "*"
    nth: int = 1
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    status: int = 500
    code: str = ""
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_ms: tuple[int, int] = (1, 20)
    keys: int = 1

    def __post_init__(self) -> None:
        if self.fault not in get_args(HttpFault):
            raise ValueError(f"fault={self.fault!r}: must be one of {', '.join(FAULTS)}")
        if self.nth < 1 or (self.times is not None and self.times < 1) or self.keys < 1:
            raise ValueError(
                f"nth={self.nth}, times={self.times}, keys={self.keys}: must be 1 or more"
            )
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability={self.probability}: must be above 0 and at most 1")
        low, high = self.delay_ms
        if not 0 <= low <= high <= _LONGEST_HANG_MS:
            raise ValueError(
                f"delay_ms={self.delay_ms}: must be (least, most), within 0 and {_LONGEST_HANG_MS}"
            )
        if not (200 <= self.status <= 599 or (self.status == 0 and self.fault == "late_apply")):
            raise ValueError(
                f"status={self.status}: must be within 200 and 599, or 0 to close the connection"
            )

    def as_json(self) -> dict[str, object]:
        """The rule as JSON for the control path of a stub."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(found: Mapping[str, object]) -> HttpRule:
        """The inverse of `as_json`. Raises TypeError or ValueError for other input."""
        given = dict(found)
        if isinstance(delay_ms := given.get("delay_ms"), list):
            given["delay_ms"] = tuple(delay_ms)
        return HttpRule(**given)  # type: ignore[arg-type]  # checked by __post_init__

    def delay_s(self, number: int) -> float:
        """The delay in seconds for match `number` of the rule."""
        low, high = self.delay_ms
        return (low + (high - low) * chance(self.seed, "delay", number)) / 1000


class HttpRules:
    """The active rules, in order of precedence, and the counts of their effects. Thread-safe."""

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._rules: list[HttpRule] = []
        self._matches: list[int] = []
        self._hits: list[int] = []
        self._effects: Counter[Effect] = Counter()

    def replace(self, rules: Sequence[HttpRule]) -> None:
        """Replace all rules. The counts of effects are kept."""
        with self._lock:
            self._rules = list(rules)
            self._matches = [0] * len(rules)
            self._hits = [0] * len(rules)

    def hit(self, operation: str, key: str, access_key: str) -> tuple[HttpRule, int] | None:
        """The first rule that strikes this request, and the number of its match. Every matching
        rule counts the request.
        """
        struck = None
        with self._lock:
            for index, rule in enumerate(self._rules):
                if not (
                    fnmatchcase(operation, rule.operation)
                    and fnmatchcase(key, rule.key)
                    and fnmatchcase(access_key, rule.access_key)
                ):
                    continue
                number = self._matches[index] = self._matches[index] + 1
                if (
                    struck is None
                    and number >= rule.nth
                    and (rule.times is None or self._hits[index] < rule.times)
                    and chance(rule.seed, index, number) < rule.probability
                ):
                    self._hits[index] += 1
                    struck = rule, number
        return struck

    def count(self, effect: Effect) -> None:
        """Count an effect that has taken place."""
        with self._lock:
            self._effects[effect] += 1

    def effects(self, *, clear: bool = False) -> dict[str, int]:
        """The counts of effects since they were last cleared."""
        with self._lock:
            found = {effect.value: count for effect, count in self._effects.items()}
            if clear:
                self._effects.clear()
            return found
