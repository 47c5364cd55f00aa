"""All control packets as values, one class for both versions (MQTT 3.1 to 3.15).

Fields that 3.1.1 cannot express keep their default there: properties, and the reason codes of
acknowledgements that can only succeed. Reason codes are those of MQTT 5. A topic is bytes as on the
wire; a filter is parsed. The classes do not check their values: `decode` and `encode` do.
"""

from __future__ import annotations

from dataclasses import dataclass

from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """The message that the server publishes when the client disconnects abnormally (3.1.2.5)."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """3.1: a client requests a connection. `clean_start` is called clean session in 3.1.1.

    `is_bridge` is not part of the standard: bridges of Mosquitto set it in the protocol level.
    """

    version: Version
    client_id: str
    clean_start: bool = True
    keep_alive_seconds: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    is_bridge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnAck:
    """3.2: the server's answer to Connect."""

    session_present: bool = False
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """3.3: one message. QoS 0 has packet id 0; an empty topic means that an alias is used."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class PubAck:
    """3.4: the receiver has accepted a QoS 1 message, or gives the reason for a refusal."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class PubRec:
    """3.5: the receiver has accepted a QoS 2 message, or gives the reason for a refusal."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class PubRel:
    """3.6: the sender of a QoS 2 message will not send it again."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class PubComp:
    """3.7: the packet id of a QoS 2 message is free again."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One filter of Subscribe with its options (3.8.3.1)."""

    filter: TopicFilter
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """3.8: a client requests messages."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAck:
    """3.9: one reason code for each subscription, in their order."""

    packet_id: int
    reasons: tuple[Reason, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """3.10: a client removes subscriptions."""

    packet_id: int
    filters: tuple[TopicFilter, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsubAck:
    """3.11: one reason code for each filter, in their order; 3.1.1 has none."""

    packet_id: int
    reasons: tuple[Reason, ...] = ()
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class PingReq:
    """3.12: a client shows that it is alive."""


@dataclass(frozen=True, slots=True)
class PingResp:
    """3.13: the server's answer to PingReq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """3.14: the last packet of a connection; in 3.1.1 only a client sends it."""

    reason: Reason = Reason.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """3.15: a step of enhanced authentication; it does not exist in 3.1.1."""

    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
