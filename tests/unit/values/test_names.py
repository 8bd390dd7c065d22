"""Names follow Kafka's grammar, and no name or logged path leads out of its folder."""

from __future__ import annotations

import posixpath
import re
import string
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from deltaq import names
from deltaq.errors import InvalidConfig, KafkaError
from deltaq.names import TransactionKey
from deltaq.store.keys import KEY_LENGTH_MAX, PREFIX_LENGTH_MAX, is_key

LEGAL = string.ascii_letters + string.digits + "._-"
CHECKS: list[tuple[Callable[[object], str], int]] = [
    (names.check_topic, KafkaError.TOPIC_EXCEPTION),
    (names.check_group, KafkaError.INVALID_GROUP_ID),
    (partial(names.check_id, key="client.id"), KafkaError._INVALID_ARG),
]
HOSTILE = [
    "",
    ".",
    "..",
    "_delta_log",
    "/etc",
    "a/b",
    "a/../b",
    "%2e%2e",
    "a\x00b",
    "orders\n",
    "\u202eorders",
    "\u043erders",
    "caf\u00e9",
    "cafe\u0301",
    "a b",
    "a:b",
    "a\\b",
    "x" * 250,
    "\ud800",
    "\u0661",
]


@pytest.mark.fault("K2")
@pytest.mark.parametrize(("check", "code"), CHECKS)
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_name_outside_the_grammar_is_refused_with_the_rule(
    check: Callable[[object], str], code: int, name: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check(name)
    assert caught.value.args[0] == code
    text = caught.value.error.str()
    assert "1 to 249" in text
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 350


@pytest.mark.parametrize(("check", "code"), CHECKS)
@pytest.mark.parametrize("name", [None, 5, b"orders", ["orders"]])
def test_a_name_that_is_not_a_string_is_a_type_error(
    check: Callable[[object], str], code: int, name: object
) -> None:
    with pytest.raises(TypeError, match="must be str, not"):
        check(name)


@given(st.text(LEGAL, min_size=1, max_size=249))
@example("orders.v2_EU-west")
@example("__consumer_offsets")
@example("...")
@example("x" * 249)
def test_every_name_of_the_grammar_is_accepted_unchanged(name: str) -> None:
    assume(name not in {".", "..", "_delta_log"})
    for check, _ in CHECKS:
        assert check(name) == name


@pytest.mark.fault("K2")
@given(st.text(max_size=300))
def test_a_topic_folder_is_exactly_one_level_below_the_topics(name: str) -> None:
    try:
        folder = names.topic_folder(name)
    except InvalidConfig:
        return
    assert posixpath.normpath(folder) + "/" == folder
    assert posixpath.dirname(folder.rstrip("/")) == "topics"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("transfers-1", "transfers-1"),
        ("my:app", "my~3Aapp"),
        ("my app/1", "my~20app~2F1"),
        (".", "~2E"),
        ("..", "~2E."),
        ("_delta_log", "~5Fdelta_log"),
        (".~a", "~2E~7Ea"),
        ("~3A", "~7E3A"),
        ("a%2Fb", "a~252Fb"),
        ("caf\u00e9", "caf~C3~A9"),
    ],
)
def test_a_transactional_id_is_encoded_unless_it_is_a_name(text: str, part: str) -> None:
    assert names.encoded_id(text) == part
    assert names.decoded_id(part) == text
    assert names.transaction_folder(text) == f"transactions/{part}/"
    assert names.staged_files_folder("topics/orders/", text) == f"topics/orders/staged/{part}/"


