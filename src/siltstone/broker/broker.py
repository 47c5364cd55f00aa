"""The broker without sockets: clients, sessions, routes, retained messages, wills, the store.

Everything runs on one thread, the loop's; time and threads come through the shell. What a client is
sent is written once a turn, in `flush`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from siltstone.broker.access import Access, Identity
from siltstone.broker.bridge import Bridge
from siltstone.broker.registry import Registry
from siltstone.broker.retained import Exchange, RetainedMessages
from siltstone.broker.router import Router
from siltstone.broker.settings import BrokerSettings
from siltstone.broker.statistics import Statistics
from siltstone.broker.store_rules import StoreRules
from siltstone.broker.subscribing import Subscriptions
from siltstone.broker.throttle import Throttle
from siltstone.broker.timers import Timers
from siltstone.broker.wills import Wills
from siltstone.clock import Clock
from siltstone.database import Database
from siltstone.errors import SiltstoneError
from siltstone.guard import contain
from siltstone.logs import log
from siltstone.mqtt.encode import encode_message_properties
from siltstone.mqtt.flow import find_flags, pick
from siltstone.mqtt.packets import Will
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.session.outbox import Outbox, Ready
from siltstone.session.session import Session
from siltstone.store.outcome import Ticket
from siltstone.topic.grammar import TopicFilter

# The retain flag of a stored row.
RETAIN: Final = 4
# Of what happens with every message, the log hears so often.
QUIET_SECONDS: Final = 1.0

Act = Callable[[], None]
# Hears what became of a part of a batch.
SettlePart = Callable[[PublishBatch, Exception | None], None]


class Shell(Protocol):
    """What the broker needs of the loop that it runs in."""

    def now(self) -> float:
        """Return the loop's time, which never goes back."""

    def soon(self, act: Act) -> None:
        """Run something when the current work is done."""

    def soon_from_thread(self, act: Act) -> None:
        """Run something on the loop, called from any thread."""

    def in_thread(self, work: Act, then: Act) -> None:
        """Run work in a thread, then something on the loop."""

    def wake_at(self, at: float) -> None:
        """Call `tick` at a time or soon after."""


class Peer(Protocol):
    """A connected client, as other parts of the broker see it."""

    def end(self, reason: Reason, text: str = "") -> None:
        """Tell the client why, and close."""


