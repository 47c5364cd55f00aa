"""How a connection is told that it ends, and why."""

from __future__ import annotations

from typing import Final

from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import ConnAck, Disconnect
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import ALLOWED, Reason, return_code
from siltstone.mqtt.wire import PacketType, Version

_TEXT_MAX: Final = 200


def last_words(
    version: Version, reason: Reason, text: str, *, connected: bool, size_max: int
) -> bytes:
    """Return the packet with which a connection ends; nothing where the version has none.

    What explains the reason is left out where the client takes no packet of that size
    [MQTT-3.2.2-19], [MQTT-3.14.2-3]. A limit of 0 is none.
    """
    for explanation in (text[:_TEXT_MAX], ""):
        packet = last_packet(version, reason, explanation, connected=connected)
        data = b"" if packet is None else encode(version, packet)
        if size_max == 0 or len(data) <= size_max:
            return data
    return b""


def last_packet(
    version: Version, reason: Reason, text: str, *, connected: bool
) -> ConnAck | Disconnect | None:
    """Return how a version says that this is the end; None where it cannot."""
    is_v5 = version is Version.V5
    explained = Properties(reason_string=text or None)
    if not connected:
        if is_v5 and (PacketType.CONNACK, reason) in ALLOWED:
            return ConnAck(reason=reason, properties=explained)
        # [MQTT-3.1.4-2] of 3.1.1: what has no return code closes the connection without a word.
        is_known = not is_v5 and return_code(reason) is not None
        return ConnAck(reason=reason) if is_known else None
    if is_v5 and (PacketType.DISCONNECT, reason) in ALLOWED:
        return Disconnect(reason=reason, properties=explained)
    return None
