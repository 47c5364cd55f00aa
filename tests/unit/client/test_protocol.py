from __future__ import annotations

import pytest

from siltstone.client.outgoing import Publication
from siltstone.client.protocol import ClientProtocol, ClientState
from siltstone.client.refusal import RefusedError
from siltstone.client.session import NO_SUBSCRIPTIONS, ClientSession, WantedSubscriptions
from siltstone.client.settings import ClientSettings
from siltstone.errors import (
    MalformedPacketError,
    OutcomeUnknownError,
    PeerError,
    ProtocolError,
    RetryError,
    UsageError,
)
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter

V3, V5 = Version.V3_1_1, Version.V5
FILTERS = (TopicFilter.parse("a"), TopicFilter.parse("b/#"))
SUBSCRIPTIONS = tuple(Subscription(filter=topic_filter, qos=2) for topic_filter in FILTERS)


class Client:
    """A protocol at a time that the test sets, with what it sent and handed over."""

    def __init__(
        self,
        *,
        version: Version = V5,
        subscriptions: WantedSubscriptions = NO_SUBSCRIPTIONS,
        keep_alive: int = 60,
        reconnect: bool = False,
    ) -> None:
        self.settings = ClientSettings(
            client_id="c", version=version, keep_alive_seconds=keep_alive, reconnect=reconnect
        )
        self.session = ClientSession(self.settings, subscriptions)
        self.now = 1000.0
        self.protocol = ClientProtocol(self.settings, self.session, now=self.now)
        self.delivered: list[bytes] = []

    def receive(self, *packets: Packet) -> None:
        data = b"".join(encode(self.settings.version, packet) for packet in packets)
        for batch in self.protocol.receive(data, self.now):
            self.delivered += batch.values
            self.protocol.accept(batch, len(batch.topics))

    def sent(self) -> bytes:
        pieces = []
        while piece := self.protocol.take(self.now):
            pieces.append(piece)
        return b"".join(pieces)

    def connected(self, answer: ConnAck = ConnAck()) -> Client:  # noqa: B008 - frozen
        self.sent()
        self.receive(answer)
        return self

    def encoded(self, *packets: Packet) -> bytes:
        return b"".join(encode(self.settings.version, packet) for packet in packets)


@pytest.mark.parametrize("version", [V3, V5])
def test_connect_comes_first_and_nothing_before_its_answer(version: Version) -> None:
    client = Client(version=version, subscriptions=WantedSubscriptions(subscriptions=SUBSCRIPTIONS))
    client.session.outgoing.add(Publication(topic=b"t"), [b"x"])
    connect = client.settings.connect("c", returning=False)
    assert (client.sent(), client.protocol.state) == (
        client.encoded(connect),
        ClientState.CONNECTING,
    )
    client.receive(ConnAck())
    assert client.sent() == client.encoded(
        Subscribe(packet_id=1, subscriptions=SUBSCRIPTIONS), Publish(topic=b"t", payload=b"x")
    )


def test_a_client_that_was_met_comes_back_to_its_session() -> None:
    client = Client(reconnect=True).connected(
        ConnAck(properties=Properties(assigned_client_identifier="s"))
    )
    again = ClientProtocol(client.settings, client.session, now=0.0)
    assert again.take(0.0) == encode(V5, client.settings.connect("s", returning=True))


@pytest.mark.parametrize(
    ("version", "reason", "words"),
    [
        (V5, Reason.SERVER_BUSY, "server busy (0x89)"),
        (V3, Reason.BAD_USER_NAME_OR_PASSWORD, "bad user name or password (0x86)"),
    ],
)
def test_a_refused_connection_tells_why(version: Version, reason: Reason, words: str) -> None:
    client = Client(version=version)
    client.sent()
    with pytest.raises(RefusedError) as raised:
        client.receive(ConnAck(reason=reason))
    assert (str(raised.value), raised.value.reason) == (
        f"the server refused the connection: {words}",
        reason,
    )
    assert (client.protocol.state, client.session.met) == (ClientState.OVER, False)
    assert client.protocol.fail(raised.value) == b""


