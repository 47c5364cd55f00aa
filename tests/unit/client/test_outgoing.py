from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.client.outgoing import Outgoing, Publication, ServerLimits
from siltstone.client.packet_ids import PacketIds
from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Publish, PubRel
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PUBREL, encode_acks
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version

V3, V5 = Version.V3_1_1, Version.V5
ONCE = Publication(topic=b"t", qos=1)
EXACTLY = Publication(topic=b"t", qos=2)
LONG = b"plant/oven/temperature"


def outgoing(
    version: Version = V5, *, window: int = 100, limits: ServerLimits | None = None
) -> Outgoing:
    made = Outgoing(version, PacketIds(), window=window)
    made.begin(limits or ServerLimits(), session_present=False)
    return made


def sent(made: Outgoing) -> bytes:
    """Take until there is nothing more."""
    return b"".join(iter(made.take, b""))


def publishes(*payloads: bytes, first: int = 1, qos: int = 1, dup: bool = False) -> bytes:
    return b"".join(
        encode(V5, Publish(topic=b"t", payload=p, qos=qos, packet_id=first + i, dup=dup))
        for i, p in enumerate(payloads)
    )


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_messages_are_sent_as_the_codec_encodes_them(
    version: Version, qos: int, retain: bool
) -> None:
    made = outgoing(version)
    made.add(Publication(topic=b"a/b", qos=qos, retain=retain), [b"x", b""])
    packet = Publish(topic=b"a/b", payload=b"x", qos=qos, retain=retain)
    expected = [
        replace(packet, packet_id=1 if qos else 0),
        replace(packet, payload=b"", packet_id=2 if qos else 0),
    ]
    assert sent(made) == b"".join(encode(version, item) for item in expected)


def test_properties_go_with_every_message() -> None:
    made = outgoing()
    made.add(Publication(topic=b"t", properties=b"\x03\x00\x01x"), [b"1", b"2"])
    properties = Properties(content_type="x")
    assert sent(made) == b"".join(
        encode(V5, Publish(topic=b"t", payload=p, properties=properties)) for p in (b"1", b"2")
    )


def test_qos_0_is_done_when_it_is_sent() -> None:
    made = outgoing()
    made.add(Publication(topic=b"t"), [b"1", b"2"])
    assert (made.idle, made.unacknowledged, made.completed) == (False, 2, 0)
    sent(made)
    assert (made.idle, made.unacknowledged, made.completed) == (True, 0, 2)


def test_qos_1_is_done_when_it_is_acknowledged() -> None:
    made = outgoing()
    made.add(ONCE, [b"1", b"2"])
    sent(made)
    made.receive(PUBACK, [2])
    assert (made.idle, made.unacknowledged, made.completed) == (False, 1, 1)
    made.receive(PUBACK, [1])
    assert (made.idle, made.unacknowledged, made.completed) == (True, 0, 2)


def test_qos_2_is_done_when_it_is_complete() -> None:
    made = outgoing()
    made.add(EXACTLY, [b"1"])
    assert sent(made) == publishes(b"1", qos=2)
    made.receive(PUBREC, [1])
    assert (made.idle, made.unacknowledged, made.completed) == (False, 1, 0)
    assert sent(made) == encode(V5, PubRel(packet_id=1))
    assert made.idle is False
    made.receive(PUBCOMP, [1])
    assert (made.idle, made.completed) == (True, 1)


def test_acknowledgements_of_nothing_known_change_nothing() -> None:
    made = outgoing()
    made.add(ONCE, [b"1"])
    sent(made)
    made.receive(PUBACK, [9])
    made.receive(PUBCOMP, [1])
    assert (made.unacknowledged, made.completed) == (1, 0)


