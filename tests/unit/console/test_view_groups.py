"""Pages of groups of views: how far they are, their graph and rows, and the proof."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from starlette.testclient import TestClient

from deltaq import Producer, Topic
from deltaq.console import view_groups
from deltaq.console.app import Console
from deltaq.console.graphs import LABEL_CHARS, GraphBox, view_graph
from deltaq.console.pages import SLOW, view_check, view_group
from deltaq.console.view_groups import views_of
from deltaq.store import open_store
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.views import Views, reading
from deltaq.views.engine import ViewEngine
from deltaq.views.ticks import InputCut, Tick
from tests.doubles.hostile_names import MARKUP
from tests.unit.console.conftest import browser, made
from tests.unit.console.test_pages import texts
from tests.unit.console.test_security import Elements

SALES = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
TOTALS = "select shop, sum(amount) as total from sales group by shop"


def sell(root: str, *rows: tuple[str | None, int]) -> None:
    with Producer(bootstrap_servers=root, maintenance_enable=False) as producer:
        for row in rows:
            producer.produce("sales", dict(zip(SALES.names, row, strict=True)))
            producer.flush()


def shops(root: str) -> Views:
    views = Views("shops", root)
    views.view("totals", TOTALS)
    views.view("all_of_them", "select sum(total) as total from totals")
    views.view("large", "select shop, amount from sales where amount > 4")
    return views


@pytest.fixture
def group(memory_root: str) -> Views:
    """A group at its first tick, one record behind."""
    Topic("sales", SALES, partitions=2, bootstrap_servers=memory_root).create()
    sell(memory_root, ("north", 5), ("south", 3), (None, 4))
    views = shops(memory_root)
    views.run(until="now")
    sell(memory_root, ("north", 1))
    return views


def test_groups_are_listed_with_their_cut_and_lag(asked: TestClient, memory_root: str) -> None:
    assert "There are no groups of views." in texts(asked.get("/roots/0/views").text)
    Topic("sales", SALES, partitions=2, bootstrap_servers=memory_root).create()
    shops(memory_root).run(until="now")
    Topic(
        "begun.ticks", config={"cleanup.policy": "compact"}, bootstrap_servers=memory_root
    ).create()
    sell(memory_root, ("north", 5))
    page = asked.get("/roots/0/views")
    assert page.status_code == 200
    text = texts(page.text)
    assert "begun No tick yet. shops 1 20" in text
    assert re.search(
        r"Z \d+ seconds? sales 0: 0, 1: 0 1 totals, (all_of_them, large|large, all_of_them)", text
    )
    assert 'href="/roots/0/views" aria-current="page"' in page.text
    assert 'href="/roots/0/views/shops"' in page.text
    assert 'href="/roots/0/views/begun"' not in page.text
    assert asked.get("/roots/0/views/begun").status_code == 404


def test_long_cuts_and_gone_inputs_are_shown(asked: TestClient, memory_root: str) -> None:
    sales = Topic("sales", SALES, partitions=11, bootstrap_servers=memory_root).create()
    tick = shops(memory_root).run(until="now")
    assert tick is not None
    many = replace(tick, inputs={f"i{number}": InputCut("", (0,), (7,)) for number in range(22)})
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("many.ticks", many.value(), many.key)
    assert re.search(r"i19 0: 7 and 2 more (- ){20}totals", texts(asked.get("/roots/0/views").text))
    assert "6: 0, 7: 0 and 3 more 0 totals" in texts(asked.get("/roots/0/views").text)
    sales.delete()
    assert "and 3 more - totals" in texts(asked.get("/roots/0/views").text)
    assert "Lag - records behind its cut" in texts(asked.get("/roots/0/views/shops").text)


def test_a_group_that_cannot_be_read_does_not_hide_the_others(
    asked: TestClient, memory_root: str, group: Views
) -> None:
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("bad.ticks", b"{}")
    text = texts(asked.get("/roots/0/views").text)
    assert "bad cannot be read: " in text
    assert "shops 1 20" in text
    assert asked.get("/roots/0/views/bad").status_code == 409


def test_a_store_that_does_not_answer_is_no_damaged_group(memory_root: str, group: Views) -> None:
    console = made(memory_root)
    faults = FaultyStore(open_store(memory_root))
    console.roots = [replace(console.roots[0], store=faults)]
    faults.add(Rule("get", "*", Fault.error_before(), times=None))
    assert browser(console).get("/roots/0/views").status_code == 503


def test_a_group_is_shown_with_its_graph_and_its_sql(asked: TestClient, group: Views) -> None:
    page = asked.get("/roots/0/views/shops")
    assert page.status_code == 200
    text = texts(page.text)
    assert re.search(r"Tick 1 20\S+Z Age", text)
    assert "Lag 1 records behind its cut" in text
    assert re.search(
        r"Inputs Topic Lag Up to offset, by partition sales 1 0: \d, 1: \d Views", text
    )
    assert f"totals shops.totals shop sales in full {TOTALS}" in text
    assert "all_of_them shops.all_of_them one row totals in full select" in text
    assert "large shops.large none: a changelog sales in full select" in text
    links = re.findall(r'<a href="([^"]*)"(?: class="view")?><title>', page.text)
    assert sorted(links) == [
        "/roots/0/topics/sales",
        "/roots/0/views/shops?view=all_of_them",
        "/roots/0/views/shops?view=large",
        "/roots/0/views/shops?view=totals",
    ]
    assert page.text.count("<path ") == 3
    assert "equal their SQL" not in text
    for name in ("none", "%3Cscript%3E", "a%20b", "n" * 300):
        assert asked.get(f"/roots/0/views/{name}").status_code in (404, 400), name


def test_a_page_says_how_the_last_tick_has_evaluated_each_view(group: Views) -> None:
    tick = group.last_tick()
    assert tick is not None
    shown = views_of(group.program, replace(tick, ruled=("totals",)))
    assert {view.name: view.mode for view in shown} == {
        "totals": "by rules",
        "all_of_them": "in full",
        "large": "in full",
    }


def test_a_topic_that_the_sql_names_in_other_letters_is_linked_by_its_name(
    asked: TestClient, group: Views, memory_root: str
) -> None:
    views = Views("loud", memory_root)
    views.view("TOTALS", TOTALS.upper())
    views.run(until="now")
    page = asked.get("/roots/0/views/loud").text
    assert re.findall(r'<a href="([^"]*)"(?: class="view")?><title>', page) == [
        "/roots/0/topics/sales",
        "/roots/0/views/loud?view=TOTALS",
    ]


def test_a_view_without_inputs_is_shown(asked: TestClient, memory_root: str) -> None:
    views = Views("constant", memory_root)
    views.view("one", "select 1 as n")
    views.run(until="now")
    text = texts(asked.get("/roots/0/views/constant?view=one").text)
    assert "Lag 0 records" in text
    assert "one 1 of 1 n 1 " in text
    assert "Inputs Topic Lag Up to offset, by partition None." in text


def test_the_rows_of_the_last_tick_of_a_view_are_shown(asked: TestClient, group: Views) -> None:
    text = texts(asked.get("/roots/0/views/shops?view=all_of_them").text)
    assert "all_of_them 1 of 1 total 12 " in text
    page = asked.get("/roots/0/views/shops?view=totals").text
    assert "totals 3 of 3 shop total " in texts(page)
    for row in ("<pre>north</pre></td><td><pre>5</pre>", "null</span></td><td><pre>4</pre>"):
        assert row in page
    group.run(until="now")
    assert "<pre>6</pre>" in asked.get("/roots/0/views/shops?view=totals").text


def test_many_rows_and_long_values_are_cut(
    asked: TestClient, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_groups, "ROWS_MAX", 2)
    Topic("sales", SALES, bootstrap_servers=memory_root).create()
    sell(memory_root, *(("s" * 900, number + 5) for number in range(4)))
    shops(memory_root).run(until="now")
    page = asked.get("/roots/0/views/shops?view=large").text
    assert "large 2 of 4 shop amount " in texts(page)
    assert page.count(f"<pre>{'s' * view_groups.CELL_CHARS}</pre>") == 2
    assert page.count("900 B in all") == 2


def test_a_view_that_does_not_exist_is_explained(asked: TestClient, group: Views) -> None:
    page = asked.get("/roots/0/views/shops?view=none")
    assert page.status_code == 200
    assert "has no view &#39;none&#39;, only totals" in page.text
    assert "<svg" in page.text


def test_the_check_proves_the_views_at_the_last_tick(
    asked: TestClient, group: Views, memory_root: str
) -> None:
    page = asked.get("/roots/0/views/shops/check").text
    assert '<p class="notice equal" role="status">Views equal their SQL at tick 1.</p>' in page
    group.run(until="now")
    assert "Views equal their SQL at tick 2." in asked.get("/roots/0/views/shops/check").text
    assert 'href="/roots/0/views/shops/check"' in asked.get("/roots/0/views/shops").text


def test_views_that_differ_are_named_with_their_rows(
    asked: TestClient, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Topic("sales", SALES, bootstrap_servers=memory_root).create()
    sell(memory_root, ("north", 5), ("south", 3))
    evaluate = ViewEngine.evaluate

    def wrong(engine: ViewEngine, *, kind: Literal["table", "view"] = "table") -> None:
        engine._connection.execute("delete from sales where shop = 'north'")
        evaluate(engine, kind=kind)

    monkeypatch.setattr(ViewEngine, "evaluate", wrong)
    shops(memory_root).run(until="now")
    monkeypatch.undo()
    page = asked.get("/roots/0/views/shops/check").text
    text = texts(page)
    assert re.search(r"Views differ from their SQL at tick 1: totals, \w+, \w+ ", text)
    assert "totals Rows that it lacks 1 of 1 shop total north 5 " in text
    assert "Rows that it has too much 0 of 0 shop total No rows." in text
    assert "Rows that it has too much 1 of 1 total 3 " in text
    assert "equal their SQL" not in text


@pytest.mark.parametrize(
    ("path", "command"), [("?view=totals", "deltaq views read"), ("/check", "deltaq views check")]
)
def test_what_takes_too_much_memory_is_left_to_the_command(
    asked: TestClient, group: Views, monkeypatch: pytest.MonkeyPatch, path: str, command: str
) -> None:
    monkeypatch.setattr(view_groups, "STORED_BYTES_MAX", 100)
    text = texts(asked.get(f"/roots/0/views/shops{path}").text)
    assert re.search(rf"are stored, and a page reads 100 B at most: use {command}", text)
    assert "Tick 1 20" in text


def test_a_delta_table_is_shown_and_counts_for_the_memory_of_a_check(
    asked: TestClient, memory_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(tmp_path, pa.table({"id": [*range(10_000)]}))
    views = Views("shops", memory_root)
    views.input("people", delta=str(tmp_path))
    views.view("total", "select sum(id) as total from people")
    views.run(until="now")
    write_deltalake(tmp_path, pa.table({"id": [1]}), mode="append")
    assert "Inputs Topic Lag Up to offset, by partition people 1 0: 1 " in texts(
        asked.get("/roots/0/views/shops").text
    )
    assert "equal their SQL at tick 1" in texts(asked.get("/roots/0/views/shops/check").text)
    stored = max(file.stat().st_size for file in tmp_path.glob("*.parquet"))
    monkeypatch.setattr(view_groups, "STORED_BYTES_MAX", stored - 1)
    page = texts(asked.get("/roots/0/views/shops/check").text)
    assert "at most: use deltaq views check" in page


def test_a_check_takes_the_memory_of_inputs_and_views(
    asked: TestClient, console: Console, group: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {topic.name: topic.bytes for topic in console.roots[0].poller.view().topics.values()}
    views = sum(size for name, size in sizes.items() if name not in ("sales", "shops.ticks"))
    for limit, is_refused in ((max(sizes["sales"], views), True), (sizes["sales"] + views, False)):
        monkeypatch.setattr(view_groups, "STORED_BYTES_MAX", limit)
        assert ("at most" in asked.get("/roots/0/views/shops/check").text) == is_refused


def test_without_duckdb_the_page_says_what_to_install(
    asked: TestClient, group: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    reading._compiled.cache_clear()
    assert "shops 1 20" in texts(asked.get("/roots/0/views").text)
    for path in ("", "?view=totals", "/check"):
        page = asked.get(f"/roots/0/views/shops{path}")
        assert page.status_code == 200
        text = texts(page.text)
        assert "SQL needs the extra [views]: pip install &#39;deltaq[views]&#39;" in text
        assert "Tick 1 20" in text
        assert "sales 1 0: " in text
        assert "<svg" not in page.text
        assert "equal their SQL" not in text


def test_pages_of_views_take_their_turn_and_change_nothing(
    asked: TestClient, group: Views, memory_root: str
) -> None:
    assert {view_group, view_check, *SLOW} == set(SLOW)
    store = open_store(memory_root)
    before = {entry.key: entry.size for entry in store.list("")}
    for path in ("views", "views/shops?view=totals", "views/shops/check"):
        assert asked.get(f"/roots/0/{path}").status_code == 200
        assert asked.post(f"/roots/0/{path}").status_code == 405
    assert {entry.key: entry.size for entry in store.list("")} == before


def hostile_group(root: str, payloads: Mapping[str, str]) -> None:
    """A group whose SQL, rows and columns are hostile, and two whose ticks other programs wrote."""
    Topic("sales", SALES, bootstrap_servers=root).create()
    views = Views("shops", root)
    literals = [
        "'{}' as \"{}\"".format(text.replace("'", "''"), name.replace('"', '""'))
        for name, text in payloads.items()
    ]
    views.view("v0", f"select {', '.join(literals)} from sales")
    sell(root, ("x", 1))
    tick = views.run(until="now")
    assert tick is not None
    cut, written = tick.inputs["sales"], tick.views["v0"]
    for group, inputs, names in (
        ("forged", ["sales"], payloads.values()),
        ("damaged", payloads.values(), ["v0"]),
    ):
        forged = Tick(1, 0, "", 1, dict.fromkeys(inputs, cut), dict.fromkeys(names, written))
        with Producer(bootstrap_servers=root) as producer:
            producer.produce(f"{group}.ticks", forged.value(), forged.key)


def test_no_view_becomes_markup(memory_root: str) -> None:
    texts_of = [payload for payload in MARKUP if payload.isprintable() and len(payload) < 150]
    names = [re.sub(r"[ ,;{}()=]", "", payload)[:100].lstrip("_") for payload in texts_of]
    harmless_root = f"{memory_root}-harmless"
    hostile_group(memory_root, dict(zip(names, texts_of, strict=True)))
    # No topic can have the name "x 1" either.
    hostile_group(harmless_root, {f"c{n}": f"x {n}" for n in range(len(names))})
    hostile, harmless = browser(made(memory_root)), browser(made(harmless_root))
    for path in ("", "/shops", "/shops/check", "/shops?view=v0"):
        page = hostile.get(f"/roots/0/views{path}").text
        expected = harmless.get(f"/roots/0/views{path}").text
        assert Counter(Elements(page).found) == Counter(Elements(expected).found), path
    shown = Elements(hostile.get("/roots/0/views/shops?view=v0").text).text
    for name, text in zip(names, texts_of, strict=True):
        assert name in shown
        assert shown.count(text) >= 1 + ("'" not in text)
    listed = Elements(hostile.get("/roots/0/views").text).text
    assert re.search(r"forged\s*1\s*1970", listed)
    assert re.search(r"damaged\s*cannot be read: ", listed)
    assert MARKUP[0] in listed
    for group in ("forged", "damaged"):
        answer = hostile.get(f"/roots/0/views/{group}")
        assert 400 <= answer.status_code < 500
        assert MARKUP[0] not in answer.text


# --- the graph ---


def boxes(reads: dict[str, list[str]]) -> dict[str, GraphBox]:
    return {box.name: box for box in view_graph(reads).boxes}


def test_what_is_read_stands_to_the_left_and_boxes_do_not_overlap() -> None:
    reads = {
        "credits": ["transactions"],
        "debits": ["transactions"],
        "balance": ["credits", "debits"],
        "total": ["balance", "accounts"],
    }
    graph = view_graph(reads)
    found = boxes(reads)
    assert {name for name, box in found.items() if box.is_view} == reads.keys()
    assert found.keys() - reads.keys() == {"transactions", "accounts"}
    for view, of in reads.items():
        for name in of:
            assert found[name].x + found[name].width < found[view].x
    assert found["credits"].x == found["debits"].x
    assert found["transactions"].x == found["accounts"].x
    for one in graph.boxes:
        assert 0 <= one.x <= one.x + one.width <= graph.width
        assert 0 <= one.y <= one.y + one.height <= graph.height
        for other in graph.boxes:
            if one.x == other.x and one.y < other.y:
                assert one.y + one.height < other.y
    assert len(graph.arrows) == 6
    begin, end = found["balance"], found["total"]
    y = (begin.y + begin.height // 2, end.y + end.height // 2)
    assert graph.arrows[-2].curve.startswith(f"M{begin.x + begin.width},{y[0]} C")
    assert graph.arrows[-2].tip.split()[1] == f"{end.x},{y[1]}"


def test_a_column_is_in_the_order_of_what_it_reads() -> None:
    found = boxes({"a": ["x"], "b": ["y"], "on_b": ["b"], "on_a": ["a"]})
    assert (found["a"].y < found["b"].y) == (found["on_a"].y < found["on_b"].y)


def test_an_arrow_passes_between_the_boxes_of_the_columns_that_it_skips() -> None:
    graph = view_graph({"a": ["x"], "b": ["a"], "c": ["x", "b"]})
    found = {box.name: box for box in graph.boxes}
    ((passes_at, right),) = (
        (int(point), int(end))
        for arrow in graph.arrows
        for point, end in re.findall(rf" {found['b'].x},(\d+) H(\d+) ", arrow.curve)
    )
    assert right == found["b"].x + found["b"].width
    assert not found["b"].y <= passes_at <= found["b"].y + found["b"].height
    assert not found["a"].y <= passes_at <= found["a"].y + found["a"].height
    assert graph.height >= passes_at
    assert [arrow.curve.count("H") for arrow in graph.arrows] == [0, 0, 2, 0]


def test_a_view_that_reads_nothing_and_a_long_name_have_boxes() -> None:
    found = boxes({"one": [], "n" * 200: ["one"]})
    assert found["one"].label == "one"
    assert len(found["n" * 200].label) == LABEL_CHARS
    assert found["n" * 200].width < 400
