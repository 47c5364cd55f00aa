"""Retained messages of a snapshot that does not fit into memory."""

from __future__ import annotations

import asyncio
from pathlib import PurePath
from typing import Any, Final

import pytest

from siltstone.broker.retained.log import Retained
from siltstone.broker.retained.management import RetainedManagement
from siltstone.broker.retained.spilled import encode_retained, whole
from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.manage.sessions import NameTopics
from siltstone.mqtt.packets import Publish
from siltstone.session.sending.delivery import Spilled
from tests.support.memory_core import MemoryCore
from tests.support.snapshots import in_memory

LONG: Final = "long" * 100


def full(**limits: Any) -> MemoryCore:
    """Return a broker that has all its retained messages on disk."""
    core = MemoryCore(**limits)
    wire = core.connect("p")
    for topic, payload in (("a/1", "one"), ("a/2", LONG), ("b", "three")):
        wire.publish(topic, payload, retain=True)
    wire.publish("c", "short", retain=True, message_expiry_interval=10)
    return core.restarted(contents=in_memory(0), **limits)


def received(core: MemoryCore, text: str = "#") -> dict[str, str]:
    """Return what a new subscriber receives."""
    found = core.connect("s").subscribe(text)
    return {
        message.topic.decode(): message.payload.decode()
        for message in found
        if isinstance(message, Publish)
    }


ALL: Final = {"a/1": "one", "a/2": LONG, "b": "three", "c": "short"}


def test_only_the_places_of_the_messages_are_in_memory() -> None:
    assert [type(kept) for kept in full().broker.retained.all()] == [Spilled] * 4


@pytest.mark.parametrize(
    ("text", "topics"), [("#", ["a/1", "a/2", "b", "c"]), ("a/+", ["a/1", "a/2"]), ("b", ["b"])]
)
def test_a_subscriber_receives_them(text: str, topics: list[str]) -> None:
    assert received(full(), text) == {topic: ALL[topic] for topic in topics}


def test_the_next_snapshot_has_them_whole() -> None:
    core = full()
    again = core.restarted()
    assert again.state() == core.state()
    assert [whole(kept) for kept in core.broker.retained.all()] == again.broker.retained.all()


def test_they_are_replaced_and_cleared() -> None:
    core = full()
    wire = core.connect("p")
    wire.publish("a/1", "new", retain=True)
    wire.publish("a/2", "", retain=True)
    assert received(core) == {"a/1": "new", "b": "three", "c": "short"}
    assert len(core.broker.retained) == 3


def test_they_count_for_the_limits_as_if_they_were_in_memory() -> None:
    core = full()
    in_ram = core.restarted()
    assert core.broker.retained.size_bytes == in_ram.broker.retained.size_bytes
    core.connect("p").publish("a/2", "", retain=True)
    in_ram.connect("p").publish("a/2", "", retain=True)
    assert core.broker.retained.size_bytes == in_ram.broker.retained.size_bytes


def test_a_topic_beyond_the_limit_is_refused_and_one_on_disk_is_replaced() -> None:
    core = full(retained_messages_max=4)
    wire = core.connect("p")
    wire.publish("d", "x", retain=True)
    wire.publish("b", "new", retain=True)
    assert received(core) == ALL | {"b": "new"}


def test_mqtt_3_3_2_5_an_expired_message_is_not_sent_and_is_swept() -> None:
    core = full()
    core.clock.advance(11)
    assert received(core) == {topic: ALL[topic] for topic in ("a/1", "a/2", "b")}
    assert core.broker.retained.sweep(10) == 1
    assert len(core.broker.retained) == 3


def test_operators_count_and_clear_them() -> None:
    core = full()
    desk = RetainedManagement(core.broker)
    request = NameTopics(filter="a/#")
    assert asyncio.run(desk.count(request)) == 2
    assert asyncio.run(desk.clear(request)) == 2
    assert received(core) == {"b": "three", "c": "short"}


def test_a_topic_that_a_snapshot_has_twice_has_its_last_message() -> None:
    core = full()
    records = core.state()
    again = MemoryCore()
    again.load(records + records[:1], in_memory(0))
    assert received(again) == ALL


def test_every_field_comes_back() -> None:
    fs = MemoryFileSystem()
    file = fs.create(PurePath("/spilled"))
    message = Retained(b"t/u", b"payload", 5, b"\x01\x01", 7, 9, b"me")
    data = b"before" + encode_retained(message)
    file.write_at(0, data)
    assert whole(Spilled(file, 6, len(data) - 6)) == message
    assert whole(message) is message


def test_a_file_that_is_too_short_is_told() -> None:
    fs = MemoryFileSystem()
    file = fs.create(PurePath("/spilled"))
    data = encode_retained(Retained(b"t", b"payload", 5, b"", 7, 0, b"me"))
    file.write_at(0, data[:-1])
    with pytest.raises(CorruptionError, match="file ends before the payload does"):
        whole(Spilled(file, 0, len(data)))
