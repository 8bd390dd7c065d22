"""How the command ends where its output, its arguments or its start fail: in one line, or
quietly.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deltaq import Producer, Topic, __version__
from tests.unit.cli.conftest import Shell


@pytest.mark.parametrize("command", ["topics list -o json", "cat orders", "--help"])
def test_output_that_cannot_be_written_is_explained_in_one_line(
    tmp_path: Path, command: str
) -> None:
    Topic("orders", bootstrap_servers=str(tmp_path)).create()
    with Producer(bootstrap_servers=str(tmp_path)) as producer:
        producer.produce("orders", b"tea")
    program = [sys.executable, "-m", "deltaq.cli", "--root", str(tmp_path), *command.split()]
    # Files of the command may have no byte, as on a full disk.
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *program]
    with (tmp_path / "output").open("wb") as output:
        ended = subprocess.run(
            limited, stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "deltaq: [Errno 27] File too large\n")


def test_closed_standard_streams_are_the_null_device(tmp_path: Path) -> None:
    program = f"{sys.executable} -m deltaq.cli --root {tmp_path}"
    ended = subprocess.run(
        f"{program} topics create orders >&- && {program} produce orders <&- && "
        f"{program} topics list >&- 2>&- && {program} topics list",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "deltaq: 0 messages written to orders\n")
    assert ended.stdout.splitlines()[1].split()[0] == "orders"


@pytest.mark.parametrize("command", ["cat", "head --table", "cat -o json", "stat"])
def test_what_the_encoding_of_the_output_has_not_is_escaped(deltaq: Shell, command: str) -> None:
    deltaq("produce orders --create -k \u6f22", "Łódź\n".encode())
    verb, *options = command.split()
    ended = deltaq(" ".join([verb, "orders", *options]), encoding="ascii")
    assert (ended.status, ended.errors) == (0, "")
    if "json" in command:
        assert (ended.json["key"], ended.json["value"]) == ("\u6f22", "Łódź")
    elif "table" in command:
        assert ended.output.splitlines()[1].split()[-2:] == ["\\u6f22", "\\u0141\\xf3d\\u017a"]


@pytest.mark.parametrize(
    "command", ["cat orders -f", "grep orders", "topics list", "sql", "produce orders"]
)
def test_an_argument_that_is_no_text_is_refused_by_its_value(deltaq: Shell, command: str) -> None:
    assert deltaq(command + " '\udcff'").refused("the argument '\\udcff' is not UTF-8", 2)


@pytest.mark.parametrize("command", ["top --rounds 2", "cost", "maintain --once", "serve --port 0"])
@pytest.mark.parametrize("interval", ["inf", "nan", "0", "1e300"])
def test_an_interval_that_no_clock_can_wait_is_a_wrong_argument(
    deltaq: Shell, command: str, interval: str
) -> None:
    ended = deltaq(f"{command} --interval {interval}")
    assert (ended.status, ended.output) == (2, "")
    assert "--interval" in ended.errors


def test_a_command_that_is_interrupted_while_it_starts_ends_quietly() -> None:
    program = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == wanted:
            raise KeyboardInterrupt

wanted = sys.argv[1]
sys.argv[1:] = ["topics", "list"]
sys.meta_path.insert(0, Interrupted())
from deltaq.cli import main
sys.exit(main())
"""
    for module in ("typer", "deltaq.cli.topics"):
        ended = subprocess.run(
            [sys.executable, "-c", program, module], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("module", ["deltaq", "deltaq.cli"])
def test_the_command_runs_as_a_module_and_says_what_it_needs(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"deltaq {__version__}\n"
    program = (
        f"import runpy, sys; sys.modules['typer'] = None; runpy.run_module({module!r}, "
        "run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "deltaq: the command needs the extra [cli]: pip install 'deltaq[cli]'\n"
