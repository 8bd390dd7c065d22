"""`stats_cb` of a consumer: offsets, lag and the group, in librdkafka's fields."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

from deltaq import OFFSET_INVALID, Consumer
from tests.doubles.consuming import consumer, fill, tp
from tests.doubles.reading import drain, eventually


def observed(root: str, emitted: list[dict[str, Any]]) -> Consumer:
    return consumer(
        root, statistics__interval__ms=1, stats_cb=lambda text: emitted.append(json.loads(text))
    )


def partition(emitted: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = (
        emitted[-1]["topics"].get("t", {"partitions": {}})["partitions"].get("0", {})
    )
    return found


def test_a_consumer_emits_its_offsets_lag_and_group(memory_root):
    fill(memory_root, 10)
    emitted: list[dict[str, Any]] = []
    reader = observed(memory_root, emitted)
    reader.subscribe(["t"])
    drain(reader, 6)
    reader.commit(offsets=[tp(0, 4)], asynchronous=False)
    reader.pause([tp()])  # so that `poll` returns no more messages, and still calls back

    def is_known() -> bool:
        reader.poll(0)
        if not emitted or emitted[-1]["rxmsgs"] < 10:  # the messages may be in several files
            return False
        return partition(emitted).get("committed_offset") == 4

    eventually(is_known, "the last message and the commit")
    found, at = emitted[-1], partition(emitted)
    assert (found["type"], found["rxmsgs"]) == ("consumer", 10)
    assert found["rxmsg_bytes"] > 0
    assert at == {
        "partition": 0,
        "fetch_state": "active",
        "app_offset": 6,
        "stored_offset": 6,
        "committed_offset": 4,
        "eof_offset": OFFSET_INVALID,
        "lo_offset": 0,
        "hi_offset": 10,
        "ls_offset": 10,
        "consumer_lag": 6,
        "consumer_lag_stored": 4,
    }
    assert found["cgrp"] == {
        "state": "up",
        "join_state": "steady",
        "rebalance_cnt": 1,
        "rebalance_reason": "",
        "assignment_size": 1,
    }
    reader.close()


def test_before_anything_is_known_offsets_are_invalid_and_lag_is_minus_one(memory_root):
    emitted: list[dict[str, Any]] = []
    reader = observed(memory_root, emitted)
    reader.assign([tp(0)])

    def is_emitted() -> bool:
        reader.poll(0)
        return bool(emitted) and bool(partition(emitted))

    eventually(is_emitted, "statistics")
    at = partition(emitted)
    assert {at[name] for name in at if name.endswith("_offset")} == {OFFSET_INVALID}
    assert (at["consumer_lag"], at["consumer_lag_stored"]) == (-1, -1)
    assert emitted[-1]["cgrp"]["assignment_size"] == 1
    reader.close()


def test_a_dropped_consumer_is_collected_though_its_owner_takes_the_statistics(memory_root):
    class Service:
        def __init__(self) -> None:
            self.reader = consumer(memory_root, statistics__interval__ms=1, stats_cb=self.observe)

        def observe(self, text: str) -> None:
            """Called inside `poll`."""

    service = Service()
    service.reader.poll(0)
    owner = weakref.ref(service)
    del service

    def is_collected() -> bool:
        gc.collect()  # again: the thread refers to the consumer while it reads the numbers
        return owner() is None

    eventually(is_collected, "the end of the consumer")
