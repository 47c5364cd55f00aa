"""A client and a server over a link that passes bytes in pieces and may be cut between any two."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from siltstone.client.outgoing import Publication
from siltstone.client.protocol import ClientProtocol, ClientState
from siltstone.client.session import ClientSession
from siltstone.client.settings import ClientSettings
from siltstone.mqtt.packets import Publish
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.wire import Version
from tests.support.model_server import ModelServer

TOPIC = b"plant/oven/temperature"


class Link:
    """Both ends, and the bytes between them."""

    def __init__(self, version: Version, told: Properties) -> None:
        self.server = ModelServer(version, told=told)
        # 3.1.1 comes back to its session only when it keeps it for good.
        keep = version is Version.V3_1_1
        self.settings = ClientSettings(
            client_id="c", version=version, window=8, reconnect=True, keep_session=keep
        )
        self.session = ClientSession(self.settings)
        self.received: list[bytes] = []
        self.up = self.down = b""
        self.sent = 0
        self.queued = 0
        self.connect()

    def connect(self) -> None:
        self.server.connect()
        self.client = ClientProtocol(self.settings, self.session, now=0.0)
        self.up, self.down = b"", b""
        self.resent = False
        self.pump()

    def publish(self, qos: int, count: int) -> None:
        """Let the client publish; payloads tell their QoS and number."""
        payloads = [b"%d:%d" % (qos, self.queued + number) for number in range(count)]
        self.queued += count
        self.session.outgoing.add(Publication(topic=TOPIC, qos=qos), payloads)
        self.pump()

    def send(self, qos: int) -> None:
        """Let the server send, if it has resent all and its packet ids last."""
        if self.client.state is ClientState.CONNECTED and self.resent:
            self.sent += 1
            payload = b"%d:%d" % (qos, self.sent)
            message = Publish(topic=b"t", payload=payload, qos=qos, packet_id=self.sent)
            self.down += self.server.publish(message)

    def move(self, up: int, down: int) -> None:
        """Pass on so many bytes each way."""
        piece, self.up = self.up[:up], self.up[up:]
        self.down += self.server.receive(piece)
        piece, self.down = self.down[:down], self.down[down:]
        for batch in self.client.receive(piece, 0.0):
            self.received += batch.values
            self.client.accept(batch, len(batch.topics))
        if self.client.state is ClientState.CONNECTED and not self.resent:
            self.resent = True
            self.down += self.server.resend()
        self.pump()

    def pump(self) -> None:
        while piece := self.client.take(0.0):
            self.up += piece

    def settle(self) -> None:
        """Let everything arrive."""
        while self.up or self.down or not self.resent:
            self.move(1 << 20, 1 << 20)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([1, 2]), st.integers(1, 12)),
        st.tuples(st.just("send"), st.sampled_from([1, 2]), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 200), st.integers(0, 60)),
        st.tuples(st.just("cut"), st.booleans(), st.just(0)),
    ),
    max_size=60,
)
limits = st.builds(
    Properties,
    receive_maximum=st.one_of(st.none(), st.integers(1, 10)),
    topic_alias_maximum=st.one_of(st.none(), st.integers(1, 3)),
)


def first_ones(payloads: list[bytes], qos: int) -> list[bytes]:
    """Return what came with a QoS, repetitions left out."""
    return list(dict.fromkeys(p for p in payloads if p.startswith(b"%d:" % qos)))


@given(version=st.sampled_from(list(Version)), told=limits, script=steps, keeps=st.booleans())
def test_nothing_published_is_lost_and_qos_2_comes_once_while_the_session_lasts(
    version: Version, told: Properties, script: list[tuple[str, int, int]], keeps: bool
) -> None:
    link = Link(version, told if version is Version.V5 else Properties())
    for action, first, second in script:
        if action == "publish":
            link.publish(first, second)
        elif action == "send":
            link.send(first)
        elif action == "move":
            link.move(first, second)
        else:
            if not keeps and first:
                link.server.forget()
            link.connect()
    link.settle()
    published = [b"%d" % number for number in range(link.queued)]
    delivered = list(dict.fromkeys(link.server.delivered))
    # Each message, and in the order of publishing.
    assert [payload.partition(b":")[2] for payload in delivered] == published
    assert (link.session.outgoing.idle, link.session.outgoing.completed) == (True, link.queued)
    assert len(link.session.ids) == 0
    if keeps:
        counts = Counter(p for p in link.server.delivered if p.startswith(b"2:"))
        assert set(counts.values()) <= {1}
        sent = [p for p in link.received if p.startswith(b"2:")]
        assert sent == first_ones(link.received, 2)
        numbers = sorted(int(p.partition(b":")[2]) for p in set(link.received))
        assert numbers == list(range(1, link.sent + 1))
