"""The receiving part of a connection: it finds the new messages, and acknowledges messages in
order.

Acknowledgements are sent in the order of the messages [MQTT-4.6.0-2], [MQTT-4.6.0-3], even if their
outcomes become known in another order: a settled receipt waits for the receipts before it.
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

        [MQTT-4.3.3-10]: a message whose packet id waits for PUBREL is not delivered again.
        """
        if batch.checked and batch.any_flags & 2 == 0:
            return batch
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
        """Process PUBREL packets; return a PUBCOMP for each."""
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
    """The pending acknowledgements of one batch; `reasons` is empty if all messages succeed."""

    def __init__(self, flags: list[int], packet_ids: list[int], first: int) -> None:
        self.flags = flags
        self.packet_ids = packet_ids
        # The number of messages with QoS 1.
        self.first = first
        # The number of outcomes that are not known yet.
        self.waits = 1
        self.reasons: list[int] = []
        # The packet ids of messages that were accepted before. They succeed even if others fail.
        self.repeated: set[int] = set()

    def fail(self, reason: int) -> None:
        """Set this reason code for all messages that have no failure yet."""
        if not self.reasons:
            self.reasons = [0] * len(self.packet_ids)
        for index in range(len(self.reasons)):
            if self.reasons[index] < _FAILURE and self.packet_ids[index] not in self.repeated:
                self.reasons[index] = reason

    def refuse(self, indexes: list[int], reason: int) -> None:
        """Set this reason code for some messages."""
        if not self.reasons:
            self.reasons = [0] * len(self.packet_ids)
        for index in indexes:
            self.reasons[index] = reason

    def refused(self) -> list[int]:
        """Return the packet ids of the QoS 2 messages that were refused."""
        return [
            self.packet_ids[index]
            for index in range(len(self.reasons))
            if self.reasons[index] >= _FAILURE and self.flags[index] & 3 == 2
        ]

    def encode(self) -> bytes:
        """Return the acknowledgements. Reason codes are valid in MQTT 5 only."""
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
    """The pending acknowledgements of one connection, in order."""

    def __init__(self) -> None:
        self._owed: deque[Receipt] = deque()
        # The messages of QoS 1 without a PUBACK, and of QoS 2 without a PUBCOMP.
        self._first = 0
        self._second: set[int] = set()

    def __len__(self) -> int:
        return self._first + len(self._second)

    def add(self, batch: PublishBatch) -> Receipt | None:
        """Add the acknowledgements of a batch; None if no message needs one."""
        first = 0
        second = 0
        if batch.checked and batch.any_flags & 3 == 0:
            return None
        if batch.checked and batch.shared_flags & 3 == 1:
            first = len(batch.flags)
        else:
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
        """Record that QoS 2 messages are complete."""
        self._second.difference_update(packet_ids)

    def take_settled(self) -> list[Receipt]:
        """Return the receipts whose outcome is known, up to the first one that is not."""
        settled: list[Receipt] = []
        while self._owed and self._owed[0].waits == 0:
            receipt = self._owed.popleft()
            self._first -= receipt.first
            settled.append(receipt)
        return settled


def without(batch: PublishBatch, indexes: list[int]) -> PublishBatch:
    """Return a batch without some messages."""
    left_out = set(indexes)
    kept = PublishBatch()
    for index in range(len(batch.topics)):
        if index not in left_out:
            _copy(batch, kept, index)
    _copy_checks(batch, kept)
    return kept


def pick(batch: PublishBatch, indexes: list[int]) -> PublishBatch:
    """Return a batch of the messages at these indexes, in the order of the indexes."""
    picked = PublishBatch()
    for index in indexes:
        _copy(batch, picked, index)
    _copy_checks(batch, picked)
    return picked


def _copy_checks(source: PublishBatch, target: PublishBatch) -> None:
    """Let messages of a checked batch count as checked."""
    if source.checked:
        target.checked = True
        target.has_dollar = source.has_dollar
        target.measure()


def _copy(source: PublishBatch, target: PublishBatch, index: int) -> None:
    target.topics.append(source.topics[index])
    target.values.append(source.values[index])
    target.flags.append(source.flags[index])
    target.packet_ids.append(source.packet_ids[index])
    if source.properties:
        target.properties.append(source.properties[index])
    if source.expiries:
        target.expiries.append(source.expiries[index])


def find_flags(batch: PublishBatch, mask: int) -> list[int]:
    """Return the indexes of the messages that have one of these flags."""
    if batch.checked and batch.any_flags & mask == 0:
        return []
    flags = batch.flags
    return [index for index in range(len(flags)) if flags[index] & mask != 0]


def find_reserved(batch: PublishBatch) -> list[int]:
    """Return the indexes of the messages whose topic is reserved for the server (4.7.2)."""
    if batch.checked and not batch.has_dollar:
        return []
    topics = batch.topics
    return [
        index
        for index in range(len(topics))
        if topics[index][0] == _DOLLAR and is_reserved(topics[index])
    ]


def is_reserved(topic: bytes) -> bool:
    """Tell whether a topic starts with $ and is not the state topic of a bridge.

    Every bridge of Mosquitto publishes its state, as its will, to
    `$SYS/broker/connection/NAME/state`.
    """
    if topic[0] != _DOLLAR:
        return False
    if not topic.startswith(_STATE_START) or not topic.endswith(_STATE_END):
        return True
    # In two steps, because both parts may share a slash, and mypyc fails on a slice whose end is
    # before its start.
    name = topic[: -len(_STATE_END)][len(_STATE_START) :]
    return not name or b"/" in name
