"""The bytes of messages: one worked example, round trips, and every way to be wrong."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from siltstone.errors import UsageError
from siltstone.store.writer.replication.codec import (
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    DamagedRecordError,
    UnreadableRecordError,
    cut,
    decode,
    decode_change,
    encode,
    encode_change,
)
from siltstone.store.writer.replication.messages import (
    CALL_KINDS,
    RECORD_KINDS,
    WHOLE_KINDS,
    Genesis,
    LogIdentity,
    Message,
    MessageKind,
    Place,
    ProducerCall,
    RecordChange,
    RecordMessage,
    Term,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
digests = st.binary(min_size=16, max_size=16)
places = st.builds(Place, epoch=u32, term=u64, index=u64, chain=digests, root=digests, seen=u64)
identities = st.builds(LogIdentity, database=digests, shard=u32, epoch=u32)
sites = st.text(min_size=1, max_size=60, alphabet=st.characters(codec="utf-8"))
parts = st.integers(1, 0xFFFF).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))
records = st.builds(
    lambda kind, place, numbers, body: RecordMessage(
        kind=kind, place=place, part=numbers[0], parts=numbers[1], body=body
    ),
    st.sampled_from(sorted(RECORD_KINDS)),
    places,
    parts,
    st.binary(max_size=200),
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Genesis, identities, digests),
    st.builds(Term, epoch=u32, term=u64, root=digests, site=sites, boot=u64),
    records,
)
calls = st.builds(ProducerCall, producer=digests, number=u64, previous=u64)

PLACE = Place(epoch=1, term=2, index=3, chain=b"c" * 16, root=b"r" * 16, seen=2)
BARRIER = RecordMessage(kind=MessageKind.BARRIER, place=PLACE, part=1, parts=1, body=b"")
TERM = Term(epoch=1, term=2, root=b"r" * 16, site="a", boot=7)
GENESIS = Genesis(LogIdentity(database=b"d" * 16, shard=4, epoch=1), b"n" * 16)


def sealed(data: bytes) -> bytes:
    """Return the bytes with a length and a checksum that fit."""
    rest = struct.pack("<I", len(data)) + data[12:]
    return data[:4] + struct.pack("<I", crc32c(rest)) + rest


def with_byte(data: bytes, offset: int, value: int) -> bytes:
    return sealed(data[:offset] + bytes([value]) + data[offset + 1 :])


def test_the_bytes_of_a_record_are_those_of_the_documented_format() -> None:
    record = replace(BARRIER, kind=MessageKind.DROP, part=2, parts=3, body=b"body")
    rest = (
        struct.pack("<I", 84)
        + bytes([1, 4])
        + struct.pack("<HHH", 2, 3, 0)
        + struct.pack("<IQQQ", 1, 2, 3, 2)
        + b"c" * 16
        + b"r" * 16
        + b"body"
    )
    assert encode(record) == b"SREP" + struct.pack("<I", crc32c(rest)) + rest
    assert HEADER.size == HEADER_BYTES


def test_the_bytes_of_a_genesis_and_a_term_end_with_their_bodies() -> None:
    assert encode(GENESIS)[80:] == b"d" * 16 + b"\x04\0\0\0" + b"n" * 16
    assert encode(TERM)[80:] == b"\x07" + bytes(7) + b"a"


@given(messages)
def test_a_message_decodes_to_itself(message: Message) -> None:
    assert decode(encode(message)) == message


@given(messages, st.data())
def test_a_changed_byte_is_damage(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedRecordError):
        decode(bytes(encoded))


@given(messages, st.data())
def test_cut_or_longer_bytes_are_damage(message: Message, data: st.DataObject) -> None:
    encoded = encode(message)
    with pytest.raises(DamagedRecordError):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(DamagedRecordError):
        decode(encoded + b"\0")


@given(st.binary(max_size=300))
def test_any_bytes_with_a_valid_checksum_decode_to_one_message_or_are_refused(
    rest: bytes,
) -> None:
    data = sealed(b"SREP" + bytes(8) + b"\x01" + rest.ljust(80, b"\0"))
    try:
        message = decode(data)
    except UnreadableRecordError:
        return
    assert encode(message) == data


def test_a_newer_version_is_named_and_is_not_damage() -> None:
    with pytest.raises(UnreadableRecordError, match=r"upgrade this site: version=2 supported=1"):
        decode(with_byte(encode(BARRIER), 12, 2))


def test_an_unknown_kind_decodes_so_that_the_rule_can_judge_its_place() -> None:
    assert decode(with_byte(encode(BARRIER), 13, 99)) == replace(BARRIER, kind=99)
    with pytest.raises(UnreadableRecordError, match=r"unknown kind, upgrade this site: kind=99"):
        decode_change(99, b"")


@pytest.mark.parametrize(("offset", "value"), [(14, 0), (14, 2), (16, 0), (18, 1)])
def test_a_part_that_cannot_be_and_a_set_reserved_byte_are_unreadable(
    offset: int, value: int
) -> None:
    with pytest.raises(UnreadableRecordError, match="header of the record is invalid"):
        decode(with_byte(encode(BARRIER), offset, value))


@pytest.mark.parametrize("message", [GENESIS, TERM])
@pytest.mark.parametrize("offset", [32, 40, 48])
def test_a_claim_with_fields_of_a_record_is_unreadable(message: Message, offset: int) -> None:
    with pytest.raises(UnreadableRecordError, match="fields that only records have"):
        decode(with_byte(encode(message), offset, 1))


@pytest.mark.parametrize("offset", [24, 64])
def test_a_genesis_with_a_term_or_a_root_is_unreadable(offset: int) -> None:
    with pytest.raises(UnreadableRecordError, match="GENESIS has a term, a root"):
        decode(with_byte(encode(GENESIS), offset, 1))


def test_claims_with_a_body_of_a_wrong_length_are_unreadable() -> None:
    with pytest.raises(UnreadableRecordError, match="wrong length"):
        decode(sealed(encode(GENESIS) + b"x"))
    with pytest.raises(UnreadableRecordError, match="wrong length"):
        decode(sealed(encode(TERM)[:-1]))
    with pytest.raises(UnreadableRecordError, match="wrong length"):
        decode(sealed(encode(TERM) + b"x" * 255))
    with pytest.raises(UnreadableRecordError, match="not valid UTF-8"):
        decode(sealed(encode(TERM)[:-1] + b"\xff"))


def test_a_record_above_the_limit_is_refused_on_both_sides() -> None:
    largest = replace(BARRIER, kind=MessageKind.ROWS, body=bytes(BODY_BYTES_MAX))
    assert decode(encode(largest)) == largest
    with pytest.raises(UsageError, match="at most 524288 bytes, got 524289"):
        encode(replace(largest, body=bytes(BODY_BYTES_MAX + 1)))
    with pytest.raises(UnreadableRecordError, match="too long: size_bytes=524289"):
        decode(sealed(encode(largest) + b"\0"))


def test_fields_out_of_range_are_refused_before_publishing() -> None:
    with pytest.raises(UsageError, match="out of range"):
        encode(replace(BARRIER, place=replace(PLACE, term=2**64)))
    with pytest.raises(UsageError, match="16 bytes, got 15"):
        encode(replace(BARRIER, place=replace(PLACE, chain=bytes(15))))
    with pytest.raises(UsageError, match="1 to 255 bytes, got 0"):
        encode(replace(TERM, site=""))
    with pytest.raises(UsageError, match="16 bytes, got 3"):
        encode_change(
            RecordChange(
                kind=MessageKind.ROWS,
                calls=(ProducerCall(producer=b"abc", number=1, previous=0),),
                payload=b"",
            )
        )


@given(
    st.sampled_from(sorted(RECORD_KINDS - WHOLE_KINDS)),
    st.lists(calls, max_size=4),
    st.binary(max_size=100),
    st.integers(1, 30),
)
def test_a_change_decodes_to_itself_from_the_joined_parts(
    kind: MessageKind, made: list[ProducerCall], payload: bytes, part_bytes: int
) -> None:
    change = RecordChange(
        kind=kind, calls=tuple(made) if kind in CALL_KINDS else (), payload=payload
    )
    pieces = cut(encode_change(change), part_bytes)
    assert all(len(piece) <= part_bytes for piece in pieces)
    assert decode_change(kind, b"".join(pieces)) == change


@pytest.mark.parametrize("body", [b"", b"\x01\0\0", b"\x01\0\0\0" + bytes(31)])
def test_cut_calls_are_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableRecordError, match="calls of the record are cut"):
        decode_change(MessageKind.KV, body)


def test_a_fence_and_a_barrier_have_bodies_of_one_length() -> None:
    assert decode_change(MessageKind.FENCE, b"p" * 16).payload == b"p" * 16
    assert decode_change(MessageKind.BARRIER, b"").payload == b""
    with pytest.raises(UnreadableRecordError, match="FENCE has a wrong length: size_bytes=15"):
        decode_change(MessageKind.FENCE, bytes(15))
    with pytest.raises(UnreadableRecordError, match="BARRIER has a wrong length: size_bytes=1"):
        decode_change(MessageKind.BARRIER, b"x")


@pytest.mark.parametrize("kind", [MessageKind.TERM, MessageKind.GENESIS, 0])
def test_only_records_hold_changes(kind: int) -> None:
    with pytest.raises(UnreadableRecordError, match="unknown kind"):
        decode_change(kind, b"")


def test_too_many_parts_are_refused() -> None:
    assert cut(b"") == [b""]
    with pytest.raises(UsageError, match="too large: size_bytes=65536 max=65535"):
        cut(bytes(65536), 1)
