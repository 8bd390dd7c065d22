"""Fixtures of the tests of the replicas: one PostgreSQL for all of them, and empty tables for
each.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from examples.replicas.postgres import Postgres

SESSIONS_MAX = 4


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server whose role `replicas` may have `SESSIONS_MAX` sessions."""
    with Postgres(SESSIONS_MAX) as server:
        yield server


@pytest.fixture
def admin(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """A superuser's session in the database of the replicas, which has no tables."""
    with psycopg.connect(postgres.admin_url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS events, progress")
        yield connection
