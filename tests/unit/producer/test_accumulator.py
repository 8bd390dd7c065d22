"""The buffer between `produce` and the writer: nothing is lost, doubled or forgotten in it, and the
writer is woken.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltaq.producer.accumulator import AccumulatorSettings, ArrowBlock, Flush, RecordAccumulator
from deltaq.topics.columns import columns_of_rows

ROWS_MAX = 1000


class Watched(RecordAccumulator):
    """A buffer that counts how often it woke its writer."""

    __slots__ = ("woken",)

    def __init__(self, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "linger_s": 1.0,
            "batch_bytes": 1000,
            "batch_rows": 10,
            "timeout_s": 100.0,
            "compression": "none",
            "compression_level": None,
            "partitioner": "consistent_random",
        }
        self.woken = 0
        super().__init__(
            AccumulatorSettings(**settings | changes),
            lambda *_: None,
            self._count,
            lambda view: None,
        )

    def _count(self) -> None:
        self.woken += 1

    def put(self, name: str, at: float = 0.0, size: int = 1) -> None:
        """What `produce` does."""
        self.queue.extend((name, None, -1, 0, None, at, f"callback of {name}"))
        self.bytes += size
        if len(self.queue) >= self.wake_length or self.bytes >= self.wake_bytes:
            self.wake()


def block(values: list[str], at: float = 0.0) -> ArrowBlock:
    rows = [value.encode() for value in values]
    times = pa.array([0] * len(rows), pa.int64())
    columns = columns_of_rows(
        [-1] * len(rows), times, [None] * len(rows), [None] * len(rows), rows, None
    )
    return ArrowBlock(columns, None, at)


def lingering(extra_s: float):
    """The linger time of a contended writer."""
    return lambda produced_at, linger_s: max(linger_s, extra_s)


def names(records) -> list[str]:
    if isinstance(records, ArrowBlock):
        return [value.decode() for value in records.columns.values.column(0).to_pylist()]
    assert records.callbacks == [f"callback of {name}" for name in records.values]
    return list(records.values)


def take(
    buffer: RecordAccumulator, rows_max: int = ROWS_MAX, until: float = float("inf")
) -> tuple[list[str], int]:
    """Names and bytes of what is taken."""
    taken = buffer.take(rows_max, until)
    assert taken is not None
    return names(taken[0]), taken[1]


def take_all(buffer: RecordAccumulator, rows_max: int = ROWS_MAX) -> list[str]:
    taken = []
    while (part := buffer.take(rows_max, float("inf"))) is not None:
        taken += names(part[0])
    return taken


@given(
    st.lists(st.one_of(st.just("row"), st.integers(1, 5), st.just("take")), max_size=60),
    st.integers(1, 7),
)
def test_rows_and_tables_come_out_once_and_in_the_order_they_went_in(steps, rows_max):
    buffer = Watched()
    put, taken = [], []
    for number, step in enumerate(steps):
        if step == "row":
            buffer.put(f"r{number}")
            put.append(f"r{number}")
        elif step == "take":
            part = buffer.take(rows_max, float("inf"))
            taken += [] if part is None else names(part[0])
        else:
            values = [f"t{number}.{row}" for row in range(step)]
            buffer.append_block(block(values), 10 * len(values))
            put += values
        assert buffer.pending_rows == len(put)
        assert buffer.taken_rows == len(taken)
    assert taken + take_all(buffer, rows_max) == put
    assert len(buffer) == 0


def test_the_bytes_of_taken_records_add_up():
    buffer = Watched()
    for number in range(10):
        buffer.put(f"{number}", size=100)
    buffer.append_block(block(["a", "b"]), 20)
    buffer.put("last", size=7)
    assert buffer.pending_bytes == 1000 + 20 + 7
    sizes = [take(buffer, 4)[1] for _ in range(5)]
    assert sizes == [400, 400, 200, 20, 7]
    assert (buffer.bytes, buffer.taken_bytes, buffer.pending_bytes) == (0, 1027, 1027)
    buffer.reported_bytes = 1027
    assert buffer.pending_bytes == 0


def test_a_batch_takes_as_many_rows_as_fit_and_at_least_one():
    buffer = Watched()
    for number in range(10):
        buffer.put(f"{number}", size=100)
    assert [buffer.rows_within(size) for size in (50, 100, 550, 999, 1000, 5000)] == [
        1,
        1,
        5,
        9,
        10,
        10,
    ]
    buffer.append_block(block(["a", "b"]), 20)
    assert [buffer.rows_within(size) for size in (550, 5000)] == [5, 10]


def test_lingering_ends_with_a_batch_full_of_rows_or_bytes_and_not_before():
    for size, full in ((1, 10), (200, 5)):
        buffer = Watched()
        buffer.put("first", size=size)
        assert buffer.due_in(0.0, lingering(0.25)) == 1.0
        buffer.woken = 0
        for number in range(full - 2):
            buffer.put(f"{number}", size=size)
        assert buffer.woken == 0
        assert buffer.due_in(0.0, lingering(0.25)) == 1.0
        buffer.put("last", size=size)
        assert buffer.woken == 1
        assert buffer.due_in(0.0, lingering(0.25)) == 0.25


def test_records_younger_than_the_batch_stay():
    buffer = Watched()
    for at in (1.0, 2.0, 3.0, 4.0):
        buffer.put(f"{at}", at)
    assert take(buffer, until=2.5)[0] == ["1.0", "2.0"]
    assert buffer.take(ROWS_MAX, 2.5) is None
    buffer.append_block(block(["table"], 5.0), 10)
    assert take(buffer, until=3.5)[0] == ["3.0"]
    assert take(buffer, until=4.5)[0] == ["4.0"]
    assert buffer.take(ROWS_MAX, 4.5) is None
    assert take(buffer, until=5.0)[0] == ["table"]


def test_the_first_record_wakes_an_idle_writer_once():
    buffer = Watched()
    assert buffer.due_in(0.0, lingering(0.0)) is None
    buffer.put("a")
    buffer.put("b")
    assert buffer.woken == 1


def test_a_sender_that_found_nothing_is_woken_again():
    buffer = Watched()
    buffer.put("a")
    take_all(buffer)
    assert buffer.due_in(0.0, lingering(0.0)) is None
    buffer.woken = 0
    buffer.put("b")
    assert buffer.woken == 1


def test_a_full_batch_wakes_a_writer_that_lingers():
    for put in (lambda b: [b.put("x") for _ in range(9)], lambda b: b.put("x", size=1000)):
        buffer = Watched()
        buffer.put("a")
        assert buffer.due_in(0.25, lingering(0.0)) == 0.75
        buffer.woken = 0
        put(buffer)
        assert buffer.woken == 1
        assert buffer.due_in(0.25, lingering(0.0)) == -0.25


def test_bytes_that_are_counted_after_their_message_was_taken_make_no_batch():
    buffer = Watched()
    buffer.put("x", size=1000)
    take_all(buffer)
    buffer.bytes += 1000  # as where `produce` is interrupted between its last two steps
    assert not buffer.is_full
    assert buffer.due_in(0.0, lingering(0.0)) is None
    buffer.put("y", size=1)
    assert buffer.is_full


def test_a_busy_sender_is_woken_once_for_a_whole_batch_only():
    buffer = Watched()
    buffer.put("a")
    buffer.take(ROWS_MAX, float("inf"))
    buffer.woken = 0
    for _ in range(9):
        buffer.put("b")
    assert buffer.woken == 0
    for _ in range(50):
        buffer.put("b")
    assert buffer.woken == 1
    assert buffer.due_in(0.0, lingering(0.0)) is not None, "it looks before it waits"


def test_no_wake_up_is_lost_when_many_threads_produce_at_once():
    for _ in range(200):
        buffer = Watched()
        assert buffer.due_in(0.0, lingering(0.0)) is None
        start = threading.Barrier(4)

        def produce(buffer=buffer, start=start) -> None:
            start.wait()
            buffer.put("x")

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert buffer.woken >= 1


def test_lingering_takes_at_most_half_of_the_message_timeout():
    buffer = Watched(linger_s=0.5, timeout_s=2.0)
    buffer.put("a")
    assert buffer.due_in(0.0, lingering(0.0)) == 0.5
    assert buffer.due_in(0.0, lingering(30.0)) == 1.0


def test_flushing_does_not_linger():
    buffer = Watched()
    buffer.put("a")
    buffer.flushes.append(Flush())
    assert buffer.due_in(0.0, lingering(0.0)) == 0.0


def test_records_without_a_key_stay_with_a_partition_for_a_while():
    buffer = Watched(sticky_s=10.0)
    assert buffer.sticky(4, 0.0, 0.6) == 2
    assert buffer.sticky(4, 9.9, 0.1) == 2
    assert buffer.sticky(4, 10.0, 0.1) == 0
    assert buffer.sticky(4, 10.1, 0.9) == 0
