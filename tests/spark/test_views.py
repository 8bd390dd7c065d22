"""SQL views evaluated by Spark: each published tick equals DuckDB's SQL over its cut, through
retractions, kills, a second runner, and moves between the engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from deltaq import InvalidConfig, Producer, Topic, TopicPartition
from deltaq.admin import AdminClient
from deltaq.errors import Fenced, InvalidValue
from deltaq.spark import run_views
from deltaq.spark.views import SparkEvaluator, own_session
from deltaq.tools.duckdb_tables import connected, create, described, fetched, quoted
from deltaq.views import Views
from deltaq.views.catalog import ViewCatalog
from deltaq.views.modes import Mode
from deltaq.views.planning_spark import check_for_spark, spark_query
from deltaq.views.runner import GroupRunner
from tests.doubles.views import runner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Row = dict[str, Any] | None

TRANSFERS = pa.schema([("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())])
SALES = pa.schema([("item", pa.string()), ("n", pa.int32())])


def topic(root: str, name: str, columns: pa.Schema, **options: Any) -> None:
    Topic(name, columns, bootstrap_servers=root, **options).create()


def write(root: str, name: str, rows: Iterable[tuple[str | None, Row]]) -> None:
    with Producer({"bootstrap.servers": root}) as producer:
        for key, row in rows:
            producer.produce(name, row, key)


def rows(views: Views, name: str) -> list[tuple[Any, ...]]:
    found = views.read()[name].to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


# --- ticks ---


def bank(root: str) -> Views:
    views = Views("bank", root)
    views.view("credits", "select target as account, sum(amount) as c from transfers group by 1")
    views.view("debits", "select source as account, sum(amount) as d from transfers group by 1")
    both = "from credits union all select account, -d from debits"
    views.view(
        "balance",
        f"select account, sum(c) as b from (select account, c {both}) group by account",
    )
    views.view("total", "select sum(b) as total from balance")
    return views


def transfer(source: int, target: int, amount: int) -> Row:
    return {"source": source, "target": target, "amount": amount}


def test_a_bank_has_the_total_zero_at_each_tick_of_both_engines(spark: SparkSession, root: str):
    """Transfers are corrected and taken back, so all views have retractions."""
    topic(root, "transfers", TRANSFERS, partitions=2, config={"cleanup.policy": "compact"})
    there: dict[str, Row] = {}
    steps: list[tuple[str, dict[str, Row]]] = [
        ("spark", {"a": transfer(1, 2, 50), "b": transfer(2, 3, 20), "c": transfer(3, 1, 5)}),
        ("duckdb", {"a": transfer(1, 3, 70), "d": transfer(4, 1, 9)}),
        ("spark", {"a": None, "b": None, "c": transfer(3, 4, 6), "e": transfer(2, 2, 1)}),
    ]
    for number, (engine, changes) in enumerate(steps, 1):
        write(root, "transfers", changes.items())
        there |= changes
        views = bank(root)
        tick = run_views(spark, views, until="now") if engine == "spark" else views.run(until="now")
        assert tick is not None
        assert tick.number == number
        assert rows(views, "total") == [(0,)]
        assert dict(rows(views, "balance")) == balances(there)
        assert views.check() == []
    assert run_views(spark, bank(root), until="now") == tick, "nothing has changed"


def balances(transfers: Mapping[str, Row]) -> dict[int, int]:
    """The balance of each account, in plain Python."""
    found: Counter[int] = Counter()
    for row in filter(None, transfers.values()):
        found[row["source"]] -= row["amount"]
        found[row["target"]] += row["amount"]
    return dict(found)


VIEWS = {
    "outer_joins": "select s.id, i.item, l.kind from sold s full join items i on s.item = i.item "
    "left join items l on s.item = l.item and l.weight > 2",
    "no_item": "select id from sold s where not exists "
    "(select 1 from items i where i.item = s.item)",
    "newest": "select item, id, lag(id) over (partition by item order by _partition, _offset) as b "
    "from sold "
    "qualify row_number() over (partition by item order by _partition desc, _offset desc) <= 2",
    "unsold": "select item from items except select item from sold",
    "dearest": "select id, price from sold order by price desc, id limit 2",
    "of_dearest": "select d.id, n from dearest d join sold s on d.id = s.id",
    "cheaper": "select id from sold where price < (select max(price) from dearest)",
}
IN_FULL = {"cheaper"}


@pytest.mark.long
def test_views_by_rules_and_in_full_equal_duckdb_at_each_tick(spark: SparkSession, root: str):
    sold = [("id", pa.int64()), ("item", pa.string()), ("n", pa.int32())]
    topic(root, "sold", pa.schema([*sold, ("price", pa.decimal128(18, 2))]))
    items = pa.schema([("item", pa.string()), ("kind", pa.string()), ("weight", pa.int64())])
    topic(root, "items", items, config={"cleanup.policy": "compact"})
    views = Views("shop", root)
    for name, sql in VIEWS.items():
        views.view(name, sql)

    def sell(*sales: tuple[int, str | None, int | None, str | None]) -> None:
        write(root, "sold", [(None, sale(*values)) for values in sales])

    def sale(id_: int, item: str | None, n: int | None, price: str | None) -> Row:
        return {"id": id_, "item": item, "n": n, "price": price and Decimal(price)}

    def price(**weights: int | None) -> None:
        kinds: dict[str, Row] = {
            name: None if weight is None else {"item": name, "kind": name[0], "weight": weight}
            for name, weight in weights.items()
        }
        write(root, "items", kinds.items())

    price(tea=1, milk=3, soap=4)
    sell((1, "tea", 2, "1.50"), (2, "milk", None, "-2.25"), (3, None, 3, None), (4, "tea", 3, "8"))
    run_views(spark, views, until="now")
    assert views.check() == []
    sell((5, "rye", 1, "99.99"), (6, "milk", 3, "0.05"))
    price(milk=1, tea=5, soap=None, rye=2)
    tick = run_views(spark, views, until="now")
    assert tick is not None
    assert {*tick.views} - {*tick.ruled} == IN_FULL
    assert rows(views, "dearest") == [(4, Decimal("8.00")), (5, Decimal("99.99"))]
    assert views.check() == []


# --- expressions ---

VALUES: dict[str, tuple[str, list[Any]]] = {
    "n": ("INTEGER", [None, 0, 1, -7, 2_000_000]),
    "big": ("BIGINT", [None, 0, 1, -7, 2**60]),
    "price": ("DECIMAL(18,2)", [None, *map(Decimal, ("0", "2.25", "-2.25", "999999.99"))]),
    "ratio": ("DOUBLE", [None, -0.0, 0.5, float("nan"), float("inf")]),
    "name": ("VARCHAR", [None, "", "a'b\\n", "Straße", "aé\U0001f600"]),
    "raw": ("BLOB", [None, b"", b"\xff", b"a", b"\x00a"]),
    "yes": ("BOOLEAN", [None, True, False, True, False]),
    "day": ("DATE", [None, date(1, 1, 1), date(1582, 10, 10), date(2020, 2, 29), date(9999, 1, 1)]),
    "sent": (
        "TIMESTAMP WITH TIME ZONE",
        [None, *(datetime(year, 1, 2, 3, 4, 5, 678, UTC) for year in (1, 1899, 2020, 9999))],
    ),
}
QUERIES = [
    "select n + big, n - 1, big * -3, -n, price + n, price * price, price * 1.055, -price from t",
    "select n // 3, n % 3, big / 3, n / nullif(big, 0), big // nullif(n, 0), ratio * 2 from t",
    "select n = big, price > 2.25, ratio < 0.5, ratio = 0.0, name < 'b', raw <= raw from t",
    "select n between 0 and 2, n in (1, 2), n not in (1, null), n is distinct from big from t",
    "select coalesce(price, 0), nullif(name, ''), greatest(n, big), least(price, 1) from t",
    r"select name || '\x41''', length(name), name like 'a%', name like '_', name = 'a''b\n' from t",
    "select case when n > 0 then 'x' when n < 0 then name end, case n when 1 then 2.5 end from t",
    "select n::varchar, yes::varchar, price::decimal(38,1), n::double, yes::integer from t",
    "select day > date '2000-01-01', day, sent, yes and n > 0, yes or n > 0, not yes from t",
    "select sum(n), sum(big), sum(price), avg(n), avg(big), min(ratio), max(ratio) from t",
    "select max(name), min(raw), max(raw), max(day), min(sent), bool_and(yes), count(ratio) from t",
    "select sum(distinct n % 2), count(distinct name), count(*) filter (yes) from t where n < 0",
    "select yes, ratio, count(*) from t group by all having count(*) > 0",
    "select name, row_number() over (order by n desc), rank() over (order by yes) from t",
    "select n, lag(n) over (order by n), sum(big) over (order by n rows 1 preceding) from t",
    "select a.n, b.big from t a left join t b on a.n = b.big and b.price > 0",
    "select a.ratio from t a join t b on a.ratio = b.ratio",
    "select n from t where n not in (select big from t) union all select n from t order by n",
    "select yes from t intersect all select yes from t where n < 0 or n > 0",
    "select name from t order by name desc limit 3 offset 1",
    "select count(*), (select max(price) from t) as m from t having count(*) > 1",
]


def test_sql_that_is_not_refused_has_the_same_rows_in_spark(spark: SparkSession):
    session = own_session(spark)
    types = {"t": {name: kind for name, (kind, _) in VALUES.items()}}
    arrow = {"price": pa.decimal128(18, 2), "n": pa.int32(), "sent": pa.timestamp("us", "UTC")}
    table = pa.table({name: pa.array(of, arrow.get(name)) for name, (_, of) in VALUES.items()})
    session.createDataFrame(table).createOrReplaceTempView("now_t")
    with connected() as connection:
        connection.execute("set TimeZone = 'UTC'")
        create(connection, "t", table.schema, table.to_batches())
        for sql in QUERIES:
            result = described(connection, sql)
            check_for_spark(sql, types, result)
            columns = [f"c{number}" for number in range(len(result))]
            found = session.sql(spark_query(sql, types)).toDF(*columns).toArrow()
            create(connection, "found", found.schema, found.to_batches(), kind="temp table")
            casts = ", ".join(
                f"cast({name} as {kind}) as {name}"
                for name, kind in zip(columns, result.values(), strict=True)
            )
            names = ", ".join(
                f"{quoted(old)} as {new}" for old, new in zip(result, columns, strict=True)
            )
            ours = fetched(connection, f"select {casts} from found")
            theirs = fetched(connection, f"select {names} from ({sql})")
            assert shown(ours) == shown(theirs), sql
            connection.execute("drop table temp.found")


def shown(table: pa.Table) -> Counter[str]:
    """The rows, where -0.0 is 0.0, and not a number is equal to itself."""
    rounded = (
        [f"{value + 0.0:.12g}" if isinstance(value, float) else value for value in row.values()]
        for row in table.to_pylist()
    )
    return Counter(map(repr, rounded))


# --- state ---


def sums(root: str) -> Views:
    views = Views("sums", root)
    sql = "select item, sum(n) as n, count(*) as c from sales group by item"
    views.view("by_item", sql, mode="incremental")  # in DuckDB, too: then it has a checkpoint
    return views


def sell(root: str, *sales: tuple[str, int]) -> None:
    write(root, "sales", [(None, {"item": item, "n": n}) for item, n in sales])


def by_spark(spark: SparkSession, views: Views) -> GroupRunner:
    store, clock, modes = views._store, views._clock, views._modes
    evaluator = SparkEvaluator(spark, views.program, modes, store, clock, keeps_inputs=False)
    return runner(views, evaluator=evaluator)


@pytest.fixture
def sales(root: str) -> str:
    """A root with two sales."""
    topic(root, "sales", SALES)
    sell(root, ("a", 1), ("b", 2))
    return root


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows Spark has got of inputs, in parts."""
    found: list[int] = []
    selected = ViewCatalog.selected

    def counted(self: ViewCatalog, *given: Any) -> Iterator[pa.Table]:
        for part in selected(self, *given):
            found.append(part.num_rows)
            yield part

    monkeypatch.setattr(ViewCatalog, "selected", counted)
    return found


