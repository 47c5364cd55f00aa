"""Everything that Siltstone writes is its owner's alone, unless the directory is shared."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from siltstone.fs.posix import PosixFileSystem
from siltstone.mqtt.packets import PubAck, Publish
from siltstone.mqtt.properties import Properties
from tests.support.broker_process import BrokerProcess, Settings, broker_process, run_command
from tests.support.mqtt_socket import MqttSocket

KEPT = Properties(session_expiry_interval=3600)
EVERYONE = stat.S_IRWXG | stat.S_IRWXO
WARNING = "data_directory_open"


def reachable(directory: Path, permissions: int) -> list[str]:
    """Return what below a directory a user can open that has only these permissions."""
    found: list[str] = []
    for entry in sorted(directory.iterdir()):
        if not entry.is_symlink() and entry.stat().st_mode & permissions:
            found.append(entry.name)
            if entry.is_dir():
                found += reachable(entry, permissions)
    return found


def fill(broker: BrokerProcess) -> None:
    """Leave a session, rows and a retained message."""
    with MqttSocket(broker.port) as device:
        device.connect("c1", properties=KEPT)
        device.subscribe("elsewhere", 1)
        device.send(Publish(topic=b"a/b", payload=b"1", qos=1, retain=True, packet_id=1))
        device.expect(PubAck)


@pytest.mark.parametrize("persistence", ["store", "snapshot"])
def test_data_snapshots_spools_sockets_and_backups_are_private_under_any_umask(
    tmp_path: Path, persistence: str
) -> None:
    data = tmp_path / "d"
    settings: Settings = {"persistence": persistence}
    mask = os.umask(0)
    try:
        with broker_process(data, settings=settings) as broker:
            fill(broker)
            if persistence == "snapshot":
                broker.save()
            else:
                file = str(tmp_path / "backup")
                assert run_command("backup", file, "--data", str(data)).returncode == 0
                assert run_command("restore", file, "--data", f"{tmp_path}/r").returncode == 0
            assert run_command("spool", "create", str(tmp_path / "q")).returncode == 0
            assert run_command("spool", "put", str(tmp_path / "q"), stdin=b"x").returncode == 0
            assert broker.events(WARNING) == []
            assert reachable(tmp_path, EVERYONE) == []
    finally:
        os.umask(mask)


def test_below_a_shared_directory_the_group_reads_and_others_do_not(tmp_path: Path) -> None:
    data = tmp_path / "d"
    data.mkdir()
    data.chmod(0o2750)
    with broker_process(data) as broker:
        fill(broker)
        assert broker.events(WARNING) == []
        assert stat.S_IMODE((data / "data" / "messages").stat().st_mode) == 0o2750
        [segment] = (data / "data" / "messages").rglob("*.seg")
        assert stat.S_IMODE(segment.stat().st_mode) == 0o640
    assert not PosixFileSystem().is_open_to_others(data)
    # RocksDB makes its own files under the umask; only the directory above keeps others out.
    assert stat.S_IMODE((data / "commits").stat().st_mode) == 0o2750


def test_an_open_data_directory_is_warned_about_once_and_keeps_its_mode(tmp_path: Path) -> None:
    data = tmp_path / "d"
    data.mkdir()
    data.chmod(0o755)
    with broker_process(data) as broker:
        fill(broker)
        [warning] = broker.events(WARNING)
        assert (warning["level"], warning["data"]) == ("warning", str(data))
    assert stat.S_IMODE(data.stat().st_mode) == 0o755
