"""Live updates: one poller for all pages of a root, which ends with the last of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from deltaq import Producer, Topic
from deltaq.console.app import Console
from deltaq.console.poller import Poller
from deltaq.console.security import Sessions
from deltaq.console.server import ServerSettings, console_of
from deltaq.console.view import RootView
from deltaq.store import open_store
from deltaq.testing import ManualClock
from tests.doubles.reading import eventually
from tests.examples.browser import open_tab
from tests.unit.console.conftest import TOKEN, Stream, Streams, made, served, until
from tests.unit.console.screens import SCREENS, fill, living, take

COUNT = 50
PAGES = ("", "/topics/orders", "/groups", "/cost")


def last_event(stream: Stream) -> str:
    """The HTML of the newest event."""
    events = [
        line.removeprefix("data: ")
        for line in stream.text.splitlines()
        if line.startswith("data: ")
    ]
    text: str = json.loads(events[-1]) if events else ""
    return text


def test_fifty_pages_share_one_poller_and_closing_them_ends_it(memory_root: str) -> None:
    Topic("orders", bootstrap_servers=memory_root).create()
    console = made(memory_root, interval_s=0.01)
    poller = console.roots[0].poller

    async def open_pages() -> None:
        streams = Streams(console)
        opened = [
            streams.open("/roots/0/events", f"page={PAGES[at % len(PAGES)]}") for at in range(COUNT)
        ]
        await until(
            lambda: all("data: " in stream.text for stream, _, _ in opened), "an event on each page"
        )
        looks = poller.view().number
        assert len(console.streams) == COUNT
        assert poller.is_polling
        with Producer(bootstrap_servers=memory_root) as producer:
            producer.produce("orders", b"x")
        await until(lambda: ">1</td>" in last_event(opened[0][0]), "the message on the overview")
        # The looks of one poller, not of fifty: each look is one event of a page.
        seen = opened[0][0].text.count("data: ")
        assert seen <= poller.view().number + 1
        assert looks > 0
        for at, (stream, gone, _) in enumerate(opened):
            assert stream.status == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            if at:
                gone.set()
        await until(lambda: len(console.streams) == 1, "the end of all but one stream")
        assert poller.is_polling
        opened[0][1].set()
        await asyncio.wait_for(asyncio.gather(*(task for _, _, task in opened)), 30)

    asyncio.run(open_pages())
    assert not console.streams
    eventually(lambda: not poller.is_polling, "the end of the polling")
    assert poller._listeners == {}


def _has_two(seen: list[RootView]) -> bool:
    return len(seen) >= 2


def test_a_page_that_is_opened_again_starts_the_polling_again(memory_root: str) -> None:
    poller = Poller(open_store(memory_root), interval_s=0.005)
    for _ in range(3):
        seen: list[RootView] = []
        with poller.subscribed(seen.append):
            eventually(partial(_has_two, seen), "two looks")
        eventually(lambda: not poller.is_polling, "the end of the polling")


def test_charts_begin_when_a_page_is_opened(memory_root: str) -> None:
    poller = Poller(open_store(memory_root), interval_s=0.005)
    for _ in range(3):
        # Looks of pages without updates, or of Prometheus, are far apart.
        assert len(poller.view().lags) <= 1
    for _ in range(2):
        seen: list[RootView] = []
        with poller.subscribed(seen.append):
            eventually(partial(_has_two, seen), "two looks")
        eventually(lambda: not poller.is_polling, "the end of the polling")
        assert [len(view.lags) for view in seen] == list(range(1, len(seen) + 1))


def test_two_looks_at_one_tick_of_a_coarse_clock_are_no_problem(memory_root: str) -> None:
    poller = Poller(open_store(memory_root), ManualClock(), interval_s=0)
    assert [(view.number, view.problem) for view in (poller.view(), poller.view())] == [
        (1, ""),
        (2, ""),
    ]


def test_a_view_is_shared_within_the_interval(memory_root: str) -> None:
    poller = Poller(open_store(memory_root), interval_s=3600)
    assert poller.view() is poller.view()


def test_a_topic_that_is_deleted_is_said_to_be_gone_on_its_open_page(memory_root: str) -> None:
    topic = Topic("orders", bootstrap_servers=memory_root).create()
    console = made(memory_root, interval_s=0.01)

    async def watch() -> None:
        stream, gone, task = Streams(console).open("/roots/0/events", "page=/topics/orders")
        await until(lambda: "Partitions" in last_event(stream), "the topic")
        await asyncio.to_thread(topic.delete)
        await until(lambda: 'role="alert"' in last_event(stream), "the notice")
        gone.set()
        await task

    asyncio.run(watch())


def test_more_pages_than_there_may_be_get_no_events(
    memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.console.server.STREAMS_MAX", 2)
    console = made(memory_root)

    async def ask() -> list[int]:
        streams = Streams(console)
        opened = [streams.open("/roots/0/events", "page=") for _ in range(2)]
        await until(lambda: all(stream.text for stream, _, _ in opened), "the streams")
        opened.append(streams.open("/roots/0/events", "page="))
        refused = opened[-1][0]
        await until(lambda: refused.status, "the answer")
        for _, gone, _ in opened:
            gone.set()
        await asyncio.gather(*(task for _, _, task in opened))
        again, gone, task = streams.open("/roots/0/events", "page=")
        await until(lambda: again.text, "a stream in the place of those that ended")
        gone.set()
        await task
        return [refused.status, again.status]

    assert asyncio.run(ask()) == [503, 200]


class Watched:
    """A page that is open in a session of a console which shows nothing without the token."""

    def __init__(self, root: str) -> None:
        self.clock = ManualClock()
        self.console = console_of(
            [{"bootstrap.servers": root}],
            ServerSettings("192.0.2.1", token=TOKEN, hosts=["localhost"], interval_s=3600),
        )
        self.console.sessions = Sessions(TOKEN, self.clock)
        session = self.console.sessions.sign_in(TOKEN)
        assert session is not None
        self.session = session

    def text_after(self, end: Callable[[], object]) -> str:
        """What the page gets from the time of `end` on, until its stream ends."""

        async def watch() -> str:
            cookie = f"deltaq_session={self.session.id}"
            stream, _, task = Streams(self.console).open("/roots/0/events", "page=", cookie)
            await until(lambda: "data: " in stream.text, "the first view")
            before = len(stream.text)
            end()
            await asyncio.wait_for(task, 10)  # before the stream looks by itself
            return stream.text[before:]

        return asyncio.run(watch())


def test_the_events_of_a_page_end_when_its_session_is_signed_out(memory_root: str) -> None:
    page = Watched(memory_root)
    text = page.text_after(lambda: page.console.sign_out(page.session))
    assert text == "event: signed-out\ndata:\n\n"


def test_the_events_of_a_page_end_with_the_time_of_its_session(
    memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.console.app.KEEP_ALIVE_S", 0.01)
    page = Watched(memory_root)
    text = page.text_after(lambda: page.clock.advance(12 * 3600.0))
    assert text.endswith("event: signed-out\ndata:\n\n")
    assert "data: {" not in text
    assert 'data: "' not in text.partition("signed-out")[2]


@pytest.mark.parametrize(
    "page", ["/nothing", "/topics/", "/topics/a/messages", "/maintenance", "x", "//", "/groups/a/b"]
)
def test_only_live_pages_have_events(console: Console, page: str) -> None:
    async def ask() -> int:
        stream, _, task = Streams(console).open("/roots/0/events", f"page={page}")
        await task
        return stream.status

    assert asyncio.run(ask()) == 404


@pytest.mark.chromium
@pytest.mark.timeout(180)
def test_the_screens_are_live_in_a_browser_and_load_nothing_from_elsewhere(
    memory_root: str, tmp_path: Path
) -> None:
    fill(memory_root)
    hostile = (
        "<img src=x "
        "onerror=document.title='hacked'>\"'</pre><script>document.title='hacked'</script>"
    )
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("hostile", hostile, key=hostile, headers=[(hostile, hostile.encode())])
    console = made(memory_root, may_write=True, token="a-token-for-the-tests", interval_s=0.1)
    poller = console.roots[0].poller
    with living(memory_root), served(console) as url, open_tab() as tab:
        take(tab, url, tmp_path, 8)
        tab.open(f"{url}/roots/0/topics/hostile/messages")
        tab.until("document.querySelector('.messages .value pre')")
        assert tab.text(".messages .value pre") == hostile
        assert tab.value("document.title") == "hostile: messages"
        assert tab.value("document.querySelectorAll('main img, main script').length") == 0
        assert tab.errors == []
        assert [request for request in tab.requests if not request.startswith(url)] == []
        eventually(lambda: not poller.is_polling, "the end of the polling, as no live page is open")
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == sorted(SCREENS)
    assert all(path.stat().st_size > 5_000 for path in tmp_path.glob("*.png"))
