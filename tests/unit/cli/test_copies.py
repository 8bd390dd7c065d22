"""`deltaq copy`, `backup` and `restore`. `tests/unit/tools/test_copying.py` has what a copy is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path

import pytest

from deltaq.store import forget_memory_store, open_store, serve_memory_store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
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


class Interrupted(ManualClock):
    """Does the next of these between two looks of a mirror, then interrupts it."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__(auto_advance=True)
        self._steps = iter(steps)

    def sleep(self, seconds: float) -> None:
        step = next(self._steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()
        super().sleep(seconds)


def test_a_mirror_follows_messages_topics_settings_and_groups_until_ctrl_c(orders: Shell) -> None:
    plain = copy(orders)

    def more_messages() -> None:
        plain("produce orders", b"three\nfour\n")
        plain("topics alter orders -c retention.bytes=1000000")

    def another_topic() -> None:
        plain("produce refunds --create", b"one\n")
        plain("groups reset-offsets billing --topic orders --to 3 --execute")

    mirror = Interrupted(more_messages, another_topic, lambda: mirror.advance(30))
    orders.clock = mirror
    assert orders(f"copy {ROOT} memory://mirror --groups --follow").printed(
        """
        TOPIC     COPIED
        orders         4
        payments       2
        refunds        1
        group billing: offsets copied
        """
    )
    assert plain("diff orders orders --right-root memory://mirror").printed("")
    assert plain("topics describe orders --root memory://mirror -o json").json["config"] == {
        "retention.bytes": "1000000"
    }
    assert plain("groups describe billing --root memory://mirror -o json").json["lag"] == 1
    orders.clock = Interrupted()
    assert orders(f"copy {ROOT} memory://mirror --follow -o json").json["topics"] == {
        "orders": 0,
        "payments": 0,
        "refunds": 0,
    }


def test_a_mirror_outlives_a_source_that_cannot_be_listed_for_a_while(orders: Shell) -> None:
    source, plain = FaultyStore(open_store(ROOT)), copy(orders)
    serve_memory_store("cli", source)

    def fail() -> None:
        plain("produce orders", b"three\n")
        source.add(Rule("list_folders", "*", Fault.error_before(), times=None))
        mirror.advance(30)

    def recover() -> None:
        source.clear()
        mirror.advance(30)

    mirror = Interrupted(fail, recover)
    orders.clock = mirror
    ended = orders(f"copy {ROOT} memory://mirror --groups --follow -o json")
    assert source.struck["error_before"] >= 2
    assert (ended.status, ended.json["topics"]["orders"], ended.json["failures"]) == (0, 3, {})


@pytest.mark.parametrize("command", ["backup s3://bucket/x", "restore s3://bucket/x"])
def test_a_backup_in_a_bucket_is_refused_with_the_command_for_that(
    orders: Shell, command: str
) -> None:
    ended = orders(command)
    assert (ended.status, ended.output) == (2, "")
    assert "deltaq copy --groups --schemas" in ended.errors


def test_a_topic_that_cannot_be_copied_is_named_and_the_others_are_copied(orders: Shell) -> None:
    orders("topics create orders --root memory://mirror")
    ended = orders(f"copy {ROOT} memory://mirror")
    assert (ended.status, ended.output.splitlines()[1:]) == (1, ["payments       2"])
    assert ended.errors.startswith(
        "deltaq: orders: topic 'orders' exists at the target and is no copy of this source"
    )
    assert orders(f"copy {ROOT} {ROOT}").refused("the source and the target are the same root", 2)


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("copy memory://cil memory://mirror", "* under memory://cil"),
        ("copy memory://cli memory://mirror -t 'zz*' -t 'y*'", "zz*, y* under memory://cli"),
        ("restore {folder} --root memory://mirror", "* under {folder}"),
    ],
)
def test_a_copy_of_nothing_is_no_success(
    orders: Shell, tmp_path: Path, command: str, where: str
) -> None:
    folder = tmp_path / "bakcup"
    reason = f"there is nothing to copy: no topic matches {where.format(folder=folder)}"
    assert orders(command.format(folder=folder)).refused(reason)


def test_a_backup_is_a_root_that_is_restored(orders: Shell, tmp_path: Path) -> None:
    assert "group billing: offsets copied" in orders(f"backup {tmp_path / 'backup'}").output
    assert orders(f"cat orders --root {tmp_path / 'backup'}").printed("one\ntwo\n")
    assert (
        orders(f"restore {tmp_path / 'backup'} --topic orders --root memory://mirror").status == 0
    )
    assert orders("diff orders orders --right-root memory://mirror").printed("")
    assert orders(f"restore {tmp_path / 'backup'}").status == 1


def test_settings_of_the_two_roots_are_kept_apart_and_secret(orders: Shell, tmp_path: Path) -> None:
    (tmp_path / "s3.properties").write_text(
        "store.secret_access_key = hush\nstore.endpoint = no-url\n"
    )
    ended = orders(f"copy {ROOT} s3://bucket/x --target-config {tmp_path / 's3.properties'}")
    assert ended.status == 2
    assert "hush" not in ended.output + ended.errors
    (tmp_path / "bad.properties").write_text("hush\n")
    ended = orders(f"copy {ROOT} memory://mirror --source-config {tmp_path / 'bad.properties'}")
    assert "--source-config" in ended.errors
    assert "hush" not in ended.errors
