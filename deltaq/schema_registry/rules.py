"""Rules of data contracts, as values with the names and fields of
`confluent_kafka.schema_registry`.

deltaq applies no rules. A schema that has some is refused: to write messages without them could
mean to write in clear text what a rule encrypts, or values that a rule forbids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
            "name": self.name,
            "doc": self.doc,
            "kind": None if self.kind is None else self.kind.value,
            "mode": None if self.mode is None else self.mode.value,
            "type": self.type,
            "tags": self.tags,
            "params": None if self.params is None else self.params.to_dict(),
            "expr": self.expr,
            "onSuccess": self.on_success,
            "onFailure": self.on_failure,
            "disabled": self.disabled,
        }
        return {name: part for name, part in found.items() if part is not None}

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> Rule:
        """The rule that JSON stands for."""
        kind, mode, params = (src_dict.get(name) for name in ("kind", "mode", "params"))
        return cls(
            src_dict.get("name"),
            src_dict.get("doc"),
            None if kind is None else RuleKind(kind),
            None if mode is None else RuleMode(mode),
            src_dict.get("type"),
            src_dict.get("tags"),
            None if params is None else RuleParams.from_dict(params),
            src_dict.get("expr"),
            src_dict.get("onSuccess"),
            src_dict.get("onFailure"),
            src_dict.get("disabled"),
        )


@dataclass
class RuleSet:
    """The rules of a schema."""

    migration_rules: list[Rule] | None
    domain_rules: list[Rule] | None
    encoding_rules: list[Rule] | None = None
    enable_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The rules as JSON has them."""
        found = {
            "migrationRules": _dicts(self.migration_rules),
            "domainRules": _dicts(self.domain_rules),
            "encodingRules": _dicts(self.encoding_rules),
            "enableAt": self.enable_at,
        }
        return {name: part for name, part in found.items() if part is not None}

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


def _dicts(rules: Iterable[Rule] | None) -> list[dict[str, Any]] | None:
    return None if rules is None else [rule.to_dict() for rule in rules]
