"""Calls of the application: which of them a share consumer refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from deltaq.clock import after_fork, this_thread
from deltaq.errors import ConcurrentModificationException, IllegalStateException

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="OfSingleThread")

_CLOSED = "Share consumer closed"


@dataclass(frozen=True, slots=True, eq=False)
class _CallFrame:
    """A call: its thread, and the frame in which it runs."""

    thread: int
    frame: FrameType

    def is_within(self, other: _CallFrame) -> bool:
        """Whether it was made while the other one of the same thread runs."""
        frame: FrameType | None = self.frame
        while frame is not None and frame is not other.frame:
            frame = frame.f_back
        return frame is not None


class SingleThread:
    """Refuses calls of a closed share consumer, calls while another thread is inside one, and calls
    of its own callback or of a signal handler.
    """

    def __init__(self) -> None:
        self.refusal: str | None = None
        self._inside: dict[str, _CallFrame] = {}
        self._calls_back = False
        self._last: Callable[[], object] | None = None
        _OPEN.add(self)

    @property
    def is_closed(self) -> bool:
        return self.refusal is not None

    @property
    def was_closed(self) -> bool:
        """Whether the application has closed it."""
        return self.refusal == _CLOSED

    def close(self, why: str = _CLOSED) -> None:
        """Refuse all further calls."""
        self.refusal = why
        _OPEN.discard(self)

    @property
    def is_ending(self) -> bool:
        """Whether the present call is to end, as a signal handler has asked for the last one."""
        return self._last is not None

    def run(self, call: Callable[[], R]) -> R:
        """Run a call. Raises IllegalStateException, ConcurrentModificationException."""
        if not self._begin(_CallFrame(this_thread(), sys._getframe())):
            raise IllegalStateException(
                "Share consumer methods are not accessible from a signal handler that has "
                "interrupted one of them, but for close"
            )
        try:
            return call()
        finally:
            self._inside.clear()
            if (last := self._last) is not None:
                self._last = None
                self.run(last)

    def run_last(self, call: Callable[[], object]) -> None:
        """Run a call that ends all: in a signal handler, after the call that it has interrupted.
        Raises as `run`.
        """
        if self._begin(_CallFrame(this_thread(), sys._getframe())):
            self._inside.clear()
            self.run(call)
        else:
            self._last = call

    def _begin(self, mine: _CallFrame) -> bool:
        """Begin a call; False if a call of this thread has not ended. Raises as `run`."""
        if self.refusal is not None:
            raise IllegalStateException(self.refusal)
        # One step, in which no other thread can come between.
        inside = self._inside.setdefault("call", mine)
        if inside is mine:
            return True
        if inside.thread != mine.thread:
            raise ConcurrentModificationException(
                "Share consumer is not safe for multi-threaded access. currentThread(id: "
                f"{mine.thread}) otherThread(id: {inside.thread})"
            )
        if not mine.is_within(inside):
            # This can happen when a signal handler has raised as that call began or ended.
            self._inside["call"], self._last, self._calls_back = mine, None, False
            return True
        if self._calls_back:
            raise IllegalStateException(
                "Share consumer methods are not accessible from user-defined acknowledgement "
                "commit callback"
            )
        return False

    def call_back(self, call: Callable[[], object]) -> None:
        """Run the application's callback inside of a call."""
        self._calls_back = True
        try:
            call()
        finally:
            self._calls_back = False


class OfSingleThread(Protocol):
    """A client with a `SingleThread`."""

    _calls: SingleThread


def alone(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Decorate a method that one thread may be inside of at a time."""

    @wraps(method)
    def call(self: C, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        return self._calls.run(lambda: method(self, *arguments, **keywords))

    return call


_OPEN: WeakSet[SingleThread] = WeakSet()


def _refuse_forked() -> None:
    """A forked child must not acknowledge what its parent has taken."""
    for calls in tuple(_OPEN):
        calls.close(
            "this ShareConsumer was created before the process forked: create one in the child"
        )


after_fork(_refuse_forked)
