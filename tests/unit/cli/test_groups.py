"""`deltaq groups`, verb by verb."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaq import Consumer, Producer, TopicPartition
from deltaq.names import log_entry, topic_log
from deltaq.store import open_store
from tests.doubles.hostile_names import (
    MARKUP,
    column_names,
    write_assignors,
    write_columns,
    write_names,
)
from tests.unit.cli.conftest import ROOT, Shell

T0 = 1_700_000_000_000


@pytest.fixture
def billing(deltaq: Shell) -> Shell:
    """A group that has read one message of partition 0 and all two of partition 1, of five
    messages.
    """
    deltaq("topics create orders -p 2")
    with Producer(bootstrap_servers=ROOT) as producer:
        for number in range(5):
            producer.produce("orders", b"x", partition=number % 2, timestamp=T0 + 1000 * number)
    with Consumer(bootstrap_servers=ROOT, group_id="billing") as consumer:
        consumer.commit(
            offsets=[TopicPartition("orders", 0, 1), TopicPartition("orders", 1, 2)],
            asynchronous=False,
        )
    return deltaq


def test_groups_are_listed_with_their_lag(billing: Shell) -> None:
    assert billing("groups list").printed("""
        GROUP    TYPE      STATE  LAG  TOPICS
        billing  consumer  EMPTY    2  orders
        """)
    assert billing("groups list -o json").json == [
        {"group": "billing", "type": "consumer", "state": "EMPTY", "lag": 2, "topics": ["orders"]}
    ]


def test_an_unknown_lag_is_no_number(billing: Shell) -> None:
    with Consumer(bootstrap_servers=ROOT, group_id="partly") as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 1, 2)], asynchronous=False)
        consumer.subscribe(["orders"])
        consumer.poll(0.1)
        assert billing("groups list").printed("""
            GROUP    TYPE      STATE   LAG  TOPICS
            billing  consumer  EMPTY     2  orders
            partly   consumer  STABLE    -  orders
            """)
        assert [group["lag"] for group in billing("groups list -o json").json] == [2, None]
        described = billing("groups describe partly -o json").json
        assert (described["lag"], [part["lag"] for part in described["partitions"]]) == (
            None,
            [None, 0],
        )
        assert "partly     -" in billing("top --rounds 1").output


def test_a_group_is_described_by_partition(billing: Shell) -> None:
    assert billing("groups describe billing").printed("""
        Group     billing
        State     EMPTY
        Assignor  none
        Lag       2

        TOPIC   PARTITION  COMMITTED  START OFFSET  END OFFSET  LAG  MEMBER
        orders  0                  1             0           3    2
        orders  1                  2             0           2    0
        """)
    assert billing("groups describe nothing").refused("group 'nothing' does not exist")


def test_members_are_described_with_their_partitions(billing: Shell) -> None:
    with Consumer(bootstrap_servers=ROOT, group_id="billing", client_id="till") as consumer:
        consumer.subscribe(["orders"])
        assert consumer.poll(30) is not None
        found = billing("groups describe billing -o json").json
        (member,) = found["members"]
        assert (member["client"], member["partitions"]) == ("till", ["orders:0", "orders:1"])
        assert {part["member"] for part in found["partitions"]} == {member["member"]}
        table = billing("groups describe billing").output
        assert table.splitlines()[-2].split() == [
            "MEMBER",
            "CLIENT",
            "HOST",
            "INSTANCE",
            "PARTITIONS",
        ]
        assert table.splitlines()[-1].endswith("orders:0, orders:1")
        refused = billing("groups reset-offsets billing --to-latest --execute")
        assert (refused.status, "has members, and only they commit" in refused.errors) == (1, True)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("--to-earliest", [0, 0]),
        ("--to-latest", [3, 2]),
        ("--to -1", [2, 1]),
        ("--to 2", [2, 2]),
        ("--to @1700000002000", [1, 1]),
        ("--to 2030-01-01", [3, 2]),
        ("--shift-by 1", [2, 2]),
        ("--shift-by -1", [0, 1]),
    ],
)
def test_offsets_are_reset_only_when_that_is_executed(
    billing: Shell, target: str, expected: list[int]
) -> None:
    dry = billing(f"groups reset-offsets billing {target} -o json")
    assert [row["new_offset"] for row in dry.json] == expected
    assert dry.errors == "deltaq: dry run: nothing was changed; add --execute\n"
    assert _committed(billing) == [1, 2]
    assert billing(f"groups reset-offsets billing {target} --execute").errors == ""
    assert _committed(billing) == expected


def _committed(shell: Shell, group: str = "billing") -> list[int]:
    return [
        part["committed"] for part in shell(f"groups describe {group} -o json").json["partitions"]
    ]


def test_a_reset_is_shown_as_a_table(billing: Shell) -> None:
    assert billing("groups reset-offsets billing --to-earliest --execute").printed("""
        TOPIC   PARTITION  COMMITTED  NEW OFFSET  LAG
        orders  0                  1           0    3
        orders  1                  2           0    2
        """)


def test_nothing_is_committed_where_the_export_cannot_be_written(
    billing: Shell, tmp_path: Path
) -> None:
    before = billing("groups describe billing -o json").json
    ended = billing(
        "groups reset-offsets billing --to-latest --execute --export "
        f"{tmp_path / 'nothing' / 'file'}"
    )
    assert (ended.status, ended.output) == (2, "")
    assert billing("groups describe billing -o json").json == before


def test_resets_are_exported_and_read_back(billing: Shell, tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    billing(f"groups reset-offsets billing --to-latest --export {path}")
    assert path.read_text() == "orders,0,3\norders,1,2\n"
    billing(f"groups reset-offsets other --from-file {path} --execute")
    assert _committed(billing, "other") == [3, 2]
    for text in ("orders,0\n", f"{'o' * 200_000},0,1\n"):
        path.write_text(text)
        assert (
            "not lines of topic,partition,offset"
            in billing(f"groups reset-offsets other --from-file {path}").errors
        )
    for partition in (7, -1):
        path.write_text(f"orders,{partition},1\n")
        reason = f"partition {partition} of topic 'orders' does not exist"
        assert billing(f"groups reset-offsets other --from-file {path}").refused(reason)


def test_a_reset_without_a_target_or_a_topic_is_explained(billing: Shell) -> None:
    assert "say where to: one of --to" in billing("groups reset-offsets billing").errors
    assert (
        "say where to: one of --to"
        in billing("groups reset-offsets billing --to 1 --to-latest").errors
    )
    assert (
        "name the topics to begin with by --topic"
        in billing("groups reset-offsets new --to-latest").errors
    )
    billing("groups reset-offsets new --topic orders --to-latest --execute")
    assert _committed(billing, "new") == [3, 2]


def test_groups_are_deleted_only_with_consent(billing: Shell) -> None:
    assert "add --yes" in billing("groups delete billing").errors
    ended = billing("groups delete billing nothing --yes")
    assert (ended.status, ended.output) == (1, "group billing was deleted\n")
    assert billing("groups list -o json").json == []


def test_a_group_whose_topic_cannot_be_read_does_not_hide_the_others(billing: Shell) -> None:
    billing("topics create payments")
    billing("groups reset-offsets audit --topic payments --to-latest --execute")
    before = billing("groups list -o json").json
    open_store(ROOT).put(log_entry(topic_log("payments"), 0), b"damaged")
    ended = billing("groups list -o json")
    assert (ended.status, ended.errors) == (1, "deltaq: the lag of 1 of 2 groups cannot be read\n")
    assert [row for row in ended.json if "error" not in row] == before[1:]
    assert "topics/payments" in ended.json[0]["error"]
    assert "payments" in billing("groups list").output.splitlines()[1]
    doctor = billing("doctor")
    assert doctor.status == 1
    assert "KafkaError" not in doctor.output


def test_what_members_and_settings_say_is_shown_as_text_and_comes_back_as_json(
    deltaq: Shell,
) -> None:
    write_names(ROOT, MARKUP)
    members = deltaq("groups describe g -o json").json["members"]
    assert {(m["client"], m["host"], m["instance"][: len(m["client"])]) for m in members} == {
        (p, p, p) for p in MARKUP
    }
    invalid = [f"topics describe settings-{number}" for number in range(len(MARKUP))]
    for command in ("groups describe g", "groups list", "topics list", "doctor", *invalid):
        ended = deltaq(command)
        shown = ended.output + ended.errors
        assert len(shown) > 20
        assert not {char for char in shown if not char.isprintable() and char != "\n"}, command
        assert "data: forged" not in shown.splitlines()
    for command in ("groups list", "topics list", "doctor"):
        assert deltaq(f"{command} -o json").json
    assert all("retention.ms" in deltaq(f"{command} -o json").errors for command in invalid)


def test_names_of_columns_and_assignors_are_shown_as_text_and_come_back_as_json(
    deltaq: Shell,
) -> None:
    names = column_names([*MARKUP, "\x9b31mred", "\u202ediv"])
    write_columns(ROOT, "typed", names)
    write_assignors(ROOT, MARKUP)
    groups = [f"groups describe assignor-{number}" for number in range(len(MARKUP))]
    sql = "sql 'select * from typed'"
    for command in (
        "topics describe typed",
        "cat typed --table",
        "cat typed",
        "stat typed",
        sql,
        *groups,
    ):
        shown = deltaq(command, terminal=True).output
        assert len(shown) > 20, command
        plain = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")  # bold headings
        assert [char for char in plain if not char.isprintable() and char != "\n"] == [], command
    assert [
        column["name"] for column in deltaq("topics describe typed -o json").json["schema"]
    ] == names
    assert deltaq("cat typed -o json").json["value"] == {name: {name: "x"} for name in names}
    assert [deltaq(f"{command} -o json").json["assignor"] for command in groups] == [*MARKUP]
