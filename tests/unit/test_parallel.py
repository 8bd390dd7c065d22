"""Several operations at once: results in order, one failure comes out, time is limited."""

from __future__ import annotations

import threading

import pytest

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import KafkaError, KafkaException
from deltaq.log.parallel import REQUESTS_MAX, in_parallel


def test_results_come_in_the_order_of_the_items():
    assert in_parallel(SYSTEM_CLOCK, lambda item: item * 2, range(50)) == [item * 2 for item in range(50)]
    assert in_parallel(SYSTEM_CLOCK, lambda item: None, ["a", "b"]) == [None, None]
    assert in_parallel(SYSTEM_CLOCK, str, []) == []
    assert in_parallel(SYSTEM_CLOCK, str, [], timeout_s=5) == []


def test_items_are_worked_on_at_the_same_time_but_not_too_many():
    # Every wave of the largest allowed number must meet before any of it goes on.
    barrier = threading.Barrier(REQUESTS_MAX, timeout=30)
    assert len(in_parallel(SYSTEM_CLOCK, lambda item: barrier.wait(), range(3 * REQUESTS_MAX))) == 3 * REQUESTS_MAX


def test_a_single_item_needs_no_thread():
    assert in_parallel(SYSTEM_CLOCK, lambda item: threading.get_ident(), [1]) == [threading.get_ident()]


def test_the_failure_of_one_item_comes_out_and_what_has_not_begun_is_left():
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise KeyError(item)

    with pytest.raises(KeyError):
        in_parallel(SYSTEM_CLOCK, work, [0, *[0] * 1000])
    assert len(begun) <= 2 * REQUESTS_MAX


def test_what_takes_too_long_is_a_time_out():
    release = threading.Event()
    try:
        with pytest.raises(KafkaException) as late:
            in_parallel(SYSTEM_CLOCK, lambda item: release.wait(60), [1], timeout_s=0.01)
    finally:
        release.set()
    assert late.value.args[0].code() == KafkaError._TIMED_OUT
    assert late.value.args[0].retriable()
