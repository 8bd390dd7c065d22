"""What all tests share: what cannot run here is left out and said aloud, and how hypothesis looks
for examples.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from deltaq.store import forget_memory_store, inotify, open_store
from examples.replicas.postgres import NoPostgres, find_programs
from tests.children import WITHOUT_NUMPY, with_pandas
from tests.depth import LONG, depth
from tests.examples.browser import find_chromium
from tests.spark.maven_central import lack_of_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if importlib.util.find_spec("pyspark") is not None:
    from tests.spark.class_archive import USE_ARCHIVE

    if USE_ARCHIVE not in (given := os.environ.get("SPARK_SUBMIT_OPTS", "")):
        # Also for the programs that tests start.
        os.environ["SPARK_SUBMIT_OPTS"] = f"{given} {USE_ARCHIVE}".strip()

REPOSITORY = Path(__file__).resolve().parents[1]

QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of Java for programs that end soon: they would spend a third of their time in the
optimizing compiler.
"""

SPARK_OF_TESTS = {
    "spark.master": "local[2]",
    "spark.log.level": "ERROR",
    # To compile a plan takes longer than to interpret it on few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # The default starts a process for each file of a checkpoint, to ask whether the file is a link.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

# How long one example takes says something about the machine, not about deltaq.
settings.register_profile(
    "deltaq",
    max_examples=depth(40, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
# For `make fast`: --hypothesis-profile=few.
settings.register_profile("few", settings.get_profile("deltaq"), max_examples=10)
settings.load_profile("deltaq")


@functools.cache
def java_version() -> int:
    """Major version of the Java that Spark would start; 0 if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if java is None:
        return 0
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.search(r'version "(\d+)', answer)
    return int(version[1]) if version else 0


def has_postgres() -> bool:
    """Whether the tests of the replicas can start a PostgreSQL server."""
    try:
        find_programs()
    except NoPostgres:
        return False
    return True


@dataclass(frozen=True)
class Need:
    """What the tests with a marker cannot run without, and how the reader of the report can supply
    it.
    """

    marker: str
    what: str
    remedy: str
    is_met: Callable[[pytest.Config], bool]


NEEDS = (
    Need(
        "spark",
        "Java 17 or newer",
        "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17",
        lambda config: java_version() >= 17,
    ),
    Need(
        "postgres",
        "a PostgreSQL server",
        "Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17",
        lambda config: has_postgres(),
    ),
    Need(
        "chromium",
        "Chromium",
        "Debian: apt-get install chromium; elsewhere a chromium or google-chrome on the path",
        lambda config: find_chromium() is not None,
    ),
    Need(
        "s3_server",
        "an S3 server",
        "make test-minio; or set DELTAQ_TEST_S3_ENDPOINT, DELTAQ_TEST_S3_BUCKET and the usual AWS_*"
        " credentials",
        lambda config: bool(os.environ.get("DELTAQ_TEST_S3_ENDPOINT")),
    ),
    Need(
        "inotify",
        "inotify, which only Linux has",
        "elsewhere readers poll, and the contract of stores is what holds there",
        lambda config: inotify.is_supported(),
    ),
    Need(
        "long",
        "ten seconds and more each",
        "make test-long",
        lambda config: LONG or "long" in config.option.markexpr,
    ),
    Need(
        "soak",
        "minutes of time",
        "run them with: pytest -m soak",
        lambda config: "soak" in config.option.markexpr,
    ),
)


@pytest.fixture
def s3_server_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fresh root on the S3 server that the environment names, reachable from child processes too;
    emptied afterwards. In no folder that tests share: a server on a file system refuses writes to
    one that is being emptied.
    """
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["DELTAQ_TEST_S3_ENDPOINT"])
    root = f"s3://{os.environ['DELTAQ_TEST_S3_BUCKET']}/deltaq-test-{uuid.uuid4().hex}"
    yield root
    store = open_store(root)
    for entry in list(store.list("")):
        store.delete(entry.key)


@pytest.fixture
def memory_root() -> Iterator[str]:
    """A fresh root in this process."""
    name = uuid.uuid4().hex
    yield f"memory://{name}"
    forget_memory_store(name)


@pytest.fixture
def local_root(tmp_path: Path) -> str:
    """A fresh root in a folder, which is not there yet."""
    return str(tmp_path / "root")


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """The environment of processes that must find deltaq and pyspark_deltaq, such as Spark's
    drivers and workers. Some of pyspark's functions need pandas.
    """
    return {**with_pandas(), "JDK_JAVA_OPTIONS": QUICK_JAVA}


@pytest.fixture(scope="session")
def lack_of_native_delta() -> str | None:
    """Why Spark cannot have the jars of its own Delta; None if it can."""
    from deltaq.spark.session import native_delta_settings  # most tests run where there is no Spark

    artifact, version = native_delta_settings()["spark.jars.packages"].split(",")[0].split(":")[1:]
    return lack_of_jar("io.delta", artifact, version)


@pytest.fixture(scope="session")
def spark(
    child_environment: dict[str, str], lack_of_native_delta: str | None
) -> Iterator[SparkSession]:
    """One Spark for all tests that need it, with its own Delta where that can be had."""
    from deltaq.spark import spark_session  # as above

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", child_environment["PYTHONPATH"])
        session = spark_session(
            "tests", native_delta=not lack_of_native_delta, quick_start=True, conf=SPARK_OF_TESTS
        )
        yield session
        session.stop()


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("numprocesses", None):  # the workers of pytest-xdist need both
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [WITHOUT_NUMPY, os.environ.get("PYTHONPATH")])
        )
    # A job that a script starts in the background, or under nohup, ignores SIGINT, and so do its
    # children. The tests of Ctrl-C and the programs that they start need Python's own handler.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, which takes a third of the time, and keep it off what was
    collected.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


STARTS_A_SERVER = {"spark", "postgres"}
"""Fixtures of a session."""

NOT_RUN = pytest.StashKey[dict[str, int]]()  # marker -> number of tests left out


@pytest.hookimpl(trylast=True)  # after -m and -k, so that only what was asked for is counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = {marker.name for item in items for marker in item.iter_markers()}
    unmet = [need.marker for need in NEEDS if need.marker in wanted and not need.is_met(config)]
    lacking = {
        item: marker
        for item in items
        if (marker := next(filter(item.get_closest_marker, unmet), None))
    }
    items[:] = [item for item in items if item not in lacking]
    config.hook.pytest_deselected(items=list(lacking))
    # First and one after the other, these tests run in one worker: each worker would start servers
    # of its own.
    items.sort(key=lambda item: STARTS_A_SERVER.isdisjoint(getattr(item, "fixturenames", ())))
    config.stash[NOT_RUN] = dict(Counter(lacking.values()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    # With pytest-xdist the tests are collected in the workers and the report is written elsewhere.
    worker_output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if worker_output is not None:
        worker_output["deltaq_not_run"] = session.config.stash.get(NOT_RUN, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Every worker collects everything: the counts are the same, not parts of a sum. A worker that
    # crashed has none.
    if hasattr(node, "workeroutput"):
        node.config.stash[NOT_RUN] = node.workeroutput["deltaq_not_run"]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    not_run = config.stash.get(NOT_RUN, {})
    for need in NEEDS:
        if count := not_run.get(need.marker):
            tests = "1 test needs" if count == 1 else f"{count} tests need"
            terminalreporter.write_line(
                f"NOT RUN: {tests} {need.what} ({need.remedy})", yellow=True
            )
