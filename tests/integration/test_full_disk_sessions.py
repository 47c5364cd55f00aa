"""A disk that was full: publishers stop first, and those who drain it always have room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from siltstone.mqtt.packets import Disconnect, Publish
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from tests.support.broker_process import BrokerProcess, Settings, broker_process, run_command
from tests.support.mqtt_socket import MqttSocket
from tests.support.small_disk import mounted, take_the_rest

MIB = 1024 * 1024
DISK_BYTES = 112 * MIB
KEEP_FREE_BYTES = 32 * MIB
SETTINGS: Settings = {
    "storage.segment_bytes": "4 MiB",
    "storage.rotate_bytes": "8 MiB",
    "storage.keep_free_bytes": "32 MiB",
    "sys_interval": 0.5,
}
KEPT = Properties(session_expiry_interval=1000)
PAYLOAD = bytes(512 * 1024)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


def come(port: int, name: str) -> Reason:
    """Connect with a session that outlives the connection; return what the broker says."""
    with MqttSocket(port) as client:
        return client.connect(name, clean_start=False, properties=KEPT).reason


def subscribe(port: int, name: str) -> None:
    with MqttSocket(port) as client:
        client.connect(name, clean_start=False, properties=KEPT)
        client.subscribe("t/#", qos=1)
        client.disconnect()


def publish_until_refused(port: int) -> tuple[int, Reason]:
    """Return how many messages were stored, and why the next one was not."""
    with MqttSocket(port) as client:
        client.connect("publisher")
        for number in range(1, 1000):
            reason = client.publish("t/x", PAYLOAD, packet_id=number)
            if reason not in (Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS):
                return number - 1, reason
    raise AssertionError("the disk never filled")


def drain(port: int, name: str, count: int) -> None:
    """Return to a session, and acknowledge so many messages."""
    with MqttSocket(port) as client:
        answer = client.connect(name, clean_start=False, properties=KEPT)
        assert (answer.reason, answer.session_present) == (Reason.SUCCESS, True)
        for _ in range(count):
            client.acknowledge(client.expect(Publish))
        client.send(Disconnect())
        # More may be on its way.
        client.rest()


def alarms(broker: BrokerProcess) -> list[str]:
    return [str(each["text"]) for each in broker.events("alarm_raised")]


def test_publishers_stop_first_and_sessions_drain_a_disk_that_is_full(disk: Path) -> None:
    with (
        mounted(disk, DISK_BYTES),
        broker_process(disk / "data", settings=SETTINGS) as broker,
    ):
        for name in ("reader", "other"):
            subscribe(broker.port, name)
        stored, reason = publish_until_refused(broker.port)
        assert (stored > 50, reason) == (True, Reason.QUOTA_EXCEEDED)
        assert shutil.disk_usage(disk).free > KEEP_FREE_BYTES - 16 * MIB
        broker.wait_for("alarm_raised")
        assert come(broker.port, "newcomer") is Reason.SUCCESS

        hog = disk / "hog"
        take_the_rest(hog)
        broker.wait_for("alarm_raised", count=2)
        assert alarms(broker) == [
            "the disk is nearly full: publishes are refused",
            "the disk is full: publishes and new durable sessions are refused",
        ]
        assert come(broker.port, "stranger") is Reason.QUOTA_EXCEEDED
        drain(broker.port, "reader", stored // 2)
        dropped = run_command("sessions", "drop", "newcomer", "--yes", "--data", str(disk / "data"))
        assert dropped.returncode == 0, dropped.stderr

        broker.stop()
        broker.start()
        drain(broker.port, "reader", stored - stored // 2)
        broker.kill()
        broker.start()
        drain(broker.port, "other", stored)
        told = alarms(broker)
        assert len(told[2:]) >= 2
        assert publish_until_refused(broker.port)[0] == 0
        assert alarms(broker) == told

        broker.stop()
        hog.unlink()
        oldest = run_command("drop", "messages", "0/1", "--yes", "--data", str(disk / "data"))
        assert oldest.returncode == 0, oldest.stderr
        broker.start()
        assert publish_until_refused(broker.port)[0] > 0
        assert come(broker.port, "stranger") is Reason.SUCCESS
        assert broker.mistakes() == []


def test_a_broker_starts_on_a_full_disk_and_all_goes_on_when_there_is_space_again(
    disk: Path,
) -> None:
    with (
        mounted(disk, DISK_BYTES),
        broker_process(disk / "data", settings=SETTINGS) as broker,
    ):
        assert come(broker.port, "before") is Reason.SUCCESS
        broker.stop()
        hog = disk / "hog"
        take_the_rest(hog)
        broker.start()
        broker.wait_for("alarm_raised")
        assert come(broker.port, "before") is Reason.SUCCESS
        assert come(broker.port, "meanwhile") is Reason.QUOTA_EXCEEDED
        assert publish_until_refused(broker.port)[0] == 0
        hog.unlink()
        broker.wait_for("alarm_cleared")
        assert come(broker.port, "meanwhile") is Reason.SUCCESS
        assert publish_until_refused(broker.port)[0] > 0
        assert broker.mistakes() == []


def test_a_broker_starts_again_on_a_full_disk_when_the_reserve_is_used_up(disk: Path) -> None:
    with (
        mounted(disk, DISK_BYTES),
        broker_process(disk / "data", settings=SETTINGS) as broker,
    ):
        subscribe(broker.port, "reader")
        assert publish_until_refused(broker.port)[0] > 50
        for number in range(3):
            broker.stop()
            # Another program takes the space of the reserve as well.
            take_the_rest(disk / f"hog{number}")
            assert shutil.disk_usage(disk).free == 0
            broker.start()
        broker.wait_for("alarm_raised", count=3)
        assert publish_until_refused(broker.port)[0] == 0
        read = run_command("read", "messages", "--limit", "1", "--data", str(disk / "data"))
        assert (read.returncode, read.stdout != b"") == (0, True), read.stderr
        dropped = run_command("drop", "messages", "0/1", "--yes", "--data", str(disk / "data"))
        assert dropped.returncode == 0, dropped.stderr
        drain(broker.port, "reader", 1)
        assert broker.mistakes() == []


def test_a_small_disk_takes_messages_with_the_defaults_and_refuses_them_before_it_is_full(
    disk: Path,
) -> None:
    with mounted(disk, 64 * MIB), broker_process(disk / "data") as broker:
        subscribe(broker.port, "late")
        stored, reason = publish_until_refused(broker.port)
        assert stored > 0
        assert reason is Reason.QUOTA_EXCEEDED
        assert shutil.disk_usage(disk).free > 0
        drain(broker.port, "late", min(stored, 3))