def state(root: str) -> Path:
    """The folder with state."""
    return Path(root, "topics", "sums.ticks", "_deltaq", "view_state", "spark")


class Killed(BaseException):
    """A process ends here."""


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("owner", "step", "is_published"),
    [
        (GroupRunner, "_publish", False),
        (SparkEvaluator, "save", True),
    ],
    ids=["before it publishes", "before it names the state"],
)
def test_a_runner_that_is_killed_is_followed_by_one_that_skips_and_repeats_no_tick(
    spark: SparkSession,
    sales: str,
    rows_read: list[int],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    step: str,
    is_published: bool,
):
    run_views(spark, sums(sales), until="now")
    sell(sales, ("a", 10), ("c", 5))
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, killed)
        with pytest.raises(Killed):
            run_views(spark, sums(sales), until="now")
    sell(sales, ("a", 100))
    rows_read.clear()
    tick = run_views(spark, sums(sales), until="now")
    assert tick is not None
    assert tick.number == 2 + is_published
    assert rows(sums(sales), "by_item") == [("a", 111, 3), ("b", 2, 1), ("c", 5, 1)]
    assert sums(sales).check() == []
    assert sum(rows_read) == 3, "the first two are in the state"


def test_state_that_duckdb_has_passed_is_used_and_state_that_is_lost_is_made_anew(
    spark: SparkSession, sales: str, rows_read: list[int], caplog: pytest.LogCaptureFixture
):
    run_views(spark, sums(sales), until="now")
    sell(sales, ("a", 10))
    sums(sales).run(until="now")
    sell(sales, ("b", 20))
    rows_read.clear()
    run_views(spark, sums(sales), until="now")
    assert sum(rows_read) == 2
    assert rows(sums(sales), "by_item") == [("a", 11, 2), ("b", 22, 2)]
    for lost in state(sales).glob("*/*.parquet"):
        lost.unlink()
    sell(sales, ("c", 3))
    rows_read.clear()
    run_views(spark, sums(sales), until="now")
    assert "the checkpoint of 'sums' is not used" in caplog.text
    assert sum(rows_read) == 5
    assert rows(sums(sales), "by_item") == [("a", 11, 2), ("b", 22, 2), ("c", 3, 1)]
    assert sums(sales).check() == []


