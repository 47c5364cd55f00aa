"""Storage under a low limit of open files, in processes that have one."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_process import BrokerProcess, clean_environment
from tests.support.mqtt_socket import MqttSocket

FILES_MAX = 300


@pytest.mark.timeout(180)
def test_more_topics_than_descriptors_are_kept_and_a_segment_rolls_without_one_left(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.support.few_descriptors", str(tmp_path / "d"), "100"]
    ended = subprocess.run(
        command, capture_output=True, check=False, env=clean_environment(), text=True
    )
    assert (ended.stderr, ended.stdout.splitlines()) == (
        "",
        [
            "sent {0}",
            "recovered {(b'm',)}",
            "rolled [1, 2, 3, 1, 2, 3]",
            "goes on [4, 4]",
        ],
    )


@pytest.mark.timeout(120)
def test_connections_end_before_descriptors_do_and_publishing_goes_on(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "d", files_max=FILES_MAX)
    with ExitStack() as stack:
        stack.callback(broker.kill)
        broker.start()
        (told,) = broker.events("open_files_limit_low")
        assert (told["setting"], told["wanted"], told["limit"]) == (
            "limits.connections_max",
            100_000,
            FILES_MAX,
        )
        client = stack.enter_context(MqttSocket(broker.port))
        client.connect("c")
        for _ in range(FILES_MAX):
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
        refused = broker.wait_for("connections_refused")
        # Some more connections are possible, so that clients beyond the limit get an answer.
        assert refused["connections"] > told["allowed"]
        assert "ulimit -n, LimitNOFILE" in refused["remedy"]
        # More than a segment of 1 MiB holds.
        for number in range(1, 5):
            reason = client.publish("t", bytes(400_000), packet_id=number)
            assert reason is Reason.SUCCESS


@pytest.mark.timeout(120)
def test_clients_beyond_the_descriptors_are_told_to_wait(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "d", files_max=FILES_MAX)
    with ExitStack() as stack:
        stack.callback(broker.kill)
        broker.start()
        (told,) = broker.events("open_files_limit_low")
        reasons: list[Reason] = []
        for number in range(FILES_MAX):
            # Refused clients stay open too, as slow ones do.
            version = (Version.V3_1_1, Version.V5)[number % 2]
            client = stack.enter_context(MqttSocket(broker.port, version))
            reasons.append(client.connect(f"c{number}").reason)
        accepted = reasons.count(Reason.SUCCESS)
        assert accepted == told["allowed"]
        assert reasons[:accepted] == [Reason.SUCCESS] * accepted
        assert set(reasons[accepted:]) == {Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE}
        assert broker.events("connections_refused") == []
