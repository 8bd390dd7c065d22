"""Fixtures of the integration tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from deltaq.store import open_store


@pytest.fixture
def s3_server_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fresh root on the S3 server that the environment names, reachable from child processes too; emptied
    afterwards."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["DELTAQ_TEST_S3_ENDPOINT"])
    root = f"s3://{os.environ['DELTAQ_TEST_S3_BUCKET']}/deltaq-test/{uuid.uuid4().hex}"
    yield root
    store = open_store(root)
    for entry in list(store.list("")):
        store.delete(entry.key)
