"""Connections that say nothing are closed; one that waits for messages is not idle."""

from __future__ import annotations

import socket
from pathlib import Path

from siltstone.fs.paths import CONTROL
from siltstone.topiclog.client import TopicLogClient
from tests.support.broker_process import broker_process
from tests.support.ports import free_port

WAIT_SECONDS = 20.0


def test_idle_connections_to_topic_logs_and_the_control_socket_are_closed(tmp_path: Path) -> None:
    port = free_port()
    settings: dict[str, str | float] = {
        "topiclog.enabled": "true",
        "topiclog.port": port,
        "topiclog.idle_timeout": 0.4,
        "topiclog.body_timeout": 0.4,
        "control_timeout": 0.2,
    }
    with broker_process(tmp_path / "data", settings=settings) as broker:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(WAIT_SECONDS)
            control.connect(str(broker.data / CONTROL))
            assert control.recv(1) == b""
        # It has not even said hello.
        with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as silent:
            assert silent.recv(1) == b""
        with TopicLogClient("127.0.0.1", port) as client:
            client.create_topic("t")
            client.subscribe(["t"])
            # It waits for longer than it may be idle, and is then told that nothing came.
            assert client.poll(timeout=1.5) is None
            assert client.send("t", b"x") == 0
        assert len(broker.events("topiclog_idle_connection_closed")) == 1
