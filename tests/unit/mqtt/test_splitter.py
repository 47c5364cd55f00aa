from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from siltstone.errors import PeerError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.names import check_topic_name
from siltstone.mqtt.packets import Connect, PingReq, PubAck, Publish, PubRel
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PUBACK, PUBREL, AckBatch, PublishBatch, encode_publishes
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.splitter import Event, PacketSplitter, RawPacket
from siltstone.mqtt.wire import Version
from tests.support.packets import V3, V5, Ack, Message, Raw, Refused, flat

BOTH = pytest.mark.parametrize("version", [V3, V5])
SIZE_MAX = 1_000
ALIAS_MAX = 10
QOS_1 = Publish(topic=b"a/b", payload=b"hi", qos=1, packet_id=10)
MESSAGE = Message(b"a/b", b"hi", 1, 10, b"", -1)


def begun(version: Version) -> PacketSplitter:
    """Return a splitter that knows its version, as after CONNECT."""
    splitter = PacketSplitter(SIZE_MAX)
    assert splitter.begin(version, ALIAS_MAX) == []
    return splitter


def events_of(version: Version, text: str) -> list[Event]:
    return begun(version).feed(bytes.fromhex(text))


def refused(version: Version, text: str) -> tuple[str, int]:
    """Feed one packet that is refused; return what the only event says."""
    items = flat(events_of(version, text))
    assert len(items) == 1
    assert isinstance(items[0], Refused)
    return items[0].kind, items[0].reason


MALFORMED = ("MalformedPacketError", 0x81)
PROTOCOL_ERROR = ("ProtocolError", 0x82)


@BOTH
def test_a_run_of_publishes_is_one_batch_and_other_packets_end_it(version: Version) -> None:
    data = (
        encode(version, QOS_1) * 3
        + encode(version, PingReq())
        + encode(version, PubAck(packet_id=1))
        + encode(version, PubAck(packet_id=2))
        + encode(version, PubRel(packet_id=3))
        + encode(version, QOS_1)
    )
    events = begun(version).feed(data)
    kinds = [type(event) for event in events]
    assert kinds == [PublishBatch, RawPacket, AckBatch, AckBatch, PublishBatch]
    acks = [Ack(PUBACK, 1), Ack(PUBACK, 2), Ack(PUBREL, 3)]
    assert flat(events) == [MESSAGE] * 3 + [Raw(0xC0, b"")] + acks + [MESSAGE]


@BOTH
def test_every_flag_is_where_a_stored_row_has_it(version: Version) -> None:
    packets = [
        Publish(topic=b"t", payload=b"", retain=True),
        Publish(topic=b"t", payload=b"", qos=1, packet_id=1),
        Publish(topic=b"t", payload=b"", qos=2, packet_id=1, dup=True),
        Publish(topic=b"t", payload=b"", qos=2, packet_id=1, dup=True, retain=True),
    ]
    batch = begun(version).feed(b"".join(encode(version, packet) for packet in packets))[0]
    assert isinstance(batch, PublishBatch)
    assert batch.flags == [0b0100, 0b0001, 0b1010, 0b1110]


@BOTH
def test_lists_that_no_message_needs_are_empty(version: Version) -> None:
    batch = begun(version).feed(encode(version, QOS_1) * 2)[0]
    assert isinstance(batch, PublishBatch)
    assert (batch.properties, batch.expiries) == ([], [])


def test_lists_that_one_message_needs_have_a_place_for_each() -> None:
    plain = encode(V5, QOS_1)
    timed = encode(
        V5, Publish(topic=b"t", payload=b"", properties=Properties(message_expiry_interval=0))
    )
    typed = encode(V5, Publish(topic=b"t", payload=b"", properties=Properties(content_type="x")))
    batch = begun(V5).feed(plain + timed + plain + typed + plain)[0]
    assert isinstance(batch, PublishBatch)
    assert batch.expiries == [-1, 0, -1, -1, -1]
    assert batch.properties == [b"", b"\2\0\0\0\0", b"", b"\3\0\1x", b""]


@BOTH
@pytest.mark.parametrize("topic", ["a/é".encode(), b"a" * 65, b"a/\x1f"])
def test_a_topic_that_takes_time_to_check_is_checked_once(version: Version, topic: bytes) -> None:
    splitter = begun(version)
    message = encode(version, Publish(topic=topic, payload=b""))
    batches = [splitter.feed(message)[0] for _ in range(2)]
    first, second = (batch.topics[0] for batch in batches if isinstance(batch, PublishBatch))
    assert first is second


