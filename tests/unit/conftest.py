"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["memory_root", pytest.param("s3_server_root", marks=pytest.mark.s3_server)])
def root(request: pytest.FixtureRequest) -> str:
    """A fresh root for the tests of the clients: in memory, and on an S3 server."""
    path: str = request.getfixturevalue(request.param)
    return path
