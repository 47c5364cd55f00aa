"""Writing and loading take a buffer and some bytes for each content, however much there is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

import siltstone
from siltstone.clock import SystemClock
from siltstone.fs.posix import PosixFileSystem
from siltstone.mqtt.packets import Disconnect, PubAck, Publish
from siltstone.mqtt.properties import Properties
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.records import Record
from tests.support.broker_process import (
    COMMAND,
    BrokerProcess,
    Settings,
    broker_process,
    clean_environment,
)
from tests.support.mqtt_socket import MqttSocket
from tests.support.snapshots import queued, retained, session

MIB = 1024 * 1024
IN_MEMORY: Settings = {"persistence": "snapshot", "snapshot.time_interval": 0}
KEPT = Properties(session_expiry_interval=3600)


def growth(action: str, path: Path, count: int) -> int:
    """Return by how much the memory of a process grew."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.snapshot_memory", action, str(path), str(count)],
        capture_output=True,
        check=True,
        env=clean_environment(),
    )
    return int(done.stdout)


def check(tmp_path: Path, count: int, limit_bytes: int) -> None:
    path = tmp_path / "x.gz"
    assert growth("write", path, count) < limit_bytes
    assert subprocess.run(["gzip", "-t", path], check=False).returncode == 0  # noqa: S607
    assert growth("load", path, count) < limit_bytes


def test_fifty_megabytes_of_payloads_take_a_few(tmp_path: Path) -> None:
    check(tmp_path, 50_000, 12 * MIB)


@pytest.mark.soak
def test_500_megabytes_of_payloads_take_less_than_64(tmp_path: Path) -> None:
    check(tmp_path, 500_000, 64 * MIB)


def random_payload(size_bytes: int) -> bytes:
    return os.urandom(16) * (size_bytes // 16)


def is_whole(payload: bytes) -> bool:
    return len(set(zip(*[iter(payload)] * 16, strict=True))) == 1


def leave_snapshot(data: Path, records: Iterable[Record]) -> None:
    with siltstone.open(data):
        keeper = SnapshotDirectory(
            PosixFileSystem(), SystemClock(), data / "snapshots", data / "quarantine"
        )
        keeper.save(records, source="broker")
        keeper.close()


def fill(data: Path, count: int, size_bytes: int) -> None:
    """Leave a snapshot of a broker with a session for which messages wait."""
    now_us = SystemClock().now_us()
    records: list[Record] = [replace(session("c"), last_active_us=now_us, expiry_seconds=3600)]
    waiting = (queued("a", random_payload(size_bytes)) for _ in range(count))
    leave_snapshot(data, chain(records, waiting))


def test_a_broker_serves_a_snapshot_that_is_larger_than_its_memory(tmp_path: Path) -> None:
    count, size_bytes = 1500, 64 * 1024
    fill(tmp_path / "full", count, size_bytes)
    with broker_process(tmp_path / "empty", settings=IN_MEMORY) as broker:
        empty_bytes = broker.peak_bytes()
    with broker_process(
        tmp_path / "full", settings={**IN_MEMORY, "snapshot.memory_max": "1 MiB"}
    ) as broker:
        [told] = broker.events("snapshot_payloads_on_disk")
        assert told["messages"] > count - 20
        broker.save()
        with MqttSocket(broker.port) as device:
            answer = device.connect("c", clean_start=False, properties=KEPT)
            assert answer.session_present
            for _ in range(count):
                message = device.expect(Publish)
                assert is_whole(message.payload)
                device.send(PubAck(packet_id=message.packet_id))
            device.disconnect()
        # 94 MiB wait; the loading, a snapshot and the sending take a part of that.
        assert broker.peak_bytes() - empty_bytes < 48 * MIB
    assert [path.name for path in (tmp_path / "full" / "snapshots").glob("*.tmp")] == []


def test_a_broker_serves_small_messages_that_are_larger_than_its_memory(tmp_path: Path) -> None:
    # In memory they would take 40 MiB.
    count = 100_000
    now_us = SystemClock().now_us()
    records = [replace(session("c"), last_active_us=now_us, expiry_seconds=3600)]
    leave_snapshot(
        tmp_path / "full", chain(records, (queued("a", b"%d" % n) for n in range(count)))
    )
    with broker_process(tmp_path / "empty", settings=IN_MEMORY) as broker:
        empty_bytes = broker.peak_bytes()
    with broker_process(
        tmp_path / "full", settings={**IN_MEMORY, "snapshot.memory_max": "1 MiB"}
    ) as broker:
        [told] = broker.events("snapshot_payloads_on_disk")
        assert told["messages"] > 0.9 * count
        broker.save()
        with MqttSocket(broker.port) as device:
            device.connect("c", clean_start=False, properties=KEPT)
            for n in range(5_000):
                message = device.expect(Publish)
                assert message.payload == b"%d" % n
                device.send(PubAck(packet_id=message.packet_id))
            device.send(Disconnect())
            device.rest()
        assert broker.peak_bytes() - empty_bytes < 20 * MIB
    # The last snapshot has the rest.
    with broker_process(tmp_path / "full", settings=IN_MEMORY) as broker:
        [loaded] = broker.events("snapshot_loaded")
        assert loaded["messages"] == count - 5_000


def test_a_broker_serves_retained_messages_that_are_larger_than_its_memory(tmp_path: Path) -> None:
    count, size_bytes = 1500, 64 * 1024
    leave_snapshot(
        tmp_path / "full", (retained(f"r/{n}", random_payload(size_bytes)) for n in range(count))
    )
    with broker_process(tmp_path / "empty", settings=IN_MEMORY) as broker:
        empty_bytes = broker.peak_bytes()
    with broker_process(
        tmp_path / "full", settings={**IN_MEMORY, "snapshot.memory_max": "1 MiB"}
    ) as broker:
        [told] = broker.events("snapshot_payloads_on_disk")
        assert told["messages"] > count - 20
        broker.save()
        with MqttSocket(broker.port) as device:
            device.connect("c")
            device.subscribe("r/#")
            topics = set()
            for _ in range(count):
                message = device.expect(Publish)
                assert is_whole(message.payload)
                topics.add(message.topic)
            assert len(topics) == count
            device.disconnect()
        # 94 MiB are retained; the loading, a snapshot and the sending take a part of that.
        assert broker.peak_bytes() - empty_bytes < 48 * MIB


def fill_retained(data: Path, count: int) -> None:
    leave_snapshot(data, (retained(f"r/{n}", b"%d" % n) for n in range(count)))


def test_a_broker_serves_small_retained_messages_from_the_disk(tmp_path: Path) -> None:
    count = 30_000
    fill_retained(tmp_path / "full", count)
    with broker_process(
        tmp_path / "full", settings={**IN_MEMORY, "snapshot.memory_max": "1 MiB"}
    ) as broker:
        [told] = broker.events("snapshot_payloads_on_disk")
        assert told["messages"] > 0.9 * count
        with MqttSocket(broker.port) as device:
            device.connect("c")
            device.publish("r/7", b"new", retain=True)
            device.subscribe("r/#")
            found = {}
            for _ in range(count):
                message = device.expect(Publish)
                found[message.topic] = message.payload
            device.disconnect()
        assert found == {b"r/%d" % n: b"%d" % n for n in range(count)} | {b"r/7": b"new"}
        broker.save()
    # The next snapshot has all of them.
    with broker_process(tmp_path / "full", settings=IN_MEMORY) as broker:
        [loaded] = broker.events("snapshot_loaded")
        assert loaded["retained"] == count


def mapped_bytes(broker: BrokerProcess) -> int:
    """Return the address space that a broker has."""
    lines = Path(f"/proc/{broker.pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmSize:")) * 1024


