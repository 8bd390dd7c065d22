"""The modelled store keeps waiting, counts and charges as its model says, and is otherwise the
store behind it.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from statistics import median

import pytest

from benchmarks import modelled
from benchmarks.distribution import distribution
from benchmarks.history import Verdict
from benchmarks.load import Load
from benchmarks.modelled import (
    TOPIC,
    Bill,
    Cell,
    Modelled,
    ModelledPlan,
    PaddedPayloads,
    Stream,
    _measure_stream,
    measure_modelled,
)
from benchmarks.modelled_store import S3_STANDARD, ModelledStore, RequestLatency, StoreModel
from deltaq import Producer
from deltaq.store import MemoryStore, ObjectExists, ObjectMissing
from deltaq.store.objects import PART_BYTES

SECOND = 10_000
CLEAN = Verdict(SECOND, SECOND, 0, 0, 0, 0)
KINDS = ("PUT", "GET", "LIST", "DELETE")
QUICK = StoreModel("quick", dict.fromkeys(KINDS, RequestLatency(0.2, 0.4)), 1e6, S3_STANDARD.prices)
# Each request takes exactly ten milliseconds, and a megabyte one.
EVEN = StoreModel("even", dict.fromkeys(KINDS, RequestLatency(10, 10)), 1000.0, S3_STANDARD.prices)


def store(model=QUICK, seed=1):
    return ModelledStore(MemoryStore("modelled"), model, seed)


def cell(linger_ms, requests=None, *, verdict=CLEAN, p99_ms=500.0):
    stream = Stream(Load(10_000, linger_ms, 1.0, 0.0), 1_000)
    marks = distribution([int(p99_ms * 1e6)])
    return Cell(stream, verdict, marks, marks, verdict.sent / 10_000, requests or {}, 1.0, None)


# --- the model
# --------------------------------------------------------------------------------------------------


def test_the_rarest_draws_are_finite_too():
    latency = RequestLatency(65, 200)
    assert 0 < latency.seconds(0.0) < latency.seconds(1.0) < 10


def test_delays_are_those_of_the_model_and_the_same_for_the_same_seed():
    drawn, again, other = (
        [of.request_s("GET") for _ in range(2_000)] for of in (store(), store(), store(seed=2))
    )
    assert drawn == again != other
    assert median(drawn) == pytest.approx(0.0002, rel=0.1)
    assert sorted(drawn)[1_980] == pytest.approx(0.0004, rel=0.2)


def test_dollars_a_day_are_requests_times_their_price():
    # 86,400 PUTs at 5 $ a million, 864,000 GETs at 0.40 $, 8,640 LISTs at 5 $; deleting is free.
    per_s = {"PUT": 1.0, "GET": 10.0, "LIST": 0.1, "DELETE": 100.0}
    assert S3_STANDARD.prices.dollars_for_requests(per_s) == pytest.approx(0.432 + 0.3456 + 0.0432)
    assert S3_STANDARD.prices.dollars_for_requests({}) == 0


def test_dollars_a_day_for_keeping_are_those_of_a_week_of_data():
    # 10 MB/s are 864 GB a day, 6,048 GB in a week, at 0.023 $ a month.
    assert S3_STANDARD.dollars_for_keeping(10.0) == pytest.approx(6_048 * 0.023 * 12 / 365)


# --- the store
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "requests", "seconds"),
    [
        (1_000_000, 1, 0.011),
        (PART_BYTES, 1, 0.010 + PART_BYTES / 1e9),
        # To begin, two parts at once, to end.
        (PART_BYTES + 1, 4, 0.030 + PART_BYTES / 1e9),
        # The fifth part has to wait until one of four is done.
        (5 * PART_BYTES, 7, 0.040 + 2 * PART_BYTES / 1e9),
    ],
)
def test_a_large_object_goes_in_parts_of_which_four_are_under_way(size, requests, seconds):
    measured = store(EVEN)
    assert measured.upload_s(size) == pytest.approx(seconds)
    assert measured.requests() == {"PUT": requests}


@pytest.mark.parametrize(("objects", "requests"), [(0, 2), (1, 2), (1_000, 2), (1_001, 3)])
def test_a_listing_is_paid_for_by_the_page_and_once_more_for_its_end(objects, requests):
    measured = store()
    for number in range(objects):
        measured.inner.put(f"a/{number:04}", b"")
    assert len(list(measured.list("a/"))) == objects
    assert measured.requests() == {"LIST": requests}
    assert measured.list_folders("") == (["a"] if objects else [])


def test_every_operation_reaches_the_store_behind_it_and_is_counted():
    measured = store()
    measured.put("a/b", b"0123")
    measured.create("a/c", b"new")
    with pytest.raises(ObjectExists):
        measured.create("a/c", b"newer")
    assert (
        measured.get("a/b"),
        measured.get_impatient("a/b"),
        measured.get_range("a/b", 1, 2),
    ) == (
        b"0123",
        b"0123",
        b"12",
    )
    assert [entry.key for entry in measured.list("a/", "a/b")] == ["a/c"]
    measured.delete("a/b")
    with pytest.raises(ObjectMissing):
        measured.get("a/b")
    assert [entry.key for entry in measured.list_some("a/")] == ["a/c"]
    assert measured.requests() == {"PUT": 3, "GET": 4, "LIST": 3, "DELETE": 1}, (
        "refused and unanswered ones too"
    )
    assert [entry.key for entry in measured.inner.list("")] == ["a/c"]


@pytest.mark.parametrize("look", ["get", "get_impatient"])
def test_a_look_for_what_is_not_there_yet_takes_a_request_and_its_time_too(look, monkeypatch):
    measured = store(EVEN)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(ObjectMissing):
        getattr(measured, look)("a/b")
    assert measured.requests() == {"GET": 1}
    assert sum(slept) == pytest.approx(0.010)


def test_the_modelled_store_is_as_far_away_as_a_bucket():
    measured = store()
    assert measured.is_remote
    assert measured.poll_interval.busy_s >= 0.01
    watch = measured.watch()
    watch.add("a/")
    measured.put("a/b", b"")
    assert not watch.wait(0.01), "no notification of the writes of others"


# --- measuring
# --------------------------------------------------------------------------------------------------


def test_a_padded_payload_that_was_changed_anywhere_is_not_taken_for_a_message():
    payloads = PaddedPayloads(1, 300)
    made = payloads.make(7)
    assert len(made) == 300
    read = payloads.read(made)
    assert read is not None
    assert read[1] == 7
    for place in (20, 299):
        flipped = bytearray(made)
        flipped[place] ^= 1
        assert payloads.read(bytes(flipped)) is None
    assert payloads.read(made[:-1]) is None


def test_a_stream_through_the_modelled_store_arrives_whole_and_its_requests_are_counted():
    stream = Stream(Load(500, 5.0, 0.6, 0.2), 200)
    found = _measure_stream(stream, QUICK, seed=1)
    assert (str(found.verdict), found.verdict.received) == ("complete", 400)
    assert (found.arrived.count, found.acknowledged.count) == (300, 300)
    assert 0 < found.acknowledged.p50 <= found.arrived.max
    assert found.requests["PUT"] > 0
    assert found.requests["GET"] > 0


def test_what_is_uploaded_and_read_after_the_last_message_was_sent_is_paid_for_too():
    # Sending is over before the first upload is: of the first flight, and of what was sent during
    # it.
    slow = replace(QUICK, latencies={**QUICK.latencies, "PUT": RequestLatency(300, 300)})
    found = _measure_stream(Stream(Load(500, 5.0, 0.2, 0.0), 200), slow, seed=1)
    assert str(found.verdict) == "complete"
    assert found.seconds >= 0.9, "two uploads and a commit one after the other"
    assert found.requests["PUT"] >= 4, "a file and a log entry of each"
    assert found.requests["GET"] >= 4


def test_a_stream_of_several_pairs_is_one_topic_with_a_partition_for_each():
    stream = Stream(Load(600, 5.0, 0.5, 0.1), 200, pairs=3)
    found = _measure_stream(stream, QUICK, seed=1)
    assert (str(found.verdict), found.verdict.sent) == ("complete", 360)
    assert (found.arrived.count, found.acknowledged.count) == (300, 300)
    assert str(stream) == "0.12 MB/s of 0.2 KB, 3 producers and consumers, linger 5 ms"
    one, other = PaddedPayloads(1, 200), PaddedPayloads(2, 200)
    assert other.read(one.make(7)) is None, "of another partition"


def test_a_double_that_is_written_when_the_readers_of_a_model_have_stopped_is_counted(monkeypatch):
    def and_once_more(store, partition, *arguments):
        consumed = read(store, partition, *arguments)
        if partition == 1:
            with Producer({"bootstrap.servers": store.url}, store=store) as producer:
                producer.produce(TOPIC, b"again", partition=partition)
        return consumed

    read = modelled._read
    monkeypatch.setattr(modelled, "_read", and_once_more)
    found = _measure_stream(Stream(Load(200, 5.0, 0.3, 0.1), 200, pairs=2), QUICK, seed=1)
    assert (str(found.verdict), found.verdict.received) == ("1 foreign", 81)


def test_a_bill_is_closed_when_the_last_client_is_done_and_what_was_before_it_is_not_on_it():
    stores = [store(seed=seed) for seed in (1, 2)]
    bill = Bill(stores)
    stores[0].put("before", b"")
    bill.begin()
    stores[0].put("a", b"")
    bill.done()
    stores[1].delete("b")
    assert bill.total()[1] == {"PUT": 1, "DELETE": 1}, "as far as it has come"
    bill.done()
    seconds, _ = bill.total()
    stores[1].delete("c")
    assert bill.total() == (seconds, {"PUT": 1, "DELETE": 1})


def test_a_plan_is_carried_out_without_a_root_and_every_part_of_it_shown():
    lines: list[str] = []
    plan = ModelledPlan((Stream(Load(500, 5.0, 0.3, 0.1), 200),), QUICK)
    found = measure_modelled(plan, lines.append)
    assert found.is_clean, lines
    assert json.loads(json.dumps(asdict(found)))
    assert len(found.others_cores) == 1
    assert all(len(row) == len(table.head) for table in found.tables() for row in table.rows)


def test_a_finding_tells_dollars_over_linger_and_is_judged_at_one_of_them():
    cells = cell(5.0, {"PUT": 20}), cell(250.0, {"PUT": 8, "GET": 10}, p99_ms=800.0)
    found = Modelled(ModelledPlan(()), cells)
    assert [(target.found, target.met) for target in found.targets()] == [
        ("800.00 ms", False),
        ("800.00 ms", True),
    ]
    _, costs, *_ = found.tables()
    name, *figures = costs.rows[0]
    assert name == "10 MB/s of 1 KB, linger 5 ms"
    assert figures == ["10.0", "yes", "20.0", "0.0", "0.0", "0.0", "8.64", "4.57", "13.21"]


def test_a_stream_that_was_not_kept_up_with_says_so_and_is_charged_for_what_went_through():
    found = Modelled(ModelledPlan(()), (replace(cell(5.0, {"PUT": 20}), seconds=2.0),))
    (slow,) = found.cells
    assert (slow.mb_per_s, slow.is_kept_up, slow.requests_per_s) == (5.0, False, {"PUT": 10.0})
    assert found.kept_dollars(slow) == pytest.approx(S3_STANDARD.dollars_for_keeping(5.0))
    for table in list(found.tables())[:2]:
        row = dict(zip(table.head, table.rows[0], strict=True))
        assert (row["achieved MB/s"], row["kept up"]) == ("5.0", "NO")
    assert replace(slow, seconds=1.1).is_kept_up
    assert not replace(slow, seconds=1.12).is_kept_up


def test_a_lost_message_makes_a_finding_on_the_model_unclean():
    assert Modelled(ModelledPlan(()), (cell(5.0), cell(20.0))).is_clean
    assert not Modelled(
        ModelledPlan(()), (cell(5.0), cell(20.0, verdict=Verdict(SECOND, SECOND - 1, 1, 0, 0, 0)))
    ).is_clean
