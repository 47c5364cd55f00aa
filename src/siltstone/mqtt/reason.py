"""The reason codes of MQTT 5 (2.4), and the corresponding return codes of 3.1.1.

Packets of both versions hold reason codes of MQTT 5; only their bytes differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from siltstone.mqtt.wire import PacketType

ERROR: Final = 0x80


class Reason(IntEnum):
    """The result of a request; 0x80 and above are failures. Zero has a name for each use."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ReturnCode(IntEnum):
    """The return codes of CONNACK in 3.1.1."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


# The only failure code of SUBACK in 3.1.1.
SUBACK_FAILURE: Final = 0x80

_PUBLISH_ACKS: Final = (PacketType.PUBACK, PacketType.PUBREC)
_ENDS: Final = (PacketType.CONNACK, PacketType.DISCONNECT)
_ANY: Final = (*_PUBLISH_ACKS, PacketType.SUBACK, PacketType.UNSUBACK, *_ENDS)

PACKETS_WITH: Final[Mapping[Reason, tuple[PacketType, ...]]] = {
    Reason.SUCCESS: (
        *_ANY,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.AUTH,
    ),
    Reason.GRANTED_QOS_1: (PacketType.SUBACK,),
    Reason.GRANTED_QOS_2: (PacketType.SUBACK,),
    Reason.DISCONNECT_WITH_WILL_MESSAGE: (PacketType.DISCONNECT,),
    Reason.NO_MATCHING_SUBSCRIBERS: _PUBLISH_ACKS,
    Reason.NO_SUBSCRIPTION_EXISTED: (PacketType.UNSUBACK,),
    Reason.CONTINUE_AUTHENTICATION: (PacketType.AUTH,),
    Reason.REAUTHENTICATE: (PacketType.AUTH,),
    Reason.UNSPECIFIED_ERROR: _ANY,
    Reason.MALFORMED_PACKET: _ENDS,
    Reason.PROTOCOL_ERROR: _ENDS,
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: _ANY,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: (PacketType.CONNACK,),
    Reason.CLIENT_IDENTIFIER_NOT_VALID: (PacketType.CONNACK,),
    Reason.BAD_USER_NAME_OR_PASSWORD: (PacketType.CONNACK,),
    Reason.NOT_AUTHORIZED: _ANY,
    Reason.SERVER_UNAVAILABLE: (PacketType.CONNACK,),
    Reason.SERVER_BUSY: _ENDS,
    Reason.BANNED: (PacketType.CONNACK,),
    Reason.SERVER_SHUTTING_DOWN: (PacketType.DISCONNECT,),
    Reason.BAD_AUTHENTICATION_METHOD: _ENDS,
    Reason.KEEP_ALIVE_TIMEOUT: (PacketType.DISCONNECT,),
    Reason.SESSION_TAKEN_OVER: (PacketType.DISCONNECT,),
    Reason.TOPIC_FILTER_INVALID: (
        PacketType.SUBACK,
        PacketType.UNSUBACK,
        PacketType.DISCONNECT,
    ),
    Reason.TOPIC_NAME_INVALID: (*_PUBLISH_ACKS, *_ENDS),
    Reason.PACKET_IDENTIFIER_IN_USE: (*_PUBLISH_ACKS, PacketType.SUBACK, PacketType.UNSUBACK),
    Reason.PACKET_IDENTIFIER_NOT_FOUND: (PacketType.PUBREL, PacketType.PUBCOMP),
    Reason.RECEIVE_MAXIMUM_EXCEEDED: (PacketType.DISCONNECT,),
    Reason.TOPIC_ALIAS_INVALID: (PacketType.DISCONNECT,),
    Reason.PACKET_TOO_LARGE: _ENDS,
    Reason.MESSAGE_RATE_TOO_HIGH: (PacketType.DISCONNECT,),
    Reason.QUOTA_EXCEEDED: (*_PUBLISH_ACKS, PacketType.SUBACK, *_ENDS),
    Reason.ADMINISTRATIVE_ACTION: (PacketType.DISCONNECT,),
    Reason.PAYLOAD_FORMAT_INVALID: (*_PUBLISH_ACKS, *_ENDS),
    Reason.RETAIN_NOT_SUPPORTED: _ENDS,
    Reason.QOS_NOT_SUPPORTED: _ENDS,
    Reason.USE_ANOTHER_SERVER: _ENDS,
    Reason.SERVER_MOVED: _ENDS,
    Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: (PacketType.SUBACK, PacketType.DISCONNECT),
    Reason.CONNECTION_RATE_EXCEEDED: _ENDS,
    Reason.MAXIMUM_CONNECT_TIME: (PacketType.DISCONNECT,),
    Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: (PacketType.SUBACK, PacketType.DISCONNECT),
    Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: (PacketType.SUBACK, PacketType.DISCONNECT),
}

# For one lookup by acknowledgement: (packet type, code) -> reason.
ALLOWED: Final[Mapping[tuple[int, int], Reason]] = {
    (packet_type, reason): reason
    for reason, packet_types in PACKETS_WITH.items()
    for packet_type in packet_types
}

# The reason codes of MQTT 5 for the return codes of 3.1.1.
OF_RETURN_CODE: Final[Mapping[int, Reason]] = {
    ReturnCode.ACCEPTED: Reason.SUCCESS,
    ReturnCode.UNACCEPTABLE_PROTOCOL_VERSION: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    ReturnCode.IDENTIFIER_REJECTED: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    ReturnCode.SERVER_UNAVAILABLE: Reason.SERVER_UNAVAILABLE,
    ReturnCode.BAD_USER_NAME_OR_PASSWORD: Reason.BAD_USER_NAME_OR_PASSWORD,
    ReturnCode.NOT_AUTHORIZED: Reason.NOT_AUTHORIZED,
}

_RETURN_CODES: Final[Mapping[Reason, ReturnCode]] = {
    **{reason: ReturnCode(code) for code, reason in OF_RETURN_CODE.items()},
    Reason.SERVER_BUSY: ReturnCode.SERVER_UNAVAILABLE,
    Reason.CONNECTION_RATE_EXCEEDED: ReturnCode.SERVER_UNAVAILABLE,
    Reason.QUOTA_EXCEEDED: ReturnCode.SERVER_UNAVAILABLE,
    Reason.USE_ANOTHER_SERVER: ReturnCode.SERVER_UNAVAILABLE,
    Reason.SERVER_MOVED: ReturnCode.SERVER_UNAVAILABLE,
    Reason.BANNED: ReturnCode.NOT_AUTHORIZED,
    Reason.BAD_AUTHENTICATION_METHOD: ReturnCode.NOT_AUTHORIZED,
}


def return_code(reason: Reason) -> ReturnCode | None:
    """Return the return code of CONNACK in 3.1.1 for a reason.

    None if no code applies: the connection is then closed without CONNACK [MQTT-3.2.2-6].
    """
    return _RETURN_CODES.get(reason)
