"""Holds as values and as objects: which of them count, what they keep together, which are dead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.errors import InvalidConfig, Unavailable
from deltaq.names import hold_key
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.holds import (
    HOLD_BYTES_MAX,
    HOLD_MAX_MS,
    HeldOffsets,
    Hold,
    StoredHold,
    dead_holds,
    format_hold,
    held_offsets,
    is_below,
    parse_hold,
    put_hold,
    read_holds,
    remove_hold,
    valid_holds,
)
from tests.doubles.data_files import made_file

NOW = 1_700_000_000_000
HOLD = Hold("views", "id", (3, 0), None, NOW)

OFFSETS = st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple)
HOLDS = st.builds(
    Hold,
    st.just("views"),
    st.text(),
    OFFSETS,
    st.one_of(st.none(), OFFSETS),
    st.integers(0, 2**63 - 1),
)


# --- as bytes
# -------------------------------------------------------------------------------------------------


@given(HOLDS)
def test_a_hold_is_parsed_as_it_was_written(hold: Hold) -> None:
    assert parse_hold("views", format_hold(hold)) == hold


def test_the_object_is_that_of_the_format() -> None:
    assert format_hold(HOLD) == (
        b'{"format":1,"topic_id":"id","ends":[3,0],"starts":null,"time":1700000000000}'
    )
    held = replace(HOLD, starts=(1, 0))
    assert b'"starts":[1,0]' in format_hold(held)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"format":2,"topic_id":"id","ends":[3],"starts":null,"time":1}',
        b'{"format":1,"topic_id":"id","ends":[3],"time":1}',
        b'{"format":1,"topic_id":"id","ends":null,"starts":null,"time":1}',
        b'{"format":1,"topic_id":"id","ends":[-1],"starts":null,"time":1}',
        b'{"format":1,"topic_id":"id","ends":[true],"starts":null,"time":1}',
        b'{"format":1,"topic_id":"id","ends":[1.5],"starts":null,"time":1}',
        b'{"format":1,"topic_id":"id","ends":[3],"starts":[null],"time":1}',
        b'{"format":1,"topic_id":"id","ends":[3],"starts":{},"time":1}',
        b'{"format":1,"topic_id":7,"ends":[3],"starts":null,"time":1}',
        b'{"format":1,"topic_id":"id","ends":[3],"starts":null,"time":"1"}',
        b'{"format":1,"topic_id":"id","ends":[3],"ends":[9],"starts":null,"time":1}',
    ],
)
def test_a_malformed_hold_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse_hold("views", data)


def test_fields_of_later_versions_are_ignored() -> None:
    body = format_hold(HOLD).removesuffix(b"}") + b',"more":1}'
    assert parse_hold("views", body) == HOLD


# --- rules
# -------------------------------------------------------------------------------------------------


def stored(hold: Hold | None, age_ms: int = 0, holder: str = "views") -> StoredHold:
    return StoredHold(holder, NOW - age_ms, hold)


@pytest.mark.parametrize(
    ("found", "is_valid", "is_dead"),
    [
        (stored(HOLD), True, False),
        (stored(HOLD, HOLD_MAX_MS), True, False),
        (stored(HOLD, HOLD_MAX_MS + 1), False, True),
        (stored(replace(HOLD, time_ms=0)), True, False),
        (stored(replace(HOLD, time_ms=2**62), HOLD_MAX_MS + 1), False, True),
        (stored(replace(HOLD, topic_id="earlier")), False, True),
        (stored(None), False, False),
        (stored(None, HOLD_MAX_MS + 1), False, True),
    ],
)
def test_a_hold_counts_until_it_expires_by_the_clock_of_the_store(
    found: StoredHold, is_valid: bool, is_dead: bool
) -> None:
    """A holder's clock that is wrong by years neither voids its hold nor keeps it for ever."""
    assert bool(valid_holds([found], "id", NOW)) is is_valid
    assert bool(dead_holds([found], "id", NOW)) is is_dead


def test_no_hold_expires_by_a_clock_that_is_wrong() -> None:
    found = stored(HOLD, HOLD_MAX_MS + 1)
    assert valid_holds([found], "id", 0) == (HOLD,)
    assert dead_holds([found], "id", 0) == []


def test_all_holds_of_a_deleted_topic_are_dead() -> None:
    assert [reason for _, reason in dead_holds([stored(HOLD)], None, NOW)] == [
        "it is of a topic that was deleted"
    ]


