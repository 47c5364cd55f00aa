from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from librt.strings import BytesWriter

from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.properties import Properties, decode_properties, encode_properties
from siltstone.mqtt.publish import (
    NO_EXPIRY,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    PublishWriter,
    encode_acks,
    encode_publishes,
    encode_receipts,
    expiry_of,
    publish_size,
    stored_properties,
    with_expiry,
    with_time_left,
    write_publish,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import PacketReader, PacketType, Version, Writer, encode_variable
from tests.support.packets import V3, V5, decode_whole

BOTH = pytest.mark.parametrize("version", [V3, V5])
SIZES = (0, 1, 121, 122, 127, 128, 16_377, 16_378, 16_384, 2_097_146, 2_097_152)
CONTENT_TYPE = b"\x03\0\1t"


@BOTH
def test_a_batch_has_the_bytes_of_its_packets_in_order(version: Version) -> None:
    packets = [
        Publish(topic=b"a", payload=b"0"),
        Publish(topic=b"b/c", payload=b"", retain=True),
        Publish(topic=b"a", payload=b"1", qos=1, packet_id=1),
        Publish(topic=b"x" * 65_535, payload=b"2", qos=2, packet_id=65_535, dup=True, retain=True),
    ]
    data = encode_publishes(
        version,
        [packet.topic for packet in packets],
        [packet.payload for packet in packets],
        [packet.qos | packet.retain << 2 | packet.dup << 3 for packet in packets],
        [packet.packet_id for packet in packets],
        [],
    )
    assert data == b"".join(encode(version, packet) for packet in packets)


@BOTH
@pytest.mark.parametrize("size", SIZES)
def test_the_length_of_a_packet_is_right_at_every_width(version: Version, size: int) -> None:
    packet = Publish(topic=b"a", payload=b"x" * size)
    data = encode_publishes(version, [b"a"], [packet.payload], [0], [0], [])
    assert data == encode(version, packet)


@pytest.mark.parametrize("size", [0, 1, 124, 125, 16_380, 16_381])
def test_properties_are_written_with_their_length(size: int) -> None:
    packet = Publish(topic=b"a", payload=b"x", properties=Properties(content_type="t" * size))
    raw = b"\x03" + size.to_bytes(2) + b"t" * size
    data = encode_publishes(V5, [b"a", b"a"], [b"x", b"x"], [0, 0], [0, 0], [raw, b""])
    assert data == encode(V5, packet) + encode(V5, Publish(topic=b"a", payload=b"x"))


def test_3_1_1_leaves_properties_out() -> None:
    data = encode_publishes(V3, [b"a"], [b"x"], [0], [0], [CONTENT_TYPE])
    assert data == encode(V3, Publish(topic=b"a", payload=b"x"))


def test_a_message_that_no_packet_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="size_bytes=268435456"):
        encode_publishes(V3, [b"a"], [bytes(268_435_453)], [0], [0], [])


def test_what_cannot_be_written_leaves_no_bytes_behind() -> None:
    out = BytesWriter()
    with pytest.raises(UsageError, match="size_bytes=268435456"):
        write_publish(out, V5, b"a", bytes(268_435_452), 0, 0, b"")
    assert out.getvalue() == b""


@BOTH
@pytest.mark.parametrize("flags", [0, 1, 2, 0b1111])
@pytest.mark.parametrize("properties", [b"", CONTENT_TYPE, b"\x03\0\x7d" + b"t" * 125])
def test_the_size_of_a_packet_is_known_before_it_is_written(
    version: Version, flags: int, properties: bytes
) -> None:
    for size in SIZES:
        payload = bytes(size)
        written = encode_publishes(version, [b"a"], [payload], [flags], [1], [properties])
        assert publish_size(version, b"a", payload, flags, properties) == len(written)


@pytest.mark.parametrize(
    ("first", "build"),
    [(PUBACK, PubAck), (PUBREC, PubRec), (PUBREL, PubRel), (PUBCOMP, PubComp)],
)
def test_a_run_of_acknowledgements_has_the_bytes_of_each(
    first: int, build: type[PubAck | PubRec | PubRel | PubComp]
) -> None:
    packet_ids = [1, 255, 256, 32_768, 65_535]
    for version in (V3, V5):
        expected = b"".join(encode(version, build(packet_id=number)) for number in packet_ids)
        assert encode_acks(first, packet_ids, 0) == expected


