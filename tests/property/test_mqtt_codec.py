from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given, reject
from hypothesis import strategies as st

from siltstone.errors import PeerError, UsageError
from siltstone.mqtt.decode import decode, protocol_version
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Packet
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.packets import EXAMPLES, PACKETS_5, V3, V5, as_version_3, decode_whole

BODIES = st.binary(max_size=40)
FIRST_BYTES = st.integers(0, 255)


@given(PACKETS_5)
def test_a_packet_of_mqtt_5_goes_to_bytes_and_back(packet: Packet) -> None:
    assert decode_whole(V5, encode(V5, packet)) == packet


@given(PACKETS_5)
def test_what_3_1_1_can_say_of_a_packet_goes_to_bytes_and_back(packet: Packet) -> None:
    less = as_version_3(packet)
    try:
        data = encode(V3, less)
    except UsageError:
        # What 3.1.1 cannot say at all is the subject of the unit tests.
        reject()
    assert decode_whole(V3, data) == less


def is_read_or_refused(read: Callable[[], object]) -> bool:
    """Tell whether bytes give something, or an error of the peer with a reason to send."""
    try:
        return read() is not None
    except PeerError as exc:
        return exc.reason >= Reason.UNSPECIFIED_ERROR


@given(st.sampled_from(Version), FIRST_BYTES, BODIES)
def test_any_bytes_are_a_packet_or_an_error_of_the_peer(
    version: Version, first: int, body: bytes
) -> None:
    assert is_read_or_refused(lambda: decode(version, first, body))
    assert is_read_or_refused(lambda: protocol_version(body))


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Version, bytes]:
    """Draw the bytes of a packet with some changed, put in, or left out."""
    version, packet, _ = draw(st.sampled_from(EXAMPLES))
    if draw(st.booleans()):
        version, packet = V5, draw(PACKETS_5)
    data = bytearray(encode(version, packet))
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, max(len(data) - 1, 0)))
        data[index : index + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return version, bytes(data)


@given(mutated())
@example((V5, b"\x30\x00"))
def test_a_packet_with_changed_bytes_is_a_packet_or_an_error_of_the_peer(
    case: tuple[Version, bytes],
) -> None:
    version, data = case
    assert is_read_or_refused(lambda: decode_whole(version, data))
    if data:
        assert is_read_or_refused(lambda: decode(version, data[0], data[2:]))


@given(mutated())
def test_what_is_read_is_written_so_that_it_reads_the_same(case: tuple[Version, bytes]) -> None:
    version, data = case
    try:
        packet = decode_whole(version, data)
    except PeerError:
        return
    assert decode_whole(version, encode(version, packet)) == packet
