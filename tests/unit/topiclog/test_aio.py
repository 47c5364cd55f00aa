from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from siltstone.errors import (
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    ProtocolError,
    RetryError,
    UsageError,
)
from siltstone.topiclog.aio import AsyncTopicLogClient
from siltstone.topiclog.protocol import (
    RequestKind,
    ResponseStatus,
    decode_head,
    encode_bounds,
    encode_hello,
    encode_names,
    encode_offset,
    refusal,
    reply,
)


class Scripted:
    """A transport whose server answers by a table, in the order that it is told."""

    def __init__(self, answers: dict[RequestKind, Callable[[int], bytes]]) -> None:
        self.answers = answers
        self.asked: list[RequestKind] = []
        self.held: list[bytes] = []
        self.hold = False
        self.is_aborted = False
        self.is_closed = False
        self.protocol: Any = None

    def writelines(self, parts: Sequence[bytes]) -> None:
        head = decode_head(b"".join(parts), 0)
        self.asked.append(head.kind)
        self.held.append(self.answers[head.kind](head.id))
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        held, self.held = self.held, []
        for data in held:
            self.say(data)

    def say(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            view = self.protocol.get_buffer(-1)
            count = min(len(view), len(left), 7)
            view[:count] = left[:count]
            left = left[count:]
            self.protocol.buffer_updated(count)

    def close(self) -> None:
        self.is_closed = True
        self.protocol.connection_lost(None)

    def abort(self) -> None:
        self.is_aborted = True
        self.close()


ANSWERS: dict[RequestKind, Callable[[int], bytes]] = {
    RequestKind.HELLO: lambda number: reply(
        RequestKind.HELLO, number, encode_hello(body_bytes_max=1 << 20)
    ),
    RequestKind.CREATE: lambda number: reply(RequestKind.CREATE, number),
    RequestKind.TOPICS: lambda number: reply(RequestKind.TOPICS, number, encode_names(["t"])),
    RequestKind.BOUNDS: lambda number: reply(RequestKind.BOUNDS, number, encode_bounds(range(3))),
    RequestKind.SEND: lambda number: reply(RequestKind.SEND, number, encode_offset(number)),
    RequestKind.COMMITTED: lambda number: refusal(
        RequestKind.COMMITTED, number, ResponseStatus.NOT_FOUND, "nothing"
    ),
    RequestKind.FETCH: lambda number: reply(RequestKind.FETCH, number, b"\0\0"),
    RequestKind.COMMIT: lambda number: reply(RequestKind.COMMIT, number),
}


def put_in_place(line: Scripted) -> None:
    """Have the running loop connect to this transport."""

    async def connect(make: Callable[[], Any], *_: object) -> tuple[object, object]:
        line.protocol = make()
        line.protocol.connection_made(line)
        return line, line.protocol

    asyncio.get_running_loop().create_connection = connect  # type: ignore[method-assign,assignment]


def run(talk: Callable[[AsyncTopicLogClient, Scripted], Awaitable[None]]) -> None:
    async def main() -> None:
        line = Scripted(ANSWERS)
        put_in_place(line)
        client = await AsyncTopicLogClient.connect()
        await talk(client, line)

    asyncio.run(main())


def test_replies_find_their_requests_in_whatever_order_they_come() -> None:
    async def talk(client: AsyncTopicLogClient, line: Scripted) -> None:
        line.hold = True
        sends = [asyncio.ensure_future(client.send("t", b"x")) for _ in range(3)]
        topics = asyncio.ensure_future(client.topics())
        while len(line.held) < 4:
            await turn()
        line.held.reverse()
        line.release()
        assert await topics == ["t"]
        offsets = [await sent for sent in sends]
        assert offsets == sorted(set(offsets))

    run(talk)


async def turn() -> None:
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(passed.set_result, None)
    await passed


def test_a_subscription_asks_for_ends_and_polls() -> None:
    async def talk(client: AsyncTopicLogClient, line: Scripted) -> None:
        async with client:
            await client.create_topic("t")
            assert await client.subscribe(["t", "no"]) == 1
            with pytest.raises(UsageError):
                await client.subscribe(["t"])
            assert client.position("t") == 3
            assert await client.poll(1.0) is None
            assert await client.poll_batch() is None
            client.seek("t", 0)
            await client.commit("c", "t", 1)
            with pytest.raises(NotFoundError, match="nothing"):
                await client.committed("c", "t")
            client.unsubscribe()
            with pytest.raises(UsageError):
                client.position("t")
        assert line.asked.count(RequestKind.FETCH) == 2

    run(talk)


def test_a_lost_connection_ends_all_that_waits() -> None:
    async def talk(client: AsyncTopicLogClient, line: Scripted) -> None:
        line.hold = True
        waiting = [
            asyncio.ensure_future(client.send("t", b"x")),
            asyncio.ensure_future(client.topics()),
        ]
        while len(line.held) < 2:
            await turn()
        line.protocol.connection_lost(None)
        with pytest.raises(OutcomeUnknownError):
            await waiting[0]
        with pytest.raises(RetryError):
            await waiting[1]
        with pytest.raises(RetryError, match="the connection is closed"):
            await client.topics()
        client.close()

    run(talk)


def test_a_server_that_talks_nonsense_is_left() -> None:
    async def talk(client: AsyncTopicLogClient, line: Scripted) -> None:
        line.hold = True
        waiting = asyncio.ensure_future(client.topics())
        while not line.held:
            await turn()
        line.say(bytes(12))
        with pytest.raises(ProtocolError):
            await waiting
        assert line.is_aborted

    run(talk)


def test_what_breaks_the_rules_is_told_to_all_that_wait() -> None:
    async def talk(client: AsyncTopicLogClient, line: Scripted) -> None:
        line.hold = True
        waiting = asyncio.ensure_future(client.topics())
        while not line.held:
            await turn()
        line.say(refusal(RequestKind.HELLO, 0, ResponseStatus.MALFORMED, "not so"))
        with pytest.raises(ProtocolError, match="not so"):
            await waiting

    run(talk)


def test_a_reply_that_nobody_waits_for_any_more_is_let_go() -> None:
    async def talk(client: AsyncTopicLogClient, line: Scripted) -> None:
        line.say(reply(RequestKind.TOPICS, 999, encode_names([])))
        assert await client.topics() == ["t"]

    run(talk)


def test_writing_waits_while_the_connection_is_full() -> None:
    async def talk(client: AsyncTopicLogClient, line: Scripted) -> None:
        line.protocol.pause_writing()
        asked = asyncio.ensure_future(client.topics())
        await turn()
        assert line.asked == [RequestKind.HELLO]
        line.protocol.resume_writing()
        assert await asked == ["t"]

    run(talk)


@pytest.mark.parametrize("host", ["a..b", "a\udcff", "x" * 70])
def test_a_host_name_that_cannot_be_encoded_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as refused:
        asyncio.run(AsyncTopicLogClient.connect(host, 1))
    assert str(refused.value) == f"invalid host name: {host!r}"


def test_nobody_there_is_told_with_the_address() -> None:
    async def main() -> None:
        async def refuse(*_: object) -> None:
            raise ConnectionRefusedError("refused")

        asyncio.get_running_loop().create_connection = cast("Any", refuse)  # type: ignore[method-assign]
        with pytest.raises(RetryError, match="topic logs at h:1: refused"):
            await AsyncTopicLogClient.connect("h", 1)

    asyncio.run(main())


def test_a_server_that_greets_with_a_refusal_is_left() -> None:
    async def main() -> None:
        line = Scripted(
            {
                RequestKind.HELLO: lambda number: refusal(
                    RequestKind.HELLO, number, ResponseStatus.OVERLOADED, "not now"
                )
            }
        )
        put_in_place(line)
        with pytest.raises(OverloadedError, match="not now"):
            await AsyncTopicLogClient.connect()
        assert line.is_closed

    asyncio.run(main())
