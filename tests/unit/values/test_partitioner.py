"""Keys meet the partitions that librdkafka and the Java client give them."""

from __future__ import annotations

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.errors import InvalidConfig, KafkaError
from deltaq.partitioner import PARTITIONERS, assign_partitions

# (key, number of partitions, murmur2, consistent, fnv1a), recorded from librdkafka 2.16.0.
VECTORS: list[tuple[bytes, int, int, int, int]] = [
    (b"", 10, 1, 0, 5),
    (b"", 2147483647, 275646681, 0, 2128831035),
    (b"a", 10, 4, 7, 6),
    (b"a", 2147483647, 584102524, 1756872260, 468965076),
    (b"ab", 10, 4, 5, 6),
    (b"ab", 2147483647, 316155434, 511920238, 1294271946),
    (b"abc", 10, 7, 8, 1),
    (b"abc", 2147483647, 479470107, 891568578, 440920331),
    (b"abcd", 10, 0, 9, 3),
    (b"abcd", 2147483647, 823834100, 1837288722, 835421763),
    (b"abcde", 10, 1, 5, 6),
    (b"abcde", 2147483647, 461995741, 92788838, 1956368136),
    (b"key", 10, 1, 7, 8),
    (b"key", 2147483647, 1067546281, 177253290, 1746258028),
    (b"hello world", 10, 9, 7, 9),
    (b"hello world", 2147483647, 1221641059, 222957957, 712294489),
    (b"\x00", 10, 8, 7, 1),
    (b"\x00", 2147483647, 375494588, 1375924110, 84696351),
    (b"\x00\x00\x00\x00", 10, 0, 2, 5),
    (b"\x00\x00\x00\x00", 2147483647, 850957120, 558161692, 1268118805),
    (b"\xff\xff\xff", 10, 2, 0, 6),
    (b"\xff\xff\xff", 2147483647, 1548199422, 2147483393, 1889368876),
    (b"\xff\xff\xff\xff\xff\xff\xff\xff", 10, 7, 2, 5),
    (b"\xff\xff\xff\xff\xff\xff\xff\xff", 2147483647, 185950397, 558161692, 1823345245),
    (b"stra\xc3\x9fe", 10, 4, 1, 8),
    (b"stra\xc3\x9fe", 2147483647, 1115426074, 138367694, 640088088),
    (b"user_12345", 10, 3, 2, 2),
    (b"user_12345", 2147483647, 909358193, 691519812, 725725142),
    (b"42", 10, 2, 8, 5),
    (b"42", 2147483647, 417700972, 841265288, 2015132285),
    (b"order-0000001", 10, 0, 9, 7),
    (b"order-0000001", 2147483647, 375921650, 1384370522, 628345507),
    (b"0123456789abcdef0123456789abcdef", 10, 3, 8, 1),
    (b"0123456789abcdef0123456789abcdef", 2147483647, 81657833, 2002367758, 2033168971),
    (bytes(range(256)), 10, 4, 1, 3),
    (bytes(range(256)), 2147483647, 199136374, 688229491, 1868277563),
    (b"x" * 1000, 10, 6, 0, 1),
    (b"x" * 1000, 2147483647, 1079030046, 994167270, 131170661),
    (b"\xe7", 10, 5, 2, 0),
    (b"\xe7", 2147483647, 698730595, 1819056215, 1644911750),
    (b"\t\xb9", 10, 5, 0, 3),
    (b"\t\xb9", 2147483647, 174546365, 581345950, 1802981593),
    (b"Z\xae\xaf", 10, 2, 6, 4),
    (b"Z\xae\xaf", 2147483647, 830229262, 1753701739, 689501374),
    (b"\xe0\xcfc\xc9\xc4", 10, 3, 5, 8),
    (b"\xe0\xcfc\xc9\xc4", 2147483647, 1505522313, 209244485, 604526988),
    (b"@LE\xe1\x94\xe7", 10, 0, 0, 4),
    (b"@LE\xe1\x94\xe7", 2147483647, 1303029100, 204485850, 225935134),
    (b"\xb1c\xb5&\r\x84B", 10, 0, 2, 1),
    (b"\xb1c\xb5&\r\x84B", 2147483647, 1281067320, 127238072, 627186211),
    (b"\xd7\xe7\x8b\xac1\xee\xbe\xa2\xd9", 10, 4, 5, 4),
    (b"\xd7\xe7\x8b\xac1\xee\xbe\xa2\xd9", 2147483647, 1612277194, 2108341128, 523271654),
    (b"v\x85\xaa\xe7d\xfc\xfc\x19\xb2\xefC\xdf", 10, 2, 2, 1),
    (b"v\x85\xaa\xe7d\xfc\xfc\x19\xb2\xefC\xdf", 2147483647, 304001192, 1981488622, 1266003781),
    (b"\x0b<\xd2SB=\xac\x92\x0eC\xca\xe7+", 10, 0, 1, 9),
    (b"\x0b<\xd2SB=\xac\x92\x0eC\xca\xe7+", 2147483647, 291029210, 1437420454, 1023566579),
    (b"\x01*\xe8\x06T\x93Yi,! h\x03+l\xfe", 10, 8, 9, 8),
    (b"\x01*\xe8\x06T\x93Yi,! h\x03+l\xfe", 2147483647, 1894108148, 660592099, 1668967048),
    (b"\x1c\xbc3\x13\xb9rn\x1a\xd3\x0e\x05 l\x1a\xb3Qy", 10, 1, 7, 7),
    (
        b"\x1c\xbc3\x13\xb9rn\x1a\xd3\x0e\x05 l\x1a\xb3Qy",
        2147483647,
        1219187071,
        522343897,
        1239472257,
    ),
    (b"W\xc35\xf3\x00\x7f\xa6\x94\x9c\xed\x0bs\x1b\xa4wiAj5", 10, 5, 5, 4),
    (
        b"W\xc35\xf3\x00\x7f\xa6\x94\x9c\xed\x0bs\x1b\xa4wiAj5",
        2147483647,
        1410642165,
        1412050658,
        1606684924,
    ),
    (b"\xd0&'3\x8f\x9e QM{\x18\xa0\xc7[\x9c\xe8\xa9\xc4j\xae~\xd6\xe7U\xcda(T<hm", 10, 4, 6, 3),
    (
        b"\xd0&'3\x8f\x9e QM{\x18\xa0\xc7[\x9c\xe8\xa9\xc4j\xae~\xd6\xe7U\xcda(T<hm",
        2147483647,
        795600934,
        708002909,
        1779815683,
    ),
    (
        b"M\xc7\xbc\x17V\xe3\xaf\xa0\xbe\xca\x91\x84\xb2\xd2:\xce\x93\xf5u\xd7\xe8'\xfb}\\\xb0\xa9gg\xf4\xda\x14\x16\xea\xd24",
        10,
        6,
        5,
        1,
    ),
    (
        b"M\xc7\xbc\x17V\xe3\xaf\xa0\xbe\xca\x91\x84\xb2\xd2:\xce\x93\xf5u\xd7\xe8'\xfb}\\\xb0\xa9gg\xf4\xda\x14\x16\xea\xd24",
        2147483647,
        1932509546,
        557664248,
        901531961,
    ),
]

