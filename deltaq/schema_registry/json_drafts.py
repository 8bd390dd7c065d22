"""What the drafts of JSON Schema allow in a schema.

The meta-schemas of `jsonschema` are used in a form of one document: that of the draft 2020-12 has
seven parts with a dynamic reference in each, and judging a schema by it takes ten times as long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import ValidationError

from deltaq.schema_registry.json_validators import limited_validator

_SELF = json.dumps({"$ref": "#"})
_REFERENCES = (
    (json.dumps({"$dynamicRef": "#meta"}), _SELF),
    (json.dumps({"$recursiveRef": "#"}), _SELF),
    ('"meta/core#/', '"#/'),
    ('"meta/validation#/', '"#/'),
)
"""References in the parts of a meta-schema, and those in one document."""


def invalid_part(schema: Any, draft: Any) -> ValidationError | None:
    """Why a draft does not allow a schema; None if it does. Regular expressions are not looked at.
    Raises TooMuchWork.
    """
    errors: Iterator[ValidationError] = _validator_of_schemas(draft).iter_errors(schema)
    return next(errors, None)


@lru_cache(maxsize=16)
def _validator_of_schemas(draft: Any) -> Any:
    whole = draft.META_SCHEMA
    resolver = draft(whole)._resolver
    documents = [
        whole,
        *(resolver.lookup(part["$ref"]).contents for part in whole.get("allOf", ())),
    ]
    # `jsonschema` judges a document with `$schema` by a validator without limits.
    form = {key: value for key, value in whole.items() if key not in ("$schema", "allOf")}
    form = {key: value for key, value in form.items() if not key.endswith(("Anchor", "cabulary"))}
    for keyword in ("properties", "$defs"):
        merged = {name: part for each in documents for name, part in each.get(keyword, {}).items()}
        if merged:
            form[keyword] = merged
    text = json.dumps(form)
    for parts, one in _REFERENCES:
        text = text.replace(parts, one)
    return limited_validator(draft)(json.loads(text))
