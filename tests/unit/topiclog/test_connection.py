from __future__ import annotations

import pytest

from siltstone.errors import StorageFullError
from siltstone.topiclog.connection import DIRECT_BYTES_MIN
from siltstone.topiclog.hub import HubLimits
from siltstone.topiclog.protocol import (
    HEADER_BYTES,
    Fetch,
    FetchPlace,
    RequestKind,
    ResponseStatus,
    decode_head,
    decode_offset,
    encode_fetch,
    encode_version,
    request,
    send_head,
)
from siltstone.topiclog.tables import table_of_ends
from tests.support.builders import PATH
from tests.support.topiclog import LogWorld
from tests.support.topiclog_wire import Wired, wired

HELLO = request(RequestKind.HELLO, 1, payload=encode_version())
LARGE = DIRECT_BYTES_MIN


def send_of(value: bytes, *, topic: str = "t", request_id: int = 5) -> bytes:
    head = send_head(request_id, topic, table=table_of_ends([value]), data_bytes=len(value))
    return head + value


def reply(server: Wired) -> tuple[RequestKind, ResponseStatus, int, bytes]:
    head = decode_head(server.answer(HEADER_BYTES), 0)
    return head.kind, head.status, head.id, server.answer(head.size - HEADER_BYTES)


def greeted(server: Wired, *topics: str) -> None:
    server.feed(HELLO)
    assert reply(server)[:2] == (RequestKind.HELLO, ResponseStatus.OK)
    for topic in topics:
        server.feed(request(RequestKind.CREATE, 2, topic))
        assert reply(server)[:2] == (RequestKind.CREATE, ResponseStatus.OK)


def stored(server: Wired, topic: str = "t") -> list[bytes]:
    return [bytes(run.data) for run in server.logs.log(topic).read(0, bytes_max=1 << 30)]


@pytest.mark.parametrize("size", [1, LARGE - 1, LARGE, 3 * LARGE + 1])
@pytest.mark.parametrize("step", [1, 11, 70_000, 1 << 30])
def test_a_send_arrives_however_it_is_cut(size: int, step: int) -> None:
    if step == 1 and size > 1:
        return
    with wired() as server:
        greeted(server, "t")
        data = send_of(b"v" * size) + send_of(b"next", request_id=6)
        if step == 11 and size > LARGE:
            step = 1011
        for start in range(0, len(data), step):
            server.feed(data[start : start + step])
        replies = [reply(server), reply(server)]
        assert [(kind, status, at) for kind, status, at, _ in replies] == [
            (RequestKind.SEND, ResponseStatus.OK, 5),
            (RequestKind.SEND, ResponseStatus.OK, 6),
        ]
        assert [decode_offset(memoryview(payload)) for *_, payload in replies] == [0, 1]
        assert b"".join(stored(server)) == b"v" * size + b"next"


def test_a_large_send_is_received_in_the_map_of_its_segment() -> None:
    with wired() as server:
        greeted(server, "t")
        data = send_of(b"v" * 2 * LARGE)
        server.feed(data[:1000])
        server.loop.turn_until(lambda: server.line.is_reading)
        place = server.channel.get_buffer(-1)
        # The map of a file in memory is the file itself.
        assert isinstance(place.obj, bytearray)
        assert place.obj[:4] == b"KASK"
        assert server.hub.reserved_bytes == 2 * LARGE
        server.feed(data[1000:])
        assert reply(server)[:3] == (RequestKind.SEND, ResponseStatus.OK, 5)
        assert server.hub.reserved_bytes == 0


def test_who_goes_within_a_send_leaves_nothing() -> None:
    with wired() as server:
        greeted(server, "t")
        server.feed(send_of(b"v" * 4 * LARGE)[: 2 * LARGE])
        server.channel.connection_lost(None)
        assert server.gone == [server.channel]
        assert (server.hub.reserved_bytes, stored(server)) == (0, [])
        assert server.loop.timers[0].is_cancelled


def test_who_goes_while_the_place_is_made_leaves_nothing() -> None:
    with wired() as server:
        greeted(server, "t")
        # Larger than the segment, so that its shard makes the place.
        server.feed(send_of(b"v" * 4 * LARGE)[:100])
        server.channel.connection_lost(None)
        server.loop.turn_until(lambda: server.hub.reserved_bytes == 0)
        assert stored(server) == []


def test_who_is_too_slow_is_cut_off() -> None:
    with wired() as server:
        greeted(server, "t")
        data = send_of(b"v" * 4 * LARGE)
        server.feed(data[:LARGE])
        server.loop.turn_until(lambda: bool(server.loop.timers))
        server.feed(data[LARGE : LARGE + 20_000])
        server.loop.pass_time()
        assert server.line.end == ""
        server.feed(data[LARGE + 20_000 : LARGE + 20_010])
        server.loop.pass_time()
        assert server.line.end == "aborted"


def test_an_unknown_topic_is_refused_and_its_message_passed_over() -> None:
    with wired() as server:
        greeted(server, "t")
        server.feed(send_of(b"v" * 3 * LARGE, topic="no") + send_of(b"x", request_id=6))
        assert reply(server)[1:3] == (ResponseStatus.NOT_FOUND, 5)
        assert reply(server)[1:3] == (ResponseStatus.OK, 6)
        assert stored(server) == [b"x"]