@BOTH
@given(topic=st.binary(min_size=1, max_size=80) | st.text(min_size=1, max_size=30).map(str.encode))
@example(topic=b"a" * 64)
@example(topic=b" ~$/")
def test_a_topic_is_taken_if_and_only_if_it_is_one(version: Version, topic: bytes) -> None:
    splitter = begun(version)
    splitter.topic_levels_max = 4
    size = 2 + len(topic) + (version is V5)
    event = splitter.feed(
        bytes([0x30, size]) + len(topic).to_bytes(2, "big") + topic + bytes(version is V5)
    )[0]
    try:
        check_topic_name(topic)
    except PeerError:
        is_one = False
    else:
        is_one = topic.count(b"/") < 4
    if is_one:
        assert isinstance(event, PublishBatch)
        assert event.topics == [topic]
    else:
        assert isinstance(event, PeerError)


def test_known_topics_are_forgotten_before_they_take_much() -> None:
    splitter = begun(V3)
    topics = [b"%0500d" % number for number in range(1_000)]
    known = []
    for topic in [*topics, topics[-1], topics[0]]:
        batch = splitter.feed(encode(V3, Publish(topic=topic, payload=b"")))[0]
        assert isinstance(batch, PublishBatch)
        assert batch.topics == [topic]
        known.append(batch.topics[0])
    assert known[-2] is known[-3]
    assert known[-1] is not known[0]


@BOTH
def test_one_byte_at_a_time_gives_the_same(version: Version) -> None:
    data = encode(version, QOS_1) + encode(version, PingReq())
    splitter = begun(version)
    events = [event for byte in data for event in splitter.feed(bytes([byte]))]
    assert flat(events) == [MESSAGE, Raw(0xC0, b"")]


@BOTH
def test_what_follows_connect_is_held_until_the_version_is_known(version: Version) -> None:
    connect = encode(version, Connect(version=version, client_id="c"))
    publish = encode(version, QOS_1)
    splitter = PacketSplitter(SIZE_MAX)
    assert flat(splitter.feed(connect + publish[:3])) == [Raw(0x10, connect[2:])]
    assert splitter.feed(publish[3:] + publish) == []
    assert flat(splitter.begin(version, 0)) == [MESSAGE, MESSAGE]
    assert flat(splitter.feed(publish)) == [MESSAGE]


@pytest.mark.parametrize("first", [0x00, 0x11, 0x20, 0x30, 0x47, 0xC0, 0xF0])
def test_mqtt_3_1_0_1_the_first_packet_is_connect(first: int) -> None:
    splitter = PacketSplitter(SIZE_MAX)
    assert flat(splitter.feed(bytes([first, 0x7F]))) == [Refused(*PROTOCOL_ERROR)]
    assert splitter.feed(encode(V5, Connect(version=V5, client_id="c"))) == []


@BOTH
def test_what_came_before_an_error_is_returned_before_it_and_nothing_after(
    version: Version,
) -> None:
    splitter = begun(version)
    publish = encode(version, QOS_1)
    assert flat(splitter.feed(publish + b"\x36\x00" + publish)) == [
        MESSAGE,
        Refused(*MALFORMED),
    ]
    assert splitter.feed(publish) == []


@BOTH
def test_a_packet_beyond_the_limit_is_refused_by_its_header(version: Version) -> None:
    splitter = begun(version)
    splitter.packet_size_max = 130
    assert flat(splitter.feed(b"\x30")) == flat(splitter.feed(b"\x80")) == []
    refusal = Refused("ProtocolError", Reason.PACKET_TOO_LARGE)
    assert flat(splitter.feed(b"\x01")) == [refusal]
    splitter = begun(version)
    splitter.packet_size_max = 131
    assert splitter.feed(b"\x30\x80\x01") == []
    expected = Message(b"a", bytes(125 if version is V3 else 124), 0, 0, b"", -1)
    assert flat(splitter.feed(b"\0\1a" + bytes(125))) == [expected]


