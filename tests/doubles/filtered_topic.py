"""A typed topic of every type of column, whose files differ in what they hold, and filters for all
of its columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.delta.schema import delta_schema
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.serde.source import schema_of
from deltaq.store import Store, open_store
from deltaq.topics.columns import columns_of_rows, table_schema
from deltaq.topics.log import Appended, AppendMode, TopicLog
from deltaq.topics.metadata import TYPED_PROPERTY, definition_of
from deltaq.topics.shared_files import SharedFileId, parse_shared_file, shared_file_path
from deltaq.topics.state import PendingSegment
from deltaq.topics.upload import upload_segment
from tests.doubles.filters import Filter, filters_of
from tests.doubles.short_log import checkpoint_and_clean_up

__all__ = [
    "FILTERS",
    "SCHEMA",
    "Row",
    "Written",
    "appended",
    "checkpointed",
    "committed_by_peer",
    "compacted",
    "corrected",
    "key_compacted",
    "rows_of_files",
    "wholly_compacted",
]

Row: TypeAlias = "dict[str, Any]"
Values: TypeAlias = "Sequence[dict[str, Any] | None]"

_POINT = pa.struct([pa.field("city", pa.string()), pa.field("height", pa.float64())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("tiny", pa.int8()),
        pa.field("small", pa.int16()),
        pa.field("medium", pa.int32()),
        pa.field("ratio", pa.float64()),
        pa.field("single", pa.float32()),
        pa.field("flag", pa.bool_()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("name", pa.string()),
        pa.field("größe", pa.int64()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("nothing", pa.int64()),
        pa.field("no_text", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("labels", pa.map_(pa.string(), pa.string())),
        pa.field("place", _POINT),
    ]
)
_NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
_LONG = "a" * 40
"""Longer than what statistics keep of a string."""

_CUT = "\U0010ffff" * 32
"""Cut to the length that statistics have, no string of that length is above it."""

_ODD_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0)
_ODD_TEXTS = (
    _LONG,
    _LONG + "b",
    _LONG + "\U0010ffff",
    _CUT,
    _CUT + "x",
    "",
    "it's",
    "\ud7ff" * 33,
    "ä" * 33,
    "x\U00020000y",
    "\U0001f600" * 33,
)
_EXTREMES = {"id": 63, "medium": 31, "small": 15, "tiny": 7}


def _row(number: int) -> dict[str, Any]:
    """An ordinary row: what it holds grows with its number, so that files have different bounds."""
    return {
        "id": number,
        "tiny": number % 100,
        "small": 10 * number,
        "medium": 1000 * number,
        "ratio": number / 4,
        "single": number / 8,
        "flag": number >= 20,
        "price": Decimal(number) + Decimal("0.25"),
        "name": f"n{number:04d}",
        "größe": -number,
        "raw": bytes([number % 256]),
        "day": date(2024, 1, 1) + timedelta(days=number),
        "at": _NOON + timedelta(seconds=number, microseconds=number + 1),
        "nothing": None,
        "no_text": None,
        "tags": [f"t{number}"] * (number % 3),
        "labels": {"k": f"v{number}"},
        "place": {"city": f"c{number:02d}", "height": float(number)},
    }


def rows_of_files() -> list[Values]:
    """What each commit brings; None is a tombstone. Two files are plain, each further one is odd in
    one way.
    """
    plain = [[_row(number) for number in range(first, first + 10)] for first in (10, 30)]
    halves = [dict.fromkeys(SCHEMA.names) | {"id": 60 + number} for number in range(2)]
    odd_floats = [_row(70) | {"ratio": value, "single": value} for value in _ODD_FLOATS]
    zeros = [
        [_row(80) | {"ratio": value, "single": value} for value in values]
        for values in ((-0.0, 1.0), (0.0, -1.0))
    ]
    texts = [[_row(90) | {"name": text}] for text in _ODD_TEXTS]
    extremes = [
        _row(95) | {name: sign * 2**bits - (sign > 0) for name, bits in _EXTREMES.items()}
        for sign in (-1, 1)
    ]
    times = [
        [_row(97) | {"at": _NOON + timedelta(microseconds=999), "day": date(1, 1, 1)}],
        [_row(98) | {"at": datetime.max.replace(tzinfo=UTC), "day": date.max}],
    ]
    return [
        *plain,
        [None, None],
        [None, *halves],
        odd_floats,
        *zeros,
        *texts,
        extremes,
        *times,
        [_row(99), None],
    ]


LITERALS: dict[str, Sequence[Any]] = {
    "_partition": [0, 1],
    "_offset": [0, 5],
    "_timestamp": [_NOON, _NOON + timedelta(milliseconds=5)],
    "_key": [b"k3"],
    "id": [15, 35, -(2**63), 2**63 - 1],
    "tiny": [15, 127],
    "small": [150, -(2**15)],
    "medium": [15_000, 2**31 - 1],
    "ratio": [3.75, 0.0, 1e300],
    "single": [1.875, -1.0],
    "flag": [True, False],
    "price": [Decimal("15.25")],
    "name": [
        "n0015",
        _LONG,
        _LONG + "b",
        _CUT,
        _CUT + "x",
        "ä" * 33,
        "x\U00020000y",
        "\U0001f600" * 33,
        "",
    ],
    "größe": [-15],
    "raw": [bytes([15])],
    "day": [date(2024, 1, 16), date.max],
    "at": [_NOON + timedelta(seconds=15, microseconds=16), _NOON + timedelta(microseconds=999)],
    "nothing": [7],
    "no_text": ["x"],
    "place.city": ["c15"],
    "place.height": [35.0],
}
_OWN = {
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": pa.timestamp("us", tz="UTC"),
    "_key": pa.binary(),
    "_headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
_TYPES = {
    **_OWN,
    **{field.name: field.type for field in SCHEMA},
    **{f"place.{field.name}": field.type for field in _POINT},
}
FILTERS: list[Filter] = filters_of(_TYPES, LITERALS)


NOON_MS = 1_709_208_000_000
MERGE_ALL = MaintenanceSettings(merge_files=2)
FOREVER = float("inf")


class Written:
    """The topic `t` and its rows as the table has them. `offsets`: whether its files have them."""

    def __init__(self, root: Path, **config: str) -> None:
        self.root = str(root)
        self.table = str(root / "topics" / "t")
        self.store: Store = open_store(self.root)
        self.config = {"retention.ms": "-1", **config}
        self.rows: list[Row] = []

    def create(self) -> Written:
        Topic(
            "t", SCHEMA, partitions=2, config=self.config, conf={"bootstrap.servers": self.root}
        ).create()
        return self

    def append(self, files: Sequence[Values]) -> Written:
        """Produce each of `files` in a commit of its own, every second as an Arrow table."""
        # Flush() ends each batch.
        with Producer({"bootstrap.servers": self.root}, linger_ms=60_000) as producer:
            for number, values in enumerate(files):
                rows = self._noted(values)
                if number % 2 and None not in values:  # a table has no way to say a tombstone
                    self._produce_arrow(producer, rows, values)
                else:
                    self._produce(producer, rows, values)
                assert producer.flush(60) == 0
        return self

    def _noted(self, values: Values) -> list[Row]:
        rows = []
        for value in values:
            number = len(self.rows)
            own = {
                "_partition": number % 2,
                "_offset": None,
                "_timestamp": _time(number),
                "_key": b"k%d" % number,
            }
            rows.append(
                {
                    **own,
                    "_headers": None,
                    **(dict.fromkeys(SCHEMA.names) if value is None else value),
                }
            )
            self.rows.append(rows[-1])
        return rows

    def _produce(self, producer: Producer, rows: Sequence[Row], values: Values) -> None:
        for row, value in zip(rows, values, strict=True):
            row["_headers"] = [("h", b"1")] if row["_partition"] else None
            producer.produce(
                "t",
                value,
                key=row["_key"],
                partition=row["_partition"],
                timestamp=_ms(row),
                headers=row["_headers"],
            )

    def _produce_arrow(self, producer: Producer, rows: Sequence[Row], values: Values) -> None:
        columns = pa.Table.from_pylist([value or {} for value in values], schema=SCHEMA)
        for name, column in {
            "key": [row["_key"] for row in rows],
            "partition": [row["_partition"] for row in rows],
            "timestamp": [_ms(row) for row in rows],
        }.items():
            columns = columns.append_column(f"_{name}", pa.array(column))
        producer.produce_arrow("t", columns)

    def share_and_commit_by_peer(self, files: Sequence[Values]) -> Written:
        """Upload each of `files` as one writer, to be committed by another one."""
        theirs, ours = (TopicLog(self.store, "t", indexed=True) for _ in range(2))
        for number, values in enumerate(files):
            assert theirs.load()
            assert ours.load()
            rows, view = self._noted(values), definition_of(theirs)
            columns = columns_of_rows(
                [row["_partition"] for row in rows],
                pa.array([_ms(row) for row in rows], pa.int64()),
                [row["_key"] for row in rows],
                [None] * len(rows),
                list(values),
                view.schema,
            )
            shared = SharedFileId(theirs.writer, number)

            def named(
                segment: PendingSegment,
                shared: SharedFileId = shared,
                topic_id: str = view.topic_id,
            ) -> str | None:
                return shared_file_path(shared, segment, topic_id, follows=False)

            upload_segment(
                self.store,
                "t",
                columns,
                view.settings,
                ("none", None),
                deadline=FOREVER,
                clock=SYSTEM_CLOCK,
                as_of=theirs.version,
                named=named,
            )
            taken = ours.append(list, view.topic_id, FOREVER, how=AppendMode(with_peers=True))
            assert isinstance(taken, Appended)
            assert [parse_shared_file(file.path) is not None for file in taken.files] == [True]
        return self

    def maintain(self, settings: MaintenanceSettings) -> Mapping[str, int]:
        """One round of maintenance; the rows are then as the topic's own reader has them."""
        done = TopicPass(self.store, "t", SYSTEM_CLOCK, settings, Throttle(SYSTEM_CLOCK)).run()
        kept = (
            Topic("t", conf={"bootstrap.servers": self.root})
            .to_arrow()
            .select(["_key", "_offset"])
            .to_pylist()
        )
        offsets = {row["_key"]: row["_offset"] for row in kept}
        assert len(offsets) == len(kept)
        self.rows = [row for row in self.rows if row["_key"] in offsets]
        if done["files merged"] or done["records superseded"]:
            for row in self.rows:
                row["_offset"] = offsets[row["_key"]]
        return done

    def checkpoint(self) -> Written:
        """Write a checkpoint, and remove the entries before it: each reader has to understand
        it.
        """
        checkpoint_and_clean_up(open_store(self.root), "t")
        return self

    def picked(self, wanted: Filter, *, nan_is_largest: bool) -> list[bytes]:
        """The keys of the rows that a filter finds."""
        return sorted(
            row["_key"] for row in self.rows if wanted.picks(row, nan_is_largest=nan_is_largest)
        )

    def stats(self) -> list[dict[str, Any]]:
        """What the log says of each live file."""
        log = TopicLog(self.store, "t")
        log.load()
        return [json.loads(add.stats or "{}") for add in log.state.files.values()]


