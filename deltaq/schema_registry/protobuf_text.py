"""The text of a `.proto` file as a FileDescriptorProto in JSON: the only door to
`proto_schema_parser`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from proto_schema_parser import ast
from proto_schema_parser.parser import Parser

_SCALARS = frozenset(
    (
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
    )
)
_FIELD_MAX, _ENUM_MAX = 536_870_911, 2_147_483_647
_CARDINALITIES: dict[ast.FieldCardinality | None, str] = {
    None: "LABEL_OPTIONAL",
    **{each: f"LABEL_{each.value}" for each in ast.FieldCardinality},
}


TOKENS_MAX = 20_000
"""Words and signs of a file: the parser takes seconds for these, and a time that grows faster than
their number.
"""
NESTING_MAX = 100
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[\w.]+|[^\s\w]""",
    re.DOTALL,
)


def _check_size(text: str) -> None:
    """Raises ValueError for more tokens or deeper nesting than the parser can take."""
    depth = 0
    for count, found in enumerate(_TOKEN.finditer(text), 1):
        sign = found[0]
        depth += (sign in "{[(<") - (sign in "}])>")
        if count > TOKENS_MAX:
            raise ValueError(f"it has more than {TOKENS_MAX} words and signs")
        if depth > NESTING_MAX:
            raise ValueError(f"it is nested more than {NESTING_MAX} levels deep")


def file_descriptor(text: str) -> dict[str, Any]:
    """The file, as JSON has a FileDescriptorProto. Names of types are as in the text. Raises
    ValueError.
    """
    _check_size(text)
    parsed = Parser(setup_lexer=_listen, setup_parser=_listen).parse(text)
    if parsed.edition is not None or parsed.syntax not in (None, "proto2", "proto3"):
        raise ValueError(
            f"{parsed.edition or parsed.syntax!r} is not supported: use the syntax proto2 or proto3"
        )
    file = _File(is_proto3=parsed.syntax == "proto3")
    found: dict[str, Any] = {
        "syntax": parsed.syntax or "proto2",
        "dependency": [],
        "publicDependency": [],
        "messageType": [],
    }
    for element in parsed.file_elements:
        match element:
            case ast.Message():
                found["messageType"].append(file.message(element.name, element.elements))
            case ast.Package():
                found["package"] = element.name
            case ast.Import():
                if element.public:
                    found["publicDependency"].append(len(found["dependency"]))
                found["dependency"].append(element.name)
            case ast.Service():
                found.setdefault("service", []).append(_service(element))
    return {**found, **file.types(parsed.file_elements), **_options(parsed.file_elements)}


class _Complaints:
    """Raises the first error that the parser finds, which would otherwise print it and go on."""

    def syntaxError(  # noqa: N802 - the parser's name
        self, _parser: Any, _symbol: Any, line: int, column: int, text: str, _error: Any
    ) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(f"line {line}, column {column + 1}: {text[:300]}")

    def reportAmbiguity(self, *_: Any) -> None:  # noqa: N802 - the parser's name
        """Is no error."""

    reportAttemptingFullContext = reportContextSensitivity = reportAmbiguity  # noqa: N815 - the parser's names


def _listen(recognizer: Any) -> None:
    recognizer.removeErrorListeners()
    recognizer.addErrorListener(_Complaints())