@BOTH
def test_a_remaining_length_of_five_bytes_is_malformed(version: Version) -> None:
    assert refused(version, "30 80 80 80 80 01") == MALFORMED
    assert refused(version, "30 ff ff ff ff") == MALFORMED
    assert flat(events_of(version, "30 80 80 80")) == []


def test_mqtt_1_5_5_1_a_remaining_length_is_as_short_as_it_can_be() -> None:
    assert refused(V5, "c0 80 00") == MALFORMED
    assert flat(events_of(V3, "c0 80 00")) == [Raw(0xC0, b"")]


@BOTH
def test_reserved_packet_types_are_malformed(version: Version) -> None:
    assert refused(version, "0f 05") == MALFORMED
    expected = [Refused(*MALFORMED)] if version is V3 else [Raw(0xF0, b"")]
    assert flat(events_of(version, "f0 00")) == expected


@BOTH
@pytest.mark.parametrize("text", ["36 00", "37 00", "3e 00", "38 03 0001 61"])
def test_mqtt_3_3_1_4_qos_3_and_dup_with_qos_0_are_malformed(version: Version, text: str) -> None:
    assert refused(version, text) == MALFORMED


@BOTH
@pytest.mark.parametrize(
    "text", ["30 00", "30 01 00", "30 03 0002 61", "32 03 0001 61", "32 04 0001 61 01"]
)
def test_a_message_that_is_cut_short_is_malformed(version: Version, text: str) -> None:
    assert refused(version, text) == MALFORMED


@BOTH
def test_mqtt_2_2_1_3_a_packet_id_of_zero_is_a_protocol_error(version: Version) -> None:
    assert refused(version, "32 06 0001 61 0000 00") == PROTOCOL_ERROR


@BOTH
def test_mqtt_3_3_2_2_a_topic_with_a_wildcard_is_invalid(version: Version) -> None:
    assert refused(version, "30 04 0001 2b 00") == ("ProtocolError", Reason.TOPIC_NAME_INVALID)


@BOTH
def test_mqtt_3_3_2_1_a_topic_that_is_no_string_is_malformed(version: Version) -> None:
    assert refused(version, "30 04 0001 ff 00") == MALFORMED


@BOTH
@pytest.mark.parametrize("text", ["40 02 0000", "41 02 0001", "62 01 00", "60 02 0001"])
def test_an_acknowledgement_that_is_not_plain_is_left_to_decode(
    version: Version, text: str
) -> None:
    data = bytes.fromhex(text)
    assert flat(events_of(version, text)) == [Raw(data[0], data[2:])]


def test_a_success_may_be_said_or_not() -> None:
    assert flat(events_of(V5, "40 03 0001 00 40 02 0002")) == [Ack(PUBACK, 1), Ack(PUBACK, 2)]
    assert flat(events_of(V5, "40 03 0001 10")) == [Raw(0x40, b"\0\1\x10")]
    assert flat(events_of(V3, "40 03 0001 00")) == [Raw(0x40, b"\0\1\0")]


