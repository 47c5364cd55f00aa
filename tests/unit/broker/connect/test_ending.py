from __future__ import annotations

import pytest

from siltstone.broker.connect.ending import last_packet, last_words
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import ConnAck, Disconnect
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import ALLOWED, Reason, return_code
from siltstone.mqtt.wire import PacketType, Version

V3, V5 = Version.V3_1_1, Version.V5
FAILURES = [reason for reason in Reason if reason >= Reason.UNSPECIFIED_ERROR]


def test_before_connack_the_reason_is_told_by_connack() -> None:
    assert last_packet(V5, Reason.NOT_AUTHORIZED, "no", connected=False) == ConnAck(
        reason=Reason.NOT_AUTHORIZED, properties=Properties(reason_string="no")
    )


def test_after_connack_the_reason_is_told_by_disconnect() -> None:
    assert last_packet(V5, Reason.KEEP_ALIVE_TIMEOUT, "", connected=True) == Disconnect(
        reason=Reason.KEEP_ALIVE_TIMEOUT
    )


def test_3_1_1_is_told_by_a_return_code_without_text() -> None:
    assert last_packet(V3, Reason.SERVER_BUSY, "later", connected=False) == ConnAck(
        reason=Reason.SERVER_BUSY
    )


@pytest.mark.parametrize("reason", FAILURES)
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("version", [V3, V5])
def test_every_reason_is_told_where_the_version_can_and_kept_silent_where_not(
    version: Version, connected: bool, reason: Reason
) -> None:
    packet_type = PacketType.DISCONNECT if connected else PacketType.CONNACK
    if version is V5:
        can = (packet_type, reason) in ALLOWED
    else:
        can = not connected and return_code(reason) is not None
    words = last_words(version, reason, "", connected=connected, size_max=0)
    packet = Disconnect(reason=reason) if connected else ConnAck(reason=reason)
    assert words == (encode(version, packet) if can else b"")


def test_mqtt_3_14_2_3_text_is_left_out_where_the_packet_would_be_too_large() -> None:
    def words(size_max: int) -> bytes:
        return last_words(V5, Reason.PROTOCOL_ERROR, "because", connected=True, size_max=size_max)

    explained = encode(
        V5,
        Disconnect(reason=Reason.PROTOCOL_ERROR, properties=Properties(reason_string="because")),
    )
    bare = encode(V5, Disconnect(reason=Reason.PROTOCOL_ERROR))
    assert [words(0), words(len(explained)), words(len(explained) - 1)] == [
        explained,
        explained,
        bare,
    ]


def test_mqtt_3_1_2_24_who_cannot_take_the_bare_packet_is_told_nothing() -> None:
    size = len(encode(V5, ConnAck(reason=Reason.BANNED)))
    words = [
        last_words(V5, Reason.BANNED, "", connected=False, size_max=limit)
        for limit in (size, size - 1)
    ]
    assert words == [encode(V5, ConnAck(reason=Reason.BANNED)), b""]


def test_text_is_cut_at_two_hundred_characters() -> None:
    words = last_words(V5, Reason.PROTOCOL_ERROR, "x" * 201, connected=True, size_max=0)
    assert words == encode(
        V5,
        Disconnect(reason=Reason.PROTOCOL_ERROR, properties=Properties(reason_string="x" * 200)),
    )
