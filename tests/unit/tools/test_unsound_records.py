"""Tools go on over a stored value that no reader can return, and name its record."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import duckdb
import openpyxl
import pyarrow as pa
import pytest

from deltaq import Consumer, Producer, Topic, TopicPartition
from deltaq.clock import SYSTEM_CLOCK
from deltaq.console.messages import Wanted, find
from deltaq.serde.schema import Unreadable
from deltaq.tools import (
    copy,
    copying,
    diff,
    examine,
    matching,
    messages,
    offset_ranges,
    sql,
    stats,
    to_arrow,
    to_csv,
    to_duckdb,
    to_pandas,
    to_polars,
    to_xlsx,
)
from tests.doubles.unsound import FAR_TIME, append_unsound, headers_named, text_of

SCHEMA = pa.schema(
    [("id", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("f", pa.float64())]
)
NOON = pa.scalar(1_795_600_000_000_000, pa.int64()).cast(FAR_TIME.type)


@pytest.fixture
def trades(memory_root: str) -> Topic:
    """Four records: of the second the text, of the third the time, and of the fourth the header
    cannot be returned.
    """
    topic = Topic("trades", SCHEMA, bootstrap_servers=memory_root).create()
    rows = pa.table(
        {
            "id": [0, 1, 2, 3],
            "s": text_of(b"a", b"\xfc", b"c", b"d"),
            "t": pa.array([NOON.as_py()] * 4, FAR_TIME.type),
            "f": pa.array([float("nan")] * 4),
        }
    )
    times = pa.array([NOON.value, NOON.value, FAR_TIME.value, NOON.value]).cast(FAR_TIME.type)
    rows = rows.set_column(2, "t", times)
    append_unsound(
        topic.store,
        "trades",
        rows,
        headers=headers_named(b"h", b"h", b"h", b"n\xfc"),
        times_ms=[1, 2, 3, -1],
    )
    return topic


LOST = [
    "partition 0, offset 1: column 's' has bytes that are no UTF-8",
    "partition 0, offset 2: column 't' is outside the years 1 to 9999",
    "partition 0, offset 3: column '_headers.element.key' has bytes that are no UTF-8",
]
WRONG_TIME = "partition 0, offset 3: column '_timestamp' is no time of a message (1970 to 2262)"


def assert_named(caplog: pytest.LogCaptureFixture) -> None:
    for place in LOST:
        assert f"topic=trades {place}" in caplog.text


def test_messages_have_the_reason_in_the_place_of_the_value(trades: Topic) -> None:
    found = list(messages(trades))
    assert [isinstance(record.value, Unreadable) for record in found] == [False, True, True, False]
    assert [str(found[at].value) for at in (1, 2)] == [
        place.partition(": ")[2] for place in LOST[:2]
    ]
    assert [record.headers for record in found] == [[("h", b"x")]] * 3 + [[("n\\xfc", b"x")]]
    assert [record.timestamp for record in found] == [1, 2, 3, -1]


def test_exports_leave_the_value_out_and_name_it(
    trades: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert to_csv(trades, tmp_path / "x.csv") == 4
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["s"], row["t"] != "", row["_headers"] != "") for row in rows] == [
        ("0", "a", True, True),
        ("1", "", True, True),
        ("2", "c", False, True),
        ("3", "d", True, False),
    ]
    assert_named(caplog)
    assert to_xlsx(trades, tmp_path / "x.xlsx") == 4
    sheet = openpyxl.load_workbook(tmp_path / "x.xlsx").active
    assert [row[6] for row in sheet.iter_rows(values_only=True)] == ["s", "a", None, "c", "d"]


def test_other_libraries_get_null_for_it(trades: Topic, caplog: pytest.LogCaptureFixture) -> None:
    expected = ["a", None, "c", "d"]
    assert to_polars(trades)["s"].to_list() == expected
    assert to_pandas(trades)["s"].tolist() == expected
    assert_named(caplog)
    assert sql(trades.store, "select s, upper(s) u from trades order by id")["u"].to_pylist() == [
        "A",
        None,
        "C",
        "D",
    ]
    with duckdb.connect() as connection:
        name = to_duckdb(trades, connection)
        assert connection.execute(f"select s from {name} order by id").fetchall() == [
            (each,) for each in expected
        ]


def test_arrow_has_what_is_stored(trades: Topic) -> None:
    assert to_arrow(trades)["s"].cast(pa.binary()).to_pylist()[1] == b"\xfc"


def test_a_search_and_statistics_go_on(trades: Topic) -> None:
    (batch,) = trades.to_batches()
    assert matching(batch, "^[acd]$").column("id").to_pylist() == [0, 2, 3]
    found = stats(trades, offset_ranges(trades))
    assert (found.messages, found.first_timestamp, found.last_timestamp) == (4, 1, 3)


def test_a_page_of_the_console_shows_the_reason(trades: Topic) -> None:
    rows = find(trades.store, SYSTEM_CLOCK, "trades", Wanted(is_newest=False)).rows
    assert [row.value.kind for row in rows] == ["typed", "unreadable", "unreadable", "typed"]
    assert rows[1].value.text == "column 's' has bytes that are no UTF-8"
    assert [row.timestamp for row in rows] == [1, 2, 3, None]


def test_a_root_is_examined_for_such_values(trades: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {finding.check: finding for finding in examine(trades.store)}["records"]
    assert found.state == "wrong"
    for place in (*LOST, WRONG_TIME):
        assert f"topic 'trades', {place}" in found.found
    assert "1 file of 1, the newest ones" in found.found
    monkeypatch.setattr("deltaq.tools.doctor.RECORDS_BYTES_MAX", 10)
    found = {finding.check: finding for finding in examine(trades.store)}["records"]
    assert (found.state, found.found) == (
        "ok",
        "readers can return all values (0 files of 1, the newest ones)",
    )


# --- copies ---


def test_a_copy_goes_on_over_such_records_and_finds_them_the_same_again(
    trades: Topic, memory_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = {"bootstrap.servers": memory_root}, {"bootstrap.servers": memory_root + "copy"}
    with Producer(source) as producer:
        producer.produce("others", b"1")
    for copied in (4, 5):  # the last record of the copy is compared before it goes on
        report = copy(source, target)
        assert report.failures == {}
        assert Topic("trades", conf=target).to_arrow().num_rows == copied
        with Producer(source) as producer:
            producer.produce("trades", {"id": 4})
            producer.produce("others", b"2")
    assert_named(caplog)
    theirs = to_arrow(Topic("trades", conf=target))["s"].cast(pa.binary()).to_pylist()
    assert theirs == [b"a", b"\xfc", b"c", b"d", None]
    assert list(diff(trades, Topic("trades", conf=target), {0: (0, 4)}, {0: (0, 4)})) == []


def test_two_such_values_that_differ_are_a_difference(memory_root: str) -> None:
    left, right = (
        Topic(name, SCHEMA, bootstrap_servers=memory_root).create() for name in ("a", "b")
    )
    for topic, content in ((left, b"\xfc"), (right, b"\xfd")):
        append_unsound(
            topic.store, topic.name, pa.table({"id": [1], "s": text_of(content)}), times_ms=[7]
        )
    (found,) = diff(left, right, {0: (0, 1)}, {0: (0, 1)})
    assert found.fields == ("value",)


def test_a_copy_that_another_program_has_written_is_still_found(memory_root: str) -> None:
    source, target = {"bootstrap.servers": memory_root}, {"bootstrap.servers": memory_root + "copy"}
    original = Topic("t", SCHEMA, conf=source).create()
    append_unsound(
        original.store,
        "t",
        pa.table({"id": [1], "t": pa.array([FAR_TIME.value]).cast(FAR_TIME.type)}),
    )
    copy(source, target)
    for conf, far in ((source, FAR_TIME.value + 1), (target, FAR_TIME.value + 2)):
        column = pa.array([far]).cast(FAR_TIME.type)
        append_unsound(Topic("t", conf=conf).store, "t", pa.table({"id": [2], "t": column}))
    append_unsound(original.store, "t", pa.table({"id": [3]}))
    (failure,) = copy(source, target).failures.values()
    assert (
        "offset 1 of partition 0 of topic 't' holds another message at the target"
        in failure.error.str()
    )


def test_an_error_of_one_topic_never_ends_the_copy_of_the_others(
    memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = {"bootstrap.servers": memory_root}, {"bootstrap.servers": memory_root + "copy"}
    with Producer(source) as producer:
        for name in ("a", "b"):
            producer.produce(name, b"1")
    sound = copying.TopicCopier.run

    def run(copier: copying.TopicCopier, ends: Mapping[int, int] | None = None) -> None:
        if copier._topic == "a":
            raise OverflowError("date value out of range")
        sound(copier, ends)

    monkeypatch.setattr(copying.TopicCopier, "run", run)
    report = copy(source, target)
    assert list(report.failures) == ["a"]
    assert "OverflowError: date value out of range" in report.failures["a"].error.str()
    assert report.topics == {"b": 1}


def test_offsets_of_groups_are_copied_beside_such_a_record(trades: Topic, memory_root: str) -> None:
    source, target = {"bootstrap.servers": memory_root}, {"bootstrap.servers": memory_root + "copy"}
    with Consumer(source, group_id="g") as consumer:
        consumer.commit(offsets=[TopicPartition("trades", 0, 2)], asynchronous=False)
    report = copy(source, target, groups=True)
    assert (report.failures, report.groups) == ({}, ["g"])
    with Consumer(target, group_id="g") as consumer:
        assert [part.offset for part in consumer.committed([TopicPartition("trades", 0)], 20)] == [
            2
        ]
