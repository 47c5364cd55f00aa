"""MQTT 3.1 and 3.2: who is let in, on which terms, and what the answer says."""

from __future__ import annotations

from string import ascii_letters, digits

import pytest

from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.conformance.versions import both_versions, in_v5, kept, told
from tests.support.broker_core import V3, V5, Core, message

ANY = Subscription(filter=TopicFilter.parse("#"))
WILL = Will(topic=b"will", payload=b"gone")
REFUSED_V3 = b"\x20\x02\x00"


def malformed_connect(version: Version, *, flags: str = "02", payload: str = "0001 63") -> bytes:
    """Return CONNECT with these flags and payload, right or wrong."""
    properties = "00" if version is V5 else ""
    body = bytes.fromhex(f"0004 4d515454 {version:02x} {flags} 0000 {properties} {payload}")
    return bytes([0x10, len(body)]) + body


@both_versions
@pytest.mark.parametrize(
    "packet",
    [
        PingReq(),
        Disconnect(),
        Publish(topic=b"t", payload=b"x"),
        Subscribe(packet_id=1, subscriptions=(ANY,)),
        PubAck(packet_id=1),
    ],
)
def test_mqtt_3_1_0_1_whoever_begins_with_another_packet_is_closed_without_a_word(
    version: Version, packet: Packet
) -> None:
    core = Core()
    wire = core.wire(version)
    assert wire.exchange(packet) == []
    assert (wire.is_closed, core.database.rows) == (True, [])


def test_mqtt_3_1_0_1_auth_is_no_first_packet_either() -> None:
    wire = Core().wire()
    assert wire.exchange(Auth()) == []
    assert wire.is_closed


@both_versions
def test_mqtt_3_1_0_2_a_second_connect_ends_the_connection(version: Version) -> None:
    wire = Core().connect("c", version=version)
    wire.send(Connect(version=version, client_id="c"))
    assert told(wire) == in_v5(version, Reason.PROTOCOL_ERROR)


def test_mqtt_3_1_2_1_another_protocol_name_is_answered_in_the_old_way_and_closed() -> None:
    wire = Core().wire(V3)
    # What clients of MQTT 3.1 say.
    wire.send_bytes(bytes.fromhex("10 0f 0006 4d5149736470 03 02 0000 0001 63"))
    assert wire.take() == [ConnAck(reason=Reason.UNSUPPORTED_PROTOCOL_VERSION)]
    assert wire.is_closed


@pytest.mark.parametrize(
    ("level", "version"), [("03", V3), ("00", V3), ("06", V5), ("83", V3), ("85", V3)]
)
def test_mqtt_3_1_2_2_another_level_is_refused_and_closed(level: str, version: Version) -> None:
    wire = Core().wire(version)
    wire.send_bytes(bytes.fromhex(f"10 0d 0004 4d515454 {level} 02 0000 0001 63"))
    (answer,) = wire.take()
    assert isinstance(answer, ConnAck)
    assert answer.reason is Reason.UNSUPPORTED_PROTOCOL_VERSION
    assert wire.is_closed


def test_mqtt311_3_1_2_2_another_level_has_return_code_1() -> None:
    refused = ConnAck(reason=Reason.UNSUPPORTED_PROTOCOL_VERSION)
    assert encode(V3, refused) == REFUSED_V3 + b"\x01"


@both_versions
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        # The reserved flag; a will without its fields; QoS 3 of a will; a name that is not there.
        ("03", "0001 63"),
        ("06", "0001 63"),
        ("1e", "0001 63 0001 77 0000"),
        ("82", "0001 63"),
        ("c2", "0001 63 0001 75"),
        ("02", ""),
    ],
)
def test_mqtt_3_1_4_1_a_connect_against_its_format_is_closed(
    version: Version, flags: str, payload: str
) -> None:
    wire = Core().wire(version)
    wire.send_bytes(malformed_connect(version, flags=flags, payload=payload))
    answer = wire.take()
    reasons = [packet.reason for packet in answer if isinstance(packet, ConnAck)]
    assert reasons == in_v5(version, Reason.MALFORMED_PACKET)
    assert (len(answer), wire.is_closed) == (len(reasons), True)


@both_versions
def test_mqtt_3_1_2_3_the_reserved_flag_ends_the_connection(version: Version) -> None:
    wire = Core().wire(version)
    wire.send_bytes(malformed_connect(version, flags="03"))
    assert [type(packet) for packet in wire.take()] == [ConnAck] * (version is V5)
    assert wire.is_closed


