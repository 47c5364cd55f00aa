"""`siltstone pub`: publish a message, or one for each line of stdin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import EAGAIN
from pathlib import Path
from threading import Thread
from typing import Annotated, BinaryIO, Final

import typer

from siltstone.cli.mqtt.client_options import (
    ClientOptions,
    ClientPlan,
    encoded_topic,
    hinted,
    parse_seconds,
    plan,
    takes_client_options,
)
from siltstone.cli.mqtt.lines import LineFeed
from siltstone.cli.mqtt.running import run_until_signal
from siltstone.cli.output.output import counted, say, were
from siltstone.cli.output.streams import standard_input
from siltstone.client.outgoing import Publication
from siltstone.client.packet_ids import PACKET_ID_MAX
from siltstone.client.refusal import refused, system_words
from siltstone.client.session import ClientSession
from siltstone.client.settings import WINDOW_CAUTIOUS, WINDOW_DEFAULT, default_window
from siltstone.errors import SiltstoneError, UsageError
from siltstone.mqtt.encode import encode_message_properties
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.wire import Version

# More lines are read when fewer than this wait, besides those in flight.
_QUEUED_LOW: Final = 10_000
_PROPERTIES: Final = (
    "content-type",
    "response-topic",
    "correlation-data",
    "message-expiry",
    "payload-format",
    "user:KEY",
)


def parse_properties(assignments: Sequence[str]) -> Properties:
    """Parse `name=value` as properties of a message. Raises: UsageError."""
    properties = NO_PROPERTIES
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--property expects NAME=VALUE, got {assignment!r}")
        properties = _with_property(properties, name, value)
    return properties


def _with_property(properties: Properties, name: str, value: str) -> Properties:
    if name.startswith("user:"):
        pair = (name.removeprefix("user:"), value)
        return replace(properties, user_properties=(*properties.user_properties, pair))
    match name:
        case "content-type":
            return replace(properties, content_type=value)
        case "response-topic":
            return replace(properties, response_topic=value)
        case "correlation-data":
            return replace(properties, correlation_data=value.encode(errors="surrogateescape"))
        case "message-expiry":
            return replace(properties, message_expiry_interval=parse_seconds(value))
        case "payload-format" if value in {"0", "1"}:
            return replace(properties, payload_format_indicator=int(value))
        case "payload-format":
            raise UsageError(f"payload-format must be 0 (bytes) or 1 (text), got {value!r}")
        case _:
            raise UsageError(f"unknown property {name!r} (known: {', '.join(_PROPERTIES)})")


class LinePublisher:
    """Publishes lines as fast as they are acknowledged; `error` is the error of the input."""

    def __init__(
        self,
        plan: ClientPlan,
        session: ClientSession,
        publication: Publication,
        read: Callable[[int], bytes],
    ) -> None:
        self.error: Exception | None = None
        self._session = session
        self._publication = publication
        self._client = plan.client(session, deliver=take_nothing, wanted=self._want)
        self._read = read
        self._feed: LineFeed | None = None

    async def run(self) -> None:
        """Publish all lines, and wait until all are acknowledged."""
        post = asyncio.get_running_loop().call_soon_threadsafe
        self._feed = LineFeed(self._read, post, take=self._take, end=self._end)
        Thread(target=self._feed.run, name="lines", daemon=True).start()
        await self._client.run()

    def _want(self) -> None:
        outgoing = self._session.outgoing
        if self._feed is not None and not outgoing.refusal and outgoing.queued < _QUEUED_LOW:
            self._feed.ask()

    def _take(self, lines: list[bytes]) -> None:
        self._session.outgoing.add(self._publication, lines)
        self._client.pump()

    def _end(self, error: Exception | None) -> None:
        self.error = error
        self._session.finish()
        self._client.pump()


def take_nothing(_batch: PublishBatch) -> int:
    """Take no messages: those of a kept session are for the client that subscribed."""
    return 0


Window = Annotated[
    int | None,
    typer.Option(
        "--window",
        metavar="N",
        min=1,
        max=PACKET_ID_MAX - 2,
        help="Number of messages sent before an acknowledgement arrives.",
        show_default=f"{WINDOW_DEFAULT}; {WINDOW_CAUTIOUS} with MQTT 3.1.1 and QoS 2",
    ),
]


PubProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-D",
        metavar="NAME=VALUE",
        help=f"MQTT 5 property: {', '.join(_PROPERTIES)}. Repeatable.",
    ),
]


Null = Annotated[
    bool,
    typer.Option(
        "--null",
        "-n",
        help="Send an empty payload. With --retain it clears a retained message.",
    ),
]


File = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="Send the contents of a file as the payload."
    ),
]


@takes_client_options
def pub(
    client: ClientOptions,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Topic to publish to.", show_default=False)
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Payload, as text.")
    ] = None,
    file: File = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-s", help="Send all of standard input as one message.")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", "-l", help="Send each line of standard input as one message.")
    ] = False,
    null: Null = False,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")] = 0,
    retain: Annotated[
        bool, typer.Option("--retain", "-r", help="Ask the broker to retain the message.")
    ] = False,
    properties: PubProperties = None,
    window: Window = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print the number of messages and the rate at the end."
        ),
    ] = False,
) -> None:
    """Publish messages to an MQTT broker.

    With QoS 1 and 2 the exit status is 0 only after the broker has acknowledged every message.

    $ siltstone pub -t demo/room -m 21.5
    $ siltstone pub -t demo/room -l -q 1 -v < values.txt
    $ siltstone pub -L mqtts://alice@broker.example/demo/room -f picture.jpg
    """
    if (message is not None) + (file is not None) + stdin + lines + null != 1:
        raise UsageError("pass exactly one of --message, --file, --stdin, --lines and --null")
    usual = default_window(client.version or Version.V5, qos)
    chosen = plan(client, role="pub", window=window or usual)
    if properties and chosen.settings.version is Version.V3_1_1:
        raise UsageError("--property needs MQTT 5; leave out --version 3.1.1")
    name = topic or chosen.topic
    if name is None:
        raise UsageError("topic is missing; name it with --topic")
    publication = Publication(
        topic=encoded_topic(name),
        qos=qos,
        retain=retain,
        properties=encode_message_properties(parse_properties(properties or [])),
    )
    if lines:
        _publish_lines(chosen, publication, verbose=verbose)
    else:
        _publish_one(chosen, publication, _payload(message, file, stdin=stdin), verbose=verbose)


def _payload(message: str | None, file: Path | None, *, stdin: bool) -> bytes:
    if file is not None:
        return file.read_bytes()
    if stdin:
        return standard_input().read()
    return (message or "").encode(errors="surrogateescape")


def _publish_one(
    chosen: ClientPlan, publication: Publication, payload: bytes, *, verbose: bool
) -> None:
    session = chosen.session()
    session.outgoing.add(publication, [payload])
    session.finish()
    started = time.monotonic()
    with hinted(chosen, session):
        status = run_until_signal(chosen.client(session, deliver=take_nothing).run())
    _conclude(session, status, started if verbose else None)


def _publish_lines(chosen: ClientPlan, publication: Publication, *, verbose: bool) -> None:
    session = chosen.session()
    outgoing = session.outgoing
    publisher = LinePublisher(chosen, session, publication, stdin_reader())
    started = time.monotonic()
    try:
        with hinted(chosen, session):
            status = run_until_signal(publisher.run())
        if publisher.error is not None:
            words = system_words(publisher.error)
            raise UsageError(f"cannot publish all of stdin: {words}") from publisher.error
        _conclude(session, status, started if verbose else None)
    except SiltstoneError as exc:
        waiting, completed = outgoing.unacknowledged, outgoing.completed
        left = f", {waiting:,} {were(waiting)} not" if waiting else ""
        verb = "acknowledged" if publication.qos else "sent"
        done = f"{counted(completed, 'message')} {were(completed)}"
        exc.args = (f"{exc}; {done} {verb}{left}", *exc.args[1:])
        raise


def _conclude(session: ClientSession, status: int, started: float | None) -> None:
    """Report the result: refused, interrupted, or done."""
    if session.outgoing.refusal is not None:
        raise refused("the server refused a message", session.outgoing.refusal)
    if status:
        raise typer.Exit(status)
    if started is not None:
        count = session.outgoing.completed
        seconds = time.monotonic() - started
        say(f"{counted(count, 'message')} in {seconds:.2f} s, {count / seconds:,.0f} messages/s")


def stdin_reader() -> Callable[[int], bytes]:
    """Return a function that reads stdin without a lock, because its thread may block for ever."""
    buffer = standard_input()
    file: BinaryIO = getattr(buffer, "raw", buffer)

    def read(size: int) -> bytes:
        chunk: bytes | None = file.read(size)
        if chunk is None:
            raise BlockingIOError(EAGAIN, "standard input does not wait for data")
        return chunk

    return read
