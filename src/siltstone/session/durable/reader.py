"""The selection of the rows that a durable session delivers from the store.

Every row that any subscription could want is read once, in the order of its shard. A row that
several subscriptions match is one message, with the highest QoS and all identifiers. A row is
skipped if it is older than the subscription, was acknowledged before this connection, is the
session's own message under no local, has expired, or has QoS 0 and arrived while the client was
disconnected.
"""

from __future__ import annotations

from typing import Final, cast

from siltstone.mqtt.publish import NO_EXPIRY, with_time_left
from siltstone.rows.batch import DUP
from siltstone.rows.stored import StoredBatch, rows_by_time
from siltstone.session.durable.backlog import Backlog
from siltstone.session.durable.progress import SessionProgress, ShardProgress
from siltstone.session.durable.wanted import WantedFilter
from siltstone.session.sending.delivery import NEVER, Delivery, left_us_of, properties_of
from siltstone.session.sending.outbox import Outbox
from siltstone.topic.matcher import Matcher
from siltstone.units import SECOND_US

# The user property that tells a client how many rows were lost before this message.
LOST_PROPERTY: Final = b"siltstone-lost-rows"
_WANTS_MAX: Final = 10_000
_ROW_FLAGS: Final = 7


class Want:
    """The combined options of all subscriptions that match a topic. `since` holds for each shard
    the row from which on all of them apply.
    """

    def __init__(self, filters: list[WantedFilter]) -> None:
        self.filters = filters
        self.qos = -1
        self.away_qos = -1
        self.keeps_retain = False
        self.identifiers = b""
        self.since: dict[int, int] = {}
        self.latest = 0
        # The options for the session's own messages, if they differ.
        self.own: Want | None = None
        for wanted in filters:
            self.qos = max(self.qos, wanted.qos)
            self.away_qos = max(self.away_qos, wanted.away_qos)
            self.keeps_retain = self.keeps_retain or wanted.keeps_retain
            # [MQTT-3.3.4-3]: the identifiers of all subscriptions that match.
            self.identifiers += wanted.identifier
            for shard, serial in wanted.since.items():
                self.since[shard] = max(self.since.get(shard, 0), serial)
                self.latest = max(self.latest, serial)


def _want(filters: list[WantedFilter]) -> Want:
    want = Want(filters)
    # [MQTT-3.8.3-3].
    others = [wanted for wanted in filters if not wanted.no_local]
    if len(others) < len(filters):
        want.own = Want(others)
    return want


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


