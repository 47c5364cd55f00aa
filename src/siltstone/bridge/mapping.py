"""The topics that a bridge copies, and their names on the other side.

The first matching topic rule of the bridge decides. A name that is empty or too long for MQTT is
not copied.
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
class MappedTopic:
    """The name of a topic on the other side, and the maximum QoS of its messages."""

    topic: bytes
    qos: int


class _Rule:
    """One filter, the prefix that is removed, and the prefix that replaces it."""

    def __init__(self, topic: LinkTopic, *, before: str, after: str) -> None:
        self.filter = TopicFilter.parse(before + topic.pattern)
        self.qos = topic.qos
        self._before = len(before.encode())
        self._after = after.encode()

    def route(self, topic: bytes) -> MappedTopic | None:
        name = self._after + topic[self._before :]
        return MappedTopic(name, self.qos) if 0 < len(name) <= _TOPIC_BYTES_MAX else None


class Routes:
    """The rules of one direction, with a cache of their results."""

    def __init__(self, rules: list[_Rule]) -> None:
        self.rules = rules
        self._known: dict[bytes, MappedTopic | None] = {}

    def find(self, topic: bytes) -> MappedTopic | None:
        """Return the route of a topic; None if it is not copied."""
        try:
            return self._known[topic]
        except KeyError:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            first = next((rule for rule in self.rules if rule.filter.matches(topic)), None)
            route = self._known[topic] = None if first is None else first.route(topic)
            return route


def outward(topics: tuple[LinkTopic, ...]) -> Routes:
    """Return the routes of messages to the remote broker. Raises: InvalidTopicError."""
    return Routes(
        [
            _Rule(topic, before=topic.local_prefix, after=topic.remote_prefix)
            for topic in topics
            if topic.direction != "in"
        ]
    )


def inward(topics: tuple[LinkTopic, ...]) -> Routes:
    """Return the routes of messages from the remote broker. Raises: InvalidTopicError."""
    return Routes(
        [
            _Rule(topic, before=topic.remote_prefix, after=topic.local_prefix)
            for topic in topics
            if topic.direction != "out"
        ]
    )


def subscriptions(routes: Routes, version: Version) -> tuple[Subscription, ...]:
    """Return the subscriptions at the remote broker.

    With MQTT 5, the remote broker also does not send the bridge's own messages back, keeps the
    retain flag as published, and sends retained messages for new subscriptions only.
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
