from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from siltstone.cli.mqtt.pub import parse_properties, stdin_reader, take_nothing
from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import ConnAck, Connect, Disconnect, PubAck
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.command_line import CommandLine, Outcome
from tests.support.fake_network import Loop, Network
from tests.support.model_server import ModelServer, Received


@pytest.fixture
def server() -> ModelServer:
    return ModelServer()


@pytest.fixture
def network(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network(server)
    monkeypatch.setattr("siltstone.cli.mqtt.running._new_loop", lambda: Loop(made))
    return made


def one(topic: bytes, payload: bytes, *, qos: int = 0) -> list[Received]:
    return [Received(topic, payload, qos, 1 if qos else 0, dup=False)]


@pytest.mark.parametrize(
    ("arguments", "stdin", "payload"),
    [
        (("-m", "text"), b"", b"text"),
        (("-m", "\udcff"), b"", b"\xff"),
        (("-n",), b"ignored", b""),
        (("-s",), b"all\nof it\n", b"all\nof it\n"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_published(
    siltstone: CommandLine,
    network: Network,
    arguments: tuple[str, ...],
    stdin: bytes,
    payload: bytes,
    qos: int,
) -> None:
    outcome = siltstone("pub", "-t", "a/b", "-q", str(qos), *arguments, stdin=stdin)
    assert outcome == Outcome(status=0, out="", err="")
    assert network.server.received == one(b"a/b", payload, qos=qos)
    assert [type(packet) for packet in network.server.controls] == [Connect, Disconnect]


def test_a_file_is_published(siltstone: CommandLine, network: Network, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff")
    assert siltstone("pub", "-t", "t", "-f", str(file)).status == 0
    assert network.server.received == one(b"t", b"\x00\xff")
    missing = siltstone("pub", "-t", "t", "-f", "/none")
    assert (missing.status, missing.err) == (
        2,
        "siltstone: cannot open /none: no such file or directory\n",
    )


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_every_line_is_a_message_and_all_are_acknowledged(
    siltstone: CommandLine, network: Network, qos: str
) -> None:
    network.server.told = Properties(receive_maximum=7)
    lines = [b"%d" % number for number in range(1000)]
    stdin = b"\n".join(lines) + b"\n"
    outcome = siltstone("pub", "-t", "t", "-l", "-q", qos, "-v", stdin=stdin)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("1,000 messages in ")
    assert network.server.delivered == lines


def test_verbose_says_how_it_went(siltstone: CommandLine, network: Network) -> None:
    outcome = siltstone("pub", "-t", "t", "-n", "-v")
    assert outcome.out.startswith("1 message in ")
    assert outcome.out.endswith(" messages/s\n")


def test_no_lines_are_no_messages(siltstone: CommandLine, network: Network) -> None:
    assert siltstone("pub", "-t", "t", "-l") == Outcome(status=0, out="", err="")
    assert network.server.received == []


def test_the_topic_may_stand_in_the_url(siltstone: CommandLine, network: Network) -> None:
    assert siltstone("pub", "-L", "mqtt://u@there:99/x/y", "-m", "1").status == 0
    assert network.server.received == one(b"x/y", b"1")
    assert network.dialled == [("there", 99, None)]
    connect = network.server.controls[0]
    assert isinstance(connect, Connect)
    assert connect.username == "u"


def test_the_password_comes_from_the_environment(
    siltstone: CommandLine, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILTSTONE_PASSWORD", "secret")
    assert siltstone("pub", "-u", "me", "-t", "t", "-n").status == 0
    connect = network.server.controls[0]
    assert isinstance(connect, Connect)
    assert (connect.username, connect.password) == ("me", b"secret")


def test_a_server_that_is_not_there_is_status_3(
    siltstone: CommandLine, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Network(server, ConnectionRefusedError(111, "Connection refused"))
    monkeypatch.setattr("siltstone.cli.mqtt.running._new_loop", lambda: Loop(dead))
    outcome = siltstone("pub", "-t", "t", "-m", "x", "-h", "::1")
    assert (outcome.status, outcome.err) == (
        3,
        (
            "siltstone: cannot connect to [::1]:1883: connection refused; "
            "'siltstone serve' starts a broker\n"
        ),
    )


def test_a_refused_connection_is_status_3_with_the_reason(
    siltstone: CommandLine, network: Network
) -> None:
    network.server.answer = ConnAck(reason=Reason.NOT_AUTHORIZED)
    outcome = siltstone("pub", "-t", "t", "-l", stdin=b"1\n")
    assert (outcome.status, outcome.err) == (
        3,
        (
            "siltstone: the server refused the connection: not authorized (0x87); "
            "no user name was sent (--username); 0 messages were sent\n"
        ),
    )
    named = siltstone("pub", "-t", "t", "-u", "alice", "-l", stdin=b"1\n")
    assert named.err == (
        "siltstone: the server refused the connection: not authorized (0x87); "
        "0 messages were sent\n"
    )


def test_a_refused_message_is_status_3_with_the_reason_and_what_became_of_the_others(
    siltstone: CommandLine, network: Network
) -> None:
    network.server.holding = True
    network.server.told = Properties(receive_maximum=3)
    real = network.server.receive

    def refuse_the_second(data: bytes) -> bytes:
        answer = real(data)
        if len(network.server.received) == 3 and network.server.holding:
            network.server.holding = False
            network.server.acknowledge()
            for number in (1, 3):
                answer += encode(Version.V5, PubAck(packet_id=number))
            answer += encode(Version.V5, PubAck(packet_id=2, reason=Reason.QUOTA_EXCEEDED))
        return answer

    network.server.receive = refuse_the_second  # type: ignore[method-assign]
    outcome = siltstone("pub", "-t", "t", "-l", "-q", "1", stdin=b"1\n2\n3\n4\n")
    assert (outcome.status, outcome.out, outcome.err) == (
        3,
        "",
        (
            "siltstone: the server refused a message: quota exceeded (0x97); "
            "2 messages were acknowledged\n"
        ),
    )


def test_a_message_too_large_for_the_server_is_status_2(
    siltstone: CommandLine, network: Network
) -> None:
    network.server.told = Properties(maximum_packet_size=20)
    outcome = siltstone("pub", "-t", "t", "-m", "x" * 100)
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: message is too large for the server: size_bytes=100 packet_size_max=20\n",
    )


@pytest.mark.parametrize(
    ("given", "sent", "told"),
    [
        (b"1\n2\n3", [b"1", b"2"], "2 messages were acknowledged"),
        (b"1\n2", [b"1"], "1 message was acknowledged"),
    ],
)
def test_input_that_breaks_is_told_after_what_was_sent(
    siltstone: CommandLine,
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
    given: bytes,
    sent: list[bytes],
    told: str,
) -> None:
    chunks = iter([given])

    def read(_size: int) -> bytes:
        for chunk in chunks:
            return chunk
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("siltstone.cli.mqtt.pub.stdin_reader", lambda: read)
    outcome = siltstone("pub", "-t", "t", "-l", "-q", "1")
    assert (outcome.status, outcome.err) == (
        2,
        f"siltstone: cannot publish all of stdin: input/output error; {told}\n",
    )
    assert network.server.delivered == sent


def test_an_interrupt_says_goodbye_and_is_status_130(
    siltstone: CommandLine, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.server.holding = True
    real = network.server.receive

    def interrupt(data: bytes) -> bytes:
        if network.server.received:
            return real(data)
        answer = real(data)
        if network.server.received:
            loop = asyncio.get_running_loop()
            # As a signal would.
            loop.call_soon(loop._signal_handlers[2]._run)  # type: ignore[attr-defined]  # noqa: SLF001
        return answer

    network.server.receive = interrupt  # type: ignore[method-assign]
    assert siltstone("pub", "-t", "t", "-m", "x", "-q", "1").status == 130
    assert network.server.controls[-1] == Disconnect()


def test_a_kept_session_s_messages_are_not_taken() -> None:
    assert take_nothing(PublishBatch()) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("-t", "t"), "pass exactly one of --message, --file, --stdin, --lines and --null"),
        (("-t", "t", "-m", "x", "-n"), "pass exactly one of --message"),
        (("-m", "x"), "topic is missing; name it with --topic"),
        (("-t", "a/#", "-m", "x"), "topic must not have the wildcards"),
        (("-t", "t", "-n", "-D", "content-type=x", "-V", "3.1.1"), "--property needs MQTT 5"),
        (("-t", "t", "-n", "-q", "3"), "see 'siltstone pub --help'"),
        (("-t", "t", "-n", "-V", "4"), "unknown MQTT version '4'"),
        (("-t", "t", "-n", "-L", "http://x"), "invalid URL 'http://x'"),
    ],
)
def test_wrong_input_is_status_2_and_one_sentence(
    siltstone: CommandLine, network: Network, arguments: tuple[str, ...], complaint: str
) -> None:
    outcome = siltstone("pub", *arguments)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert complaint in outcome.err
    assert network.dialled == []


def test_properties_are_written_as_name_and_value() -> None:
    assignments = [
        "content-type=a=b",
        "response-topic=r",
        "correlation-data=\udcff",
        "message-expiry=1m",
        "payload-format=1",
        "user:k=v",
        "user:k=",
    ]
    assert parse_properties(assignments) == Properties(
        content_type="a=b",
        response_topic="r",
        correlation_data=b"\xff",
        message_expiry_interval=60,
        payload_format_indicator=1,
        user_properties=(("k", "v"), ("k", "")),
    )


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("content-type", "--property expects NAME=VALUE, got 'content-type'"),
        ("topic-alias=1", "unknown property 'topic-alias' .known: content-type, "),
        ("payload-format=2", "must be 0 .bytes. or 1 .text., got '2'"),
        ("message-expiry=x", "expected a time"),
    ],
)
def test_another_property_is_refused(assignment: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_properties([assignment])


def test_a_stdin_that_does_not_wait_is_an_error_and_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NotReady(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _buffer: object) -> None:
            return None

    buffered = io.BufferedReader(NotReady())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(buffered))
    with pytest.raises(BlockingIOError, match="does not wait for data"):
        stdin_reader()(10)
