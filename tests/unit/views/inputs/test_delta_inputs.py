"""Delta tables of other programs as inputs of views: each tick equals DuckDB's result over the rows
that a plain Python list keeps, whatever the other program does.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, Unavailable
from deltaq.store import forget_memory_store, open_store
from deltaq.topics.holds import stored_holds
from deltaq.views import Views, delta_tables
from deltaq.views.delta_tables import DeltaSource, DeltaVersion
from deltaq.views.listing import lags
from deltaq.views.modes import MODES, Mode
from deltaq.views.runner import GroupRunner
from deltaq.views.ticks import tick_of
from tests.depth import depth
from tests.doubles.views import runner
from tests.integration.engines.test_filtered_reads import _delta_of_duckdb
from tests.unit.views.inputs.test_inputs import rows

Person: TypeAlias = "tuple[int, str | None]"

ROOT = "memory://inputs"
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string())])
CITIES = "select city, count(*) as n, sum(id) as s from people group by city"


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("inputs")


def write(path: Path, *people: Person, **options: Any) -> None:
    found = pa.Table.from_pylist([{"id": id_, "city": city} for id_, city in people], SCHEMA)
    write_deltalake(path, found, **({"mode": "append"} | options))


def views_of(path: Path | str, mode: Mode = "auto") -> Views:
    views = Views("g", ROOT)
    views.input("people", delta=str(path))
    views.view("cities", CITIES, mode=mode)
    views.view("plain", "select id, city from people where id > 0", mode=mode)
    return views


def expected(people: Sequence[Person]) -> list[tuple[Any, ...]]:
    counts = Counter(city for _, city in people)
    found = [
        (city, count, sum(id_ for id_, own in people if own == city))
        for city, count in counts.items()
    ]
    return sorted(found, key=repr)


def check_rows(
    views: Views, people: Sequence[tuple[int, str | None]], at: int | None = None
) -> None:
    assert rows(views, "cities", at) == expected(people)
    assert rows(views, "plain", at) == sorted((row for row in people if row[0] > 0), key=repr)


STEPS: dict[str, Callable[[Path, list[Any]], list[Any]]] = {}


def step(change: Callable[[Path, list[Any]], list[Any]]) -> Callable[[Path, list[Any]], list[Any]]:
    """What another program does with the table, and the rows that it has then."""
    STEPS[change.__name__] = change
    return change


@step
def append(path: Path, people: list[Any]) -> list[Any]:
    more = [(len(people) + 1, "u"), (1, "v"), (1, "v"), (7, None)]
    write(path, *more, schema_mode="merge")
    return [*people, *more]


@step
def append_twice(path: Path, people: list[Any]) -> list[Any]:
    return append(path, append(path, people))


@step
def delete_ones(path: Path, people: list[Any]) -> list[Any]:
    DeltaTable(path).delete("id = 1")
    return [row for row in people if row[0] != 1]


@step
def update_city(path: Path, people: list[Any]) -> list[Any]:
    DeltaTable(path).update(updates={"city": "'w'"}, predicate="city = 'v'")
    return [(id_, "w" if city == "v" else city) for id_, city in people]


@step
def overwrite(path: Path, people: list[Any]) -> list[Any]:
    new = [*people[:2], (9, "x")]
    write(path, *new, mode="overwrite")
    return new


@step
def compact(path: Path, people: list[Any]) -> list[Any]:
    DeltaTable(path).optimize.compact()
    return people


@step
def vacuum(path: Path, people: list[Any]) -> list[Any]:
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    return people


@step
def checkpoint(path: Path, people: list[Any]) -> list[Any]:
    DeltaTable(path).create_checkpoint()
    return people


@step
def merge(path: Path, people: list[Any]) -> list[Any]:
    new = pa.table({"id": [2, 30], "city": ["m", "m"]}, SCHEMA)
    if sum(id_ == 2 for id_, _ in people) > 1:
        return people
    merger = DeltaTable(path).merge(new, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
    had = {id_ for id_, _ in people}
    kept: list[Any] = [(id_, "m" if id_ in (2, 30) else city) for id_, city in people]
    return kept + [(id_, "m") for id_ in (2, 30) if id_ not in had]


@settings(
    max_examples=depth(4, 200),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    st.sampled_from(MODES),
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.booleans()), min_size=1, max_size=6),
    st.booleans(),
)
def test_each_tick_has_the_rows_of_one_version(tmp_path, mode, history, is_partitioned):
    shutil.rmtree(tmp_path / "people", ignore_errors=True)
    forget_memory_store("inputs")
    path = tmp_path / "people"
    people: list[Any] = [(1, "u"), (2, "v/ =%"), (3, None)]
    write(path, *people, partition_by=["city"] if is_partitioned else None)
    views, seen = views_of(path, mode), {}
    running = runner(views).__enter__()
    try:
        for name, is_new in [("begin", False), *history]:
            people = STEPS[name](path, people) if name in STEPS else people
            if is_new:
                running.__exit__()
                running = runner(views).__enter__()
            running.tick()
            assert running.last is not None
            version = DeltaTable(path).version()
            assert running.last.inputs["people"].ends == (version + 1,)
            seen[running.last.number] = people
            assert views.check() == []
    finally:
        running.__exit__()
    for number, then in seen.items():
        check_rows(views, then, number)


def test_a_cut_is_one_version(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"), (2, "v"))
    views = views_of(path)
    Topic("people", SCHEMA, bootstrap_servers=ROOT).create()  # the declaration goes first
    first = views.run(until="now")
    assert first is not None
    cut = first.inputs["people"]
    assert cut.delta == str(path)
    assert cut.topic_id == str(DeltaTable(path).metadata().id)
    assert (cut.starts, cut.ends) == ((0,), (1,))
    assert tick_of(first.value(), "t") == first
    assert views.run(until="now") == first
    DeltaTable(path).delete("id = 1")
    views.run(until="now")
    write(path, (5, "u"))
    assert [lag.records for lag in lags(views._store, views._clock, first)] == [2]
    # Another process reads the versions of both ticks.
    other = Views("g", ROOT)
    assert other.check() == []
    for tick, ids in ((1, [1, 2]), (2, [2])):
        found = other.read(tick).sql("select id from people order by id").to_pydict()
        assert found == {"id": ids}
        assert other.read(tick).offsets == {"people": {0: tick}}
    other.delete()
    assert DeltaTable(path).version() == 2
    assert not stored_holds(open_store(ROOT), "people")


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_appended_are_read_alone(
    tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "people"
    write(path, (1, "u"))
    views = views_of(path, mode)
    with runner(views) as running, monkeypatch.context() as patch:
        running.tick()
        patch.setattr(DeltaVersion, "rows", Mock(side_effect=AssertionError))
        write(path, (2, "u"), (2, "u"))
        write(path, (3, None))
        running.tick()
    check_rows(views, [(1, "u"), (2, "u"), (2, "u"), (3, None)])


TYPED = pa.schema(
    [
        ("day", pa.date32()),
        ("code", pa.int32()),
        ("note", pa.string()),
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("price", pa.decimal128(12, 3)),
        ("ratio", pa.float32()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def typed_rows(number: int) -> pa.Table:
    """A row with values, and one with nulls; `number` is in both."""
    whole = {
        "day": date(2026, 1, number + 1), "code": number, "note": "a/ =%é", "flag": True,
        "small": -number, "price": Decimal("1.125"), "ratio": 0.5, "raw": b"\x00\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "wall": datetime(1969, 1, 2, 3),
        "tags": ["a", None], "inner": {"x": 0.25, "names": ["n"]}, "counts": [("k", number)],
    }  # fmt: skip
    return pa.Table.from_pylist([whole, {"code": number}], TYPED)


@pytest.mark.parametrize("mode", ["incremental", "full"])
def test_values_of_all_types_are_read_whole_and_appended(
    tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "typed"
    write_deltalake(path, typed_rows(1), partition_by=["day", "code", "note", "flag"])
    views = Views("g", ROOT)
    views.input("typed", delta=str(path))
    names = ", ".join(f'"{name}"' for name in TYPED.names if name != "wall")
    views.view("v", f"select {names}, wall::varchar as wall from typed", mode=mode)

    def found() -> list[dict[str, Any]]:
        with views.read() as cut:
            kept = cut["v"].to_arrow().to_pylist()
            own = cut.sql(f"select {names}, wall from typed").to_pylist()
        for row in (*kept, *own):
            row["wall"] = None if row["wall"] is None else str(row["wall"])
        assert sorted(kept, key=repr) == sorted(own, key=repr)
        return sorted(own, key=repr)

    def written(*numbers: int) -> list[dict[str, Any]]:
        everything = [row for number in numbers for row in typed_rows(number).to_pylist()]
        for row in everything:
            wall = row.pop("wall")
            row["wall"] = None if wall is None else str(wall)
        return sorted(everything, key=repr)

    with runner(views) as running:
        running.tick()
        assert found() == written(1)
        with monkeypatch.context() as patch:
            patch.setattr(DeltaVersion, "rows", Mock(side_effect=AssertionError))
            write_deltalake(path, typed_rows(2), mode="append")
            running.tick()
        assert found() == written(1, 2)
        write_deltalake(path, typed_rows(3), mode="overwrite")
        running.tick()
        assert found() == written(3)
    assert views.check() == []


def test_a_table_is_joined_with_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "people"
    write(path, (1, "u"), (2, "v"))
    Topic("orders", pa.schema([("person", pa.int64())]), bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.input("people", delta=str(path))
    views.view(
        "sold",
        "select city, count(*) as n from orders join People on person = id group by city",
        mode="incremental",
    )
    with runner(views) as running:
        for person in (1, 1, 2):
            with Producer(bootstrap_servers=ROOT) as producer:
                producer.produce("orders", {"person": person})
        running.tick()
        assert rows(views, "sold") == [("u", 2), ("v", 1)]
        DeltaTable(path).update(updates={"city": "'w'"}, predicate="id = 1")
        running.tick()
        assert rows(views, "sold") == [("v", 1), ("w", 2)]
        # A version that the runner has is not read again.
        monkeypatch.setattr(DeltaSource, "at", Mock(side_effect=AssertionError))
        with Producer(bootstrap_servers=ROOT) as producer:
            producer.produce("orders", {"person": 2})
        running.tick()
        monkeypatch.undo()
        assert rows(views, "sold") == [("v", 2), ("w", 2)]
    assert Views("g", ROOT).check() == []
    store = open_store(ROOT)
    assert stored_holds(store, "orders")
    assert not stored_holds(store, "people")
    assert [str(of) for of in views.explain()] == [
        "sold: by rules: join (person = id), aggregate (city)"
    ]


def test_columns_that_a_table_gains_are_read(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"))
    views = Views("g", ROOT)
    views.input("people", delta=str(path))
    views.view("v", "select * from people", mode="incremental")
    with runner(views) as running:
        running.tick()
        wider = pa.table({"id": [2], "city": ["v"], "age": [30]})
        write_deltalake(path, wider, mode="append", schema_mode="merge")
        # A runner keeps the columns that the views of its program had.
        running.tick()
    assert views.check() == []
    assert rows(views, "v") == [(1, "u", None), (2, "v", 30)]
    assert rows(views, "v", 1) == [(1, "u", None)]
    assert Views("g", ROOT).read(1).sql("select * from people").column_names == ["id", "city"]


# --- versions that are gone ---


def test_a_version_that_was_vacuumed_is_named(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"), (2, "v"))
    views = views_of(path)
    with runner(views) as running:
        running.tick()
        DeltaTable(path).delete("id = 1")
        vacuum(path, [])
        with pytest.raises(KafkaException, match=r"version 0 .* VACUUM .* read a later tick") as e:
            views.check()
        assert e.value.error.code() == KafkaError.OFFSET_OUT_OF_RANGE
        # A runner needs the newest version only, also one that begins.
        running.tick()
    check_rows(views, [(2, "v")])
    write(path, (3, "v"))
    views.run(until="now")
    check_rows(views, [(2, "v"), (3, "v")])
    assert views.check() == []
    # The views of the tick are there, its inputs are not.
    check_rows(views, [(1, "u"), (2, "v")], 1)
    with pytest.raises(KafkaException, match=r"version 0 of the Delta table at .*people"):
        views.read(1).sql("select * from people")


def test_a_version_whose_entry_was_removed_is_named(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"))
    views = views_of(path)
    with runner(views) as running:
        running.tick()
        write(path, (2, "v"))
        DeltaTable(path).create_checkpoint()
        (path / "_delta_log" / f"{0:020}.json").unlink()
        with pytest.raises(KafkaException, match=r"version 0 .* log clean-up") as error:
            views.check()
        assert error.value.error.code() == KafkaError.OFFSET_OUT_OF_RANGE
        running.tick()
    check_rows(views, [(1, "u"), (2, "v")])
    assert views.check() == []


def test_another_table_at_the_address_stops_the_group(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"))
    write(path, (1, "u"))
    views = views_of(path)
    tick = views.run(until="now")
    assert tick is not None
    shutil.move(path, tmp_path / "old")
    with pytest.raises(InvalidConfig, match=r"input 'people': the Delta .* does not exist"):
        views.run(until="now")
    assert [lag.records for lag in lags(views._store, views._clock, tick)] == [None]
    for _ in range(3):
        write(path, (2, "v"))
    with pytest.raises(InvalidConfig, match=r"'people' is another Delta table .* delete the group"):
        views.run(until="now")
    assert [lag.records for lag in lags(views._store, views._clock, tick)] == [None]
    # An older version of it, such as of a copy that was restored.
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "old", path)
    (path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(InvalidConfig, match="another Delta table than at the last tick, at versi"):
        views.run(until="now")
    # It may move.
    moved = views_of(tmp_path / "old")
    moved.run(until="now")
    check_rows(moved, [(1, "u"), (1, "u")])


# --- tables that delta-rs does not write ---


def forged(path: Path, *entries: list[dict[str, Any]]) -> None:
    """Write entries of a log, after those that are there."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    version = len(list(log.glob("*.json")))
    for at, entry in enumerate(entries, start=version):
        (log / f"{at:020}.json").write_text("\n".join(map(json.dumps, entry)))


