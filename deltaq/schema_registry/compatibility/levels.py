"""The compatibility levels: which versions a new schema is compared with, and which of the two
reads the other's data.

Sources: Confluent's documentation, "Schema Evolution and Compatibility"; AWS Glue's, "Schema
versioning and compatibility", for DISABLED and the names that end in _ALL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from deltaq.schema_registry.errors import INVALID_COMPATIBILITY, registry_error
from deltaq.schema_registry.schemas import ConfigCompatibilityLevel

V = TypeVar("V")

Judge: TypeAlias = "Callable[[Any, Any], Iterable[str]]"
"""`(reader, writer)` -> why data of the writer's schema cannot be read with the reader's; empty if
it can.
"""

_ALIASES = {
    "BACKWARD_ALL": "BACKWARD_TRANSITIVE",
    "FORWARD_ALL": "FORWARD_TRANSITIVE",
    "FULL_ALL": "FULL_TRANSITIVE",
}


def compatibility_level(name: object) -> ConfigCompatibilityLevel:
    """The level of this name, in any case; Glue's names are accepted. Raises SchemaRegistryError
    (42203).
    """
    text = str(name).upper()
    try:
        return ConfigCompatibilityLevel(_ALIASES.get(text, text))
    except ValueError:
        known = ", ".join([level.value for level in ConfigCompatibilityLevel] + list(_ALIASES))
        reason = f"invalid compatibility level {str(name)[:60]!a}: use one of {known}"
        raise registry_error(INVALID_COMPATIBILITY, reason) from None


def compared_versions(level: ConfigCompatibilityLevel, versions: Sequence[V]) -> Sequence[V]:
    """Those of the earlier versions, which are the oldest first, that a level compares with a new
    one.
    """
    return versions if level.value.endswith("_TRANSITIVE") else versions[-1:]


def conflicts(
    level: ConfigCompatibilityLevel, new: Any, earlier: Sequence[tuple[int, Any]], judge: Judge
) -> list[str]:
    """Why `new` may not follow the earlier versions, which are (number, schema), the oldest
    first.
    """
    if level is ConfigCompatibilityLevel.NONE or not earlier:
        return []
    if level is ConfigCompatibilityLevel.DISABLED:
        return ["the level DISABLED allows no second version"]
    direction = level.value.removesuffix("_TRANSITIVE")
    found: list[str] = []
    for number, old in reversed(compared_versions(level, earlier)):
        if direction in ("BACKWARD", "FULL"):
            found += [f"it cannot read data of version {number}: {why}" for why in judge(new, old)]
        if direction in ("FORWARD", "FULL"):
            found += [f"version {number} cannot read its data: {why}" for why in judge(old, new)]
    return found