class TestProperties:
    def test_a_topic_alias_is_resolved_and_taken_out(self) -> None:
        # 230002 is topic alias 2; the other properties are a content type and an expiry.
        events = events_of(
            V5,
            "30 0c 0001 61 07 03000174 230002 6b"
            " 30 07 0000 03 230002 6c"
            " 30 0c 0000 08 230002 020000003c 6d",
        )
        assert flat(events) == [
            Message(b"a", b"k", 0, 0, b"\3\0\1t", -1),
            Message(b"a", b"l", 0, 0, b"", -1),
            Message(b"a", b"m", 0, 0, b"\2\0\0\0\x3c", 60),
        ]

    def test_every_property_of_a_message_is_taken_as_it_came(self) -> None:
        properties = bytes.fromhex(
            "26 0001 62 0001 31 01 01 02 ffffffff 03 0002 c3a4 08 0001 72 09 0002 00ff"
            " 0b 8001 0b 01 26 0001 61 0000"
        )
        body = b"\0\1a" + bytes([len(properties)]) + properties + b"x"
        splitter = PacketSplitter(SIZE_MAX, from_server=True)
        splitter.begin(V5, 0)
        items = flat(splitter.feed(bytes([0x30, len(body)]) + body))
        assert items == [Message(b"a", b"x", 0, 0, properties, 0xFFFF_FFFF)]

    def test_an_alias_may_be_set_anew(self) -> None:
        texts = ["30 07 0001 61 03 230001", "30 07 0001 62 03 230001", "30 06 0000 03 230001"]
        events = events_of(V5, " ".join(texts))
        assert [item.topic for item in flat(events) if isinstance(item, Message)] == [
            b"a",
            b"b",
            b"b",
        ]
        assert all(not batch.properties for batch in events if isinstance(batch, PublishBatch))

    def test_mqtt_3_3_2_8_an_alias_of_zero_is_invalid(self) -> None:
        invalid = ("ProtocolError", Reason.TOPIC_ALIAS_INVALID)
        assert refused(V5, "30 07 0001 61 03 230000") == invalid

    def test_mqtt_3_3_2_9_an_alias_above_the_maximum_is_invalid(self) -> None:
        invalid = ("ProtocolError", Reason.TOPIC_ALIAS_INVALID)
        assert refused(V5, f"30 07 0001 61 03 23 {ALIAS_MAX + 1:04x}") == invalid
        taken = flat(events_of(V5, f"30 07 0001 61 03 23 {ALIAS_MAX:04x}"))
        assert taken == [Message(b"a", b"", 0, 0, b"", -1)]

    def test_an_alias_that_was_never_set_is_a_protocol_error(self) -> None:
        assert refused(V5, "30 06 0000 03 230001") == PROTOCOL_ERROR

    def test_a_message_without_topic_and_alias_is_a_protocol_error(self) -> None:
        assert refused(V5, "30 03 0000 00") == PROTOCOL_ERROR
        # The alias of the message before does not count.
        items = flat(events_of(V5, "30 07 0001 61 03 230001 30 03 0000 00"))
        assert items[1:] == [Refused(*PROTOCOL_ERROR)]

    def test_mqtt_3_3_4_6_only_a_server_sends_subscription_identifiers(self) -> None:
        text = "30 08 0001 61 04 0b01 0b02"
        assert refused(V5, text) == PROTOCOL_ERROR
        splitter = PacketSplitter(SIZE_MAX, from_server=True)
        splitter.begin(V5, 0)
        items = flat(splitter.feed(bytes.fromhex(text)))
        assert items == [Message(b"a", b"", 0, 0, b"\x0b\1\x0b\2", -1)]

    @pytest.mark.parametrize("text", ["0b00", "0102", "0100 0100", "030000 030000"])
    def test_a_wrong_or_second_value_is_a_protocol_error(self, text: str) -> None:
        properties = bytes.fromhex(text)
        body = b"\0\1a" + bytes([len(properties)]) + properties
        splitter = PacketSplitter(SIZE_MAX, from_server=True)
        splitter.begin(V5, 0)
        items = flat(splitter.feed(bytes([0x30, len(body)]) + body))
        assert items == [Refused(*PROTOCOL_ERROR)]

    @pytest.mark.parametrize(
        "text",
        [
            "01",
            "02 000000",
            "03 0001",
            "03 0001 ff",
            "03 0001 00",
            "08 0001",
            "09 0002 61",
            "0b",
            "0b 8000",
            "23 01",
            "26 0001 61",
            "26 0000 0001 80",
            "11 00000000",
            "27 00000001",
            "40 00",
            "ff 00",
            "80 01",
        ],
    )
    def test_what_is_cut_short_or_unknown_is_malformed(self, text: str) -> None:
        properties = bytes.fromhex(text)
        body = b"\0\1a" + bytes([len(properties)]) + properties
        splitter = PacketSplitter(SIZE_MAX, from_server=True)
        splitter.begin(V5, ALIAS_MAX)
        items = flat(splitter.feed(bytes([0x30, len(body)]) + body))
        assert items == [Refused(*MALFORMED)]

    @pytest.mark.parametrize("length", ["", "01", "80", "8000", "8080808001"])
    def test_a_length_that_is_wrong_is_malformed(self, length: str) -> None:
        body = b"\0\1a" + bytes.fromhex(length)
        data = bytes([0x30, len(body)]) + body
        assert flat(begun(V5).feed(data)) == [Refused(*MALFORMED)]

    def test_mqtt_3_3_2_14_a_response_topic_has_no_wildcard(self) -> None:
        invalid = ("ProtocolError", Reason.TOPIC_NAME_INVALID)
        assert refused(V5, "30 08 0001 61 04 08 0001 23") == invalid

    def test_properties_of_a_refused_message_are_not_left_in_the_batch(self) -> None:
        items = flat(events_of(V5, "30 04 0001 61 00 30 08 0001 2b 04 03000174"))
        assert items == [
            Message(b"a", b"", 0, 0, b"", -1),
            Refused("ProtocolError", Reason.TOPIC_NAME_INVALID),
        ]


