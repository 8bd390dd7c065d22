"""The topic of the bank, and its views: the files *.sql of this folder are the group `bank`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from deltaq import Topic
from deltaq.views import Views

ACCOUNTS = 10
TRANSACTIONS = "transactions"
PARTITIONS = 2
COLUMNS = pa.schema(
    [(name, pa.int64()) for name in ("id", "from_account", "to_account", "amount", "second")]
)
FOLDER = Path(__file__).parent


def transactions(root: str) -> Topic:
    """The topic, which is created if it does not exist."""
    topic = Topic(TRANSACTIONS, COLUMNS, partitions=PARTITIONS, bootstrap_servers=root)
    return topic.create(exist_ok=True)


def bank_views(root: str) -> Views:
    """The views."""
    return Views.from_folder(FOLDER, root)
