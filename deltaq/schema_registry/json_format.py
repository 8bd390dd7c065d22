"""JSON Schema: the only door to `jsonschema` and `referencing`, which check schemas and values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import Draft3Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from deltaq.schema_registry.compatibility import json_schema
from deltaq.schema_registry.formats import NamedText
from deltaq.schema_registry.json_drafts import invalid_part
from deltaq.schema_registry.json_patterns import (
    PATTERNS_WORK_MAX,
    check_pattern,
    is_quick,
    work_to_read,
)
from deltaq.schema_registry.json_validators import Enumeration, limited_validator
from deltaq.schema_registry.work import (
    VALUE_DEPTH_MAX,
    TooMuchWork,
    check_schema_size,
    limited_work,
    measure,
    spend,
)
from deltaq.serde.errors import SerializationError
from deltaq.serde.json_text import compact_json, strict_json

_BESIDE_OTHERS = frozenset(
    ("else", "exclusiveMaximum", "exclusiveMinimum", "maxContains", "minContains", "then")
)
"""Keywords that `jsonschema` reads together with another one."""
_IGNORES_SIBLINGS = ("draft-03", "draft-04", "draft-06", "draft-07")
"""Drafts in which nothing beside a `$ref` has a meaning."""
_UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
_EVALUATING = frozenset(
    (
        "$dynamicRef",
        "$recursiveRef",
        "$ref",
        "allOf",
        "anyOf",
        "contains",
        "dependentSchemas",
        "if",
        "not",
        "oneOf",
    )
)
_SAME_VALUE = frozenset(("allOf", "anyOf", "else", "if", "not", "oneOf", "then"))
"""Keywords whose subschemas judge the whole value."""
_ANYTHING: dict[str, Any] = {}

CHECK_STEPS_MAX = 50_000
"""Keywords that are judged for a value, however small it is: about a second."""
CHECK_STEPS_PER_VALUE = 20
_FORM_STEPS_MAX = 200_000
_PARSE_STEPS_MAX = 200_000
_COMPARE_STEPS_MAX = 200_000
ARRAY_PARTS_MAX = 1_000
"""Objects and arrays in one array of a schema."""


def canonical(text: str) -> str:
    """The schema without white space. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False)