@pytest.mark.parametrize(
    ("packets", "complaint"),
    [
        ([PubAck(packet_id=1)], "the server sent an acknowledgement before CONNACK"),
        ([Publish(topic=b"t", payload=b"")], "the server sent PUBLISH before CONNACK"),
        ([PingResp()], "the server sent PingResp before CONNACK"),
        ([ConnAck(), ConnAck()], "a server must send CONNACK once, got a second one"),
        ([ConnAck(), PingReq()], "a server must not send PingReq"),
        ([ConnAck(), Auth()], "a server must not send Auth"),
    ],
)
def test_what_a_server_may_not_send_ends_the_connection(
    packets: list[Packet], complaint: str
) -> None:
    client = Client()
    client.sent()
    with pytest.raises(ProtocolError, match=complaint):
        client.receive(*packets)


def test_messages_are_handed_over_and_then_acknowledged() -> None:
    client = Client().connected()
    client.receive(
        Publish(topic=b"t", payload=b"0"),
        Publish(topic=b"t", payload=b"1", qos=1, packet_id=1),
        Publish(topic=b"t", payload=b"2", qos=2, packet_id=2),
    )
    assert client.delivered == [b"0", b"1", b"2"]
    assert client.sent() == client.encoded(PubAck(packet_id=1), PubRec(packet_id=2))
    client.receive(Publish(topic=b"t", payload=b"2", qos=2, packet_id=2, dup=True))
    client.receive(PubRel(packet_id=2), PubRel(packet_id=9, reason=Reason.SUCCESS))
    assert client.delivered == [b"0", b"1", b"2"]
    assert client.sent() == client.encoded(
        PubRec(packet_id=2), PubComp(packet_id=2), PubComp(packet_id=9)
    )


def test_each_batch_is_accepted_before_the_next_is_looked_at() -> None:
    client = Client().connected()
    first = Publish(topic=b"t", payload=b"1", qos=2, packet_id=1)
    client.receive(first, PubRel(packet_id=1), first)
    assert client.delivered == [b"1", b"1"]


def test_a_receiver_that_leaves_gets_nothing_more_and_acknowledges_what_it_took() -> None:
    client = Client().connected()
    data = client.encoded(
        Publish(topic=b"t", payload=b"1", qos=1, packet_id=1),
        Publish(topic=b"t", payload=b"2", qos=1, packet_id=2),
        PingResp(),
        Publish(topic=b"t", payload=b"3", qos=1, packet_id=3),
    )
    batches: list[PublishBatch] = []
    for batch in client.protocol.receive(data, client.now):
        batches.append(batch)
        client.session.leave()
        client.protocol.accept(batch, 1)
    assert [batch.values for batch in batches] == [[b"1", b"2"]]
    client.session.outgoing.add(Publication(topic=b"t"), [b"unsent"])
    assert client.sent() == client.encoded(PubAck(packet_id=1), Disconnect())
    assert client.protocol.state is ClientState.OVER
    assert list(client.protocol.receive(data, client.now)) == []


def test_acknowledgements_reach_the_publisher_plain_or_with_properties() -> None:
    client = Client().connected()
    outgoing = client.session.outgoing
    outgoing.add(Publication(topic=b"t", qos=1), [b"1", b"2", b"3"])
    outgoing.add(Publication(topic=b"t", qos=2), [b"4", b"5"])
    client.sent()
    spoken = Properties(reason_string="ok")
    client.receive(
        PubAck(packet_id=1),
        PubAck(packet_id=2, reason=Reason.NO_MATCHING_SUBSCRIBERS),
        PubAck(packet_id=3, properties=spoken),
        PubRec(packet_id=4),
        PubRec(packet_id=5, properties=spoken),
    )
    assert client.sent() == client.encoded(PubRel(packet_id=4), PubRel(packet_id=5))
    gone = PubComp(packet_id=5, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND)
    client.receive(PubComp(packet_id=4), gone)
    assert (outgoing.completed, outgoing.idle) == (5, True)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_ends_the_session_when_the_rest_is_answered(qos: int) -> None:
    client = Client().connected()
    client.session.outgoing.add(Publication(topic=b"t", qos=qos), [b"1"])
    client.sent()
    kind = PubAck if qos == 1 else PubRec
    client.receive(kind(packet_id=1, reason=Reason.QUOTA_EXCEEDED))
    assert client.session.outgoing.refusal is Reason.QUOTA_EXCEEDED
    assert (client.sent(), client.protocol.state) == (
        client.encoded(Disconnect()),
        ClientState.OVER,
    )


