"""The rules of the project, checked over its text: the levels of imports, and what is forbidden
everywhere.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.children import with_pandas

ROOT = Path(__file__).resolve().parent.parent

# Lowest first. What stands in `deltaq/` belongs to exactly one level and imports only from its own
# and lower ones.
LEVELS = (
    {
        "clock",
        "config",
        "errors",
        "log_forwarding",
        "message",
        "metrics",
        "names",
        "partitioner",
        "serde",
        "shared_threads",
        "freed_memory",
    }
    | {"outage", "statistics", "telemetry", "units", "version", "weak", "work"},
    {"root", "store"},
    {"parquet"},
    {"delta"},
    {"topics"},
    {"groups", "maintenance", "schema_registry", "share_groups", "transactions"},
    {"metadata", "topic"},
    {"consumer", "producer", "share_consumer"},
    {"admin", "aio"},
    {"tools"},
    {"views"},
    {"console"},
    {"__main__", "cli", "compat", "kombu", "spark", "testing"},
)
# What is installed: the package, and what other programs find by its name.
PACKAGES = ("deltaq/", "pyspark_deltaq/", "pytest_deltaq/")
# Ways in from outside: nothing else in deltaq builds on them.
EDGES = {"__main__", "cli", "compat", "kombu", "spark", "testing"}

# Where a package may be imported: in a file, in a folder with all in it; `()` is nowhere. The
# longest name decides.
DOORS: dict[str, tuple[str, ...]] = {
    "pyarrow": ("deltaq/",),
    "pyarrow.parquet": ("deltaq/parquet/",),
    "obstore": ("deltaq/store/",),
    "minio": ("deltaq/store/bucket_admin.py",),
    "urllib3": ("deltaq/store/bucket_admin.py",),
    "deltalake": ("deltaq/views/delta_tables.py",),
    "pydantic": ("deltaq/serde/",),
    "pydantic_core": ("deltaq/serde/",),
    "avro": ("deltaq/schema_registry/compatibility/avro.py",),
    "fastavro": ("deltaq/schema_registry/avro_format.py", "deltaq/schema_registry/avro_fields.py"),
    "google": ("deltaq/schema_registry/protobuf_format.py",),
    "proto_schema_parser": ("deltaq/schema_registry/protobuf_text.py",),
    "jsonschema": (
        "deltaq/schema_registry/json_drafts.py",
        "deltaq/schema_registry/json_format.py",
        "deltaq/schema_registry/json_unevaluated.py",
        "deltaq/schema_registry/json_validators.py",
    ),
    "referencing": (
        "deltaq/schema_registry/json_format.py",
        "deltaq/schema_registry/json_unevaluated.py",
        "deltaq/schema_registry/json_validators.py",
    ),
    "duckdb": ("deltaq/tools/duckdb_tables.py",),
    "numpy": ("deltaq/views/runs.py",),
    "sqlglot": tuple(
        f"deltaq/views/planning{part}.py"
        for part in ("", "_names", "_parts", "_spark", "_sums", "_time")
    ),
    "openpyxl": ("deltaq/tools/spreadsheets.py",),
    "polars": ("deltaq/tools/frames.py",),
    "opentelemetry": ("deltaq/telemetry.py",),
    "starlette": ("deltaq/console/app.py",),
    "jinja2": ("deltaq/console/rendering.py",),
    "uvicorn": ("deltaq/console/connections.py", "deltaq/console/server.py"),
    "h11": ("deltaq/console/connections.py",),
    "typer": ("deltaq/cli/command.py",),
    "rich": ("deltaq/cli/live.py",),
    "pyspark": ("deltaq/spark/", "pyspark_deltaq/"),
    "delta": ("deltaq/spark/",),
    "pandas": (
        "deltaq/spark/",
        "deltaq/tools/frames.py",
        "deltaq/tools/pandas_frames.py",
    ),
    "kombu": ("deltaq/kombu/__init__.py", "deltaq/kombu/transport.py"),
    "pytest": ("pytest_deltaq/",),
    "typing_extensions": ("deltaq/message.py",),  # for type checkers only
    # A simulator owns time, chance, threads and every kind of waiting.
    "time": ("deltaq/clock.py",),
    "random": ("deltaq/clock.py",),
    "secrets": (),
    "uuid": ("deltaq/clock.py",),
    "threading": ("deltaq/clock.py", "deltaq/testing/"),
    "_thread": (),
    "queue": (),
    "sched": (),
    "multiprocessing": (),
    "concurrent.futures.ThreadPoolExecutor": (),
    "concurrent.futures.ProcessPoolExecutor": (),
    # Reading data must never run code.
    "pickle": (),
    "marshal": (),
    "shelve": (),
    "dill": (),
    "cloudpickle": (),
    "yaml": (),
}
FORBIDDEN_CALLS = {"__import__", "compile", "eval", "exec"}
MACHINE_TIME = r"\b(?:date|datetime)\.(?:now|today|utcnow)$"

VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
TESTS_OF_A_FOLDER = 15
LONGEST_FUNCTION = 70  # lines, docstring not counted: what fits one screen

# Written so that this file does not find itself.
FORBIDDEN_TEXT = {
    "unfinished work": r"\b(?:TO[D]O|FI[X]ME|XX[X]|HA[C]K|NotImplemente[d]Error)\b",
    "a path of one machine": r"(?<![\w.\-/])/(?:work|root|home|Users)/|\.\.[/]shared\b",
    "an address of a package index": (
        r"(?i)pypi\.[o]rg|pythonhosted[.]org|index-[u]rl|find-[l]inks|trusted-[h]ost"
    ),
    "a ticket number": r"(?i)\b(?:issue|pull request|ticket) #?\d+\b",
    "an unexplained ignore": r"#\s*type:\s*ignore(?!\[)|#\s*noq[a](?!:)",
    "the mark of a merge": r"^(?:<{7}|>{7}) ",
}


@dataclass(frozen=True)
class Import:
    """One imported name, as in `from deltaq.store import Store` -> `deltaq.store.Store`, and where
    it stands.
    """

    path: str
    line: int
    name: str
    runs_at_import: bool

    def is_of(self, package: str) -> bool:
        """Whether the name is the package or lies in it."""
        return f"{self.name}.".startswith(f"{package}.")

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.name}"


@cache
def _files() -> tuple[str, ...]:
    """Every file of the project, relative to its root: all that .gitignore does not name."""
    patterns = [
        line.strip().strip("/")
        for line in (ROOT / ".gitignore").read_text().splitlines()
        if line.strip()
    ]

    def ours(names: Iterable[str]) -> list[str]:
        return sorted(
            n for n in names if n != ".git" and not any(fnmatch(n, pattern) for pattern in patterns)
        )

    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = ours(folders)
        found += [Path(folder, name).relative_to(ROOT).as_posix() for name in ours(files)]
    return tuple(found)


def _modules(*folders: str) -> list[str]:
    return [path for path in _files() if path.endswith(".py") and path.startswith(folders)]


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), path)


def _runs_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes that run when the module is imported: no function bodies, nothing that only type
    checkers see.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        yield (node := pending.pop())
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _imports(path: str, tree: ast.Module) -> Iterator[Import]:
    at_import = set(_runs_at_import(tree))
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, node.module or ""]).strip(".")
            names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [ast.unparse(argument).strip("'\"") for argument in node.args[:1]]
        else:
            continue
        for name in names:
            yield Import(path, node.lineno, name, node in at_import)


@cache
def _all_imports() -> tuple[Import, ...]:
    return tuple(found for path in _modules(*PACKAGES) for found in _imports(path, _tree(path)))


def _module_name(path: str) -> str:
    """`deltaq/store/__init__.py` -> `deltaq.store`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _part(module: str) -> str | None:
    """`deltaq.store.local` -> `store`; None for the package itself and other packages."""
    names = module.split(".")
    return names[1] if names[0] == "deltaq" and len(names) > 1 else None


