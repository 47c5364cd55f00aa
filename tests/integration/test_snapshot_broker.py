"""A broker that keeps all in memory and writes snapshots: across stops, kills and damage."""

from __future__ import annotations

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import siltstone
from siltstone.fs.posix import PosixFileSystem
from siltstone.mqtt.packets import PubAck, Publish
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.wire import Version
from siltstone.snapshot.directory import list_snapshots, name_of
from tests.support.broker_process import broker_process, run_command
from tests.support.mqtt_socket import MqttSocket

V3 = Version.V3_1_1
IN_MEMORY: dict[str, str | float] = {"persistence": "snapshot", "snapshot.time_interval": 0}
KEPT = Properties(session_expiry_interval=3600)


def serials(data: Path) -> list[int]:
    return [serial for serial, _ in list_snapshots(PosixFileSystem(), data / "snapshots")]


def subscribed(port: int, client_id: str, text: str = "a/#", qos: int = 2) -> None:
    """Leave a session behind that wants these messages."""
    with MqttSocket(port) as device:
        device.connect(client_id, properties=KEPT)
        device.subscribe(text, qos)
        device.disconnect()


def publish(port: int, *messages: Publish) -> None:
    with MqttSocket(port) as device:
        device.connect("publisher")
        for message in messages:
            device.send(message)
            if message.qos == 1:
                device.expect(PubAck)
        device.disconnect()


def come_back(port: int, client_id: str, count: int) -> list[Publish]:
    """Return what a session that is present is sent."""
    with MqttSocket(port) as device:
        answer = device.connect(client_id, clean_start=False, properties=KEPT)
        assert answer.session_present
        found = [device.expect(Publish) for _ in range(count)]
        device.send(*(PubAck(packet_id=each.packet_id) for each in found if each.qos == 1))
        device.disconnect()
        return found


def message(payload: bytes, *, qos: int = 1, retain: bool = False, packet_id: int = 1) -> Publish:
    return Publish(topic=b"a/b", payload=payload, qos=qos, retain=retain, packet_id=packet_id)


def test_retained_messages_and_queues_survive_a_stop_in_order(tmp_path: Path) -> None:
    with broker_process(tmp_path / "d", settings=IN_MEMORY) as broker:
        subscribed(broker.port, "c1")
        subscribed(broker.port, "c2")
        publish(broker.port, *(message(b"%d" % n, packet_id=n) for n in range(1, 6)))
        publish(broker.port, message(b"kept", retain=True))
        broker.stop()
        broker.start()
        for client_id in ("c1", "c2"):
            found = come_back(broker.port, client_id, 6)
            assert [each.payload for each in found] == [b"1", b"2", b"3", b"4", b"5", b"kept"]
        with MqttSocket(broker.port) as device:
            device.connect("other")
            device.subscribe("a/#", 1)
            assert device.expect(Publish).payload == b"kept"
    assert not (tmp_path / "d" / "data" / "messages").exists()


def test_a_kill_leaves_the_last_snapshot_whose_messages_in_flight_keep_their_packet_ids(
    tmp_path: Path,
) -> None:
    with broker_process(tmp_path / "d", settings=IN_MEMORY) as broker:
        with MqttSocket(broker.port) as device:
            device.connect("c", properties=KEPT)
            device.subscribe("a/#", 1)
            publish(broker.port, *(message(b"%d" % n, packet_id=n) for n in (1, 2, 3)))
            before = [device.expect(Publish) for _ in range(3)]
            broker.save()
            publish(broker.port, message(b"too late for the snapshot"))
        broker.kill()
        broker.start()
        found = come_back(broker.port, "c", 3)
        assert [(each.payload, each.packet_id, each.dup) for each in found] == [
            (each.payload, each.packet_id, True) for each in before
        ]


def test_damaged_snapshots_are_passed_over_and_an_empty_start_must_be_allowed(
    tmp_path: Path,
) -> None:
    with broker_process(tmp_path / "d", settings=IN_MEMORY) as broker:
        subscribed(broker.port, "c")
        publish(broker.port, message(b"old"))
        broker.save()
        publish(broker.port, message(b"new"))
        broker.save()
        broker.kill()
        newest = tmp_path / "d" / "snapshots" / name_of(2)
        newest.write_bytes(bytes(newest.stat().st_size))
        broker.start()
        assert broker.wait_for("snapshot_damaged")["level"] == "error"
        assert (tmp_path / "d" / "quarantine" / name_of(2)).exists()
        assert [each.payload for each in come_back(broker.port, "c", 1)] == [b"old"]
        broker.kill()
        (tmp_path / "d" / "snapshots" / name_of(1)).write_bytes(b"")
        serve = ("serve", "--data", str(tmp_path / "d"), "--port", "0")
        refused = run_command(*serve, "--set", "persistence=snapshot")
        assert (refused.returncode, b"--allow-empty" in refused.stderr) == (3, True)
        broker.start(allow_empty=True)


