from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable

import pytest

from siltstone.cli.mqtt.sub import choose_render
from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.support.command_line import CommandLine, Outcome
from tests.support.fake_network import Loop, Network
from tests.support.model_server import ModelServer

OLD = Publish(topic=b"a", payload=b"old", retain=True)
ONE = Publish(topic=b"a", payload=b"one", qos=1, packet_id=1)
TWO = Publish(topic=b"b", payload=b"\x00\xff", qos=2, packet_id=2)


class Talkative(ModelServer):
    """Sends messages as soon as somebody has subscribed."""

    def __init__(self, *messages: Publish) -> None:
        super().__init__()
        self.messages = messages

    def _answer(self, packet: Packet) -> bytes:
        answer = super()._answer(packet)
        if isinstance(packet, Subscribe):
            answer += self.publish(*self.messages)
        return answer


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelServer], Network]:
    def connect(server: ModelServer) -> Network:
        network = Network(server)
        monkeypatch.setattr("siltstone.cli.mqtt.running._new_loop", lambda: Loop(network))
        return network

    return connect


Connected = Callable[[ModelServer], Network]


def test_payloads_are_printed_as_they_come_and_acknowledged(
    siltstone: CommandLine, connected: Connected
) -> None:
    server = Talkative(OLD, ONE, Publish(topic=b"b", payload="é".encode(), qos=2, packet_id=2))
    connected(server)
    outcome = siltstone("sub", "-t", "a", "-t", "b/#", "-q", "2", "-C", "3")
    assert outcome == Outcome(status=0, out="old\none\né\n", err="")
    subscriptions = tuple(
        Subscription(filter=TopicFilter.parse(text), qos=2) for text in ("a", "b/#")
    )
    kinds = [packet for packet in server.controls if not isinstance(packet, Connect)]
    assert kinds == [Subscribe(packet_id=1, subscriptions=subscriptions), Disconnect()]
    # QoS 2 is not complete, but the server has our PUBREC: it will not send the message again.
    assert server.unacknowledged == [2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-v",), "a old\na one\n"),
        (("-N",), "oldone"),
        (("-F", r"%t\t%p %q%r"), "a\told 01\na\tone 10\n"),
        (("-R",), "one\n"),
        (("--retained-only",), "old\n"),
    ],
)
def test_options_say_what_is_printed_and_how(
    siltstone: CommandLine, connected: Connected, arguments: tuple[str, ...], expected: str
) -> None:
    connected(Talkative(OLD, ONE))
    count = str(expected.count("on") + expected.count("old"))
    outcome = siltstone("sub", "-t", "#", "-C", count, *arguments)
    assert outcome == Outcome(status=0, out=expected, err="")


def test_json_has_all_of_a_message(siltstone: CommandLine, connected: Connected) -> None:
    connected(Talkative(TWO))
    document = siltstone("sub", "-t", "#", "--json", "-C", "1").document
    assert document.pop("timestamp").endswith("Z")
    assert document == {"topic": "b", "qos": 2, "retain": False, "value_base64": "AP8="}


def test_messages_beyond_the_count_stay_with_the_server(
    siltstone: CommandLine, connected: Connected
) -> None:
    server = Talkative(ONE, Publish(topic=b"a", payload=b"next", qos=1, packet_id=9))
    connected(server)
    assert siltstone("sub", "-t", "#", "-C", "1").out == "one\n"
    assert server.unacknowledged == [9]


def test_a_count_that_is_not_reached_in_time_is_status_1(
    siltstone: CommandLine, connected: Connected
) -> None:
    connected(Talkative(ONE))
    outcome = siltstone("sub", "-t", "#", "-C", "2", "-W", "0.05")
    assert outcome == Outcome(
        status=1, out="one\n", err="siltstone: received 1 of 2 messages within 0.05 s\n"
    )


def test_time_alone_ends_well(siltstone: CommandLine, connected: Connected) -> None:
    server = Talkative(ONE)
    connected(server)
    assert siltstone("sub", "-t", "#", "-W", "0.05") == Outcome(status=0, out="one\n", err="")
    assert server.controls[-1] == Disconnect()


