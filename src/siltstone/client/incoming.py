"""The messages that a client receives: which are new, and which must be answered; without I/O.

Invariants: a message is acknowledged only after its receiver has accepted it; a QoS 2 message is
delivered once, even if the server sends it again on another connection of the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PublishBatch, encode_acks

_QOS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Messages that are being stored, and the number of the connection on which they arrived."""

    batch: PublishBatch
    connection: int


class Incoming:
    """The receiving part of a client's session."""

    def __init__(self) -> None:
        # QoS 2: accepted, but not released by the server yet.
        self._held: set[int] = set()
        # QoS 2: being stored, but neither accepted nor answered yet.
        self._deferred: set[int] = set()
        self._connections = 0
        self._answers: dict[int, list[int]] = {PUBACK: [], PUBREC: [], PUBCOMP: []}

    def begin(self, *, session_present: bool) -> None:
        """Start on a new connection; the server repeats messages that got no answer."""
        self._connections += 1
        for ids in self._answers.values():
            ids.clear()
        if not session_present:
            self._held.clear()
            self._deferred.clear()

    def fresh(self, batch: PublishBatch) -> PublishBatch:
        """Return the messages that were not accepted before; the others are answered again."""
        if not any(batch.packet_ids):
            return batch
        seen: set[int] = set()
        kept: list[int] = []
        for index, packet_id in enumerate(batch.packet_ids):
            if batch.flags[index] & _QOS != 2:
                kept.append(index)
            elif packet_id in self._held:
                self._answers[PUBREC].append(packet_id)
            elif packet_id not in seen and packet_id not in self._deferred:
                seen.add(packet_id)
                kept.append(index)
        return batch if len(kept) == len(batch.topics) else pick(batch, kept)

    def accept(self, batch: PublishBatch, count: int) -> None:
        """Add the answers for the first `count` messages of a batch."""
        for index in range(count):
            qos = batch.flags[index] & _QOS
            if qos == 1:
                self._answers[PUBACK].append(batch.packet_ids[index])
            elif qos == 2:
                self._held.add(batch.packet_ids[index])
                self._answers[PUBREC].append(batch.packet_ids[index])

    def defer(self, batch: PublishBatch) -> Deferred:
        """Accept a batch later, after it was stored. None of its messages may have been accepted.
        Until then, a QoS 2 message that the server repeats is not fresh.
        """
        ids = batch.packet_ids
        self._deferred.update(i for i, flags in zip(ids, batch.flags, strict=True) if flags & 2)
        return Deferred(batch=batch, connection=self._connections)

    def settle(self, deferred: Deferred) -> None:
        """Add the answers for a deferred batch, on the current connection of the session."""
        batch = deferred.batch
        for packet_id, flags in zip(batch.packet_ids, batch.flags, strict=True):
            if flags & _QOS == 2:
                if packet_id in self._deferred:
                    self._deferred.discard(packet_id)
                    self._held.add(packet_id)
                    self._answers[PUBREC].append(packet_id)
            elif flags & _QOS == 1 and deferred.connection == self._connections:
                # On a later connection the server sent the message again, and that copy is
                # answered.
                self._answers[PUBACK].append(packet_id)

    def give_up(self, deferred: Deferred) -> None:
        """Forget a deferred batch, so that its messages are new when the server sends them again,
        which it does only on another connection.
        """
        self._deferred.difference_update(deferred.batch.packet_ids)

    def release(self, ids: list[int]) -> None:
        """Process PUBREL: these packet ids are free for new messages."""
        self._held.difference_update(ids)
        self._answers[PUBCOMP] += ids

    def take(self) -> bytes:
        """Return the pending answers, each kind in order [MQTT-4.6.0-2], [MQTT-4.6.0-3]."""
        data = b"".join(encode_acks(first, ids, 0) for first, ids in self._answers.items() if ids)
        for ids in self._answers.values():
            ids.clear()
        return data
