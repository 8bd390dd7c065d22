"""What `ShareConsumer.poll` returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, overload

from deltaq.message import K, Message, V


class Messages(Generic[K, V]):
    """A sequence of messages that cannot be changed, with the methods of confluent-kafka's."""

    __slots__ = ("_records",)

    def __init__(self, messages: Iterable[Message[K, V]] = ()) -> None:
        self._records = list(messages)

    def records(self) -> list[Message[K, V]]:
        """The messages in a new list."""
        return list(self._records)

    def count(self) -> int:
        """The number of messages."""
        return len(self._records)

    def is_empty(self) -> bool:
        """Whether there are no messages."""
        return not self._records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Message[K, V]]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Message[K, V]: ...

    @overload
    def __getitem__(self, index: slice) -> Messages[K, V]: ...

    def __getitem__(self, index: Any) -> Any:
        found = self._records[index]
        return Messages(found) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        return f"Messages({self._records!r})"
