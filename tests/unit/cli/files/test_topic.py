from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.support.command_line import CommandLine
from tests.support.topiclog_wire import Wired, WiredSocket, wired


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wired]:
    """Let every command talk to one server without a network."""
    with wired() as found:
        monkeypatch.setattr(socket, "create_connection", lambda *_: WiredSocket(found))
        yield found


def test_topics_are_created_and_listed(siltstone: CommandLine, server: Wired) -> None:
    assert siltstone("topic", "list").out == (
        "no topics; create one with 'siltstone topic create TOPIC'\n"
    )
    outcome = siltstone("topic", "create", "plant/1")
    assert (outcome.status, outcome.out, outcome.err) == (0, "created topic plant/1\n", "")
    siltstone("topic", "create", "b")
    siltstone("topic", "send", "b", "hello")
    assert siltstone("topic", "list").out.split("\n")[2:] == [
        "plant/1      0    0",
        "b            0    1",
        "",
    ]
    assert json.loads(siltstone("topic", "list", "--json").out) == [
        {"topic": "plant/1", "first_offset": 0, "end_offset": 0},
        {"topic": "b", "first_offset": 0, "end_offset": 1},
    ]
    again = siltstone("topic", "create", "b")
    assert (again.status, again.err) == (2, "siltstone: topic 'b' exists already\n")


def test_a_message_lines_and_all_of_stdin_are_sent(siltstone: CommandLine, server: Wired) -> None:
    siltstone("topic", "create", "t")
    assert siltstone("topic", "send", "t", "one").out == "sent 1 message to t, first offset 0\n"
    lines = siltstone("topic", "send", "t", "--lines", stdin=b"two\n\nthree\r\n")
    assert lines.out == "sent 2 messages to t, first offset 1\n"
    siltstone("topic", "send", "t", stdin=b"four\nfive")
    assert siltstone("topic", "send", "t", "").out == "sent 0 messages to t\n"
    found = siltstone("topic", "poll", "t", "--offset", "0", "--json").out
    decoder, values = json.JSONDecoder(), []
    while found := found.lstrip():
        document, end = decoder.raw_decode(found)
        values.append((document["offset"], document["value"]))
        found = found[end:]
    assert values == [(0, "one"), (1, "two"), (2, "three"), (3, "four\nfive")]
    both = siltstone("topic", "send", "t", "x", "--lines")
    assert (both.status, both.err) == (
        2,
        "siltstone: MESSAGE and --lines exclude each other; pass one of them\n",
    )


def test_bytes_that_are_no_text_are_told_as_base64(siltstone: CommandLine, server: Wired) -> None:
    siltstone("topic", "create", "t")
    siltstone("topic", "send", "t", stdin=b"\xff\x00")
    found = json.loads(siltstone("topic", "poll", "t", "-o", "0", "--json").out)
    assert found == {"topic": "t", "offset": 0, "value_base64": "/wA="}


def test_a_message_of_the_command_line_is_sent_as_its_bytes(
    siltstone: CommandLine, server: Wired
) -> None:
    siltstone("topic", "create", "t")
    assert siltstone("topic", "send", "t", "a\udcff").status == 0
    found = json.loads(siltstone("topic", "poll", "t", "-o", "0", "--json").out)
    assert found == {"topic": "t", "offset": 0, "value_base64": "Yf8="}


def test_a_client_goes_on_where_it_has_committed(siltstone: CommandLine, server: Wired) -> None:
    siltstone("topic", "create", "t")
    siltstone("topic", "send", "t", "--lines", stdin=b"a\nb\nc\n")
    assert siltstone("topic", "poll", "t", "-c", "me", "-n", "2").out == "a\nb\n"
    shown = siltstone("topic", "commit", "me", "t")
    assert shown.out == "me continues at offset 2 of t\n"
    assert siltstone("topic", "poll", "t", "-c", "me").out == "c\n"
    assert siltstone("topic", "poll", "t", "-c", "me").out == ""
    moved = siltstone("topic", "commit", "me", "t", "1", "--json")
    assert json.loads(moved.out) == {"client": "me", "topic": "t", "offset": 1}
    assert siltstone("topic", "poll", "t", "-c", "me").out == "b\nc\n"


def test_what_does_not_exist_is_told(siltstone: CommandLine, server: Wired) -> None:
    polled = siltstone("topic", "poll", "no")
    assert (polled.status, polled.err) == (
        2,
        "siltstone: topic no does not exist; 'siltstone topic list' shows all\n",
    )
    # Here the server refuses.
    for command in (["send", "no", "x"], ["commit", "me", "no"]):
        outcome = siltstone("topic", *command)
        assert outcome.status == 2
        assert "'no'" in outcome.err


def test_a_server_that_is_not_there_is_told(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    outcome = siltstone("topic", "list", "--port", "1")
    assert outcome.status == 3
    assert outcome.err == (
        "siltstone: cannot connect to topic logs at 127.0.0.1:1: connection refused; "
        "start a broker with topiclog.enabled = true, or name its --host and --port\n"
    )


def test_the_bench_sends_and_reads_as_many(siltstone: CommandLine, server: Wired) -> None:
    outcome = siltstone("topic", "bench", "-n", "500", "--size", "10", "--json")
    rates = json.loads(outcome.out)
    assert list(rates) == ["sent_a_second", "read_a_second"]
    assert server.logs.log("bench").bounds() == range(500)
    table = siltstone("topic", "bench", "-n", "5").out.splitlines()
    assert [line.split()[0] for line in table[2:]] == ["sent", "read"]
