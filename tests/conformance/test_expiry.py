"""What is left of a message's expiry interval, by every way on which it can wait."""

from __future__ import annotations

import pytest

from siltstone.mqtt.packets import Publish
from tests.conformance.modes import MakeCore, come, make_core
from tests.support.broker_core import V5, Core, Wire

__all__ = ["make_core"]

# How long a message with an interval of 10 s has waited, and what is left of it.
WAITED = pytest.mark.parametrize(
    ("seconds", "left"), [(0.004, 10), (0.999, 10), (1.0, 9), (1.5, 9), (8.999, 2), (9.999, 1)]
)


def publish(core: Core, *, qos: int = 1, retain: bool = False) -> None:
    wire = core.connect("p")
    wire.publish("t", "m", qos, 1 if qos else 0, retain=retain, message_expiry_interval=10)
    core.run()
    wire.drop()
    core.run()


def intervals(wire: Wire) -> list[int | None]:
    wire.core.run()
    return [
        packet.properties.message_expiry_interval
        for packet in wire.take()
        if isinstance(packet, Publish)
    ]


def test_mqtt_3_3_2_6_a_message_that_does_not_wait_keeps_its_interval(make_core: MakeCore) -> None:
    core = make_core()
    wire = come(core, "c", V5)
    wire.subscribe("t")
    publish(core)
    assert intervals(wire) == [10]


@WAITED
@pytest.mark.parametrize("text", ["t", "$share/g/t"])
def test_mqtt_3_3_2_6_no_second_is_taken_from_a_client_that_was_away(
    make_core: MakeCore, text: str, seconds: float, left: int
) -> None:
    core = make_core()
    if type(core) is Core:
        wire = core.connect("c", clean_start=False, session_expiry_interval=3600)
    else:
        wire = come(core, "c", V5)
    wire.subscribe(text)
    wire.drop()
    core.run()
    publish(core)
    core.advance(seconds)
    again = core.connect("c", clean_start=False, session_expiry_interval=3600)
    assert intervals(again) == [left]


@WAITED
def test_mqtt_3_3_2_6_no_second_is_taken_from_a_client_that_does_not_read(
    make_core: MakeCore, seconds: float, left: int
) -> None:
    core = make_core()
    wire = come(core, "c", V5)
    wire.subscribe("t")
    wire.client.pause_writing()
    publish(core)
    core.advance(seconds)
    wire.client.resume_writing()
    assert intervals(wire) == [left]


@WAITED
def test_mqtt_3_3_2_6_no_second_is_taken_from_a_retained_message(
    make_core: MakeCore, seconds: float, left: int
) -> None:
    core = make_core()
    publish(core, retain=True)
    core.advance(seconds)
    wire = come(core, "c", V5)
    wire.arrived.extend(wire.subscribe("t"))
    assert intervals(wire) == [left]


def test_a_retained_message_that_is_sent_again_has_grown_older(make_core: MakeCore) -> None:
    core = make_core()
    publish(core, retain=True)
    wire = core.connect("c", clean_start=False, session_expiry_interval=3600)
    wire.arrived.extend(wire.subscribe("t"))
    assert intervals(wire) == [10]
    wire.drop()
    core.run()
    core.advance(3.5)
    again = core.connect("c", clean_start=False, session_expiry_interval=3600)
    assert intervals(again) == [7]
