"""`make shop`: the page in a browser, and the button that kills the pipeline: nothing is doubled or
stays behind.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples import _programs
from examples._page import LivePage
from examples._programs import FAILURES_MAX, RestartedProgram
from examples.shop.board import Board
from examples.shop.check import COMPARISONS, TopicVerdict
from examples.shop.demo import PAGE, report, shown
from examples.shop.layout import DEAD_LETTERS, ENRICHED, PURCHASES, RUNNING_TOTALS, WINDOWS, topics
from tests.children import NEED_NUMPY
from tests.examples.browser import open_tab
from tests.examples.replica_harness import REPOSITORY, until
from tests.examples.shop_oracle import OracleMessage, purchases

HOSTILE = "<img src=x onerror=alert(1)>\"'&</script><b>"
NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def hostile_state() -> dict[str, Any]:
    """A state in which every text that comes from a topic is hostile."""
    board = Board()
    for minute in (1, 2):
        at = NOW.replace(minute=minute)
        sale = {
            "product_id": HOSTILE,
            "product_name": HOSTILE,
            "transaction_timestamp": at,
            "total_purchase": Decimal(1),
        }
        board.add(ENRICHED, NOW, sale, ())
    sums = {"product_id": HOSTILE, "transactions": 1, "quantities": 2, "sales": Decimal("1.00")}
    board.add(RUNNING_TOTALS, NOW, sums, ())
    board.add(WINDOWS, NOW, sums | {"window_start": NOW}, ())
    board.add(DEAD_LETTERS, NOW, HOSTILE.encode(), [("reason", HOSTILE.encode())])
    board.add(DEAD_LETTERS, NOW, b"\xff\xfe\x00", [("reason", None)])
    return {
        "time": NOW.isoformat(),
        "speed": 60.0,
        "programs": [{"name": HOSTILE, "state": "running"}],
        "pipeline": {"state": "running", "for_s": 1, "kills": 0},
        "behind": 1,
        "lags": {ENRICHED: 1},
        "history": [{"behind": 1, "state": "running"}] * 2,
        "freshness": [{"engine": HOSTILE, "p50_s": 1.0, "p99_s": None, "took_ms": {HOSTILE: 1}}],
        "check": shown([TopicVerdict(HOSTILE, 1, 5, 1)] * len(COMPARISONS)),
        **board.shown(),
    }


def asked(page: LivePage, method: str, path: str, **headers: str) -> int:
    """The status of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=30)
    with closing(connection):
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


def test_only_the_page_itself_can_kill_the_pipeline() -> None:
    killed = threading.Event()
    with closing(LivePage(PAGE, 0, killed.set)) as page:
        here = f"127.0.0.1:{page.server_port}"
        assert asked(page, "POST", "/kill") == 403
        assert asked(page, "POST", "/kill", Origin="http://evil.example") == 403
        assert (
            asked(page, "POST", "/kill", Origin="http://evil.example", Host="evil.example") == 403
        )
        assert asked(page, "GET", "/kill", Origin=f"http://{here}") == 404
        assert not killed.is_set()
        assert asked(page, "POST", "/kill", Origin=f"http://{here}") == 204
        assert killed.is_set()


def test_the_server_serves_three_files_and_to_no_other_host() -> None:
    with closing(LivePage(PAGE, 0, lambda: None)) as page:
        assert {asked(page, "GET", path) for path in ("/", "/page.css", "/page.js")} == {200}
        assert {
            asked(page, "GET", path) for path in ("/demo.py", "/../demo.py", "/page/page.css")
        } == {404}
        assert asked(page, "GET", "/", Host="evil.example") == 403
        assert asked(page, "GET", "/events", Host="evil.example") == 403


def test_a_pipeline_that_never_comes_up_ends_the_demo_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no Java >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(_programs, "DEAD_S", 0.0)
    pipeline = RestartedProgram("shop.pipeline", "pipeline", tmp_path, ready="up")

    with pytest.raises(SystemExit) as end:
        until(lambda: pipeline.watch() and False, "the end of the demo")
    assert str(end.value) == "the pipeline failed:\n" + "no Java\n" * FAILURES_MAX
    # Its last process has been waited for, and our pipe to it closed.
    assert pipeline.state == "dead"


