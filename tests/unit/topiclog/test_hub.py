from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, cast

import pytest

from siltstone.errors import (
    CorruptionError,
    OverloadedError,
    PoisonedError,
    ProtocolError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.store.segment.writer import Room
from siltstone.store.writer.ticket import Outcome, Ticket
from siltstone.topiclog import hub as hub_module
from siltstone.topiclog.hub import values_of
from siltstone.topiclog.protocol import (
    HEADER_BYTES,
    Fetch,
    FetchPlace,
    MessageHead,
    RequestKind,
    ResponseStatus,
    decode_batches,
    decode_bounds,
    decode_count,
    decode_head,
    decode_names,
    decode_offset,
    encode_commit,
    encode_fetch,
    encode_name,
    encode_offset,
)
from tests.support.builders import PATH
from tests.support.topiclog import LogWorld, append, offsets_of
from tests.support.topiclog_wire import Wired, wired


class Asker:
    """A peer that keeps what it is sent."""

    def __init__(self) -> None:
        self.said: list[Sequence[bytes | memoryview]] = []

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        self.said.append(parts)

    def last(self) -> tuple[RequestKind, ResponseStatus, int, memoryview]:
        data = b"".join(self.said[-1])
        head = decode_head(data, 0)
        assert head.size == len(data)
        return head.kind, head.status, head.id, memoryview(data)[HEADER_BYTES:]


def ask(
    server: Wired,
    peer: Asker,
    kind: RequestKind,
    topic: str = "",
    payload: bytes = b"",
    *,
    number: int = 7,
) -> None:
    head = MessageHead(size=0, kind=kind, status=ResponseStatus.OK, name_size=0, id=number)
    server.hub.handle(peer, head, topic, memoryview(payload))
    server.loop.turn()


def send(server: Wired, peer: Asker, topic: str, *values: bytes) -> None:
    before = len(peer.said)
    server.hub.send(peer, 9, topic, offsets_of(values), b"".join(values))
    server.loop.turn_until(lambda: len(peer.said) > before)


def fetch(*places: tuple[str, int], bytes_max: int = 1000, wait_ms: int = 0) -> bytes:
    wanted = tuple(FetchPlace(topic=topic, offset=offset) for topic, offset in places)
    return encode_fetch(Fetch(places=wanted, bytes_max=bytes_max, wait_ms=wait_ms))


def batches(peer: Asker) -> list[tuple[int, int, int, bytes]]:
    kind, status, _, payload = peer.last()
    assert (kind, status) == (RequestKind.FETCH, ResponseStatus.OK)
    found = decode_batches(payload)
    return [(head.place, head.first, head.count, bytes(data)) for head, _, data in found]


@pytest.fixture
def peer() -> Asker:
    return Asker()


def test_topics_bounds_and_lengths_are_answered(peer: Asker) -> None:
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        assert peer.last()[:3] == (RequestKind.CREATE, ResponseStatus.OK, 7)
        ask(server, peer, RequestKind.CREATE, "t")
        assert peer.last()[1] is ResponseStatus.EXISTS
        send(server, peer, "t", b"abc", b"de")
        assert decode_offset(peer.last()[3]) == 0
        ask(server, peer, RequestKind.TOPICS)
        assert decode_names(peer.last()[3]) == ["t"]
        ask(server, peer, RequestKind.BOUNDS, "t")
        assert decode_bounds(peer.last()[3]) == range(2)
        ask(server, peer, RequestKind.LENGTH, "t", encode_offset(1))
        assert decode_count(peer.last()[3]) == 2
        ask(server, peer, RequestKind.BOUNDS, "no")
        assert peer.last()[1] is ResponseStatus.NOT_FOUND


def test_commits_are_answered_when_they_are_durable(peer: Asker) -> None:
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        ask(server, peer, RequestKind.COMMIT, "t", encode_commit("c", 0))
        server.loop.turn_until(lambda: len(peer.said) == 2)
        assert peer.last()[:2] == (RequestKind.COMMIT, ResponseStatus.OK)
        ask(server, peer, RequestKind.COMMITTED, "t", encode_name("c"))
        assert decode_offset(peer.last()[3]) == 0
        ask(server, peer, RequestKind.COMMIT, "t", encode_commit("c", 5))
        assert peer.last()[1] is ResponseStatus.INVALID


def test_a_fetch_gets_what_stands_in_the_map_and_no_copy_of_it(peer: Asker) -> None:
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        send(server, peer, "t", b"a", b"bb", b"ccc")
        ask(server, peer, RequestKind.FETCH, payload=fetch(("t", 1)))
        assert batches(peer) == [(0, 1, 2, b"bbccc")]
        data = peer.said[-1][-1]
        assert isinstance(data, memoryview)
        assert isinstance(data.obj, bytearray)
        assert data.obj[:4] == b"KASK"


def test_of_several_topics_each_gets_its_part(peer: Asker) -> None:
    with wired() as server:
        for topic in ("1", "2", "3"):
            ask(server, peer, RequestKind.CREATE, topic)
        for topic in ("1", "3"):
            send(server, peer, topic, *[topic.encode() * 10] * 9)
        ask(
            server,
            peer,
            RequestKind.FETCH,
            payload=fetch(("3", 0), ("2", 0), ("1", 4), bytes_max=90),
        )
        assert batches(peer) == [(0, 0, 3, b"3" * 30), (2, 4, 3, b"1" * 30)]
        ask(server, peer, RequestKind.FETCH, payload=fetch(("1", 0), ("3", 0), bytes_max=1))
        assert batches(peer) == [(0, 0, 1, b"1" * 10)]


def test_an_offset_that_is_not_there_is_told_where_to_go_on(peer: Asker) -> None:
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        send(server, peer, "t", b"a")
        ask(server, peer, RequestKind.FETCH, payload=fetch(("t", 50), wait_ms=1000))
        assert batches(peer) == [(0, 1, 0, b"")]
        ask(server, peer, RequestKind.FETCH, payload=fetch(("t", 1)))
        assert batches(peer) == []
        ask(server, peer, RequestKind.FETCH, payload=fetch(("no", 1)))
        assert peer.last()[1] is ResponseStatus.NOT_FOUND


def test_a_fetch_waits_for_a_message_of_any_of_its_topics_or_its_time(peer: Asker) -> None:
    with wired() as server:
        for topic in ("1", "2"):
            ask(server, peer, RequestKind.CREATE, topic)
        waiting = Asker()
        ask(server, waiting, RequestKind.FETCH, payload=fetch(("1", 0), ("2", 0), wait_ms=2500))
        assert waiting.said == []
        assert [timer.seconds for timer in server.loop.timers] == [2.5]
        send(server, peer, "2", b"x")
        assert batches(waiting) == [(1, 0, 1, b"x")]
        assert server.loop.timers[0].is_cancelled
        ask(server, waiting, RequestKind.FETCH, payload=fetch(("1", 0), wait_ms=10))
        server.loop.pass_time()
        assert batches(waiting) == []
        assert len(waiting.said) == 2


def test_a_peer_that_is_gone_waits_for_nothing(peer: Asker) -> None:
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        waiting = Asker()
        ask(server, waiting, RequestKind.FETCH, payload=fetch(("t", 0), wait_ms=10))
        server.hub.forget(waiting)
        send(server, peer, "t", b"x")
        assert waiting.said == []


def test_so_many_may_wait_and_no_more(peer: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "WAITING_MAX", 1)
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        ask(server, peer, RequestKind.FETCH, payload=fetch(("t", 0), wait_ms=10))
        ask(server, peer, RequestKind.FETCH, payload=fetch(("t", 0), wait_ms=10))
        assert peer.last()[1] is ResponseStatus.OVERLOADED


def test_messages_are_given_on_where_they_are_wanted(peer: Asker) -> None:
    class Press:
        def __init__(self) -> None:
            self.given: list[tuple[str, list[bytes]]] = []

        def rule(self, topic: str) -> object | None:
            return self if topic == "wanted" else None

        def publish(self, topic: str, values: list[bytes]) -> None:
            self.given.append((topic, values))

    press = Press()
    with wired(publisher=press) as server:
        for topic in ("wanted", "other"):
            ask(server, peer, RequestKind.CREATE, topic)
            send(server, peer, topic, b"a", b"bb")
    assert press.given == [("wanted", [b"a", b"bb"])]


def test_a_send_by_the_common_way_is_a_mistake(peer: Asker) -> None:
    with (
        wired() as server,
        pytest.raises(
            ProtocolError, match="internal error: expected a SEND frame on this connection"
        ),
    ):
        ask(server, peer, RequestKind.SEND)


def test_messages_are_told_apart_by_their_offsets() -> None:
    assert values_of(offsets_of([b"a", b"bb"]), memoryview(b"abb")) == [b"a", b"bb"]


class StubbornLog:
    """A log that gives places and stores what is put there as it is told to."""

    topic = "t"
    is_open = True

    def __init__(self, refusal: SiltstoneError | None = None) -> None:
        self.refusal = refusal
        self.given_up: list[Room] = []
        self.tickets: list[Ticket] = []

    def take_room(self, size: int, rows: int, then: Callable[[Room | Exception], None]) -> None:
        if self.refusal is not None:
            raise self.refusal
        then(Room(0, size, memoryview(bytearray(size))))

    def append_room(self, offsets: bytes, room: Room, *, timeout: float | None = None) -> Ticket:
        if self.refusal is not None:
            raise self.refusal
        self.tickets.append(Ticket(len(offsets) // 4 - 1, 1, waits=True))
        return self.tickets[-1]

    def give_up_room(self, room: Room) -> None:
        self.given_up.append(room)


def reserved(server: Wired, log: StubbornLog, size: int) -> Room | Exception:
    found: list[Room | Exception] = []
    server.hub.reserve(cast("Any", log), size, 1, found.append)
    (place,) = found
    return place


def held(server: Wired) -> tuple[int, int, int]:
    """Return what a hub counts of sends that are on their way."""
    return server.hub.reserved_bytes, server.hub.storing, server.hub.pending_bytes


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OverloadedError("x"), ResponseStatus.OVERLOADED),
        (StorageFullError(PurePath("/d")), ResponseStatus.FULL),
        (PoisonedError("x"), ResponseStatus.UNAVAILABLE),
    ],
)
def test_a_large_send_that_is_refused_or_fails_gives_back_all_that_it_held(
    peer: Asker, error: SiltstoneError, status: ResponseStatus
) -> None:
    log = StubbornLog()
    with wired() as server:
        for late in (False, True):
            log.refusal = None
            room = reserved(server, log, 100)
            assert isinstance(room, Room)
            assert held(server) == (100, 0, 0)
            log.refusal = None if late else error
            server.hub.commit_room(peer, 7, cast("Any", log), offsets_of([bytes(100)]), room)
            if late:
                assert held(server) == (100, 1, 0)
                log.tickets[0].resolve(error, None)
                server.loop.turn()
            assert held(server) == (0, 0, 0)
            assert peer.last()[:3] == (RequestKind.SEND, status, 7)
            assert log.given_up == [room]
            log.given_up.clear()
    assert len(peer.said) == 2


