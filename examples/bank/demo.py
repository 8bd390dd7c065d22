"""Run a bank whose total is zero, and serve a page that shows it and can kill the runner of its
views.

The page shows the total of a naive consumer, and that of the view. Each tick of the views is
compared with plain Python.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from examples._page import LivePage
from examples._programs import Program, RestartedProgram, on_stop, own_root, parser_of, stop_all
from examples.bank.audit import AuditedTick, Auditor
from examples.bank.layout import transactions
from examples.bank.naive import NaiveConsumer
from examples.bank.runner import READY

PAGE = Path(__file__).parent / "page"
PAUSE_S, PUBLISH_S, DEAD_S = 0.05, 0.5, 1.0
SHOWN_S = 60
"""Seconds that the charts show."""

KEPT = 1000
"""Points of a chart that are kept."""

CATCH_UP_S = 60.0
"""How long the views may take at the end to cover all transactions."""


class Bank:
    """The programs, and what is known of them."""

    def __init__(
        self, root: str, folder: Path, rate: int, every: float, seed: int, stack: ExitStack
    ) -> None:
        self._root = root
        transactions(root)
        child = ("--until-eof", "--root", root)
        self.runner = RestartedProgram(
            "bank.runner",
            "runner",
            folder,
            *child,
            "--every",
            str(every),
            ready=READY,
            dead_s=DEAD_S,
        )
        self.teller = Program(
            "bank.teller", "teller", folder, *child, "--rate", str(rate), "--seed", str(seed)
        )
        stack.callback(lambda: stop_all([self.teller, self.runner.program]))
        self._stack = stack
        self.auditor = Auditor(root)
        self.naive: NaiveConsumer | None = None
        self.ticks = 0
        self.differing: list[AuditedTick] = []
        self._points = deque[tuple[float, int | None]](maxlen=KEPT)
        self._dead = deque[list[float]](maxlen=KEPT)

    def watch(self) -> bool:
        """Look after the programs, and compare the next tick; whether there was one. Raises
        SystemExit if a program has ended by itself.
        """
        self.teller.check()
        return self._watch_views()

    def _watch_views(self) -> bool:
        self.runner.watch()
        self.runner.program.check()
        self._note_death()
        return self.compare()

    def _note_death(self) -> None:
        """Note from when until when there was no runner."""
        if self.runner.state == "running":
            return
        now = time.time()
        if not self._dead or now - self._dead[-1][1] > 1:
            self._dead.append([now, now])
        self._dead[-1][1] = now

    def compare(self) -> bool:
        """Compare the next tick; whether there was one."""
        tick = self.auditor.next()
        if tick is None:
            return False
        self.ticks += 1
        if tick.differing:
            self.differing.append(tick)
        self._points.append((tick.time_ms / 1000, tick.total))
        if self.naive is None:  # its topics exist now
            self.naive = self._stack.enter_context(closing(NaiveConsumer(self._root, KEPT)))
        self.naive.check()
        return True

    def state(self) -> dict[str, object]:
        """Everything that the page shows."""
        naive, runner = self.naive, self.runner
        return {
            "now": time.time(),
            "shown_s": SHOWN_S,
            "programs": [
                {"name": "teller", "state": self.teller.state},
                {"name": "runner", "state": runner.state},
            ],
            "runner": {"state": runner.state, "for_s": round(runner.for_s), "kills": runner.kills},
            "transactions": self.auditor.transactions,
            "ticks": self.ticks,
            "differing": [{"tick": of.number, "views": of.differing} for of in self.differing[:5]],
            "looks": naive.looks if naive else 0,
            "wrong": naive.wrong if naive else 0,
            "worst": naive.worst if naive else 0,
            "naive": list(naive.points) if naive else [],
            "view": list(self._points),
            "dead": list(self._dead),
        }

    def finish(self) -> bool:
        """End the programs, as soon as the views cover all transactions; whether they did."""
        self.teller.stop()
        deadline = time.monotonic() + CATCH_UP_S
        while not self.auditor.covers_all() and time.monotonic() < deadline:
            if not self._watch_views():
                time.sleep(PAUSE_S)
        self.runner.program.stop()
        while self.compare():
            pass
        return self.auditor.covers_all()


def run(
    bank: Bank,
    page: LivePage,
    kill: threading.Event,
    stopping: threading.Event,
    seconds: float,
    kill_every: float,
) -> None:
    """Refresh the page until `seconds` have passed since the first tick, or `stopping` is set. Kill
    the runner when the button asks for it, and whenever it has run for `kill_every` seconds.
    """
    end_at, publish_at = float("inf"), time.monotonic()
    while not stopping.is_set() and (now := time.monotonic()) < end_at:
        if kill.is_set() or (bank.runner.state == "running" and bank.runner.for_s >= kill_every):
            kill.clear()
            bank.runner.kill()
            publish_at = now
        had_tick = bank.watch()
        if had_tick and end_at == float("inf"):
            end_at = now + seconds
        if now >= publish_at:
            page.publish(bank.state())
            publish_at = now + PUBLISH_S
        if not had_tick:
            stopping.wait(PAUSE_S)


def report(bank: Bank, is_whole: bool, differing: Sequence[str]) -> bool:
    """Print how it ended; whether each tick was right. `differing` are the views that differ from
    their SQL at the last tick.
    """
    naive, kills = bank.naive, bank.runner.kills
    print(f"\n{bank.auditor.transactions:,} transactions; the runner was killed {kills} times")
    if naive is not None:
        print(
            f"the naive consumer saw money that does not exist at {naive.wrong:,} of "
            f"{naive.looks:,} looks, up to {naive.worst:,}"
        )
    for tick in bank.differing[:5]:
        print(f"tick {tick.number} DIFFERS from plain Python: {', '.join(tick.differing)}")
    if differing:
        print(f"the last tick DIFFERS from its SQL: {', '.join(differing)}")
    if not is_whole:
        print("the views do NOT cover all transactions")
    is_right = is_whole and not bank.differing and not differing
    if is_right:
        print(f"{bank.ticks:,} ticks without a gap: each equals plain Python over its offsets")
    return is_right


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__, root=None)
    parser.add_argument("--port", type=int, default=0, help="of the page; 0 chooses a free one")
    parser.add_argument("--rate", type=int, default=1000, help="transactions a second")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two ticks")
    parser.add_argument("--seed", type=int, default=42, help="draw these transactions")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument(
        "--kill-every",
        type=float,
        default=float("inf"),
        help="kill the runner whenever it has run for this time, in seconds",
    )
    args = parser.parse_args()

    stopping, kill = threading.Event(), threading.Event()
    on_stop(stopping.set, until_eof=False)
    signal.signal(signal.SIGHUP, lambda *_: stopping.set())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltaq-bank-")))
        root = own_root(args.root or str(folder), "bank")
        page = stack.enter_context(closing(LivePage(PAGE, args.port, kill.set)))
        print(f"{page.url}\ntopics in {root}; Ctrl-C closes the bank", flush=True)
        bank = Bank(root, folder, args.rate, args.every, args.seed, stack)
        run(bank, page, kill, stopping, args.seconds, args.kill_every)
        is_whole = bank.finish()
        is_right = report(bank, is_whole, bank.auditor.check() if bank.ticks else [])
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
