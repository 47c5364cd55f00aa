"""A naive model of what a broker with durable sessions must deliver.

A message is owed to a session when it is stored, by the subscriptions that the session has then. A
stored message must arrive while a QoS 1 or 2 subscription matches it. A message that is no longer
wanted, has expired, or was wanted with QoS 0, may arrive. Nothing else may arrive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from siltstone.mqtt.packets import Publish
from tests.support.broker_model import NEVER, Wish
from tests.support.builders import naive_match

SECOND_US: Final = 1_000_000


@dataclass(slots=True, eq=False)
class Message:
    """One unique message."""

    publisher: str
    topic: str
    payload: bytes
    qos: int
    expiry: int | None
    is_vague: bool = False
    # How often it was stored, the place of its first row among all rows, and the time of it.
    rows: int = 0
    rank: int = 0
    stored_us: int = 0
    is_acked: bool = False


@dataclass(slots=True, eq=False)
class Owed:
    """A message that is owed to a session."""

    message: Message
    must: bool
    qos_max: int
    # Whether the same subscriptions wanted it throughout.
    is_plain: bool = True
    # How often its client took it as new; how often it was written to a wire, and how often of
    # these without the DUP flag; its last packet id.
    delivered: int = 0
    written: int = 0
    fresh: int = 0
    packet_id: int = 0


@dataclass(slots=True, eq=False)
class Life:
    """One session from its start to its end."""

    client_id: str
    expiry: int = 0
    wishes: dict[str, Wish] = field(default_factory=dict)
    # Filters whose last change may not be on disk, and their earlier values.
    unsure: dict[str, Wish | None] = field(default_factory=dict)
    is_connected: bool = False
    left_us: int = 0
    ends_us: int | None = None
    is_over: bool = False
    # Whether the broker crashed while the session was connected.
    is_doubtful: bool = False
    owed: dict[bytes, Owed] = field(default_factory=dict)
    last: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def grant(self, message: Message, wishes: dict[str, Wish]) -> int | None:
        """Return the QoS at which it receives a message by these wishes; None if it does not."""
        grants = [
            min(wish.qos, message.qos)
            for text, wish in wishes.items()
            if naive_match(text, message.topic)
            and not (wish.no_local and message.publisher == self.client_id)
        ]
        return max(grants, default=None)

    def take(self, message: Message, *, is_kept: bool) -> None:
        """Owe it a message; it must receive the message if is_kept is set."""
        before = {text: wish for text, wish in self.unsure.items() if wish is not None}
        may = self.grant(message, before | self.wishes)
        possible = self.grant(message, before)
        if may is None and possible is None:
            return
        granted = self.grant(message, self.wishes)
        known = self.owed.get(message.payload)
        qos_max = max(may or 0, possible or 0)
        must = is_kept and bool(granted)
        if known is None:
            self.owed[message.payload] = Owed(message, must, qos_max)
        else:
            known.must = known.must or must
            known.qos_max = max(known.qos_max, qos_max)
            known.is_plain = False

    def set_wish(self, text: str, wish: Wish | None) -> None:
        """Change a subscription; undelivered messages are then owed by the new subscriptions."""
        if wish is None:
            self.wishes.pop(text, None)
        else:
            self.wishes[text] = wish
        for owed in self.owed.values():
            if naive_match(text, owed.message.topic):
                granted = self.grant(owed.message, self.wishes)
                owed.must = owed.must and bool(granted)
                owed.qos_max = max(owed.qos_max, granted or 0)
                owed.is_plain = False


class DurableModel:
    """All sessions and messages; `now_us` is the wall time."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.lives: dict[str, Life] = {}
        self.messages: dict[bytes, Message] = {}
        # After a change of the wall clock, the expiry of messages cannot be known from outside.
        self.has_jumped = False
        self._rank = 0

    def new_message(self, publisher: str, topic: str, qos: int, expiry: int | None) -> Message:
        """Make a message."""
        payload = b"%s %d" % (publisher.encode(), len(self.messages))
        message = Message(publisher, topic, payload, qos, expiry)
        self.messages[payload] = message
        return message

    def tell_time(self, now_us: int) -> None:
        """Record the time; expired messages are no longer owed, even if the clock goes back."""
        self.now_us = now_us
        for life in self.lives.values():
            for owed in life.owed.values():
                owed.must = owed.must and not self.is_expired(owed.message)

    # Sessions.

    def begin(self, client_id: str, *, clean: bool, expiry: int) -> tuple[Life, bool]:
        """Accept a connection; return the session, and whether it existed before."""
        known = self.lives.get(client_id)
        if known is not None and (clean or self.is_over(known)):
            self.end(known)
            known = None
        life = known or Life(client_id)
        self.lives[client_id] = life
        life.expiry = expiry
        life.is_connected = True
        life.ends_us = None
        return life, known is not None

    def leave(self, life: Life) -> None:
        """End a connection."""
        life.is_connected = False
        if life.expiry == 0:
            self.end(life)
        else:
            self.away_since(life, self.now_us)

    def away_since(self, life: Life, at_us: int) -> None:
        """Start the time away of a session."""
        life.is_connected = False
        life.left_us = at_us
        life.ends_us = None if life.expiry == NEVER else at_us + life.expiry * SECOND_US

    def end(self, life: Life) -> None:
        life.is_over = True
        del self.lives[life.client_id]

    def sweep(self) -> None:
        """End the expired sessions, as the broker does periodically."""
        for life in list(self.lives.values()):
            if self.is_over(life):
                self.end(life)

    def is_over(self, life: Life) -> bool:
        return life.ends_us is not None and life.ends_us <= self.now_us

    # Messages.

    def stored(self, payload: bytes) -> None:
        """Record a stored row."""
        message = self.messages[payload]
        message.rows += 1
        if message.rows == 1:
            self._rank += 1
            message.rank = self._rank
            message.stored_us = self.now_us
        for life in self.lives.values():
            if life.expiry:
                life.take(message, is_kept=True)

    def sent_unstored(self, message: Message) -> None:
        """Record a message that is not stored; connected sessions may receive it."""
        message.rows += 1
        message.stored_us = self.now_us
        for life in self.lives.values():
            life.take(message, is_kept=False)

    def is_expired(self, message: Message, *, since_us: int = 0) -> bool:
        """Return whether a message expired at least since_us ago; rows have times of their own."""
        return (
            message.expiry is not None
            and message.rows > 0
            and message.stored_us + message.expiry * SECOND_US + since_us <= self.now_us
        )

    def written(self, life: Life, packet: Publish) -> Owed:
        """Check a PUBLISH that was written to a connection, whether it was read or not."""
        owed = life.owed.get(packet.payload)
        assert owed is not None, f"{life.client_id} is not owed {packet}"
        message = owed.message
        assert packet.topic.decode() == message.topic
        assert packet.qos <= owed.qos_max, f"{packet} has too high a QoS"
        if packet.dup:
            # [MQTT-3.3.1-1]: it was certainly not sent before.
            assert owed.written or life.is_doubtful, f"{packet} is new to {life.client_id}"
            if owed.packet_id and message.rows == 1:
                # [MQTT-4.4.0-1].
                assert packet.packet_id == owed.packet_id, f"{packet} has had another id"
        else:
            owed.fresh += 1
            assert owed.fresh <= message.rows, f"{packet} was sent to {life.client_id} before"
            is_late = self.is_expired(message, since_us=SECOND_US)
            assert self.has_jumped or not is_late, f"{packet} has expired"
        owed.written += 1
        owed.packet_id = packet.packet_id
        return owed

    def deliver(self, life: Life, owed: Owed, packet: Publish) -> None:
        """Check a message that a client took as new."""
        message = owed.message
        owed.delivered += 1
        if packet.qos == 2:
            assert owed.delivered == 1, f"{life.client_id} got {packet} twice"
        if packet.qos == 0:
            assert owed.delivered <= message.rows
        if owed.delivered == 1 and owed.is_plain and message.rank:
            key = (message.publisher, message.topic, packet.qos)
            assert message.rank > life.last.get(key, 0), f"{packet} came after later ones"
            life.last[key] = message.rank

    def crashed(self) -> None:
        """Record that the broker has crashed."""
        for life in list(self.lives.values()):
            if life.expiry == 0:
                self.end(life)
                continue
            life.is_doubtful = True
            for owed in life.owed.values():
                if not owed.message.rank:
                    # It is not stored. A session that had it in flight may receive it again.
                    owed.is_plain = False
                if owed.message.qos == 1 or owed.qos_max < 2:
                    owed.packet_id = 0

    def check_stored(self, values: list[bytes]) -> None:
        """Check that acknowledged messages are in the store, and QoS 2 messages once."""
        counts = Counter(values)
        for message in self.messages.values():
            assert counts[message.payload] == (message.rows if message.rank else 0)
            assert message.qos != 2 or counts[message.payload] <= 1, f"{message} is there twice"

    def check_all_arrived(self) -> None:
        """Check that every session received everything that it must receive."""
        missing = [
            (life.client_id, owed.message)
            for life in self.lives.values()
            for owed in life.owed.values()
            if owed.must and not owed.delivered and not owed.message.is_vague
        ]
        assert missing == []
