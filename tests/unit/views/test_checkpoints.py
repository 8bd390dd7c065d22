"""Checkpoints: a new runner goes on from the state that an earlier one has saved."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaq import AdminClient, Producer, Topic, TopicPartition
from deltaq.errors import InvalidConfig
from deltaq.names import topic_folder, view_state_folder
from deltaq.store import MemoryStore, Store, forget_memory_store, open_store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.tools import duckdb_tables
from deltaq.views import Views, inputs, runs, state
from deltaq.views.checkpoints import CHECKPOINT_S, checkpoint_of
from deltaq.views.engine import StateLimits, engine
from deltaq.views.holding import release
from deltaq.views.modes import Mode
from deltaq.views.program import ticks_topic
from deltaq.views.runs import RunFolder
from tests.doubles.views import runner

ROOT = "memory://checkpoints"
ORDERS = pa.schema([("id", pa.int64()), ("item", pa.string()), ("amount", pa.int64())])
SQL = {
    "totals": "select item, count(*) as n, sum(amount) as total from orders group by item",
    "priced": (
        "select o.id, o.amount * p.price as due from orders o left join prices p on o.item = p.item"
    ),
    "ranked": "select item, total from totals order by total desc, item limit 2",
    "best": "select r.item, r.total * p.price as worth from ranked r join prices p using (item)",
    "unsold": "select item from prices p where not exists "
    "(select 1 from orders o where o.item = p.item)",
}
FOLDER = view_state_folder(topic_folder(ticks_topic("shop")))


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(state, "SEAL_ROWS", 5)
    monkeypatch.setattr(state, "PART_ROWS", 3)
    monkeypatch.setattr(runs, "BLOCK_ROWS", 3)
    yield
    forget_memory_store("checkpoints")


@pytest.fixture
def store() -> Store:
    return open_store(ROOT)


class Shop:
    """The topics of a shop, and what its views must have."""

    def __init__(self) -> None:
        self.orders: list[tuple[int, str, int]] = []
        self.prices: dict[str, int] = {}
        Topic("orders", ORDERS, bootstrap_servers=ROOT, partitions=2).create()
        Topic(
            "prices",
            pa.schema([("item", pa.string()), ("price", pa.int64())]),
            config={"cleanup.policy": "compact"},
            bootstrap_servers=ROOT,
        ).create()

    def order(self, *items: str) -> None:
        with Producer(bootstrap_servers=ROOT) as producer:
            for item in items:
                row = len(self.orders), item, 1 + len(self.orders) % 3
                self.orders.append(row)
                producer.produce("orders", dict(zip(ORDERS.names, row, strict=True)))

    def price(self, **prices: int | None) -> None:
        with Producer(bootstrap_servers=ROOT) as producer:
            for item, price in prices.items():
                value = None if price is None else {"item": item, "price": price}
                producer.produce("prices", value, item)
                self.prices.pop(item, None)
                if price is not None:
                    self.prices[item] = price

    def expected(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """The rows of all views."""
        totals = {
            item: [amount for _, of, amount in self.orders if of == item]
            for item in {item for _, item, _ in self.orders}
        }
        best = sorted(totals, key=lambda item: (-sum(totals[item]), item))[:2]
        due = [
            (number, None if item not in self.prices else amount * self.prices[item])
            for number, item, amount in self.orders
        ]
        return {
            "totals": Counter((item, len(of), sum(of)) for item, of in totals.items()),
            "priced": Counter(due),
            "ranked": Counter((item, sum(totals[item])) for item in best),
            "best": Counter(
                (item, sum(totals[item]) * self.prices[item])
                for item in best
                if item in self.prices
            ),
            "unsold": Counter((item,) for item in self.prices if item not in totals),
        }


def views(mode: Mode = "incremental", **options: Any) -> Views:
    found = Views("shop", **({"root": ROOT} | options))
    for name, sql in SQL.items():
        found.view(name, sql, mode=mode)
    return found


def read(found: Views) -> dict[str, Counter[tuple[Any, ...]]]:
    cut = found.read()
    return {
        name: Counter(tuple(row.values()) for row in cut[name].to_arrow().to_pylist())
        for name in SQL
    }


@pytest.fixture
def shop() -> Shop:
    """A shop whose views have a checkpoint at tick 1."""
    shop = Shop()
    shop.price(apple=2, pear=3, plum=5, fig=1, kiwi=4, lime=6)
    shop.order(*("apple", "pear") * 6)
    views().run(until="now")
    return shop


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[int, tuple[int, int]]]]:
    """What runners read of inputs: the topics, and by partition the offsets."""
    found = []
    read_rows = duckdb_tables.rows_of

    def rows_of(topic: Topic, wanted: dict[int, tuple[int, int]]) -> Any:
        columns, batches = read_rows(topic, wanted)

        def noted() -> Iterator[pa.RecordBatch]:
            found.append((topic.name, wanted))
            yield from batches

        return columns, noted()

    monkeypatch.setattr(inputs, "rows_of", rows_of)
    return found


def test_a_new_runner_reads_only_what_lies_behind_the_checkpoint(
    shop: Shop, ranges: list[tuple[str, dict[int, tuple[int, int]]]]
):
    for number in range(4):
        shop.order("plum", "apple")
        shop.price(pear=number, fig=None if number % 2 else 9)
        before = views().read().offsets
        ranges.clear()
        views().run(until="now")
        assert read(views()) == shop.expected()
        # `ranked` is in full, but reads the rows of a view by rules only.
        assert {topic for topic, _ in ranges} == {"orders", "prices"}
        for topic, wanted in ranges:
            assert all(start == before[topic][p] for p, (start, _) in wanted.items())
    assert views().check() == []


def test_what_was_published_after_the_checkpoint_is_made_up_for(
    shop: Shop, ranges: list[tuple[str, dict[int, tuple[int, int]]]]
):
    at_checkpoint = views().read().offsets["orders"]
    with runner(views()) as killed:
        for item in ("plum", "lime", "kiwi"):
            shop.order(item, item)
            shop.price(**{item: 7})
            killed.tick()
        killed._evaluator.save = lambda *_: None  # type: ignore[method-assign]
    ranges.clear()
    with runner(views()) as successor:
        assert successor.tick() is None
        shop.order("fig")
        assert successor.tick() is not None
    starts = [start for topic, one in ranges for start, _ in one.values() if topic == "orders"]
    assert min(starts) >= min(at_checkpoint.values())
    assert read(views()) == shop.expected()
    assert views().check() == []


def test_a_checkpoint_from_before_a_retraction_by_retention_is_not_used(shop: Shop):
    """It has sums of records that are gone: they cannot be read any more to be taken away."""
    with runner(views(), moves_with_retention=True) as first:
        shop.order("plum", "lime")
        first.tick()
    topic = Topic("orders", bootstrap_servers=ROOT)
    ends = topic.describe().next_offsets
    before = [TopicPartition("orders", number, max(0, end - 1)) for number, end in ends.items()]
    for deleted in AdminClient({"bootstrap.servers": ROOT}).delete_records(before).values():
        deleted.result()
    kept = set(topic.to_arrow()["id"].to_pylist())
    assert 0 < len(kept) < len(shop.orders)
    shop.orders = [row for row in shop.orders if row[0] in kept]
    with runner(views(), moves_with_retention=True) as successor:
        assert successor.tick() is not None
    assert read(views()) == shop.expected()


def test_a_checkpoint_is_not_used_if_inputs_may_lack_what_has_come_since(
    shop: Shop, store: Store, ranges: list[tuple[str, dict[int, tuple[int, int]]]]
):
    """Key compaction may have removed a tombstone that the state has not seen."""
    release(store, "prices", "shop")
    shop.price(apple=None)
    ranges.clear()
    views().run(until="now")
    starts = [start for topic, one in ranges for start, _ in one.values() if topic == "orders"]
    assert {*starts} == {0}
    assert read(views()) == shop.expected()


def stored(store: Store) -> set[str]:
    return {entry.key.removeprefix(FOLDER) for entry in store.list(FOLDER)}


def test_a_checkpoint_uploads_new_runs_only_and_removes_what_it_does_not_name(
    shop: Shop, store: Store
):
    before, first = stored(store), checkpoint_of(store.get(f"{FOLDER}checkpoint.json"))
    assert first.runs
    store.put(f"{FOLDER}of-a-killed-runner.arrow", b"")
    shop.order("plum")
    views().run(until="now")
    second = checkpoint_of(store.get(f"{FOLDER}checkpoint.json"))
    assert second.runs == first.runs
    named = {f"{name}.arrow" for name in second.objects if name} | {"checkpoint.json"}
    assert stored(store) == named != before


def test_a_checkpoint_has_the_rows_of_inputs_and_the_cost_of_a_full_evaluation(
    shop: Shop, store: Store
):
    shop.price(apple=None, fig=7)
    for _ in range(2):
        shop.order("plum", "fig")
        views().run(until="now")
        found = checkpoint_of(store.get(f"{FOLDER}checkpoint.json"))
        assert found.cost.rows["orders"] == len(shop.orders)
        # Its state has some rows together with those that take them away.
        assert len(shop.prices) <= found.cost.rows["prices"] <= 2 * len(shop.prices)
        assert {*found.cost.seconds} == {*SQL}
        assert all(seconds > 0 for seconds, _ in found.cost.seconds.values())


def test_a_runner_that_was_replaced_removes_nothing(shop: Shop, store: Store):
    shop.order("plum")
    with runner(views()) as replaced:
        replaced.tick()
        shop.order("plum")
        views().run(until="now")
        ours = stored(store)
        replaced._save()
    assert ours - {"checkpoint.json"} <= stored(store)
    shop.order("plum")
    views().run(until="now")
    assert read(views()) == shop.expected()


def test_checkpoints_are_written_each_minute_and_not_without_a_tick(
    shop: Shop, store: Store, written: list[str]
):
    clock = ManualClock()
    found = views(clock=clock)
    numbers = []
    with runner(found) as running:
        for seconds in (CHECKPOINT_S / 2, CHECKPOINT_S / 2, CHECKPOINT_S / 2, CHECKPOINT_S):
            clock.advance(seconds)
            shop.order("plum")
            running.tick()
            numbers.append(checkpoint_of(store.get(f"{FOLDER}checkpoint.json")).tick)
        clock.advance(CHECKPOINT_S)
        assert running.tick() is None
    assert numbers == [1, 3, 3, 5]
    assert written.count("checkpoint.json") == 2
    assert checkpoint_of(store.get(f"{FOLDER}checkpoint.json")).tick == 5


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects of checkpoints that are written."""
    put, keys = MemoryStore.put, []

    def noted(self: MemoryStore, key: str, data: bytes) -> None:
        if key.startswith(FOLDER):
            keys.append(key.removeprefix(FOLDER))
        put(self, key, data)

    monkeypatch.setattr(MemoryStore, "put", noted)
    return keys


