"""Short constructors for the rows of the tables of settings."""

from __future__ import annotations

from dataclasses import replace

from deltaq.config.setting import Clients, Setting

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DAY_MS = 86_400_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def boolean(name: str, clients: Clients, default: bool, doc: str = "", *aliases: str) -> Setting:
    """A setting that is true or false."""
    return Setting(name, clients, "boolean", default, doc, choices=("true", "false"), aliases=aliases)


def integer(
    name: str, clients: Clients, default: int, low: int, high: int, doc: str = "", *aliases: str, **words: str
) -> Setting:
    """A whole number from `low` to `high`, or one of `words` for one."""
    return Setting(name, clients, "integer", default, doc, low, high, aliases=aliases, synonyms=words)


def string(name: str, clients: Clients, default: str | None = None, doc: str = "", *aliases: str) -> Setting:
    """Any text."""
    return Setting(name, clients, "string", default, doc, aliases=aliases)


def choice(
    name: str, clients: Clients, default: str, choices: tuple[str, ...], doc: str = "", *aliases: str, **words: str
) -> Setting:
    """One of `choices`; `words` are other spellings."""
    return Setting(name, clients, "choice", default, doc, choices=choices, aliases=aliases, synonyms=words)


def strings(clients: Clients, names: str) -> tuple[Setting, ...]:
    """Settings with texts as values, without effect and without a default."""
    return tuple(string(name, clients) for name in names.split())


def callback(name: str, clients: Clients, doc: str = "") -> Setting:
    """A callable."""
    return Setting(name, clients, "callable", None, doc)


def without_effect(reason: str, *settings: Setting) -> tuple[Setting, ...]:
    """The settings, accepted and checked without effect for this reason."""
    return tuple(replace(setting, doc=reason, effect="none") for setting in settings)


def always(setting: Setting) -> Setting:
    """The setting, whose strongest value always applies."""
    return replace(setting, effect="always")
