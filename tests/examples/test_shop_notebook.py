"""The notebook of the shop runs from its first cell to its last, and prints what it shows.

`python -m tests.examples.test_shop_notebook` writes the outputs anew, after a change of the
notebook.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "shop" / "shop.ipynb"


def run(notebook: dict[str, Any]) -> list[str]:
    """Run the code cells of a notebook one after the other. Returns what each has printed."""
    names: dict[str, Any] = {}
    printed = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with redirect_stdout(StringIO()) as output:
                exec(
                    compile("".join(cell["source"]), f"{NOTEBOOK.name}: {cell['id']}", "exec"),
                    names,
                )
            printed.append(output.getvalue())
    return printed


def outputs(printed: str) -> list[dict[str, Any]]:
    """What a cell has printed, as notebooks hold it."""
    if not printed:
        return []
    return [{"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    notebook = json.loads(NOTEBOOK.read_text())
    shown = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [outputs(printed) for printed in run(notebook)] == shown
    assert "windows: 0 differences" in shown[-1][0]["text"][-1]


def main() -> None:
    """Write the outputs into the notebook."""
    notebook = json.loads(NOTEBOOK.read_text())
    printed = run(notebook)
    for number, cell in enumerate(
        cell for cell in notebook["cells"] if cell["cell_type"] == "code"
    ):
        cell["outputs"] = outputs(printed[number])
        cell["execution_count"] = number + 1
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    SparkSession.active().stop()


if __name__ == "__main__":
    main()