def _level(part: str) -> int:
    return next((height for height, parts in enumerate(LEVELS) if part in parts), -1)


def _against_the_arrows(imports: Iterable[Import]) -> list[str]:
    wrong = []
    for found in imports:
        importer, imported = _part(_module_name(found.path)), _part(found.name)
        if importer is None or not found.is_of("deltaq"):
            continue
        if imported is None or _level(imported) < 0:
            wrong.append(
                f"{found}: the package itself is for users; import the module that defines the name"
            )
        elif _level(imported) > _level(importer):
            wrong.append(f"{found}: upwards")
        # `python -m deltaq` is the command.
        elif imported in EDGES and importer not in (imported, "__main__"):
            wrong.append(f"{found}: nothing builds on {imported}")
    return wrong


def _past_the_doors(imports: Iterable[Import]) -> list[str]:
    wrong = []
    for found in imports:
        package = max(filter(found.is_of, DOORS), key=len, default=None)
        top = found.name.split(".")[0]
        if package is not None:
            if not found.path.startswith(DOORS[package]):
                wrong.append(f"{found}: only {', '.join(DOORS[package]) or 'no module'} may")
        elif top not in sys.stdlib_module_names | {"deltaq"}:
            wrong.append(f"{found}: a package without a door")
    return wrong


