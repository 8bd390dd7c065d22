"""`deltaq cost` and `deltaq bench`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaq import (
    OFFSET_BEGINNING,
    AdminClient,
    Consumer,
    KafkaException,
    Producer,
    ShareConsumer,
    Topic,
    TopicPartition,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import open_store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.tools import examine, measure_speed, speed
from deltaq.topics.listing import topic_names
from tests.doubles.reading import drain
from tests.doubles.sharing import set_group
from tests.unit.cli.conftest import ROOT, Shell


class WorkingClock(ManualClock):
    """Calls `work` in each pause."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(auto_advance=True)
        self.work = work

    def sleep(self, seconds: float) -> None:
        self.work()
        super().sleep(seconds)


KINDS = ("PUT", "GET", "LIST", "DELETE")


def test_the_cost_of_a_topic_to_be_is_estimated(deltaq: Shell) -> None:
    assert deltaq("cost -m 1 --size 1000000 --retention 30 --consumers 2").printed("""
        OF       PER SECOND  KEPT      $ A DAY
        PUT      2                     0.86
        GET      10.5                  0.36
        LIST     0.6                   0.26
        DELETE   0.1                   0.00
        storage              2.36 TiB  1.96
        total                          3.45
        by the price list of S3 Standard, estimated
        """)
    # The polls of the reader.
    assert deltaq("cost -m 0").output.splitlines()[-2].split() == ["total", "0.07"]
    # Two workers and their group: polls of the topic and of the group, and each entry of both.
    both = "cost -m 3 --consumers 0 -o json"
    alone, shared = (deltaq(f"{both} {more}").json for more in ("", "--workers 2"))
    added = {kind: shared["requests_per_s"][kind] - alone["requests_per_s"][kind] for kind in KINDS}
    assert added == pytest.approx(
        {"PUT": 3, "GET": 2 * (2 * 2 + 3 + 3) + 3, "LIST": 0, "DELETE": 0}
    )
    # In one process they read the commits of the topic once, and no entry of the group.
    one = deltaq(f"{both} --workers 2 --worker-processes 1").json["requests_per_s"]
    assert shared["requests_per_s"]["GET"] - one["GET"] == 3 + 3
    assert "leave out --messages" in deltaq("cost -m 1 -t orders").errors


@pytest.mark.parametrize(
    "option", ["-m 1e400", "-m 1 --size inf", "-m 1 --retention 1e300", "-m nan"]
)
def test_a_cost_that_no_number_can_be_is_refused(deltaq: Shell, option: str) -> None:
    ended = deltaq(f"cost {option} -o json")
    assert (ended.status, ended.output) == (2, "")


def test_the_cost_of_a_running_root_follows_from_two_looks(deltaq: Shell) -> None:
    Topic("orders", bootstrap_servers=ROOT).create()
    Topic("quiet", bootstrap_servers=ROOT).create()

    def write() -> None:
        """Write three times."""
        with Producer(bootstrap_servers=ROOT, maintenance_enable=False) as producer:
            for _ in range(3):
                producer.produce("orders", b"x")
                producer.flush()

    conf = {"bootstrap.servers": ROOT, "group.id": "billing", "auto.offset.reset": "earliest"}
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("orders", b"x")
    with Consumer(conf) as consumer:
        consumer.subscribe(["orders"])
        drain(consumer, 1)
        consumer.commit(asynchronous=False)
        deltaq.clock = WorkingClock(write)
        found = deltaq("cost --interval 2 -o json").json
        # Commits, and heartbeats of the member.
        assert found["requests_per_s"]["PUT"] >= 2 * 1.5 + 1 / 3
        assert found["requests_per_s"]["LIST"] == 0.6  # one topic is written
        deltaq.clock = WorkingClock(write)
        quiet = deltaq("cost --interval 2 -t quiet -o json").json
    assert quiet["requests_per_s"] == {"PUT": 0, "GET": 0, "LIST": 0, "DELETE": 0}
    assert quiet["bytes_kept"] == 0
    assert found["bytes_kept"] > 0
    assert deltaq("cost -t nothing --interval 0.1").refused("topic 'nothing' does not exist")


def test_the_cost_of_a_running_share_group_is_counted(deltaq: Shell) -> None:
    for name in ("mails", "quiet"):
        Topic(name, bootstrap_servers=ROOT).create()
    with AdminClient(bootstrap_servers=ROOT) as admin:
        set_group(admin, "mailers", share_auto_offset_reset="earliest")
    conf = {"bootstrap.servers": ROOT, "maintenance.enable": False}

    def write() -> None:
        with Producer(conf) as producer:
            producer.produce("mails", b"x")

    def work() -> None:
        """Write to the topic three times, and take two of these and accept them in three entries.
        Another worker takes the third, and holds it.
        """
        for _ in range(2):
            write()
            worker.poll(10)
        worker.commit_sync()
        write()
        other.poll(10)

    def cost(topic: str) -> dict[str, float]:
        deltaq.clock = WorkingClock(work)
        found = deltaq(f"cost --interval 2 -o json -t {topic}").json["requests_per_s"]
        return {kind: found[kind] for kind in KINDS}

    write()
    with (
        ShareConsumer(conf, group_id="mailers") as worker,
        ShareConsumer(conf, group_id="mailers") as other,
    ):
        for each in (worker, other):
            each.subscribe(["mails"])
        worker.poll(10)
        assert cost("quiet") == dict.fromkeys(KINDS, 0)
        other.commit_sync()
        write()
        worker.poll(10)
        assert cost("mails") == pytest.approx(
            # Of a second: one and a half commits with two objects, and two entries of the group;
            # polls of both logs by two workers of one process, which reads each commit once;
            # file, for each entry of the group a look and a file; and housekeeping of the topic.
            {"PUT": 2 * 1.5 + 2, "GET": 2 * 4 + 1.5 + 2 + 2 + 2.5, "LIST": 0.6, "DELETE": 0.1}
        )


