"""Addresses of data files for Hadoop, and the errors of sessions that lack a file system."""

from __future__ import annotations

import pytest

from deltaq import Incompatible, InvalidConfig
from deltaq.spark.native_paths import file_path, hadoop_root, lacks_file_system


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("file:///data/a%20b", "file:///data/a b"),
        ("s3://bucket/prefix", "s3a://bucket/prefix"),
        ("gs://bucket", "gs://bucket"),
        ("az://box/some/prefix", "abfss://box@mine.dfs.core.windows.net/some/prefix"),
        ("az://box", "abfss://box@mine.dfs.core.windows.net"),
    ],
)
def test_a_root_has_the_scheme_that_hadoop_knows(url: str, address: str) -> None:
    assert hadoop_root(url, {"account_name": "mine"}) == address


def test_an_azure_container_without_its_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidConfig, match=r"set the option store\.account_name"):
        hadoop_root("az://box", {})
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "yours")
    assert hadoop_root("az://box", {}) == "abfss://box@yours.dfs.core.windows.net"


def test_characters_of_patterns_are_escaped() -> None:
    assert file_path("file:///a[1]{b}*", "topics/t/0a.parquet") == r"file:///a\[1\]\{b\}\*/topics/t/0a.parquet"


@pytest.mark.parametrize("name", ["_hidden.parquet", ".hidden.parquet", "a b.parquet", "ä.parquet"])
def test_a_name_that_spark_hides_or_changes_is_refused(name: str) -> None:
    with pytest.raises(Incompatible, match="read with format"):
        file_path("file:///data", f"topics/t/{name}")


def test_a_missing_file_system_is_reported_with_what_to_add() -> None:
    missing = RuntimeError("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found")
    error = lacks_file_system("s3a://bucket", missing)
    assert error is not None
    assert "add hadoop-aws" in str(error)
    assert lacks_file_system("s3a://bucket", RuntimeError("Access Denied")) is None
    assert lacks_file_system("file:///data", missing) is None
