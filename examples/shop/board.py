"""What the page shows of the topics: a consumer follows them, and this module remembers the newest
of each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from deltaq import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from examples.shop.layout import DEAD_LETTERS, ENRICHED, RUNNING_TOTALS, WINDOWS

IN_TIME = timedelta(minutes=10)
MINUTES, TOP, WINDOWS_SHOWN, LETTERS = 60, 8, 14, 4
LONGEST_LETTER = 160
NO_MONEY = Decimal("0.00")


class Board:
    """The newest state of what the pipeline has written. Values are dicts with the fields of
    `layout.py`.
    """

    def __init__(self) -> None:
        self._totals: dict[str, dict[str, Any]] = {}
        self._windows: dict[datetime, dict[str, dict[str, Any]]] = {}
        self._minutes: dict[datetime, Decimal] = {}
        self._names: dict[str, str] = {}
        self._letters: deque[dict[str, str]] = deque(maxlen=LETTERS)
        self._counts: Counter[str] = Counter()

    def add(
        self, topic: str, sent: datetime, value: Any, headers: Iterable[tuple[str, bytes | None]]
    ) -> None:
        """Take in a record."""
        self._counts[topic] += 1
        if topic == ENRICHED:
            self._add_purchase(sent, value)
        elif topic == RUNNING_TOTALS:
            self._totals[value["product_id"]] = value
        elif topic == WINDOWS:
            self._windows.setdefault(value["window_start"], {})[value["product_id"]] = value
            if len(self._windows) > WINDOWS_SHOWN:
                del self._windows[min(self._windows)]
        else:
            reason = dict(headers).get("reason") or b""
            text = bytes(value or b"")[:LONGEST_LETTER]
            self._letters.appendleft(
                {"reason": reason.decode(errors="replace"), "value": text.decode(errors="replace")}
            )

    def _add_purchase(self, sent: datetime, value: dict[str, Any]) -> None:
        at = value["transaction_timestamp"]
        self._names[value["product_id"]] = value["product_name"] or value["product_id"]
        self._counts["late"] += sent - at > IN_TIME
        minute = at.replace(second=0, microsecond=0)
        self._minutes[minute] = self._minutes.get(minute, NO_MONEY) + value["total_purchase"]
        if len(self._minutes) > 2 * MINUTES:
            for old in sorted(self._minutes)[:MINUTES]:
                del self._minutes[old]

    def shown(self) -> dict[str, Any]:
        """The state for the page. Dollars are text, because JSON has no decimals."""
        ranked = sorted(
            self._totals.values(), key=lambda total: (-total["sales"], total["product_id"])
        )
        return {
            "sales": str(sum((total["sales"] for total in ranked), NO_MONEY)),
            "drinks": sum(total["quantities"] for total in ranked),
            "purchases": sum(total["transactions"] for total in ranked),
            "late": self._counts["late"],
            "dead": self._counts[DEAD_LETTERS],
            "minutes": self._shown_minutes(),
            "top": [
                {
                    "name": self._names.get(total["product_id"], total["product_id"]),
                    "drinks": total["quantities"],
                    "sales": str(total["sales"]),
                }
                for total in ranked[:TOP]
            ],
            "windows": [
                {
                    "start": start.isoformat(),
                    "sales": str(sum((row["sales"] for row in rows.values()), NO_MONEY)),
                    "drinks": sum(row["quantities"] for row in rows.values()),
                }
                for start, rows in sorted(self._windows.items())
            ],
            "letters": list(self._letters),
        }

    def _shown_minutes(self) -> list[dict[str, str]]:
        """The sales of the newest minutes, those without sales included."""
        if not self._minutes:
            return []
        newest = max(self._minutes)
        first = max(min(self._minutes), newest - timedelta(minutes=MINUTES - 1))
        count = (newest - first) // timedelta(minutes=1) + 1
        minutes = (first + timedelta(minutes=number) for number in range(count))
        return [
            {"at": at.isoformat(), "sales": str(self._minutes.get(at, NO_MONEY))} for at in minutes
        ]


class BoardFollower:
    """Follows the topics of the pipeline from their beginning, for a board."""

    def __init__(self, root: str, board: Board) -> None:
        self._board = board
        self._consumer = Consumer(
            {"bootstrap.servers": root, "group.id": "page", "enable.auto.commit": False}
        )
        written = (ENRICHED, RUNNING_TOTALS, WINDOWS, DEAD_LETTERS)
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in written])

    def follow(self, seconds: float) -> None:
        """Take in what comes within some time, or a part of it if very much comes."""
        for message in self._consumer.consume(20_000, timeout=seconds):
            if (error := message.error()) is not None:
                raise SystemExit(f"cannot read the topics of the pipeline: {error.str()}")
            self._take(message)

    def _take(self, message: Message) -> None:
        sent = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
        self._board.add(str(message.topic()), sent, message.value(), message.headers() or ())

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
