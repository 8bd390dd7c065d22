"""Messages that their producer wants to be delivered later."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from deltaq import Consumer, Producer, SerializingProducer, TopicPartition
from deltaq.aio import AIOProducer
from deltaq.store import LocalStore
from deltaq.topics.delivery_time import DELIVER_AT_HEADER, deliver_at_ms
from tests.doubles.sharing import ShareWorld, places

CONF = {"bootstrap.servers": "memory://shared"}


@pytest.fixture(params=["memory", "disk"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> ShareWorld:
    if request.param == "memory":
        return ShareWorld()
    return ShareWorld(disk=LocalStore(str(tmp_path)))


def produce(shared: ShareWorld, *delays_s: float | None, **more: Any) -> None:
    """A message for each delay; None: to be delivered at once."""
    now = shared.clock.time_ms() / 1000
    with Producer(CONF, store=shared.store, clock=shared.clock) as producer:
        for number, delay_s in enumerate(delays_s):
            at = None if delay_s is None else now + delay_s
            producer.produce("t", f"v{number}", deliver_at=at, **more)


def test_a_message_is_delivered_when_its_time_has_come(shared: ShareWorld) -> None:
    produce(shared, 60.0, None, 30.0)
    with shared.consumer() as consumer:
        assert places(consumer.poll(0)) == [(1, 1)]
        shared.clock.advance(29)
        assert consumer.poll(0).is_empty()
        shared.clock.advance(1)
        assert places(consumer.poll(0)) == [(2, 1)]
        shared.clock.advance(30)
        assert places(consumer.poll(0)) == [(0, 1)]
        consumer.commit_sync()
    assert [(state.start, state.end) for state in shared.states()] == [(3, 3)]


@pytest.mark.parametrize("form", [list, dict])
def test_a_new_time_takes_the_place_of_that_in_the_headers(
    shared: ShareWorld, form: type[Any]
) -> None:
    """As in a retry, which sends a message again with its headers."""
    produce(shared, 60.0, headers=form([("own", b"1"), (DELIVER_AT_HEADER, b"1")]))
    with shared.consumer() as consumer:
        assert consumer.poll(0).is_empty()
        shared.clock.advance(60)
        (message,) = consumer.poll(0)
        assert [name for name, _ in message.headers() or ()] == ["own", DELIVER_AT_HEADER]


def test_many_messages_for_later_do_not_hold_up_the_next_one(
    shared: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(shared, *([3600.0] * 50), None)
    with shared.consumer(max_poll_records=5) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(consumer._timer, "wait", lambda found: found or pytest.fail("it waits"))
            assert places(consumer.poll(60)) == [(50, 1)]
        assert consumer.poll(0).is_empty()
    (state,) = shared.states()
    assert (state.start, state.undecided) == (0, 50)
    with shared.consumer() as other:
        shared.clock.advance(3600)
        assert places(other.poll(0)) == [(offset, 1) for offset in range(50)]


def test_all_other_readers_get_it_at_once(shared: ShareWorld) -> None:
    produce(shared, 60.0, headers=[("own", b"1")])
    with Consumer(CONF | {"group.id": "c"}, store=shared.store) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(20)
    assert message is not None
    at_ms = shared.clock.time_ms() + 60_000
    assert message.headers() == [("own", b"1"), (DELIVER_AT_HEADER, str(at_ms).encode())]


def test_a_time_may_be_a_datetime_and_headers_a_dict(shared: ShareWorld) -> None:
    at = datetime(2100, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    with Producer(CONF, store=shared.store) as producer:
        sent = producer.produce_future("t", b"x", headers={"own": b"1"}, deliver_at=at).result(20)
    assert dict(sent.headers() or ())[DELIVER_AT_HEADER] == b"4102441200000"
    assert dict(sent.headers() or ())["own"] == b"1"


def test_serializing_producers_have_it_too(shared: ShareWorld) -> None:
    with SerializingProducer(CONF, store=shared.store) as producer:
        producer.produce("t", value=b"x", deliver_at=shared.clock.time_ms() / 1000 + 60)
    with shared.consumer() as consumer:
        assert consumer.poll(0).is_empty()


def test_async_producers_have_it_too(shared: ShareWorld) -> None:
    async def produce_one() -> Any:
        async with AIOProducer(CONF, store=shared.store) as producer:
            return await producer.produce("t", b"x", deliver_at=1.5)

    message = asyncio.run(produce_one())
    assert message.headers() == [(DELIVER_AT_HEADER, b"1500")]


@pytest.mark.parametrize(
    ("deliver_at", "error", "reason"),
    [
        (datetime(2100, 1, 1), ValueError, "time zone"),
        ("soon", TypeError, "not str"),
        (True, TypeError, "not bool"),
        (-1.0, ValueError, "no time"),
        (1e13, ValueError, "no time"),
        (float("nan"), ValueError, "no time"),
    ],
)
def test_a_time_that_is_none_is_refused(
    shared: ShareWorld, deliver_at: Any, error: type[Exception], reason: str
) -> None:
    with (
        Producer(CONF, store=shared.store) as producer,
        pytest.raises(error, match=reason),
    ):
        producer.produce("t", b"x", deliver_at=deliver_at)


@pytest.mark.parametrize("value", [None, b"", b"soon", b"-1", b"\xb2"])
def test_a_header_that_is_no_time_delays_nothing(value: bytes | None) -> None:
    assert deliver_at_ms([(DELIVER_AT_HEADER, value)]) == 0


def test_a_time_beyond_all_is_the_last_one() -> None:
    assert deliver_at_ms([("x", b"5"), (DELIVER_AT_HEADER, b"9" * 5000)]) == 9_223_372_036_854
