"""`deltaq serve` as a process, and its token."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from deltaq.cli.serve import TOKEN_VARIABLE
from tests.unit.cli.conftest import Shell

TOKEN = "a-token-for-the-tests"


def test_the_console_is_served_until_it_is_ended(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "deltaq.cli", "serve", str(tmp_path), "--port", "0", "--write"]
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN}
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = re.fullmatch(r"serving (http://127\.0\.0\.1:\d+/)\n", line)
            assert url is not None
            with urlopen(url[1], timeout=30) as answer:
                assert "There are no topics yet." in answer.read().decode()
            # One that stays open.
            with urlopen(f"{url[1]}roots/0/events?page=", timeout=30) as page:
                assert page.readline() == b"retry: 2000\n"
                process.send_signal(signal.SIGTERM)
                output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert TOKEN not in line + output


def test_a_token_is_printed_only_if_it_was_made(
    deltaq: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []

    def serve(_console: object, settings: object, notify: Callable[[str], object]) -> None:
        served.append(settings)
        notify("http://here/")

    monkeypatch.setattr("deltaq.console.server.serve", serve)
    assert (ended := deltaq("serve --write")).status == 0
    assert re.fullmatch(r"deltaq: the token of this console is [0-9a-f]{64}\n", ended.errors)
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert deltaq(f"serve --write --token-file {tmp_path / 'token'}").printed(
        "serving http://here/\n"
    )
    assert deltaq("serve -o json").json == {"url": "http://here/"}
    assert TOKEN not in repr(served)
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    assert deltaq("serve").refused("the token must have 16 ASCII characters at least", 2)
    assert "--token-file" in deltaq("serve --token-file /nothing").errors


def test_a_port_in_use_is_named(deltaq: Shell) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert deltaq(f"serve --port {port}").refused(
            f"127.0.0.1:{port}: Address already in use", 2
        )


def test_without_its_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['starlette'] = None; from deltaq.cli.program import run; "
        f"sys.exit(run(['serve', '--root', {str(tmp_path)!r}]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    reason = "deltaq: the console needs the extra [console]: pip install 'deltaq[console]'\n"
    assert (ended.returncode, ended.stderr) == (1, reason)