@pytest.mark.fault("K2")
@given(st.text(max_size=100), st.text(LEGAL + ":/~%", max_size=9))
@example("", "")
@example("x" * 250, "")
@example("\u00e9" * 42, "")
@example("\ud800", "")
def test_a_transactional_id_is_refused_or_one_part_of_keys_that_leads_back(
    text: str, tail: str
) -> None:
    transactional_id = text + tail
    try:
        assert names.check_transactional_id(transactional_id) == transactional_id
    except InvalidConfig:
        assert not 1 <= length_in_keys(transactional_id) <= 249
        return
    assert length_in_keys(transactional_id) <= 249
    folder = names.transaction_folder(transactional_id)
    assert is_key(folder.rstrip("/"))
    assert posixpath.dirname(folder.rstrip("/")) == "transactions"
    assert list(names.named("transactions/", [folder.split("/")[1]])) == [transactional_id]
    transaction = TransactionKey(transactional_id, 3, 4)
    path = names.staged_file(transaction, "0af3")
    assert names.parse_staged_file(path) == transaction
    assert names.data_key("topics/orders/", path) == "topics/orders/" + path, "not decoded"


def length_in_keys(text: str) -> int:
    """As URLs encode it, which leave `~`, and `.` and `_` at the beginning. 0 for half a pair."""
    if re.fullmatch("[A-Za-z0-9._-]+", text) and text not in {".", "..", "_delta_log"}:
        return len(text)
    try:
        return len(quote(text, safe="")) + 2 * text.count("~") + 2 * (text[:1] in {".", "_"})
    except UnicodeEncodeError:
        return 0


@pytest.mark.parametrize("text", ["", "x" * 250, "\u00e9" * 42, "/" * 84, "\ud800"])
def test_a_transactional_id_that_makes_no_part_of_a_key_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"invalid transactional\.id .*use 1 to 249") as caught:
        names.check_transactional_id(text)
    assert caught.value.args[0] == KafkaError._INVALID_ARG


@pytest.mark.parametrize("text", ["x" * 249, "\u00e9" * 41, "/" * 83])
def test_the_longest_transactional_ids_are_accepted(text: str) -> None:
    assert names.check_transactional_id(text) == text


def test_a_transactional_id_that_is_not_a_string_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be str, not int"):
        names.check_transactional_id(5)


@pytest.mark.parametrize(
    "part",
    ["my:app", "~41", "my~3aapp", "a~", "a%41", "a%3Ab", "~FF", "", ".", "~2E..", "~20" * 84],
)
def test_a_part_that_no_transactional_id_makes_is_foreign(part: str) -> None:
    assert names.decoded_id(part) is None


def test_folders_of_topics_and_groups_are_not_decoded() -> None:
    folders = ["orders", "my~3Aapp", "a b", "~41"]
    assert list(names.named("topics/", folders)) == ["orders"]
    assert list(names.named("groups/", folders)) == ["orders"]
    assert list(names.named("transactions/", folders)) == ["orders", "my:app"]


def test_the_layout_is_that_of_the_format() -> None:
    assert names.topic_folder("orders") == "topics/orders/"
    assert names.topic_log("orders") == "topics/orders/_delta_log/"
    assert names.group_folder("billing") == "groups/billing/"
    assert names.member_folder("billing") == "groups/billing/_members/"
    assert names.member_key("billing", "m-1") == "groups/billing/_members/m-1"
    log = "topics/orders/_delta_log/"
    assert names.log_entry(log, 7) == log + "00000000000000000007.json"
    assert names.checkpoint_file(log, 100) == log + "00000000000000000100.checkpoint.parquet"
    assert names.last_checkpoint(log) == log + "_last_checkpoint"
    assert (
        names.log_start_marker("topics/orders/", 40)
        == "topics/orders/_deltaq/log_start/00000000000000000040"
    )
    assert names.hold_key("orders", "views") == "topics/orders/_deltaq/holds/views.json"
    assert names.data_file_name("0af3") == "0af3.parquet"


@pytest.mark.parametrize(
    ("key", "holder"),
    [
        ("topics/orders/_deltaq/holds/views.json", "views"),
        ("a.json.json", "a.json"),
        ("views", None),
        (".json", None),
        ("...json", None),
        ("a b.json", None),
    ],
)
def test_a_hold_names_its_holder(key: str, holder: str | None) -> None:
    assert names.hold_holder(key) == holder


