"""The limited validators of JSON Schema judge as those of `jsonschema` do."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.exceptions import SchemaError
from jsonschema.validators import (
    Draft4Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)

from deltaq.schema_registry.json_drafts import invalid_part
from deltaq.schema_registry.json_format import check, parse
from deltaq.schema_registry.json_patterns import is_found
from deltaq.schema_registry.json_validators import limited_validator
from deltaq.schema_registry.work import TooMuchWork, limited_work
from tests.depth import depth

NEWEST = (Draft201909Validator, Draft202012Validator)
DRAFTS = (Draft4Validator, Draft7Validator, *NEWEST)
NAMES = st.sampled_from(["a", "b", "ab", "$ref"])
X = "#/$defs/x"
BESIDE = {"if": ["then", "else"], "additionalProperties": ["patternProperties"]}
KEYWORDS = [
    *("$ref", "additionalProperties", "allOf", "anyOf", "const", "contains", "dependentSchemas"),
    *("else", "enum", "if", "items", "multipleOf", "not", "oneOf", "patternProperties"),
    *("prefixItems", "properties", "then", "type", "unevaluatedItems", "unevaluatedProperties"),
    "uniqueItems",
]

scalars = st.sampled_from(
    [None, True, False, 0, 1, 1.0, -0.0, 2, 0.5, 1e300, 2**61 - 1, "", "a", "ab", "1"]
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


SCALARS = [None, True, False, 0, 1, 1.0, -0.0, 2, 0.5, 1e300, 2**61 - 1, "", "a", "ab", "1"]
SIMPLE = [True, False, {}, {"type": "integer"}, {"const": 1}, {"enum": ["a", 1]}, {"$ref": X}]


class Drawing:
    """Draws schemas and values. Hypothesis takes ten times as long for one that can be made
    smaller.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 2) -> Any:
        """Often an object or an array."""
        kind = self.random.random() if depth else 1
        if kind < 0.4:
            return {name: self.value(depth - 1) for name in self._names()}
        if kind < 0.7:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return self.random.choice(SCALARS)

    def schema(self, depth: int = 2) -> Any:
        """With some of the keywords that have an implementation of their own, and of those through
        which they look.
        """
        if not depth or self.random.random() < 0.2:
            return self.random.choice(SIMPLE)
        names = self.random.sample(KEYWORDS, self.random.randint(1, 4))
        names += [beside for name in names for beside in BESIDE.get(name, ())]
        found = {name: self._keyword(name, depth - 1) for name in names}
        if self.random.random() < 0.4:
            found[self.random.choice(["unevaluatedItems", "unevaluatedProperties"])] = False
        return found

    def _keyword(self, name: str, depth: int) -> Any:
        match name:
            case "allOf" | "anyOf" | "oneOf" | "prefixItems":
                return [self.schema(depth) for _ in range(self.random.randint(1, 3))]
            case "dependentSchemas" | "patternProperties" | "properties":
                return {each: self.schema(depth) for each in self._names()}
            case "const":
                return self.value(1)
            case "enum":
                return [self.value(1) for _ in range(self.random.randrange(4))]
            case "multipleOf":
                return self.random.choice([0.01, 0.5, 1, 3, 2**62])
            case "type":
                return self.random.choice(["object", "array", "integer", ["null", "string"]])
            case "uniqueItems":
                return self.random.random() < 0.8
            case "$ref":
                return X
            case _:
                return self.schema(depth)

    def _names(self) -> list[str]:
        return self.random.sample(["a", "b", "ab", "$ref"], self.random.randrange(4))


@pytest.mark.parametrize("draft", NEWEST)
def test_verdicts_are_those_of_jsonschema(draft):
    for seed in range(depth(3000, 100_000)):
        drawing = Drawing(seed)
        schema, value = drawing.schema(), drawing.value()
        if isinstance(schema, bool):
            continue
        whole = {**schema, "$defs": {"x": {"properties": {"a": True}, "contains": {"const": 1}}}}
        try:
            expected = draft(whole).is_valid(value)
        except (OverflowError, TypeError):
            continue  # of a number beyond float, and of `items: true` beside `unevaluatedItems`
        assert limited_validator(draft)(whole).is_valid(value) is expected, (seed, schema, value)
        if seed % 20 == 0:
            node = parse(json.dumps({"$schema": draft.META_SCHEMA["$id"], **whole}), ())
            assert node.admits(value) is expected


