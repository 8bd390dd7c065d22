"""A clock that a test moves: what waits for it wakes when it is due, and never else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from deltaq.clock import Clock
from deltaq.testing import Crash, ManualClock, MortalClock, manual_clock
from tests.doubles.reading import eventually


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def start(clock: ManualClock) -> Iterator[Callable[[Callable[[], object]], list[object]]]:
    """Runs a call on a thread of the clock; the list gets its result. All have ended at the end."""
    threads = []

    def begin(call: Callable[[], object]) -> list[object]:
        results: list[object] = []
        threads.append(clock.start_thread(lambda: results.append(call()), "test"))
        return results

    yield begin
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def wait(clock: Clock, timeout: float | None) -> bool:
    condition = clock.condition()
    with condition:
        return condition.wait(timeout)


def test_time_stands_still_until_it_is_moved(clock):
    before = (clock.time_ms(), clock.monotonic(), clock.uptime())
    assert (
        (clock.time_ms(), clock.monotonic(), clock.uptime())
        == before
        == (1_700_000_000_000, 0.0, 0.0)
    )
    clock.advance(1.5)
    assert (clock.time_ms(), clock.monotonic(), clock.uptime()) == (1_700_000_001_500, 1.5, 1.5)
    assert ManualClock(5).time_ms() == 5


def test_a_suspended_machine_keeps_its_monotonic_time(clock):
    clock.advance(1)
    clock.suspend(3600)
    assert (clock.time_ms(), clock.monotonic(), clock.uptime()) == (1_700_003_601_000, 1.0, 3601.0)


def test_the_wall_clock_can_jump_back_alone(clock):
    clock.advance(10)
    clock.set_wall_clock(7)
    assert (clock.time_ms(), clock.monotonic(), clock.uptime()) == (7, 10.0, 10.0)
    clock.advance(1)
    assert clock.time_ms() == 1007


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_time_that_is_none_is_refused(clock, seconds):
    for move in (clock.advance, clock.suspend):
        with pytest.raises(ValueError, match=f"seconds={seconds}"):
            move(seconds)
    assert clock.monotonic() == 0


def test_sleepers_wake_when_they_are_due_and_not_before(clock, start):
    short, long = start(lambda: clock.sleep(10)), start(lambda: clock.sleep(20))
    clock.until_waiting(2)
    clock.advance(9.5)
    assert clock.waiting == 2
    clock.advance(0.5)
    eventually(lambda: short)
    assert (long, clock.waiting) == ([], 1)
    clock.advance(10)
    eventually(lambda: long)
    assert clock.waiting == 0


def test_a_suspended_machine_wakes_no_thread(clock, start):
    sleeper = start(lambda: clock.sleep(10))
    clock.until_waiting()
    clock.suspend(1000)
    assert clock.waiting == 1
    clock.advance(10)
    eventually(lambda: sleeper)


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_is_over_at_once(clock, seconds):
    clock.sleep(seconds)
    assert wait(clock, seconds) is False


def test_a_wait_tells_whether_it_was_notified_or_its_time_was_over(clock, start):
    condition = clock.condition()

    def work(timeout):
        with condition:
            return condition.wait(timeout)

    over, notified = start(lambda: work(5)), start(lambda: work(50))
    clock.until_waiting(2)
    clock.advance(5)
    eventually(lambda: over)
    assert notified == []
    with condition:
        condition.notify_all()
    eventually(lambda: notified)
    assert (over, notified) == ([False], [True])


def test_a_wait_without_a_time_is_ended_by_no_advance(clock, start):
    condition = clock.condition()
    entered = threading.Event()

    def work():
        with condition:
            entered.set()
            return condition.wait()

    result = start(work)
    assert entered.wait(20)
    with condition:
        pass  # it has let go of the lock, so it waits
    clock.advance(10**6)
    assert result == []
    with condition:
        condition.notify_all()
    eventually(lambda: result)
    assert result == [True]


def test_the_lock_of_a_condition_can_be_taken_again_by_who_holds_it(clock):
    condition = clock.condition()
    with condition, condition:
        assert condition.wait(0) is False
    clock.advance(1)
    with clock.lock():
        clock.advance(1)


def test_no_leap_is_missed_by_who_is_about_to_wait(clock, start):
    # Many threads go to sleep while time moves: a thread asleep before the last leap must wake.
    sleepers = [start(lambda: [clock.sleep(1) for _ in range(50)]) for _ in range(8)]
    eventually(lambda: clock.advance(1) or all(sleepers))


def test_waiting_for_threads_that_never_come_ends_with_an_error(clock, monkeypatch):
    monkeypatch.setattr(manual_clock, "TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError, match="0 threads wait for the clock"):
        clock.until_waiting()


def test_with_auto_advance_a_sleep_is_the_passing_of_time_itself():
    clock = ManualClock(auto_advance=True)
    clock.sleep(3600)
    clock.sleep(-1)
    assert clock.monotonic() == 3600
    assert clock.time_ms() == 1_700_003_600_000


def test_with_auto_advance_a_sleep_wakes_the_others_too(start):
    clock = ManualClock(auto_advance=True)
    waiter = start(lambda: wait(clock, 60))
    clock.until_waiting()
    clock.sleep(60)
    eventually(lambda: waiter)
    assert waiter == [False]


def test_random_numbers_come_from_the_seed_and_ids_do_not():
    def drawn(seed: int) -> list[float]:
        clock = ManualClock(seed=seed)
        return [clock.random() for _ in range(500)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert all(0 <= number < 1 for number in drawn(1))
    assert 0.4 < sum(drawn(1)) / 500 < 0.6
    assert len(set(drawn(1))) == 500
    first, second = ManualClock(), ManualClock()
    assert len({first.unique_id(), first.unique_id(), second.unique_id()}) == 3


@pytest.mark.parametrize("mortal", [ManualClock(), MortalClock()])
def test_a_thread_that_meets_a_crash_ends_without_a_word(mortal):
    def die() -> None:
        raise Crash

    thread = mortal.start_thread(die, "test")
    thread.join(20)
    assert not thread.is_alive()


def test_it_is_a_clock_for_everything_that_takes_one(clock):
    kinds: list[Clock] = [clock, MortalClock()]
    names = {name for name in vars(Clock) if not name.startswith("_")}
    assert [
        name for kind in kinds for name in names if not callable(getattr(kind, name, None))
    ] == []


def test_a_program_ends_though_its_clients_wait_for_a_clock_that_stands_still():
    program = """
from deltaq import Producer
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule

clock = ManualClock()
store = FaultyStore(MemoryStore("x"), Rule("put", "*.parquet", Fault.error_before(), times=None), clock=clock)
producer = Producer({"bootstrap.servers": "memory://unused", "linger.ms": 0}, store=store, clock=clock)
producer.produce("t", b"never")
clock.until_waiting()
"""  # noqa: E501
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
