"""The store of a simulated process: each fault has exactly the effect it names, and is counted when
it had it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deltaq.store import ObjectExists, StoreUnavailable
from tests.simulator.network import CrashPoint, Faults
from tests.simulator.world import Machine, World

ALWAYS = 1.0


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=1) as made:
        yield made


def outcome_of(world: World, machine: Machine, key: str = "a/b") -> str:
    """What a process is told about its create of `key`."""

    def create() -> str:
        try:
            machine.store.create(key, b"mine")
        except (StoreUnavailable, ObjectExists) as error:
            return type(error).__name__
        return "created"

    return world.run(create, machine)


def there(world: World, key: str = "a/b") -> bool:
    return key in [entry.key for entry in world.network.disk.list("")]


def wait(world: World, seconds: float) -> None:
    world.run(lambda: world.machine("idle").clock.sleep(seconds), world.machine("waiting"))


def test_without_faults_an_operation_takes_time_and_works(world):
    machine = world.machine("m")
    assert outcome_of(world, machine) == "created"
    assert world.scheduler.now > 0
    assert world.run(lambda: machine.store.get("a/b"), machine) == b"mine"
    assert outcome_of(world, machine) == "ObjectExists"
    assert world.network.happened == {"lost race": 1}


def test_a_lost_request_changes_nothing(world):
    world.network.faults = Faults(lost_request=ALWAYS)
    assert outcome_of(world, world.machine("m")) == "StoreUnavailable"
    wait(world, 60)
    assert not there(world)
    assert world.network.happened == {"a request was lost": 1}


def test_a_lost_answer_leaves_the_write_done(world):
    world.network.faults = Faults(lost_answer=ALWAYS)
    assert outcome_of(world, world.machine("m")) == "StoreUnavailable"
    assert there(world)
    assert world.network.happened == {"an answer was lost after the write": 1}


def test_a_late_write_lands_after_its_reported_failure(world):
    world.network.faults = Faults(late=ALWAYS)
    machine = world.machine("m")
    assert outcome_of(world, machine) == "StoreUnavailable"
    assert not there(world)
    wait(world, 60)
    assert there(world)
    assert world.network.happened["a late create landed"] == 1


def test_a_late_write_that_finds_its_key_taken_is_refused(world):
    world.network.faults = Faults(late=ALWAYS)
    assert outcome_of(world, world.machine("slow")) == "StoreUnavailable"
    world.network.faults = Faults()
    assert outcome_of(world, world.machine("fast")) == "created"
    wait(world, 60)
    assert world.network.happened["a late create was refused"] == 1


def test_a_conflict_refuses_a_free_key(world):
    world.network.faults = Faults(conflict=ALWAYS)
    assert outcome_of(world, world.machine("m")) == "ObjectExists"
    assert not there(world)
    assert world.network.happened == {"a create was refused though the key was free": 1}


@pytest.mark.parametrize(("again", "outcome"), [(0.0, "ObjectExists"), (ALWAYS, "created")])
def test_a_stalled_create_may_wait_until_its_taken_key_is_free_again(world, again, outcome):
    slow, other = world.machine("slow"), world.machine("other")

    def hold() -> None:
        other.clock.sleep(500)
        world.network.disk.delete("a/b")

    assert outcome_of(world, other) == "created"
    world.run(lambda: other.clock.start_thread(hold, "hold"), other)
    world.network.faults = Faults(stall=ALWAYS, stall_again=again, stall_s=10)
    assert outcome_of(world, slow) == outcome
    assert (world.scheduler.now > 500) == (outcome == "created")


def test_a_stale_listing_leaves_out_only_what_is_new(world):
    machine = world.machine("m")
    assert outcome_of(world, machine, "a/old") == "created"
    wait(world, 10)
    assert outcome_of(world, machine, "a/new") == "created"
    world.network.faults = Faults(stale_list=ALWAYS)
    listed = world.run(lambda: [entry.key for entry in machine.store.list("a/")], machine)
    assert listed == ["a/old"]
    assert world.network.happened == {"a listing left out the newest objects": 1}


def test_a_damaged_read_differs_in_one_bit_and_the_next_one_is_whole(world):
    machine = world.machine("m")
    assert outcome_of(world, machine) == "created"
    world.network.faults = Faults(damage=ALWAYS)
    first, second = world.run(lambda: [machine.store.get("a/b") for _ in range(2)], machine)
    assert sum((one ^ other).bit_count() for one, other in zip(first, b"mine", strict=True)) == 1
    assert second == b"mine"


def test_a_read_that_is_not_answered_fails(world):
    machine = world.machine("m")
    assert outcome_of(world, machine) == "created"
    world.network.faults = Faults(lost_answer=ALWAYS)
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        world.run(lambda: machine.store.get("a/b"), machine)


@pytest.mark.parametrize(("after", "effect"), [(False, False), (True, True)])
def test_a_crash_point_kills_the_process_before_or_after_the_operation_took_effect(after, effect):
    with World(seed=1, crash=CrashPoint("m", 2, after)) as world:
        machine, steps = world.machine("m"), []

        def program() -> None:
            for number in range(3):
                machine.store.create(f"a/{number}", b"")
                steps.append(number)

        def watching() -> None:
            machine.clock.start_thread(program, "program").join()

        world.run(watching)
        assert steps == [0]
        assert [there(world, f"a/{number}") for number in range(3)] == [True, effect, False]
        assert sum(world.network.happened.values()) == 1


def test_a_watch_hears_of_other_processes_where_the_store_tells_them(world):
    waiting, writing = world.machine("waiting"), world.machine("writing")
    heard: list[float] = []

    def listen() -> None:
        watch = waiting.store.watch()
        watch.add("a/")
        watch.wait(3600)
        heard.append(waiting.clock.monotonic())

    def program() -> None:
        thread = waiting.clock.start_thread(listen, "listen")
        writing.clock.sleep(1)
        writing.store.create("a/b", b"")
        thread.join()

    world.run(program, writing)
    assert 1 < heard[0] < 2
    world.network.signals = False
    with pytest.raises(ObjectExists):
        world.run(program, writing)
    wait(world, 7200)
    assert heard[1] > 3600
