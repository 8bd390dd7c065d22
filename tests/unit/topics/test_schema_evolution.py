"""Which schemas may follow one another: a table of cases, and an independent rule over generated
pairs of models.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from deltaq.delta.schema import arrow_schema, delta_schema
from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.serde.schema import TopicSchema
from deltaq.serde.source import schema_of
from deltaq.topics.schema_evolution import Evolution, SchemaHistory, evolution

NONE = SchemaHistory()


def columns(**types: Any) -> TopicSchema:
    """A schema with these Arrow types; one in a tuple is required."""
    fields = [
        pa.field(name, kind[0], nullable=False) if isinstance(kind, tuple) else pa.field(name, kind)
        for name, kind in types.items()
    ]
    return schema_of(pa.schema(fields))


def model(**fields: Any) -> TopicSchema:
    """The schema of a model with these annotations, or pairs of annotation and default."""
    pairs: dict[str, Any] = {
        name: each if isinstance(each, tuple) else (each, ...) for name, each in fields.items()
    }
    return schema_of(pydantic.create_model("M", **pairs))


def evolved(held: TopicSchema, wanted: TopicSchema, history: SchemaHistory = NONE) -> Evolution:
    found = evolution("t", held, history, wanted)
    assert found is not None
    return found


def structs(*names: str, required: bool = False) -> pa.DataType:
    return pa.struct([pa.field(name, pa.int32(), nullable=not required) for name in names])


ACCEPTED: dict[str, tuple[TopicSchema, TopicSchema, TopicSchema]] = {
    "a field that can be null is added": (
        columns(a=pa.int64()),
        columns(a=pa.int64(), b=pa.string()),
        columns(a=pa.int64(), b=pa.string()),
    ),
    "a field with a default is added": (
        model(a=int),
        model(a=int, b=(int, 5)),
        columns(a=(pa.int64(),), b=pa.int64()),
    ),
    "a required field is dropped": (
        columns(a=pa.int64(), b=(pa.string(),)),
        columns(a=pa.int64()),
        columns(a=pa.int64(), b=pa.string()),
    ),
    "a required field can be null": (model(a=int), model(a=int | None), columns(a=pa.int64())),
    "a short becomes a long": (columns(a=pa.int16()), columns(a=pa.int64()), columns(a=pa.int64())),
    "a float becomes a double": (
        columns(a=(pa.float32(),)),
        columns(a=(pa.float64(),)),
        columns(a=(pa.float64(),)),
    ),
    "more digits": (
        columns(a=pa.decimal128(12, 2)),
        columns(a=pa.decimal128(14, 2)),
        columns(a=pa.decimal128(14, 2)),
    ),
    "a field is added to a struct": (
        columns(a=structs("x")),
        columns(a=structs("x", "y")),
        columns(a=structs("x", "y")),
    ),
    "a field is dropped from a list of structs": (
        columns(a=pa.list_(pa.field("element", structs("x", "y", required=True)))),
        columns(a=pa.list_(pa.field("element", structs("x", required=True)))),
        columns(
            a=pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())]
                    ),
                )
            )
        ),
    ),
    "the values of a map become wider": (
        columns(a=pa.map_(pa.string(), pa.int8())),
        columns(a=pa.map_(pa.string(), pa.int16())),
        columns(a=pa.map_(pa.string(), pa.int16())),
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_topic_takes_a_compatible_schema_and_keeps_all_earlier_ones(case: str) -> None:
    held, wanted, expected = ACCEPTED[case]
    found = evolved(held, wanted)
    assert found.columns.equals(expected.arrow, check_metadata=True)
    for schema in (held, wanted):
        assert evolution("t", schema_of(found.columns), found.history, schema) is None


UNCHANGED: dict[str, tuple[TopicSchema, TopicSchema]] = {
    "the same": (columns(a=pa.int64()), columns(a=pa.int64())),
    "another order": (columns(a=pa.int64(), b=pa.int8()), columns(b=pa.int8(), a=pa.int64())),
    "a field that can be null is left out": (
        columns(a=pa.int64(), b=pa.int8()),
        columns(a=pa.int64()),
    ),
    "a field that can be null gets a default": (
        model(a=int, b=int | None),
        model(a=int, b=(int, 0)),
    ),
    "another default": (model(a=(int, 1)), model(a=(int, 2))),
}


@pytest.mark.parametrize("case", UNCHANGED)
def test_a_topic_stays_as_it_is_if_it_takes_the_values_already(case: str) -> None:
    held, wanted = UNCHANGED[case]
    assert evolution("t", held, NONE, wanted) is None


REFUSED: dict[str, tuple[TopicSchema | None, TopicSchema, str]] = {
    "bytes": (None, columns(a=pa.int8()), "it holds bytes; use a topic of another name"),
    "nothing in common": (
        columns(a=pa.int8()),
        columns(b=pa.int8()),
        "none of its columns (a) is in the schema",
    ),
    "a new required field": (
        model(a=int),
        model(a=int, b=int),
        (
            "column 'b' is new and required, and the records before it lack it; give it a default, "
            "or allow None"
        ),
    ),
    "a field becomes required": (
        model(a=int, b=int | None),
        model(a=int, b=int),
        (
            "column 'b' is required, and records of the topic may lack it; give it a default, or "
            "allow None"
        ),
    ),
    "a narrower type": (
        columns(a=pa.int64()),
        columns(a=pa.int32()),
        "column 'a' is int64 in the topic, not int32",
    ),
    "fewer digits": (
        columns(a=pa.decimal128(12, 2)),
        columns(a=pa.decimal128(10, 2)),
        "column 'a' is decimal128(12, 2) in the topic, not decimal128(10, 2)",
    ),
    "another scale": (
        columns(a=pa.decimal128(12, 2)),
        columns(a=pa.decimal128(14, 4)),
        "column 'a' is decimal128(12, 2) in the topic, not decimal128(14, 4)",
    ),
    "a number becomes a float": (
        columns(a=pa.int32()),
        columns(a=pa.float64()),
        "column 'a' is int32 in the topic",
    ),
    "another type": (
        columns(a=pa.int64()),
        columns(a=pa.string()),
        "column 'a' is int64 in the topic, not string; a type can only become wider",
    ),
    "another kind": (columns(a=pa.list_(pa.int8())), columns(a=pa.int8()), "column 'a' is list<"),
    "a nested required field": (
        columns(a=structs("x")),
        columns(
            a=pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32(), nullable=False)])
        ),
        "column 'a.y' is new and required, and the records before it lack it; allow None",
    ),
    "a nested field becomes required": (
        columns(a=pa.list_(pa.field("element", structs("x")))),
        columns(a=pa.list_(pa.field("element", structs("x", required=True)))),
        "column 'a[].x' is required",
    ),
    "a nested type": (
        columns(a=pa.map_(pa.string(), structs("x"))),
        columns(a=pa.map_(pa.string(), pa.struct([("x", pa.string())]))),
        "column 'a[value].x' is int32 in the topic, not string",
    ),
    "a field is added inside a map": (
        columns(a=pa.map_(pa.string(), structs("x"))),
        columns(a=pa.map_(pa.string(), structs("x", "y"))),
        "column 'a[value].y' is new, and not every engine reads maps that gain fields",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_incompatible_schema_is_refused_by_its_field_with_the_remedy(case: str) -> None:
    held, wanted, reason = REFUSED[case]
    with pytest.raises(InvalidConfig) as caught:
        evolution("t", held, NONE, wanted)
    assert caught.value.error.str().startswith("the schema does not fit topic 't': ")
    assert reason in caught.value.error.str()


def test_a_column_that_differs_only_in_case_is_refused() -> None:
    with pytest.raises(
        InvalidConfig, match="column 'ID' differs from the topic's 'id' only in case; rename it"
    ):
        evolution("t", columns(id=pa.int8(), a=pa.int8()), NONE, columns(ID=pa.int8(), a=pa.int8()))


def test_a_type_that_the_topic_never_had_is_refused_though_it_lies_between_two() -> None:
    held = evolved(columns(a=pa.int8()), columns(a=pa.int64()))
    now = schema_of(held.columns)
    assert evolution("t", now, held.history, columns(a=pa.int8())) is None
    with pytest.raises(InvalidConfig, match="int64 in the topic, not int32"):
        evolution("t", now, held.history, columns(a=pa.int32()))


def test_a_comment_of_a_relaxed_and_of_a_new_column_is_kept() -> None:
    old = model(a=int, b=Annotated[int, Field(description="before")])
    new = model(a=int, c=(Annotated[int, Field(description="after")], 1))
    found = evolved(old, new)
    assert found.columns.field("b").metadata == {b"comment": b"before"}
    assert found.columns.field("c").metadata == {b"comment": b"after"}


def test_the_history_is_read_as_it_was_written() -> None:
    history = SchemaHistory(
        {"a": ("byte", "short"), "b.c[]": ("decimal(3,1)",)}, frozenset({"d", "e[value].f"})
    )
    assert SchemaHistory.parsed(history.text()) == history
    assert SchemaHistory.parsed(None) == NONE
    with_members = SchemaHistory(
        members={"a[]": (frozenset({"x"}), frozenset({"x", "y"})), "b": (frozenset({1, 2}),)}
    )
    assert SchemaHistory.parsed(with_members.text()) == with_members
    assert SchemaHistory.parsed('{"widened":{},"relaxed":["a"]}') == SchemaHistory(
        relaxed=frozenset("a")
    )


# --- members of enums and of Literal ---


class Red(enum.Enum):
    RED = "red"


class RedOrBlue(enum.Enum):
    RED = "red"
    BLUE = "blue"


def inner(kind: Any) -> Any:
    return pydantic.create_model("Inner", state=(kind, ...))


LIST: Any = list
DICT: Any = dict
PLACES: dict[str, Any] = {
    "a": lambda kind: kind,
    "a[]": lambda kind: LIST[kind],
    "a[value]": lambda kind: DICT[str, kind],
    "a.state": inner,
    "a[].state": lambda kind: LIST[inner(kind)],
}
FEW, MORE, OTHER = Literal["new", "paid"], Literal["sent", "paid", "new"], Literal["new", "sent"]


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize(
    ("few", "more", "other"),
    [
        (FEW, MORE, OTHER),
        (Red, RedOrBlue, Literal["blue", "green"]),
        (Literal[1], Literal[1, 2], Literal[2, 3]),
        (FEW, str, OTHER),
    ],
    ids=["literal", "enum", "int", "str"],
)
def test_a_topic_takes_more_members_and_never_fewer(
    path: str, few: Any, more: Any, other: Any
) -> None:
    place = PLACES[path]
    narrow, wide = model(a=place(few)), model(a=place(more))
    found = evolved(narrow, wide)
    now = schema_of(arrow_schema(delta_schema(found.columns)))
    history = SchemaHistory.parsed(found.history.text())
    assert evolution("t", now, history, narrow) is None  # its programs go on writing
    assert evolution("t", now, history, wide) is None
    with pytest.raises(InvalidConfig, match=re.escape(f"column {path!r} allows ")):
        evolution("t", wide, NONE, narrow)
    with pytest.raises(InvalidConfig, match="add members without removing any"):
        evolution("t", now, history, model(a=place(other)))


def test_the_error_names_the_member_that_is_missing() -> None:
    with pytest.raises(
        InvalidConfig, match="column 'a' allows 'paid' in the topic, and the schema does not"
    ):
        evolution("t", model(a=FEW), NONE, model(a=OTHER))


def test_the_members_of_a_field_left_out_are_kept_for_those_who_have_it() -> None:
    found = evolved(model(a=int, b=FEW), model(a=int))
    with pytest.raises(InvalidConfig, match="column 'b' allows 'paid'"):
        evolution("t", schema_of(found.columns), found.history, model(a=int, b=(OTHER, "new")))


@pytest.mark.parametrize("kind", [FEW, Red, Literal[1]], ids=str)
def test_a_program_that_has_only_the_columns_writes_members_only(kind: Any) -> None:
    plain = schema_of(arrow_schema(delta_schema(model(a=list[kind]).arrow)))
    good = "red" if kind is Red else kind.__args__[0]
    assert plain.accept({"a": [good]}) == {"a": [good]}
    with pytest.raises(InvalidValue) as caught:
        plain.accept({"a": [good, "gone" if isinstance(good, str) else 5]})
    assert caught.value.field == "a.1"


DAMAGED = [
    "{",
    "[]",
    '{"a":5}',
    '{"a":[]}',
    '{"a":["x",1]}',
    '{"a":[true]}',
    '{"a":[[]]}',
    '{"a":[1]}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_members_are_an_error_of_values(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        schema_of(pa.schema([pa.field("a", pa.string(), metadata={"deltaq.members": text})]))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), '{"a":[128]}'),
        (pa.int32(), '{"a":[-2147483649]}'),
        (pa.int64(), '{"a":["x"]}'),
        (pa.float64(), '{"a":[1]}'),
        (pa.list_(pa.int64()), '{"a[]":["x"]}'),
        (pa.map_(pa.string(), pa.struct([("b", pa.int16())])), '{"a[value].b":[40000]}'),
    ],
    ids=str,
)
def test_members_that_their_column_cannot_hold_are_an_error_of_values(
    kind: pa.DataType, text: str
) -> None:
    with pytest.raises(ValueError, match=r"the members of 'a.* do not fit its type"):
        schema_of(pa.schema([pa.field("a", kind, metadata={"deltaq.members": text})]))


def test_schemas_that_differ_in_members_only_are_not_equal() -> None:
    plain = [schema_of(arrow_schema(delta_schema(model(a=kind).arrow))) for kind in (FEW, OTHER)]
    assert plain[0] != plain[1]
    assert plain[0].arrow == plain[1].arrow


# --- an independent rule: whether the new program can read extreme records of the old one ---

TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), 2**7 - 1),
    "int16": (pa.int16(), 2**15 - 1),
    "int32": (pa.int32(), 2**31 - 1),
    "int64": (pa.int64(), 2**63 - 1),
    "float32": (pa.float32(), (2 - 2**-23) * 2.0**127),
    "float64": (pa.float64(), 1.7976931348623157e308),
    "decimal4": (pa.decimal128(4, 1), Decimal("999.9")),
    "decimal9": (pa.decimal128(9, 1), Decimal("99999999.9")),
    "string": (pa.string(), "text"),
}
"""Each type with the largest of its values. A value can be read as another type if it is of the
same kind in Python and not above that type's own largest value.
"""


@dataclass(frozen=True)
class ChangedColumn:
    kind: str
    is_required: bool


MODELS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(ChangedColumn, st.sampled_from(sorted(TYPES)), st.booleans()),
    min_size=1,
)


def schema(of: dict[str, ChangedColumn]) -> TopicSchema:
    return columns(
        **{n: (TYPES[c.kind][0],) if c.is_required else TYPES[c.kind][0] for n, c in of.items()}
    )


def can_read(new: dict[str, ChangedColumn], old: dict[str, ChangedColumn]) -> bool:
    """Whether each record that a program with the model `old` may have written is one of the model
    `new`.
    """
    for name, column in new.items():
        before = old.get(name)
        may_lack = before is None or not before.is_required
        if may_lack and column.is_required:
            return False
        if before is not None:
            largest, limit = TYPES[before.kind][1], TYPES[column.kind][1]
            if type(largest) is not type(limit) or largest > limit:
                return False
    return True


@given(old=MODELS, new=MODELS)
def test_a_schema_is_taken_exactly_if_its_programs_can_read_all_records_before(
    old: dict[str, ChangedColumn], new: dict[str, ChangedColumn]
) -> None:
    try:
        found = evolution("t", schema(old), NONE, schema(new))
    except InvalidConfig:
        assert not can_read(new, old) or not old.keys() & new.keys()
        return
    assert can_read(new, old)
    now = schema(old) if found is None else schema_of(found.columns)
    assert set(now.arrow.names) == old.keys() | new.keys()
    for name in now.arrow.names:
        kinds = [of[name].kind for of in (old, new) if name in of]
        assert (
            now.arrow.field(name).type
            == max((TYPES[kind] for kind in kinds), key=lambda kind: kind[1])[0]
        )
        assert (name in now.required) == all(
            name in of and of[name].is_required for of in (old, new)
        )


@given(models=st.lists(MODELS, min_size=2, max_size=5))
def test_every_schema_that_a_topic_took_is_taken_for_ever(
    models: list[dict[str, ChangedColumn]],
) -> None:
    now, history, taken = schema(models[0]), NONE, [models[0]]
    for each in models[1:]:
        try:
            found = evolution("t", now, history, schema(each))
        except InvalidConfig:
            continue
        taken.append(each)
        if found is not None:
            now, history = schema_of(found.columns), SchemaHistory.parsed(found.history.text())
        for earlier in taken:
            assert evolution("t", now, history, schema(earlier)) is None
