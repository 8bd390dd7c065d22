"""The screens of the console, on data that look alive. `python -m tests.unit.console.screens`
renews those of docs/.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from deltaq import AdminClient, Consumer, Producer, ShareConsumer, Topic
from deltaq.views import Views
from tests.doubles.sharing import set_group
from tests.examples.browser import Tab, open_tab
from tests.unit.console.conftest import TOKEN, made, served

PICTURES = Path(__file__).resolve().parents[3] / "docs/guides/console"
SCREENS = (
    "overview",
    "overview-dark",
    "topic",
    "messages",
    "group",
    "queue",
    "views",
    "maintenance",
    "cost",
    "change",
)
DRINKS = ("tea", "coffee", "mate", "cocoa", "water")


def fill(root: str) -> None:
    """Topics of several kinds, some with a past."""
    Topic("orders", partitions=6, bootstrap_servers=root).create()
    columns = pa.schema({"id": pa.int64(), "item": pa.string(), "cents": pa.int64()})
    payments = Topic("payments", columns, partitions=3, bootstrap_servers=root).create()
    Topic(
        "customers", partitions=2, config={"cleanup.policy": "compact"}, bootstrap_servers=root
    ).create()
    Topic(
        "page-views", partitions=12, config={"retention.ms": 86_400_000}, bootstrap_servers=root
    ).create()
    Topic("mails", partitions=2, bootstrap_servers=root).create()
    with AdminClient(bootstrap_servers=root) as admin:
        set_group(admin, "mailers", share_auto_offset_reset="earliest")
        set_group(admin, "mailers", errors_deadletterqueue_topic_name="dlq.mails")
    with Producer(bootstrap_servers=root, maintenance_enable=False) as producer:
        for number in range(400):
            producer.produce(
                payments, {"id": number, "item": DRINKS[number % 5], "cents": 150 + number}
            )
            producer.produce(
                "customers", f"customer {number % 40}".encode(), key=b"%d" % (number % 40)
            )
            producer.produce("page-views", b"/drinks/%d" % number, key=b"%d" % (number % 97))
            if number % 10 == 0:
                producer.flush()
    views = Views("drinks", root)
    views.view("sales", "SELECT item, sum(cents) AS cents, count(*) AS n FROM payments GROUP BY 1")
    views.view("total", "SELECT sum(cents) AS cents FROM sales")
    views.view(
        "shares", "SELECT item, sales.cents / total.cents AS share FROM sales, total", key="item"
    )
    views.run(until="now")


@contextmanager
def living(root: str) -> Iterator[None]:
    """Within it, orders come in waves, and two groups read them: one keeps up, one does not. The
    workers of a queue send mails about some of them.
    """
    stop = threading.Event()

    def produce() -> None:
        with Producer(bootstrap_servers=root, linger_ms=10, maintenance_enable=False) as producer:
            number = 0
            while not stop.is_set():
                for _ in range(round(60 + 40 * math.sin(time.monotonic() * 1.7))):
                    number += 1
                    order = {"order": number, "item": DRINKS[number % 5], "cups": 1 + number % 3}
                    headers = {"source": b"till %d" % (number % 4)}
                    producer.produce(
                        "orders", json.dumps(order), key=f"customer-{number % 50}", headers=headers
                    )
                producer.produce("mails", b"order %d" % number, partition=number % 2)
                producer.poll(0)
                stop.wait(0.05)

    def consume(group: str, pause_s: float, client: str) -> None:
        conf = {
            "bootstrap.servers": root,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "client.id": client,
        }
        with Consumer({**conf, "auto.commit.interval.ms": 200}) as consumer:
            consumer.subscribe(["orders"])
            while not stop.is_set():
                consumer.consume(50 if pause_s else 500, timeout=0.1)
                stop.wait(pause_s)

    def send(client: str) -> None:
        conf = {"bootstrap.servers": root, "group.id": "mailers", "client.id": client}
        with ShareConsumer(conf, max_poll_records=5) as worker:
            worker.subscribe(["mails"])
            while not stop.is_set():
                for message in worker.poll(0.1):
                    if (message.offset() or 0) % 40 == 7:
                        worker.reject(message, error=LookupError("no such address"))
                    elif (message.offset() or 0) % 25 == 3 and message.delivery_count() == 1:
                        worker.release(message, delay=30, error=OSError("mailbox full"))
                stop.wait(0.6)

    work = [threading.Thread(target=produce)]
    work += [
        threading.Thread(target=consume, args=("billing", 0.0, f"billing-{at}")) for at in range(2)
    ]
    work += [threading.Thread(target=consume, args=("fraud-check", 0.08, "fraud-check"))]
    work += [threading.Thread(target=send, args=(f"mailer-{at}",)) for at in range(3)]
    with ExitStack() as ends:
        for thread in work:
            thread.start()
            ends.callback(thread.join)
        ends.callback(stop.set)
        yield


def take(tab: Tab, url: str, folder: Path, points: int) -> None:
    """Take a picture of each screen. Charts have this many points at least."""
    home = f"{url}/roots/0"

    def picture(
        name: str, path: str, condition: str, *, height: int = 760, is_dark: bool = False
    ) -> None:
        tab.open(home + path, width=1120, height=height, is_dark=is_dark)
        tab.until(condition)
        tab.picture(folder / f"{name}.png")

    drawn = (
        f"document.querySelector('#live .tile .spark polyline')?.points.length >= {min(points, 60)}"
    )
    charted = f"document.querySelector('#live .chart polyline')?.points.length >= {points}"
    picture("overview", "", drawn, height=900)
    picture("overview-dark", "", drawn, height=900, is_dark=True)
    picture("topic", "/topics/orders", charted)
    picture(
        "messages",
        "/topics/orders/messages?count=10",
        "document.querySelectorAll('.messages tbody tr').length == 10",
    )
    picture("group", "/groups/fraud-check", charted)
    picture(
        "queue",
        "/queues/mailers",
        "document.querySelectorAll('#live section:last-child tbody code').length == 3",
        height=680,
    )
    picture("views", "/views/drinks/check?view=sales", "document.querySelector('.notice.equal')")
    picture("maintenance", "/maintenance", "document.querySelector('.lines, .muted')", height=620)
    picture("cost", "/cost", charted)
    tab.open(f"{url}/sign-in")
    tab.until("document.querySelector('input[type=password]')")
    tab.value(f"document.querySelector('input[type=password]').value = {json.dumps(TOKEN)}")
    tab.value("document.querySelector('.sign-in button').click()")
    tab.until("document.querySelector('.form summary')")
    tab.value(
        "document.querySelector('.form').open = true; window.scrollTo(0, "
        "document.body.scrollHeight)"
    )
    tab.picture(folder / "change.png")


if __name__ == "__main__":
    root = "memory://drinks"
    fill(root)
    console = made(root, may_write=True, token=TOKEN, interval_s=0.15)
    with living(root), served(console) as url, open_tab() as tab:
        take(tab, url, PICTURES, 60)
