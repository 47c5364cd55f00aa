"""Topics and filters as packets bring them: what the grammar refuses, as the peer must hear it.

A string that is none of MQTT's is malformed; a string that is no topic or filter has a reason of
its own.
"""

from __future__ import annotations

from siltstone.errors import InvalidTopicError, ProtocolError
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import check_string
from siltstone.topic.grammar import TopicFilter, check_topic


def check_topic_name(topic: bytes) -> None:
    """Refuse what cannot be the topic of a message.

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