class Reader:
    """Offers rows to the outbox of one session while its client is connected."""

    def __init__(self, publisher: bytes, outbox: Outbox, progress: SessionProgress) -> None:
        self._publisher = publisher
        self._outbox = outbox
        self.progress = progress
        self._matcher = Matcher()
        self._wants: dict[bytes, Want] = {}
        # Rows older than this, in µs, are dropped; 0 means no limit.
        self.age_max_us = 0
        # The limits for rows that waited while the client was disconnected; None means no limit.
        self.backlog: Backlog | None = None
        self.expired = 0
        self.dropped = 0
        # Lost rows, which the next message of QoS 1 or 2 reports.
        self._untold = 0

    def put(self, text: str, levels: tuple[bytes, ...], wanted: WantedFilter) -> None:
        """Add a filter, or replace its former options."""
        self._matcher.put(levels, text, wanted)
        self._wants.clear()

    def remove(self, text: str, levels: tuple[bytes, ...]) -> None:
        """Remove a filter."""
        self._matcher.remove(levels, text)
        self._wants.clear()

    def forget_rights(self) -> None:
        """Clear the cached rights, so that they are checked again."""
        self._wants.clear()

    def receive(self, batch: StoredBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Take the rows of a batch that are for this session; None means all rows.

        The rows are recorded in the order of their serials and offered in the order of their
        timestamps, because a batch groups its rows by stream.
        """
        lane = self.progress.lane(batch.shard)
        found: list[Delivery] = []
        offered: list[int] = []
        left_out: list[int] = []
        for index in rows_by_time(batch, rows):
            serial = batch.serials[index]
            if lane.done and serial in lane.done:
                left_out.append(serial)
                self.progress.freed += 1
                continue
            taken = self._take(batch, index, serial, lane, now, wall_us)
            if taken is not None:
                found.append(taken)
                if taken.lane is not None:
                    offered.append(serial)
        # This comes before the offers: a row that cannot be sent completes at once.
        lane.come_by(offered, left_out)
        outbox = self._outbox
        for delivery in found:
            if delivery.lane is None:
                outbox.offer(
                    delivery.topic,
                    delivery.payload,
                    delivery.flags,
                    delivery.properties,
                    delivery.expires_at,
                )
            else:
                outbox.offer_row(delivery, lane, delivery.serial)

    def lost(self, serials: int) -> None:
        """Record rows that were dropped from the store before they were read. It is unknown which
        of them this session wanted, so all of them count.
        """
        self.dropped += serials
        self._untold += serials

    def passed(self, shard: int, next_serial: int) -> None:
        """Record that every row before a serial was read."""
        lane = self.progress.lane(shard)
        lane.pass_by(next_serial)
        if lane.sent_before:
            # The rows of these messages are gone from the store, or are not wanted any more.
            gone = [each for each in lane.sent_before.values() if each.serial < next_serial]
            for each in gone:
                del lane.sent_before[each.serial]
            for each in gone:
                self._outbox.give_up(each.packet_id, each.flags & 3)

    def wants(self, topic: bytes) -> bool:
        """Tell whether any subscription matches a topic that the session may read."""
        return self._want_of(topic).qos >= 0

    def _take(
        self,
        batch: StoredBatch,
        index: int,
        serial: int,
        lane: ShardProgress,
        now: float,
        wall_us: int,
    ) -> Delivery | None:
        """Return the delivery of a row; None if the session skips the row."""
        want = self._wanted(batch, index, lane.shard, serial)
        sent = lane.sent_before.get(serial) if lane.sent_before else None
        if sent is None:
            flags = batch.flags[index]
            qos = min(flags & 3, want.qos)
            if qos <= 0 and (qos < 0 or not self._waited(flags & 3, want, serial, lane)):
                self.progress.freed += 1
                return None
            # [MQTT-3.3.1-12], [MQTT-3.3.1-13].
            flags = qos | (flags & 4) if want.keeps_retain else qos
        elif self._may_finish(batch.topics[index], want):
            # With the options that applied when its delivery began, whatever the subscription is
            # now.
            flags, qos = sent.flags & _ROW_FLAGS, sent.flags & 3
        else:
            self.progress.freed += 1
            return None
        properties = properties_of(batch, index)
        expires_at = NEVER
        left_us = left_us_of(properties, batch.came_us(index), wall_us)
        if left_us != NO_EXPIRY:
            if left_us == 0 and sent is None:
                self.expired += 1
                self.progress.freed += 1
                return None
            # [MQTT-3.3.2-6]: less the time that the message waited in the store.
            properties = with_time_left(properties, left_us)
            expires_at = now + left_us / SECOND_US
        if sent is None and self._is_too_much(batch, index, lane, wall_us):
            self.dropped += 1
            self.progress.freed += 1
            return None
        if want.identifiers:
            properties += want.identifiers
        delivery = Delivery(batch.topics[index], batch.values[index], flags, properties, expires_at)
        if qos == 0:
            self.progress.freed += 1
            return delivery
        if self._untold:
            delivery.properties += b"\x26" + _text(LOST_PROPERTY) + _text(b"%d" % self._untold)
            self._untold = 0
        delivery.lane = lane
        delivery.serial = serial
        # [MQTT-3.3.1-1]: DUP if the row was sent on an earlier connection, or may have been. A QoS
        # 2 message without a saved packet id was certainly not sent.
        if sent is not None:
            del lane.sent_before[serial]
            delivery.packet_id = sent.packet_id
            delivery.is_unsent = sent.flags & DUP == 0
            delivery.flags |= sent.flags & DUP
        elif qos == 1 and serial < lane.doubtful_until:
            delivery.flags |= DUP
        return delivery

    def _waited(self, qos: int, want: Want, serial: int, lane: ShardProgress) -> bool:
        """Tell whether a row that is sent with QoS 0 is for this client: it arrived while the
        client was connected, or it waited for the client. [MQTT-3.8.4-4]: a waiting row is not lost
        because the subscription now has a lower QoS.
        """
        return serial >= lane.missed_until or min(qos, want.away_qos) > 0

    def _is_too_much(
        self, batch: StoredBatch, index: int, lane: ShardProgress, wall_us: int
    ) -> bool:
        """Tell whether a row is dropped because of the limits of the session."""
        if self.age_max_us and batch.came_us(index) + self.age_max_us < wall_us:
            return True
        backlog = self.backlog
        return (
            backlog is not None
            and batch.serials[index] < lane.missed_until
            and not backlog.admits(len(batch.values[index]))
        )

    def _wanted(self, batch: StoredBatch, index: int, shard: int, serial: int) -> Want:
        want = self._want_of(batch.topics[index])
        if serial < want.latest and serial < want.since.get(shard, 0):
            # One subscription is newer than others, so not all of them apply to this row.
            want = _want(
                [wanted for wanted in want.filters if serial >= wanted.since.get(shard, 0)]
            )
        own = want.own
        if own is not None and batch.publishers[index] == self._publisher:
            return own
        return want

    def _may_finish(self, topic: bytes, want: Want) -> bool:
        """Tell whether to continue a delivery that has begun: [MQTT-3.10.4-3] yes, also if no
        subscription matches any more, but not if the session may no longer read the topic.
        """
        return want.qos >= 0 or not self._matcher.match(topic)

    def _want_of(self, topic: bytes) -> Want:
        return self._wants.get(topic) or self._find(topic)

    def _find(self, topic: bytes) -> Want:
        """Compute the wanted options of a topic and cache them."""
        filters: list[WantedFilter] = []
        for value in self._matcher.match(topic):
            wanted = cast("WantedFilter", value)
            if wanted.may_receive(topic):
                filters.append(wanted)
        if len(self._wants) >= _WANTS_MAX:
            self._wants.clear()
        want = _want(filters)
        self._wants[topic] = want
        return want
