"""Bytes that no client should send, in any pieces: they end a connection, never the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from hypothesis import event, given
from hypothesis import strategies as st

from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from siltstone.mqtt.wire import Version
from tests.support.broker_core import V3, V5, Core, Wire
from tests.support.packets import PACKETS_5, as_version_3

# The last word on every connection that ends.
ENDS = {
    "client_refused",
    "client_closed",
    "client_disconnected",
    "connect_timed_out",
}

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("set", "insert", "delete", "cut", "repeat")),
        st.integers(0, 400),
        st.integers(0, 255),
    ),
    max_size=3,
)
CUTS = st.lists(st.integers(0, 2_000), max_size=20)
CONNECTS = st.builds(
    Connect,
    version=st.just(V5),
    client_id=st.sampled_from(("", "fuzz", "other")),
    keep_alive_seconds=st.sampled_from((0, 10)),
)
# Those that do not end a connection by their kind alone.
OF_CLIENTS = (Publish, PubAck, PubRec, PubRel, PubComp, Subscribe, Unsubscribe, PingReq)


def changed(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    """Return the bytes with some of them set, added, taken out, cut off or sent twice."""
    mutable = bytearray(data)
    for change, place, value in changes:
        index = place % (len(mutable) + 1)
        match change:
            case "set":
                mutable[index : index + 1] = bytes([value])
            case "insert":
                mutable.insert(index, value)
            case "delete":
                del mutable[index : index + 1]
            case "cut":
                del mutable[index:]
            case _:
                mutable += mutable[index:]
    return bytes(mutable)


def encoded(version: Version, packet: Packet) -> bytes:
    """Return the bytes of a packet; nothing where this version has none for it."""
    try:
        return encode(version, packet if version is V5 else as_version_3(packet))
    except UsageError:
        return b""


@st.composite
def streams(draw: st.DrawFn) -> tuple[Version, bytes]:
    """Draw what one client sends: packets as they should be, some of them spoilt, and noise."""
    version = draw(st.sampled_from((V3, V5)))
    parts: list[bytes] = []
    if draw(st.integers(0, 9)):
        parts.append(encoded(version, draw(CONNECTS)))
    is_in_role = draw(st.booleans())
    for packet in draw(st.lists(PACKETS_5, max_size=12)):
        if not is_in_role or isinstance(packet, OF_CLIENTS):
            parts += [changed(encoded(version, packet), draw(CHANGES))]
    parts.append(draw(st.binary(max_size=20)))
    return version, b"".join(parts)


@contextmanager
def logged(core: Core) -> Iterator[list[logging.LogRecord]]:
    """Collect what the broker logs."""
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    collector = Collector()
    logger = core.broker.log
    before = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    try:
        yield records
    finally:
        logger.setLevel(before)
        logger.removeHandler(collector)


def check_end(wire: Wire, records: list[logging.LogRecord]) -> None:
    """A connection that ended was told why, where its version can say it, and so was the log."""
    last = next(record for record in reversed(records) if record.getMessage() in ENDS)
    facts: dict[str, object] = getattr(last, "facts", {})
    event(f"{last.getMessage()} {facts.get('reason', '')}")
    assert "reason" in facts or last.getMessage() == "client_disconnected"
    if wire.client.version is not V5 or last.getMessage() == "client_disconnected":
        return
    # The guess before CONNECT was read may be 3.1.1, so the version of the client counts.
    wire.version = V5
    farewell = wire.take()[-1]
    assert isinstance(farewell, Disconnect | ConnAck)
    assert farewell.reason >= 0x80


def feed(wire: Wire, data: bytes, cuts: list[int]) -> None:
    """Send bytes cut at these places; between the pieces the broker does what it has to."""
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for start, stop in pairwise(places):
        wire.send_bytes(data[start:stop])
        wire.core.run()


@given(stream=streams(), cuts=CUTS)
def test_whatever_a_client_sends_ends_at_most_its_own_connection(
    stream: tuple[Version, bytes], cuts: list[int]
) -> None:
    version, data = stream
    core = Core(packet_size_max=400, receive_max=5, topic_alias_max=3)
    onlookers = [core.connect("old", version=V3), core.connect("new", version=V5)]
    for onlooker in onlookers:
        onlooker.subscribe("#", qos=2)
    wire = core.wire(version)
    with logged(core) as records:
        feed(wire, data, cuts)
        core.settle()
        if wire.is_closed:
            check_end(wire, records)
        # Keep alives, wills and sessions come to their end too.
        core.advance(1_000)
        core.advance(1_000_000)
    for onlooker in onlookers:
        # What reached others can be read, and they are served as before.
        onlooker.send(PingReq())
        assert onlooker.take()[-1] == PingResp()
    assert core.broker.clients.keys() >= {"old", "new"}


@given(data=st.binary(max_size=600), cuts=CUTS, is_connected=st.booleans())
def test_noise_ends_at_most_its_own_connection(
    data: bytes, cuts: list[int], is_connected: bool
) -> None:
    core = Core(packet_size_max=400)
    with logged(core) as records:
        wire = core.connect("noise") if is_connected else core.wire()
        feed(wire, data, cuts)
        core.advance(20)
        # Who is not connected by now is closed.
        assert wire.is_closed or is_connected
        if wire.is_closed:
            check_end(wire, records)
