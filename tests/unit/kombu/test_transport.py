"""Queues of kombu on a root: what is delivered to whom, and what acknowledgements do."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu import Producer as KombuProducer
from kombu.transport.virtual.exchange import TopicExchange

import deltaq.kombu
from deltaq import (
    AcknowledgeType,
    AdminClient,
    InvalidConfig,
    KafkaException,
    OutcomeUnknown,
    Producer,
    Topic,
)
from deltaq.kombu import shared_queue
from deltaq.kombu.routes import exchange_topic, queue_topic, takes
from deltaq.kombu.shared_queue import SharedQueue
from deltaq.share_groups.bindings import Binding
from deltaq.share_groups.state import RecordState, SharePartition
from deltaq.store import open_store, serve_memory_store
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.reading import eventually
from tests.doubles.sharing import set_group

SCHEME = deltaq.kombu.SCHEME


@pytest.fixture
def url(memory_root: str) -> str:
    return f"{SCHEME}+{memory_root}"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as made:
        yield made


def put(connection: Connection, *bodies: object, queue: str = "q") -> None:
    with connection.channel() as channel:
        producer = KombuProducer(channel)
        for body in bodies:
            producer.publish(body, routing_key=queue, declare=[Queue(queue)])


class Taker:
    """Takes messages of queues on a channel of its own."""

    def __init__(
        self, connection: Connection, *queues: Queue, prefetch: int = 0, no_ack: bool = False
    ) -> None:
        self.connection = connection
        self.found: list[Any] = []
        self.channel = connection.channel()
        self.consumer = Consumer(self.channel, list(queues), no_ack=no_ack)
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.register_callback(lambda _, message: self.found.append(message))
        self.consumer.consume()

    def take(self, most: int = 100) -> list[Any]:
        """What comes until a moment passes without a message."""
        before = len(self.found)
        try:
            while len(self.found) - before < most:
                self.connection.drain_events(timeout=0.1)
        except TimeoutError:
            pass
        return [message.payload for message in self.found[before:]]

    def awaited(self, count: int) -> list[Any]:
        """The next `count` messages, which another thread may have to read first."""
        found: list[Any] = []

        def are_there() -> bool:
            found.extend(self.take(1))
            return len(found) == count

        eventually(are_there)
        return found

    def close(self) -> None:
        self.channel.close()


def test_messages_are_accepted_and_come_in_their_order(connection: Connection) -> None:
    put(connection, 1, 2, 3)
    with closing(Taker(connection, Queue("q"))) as taker:
        assert taker.take() == [1, 2, 3]
        for message in taker.found:
            message.ack()
    with closing(Taker(connection, Queue("q"))) as taker:
        assert taker.take() == []


def test_two_workers_share_a_queue(url: str) -> None:
    with Connection(url) as one, Connection(url) as two:
        put(one, *range(6))
        first = Taker(one, Queue("q"), prefetch=2)
        second = Taker(two, Queue("q"))
        assert first.take() == [0, 1]
        assert second.take() == [2, 3, 4, 5]
        for message in first.found:
            message.ack()
        assert first.take() == []


def test_no_more_is_taken_than_the_prefetch_count(connection: Connection) -> None:
    put(connection, *range(5))
    taker = Taker(connection, Queue("q"), prefetch=2)
    assert taker.take() == [0, 1]
    taker.found[0].ack()
    assert taker.take() == [2]


def test_a_closed_channel_gives_back_what_is_not_acknowledged(connection: Connection) -> None:
    put(connection, "a", "b")
    with closing(Taker(connection, Queue("q"))) as taker:
        assert taker.take() == ["a", "b"]
        taker.found[0].ack()
        assert taker.found[1].delivery_info["redelivered"] is False
    again = Taker(connection, Queue("q"))
    assert again.take() == ["b"]
    assert again.found[0].delivery_info["redelivered"] is True


@pytest.mark.parametrize(("requeue", "again"), [(True, ["a"]), (False, [])])
def test_a_rejected_message_comes_again_only_if_it_is_requeued(
    connection: Connection, requeue: bool, again: list[str]
) -> None:
    put(connection, "a")
    with closing(Taker(connection, Queue("q"))) as taker:
        assert taker.take() == ["a"]
        taker.found[0].reject(requeue=requeue)
        assert taker.take(1) == again
    assert Taker(connection, Queue("q")).take() == again


def test_a_consumer_without_acknowledgements_finishes_what_it_gets(url: str) -> None:
    with Connection(url) as one:
        put(one, "a", "b")
        with closing(Taker(one, Queue("q"), no_ack=True)) as taker:
            assert taker.take() == ["a", "b"]
        put(one, "c")
        with one.channel() as channel:
            assert Queue("q")(channel).get(no_ack=True).payload == "c"
            assert Queue("q")(channel).get(no_ack=True) is None
        assert Taker(one, Queue("q")).take() == []


def test_acknowledgements_of_other_threads_count(connection: Connection) -> None:
    put(connection, "a")
    with closing(Taker(connection, Queue("q"))) as taker:
        taker.take()
        thread = threading.Thread(target=taker.found[0].ack)
        thread.start()
        thread.join()
    assert Taker(connection, Queue("q")).take() == []


def test_acknowledgements_do_not_wait_until_all_that_was_taken_is_delivered(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(connection, "a", "b", "c")
    taker = Taker(connection, Queue("q"))
    taker.take(1)
    taker.found[0].ack()
    taker.take(1)
    assert start_of(connection) == 0
    monkeypatch.setattr(shared_queue, "ACKNOWLEDGE_S", 0.0)
    taker.take(1)
    assert start_of(connection) == 1


def start_of(connection: Connection) -> int:
    """The first message of the queue that is not finished."""
    return state_of(connection).start


def state_of(connection: Connection) -> SharePartition:
    queue: SharedQueue = connection.transport.shared_queue("q")
    (partition,) = queue._log.read().partitions().values()
    return partition


# --- exchanges ---


def publish(connection: Connection, exchange: Exchange, *keys: str) -> None:
    with connection.channel() as channel:
        producer = KombuProducer(channel, exchange=exchange)
        for key in keys:
            producer.publish(key, routing_key=key)


def test_a_direct_exchange_sends_by_the_whole_key(connection: Connection) -> None:
    exchange = Exchange("x", type="direct")
    taker = Taker(connection, Queue("q", exchange, "a"), Queue("r", exchange, "b"))
    publish(connection, exchange, "a", "b", "ab", "c")
    assert sorted(taker.take()) == ["a", "b"]


def test_a_topic_exchange_sends_by_patterns(connection: Connection) -> None:
    exchange = Exchange("x", type="topic")
    taker = Taker(connection, Queue("q", exchange, "news.*"))
    Queue("q", exchange, "#.se")(taker.channel).declare()
    publish(connection, exchange, "news.de", "news.a.b", "weather.se", "news", "anews.de")
    assert sorted(taker.take()) == ["news.de", "weather.se"]


def test_a_fanout_exchange_sends_to_each_queue(connection: Connection) -> None:
    exchange = Exchange("x", type="fanout")
    taker = Taker(connection, Queue("q", exchange), Queue("r", exchange))
    publish(connection, exchange, "a")
    assert taker.take() == ["a", "a"]
    tags = {message.delivery_tag for message in taker.found}
    assert len(tags) == 2


def test_a_queue_gets_what_came_after_its_first_binding(url: str) -> None:
    exchange = Exchange("x", type="direct")
    queue = Queue("q", exchange, "a")
    with Connection(url) as one:
        publish(one, exchange, "a")
        with one.channel() as channel:
            queue(channel).declare()
        publish(one, exchange, "a", "a")
    with Connection(url) as other:  # a later binding changes nothing
        assert Taker(other, queue).take() == ["a", "a"]


def test_the_bindings_of_all_processes_are_those_of_the_queue(url: str) -> None:
    exchange = Exchange("x", type="topic")
    with Connection(url) as one, Connection(url) as two, Connection(url) as three:
        first = Taker(one, Queue("q", exchange, "orders.#"), prefetch=3)
        publish(one, exchange, "orders.waiting")
        Queue("q", exchange, "payments.#")(two.channel()).declare()
        publish(two, exchange, "orders.a", "payments.a", "other.a", "payments.b")
        assert first.take() == ["orders.waiting", "orders.a", "payments.a"]
        # By its name: this process has bound nothing.
        with three.channel() as channel:
            assert channel.queue_declare("q", passive=True).message_count == 1
        assert Taker(three, Queue("q")).take() == ["payments.b"]


def test_a_queue_does_not_get_what_came_while_it_was_not_bound(connection: Connection) -> None:
    exchange = Exchange("x", type="topic")
    queue = Queue("q", exchange, "a")
    with connection.channel() as channel:
        queue(channel).declare()
        publish(connection, exchange, "a")
        queue(channel).unbind_from(exchange, "a")
        publish(connection, exchange, "a")
        queue(channel).declare()
        publish(connection, exchange, "a")
        assert channel.queue_purge("q") == 1


def test_a_private_queue_that_is_not_bound_any_more_gets_nothing(connection: Connection) -> None:
    exchange = Exchange("x", type="direct")
    taker = Taker(connection, Queue("mine", exchange, "a", auto_delete=True))
    Queue("mine", exchange, "b", auto_delete=True)(taker.channel).declare()
    taker.channel.queue_unbind("mine", "x", "a")
    publish(connection, exchange, "a", "b")
    assert taker.awaited(1) == ["b"]


def test_a_private_queue_gets_what_comes_while_it_lives(url: str) -> None:
    exchange = Exchange("x", type="fanout")
    queue = Queue("mine", exchange, auto_delete=True)
    with Connection(url) as one, Connection(url) as two:
        publish(one, exchange, "before")
        first, second = Taker(one, queue), Taker(two, queue)
        queue(first.channel).declare()  # again
        assert first.channel.queue_declare("mine", passive=True).queue == "mine"
        publish(one, exchange, "a")
        assert (first.awaited(1), second.awaited(1)) == (["a"], ["a"])
        first.found[0].requeue()
        assert first.awaited(1) == ["a"]
        assert first.found[1].delivery_info["redelivered"] is True
        first.found[1].ack()
        assert first.take() == []
        # Neither a topic nor a group of its own.
        topics = open_store(url.partition("+")[2]).list_folders("topics/")
        assert topics == [exchange_topic("x")]


def test_a_private_queue_without_a_binding_has_what_is_sent_to_it(connection: Connection) -> None:
    queue = Queue("answers", auto_delete=True)
    taker = Taker(connection, queue)
    with connection.channel() as channel:
        KombuProducer(channel).publish("x", routing_key="answers")
    assert taker.awaited(1) == ["x"]


def test_a_private_queue_is_purged_and_counts_what_waits(connection: Connection) -> None:
    exchange = Exchange("x", type="fanout")
    taker = Taker(connection, Queue("mine", exchange, exclusive=True), prefetch=1)
    publish(connection, exchange, "a", "b", "c")
    assert taker.awaited(1) == ["a"]
    private = connection.transport.private["mine"]
    eventually(lambda: private.size() == 2)
    assert (taker.channel.queue_purge("mine"), private.size()) == (2, 0)


# --- settings of the group ---


def set_queue(url: str, **settings: Any) -> None:
    with AdminClient(bootstrap_servers=url.partition("+")[2]) as admin:
        set_group(admin, queue_topic("q"), **settings)


def test_rejected_messages_are_written_to_the_dead_letter_topic(url: str) -> None:
    topic = "dlq.q"
    set_queue(
        url,
        errors_deadletterqueue_topic_name=topic,
        errors_deadletterqueue_copy_record_enable="true",
    )
    with Connection(url) as one:
        put(one, "a", "b", "c")
        taker = Taker(one, Queue("q"))
        assert taker.take() == ["a", "b", "c"]
        taker.found[0].reject()
        taker.take()
        taker.take()
        assert state_of(one).start == 1
        taker.found[1].reject()
        taker.close()  # the last one that has a letter to write
        assert state_of(one).start == 2
    letters = Topic(topic, bootstrap_servers=url.partition("+")[2]).to_arrow()["value"].to_pylist()
    bodies = [base64.b64decode(json.loads(letter)["body"]) for letter in letters]
    assert bodies == [b"a", b"b"]


def test_a_worker_leaves_what_an_administrator_has_set(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    lock = "share.record.lock.duration.ms"
    set_queue(url, share_delivery_count_limit=5, share_record_lock_duration_ms=60_000)
    with Connection(url) as one:
        log = one.transport.shared_queue("q")._log
        assert log.settings() == {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": "5",
            "share.partition.max.record.locks": "10000",
            lock: "60000",
        }
    assert not caplog.records
    with Connection(url, transport_options={"visibility_timeout": 10}) as other:
        other.transport.shared_queue("q")
    assert log.settings()[lock] == "10000"
    assert f"{lock}=10000, was 60000" in caplog.text


@pytest.mark.parametrize(
    ("limit", "name"),
    [
        ("errors_deadletterqueue_max_per_minute", "errors.deadletterqueue.max.per.minute"),
        ("share_partition_max_record_locks", "share.partition.max.record.locks"),
    ],
)
def test_a_worker_that_may_take_no_more_says_so_once(
    url: str, caplog: pytest.LogCaptureFixture, limit: str, name: str
) -> None:
    set_queue(url, errors_deadletterqueue_topic_name="dlq.q", **{limit: 1})
    with Connection(url) as one:
        put(one, "a", "b", "c")
        taker = Taker(one, Queue("q"))
        first = taker.take(1)
        taker.found[0].reject()
        taker.take()
        put(one, "d")
        taker.take()
        assert first == ["a"]
    assert [record.message.count(name) for record in caplog.records] == [1]


# --- sizes, purges, deletion ---


def test_a_queue_counts_what_no_worker_holds(connection: Connection) -> None:
    put(connection, *range(5))
    with connection.channel() as channel:
        assert channel.queue_declare("q").message_count == 5
    taker = Taker(connection, Queue("q"), prefetch=2)
    taker.take(2)
    with connection.channel() as channel:
        assert channel.queue_declare("q").message_count == 3


def test_a_purge_leaves_what_is_held(connection: Connection) -> None:
    put(connection, *range(5))
    with closing(Taker(connection, Queue("q"), prefetch=2)) as taker:
        assert taker.take() == [0, 1]
        with connection.channel() as channel:
            assert channel.queue_purge("q") == 3
    assert Taker(connection, Queue("q")).take() == [0, 1]


def test_messages_of_other_queues_are_neither_counted_nor_end_a_purge(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_queue, "PURGED_AT_ONCE", 2)
    monkeypatch.setattr(shared_queue, "COUNTED_AT_ONCE", 2)
    exchange = Exchange("x", type="direct")
    with connection.channel() as channel:
        Queue("q", exchange, "a")(channel).declare()
        publish(connection, exchange, "b", "b", "b", "a", "b", "b", "b", "a")
        assert channel.queue_declare("q", passive=True).message_count == 2
        assert channel.queue_purge("q") == 2
        publish(connection, exchange, *"bbba")
        channel.basic_qos(0, 1, False)
        assert Queue("q", exchange, "a")(channel).get().payload == "a"


def test_a_deleted_queue_comes_back_without_its_messages(url: str) -> None:
    exchange = Exchange("x", type="direct")
    queue = Queue("q", exchange, "a")
    with Connection(url) as one, Connection(url) as two:
        holder = Taker(one, queue, prefetch=1)
        publish(one, exchange, "a", "a")
        assert holder.take() == ["a"]
        with two.channel() as channel:
            # By its name: this process has not bound it.
            channel.queue_delete("q")
        holder.found[0].ack()
        publish(one, exchange, "a")
        with one.channel() as channel:
            queue(channel).declare()  # again: this process has bound it before
            publish(one, exchange, "a")
            assert channel.queue_declare("q", passive=True).message_count == 1


def test_a_deleted_queue_is_not_there(connection: Connection) -> None:
    exchange = Exchange("x", type="direct")
    with connection.channel() as channel:
        Queue("q", exchange, "a")(channel).declare()
        assert channel.queue_declare("q", passive=True).queue == "q"
        channel.queue_delete("q")
        with pytest.raises(Exception, match="no queue 'q'"):
            channel.queue_declare("q", passive=True)
        Queue("q", exchange, "a")(channel).declare()
        assert channel.queue_declare("q", passive=True).queue == "q"


def test_a_private_queue_ends_with_its_connection(url: str) -> None:
    with Connection(url) as one:
        Taker(one, Queue("mine", Exchange("x", type="fanout"), auto_delete=True))
        private = one.transport.private["mine"]
    with pytest.raises(RuntimeError):
        private.take(1)


# --- forked children ---


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_sends_and_leaves_what_its_parent_has_taken(tmp_path: Path) -> None:
    with Connection(f"{SCHEME}://{tmp_path}") as one:
        put(one, "a")
        taker = Taker(one, Queue("q"))
        assert taker.take() == ["a"]
        if not (child := os.fork()):
            with forked_child():
                put(one, "b")
                with pytest.raises(one.transport.connection_errors, match="forked"):
                    taker.take()
                one.close()  # gives back nothing
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert taker.awaited(1) == ["b"]
        taker.found[0].ack()
        taker.close()
        assert Taker(one, Queue("q")).take() == ["b"]


@contextmanager
def forked_child() -> Iterator[None]:
    """End the process after the block: 0 if nothing was raised."""
    status = 1
    try:
        yield
        status = 0
    finally:
        os._exit(status)


# --- what goes wrong ---


def test_a_message_that_is_not_of_kombu_is_rejected(connection: Connection, url: str) -> None:
    put(connection, "a")
    with Producer(bootstrap_servers=url.partition("+")[2]) as producer:
        for value in (b"{", b"{}", None, b"[]"):
            producer.produce(queue_topic("q"), value)
    put(connection, "b")
    taker = Taker(connection, Queue("q"))
    assert taker.take() == ["a", "b"]


def test_a_store_that_does_not_answer_fails_the_connection(
    connection: Connection, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_queue, "WRITE_S", 0.2)
    failing = FaultyStore(open_store(memory_root))
    serve_memory_store(memory_root.removeprefix("memory://"), failing)
    put(connection, "a")
    taker = Taker(connection, Queue("q"))
    failing.add(Rule("create", "groups/*", Fault.error_before(), times=None))
    with pytest.raises(connection.transport.connection_errors):
        taker.take()
    failing.clear()
    assert taker.take() == ["a"]


def test_a_message_that_cannot_be_written_is_an_error_of_its_publisher(
    connection: Connection, memory_root: str
) -> None:
    failing = FaultyStore(open_store(memory_root))
    serve_memory_store(memory_root.removeprefix("memory://"), failing)
    put(connection, "a")
    failing.add(Rule("*", f"topics/{queue_topic('q')}/*", Fault.refused(), times=None))
    with pytest.raises(KafkaException), connection.channel() as channel:
        KombuProducer(channel).publish("b", routing_key="q")


def test_a_topic_that_another_process_creates_meanwhile_is_taken(
    connection: Connection, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topic("t", bootstrap_servers=memory_root).create()
    clients = connection.transport.clients
    monkeypatch.setattr(clients, "has_topic", lambda _: False)
    clients.create_topic("t")
    with pytest.raises(InvalidConfig):
        clients.create_topic("no topic")


def test_a_message_ends_the_long_waits_of_a_quiet_queue(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []
    put(connection, "a")
    taker = Taker(connection, Queue("q"))
    monkeypatch.setattr(
        connection.transport.clients.timer, "wait", lambda found, most_s=0.0: waits.append(found)
    )
    taker.take(1)
    assert waits == [True]


@pytest.mark.parametrize("is_made", [True, False])
def test_an_entry_of_unknown_outcome_loses_no_message(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    put(connection, "a", "b")
    queue: SharedQueue = connection.transport.shared_queue("q")
    exchange, results = queue._log.exchange, []

    def unclear(*asked: Any) -> Any:
        monkeypatch.undo()
        results.append(exchange(*asked) if is_made else None)
        monkeypatch.setattr(queue._log, "resolve", lambda _: results[0])
        raise OutcomeUnknown("no answer", token="t")

    first = queue.take(1)
    assert first is not None
    queue.acknowledge(first.tag, AcknowledgeType.ACCEPT)
    monkeypatch.setattr(queue._log, "exchange", unclear)
    second = queue.take(1)
    assert (second is not None) is is_made
    second = second or queue.take(1)
    assert second is not None
    assert start_of(connection) == 1


def test_messages_that_cannot_be_read_are_tried_again_later(
    connection: Connection, memory_root: str
) -> None:
    put(connection, "a")
    store = open_store(memory_root)
    folder = f"topics/{queue_topic('q')}/"
    (path,) = [of.key for of in store.list(folder) if of.key.endswith(".parquet")]
    store.delete(path)
    store.put(path, b"PAR1")
    with closing(Taker(connection, Queue("q"))) as taker:
        assert taker.take() == []
    (span,) = state_of(connection).spans
    assert span.status.state is RecordState.AVAILABLE
    assert span.status.visible_ms > 0


def test_a_root_that_cannot_be_listed_is_no_connection() -> None:
    with pytest.raises(KafkaException):
        Connection(f"{SCHEME}:///dev/null/root").transport.establish_connection()


@pytest.mark.parametrize("seconds", [0, 86_401, "x", None])
def test_a_visibility_timeout_that_no_lock_can_have_is_refused(url: str, seconds: object) -> None:
    made = Connection(url, transport_options={"visibility_timeout": seconds})
    with pytest.raises(InvalidConfig, match="visibility_timeout"):
        made.transport  # noqa: B018 - it is made by the property


# --- locks ---


def test_a_dead_worker_loses_its_messages_and_a_living_one_does_not(url: str) -> None:
    """A worker that is asked for messages prolongs its locks."""
    options = {"visibility_timeout": 1}
    with Connection(url, transport_options=options) as one:
        put(one, "a", "b")
        living = Taker(one, Queue("q"), prefetch=1)
        assert living.take(1) == ["a"]
        with Connection(url, transport_options=options) as two:
            dead = two.transport.shared_queue("q")
            assert dead.take(1).payload["properties"]["delivery_info"]["routing_key"] == "q"
            with Connection(url, transport_options=options) as three:
                other = Taker(three, Queue("q"))
                found: list[Any] = []
                for _ in range(100):
                    living.take()
                    found += other.take()
                    if found:
                        break
                assert found == ["b"]


@pytest.mark.parametrize(
    "pattern", ["#", "*", "a.*", "a.#", "#.b", "*.b", "a.*.b", "a.#.b", "a+.b"]
)
def test_patterns_fit_as_in_other_transports_of_kombu(pattern: str) -> None:
    theirs = re.compile(TopicExchange(None).key_to_pattern(pattern))
    binding = Binding("t", "topic", pattern)
    for key in ("", "a", "b", "a.b", "a.x.b", "a.x.y.b", "aa.b", "a+.b", "x.a.b", "ab"):
        assert takes({binding}, "t", key) is (theirs.match(key) is not None), key


def test_names_that_topics_cannot_have_get_names_of_their_own() -> None:
    assert queue_topic("mails") == "queue.mails"
    assert exchange_topic("mails") == "exchange.mails"
    names = {queue_topic(name) for name in ("a@b", "a b", "a-b", "ü" * 300, "v" * 300)}
    assert len(names) == 5
    assert all(name.isascii() and len(name) <= 249 for name in names)