def test_time_that_ends_before_the_server_answers_is_status_3(
    siltstone: CommandLine, connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Talkative()
    monkeypatch.setattr(server, "receive", lambda _: b"")
    connected(server)
    outcome = siltstone("sub", "-t", "#", "-q", "1", "-i", "panel", "-c", "-W", "0.05")
    assert outcome == Outcome(
        status=3, out="", err="siltstone: localhost:1883 did not answer within 0.05 s\n"
    )


def test_retained_only_ends_with_the_first_other_one_whatever_the_count(
    siltstone: CommandLine, connected: Connected
) -> None:
    connected(Talkative(OLD, ONE))
    outcome = siltstone("sub", "-t", "#", "--retained-only", "-C", "5", "-W", "60")
    assert outcome == Outcome(status=0, out="old\n", err="")


def test_options_of_a_subscription_are_asked_of_the_server(
    siltstone: CommandLine, connected: Connected
) -> None:
    server = Talkative(ONE)
    connected(server)
    arguments = ("-t", "a", "--no-local", "-R", "-q", "1", "-C", "1")
    assert siltstone("sub", *arguments).status == 0
    wanted = Subscription(filter=TopicFilter.parse("a"), qos=1, no_local=True, retain_handling=2)
    assert server.controls[1] == Subscribe(packet_id=1, subscriptions=(wanted,))


def test_unsubscribing_alone_ends_when_it_is_done(
    siltstone: CommandLine, connected: Connected
) -> None:
    server = ModelServer()
    connected(server)
    assert siltstone("sub", "-U", "a/#") == Outcome(status=0, out="", err="")
    assert server.controls[1:] == [
        Unsubscribe(packet_id=1, filters=(TopicFilter.parse("a/#"),)),
        Disconnect(),
    ]


def test_the_filter_may_stand_in_the_url(siltstone: CommandLine, connected: Connected) -> None:
    server = Talkative(ONE)
    connected(server)
    assert siltstone("sub", "-L", "mqtt://there/a/#", "-C", "1").out == "one\n"
    [wanted] = [packet for packet in server.controls if isinstance(packet, Subscribe)]
    assert [item.filter.text for item in wanted.subscriptions] == ["a/#"]


def test_a_refused_subscription_is_status_3_with_the_reason(
    siltstone: CommandLine, connected: Connected
) -> None:
    class Strict(ModelServer):
        def _answer(self, packet: Packet) -> bytes:
            if isinstance(packet, Subscribe):
                reasons = (Reason.NOT_AUTHORIZED,)
                return encode(Version.V5, SubAck(packet_id=packet.packet_id, reasons=reasons))
            return super()._answer(packet)

    connected(Strict())
    outcome = siltstone("sub", "-t", "secret/#")
    assert (outcome.status, outcome.err) == (
        3,
        "siltstone: the server refused the subscription 'secret/#': not authorized (0x87)\n",
    )


def test_a_reader_that_went_away_ends_it_quietly_and_takes_nothing(
    siltstone: CommandLine,
    connected: Connected,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Gone(io.BytesIO):
        def write(self, _data: object) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    server = Talkative(ONE)
    connected(server)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(Gone()))
        patch.setattr("sys.stderr", sys.stderr)
        # typer ends the process itself when a pipe breaks.
        with pytest.raises(SystemExit) as ended:
            siltstone("sub", "-t", "#")
    assert (ended.value.code, capsys.readouterr().err, server.unacknowledged) == (1, "", [1])


def test_an_interrupt_says_goodbye_and_is_status_130(
    siltstone: CommandLine, connected: Connected
) -> None:
    class Interrupting(Talkative):
        def _answer(self, packet: Packet) -> bytes:
            if isinstance(packet, Subscribe):
                loop = asyncio.get_running_loop()
                # As a signal would.
                loop.call_soon(loop._signal_handlers[2]._run)  # type: ignore[attr-defined]  # noqa: SLF001
            return super()._answer(packet)

    server = Interrupting()
    connected(server)
    assert siltstone("sub", "-t", "#") == Outcome(status=130, out="", err="")
    assert server.controls[-1] == Disconnect()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name topics with --topic"),
        (("-t", "a#"), "# must be the last level, alone"),
        (("-t", "a", "--no-local", "-V", "3.1.1"), "--no-local needs MQTT 5"),
        (("-t", "a", "-R", "--retained-only"), "pass one of them"),
        (("-t", "a", "-v", "--json"), "--format, --json and --verbose exclude each other"),
        (("-t", "a", "-F", "%k"), "unknown field '%k'"),
        (("-t", "a", "-C", "0"), "see 'siltstone sub --help'"),
        (("-t", "a", "-W", "soon"), "expected a time"),
    ],
)
def test_wrong_input_is_status_2_and_one_sentence(
    siltstone: CommandLine, connected: Connected, arguments: tuple[str, ...], complaint: str
) -> None:
    network = connected(ModelServer())
    outcome = siltstone("sub", *arguments)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert complaint in outcome.err
    assert network.dialled == []


def test_the_way_of_writing_is_chosen_once() -> None:
    batch = PublishBatch()
    batch.topics, batch.values = [b"t"], [b"p"]
    batch.flags, batch.packet_ids = [0], [0]
    plain = choose_render(None, json=False, verbose=False, no_newline=False)
    verbose = choose_render(None, json=False, verbose=True, no_newline=True)
    formatted = choose_render("%t", json=False, verbose=False, no_newline=False)
    written = [render(batch, 0) for render in (plain, verbose, formatted)]
    assert written == [b"p\n", b"t p", b"t\n"]
    with pytest.raises(UsageError, match="pass one of"):
        choose_render("%t", json=True, verbose=False, no_newline=False)
