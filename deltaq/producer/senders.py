"""The senders of this process: one per topic, shared by all producers."""

from __future__ import annotations

import atexit
import os
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.producer.sender import Sender
from deltaq.store import Store

_lock = SYSTEM_CLOCK.lock()
_senders: WeakValueDictionary[tuple[int, str, int], Sender] = WeakValueDictionary()
"""By store, topic and clock. A sender keeps its store and clock alive, so their `id` is not reused while it exists."""


def _forget_senders() -> None:
    """A forked child starts without senders: it lacks its parent's threads, and cannot release locks that they held."""
    global _lock, _senders
    _lock, _senders = SYSTEM_CLOCK.lock(), WeakValueDictionary()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_senders)


def _stop_senders() -> None:
    """At exit: a thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts the process."""
    for sender in tuple(_senders.values()):
        sender.stop()


atexit.register(_stop_senders)


def topic_sender(store: Store, topic: str, clock: Clock, client_id: str = "") -> Sender:
    """The sender of `topic` on `store` in this process, created if there is none."""
    key = id(store), topic, id(clock)
    with _lock:
        found = _senders.get(key)
        if found is None:
            found = _senders[key] = Sender(store, topic, clock, client_id)
        return found
