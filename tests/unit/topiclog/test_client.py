from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from siltstone.errors import (
    ExistsError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    RetryError,
    UsageError,
)
from siltstone.topiclog.client import TopicLogClient, lost
from siltstone.topiclog.consumer import Message
from siltstone.topiclog.protocol import RequestKind, ResponseStatus, encode_names, refusal, reply
from tests.support.topiclog_wire import WiredSocket, wired


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[WiredSocket]:
    with wired() as server:
        wire = WiredSocket(server)
        monkeypatch.setattr(socket, "create_connection", lambda *_: wire)
        yield wire


@pytest.fixture
def client(line: WiredSocket) -> Iterator[TopicLogClient]:
    with TopicLogClient() as connected:
        yield connected
    assert line.is_closed


def test_everything_that_can_be_asked_is_answered(client: TopicLogClient) -> None:
    client.create_topic("t")
    with pytest.raises(ExistsError):
        client.create_topic("t")
    assert client.topics() == ["t"]
    assert client.subscribe(["t", "t", "no"]) == 1
    assert client.send("t", b"a") == 0
    assert client.send_many("t", [b"b", b"", b"c"]) == range(1, 3)
    assert client.send("t", b"") == 3
    assert (client.end_offset("t"), client.bounds("t")) == (3, range(3))
    assert [client.message_length("t", offset) for offset in (0, 9)] == [1, 0]
    assert client.poll() == Message("t", 0, b"a")
    batch = client.poll_batch()
    assert batch is not None
    assert (batch.first_offset, batch.values()) == (1, [b"b", b"c"])
    assert client.poll() is None
    client.seek("t", 1)
    assert client.position("t") == 1
    client.commit("c", "t", 2)
    assert client.committed("c", "t") == 2
    client.unsubscribe()


def test_a_large_message_goes_as_it_is_and_comes_back(client: TopicLogClient) -> None:
    client.create_topic("t")
    values = [b"%d" % number * 150_000 for number in range(7)]
    assert client.send_many("t", values) == range(7)
    client.subscribe(["t"])
    client.seek("t", 0)
    assert [message.value for message in iter(client.poll, None)] == values


def test_a_refusal_is_raised_and_the_connection_goes_on(client: TopicLogClient) -> None:
    with pytest.raises(NotFoundError, match="'no'"):
        client.send("no", b"x" * 200_000)
    assert client.topics() == []


def test_small_and_large_messages_keep_their_order(client: TopicLogClient) -> None:
    client.create_topic("t")
    values = [b"%d" % number * (1 if number % 2 else 1_100_000) for number in range(10)]
    assert client.send_many("t", values) == range(10)
    client.subscribe(["t"])
    client.seek("t", 0)
    assert [message.value for message in iter(client.poll, None)] == values


def test_the_replies_of_a_failed_call_are_not_taken_for_those_of_the_next(
    client: TopicLogClient,
) -> None:
    client.create_topic("t")

    def values() -> Iterator[bytes]:
        for number in range(5):
            yield b"%d" % number * 1_100_000
        raise ValueError("the source of the messages failed")

    with pytest.raises(ValueError, match="the source of the messages failed"):
        client.send_many("t", values())
    assert client.topics() == ["t"]
    with pytest.raises(NotFoundError, match="'no'"):
        client.send_many("no", [b"x" * 1_100_000] * 3)
    assert client.send("t", b"next") == client.end_offset("t") - 1


def test_without_a_subscription_there_is_nothing_to_poll(client: TopicLogClient) -> None:
    for ask in (client.poll, client.poll_batch, client.unsubscribe):
        with pytest.raises(UsageError, match="the client has not subscribed: subscribe first"):
            ask()
    client.subscribe([])
    assert client.poll() is None
    with pytest.raises(
        UsageError, match="the client has a subscription already: unsubscribe first"
    ):
        client.subscribe([])


def test_a_wait_is_longer_than_that_of_the_server(
    client: TopicLogClient, line: WiredSocket
) -> None:
    client.create_topic("t")
    client.send("t", b"x")
    client.subscribe(["t"])
    client.seek("t", 0)
    assert client.poll(timeout=5.0) is not None
    assert line.timeout == 35.0


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda client: client.send("t", b"x"), OutcomeUnknownError),
        (lambda client: client.create_topic("t"), OutcomeUnknownError),
        (lambda client: client.topics(), RetryError),
    ],
)
def test_a_lost_connection_says_whether_it_may_have_happened(
    client: TopicLogClient, line: WiredSocket, ask: Any, error: type[Exception]
) -> None:
    line.is_cut = True
    with pytest.raises(error, match="the connection was lost"):
        ask(client)


