"""What the SQL of a view reads, which columns tell its rows apart, and what is refused."""

from __future__ import annotations

import duckdb
import pytest

from deltaq.errors import InvalidConfig
from deltaq.views import Views

BOTH = "a._partition, a._offset, b._partition, b._offset"

TOTAL = (
    (BOTH, "t a join u b on a.x < b.x"),
    (BOTH, "t a, u b"),
    (BOTH, "t a cross join u b"),
    (BOTH, "t a left join u b using (x)"),
    (BOTH, "t a right join u b using (x)"),
    (BOTH, "t a natural join u b"),
    ("_partition, _offset, k", "(select _partition, _offset, x from t) a, sums"),
    ("_partition, _offset", "t a join sums on a.x = sums.k"),
    ("_partition, _offset", "t a left join sums using (k)"),
    ("_partition, _offset", "t a asof join sums on a.x >= sums.k"),
    ("a._partition, a._offset, sums.k", "t a right join sums on a.x < sums.k"),
    ("_partition, _offset", "sums join t a on a.x = sums.k"),
    ("a._partition, a._offset", "sums right join t a using (k)"),
    ("_partition, _offset", "t a semi join u on a.x = u.x"),
    ("_partition, _offset", "t a anti join u using (x)"),
    ("_partition, _offset", "(select * from t semi join u using (x)) a"),
    ("p, o", "(select _partition as p, t._offset as o, x from t) a"),
    (
        "q, o",
        "(select p as q, o, x from (select _partition as p, _offset as o, x from t)) a",
    ),
    ("j", "(select k as j, s as x from sums) a"),
    ("(_partition, _offset)", "t a"),
    ("{'p': _partition, 'o': _offset}", "t a"),
)
"""Orders in which no rows are equal, of what stands in FROM."""


