"""What the broker acknowledged is in the store; what the store refuses is not acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

import siltstone
from siltstone.mqtt.packets import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_process import (
    DATABASE,
    BrokerProcess,
    broker_process,
    run_command,
    stored,
)
from tests.support.mqtt_socket import MqttSocket, connected, publishes
from tests.support.small_disk import mounted, take_the_rest

V3, V5 = Version.V3_1_1, Version.V5
VERSIONS = pytest.mark.parametrize("version", [V3, V5], ids=["v3", "v5"])
DISK_BYTES = 64 * 1024 * 1024
PAYLOAD = bytes(range(256)) * 64
QUICKLY: dict[str, str | float] = {"limits.refusal_delay": 0.1, "storage.keep_free_bytes": "1 MiB"}
SMALL: dict[str, str | float] = {"storage.segment_bytes": "64 KiB", **QUICKLY}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", DISK_BYTES) as path:
        yield path


def publish_until_refused(port: int, version: Version, qos: int, name: str) -> list[bytes]:
    """Publish numbered payloads until one is refused; return those that were acknowledged.

    Version 5 is told why and stays connected; 3.1.1 is closed without an acknowledgement.
    """
    acknowledged: list[bytes] = []
    with connected(port, name, version) as client:
        for number in range(1, 10_000):
            payload = b"%d " % number + PAYLOAD
            message = Publish(
                topic=f"full/{name}".encode(), payload=payload, qos=qos, packet_id=number
            )
            client.send(message)
            try:
                answer = client.receive()
            except EOFError:
                assert version is V3
                return acknowledged
            assert isinstance(answer, PubAck if qos == 1 else PubRec)
            assert answer.packet_id == number
            if answer.reason is not Reason.SUCCESS:
                assert (version, answer.reason) == (V5, Reason.QUOTA_EXCEEDED)
                client.send(PingReq())
                client.expect(PingResp)
                return acknowledged
            acknowledged.append(payload)
            if qos == 2:
                client.send(PubRel(packet_id=number))
                client.expect(PubComp)
    raise AssertionError("nothing was refused")


def values(data: Path, name: str) -> list[bytes]:
    return [value for _, value in stored(data, f"full/{name}")]


def publish_batch(port: int, version: Version, name: str) -> list[bytes]:
    """Publish more at once than there is room for; return what was acknowledged, in order."""
    batch = publishes(f"full/{name}", (b"%d " % number + PAYLOAD for number in range(100)))
    with connected(port, name, version) as client:
        client.send(*batch)
        if version is V5:
            answers = client.receive_many(PubAck, len(batch))
            assert [answer.packet_id for answer in answers] == list(range(1, len(batch) + 1))
            assert answers[-1].reason is Reason.QUOTA_EXCEEDED
        else:
            answers = [packet for packet in client.rest() if isinstance(packet, PubAck)]
            assert len(answers) < len(batch)
    acknowledged = {answer.packet_id for answer in answers if answer.reason is Reason.SUCCESS}
    return [message.payload for message in batch if message.packet_id in acknowledged]


def test_beyond_the_quota_no_publish_is_acknowledged_until_it_is_raised(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = SMALL | {"storage.quota_bytes": "512 KiB"}
    with broker_process(data, settings=settings) as broker:
        first = publish_until_refused(broker.port, V5, 1, "first")
        assert 5 < len(first) < 40
        assert values(data, "first") == first
        for version, qos in ((V3, 1), (V3, 2), (V5, 1), (V5, 2)):
            assert publish_until_refused(broker.port, version, qos, "late") == []
            assert publish_batch(broker.port, version, "late") == []
        broker.stop()
        done = run_command("db", "set", DATABASE, "quota=1MiB", "--data", str(data))
        assert done.returncode == 0, done.stderr
        broker.start()
        second = publish_until_refused(broker.port, V3, 2, "second")
        assert 5 < len(second) < 80
    assert (values(data, "first"), values(data, "second")) == (first, second)
    assert values(data, "late") == []


@VERSIONS
def test_of_a_batch_beyond_the_quota_only_what_is_stored_is_acknowledged(
    tmp_path: Path, version: Version
) -> None:
    data = tmp_path / "data"
    # Messages of several reads are several appends, of which the first ones fit.
    settings = SMALL | {"storage.quota_bytes": "768 KiB"}
    with broker_process(data, settings=settings) as broker:
        acknowledged = publish_batch(broker.port, version, "batch")
        found = values(data, "batch")
    if version is V5:
        assert found == acknowledged
    else:
        # What was stored when the connection ended needs no acknowledgement.
        assert found[: len(acknowledged)] == acknowledged


def test_on_a_full_disk_no_publish_is_acknowledged_until_there_is_room(small_disk: Path) -> None:
    data = small_disk / "data"
    with broker_process(data, settings=QUICKLY) as broker:
        hog = small_disk / "hog"
        take_the_rest(hog)
        first = publish_until_refused(broker.port, V5, 1, "first")
        assert publish_until_refused(broker.port, V3, 1, "second") == []
        assert values(data, "first") == first
        hog.unlink()
        for version in (V3, V5):
            with connected(broker.port, "late", version) as client:
                assert client.publish("full/late", b"kept") is Reason.SUCCESS
        assert values(data, "late") == [b"kept"] * 2
        assert values(data, "second") == []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    rules = [
        {"filter": "debug/#", "store": "never"},
        {"filter": "fast/#", "durability": "written"},
    ]
    path = tmp_path_factory.mktemp("broker") / "data"
    with broker_process(path, settings={"storage.rules": json.dumps(rules)}) as broker:
        yield broker


@VERSIONS
def test_what_is_stored_is_what_was_published(broker: BrokerProcess, version: Version) -> None:
    root = f"rows/{version}"
    properties = Properties(user_properties=(("k", "v"),), content_type="text")
    with connected(broker.port, "p", version) as client:
        client.send(
            Publish(topic=f"{root}/0".encode(), payload=b"x", properties=properties),
            Publish(topic=f"{root}/1".encode(), payload=b"", qos=1, packet_id=1, dup=True),
            Publish(topic=f"{root}/2".encode(), payload=b"\xff", qos=2, packet_id=2, retain=True),
        )
        client.expect(PubAck)
        client.expect(PubRec)
    columns = ["topic", "value", "publisher", "qos", "retain", "properties"]
    with siltstone.open(broker.data, read_only=True) as store:
        rows = [
            tuple(row.values())
            for batch in store.database(DATABASE).read(f"{root}/#", columns=columns)
            for row in batch.to_pylist()
        ]
    encoded = bytes.fromhex("03 0004 74657874 26 0001 6b 0001 76") if version is V5 else b""
    assert rows == [
        (f"{root}/0", b"x", "p", 0, False, encoded),
        (f"{root}/1", b"", "p", 1, False, b""),
        (f"{root}/2", b"\xff", "p", 2, True, b""),
    ]


@VERSIONS
def test_a_message_of_qos_2_that_is_sent_again_is_stored_once(
    broker: BrokerProcess, version: Version
) -> None:
    topic = f"once/{version}"
    keep = Properties(session_expiry_interval=60)
    first, again = (
        Publish(topic=topic.encode(), payload=b"1", qos=2, packet_id=9, dup=dup)
        for dup in (False, True)
    )
    for packet, is_present in ((first, False), (again, True)):
        with MqttSocket(broker.port, version) as client:
            answer = client.connect(topic, clean_start=False, properties=keep)
            assert answer.session_present is is_present
            client.send(packet, packet)
            assert client.receive_many(PubRec, 2) == [PubRec(packet_id=9)] * 2
    with MqttSocket(broker.port, version) as client:
        client.connect(topic, clean_start=False, properties=keep)
        client.send(PubRel(packet_id=9))
        assert client.expect(PubComp) == PubComp(packet_id=9)
    assert stored(broker.data, "once/#").count((topic, b"1")) == 1


def test_rules_say_what_is_stored_and_all_is_delivered(broker: BrokerProcess) -> None:
    with (
        connected(broker.port, "s") as subscriber,
        connected(broker.port, "p") as client,
    ):
        topics = ["debug/a", "fast/a", "other/a", "debug/b", "fast/b"]
        for text in ("debug/#", "fast/#", "other/#"):
            subscriber.subscribe(text)
        for topic in topics:
            assert client.publish(topic, b"x") is Reason.SUCCESS
        received = [packet.topic.decode() for packet in subscriber.receive_many(Publish, 5)]
        assert received == topics
    found = [(text, len(stored(broker.data, text))) for text in ("debug/#", "fast/#", "other/#")]
    assert found == [("debug/#", 0), ("fast/#", 2), ("other/#", 1)]


def test_sigterm_tells_version_5_and_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data) as broker:
        streams = [
            Stream(broker.port, f"p{number}", version)
            for number, version in enumerate((V3, V5, V5))
        ]
        with connected(broker.port, "idle") as idle, connected(broker.port, "old", V3) as old:
            for stream in streams:
                stream.start()
            for stream in streams:
                assert stream.is_warm.wait(20)
            broker.terminate()
            assert idle.rest() == [Disconnect(reason=Reason.SERVER_SHUTTING_DOWN)]
            assert old.rest() == []
        for stream in streams:
            stream.join()
        broker.wait_until_stopped()
    assert [stream.farewell for stream in streams] == [
        None,
        Reason.SERVER_SHUTTING_DOWN,
        Reason.SERVER_SHUTTING_DOWN,
    ]
    for stream in streams:
        numbers = [int(value) for _, value in stored(data, f"stream/{stream.name}")]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= stream.acknowledged


class Stream(Thread):
    """Publishes running numbers until the broker closes."""

    WINDOW = 50

    def __init__(self, port: int, name: str, version: Version) -> None:
        super().__init__(name=name)
        self._client = connected(port, name, version)
        self.is_warm = Event()
        self.acknowledged = 0
        self.farewell: Reason | None = None

    def run(self) -> None:
        sent = 0
        with self._client as client:
            try:
                while True:
                    room = range(sent, self.acknowledged + self.WINDOW)
                    sent = room.stop
                    numbers = [b"%d" % number for number in room]
                    first_id = room.start % 60_000 + 1
                    client.send(*publishes(f"stream/{self.name}", numbers, first_id=first_id))
                    self._take(client)
                    if self.acknowledged > 500:
                        self.is_warm.set()
            except (EOFError, OSError):
                return

    def _take(self, client: MqttSocket) -> None:
        for _ in range(self.WINDOW // 2):
            packet = client.receive()
            if isinstance(packet, Disconnect):
                self.farewell = packet.reason
                continue
            assert packet == PubAck(packet_id=self.acknowledged % 60_000 + 1)
            self.acknowledged += 1


def test_retained_messages_outlive_a_restart_and_so_do_sessions(tmp_path: Path) -> None:
    keep = Properties(session_expiry_interval=600)
    with broker_process(tmp_path / "data") as broker:
        with MqttSocket(broker.port) as client:
            client.connect("p", clean_start=False, properties=keep)
            for topic, payload in (("r/a", b"1"), ("r/b", b"2"), ("r/a", b"3"), ("r/b", b"")):
                assert client.publish(topic, payload, retain=True) is Reason.SUCCESS
        broker.stop()
        broker.start()
        with MqttSocket(broker.port) as client:
            answer = client.connect("p", clean_start=False, properties=keep)
            assert answer.session_present is True
            client.subscribe("r/#", 1)
            client.send(PingReq())
            assert client.receive() == Publish(
                topic=b"r/a", payload=b"3", qos=1, retain=True, packet_id=2
            )
            assert client.receive() == PingResp()
