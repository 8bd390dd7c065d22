"""Arguments that several commands take: topics, settings, and what the shell completes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from deltaq import names
from deltaq.cli.command import Argument, Context, UsageError
from deltaq.cli.output import OutputForm
from deltaq.cli.session import CliSession
from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import KafkaException
from deltaq.store.contract import StoreError


def _complete(context: Context, incomplete: str, folder: str) -> list[str]:
    """The names in a folder of the root that begin with `incomplete`; none if the root does not
    answer.
    """
    given = {
        **context.find_root().params,
        **{name: value for name, value in context.params.items() if value},
    }
    root = given.get("root") or os.environ.get("DELTAQ_ROOT")
    config = given.get("command_config") or os.environ.get("DELTAQ_COMMAND_CONFIG")
    try:
        session = CliSession.opened(
            root=root,
            output=OutputForm.TABLE,
            command_config=Path(config) if config else None,
            settings=given.get("settings") or (),
            clock=SYSTEM_CLOCK,
        )
        found = session.store.list_folders(folder)
    except (KafkaException, StoreError):
        return []
    return [name for name in names.named(folder, found) if name.startswith(incomplete)]


def complete_topic(context: Context, incomplete: str) -> list[str]:
    """For the shell: topics of the root."""
    return _complete(context, incomplete, names.TOPICS_FOLDER)


def complete_group(context: Context, incomplete: str) -> list[str]:
    """For the shell: groups of the root."""
    return _complete(context, incomplete, names.GROUPS_FOLDER)


def complete_transactional_id(context: Context, incomplete: str) -> list[str]:
    """For the shell: transactional ids of the root."""
    return _complete(context, incomplete, names.TRANSACTIONS_FOLDER)


def complete_views(context: Context, incomplete: str) -> list[str]:
    """For the shell: groups of views of the root."""
    topics = _complete(context, incomplete, names.TOPICS_FOLDER)
    return [name.removesuffix(".ticks") for name in topics if name.endswith(".ticks")]


Topic = Annotated[
    str, Argument(help="Name of the topic.", metavar="TOPIC", autocompletion=complete_topic)
]
Topics = Annotated[
    list[str], Argument(help="Names of topics.", metavar="TOPIC", autocompletion=complete_topic)
]
Group = Annotated[
    str, Argument(help="The id of the group.", metavar="GROUP", autocompletion=complete_group)
]
Groups = Annotated[
    list[str], Argument(help="Ids of groups.", metavar="GROUP", autocompletion=complete_group)
]


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """The NAME=VALUE texts of an option as a dict. Raises UsageError."""
    found = {}
    for pair in given or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {pair!r} is not NAME=VALUE")
        found[name] = value
    return found
