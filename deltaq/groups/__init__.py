"""Consumer groups: membership and committed offsets, kept as entries of the group's own Delta
log.
"""

from __future__ import annotations