def test_mqtt_4_3_3_4_a_pubrec_is_answered_also_when_its_message_is_long_done() -> None:
    made = outgoing()
    made.receive(PUBREC, [5])
    assert sent(made) == encode(V5, PubRel(packet_id=5))
    assert made.idle


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_are_in_flight_than_the_server_receives(qos: int) -> None:
    made = outgoing(limits=ServerLimits(receive_max=2))
    made.add(Publication(topic=b"t", qos=qos), [b"1", b"2", b"3"])
    assert sent(made) == publishes(b"1", b"2", qos=qos)
    made.receive(PUBACK if qos == 1 else PUBREC, [1])
    # [MQTT-4.9.0-2]: QoS 2 gives room at PUBCOMP, not at PUBREC.
    room = publishes(b"3", first=3) if qos == 1 else encode(V5, PubRel(packet_id=1))
    assert sent(made) == room
    made.receive(PUBCOMP, [1])
    assert sent(made) == (b"" if qos == 1 else publishes(b"3", first=3, qos=2))


def test_no_more_are_in_flight_than_the_window() -> None:
    made = outgoing(window=1)
    made.add(ONCE, [b"1", b"2"])
    assert sent(made) == publishes(b"1")
    made.receive(PUBACK, [1])
    assert sent(made) == publishes(b"2", first=2)


def test_messages_of_qos_0_wait_for_those_before_them() -> None:
    made = outgoing(window=1)
    made.add(ONCE, [b"1", b"2"])
    made.add(Publication(topic=b"t"), [b"0"])
    assert sent(made) == publishes(b"1")
    made.receive(PUBACK, [1])
    last = encode(V5, Publish(topic=b"t", payload=b"0"))
    assert sent(made) == publishes(b"2", first=2) + last


