"""Commands as functions: their arguments and options, and what all of them share. Typer is known
only here.

A command is a function whose first parameter is a `CliSession`. Its other parameters are the
command's own arguments and options. The options of every command (the root, the form of the output)
are added here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from deltaq.cli.output import OutputForm
from deltaq.cli.session import CliSession
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import printable
from deltaq.version import __version__

Argument = typer.Argument
Option = typer.Option
Context = typer.Context
UsageError = typer.BadParameter
"""A wrong argument: the command ends with status 2 and this text."""

Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]


def _inherited(context: typer.Context, parameter: typer.CallbackParam, value: object) -> object:
    """An option's value: that of the command, or else that given before it, as in `deltaq --root X
    topics list`.
    """
    return value or context.find_root().params.get(str(parameter.name))


def _option(*names: str, **about: Any) -> Any:
    return typer.Option(
        *names,
        show_default=False,
        show_envvar=False,
        rich_help_panel="Options of all commands",
        **about,
    )


_ROOT = "Folder or URL of the root, as in bootstrap.servers.  [env var: DELTAQ_ROOT]"
_FORM = "Form of the output: table, or json for programs."
_CONFIG = (
    "File with settings of clients, NAME=VALUE in each line.  [env var: DELTAQ_COMMAND_CONFIG]"
)
_SET = "NAME=VALUE: a setting of clients, such as store.endpoint. May be repeated."

_SHARED = {
    "root": Annotated[
        str | None, _option("--root", "-r", help=_ROOT, metavar="ROOT", callback=_inherited)
    ],
    "output": Annotated[
        OutputForm | None, _option("--output", "-o", help=_FORM, callback=_inherited)
    ],
    "command_config": Annotated[
        Path | None, _option("--command-config", help=_CONFIG, metavar="FILE", callback=_inherited)
    ],
    "settings": Annotated[
        list[str] | None, _option("--set", "-X", help=_SET, metavar="NAME=VALUE")
    ],
}


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"deltaq {__version__}\n")
        raise typer.Exit


def _program(
    root: Annotated[
        str | None, _option("--root", "-r", help=_ROOT, metavar="ROOT", envvar="DELTAQ_ROOT")
    ] = None,
    output: Annotated[OutputForm | None, _option("--output", "-o", help=_FORM)] = None,
    command_config: Annotated[
        Path | None,
        _option("--command-config", help=_CONFIG, metavar="FILE", envvar="DELTAQ_COMMAND_CONFIG"),
    ] = None,
    settings: Annotated[
        list[str] | None, _option("--set", "-X", help=_SET, metavar="NAME=VALUE")
    ] = None,
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options before a command apply to it, unless it has its own: see `_inherited`."""


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if the user agrees: with `--yes`, or at the terminal. Ends the command
    otherwise.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask for confirmation: add --yes")
    typer.confirm(question, abort=True)


def finish(status: int) -> NoReturn:
    """End the command with this status: what it found, it has printed."""
    raise typer.Exit(status)


def fail(reason: str) -> NoReturn:
    """End the command with status 1 and this text: something was refused or failed, though no call
    raised.
    """
    sys.stderr.write(f"deltaq: {printable(reason)}\n")
    raise typer.Exit(1)


# --- help as in a manual ---


class _Formatter(typer.Context.formatter_class):  # type: ignore[valid-type, misc] # Typer hides its type
    """Help without Python's types: TOPIC and not {TOPIC}, N and not <int range>."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, re.sub(r"\{(\S+?)\}", r"\1", args), prefix)

    def write_dl(self, rows: Sequence[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
        super().write_dl([(_in_words(name), text) for name, text in rows], *args, **kwargs)


def _in_words(name: str) -> str:
    """The name of an argument or option, with what stands for its value: a text, a number, or
    words.
    """
    found = re.fullmatch(r"(.*) <(?:list\[)?([^\]>]+)\]?>", name)
    if found is None:
        return name
    if not name.startswith("-"):
        return found[1]
    kinds = {"str": "TEXT", "int": "N", "int range": "N", "float": "N", "float range": "N"}
    return f"{found[1]} {kinds.get(found[2], found[2])}"


class _Context(typer.Context):
    formatter_class = _Formatter


class _Command(TyperCommand):
    context_class = _Context


class _Group(TyperGroup):
    context_class = _Context
    order: Sequence[str] = ()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as in Typer
        """The commands as they were registered; Typer would put groups of commands behind them."""
        return [name for name in self.order if name in self.commands]


class Commands:
    """A group of commands."""

    def __init__(self, help_text: str, epilog: str | None = None) -> None:
        self._names: list[str] = []
        self._typer = typer.Typer(
            cls=type("Group", (_Group,), {"order": self._names}),
            help=help_text,
            short_help=help_text,
            epilog=epilog,
            no_args_is_help=True,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def register(self, name: str, command: Command) -> None:
        """Make a function, or a group of commands, the command `name` of this group."""
        if isinstance(command, Commands):
            self._names.append(name)
            self._typer.add_typer(command._typer, name=name)
        else:
            self.add(name)(command)

    def add(self, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """A decorator that makes a function the command `name` of this group."""

        def add(function: Callable[..., None]) -> Callable[..., None]:
            self._names.append(name)
            # Typer would cut it.
            summary = re.split(r"(?<=[.])\s", inspect.getdoc(function) or "", maxsplit=1)[0]
            self._typer.command(name, cls=_Command, short_help=summary)(_with_session(function))
            return function

        return add

    def run(self, arguments: Sequence[str] | None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Run the command that the arguments name; None for those of the process. Always raises:
        SystemExit, or what the command raises.
        """
        self._typer.callback()(_program)
        self._typer(arguments, prog_name="deltaq", obj=clock)


Command: TypeAlias = Commands | Callable[..., None]


def _with_session(function: Callable[..., None]) -> Callable[..., None]:
    """The function as Typer calls it: with the shared options in place of the session."""
    signature = inspect.signature(function, eval_str=True)
    _, *own = signature.parameters.values()
    own = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _SHARED.items()
    ]

    @wraps(function)
    def command(context: typer.Context, **values: Any) -> None:
        given = {name: values.pop(name) for name in _SHARED}
        before: Sequence[str] = context.find_root().params.get("settings") or ()
        given["settings"] = [*before, *(given["settings"] or ())]
        function(CliSession.opened(clock=context.obj, **given), **values)

    parameters = [context, *own, *shared]
    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
