"""A share consumer whose calls a signal handler ends with an exception, or closes, at every place
where one may run.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from deltaq import (
    DeserializingShareConsumer,
    IllegalStateException,
    ShareConsumer,
    TopicPartition,
)
from deltaq.testing import ManualClock
from tests.depth import depth
from tests.doubles.interrupts import at_every_place, interrupted
from tests.doubles.sharing import LOCK_S, ShareWorld, places, set_group

T = TopicPartition("t", 0)
STEP = depth(211, 5)
ALL = [0, 1, 2]


@pytest.fixture
def shared() -> ShareWorld:
    found = ShareWorld()
    found.fill(3)
    return found


class Groups:
    """A group after the other, each with a consumer that has polled nothing yet."""

    def __init__(self, shared: ShareWorld, kind: type[ShareConsumer[Any, Any]]) -> None:
        self._shared, self._kind, self._numbers = shared, kind, count()
        self.consumer: ShareConsumer[Any, Any] = self.next()

    def next(self) -> ShareConsumer[Any, Any]:
        self.group = f"g{next(self._numbers)}"
        with self._shared.admin() as admin:
            set_group(admin, self.group, share_auto_offset_reset="earliest")
        self.consumer = self.another()
        return self.consumer

    def another(self) -> ShareConsumer[Any, Any]:
        """Another consumer of the group."""
        made = self._kind(
            {
                "bootstrap.servers": "memory://shared",
                "group.id": self.group,
                "maintenance.enable": False,
            },
            store=self._shared.store,
            clock=self._shared.clock,
        )
        made.subscribe(["t"])
        return made


@pytest.mark.parametrize("kind", [ShareConsumer, DeserializingShareConsumer])
def test_messages_that_an_interrupted_poll_has_not_returned_come_again(
    shared: ShareWorld, kind: type[ShareConsumer[Any, Any]]
) -> None:
    groups = Groups(shared, kind)
    reached = 0
    for outcome in at_every_place(lambda: groups.consumer.poll(0), groups.next, step=STEP):
        assert outcome.raised is not None, outcome.place
        groups.consumer.commit_sync()
        found = [*groups.consumer.poll(0)]
        groups.consumer.close()
        if not found:
            # This can happen when the entry was written and its result not noted: the lock ends.
            with groups.another() as other:
                found = [*other.poll(0)]
                if not found:
                    shared.clock.advance(LOCK_S)
                    found = [*other.poll(0)]
        assert [message.offset() for message in found] == ALL, outcome.place
        reached += 1
    assert reached > depth(10, 500)
    groups.consumer.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_loop_has_not_yielded_is_never_accepted(shared: ShareWorld) -> None:
    groups = Groups(shared, ShareConsumer)
    seen: list[int | None] = []

    def loop() -> None:
        for message in groups.consumer:
            seen.append(message.offset())
            if len(seen) == 2:
                break

    def begin() -> None:
        seen.clear()
        groups.next()
        groups.consumer._pace.records = 3

    for outcome in at_every_place(loop, begin, step=STEP):
        got = {*seen} | {message.offset() for message in groups.consumer.poll(0)}
        groups.consumer.close()
        with groups.another() as other:
            for _ in range(2):
                got |= {message.offset() for message in other.poll(0)}
                shared.clock.advance(LOCK_S)
            got |= {message.offset() for message in other.poll(0)}
        assert got == {*ALL}, (outcome, seen)


def test_a_call_that_a_signal_handler_ends_as_it_begins_leaves_no_mark(
    shared: ShareWorld,
) -> None:
    groups = Groups(shared, ShareConsumer)
    for outcome in at_every_place(
        lambda: groups.consumer.subscription(), lambda: None, modules=("deltaq.share_consumer",)
    ):
        assert groups.consumer.subscription() == ["t"], outcome.place
    assert len(groups.consumer.poll(0)) == 3
    groups.consumer.close()
    assert groups.consumer._calls.is_closed


def test_close_in_a_signal_handler_ends_the_call_that_it_has_interrupted(
    shared: ShareWorld,
) -> None:
    groups = Groups(shared, ShareConsumer)

    def close() -> None:
        groups.consumer.close()

    for outcome in at_every_place(
        lambda: groups.consumer.poll(0), groups.next, step=STEP, instead=close
    ):
        # Before the call has begun, the consumer is closed at once.
        is_refused = isinstance(outcome.raised, IllegalStateException)
        assert outcome.raised is None or is_refused, outcome.place
        with pytest.raises(IllegalStateException, match="closed"):
            groups.consumer.poll(0)
        with groups.another() as other:
            assert [message.offset() for message in other.poll(0)] == ALL, outcome.place


def test_a_poll_without_limit_ends_when_a_signal_handler_closes_the_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = ShareWorld(ManualClock(auto_advance=True))
    consumer = shared.consumer()

    def close() -> None:
        consumer.close()

    waited = consumer._timer.wait

    def wait(*_: Any, **__: Any) -> bool:
        close()
        return waited(True)

    monkeypatch.setattr(consumer._timer, "wait", wait)
    assert consumer.poll(-1).is_empty()
    with pytest.raises(IllegalStateException, match="closed"):
        consumer.subscription()


def test_other_calls_in_a_signal_handler_are_refused(shared: ShareWorld) -> None:
    groups = Groups(shared, ShareConsumer)
    refused: list[str] = []

    def commit() -> None:
        with pytest.raises(IllegalStateException) as raised:
            groups.consumer.commit_sync()
        refused.append(str(raised.value))

    outcome = interrupted(lambda: groups.consumer.poll(0), 2000, instead=commit)
    assert outcome.reached
    assert "signal handler" in refused[0]
    assert places(outcome.result) == [(0, 1), (1, 1), (2, 1)]
    # The mark of the call that was interrupted is still there after the handler.
    assert groups.consumer.commit_sync() == {T: None}
    groups.consumer.close()


def test_an_interrupted_commit_is_made_by_the_next_one_or_was_made(shared: ShareWorld) -> None:
    groups = Groups(shared, ShareConsumer)

    def take() -> None:
        groups.consumer.close()
        groups.next()
        assert len(groups.consumer.poll(0)) == 3

    for outcome in at_every_place(lambda: groups.consumer.commit_sync(), take, step=STEP):
        assert groups.consumer.commit_sync() in ({}, {T: None}), outcome.place
        with groups.another() as other:
            assert other.poll(0).is_empty(), outcome.place
            shared.clock.advance(LOCK_S)
            assert other.poll(0).is_empty(), outcome.place
    groups.consumer.close()
