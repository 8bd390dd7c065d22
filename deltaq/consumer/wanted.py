"""The topics that a consumer subscribes to, by name and by regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterable

from deltaq.errors import InvalidConfig
from deltaq.names import check_topic


class Wanted:
    """The topics of a subscription: those `named`, and those that its regular expressions have `matched`."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises InvalidConfig for an invalid topic name and for an invalid regular expression."""
        listed = list(names)
        self.named = frozenset(check_topic(name) for name in listed if not name.startswith("^"))
        self.patterns = tuple(_pattern(name) for name in listed if name.startswith("^"))
        self.matched: frozenset[str] = frozenset()

    @property
    def topics(self) -> frozenset[str]:
        """All topics, named and matched."""
        return self.named | self.matched

    def match(self, existing: Iterable[str]) -> None:
        """Match the regular expressions against the names of existing topics."""
        self.matched = frozenset(name for name in existing if any(p.search(name) for p in self.patterns))

    def is_only_matched(self, topic: str) -> bool:
        """Whether only a regular expression matches the topic: its deletion is then no error."""
        return topic in self.matched and topic not in self.named


_POSIX_CLASS = re.compile(r"\[:\w+:\]")
"""Such as `[[:digit:]]`, which librdkafka knows. For Python it is a set of characters that no topic's name has."""


def _pattern(name: str) -> re.Pattern[str]:
    if _POSIX_CLASS.search(name):
        reason = f"{name!r} has a POSIX class: it must be a regular expression of Python, such as [0-9] for [[:digit:]]"
        raise InvalidConfig(reason, key="topics")
    try:
        return re.compile(name)
    except re.error as error:
        raise InvalidConfig(f"{name!r} is not a regular expression: {error}", key="topics") from error
