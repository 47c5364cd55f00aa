from __future__ import annotations

import pytest

from siltstone.mqtt.reason import (
    ALLOWED,
    OF_RETURN_CODE,
    PACKETS_WITH,
    Reason,
    ReturnCode,
    return_code,
)
from siltstone.mqtt.wire import PacketType

# Table 2-6 of MQTT 5, by packet: the codes that the tables of 3.2 to 3.15 list.
CODES = {
    PacketType.CONNACK: "00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f",
    PacketType.PUBACK: "00 10 80 83 87 90 91 97 99",
    PacketType.PUBREC: "00 10 80 83 87 90 91 97 99",
    PacketType.PUBREL: "00 92",
    PacketType.PUBCOMP: "00 92",
    PacketType.SUBACK: "00 01 02 80 83 87 8f 91 97 9e a1 a2",
    PacketType.UNSUBACK: "00 11 80 83 87 8f 91",
    PacketType.DISCONNECT: "00 04 80 81 82 83 87 89 8b 8c 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b"
    " 9c 9d 9e 9f a0 a1 a2",
    PacketType.AUTH: "00 18 19",
}


@pytest.mark.parametrize("packet_type", PacketType)
def test_each_packet_has_the_reasons_that_its_table_lists(packet_type: PacketType) -> None:
    allowed = bytes(sorted(code for kind, code in ALLOWED if kind == packet_type))
    assert allowed == bytes.fromhex(CODES.get(packet_type, ""))


def test_every_reason_has_a_place() -> None:
    assert sorted(PACKETS_WITH) == sorted(Reason)


def test_zero_has_a_name_for_each_use() -> None:
    names = {name for name, reason in Reason.__members__.items() if reason is Reason(0)}
    assert names == {"SUCCESS", "NORMAL_DISCONNECTION", "GRANTED_QOS_0"}


def test_a_return_code_reads_as_a_reason_and_back() -> None:
    assert {code: return_code(reason) for code, reason in OF_RETURN_CODE.items()} == {
        code: code for code in ReturnCode
    }


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.SERVER_BUSY, ReturnCode.SERVER_UNAVAILABLE),
        (Reason.BANNED, ReturnCode.NOT_AUTHORIZED),
        (Reason.MALFORMED_PACKET, None),
        (Reason.PROTOCOL_ERROR, None),
    ],
)
def test_mqtt311_3_2_2_6_a_reason_without_return_code_has_no_connack(
    reason: Reason, code: ReturnCode | None
) -> None:
    assert return_code(reason) is code
