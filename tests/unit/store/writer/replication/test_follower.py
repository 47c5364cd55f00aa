"""A follower: catching up, gaps and damage, the bounds of the log, heartbeats, reads."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from siltstone.store.writer.replication.codec import encode
from siltstone.store.writer.replication.follower import (
    COMPARED_MAX,
    Follower,
    FollowerStatus,
    LogBounds,
    PeerProgress,
)
from siltstone.store.writer.replication.messages import MessageKind, Place, RecordMessage, Term
from siltstone.store.writer.replication.rule import Verdict
from tests.support.replication_log import GENESIS, NONCE, OneSite, follower


def bounds(first: int, last: int, nonce: bytes = NONCE) -> LogBounds:
    return LogBounds(first=first, last=last, nonce=nonce)


def test_a_follower_is_current_when_it_has_read_what_the_log_had() -> None:
    late = follower()
    seen = [late.status, late.attach(bounds(1, 2))]
    for sequence, data in enumerate((GENESIS, OneSite().term()), 1):
        late.read(sequence, data)
        seen.append(late.status)
    seen += [late.attach(bounds(1, 2)), late.attach(bounds(1, 3))]
    up, current = FollowerStatus.CATCHING_UP, FollowerStatus.CURRENT
    assert seen == [up, up, up, current, current, up]


def test_a_follower_that_never_looked_at_the_log_is_not_current() -> None:
    assert OneSite().lead().shard.follower.status is FollowerStatus.CATCHING_UP


def test_a_log_that_is_trimmed_above_our_position_leaves_us_behind() -> None:
    assert follower().attach(bounds(2, 9)) is FollowerStatus.BEHIND
    site = OneSite()
    assert site.shard.follower.attach(bounds(2, 9)) is FollowerStatus.CATCHING_UP
    assert site.shard.follower.attach(bounds(3, 9)) is FollowerStatus.BEHIND


def test_another_nonce_or_a_shorter_log_is_a_lost_log() -> None:
    one = OneSite().shard.follower
    assert one.attach(bounds(1, 5, b"m" * 16)) is FollowerStatus.STOPPED
    assert one.reason == "log lost: the log was created anew"
    two = OneSite().lead().shard.follower
    assert two.attach(bounds(1, 1)) is FollowerStatus.STOPPED
    assert two.reason == "log lost: its last sequence is 1, but this site has read 2"
    assert two.attach(bounds(1, 9)) is FollowerStatus.STOPPED


def test_a_new_site_takes_the_nonce_of_the_log() -> None:
    assert follower().attach(bounds(1, 5, b"m" * 16)) is FollowerStatus.CATCHING_UP


def test_a_gap_and_damage_change_nothing_and_are_fetched() -> None:
    one = follower()
    for sequence, data in ((2, GENESIS), (1, GENESIS[:-1]), (1, b"")):
        assert one.read(sequence, data).judgement.verdict is Verdict.GAP
        assert one.position.sequence == 0
    assert one.read(1, GENESIS).judgement.verdict is Verdict.COUNTS


def resealed(data: bytes, offset: int, value: int) -> bytes:
    rest = data[8:offset] + bytes([value]) + data[offset + 1 :]
    return data[:4] + struct.pack("<I", crc32c(rest)) + rest


def test_a_record_of_a_newer_version_stops_the_site() -> None:
    one = follower()
    step = one.read(1, resealed(GENESIS, 12, 2))
    assert step.judgement.verdict is Verdict.STOPPED
    assert one.status is FollowerStatus.STOPPED
    assert "upgrade this site: version=2 supported=1: sequence=1" in one.reason


def test_a_complete_record_that_cannot_be_read_stops_the_site() -> None:
    site = OneSite().lead()
    position = site.shard.position
    place = Place(epoch=1, term=1, index=3, chain=position.chain, root=position.root, seen=2)
    record = RecordMessage(kind=MessageKind.ROWS, place=place, part=1, parts=1, body=b"\x09")
    step = site.shard.follower.read(3, encode(record))
    assert step.judgement.verdict is Verdict.STOPPED
    assert "calls of the record are cut: size_bytes=1: sequence=3" in site.shard.follower.reason


def test_a_term_drops_unfinished_parts() -> None:
    site = OneSite(part_bytes=20).lead()
    parts = site.call(1, 1, 0)
    site.store(parts[0])
    one = site.shard.follower
    assert (len(one.unfinished()), one.position.parts) == (1, 1)
    site.store(site.term("b", 5))
    assert (one.unfinished(), one.position.parts) == ((), 0)


def test_a_follower_continues_from_a_mark_in_the_middle_of_a_record() -> None:
    site = OneSite(part_bytes=20).lead()
    parts = site.call(1, 1, 0)
    site.store(parts[0])
    one = site.shard.follower
    again = Follower(one.position.mark(), one.producers, one.unfinished())
    step = again.read(4, parts[1])
    assert step.change is not None
    assert step.change.payload == b"row"


def test_a_peer_with_another_chain_at_the_same_sequence_stops_us() -> None:
    one = OneSite().lead().shard.follower
    own = one.progress()
    assert one.compare(own)
    assert one.compare(PeerProgress(sequence=99, index=5, chain=b"x" * 16))
    assert not one.compare(PeerProgress(sequence=1, index=1, chain=b"x" * 16))
    assert one.reason == "a peer has another history: sequence=1 index=1 peer_index=1"
    assert one.status is FollowerStatus.STOPPED


def test_what_is_remembered_for_heartbeats_is_bounded() -> None:
    site = OneSite()
    stale = encode(Term(epoch=1, term=0, root=b"r" * 16, site="z", boot=1))
    for _ in range(COMPARED_MAX):
        site.store(stale)
    # Sequence 1 is forgotten, so a difference there is not seen any more.
    assert site.shard.follower.compare(PeerProgress(sequence=1, index=1, chain=b"x" * 16))
    assert not site.shard.follower.compare(PeerProgress(sequence=2, index=1, chain=b"x" * 16))


@pytest.mark.parametrize(("index", "has"), [(0, True), (2, True), (3, False)])
def test_a_read_is_answered_only_if_what_it_needs_has_counted(index: int, has: bool) -> None:
    assert OneSite().lead().shard.follower.has(index) is has
