"""A configuration setting: its name, allowed values and validation."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from deltaq.errors import InvalidConfig, KafkaError

Kind: TypeAlias = Literal[
    "boolean", "integer", "float", "string", "choice", "list", "callable", "logger"
]
Clients: TypeAlias = Literal["both", "producer", "consumer", "share consumer", "topic", "group"]
Effect: TypeAlias = Literal["honoured", "always", "none"]
SettingValue: TypeAlias = "bool | int | float | str | tuple[str | Callable[..., Any], ...] | None"

_INTEGER = re.compile(r"[+-]?[0-9]+")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS_OF_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the configuration tables.

    `name` is Kafka's, with the unit last. `low` and `high` are inclusive bounds of numbers.
    `choices` are the allowed words. `synonyms` maps alternative spellings of a value to the
    canonical one. With `functions` a list may contain functions besides the choices; with
    `may_be_empty` the empty string is the empty list.

    `effect` is `honoured` for a setting that the code reads; `always` if deltaq provides the
    setting's strongest guarantee whatever the value; `none` for a setting that is accepted only so
    that programs can share a configuration with Kafka clients. `doc` gives the reason.
    """

    name: str
    clients: Clients
    kind: Kind
    default: SettingValue
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    functions: bool = False
    may_be_empty: bool = False
    effect: Effect = "honoured"
    doc: str = ""

    def means(self, doc: str, effect: Effect = "honoured") -> Setting:
        """The setting with its description."""
        return replace(self, doc=doc, effect=effect)

    @property
    def attribute(self) -> str:
        """The name as a Python identifier: `linger.ms` -> `linger_ms`."""
        return self.name.replace(".", "_")

    @property
    def range(self) -> str:
        """The allowed values as text: `0..900000`, `none, gzip`, or empty."""
        return f"{self.low}..{self.high}" if self.high != math.inf else ", ".join(self.choices)

    def parse(
        self, value: object, key: str | None = None, code: int = KafkaError._INVALID_ARG
    ) -> SettingValue:
        """The typed value of a user's input: the value itself, or a string or number that denotes
        it.

        `key` is the user's spelling of the name. None, and for strings the empty string, select the
        default. Raises InvalidConfig.
        """
        if value is None:
            return self.default
        key = key or self.name
        try:
            if self.functions and (callable(value) or isinstance(value, list | tuple)):
                return self._chosen_or_functions(
                    value if isinstance(value, list | tuple) else [value], key
                )
            text = self._text(value, key)
            return self._typed(self.synonyms.get(text.lower(), text), key)
        except ValueError as error:
            raise InvalidConfig(str(error), key=key, code=code) from None

    def _text(self, value: object, key: str) -> str:
        """The input as the string that Kafka's clients would convert it to. Raises ValueError."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list | tuple) and self.kind == "list":
            return ",".join(map(str, value))
        if isinstance(value, str | int | float):
            return str(value).strip()
        if isinstance(value, os.PathLike):
            return str(os.fspath(value))
        # The value is not shown: it may be a secret.
        raise ValueError(_refusal(key, f"expected {self.kind}, got {type(value).__name__}"))

    def _typed(self, text: str, key: str) -> SettingValue:
        """The value that the text denotes. Raises ValueError."""
        if self.kind == "boolean":
            if text.lower() not in _WORDS_OF_TRUTH:
                raise ValueError(f'Expected bool value for "{key}": true or false')
            return _WORDS_OF_TRUTH[text.lower()]
        if self.kind in ("integer", "float"):
            number = _integer(text, key) if self.kind == "integer" else _float(text, key)
            if not self.low <= number <= self.high:
                raise ValueError(
                    f'Configuration property "{key}" value {number} is outside allowed range'
                    f" {self.range}"
                )
            return number
        return (text or self.default) if self.kind == "string" else self._chosen(text, key)

    def _chosen(self, text: str, key: str) -> str | tuple[str, ...]:
        """The choice, or the list of choices without duplicates, in the spelling of the table.
        Raises ValueError.
        """
        known = {choice.lower(): choice for choice in self.choices}
        words = (
            [word.strip().lower() for word in text.split(",")]
            if self.kind == "list"
            else [text.lower()]
        )
        if self.may_be_empty and not text:
            words = []
        if not known.keys() >= set(words):
            raise ValueError(_refusal(key, f"use {', '.join(self.choices)}", text))
        return (
            tuple(dict.fromkeys(known[word] for word in words))
            if self.kind == "list"
            else known[words[0]]
        )

    def _chosen_or_functions(
        self, items: Iterable[object], key: str
    ) -> tuple[str | Callable[..., Any], ...]:
        """The choices that the items name, and the functions among them, without duplicates. Raises
        ValueError.
        """
        found: list[str | Callable[..., Any]] = []
        for item in items:
            if callable(item):
                found.append(item)
            elif isinstance(item, str):
                found += self._chosen(item, key)
            else:
                raise ValueError(
                    _refusal(key, f"expected names and functions, got {type(item).__name__}")
                )
        if not found:
            raise ValueError(_refusal(key, f"use {', '.join(self.choices)}, or a function", ""))
        return tuple(dict.fromkeys(found))

    def check_callable(self, value: object) -> object:
        """Return a valid callback or logger, or None. The exception types are those of
        confluent-kafka.
        """
        if value is None:
            return None
        if self.kind == "logger":
            if not isinstance(value, logging.Logger | logging.LoggerAdapter):
                raise TypeError(
                    f"expected {self.name} property as a logging.Logger, not {type(value).__name__}"
                )
        elif not callable(value):
            if self.name.startswith("on_"):
                raise InvalidConfig(f"{self.name} requires a callable object", key=self.name)
            raise TypeError(f"expected {self.name} property as a callable function")
        return value


def _integer(text: str, key: str) -> int:
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    whole = text.removesuffix(".0")  # 6000.0 is accepted, 6000.7 is not
    # Kafka's numbers fit 64 bits; for far longer ones `int` raises an error of its own.
    if not _INTEGER.fullmatch(whole) or len(whole) > 20:
        raise ValueError(_refusal(key, "expected an integer", text))
    return int(whole)


def _float(text: str, key: str) -> float:
    # Python also takes digits of other scripts, and underscores between digits.
    if not _FLOAT.fullmatch(text) or not math.isfinite(number := float(text)):
        raise ValueError(_refusal(key, "expected a number", text))
    return number


def _refusal(key: str, remedy: str, text: str | None = None) -> str:
    shown = "" if text is None else f"{_shown(text)} "
    return f'Invalid value {shown}for configuration property "{key}": {remedy}'


def _shown(text: str) -> str:
    """An invalid key or value for an error text: quoted, escaped and cut to 60 characters."""
    return f'"{ascii(text[:60])[1:-1]}"'


def unknown_setting(
    key: object, known: Iterable[str], code: int = KafkaError._INVALID_ARG
) -> InvalidConfig:
    """The error for an unknown key, with the most similar known key as a hint."""
    text = str(key)
    names = sorted(known)
    dotted = text.replace("_", ".")
    near = [dotted] if dotted in names else get_close_matches(text, names, n=1, cutoff=0.75)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return InvalidConfig(
        f"No such configuration property: {_shown(text)}{hint}", key=text, code=code
    )
