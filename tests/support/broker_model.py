"""A naive model of what a broker must deliver: sessions, subscriptions, wills and messages.

A message is owed to the sessions that want it when the broker takes it. A QoS 1 message is taken as
often as its publisher sends it, a QoS 2 message once. Only messages that were acknowledged to the
publisher, and wills, must arrive. A message that is not owed must not arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from siltstone.mqtt.packets import Publish
from tests.support.builders import naive_match

NEVER: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Wish:
    """One subscription."""

    qos: int
    no_local: bool = False


@dataclass(slots=True, eq=False)
class Life:
    """One session from its start to its end."""

    client_id: str
    expiry: int = 0
    wishes: dict[str, Wish] = field(default_factory=dict)
    ends_at: float | None = None
    is_over: bool = False
    # The number of deliveries of each payload, and the last message of each publisher.
    delivered: dict[bytes, int] = field(default_factory=dict)
    # How often each message came as a new one, not as a repeat with DUP.
    came_new: dict[bytes, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    def wants(self, topic: str, publisher: str) -> int | None:
        """Return the QoS at which the session receives a message; None if it does not."""
        grants = [
            wish.qos
            for text, wish in self.wishes.items()
            if naive_match(text, topic) and not (wish.no_local and publisher == self.client_id)
        ]
        return max(grants, default=None)


@dataclass(slots=True, eq=False)
class Message:
    """One message, and the sessions to which it is owed."""

    publisher: str
    topic: str
    payload: bytes
    qos: int
    # Set by a will, or by the acknowledgement.
    is_due: bool = False
    takes: int = 0
    order: int = 0
    first: dict[Life, int] = field(default_factory=dict)
    owed: dict[Life, int] = field(default_factory=dict)


class BrokerModel:
    """All sessions and messages; the owner of the time sets `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lives: dict[str, Life] = {}
        self.messages: dict[bytes, Message] = {}
        self.wills: dict[str, tuple[Message, float]] = {}
        self._heard: list[tuple[Life, Publish]] = []
        self._taken = 0
        self._numbers = 0

    def new_message(self, publisher: str, topic: str, qos: int) -> Message:
        """Create a unique message."""
        self._numbers += 1
        payload = b"%s %d" % (publisher.encode(), self._numbers)
        message = Message(publisher=publisher, topic=topic, payload=payload, qos=qos)
        self.messages[payload] = message
        return message

    def take(self, message: Message, source: str) -> None:
        """Owe a message to the sessions that want it now."""
        if message.takes and message.qos == 2:
            return
        self._taken += 1
        message.takes += 1
        for life in self.lives.values():
            granted = life.wants(message.topic, source)
            if granted is not None:
                qos = min(granted, message.qos)
                message.owed[life] = max(qos, message.owed.get(life, 0))
                if message.takes == 1:
                    message.order = self._taken
                    message.first[life] = qos

    def begin(self, client_id: str, *, clean: bool, expiry: int) -> tuple[Life, bool]:
        """Accept a connection; return the session, and whether it existed before."""
        known = self.lives.get(client_id)
        if known is not None and clean:
            self.end(known)
            known = None
        life = known
        if life is None:
            life = Life(client_id)
            self.lives[client_id] = life
        self.wills.pop(client_id, None)
        life.expiry = expiry
        life.ends_at = None
        return life, known is not None

    def leave(self, life: Life, will: Message | None, delay: int) -> None:
        """End a connection, with its will if it has one."""
        if will is not None:
            self.wills[life.client_id] = (will, self.now + delay)
            self._fire()
        if life.expiry == 0:
            self.end(life)
        elif life.expiry != NEVER:
            life.ends_at = self.now + life.expiry

    def end(self, life: Life) -> None:
        """End a session, and publish its pending will."""
        life.is_over = True
        del self.lives[life.client_id]
        will = self.wills.pop(life.client_id, None)
        if will is not None:
            self._publish(will[0], life.client_id)

    def advance(self, seconds: float) -> None:
        """Advance the time. A session that ends meanwhile is owed everything that it may have
        received.
        """
        self.now += seconds
        self._fire()
        for life in list(self.lives.values()):
            if life.ends_at is not None and life.ends_at <= self.now:
                self.end(life)

    def _fire(self) -> None:
        for client_id, (will, at) in list(self.wills.items()):
            if at <= self.now:
                del self.wills[client_id]
                self._publish(will, client_id)

    def _publish(self, will: Message, client_id: str) -> None:
        will.is_due = True
        self.take(will, client_id)

    def deliver(self, life: Life, packet: Publish) -> None:
        """Record a delivery; it is checked when everything that happened with it is known."""
        self._heard.append((life, packet))

    def check_heard(self) -> None:
        """Check that the last deliveries were owed."""
        heard, self._heard = self._heard, []
        for life, packet in heard:
            if not life.is_over:
                self._check(life, packet)

    def _check(self, life: Life, packet: Publish) -> None:
        message = self.messages[packet.payload]
        assert packet.topic.decode() == message.topic
        assert life in message.owed, f"{life.client_id} is not owed {packet}"
        assert packet.qos <= message.owed[life]
        count = life.delivered.get(message.payload, 0) + 1
        life.delivered[message.payload] = count
        if packet.qos == 2:
            assert count == 1, f"{life.client_id} got {packet} {count} times"
        new = life.came_new.get(message.payload, 0) + (not packet.dup)
        life.came_new[message.payload] = new
        if packet.qos == 0:
            assert new <= message.takes
        first_qos = message.first.get(life)
        # A QoS 0 offer to a session that was away is lost. It may arrive late, when it is sent
        # again.
        if count == 1 and first_qos is not None and (first_qos > 0 or message.takes == 1):
            last = life.last.get(message.publisher, 0)
            assert message.order > last, f"{packet} came after later ones of its publisher"
            life.last[message.publisher] = message.order

    def check_all_arrived(self) -> None:
        """Check that every session received everything that it must receive."""
        missing = [
            (life.client_id, message)
            for message in self.messages.values()
            if message.is_due
            for life, qos in message.owed.items()
            if qos > 0 and not life.is_over and message.payload not in life.delivered
        ]
        assert missing == []
