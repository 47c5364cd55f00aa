"""The rule where it is stricter than the model: epochs, identities, unknown kinds, mixed parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.store.writer.replication.codec import encode
from siltstone.store.writer.replication.messages import (
    Genesis,
    LogIdentity,
    Message,
    MessageKind,
    Place,
    RecordMessage,
    Term,
)
from siltstone.store.writer.replication.rule import (
    COUNTS,
    IGNORED,
    LogPosition,
    Verdict,
    advance,
    judge,
    skip,
)

IDENTITY = LogIdentity(database=b"d" * 16, shard=2, epoch=5)
GENESIS = Genesis(IDENTITY, b"n" * 16)


def read(position: LogPosition, message: Message) -> LogPosition:
    assert judge(position, position.sequence + 1, message) == COUNTS
    return advance(position, position.sequence + 1, message, encode(message))


def begun() -> LogPosition:
    position = read(LogPosition(identity=IDENTITY), GENESIS)
    return read(position, Term(epoch=5, term=1, root=position.root, site="a", boot=1))


def record(
    position: LogPosition, kind: int = MessageKind.ROWS, part: int = 1, parts: int = 1
) -> RecordMessage:
    place = Place(
        epoch=5,
        term=position.term,
        index=position.index + 1,
        chain=position.chain,
        root=position.root,
        seen=position.index,
    )
    return RecordMessage(kind=kind, place=place, part=part, parts=parts, body=bytes(4))


def stops(position: LogPosition, message: Message) -> str:
    found = judge(position, position.sequence + 1, message)
    assert found.verdict is Verdict.STOPPED
    return found.reason


@pytest.mark.parametrize(
    "other",
    [
        replace(IDENTITY, database=b"e" * 16),
        replace(IDENTITY, shard=3),
        replace(IDENTITY, epoch=6),
    ],
)
def test_the_log_of_another_shard_is_refused(other: LogIdentity) -> None:
    genesis = Genesis(other, b"n" * 16)
    assert "belongs to another shard" in stops(LogPosition(identity=IDENTITY), genesis)
    assert "another GENESIS" in stops(begun(), genesis)


def test_a_term_and_a_record_of_another_epoch_stop_the_site() -> None:
    position = begun()
    term = Term(epoch=4, term=2, root=position.root, site="b", boot=1)
    assert "another epoch, found 4: term=1 index=2 sequence=3" in stops(position, term)
    old = record(position)
    assert "another epoch, found 4" in stops(
        position, replace(old, place=replace(old.place, epoch=4))
    )


def test_an_unknown_kind_stops_the_site_only_where_it_would_count() -> None:
    position = begun()
    assert "unknown kind, upgrade this site: 77" in stops(position, record(position, kind=77))
    later = read(position, record(position))
    assert judge(later, 4, record(position, kind=77)) == IGNORED


def test_parts_of_different_records_stop_the_site() -> None:
    position = read(begun(), record(begun(), part=1, parts=3))
    assert (position.parts, position.parts_all) == (1, 3)
    assert "another record" in stops(position, record(position, part=2, parts=2))
    assert "another record" in stops(position, record(position, MessageKind.KV, part=2, parts=3))
    assert "part 3 does not follow part 1" in stops(position, record(position, part=3, parts=3))
    assert "part 1 does not follow part 1" in stops(position, record(position))
    assert "has parts" in stops(position, record(position, MessageKind.BARRIER, part=1, parts=2))


def test_the_last_part_completes_a_record() -> None:
    position = begun()
    for part in (1, 2, 3):
        position = read(position, record(position, part=part, parts=3))
    assert (position.parts, position.parts_all, position.parts_kind) == (0, 0, 0)
    assert position.index == 5


def test_a_mark_stands_behind_what_counted_last() -> None:
    position = skip(begun(), 3)
    assert (position.sequence, position.marked, position.mark().sequence) == (3, 2, 2)
