"""Estimated costs agree with what the benchmarks have counted on a modelled S3."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deltaq.admin import ConsumerGroupState
from deltaq.admin.share_groups import ShareGroupDescription
from deltaq.tools import (
    S3_STANDARD,
    GroupLoad,
    ShareGroupLoad,
    TopicLoad,
    estimate,
    load_of,
    queue_load_of,
)
from deltaq.tools.rates import QueueCount, RootSample, measured_cost

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks/results.md"


def counted() -> list[tuple[float, float, float]]:
    """(linger in ms, dollars for requests, dollars for storage) of the streams of 10 MB/s with one
    producer.
    """
    table = (
        BENCHMARKS.read_text()
        .partition("requests a second and dollars a day at the MB/s")[2]
        .partition("```")[0]
    )
    rows = [
        line.split() for line in table.splitlines() if line.startswith("10 MB/s of 1 KB, linger")
    ]
    return [(float(row[6]), float(row[-3]), float(row[-2])) for row in rows]


def test_the_table_of_the_benchmarks_is_found() -> None:
    assert len(counted()) >= 5


@pytest.mark.parametrize(("linger_ms", "requests", "storage"), counted())
def test_an_estimate_is_within_a_sixth_of_what_was_counted(
    linger_ms: float, requests: float, storage: float
) -> None:
    cost = estimate([load_of(10_000, 1_000, linger_ms=linger_ms)])
    assert cost.request_dollars == pytest.approx(requests, rel=1 / 6)
    assert cost.storage_dollars == pytest.approx(storage, rel=1 / 6)


def test_requests_and_bytes_are_priced_by_the_list() -> None:
    cost = estimate([TopicLoad(0.0, 0.0, 1e12)], [GroupLoad(3, 0.0)])
    assert cost.requests_per_s == pytest.approx(
        {"PUT": 1.0, "GET": 3.0, "LIST": 0.0, "DELETE": 0.0}
    )
    assert cost.dollars_by_kind()["PUT"] == pytest.approx(86_400 * 5 / 1e6)
    assert cost.storage_dollars == pytest.approx(1_000 * 0.023 * 12 / 365)
    assert cost.dollars == pytest.approx(
        cost.storage_dollars + sum(cost.dollars_by_kind().values())
    )
    assert re.fullmatch("S3 Standard", S3_STANDARD.name)


@pytest.mark.parametrize(
    ("producers", "linger_ms", "messages_per_s", "commits"),
    [
        (1, 1000, 5_000, 1),
        (1, 0, 5_000, 7),
        (1, 0, 2, 2),
        (4, 1000, 5_000, 4),
        (50, 5, 5_000, 10),
        (1, 5, 0, 0),
    ],
)
def test_commits_are_bounded_by_linger_latency_and_messages(
    producers: int, linger_ms: float, messages_per_s: float, commits: float
) -> None:
    load = load_of(messages_per_s, 100, linger_ms=linger_ms, producers=producers)
    assert load.commits_per_s == pytest.approx(commits)


def test_workers_of_one_group_are_bounded_by_its_log() -> None:
    assert queue_load_of(TopicLoad(50.0), 3) == ShareGroupLoad(3, 10.0, 50.0)
    assert queue_load_of(TopicLoad(2.0), 3) == ShareGroupLoad(3, 2.0, 2.0)
    assert queue_load_of(TopicLoad(2.0), 3, 9) == ShareGroupLoad(3, 2.0, 2.0, 3)
    assert queue_load_of(TopicLoad(2.0), 0, 9) == ShareGroupLoad(0)


def test_a_group_that_was_removed_and_begun_again_costs_nothing_less() -> None:
    about = ShareGroupDescription("mailers", ConsumerGroupState.EMPTY, [], [])
    before, now = (
        RootSample(at_s, {}, {}, queues={"mailers": QueueCount(version, about)})
        for at_s, version in ((0.0, 9), (1.0, 1))
    )
    assert measured_cost(before, now).requests_per_s["PUT"] == 0
    assert measured_cost(None, now).requests_per_s["PUT"] == 0
