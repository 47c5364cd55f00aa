"""What a durable session makes of the rows of the store: which it wants, how, and how often.

Every row that any of its subscriptions could want comes by once, in the order of its shard. A row
that several subscriptions match is one message, with the highest QoS and all identifiers. It is
left out where it came before the subscription, was acknowledged before this connection, is the
session's own and not wanted, has expired, or has QoS 0 and came while the client was away.
"""

from __future__ import annotations

from typing import Final, cast

from siltstone.mqtt.publish import NO_EXPIRY, with_time_left
from siltstone.session.durable.backlog import Backlog
from siltstone.session.durable.progress import Progress, ShardProgress
from siltstone.session.durable.wanted import WantedFilter
from siltstone.session.sending.delivery import DUP, NEVER, Delivery, left_us_of, properties_of
from siltstone.session.sending.outbox import Outbox
from siltstone.store.feed.rows.batch import FeedBatch, rows_by_time
from siltstone.topic.matcher import Matcher

# The user property that tells a client how many rows are gone before the message that has it.
LOST_PROPERTY: Final = b"siltstone-lost-rows"
_WANTS_MAX: Final = 10_000
_ROW_FLAGS: Final = 7
_US: Final = 1_000_000


class Want:
    """What all subscriptions that match a topic ask for; `since` says from which row of a shard on
    all of them do.
    """

    def __init__(self, wishes: list[WantedFilter]) -> None:
        self.wishes = wishes
        self.qos = -1
        self.away_qos = -1
        self.keeps_retain = False
        self.identifiers = b""
        self.since: dict[int, int] = {}
        self.latest = 0
        # What the session gets of its own messages, where that differs.
        self.own: Want | None = None
        for wish in wishes:
            self.qos = max(self.qos, wish.qos)
            self.away_qos = max(self.away_qos, wish.away_qos)
            self.keeps_retain = self.keeps_retain or wish.keeps_retain
            # [MQTT-3.3.4-3]: the identifiers of all subscriptions that match.
            self.identifiers += wish.identifier
            for shard, serial in wish.since.items():
                self.since[shard] = max(self.since.get(shard, 0), serial)
                self.latest = max(self.latest, serial)


def _want(wishes: list[WantedFilter]) -> Want:
    want = Want(wishes)
    # [MQTT-3.8.3-3].
    others = [wish for wish in wishes if not wish.no_local]
    if len(others) < len(wishes):
        want.own = Want(others)
    return want


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


class Reader:
    """Offers rows to the outbox of one session while it is connected."""

    def __init__(self, publisher: bytes, outbox: Outbox, progress: Progress) -> None:
        self._publisher = publisher
        self._outbox = outbox
        self.progress = progress
        self._matcher = Matcher()
        self._wants: dict[bytes, Want] = {}
        # Rows older than this, in µs, are dropped; 0 for none.
        self.age_max_us = 0
        # What may have waited while the client was away; None for everything.
        self.backlog: Backlog | None = None
        self.expired = 0
        self.dropped = 0
        # Rows that were lost, of which the next message of QoS 1 or 2 tells.
        self._untold = 0

    def put(self, text: str, levels: tuple[bytes, ...], wish: WantedFilter) -> None:
        """Want what a filter matches, in place of what was wanted of it before."""
        self._matcher.put(levels, text, wish)
        self._wants.clear()

    def remove(self, text: str, levels: tuple[bytes, ...]) -> None:
        """Want it no longer."""
        self._matcher.remove(levels, text)
        self._wants.clear()

    def forget_rights(self) -> None:
        """Ask anew what the session may read."""
        self._wants.clear()

    def receive(self, batch: FeedBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Take the rows of a batch that are for this session, all of them for None.

        They are noted in the order of their serials, and offered in that of their times, in which
        they came: in a batch, rows of one stream stand together.
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
        # Before they are offered: what cannot be sent ends at once.
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
        """Take note of rows that were dropped from the store before they came by: which of them
        this session wanted is not known any more, so all count.
        """
        self.dropped += serials
        self._untold += serials

    def passed(self, shard: int, next_serial: int) -> None:
        """Take note that every row before a serial has come by."""
        lane = self.progress.lane(shard)
        lane.pass_by(next_serial)
        if lane.sent_before:
            # Their rows are gone from the store, or are not wanted any more.
            gone = [each for each in lane.sent_before.values() if each.serial < next_serial]
            for each in gone:
                del lane.sent_before[each.serial]
            for each in gone:
                self._outbox.give_up(each.packet_id, each.flags & 3)

    def wants(self, topic: bytes) -> bool:
        """Tell whether any subscription matches a topic that may be read."""
        return self._want_of(topic).qos >= 0

    def _take(
        self,
        batch: FeedBatch,
        index: int,
        serial: int,
        lane: ShardProgress,
        now: float,
        wall_us: int,
    ) -> Delivery | None:
        """Return what becomes of a row, if anything."""
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
            # As it was when its delivery began, whatever the subscription is now.
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
            # [MQTT-3.3.2-6]: less the time that it has waited in the store.
            properties = with_time_left(properties, left_us)
            expires_at = now + left_us / _US
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
        # [MQTT-3.3.1-1]: whether an earlier connection was sent it, or may have been. What has QoS
        # 2 and no packet id surely was not.
        if sent is not None:
            del lane.sent_before[serial]
            delivery.packet_id = sent.packet_id
            delivery.is_unsent = sent.flags & DUP == 0
            delivery.flags |= sent.flags & DUP
        elif qos == 1 and serial < lane.doubtful_until:
            delivery.flags |= DUP
        return delivery

    def _waited(self, qos: int, want: Want, serial: int, lane: ShardProgress) -> bool:
        """Tell whether a row that is sent with QoS 0 is for this client: it came when the client
        was there, or has waited for it. [MQTT-3.8.4-4]: it is not lost because the subscription
        asks for less now.
        """
        return serial >= lane.missed_until or min(qos, want.away_qos) > 0

    def _is_too_much(self, batch: FeedBatch, index: int, lane: ShardProgress, wall_us: int) -> bool:
        """Tell whether a row is dropped for the limits of the session."""
        if self.age_max_us and batch.came_us(index) + self.age_max_us < wall_us:
            return True
        backlog = self.backlog
        return (
            backlog is not None
            and batch.serials[index] < lane.missed_until
            and not backlog.admits(len(batch.values[index]))
        )

    def _wanted(self, batch: FeedBatch, index: int, shard: int, serial: int) -> Want:
        want = self._want_of(batch.topics[index])
        if serial < want.latest and serial < want.since.get(shard, 0):
            # A subscription was made when others were behind.
            want = _want([wish for wish in want.wishes if serial >= wish.since.get(shard, 0)])
        own = want.own
        if own is not None and batch.publishers[index] == self._publisher:
            return own
        return want

    def _may_finish(self, topic: bytes, want: Want) -> bool:
        """Tell whether to go on with a delivery that has begun: [MQTT-3.10.4-3], also where nothing
        is subscribed any more, but not where the topic may be read no longer.
        """
        return want.qos >= 0 or not self._matcher.match(topic)

    def _want_of(self, topic: bytes) -> Want:
        return self._wants.get(topic) or self._find(topic)

    def _find(self, topic: bytes) -> Want:
        """Ask the matcher, and remember."""
        wishes: list[WantedFilter] = []
        for value in self._matcher.match(topic):
            wish = cast("WantedFilter", value)
            if wish.may_receive(topic):
                wishes.append(wish)
        if len(self._wants) >= _WANTS_MAX:
            self._wants.clear()
        want = _want(wishes)
        self._wants[topic] = want
        return want
