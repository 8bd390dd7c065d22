"""The share consumer for asyncio: a cancelled call loses no message and accepts none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deltaq import IllegalStateException, TopicPartition
from deltaq.aio import AIOShareConsumer
from deltaq.testing import ManualClock
from tests.doubles.sharing import LOCK_S, REJECT, ShareWorld, places

T = TopicPartition("t", 0)


@pytest.fixture
def shared() -> ShareWorld:
    return ShareWorld()


def run(
    shared: ShareWorld, test: Callable[[AIOShareConsumer[Any, Any]], Awaitable[Any]], **conf: Any
) -> Any:
    """Run a test with a consumer of `t` on an event loop, and close the consumer."""

    async def main() -> Any:
        given = {"bootstrap.servers": "memory://shared", "group.id": "g"} | conf
        async with AIOShareConsumer(given, store=shared.store, clock=shared.clock) as consumer:
            await consumer.subscribe(["t"])
            return await test(consumer)

    return asyncio.run(main())


def test_messages_are_taken_and_accepted_by_the_next_poll(shared: ShareWorld) -> None:
    shared.fill(3)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        assert await consumer.subscription() == ["t"]
        assert [message.value() for message in await consumer.poll(0)] == [b"v0", b"v1", b"v2"]
        assert (await consumer.poll(0)).is_empty()

    run(shared, test)
    assert [(state.start, state.end) for state in shared.states()] == [(3, 3)]


def test_each_message_is_decided(shared: ShareWorld) -> None:
    shared.fill(5)
    heard: list[tuple[list[int], bool]] = []

    async def hear(offsets: dict[TopicPartition, set[int]], error: object) -> None:
        await asyncio.sleep(0)
        heard.append((sorted(offsets[T]), error is None))

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        await consumer.set_acknowledgement_commit_callback(hear)
        done, busy, broken, wrong, slow = await consumer.poll(0)
        await consumer.acknowledge(done)
        await consumer.release(busy)
        await consumer.acknowledge_offset("t", 0, broken.offset() or 0, REJECT)
        await consumer.reject(wrong, "no address")
        await consumer.renew(slow)
        assert await consumer.commit_sync() == {}
        assert heard == [([0, 1, 2, 3, 4], True)]
        await consumer.acknowledge(slow)
        await consumer.commit_async()
        assert places(await consumer.poll(0)) == [(1, 2)]
        await consumer.set_acknowledgement_commit_callback(None)
        await consumer.unsubscribe()

    run(shared, test, **{"share.acknowledgement.mode": "explicit"})
    (state,) = shared.states()
    assert (state.start, state.undecided) == (1, 1)


def test_what_a_cancelled_poll_has_taken_is_returned_by_the_next_one(shared: ShareWorld) -> None:
    shared.fill(2)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        for _ in range(3):
            task = asyncio.create_task(consumer.poll(0))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert places(await consumer.poll(0)) == [(0, 1), (1, 1)]
        assert (await consumer.poll(0)).is_empty()

    run(shared, test)
    assert [(state.start, state.end) for state in shared.states()] == [(2, 2)]


def test_what_was_kept_for_longer_than_its_lock_is_taken_again(shared: ShareWorld) -> None:
    shared.fill(1)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        assert len(consumer._consumer.wait_for_messages(0)) == 1
        (before,) = shared.states()
        shared.clock.advance(LOCK_S)
        assert places(await consumer.poll(0)) == [(0, 1)]
        (after,) = shared.states()
        assert [*after.locks()] != [*before.locks()], "it was given back, and taken again"

    run(shared, test)


def test_close_ends_the_wait_of_another_task() -> None:
    clock = ManualClock()
    shared = ShareWorld(clock)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        waiting = asyncio.create_task(consumer.poll())
        await asyncio.to_thread(clock.until_waiting)
        closing = asyncio.create_task(consumer.close())
        while not closing.done():
            await asyncio.to_thread(clock.advance, 0.1)
        assert (await waiting).is_empty()
        await closing
        with pytest.raises(IllegalStateException, match="closed"):
            await consumer.poll(0)
        with pytest.raises(IllegalStateException, match="closed"):
            await consumer.subscription()
        assert repr(consumer) == "<AIOShareConsumer memory://shared group='g'>"

    run(shared, test)
