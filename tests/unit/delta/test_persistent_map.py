"""A persistent map against a dict: each copy is what the dict was when it was made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltaq.delta.persistent_map import BUCKETS, ONE_PART_KEYS, PersistentMap

KEYS = st.integers(0, 2 * ONE_PART_KEYS).map(str)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "pop", "copy", "new owner"]), KEYS, st.integers()),
    max_size=400,
)


def filled(size: int) -> PersistentMap[int]:
    found, owner = PersistentMap[int](), object()
    for number in range(size):
        found.put(str(number), number, owner)
    return found


@given(st.sampled_from([0, ONE_PART_KEYS - 2, ONE_PART_KEYS, 3 * BUCKETS]), STEPS)
def test_a_map_and_its_copies_are_as_a_dict_was(size, steps):
    changed, model, owner = filled(size), {str(number): number for number in range(size)}, object()
    copies = [(changed.copy(), dict(model))]
    for what, key, value in steps:
        if what == "put":
            changed.put(key, value, owner)
            model[key] = value
        elif what == "pop":
            assert changed.pop(key, owner) == model.pop(key, None)
        elif what == "copy":
            copies.append((changed.copy(), dict(model)))
            owner = object()
        else:
            owner = object()
    for found, expected in [(changed, model), *copies]:
        assert list(found.items()) == list(expected.items())
        assert (list(found), list(found.values()), len(found)) == (
            list(expected),
            [*expected.values()],
            len(expected),
        )
        assert all(
            (key in found, found.get(key)) == (key in expected, expected.get(key))
            for key in map(str, range(200))
        )


def test_a_change_of_a_large_map_copies_one_of_its_parts():
    before = filled(10 * BUCKETS)
    after = before.copy()
    after.put("new", 1, object())
    shared = sum(one is other for one, other in zip(before._buckets, after._buckets, strict=True))
    assert (shared, len(before._buckets)) == (BUCKETS - 1, BUCKETS)