def test_a_full_disk_is_told_and_the_connection_goes_on() -> None:
    world = LogWorld()
    with wired(world=world) as server:
        greeted(server, "t")
        world.fs.capacity_bytes = 1_300_000
        server.feed(send_of(b"v" * 3_000_000))
        kind, status, _, text = reply(server)
        assert (kind, status) == (RequestKind.SEND, ResponseStatus.FULL)
        assert text.startswith(str(StorageFullError(PATH))[:20].encode())
        assert server.hub.reserved_bytes == 0
        world.fs.capacity_bytes = 1 << 40
        server.feed(send_of(b"x"))
        assert reply(server)[1] is ResponseStatus.OK


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (request(RequestKind.TOPICS, 1), "the first frame must be HELLO"),
        (HELLO + bytes(12), "unknown request or status: kind=0"),
        (
            HELLO + b"\0\0\0\x09\x03\0\0\x05aaaaaaaaa",
            "the name in a frame is longer than the frame: size",
        ),
        (request(RequestKind.HELLO, 1, payload=b"\0\x09"), "version 9 of the protocol"),
        (HELLO + b"\xff\0\0\0\x03\0\0\0aaaa", "the request is too large"),
        (HELLO + b"\xff\0\0\0\x04\0\0\0aaaa\0\0\0\1aaaa", "the SEND is too large"),
        (HELLO + b"\0\0\0\x0d\x04\0\0\0aaaa\0\0\0\1x", "the SEND is too large"),
        (
            HELLO + b"\0\0\0\x12\x04\0\0\1aaaat\0\0\0\1\0\0\0\2x",
            "the sizes of the messages do not add up to the size of the SEND: size_bytes",
        ),
        (
            HELLO + b"\0\0\0\x12\x04\0\0\1aaaat\0\0\0\1\0\0\0\0x",
            "a message of a SEND must have at least one byte",
        ),
        (HELLO + b"\0\0\0\x0d\x03\0\0\1aaaa\xff\0\0\0\0", "not valid UTF-8"),
    ],
)
def test_what_breaks_the_rules_is_told_and_ends_the_connection(data: bytes, reason: str) -> None:
    with wired() as server:
        server.feed(data)
        said = bytes(server.line.out)
        assert reason.encode() in said
        assert server.line.end == "closed"


def test_a_request_longer_than_the_buffer_arrives() -> None:
    with wired() as server:
        greeted(server, "t")
        places = tuple(FetchPlace(topic="t", offset=number) for number in range(4000))
        many = Fetch(places=places * 1, bytes_max=1, wait_ms=0)
        data = request(RequestKind.FETCH, 3, "n" * 60_000, encode_fetch(many))
        assert len(data) > 64 * 1024
        server.feed(data)
        assert reply(server)[:3] == (RequestKind.FETCH, ResponseStatus.OK, 3)


def test_nothing_is_read_while_too_much_waits_for_the_disk() -> None:
    with wired(limits=HubLimits(pending_bytes_max=100)) as server:
        greeted(server, "t")
        server.channel.buffer_updated(put(server, send_of(b"v" * 200)))
        reads = [server.line.is_reading]
        assert reply(server)[1] is ResponseStatus.OK
        reads.append(server.line.is_reading)
        assert reads == [False, True]


def test_who_does_not_read_its_replies_is_asked_no_more() -> None:
    with wired() as server:
        greeted(server)
        server.channel.pause_writing()
        reads = [server.line.is_reading]
        server.channel.buffer_updated(put(server, request(RequestKind.TOPICS, 3)))
        server.loop.turn()
        assert server.line.out == b""
        server.channel.resume_writing()
        assert [*reads, server.line.is_reading] == [False, True]
        assert reply(server)[:3] == (RequestKind.TOPICS, ResponseStatus.OK, 3)


def test_a_channel_that_was_told_to_stop_takes_nothing_and_says_what_is_due() -> None:
    with wired() as server:
        greeted(server)
        server.feed(request(RequestKind.TOPICS, 3))
        server.channel.stop_reading()
        server.channel.close()
        assert (server.line.is_reading, server.line.end) == (False, "closed")
        assert reply(server)[2] == 3
        server.channel.abort()
        assert (server.line.end, server.channel.is_open) == ("aborted", False)
        assert server.channel.eof_received() is False


def put(server: Wired, data: bytes) -> int:
    """Put bytes where the channel reads them, without telling it."""
    view = server.channel.get_buffer(-1)
    view[: len(data)] = data
    return len(data)


def test_a_connection_is_idle_when_nothing_comes_nor_is_answered_for_so_long() -> None:
    with wired() as server:
        server.loop.now = 29.9
        assert not server.channel.is_idle(100.0, 30.0)
        server.loop.now = 30.0
        assert server.channel.is_idle(100.0, 30.0)
        greeted(server, "t")
        server.loop.now = 129.9
        assert not server.channel.is_idle(100.0, 30.0)
        server.loop.now = 130.0
        assert server.channel.is_idle(100.0, 30.0)
        assert not server.channel.is_idle(0, 30.0)


def test_a_connection_that_waits_for_messages_is_not_idle() -> None:
    with wired() as server:
        greeted(server, "t")
        fetch = encode_fetch(
            Fetch(places=(FetchPlace(topic="t", offset=0),), bytes_max=100, wait_ms=1000)
        )
        server.feed(request(RequestKind.FETCH, 3, payload=fetch))
        server.loop.now = 1e6
        assert not server.channel.is_idle(100.0, 30.0)
        server.loop.pass_time()
        assert reply(server)[:2] == (RequestKind.FETCH, ResponseStatus.OK)
        assert not server.channel.is_idle(100.0, 30.0)
        server.loop.now += 100.0
        assert server.channel.is_idle(100.0, 30.0)
