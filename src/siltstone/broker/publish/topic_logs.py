"""Topic logs of a broker: opened before clients connect, and published to MQTT by rules."""

from __future__ import annotations

from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.control.recovered import tell_recovered
from siltstone.broker.control.storage_drift import tell_drift
from siltstone.broker.settings.topiclog import TopicLogPublish, TopicLogSettings
from siltstone.mqtt.publish import PublishBatch
from siltstone.store.directory import Store
from siltstone.topic.grammar import TopicFilter
from siltstone.topiclog.hub import HubLimits
from siltstone.topiclog.log import open_topic_logs
from siltstone.topiclog.server import TopicLogServer

_REMEMBERED_MAX: Final = 10_000


class Publishing:
    """Sends messages of topic logs to the subscribers of the broker, after they are stored."""

    def __init__(self, broker: Broker, rules: tuple[TopicLogPublish, ...]) -> None:
        self._broker = broker
        self._rules = [(TopicFilter.parse(rule.filter), rule) for rule in rules]
        self._known: dict[str, TopicLogPublish | None] = {}

    def rule(self, topic: str) -> TopicLogPublish | None:
        """Return the first rule that matches; None if the topic is not published."""
        if topic not in self._known:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            name = topic.encode()
            matching = (rule for parsed, rule in self._rules if parsed.matches(name))
            self._known[topic] = next(matching, None)
        return self._known[topic]

    def publish(self, topic: str, values: list[bytes]) -> None:
        """Send messages to the subscribers. They are stored already, as rows of their log."""
        rule = self.rule(topic)
        if rule is None:
            return
        batch = PublishBatch()
        batch.topics = [(rule.prefix + topic).encode()] * len(values)
        batch.values = values
        batch.flags = [rule.qos] * len(values)
        batch.packet_ids = [0] * len(values)
        self._broker.dispatch(batch, None)


async def serve_topic_logs(
    settings: TopicLogSettings,
    store: Store,
    broker: Broker,
    *,
    connections_max: int,
    keep_free_bytes: int = 0,
) -> TopicLogServer:
    """Recover all topics, then accept up to `connections_max` connections at the same time.

    Topic logs leave `keep_free_bytes` of the disk free.

    Raises: UsageError, CorruptionError.
    """
    logs, database = open_topic_logs(store, settings.database_settings())
    database.leave_free(keep_free_bytes)
    tell_recovered(database)
    tell_drift(settings, database, str(store.path))
    publishing = Publishing(broker, settings.publish)
    server = TopicLogServer(
        logs,
        limits=HubLimits(
            body_bytes_max=settings.message_size_max,
            pending_bytes_max=settings.pending_bytes_max,
            reserved_bytes_max=settings.reserved_bytes_max,
        ),
        body_timeout=settings.body_timeout,
        idle_timeout=settings.idle_timeout,
        connections_max=connections_max,
        publisher=publishing if settings.publish else None,
    )
    await server.listen(settings.host, settings.port)
    return server