def test_a_run_of_acknowledgements_may_have_one_reason() -> None:
    reason = Reason.NO_MATCHING_SUBSCRIBERS
    expected = b"".join(encode(V5, PubAck(packet_id=n, reason=reason)) for n in (1, 65_535))
    assert encode_acks(PUBACK, [1, 65_535], reason) == expected


def test_nothing_is_no_bytes() -> None:
    assert (encode_acks(PUBACK, [], 0), encode_publishes(V5, [], [], [], [], [])) == (b"", b"")


def test_receipts_are_puback_or_pubrec_in_the_order_of_the_messages() -> None:
    flags = [2, 0, 1 | 8, 4, 2 | 4 | 8, 1]
    expected: list[PubAck | PubRec] = [
        PubRec(packet_id=1),
        PubAck(packet_id=65_535),
        PubRec(packet_id=256),
        PubAck(packet_id=2),
    ]
    for version in (V3, V5):
        data = b"".join(encode(version, packet) for packet in expected)
        assert encode_receipts(flags, [1, 0, 65_535, 0, 256, 2]) == data
    assert encode_receipts([0, 4], [0, 0]) == encode_receipts([], []) == b""


class TestPublishWriter:
    def written(
        self, writer: PublishWriter, *topics: bytes, payload: bytes = b"x"
    ) -> list[tuple[bytes, int | None]]:
        """Write a message to each topic; return the topics and aliases that the packets have."""
        found = []
        for topic in topics:
            out = BytesWriter()
            writer.write(out, topic, payload, 1, 7, CONTENT_TYPE)
            packet = decode_whole(V5, out.getvalue())
            assert isinstance(packet, Publish)
            alias = packet.properties.topic_alias
            expected = Publish(
                topic=packet.topic,
                payload=payload,
                qos=1,
                packet_id=7,
                properties=Properties(content_type="t", topic_alias=alias),
            )
            assert packet == expected
            found.append((packet.topic, alias))
        return found

    @BOTH
    def test_without_aliases_it_writes_as_a_batch_does(self, version: Version) -> None:
        out = BytesWriter()
        PublishWriter(version, 0, 0).write(out, b"a", b"x", 0b1101, 7, CONTENT_TYPE)
        expected = encode_publishes(version, [b"a"], [b"x"], [0b1101], [7], [CONTENT_TYPE])
        assert out.getvalue() == expected

    def test_topics_get_aliases_while_there_are_any(self) -> None:
        found = self.written(PublishWriter(V5, 0, 2), b"a", b"b", b"c", b"a", b"c", b"b")
        assert found == [(b"a", 1), (b"b", 2), (b"c", None), (b"", 1), (b"c", None), (b"", 2)]

    def test_aliases_go_beyond_one_byte(self) -> None:
        topics = [b"%d" % number for number in range(300)]
        found = self.written(PublishWriter(V5, 0, 300), *topics, *topics)
        assert found == [
            *((topic, number) for number, topic in enumerate(topics, 1)),
            *((b"", number) for number in range(1, 301)),
        ]

    @BOTH
    @pytest.mark.parametrize("flags", [0, 1])
    def test_mqtt_3_1_2_24_a_packet_fits_up_to_the_limit_of_the_receiver(
        self, version: Version, flags: int
    ) -> None:
        for size in SIZES:
            payload = bytes(size)
            whole = publish_size(version, b"a", payload, flags, CONTENT_TYPE)
            for limit in (whole - 1, whole, whole + 1, whole + 13):
                writer = PublishWriter(version, limit, 0)
                assert writer.fits(b"a", payload, flags, CONTENT_TYPE) is (limit >= whole)

    def test_without_a_limit_that_of_mqtt_holds(self) -> None:
        writer = PublishWriter(V3, 0, 0)
        assert writer.fits(b"a", bytes(268_435_452), 0, b"") is True
        assert writer.fits(b"a", bytes(268_435_453), 0, b"") is False

    def test_a_message_that_fits_is_written_without_an_alias_that_does_not(self) -> None:
        topic = b"long/topic"
        size = publish_size(V5, topic, b"x", 1, CONTENT_TYPE)
        # An alias takes three bytes. What has no room for it does not use it up either.
        for spare, whole, shorter in (
            (1, [(topic, None), (topic, None)], [(topic, None), (topic, None)]),
            (2, [(topic, None), (topic, None)], [(topic, 1), (b"", 1)]),
            (3, [(topic, 1), (b"", 1)], [(b"", 1), (b"", 1)]),
        ):
            writer = PublishWriter(V5, size + spare, 1)
            assert self.written(writer, topic, topic) == whole
            assert self.written(writer, topic, topic, payload=b"") == shorter

    def test_a_topic_shorter_than_its_alias_is_written_where_only_it_fits(self) -> None:
        size = publish_size(V5, b"a", b"xxx", 1, CONTENT_TYPE)
        writer = PublishWriter(V5, size, 1)
        assert self.written(writer, b"a", payload=b"") == [(b"a", 1)]
        assert self.written(writer, b"a", payload=b"xxx") == [(b"a", None)]
        assert self.written(writer, b"a", payload=b"x") == [(b"", 1)]

    @pytest.mark.parametrize("size", [110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120])
    def test_no_alias_makes_a_packet_too_large(self, size: int) -> None:
        # Around these sizes both lengths in the packet grow by a byte.
        for limit in range(size + 10, size + 25):
            writer = PublishWriter(V5, limit, 1)
            if writer.fits(b"abc", bytes(size), 0, b""):
                for _ in range(2):
                    out = BytesWriter()
                    writer.write(out, b"abc", bytes(size), 0, 0, b"")
                    assert len(out.getvalue()) <= limit


