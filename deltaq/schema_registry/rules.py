"""Rules of data contracts, as values with the names and fields of
`confluent_kafka.schema_registry`.

deltaq applies no rules. A schema that has some is refused: to write messages without them could
mean to write in clear text what a rule encrypts, or values that a rule forbids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

NO_RULES = "rules are not supported: leave out rule_set"


class RuleKind(str, Enum):  # noqa: UP042 - confluent-kafka's has this base
    """What a rule does: check a message, or change it."""

    CONDITION = "CONDITION"
    TRANSFORM = "TRANSFORM"

    def __str__(self) -> str:
        return self.value


class RuleMode(str, Enum):  # noqa: UP042 - confluent-kafka's has this base
    """When a rule applies."""

    UPGRADE = "UPGRADE"
    DOWNGRADE = "DOWNGRADE"
    UPDOWN = "UPDOWN"
    READ = "READ"
    WRITE = "WRITE"
    WRITEREAD = "WRITEREAD"

    def __str__(self) -> str:
        return self.value


@dataclass
class RuleParams:
    """Parameters of a rule, by name."""

    params: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The parameters as JSON has them."""
        return dict(self.params)

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> RuleParams:
        """The parameters that JSON stands for."""
        return cls(dict(src_dict))


@dataclass(frozen=True)
class Rule:
    """One rule."""

    name: str | None
    doc: str | None
    kind: RuleKind | None
    mode: RuleMode | None
    type: str | None
    tags: list[str] | None = field(hash=False)
    params: RuleParams | None = field(hash=False)
    expr: str | None
    on_success: str | None
    on_failure: str | None
    disabled: bool | None

    def to_dict(self) -> dict[str, Any]:
        """The rule as JSON has it."""
        found = {
            **vars(self),
            "kind": None if self.kind is None else self.kind.value,
            "mode": None if self.mode is None else self.mode.value,
            "params": None if self.params is None else self.params.to_dict(),
        }
        return {_in_json(name): part for name, part in found.items() if part is not None}

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> Rule:
        """The rule that JSON stands for."""
        found: dict[str, Any] = {
            part.name: src_dict.get(_in_json(part.name)) for part in fields(cls)
        }
        for name, made in (
            ("kind", RuleKind),
            ("mode", RuleMode),
            ("params", RuleParams.from_dict),
        ):
            found[name] = None if found[name] is None else made(found[name])
        return cls(**found)


def _in_json(name: str) -> str:
    """A field as JSON names it: `onSuccess` for `on_success`."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@dataclass
class RuleSet:
    """The rules of a schema."""

    migration_rules: list[Rule] | None
    domain_rules: list[Rule] | None
    encoding_rules: list[Rule] | None = None
    enable_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The rules as JSON has them."""
        found: dict[str, Any] = {}
        for name, part in vars(self).items():
            if part is not None:
                found[_in_json(name)] = (
                    part if isinstance(part, str) else [rule.to_dict() for rule in part]
                )
        return found

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> RuleSet:
        """The rules that JSON stands for."""
        migration, domain, encoding = (
            [Rule.from_dict(each) for each in src_dict.get(kind) or ()]
            for kind in ("migrationRules", "domainRules", "encodingRules")
        )
        return cls(migration, domain, encoding, src_dict.get("enableAt"))


def has_rules(rule_set: object) -> bool:
    """Whether there is a rule in what was given as a rule set."""
    if isinstance(rule_set, RuleSet):
        return bool(rule_set.migration_rules or rule_set.domain_rules or rule_set.encoding_rules)
    return rule_set is not None