def _forbidden_calls(path: str, tree: ast.Module) -> list[str]:
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in FORBIDDEN_CALLS:
            wrong.append(f"{path}:{node.lineno} {node.id}")
        if isinstance(node, ast.Attribute) and re.search(MACHINE_TIME, ast.unparse(node)):
            wrong.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    return wrong


def _forbidden_text(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number} {what}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN_TEXT.items()
        if re.search(pattern, line)
    ]


def test_no_folder_of_unit_tests_has_more_modules_than_fit_one_look() -> None:
    folders = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests/unit").rglob("test_*.py")
    )
    assert {folder: count for folder, count in folders.items() if count > TESTS_OF_A_FOLDER} == {}


def test_every_module_of_deltaq_has_a_level() -> None:
    parts = {part for path in _modules("deltaq/") if (part := _part(_module_name(path)))}
    assert not {part for part in parts if _level(part) < 0}
    assert len(set.union(*LEVELS)) == sum(map(len, LEVELS))


def test_imports_point_only_downwards() -> None:
    assert _against_the_arrows(_all_imports()) == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    names = {path: _module_name(path) for path in _modules(*PACKAGES)}
    graph: dict[str, set[str]] = {name: set() for name in names.values()}
    for found in _all_imports():
        imported = found.name if found.name in graph else found.name.rpartition(".")[0]
        importer = names.get(found.path)
        if importer is not None and found.runs_at_import and imported in graph.keys() - {importer}:
            graph[importer].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.fault("K6")
def test_every_package_enters_through_its_door() -> None:
    assert _past_the_doors(_all_imports()) == []


@pytest.mark.fault("K6")
def test_no_data_is_ever_run_as_code_and_no_clock_read_but_ours() -> None:
    paths = (path for path in _modules(*PACKAGES) if path != "deltaq/clock.py")
    assert [wrong for path in paths for wrong in _forbidden_calls(path, _tree(path))] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("deltaq/topics/scan.py", "from deltaq.producer.producer import Producer"),
        ("deltaq/store/local.py", "from deltaq import Producer"),
        ("deltaq/store/local.py", "from ..topics import scan"),
        ("deltaq/producer/producer.py", "def f():\n    import deltaq.spark"),
        ("deltaq/names.py", "if TYPE_CHECKING:\n    from deltaq.store.contract import Store"),
    ],
)
def test_an_import_against_the_arrows_is_noticed(path: str, source: str) -> None:
    assert _against_the_arrows(_imports(path, ast.parse(source)))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("deltaq/consumer/tail.py", "from pyarrow import parquet"),
        ("deltaq/consumer/tail.py", "import importlib\nimportlib.import_module('obstore.store')"),
        ("deltaq/producer/producer.py", "from time import sleep"),
        ("deltaq/aio.py", "from concurrent.futures import ThreadPoolExecutor"),
        ("deltaq/store/local.py", "import requests"),
        ("deltaq/store/bucket_setup.py", "from minio import Minio"),
    ],
)
def test_a_package_past_its_door_is_noticed(path: str, source: str) -> None:
    assert _past_the_doors(_imports(path, ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["eval(text)", "datetime.now(UTC)", "dt.datetime.utcnow()", "date.today()"]
)
def test_a_forbidden_call_is_noticed(source: str) -> None:
    assert _forbidden_calls("deltaq/consumer/tail.py", ast.parse(source))


@pytest.mark.parametrize(
    "line",
    [
        "# TO" + "DO: later",
        "raise NotImplemented" + "Error",
        "open('/ro" + "ot/data')",
        "pip install --index-" + "url=https://example.org",
        "see is" + "sue #12",
        "x = 1  # type: " + "ignore",
    ],
)
def test_a_forbidden_text_is_noticed(line: str) -> None:
    assert _forbidden_text("a.py", line)


def test_no_text_speaks_of_unfinished_work_or_of_one_machine() -> None:
    wrong = []
    for path in _files():
        data = (ROOT / path).read_bytes()
        # Golden tables and pictures are not text.
        if b"\0" not in data[:8192] and path != "LICENSE":
            wrong += _forbidden_text(path, data.decode())
    assert wrong == []


def test_no_module_has_a_vague_name() -> None:
    assert [
        path for path in _files() if VAGUE_NAMES & set(path.removesuffix(".py").split("/"))
    ] == []


def test_every_function_fits_one_screen() -> None:
    long = []
    for path in _modules(*PACKAGES):
        for node in ast.walk(_tree(path)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.end_lineno is not None
            ):
                first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0].lineno
                if node.end_lineno - first >= LONGEST_FUNCTION:
                    long.append(f"{path}:{node.lineno} {node.name}")
    assert long == []