@both_versions
@pytest.mark.parametrize("payload", ["0001 63", "0001 63 0001 77", "0001 63 00"])
def test_mqtt_3_1_2_9_a_will_without_its_fields_is_refused(version: Version, payload: str) -> None:
    core = Core()
    wire = core.wire(version)
    wire.send_bytes(malformed_connect(version, flags="06", payload=payload))
    wire.take()
    assert (wire.is_closed, wire.accepted and wire.accepted.reason, len(core.broker.clients)) == (
        True,
        Reason.MALFORMED_PACKET if version is V5 else None,
        0,
    )


@both_versions
def test_mqtt_3_1_2_22_one_and_a_half_keep_alives_of_silence_end_the_connection(
    version: Version,
) -> None:
    core = Core()
    wire = core.connect("c", version=version, keep_alive_seconds=10)
    core.advance(14.9)
    assert not wire.is_closed
    assert wire.exchange(PingReq()) == [PingResp()]
    core.advance(14.9)
    assert not wire.is_closed
    core.advance(0.2)
    assert wire.take() == ([Disconnect(reason=Reason.KEEP_ALIVE_TIMEOUT)] if version is V5 else [])
    assert wire.is_closed


@both_versions
def test_mqtt_3_1_2_22_a_part_of_a_packet_is_no_sign_of_life(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version, keep_alive_seconds=10)
    for byte in b"\x30\x50\x00":
        core.advance(4.9)
        wire.send_bytes(bytes([byte]))
    assert not wire.is_closed
    core.advance(4.9)
    assert wire.is_closed


@both_versions
def test_mqtt_3_1_2_22_a_keep_alive_of_0_is_none(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version, keep_alive_seconds=0)
    core.advance(1_000_000)
    assert wire.exchange(PingReq()) == [PingResp()]


def test_mqtt_3_2_2_22_without_a_server_keep_alive_that_of_the_client_holds() -> None:
    core = Core(keep_alive_max=60)
    wire = core.connect("c", keep_alive_seconds=60)
    assert wire.accepted is not None
    assert wire.accepted.properties.server_keep_alive is None
    core.advance(89.9)
    assert not wire.is_closed
    core.advance(0.2)
    assert wire.is_closed


@pytest.mark.parametrize("asked", [0, 61, 65_535])
def test_a_server_keep_alive_is_told_and_held(asked: int) -> None:
    core = Core(keep_alive_max=60)
    wire = core.connect("c", keep_alive_seconds=asked)
    assert wire.accepted is not None
    assert wire.accepted.properties.server_keep_alive == 60
    core.advance(90.1)
    assert wire.is_closed


def test_mqtt_3_1_2_28_response_information_is_never_given() -> None:
    for asked in (0, 1):
        wire = Core().connect("c", request_response_information=asked)
        assert wire.accepted is not None
        assert wire.accepted.properties.response_information is None


@both_versions
def test_mqtt_3_1_3_2_each_client_id_has_a_state_of_its_own(version: Version) -> None:
    core = Core()
    for client_id in ("one", "two"):
        wire = core.connect(client_id, version=version, **kept(version))
        wire.subscribe(f"for/{client_id}", qos=1)
        wire.drop()
    publisher = core.connect("p")
    publisher.publish("for/one", "1", 1, 1)
    publisher.publish("for/two", "2", 1, 2)
    found = {
        client_id: core.connect(client_id, version=version, **kept(version)).take()
        for client_id in ("one", "two")
    }
    assert found == {
        "one": [message("for/one", "1", 1, 1)],
        "two": [message("for/two", "2", 1, 1)],
    }


@both_versions
@pytest.mark.parametrize(
    "client_id", ["a", "Z", "0", ascii_letters[:23], ascii_letters[23:46], digits + "vwxyzABCDEFGH"]
)
def test_mqtt_3_1_3_5_letters_and_digits_up_to_23_are_a_client_id(
    version: Version, client_id: str
) -> None:
    core = Core()
    core.connect(client_id, version=version)
    assert list(core.broker.clients) == [client_id]


@both_versions
def test_mqtt_3_1_3_6_who_brings_no_client_id_gets_one_that_nobody_has(version: Version) -> None:
    core = Core()
    core.connect("", version=version)
    core.connect("", version=version)
    assert len(core.broker.clients) == 2
    assert all(core.broker.clients)


def test_mqtt_3_1_3_7_the_assigned_client_id_is_told_and_used() -> None:
    core = Core()
    first, second = core.connect(""), core.connect("", clean_start=False)
    told = [
        wire.accepted.properties.assigned_client_identifier
        for wire in (first, second)
        if wire.accepted is not None
    ]
    assert told == list(core.broker.clients)
    # Whoever comes back under that name is the same client.
    assert told[0] is not None
    core.connect(told[0])
    assert first.is_closed


