"""The negotiated values of a connection: a pure function of the CONNECT and the limits of the
broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from siltstone.broker.settings.broker import U16_MAX, Limits
from siltstone.mqtt.encode import encode
from siltstone.mqtt.flow import is_reserved
from siltstone.mqtt.packets import ConnAck, Connect
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.session.session import NO_EXPIRY

_NO_PACKET_LIMIT: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Negotiated:
    """The negotiated values of one connection. A packet size limit or keep alive of 0 means
    none.
    """

    client_id: str
    keep_alive_seconds: int
    expiry_seconds: int
    window: int
    packet_size_max: int
    alias_out_max: int
    properties: Properties


def agree(connect: Connect, limits: Limits, assigned_id: str) -> Negotiated | Reason:
    """Return the negotiated values of a connection, or the reason to refuse it.

    `assigned_id` is used if the client sends no client id [MQTT-3.1.3-6], [MQTT-3.1.3-7].
    """
    if connect.properties.authentication_method is not None:
        return Reason.BAD_AUTHENTICATION_METHOD
    client_id = connect.client_id or assigned_id
    # The limit applies to ids of clients, not to the one that the broker assigns.
    if len(connect.client_id.encode()) > limits.client_id_size_max:
        return Reason.CLIENT_IDENTIFIER_NOT_VALID
    if connect.will is not None and is_reserved(connect.will.topic):
        return Reason.TOPIC_NAME_INVALID
    asked = connect.properties
    keep_alive = connect.keep_alive_seconds
    if limits.keep_alive_max < U16_MAX and not 0 < keep_alive <= limits.keep_alive_max:
        keep_alive = limits.keep_alive_max
    asked_expiry = _asked_expiry(connect)
    expiry = min(asked_expiry, int(limits.session_expiry_max))
    properties = Properties(
        session_expiry_interval=None if expiry == asked_expiry else expiry,
        receive_maximum=limits.receive_max,
        maximum_packet_size=limits.packet_size_max,
        assigned_client_identifier=None if connect.client_id else client_id,
        topic_alias_maximum=limits.topic_alias_max,
        # [MQTT-3.1.2-21]: the client must use this value, not its own.
        server_keep_alive=None if keep_alive == connect.keep_alive_seconds else keep_alive,
    )
    size_max = asked.maximum_packet_size or _NO_PACKET_LIMIT
    if size_max != _NO_PACKET_LIMIT:
        answer = encode(connect.version, ConnAck(properties=properties))
        if len(answer) > size_max:
            # [MQTT-3.1.2-24]: a client that cannot receive this CONNACK cannot learn the
            # negotiated values.
            return Reason.PACKET_TOO_LARGE
    return Negotiated(
        client_id=client_id,
        keep_alive_seconds=keep_alive,
        expiry_seconds=expiry,
        window=min(asked.receive_maximum or U16_MAX, limits.inflight_max),
        packet_size_max=size_max,
        alias_out_max=min(asked.topic_alias_maximum or 0, limits.topic_alias_out_max),
        properties=properties,
    )


def _asked_expiry(connect: Connect) -> int:
    if connect.version is Version.V5:
        return connect.properties.session_expiry_interval or 0
    # 3.1.1 has no expiry interval: a session without clean start never expires.
    return 0 if connect.clean_start else NO_EXPIRY