class TestWithExpiry:
    FULL = Properties(
        payload_format_indicator=1,
        message_expiry_interval=77,
        content_type="t" * 300,
        response_topic="r",
        correlation_data=b"\2\2\2",
        subscription_identifiers=(1, 200, 268_435_455),
        user_properties=(("\2", "b" * 260), ("", "\2")),
    )

    def encoded(self, properties: Properties) -> bytes:
        writer = Writer()
        encode_properties(writer, properties, PacketType.PUBLISH)
        reader = PacketReader(bytes(writer.data))
        return reader.take(reader.variable())

    def test_the_interval_is_replaced_wherever_it_stands(self) -> None:
        expected = replace(self.FULL, message_expiry_interval=4_294_967_295)
        raw = self.encoded(self.FULL)
        interval = b"\2" + (77).to_bytes(4)
        assert with_expiry(raw, 4_294_967_295) == self.encoded(expected)
        # Last of all, behind every other kind of property.
        last = raw.replace(interval, b"") + interval
        changed = with_expiry(last, 1)
        assert changed == last[:-1] + b"\1"
        body = encode_variable(len(changed)) + changed
        found = decode_properties(PacketReader(body), PacketType.PUBLISH)
        assert found == replace(self.FULL, message_expiry_interval=1)

    def test_properties_without_it_stay_as_they_are(self) -> None:
        raw = self.encoded(replace(self.FULL, message_expiry_interval=None))
        assert with_expiry(raw, 1) == raw
        assert with_expiry(b"", 1) == b""


class TestTimeLeft:
    @pytest.mark.parametrize(
        ("left_us", "seconds"),
        [
            (10_000_000, 10),
            (9_996_000, 10),
            (9_000_001, 10),
            (9_000_000, 9),
            (1_000_000, 1),
            (1, 1),
            (0, 1),
            (-5, 1),
            # A clock that went back makes no message younger.
            (12_000_000, 10),
        ],
    )
    def test_no_second_is_taken_before_it_has_passed(self, left_us: int, seconds: int) -> None:
        before, after = CONTENT_TYPE + b"\2\0\0\0\x0a", CONTENT_TYPE + b"\2\0\0\0"
        assert with_time_left(before, left_us) == after + bytes((seconds,))

    def test_an_interval_of_nothing_stays_so(self) -> None:
        assert with_time_left(b"\2\0\0\0\0", 0) == b"\2\0\0\0\0"

    def test_properties_without_an_interval_stay_as_they_are(self) -> None:
        assert with_time_left(CONTENT_TYPE, 5) == CONTENT_TYPE


