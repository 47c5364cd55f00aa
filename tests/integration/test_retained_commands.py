"""`siltstone retained` and `snapshot now`, beside a broker that runs, and without one."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from siltstone.mqtt.reason import Reason
from tests.support.broker_process import BrokerProcess, broker_process, run_command
from tests.support.mqtt_socket import connected
from tests.support.small_disk import mounted, take_the_rest


def retained(data: Path, *args: str, status: int = 0) -> Any:
    done = run_command("retained", *args, "--json", "--data", str(data))
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else done.stderr.decode()


def topics(data: Path, topic_filter: str = "#") -> list[str]:
    return [each["topic"] for each in retained(data, "list", topic_filter)]


def retain(broker: BrokerProcess, *names: str) -> None:
    with connected(broker.port, "c") as client:
        for name in names:
            assert client.publish(name, b"x", retain=True) is Reason.SUCCESS


def test_retained_messages_are_cleared_by_filter_with_a_broker_and_without(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data) as broker:
        retain(broker, "a/1", "a/2", "b/1", "c")
        assert "pass --yes" in retained(data, "clear", "a/#", status=2)
        assert retained(data, "clear", "a/#", "--yes") == {"filter": "a/#", "cleared": 2}
        assert topics(data) == ["b/1", "c"]
    assert "pass --yes" in retained(data, "clear", "b/+", status=2)
    assert retained(data, "clear", "b/+", "--yes") == {"filter": "b/+", "cleared": 1}
    assert retained(data, "clear", "b/+") == {"filter": "b/+", "cleared": 0}
    with broker_process(data):
        assert topics(data) == ["c"]


def test_a_broker_in_memory_clears_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data, settings={"persistence": "snapshot"}) as broker:
        retain(broker, "a/1", "b")
        assert retained(data, "clear", "a/#", "--yes") == {"filter": "a/#", "cleared": 1}
        assert retained(data, "clear", "#", "--yes") == {"filter": "#", "cleared": 1}


def test_a_snapshot_that_does_not_fit_on_the_disk_is_told_at_once(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 64 * 1024 * 1024) as disk:
        data = disk / "data"
        with broker_process(data, settings={"persistence": "snapshot"}) as broker:
            retain(broker, "a/1")
            take_the_rest(disk / "hog")
            done = run_command("snapshot", "now", "--data", str(data))
            assert (done.returncode, done.stdout) == (3, b"")
            assert b"no space left" in done.stderr
            (disk / "hog").unlink()
            done = run_command("snapshot", "now", "--data", str(data))
            assert (done.returncode, done.stdout) == (0, b"wrote state.000000000001.gz\n"), done


def test_signals_during_the_start_do_not_end_the_broker(tmp_path: Path) -> None:
    """They are sent again and again, from the first line of the log until it listens."""
    data = tmp_path / "data"
    with broker_process(data) as broker:
        retain(broker, *(f"t/{number}" for number in range(50)))
    started = BrokerProcess(data)
    started.begin()
    try:
        started.wait_for("starting")
        while not started.events("listening"):
            started.ask(signal.SIGHUP)
            started.ask(signal.SIGUSR1)
            assert started.is_running
        started.wait_for("snapshot_written")
        started.stop()
    finally:
        if started.is_running:
            started.kill()
