"""A topic as read so far: what its newest head and its table say."""

from __future__ import annotations

from abc import ABC, abstractmethod

from deltaq import names
from deltaq.clock import Clock
from deltaq.config import TopicSettings
from deltaq.delta.actions import Metadata
from deltaq.delta.retry import error_pause_s
from deltaq.delta.store_errors import unavailable
from deltaq.errors import UnknownTopic
from deltaq.store import ObjectMissing, Store, StoreError
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import DataFile, TopicHead
from deltaq.topics.view import TopicView

_LOOKS_FOR_LOST_FILE = 5


class ReadableTopic(ABC):
    """A topic as read so far, with an offset index, and the means to read it again."""

    def __init__(self, store: Store, topic: str, clock: Clock) -> None:
        self.topic = topic
        self.folder = names.topic_folder(topic)
        self._store = store
        self._clock = clock
        self._settings: tuple[Metadata, TopicSettings] | None = None

    @property
    def clock(self) -> Clock:
        """The clock of this reader."""
        return self._clock

    @property
    @abstractmethod
    def view(self) -> TopicView:
        """The topic at the version that was read last."""

    @property
    def version(self) -> int:
        return self.view.version

    @property
    def last_head(self) -> TopicHead | None:
        """The newest head read, also of a deleted topic; None before the first."""
        return self.view.last_head

    @property
    def table(self) -> Metadata | None:
        """The newest schema and properties read, also of a deleted topic; None before the first."""
        return self.view.table

    @property
    def index(self) -> OffsetIndex:
        """Where the records are; empty if the position is not for reading them. It must not be
        changed.
        """
        return self.view.index

    @property
    def head(self) -> TopicHead | None:
        """The head of the topic; None if the topic does not exist."""
        head = self.last_head
        return None if head is None or head.deleted else head

    @property
    def live_head(self) -> TopicHead:
        """The head of the topic. Raises UnknownTopic."""
        head = self.last_head
        if head is None or head.deleted:
            raise UnknownTopic(self.topic)
        return head

    @property
    def ended(self) -> TopicHead | None:
        """The last head of a deleted topic, until a topic of this name is created again."""
        head = self.last_head
        return head if head is not None and head.deleted else None

    @property
    def metadata(self) -> Metadata:
        """The table's schema and properties. Raises UnknownTopic."""
        table = self.table
        if self.head is None or table is None:
            raise UnknownTopic(self.topic)
        return table

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings, also after its deletion. Raises UnknownTopic."""
        table = self.table
        if table is None:
            raise UnknownTopic(self.topic)
        if self._settings is None or self._settings[0] is not table:  # every commit reads them
            self._settings = table, TopicSettings.from_properties(table.configuration)
        return self._settings[1]

    @abstractmethod
    def load(self, *, to_end: bool = True) -> bool:
        """Load the newest version; whether the topic exists. Unless `to_end`, the position may be a
        gap in the log.

        Raises InvalidConfig if the store does not distinguish this name from another topic's,
        Corrupt, Incompatible, Unavailable.
        """

    def is_lost(self, file: DataFile) -> bool:
        """Whether a file that the log names, as read so far, is missing. Raises Unavailable."""
        return file.path in self.index.files and _is_missing(self._store, self._clock, file)


def _is_missing(store: Store, clock: Clock, file: DataFile) -> bool:
    """Whether a data file that the newest version names is missing. Retries with back-off, since a
    store may show a file late. Raises Unavailable.
    """
    for attempt in range(1, _LOOKS_FOR_LOST_FILE + 1):
        try:
            store.get_range(file.segment.key, 0, 0)
        except ObjectMissing:
            clock.sleep(error_pause_s(attempt, clock.random()))
        except StoreError as error:
            raise unavailable(error) from error
        else:
            return False
    return True
