"""Which items and properties of a value a JSON schema evaluates, for `unevaluatedItems` and
`unevaluatedProperties`.

The results are those of `jsonschema`, whose own search has no limit: it goes along all paths of
references, and collects positions in lists. This one spends steps of `work.limited_work`, and
collects sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jsonschema.exceptions import ValidationError
from referencing.jsonschema import lookup_recursive_ref

from deltaq.schema_registry.json_patterns import is_found
from deltaq.schema_registry.work import spend

_MATCHES_PER_STEP = 2
_NAMES_PER_STEP = 16
_ITEMS_PER_STEP = 64
_STEPS_PER_REFERENCE = 5
_LISTED_MAX = 10

_Search = Callable[["_Evaluated", Any, Any], None]


def unevaluated_items(
    validator: Any, allowed: Any, instance: Any, schema: Any, *, is_2019: bool
) -> Iterator[ValidationError]:
    """The keyword of the draft 2020-12 or 2019-09."""
    if validator.is_type(instance, "array"):
        search = _items_2019 if is_2019 else _items_2020
        found = _Evaluated(instance, search, range(len(instance)))
        found.search(validator, schema)
        yield from _refused_items(found.others())


def unevaluated_properties(
    validator: Any, allowed: Any, instance: Any, schema: Any, *, is_2019: bool
) -> Iterator[ValidationError]:
    """The keyword of the draft 2020-12 or 2019-09."""
    if validator.is_type(instance, "object"):
        found = _Evaluated(instance, _keys_2019 if is_2019 else _keys_2020, instance)
        found.search(validator, schema)
        refused = found.others()
        # Of the draft 2020-12, the search has gone through `unevaluatedProperties` itself.
        if is_2019:
            checked = validator.evolve(schema=allowed)
            refused = [key for key in refused if not _is_valid(checked, instance[key])]
        yield from _refused_properties(refused, allowed)


class _Evaluated:
    """The items or properties of a value that are found to be evaluated."""

    def __init__(self, instance: Any, search: _Search, everything: Any) -> None:
        self.instance = instance
        self._search = search
        self._everything = everything
        self._found: set[Any] = set()
        self._are_all = not everything

    def search(self, validator: Any, schema: Any) -> None:
        """What a schema evaluates."""
        spend()
        if not isinstance(schema, bool):
            self._search(self, validator, schema)

    def add(self, places: Any) -> None:
        """Items, by their position, or properties, by their name."""
        if not self._are_all:
            spend(len(places) // _ITEMS_PER_STEP)
            self._found.update(places)

    def add_all(self) -> None:
        """All items or properties."""
        self._are_all = True

    def add_valid(self, validator: Any, schema: Any) -> None:
        """Those whose values conform to a schema."""
        if schema is True:
            self.add_all()
        if schema is False or not self.instance:
            return
        checked = validator.evolve(schema=schema)
        spend(len(self.instance))
        for place in self._everything:
            if _is_valid(checked, self.instance[place]):
                self._found.add(place)

    def others(self) -> list[Any]:
        """Those that are not evaluated."""
        if self._are_all:
            return []
        spend(len(self._everything) // _NAMES_PER_STEP)
        return [place for place in self._everything if place not in self._found]

    def search_combined(self, validator: Any, schema: Any) -> None:
        """What `allOf`, `oneOf` and `anyOf` evaluate."""
        for keyword in ("allOf", "oneOf", "anyOf"):
            for subschema in schema.get(keyword, ()):
                spend()
                if next(validator.descend(self.instance, subschema), None) is None:
                    self.search(validator, subschema)

    def search_condition(self, validator: Any, schema: Any) -> None:
        """What `if`, `then` and `else` evaluate."""
        if "if" not in schema:
            return
        if _is_valid(validator.evolve(schema=schema["if"]), self.instance):
            self.search(validator, schema["if"])
            if "then" in schema:
                self.search(validator, schema["then"])
        elif "else" in schema:
            self.search(validator, schema["else"])

    def search_reference(self, validator: Any, resolved: Any) -> None:
        """What the target of a reference evaluates."""
        spend(_STEPS_PER_REFERENCE)
        self.search(
            validator.evolve(schema=resolved.contents, _resolver=resolved.resolver),
            resolved.contents,
        )

    def search_references(self, validator: Any, schema: Any, *, is_2019: bool) -> None:
        """What the targets of all references in a schema evaluate."""
        if (reference := schema.get("$ref")) is not None:
            self.search_reference(validator, validator._resolver.lookup(reference))
        if is_2019 and "$recursiveRef" in schema:
            self.search_reference(validator, lookup_recursive_ref(validator._resolver))
        if not is_2019 and (reference := schema.get("$dynamicRef")) is not None:
            self.search_reference(validator, validator._resolver.lookup(reference))


def _is_valid(validator: Any, value: Any) -> bool:
    return next(validator.iter_errors(value), None) is None


def _items_2020(found: _Evaluated, validator: Any, schema: Any) -> None:
    if "items" in schema:
        found.add_all()
        return
    found.search_references(validator, schema, is_2019=False)
    found.add(range(min(len(schema.get("prefixItems", ())), len(found.instance))))
    _search_items(found, validator, schema)


def _items_2019(found: _Evaluated, validator: Any, schema: Any) -> None:
    found.search_references(validator, schema, is_2019=True)
    if "items" in schema:
        if "additionalItems" in schema or not isinstance(schema["items"], list):
            found.add_all()
            return
        found.add(range(min(len(schema["items"]), len(found.instance))))
    _search_items(found, validator, schema)


def _search_items(found: _Evaluated, validator: Any, schema: Any) -> None:
    found.search_condition(validator, schema)
    for keyword in ("contains", "unevaluatedItems"):
        if keyword in schema:
            found.add_valid(validator, schema[keyword])
    found.search_combined(validator, schema)


def _keys_2020(found: _Evaluated, validator: Any, schema: Any) -> None:
    found.search_references(validator, schema, is_2019=False)
    if isinstance(properties := schema.get("properties"), dict):
        spend(min(len(properties), len(found.instance)) // _NAMES_PER_STEP)
        found.add(properties.keys() & found.instance.keys())
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if schema.get(keyword) is not None:
            found.add_valid(validator, schema[keyword])
    _search_keys(found, validator, schema)


def _keys_2019(found: _Evaluated, validator: Any, schema: Any) -> None:
    found.search_references(validator, schema, is_2019=True)
    for keyword in ("properties", "additionalProperties", "unevaluatedProperties"):
        if schema.get(keyword) is True:
            found.add_all()
        elif isinstance(part := schema.get(keyword), dict):
            # Also of the other two keywords, as `jsonschema` takes them.
            spend(min(len(part), len(found.instance)) // _NAMES_PER_STEP)
            found.add(part.keys() & found.instance.keys())
    _search_keys(found, validator, schema)


def _search_keys(found: _Evaluated, validator: Any, schema: Any) -> None:
    for pattern in schema.get("patternProperties", ()):
        spend(1 + len(found.instance) // _MATCHES_PER_STEP)
        found.add([key for key in found.instance if is_found(pattern, key)])
    for name, subschema in schema.get("dependentSchemas", {}).items():
        if name in found.instance:
            found.search(validator, subschema)
    found.search_combined(validator, schema)
    found.search_condition(validator, schema)


def _refused_items(positions: list[Any]) -> Iterator[ValidationError]:
    if positions:
        listed = ", ".join(map(str, positions[:_LISTED_MAX]))
        yield ValidationError(f"Unevaluated items are not allowed ({listed} unexpected)")


def _refused_properties(keys: list[Any], allowed: Any) -> Iterator[ValidationError]:
    if not keys:
        return
    listed = ", ".join(map(repr, sorted(keys, key=str)[:_LISTED_MAX]))
    if allowed is False:
        verb = "was" if len(keys) == 1 else "were"
        yield ValidationError(
            f"Unevaluated properties are not allowed ({listed:.300} {verb} unexpected)"
        )
    else:
        yield ValidationError(
            "Unevaluated properties are not valid under the given schema "
            f"({listed:.300} unevaluated and invalid)"
        )