def program(sql: str, **others: str):
    views = Views("g", "memory://query")
    if "disk" in sql:
        views.input("disk", delta="/lake/disk")
    for name, text in others.items():
        views.view(name, text)
    views.view("v", sql)
    return views.program


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("select * from orders", ["orders"]),
        ('select * from "orders.eu" join "a-b" using (k)', ["a-b", "orders.eu"]),
        ("with o as (select * from orders) select * from o", ["orders"]),
        ("with orders as (select * from orders where a > 1) select * from orders", ["orders"]),
        ("with a as (select 1 x), b as (select * from a) select * from b", []),
        (
            "with recursive r as (select 1 as n union all select n + 1 from r) select * from r",
            [],
        ),
        ("select (select max(x) from p) from q where exists (select 1 from s)", ["p", "q", "s"]),
        ("select a from t union all select a from u", ["t", "u"]),
        ("select x from unnest([1, 2]) as n(x)", []),
    ],
)
def test_a_view_reads_the_tables_that_it_does_not_define(sql, reads):
    assert sorted(program(sql).view("v").reads) == reads


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("select a, sum(b) as s from t group by a", ("a",)),
        ("select a as x, sum(b) as s from t group by 1", ("x",)),
        ("select lower(a) as l, c, count(*) as n from t group by l, c", ("l", "c")),
        ("select lower(a) as l, count(*) as n from t group by lower(a)", ("l",)),
        ("select a, c, count(*) as n from t group by all", ("a", "c")),
        ("select a, sum(b) as s from t group by all having a > s and max(c) > 1", ("a",)),
        # DuckDB groups by a column in HAVING, too.
        ("select a % 2 as a, sum(b) as s from t group by all having a > 1", None),
        ("select a as c, sum(b) as s from t group by all having c > 1", None),
        ("select distinct a, b from t", ("a", "b")),
        ("select sum(a) as s, count(*) + 1 as n from t", ()),
        ("select count(*) as n from t having count(*) > 1", ()),
        ("select distinct unnest(a) as u from t", ("u",)),
        ("select distinct a, unnest([1, max(b)]) as u from t group by a", ("a", "u")),
        ("select a, unnest([b, max(c)]) as u from t group by a, b", None),
        ("select unnest([max(a), min(a)]) as u from t", None),
        ("select a, b from t", None),
        ("select * from t", None),
        ("select lower(a), count(*) as n from t group by lower(a)", None),
        ("select count(*) as n from t group by a", None),
        ("select a, b, count(*) as n from t group by rollup (a, b)", None),
        ("select a from t union select a from u", None),
        ("select sum(a) over () as s from t", None),
        # DuckDB groups by the columns of t of these names, if it has them.
        ("select lower(a) as a, sum(b) as s from t group by a", None),
        ("select a as b, sum(b) as s from t group by b, a", None),
        ("select 1 as a, count(*) as n from t group by a", None),
        ("select (select max(x) from u) as m from t", None),
        ("select distinct t.a, u.a from t, u", None),
        ("select t.a, u.A, count(*) as n from t, u group by t.a, u.a", None),
        ("select a, regexp_split_to_table(max(b), ' ') as w from t group by a", None),
        ("select *, a as x, b as y from (select a, b from t) group by a, 2", None),
        ("select a, (select max(x) from u) as m, count(*) as n from t group by all", ("a", "m")),
    ],
)
def test_the_row_key_is_what_the_sql_tells(sql, key):
    assert program(sql).view("v").key == key


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (
            "select today() as n from t",
            "calls today(), which changes from moment to moment; the time of the tick is now()",
        ),
        ("select * from t where day > current_date", "the time of the tick is now()"),
        ("select random() as r from t", "calls random()"),
        ("select uuid() as r from t", "calls uuid()"),
        ("select age(x) as a from t", "calls age()"),
        ("select nextval('s') as n from t", "calls nextval()"),
        ("select first(a) as f from t", "calls first()"),
        ("select b, list(a) as l from t group by b", "calls list()"),
        ("select string_agg(a order by b) as l from t", "calls string_agg()"),
        ("select b, max_by(a, c) as m from t group by b", "max({'t': t, 'x': x}).x"),
        ("select mode(a) as m from t", "calls mode()"),
        ("select string_agg(a) over (partition by b) as l from t", "over an order in which rows"),
        ("select arg_min(a, c) over (partition by b) as m from t", "over an order in which rows"),
        ("select a, b from t union all select a, b from u order by a limit 1", "has a LIMIT"),
        (
            "select a from t union all by name select b, a from u order by a limit 1",
            "has a LIMIT",
        ),
        ("select * from t limit 3", "has a LIMIT"),
        ("select * from t order by a limit 3", "has a LIMIT"),
        ("select * from (select a from t order by b limit 1)", "has a LIMIT"),
        ("select row_number() over (partition by a order by b) as n from t", "calls row_number()"),
        ("select lag(a) over (order by b) as n from t", "calls lag()"),
        ("select sum(a) over (order by b rows 2 preceding) as n from t", "calls sum()"),
        ("select * from t tablesample 10%", "takes a sample"),
        ("select * from read_csv('x.csv')", "reads read_csv()"),
        ("select ago(interval 1 day) as x from t", "calls ago()"),
        ("select current_localtimestamp() as x from t", "the time of the tick is now()"),
        ("select vector_type(a) as x from t", "calls vector_type()"),
        ("select b collate nocase as x, count(*) as n from t group by 1", "uses COLLATE"),
        ("select name from (show all tables)", "reads what SHOW"),
        ("select * from (describe t)", "reads what SHOW"),
        ("select list_sort([uuid()]) as l from t", "calls uuid()"),
        ("select a % 2 as b from t order by t.b limit 1", "has a LIMIT"),
        ("select t.a, u.a from t, t as u order by t.a limit 2", "has a LIMIT"),
        ("select *, a from t order by 2 limit 1", "has a LIMIT"),
        (
            (
                "select _partition, _offset, regexp_split_to_table(b, ' ') as w from t "
                "order by t._partition, t._offset limit 2"
            ),
            "has a LIMIT",
        ),
        ("select distinct on (a) a, b, c from t order by a, b", "has a DISTINCT ON"),
        ("select argmax(a, c) as m from t", "calls argmax()"),
        ("select json_group_array(a) as l from t", "to_json(list(x ORDER BY x))"),
        ("select t.a from t positional join u", "has a POSITIONAL JOIN"),
        ("select * from t asof join u on t.a = u.k and t.b >= u.b", "has an ASOF JOIN"),
        ("select * from t asof join sums on t.a >= sums.s", "has an ASOF JOIN"),
        ("select * from t asof join sums on k >= sums.s", "has an ASOF JOIN"),
        ("select * from t asof join sums s on sums.k >= s.s", "has an ASOF JOIN"),
        *(
            (f"select row_number() over (order by _partition, _offset) as n from {rows}", "may be")
            for rows in (
                "t join u on t.a = u.a",
                "t join sums on t.a = sums.s",
                "t join sums on t.a >= sums.k",
                "t join sums on sums.s = sums.k",
                "t join sums on s + t.a = sums.k",
                "t join sums on t.a = sums.k or t.a = 1",
                "t right join sums on t.a = sums.k",
                "t natural join sums",
                "(select a as _partition, b as _offset from t)",
                "(select *, a as _offset from t)",
                "(select * exclude (_offset), a as _offset from t)",
                "(select u.* from t join sums u on t.a = u.k)",
                "(select * from t union all select * from t)",
                "(select _partition, _offset, unnest(l) as x from t)",
                "t as x(_partition, _offset)",
                "changes",
                "(values (1, 2), (1, 2)) as x(_partition, _offset)",
            )
        ),
        (
            (
                "with t as (select a as _partition, b as _offset from u) "
                "select list(a order by _partition, _offset) as l from t"
            ),
            "calls list()",
        ),
        (
            (
                "with w as (select a as _partition, b as _offset from t), "
                "x as (with w as (select * from t) select a from w) "
                "select lag(_offset) over (order by _partition, _offset) as l from w"
            ),
            "calls lag()",
        ),
        (
            "select (select lag(a) over (order by t._partition, t._offset) from u) from t",
            "calls lag()",
        ),
        (
            "select a % 2 as _offset, _partition, b from t order by _partition, _offset limit 1",
            "LIMIT",
        ),
        ("select a as k, s from sums order by k limit 1", "has a LIMIT"),
        ("select unnest(l) as x from t order by _partition, _offset limit 1", "has a LIMIT"),
        (
            "select a, row_number() over (order by b) as n from t group by a, b",
            "calls row_number()",
        ),
        (
            (
                "with x as (select * from (with t as (select k from sums) select k from t)) "
                "select lag(k) over (order by k) as l from t"
            ),
            "calls lag()",
        ),
        ('select lag(k) over (order by k) as l from "a".sums', "calls lag()"),
        ("select a from t order by row_number() over (order by b), a limit 1", "row_number()"),
        *(
            (f"select lag(a.x) over (order by {order}) as l from {rows}", "may be equal")
            for order, rows in (
                ("_partition, _offset", "t a join u b on a.x = b.x"),
                ("a._partition, a._offset", "t a, u b"),
                ("a._partition, a._offset, b._partition", "t a cross join u b"),
                (BOTH, "t a full join u b on a.x = b.x"),
                ("a._partition, a._offset", "t a join sums on sums.k = sums.f.k"),
                ("a._partition, a._offset", "t a join sums on sums.k = f.k"),
                ("a._partition, a._offset", "t a join sums x on x.k = x.a.k"),
                ("a._partition, a._offset", "sums left join t a on sums.k = a.x"),
                ("x.a._partition, x.a._offset", "t a join sums x on x.k = a.x"),
                (
                    "a._partition, a._offset",
                    "t a join (sums s join sums o on s.s = o.s) on s.k = o.k",
                ),
                (
                    "_partition, _offset",
                    "sums join (select * from t where t.a = s) a on sums.k = a.x",
                ),
                ("k", "(select sum(s) as k, k from sums group by k) a"),
                ("p, o", "(select _partition as p, x as o, _offset as o from t) a"),
                ("p, o", "(select *, _partition as p, _offset as o from t) a"),
                ("_partition, _offset", "(select c.*, t.* from t, changes c) a"),
                (
                    "_partition, _offset",
                    "(select c._offset, t.* from t join sums using (k), changes c)",
                ),
                ("_partition, _offset", "disk a"),
                ("_partition, _offset, k, j", "t a join pairs using (k)"),
                ("k, j, a._partition, a._offset", "pairs right join t a using (k)"),
            )
        ),
        *(
            (sql, "has a LIMIT")
            for sql in (
                "select k from t right join sums using (k) order by t.k limit 1",
                "select sum(b) as a, t.a from t group by t.a order by a limit 1",
                "select a as _offset, _partition from t order by (_partition, _offset) limit 1",
                "select a from t limit all offset 2",
                "select a from t offset 2",
                "select a from t limit (select 0)",
            )
        ),
        (
            "with w(x, k) as (select k, s from sums) select lag(x) over (order by k) as l from w",
            "calls lag()",
        ),
        (
            (
                "select a % 2 as b, t.b as c, row_number() over (order by b, c) as n from t "
                "group by 1, 2"
            ),
            "calls row_number()",
        ),
        (
            (
                "select b % 2 as e, sum(a) as s from t group by all "
                "qualify row_number() over (order by b) < 3"
            ),
            "calls row_number()",
        ),
        ("select row_number() over (order by lower(a)) as n from t group by lower(a)", "may be"),
        ("select row_number() over (order by a, b) as n from t group by rollup (a, b)", "may be"),
        ("delete from t", "Only SELECT statements"),
        ("select 1; select 2", "more than one statement"),
        ("selec 1", "syntax error"),
        ("", "no statement"),
    ],
)
def test_sql_without_one_right_result_is_refused_by_name(sql, reason):
    with pytest.raises(InvalidConfig, match="view 'v'") as caught:
        program(
            sql,
            sums="select k, sum(a) as s from t group by k",
            changes="select a as _partition, b as _offset from t",
            pairs="select k, j, count(*) as n from t group by k, j",
        )
    assert reason in caught.value.error.str()


