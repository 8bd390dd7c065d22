"""Entries of a foreign engine that ignores deltaq's writer feature, forced into the log of a
topic.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from deltaq import (
    Consumer,
    Corrupt,
    Incompatible,
    KafkaError,
    KafkaException,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.delta.actions import Metadata, Protocol, encode_entry, parse_entry
from deltaq.names import log_start_marker
from deltaq.store import LocalStore
from tests.doubles.reading import next_message

RECORDS = 6


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    return {"bootstrap.servers": str(tmp_path / "root")}


@pytest.fixture
def table(tmp_path: Path, conf: dict[str, str]) -> Path:
    """The table of a topic with one record per commit, as entries 1 to 6."""
    Topic("t", conf=conf).create()
    with Producer(conf) as producer:
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number, b"k")
            assert producer.flush(20) == 0
    return tmp_path / "root" / "topics" / "t"


@pytest.fixture
def unprotected(table: Path, tmp_path: Path) -> Path:
    """A copy of the table that asks no writer to know anything of deltaq's."""
    copy = tmp_path / "unprotected"
    shutil.copytree(table, copy)
    for path in copy.glob("_delta_log/*.json"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        plain = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
            if "protocol" in line
            else line
            for line in lines
        ]
        path.write_text(
            "".join(json.dumps(line) + "\n" for line in plain if "domainMetadata" not in line)
        )
    return copy


