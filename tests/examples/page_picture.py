"""Take the picture of a demo for its README, while `make shop` runs:
`python -m tests.examples.page_picture shop URL 1180`.
"""

from __future__ import annotations

import sys

from tests.examples.browser import open_tab
from tests.examples.replica_harness import REPOSITORY

if __name__ == "__main__":
    demo, url, height = sys.argv[1:]
    with open_tab() as tab:
        tab.open(url, height=int(height))
        tab.until("document.querySelector('#verdict.equal')")
        tab.picture(REPOSITORY / "examples" / demo / f"{demo}.png")
