"""Checks of topics and filters in packets, with the errors that MQTT requires.

A string that is not valid in MQTT makes the packet malformed. A valid string that is not a topic or
filter has its own reason code.
"""

from __future__ import annotations

from siltstone.errors import InvalidTopicError, ProtocolError
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import check_string
from siltstone.topic.grammar import TopicFilter, check_topic


def check_topic_name(topic: bytes) -> None:
    """Refuse bytes that are not a valid topic of a message.

    Raises: MalformedPacketError, ProtocolError.
    """
    try:
        # [MQTT-3.3.2-2]: the topic name must not contain wildcard characters.
        check_topic(topic)
    except InvalidTopicError as exc:
        check_string(topic)
        raise ProtocolError(str(exc), reason=Reason.TOPIC_NAME_INVALID) from exc


def parse_filter(text: bytes) -> TopicFilter:
    """Parse a filter of SUBSCRIBE or UNSUBSCRIBE.

    Raises: MalformedPacketError, ProtocolError.
    """
    try:
        return TopicFilter.parse(text)
    except InvalidTopicError as exc:
        check_string(text)
        raise ProtocolError(str(exc), reason=Reason.TOPIC_FILTER_INVALID) from exc
