"""The schema registry for asyncio: its client and the serializers that need it, with the names of
confluent-kafka.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

from deltaq.aio.threads import ThreadExecutor, run_blocking
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.schema_registry.associations import RefusedAssociations
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltaq.schema_registry.client import SchemaRegistryClient, VersionNumber
from deltaq.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from deltaq.schema_registry.log import NeedsStore, without_io
from deltaq.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from deltaq.schema_registry.schemas import RegisteredSchema, Schema, SchemaVersion, ServerConfig
from deltaq.store import Store

P = ParamSpec("P")
R = TypeVar("R")

_THREADS_MAX = 4


class AsyncSchemaRegistryClient(RefusedAssociations):
    """A `SchemaRegistryClient` whose methods do not block the event loop: they run on up to four
    threads.

    Mirrors `confluent_kafka.schema_registry.AsyncSchemaRegistryClient`. `sync` is the client that
    does the work.
    """

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        self.sync = self._client = SchemaRegistryClient(conf, store=store, clock=clock, **keywords)
        self._executor = ThreadExecutor(clock, _THREADS_MAX)

    @staticmethod
    def new_client(conf: Mapping[str, Any]) -> AsyncSchemaRegistryClient:
        """A client with this configuration."""
        return AsyncSchemaRegistryClient(conf)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the threads once they are idle. Later calls raise RuntimeError."""
        self._executor.shutdown()

    def config(self) -> dict[str, Any]:
        """The configuration that was passed."""
        return self._client.config()

    async def _run(self, call: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """The result of a blocking call. If the task is cancelled, the call still runs to its
        end.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        return await run_blocking(
            self._executor, loop, partial(call, *arguments, **keywords), context
        )

    async def register_schema(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> int:
        """As `SchemaRegistryClient.register_schema`."""
        return await self._run(
            self._client.register_schema, subject_name, schema, normalize_schemas
        )

    async def register_schema_full_response(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> RegisteredSchema:
        """As `SchemaRegistryClient.register_schema_full_response`."""
        return await self._run(
            self._client.register_schema_full_response, subject_name, schema, normalize_schemas
        )

    async def get_schema(
        self,
        schema_id: int,
        subject_name: str | None = None,
        fmt: str | None = None,
        reference_format: str | None = None,
    ) -> Schema:
        """As `SchemaRegistryClient.get_schema`."""
        return await self._run(
            self._client.get_schema, schema_id, subject_name, fmt, reference_format
        )

    async def get_schema_by_guid(self, guid: str, fmt: str | None = None) -> Schema:
        """As `SchemaRegistryClient.get_schema_by_guid`."""
        return await self._run(self._client.get_schema_by_guid, guid, fmt)

    async def get_schema_types(self) -> list[str]:
        """As `SchemaRegistryClient.get_schema_types`."""
        return await self._run(self._client.get_schema_types)

    async def lookup_schema(
        self,
        subject_name: str,
        schema: Schema,
        normalize_schemas: bool = False,
        fmt: str | None = None,
        deleted: bool = False,
    ) -> RegisteredSchema:
        """As `SchemaRegistryClient.lookup_schema`."""
        return await self._run(
            self._client.lookup_schema, subject_name, schema, normalize_schemas, fmt, deleted
        )

    async def get_subjects_by_schema_id(
        self,
        schema_id: int,
        subject_name: str | None = None,
        deleted: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[str]:
        """As `SchemaRegistryClient.get_subjects_by_schema_id`."""
        return await self._run(
            self._client.get_subjects_by_schema_id, schema_id, subject_name, deleted, offset, limit
        )

    async def get_schema_versions(
        self,
        schema_id: int,
        subject_name: str | None = None,
        deleted: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[SchemaVersion]:
        """As `SchemaRegistryClient.get_schema_versions`."""
        return await self._run(
            self._client.get_schema_versions, schema_id, subject_name, deleted, offset, limit
        )

    async def get_subjects(
        self,
        subject_prefix: str | None = None,
        deleted: bool = False,
        deleted_only: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[str]:
        """As `SchemaRegistryClient.get_subjects`."""
        return await self._run(
            self._client.get_subjects, subject_prefix, deleted, deleted_only, offset, limit
        )

    async def get_latest_version(
        self, subject_name: str, fmt: str | None = None
    ) -> RegisteredSchema:
        """As `SchemaRegistryClient.get_latest_version`."""
        return await self._run(self._client.get_latest_version, subject_name, fmt)

    async def get_latest_with_metadata(
        self,
        subject_name: str,
        metadata: dict[str, str],
        deleted: bool = False,
        fmt: str | None = None,
    ) -> RegisteredSchema:
        """As `SchemaRegistryClient.get_latest_with_metadata`."""
        return await self._run(
            self._client.get_latest_with_metadata, subject_name, metadata, deleted, fmt
        )

    async def get_version(
        self,
        subject_name: str,
        version: VersionNumber = "latest",
        deleted: bool = False,
        fmt: str | None = None,
    ) -> RegisteredSchema:
        """As `SchemaRegistryClient.get_version`."""
        return await self._run(self._client.get_version, subject_name, version, deleted, fmt)

    async def get_referenced_by(
        self, subject_name: str, version: VersionNumber = "latest", offset: int = 0, limit: int = -1
    ) -> list[int]:
        """As `SchemaRegistryClient.get_referenced_by`."""
        return await self._run(self._client.get_referenced_by, subject_name, version, offset, limit)

    async def get_versions(
        self,
        subject_name: str,
        deleted: bool = False,
        deleted_only: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[int]:
        """As `SchemaRegistryClient.get_versions`."""
        return await self._run(
            self._client.get_versions, subject_name, deleted, deleted_only, offset, limit
        )

    async def delete_subject(self, subject_name: str, permanent: bool = False) -> list[int]:
        """As `SchemaRegistryClient.delete_subject`."""
        return await self._run(self._client.delete_subject, subject_name, permanent)

    async def delete_version(
        self, subject_name: str, version: VersionNumber, permanent: bool = False
    ) -> int:
        """As `SchemaRegistryClient.delete_version`."""
        return await self._run(self._client.delete_version, subject_name, version, permanent)

    async def set_compatibility(
        self, subject_name: str | None = None, level: str | None = None
    ) -> dict[str, str]:
        """As `SchemaRegistryClient.set_compatibility`."""
        return await self._run(self._client.set_compatibility, subject_name, level)

    async def get_compatibility(self, subject_name: str | None = None) -> str:
        """As `SchemaRegistryClient.get_compatibility`."""
        return await self._run(self._client.get_compatibility, subject_name)

    async def test_compatibility(
        self,
        subject_name: str,
        schema: Schema,
        version: VersionNumber = "latest",
        normalize: bool = False,
        verbose: bool = False,
    ) -> bool:
        """As `SchemaRegistryClient.test_compatibility`."""
        return await self._run(
            self._client.test_compatibility, subject_name, schema, version, normalize, verbose
        )

    async def test_compatibility_all_versions(
        self, subject_name: str, schema: Schema, normalize: bool = False, verbose: bool = False
    ) -> bool:
        """As `SchemaRegistryClient.test_compatibility_all_versions`."""
        return await self._run(
            self._client.test_compatibility_all_versions, subject_name, schema, normalize, verbose
        )

    async def set_config(
        self, subject_name: str | None = None, config: ServerConfig | None = None
    ) -> dict[str, str]:
        """As `SchemaRegistryClient.set_config`."""
        return await self._run(self._client.set_config, subject_name, config)

    async def get_config(self, subject_name: str | None = None) -> ServerConfig:
        """As `SchemaRegistryClient.get_config`."""
        return await self._run(self._client.get_config, subject_name)

    async def delete_config(self, subject_name: str | None = None) -> ServerConfig:
        """As `SchemaRegistryClient.delete_config`."""
        return await self._run(self._client.delete_config, subject_name)

    async def get_mode(self, subject_name: str) -> str:
        """As `SchemaRegistryClient.get_mode`."""
        return await self._run(self._client.get_mode, subject_name)

    async def update_mode(self, subject_name: str, mode: str, force: bool = False) -> str:
        """As `SchemaRegistryClient.update_mode`."""
        return await self._run(self._client.update_mode, subject_name, mode, force)

    async def delete_mode(self, subject_name: str) -> str:
        """As `SchemaRegistryClient.delete_mode`."""
        return await self._run(self._client.delete_mode, subject_name)

    async def get_global_mode(self) -> str:
        """As `SchemaRegistryClient.get_global_mode`."""
        return await self._run(self._client.get_global_mode)

    async def update_global_mode(self, mode: str, force: bool = False) -> str:
        """As `SchemaRegistryClient.update_global_mode`."""
        return await self._run(self._client.update_global_mode, mode, force)

    async def get_contexts(self, offset: int = 0, limit: int = -1) -> list[str]:
        """As `SchemaRegistryClient.get_contexts`."""
        return await self._run(self._client.get_contexts, offset, limit)

    async def clear_latest_caches(self) -> None:
        """As `SchemaRegistryClient.clear_latest_caches`."""
        await self._run(self._client.clear_latest_caches)

    async def clear_caches(self) -> None:
        """As `SchemaRegistryClient.clear_caches`."""
        await self._run(self._client.clear_caches)


class _AsyncConversion:
    """A serializer or deserializer whose calls run on the event loop, or on a thread of its
    registry client if they need a schema that was not read yet. Awaiting the new object builds it,
    which may read the registry: `await AsyncAvroSerializer(client, schema)`.
    """

    _blocking: ClassVar[Callable[..., Callable[..., Any]]]
    _needs_registry: ClassVar[bool] = True

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        every = (*arguments, *keywords.values())
        self._registry = next(
            (each for each in every if isinstance(each, AsyncSchemaRegistryClient)), None
        )
        self._arguments = tuple(_sync(each) for each in arguments)
        self._keywords = {name: _sync(each) for name, each in keywords.items()}
        self._conversion: Callable[..., Any] | None = None
        has_blocking_client = any(isinstance(each, SchemaRegistryClient) for each in every)
        if has_blocking_client or (self._registry is None and self._needs_registry):
            raise TypeError(f"{type(self).__name__} needs an AsyncSchemaRegistryClient")

    def __await__(self) -> Generator[Any, None, Self]:
        return self._built().__await__()

    async def _built(self) -> Self:
        if self._conversion is None:
            self._conversion = await self._run(self._build)
        return self

    def _build(self) -> Callable[..., Any]:
        return type(self)._blocking(*self._arguments, **self._keywords)

    async def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """As the class of the same name without `Async`."""
        if self._conversion is None:
            raise TypeError(f"await {type(self).__name__}(...) before the first call")
        try:
            with without_io():
                return self._conversion(*arguments, **keywords)
        except NeedsStore:
            pass  # the schema is registered or read, once
        return await self._run(self._conversion, *arguments, **keywords)

    async def _run(self, call: Callable[..., R], *arguments: Any, **keywords: Any) -> R:
        if self._registry is None:  # then there is nothing to read
            return call(*arguments, **keywords)
        return await self._registry._run(call, *arguments, **keywords)


def _sync(argument: Any) -> Any:
    return argument.sync if isinstance(argument, AsyncSchemaRegistryClient) else argument


class AsyncAvroSerializer(_AsyncConversion):
    """An `AvroSerializer` for asyncio."""

    _blocking = AvroSerializer


class AsyncAvroDeserializer(_AsyncConversion):
    """An `AvroDeserializer` for asyncio."""

    _blocking = AvroDeserializer


class AsyncJSONSerializer(_AsyncConversion):
    """A `JSONSerializer` for asyncio."""

    _blocking = JSONSerializer


class AsyncJSONDeserializer(_AsyncConversion):
    """A `JSONDeserializer` for asyncio."""

    _blocking = JSONDeserializer
    _needs_registry = False


class AsyncProtobufSerializer(_AsyncConversion):
    """A `ProtobufSerializer` for asyncio."""

    _blocking = ProtobufSerializer


class AsyncProtobufDeserializer(_AsyncConversion):
    """A `ProtobufDeserializer` for asyncio."""

    _blocking = ProtobufDeserializer
    _needs_registry = False
