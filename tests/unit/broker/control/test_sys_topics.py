from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from siltstone.broker.control.sys_topics import Load, SysTopics
from siltstone.mqtt.packets import Disconnect, Packet, Publish
from siltstone.topic.grammar import TopicFilter
from siltstone.version import __version__
from tests.support.broker_core import NOW_US, Core, over_quota

LOADS = (
    "bytes/received",
    "bytes/sent",
    "connections",
    "messages/received",
    "messages/sent",
    "publish/dropped",
    "publish/received",
    "publish/sent",
)


class EnoughError(Exception):
    """Ends what would go on for ever."""


def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing to its end."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def texts(packets: list[Packet]) -> dict[str, str]:
    return {
        packet.topic.decode().removeprefix("$SYS/broker/"): packet.payload.decode()
        for packet in packets
        if isinstance(packet, Publish)
    }


def test_a_load_moves_towards_the_rate_as_fast_as_its_minutes_say() -> None:
    load = Load()
    load.update(60, 60.0)
    assert load.averages == [60.0, 12.0, 4.0]
    load.update(60, 30.0)
    assert load.averages == pytest.approx([30.0, 10.8, 4.0 - 4.0 / 30])
    load.update(180, 120.0)
    assert load.averages == pytest.approx([60.0, 10.8 + 0.4 * 49.2, 3.866666 + 56.133333 / 7.5])


def test_a_broker_that_did_nothing_tells_of_nothing() -> None:
    values = SysTopics(Core().broker).values(10.0)
    assert values == {
        b"version": f"siltstone {__version__}",
        b"uptime": "0 seconds",
        b"clients/connected": "0",
        b"clients/disconnected": "0",
        b"clients/total": "0",
        b"clients/maximum": "0",
        b"subscriptions/count": "0",
        b"retained messages/count": "0",
        b"store/messages/count": "0",
        b"store/messages/pending_bytes": "0",
        b"messages/stored": "0",
        b"messages/received": "0",
        b"messages/sent": "0",
        b"messages/inflight_and_queued_bytes": "0",
        b"publish/messages/received": "0",
        b"publish/messages/sent": "0",
        b"publish/messages/dropped": "0",
        b"publish/messages/refused": "0",
        b"alarm/disk": "ok",
        b"alarm/clock": "ok",
        b"bytes/received": "0",
        b"bytes/sent": "0",
        **{
            f"load/{name}/{minutes}min".encode(): "0.00" for name in LOADS for minutes in (1, 5, 15)
        },
    }


def test_values_say_what_clients_did() -> None:
    core = Core(automatic=False, queued_messages_max=1)
    away = core.connect("away", session_expiry_interval=100)
    away.subscribe("t", qos=1)
    away.exchange(Disconnect())
    reader = core.connect("reader")
    reader.subscribe("t", "u", qos=0)
    writer = core.connect("writer")
    writer.publish("t", "1", qos=1, packet_id=1, retain=True)
    writer.publish("t", "2")
    core.settle(over_quota())
    writer.publish("t", "3")
    core.clock.advance(90.7)
    values = SysTopics(core.broker).values(30.0)
    counted = {
        b"uptime": "90 seconds",
        b"clients/connected": "2",
        b"clients/disconnected": "1",
        b"clients/total": "3",
        b"clients/maximum": "2",
        b"subscriptions/count": "3",
        b"store/messages/count": "3",
        b"store/messages/pending_bytes": "66",
        b"messages/stored": "3",
        b"messages/received": "3",
        b"messages/sent": "3",
        # One QoS 1 message waits; those of QoS 0 do not wait for who is away.
        b"messages/inflight_and_queued_bytes": "252",
        b"publish/messages/received": "3",
        b"publish/messages/sent": "3",
        b"publish/messages/dropped": "0",
        b"publish/messages/refused": "2",
        b"load/publish/received/1min": "3.00",
        b"load/publish/received/5min": "0.60",
        b"load/publish/received/15min": "0.20",
        b"load/connections/1min": "3.00",
        b"load/messages/sent/1min": "3.00",
    }
    assert {name: values[name] for name in counted} == counted
    counts = core.broker.statistics
    assert (values[b"bytes/received"], values[b"bytes/sent"]) == (
        str(counts.bytes_received),
        str(core.broker.sent_totals()[2]),
    )


def test_subscribers_get_every_value_once_and_then_only_what_changed() -> None:
    core = Core()
    topics = SysTopics(core.broker)
    reader = core.connect("reader")
    reader.subscribe("$SYS/#", qos=1)
    topics.publish(10.0)
    first = texts(reader.take())
    assert first.keys() == {name.decode() for name in SysTopics(core.broker).values(10.0)}
    assert (first["version"], first["clients/connected"]) == (f"siltstone {__version__}", "1")
    topics.publish(10.0)
    reader.take()
    core.clock.advance(10.0)
    core.broker.statistics.publishes_refused += 5
    topics.publish(10.0)
    again = texts(reader.take())
    unloaded = {name: text for name, text in again.items() if not name.startswith("load/")}
    # What is sent is counted when the next turn tells of it.
    assert unloaded == {
        "uptime": "10 seconds",
        "publish/messages/refused": "5",
        "messages/sent": str(core.broker.sent_totals()[0] - len(again)),
        "publish/messages/sent": str(core.broker.sent_totals()[0] - len(again)),
        "bytes/sent": unloaded["bytes/sent"],
    }


def test_values_are_retained_in_ram_alone() -> None:
    core = Core()
    SysTopics(core.broker).publish(10.0)
    found = core.broker.retained.find(TopicFilter.parse("$SYS/broker/version"), NOW_US)
    assert [(each.topic, each.payload) for each in found] == [
        (b"$SYS/broker/version", f"siltstone {__version__}".encode())
    ]
    assert (core.retained_log.stored, core.database.stored, len(core.broker.retained)) == (
        [],
        [],
        0,
    )


def test_an_interval_of_zero_publishes_nothing() -> None:
    core = Core()
    core.broker.settings = core.broker.settings.model_copy(update={"sys_interval": 0.0})
    finish(SysTopics(core.broker).run())
    assert core.broker.retained.find(TopicFilter.parse("$SYS/#"), NOW_US) == []


def test_values_are_published_at_once_and_then_at_every_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core()
    uptimes: list[bytes] = []

    async def pass_time(seconds: float) -> None:
        found = core.broker.retained.find(TopicFilter.parse("$SYS/broker/uptime"), NOW_US)
        uptimes.extend(each.payload for each in found)
        if len(uptimes) == 3:
            raise EnoughError
        core.clock.advance(seconds)

    monkeypatch.setattr(asyncio, "sleep", pass_time)
    with pytest.raises(EnoughError):
        SysTopics(core.broker).run().send(None)
    assert uptimes == [b"0 seconds", b"10 seconds", b"20 seconds"]
