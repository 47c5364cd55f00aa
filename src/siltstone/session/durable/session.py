"""The durable part of a connected session: the rows that it reads, and the state that it saves.

It starts from the state that an earlier connection saved, or as a new session. It saves positions
at intervals, and it saves QoS 2 handshakes before their packets are sent. When the connection ends,
a last save stores everything and this object is dropped. The next connection starts from the saved
state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from siltstone.logs import log
from siltstone.mqtt.packets import Subscription
from siltstone.mqtt.publish import NO_EXPIRY, expiry_of
from siltstone.rows.batch import DUP
from siltstone.rows.stored import StoredBatch
from siltstone.session.archive.owned.joint import JointSaves
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import (
    NOT_STORED,
    RELEASED,
    SavedInflight,
    SavedMessage,
    SavedSession,
    SavedSubscription,
)
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.durable.reader import Reader
from siltstone.session.durable.saved_progress import done_of, position_of, restore_progress
from siltstone.session.durable.saves import Act, SaveScheduler, SaveTicket
from siltstone.session.durable.wanted import WantedFilter
from siltstone.session.inbound import UnreleasedMessages
from siltstone.session.sending.delivery import NEVER, Delivery
from siltstone.session.sending.outbox import Outbox
from siltstone.session.subscribed import Subscribed
from siltstone.store.feed.pool import Feed
from siltstone.store.feed.position import Position
from siltstone.topic.grammar import TopicFilter
from siltstone.units import SECOND_US

_LOG: Final = logging.getLogger("siltstone.sessions")
_STORED_FLAGS: Final = 7
# Rows beyond the window that may wait in memory, so that each acknowledgement finds a row to send.
_AHEAD: Final = 256


class Durable:
    """The durable state of a session while its client is connected."""

    def __init__(
        self,
        owned: OwnedSession,
        publisher: bytes,
        outbox: Outbox,
        *,
        ends: Callable[[], dict[int, int]],
        soon: Callable[[Act], None],
        hop: Callable[[Act], None],
        later: Callable[[float, Act], object],
        failed: Callable[[Exception], None],
    ) -> None:
        self.owned = owned
        self._soon = soon
        self.outbox = outbox
        self.progress = SessionProgress()
        self.reader = Reader(publisher, outbox, self.progress)
        self.keeper = SaveScheduler(self._submit, hop=hop, later=later, failed=failed)
        self.inbound = UnreleasedMessages(owned.client_id, owned.bare.received)
        self.feed: Feed | None = None
        self.credit = 0
        self._failed = failed
        self._saved: tuple[list[Delivery], list[int]] = ([], [])
        self._ends = ends
        # For each filter, the first row of each shard that it applies to.
        self._since: dict[str, dict[int, int]] = {}
        # The QoS of each filter when the client connected.
        self._away_qos: dict[str, int] = {}
        # Filters without a subscription that have unfinished deliveries.
        self._unfinished: list[TopicFilter] = []
        # The wall-clock time, in µs, at which the owner's monotonic time is 0.
        self._epoch_us = 0
        self._is_frozen = False
        # Whether `freeze` failed.
        self._is_torn = False
        # Whether a save failed; and the callback for a failure before the client is accepted.
        self.is_lost = False
        self.when_lost: Callable[[Exception], None] | None = None
        self._asked = False
        # The saves of other sessions, with which the next save is submitted.
        self._joint: JointSaves | None = None
        self._dropped_before = owned.dropped
        self._extras: set[int] = set()
        self._saved_traffic = (0, 0)
        # Called once when there is something to save.
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
        """Start from the saved state. Rows of each shard before `doubtful` may have been sent
        without a record of it.
        """
        state = self.owned.bare
        self.credit = window + _AHEAD
        self._epoch_us = wall_us - round(now * SECOND_US)
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
            # After an unclean stop, a message that was ready to be sent may have been sent.
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
        """Return the first row of each shard that was not read."""
        return {shard: lane.next_serial for shard, lane in self.progress.lanes.items()}

    def dropped(self) -> int:
        """Return how many messages this session has lost to limits since it was created."""
        return self._dropped_before + self.reader.dropped + self.outbox.dropped

    def is_doubtful(self) -> bool:
        """Tell whether there are rows that may have been sent before an unclean stop of the broker,
        or whether the messages in flight could not be added to the last save.
        """
        return self._is_torn or any(
            lane.position() < lane.doubtful_until for lane in self.progress.lanes.values()
        )

    def freeze(self) -> None:
        """Add the current state to the next save; the outbox is not read after this."""
        # If this fails, the state saved before stays valid: the outbox is about to be cleared.
        self._is_frozen = self._is_torn = True
        # Waiting messages that are not in the store are saved by their packet ids.
        self.outbox.number_waiting()
        self.put_progress()
        self._is_torn = False

    def position(self) -> dict[int, int]:
        """Return the first row of each shard that is not done."""
        return self.progress.position()

    def read_position(self) -> dict[int, int] | None:
        """Return the first row of each shard that is not done; None if there is no feed, so that
        only the saved state is valid.
        """
        if self.feed is None:
            return None
        self._look()
        return self.progress.position()

    def receive(self, batch: StoredBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Take rows of the store."""
        self.progress.changed = True
        self.outbox.stir()
        self.reader.receive(batch, rows, now, wall_us)

    def lost(self, serials: int) -> None:
        """Report rows that retention dropped from the store before they were read."""
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
        """Report that the rows cannot be read."""
        self._failed(error)

    def freed(self) -> int:
        """Return the credit to give back to the feed; 0 while it is less than a quarter of all."""
        freed = self.progress.freed
        if freed * 4 < self.credit:
            return 0
        self.progress.freed = 0
        return freed

    def subscriptions(self) -> Iterator[Subscribed]:
        """Yield the subscriptions of earlier connections; parsing each of them takes some time."""
        for saved in self.owned.state.subscriptions:
            self._since[saved.filter] = dict(saved.since.serials)
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
        """Deliver rows for a subscription from now on; a renewed subscription keeps its start."""
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
        """Add a subscription to the next save."""
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
                since=Position(dict(since)),
            )
        )

    def unsubscribe(self, topic_filter: TopicFilter) -> None:
        """Stop delivering rows for a filter."""
        self._since.pop(topic_filter.text, None)
        self._away_qos.pop(topic_filter.text, None)
        self.reader.remove(topic_filter.text, topic_filter.levels)
        self.owned.drop_subscription(topic_filter.text)
        if self._awaits_rows():
            self._unfinished.append(topic_filter)

    def leave_feed(self) -> None:
        """Record how far the feed has read, and drop the feed, which has ended."""
        self._look()
        self.feed = None

    def unfinished(self) -> list[TopicFilter]:
        """Return filters that are read without a subscription: some of their rows were sent on an
        earlier connection and not acknowledged.
        """
        if not self._awaits_rows():
            self._unfinished = []
        return self._unfinished

    def is_finished(self) -> bool:
        """Tell whether there are filters without a subscription that need no more reading."""
        return bool(self._unfinished) and not self._awaits_rows()

    def _awaits_rows(self) -> bool:
        for lane in self.progress.lanes.values():  # noqa: SIM110 - each save asks it
            if lane.sent_before:
                return True
        return False

    def narrow(self) -> None:
        """Drop waiting rows that no subscription wants any more.

        [MQTT-3.10.4-3]: a delivery that has begun continues. It becomes a message that is not in
        the store, because its row will not be read again.
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
        """Return the credit to begin a feed with: all credit, less the rows that are open."""
        self.progress.freed = 0
        open_rows = sum(lane.open_count() for lane in self.progress.lanes.values())
        return max(1, self.credit - open_rows)

    def save(self, then: Act | None = None) -> None:
        """Save the current state; call `then` when it is durable."""
        self.keeper.save(then)

    def save_received(self, then: Act) -> None:
        """Save the received QoS 2 messages that are not released; call `then` when durable."""
        self.owned.put_received(self.inbound.records())
        self.keeper.save(then)

    def save_progress(self, joint: JointSaves | None = None) -> None:
        """Save the messages sent and acknowledged since the last save, if there are any; together
        with other sessions if `joint` is given.
        """
        self._look()
        if self.progress.changed or self._traffic() != self._saved_traffic:
            self._joint = joint
            self.keeper.save()
            self._joint = None

    def save_passed(self) -> None:
        """Save the position if unwanted rows moved it far enough. Call this at intervals."""
        self._look()
        if self.progress.is_far():
            self.keeper.save()

    def is_behind(self) -> bool:
        """Tell whether there are unread rows that this session has missed, or began to deliver on
        an earlier connection.
        """
        is_reading = self.feed is not None and not self.feed.has_caught_up()
        return is_reading or bool(self._unfinished) or self._awaits_rows()

    def _traffic(self) -> tuple[int, int]:
        return self.outbox.sent, self.outbox.completed

    def _look(self) -> None:
        """Record how far the feed has read."""
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
                # [MQTT-4.8.2-4]: the delivery is saved, so it ends in this session, whatever
                # happens to the group. A row that the group has taken back meanwhile is not sent.
                lane.complete(delivery.serial)
                delivery.lane = delivery.loan = None
        self.outbox.send_saved(unsaved, releases)

    def close(self, then: Act) -> None:
        """Save the frozen state, for the last time; call `then` when it is durable or cannot be
        saved.

        The outcome of everything that the client published is known by now.
        """
        self.owned.put_received(self.inbound.records(settled=True))
        self.keeper.close(then)

    def end(self) -> None:
        """Drop all references to this object after the last save or the deletion of the session, so
        that it is freed without the garbage collector.
        """
        self.keeper.end()
        self.progress.end()
        self.moved = None
        self.feed = None
        self._failed = _unheard

    def _submit(self) -> SaveTicket | None:
        if self._is_frozen:
            return self.owned.save_in_parts(self._soon)
        self.put_progress()
        unsaved, releases = self.outbox.take_unsaved()
        # Handshakes from now on are not part of this save.
        self._asked = False
        self._saved[0].extend(unsaved)
        self._saved[1].extend(releases)
        joint, self._joint = self._joint, None
        if joint is not None:
            return self.owned.save_jointly(joint, self._soon)
        return self.owned.save_in_parts(self._soon)

    def put_progress(self) -> None:
        """Add the messages in flight and the progress to the next save."""
        self._look()
        self.progress.saved()
        self._saved_traffic = self._traffic()
        inflight: list[SavedInflight] = []
        extras: dict[int, SavedMessage] = {}
        outbox = self.outbox
        # Most sessions have acknowledged everything.
        has_messages = outbox.inflight or outbox.queued
        for delivery in [*outbox.deliveries(), *outbox.waiting()] if has_messages else ():
            packet_id = delivery.packet_id
            if packet_id == 0:
                continue
            flags = (delivery.flags & _STORED_FLAGS) | (0 if delivery.is_unsent else DUP)
            if delivery.released:
                inflight.append(SavedInflight(packet_id, NOT_STORED, 0, 2 | RELEASED))
            elif delivery.loan is not None and (delivery.lane is None or flags & 3 != 2):
                # The share group that has lent the row keeps it.
                continue
            elif delivery.lane is not None and delivery.loan is None:
                inflight.append(
                    SavedInflight(packet_id, delivery.lane.shard, delivery.serial, flags)
                )
            else:
                inflight.append(SavedInflight(packet_id, NOT_STORED, 0, flags))
                extras[packet_id] = self._saved_message(delivery)
        for lane in self.progress.lanes.values():
            if lane.sent_before:
                inflight.extend(lane.sent_before.values())
        if extras or self._extras:
            self._put_extras(extras)
        self.owned.put_progress(
            position=position_of(self.progress),
            done=done_of(self.progress),
            inflight=tuple(inflight),
            next_packet_id=outbox.last_packet_id,
        )

    def _put_extras(self, extras: Mapping[int, SavedMessage]) -> None:
        """Add the messages in flight that are not in the store to the next save."""
        for packet_id in self._extras - extras.keys():
            self.owned.drop_extra(packet_id)
        for packet_id in extras.keys() - self._extras:
            self.owned.put_extra(extras[packet_id])
        self._extras = set(extras)

    def _saved_message(self, delivery: Delivery) -> SavedMessage:
        seconds = expiry_of(delivery.properties)
        arrived_us = 0
        if delivery.expires_at != NEVER and seconds != NO_EXPIRY:
            arrived_us = self._epoch_us + round((delivery.expires_at - seconds) * SECOND_US)
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
            # NEVER is 0.0: a result of 0.0 is replaced by a time in the past.
            expires_at = seconds + (message.arrived_us - self._epoch_us) / SECOND_US or -1.0
        delivery = Delivery(
            message.topic, message.payload, message.flags, message.properties, expires_at
        )
        delivery.packet_id = message.packet_id
        return delivery


def _unheard(_: Exception) -> None:
    """Ignore a failure: there is no owner any more."""


def new_session(
    client_id: str,
    *,
    user: str,
    version: int,
    expiry_seconds: int,
    run: int,
    ends: Mapping[int, int],
) -> SavedSession:
    """Return the state of a new session that starts at the ends of all shards."""
    return SavedSession(
        client_id=client_id,
        user=user,
        version=version,
        expiry_seconds=expiry_seconds,
        connected=True,
        run=run,
        position=Position(dict(ends)),
    )


def _released(packet_id: int) -> Delivery:
    delivery = Delivery(b"", b"", 2, b"", NEVER)
    delivery.packet_id = packet_id
    delivery.released = True
    return delivery
