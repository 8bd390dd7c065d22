"""Short constructors for the rows of the tables of settings. `Setting.means` adds the
description.
"""

from __future__ import annotations

from deltaq.config.setting import Clients, Setting

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DAY_MS = 86_400_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def boolean(name: str, clients: Clients, default: bool, *aliases: str) -> Setting:
    """A setting that is true or false."""
    return Setting(name, clients, "boolean", default, choices=("true", "false"), aliases=aliases)


def integer(
    name: str, clients: Clients, default: int, low: int, high: int, *aliases: str, **words: str
) -> Setting:
    """A whole number from `low` to `high`, or one of `words` for one."""
    return Setting(name, clients, "integer", default, low, high, aliases=aliases, synonyms=words)


def number(
    name: str, clients: Clients, default: float, low: float, high: float, *aliases: str
) -> Setting:
    """A number from `low` to `high`."""
    return Setting(name, clients, "float", default, low, high, aliases=aliases)


def string(name: str, clients: Clients, default: str | None = None, *aliases: str) -> Setting:
    """Any text."""
    return Setting(name, clients, "string", default, aliases=aliases)


def choice(
    name: str, clients: Clients, default: str, choices: tuple[str, ...], *aliases: str, **words: str
) -> Setting:
    """One of `choices`; `words` are other spellings."""
    return Setting(
        name, clients, "choice", default, choices=choices, aliases=aliases, synonyms=words
    )


def several(
    name: str,
    clients: Clients,
    default: tuple[str, ...],
    choices: tuple[str, ...],
    *,
    functions: bool = False,
    may_be_empty: bool = False,
) -> Setting:
    """A list of `choices`, and of functions if these are allowed."""
    return Setting(
        name,
        clients,
        "list",
        default,
        choices=choices,
        functions=functions,
        may_be_empty=may_be_empty,
    )


def strings(clients: Clients, names: str) -> tuple[Setting, ...]:
    """Settings with texts as values and without a default."""
    return tuple(string(name, clients) for name in names.split())


def callback(name: str, clients: Clients) -> Setting:
    """A callable."""
    return Setting(name, clients, "callable", None)


def without_effect(reason: str, *settings: Setting) -> tuple[Setting, ...]:
    """The settings, accepted and checked without effect for this reason."""
    return tuple(setting.means(reason, effect="none") for setting in settings)
