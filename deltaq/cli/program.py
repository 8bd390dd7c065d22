"""The `deltaq` command: all commands, and what becomes of their errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from deltaq.cli import INTERRUPTED
from deltaq.cli.command import Command, Commands
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import InvalidConfig, KafkaException, printable

_HELP = """
Work with deltaq topics and groups under a root: a folder, s3://, gs:// or az://.

Every command takes the root from --root or from DELTAQ_ROOT, and prints JSON with -o json. The exit
status is 0 for success, 1 if something was refused or failed, 2 for a wrong argument or setting,
130 after Ctrl-C.
"""

_EXAMPLES = """
Examples:

\b
  deltaq topics create orders --partitions 3
  printf 'anna:tea\\n' | deltaq produce orders -K :
  deltaq tail orders -n 20 --follow
  deltaq consume orders --from -2h --exit --grep milk -o json
  deltaq groups reset-offsets billing --topic orders --to 2026-11-25T09:30
  deltaq copy ./deltaq-data s3://events/mirror --groups --follow

Each command has --help. deltaq --install-completion completes names of commands, options, topics,
groups and transactional ids.
"""

REFUSED, USAGE = 1, 2
"""Exit statuses."""


_MODULES: Mapping[str, tuple[str, ...]] = {
    "topics": ("topics",),
    "produce": ("produce",),
    "messages": ("consume", "cat", "head", "tail", "grep", "wc", "stat", "diff"),
    "groups": ("groups",),
    "queues": ("queues",),
    "transactions": ("transactions",),
    "views": ("views",),
    "schemas": ("schemas",),
    "copies": ("copy", "backup", "restore"),
    "health": ("sql", "doctor", "maintain", "setup"),
    "estimates": ("cost", "bench"),
    "top": ("top",),
    "serve": ("serve",),
}
"""The modules of commands, and the commands of each in the order of the help."""


def program(arguments: Sequence[str]) -> Commands:
    """The commands that the arguments may name; all of them only for help, completion and unknown
    names.

    Importing and building those that are not used would delay every command.
    """
    commands = Commands(_HELP, _EXAMPLES)
    is_named = not {name for names in _MODULES.values() for name in names}.isdisjoint(arguments)
    for module, names in _MODULES.items():
        wanted = [name for name in names if name in arguments or not is_named]
        if wanted:
            found: Mapping[str, Command] = import_module("deltaq.cli." + module).COMMANDS
            for name in wanted:
                commands.register(name, found[name])
    return commands


def run(arguments: Sequence[str] | None = None, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the command that the arguments name, and return its exit status. None: the arguments of
    the process.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A topic may hold what the terminal's encoding has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _status(sys.argv[1:] if arguments is None else arguments, clock)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return REFUSED
    except OSError as error:
        _discard_output()
        sys.stderr.write(f"deltaq: {printable(str(error))}\n")
        return REFUSED
    except KafkaException as error:
        sys.stderr.write(f"deltaq: {printable(error.error.str())}\n")
        return USAGE if isinstance(error, InvalidConfig) else REFUSED


def _status(arguments: Sequence[str], clock: Clock) -> int:
    for argument in arguments:
        if not _is_text(argument):
            raise InvalidConfig(f"the argument {argument!a} is not UTF-8", key="argument")
    try:
        program(arguments).run(arguments, clock)
    except SystemExit as end:
        sys.stdout.flush()  # while a full disk can still be reported
        return end.code if isinstance(end.code, int) else REFUSED
    return 0


def _is_text(argument: str) -> bool:
    """Whether an argument was UTF-8: Python keeps other bytes as characters that no text can
    have.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _discard_output() -> None:
    # Python flushes standard output again at exit, and would report the same failure once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
