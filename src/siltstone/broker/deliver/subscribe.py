"""SUBSCRIBE and UNSUBSCRIBE: the reason for each filter, and the retained messages that follow.

Retained messages are sent as fast as the client receives them, and are not queued. Each is looked
up when its turn comes. A message that was replaced meanwhile is therefore never sent after its
successor, which was delivered live. A message that was retained meanwhile may be sent twice. Each
turn of the loop processes a limited number of retained messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from siltstone.broker.deliver.shares import Subscriber
from siltstone.broker.deliver.slices import SLICE_LEVELS, cost_of
from siltstone.broker.retained.log import Retained
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.sessions.groups import StoredShareGroups
from siltstone.broker.sessions.registry import Registry
from siltstone.broker.settings.broker import Limits
from siltstone.mqtt.packets import Subscribe, Subscription, Unsubscribe
from siltstone.mqtt.publish import with_time_left
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import encode_variable
from siltstone.rows.batch import RETAIN
from siltstone.session.lending import Member
from siltstone.session.sending.delivery import NEVER
from siltstone.session.sending.outbox import Outbox
from siltstone.session.session import Session
from siltstone.session.subscribed import Subscribed
from siltstone.topic.grammar import TopicFilter
from siltstone.units import SECOND_US

# Steps of a walk through the retained messages in one turn, for one client.
_STEPS_MAX: Final = 1000
# Disconnected sessions that keep their position in the walk through the retained messages.
_PUT_OFF_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRights:
    """The rights of a client to subscribe and read; `may_receive` is None if all is allowed."""

    may_subscribe: Callable[[TopicFilter], bool]
    may_receive: Callable[[bytes], bool] | None


class Subscriptions:
    """Subscribes and unsubscribes sessions."""

    def __init__(
        self,
        limits: Limits,
        strategy: str,
        registry: Registry,
        retained: RetainedMessages,
        now_us: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._strategy = strategy
        self._router = registry.router
        self._unstored = registry.unstored
        self._registry = registry
        self._retained = retained
        self._now_us = now_us
        self._now = now
        # Share groups that read the store; None if groups receive messages from the router.
        self.groups: StoredShareGroups | None = None
        # Retained messages that disconnected sessions have not received yet, by client id.
        self._put_off: dict[str, deque[Replay]] = {}

    def subscribe(
        self, session: Session, packet: Subscribe, rights: SubscriptionRights
    ) -> tuple[tuple[Reason, ...], list[Replay]]:
        """Add all filters of a packet; return the reasons, and the retained messages to send."""
        session.outbox.changing()
        identifiers = packet.properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        reasons: list[Reason] = []
        replays: list[Replay] = []
        for subscription in packet.subscriptions:
            refusal = self._refusal(session, subscription.filter, rights)
            if refusal is not None:
                reasons.append(refusal)
                continue
            text = subscription.filter.text
            is_new = text not in session.subscriptions
            if is_new:
                self._registry.count_subscription(session, subscription.filter)
            session.subscriptions[text] = Subscribed(
                subscription=subscription, identifier=identifier
            )
            self._route(session, subscription, identifier, rights)
            if session.durable is not None:
                session.durable.keep(subscription, identifier)
            reasons.append(Reason(subscription.qos))
            # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]; shared subscriptions get no retained messages
            # (4.8.2).
            handling = subscription.retain_handling
            if subscription.filter.group is None and (handling == 0 or (handling == 1 and is_new)):
                replays.append(Replay(text, self._retained.walk(subscription.filter)))
        return tuple(reasons), replays

    def when_kept(self, session: Session, act: Callable[[], None]) -> None:
        """Call `act` when the share groups of a durable session are saved."""
        if self.groups is None:
            act()
        else:
            self.groups.when_kept(list(session.groups), act)

    def unsubscribe(self, session: Session, packet: Unsubscribe) -> tuple[Reason, ...]:
        """Remove all filters of a packet; return the reasons."""
        session.outbox.changing()
        reasons: list[Reason] = []
        for topic_filter in packet.filters:
            if topic_filter.text in session.subscriptions:
                self._registry.drop_route(session, topic_filter.text)
                if session.durable is not None:
                    session.durable.unsubscribe(topic_filter)
                reasons.append(Reason.SUCCESS)
            else:
                reasons.append(Reason.NO_SUBSCRIPTION_EXISTED)
        return tuple(reasons)

    def restore(
        self, session: Session, saved: Iterator[Subscribed], rights: SubscriptionRights
    ) -> bool:
        """Route as many subscriptions of earlier connections as one turn processes.

        Return whether there may be more.
        """
        levels = 0
        for each in saved:
            self.put_back(session, each, rights)
            levels += cost_of(each.subscription.filter)
            if levels >= SLICE_LEVELS:
                return True
        return False

    def put_back(self, session: Session, saved: Subscribed, rights: SubscriptionRights) -> None:
        """Route a subscription that a session has from an earlier connection."""
        session.subscriptions[saved.subscription.filter.text] = saved
        self._registry.count_subscription(session, saved.subscription.filter)
        self._route(session, saved.subscription, saved.identifier, rights)

    def put_off(self, session: Session, replays: deque[Replay]) -> None:
        """Keep the unsent retained messages of a connection that ends, except those of QoS 0.

        A position in a walk takes memory. If `_PUT_OFF_MAX` sessions have one, further sessions
        start again with the first message.
        """
        known = session.subscriptions
        kept = deque(
            replay
            for replay in replays
            if replay.text in known and known[replay.text].subscription.qos
        )
        if not kept:
            return
        if len(self._put_off) >= _PUT_OFF_MAX:
            for replay in kept:
                replay.messages = self._retained.walk(known[replay.text].subscription.filter)
        self._put_off[session.client_id] = kept

    def forget(self, client_id: str) -> None:
        """Delete the unsent retained messages of a session that has ended."""
        self._put_off.pop(client_id, None)

    def take_up(self, session: Session) -> deque[Replay]:
        """Return and delete the retained messages that the previous connection left unsent."""
        return self._put_off.pop(session.client_id, deque())

    def send_retained(
        self, session: Session, replays: deque[Replay], may_receive: Callable[[bytes], bool] | None
    ) -> bool:
        """Send retained messages while the client can receive them, at most `_STEPS_MAX` steps.

        Return whether the limit of steps was reached, so that the client can receive more at once.
        """
        now_us = self._now_us()
        outbox = session.outbox
        steps = 0
        while replays and outbox.is_clear():
            if steps == _STEPS_MAX:
                return True
            steps += 1
            replay = replays[0]
            # The current options of the subscription apply. [MQTT-3.10.4-2]: after UNSUBSCRIBE no
            # new message is sent.
            subscribed = session.subscriptions.get(replay.text)
            try:
                message = None if subscribed is None else next(replay.messages)
            except StopIteration:
                subscribed = message = None
            if subscribed is None:
                replays.popleft()
            elif message is not None and not message.is_expired(now_us):
                # [MQTT-3.8.3-3].
                is_own = message.publisher == session.publisher
                if (may_receive is None or may_receive(message.topic)) and not (
                    is_own and subscribed.subscription.no_local
                ):
                    _send_retained(outbox, message, subscribed, now_us, self._now())
        return False

    def _route(
        self,
        session: Session,
        subscription: Subscription,
        identifier: int,
        rights: SubscriptionRights,
    ) -> None:
        topic_filter = subscription.filter
        subscriber = Subscriber(
            session.outbox,
            subscription.qos,
            subscription.no_local,
            subscription.retain_as_published,
            _encoded(identifier),
            rights.may_receive,
        )
        durable = session.durable
        if topic_filter.group is None and durable is not None:
            self._unstored.subscribe(topic_filter.levels, subscriber)
            durable.want(subscription, _encoded(identifier), rights.may_receive)
        elif topic_filter.group is None:
            self._router.subscribe(topic_filter.levels, subscriber)
        elif self.groups is None:
            self._router.join(topic_filter.group, topic_filter.levels, subscriber, self._strategy)
        else:
            self._unstored.join(topic_filter.group, topic_filter.levels, subscriber, self._strategy)
            self._join(self.groups, session, subscription, subscriber)

    def _join(
        self,
        groups: StoredShareGroups,
        session: Session,
        subscription: Subscription,
        subscriber: Subscriber,
    ) -> None:
        """Add a session to a share group that reads the store."""
        member = Member(
            session.outbox,
            subscription.qos,
            subscription.retain_as_published,
            subscriber.identifier,
            subscriber.guard,
            self._limits.inflight_max,
        )
        group = groups.join(subscription.filter, member, is_durable=session.durable is not None)
        session.groups[subscription.filter.text] = group

    def _refusal(
        self, session: Session, topic_filter: TopicFilter, rights: SubscriptionRights
    ) -> Reason | None:
        if len(topic_filter.levels) > self._limits.topic_levels_max:
            return Reason.TOPIC_FILTER_INVALID
        if not rights.may_subscribe(topic_filter):
            return Reason.NOT_AUTHORIZED
        if topic_filter.text in session.subscriptions:
            return None
        if (
            len(session.subscriptions) >= self._limits.subscriptions_max
            or self._registry.subscription_count >= self._limits.subscriptions_total_max
        ):
            return Reason.QUOTA_EXCEEDED
        return None


class Replay:
    """The unsent retained messages of one subscription."""

    __slots__ = ("messages", "text")

    def __init__(self, text: str, messages: Iterator[Retained | None]) -> None:
        self.text = text
        self.messages = messages


def _send_retained(
    outbox: Outbox, message: Retained, subscribed: Subscribed, now_us: int, now: float
) -> None:
    properties = message.properties
    expires_at = NEVER
    if message.expires_us:
        left_us = message.expires_us - now_us
        properties = with_time_left(properties, left_us)
        expires_at = now + left_us / SECOND_US
    # [MQTT-3.3.1-8]: a message that is sent for a new subscription has the retain flag.
    flags = min(message.flags & 3, subscribed.subscription.qos) | RETAIN
    properties += _encoded(subscribed.identifier)
    outbox.offer(message.topic, message.body(), flags, properties, expires_at)


def _encoded(identifier: int) -> bytes:
    """Return the encoded property of a subscription identifier; empty for 0."""
    return b"\x0b" + encode_variable(identifier) if identifier else b""