@pytest.mark.fault("K2")
@pytest.mark.parametrize("make", [names.topic_log, names.group_folder, names.member_folder])
def test_no_key_is_built_from_a_hostile_name(make: Callable[[str], str]) -> None:
    with pytest.raises(InvalidConfig):
        make("../x")


@pytest.mark.fault("K2")
def test_neither_a_member_nor_a_data_file_may_be_named_like_a_path() -> None:
    with pytest.raises(InvalidConfig):
        names.member_key("billing", "../_delta_log")
    with pytest.raises(InvalidConfig):
        names.data_file_name("a/b")


@pytest.mark.fault("K2")
def test_the_longest_names_make_keys_that_every_store_takes() -> None:
    long = "x" * 249
    longest = [
        names.topic_folder(long)
        + names.shared_file(names.VERSION_MAX, "x" * names.SHARED_FILE_BYTES_MAX),
        names.topic_folder(long) + names.data_file_name("0" * 32),
        names.orphan_scan_key(names.topic_folder(long), names.VERSION_MAX, 999_999),
        names.checkpoint_file(names.topic_log(long), names.VERSION_MAX),
        names.member_key(long, names.member_id(long, "0" * 32)),
        names.hold_key(long, long),
        names.topic_folder(long)
        + names.staged_file(TransactionKey(long, 10**18 - 1, 10**18 - 1), "0" * 32),
    ]
    assert all(is_key(key) for key in longest)
    assert PREFIX_LENGTH_MAX + 1 + KEY_LENGTH_MAX == 1024, "what object stores allow"


@given(st.text(LEGAL, max_size=249))
@example("")
@example("x" * 217)
@example("x" * 249)
def test_every_client_id_makes_a_member_id_that_names_a_heartbeat_object(client_id: str) -> None:
    unique_id = "0" * 32
    member_id = names.member_id(client_id, unique_id)
    key = names.member_key("billing", member_id)
    assert is_key(key)
    assert key == f"groups/billing/_members/{member_id}"
    lead = member_id.removesuffix("-" + unique_id)
    assert (client_id or "deltaq").startswith(lead)
    assert lead == (client_id or "deltaq") or len(member_id) == names.NAME_CHARS_MAX, (
        "cut only where it must be"
    )


@given(st.integers(0, names.VERSION_MAX), st.integers(0, names.VERSION_MAX))
@example(9, 10)
@example(0, names.VERSION_MAX)
def test_versions_are_read_back_from_keys_and_keys_sort_as_versions_do(one: int, two: int) -> None:
    log = names.topic_log("orders")
    assert names.entry_version(names.log_entry(log, one)) == one
    assert names.checkpoint_version(names.checkpoint_file(log, one)) == one
    assert names.log_start_version(names.log_start_marker("topics/orders/", one)) == one
    assert (names.log_entry(log, one) < names.log_entry(log, two)) == (one < two)


@pytest.mark.parametrize("version", [-1, 2**63])
def test_a_version_that_delta_cannot_hold_is_refused(version: int) -> None:
    for make in (names.log_entry, names.checkpoint_file, names.log_start_marker):
        with pytest.raises(ValueError, match="outside"):
            make("x/", version)


@pytest.mark.fault("B1")
@pytest.mark.parametrize(
    "key",
    [
        "topics/orders/_delta_log/_last_checkpoint",
        "0000000000000000007.json",
        "000000000000000000007.json",
        "00000000000000000007.json.tmp",
        "00000000000000000007.json#1",
        "0000000000000000000x.json",
        "-0000000000000000007.json",
        "\u0660" * 20 + ".json",
        "9" * 20 + ".json",
        "00000000000000000007.00000000000000000009.compacted.json",
        "00000000000000000007.json/",
        "",
    ],
)
def test_other_files_of_a_log_are_not_commits(key: str) -> None:
    assert names.entry_version(key) is None
    assert names.checkpoint_version(key) is None
    assert names.log_start_version(key) is None


