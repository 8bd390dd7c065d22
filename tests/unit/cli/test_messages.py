"""The commands that write and read messages, verb by verb."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaq import AdminClient, Producer, Topic
from deltaq.tools.spreadsheets import write_sheet
from tests.doubles.unsound import append_unsound, text_of
from tests.unit.cli.conftest import ROOT, CommandEnd, Shell

T0 = 1_700_000_000_000  # 2023-11-14T22:13:20Z
WRONG_MESSAGES = (
    b"[]",
    b"{",
    b'{"value": 1}',
    b'{"value": {}}',
    b'{"key": 1}',
    b'{"partition": 9}',
    b'{"timestamp": "x"}',
    b'{"timestamp": -1}',
    b'{"timestamp": 99999999999999999}',
    b'{"headers": ["x"]}',
    b'{"headers": {"a": "b"}}',
)
HOSTILE = b"\x1b]0;owned\x07\x1b[2Jred\r\nforged"


@pytest.fixture
def orders(deltaq: Shell) -> Shell:
    """A topic of two partitions with five messages, one second after the other."""
    deltaq("topics create orders -p 2")
    with Producer(bootstrap_servers=ROOT) as producer:
        for number, (key, value) in enumerate(
            [(b"a", b"tea"), (None, b"milk"), (b"c", None), (b"d", b"Tea"), (b"e", b"")]
        ):
            headers = [("trace", b"7"), ("note", None)] if number == 0 else None
            partition, timestamp = number % 2, T0 + 1000 * number
            producer.produce(
                "orders", value, key=key, partition=partition, timestamp=timestamp, headers=headers
            )
            producer.flush()
    return deltaq


def _lines(ended: CommandEnd) -> list[str]:
    assert (ended.status, ended.errors) == (0, "")
    return ended.output.splitlines()


def test_messages_are_printed_by_a_format_as_in_kcat(orders: Shell) -> None:
    assert orders(r"cat orders -f '%t/%p/%o %T %K:%k %S:%s [%h] 100%%\n'").printed(f"""
        orders/0/0 {T0} 1:a 3:tea [trace=7,note=] 100%
        orders/1/0 {T0 + 1000} -1: 4:milk [] 100%
        orders/0/1 {T0 + 2000} 1:c -1: [] 100%
        orders/1/1 {T0 + 3000} 1:d 3:Tea [] 100%
        orders/0/2 {T0 + 4000} 1:e 0: [] 100%
        """)
    assert "unknown %q; known are %s" in orders("cat orders -f %q").errors


def test_messages_are_printed_as_a_table(orders: Shell) -> None:
    assert orders("head orders -n 3 --table").printed("""
        PARTITION  OFFSET  TIMESTAMP                 KEY  VALUE
        0               0  2023-11-14T22:13:20.000Z  a    tea
        1               0  2023-11-14T22:13:21.000Z       milk
        0               1  2023-11-14T22:13:22.000Z  c
        """)


def test_messages_are_printed_as_json_that_produce_takes_back(orders: Shell) -> None:
    printed = orders("consume orders --from beginning --exit --json")
    assert json.loads(_lines(printed)[0]) == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": T0,
        "key": "a",
        "value": "tea",
        "headers": [{"value": "7", "name": "trace"}, {"value": None, "name": "note"}],
    }
    orders("topics create again -p 2")
    assert (
        orders("produce again --json", printed.raw).errors
        == "deltaq: 5 messages written to again\n"
    )
    assert orders("diff orders again").printed("")


def test_bytes_that_are_no_text_survive_json(deltaq: Shell) -> None:
    deltaq("topics create raw")
    deltaq("produce raw -K ,", b"\xff\xfe,\x00\x01\x80\n")
    printed = deltaq("cat raw -o json")
    assert (printed.json["key_base64"], printed.json["value_base64"]) == ("//4=", "AAGA")
    deltaq("topics create again")
    deltaq("produce again --json", printed.raw)
    assert deltaq("cat again -f '%k|%s'").raw == b"\xff\xfe|\x00\x01\x80"


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ("--from beginning", ["tea", "milk", "", "Tea", ""]),
        ("--from end", []),
        ("--from 1", ["", "Tea", ""]),
        ("--from -1", ["Tea", ""]),
        ("--from 99", []),
        ("--from beginning --until 1", ["tea", "milk"]),
        ("--from @1700000001000 --until @1700000003000", ["milk", ""]),
        ("--from 2023-11-14T22:13:23", ["Tea", ""]),
        ("--from 2023-11-14T23:13:23+01:00", ["Tea", ""]),
        ("--from beginning -p 1", ["milk", "Tea"]),
        ("--from beginning -n 2", ["tea", "milk"]),
        ("--from beginning --grep '(?i)^TEA'", ["tea", "Tea"]),
    ],
)
def test_reading_begins_and_ends_at_places(orders: Shell, places: str, expected: list[str]) -> None:
    assert _lines(orders(f"consume orders --exit {places}")) == expected


def test_a_wrong_place_or_partition_is_explained(orders: Shell) -> None:
    assert (
        "'yesterday' is no place in a topic: use an offset"
        in orders("consume orders --from yesterday").errors
    )
    assert orders("cat orders -p 7").refused("partition 7 of topic 'orders' does not exist")
    assert orders("cat nothing").refused("topic 'nothing' does not exist")


def test_messages_are_followed_as_they_come(orders: Shell) -> None:
    assert _lines(orders("consume orders --from -1 -n 2")) == ["Tea", ""]
    assert _lines(orders("tail orders -n 1 --follow --timeout 0")) == [""]


def test_a_group_goes_on_where_it_has_committed(orders: Shell) -> None:
    assert len(_lines(orders("consume orders --group g --from beginning -n 5"))) == 5
    orders("produce orders -p 0", b"new\n")
    assert orders("consume orders --group g --from end -n 1").printed("new\n")
    (lag,) = [AdminClient(bootstrap_servers=ROOT).consumer_group_lag(["g"])["g"].result()]
    assert [(part.committed, part.lag) for part in lag.partitions] == [(4, 0), (2, 0)]
    assert "leave out --until" in orders("consume orders --group g --until end").errors
    assert "--table needs an end" in orders("consume orders --table").errors


def test_the_first_and_the_last_messages_are_shown(orders: Shell) -> None:
    assert _lines(orders("head orders -n 2")) == ["tea", "milk"]
    assert _lines(orders("tail orders -n 2")) == ["Tea", ""]
    assert _lines(orders("tail orders -n 0")) == []
    assert len(_lines(orders("head orders -n 99"))) == len(_lines(orders("tail orders -n 99"))) == 5


def test_matching_messages_are_found_like_lines_by_grep(orders: Shell) -> None:
    assert _lines(orders("grep -i tea orders")) == ["tea", "Tea"]
    assert _lines(orders("grep -v -i tea orders -f '%k\\n'")) == ["", "c", "e"]
    assert _lines(orders("grep '^[ac]$' orders -f '%k\\n'")) == ["a", "c"]
    assert _lines(orders("grep --count -i tea orders")) == ["2"]
    assert (orders("grep coffee orders").status, orders("grep coffee orders").errors) == (1, "")
    assert "'(' is no regular expression" in orders("grep '(' orders").errors


def test_messages_and_bytes_are_counted(orders: Shell) -> None:
    orders("topics create empty")
    assert orders("wc orders empty").printed("""
        MESSAGES  BYTES  TOPIC
               5     24  orders
               0      0  empty
               5     24  total
        """)
    assert orders("wc empty -o json").json == [{"topic": "empty", "messages": 0, "bytes": 0}]


def test_the_smallest_and_the_largest_message_have_their_places(orders: Shell) -> None:
    assert orders("stat orders").printed("""
        Topic        orders
        Messages     5
        Tombstones   1
        Without key  1
        Bytes        24 B
        Average      5 B
        Smallest     1 B in partition 0 at offset 1
        Largest      14 B in partition 0 at offset 0
        First        2023-11-14T22:13:20.000Z
        Last         2023-11-14T22:13:24.000Z
        Partitions   0: 3, 1: 2
        """)
    found = orders("stat orders --from -1 -o json").json
    assert found["largest"] == {"bytes": 4, "partition": 1, "offset": 1}
    assert found["by_partition"] == {"0": 1, "1": 1}
    assert orders("stat orders --from end -o json").json["smallest"] is None


def test_differences_between_topics_are_shown_with_status_one(orders: Shell) -> None:
    printed = orders("cat orders -o json").raw
    orders("topics create again -p 2")
    orders("produce again --json", printed.replace(b'"Tea"', b'"coffee"').rpartition(b"{")[0])
    ended = orders("diff orders again")
    assert (ended.status, ended.errors) == (1, "")
    assert ended.output.splitlines() == [
        "< 0:2 2023-11-14T22:13:24.000Z e  ",
        "< 1:1 2023-11-14T22:13:23.000Z d  Tea",
        "> 1:1 2023-11-14T22:13:23.000Z d  coffee",
    ]
    first = json.loads(orders("diff orders again -o json").output.splitlines()[0])
    assert (first["left"]["key"], first["right"]) == ("e", None)
    assert (
        orders("diff orders again -n 1").errors == "deltaq: more than 1 difference: see --count\n"
    )
    orders("--root memory://cli-other topics create orders -p 2")
    assert orders("diff orders orders --right-root memory://cli-other").output.count("<") == 5
    orders("--root memory://cli-other topics delete orders --yes")


def test_lines_are_produced_with_keys_headers_and_tombstones(deltaq: Shell) -> None:
    deltaq("topics create orders")
    deltaq("produce orders -K :: -Z -H a=1 -H b=x=y", b"k::v::w\n::v\nk::")
    assert _lines(deltaq(r"cat orders -f '%K %k %S %s %h\n'")) == [
        "1 k 4 v::w a=1,b=x=y",
        "-1  1 v a=1,b=x=y",
        "1 k -1  a=1,b=x=y",
    ]
    deltaq("produce orders --key all --partition 0", b"one\r\ntwo\n")
    assert deltaq("cat orders --from -2 -f '%k=%s;'").raw == b"all=one\r;all=two;"


def test_a_line_that_does_not_fit_is_named_and_those_before_it_are_written(deltaq: Shell) -> None:
    deltaq("topics create orders")
    ended = deltaq("produce orders -K :", b"a:1\nb\nc:3\n")
    assert ended.errors.splitlines() == [
        "deltaq: 1 message written to orders",
        "deltaq: line 2: it has no key delimiter ':'",
    ]
    assert ended.status == 1
    assert "unknown field 'vale'" in deltaq("produce orders --json", b'{"vale": 1}').errors
    for wrong in WRONG_MESSAGES:
        ended = deltaq("produce orders --json", wrong)
        assert ended.status == 1, wrong
        assert "written" not in ended.errors, wrong
    assert deltaq("cat orders").printed("1\n")


def test_a_file_that_cannot_be_loaded_is_refused_before_anything_is_done(
    deltaq: Shell, tmp_path: Path
) -> None:
    (tmp_path / "good.jsonl").write_text("{}\n")
    ended = deltaq(f"produce fresh {tmp_path}/good.jsonl {tmp_path}/x.xml --create")
    assert (
        ended.errors
        == f"deltaq: {tmp_path}/x.xml: the form is not known: .csv, .jsonl, .ndjson, .parquet,"
        " .xlsx\n"
    )
    assert deltaq("cat fresh").refused("topic 'fresh' does not exist")


def test_a_file_of_printed_messages_gives_them_back(deltaq: Shell, tmp_path: Path) -> None:
    deltaq("topics create orders")
    deltaq("produce orders -K : -H h=v", b"a:1\nb:\xff\n:\n")
    path = tmp_path / "printed.jsonl"
    path.write_bytes(deltaq("cat orders -o json").raw)
    assert (
        deltaq(f"produce again {path} --create").errors == "deltaq: 3 messages written to again\n"
    )
    form = "-f '%T %k=%s %h;'"
    assert deltaq(f"cat again {form}").raw == deltaq(f"cat orders {form}").raw
    Topic("typed", pa.schema({"id": pa.int64()}), bootstrap_servers=ROOT).create()
    path.write_text('{"id": 1}\n{"id": "x"}\n')
    refused = deltaq(f"produce typed {path}")
    assert refused.errors.startswith(f"deltaq: {path}: line 2: field 'id': ")
    assert refused.errors.endswith("; no row of the file was written\n")


def test_a_topic_is_created_by_produce_only_if_that_is_asked_for(deltaq: Shell) -> None:
    assert deltaq("produce orders", b"x\n").refused("topic 'orders' does not exist")
    assert deltaq("produce orders --create", b"x\n").status == 0
    assert deltaq("cat orders").printed("x\n")


@pytest.fixture
def trades(deltaq: Shell) -> Shell:
    """A typed topic without messages."""
    columns = pa.schema(
        {
            "id": pa.int64(),
            "price": pa.decimal128(9, 2),
            "at": pa.timestamp("us", "UTC"),
            "note": pa.string(),
        }
    )
    Topic("trades", columns, conf={"bootstrap.servers": ROOT}).create()
    return deltaq


def test_lines_of_a_typed_topic_are_its_columns_as_json(trades: Shell) -> None:
    trades("produce trades -K '|'", b'x|{"id": 7, "price": "1.50", "at": "2026-01-02T03:04:05Z"}\n')
    (row,) = Topic("trades", conf={"bootstrap.servers": ROOT}).to_arrow().to_pylist()
    assert (row["id"], row["price"], row["at"]) == (
        7,
        Decimal("1.50"),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    assert row["_key"] == b"x"
    assert trades("head trades --table").output.splitlines()[0].split() == [
        "PARTITION", "OFFSET", "TIMESTAMP", "KEY", "ID", "PRICE", "AT", "NOTE",
    ]  # fmt: skip
    printed = trades("cat trades -o json")
    assert printed.json["value"] == {
        "id": 7,
        "price": "1.50",
        "at": "2026-01-02T03:04:05+00:00",
        "note": None,
    }
    trades("produce trades --json", printed.raw)
    assert len(_lines(trades("grep 1.50 trades"))) == 2
    ended = trades("produce trades", b'{"id": 1, "prize": 2}\n')
    assert "line 1: field 'prize': Extra inputs are not permitted" in ended.errors


def test_values_of_every_type_survive_json(deltaq: Shell, tmp_path: Path) -> None:
    columns = pa.schema(
        {
            "seal": pa.binary(),
            "weight": pa.float64(),
            "price": pa.decimal128(20, 2),
            "day": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
            "counts": pa.map_(pa.string(), pa.binary()),
            "to": pa.list_(pa.struct([("city", pa.string()), ("height", pa.float32())])),
        }
    )
    topic = Topic("shipments", columns, conf={"bootstrap.servers": ROOT}).create()
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    with Producer(bootstrap_servers=ROOT) as producer:
        for seal, weight in (
            (b"\xff\x00", math.inf),
            (b"/wA=", -math.inf),
            (b'{"base64": "/wA="}', math.nan),
            (None, 0.1),
        ):
            value = {
                "seal": seal,
                "weight": weight,
                "price": Decimal("123456789012345678.90"),
                "day": date(2026, 1, 2),
            }
            counts = {"a": b"\xff", "base64": b"x"}
            producer.produce(
                topic,
                value | {"at": noon, "counts": counts, "to": [{"city": "é", "height": math.nan}]},
            )
    printed = deltaq("cat shipments -o json")
    assert [json.loads(line, parse_constant=pytest.fail) for line in printed.raw.splitlines()]
    deltaq("produce shipments --json", printed.raw)
    deltaq("produce shipments", deltaq("head shipments -n 4").raw)
    (tmp_path / "some.jsonl").write_bytes(deltaq("head shipments -n 4").raw)
    deltaq(f"produce shipments {tmp_path / 'some.jsonl'}")
    rows = (
        Topic("shipments", conf={"bootstrap.servers": ROOT})
        .to_arrow()
        .select(columns.names)
        .to_pylist()
    )
    assert (
        repr(rows[:4]) == repr(rows[4:8]) == repr(rows[8:12]) == repr(rows[12:])
    )  # NaN equals no number, not even itself


def test_lines_of_a_file_have_keys_and_headers_and_their_numbers(
    deltaq: Shell, tmp_path: Path
) -> None:
    topic = Topic(
        "seals", pa.schema({"seal": pa.binary()}), conf={"bootstrap.servers": ROOT}
    ).create()
    path = tmp_path / "seals.jsonl"
    about = (
        '"_key": "k", "_headers": [{"key": "h", "value": "v"}], "_timestamp":'
        ' "2026-01-02T12:00:00Z"'
    )
    path.write_text('{"seal": "a", ' + about + '}\n\n{"seal": {"base64": "/w=="}}\n')
    assert deltaq(f"produce seals {path}").status == 0
    rows = topic.to_arrow().select(["seal", "_key", "_headers"]).to_pylist()
    assert rows == [
        {"seal": b"a", "_key": b"k", "_headers": [{"key": "h", "value": b"v"}]},
        {"seal": b"\xff", "_key": None, "_headers": None},
    ]
    assert topic.to_arrow()["_timestamp"][0].as_py() == datetime(2026, 1, 2, 12, tzinfo=UTC)
    path.write_text('{"seal": "a"}\n{"seel": "b"}\n')
    assert (
        "line 2: field 'seel': Extra inputs are not permitted"
        in deltaq(f"produce seals {path}").errors
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            b'{"at": "2026-01-02T03:04:05.1234567Z"}',
            "field 'at': '2026-01-02T03:04:05.1234567Z' is no timestamp",
        ),
        (
            b'{"price": 1234567.123456789}',
            "field 'price': 1234567.123456789 is no decimal128(9, 2)",
        ),
        (b'{"price": "much"}', "field 'price': 'much' is no decimal128(9, 2)"),
        (b'{"id": 1, "id": 2}', "not a JSON object with the topic's columns: a key is repeated"),
        (b"[1]", "not a JSON object with the topic's columns"),
        (b"{}", "all fields are None"),
    ],
)
def test_a_line_that_is_no_value_of_a_typed_topic_is_explained(
    trades: Shell, line: bytes, reason: str
) -> None:
    ended = trades("produce trades", line)
    assert f"deltaq: line 1: {reason}" in ended.errors
    assert ended.status == 1


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "xlsx"])
def test_files_are_loaded_into_a_typed_topic(trades: Shell, tmp_path: Path, kind: str) -> None:
    path = _file(tmp_path, kind)
    assert (
        trades(f"produce trades {path} --key-column note").errors
        == "deltaq: 2 messages written to trades\n"
    )
    rows = Topic("trades", conf={"bootstrap.servers": ROOT}).to_arrow().to_pylist()
    assert [(row["id"], row["note"], row["_key"]) for row in rows] == [
        (1, "a", b"a"),
        (2, "b", b"b"),
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "xlsx"])
def test_rows_of_files_become_json_in_a_topic_of_bytes(
    deltaq: Shell, tmp_path: Path, kind: str
) -> None:
    deltaq("topics create orders")
    deltaq(f"produce orders {_file(tmp_path, kind)} --key-column id")
    assert _lines(deltaq("cat orders -f '%k %s\\n'")) == [
        '1 {"id": 1, "note": "a"}',
        '2 {"id": 2, "note": "b"}',
    ]


def test_a_file_with_a_value_column_is_loaded_as_messages(deltaq: Shell, tmp_path: Path) -> None:
    deltaq("topics create orders")
    pq.write_table(pa.table({"key": [b"k", None], "value": [b"v", None]}), tmp_path / "a.parquet")
    deltaq(f"produce orders {tmp_path / 'a.parquet'}")
    assert _lines(deltaq("cat orders -f '%K %k %S %s\\n'")) == ["1 k 1 v", "-1  -1 "]


def test_a_file_that_cannot_be_loaded_is_explained(deltaq: Shell, tmp_path: Path) -> None:
    deltaq("topics create orders")
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.parquet").write_text("x")
    assert (
        "the form is not known: .csv, .jsonl"
        in deltaq(f"produce orders {tmp_path / 'a.txt'}").errors
    )
    assert "b.parquet: " in deltaq(f"produce orders {tmp_path / 'b.parquet'}").errors
    assert (
        "there is no such column"
        in deltaq(f"produce orders {_file(tmp_path, 'csv')} --key-column x").errors
    )


@pytest.mark.parametrize("option", ["-k anna", "-K :", "-H a=b", "-Z", "--json"])
def test_an_option_that_does_not_apply_to_what_is_loaded_is_refused(
    deltaq: Shell, tmp_path: Path, option: str
) -> None:
    deltaq("topics create orders")
    ended = deltaq(f"produce orders {_file(tmp_path, 'csv')} {option}")
    assert (ended.status, f"{option.split()[0]}: for standard input only" in ended.errors) == (
        2,
        True,
    )
    assert "--key-column is for files" in deltaq("produce orders --key-column id", b"x\n").errors
    assert deltaq("cat orders").output == ""


def _file(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"id": [1, 2], "note": ["a", "b"]}), path)
    elif kind == "xlsx":
        write_sheet(path, ["id", "note"], [[1, "a"], [2, "b"]])
    else:
        text = {
            "csv": "id,note\n1,a\n2,b\n",
            "jsonl": '{"id": 1, "note": "a"}\n{"id": 2, "note": "b"}\n',
        }
        path.write_text(text[kind])
    return path


@pytest.mark.parametrize(
    "command",
    ["cat t", "cat t --table", "cat t -f '%k %s %h\\n'", "cat t -o json", "tail t", "diff t empty"],
)
def test_no_message_controls_the_terminal(deltaq: Shell, command: str) -> None:
    deltaq("topics create t")
    deltaq("topics create empty")
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("t", HOSTILE, key=HOSTILE, headers=[("h", HOSTILE)])
    printed = deltaq(command, terminal=True).raw
    assert b"red" in printed
    # The bold of a table's header is the command's own.
    assert not {byte for byte in printed if byte < 32} - {10, 27}
    assert b"\x1b]" not in printed
    assert b"\x1b[2J" not in printed
    assert b"\nforged" not in printed


def test_programs_get_the_bytes_of_messages_as_they_are(deltaq: Shell) -> None:
    deltaq("topics create t")
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("t", HOSTILE)
    assert deltaq("cat t").raw == HOSTILE + b"\n"
    assert deltaq("cat t --table").raw.count(b"\x1b") == 0


def test_a_value_that_cannot_be_returned_is_named_and_the_others_are_printed(deltaq: Shell) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    topic = Topic("trades", schema, bootstrap_servers=ROOT).create()
    append_unsound(
        topic.store, "trades", pa.table({"id": [1, 2, 3], "s": text_of(b"a", b"\xfc", b"c")})
    )
    reason = "column 's' has bytes that are no UTF-8"
    note = f"deltaq: topic 'trades', partition 0, offset 1: the value cannot be shown: {reason}\n"
    for command in ("cat trades", "tail trades", "consume trades --from beginning --exit"):
        ended = deltaq(command)
        assert (ended.status, ended.errors) == (0, note)
        assert ended.output == '{"id": 1, "s": "a"}\n\n{"id": 3, "s": "c"}\n'
    lines = [json.loads(line) for line in deltaq("cat trades -o json").output.splitlines()]
    assert [line.get("error") for line in lines] == [None, reason, None]
    assert ["value" in line for line in lines] == [True, False, True]
    table = deltaq("cat trades --table")
    assert (table.status, table.errors) == (0, note)
    assert len(table.output.splitlines()) == 4


def test_a_time_that_no_message_can_have_is_shown_as_none(deltaq: Shell) -> None:
    topic = Topic("old", config={"retention.ms": -1}, bootstrap_servers=ROOT).create()
    append_unsound(topic.store, "old", [b"a"], times_ms=[-1])
    assert json.loads(deltaq("cat old -o json").output)["timestamp"] is None
    assert "1969" not in deltaq("cat old --table").output
