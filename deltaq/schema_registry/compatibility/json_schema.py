"""Whether one JSON Schema admits all that another one admits: what a reader's schema must do for a
writer's.

The rules are those that Confluent publishes for JSON Schema ("Schema Evolution and Compatibility"),
derived from one principle: a constraint of the reader must follow from those of the writer. So a
property can be added to a closed content model, whose old records cannot have it, and not to an
open one, whose old records may have it with any value. As by Confluent's registry, a required
property may be added if it has a default.

What cannot be shown is refused. That concerns, in the reader's schema, `$dynamicRef`; `if` and
`maxContains`, unless the writer's schema has it too, with the same `then` and `else`, or the same
`contains`; `unevaluatedItems` and `unevaluatedProperties` beside other subschemas, unless the
writer's has the same subschema; and a new branch of a `oneOf` which may admit values that another
branch admits too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

from deltaq.schema_registry.json_patterns import is_found
from deltaq.schema_registry.work import spend

_TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_CIRCLE = "a schema that refers to itself for the same value cannot be compared"
_ALTERNATIVES_MAX = 100
"""Combinations of `anyOf` and `oneOf` in one schema; more would take too long to compare."""
_JUDGED = frozenset(
    (
        *("$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const", "type"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern"),
        *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
        *("items", "prefixItems", "additionalItems"),
        *("required", "properties", "patternProperties", "additionalProperties", "propertyNames"),
        *("minProperties", "maxProperties"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
        *("then", "else"),  # which mean nothing without `if`
    )
)
_TOGETHER = {"if": ("if", "then", "else"), "contains": ("contains", "minContains", "maxContains")}
"""Keywords, and those whose meaning depends on each other. Others may depend on all of a schema."""
_CHARS_PER_STEP = 1_000
_STEPS_PER_PAIR = 20
_PATTERNS_PER_STEP = 4


class ComparedSchema(Protocol):
    """A schema at its place in a document."""

    @property
    def schema(self) -> Any:
        """The schema as JSON: a dict or a bool."""

    @property
    def dialect(self) -> str:
        """The draft that gives the keywords their meaning."""

    @property
    def keywords(self) -> Mapping[str, Any]:
        """The keywords that constrain values in the document's draft; `{"not": {}}` for False."""

    def at(self, *path: str | int) -> ComparedSchema:
        """The subschema at a path."""

    def literal(self, schema: dict[str, Any]) -> ComparedSchema:
        """Another schema of the same draft."""

    def resolve(self, reference: str) -> ComparedSchema:
        """The schema that a reference stands for."""

    def admits(self, value: Any) -> bool:
        """Whether a value conforms."""


Facts: TypeAlias = "tuple[_Fact, ...]"
"""Schemas that all hold for a value. None of them has `$ref`, `allOf`, `anyOf` or `oneOf` left to
take into account.
"""


class _Fact:
    """A schema that holds for a value or, if not `holds`, does not."""

    __slots__ = ("holds", "node")

    def __init__(self, node: ComparedSchema, *, holds: bool = True) -> None:
        self.node = node
        self.holds = holds


class _Unjudged(Exception):
    """A construct that cannot be compared."""


def incompatibilities(reader: ComparedSchema, writer: ComparedSchema) -> list[str]:
    """Why values of the writer's schema may not conform to the reader's; empty if they do."""
    try:
        return _JsonComparison().uncovered(reader, [writer], "#")
    except (_Unjudged, RecursionError) as error:
        return [str(error) or "the schemas are nested too deeply to be compared"]


