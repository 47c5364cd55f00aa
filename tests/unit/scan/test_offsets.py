from __future__ import annotations

import json

import pytest

from siltstone.errors import UsageError
from siltstone.scan.offsets import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    Loss,
    Offsets,
    bounds_of,
    find_losses,
    parse_offsets,
    read_offsets,
    resolve,
)
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.manifest import SlabId


def extent(shard: int, generation: int, start: int, stop: int) -> SlabExtent:
    return SlabExtent(
        slab=SlabId(shard, generation), serials=range(start, stop), since_us=0, until_us=None
    )


# Of shard 0 the second generation was dropped; shard 1 is empty.
EXTENTS = [extent(0, 1, 5, 10), extent(0, 3, 20, 30), extent(1, 1, 0, 0)]


def test_a_position_goes_to_json_and_back_in_the_order_of_shards() -> None:
    offsets = Offsets({11: 7, 2: 9}, identity="5eed")
    text = json.dumps(offsets.to_json())
    assert text == '{"version": 2, "identity": "5eed", "shards": {"2": 9, "11": 7}}'
    assert read_offsets(json.loads(text), "offsets") == offsets
    assert parse_offsets(offsets.to_text(), "startingOffsets", default=EARLIEST) == offsets


def test_a_position_that_an_earlier_version_wrote_has_no_identity() -> None:
    text = '{"version": 1, "shards": {"2": 9, "11": 7}}'
    offsets = read_offsets(json.loads(text), "offsets")
    assert offsets == Offsets({11: 7, 2: 9}, identity="")
    assert json.dumps(offsets.to_json()) == text
    # A user who leaves it out means the database as it is.
    by_hand = parse_offsets(text, "startingOffsets", default=EARLIEST)
    assert by_hand == Offsets({11: 7, 2: 9}, identity=None)
    assert by_hand.to_text() == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", AT_EARLIEST),
        (" Latest ", AT_LATEST),
        ('{"version": 1, "shards": {"0": 12, "1": -1}}', Offsets({0: 12, 1: -1}, LATEST)),
        ('{"version": 1, "shards": {}}', Offsets({}, LATEST)),
    ],
)
def test_a_user_writes_a_word_or_json(text: str, expected: Offsets) -> None:
    assert parse_offsets(text, "startingOffsets", default=LATEST) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "newest",
            'must be earliest, latest, or JSON such as {"version": 1, "shards": {"0": 1200}}',
        ),
        ("", 'must be earliest, latest, or JSON such as {"version": 1, "shards": {"0": 1200}}'),
        (
            "[" * 100_000,
            'must be earliest, latest, or JSON such as {"version": 1, "shards": {"0": 1200}}',
        ),
        (
            '{"version": 1, "shards": {"0": ' + "9" * 5_000 + "}}",
            "must be earliest, latest, or JSON",
        ),
        (
            '{"version": 1, "shards": {"' + "9" * 5_000 + '": 1}}',
            "must have the numbers of shards as keys: shard",
        ),
        ("[1]", "must have version and shards"),
        ('{"shards": {}}', "must have version and shards"),
        ('{"version": 1, "shards": {}, "x": 1}', "must have shards, version only"),
        ('{"version": 1, "shards": {}, "identity": "a"}', "must have shards, version only"),
        ('{"version": 2, "shards": {}}', "must have identity, shards, version only"),
        (
            '{"version": 2, "shards": {}, "identity": ""}',
            "must have the identity of a database as text: identity",
        ),
        (
            '{"version": 2, "shards": {}, "identity": 5}',
            "must have the identity of a database as text: identity",
        ),
        ('{"version": 3, "shards": {}}', "unknown version 3 of"),
        ('{"version": 1, "shards": [1]}', "must have a serial for each shard: shards"),
        ('{"version": 1, "shards": {"a": 1}}', "have the numbers of shards as keys: shard='a'"),
        ('{"version": 1, "shards": {"0": -3}}', "serial, -2 for earliest or -1 for latest"),
        ('{"version": 1, "shards": {"0": true}}', "serial, -2 for earliest or -1 for latest"),
        ('{"version": 1, "shards": {"0": "5"}}', "shard=0 serial='5'"),
    ],
)
def test_what_is_no_position_is_refused_with_the_name_of_the_option(
    text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_offsets(text, "startingOffsets", default=EARLIEST)
    assert "startingOffsets" in str(caught.value)


def test_a_shard_reaches_from_its_oldest_slab_to_its_newest() -> None:
    assert bounds_of(EXTENTS) == {0: range(5, 30), 1: range(0)}


@pytest.mark.parametrize(
    ("offsets", "serials"),
    [
        (AT_EARLIEST, {0: 5, 1: 0}),
        (AT_LATEST, {0: 30, 1: 0}),
        (Offsets({0: 12}, LATEST), {0: 12, 1: 0}),
        (Offsets({0: LATEST, 1: 4}), {0: 30, 1: 4}),
        (Offsets({0: EARLIEST}, LATEST), {0: 5, 1: 0}),
    ],
    ids=str,
)
def test_words_become_serials_of_what_there_is(offsets: Offsets, serials: dict[int, int]) -> None:
    assert resolve(offsets, EXTENTS) == serials


def test_a_shard_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="shard that is not in the database: shard=7 shards=2"):
        resolve(Offsets({7: 1}), EXTENTS)


@pytest.mark.parametrize(
    ("start", "end", "lost"),
    [
        ({0: 5, 1: 0}, {0: 10, 1: 0}, []),
        ({0: 0}, {0: 7}, [(0, range(5))]),
        ({0: 0}, {0: 3}, [(0, range(3))]),
        ({0: 8}, {0: 25}, [(0, range(10, 20))]),
        ({0: 0}, {0: 30}, [(0, range(5)), (0, range(10, 20))]),
        ({0: 12}, {0: 15}, [(0, range(12, 15))]),
        ({0: 25}, {0: 40}, [(0, range(30, 40))]),
        ({0: 20, 1: 0}, {0: 30, 1: 2}, [(1, range(2))]),
        ({0: 12}, {0: 12}, []),
        ({}, {0: 30}, []),
        # Exactly one: the last serial, the first, one in a gap; and none on either side of that.
        ({0: 29}, {0: 31}, [(0, range(30, 31))]),
        ({0: 30}, {0: 31}, [(0, range(30, 31))]),
        ({0: 29}, {0: 30}, []),
        ({0: 30}, {0: 30}, []),
        ({1: 0}, {1: 1}, [(1, range(1))]),
        ({0: 4}, {0: 6}, [(0, range(4, 5))]),
        ({0: 5}, {0: 6}, []),
        ({0: 19}, {0: 21}, [(0, range(19, 20))]),
        ({0: 19}, {0: 20}, [(0, range(19, 20))]),
        ({0: 9}, {0: 11}, [(0, range(10, 11))]),
        ({0: 9}, {0: 10}, []),
    ],
)
def test_serials_that_no_slab_has_are_lost(
    start: dict[int, int], end: dict[int, int], lost: list[tuple[int, range]]
) -> None:
    assert find_losses(start, end, EXTENTS) == [
        Loss(shard=shard, serials=serials) for shard, serials in lost
    ]


def test_a_loss_names_the_first_and_the_last_serial() -> None:
    assert str(Loss(shard=3, serials=range(10, 20))) == "shard 3, serials 10 to 19"
