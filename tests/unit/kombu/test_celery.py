"""Celery apps with nothing but a broker URL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

import deltaq.kombu
from deltaq.store import forget_memory_store
from tests.doubles.reading import eventually

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def app_at(root: str) -> tuple[Celery, list[Any]]:
    """An app, and what its tasks note."""
    app = Celery("tests", broker_url=f"{deltaq.kombu.SCHEME}+{root}", set_as_current=False)
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=2)
    noted: list[Any] = []

    @app.task(name="note", shared=False)
    def note(what: Any) -> None:
        noted.append(what)

    @app.task(name="flaky", bind=True, shared=False, max_retries=3)
    def flaky(self: Any) -> None:
        noted.append(self.request.retries)
        if self.request.retries < 2:
            raise self.retry(countdown=0.05)

    return app, noted


@pytest.fixture(scope="module", autouse=True)
def no_logging() -> Iterator[None]:
    """A worker sets up the logging of its process, which other tests look at, unless a receiver of
    this signal does.
    """

    def leaves_it(**_: object) -> None:
        """Celery only asks whether there is a receiver."""

    setup_logging.connect(leaves_it)
    yield
    setup_logging.disconnect(leaves_it)


@pytest.fixture(scope="module", params=["solo", "threads"])
def worker(request: pytest.FixtureRequest) -> Iterator[tuple[Celery, list[Any]]]:
    """An app with a worker, which takes a while to end."""
    name = uuid.uuid4().hex
    app, noted = app_at(f"memory://{name}")
    with start_worker(app, pool=request.param, perform_ping_check=False, concurrency=2):
        yield app, noted
    forget_memory_store(name)


@pytest.fixture
def running(worker: tuple[Celery, list[Any]]) -> tuple[Celery, list[Any]]:
    worker[1].clear()
    return worker


def test_tasks_run_once_and_retries_come_with_their_countdown(
    running: tuple[Celery, list[Any]],
) -> None:
    app, noted = running
    for number in range(5):
        app.send_task("note", (f"n{number}",))
    eventually(lambda: len(noted) == 5)
    assert sorted(noted) == [f"n{number}" for number in range(5)]
    noted.clear()
    app.send_task("flaky")
    eventually(lambda: len(noted) == 3)
    assert noted == [0, 1, 2]


def test_a_task_waits_for_its_countdown_and_holds_up_no_other(
    running: tuple[Celery, list[Any]],
) -> None:
    app, noted = running
    app.send_task("note", ("later",), countdown=0.5)
    app.send_task("note", ("now",))
    eventually(lambda: len(noted) == 2)
    assert noted == ["now", "later"]


def test_a_worker_answers_to_inspect_and_to_control(running: tuple[Celery, list[Any]]) -> None:
    app, _ = running
    (answer,) = app.control.inspect(timeout=1).ping().values()
    assert answer == {"ok": "pong"}
    (limits,) = app.control.rate_limit("note", "100/s", reply=True, timeout=1)
    assert "new rate limit set successfully" in str(limits)


def test_a_worker_gives_back_what_is_not_due_when_it_ends(memory_root: str) -> None:
    app, noted = app_at(memory_root)
    app.send_task("note", ("a",), countdown=3600)
    with start_worker(app, pool="solo", perform_ping_check=False):
        eventually(lambda: app.control.inspect(timeout=0.5).scheduled())
    with app.connection_for_read() as connection, connection.channel() as channel:
        message = app.amqp.queues["celery"](channel).get()
        assert message.delivery_info["redelivered"] is True
    assert noted == []


APP = """
import os
from celery import Celery

app = Celery("app", broker_url=os.environ["BROKER"])
app.conf.task_acks_late = True


def note(*what):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{os.getpid()} {what}\\n")


@app.task
def child():
    note("child")


@app.task
def parent():
    note("parent")
    child.delay()
"""


@pytest.mark.slow
def test_an_app_with_processes_needs_only_the_broker_url(tmp_path: Path) -> None:
    """The scheme is known by the entry point of the installed package, which stands here in a
    folder of its own.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"]["kombu.serializers"].items()
    info = tmp_path / "announced-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[kombu.serializers]\n{name} = {target}\n")
    (tmp_path / "app.py").write_text(APP)
    notes = tmp_path / "notes"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "BROKER": f"deltaq://{tmp_path}/root",
        "NOTES": str(notes),
    }
    options = ["--pool=prefork", "--concurrency=2", "--loglevel=ERROR"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "app", "worker", *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        program = "import app; [app.parent.delay() for _ in range(4)]"
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
        eventually(lambda: notes.exists() and len(notes.read_text().splitlines()) == 8)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    lines = [line.split(maxsplit=1) for line in notes.read_text().splitlines()]
    assert sorted(what for _, what in lines) == ["('child',)"] * 4 + ["('parent',)"] * 4
    assert str(worker.pid) not in {pid for pid, _ in lines}