def test_a_link_that_leads_nowhere_is_told_when_an_older_snapshot_stands_in(
    tmp_path: Path,
) -> None:
    data = tmp_path / "d"
    with broker_process(data, settings=IN_MEMORY) as broker:
        publish(broker.port, message(b"older", retain=True))
        broker.save()
        publish(broker.port, message(b"newer", retain=True))
        broker.save()
        broker.kill()
        _, newest = serials(data)
        (data / "snapshots" / name_of(newest)).unlink()
        broker.start()
        told = broker.wait_for("snapshot_missing")
        assert (told["level"], told["missing"]) == ("warning", name_of(newest))
        with MqttSocket(broker.port) as device:
            device.connect("other")
            device.subscribe("a/#", 1)
            assert device.expect(Publish).payload == b"older"
        # The link leads to the older one again: the next start has nothing to tell.
        assert (data / "snapshots" / "state").readlink() == Path(name_of(newest - 1))
        broker.kill()
        broker.start()
        assert len(broker.events("snapshot_missing")) == 1


def test_a_link_of_a_store_that_leads_nowhere_is_told_and_the_store_is_served(
    tmp_path: Path,
) -> None:
    data = tmp_path / "d"
    with broker_process(data) as broker:
        publish(broker.port, message(b"stored"))
        broker.save()
        broker.stop()
        (serial,) = serials(data)
        (data / "snapshots" / name_of(serial)).unlink()
        broker.start()
        told = broker.wait_for("snapshot_link_broken")
        assert (told["level"], told["missing"]) == ("warning", name_of(serial))
        publish(broker.port, message(b"stored too"))


def test_a_store_is_saved_while_it_is_served_and_restored_elsewhere(tmp_path: Path) -> None:
    data, copy, file = tmp_path / "d", tmp_path / "copy", tmp_path / "b.gz"
    with broker_process(data) as broker:
        subscribed(broker.port, "c", qos=1)
        publish(broker.port, *(message(b"%d" % n, packet_id=n) for n in (1, 2, 3)))
        publish(broker.port, message(b"kept", retain=True))
        broker.save()
        made = run_command("backup", str(file), "--data", str(data))
        assert (made.returncode, made.stderr) == (0, b"")
        shown = run_command("snapshot", "show", "--data", str(data))
        assert b"store, by siltstone" in shown.stdout
    assert subprocess.run(["gzip", "-t", file], check=False).returncode == 0  # noqa: S607
    restored = run_command("restore", str(file), "--data", str(copy))
    assert (restored.returncode, restored.stderr) == (0, b"")
    with broker_process(copy) as broker:
        found = come_back(broker.port, "c", 4)
        assert [each.payload for each in found] == [b"1", b"2", b"3", b"kept"]


def test_signals_the_command_and_the_clock_write_one_each_and_two_are_kept(tmp_path: Path) -> None:
    data = tmp_path / "d"
    with broker_process(data, settings=IN_MEMORY) as broker:
        for expected in ([1], [1, 2], [2, 3]):
            broker.save()
            assert serials(data) == expected
        asked = run_command("snapshot", "now", "--data", str(data))
        assert (asked.returncode, asked.stdout) == (0, f"wrote {name_of(4)}\n".encode())
        link = data / "snapshots" / "state"
        assert os.readlink(link) == name_of(4)
        found = subprocess.run(["gzip", "-t"], input=link.read_bytes(), check=False)  # noqa: S607
        assert found.returncode == 0
    settings = IN_MEMORY | {"snapshot.time_interval": 0.05}
    with broker_process(data, settings=settings) as broker:
        broker.wait_for("snapshot_written", count=4)


def last_values(data: Path) -> tuple[bytes, bytes]:
    """Return the last message of the log, and of the retained messages."""
    with siltstone.open(data, read_only=True) as store:
        found = [
            [batch.column(0)[-1].as_py() for batch in store.database(name).read(columns=["value"])]
            for name in ("messages", "_retained")
        ]
    return found[0][-1], found[1][-1]


def test_a_backup_beside_a_broker_that_stores_is_of_one_moment(tmp_path: Path) -> None:
    data, file = tmp_path / "d", tmp_path / "backup"
    with broker_process(data) as broker:
        is_done = threading.Event()

        def publish_on() -> None:
            with MqttSocket(broker.port) as device:
                device.connect("publisher")
                number = 0
                while not is_done.is_set():
                    number += 1
                    payload = b"%d" % number
                    device.send(message(payload, retain=True, packet_id=number % 60_000 + 1))
                    device.expect(PubAck)

        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish_on)
            for turn in range(3):
                made = run_command("backup", str(file), "--force", "--data", str(data))
                assert (made.returncode, made.stderr) == (0, b"")
                restored = run_command("restore", str(file), "--data", str(tmp_path / f"r{turn}"))
                assert restored.returncode == 0
            is_done.set()
            publishing.result()
    for turn in range(3):
        message_value, retained_value = last_values(tmp_path / f"r{turn}")
        assert message_value == retained_value
