"""How a consumer ends: by `close`, at the exit of the process, by garbage collection, and in a
forked child.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet, finalize

from deltaq.clock import Thread, after_fork
from deltaq.consumer.calls import CallGuard
from deltaq.log_forwarding import forward_logs

_log = logging.getLogger("deltaq.consumer")


class ThreadOwner(Protocol):
    """A part of a consumer that has threads."""

    def close(self) -> None:
        """End the threads and wait for them. May be called again."""

    def abandon(self) -> Thread | None:
        """Let a thread end soon, and return it. May be called in any thread, also in that one."""


class ConsumerLifecycle:
    """The parts of one consumer that have threads, which end with the consumer. It holds no
    reference to that one.
    """

    def __init__(
        self, consumer: object, group: str, calls: CallGuard, logger: logging.Logger | None = None
    ) -> None:
        self._calls = calls
        self._forwarding = forward_logs(logger, consumer)
        self._parts: list[ThreadOwner] = []
        _OPEN.add(self)
        self._dropped = finalize(consumer, _abandon, group, self._parts)
        self._dropped.atexit = False  # `_end_all` handles the exit of the process

    def add(self, part: ThreadOwner) -> None:
        """Add a part, before its first thread starts."""
        if part not in self._parts:
            self._parts.append(part)

    def remove(self, part: ThreadOwner) -> None:
        """Forget a part that has ended."""
        if part in self._parts:
            self._parts.remove(part)

    def end(self) -> None:
        """Refuse further calls, and end all threads, those of the newest part first."""
        self._calls.is_closed = True
        self._dropped.detach()
        for part in reversed(self._parts):
            part.close()
        if self._forwarding is not None:
            self._forwarding()
        # Last: after an interrupted close, the exit of the process ends the threads.
        _OPEN.discard(self)

    def refuse_in_child(self) -> None:
        """Make the consumer unusable in a forked child: its threads and its membership stay in the
        parent.
        """
        self._calls.refuse_all(
            "this Consumer was created before the process forked: create one in the child"
        )
        self._dropped.detach()


def _abandon(group: str, parts: Sequence[ThreadOwner]) -> None:
    """End the threads of a consumer that was garbage-collected without `close`.

    This may run in any thread, including one of the consumer's own.
    """
    if parts:
        text = (
            "a Consumer of group %r was garbage-collected without close(): it leaves the group and "
            "commits nothing"
        )
        _log.warning(text, group)
    _ENDING.difference_update([thread for thread in tuple(_ENDING) if not thread.is_alive()])
    _ENDING.update([thread for part in tuple(parts) if (thread := part.abandon()) is not None])


_OPEN: WeakSet[ConsumerLifecycle] = WeakSet()
_ENDING: set[Thread] = set()
"""The threads of garbage-collected consumers. They may still be leaving their group."""


def _refuse_forked() -> None:
    for lifecycle in tuple(_OPEN):
        lifecycle.refuse_in_child()
    _OPEN.clear()
    _ENDING.clear()


after_fork(_refuse_forked)


def _end_all() -> None:
    """At exit, end the threads of consumers that were not closed.

    Python must not finalize while such a thread reads. As if the process had died, nothing is
    committed and no callback runs; but the consumer leaves its group, so the next member need not
    wait for the session time-out.
    """
    for lifecycle in tuple(_OPEN):
        lifecycle.end()
    while _ENDING:
        _ENDING.pop().join()


atexit.register(_end_all)
