"""The work queue: each mail is sent, or refused by its address; the table; the demo."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from deltaq import AdminClient, Consumer, Producer, TopicPartition
from deltaq.admin import ConsumerGroupState, ShareGroupDescription, SharePartitionDescription
from examples.work_queue import layout
from examples.work_queue.address_book import FlakyAddressBook
from examples.work_queue.clerk import mail_of
from examples.work_queue.layout import GROUP, create, dead_mails, mails, sent_mails
from examples.work_queue.mailer import Mailer
from examples.work_queue.table import QueueState, render
from tests.doubles.reading import eventually

ROOT = Path(__file__).resolve().parents[2]


class FirstFails(random.Random):
    """Each question fails as long as less than `failures` were asked."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._left = failures

    def random(self) -> float:
        self._left -= 1
        return 0.0 if self._left >= 0 else 1.0


@pytest.fixture
def write(memory_root: str) -> Callable[[int], None]:
    create(memory_root)

    def write(count: int) -> None:
        with Producer(bootstrap_servers=memory_root) as producer:
            for number in range(1, count + 1):
                producer.produce(mails(memory_root), mail_of(number), partition=0)

    return write


def sent(root: str) -> list[tuple[int, int]]:
    """Number and delivery of each mail that was sent."""
    topic = sent_mails(root)
    with Consumer(bootstrap_servers=root, group_id="test", topics=[topic]) as consumer:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        _, end = consumer.get_watermark_offsets(TopicPartition(topic.name, 0))
        found = consumer.consume(end, 30) if end else []
        return [(message.value().number, message.value().delivery) for message in found]


def lag(root: str) -> int:
    with AdminClient(bootstrap_servers=root) as admin:
        return admin.describe_share_groups([GROUP])[GROUP].result().lag


def test_each_mail_is_sent_once_but_those_without_an_address(
    memory_root: str, write: Callable[[int], None]
) -> None:
    write(21)
    with closing(Mailer(memory_root, FlakyAddressBook(0.5, FirstFails(0)))) as mailer:
        assert mailer.work(20) + mailer.work(20) == 21
    assert sent(memory_root) == [(number, 1) for number in range(1, 22) if number != 20]
    assert lag(memory_root) == 0
    (letter,) = dead_mails(memory_root).to_arrow()["_headers"].to_pylist()
    about = {header["key"]: header["value"] for header in letter}
    assert about["__dlq.errors.exception"].startswith(b"UnknownAddress: gone")


def test_a_mail_is_tried_again_while_the_address_book_is_down(
    memory_root: str, write: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BACK_OFF_S", 0.001)
    write(2)
    with closing(Mailer(memory_root, FlakyAddressBook(0.5, FirstFails(3)))) as mailer:
        mailer.work(20)
        eventually(lambda: not mailer.work(0.05) and lag(memory_root) == 0)
    assert sorted(sent(memory_root)) in ([(1, 2), (2, 3)], [(1, 3), (2, 2)])


def test_the_back_off_doubles() -> None:
    assert [layout.back_off_s(deliveries) for deliveries in (1, 2, 3, 4)] == [0.2, 0.4, 0.8, 1.6]


def test_the_table_shows_what_waits_and_fits_in_eighty_columns() -> None:
    parts = [
        SharePartitionDescription("mails", number, 10, 90, 99_999, 40, 30, 20, 10, 0, 99_989, 1_000)
        for number in range(2)
    ]
    about = ShareGroupDescription(GROUP, ConsumerGroupState.STABLE, [], parts)
    state = QueueState(about, 199_998, {1: 15, 2: 5}, 3_500)
    console = Console(width=80, record=True, file=StringIO())
    console.print(render(state, [("mailer-1", "running"), ("mailer-2", "killed")]))
    text = console.export_text()
    assert "written 199,998   sent 20   waiting 199,978, the oldest for 2.5 s" in text
    assert "mailer-1 running, mailer-2 killed" in text
    assert re.search(r"1 +40 +30 +20 +99,989", text)
    assert re.search(r"sent at attempt +1 +2 .*mails +15 +5", text, re.DOTALL)
    empty = ShareGroupDescription(GROUP, ConsumerGroupState.EMPTY, [], [])
    assert QueueState(empty, 0, {}, 3_500).oldest_s == 0


@pytest.mark.long
def test_the_demo_sends_all_mails() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "examples.work_queue.demo", "--seconds", "5", "--rate", "20"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=100,
    )
    found = re.search(r"(\d+) mails written, (\d+) sent, 0 not finished, (\d+) dead", answer.stdout)
    assert found is not None
    written, were_sent, dead = map(int, found.groups())
    assert written == were_sent + dead
    assert were_sent > 0
