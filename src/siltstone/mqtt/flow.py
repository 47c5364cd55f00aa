"""The receiving half of a connection: which messages are new, and what they are answered.

Acknowledgements leave in the order of the messages [MQTT-4.6.0-2], [MQTT-4.6.0-3], whenever each
outcome becomes known: a receipt that is settled early waits for those before it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

from siltstone.mqtt.publish import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PublishBatch,
    encode_acks,
    encode_receipts,
)

_NOT_FOUND: Final = 0x92
_FAILURE: Final = 0x80
_DOLLAR: Final = 0x24
_STATE_START: Final = b"$SYS/broker/connection/"
_STATE_END: Final = b"/state"


class Received:
    """The QoS 2 messages that were received and not yet released; a part of the session."""

    def __init__(self) -> None:
        self.packet_ids: set[int] = set()

    def take_new(self, batch: PublishBatch) -> PublishBatch:
        """Return the messages that were not received before, and remember those of QoS 2.

        [MQTT-4.3.3-10]: a message whose packet id awaits its PUBREL is not delivered again.
        """
        repeated: list[int] = []
        known = self.packet_ids
        for index in range(len(batch.flags)):
            if batch.flags[index] & 3 == 2:
                packet_id = batch.packet_ids[index]
                if packet_id in known:
                    repeated.append(index)
                else:
                    known.add(packet_id)
        return without(batch, repeated) if repeated else batch

    def release(self, packet_ids: list[int], version: int) -> bytes:
        """Take PUBREL; return the PUBCOMP for each."""
        known = self.packet_ids
        if version != 5 or known.issuperset(packet_ids):
            known.difference_update(packet_ids)
            return encode_acks(PUBCOMP, packet_ids, 0)
        out: list[bytes] = []
        for packet_id in packet_ids:
            reason = 0 if packet_id in known else _NOT_FOUND
            known.discard(packet_id)
            out.append(encode_acks(PUBCOMP, [packet_id], reason))
        return b"".join(out)


@mypyc_attr(acyclic=True)
class Receipt:
    """What is owed for the messages of one batch; `reasons` is empty where all succeed."""

    def __init__(self, flags: list[int], packet_ids: list[int], first: int) -> None:
        self.flags = flags
        self.packet_ids = packet_ids
        # How many of them have QoS 1.
        self.first = first
        # How many outcomes are not known yet.
        self.waits = 1
        self.reasons: list[int] = []
        # The packet ids of messages that were taken before, and succeed whatever becomes of others.
        self.repeated: set[int] = set()

    def fail(self, reason: int) -> None:
        """Answer all messages that have no failure yet with this reason."""
        if not self.reasons:
            self.reasons = [0] * len(self.packet_ids)
        for index in range(len(self.reasons)):
            if self.reasons[index] < _FAILURE and self.packet_ids[index] not in self.repeated:
                self.reasons[index] = reason

    def refuse(self, indexes: list[int], reason: int) -> None:
        """Answer some messages with this reason."""
        if not self.reasons:
            self.reasons = [0] * len(self.packet_ids)
        for index in indexes:
            self.reasons[index] = reason

    def refused(self) -> list[int]:
        """Return the packet ids of QoS 2 messages that were not taken."""
        return [
            self.packet_ids[index]
            for index in range(len(self.reasons))
            if self.reasons[index] >= _FAILURE and self.flags[index] & 3 == 2
        ]

    def encode(self) -> bytes:
        """Return the acknowledgements. With reasons, for MQTT 5 alone."""
        if not self.reasons:
            return encode_receipts(self.flags, self.packet_ids)
        out: list[bytes] = []
        for index in range(len(self.packet_ids)):
            qos = self.flags[index] & 3
            if qos != 0:
                first = PUBACK if qos == 1 else PUBREC
                out.append(encode_acks(first, [self.packet_ids[index]], self.reasons[index]))
        return b"".join(out)


class Receipts:
    """What one connection is owed, in order."""

    def __init__(self) -> None:
        self._owed: deque[Receipt] = deque()
        # The messages of QoS 1 without a PUBACK, and of QoS 2 without a PUBCOMP.
        self._first = 0
        self._second: set[int] = set()

    def __len__(self) -> int:
        return self._first + len(self._second)

    def add(self, batch: PublishBatch) -> Receipt | None:
        """Owe the acknowledgements of a batch; None where none of it wants any."""
        first = 0
        second = 0
        for index in range(len(batch.flags)):
            qos = batch.flags[index] & 3
            if qos == 1:
                first += 1
            elif qos == 2:
                second += 1
                self._second.add(batch.packet_ids[index])
        if first + second == 0:
            return None
        receipt = Receipt(batch.flags, batch.packet_ids, first)
        self._owed.append(receipt)
        self._first += first
        return receipt

    def complete(self, packet_ids: list[int]) -> None:
        """Take note of messages of QoS 2 that ended."""
        self._second.difference_update(packet_ids)

    def take_settled(self) -> list[Receipt]:
        """Return the receipts whose outcome, and that of all before them, is known."""
        settled: list[Receipt] = []
        while self._owed and self._owed[0].waits == 0:
            receipt = self._owed.popleft()
            self._first -= receipt.first
            settled.append(receipt)
        return settled


def without(batch: PublishBatch, indexes: list[int]) -> PublishBatch:
    """Return a batch that leaves some messages out."""
    left_out = set(indexes)
    kept = PublishBatch()
    for index in range(len(batch.topics)):
        if index not in left_out:
            _copy(batch, kept, index)
    return kept


def pick(batch: PublishBatch, indexes: list[int]) -> PublishBatch:
    """Return a batch of some messages, in their order."""
    picked = PublishBatch()
    for index in indexes:
        _copy(batch, picked, index)
    return picked


def _copy(source: PublishBatch, target: PublishBatch, index: int) -> None:
    target.topics.append(source.topics[index])
    target.payloads.append(source.payloads[index])
    target.flags.append(source.flags[index])
    target.packet_ids.append(source.packet_ids[index])
    if source.properties:
        target.properties.append(source.properties[index])
    if source.expiries:
        target.expiries.append(source.expiries[index])


def find_flags(flags: list[int], mask: int) -> list[int]:
    """Return the indexes of the messages that have one of these flags."""
    return [index for index in range(len(flags)) if flags[index] & mask != 0]


def find_reserved(topics: list[bytes]) -> list[int]:
    """Return the indexes of the topics that are the server's own (4.7.2)."""
    return [
        index
        for index in range(len(topics))
        if topics[index][0] == _DOLLAR and is_reserved(topics[index])
    ]


def is_reserved(topic: bytes) -> bool:
    """Tell whether a topic starts with $, and is not the one on which a bridge tells its state.

    That one, `$SYS/broker/connection/NAME/state`, is the will of every bridge of Mosquitto.
    """
    if topic[0] != _DOLLAR:
        return False
    if not topic.startswith(_STATE_START) or not topic.endswith(_STATE_END):
        return True
    # In two steps: both may hold the same slash, and mypyc fails on a slice that ends before it
    # begins.
    name = topic[: -len(_STATE_END)][len(_STATE_START) :]
    return not name or b"/" in name