def test_it_says_goodbye_when_everything_is_acknowledged() -> None:
    client = Client(reconnect=True).connected()
    client.session.outgoing.add(Publication(topic=b"t", qos=1), [b"1"])
    client.session.finish()
    client.sent()
    assert client.protocol.state is ClientState.CONNECTED
    client.receive(PubAck(packet_id=1))
    farewell = Disconnect(properties=Properties(session_expiry_interval=0))
    assert (client.sent(), client.protocol.state) == (client.encoded(farewell), ClientState.OVER)


def test_leaving_before_the_server_has_answered_says_nothing() -> None:
    client = Client()
    client.sent()
    client.session.leave()
    assert (client.sent(), client.protocol.state) == (b"", ClientState.OVER)


@pytest.mark.parametrize("version", [V3, V5])
def test_answered_wishes_are_remembered(version: Version) -> None:
    client = Client(
        version=version,
        subscriptions=WantedSubscriptions(subscriptions=SUBSCRIPTIONS, unsubscriptions=FILTERS),
    ).connected()
    assert client.sent() == client.encoded(
        Unsubscribe(packet_id=1, filters=FILTERS),
        Subscribe(packet_id=2, subscriptions=SUBSCRIPTIONS),
    )
    client.receive(UnsubAck(packet_id=1, reasons=(Reason.SUCCESS,) * 2))
    assert client.session.subscribed is False
    client.receive(
        SubAck(packet_id=2, reasons=(Reason.GRANTED_QOS_1,) * 2),
        SubAck(packet_id=7, reasons=(Reason.NOT_AUTHORIZED,)),
    )
    assert (client.session.subscribed, client.session.requests) == (True, {})


def test_a_refused_subscription_is_named() -> None:
    client = Client(subscriptions=WantedSubscriptions(subscriptions=SUBSCRIPTIONS)).connected()
    with pytest.raises(RefusedError) as raised:
        client.receive(SubAck(packet_id=1, reasons=(Reason.GRANTED_QOS_2, Reason.NOT_AUTHORIZED)))
    assert str(raised.value) == ("the server refused the subscription 'b/#': not authorized (0x87)")


def test_a_refused_unsubscription_is_named() -> None:
    client = Client(subscriptions=WantedSubscriptions(unsubscriptions=FILTERS)).connected()
    with pytest.raises(RefusedError, match="refused the unsubscription 'a': not authorized"):
        client.receive(
            UnsubAck(packet_id=1, reasons=(Reason.NOT_AUTHORIZED, Reason.NO_SUBSCRIPTION_EXISTED))
        )


def test_an_answer_with_another_number_of_reasons_is_an_error() -> None:
    client = Client(subscriptions=WantedSubscriptions(subscriptions=SUBSCRIPTIONS)).connected()
    with pytest.raises(ProtocolError, match="answered 2 filters with 1 reason codes"):
        client.receive(SubAck(packet_id=1, reasons=(Reason.GRANTED_QOS_1,)))


def test_a_server_that_ends_the_connection_tells_why() -> None:
    client = Client().connected()
    with pytest.raises(RefusedError, match=r"ended the connection: server shutting down \(0x8b"):
        client.receive(Disconnect(reason=Reason.SERVER_SHUTTING_DOWN))
    assert client.protocol.state is ClientState.OVER


