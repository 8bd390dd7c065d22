"""`deltaq queues`, verb by verb."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deltaq import AdminClient, Consumer, Producer, ShareConsumer, TopicPartition
from tests.doubles.sharing import set_group
from tests.unit.cli.conftest import ROOT, Shell


@pytest.fixture
def mails(deltaq: Shell) -> Shell:
    """A group that has accepted two of six messages of one partition, and given back one."""
    deltaq("topics create orders -p 1")
    with ShareConsumer(bootstrap_servers=ROOT, group_id="mails") as worker:
        worker.subscribe(["orders"])
        worker.poll(0)  # it begins with new messages
    with Producer(bootstrap_servers=ROOT) as producer:
        for _ in range(6):
            producer.produce("orders", b"x")
    with ShareConsumer(bootstrap_servers=ROOT, group_id="mails", max_poll_records=3) as worker:
        worker.subscribe(["orders"])
        worker.release(worker.poll(20)[1], delay=3600)
        worker.commit_sync()
    return deltaq


def test_share_groups_are_listed_with_their_lag(mails: Shell) -> None:
    (found,) = mails("queues list -o json").json
    oldest_ms = found.pop("oldest_ms")
    assert found == {"group": "mails", "state": "EMPTY", "lag": 4, "topics": ["orders"]}
    with Consumer(bootstrap_servers=ROOT, group_id="reader") as reader:
        reader.assign([TopicPartition("orders", 0, 1)])
        (message,) = reader.consume(1, 20)
    assert oldest_ms == message.timestamp()[1]
    heading, line = mails("queues list").output.splitlines()
    assert heading.split() == ["GROUP", "STATE", "LAG", "OLDEST", "TOPICS"]
    assert re.fullmatch(r"mails  EMPTY    4  \d+ seconds?  orders", line)


def test_a_queue_without_records_has_no_oldest(mails: Shell) -> None:
    assert mails("queues reset mails --to end --execute").status == 0
    assert mails("queues list").printed("""
        GROUP  STATE  LAG  OLDEST  TOPICS
        mails  EMPTY    0          orders
        """)


def test_the_list_of_groups_shows_of_which_type_each_is(mails: Shell) -> None:
    with Consumer(bootstrap_servers=ROOT, group_id="billing") as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    assert mails("groups list").printed("""
        GROUP    TYPE      STATE  LAG  TOPICS
        billing  consumer  EMPTY    1  orders
        mails    share     EMPTY    4  orders
        """)


def test_a_share_group_is_described(mails: Shell) -> None:
    summary, table = mails("queues describe mails").output.split("\n\n")
    assert re.fullmatch(r"Group +mails\nState +EMPTY\nLag +4\nOldest +\d+ seconds?", summary)
    heading, line = table.splitlines()
    assert heading.split("  ")[-1] == "OLDEST"
    shown = dict(zip(re.split("  +", heading), re.split("  +", line), strict=True))
    assert re.fullmatch(r"\d+ seconds?", shown.pop("OLDEST"))
    assert shown == {
        "TOPIC": "orders",
        "PARTITION": "0",
        "START OFFSET": "1",
        "NEXT OFFSET": "3",
        "END OFFSET": "6",
        "ACQUIRED": "0",
        "AVAILABLE": "1",
        "DELAYED": "1",
        "ACKNOWLEDGED": "1",
        "ARCHIVED": "0",
        "LAG": "4",
    }


def test_the_members_that_hold_records_are_described(mails: Shell) -> None:
    with ShareConsumer(bootstrap_servers=ROOT, group_id="mails", client_id="w") as worker:
        worker.subscribe(["orders"])
        assert len(worker.poll(20)) == 3
        found = mails("queues describe mails -o json").json
        assert found["state"] == "STABLE"
        ((member, records),) = [each.values() for each in found["members"]]
        assert (member[:2], records) == ("w-", 3)
        (described,) = found["partitions"]
        assert described.pop("oldest_ms") == found["oldest_ms"]
        assert found["partitions"] == [
            {
                "topic": "orders",
                "partition": 0,
                "start_offset": 1,
                "next_offset": 6,
                "end_offset": 6,
                "acquired": 3,
                "available": 1,
                "delayed": 1,
                "acknowledged": 1,
                "archived": 0,
                "lag": 4,
            }
        ]
        assert "MEMBER" in mails("queues describe mails").output


@pytest.mark.parametrize("group", ["nope", "plain"])
def test_what_is_no_share_group_is_refused(mails: Shell, group: str) -> None:
    assert mails(f"queues describe {group}").refused(f"share group '{group}' does not exist")
    assert mails(f"queues delete {group} --yes").refused(f"share group '{group}' does not exist")


def test_a_share_group_is_deleted(mails: Shell) -> None:
    assert mails("queues delete mails --yes").printed("share group mails was deleted\n")
    assert mails("queues list -o json").json == []


def test_a_reset_is_a_dry_run_first(mails: Shell) -> None:
    shown = mails("queues reset mails --to beginning")
    assert shown.output == (
        "TOPIC   PARTITION  START OFFSET  NEW OFFSET  LAG\n"
        "orders  0                     1           0    6\n"
    )
    assert "dry run" in shown.errors
    assert mails("queues list -o json").json[0]["lag"] == 4
    assert mails("queues reset mails --to beginning --execute").errors == ""
    assert mails("queues list -o json").json[0]["lag"] == 6


def test_a_group_that_has_read_nothing_needs_topics(mails: Shell) -> None:
    refused = mails("queues reset new --to end")
    assert refused.status == 2
    assert "name topics by --topic" in refused.errors
    assert mails("queues reset new --to 4 --topic orders --execute").status == 0
    assert mails("queues list -o json").json[1]["lag"] == 2


@pytest.fixture
def failed(mails: Shell) -> Shell:
    """The group of `mails`, which has rejected one of its messages."""
    with AdminClient(bootstrap_servers=ROOT) as admin:
        set_group(admin, "mails", errors_deadletterqueue_topic_name="dlq.orders")
    with ShareConsumer(bootstrap_servers=ROOT, group_id="mails") as worker:
        worker.subscribe(["orders"])
        worker.reject(worker.poll(20)[0], "no address")
    return mails


@pytest.mark.parametrize(
    ("call", "command"),
    [
        ("alter_share_group_offsets", "reset mails --to end --execute"),
        ("delete_share_groups", "delete mails --yes"),
    ],
)
def test_a_command_waits_for_locks_as_long_as_it_is_asked_to(
    mails: Shell, monkeypatch: pytest.MonkeyPatch, call: str, command: str
) -> None:
    waits: list[float] = []
    change = getattr(AdminClient, call)

    def noted(admin: AdminClient, *arguments: Any, request_timeout: float) -> Any:
        waits.append(request_timeout)
        return change(admin, *arguments, request_timeout=0)

    monkeypatch.setattr(AdminClient, call, noted)
    with ShareConsumer(bootstrap_servers=ROOT, group_id="mails") as worker:
        worker.subscribe(["orders"])
        worker.poll(20)
        refused = mails(f"queues {command} --timeout 8000")
        assert "hold records" in refused.errors
        assert waits == [3600, 3600, 800]
    assert mails(f"queues {command} --timeout 8000").status == 0
    assert waits[3:] == [3600]


def test_dead_letters_are_shown_and_copied_back_once(failed: Shell) -> None:
    shown = failed("queues redrive mails")
    assert shown.output.splitlines()[1].split() == (
        ["0", "0", "orders", "0", "3", "no", "address", "to", "be", "copied", "back"]
    )
    assert "dry run" in shown.errors
    for _ in range(2):
        assert failed("queues redrive mails --execute -o json").json == [
            {
                "partition": 0,
                "offset": 0,
                "topic": "orders",
                "topic_partition": 0,
                "topic_offset": 3,
                "reason": "no address",
                "state": "copied back",
            }
        ]
    ends = failed("queues describe mails -o json").json["partitions"][0]["end_offset"]
    assert ends == 7


def test_chosen_dead_letters_are_copied_back(failed: Shell) -> None:
    for more in ("", "--execute"):
        none = failed(f"queues redrive mails --letter 0:1 --letter 0:0 {more} -o json")
        assert [letter["offset"] for letter in none.json] == [0]
        assert "dlq.orders has no dead letter of mails at 0:1" in none.errors
        assert none.status == 1
    assert len(failed("queues redrive mails --letter 0:0 -o json").json) == 1
    refused = failed("queues redrive mails --letter 7")
    assert "give partition and offset, as 0:17" in refused.errors
    assert refused.status == 2


def test_a_dead_letter_that_cannot_be_copied_back_is_named_and_fails(failed: Shell) -> None:
    failed("topics delete orders --yes")
    assert failed("queues redrive mails").status == 0
    done = failed("queues redrive mails --execute -o json")
    assert done.status == 1
    assert done.json[0]["state"] == "topic 'orders' does not exist"
    assert "1 dead letter could not be copied back" in done.errors
