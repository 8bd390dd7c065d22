"""The settings with which a session starts; no JVM is started."""

from __future__ import annotations

import os
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pyspark
import pytest

from deltaq import InvalidConfig
from deltaq.spark import spark_session
from deltaq.spark.session import REDACTION, choose_interpreter, native_delta_settings, session_settings
from deltaq.store.object_options import OPTIONS

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/spark-cluster.md"
VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture(autouse=True)
def no_interpreter_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests name one; what the product sets is undone too."""
    for variable in VARIABLES:
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


def test_spark_runs_the_python_of_the_session_unless_another_is_named() -> None:
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_python_named_by_the_environment_is_kept(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, python(tmp_path))
    choose_interpreter({})
    assert named() == {"PYSPARK_PYTHON": sys.executable} | {variable: python(tmp_path)}


def test_a_python_named_by_a_setting_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    choose_interpreter({"spark.pyspark.python": python(tmp_path)})
    assert named() == {"PYSPARK_PYTHON": python(tmp_path)}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_named_python_without_deltaq_is_refused_before_spark_starts(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, bare := python(tmp_path, "-I", "-S"))
    with pytest.raises(InvalidConfig, match=f"{variable} is '{bare}', which has no deltaq.*unset {variable}"):
        spark_session("none")
    assert named() == {variable: bare}


def test_a_named_python_that_does_not_run_is_refused_before_spark_starts() -> None:
    with pytest.raises(InvalidConfig, match="'/nowhere/python', which does not run as a Python"):
        spark_session("none", conf={"spark.pyspark.python": "/nowhere/python"})
    assert named() == {}


def test_the_jars_of_delta_are_those_of_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"delta-spark": "9.8.7"}.__getitem__)
    monkeypatch.setattr(pyspark, "__version__", "9.5.1")
    packages = native_delta_settings()["spark.jars.packages"]
    assert packages == "io.delta:delta-spark_9.5_2.13:9.8.7,io.delta:delta-storage:9.8.7"


def test_java_keeps_its_compiler_unless_a_quick_start_is_asked_for() -> None:
    usual = session_settings(native_delta=False, quick_start=False, conf={})
    quick = session_settings(native_delta=False, quick_start=True, conf={})
    assert not any("Java" in name for name in usual)
    assert quick.items() - usual.items() == {
        ("spark.driver.defaultJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    }


def test_a_setting_of_the_user_wins_and_a_list_gets_longer() -> None:
    conf = {"spark.ui.enabled": "true", "spark.sql.extensions": "mine"}
    settings = session_settings(native_delta=True, quick_start=False, conf=conf)
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,mine"
    assert session_settings(native_delta=False, quick_start=False, conf=conf)["spark.sql.extensions"] == "mine"


def test_native_delta_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(InvalidConfig, match=r"native_delta needs delta-spark.*\[spark\]"):
        spark_session("none", native_delta=True)


@pytest.mark.fault("K5")
def test_every_secret_option_of_a_store_has_a_name_that_spark_masks() -> None:
    secrets = {name for options in OPTIONS.values() for name, option in options.items() if option.secret}
    masked = re.compile(REDACTION["spark.redaction.regex"])
    assert {name for name in secrets if not masked.search(f"store.{name}")} == set()
    assert "secret_access_key" in secrets
    assert "spark.redaction.regex  " + REDACTION["spark.redaction.regex"] in GUIDE.read_text()
