"""`deltaq views`, verb by verb, and `deltaq sql --at`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.views import Views
from deltaq.views.engine import ViewEngine
from tests.unit.cli.conftest import ROOT, Shell

SALES = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
TOTALS = "select shop, sum(amount) as total from sales group by shop"


def sell(*rows: tuple[str, int]) -> None:
    with Producer(bootstrap_servers=ROOT) as producer:
        for row in rows:
            producer.produce("sales", dict(zip(SALES.names, row, strict=True)))


@pytest.fixture
def folder(deltaq: Shell, tmp_path: Path) -> Path:
    Topic("sales", SALES, bootstrap_servers=ROOT).create()
    made = tmp_path / "shops"
    made.mkdir()
    (made / "totals.sql").write_text(TOTALS)
    (made / "all_of_them.sql").write_text("select sum(total) as total from totals")
    return made


def test_a_folder_is_run_and_read(deltaq: Shell, folder: Path):
    sell(("north", 5), ("south", 3))
    assert deltaq(f"views run {folder} --once").output == "group shops is at tick 1\n"
    sell(("north", 1))
    assert deltaq(f"views run {folder} --once").output == "group shops is at tick 2\n"
    totals = deltaq("views read shops totals -o json").json
    assert sorted((row["shop"], row["total"]) for row in totals) == [("north", "6"), ("south", "3")]
    (before,) = deltaq("views read shops all_of_them --at 1 -o json").json
    assert before == {"total": "8"}
    assert deltaq("views check shops").output == "2 views equal their SQL at tick 2\n"
    assert deltaq("views explain shops -o json").json == [
        {"view": "totals", "rules": ["aggregate (shop)"], "in_full": None},
        {"view": "all_of_them", "rules": ["aggregate (all rows)"], "in_full": None},
    ]
    query = "select count(*) as n, sum(amount) as s from sales"
    assert deltaq(f"sql --at shops@1 '{query}' -o json").json == [{"n": 2, "s": "8"}]
    assert deltaq(f"sql --at shops '{query}' -o json").json == [{"n": 3, "s": "9"}]


def test_groups_are_listed_and_described(deltaq: Shell, folder: Path):
    assert deltaq("views list -o json").json == []
    deltaq(f"views run {folder} --once --group all")
    sell(("north", 5), ("south", 3))
    (found,) = deltaq("views list -o json").json
    assert found.pop("age_ms") >= 0
    assert found == {
        "group": "all",
        "tick": 1,
        "lag": 2,
        "views": ["totals", "all_of_them"],
        "inputs": ["sales"],
    }
    described: dict[str, Any] = deltaq("views describe all -o json").json
    assert described["views"][0] == {
        "view": "totals",
        "topic": "all.totals",
        "key": ["shop"],
        "reads": ["sales"],
        "mode": "in full",
        "sql": TOTALS,
    }
    assert described["inputs"] == [{"input": "sales", "partition": 0, "offset": 0, "lag": 2}]
    shown = deltaq("views describe all").output
    assert "all_of_them  all.all_of_them  one row  totals  in full" in shown
    assert deltaq("views graph all").output.splitlines() == [
        "sales",
        "└─ totals",
        "   └─ all_of_them",
    ]
    assert deltaq("views graph all --mermaid").output.splitlines() == [
        "graph LR",
        '  t0[("sales")]',
        '  v1["totals"]',
        "  t0 --> v1",
        '  v2["all_of_them"]',
        "  v1 --> v2",
    ]


def test_the_graph_has_what_reads_a_view_once(deltaq: Shell):
    Topic("sales", SALES, bootstrap_servers=ROOT).create()
    Topic("costs", SALES, bootstrap_servers=ROOT).create()
    views = Views("shops", ROOT)
    rows = "select shop, amount from"
    views.view("moved", f"{rows} sales union all {rows} costs")
    views.view("sold", "select count(*) as n from sales")
    views.view("all_of_them", "select count(*) as n from moved")
    views.view("late", "select count(*) as n from costs where now() > '2026-01-01'")
    views.run(until="now")
    assert deltaq("views graph shops").output.splitlines() == [
        "costs",
        "├─ moved",
        "│  └─ all_of_them",
        "└─ late",
        "sales",
        "├─ moved ...",
        "└─ sold",
        "clock",
        "└─ late",
    ]


def test_a_view_that_differs_is_an_error(
    deltaq: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    sell(("north", 5))
    changes = ViewEngine.changes
    with monkeypatch.context() as patch:
        patch.setattr(
            ViewEngine,
            "changes",
            lambda self, view: (
                changes(self, view) if view.key == () else _nothing(changes(self, view))
            ),
        )
        Views.from_folder(folder, ROOT).run(until="now")
    done = deltaq("views check shops")
    assert "1 view of shops differ from their SQL at tick 1" in done.errors
    assert "totals        1      0" in done.output


def _nothing(found: Any) -> Any:
    return type(found)(found.come.slice(0, 0), found.gone)


def test_a_group_is_deleted_with_its_views(deltaq: Shell, folder: Path):
    deltaq(f"views run {folder} --once")
    assert deltaq("views delete shops --yes").output == "deleted shops with 2 views\n"
    assert deltaq("views list -o json").json == []
    assert deltaq("views delete shops --yes").errors == (
        "deltaq: there is no group of views 'shops'\n"
    )
    assert deltaq(f"views run {folder} --once").output == "group shops is at tick 1\n"


def test_what_is_not_there_is_named(deltaq: Shell, folder: Path):
    assert "has no tick yet" in deltaq("views read shops totals").errors
    deltaq(f"views run {folder} --once")
    assert "has no view 'nothing'" in deltaq("views read shops nothing").errors
    assert "tick 9 of 'shops' is not kept" in deltaq("sql --at shops@9 'select 1'").errors
    assert "'shops@x' is no group" in deltaq("sql --at shops@x 'select 1'").errors