def _ms(row: Row) -> int:
    return int(row["_timestamp"].timestamp() * 1000)


def _time(number: int) -> Any:
    return pa.scalar(NOON_MS + number, pa.timestamp("ms", tz="UTC")).as_py()


# --- tables
# --------------------------------------------------------------------------------------------------


def appended(root: Path) -> Written:
    return Written(root).create().append(rows_of_files())


def checkpointed(root: Path) -> Written:
    return appended(root).checkpoint().append(rows_of_files()[:1])


def compacted(root: Path) -> Written:
    """The plain files merged, and behind that all others as they were appended."""
    written = Written(root).create().append(rows_of_files()[:2])
    assert written.maintain(MERGE_ALL)["files merged"] == 2
    return written.append(rows_of_files())


def wholly_compacted(root: Path) -> Written:
    """One file, of which the odd values have no bounds."""
    written = appended(root)
    assert written.maintain(MERGE_ALL)["files merged"] == len(rows_of_files())
    return written


def key_compacted(root: Path) -> Written:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    written = Written(root, **config).create()
    written.append(rows_of_files()[:2])
    older, written.rows = written.rows, []
    written.append(rows_of_files())  # the same keys, from the first one on
    assert written.maintain(DEFAULT_SETTINGS)["records superseded"] == len(older)
    return written


def committed_by_peer(root: Path) -> Written:
    """Half of the files are shared files that another writer has committed."""
    files = rows_of_files()
    return Written(root).create().append(files[::2]).share_and_commit_by_peer(files[1::2])


def corrected(root: Path) -> Written:
    """A table as an earlier deltaq has written it, and behind that what a newer one has done."""
    written = Written(root)
    properties = {"deltaq.partitions": "2", TYPED_PROPERTY: "true", "deltaq.retention.ms": "-1"}
    schema = delta_schema(table_schema(schema_of(SCHEMA)))
    TopicLog(written.store, "t").create(2, schema, properties, FOREVER)
    written.append(rows_of_files()[:4])
    assert written.maintain(DEFAULT_SETTINGS)["tables corrected"] == 1
    assert written.maintain(DEFAULT_SETTINGS)["tables corrected"] == 0
    return written.append(rows_of_files()[4:])
