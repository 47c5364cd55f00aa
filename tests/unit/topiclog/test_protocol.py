from __future__ import annotations

import pytest

from siltstone.errors import (
    ClosedError,
    ExistsError,
    InvalidTopicError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    ProtocolError,
    QuotaExceededError,
    RetryError,
    UsageError,
)
from siltstone.topiclog import protocol
from siltstone.topiclog.protocol import (
    PLACES_MAX,
    MessageHead,
    RequestKind,
    ResponseStatus,
    decode_bounds,
    decode_count,
    decode_fetch,
    decode_head,
    decode_hello,
    decode_name,
    decode_offset,
    decode_version,
    encode_bounds,
    encode_count,
    encode_hello,
    encode_name,
    encode_offset,
    encode_version,
    error_of,
    refusal,
    reply,
    request,
    send_head,
    status_of,
)


def test_a_frame_begins_with_size_kind_status_name_and_id() -> None:
    data = request(RequestKind.LENGTH, 7, "tü", encode_offset(258))
    assert data == b"\0\0\0\x13\x06\0\0\x03\0\0\0\x07t\xc3\xbc\0\0\0\0\0\0\x01\x02"
    assert decode_head(data, 0) == MessageHead(
        size=23, kind=RequestKind.LENGTH, status=ResponseStatus.OK, name_size=3, id=7
    )


def test_a_send_has_its_table_before_its_data() -> None:
    head = send_head(1, "t", table=b"\0\0\0\x02\0\0\0\x05", data_bytes=5)
    assert head == b"\0\0\0\x1a\x04\0\0\x01\0\0\0\x01t\0\0\0\x02\0\0\0\x02\0\0\0\x05"


def test_replies_bear_the_id_and_refusals_their_reason() -> None:
    assert reply(RequestKind.SEND, 5, b"xy") == b"\0\0\0\x0a\x04\0\0\0\0\0\0\x05xy"
    assert (
        refusal(RequestKind.SEND, 5, ResponseStatus.FULL, "no")
        == b"\0\0\0\x0a\x04\x06\0\0\0\0\0\x05no"
    )


def test_the_small_ones_are_read_as_they_were_written() -> None:
    assert decode_version(memoryview(encode_version())) == 1
    assert decode_hello(memoryview(encode_hello(body_bytes_max=9))) == (1, 9, 1 << 16)
    assert decode_count(memoryview(encode_count(70_000))) == 70_000
    assert decode_offset(memoryview(encode_offset((1 << 64) - 1))) == (1 << 64) - 1
    assert decode_bounds(memoryview(encode_bounds(range(3, 9)))) == range(3, 9)


@pytest.mark.parametrize(
    ("decode", "data", "reason"),
    [
        (decode_count, b"\0\0\0", "cut short: needed=4 available=3"),
        (decode_count, bytes(5), "bytes follow the end of a frame: left=1"),
        (decode_fetch, b"\0" * 8 + b"\xff\xff", f"topics=65535 max={PLACES_MAX}"),
    ],
)
def test_a_payload_of_another_size_is_refused(decode: object, data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(memoryview(data))  # type: ignore[operator]


def test_names_are_utf_8_of_a_bearable_length() -> None:
    assert encode_name("n" * 65_535) == b"n" * 65_535
    with pytest.raises(UsageError, match="at most 65535 bytes, got 65536"):
        encode_name("n" * 65_536)
    with pytest.raises(UsageError, match="valid Unicode"):
        encode_name("\ud800")
    with pytest.raises(ProtocolError, match="not valid UTF-8"):
        decode_name(b"\xff")


def test_an_offset_has_64_bits() -> None:
    for offset in (-1, 1 << 64):
        with pytest.raises(UsageError, match=r"offset must be from 0 to 2\*\*64 - 1, got"):
            encode_offset(offset)


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (ProtocolError("x"), ResponseStatus.MALFORMED, ProtocolError),
        (ExistsError("x"), ResponseStatus.EXISTS, ExistsError),
        (NotFoundError("x"), ResponseStatus.NOT_FOUND, NotFoundError),
        (InvalidTopicError("x"), ResponseStatus.INVALID, UsageError),
        (OverloadedError("x"), ResponseStatus.OVERLOADED, OverloadedError),
        (QuotaExceededError("x", used_bytes=1, quota_bytes=1), ResponseStatus.FULL, RetryError),
        (OutcomeUnknownError("x"), ResponseStatus.UNKNOWN, OutcomeUnknownError),
        (PoisonedError("x"), ResponseStatus.UNAVAILABLE, PoisonedError),
        (ClosedError("x"), ResponseStatus.UNAVAILABLE, PoisonedError),
        (ValueError("x"), ResponseStatus.UNAVAILABLE, PoisonedError),
    ],
)
def test_an_error_comes_to_the_client_as_one_that_asks_for_the_same(
    error: Exception, status: ResponseStatus, again: type[Exception]
) -> None:
    assert status_of(error) is status
    found = error_of(status, "why")
    assert (type(found), str(found)) == (again, "why")


def test_every_kind_and_status_is_in_the_formats_by_its_number() -> None:
    assert [kind.value for kind in RequestKind] == list(range(1, 10))
    assert [status.value for status in ResponseStatus] == list(range(9))
    assert protocol.VERSION == 1
