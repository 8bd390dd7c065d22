"""What an S3 stub does wrong, when, and how often it really happened."""

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
    "error_before": "answered with `status`, `code` and `body`; nothing was done",
    "error_after": "done, and then answered with `status`, `code` and `body`",
    "reset_before": "the connection closed without an answer; nothing was done",
    "reset_after": "done, and the connection closed without an answer",
    "hang_before": "nothing was done, and no answer came until the client gave up",
    "hang_after": "done, and no answer came until the client gave up",
    "late_apply": "answered with `status` (0: connection closed), and done `delay_ms` after that",
    "ignored_condition": "a write on condition was done without it",
    "stale_list": "a listing left out the `keys` newest objects",
    "repeated_page": "a listing's page was the one before it once more",
    "short_body": "the connection closed in the middle of the body",
    "truncate": "the body was half of what it should be, and its announced length agreed",
    "flip_bit": "one bit in the middle of the body was another",
    "slow": "the answer waited `delay_ms`",
}
"""Every fault, and what it does to a request."""

_LONGEST_HANG_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRule:
    """When requests meet a fault.

    `operation`, `key` and `access_key` are shell patterns. Operations are those of `deltaq.store.Store` (`create` is a
    PUT with `If-None-Match: *`), and `head`, `multipart` and `other`. Keys begin with the prefix of the root; the key
    of a listing is its prefix. `access_key` is what the request was signed with.

    Of all that match, those from the `nth` (1: the first) are hit, at most `times`, each with `probability`. The dice
    depend on `seed` and the number of the match only, so that a run can be repeated.

    `status`, `code`, `body` and `headers` make up an answer; without a body S3's own XML for an error is sent.
    `delay_ms` is a range, from which the dice choose.
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
            raise ValueError(f"nth={self.nth}, times={self.times}, keys={self.keys}: must be 1 or more")
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability={self.probability}: must be above 0 and at most 1")
        low, high = self.delay_ms
        if not 0 <= low <= high <= _LONGEST_HANG_MS:
            raise ValueError(f"delay_ms={self.delay_ms}: must be (least, most), within 0 and {_LONGEST_HANG_MS}")
        if not (200 <= self.status <= 599 or (self.status == 0 and self.fault == "late_apply")):
            raise ValueError(f"status={self.status}: must be within 200 and 599, or 0 to close the connection")

    def as_json(self) -> dict[str, object]:
        """The rule as the control path of a stub takes it."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(found: Mapping[str, object]) -> HttpRule:
        """The rule that `as_json` described. TypeError and ValueError for anything else."""
        given = dict(found)
        if isinstance(delay_ms := given.get("delay_ms"), list):
            given["delay_ms"] = tuple(delay_ms)
        return HttpRule(**given)  # type: ignore[arg-type]  # judged by __post_init__

    def delay_s(self, number: int) -> float:
        """Seconds for the rule's match `number`."""
        low, high = self.delay_ms
        return (low + (high - low) * chance(self.seed, "delay", number)) / 1000


class HttpRules:
    """Rules in force, in the order in which they are asked, and what came of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._rules: list[HttpRule] = []
        self._matches: list[int] = []
        self._hits: list[int] = []
        self._effects: Counter[Effect] = Counter()

    def replace(self, rules: Sequence[HttpRule]) -> None:
        """From now on these rules, and no earlier ones. Counts of what happened stay."""
        with self._lock:
            self._rules = list(rules)
            self._matches = [0] * len(rules)
            self._hits = [0] * len(rules)

    def hit(self, operation: str, key: str, access_key: str) -> tuple[HttpRule, int] | None:
        """The first rule that strikes this request, and the number of its match; each rule that fits it has counted
        it."""
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
        """Something happened, as opposed to having been ordered."""
        with self._lock:
            self._effects[effect] += 1

    def effects(self, *, clear: bool = False) -> dict[str, int]:
        """What happened so far, since the last time that was cleared."""
        with self._lock:
            found = {effect.value: count for effect, count in self._effects.items()}
            if clear:
                self._effects.clear()
            return found
