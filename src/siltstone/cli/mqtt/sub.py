"""`siltstone sub`: print messages as they arrive."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from siltstone.cli.mqtt.client_options import (
    ClientOptions,
    ClientPlan,
    hinted,
    plan,
    takes_client_options,
)
from siltstone.cli.mqtt.receiver import Receiver, RetainedChoice
from siltstone.cli.mqtt.rendering import Render, formatted, plain, with_topics
from siltstone.cli.mqtt.running import run_until_signal
from siltstone.cli.options import converted
from siltstone.cli.output.output import counted, note
from siltstone.client.session import ClientSession, WantedSubscriptions
from siltstone.clock import SystemClock
from siltstone.errors import RetryError, UsageError
from siltstone.mqtt.packets import Subscription
from siltstone.mqtt.wire import Version
from siltstone.settings.quantities import parse_duration
from siltstone.topic.grammar import TopicFilter

Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        "-W",
        parser=converted(parse_duration),
        metavar="TIME",
        help="Stop after this time, for example 10s. Status 1 if --count was not reached.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-F",
        help="Line format, as '%t %p': %t topic, %p payload, %q QoS, %j all as JSON.",
    ),
]


Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="FILTER",
        help="Topics to subscribe to, with + and #. Repeatable.",
    ),
]


RetainedOnly = Annotated[
    bool,
    typer.Option(
        "--retained-only",
        help="Print retained messages only, and stop at the first other message.",
    ),
]


Unsubscribe = Annotated[
    list[str] | None,
    typer.Option(
        "--unsubscribe", "-U", metavar="FILTER", help="Remove a subscription of a kept session."
    ),
]


Qos = Annotated[
    int,
    typer.Option("--qos", "-q", min=0, max=2, help="Highest quality of service to receive."),
]


@takes_client_options
def sub(
    client: ClientOptions,
    topics: Topics = None,
    qos: Qos = 0,
    count: Annotated[
        int | None,
        typer.Option("--count", "-C", metavar="N", min=1, help="Stop after N messages."),
    ] = None,
    timeout: Timeout = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the topic before each payload.")
    ] = False,
    output_format: Format = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print each message as one line of JSON.")
    ] = False,
    no_newline: Annotated[
        bool, typer.Option("--no-newline", "-N", help="Print no line end after a payload.")
    ] = False,
    no_retained: Annotated[
        bool, typer.Option("--no-retained", "-R", help="Skip retained messages.")
    ] = False,
    retained_only: RetainedOnly = False,
    no_local: Annotated[
        bool, typer.Option("--no-local", help="Skip messages that this client id published.")
    ] = False,
    unsubscribe: Unsubscribe = None,
) -> None:
    """Subscribe to topics and print the messages.

    The command runs until Ctrl-C. It acknowledges a message after it was printed.

    $ siltstone sub -t 'demo/#' -v
    $ siltstone sub -t 'demo/#' --json -C 10 -W 30s
    $ siltstone sub -t 'demo/#' -q 1 -c -i my-client
    """
    chosen = plan(client, role="sub")
    if no_local and chosen.settings.version is Version.V3_1_1:
        raise UsageError("--no-local needs MQTT 5; leave out --version 3.1.1")
    if no_retained and retained_only:
        raise UsageError("--no-retained and --retained-only exclude each other; pass one of them")
    render = choose_render(output_format, json=json, verbose=verbose, no_newline=no_newline)
    filters = topics or ([] if chosen.topic is None else [chosen.topic])
    wanted = WantedSubscriptions(
        subscriptions=tuple(
            Subscription(
                filter=TopicFilter.parse(text),
                qos=qos,
                no_local=no_local,
                retain_handling=2 if no_retained else 0,
            )
            for text in filters
        ),
        unsubscriptions=tuple(TopicFilter.parse(text) for text in unsubscribe or ()),
    )
    retained = RetainedChoice.LEFT_OUT if no_retained else RetainedChoice.SHOWN
    if retained_only:
        retained = RetainedChoice.ONLY
    _receive(chosen, wanted, render, count_max=count, retained=retained, timeout=timeout)


def choose_render(text: str | None, *, json: bool, verbose: bool, no_newline: bool) -> Render:
    """Return the renderer for the options. Raises: UsageError."""
    if (text is not None) + json + verbose > 1:
        raise UsageError("--format, --json and --verbose exclude each other; pass one of them")
    end = b"" if no_newline else b"\n"
    if json or text is not None:
        return formatted("%j" if text is None else text, end)
    return with_topics(end) if verbose else plain(end)


def _receive(
    chosen: ClientPlan,
    wanted: WantedSubscriptions,
    render: Render,
    *,
    count_max: int | None,
    retained: RetainedChoice,
    timeout: float | None,
) -> None:
    if not wanted.subscriptions and not wanted.unsubscriptions:
        raise UsageError("topic is missing; name topics with --topic")
    session = chosen.session(wanted)
    if not wanted.subscriptions:
        session.finish()
    receiver = Receiver(
        sys.stdout.buffer,
        render,
        SystemClock(),
        full=session.leave,
        count_max=count_max,
        retained=retained,
    )
    with hinted(chosen, session):
        status = run_until_signal(_until(chosen, session, receiver, timeout))
    if status:
        raise typer.Exit(status)
    if timeout is not None and not session.met:
        raise RetryError(f"{chosen.target} did not answer within {timeout:g} s")
    if timeout is not None and count_max is not None and not session.leaving:
        note(f"received {receiver.count:,} of {counted(count_max, 'message')} within {timeout:g} s")
        raise typer.Exit(1)


async def _until(
    chosen: ClientPlan, session: ClientSession, receiver: Receiver, seconds: float | None
) -> None:
    try:
        async with asyncio.timeout(seconds):
            await chosen.client(session, deliver=receiver.take).run()
    except TimeoutError:
        # The user chose this timeout, so it is not an error.
        return
