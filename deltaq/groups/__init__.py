"""Consumer groups: membership and committed offsets, both entries of the group's own Delta log."""

from __future__ import annotations
