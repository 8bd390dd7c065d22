"""The consumer for asyncio: cancellation loses no message, callbacks run on the loop, calls follow
one another.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import confluent_kafka.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from deltaq.aio import AIOConsumer
from deltaq.store import forget_memory_store
from tests.doubles.consuming import fill, topic, tp

TIMEOUT_S = 20.0
COUNT = 30


def run(test: Callable[[AIOConsumer], Awaitable[Any]], root: str, **settings: Any) -> Any:
    """Run a test with a consumer on an event loop, and close the consumer."""

    async def main() -> Any:
        conf = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
        async with AIOConsumer(conf, **settings) as consumer:
            return await test(consumer)

    return asyncio.run(main())


def test_messages_are_polled_consumed_and_iterated(memory_root):
    fill(memory_root, 10)

    async def test(consumer):
        await consumer.subscribe(["t"])
        first = await consumer.poll(TIMEOUT_S)
        some = await consumer.consume(3, TIMEOUT_S)
        rows = await consumer.consume_arrow(2, TIMEOUT_S)
        offsets = [
            first.offset(),
            *(message.offset() for message in some),
            *rows["_offset"].to_pylist(),
        ]
        async for message in consumer:
            offsets.append(message.offset())
            if len(offsets) == 10:
                break
        assert await consumer.poll(0) is None
        assert await consumer.consume(0) == []
        return offsets

    assert run(test, memory_root) == list(range(10))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=20), st.booleans())
def test_no_cancelled_call_loses_or_doubles_a_message(steps, is_ready):
    """Each step starts a call, cancels it after so many turns of the event loop, and keeps what it
    returned.
    """
    name = uuid.uuid4().hex
    root = f"memory://{name}"
    fill(root, COUNT)

    async def test(consumer: AIOConsumer) -> list[Any]:
        await consumer.assign([tp(0, 0)])
        got: list[Any] = [await consumer.poll(TIMEOUT_S)] if is_ready else []
        for turns, kind in steps:
            task: asyncio.Task[Any] = asyncio.create_task(
                consumer.poll(TIMEOUT_S) if kind == 0 else consumer.consume(kind, 0.001)
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            for result in await asyncio.gather(task, return_exceptions=True):
                if not isinstance(result, asyncio.CancelledError):
                    got += result if isinstance(result, list) else [result]
            if got:
                (position,) = await consumer.position([tp()])
                assert position.offset == got[-1].offset() + 1
        while len(got) < COUNT:
            got.append(await consumer.poll(TIMEOUT_S))
        return [message.offset() for message in got]

    try:
        assert run(test, root) == list(range(COUNT))
    finally:
        forget_memory_store(name)


def test_calls_of_several_tasks_share_the_messages(memory_root):
    fill(memory_root, 40)

    async def test(consumer):
        await consumer.assign([tp(0, 0)])
        got = []

        async def read(call):
            for _ in range(5):
                got.extend(await call())

        async def one():
            return [await consumer.poll(TIMEOUT_S)]

        await asyncio.gather(
            *(read(call) for call in (one, one, lambda: consumer.consume(6, TIMEOUT_S)))
        )
        return sorted(message.offset() for message in got)

    assert run(test, memory_root) == list(range(40))


def test_rebalance_callbacks_run_on_the_loop_and_may_call_the_consumer(memory_root):
    fill(memory_root, 3)
    seen: list[Any] = []

    async def test(consumer):
        thread = threading.get_ident()

        async def assigned(given, partitions):
            seen.append(("assigned", given is consumer, threading.get_ident() == thread))
            position = await asyncio.gather(
                consumer.position(partitions), consumer.committed(partitions)
            )
            assert [[place.topic for place in places] for places in position] == [["t"], ["t"]]
            await consumer.assign([TopicPartition("t", 0, 2)])

        def revoked(given, partitions):
            seen.append(("revoked", given is consumer, threading.get_ident() == thread))

        await consumer.subscribe(["t"], on_assign=assigned, on_revoke=revoked)
        return (await consumer.poll(TIMEOUT_S)).offset()

    assert run(test, memory_root) == 2
    assert seen == [("assigned", True, True), ("revoked", True, True)]


def test_a_callback_may_call_a_consumer_that_was_made_with_one_worker(memory_root):
    fill(memory_root, 3)

    async def test(consumer):
        async def assigned(given, partitions):
            await given.assign([TopicPartition("t", 0, 2)])

        await consumer.subscribe(["t"], on_assign=assigned)
        return (await consumer.poll(TIMEOUT_S)).offset()

    assert run(test, memory_root, max_workers=1) == 2


def test_an_error_of_a_callback_is_raised_by_the_call_that_ran_it(memory_root):
    fill(memory_root, 1)

    async def test(consumer):
        async def assigned(_, partitions):
            raise LookupError("in the callback")

        await consumer.subscribe(["t"], on_assign=assigned)
        with pytest.raises(LookupError, match="in the callback"):
            await consumer.poll(TIMEOUT_S)

    run(test, memory_root)


def test_a_task_that_outlives_its_callback_waits_like_any_other(memory_root):
    fill(memory_root, 1)
    tasks: list[asyncio.Task[Any]] = []

    async def test(consumer):
        async def later():
            await asyncio.sleep(0.01)
            return await consumer.assignment()

        async def assigned(_, partitions):
            tasks.append(asyncio.create_task(later()))

        await consumer.subscribe(["t"], on_assign=assigned)
        assert await consumer.poll(TIMEOUT_S) is not None
        return await tasks[0]

    assert run(test, memory_root) == [tp()]


def test_asynchronous_commits_report_to_a_coroutine(memory_root):
    fill(memory_root, 5)

    async def test(consumer):
        await consumer.assign([tp(0, 0)])
        await consumer.consume(5, TIMEOUT_S)
        assert await consumer.commit() is None
        async with asyncio.timeout(TIMEOUT_S):
            while not reported.is_set():  # only a poll makes the report
                assert await consumer.poll(0.01) is None
        (synchronous,) = await consumer.commit(offsets=[tp(0, 3)], asynchronous=False)
        (found,) = await consumer.committed([tp()], TIMEOUT_S)
        return reports[0], synchronous.offset, found.offset

    reports: list[Any] = []
    reported = asyncio.Event()

    async def on_commit(error, partitions):
        reports.append((error, [place.offset for place in partitions]))
        reported.set()

    assert run(test, memory_root, on_commit=on_commit, enable_auto_commit=False) == (
        (None, [5]),
        3,
        3,
    )


def test_closing_ends_a_call_that_waits_and_the_iteration(memory_root):
    topic(memory_root)

    async def test(consumer):
        async def iterate():
            return [message async for message in consumer]

        await consumer.assign([tp(0, 0)])
        waiting = asyncio.create_task(iterate())
        await asyncio.sleep(0)
        await consumer.close()
        await consumer.close()
        return await waiting

    assert run(test, memory_root) == []


def test_a_message_that_came_with_the_close_is_not_taken(memory_root, monkeypatch):
    """The wait has found a message when the consumer is closed, and nothing is awaited between the
    two.
    """
    fill(memory_root, 2)

    async def test(consumer):
        await consumer.assign([tp(0, 0)])
        client, found = consumer._consumer, []
        wait = client.wait_for_message

        def wait_and_close(timeout):
            batch = wait(timeout)
            if batch is not None:
                found.append(batch)
                client.close()
            return batch

        monkeypatch.setattr(client, "take_message", lambda: None)
        monkeypatch.setattr(client, "wait_for_message", wait_and_close)
        assert await consumer.poll(TIMEOUT_S) is None
        assert [batch.row for batch in found] == [0]

    run(test, memory_root)


@pytest.mark.parametrize("method", ["poll", "consume"])
def test_a_message_that_was_ready_before_the_close_is_not_taken(memory_root, monkeypatch, method):
    """Another task closes the consumer while a call lets others run."""
    fill(memory_root, 3)

    async def test(consumer):
        await consumer.assign([tp(0, 0)])
        assert await consumer.poll(TIMEOUT_S) is not None  # the others are ready with it
        monkeypatch.setattr(consumer._fairness, "let_others_run", consumer.close)
        assert not await getattr(consumer, method)(timeout=0)

    run(test, memory_root)


def test_a_closed_consumer_refuses_calls(memory_root):
    async def test(consumer):
        await consumer.close()
        for call in (
            consumer.poll(),
            consumer.consume(),
            consumer.subscribe(["t"]),
            consumer.assignment(),
        ):
            with pytest.raises(RuntimeError, match="Consumer closed"):
                await call
        async with consumer:  # as of confluent-kafka's
            pass
        return consumer.health().membership

    assert run(test, memory_root) == "closed"


def test_an_event_is_raised_by_the_iteration_except_the_end_of_a_partition(memory_root):
    fill(memory_root, 1)

    async def test(consumer):
        await consumer.assign([tp(0, OFFSET_BEGINNING)])
        event = (await consumer.consume(2, TIMEOUT_S))[1]
        assert event.error().code() == KafkaError._PARTITION_EOF
        await consumer.assign([tp(0, OFFSET_BEGINNING), tp(0, OFFSET_BEGINNING, "missing")])
        with pytest.raises(KafkaException) as raised:
            assert {message.error() async for message in consumer} == {None}
        return raised.value.args[0].name()

    assert run(test, memory_root, enable_partition_eof=True) == "UNKNOWN_TOPIC_OR_PART"


def test_a_loop_over_ready_messages_lets_other_tasks_run(memory_root):
    fill(memory_root, 5000)

    async def test(consumer):
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        await consumer.assign([tp(0, 0)])
        await consumer.poll(TIMEOUT_S)
        counting = asyncio.create_task(count())
        for _ in range(4999):
            await consumer.poll(TIMEOUT_S)
        counting.cancel()
        return turns

    assert run(test, memory_root) > 1


def test_a_consumer_belongs_to_the_loop_of_its_first_call(memory_root):
    consumer = AIOConsumer({"bootstrap.servers": memory_root, "group.id": "g"})

    async def poll():
        await consumer.poll(0)

    asyncio.run(poll())
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        asyncio.run(poll())
    consumer._consumer.close()


def test_methods_and_parameters_of_the_real_client_are_there():
    theirs = confluent_kafka.aio.AIOConsumer
    for name in {name for name in dir(theirs) if not name.startswith("_")}:
        assert inspect.iscoroutinefunction(getattr(AIOConsumer, name)), name
    parameters = list(inspect.signature(theirs).parameters)
    assert list(inspect.signature(AIOConsumer).parameters)[: len(parameters)] == parameters
