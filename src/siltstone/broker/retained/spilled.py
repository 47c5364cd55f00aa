"""Retained messages that stay in the file of a large snapshot, beyond `snapshot.memory_max`.

The index of topics has the place of such a message in the file, in place of the message. A message
in the file does not change. Its bytes:

    when it arrived | when it expires | flags | lengths of topic, properties, publisher and payload
    | the start of the payload in the file | topic | properties | publisher | payload

The start is 2^64 - 1 if the payload follows. Otherwise the payload is elsewhere in the same file.
"""

from __future__ import annotations

import struct
from typing import Final

from siltstone.broker.retained.log import Retained
from siltstone.session.sending.delivery import Spilled

# An entry of the index of topics.
Kept = Retained | Spilled

_HEAD: Final = struct.Struct("<qqBHIIIQ")
_INSIDE: Final = (1 << 64) - 1


def encode_retained(message: Retained) -> bytes:
    """Return the bytes of a message. A payload on disk must be in the file that gets the bytes."""
    spilled = message.spilled
    head = _HEAD.pack(
        message.stored_us,
        message.expires_us,
        message.flags,
        len(message.topic),
        len(message.properties),
        len(message.publisher),
        len(message.payload) if spilled is None else spilled.length,
        _INSIDE if spilled is None else spilled.start,
    )
    return b"".join((head, message.topic, message.properties, message.publisher, message.payload))


def whole(kept: Kept) -> Retained:
    """Return a message, read from the file if it is there.

    Raises: DiskError; CorruptionError if the file is too short.
    """
    if not isinstance(kept, Spilled):
        return kept
    data = kept.read()
    stored_us, expires_us, flags, topic, properties, publisher, length, start = _HEAD.unpack_from(
        data
    )
    topic_end = _HEAD.size + topic
    properties_end = topic_end + properties
    publisher_end = properties_end + publisher
    return Retained(
        data[_HEAD.size : topic_end],
        data[publisher_end:],
        flags,
        data[topic_end:properties_end],
        stored_us,
        expires_us,
        data[properties_end:publisher_end],
        None if start == _INSIDE else Spilled(kept.file, start, length),
    )
