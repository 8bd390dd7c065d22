"""The SQL of views for Spark: what is refused with which reason, and the text of the rest. That the
text has the same rows in Spark is tested in tests/spark/test_views.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pytest

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import InvalidConfig
from deltaq.spark.view_plans import plans_for_spark
from deltaq.views.catalog import catalog
from deltaq.views.planning_spark import (
    check_for_spark,
    spark_query,
    spark_sql,
    spark_type,
    table_of,
)
from deltaq.views.program import ViewQuery, compiled
from deltaq.views.rules import NoRule

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "t": {
        "n": "INTEGER",
        "big": "BIGINT",
        "small": "SMALLINT",
        "price": "DECIMAL(18,2)",
        "ratio": "DOUBLE",
        "name": "VARCHAR",
        "raw": "BLOB",
        "is_open": "BOOLEAN",
        "day": "DATE",
        "sent": "TIMESTAMP WITH TIME ZONE",
        "local": "TIMESTAMP",
        "tags": "VARCHAR[]",
    },
    "u": {"n": "INTEGER", "ratio": "DOUBLE", "name": "VARCHAR"},
}


@pytest.mark.parametrize(
    "sql",
    [
        "select n + 1, big * 2, price - 1, -ratio, ratio * 0.5 from t",
        "select n // 2, n % 3, big / 4, n / nullif(n, 0), big % nullif(n, 0) from t",
        "select n = big, price > 1.5, ratio < 0.5, ratio >= 2, name <> 'a', n is not null from t",
        "select n between 1 and 2, n in (1, null), n is distinct from big from t",
        "select coalesce(n, 0), nullif(name, ''), greatest(n, big), least(price, 1) from t",
        "select case when n > 1 then name else 'x' end, case n when 1 then 2.5 end from t",
        "select name || '-', length(name), name like 'a%' from t",
        "select n::bigint, n::varchar, is_open::varchar, price::decimal(10,1) from t",
        "select n::double, small::integer, is_open::integer, n::decimal(12,2) from t",
        "select day from t where day > date '2020-01-31' and sent is not null",
        "select name, sum(n), avg(price), count(*), count(distinct n) from t group by name",
        "select min(ratio), max(sent), bool_and(is_open), sum(n) filter (n > 1) from t",
        "select name, sum(distinct n) from t group by all having count(raw) > 1",
        "select t.n from t join u using (n) left join u as v on v.name = t.name",
        "select t.n from t full join u on t.n = u.n anti join u as w on w.n = t.n",
        "select n from t where exists (select 1 from u where u.n = t.n)",
        "select n from t where n not in (select n from u)",
        "select n from t union select n from u except all select n from u",
        "with a as (select n from t) select distinct n from a",
        "select n from t order by n limit 3 offset 1",
        "select n, row_number() over (partition by name order by n) as r from t qualify r = 1",
        "select lag(n) over (order by n), sum(n) over (order by n rows 1 preceding) from t",
        "select big > (select max(n) from u) from t",
    ],
)
def test_sql_that_means_the_same_in_spark_is_taken(sql: str):
    check_for_spark(sql, COLUMNS, {})


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select n / big from t", "may divide by zero: divide by nullif"),
        ("select n // 0 from t", "may divide by zero"),
        ("select n % nullif(n, 1) from t", "may divide by zero"),
        ("select price / 2 from t", "divides only whole numbers"),
        ("select small + 1 from t", "may overflow in DuckDB only: cast it to INTEGER"),
        ("select day + 1 from t", "which Spark may evaluate in another way"),
        ("select n = name from t", '(integer) and "t"."name" (text) are compared or mixed'),
        ("select price > ratio from t", "(decimal) and"),
        ("select ratio > 0.1234567890123456 from t", "(float) and"),
        ("select n between 1 and ratio from t", "are compared or mixed"),
        ("select n in (1, ratio) from t", "are compared or mixed"),
        ("select n in (select ratio from u) from t", "are compared or mixed"),
        ("select coalesce(n, ratio) from t", "are compared or mixed"),
        ("select case when n > 1 then n else ratio end from t", "are compared or mixed"),
        ("select case n when ratio then 1 end from t", "are compared or mixed"),
        ("select n from t union all select ratio from u", "are compared or mixed"),
        ("select raw || raw from t", "for text only"),
        ("select length(raw) from t", "for text only"),
        ("select name like n::varchar from t", "for a constant without backslashes only"),
        (r"select name like 'a\%' from t", "for a constant without backslashes only"),
        ("select ratio::integer from t", "which Spark may convert in another way"),
        ("select price::integer from t", "which Spark may convert in another way"),
        ("select name::integer from t", "which Spark may convert in another way"),
        ("select n::float from t", "which Spark may convert in another way"),
        ("select '2020-1-1'::date from t", "which Spark may convert in another way"),
        ("select try_cast(n as smallint) from t", "TRY_CAST("),
        ("select sum(ratio) from t", "depends on the order of its rows"),
        ("select avg(ratio) from t", "depends on the order of its rows"),
        ("select sum(distinct ratio) from t", "depends on the order of its rows"),
        ("select avg(n) over (partition by name) from t", "divide the sum by the count"),
        ("select avg(n) filter (n > 1) from t", "divide the sum by the count"),
        ("select max(n, 2) from t", "which Spark may evaluate in another way"),
        ("select lag(n, 1, 0) over (order by n) from t", "may evaluate in another way"),
        ("select count(distinct (n, big)) from t", '("t"."n", "t"."big"), which'),
        ("select distinct on (n) n, big from t order by n, big", "DISTINCT ON ("),
        ("select sum(n) filter (n > 1) over (order by n) from t", "FILTER in a window"),
        ("select sum(n) over (order by n range 1 preceding) from t", "over a range of values"),
        ("select lower(name) from t", 'LOWER("t"."name"), which Spark may evaluate in another way'),
        ("select string_agg(name, ',' order by name) from t", "LISTAGG("),
        ("select n from t limit 10%", "LIMIT 10"),
        ("select t.n from t asof join u on t.n >= u.n", "ASOF JOIN"),
        ("select t.n from t positional join u", "POSITIONAL JOIN"),
        ("select n from t union by name select n from u", "BY NAME"),
        ("with recursive a as (select n from t) select n from a", "WITH RECURSIVE"),
        ("select n, count(*) from t group by cube (n)", "CUBE"),
        ("select n from t where tags is not null", "a type that Spark does not have"),
        ("select n from t where local is not null", "a type that Spark does not have"),
        ("select unnest(tags) from t", "UNNEST("),
        ("select mood(name) from t", "the Python function 'Mood'"),
        ("select missing from t", "sqlglot does not read it"),
    ],
)
def test_sql_that_may_mean_something_else_in_spark_is_refused(sql: str, reason: str):
    with pytest.raises(NoRule) as refused:
        check_for_spark(sql, COLUMNS, {}, ["Mood"])
    assert reason in str(refused.value)


def test_an_average_of_decimals_is_taken_from_exact_sums_only():
    sql = "select avg(n), avg(price) from t"
    check_for_spark(sql, COLUMNS, {}, has_exact_sums=True)
    for whole in ("avg(n)", "avg(distinct small)"):
        check_for_spark(f"select {whole} from t", COLUMNS, {}, has_exact_sums=False)
    with pytest.raises(NoRule, match=r'AVG\("t"\."price"\) is exact only by rules'):
        check_for_spark(sql, COLUMNS, {}, has_exact_sums=False)


@pytest.mark.parametrize(
    ("name", "kind"), [("x", "UUID"), ("x", "TIMESTAMP"), ("x", "VARCHAR[]"), ("_W", "BIGINT")]
)
def test_a_column_that_spark_cannot_have_is_refused(name: str, kind: str):
    with pytest.raises(NoRule, match=f"column '{name}' is "):
        check_for_spark("select n as x from t", COLUMNS, {name: kind})


def test_types_of_duckdb_have_one_in_spark_if_the_values_are_the_same():
    kinds = ["BIGINT", "HUGEINT", "DECIMAL(18,2)", "BLOB", "TIMESTAMP WITH TIME ZONE"]
    found = [spark_type(kind) for kind in kinds]
    assert found == ["bigint", "decimal(38,0)", "decimal(18,2)", "binary", "timestamp"]
    others = ["UBIGINT", "DECIMAL(18,2)[]", "BIGINT[]", "TIMESTAMP", "TIMESTAMP_NS"]
    assert not any(spark_type(kind) for kind in others)


@pytest.mark.parametrize(
    ("duckdb", "spark"),
    [
        ('from change."t"', "SELECT * FROM change_t"),
        ("from rule.state_v_0 as _t", "SELECT * FROM rule_state_5f_v_5f_0 AS _t"),
        ("with a as materialized (from now.t) from a", "WITH a AS (SELECT * FROM now_t)"),
        ("select cast(a as hugeint) from now.t", "CAST(a AS DECIMAL(38, 0))"),
        ("select avg(a) from now.t", "(CAST(SUM(a) AS DOUBLE) / NULLIF(COUNT(a), 0))"),
        ("select a / 2 from now.t", "CAST(a AS DOUBLE) / 2"),
        ("select avg(a // 2) from now.t", "(CAST(SUM(CAST((CAST(a AS DECIMAL(38, 0)) -"),
        (
            "select a // 2 from now.t",
            "CAST((CAST(a AS DECIMAL(38, 0)) - CAST(a AS DECIMAL(38, 0)) % (2)) / (2) AS DECIMAL",
        ),
        ("select a from now.t order by a", "ORDER BY a NULLS LAST"),
        (
            "select a from now.t as _z, range(_z._w)",
            "_z, LATERAL EXPLODE(IF(_z._w > 0, SEQUENCE(1, _z._w), ARRAY()))",
        ),
    ],
)
def test_statements_of_duckdb_are_written_for_spark(duckdb: str, spark: str):
    assert spark in spark_sql(duckdb)


def test_a_view_in_full_reads_the_rows_of_tables_and_not_those_of_its_own_names():
    sql = "with u as (select n from t) select u.n from u join t on u.n = t.n"
    assert spark_query(sql, COLUMNS) == (
        "WITH `u` AS (SELECT `t`.`n` AS `n` FROM now_t AS `t`) SELECT `u`.`n` AS `n` "
        "FROM `u` AS `u` JOIN now_t AS `t` ON `u`.`n` = `t`.`n`"
    )


def test_tables_with_any_name_have_one_of_their_own_in_spark():
    names = ['now."a.b"', 'now."a-b"', "now.a_b", 'now."A_2e_b"', "change.a_b"]
    assert len({table_of(name) for name in names}) == len(names)
    assert table_of("now.A_b") == table_of("now.a_B")
    assert all(table_of(name).replace("_", "").isalnum() for name in names)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select n from t natural full join u natural full join w", "NATURAL after a FULL JOIN"),
        (
            "select n % 2 as n, count(*) as c from t group by all having n > 0",
            "GROUP BY ALL with 'n' in HAVING",
        ),
        ("select decode(raw, 'latin-1') as x from t", "sqlglot writes decode in another way"),
    ],
)
def test_sql_that_sqlglot_reads_in_another_way_is_refused(sql: str, reason: str):
    program = compiled("g", [ViewQuery("v", sql)])
    with catalog(program, {"v": "full"}, SYSTEM_CLOCK) as found:
        for name in program.inputs:
            columns = pa.schema([("n", pa.int32()), ("raw", pa.binary())])
            found.create_input(name, columns, is_keyed=False)
        found.plan()
        with pytest.raises(InvalidConfig, match=re.escape(reason)):
            plans_for_spark(found, program, ())
