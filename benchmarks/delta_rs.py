"""A hand-written queue on a Delta table with delta-rs: one process appends, another follows the
log.

Both sides use only what the library offers, with the care of an experienced user: the follower
reads each new log entry and the files that it added, in the order of their commits, and never lists
the whole table. On a local disk delta-rs does not sync: the system decides when data reaches the
disk.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

VALUE = "value"
"""The only column, of bytes."""

POLL_S = 0.01
"""Seconds that a follower waits after a poll that found nothing."""

_SCHEMA = pa.schema([pa.field(VALUE, pa.binary())])
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_PASSED_ON = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class PlainQueueFailed(Exception):
    """An error of delta-rs. Its own exceptions cannot be pickled for another process."""


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise PlainQueueFailed(f"{type(error).__name__}: {error}") from error


def storage_options(uri: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The storage options of delta-rs for `uri`, from the usual environment variables; none for a
    local disk.
    """
    if not uri.startswith("s3://"):
        return {}
    options = {name: environ[name] for name in _PASSED_ON if environ.get(name)}
    endpoint = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    if endpoint is not None:
        options["AWS_ENDPOINT_URL"] = endpoint
        address = urlsplit(endpoint)
        if address.scheme == "http" and address.hostname in _LOOPBACK:
            options["AWS_ALLOW_HTTP"] = "true"
    if environ.get("AWS_ALLOW_HTTP"):
        options["AWS_ALLOW_HTTP"] = environ["AWS_ALLOW_HTTP"]
    # The store refuses a second commit of the same version.
    options["AWS_CONDITIONAL_PUT"] = "etag"
    return options


def create_queue(uri: str) -> None:
    """Create an empty table. Raises PlainQueueFailed if it exists."""
    with _plain_errors():
        DeltaTable.create(
            uri, Schema.from_arrow(_SCHEMA), storage_options=storage_options(uri, os.environ)
        )


class Appender:
    """The producer's side. With `keep`, one table object makes all commits; otherwise each opens
    the table anew.

    PlainQueueFailed if there is no table.
    """

    def __init__(self, uri: str, *, keep: bool) -> None:
        self._uri = uri
        self._options = storage_options(uri, os.environ)
        with _plain_errors():
            self._table = DeltaTable(uri, storage_options=self._options) if keep else None

    def append(self, values: pa.Array) -> None:
        """Commit the values as one file. PlainQueueFailed."""
        rows = pa.table([values], _SCHEMA)
        with _plain_errors():
            if self._table is not None:
                write_deltalake(self._table, rows, mode="append")
            else:
                write_deltalake(self._uri, rows, mode="append", storage_options=self._options)


class TableFollower:
    """The consumer's side: reads what is committed after its creation. Raises PlainQueueFailed
    without a table.
    """

    def __init__(self, uri: str) -> None:
        options = storage_options(uri, os.environ)
        with _plain_errors():
            self._table = DeltaTable(uri, storage_options=options)
        self._files = PyFileSystem(DeltaStorageHandler(self._table.table_uri, options))
        self._read = self._table.version()

    def poll(self) -> Iterator[pa.ChunkedArray]:
        """The values of each file committed since the last poll; waits for POLL_S if there is none.

        Raises PlainQueueFailed, OSError.
        """
        with _plain_errors():
            self._table.update_incremental()
        newest = self._table.version()
        if newest == self._read:
            time.sleep(POLL_S)
        while self._read < newest:
            for path in self._added(self._read + 1):
                with self._files.open_input_file(path) as file:
                    yield pq.read_table(file, columns=[VALUE]).column(VALUE)
            self._read += 1

    def _added(self, version: int) -> Iterator[str]:
        with self._files.open_input_stream(f"_delta_log/{version:020}.json") as entry:
            for line in entry.read().splitlines():
                added = json.loads(line).get("add")
                if added is not None:
                    yield unquote(added["path"])
