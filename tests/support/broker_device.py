"""A correct MQTT client: it keeps its half of the session, resends, and acknowledges on request.

Everything that it receives is checked against a model and against the rules of the protocol.
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
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import ERROR, Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, V5, Core, Wire
from tests.support.broker_model import NEVER, BrokerModel, Life, Message, Wish

SUBSCRIBE_ID: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The options of a connection. 3.1.1 has no expiry, window or will delay."""

    version: Version = V5
    clean: bool = False
    expiry: int = 0
    window: int = 65_535
    will_topic: str = ""
    will_qos: int = 0
    will_delay: int = 0

    @property
    def kept_seconds(self) -> int:
        if self.version is V3:
            return 0 if self.clean else NEVER
        return self.expiry

    @property
    def delay(self) -> int:
        return self.will_delay if self.version is V5 else 0


@dataclass(slots=True, eq=False)
class Link:
    """One connection of a device."""

    wire: Wire
    terms: Terms
    will: Message | None
    # Published together with the messages that are sent again.
    eager: list[Message]
    life: Life | None = None
    # Whether the broker refused it because the session waited too long for the disk.
    is_refused: bool = False
    # The packet ids that await PUBACK or PUBREC, in order; and those that the device has not
    # answered.
    unanswered: deque[int] = field(default_factory=deque)
    outstanding: set[int] = field(default_factory=set)
    owed: deque[Packet] = field(default_factory=deque)

    @property
    def has_news(self) -> bool:
        """Whether something arrived that the device has not read."""
        return self.wire.has_news or self.wire.is_closed


