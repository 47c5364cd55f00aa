"""The first message after a start waits for nothing that could have been done before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from siltstone.mqtt.packets import PubAck, Publish
from siltstone.mqtt.properties import Properties
from tests.support.broker_process import broker_process
from tests.support.mqtt_socket import MqttSocket

# Runs the command, and writes the name of each module that is imported.
NOTING = """
import runpy, sys
noted = open({path!r}, "a", buffering=1)
sys.addaudithook(lambda event, args: event == "import" and noted.write(args[0] + "\\n"))
sys.argv[0] = "siltstone"
runpy.run_module("siltstone.cli.main", run_name="__main__")
"""


@pytest.mark.parametrize("is_durable", [False, True])
def test_the_first_message_imports_nothing(tmp_path: Path, *, is_durable: bool) -> None:
    noted = tmp_path / "imports"
    command = (sys.executable, "-c", NOTING.format(path=str(noted)))
    expiry = Properties(session_expiry_interval=60 if is_durable else 0)
    with (
        broker_process(tmp_path / "data", command=command) as broker,
        MqttSocket(broker.port) as reader,
        MqttSocket(broker.port) as publisher,
    ):
        reader.connect("reader", clean_start=False, properties=expiry)
        reader.subscribe("a/#", 1)
        publisher.connect("publisher")
        before = noted.read_text("utf-8").splitlines()
        publisher.send(Publish(topic=b"a/b", payload=b"1", qos=1, packet_id=1))
        publisher.expect(PubAck)
        assert reader.expect(Publish).payload == b"1"
        after = noted.read_text("utf-8").splitlines()
    assert "siltstone.broker.broker" in before
    assert after[len(before) :] == []
