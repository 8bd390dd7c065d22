"""`deltaq copy`, `backup` and `restore`. `tests/unit/tools/test_copying.py` has what a copy is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaq.store import forget_memory_store
from tests.unit.cli.conftest import ROOT, Shell


@pytest.fixture
def orders(deltaq: Shell) -> Iterator[Shell]:
    """Two topics with messages, and a group that has read one of them."""
    for topic in ("orders", "payments"):
        deltaq(f"produce {topic} --create", b"one\ntwo\n")
    deltaq("groups reset-offsets billing --topic orders --to 1 --execute")
    yield deltaq
    forget_memory_store("mirror")


def test_topics_and_groups_are_copied_and_continued(orders: Shell) -> None:
    command = f"copy {ROOT} memory://mirror --groups"
    assert orders(command).printed(
        """
        TOPIC     COPIED
        orders         2
        payments       2
        group billing: offsets copied
        """
    )
    orders("produce orders", b"three\n")
    assert orders(f"{command} -t 'ord*' -o json").json == {
        "topics": {"orders": 1},
        "groups": ["billing"],
        "schemas": 0,
        "failures": {},
    }
    assert orders("diff orders orders --right-root memory://mirror").printed("")
    assert orders("groups describe billing --root memory://mirror -o json").json["lag"] == 2


def test_a_topic_that_cannot_be_copied_is_named_and_the_others_are_copied(orders: Shell) -> None:
    orders("topics create orders --root memory://mirror")
    ended = orders(f"copy {ROOT} memory://mirror")
    assert (ended.status, ended.output.splitlines()[1:]) == (1, ["payments       2"])
    assert ended.errors.startswith("deltaq: orders: topic 'orders' exists at the target and is no copy of this source")
    assert orders(f"copy {ROOT} {ROOT}").refused("the source and the target are the same root", 2)


def test_a_backup_is_a_root_that_is_restored(orders: Shell, tmp_path: Path) -> None:
    assert "group billing: offsets copied" in orders(f"backup {tmp_path / 'backup'}").output
    assert orders(f"cat orders --root {tmp_path / 'backup'}").printed("one\ntwo\n")
    assert orders(f"restore {tmp_path / 'backup'} --topic orders --root memory://mirror").status == 0
    assert orders("diff orders orders --right-root memory://mirror").printed("")
    assert orders(f"restore {tmp_path / 'backup'}").status == 1


def test_settings_of_the_two_roots_are_kept_apart_and_secret(orders: Shell, tmp_path: Path) -> None:
    (tmp_path / "s3.properties").write_text("store.secret_access_key = hush\nstore.endpoint = no-url\n")
    ended = orders(f"copy {ROOT} s3://bucket/x --target-config {tmp_path / 's3.properties'}")
    assert ended.status == 2
    assert "hush" not in ended.output + ended.errors
    (tmp_path / "bad.properties").write_text("hush\n")
    ended = orders(f"copy {ROOT} memory://mirror --source-config {tmp_path / 'bad.properties'}")
    assert "--source-config" in ended.errors
    assert "hush" not in ended.errors
