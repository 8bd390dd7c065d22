"""How a producer ends: by `close`, at the exit of the process, by garbage collection, and in a
forked child.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, finalize

from deltaq.clock import SYSTEM_CLOCK, Clock, after_fork
from deltaq.producer.sender import Sender
from deltaq.producer.topic_handle import TopicHandle

_log = logging.getLogger("deltaq.producer")

EXIT_WAIT_S = 300.0
"""Longest time, in seconds, for which the exit of the process waits for messages without a
`message.timeout.ms`.
"""

_PAUSE_S = 0.01
"""Seconds between two looks of the exit at what dropped producers have left."""


class EndingProducer(Protocol):
    """What the exit of the process and a fork call."""

    def _flush_at_exit(self) -> None:
        """Wait for messages that are not delivered yet, and close."""

    def _refuse_in_child(self, why: str) -> None:
        """Refuse further calls for this reason. The messages belong to the parent."""


def ends_when_dropped(
    producer: EndingProducer, handles: Mapping[Any, TopicHandle], clock: Clock
) -> finalize[..., EndingProducer]:
    """Have a producer end with the process, and when it is garbage-collected. What is returned is
    to be detached once the producer is closed.
    """
    _OPEN.add(producer)
    dropped = finalize(producer, _detach, handles, clock)
    dropped.atexit = False  # `_flush_all` handles the exit of the process
    return dropped


def close_handle(handles: MutableMapping[Any, TopicHandle], topic: Any) -> bool:
    """Close a handle and remove it; False if messages are not reported yet. Another thread may have
    looked the handle up and be about to queue a message, which is then refused.
    """
    handle = handles[topic]
    try:
        return handle.sender.close(handle.buffer)
    # After an exception of a signal handler, too: the next `produce` opens the topic again.
    finally:
        if handle.buffer.is_closed:
            handles.pop(topic, None)


def _detach(handles: Mapping[Any, TopicHandle], clock: Clock) -> None:
    """Runs when a producer was garbage-collected without `close`."""
    routes = {(handle.sender, handle.buffer) for handle in handles.values()}
    waiting = sum(buffer.pending_rows for _, buffer in routes)
    if waiting:
        _log.warning(
            "a Producer was dropped with %d messages not yet delivered: call flush() or close()",
            waiting,
        )
    for sender, buffer in routes:
        # One that the program controls stands still at the exit.
        if waiting and clock is SYSTEM_CLOCK:
            _DROPPED[sender] = max(buffer.settings.timeout_s, _DROPPED.get(sender, 0.0))
        sender.detach(buffer)


_OPEN: WeakSet[EndingProducer] = WeakSet()
_DROPPED: WeakKeyDictionary[Sender, float] = WeakKeyDictionary()
"""The senders of producers that were dropped with messages, and the longest `message.timeout.ms` of
these, in s.
"""


def _refuse_forked() -> None:
    """Close the parent's producers in a forked child, which lacks their threads. The parent sends
    their messages.
    """
    for producer in tuple(_OPEN):
        producer._refuse_in_child(
            "this Producer was made before the process forked; make one in the child (in gunicorn "
            "or Celery: in the worker's start-up hook)"
        )
    _OPEN.clear()
    _DROPPED.clear()


after_fork(_refuse_forked)


def _flush_all() -> None:
    for producer in tuple(_OPEN):
        producer._flush_at_exit()
    _finish_dropped()


def _finish_dropped() -> None:
    """Wait for what dropped producers have left: those of a function that ends just before the
    program.
    """
    busy = {sender: timeout_s for sender, timeout_s in tuple(_DROPPED.items()) if sender.is_busy}
    wait_s = min(EXIT_WAIT_S, max(busy.values(), default=0.0))
    until = SYSTEM_CLOCK.monotonic() + wait_s
    if busy:
        _log.warning(
            "the program ends while messages of dropped producers are written: waiting up to %g s",
            wait_s,
        )
    while any(sender.is_busy for sender in busy):
        if SYSTEM_CLOCK.monotonic() >= until:
            _log.error(
                "the program ends without waiting longer for dropped producers: messages may be "
                "lost"
            )
            break
        SYSTEM_CLOCK.sleep(_PAUSE_S)


atexit.register(_flush_all)
