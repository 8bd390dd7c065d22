"""A store that counts requests, by what they cost and what they met."""

from __future__ import annotations

import builtins
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from deltaq.store import (
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    PollInterval,
    Store,
    StoreError,
    Watch,
)


class CountingStore:
    """Hands everything on to `inner`.

    `counts` has the requests for log entries (keys below `log_folder`) as `entry create ok`, `entry
    create exists`, `entry get missing` and so on, all others as `data put ok` and so on. A failure
    without an answer counts as `error`.
    """

    def __init__(self, inner: Store, log_folder: str) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()
        self._log_folder = log_folder
        self._lock = threading.Lock()

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

    def _count(self, operation: str, key: str, outcome: str) -> None:
        of = "entry" if key.startswith(self._log_folder) else "data"
        with self._lock:  # several threads of one process come through here
            self.counts[f"{of} {operation} {outcome}"] += 1

    def get(self, key: str, size_max: int | None = None) -> bytes:
        return self._counted_get(key, lambda: self.inner.get(key, size_max))

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        return self._counted_get(key, lambda: self.inner.get_impatient(key, size_max))

    def _counted_get(self, key: str, get: Callable[[], bytes]) -> bytes:
        try:
            found = get()
        except StoreError as error:
            self._count("get", key, "missing" if isinstance(error, ObjectMissing) else "error")
            raise
        self._count("get", key, "ok")
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._count("get", key, "range")
        return self.inner.get_range(key, start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        try:
            self.inner.put(key, data)
        except StoreError:
            self._count("put", key, "error")
            raise
        self._count("put", key, "ok")

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        try:
            self.inner.create(key, data, after)
        except StoreError as error:
            self._count("create", key, "exists" if isinstance(error, ObjectExists) else "error")
            raise
        self._count("create", key, "ok")

    def link(self, key: str, to: str) -> None:
        self.inner.link(key, to)
        self._count("link", to, "ok")

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        self._count("list", prefix, "ok")
        return self.inner.list(prefix, start_after)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        self._count("list_some", prefix, "ok")
        return self.inner.list_some(prefix, start_after)

    def list_folders(self, prefix: str) -> builtins.list[str]:
        self._count("list", prefix, "ok")
        return self.inner.list_folders(prefix)

    def delete(self, key: str) -> None:
        self._count("delete", key, "ok")
        self.inner.delete(key)

    def sync(self, folder: str) -> None:
        self.inner.sync(folder)

    def remove_unfinished(self) -> Iterator[int]:
        return self.inner.remove_unfinished()

    def watch(self) -> Watch:
        return self.inner.watch()
