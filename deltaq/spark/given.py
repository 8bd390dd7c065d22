"""The given options of a read or write, as typed values. The names of options are compared without
case.

Spark passes all option names in lower case. Errors show them as documented.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NoReturn

from deltaq.config.declare import INT64_MAX
from deltaq.errors import InvalidConfig
from deltaq.serde.json_text import strict_json
from deltaq.spark.java_client import Side, client_settings

_log = logging.getLogger("deltaq.spark")

_ROOT_OPTIONS = ("path", "root", "bootstrap.servers", "kafka.bootstrap.servers")
_OF_SPARK = ("checkpointlocation", "queryname")
_WITHOUT_BROKER = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)
"""Options of Spark's Kafka source that concern a consumer group or a broker. They have no
effect.
"""

_IN_CATALOG = "provider"
"""A property of each table in Spark's catalog. Spark passes it when it creates a table."""

_MS_OF_UNIT = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""Spark's units of time, as text."""

_DURATION = re.compile(r"([0-9]{1,15})([a-z]*)")


class GivenOptions:
    """The options of one side, by name in lower case. Those of the other side have no effect here.

    A view of Spark's catalog, for instance, has one set of options for reading and writing.
    """

    def __init__(
        self, options: Mapping[str, str], side: Side, known: Iterable[str], of_other: Iterable[str]
    ) -> None:
        self._side = side
        self._values = {name.lower(): str(value) for name, value in options.items()}
        _check_not_in_catalog(self._values)
        allowed = {name.lower() for name in known} | set(_ROOT_OPTIONS) | set(_OF_SPARK)
        without_effect = set(_WITHOUT_BROKER) | {name.lower() for name in of_other}
        for name in self._values:
            if name.startswith(("kafka.", "store.")) or name in allowed:
                continue
            if name not in without_effect:
                raise _unknown(name, known)
            self.no_effect(name)

    @staticmethod
    def no_effect(name: str, why: str = "") -> None:
        """Note that an option has no effect."""
        _log.info("option has no effect in deltaq name=%s%s", name, f" {why}" if why else "")

    def client(self) -> dict[str, object]:
        """The configuration of a client: the root, `store.*`, and the settings prefixed
        `kafka.`.
        """
        roots = {self._values[name] for name in _ROOT_OPTIONS if name in self._values}
        if len(roots) != 1:
            what = "is missing" if not roots else "was given more than once, with different values"
            raise InvalidConfig(
                f'the root URL {what}: set one option "path", e.g. to /data/events or'
                ' s3://bucket/prefix ("kafka.bootstrap.servers" means the same)',
                key="path",
            )
        conf: dict[str, object] = {
            name: value for name, value in self._values.items() if name.startswith("store.")
        }
        settings = {
            name.removeprefix("kafka."): value
            for name, value in self._values.items()
            if name.startswith("kafka.") and name not in _ROOT_OPTIONS
        }
        return conf | client_settings(settings, self._side) | {"bootstrap.servers": roots.pop()}

    def text(self, name: str) -> str | None:
        """The text of an option; None if it was not given."""
        return self._values.get(name.lower())

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false. Raises InvalidConfig."""
        text = (self.text(name) or str(default)).lower()
        if text not in ("true", "false"):
            refuse(name, text, "use true or false")
        return text == "true"

    def number(self, name: str, *, low: int) -> int | None:
        """A whole number of at least `low`; None if the option was not given. Raises
        InvalidConfig.
        """
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or not low <= int(text) <= INT64_MAX:
            refuse(name, text, f"use a whole number of at least {low}")
        return int(text)

    def seconds(self, name: str, *, default: str) -> float:
        """A duration in seconds, given as Spark's text: `15m`, `10s`, `5min`; a bare number is in
        milliseconds.
        """
        text = self.text(name) or default
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None or (found[2] or "ms") not in _MS_OF_UNIT:
            refuse(
                name,
                text,
                'use a number with a unit, such as "10s" or "15m"; units are'
                f" {', '.join(_MS_OF_UNIT)}",
            )
        return int(found[1]) * _MS_OF_UNIT[found[2] or "ms"] / 1000


def refuse(name: str, value: object, remedy: str) -> NoReturn:
    """Raise InvalidConfig for the value of an option."""
    shown = str(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
    raise InvalidConfig(f'option "{name}" cannot be {shown!a}: {remedy}', key=name)


def json_object(name: str, text: str, example: str) -> dict[str, object]:
    """The JSON object that is the value of an option. Raises InvalidConfig with `example`."""
    try:
        body = strict_json(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not body:
        refuse(name, text, example)
    return body


def _check_not_in_catalog(values: Mapping[str, str]) -> None:
    """Refuse a table of Spark's catalog: Spark stores its options, but reads and writes such a
    table without them.
    """
    if not values or _IN_CATALOG in values:
        raise InvalidConfig(
            "Spark reads and writes a table of its catalog without the options of CREATE TABLE: use"
            ' CREATE TEMPORARY VIEW ... USING deltaq OPTIONS (path "...", subscribe "...") instead,'
            ' or spark.read and df.write with format("deltaq")',
            key="path",
        )


def _unknown(name: str, known: Iterable[str]) -> InvalidConfig:
    by_lower = {option.lower(): option for option in (*known, *_ROOT_OPTIONS)}
    near = get_close_matches(name, by_lower, n=1)
    hint = (
        f'did you mean "{by_lower[near[0]]}"?'
        if near
        else f"known are {', '.join(known)}, store.* and kafka.*"
    )
    return InvalidConfig(f'no such option: "{ascii(name[:60])[1:-1]}"; {hint}', key=name)
