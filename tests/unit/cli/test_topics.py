"""`deltaq topics`, verb by verb, and what all commands have in common."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from deltaq import Producer, Topic, __version__
from deltaq.clock import SYSTEM_CLOCK
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.names import topic_log
from deltaq.store import open_store
from deltaq.topics.holds import Hold, put_hold
from deltaq.topics.log import TopicLog
from deltaq.units import as_size
from tests.children import with_pandas
from tests.unit.cli.conftest import ROOT, Shell


def _produce(topic: str, count: int) -> None:
    with Producer(bootstrap_servers=ROOT, linger_ms=60_000) as producer:
        for number in range(count):
            producer.produce(
                topic,
                b"x" * 10,
                key=b"k",
                partition=number % 2,
                timestamp=1_700_000_000_000 + number,
            )


def test_topics_are_created_and_listed_with_their_size(deltaq: Shell) -> None:
    assert deltaq("topics create orders -p 3").printed(
        "topic orders was created with 3 partitions\n"
    )
    assert deltaq("topics create payments -c cleanup.policy=compact").printed(
        "topic payments was created with 1 partition\n"
    )
    _produce("orders", 1200)
    (size,) = [topic["bytes"] for topic in deltaq("topics list orders -o json").json]
    assert deltaq("topics list").printed(f"""
        TOPIC     PARTITIONS  MESSAGES     BYTES
        orders             3     1,200  {size / 1024:.3g} KiB
        payments           1         0       0 B
        """)
    assert deltaq("topics list 'pay*' -o json").json == [
        {"topic": "payments", "partitions": 1, "messages": 0, "bytes": 0}
    ]
    assert deltaq("topics list --names").printed("orders\npayments\n")
    assert deltaq("topics list --names -o json").json == ["orders", "payments"]


def test_an_existing_topic_is_created_again_only_if_that_is_accepted(deltaq: Shell) -> None:
    deltaq("topics create orders")
    assert deltaq("topics create orders").refused("topic 'orders' already exists")
    assert deltaq("topics create orders -p 7 --if-not-exists").printed("topic orders exists\n")
    assert deltaq("topics create refunds --dry-run").printed(
        "topic refunds can be created with 1 partition\n"
    )
    assert deltaq("topics list --names").printed("orders\n")


def test_a_topic_is_described_with_its_offsets_and_changed_settings(deltaq: Shell) -> None:
    deltaq("topics create orders -p 2 -c retention.ms=86400000 -c cleanup.policy=compact,delete")
    _produce("orders", 5)
    found = deltaq("topics describe orders -o json").json
    assert deltaq("topics describe orders").printed(f"""
        Topic     orders
        Topic id  {found["topic_id"]}
        Version   {found["version"]}
        Size      {as_size(found["bytes"])} in {"1 file" if found["files"] == 1 else f"{found['files']} files"}
        Values    bytes
        Settings  retention.ms=86400000, cleanup.policy=compact,delete

        PARTITION  START OFFSET  NEXT OFFSET  MESSAGES
        0                     0            3         3
        1                     0            2         2
        """)  # noqa: E501
    assert found["partitions"][1] == {
        "partition": 1,
        "start_offset": 0,
        "next_offset": 2,
        "messages": 2,
    }
    assert found["config"] == {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}
    assert found["schema"] is None
    assert found["holds"] == []


def test_the_holds_on_a_topic_are_described(deltaq: Shell) -> None:
    deltaq("topics create orders")
    topic_id = deltaq("topics describe orders -o json").json["topic_id"]
    time_ms = SYSTEM_CLOCK.time_ms() - 3 * 3600 * 1000
    for holder, of in (("views", topic_id), ("other", "earlier")):
        put_hold(open_store(ROOT), "orders", Hold(holder, of, (0,), None, time_ms))
    assert "Holds     views, 3 hours old\n" in deltaq("topics describe orders").output
    assert deltaq("topics describe orders -o json").json["holds"] == [
        {"holder": "views", "ends": [0], "starts": None, "time_ms": time_ms}
    ]


def test_the_columns_of_a_typed_topic_are_described(deltaq: Shell) -> None:
    Topic(
        "trades",
        pa.schema({"id": pa.int64(), "price": pa.float64()}),
        conf={"bootstrap.servers": ROOT},
    ).create()
    assert "Values    id: int64, price: double\n" in deltaq("topics describe trades").output
    schema = [{"name": "id", "type": "int64"}, {"name": "price", "type": "double"}]
    assert deltaq("topics describe trades -o json").json["schema"] == schema


def test_settings_are_altered_and_shown_with_their_defaults(deltaq: Shell) -> None:
    deltaq("topics create orders -c retention.ms=86400000")
    assert deltaq(
        "topics alter orders -c retention.bytes=5000 --delete-config retention.ms -p 4"
    ).printed("topic orders was altered\n")
    lines = deltaq("topics configs orders").output.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "DEFAULT"]
    assert ["retention.bytes", "5000"] in map(str.split, lines)
    assert ["retention.ms", "604800000", "yes"] in map(str.split, lines)
    assert len(deltaq("topics describe orders -o json").json["partitions"]) == 4
    assert {"setting": "retention.bytes", "value": "5000", "default": False} in deltaq(
        "topics configs orders -o json"
    ).json


def test_a_change_that_cannot_be_made_is_explained_in_one_line(deltaq: Shell) -> None:
    deltaq("topics create orders -p 2")
    refused = "The topic currently has 2 partition(s); 1 would not be an increase."
    assert deltaq("topics alter orders -p 1").refused(refused, 2)
    unknown = 'No such configuration property: "retention.mss"; did you mean "retention.ms"?'
    assert deltaq("topics alter orders -c retention.mss=1").refused(unknown, 2)
    assert deltaq("topics alter nothing -c retention.ms=1").refused(
        "topic 'nothing' does not exist"
    )
    assert "nothing to change: give --config" in deltaq("topics alter orders").errors
    assert (
        "--config 'retention.ms' is not NAME=VALUE"
        in deltaq("topics create x -c retention.ms").errors
    )


def test_topics_are_deleted_only_with_consent(deltaq: Shell) -> None:
    for topic in ("orders", "payments"):
        deltaq(f"topics create {topic}")
    asked = deltaq("topics delete orders")
    assert (asked.status, "add --yes" in asked.errors) == (2, True)
    ended = deltaq("topics delete --yes orders nothing payments")
    assert ended.output == "topic orders was deleted\ntopic payments was deleted\n"
    assert ended.refused("topic 'nothing' does not exist")
    assert deltaq("topics list -o json").json == []


def test_an_empty_list_says_whether_a_pattern_was_given(deltaq: Shell) -> None:
    assert f"no topics under {ROOT}" in deltaq("topics list").errors
    deltaq("topics create orders")
    assert f"no topic matches 'nosuch' under {ROOT}" in deltaq("topics list nosuch").errors


def test_a_topic_that_cannot_be_read_is_listed_with_its_error(deltaq: Shell) -> None:
    deltaq("topics create orders")
    open_store(ROOT).put("topics/broken/_delta_log/00000000000000000000.json", b"\x1b[2J{}")
    ended = deltaq("topics list -o json")
    broken, orders = ended.json
    assert (broken["topic"], orders["topic"], "error" in orders) == ("broken", "orders", False)
    assert "00000000000000000000.json" in broken["error"]
    assert ended.refused("1 of 2 topics cannot be read")
    assert "\x1b" not in deltaq("topics list").output


def test_options_before_the_command_apply_to_it(deltaq: Shell) -> None:
    deltaq("topics create orders")
    assert deltaq("-o json --root memory://other topics list").json == []
    assert deltaq("--root memory://other topics list --names --root memory://cli").printed(
        "orders\n"
    )


def test_a_missing_or_wrong_root_is_a_usage_error(
    deltaq: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deltaq("--root broker:9092 topics list").status == 2
    monkeypatch.delenv("DELTAQ_ROOT")
    reason = "no root: give --root or set DELTAQ_ROOT to a folder or URL"
    assert deltaq("topics list").refused(reason, 2)


@pytest.mark.parametrize(
    "option", ["-X secret-key", "-X store.secret_access_key=secret-key", "--command-config {file}"]
)
def test_a_setting_that_is_refused_is_not_shown(deltaq: Shell, option: str, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(
        "# of the team\n\nstore.acces_key_id = secret-key\n"
    )
    ended = deltaq(f"topics list {option.format(file=tmp_path / 'client.properties')}")
    assert ended.status == 2
    assert "secret-key" not in ended.errors + ended.output


def test_the_version_is_printed(deltaq: Shell) -> None:
    assert deltaq("--version").printed(f"deltaq {__version__}\n")


def _listing(root: Path) -> set[str]:
    """The modules that `topics list` loads, in a process of its own."""
    program = (
        "import sys; from deltaq.cli.program import run; "
        f"sys.exit(run(['topics', 'list', '--root', {str(root)!r}]) or print(*sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=with_pandas(),
    )
    assert answer.stdout.startswith("TOPIC")
    return set(answer.stdout.split())


def test_listing_topics_loads_no_library_that_it_does_not_need(tmp_path: Path) -> None:
    """That makes it quick: pyarrow, with numpy, takes as long as all the rest, and so does
    pandas.
    """
    Topic("orders", bootstrap_servers=str(tmp_path)).create()
    heavy = {
        "pandas",
        "polars",
        "duckdb",
        "obstore",
        "deltalake",
        "rich",
        "starlette",
        "openpyxl",
        "opentelemetry",
    }
    assert (
        _listing(tmp_path) & (heavy | {"pyarrow", "numpy", "deltaq.consumer", "deltaq.producer"})
        == set()
    )

    store = open_store(str(tmp_path))
    log = TopicLog(store, "orders")
    log.load()
    write_checkpoint(store, topic_log("orders"), log.state)
    # A checkpoint is Parquet.
    assert _listing(tmp_path) & (heavy | {"pyarrow", "pyarrow.compute"}) == {"pyarrow"}


def test_the_help_names_every_command_and_its_options(deltaq: Shell) -> None:
    assert all(
        f"\n  {verb} " in deltaq("topics --help").output
        for verb in ("list", "create", "alter", "delete")
    )
    assert "DELTAQ_ROOT" in deltaq("topics list --help").output


def test_the_help_speaks_of_what_a_user_types(deltaq: Shell) -> None:
    """Commands in the order of their subjects, each with a whole sentence; no types of Python."""
    commands = re.findall(
        r"^  ([a-z]+)  ", deltaq("--help").output.partition("Commands:")[2], re.MULTILINE
    )
    verbs = re.findall(
        r"^  ([a-z-]+)  ", deltaq("groups --help").output.partition("Commands:")[2], re.MULTILINE
    )
    assert (commands[:3], verbs) == (
        ["topics", "produce", "consume"],
        ["list", "describe", "delete", "reset-offsets"],
    )
    assert deltaq("groups --help").output.startswith(
        "Usage: deltaq groups [OPTIONS] COMMAND [ARGS]..."
    )
    assert deltaq("produce --help").output.startswith(
        "Usage: deltaq produce [OPTIONS] TOPIC [FILE]...\n"
    )
    assert deltaq("wc").errors.startswith("Usage: deltaq wc [OPTIONS] TOPIC...\n")
    for command in ("", "topics", "groups", *commands, *(f"groups {verb}" for verb in verbs)):
        page = deltaq(f"{command} --help").output
        assert not re.search(r"[{}]|<\w\w|\w[]\w]>|[a-z]\.\.\.$", page, re.MULTILINE), page


def test_the_examples_of_the_help_run(deltaq: Shell, tmp_path: Path) -> None:
    lines = re.findall(
        r"^    (.*deltaq .*)", deltaq("--help").output.partition("Examples:")[2], re.MULTILINE
    )
    assert len(lines) == 6
    for line in lines:
        _, _, command = line.rpartition("deltaq ") if " | " in line else line.partition("deltaq ")
        command = command.replace("--follow", "--timeout 0" if "tail" in command else "").replace(
            "./deltaq-data", ROOT
        )
        ended = deltaq(command.replace("s3://events/mirror", str(tmp_path)), b"anna:tea\n")
        assert ended.status == 0, (command, ended.errors)


def test_the_shell_completes_names_of_topics(
    deltaq: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("orders", "outbox", "payments"):
        deltaq(f"topics create {topic}")
    monkeypatch.setenv("_DELTAQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "deltaq topics describe o")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert deltaq("").output.split() == ["orders", "outbox"]


def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        program = [sys.executable, "-m", "deltaq.cli", "--root", str(tmp_path), "topics", "list"]
        ended = subprocess.run(
            program, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)


@pytest.mark.parametrize("command", ["create refunds", "alter orders"])
def test_a_number_of_partitions_that_no_topic_can_have_is_a_wrong_argument(
    deltaq: Shell, command: str
) -> None:
    deltaq("topics create orders")
    ended = deltaq(f"topics {command} -p 10001")
    assert (ended.status, ended.output) == (2, "")
    assert "out of expected range 1..10000" in ended.errors
