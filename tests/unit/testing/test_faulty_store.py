"""Each fault does what it is called, nothing else, and is counted when it did; checked against the
store behind it.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from deltaq.store import (
    MemoryStore,
    ObjectExists,
    ObjectMissing,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from deltaq.testing import (
    Crash,
    Effect,
    Fault,
    FaultyStore,
    ManualClock,
    MortalClock,
    Rule,
    TracedOperation,
)
from tests.doubles.reading import eventually

EVER = None
CALLS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("a/1"),
    "get_range": lambda store: store.get_range("a/1", 1, 2),
    "list": lambda store: [entry.key for entry in store.list("a/")],
    "list_folders": lambda store: store.list_folders(""),
    "put": lambda store: store.put("a/1", b"new"),
    "create": lambda store: store.create("a/4", b"new"),
    "delete": lambda store: store.delete("a/1"),
}
START = {"a/1": b"one", "a/2": b"two", "a/3": b"three"}
AFTER = START | {"a/1": b"new"}, START | {"a/4": b"new"}, {"a/2": b"two", "a/3": b"three"}
WRITES = dict(zip(("put", "create", "delete"), AFTER, strict=True))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inner() -> MemoryStore:
    return filled(MemoryStore("test"))


def filled(store: MemoryStore) -> MemoryStore:
    for key, content in START.items():
        store.create(key, content)
    return store


def contents(store: Store) -> dict[str, bytes]:
    return {entry.key: store.get(entry.key) for entry in store.list("")}


def outcome(call: Callable[[Store], object], store: Store) -> object:
    """What a call returns, or the type of error that it raises."""
    try:
        return call(store)
    except StoreError as error:
        return type(error)


@pytest.fixture
def threads() -> Iterator[Callable[[Callable[[], object]], list[object]]]:
    """Runs a call on a thread; the list gets its outcome. All are joined at the end."""
    running: list[threading.Thread] = []

    def start(call: Callable[[], object]) -> list[object]:
        outcomes: list[object] = []
        thread = threading.Thread(
            target=lambda: outcomes.append(outcome(lambda _: call(), MemoryStore("unused")))
        )
        running.append(thread)
        thread.start()
        return outcomes

    yield start
    for thread in running:
        thread.join(20)
        assert not thread.is_alive()


# --- without a fault ---


@pytest.mark.parametrize("operation", CALLS)
def test_a_store_without_rules_is_the_store_behind_it(operation, inner):
    twin = filled(MemoryStore("test"))
    store = FaultyStore(inner)
    for _ in range(2):
        assert outcome(CALLS[operation], store) == outcome(CALLS[operation], twin)
        assert contents(inner) == contents(twin)
    assert store.operations == {operation: 2}
    assert store.effects == {}
    facts = (store.url, store.poll_interval, store.is_remote, store.case_sensitive)
    assert facts == (inner.url, inner.poll_interval, inner.is_remote, inner.case_sensitive)
    assert repr(store) == "<FaultyStore memory://test>"


def test_a_write_through_it_wakes_a_watch_of_it(inner):
    store = FaultyStore(inner)
    watch = store.watch()
    watch.add("a/")
    store.put("a/5", b"")
    assert watch.wait(0)
    watch.close()


# --- what each fault does ---


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize(
    ("fault", "raised", "effect"),
    [
        (Fault.error_before("503"), StoreUnavailable, Effect.ERROR_BEFORE),
        (Fault.hang(0), StoreUnavailable, Effect.HUNG),
        (Fault.refused("403"), StoreRefused, Effect.REFUSED),
    ],
)
def test_a_fault_before_the_operation_lets_nothing_happen(
    operation, fault, raised, effect, inner, clock
):
    store = FaultyStore(inner, Rule(operation, "*", fault), clock=clock)
    with pytest.raises(raised, match=fault.reason) as caught:
        CALLS[operation](store)
    assert caught.value.operation == operation
    assert contents(inner) == START
    assert store.effects == {effect: 1}
    CALLS[operation](store)
    assert store.effects == {effect: 1}, "once, as the rule says"


@pytest.mark.parametrize("operation", CALLS)
def test_a_lost_answer_is_no_lost_operation(operation, inner):
    store = FaultyStore(inner, Rule("*", "*", Fault.error_after()))
    with pytest.raises(StoreUnavailable, match="the answer was lost"):
        CALLS[operation](store)
    assert contents(inner) == WRITES.get(operation, START)
    assert store.effects == {Effect.ANSWER_LOST: 1}


def test_a_lost_refusal_is_distinguished_from_a_lost_success(inner):
    store = FaultyStore(inner, Rule("create", "*", Fault.error_after()))
    with pytest.raises(StoreUnavailable):
        store.create("a/1", b"new")
    assert store.effects == {Effect.REFUSAL_LOST: 1}
    assert contents(inner) == START


def test_a_listing_that_breaks_off_gave_its_keys_before(inner):
    listing = FaultyStore(inner, Rule("list", "*", Fault.error_after())).list("a/")
    assert [next(listing).key for _ in START] == ["a/1", "a/2", "a/3"]
    with pytest.raises(StoreUnavailable):
        next(listing)


@pytest.mark.parametrize("operation", WRITES)
def test_a_late_write_is_reported_as_failed_and_lands_on_request(operation, inner):
    store = FaultyStore(inner, Rule("write", "*", Fault.late_apply()))
    with pytest.raises(StoreUnavailable):
        CALLS[operation](store)
    assert contents(inner) == START
    assert store.effects == {Effect.LATE_WRITE_HELD: 1}
    assert store.land_late() == [True]
    assert contents(inner) == WRITES[operation]
    assert store.effects[Effect.LATE_WRITE_LANDED] == 1
    assert store.land_late() == []


def test_late_creates_land_in_order_and_find_their_key_taken(inner):
    store = FaultyStore(inner, Rule("create", "*", Fault.late_apply(), times=2))
    for content in (b"first", b"second"):
        with pytest.raises(StoreUnavailable):
            store.create("a/4", content)
    assert store.land_late() == [True, False]
    assert inner.get("a/4") == b"first"
    assert store.effects[Effect.LATE_WRITE_REFUSED] == store.effects[Effect.LATE_WRITE_LANDED] == 1


def test_a_late_write_with_a_time_lands_by_itself_even_when_its_sender_is_dead(inner, clock):
    store = FaultyStore(
        inner,
        Rule("create", "*", Fault.late_apply(30)),
        Rule("get", "*", Fault.crash_before()),
        clock=clock,
    )
    with pytest.raises(StoreUnavailable):
        store.create("a/4", b"late")
    with pytest.raises(Crash):
        store.get("a/1")
    clock.until_waiting()
    clock.advance(29)
    assert clock.waiting == 1
    assert contents(inner) == START
    clock.advance(1)
    eventually(lambda: store.effects[Effect.LATE_WRITE_LANDED])
    assert inner.get("a/4") == b"late"


def test_a_hanging_operation_ends_by_release_without_having_happened(inner, threads):
    store = FaultyStore(inner, Rule("put", "*", Fault.hang()))
    outcomes = threads(lambda: store.put("a/1", b"new"))
    eventually(lambda: store.blocked == 1)
    assert outcomes == []
    store.release()
    eventually(lambda: outcomes)
    assert outcomes == [StoreUnavailable]
    assert contents(inner) == START
    assert (store.blocked, store.effects) == (0, {Effect.HUNG: 1})


def test_a_slow_operation_waits_for_the_clock_and_then_happens(inner, clock, threads):
    store = FaultyStore(
        inner, Rule("get", "*", Fault.slow(5)), Rule("put", "*", Fault.slow()), clock=clock
    )
    read = threads(lambda: store.get("a/1"))
    clock.until_waiting()
    clock.advance(5)
    eventually(lambda: read)
    written = threads(lambda: store.put("a/1", b"new"))
    eventually(lambda: store.blocked)
    assert contents(inner) == START
    store.release()
    eventually(lambda: written)
    assert (read, written) == ([b"one"], [None])
    assert inner.get("a/1") == b"new"
    assert store.effects == {Effect.DELAYED: 2}


def test_release_is_for_those_who_wait_and_not_for_those_who_come_later(inner, threads):
    store = FaultyStore(inner, Rule("get", "*", Fault.slow(), EVER))
    store.release()
    first = threads(lambda: store.get("a/1"))
    eventually(lambda: store.blocked)
    assert first == []
    store.release()
    eventually(lambda: first)


def test_a_conflict_refuses_a_free_key_and_counts_only_then(inner):
    store = FaultyStore(inner, Rule("create", "*", Fault.conflict(), EVER))
    for key in ("a/1", "a/4"):
        with pytest.raises(ObjectExists, match="in flight"):
            store.create(key, b"new")
    assert contents(inner) == START
    assert store.effects == {Effect.FALSE_CONFLICT: 1}


def test_an_ignored_condition_replaces_what_is_there_and_counts_only_then(inner):
    store = FaultyStore(inner, Rule("create", "*", Fault.ignored_condition(), EVER))
    store.create("a/4", b"new")
    assert store.effects == {}
    store.create("a/1", b"new")
    assert store.effects == {Effect.CONDITION_IGNORED: 1}
    assert contents(inner) == START | {"a/1": b"new", "a/4": b"new"}


def test_a_full_disk_refuses_writes_and_still_deletes(inner):
    store = FaultyStore(inner, Rule("*", "*", Fault.no_space(), EVER))
    for operation in ("put", "create"):
        with pytest.raises(StoreRefused, match="the disk is full"):
            CALLS[operation](store)
    store.delete("a/1")
    assert contents(inner) == WRITES["delete"]
    assert store.effects == {Effect.NO_SPACE: 2}


def test_a_stale_listing_lacks_the_objects_that_were_written_last():
    clock = ManualClock()
    inner = MemoryStore("test", clock)
    for key in ("a/3", "a/1", "a/2"):
        clock.advance(1)
        inner.create(key, b"")
    store = FaultyStore(inner, Rule("list", "a/*", Fault.stale_list(2), EVER))
    assert [entry.key for entry in store.list("a/")] == ["a/3"]
    assert list(store.list("a/", start_after="a/3")) == []
    assert store.effects == {Effect.KEYS_HIDDEN: 1}, "an empty listing has nothing to hide"


def test_a_repeated_page_gives_its_keys_twice(inner):
    store = FaultyStore(inner, Rule("list", "*", Fault.repeated_page(2), EVER))
    assert [entry.key for entry in store.list("a/")] == ["a/1", "a/2", "a/1", "a/2", "a/3"]
    assert list(store.list("b/")) == []
    assert store.effects == {Effect.PAGE_REPEATED: 1}


@pytest.mark.parametrize("operation", ["get", "get_range"])
def test_an_object_reported_as_missing_still_exists(operation, inner):
    store = FaultyStore(inner, Rule("read", "a/1", Fault.missing()))
    with pytest.raises(ObjectMissing):
        CALLS[operation](store)
    assert store.effects == {Effect.OBJECT_HIDDEN: 1}
    assert CALLS[operation](store) in (b"one", b"ne")


def test_an_object_that_is_really_missing_is_no_effect_of_a_fault(inner):
    store = FaultyStore(inner, Rule("get", "*", Fault.missing()))
    with pytest.raises(ObjectMissing):
        store.get("nowhere")
    assert (store.struck, store.effects) == ({"missing": 1}, {})


@pytest.mark.parametrize(
    ("fault", "read", "effect"),
    [
        (Fault.truncate(2), b"on", Effect.TRUNCATED),
        (Fault.truncate(0), b"", Effect.TRUNCATED),
        (Fault.truncate(-1), b"on", Effect.TRUNCATED),
        (Fault.truncate(3), b"one", None),
        (Fault.flip_bit(0), b"nne", Effect.BIT_FLIPPED),
        (Fault.flip_bit(15), b"o\xeee", Effect.BIT_FLIPPED),
        (Fault.flip_bit(24), b"one", None),
        (Fault.damage(lambda data: b"<html>" + data), b"<html>one", Effect.DAMAGED),
        (Fault.damage(bytes), b"one", None),
    ],
)
def test_damage_is_done_to_what_is_read_and_counts_if_it_changed_anything(
    fault, read, effect, inner
):
    store = FaultyStore(inner, Rule("get", "*", fault))
    assert store.get("a/1") == read
    assert store.effects == ({} if effect is None else {effect: 1})
    assert contents(inner) == START
    assert store.get("a/1") == b"one"


def test_a_bit_that_the_seed_chooses_is_one_bit_and_again_the_same(inner):
    def read(seed: int) -> bytes:
        return FaultyStore(inner, Rule("get", "*", Fault.flip_bit()), seed=seed).get("a/3")

    def flipped(seed: int) -> int:
        return int.from_bytes(read(seed), "big") ^ int.from_bytes(b"three", "big")

    assert [flipped(seed).bit_count() for seed in range(20)] == [1] * 20
    assert read(7) == read(7)
    assert len({flipped(seed) for seed in range(20)}) > 5


# --- crashes ---


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crashed_process_does_nothing_any_more_and_the_next_one_finds_what_it_left(
    operation, after, inner
):
    fault = Fault.crash_after() if after else Fault.crash_before()
    store = FaultyStore(inner, Rule(operation, "*", fault))
    with pytest.raises(Crash):
        CALLS[operation](store)
    left = WRITES.get(operation, START) if after else START
    assert contents(inner) == left
    for call in (*CALLS.values(), lambda store: store.watch()):
        with pytest.raises(Crash, match="memory://test"):
            call(store)
    assert contents(inner) == left
    assert store.crashed
    assert store.operations == {operation: 1}
    assert store.effects == {Effect.CRASHED_AFTER if after else Effect.CRASHED_BEFORE: 1}
    assert contents(FaultyStore(inner)) == left


def test_a_crash_after_a_refusal_is_a_crash_too(inner):
    store = FaultyStore(inner, Rule("create", "*", Fault.crash_after()))
    with pytest.raises(Crash):
        store.create("a/1", b"new")
    assert contents(inner) == START


def test_a_crash_ends_what_hangs_and_what_waits_for_news(inner):
    store = FaultyStore(
        inner, Rule("get", "*", Fault.hang()), Rule("put", "*", Fault.crash_before())
    )
    watch = store.watch()
    ended: list[str] = []

    def hang() -> None:
        try:
            store.get("a/1")
        except Crash:
            ended.append("hang")
            raise

    def wait() -> None:
        watch.wait(60)
        ended.append("watch")

    threads = [MortalClock().start_thread(work, "test") for work in (hang, wait)]
    eventually(lambda: store.blocked)
    with pytest.raises(Crash):
        store.put("a/1", b"new")
    for thread in threads:
        thread.join(20)
    assert sorted(ended) == ["hang", "watch"]


def test_no_handler_for_errors_survives_a_crash():
    assert not issubclass(Crash, Exception)


# --- when a fault strikes ---


def reads(store: Store, count: int, key: str = "a/1") -> str:
    """Which of `count` reads failed, as in `.x..`."""
    return "".join(
        "x" if outcome(lambda store: store.get(key), store) is StoreUnavailable else "."
        for _ in range(count)
    )


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([Rule("get", "*", Fault.error_before())], "x....."),
        ([Rule("get", "*", Fault.error_before(), 3)], "xxx..."),
        ([Rule("get", "*", Fault.error_before(), EVER)], "xxxxxx"),
        ([Rule("get", "*", Fault.error_before(), nth=3)], "..x..."),
        ([Rule("get", "*", Fault.error_before(), 2, nth=5)], "....xx"),
        ([Rule("get", "a/?", Fault.error_before())], "x....."),
        ([Rule("read", "*/1", Fault.error_before())], "x....."),
        ([Rule("*", "*", Fault.error_before())], "x....."),
        ([Rule("get", "A/1", Fault.error_before())], "......"),
        ([Rule("get", "a", Fault.error_before())], "......"),
        ([Rule("put", "*", Fault.error_before())], "......"),
        ([Rule("write", "*", Fault.error_before())], "......"),
        (
            [
                Rule("get", "*", Fault.error_before(), nth=2),
                Rule("get", "*", Fault.error_before(), nth=4),
            ],
            ".x.x..",
        ),
        (
            [Rule("get", "*", Fault.error_before()), Rule("get", "*", Fault.error_before(), nth=2)],
            "xx....",
        ),
    ],
)
def test_a_rule_says_which_operations_are_struck(rules, expected, inner):
    store = FaultyStore(inner, *rules)
    assert reads(store, 6) == expected
    assert store.effects[Effect.ERROR_BEFORE] == store.struck["error_before"] == expected.count("x")


def test_probability_is_kept_and_a_seed_repeats_it(inner):
    def struck(seed: int, *more: Rule) -> str:
        rule = Rule("get", "*", Fault.error_before(), EVER, probability=0.3)
        return reads(FaultyStore(inner, rule, *more, seed=seed), 1000)

    assert 240 < struck(1).count("x") < 360
    assert struck(1) == struck(1) != struck(2)
    assert struck(1, Rule("get", "*", Fault.slow(0), EVER, probability=0.5)) == struck(1), (
        "each has its own chance"
    )


def test_two_rules_of_one_probability_do_not_strike_in_step(inner):
    rules = [
        Rule("get", key, Fault.error_before(), EVER, probability=0.5) for key in ("a/1", "a/2")
    ]
    store = FaultyStore(inner, *rules)
    assert reads(store, 100, "a/1") != reads(store, 100, "a/2")


def test_rules_can_be_added_and_cleared_while_it_is_used(inner):
    store = FaultyStore(inner)
    assert reads(store, 2) == ".."
    store.add(Rule("get", "*", Fault.error_before(), EVER))
    assert reads(store, 2) == "xx"
    store.clear()
    assert reads(store, 2) == ".."


def test_a_trace_tells_every_operation_and_what_struck_it(inner):
    store = FaultyStore(inner, Rule("get", "a/2", Fault.error_before()), trace=True)
    store.get("a/1")
    with pytest.raises(StoreUnavailable):
        store.get("a/2")
    list(store.list("a/"))
    assert store.trace == [
        TracedOperation("get", "a/1", None),
        TracedOperation("get", "a/2", "error_before"),
        TracedOperation("list", "a/", None),
    ]
    assert FaultyStore(inner).trace == []


def test_many_threads_meet_a_fault_exactly_as_often_as_its_rule_says(inner):
    store = FaultyStore(inner, Rule("get", "*", Fault.error_before(), 50))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(reads(store, 100))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter("".join(found)) == {"x": 50, ".": 750}
    assert (store.operations["get"], store.effects[Effect.ERROR_BEFORE]) == (800, 50)


# --- rules that make no sense ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule("fetch", "*", Fault.slow()), "operation='fetch': unknown; known are get, "),
        (lambda: Rule("get", "", Fault.slow()), "key='' matches no key"),
        (lambda: Rule("get", "*", "slow"), "fault='slow': must be a Fault"),  # type: ignore[arg-type]
        (
            lambda: Rule("get", "*", Fault.late_apply()),
            "operation='get': late_apply strikes only put, create, link, delete",
        ),
        (
            lambda: Rule("read", "*", Fault.no_space()),
            "operation='read': no_space strikes only put, create",
        ),
        (lambda: Rule("get", "*", Fault.slow(), 0), "times=0 must be"),
        (lambda: Rule("get", "*", Fault.slow(), True), "times=True must be"),
        (lambda: Rule("get", "*", Fault.slow(), nth=0), "nth=0 must be"),
        (lambda: Rule("get", "*", Fault.slow(), probability=0), "probability=0 must be"),
        (lambda: Rule("get", "*", Fault.slow(), probability=1.5), r"probability=1\.5 must be"),
        (lambda: Rule("get", "*", Fault.slow(), probability=math.nan), "probability=nan must be"),
        (lambda: Fault("explode"), "fault 'explode': unknown; known are conflict, "),
        (lambda: Fault.slow(-1), "slow: seconds=-1 must be"),
        (lambda: Fault.hang(math.inf), "hang: seconds=inf must be"),
        (lambda: Fault.late_apply(math.nan), "late_apply: seconds=nan must be"),
        (lambda: Fault.stale_list(0), "stale_list: keys=0 must be"),
        (lambda: Fault.repeated_page(-1), "repeated_page: keys=-1 must be"),
        (lambda: Fault.flip_bit(-1), "flip_bit: bit=-1 must"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_its_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
