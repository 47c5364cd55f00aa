from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from siltstone.broker.publish import topic_logs
from siltstone.broker.publish.topic_logs import Publishing, serve_topic_logs
from siltstone.broker.settings.topiclog import TopicLogPublish, TopicLogSettings
from siltstone.mqtt.publish import PublishBatch
from siltstone.topiclog.server import TopicLogServer
from tests.support.builders import PATH
from tests.support.topiclog import LogWorld


class Subscribers:
    """Of a broker, what hears of messages."""

    def __init__(self) -> None:
        self.batches: list[PublishBatch] = []

    def dispatch(self, batch: PublishBatch, source: object) -> None:
        assert source is None
        self.batches.append(batch)


def publishing(*rules: TopicLogPublish) -> tuple[Publishing, Subscribers]:
    subscribers = Subscribers()
    return Publishing(cast("Any", subscribers), rules), subscribers


def test_messages_go_to_subscribers_by_the_first_rule_that_matches() -> None:
    made, subscribers = publishing(
        TopicLogPublish(filter="a/+", prefix="log/", qos=2), TopicLogPublish(filter="a/#", qos=0)
    )
    made.publish("a/b", [b"1", b"2"])
    made.publish("a/b/c", [b"3"])
    made.publish("b", [b"4"])
    found = [
        (batch.topics, batch.values, batch.flags, batch.packet_ids) for batch in subscribers.batches
    ]
    assert found == [
        ([b"log/a/b"] * 2, [b"1", b"2"], [2, 2], [0, 0]),
        ([b"a/b/c"], [b"3"], [0], [0]),
    ]


def test_rules_are_looked_up_once_a_topic_and_forgotten_when_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_logs, "_REMEMBERED_MAX", 2)
    rule = TopicLogPublish(filter="t/#")
    made, _ = publishing(rule)
    for number in range(5):
        assert made.rule(f"t/{number}") == rule
        assert made.rule(f"u/{number}") is None


def test_topics_are_recovered_and_told_of_before_anybody_connects(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = LogWorld()
    with world.logs() as (logs, _):
        logs.create_topic("t")
    world.fs.create(PATH / "data" / "topics" / "0" / "1" / "notes.txt").close()
    listening: list[tuple[str, int]] = []

    async def listen(self: TopicLogServer, host: str, port: int) -> int:
        listening.append((host, port))
        return port

    monkeypatch.setattr(TopicLogServer, "listen", listen)

    async def run() -> None:
        with world.store() as store:
            settings = TopicLogSettings(enabled=True, port=1, segment_bytes=65_536)
            server = await serve_topic_logs(
                settings, store, cast("Any", Subscribers()), connections_max=5
            )
            await server.close()

    with caplog.at_level(logging.WARNING, "siltstone.server"):
        asyncio.run(run())
    assert listening == [("127.0.0.1", 1)]
    assert [record.getMessage() for record in caplog.records] == ["foreign_files_ignored"]