TWICE = {
    "Metadata": "an action of Delta, and of a schema in the registry, as in Kafka's client",
    "Rule": "of a store with faults, and of a schema in the registry, as in Kafka's client",
}
"""Names of two public classes, and why."""


def test_no_two_classes_have_one_name() -> None:
    """A name that is found once is found at once. `deltaq.compat` repeats the names of Kafka's
    client.
    """
    found = Counter(
        node.name
        for path in _modules("deltaq/", "benchmarks/", "examples/")
        if not path.startswith("deltaq/compat/")
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in found.items() if times > 1} == TWICE.keys()


DOUBLES = {"tests/doubles/doubling.py Consumer", "tests/doubles/doubling.py Producer"}
"""Classes that a program of the tests imports in place of those of `deltaq`."""


def test_no_class_of_the_tests_has_the_name_of_a_public_class() -> None:
    public = {
        node.name
        for path in _modules("deltaq/")
        if not path.startswith("deltaq/compat/")
        for node in _tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    found = {
        f"{path} {name}"
        for path in _modules("tests/")
        for name in re.findall(r"^class (\w+)", (ROOT / path).read_text(), re.MULTILINE)
        if name in public
    }
    assert found == DOUBLES


def test_every_module_and_public_name_has_a_docstring() -> None:
    silent = []
    for path in _modules(*PACKAGES):
        tree = _tree(path)
        nodes: list[ast.Module | ast.ClassDef | ast.FunctionDef] = [tree]
        nodes += [
            n
            for n in tree.body
            if isinstance(n, ast.ClassDef | ast.FunctionDef) and not n.name.startswith("_")
        ]
        silent += [
            f"{path} {getattr(n, 'name', '')}".strip() for n in nodes if not ast.get_docstring(n)
        ]
    assert silent == []


def _tests_with(pattern: str) -> list[str]:
    """The modules of tests whose text has the pattern: to parse all takes seconds."""
    return [path for path in _modules("tests/") if re.search(pattern, (ROOT / path).read_text())]


def test_the_name_of_every_test_is_a_sentence() -> None:
    tests = (
        (path, node)
        for path in _tests_with(r"def test(_[^\W_]*){0,3}\(")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )
    assert [
        f"{path}:{test.lineno} {test.name}"
        for path, test in tests
        if len(test.name.split("_")) < 5 and not ast.get_docstring(test)
    ] == []


def test_every_skipped_or_failing_test_gives_its_reason() -> None:
    silent = []
    for path in _tests_with(r"\bpytest\.(mark\.)?(skip|xfail)"):
        nodes = list(ast.walk(_tree(path)))
        explained = {
            call.func for call in nodes if isinstance(call, ast.Call) and _gives_a_reason(call)
        }
        silent += [
            f"{path}:{node.lineno} {ast.unparse(node)}"
            for node in nodes
            if isinstance(node, ast.Attribute)
            and re.fullmatch(r"pytest\.(mark\.)?(skip|skipif|xfail)", ast.unparse(node))
            and node not in explained
        ]
    assert silent == []


def _gives_a_reason(call: ast.Call) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"] or call.args[
        -1:
    ]
    return any(len(ast.unparse(reason)) > 20 for reason in given)


