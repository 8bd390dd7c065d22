"""Every example that needs nothing but Python runs, and says what it should; small Spark programs
are listed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {
    "hello.py": ["hello, Ada", "hello, Grace", "hello, Barbara"],
    "typed_topic.py": ["refused:", "quantity", "Order: 3 x kiwi = 1.20", "'product': 'mango'"],
    "replay_from_time.py": ["30 readings, offsets 30 to 59", "last: 25.9 degrees"],
    "transfers.py": ["see http://127.0.0.1:", "kills, the sum was always 0"],
    "topic_as_table.py": ["1000 clicks in 3 partitions", "/page/0 143", "/page/6 142"],
}


def test_every_example_has_its_expected_output_here():
    assert {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("_")} == set(
        EXPECTED
    )


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_example_runs_and_prints_the_expected_output(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [text for text in EXPECTED[name] if text not in done.stdout] == [], done.stdout


STATEMENTS_MAX = 43


def test_each_small_spark_program_is_small_listed_and_tested():
    folder = EXAMPLES / "spark"
    programs = {path.name: path for path in folder.glob("*.py") if not path.name.startswith("_")}
    statements = {
        name: sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text())))
        for name, path in programs.items()
    }
    assert {name: count for name, count in statements.items() if count > STATEMENTS_MAX} == {}
    listed = (folder / "README.md").read_text()
    assert [name for name in programs if f"[{name}]({name})" not in listed] == []
    tests = "".join(path.read_text() for path in (EXAMPLES.parent / "tests/spark").glob("*.py"))
    assert [
        name for name, path in programs.items() if f"{path.stem}.main(spark, " not in tests
    ] == []
