"""What became of each topic or group that a command deletes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from deltaq.cli.command import fail
from deltaq.cli.session import CliSession
from deltaq.errors import KafkaException


def report_deleted(session: CliSession, noun: str, deleted: Mapping[str, Future[None]]) -> None:
    """Print a line for each that was deleted, and fail with the reasons of the others."""
    failures = []
    for name, future in deleted.items():
        try:
            future.result()
        except KafkaException as error:
            failures.append(error.error.str())
        else:
            session.out.done(f"{noun} {name} was deleted")
    if failures:
        fail("; ".join(failures))
