"""What the client alone takes is measured with its content checked, and the arithmetic about its
memory is right.
"""

from __future__ import annotations

import json
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import client_cost
from benchmarks.client import deltaq_client
from benchmarks.client_cost import (
    Arrivals,
    ClientCost,
    ClientCostPlan,
    Memory,
    MemoryPlan,
    measure_client_cost,
    measure_memory,
    resident_mb,
    slope_mb_per_hour,
)
from benchmarks.history import judge
from benchmarks.load import Load
from benchmarks.payload import TimedPayloads
from benchmarks.throughput import Run
from deltaq import Producer

CLEAN = judge(1, array("q", [0]))
TEN_MINUTES = MemoryPlan(Load(10_000, 20.0, 540.0, 60.0), judged_s=480.0)


def memory(taken_mb, verdict=CLEAN):
    samples = tuple((float(second), taken_mb(second)) for second in range(601))
    return Memory(TEN_MINUTES, verdict, 10_000.0, samples, None)


@pytest.mark.parametrize(
    ("samples", "slope"),
    [
        ([(0.0, 100.0), (1800.0, 101.0), (3600.0, 102.0)], 2.0),
        # Sum of (x - 1) * (y - 1) is 3, of (x - 1)^2 it is 2.
        ([(0.0, 0.0), (1.0, 0.0), (2.0, 3.0)], 1.5 * 3600),
        ([(10.0, 7.0), (20.0, 7.0)], 0.0),
        ([(10.0, 7.0)], 0.0),
    ],
)
def test_the_slope_of_memory_is_that_of_least_squares(samples, slope):
    assert slope_mb_per_hour(samples) == pytest.approx(slope)


def test_memory_growth_is_measured_after_the_warm_up():
    found = memory(lambda second: 500.0 if second < 60 else 200.0 + second / 60)
    assert (found.start_mb, found.end_mb, found.highest_mb) == (201.0, 210.0, 210.0)
    assert found.slope_mb_per_hour == pytest.approx(60.0)
    # Of the 481 samples of the last eight minutes the first 60 are around second 149.5, the last 60
    # around 570.5.
    assert found.growth == pytest.approx((570.5 - 149.5) / 60 / 201.0)


def test_growth_does_not_follow_single_samples():
    found = memory(lambda second: 400.0 if second in (121, 300, 599) else 200.0)
    assert (found.growth, found.highest_mb) == (0.0, 400.0)


@pytest.mark.parametrize(("grown_mb", "met"), [(0.0, True), (9.0, True), (11.0, False)])
def test_memory_may_grow_by_a_twentieth_of_what_it_was(grown_mb, met):
    found = memory(lambda second: 200.0 + (grown_mb if second >= 400 else 0.0))
    (target,) = ClientCost(ClientCostPlan(0, 0, TEN_MINUTES), (), found).targets()
    assert target.met == met
    assert target.found == f"{grown_mb / 2:.2f} %"


@given(st.lists(st.integers(-2, 30)))
def test_arrivals_are_given_back_in_their_order(sequences):
    arrivals = Arrivals()
    for sequence in sequences:
        arrivals.add(sequence)
    assert arrivals.all() == array("q", sequences)
    assert len(arrivals) == len(sequences)


def test_arrivals_without_a_fault_take_no_more_for_being_many():
    arrivals = Arrivals()
    for sequence in range(10_000):
        arrivals.add(sequence)
    assert arrivals.runs == 1


def test_memory_that_a_process_takes_is_seen_on_any_system(monkeypatch):
    monkeypatch.setattr(client_cost, "_STATM", client_cost._STATM.with_name("no such file"))
    before = resident_mb()
    taken = bytearray(b"x") * 200_000_000
    assert resident_mb() >= max(before, len(taken) / 1e6)


@pytest.mark.parametrize(
    "statm", [client_cost._STATM, Path("/no such file")], ids=["what is taken", "the most ever"]
)
def test_the_memory_of_a_steady_load_is_sampled_and_every_message_accounted_for(
    statm, tmp_path, monkeypatch
):
    monkeypatch.setattr(client_cost, "_STATM", statm)
    plan = MemoryPlan(Load(1_000, 5.0, 0.8, 0.2), judged_s=0.6, sample_s=0.1)
    found = measure_memory(str(tmp_path), plan)
    assert (str(found.verdict), found.verdict.received) == ("complete", 1_000)
    assert len(found.samples_mb) >= 2
    assert found.samples_mb[-1][0] >= plan.load.warmup_s
    assert all(1 < taken < 100_000 for _, taken in found.samples_mb)
    assert found.start_mb <= found.highest_mb
    assert isinstance(found.growth, float)


