"""Answers of `AdminClient` as objects of confluent-kafka's Python classes, which the C module makes
as well.
"""

from __future__ import annotations

import dataclasses
import sys
from enum import Enum
from typing import Any

_MODULES = ("confluent_kafka", "confluent_kafka.admin")


def as_theirs(answer: Any) -> Any:
    """The answer with each object of deltaq replaced by one of the class of the same name in
    confluent-kafka.
    """
    if isinstance(answer, list):
        return [as_theirs(each) for each in answer]
    if isinstance(answer, dict):
        return {key: as_theirs(value) for key, value in answer.items()}
    theirs = _class_of_the_same_name(type(answer))
    if isinstance(answer, Enum):
        return answer if theirs is None else theirs(answer.value)
    if not dataclasses.is_dataclass(answer) or isinstance(answer, type):
        return answer
    values = {
        field.name: as_theirs(getattr(answer, field.name)) for field in dataclasses.fields(answer)
    }
    if theirs is None:
        return dataclasses.replace(answer, **values)
    found = object.__new__(theirs)
    for name, value in values.items():
        setattr(found, name, value)
    return found


def _class_of_the_same_name(ours: type) -> Any:
    for module in _MODULES:
        theirs = getattr(sys.modules.get(module), ours.__name__, None)
        if isinstance(theirs, type) and ours.__module__.startswith(
            ("deltaq.admin", "deltaq.metadata")
        ):
            return theirs
    return None
