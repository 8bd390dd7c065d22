"""Remembers the layouts of large files, so that queries about one file fetch its footer once."""

from __future__ import annotations

from dataclasses import dataclass

from deltaq.clock import SYSTEM_CLOCK, Clock, Lock
from deltaq.parquet.segment import SegmentLayout
from deltaq.store import Store
from deltaq.topics.scan import layout_of
from deltaq.topics.state import DataFile

LAYOUTS_KEPT = 4
"""Cached layouts. Queries about the partitions of a topic mostly concern the same few files."""


@dataclass(slots=True)
class _KnownLayout:
    """A cache entry. The thread that fetches holds `lock`. `layout` is None until a fetch has
    succeeded; `failures` counts those that have not, `failure` is the latest.
    """

    lock: Lock
    layout: SegmentLayout | None = None
    failures: int = 0
    failure: Exception | None = None


class LayoutCache:
    """Caches the layouts of the last LAYOUTS_KEPT large files. Thread-safe. Of several concurrent
    queries about a file, one fetches its layout.
    """

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock
        self._guard = clock.lock()  # guards `_layouts`; never held during a store request
        self._layouts: dict[str, _KnownLayout] = {}

    def of(self, file: DataFile) -> SegmentLayout | None:
        """As `layout_of`, with the same errors."""
        if file.segment.is_small:
            return None
        with self._guard:
            known = self._layouts.get(file.segment.key)
            if known is None:
                while len(self._layouts) >= LAYOUTS_KEPT:
                    del self._layouts[next(iter(self._layouts))]
                known = self._layouts[file.segment.key] = _KnownLayout(self._clock.lock())
            failures = known.failures
        with known.lock:
            if known.layout is None:
                if known.failure is not None and known.failures > failures:
                    # Failed during the wait: a retry by each thread would take as long again.
                    raise known.failure
                try:
                    known.layout = layout_of(self._store, file)
                except Exception as error:
                    known.failures, known.failure = known.failures + 1, error
                    raise
            return known.layout
