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
from deltaq.spark.session import REDACTION, local_sockets, native_delta_settings, session_settings
from deltaq.store.object_options import OPTIONS

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/spark-cluster.md"


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
    sockets = "spark.python.unix.domain.socket.enabled"
    assert session_settings(native_delta=False, quick_start=False, conf={})[sockets] == "true"
    conf = {"spark.ui.enabled": "true", sockets: "false", "spark.sql.extensions": "mine"}
    settings = session_settings(native_delta=True, quick_start=False, conf=conf)
    assert (settings["spark.ui.enabled"], settings[sockets]) == ("true", "false")
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,mine"
    assert session_settings(native_delta=False, quick_start=False, conf=conf)["spark.sql.extensions"] == "mine"


def test_sockets_are_files_where_their_paths_are_short_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a longer path Spark would not start: the name of a socket has at most 104 bytes, 43 of them Spark's."""
    name = "spark.python.unix.domain.socket"
    monkeypatch.setattr(tempfile, "tempdir", "/" + 59 * "t")
    assert local_sockets({}) == {f"{name}.enabled": "true", f"{name}.dir": "/" + 59 * "t"}
    monkeypatch.setattr(tempfile, "tempdir", "/" + 30 * "ä")
    assert local_sockets({}) == {}


@pytest.mark.parametrize(("master", "is_local"), [("local[2]", True), ("yarn", False), ("local-cluster[2,1,1]", False)])
def test_executors_on_a_cluster_talk_as_spark_has_it(master: str, is_local: bool) -> None:
    """The folder for temporary files of the driver may not exist there, and that of an executor may be too deep."""
    assert bool(local_sockets({"spark.master": master})) is is_local


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
