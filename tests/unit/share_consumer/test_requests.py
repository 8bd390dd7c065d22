"""What a queue costs on an object store, where each request counts; docs/guides/queues.md has these
numbers.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deltaq import AdminClient, Producer, ShareConsumer, Topic
from deltaq.share_groups.log import ShareLog
from deltaq.store import ObjectMissing
from deltaq.tools.cost import COMMITS_PER_S_MAX, IDLE_POLLS_PER_S, ShareGroupLoad, estimate
from deltaq.tools.prices import S3_STANDARD
from tests.doubles.sharing import set_group
from tests.unit.transactions.test_requests import CountedStore

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/queues.md"
KINDS = {"get": "GET", "list": "LIST", "create": "PUT", "put": "PUT"}


@pytest.fixture
def store() -> CountedStore:
    found = CountedStore()
    Topic("t", store=found).create()
    with AdminClient(bootstrap_servers="memory://test", store=found) as admin:
        set_group(admin, share_auto_offset_reset="earliest")
    return found


@pytest.fixture
def worker(store: CountedStore) -> Iterator[ShareConsumer]:
    """A worker that has looked at the topic and its group before."""
    worker: ShareConsumer = ShareConsumer(
        bootstrap_servers="memory://test", store=store, group_id="g", maintenance_enable=False
    )
    with worker:
        worker.subscribe(["t"])
        write(store, 1)
        assert len(worker.poll(10)) == 1
        worker.commit_sync()
        yield worker


def write(store: CountedStore, count: int) -> None:
    producer = Producer(
        bootstrap_servers="memory://test", store=store, maintenance_enable=False, linger_ms=60_000
    )
    with producer:
        for _ in range(count):
            producer.produce("t", b"x" * 100)


def poll(
    store: CountedStore, worker: ShareConsumer, timeout: float = 0
) -> tuple[int, Counter[str]]:
    """How many messages a poll has returned, and its requests by kind."""
    store.counts.clear()
    count = len(worker.poll(timeout))
    found: Counter[str] = Counter()
    for request, times in store.counts.items():
        found[KINDS[request.split()[0]]] += times
    return count, found


def dollars(requests: Counter[str], per_s: float) -> str:
    a_day = S3_STANDARD.dollars_for_requests({kind: n * per_s for kind, n in requests.items()})
    return f"${a_day:.2f}"


def stated(text: str) -> bool:
    return re.sub(r"\s+", " ", text) in re.sub(r"\s+", " ", GUIDE.read_text())


def test_a_batch_takes_one_entry_and_a_few_reads(
    store: CountedStore, worker: ShareConsumer
) -> None:
    write(store, 100)
    count, batch = poll(store, worker)
    assert (count, batch) == (100, {"PUT": 1, "GET": 3})
    assert stated("one request to write for each batch, and three to read")
    assert stated(f"{dollars(batch, 1)} a day if it takes them once a second")
    assert stated(f"{dollars(batch, COMMITS_PER_S_MAX)} if it takes them as soon as they come")


def test_a_thousand_messages_take_three_entries(store: CountedStore, worker: ShareConsumer) -> None:
    write(store, 1_000)
    total: Counter[str] = Counter()
    for expected in (500, 500, 0):  # the last one accepts what the second has returned
        count, requests = poll(store, worker)
        assert count == expected
        total += requests
    assert total == {"PUT": 3, "GET": 7}
    assert stated("1,000 messages of one file cost 3 requests to write and 7 to read")


def test_a_worker_that_waits_looks_at_the_topic_and_the_group(
    store: CountedStore, worker: ShareConsumer
) -> None:
    poll(store, worker)
    count, idle = poll(store, worker)
    assert (count, idle) == (0, {"GET": 2})
    assert stated(f"A worker that waits costs {dollars(idle, IDLE_POLLS_PER_S)} a day")


def test_the_estimate_of_a_share_group_has_the_requests_of_its_worker(
    store: CountedStore, worker: ShareConsumer
) -> None:
    _, idle = poll(store, worker)
    busy = Counter[str]()
    for _ in range(2):
        write(store, 100)
        busy += poll(store, worker)[1]
    waiting = estimate([], queues=[ShareGroupLoad(1)]).requests_per_s
    working = estimate([], queues=[ShareGroupLoad(1, 2.0, 2.0)]).requests_per_s
    assert waiting["GET"] == idle["GET"] * IDLE_POLLS_PER_S
    assert {kind: working[kind] - waiting[kind] for kind in busy} == busy


class FindingStore(CountedStore):
    """One that counts the reads, too, that find nothing."""

    def get(self, key, size_max=None):
        try:
            return super().get(key, size_max)
        except ObjectMissing:
            self.counts["missing"] += 1
            raise

    def requests(self) -> Counter[str]:
        """Those of all that share the content."""
        found = Counter(missing=self.counts["missing"])
        for request, times in self.counts.items():
            found[KINDS.get(request.split()[0], "")] += times
        return found


ROUNDS = 10


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_estimate_counts_what_workers_of_one_process_read_once(processes: int) -> None:
    """Four workers, who look at the logs in turns; in each round one commit comes to the topic."""
    store = FindingStore()
    Topic("t", store=store).create()
    with AdminClient(bootstrap_servers="memory://test", store=store) as admin:
        set_group(admin, share_auto_offset_reset="earliest")
    # A store of its own, with the same content and counts, is what another process has.
    stores = [copy.copy(store) for _ in range(processes)]
    with ExitStack() as open_workers:
        workers = []
        for number in range(4):
            worker: ShareConsumer = ShareConsumer(
                bootstrap_servers="memory://test",
                store=stores[number % processes],
                group_id="g",
                maintenance_enable=False,
            )
            workers.append(open_workers.enter_context(worker))
            worker.subscribe(["t"])
        write(store, 1)
        taken = sum(len(worker.poll(0)) for worker in workers for _ in range(2))
        log = ShareLog(store, "g")
        begun_at, before = log.read().table.version, store.requests()
        for _ in range(ROUNDS):
            counts = store.counts.copy()
            write(store, 5)
            store.counts = counts
            for each in stores:
                each.counts = counts
            taken += sum(len(worker.poll(0)) for worker in workers)
        requests = store.requests() - before
        entries = log.read().table.version - begun_at
    assert taken == 1 + 5 * ROUNDS
    assert requests["PUT"] == entries
    load = ShareGroupLoad(4, entries, ROUNDS, processes)
    waiting = estimate([], queues=[ShareGroupLoad(4)]).requests_per_s["GET"]
    working = estimate([], queues=[load]).requests_per_s["GET"] - waiting
    # The estimate has a look before each entry, which finds nothing.
    assert requests["GET"] - requests["missing"] == working - entries