class Device:
    """One client id. Only its last link can be connected."""

    def __init__(self, client_id: str, core: Core, model: BrokerModel) -> None:
        self.client_id = client_id
        self.core = core
        self.model = model
        self.links: list[Link] = []
        # The messages that were published and not acknowledged, in order; None after PUBREC.
        self.sent: dict[int, Message | None] = {}
        self.received: set[int] = set()
        self.inflight: dict[int, bytes] = {}

    @property
    def link(self) -> Link | None:
        """The connected link."""
        if self.links and self.links[-1].life is not None:
            return self.links[-1]
        return None

    @property
    def is_waiting(self) -> bool:
        """Whether it has not received the answer to its CONNECT yet."""
        return bool(self.links) and self.links[-1].life is None

    def connect(self, terms: Terms, eager: list[tuple[str, int]]) -> None:
        """Connect, whether there is a connection or not."""
        will, last_words = None, None
        if terms.will_topic:
            will = self.model.new_message(
                f"will of {self.client_id}", terms.will_topic, terms.will_qos
            )
            last_words = Will(
                topic=will.topic.encode(),
                payload=will.payload,
                qos=will.qos,
                properties=Properties(will_delay_interval=terms.delay or None),
            )
        properties = {}
        if terms.version is V5:
            properties = {
                "session_expiry_interval": terms.expiry,
                "receive_maximum": terms.window,
            }
        wire = self.core.wire(terms.version)
        former = self.links[-1] if self.links else None
        messages = [self.model.new_message(self.client_id, topic, qos) for topic, qos in eager]
        self.links.append(Link(wire, terms, will, messages))
        packets = wire.connect(
            self.client_id, clean_start=terms.clean, will=last_words, **properties
        )
        wire.arrived.extend(packets)
        if former is not None and former.life is not None:
            self._taken_over(former)

    def _taken_over(self, link: Link) -> None:
        assert link.life is not None
        packets = link.wire.take()
        assert link.wire.is_closed
        if link.terms.version is V5:
            # [MQTT-3.1.4-3].
            assert packets[-1] == Disconnect(reason=Reason.SESSION_TAKEN_OVER)
        self._leave(link, with_will=True)

    def disconnect(self, *, with_will: bool, expiry: int | None) -> None:
        """Send DISCONNECT."""
        link = self.link
        assert link is not None
        assert link.life is not None
        packet = Disconnect()
        if link.terms.version is V5:
            changed = link.life.expiry != 0 and expiry is not None
            packet = Disconnect(
                reason=Reason.DISCONNECT_WITH_WILL_MESSAGE if with_will else Reason.SUCCESS,
                properties=Properties(session_expiry_interval=expiry if changed else None),
            )
            if changed and expiry is not None:
                link.life.expiry = expiry
        link.wire.send(packet)
        assert link.wire.is_closed
        self._leave(link, with_will=with_will and link.terms.version is V5)

    def drop(self) -> None:
        """Lose the connection, with everything that was not read."""
        link = self.links[-1]
        link.wire.drop()
        if link.life is None:
            self.links.remove(link)
        else:
            self._leave(link, with_will=True)

    def _leave(self, link: Link, *, with_will: bool) -> None:
        assert link.life is not None
        self.links.remove(link)
        self.model.leave(link.life, link.will if with_will else None, link.terms.delay)

    def subscribe(self, text: str, wish: Wish) -> None:
        link = self.link
        assert link is not None
        assert link.life is not None
        wish = Wish(wish.qos, no_local=wish.no_local and link.terms.version is V5)
        link.life.wishes[text] = wish
        subscription = Subscription(
            filter=TopicFilter.parse(text), qos=wish.qos, no_local=wish.no_local
        )
        link.wire.send(Subscribe(packet_id=SUBSCRIBE_ID, subscriptions=(subscription,)))

    def unsubscribe(self, text: str) -> None:
        link = self.link
        assert link is not None
        assert link.life is not None
        link.life.wishes.pop(text, None)
        link.wire.send(Unsubscribe(packet_id=SUBSCRIBE_ID, filters=(TopicFilter.parse(text),)))

    def publish(self, messages: list[Message]) -> None:
        """Publish new messages in one chunk."""
        link = self.link
        assert link is not None
        self._send(link, [self._numbered(message) for message in messages])

    def _numbered(self, message: Message) -> tuple[int, Message]:
        """Give a message the first free packet id."""
        if message.qos == 0:
            return 0, message
        packet_id = next(number for number in range(1, 65_536) if number not in self.sent)
        self.sent[packet_id] = message
        return packet_id, message

    def _send(
        self, link: Link, numbered: list[tuple[int, Message]], again: list[Packet] | None = None
    ) -> None:
        packets = list(again or [])
        for packet_id, message in numbered:
            packets.append(
                Publish(
                    topic=message.topic.encode(),
                    payload=message.payload,
                    qos=message.qos,
                    packet_id=packet_id,
                )
            )
            self.model.take(message, self.client_id)
            if packet_id:
                link.unanswered.append(packet_id)
        if packets:
            link.wire.send(*packets)

    def acknowledge(self, count: int) -> None:
        """Send some of the pending acknowledgements, in order."""
        link = self.link
        assert link is not None
        packets = [link.owed.popleft() for _ in range(min(count, len(link.owed)))]
        for packet in packets:
            if isinstance(packet, PubAck | PubComp):
                self.inflight.pop(packet.packet_id, None)
                link.outstanding.discard(packet.packet_id)
        if packets:
            link.wire.send(*packets)

    def listen(self) -> None:
        """Read what has arrived on every link, and find closed links."""
        for link in list(self.links):
            for packet in link.wire.take():
                self._take(link, packet)
            if link.wire.is_closed:
                self._closed(link)

    def _closed(self, link: Link) -> None:
        if link is self.links[-1] and not link.is_refused:
            # Only in 3.1.1, a closed connection is the only sign that a message was not kept.
            assert link.terms.version is V3
            assert link.life is not None
        if link.life is None:
            self.links.remove(link)
        else:
            self._leave(link, with_will=True)

    def _take(self, link: Link, packet: Packet) -> None:
        match packet:
            case ConnAck():
                self._accepted(link, packet)
            case Publish():
                self._message(link, packet)
            case PubRel():
                self.received.discard(packet.packet_id)
                link.owed.append(PubComp(packet_id=packet.packet_id))
            case PubAck() | PubRec():
                self._answered(link, packet)
            case PubComp():
                # The second PUBREL of a message finds no packet id.
                assert packet.reason in (Reason.SUCCESS, Reason.PACKET_IDENTIFIER_NOT_FOUND)
                assert self.sent.pop(packet.packet_id) is None
            case SubAck() | UnsubAck():
                assert packet.packet_id == SUBSCRIBE_ID
                assert all(reason < ERROR for reason in packet.reasons)
            case Disconnect():
                assert packet.reason is Reason.SESSION_TAKEN_OVER
                assert link is not self.links[-1]
            case _:
                raise AssertionError(packet)

    def _accepted(self, link: Link, packet: ConnAck) -> None:
        # 3.1.1 has no reason code for a busy server.
        if packet.reason in (Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE):
            link.is_refused = True
            return
        assert packet.reason is Reason.SUCCESS
        link.life, is_present = self.model.begin(
            self.client_id, clean=link.terms.clean, expiry=link.terms.kept_seconds
        )
        assert packet.session_present is is_present
        if not is_present:
            # The broker has no session, so the device drops its half too.
            self.sent.clear()
            self.received.clear()
            self.inflight.clear()
        if link.wire.is_closed:
            return
        again: list[Packet] = []
        for packet_id, message in self.sent.items():
            if message is None:
                again.append(PubRel(packet_id=packet_id))
                continue
            again.append(
                Publish(
                    topic=message.topic.encode(),
                    payload=message.payload,
                    qos=message.qos,
                    packet_id=packet_id,
                    dup=True,
                )
            )
            self.model.take(message, self.client_id)
            link.unanswered.append(packet_id)
        self._send(link, [self._numbered(message) for message in link.eager], again)

    def _answered(self, link: Link, packet: PubAck | PubRec) -> None:
        # [MQTT-4.6.0-2], [MQTT-4.6.0-3]: in the order of the messages.
        assert link.unanswered.popleft() == packet.packet_id
        message = self.sent[packet.packet_id]
        assert message is not None
        assert message.qos == (1 if isinstance(packet, PubAck) else 2)
        if packet.reason >= ERROR:
            assert link.terms.version is V5
            del self.sent[packet.packet_id]
            return
        self.check_kept(message)
        message.is_due = True
        if isinstance(packet, PubAck):
            del self.sent[packet.packet_id]
        else:
            self.sent[packet.packet_id] = None
            link.owed.append(PubRel(packet_id=packet.packet_id))

    def check_kept(self, message: Message) -> None:
        """Check that an acknowledged message is in the store, if its rule says so."""
        rule = self.core.broker.rules.rule(message.topic.encode())
        is_due = rule.store == "always" and rule.durability != "none"
        kept = message.payload in self.core.database.values
        assert kept or not is_due, f"{message} was acknowledged and is not kept"

    def _message(self, link: Link, packet: Publish) -> None:
        assert link.life is not None
        is_new = packet.qos < 2 or packet.packet_id not in self.received
        if packet.qos > 0:
            known = self.inflight.setdefault(packet.packet_id, packet.payload)
            assert known == packet.payload, "a packet id is in use"
            link.outstanding.add(packet.packet_id)
            # [MQTT-3.3.4-9].
            assert len(link.outstanding) <= link.terms.window or link.terms.version is V3
            answer = PubAck if packet.qos == 1 else PubRec
            link.owed.append(answer(packet_id=packet.packet_id))
        if packet.qos == 2:
            self.received.add(packet.packet_id)
        if is_new:
            self.model.deliver(link.life, packet)
