"""The topic writers of this process: one for each topic, whoever produces to it."""

from __future__ import annotations

import atexit
import os
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.log.topic_writer import TopicWriter
from deltaq.store import Store

__all__ = ["topic_writer"]


class _Writers:
    """The topic writers of this process, so that all producers of a topic share one.

    A writer keeps its store and clock, so their identities stay theirs as long as the writer is here.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._writers: WeakValueDictionary[tuple[int, str, int], TopicWriter] = WeakValueDictionary()

    def stop(self) -> None:
        for writer in tuple(self._writers.values()):
            writer.stop()

    def get(self, store: Store, topic: str, clock: Clock, client_id: str) -> TopicWriter:
        with self._lock:
            found = self._writers.get((id(store), topic, id(clock)))
            if found is None:
                found = self._writers[id(store), topic, id(clock)] = TopicWriter(store, topic, clock, client_id)
            return found


_WRITERS = _Writers()


def _forget_writers() -> None:
    """A forked child has neither the threads of its parent's writers nor a say in their locks: it starts anew."""
    global _WRITERS
    _WRITERS = _Writers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_writers)


def _stop_writers() -> None:
    """At exit: a thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts the process."""
    _WRITERS.stop()


atexit.register(_stop_writers)


def topic_writer(store: Store, topic: str, clock: Clock, client_id: str = "") -> TopicWriter:
    """The one writer of `topic` on `store` in this process."""
    return _WRITERS.get(store, topic, clock, client_id)
