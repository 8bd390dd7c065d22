"""Serializers that need no registry: JSON, pydantic models as JSON, and Arrow tables as an IPC stream."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from deltaq.serde.errors import SerializationError
from deltaq.serde.json_text import compact_json
from deltaq.serde.serializers import Deserializer, SerializationContext, Serializer

if TYPE_CHECKING:
    import pyarrow as pa
    import pydantic

    Model = TypeVar("Model", bound=pydantic.BaseModel)
else:
    Model = TypeVar("Model")


Place: TypeAlias = tuple[str | int, ...]
"""A part of a value: the keys and indexes that lead there."""


class PlainJSONSerializer(Serializer):
    """JSON without a schema, in UTF-8. NaN and infinities are refused: other programs cannot read them."""

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
    """Instances of a pydantic model, or dicts that the model accepts, as JSON with the names of the fields."""

    __slots__ = ("model",)

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def __call__(self, obj: Model | dict[str, Any] | None, ctx: SerializationContext | None = None) -> bytes | None:
        """The JSON of a valid instance. Raises SerializationError with the field that does not conform, or whose number
        would become null.

        An instance is validated again, because a program may have changed its fields since it was made.
        """
        if obj is None:
            return None
        from pydantic_core import PydanticSerializationError  # noqa: PLC0415 - loaded with the model

        if not isinstance(obj, self.model | dict):
            raise SerializationError(f"expected {self.model.__name__} or dict, not {type(obj).__name__}")
        value = _fields(obj)
        for place, inner in _models_in(value):
            _valid(type(inner), _fields(inner), place)  # pydantic takes instances inside others as they are
        valid = _valid(self.model, value)
        try:
            text: str = valid.model_dump_json(by_alias=False)
        except PydanticSerializationError as error:
            raise SerializationError(str(error)) from error
        if "null" in text:
            _check_numbers(valid, text)
        return text.encode()


def _check_numbers(instance: object, text: str) -> None:
    """Refuse NaN and infinities that are null in the JSON of an instance, as they are unless `ser_json_inf_nan` says
    otherwise: a reader would find no number there, or take it for None."""
    if not (places := list(_not_finite(instance))):
        return
    document = json.loads(text)
    for place in places:
        if _at(document, place) is None:
            text = "NaN and infinities would become null: set ser_json_inf_nan of the model to 'strings' or 'constants'"
            raise SerializationError(text, field=".".join(map(str, place)))


def _not_finite(value: object, place: Place = ()) -> Iterator[Place]:
    """Where a value has a NaN or an infinity."""
    plain = _fields(value)
    if isinstance(plain, float) and not math.isfinite(plain):
        yield place
    for name, inner in _parts(plain):
        yield from _not_finite(inner, (*place, name))


def _models_in(value: object, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The instances of models inside a value, and where they are."""
    for name, inner in _parts(value):
        plain = _fields(inner)
        if plain is not inner:
            yield (*place, name), inner
        yield from _models_in(plain, (*place, name))


def _fields(value: Any) -> Any:
    """What the model of an instance validates: its fields, or its root. Any other value as it is."""
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

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Model | None:
        """A validated instance. Raises SerializationError with the field that does not conform."""
        if value is None:
            return None
        from pydantic_core import ValidationError  # noqa: PLC0415 - loaded with the model

        try:
            return self.model.model_validate_json(value, by_name=True)
        except ValidationError as error:
            raise _not_valid(error) from error


def _valid(model: Any, value: object, place: Place = ()) -> Any:
    """The instance of a model with these fields. Raises SerializationError."""
    from pydantic_core import ValidationError  # noqa: PLC0415 - loaded with the model

    try:
        return model.model_validate(value, by_name=True)
    except ValidationError as error:
        raise _not_valid(error, place) from error


def _not_valid(error: Any, place: Place = ()) -> SerializationError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return SerializationError(first["msg"], field=".".join(map(str, (*place, *first["loc"]))) or None)


class ArrowSerializer(Serializer):
    """An Arrow table or record batch as an IPC stream. With a `schema`, the rows are refused unless they have it."""

    __slots__ = ("schema",)

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema

    def __call__(self, obj: pa.Table | pa.RecordBatch | None, ctx: SerializationContext | None = None) -> bytes | None:
        """The rows as an IPC stream. Raises SerializationError with the column that does not conform."""
        if obj is None:
            return None
        import pyarrow as pa  # noqa: PLC0415 - text and numbers need no Arrow

        if not isinstance(obj, pa.Table | pa.RecordBatch):
            raise SerializationError(f"expected pyarrow.Table or RecordBatch, not {type(obj).__name__}")
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

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> pa.Table | None:
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
