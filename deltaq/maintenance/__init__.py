"""What keeps topics and groups small and quick whatever their age: checkpoints, log clean-up, retention, compaction.

Producers and consumers do it in the background for what they write. `run` does it for a whole root, as does
`python -m deltaq.maintenance ROOT`.
"""

from __future__ import annotations

from deltaq.maintenance.run import run
from deltaq.maintenance.settings import MaintenanceSettings

__all__ = ["MaintenanceSettings", "run"]
