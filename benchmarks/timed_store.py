"""A store that notes when the requests for a topic's data files and log entries began and ended."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TypeAlias, TypeVar

from benchmarks.counting_store import CountingStore
from deltaq.names import topic_folder, topic_log
from deltaq.store import Store

Span: TypeAlias = tuple[int, int]
"""When something began and ended, in ns of the monotonic clock, which all processes of a machine
share.
"""

_Answer = TypeVar("_Answer")


class TimedStore(CountingStore):
    """Of data files (`.parquet`) and log entries (`.json`), by key, the first request of each kind
    that succeeded.
    """

    def __init__(self, inner: Store, topic: str) -> None:
        super().__init__(inner, topic_log(topic))
        self.puts: dict[str, Span] = {}
        self.creates: dict[str, Span] = {}
        self.entries: dict[str, Span] = {}
        self.files: dict[str, Span] = {}
        self._folder = topic_folder(topic)

    def forget(self) -> None:
        """Begin anew."""
        for spans in (self.puts, self.creates, self.entries, self.files):
            spans.clear()

    def get(self, key: str, size_max: int | None = None) -> bytes:
        return self._timed(self._gets(key), key, lambda: super(TimedStore, self).get(key, size_max))

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        return self._timed(
            self._gets(key), key, lambda: super(TimedStore, self).get_impatient(key, size_max)
        )

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._timed(self.puts, key, lambda: super(TimedStore, self).put(key, data))

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self._timed(self.creates, key, lambda: super(TimedStore, self).create(key, data, after))

    def _gets(self, key: str) -> dict[str, Span]:
        return self.entries if key.startswith(self._log_folder) else self.files

    def _timed(self, spans: dict[str, Span], key: str, request: Callable[[], _Answer]) -> _Answer:
        start = monotonic_ns()
        answer = request()
        if key.startswith(self._folder) and key.endswith((".parquet", ".json")):
            spans.setdefault(key, (start, monotonic_ns()))
        return answer
