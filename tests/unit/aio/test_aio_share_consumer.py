"""The share consumer for asyncio: a cancelled call loses no message and accepts none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deltaq import IllegalStateException, TopicPartition
from deltaq.aio import AIOProducer, AIOShareConsumer
from deltaq.testing import ManualClock
from tests.doubles.sharing import LOCK_S, REJECT, ShareWorld, places, set_group

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


# --- loops ---


async def next_place(consumer: AIOShareConsumer[Any, Any]) -> tuple[int | None, int | None]:
    """The place of the next message, whose loop is left."""
    async for message in consumer:
        (place,) = places([message])
        return place
    raise AssertionError("the consumer is closed")


async def divide_by_the_offset(consumer: AIOShareConsumer[Any, Any]) -> None:
    async for message in consumer:
        await asyncio.sleep(0)
        _ = 1 // (1 - (message.offset() or 0))


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_message_is_accepted_when_the_body_ends(shared: ShareWorld, mode: str) -> None:
    shared.fill(3)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        found = []
        async for message in consumer:
            found.append(message.value())
            if len(found) == 3:
                break
        assert found == [b"v0", b"v1", b"v2"]

    run(shared, test, **{"share.acknowledgement.mode": mode})
    assert [(state.start, state.end, state.undecided) for state in shared.states()] == [(2, 3, 1)]


def test_a_message_whose_body_raises_is_released_with_those_behind_it(shared: ShareWorld) -> None:
    shared.fill(4)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        try:
            await divide_by_the_offset(consumer)
        except ZeroDivisionError:
            # The traceback has the frames of the loop still.
            assert places(await consumer.poll(0)) == [(2, 1), (3, 1)]
        shared.clock.advance(1)
        assert places(await consumer.poll(0)) == [(1, 2)]

    run(shared, test)


def test_a_loop_that_is_cancelled_in_its_body_releases_the_message(shared: ShareWorld) -> None:
    shared.fill(2)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        at_work = asyncio.Event()

        async def work() -> None:
            async for _ in consumer:
                at_work.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await at_work.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert places(await consumer.poll(0)) == [(1, 1)]
        shared.clock.advance(1)
        assert places(await consumer.poll(0)) == [(0, 2)]

    run(shared, test)


def test_a_loop_that_is_cancelled_while_it_waits_loses_nothing(shared: ShareWorld) -> None:
    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        task = asyncio.create_task(next_place(consumer))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        shared.fill(1)
        assert await next_place(consumer) == (0, 1)

    run(shared, test)


def test_the_exception_that_leaves_a_loop_and_the_consumer_is_in_the_dead_letter(
    shared: ShareWorld,
) -> None:
    shared.fill(2)
    shared.set(errors_deadletterqueue_topic_name="dlq.t", share_delivery_count_limit=2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run(shared, divide_by_the_offset)
        shared.clock.advance(1)
    with shared.admin() as admin:
        set_group(admin, "undertakers", share_auto_offset_reset="earliest")

    async def read(consumer: AIOShareConsumer[Any, Any]) -> list[dict[str, bytes | None]]:
        await consumer.subscribe(["dlq.t"])
        return [dict(letter.headers() or ()) for letter in await consumer.poll(0)]

    (about,) = run(shared, read, **{"group.id": "undertakers"})
    assert (about["__dlq.errors.offset"], about["__dlq.errors.delivery.count"]) == (b"1", b"2")
    assert (about["__dlq.errors.exception"] or b"").startswith(b"ZeroDivisionError: ")


def test_a_loop_ends_with_its_consumer(shared: ShareWorld) -> None:
    shared.fill(2)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        found = []
        async for message in consumer:
            found.append(message.offset())
            await consumer.close()
        assert found == [0]
        async for _ in consumer:
            raise AssertionError("the consumer is closed")

    run(shared, test)


def test_close_ends_a_loop_of_another_task() -> None:
    clock = ManualClock()

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        waiting = asyncio.create_task(divide_by_the_offset(consumer))
        await asyncio.to_thread(clock.until_waiting)
        closing = asyncio.create_task(consumer.close())
        while not closing.done():
            await asyncio.to_thread(clock.advance, 0.1)
        await waiting

    run(ShareWorld(clock), test)


def test_a_transaction_acknowledges_what_was_returned(shared: ShareWorld) -> None:
    shared.fill(2)
    conf = {"bootstrap.servers": "memory://shared", "maintenance.enable": False}

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        about = conf | {"transactional.id": "w"}
        async with AIOProducer(about, store=shared.store, clock=shared.clock) as producer:
            await producer.init_transactions()
            assert len(await consumer.poll(0)) == 1
            async with producer.transaction(consumer=consumer):
                report = await producer.produce_future("out", b"x")
            assert (await report).value() == b"x"
            assert len(await consumer.poll(0)) == 1
            await producer.begin_transaction()
            await producer.send_share_acknowledgements_to_transaction(
                await consumer.acknowledgements_for_transaction(),
                await consumer.share_group_metadata(),
            )
            await producer.commit_transaction()

    run(shared, test, **{"max.poll.records": 1})
    assert [(state.start, state.end) for state in shared.states()] == [(2, 2)]


def test_a_commit_accepts_no_message_that_a_cancelled_poll_has_not_returned(
    shared: ShareWorld,
) -> None:
    shared.fill(2)

    async def test(consumer: AIOShareConsumer[Any, Any]) -> None:
        # As a poll that is cancelled between its last step and its return.
        consumer._consumer.wait_for_messages(0)
        await consumer.commit_sync()
        assert [(state.start, state.end) for state in shared.states()] == [(0, 2)]
        assert len(await consumer.acknowledgements_for_transaction()) == 0
        assert places(await consumer.poll(0)) == [(0, 1), (1, 1)]
        await consumer.commit_sync()

    run(shared, test)
    assert [(state.start, state.end) for state in shared.states()] == [(2, 2)]
