from __future__ import annotations

import json

import pytest

from siltstone.errors import UsageError
from siltstone.store.feed.position import EARLIEST, END, LATEST, NEVER, START, Position
from siltstone.store.slab.identity import DatabaseIdentity

OLD = bytes.fromhex("5346 01 02000000 00000000 0700000000000000 03000000 ffffffffffffffff")
SAVED = b"SF\x02" + OLD[3:] + bytes.fromhex("02000000 3565")


def test_a_position_goes_to_bytes_and_back() -> None:
    position = Position({3: NEVER, 0: 7}, "5e")
    assert position.to_bytes() == SAVED
    assert Position.from_bytes(SAVED) == position


def test_a_position_that_an_earlier_version_saved_has_no_identity() -> None:
    position = Position({3: NEVER, 0: 7}, "")
    assert Position.from_bytes(OLD) == position
    assert position.to_bytes() == OLD


def test_a_position_that_was_made_by_hand_stays_such() -> None:
    position = Position({3: NEVER, 0: 7})
    assert position.identity is None
    assert Position.from_bytes(position.to_bytes()) == position
    assert Position.from_bytes(START.to_bytes()) == START


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "invalid saved position: the bytes do not come from to_bytes"),
        (b"SI" + SAVED[2:], "invalid saved position: the bytes do not come from to_bytes"),
        (b"SF\x03" + SAVED[3:], "unknown version 3 of a saved position"),
        (OLD[:-1], "invalid saved position: wrong length"),
        (OLD + b"\0", "invalid saved position: wrong length"),
        (SAVED[:-1], "invalid saved position: wrong length"),
        (SAVED[:-3], "invalid saved position: wrong length"),
        (SAVED[:-2] + b"\xff\xff", "invalid saved position: the bytes do not come from to_bytes"),
        (SAVED + b"\0", "invalid saved position: wrong length"),
        (OLD[:7] + OLD[7:19] * 2, "invalid saved position: a shard is repeated"),
    ],
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Position.from_bytes(data)


@pytest.mark.parametrize("serials", [{-1: 0}, {1 << 32: 0}, {0: -3}, {0: 1 << 64}])
def test_what_is_no_place_is_refused(serials: dict[int, int]) -> None:
    with pytest.raises(
        UsageError, match=r"a position needs a shard and a serial, both 0 or more .*: shard"
    ):
        Position(serials)
    with pytest.raises(UsageError, match=r"default must be -2 \(earliest\) or -1 \(latest\)"):
        Position({}, default=0)


def test_a_shard_that_is_not_named_begins_at_its_first_row() -> None:
    assert Position({1: 5}).serial(0) == 0
    assert Position({1: 5}).serial(1) == 5


def test_a_place_changes_one_shard_of_a_copy() -> None:
    position = Position({0: 1, 1: 2})
    assert position.at(1, 9) == Position({0: 1, 1: 9})
    assert Position({}, "5e").at(0, 1) == Position({0: 1}, "5e")
    assert position.at(2, 3) == Position({0: 1, 1: 2, 2: 3})
    assert position == Position({0: 1, 1: 2})


def test_a_position_reaches_another_when_it_does_in_every_shard() -> None:
    here = Position({0: 5, 1: 5})
    assert here.reaches(here)
    assert here.reaches(Position({0: 4}))
    assert not here.reaches(Position({0: 4, 1: 6}))
    assert not here.reaches(Position({2: 1}))
    assert here.reaches(START)


def test_a_position_goes_to_json_and_back_in_the_order_of_shards() -> None:
    position = Position({11: 7, 2: 9}, identity="5eed")
    text = json.dumps(position.to_json())
    assert text == '{"version": 2, "identity": "5eed", "shards": {"2": 9, "11": 7}}'
    assert Position.from_json(json.loads(text), "offsets") == position
    assert Position.parse(position.to_text(), "startingOffsets", default=EARLIEST) == position


def test_a_checkpoint_of_an_earlier_version_has_no_identity() -> None:
    text = '{"version": 1, "shards": {"2": 9, "11": 7}}'
    position = Position.from_json(json.loads(text), "offsets")
    assert position == Position({11: 7, 2: 9}, identity="")
    assert json.dumps(position.to_json()) == text
    # A user who leaves it out means the database as it is.
    by_hand = Position.parse(text, "startingOffsets", default=EARLIEST)
    assert by_hand == Position({11: 7, 2: 9}, identity=None)
    assert by_hand.to_text() == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", START),
        (" Latest ", END),
        ('{"version": 1, "shards": {"0": 12, "1": -1}}', Position({0: 12, 1: -1}, default=LATEST)),
        ('{"version": 1, "shards": {}}', Position({}, default=LATEST)),
    ],
)
def test_a_user_writes_a_word_or_json(text: str, expected: Position) -> None:
    assert Position.parse(text, "startingOffsets", default=LATEST) == expected


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
        Position.parse(text, "startingOffsets", default=EARLIEST)
    assert "startingOffsets" in str(caught.value)


def test_words_become_serials_of_the_rows_that_there_are() -> None:
    bounds = {0: range(5, 30), 1: range(0)}
    assert START.resolved(bounds) == Position({0: 5, 1: 0})
    assert END.resolved(bounds) == Position({0: 30, 1: 0})
    asked = Position({0: EARLIEST, 2: 7}, "5e", LATEST)
    assert asked.resolved(bounds) == Position({0: 5, 1: 0, 2: 7}, "5e")


@pytest.mark.parametrize("position", [END, Position({0: LATEST}), Position({0: EARLIEST})])
def test_a_word_has_no_bytes(position: Position) -> None:
    with pytest.raises(UsageError, match="a position in bytes needs a serial for each shard"):
        position.to_bytes()


def test_bytes_and_json_of_a_position_are_the_same_position() -> None:
    position = Position({0: 7, 3: 1 << 40}, "5e")
    assert Position.from_json(position.to_json()) == Position.from_bytes(position.to_bytes())
    assert position.to_json()["shards"] == position.shards() == {"0": 7, "3": 1 << 40}


def test_a_position_is_of_the_database_whose_identity_it_has() -> None:
    young = DatabaseIdentity("5e", identified=True)
    old = DatabaseIdentity("5e", identified=False)
    here = Position({0: 1})
    assert [here.is_of(young), here.of("5e").is_of(young), here.of("0a").is_of(young)] == [
        True,
        True,
        False,
    ]
    # An earlier version saved it: an old database may own it, a young one cannot.
    assert [here.of("").is_of(old), here.of("").is_of(young)] == [True, False]
    # A position that names no serial skips nothing in any database.
    assert Position({}, "0a").is_of(young)
