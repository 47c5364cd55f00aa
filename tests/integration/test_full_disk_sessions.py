"""A disk that was full: sessions are refused while it is, and go on when there is space again."""

from __future__ import annotations

from pathlib import Path

from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from tests.support.broker_process import Settings, broker_process
from tests.support.mqtt_socket import MqttSocket
from tests.support.small_disk import mounted, take_the_rest

DISK_BYTES = 64 * 1024 * 1024
KEPT = Properties(session_expiry_interval=1000)


def come(port: int, name: str) -> Reason:
    """Connect with a session that outlives the connection; return what the broker says."""
    with MqttSocket(port) as client:
        return client.connect(name, clean_start=False, properties=KEPT).reason


def test_sessions_are_refused_on_a_full_disk_and_go_on_with_space(tmp_path: Path) -> None:
    settings: Settings = {"storage.segment_bytes": "4 MiB"}
    with (
        mounted(tmp_path / "disk", DISK_BYTES) as disk,
        broker_process(disk / "data", settings=settings) as broker,
    ):
        assert come(broker.port, "before") is Reason.SUCCESS
        hog = disk / "hog"
        take_the_rest(hog)
        assert come(broker.port, "meanwhile") is Reason.SERVER_UNAVAILABLE
        assert broker.is_running
        hog.unlink()
        assert come(broker.port, "after") is Reason.SUCCESS
        assert come(broker.port, "before") is Reason.SUCCESS
        assert broker.mistakes() == []
