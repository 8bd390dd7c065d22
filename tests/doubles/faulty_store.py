"""A store that fails in chosen ways, and counts what its faults did."""

from __future__ import annotations

import builtins
import fnmatch
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from deltaq.store import ObjectEntry, ObjectExists, Pace, Store, StoreRefused, StoreUnavailable, Watch

__all__ = ["FaultyStore", "Rule"]


@dataclass
class Rule:
    """When `operation` meets a key that matches `pattern`, `fault` happens, `times` times.

    Faults: error_before, error_after, late (applied only when `land_late` is called), conflict (refused as taken
    though it
    is free), refused, ignore_condition, damage (what is read goes through `change`).
    """

    operation: str
    pattern: str
    fault: str
    times: int = 1
    change: Callable[[bytes], bytes] = lambda data: data
    happened: int = field(default=0, init=False)


class FaultyStore:
    """Wraps a store; `happened` counts faults that had their effect."""

    def __init__(self, inner: Store, *rules: Rule) -> None:
        self.inner = inner
        self.rules = list(rules)
        self.happened: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self._late: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def pace(self) -> Pace:
        return self.inner.pace

    @property
    def is_remote(self) -> bool:
        return self.inner.is_remote

    @property
    def case_sensitive(self) -> bool:
        return self.inner.case_sensitive

    def _rule(self, operation: str, key: str) -> Rule | None:
        with self._lock:
            self.operations[operation] += 1
            for rule in self.rules:
                if rule.times > rule.happened and rule.operation == operation and fnmatch.fnmatch(key, rule.pattern):
                    rule.happened += 1
                    self.happened[rule.fault] += 1
                    return rule
        return None

    def land_late(self) -> list[bool]:
        """Let the writes arrive that were held back; whether each one took effect."""
        landed = []
        while self._late:
            key, data = self._late.pop(0)
            try:
                self.inner.create(key, data)
                landed.append(True)
            except ObjectExists:
                landed.append(False)
        return landed

    def get(self, key: str) -> bytes:
        rule = self._failing("get", key)
        data = self.inner.get(key)
        return rule.change(data) if rule is not None else data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        rule = self._failing("get_range", key)
        data = self.inner.get_range(key, start, length)
        return rule.change(data) if rule is not None else data

    def put(self, key: str, data: bytes | memoryview) -> None:
        rule = self._failing("put", key)
        self.inner.put(key, data)
        if rule is not None and rule.fault == "error_after":
            raise StoreUnavailable("put", key, "the answer was lost")

    def create(self, key: str, data: bytes | memoryview) -> None:
        rule = self._failing("create", key)
        if rule is not None and rule.fault == "late":
            self._late.append((key, bytes(data)))
            raise StoreUnavailable("create", key, "timed out")
        if rule is not None and rule.fault == "conflict":
            raise ObjectExists("create", key, "conflicting request in flight")
        if rule is not None and rule.fault == "ignore_condition":
            self.inner.put(key, data)
            return
        self.inner.create(key, data)
        if rule is not None and rule.fault == "error_after":
            raise StoreUnavailable("create", key, "the answer was lost")

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        self._failing("list", prefix)
        return self.inner.list(prefix, start_after)

    def list_folders(self, prefix: str) -> builtins.list[str]:
        self._failing("list_folders", prefix)
        return self.inner.list_folders(prefix)

    def delete(self, key: str) -> None:
        self._failing("delete", key)
        self.inner.delete(key)

    def watch(self) -> Watch:
        return self.inner.watch()

    def _failing(self, operation: str, key: str) -> Rule | None:
        rule = self._rule(operation, key)
        if rule is not None and rule.fault == "error_before":
            raise StoreUnavailable(operation, key, "connection refused")
        if rule is not None and rule.fault == "refused":
            raise StoreRefused(operation, key, "access denied")
        return rule
