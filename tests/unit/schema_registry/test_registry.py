"""The registry: ids, versions, references, deletion and settings, with the error codes of
Confluent's registry.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deltaq.aio.schema_registry import AsyncSchemaRegistryClient
from deltaq.clock import Clock
from deltaq.delta.actions import CommitInfo, DomainMetadata
from deltaq.delta.log import DeltaLog, Draft
from deltaq.delta.table_state import TableState
from deltaq.errors import (
    Corrupt,
    Incompatible,
    InvalidConfig,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
)
from deltaq.names import SCHEMAS_FOLDER
from deltaq.schema_registry import (
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
)
from deltaq.schema_registry import client as client_module
from deltaq.schema_registry.rules import RuleSet
from deltaq.store import MemoryStore, Store
from deltaq.testing import Crash, Effect, Fault, FaultyStore, ManualClock, Rule


def record(*fields: tuple[str, str] | tuple[str, str, object], name: str = "Order") -> Schema:
    """An Avro record; a field with a third part has it as its default."""
    listed = [
        {"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields
    ]
    return Schema(json.dumps({"type": "record", "name": name, "fields": listed}))


ONE = record(("id", "int"))
TWO = record(("id", "int"), ("note", "string", ""))
BAD = record(("id", "int"), ("note", "string"))


@pytest.fixture
def store() -> Store:
    return MemoryStore("test")


@pytest.fixture
def client(store: Store) -> SchemaRegistryClient:
    return SchemaRegistryClient({}, store=store)


@contextmanager
def refused(code: int, text: str | None = None) -> Iterator[None]:
    """Expect a SchemaRegistryError of this code."""
    with pytest.raises(SchemaRegistryError, match=text) as caught:
        yield
    assert (caught.value.error_code, caught.value.http_status_code) == (code, int(str(code)[:3]))


def test_versions_are_numbered_by_subject_and_ids_are_unique_under_the_root(client):
    assert client.register_schema("a-value", ONE) == 1
    assert client.register_schema("a-value", TWO) == 2
    assert client.register_schema("b-value", TWO) == 2, (
        "the same schema has the same id in every subject"
    )
    assert client.register_schema("b-value", record(("id", "int"), ("x", "long", 0))) == 3
    assert client.get_versions("a-value") == [1, 2]
    assert client.get_subjects() == ["a-value", "b-value"]
    assert client.get_subjects(subject_prefix="b") == ["b-value"]
    assert client.get_latest_version("a-value").schema_id == 2
    assert client.get_version("a-value", 1).schema_id == 1
    assert client.get_subjects_by_schema_id(2) == ["a-value", "b-value"]
    assert [(v.subject, v.version) for v in client.get_schema_versions(2)] == [
        ("a-value", 2),
        ("b-value", 1),
    ]
    assert client.get_subjects(offset=1, limit=5) == ["b-value"]


def test_another_client_sees_what_was_registered(client, store):
    registered = client.register_schema_full_response("a", ONE)
    other = SchemaRegistryClient({}, store=store)
    assert other.get_schema(registered.schema_id) == registered.schema
    assert other.get_schema_by_guid(registered.guid) == registered.schema
    assert json.loads(registered.schema.schema_str) == json.loads(ONE.schema_str)
    assert other.lookup_schema("a", ONE).version == 1


def test_registering_again_changes_nothing_and_writes_nothing(client, store):
    first = client.register_schema_full_response("a", ONE)
    counted = FaultyStore(store, trace=True)
    again = SchemaRegistryClient({}, store=counted)
    spaced = Schema(json.dumps(json.loads(ONE.schema_str), indent=4))
    assert again.register_schema_full_response("a", spaced) == first
    assert not [
        op for op in counted.trace if op.operation == "create" and op.key.startswith(SCHEMAS_FOLDER)
    ]


@pytest.mark.parametrize("normalize", [False, True])
def test_the_order_of_attributes_makes_no_other_avro_schema(client, normalize):
    mixed = Schema('{"fields":[{"type":"int","name":"id"}],"name":"Order","type":"record"}')
    first = client.register_schema("a", ONE, normalize_schemas=normalize)
    assert client.register_schema("a", mixed, normalize_schemas=normalize) == first
    assert client.lookup_schema("a", mixed, normalize_schemas=normalize).schema_id == first
    with refused(40403):
        client.lookup_schema("a", record(("ID", "int")), normalize_schemas=normalize)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (Schema("{"), "invalid AVRO schema"),
        (Schema('{"type":"record","name":"r"}'), "invalid AVRO schema"),
        (Schema('{"type":"record","name":"r","fields":[{"name":"x","type":"nosuch"}]}'), "nosuch"),
        (
            Schema('"string"', schema_type="XML"),
            "invalid schema type 'XML': use AVRO, JSON, PROTOBUF",
        ),
        (Schema('"string"', rule_set=object()), "rules are not supported"),
        (
            Schema.from_dict({"schema": '"string"', "ruleSet": {"domainRules": [{"name": "r"}]}}),
            "rules are not",
        ),
        (Schema("[" * 100_000), "invalid AVRO schema"),
        (record(("id", "int", "text")), "invalid AVRO schema"),
        (
            Schema('{"not":' * 300 + "{}" + "}" * 300, "JSON"),
            "invalid JSON schema: it is nested more than 100 levels deep",
        ),
        (
            Schema('syntax = "proto3"; ' + "message M { " * 300 + "}" * 300, "PROTOBUF"),
            "invalid PROTOBUF schema: it is nested more than 100 levels deep",
        ),
    ],
)
def test_an_invalid_schema_is_refused_and_leaves_no_trace(client, store, schema, text):
    with refused(42201, text):
        client.register_schema("a", schema)
    assert client.get_subjects(deleted=True) == []
    assert list(store.list(SCHEMAS_FOLDER)) == []


def test_the_default_level_is_backward_and_an_incompatible_schema_is_named(client):
    client.register_schema("a", ONE)
    with refused(
        409, r"cannot read data of version 1: reader field missing default value at /fields/1: note"
    ):
        client.register_schema("a", BAD)
    assert not client.test_compatibility("a", BAD)
    assert client.test_compatibility("a", TWO)
    assert client.get_versions("a") == [1]


def test_levels_of_a_subject_come_before_those_of_the_registry(client):
    client.register_schema("a", ONE)
    assert client.get_compatibility() == "BACKWARD"
    assert client.set_compatibility(level="none") == {"compatibility": "NONE"}
    assert client.get_compatibility("a") == "NONE"
    client.set_compatibility("a", "FULL_ALL")
    assert client.get_compatibility("a") == "FULL_TRANSITIVE"
    assert client.get_config("a").compatibility_level == "FULL_TRANSITIVE"
    with refused(409):
        client.register_schema("a", BAD)
    assert client.delete_config("a").compatibility == "FULL_TRANSITIVE"
    with refused(40408):
        client.delete_config("a")
    assert client.register_schema("a", BAD) == 2
    assert client.delete_config().compatibility == "NONE"
    assert client.get_compatibility("a") == "BACKWARD"
    client.set_config("b", ServerConfig(client.get_config().compatibility))
    assert client.get_subjects(deleted=True) == ["a"], "a subject with settings only is not listed"
    with refused(42203, "BACKWARD_ALL"):
        client.set_compatibility(level="SIDEWARD")


def test_a_level_that_is_not_transitive_compares_with_the_newest_version_only(client):
    client.set_compatibility("a", "NONE")
    client.register_schema("a", ONE)
    closed = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"id": {"type": "integer"}},
    }
    client.register_schema("a", Schema(json.dumps(closed), "JSON"))
    closed["properties"] = {"id": {"type": "number"}}
    for level in ("BACKWARD_TRANSITIVE", "FULL_TRANSITIVE"):
        client.set_compatibility("a", level)
        with refused(409, "version 1 is AVRO, not JSON"):
            client.register_schema("a", Schema(json.dumps(closed), "JSON"))
    client.set_compatibility("a", "BACKWARD")
    assert (
        client.register_schema_full_response("a", Schema(json.dumps(closed), "JSON")).version == 3
    )


def test_a_schema_can_be_tested_before_its_subject_exists(client):
    assert client.test_compatibility("a", ONE)
    assert client.test_compatibility_all_versions("a", ONE)
    with refused(42201):
        client.test_compatibility("a", Schema("{"))
    assert client.test_compatibility("a", ONE, -1)
    with refused(40401):
        client.test_compatibility("a", ONE, 1)
    client.register_schema("a", ONE)
    with refused(40402):
        client.test_compatibility("a", ONE, 2)


def test_soft_deletion_hides_a_version_and_keeps_its_schema(client, store):
    client.register_schema("a", ONE)
    client.register_schema("a", TWO)
    assert client.delete_version("a", 1) == 1
    assert client.get_versions("a") == [2]
    assert client.get_versions("a", deleted=True) == [1, 2]
    assert client.get_versions("a", deleted_only=True) == [1]
    assert SchemaRegistryClient({}, store=store).get_schema(1).schema_str
    for version in (1, "1"):
        with refused(40406):
            client.delete_version("a", version)
    with refused(40402):
        client.get_version("a", 1)
    assert client.get_version("a", 1, deleted=True).schema_id == 1
    with refused(40407):
        client.delete_version("a", 2, permanent=True)
    assert client.delete_version("a", 1, permanent=True) == 1
    with refused(40403):
        SchemaRegistryClient({}, store=store).get_schema(1)
    assert client.delete_subject("a") == [2]
    with refused(40404):
        client.delete_subject("a")
    assert (
        client.get_subjects(),
        client.get_subjects(deleted=True),
        client.get_subjects(deleted_only=True),
    ) == (
        [],
        ["a"],
        ["a"],
    )
    with refused(40401):
        client.get_latest_version("a")


def test_a_schema_that_was_deleted_softly_returns_with_its_id_as_a_new_version(client):
    client.register_schema("a", ONE)
    client.delete_subject("a")
    found = client.register_schema_full_response("a", ONE)
    assert (found.schema_id, found.version) == (1, 2)


def test_ids_are_never_used_again(client):
    client.register_schema("a", ONE)
    client.set_compatibility("a", "FULL")
    with refused(40405):
        client.delete_subject("a", permanent=True)
    client.delete_subject("a")
    assert client.delete_subject("a", permanent=True) == [1]
    assert client.get_compatibility("a") == "BACKWARD", "settings go with the subject"
    assert client.register_schema("a", ONE) == 2
    with refused(40401):
        client.delete_subject("nosuch")


def test_a_referenced_version_cannot_be_deleted(client):
    address = Schema(
        '{"type":"record","name":"shop.Address","fields":[{"name":"street","type":"string"}]}'
    )
    client.register_schema("address", address)
    text = (
        '{"type":"record","name":"shop.Customer","fields":[{"name":"home","type":"shop.Address"}]}'
    )
    with refused(42201, "shop.Address"):
        client.register_schema("customer", Schema(text))
    reference = SchemaReference("shop.Address", "address", 1)
    with refused(42201, "there is no subject 'address', version 2"):
        client.register_schema(
            "customer", Schema(text, references=[SchemaReference("shop.Address", "address", 2)])
        )
    customer_id = client.register_schema("customer", Schema(text, references=[reference]))
    assert client.get_referenced_by("address", 1) == [customer_id]
    assert client.get_schema(customer_id).references == [reference]
    for delete in (
        lambda: client.delete_version("address", 1),
        lambda: client.delete_subject("address"),
    ):
        with refused(42206, f"ids {customer_id}"):
            delete()
    client.delete_subject("customer")
    assert client.delete_subject("address") == [1]
    with refused(42206):
        client.delete_subject("address", permanent=True)
    assert [text.name for text in client.references_of(client.get_schema(customer_id))] == [
        "shop.Address"
    ]
    client.delete_subject("customer", permanent=True)
    assert client.delete_subject("address", permanent=True) == [1]


def test_a_read_only_subject_refuses_changes_until_it_is_writable_again(client):
    client.register_schema("a", ONE)
    assert client.update_mode("a", "readonly") == "READONLY"
    for change in (
        lambda: client.register_schema("a", TWO),
        lambda: client.delete_version("a", 1),
        lambda: client.delete_subject("a"),
    ):
        with refused(42205):
            change()
    assert client.register_schema("b", TWO) == 2
    assert (client.get_mode("a"), client.get_mode("b"), client.get_global_mode()) == (
        "READONLY",
        "READWRITE",
        "READWRITE",
    )
    assert client.delete_mode("a") == "READONLY"
    with refused(40409):
        client.delete_mode("a")
    client.update_global_mode("READONLY")
    with refused(42205):
        client.register_schema("a", TWO)
    assert client.register_schema("a", ONE) == 1, (
        "the serializers of its messages register what is there"
    )
    with refused(42204, "use READWRITE or READONLY"):
        client.update_global_mode("IMPORT")


def test_a_version_is_found_by_its_metadata(client):
    def noted(schema: Schema, team: str) -> Schema:
        metadata = Metadata(properties=MetadataProperties({"team": team, "level": "1"}))
        return Schema(schema.schema_str, metadata=metadata)

    client.register_schema("a", noted(ONE, "red"))
    client.register_schema("a", noted(TWO, "blue"))
    assert client.get_latest_with_metadata("a", {"team": "red"}).version == 1
    assert client.get_latest_with_metadata("a", {"level": "1"}).version == 2
    with refused(40403):
        client.get_latest_with_metadata("a", {"team": "green"})


@pytest.mark.parametrize("subject", ["", "x\n", "x" * 601])
def test_an_invalid_subject_is_refused(client, subject):
    with refused(42208):
        client.register_schema(subject, ONE)


@pytest.mark.parametrize("version", ["latest", -1, "-1", 2, "2"], ids=repr)
def test_a_version_is_found_by_its_number_and_the_newest_by_two_names(client, version):
    client.register_schema("a", ONE)
    client.register_schema("a", TWO)
    assert client.get_version("a", version).version == 2
    assert client.delete_version("a", version) == 2


@pytest.mark.parametrize("version", [0, -2, "-2", "newest", 1.5, True], ids=repr)
def test_an_invalid_version_is_refused(client, version):
    client.register_schema("a", ONE)
    with refused(42202):
        client.get_version("a", version)


# --- many writers and failing stores ---


def test_registrations_that_race_get_one_id_for_one_schema_and_different_ids_for_different_ones(
    store,
):
    schemas = [record((f"f{n}", "int")) for n in range(4)]
    found: list[dict[int, int]] = []

    def register() -> None:
        own = SchemaRegistryClient({}, store=store)
        found.append({n: own.register_schema(f"s{n}", schema) for n, schema in enumerate(schemas)})

    threads = [threading.Thread(target=register) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 6
    assert all(ids == found[0] for ids in found)
    assert sorted(found[0].values()) == [1, 2, 3, 4]
    assert [SchemaRegistryClient({}, store=store).get_versions(f"s{n}") for n in range(4)] == [
        [1]
    ] * 4


def test_a_registration_that_lost_the_race_is_compared_with_the_winner(store):
    """Each schema alone may follow version 1; the second of them may not follow the first."""
    first = SchemaRegistryClient({}, store=store)
    first.register_schema("a", ONE)
    first.set_compatibility("a", "FULL")
    left = record(("id", "int"), ("x", "int", 0))
    right = record(("id", "int"), ("x", "string", ""))
    late = SchemaRegistryClient({}, store=store)
    assert late.test_compatibility("a", right), "it has read the log up to version 1"
    late._log._log.catch_up = lambda **_: None  # type: ignore[method-assign]  # it reads nothing more before it commits
    assert first.register_schema("a", left) == 2
    with refused(409, "version 2"):
        late.register_schema("a", right)
    assert first.get_versions("a") == [1, 2]


ENTRY = f"{SCHEMAS_FOLDER}_delta_log/*.json"


@pytest.mark.parametrize(
    ("fault", "effect"),
    [
        (Fault.error_before(), Effect.ERROR_BEFORE),
        (Fault.error_after(), Effect.ANSWER_LOST),
        (Fault.conflict(), Effect.FALSE_CONFLICT),
        (Fault.late_apply(), Effect.LATE_WRITE_REFUSED),
    ],
)
def test_a_registration_whose_answer_is_wrong_happens_once(fault, effect):
    failing = FaultyStore(MemoryStore("test"), Rule("create", ENTRY, fault))
    client = SchemaRegistryClient({}, store=failing, clock=ManualClock(auto_advance=True))
    assert client.register_schema("a", ONE) == 1
    assert not any(failing.land_late())
    assert client.register_schema("a", TWO) == 2
    assert failing.effects[effect] == 1
    fresh = SchemaRegistryClient({}, store=failing.inner)
    assert fresh.get_versions("a") == [1, 2]


def test_registering_again_after_an_unknown_outcome_finds_the_id():
    clock = ManualClock(auto_advance=True)
    inner = MemoryStore("test")
    answerless = FaultyStore(inner, Rule("create", ENTRY, Fault.error_after(), times=None))
    client = SchemaRegistryClient({"timeout": 5}, store=answerless, clock=clock)
    assert client.get_subjects() == []
    # The first one finds no entry.
    answerless.add(Rule("get", ENTRY, Fault.error_before(), nth=2, times=None))
    with pytest.raises(OutcomeUnknown):
        client.register_schema("a", ONE)
    again = SchemaRegistryClient({}, store=inner, clock=clock)
    assert again.register_schema("a", ONE) == 1
    assert again.get_versions("a") == [1]


@pytest.mark.parametrize(
    ("fault", "visible"), [(Fault.crash_before(), []), (Fault.crash_after(), [1])]
)
def test_a_crash_leaves_a_whole_registration_or_none(fault, visible):
    inner = MemoryStore("test")
    dying = FaultyStore(inner, Rule("create", ENTRY, fault))
    with pytest.raises(Crash):
        SchemaRegistryClient({}, store=dying, clock=ManualClock(auto_advance=True)).register_schema(
            "a", ONE
        )
    survivor = SchemaRegistryClient({}, store=inner)
    assert [
        v for subject in survivor.get_subjects() for v in survivor.get_versions(subject)
    ] == visible
    assert survivor.register_schema("a", ONE) == 1
    assert survivor.register_schema("b", TWO) == 2


def test_a_long_log_is_loaded_from_a_checkpoint(store, client):
    client.set_compatibility(level="NONE")
    for n in range(105):
        client.register_schema("a", record((f"f{n}", "int")))
    fresh = FaultyStore(store)
    assert len(SchemaRegistryClient({}, store=fresh).get_versions("a")) == 105
    assert any(entry.key.endswith(".checkpoint.parquet") for entry in store.list(SCHEMAS_FOLDER))
    assert fresh.operations["get"] < 30


@pytest.mark.parametrize(
    ("domain", "configuration", "error"),
    [
        ("deltaq", '{"format":2}', Incompatible),
        ("deltaq", '{"format":1,"next_id":0,"compatibility":"NONE","mode":"READWRITE"}', Corrupt),
        ("deltaq", "[]", Corrupt),
        ("deltaq.subject.a", '{"versions":[[1,7,false]]}', Corrupt),
        ("deltaq.subject.a", '{"versions":[[2,1,false],[1,1,false]]}', Corrupt),
        ("deltaq.schema.x", "{}", Corrupt),
    ],
)
def test_a_damaged_or_newer_registry_is_refused(store, client, domain, configuration, error):
    client.register_schema("a", ONE)
    forge(store, domain, configuration)
    with pytest.raises(error):
        client.get_subjects()


def forge(store: Store, domain: str, configuration: str) -> None:
    """Change the registry as another program does."""
    log = DeltaLog(store, SCHEMAS_FOLDER)

    def write(state: TableState) -> Draft:
        return Draft(CommitInfo("forged", 0, "TEST"), [DomainMetadata(domain, configuration)])

    log.commit(write, log.clock.monotonic() + 60)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"schema": "{"}, "version 1 is no schema"),
        (
            {
                "schema": '"b"',
                "references": [{"name": "b", "subject": "b", "version": 1}],
            },
            "the reference b .* does not exist",
        ),
    ],
)
def test_no_version_follows_one_that_is_no_schema(store, client, body, reason):
    client.register_schema("a", ONE)
    forge(store, "deltaq.schema.1", json.dumps({"guid": "x", **body}))
    with pytest.raises(SchemaRegistryError, match=reason):
        client.register_schema("a", Schema('"string"'))
    client.register_schema("c", Schema('"string"'))
    client.set_compatibility(level="NONE", subject_name="a")
    client.register_schema("a", Schema('"string"'))


# --- the client itself ---


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ({}, "Missing required configuration property url"),
        ({"url": "http://registry:8081"}, "must be the root of the topics"),
        ({"url": "memory://x", "nosuch": 1}, "Unrecognized properties: nosuch"),
        ({"url": "memory://x", "timeout": 0}, "timeout must be a positive number"),
        ({"url": "ftp://x"}, "ftp"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(conf, text):
    with pytest.raises(InvalidConfig, match=text):
        SchemaRegistryClient(conf)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "store.allow_http": True,
            "store.access_key_id": "id",
            "store.secret_access_key": "text",
            "store.region": None,
        },
        {"store_allow_http": True, "store_access_key_id": "id", "store_secret_access_key": "text"},
    ],
)
def test_settings_of_the_store_are_those_of_the_other_clients(monkeypatch, settings):
    opened: list[object] = []

    def open_store(url: str, options: dict[str, str], _: Clock) -> Store:
        opened.append((url, options))
        return MemoryStore("test")

    monkeypatch.setattr(client_module, "open_store", open_store)
    SchemaRegistryClient({"url": "s3://bucket"}, **settings)
    assert opened == [
        ("s3://bucket", {"allow_http": "true", "access_key_id": "id", "secret_access_key": "text"})
    ]


def test_the_root_can_be_a_path(tmp_path):
    SchemaRegistryClient({"url": tmp_path}).register_schema("a", ONE)
    assert SchemaRegistryClient(url=str(tmp_path), cache_capacity=5).get_subjects() == ["a"]


@pytest.mark.parametrize(
    "config",
    [
        {"compatibility_group": "major"},
        {"override_metadata": Metadata(None, MetadataProperties({"owner": "shop"}), None)},
        {"default_rule_set": RuleSet.from_dict({"encodingRules": [{"name": "encrypt"}]})},
    ],
)
def test_settings_of_a_subject_that_would_not_be_applied_are_refused(client, config):
    client.register_schema("a", ONE)
    with pytest.raises(InvalidConfig, match="not supported") as refusal:
        client.set_config("a", ServerConfig(ConfigCompatibilityLevel.FULL, **config))
    assert refusal.value.key in config
    assert client.get_compatibility("a") == "BACKWARD"


def test_a_set_of_no_rules_is_no_set_of_rules(client):
    given = Schema.from_dict(
        {"schema": '"string"', "ruleSet": {"migrationRules": [], "domainRules": []}}
    )
    assert client.register_schema("a", given) == client.register_schema("b", Schema('"string"'))
    assert client.get_latest_version("a").schema == Schema('"string"')


def test_settings_for_a_server_have_no_effect(memory_root):
    conf = {
        "url": memory_root,
        "basic.auth.user.info": "me:secret",
        "cache.capacity": 10,
        "timeout": 5,
    }
    with SchemaRegistryClient(conf) as client:
        assert client.register_schema("a", ONE) == 1
        assert client.config()["url"] == memory_root
        assert client.get_contexts() == ["."]
        assert "AVRO" in client.get_schema_types()


def test_an_error_of_the_registry_is_a_kafka_exception_with_the_text_of_confluent_kafka():
    error = SchemaRegistryError(404, 40401, "subject not found")
    assert isinstance(error, KafkaException)
    assert str(error) == "subject not found (HTTP status code 404, SR code 40401)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("kind", [SchemaRegistryClient, AsyncSchemaRegistryClient])
@pytest.mark.parametrize(
    "method", ["create_association", "get_associations_by_resource_name", "delete_associations"]
)
def test_associations_are_refused_with_the_reason(
    kind: type[SchemaRegistryClient | AsyncSchemaRegistryClient], method: str, store: Store
) -> None:
    with pytest.raises(KafkaException, match=method) as refused:
        getattr(kind(store=store), method)("orders", resource_namespace="-")
    assert refused.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