def test_workers_that_hold_nothing_at_either_look_are_one(deltaq: Shell) -> None:
    Topic("mails", bootstrap_servers=ROOT).create()
    with AdminClient(bootstrap_servers=ROOT) as admin:
        set_group(admin, "mailers", share_auto_offset_reset="earliest")
    conf = {"bootstrap.servers": ROOT, "maintenance.enable": False}

    def work() -> None:
        with ShareConsumer(conf, group_id="mailers") as worker:
            worker.subscribe(["mails"])
            worker.poll(10)
            worker.commit_sync()

    with Producer(conf) as producer:
        producer.produce("mails", b"x")
    work()
    deltaq.clock = WorkingClock(lambda: None)
    assert deltaq("cost --interval 2 -o json").json["requests_per_s"]["GET"] == 0
    with Producer(conf) as producer:
        producer.produce("mails", b"x")
    deltaq.clock = WorkingClock(work)
    assert deltaq("cost --interval 2 -o json").json["requests_per_s"]["GET"] == 4 + 1 + 1


def test_a_root_is_measured_and_left_as_it_was(deltaq: Shell) -> None:
    Topic("orders", bootstrap_servers=ROOT).create()
    before = [entry.key for entry in open_store(ROOT).list("")]
    ended = deltaq("bench --seconds 0.3 --size 50 --partitions 2")
    number = r"[\d,.]+(e\+\d+)?"
    times = rf"{number} ms, longest {number} ms"
    expected = [
        rf"Write of 1 KB      {times}",
        rf"Read of 1 KB       {times}",
        (
            rf"Written            {number} messages/s, {number} [KMG]iB/s \(of [\d,]+,000, "
            r"acknowledged\)"
        ),
        rf"Read               {number} messages/s, {number} [KMG]iB/s",
        rf"One message alone  {times} \(of {number}, produce to poll\)",
    ]
    assert (ended.status, ended.errors) == (0, "")
    assert all(
        re.fullmatch(line, found)
        for line, found in zip(expected, ended.output.splitlines(), strict=True)
    )
    assert [entry.key for entry in open_store(ROOT).list("")] == before
    found = deltaq("bench --seconds 0.1 -o json").json
    assert found["messages"] >= 1000
    assert found["arrivals"] >= 1


def test_no_single_message_is_sent_before_its_reader_knows_where_to_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader at OFFSET_END looks that up in the background: on a busy machine, after the first
    message.
    """
    begun: list[int] = []

    class Noted(Consumer):
        def assign(self, partitions: list[TopicPartition]) -> None:
            begun.extend(each.offset for each in partitions)
            super().assign(partitions)

    monkeypatch.setattr(speed, "Consumer", Noted)
    measured = measure_speed(open_store(ROOT), seconds=0)
    assert begun == [OFFSET_BEGINNING, measured.messages]


def test_a_measurement_that_fails_is_cleaned_up(deltaq: Shell) -> None:
    store = FaultyStore(open_store(ROOT))
    store.add(Rule("put", "*.parquet", Fault.no_space(), times=None))
    with pytest.raises(KafkaException):
        measure_speed(store, seconds=0)
    assert list(open_store(ROOT).list("topics/")) == []


def test_the_next_measurement_removes_what_a_killed_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(_: Topic) -> None:
        """What SIGKILL does to the clean-up."""

    root = str(tmp_path)
    store = open_store(root)
    Topic("orders", store=store).create()
    Topic("deltaq-bench-of-ours", store=store).create()
    with monkeypatch.context() as patch:
        patch.setattr(speed, "_remove", kill)
        for _ in range(3):
            measure_speed(store, seconds=0)
    recent, old, damaged = sorted(set(topic_names(store)) - {"orders", "deltaq-bench-of-ours"})
    for name in ("orders", "deltaq-bench-of-ours", old, damaged):
        for path in (tmp_path / "topics" / name).rglob("*"):
            os.utime(
                path,
                times=(before := SYSTEM_CLOCK.time_ms() / 1000 - 2 * speed.LEFT_BEHIND_S, before),
            )
    finding = next(found for found in examine(store) if found.check == "topics")
    assert (finding.state, finding.found) == (
        "due",
        f"left by killed measurements: {old}; {damaged}",
    )

    # Killed while it removed its objects.
    next((tmp_path / "topics" / damaged / "_delta_log").glob("*00.json")).unlink()
    measure_speed(store, seconds=0)
    assert topic_names(store) == sorted(["orders", "deltaq-bench-of-ours", recent])
    assert next(found for found in examine(store) if found.check == "topics").state == "ok"
