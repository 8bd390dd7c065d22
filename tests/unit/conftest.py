"""Fixtures of the unit tests."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(params=["memory_root", pytest.param("s3_server_root", marks=pytest.mark.s3_server)])
def root(request: pytest.FixtureRequest) -> str:
    """A fresh root for the tests of the clients: in memory, and on an S3 server."""
    path: str = request.getfixturevalue(request.param)
    return path


@pytest.fixture
def nothing_left() -> None:
    """For tests that look at every log line: a client that an earlier test has left would log its
    end in their time, whenever the garbage collector finds it.
    """
    gc.collect()
