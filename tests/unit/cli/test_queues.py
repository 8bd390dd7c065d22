"""`deltaq queues`, verb by verb."""

from __future__ import annotations

import pytest

from deltaq import Producer, ShareConsumer
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
    assert mails("queues list").printed("""
        GROUP  STATE  LAG  TOPICS
        mails  EMPTY    4  orders
        """)
    assert mails("queues list -o json").json == [
        {"group": "mails", "state": "EMPTY", "lag": 4, "topics": ["orders"]}
    ]
    assert mails("groups list").output == "GROUP  STATE  LAG  TOPICS\n"


def test_a_share_group_is_described(mails: Shell) -> None:
    assert mails("queues describe mails").printed("""
        Group  mails
        State  EMPTY
        Lag    4

        TOPIC   PARTITION  START OFFSET  NEXT OFFSET  END OFFSET  ACQUIRED  AVAILABLE  DELAYED  LAG
        orders  0                     1            3           6         0          1        1    4
        """)


def test_the_members_that_hold_records_are_described(mails: Shell) -> None:
    with ShareConsumer(bootstrap_servers=ROOT, group_id="mails", client_id="w") as worker:
        worker.subscribe(["orders"])
        assert len(worker.poll(20)) == 3
        found = mails("queues describe mails -o json").json
        assert found["state"] == "STABLE"
        ((member, records),) = [each.values() for each in found["members"]]
        assert (member[:2], records) == ("w-", 3)
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
