"""`python -m deltaq.maintenance ROOT`: what it does, what it says, and how it ends."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaq import (
    Consumer,
    InvalidConfig,
    KafkaException,
    Producer,
    Topic,
    TopicPartition,
    Unavailable,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.maintenance.__main__ import main
from deltaq.maintenance.run import Maintenance, run
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.names import member_key
from deltaq.store import LocalStore, MemoryStore, Store
from deltaq.store.probe import PROBE_FOLDER
from deltaq.testing import Effect, Fault, FaultyStore, ManualClock, Rule, messages_of
from tests.children import environment_of_child
from tests.doubles.groups import commit, join
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a topic of forty small files, one with nothing to do, and a group."""
    written = WrittenTopic(LocalStore(str(tmp_path), SYSTEM_CLOCK), SYSTEM_CLOCK)
    for number in range(40):
        written.append(RowToWrite(b"%d" % number))
    Topic("idle", bootstrap_servers=str(tmp_path)).create()
    with Consumer({"bootstrap.servers": str(tmp_path), "group.id": "g"}) as reader:
        reader.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
    return tmp_path


def objects(root: Path) -> dict[str, str]:
    """Everything that lies under a root."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in root.rglob("*")
    }


def data_files(root: Path) -> int:
    return len(list((root / "topics" / "t").glob("*.parquet")))


def test_once_runs_due_maintenance_reports_it_and_exits(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [(m.offset(), m.timestamp(), m.value()) for m in messages_of(str(root), "t")]
    assert main([str(root), "--once"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert any(line.startswith("t: merge 40 files") for line in lines)
    assert lines[-1].startswith("done: ")
    assert "40 files merged" in lines[-1]
    assert [(m.offset(), m.timestamp(), m.value()) for m in messages_of(str(root), "t")] == before
    assert data_files(root) == 41, "files that were replaced stay for a while"
    assert main([str(root), "--once"]) == 0
    assert "merged" not in capsys.readouterr().out


@pytest.mark.fault("P1")
def test_unfinished_files_of_killed_processes_are_removed_from_the_whole_root(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [
        root / folder / ".~left"
        for folder in ("", "topics/t", "topics/idle/_delta_log", "groups/g")
    ]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    assert main([str(root), "--dry-run"]) == 0
    assert all(path.exists() for path in left)
    assert main([str(root), "--once"]) == 0
    assert not any(path.exists() for path in left)
    assert "4 unfinished files deleted" in capsys.readouterr().out


def test_a_dry_run_reports_planned_work_and_changes_no_object(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = objects(root)
    assert main([str(root), "--dry-run"]) == 0
    assert objects(root) == before
    assert "t: merge 40 files" in capsys.readouterr().out


WRITES = ("create", "put", "delete")


def all_objects(store: Store) -> dict[str, bytes]:
    return {entry.key: store.get(entry.key) for entry in store.list("")}


def lines_of_a_dry_run(store: Store, clock: ManualClock) -> list[str]:
    """Its lines, once it is clear that it has written nothing."""
    counting = FaultyStore(store, clock=clock)
    before = all_objects(store)
    lines: list[str] = []
    done = run(
        "memory://test",
        dry_run=True,
        store=counting,
        clock=clock,
        settings=SMALL,
        notify=lines.append,
    )
    assert (done["actions planned"], done["failures"]) == (len(lines), 0)
    assert counting.operations["list"] > 0
    assert [name for name in WRITES if counting.operations[name]] == []
    assert all_objects(store) == before
    return lines


def test_a_dry_run_reports_every_kind_of_work_with_the_actual_numbers() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    written = WrittenTopic(store, clock, retention_ms=5 * 24 * 3600 * 1000)
    for number in range(30):
        written.append(RowToWrite(b"x", timestamp_ms=clock.time_ms() + (number < 20) * 10**10))
    clock.advance(120)
    run("memory://test", once=True, store=store, clock=clock, settings=SMALL)
    log = GroupLog(store, "g", clock)
    join(log, "dead")
    commit(log, "dead", *(CommittedOffset("t", "id", number, 5) for number in range(7)))
    for member in ("dead", "stray"):
        store.put(member_key("g", member), b"1")
    store.put(PROBE_FOLDER + "left", b"x")
    clock.advance(8 * 24 * 3600)
    for _ in range(6):
        written.append(RowToWrite(b"y"))
    for number in range(5):
        store.put(f"topics/t/orphan-{number}.parquet", b"x")
    damaged = "topics/t/_deltaq/unreferenced/00000000000000000003"
    store.put(damaged, b"no note")
    lines = lines_of_a_dry_run(store, clock)
    assert "t: delete up to 30 files that are no longer in it" in lines
    assert "t: note 5 files that are not in it, to be deleted later" in lines
    assert "t: write a checkpoint of version 37" in lines
    assert any(line.startswith("t: let the log start at version ") for line in lines)
    assert any(line.startswith("t: merge ") for line in lines)
    assert "group g: forget 7 committed offsets" in lines
    assert "group g: delete up to 2 heartbeats of members that are gone" in lines
    assert "probes: delete 1 that were interrupted" in lines
    done = run("memory://test", once=True, store=store, clock=clock, settings=SMALL)
    assert (done["files deleted"], done["offsets forgotten"], done["probes deleted"]) == (30, 7, 1)
    assert done["heartbeats deleted"] == 2
    assert done["failures"] == 0


def test_a_dry_run_reports_the_objects_of_a_deleted_topic() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    written = WrittenTopic(store, clock)
    for _ in range(2):
        written.append(RowToWrite(b"x"))
    written.log.delete(float("inf"))
    clock.advance(3600)
    assert lines_of_a_dry_run(store, clock) == [
        "t: note 2 files that are not in it, to be deleted later"
    ]
    clock.advance(40 * 24 * 3600)
    assert lines_of_a_dry_run(store, clock) == [
        "t: note 2 files that are not in it, to be deleted later",
        "t: let the log start at version 3",
        "t: delete 3 log objects",
    ]
    done = run("memory://test", once=True, store=store, clock=clock, settings=SMALL)
    assert (done["files noted"], done["log objects deleted"]) == (2, 3)


def test_a_dry_run_without_due_work_reports_nothing() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    WrittenTopic(store, clock).append(RowToWrite(b"x"))
    store.put(PROBE_FOLDER + "under-way", b"x")
    log = GroupLog(store, "g", clock)
    store.put(member_key("g", "a"), b"1")
    join(log, "a")
    assert lines_of_a_dry_run(store, clock) == []


@pytest.mark.parametrize("argument", ["--once", "--dry-run"])
def test_an_empty_root_is_accepted_and_left_empty(
    tmp_path: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main([str(missing), argument]) == 0
    assert not missing.exists() or argument == "--once"
    assert "failure" not in capsys.readouterr().out


@pytest.mark.parametrize("argument", ["--once", "--dry-run"])
def test_a_root_without_topics_is_reported_as_possibly_mistyped(
    tmp_path: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "mistyped"), argument]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("there are no topics and no groups under file://")
    assert said[0].endswith("/mistyped")


@pytest.mark.parametrize("argument", ["--once", "--dry-run"])
def test_a_file_is_no_root(
    tmp_path: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert main([str(file), argument]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert str(file) in said.err
    assert len(said.err.splitlines()) == 1
    assert file.read_text() == "x"


@pytest.mark.parametrize("root", ["ftp://x/y", "s3://", ""])
def test_an_unusable_root_is_reported_in_one_line(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([root, "--once"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--interval", "0"],
        ["--interval", "nan"],
        ["--interval", "-1"],
        ["--interval", "x"],
        ["--set", "novalue"],
    ],
)
def test_a_wrong_argument_is_reported_before_any_work(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(tmp_path / "root"), "--once", *arguments] if arguments else []
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_setting_without_a_name_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--set", "store.region=x", "--set", "hunter2"])
    said = capsys.readouterr().err
    assert "setting 2 is not NAME=VALUE" in said
    assert "hunter2" not in said, "it might be a secret"


@pytest.mark.parametrize("setting", ["no.such.setting=1", "store.no.such=1"])
def test_an_unknown_setting_is_reported(
    tmp_path: Path, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--once", "--set", setting]) == 2
    assert setting.split("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_another_root_among_the_settings_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root, other = str(tmp_path / "root"), str(tmp_path / "other")
    assert main([root, "--once", "--set", f"{name}={other}"]) == 2
    said = capsys.readouterr().err
    assert f"{name} names another root" in said
    assert other not in said, "it might hold credentials"
    assert main([root, "--once", "--set", f"{name}={root}"]) == 0


def test_a_damaged_topic_does_not_stop_maintenance_of_the_others(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Topic("a-damaged-one", bootstrap_servers=str(root)).create()
    (root / "topics" / "a-damaged-one" / "_delta_log" / f"{0:020}.json").write_bytes(b"{}")
    assert main([str(root), "--once"]) == 1
    said = capsys.readouterr().out
    assert "a-damaged-one: " in said
    assert "40 files merged" in said
    assert "1 failures" in said


@pytest.mark.fault("W5")
def test_a_foreign_folder_is_left_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "topics" / "a folder").mkdir()
    (root / "topics" / "a folder" / "b.parquet").write_text("x")
    (root / "topics" / "empty").mkdir()
    assert main([str(root), "--once"]) == 0
    assert (root / "topics" / "a folder" / "b.parquet").read_text() == "x"


# --- as a service
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def service(root: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", "-m", "deltaq.maintenance", str(root), "--interval", "0.05"]
    environment = environment_of_child()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_service_goes_on_round_after_round_until_it_is_interrupted(
    service: subprocess.Popen[str], root: Path, by: signal.Signals
) -> None:
    assert service.stdout is not None
    lines: list[str] = []
    while sum(line.startswith("done: ") for line in lines) < 2:
        lines.append(service.stdout.readline())
        assert lines[-1], f"it ended: {lines}"
    with Producer(
        {"bootstrap.servers": str(root), "linger.ms": 0, "maintenance.enable": False}
    ) as producer:
        for number in range(40, 80):
            producer.produce("t", b"%d" % number)
            assert producer.flush(20) == 0
    while not any("merge" in line for line in lines[-3:]) or not lines[-1].startswith("done: "):
        lines.append(service.stdout.readline())
        assert lines[-1], f"it ended: {lines}"
    service.send_signal(by)
    _, errors = service.communicate(timeout=20)
    assert (service.returncode, errors) == (0, "")
    assert [message.value() for message in messages_of(str(root), "t")] == [
        b"%d" % number for number in range(80)
    ]


@pytest.mark.parametrize(("arguments", "status"), [(["--once"], 1), ([], 0)])
def test_a_job_that_is_interrupted_has_not_succeeded(
    arguments: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deltaq.maintenance.__main__.run", interrupted)
    assert main(["memory://test", *arguments]) == status


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["--once", "--dry-run", "--interval=0.05"])
def test_a_closed_output_pipe_ends_the_command_quietly(root: Path, argument: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "deltaq.maintenance", str(root), argument]
    environment = environment_of_child()
    ended = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, timeout=60
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


# --- as a function
# --------------------------------------------------------------------------------------------------


def test_run_returns_the_counts_of_its_work(root: Path) -> None:
    lines: list[str] = []
    done = run(root, once=True, notify=lines.append)
    assert (done["files merged"], done["failures"]) == (40, 0)
    assert lines
    assert run(root, once=True)["files merged"] == 0


@pytest.mark.parametrize("options", [{"conf": {"linger.ms.": 5}}, {"conf": {"store.x": 1}}])
def test_run_refuses_unusable_arguments(root: Path, options: dict[str, dict[str, int]]) -> None:
    with pytest.raises(InvalidConfig):
        run(root, once=True, conf=options["conf"])


def test_an_unanswering_store_is_reported_as_such() -> None:
    store = FaultyStore(MemoryStore("test"), Rule("*", "*", Fault.error_before(), times=None))
    with pytest.raises(Unavailable):
        run("memory://test", once=True, store=store)
    assert store.effects[Effect.ERROR_BEFORE] > 0


def test_a_store_failure_for_one_topic_is_retried_in_the_next_round() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    written = WrittenTopic(store, clock)
    for _ in range(8):
        written.append(RowToWrite(b"x"))
    faulty = FaultyStore(store, Rule("put", "*.parquet", Fault.error_before()), clock=clock)
    lines: list[str] = []
    maintenance = Maintenance(faulty, clock, SMALL, notify=lines.append)
    assert maintenance.round()["failures"] == 1
    assert faulty.effects[Effect.ERROR_BEFORE] == 1
    assert any(line.startswith("t: ") and "KafkaError" in line for line in lines)
    done = maintenance.round()
    assert (done["failures"], done["files merged"]) == (0, 8)


def test_an_unexpected_error_of_one_topic_is_reported_and_the_others_are_maintained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    Topic("a-strange-one", store=store, clock=clock).create()
    written = WrittenTopic(store, clock)
    for _ in range(8):
        written.append(RowToWrite(b"x"))
    works = TopicPass.run

    def run_or_fail(self: TopicPass) -> Counter[str]:
        if self._log.topic == "a-strange-one":
            raise ZeroDivisionError("a defect")
        return works(self)

    monkeypatch.setattr(TopicPass, "run", run_or_fail)
    lines: list[str] = []
    done = Maintenance(store, clock, SMALL, notify=lines.append).round()
    assert (done["failures"], done["files merged"]) == (1, 8)
    assert "a-strange-one: ZeroDivisionError: a defect" in lines
    assert [
        record.exc_info is not None
        for record in caplog.records
        if record.name == "deltaq.maintenance"
    ] == [True]


def test_a_stopped_run_does_not_begin_the_next_topic() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    written = WrittenTopic(store, clock)
    for _ in range(8):
        written.append(RowToWrite(b"x"))
    throttle = Throttle(clock)
    throttle.stop()
    with pytest.raises(Stopped):
        Maintenance(store, clock, SMALL, throttle).round()


@pytest.mark.parametrize(("minutes", "forgotten"), [(None, 0), (60, 1)])
def test_a_service_has_a_setting_for_the_offset_retention_of_empty_groups(
    minutes: int | None, forgotten: int
) -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    GroupLog(store, "g", clock).commit(None, [CommittedOffset("t", "id", 0, 5)], float("inf"))
    clock.advance(2 * 3600)
    conf = {} if minutes is None else {"offsets.retention.minutes": minutes}
    done = run("memory://test", once=True, store=store, clock=clock, conf=conf)
    assert done["offsets forgotten"] == forgotten


class Over(BaseException):
    """Ends a service that would go on for ever."""


class LastRounds(ManualClock):
    """The service is ended when it wants to rest for the third time."""

    rests = 0

    def sleep(self, seconds: float) -> None:
        self.rests += 1
        if self.rests == 3:
            raise Over
        self.advance(seconds)


def test_a_service_survives_a_store_outage() -> None:
    clock = LastRounds()
    store = MemoryStore("test", clock)
    written = WrittenTopic(store, clock)
    for _ in range(8):
        written.append(RowToWrite(b"x"))
    faulty = FaultyStore(
        store, Rule("list_folders", "*", Fault.error_before(), times=1), clock=clock
    )
    lines: list[str] = []
    with pytest.raises(Over):
        run("memory://test", store=faulty, clock=clock, settings=SMALL, notify=lines.append)
    assert faulty.effects[Effect.ERROR_BEFORE] == 1
    summaries = [line for line in lines if line.startswith("done: ")]
    assert summaries[0] == "done: 1 failures"
    assert "8 files merged" in summaries[1]
    assert any("_TRANSPORT" in line or "KafkaError" in line for line in lines[:1])
    assert not any("there are no topics" in line for line in lines)


def test_log_entries_go_after_a_wait_once_a_day_is_over() -> None:
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("test", clock)
    written = WrittenTopic(store, clock)
    for _ in range(30):
        written.append(RowToWrite(b"x"))
    run("memory://test", once=True, store=store, clock=clock, settings=SMALL)
    clock.advance(2 * 24 * 3600)
    for _ in range(3):
        written.append(RowToWrite(b"y"))
    lines: list[str] = []
    before = clock.monotonic()
    done = run(
        "memory://test", once=True, store=store, clock=clock, settings=SMALL, notify=lines.append
    )
    assert done["log objects deleted"] > 20
    assert any(line.startswith("waiting 60 s") for line in lines)
    assert clock.monotonic() - before >= DEFAULT_SETTINGS.clean_up_grace_s
    assert [message.offset() for message in messages_of(store, "t")] == list(range(33))
    with pytest.raises(KafkaException):
        Topic("t", bootstrap_servers="memory://test", store=store).to_arrow(start=99)
