"""Run the generators and the pipeline of the shop, and serve a page that shows them and can kill
the pipeline.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from examples._page import LivePage
from examples._programs import (
    Program,
    RestartedProgram,
    on_stop,
    own_root,
    parser_of,
    stop_all,
)
from examples.shop.board import Board, BoardFollower
from examples.shop.check import COMPARISONS, BatchCheck, TopicVerdict
from examples.shop.checkpoint import newest_batch, read_until
from examples.shop.layout import (
    ENRICHED,
    INVENTORIES,
    PRODUCTS,
    PURCHASES,
    RUNNING_TOTALS,
    WINDOWS,
    ShopClock,
    create_topics,
)
from examples.shop.queries import DuckDb, Freshness, ask_all

T = TypeVar("T")

PAGE = Path(__file__).parent / "page"

REFRESH_S, TICK_S = 1.0, 0.25
CHECK_EVERY_S, ASK_EVERY_S = 2.0, 5.0
HISTORY = 120
"""Refreshes for which the page shows how far the pipeline was behind."""

ENDLESS = 10_000_000
"""Transactions: the shop sells until the demo ends."""


class Repeated(Generic[T]):
    """A function that a thread of its own calls again and again. `result` is the newest result."""

    def __init__(self, function: Callable[[], T], first: T, every_s: float) -> None:
        self._function = function
        self._every_s = every_s
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: Future[T] | None = None
        self._begun = self._due = time.monotonic()
        self.result = first

    def turn(self) -> bool:
        """Call the function if it is due. Whether there is a new result. Raises what the function
        has raised.
        """
        now = time.monotonic()
        if self._running is None:
            if now >= self._due:
                self._begun, self._running = now, self._thread.submit(self._function)
            return False
        if not self._running.done():
            return False
        self.result, self._running = self._running.result(), None
        # At most a quarter of the time, however much there is to compute.
        self._due = max(self._begun + self._every_s, now + 3 * (now - self._begun))
        return True

    def close(self) -> None:
        """Wait until the function has returned."""
        self._thread.shutdown()


class Shop:
    """The programs, and what is known of them."""

    def __init__(
        self, root: str, folder: Path, clock: ShopClock, seed: int | None, stack: ExitStack
    ) -> None:
        self._clock = clock
        self._checkpoints = folder / "checkpoints"
        self._purchases = create_topics(root)[PURCHASES]
        pace = ("--speed", str(clock.speed), "--opened", str(clock.opened.timestamp()))
        sell = (
            PURCHASES,
            "--transactions",
            str(ENDLESS),
            *(() if seed is None else ("--seed", str(seed))),
        )
        self.pipeline = RestartedProgram(
            "shop.pipeline",
            "pipeline",
            folder,
            "--until-eof",
            "--root",
            root,
            "--checkpoints",
            str(self._checkpoints),
            *pace,
            ready=f"reading {root}",
        )
        self.generators = [
            Program(
                "shop.generator", name, folder, *arguments, "--until-eof", "--root", root, *pace
            )
            for name, arguments in (
                (PRODUCTS, (PRODUCTS,)),
                (PURCHASES, sell),
                (INVENTORIES, (INVENTORIES,)),
            )
        ]
        stack.callback(lambda: stop_all([*self.generators, self.pipeline.program]))
        self._board = Board()
        self.follower = stack.enter_context(closing(BoardFollower(root, self._board)))
        check = stack.enter_context(closing(BatchCheck(root, self._checkpoints)))
        duckdb = stack.enter_context(closing(DuckDb(root)))
        self.check = Repeated[list[TopicVerdict]](check.run, [], CHECK_EVERY_S)
        self._asked = Repeated[dict[str, Any]](lambda: ask_all(duckdb, clock), {}, ASK_EVERY_S)
        stack.callback(self.check.close)
        stack.callback(self._asked.close)
        self._answers: dict[str, tuple[Freshness, dict[str, float]]] = {}
        self._history: deque[dict[str, object]] = deque(maxlen=HISTORY)

    def watch(self) -> None:
        """Look after the programs, and take in what they have printed. Raises SystemExit if one has
        failed.
        """
        for program in self.generators:
            program.check()
        for line in self.pipeline.watch():
            if line.startswith("{"):
                self._note("Spark SQL", json.loads(line))
        self.check.turn()
        if self._asked.turn():
            self._note("DuckDB", self._asked.result)

    def _note(self, engine: str, asked: dict[str, Any]) -> None:
        freshness, _ = self._answers.setdefault(engine, (Freshness(), {}))
        for age_s in asked["ages_s"].values():
            freshness.add(age_s)
        self._answers[engine] = freshness, asked["ms"]

    def state(self) -> dict[str, Any]:
        """Everything that the page shows."""
        lags = self._lags()
        behind = max(lags.values())
        self._history.append({"behind": behind, "state": self.pipeline.state})
        pipeline = self.pipeline
        return {
            "time": self._clock.now().isoformat(),
            "speed": self._clock.speed,
            "programs": [
                *({"name": program.name, "state": program.state} for program in self.generators),
                {"name": "pipeline", "state": pipeline.state},
            ],
            "pipeline": {
                "state": pipeline.state,
                "for_s": round(pipeline.for_s),
                "kills": pipeline.kills,
            },
            "behind": behind,
            "lags": lags,
            "history": list(self._history),
            "freshness": [
                self._shown(engine, *answers) for engine, answers in sorted(self._answers.items())
            ],
            "check": shown(self.check.result),
            **self._board.shown(),
        }

    def _lags(self) -> dict[str, int]:
        """How many messages of the tills each query has not read."""
        read = dict.fromkeys((ENRICHED, RUNNING_TOTALS, WINDOWS), 0)
        for name in read:
            checkpoint = self._checkpoints / name
            if (batch_id := newest_batch(checkpoint)) is not None:
                read[name] = sum((read_until(checkpoint, batch_id) or {}).values())
        # Asked last: a query has not read more than there is.
        produced = sum(partition.next_offset for partition in self._purchases.describe().partitions)
        return {name: produced - offset for name, offset in read.items()}

    @staticmethod
    def _shown(engine: str, freshness: Freshness, took_ms: dict[str, float]) -> dict[str, object]:
        percentiles = {f"p{percent}_s": freshness.percentile(percent) for percent in (50, 99)}
        return {"engine": engine, **percentiles, "took_ms": took_ms}


def equals(verdicts: list[TopicVerdict]) -> bool | None:
    """Whether the stream equals the batch; None while a topic is empty."""
    if len(verdicts) < len(COMPARISONS):
        return None
    return not any(verdict.differences for verdict in verdicts)


def shown(verdicts: list[TopicVerdict]) -> dict[str, object]:
    """The verdicts for the page."""
    return {
        "equal": equals(verdicts),
        "purchases": min((verdict.purchases for verdict in verdicts), default=0),
        "topics": [asdict(verdict) for verdict in verdicts],
    }


def run(
    shop: Shop, page: LivePage, kill: threading.Event, stopping: threading.Event, seconds: float
) -> None:
    """Refresh the page until the time is over or `stopping` is set."""
    end_at = time.monotonic() + seconds
    publish_at = time.monotonic()
    while not stopping.is_set() and (now := time.monotonic()) < end_at:
        if kill.is_set():
            kill.clear()
            shop.pipeline.kill()
            publish_at = now
        shop.watch()
        if now >= publish_at:
            page.publish(shop.state())
            publish_at = now + REFRESH_S
        shop.follower.follow(TICK_S)


def report(verdicts: Iterable[TopicVerdict], pipeline: str, kills: int) -> None:
    """Print how it ended, with `pipeline` in this state."""
    found = list(verdicts)
    if (equal := equals(found)) is None:
        why = (
            "Spark had not started"
            if pipeline == "starting"
            else "Spark had not written to every topic"
        )
        outcome = f"was not compared with the batch: {why}"
    else:
        read = min(verdict.purchases for verdict in found)
        outcome = f"{'equals' if equal else 'DIFFERS FROM'} the batch over {read:,} purchases"
    print(f"\nthe stream {outcome}; the pipeline was killed {kills} times")


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__, root=None)
    parser.add_argument("--port", type=int, default=0, help="of the page; 0 chooses a free one")
    parser.add_argument(
        "--speed", type=float, default=60.0, help="how fast the time in the shop passes"
    )
    parser.add_argument("--seed", type=int, default=None, help="sell the same in every run")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    args = parser.parse_args()

    stopping, kill = threading.Event(), threading.Event()
    on_stop(stopping.set, until_eof=False)
    signal.signal(signal.SIGHUP, lambda *_: stopping.set())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltaq-shop-")))
        root = own_root(str(Path(args.root or folder).absolute()), "shop")
        page = stack.enter_context(closing(LivePage(PAGE, args.port, kill.set)))
        print(
            f"{page.url}\ntopics in {root}; Spark takes half a minute to start; Ctrl-C ends the "
            "shop",
            flush=True,
        )
        shop = Shop(root, folder, ShopClock(datetime.now(UTC), args.speed), args.seed, stack)
        run(shop, page, kill, stopping, args.seconds)
        report(shop.check.result, shop.pipeline.state, shop.pipeline.kills)


if __name__ == "__main__":
    main()
