"""The settings with which a session starts; no JVM is started."""

from __future__ import annotations

import re
import tempfile
from importlib import metadata
from pathlib import Path

import pyspark
import pytest

from deltaq import InvalidConfig
from deltaq.spark import spark_session
from deltaq.spark.interpreter import LAUNCHER
from deltaq.spark.session import (
    REDACTION,
    _socket_folder,
    native_delta_settings,
    session_settings,
    socket_settings,
)
from deltaq.store.object_options import OPTIONS

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/spark-cluster.md"


def test_the_jars_of_delta_are_those_of_the_installed_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert (
        session_settings(native_delta=False, quick_start=False, conf=conf)["spark.sql.extensions"]
        == "mine"
    )


def test_sockets_are_files_where_their_paths_are_short_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a longer path Spark would not start: the name of a socket has at most 104 bytes, 43 of
    them Spark's.
    """
    name = "spark.python.unix.domain.socket"
    for folder, is_short in ((Path("/tmp"), True), (tmp_path / (60 * "t"), False)):
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        _socket_folder.cache_clear()
        settings = socket_settings()
        assert settings.get(f"{name}.enabled") == ("true" if is_short else None)
        assert not is_short or Path(settings[f"{name}.dir"]).parent == folder
    _socket_folder.cache_clear()


def test_sockets_are_set_where_the_launcher_starts_the_workers_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def enabled(**conf: str) -> str | None:
        given = {f"spark.python.unix.domain.socket.{name}": value for name, value in conf.items()}
        settings = session_settings(native_delta=False, quick_start=False, conf=given)
        return settings.get("spark.python.unix.domain.socket.enabled")

    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert enabled() is None
    monkeypatch.setenv("PYSPARK_PYTHON", str(LAUNCHER))
    assert (enabled(), enabled(enabled="false")) == ("true", "false")
    _socket_folder.cache_clear()


def test_native_delta_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(InvalidConfig, match=r"native_delta needs delta-spark.*\[spark\]"):
        spark_session("none", native_delta=True)


@pytest.mark.fault("K5")
def test_every_secret_option_of_a_store_has_a_name_that_spark_masks() -> None:
    secrets = {
        name for options in OPTIONS.values() for name, option in options.items() if option.secret
    }
    masked = re.compile(REDACTION["spark.redaction.regex"])
    assert {name for name in secrets if not masked.search(f"store.{name}")} == set()
    assert "secret_access_key" in secrets
    assert "spark.redaction.regex  " + REDACTION["spark.redaction.regex"] in GUIDE.read_text()