class _JsonComparison:
    """A comparison of two documents."""

    def __init__(self) -> None:
        # The pairs that are being compared, and their depth.
        self._begun: dict[tuple[Any, ...], int] = {}
        self._depth = 0

    def uncovered(
        self,
        reader: ComparedSchema,
        writers: Sequence[ComparedSchema],
        path: str,
        *,
        inside: bool = True,
    ) -> list[str]:
        """Why the reader's schema may refuse a value that conforms to all of the writers' schemas.
        `inside`: the value is a part of the one for which this was asked before.

        Recursive schemas lead to a pair that is being compared. It counts as covered for a part of
        its value: if all else is, no value can be a counterexample, because none is smallest.
        """
        if not reader.keywords or any(_agree(reader, writer) for writer in writers):
            return []
        key = (id(reader.schema), *sorted(id(writer.schema) for writer in writers))
        depth, self._depth = self._depth, self._depth + inside
        spend(_STEPS_PER_PAIR)
        try:
            if key in self._begun:
                if self._begun[key] < self._depth:
                    return []
                raise _Unjudged(_CIRCLE)
            self._begun[key] = self._depth
            for facts in _alternatives(writers):
                if found := self._uncovered(reader, facts, path):
                    return found
            return []
        finally:
            if self._begun.get(key) == self._depth:
                del self._begun[key]
            self._depth = depth

    def _uncovered(self, reader: ComparedSchema, facts: Facts, path: str) -> list[str]:
        """Why the reader's schema may refuse a value for which the facts hold."""
        spend(1 + len(facts))
        if _is_impossible(facts):
            return []
        if reader.schema is False:
            return [f"{path}: values of the other schema are not admitted"]
        values = _values(facts)
        if values is not None:
            refused = [value for value in values if not reader.admits(value)]
            return [f"{path}: the value {refused[0]!r:.100} is not admitted"] if refused else []
        keywords = reader.keywords
        unknown = [
            keyword
            for keyword in sorted(keywords.keys() - _JUDGED)
            if not any(_agree(reader, node, _TOGETHER.get(keyword)) for node in _holding(facts))
        ]
        if unknown:
            return [f"{path}: {', '.join(unknown)} cannot be compared"]
        if "$ref" in keywords and (
            found := self._uncovered(reader.resolve(keywords["$ref"]), facts, path)
        ):
            return found
        return self._combined(reader, facts, path) or self._typed(reader, facts, path)

    # --- combinations ---

    def _combined(self, reader: ComparedSchema, facts: Facts, path: str) -> list[str]:
        keywords = reader.keywords
        for index in range(len(keywords.get("allOf", ()))):
            if found := self._uncovered(reader.at("allOf", index), facts, f"{path}/allOf/{index}"):
                return found
        for name in keywords.keys() & {"anyOf", "oneOf"}:
            branches = [reader.at(name, index) for index in range(len(keywords[name]))]
            for part in _by_type(reader, facts):
                if found := self._chosen(
                    branches, part, f"{path}/{name}", exactly_one=name == "oneOf"
                ):
                    return found
        if "not" in keywords and not self._excluded(reader.at("not"), facts):
            return [f"{path}/not: it may exclude a value"]
        return []

    def _chosen(
        self, branches: Sequence[ComparedSchema], facts: Facts, path: str, *, exactly_one: bool
    ) -> list[str]:
        covering = next(
            (branch for branch in branches if not self._uncovered(branch, facts, path)), None
        )
        if covering is None and not _is_impossible(facts):
            return [f"{path}: no branch admits all values of the other schema"]
        if exactly_one and not all(
            self._excluded(branch, facts) for branch in branches if branch is not covering
        ):
            return [f"{path}: more than one branch may admit a value"]
        return []

    def _excluded(self, node: ComparedSchema, facts: Facts) -> bool:
        """Whether no value for which the facts hold can conform to a schema."""
        for fact in facts:
            if not fact.holds and not self.uncovered(fact.node, [node], "", inside=False):
                return True
        return all(self._are_disjoint(facts, other) for other in _alternatives([node]))

    def _are_disjoint(self, one: Facts, other: Facts) -> bool:
        both = (*one, *other)
        spend(len(both))
        if _is_impossible(both):
            return True
        for facts, others in ((one, other), (other, one)):
            values = _values(facts)
            if values is not None:
                return not any(
                    all(fact.node.admits(value) is fact.holds for fact in others)
                    for value in values
                )
        if _types(both) != {"object"}:
            return False
        for name in {
            name for fact in both if fact.holds for name in fact.node.keywords.get("required", ())
        }:
            parts = _property(both, name)
            ours = _alternatives(_property(one, name))
            theirs = _alternatives(_property(other, name))
            if any(part.schema is False for part in parts) or all(
                self._are_disjoint(mine, yours) for mine in ours for yours in theirs
            ):
                return True
        return False

    # --- values of one type ---

    def _typed(self, reader: ComparedSchema, facts: Facts, path: str) -> list[str]:
        keywords, types = reader.keywords, _types(facts)
        if "enum" in keywords or "const" in keywords:
            return [f"{path}: the other schema admits more values than the enumeration"]
        if "type" in keywords and (refused := types - _named_types(keywords["type"])):
            return [f"{path}: type {', '.join(sorted(refused))} is not admitted"]
        found = self._scalars(keywords, facts, types, path)
        if not found and "array" in types:
            found = self._arrays(reader, facts, path)
        if not found and "object" in types:
            found = self._objects(reader, facts, path)
        return found

    @staticmethod
    def _scalars(
        keywords: Mapping[str, Any], facts: Facts, types: frozenset[str], path: str
    ) -> list[str]:
        if types & {"integer", "number"}:
            for limit in ("minimum", "maximum"):
                wanted = _bound(keywords, limit)
                if wanted is not None and not any(
                    _within(_bound(fact.node.keywords, limit), wanted, limit)
                    for fact in facts
                    if fact.holds
                ):
                    return [f"{path}: {limit} is stricter"]
            divisor = keywords.get("multipleOf")
            known = [
                fact.node.keywords["multipleOf"]
                for fact in facts
                if fact.holds and "multipleOf" in fact.node.keywords
            ]
            known += [] if "number" in types else [1]
            if divisor is not None and not any(_is_multiple(number, divisor) for number in known):
                return [f"{path}: multipleOf is stricter"]
        if "string" in types:
            if found := _sizes(keywords, facts, "Length", path):
                return found
            patterns = {fact.node.keywords.get("pattern") for fact in facts if fact.holds}
            if "pattern" in keywords and keywords["pattern"] not in patterns:
                return [f"{path}: pattern is new or different"]
        return []

    def _arrays(self, reader: ComparedSchema, facts: Facts, path: str) -> list[str]:
        keywords, longest = reader.keywords, _most(facts, "maxItems")
        if found := _sizes(keywords, facts, "Items", path):
            return found
        unique = any(fact.node.keywords.get("uniqueItems") for fact in facts if fact.holds)
        if keywords.get("uniqueItems") and not unique and (longest is None or longest > 1):
            return [f"{path}: uniqueItems is new"]
        if "contains" in keywords and not any(
            _agree(reader, node, _TOGETHER["contains"]) for node in _holding(facts)
        ):
            least = keywords.get("minContains", 1)
            enough = [
                node.at("contains")
                for node in _holding(facts)
                if "contains" in node.keywords and node.keywords.get("minContains", 1) >= least
            ]
            inner = reader.at("contains")
            if "maxContains" in keywords or all(
                self.uncovered(inner, [node], path) for node in enough
            ):
                return [f"{path}: contains is new or stricter"]
        count = max([len(_prefix(node)) for node in (reader, *_holding(facts))])
        for index in range(count + 1):
            if longest is not None and index >= longest:
                break
            place = f"{path}/items" if index == count else f"{path}/items/{index}"
            writers = [item for node in _holding(facts) for item in _item(node, index)]
            for item in _item(reader, index):
                if found := self.uncovered(item, writers, place):
                    return found
        return []

    def _objects(self, reader: ComparedSchema, facts: Facts, path: str) -> list[str]:
        keywords = reader.keywords
        required = {name for node in _holding(facts) for name in node.keywords.get("required", ())}
        for name in keywords.get("required", ()):
            if name not in required and not _has_default(reader, name):
                return [f"{path}/properties/{name}: it is required, and has no default"]
        if found := _sizes(keywords, facts, "Properties", path, least=len(required)):
            return found
        if "propertyNames" in keywords:
            names = [
                node.at("propertyNames")
                for node in _holding(facts)
                if "propertyNames" in node.keywords
            ]
            if found := self.uncovered(reader.at("propertyNames"), names, f"{path}/propertyNames"):
                return found
        return self._dependencies(reader, facts, required, path) or self._properties(
            reader, facts, path
        )

    def _dependencies(
        self, reader: ComparedSchema, facts: Facts, required: set[str], path: str
    ) -> list[str]:
        possible = {name for name, _ in (*_needed_names(reader), *_needed_schemas(reader))}
        possible -= {
            name
            for name in possible
            if any(part.schema is False for part in _property(facts, name))
        }
        known: dict[str, set[str]] = {}
        known_schemas: dict[str, list[ComparedSchema]] = {}
        for node in _holding(facts):
            for name, needed in _needed_names(node):
                known.setdefault(name, set()).update(needed)
            for name, schema in _needed_schemas(node):
                known_schemas.setdefault(name, []).append(schema)
        for name, needed in _needed_names(reader):
            if name in possible and (missing := set(needed) - known.get(name, set()) - required):
                return [f"{path}/properties/{name}: it needs {', '.join(sorted(missing))}"]
        for name, schema in _needed_schemas(reader):
            writers = [*_holding(facts), *known_schemas.get(name, [])]
            place = f"{path}/dependencies/{name}"
            if name in possible and (found := self.uncovered(schema, writers, place, inside=False)):
                return found
        return []

    def _properties(self, reader: ComparedSchema, facts: Facts, path: str) -> list[str]:
        """Compare the properties that either schema names, and those that neither names."""
        nodes = _holding(facts)
        for name in sorted(
            {name for node in (reader, *nodes) for name in node.keywords.get("properties", ())}
        ):
            writers = _property(facts, name)
            for part in _property_of(reader, name):
                if found := self.uncovered(part, writers, f"{path}/properties/{name}"):
                    return found
        others = [part for node in nodes for part in _others(node)]
        patterns = {
            pattern for node in nodes for pattern in node.keywords.get("patternProperties", ())
        }
        ours = dict(_patterns(reader))
        for pattern, part in ours.items():
            same = _with_pattern(nodes, pattern)
            for writers in (
                [same] if same else [others, *([o] for node in nodes for _, o in _patterns(node))]
            ):
                if found := self.uncovered(part, writers, f"{path}/patternProperties/{pattern}"):
                    return found
        for part in _others(reader):
            for pattern in sorted(patterns - ours.keys()):
                writers = _with_pattern(nodes, pattern)
                if found := self.uncovered(part, writers, f"{path}/additionalProperties"):
                    return found
            if found := self.uncovered(part, others, f"{path}/additionalProperties"):
                return found
        return []


