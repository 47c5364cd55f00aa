"""The last packet of a connection, which tells the client the reason."""

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
    """Return the encoded last packet of a connection; empty if the version has none.

    The reason string is omitted if the packet would be larger than the client accepts
    [MQTT-3.2.2-19], [MQTT-3.14.2-3]. A `size_max` of 0 means no limit.
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
    """Return the last packet of a connection; None if the version has none for this reason."""
    is_v5 = version is Version.V5
    explained = Properties(reason_string=text or None)
    if not connected:
        if is_v5 and (PacketType.CONNACK, reason) in ALLOWED:
            return ConnAck(reason=reason, properties=explained)
        # [MQTT-3.1.4-2] of 3.1.1: without a return code, the connection closes without CONNACK.
        is_known = not is_v5 and return_code(reason) is not None
        return ConnAck(reason=reason) if is_known else None
    if is_v5 and (PacketType.DISCONNECT, reason) in ALLOWED:
        return Disconnect(reason=reason, properties=explained)
    return None