def normalized(text: str) -> str:
    """The schema without white space and with sorted keywords. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def _loaded(text: str) -> Any:
    loaded = strict_json(text)
    check_schema_size(loaded, ARRAY_PARTS_MAX)
    return loaded


def identity(text: str, references: Sequence[NamedText]) -> str:
    """The canonical text itself."""
    return text


def parse(text: str, references: Sequence[NamedText]) -> SchemaNode:
    """The root of a schema. Raises ValueError for a schema that its draft does not allow, a
    reference to nothing, and a regular expression that Python does not know.
    """
    return _parsed(text, tuple(references))


@lru_cache(maxsize=1000)
def _parsed(text: str, references: tuple[NamedText, ...]) -> SchemaNode:
    schema = _loaded(text)
    if not isinstance(schema, dict | bool):
        raise ValueError("a JSON schema is an object or a boolean")
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if named is not None and validator_for(schema, default=None) in (None, Draft3Validator):
        raise ValueError(f"the draft {named!r:.100} is not known: use 4, 6, 7, 2019-09 or 2020-12")
    draft = validator_for(schema)
    specification = specification_with(_address(draft))
    # With a registry of its own, a validator fetches nothing from the network.
    registry: Registry[Any] = Registry()
    for reference in references:
        contents = _loaded(reference.text)
        _check_draft(contents, draft)
        resource: Resource[Any] = Resource.from_contents(
            contents, default_specification=specification
        )
        registry = registry.with_resource(reference.name, resource)
    try:
        with limited_work(_FORM_STEPS_MAX):
            if (wrong := invalid_part(schema, draft)) is not None:
                place = "/".join(map(str, wrong.path)) or "the schema"
                raise ValueError(f"{place}: {wrong.message[:500]}")
        _check_draft(schema, draft)
        root = specification.create_resource(schema)
        validator = limited_validator(draft)(schema, registry=registry)
        node = SchemaNode(schema, validator, registry.resolver_with_root(root))
        with limited_work(_PARSE_STEPS_MAX):
            _check_parts(node)
    except Unresolvable as error:
        raise ValueError(
            f"the reference {error.ref!r:.200} leads nowhere; name it in `references`"
        ) from error
    except TooMuchWork as error:
        raise ValueError(f"it takes too much work to check the schema: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return node


def _check_draft(schema: Any, draft: Any) -> None:
    """Remove `$schema` from a document and its parts, which `jsonschema` would judge by a validator
    of its own. Raises ValueError for a part of another draft.
    """
    specification, waiting = specification_with(_address(draft)), [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        named = part.pop("$schema", None)
        if isinstance(named, str) and validator_for({"$schema": named}, default=None) is not draft:
            raise ValueError(
                f"the draft {named!r:.100} stands in a schema of the draft {_address(draft)}: "
                "use one"
            )
        for keyword in ("anyOf", "oneOf"):  # the text of an error of `false` would show the value
            if isinstance(branches := part.get(keyword), list):
                part[keyword] = [{"not": {}} if branch is False else branch for branch in branches]
        if isinstance(values := part.get("enum"), list):
            part["enum"] = Enumeration(values)
        waiting += specification.subresources_of(part)


def incompatibilities(reader: SchemaNode, writer: SchemaNode) -> list[str]:
    """Why values of the writer's schema may not conform to the reader's; empty if they do."""
    try:
        with limited_work(_COMPARE_STEPS_MAX):
            return json_schema.incompatibilities(reader, writer)
    except TooMuchWork:
        return [f"the schemas need more than {_COMPARE_STEPS_MAX} steps to be compared"]


class SchemaNode:
    """A schema at its place in a document."""

    def __init__(self, schema: Any, template: Any, resolver: Any) -> None:
        self.schema = schema
        self._template = template
        self._resolver = resolver

    @cached_property
    def _validator(self) -> Any:
        # As jsonschema itself makes the validator of a part; no public parameter has the place of
        # the part.
        return self._template.evolve(schema=self.schema, _resolver=self._resolver)

    @property
    def dialect(self) -> str:
        """The address of the draft."""
        return _address(self._template)

    @cached_property
    def keywords(self) -> Mapping[str, Any]:
        """The keywords that constrain values. `format` is not among them: it is not checked."""
        if self.schema is False:
            return {"not": _ANYTHING}
        if self.schema is True:
            return _ANYTHING
        if "$ref" in self.schema and any(draft in self.dialect for draft in _IGNORES_SIBLINGS):
            return {"$ref": self.schema["$ref"]}
        draft: Any = type(self._template)
        known = _constraining(draft)
        found = {keyword: value for keyword, value in self.schema.items() if keyword in known}
        for keyword, plain in _UNEVALUATED.items():
            # The plain keyword leaves nothing unevaluated. Without it and without subschemas that
            # evaluate parts of the value, the two mean the same.
            if keyword in found and (plain in found or not found.keys() & _EVALUATING):
                found.setdefault(plain, found.pop(keyword))
        return found

    def at(self, *path: str | int) -> SchemaNode:
        """The subschema at a path."""
        found: Any = self.keywords
        for step in path:
            found = found[step]
        return self.placed(found)

    def placed(self, schema: Any) -> SchemaNode:
        """A subschema of this one."""
        return self._placed(schema, self._resolver)

    def parts(self) -> Iterator[SchemaNode]:
        """The subschemas in all keywords of the draft."""
        return map(self.placed, specification_with(self.dialect).subresources_of(self.schema))

    def literal(self, schema: dict[str, Any]) -> SchemaNode:
        """Another schema of the same draft."""
        return SchemaNode(schema, self._template, self._resolver)

    def resolve(self, reference: str) -> SchemaNode:
        """The schema that a reference stands for. Raises Unresolvable, and ValueError for what is
        no schema.
        """
        found = self._resolver.lookup(reference)
        if not isinstance(found.contents, dict | bool):
            raise ValueError(f"the reference {reference!r:.200} leads to what is no schema")
        return self._placed(found.contents, found.resolver)

    def _placed(self, schema: Any, resolver: Any) -> SchemaNode:
        if isinstance(schema, dict) and ("$id" in schema or "id" in schema):
            resolver = resolver.in_subresource(
                specification_with(self.dialect).create_resource(schema)
            )
        spend()
        return SchemaNode(schema, self._template, resolver)

    def admits(self, value: Any) -> bool:
        """Whether a value conforms."""
        return bool(self._validator.is_valid(value))

    def first_error(self, value: Any) -> ValidationError | None:
        """The most telling reason why a value does not conform; None if it does."""
        error: ValidationError | None = best_match(self._validator.iter_errors(value))
        return error

    @property
    def name(self) -> str | None:
        """The name that a subject can have: the title."""
        title = self.schema.get("title") if isinstance(self.schema, dict) else None
        return title if isinstance(title, str) else None


@lru_cache(maxsize=16)
def _constraining(draft: Any) -> frozenset[str]:
    """The keywords of a draft that constrain values."""
    return frozenset(draft.VALIDATORS.keys() - {"format"} | _BESIDE_OTHERS)


def _address(draft: Any) -> str:
    """The address of a draft's validator."""
    return str(draft.META_SCHEMA.get("$id") or draft.META_SCHEMA.get("id"))


