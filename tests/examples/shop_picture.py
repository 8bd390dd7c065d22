"""Take the picture of the shop for the README: `python -m tests.examples.shop_picture URL`, while
`make shop` runs.
"""

from __future__ import annotations

import sys

from tests.examples.browser import open_tab
from tests.examples.replica_harness import REPOSITORY

if __name__ == "__main__":
    with open_tab() as tab:
        tab.open(sys.argv[1])
        tab.until("document.querySelector('#verdict.equal')")
        tab.picture(REPOSITORY / "examples" / "shop" / "shop.png")
