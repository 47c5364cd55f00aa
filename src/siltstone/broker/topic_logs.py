"""Topic logs beside the broker: opened before anybody connects, and published where asked for."""

from __future__ import annotations

import logging
from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.topiclog_settings import TopicLogPublish, TopicLogSettings
from siltstone.directory import Store
from siltstone.logs import log
from siltstone.mqtt.publish import PublishBatch
from siltstone.store.opening import RecoveryReport
from siltstone.topic.grammar import TopicFilter
from siltstone.topiclog.hub import HubLimits
from siltstone.topiclog.log import TopicLogs, open_topic_logs
from siltstone.topiclog.server import TopicLogServer

_LOG: Final = logging.getLogger("siltstone.server")
_REMEMBERED_MAX: Final = 10_000


class Publishing:
    """Gives messages of topic logs to the subscribers of the broker, once they are stored."""

    def __init__(self, broker: Broker, rules: tuple[TopicLogPublish, ...]) -> None:
        self._broker = broker
        self._rules = [(TopicFilter.parse(rule.filter), rule) for rule in rules]
        self._known: dict[str, TopicLogPublish | None] = {}

    def rule(self, topic: str) -> TopicLogPublish | None:
        """Return what the first rule that matches says; None where nothing is published."""
        if topic not in self._known:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            name = topic.encode()
            matching = (rule for parsed, rule in self._rules if parsed.matches(name))
            self._known[topic] = next(matching, None)
        return self._known[topic]

    def publish(self, topic: str, values: list[bytes]) -> None:
        """Send messages to who is subscribed. They are stored already, as rows of their log."""
        rule = self.rule(topic)
        if rule is None:
            return
        batch = PublishBatch()
        batch.topics = [(rule.prefix + topic).encode()] * len(values)
        batch.payloads = values
        batch.flags = [rule.qos] * len(values)
        batch.packet_ids = [0] * len(values)
        self._broker.dispatch(batch, None)


async def serve_topic_logs(
    settings: TopicLogSettings, store: Store, broker: Broker
) -> TopicLogServer:
    """Recover all topics, then take connections. Raises: UsageError, CorruptionError."""
    logs, reports = _open(settings, store)
    _tell(reports)
    publishing = Publishing(broker, settings.publish)
    server = TopicLogServer(
        logs,
        limits=HubLimits(
            body_bytes_max=settings.message_size_max,
            pending_bytes_max=settings.pending_bytes_max,
            reserved_bytes_max=settings.reserved_bytes_max,
        ),
        body_timeout=settings.body_timeout,
        connections_max=settings.connections_max,
        publisher=publishing if settings.publish else None,
    )
    await server.listen(settings.host, settings.port)
    return server


def _open(settings: TopicLogSettings, store: Store) -> tuple[TopicLogs, list[RecoveryReport]]:
    logs, database = open_topic_logs(store, settings.database_settings())
    return logs, database.reports


def _tell(reports: list[RecoveryReport]) -> None:
    for report in reports:
        if report.torn_bytes or report.rebuilt or report.foreign:
            log(
                _LOG,
                logging.WARNING,
                "mended after a crash",
                database="topics",
                slab=report.slab,
                torn_bytes=report.torn_bytes,
                indexes_rebuilt=len(report.rebuilt),
                foreign_files=", ".join(report.foreign),
            )