class Broker:
    """All state of a running broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        database: Database,
        retained: RetainedMessages,
        access: Access,
        clock: Clock,
        shell: Shell,
    ) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.access = access
        self.clock = clock
        self.shell = shell
        self.log = logging.getLogger("siltstone.broker")
        self.statistics = Statistics(shell.now())
        self.timers = Timers(shell.wake_at)
        self.ready = Ready(self._wake)
        self.router = Router()
        self.retained = retained
        self.rules = StoreRules(settings.storage.rules)
        self.bridge = Bridge(
            database, shell.soon, shell.soon_from_thread, self.limits.pending_bytes_max
        )
        self.wills = Wills(self.timers, self._publish_will)
        self.registry = Registry(
            self.limits, self.router, self.timers, self.ready, ended=self._session_ended
        )
        self.subscriptions = Subscriptions(
            self.limits,
            settings.share.strategy,
            self.router,
            self.registry,
            retained,
            clock.now_us,
        )
        self.throttle = Throttle(
            clock,
            delay=settings.access.login_delay,
            delay_max=settings.access.login_delay_max,
        )
        # Who is connected, and who will be when the outcome of earlier publishes is known.
        self.clients: dict[str, Peer] = {}
        self.waiting: dict[str, Peer] = {}
        # Logins that wait for a thread, and bytes of packets that have not arrived whole.
        self.logins = 0
        self.partial_bytes = 0
        self._quiet_until = 0.0
        self._untold = 0

    def _wake(self) -> None:
        self.shell.soon(self.flush)

    def flush(self) -> None:
        """Write what this turn has for each client."""
        now = self.shell.now()
        for outbox in self.ready.take():
            contain(partial(_write_out, outbox, now))

    def tick(self) -> None:
        """Do what is due."""
        self.timers.run(self.shell.now())

    def assigned_id(self) -> str:
        """Return a client id that nobody has."""
        return f"auto-{secrets.token_hex(12)}"

    def store(
        self,
        batch: PublishBatch,
        publisher: bytes,
        settle: SettlePart | None,
        exchanges: list[Exchange],
    ) -> int:
        """Store a batch as the rules say; return how often `settle` will be called.

        It hears of each part that is waited for. What is not stored, and nobody waits for, is
        counted here; what it changed among the retained messages is taken back.
        """
        waits = 0
        for durability, part in self.rules.split(batch).items():
            if durability is None:
                continue
            hears = settle if durability != "none" else None
            self.bridge.append(
                part, publisher, durability, partial(self._stored, part, hears, exchanges)
            )
            if hears is not None:
                waits += 1
        return waits

    def _stored(
        self,
        part: PublishBatch,
        settle: SettlePart | None,
        exchanges: list[Exchange],
        error: Exception | None,
    ) -> None:
        if error is not None:
            self._count_lost(len(part.topics), error)
            self._take_back(part, exchanges)
        if settle is not None:
            settle(part, error)

    def _take_back(self, part: PublishBatch, exchanges: list[Exchange]) -> None:
        """Undo what messages that were not kept have changed among the retained ones."""
        topics = set(part.topics)
        self.forget_retained([exchange for exchange in exchanges if exchange.topic in topics])

    def forget_retained(self, exchanges: list[Exchange]) -> None:
        """Let the retained messages be as they were before these changes."""
        if not exchanges:
            return
        try:
            ticket = self.retained.take_back(exchanges)
        except SiltstoneError as exc:
            log(self.log, logging.WARNING, "refused messages stay retained", error=str(exc))
            return
        if ticket is not None:
            ticket.on_done(self._hear_retained)

    def _hear_retained(self, ticket: Ticket) -> None:
        """Bring the outcome of a change of retained messages to the loop."""
        self.shell.soon_from_thread(partial(self.retained.settled, ticket))

    def _count_lost(self, count: int, error: Exception) -> None:
        """Take note of messages that could not be stored; tell of them once a second."""
        self.statistics.publishes_refused += count
        self._untold += count
        now = self.shell.now()
        if now >= self._quiet_until:
            log(
                self.log,
                logging.WARNING,
                "publishes not stored",
                count=self._untold,
                error=str(error),
            )
            self._quiet_until = now + QUIET_SECONDS
            self._untold = 0

    def dispatch(self, batch: PublishBatch, source: Outbox | None) -> None:
        """Send a batch to the subscribers. A session's own messages have it as their source."""
        self.router.dispatch(batch, source, self.shell.now())

    def retain(
        self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None
    ) -> tuple[int, list[int], list[Exchange]]:
        """Keep the retained messages of a batch.

        Return how often `settle` will be called, the indexes of messages that are too much, and
        what the others changed.
        Raises: OverloadedError, PoisonedError, ClosedError; then nothing was kept.
        """
        indexes = find_flags(batch.flags, RETAIN)
        if not indexes:
            return 0, [], []
        part = pick(batch, indexes)
        receipt = self.retained.put(
            part.topics,
            part.payloads,
            part.flags,
            part.properties,
            part.expiries,
            publisher,
            "synced",
        )
        refused = [indexes[number] for number in receipt.refused]
        if receipt.ticket is None:
            return 0, refused, receipt.exchanges
        size_bytes = sum(map(len, part.topics)) + sum(map(len, part.payloads))
        self.bridge.hold(size_bytes)

        def stored(ticket: Ticket) -> None:
            self.retained.settled(ticket)
            self.bridge.release(size_bytes)
            if settle is not None:
                settle(part, ticket.error)

        receipt.ticket.on_done(lambda ticket: self.shell.soon_from_thread(lambda: stored(ticket)))
        return 0 if settle is None else 1, refused, receipt.exchanges

    def sent_totals(self) -> tuple[int, int, int]:
        """Return how many messages were sent and dropped, and the bytes sent, in all."""
        counts = self.statistics
        outboxes = [session.outbox for session in self.registry.sessions.values()]
        return (
            counts.publishes_sent + sum(outbox.sent for outbox in outboxes),
            counts.messages_dropped + sum(outbox.dropped for outbox in outboxes),
            counts.bytes_sent + sum(outbox.sent_bytes for outbox in outboxes),
        )

    def count_connected(self) -> None:
        """Take note of a client that connected."""
        self.statistics.connections += 1
        self.statistics.clients_maximum = max(self.statistics.clients_maximum, len(self.clients))

    def may_subscribe(self, identity: Identity, topic_filter: TopicFilter) -> bool:
        """Tell whether a client may have a subscription, by the rights of now."""
        return self.access.may_subscribe(identity, topic_filter)

    def may_receive(self, identity: Identity, topic: bytes) -> bool:
        """Tell whether a client may read a topic, by the rights of now."""
        return self.access.may_receive(identity, topic)

    def use_access(self, access: Access) -> None:
        """Decide by other files from now on."""
        self.access = access
        self.router.forget_routes()

    def _publish_will(self, session: Session, will: Will) -> None:
        batch = PublishBatch()
        batch.topics.append(will.topic)
        batch.payloads.append(will.payload)
        batch.flags.append(will.qos | (RETAIN if will.retain else 0))
        batch.packet_ids.append(0)
        properties = encode_message_properties(will.properties)
        if properties:
            batch.properties.append(properties)
        expiry = will.properties.message_expiry_interval
        if expiry is not None:
            batch.expiries.append(expiry)
        exchanges: list[Exchange] = []
        try:
            _, _, exchanges = self.retain(batch, session.publisher, None)
        except SiltstoneError as exc:
            log(self.log, logging.WARNING, "will not retained", error=str(exc))
        self.store(batch, session.publisher, None, exchanges)
        self.dispatch(batch, session.outbox)

    def _session_ended(self, session: Session) -> None:
        outbox = session.outbox
        self.statistics.publishes_sent += outbox.sent
        self.statistics.messages_dropped += outbox.dropped
        self.statistics.bytes_sent += outbox.sent_bytes
        # [MQTT-3.1.2-8]: the will is published when the session ends, if it still waits then.
        self.wills.fire(session.client_id)
        self.subscriptions.take_up(session)


def _write_out(outbox: Outbox, now: float) -> None:
    """Write what an outbox has, then let it send what waits."""
    data = outbox.take()
    sink = outbox.sink
    if sink is None:
        return
    if data:
        sink(data)
    if outbox.waits:
        outbox.pump(now)
    if outbox.refill is not None:
        outbox.refill()