@pytest.mark.chromium
def test_hostile_text_is_shown_as_text() -> None:
    with closing(LivePage(PAGE, 0, lambda: None)) as page, open_tab() as tab:
        page.publish(hostile_state())
        tab.open(page.url)
        tab.until("document.querySelector('#verdict.differs')")
        for place in (
            "#programs li",
            "#top .name",
            "#letters li:nth-child(2) code",
            "#engines td",
            "#checked td",
        ):
            assert HOSTILE in tab.text(place)
        assert tab.text("#letters li:nth-child(2)").startswith(HOSTILE)
        assert tab.value("document.querySelectorAll('img, b:not([id])').length") == 0
        assert tab.errors == []


@pytest.fixture
def marker() -> str:
    return f"shop-{uuid.uuid4().hex}"


@pytest.fixture
def demo(tmp_path: Path, marker: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "examples.shop.demo",
        "--root",
        str(tmp_path / "topics"),
        "--seed",
        "3",
    ]
    environment = {
        **os.environ,
        **NEED_NUMPY,
        "DELTAQ_TEST_MARKER": marker,
        "TMPDIR": str(tmp_path),
    }
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def processes_with(marker: str) -> list[str]:
    """The processes that have inherited the marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def test_a_demo_that_ends_before_spark_has_started_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report([], "starting", 0)
    assert "was not compared with the batch: Spark had not started; " in capsys.readouterr().out
    report([TopicVerdict(topic, 1, 7, 0) for topic in COMPARISONS], "running", 1)
    assert "the stream equals the batch over 7 purchases; " in capsys.readouterr().out


IS_RUNNING = "document.querySelector('#programs li:last-child')?.className == 'running'"
COVERED = "Number(document.getElementById('verdict').dataset.purchases)"
BEHIND = "Number(document.getElementById('behind').textContent.replaceAll(',', ''))"
CHARTS = (
    "#minutes polyline",
    "#history polyline",
    "#windows rect.bar",
    "#top li rect",
    "#engines td",
)
LONG_S = 180.0
"""For a Spark to start on a busy machine."""


@pytest.mark.spark
@pytest.mark.chromium
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_killed_pipeline_comes_back_and_doubles_nothing(
    demo: subprocess.Popen[str], tmp_path: Path, marker: str
) -> None:
    assert demo.stdout is not None
    url = demo.stdout.readline().strip()
    with open_tab() as tab:
        tab.open(url)
        tab.until("document.querySelector('#verdict.equal')", LONG_S)
        tab.until(IS_RUNNING, LONG_S)
        for chart in CHARTS:
            tab.until(f"document.querySelector('{chart}')")
        tab.value("document.getElementById('kill').click()")
        tab.until("document.querySelector('#programs li.dead')")
        sent_before = tab.value(f"{COVERED} + {BEHIND}")
        tab.until(IS_RUNNING, LONG_S)
        tab.until(f"{COVERED} > {sent_before}", LONG_S)
        tab.until("document.querySelector('#verdict.equal')")
        assert "Killed once" in tab.text("#pipeline")
        assert tab.errors == []
        assert [request for request in tab.requests if not request.startswith((url, "data:"))] == []
    demo.send_signal(signal.SIGINT)
    printed, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0
    assert re.search(
        r"the stream equals the batch over [\d,]+ purchases; the pipeline was killed 1 times",
        printed,
    )
    until(lambda: processes_with(marker) == [], "the end of all processes")
    (root,) = (tmp_path / "topics").iterdir()
    assert_nothing_is_doubled_or_made_up(str(root))


def assert_nothing_is_doubled_or_made_up(root: str) -> None:
    """Compare the enriched purchases with those of the tills."""
    found = topics(root)
    rows = found[PURCHASES].to_arrow().to_pylist()
    sent = [
        OracleMessage(int(row["_timestamp"].timestamp() * 1000), row["_key"].decode(), row["value"])
        for row in rows
    ]
    sold = {(p.fields["transaction_id"], p.fields["product_id"]): p for p in purchases(sent)}
    enriched = [
        (row["transaction_id"], row["product_id"]) for row in found[ENRICHED].to_arrow().to_pylist()
    ]
    assert len(enriched) == len(set(enriched))
    assert set(enriched) <= set(sold)
