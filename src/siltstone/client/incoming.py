"""The messages a client receives: what is new, and what it owes an answer for; without I/O.

Invariants: a message is acknowledged only once its receiver has accepted it; a message of QoS 2 is
handed over once, also when the server sends it again over another connection of the session.
"""

from __future__ import annotations

from typing import Final

from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PublishBatch, encode_acks

_QOS: Final = 3


class Incoming:
    """The receiving half of a client's session."""

    def __init__(self) -> None:
        # QoS 2: accepted, and not yet released by the server.
        self._held: set[int] = set()
        self._answers: dict[int, list[int]] = {PUBACK: [], PUBREC: [], PUBCOMP: []}

    def begin(self, *, session_present: bool) -> None:
        """Start on a new connection: the server asks again for answers that it did not get."""
        for ids in self._answers.values():
            ids.clear()
        if not session_present:
            self._held.clear()

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
            elif packet_id not in seen:
                seen.add(packet_id)
                kept.append(index)
        return batch if len(kept) == len(batch.topics) else pick(batch, kept)

    def accept(self, batch: PublishBatch, count: int) -> None:
        """Owe an answer for the first messages of a batch, so many of them."""
        for index in range(count):
            qos = batch.flags[index] & _QOS
            if qos == 1:
                self._answers[PUBACK].append(batch.packet_ids[index])
            elif qos == 2:
                self._held.add(batch.packet_ids[index])
                self._answers[PUBREC].append(batch.packet_ids[index])

    def release(self, ids: list[int]) -> None:
        """Take PUBREL: these ids are free for new messages."""
        self._held.difference_update(ids)
        self._answers[PUBCOMP] += ids

    def take(self) -> bytes:
        """Return the answers that are owed, each kind in order [MQTT-4.6.0-2], [MQTT-4.6.0-3]."""
        data = b"".join(encode_acks(first, ids, 0) for first, ids in self._answers.items() if ids)
        for ids in self._answers.values():
            ids.clear()
        return data
