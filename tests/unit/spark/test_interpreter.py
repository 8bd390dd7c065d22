"""The Python that runs Spark's workers; no JVM is started."""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext

from deltaq import InvalidConfig
from deltaq.spark import interpreter, spark_session
from deltaq.spark.interpreter import LAUNCHER, choose_interpreter

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
OTHERS = (
    "DELTAQ_SPARK_PYTHON",
    "MASTER",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_REMOTE",
)


@pytest.fixture(autouse=True)
def no_interpreter_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests name one; what the product sets is undone too. No JVM of another test is seen."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for variable in (*VARIABLES, *OTHERS):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def python(folder: Path, *options: str) -> str:
    """Another Python, which is this one, started with such options."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *options])} "$@"\n')
    program.chmod(0o755)
    return str(program)


def named() -> dict[str, str]:
    return {variable: os.environ[variable] for variable in VARIABLES if variable in os.environ}


def launched() -> bool:
    """Whether workers start through the launcher, with the Python of this process."""
    return (
        named() == {"PYSPARK_PYTHON": str(LAUNCHER)}
        and os.environ["DELTAQ_SPARK_PYTHON"] == sys.executable
    )


@pytest.mark.parametrize("conf", [{}, {"spark.master": "local"}, {"spark.master": "local[2]"}])
def test_workers_here_run_the_python_of_the_session_through_the_launcher(
    conf: dict[str, str],
) -> None:
    choose_interpreter(conf)
    assert launched()


@pytest.mark.parametrize(
    "master", ["spark://here:7077", "local-cluster[2,1,1024]", "yarn", "k8s://here"]
)
def test_workers_of_a_cluster_run_the_python_of_the_session_itself(master: str) -> None:
    choose_interpreter({})
    choose_interpreter({"spark.master": master})
    assert named() == {"PYSPARK_PYTHON": sys.executable}


@pytest.mark.parametrize("variable", OTHERS[1:])
def test_an_environment_that_may_name_other_machines_or_another_spark_needs_no_launcher(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/opt/spark")
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable}


def test_a_jvm_that_was_started_without_the_launcher_keeps_its_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", "running")
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable}
    monkeypatch.setattr(SparkContext, "_gateway", None)
    choose_interpreter({})
    assert not launched()  # named by now
    monkeypatch.delenv("PYSPARK_PYTHON")
    choose_interpreter({})
    monkeypatch.setattr(SparkContext, "_gateway", "running")
    choose_interpreter({})
    assert launched()


def test_a_pyspark_that_only_this_process_finds_needs_no_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site, "getsitepackages", list)
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable}


def test_a_launcher_that_lost_its_right_to_be_executed_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / LAUNCHER.name
    copy.write_bytes(LAUNCHER.read_bytes())
    monkeypatch.setattr(interpreter, "LAUNCHER", copy)
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable}


def test_paths_with_spaces_are_replaced_by_names_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks an unquoted shell whether its Python exists."""
    folder = tmp_path / "my programs"
    folder.mkdir()
    copy = folder / LAUNCHER.name
    copy.write_bytes(LAUNCHER.read_bytes())
    copy.chmod(0o755)
    monkeypatch.setattr(interpreter, "LAUNCHER", copy)
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable}
    with pytest.raises(
        InvalidConfig, match=r"PYSPARK_PYTHON cannot be '.*my programs/python'.*contains ' '"
    ):
        choose_interpreter({"spark.pyspark.python": python(folder)})
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(sys, "executable", python(folder))
    with pytest.raises(InvalidConfig, match="first on PATH"):
        choose_interpreter({})
    assert named() == {}
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": "python"}


def launch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "DELTAQ_SPARK_PYTHON": sys.executable, **environment}
    return subprocess.run(
        [str(LAUNCHER), *arguments], env=everything, capture_output=True, text=True, check=False
    )


def test_the_launcher_drops_the_archives_of_spark_and_nothing_else() -> None:
    spark = Path(pyspark.__file__).parent
    (jar,) = spark.glob("jars/spark-core_*.jar")
    archives = [str(jar), *map(str, spark.glob("python/lib/*.zip"))]
    assert len(archives) == 3
    mine = ["/a folder", "/b/*", "", "/c/mine.zip"]
    shown = launch(
        "-c", "import os; print(os.environ['PYTHONPATH'])", PYTHONPATH=":".join([*archives, *mine])
    )
    assert shown.stdout == ":".join(mine) + "\n"


@pytest.mark.parametrize("path", ["", None])
def test_the_launcher_runs_without_a_path_too(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    shown = launch("-c", "print('runs')", **({} if path is None else {"PYTHONPATH": path}))
    assert (shown.stdout, shown.stderr) == ("runs\n", "")


def test_the_launcher_becomes_the_python_with_its_arguments_and_status() -> None:
    program = (
        "import sys; print(sys.executable, sys.argv[1:], sys.flags.dont_write_bytecode); "
        "sys.exit(3)"
    )
    shown = launch("-B", "-c", program, "two words", "*", "")
    assert (shown.stdout, shown.returncode) == (f"{sys.executable} ['two words', '*', ''] 1\n", 3)


def test_the_daemon_of_the_launcher_is_that_of_spark_with_a_quiet_end(tmp_path: Path) -> None:
    """A process whose socket Spark has closed ends without a traceback."""
    package = tmp_path / "pyspark"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("daemon.py").write_text(
        "import sys\n"
        "def worker(sock, authenticated):\n    raise BrokenPipeError\n"
        "def manager():\n    print(sys.argv[1:], sys.path[0], flush=True)\n    worker(None, True)\n"
    )
    shown = launch("-m", "pyspark.daemon", "pyspark.worker", PYTHONPATH=str(tmp_path))
    assert (shown.stdout, shown.stderr, shown.returncode) == (
        f"['pyspark.worker'] {Path.cwd()}\n",
        "",
        0,
    )


def test_the_launcher_without_a_python_says_which_variable_is_missing() -> None:
    shown = launch("-c", "", DELTAQ_SPARK_PYTHON="")
    assert shown.returncode != 0
    assert "DELTAQ_SPARK_PYTHON: names the Python" in shown.stderr


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_python_named_by_the_environment_is_kept(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, python(tmp_path))
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable} | {variable: python(tmp_path)}


def test_a_python_named_by_a_setting_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    choose_interpreter({"spark.pyspark.python": python(tmp_path)})
    assert named() == {"PYSPARK_PYTHON": python(tmp_path)}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_named_python_without_deltaq_is_refused_before_spark_starts(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, bare := python(tmp_path, "-I", "-S"))
    with pytest.raises(
        InvalidConfig, match=f"{variable} is '{bare}', which has no deltaq.*unset {variable}"
    ):
        spark_session("none")
    assert named() == {variable: bare}


def test_a_named_python_that_does_not_run_is_refused_before_spark_starts() -> None:
    with pytest.raises(InvalidConfig, match="'/nowhere/python', which does not run as a Python"):
        spark_session("none", conf={"spark.pyspark.python": "/nowhere/python"})
    assert named() == {}
