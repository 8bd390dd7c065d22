"""The small Spark programs: what each writes equals the same computation in plain Python over its
messages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaq import Topic
from examples.spark import (
    foreach_batch,
    history,
    join_topics,
    sessions,
    stop_and_resume,
    windowed_counts,
    word_count,
)

MINUTE = timedelta(minutes=1)
LATE = 10 * MINUTE
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def rows(folder: Path, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        Topic(topic, bootstrap_servers=f"{folder}/events").to_arrow().to_pylist()
    )
    return found


def newest(folder: Path, topic: str) -> list[dict[str, Any]]:
    """The newest value of each key of a topic, parsed."""
    return [
        json.loads(value)
        for value in {row["_key"]: row["value"] for row in rows(folder, topic)}.values()
    ]


def start(window: dict[str, str]) -> datetime:
    return datetime.fromisoformat(window["start"])


def in_time(sent: Iterable[tuple[str, datetime, datetime]]) -> list[tuple[str, datetime]]:
    return [(name, at) for name, at, sent_at in sent if sent_at - at <= LATE]


def windows(at: datetime, slide: timedelta) -> Iterator[datetime]:
    """The starts of the windows of ten minutes that hold a moment."""
    begin = at - (at - EPOCH) % slide
    while begin + 10 * MINUTE > at:
        yield begin
        begin -= slide


def sessions_of(clicks: Iterable[datetime]) -> Iterator[tuple[datetime, datetime, int]]:
    """Start, end and number of clicks of each session of a user."""
    times = sorted(clicks)
    session = times[:1]
    for at in times[1:]:
        if at - session[-1] > 5 * MINUTE:
            yield session[0], session[-1] + 5 * MINUTE, len(session)
            session = []
        session.append(at)
    yield session[0], session[-1] + 5 * MINUTE, len(session)


def test_words_are_counted_by_key(spark: SparkSession, tmp_path: Path) -> None:
    word_count.main(spark, str(tmp_path))
    found = {row["word"]: row["count"] for row in newest(tmp_path, "counts")}
    assert found == Counter(word for line in word_count.LINES for word in line.split())


@pytest.mark.long
def test_views_are_counted_in_windows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windowed_counts.main(spark, str(tmp_path))
    views = in_time(windowed_counts.VIEWS)
    for topic, slide in (("tumbling", 10 * MINUTE), ("sliding", 5 * MINUTE)):
        found = {
            (start(row["window"]), row["page"]): row["count"] for row in newest(tmp_path, topic)
        }
        assert found == Counter((begin, page) for page, at in views for begin in windows(at, slide))
    late = len(windowed_counts.VIEWS) - len(views)
    assert 0 < late < len(views)
    assert capsys.readouterr().out.count(f"{late} late views") == 2


@pytest.mark.long
def test_each_session_is_written_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions.main(spark, str(tmp_path))
    clicks = in_time(sessions.CLICKS)
    users = {user for user, _ in clicks}
    expected = [
        (user, *of)
        for user in users
        for of in sessions_of(at for name, at in clicks if name == user)
    ]
    values = [json.loads(row["value"]) for row in rows(tmp_path, "sessions")]
    found = [
        (
            row["user"],
            start(row["session"]),
            datetime.fromisoformat(row["session"]["end"]),
            row["count"],
        )
        for row in values
    ]
    assert sorted(found) == sorted(expected)
    late = len(sessions.CLICKS) - len(clicks)
    assert late > 0
    assert f"{late} late clicks" in capsys.readouterr().out


@pytest.mark.long
def test_orders_are_joined_with_their_payments(spark: SparkSession, tmp_path: Path) -> None:
    join_topics.main(spark, str(tmp_path))
    expected = [
        (name.encode(), f"{join_topics.ORDERS[name]:%H:%M} {at:%H:%M}".encode())
        for name, at in join_topics.PAYMENTS.items()
        if at - join_topics.ORDERS[name] <= 60 * MINUTE
    ]
    assert len(expected) < len(join_topics.PAYMENTS) < len(join_topics.ORDERS)
    assert sorted((row["_key"], row["value"]) for row in rows(tmp_path, "paid")) == sorted(expected)


@pytest.mark.long
def test_a_database_counts_each_micro_batch_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreach_batch.main(spark, str(tmp_path))
    assert capsys.readouterr().out.strip() == str(
        dict(sorted(Counter(foreach_batch.SALES).items()))
    )
    database = foreach_batch.Database(str(tmp_path / "totals.db"))
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "another")
    try:
        for batch_id in (0, 0, 1):
            database.store(spark.createDataFrame([("tea",)], "item string"), batch_id)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]  # removes it
    assert database.totals()["tea"] == Counter(foreach_batch.SALES)["tea"] + 2


def test_a_stopped_query_continues_where_it_was(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_and_resume.main(spark, str(tmp_path))
    assert sorted(int(row["value"]) for row in rows(tmp_path, "squares")) == [
        number**2 for number in range(120)
    ]
    assert "120 squares, each once: True" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("native")
def test_the_history_has_each_version(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.main(spark, str(tmp_path))
    assert capsys.readouterr().out.splitlines() == [
        "version 0: CREATE TABLE, 0 visits, the latest is None",
        "version 1: WRITE, 3 visits, the latest is monday 2",
        "version 2: WRITE, 6 visits, the latest is tuesday 2",
        "version 3: WRITE, 9 visits, the latest is wednesday 2",
    ]
