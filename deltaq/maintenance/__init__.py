"""Maintenance of topics, groups and the schema registry: checkpoints, log clean-up, retention,
compaction, and removal of orphan files.

It bounds the size of a topic and the time to open it, whatever the topic's age. Producers and
consumers maintain in the background what they write. `run` and `python -m deltaq.maintenance ROOT`
maintain a whole root.
"""

from __future__ import annotations

from deltaq.maintenance.run import run
from deltaq.maintenance.settings import MaintenanceSettings

__all__ = ["MaintenanceSettings", "run"]
