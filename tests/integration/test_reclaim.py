"""The space of a backlog comes back once it is delivered: a real broker, a stock client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.broker_process import BrokerProcess, broker_process, run_command

COUNT = 50_000
PAYLOAD = bytes(100)
SECONDS = 90.0
OFFLINE = '[{"filter": "#", "store": "offline"}]'
SETTINGS: dict[str, str | float] = {
    "storage.reclaim": "delivered",
    "storage.rules": OFFLINE,
    "storage.segment_bytes": "64 MiB",
}


class Panel:
    """A durable client of QoS 1 that counts what it gets, and takes no more than so many."""

    def __init__(self, port: int, count_max: int) -> None:
        self.got: set[int] = set()
        self._count_max = count_max
        self.is_over = threading.Event()
        self.changed = threading.Condition()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, "panel", clean_session=False, protocol=paho.MQTTv311
        )
        self.client.on_message = self._message
        self.client.on_connect = self._connected
        self.client.on_subscribe = self._subscribed
        self.is_subscribed = threading.Event()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def _connected(self, *_: Any) -> None:
        self.client.subscribe("plant/#", 1)

    def _subscribed(self, *_: Any) -> None:
        self.is_subscribed.set()

    def _message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self.changed:
            self.got.add(int(message.payload[:8]))
            self.changed.notify_all()
        if len(self.got) >= self._count_max:
            self.is_over.wait(SECONDS)

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, SECONDS), len(self.got)


@contextmanager
def panel(port: int, count_max: int = 1 << 30) -> Iterator[Panel]:
    made = Panel(port, count_max)
    try:
        yield made
    finally:
        made.is_over.set()
        made.client.disconnect()
        made.client.loop_stop()


def publish(port: int, numbers: range) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, "oven")
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    last = None
    for number in numbers:
        last = client.publish(f"plant/{number % 10}/oven", b"%08d" % number + PAYLOAD, qos=1)
    assert last is not None
    last.wait_for_publish(SECONDS)
    assert last.is_published()
    client.disconnect()
    client.loop_stop()


def disk_bytes(data: Path) -> int:
    return sum(
        path.stat().st_blocks * 512
        for path in (data / "data" / "messages").rglob("*")
        if path.is_file()
    )


def until(holds: Callable[[], bool]) -> None:
    """Look until it holds: what the disk has nobody tells."""
    pause = threading.Event()
    for _ in range(int(SECONDS * 10)):
        if holds():
            return
        pause.wait(0.1)
    raise AssertionError("it did not come about")


def reclaimed(broker: BrokerProcess) -> list[dict[str, Any]]:
    return [dict(each) for each in broker.events("slab_dropped") if each["why"] == "delivered"]


@pytest.mark.timeout(180)
def test_a_backlog_that_was_delivered_gives_its_space_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data, settings=SETTINGS) as broker:
        with panel(broker.port) as first:
            assert first.is_subscribed.wait(SECONDS)
        publish(broker.port, range(COUNT))
        full = disk_bytes(data)
        assert full > COUNT * len(PAYLOAD)
        with panel(broker.port) as back:
            back.wait(COUNT)
            assert back.got == set(range(COUNT))
            until(lambda: bool(reclaimed(broker)))
        until(lambda: disk_bytes(data) < full // 10)
        (dropped,) = reclaimed(broker)
        assert (dropped["database"], dropped["slab"], dropped["rows"]) == ("messages", "0/1", COUNT)
        assert dropped["bytes"] > COUNT * len(PAYLOAD)
        publish(broker.port, range(COUNT, COUNT + 10))
        with panel(broker.port) as again:
            again.wait(10)
            assert again.got == set(range(COUNT, COUNT + 10))
        assert broker.events("session_rows_lost") == []
    done = run_command("verify", "--all", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(180)
def test_kill_9_while_it_drains_loses_nothing(tmp_path: Path) -> None:
    """Generations are small, so that some are dropped before the broker is killed."""
    data = tmp_path / "data"
    small = SETTINGS | {"storage.rotate_bytes": "256 KiB"}
    got: set[int] = set()
    with broker_process(data, settings=small) as broker:
        with panel(broker.port) as first:
            assert first.is_subscribed.wait(SECONDS)
        publish(broker.port, range(COUNT))
        with panel(broker.port, COUNT // 2) as back:
            until(lambda: len(reclaimed(broker)) > 2)
            broker.kill()
            got |= back.got
        assert 0 < len(got) < COUNT
        broker.start()
        with panel(broker.port) as again:
            again.wait(1)
            until(lambda: len(got | again.got) == COUNT)
            until(lambda: sum(each["rows"] for each in reclaimed(broker)) > COUNT * 9 // 10)
        assert broker.events("session_rows_lost") == []
    done = run_command("verify", "--all", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr
