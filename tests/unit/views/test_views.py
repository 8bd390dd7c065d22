"""Groups of views: run, read at a cut, followed, checked, and continued after failures."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from deltaq import (
    AdminClient,
    Fenced,
    OffsetOutOfRange,
    Producer,
    Topic,
    TopicPartition,
    UnknownTopic,
    metrics,
)
from deltaq.admin import NewPartitions
from deltaq.errors import InvalidConfig, InvalidValue, KafkaException
from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.metrics.totals import Distribution
from deltaq.store import MemoryStore, forget_memory_store, open_store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.tools.sql import sql
from deltaq.topics.holds import stored_holds
from deltaq.topics.listing import topic_names
from deltaq.views import Views, holding
from deltaq.views.engine import ViewEngine
from deltaq.views.holding import release
from deltaq.views.modes import MODES
from deltaq.views.runner import IDLE_S, GroupRunner
from deltaq.views.ticks import Tick
from tests.doubles.views import runner

ROOT = "memory://views"
TRANSFERS = pa.schema([("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())])


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("views")


def transfers(**options: Any) -> Topic:
    return Topic("transfers", TRANSFERS, bootstrap_servers=ROOT, **options).create()


def transfer(*rows: tuple[int, int, int]) -> None:
    with Producer(bootstrap_servers=ROOT) as producer:
        for row in rows:
            producer.produce("transfers", dict(zip(TRANSFERS.names, row, strict=True)))


def bank(**options: Any) -> Views:
    views = Views("bank", **({"root": ROOT} | options))
    views.view("credits", "select target as account, sum(amount) as c from transfers group by 1")
    views.view("debits", "select source as account, sum(amount) as d from transfers group by 1")
    views.view("balance", "select account, c - d as b from credits join debits using (account)")
    views.view("total", "select sum(b) as total from balance")
    return views


def rows(views: Views, name: str, at: int | None = None) -> list[tuple[Any, ...]]:
    found = views.read(at)[name].to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def test_all_views_are_read_at_one_cut():
    transfers()
    views = bank()
    transfer((1, 2, 5), (2, 1, 3))
    views.run(until="now")
    transfer((1, 2, 100))
    with views.read() as cut:
        assert cut.tick == 1
        assert cut.offsets == {"transfers": {0: 2}}
        assert cut.views == ("credits", "debits", "balance", "total")
        assert 0 <= cut.age < 60
        assert cut["balance"].to_arrow().sort_by("account").to_pydict() == {
            "account": [1, 2],
            "b": [-2, 2],
        }
        assert cut["total"].to_arrow().to_pylist() == [{"total": 0}]
        # The input ends where the views do.
        assert cut.sql("select sum(amount) as s from transfers").to_pylist() == [{"s": 8}]
        (both,) = cut.sql("select (select sum(c) from credits) as c, total from total").to_pylist()
        assert both == {"c": 8, "total": 0}
    views.run(until="now")
    assert rows(views, "credits") == [(1, 3), (2, 105)]
    assert rows(views, "credits", at=1) == [(1, 3), (2, 5)]
    assert views.check() == []


def test_a_tick_is_published_only_if_something_has_changed():
    transfers()
    views = bank()
    first, again = views.run(until="now"), views.run(until="now")
    assert first == again
    assert isinstance(first, Tick)
    transfer((1, 2, 5))
    second = views.run(until="now")
    assert second is not None
    assert second.number == 2
    # The SQL is said once, and again when it changes.
    assert bool(first.queries)
    assert not second.queries
    assert second.program_at == 1
    views = bank()
    views.view("accounts", "select count(*) as n from balance")
    third = views.run(until="now")
    assert third is not None
    assert third.number == third.program_at == 3
    assert third.inputs == second.inputs
    assert rows(views, "accounts") == [(0,)]
    assert views.check() == []


def test_a_runner_that_idles_publishes_once_a_day():
    transfers()
    clock = ManualClock(auto_advance=True)
    store = open_store(ROOT)
    with runner(bank(store=store, clock=clock)) as running:
        assert running.tick() is not None
        assert running.tick() is None
        clock.advance(IDLE_S)
        tick = running.tick()
        assert tick is not None
        assert (tick.number, running.tick()) == (2, None)


def test_rows_that_go_are_tombstones_or_weights():
    Topic("orders", pa.schema([("id", pa.int64()), ("status", pa.string())]),
          config={"cleanup.policy": "compact"}, bootstrap_servers=ROOT).create()  # fmt: skip
    views = Views("shop", ROOT)
    views.view("open", "select id from orders where status = 'open'")
    views.view("by_status", "select status, count(*) as n from orders group by status")

    def order(number: int, status: str | None) -> None:
        with Producer(bootstrap_servers=ROOT) as producer:
            value = None if status is None else {"id": number, "status": status}
            producer.produce("orders", value, key=str(number))

    for number, status in ((1, "open"), (2, "open"), (3, None)):
        order(number, status)
    views.run(until="now")
    order(1, "sent")
    order(2, None)
    views.run(until="now")
    assert rows(views, "open", at=1) == [(1,), (2,)]
    assert rows(views, "open") == []
    assert rows(views, "by_status") == [("sent", 1)]
    weights = Topic("shop.open", bootstrap_servers=ROOT).to_arrow().select(["id", "weight", "tick"])
    assert sorted(map(tuple, (row.values() for row in weights.to_pylist()))) == [
        (1, -1, 2),
        (1, 1, 1),
        (2, -1, 2),
        (2, 1, 1),
    ]
    keyed = Topic("shop.by_status", bootstrap_servers=ROOT).to_arrow()
    assert keyed.column("_key").to_pylist() == [b'["open"]', b'["sent"]', b'["open"]']
    assert keyed.column("tick").to_pylist() == [1, 2, None]
    assert views.check() == []


def test_a_key_is_json_whatever_characters_it_has():
    names = ["ann", "\u00e9\U0001f600", 'a"b', "\\x41"]
    Topic("names", pa.schema([("name", pa.string())]), bootstrap_servers=ROOT).create()
    views = Views("keys", ROOT)
    views.view("by_name", "select name, count(*) as n from names group by name")
    with Producer({"bootstrap.servers": ROOT}) as producer:
        for name in names:
            producer.produce("names", {"name": name})
    views.run(until="now")
    keys = Topic("keys.by_name", bootstrap_servers=ROOT).to_arrow().column("_key").to_pylist()
    assert sorted(json.loads(key) for key in keys) == sorted([name] for name in names)
    assert views.check() == []


def test_equal_rows_of_a_changelog_are_counted():
    transfers()
    views = Views("g", ROOT)
    views.view("amounts", "select amount from transfers")
    transfer((1, 2, 7), (1, 3, 7), (1, 2, 8))
    views.run(until="now")
    transfer((1, 2, 7))
    views.run(until="now")
    assert rows(views, "amounts") == [(7,), (7,), (7,), (8,)]
    assert rows(views, "amounts", at=1) == [(7,), (7,), (8,)]


def test_a_follower_gets_whole_ticks():
    transfers()
    views = bank()
    transfer((1, 2, 5), (2, 1, 1))
    views.run(until="now")
    keyed, plain = views.follow("credits"), views.follow("balance")
    seen: dict[str, Counter[tuple[Any, ...]]] = {"credits": Counter(), "balance": Counter()}
    for step in range(3):
        for name, follower in (("credits", keyed), ("balance", plain)):
            change = next(follower)
            assert change.tick == step + 1
            for row in change.rows.to_pylist():
                weight = row.pop("weight")
                seen[name][tuple(row.values())] += weight
            assert +seen[name] == seen[name]
            assert sorted(seen[name].elements()) == rows(views, name, at=step + 1)
        transfer((1, 2, step), (2, 1, 7))
        views.run(until="now")


def test_a_follower_of_a_group_that_was_deleted_gets_an_error():
    transfers()
    views = bank()
    transfer((1, 2, 5))
    views.run(until="now")
    changes = views.follow("credits")
    assert next(changes).tick == 1
    views.delete()
    for amount in (1, 2):
        transfer((1, 2, amount))
        views.run(until="now")
    with pytest.raises(KafkaException, match="was deleted and run anew"):
        next(changes)


def test_a_follower_gets_the_columns_that_a_view_gains():
    transfers()
    transfer((1, 2, 5))
    views = Views("g", ROOT)
    views.view("sums", "select target, sum(amount) as s from transfers group by 1")
    views.view("plain", "select target from transfers")
    views.run(until="now")
    followers = [views.follow("sums"), views.follow("plain")]
    assert [next(follower).rows.num_rows for follower in followers] == [1, 1]
    views = Views("g", ROOT)
    views.view("sums", "select target, sum(amount) as s, count(*) as n from transfers group by 1")
    views.view("plain", "select target, amount from transfers")
    views.run(until="now")
    sums, plain = (next(follower).rows.to_pylist() for follower in followers)
    assert sums == [
        {"target": 2, "s": 5, "n": None, "weight": -1},
        {"target": 2, "s": 5, "n": 1, "weight": 1},
    ]
    assert sorted(plain, key=lambda row: row["weight"]) == [
        {"target": 2, "amount": None, "weight": -1},
        {"target": 2, "amount": 5, "weight": 1},
    ]


@pytest.mark.parametrize("sql", ["select target from transfers", "select distinct target from {}"])
def test_a_view_that_loses_a_column_is_refused(sql: str):
    transfers()
    views = Views("g", ROOT)
    wide = sql.replace("target", "target, amount", 1)
    views.view("v", wide.format("transfers"), key="target" if "distinct" in sql else None)
    transfer((1, 2, 5))
    views.run(until="now")
    views = Views("g", ROOT)
    views.view("v", sql.format("transfers"))
    with pytest.raises(InvalidConfig, match="view 'v' has no column 'amount' any more"):
        views.run(until="now")
    views.delete()
    views.run(until="now")
    assert rows(views, "v") == [(2,)]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select * from transfers", "column '_partition': .* list the columns in place of *"),
        ('select amount as "a b" from transfers', "column 'a b': .* name a column by AS"),
        ("select amount + 1 from transfers", "column .* name a column by AS"),
        ("select {'a;b': amount} as s from transfers", "column 's.a;b': .* name a column by AS"),
        (
            "select [map{amount: 1}] as m from transfers",
            r"column 'm..' is of type MAP\(BIGINT, INTEGER\), .* CAST\(x AS MAP\(VARCHAR, INTEGER",
        ),
        ("select amount::variant as x from transfers", "column 'x' is of type VARIANT, .* AS VARC"),
        ("select {'a': amount::variant} as x from transfers", "column 'x.a' is of type VARIANT"),
        (
            "select map{'a': union_value(n := amount)} as x from transfers",
            r"column 'x.value.' is of type UNION\(n BIGINT\), .* have a struct or text",
        ),
        ("select 'POINT(1 2)'::geometry as x from transfers", "column 'x' is of type GEOMETRY"),
        ("select row(amount) as x from transfers", "column 'x' is of type STRUCT.* fields names"),
        (
            "select [row(now())] as x from transfers",
            "column 'x..' is of type STRUCT.* fields names",
        ),
    ],
)
def test_columns_that_a_topic_cannot_have_are_refused_before_anything_is_written(
    sql: str, reason: str
):
    transfers()
    views = Views("g", ROOT)
    views.view("fine", "select sum(amount) as s from transfers")
    views.view("v", sql)
    with pytest.raises(InvalidConfig, match=f"view 'v': {reason}"):
        views.run(until="now")
    assert "g.fine" not in topic_names(open_store(ROOT))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("amount as x", "amount::varchar as x", "': .*'x' is int64 .*cast the column to the type"),
        ("amount as x", "amount::int as x", "': .*'x' is int64 .*cast the column to the type"),
        ("[amount] as x", "amount as x", "': .*'x' is list.*cast the column to the type"),
        ("{'a': amount} as x", "{'b': amount} as x", "' has no column 'x.a' any more"),
        ("[{'a': 1, 'b': 1}] as x", "[{'b': 1}] as x", r"' has no column 'x\[\].a' any more"),
        ("map{'k': {'a': 1}} as x", "map{'k': {'b': 1}} as x", "' has no column 'x.value..a'"),
        (
            "{'a': 1, 'b': 1} as x",
            "{'b': 1, 'a': 1} as x",
            "' has the fields of .* rows, a, b: give",
        ),
        ("sum(amount) as x", "amount as x", r"' has the row key \(none.* had \(one row\)"),
        ("distinct amount", "amount", r"' has the row key \(none.* had \(amount\)"),
        ("amount", "distinct amount", r"' has the row key \(amount\), and had \(none"),
    ],
)
def test_a_view_of_other_columns_is_refused_before_anything_is_written(
    before: str, after: str, reason: str
):
    transfers()
    transfer((1, 2, 5))

    def views(more: str, columns: str) -> Views:
        found = Views("g", ROOT)
        found.view("fine", f"select sum(amount) as s{more} from transfers")
        found.view("v", f"select {columns} from transfers")
        return found

    views("", before).run(until="now")
    with pytest.raises(InvalidConfig, match=f"view 'v{reason}"):
        views(", count(*) as n", after).run(until="now")
    schema = Topic("g.fine", bootstrap_servers=ROOT).describe().schema
    assert schema is not None
    assert schema.arrow.names == ["s", "tick"]
    assert views("", before).check() == []


def test_fields_that_a_view_gains_are_null_in_earlier_rows():
    transfers()
    for columns in ("{'a': amount}", "{'a': amount, 'b': source}"):
        transfer((1, 2, 5))
        views = Views("g", ROOT)
        views.view("v", f"select {columns} as x from transfers")
        views.run(until="now")
        assert views.check() == []
    assert rows(views, "v", at=1) == [({"a": 5, "b": None},)]
    assert rows(views, "v") == [({"a": 5, "b": 1},)] * 2


def test_a_view_that_comes_back_to_its_group_needs_a_topic_without_records():
    transfers()
    transfer((1, 2, 5))

    def views(*names: str) -> Views:
        made = Views("g", ROOT)
        for name in names:
            made.view(name, "select target, sum(amount) as s from transfers group by 1")
        return made

    views("v", "w").run(until="now")
    views("v").run(until="now")
    both = views("v", "w")
    with pytest.raises(InvalidConfig, match=r"topic 'g\.w' has records, .* delete this topic"):
        both.run(until="now")
    Topic("g.w", bootstrap_servers=ROOT).delete()
    both.run(until="now")
    assert rows(both, "w") == [(2, 5)]
    assert both.check() == []


@pytest.mark.parametrize(
    "statement",
    ["drop table transfers", "copy transfers to '/x.csv'", "select 1; drop table x", ""],
)
def test_a_cut_takes_one_query(statement: str):
    transfers()
    views = bank()
    views.run(until="now")
    with views.read() as cut, pytest.raises(InvalidConfig):
        cut.sql(statement)


def test_a_topic_is_one_table_whatever_the_case_of_its_name():
    transfers()
    views = Views("cases", ROOT)
    views.view("lower", "select target, sum(amount) as s from transfers group by 1")
    views.view("upper", "select a.source from TRANSFERS a join transfers b using (source)")
    transfer((1, 2, 5))
    views.run(until="now")
    assert (rows(views, "lower"), rows(views, "upper")) == ([(2, 5)], [(1,)])


def test_a_new_runner_fences_the_one_before():
    transfers()
    views = bank()
    with runner(views) as first:
        first.tick()
        with runner(views) as second:
            transfer((1, 2, 5))
            assert (tick := second.tick()) is not None
            assert tick.number == 2
            transfer((1, 2, 6))
            with pytest.raises(Fenced):
                first.tick()
            assert (tick := second.tick()) is not None
            assert tick.number == 3
    assert rows(views, "total") == [(None,)]
    assert views.check() == []


def test_one_runner_publishes_tick_after_tick():
    transfers()
    views = bank()
    with runner(views) as running:
        for number in range(1, 6):
            transfer((number, 1, 10), (1, number, 3))
            assert (tick := running.tick()) is not None
            assert tick.number == number
            assert views.check() == []
    for number in range(1, 6):
        assert rows(views, "total", at=number) == [(0,)]
        assert sum(credit for _, credit in rows(views, "credits", at=number)) == 13 * number


def test_ticks_are_measured_by_step():
    transfers()
    views = bank()
    totals = metrics.Totals()
    with metrics.listening(totals):
        views.run(until="now")
        views.run(until="now")
        transfer((1, 2, 5), (2, 1, 5))
        views.run(until="now")
    steps = {
        sample.labels["step"]: sample.value.count
        for sample in totals.samples()
        if isinstance(sample.value, Distribution) and "step" in sample.labels
    }
    # The second tick had nothing to publish.
    assert steps == {"cut": 2, "evaluate": 2, "publish": 2}
    # First the total of no row, then one row in credits, debits and balance each, and two more.
    assert totals.read()["deltaq_views_rows_total"] == 1 + 7


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select s from Orders", [("large",)]),
        ('select s from "orders"', [("small",)]),
        ("select s from ORDERS", "view 'v': 'ORDERS' may be 'Orders' or 'orders'"),
        (
            "select s from orders union all from (select s from Orders)",
            "view 'v' reads 'orders', and view 'v' reads 'Orders': .* differ by case only",
        ),
        ("select s from orders join other using (s)", "view 'v' reads 'orders', and view 'other'"),
    ],
)
def test_of_topics_whose_names_differ_by_case_the_exact_one_is_read(sql: str, found: Any):
    create_twins()
    views = Views("g", ROOT)
    if "other" in sql:
        views.view("other", "select s from Orders")
    views.view("v", sql)
    if isinstance(found, str):
        with pytest.raises(InvalidConfig, match=found):
            views.run(until="now")
        return
    views.run(until="now")
    assert rows(views, "v") == found
    assert views.check() == []
    (other,) = {"Orders", "orders"} - views.read().offsets.keys()
    with pytest.raises(InvalidConfig, match=f"'{other}' is a topic, and the cut has"):
        views.read().sql(f"select s from {other}")


def create_twins() -> None:
    """Two topics that DuckDB takes for one table."""
    for topic, text in (("Orders", "large"), ("orders", "small")):
        Topic(topic, pa.schema([("s", pa.string())]), bootstrap_servers=ROOT).create()
        with Producer(bootstrap_servers=ROOT) as producer:
            producer.produce(topic, {"s": text})


def test_a_topic_is_not_read_as_the_view_whose_name_differs_by_case():
    transfers()
    views = Views("g", ROOT)
    views.view("Transfers", "select 1 as x")
    views.view("v", "select amount from transfers")
    with pytest.raises(InvalidConfig, match=r"reads 'transfers', a topic, .* view 'Transfers'"):
        views.run(until="now")


def test_a_topic_that_comes_with_the_case_of_the_sql_is_read_from_the_next_runner_on():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select sum(amount) as s from Transfers", mode="incremental")
    transfer((1, 2, 5))
    views.run(until="now")
    Topic("Transfers", TRANSFERS, bootstrap_servers=ROOT).create()
    assert views.check() == []
    views.run(until="now")
    assert rows(views, "v") == [(None,)]
    assert rows(views, "v", at=1) == [(5,)]
    assert views.check() == views.check(at=1) == []


def test_a_query_over_topics_reads_the_exact_name():
    create_twins()
    store = open_store(ROOT)
    assert sql(store, "select s from Orders").to_pylist() == [{"s": "large"}]
    with pytest.raises(InvalidConfig, match="'Orders' and 'orders' differ by case only"):
        sql(store, "select * from Orders, orders")
    with pytest.raises(InvalidConfig, match="'ORDERS' may be 'Orders' or 'orders'"):
        sql(store, "select * from ORDERS")


# --- what is refused ---


def test_a_table_that_does_not_exist_is_named():
    views = Views("g", ROOT)
    views.view("v", "select * from nothing")
    with pytest.raises(InvalidConfig, match="view 'v' reads 'nothing', which is neither"):
        views.run(until="now")


def test_a_column_that_does_not_exist_is_named():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select nothing from transfers")
    with pytest.raises(InvalidConfig, match=r"view 'v': DuckDB: .*nothing"):
        views.run(until="now")
    assert views.last_tick() is None


def test_columns_of_deltaq_are_refused():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select amount as tick from transfers")
    with pytest.raises(InvalidConfig, match="view 'v' has a column 'tick'"):
        views.run(until="now")


def test_a_column_whose_type_has_no_name_is_refused():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select [row(source, target)] as z from transfers")
    with pytest.raises(InvalidConfig, match=r"view 'v': column 'z\[\]' is of type STRUCT\(BIGINT"):
        views.run(until="now")


def test_a_key_that_does_not_tell_rows_apart_is_refused():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select source, target, amount from transfers", key=["source", "target"])
    transfer((1, 2, 5), (2, 2, 5))
    views.run(until="now")
    transfer((1, 2, 6))
    with pytest.raises(InvalidValue, match=r"two rows with this key, \{'source': 1, 'target': 2\}"):
        views.run(until="now")
    # Readers keep what was published.
    assert rows(views, "v") == [(1, 2, 5), (2, 2, 5)]


def test_a_key_that_is_no_column_is_refused():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select amount from transfers", key="nothing")
    with pytest.raises(InvalidConfig, match="names 'nothing', which is no column"):
        views.run(until="now")


def test_a_topic_that_others_have_written_is_refused():
    transfers()
    views = bank()
    views.run(until="now")
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("bank.total", {"total": Decimal(5), "tick": 1}, key="[]")
    transfer((1, 2, 5))
    with pytest.raises(InvalidConfig, match=r"'bank\.total' has records that the group"):
        views.run(until="now")


def test_an_input_that_was_created_anew_stops_the_group():
    topic = transfers()
    views = bank()
    transfer((1, 2, 5), (2, 1, 5))
    views.run(until="now")
    topic.delete()
    with pytest.raises(UnknownTopic, match="'transfers' does not exist"):
        views.run(until="now")
    topic.create()
    transfer((3, 4, 5), (4, 3, 5))
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        views.run(until="now")
    with pytest.raises(KafkaException, match="what topic 'transfers' had at tick 1"):
        views.check()
    assert rows(views, "credits") == [(1, 5), (2, 5)]


def test_records_that_an_input_lacks_stop_the_group_unless_it_retracts_them():
    transfers()
    views = bank()
    transfer((1, 2, 5), (2, 1, 3), (1, 2, 1))
    views.run(until="now")
    with AdminClient(bootstrap_servers=ROOT) as admin:
        place = TopicPartition("transfers", 0, 1)
        admin.delete_records([place])[place].result()
    with pytest.raises(
        OffsetOutOfRange, match=r"offset 0 of topic 'transfers'.*; run .*retract_on_retention=True"
    ):
        views.run(until="now")
    with pytest.raises(OffsetOutOfRange, match="offset 0 of topic 'transfers'"):
        views.check()
    tick = views.run(until="now", retract_on_retention=True)
    assert tick is not None
    assert tick.inputs["transfers"].starts == (1,)
    assert rows(views, "credits") == [(1, 3), (2, 1)]
    assert views.check() == []


def test_a_group_without_a_tick_cannot_be_read():
    with pytest.raises(InvalidConfig, match="'bank' has no tick yet"):
        bank().read()


def test_unknown_views_and_ticks_are_named():
    transfers()
    views = bank()
    views.run(until="now")
    with pytest.raises(InvalidConfig, match="has no view 'nothing', only credits, debits"):
        _ = views.read()["nothing"]
    with pytest.raises(InvalidConfig, match="tick 7 of 'bank' is not kept: it has 1 to 1"):
        views.read(at=7)


def test_check_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch):
    transfers()
    views = bank()
    transfer((1, 2, 5), (2, 1, 3))
    changes = ViewEngine.changes

    def careless(self: ViewEngine, view: Any) -> Any:
        found = changes(self, view)
        return replace(found, come=found.come.slice(1)) if view.name == "credits" else found

    with monkeypatch.context() as patch:
        patch.setattr(ViewEngine, "changes", careless)
        views.run(until="now")
    (found,) = views.check()
    assert (found.view, found.tick) == ("credits", 1)
    assert (found.missing.num_rows, found.wrong.num_rows) == (1, 0)
    transfer((1, 2, 1), (2, 1, 1))
    views.run(until="now")
    assert views.check() == []
    assert [(of.view, of.tick) for of in views.check(at=1)] == [("credits", 1)]


def test_sums_of_floats_may_differ_in_the_last_digits():
    Topic("t", pa.schema([("x", pa.float64())]), bootstrap_servers=ROOT, partitions=2).create()
    views = Views("g", ROOT)
    views.view("v", "select sum(x) as s, count(*) as n from t")
    for part in range(4):
        with Producer(bootstrap_servers=ROOT) as producer:
            for number in range(50):
                producer.produce("t", {"x": 0.1 * number + 1e9 * part}, partition=number % 2)
        views.run(until="now")
    assert views.check() == []


# --- how views are evaluated ---


def test_the_rules_of_views_are_explained():
    transfers()
    views = bank()
    views.view("names", "select account, b from balance where b not in (select c from credits)")
    views.view("plain", "select source, amount from transfers", mode="incremental")
    views.view("first", "select amount from transfers order by _offset, _partition limit 1")
    views.view("slow", "select source from transfers", mode="full")
    views.view(
        "parts",
        "with w as (select source, count(*) as n from transfers where amount not in (select 0) "
        "group by 1) select n, c from w join credits on source = account",
    )
    assert {found.view: str(found) for found in views.explain()} == {
        "credits": "credits: by rules where that is quicker: aggregate (target)",
        "debits": "debits: by rules where that is quicker: aggregate (source)",
        "balance": "balance: by rules where that is quicker: join (account = account)",
        "total": "total: by rules where that is quicker: aggregate (all rows)",
        "names": "names: in full, a query in an expression",
        "plain": "plain: by rules: map",
        "first": "first: by rules where that is quicker: all rows anew (LIMIT 1)",
        "slow": "slow: in full, as its mode says",
        "parts": "parts: by rules where that is quicker: in full (a query in an expression), "
        "join (source = account)",
    }


def test_a_key_of_a_view_by_rules_that_does_not_tell_rows_apart_is_refused():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select source, amount from transfers", key="source", mode="incremental")
    with runner(views) as running:
        transfer((1, 2, 5))
        running.tick()
        transfer((2, 2, 5))
        running.tick()
        transfer((2, 2, 7))
        with pytest.raises(InvalidValue, match=r"two rows with this key, .'source': 2"):
            running.tick()
    assert sorted(rows(views, "v")) == [(1, 5), (2, 5)]


def test_a_runner_goes_on_after_an_engine_that_failed_when_its_tick_was_published(
    monkeypatch: pytest.MonkeyPatch,
):
    transfers()
    views = bank()
    with runner(views) as running:
        transfer((1, 2, 5))
        with monkeypatch.context() as patch:
            patch.setattr(ViewEngine, "_choose", Mock(side_effect=InvalidConfig("full", key="x")))
            with pytest.raises(InvalidConfig):
                running.tick()
        transfer((1, 2, 6))
        tick = running.tick()
    assert tick is not None
    assert tick.number == 2
    assert rows(views, "credits") == [(2, 11)]
    assert views.check() == []


def test_an_unknown_mode_is_refused():
    with pytest.raises(InvalidConfig, match=r"one of auto, incremental, full, not 'fast'"):
        Views("g", ROOT).view("v", "select 1 as a", mode="fast")  # type: ignore[arg-type]


ZEROS, NANS = (0.0, -0.0), (math.nan, -math.nan)


def texts(views: Views, name: str) -> list[str]:
    """The rows of a view as texts, in which floats have their signs."""
    return [f"{[shown(value) for value in row]}" for row in rows(views, name)]


def shown(value: Any) -> str:
    is_minus = isinstance(value, float) and math.copysign(1, value) < 0
    return f"-{abs(value)}" if is_minus else str(value)


@pytest.mark.parametrize("mode", ["incremental", "full"])
@pytest.mark.parametrize("values", [ZEROS, ZEROS[::-1], NANS, NANS[::-1]])
def test_equal_floats_in_a_row_key_are_one_row(mode: Any, values: tuple[float, float]):
    Topic("measured", pa.schema([("f", pa.float64())]), bootstrap_servers=ROOT).create()
    views = Views("floats", ROOT)
    views.view("counts", "select -f as f, count(*) as n from measured group by 1", mode=mode)
    with Producer(bootstrap_servers=ROOT) as producer:
        for count, value in enumerate((*values, values[0]), 1):
            producer.produce("measured", {"f": value})
            producer.flush()
            views.run(until="now")
            assert texts(views, "counts") == [f"['{abs(value)}', '{count}']"]


@pytest.mark.parametrize("values", [ZEROS, ZEROS[::-1], NANS, NANS[::-1]])
@pytest.mark.parametrize(
    "sql",
    [
        "select f::varchar as x, count(*) as n from measured group by f",
        "select distinct f, f::varchar as x from measured",
        "select min(f)::varchar as x, max(l)::varchar as l from measured",
        "select to_json(list(s order by f, _partition, _offset)) as x from measured",
        "select max(s)::varchar as x, max(m)::varchar as m from measured",
        "select min(-f) as f, max([-f]) as l from measured",
    ],
)
def test_floats_that_are_equal_have_one_form(sql: str, values: tuple[float, float]):
    floats = pa.float32(), pa.list_(pa.float64()), pa.struct([("x", pa.float64())])
    columns = [*zip("fls", floats, strict=True), ("m", pa.map_(pa.string(), pa.float64()))]
    Topic("measured", pa.schema(columns), bootstrap_servers=ROOT).create()
    views = Views("floats", ROOT)
    views.view("v", sql)
    with Producer(bootstrap_servers=ROOT) as producer:
        for value in values:
            row = {"f": value, "l": [value], "s": {"x": value}, "m": {"k": value}}
            producer.produce("measured", row)
    views.run(until="now")
    (found,) = texts(views, "v")
    assert "-" not in found
    assert views.check() == []


@pytest.mark.parametrize(
    "value",
    [
        "to_days(amount::int)",
        "make_timestamp_ns(amount)",
        "[to_days(amount::int)]",
        "{'x': amount::double}",
    ],
)
def test_a_row_key_without_one_text_for_a_value_is_refused(value: str):
    transfers()
    views = Views("g", ROOT)
    views.view("v", f"select {value} as x, count(*) as n from transfers group by 1")
    with pytest.raises(InvalidConfig, match="row key of view 'v' has the column 'x' of type"):
        views.run(until="now")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("""'{"a":1}'::json""", """'{"a": 1}'::json"""),
        ("'null'::json", "NULL::json"),
        (r"'\x5C'::blob", r"'\x5C\x5C'::blob"),
        (r"'\x5CxFF'::blob", r"'\xFF'::blob"),
        ("'10:00:00+01'::timetz", "'09:00:00+00'::timetz"),
        ("time '24:00'", "time '00:00'"),
        ("'10:00:00.123456789'::time_ns", "'10:00:00.123456788'::time_ns"),
        ("timestamp '2026-01-01 00:00:00.000001'", "timestamp '2026-01-01'"),
        ("timestamptz '2026-01-01 00:00:00+01'", "timestamptz '2026-01-01 00:00:00+00'"),
        ("timestamp_ms '2026-01-01 00:00:00.001'", "timestamp_ms '2026-01-01'"),
        ("date '2026-01-01'", "date '2026-01-02'"),
        ("'1.0000000000000000000000000000000000001'::decimal(38,37)", "1::decimal(38,37)"),
        (f"'{'9' * 38}'::hugeint", f"'{'9' * 37}8'::hugeint"),
        ("18446744073709551615::ubigint", "18446744073709551614::ubigint"),
        (f"'1{'0' * 50}'::bignum", f"'1{'0' * 49}1'::bignum"),
        ("'a'::enum('a', 'A')", "'A'::enum('a', 'A')"),
        ("'0101'::bit", "'101'::bit"),
        (f"uuid '{'0' * 32}'", f"uuid '{'0' * 31}1'"),
        ("'a' || chr(0)", "'a'"),
        ("true", "false"),
        ("[1, 2]::int[2]", "[2, 1]::int[2]"),
        ("map{'a': 1, 'b': 2}", "map{'b': 2, 'a': 1}"),
        ("{'a': NULL::int}", "NULL::struct(a int)"),
    ],
)
def test_values_that_duckdb_tells_apart_have_keys_of_their_own(one: str, other: str):
    transfers()
    views = Views("g", ROOT)
    for number, form in enumerate(("{}", "[{}]", "map{{'k': [{{'q': {}}}]}}")):
        values = f"(1, {form.format(one)}), (2, {form.format(other)})"
        rows_of = f"transfers join (values {values}) as v(m, x) on amount = m"
        views.view(f"v{number}", f"select x, count(*) as n from {rows_of} group by 1")
    transfer((1, 2, 1), (1, 2, 2), (1, 2, 2))
    views.run(until="now")
    with views.read() as cut:
        for view in cut.views:
            assert sorted(cut[view].to_arrow()["n"].to_pylist()) == [1, 2], view


@pytest.mark.parametrize(
    "value", ["date 'infinity'", "[timestamp 'infinity']", "{'t': date '0044-01-01 (BC)'}"]
)
def test_times_that_a_topic_cannot_have_are_named_with_their_view(value: str):
    transfers()
    views = Views("g", ROOT)
    views.view("fine", "select amount from transfers")
    views.view("v", f"select amount, {value} as x from transfers")
    views.run(until="now")
    transfer((1, 2, 5))
    with pytest.raises(InvalidValue, match=r"view 'v': column 'x.* years 1 to .* AS VARCHAR"):
        views.run(until="now")
    assert rows(views, "fine") == []


def test_a_topic_of_a_view_that_was_deleted_is_named_with_its_group():
    transfers()
    transfer((1, 2, 5))
    views = bank()
    topic = Topic("bank.total", bootstrap_servers=ROOT)
    reason = r"'bank\.total' does not exist: it is of the group of views 'bank', .* delete th"
    with runner(views) as running:
        running.tick()
        cut = views.read()
        topic.delete()
        transfer((1, 2, 6))
        with pytest.raises(UnknownTopic, match=reason):
            running.tick()
    with pytest.raises(UnknownTopic, match=reason):
        cut["total"].to_arrow()
    with pytest.raises(UnknownTopic, match=reason):
        views.check()
    with pytest.raises(UnknownTopic, match=reason):
        next(views.follow("total"))
    with pytest.raises(UnknownTopic, match=reason):
        views.run(until="now")
    views.delete()
    views.run(until="now")
    assert views.check() == []


def test_rowid_is_read_where_it_is_a_column():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select rowid as r from transfers")
    with pytest.raises(InvalidConfig, match="view 'v' reads rowid"):
        views.run(until="now")
    views = Views("g", ROOT)
    views.view("named", 'select amount as "rowId" from transfers')
    views.view("v", "select RowID as r from named")
    transfer((1, 2, 5))
    views.run(until="now")
    assert rows(views, "v") == [(5,)]


@pytest.mark.parametrize("scale", [2, 18, 19])
def test_averages_of_wide_decimals_are_those_of_duckdb(scale: int):
    kind = pa.decimal128(38, scale)
    Topic("prices", pa.schema([("k", pa.int64()), ("p", kind)]), bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    sql = "select k, avg(p) as a from prices group by k"
    views.view("ruled", sql, mode="incremental")
    views.view("whole", sql, mode="full")
    numbers = [Decimal(n) for n in ("12345.07", "-0.5", "99999999.99", "-350.25")]
    with runner(views) as running:
        for step, number in enumerate(numbers):
            with Producer(bootstrap_servers=ROOT) as producer:
                producer.produce("prices", {"k": step % 2, "p": number})
            tick = running.tick()
    assert tick is not None
    assert tick.ruled == ("ruled",)
    assert rows(views, "ruled") == rows(views, "whole")
    assert [a for _, a in rows(views, "whole")] == [50006172.53, -175.375]


def test_a_type_that_a_view_cannot_have_is_named_with_it():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select (source, target) as x from transfers")
    with pytest.raises(InvalidConfig, match="view 'v': "):
        views.run(until="now")


@pytest.mark.parametrize("mode", MODES)
def test_a_sorted_list_is_the_same_by_rules(mode: Any):
    transfers()
    views = Views("g", ROOT)
    sql = "select target, to_json(list(amount order by amount)) as l from transfers group by 1"
    views.view("v", sql, mode=mode)
    with runner(views) as running:
        for amounts in ((3, 1), (2,), (1, 9)):
            transfer(*((1, 2, amount) for amount in amounts))
            running.tick()
    assert rows(views, "v") == [(2, "[1,1,2,3,9]")]
    assert views.check() == []


@pytest.mark.parametrize(
    ("key", "value", "is_taken"),
    [
        ("VARCHAR", "amount", False),
        ("VARCHAR", "amount::varchar", True),
        ("BIGINT", "amount::double", False),
        ("BIGINT", "amount::decimal(18,2)", False),
        ("DECIMAL(18,0)", "amount::decimal(18,1)", False),
        ("BIGINT", "amount::varchar", False),
        ("BIGINT", "amount::int", True),
        ("BOOLEAN", "amount", False),
    ],
)
@pytest.mark.parametrize(
    "rows",
    [
        "each e join texts on texts.k = e.v",
        "each e join texts on e.v = texts.k",
        "(select v as k, x, p, o from each) e join texts using (k)",
        "(with w as (select * from texts) select e.*, w.k from each e left join w on e.v = w.k) e",
    ],
)
def test_an_order_depends_on_the_types_that_a_join_compares(
    key: str, value: str, is_taken: bool, rows: str
):
    transfers()
    transfer((1, 2, 5))
    views = Views("g", ROOT)
    views.view("texts", f"select source::{key} as k, count(*) as n from transfers group by 1")
    each = (
        f"each as (select {value} as v, amount as x, _partition as p, _offset as o from transfers)"
    )
    views.view("v", f"with {each} select list(e.x order by p, o) as l from {rows}")
    if is_taken:
        views.run(until="now")
        return
    with pytest.raises(InvalidConfig, match=r"view 'v' calls list.*compares 'k' of type .* CAST"):
        views.run(until="now")
    with pytest.raises(UnknownTopic):
        Topic("g.texts", bootstrap_servers=ROOT).describe()


def test_a_view_with_another_row_key_is_refused():
    transfers()
    transfer((1, 2, 5))
    for keys in ("source, target", "target, source"):
        views = Views("g", ROOT)
        views.view(
            "sums", f"select source, target, sum(amount) as s from transfers group by {keys}"
        )
        if keys == "source, target":
            views.run(until="now")
        else:
            with pytest.raises(
                InvalidConfig, match=r"\(target, source\), and had \(source, target\) at"
            ):
                views.run(until="now")


# --- other ways in ---


def test_a_folder_of_files_is_a_group(tmp_path: Path):
    transfers()
    folder = tmp_path / "bank"
    folder.mkdir()
    (folder / "sums.sql").write_text(
        "-- mode: incremental\n-- key: account\nselect account, s from raw;\n"
    )
    (folder / "raw.sql").write_text(
        "select target as account, sum(amount) as s\nfrom transfers group by 1"
    )
    views = Views.from_folder(folder, ROOT)
    assert views.group == "bank"
    assert views.program.view("sums").key == ("account",)
    transfer((1, 2, 5))
    views.run(until="now")
    assert rows(views, "sums") == [(2, 5)]
    with pytest.raises(InvalidConfig, match="has no files"):
        Views.from_folder(tmp_path, ROOT)


def test_comments_at_the_top_of_a_file_are_options_or_other_words(tmp_path: Path):
    transfers()
    file = tmp_path / "sums.sql"
    sql = "select target, sum(amount) as s from transfers group by 1"
    file.write_text(f"-- What each account got.\n-- Note: in cents\n-- mode: full\n{sql}")
    assert Views.from_folder(tmp_path, ROOT).explain()[0].mode == "full"
    file.write_text(f"-- Mod: full\n{sql}")
    with pytest.raises(InvalidConfig, match="no option: write '-- mode: full'"):
        Views.from_folder(tmp_path, ROOT)
    file.write_text("-- keys: target")
    with pytest.raises(InvalidConfig, match="write '-- key: target'"):
        Views.from_folder(tmp_path, ROOT)


SUMS = "select target, sum(amount) as s from transfers group by 1"


@pytest.mark.parametrize(
    "text",
    [
        f"\ufeff-- key: s\n-- mode: full\n{SUMS}",
        f"\n  -- key: s\n\n\t--mode: full\n{SUMS}",
        f"-- key: s\r\n\r\n-- mode: full\r\n{SUMS}\r\n",
        f"/* The sums\n   of all */\n-- key : s\n/* and */ -- mode: full\n{SUMS}",
        f"-- key: s\n-- mode: full\n{SUMS} having '\n--key: x' <> ''",
        f"-- key: s\n-- mode: full\n{SUMS} having $$\n--key: 'x$$ <> ''",
    ],
)
def test_options_of_a_file_stand_in_comments_above_its_text(tmp_path: Path, text: str):
    (tmp_path / "sums.sql").write_bytes(text.encode())
    transfers()
    views = Views.from_folder(tmp_path, ROOT, group="g")
    assert views.program.view("sums").key == ("s",)
    assert views.explain()[0].mode == "full"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"-- x\n-- KEY: target\n{SUMS}", "line 2: the comment .* write '-- key: target'"),
        (f"-- key = target\n{SUMS}", "line 1: the comment .* write '-- key: target'"),
        (f"/*\n * mode: full\n */\n{SUMS}", "line 2: the comment .* write '-- mode: full'"),
        (f"/* mode: full */{SUMS}", "line 1: the comment .* write '-- mode: full'"),
        (f"{SUMS}\n\n-- key: target", "line 3: the comment '-- key: target' .* move it to the top"),
        (f"{SUMS} -- mode: full", "line 1: the comment '-- mode: full' .* move it to the top"),
        (f"-- key: s\n\n-- key: target\n{SUMS}", "line 3: the comment .* second option 'key'"),
    ],
)
def test_a_comment_that_looks_like_an_option_is_refused_by_file_and_line(
    tmp_path: Path, text: str, reason: str
):
    (tmp_path / "sums.sql").write_text(text)
    with pytest.raises(InvalidConfig, match=rf"sums\.sql, {reason}"):
        Views.from_folder(tmp_path, ROOT)


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path):
    (tmp_path / "sums.sql").write_text(SUMS, encoding="utf-16")
    with pytest.raises(InvalidConfig, match=r"sums\.sql is no text in UTF-8"):
        Views.from_folder(tmp_path, ROOT)


def test_bytes_and_json_are_read_through_sql():
    with Producer(bootstrap_servers=ROOT) as producer:
        for number in range(3):
            producer.produce("events", json.dumps({"user": "ann", "n": number}), key="k")
    views = Views("g", ROOT)
    views.view(
        "events_of", "select (decode(value)::json ->> 'n')::int as n, decode(_key) as k from events"
    )
    views.view("users", "select k, sum(n) as n from events_of group by k")
    views.run(until="now")
    assert rows(views, "users") == [("k", 3)]
    assert views.check() == []


def test_types_that_delta_does_not_have_are_converted():
    transfers()
    views = Views("g", ROOT)
    views.view(
        "v",
        "select sum(amount) as h, 'a'::enum('a', 'b') as e, timestamp '2026-01-02' as t, "
        "time '10:00' as c, 5::ubigint as u, interval 1 day as i, 3::utinyint as b, "
        "'00000000-0000-0000-0000-000000000001'::uuid as id, [1, 2] as l from transfers",
    )
    transfer((1, 2, 5))
    views.run(until="now")
    (found,) = views.read()["v"].to_arrow().to_pylist()
    assert found["h"] == 5
    assert (found["e"], found["c"], found["u"], found["b"]) == ("a", "10:00:00", 5, 3)
    assert found["t"] == datetime(2026, 1, 2, tzinfo=UTC)
    assert (found["i"], found["l"]) == ("1 day", [1, 2])
    assert views.check() == []


@pytest.mark.parametrize("mode", MODES)
def test_types_are_converted_within_lists_structs_and_maps(mode: Any):
    transfers()
    views = Views("g", ROOT)
    views.view(
        "v",
        """
        select
            {'at': timestamp '2026-01-02', 'select': [time '10:00'], 'n': 3::utinyint} as s,
            [amount, target]::ubigint[2] as l,
            map{'a'::enum('a'): interval 1 day} as m,
            [['{"a": 1}'::json]] as j,
            ['b'::enum('a,(', 'b')] as e,
            timetz '10:00:00+01' as z,
            '10:00:00.123456789'::time_ns as ns,
            ('1' || repeat('0', 50))::bignum as b
        from transfers
        """,
        mode=mode,
    )
    views.run(until="now")
    transfer((1, 2, 5))
    views.run(until="now")
    assert views.read()["v"].to_arrow().to_pylist() == [
        {
            "s": {"at": datetime(2026, 1, 2, tzinfo=UTC), "select": ["10:00:00"], "n": 3},
            "l": [5, 2],
            "m": [("a", "1 day")],
            "j": [['{"a": 1}']],
            "e": ["b"],
            "z": "10:00:00+01",
            "ns": "10:00:00.123456789",
            "b": f"1{'0' * 50}",
        }
    ]
    assert views.check() == []


def test_a_view_gets_columns_when_its_sql_does():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select target, sum(amount) as s from transfers group by 1")
    transfer((1, 2, 5))
    views.run(until="now")
    views = Views("g", ROOT)
    views.view("v", "select target, sum(amount) as s, count(*) as n from transfers group by 1")
    views.run(until="now")
    assert rows(views, "v") == [(2, 5, 1)]
    assert views.check() == []


def test_an_input_gets_columns_and_partitions_while_a_runner_goes_on():
    transfers()
    views = Views("g", ROOT)
    views.view("v", "select count(*) as n from transfers")
    with runner(views) as running:
        transfer((1, 2, 5))
        running.tick()
        with AdminClient(bootstrap_servers=ROOT) as admin:
            (grown,) = admin.create_partitions([NewPartitions("transfers", 3)]).values()
            grown.result()
        wider = TRANSFERS.append(pa.field("note", pa.string()))
        Topic("transfers", wider, bootstrap_servers=ROOT).evolve()
        with Producer(bootstrap_servers=ROOT) as producer:
            row = {"source": 1, "target": 2, "amount": 3, "note": "n"}
            producer.produce("transfers", row, partition=2)
        tick = running.tick()
    assert tick is not None
    assert tick.inputs["transfers"].ends == (1, 0, 1)
    assert rows(views, "v") == [(2,)]
    assert views.check() == []


def test_retriable_errors_are_tried_again(monkeypatch: pytest.MonkeyPatch):
    transfers()
    transfer((1, 2, 5))
    store = FaultyStore(open_store(ROOT))
    clock = ManualClock(auto_advance=True)
    views = bank(root=None, store=store, clock=clock)
    store.add(Rule("get", "topics/transfers/*", Fault.error_before(), times=40))
    ticks = GroupRunner.tick

    def tick(self: GroupRunner) -> Tick | None:
        if (found := ticks(self)) is not None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(GroupRunner, "tick", tick)
    last = views.run(every=1.0)
    assert last is not None
    assert rows(bank(), "credits") == [(2, 5)]
    with pytest.raises(InvalidConfig, match="every must be more than 0"):
        views.run(every=0)


# --- what maintenance keeps ---


def maintain(clock: ManualClock) -> Counter[str]:
    """Compact the topics, and remove what retention says, an hour later."""
    clock.advance(3600)
    maintenance = Maintenance(open_store(ROOT), clock, settings=DEFAULT_SETTINGS)
    return maintenance.round() + maintenance.finish()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


def price(**prices: int) -> None:
    with Producer(bootstrap_servers=ROOT) as producer:
        for name, amount in prices.items():
            producer.produce("prices", {"name": name, "price": amount}, key=name)


def price_list(clock: ManualClock) -> Views:
    columns = pa.schema([("name", pa.string()), ("price", pa.int64())])
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    Topic("prices", columns, config=config, bootstrap_servers=ROOT).create()
    views = Views("shop", ROOT, clock=clock)
    views.view("dear", "select name, price from prices where price > 10", key="name")
    views.view("total", "select sum(price) as total from prices")
    return views


def test_compaction_keeps_what_a_tick_needs(clock: ManualClock):
    views = price_list(clock)
    price(tea=5, wine=20)
    views.run(until="now")
    for amount in (15, 16):
        price(tea=amount)
        done = maintain(clock)
        # The tick that was published is proved, whatever has come since.
        assert views.check() == []
        assert views.read().sql("select sum(price) as s from prices").to_pylist() == [{"s": 25}]
    views.run(until="now")
    price(tea=17, wine=1)
    views.run(until="now")
    done += maintain(clock)
    assert [rows(views, "total", at=tick) for tick in (1, 2, 3)] == [[(25,)], [(36,)], [(18,)]]
    assert rows(views, "dear", at=1) == [("wine", 20)]
    assert rows(views, "dear", at=2) == [("tea", 16), ("wine", 20)]
    assert views.read(1).sql("select sum(price) as s from prices").to_pylist() == [{"s": 25}]
    # Without holds they are compacted, and no reader gets a wrong result.
    release(open_store(ROOT), "prices", "shop")
    maintain(clock)
    with pytest.raises(KafkaException, match="what topic 'prices' had at tick 2"):
        views.read(2).sql("select sum(price) as s from prices")
    for topic in ("shop.dear", "shop.total"):
        release(open_store(ROOT), topic, "shop")
    maintain(clock)
    # A runner that comes back holds what there is, not what has gone.
    with runner(views):
        pass
    with pytest.raises(KafkaException, match="what topic 'prices' had at tick 2"):
        views.read(2).sql("select sum(price) as s from prices")
    with pytest.raises(KafkaException, match="tick 2 of 'shop' is not kept"):
        rows(views, "total", at=2)
    assert rows(views, "total") == [(18,)]


@pytest.mark.parametrize("moves", [False, True])
def test_retention_waits_for_a_group_unless_that_moves_with_it(clock: ManualClock, moves: bool):
    store = MemoryStore(f"retention-{moves}", clock)
    given: dict[str, Any] = {"store": store, "clock": clock}
    conf = {"bootstrap.servers": store.url}
    Topic("transfers", TRANSFERS, config={"retention.ms": "1000"}, **given).create()
    views = bank(root=None, **given)
    with Producer(conf, **given) as producer:
        for row in ((1, 2, 5), (2, 1, 3)):
            producer.produce("transfers", dict(zip(TRANSFERS.names, row, strict=True)))
    views.run(until="now", retract_on_retention=moves)
    clock.advance(3600)
    Maintenance(store, clock).round()
    start = Topic("transfers", **given).describe().start_offsets[0]
    assert start == (2 if moves else 0)
    views.run(until="now", retract_on_retention=moves)
    assert rows(views, "credits") == ([] if moves else [(1, 3), (2, 5)])
    assert views.check() == []


def test_holds_follow_the_ticks_and_end_with_the_group(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(holding, "HISTORY", 2)
    transfers()
    store = open_store(ROOT)
    views = bank(root=None, store=store, clock=clock)

    def held() -> dict[str, list[tuple[int, ...]]]:
        return {
            topic: [hold.ends for hold in (of.hold for of in stored_holds(store, topic)) if hold]
            for topic in ("transfers", "bank.credits")
        }

    with runner(views) as running:
        assert held() == {"transfers": [()], "bank.credits": []}, "before the first cut"
        for number in range(1, 5):
            transfer((1, 2, number))
            running.tick()
        assert held() == {"transfers": [(1,)], "bank.credits": [(1,)]}
        clock.advance(holding.RENEW_S)
        transfer((1, 2, 5))
        running.tick()
        assert held() == {"transfers": [(3,)], "bank.credits": [(3,)]}
    with runner(views):
        assert held() == {"transfers": [(3,)], "bank.credits": [(3,)]}, "only those of one runner"
    views.delete()
    assert held()["transfers"] == []


def test_an_input_that_no_view_reads_any_more_is_not_held_again(clock: ManualClock):
    transfers()
    transfer((1, 2, 5))
    store = open_store(ROOT)
    Topic("rates", pa.schema([("rate", pa.int64())]), bootstrap_servers=ROOT).create()
    views = Views("bank", store=store, clock=clock)
    views.view("all", "select source, amount from transfers")
    views.view("rate", "select rate from rates")
    views.run(until="now")
    (before,) = stored_holds(store, "rates")
    later = Views("bank", store=store, clock=clock)
    later.view("all", "select source, amount from transfers")
    with runner(later) as running:
        running.tick()
        clock.advance(holding.RENEW_S)
        transfer((2, 1, 3))
        running.tick()
        assert stored_holds(store, "rates") == (before,)
        (renewed,) = stored_holds(store, "transfers")
    assert before.hold is not None
    assert renewed.hold is not None
    assert renewed.hold.time_ms >= before.hold.time_ms + holding.RENEW_S * 1000
