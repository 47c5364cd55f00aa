"""The broker without sockets: clients, sessions, routes, retained messages, wills, the store.

Everything runs on the thread of the event loop. The shell provides time and threads. The bytes for
each client are written once per turn of the loop, in `flush`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from siltstone.broker.access.access import Access, Identity
from siltstone.broker.connect.login_queues import LoginQueues
from siltstone.broker.connect.rounds import Rounds
from siltstone.broker.connect.throttle import Throttle
from siltstone.broker.control.alarms import Alarms
from siltstone.broker.control.pins import Pins
from siltstone.broker.control.reclaimer import Reclaimer
from siltstone.broker.control.sparse_log import SparseLog
from siltstone.broker.control.statistics import Statistics
from siltstone.broker.deliver.router import Router
from siltstone.broker.deliver.subscribe import Subscriptions
from siltstone.broker.publish.append import AppendBatcher, Producer, Settle
from siltstone.broker.publish.interest import Interest
from siltstone.broker.publish.observers import PublishObservers, SettlePart
from siltstone.broker.publish.outcomes import Settling
from siltstone.broker.publish.rules import NOTHING_STORED, StoreRules, asks_for_interest
from siltstone.broker.retained.messages import Exchange, RetainedMessages
from siltstone.broker.sessions.due_wills import DueWills
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.registry import Registry
from siltstone.broker.sessions.timers import Timer, Timers
from siltstone.broker.sessions.wills import Wills, batch_of, saved_will
from siltstone.broker.settings.access import AccessSettings
from siltstone.broker.settings.broker import BrokerSettings
from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError, SiltstoneError, StorageFullError
from siltstone.guard import contain, contain_each, contain_with
from siltstone.logs import log
from siltstone.mqtt.flow import find_flags, pick
from siltstone.mqtt.packets import Will
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.rows.batch import RETAIN
from siltstone.session.archive.records import SavedWill
from siltstone.session.sending.outbox import Outbox, Ready
from siltstone.session.session import Session
from siltstone.store.database import Database
from siltstone.store.shard.compactor import Compactor
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter

# The shortest time between two log lines about events that every message can cause.
QUIET_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0
# The first refused connections of a network are logged one by one, then one line per interval.
REFUSED_LINES: Final = 10
REFUSED_SECONDS: Final = 10.0
_MISTAKE: Final = "internal error: see the log of the broker"

Act = Callable[[], None]


class Shell(Protocol):
    """The functions of the event loop that the broker needs."""

    def now(self) -> float:
        """Return the time of the loop, which never goes back."""

    def soon(self, act: Act) -> None:
        """Run `act` when the current work is done."""

    def soon_from_thread(self, act: Act) -> None:
        """Run `act` on the loop; may be called from any thread."""

    def in_thread(self, work: Act, then: Act) -> None:
        """Run `work` in a thread, then `then` on the loop."""

    def read_in_thread(self, work: Act, then: Act) -> None:
        """Run `work`, which waits for the disk, in a thread, then `then` on the loop."""

    def wake_at(self, at: float) -> None:
        """Call `tick` at a time or soon after."""


class Peer(Protocol):
    """A connected client, as other parts of the broker see it."""

    def end(self, reason: Reason, text: str = "") -> None:
        """Send the client the reason, and close."""

    def stop(self) -> None:
        """Stop reading until `go_on` was called as often as `stop`."""

    def go_on(self) -> None:
        """End one `stop`; read again if it was the last."""


@mypyc_attr(acyclic=True)
class _Stored:
    """The callback for the outcome of a batch that was given to the store.

    A class, because a message often comes alone, and a partial object is three objects that the
    garbage collector examines.
    """

    def __init__(
        self,
        broker: Broker,
        part: PublishBatch,
        settle: SettlePart | None,
        exchanges: list[Exchange],
    ) -> None:
        self._broker = broker
        self._part = part
        self._settle = settle
        self._exchanges = exchanges

    def __call__(self, error: Exception | None) -> None:
        try:
            if error is not None:
                self._broker.not_stored(self._part, self._exchanges, error)
        finally:
            if self._settle is not None:
                self._settle(self._part, error)


class Broker:
    """All state of a running broker.

    `router` has the subscriptions of sessions in memory. `unstored` has those of durable sessions,
    for messages that are not in the store.
    """

    # Drops delivered messages, if the database has `reclaim`.
    reclaimer: Reclaimer | None = None
    # Rewrites small frames as large ones, in the background.
    compactor: Compactor | None = None

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        database: Database | None,
        retained: RetainedMessages,
        access: Access,
        clock: Clock,
        shell: Shell,
    ) -> None:
        self.settings = settings
        self._database = database
        self.limits = settings.limits
        self.access = access
        self.clock = clock
        self.shell = shell
        self.log = logging.getLogger("siltstone.broker")
        self.statistics = Statistics(shell.now())
        self.alarms = Alarms()
        self.timers = Timers(shell.wake_at)
        self.ready = Ready(self._wake)
        self.ready.lost = self._tell_waiting_lost
        self.router = Router()
        self.unstored = Router()
        self.router.begins_to_wait = self._look_later
        self.retained = retained
        rules = () if database is None else settings.storage.rules
        self.interest = Interest(is_asked=asks_for_interest(rules))
        if database is None:
            self.rules = StoreRules((), self.interest, NOTHING_STORED)
        else:
            self.rules = StoreRules(rules, self.interest)
        # The ends of connections, by loss or DISCONNECT.
        self.endings = Rounds(shell.soon)
        self.bridge = AppendBatcher(
            database,
            shell.soon,
            shell.soon_from_thread,
            self._later,
            self.limits.pending_bytes_max,
            may_wait=self._may_wait,
        )
        self.wills = Wills(self.timers, self._publish_will, self._lose_will)
        self.registry = Registry(
            self.limits,
            self.router,
            self.unstored,
            self.interest,
            self.timers,
            self.ready,
            soon=shell.soon,
            ended=self._session_ended,
        )
        self.durables: Durables | None = None
        self.pins = Pins()
        self.subscriptions = Subscriptions(
            self.limits, settings.share.strategy, self.registry, retained, clock.now_us, shell.now
        )
        self.throttle = _throttle(settings.access, clock)
        self.login_lanes = LoginQueues(shell.soon)
        self.login_log = SparseLog(self.log, shell.now, self.timers.at)
        # By the network of the client: refused connections, and those that sent no CONNECT.
        self.refusal_log, self.silence_log = (
            SparseLog(
                self.log, shell.now, self.timers.at, seconds=REFUSED_SECONDS, lines=REFUSED_LINES
            )
            for _ in range(2)
        )
        self.taps = PublishObservers()
        self.due_wills = DueWills(self.taps, self._keep_will)
        # Connected clients, and clients that wait for the outcome of earlier publishes.
        self.clients: dict[str, Peer] = {}
        # The limit of connected clients; file descriptors may allow fewer than the settings.
        self.clients_max = settings.limits.connections_max
        self.waiting: dict[str, Peer] = {}
        # The number of logins that wait for a thread, and the bytes of incomplete packets.
        self.logins = self.partial_bytes = 0
        # Messages that could not be stored since the last line about them.
        self._untold, self._last_loss, self._is_quiet = 0, "", False

    @property
    def is_settled(self) -> bool:
        """Whether all pending publishes and session changes are on disk."""
        durables = self.durables
        return self.bridge.pending_bytes == 0 and (durables is None or len(durables.turns) == 0)

    @property
    def settling(self) -> tuple[int, int]:
        """Values that change while pending work progresses: pending bytes, and ended turns."""
        return self.bridge.pending_bytes, self.durables.turns.count if self.durables else 0

    def _may_wait(self) -> bool:
        """Return whether all messages wait for the disk, so that the loop may wait for it, too.

        A message for a live subscriber, or one of a rule with another durability, does not wait.
        Durable sessions get every message from the store, after its sync.
        """
        return self.rules.syncs_all and len(self.router) == 0 and len(self.taps) == 0

    def _later(self, seconds: float, act: Act) -> Timer:
        return self.timers.at(self.shell.now() + seconds, act)

    def _look_later(self) -> None:
        """Look after the share groups with waiting messages in a second."""
        self._later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self.router.look(self.shell.now()):
            self._look_later()

    def _wake(self) -> None:
        self.shell.soon(self.flush)

    def flush(self) -> None:
        """Write the bytes of this turn to each client."""
        contain_each(self._write_out, self.ready.take(), self._end_broken)

    def _write_out(self, outbox: Outbox) -> None:
        """Write the bytes of an outbox, then let it send waiting messages."""
        parts = outbox.take_parts()
        data = outbox.take()
        sink = outbox.sink
        if sink is None:
            return
        for part in parts:
            sink(part)
        if data:
            sink(data)
        if outbox.waits:
            outbox.pump(self.shell.now())
        if outbox.refill is not None:
            outbox.refill()

    def _end_broken(self, outbox: Outbox) -> None:
        """End a connection after a failed write: later bytes would not continue the stream."""
        peer = self.clients.get(outbox.client_id) if outbox.attached else None
        if peer is not None:
            contain(partial(peer.end, Reason.UNSPECIFIED_ERROR, _MISTAKE))

    def tick(self) -> None:
        """Run the due timers."""
        self.timers.run(self.shell.now())

    def assigned_id(self) -> str:
        """Return a new random client id."""
        return f"auto-{secrets.token_hex(12)}"

    def store(
        self,
        batch: PublishBatch,
        publisher: bytes,
        settle: SettlePart | None,
        exchanges: list[Exchange],
        producer: Producer | None = None,
    ) -> int:
        """Give a batch to the bridges and store it by the rules.

        Return how often `settle` will be called. The store does not call it for messages of
        durability "none". With a producer, the batch is stored as one append, once. If messages
        cannot be stored, they are counted and logged here, and their changes to the retained
        messages (`exchanges`) are undone.
        """
        waits = self.taps.take(batch, publisher, settle) if len(self.taps) > 0 else 0
        return waits + self._append(batch, publisher, settle, exchanges, producer)

    def _append(
        self,
        batch: PublishBatch,
        publisher: bytes,
        settle: SettlePart | None,
        exchanges: list[Exchange],
        producer: Producer | None,
    ) -> int:
        """Store a batch after the bridges took it; return how often `settle` will be called."""
        if self.rules.syncs_all and batch.topics:
            stored = _Stored(self, batch, settle, exchanges)
            self.bridge.append(batch, publisher, "synced", stored, producer)
            return 0 if settle is None else 1
        waits = 0
        for durability, part in self.rules.split(batch).items():
            if durability is None:
                continue
            hears = settle if durability != "none" else None
            stored = _Stored(self, part, hears, exchanges)
            self.bridge.append(part, publisher, durability, stored, producer)
            if hears is not None:
                waits += 1
        return waits

    def has_stored(self, producer: Producer, topic: bytes, publisher: bytes) -> bool:
        """Return whether the append of a producer stored messages of this topic and publisher."""
        database = self._database
        return database is not None and database.has_stored(producer, topic, publisher)

    def not_stored(self, part: PublishBatch, exchanges: list[Exchange], error: Exception) -> None:
        """Count messages that could not be stored, and undo their changes."""
        self._count_lost(len(part.topics), error)
        self._take_back(part, exchanges)

    def _take_back(self, part: PublishBatch, exchanges: list[Exchange]) -> None:
        """Undo the changes to the retained messages by messages that were not stored."""
        topics = set(part.topics)
        self.forget_retained([exchange for exchange in exchanges if exchange.topic in topics])

    def forget_retained(self, exchanges: list[Exchange]) -> None:
        """Undo these changes to the retained messages."""
        if not exchanges:
            return
        try:
            ticket = self.retained.take_back(exchanges)
        except SiltstoneError as exc:
            log(self.log, logging.WARNING, "retained_rollback_failed", error=str(exc))
            return
        if ticket is not None:
            ticket.on_done(self._hear_retained)

    def _hear_retained(self, ticket: Ticket) -> None:
        """Pass the outcome of a change of retained messages to the loop."""
        self.shell.soon_from_thread(partial(self.retained.settled, ticket))

    def _count_lost(self, count: int, error: Exception) -> None:
        """Count messages that could not be stored; log them at most once a second."""
        if isinstance(error, StorageFullError):
            self.alarms.refuse_write(error.needed_bytes)
        self.statistics.publishes_refused += count
        self._untold += count
        self._last_loss = str(error)
        if not self._is_quiet:
            self._is_quiet = True
            self._tell_lost()

    def _tell_lost(self) -> None:
        """Log the messages that were lost since the last line, and wait; end the waiting if none
        were.
        """
        self._is_quiet = self._untold > 0
        if self._is_quiet:
            self._log_lost()
            self.timers.at(self.shell.now() + QUIET_SECONDS, self._tell_lost)

    def _log_lost(self) -> None:
        count, self._untold = self._untold, 0
        log(self.log, logging.WARNING, "publishes_not_stored", count=count, error=self._last_loss)

    def tell_rest(self) -> None:
        """Log the events that were counted for a later line, because the broker stops."""
        for each in (self.login_log, self.refusal_log, self.silence_log):
            each.flush()
        if self._untold:
            self._log_lost()

    def dispatch(self, batch: PublishBatch, source: Outbox | None) -> None:
        """Send a batch to the subscribers; `source` is the outbox of the publishing session.

        Durable sessions read stored messages from the store.
        """
        if len(self.router) > 0:
            self.router.dispatch(batch, source, self.shell.now())
        if len(self.unstored) and self.rules.leaves_out:
            part = self.rules.split(batch).get(None)
            if part is not None:
                self.unstored.dispatch(part, source, self.shell.now())

    def dispatch_unstored(self, batch: PublishBatch) -> None:
        """Send a batch that is not stored to all subscribers."""
        now = self.shell.now()
        self.router.dispatch(batch, None, now)
        self.unstored.dispatch(batch, None, now)

    def retain(
        self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None
    ) -> tuple[int, list[int], list[Exchange]]:
        """Keep the retained messages of a batch.

        Return how often `settle` will be called, the indexes of messages that exceed the limits,
        and the changes by the other messages.
        Raises: OverloadedError, PoisonedError, ClosedError; then nothing was kept.
        """
        indexes = find_flags(batch, RETAIN)
        if not indexes:
            return 0, [], []
        part = pick(batch, indexes)
        receipt = self.retained.put(
            part.topics,
            part.values,
            part.flags,
            part.properties,
            part.expiries,
            publisher,
            "synced",
        )
        refused = [indexes[number] for number in receipt.refused]
        if receipt.ticket is None:
            return 0, refused, receipt.exchanges
        size_bytes = sum(map(len, part.topics)) + sum(map(len, part.values))
        self.bridge.hold(size_bytes)

        def stored(ticket: Ticket) -> None:
            try:
                self.retained.settled(ticket)
            finally:
                if settle is not None:
                    contain_with(partial(settle, part), ticket.error)
                self.bridge.release(size_bytes)

        receipt.ticket.on_done(lambda ticket: self.shell.soon_from_thread(lambda: stored(ticket)))
        return 0 if settle is None else 1, refused, receipt.exchanges

    def sent_totals(self) -> tuple[int, int, int]:
        """Return the total numbers of sent messages, dropped messages and sent bytes."""
        counts = self.statistics
        sessions = self.registry.sessions.values()
        outboxes = [session.outbox for session in sessions]
        return (
            counts.publishes_sent + sum(outbox.sent for outbox in outboxes),
            counts.messages_dropped + sum(session.dropped() for session in sessions),
            counts.bytes_sent + sum(outbox.sent_bytes for outbox in outboxes),
        )

    def count_connected(self) -> None:
        """Count a client that connected."""
        self.statistics.connections += 1
        self.statistics.clients_maximum = max(self.statistics.clients_maximum, len(self.clients))

    def may_subscribe(self, identity: Identity, topic_filter: TopicFilter) -> bool:
        """Return whether a client may subscribe to a filter, by its current rights."""
        return self.access.may_subscribe(identity, topic_filter)

    def may_receive(self, identity: Identity, topic: bytes) -> bool:
        """Return whether a client may read a topic, by its current rights."""
        return self.access.may_receive(identity, topic)

    def use_access(self, access: Access) -> None:
        """Use other access files from now on; drop all cached rights."""
        self.access = access
        self.router.forget_routes()
        self.unstored.forget_routes()
        if self.durables is not None:
            self.durables.forget_rights()
        if self.subscriptions.groups is not None:
            self.subscriptions.groups.forget_rights()

    def _publish_will(self, session: Session, will: Will) -> None:
        saved = saved_will(will)
        assert saved is not None
        self.publish_saved_will(session.client_id, saved, session.outbox)

    def _tell_waiting_lost(self, client_id: str, error: SiltstoneError) -> None:
        log(self.log, logging.ERROR, "waiting_lost", session=client_id, error=str(error))

    def _lose_will(self, session: Session, will: Will, error: SiltstoneError) -> None:
        log(
            self.log,
            logging.ERROR,
            "will_lost",
            session=session.client_id,
            topic=will.topic.decode(),
            error=str(error),
        )

    def publish_saved_will(
        self, client_id: str, will: SavedWill, source: Outbox | None, settle: Settle | None = None
    ) -> None:
        """Publish a will; `settle` is called once with its outcome in the store."""
        batch = batch_of(will)
        publisher = client_id.encode()
        settling = Settling(settle)
        try:
            exchanges = self._retain_will(batch, publisher)
            hears = None if settle is None else settling.settled
            settling.waits += self.store(batch, publisher, hears, exchanges)
            self.dispatch(batch, source)
        except BaseException:
            settling.give_up(OutcomeUnknownError(_MISTAKE))
            raise
        settling.settled(None, None)

    def _keep_will(self, client_id: str, will: SavedWill, settle: Settle) -> None:
        """Store a will after the bridges took it, then send it to the subscribers.

        If it cannot be stored it is not sent, because it will be published again.
        """
        batch = batch_of(will)
        publisher = client_id.encode()

        def stored(error: Exception | None) -> None:
            try:
                if error is None:
                    self.dispatch(batch, None)
            finally:
                settle(error)

        settling = Settling(stored)
        try:
            exchanges = self._retain_will(batch, publisher)
            settling.waits += self._append(batch, publisher, settling.settled, exchanges, None)
        except BaseException:
            settling.give_up(OutcomeUnknownError(_MISTAKE))
            raise
        settling.settled(None, None)

    def _retain_will(self, batch: PublishBatch, publisher: bytes) -> list[Exchange]:
        try:
            return self.retain(batch, publisher, None)[2]
        except SiltstoneError as exc:
            log(self.log, logging.WARNING, "will_not_retained", error=str(exc))
            return []

    def leave(self, session: Session, will: Will | None) -> None:
        """Release the session of a client that disconnected; publish or save its will, if any."""
        now = self.shell.now()
        session.outbox.changing()
        if session.durable is None or self.durables is None:
            try:
                if will is not None:
                    self.wills.leave(session, will, now)
            finally:
                self.registry.leave(session, now)
            return
        for group in session.groups.values():
            # The rows that groups lent to this session go to other members, and are not saved
            # with this session.
            contain_with(group.leave, session.outbox)
        saved = saved_will(will)
        if saved is not None and (saved.delay_seconds == 0 or session.expiry_seconds == 0):
            # The will is stored before the session is saved without it.
            session.unsettled += 1
            contain_with(partial(self._publish_last, session), saved)
            saved = None
        if session.expiry_seconds == 0:
            self.subscriptions.forget(session.client_id)
        try:
            self.durables.leave(session, saved)
        finally:
            self.registry.forget(session)
            self._count_sent(session)

    def _publish_last(self, session: Session, will: SavedWill) -> None:
        self.publish_saved_will(
            session.client_id, will, session.outbox, lambda _: session.settled()
        )

    def _count_sent(self, session: Session) -> None:
        outbox = session.outbox
        self.statistics.publishes_sent += outbox.sent
        self.statistics.messages_dropped += session.dropped()
        self.statistics.bytes_sent += outbox.sent_bytes

    def _session_ended(self, session: Session) -> None:
        self._count_sent(session)
        # [MQTT-3.1.2-8]: a delayed will is published when the session ends.
        self.wills.fire(session.client_id)
        self.subscriptions.take_up(session)


def _throttle(settings: AccessSettings, clock: Clock) -> Throttle:
    return Throttle(
        clock,
        delay=settings.login_delay,
        delay_max=settings.login_delay_max,
        failures_max=settings.login_failures_max,
        lockout=settings.login_lockout,
    )
