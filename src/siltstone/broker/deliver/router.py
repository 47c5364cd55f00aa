"""The router: sends batches to the outboxes of their subscribers, along cached routes.

A route lists the sessions that get the messages of one topic, each once, and the share groups.
Overlapping subscriptions of a session form one target with the highest QoS and all identifiers. The
matcher finds the route of a topic at its first message. A route is dropped from the cache when a
subscription changes that may affect it, or when the cache takes too much memory. A message
therefore costs one look-up, however many subscriptions there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from siltstone.broker.deliver.shares import LendingTerms, ShareGroup, Subscriber, offer_message
from siltstone.mqtt.publish import NO_EXPIRY, PublishBatch
from siltstone.session.sending.delivery import NEVER
from siltstone.session.sending.outbox import Outbox
from siltstone.topic.matcher import Matcher

# The memory limit of cached routes, and estimates for a route and for each of its targets.
_ROUTES_BYTES_MAX: Final = 128 * 1024 * 1024
_ROUTE_BYTES: Final = 400
_TARGET_BYTES: Final = 150


class DeliveryTarget:
    """A session that receives the messages of a topic, with the options of its subscriptions."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.qos = 0
        self.keeps_retain = False
        self.identifiers = b""
        # Whether a subscription has the no-local option. If so, `own` is the target for messages
        # that the session itself published, or None if it does not get them.
        self.no_local = False
        self.own: DeliveryTarget | None = None

    def add(self, subscriber: Subscriber) -> None:
        """Add one more subscription of the session."""
        self.qos = max(self.qos, subscriber.qos)
        self.keeps_retain = self.keeps_retain or subscriber.keeps_retain
        # [MQTT-3.3.4-3]: the identifiers of all subscriptions that match.
        self.identifiers += subscriber.identifier

    def send(
        self, topic: bytes, payload: bytes, flags: int, properties: bytes, expires_at: float
    ) -> None:
        """Offer a message with the options of the subscriptions."""
        offer_message(
            self.outbox,
            self.qos,
            self.keeps_retain,
            self.identifiers,
            topic,
            payload,
            flags,
            properties,
            expires_at,
        )


class TopicRoute:
    """The receivers of the messages of one topic."""

    def __init__(self) -> None:
        self.targets: list[DeliveryTarget] = []
        self.groups: list[ShareGroup] = []


