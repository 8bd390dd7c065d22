"""Fixtures of the integration tests."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["local_root", pytest.param("s3_server_root", marks=pytest.mark.s3_server)])
def root(request: pytest.FixtureRequest) -> str:
    """A fresh root that other processes reach too, in a folder and on an S3 server."""
    path: str = request.getfixturevalue(request.param)
    return path
