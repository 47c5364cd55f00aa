"""Clients that others wrote use the broker without noticing that it is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from siltstone.mqtt.reason import Reason
from tests.support.broker_process import BrokerProcess, Listener, broker_process
from tests.support.certificates import Authority
from tests.support.stock_clients import (
    ClosedError,
    Extras,
    Login,
    Message,
    StockClient,
    Target,
)
from tests.support.stock_makers import NAMES, come_in, make_client
from tests.support.stock_mqttjs import MqttJsClient, Node
from tests.support.stock_paho import PahoClient

VERSIONS = (4, 5)
EACH = [pytest.param((n, v), id=f"{n}-v{v}") for n in NAMES for v in VERSIONS]
EACH_5 = [pytest.param((n, 5), id=n) for n in NAMES]
LARGE = bytes(range(256)) * (5 * 4096)
EXTRAS = Extras(
    user=(("unit", "mm"), ("quarry", "7:b")),
    content_type="text/plain",
    response_topic="answers/7",
    correlation=b"order-66",
    expiry=60,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[BrokerProcess]:
    path = tmp_path_factory.mktemp("broker")
    listeners = listeners_for(path, authority)
    # In turn, so that it is known who gets what.
    settings = {"share.strategy": "round-robin"}
    with broker_process(path / "data", listeners=listeners, settings=settings) as broker:
        yield broker


def listeners_for(path: Path, authority: Authority) -> Mapping[str, Listener]:
    """Return a listener of each kind."""
    server = authority.server()
    secure: Listener = {"port": 0, "certificate": server.certificate, "key": server.key}
    required = {"client_ca": authority.file, "client_certificate": "required"}
    return {
        "tcp": {"port": 0},
        "ws": {"kind": "ws", "port": 0},
        "tls": {"kind": "tls", **secure},
        "mtls": {"kind": "tls", **secure, **required},
        "wss": {"kind": "wss", **secure},
        "unix": {"kind": "unix", "path": str(path / "mqtt.sock")},
    }


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


Make = Callable[[str, int, Target], StockClient]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make clients by name; they are closed when the test ends."""
    made: list[StockClient] = []

    def make_one(name: str, version: int, target: Target) -> StockClient:
        client = make_client(name, version, target, lambda: request.getfixturevalue("node"))
        made.append(client)
        return client

    yield make_one
    for client in made:
        client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One kind of client in one version, with topics that no other test has."""

    name: str
    version: int
    root: str
    target: Target
    make: Make

    def connect(self, name: str, *, clean: bool = True, will: Message | None = None) -> StockClient:
        """Return a new client that is connected."""
        client = self.make(self.name, self.version, self.target)
        client.connect(Login(client_id=f"{self.root}-{name}", clean=clean, will=will))
        return client

    def topic(self, rest: str) -> str:
        return f"{self.root}/{rest}"

    def message(self, rest: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> Message:
        return Message(topic=self.topic(rest), payload=payload, qos=qos, retain=retain)


@pytest.fixture
def peer(request: pytest.FixtureRequest, broker: BrokerProcess, make: Make) -> Peer:
    name, version = request.param
    # MQTT.js is there for browsers.
    target = (
        Target(kind="ws", port=broker.port_of("ws"), path="/mqtt")
        if name == "mqttjs"
        else Target(port=broker.port)
    )
    root = request.node.name
    for character in "[]":
        root = root.replace(character, "-")
    return Peer(name=name, version=version, root=root, target=target, make=make)


@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_a_message_of_each_qos_arrives_once_as_it_was_sent(peer: Peer) -> None:
    subscriber = peer.connect("subscriber")
    assert subscriber.subscribe(peer.topic("#"), 2) == 2
    publisher = peer.connect("publisher")
    # One at a time: clients hand over a message of QoS 2 when its exchange is over, others at once.
    for number, qos in enumerate((2, 1, 0, 2)):
        message = peer.message(f"qos/{qos}", b"\0\xff%d" % number, qos)
        assert publisher.publish(message) == 0
        assert subscriber.receive() == message


@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_a_subscription_lowers_the_qos_of_what_it_gets(peer: Peer) -> None:
    subscriber = peer.connect("subscriber")
    assert subscriber.subscribe(peer.topic("#"), 1) == 1
    publisher = peer.connect("publisher")
    sent = [peer.message("t", b"%d" % qos, qos) for qos in (0, 1, 2)]
    for message in sent:
        publisher.publish(message)
    assert [subscriber.receive().qos for _ in sent] == [0, 1, 1]


@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_a_retained_message_awaits_subscribers_until_it_is_cleared(peer: Peer) -> None:
    publisher = peer.connect("publisher")
    kept = peer.message("kept", b"level 7", retain=True)
    publisher.publish(replace(kept, payload=b"level 6"))
    publisher.publish(kept)
    first = peer.connect("first")
    first.subscribe(peer.topic("+"), 1)
    assert first.receive() == kept
    # One that is there already gets it as a message like any other.
    publisher.publish(replace(kept, payload=b"level 8"))
    assert first.receive() == replace(kept, payload=b"level 8", retain=False)
    publisher.publish(replace(kept, payload=b""))
    second = peer.connect("second")
    second.subscribe(peer.topic("+"), 1)
    last = peer.message("last", b"")
    publisher.publish(last)
    assert second.receive() == last


@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_a_will_is_published_for_who_goes_without_a_word_and_for_nobody_else(peer: Peer) -> None:
    watcher = peer.connect("watcher")
    watcher.subscribe(peer.topic("wills/#"), 2)
    polite, rude = (peer.message(f"wills/{name}", b"gone", 1) for name in ("polite", "rude"))
    for will in (polite, rude):
        client = peer.connect(will.topic, will=will)
        client.subscribe(peer.topic("none"))
        if will is polite:
            client.disconnect()
        else:
            client.drop()
    if (peer.name, peer.version) == ("mosquitto", 5):
        # It says goodbye by 0x04, disconnect with will message.
        assert watcher.receive() == polite
    assert watcher.receive() == rude


@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_each_message_goes_to_one_member_of_a_share(peer: Peer) -> None:
    members = [peer.connect(f"member{number}") for number in range(2)]
    for member in members:
        member.subscribe(f"$share/crew/{peer.topic('#')}", 1)
    payloads = [b"%d" % number for number in range(20)]
    peer.connect("publisher").publish_all(peer.topic("work"), payloads, 1)
    received = [[member.receive().payload for _ in range(10)] for member in members]
    assert received == [payloads[0::2], payloads[1::2]] or received == [
        payloads[1::2],
        payloads[0::2],
    ]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_a_session_keeps_what_is_sent_while_its_client_is_away(peer: Peer, qos: int) -> None:
    client = peer.connect("sleeper", clean=False)
    client.subscribe(peer.topic("#"), 2)
    client.disconnect()
    publisher = peer.connect("publisher")
    sent = [peer.message("t", b"%d" % number, qos) for number in range(6)]
    for message in sent:
        publisher.publish(message)
    assert client.connect(Login(client_id=f"{peer.root}-sleeper", clean=False)) is True
    if peer.name == "mosquitto":
        client.subscribe(peer.topic("#"), 2)
    assert [client.receive() for _ in sent] == sent


@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_wildcards_find_what_they_should_and_nothing_else(peer: Peer) -> None:
    one, many = peer.connect("one"), peer.connect("many")
    one.subscribe(peer.topic("+/b"), 1)
    many.subscribe(peer.topic("a/#"), 1)
    publisher = peer.connect("publisher")
    topics = ("a", "a/b", "a/b/c", "x", "x/b", "x/b/c", "/b", "a/")
    for topic in (*topics, "end/b", "a/end"):
        publisher.publish(peer.message(topic, topic.encode()))
    assert [one.receive().payload for _ in range(4)] == [b"a/b", b"x/b", b"/b", b"end/b"]
    expected = [b"a", b"a/b", b"a/b/c", b"a/", b"a/end"]
    assert [many.receive().payload for _ in expected] == expected


@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_five_megabytes_arrive_whole(peer: Peer) -> None:
    subscriber = peer.connect("subscriber")
    subscriber.subscribe(peer.topic("#"), 1)
    message = peer.message("large", LARGE)
    peer.connect("publisher").publish(message)
    assert subscriber.receive() == message


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("peer", EACH, indirect=True)
def test_many_messages_arrive_once_and_in_order(peer: Peer, qos: int) -> None:
    subscriber = peer.connect("subscriber")
    subscriber.subscribe(peer.topic("#"), 2)
    payloads = [b"%d" % number for number in range(300)]
    peer.connect("publisher").publish_all(peer.topic("t"), payloads, qos)
    assert [subscriber.receive().payload for _ in payloads] == payloads


@pytest.mark.parametrize("peer", EACH_5, indirect=True)
def test_what_version_5_adds_to_a_message_comes_through(peer: Peer) -> None:
    subscriber = peer.connect("subscriber")
    subscriber.subscribe(peer.topic("#"), 1, identifier=77)
    publisher = peer.connect("publisher")
    message = replace(peer.message("t", b"hello"), extras=EXTRAS)
    assert publisher.publish(message) == 0
    assert subscriber.receive() == replace(message, extras=replace(EXTRAS, identifiers=(77,)))


@pytest.mark.parametrize("peer", EACH_5, indirect=True)
def test_what_version_5_adds_to_a_message_does_not_reach_version_3(
    peer: Peer, broker: BrokerProcess, make: Make
) -> None:
    old = make("paho", 4, Target(port=broker.port))
    old.connect(Login(client_id=f"{peer.root}-old"))
    old.subscribe(peer.topic("#"), 1)
    message = peer.message("t", b"hello")
    peer.connect("publisher").publish(replace(message, extras=EXTRAS))
    assert old.receive() == message


@pytest.mark.parametrize("peer", [p for p in EACH_5 if p.id != "mosquitto"], indirect=True)
def test_overlapping_subscriptions_are_one_message_with_all_identifiers(peer: Peer) -> None:
    subscriber = peer.connect("subscriber")
    subscriber.subscribe(peer.topic("#"), 0, identifier=300)
    subscriber.subscribe(peer.topic("a/+"), 2, identifier=1)
    subscriber.subscribe(peer.topic("a/b"), 1)
    publisher = peer.connect("publisher")
    for payload in (b"first", b"second"):
        publisher.publish(peer.message("a/b", payload, 2))
    received = [subscriber.receive() for _ in range(2)]
    assert [(m.payload, m.qos, sorted(m.extras.identifiers)) for m in received] == [
        (b"first", 2, [1, 300]),
        (b"second", 2, [1, 300]),
    ]


@pytest.mark.parametrize("peer", EACH_5[:1], indirect=True)
def test_a_client_may_say_a_topic_once_and_its_alias_from_then_on(peer: Peer) -> None:
    subscriber = peer.connect("subscriber")
    subscriber.subscribe(peer.topic("#"), 1)
    publisher = peer.connect("publisher")
    assert isinstance(publisher, PahoClient)
    first, second = peer.message("a", b"1"), peer.message("b", b"2")
    publisher.publish_aliased(first, 1)
    publisher.publish_aliased(second, 10)
    publisher.publish_aliased(replace(first, topic="", payload=b"3"), 1)
    publisher.publish_aliased(replace(first, topic="", payload=b"4"), 10)
    assert [subscriber.receive() for _ in range(4)] == [
        first,
        second,
        replace(first, payload=b"3"),
        replace(second, payload=b"4"),
    ]


def test_aliases_are_used_both_ways_with_a_client_that_allows_them(
    broker: BrokerProcess, node: Node
) -> None:
    target = Target(kind="ws", port=broker.port_of("ws"), path="/mqtt")
    topic = "aliases/of/a/long/topic"
    payloads = [b"%d" % number for number in range(10)]
    subscriber = MqttJsClient(node, target, 5, properties={"topicAliasMaximum": 5})
    publisher = MqttJsClient(node, target, 5, autoAssignTopicAlias=True)
    try:
        subscriber.connect(Login(client_id="aliases-subscriber"))
        publisher.connect(Login(client_id="aliases-publisher"))
        subscriber.subscribe("aliases/#", 1)
        publisher.publish_all(topic, payloads, 1)
        received = [subscriber.receive() for _ in payloads]
        assert [(m.topic, m.payload) for m in received] == [(topic, p) for p in payloads]
        assert subscriber.topics_on_the_wire() == [topic, *[""] * 9]
    finally:
        subscriber.close()
        publisher.close()


KINDS = [
    *(("paho", kind) for kind in ("tls", "mtls", "ws", "wss", "unix")),
    *(("aiomqtt", kind) for kind in ("tls", "mtls")),
    *(("mosquitto", kind) for kind in ("tls", "mtls", "unix")),
    *(("mqttjs", kind) for kind in ("tcp", "tls", "mtls", "wss")),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "listener"), KINDS)
def test_clients_come_by_every_kind_of_listener(
    broker: BrokerProcess, authority: Authority, make: Make, name: str, listener: str, version: int
) -> None:
    target = target_of(broker, authority, listener)
    root = f"{name}-{listener}-{version}"
    subscriber, publisher = (make(name, version, target) for _ in range(2))
    subscriber.connect(Login(client_id=f"{root}-subscriber"))
    assert subscriber.subscribe(f"{root}/#", 2) == 2
    publisher.connect(Login(client_id=f"{root}-publisher"))
    for qos, payload in ((1, b"small"), (2, LARGE[:100_000]), (0, b"")):
        message = Message(topic=f"{root}/t", payload=payload, qos=qos)
        publisher.publish(message)
        assert subscriber.receive() == message


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["paho", "mosquitto", "mqttjs"])
def test_who_shows_no_certificate_where_one_is_required_is_not_let_in(
    broker: BrokerProcess, authority: Authority, make: Make, name: str, version: int
) -> None:
    target = replace(target_of(broker, authority, "mtls"), files=None)
    client = make(name, version, target)
    with pytest.raises((ClosedError, OSError)):
        come_in(client, Login(client_id="nameless"), "#")
    assert [e for e in broker.events("client_connected") if e["client_id"] == "nameless"] == []


def test_sigterm_tells_clients_of_every_listener_why_they_are_closed(
    tmp_path: Path, authority: Authority
) -> None:
    names = ("tcp", "ws", "tls", "mtls", "wss", "unix")
    with broker_process(tmp_path / "data", listeners=listeners_for(tmp_path, authority)) as broker:
        clients = [PahoClient(target_of(broker, authority, name), 5) for name in names]
        try:
            for name, client in zip(names, clients, strict=True):
                client.connect(Login(client_id=name))
            broker.terminate()
            reasons = {
                name: client.wait_until_closed()
                for name, client in zip(names, clients, strict=True)
            }
            assert reasons == dict.fromkeys(names, Reason.SERVER_SHUTTING_DOWN)
        finally:
            for client in clients:
                client.close()
        broker.wait_until_stopped()


def target_of(broker: BrokerProcess, authority: Authority, listener: str) -> Target:
    """Return the target of a listener by its name."""
    if listener == "unix":
        path = broker.addresses["unix"].removeprefix("unix://")
        return Target(kind="unix", path=path)
    return Target(
        kind="tls" if listener == "mtls" else listener,
        port=broker.port_of(listener),
        path="/mqtt" if listener in {"ws", "wss"} else "",
        authority=authority.file,
        files=authority.client("visitor") if listener == "mtls" else None,
    )