@pytest.mark.parametrize(
    "sql",
    [
        "select * from t order by _partition, _offset limit 3",
        "select a, b from t order by b, a limit 3",
        "select a, b from t order by 2, 1 limit 3",
        "select a, b from t order by all limit 3",
        "select * from sums order by k limit 3",
        "select rank() over (order by b) as r, sum(a) over (order by b) as s from t",
        "select row_number() over (partition by a order by _partition, _offset) as n from t",
        "select lag(s) over (order by k) as n from sums",
        "select string_agg(a order by a) as l from t",
        "select age(x, y) as a from t",
        "select list(a) over (partition by b order by _partition, _offset) as l from t",
        "select a, b from t union all select a, b from u order by b, a limit 1",
        "select a from t union select b from u order by all limit 1",
        "select * from t asof join sums on t.a = sums.s and t.b >= sums.k",
        "select * from t asof left join sums on t.b >= sums.k",
        "select * from t asof join sums using (k)",
        *(
            f"select lag(a) over (order by _partition, _OFFSET) as l from {rows}"
            for rows in (
                "t join sums on t.a = sums.k",
                "t left join sums on sums.K = t.a and t.b > 1",
                "t join (select k, s from sums) r on r.k = t.a",
                "t join (select k % 9 as k, count(*) as n from sums group by 1) r on r.k = t.a",
                "t join sums using (k)",
                "t asof join sums on t.b >= sums.k",
                "(select * from t where a > 1)",
                "(select b as a, _partition, t._offset as _offset from t)",
                "(select t.* from t join sums using (k))",
            )
        ),
        *(f"select lag(a.x) over (order by {order}) as l from {rows}" for order, rows in TOTAL),
        f"select a.x, list(b.x order by {BOTH}) as l from t a, u b group by 1",
        f"select a.x from t a join u b on a.x = b.x order by {BOTH} limit 3",
        "select a from t order by (_partition, _offset) limit 1",
        "select a as _offset from t order by t._partition, t._offset limit 1",
        "select t.a as x, t.b from t order by t.a, b limit 1",
        *(f"select a from t {limit}" for limit in ("limit 0", "limit all", "limit null offset 0")),
        "select a, sum(b) as s from t group by all qualify row_number() over (order by a) < 3",
        "select a % 2 as e, sum(b) as s from t group by all qualify lag(e) over (order by e) < 3",
        "with w as (select * from t) select list(a order by _partition, _offset) as l from w",
        "select a, list(b order by t._partition, t._offset) as l from t group by a",
        "select v from t order by _partition, _offset limit 1",
        "select a, sum(b) as s from t group by a order by A limit 1",
        "select max(a) as m from t limit 1",
        "select list(a order by a) as l from t",
        "select b, to_json(list(distinct a order by a desc)) as l from t group by b",
        "select distinct on (a) a, b from t order by a, b",
        "select a, row_number() over (order by a) as n from t group by a",
        "select a % 2 as b, row_number() over (order by b) as n from t group by 1",
        "select a, lag(b) over (order by _partition, _offset) as l from x.t",
        "select distinct on (a) a, b from t order by a, _partition, _offset",
    ],
)
def test_an_order_without_equal_rows_is_taken(sql):
    assert program(sql, sums="select k, sum(a) as s from t group by k").view("v").sql == sql


