"""The documentation does what it says: its code runs, its commands and links exist.

In README.md, docs/**/*.md, benchmarks/*.md and examples/**/*.md, a fenced block with the info string

* `python` runs, after the blocks above it on the same page, in an empty folder and with warnings as errors;
* `python spark` does so where there is Java. The pages with such blocks run one after the other in one process, each
  with names and a root of its own, because a session of Spark takes many seconds to start;
* `python no-run: <reason>` is not run, and the reader sees why;
* `bash`, `console` or `sh` names only make targets and files that exist;
* `bash` runs in an empty folder, in the README after its Python, unless it is `bash no-run: <reason>`. What would go on
  for ever is ended once it works. Nothing is installed, made or sent: pip is asked only for extras that there are, make
  for targets, `python -m` for examples, which have tests of their own, and a bucket is a folder.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.children import NEED_NUMPY, environment_of_child
from tests.conftest import QUICK_JAVA, SPARK_OF_TESTS, java_version

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FOLDERS = (ROOT / "docs", ROOT / "benchmarks", ROOT / "examples")
PAGES = [
    page
    for page in (README, *(page for folder in FOLDERS for page in sorted(folder.rglob("*.md"))))
    if page.is_file()
]
DEADLINE_S = 300  # the time of Spark for a page depends on the load of the machine
BASH_INFOS = re.compile(r"bash|bash no-run: \S.*")
PYTHON_INFOS = re.compile(r"python|python spark|python no-run: \S.*")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands behind the opening fence, the number of its first line, and its lines."""  # noqa: E501

    info: str
    line: int
    lines: tuple[str, ...]

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]


def _parts(markdown: str) -> Iterator[Block | str]:
    """The blocks of a page and, between them, its lines of prose."""
    lines = iter(enumerate(markdown.splitlines(), 1))
    for number, line in lines:
        opening = re.match(r"( *)(`{3,}|~{3,}) *([^`]*)$", line)
        if opening is None:
            yield line
            continue
        indent, fence, info = opening.groups()
        body = []
        for _, inner in lines:
            if re.fullmatch(rf" *{fence[0]}{{{len(fence)},}} *", inner):
                break
            body.append(inner.removeprefix(indent))
        else:
            raise ValueError(f"the block that starts in line {number} never ends")
        yield Block(info.strip(), number + 1, tuple(body))


def _blocks(markdown: str) -> list[Block]:
    return [part for part in _parts(markdown) if isinstance(part, Block)]


def _prose(markdown: str) -> str:
    return "\n".join(part for part in _parts(markdown) if isinstance(part, str))


def _program(markdown: str, infos: Container[str]) -> str:
    """The blocks with these info strings as one program, each on its lines of the page, so that errors point there."""  # noqa: E501
    lines = [""] * markdown.count("\n")
    for block in (block for block in _blocks(markdown) if block.info in infos):
        lines[block.line - 1 : block.line - 1 + len(block.lines)] = block.lines
    return "\n".join(lines)


RUNNER = """
import json, sys
for path, program in json.load(sys.stdin):
    exec(compile(program, path, "exec"), {"__name__": "__main__"})
"""

RUNNER_APART = """
import json, os, sys
import pyarrow.parquet, pydantic, deltaq
deltaq.Producer, deltaq.Consumer, deltaq.Topic
failed = False
for number, (path, program) in enumerate(json.load(sys.stdin)):
    if not (child := os.fork()):
        os.mkdir(str(number))
        os.chdir(str(number))
        exec(compile(program, path, "exec"), {"__name__": "__main__"})
        sys.exit()
    failed |= os.waitpid(child, 0)[1] != 0
sys.exit(failed)
"""
"""The same, each page in a process and a folder of its own, all of them even if one fails. What all
import is imported once.
"""


_NUMERIC = ("deltaq.spark", "deltaq.views")


