"""Which schemas may follow that of a typed topic, and what the topic's columns become. Pure
functions.

The rules are those of the compatibility level BACKWARD: values of the new schema can be made of all
records before it. A column is never removed from the table, so that no record loses a value; a
schema without it writes nulls.

Schemas that a topic once had stay valid, because programs that have them go on writing while others
already have the next one. `SchemaHistory` keeps what such schemas may differ in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import pyarrow as pa

from deltaq.delta.schema import delta_type
from deltaq.errors import InvalidConfig
from deltaq.serde.columns import (
    Members,
    comment_of,
    is_required,
    leaves,
    members_of,
    table_field,
)
from deltaq.serde.json_text import compact_json, strict_json
from deltaq.serde.schema import TopicSchema
from deltaq.serde.widening import is_wider

HISTORY_PROPERTY = "deltaq.schema.history"
"""The table property that keeps the `SchemaHistory`."""

_ANOTHER = "give the field another name, or use another topic"
_WIDER = (
    "a type can only become wider (a longer integer, float64 for float32, more digits before the "
    "decimal point)"
)


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """In what earlier schemas of a topic differ from its columns.

    `widened` has the Delta types that a column had before, `relaxed` the columns that every value
    once had, and `members` the values that an enum or `Literal` had before. Fields in structs,
    lists and maps are named by their path: `address.street`, `lines[].count`, `prices[value]`.
    """

    widened: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    relaxed: frozenset[str] = frozenset()
    members: Mapping[str, tuple[frozenset[str | int], ...]] = field(default_factory=dict)

    @staticmethod
    def parsed(text: str | None) -> SchemaHistory:
        """The history in a table property; an empty one without the property. Raises ValueError,
        TypeError, KeyError for a text that is none.
        """
        if text is None:
            return SchemaHistory()
        body = strict_json(text)
        if not isinstance(body, dict):
            raise TypeError("the history of the schema is not an object")
        widened = {path: tuple(types) for path, types in body["widened"].items()}
        members = {
            path: tuple(map(frozenset, sets)) for path, sets in body.get("members", {}).items()
        }
        return SchemaHistory(widened, frozenset(body["relaxed"]), members)

    def text(self) -> str:
        """The value of the table property."""
        members = {
            path: [sorted(each, key=str) for each in sets] for path, sets in self.members.items()
        }
        return compact_json(
            {"widened": self.widened, "relaxed": sorted(self.relaxed), "members": members}
        )


@dataclass(frozen=True, slots=True)
class Evolution:
    """The value columns of a topic that take a new schema besides all earlier ones, and the history
    with these.
    """

    columns: pa.Schema
    history: SchemaHistory


def evolution(
    topic: str, held: TopicSchema | None, history: SchemaHistory, wanted: TopicSchema
) -> Evolution | None:
    """How the schema `held` of a topic must change to take values of the schema `wanted`; None if
    it takes them.

    `held` is None for a topic of bytes. Raises InvalidConfig, with the column and the remedy, for a
    schema that does not fit.
    """
    if held is None:
        raise _refused(topic, "it holds bytes", "use a topic of another name")
    if held.arrow.equals(wanted.arrow, check_metadata=True):
        return None
    return _Merge(topic, history, wanted).result(held.arrow)


def unregistered(topic: str) -> InvalidConfig:
    """The error for a schema that the topic would have to be changed for, which the client must not
    do.
    """
    remedy = (
        "change the topic with Topic.evolve() first, or set auto.register.schemas=true in a "
        "producer without transactional.id"
    )
    return InvalidConfig(f"topic {topic!r} does not have this schema yet: {remedy}", key="schema")


@dataclass(slots=True)
class _Merge:
    """Columns of a topic and of a wanted schema on their way to columns that take the values of
    both.
    """

    topic: str
    history: SchemaHistory
    wanted: TopicSchema
    widened: dict[str, tuple[str, ...]] = field(init=False)
    relaxed: set[str] = field(init=False)
    members: dict[str, tuple[frozenset[str | int], ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.widened = dict(self.history.widened)
        self.relaxed = set(self.history.relaxed)
        self.members = dict(self.history.members)

    def result(self, held: pa.Schema) -> Evolution | None:
        wanted: pa.Schema = self.wanted.arrow
        if not set(held.names) & set(wanted.names):
            names = ", ".join(held.names[:5])
            raise _refused(
                self.topic,
                f"none of its columns ({names}) is in the schema",
                "use a topic of another name",
            )
        columns = [self._column(column) for column in held]
        columns += [self._added(column, held) for column in wanted if column.name not in held.names]
        history = SchemaHistory(self.widened, frozenset(self.relaxed), self.members)
        evolved = pa.schema(columns)
        if history == self.history and evolved.equals(held, check_metadata=True):
            return None
        return Evolution(evolved, history)

    # --- columns ---

    def _column(self, held: pa.Field) -> pa.Field:
        """The column of the topic as the wanted schema needs it."""
        name = held.name
        at = self.wanted.arrow.get_field_index(name)
        if at < 0:
            return self._relaxed(held) if is_required(held) else held
        wanted = self.wanted.arrow.field(at)
        kind = self._kind(held.type, wanted.type, name, in_map=False)
        if is_required(wanted) and not is_required(held):
            self._check_required(name, has_default=name in self.wanted.defaults)
        if is_relaxed := is_required(held) and not is_required(wanted):
            self.relaxed.add(name)
        members = self._members(held, wanted)
        return table_field(
            name,
            kind,
            required=is_required(held) and not is_relaxed,
            comment=comment_of(held),
            members=members,
        )

    def _relaxed(self, held: pa.Field) -> pa.Field:
        self.relaxed.add(held.name)
        return table_field(
            held.name, held.type, required=False, comment=comment_of(held), members=members_of(held)
        )

    def _members(self, held: pa.Field, wanted: pa.Field) -> Members:
        """The members of the enums in a column that takes the values of both schemas."""
        ours, theirs = members_of(held), members_of(wanted)
        old, new = (dict(leaves(column.type, column.name)) for column in (held, wanted))
        result: dict[str, frozenset[str | int]] = {}
        for path in sorted(ours.keys() | theirs.keys()):
            before, after = ours.get(path), theirs.get(path)
            if path in old and path in new:
                after = self._joined(path, before, after)
            elif path in old:
                after = before
            if after is not None:
                result[path] = after
        return result

    def _joined(
        self, path: str, held: frozenset[str | int] | None, wanted: frozenset[str | int] | None
    ) -> frozenset[str | int] | None:
        """The members of both; None where all values are allowed. A field of the topic never loses
        a member.
        """
        if held == wanted or wanted in self.members.get(path, ()):
            return held  # in the history: it is of a program that has an earlier schema
        if wanted is not None and (held is None or not held <= wanted):
            lost = "any value" if held is None else repr(min(held - wanted, key=str))
            what = f"allows {lost} in the topic, and the schema does not"
            self._refuse(path, what, f"add members without removing any, or {_ANOTHER}")
        if held is not None:
            self.members[path] = (*self.members.get(path, ()), held)
        return wanted

    def _check_required(self, path: str, *, has_default: bool) -> None:
        """A field that every value has, where records may lack it. A schema that the topic once had
        may have it.
        """
        if not has_default and path not in self.relaxed:
            self._refuse(
                path,
                "is required, and records of the topic may lack it",
                "give it a default, or allow None",
            )

    def _added(self, wanted: pa.Field, held: pa.Schema) -> pa.Field:
        """The column of the topic for a new one of the wanted schema. Records before it have null
        there.
        """
        name = wanted.name
        twin = next((other for other in held.names if other.lower() == name.lower()), None)
        if twin is not None:
            self._refuse(name, f"differs from the topic's {twin!r} only in case", "rename it")
        if is_required(wanted) and name not in self.wanted.defaults:
            remedy = "give it a default, or allow None"
            self._refuse(name, "is new and required, and the records before it lack it", remedy)
        return table_field(
            name,
            wanted.type,
            required=False,
            comment=comment_of(wanted),
            members=members_of(wanted),
        )

    # --- types ---

    def _kind(
        self, held: pa.DataType, wanted: pa.DataType, path: str, *, in_map: bool
    ) -> pa.DataType:
        """The type that takes the values of both."""
        if held == wanted:
            return held
        if pa.types.is_struct(held) and pa.types.is_struct(wanted):
            return self._struct(held, wanted, path, in_map=in_map)
        if pa.types.is_list(held) and pa.types.is_list(wanted):
            return pa.list_(
                self._nested(held.value_field, wanted.value_field, f"{path}[]", in_map=in_map)
            )
        if pa.types.is_map(held) and pa.types.is_map(wanted):
            item = self._nested(held.item_field, wanted.item_field, f"{path}[value]", in_map=True)
            return pa.map_(held.key_type, item)
        return self._leaf(held, wanted, path)

    def _leaf(self, held: pa.DataType, wanted: pa.DataType, path: str) -> pa.DataType:
        before = self.widened.get(path, ())
        if is_wider(wanted, held):
            self.widened[path] = (*before, _type_name(held))
            return wanted
        if _type_name(wanted) not in before:  # else it is of a program that has an earlier schema
            self._refuse(path, f"is {held} in the topic, not {wanted}", f"{_WIDER}, so {_ANOTHER}")
        return held

    def _nested(self, held: pa.Field, wanted: pa.Field, path: str, *, in_map: bool) -> pa.Field:
        """A field in a struct, list or map, whose type says whether it can be null."""
        kind = self._kind(held.type, wanted.type, path, in_map=in_map)
        if held.nullable and not wanted.nullable:
            self._check_required(path, has_default=False)
        if wanted.nullable and not held.nullable:
            self.relaxed.add(path)
            return held.with_type(kind).with_nullable(True)
        return held.with_type(kind)

    def _struct(
        self, held: pa.StructType, wanted: pa.StructType, path: str, *, in_map: bool
    ) -> pa.DataType:
        theirs = {child.name: child for child in wanted}
        fields = []
        for child in held:
            where = f"{path}.{child.name}"
            if child.name in theirs:
                fields.append(self._nested(child, theirs.pop(child.name), where, in_map=in_map))
            else:
                if not child.nullable:
                    self.relaxed.add(where)
                fields.append(child.with_nullable(True))
        names = {child.name.lower() for child in held}
        for name, child in theirs.items():
            where = f"{path}.{name}"
            if in_map:
                self._refuse(
                    where, "is new, and not every engine reads maps that gain fields", _ANOTHER
                )
            if name.lower() in names:
                self._refuse(where, "differs from a field of the topic only in case", "rename it")
            if not child.nullable:
                self._refuse(
                    where, "is new and required, and the records before it lack it", "allow None"
                )
            fields.append(child)
        return pa.struct(fields)

    def _refuse(self, path: str, what: str, remedy: str) -> NoReturn:
        raise _refused(self.topic, f"column {path!r} {what}", remedy)


def _type_name(kind: pa.DataType) -> str:
    found = delta_type(kind)
    return found if isinstance(found, str) else compact_json(found)


def _refused(topic: str, what: str, remedy: str) -> InvalidConfig:
    return InvalidConfig(f"the schema does not fit topic {topic!r}: {what}; {remedy}", key="schema")