@pytest.mark.parametrize("draft", DRAFTS)
@given(
    keyword=st.sampled_from(
        sorted({*Draft4Validator.VALIDATORS, *Draft202012Validator.VALIDATORS, "$id", "$defs"})
    ),
    value=values | st.integers().map(lambda seed: Drawing(seed).schema()),
)
@settings(max_examples=depth(40, 1000), deadline=None)
def test_the_form_of_a_schema_is_judged_as_by_jsonschema(draft, keyword, value):
    try:
        draft.check_schema({keyword: value}, format_checker=None)
        expected = True
    except SchemaError:
        expected = False
    assert (invalid_part({keyword: value}, draft) is None) is expected


def test_each_part_of_a_schema_takes_a_step():
    judge = limited_validator(Draft202012Validator)({"items": {}})
    with limited_work(100):
        assert judge.is_valid([1] * 50)
        with pytest.raises(TooMuchWork):
            judge.is_valid([1] * 200)


KINDS = [f"k{number}" for number in range(30)]


def kind(name: str) -> dict[str, Any]:
    return {"properties": {"kind": {"const": name}, "n": {"type": "integer"}}, "required": ["kind"]}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("union", ["anyOf", "oneOf"])
@pytest.mark.parametrize(
    "value", [{"kind": "a"}, {"kind": "b", "n": "1"}, {"kind": 1}, {"": 1}, {}, "a", {"n": "1"}]
)
def test_a_union_of_kinds_is_judged_as_by_jsonschema(draft, union, value):
    refers = {"$ref": "#/definitions/b", "properties": {"kind": {"const": "a"}}}
    text = {"required": ["n"], "type": "object"}
    schema = {union: [kind("a"), refers, text], "definitions": {"b": kind("b")}}
    assert limited_validator(draft)(schema).is_valid(value) is draft(schema).is_valid(value)


@pytest.mark.parametrize(
    ("items", "value"),
    [
        ({"oneOf": list(map(kind, KINDS))}, [{"kind": name, "n": 1} for name in KINDS] * 50),
        ({"oneOf": [{"$ref": f"#/$defs/{name}"} for name in KINDS]}, [{"kind": "k7"}] * 1500),
        (
            {"pattern": r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$"},
            ["first.last@example.org"] * 9000,
        ),
        (
            {"pattern": r"^((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)$"},
            ["192.168.100.101"] * 3000,
        ),
        ({"pattern": r"^[\u4e00-\u9fa5 ]*$"}, ["\u4e01" * 2000]),
    ],
    ids=["kinds", "kinds by reference", "addresses", "numbers of hosts", "a long text"],
)
def test_ordinary_values_are_checked_within_the_limit(items, value):
    schema = {"items": items, "$defs": {name: kind(name) for name in KINDS}}
    check(parse(json.dumps(schema), ()), value)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\x40+@\x40+@\x40+@\x40+@$",
        "^[@a]+@[@a]+@[@a]+@[@a]+@$",
        "^[^b]*a[^b]*a[^b]*a[^b]*a$",
        r"^\w+a\w+a\w+a\w+a$",
        "(?x)^[a]+ [@]+[a@]+[a@]+[a@]+[a@]+$",
        "^*[a@]+@[a@]+@[a@]+@[a@]+$",
        "^b|[a@]+@[a@]+@[a@]+@[a@]+$",
    ],
)
def test_a_loop_that_can_end_at_many_places_takes_steps_for_each(pattern):
    with limited_work(1000), pytest.raises(TooMuchWork):
        is_found(pattern + "(?=c)", "@" * 50 + "a@" * 100)


NUMBERED = {f"n{number}": 1 for number in range(2000)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"additionalProperties": True}, NUMBERED),
        ({"dependentRequired": dict.fromkeys(list(NUMBERED)[:20], list(NUMBERED)[:100])}, NUMBERED),
        ({"uniqueItems": True}, [[*range(1000)]]),
        ({"minItems": 10**6}, [10**17] * 2000),
        ({"allOf": [{"allOf": [{"required": [f"m{number}" for number in range(30)]}]}]}, {}),
        ({"unevaluatedItems": False}, [1] * 2000),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, NUMBERED),
        ({"uniqueItems": True}, list(range(2000))),
    ],
)
def test_work_that_grows_with_the_value_takes_steps(schema, value):
    judge = limited_validator(Draft202012Validator)(schema)
    with limited_work(60), pytest.raises(TooMuchWork):
        list(judge.iter_errors(value))
