"""A consumer whose calls a signal handler ends with an exception, or closes, at every place where
one may run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    Topic,
    TopicPartition,
    WrongState,
)
from deltaq.consumer.fetch_buffer import TopicPartitionState
from deltaq.consumer.reconciliation import Unassigned
from deltaq.groups.log import GroupLog
from deltaq.store import open_store
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.interrupts import Interrupted, InterruptedCall, at_every_place
from tests.doubles.reading import TIMEOUT_S, eventually

COMMITTING = tuple(
    f"deltaq.groups.{name}" for name in ("offset_commits", "commit_requests", "stored_offsets")
)
COMMITS = 4
ROWS = 2
RECORDS = COMMITS * ROWS


@pytest.fixture(scope="module")
def filled() -> str:
    """A root with a topic of two partitions, of which the first has a few commits of two records
    each.
    """
    root = f"memory://{uuid.uuid4().hex}"
    Topic("t", partitions=2, conf={"bootstrap.servers": root}).create()
    with Producer({"bootstrap.servers": root, "linger.ms": 60_000}) as producer:
        for commit in range(COMMITS):
            for row in range(ROWS):
                producer.produce("t", b"%d" % (commit * ROWS + row), partition=0)
            assert producer.flush(TIMEOUT_S) == 0
    return root


def consumer(root: str, **conf: Any) -> Consumer:
    base = {
        "bootstrap.servers": root,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
    }
    return Consumer(base | {"auto.commit.interval.ms": 3_600_000} | conf)


def returned(result: Any) -> list[int]:
    """The offsets that a call has returned."""
    if result is None:
        return []
    if hasattr(result, "to_pydict"):
        return list(result.to_pydict()["_offset"])
    return [message.offset() for message in (result if isinstance(result, list) else [result])]


def stored(reader: Consumer) -> int:
    """What may be committed; 0 if nothing."""
    assert reader._reader is not None
    return max([entry.wanted.offset for entry in reader._reader.held.stored()], default=0)


def rest(reader: Consumer) -> list[int]:
    """All that is left of the topic."""
    found: list[int] = []
    while not found or found[-1] != RECORDS - 1:
        message = reader.poll(TIMEOUT_S)
        assert message is not None, f"nothing comes after {found}"
        assert message.error() is None
        found += returned(message)
    return found


class Rewound:
    """A reader that is put back to its beginning, the fetcher's queue with it, without fetching
    anything again.
    """

    def __init__(self, reader: Consumer) -> None:
        reader.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        assert reader._reader is not None
        self.reader, self._queue, self._held = (
            reader,
            reader._reader.fetcher.queue._items,
            reader._reader.held,
        )
        eventually(lambda: len(self._queue) == COMMITS)
        self._accepted = reader._reader.accepted
        self._all = tuple(self._queue)
        self._epoch = self._held._held["t", 0].epoch

    def rewind(self) -> None:
        self._accepted.batch, self._accepted._batches = None, []
        self._held._held = {("t", 0): TopicPartitionState(self._epoch)}
        self._queue.clear()
        self._queue.extend(self._all)


def is_of_deltaq(outcome: InterruptedCall) -> bool:
    """Whether the handler ran in the call, and not when that had just returned."""
    return __file__ not in outcome.place


CALLS: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda reader: reader.poll(TIMEOUT_S),
    "consume": lambda reader: reader.consume(ROWS + 1, TIMEOUT_S),
    "consume_arrow": lambda reader: reader.consume_arrow(ROWS, TIMEOUT_S),
    "iteration": lambda reader: next(iter(reader)),
}


@pytest.mark.fault("P14", "R6")
@pytest.mark.parametrize("already", [0, 1], ids=["from the queue", "from what is in hand"])
@pytest.mark.parametrize("how", CALLS)
def test_an_interrupted_call_skips_and_repeats_nothing_and_stores_nothing_extra(
    filled, how, already
):
    with consumer(filled) as reader:
        rewound = Rewound(reader)

        def begin_again() -> None:
            rewound.rewind()
            for _ in range(already):
                reader.poll(TIMEOUT_S)

        places = set()
        first = list(range(already))
        step = 3 if how == "consume" else 1  # in its loops, each place comes many times
        for outcome in filter(
            is_of_deltaq, at_every_place(lambda: CALLS[how](reader), begin_again, step)
        ):
            places.add(outcome.place)
            assert isinstance(outcome.raised, Interrupted), outcome.place
            assert stored(reader) == already, outcome.place
            assert reader.position([TopicPartition("t", 0)])[0].offset == (
                already or OFFSET_INVALID
            ), outcome.place
            assert first + rest(reader) == list(range(RECORDS)), outcome.place
        # Python 3.12 and newer look for signals where functions begin and loops jump back, and not
        # in between.
        assert len(places) >= (3 if sys.version_info < (3, 12) else 2)
        reader.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        assert rest(reader) == list(range(RECORDS)), (
            "a lock that is left behind stops the thread that fetches"
        )


def at_start(reader: Consumer) -> None:
    reader.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])


def unassign_and_assign(reader: Consumer) -> None:
    reader.unassign()
    at_start(reader)


CHANGES: dict[str, Callable[[Consumer], Any]] = {
    "assign": at_start,
    "seek": lambda reader: reader.seek(TopicPartition("t", 0, 1)),
    "pause": lambda reader: reader.pause([TopicPartition("t", 0)]),
    "resume": lambda reader: reader.resume([TopicPartition("t", 0)]),
    "incremental_assign": lambda reader: reader.incremental_assign([TopicPartition("t", 1)]),
    "incremental_unassign": lambda reader: reader.incremental_unassign([TopicPartition("t", 1)]),
    "unassign and assign": unassign_and_assign,
}


@pytest.mark.fault("P14")
@pytest.mark.parametrize("how", CHANGES)
def test_reading_continues_at_the_old_or_new_position_after_an_interrupted_change(filled, how):
    """What is read next depends on whether the change was made; in no case is there nothing, or a
    gap.
    """
    with consumer(filled) as reader:

        def begin_again() -> None:
            at_start(reader)
            if how == "incremental_unassign":
                reader.incremental_assign([TopicPartition("t", 1)])
            assert returned(reader.poll(TIMEOUT_S)) == [0]
            if how == "resume":
                reader.pause([TopicPartition("t", 0)])

        for outcome in at_every_place(lambda: CHANGES[how](reader), begin_again, step=7):
            reader.resume([TopicPartition("t", 0)])
            if how == "unassign and assign" and reader.assignment() == []:
                continue
            found = rest(reader)
            assert found in (list(range(RECORDS)), list(range(1, RECORDS))), (outcome.place, found)
            assert found[0] == 1 or "assign" in how, outcome.place


@pytest.mark.slow
@pytest.mark.fault("P14")
@pytest.mark.parametrize(("modules", "step"), [(("deltaq", "threading"), 11), (COMMITTING, 1)])
def test_an_interrupted_commit_leaves_stored_offsets_to_the_next_one(filled, modules, step):
    with consumer(filled, **{"enable.auto.commit": False}) as reader:
        at_start(reader)
        at = 0

        def read_one() -> None:
            nonlocal at
            if at == RECORDS:
                at_start(reader)
                at = 0
            assert returned(reader.poll(TIMEOUT_S)) == [at]
            at += 1

        for outcome in at_every_place(
            lambda: reader.commit(asynchronous=False), read_one, step=step, modules=modules
        ):
            with contextlib.suppress(KafkaException):  # _NO_OFFSET, if the interrupt came last
                reader.commit(asynchronous=False)
            assert reader.committed([TopicPartition("t", 0)])[0].offset == at, outcome.place


@pytest.mark.fault("P14")
def test_partitions_assigned_in_an_interrupted_poll_are_read_by_the_next(filled):
    with consumer(filled, **{"session.timeout.ms": 30_000}) as reader:
        given: list[int] = []
        reader.subscribe(["t"], on_assign=lambda reader, partitions: given.append(len(partitions)))
        assert returned(reader.poll(TIMEOUT_S)) == [0]
        assert reader._reader is not None
        assert reader._state.current is not None
        parts, reconciler = reader._reader, reader._state.current._reconciler

        def give_back() -> None:
            parts.committer.stored.forget()
            parts.held.set([])
            reconciler._state = Unassigned(reconciler.identity)

        for outcome in at_every_place(lambda: reader.poll(TIMEOUT_S), give_back, step=7):
            assert rest(reader)[-1] == RECORDS - 1, outcome.place
        assert given


@pytest.mark.slow
@pytest.mark.fault("P14")
def test_an_interrupted_subscribe_leaves_no_member_behind(filled):
    made: list[Consumer] = []

    def make() -> None:
        made[:] = [consumer(filled)]

    for outcome in at_every_place(lambda: made[0].subscribe(["t"]), make, step=13):
        made[0].subscribe(["t"])
        assert returned(made[0].poll(TIMEOUT_S)) == [0], outcome.place
        made[0].close()
        eventually(lambda: left_behind(filled, made[0]._group) == (1, 0), outcome.place)
    made[0].close()


@pytest.mark.fault("P14")
def test_close_raises_the_exception_of_a_time_limit_but_not_of_a_failed_commit(filled, monkeypatch):
    reader = consumer(filled)
    at_start(reader)
    assert returned(reader.poll(TIMEOUT_S)) == [0]

    def out_of_time(*_: object, **__: object) -> None:
        assert threading.current_thread() is threading.main_thread()
        raise TimeoutError("alarm")

    monkeypatch.setattr(GroupLog, "commit", out_of_time)
    with pytest.raises(TimeoutError, match="alarm"):
        reader.close()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        reader.poll(0)


# --- a handler that closes the consumer ---


def left_behind(root: str, group: str) -> tuple[int, int]:
    """What is committed for a group, and how many members it has."""
    log = GroupLog(open_store(root), group)
    topic_id = Topic("t", conf={"bootstrap.servers": root}).describe().topic_id
    (found,) = log.committed([("t", topic_id, 0)])
    return 0 if found is None else found.offset, len(log.head().members)


ENDED: dict[str, Callable[[Consumer], Any]] = {
    **CALLS,
    "commit": lambda reader: reader.commit(asynchronous=False),
    "asynchronous commit": lambda reader: reader.commit(),
    "seek": lambda reader: reader.seek(TopicPartition("t", 0, 1)),
    "committed": lambda reader: reader.committed([TopicPartition("t", 0)]),
    "close": lambda reader: reader.close(),
}


@pytest.mark.slow
@pytest.mark.fault("P14")
@pytest.mark.parametrize("how", ENDED)
def test_a_handler_that_closes_the_consumer_inside_a_call_ends_and_so_does_the_call(filled, how):
    """Each place needs a consumer of its own, so not all are tried."""
    made: list[Consumer] = []

    def make() -> None:
        made[:] = [consumer(filled)]
        at_start(made[0])
        assert returned(made[0].poll(TIMEOUT_S)) == [0]

    step = 31 if how in CALLS or how == "asynchronous commit" else 211
    outcomes = at_every_place(
        lambda: ENDED[how](made[0]), make, step, first=3, instead=lambda: made[0].close()
    )
    for outcome in outcomes:
        # That it is closed; there is nothing left to commit; there are no more messages.
        assert isinstance(outcome.raised, RuntimeError | KafkaException | StopIteration | None), (
            outcome.place
        )
        with pytest.raises(RuntimeError, match="Consumer closed"):
            made[0].poll(0)
        assert left_behind(filled, made[0]._group) == (1, 0), outcome.place
    made[0].close()


def commit_anew(reader: Consumer, _: list[TopicPartition]) -> None:
    with contextlib.suppress(KafkaException):  # _NO_OFFSET
        reader.commit(asynchronous=False)


@pytest.mark.fault("P14")
@pytest.mark.parametrize("how", ["consume", "commit", "unsubscribe", "close"])
def test_a_handler_that_closes_a_member_of_a_group_inside_a_call_leaves_the_group(filled, how):
    calls, made = {**ENDED, "unsubscribe": lambda reader: reader.unsubscribe()}, list[Consumer]()

    def make() -> None:
        made[:] = [consumer(filled)]
        made[0].subscribe(["t"], on_revoke=commit_anew)
        assert returned(made[0].poll(TIMEOUT_S)) == [0]

    outcomes = at_every_place(
        lambda: calls[how](made[0]), make, step=151, first=3, instead=lambda: made[0].close()
    )
    for outcome in outcomes:
        assert isinstance(outcome.raised, RuntimeError | KafkaException | None), outcome.place
        with pytest.raises(RuntimeError, match="Consumer closed"):
            made[0].poll(0)
        assert left_behind(filled, made[0]._group) == (1, 0), outcome.place
    made[0].close()


@pytest.fixture
def slow_commit(filled: str) -> Iterator[tuple[Consumer, FaultyStore]]:
    """A consumer that has read one record, and whose next commit waits in the store for
    `release`.
    """
    store = FaultyStore(open_store(filled))
    conf = {
        "bootstrap.servers": filled,
        "group.id": uuid.uuid4().hex,
        "auto.commit.interval.ms": 3_600_000,
    }
    with Consumer(conf, store=store) as reader:
        at_start(reader)
        assert returned(reader.poll(TIMEOUT_S)) == [0]
        store.add(Rule("create", "groups/*", Fault.slow()))
        yield reader, store


def with_a_signal(
    store: FaultyStore, handler: Callable[[], object], call: Callable[[], Any]
) -> Any:
    """What `call` returns, in which the process gets a signal while it waits for the store."""

    begun = threading.Event()

    def handle(*_: object) -> None:
        if begun.is_set():
            return
        begun.set()
        try:
            handler()
        finally:
            store.release()

    def send() -> None:
        eventually(lambda: store.blocked)
        # Python runs no handler for a signal that comes just before the main thread blocks, until
        # there is another one.
        while not begun.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            begun.wait(0.1)

    before = signal.signal(signal.SIGUSR1, handle)
    sending = threading.Thread(target=send)
    sending.start()
    try:
        return call()
    finally:
        sending.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.fault("P14")
def test_a_commit_interrupted_by_close_ends_with_its_result_and_then_closes(slow_commit):
    reader, store = slow_commit
    found = with_a_signal(store, reader.close, lambda: reader.commit(asynchronous=False))
    assert [entry.offset for entry in found] == [1]
    with pytest.raises(RuntimeError, match="Consumer closed"):
        reader.poll(0)


@pytest.mark.fault("P14")
def test_a_call_that_would_wait_for_the_interrupted_call_raises(slow_commit):
    reader, store = slow_commit
    refused: list[KafkaError] = []

    def call_again() -> None:
        assert reader.assignment() == [TopicPartition("t", 0)]
        for call in (
            lambda: reader.commit(asynchronous=False),
            lambda: reader.commit(),
            lambda: reader.poll(0),
            lambda: reader.consume(1, 0),
            lambda: reader.pause([TopicPartition("t", 0)]),
            lambda: reader.committed([TopicPartition("t", 0)]),
            lambda: reader.unsubscribe(),
            lambda: reader.store_offsets(offsets=[]),
        ):
            with pytest.raises(WrongState, match="set a flag in the handler") as caught:
                call()
            refused.append(caught.value.args[0])

    # So that nothing is left in hand that `poll` could return at once.
    reader.seek(TopicPartition("t", 0, 5))
    with_a_signal(store, call_again, lambda: reader.commit(asynchronous=False))
    assert set(refused) == {KafkaError(KafkaError._STATE)}
    assert len(refused) == 8
    assert returned(reader.poll(TIMEOUT_S)) == [5]