def test_a_commit_is_no_checkpoint_and_no_marker() -> None:
    entry = names.log_entry("x/", 7)
    assert names.checkpoint_version(entry) is None
    assert names.log_start_version(entry) is None
    assert names.entry_version(names.checkpoint_file("x/", 7)) is None
    assert names.entry_version(names.log_start_marker("x/", 7)) is None


@pytest.mark.fault("K2")
def test_names_that_differ_only_in_case_are_found() -> None:
    assert names.case_twin("Orders", ["bills", "orders"]) == "orders"
    assert names.case_twin("orders", ["bills", "orders"]) is None
    assert names.case_twin("orders", ["orders", "ORDERS"]) == "ORDERS"
    assert names.case_twin("orders", []) is None


@pytest.mark.fault("K4")
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "//host/x",
        "../other/x.parquet",
        "a/../../x",
        "a/./x",
        "a//x",
        "a/",
        ".",
        "..",
        "%2e%2e/x",
        "%2E%2E%2Fx",
        "..%2fx",
        "%2fetc/passwd",
        "s3://bucket/x",
        "s3:x",
        "file:///x",
        "memory%3A%2F%2Fx",
        "C:/x",
        "a\\..\\x",
        "%5c%5chost",
        "a%00.parquet",
        "a%0A.parquet",
        "a\x7f",
        "%ff%fe",
        "\ud800",
        "_delta_log/00000000000000000000.json",
        "_DELTA_log/x",
        "%5Fdelta_log/x",
        "_deltaq/log_start/00000000000000000000",
        "_delta_log",
    ],
    ids=ascii,
)
def test_a_logged_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="data file path") as caught:
        names.data_key("topics/orders/", path)
    assert str(caught.value).isascii()


@pytest.mark.fault("K4")
def test_a_logged_path_is_decoded_exactly_once() -> None:
    assert names.data_key("topics/orders/", "a%20b.parquet") == "topics/orders/a b.parquet"
    assert names.data_key("topics/orders/", "a%2520b.parquet") == "topics/orders/a%20b.parquet"
    assert names.data_key("topics/orders/", "%252e%252e") == "topics/orders/%2e%2e"
    assert names.data_key("topics/orders/", "part=1/x.parquet") == "topics/orders/part=1/x.parquet"
    assert (
        names.data_key("topics/orders/", "caf%C3%A9.parquet") == "topics/orders/caf\u00e9.parquet"
    )


@given(st.lists(st.text(LEGAL + "= %é+", min_size=1, max_size=20), min_size=1, max_size=3))
def test_the_encoded_path_of_an_ordinary_file_leads_to_that_file(parts: list[str]) -> None:
    assume(not {".", ".."} & set(parts))
    assume(parts[0].lower() not in {"_delta_log", "_deltaq"})
    path = "/".join(parts)
    assert names.data_key("topics/orders/", quote(path)) == "topics/orders/" + path


HOSTILE_PIECES = st.sampled_from(
    [
        "..",
        ".",
        "/",
        "//",
        "%2e",
        "%2F",
        "%252e",
        "%5c",
        "\\",
        "s3:",
        "a",
        "_delta_log",
        "\x00",
        "%00",
        "\u2024",
        "é",
    ]
)


@pytest.mark.fault("K4")
@given(st.lists(st.one_of(HOSTILE_PIECES, st.text(max_size=4)), max_size=8).map("".join))
def test_any_logged_path_stays_in_the_folder_or_is_refused(path: str) -> None:
    try:
        key = names.data_key("topics/orders/", path)
    except ValueError:
        return
    assert key.startswith("topics/orders/")
    assert posixpath.normpath(key) == key
    assert len(key) > len("topics/orders/")
    assert not key.lower().startswith(("topics/orders/_delta_log/", "topics/orders/_deltaq/"))