class _File:
    """What messages need to know of their file."""

    def __init__(self, *, is_proto3: bool) -> None:
        self._is_proto3 = is_proto3

    def types(self, elements: Sequence[Any]) -> dict[str, Any]:
        """The enums and extensions among elements."""
        found: dict[str, Any] = {"enumType": [], "extension": []}
        for element in elements:
            match element:
                case ast.Enum():
                    found["enumType"].append(_enum(element))
                case ast.Extension():
                    for field in element.elements:
                        if isinstance(field, ast.Field):
                            found["extension"].append(
                                {**self._field(field), "extendee": element.typeName}
                            )
        return found

    def message(self, name: str, elements: Sequence[Any]) -> dict[str, Any]:
        """A message. Its nested types, which include those of maps and groups, have the order of
        the text: messages of a topic name their type by its index.
        """
        found: dict[str, Any] = {
            "name": name,
            "field": [],
            "oneofDecl": [],
            "reservedRange": [],
            "reservedName": [],
            "nestedType": [],
            "extensionRange": [],
            **self.types(elements),
        }
        for element in elements:
            match element:
                case ast.Message():
                    found["nestedType"].append(self.message(element.name, element.elements))
                case ast.Field() | ast.Group() | ast.MapField():
                    self._add(found, element)
                case ast.OneOf():
                    index = len(found["oneofDecl"])
                    found["oneofDecl"].append({"name": element.name})
                    for member in element.elements:
                        if isinstance(member, ast.Field | ast.Group):
                            self._add(found, member, index)
                case ast.Reserved():
                    found["reservedRange"] += _ranges(element.ranges, _FIELD_MAX, past_end=1)
                    found["reservedName"] += element.names
                case ast.ExtensionRange():
                    found["extensionRange"] += _ranges(element.ranges, _FIELD_MAX, past_end=1)
        for field in found["field"]:
            if field.get("proto3Optional"):  # marked by a oneof of its own, after all others
                field["oneofIndex"] = len(found["oneofDecl"])
                found["oneofDecl"].append({"name": f"_{field['name']}"})
        return {**found, **_options(elements)}

    def _add(self, message: dict[str, Any], element: Any, oneof: int | None = None) -> None:
        if isinstance(element, ast.MapField):
            field, entry = _map(element)
            message["nestedType"].append(entry)
        elif isinstance(element, ast.Group):
            message["nestedType"].append(self.message(element.name, element.elements))
            label = _CARDINALITIES[element.cardinality]
            field = {"name": element.name.lower(), "number": element.number, "label": label}
            field |= {"type": "TYPE_GROUP", "typeName": element.name}
        else:
            field = self._field(element, in_oneof=oneof is not None)
        message["field"].append(field if oneof is None else {**field, "oneofIndex": oneof})

    def _field(self, field: ast.Field, *, in_oneof: bool = False) -> dict[str, Any]:
        if not self._is_proto3 and not in_oneof and field.cardinality is None:
            raise ValueError(f"field {field.name} of proto2 must be optional, required or repeated")
        if self._is_proto3 and field.cardinality is ast.FieldCardinality.REQUIRED:
            raise ValueError(f"field {field.name} of proto3 cannot be required")
        found = {
            "name": field.name,
            "number": field.number,
            "label": _CARDINALITIES[field.cardinality],
        }
        found |= _type(field.type) | _field_options(field.options)
        if self._is_proto3 and field.cardinality is ast.FieldCardinality.OPTIONAL:
            found["proto3Optional"] = True
        return found


def _type(name: str) -> dict[str, Any]:
    return {"type": f"TYPE_{name.upper()}"} if name in _SCALARS else {"typeName": name}


def _map(field: ast.MapField) -> tuple[dict[str, Any], dict[str, Any]]:
    """The field, and the message of its entries."""
    name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
    parts = [
        {"name": part, "number": number, "label": "LABEL_OPTIONAL", **_type(kind)}
        for number, (part, kind) in enumerate(
            (("key", field.key_type), ("value", field.value_type)), 1
        )
    ]
    entry = {"name": name, "field": parts, "options": {"mapEntry": True}}
    found = {
        "name": field.name,
        "number": field.number,
        "label": "LABEL_REPEATED",
        "type": "TYPE_MESSAGE",
    }
    return {**found, "typeName": name, **_field_options(field.options)}, entry


def _enum(enum: ast.Enum) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": enum.name,
        "value": [],
        "reservedRange": [],
        "reservedName": [],
    }
    for element in enum.elements:
        match element:
            case ast.EnumValue():
                found["value"].append(
                    {"name": element.name, "number": element.number, **_settings(element.options)}
                )
            case ast.EnumReserved():
                found["reservedRange"] += _ranges(element.ranges, _ENUM_MAX, past_end=0)
                found["reservedName"] += element.names
    return {**found, **_options(enum.elements)}


def _service(service: ast.Service) -> dict[str, Any]:
    methods = [
        {
            "name": method.name,
            "inputType": method.input_type.type,
            "outputType": method.output_type.type,
            "clientStreaming": method.input_type.stream,
            "serverStreaming": method.output_type.stream,
            **_options(method.elements),
        }
        for method in service.elements
        if isinstance(method, ast.Method)
    ]
    return {"name": service.name, "method": methods, **_options(service.elements)}


def _ranges(ranges: Iterable[str], highest: int, *, past_end: int) -> Iterator[dict[str, int]]:
    for text in ranges:
        first, _, last = text.partition(" to ")
        end = highest if last == "max" else int(last or first, 0)
        yield {"start": int(first, 0), "end": end + past_end}


# --- options ---


def _options(elements: Iterable[Any]) -> dict[str, Any]:
    return _settings(element for element in elements if isinstance(element, ast.Option))


def _settings(options: Iterable[ast.Option]) -> dict[str, Any]:
    """The options that Protobuf defines. Those of an application, in parentheses, have no meaning
    here.
    """
    found = {option.name: _value(option.value) for option in options if "(" not in option.name}
    return {"options": found} if found else {}


def _field_options(options: Sequence[ast.Option]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options:
        if option.name == "default":
            found["defaultValue"] = _default(option.value)
        elif option.name == "json_name":
            found["jsonName"] = _value(option.value)
    return found | _settings(
        option for option in options if option.name not in ("default", "json_name")
    )


def _value(value: Any) -> Any:
    if isinstance(value, ast.Identifier):
        return value.name
    if isinstance(value, str | int | float):
        return value
    raise ValueError("an option of Protobuf has a value that is not supported")


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(_value(value))