@pytest.mark.parametrize(("order", "rows"), TOTAL)
def test_rows_differ_in_an_order_that_is_taken(order: str, rows: str):
    values = f"k, x, a, s in {[(k, x, x, k) for k in (1, 2, 3) for x in (1, 2, 2)]}"
    columns, records = values.split(" in ")
    with duckdb.connect() as connection:
        connection.execute(f"create table r as from (values {records[1:-1]}) as r({columns})")
        for topic in "tu":
            place = "rowid % 2 as _partition, rowid // 2 as _offset"
            connection.execute(f"create table {topic} as select {place}, r.* from r")
        connection.execute("insert into u select 7, 7, 9, 9, 9, 9; delete from u where x = 2")
        connection.execute("create table sums as select k, sum(a) as s from t group by k")
        counts = f"select count(*), count(distinct row({order})) from {rows}"
        (found,) = connection.execute(counts).fetchall()
    assert found[0] == found[1] > 0


def test_views_stand_behind_those_that_they_read():
    views = Views("g", "memory://query")
    views.view("c", "select * from B")
    views.view("b", "select * from a join t using (k)")
    views.view("a", "select * from t")
    assert [view.name for view in views.program.views] == ["a", "b", "c"]
    assert views.program.inputs == ("t",)
    assert views.program.view("c").reads == ("b",)