def test_bytes_that_are_no_packet_are_answered_with_the_reason() -> None:
    client = Client().connected()
    with pytest.raises(MalformedPacketError) as raised:
        list(client.protocol.receive(b"\x36\x00", client.now))
    farewell = Disconnect(reason=Reason.MALFORMED_PACKET)
    assert client.protocol.fail(raised.value) == client.encoded(farewell)
    assert client.protocol.state is ClientState.OVER


@pytest.mark.parametrize(
    ("version", "error", "farewell"),
    [
        (V3, ProtocolError("no"), Disconnect()),
        (V5, PeerError("no", reason=Reason.BANNED), Disconnect(reason=Reason.PROTOCOL_ERROR)),
        (V5, UsageError("no"), Disconnect()),
    ],
)
def test_last_words_suit_version_and_error(
    version: Version, error: Exception, farewell: Disconnect
) -> None:
    client = Client(version=version).connected()
    assert client.protocol.fail(error) == client.encoded(farewell)


def test_a_server_that_does_not_answer_connect_is_given_up() -> None:
    client = Client()
    assert client.protocol.tick_at == client.now + 10
    with pytest.raises(RetryError, match="no answer to CONNECT within 10 s"):
        client.protocol.tick(client.protocol.tick_at)


def tick(client: Client, now: float) -> bytes:
    client.now = now
    client.protocol.tick(now)
    return client.sent()


def test_mqtt_3_1_2_22_a_quiet_client_pings_within_the_keep_alive() -> None:
    client = Client(keep_alive=20).connected()
    client.sent()
    assert client.protocol.tick_at == 1010.0
    assert tick(client, 1010.0) == client.encoded(PingReq())
    client.receive(PingResp())
    assert (tick(client, 1020.0), client.protocol.tick_at) == (client.encoded(PingReq()), 1030.0)


def test_a_busy_client_does_not_ping() -> None:
    client = Client(keep_alive=20).connected()
    client.now = 1005.0
    client.session.outgoing.add(Publication(topic=b"t", qos=1), [b"1"])
    client.sent()
    client.receive(PubAck(packet_id=1))
    assert tick(client, 1010.0) == b""


def test_a_client_that_only_sends_asks_whether_anybody_listens() -> None:
    client = Client(keep_alive=20).connected()
    client.now = 1009.0
    client.session.outgoing.add(Publication(topic=b"t"), [b"1"])
    client.sent()
    assert tick(client, 1010.0) == client.encoded(PingReq())


def test_a_server_that_answers_no_ping_is_given_up() -> None:
    client = Client(keep_alive=20).connected()
    tick(client, 1010.0)
    tick(client, 1020.0)
    with pytest.raises(OutcomeUnknownError, match="no answer to a ping within 20 s"):
        tick(client, 1030.0)


def test_a_server_that_still_sends_is_not_given_up() -> None:
    client = Client(keep_alive=20).connected()
    tick(client, 1010.0)
    tick(client, 1020.0)
    client.receive(Publish(topic=b"t", payload=b"backlog"))
    # Its answer is behind much else; ours must still come in time.
    assert tick(client, 1030.0) == client.encoded(PingReq())


def test_a_client_that_was_held_up_looks_before_it_gives_up() -> None:
    client = Client(keep_alive=20).connected()
    tick(client, 1010.0)
    assert tick(client, 1100.0) == client.encoded(PingReq())
    client.receive(PingResp())
    assert tick(client, 1110.0) == client.encoded(PingReq())


def test_the_server_s_keep_alive_stands_instead_of_ours() -> None:
    client = Client(keep_alive=60).connected(ConnAck(properties=Properties(server_keep_alive=4)))
    assert client.protocol.tick_at == 1002.0


def test_a_keep_alive_of_zero_is_none() -> None:
    assert Client(keep_alive=0).connected().protocol.tick_at == float("inf")
