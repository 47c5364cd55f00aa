from __future__ import annotations

import pytest

from siltstone.errors import MalformedPacketError, UsageError
from siltstone.mqtt.wire import (
    VARIABLE_MAX,
    PacketReader,
    Writer,
    check_string,
    decode_string,
    encode_variable,
)

# Table 1-1 of MQTT 5.
VARIABLE = [
    (0, "00"),
    (127, "7f"),
    (128, "80 01"),
    (16_383, "ff 7f"),
    (16_384, "80 80 01"),
    (2_097_151, "ff ff 7f"),
    (2_097_152, "80 80 80 01"),
    (VARIABLE_MAX, "ff ff ff 7f"),
]


@pytest.mark.parametrize(("value", "text"), VARIABLE)
def test_variable_byte_integers_are_those_of_table_1_1(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    reader = PacketReader(data)
    assert (encode_variable(value), reader.variable(), reader.remaining) == (data, value, 0)


@pytest.mark.parametrize("text", ["80 00", "ff 80 00", "80 80 80 00"])
def test_mqtt_1_5_5_1_a_longer_encoding_than_needed_is_malformed(text: str) -> None:
    with pytest.raises(MalformedPacketError, match="more bytes than it needs"):
        PacketReader(bytes.fromhex(text)).variable()


def test_a_variable_byte_integer_of_five_bytes_is_malformed() -> None:
    with pytest.raises(MalformedPacketError, match="does not end: offset=4") as caught:
        PacketReader(b"\x80\x80\x80\x80\x01").variable()
    assert caught.value.reason == 0x81


@pytest.mark.parametrize("value", [-1, VARIABLE_MAX + 1])
def test_what_is_no_variable_byte_integer_is_refused(value: int) -> None:
    with pytest.raises(UsageError, match=f"variable byte integer: value={value}"):
        encode_variable(value)


def test_integers_are_big_endian() -> None:
    writer = Writer()
    writer.byte(0x01)
    writer.two(0x0203)
    writer.four(0x04050607)
    assert writer.data == b"\x01\x02\x03\x04\x05\x06\x07"
    reader = PacketReader(bytes(writer.data))
    assert (reader.byte(), reader.two(), reader.four()) == (0x01, 0x0203, 0x04050607)
    reader.finish()


@pytest.mark.parametrize("value", [-1, 65_536])
def test_an_integer_that_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(UsageError, match=f"does not fit in 2 bytes: value={value}"):
        Writer().two(value)


def test_a_string_is_its_length_and_its_utf_8() -> None:
    # Figure 1-2: the letter A and U+2A6D4.
    data = bytes.fromhex("0005 41 f0aa9b94")
    writer = Writer()
    writer.string("A\U0002a6d4")
    assert (bytes(writer.data), PacketReader(data).string()) == (data, "A\U0002a6d4")


@pytest.mark.parametrize("data", [b"\xed\xa0\x80", b"\xff", b"a\xc0\x80", b"\xe2\x82"])
def test_mqtt_1_5_4_1_ill_formed_utf_8_and_surrogates_are_malformed(data: bytes) -> None:
    for check in (check_string, decode_string):
        with pytest.raises(MalformedPacketError, match="not valid UTF-8: offset="):
            check(data)


def test_mqtt_1_5_4_2_a_string_with_u_0000_is_malformed() -> None:
    for check in (check_string, decode_string):
        with pytest.raises(MalformedPacketError, match=r"U\+0000"):
            check(b"a\0b")


def test_mqtt_1_5_4_3_a_byte_order_mark_is_kept() -> None:
    assert decode_string(b"\xef\xbb\xbfa\xef\xbb\xbf") == "\ufeffa\ufeff"


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 65_536])
def test_a_string_that_mqtt_cannot_hold_is_not_written(text: str) -> None:
    with pytest.raises(UsageError):
        Writer().string(text)


def test_the_longest_string_has_65_535_bytes() -> None:
    writer = Writer()
    writer.string("x" * 65_535)
    assert PacketReader(bytes(writer.data)).string() == "x" * 65_535


@pytest.mark.parametrize(
    "read",
    [
        PacketReader.byte,
        PacketReader.two,
        PacketReader.four,
        PacketReader.variable,
        PacketReader.string,
        PacketReader.binary,
    ],
)
def test_a_read_past_the_end_is_malformed(read: object) -> None:
    assert callable(read)
    with pytest.raises(MalformedPacketError, match=r"cut short: offset=0 needed=\d available=0"):
        read(PacketReader(b""))
    with pytest.raises(MalformedPacketError, match="cut short: offset=2 needed=3 available=2"):
        PacketReader(b"\0\3ab").binary()


def test_bytes_that_nothing_reads_are_malformed() -> None:
    reader = PacketReader(b"ab")
    reader.byte()
    with pytest.raises(MalformedPacketError, match="offset=1 size=2"):
        reader.finish()


def test_a_part_ends_where_it_was_cut() -> None:
    reader = PacketReader(b"abcd")
    part = reader.part(2)
    assert (part.rest(), reader.rest()) == (b"ab", b"cd")
    with pytest.raises(MalformedPacketError):
        part.byte()
