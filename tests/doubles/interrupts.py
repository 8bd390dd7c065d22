"""A signal handler that raises, at every place of a call where Python runs signal handlers."""

from __future__ import annotations

import _thread
import re
import signal
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dis import opname
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

__all__ = ["Interrupted", "InterruptedCall", "at_every_place", "interrupted"]

_SILENT = re.compile(
    r"CACHE|COPY|DUP_TOP|ROT_\w+|SWAP|NOP|PRECALL|PUSH_NULL|KW_NAMES|POP_BLOCK|EXTENDED_ARG|MAKE_CELL|RETURN_(CONST|VALUE)"
    r"|(LOAD|STORE)_(CONST|FAST\w*|GLOBAL|DEREF|CLOSURE|ATTR|METHOD)|POP_TOP|(IS|COMPARE|CONTAINS|BINARY)_OP|UNARY_NOT"
    r"|BUILD_(TUPLE|LIST)|UNPACK_SEQUENCE|GET_ITER|LIST_APPEND|(POP_)?JUMP_FORWARD\w*|POP_JUMP_IF\w*"
)
"""Operations that do not check for signals: a signal before such an operation is handled after
it.
"""

_IGNORE = partial(sys.audit, "interrupts.ignored")
"""A trace function without Python code. While one is set, Python does not use specialized
operations, some of which do not check for signals.
"""


class Interrupted(BaseException):
    """The exception that the signal handler raises by default."""


@dataclass(frozen=True, slots=True)
class InterruptedCall:
    """What became of an interrupted call. One that is not `reached` ended before the handler ran.

    `place` is where the handler ran, `raised` what came out of the call, `result` what it returned.
    """

    reached: bool
    place: str
    raised: BaseException | None
    result: Any


class _Fuse:
    """Its end is a signal."""


def interrupted(
    call: Callable[[], Any],
    point: int,
    error: type[BaseException] | BaseException = Interrupted,
    modules: tuple[str, ...] = ("deltaq", "threading"),
    instead: Callable[[], object] | None = None,
) -> InterruptedCall:
    """Run `call` on this thread, the main one, with a signal before its operation number `point`,
    whose handler raises `error`, or does something else `instead`.

    Operations are counted from 0, in functions of `modules` and what is below these. Python decides
    where the handler runs: at the first place behind the signal where it looks for one. So every
    such place comes up as `point` goes from 0 to the first that is not `reached`; some come up more
    than once.
    """
    left, place, is_over = point, "", False
    signals: list[weakref.ref[_Fuse]] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        name = frame.f_globals.get("__name__", "")
        if not any(name == module or name.startswith(module + ".") for module in modules):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call" or (event == "opcode" and not _SILENT.fullmatch(_operation(frame))):
            left -= 1
            if left < 0:
                sys.settrace(_IGNORE)
                _ignore_above(frame.f_back)
                # The signal comes as this function ends: earlier, the handler would run inside it.
                fuse = _Fuse()
                signals.append(_signal_at_end_of(fuse))
                return _IGNORE
        return trace

    def handler(_: int, frame: FrameType | None) -> None:
        nonlocal place
        if frame is not None and not is_over:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            if instead is None:
                raise error
            instead()

    result: Any = None
    raised: BaseException | None = None
    traced, handled = sys.gettrace(), signal.signal(signal.SIGINT, handler)
    try:
        sys.settrace(trace)
        result = call()
    except BaseException as failure:  # noqa: BLE001 - a test looks at it
        raised = failure
    is_over = True
    sys.settrace(traced)
    signal.signal(signal.SIGINT, handled)
    return InterruptedCall(place != "", place, raised, result)


def at_every_place(
    call: Callable[[], Any], before: Callable[[], object], step: int = 1, first: int = 0, **how: Any
) -> Iterator[InterruptedCall]:
    """The outcomes of `call`, interrupted at one place after the other; `before` runs ahead of
    each.
    """
    for point in count(first, step):
        before()
        outcome = interrupted(call, point, **how)
        if not outcome.reached:
            return
        yield outcome


def _ignore_above(frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_trace is not None:
            frame.f_trace = _IGNORE
        frame = frame.f_back


def _operation(frame: FrameType) -> str:
    return opname[frame.f_code.co_code[frame.f_lasti]]


def _signal_at_end_of(fuse: _Fuse) -> weakref.ref[_Fuse]:
    """Without a step in Python, at which the handler would run."""
    send = defaultdict[Any, None](partial(_thread.interrupt_main, signal.SIGINT)).__getitem__
    sent = weakref.ref(fuse, send)
    hash(sent)  # later there is nothing left to take it from
    return sent
