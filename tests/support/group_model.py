"""What the members of one share group may and must be sent, kept naively.

Every message that is stored while there is a group must be acknowledged by somebody in the end. It
is sent to one member at a time: to another, or once more, only after it was taken back from who had
it. What is lost to a volatile member in the middle of QoS 2 is the one exception.
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
    # How often it was delivered, and how often of these before the group was moved.
    deliveries: int = 0
    moved: int = 0
    is_acked: bool = False
    # Whose own it is, by QoS 2: their sessions finish it whatever becomes of the group.
    owners: set[str] = field(default_factory=set)
    # Whether it may come once more, and whether its end is on disk.
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
    # What it has not answered yet, and which delivery of which message that is about.
    owed: deque[tuple[Packet, Sent | None, int]] = field(default_factory=deque)


class GroupModel:
    """One group and all that was ever published to it."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Sent] = {}
        self.members: dict[str, Member] = {}
        # Whether it outlives its members.
        self.is_kept = False
        # Whether new messages of a publisher, topic and QoS come in order.
        self.is_ordered = False
        self._last: dict[tuple[str, str, int], int] = {}

    def there(self) -> list[Member]:
        """Return who is in the group."""
        return [member for member in self.members.values() if member.is_member]

    def published(self, value: bytes, publisher: str, topic: str) -> None:
        """Take note of a message that is stored."""
        must = self.is_kept or bool(self.there())
        self.messages[value] = Sent(publisher, topic, len(self.messages), must)

    def joined(self, member: Member, now: float) -> None:
        """Take note of a new member, or of one that has subscribed again."""
        self._look_for_stall(member, now)
        member.is_member = True
        member.active_at = now
        self.is_kept = self.is_kept or member.is_durable

    def _look_for_stall(self, member: Member, now: float) -> None:
        """Take note of what may have been taken back from who has done nothing for so long."""
        if now - member.active_at > TIMEOUT:
            for sent in self.messages.values():
                sent.may_repeat = sent.may_repeat or sent.holder == member.name

    def left(self, member: Member, *, is_gone: bool) -> None:
        """Take back what a member had; it is gone where its connection is."""
        member.is_member = False
        for sent in self.messages.values():
            if sent.holder == member.name:
                self._take_back(sent, member, is_gone=is_gone)
        # What was taken back means nothing to the group any more.
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
        """Take note that the group is no more, with all that waits for it."""
        self.is_kept = False
        for sent in self.messages.values():
            sent.must = False

    def saved(self) -> None:
        """Take note that everything that was acknowledged is on disk."""
        for sent in self.messages.values():
            sent.is_safe = sent.is_acked

    def crashed(self) -> None:
        """Take note that the broker stopped without a word."""
        for member in self.members.values():
            if member.wire is not None:
                self.left(member, is_gone=True)
        for sent in self.messages.values():
            sent.may_repeat = sent.may_repeat or not sent.is_safe
            if sent.may_repeat and sent.held_qos == 2 and not sent.is_acked and sent.must:
                # Both the session and the group may have it.
                sent.holder = ""

    def moved(self, *, is_back: bool) -> None:
        """Take note that the group begins anew at the beginning, or goes on at the end."""
        for sent in self.messages.values():
            sent.may_repeat = sent.may_repeat or is_back
            sent.must = is_back
            sent.is_acked = sent.is_safe = False
            sent.moved = sent.deliveries
        self.is_ordered = self.is_ordered and not is_back

    # What members are sent.

    def take(self, member: Member, packet: Packet, now: float) -> None:
        """Take one packet that a member has got."""
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
        """Let a member send some of the answers that it owes, in order."""
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
                # Somebody else has it, or is about to get it.
                sent.is_acked = sent.may_repeat = True
            member.wire.send(packet)

    def check_all_arrived(self) -> None:
        """Claim that somebody has acknowledged every message that the group must have got."""
        missing = [
            value for value, sent in self.messages.items() if sent.must and not sent.is_acked
        ]
        assert missing == []