def test_a_reader_whose_memory_is_watched_notices_what_is_missing_changed_or_doubled(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(client_cost, "TIMEOUT_S", 1.0)
    root, payloads, arrivals, ready = str(tmp_path), TimedPayloads(seed=1), Arrivals(), Event()
    client = deltaq_client(root)
    client.create_topic("events")
    load = Load(rate=10, linger_ms=5.0, seconds=1.0, warmup_s=0.0)
    with ThreadPoolExecutor(1) as pool, Producer({"bootstrap.servers": root}) as producer:
        reading = pool.submit(client_cost._read, client, "events", load, payloads, arrivals, ready)
        assert ready.wait(60.0)
        for value in (*map(payloads.make, (0, 1, 1, 3)), b"something else"):
            producer.produce("events", value)
        foreign = reading.result()
    assert str(judge(4, arrivals.all(), foreign)) == "1 lost, 1 doubled, 1 foreign"


def test_doubles_written_when_the_reader_whose_memory_is_watched_has_stopped_are_counted(
    tmp_path, monkeypatch
):
    def and_twice_more(client, topic, *arguments):
        foreign = read(client, topic, *arguments)
        with client.api.Producer(client.conf) as producer:
            for sequence in (0, 1):
                producer.produce(topic, TimedPayloads(200).make(sequence))
        return foreign

    read = client_cost._read
    monkeypatch.setattr(client_cost, "_read", and_twice_more)
    found = measure_memory(
        str(tmp_path), MemoryPlan(Load(200, 5.0, 0.3, 0.1), judged_s=0.2, sample_s=0.1)
    )
    assert (str(found.verdict), found.verdict.received) == ("2 foreign", 82)


def test_each_way_is_gone_with_a_store_in_memory_and_nothing_is_left_on_disk(tmp_path):
    lines: list[str] = []
    plan = ClientCostPlan(2_000, 1, None, ways=("produce", "consume_arrow"))
    found = measure_client_cost(str(tmp_path), plan, lines.append)
    assert [(run.way, run.messages, run.calls_s is None) for run in found.runs] == [
        ("produce", 2_000, False),
        ("consume_arrow", 2_000, True),
    ]
    assert all(run.seconds > 0 and run.others_cores is not None for run in found.runs)
    assert list(tmp_path.iterdir()) == []
    assert found.is_clean
    assert len(lines) == 2


def test_costs_are_medians_in_microseconds_a_message():
    runs = tuple(
        Run(way, 1_000_000, calls_s, seconds, 2 * seconds, 0.5)
        for way, calls_s in (("produce_arrow", 0.1), ("consume_arrow", None))
        for seconds in (0.25, 4.0, 0.125)
    )
    found = ClientCost(ClientCostPlan(1_000_000, 3, None), runs, None)
    (table,) = found.tables()
    assert table.rows == (
        ("produce_arrow", "0.100", "0.250", "0.500", "4,000,000", "0.50"),
        ("consume_arrow", "", "0.250", "0.500", "4,000,000", "0.50"),
    )
    assert [target.met for target in found.targets()] == [False, False]
    assert [target.found for target in found.targets()] == ["4.00 million rows/s"] * 2
    assert list(found.charts()) == []


def test_a_lost_message_makes_a_finding_about_memory_unclean():
    plan = ClientCostPlan(0, 0, TEN_MINUTES)
    assert ClientCost(plan, (), memory(lambda _: 200.0)).is_clean
    found = ClientCost(plan, (), memory(lambda _: 200.0, judge(1, array("q"))))
    assert not found.is_clean
    (table,) = found.tables()
    assert table.rows[0][-1] == "1 lost"
    assert json.loads(json.dumps(asdict(found)))["memory"]["verdict"]["lost"] == 1
    (chart,) = found.charts()
    assert chart.series[0].points[-1] == (10.0, 200.0)
