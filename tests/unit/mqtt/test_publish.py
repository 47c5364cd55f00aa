from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    encode_acks,
    encode_publishes,
    too_large,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.packets import V3, V5

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


@BOTH
def test_mqtt_3_1_2_24_messages_beyond_the_limit_of_the_receiver_are_found(
    version: Version,
) -> None:
    payloads = [b"x" * size for size in SIZES]
    topics = [b"a"] * len(SIZES)
    flags = [index % 3 for index in range(len(SIZES))]
    for properties in ([], [CONTENT_TYPE] * len(SIZES)):
        sizes = [
            len(encode_publishes(version, [b"a"], [payload], [flag], [1], properties[:1]))
            for payload, flag in zip(payloads, flags, strict=True)
        ]
        for limit in {*sizes, *(size - 1 for size in sizes)}:
            expected = [index for index, size in enumerate(sizes) if size > limit]
            assert too_large(version, topics, payloads, flags, properties, limit) == expected


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