def test_runs_of_a_checkpoint_are_not_written_again(shop: Shop, store: Store, written: list[str]):
    runs = {f"{name}.arrow" for name in checkpoint_of(store.get(f"{FOLDER}checkpoint.json")).runs}
    shop.order("plum")
    views().run(until="now")
    assert written[-1] == "checkpoint.json"
    assert runs
    assert not runs & {*written}


def test_nothing_is_written_without_a_tick_or_after_an_error(shop: Shop, written: list[str]):
    views().run(until="now")
    failing = runner(views()).__enter__()
    shop.order("plum")
    failing.tick()
    failing.__exit__(RuntimeError)
    assert not written


def test_a_checkpoint_is_of_an_earlier_tick_of_the_same_program(shop: Shop):
    shop.order("plum")
    views().run(until="now")
    with runner(views()) as running:
        last, found = running.last, running._evaluator
        assert last is not None
        assert found.last(last) is not None
        assert found.last(replace(last, program="another")) is None
        assert found.last(replace(last, number=last.number - 1)) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda store, key: store.delete(key),
        lambda store, key: store.put(key, store.get(key)[:100]),
        lambda store, key: store.put(key, b"no rows"),
    ],
    ids=["gone", "cut", "other bytes"],
)
@pytest.mark.parametrize("what", ["run", "recent", "list"])
def test_a_checkpoint_that_is_damaged_is_not_used(shop: Shop, store: Store, damage: Any, what: str):
    found = checkpoint_of(store.get(f"{FOLDER}checkpoint.json"))
    some = {"run": min(found.runs), "recent": max(found.objects - found.runs), "list": ""}[what]
    damage(store, f"{FOLDER}{some}.arrow" if some else f"{FOLDER}checkpoint.json")
    shop.order("plum")
    views().run(until="now")
    assert read(views()) == shop.expected()
    assert checkpoint_of(store.get(f"{FOLDER}checkpoint.json")).tick == 2