def limited_broker(tmp_path: Path, more_bytes: int) -> BrokerProcess:
    """Return a broker whose address space may be so much larger than that of an empty one."""
    with broker_process(tmp_path / "empty", settings=IN_MEMORY) as broker:
        limit = (mapped_bytes(broker) + more_bytes) // 1024
    command = ("sh", "-c", f'ulimit -v {limit} && exec "$@"', "sh", *COMMAND)
    return BrokerProcess(tmp_path / "full", settings=IN_MEMORY, command=command)


def test_a_start_without_room_for_the_index_ends_with_a_sentence(tmp_path: Path) -> None:
    fill_retained(tmp_path / "full", 60_000)
    broker = limited_broker(tmp_path, 40 * MIB)
    broker.begin()
    assert broker.wait_for_status() == 2
    told = str(broker.events()[-1]["event"])
    assert told.startswith("siltstone: the snapshot does not fit into memory; lower snapshot.")


@pytest.mark.soak
def test_small_retained_messages_need_little_more_than_their_index(tmp_path: Path) -> None:
    # Before there was an index without nodes, and messages on disk, they took 270 MB.
    count = 300_000
    topics = (f"dev/{n}/temp" for n in range(count))
    leave_snapshot(tmp_path / "full", (retained(topic, b"21.5") for topic in topics))
    broker = limited_broker(tmp_path, 190 * MIB)
    try:
        broker.start()
        with MqttSocket(broker.port) as device:
            device.connect("c")
            device.subscribe("dev/#")
            found = {device.expect(Publish).topic for _ in range(count)}
            device.disconnect()
        assert len(found) == count
        broker.stop()
    finally:
        if broker.is_running:
            broker.kill()
