"""The durable half of a connected session: what it reads from the store, and what is kept of that.

It is made from what an earlier connection has left behind, or new; it saves positions now and then,
and the handshakes of QoS 2 before their packets are sent. When the connection ends, the last save
holds everything, and this object is gone: the next connection begins with the saved state again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from siltstone.logs import log
from siltstone.mqtt.packets import Subscription
from siltstone.mqtt.publish import NO_EXPIRY, expiry_of
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import (
    NOT_STORED,
    RELEASED,
    SavedInflight,
    SavedMessage,
    SavedSession,
    SavedSubscription,
)
from siltstone.session.durable.progress import Progress
from siltstone.session.durable.reader import Reader
from siltstone.session.durable.saved_progress import done_of, places, position_of, restore_progress
from siltstone.session.durable.saves import Act, SaveScheduler, SaveTicket
from siltstone.session.durable.wanted import WantedFilter
from siltstone.session.inbound import Inbound
from siltstone.session.sending.delivery import DUP, NEVER, Delivery
from siltstone.session.sending.outbox import Outbox
from siltstone.session.subscribed import Subscribed
from siltstone.store.feed.pool import Feed
from siltstone.store.feed.rows.batch import FeedBatch
from siltstone.topic.grammar import TopicFilter

_LOG: Final = logging.getLogger("siltstone.sessions")
_STORED_FLAGS: Final = 7
_US: Final = 1_000_000
# Rows beyond the window that may wait in memory, so that acknowledgements find more to send.
_AHEAD: Final = 256


class Durable:
    """What makes a session durable while its client is connected."""

    def __init__(
        self,
        owned: OwnedSession,
        publisher: bytes,
        outbox: Outbox,
        *,
        ends: Callable[[], dict[int, int]],
        hop: Callable[[Act], None],
        later: Callable[[float, Act], object],
        failed: Callable[[Exception], None],
    ) -> None:
        self.owned = owned
        self.outbox = outbox
        self.progress = Progress()
        self.reader = Reader(publisher, outbox, self.progress)
        self.keeper = SaveScheduler(self._submit, hop=hop, later=later, failed=failed)
        self.inbound = Inbound(owned.client_id, owned.state.received)
        self.feed: Feed | None = None
        self.credit = 0
        self._failed = failed
        self._saved: tuple[list[Delivery], list[int]] = ([], [])
        self._ends = ends
        # From which row of each shard on a filter has them.
        self._since: dict[str, dict[int, int]] = {}
        # With which QoS each filter was subscribed to when the client came.
        self._away_qos: dict[str, int] = {}
        # Filters without a subscription, of which deliveries have begun.
        self._unfinished: list[TopicFilter] = []
        # The time of the wall when the owner's own time began.
        self._epoch_us = 0
        self._is_frozen = False
        # Whether that failed.
        self._is_torn = False
        # Whether a save could not be made, and who hears of it before the client is let in.
        self.is_lost = False
        self.when_lost: Callable[[Exception], None] | None = None
        self._asked = False
        self._dropped_before = owned.state.dropped
        self._extras: set[int] = set()
        self._saved_traffic = (0, 0)
        # Who hears of it once when there is something to save.
        self.moved: Act | None = None
        outbox.save = self._save_handshakes

    def restore(
        self,
        ends: Mapping[int, int],
        doubtful: Mapping[int, int],
        window: int,
        *,
        now: float,
        wall_us: int,
    ) -> None:
        """Begin where the saved state ends; `doubtful` says before which rows of each shard any may
        have been sent unseen.
        """
        state = self.owned.state
        self.credit = window + _AHEAD
        self._epoch_us = wall_us - round(now * _US)
        restore_progress(self.progress, state.position, state.done)
        for shard, end in ends.items():
            lane = self.progress.lane(shard)
            lane.missed_until = end
            if state.unclean:
                lane.doubtful_until = doubtful.get(shard, 0)
        reserved: list[int] = []
        inflight: list[Delivery] = []
        extras = {message.packet_id: message for message in state.extra}
        for packet_id, shard, serial, flags in state.inflight:
            # What was to be sent when the broker stopped without a word may have been.
            was_sent = state.unclean or flags & DUP != 0
            if flags & RELEASED:
                inflight.append(_released(packet_id))
            elif shard == NOT_STORED:
                if packet_id in extras:
                    delivery = self._revived(extras[packet_id])
                    delivery.is_unsent = not was_sent
                    inflight.append(delivery)
            else:
                self.progress.lane(shard).sent_before[serial] = SavedInflight(
                    packet_id, shard, serial, flags | (DUP if was_sent else 0)
                )
                reserved.append(packet_id)
        self._extras = set(extras)
        self.outbox.restore(state.next_packet_id, reserved, inflight)

    def next_rows(self) -> dict[int, int]:
        """Return the first row of each shard that has not come by."""
        return {shard: lane.next_serial for shard, lane in self.progress.lanes.items()}

    def dropped(self) -> int:
        """Return how many messages this session lost to limits, in all its life."""
        return self._dropped_before + self.reader.dropped + self.outbox.dropped

    def is_doubtful(self) -> bool:
        """Tell whether rows are left that may have been sent when the broker stopped without a
        word, or that what is in flight could not be handed to the last save.
        """
        return self._is_torn or any(
            lane.position() < lane.doubtful_until for lane in self.progress.lanes.values()
        )

    def freeze(self) -> None:
        """Hand everything as it is now to the next save, and look at the outbox no more."""
        # Should this fail, what was saved before counts: the outbox is about to forget all.
        self._is_frozen = self._is_torn = True
        # What waits and is in no store is saved by its packet id.
        self.outbox.number_waiting()
        self.put_progress()
        self._is_torn = False

    def position(self) -> dict[int, int]:
        """Return the first row of each shard that is not done."""
        return self.progress.position()

    def read_position(self) -> dict[int, int] | None:
        """Return the first row of each shard that is not done; None where no rows come by, and only
        the saved state tells.
        """
        if self.feed is None:
            return None
        self._look()
        return self.progress.position()

    def receive(self, batch: FeedBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Take rows of the store."""
        self.progress.changed = True
        self.outbox.stir()
        self.reader.receive(batch, rows, now, wall_us)

    def lost(self, serials: int) -> None:
        """Tell of rows that retention dropped from the store before they came by."""
        self.reader.lost(serials)
        self.progress.changed = True
        self.outbox.stir()
        log(
            _LOG,
            logging.WARNING,
            "session_rows_lost",
            client_id=self.owned.client_id,
            serials=serials,
        )

    def broken(self, error: Exception) -> None:
        """Tell that the rows cannot be read."""
        self._failed(error)

    def freed(self) -> int:
        """Return how much credit the feed is owed, if it is worth telling; else 0."""
        freed = self.progress.freed
        if freed * 4 < self.credit:
            return 0
        self.progress.freed = 0
        return freed

    def subscriptions(self) -> Iterator[Subscribed]:
        """Yield the subscriptions of earlier connections; to read one takes some time."""
        for saved in self.owned.state.subscriptions:
            self._since[saved.filter] = dict(saved.since)
            self._away_qos[saved.filter] = saved.qos
            yield Subscribed(
                subscription=Subscription(
                    filter=TopicFilter.parse(saved.filter),
                    qos=saved.qos,
                    no_local=saved.no_local,
                    retain_as_published=saved.retain_as_published,
                    retain_handling=saved.retain_handling,
                ),
                identifier=saved.identifier,
            )

    def want(
        self,
        subscription: Subscription,
        identifier: bytes,
        guard: Callable[[bytes], bool] | None,
    ) -> None:
        """Let a subscription have what comes from now on; one that is made again goes on."""
        topic_filter = subscription.filter
        since = self._since.setdefault(topic_filter.text, self._ends())
        self.reader.put(
            topic_filter.text,
            topic_filter.levels,
            WantedFilter(
                subscription.qos,
                subscription.no_local,
                subscription.retain_as_published,
                identifier,
                since,
                guard,
                self._away_qos.get(topic_filter.text, -1),
            ),
        )

    def keep(self, subscription: Subscription, identifier: int) -> None:
        """Hand a subscription to the next save."""
        text = subscription.filter.text
        since = self._since.setdefault(text, self._ends())
        self.owned.put_subscription(
            SavedSubscription(
                filter=text,
                qos=subscription.qos,
                no_local=subscription.no_local,
                retain_as_published=subscription.retain_as_published,
                retain_handling=subscription.retain_handling,
                identifier=identifier,
                since=places(since),
            )
        )

    def unsubscribe(self, topic_filter: TopicFilter) -> None:
        """Want nothing more of a filter."""
        self._since.pop(topic_filter.text, None)
        self._away_qos.pop(topic_filter.text, None)
        self.reader.remove(topic_filter.text, topic_filter.levels)
        self.owned.drop_subscription(topic_filter.text)
        if self._awaits_rows():
            self._unfinished.append(topic_filter)

    def leave_feed(self) -> None:
        """Take note of how far a feed has come that has ended."""
        self._look()
        self.feed = None

    def unfinished(self) -> list[TopicFilter]:
        """Return filters that are read though nobody subscribes to them: rows of theirs were sent
        on an earlier connection, and not acknowledged.
        """
        if not self._awaits_rows():
            self._unfinished = []
        return self._unfinished

    def is_finished(self) -> bool:
        """Tell whether filters are read for the last time that need not be any more."""
        return bool(self._unfinished) and not self._awaits_rows()

    def _awaits_rows(self) -> bool:
        return any(lane.sent_before for lane in self.progress.lanes.values())

    def narrow(self) -> None:
        """Drop the rows that wait and are not wanted any more.

        [MQTT-3.10.4-3]: a delivery that has begun goes on. From now on it is a message by itself,
        for its row will not come by again.
        """
        unwanted: set[Delivery] = set()
        for delivery in [*self.outbox.deliveries(), *self.outbox.waiting()]:
            lane = delivery.lane
            if lane is None or lane.owner is not self.progress or self.reader.wants(delivery.topic):
                continue
            if delivery.packet_id:
                delivery.lane = None
                lane.complete(delivery.serial)
            else:
                unwanted.add(delivery)
        self.outbox.drop_waiting(unwanted)

    def spare_credit(self) -> int:
        """Return how many rows may be on their way beside those that are, to begin a feed with."""
        self.progress.freed = 0
        open_rows = sum(lane.open_count() for lane in self.progress.lanes.values())
        return max(1, self.credit - open_rows)

    def save(self, then: Act | None = None) -> None:
        """Save everything as it is now; call back when it is durable."""
        self.keeper.save(then)

    def save_received(self, then: Act) -> None:
        """Save which messages of QoS 2 were received and not released; call back when it is
        durable.
        """
        self.owned.put_received(self.inbound.records())
        self.keeper.save(then)

    def save_progress(self) -> None:
        """Save what was sent and acknowledged since the last time, if anything was."""
        self._look()
        if self.progress.changed or self._traffic() != self._saved_traffic:
            self.keeper.save()

    def save_passed(self) -> None:
        """Save how far rows have come by that were not wanted, if it is worth that; to be called
        now and then.
        """
        self._look()
        if self.progress.is_far():
            self.keeper.save()

    def is_behind(self) -> bool:
        """Tell whether rows are still to come by that this session has missed, or has begun to
        deliver on an earlier connection.
        """
        is_reading = self.feed is not None and not self.feed.has_caught_up()
        return is_reading or bool(self._unfinished) or self._awaits_rows()

    def _traffic(self) -> tuple[int, int]:
        return self.outbox.sent, self.outbox.completed

    def _look(self) -> None:
        """Take note of how far the feed has come."""
        if self.feed is not None:
            for shard in range(len(self.feed.places)):
                self.reader.passed(shard, self.feed.place(shard))

    def _save_handshakes(self) -> None:
        if not self._asked:
            self._asked = True
            self.keeper.save(self._send_saved)

    def _send_saved(self) -> None:
        unsaved, releases = self._saved
        self._saved = ([], [])
        for delivery in unsaved:
            lane = delivery.lane
            if delivery.loan is not None and lane is not None and delivery.flags & 3 == 2:
                # [MQTT-4.8.2-4]: it is saved, so it ends here, whatever becomes of the group. What
                # the group has taken back meanwhile is not sent.
                lane.complete(delivery.serial)
                delivery.lane = delivery.loan = None
        self.outbox.send_saved(unsaved, releases)

    def close(self, then: Act) -> None:
        """Save what was frozen, for the last time; call back when that is done, or cannot be.

        Everything that was published has its outcome by now.
        """
        self.owned.put_received(self.inbound.records(settled=True))
        self.keeper.close(then)

    def end(self) -> None:
        """Let go of all that refers to this, once it was saved for the last time or is deleted:
        the session goes without a collector.
        """
        self.keeper.end()
        self.progress.end()
        self.moved = None
        self.feed = None
        self._failed = _unheard

    def _submit(self) -> SaveTicket | None:
        if self._is_frozen:
            return self.owned.save_later()
        self.put_progress()
        unsaved, releases = self.outbox.take_unsaved()
        # Whoever comes from now on is not part of this save.
        self._asked = False
        self._saved[0].extend(unsaved)
        self._saved[1].extend(releases)
        return self.owned.save_later()

    def put_progress(self) -> None:
        """Hand what is in flight and how far it has come to the next save."""
        self._look()
        self.progress.saved()
        self._saved_traffic = self._traffic()
        inflight: list[SavedInflight] = []
        extras: dict[int, SavedMessage] = {}
        for delivery in [*self.outbox.deliveries(), *self.outbox.waiting()]:
            packet_id = delivery.packet_id
            if packet_id == 0:
                continue
            flags = (delivery.flags & _STORED_FLAGS) | (0 if delivery.is_unsent else DUP)
            if delivery.released:
                inflight.append(SavedInflight(packet_id, NOT_STORED, 0, 2 | RELEASED))
            elif delivery.loan is not None and (delivery.lane is None or flags & 3 != 2):
                # The share group that has lent it looks after it.
                continue
            elif delivery.lane is not None and delivery.loan is None:
                inflight.append(
                    SavedInflight(packet_id, delivery.lane.shard, delivery.serial, flags)
                )
            else:
                inflight.append(SavedInflight(packet_id, NOT_STORED, 0, flags))
                extras[packet_id] = self._saved_message(delivery)
        for lane in self.progress.lanes.values():
            inflight.extend(lane.sent_before.values())
        self._put_extras(extras)
        self.owned.put_progress(
            position=position_of(self.progress),
            done=done_of(self.progress),
            inflight=tuple(inflight),
            next_packet_id=self.outbox.last_packet_id,
        )

    def _put_extras(self, extras: Mapping[int, SavedMessage]) -> None:
        """Hand over the messages in flight that are not in the store."""
        for packet_id in self._extras - extras.keys():
            self.owned.drop_extra(packet_id)
        for packet_id in extras.keys() - self._extras:
            self.owned.put_extra(extras[packet_id])
        self._extras = set(extras)

    def _saved_message(self, delivery: Delivery) -> SavedMessage:
        seconds = expiry_of(delivery.properties)
        arrived_us = 0
        if delivery.expires_at != NEVER and seconds != NO_EXPIRY:
            arrived_us = self._epoch_us + round((delivery.expires_at - seconds) * _US)
        return SavedMessage(
            delivery.packet_id,
            delivery.topic,
            delivery.payload,
            delivery.flags & _STORED_FLAGS,
            delivery.properties,
            arrived_us,
        )

    def _revived(self, message: SavedMessage) -> Delivery:
        expires_at = NEVER
        seconds = expiry_of(message.properties)
        if seconds != NO_EXPIRY and message.arrived_us:
            # Where that is never, it was long ago.
            expires_at = seconds + (message.arrived_us - self._epoch_us) / _US or -1.0
        delivery = Delivery(
            message.topic, message.payload, message.flags, message.properties, expires_at
        )
        delivery.packet_id = message.packet_id
        return delivery


def _unheard(_: Exception) -> None:
    """Tell no owner of a failure."""


def new_session(
    client_id: str,
    *,
    user: str,
    version: int,
    expiry_seconds: int,
    run: int,
    ends: Mapping[int, int],
) -> SavedSession:
    """Return the state of a session that begins now, at the ends of all shards."""
    return SavedSession(
        client_id=client_id,
        user=user,
        version=version,
        expiry_seconds=expiry_seconds,
        connected=True,
        run=run,
        position=places(dict(ends)),
    )


def _released(packet_id: int) -> Delivery:
    delivery = Delivery(b"", b"", 2, b"", NEVER)
    delivery.packet_id = packet_id
    delivery.released = True
    return delivery
