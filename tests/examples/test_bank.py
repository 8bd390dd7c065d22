"""`make bank`: each tick of its views equals plain Python, a wrong one is found, and a killed
runner comes back.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from deltaq import Message, Producer
from deltaq.errors import InvalidConfig, KafkaError, UnknownTopic
from examples._page import LivePage
from examples.bank import demo
from examples.bank.audit import AuditedTick, Auditor, PlainSums, PublishedViews
from examples.bank.demo import PAGE, Bank, report, run
from examples.bank.layout import ACCOUNTS, bank_views, transactions
from examples.bank.naive import NaiveConsumer, NaiveTotal
from examples.bank.teller import LATE_S, arriving
from tests.examples.browser import open_tab
from tests.examples.replica_harness import REPOSITORY, until
from tests.examples.test_shop_page import processes_with

TRANSFER = {"from_account": 1, "to_account": 2, "amount": 1}


# --- the teller ---


def test_transactions_come_in_up_to_ten_seconds_late_and_none_is_lost() -> None:
    seconds = list(islice(arriving(Random(42), 50), 60))
    for now, come in enumerate(seconds):
        assert all(now - LATE_S <= found["second"] <= now for found in come)
    found = [transaction for come in seconds for transaction in come]
    late_enough = [of["id"] for of in found if of["id"] < 50 * (60 - LATE_S)]
    assert sorted(late_enough) == list(range(50 * (60 - LATE_S)))
    assert late_enough != sorted(late_enough)
    accounts = set(range(ACCOUNTS))
    assert {of["from_account"] for of in found} == {of["to_account"] for of in found} == accounts
    assert seconds == list(islice(arriving(Random(42), 50), 60))


# --- the audit ---


def test_the_batch_counts_accounts_that_are_on_both_sides() -> None:
    batch = PlainSums()
    assert batch.rows()["total"] == Counter([(None,)])
    batch.add([TRANSFER, {"from_account": 2, "to_account": 2, "amount": 5}])
    assert batch.count == 2
    assert batch.rows() == {
        "credits": Counter([(2, 6)]),
        "debits": Counter([(1, 1), (2, 5)]),
        "balance": Counter([(2, 1)]),
        "total": Counter([(1,)]),
    }
    batch.add([{"from_account": 2, "to_account": 1, "amount": 3}])
    assert batch.total == 0


def test_a_row_is_replaced_by_its_key_and_removed_by_a_tombstone() -> None:
    published = PublishedViews()
    for tick, total in ((1, None), (2, 5)):
        row = {"_key": b"[]", "_offset": tick, "total": total, "tick": tick}
        published.add("total", [row])
        assert published.total == total
    published.add("balance", [{"_key": b"[1]", "account": 1, "balance": 2, "tick": 1}])
    assert published.rows() == {"total": Counter([(5,)]), "balance": Counter([(1, 2)])}
    published.add("balance", [{"_key": b"[1]", "account": None, "balance": None, "tick": None}])
    assert published.rows()["balance"] == Counter()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A bank that is open, with no transaction yet."""
    transactions(str(tmp_path))
    return str(tmp_path)


def move(root: str, source: int, target: int) -> None:
    """A transaction, and a tick that covers it."""
    row = {"id": 0, "from_account": source, "to_account": target, "amount": 1, "second": 0}
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("transactions", row)
    bank_views(root).run(until="now")


def test_each_tick_is_compared_over_its_own_offsets(root: str) -> None:
    auditor = Auditor(root)
    assert auditor.next() is None
    assert not auditor.covers_all()
    bank_views(root).run(until="now")
    move(root, 1, 2)
    move(root, 2, 1)
    found = [auditor.next() for _ in range(4)]
    assert found[-1] is None
    ticks = [tick for tick in found if tick is not None]
    shown = [(tick.number, tick.total, tick.expected, tick.differing) for tick in ticks]
    assert shown == [(1, None, None, ()), (2, None, None, ()), (3, 0, 0, ())]
    assert auditor.transactions == 2
    assert auditor.covers_all()
    assert auditor.check() == []