def test_a_second_runner_stops_the_first_and_small_parts_of_state_are_merged(
    spark: SparkSession, sales: str
):
    with by_spark(spark, sums(sales)) as first:
        assert first.tick() is not None
        # The state of the second one replaces that of the first.
        (state(sales) / "checkpoint.json").unlink()
        parts = []
        with by_spark(spark, sums(sales)) as second:
            for number in range(4):
                sell(sales, ("a", number))
                assert second.tick() is not None
                parts.append(sum(path.is_dir() for path in state(sales).iterdir()))
            with pytest.raises(Fenced):
                first.tick()
        assert parts == [1, 2, 3, 1]
    assert rows(sums(sales), "by_item") == [("a", 7, 5), ("b", 2, 1)]
    assert sums(sales).check() == []


def test_what_leaves_an_input_leaves_the_views(spark: SparkSession, sales: str, tmp_path: Path):
    """Rows of a Delta table, and records that retention has removed."""
    lake = str(tmp_path / "lake")
    write_deltalake(lake, pa.table({"item": ["a", "b"], "city": ["Ulm", "Bern"]}))
    views = Views("cities", sales)
    views.input("cities", delta=lake)
    views.view("sold", "select city, n from sales join cities on cities.item = sales.item")
    run_views(spark, views, until="now", retract_on_retention=True)
    assert rows(views, "sold") == [("Bern", 2), ("Ulm", 1)]
    DeltaTable(lake).update(updates={"city": "'Bonn'"}, predicate="item = 'b'")
    first = TopicPartition("sales", 0, 1)
    admin = AdminClient({"bootstrap.servers": sales})
    assert admin.delete_records([first])[first].result(timeout=60).low_watermark == 1
    run_views(spark, views, until="now", retract_on_retention=True)
    assert rows(views, "sold") == [("Bonn", 2)]
    assert views.check() == []