def test_a_large_send_that_is_stored_keeps_its_place_and_counts_no_more(peer: Asker) -> None:
    log = StubbornLog()
    with wired() as server:
        room = reserved(server, log, 100)
        assert isinstance(room, Room)
        server.hub.commit_room(peer, 7, cast("Any", log), offsets_of([bytes(100)]), room)
        outcome = Outcome(
            duplicate=False,
            count=1,
            timestamp_us=1,
            frame_serial=41,
            frame_timestamp_us=1,
            frame_places=None,
        )
        log.tickets[0].resolve(outcome, None)
        server.loop.turn()
        assert (held(server), log.given_up) == ((0, 0, 0), [])
        assert peer.last()[1] is ResponseStatus.OK
        assert decode_offset(peer.last()[3]) == 41


def test_a_place_that_was_not_to_be_had_is_given_back_like_any_other() -> None:
    log = StubbornLog(StorageFullError(PurePath("/d")))
    with wired() as server:
        assert reserved(server, log, 100) is log.refusal
        assert held(server) == (100, 0, 0)
        server.hub.give_up(cast("Any", log), 100, None)
        assert (held(server), log.given_up) == ((0, 0, 0), [])


def test_too_much_on_its_way_is_refused_until_something_is_given_back() -> None:
    log = StubbornLog()
    with wired() as server:
        limit = server.hub.limits.reserved_bytes_max
        room = reserved(server, log, limit)
        assert isinstance(room, Room)
        assert isinstance(reserved(server, log, 1), OverloadedError)
        server.hub.give_up(cast("Any", log), 1, None)
        server.hub.give_up(cast("Any", log), limit, room)
        assert (held(server), log.given_up) == ((0, 0, 0), [room])
        assert isinstance(reserved(server, log, 1), Room)


