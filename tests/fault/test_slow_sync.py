"""A sync that takes long holds only the clients that wait for it."""

from __future__ import annotations

from threading import Event

import pytest

from siltstone import Row
from siltstone.broker.broker import Broker
from siltstone.mqtt.packets import PingReq, PingResp, PubAck
from siltstone.testing import SMALL, MemoryDisk, Pause
from tests.support.broker_core import OPEN, Core, Wire, message


class SlowDisk:
    """A broker on a disk whose syncs wait for the test."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store = self.disk.open()
        self._database = self.store.create("messages", SMALL)
        self.core = Core()
        self.core.broker = Broker(
            self.core.broker.settings,
            database=self._database,
            retained=self.core.broker.retained,
            access=OPEN,
            clock=self.core.clock,
            shell=self.core.shell,
        )
        self._begun, self._ends = Event(), Event()

    def hold(self) -> None:
        """Hold the syncs of segments from now on. The thread of the shard runs already."""
        self._database.append([Row("warm/up", b"")]).wait()
        self._database.sync()
        self.disk.faults.pause(Pause(operation="sync", until=self._wait, path_suffix=".seg"))

    def _wait(self) -> None:
        self._begun.set()
        assert self._ends.wait(10)

    def await_sync(self) -> None:
        """Wait until a sync has begun."""
        assert self._begun.wait(10)

    def end(self) -> None:
        """End the syncs, and wait until everything is stored."""
        self.disk.faults.clear()
        self._ends.set()
        while self.core.broker.bridge.pending_bytes:
            self._database.sync()
            self.core.run()
        self.store.close()

    def subscriber(self) -> Wire:
        reader = self.core.connect("reader")
        reader.subscribe("a", qos=1)
        return reader


def test_a_live_subscriber_gets_messages_while_their_sync_takes_long() -> None:
    slow = SlowDisk()
    reader, publisher = slow.subscriber(), slow.core.connect("publisher")
    slow.hold()
    try:
        assert publisher.exchange(message("a", "1", 1, 7)) == []
        slow.await_sync()
        [first] = reader.take()
        assert first == message("a", "1", 1, 1)
        assert publisher.take() == []
    finally:
        slow.end()
    assert publisher.take() == [PubAck(packet_id=7)]


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_behind_a_slow_sync_reach_live_subscribers_and_pings_are_answered(
    qos: int,
) -> None:
    slow = SlowDisk()
    reader, publisher = slow.subscriber(), slow.core.connect("publisher")
    slow.hold()
    try:
        publisher.send(message("a", "1", 1, 7))
        slow.core.run()
        slow.await_sync()
        assert len(reader.take()) == 1
        assert publisher.exchange(message("a", "2", qos, 8 * qos), PingReq()) == [PingResp()]
        assert reader.take() == [message("a", "2", qos, 2 * qos)]
    finally:
        slow.end()
    answers = [PubAck(packet_id=number) for number in (7, 8)]
    assert publisher.take() == answers[: 1 + qos]