# --- errors ---


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_key_that_does_not_tell_rows_apart_stops_the_runner(
    spark: SparkSession, sales: str, mode: Mode
):
    views = Views("keyed", sales)
    views.view("items", "select item, n from sales", key="item", mode=mode)
    sell(sales, ("a", 7))
    with pytest.raises(InvalidValue, match=r"view 'items' has two rows with this key, .*'a'"):
        run_views(spark, views, until="now")
    assert views.last_tick() is None


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select upper(item) as i from sales", 'UPPER("sales"."item"), which Spark may'),
        ("select min(n) as m, avg(n::decimal(9,1)) as a from sales group by item", "is exact only"),
        ("select n from sales where _timestamp < now()", "the time of the tick"),
        ("select twice(n) as t from sales", "the Python function 'twice'"),
        ("select n * 2000000000 as big from sales", "Spark: [ARITHMETIC_OVERFLOW"),
    ],
)
def test_what_spark_cannot_evaluate_as_duckdb_does_is_refused_by_name(
    spark: SparkSession, sales: str, sql: str, reason: str
):
    views = Views("refused", sales)
    views.function(twice)
    views.view("v", sql)
    with pytest.raises(InvalidConfig) as refused:
        run_views(spark, views, until="now")
    assert "view 'v'" in str(refused.value)
    assert reason in str(refused.value)
    assert views.last_tick() is None


def twice(n: int) -> int:
    return 2 * n


def test_a_root_in_memory_and_another_version_of_spark_are_refused(spark: SparkSession):
    views = Views("memory", "memory://spark-views")
    views.view("v", "select * from sales")
    with pytest.raises(InvalidConfig, match="Spark does not reach a root in memory"):
        run_views(spark, views, until="now")
    with pytest.raises(InvalidConfig, match=r"by Spark 4\.2, and this is Spark 4\.20\.1"):
        run_views(Mock(version="4.20.1"), views, until="now")
