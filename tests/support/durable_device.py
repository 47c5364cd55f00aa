"""A correct MQTT client with a durable session.

It keeps its half of the session over all connections, resends, and acknowledges on request.
Everything that it receives is checked against a model.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from siltstone.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import ERROR, Reason
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, V5, Wire
from tests.support.broker_device import Terms
from tests.support.broker_model import Wish
from tests.support.durable_core import DurableCore
from tests.support.durable_model import DurableModel, Life, Message

_REQUEST_ID: Final = 65_535


@dataclass(slots=True, eq=False)
class Link:
    """One connection of a device."""

    wire: Wire
    terms: Terms
    life: Life | None = None
    # The packet ids that await PUBACK or PUBREC, in order; and those that the device has not
    # answered.
    unanswered: deque[int] = field(default_factory=deque)
    outstanding: set[int] = field(default_factory=set)
    owed: deque[Packet] = field(default_factory=deque)


class DurableDevice:
    """One client id with at most one connection; one that waits for CONNACK counts."""

    def __init__(self, client_id: str, model: DurableModel) -> None:
        self.client_id = client_id
        self.model = model
        self.link: Link | None = None
        # The messages that were published and not acknowledged, in order; None after PUBREC.
        self.sent: dict[int, Message | None] = {}
        # The QoS 2 messages that arrived and were not released.
        self.received: dict[int, bytes] = {}

    @property
    def life(self) -> Life | None:
        """The session, while connected."""
        return None if self.link is None else self.link.life

    @property
    def is_heard(self) -> bool:
        """Whether it is connected, and the broker reads from it."""
        return self.life is not None and self._connected.wire.reads()

    @property
    def is_durable(self) -> bool:
        """Whether it is connected with a session that outlives the connection."""
        return self.life is not None and self.life.expiry > 0

    def connect(self, core: DurableCore, terms: Terms) -> None:
        """Connect, whether there is a connection or not."""
        properties = {}
        if terms.version is V5:
            properties = {
                "session_expiry_interval": terms.expiry,
                "receive_maximum": terms.window,
            }
        former, self.link = self.link, Link(core.wire(terms.version), terms)
        answer = self.link.wire.connect(self.client_id, clean_start=terms.clean, **properties)
        if former is not None:
            self._taken_over(former)
        self.link.wire.arrived.extend(answer)

    def _taken_over(self, link: Link) -> None:
        if link.life is None:
            # It is still waiting: the broker accepts it, and then ends it.
            link.wire.drop()
            return
        packets = link.wire.overhear()
        assert link.wire.is_closed
        if link.terms.version is V5:
            # [MQTT-3.1.4-3].
            assert packets.pop() == Disconnect(reason=Reason.SESSION_TAKEN_OVER)
        self._miss(link, packets)
        self.model.leave(link.life)

    def _miss(self, link: Link, packets: list[Packet]) -> None:
        """Record what was written to a connection that is lost."""
        assert link.life is not None
        for packet in packets:
            if isinstance(packet, Publish):
                self.model.written(link.life, packet)

    def disconnect(self, expiry: int | None) -> None:
        """Send DISCONNECT."""
        link, self.link = self.link, None
        assert link is not None
        assert link.life is not None
        packet = Disconnect()
        if link.terms.version is V5 and expiry is not None and link.life.expiry:
            packet = Disconnect(properties=Properties(session_expiry_interval=expiry))
            link.life.expiry = expiry
        link.wire.send(packet)
        assert link.wire.is_closed
        self._miss(link, link.wire.overhear())
        self.model.leave(link.life)

    def drop(self) -> None:
        """Lose the connection, with everything that was not read."""
        link, self.link = self.link, None
        assert link is not None
        if link.life is not None:
            self._miss(link, link.wire.overhear())
            self.model.leave(link.life)
        link.wire.drop()

    def crash(self) -> None:
        """Record that the broker has crashed."""
        link, self.link = self.link, None
        if link is not None and link.life is not None:
            self._miss(link, link.wire.overhear())

    def subscribe(self, text: str, wish: Wish) -> None:
        link = self._connected
        wish = Wish(wish.qos, no_local=wish.no_local and link.terms.version is V5)
        self._change(text, wish)
        subscription = Subscription(
            filter=TopicFilter.parse(text), qos=wish.qos, no_local=wish.no_local
        )
        link.wire.send(Subscribe(packet_id=_REQUEST_ID, subscriptions=(subscription,)))

    def unsubscribe(self, text: str) -> None:
        self._change(text, None)
        packet = Unsubscribe(packet_id=_REQUEST_ID, filters=(TopicFilter.parse(text),))
        self._connected.wire.send(packet)

    def _change(self, text: str, wish: Wish | None) -> None:
        life = self.life
        assert life is not None
        life.unsure.setdefault(text, life.wishes.get(text))
        life.set_wish(text, wish)

    @property
    def _connected(self) -> Link:
        assert self.link is not None
        assert self.link.life is not None
        return self.link

    def publish(self, messages: list[Message]) -> None:
        """Publish new messages in one chunk."""
        packets: list[Packet] = []
        for message in messages:
            packet_id = 0
            if message.qos:
                packet_id = next(number for number in range(1, 99) if number not in self.sent)
                self.sent[packet_id] = message
            packets.append(self._packet(message, packet_id, dup=False))
        if packets:
            self._connected.wire.send(*packets)

    def _packet(self, message: Message, packet_id: int, *, dup: bool) -> Publish:
        link = self._connected
        if message.topic.startswith("never"):
            self.model.sent_unstored(message)
        if packet_id:
            link.unanswered.append(packet_id)
        expiry = message.expiry if link.terms.version is V5 else None
        if message.expiry != expiry:
            # Only MQTT 5 has an expiry. If a message was sent in both versions, its expiry is
            # unknown.
            message.expiry, message.is_vague = expiry, dup
        return Publish(
            topic=message.topic.encode(),
            payload=message.payload,
            qos=message.qos,
            packet_id=packet_id,
            dup=dup,
            properties=Properties(message_expiry_interval=expiry),
        )

    def acknowledge(self, count: int) -> None:
        """Send some of the pending acknowledgements, in order."""
        link = self._connected
        packets = [link.owed.popleft() for _ in range(min(count, len(link.owed)))]
        for packet in packets:
            if isinstance(packet, PubAck | PubComp):
                link.outstanding.discard(packet.packet_id)
        if packets:
            link.wire.send(*packets)

    def listen(self) -> None:
        """Read what has arrived."""
        link = self.link
        if link is None:
            return
        for packet in link.wire.take():
            self._take(link, packet)
        assert not link.wire.is_closed

    def _take(self, link: Link, packet: Packet) -> None:
        match packet:
            case ConnAck():
                self._accepted(link, packet)
            case Publish():
                self._message(link, packet)
            case PubRel():
                self.received.pop(packet.packet_id, None)
                link.owed.append(PubComp(packet_id=packet.packet_id))
            case PubAck() | PubRec():
                self._answered(link, packet)
            case PubComp():
                assert packet.reason is Reason.SUCCESS or packet.packet_id in self.sent
                assert self.sent.pop(packet.packet_id) is None
            case SubAck() | UnsubAck():
                assert all(reason < ERROR for reason in packet.reasons)
            case _:
                raise AssertionError(packet)

    def _accepted(self, link: Link, packet: ConnAck) -> None:
        assert packet.reason is Reason.SUCCESS
        link.life, is_present = self.model.begin(
            self.client_id, clean=link.terms.clean, expiry=link.terms.kept_seconds
        )
        assert packet.session_present is is_present
        if not is_present:
            # The broker has no session, so the device drops its half too.
            self.sent.clear()
            self.received.clear()
        again: list[Packet] = []
        for packet_id, message in self.sent.items():
            if message is None:
                again.append(PubRel(packet_id=packet_id))
            else:
                again.append(self._packet(message, packet_id, dup=True))
        if again:
            link.wire.send(*again)

    def _answered(self, link: Link, packet: PubAck | PubRec) -> None:
        # [MQTT-4.6.0-2], [MQTT-4.6.0-3]: in the order of the messages.
        assert link.unanswered.popleft() == packet.packet_id
        message = self.sent[packet.packet_id]
        assert message is not None
        assert packet.reason is Reason.SUCCESS
        assert message.rows, f"{message} was acknowledged and is not stored"
        message.is_acked = True
        if isinstance(packet, PubAck):
            assert message.qos == 1
            del self.sent[packet.packet_id]
        else:
            assert message.qos == 2
            self.sent[packet.packet_id] = None
            link.owed.append(PubRel(packet_id=packet.packet_id))

    def _message(self, link: Link, packet: Publish) -> None:
        assert link.life is not None
        owed = self.model.written(link.life, packet)
        is_new = True
        if packet.qos:
            link.outstanding.add(packet.packet_id)
            # [MQTT-3.3.4-9].
            assert len(link.outstanding) <= link.terms.window or link.terms.version is V3
            answer = PubAck if packet.qos == 1 else PubRec
            link.owed.append(answer(packet_id=packet.packet_id))
        if packet.qos == 2:
            is_new = packet.packet_id not in self.received
            known = self.received.setdefault(packet.packet_id, packet.payload)
            assert known == packet.payload, "a packet id was given to another message"
        if is_new:
            self.model.deliver(link.life, owed, packet)
