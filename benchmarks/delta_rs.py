"""A queue on a Delta table as one writes it by hand with delta-rs: one process appends, another one follows the log.

Neither side does more than the library offers, nor less than a careful user would: the follower reads each new entry
of the log and the files that it added, in the order of their commits, and never lists the whole table. On a local disk
delta-rs leaves it to the system when data reaches the disk.
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

__all__ = ["VALUE", "Appender", "Follower", "PlainQueueFailed", "create_queue", "storage_options"]

VALUE = "value"
"""The only column, of bytes."""

POLL_S = 0.01
"""How long a follower that found nothing new waits before it looks again."""

_SCHEMA = pa.schema([pa.field(VALUE, pa.binary())])
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_PASSED_ON = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class PlainQueueFailed(Exception):
    """What delta-rs said. Its own errors cannot go from one process to another."""


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise PlainQueueFailed(f"{type(error).__name__}: {error}") from error


def storage_options(uri: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What delta-rs needs to know of the store of `uri`, from the usual variables: nothing for a local disk."""
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
    # So that two commits can never be one: the store refuses the second one of a version.
    options["AWS_CONDITIONAL_PUT"] = "etag"
    return options


def create_queue(uri: str) -> None:
    """Make an empty table. PlainQueueFailed if there is one."""
    with _told():
        DeltaTable.create(uri, Schema.from_arrow(_SCHEMA), storage_options=storage_options(uri, os.environ))


class Appender:
    """The producer's side. With `keep` one table object takes all commits; without, each finds the table anew.

    PlainQueueFailed if there is no table.
    """

    def __init__(self, uri: str, *, keep: bool) -> None:
        self._uri = uri
        self._options = storage_options(uri, os.environ)
        with _told():
            self._table = DeltaTable(uri, storage_options=self._options) if keep else None

    def append(self, values: pa.Array) -> None:
        """Commit the values as one file. PlainQueueFailed."""
        rows = pa.table([values], _SCHEMA)
        with _told():
            if self._table is not None:
                write_deltalake(self._table, rows, mode="append")
            else:
                write_deltalake(self._uri, rows, mode="append", storage_options=self._options)


class Follower:
    """The consumer's side: what was committed after it was made. PlainQueueFailed if there is no table."""

    def __init__(self, uri: str) -> None:
        options = storage_options(uri, os.environ)
        with _told():
            self._table = DeltaTable(uri, storage_options=options)
        self._files = PyFileSystem(DeltaStorageHandler(self._table.table_uri, options))
        self._read = self._table.version()

    def poll(self) -> Iterator[pa.ChunkedArray]:
        """The values of each file that was committed since the last time; waits a moment if there is none.
        PlainQueueFailed, OSError."""
        with _told():
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