def test_views_that_read_each_other_are_refused():
    with pytest.raises(InvalidConfig, match="views read each other"):
        program("select * from w", w="select * from v")


@pytest.mark.parametrize("name", ["", "a.b", "ticks", "clock", "1a", "_a", "a b"])
def test_names_that_a_view_cannot_have_are_refused(name):
    views = Views("g", "memory://query")
    views.view(name, "select 1 as a")
    with pytest.raises(InvalidConfig, match="cannot be named"):
        _ = views.program


def test_two_views_of_one_name_are_refused():
    views = Views("g", "memory://query")
    views.view("v", "select 1 as a")
    with pytest.raises(InvalidConfig, match="two views named 'v'"):
        views.view("v", "select 1 as a")
    views.view("V", "select 1 as a")
    with pytest.raises(InvalidConfig, match="two views named 'V'"):
        _ = views.program


def test_the_digest_changes_with_the_sql_and_the_key():
    def digest(sql: str, key: str | None = None) -> str:
        views = Views("g", "memory://query")
        views.view("v", sql, key=key)
        return views.program.digest

    assert digest("select a from t") == digest("select a from t;")
    assert (
        len({digest("select a from t"), digest("select b from t"), digest("select a from t", "a")})
        == 3
    )


def test_sql_that_is_nested_too_deeply_is_refused():
    with pytest.raises(InvalidConfig, match="nested too deeply"):
        program(f"select {' + '.join(['n'] * 700)} as total from orders")
