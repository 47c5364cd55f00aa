from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from siltstone.errors import PeerError
from siltstone.mqtt.decode import decode
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Packet, Publish
from siltstone.mqtt.properties import Properties, encode_properties
from siltstone.mqtt.publish import encode_publishes
from siltstone.mqtt.splitter import Event, PacketSplitter
from siltstone.mqtt.wire import PacketReader, PacketType, Version, Writer, encode_variable
from tests.support.packets import (
    EXAMPLES,
    PACKETS_5,
    TOPICS,
    V3,
    V5,
    Ack,
    Message,
    Raw,
    Refused,
    flat,
    properties_of,
)

SIZE_MAX = 4_000
ALIAS_MAX = 65_535

CUTS = st.lists(st.integers(0, 4_000), max_size=30)


def begun(version: Version) -> PacketSplitter:
    splitter = PacketSplitter(SIZE_MAX, from_server=True)
    splitter.begin(version, ALIAS_MAX)
    return splitter


def fed_in_pieces(splitter: PacketSplitter, data: bytes, cuts: list[int]) -> list[Event]:
    """Feed the bytes cut at these places."""
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    return [event for start, stop in pairwise(places) for event in splitter.feed(data[start:stop])]


def split_plainly(version: Version, data: bytes) -> list[Message | Ack | Raw | Refused]:
    """Split the bytes of whole packets with the slow decoder: what the splitter must agree with."""
    items: list[Message | Ack | Raw | Refused] = []
    aliases: dict[int, bytes] = {}
    reader = PacketReader(data)
    while reader.remaining:
        first = reader.byte()
        items.append(_item(version, first, reader.take(reader.variable()), aliases))
        if isinstance(items[-1], Refused):
            break
    return items


def _item(
    version: Version, first: int, body: bytes, aliases: dict[int, bytes]
) -> Message | Ack | Raw | Refused:
    if first >> 4 == 3:
        try:
            packet = decode(version, first, body)
        except PeerError as exc:
            return Refused(type(exc).__name__, exc.reason)
        assert isinstance(packet, Publish)
        return _message(packet, aliases)
    plain = len(body) == 2 or (len(body) == 3 and version is V5 and body[2] == 0)
    if first in {0x40, 0x50, 0x62, 0x70} and plain and any(body[:2]):
        return Ack(first, int.from_bytes(body[:2]))
    return Raw(first, body)


def _message(packet: Publish, aliases: dict[int, bytes]) -> Message | Refused:
    topic, alias = packet.topic, packet.properties.topic_alias
    if alias is not None:
        if not topic and alias not in aliases:
            return Refused("ProtocolError", 0x82)
        topic = aliases[alias] = topic or aliases[alias]
    # Encoded packets list their properties by identifier, so that encoding again gives the same.
    writer = Writer()
    encode_properties(writer, replace(packet.properties, topic_alias=None), PacketType.PUBLISH)
    reader = PacketReader(bytes(writer.data))
    expiry = packet.properties.message_expiry_interval
    return Message(
        topic,
        packet.payload,
        packet.qos | packet.retain << 2 | packet.dup << 3,
        packet.packet_id,
        reader.take(reader.variable()),
        -1 if expiry is None else expiry,
    )


def assert_agreement(version: Version, first: int, body: bytes) -> None:
    """Check that splitter and decoder take this message, or refuse it for the same reason."""
    expected = _item(version, first, body, {})
    [item] = flat(begun(version).feed(bytes([first]) + encode_variable(len(body)) + body))
    if isinstance(expected, Message) and isinstance(item, Message):
        # Properties out of order are taken, but the decoder does not say which order they had.
        expected = expected._replace(properties=item.properties)
    assert item == expected


STREAMS_5 = st.lists(PACKETS_5, max_size=8).map(
    lambda packets: b"".join(encode(V5, packet) for packet in packets)
)
STREAMS_3 = st.lists(
    st.sampled_from([example.data for example in EXAMPLES if example.version is V3]), max_size=12
).map(b"".join)
STREAMS = st.tuples(st.just(V5), STREAMS_5) | st.tuples(st.just(V3), STREAMS_3)


@st.composite
def broken_streams(draw: st.DrawFn) -> tuple[Version, bytes]:
    """Draw streams with bytes changed, put in, or left out; or any bytes at all."""
    version, data = draw(STREAMS)
    if draw(st.booleans()):
        return version, draw(st.binary(max_size=60))
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        index = draw(st.integers(0, len(changed)))
        changed[index : index + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return version, bytes(changed)


@given(STREAMS)
def test_the_splitter_reads_what_the_decoder_reads(stream: tuple[Version, bytes]) -> None:
    version, data = stream
    splitter = begun(version)
    splitter.packet_size_max = 1 << 28
    assert flat(splitter.feed(data)) == split_plainly(version, data)


@given(STREAMS | broken_streams(), CUTS, st.integers(5, 100) | st.just(SIZE_MAX))
def test_any_split_of_the_bytes_gives_the_same(
    stream: tuple[Version, bytes], cuts: list[int], large_bytes: int
) -> None:
    version, data = stream
    whole = flat(begun(version).feed(data))
    splitter = begun(version)
    splitter.large_bytes = large_bytes
    assert flat(fed_in_pieces(splitter, data, cuts)) == whole


@given(broken_streams(), CUTS, st.booleans())
def test_broken_bytes_end_in_at_most_one_error_and_it_is_the_last_event(
    stream: tuple[Version, bytes], cuts: list[int], fresh: bool
) -> None:
    version, data = stream
    splitter = PacketSplitter(SIZE_MAX) if fresh else begun(version)
    items = flat(fed_in_pieces(splitter, data, cuts))
    assert [item for item in items[:-1] if isinstance(item, Refused)] == []


@given(
    st.sampled_from(Version),
    st.integers(0x30, 0x3F),
    st.binary(max_size=30) | TOPICS.map(lambda topic: len(topic).to_bytes(2) + topic + b"\0\1\0"),
)
def test_the_splitter_refuses_exactly_what_the_decoder_refuses(
    version: Version, first: int, body: bytes
) -> None:
    assert_agreement(version, first, body)


@given(
    TOPICS,
    properties_of(PacketType.PUBLISH),
    st.integers(0, 60),
    st.binary(max_size=2),
    st.integers(0, 2),
)
def test_changed_properties_are_refused_as_the_decoder_refuses_them(
    topic: bytes, properties: Properties, index: int, new: bytes, old: int
) -> None:
    data = encode(V5, Publish(topic=topic, payload=b"", properties=properties))
    body = bytearray(data[2 if data[1] < 0x80 else 3 :])
    place = min(2 + len(topic) + index, len(body))
    body[place : place + old] = new
    assert_agreement(V5, 0x30, bytes(body))


@given(st.lists(PACKETS_5, max_size=8), st.sampled_from(Version))
def test_a_batch_is_written_as_it_was_read(packets: list[Packet], version: Version) -> None:
    publishes = [
        packet
        for packet in packets
        if isinstance(packet, Publish) and packet.properties.topic_alias is None
    ]
    data = b"".join(encode(version, packet) for packet in publishes)
    splitter = begun(version)
    splitter.packet_size_max = 1 << 28
    rows = [item for item in flat(splitter.feed(data)) if isinstance(item, Message)]
    again = encode_publishes(
        version,
        [row.topic for row in rows],
        [row.payload for row in rows],
        [row.flags for row in rows],
        [row.packet_id for row in rows],
        [row.properties for row in rows],
    )
    assert again == data
    assert len(rows) == len(publishes)