def actions(path: Path, version: int) -> dict[str, Any]:
    """The last action of each kind in an entry."""
    found: dict[str, Any] = {}
    for line in (path / "_delta_log" / f"{version:020}.json").read_text().splitlines():
        found |= json.loads(line)
    return found


def deletion_vector(*numbers: int) -> dict[str, Any]:
    """Deleted rows by number, in the form that stands in the log itself: a portable Roaring bitmap
    in Z85.
    """
    header = struct.pack("<IIHHI", 12346, 1, 0, len(numbers) - 1, 16)
    bitmap = header + struct.pack(f"<{len(numbers)}H", *numbers)
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = content + bytes(-len(content) % 4)
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = ""
    for (word,) in struct.iter_unpack(">I", padded):
        text += "".join(digits[word // 85**place % 85] for place in range(4, -1, -1))
    return {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(content),
        "cardinality": len(numbers),
    }


def by_duckdb(path: Path) -> list[tuple[Any, ...]]:
    """The rows as DuckDB's own reader of Delta tables finds them."""
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{_delta_of_duckdb()}'")
        found = connection.execute(f"SELECT id, city FROM delta_scan('{path}')").fetchall()
        return sorted(found, key=repr)


@pytest.mark.parametrize("mode", MODES)
def test_deletion_vectors_remove_rows(tmp_path: Path, mode: Mode):
    path = tmp_path / "people"
    write(path, (1, "u"), (2, "u"), (3, "v"), (4, "v"))
    views = views_of(path, mode)
    add = actions(path, 0)["add"]
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    with runner(views) as running:
        running.tick()
        gone: list[int] = []
        before = add
        for number in (1, 3, 0):
            gone.append(number)
            after = add | {"deletionVector": deletion_vector(*sorted(gone))}
            remove: dict[str, Any] = {"path": add["path"], "deletionTimestamp": 1}
            remove |= {"dataChange": True, "deletionVector": before.get("deletionVector")}
            forged(path, [{"protocol": protocol}, {"remove": remove}, {"add": after}])
            before = after
            running.tick()
            left = [
                row
                for at, row in enumerate([(1, "u"), (2, "u"), (3, "v"), (4, "v")])
                if at not in gone
            ]
            check_rows(views, left)
            assert by_duckdb(path) == sorted(left, key=repr)
            assert views.check() == []
        # A file that is added keeps the vectors of others.
        file = path / "more.parquet"
        pq.write_table(pa.table({"id": [9], "city": ["w"]}, SCHEMA), file)
        forged(path, [{"add": add | {"path": file.name, "size": file.stat().st_size}}])
        running.tick()
        check_rows(views, [(3, "v"), (9, "w")])
        assert views.check() == []
        # Without the feature, the file is there with all of its rows.
        remove["deletionVector"] = before["deletionVector"]
        forged(path, [{"protocol": actions(path, 0)["protocol"]}, {"remove": remove}, {"add": add}])
        running.tick()
    check_rows(views, [(1, "u"), (2, "u"), (3, "v"), (4, "v"), (9, "w")])
    assert views.check() == []
    views.run(until="now")
    check_rows(views, [(1, "u"), (2, "u"), (3, "v"), (4, "v")], 1)


@pytest.mark.parametrize("protocol", [(2, 5), (3, 7)])
def test_column_mapping_names_columns(tmp_path: Path, protocol: tuple[int, int]):
    path = tmp_path / "people"
    metadata = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    other = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "col-2"}
    schema = {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": metadata},
            {"name": "city", "type": "string", "nullable": True, "metadata": other},
        ],
    }
    settings = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    write(tmp_path / "model", (1, "u"))
    model = actions(tmp_path / "model", 0)
    features = {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
    reader, writer = protocol
    begin = {"minReaderVersion": reader, "minWriterVersion": writer}
    about = model["metaData"] | {"schemaString": json.dumps(schema), "configuration": settings}
    path.mkdir()

    def file(number: int, city: str) -> dict[str, Any]:
        name = f"{number}.parquet"
        pq.write_table(pa.table({"col-1": [number], "col-2": [city]}), path / name)
        size = (path / name).stat().st_size
        return {"add": model["add"] | {"path": name, "size": size, "stats": None}}

    forged(
        path,
        [
            {"protocol": begin | (features if reader == 3 else {})},
            {"metaData": about},
            file(1, "u"),
        ],
    )
    views = views_of(path)
    with runner(views) as running:
        running.tick()
        check_rows(views, [(1, "u")])
        forged(path, [file(2, "v")])
        running.tick()
    check_rows(views, [(1, "u"), (2, "v")])
    assert by_duckdb(path) == [(1, "u"), (2, "v")]
    assert views.check() == []


# --- what is refused ---


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "input 'people' needs the address"),
        ("http://host/people", "input 'people' is at http://; Delta tables are in folders"),
        ("s3://user:password@bucket/people", "must not have credentials"),
        ("az://container/people?sig=secret", "must not have credentials"),
    ],
)
def test_addresses_that_cannot_be_are_refused(address: str, reason: str):
    with pytest.raises(InvalidConfig, match=reason):
        Views("g", ROOT).input("people", delta=address)


