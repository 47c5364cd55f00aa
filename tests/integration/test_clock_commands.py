"""`siltstone clock`, beside a broker that runs, and without one.

The clock of the machine is right here. That it jumped is told by where it stood when the store was
written last.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from siltstone.clock import SystemClock
from siltstone.fs.posix import PosixFileSystem
from siltstone.mqtt.packets import Disconnect
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.store.last_seen import read_last_seen, write_last_seen
from tests.support.broker_process import BrokerProcess, broker_process, run_command
from tests.support.mqtt_socket import MqttSocket, connected

DAY = 86_400
YEAR = 365 * DAY
US = 1_000_000


def run(data: Path, *args: str, status: int = 0) -> Any:
    done = run_command(*args, "--json", "--data", str(data))
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else done.stderr.decode()


def seen_before(data: Path, seconds: float) -> None:
    """Let the store have been written last in another boot, so long ago."""
    fs = PosixFileSystem()
    seen = read_last_seen(fs, PurePath(data))
    assert seen is not None
    time_us = SystemClock().now_us() - round(seconds * US)
    write_last_seen(fs, PurePath(data), replace(seen, boot="another", time_us=time_us))


def publish(broker: BrokerProcess, *values: bytes) -> None:
    with connected(broker.port, "p") as client:
        for value in values:
            assert client.publish("t", value) is Reason.SUCCESS


def read(data: Path, *args: str) -> list[str]:
    done = run_command("read", "messages", "--format", "ndjson", *args, "--data", str(data))
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def test_after_a_long_time_off_nothing_is_dropped_until_the_clock_is_confirmed(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    settings = {"storage.retain_seconds": DAY, "storage.rotate_seconds": 1000}
    with broker_process(data, settings=settings) as broker:
        publish(broker, b"old")
        assert run(data, "clock", "status")["state"] == "ok"
    assert run(data, "seal", "messages")
    seen_before(data, 3 * DAY)
    offline = run(data, "clock", "status")
    assert (offline["state"], round(offline["absent_seconds"] / DAY)) == ("absent", 3)
    broker.start()
    alarm = broker.wait_for("alarm_raised")
    assert (alarm["level"], round(alarm["absent_seconds"] / DAY)) == ("warning", 3)
    assert "siltstone clock confirm" in alarm["text"]
    told = run(data, "clock", "status")
    assert (told["state"], told["held"], told["text"]) == ("absent", True, alarm["text"])
    assert 3500 < told["believed_in_seconds"] <= 3600
    assert told["holds"][0] == "retention"
    assert "not trusted yet" in run(data, "clock", "reset", "messages", "--yes", status=2)
    assert "pass --yes" in run(data, "clock", "confirm", status=2)
    after = run(data, "clock", "confirm", "--yes")
    assert (after["state"], after["held"], after["absent_seconds"]) == ("ok", False, 0)
    broker.wait_for("clock_confirmed")
    broker.wait_for("alarm_cleared")
    assert read(data) == ["old"]
    broker.stop()
    # Believed once, it is believed by the next start.
    assert run(data, "clock", "status")["state"] == "ok"


def test_rows_that_were_stamped_a_year_ahead_are_left_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data) as broker:
        publish(broker, b"before")
        broker.stop()
        seen_before(data, -YEAR)
        broker.start()
        assert run(data, "clock", "status")["state"] == "back"
        publish(broker, b"ahead")
        with MqttSocket(broker.port) as client:
            expiry = Properties(session_expiry_interval=600)
            accepted = client.connect("s", clean_start=False, properties=expiry)
            assert accepted.reason is Reason.SUCCESS
            client.send(Disconnect())
        assert read(data, "--until", "+1h") == ["before"]
        confirmed = run(data, "clock", "confirm", "--yes")
        assert (confirmed["state"], confirmed["held"]) == ("stamped", False)
        assert confirmed["newest_row_us"]["messages"] > confirmed["wall_clock_us"]
        # The session is as old as this moment, not a year younger.
        assert broker.wait_for("clock_set_back")["sessions"] == 1
        (session,) = run(data, "sessions", "list")
        assert 0 < session["expires_in_seconds"] <= 600
        publish(broker, b"follows")
        assert read(data, "--until", "+1h") == ["before"]
        reset = run(data, "clock", "reset", "messages", "--yes")
        assert reset == {"database": "messages", "shards": 1}
        publish(broker, b"right")
        assert read(data, "--until", "+1h") == ["before", "right"]
        assert read(data) == ["before", "right", "ahead", "follows"]
        assert run(data, "clock", "status")["state"] == "ok"
    assert run(data, "verify", "messages")
    assert run(data, "clock", "reset", "messages", "--yes")["shards"] == 0
    assert "database 'none' does not exist" in run(
        data, "clock", "reset", "none", "--yes", status=2
    )


def test_without_a_broker_the_clock_is_confirmed_and_times_restart_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert run_command("db", "create", "messages", "--data", str(data)).returncode == 0
    seen_before(data, -YEAR)
    line = b'{"topic": "t", "value": "ahead"}\n'
    append = ("append", "messages", "--format", "jsonl", "--data", str(data))
    assert run_command(*append, stdin=line).returncode == 0
    assert run(data, "clock", "status")["state"] == "back"
    assert "not trusted yet" in run(data, "clock", "reset", "messages", "--yes", status=2)
    assert run(data, "clock", "confirm", "--yes")["state"] == "stamped"
    assert run(data, "clock", "reset", "messages", "--yes")["shards"] == 1
    assert run(data, "clock", "status")["state"] == "ok"
    assert run_command(*append, stdin=line.replace(b"ahead", b"right")).returncode == 0
    assert read(data, "--until", "+1h") == ["right"]
    assert "already" in run_command("clock", "confirm", "--data", str(data)).stdout.decode()
    shown = run_command("clock", "status", "--data", str(data)).stdout.decode()
    assert "time of the store" in shown
