"""Rows of a store as feeds deliver them, and members of a share group that receive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from siltstone.mqtt.publish import PUBACK
from siltstone.rows.stored import StoredBatch
from siltstone.session.lending import Member
from siltstone.session.sending.outbox import Outbox
from tests.support.receiver import make_outbox

V5 = 5
BUFFER = 1 << 20


def rows_of(
    first: int,
    topics: Sequence[bytes],
    *,
    shard: int = 0,
    qos: int = 1,
    publishers: Sequence[bytes] = (),
    properties: Sequence[bytes] = (),
    arrived_us: int = 0,
) -> StoredBatch:
    """Return consecutive rows; each value is the serial."""
    count = len(topics)
    batch = StoredBatch(shard, 0, first, first + count, count)
    batch.serials = list(range(first, first + count))
    batch.topics = list(topics)
    batch.names = list(dict.fromkeys(topics))
    batch.values = [b"%d" % serial for serial in batch.serials]
    batch.flags = [qos] * count
    batch.timestamps = [arrived_us] * count
    batch.publishers = list(publishers) or [b"p"] * count
    batch.properties = list(properties)
    return batch


def outbox_of(*, window: int = 100, messages_max: int = 1000) -> Outbox:
    """Return the outbox of a client that reads everything."""
    outbox = make_outbox(messages_max=messages_max)
    outbox.attach(V5, window, 0, BUFFER, 0, 0.0)
    return outbox


def member_of(
    outbox: Outbox | None = None,
    *,
    qos: int = 2,
    credit: int = 100,
    keeps_retain: bool = False,
    identifier: bytes = b"",
    guard: Callable[[bytes], bool] | None = None,
) -> Member:
    return Member(outbox or outbox_of(), qos, keeps_retain, identifier, guard, credit)


def has(member: Member) -> list[bytes]:
    """Return the values that a member was lent and has not acknowledged, in order."""
    sent = [each.payload for each in member.outbox.deliveries() if each.loan is not None]
    return sent + [each.payload for each in member.outbox.waiting() if each.loan is not None]


def acknowledge(member: Member, count: int) -> list[bytes]:
    """Acknowledge the oldest QoS 1 messages that were sent; return their values."""
    sent = [each for each in member.outbox.deliveries() if each.sent and each.flags & 3 == 1]
    ended = sent[:count]
    values = [each.payload for each in ended]
    member.outbox.acknowledge(PUBACK, [each.packet_id for each in ended], 0.0)
    return values
