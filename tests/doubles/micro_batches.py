"""Micro-batches of a streaming sink in this process, written and committed as Spark does it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from deltaq.spark import sink
from deltaq.spark.data_source import DeltaqDataSource
from deltaq.spark.sink import DeltaqStreamWriter, DeltaqWriter

__all__ = ["OfBatch", "in_batch", "new_worker", "record_offsets", "stream_writer", "task_results"]


class OfBatch:
    """The context of a task, as far as the sink asks for it."""

    def __init__(self, number: int) -> None:
        self._properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(number)}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


def new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a worker process keeps from micro-batch to micro-batch."""
    monkeypatch.setattr(sink, "_LOGS", {})
    monkeypatch.setattr(sink, "_TRANSACTIONS", {})


def stream_writer(root: str, rows: pa.Table, **options: str) -> DeltaqStreamWriter:
    data_source = DeltaqDataSource({"path": root, "txnAppId": "query", **options})
    return data_source.streamWriter(from_arrow_schema(rows.schema), False)


def task_results(
    writer: DeltaqWriter | DeltaqStreamWriter, tasks: Sequence[pa.Table]
) -> list[WriterCommitMessage | None]:
    def batches(task: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from task.to_batches(max_chunksize=3)

    return [writer.write(batches(task)) for task in tasks]


def in_batch(
    monkeypatch: pytest.MonkeyPatch, root: str, rows: pa.Table, number: int, **options: str
) -> None:
    """Write a micro-batch as a query does."""
    monkeypatch.setattr("deltaq.spark.sink.TaskContext.get", lambda: OfBatch(number))
    writer = stream_writer(root, rows, **options)
    writer.commit(task_results(writer, [rows]), number)


def record_offsets(checkpoint: Path, number: int, *sources: object, version: str = "v1") -> None:
    """Record the end offsets of a query's sources, as Spark does before a micro-batch. None is a
    source that has not begun.
    """
    lines = ["-" if source is None else json.dumps(source) for source in sources]
    if version == "v2":
        lines = [f"source{of}:{line}" for of, line in enumerate(lines)]
    path = checkpoint / "offsets" / str(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([version, '{"batchWatermarkMs":0}', *lines]))
