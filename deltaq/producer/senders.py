"""The senders of this process: one per topic, shared by all producers."""

from __future__ import annotations

import atexit
import os
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.producer.sender import Sender
from deltaq.store import Store


class _Senders:
    """Senders by (store, topic, clock), referenced weakly.

    A sender keeps its store and clock alive, so their `id` is not reused while the sender exists.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._senders: WeakValueDictionary[tuple[int, str, int], Sender] = WeakValueDictionary()

    def stop(self) -> None:
        for sender in tuple(self._senders.values()):
            sender.stop()

    def get(self, store: Store, topic: str, clock: Clock, client_id: str) -> Sender:
        with self._lock:
            found = self._senders.get((id(store), topic, id(clock)))
            if found is None:
                found = self._senders[id(store), topic, id(clock)] = Sender(store, topic, clock, client_id)
            return found


_SENDERS = _Senders()


def _forget_senders() -> None:
    """A forked child starts without senders: it lacks its parent's threads, and cannot release locks that they held."""
    global _SENDERS
    _SENDERS = _Senders()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_senders)


def _stop_senders() -> None:
    """At exit: a thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts the process."""
    _SENDERS.stop()


atexit.register(_stop_senders)


def topic_sender(store: Store, topic: str, clock: Clock, client_id: str = "") -> Sender:
    """The sender of `topic` on `store` in this process, created if there is none."""
    return _SENDERS.get(store, topic, clock, client_id)