def test_mqtt_3_2_2_16_only_who_brings_no_client_id_is_told_one() -> None:
    wire = Core().connect("mine")
    assert wire.accepted is not None
    assert wire.accepted.properties.assigned_client_identifier is None


@both_versions
def test_mqtt_3_1_3_8_a_client_id_beyond_the_limit_is_refused_and_closed(version: Version) -> None:
    wire = Core(client_id_size_max=30).wire(version)
    assert wire.connect("i" * 31) == [ConnAck(reason=Reason.CLIENT_IDENTIFIER_NOT_VALID)]
    assert wire.is_closed


def test_mqtt311_3_1_3_8_no_client_id_and_a_session_to_keep_is_refused_and_closed() -> None:
    wire = Core().wire(V3)
    wire.send_bytes(malformed_connect(V3, flags="00", payload="0000"))
    assert wire.take() == [ConnAck(reason=Reason.CLIENT_IDENTIFIER_NOT_VALID)]
    assert wire.is_closed
    assert encode(V3, ConnAck(reason=Reason.CLIENT_IDENTIFIER_NOT_VALID)) == REFUSED_V3 + b"\x02"


@both_versions
def test_mqtt_3_1_4_2_who_may_not_come_in_is_told_and_closed(version: Version) -> None:
    core = Core()
    wire = core.wire(version)
    wire.anonymous_allowed = False
    assert wire.connect("c") == []
    # Failures are answered slowly.
    core.advance(10)
    assert wire.take() == [ConnAck(reason=Reason.NOT_AUTHORIZED)]
    assert wire.is_closed


@both_versions
def test_mqtt_3_1_4_3_the_same_client_id_again_ends_the_connection_before(version: Version) -> None:
    core = Core()
    first = core.connect("c", version=version)
    second = core.connect("c", version=version)
    told = [Disconnect(reason=Reason.SESSION_TAKEN_OVER)] if version is V5 else []
    assert (first.take(), first.is_closed) == (told, True)
    assert second.exchange(PingReq()) == [PingResp()]


@both_versions
def test_mqtt_3_1_4_5_an_accepted_connect_is_answered_with_success(version: Version) -> None:
    wire = Core().wire(version)
    (answer,) = wire.connect("c")
    assert isinstance(answer, ConnAck)
    assert (answer.reason, answer.session_present, wire.is_closed) == (Reason.SUCCESS, False, False)


@both_versions
def test_mqtt_3_1_4_6_nothing_behind_a_refused_connect_is_processed(version: Version) -> None:
    core = Core(client_id_size_max=30)
    subscriber = core.connect("s")
    subscriber.subscribe("#")
    wire = core.wire(version)
    wire.send(Connect(version=version, client_id="i" * 31), message("t", "m", 1, 1), PingReq())
    assert [type(packet) for packet in wire.take()] == [ConnAck]
    assert (wire.is_closed, subscriber.take(), core.database.rows) == (True, [], [])


@both_versions
def test_what_is_sent_behind_connect_waits_until_it_is_accepted(version: Version) -> None:
    core = Core()
    wire = core.wire(version)
    wire.send(
        Connect(version=version, client_id="c"),
        Subscribe(packet_id=7, subscriptions=(ANY,)),
        message("t", "m"),
    )
    assert [type(packet) for packet in wire.take()] == [ConnAck, SubAck, Publish]


@both_versions
def test_mqtt_3_2_0_1_connack_comes_before_all_that_waits(
    version: Version,
) -> None:
    core = Core()
    away = core.connect("c", version=version, **kept(version))
    away.subscribe("t", qos=1)
    away.drop()
    core.connect("p").publish("t", "waits", 1, 1)
    wire = core.wire(version)
    assert [type(packet) for packet in wire.connect("c", **kept(version))] == [ConnAck, Publish]


@both_versions
def test_mqtt_3_2_0_2_no_second_connack_is_sent(version: Version) -> None:
    wire = Core().connect("c", version=version)
    answers = wire.exchange(PingReq(), Connect(version=version, client_id="c"))
    assert [packet for packet in answers if isinstance(packet, ConnAck)] == []


@both_versions
def test_mqtt_3_2_2_1_the_flags_of_connack_are_the_session_bit_alone(version: Version) -> None:
    flags = {
        present: encode(version, ConnAck(session_present=present))[2] for present in (False, True)
    }
    assert flags == {False: 0, True: 1}


