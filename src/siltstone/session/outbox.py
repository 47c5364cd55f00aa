"""The sending half of a session: packet ids, the window, what waits, and the bytes to write.

Everything that goes to a client is written to one buffer, which the broker takes once a turn of its
loop. A message of QoS 1 or 2 is in flight from its first sending until its last acknowledgement,
under one packet id, however many connections that takes. What may not be sent yet waits in a queue
that has a limit; what does not fit is dropped by policy, and counted.

Invariants: messages leave in the order in which they were offered; at most `window` messages are
unacknowledged on a connection; nothing is written to a connection that is not attached.

Flags are those of a stored row: QoS in bits 0 and 1, retain in 2, DUP in 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter

from siltstone.mqtt.publish import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    PublishWriter,
    encode_acks,
    with_expiry,
)

NEVER: Final = 0.0
_DUP: Final = 8
_V5: Final = 5
_PACKET_IDS: Final = 65_535
_STUCK_SECONDS: Final = 1.0
_RELIEVED_MAX: Final = 1_000
_NOT_FOUND: Final = 0x92
# What a waiting message takes beside its bytes.
_OVERHEAD: Final = 250


class Delivery:
    """A message on its way to one session; `expires_at` is in the broker's own time, 0 is never."""

    def __init__(
        self, topic: bytes, payload: bytes, flags: int, properties: bytes, expires_at: float
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.flags = flags
        self.properties = properties
        self.expires_at = expires_at
        self.packet_id = 0
        # Whether it was sent on this connection, and whether its receiver has it (QoS 2).
        self.sent = False
        self.released = False

    def size(self) -> int:
        return len(self.topic) + len(self.payload) + len(self.properties) + _OVERHEAD


class Budget:
    """What all sessions together may hold, in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


class Ready:
    """The outboxes that have something to write; `wake` is called when there is a first one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.outboxes: list[Outbox] = []
        # An outbox that is far behind, met since somebody last looked.
        self.behind: Outbox | None = None

    def take(self) -> list[Outbox]:
        """Return the outboxes that have something to write, and begin anew."""
        outboxes = self.outboxes
        self.outboxes = []
        return outboxes


class Outbox:
    """What one session is to be sent. Attached to one connection at a time, or to none."""

    def __init__(
        self,
        ready: Ready,
        budget: Budget,
        queued_messages_max: int,
        queued_bytes_max: int,
        drop_old: bool,
    ) -> None:
        self._ready = ready
        self._budget = budget
        self._messages_max = queued_messages_max
        self._bytes_max = queued_bytes_max
        self._drop_old = drop_old
        self.touched = False
        self.attached = False
        # Where the bytes go, and who has more to offer when nothing waits here.
        self.sink: Callable[[bytes], None] | None = None
        self.refill: Callable[[], None] | None = None
        self.paused = False
        self.paused_at = 0.0
        self.version = 0
        self.dropped = 0
        self.expired = 0
        self.sent = 0
        self.sent_bytes = 0
        self._out: BytesWriter | None = None
        self._window = 0
        self._outstanding = 0
        self._buffer_max = 0
        self._publishes = PublishWriter(0, 0, 0)
        self._next_id = 0
        self._inflight: dict[int, Delivery] = {}
        self._inflight_bytes = 0
        self._queue: deque[Delivery] = deque()
        self._queued_bytes = 0
        # Who waits until this is not far behind any more.
        self._relieved: list[Callable[[], None]] = []
        # When `is_stuck` was last answered, and how many were sent by then.
        self._looked_at = 0.0
        self._looked_sent = -1
        # In flight from an earlier connection, to be sent again.
        self._again: deque[Delivery] = deque()

    @property
    def queued(self) -> int:
        """The number of messages that wait to be sent."""
        return len(self._queue)

    @property
    def inflight(self) -> int:
        """The number of messages that were sent and are not acknowledged."""
        return len(self._inflight)

    def attach(
        self,
        version: int,
        window: int,
        packet_size_max: int,
        buffer_max: int,
        alias_max: int,
        now: float,
    ) -> None:
        """Begin a connection: send what is in flight again, then what waits.

        A limit on packets of 0 is none. [MQTT-4.4.0-1]: packet ids stay as they were.
        """
        self.version = version
        self.attached = True
        self.paused = False
        self._window = window
        self._buffer_max = buffer_max
        self._publishes = PublishWriter(version, packet_size_max, alias_max)
        self._again = deque([each for each in self._inflight.values() if not each.released])
        for delivery in self._again:
            delivery.sent = False
        released = [each.packet_id for each in self._inflight.values() if each.released]
        self._outstanding = len(released)
        if released:
            # [MQTT-3.3.4-10]: PUBREL does not wait for the window, which is for messages.
            self._writer().write(encode_acks(PUBREL, released, 0))
        self.pump(now)

    def detach(self) -> None:
        """End the connection; QoS 0 messages that wait are of no use any more."""
        self.attached = False
        self.sink = None
        self.refill = None
        self._out = None
        self._again.clear()
        kept: deque[Delivery] = deque()
        for delivery in self._queue:
            if delivery.flags & 3 != 0:
                kept.append(delivery)
            else:
                self._unqueue(delivery)
        self._queue = kept
        self._relieve()

    def discard(self) -> None:
        """Forget everything: the session ends."""
        self._budget.used -= self._queued_bytes + self._inflight_bytes
        self._queued_bytes = 0
        self._inflight_bytes = 0
        self._outstanding = 0
        self._queue.clear()
        self._again.clear()
        self._inflight.clear()

    def write(self, data: bytes) -> None:
        """Write the bytes of another packet behind all before it."""
        if self.attached:
            self._writer().write(data)

    def offer(
        self, topic: bytes, payload: bytes, flags: int, properties: bytes, expires_at: float
    ) -> None:
        """Send a message now if it is its turn, else let it wait."""
        if not self._queue and not self._again and self._may_send(flags):
            if self._exceeds(topic, payload, flags, properties):
                return
            if flags & 3 == 0:
                self._write_message(topic, payload, flags, 0, properties)
            else:
                self._send(Delivery(topic, payload, flags, properties, expires_at))
        elif self.attached or flags & 3 != 0:
            self._enqueue(Delivery(topic, payload, flags, properties, expires_at))

    def when_relieved(self, act: Callable[[], None]) -> None:
        """Call back once when most of what waits now was sent, or nobody is there to send it to."""
        self._relieved.append(act)
        if len(self._relieved) > _RELIEVED_MAX:
            # Most of these have long given up waiting.
            self._relieve()

    def is_stuck(self, now: float) -> bool:
        """Tell whether waiting is of no use: nobody reads, or nothing was sent since last asked."""
        if not self.attached or (self.paused and now - self.paused_at > _STUCK_SECONDS):
            return True
        if self.sent != self._looked_sent:
            self._looked_sent = self.sent
            self._looked_at = now
        return now - self._looked_at > _STUCK_SECONDS

    def acknowledge(self, first: int, packet_ids: list[int], now: float) -> None:
        """Take acknowledgements of one kind from the client, all successes."""
        if not self.attached:
            return
        if first == PUBREC:
            self._release(packet_ids)
        else:
            for packet_id in packet_ids:
                delivery = self._inflight.get(packet_id)
                if delivery is not None and delivery.sent and _is_last(first, delivery):
                    self._complete(delivery)
        if self._queue or self._again:
            self.pump(now)

    def refuse(self, packet_id: int, now: float) -> None:
        """Take an acknowledgement that says that the client does not want the message."""
        delivery = self._inflight.get(packet_id)
        # [MQTT-4.4.0-2]: a PUBACK or PUBREC with a failure ends the message all the same.
        if self.attached and delivery is not None and delivery.sent and not delivery.released:
            self._complete(delivery)
            self.pump(now)

    def pump(self, now: float) -> None:
        """Send what waits, as far as the connection allows."""
        while self._again and self._outstanding < self._window and self._may_write():
            self._send_again(self._again.popleft(), now)
        if self._again:
            return
        while self._queue and self._may_send(self._queue[0].flags):
            delivery = self._queue.popleft()
            self._unqueue(delivery)
            if delivery.expires_at != NEVER and delivery.expires_at <= now:
                self.expired += 1
                continue
            _grow_old(delivery, now)
            topic, payload, flags = delivery.topic, delivery.payload, delivery.flags
            if self._exceeds(topic, payload, flags, delivery.properties):
                continue
            if flags & 3 == 0:
                self._write_message(topic, payload, flags, 0, delivery.properties)
            else:
                self._send(delivery)
        is_short = len(self._queue) * 4 <= self._messages_max
        if self._relieved and is_short and self._queued_bytes * 4 <= self._bytes_max:
            self._relieve()

    def take(self) -> bytes:
        """Return what is to be written now; empty if the connection has gone."""
        self.touched = False
        out = self._out
        self._out = None
        data = b"" if out is None else out.getvalue()
        self.sent_bytes += len(data)
        return data

    @property
    def waits(self) -> bool:
        """Whether something could be sent as soon as there is room."""
        return self.attached and not self.paused and bool(self._queue or self._again)

    def is_clear(self) -> bool:
        """Tell whether nothing waits, so that what is offered would be sent at once."""
        return not self._queue and not self._again and self._may_send(1)

    def _may_write(self) -> bool:
        if not self.attached or self.paused:
            return False
        out = self._out
        return out is None or len(out) < self._buffer_max

    def _may_send(self, flags: int) -> bool:
        """Tell whether a message may be sent for the first time."""
        return self._may_write() and (
            flags & 3 == 0
            or (self._outstanding < self._window and self._inflight_bytes < self._bytes_max)
        )

    def _send(self, delivery: Delivery) -> None:
        """Give a message its packet id and send it for the first time."""
        packet_id = self._next_id % _PACKET_IDS + 1
        while packet_id in self._inflight:
            packet_id = packet_id % _PACKET_IDS + 1
        self._next_id = packet_id
        delivery.packet_id = packet_id
        delivery.sent = True
        self._inflight[packet_id] = delivery
        size = delivery.size()
        self._inflight_bytes += size
        self._budget.used += size
        self._outstanding += 1
        self._write_message(
            delivery.topic, delivery.payload, delivery.flags, packet_id, delivery.properties
        )

    def _send_again(self, delivery: Delivery, now: float) -> None:
        """Send what an earlier connection left unacknowledged, under its own packet id."""
        delivery.sent = True
        self._outstanding += 1
        topic, payload, flags = delivery.topic, delivery.payload, delivery.flags
        if self._exceeds(topic, payload, flags, delivery.properties):
            self._complete(delivery)
        else:
            # It may have expired by now, but its delivery has begun.
            _grow_old(delivery, now)
            # [MQTT-3.3.1-1].
            flags |= _DUP
            self._write_message(topic, payload, flags, delivery.packet_id, delivery.properties)

    def _exceeds(self, topic: bytes, payload: bytes, flags: int, properties: bytes) -> bool:
        """[MQTT-3.1.2-24]: must not be sent; [MQTT-3.1.2-25]: act as if it had been."""
        if self._publishes.fits(topic, payload, flags, properties):
            return False
        self.dropped += 1
        return True

    def _write_message(
        self, topic: bytes, payload: bytes, flags: int, packet_id: int, properties: bytes
    ) -> None:
        self.sent += 1
        self._publishes.write(self._writer(), topic, payload, flags, packet_id, properties)

    def _writer(self) -> BytesWriter:
        out = self._out
        if out is None:
            out = BytesWriter()
            self._out = out
            if not self.touched:
                self.touched = True
                ready = self._ready
                ready.outboxes.append(self)
                if len(ready.outboxes) == 1:
                    ready.wake()
        return out

    def _release(self, packet_ids: list[int]) -> None:
        """Answer PUBREC with PUBREL; a message that the receiver has is kept no longer."""
        for packet_id in packet_ids:
            delivery = self._inflight.get(packet_id)
            reason = 0
            if delivery is None or not delivery.sent or delivery.flags & 3 != 2:
                reason = _NOT_FOUND if self.version == _V5 else 0
            elif not delivery.released:
                delivery.released = True
                size = delivery.size()
                delivery.payload = b""
                delivery.properties = b""
                freed = size - delivery.size()
                self._inflight_bytes -= freed
                self._budget.used -= freed
            self._writer().write(encode_acks(PUBREL, [packet_id], reason))

    def _complete(self, delivery: Delivery) -> None:
        del self._inflight[delivery.packet_id]
        size = delivery.size()
        self._inflight_bytes -= size
        self._budget.used -= size
        self._outstanding -= 1

    def _enqueue(self, delivery: Delivery) -> None:
        size = delivery.size()
        freed = 0
        while not self._has_room(size, freed):
            if not self._drop_old or not self._could_have_room(size, freed):
                self.dropped += 1
                return
            oldest = self._queue.popleft()
            self._unqueue(oldest)
            freed += oldest.size()
            self.dropped += 1
        self._queue.append(delivery)
        self._queued_bytes += size
        self._budget.used += size
        if self._queued_bytes * 2 > self._bytes_max or len(self._queue) * 2 > self._messages_max:
            self._ready.behind = self
        if freed > 0 and self._may_send(self._queue[0].flags):
            # What kept this one waiting was dropped: ask to be pumped.
            self._writer()

    def _relieve(self) -> None:
        relieved = self._relieved
        self._relieved = []
        for act in relieved:
            act()

    def _has_room(self, size: int, freed: int) -> bool:
        return (
            len(self._queue) < self._messages_max
            and self._queued_bytes + size <= self._bytes_max
            # Where all sessions hold too much, each may still replace what it has.
            and (freed >= size or self._budget.used + size <= self._budget.bytes_max)
        )

    def _could_have_room(self, size: int, freed: int) -> bool:
        """Tell whether dropping what waits would help; nothing is dropped in vain."""
        if not self._queue or size > self._bytes_max:
            return False
        waiting = self._queued_bytes
        budget = self._budget
        return freed + waiting >= size or budget.used - waiting + size <= budget.bytes_max

    def _unqueue(self, delivery: Delivery) -> None:
        size = delivery.size()
        self._queued_bytes -= size
        self._budget.used -= size


def _is_last(first: int, delivery: Delivery) -> bool:
    """Tell whether this is the acknowledgement that ends the message."""
    if first == PUBACK:
        return delivery.flags & 3 == 1
    return first == PUBCOMP and delivery.released


def _grow_old(delivery: Delivery, now: float) -> None:
    """[MQTT-3.3.2-6]: what is left of its interval is less the time that it has waited here."""
    if delivery.expires_at != NEVER:
        left = max(1, round(delivery.expires_at - now))
        delivery.properties = with_expiry(delivery.properties, left)
