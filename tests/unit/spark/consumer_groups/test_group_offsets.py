"""The sink's option `group.id`: the offsets of a micro-batch are part of its transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from deltaq import Consumer, Corrupt, InvalidConfig, KafkaException, Topic, Unavailable
from deltaq.clock import SYSTEM_CLOCK
from deltaq.groups.log import GroupLog
from deltaq.groups.transaction_offsets import TransactionOffsets
from deltaq.spark.data_source import DeltaqDataSource
from deltaq.spark.group_offsets import open_checkpoint, recorded_offsets
from deltaq.spark.native_paths import store_address
from deltaq.spark.options import parse_sink_options
from deltaq.store import LocalStore, open_store
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.topics.log import TopicLog
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.resolution import resolve_files, resolve_transaction
from deltaq.transactions.state import AbortReason, Decision, TransactionHead
from tests.doubles.groups import join, new_member
from tests.doubles.micro_batches import in_batch, new_worker, record_offsets, task_results
from tests.doubles.micro_batches import stream_writer as bare_stream_writer
from tests.doubles.produced_tables import Produce
from tests.doubles.reading import eventually, next_message

ROWS = pa.table({"topic": ["a", "b", "a"], "value": [b"1", b"2", b"3"]})
NO_ROWS = ROWS.slice(0, 0)
ONE_TOPIC = pa.table({"value": [b"1", b"2"]})


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    new_worker(monkeypatch)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def orders(root: str, produce: Produce, checkpoint: Path) -> dict[int, object]:
    """A topic of two partitions, and the offsets of the first three micro-batches that read it: one
    more record of partition 0, and two of partition 1, with each. They are in the checkpoint.
    """
    for partition in (0, 1):
        produce("orders", [b"%d" % n for n in range(10)], to=partition, partitions=2)
    ends = {number: offset(root, number + 1, 2 * number + 2) for number in range(3)}
    for number, end in ends.items():
        record_offsets(checkpoint, number, end)
    return ends


@pytest.fixture
def write(
    monkeypatch: pytest.MonkeyPatch, root: str, checkpoint: Path, orders: object
) -> Callable[..., None]:
    """A function that runs a micro-batch of the query in a new process."""

    def run(number: int, rows: pa.Table = ROWS, group: str = "billing", **options: str) -> None:
        new_worker(monkeypatch)
        options = {"checkpointLocation": str(checkpoint), "group.id": group} | options
        in_batch(monkeypatch, root, rows, number, **options)

    return run


def offset(root: str, *next_offsets: int, topic: str = "orders") -> object:
    topic_id = Topic(topic, bootstrap_servers=root).describe().topic_id
    numbered = {str(number): of for number, of in enumerate(next_offsets)}
    return {topic: {"topic_id": topic_id, "next_offsets": numbered}}


def group_log(root: str, group: str = "billing") -> GroupLog:
    return GroupLog(LocalStore(root), group)


def committed(root: str, group: str = "billing") -> dict[int, int]:
    topic_id = Topic("orders", bootstrap_servers=root).describe().topic_id
    found = group_log(root, group).committed([("orders", topic_id, number) for number in (0, 1)])
    return {of.partition: of.offset for of in found if of is not None}


def head(root: str) -> TransactionHead:
    found = TransactionLog(LocalStore(root), "spark-query", SYSTEM_CLOCK).head()
    assert found is not None
    return found


def values(root: str, topic: str) -> list[bytes]:
    found: list[bytes] = Topic(topic, bootstrap_servers=root).to_arrow()["value"].to_pylist()
    return found


def deadline() -> float:
    return SYSTEM_CLOCK.monotonic() + 10


# --- one decision ---


def test_offsets_and_output_are_one_decision(root: str, write: Callable[..., None]) -> None:
    write(0)
    decision = head(root).decision
    assert decision is not None
    assert [staged.topic for staged in decision.topics] == ["a", "b"]
    assert decision.groups == ("billing",)
    assert (values(root, "a"), values(root, "b")) == ([b"1", b"3"], [b"2"])
    assert committed(root) == {0: 1, 1: 2}
    write(1)
    assert committed(root) == {0: 2, 1: 4}
    assert group_log(root).pending() == []


def test_a_query_that_writes_one_topic_commits_its_offsets_as_well(
    root: str, write: Callable[..., None]
) -> None:
    for number in (0, 0, 1):
        write(number, ONE_TOPIC, topic="copy")
    assert values(root, "copy") == [b"1", b"2"] * 2
    assert committed(root) == {0: 2, 1: 4}


def test_a_micro_batch_without_rows_commits_its_offsets(
    root: str, write: Callable[..., None]
) -> None:
    write(0)
    for _ in range(2):
        write(1, NO_ROWS)
    write(2, ONE_TOPIC.slice(0, 0), topic="copy")
    assert committed(root) == {0: 3, 1: 6}
    assert values(root, "a") == [b"1", b"3"]


@pytest.mark.parametrize("stopped", [GroupLog.resolve, TopicLog.append])
def test_a_decision_is_published_by_the_next_driver(
    root: str,
    write: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    stopped: Callable[..., Any],
) -> None:
    def die(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    owner = {"resolve": GroupLog, "append": TopicLog}[stopped.__name__]
    with monkeypatch.context() as patch:
        patch.setattr(owner, stopped.__name__, die)
        with pytest.raises(KeyboardInterrupt):
            write(0)
    assert committed(root) == {}
    write(0, pa.table({"topic": ["c"], "value": [b"other"]}))
    assert (values(root, "a"), values(root, "c")) == ([b"1", b"3"], [])
    assert committed(root) == {0: 1, 1: 2}


def test_a_repeated_micro_batch_writes_nothing(root: str, write: Callable[..., None]) -> None:
    write(0)
    write(1)
    before = head(root), group_log(root).state().version
    for number in (0, 1):
        write(number)
    assert (head(root), group_log(root).state().version) == before
    assert values(root, "a") == [b"1", b"3"] * 2


def test_a_consumer_begins_behind_the_last_micro_batch(
    root: str, write: Callable[..., None]
) -> None:
    write(0)
    write(1)
    conf = {"bootstrap.servers": root, "group.id": "billing", "auto.offset.reset": "error"}
    with Consumer(conf) as consumer:
        consumer.subscribe(["orders"])
        first: dict[int, int] = {}
        for _ in range(14):
            message = next_message(consumer)
            first.setdefault(message.partition(), message.offset())
    assert first == {0: 2, 1: 4}


# --- interruptions, and other processes ---


@pytest.fixture
def pinned(
    root: str, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> TransactionOffsets:
    """What a driver has left behind that was killed before the decision of micro-batch 1."""

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    write(0)
    with monkeypatch.context() as patch:
        patch.setattr(TransactionLog, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            write(1)
    (left,) = group_log(root).pending()
    assert committed(root) == {0: 1, 1: 2}
    return left


def test_the_next_start_decides_what_was_only_pinned(
    root: str, write: Callable[..., None], pinned: TransactionOffsets
) -> None:
    write(1)
    assert head(root).number == pinned.transaction.number
    assert committed(root) == {0: 2, 1: 4}
    assert values(root, "a") == [b"1", b"3"] * 2


def test_the_next_owner_of_the_group_aborts_what_was_only_pinned(
    root: str, write: Callable[..., None], pinned: TransactionOffsets
) -> None:
    conf = {"bootstrap.servers": root, "group.id": "billing", "enable.auto.commit": False}
    with Consumer(conf) as consumer:
        consumer.subscribe(["orders"])
        message = next_message(consumer)
        assert message.offset() == {0: 1, 1: 2}[message.partition()]
    assert group_log(root).pending() == []
    write(1)
    assert head(root).number == pinned.transaction.number + 1
    assert committed(root) == {0: 2, 1: 4}
    assert values(root, "a") == [b"1", b"3"] * 2


@pytest.mark.usefixtures("pinned")
def test_a_query_that_gets_another_group_leaves_nothing_pending_in_the_first(
    root: str, write: Callable[..., None]
) -> None:
    write(1, group="other")
    assert committed(root, "other") == {0: 2, 1: 4}
    conf = {"bootstrap.servers": root, "group.id": "billing", "enable.auto.commit": False}
    with Consumer(conf) as consumer:
        consumer.subscribe(["orders"])
        message = next_message(consumer)
        assert message.offset() == {0: 1, 1: 2}[message.partition()]
    assert group_log(root).pending() == []


def abort(root: str, draft: Decision, write: Callable[..., None]) -> None:
    reason = AbortReason.READER
    resolve_transaction(LocalStore(root), draft.key, reason, SYSTEM_CLOCK, deadline())


def commit_it(root: str, draft: Decision, write: Callable[..., None]) -> None:
    write(1)


def commit_it_and_go_on(root: str, draft: Decision, write: Callable[..., None]) -> None:
    write(1)
    write(2, NO_ROWS)


@pytest.mark.parametrize(
    ("meanwhile", "numbers", "offsets"),
    [
        (abort, [2, 3], {0: 2, 1: 4}),
        (commit_it, [2], {0: 2, 1: 4}),
        (commit_it_and_go_on, [2], {0: 3, 1: 6}),
    ],
)
def test_another_process_ends_the_transaction_before_the_decision(
    root: str,
    write: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[..., None],
    numbers: list[int],
    offsets: dict[int, int],
) -> None:
    write(0)
    decide, asked = TransactionLog.commit, []

    def late(log: TransactionLog, draft: Decision, *arguments: Any) -> Any:
        asked.append(draft.key.number)
        if len(asked) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(TransactionLog, "commit", decide)
                meanwhile(root, draft, write)
        return decide(log, draft, *arguments)

    monkeypatch.setattr(TransactionLog, "commit", late)
    write(1)
    assert asked == numbers
    assert committed(root) == offsets
    assert group_log(root).pending() == []
    assert values(root, "a") == [b"1", b"3"] * 2


def test_a_batch_that_cannot_be_repeated_leaves_nothing_pending(
    root: str, checkpoint: Path, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(0)
    decide, store = TransactionLog.commit, LocalStore(root)

    def beside_removal(log: TransactionLog, draft: Decision, *arguments: Any) -> Any:
        paths = [segment.path for of in draft.topics for segment in of.segments]
        resolve_files(store, paths, float("inf"), SYSTEM_CLOCK, deadline())
        voided.extend(paths)
        return decide(log, draft, *arguments)

    voided: list[str] = []
    monkeypatch.setattr(TransactionLog, "commit", beside_removal)
    monkeypatch.setattr(
        "deltaq.spark.sink_transactions.voided_uploads", lambda segments, head: voided
    )
    with pytest.raises(Unavailable, match="may have been removed"):
        write(1)
    assert group_log(root).pending() == []
    assert committed(root) == {0: 1, 1: 2}


# --- the group ---


def test_living_members_refuse_and_nothing_is_written(
    root: str, write: Callable[..., None]
) -> None:
    write(0)
    conf = {
        "bootstrap.servers": root,
        "group.id": "billing",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 50,
    }
    with Consumer(conf) as consumer:
        consumer.subscribe(["orders"])
        eventually(lambda: consumer.poll(0.1) or consumer.assignment())
        with pytest.raises(KafkaException, match="only they commit its offsets"):
            write(1)
        assert values(root, "a") == [b"1", b"3"]
    write(1)
    assert committed(root) == {0: 2, 1: 4}
    assert values(root, "a") == [b"1", b"3"] * 2


def test_a_killed_member_holds_the_query_up_until_it_is_found_dead(
    root: str, write: Callable[..., None]
) -> None:
    write(0)
    join(group_log(root), "killed", new_member(session_timeout_ms=300))
    write(1)
    assert committed(root) == {0: 2, 1: 4}
    assert group_log(root).head().members == {}


# --- the sources ---


def test_only_topics_of_the_root_are_committed(
    root: str,
    tmp_path: Path,
    checkpoint: Path,
    orders: dict[int, object],
    write: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    Topic("orders", bootstrap_servers=elsewhere).create()
    sources = (
        {"logOffset": 7},  # of Spark's file source
        5,  # of its rate source
        None,
        offset(elsewhere, 9),
        offset(root, 1, 1),
        orders[0],
    )
    record_offsets(checkpoint, 0, *sources)
    write(0)
    assert committed(root) == {0: 1, 1: 1}
    assert "does not have topic='orders'" in caplog.text


def test_a_query_without_topics_of_the_root_commits_its_output(
    root: str, checkpoint: Path, write: Callable[..., None]
) -> None:
    record_offsets(checkpoint, 0, {"logOffset": 7})
    write(0)
    write(0, NO_ROWS)
    assert values(root, "a") == [b"1", b"3"]
    assert group_log(root).state().version == -1


def test_the_offsets_of_named_sources_are_read(
    root: str, checkpoint: Path, orders: dict[int, object], write: Callable[..., None]
) -> None:
    record_offsets(checkpoint, 0, {"logOffset": 7}, orders[2], None, version="v2")
    write(0)
    assert committed(root) == {0: 3, 1: 6}


def test_a_checkpoint_without_the_offsets_is_refused_by_name(
    root: str, tmp_path: Path, write: Callable[..., None]
) -> None:
    with pytest.raises(InvalidConfig, match="no offsets of micro-batch 3") as refused:
        write(3)
    assert refused.value.key == "checkpointLocation"
    with pytest.raises(InvalidConfig, match='set the option "checkpointLocation"'):
        write(0, checkpointLocation=str(tmp_path / "other"))
    assert values(root, "a") == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"v1",
        b"v1\n{}",
        b'v1\n{}\n{"orders": {"topic_id": "x", "next_off',
        b"v1\n{}\n{}\n",
        b"v3\n{}\n{}",
        b"v1\n{}\n\xff",
    ],
)
def test_damaged_offsets_are_refused(
    root: str, checkpoint: Path, write: Callable[..., None], content: bytes
) -> None:
    (checkpoint / "offsets" / "0").write_bytes(content)
    with pytest.raises(Corrupt, match="offsets/0"):
        write(0)
    assert values(root, "a") == []


def test_a_checkpoint_that_cannot_be_read_is_unavailable(checkpoint: Path, orders: object) -> None:
    store = FaultyStore(LocalStore(str(checkpoint)), Rule("get", "offsets/*", Fault.refused()))
    with pytest.raises(Unavailable):
        recorded_offsets(store, 0)


@pytest.mark.parametrize(
    ("address", "url", "options"),
    [
        ("/data/a b", "/data/a b", {}),
        ("checkpoint", "./checkpoint", {}),
        ("file:/data", "/data", {}),
        ("file:///data/a%20b", "/data/a%20b", {}),
        ("s3a://bucket/prefix", "s3://bucket/prefix", {}),
        ("s3://bucket", "s3://bucket", {}),
        ("gs://bucket/prefix", "gs://bucket/prefix", {}),
        (
            "abfss://box@mine.dfs.core.windows.net/some/prefix",
            "az://box/some/prefix",
            {"account_name": "mine"},
        ),
    ],
)
def test_the_store_of_a_checkpoint_is_that_of_its_address(
    address: str, url: str, options: dict[str, str]
) -> None:
    assert store_address(address) == (url, options)


def test_a_checkpoint_in_a_bucket_has_the_options_of_a_root_of_that_kind() -> None:
    given = {"path": "s3://events", "store.endpoint": "http://127.0.0.1:9", "store.region": "x"}
    client = parse_sink_options(given).client
    options = {"endpoint": "http://127.0.0.1:9", "region": "x"}
    found = open_checkpoint("s3a://jobs/one", client, SYSTEM_CLOCK)
    assert found is open_store("s3://jobs/one", options, SYSTEM_CLOCK)
    with pytest.raises(InvalidConfig, match="credentials"):
        open_checkpoint("s3a://key:secret@jobs", client, SYSTEM_CLOCK)


# --- the option ---


def test_a_group_without_the_checkpoint_of_the_query_is_refused(root: str) -> None:
    with pytest.raises(InvalidConfig, match='needs the option "checkpointLocation"'):
        bare_stream_writer(root, ROWS, **{"group.id": "billing"})
    with pytest.raises(InvalidConfig, match="cannot read a checkpoint at 'hdfs'"):
        bare_stream_writer(root, ROWS, **{"group.id": "billing", "checkpointLocation": "hdfs:/x"})


def test_a_batch_write_has_no_group(root: str) -> None:
    given = {"path": root, "topic": "a", "group.id": "billing", "checkpointLocation": "./x"}
    schema = from_arrow_schema(ONE_TOPIC.schema)
    with pytest.raises(InvalidConfig, match=r'"group\.id" is for streams') as refused:
        DeltaqDataSource(given).writer(schema, False)
    assert refused.value.key == "group.id"


def test_an_invalid_group_is_refused(root: str) -> None:
    with pytest.raises(InvalidConfig, match=r"group\.id"):
        parse_sink_options({"path": root, "group.id": "a/b"})


def test_tasks_that_do_not_know_their_micro_batch_are_refused(
    root: str, checkpoint: Path, orders: object
) -> None:
    options = {"group.id": "billing", "checkpointLocation": str(checkpoint)}
    writer = bare_stream_writer(root, ROWS, **options)
    with pytest.raises(InvalidConfig, match="does not provide the number of the micro-batch"):
        writer.commit(task_results(writer, [ROWS]), 0)
    assert values(root, "a") == []
