from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from siltstone.mqtt.packets import Packet, PubAck
from siltstone.mqtt.wire import PacketType
from tests.support.packets import EXAMPLES


def test_there_is_a_packet_for_each_type() -> None:
    names = {packet.__name__.upper() for packet in get_args(Packet)}
    assert names == {packet_type.name for packet_type in PacketType} - {"WILL"}


def test_every_packet_has_an_example() -> None:
    assert {type(example.packet) for example in EXAMPLES} == set(get_args(Packet))


@pytest.mark.parametrize("packet", get_args(Packet))
def test_a_packet_takes_its_fields_by_name_and_no_others(packet: type) -> None:
    assert all(field.kw_only for field in fields(packet))
    assert "__dict__" not in vars(packet)


def test_a_packet_does_not_change() -> None:
    packet = PubAck(packet_id=1)
    with pytest.raises(FrozenInstanceError):
        packet.packet_id = 2  # type: ignore[misc]