def test_an_address_is_the_same_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "lake", (1, "u"))
    monkeypatch.chdir(tmp_path)
    views = views_of("lake")
    views.run(until="now")
    monkeypatch.chdir("/")
    assert Views("g", ROOT).check() == []
    paths = ("s3://bucket/people", "s3://bucket/people/")
    assert len({views_of(path).program.digest for path in paths}) == 1


def test_a_table_has_columns_of_its_own():
    with pytest.raises(InvalidConfig, match="input 'people' is a Delta table, which has columns"):
        Views("g", ROOT).input("people", "id BIGINT", delta="/lake/people")


def test_features_that_are_not_read_are_named(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"))
    views = views_of(path)
    views.run(until="now")
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
    forged(path, [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}])
    with pytest.raises(InvalidConfig, match=r"input 'people': .* has the feature 'typeWidening'"):
        views.run(until="now")
    # An earlier version is read as it was.
    assert views.check() == []


def test_the_table_of_a_topic_is_read_as_a_topic(tmp_path: Path):
    Topic("people", SCHEMA, bootstrap_servers=str(tmp_path)).create()
    with pytest.raises(InvalidConfig, match="has the column '_offset': read a topic by its name"):
        views_of(tmp_path / "topics" / "people").run(until="now")


def test_a_damaged_table_is_named(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"))
    (file,) = path.glob("*.parquet")
    file.write_bytes(b"no Parquet")
    with pytest.raises(InvalidConfig, match=r"input 'people': .* cannot be read: "):
        views_of(path).run(until="now")


def test_a_table_that_deltalake_does_not_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "people"
    write(path, (1, "u"))
    monkeypatch.setattr(DeltaTable, "scan", Mock(side_effect=DeltaError("no such feature")))
    with pytest.raises(InvalidConfig, match=r"input 'people': .* cannot be read: no such feature"):
        views_of(path).run(until="now")


def test_no_row_is_lost_if_a_dataset_names_files_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "people"
    write(path, (1, "u"), partition_by=["city"])
    views = views_of(path)
    monkeypatch.setattr(delta_tables, "unquote", str)
    with runner(views) as running:
        running.tick()
        write(path, (2, "v w"))
        running.tick()
    check_rows(views, [(1, "u"), (2, "v w")])
    assert views.check() == []


def test_files_elsewhere_are_read(tmp_path: Path):
    path = tmp_path / "people"
    write(path, (1, "u"))
    views = views_of(path)
    with runner(views) as running:
        running.tick()
        file = tmp_path / "more.parquet"
        pq.write_table(pa.table({"id": [9], "city": ["w"]}, SCHEMA), file)
        about = {"path": file.as_uri(), "size": file.stat().st_size, "stats": None}
        forged(path, [{"add": actions(path, 0)["add"] | about}])
        running.tick()
    check_rows(views, [(1, "u"), (9, "w")])
    assert views.check() == []


def test_a_store_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("Kernel error\n Generic S3 error\n error sending request")

    monkeypatch.setattr("deltalake.DeltaTable.__init__", refuse)
    with pytest.raises(Unavailable, match="input 'people': Kernel error Generic S3") as error:
        views_of("s3://lake/people").run(until="now")
    assert error.value.error.retriable()


def test_the_extra_is_named_without_deltalake(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InvalidConfig, match=r"need the extra \[delta\]: pip install"):
        views_of("/lake/people").run(until="now")


def test_a_topic_is_not_read_as_the_table_whose_name_differs_by_case(tmp_path: Path):
    write(tmp_path / "lake", (1, "u"))
    Topic("People", SCHEMA, bootstrap_servers=ROOT).create()
    views = views_of(tmp_path / "lake")
    views.run(until="now")
    assert rows(views, "cities") == [("u", 1, 1)]
    views.view("others", "select id from People")
    with pytest.raises(InvalidConfig, match=r"'others' reads 'People', and view .* reads 'people'"):
        views.run(until="now")


def test_files_of_a_folder_declare_tables(tmp_path: Path):
    write(tmp_path / "lake", (1, "u"))
    folder = tmp_path / "g"
    folder.mkdir()
    (folder / "cities.sql").write_text(CITIES)
    (folder / "people.input").write_text(f"-- delta: {tmp_path / 'lake'}\n")
    views = Views.from_folder(folder, ROOT)
    views.run(until="now")
    assert rows(views, "cities") == [("u", 1, 1)]


# --- checkpoints ---


def resumed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each runner that begins from now on goes on from a checkpoint."""
    found = []
    begin = GroupRunner._resumed

    def noted(self: GroupRunner, cut: Any) -> Any:
        found.append((engine := begin(self, cut)) is not None)
        return engine

    monkeypatch.setattr(GroupRunner, "_resumed", noted)
    return found


def gain_column(path: Path, people: list[Any]) -> list[Any]:
    wider = pa.table({"id": [30], "city": ["v"], "age": [30]})
    write_deltalake(path, wider, mode="append", schema_mode="merge")
    return [*people, (30, "v")]


def delete_and_vacuum(path: Path, people: list[Any]) -> list[Any]:
    return vacuum(path, delete_ones(path, people))


@pytest.mark.parametrize(
    ("change", "is_used"),
    [(append, True), (delete_ones, True), (delete_and_vacuum, False), (gain_column, False)],
)
def test_a_runner_goes_on_from_a_checkpoint_if_its_version_is_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, list[Any]], list[Any]],
    is_used: bool,
):
    path = tmp_path / "people"
    people: list[Any] = [(1, "u"), (2, "v")]
    write(path, *people)
    views = views_of(path, "incremental")
    with runner(views) as running:
        running.tick()
    found = resumed(monkeypatch)
    people = change(path, people)
    with runner(views) as running:
        running.tick()
        assert found == [is_used]
        check_rows(views, people)
        people = append(path, people)
        running.tick()
        people = update_city(path, people)
        running.tick()
    check_rows(views, people)
    assert views.check() == []


def test_a_checkpoint_from_before_a_table_had_its_columns_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "people"
    write(path, (1, "u"))
    Topic("orders", pa.schema([("person", pa.int64())]), bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.input("people", delta=str(path))
    views.view("everyone", "select * from people", mode="full")
    views.view("sold", "select person, count(*) as n from orders group by 1", mode="incremental")
    with runner(views) as running:
        running.tick()
    found = resumed(monkeypatch)
    gain_column(path, [])
    with runner(views) as running:
        running.tick()
    assert found == [False]
    assert rows(views, "everyone") == [(1, "u", None), (30, "v", 30)]
    assert views.check() == []
