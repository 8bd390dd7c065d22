"""What a run of the benchmarks found: as text for a terminal, as JSON for a program, as a page for
a browser. Pure.
"""

from benchmarks.report.findings import Findings, as_json
from benchmarks.report.page import as_html
from benchmarks.report.text import as_text

__all__ = ["Findings", "as_html", "as_json", "as_text"]
