"""The producer for asyncio: one await per message, futures, back-pressure, cancellation, callbacks
on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka.aio
import pyarrow as pa
import pytest

import deltaq.compat.confluent.aio
from deltaq import KafkaError, KafkaException, MessageTooLarge, Topic
from deltaq.aio import AIOConsumer, AIOProducer
from deltaq.aio.reports import LoopReports


def run(test: Callable[[AIOProducer], Awaitable[Any]], root: str, **settings: Any) -> Any:
    """Run a test with a producer on an event loop, and close the producer."""

    async def main() -> Any:
        async with AIOProducer({"bootstrap.servers": root, "linger.ms": 0}, **settings) as producer:
            return await test(producer)

    return asyncio.run(main())


async def queue_is_full(producer: AIOProducer) -> None:
    while len(producer) < 1:  # noqa: ASYNC110 - nothing tells when a message is queued
        await asyncio.sleep(0)


def values(root: str, name: str = "t") -> list[bytes]:
    return [
        bytes(value)
        for value in Topic(name, conf={"bootstrap.servers": root}).to_arrow()["value"].to_pylist()
    ]


def test_one_await_returns_the_delivered_message_with_its_headers(memory_root):
    async def test(producer):
        return await producer.produce("t", "value", "key", headers={"h": b"1"}, timestamp=5)

    message = run(test, memory_root)
    assert (message.topic(), message.partition(), message.offset(), message.error()) == (
        "t",
        0,
        0,
        None,
    )
    assert (message.value(), message.key(), message.headers()) == (b"value", b"key", [("h", b"1")])


def test_messages_of_many_tasks_are_written_in_the_order_of_the_calls(memory_root):
    async def test(producer):
        messages = await asyncio.gather(*(producer.produce("t", b"%d" % n) for n in range(50)))
        return [message.offset() for message in messages]

    assert run(test, memory_root) == list(range(50))
    assert values(memory_root) == [b"%d" % n for n in range(50)]


def test_a_full_queue_lets_produce_wait_instead_of_failing(memory_root):
    async def test(producer):
        futures = [await producer.produce_future("t", b"%d" % n) for n in range(100)]
        return [(await future).offset() for future in futures]

    assert run(test, memory_root, queue_buffering_max_messages=3) == list(range(100))


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_refused_message_is_raised_at_the_await(memory_root, policy):
    Topic("t", conf={"bootstrap.servers": memory_root}, config={"cleanup.policy": policy}).create()

    async def test(producer):
        with pytest.raises(MessageTooLarge):
            await producer.produce("t", b"x" * 2000, b"k")
        with pytest.raises(TypeError, match="on_delivery must be callable, not int"):
            await producer.produce("t", b"x", b"k", on_delivery=1)
        return len(producer)

    assert run(test, memory_root, message_max_bytes=1000) == 0
    assert values(memory_root) == []


def test_a_message_that_is_not_written_is_raised_at_the_await(memory_root):
    async def test(producer):
        future = await producer.produce_future("t", b"x")
        await producer.purge()
        with pytest.raises(KafkaException) as raised:
            await future
        return raised.value.args[0].code()

    assert run(test, memory_root, linger_ms=60_000) in (
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    )


def test_a_cancelled_await_leaves_a_queued_message_and_takes_back_one_that_waits_for_room(
    memory_root,
):
    async def test(producer):
        queued = asyncio.create_task(producer.produce("t", b"queued"))
        await asyncio.wait_for(queue_is_full(producer), 20)
        waiting = asyncio.create_task(producer.produce("t", b"waiting"))
        await asyncio.sleep(0)
        waiting.cancel()
        queued.cancel()
        await asyncio.wait([queued, waiting])
        assert queued.cancelled()
        assert waiting.cancelled()
        assert await producer.flush() == 0
        following = await producer.produce_future("t", b"next")
        await producer.flush()
        return (await following).offset()

    assert run(test, memory_root, linger_ms=60_000, queue_buffering_max_messages=1) == 1
    assert values(memory_root) == [b"queued", b"next"]


def test_a_cancelled_await_does_not_cancel_another_that_waits_for_the_same_room(memory_root):
    async def test(producer):
        for topic in ("a", "b", "t"):  # a known topic needs no thread
            await producer.produce_future(topic, b"first")
            await producer.flush()
        await producer.produce_future("t", b"queued")
        tasks = [asyncio.create_task(producer.produce(topic, b"waiting")) for topic in ("a", "b")]
        for _ in range(5):
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        while not tasks[1].done():
            await producer.flush()
        return tasks[0].cancelled(), (await tasks[1]).offset()

    assert run(test, memory_root, linger_ms=60_000, queue_buffering_max_messages=1) == (True, 1)


def test_callbacks_run_on_the_loop_and_their_errors_go_to_its_handler(memory_root):
    async def test(producer):
        loop, thread, seen, failed = asyncio.get_running_loop(), threading.get_ident(), [], []
        both = asyncio.Event()

        def handle(_, context):
            failed.append(type(context["exception"]))
            if len(failed) == 2:
                both.set()

        loop.set_exception_handler(handle)

        def plain(error, message):
            seen.append(("plain", message.value(), threading.get_ident() == thread))
            raise KeyError

        async def coroutine(error, message):
            await asyncio.sleep(0)
            seen.append(("coroutine", message.value(), threading.get_ident() == thread))
            raise LookupError

        await producer.produce("t", b"1", on_delivery=plain)
        await producer.produce("t", b"2", callback=coroutine)
        await asyncio.wait_for(both.wait(), 20)
        return seen, failed

    assert run(test, memory_root) == (
        [("plain", b"1", True), ("coroutine", b"2", True)],
        [KeyError, LookupError],
    )


def test_only_failures_are_reported_to_callbacks_if_the_setting_says_so_and_futures_still_end(
    memory_root,
):
    reported = []

    async def test(producer):
        return (await producer.produce("t", b"1")).offset()

    settings = {
        "delivery.report.only.error": True,
        "on_delivery": lambda error, message: reported.append(message),
    }
    assert run(test, memory_root, **settings) == 0
    assert reported == []


def test_flush_and_poll_serve_reports_on_a_thread(memory_root):
    async def test(producer):
        polling = asyncio.create_task(producer.poll(20))
        await asyncio.sleep(0)
        futures = [await producer.produce_future("t", b"%d" % n) for n in range(4)]
        served = await polling
        left = await producer.flush()
        assert all(future.done() for future in futures)
        return served >= 1, left, await producer.poll(), len(producer), bool(producer)

    assert run(test, memory_root, linger_ms=60_000, batch_num_messages=3) == (True, 0, 0, 0, True)


def test_a_table_is_written_with_one_await(memory_root):
    async def test(producer):
        assert (
            await producer.produce_arrow("t", pa.table({"value": pa.array([], pa.binary())})) == []
        )
        return await producer.produce_arrow("t", pa.table({"value": [b"a", b"b"]}))

    (place,) = run(test, memory_root)
    assert (place.topic, place.partition, place.offset) == ("t", 0, 0)
    assert values(memory_root) == [b"a", b"b"]


def test_a_closed_producer_refuses_calls(memory_root):
    async def test(producer):
        await producer.produce("t", b"x")
        await producer.close()
        await producer.close()
        for call in (
            producer.produce("t", b""),
            producer.produce("u", b""),
            producer.flush(),
            producer.poll(),
        ):
            with pytest.raises(RuntimeError, match="Producer has been closed"):
                await call
        return len(producer)

    assert run(test, memory_root) == 0


def test_a_loop_that_has_ended_does_not_disturb_messages_under_way(memory_root):
    producer = AIOProducer({"bootstrap.servers": memory_root, "linger.ms": 50})

    async def produce():
        _ = await producer.produce_future("t", b"left behind")

    asyncio.run(produce())
    assert producer._producer.flush() == 0
    assert values(memory_root) == [b"left behind"]
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        asyncio.run(produce())
    producer._producer.close()


def test_an_executor_of_the_program_is_used_and_left_open(memory_root):
    with ThreadPoolExecutor(1) as executor:

        async def test(producer):
            return (await producer.list_topics(timeout=20)).topics

        assert run(test, memory_root, executor=executor) == {}
        assert executor.submit(lambda: 1).result() == 1


def test_a_transaction_commits_and_aborts(memory_root):
    async def test(producer):
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.produce("orders", b"kept")
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.produce("orders", b"dropped")
        await producer.abort_transaction()

    run(test, memory_root, transactional_id="t")
    assert values(memory_root, "orders") == [b"kept"]


def test_a_transaction_as_a_context_manager_commits_the_positions_of_a_consumer(memory_root):
    async def test(producer):
        await producer.init_transactions()
        async with producer.transaction():
            await producer.produce("in", b"1")
        conf = {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
        async with AIOConsumer({**conf, "enable.auto.commit": False}) as consumer:
            await consumer.subscribe(["in"])
            assert await consumer.poll(20)
            with pytest.raises(ZeroDivisionError):
                await fails_inside(producer, consumer)
            message = await consumer.poll(20)
            assert message is not None
            async with producer.transaction(consumer=consumer):
                await producer.produce("out", message.value())
            return await consumer.committed(await consumer.assignment())

    (committed,) = run(test, memory_root, transactional_id="t")
    assert committed.offset == 1
    assert values(memory_root, "out") == [b"1"]


async def fails_inside(producer: AIOProducer, consumer: AIOConsumer) -> None:
    async with producer.transaction(consumer=consumer):
        await producer.produce("out", b"lost")
        raise ZeroDivisionError


def test_methods_and_parameters_of_the_real_client_are_there():
    theirs = confluent_kafka.aio.AIOProducer
    for name in (name for name in dir(theirs) if not name.startswith("_")):
        assert inspect.iscoroutinefunction(getattr(AIOProducer, name)), name
    parameters = list(inspect.signature(theirs).parameters)
    assert list(inspect.signature(AIOProducer).parameters)[: len(parameters)] == parameters


def test_the_producer_of_confluent_kafka_returns_a_future(memory_root):
    async def main():
        async with deltaq.compat.confluent.aio.AIOProducer(
            {"bootstrap.servers": memory_root}
        ) as producer:
            futures = [await producer.produce("t", value=b"v", headers=[("h", b"1")])]
            futures += [await producer.produce(name, value=b"v") for name in ("not a topic", "u")]
            futures += [await producer.produce("t", value=b"x" * 2_000_000)]
            return await asyncio.gather(*futures, return_exceptions=True)

    written, misnamed, other, large = asyncio.run(main())
    assert (written.offset(), written.headers(), other.topic()) == (0, [("h", b"1")], "u")
    assert [error.args[0].name() for error in (misnamed, large)] == [
        "TOPIC_EXCEPTION",
        "MSG_SIZE_TOO_LARGE",
    ]


def test_reports_of_threads_wake_the_loop_after_an_interrupted_look():
    def interrupted() -> int:
        raise KeyboardInterrupt

    async def main() -> Any:
        reports = LoopReports(only_errors=False)
        reports.loop = asyncio.get_running_loop()
        reports.serve = interrupted
        with pytest.raises(KeyboardInterrupt):
            reports.serve_due()
        reports.serve = lambda: 0
        delivered = reports.loop.create_future()
        reports.callback(delivered, None)(None, "the message")
        return await asyncio.wait_for(delivered, 10)

    assert asyncio.run(main()) == "the message"
