"""The double that interrupts a call at every place."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from itertools import count, takewhile

import pytest

from tests.doubles.interrupts import Interrupted, InterruptedCall, interrupted


def outcomes(call, **how) -> Iterator[InterruptedCall]:
    return takewhile(
        lambda outcome: outcome.reached, (interrupted(call, at, **how) for at in count())
    )


def test_a_call_is_interrupted_between_any_two_of_its_steps():
    done: list[int] = []
    seen: set[int] = set()

    def steps() -> None:
        done.clear()
        done.append(1)
        done.append(2)
        done.append(3)

    for outcome in outcomes(steps, modules=(__name__,)):
        assert isinstance(outcome.raised, Interrupted)
        assert outcome.place.endswith("in steps")
        seen.add(len(done))
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError("alarm")])
def test_the_exception_of_the_handler_is_what_the_test_wants(error):
    found = interrupted(lambda: len(str(1)), 0, error, modules=(__name__,))
    assert found.raised is error or isinstance(found.raised, KeyboardInterrupt)


def test_a_call_that_ends_before_the_point_returns_its_result():
    handled, traced = signal.getsignal(signal.SIGINT), sys.gettrace()
    assert interrupted(lambda: 7, 1000, modules=(__name__,)) == InterruptedCall(False, "", None, 7)
    assert interrupted(lambda: 7, 1000, modules=("elsewhere",)) == InterruptedCall(
        False, "", None, 7
    )
    assert (signal.getsignal(signal.SIGINT), sys.gettrace()) == (handled, traced)


def test_only_functions_of_the_modules_named_are_counted_and_what_they_call_is_interrupted_too():
    def below() -> str:
        return str(min([3, 1], key=lambda number: -number))

    assert list(outcomes(below, modules=("elsewhere",))) == []
    assert any("<lambda>" in outcome.place for outcome in outcomes(below, modules=(__name__,)))