def _check_parts(root: SchemaNode) -> None:
    """Look up the references in a schema, its parts and what these refer to, and try their regular
    expressions.
    """
    checked: set[int] = set()
    names: list[str] = []
    patterns: set[str] = set()
    work = 0
    has_unevaluated = False
    waiting = [root]  # not a recursion: a chain of references can be long
    while waiting:
        node = waiting.pop()
        if id(node.schema) in checked or not isinstance(node.schema, dict):
            continue
        checked.add(id(node.schema))
        if isinstance(node.schema.get("$schema"), str):
            raise ValueError("a reference leads to a part that names a draft of its own")
        names += node.keywords.get("patternProperties", ())
        has_unevaluated |= "unevaluatedProperties" in node.schema
        for pattern in (*node.keywords.get("patternProperties", ()), node.keywords.get("pattern")):
            if isinstance(pattern, str) and pattern not in patterns:
                patterns.add(pattern)
                work += work_to_read(pattern)
                if work > PATTERNS_WORK_MAX:
                    raise ValueError(
                        "its regular expressions have too many characters and ranges of these"
                    )
                check_pattern(pattern)
        keywords = node.keywords
        references = [keywords[each] for each in ("$ref", "$dynamicRef") if each in keywords]
        if not all(isinstance(each, str) for each in references):  # the draft 4 does not say so
            raise ValueError("a reference is no text")
        waiting += [node.resolve(each) for each in references]
        waiting += node.parts()
    if slow := [pattern for pattern in names if has_unevaluated and not is_quick(pattern)]:
        raise ValueError(
            f"the pattern {slow[0]!r:.200} may take too long beside unevaluatedProperties"
        )
    _check_circles(root)


def _check_circles(root: SchemaNode) -> None:
    """Raises ValueError if a schema refers to itself for the same value: no validation of it would
    end.
    """
    entered: set[int] = set()  # on the path to the current one
    left: set[int] = set()
    reached: set[int] = set()
    places = [root]
    waiting: list[tuple[SchemaNode, bool]] = []
    while places or waiting:
        if not waiting:
            place = places.pop()
            if id(place.schema) in reached:
                continue
            reached.add(id(place.schema))
            waiting.append((place, False))
            places += [
                part
                for part in (*place.parts(), *_same_value(place))
                if isinstance(part.schema, dict)
            ]
        node, is_done = waiting.pop()
        key = id(node.schema)
        if is_done:
            entered.discard(key)
            left.add(key)
        elif key in entered:
            raise ValueError("the schema refers to itself without a property or an item between")
        elif key not in left:
            entered.add(key)
            waiting.append((node, True))
            waiting += [(part, False) for part in _same_value(node)]


def _same_value(node: SchemaNode) -> list[SchemaNode]:
    """The schemas that judge the whole value, too."""
    if not isinstance(node.schema, dict):
        return []
    found = [
        node.placed(child)
        for keyword in _SAME_VALUE & node.keywords.keys()
        for child in _children(node.keywords[keyword])
    ]
    references = [node.keywords.get("$ref")]
    if "$recursiveRef" in node.keywords:
        references.append("#")
    # Others depend on the way to them.
    if (reference := node.keywords.get("$dynamicRef", "")).partition("#")[2][:1] in ("", "/"):
        references.append(reference)
    found += [node.resolve(each) for each in references if isinstance(each, str) and each]
    return found


def _children(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        yield part
    elif isinstance(part, list):
        yield from (child for child in part if isinstance(child, dict))


# --- values ---

prepared = parse
"""The schema for `check`."""


def encode(value: Any, dump: Callable[[Any], Any] | None) -> bytes:
    """The value as JSON, by default without spaces. Raises SerializationError, also for NaN: other
    programs cannot read it.
    """
    try:
        if dump is not None:
            text = dump(value)
        else:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode() if isinstance(text, str) else bytes(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(str(error)[:1000]) from error


def decode(payload: bytes, load: Callable[[bytes], Any] | None) -> Any:
    """The value of JSON. Raises SerializationError."""
    try:
        return json.loads(payload) if load is None else load(payload)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"not JSON: {error!s:.1000}") from error


def check(schema: SchemaNode, value: Any) -> None:
    """Raises SerializationError with the field that does not conform. The value may be private, so
    it is not shown.
    """
    depth, count = measure(value)
    if depth > VALUE_DEPTH_MAX:
        raise SerializationError(f"the value is nested more than {VALUE_DEPTH_MAX} levels deep")
    try:
        with limited_work(CHECK_STEPS_MAX + count * CHECK_STEPS_PER_VALUE):
            error = schema.first_error(value)
    except TooMuchWork as error_of_work:
        raise SerializationError(f"the value cannot be checked: {error_of_work}") from None
    except RecursionError:
        raise SerializationError("the schema is nested too deeply for the value") from None
    except (Unresolvable, ArithmeticError, TypeError, ValueError) as unknown:
        # A reference that depends on the way to it, or a number as the caller's function makes it.
        raise SerializationError(f"the value cannot be checked: {unknown!s:.500}") from unknown
    if error is None:
        return
    if error.validator in (
        "additionalProperties",
        "dependentRequired",
        "required",
        "unevaluatedProperties",
    ):
        reason = error.message[:500]  # it names fields only
    elif error.validator is None:
        reason = "no value is allowed"
    else:
        wanted = f"{error.validator} {compact_json(error.validator_value):.200}"
        reason = f"{type(error.instance).__name__} does not conform to {wanted}"
    raise SerializationError(reason, field=".".join(map(str, error.absolute_path)) or None)