# --- what a schema says ---


def _agree(
    one: ComparedSchema, other: ComparedSchema, names: Collection[str] | None = None
) -> bool:
    """Whether two schemas say the same by the keywords with these names, or by all that constrain
    values, and mean the same wherever they stand.
    """
    ours, theirs = (
        json.dumps(
            {name: each.keywords[name] for name in each.keywords if names is None or name in names},
            sort_keys=True,
        )
        for each in (one, other)
    )
    spend((len(ours) + len(theirs)) // _CHARS_PER_STEP)
    return '"$' not in ours and one.dialect == other.dialect and ours == theirs


def _alternatives(nodes: Iterable[ComparedSchema]) -> list[Facts]:
    """The conjunction of schemas as alternatives, in each of which all facts hold."""
    found: list[Facts] = [()]
    for node in nodes:
        found = [(*facts, *more) for facts in found for more in _expanded(node, frozenset())]
        if len(found) > _ALTERNATIVES_MAX:
            raise _Unjudged(
                f"more than {_ALTERNATIVES_MAX} combinations of anyOf and oneOf cannot be compared"
            )
    return found


def _expanded(node: ComparedSchema, entered: frozenset[int]) -> list[Facts]:
    if id(node.schema) in entered:
        raise _Unjudged(_CIRCLE)
    inside = entered | {id(node.schema)} if isinstance(node.schema, dict) else entered
    keywords = node.keywords
    found: list[Facts] = [(_Fact(node),)]
    if "not" in keywords:
        found = [(*facts, _Fact(node.at("not"), holds=False)) for facts in found]
    parts = [node.at("allOf", index) for index in range(len(keywords.get("allOf", ())))]
    if "$ref" in keywords:
        parts.append(node.resolve(keywords["$ref"]))
    for part in parts:
        found = [(*facts, *more) for facts in found for more in _expanded(part, inside)]
    for name in ("anyOf", "oneOf"):
        branches = [node.at(name, index) for index in range(len(keywords.get(name, ())))]
        if branches:
            found = [
                (*facts, *more)
                for facts in found
                for more in _branches(branches, inside, exactly_one=name == "oneOf")
            ]
    if len(found) > _ALTERNATIVES_MAX:
        raise _Unjudged(
            f"more than {_ALTERNATIVES_MAX} combinations of anyOf and oneOf cannot be compared"
        )
    spend(sum(map(len, found)))
    return found


def _branches(
    branches: Sequence[ComparedSchema], entered: frozenset[int], *, exactly_one: bool
) -> Iterator[Facts]:
    for branch in branches:
        others = tuple(
            _Fact(other, holds=False) for other in branches if exactly_one and other is not branch
        )
        for facts in _expanded(branch, entered):
            yield (*facts, *others)


def _holding(facts: Facts) -> list[ComparedSchema]:
    return [fact.node for fact in facts if fact.holds]


def _named_types(named: str | Sequence[str]) -> frozenset[str]:
    types = {named} if isinstance(named, str) else set(named)
    return frozenset(types | {"integer"} if "number" in types else types)


def _types(facts: Facts) -> frozenset[str]:
    """The types that values can have."""
    types = _TYPES
    for node in _holding(facts):
        if "type" in node.keywords:
            types &= _named_types(node.keywords["type"])
    for fact in facts:
        if not fact.holds and fact.node.keywords.keys() == {"type"}:
            types -= _named_types(fact.node.keywords["type"])
    return types


def _by_type(node: ComparedSchema, facts: Facts) -> list[Facts]:
    """The facts for each type that a value can have: `{"type": ["null", "string"]}` is like an
    `anyOf` of two.
    """
    types = _types(facts)
    names = types - {"integer"} if "number" in types else types
    return [(*facts, _Fact(node.literal({"type": name}))) for name in sorted(names)]


def _is_impossible(facts: Facts) -> bool:
    return not _types(facts) or any(
        fact.node.schema is False if fact.holds else not fact.node.keywords for fact in facts
    )


def _values(facts: Facts) -> list[Any] | None:
    """All values for which the facts hold, if they enumerate some; otherwise None."""
    for node in _holding(facts):
        listed = [node.keywords["const"]] if "const" in node.keywords else node.keywords.get("enum")
        if listed is not None:
            return [
                value
                for value in listed
                if all(fact.node.admits(value) is fact.holds for fact in facts)
            ]
    types = _types(facts)
    if types and types <= {"null", "boolean"}:
        listed = ([None] if "null" in types else []) + ([False, True] if "boolean" in types else [])
        return [
            value
            for value in listed
            if all(fact.node.admits(value) is fact.holds for fact in facts)
        ]
    return None


def _exact(number: Any) -> Fraction:
    """The number as it is written, for comparisons."""
    return Fraction(str(number))


def _is_multiple(number: Any, divisor: Any) -> bool:
    """Whether all multiples of a number are multiples of the divisor. Fractions must be equal: to a
    validator, which divides floats, 0.3 is no multiple of 0.1.
    """
    are_whole = isinstance(number, int) and isinstance(divisor, int)
    return bool(number == divisor or (are_whole and number % divisor == 0))


def _bound(keywords: Mapping[str, Any], limit: str) -> tuple[Fraction, bool] | None:
    """The bound, and whether it is excluded. In draft 4, `exclusiveMinimum` is a flag beside
    `minimum`.
    """
    exclusive = keywords.get("exclusive" + limit.capitalize())
    found = [(_exact(keywords[limit]), exclusive is True)] if limit in keywords else []
    if exclusive is not None and not isinstance(exclusive, bool):
        found.append((_exact(exclusive), True))
    sign = 1 if limit == "minimum" else -1
    return max(found, key=lambda bound: (sign * bound[0], bound[1]), default=None)


def _within(known: tuple[Fraction, bool] | None, wanted: tuple[Fraction, bool], limit: str) -> bool:
    if known is None:
        return False
    sign = 1 if limit == "minimum" else -1
    return (sign * known[0], known[1]) >= (sign * wanted[0], wanted[1])


def _most(facts: Facts, keyword: str) -> int | None:
    return min(
        (node.keywords[keyword] for node in _holding(facts) if keyword in node.keywords),
        default=None,
    )


def _sizes(
    keywords: Mapping[str, Any], facts: Facts, what: str, path: str, least: int = 0
) -> list[str]:
    """Compare `min<what>` and `max<what>`."""
    known = max([least, *(node.keywords.get("min" + what, 0) for node in _holding(facts))])
    most = _most(facts, "max" + what)
    if keywords.get("min" + what, 0) > known:
        return [f"{path}: min{what} is stricter"]
    if "max" + what in keywords and (most is None or most > keywords["max" + what]):
        return [f"{path}: max{what} is stricter"]
    return []


def _prefix(node: ComparedSchema) -> Sequence[Any]:
    items = node.keywords.get("items")
    found: Sequence[Any] = (
        items if isinstance(items, list) else node.keywords.get("prefixItems", ())
    )
    return found


def _item(node: ComparedSchema, index: int) -> list[ComparedSchema]:
    """The schemas of an item: its own, or that of the rest. Lists of `items` are those of drafts
    before 2020-12.
    """
    has_list = isinstance(node.keywords.get("items"), list)
    if index < len(_prefix(node)):
        return [node.at("items" if has_list else "prefixItems", index)]
    rest = "additionalItems" if has_list else "items"
    return [node.at(rest)] if rest in node.keywords else []


def _has_default(node: ComparedSchema, name: str) -> bool:
    for part in _property_of(node, name):
        while "$ref" in part.keywords and not (
            isinstance(part.schema, dict) and "default" in part.schema
        ):
            part = part.resolve(part.keywords["$ref"])
        if isinstance(part.schema, dict) and "default" in part.schema:
            return True
    return False


def _patterns(node: ComparedSchema) -> list[tuple[str, ComparedSchema]]:
    return [
        (p, node.at("patternProperties", p)) for p in node.keywords.get("patternProperties", ())
    ]


def _with_pattern(nodes: Iterable[ComparedSchema], pattern: str) -> list[ComparedSchema]:
    return [
        node.at("patternProperties", pattern)
        for node in nodes
        if pattern in node.keywords.get("patternProperties", ())
    ]


def _others(node: ComparedSchema) -> list[ComparedSchema]:
    return [node.at("additionalProperties")] if "additionalProperties" in node.keywords else []


def _property_of(node: ComparedSchema, name: str) -> list[ComparedSchema]:
    """The schemas that apply to a property."""
    found = [node.at("properties", name)] if name in node.keywords.get("properties", ()) else []
    patterns = node.keywords.get("patternProperties", ())
    spend(len(patterns) // _PATTERNS_PER_STEP)
    found += [node.at("patternProperties", each) for each in patterns if is_found(each, name)]
    return found or _others(node)


def _property(facts: Facts, name: str) -> list[ComparedSchema]:
    return [part for node in _holding(facts) for part in _property_of(node, name)]


def _needed_names(node: ComparedSchema) -> Iterator[tuple[str, Sequence[str]]]:
    for keyword in ("dependencies", "dependentRequired"):
        for name, needed in node.keywords.get(keyword, {}).items():
            if isinstance(needed, list):
                yield name, needed


def _needed_schemas(node: ComparedSchema) -> Iterator[tuple[str, ComparedSchema]]:
    for keyword in ("dependencies", "dependentSchemas"):
        for name, needed in node.keywords.get(keyword, {}).items():
            if not isinstance(needed, list):
                yield name, node.at(keyword, name)
