"""The setting `logger`: a logger of the application that gets the log records of deltaq as well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from weakref import finalize

from deltaq.clock import SYSTEM_CLOCK

_SOURCE = logging.getLogger("deltaq")


class _Forwarder(logging.Handler):
    """Passes records to the handlers of `target` that would not get them otherwise, so that none
    gets one twice.
    """

    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self.target = target
        self.clients = 0

    def emit(self, record: logging.LogRecord) -> None:
        reached = set(_handlers_of(logging.getLogger(record.name)))
        others = [handler for handler in _handlers_of(self.target) if handler not in reached]
        if not others and reached == {self} and logging.lastResort is not None:
            others = [logging.lastResort]  # as if there was no forwarder
        # Since Python 3.12 a filter may return another record, such as one without secrets, to be
        # logged in its place.
        passed: object = self.target.isEnabledFor(record.levelno) and self.target.filter(record)
        if passed:
            shown = passed if isinstance(passed, logging.LogRecord) else record
            for handler in others:
                if shown.levelno >= handler.level:
                    handler.handle(shown)


def _handlers_of(logger: logging.Logger) -> Iterator[logging.Handler]:
    """The handlers that get the records of a logger."""
    current: logging.Logger | None = logger
    while current is not None:
        yield from current.handlers
        current = current.parent if current.propagate else None


_lock = SYSTEM_CLOCK.condition()  # re-entrant: a client may be garbage-collected while it is held
_forwarders: dict[logging.Logger, _Forwarder] = {}


def forward_logs(
    logger: logging.Logger | logging.LoggerAdapter[Any] | None, client: object
) -> Callable[[], object] | None:
    """Have a logger get the records of all loggers below `deltaq` while the client lives, or until
    the result is called. The level of `deltaq` decides which records there are. None without a
    logger.
    """
    if logger is None:
        return None
    target: Any = logger
    while isinstance(target, logging.LoggerAdapter):
        target = target.logger
    with _lock:
        forwarder = _forwarders.setdefault(target, _Forwarder(target))
        forwarder.clients += 1
        _SOURCE.addHandler(forwarder)
    ending = finalize(client, _release, target)
    ending.atexit = False  # the last lines of a program are forwarded too
    return ending


def _release(target: logging.Logger) -> None:
    with _lock:
        forwarder = _forwarders[target]
        forwarder.clients -= 1
        if not forwarder.clients:
            _SOURCE.removeHandler(_forwarders.pop(target))