def test_a_small_send_that_fails_counts_no_more_and_lets_readers_go_on(peer: Asker) -> None:
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        resumed: list[str] = []
        server.hub.when_room(lambda: resumed.append("read on"))
        with patched_append(server, PoisonedError("x")):
            send(server, peer, "t", b"lost")
        assert peer.last()[1] is ResponseStatus.UNAVAILABLE
        assert (held(server), resumed) == ((0, 0, 0), ["read on"])


@contextmanager
def patched_append(server: Wired, error: SiltstoneError) -> Iterator[None]:
    """Let every append to the topic fail."""
    log = server.hub.find("t")

    def refuse(*_: object, **__: object) -> Ticket:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(log), "append", refuse)
        yield


@pytest.mark.parametrize("end", ["a message", "its time", "its peer"])
def test_the_place_of_a_fetch_that_waits_is_free_again(
    peer: Asker, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(hub_module, "WAITING_MAX", 1)
    with wired() as server:
        ask(server, peer, RequestKind.CREATE, "t")
        for number in range(3):
            waiting = Asker()
            ask(server, waiting, RequestKind.FETCH, payload=fetch(("t", number), wait_ms=10))
            assert waiting.said == []
            refused = Asker()
            ask(server, refused, RequestKind.FETCH, payload=fetch(("t", 9), ("t", 8), wait_ms=10))
            match end:
                case "a message":
                    send(server, peer, "t", b"x")
                case "its time":
                    server.loop.pass_time()
                case _:
                    server.hub.forget(waiting)
            if end != "a message":
                send(server, peer, "t", b"x")
            assert len(waiting.said) == (end != "its peer")


# Some more than are opened from the start.
COLD = 70


def world_of_cold_topics() -> LogWorld:
    world = LogWorld()
    with world.blocks() as logs:
        made = [logs.add(f"t/{number}") for number in range(COLD)]
        append(made[-1], b"stored")
    return world


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (RequestKind.BOUNDS, b""),
        (RequestKind.LENGTH, encode_offset(0)),
        (RequestKind.FETCH, fetch(("t/69", 0))),
        (RequestKind.COMMIT, encode_commit("me", 1)),
        (RequestKind.COMMITTED, encode_name("me")),
    ],
)
def test_a_topic_is_recovered_off_the_loop_when_it_is_first_asked_for(
    peer: Asker, kind: RequestKind, payload: bytes
) -> None:
    with wired(world=world_of_cold_topics()) as server:
        ask(server, peer, kind, "" if kind is RequestKind.FETCH else "t/69", payload)
        assert (peer.said, server.logs.log("t/69").is_open) == ([], False)
        # Others are answered meanwhile.
        ask(server, peer, RequestKind.BOUNDS, "t/0", number=8)
        assert peer.last()[:3] == (RequestKind.BOUNDS, ResponseStatus.OK, 8)
        assert server.loop.open_all() == 1
        server.loop.turn_until(lambda: len(peer.said) == 2)
        status = ResponseStatus.NOT_FOUND if kind is RequestKind.COMMITTED else ResponseStatus.OK
        assert peer.last()[:3] == (kind, status, 7)


