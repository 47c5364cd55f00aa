"""Which topics go over a link, and what they are called on the other side.

The first of the link's topics that matches decides. A name that MQTT cannot hold goes nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from siltstone.bridge.settings import LinkTopic
from siltstone.mqtt.packets import Subscription
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter

_TOPIC_BYTES_MAX: Final = 65_535
_REMEMBERED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Route:
    """A topic's name on the other side, and the highest QoS that it goes with."""

    topic: bytes
    qos: int


class _Rule:
    """One filter, and the prefix that takes the place of another."""

    def __init__(self, topic: LinkTopic, *, before: str, after: str) -> None:
        self.filter = TopicFilter.parse(before + topic.pattern)
        self.qos = topic.qos
        self._before = len(before.encode())
        self._after = after.encode()

    def route(self, topic: bytes) -> Route | None:
        name = self._after + topic[self._before :]
        return Route(name, self.qos) if 0 < len(name) <= _TOPIC_BYTES_MAX else None


class Routes:
    """The rules of one direction, and what they said of the topics that were met."""

    def __init__(self, rules: list[_Rule]) -> None:
        self.rules = rules
        self._known: dict[bytes, Route | None] = {}

    def find(self, topic: bytes) -> Route | None:
        """Return where a topic goes; None: nowhere."""
        try:
            return self._known[topic]
        except KeyError:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            first = next((rule for rule in self.rules if rule.filter.matches(topic)), None)
            route = self._known[topic] = None if first is None else first.route(topic)
            return route


def outward(topics: tuple[LinkTopic, ...]) -> Routes:
    """Return the routes of messages that go to the peer. Raises: InvalidTopicError."""
    return Routes(
        [
            _Rule(topic, before=topic.local_prefix, after=topic.remote_prefix)
            for topic in topics
            if topic.direction != "in"
        ]
    )


def inward(topics: tuple[LinkTopic, ...]) -> Routes:
    """Return the routes of messages that come from the peer. Raises: InvalidTopicError."""
    return Routes(
        [
            _Rule(topic, before=topic.remote_prefix, after=topic.local_prefix)
            for topic in topics
            if topic.direction != "out"
        ]
    )


def subscriptions(routes: Routes, version: Version) -> tuple[Subscription, ...]:
    """Return what to ask the peer for.

    Of MQTT 5 also that it keeps our own messages to itself, leaves retain as it was published,
    and sends retained messages for new subscriptions alone.
    """
    is_v5 = version is Version.V5
    return tuple(
        Subscription(
            filter=rule.filter,
            qos=rule.qos,
            no_local=is_v5,
            retain_as_published=is_v5,
            retain_handling=1 if is_v5 else 0,
        )
        for rule in routes.rules
    )
