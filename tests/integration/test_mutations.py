"""Any single change of a stored byte is reported or harmless: no record is lost, doubled or altered
by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq import Corrupt, Incompatible, Producer, Topic
from deltaq.store import MemoryStore
from tests.depth import depth

Snapshot = tuple[tuple[str, bytes], ...]


@cache
def written() -> Snapshot:
    """All objects of a topic with three commits of two records to two partitions, the last behind a
    change of it.
    """
    store = MemoryStore("mutated")
    with Producer(
        {"bootstrap.servers": "memory://mutated", "linger.ms": 1000}, store=store
    ) as producer:
        Topic("t", partitions=2, store=store).create()
        for number in range(3):
            for partition in range(2):
                producer.produce(
                    "t",
                    b"value %d" % number,
                    b"key",
                    partition,
                    headers={"h": b"x"},
                    timestamp=1 + number,
                )
            assert producer.flush(20) == 0
    return tuple((entry.key, store.get(entry.key)) for entry in store.list("topics/t/"))


def topic_of(objects: Snapshot) -> Topic:
    store = MemoryStore("mutated")
    for key, data in objects:
        store.put(key, data)
    return Topic("t", store=store)


@cache
def truth() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = topic_of(written()).to_arrow().to_pylist()
    assert len(rows) == 6
    return rows


def mutated(data: bytes, kind: str, at: int, more: bytes) -> bytes:
    """One change at a place: bytes put in, left out, exchanged or doubled, one bit flipped, or the
    rest cut off.
    """
    at %= len(data) + 1
    changes: dict[str, Callable[[], bytes]] = {
        "insert": lambda: data[:at] + more + data[at:],
        "leave out": lambda: data[:at] + data[at + len(more) :],
        "exchange": lambda: data[:at] + more + data[at + len(more) :],
        "double": lambda: data[: at + len(more)] + data[at:],
        "cut": lambda: data[:at],
        "flip": lambda: (
            data[:at] + bytes([data[at] ^ (1 << (more[0] % 8))]) + data[at + 1 :]
            if at < len(data)
            else b""
        ),
        "lines": lambda: b"\n".join(sorted(data.split(b"\n"))),
        "double a line": lambda: (
            data[: data.find(b"\n", at) + 1] + data[data.rfind(b"\n", 0, at) + 1 :]
        ),
    }
    return changes[kind]()


KINDS = ["insert", "leave out", "exchange", "double", "cut", "flip", "lines", "double a line"]


def reported_or_harmless(victim: str, data: bytes) -> bool:
    """Whether the change was reported; AssertionError if it was not and changed the records
    read.
    """
    topic = topic_of(tuple((key, data if key == victim else content) for key, content in written()))
    try:
        rows = topic.to_arrow().to_pylist()
    except (Corrupt, Incompatible):
        return True
    assert rows == truth()
    return False


def keys(suffix: str) -> list[str]:
    return [key for key, _ in written() if key.endswith(suffix)]


@pytest.mark.fault("B1")
@settings(max_examples=depth(150, 500))
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 5000), st.binary(min_size=1, max_size=40))
def test_any_single_change_of_a_log_entry_is_reported_or_harmless(data, kind, at, more):
    victim = data.draw(st.sampled_from(keys(".json")))
    reported_or_harmless(victim, mutated(dict(written())[victim], kind, at, more))


@pytest.mark.fault("B1")
def test_every_changed_digit_in_the_newest_entry_is_reported():
    """What chance seldom meets: a number that is as good as the one before, such as where a
    partition starts.
    """
    victim = keys(".json")[-1]
    entry = dict(written())[victim]
    places = [at for at in range(entry.index(b"\n"), len(entry)) if entry[at : at + 1].isdigit()]
    assert len(places) > 50
    for at in places:
        digit = b"%d" % ((int(entry[at : at + 1]) + 1) % 10)
        assert reported_or_harmless(victim, entry[:at] + digit + entry[at + 1 :])


@pytest.mark.fault("B2")
@settings(max_examples=depth(150, 500))
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 5000), st.binary(min_size=1, max_size=40))
def test_any_single_change_of_a_data_file_is_reported(data, kind, at, more):
    victim = data.draw(st.sampled_from(keys(".parquet")))
    before = dict(written())[victim]
    after = mutated(before, kind, at, more)
    assert reported_or_harmless(victim, after) == (after != before)


@pytest.mark.fault("B1")
def test_swapped_entries_are_reported():
    objects = dict(written())
    second, third = keys(".json")[1:3]
    objects[second], objects[third] = objects[third], objects[second]
    with pytest.raises(Corrupt):
        topic_of(tuple(objects.items())).to_arrow()


@pytest.mark.fault("B1", "B3")
def test_any_missing_object_is_reported_unless_it_is_the_end_of_the_log():
    """The newest entry alone cannot be missed: the log without it is what it was one commit
    before.
    """
    for victim, _ in written():
        objects = tuple((key, data) for key, data in written() if key != victim)
        if victim == keys(".json")[-1]:
            assert topic_of(objects).to_arrow().num_rows == 4
            continue
        with pytest.raises(Corrupt) as caught:
            topic_of(objects).to_arrow()
        assert caught.value.path in {victim, "topics/t/_delta_log/"}
