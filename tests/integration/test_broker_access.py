"""Who may connect, and what they may do, as clients meet it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.broker.broker import REFUSED_LINES
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    Will,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_process import (
    BrokerProcess,
    Listener,
    Settings,
    broker_process,
    run_command,
    stored,
)
from tests.support.certificates import Authority
from tests.support.mqtt_socket import MqttSocket, connected
from tests.support.stock_clients import ClosedError, Login, Message, StockClient, Target
from tests.support.stock_makers import NAMES, come_in, make_client
from tests.support.stock_mqttjs import Node
from tests.support.stock_paho import PahoClient

V3, V5 = Version.V3_1_1, Version.V5
VERSIONS = pytest.mark.parametrize("version", [V3, V5], ids=["v3", "v5"])
DELAY_SECONDS = 0.1
ACL = """
topic readwrite public/#
topic deny public/secret/#
user alice
topic readwrite plant/#
topic deny plant/keys/#
pattern readwrite home/%u/#
pattern readwrite device/%c/#
"""
FORBIDDEN = Will(topic=b"plant/x", payload=b"")
DENIED = {V3: Reason.UNSPECIFIED_ERROR, V5: Reason.NOT_AUTHORIZED}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


@pytest.fixture(scope="module")
def broker(directory: Path, authority: Authority) -> Iterator[BrokerProcess]:
    server = authority.server()
    (directory / "acl").write_text(ACL, "utf-8")
    set_password(directory, "alice", b"rock")
    listeners: dict[str, Listener] = {
        "open": {"port": 0},
        "strict": {"port": 0, "allow_anonymous": False},
        "mtls": {
            "kind": "tls",
            "port": 0,
            "certificate": server.certificate,
            "key": server.key,
            "client_ca": authority.file,
            "client_certificate": "required",
        },
    }
    settings: Settings = {
        "access.password_file": str(directory / "passwords"),
        "access.acl_file": str(directory / "acl"),
        "access.login_delay": DELAY_SECONDS,
        "access.login_delay_max": 2 * DELAY_SECONDS,
    }
    with broker_process(directory / "data", listeners=listeners, settings=settings) as broker:
        yield broker


def set_password(directory: Path, user: str, password: bytes) -> None:
    done = run_command("passwd", str(directory / "passwords"), user, "--stdin", stdin=password)
    assert done.returncode == 0, done.stderr


def log_in(port: int, version: Version, user: str | None, password: bytes | None) -> Reason:
    """Return what the broker says of a login."""
    with MqttSocket(port, version) as client:
        return client.connect("login", username=user, password=password).reason


def alice(broker: BrokerProcess, version: Version, client_id: str = "alice-1") -> MqttSocket:
    """Return a connection of a user with rights."""
    client = MqttSocket(broker.port, version)
    answer = client.connect(client_id, username="alice", password=b"rock")
    assert answer.reason is Reason.SUCCESS
    return client


@VERSIONS
def test_only_the_right_password_lets_a_user_in(broker: BrokerProcess, version: Version) -> None:
    wrong = [("alice", b"sand"), ("bob", b"rock"), ("alice", b"")]
    for user, password in wrong:
        assert log_in(broker.port, version, user, password) is Reason.BAD_USER_NAME_OR_PASSWORD
    for listener in ("open", "strict"):
        assert log_in(broker.port_of(listener), version, "alice", b"rock") is Reason.SUCCESS


@VERSIONS
def test_who_has_no_name_comes_in_only_where_that_is_allowed(
    broker: BrokerProcess, version: Version
) -> None:
    assert log_in(broker.port_of("open"), version, None, None) is Reason.SUCCESS
    assert log_in(broker.port_of("strict"), version, None, None) is Reason.NOT_AUTHORIZED


def test_failed_logins_wait_longer_each_time_and_nobody_else_does(broker: BrokerProcess) -> None:
    with connected(broker.port, "bystander") as bystander:
        # What was before is forgotten by a login that works.
        assert log_in(broker.port, V5, "alice", b"rock") is Reason.SUCCESS
        for expected in (DELAY_SECONDS, 2 * DELAY_SECONDS):
            with MqttSocket(broker.port) as client:
                began = time.monotonic()
                client.send(
                    Connect(version=V5, client_id="guess", username="alice", password=b"sand")
                )
                assert bystander.publish("public/a", b"") is Reason.SUCCESS
                assert client.expect(ConnAck).reason is Reason.BAD_USER_NAME_OR_PASSWORD
                assert time.monotonic() - began >= expected


@VERSIONS
def test_what_a_line_denies_is_neither_stored_nor_delivered(
    broker: BrokerProcess, version: Version
) -> None:
    root = f"plant/keys/{version}"
    with alice(broker, version) as client, alice(broker, version, "alice-2") as reader:
        assert reader.subscribe("plant/#", 1) == (Reason.GRANTED_QOS_1,)
        client.send(Publish(topic=f"{root}/0".encode(), payload=b"x"), PingReq())
        client.expect(PingResp)
        client.send(
            Publish(topic=f"{root}/1".encode(), payload=b"x", qos=1, packet_id=1),
            Publish(topic=f"{root}/2".encode(), payload=b"x", qos=2, packet_id=2),
        )
        reason = Reason.NOT_AUTHORIZED if version is V5 else Reason.SUCCESS
        assert client.expect(PubAck) == PubAck(packet_id=1, reason=reason)
        assert client.expect(PubRec) == PubRec(packet_id=2, reason=reason)
        with alice(broker, version, "alice-3") as other:
            assert other.publish("plant/allowed", b"y") is Reason.SUCCESS
        assert reader.expect(Publish).topic == b"plant/allowed"
    assert stored(broker.data, f"{root}/#") == []


@VERSIONS
def test_subscriptions_are_granted_by_what_the_user_may_read(
    broker: BrokerProcess, version: Version
) -> None:
    granted = {
        "plant/+": Reason.GRANTED_QOS_1,
        "home/alice/#": Reason.GRANTED_QOS_1,
        "device/alice-1/x": Reason.GRANTED_QOS_1,
        "$share/group/plant/a": Reason.GRANTED_QOS_1,
        "plant/keys/#": DENIED[version],
        "home/bob/#": DENIED[version],
        "device/alice-2/x": DENIED[version],
        "$share/group/home/bob/a": DENIED[version],
        "#": DENIED[version],
    }
    with alice(broker, version) as client:
        answers = {text: client.subscribe(text, 1) for text in granted}
    assert answers == {text: (reason,) for text, reason in granted.items()}


@VERSIONS
def test_a_will_that_may_not_be_published_keeps_its_client_out(
    broker: BrokerProcess, version: Version
) -> None:
    with MqttSocket(broker.port, version) as client:
        assert client.connect("nobody", will=FORBIDDEN).reason is Reason.NOT_AUTHORIZED


def test_refused_clients_without_a_line_of_their_own_are_counted_at_the_stop(
    tmp_path: Path,
) -> None:
    (tmp_path / "acl").write_text(ACL, "utf-8")
    settings: Settings = {"access.acl_file": str(tmp_path / "acl")}
    with broker_process(tmp_path / "data", settings=settings) as broker:
        for _ in range(REFUSED_LINES + 5):
            with MqttSocket(broker.port) as client:
                assert client.connect("nobody", will=FORBIDDEN).reason is Reason.NOT_AUTHORIZED
        broker.stop()
        broker.wait_for_total("client_refused", REFUSED_LINES + 5)


def test_the_name_in_a_certificate_is_the_user(broker: BrokerProcess, authority: Authority) -> None:
    target = Target(
        kind="tls",
        port=broker.port_of("mtls"),
        authority=authority.file,
        files=authority.client("carol"),
    )
    client = PahoClient(target, 5)
    try:
        # The user name that it gives is not looked at.
        client.connect(Login(client_id="c", username="alice", password="wrong"))  # noqa: S106 - nobody reads it
        assert client.subscribe("home/carol/#", 1) == 1
        assert client.subscribe("home/alice/#", 1) == Reason.NOT_AUTHORIZED
        message = Message(topic="home/carol/x", payload=b"hello", qos=1)
        assert client.publish(message) == 0
        assert client.receive() == message
    finally:
        client.close()


def test_sighup_takes_new_users_and_rights_for_all_and_wrong_files_for_nobody(
    broker: BrokerProcess, directory: Path
) -> None:
    with (
        alice(broker, V5, "reader") as reader,
        alice(broker, V5, "writer") as writer,
    ):
        reader.subscribe("plant/#", 0)
        assert writer.publish("plant/before", b"") is Reason.SUCCESS
        assert reader.expect(Publish).topic == b"plant/before"
        set_password(directory, "dave", b"clay")
        assert log_in(broker.port, V5, "dave", b"clay") is Reason.BAD_USER_NAME_OR_PASSWORD
        acl = directory / "acl"
        acl.write_text(ACL + "pattern deny plant/before\npattern readwrite new/#\n", "utf-8")
        assert broker.reload()["event"] == "reloaded"
        assert log_in(broker.port, V5, "dave", b"clay") is Reason.SUCCESS
        # Who is connected goes by the new lines too.
        assert writer.publish("plant/before", b"") is Reason.NOT_AUTHORIZED
        assert writer.publish("new/x", b"") is Reason.SUCCESS
        assert writer.publish("plant/after", b"") is Reason.SUCCESS
        assert reader.expect(Publish).topic == b"plant/after"
        acl.write_text("topic everything #\n", "utf-8")
        told = broker.reload()
        assert told["event"] == "access_reload_failed"
        assert f"{acl}" in told["error"]
        assert writer.publish("new/x", b"") is Reason.SUCCESS
        acl.write_text(ACL, "utf-8")
        assert broker.reload()["event"] == "reloaded"
        assert writer.publish("new/x", b"") is Reason.NOT_AUTHORIZED


def test_after_sighup_who_is_connected_reads_no_more_than_the_new_lines_allow(
    broker: BrokerProcess, directory: Path
) -> None:
    acl = directory / "acl"
    try:
        with alice(broker, V5, "reader") as reader, alice(broker, V5, "writer") as writer:
            reader.subscribe("plant/#", 0)
            acl.write_text(ACL + "client reader\ntopic deny plant/a\n", "utf-8")
            assert broker.reload()["event"] == "reloaded"
            for topic in ("plant/a", "plant/b"):
                assert writer.publish(topic, b"") is Reason.SUCCESS
            assert reader.expect(Publish).topic == b"plant/b"
    finally:
        acl.write_text(ACL, "utf-8")
        broker.reload()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", NAMES)
def test_stock_clients_are_told_why_they_are_refused(
    broker: BrokerProcess, request: pytest.FixtureRequest, name: str, version: int
) -> None:
    target = Target(port=broker.port)
    client = make_client(name, version, target, lambda: request.getfixturevalue("node"))
    login = Login(client_id="stock", username="alice", password="rock")  # noqa: S106 - as set above
    try:
        with pytest.raises(ClosedError) as refused:
            come_in(client, replace(login, password="sand"), "plant/#")  # noqa: S106 - a wrong one
        if name != "mosquitto":
            # MQTT.js tells the return code of 3.1.1 as it is, the others that of version 5.
            assert refused.value.code == (4 if (name, version) == ("mqttjs", 4) else 0x86)
        assert come_in(client, login, "plant/#") == 1
        if name != "aiomqtt":
            check_publish_refused(client, version)
    finally:
        client.close()


def check_publish_refused(client: StockClient, version: int) -> None:
    """Version 5 is told by a code; 3.1.1, which has none, is acknowledged and goes on."""
    message = Message(topic="plant/keys/a", payload=b"x", qos=1)
    expected = Reason.NOT_AUTHORIZED if version == 5 else Reason.SUCCESS
    assert client.publish(message) == expected
