"""A data directory that an earlier version wrote opens, and everything in it is there.

`tools/write_old_store.py` wrote the directories with the version of their names. The broker of
the store was killed, so opening one is a recovery too.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone import spool
from siltstone.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.properties import Properties
from siltstone.topiclog.client import TopicLogClient
from tests.support.broker_process import BrokerProcess, broker_process, run_command
from tests.support.mqtt_socket import MqttSocket
from tests.support.topiclog import log_port, served_by_process

VERSIONS = ("0.1.0",)
DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(DATA / f"store-{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def expected(old: Path) -> Any:
    return json.loads((old / "expected.json").read_text())


@pytest.fixture
def broker(old: Path) -> Iterator[BrokerProcess]:
    with broker_process(old / "store") as running:
        yield running


def take(client: MqttSocket, count: int) -> list[Publish]:
    """Return that many messages, each acknowledged as its QoS wants."""
    taken: list[Publish] = []
    while len(taken) < count:
        match client.receive():
            case Publish() as message:
                taken.append(message)
                if message.qos == 1:
                    client.send(PubAck(packet_id=message.packet_id))
                elif message.qos == 2:
                    client.send(PubRec(packet_id=message.packet_id))
            case PubRel(packet_id=packet_id):
                client.send(PubComp(packet_id=packet_id))
            case other:
                raise AssertionError(other)
    return taken


def returned(port: int, client_id: str) -> MqttSocket:
    """Return the connection of a client that has a session."""
    client = MqttSocket(port)
    forever = Properties(session_expiry_interval=0xFFFFFFFE)
    answer = client.connect(client_id, clean_start=False, properties=forever)
    assert answer.session_present
    return client


def test_every_row_is_read_as_it_was(old: Path, expected: Any) -> None:
    with siltstone.open(old / "store", read_only=True) as store:
        rows = [row for batch in store.database("messages").read("#") for row in batch.to_pylist()]
    told = [
        {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    # Through JSON, which has no tuples.
    assert json.loads(json.dumps(told, default=str)) == expected["rows"]


def test_verify_finds_it_whole(old: Path) -> None:
    done = run_command("verify", "--all", "--data", str(old / "store"))
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_session_that_was_away_gets_what_waits(broker: BrokerProcess, expected: Any) -> None:
    wanted = [each for each in expected["sent"] if each[2] > 0]
    with returned(broker.port, "away") as client:
        messages = take(client, len(wanted))
    got = [[m.topic.decode(), m.payload.decode(), m.qos] for m in messages]
    assert sorted(got) == sorted(wanted)


def test_a_share_group_gets_what_waits_once(broker: BrokerProcess, expected: Any) -> None:
    wanted = [each for each in expected["sent"] if each[0].startswith("plant/1/")]
    with returned(broker.port, "member-1") as client:
        messages = take(client, len(wanted))
    got = [[m.topic.decode(), m.payload.decode(), m.qos] for m in messages]
    assert sorted(got) == sorted([topic, payload, min(qos, 1)] for topic, payload, qos in wanted)


def test_retained_messages_are_there(broker: BrokerProcess, expected: Any) -> None:
    with MqttSocket(broker.port) as client:
        client.connect("reader")
        client.subscribe("state/#", 1)
        (message,) = take(client, len(expected["retained"]))
    assert [[message.topic.decode(), message.payload.decode()]] == expected["retained"]
    assert message.properties.user_properties == (("a", "1"), ("a", "2"))


def test_topic_logs_are_there_and_go_on(old: Path) -> None:
    with (
        served_by_process(old / "store") as running,
        TopicLogClient("127.0.0.1", log_port(running)) as client,
    ):
        assert client.topics() == ["orders/new", "orders/ü"]
        assert client.committed("billing", "orders/new") == 20
        client.subscribe(["orders/new"])
        client.seek("orders/new", 0)
        got = [client.poll(timeout=5.0) for _ in range(51)]
        assert [m.value for m in got if m is not None] == [
            *(b"order %d" % n for n in range(50)),
            b"x" * 70_000,
        ]
        assert client.send("orders/new", b"next") == 51


def test_key_value_databases_are_there(old: Path) -> None:
    with siltstone.open(old / "store") as store:
        plain = store.keyvalue("bank", siltstone.KeyValueSettings(timed=False))
        with plain.transaction() as tx:
            assert tx.get("account/alice") == b"100"
            assert siltstone.count_in(tx.get("visits")) == 3
        timed = store.keyvalue("history", siltstone.KeyValueSettings(timed=True))
        with timed.transaction() as tx:
            rows = [(row.topic, row.timestamp_us, row.value) for row in tx.read("door/#")]
    assert rows == [("door/1", 1_000, b"open"), ("door/1", 2_000, b"shut")]


def test_a_spool_is_there(old: Path) -> None:
    with spool.open(old / "store" / "spool" / "reports") as queue:
        (entry,) = queue
        with queue.stream(entry) as data:
            assert (entry.metadata, data.read()) == ("2026 report.txt", b"a report")


def test_a_snapshot_of_a_broker_in_memory_is_loaded(old: Path, expected: Any) -> None:
    with (
        broker_process(old / "memory", settings={"persistence": "snapshot"}) as running,
        returned(running.port, "away") as client,
    ):
        wanted = [each for each in expected["memory"]["sent"] if each[2] > 0]
        messages = take(client, len(wanted))
    got = [[m.topic.decode(), m.payload.decode(), m.qos] for m in messages]
    assert sorted(got) == sorted(wanted)