def test_a_piece_is_bounded_in_bytes_and_a_large_message_goes_alone() -> None:
    made = outgoing()
    large = bytes(300_000)
    made.add(ONCE, [large, b"1", bytes(200_000), bytes(200_000)])
    pieces = list(iter(made.take, b""))
    assert [len(piece) // 1000 for piece in pieces] == [300, 0, 200, 200]
    assert b"".join(pieces) == publishes(large, b"1", bytes(200_000), bytes(200_000))


def test_bytes_in_flight_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.client.outgoing._INFLIGHT_BYTES_MAX", 700_000)
    made = outgoing()
    payloads = [bytes(200_000)] * 5
    made.add(ONCE, payloads)
    assert sent(made) == publishes(*payloads[:4])
    made.receive(PUBACK, [1])
    assert sent(made) == publishes(payloads[4], first=5)


def test_a_session_that_was_kept_gets_the_same_packets_again_with_dup() -> None:
    made = outgoing()
    made.add(ONCE, [b"1", b"2", b"3"])
    made.add(EXACTLY, [b"4", b"5"])
    sent(made)
    made.receive(PUBACK, [2])
    made.receive(PUBREC, [4])
    made.begin(ServerLimits(), session_present=True)
    assert sent(made) == (
        encode(V5, PubRel(packet_id=4))
        + publishes(b"1", dup=True)
        + publishes(b"3", first=3, dup=True)
        + publishes(b"5", first=5, qos=2, dup=True)
    )
    made.receive(PUBACK, [1, 3])
    made.receive(PUBREC, [5])
    made.receive(PUBCOMP, [4, 5])
    assert sent(made) == encode(V5, PubRel(packet_id=5))
    assert (made.idle, made.completed) == (True, 5)


def test_a_session_that_was_lost_gets_new_messages_in_the_old_order() -> None:
    made = outgoing(window=4)
    made.add(ONCE, [b"1", b"2"])
    made.add(EXACTLY, [b"3", b"4", b"5", b"6"])
    sent(made)
    made.receive(PUBACK, [1])
    made.receive(PUBREC, [3])
    made.begin(ServerLimits(), session_present=False)
    # What was released is the server's, so 3 is done; 5 and 6 were never sent.
    assert made.completed == 2
    assert sent(made) == publishes(b"2", first=5) + publishes(b"4", b"5", b"6", first=6, qos=2)
    assert made.unacknowledged == 4


def test_a_resend_keeps_to_the_limit_of_the_new_connection() -> None:
    made = outgoing()
    made.add(ONCE, [b"1", b"2", b"3"])
    sent(made)
    made.begin(ServerLimits(receive_max=1), session_present=True)
    assert sent(made) == publishes(b"1", dup=True)
    made.receive(PUBACK, [1])
    assert sent(made) == publishes(b"2", first=2, dup=True)
    made.receive(PUBACK, [2])
    made.add(ONCE, [b"4"])
    assert sent(made) == publishes(b"3", first=3, dup=True)
    made.receive(PUBACK, [3])
    assert sent(made) == publishes(b"4", first=4)


def test_a_resend_is_cut_into_pieces() -> None:
    made = outgoing()
    payloads = [bytes(200_000)] * 3
    made.add(ONCE, payloads)
    sent(made)
    made.begin(ServerLimits(), session_present=True)
    pieces = list(iter(made.take, b""))
    assert [len(piece) // 1000 for piece in pieces] == [400, 200]
    assert b"".join(pieces) == publishes(*payloads, dup=True)


def test_an_answer_to_what_is_still_to_be_resent_ends_it() -> None:
    made = outgoing()
    made.add(ONCE, [b"1", b"2"])
    sent(made)
    made.begin(ServerLimits(), session_present=True)
    made.receive(PUBACK, [1])
    assert sent(made) == publishes(b"2", first=2, dup=True)


def test_a_long_topic_is_sent_once_where_the_server_takes_aliases() -> None:
    made = outgoing(limits=ServerLimits(topic_alias_max=1))
    made.add(Publication(topic=LONG), [b"1", b"2"])
    made.add(Publication(topic=LONG, retain=True), [b"3"])
    made.add(Publication(topic=LONG + b"s"), [b"4"])
    alias = Properties(topic_alias=1)
    packets = [
        Publish(topic=LONG, payload=b"1", properties=alias),
        Publish(topic=b"", payload=b"2", properties=alias),
        Publish(topic=b"", payload=b"3", retain=True, properties=alias),
        Publish(topic=LONG + b"s", payload=b"4"),
    ]
    assert sent(made) == b"".join(encode(V5, packet) for packet in packets)


def test_a_new_connection_knows_no_alias_and_a_resend_uses_none() -> None:
    made = outgoing(limits=ServerLimits(topic_alias_max=5))
    publication = Publication(topic=LONG, qos=1)
    made.add(publication, [b"1"])
    sent(made)
    made.begin(ServerLimits(topic_alias_max=5), session_present=True)
    made.add(publication, [b"2"])
    packet = Publish(topic=LONG, payload=b"1", qos=1, packet_id=1, dup=True)
    alias = Properties(topic_alias=1)
    new = Publish(topic=LONG, payload=b"2", qos=1, packet_id=2, properties=alias)
    assert sent(made) == encode(V5, packet) + encode(V5, new)


@pytest.mark.parametrize("room", [0, 1])
def test_the_largest_packet_is_sent_and_a_larger_one_refused(room: int) -> None:
    size = len(encode(V5, Publish(topic=LONG, payload=bytes(50))))
    made = outgoing(limits=ServerLimits(topic_alias_max=1, packet_size_max=size - 1 + room))
    made.add(Publication(topic=LONG), [bytes(50)])
    if room:
        # An alias would not fit beside its topic.
        assert sent(made) == encode(V5, Publish(topic=LONG, payload=bytes(50)))
    else:
        with pytest.raises(UsageError, match="too large for the server: size_bytes=50"):
            made.take()


def test_a_resend_too_large_for_the_new_connection_is_refused() -> None:
    made = outgoing()
    made.add(ONCE, [bytes(50)])
    sent(made)
    made.begin(ServerLimits(packet_size_max=50), session_present=True)
    with pytest.raises(UsageError, match="too large for the server"):
        made.take()


@pytest.mark.parametrize(
    ("limits", "publication", "complaint"),
    [
        (ServerLimits(qos_max=1), EXACTLY, "takes no message of this QoS: qos=2 max=1"),
        (
            ServerLimits(retain=False),
            Publication(topic=b"t", retain=True),
            "the server does not support retained messages",
        ),
    ],
)
def test_what_the_server_does_not_support_is_not_sent(
    limits: ServerLimits, publication: Publication, complaint: str
) -> None:
    made = outgoing(limits=limits)
    made.add(publication, [b"x"])
    with pytest.raises(UsageError, match=complaint):
        made.take()


def test_a_refused_message_ends_publishing_but_not_what_is_in_flight() -> None:
    made = outgoing(window=2)
    made.add(ONCE, [b"1", b"2", b"3"])
    sent(made)
    made.refuse(1, Reason.QUOTA_EXCEEDED)
    made.refuse(9, Reason.NOT_AUTHORIZED)
    made.add(ONCE, [b"4"])
    assert (sent(made), made.refusal, made.idle) == (b"", Reason.QUOTA_EXCEEDED, False)
    made.receive(PUBACK, [2])
    assert (made.idle, made.completed, made.unacknowledged) == (True, 1, 0)


def test_the_limits_of_a_server_are_those_of_the_protocol_unless_told() -> None:
    told = Properties(
        receive_maximum=20,
        maximum_packet_size=100,
        topic_alias_maximum=10,
        maximum_qos=1,
        retain_available=0,
    )
    assert ServerLimits.told_by(told) == ServerLimits(
        receive_max=20, packet_size_max=100, topic_alias_max=10, qos_max=1, retain=False
    )
    assert ServerLimits.told_by(NO_PROPERTIES) == ServerLimits(
        receive_max=65_535,
        packet_size_max=268_435_460,
        topic_alias_max=0,
        qos_max=2,
        retain=True,
    )
    assert ServerLimits.told_by(Properties(maximum_qos=0)).qos_max == 0


def refusing(made: Outgoing) -> list[tuple[bytes, str]]:
    """Let somebody take what the server does not; return where it goes."""
    refused: list[tuple[bytes, str]] = []
    made.on_refused = lambda publication, payload, why: refused.append((payload, why))
    return refused


def test_refused_messages_go_to_who_takes_them_and_the_others_go_on() -> None:
    made = outgoing(window=2)
    refused = refusing(made)
    made.begin(ServerLimits(), session_present=False)
    made.add(Publication(topic=b"t", qos=1), [b"1", b"2", b"3"])
    made.take()
    made.refuse(1, Reason.NOT_AUTHORIZED)
    made.refuse(9, Reason.NOT_AUTHORIZED)
    assert refused == [(b"1", "refused by the server: not authorized (0x87)")]
    assert (made.refusal, made.queued, made.completed) == (None, 1, 1)
    made.take()
    made.receive(PUBACK, [2, 3])
    assert (made.idle, made.completed) == (True, 3)


def test_messages_too_large_for_the_server_are_left_out_however_many() -> None:
    made = outgoing()
    refused = refusing(made)
    made.begin(ServerLimits(packet_size_max=50), session_present=False)
    for number in range(3000):
        made.add(Publication(topic=b"t/%d" % number, qos=1), [bytes(60)])
    made.add(Publication(topic=b"t", qos=1), [b"1", bytes(60), b"2"])
    made.take()
    assert len(refused) == 3001
    assert refused[0] == (
        bytes(60),
        "message is too large for the server: size_bytes=60 packet_size_max=50",
    )
    made.receive(PUBACK, [1, 2])
    assert (made.idle, made.completed) == (True, 3003)


def test_a_resend_too_large_for_the_new_connection_is_left_out_too() -> None:
    made = outgoing()
    refused = refusing(made)
    made.begin(ServerLimits(), session_present=False)
    made.add(Publication(topic=b"t", qos=1), [bytes(60)])
    made.take()
    made.begin(ServerLimits(packet_size_max=50), session_present=True)
    assert (made.limits, made.take()) == (ServerLimits(packet_size_max=50), b"")
    assert ([payload for payload, _ in refused], made.idle) == ([bytes(60)], True)


@pytest.mark.parametrize("session_present", [True, False])
def test_ids_of_an_earlier_life_are_released_once_where_the_server_kept_the_session(
    session_present: bool,
) -> None:
    made = Outgoing(V5, PacketIds(), window=100)
    made.disown()
    made.begin(ServerLimits(), session_present=session_present)
    released = encode_acks(PUBREL, list(range(1, 65_536)), 0) if session_present else b""
    assert (made.take(), made.idle) == (released, True)
    made.begin(ServerLimits(), session_present=True)
    assert made.take() == b""