@pytest.mark.parametrize(
    ("holds", "held"),
    [
        ([], HeldOffsets((5, 7))),
        ([HOLD], HeldOffsets((3, 0))),
        ([HOLD, replace(HOLD, ends=(1, 9))], HeldOffsets((1, 0))),
        ([replace(HOLD, ends=(9, 9))], HeldOffsets((5, 7))),
        ([replace(HOLD, ends=(4,))], HeldOffsets((4, 0))),
        ([replace(HOLD, ends=(4, 4, 4))], HeldOffsets((4, 4))),
        ([HOLD, replace(HOLD, starts=(2, 2))], HeldOffsets((3, 0), (2, 2))),
        (
            [replace(HOLD, starts=(4, 1)), replace(HOLD, starts=(2, 2))],
            HeldOffsets((3, 0), (2, 1)),
        ),
        ([replace(HOLD, starts=(4,))], HeldOffsets((3, 0), (4, 0))),
    ],
)
def test_the_lowest_offsets_are_held(holds: list[Hold], held: HeldOffsets) -> None:
    """Of a partition that a hold does not know, all is held."""
    assert held_offsets(holds, (5, 7)) == held


def test_a_batch_is_below_an_offset_with_all_of_its_records() -> None:
    first, second, grown = made_file("f", 1, [(0, 0, 3), (1, 4, 6), (2, 0, 1)]).batches
    assert is_below(first, (3, 0))
    assert not is_below(first, (2, 9))
    assert is_below(second, (0, 6))
    assert not is_below(grown, (9, 9))
    assert is_below(grown, None)


# --- as objects
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore("test", clock)


def read(store: MemoryStore, clock: ManualClock) -> list[Hold]:
    return list(read_holds(store, "t", "id", clock))


def test_a_hold_is_renewed_and_removed(store: MemoryStore, clock: ManualClock) -> None:
    assert read(store, clock) == []
    put_hold(store, "t", HOLD)
    other = replace(HOLD, holder="other", ends=(1, 1))
    put_hold(store, "t", other)
    assert read(store, clock) == [other, HOLD]
    clock.advance(HOLD_MAX_MS / 1000)
    renewed = replace(HOLD, ends=(4, 4))
    put_hold(store, "t", renewed)
    clock.advance(10)
    assert read(store, clock) == [renewed]
    for _ in range(2):
        remove_hold(store, "t", "views")
    assert read(store, clock) == []


def test_only_holds_on_this_life_of_the_topic_are_read(
    store: MemoryStore, clock: ManualClock
) -> None:
    put_hold(store, "t", replace(HOLD, topic_id="earlier"))
    put_hold(store, "other", replace(HOLD, holder="elsewhere"))
    store.put(hold_key("t", "damaged"), b"{")
    store.put(hold_key("t", "large"), b" " * HOLD_BYTES_MAX + format_hold(HOLD))
    store.put("topics/t/_deltaq/holds/views.txt", format_hold(HOLD))
    store.put("topics/t/_deltaq/holds/nested/views.json", format_hold(HOLD))
    assert read(store, clock) == []


def test_a_hold_that_is_removed_meanwhile_is_not_read(clock: ManualClock) -> None:
    store = FaultyStore(
        MemoryStore("test", clock), Rule("get", "*/holds/*", Fault.missing()), clock=clock
    )
    put_hold(store, "t", HOLD)
    assert read_holds(store, "t", "id", clock) == ()
    assert read_holds(store, "t", "id", clock) == (HOLD,)


def test_holds_that_cannot_be_read_are_not_taken_for_none(clock: ManualClock) -> None:
    for operation in ("list", "get"):
        rule = Rule(operation, "*/holds/*", Fault.error_before())
        store = FaultyStore(MemoryStore("test", clock), rule, clock=clock)
        put_hold(store, "t", HOLD)
        with pytest.raises(Unavailable):
            read_holds(store, "t", "id", clock)


def test_a_holder_has_a_name_that_makes_a_key(store: MemoryStore) -> None:
    for name in ("", "..", "a/b", "x" * 250):
        with pytest.raises(InvalidConfig, match="holder"):
            put_hold(store, "t", replace(HOLD, holder=name))
        with pytest.raises(InvalidConfig, match="holder"):
            remove_hold(store, "t", name)
