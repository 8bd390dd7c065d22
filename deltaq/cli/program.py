"""The `deltaq` command: all commands, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from deltaq.cli import copies, groups, health, messages, topics
from deltaq.cli.command import Commands
from deltaq.cli.produce import produce
from deltaq.cli.top import top
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import InvalidConfig, KafkaException, printable

_HELP = """
Work with deltaq topics and groups under a root: a folder, s3://, gs:// or az://.

Every command takes the root from --root or from DELTAQ_ROOT, and prints JSON with -o json. The exit status is 0 for
success, 1 if something was refused or failed, 2 for a wrong argument or setting.
"""

REFUSED, USAGE = 1, 2
"""Exit statuses."""


def program() -> Commands:
    """All commands."""
    commands = Commands(_HELP)
    commands.add_group("topics", topics.COMMANDS)
    commands.add_group("groups", groups.COMMANDS)
    commands.add("produce")(produce)
    messages.add_commands(commands)
    copies.add_commands(commands)
    health.add_commands(commands)
    commands.add("top")(top)
    return commands


def run(arguments: Sequence[str] | None = None, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the command that the arguments name, and return its exit status. None: the arguments of the process."""
    try:
        program().run(arguments, clock)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else REFUSED
    except BrokenPipeError:
        # Python flushes standard output again at exit, and would report the broken pipe once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except KafkaException as error:
        sys.stderr.write(f"deltaq: {printable(error.error.str())}\n")
        return USAGE if isinstance(error, InvalidConfig) else REFUSED
    return 0
