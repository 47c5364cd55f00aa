"""`siltstone topic`: create and list topic logs, send to them, read them, commit offsets."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Final

import typer

from siltstone.cli.options import Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, counted, say, show, show_json, table
from siltstone.cli.output.streams import standard_input
from siltstone.errors import RetryError, UsageError
from siltstone.settings.quantities import format_size
from siltstone.topiclog.client import DEFAULT_PORT, TopicLogClient
from siltstone.topiclog.consumer import Message

app = App("Create, list, write and read topic logs.", "siltstone topic list")

_LINES_AT_ONCE: Final = 10_000

Host = Annotated[str, typer.Option("--host", help="Host of the server.")]
Port = Annotated[
    int, typer.Option("--port", "-p", min=1, max=65_535, help="Port of the topic log listener.")
]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)
]
HOST_DEFAULT: Final = "127.0.0.1"


def _connect(host: str, port: int) -> TopicLogClient:
    """Return a client. Raises: RetryError with what to start, if nothing listens there."""
    try:
        return TopicLogClient(host, port)
    except RetryError as exc:
        exc.args = (
            f"{exc}; start a broker with topiclog.enabled = true, or name its --host and --port",
            *exc.args[1:],
        )
        raise


@app.command("create")
def create(
    topic: Topic, host: Host = HOST_DEFAULT, port: Port = DEFAULT_PORT, json: Json = False
) -> None:
    """Create a topic.

    The broker must run with a [topiclog] listener.

    $ siltstone topic create orders
    """
    with _connect(host, port) as client:
        client.create_topic(topic)
    _tell(json, {"topic": topic}, f"created topic {topic}")


@app.command("list")
def list_topics(host: Host = HOST_DEFAULT, port: Port = DEFAULT_PORT, json: Json = False) -> None:
    """List the topics with their first and end offsets.

    $ siltstone topic list
    """
    with _connect(host, port) as client:
        bounds = {topic: client.bounds(topic) for topic in client.topics()}
    if json:
        show_json(
            [
                {"topic": topic, "first_offset": found.start, "end_offset": found.stop}
                for topic, found in bounds.items()
            ]
        )
        return
    listed = table("topic", "first", "end", right=("first", "end"))
    for topic, found in bounds.items():
        add_row(listed, (topic, f"{found.start:,}", f"{found.stop:,}"))
    if bounds:
        show(listed)
    else:
        say("no topics; create one with 'siltstone topic create TOPIC'")


@app.command("send")
def send(
    topic: Topic,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="[MESSAGE]", help="Message to send.", show_default="all of standard input"
        ),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", "-l", help="Send each line of standard input as one message.")
    ] = False,
    host: Host = HOST_DEFAULT,
    port: Port = DEFAULT_PORT,
    json: Json = False,
) -> None:
    """Send messages to a topic.

    The command returns when the messages are synced to disk. It skips empty messages.

    $ siltstone topic send orders 'one message'
    $ siltstone topic send orders --lines < orders.txt
    """
    if lines and message is not None:
        raise UsageError("MESSAGE and --lines exclude each other; pass one of them")
    sent = range(0)
    with _connect(host, port) as client:
        if lines:
            for chunk in _chunks():
                stored = client.send_many(topic, chunk)
                sent = range(sent.start if sent else stored.start, stored.stop)
        else:
            value = (
                standard_input().read()
                if message is None
                # The bytes of the command line, also if they are not valid UTF-8.
                else message.encode(errors="surrogateescape")
            )
            sent = client.send_many(topic, [value])
    document = {"topic": topic, "count": len(sent), "first_offset": sent.start}
    behind = f", first offset {sent.start}" if sent else ""
    _tell(json, document, f"sent {counted(len(sent), 'message')} to {topic}{behind}")


def _chunks() -> Iterator[list[bytes]]:
    source = iter(standard_input())
    while chunk := [line.rstrip(b"\r\n") for line in islice(source, _LINES_AT_ONCE)]:
        yield chunk


@app.command("poll")
def poll(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="Topics to read.")],
    start: Annotated[
        int | None,
        typer.Option("--offset", "-o", help="First offset to read.", show_default="the end"),
    ] = None,
    client_name: Annotated[
        str | None,
        typer.Option(
            "--client",
            "-c",
            help="Name of a consumer: start at its committed offset, and commit at the end.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after N messages.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            "-w",
            min=0,
            metavar="SECONDS",
            help="Stop when no message arrives for this long.",
        ),
    ] = 0.0,
    host: Host = HOST_DEFAULT,
    port: Port = DEFAULT_PORT,
    json: Json = False,
) -> None:
    """Read messages of topics, one topic after the other in turn.

    $ siltstone topic poll orders --offset 0
    $ siltstone topic poll orders --client billing --wait 5
    """
    with _connect(host, port) as client:
        if client.subscribe(topics) < len(set(topics)):
            missing = sorted(set(topics) - set(client.topics()))
            raise UsageError(
                f"topic {', '.join(missing)} does not exist; 'siltstone topic list' shows all"
            )
        _go_to(client, topics, start, client_name)
        left = count
        while (left is None or left > 0) and (message := client.poll(wait)) is not None:
            _write(message, json=json)
            left = None if left is None else left - 1
        sys.stdout.flush()
        if client_name is not None:
            for topic in dict.fromkeys(topics):
                client.commit(client_name, topic, client.position(topic))


def _go_to(
    client: TopicLogClient, topics: list[str], start: int | None, client_name: str | None
) -> None:
    for topic in dict.fromkeys(topics):
        if start is not None:
            client.seek(topic, start)
        elif client_name is not None:
            try:
                client.seek(topic, client.committed(client_name, topic))
            except UsageError:
                # The client has committed nothing, so it starts at the first offset.
                client.seek(topic, 0)


def _write(message: Message, *, json: bool) -> None:
    if not json:
        sys.stdout.buffer.write(message.value + b"\n")
        return
    document: dict[str, Any] = {"topic": message.topic, "offset": message.offset}
    try:
        document["value"] = message.value.decode()
    except UnicodeDecodeError:
        document["value_base64"] = base64.b64encode(message.value).decode()
    show_json(document)


@app.command("commit")
def commit(
    client_name: Annotated[str, typer.Argument(metavar="CLIENT", help="Name of the consumer.")],
    topic: Topic,
    offset: Annotated[
        int | None,
        typer.Argument(metavar="[OFFSET]", min=0, help="Offset of the next message to read."),
    ] = None,
    host: Host = HOST_DEFAULT,
    port: Port = DEFAULT_PORT,
    json: Json = False,
) -> None:
    """Commit the offset of a consumer, or show the committed one.

    $ siltstone topic commit billing orders 1200
    $ siltstone topic commit billing orders
    """
    with _connect(host, port) as client:
        if offset is not None:
            client.commit(client_name, topic, offset)
        committed = client.committed(client_name, topic)
    document = {"client": client_name, "topic": topic, "offset": committed}
    _tell(json, document, f"{client_name} continues at offset {committed} of {topic}")


@app.command("bench")
def bench(
    topic: Annotated[
        str,
        typer.Argument(metavar="[TOPIC]", help="Topic to use. It is created if it does not exist."),
    ] = "bench",
    size: Annotated[
        int, typer.Option("--size", min=1, metavar="BYTES", help="Size of a message.")
    ] = 100,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Number of messages.")
    ] = 100_000,
    host: Host = HOST_DEFAULT,
    port: Port = DEFAULT_PORT,
    json: Json = False,
) -> None:
    """Measure how fast messages are sent to a topic and read back.

    $ siltstone topic bench --count 10000
    """
    with _connect(host, port) as client:
        if topic not in client.topics():
            client.create_topic(topic)
        value = bytes(index % 251 + 1 for index in range(size))
        begin = time.perf_counter()
        sent = client.send_many(topic, (value for _ in range(count)))
        sending = time.perf_counter() - begin
        client.subscribe([topic])
        client.seek(topic, sent.start)
        begin, read = time.perf_counter(), 0
        while read < count and (batch := client.poll_batch(1.0)) is not None:
            read += len(batch.values())
        reading = time.perf_counter() - begin
    rates = {"sent": count / sending, "read": read / reading}
    if json:
        show_json({f"{name}_a_second": round(rate) for name, rate in rates.items()})
        return
    listed = table("", "messages/s", "bytes/s", right=("messages/s", "bytes/s"))
    for name, rate in rates.items():
        add_row(listed, (name, f"{rate:,.0f}", format_size(int(rate * size))))
    show(listed)


def _tell(json: bool, document: dict[str, Any], sentence: str) -> None:
    if json:
        show_json(document)
    else:
        say(sentence)