def test_sends_to_a_topic_that_is_being_recovered_keep_their_order(peer: Asker) -> None:
    with wired(world=world_of_cold_topics()) as server:
        rooms: list[Room | Exception] = []
        for number, value in enumerate((b"a", b"", b"b")):
            server.hub.send(peer, number, "t/69", offsets_of([value]), value)
        server.hub.reserve(server.logs.log("t/69"), 10, 1, rooms.append)
        server.loop.turn()
        assert (peer.said, rooms, held(server)) == ([], [], (10, 2, 2))
        assert server.loop.open_all() == 1
        server.loop.turn_until(lambda: len(peer.said) == 3)
        assert isinstance(rooms[0], Room)
        server.hub.give_up(server.logs.log("t/69"), 10, rooms[0])
        assert held(server) == (0, 0, 0)
        ask(server, peer, RequestKind.FETCH, payload=fetch(("t/69", 0)))
        assert b"".join(data for *_, data in batches(peer)) == b"storedab"


def test_a_fetch_waits_for_all_of_its_topics(peer: Asker) -> None:
    with wired(world=world_of_cold_topics()) as server:
        ask(server, peer, RequestKind.FETCH, payload=fetch(("t/68", 0), ("t/0", 0), ("t/69", 0)))
        assert (server.loop.open_all(), len(peer.said)) == (1, 0)
        assert (server.loop.open_all(), len(peer.said)) == (1, 1)
        assert batches(peer) == [(2, 0, 1, b"stored")]


def test_a_topic_that_cannot_be_recovered_refuses_all_that_waits_for_it(peer: Asker) -> None:
    world = world_of_cold_topics()
    segment = PATH / "data" / "topics" / "69" / "1" / f"{0:020d}.seg"
    with world.fs.open(segment, writable=True) as file:
        file.write_at(4200, b"\xff" * 16)
    with wired(world=world) as server:
        rooms: list[Room | Exception] = []
        server.hub.reserve(server.logs.log("t/69"), 10, 1, rooms.append)
        server.hub.send(peer, 1, "t/69", offsets_of([b"a"]), b"a")
        ask(server, peer, RequestKind.BOUNDS, "t/69")
        assert server.loop.open_all() == 1
        kinds = [decode_head(b"".join(said), 0) for said in peer.said]
        assert [(head.kind, head.status, head.id) for head in kinds] == [
            (RequestKind.SEND, ResponseStatus.UNAVAILABLE, 1),
            (RequestKind.BOUNDS, ResponseStatus.UNAVAILABLE, 7),
        ]
        assert isinstance(rooms[0], CorruptionError)
        server.hub.give_up(server.logs.log("t/69"), 10, None)
        assert held(server) == (0, 0, 0)
