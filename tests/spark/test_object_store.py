"""Topics in a bucket: driver and workers reach them by the options alone, and keep the keys to
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.servers.s3_stub import S3Stub

pytestmark = [pytest.mark.spark, pytest.mark.s3]

ROOT = "s3://events/prefix"
KEY_ID, SECRET = "planted-access-key-id", "planted-secret-access-key"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """The `store.*` options of an S3 server."""
    with S3Stub(("events",)) as stub:
        yield {
            "store.endpoint": stub.endpoint,
            "store.access_key_id": KEY_ID,
            "store.secret_access_key": SECRET,
            "store.region": "us-east-1",
        }


def test_a_bucket_is_written_streamed_and_read(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    rows.write.format("deltaq").options(topic="orders", **options).mode("append").save(ROOT)
    orders = spark.readStream.format("deltaq").options(
        subscribe="orders", startingOffsets="earliest", **options
    )
    query = (
        orders.load(ROOT)
        .select("value")
        .writeStream.format("deltaq")
        .options(topic="copy", checkpointLocation=str(tmp_path), **options)
        .trigger(availableNow=True)
        .start(ROOT)
    )
    query.awaitTermination()
    copy = spark.read.format("deltaq").options(subscribe="copy", **options).load(ROOT)
    assert sorted(int(row.value) for row in copy.collect()) == list(range(100))


@pytest.mark.fault("K5")
def test_an_error_does_not_show_the_keys(spark: SparkSession, options: dict[str, str]) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("deltaq").options(subscribe="nothing", columns="table", **options).load(
            ROOT
        )
    assert "does not exist" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.fault("K5")
def test_no_plan_shows_the_keys(
    spark: SparkSession, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    frame = (
        spark.read.format("deltaq")
        .schema("key binary, value binary")
        .options(subscribe="t", **options)
        .load(ROOT)
    )
    for mode in ("extended", "cost", "formatted"):
        frame.explain(mode=mode)
    given = ", ".join(
        f"`{name}` '{value}'" for name, value in {"path": ROOT, "subscribe": "t", **options}.items()
    )
    view = (
        f"CREATE TEMPORARY VIEW planted (key binary, value binary) USING deltaq OPTIONS ({given})"
    )
    for mode in ("EXTENDED", "FORMATTED"):
        print(spark.sql(f"EXPLAIN {mode} {view}").first())
    shown = capsys.readouterr().out
    assert "subscribe -> t" in shown
    assert [key for key in (KEY_ID, SECRET) if key in shown] == []