def _run(programs: Mapping[Path, str], folder: Path, runner: str = RUNNER) -> None:
    """Run the programs of pages one after the other in `folder`; fail with their output if one fails."""  # noqa: E501
    # pyspark imports it, and views by rules need it.
    is_needed = any(name in text for text in programs.values() for name in _NUMERIC)
    needs = NEED_NUMPY if is_needed else {}
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", runner],
        input=json.dumps([(str(page), program) for page, program in programs.items()]),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**environment_of_child(), **needs, "JDK_JAVA_OPTIONS": QUICK_JAVA},
        timeout=DEADLINE_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout


def _commands(markdown: str) -> Iterator[str]:
    """Every command of the shell blocks, without prompt and comment, and every `make ...` in the prose."""  # noqa: E501
    for block in _blocks(markdown):
        if block.language in ("bash", "console", "sh"):
            for line in block.lines:
                # In a console block, a line without a prompt is what the command printed.
                if block.language != "console" or line.startswith("$ "):
                    yield line.removeprefix("$ ").partition(" #")[0].strip()
    yield from re.findall(r"`(make [^`]+)`", _prose(markdown))


def _anchors(markdown: str) -> set[str]:
    """What a link to a heading may say, by the rule that GitHub uses."""
    headings = re.findall(r"^#+ +(.+?) *#*$", _prose(markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _leads_somewhere(page: Path, target: str) -> bool:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):  # an address elsewhere
        return True
    path, _, anchor = target.partition("#")
    file = (page.parent / unquote(path)) if path else page
    return file.exists() and (
        not anchor or file.suffix != ".md" or anchor in _anchors(file.read_text())
    )


def _broken_links(page: Path) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", _prose(page.read_text()))
    links = re.finditer(r"\]\(<?([^)\s>]+)[^)]*\)|^\[[^\]]+\]: +(\S+)", prose, re.MULTILINE)
    return [target for link in links if not _leads_somewhere(page, target := link[1] or link[2])]


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_there_is_a_readme() -> None:
    assert README.is_file(), (
        "README.md is missing: the package cannot be built and CI has no command to follow"
    )


def _pages_with(info: str) -> list[Path]:
    return [
        page for page in PAGES if any(block.info == info for block in _blocks(page.read_text()))
    ]


@pytest.mark.timeout(DEADLINE_S + 60)
def test_the_python_of_each_page_runs(tmp_path: Path) -> None:
    # Where there is Java, all blocks of the pages of Spark run below.
    below = _pages_with("python spark") if java_version() >= 17 else []
    pages = [page for page in _pages_with("python") if page not in below]
    programs = {page: _program(page.read_text(), {"python"}) for page in pages}
    _run(programs, tmp_path, RUNNER_APART)


@pytest.mark.spark
@pytest.mark.timeout(DEADLINE_S + 60)
def test_the_pages_of_spark_run_in_one_session(tmp_path: Path) -> None:
    pages = _pages_with("python spark")
    assert len(pages) > 1
    # The session that the pages find. With Spark's environment variables, workers would start from
    # its archives.
    start = f"spark_session('pages', conf={SPARK_OF_TESTS!r})"
    session = f"from deltaq.spark import spark_session\n{start}"
    programs = {page: _program(page.read_text(), {"python", "python spark"}) for page in pages}
    _run({Path(__file__): session, **programs}, tmp_path)


def _without_a_reason(languages: Container[str], infos: re.Pattern[str]) -> list[str]:
    return [
        f"{_name(page)}:{block.line}: {block.info}"
        for page in PAGES
        for block in _blocks(page.read_text())
        if block.language.lower() in languages and not infos.fullmatch(block.info)
    ]


def test_every_python_block_runs_or_gives_a_reason() -> None:
    assert _without_a_reason(("py", "python", "python3"), PYTHON_INFOS) == []


PROGRAMS = {
    "deltaq": """
        import os, signal, subprocess, sys, urllib.request
        arguments = sys.argv[1:]
        if "tail" in arguments and "--follow" in arguments:
            arguments += ["--timeout", "0"]
        if "copy" in arguments:
            arguments = [argument.replace("s3://", "./") for argument in arguments if argument != "--follow"]
        if "serve" not in arguments:
            os.execv(sys.executable, [sys.executable, "-m", "deltaq.cli", *arguments])
        command = [sys.executable, "-m", "deltaq.cli", *arguments, "--port", "0"]  # the usual one may be taken
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            line = service.stdout.readline()
            assert line.startswith("serving http://"), line
            assert urllib.request.urlopen(line.split()[1] + "static/console.js").status == 200
            service.send_signal(signal.SIGINT)
        sys.exit(service.returncode)
        """,  # noqa: E501
    "pip": """
        import re, sys, tomllib
        extras = re.fullmatch(r"install /path/to/deltaq\\[(.+)\\]", " ".join(sys.argv[1:]))
        known = tomllib.load(open(ROOT + "/pyproject.toml", "rb"))["project"]["optional-dependencies"]
        assert set(extras[1].split(",")) <= set(known)
        """,  # noqa: E501
    "make": """
        import pathlib, re, sys
        targets = re.findall(r"^([a-z-]+):", pathlib.Path(ROOT, "Makefile").read_text(), re.MULTILINE)
        assert sys.argv[1] in targets and all(word.startswith("ARGS=") for word in sys.argv[2:])
        """,  # noqa: E501
    "python": """
        import importlib.util, os, sys
        arguments = sys.argv[1:]
        if arguments[:1] == ["-m"] and arguments[1].startswith("examples."):
            sys.exit(importlib.util.find_spec(arguments[1]) is None)
        if arguments[:2] == ["-m", "deltaq.maintenance"] and "--dry-run" not in arguments:
            arguments.append("--once")  # it would go on for ever
        os.execv(sys.executable, [sys.executable, *arguments])
        """,
}
"""What stands for these programs in the shell of a page."""


def _run_shell(script: str, folder: Path) -> None:
    """Run the shell blocks of a page in `folder`, where the files are that the text asks for."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(
            f"#!{sys.executable}\nROOT = {str(ROOT)!r}\n{textwrap.dedent(text)}"
        )
        (programs / name).chmod(0o755)
    (folder / "token").write_text("a-token-for-the-tests\n")
    for bucket in re.findall(r"s3://([\w-]+)/", script):
        (folder / bucket).mkdir(exist_ok=True)  # `deltaq` takes a folder for it
    about = {"HOME": str(folder), "DELTAQ_ROOT": "./deltaq-data"}
    answer = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**environment_of_child(), **about, "PATH": f"{programs}:{os.environ['PATH']}"},
        timeout=DEADLINE_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout


@pytest.mark.timeout(2 * DEADLINE_S + 60)
@pytest.mark.parametrize("page", _pages_with("bash"), ids=_name)
def test_the_shell_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    if page == README:
        _run(
            {page: _program(page.read_text(), {"python"})}, tmp_path
        )  # its commands show what this has written
    _run_shell(_program(page.read_text(), {"bash"}), tmp_path)


def test_every_bash_block_runs_or_gives_a_reason() -> None:
    assert _without_a_reason(("bash", "sh", "shell"), BASH_INFOS) == []


@pytest.mark.parametrize(
    "command",
    [
        "deltaq no-such-verb",
        "deltaq serve --no-such-option",
        "deltaq tail nothing --follow",
        "pip install 'deltaq[cli]'",
        "pip install '/path/to/deltaq[x]'",
        "make no-such-target",
        "python -m examples.no_such_example",
    ],
)
def test_a_shell_command_that_fails_is_noticed(command: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _run_shell(command, tmp_path)


def test_every_command_of_a_page_exists() -> None:
    targets = _make_targets()
    for page in PAGES:
        for command in _commands(page.read_text()):
            words, said = command.split(), f"{_name(page)}: {command}"
            if words[:1] == ["make"]:
                assert {w for w in words[1:] if re.fullmatch("[a-z-]+", w)} <= targets, said
            for word in words:
                if re.fullmatch(r"(?:examples|benchmarks|tests|scripts)/[\w/.-]+", word):
                    assert (ROOT / word).exists(), said


def test_every_link_of_a_page_leads_somewhere() -> None:
    assert [(_name(page), broken) for page in PAGES if (broken := _broken_links(page))] == []


COLUMNS = 100
GENERATED = ROOT / "docs/reference"


def _too_wide(markdown: str) -> list[str]:
    """The lines of prose that go beyond the last column and could end before it: no tables, code or
    single words.
    """
    return [
        line
        for line in _prose(markdown).splitlines()
        if len(line) > COLUMNS
        and not re.match(r" *\||#|\[[^\]]+\]: | {4}", line)
        and re.search(r"\S ", line.lstrip().removeprefix("- ").removeprefix("* "))
    ]


def test_the_prose_of_a_page_ends_at_the_last_column() -> None:
    pages = (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
    written = (page for page in pages if GENERATED not in page.parents)
    assert [(_name(page), wide) for page in written if (wide := _too_wide(page.read_text()))] == []


def test_a_line_that_is_too_wide_is_noticed() -> None:
    wide = " ".join(["words"] * 20)
    assert _too_wide(f"{wide}\n- {wide}\n") == [wide, f"- {wide}"]
    assert _too_wide(f"| {wide} |\n\n# {wide}\n\n```bash\n{wide}\n```\n\n- {'x' * 101}\n") == []


def test_ci_runs_the_commands_that_the_readme_names() -> None:
    script = [
        line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.startswith("#")
    ]
    run = [
        command
        for line in script
        if "echo" not in line
        for command in re.findall(r"\bmake [a-z-]+", line)
    ]
    assert run == ["make test", "make test-minio"]
    named = _commands(README.read_text())
    assert all(any(line.startswith(command) for line in named) for command in run)


PAGE = """# One page

```python
answer = 6 * 7
```
Text with `make test`.

~~~python
assert answer == 42
~~~

```console
$ make demo  # the main job
make nonsense
```
"""


def test_blocks_are_found_with_their_lines() -> None:
    assert [(block.info, block.line, block.lines) for block in _blocks(PAGE)] == [
        ("python", 4, ("answer = 6 * 7",)),
        ("python", 9, ("assert answer == 42",)),
        ("console", 13, ("$ make demo  # the main job", "make nonsense")),
    ]
    assert list(_commands(PAGE)) == ["make demo", "make test"]


def test_a_block_without_an_end_is_noticed() -> None:
    with pytest.raises(ValueError, match="line 1 never ends"):
        _blocks("```python\nanswer = 42\n")


def test_later_blocks_see_the_names_of_earlier_ones(tmp_path: Path) -> None:
    _run({tmp_path / "page.md": _program(PAGE, {"python"})}, tmp_path)


@pytest.mark.parametrize(
    "statement", ["assert answer == 43", "import warnings; warnings.warn('old')"]
)
def test_code_that_fails_is_noticed_with_its_line_in_the_page(
    statement: str, tmp_path: Path
) -> None:
    program = _program(PAGE.replace("assert answer == 42", statement), {"python"})
    with pytest.raises(AssertionError, match=r'page\.md", line 9'):
        _run({tmp_path / "page.md": program}, tmp_path)


@pytest.mark.parametrize(
    "info", ["python no-run", "python no-run:", "python norun: slow", "python3"]
)
def test_a_block_that_gives_no_reason_is_noticed(info: str) -> None:
    assert not PYTHON_INFOS.fullmatch(info)


def test_a_broken_link_or_anchor_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Here we are, `deltaq`!\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#here-we-are-deltaq) [c](https://example.org/x) `[d](nowhere.md)`\n"  # noqa: E501
        "[e](nowhere.md) [f](other.md#elsewhere) [g](#nothing)\n"
        "\n[h]: gone.md\n"
    )
    assert _broken_links(page) == ["nowhere.md", "other.md#elsewhere", "#nothing", "gone.md"]
