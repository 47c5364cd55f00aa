"""A naive model of what the members of one share group may and must receive.

Every message that is stored while the group exists must be acknowledged by a member in the end. It
is sent to one member at a time: to another member, or again, only after it was taken back. The only
exception is a message that is lost to a volatile member in the middle of QoS 2.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from siltstone.mqtt.packets import (
    ConnAck,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
)
from tests.support.broker_core import Wire

TIMEOUT: Final = 10.0


@dataclass(slots=True, eq=False)
class Sent:
    """One message of the group."""

    publisher: str
    topic: str
    rank: int
    must: bool
    holder: str = ""
    held_qos: int = 0
    # The number of deliveries, and of those before the group was moved.
    deliveries: int = 0
    moved: int = 0
    is_acked: bool = False
    # The members that own it by QoS 2: their sessions complete it, whatever happens to the group.
    owners: set[str] = field(default_factory=set)
    # Whether it may be delivered again, and whether its acknowledgement is on disk.
    may_repeat: bool = False
    is_safe: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """One client of the group, connected or not."""

    name: str
    is_durable: bool
    wire: Wire | None = None
    is_member: bool = False
    active_at: float = 0.0
    # The answers that it has not sent yet, with the message and the delivery of each.
    owed: deque[tuple[Packet, Sent | None, int]] = field(default_factory=deque)


class GroupModel:
    """One group and all messages that were published to it."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Sent] = {}
        self.members: dict[str, Member] = {}
        # Whether it outlives its members.
        self.is_kept = False
        # Whether new messages of a publisher, topic and QoS come in order.
        self.is_ordered = False
        self._last: dict[tuple[str, str, int], int] = {}

    def there(self) -> list[Member]:
        """Return the current members."""
        return [member for member in self.members.values() if member.is_member]

    def published(self, value: bytes, publisher: str, topic: str) -> None:
        """Record a stored message."""
        must = self.is_kept or bool(self.there())
        self.messages[value] = Sent(publisher, topic, len(self.messages), must)

    def joined(self, member: Member, now: float) -> None:
        """Record a new member, or one that has subscribed again."""
        self._look_for_stall(member, now)
        member.is_member = True
        member.active_at = now
        self.is_kept = self.is_kept or member.is_durable

    def _look_for_stall(self, member: Member, now: float) -> None:
        """Record messages that may have been taken back from a member after its timeout."""
        if now - member.active_at > TIMEOUT:
            for sent in self.messages.values():
                sent.may_repeat = sent.may_repeat or sent.holder == member.name

    def left(self, member: Member, *, is_gone: bool) -> None:
        """Take back the messages of a member; is_gone means that its connection has ended."""
        member.is_member = False
        for sent in self.messages.values():
            if sent.holder == member.name:
                self._take_back(sent, member, is_gone=is_gone)
        # Answers to messages that were taken back no longer concern the group.
        member.owed = deque(
            (packet, sent, number if sent is not None and sent.holder == member.name else 0)
            for packet, sent, number in member.owed
        )
        if is_gone:
            member.wire = None
            member.owed.clear()
        if not self.there() and not self.is_kept:
            self.ended()

    def _take_back(self, sent: Sent, member: Member, *, is_gone: bool) -> None:
        if sent.held_qos < 2:
            sent.may_repeat = True
            sent.holder = ""
        elif is_gone and not member.is_durable:
            sent.must = False
            sent.holder = ""

    def ended(self) -> None:
        """Record that the group has ended, with everything that waits for it."""
        self.is_kept = False
        for sent in self.messages.values():
            sent.must = False

    def saved(self) -> None:
        """Record that everything that was acknowledged is on disk."""
        for sent in self.messages.values():
            sent.is_safe = sent.is_acked

    def crashed(self) -> None:
        """Record that the broker has crashed."""
        for member in self.members.values():
            if member.wire is not None:
                self.left(member, is_gone=True)
        for sent in self.messages.values():
            sent.may_repeat = sent.may_repeat or not sent.is_safe
            if sent.may_repeat and sent.held_qos == 2 and not sent.is_acked and sent.must:
                # Both the session and the group may deliver it.
                sent.holder = ""

    def moved(self, *, is_back: bool) -> None:
        """Record that the group starts again at the beginning, or continues at the end."""
        for sent in self.messages.values():
            sent.may_repeat = sent.may_repeat or is_back
            sent.must = is_back
            sent.is_acked = sent.is_safe = False
            sent.moved = sent.deliveries
        self.is_ordered = self.is_ordered and not is_back

    # Messages to members.

    def take(self, member: Member, packet: Packet, now: float) -> None:
        """Process one packet that a member received."""
        match packet:
            case Publish():
                self._deliver(member, packet, now)
            case PubRel():
                member.owed.append((PubComp(packet_id=packet.packet_id), None, 0))
            case SubAck():
                self.joined(member, now)
            case ConnAck() | UnsubAck():
                pass
            case _:
                raise AssertionError(packet)

    def _deliver(self, member: Member, packet: Publish, now: float) -> None:
        sent = self.messages[packet.payload]
        is_own = packet.dup and member.name in sent.owners
        if sent.deliveries == 0:
            key = (sent.publisher, sent.topic, packet.qos)
            assert not self.is_ordered or sent.rank > self._last.get(key, -1), f"{packet} too late"
            self._last[key] = sent.rank
        elif not sent.may_repeat and not is_own:
            holder = self.members.get(sent.holder)
            assert holder is not None, f"{packet} was acknowledged before, now to {member.name}"
            assert now - holder.active_at > TIMEOUT, f"{packet} is with {holder}, now to {member}"
        sent.deliveries += 1
        sent.may_repeat = sent.may_repeat and is_own
        sent.holder = member.name
        sent.held_qos = packet.qos
        if packet.qos == 2 and member.is_durable:
            sent.owners.add(member.name)
        answer = PubAck if packet.qos == 1 else PubRec
        member.owed.append((answer(packet_id=packet.packet_id), sent, sent.deliveries))

    def acknowledge(self, member: Member, count: int, now: float) -> None:
        """Let a member send some of its pending answers, in order."""
        assert member.wire is not None
        self._look_for_stall(member, now)
        for _ in range(min(count, len(member.owed))):
            packet, sent, number = member.owed.popleft()
            member.active_at = now
            if sent is None or number <= sent.moved:
                pass
            elif sent.deliveries == number and sent.holder == member.name:
                sent.is_acked = True
                sent.is_safe = False
                sent.holder = ""
            else:
                # Another member has it, or will receive it.
                sent.is_acked = sent.may_repeat = True
            member.wire.send(packet)

    def check_all_arrived(self) -> None:
        """Check that a member has acknowledged every message that the group must receive."""
        missing = [
            value for value, sent in self.messages.items() if sent.must and not sent.is_acked
        ]
        assert missing == []
