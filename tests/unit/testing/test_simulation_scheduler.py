"""Threads that take turns on simulated time: locks, conditions, kills and pauses mean what they
mean outside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.scheduler import NEVER, Process, Scheduler, SimulationError


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(seed=1)
    yield made
    made.close()


def together(process: Process, *bodies: Callable[[], None]) -> Callable[[], None]:
    """A program that runs `bodies` as threads and waits for them."""

    def program() -> None:
        threads = [
            process.clock.start_thread(body, f"{number}") for number, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.join()

    return program


def stepping(process: Process, seen: list[str], name: str, steps: int = 5) -> Callable[[], None]:
    def body() -> None:
        for step in range(steps):
            process.clock.sleep(process.clock.random())
            seen.append(f"{name}{step}")

    return body


def interleaved(seed: int) -> tuple[list[str], str]:
    scheduler = Scheduler(seed)
    process = Process(scheduler, "p")
    seen: list[str] = []
    scheduler.run(process, together(process, *(stepping(process, seen, name) for name in "abc")))
    scheduler.close()
    return seen, scheduler.trace


@given(st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_run(seed):
    assert interleaved(seed) == interleaved(seed)


def test_seeds_differ_in_the_order_of_what_happens():
    assert len({tuple(interleaved(seed)[0]) for seed in range(10)}) > 5


def test_time_passes_only_while_all_programs_wait(scheduler):
    process = Process(scheduler, "p")

    def program() -> float:
        started_at = process.clock.monotonic()
        together(process, lambda: process.clock.sleep(3600), lambda: process.clock.sleep(1800))()
        return process.clock.monotonic() - started_at

    assert scheduler.run(process, program) == 3600


def test_a_join_that_was_given_up_shortens_no_later_sleep(scheduler):
    process = Process(scheduler, "p")

    def program() -> float:
        process.clock.start_thread(lambda: process.clock.sleep(5), "slow").join(1)
        started_at = process.clock.monotonic()
        process.clock.sleep(10)
        return process.clock.monotonic() - started_at

    assert scheduler.run(process, program) == 10


@given(st.integers(0, 2**32))
def test_a_lock_is_held_by_one_thread_at_a_time(seed):
    scheduler = Scheduler(seed, preempt=0.5)
    process = Process(scheduler, "p")
    lock, inside, most = process.clock.lock(), [], []

    def body() -> None:
        for _ in range(3):
            with lock:
                inside.append(1)
                most.append(len(inside))
                process.clock.sleep(process.clock.random())
                inside.pop()

    scheduler.run(process, together(process, body, body, body))
    scheduler.close()
    assert most == [1] * 9


@given(st.integers(0, 2**32))
def test_a_condition_wakes_those_who_wait_and_gives_them_the_lock_in_turn(seed):
    scheduler = Scheduler(seed, preempt=0.5)
    process = Process(scheduler, "p")
    changed = process.clock.condition()
    queue: list[int] = []
    taken: list[int] = []

    def take() -> None:
        for _ in range(5):
            with changed, changed:  # re-entrant, and wait gives it up altogether
                while not queue:
                    changed.wait()
                taken.append(queue.pop(0))

    def give() -> None:
        for number in range(10):
            process.clock.sleep(process.clock.random())
            with changed:
                queue.append(number)
                changed.notify_all()

    scheduler.run(process, together(process, take, take, give))
    scheduler.close()
    assert sorted(taken) == list(range(10))


def test_a_wait_ends_by_itself_after_its_timeout_and_says_so(scheduler):
    process = Process(scheduler, "p")
    condition = process.clock.condition()

    def program() -> tuple[bool, float]:
        with condition:
            return condition.wait(2.5), process.clock.monotonic()

    assert scheduler.run(process, program) == (False, 2.5)


def test_joining_a_thread_waits_for_its_end_or_the_timeout(scheduler):
    process = Process(scheduler, "p")

    def program() -> list[tuple[float, bool]]:
        thread = process.clock.start_thread(lambda: process.clock.sleep(10), "slow")
        seen = []
        for timeout in (4.0, None):
            thread.join(timeout)
            seen.append((process.clock.monotonic(), thread.is_alive()))
        return seen

    assert scheduler.run(process, program) == [(4.0, True), (10.0, False)]


def test_a_killed_process_has_no_effect_any_more_and_leaves_no_lock_taken(scheduler):
    victim, other = Process(scheduler, "victim"), Process(scheduler, "other")
    lock, did = victim.clock.lock(), []

    def doomed() -> None:
        with lock:
            try:
                victim.clock.sleep(10)
            finally:
                did.append("unwound")
                victim.clock.sleep(0)
                did.append("worked on")

    def program() -> None:
        thread = victim.clock.start_thread(doomed, "doomed")
        other.clock.sleep(1)
        victim.kill()
        thread.join()
        with lock:
            did.append(f"free at {other.clock.monotonic():g}")

    scheduler.run(other, program)
    assert did == ["unwound", "free at 1"]


def test_a_thread_that_a_killed_process_was_about_to_start_never_runs(scheduler):
    victim, other = Process(scheduler, "victim"), Process(scheduler, "other")
    did: list[str] = []

    def program() -> None:
        thread = victim.clock.start_thread(lambda: did.append("ran"), "late")
        victim.kill()
        thread.join()

    scheduler.run(other, program)
    assert not did


def test_a_suspended_process_stands_still_while_time_goes_on(scheduler):
    sleeper, other = Process(scheduler, "sleeper"), Process(scheduler, "other")
    woke: list[float] = []

    def nap() -> None:
        sleeper.clock.sleep(1)
        woke.append(sleeper.clock.uptime())

    def program() -> None:
        thread = sleeper.clock.start_thread(nap, "nap")
        other.clock.sleep(0.5)
        sleeper.suspend(3600)
        other.clock.sleep(5)
        assert not woke
        thread.join()

    scheduler.run(other, program)
    assert woke == [3600.5]


def test_while_a_machine_sleeps_only_its_uptime_goes_on(scheduler):
    laptop, other = Process(scheduler, "laptop"), Process(scheduler, "other")

    def program() -> None:
        other.clock.sleep(5)
        laptop.suspend(3600, machine=True)
        laptop.suspend(60, machine=True)  # it sleeps already
        other.clock.sleep(4000)

    scheduler.run(other, program)
    assert (laptop.clock.uptime(), laptop.clock.monotonic()) == (4005, 405)


def test_a_wrong_wall_clock_moves_no_other_clock(scheduler):
    right, wrong = Process(scheduler, "right"), Process(scheduler, "wrong")
    wrong.skew_s = -3600
    assert right.clock.time_ms() - wrong.clock.time_ms() == 3_600_000
    assert right.clock.monotonic() == wrong.clock.monotonic()


def test_threads_that_wait_for_each_other_for_ever_are_reported(scheduler):
    process = Process(scheduler, "p")
    condition = process.clock.condition()

    def forever() -> None:
        with condition:
            condition.wait()

    with pytest.raises(
        SimulationError, match=r"stuck at 0.000 s; waiting without an end in sight:\n  p/main"
    ):
        scheduler.run(process, forever)


def test_a_program_that_never_ends_is_reported(scheduler):
    process = Process(scheduler, "p")

    def polling() -> None:
        while True:
            process.clock.sleep(60)

    with pytest.raises(SimulationError, match="stuck at"):
        scheduler.run(process, polling, time_max_s=3600)


def test_a_program_that_spins_without_time_passing_is_reported(scheduler, monkeypatch):
    monkeypatch.setattr("tests.simulator.scheduler.STEPS_MAX", 1000)
    process = Process(scheduler, "p")

    def spinning() -> None:
        while True:
            process.clock.sleep(0)

    with pytest.raises(SimulationError, match="no end after 1000 steps; p/main runs"):
        scheduler.run(process, spinning)


def test_what_a_background_thread_raises_ends_the_run_with_its_traceback(scheduler):
    process = Process(scheduler, "p")

    def program() -> None:
        process.clock.start_thread(lambda: [][1], "broken")
        process.clock.sleep(NEVER)

    with pytest.raises(SimulationError, match=r"p/broken raised IndexError(.|\n)*Traceback"):
        scheduler.run(process, program)


def test_what_the_program_raises_comes_out_of_run_and_the_simulation_goes_on(scheduler):
    process = Process(scheduler, "p")

    def program() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        scheduler.run(process, program)
    assert scheduler.run(process, lambda: 7) == 7


def test_threads_stay_where_they_are_between_two_runs_and_end_with_the_simulation():
    scheduler = Scheduler(seed=3)
    process = Process(scheduler, "p")
    beats: list[float] = []

    def beat() -> None:
        while True:
            process.clock.sleep(1)
            beats.append(process.clock.monotonic())

    def program() -> None:
        process.clock.sleep(2.5)

    process.clock.start_thread(beat, "beat")
    scheduler.run(process, program)
    assert beats == [1, 2]
    scheduler.run(process, program)
    assert beats == [1, 2, 3, 4]
    scheduler.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("simulated p/")
    ]
    scheduler.close()
