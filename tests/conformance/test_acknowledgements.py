"""What a client may answer to a message that it was sent, whatever keeps its session."""

from __future__ import annotations

import pytest

from siltstone.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.conformance.modes import MakeCore, come, make_core
from tests.conformance.versions import both_versions, in_v5, told
from tests.support.broker_core import V5, Core, Wire, message

__all__ = ["make_core"]

WRONG = [(1, PubRec), (1, PubComp), (2, PubAck), (2, PubComp)]


def sent(core: Core, version: Version, qos: int) -> tuple[Wire, int]:
    """Return a client with a window of one that was sent a message, and the packet id of it."""
    window = {"receive_maximum": 1} if version is V5 else {}
    wire = come(core, "c", version, **window)
    wire.subscribe("t", qos=qos)
    other = core.connect("p")
    for number in (1, 2):
        other.send(message("t", "m", qos, number))
        if qos == 2:
            other.send(PubRel(packet_id=number))
    core.run()
    found = [packet for packet in wire.take() if isinstance(packet, Publish)]
    return wire, found[0].packet_id


@both_versions
@pytest.mark.parametrize(("qos", "kind"), WRONG)
def test_mqtt_4_13_1_1_an_acknowledgement_of_another_qos_ends_the_connection(
    make_core: MakeCore, version: Version, qos: int, kind: type[PubAck | PubRec | PubComp]
) -> None:
    wire, packet_id = sent(make_core(), version, qos)
    wire.send(kind(packet_id=packet_id))
    assert told(wire) == in_v5(version, Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize(("qos", "kind"), [(1, PubRec), (2, PubAck)])
def test_mqtt_4_13_1_1_a_refusal_of_another_qos_ends_the_connection(
    make_core: MakeCore, qos: int, kind: type[PubAck | PubRec]
) -> None:
    wire, packet_id = sent(make_core(), V5, qos)
    wire.send(kind(packet_id=packet_id, reason=Reason.UNSPECIFIED_ERROR))
    assert told(wire) == [Reason.PROTOCOL_ERROR]


@both_versions
def test_a_message_whose_pubrec_came_is_not_ended_by_puback(
    make_core: MakeCore, version: Version
) -> None:
    wire, packet_id = sent(make_core(), version, 2)
    assert wire.exchange(PubRec(packet_id=packet_id)) == [PubRel(packet_id=packet_id)]
    wire.send(PubAck(packet_id=packet_id))
    assert told(wire) == in_v5(version, Reason.PROTOCOL_ERROR)


@both_versions
@pytest.mark.parametrize("kind", [PubAck, PubRec, PubComp, PubRel])
def test_an_acknowledgement_of_nothing_is_no_mistake(
    make_core: MakeCore, version: Version, kind: type[PubAck | PubRec | PubComp | PubRel]
) -> None:
    wire = come(make_core(), "c", version)
    reason = Reason.PACKET_IDENTIFIER_NOT_FOUND if version is V5 else Reason.SUCCESS
    answers: dict[type[Packet], list[Packet]] = {
        PubRec: [PubRel(packet_id=9, reason=reason)],
        PubRel: [PubComp(packet_id=9, reason=reason)],
    }
    assert wire.exchange(kind(packet_id=9)) == answers.get(kind, [])
    assert not wire.is_closed


@both_versions
@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_may_be_repeated(make_core: MakeCore, version: Version, qos: int) -> None:
    wire, packet_id = sent(make_core(), version, qos)
    if qos == 2:
        for _ in range(2):
            assert wire.exchange(PubRec(packet_id=packet_id)) == [PubRel(packet_id=packet_id)]
    last = PubAck if qos == 1 else PubComp
    for _ in range(2):
        wire.send(last(packet_id=packet_id))
        assert not [packet for packet in wire.take() if not isinstance(packet, Publish)]
    assert not wire.is_closed
