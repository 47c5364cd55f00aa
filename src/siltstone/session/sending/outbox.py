"""The sending part of a session: packet ids, the window, the queue, and the bytes to write.

All packets to a client are written to one buffer, which the broker takes once in each turn of its
event loop. A message of QoS 1 or 2 is in flight from its first sending until its last
acknowledgement. It keeps its packet id for that time, across connections. Messages that may not be
sent yet wait in a queue with limits. Messages that do not fit are dropped by policy and counted.

Invariants: messages leave in the order in which they were offered; at most `window` messages are
unacknowledged on a connection; nothing is written while no connection is attached.

Flags are those of a stored row: QoS in bits 0 and 1, retain in 2, DUP in 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from librt.strings import BytesWriter

from siltstone.errors import SiltstoneError
from siltstone.mqtt.publish import (
    LARGE_PAYLOAD,
    PUBACK,
    PUBREC,
    PUBREL,
    PublishWriter,
    encode_acks,
)
from siltstone.rows.batch import DUP
from siltstone.session.durable.progress import SessionProgress, ShardProgress
from siltstone.session.sending.delivery import NEVER, Budget, Delivery, Run, grow_old, is_last
from siltstone.session.sending.inflight import Inflight
from siltstone.session.sending.waiting import Unsaved, Waiting

_V5: Final = 5
_STUCK_SECONDS: Final = 1.0
_RELIEVED_MAX: Final = 1_000
_NOT_FOUND: Final = 0x92


class Behind(Protocol):
    """A queue that publishers may wait for."""

    def is_stuck(self, now: float) -> bool:
        """Tell whether waiting is useless."""

    def when_relieved(self, act: Callable[[], None]) -> None:
        """Call `act` once, when most of the queue was sent."""


class Ready:
    """The outboxes that have bytes to write; `wake` is called when the first one is added."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.outboxes: list[Outbox] = []
        # An outbox or share group that is far behind, found since the broker last checked.
        self.behind: Behind | None = None
        # Called with each outbox once before it changes, and the number of times this was started.
        self.watch: Callable[[Outbox], None] | None = None
        self.epoch = 0
        # Called with a client id and the reason if waiting messages were dropped because they could
        # not be read.
        self.lost: Callable[[str, SiltstoneError], None] | None = None

    def take(self) -> list[Outbox]:
        """Return the outboxes that have bytes to write, and clear the list."""
        outboxes = self.outboxes
        self.outboxes = []
        return outboxes


