"""Serializers that need no registry: JSON, pydantic models as JSON, and Arrow tables as an IPC
stream.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from deltaq.serde.errors import SerializationError
from deltaq.serde.json_text import compact_json
from deltaq.serde.read_back import Place, difference
from deltaq.serde.serializers import Deserializer, SerializationContext, Serializer

if TYPE_CHECKING:
    import pyarrow as pa
    import pydantic

    Model = TypeVar("Model", bound=pydantic.BaseModel)
else:
    Model = TypeVar("Model")


class PlainJSONSerializer(Serializer):
    """JSON without a schema, in UTF-8. NaN and infinities are refused: other programs cannot read
    them.
    """

    __slots__ = ()

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """The value as JSON; None stays None. Raises SerializationError."""
        if obj is None:
            return None
        try:
            return compact_json(obj).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(str(error)) from error


class PlainJSONDeserializer(Deserializer):
    """JSON without a schema."""

    __slots__ = ()

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """The value that the JSON stands for. Raises SerializationError."""
        if value is None:
            return None
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"not JSON: {error}") from error


class ModelSerializer(Serializer, Generic[Model]):
    """Instances of a pydantic model, or dicts that the model accepts, as JSON with the names of the
    fields.
    """

    __slots__ = ("model",)

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def __call__(
        self, obj: Model | dict[str, Any] | None, ctx: SerializationContext | None = None
    ) -> bytes | None:
        """The JSON of an instance, which `ModelDeserializer` reads back equal. Raises
        SerializationError with the field that does not conform, that the JSON lacks, or that it
        would change.

        That covers instances that were changed since they were made, fields of a subclass, fields
        with `exclude=True`, serializers of the model, and validators that change their own result.
        """
        if obj is None:
            return None
        if not isinstance(obj, self.model | dict):
            raise SerializationError(
                f"expected {self.model.__name__} or dict, not {type(obj).__name__}"
            )
        instance: Any = _valid(self.model, obj) if isinstance(obj, dict) else obj
        text = _json_of(instance)
        if "null" in text:
            _check_numbers(instance, text)
        self._check_read_back(instance, text)
        return text.encode()

    def _check_read_back(self, instance: Any, text: str) -> None:
        from pydantic_core import ValidationError  # noqa: PLC0415 - loaded with the model

        try:
            found = difference(_read(self.model, text), instance)
        except ValidationError as error:
            raise _refused(*_first_error(error), instance) from error
        if found is not None:
            raise _refused(*found, instance)


def _json_of(instance: Any) -> str:
    """The JSON of an instance. Raises SerializationError."""
    from pydantic_core import PydanticSerializationError  # noqa: PLC0415 - loaded with the model

    try:
        # A field of another type than its own is found by reading it, so it needs no warning.
        text: str = instance.model_dump_json(by_alias=False, warnings=False)
    except PydanticSerializationError as error:
        raise SerializationError(str(error)) from error
    except Exception as error:  # of a computed field, which pydantic passes on
        raise SerializationError(
            f"{type(instance).__name__} has no JSON: {type(error).__name__}"
        ) from error
    return text


def _is_excluded(instance: Any, place: Place) -> bool:
    """Whether the field at a place of an instance has `exclude`."""
    *outer, name = place or ("",)
    parent = instance
    for step in outer:
        parent = next((inner for key, inner in _parts(_fields(parent)) if key == step), None)
    field = getattr(type(parent), "model_fields", {}).get(name)
    return field is not None and bool(field.exclude or field.exclude_if)


def _check_numbers(instance: object, text: str) -> None:
    """Refuse NaN and infinities that are null in the JSON of an instance, as they are unless
    `ser_json_inf_nan` says otherwise: a reader would find no number there, or take it for None.
    """
    if not (places := list(_not_finite(instance))):
        return
    document = json.loads(text)
    for place in places:
        if _at(document, place) is None:
            text = (
                "NaN and infinities would become null: set ser_json_inf_nan of the model to "
                "'strings' or 'constants'"
            )
            raise SerializationError(text, field=".".join(map(str, place)))


def _not_finite(value: object, place: Place = ()) -> Iterator[Place]:
    """Where a value has a NaN or an infinity."""
    plain = _fields(value)
    if isinstance(plain, float) and not math.isfinite(plain):
        yield place
    for name, inner in _parts(plain):
        yield from _not_finite(inner, (*place, name))


def _fields(value: Any) -> Any:
    """What the model of an instance validates: its fields, or its root. Any other value as it
    is.
    """
    if not hasattr(value, "model_fields_set"):
        return value
    return value.root if type(value).__pydantic_root_model__ else dict(value)


def _parts(value: object) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items()]
    return enumerate(value) if isinstance(value, list | tuple | set | frozenset) else ()


def _at(document: Any, place: Place) -> Any:
    """What a document has at a place; itself if a serializer of the model gave it another form."""
    found = document
    try:
        for step in place:
            found = found[step]
    except (KeyError, IndexError, TypeError):
        return document
    return found


class ModelDeserializer(Deserializer, Generic[Model]):
    """Instances of a pydantic model from JSON."""

    __slots__ = ("model",)

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def __call__(
        self, value: bytes | None, ctx: SerializationContext | None = None
    ) -> Model | None:
        """A validated instance. Raises SerializationError with the field that does not conform."""
        if value is None:
            return None
        from pydantic_core import ValidationError  # noqa: PLC0415 - loaded with the model

        try:
            return _read(self.model, value)
        except ValidationError as error:
            raise _refused(*_first_error(error)) from error


def _read(model: type[Model], text: bytes | str) -> Model:
    """The instance of a model from JSON. Raises ValidationError."""
    from deltaq.serde.model_validation import json_parts, validated  # noqa: PLC0415 - as above

    return validated(model.model_validate_json, text, json_parts, by_name=True)


def _valid(model: type[Model], fields: dict[str, Any]) -> Model:
    """The instance of a model with these fields. Raises SerializationError."""
    from pydantic_core import ValidationError  # noqa: PLC0415 - loaded with the model

    from deltaq.serde.model_validation import python_parts, validated  # noqa: PLC0415 - as above

    try:
        return validated(model.model_validate, fields, python_parts, by_name=True)
    except ValidationError as error:
        raise _refused(*_first_error(error)) from error


def _first_error(error: Any) -> tuple[Place, str]:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return tuple(first["loc"]), first["msg"]


def _refused(place: Place, reason: str, instance: object = None) -> SerializationError:
    """The error for a field, which names its `exclude` in an instance as the reason."""
    if _is_excluded(instance, place):
        reason = (
            "exclude keeps it out of the JSON: use a private attribute (_name), or a model without "
            "the field"
        )
    return SerializationError(reason, field=".".join(map(str, place)) or None)


class ArrowSerializer(Serializer):
    """An Arrow table or record batch as an IPC stream. With a `schema`, the rows are refused unless
    they have it.
    """

    __slots__ = ("schema",)

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema

    def __call__(
        self, obj: pa.Table | pa.RecordBatch | None, ctx: SerializationContext | None = None
    ) -> bytes | None:
        """The rows as an IPC stream. Raises SerializationError with the column that does not
        conform.
        """
        if obj is None:
            return None
        import pyarrow as pa  # noqa: PLC0415 - text and numbers need no Arrow

        if not isinstance(obj, pa.Table | pa.RecordBatch):
            raise SerializationError(
                f"expected pyarrow.Table or RecordBatch, not {type(obj).__name__}"
            )
        _check_schema(obj.schema, self.schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, obj.schema) as stream:
            stream.write(obj)
        return bytes(sink.getvalue())


class ArrowDeserializer(Deserializer):
    """An Arrow table from an IPC stream. With a `schema`, a table is refused unless it has it."""

    __slots__ = ("schema",)

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema

    def __call__(
        self, value: bytes | None, ctx: SerializationContext | None = None
    ) -> pa.Table | None:
        """The table. Raises SerializationError."""
        if value is None:
            return None
        import pyarrow as pa  # noqa: PLC0415 - text and numbers need no Arrow

        try:
            with pa.ipc.open_stream(value) as stream:
                table = stream.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise SerializationError(f"not an Arrow IPC stream: {error}") from error
        _check_schema(table.schema, self.schema)
        return table


def _check_schema(found: pa.Schema, wanted: pa.Schema | None) -> None:
    if wanted is None or found.equals(wanted):
        return
    for position, column in enumerate(wanted):
        there = found.field(position) if position < len(found) else None
        if there is None or not there.equals(column):
            raise SerializationError(f"expected {column}, not {there}", field=column.name)
    raise SerializationError("the schema has no such column", field=found.field(len(wanted)).name)
