"""`deltaq serve`: the console in a browser."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from deltaq.cli.command import Argument, Command, Option, fail
from deltaq.cli.session import CliSession
from deltaq.errors import InvalidConfig

TOKEN_VARIABLE = "DELTAQ_CONSOLE_TOKEN"  # noqa: S105 - the name of the variable


def serve(
    session: CliSession,
    roots: Annotated[
        list[str] | None,
        Argument(help="Roots to show, in place of --root.", metavar="ROOT", show_default=False),
    ] = None,
    host: Annotated[str, Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, Option("--port", "-p", min=0, max=65535, help="Port to listen at; 0 for any free one.")
    ] = 8090,
    write: Annotated[
        bool,
        Option(
            "--write",
            help="Let people with the token create, alter, delete topics and reset offsets.",
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        Option(
            "--token-file",
            metavar="FILE",
            help=f"File with the token.  [env var for the token: {TOKEN_VARIABLE}]",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        Option(
            "--allow-host",
            metavar="NAME",
            help="A host name under which browsers come. May be repeated.",
        ),
    ] = None,
    interval: Annotated[
        float,
        Option("--interval", min=0.1, max=1e6, metavar="S", help="Seconds between two looks."),
    ] = 2.0,
) -> None:
    """Show topics, messages, groups and costs as a live page in a browser, with the extra
    [console].

    Without --write, pages change nothing. They are open to this machine only; with another --host,
    the token is needed to see them. A token that is not given is made and printed. /metrics is for
    Prometheus. Ends at Ctrl-C.
    """
    try:
        from deltaq.console import server  # noqa: PLC0415 - `deltaq --help` needs no server
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("jinja2", "starlette", "uvicorn"):
            raise
        fail("the console needs the extra [console]: pip install 'deltaq[console]'")
    settings = server.ServerSettings(
        host, port, write, _token(token_file), allow_host or (), interval
    )
    confs = [{**session.conf, "bootstrap.servers": root} for root in roots or [session.root]]
    console = server.console_of(
        confs,
        settings,
        session.clock,
        lambda token: session.out.note(f"the token of this console is {token}"),
    )

    def tell(url: str) -> None:
        if session.out.is_json:
            session.out.json_line({"url": url})
        else:
            session.out.done(f"serving {url}")

    server.serve(console, settings, tell)


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"--token-file {path}: {error}", key="--token-file") from None


COMMANDS: Mapping[str, Command] = {"serve": serve}
