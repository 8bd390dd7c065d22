"""Every example that needs nothing but Python runs, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {
    "hello.py": ["hello, Ada", "hello, Grace", "hello, Barbara"],
    "typed_topic.py": ["refused:", "quantity", "Order: 3 x kiwi = 1.20", "'product': 'mango'"],
    "replay_from_time.py": ["30 readings, offsets 30 to 59", "last: 25.9 degrees"],
    "topic_as_table.py": ["1000 clicks in 3 partitions", "/page/0 143", "/page/6 142"],
}


def test_every_example_has_its_expected_output_here():
    assert {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("_")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_example_runs_and_prints_the_expected_output(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [text for text in EXPECTED[name] if text not in done.stdout] == [], done.stdout
