"""The limited validators of JSON Schema judge as those of `jsonschema` do."""

from __future__ import annotations

import json
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
from deltaq.schema_registry.json_format import parse
from deltaq.schema_registry.json_validators import limited_validator
from deltaq.schema_registry.work import TooMuchWork, limited_work
from tests.depth import depth

NEWEST = (Draft201909Validator, Draft202012Validator)
DRAFTS = (Draft4Validator, Draft7Validator, *NEWEST)
NAMES = st.sampled_from(["a", "b", "ab", "$ref"])

scalars = st.sampled_from(
    [None, True, False, 0, 1, 1.0, -0.0, 2, 0.5, 1e300, 2**61 - 1, "", "a", "ab", "1"]
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


def parts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas with some of the keywords that have an implementation of their own, and with those
    through which they look.
    """
    some, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "additionalProperties": inner,
            "allOf": some,
            "anyOf": some,
            "const": values,
            "contains": inner,
            "dependentSchemas": named,
            "else": inner,
            "enum": st.lists(values, max_size=3),
            "if": inner,
            "multipleOf": st.sampled_from([0.01, 0.5, 1, 3, 2**62]),
            "not": inner,
            "oneOf": some,
            "patternProperties": named,
            "prefixItems": some,
            "properties": named,
            "then": inner,
            "type": st.sampled_from(["object", "array", "integer", ["null", "string"]]),
            "uniqueItems": st.booleans(),
            "unevaluatedItems": inner,
            "unevaluatedProperties": inner,
            "$ref": st.sampled_from(["#/$defs/x"]),
            "items": inner,
        },
    )


schemas = st.recursive(st.booleans() | parts(st.booleans()), parts, max_leaves=4)


@pytest.mark.parametrize("draft", NEWEST)
@given(schema=parts(schemas), value=values)
@settings(max_examples=depth(40, 1000), deadline=None)
def test_verdicts_are_those_of_jsonschema(draft, schema, value):
    whole = {**schema, "$defs": {"x": {"properties": {"a": True}, "contains": {"const": 1}}}}
    try:
        expected = draft(whole).is_valid(value)
    except (OverflowError, TypeError):
        return  # of a number beyond float, and of `items: true` beside `unevaluatedItems`
    node = parse(json.dumps({"$schema": draft.META_SCHEMA["$id"], **whole}), ())
    assert limited_validator(draft)(whole).is_valid(value) is expected
    assert node.admits(value) is expected


@pytest.mark.parametrize("draft", DRAFTS)
@given(
    keyword=st.sampled_from(
        sorted({*Draft4Validator.VALIDATORS, *Draft202012Validator.VALIDATORS, "$id", "$defs"})
    ),
    value=values | schemas,
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
