"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.go_programs import CannotBuild
from tests.servers.minio import MinioServer


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MinioServer]:
    """A MinIO that may be killed, private to this process and its children; other tests use the
    environment's MinIO.
    """
    server = MinioServer()
    try:
        server.start()
    except CannotBuild as reason:
        pytest.skip(reason=f"this test needs a MinIO of its own: {reason}")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()
