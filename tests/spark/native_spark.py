"""Spark's own Delta for tests: a process of its own, which all tests of a worker share."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deltaq.spark.session import native_delta_settings
from tests.spark.maven_central import need_jar
from tests.spark.native_delta import ANSWER

__all__ = ["NativeRow", "NativeSpark", "native_spark"]

_PROGRAM = Path(__file__).with_name("native_delta.py")
_ARTIFACT, _VERSION = native_delta_settings()["spark.jars.packages"].split(",")[0].split(":")[1:]


class NativeRow(NamedTuple):
    """A row as Spark sees it. `offset` is None where the file leaves it out; `headers` are their keys."""

    partition: int
    offset: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[str, ...] | None


class NativeSpark:
    """Asks the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def rows(self, table: str | Path, *, anew: bool = True) -> list[NativeRow]:
        """All rows of a table. `anew`: without the cached table state of an earlier read."""
        return list(_native_rows(self._ask("rows", table=str(table), anew=anew)))

    def go_on(self, table: str | Path, scratch: Path) -> None:
        """Let the stream of a table that keeps what it has in the folder `scratch` take what is new."""
        self._ask("go_on", table=str(table), scratch=str(scratch))

    def streamed(self, scratch: Path) -> list[NativeRow]:
        """All that this stream has taken."""
        return list(_native_rows(self._ask("streamed", scratch=str(scratch))))

    def history(self, table: Path) -> int:
        """How many versions of a table Spark knows of."""
        count: int = self._ask("history", table=str(table))
        return count

    def history_example(self, folder: Path) -> str:
        """What the example `history.py` prints."""
        printed: str = self._ask("history_example", folder=str(folder))
        return printed

    def keys(self, table: str | Path, conditions: list[str]) -> list[list[bytes]]:
        """For each SQL condition the keys of the rows that meet it."""
        found = self._ask("keys", table=str(table), conditions=conditions)
        return [[base64.b64decode(key) for key in keys] for keys in found]

    def values(self, table: str | Path, expressions: list[str]) -> list[str]:
        """What aggregates of the whole table are, as text."""
        found: list[str] = self._ask("values", table=str(table), expressions=expressions)
        return found

    def attempts(self, table: Path) -> dict[str, str | None]:
        """The error that each way of writing to a table ends with; None if it had none."""
        answers: dict[str, str | None] = self._ask("attempts", table=str(table))
        return answers

    def _ask(self, operation: str, **arguments: object) -> Any:
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(json.dumps({"do": operation, **arguments}) + "\n")
        to.flush()
        for line in answers:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise AssertionError(f"Spark ended during {operation}; what it said is above")


@contextmanager
def native_spark(environment: Mapping[str, str]) -> Iterator[NativeSpark]:
    """The process, for as long as it is needed; the test is skipped where Delta's jars cannot be had."""
    need_jar("io.delta", _ARTIFACT, _VERSION)
    command = [sys.executable, str(_PROGRAM)]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield NativeSpark(process)
        finally:
            process.kill()


def _native_rows(answer: Iterable[list[Any]]) -> Iterator[NativeRow]:
    for partition, offset, timestamp_ms, key, value, headers in answer:
        yield NativeRow(
            partition, offset, timestamp_ms, _bytes(key), _bytes(value), None if headers is None else tuple(headers)
        )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
