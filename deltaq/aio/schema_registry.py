"""The schema registry for asyncio: its client and the serializers that need it, with the names of
confluent-kafka.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from deltaq.aio.threads import ThreadExecutor, run_blocking
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.schema_registry.associations import RefusedAssociations
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltaq.schema_registry.client import SchemaRegistryClient
from deltaq.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from deltaq.schema_registry.log import NeedsStore, without_io
from deltaq.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from deltaq.store import Store

P = ParamSpec("P")
R = TypeVar("R")

_THREADS_MAX = 4


def _on_a_thread(
    method: Callable[Concatenate[SchemaRegistryClient, P], R],
) -> Callable[Concatenate[AsyncSchemaRegistryClient, P], Coroutine[Any, Any, R]]:
    """The method for asyncio that calls this one of the client that does the work."""

    @wraps(method)
    async def call(
        client: AsyncSchemaRegistryClient, /, *arguments: P.args, **keywords: P.kwargs
    ) -> R:
        work: Callable[P, R] = getattr(client.sync, method.__name__)
        return await client._run(work, *arguments, **keywords)

    return call


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
        self.sync = SchemaRegistryClient(conf, store=store, clock=clock, **keywords)
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
        return self.sync.config()

    async def _run(self, call: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """The result of a blocking call, which runs on one of the threads. If the task is
        cancelled, the call still runs to its end.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        return await run_blocking(
            self._executor, loop, partial(call, *arguments, **keywords), context
        )

    # As the methods of `SchemaRegistryClient`.

    register_schema = _on_a_thread(SchemaRegistryClient.register_schema)
    register_schema_full_response = _on_a_thread(SchemaRegistryClient.register_schema_full_response)
    get_schema = _on_a_thread(SchemaRegistryClient.get_schema)
    get_schema_by_guid = _on_a_thread(SchemaRegistryClient.get_schema_by_guid)
    get_schema_types = _on_a_thread(SchemaRegistryClient.get_schema_types)
    lookup_schema = _on_a_thread(SchemaRegistryClient.lookup_schema)
    get_subjects_by_schema_id = _on_a_thread(SchemaRegistryClient.get_subjects_by_schema_id)
    get_schema_versions = _on_a_thread(SchemaRegistryClient.get_schema_versions)
    get_subjects = _on_a_thread(SchemaRegistryClient.get_subjects)
    get_latest_version = _on_a_thread(SchemaRegistryClient.get_latest_version)
    get_latest_with_metadata = _on_a_thread(SchemaRegistryClient.get_latest_with_metadata)
    get_version = _on_a_thread(SchemaRegistryClient.get_version)
    get_referenced_by = _on_a_thread(SchemaRegistryClient.get_referenced_by)
    get_versions = _on_a_thread(SchemaRegistryClient.get_versions)
    delete_subject = _on_a_thread(SchemaRegistryClient.delete_subject)
    delete_version = _on_a_thread(SchemaRegistryClient.delete_version)
    set_compatibility = _on_a_thread(SchemaRegistryClient.set_compatibility)
    get_compatibility = _on_a_thread(SchemaRegistryClient.get_compatibility)
    test_compatibility = _on_a_thread(SchemaRegistryClient.test_compatibility)
    test_compatibility_all_versions = _on_a_thread(
        SchemaRegistryClient.test_compatibility_all_versions
    )
    set_config = _on_a_thread(SchemaRegistryClient.set_config)
    get_config = _on_a_thread(SchemaRegistryClient.get_config)
    delete_config = _on_a_thread(SchemaRegistryClient.delete_config)
    get_mode = _on_a_thread(SchemaRegistryClient.get_mode)
    update_mode = _on_a_thread(SchemaRegistryClient.update_mode)
    delete_mode = _on_a_thread(SchemaRegistryClient.delete_mode)
    get_global_mode = _on_a_thread(SchemaRegistryClient.get_global_mode)
    update_global_mode = _on_a_thread(SchemaRegistryClient.update_global_mode)
    get_contexts = _on_a_thread(SchemaRegistryClient.get_contexts)
    clear_latest_caches = _on_a_thread(SchemaRegistryClient.clear_latest_caches)
    clear_caches = _on_a_thread(SchemaRegistryClient.clear_caches)


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
