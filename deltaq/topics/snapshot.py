"""A topic at one version of its log, as an immutable value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from deltaq import names
from deltaq.config import TopicSettings
from deltaq.delta.actions import Metadata
from deltaq.errors import UnknownTopic
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import DataFile, TopicHead


class ReadableTopic(Protocol):
    """A topic as read so far, with an offset index, and the means to read it again."""

    @property
    def topic(self) -> str: ...

    @property
    def head(self) -> TopicHead | None: ...

    @property
    def live_head(self) -> TopicHead: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def settings(self) -> TopicSettings: ...

    @property
    def folder(self) -> str: ...

    @property
    def index(self) -> OffsetIndex: ...

    def load(self) -> bool:
        """Load the newest version; whether the topic exists. Raises Corrupt, Incompatible, Unavailable."""

    def is_lost(self, file: DataFile) -> bool:
        """Whether a file that the log names, as read so far, is missing. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic at `version`, -1 before its first entry. The index must not be changed.

    `last_head` is that of the newest entry, also of a deleted topic. `is_end_open`: the position may be a gap in the
    log instead of its end.
    """

    topic: str
    version: int
    last_head: TopicHead | None
    table: Metadata | None
    index: OffsetIndex
    is_end_open: bool = False

    @property
    def folder(self) -> str:
        return names.topic_folder(self.topic)

    @property
    def head(self) -> TopicHead | None:
        """The head of the topic; None if the topic does not exist."""
        return None if self.last_head is None or self.last_head.deleted else self.last_head

    @property
    def live_head(self) -> TopicHead:
        """The head of the topic. Raises UnknownTopic."""
        head = self.head
        if head is None:
            raise UnknownTopic(self.topic)
        return head

    @property
    def metadata(self) -> Metadata:
        """The table's schema and properties. Raises UnknownTopic."""
        if self.head is None or self.table is None:
            raise UnknownTopic(self.topic)
        return self.table

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings, also after its deletion. Raises UnknownTopic."""
        if self.table is None:
            raise UnknownTopic(self.topic)
        return TopicSettings.from_properties(self.table.configuration)
