"""Events of clients reach every listener, and no listener disturbs a client."""

from __future__ import annotations

import re
import threading

import pytest

from deltaq.metrics import COUNTERS, EXPIRED_UPLOADS, MISSING_FILES, REVOCATIONS, Counter, Event, Totals, listening


def test_a_listener_is_called_with_what_was_counted():
    events: list[Event] = []
    with listening(events.append):
        REVOCATIONS.add(topic="t", outcome="revoked")
        EXPIRED_UPLOADS.add(3, topic="t")
    assert events == [
        Event(REVOCATIONS, 1, {"topic": "t", "outcome": "revoked"}),
        Event(EXPIRED_UPLOADS, 3, {"topic": "t"}),
    ]


def test_a_listener_is_not_called_before_and_after_its_block():
    events: list[Event] = []
    MISSING_FILES.add(topic="t")
    with pytest.raises(KeyboardInterrupt), listening(events.append):
        raise KeyboardInterrupt
    MISSING_FILES.add(topic="t")
    assert not events


def test_listeners_are_independent_even_if_they_are_the_same_function():
    events: list[Event] = []
    with listening(events.append):
        with listening(events.append):
            MISSING_FILES.add(topic="t")
        MISSING_FILES.add(topic="t")
    assert len(events) == 3


def test_a_listener_that_fails_is_logged_and_the_others_are_called(caplog):
    def broken(_: Event) -> None:
        raise RuntimeError("no exporter")

    totals = Totals()
    with listening(broken), listening(totals):
        MISSING_FILES.add(topic="t")
    assert totals.read()[MISSING_FILES.name] == 1
    assert "no exporter" in caplog.text


def test_totals_have_every_counter_and_lose_nothing_between_threads():
    totals = Totals()
    assert totals.read() == {counter.name: 0 for counter in COUNTERS}

    def count() -> None:
        for _ in range(1000):
            EXPIRED_UPLOADS.add(2, topic="t")

    threads = [threading.Thread(target=count) for _ in range(4)]
    with listening(totals):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert totals.read() == {counter.name: 0 for counter in COUNTERS} | {EXPIRED_UPLOADS.name: 8000}


@pytest.mark.parametrize("counter", COUNTERS, ids=lambda counter: counter.name)
def test_names_are_those_of_open_metrics(counter: Counter):
    assert re.fullmatch(r"deltaq_[a-z_]+_total", counter.name)
    assert len({other.name for other in COUNTERS}) == len(COUNTERS)
