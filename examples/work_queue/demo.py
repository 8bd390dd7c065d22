"""Run a clerk who writes mails and workers that send them, and show the queue."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from deltaq import AdminClient, Consumer, TopicPartition
from examples._programs import Program, own_root, parser_of, stop_all
from examples.work_queue.layout import GROUP, PARTITIONS, create, dead_mails, mails, sent_mails
from examples.work_queue.table import QueueState, render

REFRESH_S = 0.5
DRAIN_S = 60.0


class QueueObserver:
    """Looks at the queue and at what was sent, as any other program could."""

    def __init__(self, root: str) -> None:
        self._admin = AdminClient(bootstrap_servers=root)
        self._mails = mails(root).name
        self._sent: Consumer[Any, Any] = Consumer(
            bootstrap_servers=root,
            group_id="observer",
            enable_auto_commit=False,
            topics=[sent_mails(root)],
        )
        self._outbox = TopicPartition(sent_mails(root).name, 0, 0)
        self._sent.assign([self._outbox])
        self._next = 0
        self._numbers: dict[int, int] = {}

    def observe(self) -> QueueState:
        """The present state. A mail that was sent twice counts once."""
        ends = [
            self._sent.get_watermark_offsets(TopicPartition(self._mails, partition))[1]
            for partition in range(PARTITIONS)
        ]
        about = self._admin.describe_share_groups([GROUP])[GROUP].result()
        # After the group: a mail that is finished is in the outbox.
        self._read_sent()
        sent = dict(Counter(self._numbers.values()))
        return QueueState(about, sum(ends), sent, round(time.time() * 1000))

    def _read_sent(self) -> None:
        """Read to the end of the outbox."""
        _, end = self._sent.get_watermark_offsets(self._outbox)
        while self._next < end:
            for message in self._sent.consume(end - self._next, 1):
                self._numbers.setdefault(message.value().number, message.value().delivery)
                self._next += 1

    def close(self) -> None:
        """End the clients."""
        self._sent.close()


def show(observer: QueueObserver, programs: list[Program], live: Live, end_at: float) -> QueueState:
    """Refresh the table until a time, or until all is done; return the last state."""
    while True:
        for program in programs:
            program.check()
        state = observer.observe()
        live.update(render(state, [(each.name, each.state) for each in programs]), refresh=True)
        is_done = programs[0].state != "running" and state.about.lag == 0
        if is_done or time.monotonic() >= end_at:
            return state
        time.sleep(REFRESH_S)


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__, root=None)
    parser.add_argument("--workers", type=int, default=3, help="how many send mails")
    parser.add_argument("--rate", type=float, default=50, help="mails per second")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="write for so long")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltaq-mails-")))
            root = own_root(args.root or str(folder), "work-queue")
            create(root)
            place = ("--until-eof", "--root", root)
            clerk = Program("work_queue.clerk", "clerk", folder, *place, "--rate", str(args.rate))
            workers = [
                Program("work_queue.mailer", f"mailer-{number}", folder, *place)
                for number in range(1, args.workers + 1)
            ]
            stack.callback(stop_all, [clerk, *workers])
            observer = QueueObserver(root)
            stack.callback(observer.close)
            live = stack.enter_context(Live(console=Console(), auto_refresh=False))
            show(observer, [clerk, *workers], live, time.monotonic() + args.seconds)
            clerk.stop()
            last = show(observer, [clerk, *workers], live, time.monotonic() + DRAIN_S)
            dead = sum(dead_mails(root).describe().next_offsets.values())
            if args.root:
                live.console.print(f"root {root}", soft_wrap=True, markup=False)
            live.console.print(
                f"\n{last.written:,} mails written, {sum(last.sent.values()):,} sent, "
                f"{last.about.lag:,} not finished, {dead:,} dead letters"
            )
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


if __name__ == "__main__":
    main()