KEYS = st.lists(st.one_of(st.none(), st.just(b""), st.binary(max_size=12)), max_size=40)
COUNTS = st.integers(1, 100)


def partition_of(partitioner: str, key: bytes, count: int) -> int:
    return assign_partitions(partitioner, [key], count, 0)[0]


def test_the_hashes_give_the_recorded_partitions() -> None:
    for key, count, *recorded in VECTORS:
        found = [partition_of(name, key, count) for name in ("murmur2", "consistent", "fnv1a")]
        assert found == recorded, (key, count)


@given(st.binary(max_size=200), st.integers(1, 2**31 - 1))
def test_the_hashes_agree_with_the_real_client_on_any_key(key: bytes, count: int) -> None:
    assert partition_of("murmur2", key, count) == confluent_kafka.murmur2(key, count)
    assert partition_of("consistent", key, count) == confluent_kafka.consistent(key, count)
    assert partition_of("fnv1a", key, count) == confluent_kafka.fnv1a(key, count)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("count", [0, -1])
def test_there_must_be_a_partition_to_choose(partitioner: str, count: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        partition_of(partitioner, b"key", count)


# What each partitioner does with a missing and with an empty key: the hash of nothing, or the
# sticky partition.
@pytest.mark.parametrize(
    ("partitioner", "of_missing", "of_empty"),
    [
        ("consistent", 0, 0),
        ("consistent_random", 7, 7),
        ("murmur2", 1, 1),
        ("murmur2_random", 7, 1),
        ("fnv1a", 5, 5),
        ("fnv1a_random", 7, 5),
    ],
)
def test_a_missing_or_empty_key_is_treated_as_librdkafka_does(
    partitioner: str, of_missing: int, of_empty: int
) -> None:
    assert assign_partitions(partitioner, [None, b"", None], 10, sticky=7) == [
        of_missing,
        of_empty,
        of_missing,
    ]


@given(KEYS, COUNTS, st.data())
def test_a_keyed_row_gets_the_partition_of_its_hash(
    keys: list[bytes | None], count: int, data: st.DataObject
) -> None:
    sticky = data.draw(st.integers(0, count - 1))
    spread = data.draw(st.booleans())
    for name in ("consistent", "murmur2", "fnv1a"):
        hashed = getattr(confluent_kafka, name)
        expected = [hashed(key, count) if key else None for key in keys]
        for partitioner in (name, name + "_random"):
            assigned = assign_partitions(partitioner, keys, count, sticky, spread=spread)
            assert [p if key else None for key, p in zip(keys, assigned, strict=True)] == expected


@given(st.sampled_from(PARTITIONERS), KEYS, COUNTS, st.booleans(), st.data())
def test_every_row_gets_an_existing_partition(
    partitioner: str, keys: list[bytes | None], count: int, spread: bool, data: st.DataObject
) -> None:
    assigned = assign_partitions(
        partitioner, keys, count, data.draw(st.integers(0, count - 1)), spread=spread
    )
    assert len(assigned) == len(keys)
    assert all(0 <= partition < count for partition in assigned)


def test_random_keeps_keyless_rows_together_and_spreads_keyed_rows_evenly() -> None:
    assert assign_partitions("random", [None] * 4, 3, sticky=2) == [2, 2, 2, 2]
    assert sorted(assign_partitions("random", [b"same"] * 9, 3, sticky=2)) == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        2,
    ]


@pytest.mark.parametrize(
    "partitioner", ["random", "consistent_random", "murmur2_random", "fnv1a_random"]
)
def test_without_stickiness_keyless_rows_go_round_all_partitions(partitioner: str) -> None:
    assert assign_partitions(partitioner, [None] * 5, 3, sticky=1, spread=True) == [1, 2, 0, 1, 2]


def test_an_empty_batch_needs_no_partition() -> None:
    for partitioner in PARTITIONERS:
        assert assign_partitions(partitioner, [], 3, sticky=0) == []


def test_an_unknown_partitioner_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match="murmur3") as caught:
        assign_partitions("murmur3", [b"key"], 3, sticky=0)
    assert caught.value.args[0] == KafkaError._INVALID_ARG
    assert caught.value.key == "partitioner"


@pytest.mark.parametrize("sticky", [-1, 3])
def test_the_sticky_partition_must_exist(sticky: int) -> None:
    with pytest.raises(ValueError, match="sticky"):
        assign_partitions("consistent_random", [None], 3, sticky)