def test_a_checkpoint_of_another_program_or_of_other_types_is_not_used(
    shop: Shop, ranges: list[tuple[str, dict[int, tuple[int, int]]]]
):
    changed = Views("shop", ROOT)
    for name, sql in SQL.items():
        changed.view(name, f"{sql} --", mode="incremental")
    shop.order("plum")
    changed.run(until="now")
    assert read(changed) == shop.expected()
    assert (0, 12) in {
        (sum(s for s, _ in one.values()), sum(e for _, e in one.values()) - 1)
        for topic, one in ranges
        if topic == "orders"
    }
    Topic("orders", ORDERS.append(pa.field("note", pa.string())), bootstrap_servers=ROOT).evolve()
    shop.order("plum")
    changed.run(until="now")
    assert read(changed) == shop.expected()


def test_views_that_are_in_full_now_are_not_kept_by_rules(shop: Shop):
    shop.order("plum")
    views("full").run(until="now")
    assert read(views()) == shop.expected()
    shop.order("pear")
    views().run(until="now")
    assert read(views()) == shop.expected()


def test_a_store_that_takes_no_checkpoint_stops_no_tick(
    shop: Shop, caplog: pytest.LogCaptureFixture
):
    faulty = FaultyStore(open_store(ROOT))
    faulty.add(Rule("put", f"{FOLDER}*", Fault.refused(), times=None))
    shop.order("plum")
    with caplog.at_level(logging.WARNING, "deltaq.views"):
        views(root=None, store=faulty).run(until="now")
    assert "no checkpoint of 'shop'" in caplog.text
    assert read(views()) == shop.expected()


# --- limits ---


def test_memory_and_the_folder_of_state_are_those_of_the_runner(shop: Shop, tmp_path: Path):
    limits = StateLimits("64MB", tmp_path)
    with engine(views().program, limits=limits) as found:
        settings = "select current_setting('memory_limit'), current_setting('temp_directory')"
        assert [*found.query(settings).to_pylist()[0].values()] == ["61.0 MiB", str(tmp_path)]
    folders = set[Path]()
    made = RunFolder.writer

    def writer(self: RunFolder, *args: Any) -> Any:
        folders.update(path for path in tmp_path.iterdir())
        return made(self, *args)

    shop.order(*["plum"] * 9)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunFolder, "writer", writer)
        views().run(until="now", memory="64MB", state_dir=tmp_path)
    assert [folder.name.startswith("deltaq-views-") for folder in folders] == [True]
    assert not [*tmp_path.iterdir()]
    assert read(views()) == shop.expected()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"memory": "plenty"}, "memory='plenty': DuckDB"),
        ({"state_dir": "/dev/null"}, "state_dir is no folder: /dev/null"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(shop: Shop, options: Any, reason: str):
    shop.order("plum")
    with pytest.raises(InvalidConfig, match=reason):
        views().run(until="now", **options)
