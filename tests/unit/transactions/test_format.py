"""Golden tables: logs of transactional ids and of a group, as the first version wrote them. Every
later version reads them, and goes on in them.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import Corrupt, Fenced, Incompatible
from deltaq.groups.log import GroupLog
from deltaq.groups.transaction_offsets import TransactionOffsets
from deltaq.names import TransactionKey, log_entry
from deltaq.parquet.column_bounds import ColumnStatistics
from deltaq.store import LocalStore, MemoryStore, Store
from deltaq.topics.state import PendingSegment
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.state import Decision, LogMixed, StagedRecords, TransactionHead

FOREVER = float("inf")
GOLDEN = Path(__file__).parent / "golden"
IN = "439a9098cd76c8c5f14a5898bb7a1f1e"
LIFE = "a87ff679a2f3e71d9181a67b7542122c"
DECIDED = Decision(
    TransactionKey("transfers-1", 0, 1),
    1,
    (
        StagedRecords(
            "credits",
            "5898bb7a1f1e439a9098cd76c8c5f14a",
            (
                PendingSegment(
                    "staged/transfers-1/0-1-c6122fd253ab4b4eb9f0b70a925483cb.parquet",
                    size=1426,
                    rows=3,
                    crc32=210634919,
                    footer_bytes=884,
                    footer_crc32=426494672,
                    partition_rows=((0, 2), (2, 1)),
                    min_timestamp_ms=1795258300133,
                    max_timestamp_ms=1795258300140,
                    modified_ms=1795258300559,
                    timed=True,
                    as_of=4,
                ),
            ),
        ),
        StagedRecords(
            "debits",
            "98bb7a1f1e439a9098cd76c8c5f14a58",
            (
                PendingSegment(
                    "staged/transfers-1/0-1-0b70a925483cbc6122fd253ab4b4eb9f.parquet",
                    size=990,
                    rows=1,
                    crc32=21063,
                    footer_bytes=700,
                    footer_crc32=4264,
                    partition_rows=((0, 1),),
                    min_timestamp_ms=1795258300133,
                    max_timestamp_ms=1795258300133,
                    modified_ms=1795258300559,
                    timed=True,
                    as_of=2,
                    statistics=(ColumnStatistics("amount", 0, -5, 7),),
                ),
            ),
        ),
    ),
    ("billing",),
    life=LIFE,
)


@pytest.fixture
def golden() -> Store:
    """A copy of the golden tables."""
    store = MemoryStore("test")
    for path in sorted(GOLDEN.rglob("*.json")):
        store.put(path.relative_to(GOLDEN).as_posix(), path.read_bytes())
    return store


def head(store: Store, transactional_id: str) -> TransactionHead | None:
    return TransactionLog(store, transactional_id, SYSTEM_CLOCK).head()


def test_a_log_of_an_id_is_read(golden: Store):
    found = head(golden, "transfers-1")
    assert found == TransactionHead(LIFE, 0, 2, 60_000, "bank", 1795258300030, DECIDED)
    assert DECIDED.published_as == (f"transfers-1/{LIFE}", 1)


def test_an_expired_id_is_read_and_its_old_producer_is_fenced(golden: Store):
    found = head(golden, "unused")
    life = "c20ad4d76fe97759aa27a0c99bff6710"
    assert found == TransactionHead(life, 1, 0, 60_000, "bank", 1795258300090, is_expired=True)
    log = TransactionLog(golden, "unused", SYSTEM_CLOCK)
    with pytest.raises(Fenced):
        log.commit(Decision(TransactionKey("unused", 0, 1), 0, (), ()), FOREVER)
    assert log.begin(60_000, None, FOREVER).epoch == 2


def test_a_log_goes_on(golden: Store):
    log = TransactionLog(golden, "transfers-1", SYSTEM_CLOCK)
    log.head()
    third = Decision(TransactionKey("transfers-1", 0, 3), 0, DECIDED.topics, ())
    assert log.commit(third, FOREVER).version == 3


def test_a_group_with_pending_offsets_is_read_and_goes_on(golden: Store):
    log = GroupLog(golden, "billing")
    found = log.committed([("orders", IN, partition) for partition in (0, 1, 2)])
    assert [None if of is None else (of.offset, of.metadata) for of in found] == [
        (7, "note"),
        (9, None),
        None,
    ]
    (pending,) = log.pending()
    assert isinstance(pending, TransactionOffsets)
    assert pending.transaction == TransactionKey("transfers-2", 3, 8)
    assert (pending.identity, pending.time_ms) == (None, 1795258300070)
    assert [(of.topic, of.partition, of.offset) for of in pending.offsets] == [("orders", 1, 9)]
    log.resolve(pending.transaction, FOREVER, is_committed=False)
    assert log.pending() == []


def test_what_is_written_today_is_equal(tmp_path: Path):
    """The bytes of a decision are those of the golden log, but for token, time and checksum."""
    store = LocalStore(str(tmp_path))
    log = TransactionLog(store, "transfers-1", SYSTEM_CLOCK, "bank")
    epoch = log.begin(60_000, None, FOREVER).epoch
    log.commit(replace(DECIDED, key=DECIDED.key._replace(epoch=epoch)), FOREVER)
    key = log_entry("transactions/transfers-1/_delta_log/", 1)
    ours, golden = store.get(key).decode(), (GOLDEN / key).read_text()
    at = ours.index('\\"decision\\"')
    assert ours[at:] == golden[golden.index('\\"decision\\"') :]


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ('\\"format\\":1', ('\\"format\\":2', Incompatible)),
        ('\\"life\\":\\"a', ('\\"life\\":\\"b', LogMixed)),
        ('\\"epoch\\":0', ('\\"epoch\\":-1', Corrupt)),
        ('\\"rows\\":3', ('\\"rows\\":4', Corrupt)),
        ("staged/transfers-1/0-1-c", ("../transfers-1/0-1-c", Corrupt)),
        ('\\"groups\\":[\\"billing\\"]', ('\\"groups\\":[\\"../x\\"]', Corrupt)),
    ],
)
def test_a_damaged_decision_is_refused(
    golden: Store, found: str, error: tuple[str, type[Exception]]
):
    key = log_entry("transactions/transfers-1/_delta_log/", 2)
    first, _, rest = golden.get(key).decode().partition("\n")
    assert found in rest
    damaged = rest.replace(found, error[0], 1).encode()
    sealed = first.rpartition(',"crc32":')[0].encode()
    number = zlib.crc32(damaged, zlib.crc32(sealed))
    golden.put(key, sealed + b',"crc32":%d}}}\n' % number + damaged)
    with pytest.raises(error[1]):
        head(golden, "transfers-1")