class TestStoredProperties:
    FULL = TestWithExpiry().encoded(TestWithExpiry.FULL)

    def test_valid_ones_are_the_same_object(self) -> None:
        assert stored_properties(self.FULL) is self.FULL
        assert stored_properties(b"") == b""

    @pytest.mark.parametrize("place", ["first", "last"])
    @pytest.mark.parametrize("count", [1, 3])
    def test_topic_aliases_are_left_out(self, place: str, count: int) -> None:
        aliases = b"\x23\0\1" * count
        stored = aliases + self.FULL if place == "first" else self.FULL + aliases
        assert stored_properties(stored) == self.FULL

    @pytest.mark.parametrize(
        "once", [b"\1\0", b"\2\0\0\0\1", CONTENT_TYPE, b"\x08\0\1r", b"\x09\0\1c"]
    )
    def test_of_a_repeated_property_the_first_is_kept(self, once: bytes) -> None:
        assert stored_properties(once + once) == once

    @pytest.mark.parametrize("many", [b"\x26\0\1a\0\1b", b"\x0b\1", b"\x0b\xff\xff\xff\x7f"])
    def test_properties_that_may_repeat_do(self, many: bytes) -> None:
        assert stored_properties(many * 3) == many * 3

    @pytest.mark.parametrize(
        "identifier",
        [
            pytest.param(b"\xff\xff\xff\xff", id="no end"),
            pytest.param(b"\x80\x80\x80\x80\1", id="five bytes"),
            pytest.param(b"\x80\x80\x80\0", id="four bytes for 0"),
            pytest.param(b"\x81\0", id="more bytes than it needs"),
            pytest.param(b"\0", id="0"),
            pytest.param(b"", id="nothing"),
        ],
    )
    @pytest.mark.parametrize("after", [b"", CONTENT_TYPE, b"\x26\0\1a\0\1b"])
    def test_bytes_of_a_subscription_identifier_that_is_none_are_none(
        self, identifier: bytes, after: bytes
    ) -> None:
        stored = CONTENT_TYPE + b"\x0b" + identifier
        assert stored_properties(stored + (after if identifier else b"")) == b""
        assert expiry_of(stored_properties(stored)) == NO_EXPIRY

    @pytest.mark.parametrize(
        "identifier", [b"\1", b"\x80\1", b"\x80\x80\1", b"\x80\x80\x80\1", b"\xff\xff\xff\x7f"]
    )
    def test_a_subscription_identifier_of_any_length_is_kept(self, identifier: bytes) -> None:
        stored = b"\x0b" + identifier + b"\2\0\0\0\7"
        assert stored_properties(stored) is stored
        assert expiry_of(stored) == 7

    def test_bytes_that_are_cut_short_are_none(self) -> None:
        whole = {len(properties) for properties in _prefixes(self.FULL)}
        for size in range(len(self.FULL)):
            expected = self.FULL[:size] if size in whole else b""
            assert stored_properties(self.FULL[:size]) == expected

    @pytest.mark.parametrize("identifier", [0x00, 0x04, 0x11, 0x1F, 0x24, 0x2A, 0x41, 0x80, 0xFF])
    def test_bytes_of_other_properties_are_none(self, identifier: int) -> None:
        assert stored_properties(CONTENT_TYPE + bytes((identifier, 0, 0, 0, 0))) == b""


def _prefixes(properties: bytes) -> Iterator[bytes]:
    """Yield the runs of whole properties at the front."""
    reader = PacketReader(properties)
    sizes = {0x01: 1, 0x02: 4}
    while reader.remaining:
        identifier = reader.byte()
        if identifier in sizes:
            reader.take(sizes[identifier])
        elif identifier == 0x0B:
            reader.variable()
        else:
            for _ in range(2 if identifier == 0x26 else 1):
                reader.binary()
        yield properties[: reader.offset]