def test_a_transaction_that_the_views_do_not_have_is_found_though_the_total_is_zero(
    root: str,
) -> None:
    auditor = Auditor(root)
    move(root, 1, 2)
    move(root, 2, 1)
    assert auditor.next() is not None
    # It goes from an account to itself.
    auditor._sums.add([TRANSFER | {"from_account": 2}])
    tick = auditor.next()
    assert tick is not None
    assert (tick.total, tick.expected) == (0, 0)
    assert tick.differing == ("credits", "debits")


def test_ticks_with_a_gap_end_the_demo(root: str) -> None:
    auditor, views = Auditor(root), bank_views(root)
    views.run(until="now")
    assert auditor.next() is not None
    last = views.last_tick()
    assert last is not None
    gap = replace(last, number=3)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("bank.ticks", gap.value(), gap.key)
    with pytest.raises(InvalidConfig, match="tick 2 of 'bank' is not kept"):
        auditor.next()


def test_a_view_that_differs_from_its_sql_is_named(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor = Auditor(root)
    monkeypatch.setattr(auditor._views, "check", lambda: [SimpleNamespace(view="total")])
    assert auditor.check() == ["total"]


# --- the naive consumer ---


def messages(side: str, amount: int) -> list[Message]:
    """A row of each account."""
    return [
        Message(f"bank.{side}", 0, account, value={side: amount}, key=b"[%d]" % account)
        for account in range(ACCOUNTS)
    ]


def test_sides_of_two_moments_show_money_that_does_not_exist() -> None:
    naive = NaiveTotal()
    naive.add("credits", messages("credits", 7))
    naive.add("debits", messages("debits", 7)[1:])
    assert naive.total is None  # an account has no debits yet, and the total need not be 0
    naive.add("debits", messages("debits", 7))
    assert naive.total == 0
    naive.add("credits", messages("credits", 9))
    assert naive.total == 20
    naive.add("debits", messages("debits", 9))
    assert naive.total == 0


def test_an_error_of_the_naive_consumer_ends_the_demo(tmp_path: Path) -> None:
    error = KafkaError(KafkaError._BAD_MSG, "damaged")
    with pytest.raises(SystemExit, match="cannot read debits: damaged"):
        NaiveTotal().add("debits", [Message("bank.debits", 0, 0, error=error)])
    consumer = NaiveConsumer(str(tmp_path), 10)
    with pytest.raises((SystemExit, UnknownTopic)):
        until(lambda: consumer.check(), "the end of the consumer")
    with pytest.raises((SystemExit, UnknownTopic)):
        consumer.close()


def test_looks_are_counted_and_the_last_are_kept(root: str) -> None:
    move(root, 1, 2)
    with closing(NaiveConsumer(root, 2)) as consumer:
        for total in (0, -5, 3):
            consumer.note(total)
        assert (consumer.looks, consumer.wrong, consumer.worst) == (3, 2, 5)
        assert [total for _, total in consumer.points] == [-5, 3]


# --- the demo ---


def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Programs run this script for a shell, in place of Python."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bank_of(root: str, stack: ExitStack) -> Bank:
    return Bank(root, Path(root), rate=100, every=0.1, seed=1, stack=stack)


@pytest.mark.parametrize("module", ["runner", "teller"])
def test_a_program_that_ends_by_itself_ends_the_demo_with_its_log(
    root: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    script = f"case $2 in *{module}) echo no money >&2; exit 1;; *) exec sleep 60;; esac"
    fake_python(Path(root), monkeypatch, script)
    bank = bank_of(root, stack)
    with pytest.raises(SystemExit, match=f"^{module} failed:\nno money"):
        until(lambda: bank.watch(), "the end of the demo")


def test_views_that_never_cover_all_transactions_fail_the_demo(
    root: str,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_python(Path(root), monkeypatch, "exec sleep 60")
    monkeypatch.setattr(demo, "CATCH_UP_S", 0.2)
    bank = bank_of(root, stack)
    assert not bank.finish()
    assert not report(bank, False, [])
    assert "the views do NOT cover all transactions" in capsys.readouterr().out


def test_ticks_that_are_left_at_the_end_are_compared(
    root: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(Path(root), monkeypatch, "exec sleep 60")
    monkeypatch.setattr(demo, "CATCH_UP_S", 0.0)
    bank = bank_of(root, stack)
    move(root, 1, 2)
    move(root, 2, 1)
    assert bank.finish()
    assert bank.ticks == 2
    assert bank.runner.program.state != "running"


def test_a_naive_consumer_that_fails_ends_the_demo(
    root: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(Path(root), monkeypatch, "exec sleep 60")
    bank = bank_of(root, stack)
    move(root, 1, 2)
    until(bank.compare, "the tick")
    move(root, 2, 1)

    def fail() -> None:
        raise SystemExit("cannot read credits")

    monkeypatch.setattr(bank.naive, "check", fail)
    with pytest.raises(SystemExit, match="cannot read credits"):
        bank.compare()


def test_only_right_ticks_that_cover_everything_are_a_success(
    root: str,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_python(Path(root), monkeypatch, "exec sleep 60")
    bank = bank_of(root, stack)
    assert json.loads(json.dumps(bank.state()))["looks"] == 0
    move(root, 1, 2)
    until(bank.watch, "the tick")
    assert bank.finish()
    assert report(bank, True, [])
    assert "1 ticks without a gap: each equals plain Python" in capsys.readouterr().out
    assert not report(bank, True, ["total"])
    assert "the last tick DIFFERS from its SQL: total" in capsys.readouterr().out
    bank.differing.append(AuditedTick(1, 0, 5, 0, ("balance", "total")))
    assert not report(bank, True, [])
    assert "tick 1 DIFFERS from plain Python: balance, total" in capsys.readouterr().out
    state = json.loads(json.dumps(bank.state()))
    assert state["differing"] == [{"tick": 1, "views": ["balance", "total"]}]
    assert [total for _, total in state["view"]] == [None]


def test_a_tick_that_differs_is_kept(
    root: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(Path(root), monkeypatch, "exec sleep 60")
    bank = bank_of(root, stack)
    bank.auditor._sums.add([TRANSFER])
    move(root, 1, 2)
    assert bank.compare()
    assert [tick.differing for tick in bank.differing] == [("credits", "debits")]


def test_a_killed_runner_comes_back_and_its_absence_is_shown(
    root: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(Path(root), monkeypatch, "echo the runner has come up; exec sleep 60")
    monkeypatch.setattr(demo, "DEAD_S", 0.1)
    bank = bank_of(root, stack)

    def watched(state: str) -> bool:
        bank.watch()
        return bank.runner.state == state

    until(lambda: watched("running"), "the runner")
    bank.watch()
    bank.runner.kill()
    until(lambda: watched("dead") or bank.runner.state == "starting", "its end")
    until(lambda: watched("running"), "the next runner")
    dead: Any = bank.state()["dead"]
    assert all(start <= end for start, end in dead)
    assert 1 <= len(dead) <= 2  # its start, and its death, in one or apart
    bank._dead.clear()
    bank._dead.append([1.0, 2.0])
    bank.runner.kill()
    bank.watch()
    bank.watch()
    assert bank._dead[0][0] == 1.0
    assert len(bank._dead) == 2
    assert bank.runner.kills == 2


class FakeBank:
    """A bank without programs, whose runner notes when it is killed."""

    def __init__(self, ticks: list[bool], stopping: threading.Event) -> None:
        self.runner = SimpleNamespace(state="running", for_s=5.0, kill=self._kill)
        self.kills = 0
        self._ticks = ticks
        self._stopping = stopping

    def _kill(self) -> None:
        self.kills += 1
        self.runner.for_s = 0.0

    def watch(self) -> bool:
        if not self._ticks:
            self._stopping.set()
            return False
        return self._ticks.pop(0)

    def state(self) -> dict[str, object]:
        return {}


def ran(ticks: list[bool], *, seconds: float, kill_every: float, is_asked: bool) -> FakeBank:
    stopping, kill = threading.Event(), threading.Event()
    if is_asked:
        kill.set()
    bank = FakeBank(ticks, stopping)
    as_bank: Any = bank
    page: Any = SimpleNamespace(publish=lambda _: None)
    run(as_bank, page, kill, stopping, seconds, kill_every)
    assert not kill.is_set()
    return bank


def test_the_time_of_the_demo_begins_with_the_first_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PAUSE_S", 0.0)
    never = float("inf")
    bank = ran([False, False, True, True, True], seconds=0.0, kill_every=never, is_asked=False)
    assert bank._ticks == [True, True]
    assert bank.kills == 0


def test_the_runner_is_killed_by_the_button_and_after_a_time() -> None:
    never = float("inf")
    assert ran([True] * 3, seconds=never, kill_every=never, is_asked=True).kills == 1
    assert ran([True] * 3, seconds=never, kill_every=5.0, is_asked=False).kills == 1


@pytest.mark.chromium
def test_the_page_shows_both_totals_and_what_differs() -> None:
    killed = threading.Event()
    state: dict[str, Any] = {
        "now": 1000.0,
        "shown_s": 60,
        "programs": [{"name": "teller", "state": "running"}],
        "runner": {"state": "running", "for_s": 3, "kills": 2},
        "transactions": 1234,
        "ticks": 2,
        "differing": [],
        "looks": 3,
        "wrong": 1,
        "worst": 70,
        "naive": [[990.0, 0], [991.0, -70], [992.0, 0]],
        "view": [[930.0, 5], [990.0, None], [991.0, 0], [992.0, 0]],
        "dead": [[930.0, 935.0], [980.0, 985.0]],
    }
    with closing(LivePage(PAGE, 0, killed.set)) as page, open_tab() as tab:
        page.publish(state)
        tab.open(page.url)
        tab.until("document.querySelector('#verdict.equal')")
        assert tab.value("document.querySelector('#naive polyline').points.length") == 3
        assert tab.value("document.querySelector('#view polyline').points.length") == 2
        assert tab.value("document.querySelectorAll('#view rect.dead-time').length") == 1
        for chart in ("naive", "view"):
            assert tab.value(f"document.querySelector('#{chart} text').textContent") == "-100"
        assert tab.text("#wrong") == "1"
        assert "Killed 2 times" in tab.text("#runner")
        tab.value("document.getElementById('kill').click()")
        until(killed.is_set, "the kill")
        page.publish(state | {"differing": [{"tick": 2, "views": ["<b>total</b>"]}]})
        tab.until("document.querySelector('#verdict.differs')")
        assert "tick 2: <b>total</b>" in tab.text("#verdict small")
        dead = {"state": "dead", "for_s": 0, "kills": 1}
        page.publish(state | {"ticks": 0, "view": [], "naive": [], "runner": dead})
        tab.until("document.querySelector('#verdict.waiting')")
        assert tab.value("document.getElementById('kill').disabled")
        assert "Killed once" in tab.text("#runner")
        assert tab.errors == []
        assert [
            request for request in tab.requests if not request.startswith((page.url, "data:"))
        ] == []


@pytest.mark.slow
def test_the_demo_ends_by_itself_with_a_summary_and_no_process(tmp_path: Path) -> None:
    marker = f"bank-{uuid.uuid4().hex}"
    arguments = ["--seconds", "3", "--kill-every", "0.8", "--every", "0.1", "--rate", "500"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.bank.demo", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "DELTAQ_TEST_MARKER": marker, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("http://127.0.0.1:")
    assert re.search(r"[1-9][\d,]* transactions; the runner was killed [1-9]", done.stdout)
    assert re.search(r"saw money that does not exist at [\d,]+ of [\d,]+ looks", done.stdout)
    assert re.search(r"[1-9]\d* ticks without a gap: each equals plain Python", done.stdout)
    until(lambda: processes_with(marker) == [], "the end of all processes")
    assert list(tmp_path.iterdir()) == []