def test_a_large_packet_in_small_pieces_is_kept_once() -> None:
    payload = bytes(range(256)) * 4_000
    data = encode_publishes(V3, [b"a"], [payload], [0], [0], [])
    splitter = begun(V3)
    splitter.packet_size_max = len(data)
    events: list[Event] = []
    for offset in range(0, len(data), 7):
        events += splitter.feed(data[offset : offset + 7])
    assert flat(events) == [Message(b"a", payload, 0, 0, b"", -1)]


@BOTH
def test_a_topic_has_so_many_levels_at_most(version: Version) -> None:
    splitter = begun(version)
    splitter.topic_levels_max = 3
    for topic in (b"a", b"a/b/c", b"//"):
        data = encode(version, Publish(topic=topic, payload=b""))
        assert flat(splitter.feed(data)) == [Message(topic, b"", 0, 0, b"", -1)]
    refusal = Refused("ProtocolError", Reason.TOPIC_NAME_INVALID)
    data = encode(version, Publish(topic=b"///", payload=b""))
    assert flat(splitter.feed(data)) == [refusal]


def test_without_a_limit_a_topic_has_any_number_of_levels() -> None:
    data = encode(V5, Publish(topic=b"/" * 500, payload=b""))
    assert flat(begun(V5).feed(data)) == [Message(b"/" * 500, b"", 0, 0, b"", -1)]


@BOTH
def test_it_tells_how_much_it_keeps_of_a_packet_that_is_not_whole(version: Version) -> None:
    splitter = begun(version)
    data = encode(version, QOS_1)
    held = [splitter.held_bytes()]
    for chunk in (data + data[:1], data[1:5], data[5:] + data[:7], data[7:], b"\x00\x00"):
        splitter.feed(chunk)
        held.append(splitter.held_bytes())
    assert held == [0, 1, 5, 7, 0, 0]


def test_it_tells_how_much_it_holds_behind_connect() -> None:
    splitter = PacketSplitter(SIZE_MAX)
    data = encode(V5, Connect(version=V5, client_id="c"))
    ping = encode(V5, PingReq())
    held = []
    for chunk in (data[:4], data[4:] + ping, ping + ping[:1]):
        splitter.feed(chunk)
        held.append(splitter.held_bytes())
    splitter.begin(V5, ALIAS_MAX)
    assert [*held, splitter.held_bytes()] == [4, 2, 5, 1]


@pytest.mark.parametrize("piece", [1_000, 70_000, 500_000])
@pytest.mark.parametrize("version", [V3, V5])
def test_a_large_message_in_pieces_is_followed_by_what_came_with_it(
    version: Version, piece: int
) -> None:
    splitter = begun(version)
    splitter.packet_size_max = 4_000_000
    large = Publish(topic=b"t", payload=bytes(range(250)) * 12_000, qos=1, packet_id=7)
    small = Publish(topic=b"u", payload=b"x")
    data = encode(version, large) + encode(version, small)
    events = [
        event
        for start in range(0, len(data), piece)
        for event in splitter.feed(data[start : start + piece])
    ]
    batches = [event for event in events if isinstance(event, PublishBatch)]
    assert [topic for batch in batches for topic in batch.topics] == [b"t", b"u"]
    payloads = [payload for batch in batches for payload in batch.values]
    assert payloads == [large.payload, small.payload]
    assert (batches[0].packet_ids[0], splitter.held_bytes()) == (7, 0)


def test_it_tells_how_much_it_holds_of_a_large_message() -> None:
    splitter = begun(V3)
    splitter.packet_size_max = 4_000_000
    data = encode(V3, Publish(topic=b"t", payload=bytes(3_000_000)))
    held = []
    for start in range(0, 2_000_000, 400_000):
        splitter.feed(data[start : start + 400_000])
        held.append(splitter.held_bytes())
    assert held == [400_000, 800_000, 1_200_000, 1_600_000, 2_000_000]
