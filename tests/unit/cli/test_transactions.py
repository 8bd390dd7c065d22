"""`deltaq transactions`, verb by verb."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from deltaq import (
    AdminClient,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from deltaq.delta.actions import CommitInfo, DomainMetadata
from deltaq.delta.log import DeltaLog, Draft
from deltaq.names import log_entry, transaction_folder
from deltaq.store import open_store
from deltaq.transactions.publication import Publisher
from tests.doubles.sharing import set_group
from tests.unit.cli.conftest import ROOT, Shell

NO_MEMBER = b"CGMDv2:\xff\xff\xff\xffbilling\x00\x00\x01"


class Transactor:
    """A shell, and a producer with the id `t`."""

    def __init__(self, deltaq: Shell) -> None:
        self.deltaq = deltaq
        deltaq("topics create orders")
        self.producer = Producer(
            bootstrap_servers=ROOT, transactional_id="t", client_id="till", linger_ms=0
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()
        self.producer.produce("orders", b"x")
        self.producer.flush(10)
        self.producer.send_offsets_to_transaction([TopicPartition("orders", 0, 1)], NO_MEMBER)

    def decide(self, patch: pytest.MonkeyPatch) -> None:
        """Commit, and be killed before the publication."""
        self.begin()

        def killed(*_: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FAIL))

        with patch.context() as patched:
            patched.setattr(Publisher, "publish", killed)
            with pytest.raises(KafkaException):
                self.producer.commit_transaction()


@pytest.fixture
def open_one(deltaq: Shell) -> Iterator[Transactor]:
    made = Transactor(deltaq)
    yield made
    made.producer.close()


def state(deltaq: Shell) -> tuple[str, int]:
    """The state of the only id, and its epoch counted from that of the first producer."""
    (found,) = deltaq("transactions list -o json").json
    return found["state"], found["epoch"] - first_epoch()


def first_epoch(transactional_id: str = "t") -> int:
    """Version 0 of its log has it."""
    log = DeltaLog(open_store(ROOT), transaction_folder(transactional_id))
    begun = log.entries.read(0)
    assert begun is not None
    (domain,) = (action for action in begun.actions if isinstance(action, DomainMetadata))
    return int(json.loads(domain.configuration)["epoch"])


def test_ids_are_listed_with_their_state(open_one: Transactor, monkeypatch: pytest.MonkeyPatch):
    deltaq = open_one.deltaq
    assert state(deltaq) == ("idle", 0)
    open_one.begin()
    assert state(deltaq) == ("open", 0)
    open_one.producer.commit_transaction()
    assert state(deltaq) == ("published", 0)
    open_one.decide(monkeypatch)
    assert state(deltaq) == ("decided, not published", 0)
    lines = deltaq("transactions list").output.splitlines()
    heading = ["TRANSACTIONAL", "ID", "EPOCH", "STATE", "AGE", "TIMEOUT", "CLIENT", "TOPICS"]
    assert lines[0].split() == [*heading, "GROUPS"]
    assert lines[1].endswith("60 seconds  till    orders  billing") or "1 minute" in lines[1]
    open_one.producer.commit_transaction()
    assert state(deltaq) == ("published", 0)


def test_an_id_that_is_no_name_is_listed_described_completed_and_aborted(
    open_one: Transactor, monkeypatch: pytest.MonkeyPatch
):
    deltaq = open_one.deltaq
    with Producer(bootstrap_servers=ROOT, transactional_id="my app/1\x1b[2J") as odd:
        odd.init_transactions()
    listed = deltaq("transactions list")
    assert listed.output.splitlines()[1].startswith(r"my app/1\x1b[2J  ")
    assert "\x1b" not in listed.output
    names = [row["transactional_id"] for row in deltaq("transactions list -o json").json]
    assert names == ["my app/1\x1b[2J", "t"]
    described = deltaq("transactions describe 'my app/1\x1b[2J'").output
    assert described.startswith(r"Transactional id  my app/1\x1b[2J")
    epoch = first_epoch("my app/1\x1b[2J")
    done = deltaq("transactions abort 'my app/1\x1b[2J' --yes")
    assert done.output == f"transactional id my app/1\\x1b[2J has epoch {epoch + 1}\n"
    monkeypatch.setenv("_DELTAQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "deltaq transactions describe m")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert "my app/1" in deltaq("").output


def test_an_empty_root_has_no_ids(deltaq: Shell):
    assert deltaq("transactions list -o json").json == []
    assert deltaq("transactions describe t").refused("no producer has used transactional.id 't'")
    assert deltaq("transactions abort t --yes").refused("no producer has used transactional.id 't'")


def test_an_id_is_described(open_one: Transactor, monkeypatch: pytest.MonkeyPatch):
    open_one.decide(monkeypatch)
    found = open_one.deltaq("transactions describe t -o json").json
    about = {name: found[name] for name in ("client", "number", "unpublished", "staged")}
    assert about == {
        "client": "till",
        "number": 1,
        "unpublished": ["orders", "group billing"],
        "staged": [],
    }
    assert found["decided"] == [{"topic": "orders", "records": 1, "files": 1, "published": False}]
    place = {"topic": "orders", "partition": 0, "offset": 1}
    assert found["pending"] == [{"group": "billing", **place, "epoch": first_epoch(), "number": 1}]
    text = open_one.deltaq("transactions describe t").output
    assert "State             decided, not published" in text
    assert "orders        1      1  no" in text
    group = open_one.deltaq("groups describe billing -o json").json
    assert group["pending"] == [{**place, "transactional_id": "t"}]
    assert "orders  0                1  t\n" in open_one.deltaq("groups describe billing").output


def test_open_files_are_described_and_those_of_ended_transactions_noted(open_one: Transactor):
    open_one.begin()
    (files,) = open_one.deltaq("transactions describe t -o json").json["staged"]
    about = [files[name] for name in ("topic", "files", "number", "open")]
    assert about == ["orders", 1, 1, True]
    listed = open_one.deltaq("transactions list")
    assert listed.errors == ""
    assert open_one.deltaq("transactions abort t --yes").status == 0
    listed = open_one.deltaq("transactions list")
    assert listed.errors.startswith("deltaq: of transactions that have ended: 1 file with ")
    assert state(open_one.deltaq) == ("idle", 1)


def test_files_of_ended_transactions_are_summed_by_topic(open_one: Transactor):
    """Merged files of committed ones are among them: one line for each would hide all others."""
    for _ in range(3):  # the newest decision names the file of the last one
        open_one.begin()
        open_one.producer.commit_transaction()
    open_one.deltaq("topics delete orders --yes")
    open_one.deltaq("topics create orders")
    open_one.begin()  # the first message learns that the topic is another one
    open_one.producer.abort_transaction()
    open_one.begin()
    listed = open_one.deltaq("transactions list")
    assert re.fullmatch(
        r"deltaq: of trans.* ended: 2 files with .* in topic orders\n", listed.errors
    )
    staged = open_one.deltaq("transactions describe t -o json").json["staged"]
    about = [(files["files"], files["number"], files["open"]) for files in staged]
    assert sorted(about, key=str) == [(1, 5, True), (2, None, False)]


def test_an_abort_shows_what_it_does_and_fences_the_producer(open_one: Transactor):
    open_one.begin()
    refused = open_one.deltaq("transactions abort t")
    assert (refused.status, state(open_one.deltaq)) == (2, ("open", 0)), "there is no terminal"
    done = open_one.deltaq("transactions abort t --yes")
    assert re.fullmatch(
        r"deltaq: drop 1 file with .* B in topic orders; drop pending offsets of group billing; "
        rf"fence the producer of epoch {first_epoch()} \(client till\)\n",
        done.errors,
    )
    assert done.output == f"transactional id t has epoch {first_epoch() + 1}\n"
    assert open_one.deltaq("transactions describe t -o json").json["pending"] == []
    with pytest.raises(KafkaException) as raised:
        open_one.producer.commit_transaction()
    assert raised.value.error.fatal()
    assert "an operator has aborted" in raised.value.error.str()
    assert open_one.deltaq("cat orders").output == ""


def test_an_abort_publishes_what_is_decided(open_one: Transactor, monkeypatch: pytest.MonkeyPatch):
    open_one.decide(monkeypatch)
    done = open_one.deltaq("transactions abort t --yes")
    assert "publish a transaction to orders, group billing" in done.errors
    assert open_one.deltaq("cat orders").output == "x\n"
    group = open_one.deltaq("groups describe billing -o json").json
    assert [part["committed"] for part in group["partitions"]] == [1]
    open_one.producer.commit_transaction()
    assert open_one.deltaq("cat orders").output == "x\n"


def test_a_damaged_log_is_an_error_of_its_id_alone(open_one: Transactor):
    with Producer(bootstrap_servers=ROOT, transactional_id="other") as other:
        other.init_transactions()
    open_store(ROOT).put(log_entry(transaction_folder("other") + "_delta_log/", 0), b"damaged")
    listed = open_one.deltaq("transactions list -o json")
    assert listed.status == 1
    assert "1 of 2 transactional ids cannot be read" in listed.errors
    assert [row["transactional_id"] for row in listed.json] == ["t", "other"]
    lines = open_one.deltaq("transactions list").output.splitlines()
    assert [line.split()[0] for line in lines] == ["TRANSACTIONAL", "t", "other"]
    assert open_one.deltaq("transactions describe other").status == 1
    assert open_one.deltaq("transactions describe t").status == 0


def test_a_deleted_group_does_not_come_back_with_a_transaction(open_one: Transactor):
    open_one.begin()
    assert open_one.deltaq("groups delete billing --yes").output == "group billing was deleted\n"
    open_one.producer.commit_transaction()
    assert open_one.deltaq("groups list -o json").json == []
    assert open_one.deltaq("cat orders").output == "x\n"


# --- doctor ---


def finding(deltaq: Shell) -> tuple[str, str]:
    (found,) = (row for row in deltaq("doctor -o json").json if row["check"] == "transactions")
    return found["state"], found["found"]


def test_doctor_finds_what_a_crashed_producer_has_left(
    open_one: Transactor, monkeypatch: pytest.MonkeyPatch
):
    deltaq = open_one.deltaq
    open_one.begin()
    assert finding(deltaq) == ("ok", "1 transactional id can be read"), "it is open"
    with Producer(bootstrap_servers=ROOT, transactional_id="t") as successor:
        successor.init_transactions()
    left = "t: group billing holds offsets of a transaction that has ended"
    assert finding(deltaq) == ("due", left)
    assert deltaq("maintain --once").status == 0
    state_of_it, text = finding(deltaq)
    assert state_of_it == "ok"
    assert re.search(r"; 1 file with [0-9,]+ bytes of transactions that have ended$", text)


def test_doctor_finds_a_decision_that_is_not_published(
    open_one: Transactor, monkeypatch: pytest.MonkeyPatch
):
    open_one.decide(monkeypatch)
    found = "t: not published in orders, group billing"
    assert finding(open_one.deltaq) == ("due", found)
    assert open_one.deltaq("maintain --once").status == 0
    assert finding(open_one.deltaq) == ("ok", "1 transactional id can be read")


@pytest.mark.parametrize("damage", [b"no JSON", b'{"format":1,"epoch":-1}', b'{"format":1}'])
def test_doctor_finds_a_damaged_log(open_one: Transactor, damage: bytes):
    log = DeltaLog(open_store(ROOT), transaction_folder("t"))
    log.load()
    info = CommitInfo("x", 0, "BEGIN EPOCH", "", "", is_blind_append=False)
    body = [DomainMetadata("deltaq", damage.decode())]
    log.commit(lambda _: Draft(info, body), float("inf"))
    state_of_it, text = finding(open_one.deltaq)
    assert state_of_it == "wrong"
    assert text.startswith("t: transactions/t/ (version 1): the transactions of this id cannot be")


def test_share_groups_with_acknowledgements_are_described_and_named_before_an_abort(
    deltaq: Shell,
):
    deltaq("topics create jobs")
    conf = {"bootstrap.servers": ROOT}
    with Producer(conf) as filler, AdminClient(conf) as admin:
        filler.produce("jobs", b"x")
        set_group(admin, "workers", share_auto_offset_reset="earliest")
    with (
        ShareConsumer(conf, group_id="workers") as consumer,
        Producer(conf, transactional_id="t") as producer,
    ):
        producer.init_transactions()
        consumer.subscribe(["jobs"])
        assert len(consumer.poll(10)) == 1
        producer.begin_transaction()
        producer.send_share_acknowledgements_to_transaction(
            consumer.acknowledgements_for_transaction(), consumer.share_group_metadata()
        )
        found = deltaq("transactions describe t -o json").json
        about = {"group": "workers", "epoch": first_epoch(), "number": 1}
        assert (found["state"], found["groups"]) == ("open", ["workers"])
        assert found["acknowledging"] == [about]
        assert re.search(
            r"\nGROUP +EPOCH +NUMBER\nworkers ", deltaq("transactions describe t").output
        )
        done = deltaq("transactions abort t --yes")
        assert "give back messages of share group workers" in done.errors
        assert deltaq("transactions describe t -o json").json["acknowledging"] == []