@both_versions
def test_mqtt_3_2_2_2_a_clean_start_finds_no_session(version: Version) -> None:
    core = Core()
    core.connect("c", version=version, **kept(version)).drop()
    wire = core.connect("c", version=version, **kept(version) | {"clean_start": True})
    assert wire.accepted is not None
    assert (wire.accepted.session_present, wire.accepted.reason) == (False, Reason.SUCCESS)


@both_versions
def test_mqtt_3_2_2_3_the_session_bit_says_whether_there_was_one(version: Version) -> None:
    core = Core()
    present = []
    for _ in range(2):
        wire = core.connect("c", version=version, **kept(version))
        assert wire.accepted is not None
        present.append((wire.accepted.session_present, wire.accepted.reason))
        wire.drop()
    assert present == [(False, Reason.SUCCESS), (True, Reason.SUCCESS)]


@both_versions
def test_mqtt_3_2_2_6_a_refusal_says_that_there_is_no_session(version: Version) -> None:
    core = Core(connections_max=1)
    core.connect("c", version=version, **kept(version)).drop()
    core.connect("other")
    wire = core.wire(version)
    (answer,) = wire.connect("c", **kept(version))
    assert isinstance(answer, ConnAck)
    refused = Reason.SERVER_BUSY if version is V5 else Reason.SERVER_UNAVAILABLE
    assert (answer.session_present, answer.reason) == (False, refused)


@both_versions
def test_mqtt_3_2_2_7_a_refusal_closes_the_connection(version: Version) -> None:
    core = Core(connections_max=1)
    core.connect("other")
    wire = core.wire(version)
    assert [type(packet) for packet in wire.connect("c")] == [ConnAck]
    assert wire.is_closed


def test_mqtt311_3_2_2_6_what_has_no_return_code_is_closed_without_connack() -> None:
    wire = Core().wire(V3)
    assert wire.connect("c", will=Will(topic=b"$SYS/x", payload=b"")) == []
    assert wire.is_closed


def test_mqtt_3_2_2_9_every_qos_is_taken_so_that_no_maximum_is_told() -> None:
    wire = Core().connect("c")
    assert wire.accepted is not None
    assert wire.accepted.properties == Properties(
        receive_maximum=1024, topic_alias_maximum=10, maximum_packet_size=16 * 1024 * 1024
    )
    for qos, answers in ((0, 0), (1, 1), (2, 1)):
        assert len(wire.publish("t", qos=qos, packet_id=qos)) == answers
    assert not wire.is_closed


def test_mqtt_3_2_2_10_every_qos_may_be_asked_for() -> None:
    wire = Core().connect("c")
    for qos in (0, 1, 2):
        assert wire.subscribe(f"t/{qos}", qos=qos) == []


@both_versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_2_2_12_a_will_may_have_every_qos(version: Version, qos: int) -> None:
    core = Core()
    watcher = core.connect("w")
    watcher.subscribe("will")
    will = Will(topic=b"will", payload=b"gone", qos=qos)
    core.connect("c", version=version, will=will).drop()
    (seen,) = watcher.take()
    assert isinstance(seen, Publish)
    assert (seen.payload, seen.qos) == (b"gone", qos)


@both_versions
def test_mqtt_3_2_2_13_a_will_may_be_retained(version: Version) -> None:
    core = Core()
    core.connect("c", version=version, will=Will(topic=b"t", payload=b"x", retain=True)).drop()
    core.run()
    assert len(core.broker.retained) == 1


def test_mqtt_3_2_2_19_a_reason_string_is_left_out_where_it_does_not_fit() -> None:
    core = Core(connections_max=1)
    core.connect("other")
    wide, narrow = core.wire(), core.wire()
    (told,) = wide.connect("c")
    assert isinstance(told, ConnAck)
    assert (told.reason, told.properties.reason_string) == (
        Reason.SERVER_BUSY,
        "too many clients are connected: limits.connections_max is reached",
    )
    assert narrow.connect("c", maximum_packet_size=20) == [ConnAck(reason=Reason.SERVER_BUSY)]
    assert narrow.is_closed


def test_mqtt_3_1_2_24_who_cannot_take_connack_is_refused() -> None:
    wire = Core().wire()
    assert wire.connect("c", maximum_packet_size=10) == [ConnAck(reason=Reason.PACKET_TOO_LARGE)]
    assert wire.is_closed


def test_mqtt_3_2_2_20_connack_has_no_user_properties() -> None:
    core = Core(connections_max=1)
    accepted = core.connect("c", user_properties=(("a", "b"),)).accepted
    (refused,) = core.wire().connect("d", user_properties=(("a", "b"),))
    assert accepted is not None
    assert isinstance(refused, ConnAck)
    assert (accepted.properties.user_properties, refused.properties.user_properties) == ((), ())
