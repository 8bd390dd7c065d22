"""Any text can be a `transactional.id`, as in Kafka: what is no name is encoded in keys, and each
place that finds an id by its keys decodes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import deltaq
from deltaq import Consumer, KafkaException, Producer, Topic, TopicPartition
from deltaq.clock import SYSTEM_CLOCK
from deltaq.delta.actions import Txn
from deltaq.maintenance.run import Maintenance
from deltaq.names import TransactionKey
from deltaq.store import LocalStore, MemoryStore, Store
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.tools.transactions import IDLE, OPEN, survey
from deltaq.topics.log import TopicLog
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.resolution import publish_sent_offsets, resolve_files

FOREVER = float("inf")
ODD = "my\napp/1: ü"
TEXTS = (ODD, "my:app", "..", "_delta_log", "../x", ".~a", "%41", "line\nbreak", "~3A", "x.y_z-1")
CONF = {"bootstrap.servers": "memory://unused", "linger.ms": 0}


class Made:
    """Clients of one store, all of which are closed at the end."""

    def __init__(self, store: Store) -> None:
        self.store = FaultyStore(store)
        self.clients: list[Producer | Consumer] = []

    def producer(self, transactional_id: str = ODD) -> Producer:
        found = Producer(CONF, transactional_id=transactional_id, store=self.store)
        self.clients.append(found)
        found.init_transactions()
        return found

    def consumer(self) -> Consumer:
        found = Consumer({**CONF, "group.id": "g"}, store=self.store)
        self.clients.append(found)
        return found

    def begun(self, transactional_id: str = ODD) -> Producer:
        """A producer in a transaction with a message in two topics, and an offset."""
        for topic in ("a", "b"):
            Topic(topic, store=self.store).create(exist_ok=True)
        producer = self.producer(transactional_id)
        producer.begin_transaction()
        for topic in ("a", "b"):
            producer.produce(topic, b"1")
        assert producer.flush(10) == 0
        metadata = self.consumer().consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("a", 0, 7)], metadata)
        return producer

    def rows(self) -> list[int]:
        return [Topic(topic, store=self.store).to_arrow().num_rows for topic in ("a", "b")]

    def committed(self) -> int:
        return self.consumer().committed([TopicPartition("a", 0)])[0].offset

    def close(self) -> None:
        for client in self.clients:
            client.close()


@pytest.fixture
def made() -> Iterator[Made]:
    found = Made(MemoryStore("test"))
    yield found
    found.store.clear()
    found.close()


def decided(made: Made, *folders: str) -> None:
    """A transaction is decided, and not published in these folders."""
    producer = made.begun()
    for folder in folders:
        made.store.add(Rule("create", f"{folder}/_delta_log/*", Fault.error_before(), None))
    with pytest.raises(KafkaException):
        producer.commit_transaction(0.3)
    made.store.clear()
    assert made.rows() == [int(f"topics/{topic}" not in folders) for topic in ("a", "b")]


@pytest.mark.parametrize("text", TEXTS)
def test_a_transaction_of_any_id_is_listed_committed_and_fenced(tmp_path: Path, text: str):
    made = Made(LocalStore(str(tmp_path / "root")))
    old = made.begun(text)
    (found,) = survey(made.store, SYSTEM_CLOCK).ids
    assert (found.name, found.state) == (text, OPEN)
    assert [held.group for held in found.pending] == ["g"]
    assert [(files.topic, files.files) for files in found.staged] == [("a", 1), ("b", 1)]
    assert survey(made.store, SYSTEM_CLOCK, [text]).ids == [found]
    old.commit_transaction()
    assert (made.rows(), made.committed()) == ([1, 1], 7)
    old.begin_transaction()
    made.producer(text)
    with pytest.raises(KafkaException) as raised:
        old.abort_transaction()
    assert raised.value.error.fatal()
    assert survey(made.store, SYSTEM_CLOCK).ids[0].state == IDLE
    made.close()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert len(list((tmp_path / "root/transactions").iterdir())) == 1


def test_maintenance_finds_the_id_and_reports_it_on_one_line(made: Made):
    decided(made, "topics/a", "topics/b", "groups/g")
    made.producer("line\nbreak").close()
    lines: list[str] = []
    done = Maintenance(made.store, SYSTEM_CLOCK, notify=lines.append).round()
    assert done["transactions published"] == 1
    assert (made.rows(), made.committed()) == ([1, 1], 7)
    assert r"transactional id my\napp/1: ü: publish a transaction to a, b, group g" in lines
    log = TransactionLog(made.store, "line\nbreak", SYSTEM_CLOCK)
    made.store.put(log._folder + "_delta_log/00000000000000000000.json", b"damage")
    lines.clear()
    assert Maintenance(made.store, SYSTEM_CLOCK, notify=lines.append).round()["failures"] == 1
    assert [line.partition(": ")[0] for line in lines] == [r"line\nbreak"]


def test_a_cut_publishes_what_the_id_has_decided(made: Made):
    decided(made, "topics/b", "groups/g")
    assert deltaq.cut(["a", "b"], store=made.store) == {"a": {0: 1}, "b": {0: 1}}


def test_a_cut_leaves_an_application_alone_that_is_of_no_id(made: Made):
    for topic in ("a", "b"):
        Topic(topic, store=made.store).create()
    log = TopicLog(made.store, "a", SYSTEM_CLOCK)
    log.catch_up()
    log.append(lambda: (), log.live_head.topic_id, FOREVER, Txn("no id/1", 1, 0), is_decided=True)
    assert any(app_id.startswith("no id/1/") for app_id in log.state.txns)
    assert deltaq.cut(["a", "b"], store=made.store) == {"a": {0: 0}, "b": {0: 0}}


def test_offsets_that_the_id_has_decided_are_published(made: Made):
    decided(made, "topics/a", "topics/b", "groups/g")
    publish_sent_offsets(made.store, SYSTEM_CLOCK, FOREVER)
    assert (made.rows(), made.committed()) == ([1, 1], 7)


def test_files_of_the_id_end_its_transaction_before_they_are_removed(made: Made):
    made.begun()
    keys = [entry.key for entry in made.store.list("topics/a/staged/")]
    paths = [key.removeprefix("topics/a/") for key in keys]
    assert resolve_files(made.store, paths, 0.0, SYSTEM_CLOCK, FOREVER) == {*paths}
    assert not resolve_files(made.store, paths, 1e9, SYSTEM_CLOCK, FOREVER)
    head = TransactionLog(made.store, ODD, SYSTEM_CLOCK).head()
    assert head is not None
    assert not head.is_open(TransactionKey(ODD, 0, 1))