class Outbox:
    """The messages to one session. It is attached to one connection at a time, or to none."""

    def __init__(
        self,
        ready: Ready,
        budget: Budget,
        queued_messages_max: int,
        queued_bytes_max: int,
        drop_old: bool,
    ) -> None:
        self._ready = ready
        self._bytes_max = queued_bytes_max
        self._queue = Waiting(budget, queued_messages_max, queued_bytes_max, drop_old)
        # The client id of the session, and the epoch in which this was last shown to `watch`.
        self.client_id = ""
        self._epoch = ready.epoch
        self.touched = False
        self.attached = False
        # Whether the session has ended, so that no message waits here any more.
        self._is_over = False
        # Where the bytes go; and the function that offers more messages when the queue is empty.
        self.sink: Callable[[bytes], None] | None = None
        self.refill: Callable[[], None] | None = None
        self.paused = False
        self.paused_at = 0.0
        self.version = 0
        self._too_large = 0
        self.expired = 0
        self.sent = 0
        self.completed = 0
        self.sent_bytes = 0
        self._out: BytesWriter | None = None
        # The bytes before those of `_out`. A large payload is a part of its own, which is not
        # copied: the copies of one message would hold up all other clients.
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._window = 0
        self._buffer_max = 0
        self._publishes = PublishWriter(0, 0, 0)
        self._inflight = Inflight(budget)
        # Callbacks for the time when this outbox is no longer far behind.
        self._relieved: list[Callable[[], None]] = []
        # The time of the last progress that `is_stuck` saw, and the value of `sent` at that time.
        self._looked_at = 0.0
        self._looked_sent = -1
        # Messages in flight from an earlier connection, which must be sent again.
        self._again: deque[Delivery] = deque()
        # Set if QoS 2 state must be on disk before the next packet of a handshake is sent: the
        # function that saves it. Two lists wait for the save: messages, with all later ones, and
        # the packet ids of messages that the client has received.
        self.save: Callable[[], None] | None = None
        # Called once when there is a change to save; None after the call, or if it is not used.
        self.moved: Callable[[], None] | None = None
        self._unsaved = Unsaved()
        self._unsaved_releases: list[int] = []

    @property
    def dropped(self) -> int:
        """The number of dropped messages: beyond the limits, or too large for the client."""
        return self._queue.dropped + self._too_large

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
        """Begin a connection: send the messages in flight again, then the waiting ones.

        A packet size limit of 0 means none. [MQTT-4.4.0-1]: packet ids stay as they were.
        """
        self.version = version
        self.attached = True
        self.paused = False
        self._window = window
        self._buffer_max = buffer_max
        self._publishes = PublishWriter(version, packet_size_max, alias_max)
        inflight = self._inflight.deliveries.values()
        self._again = deque([each for each in inflight if not each.released])
        for delivery in self._again:
            delivery.sent = False
        released: list[int] = []
        for each in inflight:
            if each.released:
                each.sent = True
                released.append(each.packet_id)
        self._inflight.outstanding = len(released)
        if released:
            # [MQTT-3.3.4-10]: PUBREL does not wait for the window, which limits messages only.
            self._writer().write(encode_acks(PUBREL, released, 0))
        self.pump(now)

    def detach(self) -> None:
        """End the connection and drop the waiting QoS 0 messages."""
        self.attached = False
        self.sink = None
        self.refill = None
        self._out = None
        self._parts = []
        self._parts_bytes = 0
        self._again.clear()
        self._queue.keep_acknowledged()
        self._relieve()

    def changing(self) -> None:
        """Show this outbox to `watch`, once, before state that outlives a connection changes."""
        ready = self._ready
        watch = ready.watch
        if watch is not None and self._epoch != ready.epoch and not self._is_over:
            self._epoch = ready.epoch
            watch(self)

    def discard(self) -> None:
        """Forget everything: the session ends."""
        self.changing()
        self._is_over = True
        self._queue.clear()
        self._again.clear()
        self._inflight.clear()
        self.save = None
        self.moved = None

    def take_unsaved(self) -> tuple[list[Delivery], list[int]]:
        """Return the messages and packet ids that wait until the current state is saved."""
        releases, self._unsaved_releases = self._unsaved_releases, []
        return self._unsaved.take(), releases

    def send_saved(self, unsaved: list[Delivery], releases: list[int]) -> None:
        """Send what `take_unsaved` returned, after the save."""
        if not self.attached:
            return
        for delivery in self._unsaved.saved(unsaved):
            if delivery.loan is not None and delivery.lane is None:
                # The share group has taken the row back. This leaves room for another message: ask
                # to be pumped.
                self._inflight.remove(delivery)
                self._writer()
                continue
            delivery.sent = True
            delivery.is_unsent = False
            self._write_message(
                delivery.topic,
                delivery.payload,
                delivery.flags,
                delivery.packet_id,
                delivery.properties,
            )
        for packet_id in releases:
            self._inflight.deliveries[packet_id].sent = True
        if releases:
            self._writer().write(encode_acks(PUBREL, releases, 0))

    def deliveries(self) -> list[Delivery]:
        """Return the messages in flight, in the order in which they were first sent."""
        return list(self._inflight.deliveries.values())

    def waiting(self) -> list[Delivery]:
        """Return the messages in the queue, in order."""
        return self._queue.messages()

    def waiting_parts(self) -> list[Delivery | Run]:
        """Return the messages in the queue, in order; those on disk as runs, which never change."""
        return self._queue.parts()

    def number_waiting(self) -> None:
        """Give packet ids to waiting messages of QoS 1 and 2 that are not rows of the store. They
        are dropped if no packet id is free.
        """
        for delivery in self._queue.take_others():
            if delivery.flags & 3 == 0:
                continue
            if delivery.packet_id == 0:
                if not self._inflight.has_free_id():
                    self._queue.dropped += 1
                    continue
                delivery.packet_id = self._inflight.free_id()
                delivery.is_unsent = True
            self._inflight.add(delivery)

    @property
    def last_packet_id(self) -> int:
        """The packet id that was assigned last."""
        return self._inflight.last_id

    def restore(self, last_packet_id: int, reserved: list[int], inflight: list[Delivery]) -> None:
        """Continue from the state of an earlier connection, before this one is attached.

        The reserved packet ids belong to rows that will be offered with these ids.
        """
        self._inflight.last_id = last_packet_id
        self._inflight.reserved = set(reserved)
        for delivery in inflight:
            self._inflight.add(delivery)

    def wait_again(self, waiting: list[Delivery], runs: list[Run]) -> None:
        """Put messages that have waited before into the queue again, without a limit check; after
        them those on disk.
        """
        for delivery in waiting:
            self._queue.add_row(delivery)
        for run in runs:
            self._queue.add_run(run)

    def give_up(self, packet_id: int, qos: int) -> None:
        """Free the packet id of a message that was in flight and no longer exists.

        A client that has the QoS 2 message would take the next message with this id for the same
        one. It must release the id first.
        """
        self._inflight.reserved.discard(packet_id)
        if qos == 2:
            gone = Delivery(b"", b"", qos, b"", NEVER)
            gone.packet_id = packet_id
            gone.released = True
            self._inflight.add(gone)
            self._inflight.outstanding += 1
            self._unsaved_releases.append(packet_id)
            if self.save is not None:
                self.save()

    def drop_waiting(self, unwanted: set[Delivery]) -> None:
        """Drop messages that were not sent and that the client does not want any more."""
        self._queue.remove(unwanted)
        for delivery in unwanted:
            self._forget(delivery)

    def take_rows(self, owner: SessionProgress) -> list[Delivery]:
        """Take back all unacknowledged rows of a session or group, in order. Rows that were sent
        stay in flight here; the owner ignores their acknowledgement.
        """
        return self._inflight.rows_of(owner) + self._queue.take_rows(owner)

    def stir(self) -> None:
        """Call `moved`, once, because there is something to save."""
        moved = self.moved
        if moved is not None:
            self.moved = None
            moved()

    def write(self, data: bytes) -> None:
        """Write the bytes of another packet after all earlier ones."""
        if self.attached:
            self._writer().write(data)

    def offer(
        self, topic: bytes, payload: bytes, flags: int, properties: bytes, expires_at: float
    ) -> None:
        """Send a message now if nothing is before it and it may be sent; otherwise queue it."""
        if self._ready.watch is not None and flags & 3 != 0:
            self.changing()
        if not self._queue and not self._again and self._may_send(flags):
            if self._exceeds(topic, payload, flags, properties):
                return
            if flags & 3 != 0 or self._unsaved.holds():
                self._send(Delivery(topic, payload, flags, properties, expires_at))
            else:
                self._write_message(topic, payload, flags, 0, properties)
        elif self.attached or (flags & 3 != 0 and not self._is_over):
            self._enqueue(Delivery(topic, payload, flags, properties, expires_at))

    def offer_row(self, delivery: Delivery, lane: ShardProgress, serial: int) -> None:
        """Send a row of the store, of QoS 1 or 2, now if it may be sent; otherwise queue it.

        The limits of the queue do not apply: the caller offers no more rows than may wait.
        """
        delivery.lane = lane
        delivery.serial = serial
        if self._queue or self._again or not self._may_send(delivery.flags):
            self._queue.add_row(delivery)
        elif self._exceeds(delivery.topic, delivery.payload, delivery.flags, delivery.properties):
            self._forget(delivery)
        else:
            self._send(delivery)

    def when_relieved(self, act: Callable[[], None]) -> None:
        """Call `act` once, when most of the queue was sent or the connection has ended."""
        self._relieved.append(act)
        if len(self._relieved) > _RELIEVED_MAX:
            # Most of these callers have stopped waiting long ago.
            self._relieve()

    def is_stuck(self, now: float) -> bool:
        """Tell whether waiting is useless: no client reads, or nothing was sent for a second."""
        if not self.attached or (self.paused and now - self.paused_at > _STUCK_SECONDS):
            return True
        if self.sent != self._looked_sent:
            self._looked_sent = self.sent
            self._looked_at = now
        return now - self._looked_at > _STUCK_SECONDS

    def acknowledge(self, first: int, packet_ids: list[int], now: float) -> int:
        """Process acknowledgements of one kind from the client, all with success.

        Return the packet id of the first one that does not fit the QoS of its message, which ends
        the processing, or 0. An unknown id is not an error: its message may have completed before.
        """
        if not self.attached:
            return 0
        self.changing()
        if first == PUBREC:
            wrong = self._release(packet_ids)
        else:
            wrong = 0
            for packet_id in packet_ids:
                delivery = self._inflight.deliveries.get(packet_id)
                if delivery is not None and delivery.sent:
                    if not is_last(first, delivery):
                        wrong = packet_id
                        break
                    self._complete(delivery)
        if wrong == 0 and (self._queue or self._again):
            self.pump(now)
        return wrong

    def refuse(self, first: int, packet_id: int, now: float) -> int:
        """Process an acknowledgement with a failure code: the client refuses the message. Return as
        `acknowledge` does.
        """
        self.changing()
        delivery = self._inflight.deliveries.get(packet_id)
        # [MQTT-4.4.0-2]: a PUBACK or PUBREC with a failure also completes the message.
        if self.attached and delivery is not None and delivery.sent and not delivery.released:
            if delivery.flags & 3 != (1 if first == PUBACK else 2):
                return packet_id
            self._complete(delivery)
            self.pump(now)
        return 0

    def pump(self, now: float) -> None:
        """Send waiting messages, as far as the connection allows."""
        while self._again and self._inflight.outstanding < self._window and self._may_write():
            # If the payload cannot be read now, the message stays the next one.
            payload = self._again[0].body()
            self._send_again(self._again.popleft(), payload, now)
        if self._again:
            return
        if self._queue:
            self.changing()
        while self._queue and self._may_send(self._queue.first_flags()):
            delivery = self._queue.pop()
            if delivery.expires_at != NEVER and delivery.expires_at <= now:
                self.expired += 1
                self._forget(delivery)
                continue
            grow_old(delivery, now)
            topic, payload, flags = delivery.topic, delivery.payload, delivery.flags
            if self._exceeds(topic, payload, flags, delivery.properties):
                self._forget(delivery)
                continue
            if flags & 3 != 0 or self._unsaved.holds():
                self._send(delivery)
            else:
                self._write_message(topic, payload, flags, 0, delivery.properties)
        if self._relieved and self._queue.is_short():
            self._relieve()

    def take_parts(self) -> list[bytes]:
        """Return the bytes to write now up to the last large payload, without copying it; empty if
        there is none. `take` returns the rest.
        """
        parts = self._parts
        if parts:
            self._parts = []
            self.sent_bytes += self._parts_bytes
            self._parts_bytes = 0
        return parts

    def take(self) -> bytes:
        """Return the bytes to write now; empty if the connection has ended."""
        self.touched = False
        parts = self.take_parts() if self._parts_bytes > 0 else None
        out = self._out
        self._out = None
        data = b"" if out is None else out.getvalue()
        self.sent_bytes += len(data)
        return data if parts is None else b"".join([*parts, data])

    @property
    def waits(self) -> bool:
        """Whether a message could be sent as soon as there is room."""
        return self.attached and not self.paused and bool(self._queue or self._again)

    def is_clear(self) -> bool:
        """Tell whether the queue is empty and an offered message would be sent at once."""
        return not self._queue and not self._again and self._may_send(1)

    def _may_write(self) -> bool:
        if not self.attached or self.paused:
            return False
        out = self._out
        held = self._unsaved.size_bytes + self._parts_bytes
        return held < self._buffer_max if out is None else len(out) + held < self._buffer_max

    def _may_send(self, flags: int) -> bool:
        """Tell whether a message may be sent for the first time."""
        if not self._may_write():
            return False
        inflight = self._inflight
        return flags & 3 == 0 or (
            inflight.outstanding < self._window and inflight.size_bytes < self._bytes_max
        )

    def _send(self, delivery: Delivery) -> None:
        """Send a message for the first time on this connection; QoS 1 and 2 get a packet id."""
        if delivery.flags & 3 == 0:
            self._unsaved.add(delivery)
            return
        self.stir()
        inflight = self._inflight
        is_saved = delivery.packet_id != 0
        if is_saved:
            inflight.reserved.discard(delivery.packet_id)
        else:
            delivery.packet_id = inflight.free_id()
        inflight.add(delivery)
        inflight.outstanding += 1
        save = self.save
        if save is not None and delivery.flags & 3 == 2 and not is_saved:
            # If it were sent again with another id after a crash, it would be a second message.
            delivery.is_unsent = True
            self._unsaved.add_to_save(delivery)
            save()
            return
        if self._unsaved.holds():
            # A later message is not sent earlier, whatever its QoS.
            if not is_saved:
                delivery.is_unsent = True
            self._unsaved.add(delivery)
            return
        delivery.sent = True
        delivery.is_unsent = False
        self._write_message(
            delivery.topic,
            delivery.payload,
            delivery.flags,
            delivery.packet_id,
            delivery.properties,
        )

    def _forget(self, delivery: Delivery) -> None:
        """Record that the row of a message, if it has one, is done."""
        lane = delivery.lane
        if lane is not None:
            self.stir()
            lane.complete(delivery.serial)

    def _send_again(self, delivery: Delivery, payload: bytes, now: float) -> None:
        """Send a message that an earlier connection left unacknowledged, with its packet id."""
        if delivery.is_unsent and delivery.expires_at != NEVER and delivery.expires_at <= now:
            self.expired += 1
            self._inflight.outstanding += 1
            self._complete(delivery)
            return
        delivery.sent = True
        self._inflight.outstanding += 1
        topic, flags = delivery.topic, delivery.flags
        if self._exceeds(topic, payload, flags, delivery.properties):
            self._complete(delivery)
        else:
            # The message may have expired, but its delivery has begun.
            grow_old(delivery, now)
            if delivery.is_unsent:
                delivery.is_unsent = False
            else:
                # [MQTT-3.3.1-1].
                flags |= DUP
            self._write_message(topic, payload, flags, delivery.packet_id, delivery.properties)

    def _exceeds(self, topic: bytes, payload: bytes, flags: int, properties: bytes) -> bool:
        """Return whether a message is too large for the client; count it as dropped then. It is not
        sent [MQTT-3.1.2-24], and handled as if it had been sent [MQTT-3.1.2-25].
        """
        if self._publishes.fits(topic, payload, flags, properties):
            return False
        self._too_large += 1
        self.stir()
        return True

    def _write_message(
        self, topic: bytes, payload: bytes, flags: int, packet_id: int, properties: bytes
    ) -> None:
        self.sent += 1
        out = self._writer()
        self._publishes.write(out, topic, payload, flags, packet_id, properties)
        if len(payload) >= LARGE_PAYLOAD:
            self._parts += (out.getvalue(), payload)
            self._parts_bytes += len(out) + len(payload)
            self._out = BytesWriter()

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

    def _release(self, packet_ids: list[int]) -> int:
        """Answer PUBREC with PUBREL; the content of a received message is no longer kept."""
        save = self.save
        wrong = 0
        for packet_id in packet_ids:
            delivery = self._inflight.deliveries.get(packet_id)
            reason = 0
            if delivery is not None and delivery.released:
                if not delivery.sent:
                    # The PUBREL waits for the save.
                    continue
            elif delivery is None or not delivery.sent:
                reason = _NOT_FOUND if self.version == _V5 else 0
            elif delivery.flags & 3 != 2:
                wrong = packet_id
                break
            else:
                kept = self._received(delivery)
                if save is not None:
                    # The client may forget the packet id once it has received PUBREL.
                    kept.sent = False
                    self._unsaved_releases.append(packet_id)
                    continue
            self._writer().write(encode_acks(PUBREL, [packet_id], reason))
        if save is not None and self._unsaved_releases:
            save()
        return wrong

    def _received(self, delivery: Delivery) -> Delivery:
        self._forget(delivery)
        # A new object, because `watch` may not have copied the old one yet.
        kept = Delivery(delivery.topic, b"", delivery.flags, b"", delivery.expires_at)
        kept.serial = delivery.serial
        kept.packet_id = delivery.packet_id
        kept.sent = True
        kept.released = True
        self._inflight.replace(delivery, kept)
        return kept

    def _complete(self, delivery: Delivery) -> None:
        self.stir()
        self._inflight.remove(delivery)
        self.completed += 1
        self._forget(delivery)

    def _enqueue(self, delivery: Delivery) -> None:
        self.stir()
        queue = self._queue
        made_room = queue.add(delivery)
        if queue.unreadable is not None:
            error, queue.unreadable = queue.unreadable, None
            if self._ready.lost is not None:
                self._ready.lost(self.client_id, error)
        if self._queue.is_long():
            self._ready.behind = self
        if made_room and self._queue and self._may_send(self._queue.first_flags()):
            # The messages that blocked this one were dropped: ask to be pumped.
            self._writer()

    def _relieve(self) -> None:
        relieved = self._relieved
        self._relieved = []
        for act in relieved:
            act()
