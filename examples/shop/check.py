"""Whether the stream equals a batch: what the topics hold, and the same computed again from the
first purchase.

Spark commits the rows of a micro-batch to a topic together with the number of the micro-batch, and
its checkpoint says which purchases that micro-batch has read. A snapshot of the topic can therefore
be compared with a batch over exactly the purchases from which it was made, while the pipeline runs,
and while it is dead. DuckDB computes the batch, so Spark is not compared with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from examples.shop.checkpoint import read_until
from examples.shop.layout import DEAD_LETTERS, ENRICHED, PURCHASES, RUNNING_TOTALS, WINDOWS, topics
from examples.shop.queries import DuckDb


@dataclass(frozen=True)
class Comparison:
    """A topic, the query that writes it, and SQL for what it holds and for the same as a batch over
    `covered`.
    """

    query: str
    stream: str
    batch: str


COMPARISONS: Mapping[str, Comparison] = MappingProxyType(
    {
        ENRICHED: Comparison(
            ENRICHED,
            "SELECT transaction_id, product_id, epoch_us(transaction_timestamp), purchase_quantity,"
            " total_purchase FROM enriched_table",
            "SELECT transaction_id, product_id, sold_us, quantity, total_purchase FROM covered "
            "WHERE is_valid",
        ),
        DEAD_LETTERS: Comparison(
            ENRICHED,
            "SELECT value, epoch_us(_timestamp) FROM dead_letters_table",
            "SELECT value, epoch_us(sent) FROM covered WHERE NOT is_valid",
        ),
        RUNNING_TOTALS: Comparison(
            RUNNING_TOTALS,
            """
            SELECT product_id, epoch_us(event_time), transactions, quantities, sales FROM running_totals_table
            QUALIFY row_number() OVER (PARTITION BY _key ORDER BY transactions DESC) = 1
            """,  # noqa: E501
            """
            SELECT product_id, max(sold_us), count(*), sum(quantity)::BIGINT, sum(total_purchase)::DECIMAL(10, 2)
            FROM covered WHERE is_valid GROUP BY product_id
            """,  # noqa: E501
        ),
        WINDOWS: Comparison(
            WINDOWS,
            """
            SELECT epoch_us(window_start), product_id, transactions, quantities, sales FROM windows_table
            QUALIFY row_number() OVER (PARTITION BY _key ORDER BY transactions DESC) = 1
            """,  # noqa: E501
            # A purchase is in the window of ten minutes that began within the last five, and in the
            # one before.
            """
            WITH in_time AS (
                SELECT *, sold_us - sold_us % 300_000_000 AS newest_us
                FROM covered WHERE is_valid AND epoch_us(sent) <= sold_us + 600_000_000
            ), in_windows AS (
                SELECT *, unnest([newest_us, newest_us - 300_000_000]) AS start_us FROM in_time
            )
            SELECT start_us, product_id, count(*), sum(quantity)::BIGINT, sum(total_purchase)::DECIMAL(10, 2)
            FROM in_windows GROUP BY start_us, product_id
            """,  # noqa: E501
        ),
    }
)

_SOLD = """
    CREATE OR REPLACE TEMP TABLE sold AS
    SELECT *, coalesce(
        product_id IS NOT NULL AND sold_us IS NOT NULL
        AND is_member IS NOT NULL AND add_supplements IS NOT NULL
        AND total_purchase = round(quantity * (price + supplement_price) * (1 - member_discount), 2), false
    ) AS is_valid
    FROM purchases
"""  # noqa: E501
_COVERED = """
    CREATE OR REPLACE TEMP TABLE covered AS
    SELECT sold.* FROM sold JOIN read_until ON sold._partition = read_until.number WHERE _offset < next_offset
"""  # noqa: E501


@dataclass(frozen=True)
class TopicVerdict:
    """What the comparison of one topic found: `differences` rows are in the stream or in the batch,
    but not in both.
    """

    topic: str
    batch_id: int
    purchases: int
    """How many messages of `purchases` the stream has read, and the batch too."""

    differences: int


class BatchCheck:
    """Compares the topics with a batch."""

    def __init__(self, root: str, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._engine = DuckDb(root)
        self._purchases = topics(root)[PURCHASES]

    def run(self) -> list[TopicVerdict]:
        """The verdict on each topic that the pipeline has written."""
        covered: dict[str, tuple[int, dict[int, int]]] = {}
        for topic, comparison in COMPARISONS.items():
            batch_id = self._engine.open(topic)
            if batch_id is None:
                continue
            if (offsets := read_until(self._checkpoints / comparison.query, batch_id)) is not None:
                covered[topic] = batch_id, offsets
        if not covered:
            return []
        # Read last, so that it has all the purchases that the others were made from; and not as a
        # Delta table, which lacks the offsets of purchases that are not compacted yet.
        self._engine.register(f"{PURCHASES}_table", self._purchases.to_arrow())
        self._engine.execute(_SOLD)
        return [
            self._compare(topic, batch_id, offsets)
            for topic, (batch_id, offsets) in covered.items()
        ]

    def _compare(self, topic: str, batch_id: int, offsets: dict[int, int]) -> TopicVerdict:
        bounds = pa.table({"number": list(offsets), "next_offset": list(offsets.values())})
        self._engine.register("read_until", bounds)
        self._engine.execute(_COVERED)
        stream, batch = COMPARISONS[topic].stream, COMPARISONS[topic].batch
        return TopicVerdict(
            topic,
            batch_id,
            sum(offsets.values()),
            self._only_in(stream, batch) + self._only_in(batch, stream),
        )

    def _only_in(self, one: str, other: str) -> int:
        ((rows,),) = self._engine.execute(f"SELECT count(*) FROM (({one}) EXCEPT ALL ({other}))")  # noqa: S608
        return int(rows)

    def close(self) -> None:
        """Close the connection."""
        self._engine.close()