class Router:
    """All subscriptions, and the delivery of messages to them."""

    def __init__(self, routes_bytes_max: int = _ROUTES_BYTES_MAX) -> None:
        self._routes_bytes_max = routes_bytes_max
        self._matcher = Matcher()
        self._groups: dict[tuple[str, tuple[bytes, ...]], ShareGroup] = {}
        # The groups that each outbox is a member of.
        self._groups_of: dict[Outbox, dict[ShareGroup, None]] = {}
        self._routes: dict[bytes, TopicRoute] = {}
        self._routes_bytes = 0
        self._nowhere = TopicRoute()
        # The terms of new share groups; None if messages do not wait in groups.
        self.terms: LendingTerms | None = None
        # The groups with waiting messages, and groups that had some at the last look.
        self._waiting: dict[ShareGroup, None] = {}
        # Called when a group begins to wait, unless `look` is called each second already.
        self._is_looking = False
        self.begins_to_wait: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._matcher)

    def subscribe(self, levels: tuple[bytes, ...], subscriber: Subscriber) -> None:
        """Send matching messages to an outbox; replace its earlier subscription of this filter."""
        self._matcher.put(levels, subscriber.outbox, subscriber)
        self._forget(levels)

    def unsubscribe(self, levels: tuple[bytes, ...], outbox: Outbox) -> None:
        """Remove the subscription of an outbox to this filter."""
        self._matcher.remove(levels, outbox)
        self._forget(levels)

    def join(
        self, name: str, levels: tuple[bytes, ...], subscriber: Subscriber, strategy: str
    ) -> None:
        """Add an outbox to the share group of this name and filter."""
        key = (name, levels)
        group = self._groups.get(key)
        if group is None:
            group = ShareGroup(name, strategy, self.terms)
            self._groups[key] = group
            self._matcher.put(levels, group, group)
            self._forget(levels)
        group.join(subscriber)
        self._groups_of.setdefault(subscriber.outbox, {})[group] = None

    def leave(self, name: str, levels: tuple[bytes, ...], outbox: Outbox) -> None:
        """Remove an outbox from a group; the group ends with its last member."""
        key = (name, levels)
        group = self._groups.get(key)
        if group is None:
            return
        own = self._groups_of.get(outbox)
        if own is not None:
            own.pop(group, None)
            if not own:
                del self._groups_of[outbox]
        group.leave(outbox)
        if not group.members:
            del self._groups[key]
            self._waiting.pop(group, None)
            self._matcher.remove(levels, group)
            self._forget(levels)

    def waiting_groups(self) -> list[ShareGroup]:
        """Return the share groups with messages that wait for a member."""
        return [group for group in self._waiting if group.queued]

    def waiting_groups_of(self, outbox: Outbox) -> list[ShareGroup]:
        """Return the groups of an outbox that have waiting messages, or had some a second ago."""
        own = self._groups_of.get(outbox)
        if own is None:
            return []
        # A session may be in thousands of groups, and thousands of other groups may wait.
        if len(own) < len(self._waiting):
            return [group for group in own if group in self._waiting]
        return [group for group in self._waiting if group in own]

    @property
    def waits(self) -> bool:
        """Whether messages wait in share groups."""
        return len(self._waiting) > 0

    def replenish(self, outbox: Outbox, now: float) -> None:
        """Send more to a session that has acknowledged something or has connected."""
        if self._waiting:
            for group in self.waiting_groups_of(outbox):
                group.replenish(outbox, now)

    def look(self, now: float) -> bool:
        """Look after the groups with waiting messages; return whether there still are any."""
        for group in list(self._waiting):
            group.look(now)
            if not group.queued:
                self._waiting.pop(group, None)
        self._is_looking = len(self._waiting) > 0
        return self._is_looking

    def forget_routes(self) -> None:
        """Drop all cached routes, for example because the rights of sessions changed."""
        self._routes = {}
        self._routes_bytes = 0

    def dispatch(self, batch: PublishBatch, source: Outbox | None, now: float) -> None:
        """Send a batch along its routes; `source` is the outbox of the publishing session."""
        if len(self._matcher) == 0:
            return
        extended = len(batch.properties) > 0
        expiring = len(batch.expiries) > 0
        for index in range(len(batch.topics)):
            topic = batch.topics[index]
            route = self._routes.get(topic)
            if route is None:
                route = self._find(topic)
            if route is self._nowhere:
                continue
            properties = batch.properties[index] if extended else b""
            expires_at = NEVER
            if expiring and batch.expiries[index] != NO_EXPIRY:
                expires_at = now + batch.expiries[index]
            payload = batch.values[index]
            flags = batch.flags[index]
            for target in route.targets:
                if target.no_local and target.outbox is source:
                    # [MQTT-3.8.3-3].
                    if target.own is not None:
                        target.own.send(topic, payload, flags, properties, expires_at)
                else:
                    target.send(topic, payload, flags, properties, expires_at)
            for group in route.groups:
                if group.offer(topic, payload, flags, properties, expires_at, source, now):
                    self._wait(group)

    def _wait(self, group: ShareGroup) -> None:
        self._waiting[group] = None
        if not self._is_looking and self.begins_to_wait is not None:
            self._is_looking = True
            self.begins_to_wait()

    def _find(self, topic: bytes) -> TopicRoute:
        """Find the route of a topic with the matcher, and cache it."""
        route = TopicRoute()
        targets: dict[Outbox, DeliveryTarget] = {}
        for value in self._matcher.match(topic):
            if isinstance(value, ShareGroup):
                route.groups.append(value)
                continue
            subscriber = cast("Subscriber", value)
            outbox = subscriber.outbox
            if not subscriber.may_receive(topic):
                continue
            target = targets.get(outbox)
            if target is None:
                target = DeliveryTarget(outbox)
                targets[outbox] = target
                route.targets.append(target)
            target.add(subscriber)
            if subscriber.no_local:
                target.no_local = True
            else:
                if target.own is None:
                    target.own = DeliveryTarget(outbox)
                target.own.add(subscriber)
        for target in route.targets:
            if not target.no_local:
                target.own = None
        if not route.targets and not route.groups:
            route = self._nowhere
        self._remember(topic, route)
        return route

    def _remember(self, topic: bytes, route: TopicRoute) -> None:
        size = _size(topic, route)
        if self._routes_bytes + size > self._routes_bytes_max:
            self.forget_routes()
        self._routes[topic] = route
        self._routes_bytes += size

    def _forget(self, levels: tuple[bytes, ...]) -> None:
        """Drop the cached routes that a change of this filter may affect."""
        if b"+" in levels or levels[-1] == b"#":
            self.forget_routes()
            return
        topic = b"/".join(levels)
        route = self._routes.pop(topic, None)
        if route is not None:
            self._routes_bytes -= _size(topic, route)


def _size(topic: bytes, route: TopicRoute) -> int:
    """Return the estimated size of a cached route, in bytes."""
    return _ROUTE_BYTES + len(topic) + _TARGET_BYTES * len(route.targets)