def _loaded_by(program: str) -> set[str]:
    source = f"import deltaq\n{program}\nimport sys\nprint(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=with_pandas(),
    )
    return set(answer.stdout.split())


def test_importing_deltaq_loads_nothing_but_values() -> None:
    """That makes it quick; how quick is the benchmarks' to tell."""
    loaded = _loaded_by("")
    assert {name for name in loaded if name.startswith("deltaq.")} == {
        f"deltaq.{name}" for name in OF_EVERY_PROGRAM
    }
    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {
        "deltaq"
    } | _loaded_by_the_interpreter()


OF_EVERY_PROGRAM = ("errors", "message", "version")


def _loaded_by_the_interpreter() -> set[str]:
    """Names that `.pth` files and the like load before any program."""
    program = "import sys; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in answer.stdout.split()}


@pytest.mark.parametrize(
    ("program", "loads", "loads_not"),
    [
        ("deltaq.Producer", "pyarrow.parquet", "admin consumer maintenance spark testing"),
        ("deltaq.Consumer", "pyarrow.parquet", "admin producer maintenance spark testing"),
        ("deltaq.AdminClient", "deltaq.admin", "producer consumer spark testing"),
        (
            "deltaq.Producer(bootstrap_servers='./x', maintenance_enable=False)",
            "deltaq.producer",
            "admin maintenance",
        ),
        # What a message needs is there before the first one.
        (
            "deltaq.Producer(bootstrap_servers='./x')",
            "deltaq.maintenance.background",
            "admin consumer",
        ),
        (
            "deltaq.Consumer(bootstrap_servers='./x', group_id='g')",
            "deltaq.maintenance.groups",
            "admin producer",
        ),
    ],
)
def test_a_client_loads_only_its_own_parts(program: str, loads: str, loads_not: str) -> None:
    loaded = _loaded_by(program)
    heavy = {"deltalake", "delta", "duckdb", "minio", "obstore", "pydantic", "pyspark"}
    assert loads in loaded
    assert loaded & (heavy | {f"deltaq.{name}" for name in loads_not.split()}) == set()


def test_the_first_messages_wait_for_no_import(tmp_path: Path) -> None:
    """Neither a single message nor a batch that is too large to be written and read without
    Arrow.
    """
    producing = f"""
import sys
with deltaq.Producer(bootstrap_servers={str(tmp_path)!r}) as producer:
    before = set(sys.modules)
    producer.produce("t", b"x", key=b"k", headers={{"h": b"v"}})
    assert producer.flush(30) == 0
    late = set(sys.modules) - before
with deltaq.Producer(bootstrap_servers={str(tmp_path)!r}, maintenance_enable=False, linger_ms=1000) as producer:
    before = set(sys.modules)
    for _ in range(20_000):
        producer.produce("t", b"y")
    assert producer.flush(30) == 0
    late |= set(sys.modules) - before
assert not late, late
"""  # noqa: E501
    consuming = f"""
import sys
with deltaq.Consumer(bootstrap_servers={str(tmp_path)!r}, group_id="g", auto_offset_reset="earliest") as consumer:
    before = set(sys.modules)
    consumer.subscribe(["t"])
    assert consumer.poll(30).value() == b"x"
    assert [message.value() for message in consumer.consume(20_000, 30)] == [b"y"] * 20_000
    late = set(sys.modules) - before
assert not late, late
"""  # noqa: E501
    _loaded_by(producing)
    _loaded_by(consuming)


def test_the_first_schema_loads_pydantic_before_the_first_value() -> None:
    assert "pydantic" in _loaded_by(
        "import pyarrow; deltaq.Topic('t', pyarrow.schema({'x': pyarrow.int64()}))"
    )


def test_the_lowest_versions_that_are_tested_are_the_lower_bounds_of_the_package() -> None:
    of_package = (
        (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    )
    bounds = re.findall(r'"([a-z]+)>=([0-9.]+)', of_package)
    tested = re.findall(r"^([a-z]+)==([0-9.]+)$", (ROOT / "lowest.txt").read_text(), re.MULTILINE)
    assert len(bounds) == of_package.count('"') / 2
    # A bound of 22 is 22.0.0.
    assert [name for name, _ in tested] == [name for name, _ in bounds]
    for (_, version), (_, bound) in zip(tested, bounds, strict=True):
        assert re.fullmatch(re.escape(bound) + r"(\.0)*", version)
