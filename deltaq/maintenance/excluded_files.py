"""Data files that maintenance leaves as they are: damaged and lost ones, and those whose number no
merge reduces.
"""

from __future__ import annotations

from deltaq.errors import Corrupt, Unavailable
from deltaq.store import StoreError
from deltaq.topics.log import TopicLog
from deltaq.topics.scan import FileGone

UNREAD_MAX = 5
"""Number of files that the store may fail to return before it counts as unavailable and the round
skips the records.
"""


class ExcludedFiles:
    """The paths of the excluded files of one topic. `log` keeps an index."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self.damaged: set[str] = set()
        """Files that cannot be read."""
        self.unmergeable: set[str] = set()
        """Files whose number a merge cannot reduce: their records decode to too much."""
        self._unread: set[str] = set()  # those of `damaged` that are tried again in the next round

    @property
    def unmerged(self) -> set[str]:
        """Files that merges leave as they are."""
        return self.damaged | self.unmergeable

    def forget_removed(self) -> None:
        """Forget the files that have left the topic."""
        self.damaged &= self._log.index.files.keys()
        self.unmergeable &= self._log.index.files.keys()

    def retry_unread(self) -> None:
        """Include the files again that the store failed to return."""
        self.damaged -= self._unread
        self._unread.clear()

    def exclude_cause(self, error: Exception) -> str | None:
        """Exclude the file that caused an error: it is damaged or lost, or the store fails to
        return it.

        Returns the reason; None if the error is not a new finding about a file.
        """
        key, reason = None, str(error)
        if isinstance(error, FileGone) and self._log.is_lost(error.file):
            key = error.file.segment.key
            reason = f"{key} is in the topic, and not in the store"
        elif isinstance(error, Corrupt):
            key = error.path
        elif isinstance(cause := error.__cause__, StoreError) and len(self._unread) < UNREAD_MAX:
            key = cause.key
        path = next(
            (file.path for file in self._log.index.files.values() if file.segment.key == key), None
        )
        if path is None or path in self.damaged:
            return None
        # The store may return it in the next round. Damage stays.
        if isinstance(error, Unavailable):
            self._unread.add(path)
        self.damaged.add(path)
        for_now = " for now" if path in self._unread else ""
        return f"{reason}. Maintenance leaves this file as it is{for_now}"
