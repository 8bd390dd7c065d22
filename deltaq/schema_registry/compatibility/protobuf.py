"""Whether a reader's Protobuf schema reads what a writer's wrote.

The rules are those of Protobuf ("Updating A Message Type") as Confluent's registry applies them
("Schema Evolution and Compatibility"). A field is known by its number: its name and its place in
the file may change. Fields may come and go, except required ones and single members of a oneof.
Types may change within a group that has one form on the wire. Independent fields must not become
members of one oneof, because a record may have several of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_GROUP, _MESSAGE = 10, 11
# Numbers of FieldDescriptor.TYPE_*, by the form that values have on the wire.
_FORMS: dict[int, str] = {
    1: "double",
    2: "float",
    **dict.fromkeys((3, 4, 5, 8, 13, 14), "int32, int64, uint32, uint64, bool or enum"),
    **dict.fromkeys((6, 16), "fixed64 or sfixed64"),
    **dict.fromkeys((7, 15), "fixed32 or sfixed32"),
    **dict.fromkeys((9, 12), "string or bytes"),
    **dict.fromkeys((17, 18), "sint32 or sint64"),
    _GROUP: "group",
    _MESSAGE: "message",
}
_TEXT = "string or bytes"


def incompatibilities(reader: Any, writer: Any) -> list[str]:
    """Why messages of the writer's file cannot be read with the reader's. Both are
    FileDescriptors.
    """
    comparison = _ProtobufComparison()
    found = []
    if reader.package != writer.package:
        found.append(
            f"the package changed from {writer.package or 'none'} to {reader.package or 'none'}"
        )
    try:
        for message in _messages(writer.message_types_by_name.values()):
            found += comparison.of(reader, message)
    except RecursionError:
        found.append("the chain of messages in messages is too long to be compared")
    return found


def _messages(messages: Iterable[Any]) -> Iterator[Any]:
    for message in messages:
        if not message.GetOptions().map_entry:
            yield message
            yield from _messages(message.nested_types)


def _local_name(message: Any) -> str:
    """The name without the package, which may change for imported messages."""
    package = message.file.package
    return str(message.full_name).removeprefix(f"{package}." if package else "")


class _ProtobufComparison:
    """A comparison of two files. A message is compared once: recursive ones end."""

    def __init__(self) -> None:
        self._compared: set[tuple[str, str]] = set()

    def of(self, file: Any, writer: Any) -> Iterator[str]:
        """Compare a message with the one of the same name in the reader's file."""
        name, found = _local_name(writer), None
        for part in name.split("."):
            known = file.message_types_by_name if found is None else found.nested_types_by_name
            found = known.get(part)
            if found is None:
                yield f"{name}: the message was removed"
                return
        yield from self._messages(found, writer)

    def _messages(self, reader: Any, writer: Any) -> Iterator[str]:
        pair = (str(reader.full_name), str(writer.full_name))
        if pair in self._compared:
            return
        self._compared.add(pair)
        name = _local_name(writer)
        yield from (f"{name}: {reason}" for reason in _oneofs(reader, writer))
        for number, field in reader.fields_by_number.items():
            old = writer.fields_by_number.get(number)
            if field.is_required and (old is None or not old.is_required):
                yield f"{name}.{field.name}: field {number} is required now"
        for number, field in writer.fields_by_number.items():
            new = reader.fields_by_number.get(number)
            if new is not None:
                yield from (
                    f"{name}.{field.name}: field {number} {reason}"
                    for reason in self._fields(new, field)
                )
            elif field.is_required:
                yield f"{name}.{field.name}: field {number} was required and is missing"

    def _fields(self, reader: Any, writer: Any) -> Iterator[str]:
        form, old_form = _form(reader), _form(writer)
        if form != old_form:
            yield f"changed from {old_form} to {form}"
        elif form == "map":
            entry = reader.message_type.fields_by_number
            old_entry = writer.message_type.fields_by_number
            for number in (1, 2):
                yield from self._fields(entry[number], old_entry[number])
        elif form in ("group", "message"):
            if _local_name(reader.message_type) != _local_name(writer.message_type):
                yield (
                    f"changed from {writer.message_type.full_name} to "
                    f"{reader.message_type.full_name}"
                )
            else:
                yield from (
                    f"has a changed type: {reason}"
                    for reason in self._messages(reader.message_type, writer.message_type)
                )
        elif form != _TEXT and reader.is_repeated != writer.is_repeated:
            yield "became repeated" if reader.is_repeated else "is no longer repeated"


def _form(field: Any) -> str:
    if field.type == _MESSAGE and field.message_type.GetOptions().map_entry:
        return "map"
    return _FORMS[field.type]


def _members(message: Any) -> dict[str, set[int]]:
    """The numbers of the members of each oneof. One that only marks an optional field of proto3
    does not count.
    """
    found = {oneof.name: {field.number for field in oneof.fields} for oneof in message.oneofs}
    optional = {f"_{field.name}": {field.number} for field in message.fields}
    return {name: numbers for name, numbers in found.items() if optional.get(name) != numbers}


def _oneofs(reader: Any, writer: Any) -> Iterator[str]:
    old, new = _members(writer), _members(reader)
    known = set(writer.fields_by_number)
    oneof_of = {number: name for name, members in old.items() for number in members}
    for name, numbers in new.items():
        groups = {oneof_of[number] for number in numbers if number in oneof_of}
        outside = (numbers & known) - oneof_of.keys()
        if len(groups) + len(outside) > 1:
            yield f"fields that were independent are members of the oneof {name} now"
    present = set(reader.fields_by_number)
    for name, numbers in old.items():
        missing = numbers - present
        if missing and (name in new or missing != numbers):
            listed = ", ".join(map(str, sorted(missing)))
            yield f"field {listed} of the oneof {name} was removed"
