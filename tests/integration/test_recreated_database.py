"""A database that is dropped and created again: positions of the former one skip none of its
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.errors import NotFoundError
from siltstone.mqtt.packets import PubAck, Publish
from siltstone.mqtt.properties import Properties
from siltstone.topiclog.client import TopicLogClient
from tests.support.broker_process import BrokerProcess, broker_process, run_command
from tests.support.mqtt_socket import MqttSocket
from tests.support.topiclog import log_port, served_by_process

STARTS_OVER = "position_reset"
FOREVER = Properties(session_expiry_interval=0xFFFFFFFE)
GROUP = "$share/g/t/#"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data") as running:
        yield running


def publish(broker: BrokerProcess, values: list[bytes]) -> None:
    with MqttSocket(broker.port) as client:
        client.connect("publisher")
        for number, value in enumerate(values, 1):
            client.publish("t/1", value, packet_id=number)


def come_back(broker: BrokerProcess, client_id: str, count: int, *filters: str) -> list[bytes]:
    """Connect with the session of a client, subscribe, acknowledge so many messages and go."""
    with MqttSocket(broker.port) as client:
        client.connect(client_id, clean_start=False, properties=FOREVER)
        for text in filters:
            client.subscribe(text, 1)
        messages = client.receive_many(Publish, count)
        client.send(*(PubAck(packet_id=message.packet_id) for message in messages))
        client.disconnect()
    return [message.payload for message in messages]


def drop(broker: BrokerProcess, name: str) -> None:
    broker.stop()
    done = run_command("db", "drop", name, "--yes", "--data", str(broker.data))
    assert (done.returncode, done.stderr) == (0, b"")
    broker.start()


def told(broker: BrokerProcess) -> list[tuple[str, str, int]]:
    """Return who starts over by the log, and how far it was."""
    return [
        (event["level"], event.get("client_id") or event["group"], event["rows_behind"])
        for event in broker.events(STARTS_OVER)
    ]


def test_sessions_and_share_groups_get_every_message_of_the_new_database(
    broker: BrokerProcess,
) -> None:
    before = [b"old %d" % number for number in range(100)]
    after = [b"new %d" % number for number in range(60)]
    come_back(broker, "session", 0, "t/#")
    come_back(broker, "member", 0, GROUP)
    publish(broker, before)
    assert come_back(broker, "session", 100) == before
    assert come_back(broker, "member", 100) == before
    drop(broker, "messages")
    publish(broker, after)
    assert come_back(broker, "session", 60) == after
    assert come_back(broker, "member", 60) == after
    assert told(broker) == [("warning", "session", 100), ("warning", GROUP, 100)]
    broker.stop()
    broker.start()
    publish(broker, [b"last"])
    assert come_back(broker, "session", 1) == [b"last"]
    assert come_back(broker, "member", 1) == [b"last"]
    assert len(told(broker)) == 2


def test_a_position_before_the_first_row_is_reset_and_told(broker: BrokerProcess) -> None:
    come_back(broker, "session", 0, "t/#")
    come_back(broker, "member", 0, GROUP)
    publish(broker, [b"missed"])
    drop(broker, "messages")
    publish(broker, [b"new"])
    assert come_back(broker, "session", 1) == [b"new"]
    assert come_back(broker, "member", 1) == [b"new"]
    assert told(broker) == [("warning", "session", 0), ("warning", GROUP, 0)]


def test_a_committed_offset_of_dropped_topic_logs_is_none_of_the_new_ones(tmp_path: Path) -> None:
    with served_by_process(tmp_path / "data") as broker:
        for values, committed in (([b"a", b"b", b"c"], 2), ([b"d", b"e", b"f", b"g"], 1)):
            with TopicLogClient("127.0.0.1", log_port(broker)) as client:
                client.create_topic("orders")
                client.send_many("orders", values)
                with pytest.raises(NotFoundError, match="client 'billing' has not committed"):
                    client.committed("billing", "orders")
                client.commit("billing", "orders", committed)
                assert client.committed("billing", "orders") == committed
            if committed == 2:
                drop(broker, "topics")
        (event,) = broker.events("committed_offset_ignored")
    assert (event["level"], event["client"], event["offset"]) == ("warning", "billing", 2)
