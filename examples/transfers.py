"""Money moves between two topics in transactions, while the program that moves it is killed again
and again. A page shows both balances: their sum never changes.

Each transfer is one message in each topic. `deltaq.cut` finds offsets of both topics that split no
transfer.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tempfile import TemporaryDirectory

import deltaq
from deltaq import Producer, Topic

ACCOUNTS = ("checking", "savings")
KILL_AFTER_S = 0.5
PAGE = """<!doctype html><meta charset="utf-8"><title>Transfers</title>
<style>body{font:20px system-ui;margin:3em;color-scheme:light dark}b{font-size:2em}</style>
<h1>Transfers</h1><p>checking <b id=checking></b> savings <b id=savings></b> sum <b id=sum></b>
<p><span id=transfers></span> transfers; their program was killed <span id=kills></span> times.
<script>setInterval(async()=>{const seen=await(await fetch("/state")).json()
for(const key in seen)document.getElementById(key).textContent=seen[key]},300)</script>"""


def move_money(root: str) -> None:
    """Move amounts for ever. Both messages of a transfer are written, or neither."""
    producer = Producer({"bootstrap.servers": root}, transactional_id="teller", linger_ms=0)
    producer.init_transactions()
    while True:
        amount = random.randint(1, 100)
        source, target = random.sample(ACCOUNTS, 2)
        with producer.transaction():
            producer.produce(source, str(-amount))
            producer.produce(target, str(amount))


def look(root: str) -> dict[str, int]:
    """Both balances, their sum and the number of transfers, at one cut."""
    conf = {"bootstrap.servers": root}
    at = deltaq.cut(ACCOUNTS, conf)
    amounts = {
        name: Topic(name, conf=conf).to_arrow(end=at[name])["value"].to_pylist()
        for name in ACCOUNTS
    }
    seen = {name: sum(map(int, of)) for name, of in amounts.items()}
    return {**seen, "sum": sum(seen.values()), "transfers": len(amounts["checking"])}


def serve(seen: dict[str, int]) -> str:
    """Serve a page that shows `seen`. Returns its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_state = self.path == "/state"
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if is_state else "text/html")
            self.end_headers()
            self.wfile.write((json.dumps(seen) if is_state else PAGE).encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def main() -> None:
    """Start the program that moves money, kill it every half second, and look at the balances."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long (default: 4)")
    parser.add_argument("--move", metavar="ROOT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.move:
        move_money(given.move)
    seen = {"sum": 0, "transfers": 0, "kills": 0, **dict.fromkeys(ACCOUNTS, 0)}
    print(f"see {serve(seen)}", flush=True)
    with TemporaryDirectory() as root:
        for account in ACCOUNTS:
            Topic(account, bootstrap_servers=root).create()
        until = time.monotonic() + given.seconds
        while time.monotonic() < until:
            command = [sys.executable, __file__, "--move", root]
            with subprocess.Popen(command) as teller:  # noqa: S603 - our own program
                before, killed_at = seen["transfers"], float("inf")
                while time.monotonic() < killed_at:
                    seen |= look(root)
                    if seen["sum"] != 0:
                        raise SystemExit(f"a transfer was torn: {seen}")
                    if seen["transfers"] > before:
                        killed_at = min(killed_at, time.monotonic() + KILL_AFTER_S)
                teller.kill()
            seen["kills"] += 1
    print(f"{seen['transfers']} transfers, {seen['kills']} kills, the sum was always 0")


if __name__ == "__main__":
    main()