def rows(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table()


def merge(path: Path) -> None:
    source = rows(path).slice(0, 2)
    merging = DeltaTable(str(path)).merge(
        source, "s.value = t.value", source_alias="s", target_alias="t"
    )
    merging.when_matched_delete().execute()


WRITES: dict[str, Callable[[Path], object]] = {
    "append": lambda path: write_deltalake(str(path), rows(path).slice(0, 2), mode="append"),
    "overwrite": lambda path: write_deltalake(str(path), rows(path).slice(0, 2), mode="overwrite"),
    "truncate": lambda path: DeltaTable(str(path)).delete(),
    "delete": lambda path: DeltaTable(str(path)).delete("_timestamp is not null"),
    "update": lambda path: DeltaTable(str(path)).update({"_partition": "7"}),
    "merge": merge,
    "optimize": lambda path: DeltaTable(str(path)).optimize.compact(),
    "z-order": lambda path: DeltaTable(str(path)).optimize.z_order(["_timestamp"]),
    "restore": lambda path: DeltaTable(str(path)).restore(2),
    "set a property": lambda path: DeltaTable(str(path)).alter.set_table_properties(
        {"delta.appendOnly": "true"}
    ),
    "add a column": lambda path: DeltaTable(str(path)).alter.add_columns(
        [Field("x", PrimitiveType("string"))]
    ),
    "add a constraint": lambda path: DeltaTable(str(path)).alter.add_constraint(
        {"c": "_partition >= 0"}
    ),
    "replace": lambda path: write_deltalake(
        str(path), pa.table({"x": [1]}), mode="overwrite", schema_mode="overwrite"
    ),
}


def entry(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def reading(conf: dict[str, str]) -> Consumer:
    consumer = Consumer(
        conf | {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    )
    consumer.assign([TopicPartition("t", 0)])
    return consumer


def read_on(consumer: Consumer) -> tuple[list[int], KafkaError]:
    """The offsets that come, and the error that ends them."""
    offsets: list[int] = []
    while (message := next_message(consumer)).error() is None:
        offsets.append(message.offset())
    return offsets, message.error()


@pytest.mark.fault("W1", "W2", "W3", "W5")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_foreign_engines_forced_write_is_refused_by_version_without_duplicates(
    write, conf, table, unprotected
):
    with reading(conf) as consumer:
        assert [next_message(consumer).offset() for _ in range(RECORDS)] == list(range(RECORDS))
        write(unprotected)
        foreign = entry(unprotected, RECORDS + 1)
        assert foreign.exists(), "the engine wrote an entry"
        assert not entry(table, RECORDS + 1).exists()
        for file in unprotected.glob("*.parquet"):
            if not (table / file.name).exists():
                shutil.copy(file, table)
        foreign.rename(entry(table, RECORDS + 1))  # at once: the consumer is following

        offsets, error = read_on(consumer)
    assert offsets == [], "neither new rows with offsets made up nor old ones again"
    assert error == KafkaError.UNSUPPORTED_VERSION
    assert f"entry {RECORDS + 1}" in error.str()
    with pytest.raises(Incompatible, match=f"entry {RECORDS + 1}.*was not written by deltaq"):
        Topic("t", conf=conf).to_arrow()
    with Producer(conf) as producer:
        producer_refusal = refused(producer)
    assert producer_refusal.args[0].code() in (
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._MSG_TIMED_OUT,
    )
    assert not entry(table, RECORDS + 2).exists(), "nothing is written behind it"

    entry(table, RECORDS + 1).unlink()
    assert Topic("t", conf=conf).to_arrow()["value"].to_pylist() == [
        b"%d" % number for number in range(RECORDS)
    ]


def refused(producer: Producer) -> KafkaException:
    """How a message is refused, at `produce` or in its report."""
    reports: list[KafkaError | None] = []
    try:
        producer.produce("t", b"late", on_delivery=lambda error, message: reports.append(error))
        producer.flush(30)
    except KafkaException as error:
        return error
    assert reports[0] is not None
    return KafkaException(reports[0])


def forge(table: Path, *lines: dict[str, Any]) -> None:
    entry(table, RECORDS + 1).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.fault("W1")
def test_an_append_under_deltaqs_name_without_offsets_is_not_delivered(conf, table, unprotected):
    """Sealed like an entry of deltaq's; the file has no tags."""
    WRITES["append"](unprotected)
    foreign = parse_entry(entry(unprotected, RECORDS + 1).read_bytes(), RECORDS + 1, "")
    ours = parse_entry(entry(table, RECORDS).read_bytes(), RECORDS, "")
    assert ours.info is not None
    head = ours.actions[-1]
    entry(table, RECORDS + 1).write_bytes(encode_entry(ours.info, [*foreign.actions, head]))
    with pytest.raises(Incompatible, match="it has no offsets"):
        Topic("t", conf=conf).to_arrow()
    with reading(conf) as consumer:
        _, error = read_on(consumer)
    assert error == KafkaError.UNSUPPORTED_VERSION


PROTOCOLS = {
    "deletion vectors": Protocol(
        3, 7, ("deletionVectors",), ("deletionVectors", "domainMetadata", "deltaq")
    ),
    "column mapping": Protocol(2, 7, (), ("columnMapping", "domainMetadata", "deltaq")),
    "an unknown reader feature": Protocol(
        3, 7, ("fromTheFuture",), ("fromTheFuture", "domainMetadata", "deltaq")
    ),
    "an unknown writer feature": Protocol(1, 7, (), ("fromTheFuture", "domainMetadata", "deltaq")),
    "a reader version of the future": Protocol(9, 9, (), ("domainMetadata", "deltaq")),
    "without deltaq": Protocol(1, 7, (), ("domainMetadata",)),
    "an old writer version": Protocol(1, 2),
}


@pytest.mark.fault("W4")
@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS.keys())
def test_a_protocol_that_asks_for_more_or_protects_less_is_refused(conf, table, protocol):
    ours = parse_entry(entry(table, RECORDS).read_bytes(), RECORDS, "")
    assert ours.info is not None
    entry(table, RECORDS + 1).write_bytes(encode_entry(ours.info, [protocol, ours.actions[-1]]))
    with pytest.raises(Incompatible, match=f"version {RECORDS + 1} of the table"):
        Topic("t", conf=conf).to_arrow()


@pytest.mark.fault("W4")
def test_a_file_with_a_deletion_vector_is_corrupt_and_not_read_without_it(conf, table):
    add = {
        "path": "x.parquet",
        "size": 1,
        "modificationTime": 0,
        "dataChange": True,
        "partitionValues": {},
    }
    forge(
        table,
        {
            "add": add
            | {"deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1}}
        },
    )
    with pytest.raises(Corrupt, match="deletion vector"):
        Topic("t", conf=conf).to_arrow()


@pytest.mark.fault("W4")
def test_an_unknown_action_in_a_deltaq_entry_is_ignored(conf, table):
    """A later deltaq, or a later Delta, may write it; what a reader must not pass over stands in
    the protocol.
    """
    with Producer(conf) as producer:
        producer.produce("t", b"more")
    path = entry(table, RECORDS + 1)
    parsed = parse_entry(path.read_bytes(), RECORDS + 1, "")
    assert parsed.info is not None
    known = encode_entry(parsed.info, parsed.actions).partition(b"\n")[2]
    unknown = b'{"fromTheFuture":{"path":"x.parquet","tags":[1,2.5,null]}}\n'
    sealed = encode_entry(parsed.info, parsed.actions)
    before = sealed.partition(b"\n")[0].rpartition(b',"crc32":')[0]
    path.write_bytes(
        before + b',"crc32":%d}}}\n' % crc32(unknown + known, crc32(before)) + unknown + known
    )
    shutil.copytree(table.parent.parent, table.parent.parent.with_name("copy"))
    read = Topic(
        "t", conf={"bootstrap.servers": str(table.parent.parent.with_name("copy"))}
    ).to_arrow()
    assert read["value"].to_pylist()[-1] == b"more"


@pytest.mark.fault("W4")
def test_a_full_vacuum_without_retention_keeps_live_files_and_deltaq_objects(conf, table):
    store = LocalStore(str(table.parent.parent))
    store.put(log_start_marker("topics/t/", 0), b"")
    before = {path for path in table.rglob("*") if path.is_file()}
    removed = DeltaTable(str(table)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    )
    assert removed == []
    assert {path for path in table.rglob("*") if path.is_file()} >= before
    assert Topic("t", conf=conf).to_arrow().num_rows == RECORDS


@pytest.mark.fault("W5")
def test_a_table_that_was_dropped_and_made_by_another_engine_is_no_topic(conf, table):
    shutil.rmtree(table)
    write_deltalake(str(table), pa.table({"value": [b"theirs"]}))
    with pytest.raises(
        Incompatible, match=r"topics/t/.* made by another program.*[Cc]hoose another name"
    ):
        Topic("t", conf=conf).to_arrow()
    with reading(conf) as consumer:
        offsets, error = read_on(consumer)
    assert offsets == []
    assert error == KafkaError.UNSUPPORTED_VERSION


@pytest.mark.fault("W5")
def test_a_topic_removed_by_hand_and_made_again_does_not_continue_the_old_one(conf, table):
    consumer = reading(conf)
    assert [next_message(consumer).offset() for _ in range(RECORDS)] == list(range(RECORDS))
    old_id = Topic("t", conf=conf).describe().topic_id
    shutil.rmtree(table)
    again = {"bootstrap.servers": conf["bootstrap.servers"]}
    store = LocalStore(conf["bootstrap.servers"])
    Topic("t", store=store).create()
    with Producer(again, store=store) as producer:
        for number in range(RECORDS + 2):
            producer.produce("t", b"new %d" % number)
            assert producer.flush(20) == 0
    assert Topic("t", store=store).describe().topic_id != old_id
    offsets, error = read_on(consumer)
    consumer.close()
    assert offsets == [], "no record of the new topic at an offset of the old one"
    assert error == KafkaError._BAD_MSG
    with Consumer(again | {"group.id": "h", "auto.offset.reset": "earliest"}, store=store) as fresh:
        fresh.assign([TopicPartition("t", 0)])
        assert [next_message(fresh).value() for _ in range(2)] == [b"new 0", b"new 1"]


@pytest.mark.fault("W5")
def test_a_schema_change_by_another_engine_is_ignored(conf, table):
    metadata = next(
        action
        for action in parse_entry(entry(table, 0).read_bytes(), 0, "").actions
        if isinstance(action, Metadata)
    )
    body = {
        "id": metadata.id,
        "schemaString": metadata.schema_string.replace("binary", "string"),
        "partitionColumns": [],
    }
    forge(
        table,
        {
            "metaData": body
            | {"format": {"provider": "parquet", "options": {}}, "configuration": {}}
        },
    )
    with pytest.raises(Incompatible):
        Topic("t", conf=conf).to_arrow()
