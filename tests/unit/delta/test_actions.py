"""Log entries: strict JSON in, the same actions out, and damage always noticed."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.delta.actions import (
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    encode_entry,
    parse_entry,
    prepared,
)
from deltaq.errors import Corrupt, Incompatible

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
WHOLE = st.integers(0, 2**62)
TAGS = st.dictionaries(TEXT, TEXT, max_size=3)
ACTIONS = st.one_of(
    st.builds(Add, TEXT, WHOLE, WHOLE, st.booleans(), st.none() | TEXT, TAGS),
    st.builds(Remove, TEXT, WHOLE, st.booleans()),
    st.builds(Txn, TEXT, WHOLE, st.none() | WHOLE),
    st.builds(DomainMetadata, TEXT, TEXT, st.booleans()),
    st.builds(Metadata, TEXT, TEXT, TAGS, WHOLE, st.none() | TEXT),
    st.just(Protocol(1, 7, (), ("domainMetadata", "deltaq"))),
)
INFO = CommitInfo(
    "token", 1_700_000_000_000, "WRITE", "client", "deltaq/0", parameters={"mode": "Append"}
)

SAMPLE = encode_entry(
    INFO,
    [
        Add("a.parquet", 10, 5, True, '{"numRecords":1}', {"deltaq.batches": "[[0,0,0,1]]"}),
        DomainMetadata("deltaq", '{"format":1}'),
    ],
)


def parse(data: bytes):
    return parse_entry(data, 3, "topics/t/_delta_log/3.json")


ACTION_LISTS = st.lists(
    ACTIONS,
    max_size=6,
    unique_by=lambda a: (
        type(a),
        getattr(a, "path", getattr(a, "app_id", getattr(a, "domain", ""))),
    ),
)


@given(ACTION_LISTS)
def test_entries_are_read_back_unchanged(actions):
    entry = parse(encode_entry(INFO, actions))
    assert entry.info == INFO
    assert entry.actions == tuple(actions)


@given(ACTION_LISTS, st.integers(0, 6))
def test_prepared_actions_make_the_same_entry(actions, split):
    before, rest = prepared(actions[:split]), actions[split:]
    data = encode_entry(INFO, rest, before)
    assert data == encode_entry(INFO, actions)
    assert parse_entry(data, 3, "entry", before) == parse_entry(data, 3, "entry")


def test_an_entry_that_differs_from_its_prepared_lines_is_refused():
    before = prepared([Remove("a", 1, data_change=False)])
    for actions in [Remove("b", 1, data_change=False)], []:
        with pytest.raises(Corrupt, match="prepared"):
            parse_entry(encode_entry(INFO, actions), 3, "entry", before)


def test_an_action_that_is_prepared_twice_for_one_entry_is_refused():
    remove = Remove("a", 1, data_change=False)
    before = prepared([remove])
    with pytest.raises(Corrupt, match="two actions"):
        parse_entry(encode_entry(INFO, [remove], before), 3, "entry", before)


def test_an_action_that_does_not_round_trip_is_not_prepared():
    with pytest.raises(ValueError, match="parses to a different action"):
        prepared([Remove("a", None, data_change=False)])  # type: ignore[arg-type]


def test_an_entry_is_delta_json_lines_with_the_commit_info_first():
    lines = [json.loads(line) for line in SAMPLE.splitlines()]
    assert [next(iter(line)) for line in lines] == ["commitInfo", "add", "domainMetadata"]
    assert lines[0]["commitInfo"]["txnId"] == "token"
    assert lines[0]["commitInfo"]["isBlindAppend"] is True
    assert lines[1]["add"]["partitionValues"] == {}


@pytest.mark.fault("B1")
def test_every_cut_of_an_entry_is_corrupt():
    for end in range(len(SAMPLE)):
        with pytest.raises(Corrupt) as caught:
            parse(SAMPLE[:end])
        assert caught.value.path == "topics/t/_delta_log/3.json"
        assert caught.value.version == 3


@pytest.mark.fault("B1")
def test_no_flipped_bit_changes_what_an_entry_says():
    clean = parse(SAMPLE)
    chance = random.Random(5)
    refused = 0
    for place in range(len(SAMPLE)):
        data = bytearray(SAMPLE)
        data[place] ^= 1 << chance.randrange(7)
        try:
            entry = parse(bytes(data))
        except (Corrupt, Incompatible):
            refused += 1
        else:
            # Without its seal it counts as a stranger's, and is refused later.
            assert entry.info is None
            assert entry.actions == clean.actions
    assert refused > len(SAMPLE) * 0.9


@pytest.mark.fault("B1", "K6", "W4")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"add":{"path":"x","path":"y"}}', "repeated"),
        ('{"add":{"path":"x"},"remove":{"path":"x"}}', "one action"),
        ('{"add":{"path":"x","size":NaN,"modificationTime":0,"dataChange":true}}', "NaN"),
        ('{"add":{"path":"x","size":1.5,"modificationTime":0,"dataChange":true}}', "integer"),
        ('{"add":{"path":"x","size":true,"modificationTime":0,"dataChange":true}}', "integer"),
        ('{"add":{"path":"x","size":1,"modificationTime":0,"dataChange":"yes"}}', "true or false"),
        ('{"add":{"path":7,"size":1,"modificationTime":0,"dataChange":true}}', "string"),
        ('{"add":{"size":1,"modificationTime":0,"dataChange":true}}', "missing field 'path'"),
        (
            '{"add":{"path":"x","size":1,"modificationTime":0,"dataChange":true,"deletionVector":{}}}',
            "deletion vector",
        ),
        ('{"txn":{"appId":"a"}}', "missing field 'version'"),
        ("[1]", "object"),
        ("null", "object"),
        ("{" * 100_000, "cannot be parsed"),
    ],
)
def test_a_line_that_is_not_a_sound_action_is_corrupt(line, why):
    with pytest.raises(Corrupt, match=why):
        parse(line.encode() + b"\n")


@pytest.mark.fault("W4")
def test_an_unknown_action_is_ignored_as_the_protocol_requires():
    assert parse(b'{"cdc":{"path":"x"}}\n{"txn":{"appId":"a","version":1}}\n').actions == (
        Txn("a", 1),
    )


@pytest.mark.fault("W1")
def test_an_entry_without_our_seal_is_foreign():
    assert parse(b'{"commitInfo":{"txnId":"x","timestamp":1}}\n').info is None


@pytest.mark.fault("W4")
def test_an_entry_of_a_newer_format_asks_for_an_upgrade():
    data = SAMPLE.replace(b'"format":1,"client"', b'"format":2,"client"')
    with pytest.raises(Incompatible, match="Upgrade deltaq"):
        parse(data)


@pytest.mark.fault("B1")
@pytest.mark.parametrize(
    "twice", ['{"txn":{"appId":"a","version":1}}', '{"remove":{"path":"x","dataChange":true}}']
)
def test_two_actions_for_one_key_are_corrupt(twice):
    with pytest.raises(Corrupt, match="two actions for one key"):
        parse(f"{twice}\n{twice}\n".encode())


@pytest.mark.fault("B1")
def test_two_commit_infos_are_corrupt():
    line = SAMPLE[: SAMPLE.index(b"\n") + 1]
    with pytest.raises(Corrupt, match="two commitInfo"):
        parse(line + line)