def test_a_connection_that_ends_within_a_reply_is_lost(
    client: TopicLogClient, line: WiredSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "recv_into", lambda _: 0)
    with pytest.raises(RetryError, match="the server has closed the connection"):
        client.topics()


def test_a_reply_of_another_kind_is_not_taken_for_ours(
    client: TopicLogClient, line: WiredSocket
) -> None:
    line.server.line.out += reply(RequestKind.SEND, client._next_id + 1, encode_names([]))  # noqa: SLF001
    with pytest.raises(OutcomeUnknownError, match="of another kind: kind=SEND"):
        client.topics()


def test_a_reply_to_another_request_is_not_taken_for_ours(
    client: TopicLogClient, line: WiredSocket
) -> None:
    line.server.line.out += reply(RequestKind.TOPICS, 99, encode_names([]))
    with pytest.raises(OutcomeUnknownError, match="belongs to no request: kind=TOPICS id=99"):
        client.topics()


class TestAskedAhead:
    """Who reads one topic that has more is asked for it before the caller is."""

    @pytest.fixture
    def reading(self, client: TopicLogClient) -> TopicLogClient:
        client.create_topic("t")
        for number in range(4):
            client.send("t", b"%d" % number * 100)
        client.subscribe(["t"])
        client.seek("t", 0)
        return client

    def next_values(self, client: TopicLogClient) -> list[bytes]:
        batch = client.poll_batch(bytes_max=100)
        return [] if batch is None else batch.values()

    def test_everything_comes_once_and_in_order(
        self, reading: TopicLogClient, line: WiredSocket
    ) -> None:
        found = self.next_values(reading)
        # The reply to the next fetch is here before it is wanted.
        assert len(line.server.line.out) > 100
        while values := self.next_values(reading):
            found += values
        assert found == [b"%d" % number * 100 for number in range(4)]
        reading.send("t", b"more")
        assert self.next_values(reading) == [b"more"]

    def test_where_nothing_was_there_yet_it_is_asked_for_again(
        self, reading: TopicLogClient
    ) -> None:
        reading.seek("t", 3)
        assert self.next_values(reading) == [b"3" * 100]
        reading.send("t", b"more")
        assert self.next_values(reading) == [b"more"]

    def test_other_requests_go_between(self, reading: TopicLogClient) -> None:
        for number in range(4):
            assert self.next_values(reading) == [b"%d" % number * 100]
            reading.commit("c", "t", reading.position("t"))
            assert reading.committed("c", "t") == number + 1
            assert reading.send("t", b"x") == 4 + number
        assert [self.next_values(reading) for _ in range(5)] == [[b"x"]] * 4 + [[]]

    def test_who_goes_elsewhere_gets_what_stands_there(self, reading: TopicLogClient) -> None:
        assert self.next_values(reading) == [b"0" * 100]
        reading.seek("t", 3)
        assert self.next_values(reading) == [b"3" * 100]
        reading.seek("t", 0)
        assert self.next_values(reading) == [b"0" * 100]
        reading.unsubscribe()
        assert reading.topics() == ["t"]

    def test_a_refusal_is_told_to_who_wants_it(
        self, reading: TopicLogClient, line: WiredSocket
    ) -> None:
        assert self.next_values(reading) == [b"0" * 100]
        out = line.server.line.out
        (request_id,) = struct.unpack_from("!I", out, 8)
        out[:] = refusal(RequestKind.FETCH, request_id, ResponseStatus.OVERLOADED, "too much")
        assert reading.topics() == ["t"]
        with pytest.raises(OverloadedError, match="too much"):
            reading.poll_batch()
        assert self.next_values(reading) == [b"1" * 100]


def test_nobody_there_is_told_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(RetryError, match=r"cannot connect to topic logs at h:1: refused"):
        TopicLogClient("h", 1)


@pytest.mark.parametrize("host", ["a..b", "a\udcff", "x" * 70])
def test_a_host_name_that_cannot_be_encoded_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as refused:
        TopicLogClient(host, 1)
    assert str(refused.value) == f"invalid host name: {host!r}"


def test_a_server_that_does_not_greet_back_is_left(line: WiredSocket) -> None:
    line.is_cut = True
    with pytest.raises(RetryError):
        TopicLogClient()
    assert line.is_closed


def test_what_a_lost_connection_means_depends_on_what_was_asked() -> None:
    kinds = {kind: type(lost(kind, OSError("x"))) for kind in RequestKind}
    assert {kind for kind, error in kinds.items() if error is OutcomeUnknownError} == {
        RequestKind.CREATE,
        RequestKind.SEND,
        RequestKind.COMMIT,
    }
