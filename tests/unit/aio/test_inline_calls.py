"""Calls of the consumer for asyncio that need not wait use no thread, and leave callbacks to those
that do.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from deltaq import TopicPartition
from deltaq.aio import AIOConsumer
from deltaq.aio.threads import ThreadExecutor
from deltaq.clock import SYSTEM_CLOCK
from tests.doubles.consuming import fill


class CountingExecutor(ThreadExecutor):
    """Counts the calls that were given to threads."""

    calls = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super().submit(fn, *args, **kwargs)


def conf(root: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest", **more}


@pytest.mark.parametrize("subscribes", [True, False])
def test_messages_that_were_fetched_and_empty_polls_need_no_thread(memory_root, subscribes):
    fill(memory_root, 30)

    async def main() -> None:
        executor = CountingExecutor(SYSTEM_CLOCK, 4)
        async with AIOConsumer(conf(memory_root), executor=executor) as consumer:
            await (
                consumer.subscribe(["t"])
                if subscribes
                else consumer.assign([TopicPartition("t", 0, 0)])
            )
            first = await consumer.poll(20)
            assert first is not None
            used = executor.calls
            values = [first.value()]
            while len(values) < 20:
                message = await consumer.poll(0)
                values += [] if message is None else [message.value()]
            values += [message.value() for message in await consumer.consume(10, 0)]
            assert values == [b"v%d" % number for number in range(30)]
            for _ in range(3):
                assert await consumer.poll(0) is None
                assert await consumer.consume(5, 0) == []
            # A thread serves what callbacks and the group need, now and then.
            assert executor.calls - used <= (6 if subscribes else 0)
        executor.shutdown()

    asyncio.run(main())


def test_messages_taken_without_a_thread_are_committed_once_they_are_returned(memory_root):
    fill(memory_root, 6)

    async def main() -> list[int]:
        async with AIOConsumer(conf(memory_root, **{"enable.auto.commit": False})) as consumer:
            await consumer.assign([TopicPartition("t", 0, 0)])
            assert await consumer.poll(20) is not None
            found = await consumer.consume(3, 0)
            assert len(found) == 3
            (place,) = await consumer.position([TopicPartition("t", 0)])
            committed = await consumer.commit(asynchronous=False)
            assert committed is not None
            return [place.offset, committed[0].offset]

    assert asyncio.run(main()) == [4, 4]


def test_a_callback_that_is_due_runs_on_the_loop_before_the_next_message(memory_root):
    fill(memory_root, 5)
    ran: list[int] = []

    async def main() -> None:
        loop_thread = threading.get_ident()
        async with AIOConsumer(
            conf(memory_root), on_commit=lambda *_: ran.append(threading.get_ident())
        ) as consumer:
            await consumer.assign([TopicPartition("t", 0, 0)])
            assert await consumer.poll(20) is not None
            await consumer.commit(asynchronous=True)
            while not ran:
                await consumer.poll(0)
        assert set(ran) == {loop_thread}

    asyncio.run(main())
