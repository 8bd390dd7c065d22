"""What Spark's checkpoint of a query says: which micro-batches are done, and which purchases they
have read.
"""

from __future__ import annotations

import json
from pathlib import Path

from examples.shop.layout import PURCHASES


def newest_batch(checkpoint: Path) -> int | None:
    """The newest micro-batch that is done; None before the first."""
    commits = checkpoint / "commits"
    done = (
        (int(file.name) for file in commits.iterdir() if file.name.isdigit())
        if commits.is_dir()
        else ()
    )
    return max(done, default=None)


def read_until(checkpoint: Path, batch_id: int) -> dict[int, int] | None:
    """For each partition of `purchases`, the first offset that was not read when a micro-batch
    ended.

    Spark writes them before it runs the micro-batch, and reads the same offsets when it repeats it.
    None if the checkpoint does not know the micro-batch.
    """
    try:
        lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    except FileNotFoundError:
        return None
    # A version, the settings of the micro-batch, and one line for each source.
    next_offsets = json.loads(lines[2])[PURCHASES]["next_offsets"]
    return {int(partition): offset for partition, offset in next_offsets.items()}
