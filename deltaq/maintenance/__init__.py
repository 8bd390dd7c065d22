"""What keeps topics and groups small and quick whatever their age: checkpoints, log clean-up, retention, compaction."""

from __future__ import annotations
