"""The benchmarks run, and what they check would be noticed if it went wrong."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import statistics
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import footprint, latency, peers, throughput
from benchmarks.__main__ import SUITES, main, run
from benchmarks.age import Age, AgePlan, OperationTimes, measure_age
from benchmarks.ageing import LeapingClock, Life, grow
from benchmarks.client import Client, deltaq_client, kafka_client
from benchmarks.distribution import Percentiles, distribution, percentile
from benchmarks.finding import Outcome, Table, Target, at_least, at_most
from benchmarks.floor import Floor
from benchmarks.footprint import Footprint, ObjectCount, read_through
from benchmarks.history import judge
from benchmarks.latency import Latencies, Latency, LatencyPlan
from benchmarks.load import Load
from benchmarks.machine import describe, drop_from_page_cache, spread_folders
from benchmarks.maintenance import (
    MaintenanceCost,
    MaintenancePlan,
    MaintenanceTrial,
    live_files,
    window_p99s,
)
from benchmarks.operations import OPERATIONS, measure_operations
from benchmarks.payload import MESSAGE_BYTES, TimedPayloads, random_values
from benchmarks.peers import PeerPlan, Peers, compare
from benchmarks.report import Findings, as_json, as_text
from benchmarks.suite import Suite
from benchmarks.throughput import (
    KAFKA_WAYS,
    WAYS,
    Run,
    Throughput,
    ThroughputPlan,
    WrongContent,
    _check,
    fill_topic,
    measured_way,
    speeds,
)
from deltaq import Consumer, Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import open_store
from tests.depth import depth


def _report(*found: Outcome) -> Findings:
    return Findings("2026-01-02T03:04:05+00:00", {"cores": "2"}, {"part": found})


def test_a_history_without_faults_is_clean():
    verdict = judge(4, array("q", [0, 1, 2, 3]))
    assert verdict.is_clean
    assert (verdict.sent, verdict.received, str(verdict)) == (4, 4, "complete")


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ([0, 1, 3], "1 lost"),
        ([0, 1, 2], "1 lost"),
        ([1, 2, 3], "1 lost"),
        ([], "4 lost"),
        ([0, 1, 1, 2, 3], "1 doubled"),
        ([0, 1, 2, 3, 3], "1 doubled"),
        ([0, 1, 2, 3, 0, 1], "2 doubled"),
        ([0, 2, 1, 3], "1 disordered"),
        ([0, 1, 2, 3, 4], "1 foreign"),
        ([0, 1, -1, 2, 3], "1 foreign"),
        ([0, 2, 2], "2 lost, 1 doubled"),  # the count alone would say that one is missing
        ([0, 1, 1, 3], "1 lost, 1 doubled"),  # and here that none is
    ],
)
def test_a_fault_in_a_history_is_named(arrivals, said):
    verdict = judge(4, array("q", arrivals))
    assert not verdict.is_clean
    assert str(verdict) == said
    assert verdict.received == len(arrivals)


def test_lost_and_doubled_messages_are_counted_in_any_order():
    for seed in range(100):
        chance = random.Random(seed)
        order = chance.sample(range(12), 12) if seed % 4 else list(range(12))
        lost = set(chance.sample(range(12), chance.randrange(13)))
        doubled = [chance.randrange(12) for _ in range(chance.randrange(8))]
        kept = [sequence for sequence in order if sequence not in lost]
        again = [sequence for sequence in doubled if sequence not in lost]
        verdict = judge(12, array("q", kept + again))
        assert (verdict.lost, verdict.doubled, verdict.foreign) == (len(lost), len(again), 0), seed
        assert (verdict.disordered == 0) == (kept == sorted(kept)), seed


def test_a_changed_payload_is_not_taken_for_a_message():
    payloads = TimedPayloads(seed=1)
    made = payloads.make(7)
    assert len(made) == MESSAGE_BYTES
    read = payloads.read(made)
    assert read is not None
    assert read[1] == 7
    flipped = bytearray(made)
    flipped[-1] ^= 1
    assert payloads.read(bytes(flipped)) is None
    assert payloads.read(made[:-1]) is None
    assert TimedPayloads(seed=2).read(made) is None


def test_the_same_seed_gives_the_same_values_and_no_two_are_alike():
    values = random_values(1000, seed=3)
    assert values == random_values(1000, seed=3)
    assert len(set(values)) == 1000


@given(
    st.lists(st.integers(0, 10**10), min_size=1, max_size=300),
    st.sampled_from([500, 950, 990, 999, 1000]),
)
def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed(values, per_mille):
    enough = [
        value
        for value in values
        if sum(v <= value for v in values) * 1000 >= len(values) * per_mille
    ]
    assert percentile(sorted(values), per_mille) == min(enough)


def test_a_run_that_measured_nothing_says_so():
    with pytest.raises(ValueError, match="nothing was measured"):
        distribution([])


@pytest.mark.parametrize("change", ["lost", "doubled", "changed", "swapped"])
def test_throughput_with_a_wrong_content_is_refused(change):
    sent = random_values(4, seed=1)
    came = {
        "lost": sent[:-1],
        "doubled": [*sent, sent[0]],
        "changed": [*sent[:-1], b"x"],
        "swapped": [sent[1], sent[0], *sent[2:]],
    }[change]
    _check("poll", sent, list(sent))
    with pytest.raises(WrongContent, match="4 messages sent"):
        _check("poll", sent, came)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_and_out_is_measured_and_its_content_checked(way, tmp_path):
    fill_topic(deltaq_client(str(tmp_path)), "filled", 300, seed=1)
    calls_s, seconds, _ = measured_way(deltaq_client(str(tmp_path)), way, 300, 1, "filled")
    assert seconds > 0
    assert (calls_s is not None) == way.startswith("produce")


@pytest.mark.parametrize("way", ["poll", "consume_500", "consume_arrow"])
def test_a_topic_that_holds_something_else_is_noticed(way, tmp_path):
    fill_topic(deltaq_client(str(tmp_path)), "filled", 300, seed=1)
    with pytest.raises(WrongContent, match=way):
        measured_way(deltaq_client(str(tmp_path)), way, 300, 2, "filled")


@pytest.mark.parametrize("way", ["produce", "poll"])
def test_messages_that_are_all_there_twice_are_noticed_behind_the_last(way, tmp_path, monkeypatch):
    client, produce = deltaq_client(str(tmp_path)), throughput._IN["produce"]
    fill_topic(client, "filled", 300, seed=1)

    def twice(client, topic, values):
        produce(client, topic, values)
        return produce(client, topic, values)

    client.create_topic("doubled")
    twice(client, "doubled", random_values(300, seed=1))
    monkeypatch.setitem(throughput._IN, "produce", twice)
    with pytest.raises(
        WrongContent, match=f"{way}: 300 messages sent, and the topic has offsets 0 to 600"
    ):
        measured_way(client, way, 300, 1, "doubled")


def test_speeds_are_best_median_and_worst_of_the_runs():
    runs = [Run("produce", 1_000_000, 0.5, seconds, 2.0, None) for seconds in (1.0, 4.0, 2.0)]
    calls, acknowledged = speeds(runs)
    assert (calls.name, calls.median) == ("produce, calls", 2_000_000)
    assert (acknowledged.best, acknowledged.worst) == (1_000_000, 250_000)
    assert acknowledged.median == statistics.median([1_000_000, 250_000, 500_000])


def test_a_target_is_judged_by_the_median_run():
    runs = tuple(
        Run("consume_500", 1_000_000, None, seconds, 1.0, None) for seconds in (1.0, 1.5, 1.6)
    )
    (target,) = Throughput(runs).targets()
    assert (target.name, target.aim, target.found, target.met) == (
        "consume(500)",
        ">= 800,000/s",
        "666,667/s",
        False,
    )


def test_a_report_names_processor_memory_and_the_versions_of_the_peers_that_took_part(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DELTAQ_BENCH_STORE", "minio v1.2")
    monkeypatch.setenv("DELTAQ_BENCH_KAFKA_VERSION", "4.9")
    for name in ("peers", "published", "flow"):
        monkeypatch.setitem(SUITES, name, replace(SUITES[name], measure=lambda plan, place: []))
    alone = run({"flow": None}, str(tmp_path)).machine
    of_the_machine = {"cores", "processor", "memory", "store", "us to create a file", "system"}
    assert {*of_the_machine, "python", "pyarrow", "deltaq"} == alone.keys()
    assert float(alone["memory"].removesuffix(" GiB")) > 0
    remote = run({"peers": None, "published": None}, "s3://bucket/root")
    named = {name: value for name, value in remote.machine.items() if name not in alone}
    libraries = {name: version(name) for name in ("confluent-kafka", "deltalake")}
    librdkafka = import_module("confluent_kafka").libversion()[0]
    assert named == {"minio": "v1.2", "Kafka": "4.9", "librdkafka": librdkafka, **libraries}
    assert json.loads(as_json(remote))["machine"] == remote.machine
    assert alone["processor"] in as_text(remote)
    assert "4.9" in as_text(remote)


def test_creating_files_is_timed_below_a_local_root_only(tmp_path):
    ((name, micros),) = spread_folders(str(tmp_path / "root")).items()
    assert name == "us to create a file"
    assert 0 < int(micros) < 1_000_000
    assert spread_folders("s3://bucket/prefix") == {}


def test_what_is_dropped_from_the_page_cache_is_still_whole_and_no_longer_in_memory_where_the_system_drops_it(  # noqa: E501
    tmp_path,
):
    file, content = tmp_path / "data.parquet", os.urandom(100 * mmap.PAGESIZE)
    with file.open("wb") as opened:
        opened.write(content)
        os.fsync(opened.fileno())
    before = pages_in_memory(file)
    assert before > 50
    drop_from_page_cache(tmp_path)
    # macOS takes no such advice, and tmpfs has no other place.
    is_dropped = hasattr(os, "posix_fadvise") and describe(str(tmp_path))["store"] != "local tmpfs"
    assert pages_in_memory(file) == (0 if is_dropped else before)
    assert file.read_bytes() == content


def pages_in_memory(file: Path) -> int:
    """How many pages of a file the system has in memory, as mincore(2) tells."""
    with file.open("rb+") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        at = (ctypes.c_ubyte * len(mapped)).from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(at), ctypes.c_size_t(len(mapped)), pages)
        del at
    assert not failed
    return sum(page & 1 for page in pages)


@pytest.mark.parametrize(
    ("others", "said"), [(0.02, "0.02 cores busy"), (0.7, "too many"), (None, "unknown")]
)
def test_the_report_says_whether_the_machine_was_quiet(others, said):
    found = _report(Throughput((Run("poll", 1_000_000, None, 1.0, 1.0, others),)))
    assert said in as_text(found)


def test_a_tiny_run_measures_everything_and_finds_nothing_wrong(tmp_path):
    load = Load(rate=2_000, linger_ms=5.0, seconds=0.3, warmup_s=0.1)
    plans = {
        "latency": LatencyPlan((load,), 3),
        "throughput": ThroughputPlan(2_000, 1, ("produce",)),
    }
    findings = run(plans, str(tmp_path))
    latencies, throughput = findings
    assert isinstance(latencies, Latencies)
    assert isinstance(throughput, Throughput)
    (measured,) = latencies.loads
    assert findings.is_clean
    assert (measured.verdict.sent, measured.verdict.received, measured.from_send.count) == (
        800,
        800,
        600,
    )
    assert 0 < measured.from_send.p50 <= measured.from_send.p99 <= measured.from_send.max
    assert measured.from_due.max >= measured.from_send.p50
    assert 0 < measured.commits <= 800
    assert measured.data_bytes > 800 * MESSAGE_BYTES
    assert [run.way for run in throughput.runs] == ["produce"]
    text = as_text(findings)
    assert "complete" in text
    assert all(speed.name in text for speed in speeds(throughput.runs))
    (noted,) = json.loads(as_json(findings))["latency"]
    assert noted["loads"][0]["verdict"]["lost"] == 0


def test_a_consumer_does_not_wait_for_ever_for_a_lost_message(tmp_path, monkeypatch):
    monkeypatch.setattr(latency, "TIMEOUT_S", 1.0)
    root, payloads = str(tmp_path), TimedPayloads(seed=1)
    Topic("events", conf={"bootstrap.servers": root}).create()
    with Producer({"bootstrap.servers": root}) as producer:
        for sequence in (0, 1, 3):
            producer.produce("events", payloads.make(sequence))
    load = Load(rate=4, linger_ms=5.0, seconds=1.0, warmup_s=0.0)
    with Consumer(
        {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.subscribe(["events"])
        consumed = latency.consume_all(consumer, payloads, load, 0.0)
    assert str(judge(load.total, consumed.sequences, consumed.foreign)) == "1 lost"


@pytest.mark.usefixtures("threads_for_processes")
def test_a_double_that_no_reader_has_seen_is_counted(tmp_path):
    client, load = (
        Client("tests.doubles.doubling", str(tmp_path)),
        Load(rate=200, linger_ms=5.0, seconds=0.2, warmup_s=0.1),
    )
    Topic("events", conf={"bootstrap.servers": str(tmp_path)}).create()
    _, consumed = latency.send_and_read(client, "events", load)
    assert list(consumed.sequences) == list(range(load.total)), "to the reader all was well"
    assert str(judge(load.total, consumed.sequences, consumed.foreign)) == "1 foreign"


def test_what_came_is_not_counted_again_as_unread():
    load = Load(rate=4, linger_ms=5.0, seconds=1.0, warmup_s=0.0)
    for arrived, foreign, records, unread in (
        (4, 0, 4, 0),
        (5, 0, 5, 0),
        (4, 1, 5, 0),
        (4, 1, 6, 1),
        (3, 0, 4, 0),
        (3, 0, 6, 2),
    ):
        stamps = array("q", range(arrived))
        found = latency.with_unread(
            latency.Consumed(stamps, stamps, stamps, foreign, 0.0), load, records
        )
        assert found.foreign - foreign == unread


def test_topics_are_made_old_only_on_a_local_disk(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "age", "--root", "s3://bucket/prefix"])
    assert "give a path" in capsys.readouterr().err


def test_a_store_that_two_processes_cannot_share_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--root", "memory://benchmark"])
    assert "one process" in capsys.readouterr().err


def test_every_operation_of_a_store_is_measured_and_nothing_is_left_behind(local_root):
    store = open_store(local_root)
    measured = measure_operations(store, rounds=3)
    assert tuple(measured) == OPERATIONS
    assert {taken.count for taken in measured.values()} == {3}
    assert list(store.list("")) == []


def test_an_operation_with_the_wrong_outcome_is_not_measured_as_if_it_had_the_right_one(
    memory_root, monkeypatch
):
    store = open_store(memory_root)
    monkeypatch.setattr(store, "create", store.put)  # a store that ignores the condition
    with pytest.raises(AssertionError, match="no ObjectExists"):
        measure_operations(store, rounds=1)


def test_a_clock_that_leaps_ends_at_the_present():
    clock = LeapingClock(behind_s=7200.0)
    assert SYSTEM_CLOCK.time_ms() - clock.time_ms() == pytest.approx(7_200_000, abs=60_000)
    before = clock.monotonic(), clock.uptime()
    clock.leap(7200.0)
    assert SYSTEM_CLOCK.time_ms() - clock.time_ms() == pytest.approx(0, abs=60_000)
    assert clock.monotonic() - before[0] >= 7200
    assert clock.uptime() - before[1] >= 7200


@pytest.mark.parametrize("change", ["nothing", "lost", "doubled", "changed", "elsewhere"])
def test_a_topic_that_is_read_through_is_judged_record_by_record(change, tmp_path, monkeypatch):
    monkeypatch.setattr(footprint, "TIMEOUT_S", 1.0)
    root, payloads = str(tmp_path), TimedPayloads(seed=1)
    lines: list[str] = []
    times_ms = grow(
        root, "events", Life(commits=3, days=0.1, records=4, partitions=2), payloads, lines.append
    )
    assert len(times_ms) == 3
    assert sorted(times_ms) == list(times_ms)
    more = {
        "nothing": [],
        "lost": [(payloads.make(13), 1)],
        "doubled": [(payloads.make(3), 1)],
        "changed": [(payloads.make(12)[:-1] + b"x", 0)],
        "elsewhere": [(payloads.make(12), 1)],
    }[change]
    with Producer({"bootstrap.servers": root}) as producer:
        for value, partition in more:
            producer.produce("events", value, partition=partition)
    verdict, plain_bytes = read_through(root, "events", 2, 14 if change == "lost" else 12, payloads)
    said = {"nothing": "complete", "lost": "1 lost", "doubled": "1 doubled"}.get(
        change, "1 foreign"
    )
    assert str(verdict) == said
    assert plain_bytes > 12 * MESSAGE_BYTES
    assert lines == []


def test_a_small_old_topic_is_compared_with_a_young_one_and_every_object_is_counted(tmp_path):
    old, young = Life(commits=300, days=6.0, records=6), Life(commits=20, days=0.4, records=6)
    sizes: list[int] = []

    def measured(text):
        if "alternately" in text:
            sizes.extend(
                path.stat().st_size
                for path in Path(tmp_path).glob("topics/old-*/**/*")
                if path.is_file()
            )

    age = measure_age(str(tmp_path), AgePlan(old, young, rounds=3), measured)
    assert str(age.verdict) == "complete"
    assert age.verdict.sent >= 320 * 6 + 2 * 3
    assert {
        cost.operation: (cost.young.count, cost.old.count) for cost in age.costs
    } == dict.fromkeys(
        (
            "acknowledged produce",
            "poll of a new record",
            "produce to poll",
            "open at the end",
            "open at an old time",
        ),
        (3, 3),
    )
    assert (age.old.objects, age.old.bytes) == (len(sizes), sum(sizes))
    assert age.old.payload_bytes == 300 * 6 * MESSAGE_BYTES < age.old.plain_bytes
    assert age.old.parts["log entries"].objects > 300
    # What had been merged two days before the end was gone by then, but not what was merged at the
    # end.
    assert 100 <= age.old.parts["data that left the topic"].objects < 150
    findings = _report(age)
    assert findings.is_clean
    assert "open at an old time" in as_text(findings)
    assert json.loads(as_json(findings))["part"][0]["old"]["payload_bytes"] == age.old.payload_bytes


def test_an_old_topic_is_judged_by_ratios_of_medians_and_by_its_bytes():
    fast, slow = (
        distribution([10**6, 10**6, 9 * 10**6]),
        distribution([12 * 10**5, 13 * 10**5, 14 * 10**5]),
    )
    costs = (OperationTimes("acknowledged produce", fast, slow), OperationTimes("poll", slow, fast))
    size = Footprint(100, 110, {"data": ObjectCount(2, 120), "log entries": ObjectCount(7, 20)})
    life = Life(1, 1.0)
    age = Age(AgePlan(life, life, 3), judge(0, array("q")), costs, size, size, 1.0, ())
    found = {target.name: (target.found, target.met) for target in age.targets()}
    assert found == {
        "acknowledged produce, old/young": ("1.30", False),
        "poll, old/young": ("0.77", True),
        "bytes of the old topic/payload": ("1.40", False),
    }
    assert not _report(replace(age, verdict=judge(1, array("q")))).is_clean
    assert "data" in as_text(_report(age))


@pytest.mark.long
def test_trials_with_and_without_maintenance_alternate_and_lose_nothing(tmp_path):
    plan = MaintenancePlan(
        Load(rate=2_000, linger_ms=1.0, seconds=0.8, warmup_s=0.2), pairs=2, window_s=0.2
    )
    findings = run({"maintenance": plan}, str(tmp_path))
    (cost,) = findings
    assert isinstance(cost, MaintenanceCost)
    assert findings.is_clean
    assert [trial.on for trial in cost.trials] == [True, False, False, True]
    assert {len(trial.window_p99s) for trial in cost.trials} == {4}
    assert {trial.acknowledged.count for trial in cost.trials} == {1_600}
    assert all(trial.verdict.sent == 2_000 for trial in cost.trials)
    for trial in cost.trials:
        assert trial.on or trial.files_at_end == trial.files_at_most >= trial.commits > 0
        assert trial.on or (trial.rewrites, trial.checkpoints) == (0, 0)
    assert "without" in " ".join(target.name for target in findings.targets)
    assert "messages" in as_text(findings)


def test_maintenance_is_judged_by_the_median_window_of_each_kind():
    def trial(on, *window_p99s):
        marks = distribution([int(window_p99s[0] * 1e6)] * 100)
        return MaintenanceTrial(
            on, judge(0, array("q")), marks, window_p99s, 1.0, 1, 0, 1, 1, 0, 1.0, None
        )

    trials = trial(True, 12, 90, 11), trial(False, 10, 8), trial(False, 9), trial(True, 95, 11)
    cost = MaintenanceCost(MaintenancePlan(Load(1, 1.0, 1.0, 0.0), 2, 1.0), trials)
    assert cost.ratio == 12 / 9
    (target,) = cost.targets()
    assert (target.found, target.met) == ("1.33", False)


def test_each_window_has_the_percentile_of_its_own_messages():
    load = Load(rate=100, linger_ms=1.0, seconds=2.5, warmup_s=1.0)
    warmup, first, second, rest = (
        [9_000_000] * 100,
        [*range(1_000_000, 101_000_000, 1_000_000)],
        [7_000_000] * 100,
        [0] * 50,
    )
    assert window_p99s(load, warmup + first + second + rest, 1.0) == (99.0, 7.0)
    assert window_p99s(load, warmup + first + second + rest, 60.0) == (98.0,)


def test_live_files_are_counted_entry_by_entry(tmp_path):
    root = str(tmp_path)
    topic = Topic("events", conf={"bootstrap.servers": root}).create()
    with Producer({"bootstrap.servers": root, "maintenance.enable": False}) as producer:
        for number in range(3):
            producer.produce("events", b"%d" % number)
            producer.flush()
    topic.delete()
    entries = [
        path.read_bytes() for path in sorted(Path(tmp_path).glob("topics/events/_delta_log/*.json"))
    ]
    assert live_files(entries) == [0, 1, 2, 3, 0]


# --- next to Kafka
# --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_both_clients_get_the_same_loads_and_ways_in_turns(tmp_path, monkeypatch):
    """deltaq stands in for the broker: the program text is the same."""
    # Each run is a process of its own, which takes its time to start.
    ways = KAFKA_WAYS[:: depth(4, 2)]
    monkeypatch.setattr(peers, "KAFKA_WAYS", ways)
    plan = PeerPlan((Load(500, 5.0, 0.4, 0.1),), messages=300, rounds=2)
    clients = [deltaq_client(str(tmp_path / name)) for name in ("one", "other")]
    measured = list(compare(clients, plan))
    delivered = [one for one in measured if isinstance(one, Latency)]
    assert len(delivered) == 4
    assert all(one.verdict.is_clean and one.from_send.count == 200 for one in delivered)
    assert all(one.from_due.max >= one.from_send.p50 for one in delivered)
    assert all(one.floor is not None and one.floor.total_ms > 0 for one in delivered)
    runs = [one for one in measured if isinstance(one, Run)]
    assert [run.way for run in runs] == [*(way for way in ways for _ in clients)] * 2
    assert len(runs) == 4 * len(ways)


FLOOR = Floor(1_000, 3, 1.0, 0.5, 0.25, 0.25)


def _latency(client: str, load: Load, took: Percentiles, from_due: Percentiles) -> Latency:
    about = client, load, judge(1, array("q", [0]), 0)
    return Latency(*about, took, from_due, took, (), 1.0, 0, 0, 0, 0, 1.0, 1.0, None, None)


def test_a_load_is_shown_from_when_it_was_due_and_as_a_multiple_of_the_bare_store():
    load = Load(10_000, 5.0, 1.0, 0.0)
    took, late = distribution([6 * 10**6]), distribution([9 * 10**6])
    both = [_latency(who, load, took, late) for who in ("deltaq", "Kafka")]
    ours = replace(both[0], floor=FLOOR)
    table, *_ = Peers(PeerPlan((load,), 0, 1), (ours, both[1]), ()).tables()
    rows = {row[1]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    columns = "p99", "due p99", "floor", "p50/floor"
    assert [rows["deltaq"][name] for name in columns] == ["6.0", "9.0", "2.00", "3.0"]
    assert [rows["Kafka"][name] for name in columns] == ["6.0", "9.0", "-", "-"]


def test_kafkas_consumer_does_not_pause_while_it_has_room_for_more():
    ours, theirs = deltaq_client("root"), kafka_client("host:1")
    assert ours.consumer_conf == ours.conf
    assert (
        theirs.consumer_conf.items()
        >= {
            "fetch.queue.backoff.ms": 0,
            "bootstrap.servers": "host:1",
        }.items()
    )
    # librdkafka refuses what is out of its range; it is made without a broker.
    theirs.api.Consumer({**theirs.consumer_conf, "group.id": "g", "log_level": 0}).close()


def test_a_comparison_is_of_medians_and_says_what_was_missed():
    load = Load(10_000, 5.0, 1.0, 0.0)
    delivered = [
        _latency(client, load, took := distribution([int(ms * 1e6)]), took)
        for client, marks in (("deltaq", (6, 30, 8)), ("Kafka", (5, 5, 99)))
        for ms in marks
    ]
    runs = [
        Run("poll", 1_000_000, None, seconds, seconds / 2, None, client)
        for client, times in (("deltaq", (0.5, 9.0, 0.4)), ("Kafka", (2.0, 1.0, 1.0)))
        for seconds in times
    ]
    peers = Peers(PeerPlan((load,), 1_000_000, 3), tuple(delivered), tuple(runs))
    assert (peers.latency(load, "p50").ours, peers.latency(load, "p50").theirs) == (8, 5)
    assert peers.speed("poll").ratio == 2.0
    found = {target.name: (target.found, target.met) for target in peers.targets()}
    assert found == {
        "p50, 10,000/s, linger 5 ms, deltaq/Kafka": ("1.60", False),
        "p99, 10,000/s, linger 5 ms": ("8.00 ms", True),
        "poll, deltaq/Kafka": ("2.00", True),
    }
    _, speeds_found = peers.tables()
    assert speeds_found.rows == (
        ("poll", "2,000,000", "1,000,000", "2.00", "0.25", "0.50", "0.50"),
    )
    assert "Kafka" in as_text(_report(peers))


# --- the report
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivenFindings:
    """A measurement with the given findings."""

    shown: tuple[Table, ...] = ()
    aimed: tuple[Target, ...] = ()
    is_clean: bool = True
    others_cores: tuple[float, ...] = ()

    def tables(self) -> Iterable[Table]:
        return self.shown

    def targets(self) -> Iterable[Target]:
        return self.aimed


def test_every_cell_of_every_table_and_every_target_is_in_the_text():
    table = Table(
        "Speeds of `poll` and others",
        ("way", "a second"),
        (("poll", "1,000"), ("produce", "2,000")),
    )
    aims = at_most("p99", 100, 31.4, " ms"), at_least("speed", 3_000_000, 2_500_000, "/s")
    findings = _report(GivenFindings((table,), aims))
    assert as_text(findings).splitlines()[2:] == [
        "",
        "Speeds of `poll` and others",
        "way      a second",
        "-------  --------",
        "poll        1,000",
        "produce     2,000",
        "",
        "target             aim        found",
        "------  --------------  -----------  ------",
        "p99          <= 100 ms     31.40 ms     met",
        "speed   >= 3,000,000/s  2,500,000/s  MISSED",
    ]
    assert [target["met"] for target in json.loads(as_json(findings))["targets"]] == [True, False]


def test_json_has_each_finding_in_the_list_of_its_suite():
    content = json.loads(as_json(_report(GivenFindings(others_cores=(0.5,)), GivenFindings())))
    assert list(content) == ["started", "machine", "part", "targets"]
    assert [one["others_cores"] for one in content["part"]] == [[0.5], []]


def test_a_run_writes_its_figures_and_names_the_file(tmp_path, monkeypatch, capsys):
    plans = []

    def measure(plan, place):
        plans.append((plan, Path(place.root).is_dir()))
        return [GivenFindings(is_clean=plan == "quick")]

    monkeypatch.setitem(SUITES, "new", Suite("full", "quick", measure))
    assert main(["--only", "new", "--quick", "--results", str(tmp_path)]) == 0
    (figures,) = tmp_path.iterdir()
    assert json.loads(figures.read_text())["new"][0]["is_clean"]
    assert str(figures) in capsys.readouterr().out
    assert main(["--only", "new", "--results", str(tmp_path)]) == 1
    assert plans == [("quick", True), ("full", True)]


def test_a_suite_that_compares_with_kafka_asks_for_a_broker(capsys, monkeypatch):
    monkeypatch.delenv("DELTAQ_BENCH_KAFKA", raising=False)
    with pytest.raises(SystemExit):
        main(["--only", "peers"])
    assert "no broker" in capsys.readouterr().err
